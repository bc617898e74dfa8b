//! One accident: a repository, a command, and what Git says before it, after it, and when it is undone and redone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use crate::support::*;

/// Where the repository is, and of which kind.
pub struct Shape {
    pub name: &'static str,
    /// Options of `git init`.
    pub init: &'static str,
    /// What makes it from the repository `repo`, in the directory that has it.
    pub setup: &'static str,
    /// The working tree that the commands are run in.
    pub directory: &'static str,
}

/// A repository of its own, SHA-1, references in files.
pub const PLAIN: Shape = Shape { name: "plain", init: "", setup: "", directory: "repo" };

/// A command that is to be undone.
pub struct Scenario {
    pub name: &'static str,
    /// What is done before, in the working tree.
    pub setup: &'static str,
    /// The command, in the working tree.
    pub command: &'static str,
}

/// A scenario in one line.
pub const fn scenario(name: &'static str, setup: &'static str, command: &'static str) -> Scenario {
    Scenario { name, setup, command }
}

/// What Git needs of its environment, for each script.
const ENVIRONMENT: &str = "export GIT_EDITOR=true GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow \
    GIT_CONFIG_VALUE_0=always GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@d\n";

/// A repository with a pack and loose objects, packed and loose references, branches that conflict with `main` (topic)
/// and that do not (side), one that nothing else has (dropped), tags, and two stashes.
const REPOSITORY: &str = r#"
    cd repo
    printf '*.o\n' >.gitignore; mkdir src
    for n in 1 2 3; do echo $n >src/f; echo $n >src/g$n; git add .; git commit -qm "commit $n"; done
    git tag v1 HEAD~1; git tag -am annotated v2
    git checkout -qb topic HEAD~1; echo topic >src/f; git commit -qam topic
    git checkout -qb side main~1; echo side >src/side; git add .; git commit -qm side
    git checkout -qb dropped; echo dropped >src/dropped; git add .; git commit -qm dropped
    git checkout -q main
    git repack -adq; git pack-refs --all
    echo stashed >src/g1; git stash -q; echo stashed again >src/g2; git stash -q
    echo 4 >src/g4; git add .; git commit -qm "commit 4"; git tag late
"#;

/// Uncommitted changes, staged and not, and files that Git does not know or ignores.
pub const DIRTY: &str = "echo dirty >>src/g1; echo staged >>src/g2; git add src/g2; rm src/g3; echo object >x.o; \
    mkdir new; echo untracked >new/untracked;";

/// What Git and the working trees say below the current directory.
const PROBE: &str = r#"
    export GIT_OPTIONAL_LOCKS=0
    find . -name .git -prune -o -name '*.git' -prune -o \( -type l -o -type d -o -type f \) -printf '%P %y %m %l\n' | sort
    find . -name .git -prune -o -name '*.git' -prune -o -type f -print0 | sort -z | xargs -0r sha256sum
    for dot in $(find . -name .git | sort) $(find . -name '*.git' ! -name .git | sort); do
        tree=$(dirname $dot); case $dot in */.git) ;; *) tree=$dot;; esac
        (cd $tree || exit 0
        say() { echo "== $tree: $*"; "$@" 2>&1 || echo "-> $?"; }
        say git status --porcelain=v2 --branch --ignored
        say git log --all --oneline --graph
        say git stash list
        say git reflog --all
        say git for-each-ref
        say git symbolic-ref HEAD
        say git ls-files -s
        say git fsck --no-dangling --no-progress
        say git worktree list
        say git config --list --local
        say git bisect log
        [ ! -f .gitmodules ] || say git submodule status
        ls "$(git rev-parse --git-dir)" "$(git rev-parse --git-path hooks)" 2>/dev/null |
            grep -vx -e gc.pid -e 'gc.log' -e COMMIT_EDITMSG || true)
    done
"#;

/// All objects of the repositories below the current directory.
const OBJECTS: &str = r#"
    for dot in $(find . -name .git | sort); do
        (cd $(dirname $dot) && git cat-file --batch-all-objects --batch-check 2>/dev/null || true)
    done | sort -u
"#;

