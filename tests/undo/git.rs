//! Git's own commands undone, with Git's state: conflicts, locks, and the options that concern it.

use std::fs;

use super::commands::undo;
use crate::support::*;

const REPOSITORY: &str = "git init -q; git config user.name a; git config user.email a@b; \
    mkdir src; echo one > src/one; echo two > src/two; printf '*.o\\n' > .gitignore; git add .; \
    git commit -qm first; echo changed > src/one; echo new > src/three; rm src/two; git add -A; git commit -qm second; \
    echo dirty >> src/one; echo object > src/x.o; echo untracked > untracked";

/// What Git says of the repository at `directory`.
fn answers(place: &Place, directory: &str) -> String {
    place.prepare(&format!(
        "cd {directory} && for ask in 'status --porcelain=v2 --branch' 'log --all --format=%H%d' \
         'reflog --all --format=%H%gd%gs' for-each-ref 'ls-files -s' 'stash list' 'config --local --list' \
         'symbolic-ref -q HEAD' 'worktree list' 'fsck --no-dangling --no-progress'; \
         do echo \"== $ask\"; git --no-optional-locks $ask || true; done"
    ))
}

/// A repository, in which `script` has been run and recorded, with Git's answers before and after it.
struct Changed {
    place: Place,
    before: String,
    after: String,
}

impl Changed {
    fn by(script: &str) -> Changed {
        Changed::from(&format!("mkdir repo; cd repo; {REPOSITORY}"), script)
    }

    fn from(build: &str, script: &str) -> Changed {
        let place = Place::new();
        place.prepare(build);
        let before = answers(&place, "repo");
        place.make_bundle(|| {
            place.prepare(&format!("cd repo; {script}"));
        });
        let after = answers(&place, "repo");
        Changed { place, before, after }
    }

    fn run(&self, script: &str) -> String {
        self.place.prepare(&format!("cd repo; {script}"))
    }

    #[track_caller]
    fn expect(&self, wanted: &str) {
        assert_eq!(answers(&self.place, "repo"), *wanted);
    }
}

#[test]
fn git_commands_are_undone_in_the_working_tree() {
    undo(REPOSITORY, "git reset -q --hard HEAD~1");
    undo(REPOSITORY, "git clean -fdxq");
    undo(REPOSITORY, "git checkout -q -- .");
    undo(REPOSITORY, "git stash -q -u");
    undo(REPOSITORY, "git mv src lib; git rm -qf lib/three");
}

#[test]
fn git_state_is_put_back_and_forth() {
    for script in [
        "git commit -qam third",
        "git reset -q --hard HEAD~1",
        "git checkout -qb other; git commit -qam third; git checkout -q master 2>/dev/null || git checkout -q main",
        "git stash -q -u",
        "git branch feature/x; git tag v1; git config x.y z",
        "git pack-refs --all",
    ] {
        let changed = Changed::by(script);
        for _ in 0..2 {
            changed.place.verb("restore", &["--before"]).expect(0);
            changed.expect(&changed.before);
            let again = changed.place.verb("restore", &["--before"]).expect(0);
            assert!(again.stdout.starts_with("nothing to do"), "{script}: {again:#?}");
            changed.place.verb("restore", &[]).expect(0);
            changed.expect(&changed.after);
        }
        changed.place.verb_on("restore", &changed.place.rescue(4), &["--before"]).expect(0);
        changed.expect(&changed.before);
    }
}

#[test]
fn git_state_is_left_if_that_is_wanted() {
    let changed = Changed::by("git commit -qam third; git branch x");
    let head = || changed.run("git rev-parse HEAD; git branch --list x");
    let after = head();
    let run = changed.place.verb("restore", &["--before", "--no-git"]).expect(0);
    assert!(run.stdout.contains("repo/.git: Git's state is left (--no-git)"), "{run:#?}");
    assert_eq!(head(), after);
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
}

