//! What was at a path at some time, by what recordings and rescues found there and left.
//!
//! Each record is two observations of its path, one at the start of its recording and one at the end; the live file is
//! the last one. Between two observations of the same state nothing has changed; between two others the modification
//! time of the later one says when it was written. Neighbours: `net.rs` makes one of several recordings; `reader.rs`
//! reads the content of each state from the bundle that has it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use jiff::{SignedDuration, Timestamp};

use super::blobs::Side;
use super::change::PathEffect;
use super::compare::{LinkedFile, content_id, state};
use super::digest::digest_file;
use super::live;
use super::manifest::{FileRecord, FileType, GitStatus, Operation, Present, State};
use super::reader::{Snapshot, part_key};
use super::source::{ContentSource, locate};
use crate::fs::{CLOCK_STEP, COARSE_STEP, lstat_beneath_directories, modification_time, open_regular};

/// What was at a path at a time.
#[derive(Debug)]
pub struct Version {
    /// Its before-state is what is there now, its after-state what was there then; its blob names the bundle that has
    /// the content.
    pub record: FileRecord,
    /// What is not certain of it.
    pub doubt: Option<Doubt>,
    /// Whether the content of a file was found.
    pub has_content: bool,
}

/// Why it is not certain what was at a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// A recording was changing it.
    #[error("{0} was changing it at that time; this is what it found")]
    During(String),
    /// Something else changed it.
    #[error(
        "between {} and {} it was changed by something that is not in the library, or is not visible here; this is what \
         was there before",
        shown(*.0),
        shown(*.1)
    )]
    Between(Timestamp, Timestamp),
    /// Nothing had observed it yet.
    #[error("it was written at {}, before anything recorded it; what was there until then is not known", shown(*.0))]
    Unknown(Timestamp),
    /// Nothing was there when it was first observed.
    #[error("nothing was there at {}, when it was first recorded; what was there until then is not known", shown(*.0))]
    NotYetSeen(Timestamp),
}

impl Doubt {
    /// Whether nothing is known of the path at that time.
    pub fn is_ignorance(&self) -> bool {
        matches!(self, Doubt::Unknown(_) | Doubt::NotYetSeen(_))
    }
}

/// What one bundle, or the filesystem now, says of a path at a moment.
#[derive(Debug, Clone, Copy)]
struct Observation<'s> {
    at: Timestamp,
    /// The number of the bundle; none for the filesystem.
    part: Option<usize>,
    record: &'s FileRecord,
    side: Side,
    /// Not later than this it was removed, if nothing is there now.
    removed: Option<Timestamp>,
}

impl<'s> Observation<'s> {
    fn present(&self) -> Option<&'s Present> {
        state(self.record, self.side).present()
    }

    fn file(&self) -> Option<&'s Present> {
        self.present().filter(|at| at.file_type == FileType::File)
    }

    /// Whether both are of the same content, as far as is known.
    fn has_content_of(&self, other: &Observation) -> bool {
        let (Some(one), Some(another)) = (self.file(), other.file()) else { return false };
        let ids = (content_id(self.record, self.side), content_id(other.record, other.side));
        let has_same_time = (one.mtime, one.mtime_nsec) == (another.mtime, another.mtime_nsec);
        one.size == another.size
            && match &ids {
                (Some(id), Some(other)) if id.is_comparable_with(other) => id == other,
                (Some(_), Some(_)) => has_same_time,
                // Another file may have the same time, as one of the same archive has.
                _ => has_same_time && one.identity() == another.identity(),
            }
    }

    /// Whether both are of the same state, as far as is known.
    fn is_same(&self, other: &Observation) -> bool {
        let node = |at: &Present| {
            let bits = (at.file_type != FileType::Symlink).then_some(at.mode & 0o7777);
            (at.file_type, bits, at.target.clone(), at.rdev)
        };
        self.present().map(node) == other.present().map(node)
            && (self.file().is_none() || self.has_content_of(other))
    }

    /// When it was written or removed, where that is told by a modification time.
    fn written(&self) -> Option<Timestamp> {
        if self.present().is_none() {
            return self.removed;
        }
        let at = self.present().filter(|at| at.file_type != FileType::Directory)?;
        modified(at)
    }
}

