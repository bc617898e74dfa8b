//! The recordings of a library in the order of their time, and what is undone of them: which can be undone, which belong to those
//! that are undone, and which have changed the same since.
//!
//! Prints nothing: `commands::undo` chooses among them, and says what is in the way.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};

use super::index::{IndexedPath, PathIndex};
use super::linked::ChangedFiles;
use super::log::{EntryState, is_at_or_below};
use super::scope::changes_any;
use super::touched::ChangedPaths;
use super::undone::{Undone, UndoneRecordings};
use super::{Entry, Error, Library};
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::{changed_attributes, differing_attributes, has_two_states};
use crate::snapshot::net::ChainBreak;
use crate::snapshot::{FileRecord, Snapshot};

/// Paths, and for each the recording that is in the way.
pub type ChangedBy<'r> = BTreeMap<Vec<u8>, &'r Entry>;

/// The recordings of a library, and which of them are undone.
pub struct Recordings {
    /// Where they are.
    pub library: Library,
    /// The oldest first.
    pub entries: Vec<Entry>,
    /// What is undone of them.
    pub undone: UndoneRecordings,
    index: OnceCell<PathIndex>,
}

impl Recordings {
    /// All recordings of `library`.
    ///
    /// # Errors
    /// It can't be read.
    pub fn of(library: Library) -> Result<Recordings, Error> {
        let entries = library.entries()?;
        let undone = UndoneRecordings::of(&library)?;
        Ok(Recordings { library, entries, undone, index: OnceCell::new() })
    }

    fn open(&self, entry: &Entry) -> Option<Snapshot> {
        Snapshot::open(&self.library.directory_of(&entry.id)).ok()
    }

    /// Whether a recording can be undone, if it has changed anything.
    fn can_be_undone(&self, entry: &Entry) -> bool {
        !entry.imported
            && matches!(entry.state, EntryState::Ended | EntryState::Killed)
            && self.undone.get(&entry.id).is_none()
    }

    /// Whether a recording can be undone, and that would change something.
    pub fn is_candidate(&self, entry: &Entry) -> bool {
        entry.changes().any() && self.can_be_undone(entry)
    }

    /// Whether a recording may have changed a path; only its records tell for certain.
    fn may_have_changed(&self, entry: &Entry, path: &[u8], indexed: IndexedPath) -> bool {
        // Without the index, each that may have is opened.
        let index = || self.index.get_or_init(|| PathIndex::read(self.library.root()).unwrap_or_default());
        entry.may_change(path) && index().may_have_changed(&entry.id, indexed) != Some(false)
    }

    /// Whether a recording has changed something that counts at one of these paths, or below it.
    pub fn changed_one(&self, entry: &Entry, paths: &[Vec<u8>], counts: impl Fn(&[u8]) -> bool) -> bool {
        let is_one =
            |changed: &[u8]| paths.iter().any(|path| is_at_or_below(changed, path)) && counts(changed);
        paths.iter().any(|path| self.may_have_changed(entry, path, IndexedPath::with_all_below(path)))
            && changes_any(&self.library.directory_of(&entry.id), is_one)
    }

    /// These, and the later recordings that changed something which these had changed, and so on.
    pub fn with_later<'r>(&'r self, chosen: &[&'r Entry]) -> Vec<&'r Entry> {
        let mut changed = ChangedPaths::default();
        let first = chosen.first().map(|entry| entry.time.as_str()).unwrap_or_default();
        let mut all = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.time.as_str() >= first) {
            let undone = self.undone.paths_of(&entry.id);
            if chosen.iter().any(|one| one.id == entry.id)
                || self.is_candidate(entry)
                    && changed.are_touched_apart_from(undone.changed(), entry, &self.library)
            {
                if let Some(mut snapshot) = self.open(entry) {
                    snapshot.forget(undone.changed());
                    changed.add(&snapshot);
                }
                all.push(entry);
            }
        }
        all
    }

