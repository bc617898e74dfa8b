//! The other names of a file: those that a recording knows, and those that rules give it.
//!
//! Neighbour: `judge.rs`, for which a rule that names a file means the file, by whatever name it was used.

use std::collections::{HashMap, HashSet};

use crate::snapshot::{FileRecord, FileType, Operation, Operations, Present};

/// What tells a file from others, while it exists.
type Inode = (u64, u64);

/// A file that a rule names.
#[derive(Debug, Clone)]
pub struct NamedFile {
    /// The path, as in the rule.
    pub path: Vec<u8>,
    /// What was there when the rule was read.
    pub state: Present,
}

/// Which state of a path is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    Before,
    After,
}

const SIDES: [Side; 2] = [Side::Before, Side::After];

/// The names of the files of a recording.
#[derive(Debug, Default)]
pub struct FileNames<'a> {
    /// What is at each path.
    inodes: HashMap<(&'a [u8], Side), Inode>,
    /// The paths of the inodes that have several.
    paths: HashMap<Inode, Vec<&'a [u8]>>,
    /// The other path of each rename, and on which side it has the file.
    renamed: HashMap<&'a [u8], Vec<(&'a [u8], Side)>>,
    /// The paths that only a rule names.
    by_rule: HashSet<&'a [u8]>,
    /// The inodes whose content or attributes were changed.
    changed: HashSet<Inode>,
    /// How many known names each had before.
    before: HashMap<Inode, u64>,
}

fn inode(state: &Present) -> Option<Inode> {
    (state.file_type == FileType::File).then_some((state.dev, state.ino))
}

fn attributes(state: &Present) -> (u32, u32, u32, u64, i64, u32) {
    (state.mode, state.uid, state.gid, state.size, state.mtime, state.mtime_nsec)
}

fn states(record: &FileRecord) -> impl Iterator<Item = (Side, &Present)> {
    let states = SIDES.into_iter().zip([&record.before, &record.after]);
    states.filter_map(|(side, state)| Some((side, state.present()?)))
}

impl<'a> FileNames<'a> {
    /// The names that `files` have, and those of `named`, which need not have been used.
    pub fn of(files: &'a [FileRecord], named: &'a [NamedFile]) -> FileNames<'a> {
        let mut names = FileNames::default();
        // An inode number alone says little: when a file has gone, a new one may get it.
        let mut linked: HashSet<Inode> = HashSet::new();
        let mut last: HashMap<Inode, &Present> = HashMap::new();
        for record in files {
            for (side, state) in states(record) {
                let Some(inode) = inode(state) else { continue };
                names.add(inode, &record.path, side);
                if state.nlink > 1 {
                    linked.insert(inode);
                }
                if last.insert(inode, state).is_some_and(|other| attributes(other) != attributes(state)) {
                    names.changed.insert(inode);
                }
            }
            names.note(record);
        }
        for NamedFile { path, state } in named {
            let is_same = |(_, other): (Side, &Present)| {
                inode(other) == inode(state) && (other.nlink > 1 || attributes(other) == attributes(state))
            };
            let Some(inode) = inode(state).filter(|_| files.iter().flat_map(states).any(is_same)) else {
                continue;
            };
            let is_recorded = SIDES.into_iter().any(|side| names.inodes.contains_key(&(&**path, side)));
            if !is_recorded {
                names.by_rule.insert(path);
                *names.before.entry(inode).or_default() += 1;
                SIDES.into_iter().for_each(|side| names.add(inode, path, side));
            }
            linked.insert(inode);
        }
        names.paths.retain(|inode, paths| linked.contains(inode) && paths.len() > 1);
        names
    }

    fn add(&mut self, inode: Inode, path: &'a [u8], side: Side) {
        self.inodes.insert((path, side), inode);
        let paths = self.paths.entry(inode).or_default();
        if !paths.contains(&path) {
            paths.push(path);
        }
    }

    /// Notes the renames of a record, and whether its file was changed in place.
    fn note(&mut self, record: &'a FileRecord) {
        let path = record.path.as_slice();
        let renames =
            [(record.renamed_from.as_deref(), Some(path)), (Some(path), record.renamed_to.as_deref())];
        for (from, to) in renames {
            if let (Some(from), Some(to)) = (from, to) {
                self.renamed.entry(to).or_default().push((from, Side::Before));
                self.renamed.entry(from).or_default().push((to, Side::After));
            }
        }
        if let Some(inode) = self.inodes.get(&(path, Side::Before)).copied() {
            *self.before.entry(inode).or_default() += 1;
            let content = Operations::from(Operation::Write).with(Operation::Metadata);
            if self.inodes.get(&(path, Side::After)) == Some(&inode) && record.operations.intersects(content)
            {
                self.changed.insert(inode);
            }
        }
    }

    /// The names that the file has which is at a path on one side.
    fn links(&self, path: &'a [u8], side: Side) -> impl Iterator<Item = &'a [u8]> {
        let paths = self.inodes.get(&(path, side)).and_then(|inode| self.paths.get(inode));
        paths.into_iter().flatten().copied()
    }

    /// The other names that the files at a path have or had, by hard links and renames.
    pub fn others(&self, path: &'a [u8]) -> Vec<&'a [u8]> {
        let mut found: Vec<(&[u8], Side)> = SIDES.map(|side| (path, side)).to_vec();
        let mut seen: HashSet<(&[u8], Side)> = found.iter().copied().collect();
        let mut at = 0;
        while let Some(&(path, side)) = found.get(at) {
            let renamed = self.renamed.get(path).into_iter().flatten().copied();
            let linked = self.links(path, side).flat_map(|path| SIDES.map(|side| (path, side))).filter(
                // At the other name, too, it is the same file.
                |node| self.inodes.get(node) == self.inodes.get(&(path, side)),
            );
            found.extend(renamed.chain(linked).filter(|node| seen.insert(*node)));
            at += 1;
        }
        let mut names: Vec<&[u8]> =
            found.into_iter().map(|(path, _)| path).filter(|other| *other != path).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The other names of a changed file that only rules know.
    pub fn changed_by_rule(&self, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let is_changed =
            |side| self.inodes.get(&(path, side)).is_some_and(|inode| self.changed.contains(inode));
        let sides = SIDES.into_iter().filter(move |side| is_changed(*side));
        sides.flat_map(move |side| self.links(path, side)).filter(|other| self.by_rule.contains(other))
    }

    /// How many names of a file are known that it had before.
    pub fn known_before(&self, state: &Present) -> u64 {
        inode(state).and_then(|inode| self.before.get(&inode)).copied().unwrap_or(0)
    }
}