fn shown(time: Timestamp) -> impl std::fmt::Display {
    time.strftime("%Y-%m-%d %H:%M:%S UTC")
}

fn modified(at: &Present) -> Option<Timestamp> {
    Timestamp::new(at.mtime, i32::try_from(at.mtime_nsec).ok()?).ok()
}

/// The paths that the bundles have records of, without those that were written only through an inherited descriptor:
/// other processes may still write there.
pub fn paths(parts: &[Snapshot], is_wanted: impl Fn(&[u8]) -> bool) -> BTreeSet<Vec<u8>> {
    let records = parts.iter().flat_map(Snapshot::files);
    let known =
        records.filter(|record| is_wanted(&record.path) && tells(record) && !record.is_inherited_alone());
    known.map(|record| record.path.clone()).collect()
}

/// Whether both states of a record are known, and it is of a path that was changed.
fn tells(record: &FileRecord) -> bool {
    let is_known = |state: &State| *state != State::NotKept;
    is_known(&record.before)
        && is_known(&record.after)
        && (PathEffect::of(record) != PathEffect::None || has_other_link_count(record))
}

/// Whether a file only got or lost another name, under which it may be written to.
pub fn has_other_link_count(record: &FileRecord) -> bool {
    match (record.before.present(), record.after.present()) {
        (Some(before), Some(after)) => before.file_type == FileType::File && before.nlink != after.nlink,
        _ => false,
    }
}

/// The other names that the files at `paths` had in the bundles.
pub fn other_names(parts: &[Snapshot], paths: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    for part in parts {
        let inode = |state: &State| state.present().filter(|at| at.nlink > 1)?.file_identity();
        let inodes = |record: &FileRecord| [&record.before, &record.after].map(inode).into_iter().flatten();
        let own: BTreeSet<_> = paths.iter().filter_map(|path| part.find(path)).flat_map(inodes).collect();
        let is_one = |record: &&FileRecord| !own.is_empty() && inodes(record).any(|one| own.contains(&one));
        names.extend(part.files().iter().filter(is_one).map(|record| record.path.clone()));
    }
    names.retain(|name| !paths.contains(name));
    names
}

/// What was at each of `paths` of which the bundles tell, at `time`; also if they only tell of what is there now by other
/// names.
///
/// # Errors
/// What is there now can't be read.
pub fn versions(parts: &[Snapshot], paths: &BTreeSet<Vec<u8>>, time: Timestamp) -> io::Result<Vec<Version>> {
    let mut observed: BTreeMap<&[u8], Vec<Observation>> = BTreeMap::new();
    let mut linked: HashMap<LinkedFile, Vec<Observation>> = HashMap::new();
    for (number, part) in parts.iter().enumerate() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap_or(Timestamp::MIN);
        let (start, end) = (time(&part.header().started_at), time(&part.header().finished_at));
        for record in part.files().iter().filter(|record| tells(record)) {
            let (start, end) = record.changed_between(start, end);
            // Another process may have written it while the recording ran, before the command used it.
            let found = record.before.present().and_then(modified).unwrap_or(start);
            let before = found.clamp(start, end.max(start));
            for (at, side) in [(before, Side::Before), (end, Side::After)] {
                let one = Observation { at, part: Some(number), record, side, removed: None };
                if let Some(file) = one.present().and_then(LinkedFile::of) {
                    linked.entry(file).or_default().push(one);
                }
                if paths.contains(&record.path) {
                    observed.entry(&record.path).or_default().push(one);
                }
            }
        }
    }
    for path in paths {
        let live = || live::present(&lstat_beneath_directories(path).ok()?.ok()?, path).ok();
        let is_known = |at: Present| LinkedFile::of(&at).is_some_and(|file| linked.contains_key(&file));
        if !observed.contains_key(path.as_slice()) && live().is_some_and(is_known) {
            observed.insert(path, Vec::new());
        }
    }
    let version = |(path, recorded): (&[u8], Vec<Observation>)| {
        let (there, removed) = live_state(path)?;
        let live = FileRecord::new(path, there.clone(), there, Operation::Write.into());
        let now = Observation { at: Timestamp::now(), part: None, record: &live, side: Side::After, removed };
        let mut observations = [recorded, vec![now]].concat();
        // A stable sort: the two observations of a rescue have the same time.
        observations.sort_by_key(|one| one.at);
        forget_what_was_not_reached(&mut observations, parts);
        add_other_names(&mut observations, &linked, path);
        Ok(version(parts, &observations, &linked, &live, time))
    };
    observed.into_iter().map(version).collect()
}

