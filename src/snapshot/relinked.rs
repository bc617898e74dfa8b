//! Which names have become names of another file: hard links that were made or lost, also where each name has the content
//! that it had.
//!
//! A file that replaces another one under all of its names leaves them as they were. Neighbour: `change.rs`, for which this
//! is a change.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::compare::LinkedFile;
use super::{FileRecord, Operations, Present, Stat, State};

/// A file at one moment, and how many names it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedFile {
    file: LinkedFile,
    names: u64,
}

impl NamedFile {
    /// The file in this state; none of a directory.
    pub fn of(at: &Present) -> Option<NamedFile> {
        Some(NamedFile { file: LinkedFile::of_any(at)?, names: at.nlink })
    }

    /// The file that stat(2) says this of; none of a directory.
    pub fn of_stat(stat: &Stat) -> Option<NamedFile> {
        Some(NamedFile { file: LinkedFile::of_stat(stat)?, names: stat.nlink.into() })
    }
}

/// A name, and its file before and after.
#[derive(Debug, Clone, Copy)]
pub struct NameStates<N> {
    /// The name.
    pub name: N,
    /// Whether the command has changed it.
    pub is_changed: bool,
    /// The two files.
    pub files: [Option<NamedFile>; 2],
}

/// The changed names that share a file with other names than before, of all that are known.
pub fn relinked<N: Copy + Eq + Hash>(names: impl Iterator<Item = NameStates<N>> + Clone) -> HashSet<N> {
    let moved = |one: &NameStates<N>| match one.files {
        [Some(before), Some(after)] => {
            let is_linked = before.names > 1 || after.names > 1;
            let is_other = before.file.inode() != after.file.inode();
            (one.is_changed && is_linked && is_other).then_some([before, after])
        }
        _ => None,
    };
    let candidates: Vec<_> = names.clone().filter_map(|one| Some((one.name, moved(&one)?))).collect();
    if candidates.is_empty() {
        return HashSet::new();
    }
    let mut known: [HashMap<LinkedFile, Vec<N>>; 2] = Default::default();
    for (_, files) in &candidates {
        for (known, file) in known.iter_mut().zip(files) {
            known.entry(file.file).or_default();
        }
    }
    for one in names {
        for (known, file) in known.iter_mut().zip(one.files) {
            if let Some(sharing) = file.and_then(|file| known.get_mut(&file.file)) {
                sharing.push(one.name);
            }
        }
    }
    let is_relinked = |files: &[NamedFile; 2]| {
        let [before, after] = [0, 1].map(|side| &known[side][&files[side].file]);
        let has_unknown =
            |names: u64, known: &Vec<N>| u64::try_from(known.len()).is_ok_and(|known| known < names);
        before != after || has_unknown(files[0].names, before) || has_unknown(files[1].names, after)
    };
    candidates.iter().filter(|(_, files)| is_relinked(files)).map(|(name, _)| *name).collect()
}

/// Notes in each of the records of a snapshot whether its path has become a name of another file.
pub fn mark_relinked(files: &mut [FileRecord]) {
    let file = |state: &State| state.present().and_then(NamedFile::of);
    let states = files.iter().enumerate().map(|(name, record)| NameStates {
        name,
        is_changed: record.operations.intersects(Operations::CHANGES) && !record.is_git_state,
        files: [file(&record.before), file(&record.after)],
    });
    let relinked = relinked(states);
    for (index, record) in files.iter_mut().enumerate() {
        record.relinked = relinked.contains(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Operation;
    use crate::snapshot::samples::{created, present};

    /// A path, the inode number and the number of names before and after, and what the command did to it.
    type Sample<'a> = (&'a str, [(u64, u64); 2], Operation);

    /// The paths of these records that are marked.
    fn marked(records: &[Sample]) -> Vec<String> {
        let state = |(ino, nlink)| State::Present(Box::new(Present { ino, nlink, ..present(1) }));
        let record = |(path, [before, after], operation): &Sample| FileRecord {
            before: state(*before),
            operations: (*operation).into(),
            ..created(path.as_bytes(), state(*after))
        };
        let mut files: Vec<FileRecord> = records.iter().map(record).collect();
        mark_relinked(&mut files);
        let marked = files.iter().filter(|record| record.relinked);
        marked.map(|record| String::from_utf8(record.path.clone()).unwrap()).collect()
    }

    use Operation::{Existence, Write};

    #[test]
    fn a_name_of_a_file_that_gets_or_loses_other_names_is_marked() {
        let joined = [("/a", [(1, 1), (1, 2)], Existence), ("/b", [(2, 1), (1, 2)], Write)];
        assert_eq!(marked(&joined), ["/b"]);
        let parted = [("/a", [(1, 2), (1, 1)], Existence), ("/b", [(1, 2), (2, 1)], Write)];
        assert_eq!(marked(&parted), ["/b"]);
        assert_eq!(marked(&[("/b", [(1, 2), (2, 1)], Write)]), ["/b"], "the other name is unknown");
        assert_eq!(marked(&[("/b", [(1, 1), (2, 2)], Write)]), ["/b"]);
        let swapped = [("/a", [(1, 2), (2, 2)], Write), ("/b", [(1, 2), (1, 1)], Existence)];
        assert_eq!(marked(&swapped), ["/a"]);
    }

    #[test]
    fn names_that_move_to_another_file_together_are_not() {
        let together = [("/a", [(1, 2), (2, 2)], Write), ("/b", [(1, 2), (2, 2)], Write)];
        assert_eq!(marked(&together), [""; 0]);
        assert_eq!(marked(&[("/a", [(1, 1), (2, 1)], Write)]), [""; 0]);
        let in_place = [("/a", [(1, 1), (1, 2)], Write), ("/b", [(1, 1), (1, 2)], Existence)];
        assert_eq!(marked(&in_place), [""; 0]);
        let stays_behind = [
            ("/a", [(1, 3), (2, 2)], Write),
            ("/b", [(1, 3), (2, 2)], Write),
            ("/c", [(1, 3), (1, 1)], Existence),
        ];
        assert_eq!(marked(&stays_behind), ["/a", "/b"]);
    }
}