#[test]
fn git_state_is_put_back_with_paths_only_if_it_is_named() {
    let changed = Changed::by("git commit -qam third; echo more >> src/one");
    let repository = changed.place.at("repo");
    let repository = repository.to_str().unwrap();
    let one = format!("{repository}/src/one");
    changed.place.verb("restore", &["--before", &one]).expect(0);
    let whole = changed.place.verb("restore", &["--before", repository]).expect(1);
    assert!(whole.stdout.contains("repo/.git: Git's state is put back with all paths"), "{whole:#?}");
    let without = changed.place.verb("restore", &["--before", "--exclude", "one"]).expect(1);
    assert!(without.stdout.contains("repo/.git: Git's state is put back with all paths"), "{without:#?}");
    assert_eq!(changed.run("git log -1 --format=%s"), "third\n");
    changed.place.verb("restore", &["--before", &format!("{repository}/.git")]).expect(0);
    changed.expect(&changed.before);
}

#[test]
fn ref_that_moved_since_is_a_conflict_of_its_repository() {
    let changed = Changed::by("git commit -qam third");
    changed.run("echo own > own; git add own; git commit -qm own");
    let own = answers(&changed.place, "repo");
    let refused = changed.place.verb("restore", &["--before"]).expect(1);
    assert!(refused.stderr.contains("Git's state has changed since (--force-git"), "{refused:#?}");
    changed.expect(&own);
    let forced = changed.place.verb("restore", &["--before", "--force"]).expect(1);
    assert!(forced.stderr.contains("nothing was changed"), "{forced:#?}");
    changed.expect(&own);
    let skipped = changed.place.verb("restore", &["--before", "--skip-conflicts"]).expect(1);
    assert_eq!(skipped.stdout.matches("Git's state is left as it is").count(), 1, "{skipped:#?}");
    changed.expect(&own);
}

#[test]
fn other_repository_is_put_back_where_one_is_left() {
    let place = Place::new();
    place.prepare(&format!("for repo in one two; do mkdir $repo; (cd $repo; {REPOSITORY}); done"));
    let before = answers(&place, "two");
    place.make_bundle(|| {
        place.prepare("for repo in one two; do (cd $repo; git commit -qam third); done");
    });
    place.prepare("cd one; git commit -q --allow-empty -m own");
    let run = place.verb("restore", &["--before", "--skip-conflicts"]).expect(1);
    assert!(run.stdout.contains("one/.git: Git's state is left"), "{run:#?}");
    assert_eq!(answers(&place, "two"), before);
    assert_eq!(place.prepare("cd one; git log -1 --format=%s"), "own\n");
}

#[test]
fn foreign_snapshot_brings_neither_hooks_nor_configuration() {
    let changed =
        Changed::by("git commit -qam third; git config core.x y; echo evil > .git/hooks/post-commit");
    let manifest = changed.place.out.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let machine = json(&manifest)["host"]["machine"].as_str().unwrap().to_owned();
    changed.place.verb("restore", &["--before"]).expect(0);
    fs::write(&manifest, text.replace(&machine, &machine.replace(|_: char| true, "0"))).unwrap();
    let run = changed.place.verb("restore", &["--foreign"]).expect(1);
    assert!(run.stdout.contains(".git/config: from another machine or user"), "{run:#?}");
    assert!(!changed.place.at("repo/.git/hooks/post-commit").exists());
    assert_eq!(changed.run("git log -1 --format=%s; git config core.x || true"), "third\n");
}

#[test]
fn removed_repository_is_restored_with_its_git_directory() {
    let changed = Changed::by("rm -rf .git");
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
    changed.place.verb("restore", &[]).expect(0);
    assert!(!changed.place.at("repo/.git").exists());
}

#[test]
fn refreshed_index_is_no_conflict_but_a_changed_one_is() {
    let changed = Changed::by("git add src/one");
    // Another time of the file, so that the index is written again.
    changed.run("touch -d 2001-01-01 .gitignore; git status");
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
    changed.run("touch -d 2002-02-02 .gitignore; git status");
    let again = changed.place.verb("restore", &["--before"]).expect(0);
    assert!(again.stdout.starts_with("nothing to do"), "{again:#?}");
    changed.place.verb_on("restore", &changed.place.rescue(1), &["--before"]).expect(0);
    changed.expect(&changed.after);
    changed.run("git add untracked");
    let refused = changed.place.verb("restore", &["--before"]).expect(1);
    assert!(refused.stderr.contains("/.git/index: "), "{refused:#?}");
}

