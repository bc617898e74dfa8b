//! The index of a working tree: what it says of a path, and what its stat data can prove.
//!
//! It is read into memory, never mapped: truncating a mapped file would end this process with SIGBUS. For the
//! same reason the two parts of a split index are joined here and not by gix.

use std::path::Path;

use gix::ObjectId;
use gix::bstr::ByteSlice;
use gix::index::entry::{Flags, Mode, Stat};
use gix::index::{State, decode};

use super::files;
use crate::fs::{self, CLOCK_STEP, COARSE_STEP, FileStat, Signature};

/// More than ten million entries.
const LIMIT: u64 = 1 << 30;

/// What an index begins with.
const MAGIC: &[u8] = b"DIRC";

/// A parsed index, with the signature of the file that it was read from.
pub(super) struct Index {
    state: State,
    signature: Option<Signature>,
    /// The tree object that equals the whole index, where the index says so.
    tree: Option<ObjectId>,
}

/// What an index says of a path.
pub(super) enum Lookup {
    /// It has no entry.
    Absent,
    /// It has more than one entry: an unresolved merge.
    Conflict,
    /// It has this entry.
    Entry(IndexEntry),
    /// It is below a directory of a sparse index, which has the entry of its `tree`. The path in the tree
    /// starts at byte `rest`.
    Sparse { tree: ObjectId, rest: usize },
}

/// An entry of an index.
#[derive(Clone, Copy)]
pub(super) struct IndexEntry {
    pub(super) mode: Mode,
    pub(super) oid: ObjectId,
    pub(super) intent_to_add: bool,
    stat: Stat,
}

impl IndexEntry {
    /// The entry of a path in a tree object of a sparse index, without stat data.
    pub(super) fn of_tree(mode: Mode, oid: ObjectId) -> IndexEntry {
        IndexEntry { mode, oid, intent_to_add: false, stat: Stat::default() }
    }
}

impl Index {
    /// Reads the index at `path`; an absent one is empty. Returns none when it can't be parsed.
    pub(super) fn read(path: &Path, hash: gix::hash::Kind) -> Option<Index> {
        // The signature comes first: a later one could hide a change that was not read.
        let Some(signature) = Index::signature(path) else {
            return Some(Index { state: State::new(hash), signature: None, tree: None });
        };
        let mut state = decode(&files::read_written(path, LIMIT, MAGIC)?, hash)?;
        let is_whole = |count: u32| count as usize == state.entries().len();
        let mut tree = state.tree().filter(|tree| tree.num_entries.is_some_and(is_whole)).map(|tree| tree.id);
        if let Some(link) = state.link().cloned() {
            // What the tree extension counts are the entries of both parts.
            tree = None;
            if !link.shared_index_checksum.is_null() {
                let shared = path.with_file_name(format!("sharedindex.{}", link.shared_index_checksum));
                let shared = decode(&files::read_written(&shared, LIMIT, MAGIC)?, hash)?;
                state = join(shared, &state, link.bitmaps.as_ref())?;
            }
        }
        Some(Index { state, signature: Some(signature), tree })
    }

    /// Whether the file at `path` is still the one that was read.
    pub(super) fn is_current(&self, path: &Path) -> bool {
        Index::signature(path) == self.signature
    }

    /// The signature of the file at `path`.
    pub(super) fn signature(path: &Path) -> Option<Signature> {
        path.metadata().ok().as_ref().map(Signature::from)
    }

    /// The tree object that has the same entries, where the index names one.
    pub(super) fn tree(&self) -> Option<ObjectId> {
        self.tree
    }

    /// Looks `path` up.
    pub(super) fn lookup(&self, path: &[u8]) -> Lookup {
        if let Ok(at) = self.state.entry_index_by_path(path.as_bstr()) {
            let entry = self.state.entry(at);
            if entry.stage_raw() != 0 {
                return Lookup::Conflict;
            }
            return Lookup::Entry(IndexEntry {
                mode: entry.mode,
                oid: entry.id,
                intent_to_add: entry.flags.contains(Flags::INTENT_TO_ADD),
                stat: entry.stat,
            });
        }
        if self.state.is_sparse() {
            for end in path.find_iter(b"/").map(|slash| slash + 1) {
                if let Ok(at) = self.state.entry_index_by_path(path[..end].as_bstr())
                    && self.state.entry(at).mode.is_sparse()
                {
                    return Lookup::Sparse { tree: self.state.entry(at).id, rest: end };
                }
            }
        }
        Lookup::Absent
    }

    /// Whether something below the directory `path` is in the index.
    pub(super) fn has_below(&self, path: &[u8]) -> bool {
        let prefix = [path, b"/"].concat();
        let (Ok(at) | Err(at)) = self.state.entry_index_by_path(prefix.as_bstr());
        let below = |entry: &gix::index::Entry| entry.path(&self.state).starts_with(&prefix);
        self.state.entries().get(at).is_some_and(below)
            || matches!(self.lookup(&prefix), Lookup::Sparse { .. })
    }