    /// The steps of the same sessions that left no change, and meanwhile changed what these have changed at the same time:
    /// these may have found what such a step made, and lost it to that. `net` is what these have done together.
    pub fn silent_steps<'r>(&'r self, chosen: &[&Entry], net: &Snapshot) -> Vec<&'r Entry> {
        let is_timed = |record: &&FileRecord| record.changed_between_us.is_some();
        let paths: HashSet<&[u8]> =
            net.files().iter().filter(is_timed).map(|record| record.path.as_slice()).collect();
        if paths.is_empty() {
            return Vec::new();
        }
        let is_silent = |entry: &&Entry| {
            entry.step.is_some()
                && !entry.changes().any()
                && self.can_be_undone(entry)
                && chosen.iter().any(|one| one.session == entry.session && ran_at_once(one, entry))
        };
        let has_changed_one = |entry: &&Entry| {
            let Some(snapshot) = self.open(entry) else { return false };
            snapshot.files().iter().filter(is_timed).any(|record| paths.contains(record.path.as_slice()))
        };
        self.entries.iter().filter(is_silent).filter(has_changed_one).collect()
    }

    /// Those of these recordings that changed a path which `is_selected`, or that can't be read.
    pub fn that_changed<'r>(
        &self,
        chosen: &[&'r Entry],
        is_selected: impl Fn(&[u8]) -> bool,
    ) -> Vec<&'r Entry> {
        let is_one = |entry: &&Entry| {
            let Some(snapshot) = self.open(entry) else { return true };
            let mut changed = snapshot.files().iter().filter(|record| PathEffect::of(record).is_undone());
            changed.any(|record| is_selected(&record.path))
        };
        chosen.iter().copied().filter(is_one).collect()
    }

    /// The candidates that are newer than the newest of these.
    pub fn later_than<'r>(&'r self, chosen: &[&Entry]) -> impl Iterator<Item = &'r Entry> + use<'r> {
        let newest = chosen.last().map(|entry| entry.time.clone()).unwrap_or_default();
        self.entries.iter().filter(move |entry| entry.time > newest && self.is_candidate(entry))
    }

    /// The paths of a redo that a recording has changed which was undone after it. Redone in another order, they would get
    /// states that they never had together. `ids` are the recordings that are redone, `rescue` is what the redo puts back.
    pub fn undone_since(&self, redone: &Undone, ids: &[&str], rescue: &Snapshot) -> ChangedBy<'_> {
        let mut changed = ChangedBy::new();
        for entry in self.entries.iter().filter(|entry| !ids.contains(&entry.id.as_str())) {
            if self.undone.last(&entry.id).is_none_or(|undone| undone.at <= redone.at) {
                continue;
            }
            let is_whole = self.undone.get(&entry.id).is_some();
            let undone = self.undone.paths_of(&entry.id);
            let Some(other) = self.open(entry) else { continue };
            let lasts = |path: &[u8]| {
                let change =
                    |record: &FileRecord| PathEffect::of(record).is_undone() && has_two_states(record);
                (is_whole || undone.contain(path)) && other.find(path).is_some_and(change)
            };
            let paths = rescue.files().iter().map(|record| &record.path).filter(|path| lasts(path));
            changed.extend(paths.map(|path| (path.clone(), entry)));
        }
        changed
    }

    /// The paths of a redo to which a recording has given other attributes since the undo than the redo would: it leaves what
    /// somebody else has given them.
    pub fn with_other_attributes_since(&self, undone: &Undone, rescue: &Snapshot) -> ChangedBy<'_> {
        let mut conflicts = ChangedBy::new();
        let of_redo: Vec<_> = rescue
            .files()
            .iter()
            .map(|record| (record, changed_attributes(record)))
            .filter(|(_, changed)| !changed.is_empty())
            .collect();
        let is_later = |entry: &&Entry| self.is_candidate(entry) && entry.time > undone.at;
        for entry in self.entries.iter().filter(|_| !of_redo.is_empty()).filter(is_later) {
            if !of_redo.iter().any(|(record, _)| entry.may_change(&record.path)) {
                continue;
            }
            let Some(later) = self.open(entry) else { continue };
            for (record, changed) in &of_redo {
                let Some(other) = later.find(&record.path) else { continue };
                if changed.is_disjoint(&changed_attributes(other)) {
                    continue;
                }
                let (Some(wanted), Some(left)) = (record.before.present(), other.after.present()) else {
                    continue;
                };
                if changed.is_disjoint(&differing_attributes(wanted, left)) {
                    conflicts.remove(&record.path);
                } else {
                    conflicts.insert(record.path.clone(), entry);
                }
            }
        }
        conflicts
    }

    /// The paths of files that some of these later recordings have changed by other names: who first, and by which.
    pub fn changed_by_other_names<'r>(
        &self,
        snapshot: &Snapshot,
        later: impl Iterator<Item = &'r Entry>,
    ) -> BTreeMap<Vec<u8>, (&'r Entry, Vec<u8>)> {
        let mut files = ChangedFiles::default();
        files.add(snapshot);
        let mut changed = BTreeMap::new();
        for entry in later {
            let undone = self.undone.paths_of(&entry.id);
            for (path, name) in files.changed_by(entry, &self.library) {
                if !undone.contain(&name) {
                    changed.entry(path).or_insert((entry, name));
                }
            }
        }
        changed
    }

    /// Which of these paths a recording has changed after the last of the chosen ones that did, and who first.
    pub fn changed_later(&self, chosen: &[&Entry], paths: &HashSet<&[u8]>) -> ChangedBy<'_> {
        let oldest = chosen.first().map(|entry| entry.time.as_str()).unwrap_or_default();
        let mut changed = ChangedBy::new();
        for entry in self.entries.iter().filter(|entry| entry.time.as_str() >= oldest) {
            let is_chosen = chosen.iter().any(|one| one.id == entry.id);
            // A chosen one only takes back what others before it have changed.
            let counts = if is_chosen { !changed.is_empty() } else { self.is_candidate(entry) };
            let may_have_changed =
                |path: &&[u8]| self.may_have_changed(entry, path, IndexedPath::itself(path));
            if !counts || !paths.iter().any(may_have_changed) {
                continue;
            }
            let Some(snapshot) = self.open(entry) else { continue };
            let undone = self.undone.paths_of(&entry.id);
            let records = snapshot.files().iter().filter(|record| paths.contains(record.path.as_slice()));
            for record in records.filter(|record| has_two_states(record) && !undone.contain(&record.path)) {
                if is_chosen {
                    changed.remove(&record.path);
                } else {
                    changed.entry(record.path.clone()).or_insert(entry);
                }
            }
        }
        changed
    }

    /// The last recording between two that has changed the path at which the chain of their states is broken, if it is known.
    pub fn changed_between(&self, broken: &ChainBreak, older: &Entry, newer: &Entry) -> Option<&Entry> {
        let is_it = |entry: &&Entry| {
            (&older.time..=&newer.time).contains(&&entry.time)
                && ![&older.id, &newer.id].contains(&&entry.id)
                && !entry.imported
                && entry.may_change(&broken.path)
                && changes_any(&self.library.directory_of(&entry.id), |path| path == broken.path)
        };
        self.entries.iter().rev().find(is_it)
    }
}

/// Whether two commands ran at the same time, as far as is known.
fn ran_at_once(one: &Entry, other: &Entry) -> bool {
    let began_before_end = |one: &Entry, other: &Entry| {
        other.finished.as_ref().is_none_or(|finished| one.time.as_str() <= finished.as_str())
    };
    began_before_end(one, other) && began_before_end(other, one)
}