/// Drops what a restore would have left at the path if it was killed before it came to that: the file that it found is
/// still there.
fn forget_what_was_not_reached(observations: &mut Vec<Observation>, parts: &[Snapshot]) {
    let file = |one: &Observation| {
        one.file().map(|file| (file.dev, file.ino, file.mtime, file.mtime_nsec, file.size))
    };
    let is_rescue = |part: usize| !parts[part].header().kind.is_recording();
    for number in (1..observations.len().saturating_sub(1)).rev() {
        let [found, left, next] = [number - 1, number, number + 1].map(|number| observations[number]);
        let is_restore = found.part == left.part && left.part.is_some_and(is_rescue);
        let is_still_there = found.is_same(&next) && file(&found).is_some() && file(&found) == file(&next);
        if is_restore && is_still_there && !left.is_same(&found) {
            observations.remove(number);
        }
    }
}

/// Adds what was observed of the file under other names: a write through one of them is recorded under that one alone.
fn add_other_names<'s>(
    observations: &mut Vec<Observation<'s>>,
    linked: &HashMap<LinkedFile, Vec<Observation<'s>>>,
    path: &[u8],
) {
    let mut added = Vec::new();
    for (number, one) in observations.iter().enumerate() {
        // It became what was found there after the previous observation.
        if one.part.is_some() && one.side == Side::After {
            continue;
        }
        let oldest = number.checked_sub(1).map_or(Timestamp::MIN, |before| observations[before].at);
        let (mut file, mut newest) = (one.file().and_then(LinkedFile::of), one.at);
        while let Some(found) = file {
            let writes = |other: &Option<(Observation<'s>, Observation<'s>)>| {
                other
                    .is_some_and(|(found, left)| found.at >= oldest && left.at <= newest && found.at < newest)
            };
            let others = linked.get(&found).into_iter().flatten().filter(|other| other.record.path != path);
            let Some((found, left)) =
                others.map(|other| before_write(other, linked)).filter(writes).flatten().next()
            else {
                break;
            };
            (file, newest) = (found.file().and_then(LinkedFile::of), found.at);
            added.extend([left, found]);
        }
    }
    added.reverse();
    observations.extend(added);
    observations.sort_by_key(|one| one.at);
}

/// The two observations of a record, if it is of a file that was written in place and `left` is the second one.
fn before_write<'s>(
    left: &Observation<'s>,
    linked: &HashMap<LinkedFile, Vec<Observation<'s>>>,
) -> Option<(Observation<'s>, Observation<'s>)> {
    let before = left.record.before.present().filter(|_| left.side == Side::After && left.part.is_some())?;
    let is_same = left.file().is_some_and(|after| after.identity() == before.identity());
    let candidates = LinkedFile::of(before).filter(|_| is_same).and_then(|file| linked.get(&file))?;
    let is_one = |one: &&Observation| one.part == left.part && std::ptr::eq(one.record, left.record);
    let found = candidates.iter().filter(is_one).find(|one| one.side == Side::Before)?;
    Some((*found, *left))
}