    /// The blob at `path`, where it is in the index; of those left out of a sparse checkout only if
    /// `skipped`.
    pub(super) fn pattern_file(&self, path: &[u8], skipped: bool) -> Option<ObjectId> {
        let at = self.state.entry_index_by_path(path.as_bstr()).ok()?;
        let entry = self.state.entry(at);
        let wanted = matches!(entry.mode, Mode::FILE | Mode::FILE_EXECUTABLE)
            && (!skipped || entry.flags.contains(Flags::SKIP_WORKTREE));
        wanted.then_some(entry.id)
    }

    /// Whether the stat data of `entry` proves that the file with `stat` is unchanged since it was added. The
    /// blob was then made from these bytes, and equals them if no conversion applied.
    pub(super) fn proves(&self, entry: &IndexEntry, stat: &FileStat) -> bool {
        self.equals(entry, stat) && !self.is_racy(entry)
    }

    /// Whether the stat data of `entry` equals `stat`, racy or not.
    pub(super) fn equals(&self, entry: &IndexEntry, stat: &FileStat) -> bool {
        let known = &entry.stat;
        // Whatever core.trustctime and core.checkStat say: a mismatch only costs reading the file.
        known.mtime.secs == low(stat.st_mtime)
            && known.mtime.nsecs == low(stat.st_mtime_nsec)
            && known.ctime.secs == low(stat.st_ctime)
            && known.ctime.nsecs == low(stat.st_ctime_nsec)
            && known.ino == low(stat.st_ino)
            && known.uid == stat.st_uid
            && known.gid == stat.st_gid
            && known.size == folded_size(stat)
            && !self.is_smudged(entry)
    }

    /// Whether Git would call a file of this size modified without reading it.
    pub(super) fn size_differs(&self, entry: &IndexEntry, stat: &FileStat) -> bool {
        entry.stat.size != 0 && entry.stat.size != folded_size(stat)
    }

    /// Whether Git has marked the entry as to be compared again: a size of zero on a blob that is not empty.
    fn is_smudged(&self, entry: &IndexEntry) -> bool {
        entry.stat.size == 0 && entry.oid != ObjectId::empty_blob(self.state.object_hash())
    }

    fn is_racy(&self, entry: &IndexEntry) -> bool {
        let Some(signature) = self.signature else { return true };
        let times = [entry.stat.mtime, entry.stat.ctime];
        let coarse = times.iter().all(|time| time.nsecs == 0);
        let step = if coarse { COARSE_STEP } else { CLOCK_STEP };
        let (secs, nsecs) = signature.mtime;
        let written = i128::from(secs) * 1_000_000_000 + i128::from(nsecs);
        times.iter().any(|time| {
            let changed = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nsecs);
            changed + i128::from(step) >= written
        })
    }
}

/// The bytes of the index at `path`, which is no symlink; none if it is too large, has holes or is something else.
pub(super) fn bytes_of(path: &[u8]) -> Option<Vec<u8>> {
    files::read_open_written(fs::open_regular(path).ok()?, LIMIT, MAGIC)
}

pub(super) fn decode(data: &[u8], hash: gix::hash::Kind) -> Option<State> {
    // A second thread would save milliseconds only.
    let options = decode::Options { thread_limit: Some(1), ..Default::default() };
    let unused = State::new(hash).timestamp();
    State::from_bytes(data, unused, hash, options).ok().map(|(state, _checksum)| state)
}

/// Makes one index of the shared and the split part, as `gitformat-index(5)` has it: entries of the
/// second that have no path replace those that a bitmap names, the others are added.
fn join(
    mut shared: State,
    split: &State,
    bitmaps: Option<&gix::index::extension::link::Bitmaps>,
) -> Option<State> {
    let mut own = split.entries().iter();
    if let Some(bitmaps) = bitmaps {
        bitmaps.replace.for_each_set_bit(|at| {
            let (old, new) = (shared.entries_mut().get_mut(at)?, own.next()?);
            (old.stat, old.id, old.flags, old.mode) = (new.stat, new.id, new.flags, new.mode);
            Some(())
        })?;
        bitmaps.delete.for_each_set_bit(|at| {
            shared.entries_mut().get_mut(at)?.flags.insert(Flags::REMOVE);
            Some(())
        })?;
    }
    shared.remove_entries(|_, _, entry| entry.flags.contains(Flags::REMOVE));
    for entry in own {
        shared.dangerously_push_entry(entry.stat, entry.id, entry.flags, entry.mode, entry.path(split));
    }
    shared.sort_entries();
    Some(shared)
}

/// The low 32 bits, which are all that an index keeps of a time or an inode number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "both sides of the comparison are cut alike"
)]
fn low(value: impl Into<i128>) -> u32 {
    value.into() as u32
}

/// The size as an index keeps it: cut, but never zero for a file that is not empty.
fn folded_size(stat: &FileStat) -> u32 {
    match low(fs::size(stat)) {
        0 if stat.st_size != 0 => 0x8000_0000,
        size => size,
    }
}
