//! Where the live filesystem is no longer as a snapshot recorded it, for `verify`.
//!
//! Sizes and times are never proof: every content that a record identifies is read and hashed. Of a content that was
//! withheld, the time of its last modification is all there is. An index of Git is compared by its entries.
//! Neighbours: `snapshot::compare` makes the fingerprints, `snapshot::source` knows what Git still has.

use std::io;

use super::root::Root;
use super::targets::is_inherited_alone;
use crate::git::{self, GitFile};
use crate::parallel::{self, Tick};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{self, Entries, Fingerprint, state};
use crate::snapshot::source::{ContentSource, Contents, Unavailable, locate};
use crate::snapshot::{BlobOmitted, FileRecord, FileType, Operation, Operations, Present, Snapshot};

/// A larger index is compared by its bytes: both are read into memory.
const INDEX_LIMIT: u64 = 256 << 20;

/// What is wrong with a path.
#[derive(Debug)]
pub enum DriftKind {
    /// It is not at the recorded state.
    Drift,
    /// It was modified since; whether its content is another one is unknown, since that was withheld.
    Modified,
    /// Git no longer has the pinned blob.
    PinLost(Unavailable),
    /// It can't be inspected.
    Unreadable(io::Error),
}

/// A path that is not as recorded.
#[derive(Debug)]
pub struct Difference<'a> {
    /// Its record.
    pub record: &'a FileRecord,
    /// What is wrong.
    pub kind: DriftKind,
    /// The recorded state.
    pub recorded: Fingerprint,
    /// The live state; none if it can't be inspected.
    pub live: Option<Fingerprint>,
}

/// The outcome of a comparison.
#[derive(Debug)]
pub struct Drift<'a> {
    /// How many paths were compared with the live ones.
    pub compared: usize,
    /// Of how many of these the content was withheld, so that it is not compared.
    pub withheld: usize,
    /// How many are pinned, so that only Git was asked.
    pub pinned: usize,
    /// How many were only written through a descriptor from before the launch.
    pub left_out: usize,
    /// The paths that are not as recorded, sorted by path bytes.
    pub differences: Vec<Difference<'a>>,
}

/// Compares every record of `snapshot` on `side` with what is at its path beneath `root`.
pub fn check<'a>(snapshot: &'a Snapshot, side: Side, root: &Root, tick: Tick<'_>) -> Drift<'a> {
    let contents = Contents::new(snapshot);
    let inspected = parallel::map(snapshot.files(), tick, |record| {
        if is_output(record) {
            (DriftTreatment::LeftOut, None)
        } else if is_pinned_read(record, side) {
            (DriftTreatment::Pinned, lost_pin(record, side, root, &contents))
        } else {
            let is_withheld = withheld(record, side).is_some();
            let how = if is_withheld { DriftTreatment::Withheld } else { DriftTreatment::Compared };
            (how, drifted(record, side, root, &contents))
        }
    });
    let count = |wanted| inspected.iter().filter(|(how, _)| *how == wanted).count();
    Drift {
        compared: count(DriftTreatment::Compared) + count(DriftTreatment::Withheld),
        withheld: count(DriftTreatment::Withheld),
        pinned: count(DriftTreatment::Pinned),
        left_out: count(DriftTreatment::LeftOut),
        differences: inspected.into_iter().filter_map(|(_, difference)| difference).collect(),
    }
}

/// Whether the path has an index of Git with the recorded entries.
fn has_equal_index(record: &FileRecord, side: Side, root: &Root, contents: &Contents) -> bool {
    let Some(present) = state(record, side).present() else { return false };
    if GitFile::of(&record.path) != GitFile::Index || present.size > INDEX_LIMIT {
        return false;
    }
    let mut recorded = Vec::new();
    contents.copy(record, side, &mut recorded).is_ok()
        && root.read(&record.path, INDEX_LIMIT).is_some_and(|live| git::same_index(&recorded, &live))
}

/// What was done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DriftTreatment {
    Compared,
    Withheld,
    Pinned,
    LeftOut,
}

/// Whether the output of the command was sent to the file: then it is no input, and it may grow after the
/// command has ended.
fn is_output(record: &FileRecord) -> bool {
    is_inherited_alone(record) && !record.operations.contains(Operation::Read)
}

/// Whether the command only read the file, and Git has its content whatever becomes of the file.
fn is_pinned_read(record: &FileRecord, side: Side) -> bool {
    !record.operations.intersects(Operations::CHANGES)
        && matches!(locate(record, side), Ok(ContentSource::Git { .. }))
}

/// The recorded state of a regular file whose content was withheld.
fn withheld(record: &FileRecord, side: Side) -> Option<&Present> {
    let present = state(record, side).present()?;
    let is_withheld = present.blob_omitted == Some(BlobOmitted::Withheld);
    (present.file_type == FileType::File && is_withheld).then_some(present)
}

fn lost_pin<'a>(
    record: &'a FileRecord,
    side: Side,
    root: &Root,
    contents: &Contents,
) -> Option<Difference<'a>> {
    let lost = contents.check(record, side).err()?;
    let recorded = compare::recorded(record, side, Entries::Compare);
    let live = root.fingerprint(&record.path, &recorded).ok();
    Some(Difference { record, kind: DriftKind::PinLost(lost), recorded, live })
}

fn drifted<'a>(
    record: &'a FileRecord,
    side: Side,
    root: &Root,
    contents: &Contents,
) -> Option<Difference<'a>> {
    let recorded = compare::recorded(record, side, Entries::Compare);
    match root.fingerprint(&record.path, &recorded) {
        Ok(live) if live == recorded => {
            let withheld = withheld(record, side)?;
            let now = root.dentry(&record.path).ok()??.present().ok()??;
            let is_as_recorded = (withheld.mtime, withheld.mtime_nsec) == (now.mtime, now.mtime_nsec);
            let live = Some(live);
            (!is_as_recorded).then_some(Difference { record, kind: DriftKind::Modified, recorded, live })
        }
        // A program that asks for the status refreshes the stat data.
        Ok(_) if record.is_git_state && has_equal_index(record, side, root, contents) => None,
        Ok(live) => Some(Difference { record, kind: DriftKind::Drift, recorded, live: Some(live) }),
        Err(error) => Some(Difference { record, kind: DriftKind::Unreadable(error), recorded, live: None }),
    }
}
