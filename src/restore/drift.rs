//! Where the live file system is no longer as a snapshot recorded it: what `verify` reports.
//!
//! Nothing is taken on trust: every content that a record identifies is read and hashed, whatever the
//! metadata says. Neighbours: `snapshot::compare` makes the fingerprints, `snapshot::source` knows
//! what Git still has.

use std::io;

use super::parallel::{self, Tick};
use super::place::Place;
use super::targets::is_inherited_alone;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{self, Entries, Fingerprint};
use crate::snapshot::source::{ContentSource, Contents, Unavailable, locate};
use crate::snapshot::{FileRecord, Operation, Operations, Snapshot};

/// What is wrong with a path.
#[derive(Debug)]
pub enum Kind {
    /// It is at another state.
    Drift,
    /// Git has the pinned blob no more.
    PinLost(Unavailable),
    /// It can't be looked at.
    Unreadable(io::Error),
}

/// A path that is not as recorded.
#[derive(Debug)]
pub struct Difference<'a> {
    /// Its record.
    pub record: &'a FileRecord,
    /// What is wrong.
    pub kind: Kind,
    /// The recorded state.
    pub recorded: Fingerprint,
    /// The state of now; none where it can't be looked at.
    pub live: Option<Fingerprint>,
}

/// What a comparison came to.
#[derive(Debug)]
pub struct Drift<'a> {
    /// How many paths were compared with the live ones.
    pub compared: usize,
    /// How many are pinned, so that only Git was asked.
    pub pinned: usize,
    /// How many were only written through a descriptor from before the launch.
    pub left_out: usize,
    /// The paths that are not as recorded, sorted by path bytes.
    pub differences: Vec<Difference<'a>>,
}

/// Compares every record of `snapshot` on `side` with what is at its path in `place`.
pub fn check<'a>(snapshot: &'a Snapshot, side: Side, place: &Place, tick: Tick<'_>) -> Drift<'a> {
    let contents = Contents::new(snapshot);
    let looked = parallel::map(snapshot.files(), tick, |record| {
        if is_output(record) {
            (How::LeftOut, None)
        } else if is_pinned_read(record, side) {
            (How::Pinned, lost_pin(record, side, place, &contents))
        } else {
            (How::Compared, drifted(record, side, place))
        }
    });
    let count = |wanted| looked.iter().filter(|(how, _)| *how == wanted).count();
    Drift {
        compared: count(How::Compared),
        pinned: count(How::Pinned),
        left_out: count(How::LeftOut),
        differences: looked.into_iter().filter_map(|(_, difference)| difference).collect(),
    }
}

/// What was done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Compared,
    Pinned,
    LeftOut,
}

/// Whether the file is where the output of the command was sent: it is no input, and goes on to grow when
/// the command has ended.
fn is_output(record: &FileRecord) -> bool {
    is_inherited_alone(record) && !record.operations.contains(Operation::Read)
}

/// Whether the command only read the file, whose bytes Git can supply whatever becomes of the file.
fn is_pinned_read(record: &FileRecord, side: Side) -> bool {
    !record.operations.intersects(Operations::CHANGES)
        && matches!(locate(record, side), Ok(ContentSource::Git { .. }))
}

fn lost_pin<'a>(
    record: &'a FileRecord,
    side: Side,
    place: &Place,
    contents: &Contents,
) -> Option<Difference<'a>> {
    let lost = contents.check(record, side).err()?;
    let recorded = compare::recorded(record, side, Entries::Compare);
    let live = place.fingerprint(&record.path, &recorded).ok();
    Some(Difference { record, kind: Kind::PinLost(lost), recorded, live })
}

fn drifted<'a>(record: &'a FileRecord, side: Side, place: &Place) -> Option<Difference<'a>> {
    let recorded = compare::recorded(record, side, Entries::Compare);
    match place.fingerprint(&record.path, &recorded) {
        Ok(live) if live == recorded => None,
        Ok(live) => Some(Difference { record, kind: Kind::Drift, recorded, live: Some(live) }),
        Err(error) => Some(Difference { record, kind: Kind::Unreadable(error), recorded, live: None }),
    }
}