#[test]
fn other_packed_refs_stay_as_they_are() {
    let changed = Changed::by("git branch a; git branch b; git pack-refs --all; git branch -q -D a");
    changed.run("git branch c; git branch d; git pack-refs --all");
    changed.place.verb("restore", &["--before"]).expect(0);
    assert_eq!(changed.run("git for-each-ref --format='%(refname:short)'"), "c\nd\nmaster\n");
    let again = changed.place.verb("restore", &["--before"]).expect(0);
    assert!(again.stdout.starts_with("nothing to do"), "{again:#?}");
    changed.run("git branch e; git pack-refs --all");
    changed.place.verb_on("restore", &changed.place.rescue(1), &["--before"]).expect(0);
    assert_eq!(changed.run("git for-each-ref --format='%(refname:short)'"), "b\nc\nd\ne\nmaster\n");
}

#[test]
fn packed_ref_that_moved_since_is_a_conflict() {
    let changed = Changed::by("git branch b; git pack-refs --all");
    changed.run("git update-ref refs/heads/b HEAD~1; git pack-refs --all");
    let refused = changed.place.verb("restore", &["--before"]).expect(1);
    assert!(refused.stderr.contains("/.git/packed-refs: refs/heads/b moved since"), "{refused:#?}");
    changed.run("git branch c; git pack-refs --all");
    changed.place.verb("restore", &["--before", "--force-git"]).expect(0);
    assert_eq!(changed.run("git for-each-ref --format='%(refname:short)'"), "c\nmaster\n");
}

#[test]
fn packed_ref_that_is_loose_now_is_a_conflict() {
    let changed = Changed::from(
        &format!("mkdir repo; cd repo; {REPOSITORY}; git tag v1; git tag v2; git pack-refs --all"),
        "git tag -d v1",
    );
    changed.run("git tag v1 HEAD~1");
    for flags in [&["--before"][..], &["--before", "--force-git"]] {
        let refused = changed.place.verb("restore", flags).expect(1);
        let why = "/.git/packed-refs: refs/tags/v1 moved since, and is a loose ref now";
        assert!(refused.stderr.contains(why), "{refused:#?}");
    }
    changed.run("git tag -f v1 HEAD; git tag -f v2 HEAD~1");
    changed.place.verb("restore", &["--before"]).expect(0);
    assert_eq!(changed.run("git rev-parse v1 v2"), changed.run("git rev-parse HEAD HEAD~1"));
}

#[test]
fn what_names_an_object_that_is_gone_is_a_conflict() {
    let gone = |build: &str, script: &str, since: &str, file: &str| {
        let changed = Changed::from(&format!("mkdir repo; cd repo; {REPOSITORY}; {build}"), script);
        changed.run(&format!("git reflog expire --expire=now --all; {since}; git gc -q --prune=now"));
        let now = answers(&changed.place, "repo");
        for flags in [&["--before"][..], &["--before", "--force-git"]] {
            let refused = changed.place.verb("restore", flags).expect(1);
            let line = refused.stderr.lines().find(|line| line.contains(&format!("/.git/{file}: ")));
            let why = "that it would name is not in the repository any more";
            assert!(line.is_some_and(|line| line.contains(why)), "{file}: {refused:#?}");
        }
        changed.expect(&now);
    };
    gone("git stash -q", "git stash drop -q", "true", "refs/stash");
    gone(
        "git stash -q; echo more >> src/one; git stash -q",
        "git stash drop -q stash@{1}",
        "true",
        "logs/refs/stash",
    );
    gone(
        "git checkout -qb x; git commit -qam x; git checkout -q master",
        "git branch -q -D x",
        "true",
        "refs/heads/x",
    );
    gone(
        "git checkout -qb x; git commit -qam x; git checkout -q master; git pack-refs --all",
        "git branch -q -D x",
        "true",
        "packed-refs",
    );
    gone("git add src/one", "git reset -q", "true", "index");
}