/// The snapshot that has these versions as its after-states, and what is there now as its before-states.
pub fn compose(parts: Vec<Snapshot>, versions: Vec<Version>) -> Option<Snapshot> {
    let newest = parts
        .iter()
        .max_by_key(|part| (part.header().kind.is_recording(), part.header().started_at.clone()))?;
    let path = newest.path().to_owned();
    let mut header = newest.header().clone();
    header.suppressed = Vec::new();
    header.private_mounts = Vec::new();
    header.unseen = Vec::new();
    let files = versions.into_iter().map(|version| version.record).collect();
    Some(Snapshot::of_parts(path, header, files, parts))
}

fn version(
    parts: &[Snapshot],
    observations: &[Observation],
    linked: &HashMap<LinkedFile, Vec<Observation>>,
    live: &FileRecord,
    time: Timestamp,
) -> Version {
    let (chosen, doubt) = choose(parts, observations, time);
    let mut after = state(chosen.record, chosen.side).clone();
    let mut record = FileRecord {
        is_git_state: observations.iter().any(|one| one.record.is_git_state),
        before: live.before.clone(),
        ..FileRecord::new(&live.path, live.before.clone(), State::NotKept, Operation::Write.into())
    };
    let mut has_content = true;
    if let (Some(file), State::Present(after)) = (chosen.file(), &mut after) {
        let others = LinkedFile::of(file).and_then(|file| linked.get(&file)).into_iter().flatten();
        let candidates = observations.iter().chain(others).filter(|one| one.has_content_of(chosen));
        let found = candidates.filter_map(|one| Some((one, rank(one)?))).min_by_key(|(_, rank)| *rank);
        has_content = found.is_some() || file.size == 0;
        after.blob = None;
        if let Some((one, _)) = found {
            let there = one.file().and_then(|at| at.digest).or(after.digest);
            after.digest = there;
            after.blob_omitted = None;
            match (locate(one.record, one.side), one.part) {
                (Ok(ContentSource::Blob { key, digest }), Some(part)) => {
                    after.blob = Some(part_key(part, key));
                    after.digest = digest.copied().or(after.digest);
                }
                (Ok(ContentSource::Git { oid, .. }), _) => {
                    let git = one.record.git_after.as_ref().or(one.record.git.as_ref()).cloned();
                    let oid = Some(oid.to_owned());
                    record.git_after = git.map(|git| GitStatus { oid, ..git });
                }
                _ => {}
            }
        }
    }
    if let State::Absent { tombstone } = &mut after {
        *tombstone = true;
    }
    record.after = after;
    Version { record, doubt, has_content }
}

/// Where the content of an observation is, the best source first; none if it is unavailable.
fn rank(one: &Observation) -> Option<u8> {
    match (locate(one.record, one.side).ok()?, one.part) {
        (ContentSource::Blob { .. }, _) => Some(0),
        (ContentSource::Empty | ContentSource::Target(_), _) => Some(1),
        (ContentSource::Live { .. }, None) => Some(2),
        (ContentSource::Git { .. }, _) => Some(3),
        // Of another moment than now.
        (ContentSource::Live { .. }, Some(_)) => None,
    }
}

/// The observation of what was there at `time`, of all of a path in order, and what is not certain of it.
fn choose<'o, 's>(
    parts: &[Snapshot],
    observations: &'o [Observation<'s>],
    time: Timestamp,
) -> (&'o Observation<'s>, Option<Doubt>) {
    let next = observations.partition_point(|one| one.at <= time);
    let (earlier, later) = (next.checked_sub(1).map(|last| &observations[last]), observations.get(next));
    match (earlier, later) {
        (Some(earlier), None) => (earlier, None),
        (Some(earlier), Some(later)) if earlier.is_same(later) => {
            let doubt = is_replaced(earlier, later, parts).then_some(Doubt::Between(earlier.at, later.at));
            (earlier, doubt)
        }
        (Some(earlier), Some(later)) => {
            let written = later.written().filter(|written| *written >= earlier.at - clock_step(later));
            if written.is_some_and(|written| written <= time) {
                return (later, None);
            }
            let doubt = match (earlier.part, later.part) {
                (Some(one), Some(other)) if one == other => {
                    let id = &parts[one].header().id;
                    Doubt::During(id.chars().take(SHOWN_ID).collect())
                }
                _ => Doubt::Between(earlier.at, later.at),
            };
            (earlier, Some(doubt))
        }
        (None, Some(later)) if later.present().is_none() => (later, Some(Doubt::NotYetSeen(later.at))),
        (None, Some(later)) => {
            let unknown = later.written().filter(|written| *written > time);
            (later, unknown.map(Doubt::Unknown))
        }
        (None, None) => unreachable!("what is there now is an observation"),
    }
}

