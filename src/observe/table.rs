//! One [`PathObservation`] a path, and the rule by which observations of one path merge.
//!
//! The first sight decides the before-state; operations and processes only grow. Neighbours:
//! `recorder.rs` fills the table, `finish.rs` turns it into the records of a manifest.

use std::collections::{BTreeMap, HashSet};

use indexmap::IndexMap;
use nix::sys::stat::FileStat;

use super::capture::Ticket;
use super::git::Facts;
use crate::snapshot::{BlobOmitted, Digest, Operations};

/// The place of a record in the table; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId(u32);

/// A process of the manifest, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

/// How many processes a record names.
const NAMED_PROCESSES: usize = 16;

/// The processes that used a path: the first 16 by name, all by number.
#[derive(Debug, Default)]
pub struct Processes {
    first: Vec<u32>,
    #[expect(clippy::box_collection, reason = "few records have it, and each carries its place")]
    more: Option<Box<HashSet<u32, foldhash::fast::RandomState>>>,
}

impl Processes {
    fn add(&mut self, process: ProcessId) {
        if self.first.contains(&process.0) {
            return;
        }
        if self.first.len() < NAMED_PROCESSES {
            // Most paths are used by one process.
            self.first.reserve_exact(1);
            self.first.push(process.0);
        } else {
            self.more.get_or_insert_default().insert(process.0);
        }
    }

    /// The first ones, in order of use.
    pub fn named(&self) -> &[u32] {
        &self.first
    }

    /// How many there are, where `named` does not hold them all.
    pub fn count_beyond_named(&self) -> Option<usize> {
        self.more.as_ref().map(|more| more.len() + self.first.len())
    }
}

/// What lstat(2) says of a path, as far as a record keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `st_mode`.
    pub mode: u32,
    /// The nanoseconds of `mtime`.
    pub mtime_nsec: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, seconds since 1970.
    pub mtime: i64,
    /// Bytes.
    pub size: u64,
    /// Device of the file system.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Number of names.
    pub nlink: u64,
    /// The device that a node stands for.
    pub rdev: u64,
}

impl From<&FileStat> for Stat {
    fn from(stat: &FileStat) -> Self {
        Stat {
            mode: stat.st_mode,
            mtime_nsec: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            dev: stat.st_dev,
            ino: stat.st_ino,
            nlink: stat.st_nlink,
            rdev: stat.st_rdev,
        }
    }
}

impl Stat {
    /// Whether it is of a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Whether it is of a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether it is of a symbolic link.
    pub fn is_link(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFLNK
    }

    /// The file itself, whatever its names.
    pub fn inode(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Whether the content can be taken as the same: the same file and size, and the same
    /// modification time, unless a traced call may have set it (`touched`).
    pub fn same_content(&self, other: &Stat, touched: bool) -> bool {
        self.inode() == other.inode()
            && self.size == other.size
            && (touched || (self.mtime, self.mtime_nsec) == (other.mtime, other.mtime_nsec))
    }

    /// Whether nothing that a record tells differs, the number of names apart.
    pub fn same_state(&self, other: &Stat) -> bool {
        self.same_content(other, false)
            && (self.mode, self.uid, self.gid, self.rdev) == (other.mode, other.uid, other.gid, other.rdev)
    }
}

/// Where the bytes of the before-state are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// Nothing has needed them.
    #[default]
    NotNeeded,
    /// Git has them: `oid` names them.
    Pinned,
    /// They were only read: kept up to `--max-read-bytes`.
    Read(Ticket),
    /// The tree may destroy them: kept up to `--max-blob-bytes`.
    Kept(Ticket),
    /// They could not be had.
    Omitted(BlobOmitted),
}

/// What few records have.
#[derive(Debug, Default)]
pub struct Extra {
    /// The target of a symbolic link before.
    pub target: Option<Vec<u8>>,
    /// The digest of a directory's entries before.
    pub entries: Option<Digest>,
    /// The extended attributes before.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The record that keeps the before-state of the same file, by another name.
    pub keeper: Option<RecordId>,
    /// What the file has become by being copied to an overlay's upper layer (dev, ino).
    pub copied_up: Option<(u64, u64)>,
    /// The record that a rename moved here.
    pub renamed_from: Option<RecordId>,
    /// The record that a rename moved this to.
    pub renamed_to: Option<RecordId>,
}

