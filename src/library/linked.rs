//! Which recordings changed a file, by whatever name: the hard links of a file may be known to different recordings.
//!
//! Device and inode numbers say where to look, by the index of paths; a later recording has changed the same file only
//! if it found it in a state in which an earlier one had left it, or had found it. Git's own state is left out: its
//! objects are never written to. Neighbours: `sources.rs` does the same for a path; `restore::known_links` compares
//! with what is there now.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::index::{IndexedFiles, PathIndex};
use super::sources::Sources;
use super::{Entry, Error, Library};
use crate::snapshot::blobs::Side;
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::{KnownLinks, LinkedFile, state};
use crate::snapshot::{FileRecord, Present, Snapshot, State};

/// The device and inode numbers of a file.
type Inode = (u64, u64);

/// The records of what a recording has done to files.
fn changes(snapshot: &Snapshot) -> impl Iterator<Item = &FileRecord> {
    snapshot.files().iter().filter(|record| !record.is_git_state && PathEffect::of(record).is_undone())
}

/// The states of a record that are of a file.
fn states(record: &FileRecord) -> impl Iterator<Item = (Side, Inode, &Present)> {
    Side::BOTH.into_iter().filter_map(|side| {
        let at = state(record, side).present()?;
        Some((side, at.linkable_identity()?, at))
    })
}

fn is_written_in_place(record: &FileRecord) -> bool {
    let [before, after] = Side::BOTH.map(|side| state(record, side).present()?.linkable_identity());
    before.is_some() && before == after
}

/// What the recordings that `may_see` takes know of the hard links of the files that `snapshot` changed.
///
/// # Errors
/// The library can't be read.
pub fn known_links(
    snapshot: &Snapshot,
    library: &Library,
    may_see: impl Fn(&Entry) -> bool,
) -> Result<KnownLinks, Error> {
    let mut counts: HashMap<(Side, Inode), u64> = HashMap::new();
    for (side, file, _) in changes(snapshot).flat_map(states) {
        *counts.entry((side, file)).or_default() += 1;
    }
    // Those that may have names which the snapshot does not know.
    let open: HashSet<Inode> = changes(snapshot)
        .flat_map(|record| states(record).map(|state| (is_written_in_place(record), state)))
        .filter(|(is_written, (side, file, at))| *is_written || at.nlink > counts[&(*side, *file)])
        .map(|(_, (_, file, _))| file)
        .collect();
    let mut known = KnownLinks::default();
    if open.is_empty() {
        return Ok(known);
    }
    let sources = Sources::of(library, may_see)?;
    let opened = |number: usize| Snapshot::open(&sources.get(number).directory).ok();
    for part in sources.that_changed_files(&IndexedFiles::linked(&open)).filter_map(opened) {
        let linked =
            changes(&part).flat_map(states).filter(|(_, file, at)| at.nlink > 1 && open.contains(file));
        known.files.extend(linked.map(|(_, file, _)| file));
    }
    if known.files.is_empty() {
        return Ok(known);
    }
    let own: HashSet<&Path> = snapshot.parts().iter().map(Snapshot::path).collect();
    let mut numbers: BTreeSet<usize> = sources.that_changed_files(&IndexedFiles::of(&known.files)).collect();
    // What is found out from some bundles may lead to others.
    loop {
        let count = known.files.len();
        let mut files = FileHistory::default();
        for number in &numbers {
            let source = sources.get(*number);
            let Ok(part) = Snapshot::open(&source.directory) else { continue };
            files.add(&part, source.entry.is_none(), own.contains(source.directory.as_path()), &mut known);
        }
        known.left = files.last.into_values().collect();
        known.put_back = files.put_back;
        let mut next: BTreeSet<usize> = sources.that_changed_files(&IndexedFiles::of(&known.files)).collect();
        next.extend(known.names.iter().flat_map(|path| sources.that_changed_itself(path)));
        if next == numbers && known.files.len() == count {
            break;
        }
        numbers = next;
    }
    Ok(known)
}

