//! Outside truth: the tree as an independent scanner finds it before and after a recording, compared
//! with what the manifest and the blobs say.
//!
//! Neighbours: `random.rs` records programs made by a seed, `truth_strace.rs` real commands.

mod cases;
mod overlay;
mod random;
mod strace;

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use agent_snapshot::snapshot::{
    Digest, FileRecord, FileType, Operation, Operations, Present, Snapshot, State,
};

/// Who root becomes to be an ordinary user.
const NOBODY: u32 = 65534;

/// Who runs a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The one who runs the tests.
    Self_,
    /// An ordinary user, though the tests are root's.
    Nobody,
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0)
}

pub fn as_who(who: Who, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if who == Who::Nobody {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Those as whom `program` can be run.
pub fn everyone(program: &Path) -> Vec<Who> {
    if !is_root() {
        println!("skipped: what needs root");
        return vec![Who::Self_];
    }
    // The programs may lie where an ordinary user can't go.
    let reachable = as_who(Who::Nobody, program).arg("--setup").arg("0").current_dir("/").output();
    if reachable.is_ok() {
        vec![Who::Self_, Who::Nobody]
    } else {
        println!("skipped: an ordinary user, who can't execute {}", program.display());
        vec![Who::Self_]
    }
}

/// A place for one recording: `work`, and what must lie outside of it.
pub struct Place {
    _base: tempfile::TempDir,
    pub work: PathBuf,
    pub home: PathBuf,
    pub config: PathBuf,
    pub out: PathBuf,
}

impl Place {
    pub fn new(who: Who) -> Place {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().canonicalize().unwrap();
        let [work, home, config, out] = ["work", "home", "config", "out"].map(|name| path.join(name));
        for dir in [&work, &home, &config] {
            fs::create_dir(dir).unwrap();
        }
        if who == Who::Nobody {
            for dir in [&path, &work, &home, &config] {
                std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        Place { _base: base, work, home, config, out }
    }

    /// The recorder, ready for the command that is to be recorded in `work`.
    pub fn recorder(&self, who: Who, mechanism: &str) -> Command {
        let mut command = as_who(who, env!("CARGO_BIN_EXE_agent-snapshot"));
        // What hangs is a failure, not the end of the tests.
        let options = ["--quiet", "--timeout", "300s", "--mechanism", mechanism, "--"];
        command.arg("--snapshot-dir").arg(&self.out).args(options);
        command.current_dir(&self.work).env("HOME", &self.home).env("XDG_CONFIG_HOME", &self.config);
        command
    }
}

/// What a command said, for a test that fails.
pub fn told(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{}{text}", output.status, String::from_utf8_lossy(&output.stdout))
}

/// What the scanner finds at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub kind: FileType,
    pub mode: u32,
    pub owner: (u32, u32),
    pub inode: (u64, u64),
    /// Whether an unchanged file can get another inode: in an overlay that copies it up.
    pub moves: bool,
    pub nlink: u64,
    pub size: u64,
    pub mtime: (i64, i64),
    pub rdev: u64,
    pub target: Option<Vec<u8>>,
    pub content: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree, by absolute path, the root included.
pub type Tree = BTreeMap<Vec<u8>, Found>;

pub fn scan(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let found = look(&path);
        if found.kind == FileType::Directory {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        tree.insert(path.into_os_string().into_encoded_bytes(), found);
    }
    tree
}

fn look(path: &Path) -> Found {
    let stat = fs::symlink_metadata(path).unwrap();
    let kind = FileType::from_mode(stat.mode()).unwrap();
    let regular = kind == FileType::File;
    Found {
        kind,
        mode: stat.mode(),
        owner: (stat.uid(), stat.gid()),
        inode: (stat.dev(), stat.ino()),
        moves: false,
        nlink: stat.nlink(),
        size: stat.size(),
        mtime: (stat.mtime(), stat.mtime_nsec()),
        rdev: if matches!(kind, FileType::CharDevice | FileType::BlockDevice) { stat.rdev() } else { 0 },
        target: (kind == FileType::Symlink)
            .then(|| fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()),
        content: regular.then(|| fs::read(path).unwrap()),
        xattrs: if kind == FileType::Symlink { BTreeMap::new() } else { xattrs(path) },
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(&*path, &mut names).unwrap_or(0);
    names.truncate(length);
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(&*path, name, &mut value).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

impl Found {
    /// Whether a change from this to `other` is one that some record has to tell. What a directory
    /// holds, and when that changed, is told by the records of its entries.
    fn differs(&self, other: &Found) -> bool {
        let facts = |found: &Found| {
            let mtime = (found.kind != FileType::Directory).then_some(found.mtime);
            let inode = (!found.moves).then_some(found.inode);
            (found.kind, found.mode, found.owner, inode, found.rdev, mtime)
        };
        facts(self) != facts(other)
            || self.target != other.target
            || self.content != other.content
            || self.xattrs != other.xattrs
    }
}

/// What is wrong in `snapshot` about the tree below `root`, a sentence each.
pub fn compare(root: &Path, before: &Tree, after: &Tree, snapshot: &Snapshot) -> Vec<String> {
    let root = root.as_os_str().as_bytes();
    let inside = |path: &[u8]| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    let records: BTreeMap<&[u8], &FileRecord> = snapshot
        .files()
        .iter()
        .filter(|record| inside(&record.path))
        .map(|record| (record.path.as_slice(), record))
        .collect();
    let comparison = Comparison { before, after, snapshot, records };
    let paths: std::collections::BTreeSet<&[u8]> = before
        .keys()
        .chain(after.keys())
        .map(Vec::as_slice)
        .chain(comparison.records.keys().copied())
        .collect();
    let mut wrong = Vec::new();
    for path in paths {
        let shown = path.strip_prefix(root).unwrap_or(path).escape_ascii();
        wrong.extend(comparison.path(path).into_iter().map(|what| format!("{shown}: {what}")));
    }
    wrong
}

struct Comparison<'a> {
    before: &'a Tree,
    after: &'a Tree,
    snapshot: &'a Snapshot,
    records: BTreeMap<&'a [u8], &'a FileRecord>,
}

impl Comparison<'_> {
    fn path(&self, path: &[u8]) -> Vec<String> {
        let (before, after) = (self.before.get(path), self.after.get(path));
        let changed = match (before, after) {
            (None, None) => false,
            (Some(before), Some(after)) => before.differs(after),
            _ => true,
        };
        let Some(record) = self.records.get(path) else {
            return if changed && !self.changed_by_another_name(before, after) {
                vec!["changed, but has no record".to_owned()]
            } else {
                Vec::new()
            };
        };
        let mut wrong = Vec::new();
        let changes = record.operations.intersects(Operations::CHANGES);
        // What one state tells, and the other does not, is a change to whoever restores one of them.
        let attributes = [&record.before, &record.after]
            .iter()
            .any(|state| state.present().is_some_and(|present| !present.xattrs.is_empty()));
        let xattrs = changes || attributes;
        if changed && !changes && !self.changed_by_another_name(before, after) {
            wrong.push(format!("changed, but was only used for {}", words(record.operations)));
        }
        // What a later state of the same name destroys must be in the bundle.
        let destroyed = before.is_some_and(|before| {
            before.content.is_some() && after.is_none_or(|after| after.content != before.content)
        });
        let wanted = Wanted { content: destroyed, xattrs, directory_times: false };
        self.state(&mut wrong, "before", &record.before, before, wanted);
        let written = record.operations.contains(Operation::Write);
        let rewritten = after.is_some_and(|after| {
            after.content.is_some() && before.is_none_or(|before| before.content != after.content)
        });
        let wanted = Wanted { content: written || rewritten, xattrs, directory_times: true };
        self.state(&mut wrong, "after", &record.after, after, wanted);
        let tombstone = matches!(record.after, State::Absent { tombstone: true });
        if after.is_none() && before.is_some() && !tombstone {
            wrong.push("is gone without a tombstone".to_owned());
        }
        wrong
    }

    /// Whether a file was changed through another name of it, which has a record.
    fn changed_by_another_name(&self, before: Option<&Found>, after: Option<&Found>) -> bool {
        let (Some(before), Some(after)) = (before, after) else { return false };
        (before.inode == after.inode || after.moves)
            && self.records.values().any(|record| {
                let is = |state: &State| {
                    let inode = state.present().map(|present| (present.dev, present.ino));
                    inode == Some(before.inode) || inode == Some(after.inode)
                };
                record.operations.intersects(Operations::CHANGES)
                    && (is(&record.before) || is(&record.after) || renamed_away(record))
            })
    }

    fn state(
        &self,
        wrong: &mut Vec<String>,
        side: &str,
        state: &State,
        found: Option<&Found>,
        wanted: Wanted,
    ) {
        let (present, found) = match (state.present(), found) {
            (None, None) => return,
            (Some(present), Some(found)) => (present, found),
            (None, Some(_)) => return wrong.push(format!("{side}: recorded as absent")),
            (Some(_), None) => return wrong.push(format!("{side}: recorded as present")),
        };
        let mut differ = |what: &str, recorded: String, real: String| {
            if recorded != real {
                wrong.push(format!("{side}: {what} is {real}, recorded as {recorded}"));
            }
        };
        differ("type", format!("{:?}", present.file_type), format!("{:?}", found.kind));
        differ("mode", format!("{:o}", present.mode), format!("{:o}", found.mode));
        differ("owner", format!("{:?}", (present.uid, present.gid)), format!("{:?}", found.owner));
        differ("inode", format!("{:?}", (present.dev, present.ino)), format!("{:?}", found.inode));
        differ("rdev", present.rdev.unwrap_or(0).to_string(), found.rdev.to_string());
        differ("target", shown(present.target.as_deref()), shown(found.target.as_deref()));
        if found.kind != FileType::Directory || wanted.directory_times {
            let mtime = (present.mtime, i64::from(present.mtime_nsec));
            differ("mtime", format!("{mtime:?}"), format!("{:?}", found.mtime));
            differ("size", present.size.to_string(), found.size.to_string());
        }
        if side == "after" {
            differ("nlink", present.nlink.to_string(), found.nlink.to_string());
        }
        if wanted.xattrs {
            differ("xattrs", format!("{:?}", present.xattrs), format!("{:?}", found.xattrs));
        }
        if let Some(content) = &found.content {
            self.content(wrong, side, present, content, wanted.content);
        }
    }

    fn content(&self, wrong: &mut Vec<String>, side: &str, present: &Present, content: &[u8], wanted: bool) {
        let digest = Digest::of(content);
        if present.digest.is_some_and(|recorded| recorded != digest) {
            wrong.push(format!("{side}: the digest is of other bytes"));
        }
        let Some(blob) = &present.blob else {
            if wanted {
                wrong.push(format!(
                    "{side}: {} bytes have no blob ({:?})",
                    content.len(),
                    present.blob_omitted
                ));
            }
            return;
        };
        let mut stored = Vec::new();
        match self.snapshot.read_blob(blob, present.digest.as_ref(), &mut stored) {
            Ok(_) if stored == content => {}
            Ok(_) => wrong.push(format!("{side}: the blob {blob} holds other bytes")),
            Err(error) => wrong.push(format!("{side}: {error}")),
        }
    }
}

#[derive(Clone, Copy)]
struct Wanted {
    content: bool,
    xattrs: bool,
    directory_times: bool,
}

fn renamed_away(record: &FileRecord) -> bool {
    record.renamed_to.is_some()
}

fn shown(bytes: Option<&[u8]>) -> String {
    bytes.map_or("nothing".to_owned(), |bytes| bytes.escape_ascii().to_string())
}

pub fn words(operations: Operations) -> String {
    let words = Operation::ALL.into_iter().filter(|operation| operations.contains(*operation));
    words.map(Operation::name).collect::<Vec<_>>().join(",")
}

/// What the snapshot says of its own gaps.
pub fn gaps(snapshot: &Snapshot) -> Vec<String> {
    let header = snapshot.header();
    let lost = header.warnings.iter().filter(|warning| warning.lost);
    let mut gaps: Vec<String> = lost
        .map(|warning| format!("lost: {:?} x{}: {}", warning.kind, warning.count, warning.detail))
        .collect();
    if header.complete != gaps.is_empty() {
        gaps.push(format!("complete is {} with {} gaps", header.complete, gaps.len()));
    }
    gaps
}

/// Sentences as the lines of one message.
pub fn lines(sentences: &[String]) -> String {
    sentences.iter().fold(String::new(), |mut all, sentence| {
        let _ = write!(all, "\n    {sentence}");
        all
    })
}