/// All that is known of a path while the tree runs.
#[derive(Debug, Default)]
pub struct PathObservation {
    /// How it was used.
    pub operations: Operations,
    /// By whom.
    pub processes: Processes,
    /// Its state at first sight; none where nothing was there.
    pub before: Option<Stat>,
    /// The bytes of that state.
    pub content: Content,
    /// How Git knew it.
    pub git: Option<Facts>,
    /// What few records have.
    pub extra: Option<Box<Extra>>,
    /// Used through a descriptor from before the launch.
    pub inherited: bool,
    /// Opened for writing, or made.
    pub written: bool,
    /// How many traced calls changed what the name stands for, or may have.
    pub changes: u32,
    /// The bytes at the path may no longer be those of the before-state.
    pub replaced: bool,
    /// The bytes of the file were changed in place, perhaps by another name; said of its keeper.
    pub overwritten: bool,
    /// Metadata of the file, its times perhaps, were changed in place; said of its keeper, too.
    pub touched: bool,
    /// Appended to through a descriptor from before the launch: only its size counts.
    pub append_only: bool,
    /// Whether Git was asked for the blob that has the bytes before.
    pub pin_asked: bool,
    /// Whether the extended attributes before were taken.
    pub xattrs_taken: bool,
    /// Deleted or renamed away.
    pub deleted: bool,
    /// Owned by another user and not writable: kept only where it was changed.
    pub foreign: bool,
}

impl PathObservation {
    /// Merges one more use: both sets only grow.
    pub fn merge(&mut self, operations: Operations, process: ProcessId) {
        self.operations = self.operations.union(operations);
        self.processes.add(process);
    }

    /// What the file has become in an overlay's upper layer, by device and inode.
    pub fn copied_up(&self) -> Option<(u64, u64)> {
        self.extra.as_ref().and_then(|extra| extra.copied_up)
    }

    /// A later state of the path, with the device and inode of before if it is the same file copied up.
    pub fn as_known(&self, now: Stat) -> Stat {
        match self.before {
            Some(Stat { dev, ino, .. }) if self.copied_up() == Some(now.inode()) => Stat { dev, ino, ..now },
            _ => now,
        }
    }

    /// The rarer facts, made where there were none.
    pub fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }
}

/// The records of a recording, by path.
#[derive(Debug, Default)]
pub struct Table {
    records: IndexMap<Box<[u8]>, PathObservation, foldhash::fast::RandomState>,
}

impl Table {
    /// The record of `path`, if there is one.
    pub fn find(&self, path: &[u8]) -> Option<RecordId> {
        self.records.get_index_of(path).map(id)
    }

    /// Adds a record for a path that has none.
    pub fn add(&mut self, path: Vec<u8>, observation: PathObservation) -> RecordId {
        id(self.records.insert_full(path.into_boxed_slice(), observation).0)
    }

    /// A record.
    pub fn get(&self, record: RecordId) -> &PathObservation {
        &self.records[record.0 as usize]
    }

    /// A record, to change.
    pub fn get_mut(&mut self, record: RecordId) -> &mut PathObservation {
        &mut self.records[record.0 as usize]
    }

    /// The path of a record.
    pub fn path(&self, record: RecordId) -> &[u8] {
        self.records.get_index(record.0 as usize).map_or(b"", |(path, _)| path)
    }

    /// The records with an operation, sorted by path bytes.
    pub fn sorted(&self) -> Vec<RecordId> {
        let mut found: Vec<RecordId> = (0..self.records.len())
            .map(id)
            .filter(|record| !self.get(*record).operations.is_empty())
            .collect();
        found.sort_unstable_by_key(|record| self.path(*record));
        found
    }
}

fn id(index: usize) -> RecordId {
    RecordId(u32::try_from(index).expect("four billion records do not fit into memory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Operation;

    #[test]
    fn a_record_names_sixteen_processes_and_counts_the_rest_once() {
        let mut record = PathObservation::default();
        for round in 0..2 {
            for process in 1..=20 {
                record.merge(Operation::Read.into(), ProcessId(process));
            }
            assert_eq!(record.processes.named(), (1..=16).collect::<Vec<_>>(), "round {round}");
            assert_eq!(record.processes.count_beyond_named(), Some(20));
        }
    }

    #[test]
    fn records_sort_by_path_bytes_and_unused_ones_are_left_out() {
        let mut table = Table::default();
        for path in ["/b", "/a/b", "/a.b", "/unused"] {
            let record = table.add(path.into(), PathObservation::default());
            if path != "/unused" {
                table.get_mut(record).merge(Operation::Existence.into(), ProcessId(1));
            }
        }
        let paths: Vec<_> = table.sorted().into_iter().map(|record| table.path(record)).collect();
        assert_eq!(paths, [&b"/a.b"[..], b"/a/b", b"/b"]);
    }
}
