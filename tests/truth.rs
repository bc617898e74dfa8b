//! Ground truth from outside: the tree as an independent scanner reads it before and after a recording,
//! compared with the manifest and the blobs.
//!
//! Neighbours: `random.rs` records programs made by a seed, `strace.rs` real commands, `network.rs` real clients.

mod cases;
mod network;
mod overlay;
mod random;
mod strace;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output};

use agent_snapshot::snapshot::{
    Digest, FileRecord, FileType, Operation, Operations, Present, Snapshot, State,
};

use crate::support::{Entry, Place, Tree, assert_same, describe_recorded, lines, scan, shown};

/// Runs a recording and compares it with the tree of `place` before and after. It must lose nothing, and its undo, its
/// redo and another undo must each give that tree back.
#[track_caller]
pub fn record_exactly(place: &Place, recording: &mut Command) -> (Output, Snapshot) {
    let before = scan(&place.work);
    let output = recording.output().unwrap();
    let after = scan(&place.work);
    let snapshot = Snapshot::open(&place.out).unwrap_or_else(|error| panic!("{error}: {}", shown(&output)));
    let wrong = [gaps(&snapshot), compare(&place.work, &before, &after, &snapshot)].concat();
    assert!(wrong.is_empty(), "{}\n{}", lines(&wrong), shown(&output));
    for (what, flags, wanted) in
        [("undo", &["--before"][..], &before), ("redo", &[], &after), ("second undo", &["--before"], &before)]
    {
        place.verb("restore", flags).expect(0);
        assert_same(&describe_recorded(&scan(&place.work)), &describe_recorded(wanted), what);
    }
    (output, snapshot)
}

/// What is wrong in `snapshot` about the tree below `root`, a sentence each.
pub fn compare(root: &Path, before: &Tree, after: &Tree, snapshot: &Snapshot) -> Vec<String> {
    compare_inodes(root, before, after, snapshot, Inodes::Stay)
}

/// The same where files may get other inode numbers.
pub fn compare_inodes(
    root: &Path,
    before: &Tree,
    after: &Tree,
    snapshot: &Snapshot,
    inodes: Inodes,
) -> Vec<String> {
    let root = root.as_os_str().as_bytes();
    let inside = |path: &[u8]| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    let records: BTreeMap<&[u8], &FileRecord> = snapshot
        .files()
        .iter()
        .filter(|record| inside(&record.path))
        .map(|record| (record.path.as_slice(), record))
        .collect();
    let comparison = Comparison { before, after, snapshot, records, inodes };
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
    inodes: Inodes,
}

/// Whether an unchanged file can get another inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inodes {
    Stay,
    /// In an overlay that copies it up.
    Move,
}

