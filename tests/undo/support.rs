//! Trees, bundles made from two looks at a tree, and the binary.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agent_snapshot::snapshot::blobs::{BlobWriter, CHUNK, Compression, Side, StoreLimit, blob_key};
use agent_snapshot::snapshot::layout::SnapshotDir;
use agent_snapshot::snapshot::wire::write_manifest;
use agent_snapshot::snapshot::*;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// What is at one path.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its metadata, with extended attributes.
    pub present: Present,
    /// The bytes of a regular file.
    pub content: Option<Vec<u8>>,
}

/// What is at each path.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// Looks at everything beneath `root`, and at `root`.
pub fn scan(root: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in walkdir::WalkDir::new(root) {
        let path = entry.unwrap().into_path().into_os_string().into_encoded_bytes();
        let stat = live::lstat(&path).unwrap().unwrap();
        let mut present = live::present(&stat, &path).unwrap();
        present.xattrs = live::xattrs(&path).unwrap();
        present.inode_flags = live::inode_flags(&path).unwrap();
        let content = match present.file_type {
            FileType::File => {
                let content = fs::read(OsStr::from_bytes(&path)).unwrap();
                present.digest = Some(Digest::of(&content));
                Some(content)
            }
            FileType::Directory => {
                present.entries_digest = Some(live::entries_digest(&path).unwrap());
                None
            }
            _ => None,
        };
        tree.insert(path, Entry { present, content });
    }
    tree
}

/// One line for each path with all that a restore gives back; the times of directories only where
/// `of` has them, since a directory that is in no record keeps those of now.
pub fn told(tree: &Tree, of: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let mut names: BTreeMap<(u64, u64), Vec<&[u8]>> = BTreeMap::new();
    for (path, entry) in tree {
        if entry.present.file_type == FileType::File {
            names.entry((entry.present.dev, entry.present.ino)).or_default().push(path);
        }
    }
    tree.iter()
        .map(|(path, entry)| {
            let at = &entry.present;
            let shown = printable(path).into_owned();
            let is_dir = at.file_type == FileType::Directory;
            let mut line = format!("{shown} {:o} {}:{}", at.mode, at.uid, at.gid);
            if !is_dir || of(path) {
                line += &format!(" {}.{:09}", at.mtime, at.mtime_nsec);
            }
            if let Some(target) = &at.target {
                line += &format!(" -> {}", printable(target));
            }
            if let Some(content) = &entry.content {
                line += &format!(" {} {}", content.len(), Digest::of(content));
            }
            if at.rdev.is_some() || !at.xattrs.is_empty() {
                line += &format!(" {:?} {:?}", at.rdev, at.xattrs);
            }
            if !at.inode_flags.is_empty() {
                line += &format!(" {:?}", at.inode_flags);
            }
            match names.get(&(at.dev, at.ino)) {
                Some(names) if names.len() > 1 => line += &format!(" = {}", printable(names[0])),
                _ => {}
            }
            line
        })
        .collect()
}

/// A header as the recorder of this machine and user would write it.
pub fn header() -> Header {
    Header {
        id: format!("{:016x}", fastrand_like()),
        kind: SnapshotKind::Recording,
        name: None,
        session: None,
        tool: Tool { name: "agent-snapshot".to_owned(), version: "0.1.0".to_owned() },
        host: Host {
            arch: "x86_64".to_owned(),
            kernel: "6.1".to_owned(),
            machine: live::machine_id_hash().to_string(),
        },
        command: vec![b"true".to_vec()],
        exit_status: 0,
        exit_signal: None,
        timed_out: false,
        start_cwd: b"/".to_vec(),
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        finished_at: "2026-01-02T03:04:06Z".to_owned(),
        complete: true,
        warnings: Vec::new(),
        suppressed: Vec::new(),
        git_repositories: Vec::new(),
        processes: Vec::new(),
    }
}

fn fastrand_like() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(())
}

/// A record with two states; the blobs are not in it yet.
pub fn file_record(path: &[u8], before: State, after: State, operations: Operations) -> FileRecord {
    FileRecord { processes: vec![1], ..FileRecord::new(path, before, after, operations) }
}

/// Writes a bundle of `files`; their blobs are stored by `fill`.
pub fn commit(snap: &Path, header: &Header, fill: impl FnOnce(&mut BlobWriter) -> Vec<FileRecord>) {
    let target = SnapshotDir::create(snap).unwrap();
    let mut writer = BlobWriter::new(target.unnamed_file().unwrap(), Compression::Snappy).unwrap();
    let files = fill(&mut writer);
    let blobs = writer.finish().unwrap();
    let manifest = target.unnamed_file().unwrap();
    write_manifest(&manifest, header, &files).unwrap();
    target.commit(blobs, manifest, false).unwrap();
}

