//! Which recordings changed a file, by whatever name: the hard links of a file may be known to different recordings.
//!
//! Device and inode numbers say where to look, by the index of paths; a later recording has changed the same file only
//! if it found it in a state in which an earlier one had left it, or had found it. Git's own state is left out: its
//! objects are never written to. Neighbours: `sources.rs` does the same for a path; `restore::known_links` compares
//! with what is there now.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::index::{IndexedFiles, PathIndex};
use super::sources::Sources;
use super::{Entry, Error, Library};
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::LinkedFile;
use crate::snapshot::{FileRecord, FileType, Present, Snapshot, State};

/// The device and inode numbers of a file.
type Inode = (u64, u64);

fn inode(at: &Present) -> Option<Inode> {
    (at.file_type == FileType::File).then_some((at.dev, at.ino))
}

fn inodes(record: &FileRecord) -> impl Iterator<Item = Inode> {
    [&record.before, &record.after].into_iter().filter_map(|state| state.present().and_then(inode))
}

/// The records of what a recording has done to files.
fn changes(snapshot: &Snapshot) -> impl Iterator<Item = &FileRecord> {
    snapshot.files().iter().filter(|record| !record.is_git_state && PathEffect::of(record).is_undone())
}

fn is_written_in_place(record: &FileRecord) -> bool {
    let [before, after] = [&record.before, &record.after].map(|state| state.present().and_then(inode));
    before.is_some() && before == after
}

/// What the recordings of a library know of the hard links of the files that a snapshot changed.
#[derive(Debug, Default)]
pub struct OtherNames {
    /// Names that the files have or had.
    pub names: BTreeSet<Vec<u8>>,
    /// The files that had several names, by their device and inode numbers.
    pub files: HashSet<(u64, u64)>,
}

impl OtherNames {
    /// Those of the files that `snapshot` changed, as far as the recordings that `may_see` takes know them.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn of(
        snapshot: &Snapshot,
        library: &Library,
        may_see: impl Fn(&Entry) -> bool,
    ) -> Result<OtherNames, Error> {
        let mut recorded: HashMap<Inode, (u64, u64)> = HashMap::new();
        let mut open: HashSet<Inode> = HashSet::new();
        for record in changes(snapshot) {
            for (state, side) in [(&record.before, 0), (&record.after, 1)] {
                let Some(at) = state.present().filter(|at| at.file_type == FileType::File) else { continue };
                let count = recorded.entry((at.dev, at.ino)).or_default();
                if side == 0 { count.0 += 1 } else { count.1 += 1 }
            }
            if is_written_in_place(record) {
                open.extend(inodes(record));
            }
        }
        for record in changes(snapshot) {
            for (state, side) in [(&record.before, 0), (&record.after, 1)] {
                let Some(at) = state.present().filter(|at| at.nlink > 1) else { continue };
                let Some(file) = inode(at) else { continue };
                let count = recorded.get(&file).copied().unwrap_or_default();
                if at.nlink > (if side == 0 { count.0 } else { count.1 }) {
                    open.insert(file);
                }
            }
        }
        let mut found = OtherNames::default();
        if open.is_empty() {
            return Ok(found);
        }
        let sources = Sources::of(library, may_see)?;
        let opened = |number: usize| Snapshot::open(&sources.get(number).directory).ok();
        let linked: Vec<Snapshot> =
            sources.that_changed_files(&IndexedFiles::linked(&open)).filter_map(opened).collect();
        let states = linked.iter().flat_map(changes).flat_map(|record| [&record.before, &record.after]);
        let has_other_names = |state: &State| state.present().filter(|at| at.nlink > 1).and_then(inode);
        found.files = states.filter_map(has_other_names).filter(|file| open.contains(file)).collect();
        if found.files.is_empty() {
            return Ok(found);
        }
        for part in sources.that_changed_files(&IndexedFiles::of(&found.files)).filter_map(opened) {
            let is_one = |record: &&FileRecord| inodes(record).any(|file| found.files.contains(&file));
            found.names.extend(changes(&part).filter(is_one).map(|record| record.path.clone()));
        }
        Ok(found)
    }
}

/// Files that recordings changed and that have other names, in the states in which they are known.
#[derive(Debug, Default)]
pub struct ChangedFiles {
    /// The paths by which each state is known, and whether the file was written to by that name.
    states: HashMap<LinkedFile, BTreeMap<Vec<u8>, bool>>,
    files: HashSet<Inode>,
    paths: HashSet<Vec<u8>>,
    index: Option<PathIndex>,
}

impl ChangedFiles {
    /// Adds the files that a recording changed.
    pub fn add(&mut self, snapshot: &Snapshot) {
        for record in changes(snapshot) {
            let states = [&record.before, &record.after].map(|state| state.present());
            let known = |at: &&Present| inode(at).is_some_and(|file| self.files.contains(&file));
            if states.iter().flatten().any(|at| known(at) || at.nlink > 1 && inode(at).is_some()) {
                self.paths.insert(record.path.clone());
                for at in states.into_iter().flatten() {
                    self.files.extend(inode(at));
                    if let Some(file) = LinkedFile::of_any(at) {
                        let paths = self.states.entry(file).or_default();
                        *paths.entry(record.path.clone()).or_default() |= is_written_in_place(record);
                    }
                }
            }
        }
    }

    /// What a later recording did to these files by names that are not known yet: the known path, and the other name.
    ///
    /// A recording that removes a name takes nothing from one that has removed another.
    pub fn changed_by(&mut self, later: &Entry, library: &Library) -> Vec<(Vec<u8>, Vec<u8>)> {
        if self.files.is_empty() || later.imported {
            return Vec::new();
        }
        // Without the index, each is opened.
        let index = self.index.get_or_insert_with(|| PathIndex::read(library.root()).unwrap_or_default());
        if index.may_have_changed_one(&later.id, &IndexedFiles::of(&self.files)) == Some(false) {
            return Vec::new();
        }
        let Ok(later) = Snapshot::open(&library.directory_of(&later.id)) else { return Vec::new() };
        let kept: HashSet<Inode> =
            changes(&later).filter_map(|record| inode(record.after.present()?)).collect();
        let mut changed = Vec::new();
        for record in changes(&later) {
            let Some(before) = record.before.present() else { continue };
            let Some(paths) = LinkedFile::of_any(before).and_then(|file| self.states.get(&file)).cloned()
            else {
                continue;
            };
            let writes = is_written_in_place(record);
            let removes = !writes && !inode(before).is_some_and(|file| kept.contains(&file));
            let is_known = self.paths.contains(&record.path);
            if !is_known {
                let others = paths.iter().filter(|(_, written)| writes || removes && **written);
                changed.extend(others.map(|(path, _)| (path.clone(), record.path.clone())));
            }
            if let (true, Some(file)) = (writes, record.after.present().and_then(LinkedFile::of_any)) {
                self.states.entry(file).or_default().extend(paths);
            }
        }
        changed
    }
}