/// What bundles, one after the other, did to files.
#[derive(Debug, Default)]
struct FileHistory {
    /// The file that a restore was the last to put back at a path.
    put_back: HashMap<Vec<u8>, LinkedFile>,
    /// The states in which those that are to be undone have left files.
    last: HashMap<Inode, LinkedFile>,
}

impl FileHistory {
    /// Adds the next bundle; `is_own` if it is to be undone.
    fn add(&mut self, part: &Snapshot, is_rescue: bool, is_own: bool, known: &mut KnownLinks) {
        let file = |at: &State| at.present().and_then(LinkedFile::of_any);
        let files = || part.files().iter().filter(|record| !record.is_git_state);
        for record in files() {
            let (before, after) = (file(&record.before), file(&record.after));
            let put_back = self.put_back.get(&record.path).copied();
            // What a restore has made again has another inode number, or by chance the same.
            if let (Some(made), Some(file)) = (before, put_back)
                && made == file.with_inode(made.inode())
            {
                let original = known.original(file).inode();
                known.made_again.insert(made, original);
                known.files.insert(made.inode());
            }
            if let (Some(made), Some(written)) = (before, after)
                && made.inode() == written.inode()
                && let Some(original) = known.made_again.get(&made).copied()
            {
                known.made_again.insert(written, original);
            }
            let is_known = |file: LinkedFile| known.files.contains(&file.inode());
            if before.is_some_and(is_known) || after.is_some_and(is_known) {
                known.names.insert(record.path.clone());
                known.names.extend(record.linked_from.iter().cloned());
            }
            if let (Some(file), true) = (before, is_own) {
                self.last.insert(file.inode(), known.original(file));
            }
            match after.filter(|file| is_rescue && known.files.contains(&file.inode())) {
                Some(file) => drop(self.put_back.insert(record.path.clone(), file)),
                None => drop(self.put_back.remove(&record.path)),
            }
        }
        for file in files().filter(|_| is_own).filter_map(|record| file(&record.after)) {
            self.last.insert(file.inode(), known.original(file));
        }
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
    /// The hashes of the files, until one is added.
    indexed: Option<IndexedFiles>,
}

impl ChangedFiles {
    /// Adds the files that a recording changed.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.indexed = None;
        for record in changes(snapshot) {
            if !states(record).any(|(_, file, at)| at.nlink > 1 || self.files.contains(&file)) {
                continue;
            }
            self.paths.insert(record.path.clone());
            for (_, file, at) in states(record) {
                self.files.insert(file);
                if let Some(file) = LinkedFile::of_any(at) {
                    let paths = self.states.entry(file).or_default();
                    *paths.entry(record.path.clone()).or_default() |= is_written_in_place(record);
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
        let indexed = self.indexed.get_or_insert_with(|| IndexedFiles::of(&self.files));
        if index.may_have_changed_one(&later.id, indexed) == Some(false) {
            return Vec::new();
        }
        let Ok(later) = Snapshot::open(&library.directory_of(&later.id)) else { return Vec::new() };
        let kept: HashSet<Inode> =
            changes(&later).filter_map(|record| record.after.present()?.linkable_identity()).collect();
        let mut changed = Vec::new();
        for record in changes(&later) {
            let Some(before) = record.before.present() else { continue };
            let Some(paths) = LinkedFile::of_any(before).and_then(|file| self.states.get(&file)) else {
                continue;
            };
            let writes = is_written_in_place(record);
            let removes = !writes && !before.linkable_identity().is_some_and(|file| kept.contains(&file));
            if !self.paths.contains(&record.path) {
                let others = paths.iter().filter(|(_, written)| writes || removes && **written);
                changed.extend(others.map(|(path, _)| (path.clone(), record.path.clone())));
            }
            if let (true, Some(file)) = (writes, record.after.present().and_then(LinkedFile::of_any)) {
                let paths = paths.clone();
                self.states.entry(file).or_default().extend(paths);
            }
        }
        changed
    }
}