#[test]
fn objects_that_are_put_back_too_or_are_elsewhere_are_not_gone() {
    for (build, script) in [
        ("git gc -q", "rm -rf .git; git init -q"),
        ("git stash -q", "git stash drop -q; git gc -q --prune=now"),
        (
            "cd ..; mv repo origin; git clone -qs origin repo; cd repo; git branch x HEAD~1",
            "git branch -q -D x",
        ),
        ("git add -N untracked; git worktree add -q ../linked", "git reset -q"),
    ] {
        let changed = Changed::from(&format!("mkdir repo; cd repo; {REPOSITORY}; {build}"), script);
        changed.place.verb("restore", &["--before"]).expect(0);
        changed.expect(&changed.before);
    }
}

#[test]
fn branch_that_another_worktree_has_now_is_a_conflict() {
    let changed = Changed::by("git checkout -qb x");
    changed.run("git worktree add -q ../linked master");
    let refused = changed.place.verb("restore", &["--before"]).expect(1);
    let why = "/.git/HEAD: refs/heads/master is checked out in another worktree now";
    assert!(refused.stderr.contains(why), "{refused:#?}");
    changed.run("git worktree remove ../linked");
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
}

#[test]
fn reftable_that_changed_since_is_not_forced() {
    let build = REPOSITORY.replace("git init -q", "git init -q --ref-format=reftable");
    let changed = Changed::from(&format!("mkdir repo; cd repo; {build}"), "git branch x");
    changed.run("git branch own");
    let own = answers(&changed.place, "repo");
    let refused = changed.place.verb("restore", &["--before", "--force-git"]).expect(1);
    assert!(refused.stderr.contains("other refs, too, which force would drop"), "{refused:#?}");
    changed.expect(&own);
}

#[test]
fn ref_that_was_packed_since_is_where_it_was() {
    let changed = Changed::by("git commit -qam third");
    changed.run("git gc -q");
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
}

#[test]
fn forced_ref_keeps_what_its_reflog_has() {
    let changed = Changed::by("git commit -qam third");
    changed.run("echo own > own; git add own; git commit -qm own");
    changed.place.verb("restore", &["--before", "--force-git"]).expect(0);
    assert_eq!(changed.run("git log -1 --format=%s"), "second\n");
    let reflog = changed.run("git reflog --format=%gs");
    let lines: Vec<_> = reflog.lines().collect();
    assert_eq!(lines[..3], ["agent-snapshot: restored", "commit: own", "commit: third"]);
    assert_eq!(changed.run("git rev-parse 'HEAD@{0}'"), changed.run("git rev-parse HEAD"));
    assert_eq!(changed.run("git fsck --no-dangling --no-progress"), "");
    let again = changed.place.verb("restore", &["--before", "--force-git"]).expect(0);
    assert!(again.stdout.starts_with("nothing to do"), "{again:#?}");
}

#[test]
fn lock_of_another_git_process_is_a_conflict() {
    let changed = Changed::by("git commit -qam third");
    let after = answers(&changed.place, "repo");
    for lock in ["index.lock", "refs/heads/master.lock"] {
        let path = changed.place.at("repo/.git").join(lock);
        fs::write(&path, "").unwrap();
        for flags in [&["--before"][..], &["--before", "--force-git"]] {
            let refused = changed.place.verb("restore", flags).expect(1);
            assert!(refused.stderr.contains(&format!("another Git process holds {lock}")), "{refused:#?}");
        }
        let skipped = changed.place.verb("restore", &["--before", "--skip-conflicts"]).expect(1);
        assert!(skipped.stdout.contains("Git's state is left as it is"), "{skipped:#?}");
        assert!(path.exists());
        fs::remove_file(path).unwrap();
    }
    changed.expect(&after);
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
}

#[test]
fn lock_that_a_command_left_is_removed_and_put_back() {
    let changed = Changed::by("git commit -qam third; echo x > .git/index.lock");
    changed.place.verb("restore", &["--before"]).expect(0);
    assert!(!changed.place.at("repo/.git/index.lock").exists());
    changed.expect(&changed.before);
    changed.place.verb("restore", &[]).expect(0);
    assert_eq!(fs::read_to_string(changed.place.at("repo/.git/index.lock")).unwrap(), "x\n");
}