impl Comparison<'_> {
    fn path(&self, path: &[u8]) -> Vec<String> {
        let (before, after) = (self.before.get(path), self.after.get(path));
        let changed = match (before, after) {
            (None, None) => false,
            (Some(before), Some(after)) => self.differs(before, after),
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
        // Attributes that only one of the states has would be changed by a restore of the other.
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

    /// Whether a change from `before` to `after` is one that some record has to show. What a directory
    /// holds, and when that changed, is shown by the records of its entries.
    fn differs(&self, before: &Entry, after: &Entry) -> bool {
        let facts = |entry: &Entry| {
            let at = &entry.present;
            let mtime = (at.file_type != FileType::Directory).then_some((at.mtime, at.mtime_nsec));
            let inode = (self.inodes == Inodes::Stay).then(|| entry.inode());
            (at.mode, at.uid, at.gid, inode, at.rdev, mtime)
        };
        facts(before) != facts(after)
            || before.present.target != after.present.target
            || before.content != after.content
            || before.present.xattrs != after.present.xattrs
    }

    /// Whether a file was changed through another name of it, which has a record.
    fn changed_by_another_name(&self, before: Option<&Entry>, after: Option<&Entry>) -> bool {
        let (Some(before), Some(after)) = (before, after) else { return false };
        (before.inode() == after.inode() || self.inodes == Inodes::Move)
            && self.records.values().any(|record| {
                let is = |state: &State| {
                    let inode = state.present().map(|present| (present.dev, present.ino));
                    inode == Some(before.inode()) || inode == Some(after.inode())
                };
                record.operations.intersects(Operations::CHANGES)
                    && (is(&record.before) || is(&record.after) || record.renamed_to.is_some())
            })
    }

    fn state(
        &self,
        wrong: &mut Vec<String>,
        side: &str,
        state: &State,
        found: Option<&Entry>,
        wanted: Wanted,
    ) {
        let (recorded, entry) = match (state.present(), found) {
            (None, None) => return,
            (Some(recorded), Some(entry)) => (recorded, entry),
            (None, Some(_)) => return wrong.push(format!("{side}: recorded as absent")),
            (Some(_), None) => return wrong.push(format!("{side}: recorded as present")),
        };
        let real = &entry.present;
        let mut compare = |what: &str, of: &dyn Fn(&Present) -> String| {
            let (recorded, real) = (of(recorded), of(real));
            if recorded != real {
                wrong.push(format!("{side}: {what} is {real}, recorded as {recorded}"));
            }
        };
        compare("type", &|at| format!("{:?}", at.file_type));
        compare("mode", &|at| format!("{:o}", at.mode));
        compare("owner", &|at| format!("{:?}", (at.uid, at.gid)));
        compare("inode", &|at| format!("{:?}", (at.dev, at.ino)));
        compare("rdev", &|at| format!("{:?}", at.rdev));
        compare("target", &|at| escaped(at.target.as_deref()));
        if real.file_type != FileType::Directory || wanted.directory_times {
            compare("mtime", &|at| format!("{:?}", (at.mtime, at.mtime_nsec)));
            compare("size", &|at| at.size.to_string());
        }
        if side == "after" {
            compare("nlink", &|at| at.nlink.to_string());
        }
        if wanted.xattrs {
            compare("xattrs", &|at| format!("{:?}", at.xattrs));
        }
        if let Some(content) = &entry.content {
            self.content(wrong, side, recorded, content, wanted.content);
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

fn escaped(bytes: Option<&[u8]>) -> String {
    bytes.map_or("nothing".to_owned(), |bytes| bytes.escape_ascii().to_string())
}

pub fn words(operations: Operations) -> String {
    let words = Operation::ALL.into_iter().filter(|operation| operations.contains(*operation));
    words.map(Operation::name).collect::<Vec<_>>().join(",")
}

/// The losses that the snapshot reports.
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

/// What the warning says of a file that is only at a name which the recording never saw.
const UNKNOWN_NAME: &str = "its state at another hard link, which the command never used, is not recorded";

/// The gaps that the recording of a random program should not have, or lacks. It has to have one where a file was changed
/// whose recorded names are all gone, and which is still at one that the recording never saw; and only where there is
/// such a file.
pub fn wrong_gaps(before: &Tree, after: &Tree, snapshot: &Snapshot) -> Vec<String> {
    let recorded: BTreeSet<&[u8]> = snapshot.files().iter().map(|record| record.path.as_slice()).collect();
    let is_recorded = |path: &Vec<u8>| recorded.contains(path.as_slice());
    let has_recorded_name = |tree: &Tree, file: (u64, u64)| {
        tree.iter().any(|(path, entry)| entry.inode() == file && is_recorded(path))
    };
    let left = after.iter().filter(|(path, entry)| {
        let file = entry.inode();
        let is_same = before.get(*path).is_some_and(|first| first.content.is_some() && first.inode() == file);
        is_same && !is_recorded(path) && has_recorded_name(before, file) && !has_recorded_name(after, file)
    });
    let left: Vec<&Vec<u8>> = left.map(|(path, _)| path).collect();
    let changed = left.iter().find(|path| {
        let (first, last) = (&before[**path], &after[**path]);
        first.content != last.content || first.present.mode != last.present.mode
    });
    let (known, mut wrong): (Vec<_>, Vec<_>) =
        gaps(snapshot).into_iter().partition(|gap| !left.is_empty() && gap.contains(UNKNOWN_NAME));
    if let (Some(path), true) = (changed, known.is_empty()) {
        wrong.push(format!("{}: has changed without a record or a gap", path.escape_ascii()));
    }
    wrong
}
