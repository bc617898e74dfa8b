//! One [`PathObservation`] a path, and the rule by which observations of one path merge.
//!
//! The first sight decides the before-state; operations and processes only grow. Neighbours:
//! `recorder.rs` fills the table, `finish.rs` turns it into the records of a manifest.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher;

use nix::sys::stat::FileStat;

use super::capture::Ticket;
use super::git::Facts;
use crate::snapshot::{BlobOmitted, Digest, Operations};

/// The place of a record in the table; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(u32);

/// A process of the manifest, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

/// How many processes a record names.
const NAMED_PROCESSES: usize = 16;

/// The processes that used a path: the first 16 by name, all by number.
#[derive(Debug, Default)]
pub struct Processes {
    // Most paths are used by one process; from 1, so that 0 is none.
    first: u32,
    more: Option<Box<MoreProcesses>>,
}

#[derive(Debug, Default)]
struct MoreProcesses {
    /// After the first.
    named: Vec<u32>,
    rest: HashSet<u32, foldhash::fast::RandomState>,
}

impl Processes {
    fn add(&mut self, ProcessId(process): ProcessId) {
        if self.first == 0 {
            self.first = process;
        }
        if self.first == process {
            return;
        }
        let more = self.more.get_or_insert_default();
        if more.named.contains(&process) {
            return;
        }
        if more.named.len() + 1 < NAMED_PROCESSES {
            more.named.push(process);
        } else {
            more.rest.insert(process);
        }
    }

    /// The first ones, in order of use.
    pub fn named(&self) -> Vec<u32> {
        let first = (self.first != 0).then_some(self.first);
        let more = self.more.as_ref().map_or(&[][..], |more| &more.named);
        first.into_iter().chain(more.iter().copied()).collect()
    }

    /// How many there are, where `named` does not hold them all.
    pub fn count_beyond_named(&self) -> Option<usize> {
        let more = self.more.as_ref().filter(|more| !more.rest.is_empty())?;
        Some(1 + more.named.len() + more.rest.len())
    }
}

/// What lstat(2) says of a path, as far as a record keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// When that was asked (`Repositories::epoch`).
    pub git_epoch: u32,
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
///
/// Records and names lie in blocks of their own, which never move: a table that doubles would need
/// its old place and its new one at once.
#[derive(Default)]
pub struct Table {
    blocks: Vec<Vec<Record>>,
    names: Names,
    /// The records by the hash of their paths.
    index: hashbrown::HashTable<RecordId>,
    /// Which record a rename moved to each, and to which one it moved each.
    renamed_from: HashMap<RecordId, RecordId, foldhash::fast::RandomState>,
    renamed_to: HashMap<RecordId, RecordId, foldhash::fast::RandomState>,
    hasher: foldhash::fast::RandomState,
}

#[derive(Debug)]
struct Record {
    name: Name,
    observation: PathObservation,
}

/// How many records lie together.
const BLOCK: usize = 1 << 10;
/// How many bytes of names do.
const NAME_BLOCK: usize = 64 << 10;

/// Where the bytes of a path are.
#[derive(Debug, Clone, Copy)]
struct Name {
    block: u32,
    start: u32,
    length: u32,
}

/// The bytes of all paths.
#[derive(Debug, Default)]
struct Names(Vec<Vec<u8>>);

impl Names {
    fn add(&mut self, path: &[u8]) -> Name {
        let free = self.0.last().map_or(0, |block| block.capacity() - block.len());
        if free < path.len() {
            self.0.push(Vec::with_capacity(path.len().max(NAME_BLOCK)));
        }
        let at = self.0.len() - 1;
        let block = &mut self.0[at];
        let start = block.len();
        block.extend_from_slice(path);
        let narrow = |number: usize| u32::try_from(number).expect("paths are shorter than four gigabytes");
        Name { block: narrow(at), start: narrow(start), length: narrow(path.len()) }
    }

    fn get(&self, name: Name) -> &[u8] {
        let start = name.start as usize;
        &self.0[name.block as usize][start..start + name.length as usize]
    }
}

impl Table {
    /// Notes that a rename moved what was at `from` to `to`.
    pub fn note_renamed(&mut self, from: RecordId, to: RecordId) {
        self.renamed_to.insert(from, to);
        self.renamed_from.insert(to, from);
    }

    /// The record that a rename moved here.
    pub fn renamed_from(&self, record: RecordId) -> Option<RecordId> {
        self.renamed_from.get(&record).copied()
    }

    /// The record that a rename moved this to.
    pub fn renamed_to(&self, record: RecordId) -> Option<RecordId> {
        self.renamed_to.get(&record).copied()
    }

    /// The record of `path`, if there is one.
    pub fn find(&self, path: &[u8]) -> Option<RecordId> {
        self.index.find(self.hasher.hash_one(path), |record| self.path(*record) == path).copied()
    }

    /// The record that is added next.
    pub fn next(&self) -> RecordId {
        id(self.index.len())
    }

    /// Adds a record for a path that has none.
    pub fn add(&mut self, path: Vec<u8>, observation: PathObservation) -> RecordId {
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let full = self.blocks.len() - 1;
        let record = id(full * BLOCK + self.blocks[full].len());
        let name = self.names.add(&path);
        self.blocks[full].push(Record { name, observation });
        let hash = self.hasher.hash_one(path.as_slice());
        let (blocks, names, hasher) = (&self.blocks, &self.names, &self.hasher);
        self.index.insert_unique(hash, record, |record| {
            hasher.hash_one(names.get(blocks[record.block()][record.place()].name))
        });
        record
    }

    /// A record.
    pub fn get(&self, record: RecordId) -> &PathObservation {
        &self.blocks[record.block()][record.place()].observation
    }

    /// A record, to change.
    pub fn get_mut(&mut self, record: RecordId) -> &mut PathObservation {
        &mut self.blocks[record.block()][record.place()].observation
    }

    /// The path of a record.
    pub fn path(&self, record: RecordId) -> &[u8] {
        self.names.get(self.blocks[record.block()][record.place()].name)
    }

    /// The records with an operation, sorted by path bytes.
    pub fn sorted(&self) -> Vec<RecordId> {
        let count = self.index.len();
        let mut found: Vec<RecordId> =
            (0..count).map(id).filter(|record| !self.get(*record).operations.is_empty()).collect();
        found.sort_unstable_by_key(|record| self.path(*record));
        found
    }
}

impl RecordId {
    fn block(self) -> usize {
        self.0 as usize / BLOCK
    }

    fn place(self) -> usize {
        self.0 as usize % BLOCK
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("records", &self.index.len()).finish_non_exhaustive()
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
    fn every_path_is_found_again_whatever_its_length() {
        let mut table = Table::default();
        let path = |number: usize| format!("/{}{number}", "x".repeat(number * number % 70_000)).into_bytes();
        let records: Vec<_> =
            (0..300).map(|number| table.add(path(number), PathObservation::default())).collect();
        for (number, record) in records.into_iter().enumerate() {
            assert_eq!(table.find(&path(number)), Some(record));
            assert_eq!(table.path(record), path(number));
        }
        assert_eq!(table.find(b"/nowhere"), None);
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