#[test]
fn restore_killed_with_locks_held_is_completed_without_them() {
    let changed = Changed::by("git commit -qam third; git branch x");
    let (calls, _) = trace_restore(&changed.place, &["--before"], |_, _| {});
    changed.expect(&changed.before);
    let mut held = 0;
    for at in super::killed::kills(calls / 4, calls, 40) {
        changed.place.verb("restore", &[]).expect(0);
        changed.expect(&changed.after);
        trace_restore(&changed.place, &["--before"], |pid, calls| {
            if calls >= at {
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        });
        let is_lock = |path: &&Vec<u8>| path.ends_with(b".lock");
        held += u32::from(scan(&changed.place.work).keys().any(|path| is_lock(&path)));
        changed.place.verb("restore", &["--before", "--dry-run"]).expect(0);
        changed.place.verb("restore", &["--before"]).expect(0);
        changed.expect(&changed.before);
        assert_eq!(scan(&changed.place.work).keys().find(is_lock), None, "after a kill at call {at}");
    }
    assert!(held > 0);
}

#[test]
fn new_repository_is_removed_with_what_was_added_to_its_objects() {
    let changed = Changed::from("mkdir repo; echo one > repo/one", "git init -q; git add one");
    let blob = changed.run("echo added since | git hash-object -w --stdin");
    changed.place.verb("restore", &["--before"]).expect(0);
    assert!(!changed.place.at("repo/.git").exists());
    changed.place.verb_on("restore", &changed.place.rescue(1), &["--before"]).expect(0);
    changed.expect(&changed.after);
    assert_eq!(changed.run(&format!("git cat-file blob {}", blob.trim())), "added since\n");
}

#[test]
fn repository_with_something_else_in_it_stays_whole() {
    let changed = Changed::from("mkdir repo; echo one > repo/one", "git init -q; git add one");
    fs::write(changed.place.at("repo/.git/notes"), "own").unwrap();
    let run = changed.place.verb("restore", &["--before"]).expect(1);
    assert!(run.stdout.contains("repo/.git: it holds notes that the snapshot does not know"), "{run:#?}");
    changed.expect(&changed.after);
}

#[test]
fn branch_in_place_of_a_directory_of_branches_is_put_back() {
    let changed = Changed::from(
        &format!("mkdir repo; cd repo; {REPOSITORY}; git branch a"),
        "git branch -q -D a; git branch a/b",
    );
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.expect(&changed.before);
    changed.place.verb("restore", &[]).expect(0);
    changed.expect(&changed.after);
    changed.run("git branch a/c");
    let left = changed.place.verb("restore", &["--before"]).expect(1);
    assert!(left.stdout.contains("repo/.git: Git's state is left as it is"), "{left:#?}");
    assert_eq!(changed.run("git branch --list 'a/*'"), "  a/b\n  a/c\n");
}

#[test]
fn directory_of_branches_that_is_still_needed_stays() {
    let changed = Changed::by("git branch feature/x");
    changed.run("git branch feature/y");
    changed.place.verb("restore", &["--before"]).expect(0);
    assert_eq!(changed.run("git branch --list 'feature/*'"), "  feature/y\n");
}

#[test]
fn objects_stay_when_the_command_that_removed_them_is_redone() {
    let changed = Changed::from(
        &format!("mkdir repo; cd repo; {REPOSITORY}; git stash -q"),
        "git stash drop -q; git gc -q --prune=now",
    );
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.run("git branch keep $(git commit-tree -p 'stash@{0}' -m own 'stash@{0}^{tree}')");
    changed.place.verb("restore", &[]).expect(0);
    assert_eq!(changed.run("git fsck --no-dangling --no-progress; git stash list"), "");
    assert_eq!(changed.run("git log -1 --format=%s keep"), "own\n");
    let again = changed.place.verb("restore", &[]).expect(0);
    assert!(again.stdout.starts_with("nothing to do"), "{again:#?}");
}

#[test]
fn damaged_object_is_put_back() {
    for (prepare, damage) in [
        ("true", "for f in $(find .git/objects -type f); do chmod u+w $f; : > $f; done"),
        ("true", "for f in $(find .git/objects -type f); do chmod u+w $f; printf y 1<> $f; done"),
        ("git gc -q", "f=$(ls .git/objects/pack/*.pack); chmod u+w $f; truncate -s 50 $f"),
        ("git gc -q", "f=$(ls .git/objects/pack/*.idx); chmod u+w $f; printf x > $f"),
    ] {
        let changed = Changed::from(&format!("mkdir repo; cd repo; {REPOSITORY}; {prepare}"), damage);
        changed.place.verb("restore", &["--before"]).expect(0);
        changed.expect(&changed.before);
        let again = changed.place.verb("restore", &["--before"]).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{damage}: {again:#?}");
        // Damaged in another way since, which is no conflict.
        changed.run(&format!("{damage}; chmod u+w $f; echo more >> $f"));
        changed.place.verb("restore", &["--before"]).expect(0);
        changed.expect(&changed.before);
    }
}

#[test]
fn ref_that_was_packed_since_the_undo_is_where_it_was() {
    let changed = Changed::by("git commit -qam third");
    changed.place.verb("restore", &["--before"]).expect(0);
    changed.run("git gc -q");
    changed.place.verb_on("restore", &changed.place.rescue(1), &["--before"]).expect(0);
    changed.expect(&changed.after);
}

#[test]
fn message_of_a_later_commit_goes_with_its_new_repository() {
    let changed = Changed::from(
        "mkdir repo; echo one > repo/one",
        "git init -q; git config user.name a; git config user.email a@b; git add one; git commit -qm first",
    );
    changed.run("git commit -q --amend -m own");
    changed.place.verb("restore", &["--before", "--force-git"]).expect(0);
    assert!(!changed.place.at("repo/.git").exists());
    changed.place.verb_on("restore", &changed.place.rescue(1), &["--before"]).expect(0);
    assert_eq!(changed.run("git log --format=%s; git fsck --no-dangling --no-progress"), "own\n");
}

#[test]
fn head_to_a_branch_that_moved_since_is_a_conflict() {
    let build = "git stash -qu; git branch -M trunk; git checkout -qb other; echo y > y; git add y; git commit -qm y; \
        git checkout -q trunk";
    let place = Place::new();
    place.prepare(&format!("mkdir repo; cd repo; {REPOSITORY}; {build}"));
    place.record("cd repo; git checkout -q other");
    place.prepare("cd repo; git push -q . other:trunk");
    for options in [&["--before"][..], &["--before", "--force-git"]] {
        let refused = place.verb("restore", options).expect(1);
        assert!(refused.stderr.contains("refs/heads/trunk moved since, and is at"), "{refused:#?}");
    }
    place.prepare("cd repo; git push -qf . other~1:trunk");
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(place.prepare("cd repo; git status -s; git symbolic-ref HEAD"), "refs/heads/trunk\n");
}

#[test]
fn directories_of_objects_that_an_undo_makes_stay_with_them() {
    let place = Place::new();
    place.prepare(&format!(
        "mkdir repo; cd repo; {REPOSITORY}; git stash -qu; git init -q --separate-git-dir ../store.git; \
         head -c 100000 /dev/urandom > large; git add large; git commit -qm large; git branch -M trunk; \
         git checkout -qb x; echo dropped > dropped; git add dropped; git commit -qm dropped; \
         git checkout -q trunk; git gc -q --prune=now"
    ));
    let drop = "git branch -qD x; git reflog expire --expire=now --all; git gc -q --prune=now";
    place.record(&format!("cd repo; {drop}"));
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(place.prepare("cd repo; git log -1 --format=%s x"), "dropped\n");
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    assert_eq!(place.prepare("cd repo; git branch; git fsck --no-dangling --no-progress"), "* trunk\n");
}

#[test]
fn git_directory_elsewhere_is_known_by_the_file_that_names_it() {
    let place = Place::new();
    place.prepare(&format!("mkdir repo; cd repo; {REPOSITORY}; git init -q --separate-git-dir ../store.git"));
    // The working tree itself is not used.
    let snapshot = place.record("git --git-dir=repo/.git branch made");
    let store = place.path("store.git");
    let of_store: Vec<_> = snapshot.files().iter().filter(|record| record.path.starts_with(&store)).collect();
    assert!(of_store.iter().any(|record| record.path.ends_with(b"refs/heads/made")));
    assert!(of_store.iter().all(|record| record.is_git_state));
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(place.prepare("git --git-dir=repo/.git for-each-ref refs/heads/made"), "");
}
