//! The net effect of several recordings, as if they were one.
//!
//! For each path the before-state of the oldest recording that changed it and the after-state of the newest one. In
//! between, each must have found what the one before it had left: where it did not, somebody else has changed the
//! path, and the chain is broken. Neighbour: `reader.rs`, which reads the content of each state from the bundle that
//! has it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::blobs::Side;
use super::change::PathEffect;
use super::compare::{
    ContentId, Entries, LinkedFile, are_known_to_differ, content_id, content_is_untouched,
    differing_attributes, recorded, state, take_over,
};
use super::error::Error;
use super::manifest::{FileRecord, FileType, GitStatus, Operations, Present, State};
use super::reader::{Snapshot, part_key, split_part_key};
use super::source::{ContentSource, locate};
use crate::git::{GitFile, in_objects_directory, same_index};

/// Several recordings as one.
#[derive(Debug)]
pub struct Net {
    /// The one that stands for all.
    pub snapshot: Snapshot,
    /// The paths that somebody else changed between two of them.
    pub breaks: Vec<ChainBreak>,
    /// Names that are undone together: what each of them has renamed, from and to, also by way of names that are gone, and
    /// the hard links of a file that was written to.
    pub tied: Vec<[Vec<u8>; 2]>,
}

/// A path that was not as one recording had left it when the next one of those that changed it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainBreak {
    /// The path.
    pub path: Vec<u8>,
    /// The number of the recording before the break, of those that the effect is of.
    pub older: usize,
    /// The number of the one after it.
    pub newer: usize,
}

/// What recordings, the oldest first, have done together; one is taken as it is.
///
/// # Errors
/// No recording was given.
pub fn net(mut parts: Vec<Snapshot>) -> Result<Net, Error> {
    let none = || Error::Format("no snapshot was named".to_owned());
    let mut tied: Vec<_> = parts.iter().flat_map(|part| part.files().iter().flat_map(renames)).collect();
    if parts.len() < 2 {
        let snapshot = parts.pop().ok_or_else(none)?;
        tied.extend(written_hard_links(snapshot.files()));
        return Ok(Net { snapshot, breaks: Vec::new(), tied });
    }
    let mut chains = Chains::default();
    let records: Vec<_> = parts.iter_mut().map(|part| std::mem::take(&mut part.files)).collect();
    parts.iter_mut().for_each(|part| part.inputs = Vec::new());
    let mut timed = Vec::new();
    for (number, records) in records.into_iter().enumerate() {
        chains.add_timed(&mut timed, started_us(&parts[number]), &parts);
        let records = records.into_iter().map(|record| self_contained(record, number));
        let (in_time, records): (Vec<_>, Vec<_>) =
            records.partition(|record| record.changed_between_us.is_some());
        let paths = || in_time.iter().chain(&records).map(|record| record.path.clone()).collect();
        let paths: Arc<HashSet<Vec<u8>>> =
            Arc::new(if in_time.is_empty() { HashSet::new() } else { paths() });
        timed.extend(in_time.into_iter().map(|record| Timed { record, number, paths: Arc::clone(&paths) }));
        chains.add(number, records, &paths, &parts);
    }
    chains.add_timed(&mut timed, u64::MAX, &parts);
    chains.share_last_contents();
    let (oldest, newest) = (parts.first().ok_or_else(none)?, parts.last().ok_or_else(none)?);
    let mut header = newest.header().clone();
    header.started_at.clone_from(&oldest.header().started_at);
    header.private_mounts = parts.iter().flat_map(|part| part.header().private_mounts.clone()).collect();
    header.unseen = parts.iter().flat_map(|part| part.header().unseen.clone()).collect();
    header.suppressed = parts.iter().flat_map(|part| part.header().suppressed.clone()).collect();
    header.complete = parts.iter().all(|part| part.header().complete);
    let path = newest.path().to_owned();
    let mut files: Vec<FileRecord> = chains.links.into_values().map(|link| link.record).collect();
    forget_objects_of_new_repositories(&mut files);
    tied.extend(written_hard_links(&files));
    Ok(Net { snapshot: Snapshot::of_parts(path, header, files, parts), breaks: chains.breaks, tied })
}