/// The state of an entry, its content stored.
pub fn stored(writer: &mut BlobWriter, path: &[u8], side: Side, entry: Option<&Entry>, gone: bool) -> State {
    let Some(entry) = entry else { return State::Absent { tombstone: gone } };
    let mut present = entry.present.clone();
    if let Some(content) = &entry.content {
        let key = blob_key(side, path);
        let stored = if content.len() <= CHUNK {
            writer.store_bytes(&key, content).unwrap()
        } else {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, content).unwrap();
            writer.store_file(&key, &file, StoreLimit::NONE).unwrap()
        };
        present.blob = stored.blob.map(|blob| blob.to_string());
    }
    State::Present(Box::new(present))
}

/// Whether two looks at a path saw the same, times and links included.
fn same(one: Option<&Entry>, other: Option<&Entry>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.present == other.present && one.content == other.content,
        (None, None) => true,
        _ => false,
    }
}

/// What a perfect recorder would write of what happened to `before` when it became `after`: all paths
/// that differ, and as only read those that `read` picks.
pub fn records(
    writer: &mut BlobWriter,
    before: &Tree,
    after: &Tree,
    read: impl Fn(&[u8]) -> bool,
) -> Vec<FileRecord> {
    let paths: std::collections::BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let mut files = Vec::new();
    for path in paths {
        let (one, other) = (before.get(path), after.get(path));
        let operations = if !same(one, other) {
            match (one, other) {
                (Some(one), Some(other))
                    if one.present.file_type == FileType::Directory
                        && other.present.file_type == FileType::Directory
                        && one.present.ino == other.present.ino
                        && one.present.entries_digest != other.present.entries_digest
                        && one.present.mode == other.present.mode
                        && one.present.xattrs == other.present.xattrs
                        && one.present.inode_flags == other.present.inode_flags =>
                {
                    Operation::Directory.into()
                }
                (Some(_), None) => Operation::Delete.into(),
                _ => Operations::from(Operation::Write).with(Operation::Metadata),
            }
        } else if read(path) {
            Operation::Read.into()
        } else {
            continue;
        };
        let one_state = stored(writer, path, Side::Before, one, false);
        let other_state = stored(writer, path, Side::After, other, one.is_some());
        files.push(file_record(path, one_state, other_state, operations));
    }
    files
}

/// Makes `change` beneath `root` and a bundle of it in `snap`, with every unchanged path as only read
/// that `read` picks.
pub fn record_with(root: &Path, snap: &Path, read: impl Fn(&[u8]) -> bool, change: impl FnOnce()) {
    let before = scan(root);
    change();
    let after = scan(root);
    commit(snap, &header(), |writer| records(writer, &before, &after, read));
}

/// Makes `change` beneath `root` and a bundle of it in `snap`.
pub fn record(root: &Path, snap: &Path, change: impl FnOnce()) {
    record_with(root, snap, |_| false, change);
}

/// The binary.
pub fn agent_snapshot() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-snapshot"));
    command.env_remove("AGENT_SNAPSHOT_SESSION").env("NO_COLOR", "1");
    command
}

/// What a run printed and how it ended.
#[derive(Debug)]
pub struct Run {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs the binary.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    agent_snapshot().args(args).output().unwrap().into()
}

/// Runs a verb on a snapshot with flags.
pub fn verb(verb: &str, snap: &Path, flags: &[&str]) -> Run {
    let args = [OsStr::new(verb), snap.as_os_str()].into_iter().chain(flags.iter().map(OsStr::new));
    run(args)
}

impl Run {
    /// Sees that the run ended with `status`.
    #[track_caller]
    pub fn expect(self, status: i32) -> Run {
        assert_eq!(self.status, status, "{self:#?}");
        self
    }
}

/// A directory with `tree` to change and `snap` to record into.
pub struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    /// An empty tree.
    pub fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        // A recorded path is a real path.
        fs::create_dir(dir.path().join("tree")).unwrap();
        Scene { dir }
    }

    /// The directory that holds it all.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    /// The tree.
    pub fn root(&self) -> PathBuf {
        self.dir().join("tree")
    }

    /// A path of the tree.
    pub fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// The snapshot.
    pub fn snap(&self) -> PathBuf {
        self.dir().join("snap")
    }

    /// Writes a file of the tree, with its parents.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Records `change`.
    pub fn record(&self, change: impl FnOnce()) {
        record(&self.root(), &self.snap(), change);
    }
}

/// Both states of a tree.
pub struct States {
    /// Before the change.
    pub before: Tree,
    /// After it.
    pub after: Tree,
}

impl States {
    /// Records `change` in the scene.
    pub fn of(scene: &Scene, change: impl FnOnce()) -> States {
        States::with(scene, |_| false, change)
    }

