//! What the tests of the verbs share: running one, and bundles made of two trees.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Parser as _;

use super::out::{Console, OutputFormat};
use crate::cli::Cli;
use crate::snapshot::blobs::{BlobWriter, Side, StoreLimit, blob_key};
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::samples::{commit_into, created, header};
use crate::snapshot::{FileRecord, FileType, Header, Operation, Operations, State, live};

/// What a verb did.
pub struct Ran {
    pub status: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    /// The result as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// The result as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap()
    }
}

/// Runs a verb as the command line would, with its output on a pipe.
pub fn run<A: Into<OsString> + Clone>(args: &[A]) -> Ran {
    run_on(OutputFormat::PLAIN, args)
}

/// Runs a verb with output in this format.
pub fn run_on<A: Into<OsString> + Clone>(format: OutputFormat, args: &[A]) -> Ran {
    let args = std::iter::once("agent-snapshot".into()).chain(args.iter().cloned().map(Into::into));
    let verb = Cli::try_parse_from(args).unwrap().verb.unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut console = Console::new(&mut out, &mut err, format);
    let status = super::run_verb(verb, &mut console).status();
    drop(console);
    Ran { status, out, err: String::from_utf8(err).unwrap() }
}

/// A place with a directory tree before, one after, and a bundle that says how the one became the other.
pub struct BundleTrees {
    pub dir: tempfile::TempDir,
    pub header: Header,
    /// The directory that both trees claim to be.
    pub cwd: &'static str,
}

impl BundleTrees {
    pub fn new() -> BundleTrees {
        let dir = tempfile::tempdir().unwrap();
        for tree in ["before", "after"] {
            fs::create_dir(dir.path().join(tree)).unwrap();
        }
        let cwd = "/nowhere/work";
        BundleTrees { dir, header: Header { start_cwd: cwd.into(), ..header() }, cwd }
    }

    pub fn before(&self) -> PathBuf {
        self.dir.path().join("before")
    }

    pub fn after(&self) -> PathBuf {
        self.dir.path().join("after")
    }

    pub fn snap(&self) -> PathBuf {
        self.dir.path().join("snap")
    }

    /// Writes a file into one of the trees, with its parents.
    pub fn write(tree: &Path, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes the same file into both trees.
    pub fn both(&self, name: &str, content: &str) {
        BundleTrees::write(&self.before(), name, content);
        BundleTrees::write(&self.after(), name, content);
    }

    /// Commits the bundle, with every path of both trees, after `edit` has changed the records.
    pub fn commit(&self, edit: impl FnOnce(&mut Vec<FileRecord>)) {
        let mut names: BTreeSet<PathBuf> = BTreeSet::new();
        for tree in [self.before(), self.after()] {
            let walk = walkdir::WalkDir::new(&tree).min_depth(1);
            names.extend(
                walk.into_iter().map(|entry| entry.unwrap().path().strip_prefix(&tree).unwrap().into()),
            );
        }
        let target = SnapshotDir::create(&self.snap()).unwrap();
        commit_into(target, self.header.clone(), |writer| {
            let mut records: Vec<_> = names.iter().map(|name| self.record(name, writer)).collect();
            edit(&mut records);
            records.sort_by(|a, b| a.path.cmp(&b.path));
            records
        });
    }

    fn record(&self, name: &Path, writer: &mut BlobWriter) -> FileRecord {
        let path = Path::new(self.cwd).join(name).into_os_string().into_encoded_bytes();
        let before = state(&self.before().join(name), &path, Side::Before, writer);
        let after = state(&self.after().join(name), &path, Side::After, writer);
        let mut operations = Operations::NONE;
        if after.present().is_some() {
            operations = operations.with(Operation::Write);
        } else {
            operations = operations.with(Operation::Delete);
        }
        let after = match after {
            State::Absent { .. } => State::Absent { tombstone: true },
            after => after,
        };
        FileRecord { operations, before, ..created(&path, after) }
    }

    /// Records a rename between two paths.
    pub fn rename(&self, records: &mut [FileRecord], from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| format!("{}/{name}", self.cwd).into_bytes());
        for record in records {
            if record.path == from {
                record.renamed_to = Some(to.clone());
            } else if record.path == to {
                record.renamed_from = Some(from.clone());
            }
        }
    }
}

fn state(file: &Path, path: &[u8], side: Side, writer: &mut BlobWriter) -> State {
    let bytes = file.as_os_str().as_bytes();
    let Some(stat) = crate::fs::lstat(bytes).unwrap() else { return State::Absent { tombstone: false } };
    let mut present = live::present(&stat, bytes).unwrap();
    // The two trees have different times, although one is said to have become the other.
    (present.mtime, present.mtime_nsec) = (1_770_000_000, 0);
    if present.file_type == FileType::File {
        let file = crate::fs::open_regular(bytes).unwrap();
        let stored = writer.store_file(&blob_key(side, path), &file, StoreLimit(None)).unwrap();
        present.digest = Some(stored.digest);
        present.blob = stored.blob.map(|key| key.to_string());
    }
    State::Present(Box::new(present))
}