/// What a record says that was renamed, from and to.
pub fn renames(record: &FileRecord) -> impl Iterator<Item = [Vec<u8>; 2]> {
    let from = record.renamed_from.iter().map(|from| [from.clone(), record.path.clone()]);
    from.chain(record.renamed_to.iter().map(|to| [record.path.clone(), to.clone()]))
}

/// The names that a file had before it was written to, in pairs.
fn written_hard_links(files: &[FileRecord]) -> Vec<[Vec<u8>; 2]> {
    let mut names: HashMap<LinkedFile, Vec<&FileRecord>> = HashMap::new();
    for record in files.iter().filter(|record| PathEffect::of(record).is_undone()) {
        if let Some(file) = record.before.present().and_then(LinkedFile::of) {
            names.entry(file).or_default().push(record);
        }
    }
    let is_written = |record: &&FileRecord| is_same_inode(&record.before, &record.after);
    let written = names.values().filter(|records| records.iter().any(is_written));
    written
        .flat_map(|records| records.windows(2).map(|pair| [pair[0].path.clone(), pair[1].path.clone()]))
        .collect()
}

/// Makes absent before what a later recording found among the objects of a repository that an earlier one had made: no
/// recording has what was added to them in between.
fn forget_objects_of_new_repositories(files: &mut [FileRecord]) {
    let is_absent = |record: &FileRecord| record.before.present().is_none();
    let made: HashSet<Vec<u8>> = files
        .iter()
        .filter(|record| record.is_git_state && is_absent(record))
        .filter(|record| in_objects_directory(&record.path).is_some_and(|(_, below)| below.is_empty()))
        .map(|record| record.path.clone())
        .collect();
    for record in files.iter_mut().filter(|record| record.is_git_state && !is_absent(record)) {
        if in_objects_directory(&record.path).is_some_and(|(directory, _)| made.contains(directory)) {
            record.before = State::Absent { tombstone: false };
        }
    }
}

/// A record that says when its path was changed.
struct Timed {
    record: FileRecord,
    /// The number of its recording.
    number: usize,
    /// All paths of that.
    paths: Arc<HashSet<Vec<u8>>>,
}

/// When a recording began, in microseconds since 1970.
fn started_us(part: &Snapshot) -> u64 {
    let started = part.header().started_at.parse::<jiff::Timestamp>();
    started.map_or(0, |at| u64::try_from(at.as_microsecond()).unwrap_or_default())
}

#[derive(Debug, Default)]
struct Chains {
    links: BTreeMap<Vec<u8>, Link>,
    breaks: Vec<ChainBreak>,
    /// The first state of each file that was changed in place, by its last one.
    first_states: HashMap<LinkedFile, (State, Option<GitStatus>)>,
}

/// What is known of a path so far.
#[derive(Debug)]
struct Link {
    record: FileRecord,
    /// Whether one of the recordings so far has changed it.
    is_changed: bool,
    /// Whether none of them has read or changed its content.
    leaves_content: bool,
    /// The newest one that has changed it.
    newest: usize,
    /// When the last after-state was taken, if its record says so.
    until: Option<u64>,
    /// The record as it was before changes by other names of the file: the path may have lost it before these.
    before_others: Option<Box<FileRecord>>,
}

impl Chains {
    /// Adds the records of what was changed before a time, in the order of the changes.
    fn add_timed(&mut self, timed: &mut Vec<Timed>, before: u64, parts: &[Snapshot]) {
        let first = |one: &Timed| one.record.changed_between_us.unwrap_or_default().0;
        timed.sort_by_key(first);
        let count = timed.partition_point(|one| first(one) < before);
        for Timed { record, number, paths } in timed.drain(..count) {
            self.add(number, vec![record], &paths, parts);
        }
    }