    /// Records `change` in the scene, and as only read what `read` picks.
    pub fn with(scene: &Scene, read: impl Fn(&[u8]) -> bool, change: impl FnOnce()) -> States {
        let before = scan(&scene.root());
        record_with(&scene.root(), &scene.snap(), read, change);
        States { before, after: scan(&scene.root()) }
    }

    /// Sees that the tree is at one of the states.
    #[track_caller]
    pub fn expect(&self, scene: &Scene, is_before: bool) {
        let wanted = if is_before { &self.before } else { &self.after };
        let recorded = |path: &[u8]| self.before.contains_key(path) && self.after.contains_key(path);
        let (now, wanted) = (told(&scan(&scene.root()), recorded), told(wanted, recorded));
        let differs = |one: &[String], other: &[String]| -> Vec<String> {
            one.iter().filter(|line| !other.contains(line)).cloned().collect()
        };
        let (more, less) = (differs(&now, &wanted), differs(&wanted, &now));
        assert!(more.is_empty() && less.is_empty(), "is {more:#?}\nand should be {less:#?}");
    }

    /// Undoes and redoes, and undoes that by its rescue; each twice.
    #[track_caller]
    pub fn there_and_back(&self, scene: &Scene) {
        for is_before in [true, false, true] {
            let flags: &[&str] = if is_before { &["--before"] } else { &[] };
            let run = verb("restore", &scene.snap(), flags).expect(0);
            self.expect(scene, is_before);
            let again = scan(&scene.root());
            let second = verb("restore", &scene.snap(), flags).expect(0);
            assert!(second.stdout.starts_with("nothing to do"), "{run:#?}{second:#?}");
            assert!(!second.stdout.contains("rescue"), "{second:#?}");
            for (path, entry) in scan(&scene.root()) {
                assert_eq!(entry.present, again[&path].present);
            }
        }
        let rescue = scene.dir().join("snap-rescue-3");
        if !rescue.exists() {
            // Nothing had been changed.
            return;
        }
        verb("restore", &rescue, &["--before"]).expect(0);
        self.expect(scene, false);
        verb("restore", &scene.dir().join("snap-rescue-4"), &["--before"]).expect(0);
        self.expect(scene, true);
    }
}

/// Runs a restore with `flags` and calls `each` at every stop of its first thread, with the process and how
/// many system calls it has made; how many it made in all, and its exit status unless it was killed.
pub fn trace_restore(scene: &Scene, flags: &[&str], each: impl FnMut(Pid, u64)) -> (u64, Option<i32>) {
    trace(&mut traced_restore(scene, flags), each)
}

/// A restore that waits for a line on its standard input.
pub fn traced_restore(scene: &Scene, flags: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"read _; exec "$0" "$@""#, env!("CARGO_BIN_EXE_agent-snapshot"), "restore"]);
    command.arg(scene.snap()).args(flags).env("NO_COLOR", "1");
    command
}

/// Runs the command of [`traced_restore`] in the same way.
pub fn trace(command: &mut Command, mut each: impl FnMut(Pid, u64)) -> (u64, Option<i32>) {
    #[allow(clippy::zombie_processes, reason = "waitpid below waits for it")]
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    // Refused for a moment while the child becomes the program.
    while let Err(error) = ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
        assert_eq!(error, nix::errno::Errno::EPERM);
    }
    ptrace::interrupt(pid).unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    let mut stops = 0;
    loop {
        match waitpid(pid, None).unwrap() {
            WaitStatus::Exited(_, status) => return (stops / 2, Some(status)),
            WaitStatus::Signaled(..) => return (stops / 2, None),
            WaitStatus::PtraceSyscall(_) => stops += 1,
            WaitStatus::Stopped(_, signal) if signal != Signal::SIGTRAP => {
                let _ = ptrace::syscall(pid, signal);
                continue;
            }
            _ => {}
        }
        each(pid, stops / 2);
        let _ = ptrace::syscall(pid, None);
    }
}

/// Runs `script` in a mount namespace of its own, the scene's directory as `$1` and the binary as `$2`;
/// none where there are no such namespaces, or it ends with 77 because it may not mount.
pub fn run_unshared(scene: &Scene, script: &str) -> Option<Run> {
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(scene.dir())
        .arg(env!("CARGO_BIN_EXE_agent-snapshot"))
        .output();
    let run = output.ok().map(Run::from);
    let run = run.filter(|run| run.status != 77 && !run.stderr.contains("unshare"));
    if run.is_none() {
        println!("skipped: no mounts");
    }
    run
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Says why a test that needs root does nothing.
pub fn needs_root(what: &str) -> bool {
    if !is_root() {
        println!("skipped: {what} needs root");
    }
    is_root()
}