/// A place with the repository of a scenario in it.
pub struct Accident {
    pub place: Place,
    shape: &'static str,
    directory: &'static str,
    runs: u32,
}

impl Accident {
    /// Makes the repository of this shape, and what the scenario needs.
    pub fn new(shape: &Shape, setup: &str, user: User) -> Accident {
        let place = Place::of(user);
        let Shape { init, setup: made, directory, .. } = shape;
        let script = format!(
            "{ENVIRONMENT} git init -qb main {init} repo; ({REPOSITORY}); (true; {made}); (cd {directory}; {setup})"
        );
        place.prepare(&script);
        Accident { place, shape: shape.name, directory, runs: 0 }
    }

    /// What Git and the working trees say now.
    pub fn probe(&self) -> String {
        self.place.prepare(&format!("{ENVIRONMENT}{PROBE}"))
    }

    /// The objects that there are.
    pub fn objects(&self) -> Vec<String> {
        self.place.prepare(&format!("{ENVIRONMENT}{OBJECTS}")).lines().map(str::to_owned).collect()
    }

    /// Records the command with these options into a snapshot directory of its own.
    pub fn record(&mut self, options: &[&str], command: &str) {
        self.runs += 1;
        self.place.out = self.place.base().join(format!("out{}", self.runs));
        let script = format!("{ENVIRONMENT} cd {}; {command}", self.directory);
        let options = [&["--quiet", "--timeout", "300s"], options].concat();
        let output = self.place.record_with(&options, &script);
        assert!(!matches!(status(&output), 124 | 125), "{command}: {output:?}");
    }

    /// The first rescue of the last recording.
    pub fn rescue(&self) -> PathBuf {
        self.place.base().join(format!("out{}-rescue-1", self.runs))
    }

    /// Records the command, undoes it, redoes it by the rescue, and undoes it again.
    pub fn there_and_back(&mut self, options: &[&str], command: &str) {
        let what = format!("{}, {options:?}: {command}", self.shape);
        let (before, objects) = (self.probe(), self.objects());
        self.record(options, command);
        let after = self.probe();
        assert_ne!(before, after, "{what} changes nothing");
        self.place.verb("verify", &[]).expect(0);
        self.place.verb("restore", &["--before"]).expect(0);
        assert_text(&self.probe(), &before, &format!("{what}: undone"));
        let now = self.objects();
        let lost: Vec<_> = objects.iter().filter(|object| now.binary_search(object).is_err()).collect();
        assert!(lost.is_empty(), "{what}: objects are lost: {lost:?}");
        self.place.verb_on("restore", &self.rescue(), &["--before"]).expect(0);
        // A restore removes no object: a repository that the command has broken stays whole.
        if !after.contains("missing blob") {
            assert_text(&self.probe(), &after, &format!("{what}: redone"));
        }
        self.place.verb("restore", &["--before"]).expect(0);
        assert_text(&self.probe(), &before, &format!("{what}: undone again"));
    }
}

/// Asserts that two texts are equal; what differs is shown line by line.
#[track_caller]
pub fn assert_text(found: &str, wanted: &str, what: &str) {
    if found == wanted {
        return;
    }
    let only = |one: &str, other: &str, sign: char| -> String {
        let other: Vec<_> = other.lines().collect();
        let lines = one.lines().filter(|line| !other.contains(line));
        lines.map(|line| format!("    {sign} {line}\n")).collect()
    };
    panic!("{what}:\n{}{}", only(wanted, found, '-'), only(found, wanted, '+'));
}

/// Runs each scenario in this shape with each of these options; all that fail are named.
pub fn run_all<'a>(
    shape: &Shape,
    scenarios: impl IntoIterator<Item = &'a Scenario>,
    runs: &[&[&str]],
    user: User,
) {
    if !has("git") {
        return;
    }
    let mut failures = Vec::new();
    for scenario in scenarios {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut accident = Accident::new(shape, scenario.setup, user);
            for options in runs {
                accident.there_and_back(options, scenario.command);
            }
        }));
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            failures.push(format!("{}, {}: {text}", shape.name, scenario.name));
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