    fn add(
        &mut self,
        number: usize,
        mut records: Vec<FileRecord>,
        paths: &HashSet<Vec<u8>>,
        parts: &[Snapshot],
    ) {
        self.share_between_hard_links(number, &mut records, paths);
        for record in records {
            // What the shell that started the command had redirected is not the command's change. A file that the command
            // made and removed while other steps ran may have been changed by them in between.
            let is_changed = (PathEffect::of(&record).is_undone() || record.changed_between_us.is_some())
                && !record.is_inherited_alone();
            let until = record.changed_between_us.map(|(_, last)| last);
            match self.links.get_mut(&record.path) {
                // In between, something else may have been there than one of them has found and left.
                Some(link) if link.is_changed && is_changed || link.overlaps(&record) => {
                    let overlaps = link.overlaps(&record);
                    if overlaps && until < link.until {
                        // What the link has so far includes this change and a later one.
                        continue;
                    }
                    if !overlaps
                        && !link.is_continued_by(&record)
                        && !is_same_to_git(&link.record, &record, parts)
                    {
                        let path = record.path.clone();
                        self.breaks.push(ChainBreak { path, older: link.newest, newer: number });
                    }
                    if !overlaps {
                        link.leave_attributes_of_others(&record);
                    }
                    link.append(record);
                    (link.is_changed, link.newest, link.until) = (true, number, until);
                    link.before_others = None;
                }
                Some(link) if link.is_changed => {}
                _ => {
                    let leaves_content = leaves_content(&record);
                    let path = record.path.clone();
                    let before_others = None;
                    let link =
                        Link { record, is_changed, leaves_content, newest: number, until, before_others };
                    self.links.insert(path, link);
                }
            }
        }
    }

    /// A file that a recording changed under one of its names has changed under those, too, that other recordings
    /// know it by.
    fn share_between_hard_links(
        &mut self,
        number: usize,
        records: &mut [FileRecord],
        others: &HashSet<Vec<u8>>,
    ) {
        let has_other_names =
            |record: &FileRecord| record.before.present().and_then(LinkedFile::of).is_some();
        if !records.iter().any(has_other_names) {
            return;
        }
        let mut known: HashMap<_, Vec<Vec<u8>>> = HashMap::new();
        for (path, link) in &self.links {
            // It may have had a single name then.
            if let Some(file) = link.record.after.present().and_then(LinkedFile::of_any) {
                known.entry(file.inode()).or_default().push(path.clone());
            }
        }
        let paths: HashSet<Vec<u8>> = records.iter().map(|record| record.path.clone()).collect();
        for record in records {
            let Some(file) = record.before.present().and_then(LinkedFile::of) else { continue };
            let is_new = !self.links.contains_key(&record.path);
            let changes_the_file =
                PathEffect::of(record) != PathEffect::None && is_same_inode(&record.before, &record.after);
            let mut earlier = None;
            for other in known.get(&file.inode()).into_iter().flatten() {
                let Some(link) = self.links.get_mut(other) else { continue };
                let (left, found) = (content_id(&link.record, Side::After), content_id(record, Side::Before));
                // A recording that is none of these may have set its times.
                let is_as_left = || link.record.after.present().and_then(LinkedFile::of_any) == Some(file);
                let is_same_content = || left.is_some() && left == found;
                // Another file that got the inode number later.
                if are_known_to_differ(&left, &found) || !is_as_left() && !is_same_content() {
                    continue;
                }
                if changes_the_file && !paths.contains(other) && !others.contains(other) {
                    if link.before_others.is_none() {
                        link.before_others = Some(Box::new(link.record.clone()));
                    }
                    link.append(record.clone());
                    (link.is_changed, link.newest) = (true, number);
                }
                if is_new && is_same_inode(&link.record.before, &record.before) {
                    earlier = Some((link.record.before.clone(), link.record.git.clone()));
                }
            }
            let first = self.first_states.get(&file).cloned();
            let left = record.after.present().filter(|_| is_same_inode(&record.before, &record.after));
            if let Some(left) = left.and_then(LinkedFile::of_any).filter(|left| *left != file) {
                let found = || (record.before.clone(), record.git.clone());
                self.first_states.insert(left, first.clone().unwrap_or_else(found));
            }
            if let Some(earlier) = earlier.or(first.filter(|_| is_new)) {
                (record.before, record.git) = earlier;
            }
        }
    }

