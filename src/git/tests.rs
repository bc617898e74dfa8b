//! Everything here is compared with what `git` itself says.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;

mod edits;
mod settings;
mod shapes;

/// The directory of the fixture, in the process that a test runs itself again in.
const ALONE: &str = "AGENT_SNAPSHOT_TEST_GIT_HOME";

/// Runs `body` in a process of its own: HOME is read from the environment, and it must be neither
/// that of the developer nor that of another test.
pub(in crate::git) fn alone(test: &str, body: impl FnOnce(&Fixture)) {
    if let Some(home) = std::env::var_os(ALONE) {
        let root = PathBuf::from(home).join("work");
        return body(&Fixture { root });
    }
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: there is no git");
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let home = temporary.path().canonicalize().unwrap();
    std::fs::create_dir(home.join("work")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"GIT_")) {
        child.env_remove(name);
    }
    let test = test.split_once("::").unwrap().1;
    let out = child
        .args([test, "--exact", "--nocapture"])
        .env("HOME", &home)
        .env_remove("XDG_CONFIG_HOME")
        .env(ALONE, &home)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
    if text.contains("skipped: ") {
        eprintln!("{text}");
    }
}

/// Defines tests, each of which runs [`alone`].
macro_rules! facts {
    ($($(#[$meta:meta])* fn $name:ident($fixture:ident) $body:block)*) => {
        $($(#[$meta])* #[test] fn $name() {
            $crate::git::tests::alone(
                concat!(module_path!(), "::", stringify!($name)),
                |$fixture: &$crate::git::tests::Fixture| $body,
            );
        })*
    };
}
pub(in crate::git) use facts;

pub(in crate::git) struct Fixture {
    /// An empty directory for whatever the test makes.
    pub(in crate::git) root: PathBuf,
}

impl Fixture {
    fn git_at(&self, at: &Path, args: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.args(["-c", "protocol.file.allow=always", "-c", "core.safecrlf=false"])
            .args(args)
            .current_dir(at);
        git.envs([
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_AUTHOR_NAME", "A"),
            ("GIT_AUTHOR_EMAIL", "a@example.com"),
            ("GIT_COMMITTER_NAME", "C"),
            ("GIT_COMMITTER_EMAIL", "c@example.com"),
        ]);
        git
    }

    /// What git writes, whatever its status.
    pub(in crate::git) fn git(&self, at: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = self
            .git_at(at, args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let out = child.wait_with_output().unwrap();
        writer.join().unwrap();
        out.stdout
    }

    /// Runs a shell script in the fixture's directory.
    pub(in crate::git) fn sh(&self, script: &str) {
        let out = Command::new("sh")
            .args(["-euc", script])
            .current_dir(&self.root)
            .envs([
                ("GIT_AUTHOR_NAME", "A"),
                ("GIT_AUTHOR_EMAIL", "a@example.com"),
                ("GIT_COMMITTER_NAME", "C"),
                ("GIT_COMMITTER_EMAIL", "c@example.com"),
                ("GIT_CONFIG_COUNT", "3"),
                ("GIT_CONFIG_KEY_0", "protocol.file.allow"),
                ("GIT_CONFIG_VALUE_0", "always"),
                ("GIT_CONFIG_KEY_1", "init.defaultBranch"),
                ("GIT_CONFIG_VALUE_1", "main"),
                ("GIT_CONFIG_KEY_2", "core.safecrlf"),
                ("GIT_CONFIG_VALUE_2", "false"),
            ])
            .output()
            .unwrap();
        assert!(out.status.success(), "{script}\n{}", String::from_utf8_lossy(&out.stderr));
    }

    pub(in crate::git) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }
}

fn lstat(path: &Path) -> Option<FileStat> {
    crate::fs::lstat(path.as_os_str().as_bytes()).ok().flatten()
}

/// What is said of one path, comparable and printable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Said {
    oid: Option<String>,
    tracked: bool,
    dirty: bool,
    ignored: bool,
}

/// Where the path lies.
#[derive(Debug)]
struct Within {
    root: Vec<u8>,
    head: Option<ObjectId>,
    relative_path: Vec<u8>,
}

fn ask(repositories: &mut Repositories, path: &Path) -> Option<(Said, Within)> {
    let bytes = path.as_os_str().as_bytes();
    let facts = repositories.classify(bytes, lstat(path).as_ref(), true)?;
    let (root, head) = repositories.working_tree(&facts);
    let relative_path = below(bytes, root).unwrap().to_vec();
    let within = Within { root: root.to_vec(), head, relative_path };
    let said = Said {
        oid: facts.oid().map(ToString::to_string),
        tracked: facts.tracked(),
        dirty: facts.dirty(),
        ignored: facts.ignored(),
    };
    Some((said, within))
}

/// What git says of every path of a working tree: those in the index, in HEAD and on disk.
///
/// `head` is the commit that dirty is told against; it must be that of the index's HEAD.
fn oracle(fixture: &Fixture, root: &Path) -> BTreeMap<Vec<u8>, Said> {
    let git = |args: &[&str], input: &[u8]| fixture.git(root, args, input);
    let split = |text: Vec<u8>| -> Vec<Vec<u8>> {
        text.split(|byte| *byte == 0).filter(|item| !item.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let mut all: BTreeMap<Vec<u8>, Said> = BTreeMap::new();
    let mut gitlinks = BTreeSet::new();
    for line in split(git(&["ls-files", "-z", "--stage"], b"")) {
        let path = line[line.iter().position(|byte| *byte == b'\t').unwrap() + 1..].to_vec();
        if line.starts_with(b"160000") {
            gitlinks.insert(path.clone());
        }
        all.entry(path).or_default().tracked = true;
    }
    let mut at_head = BTreeMap::new();
    for line in split(git(&["ls-tree", "-r", "-z", "HEAD"], b"")) {
        let tab = line.iter().position(|byte| *byte == b'\t').unwrap();
        let words: Vec<String> =
            String::from_utf8_lossy(&line[..tab]).split(' ').map(ToOwned::to_owned).collect();
        all.entry(line[tab + 1..].to_vec()).or_default();
        at_head.insert(line[tab + 1..].to_vec(), (words[0].clone(), words[2].clone()));
    }
    let mut walk = walkdir::WalkDir::new(root).min_depth(1).into_iter();
    while let Some(found) = walk.next() {
        let Ok(found) = found else { continue };
        let relative = found.path().strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        if found.file_name() == ".git" || found.path().join(".git").exists() || gitlinks.contains(&relative) {
            if found.file_type().is_dir() {
                walk.skip_current_dir();
            }
            continue;
        }
        all.entry(relative).or_default();
    }
    let status = git(&["status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no"], b"");
    for line in split(status) {
        all.get_mut(&line[3..]).unwrap_or_else(|| panic!("{:?}", line.as_bstr())).dirty = true;
    }
    let mut names = Vec::new();
    for path in all.keys() {
        names.extend_from_slice(path);
        names.push(0);
    }
    for path in split(git(&["check-ignore", "-z", "--stdin"], &names)) {
        all.get_mut(&path).unwrap().ignored = true;
    }
    // All at once: a process for each file would be most of the time of these tests.
    let mut files = Vec::new();
    let mut found = BTreeMap::new();
    for path in at_head.keys() {
        let file = root.join(OsStr::from_bytes(path));
        let Ok(metadata) = file.symlink_metadata() else { continue };
        if metadata.is_symlink() {
            let target = std::fs::read_link(&file).unwrap();
            let id = git(&["hash-object", "--stdin"], target.as_os_str().as_bytes());
            found.insert(path.clone(), ("120000", id.trim_end().to_vec()));
        } else if metadata.is_file() {
            let mode = if metadata.permissions().mode() & 0o100 == 0 { "100644" } else { "100755" };
            if path.contains(&b'\n') {
                let id = git(&["hash-object", "--no-filters", "--stdin"], &std::fs::read(&file).unwrap());
                found.insert(path.clone(), (mode, id.trim_end().to_vec()));
            } else {
                files.push((path.clone(), mode));
            }
        }
    }
    let lines = |items: &mut dyn Iterator<Item = &[u8]>| -> Vec<u8> {
        items.flat_map(|item| [item, b"\n"].concat()).collect()
    };
    let names = lines(&mut files.iter().map(|(path, _)| path.as_slice()));
    let ids = git(&["hash-object", "--no-filters", "--stdin-paths"], &names);
    for ((path, mode), id) in files.into_iter().zip(ids.lines()) {
        found.insert(path, (mode, id.to_vec()));
    }
    let oids = lines(&mut at_head.values().map(|(_, oid)| oid.as_bytes()));
    let present = git(&["--no-replace-objects", "cat-file", "--batch-check"], &oids);
    for ((path, (mode, oid)), present) in at_head.iter().zip(present.lines()) {
        let same = found.get(path).is_some_and(|found| found.0 == mode && found.1 == oid.as_bytes());
        if same && !present.ends_with_str("missing") {
            all.get_mut(path).unwrap().oid = Some(oid.clone());
        }
    }
    all
}

use gix::bstr::ByteSlice;

/// Compares what a set of repositories says with git, for every path below `root`.
fn compare(fixture: &Fixture, repositories: &mut Repositories, root: &str, what: &str) {
    let root = fixture.path(root);
    let expected = oracle(fixture, &root);
    let head = fixture.git(&root, &["rev-parse", "--verify", "-q", "HEAD"], b"");
    let head = (!head.is_empty()).then(|| head.trim_end().as_bstr().to_string());
    let mut wrong = Vec::new();
    for (relative, said) in &expected {
        let path = root.join(OsStr::from_bytes(relative));
        let told = ask(repositories, &path);
        if told.as_ref().map(|(told, _)| told) != Some(said) {
            wrong.push(format!(
                "{:?}:\n  git  {said:?}\n  told {:?}",
                relative.as_bstr(),
                told.as_ref().map(|told| &told.0)
            ));
        }
        if let Some((_, state)) = told {
            assert_eq!(state.relative_path.as_bstr(), relative.as_bstr(), "{what}");
            assert_eq!(state.root.as_bstr(), root.as_os_str().as_bytes().as_bstr(), "{what}");
            assert_eq!(state.head.map(|id| id.to_string()), head, "{what}");
        }
    }
    assert!(wrong.is_empty(), "{what}\n{}", wrong.join("\n"));
    assert!(!expected.is_empty(), "{what}: nothing was compared");
}

/// Runs each script in an empty directory with a repository `r`, and compares all of it, before
/// and after Git may have refreshed its index.
fn compare_all(fixture: &Fixture, scripts: &[(&str, &str)]) {
    for (name, script) in scripts {
        eprintln!("{name}");
        let place = Fixture { root: fixture.path(name) };
        std::fs::create_dir(&place.root).unwrap();
        place.sh(&format!("git init -q r; cd r; {script}"));
        let mut repositories = Repositories::new();
        compare(&place, &mut repositories, "r", name);
        // A second sight of everything, from what is cached now.
        compare(&place, &mut repositories, "r", name);
        place.sh("cd r; git status >/dev/null 2>&1 || true");
        compare(&place, &mut repositories, "r", name);
        // An index whose stat data is believed, since it seems to be written long after the files. What
        // differs has been marked in it.
        place.sh("cd r; git update-index -q --refresh --force-write-index || true
             test ! -f .git/index || touch -d '+1 minute' .git/index");
        compare(&place, &mut Repositories::new(), "r", name);
    }
}