/// Whether another file with the same content is in the place of the one that a recording left: there may have been
/// others in between. A rescue does not know the inode that its restore makes.
fn is_replaced(earlier: &Observation, later: &Observation, parts: &[Snapshot]) -> bool {
    let is_recorded = earlier.part.is_some_and(|part| parts[part].header().kind.is_recording());
    let inode = |one: &Observation| one.file().map(|file| file.ino);
    later.part.is_none() && is_recorded && inode(earlier) != inode(later)
}

/// How many characters of an identifier name a snapshot.
const SHOWN_ID: usize = 8;

/// How far the time of a write may lie behind the clock.
fn clock_step(one: &Observation) -> SignedDuration {
    let is_coarse = one.present().is_some_and(|at| at.mtime_nsec == 0);
    SignedDuration::from_nanos(if is_coarse { COARSE_STEP } else { CLOCK_STEP })
}

/// What is at a path now, with the digest of a file; if nothing is there, until when it was removed.
fn live_state(path: &[u8]) -> io::Result<(State, Option<Timestamp>)> {
    let stat = match lstat_beneath_directories(path)? {
        Ok(stat) => stat,
        Err(above) => return Ok((State::Absent { tombstone: false }, modification_time(&above))),
    };
    let mut present = live::present(&stat, path)?;
    present.xattrs = live::xattrs(path).unwrap_or_else(|some| some.readable);
    present.inode_flags = live::inode_flags(path).unwrap_or_default();
    if present.file_type == FileType::File {
        match open_regular(path).and_then(|file| digest_file(&file)) {
            Ok((digest, size)) => (present.digest, present.size) = (Some(digest), size),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok((State::Present(Box::new(present)), None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Header;
    use crate::snapshot::SnapshotKind;
    use crate::snapshot::layout::SnapshotDir;
    use crate::snapshot::samples::{commit_into, header, present};

    #[test]
    fn what_a_killed_restore_had_no_time_for_has_not_happened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "new").unwrap();
        let path = path.into_os_string().into_encoded_bytes();
        let (new, _) = live_state(&path).unwrap();
        let old = State::Present(Box::new(present(7)));
        let part = |kind, started_at: &str, [before, after]: [&State; 2]| {
            let dir = tempfile::tempdir().unwrap();
            let started_at = started_at.to_owned();
            let header = Header { kind, finished_at: started_at.clone(), started_at, ..header() };
            let record = FileRecord::new(&path, before.clone(), after.clone(), Operation::Write.into());
            commit_into(SnapshotDir::create(dir.path()).unwrap(), header, |_| vec![record]);
            Snapshot::open(dir.path()).unwrap()
        };
        let parts = [
            part(SnapshotKind::Recording, "2026-01-02T03:04:05Z", [&old, &new]),
            part(SnapshotKind::Rescue, "2026-01-02T03:05:05Z", [&new, &old]),
        ];
        let time = "2026-01-02T03:06:05Z".parse().unwrap();
        let found = versions(&parts, &BTreeSet::from([path.clone()]), time).unwrap();
        assert_eq!((&found[0].doubt, found[0].record.after.present().unwrap().size), (&None, 3));
    }
}