    /// Gives all names that a file has in the end its last content.
    fn share_last_contents(&mut self) {
        let mut files: HashMap<_, Vec<_>> = HashMap::new();
        for (path, link) in &self.links {
            let file = link.record.after.present().and_then(LinkedFile::of);
            if let (Some(file), Some(until)) = (file, link.until) {
                files.entry(file.inode()).or_default().push((until, path.clone()));
            }
        }
        for mut names in files.into_values() {
            names.sort();
            let Some((_, last)) = names.pop() else { continue };
            let Some(newest) = self.links.get(&last).map(|link| link.record.clone()) else { continue };
            let Some(left) = newest.after.present() else { continue };
            for (_, name) in names {
                let Some(Link { record, .. }) = self.links.get_mut(&name) else { continue };
                let [one, other] = [&*record, &newest].map(|record| content_id(record, Side::After));
                if let (true, State::Present(after)) = (are_known_to_differ(&one, &other), &mut record.after)
                {
                    copy_content(after, left);
                    record.git_after.clone_from(&newest.git_after);
                }
            }
        }
    }
}

impl Link {
    /// Whether `later` has changed the path before the last after-state of this link was taken.
    fn overlaps(&self, later: &FileRecord) -> bool {
        later.changed_between_us.zip(self.until).is_some_and(|((first, _), until)| first < until)
    }

    /// Whether `later` found what the recordings so far had left.
    ///
    /// A recording that never read the content, and left it alone, can't tell: then the one after it does.
    fn is_continued_by(&self, later: &FileRecord) -> bool {
        let size = |state: &State| state.present().map(|at| at.size);
        if self.leaves_content {
            return is_same_node(&self.record.after, &later.before);
        }
        if leaves_content(later) && size(&self.record.after) == size(&later.before) {
            return is_same_node(&self.record.after, &later.before);
        }
        // What was back at its first state meanwhile is not lost there.
        is_same_state(&self.record, Side::After, later)
            || is_same_state(&self.record, Side::Before, later)
            || self.before_others.as_ref().is_some_and(|own| is_same_state(own, Side::After, later))
    }

    /// Takes over the attributes that somebody else has changed before `later` found them: if one were undone after the
    /// other, the earlier one would leave them as they are.
    fn leave_attributes_of_others(&mut self, later: &FileRecord) {
        // They are recorded only of paths that the command changes.
        let are_recorded = |record: &FileRecord| record.operations.intersects(Operations::CHANGES);
        if !are_recorded(&self.record) || !are_recorded(later) {
            return;
        }
        let (State::Present(before), Some(left), Some(found)) =
            (&mut self.record.before, self.record.after.present(), later.before.present())
        else {
            return;
        };
        take_over(before, found, differing_attributes(left, found));
    }

    /// Adds what a later recording did.
    fn append(&mut self, mut later: FileRecord) {
        let record = &mut self.record;
        match (self.leaves_content, leaves_content(&later)) {
            (true, false) => {
                if let (State::Present(before), Some(found)) = (&mut record.before, later.before.present()) {
                    copy_content(before, found);
                    record.git.clone_from(&later.git);
                }
                self.leaves_content = false;
            }
            (false, true) => {
                if let (State::Present(after), Some(left)) = (&mut later.after, record.after.present()) {
                    copy_content(after, left);
                    later.git_after.clone_from(&record.git_after);
                }
            }
            _ => {}
        }
        // A recording may have only the digest of bytes that it left alone, and a later one the bytes.
        if let (State::Present(before), Some(found)) = (&mut record.before, later.before.present())
            && (before.blob.is_none() && found.blob.is_some())
            && (before.digest.is_some() && before.digest == found.digest)
        {
            copy_content(before, found);
        }
        record.operations = record.operations.union(later.operations);
        record.inherited &= later.inherited;
        record.changed_by_name |= later.changed_by_name;
        // A process or another name means nothing in another recording.
        (record.renamed_from, record.renamed_to, record.process_count) = (None, None, None);
        record.linked_from.clear();
        record.processes.clear();
        record.uses.clear();
        (record.after, record.git_after) = (later.after, later.git_after);
        record.mount_point = later.mount_point;
    }
}

/// Whether `later` found what says the same to Git as what `older` had left: a prompt refreshes an index, and objects
/// are packed.
fn is_same_to_git(older: &FileRecord, later: &FileRecord, parts: &[Snapshot]) -> bool {
    if !older.is_git_state {
        return false;
    }
    match GitFile::of(&older.path) {
        GitFile::LooseObject | GitFile::Pack => true,
        GitFile::Index => {
            let index = |state: &State| {
                let at = state.present()?;
                let (part, key) = split_part_key(at.blob.as_deref()?)?;
                let mut bytes = Vec::new();
                parts.get(part)?.read_blob(key, at.digest.as_ref(), &mut &mut bytes).ok()?;
                Some(bytes)
            };
            let (left, found) = (index(&older.after), index(&later.before));
            left.zip(found).is_some_and(|(left, found)| same_index(&left, &found))
        }
        _ => false,
    }
}

/// Whether a recording has left the content of a file alone, and does not know it.
fn leaves_content(record: &FileRecord) -> bool {
    let is_file = record.before.present().is_some_and(|before| before.file_type == FileType::File);
    let is_known = |side| content_id(record, side).is_some();
    is_file && content_is_untouched(record) && !is_known(Side::Before) && !is_known(Side::After)
}

/// Whether both are the same but for the content of a file.
fn is_same_node(one: &State, other: &State) -> bool {
    let node = |at: &Present| (at.file_type, at.mode, at.target.clone(), at.rdev);
    one.present().map(node) == other.present().map(node)
}

/// Makes the content of `to` that of `from`.
fn copy_content(to: &mut Present, from: &Present) {
    (to.size, to.digest) = (from.size, from.digest);
    to.blob.clone_from(&from.blob);
    to.blob_omitted = from.blob_omitted;
}

fn is_same_inode(one: &State, other: &State) -> bool {
    let inode = |state: &State| state.present().map(|at| (at.file_type, at.dev, at.ino));
    inode(one).is_some() && inode(one) == inode(other)
}

/// The record with states that tell where their contents are without the other one, and in which bundle.
fn self_contained(mut record: FileRecord, part: usize) -> FileRecord {
    let mut blob = None;
    let mut git = record.git_after.clone().or_else(|| record.git.clone());
    let oid = match locate(&record, Side::After) {
        Ok(ContentSource::Git { oid, .. }) => Some(oid.to_owned()),
        Ok(ContentSource::Blob { key, .. }) => {
            blob = Some(part_key(part, key));
            None
        }
        _ => None,
    };
    git.iter_mut().for_each(|git| git.oid.clone_from(&oid));
    let digest = content_id(&record, Side::After);
    record.git_after = git;
    if let State::Present(present) = &mut record.after {
        if let Some(ContentId::Digest(digest)) = digest {
            present.digest = Some(digest);
        }
        present.blob = blob;
    }
    if let State::Present(present) = &mut record.before {
        present.blob = present.blob.as_deref().map(|key| part_key(part, key));
    }
    record
}

/// Whether `newer` found the state that `older` has on `side`.
fn is_same_state(older: &FileRecord, side: Side, newer: &FileRecord) -> bool {
    let (Some(left), Some(found)) = (state(older, side).present(), newer.before.present()) else {
        return state(older, side).present().is_none() == newer.before.present().is_none();
    };
    let ids = (content_id(older, side), content_id(newer, Side::Before));
    let is_comparable = matches!(&ids, (Some(left), Some(found)) if left.is_comparable_with(found));
    if left.file_type == FileType::File && found.file_type == FileType::File && !is_comparable {
        // Not the inode: an undo may have made the file again.
        let file = |at: &Present| (at.size, at.mtime, at.mtime_nsec, at.mode);
        return file(left) == file(found);
    }
    recorded(older, side, Entries::Ignore) == recorded(newer, Side::Before, Entries::Ignore)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::blobs::blob_key;
    use crate::snapshot::samples::{commit, git, stored};
    use crate::snapshot::source::Contents;
    use crate::snapshot::{FileRecord, Operation};

    /// A recording that found `/f` with one content and left it with another.
    fn recording(before: &str, after: &str) -> Snapshot {
        let directory = tempfile::tempdir().unwrap();
        commit(directory.path(), |writer| {
            let mut state = |side, text: &str| {
                if text.is_empty() {
                    return State::Absent { tombstone: side == Side::After };
                }
                let key = blob_key(side, b"/f");
                stored(&writer.store_bytes(&key, text.as_bytes()).unwrap())
            };
            let (before, after) = (state(Side::Before, before), state(Side::After, after));
            vec![FileRecord::new(b"/f", before, after, Operation::Write.into())]
        });
        Snapshot::open(directory.path()).unwrap()
    }

    fn breaks(recordings: &[(&str, &str)]) -> Vec<(usize, usize)> {
        let net = net(recordings.iter().map(|(before, after)| recording(before, after)).collect()).unwrap();
        net.breaks.iter().map(|one| (one.older, one.newer)).collect()
    }

    #[test]
    fn each_content_is_read_from_the_recording_that_has_it() {
        let parts = vec![recording("one", "two"), recording("two", ""), recording("", "four")];
        let Net { snapshot, breaks, .. } = net(parts).unwrap();
        assert_eq!(breaks, []);
        let [record] = snapshot.files() else { panic!("{:?}", snapshot.files()) };
        let contents = Contents::new(&snapshot);
        let text = |side| {
            let mut bytes = Vec::new();
            contents.copy(record, side, &mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!([text(Side::Before), text(Side::After)], ["one", "four"]);
    }

    #[test]
    fn what_somebody_else_changed_in_between_breaks_the_chain() {
        assert_eq!(breaks(&[("1", "2"), ("2", "3"), ("3", "4")]), []);
        assert_eq!(breaks(&[("1", "2"), ("x", "3"), ("3", "4")]), [(0, 1)]);
        assert_eq!(breaks(&[("1", "2"), ("2", ""), ("x", "4")]), [(1, 2)]);
        assert_eq!(breaks(&[("1", "2"), ("", "3")]), [(0, 1)]);
        // Nothing is lost by going back to where it was meanwhile.
        assert_eq!(breaks(&[("1", "2"), ("1", "3")]), []);
    }

    #[test]
    fn an_index_with_the_same_entries_breaks_no_chain() {
        let repository = tempfile::tempdir().unwrap();
        let index = |commands: &[&[&str]]| {
            commands.iter().for_each(|command| drop(git(repository.path(), command)));
            std::fs::read(repository.path().join(".git/index")).unwrap()
        };
        std::fs::write(repository.path().join("f"), "one").unwrap();
        let one = index(&[&["init", "-q"], &["add", "f"]]);
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        std::fs::File::open(repository.path().join("f")).unwrap().set_modified(time).unwrap();
        let refreshed = index(&[&["update-index", "--refresh"]]);
        let other = index(&[&["rm", "-q", "--cached", "f"]]);
        assert_ne!(one, refreshed);
        let breaks = |found: &[u8]| {
            let parts = [[&other[..], &one[..]], [found, &other[..]]].map(|[before, after]| {
                let directory = tempfile::tempdir().unwrap();
                commit(directory.path(), |writer| {
                    let mut state = |side, bytes: &[u8]| {
                        stored(&writer.store_bytes(&blob_key(side, b"/r/.git/index"), bytes).unwrap())
                    };
                    let (before, after) = (state(Side::Before, before), state(Side::After, after));
                    let record = FileRecord::new(b"/r/.git/index", before, after, Operation::Write.into());
                    vec![FileRecord { is_git_state: true, ..record }]
                });
                Snapshot::open(directory.path()).unwrap()
            });
            net(parts.into()).unwrap().breaks.len()
        };
        assert_eq!([breaks(&one), breaks(&refreshed), breaks(b"something else")], [0, 0, 1]);
    }

    #[test]
    fn objects_found_in_a_repository_that_was_made_before_were_not_there() {
        let absent = || State::Absent { tombstone: false };
        let there = || State::Present(Box::new(crate::snapshot::samples::directory()));
        let record = |path: &[u8], before, after| FileRecord {
            is_git_state: true,
            ..FileRecord::new(path, before, after, Operation::Write.into())
        };
        let mut files = vec![
            record(b"/r/.git/objects", absent(), there()),
            record(b"/r/.git/objects/ab", there(), absent()),
            record(b"/s/.git/objects/ab", there(), absent()),
        ];
        forget_objects_of_new_repositories(&mut files);
        let before: Vec<_> = files.iter().map(|record| record.before.present().is_some()).collect();
        assert_eq!(before, [false, false, true]);
    }

    #[test]
    fn one_recording_is_taken_as_it_is_and_none_is_an_error() {
        assert_eq!(net(vec![recording("1", "2")]).unwrap().snapshot.parts().len(), 1);
        assert!(net(Vec::new()).is_err());
    }
}
