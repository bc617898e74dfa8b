//! The other names of a file: those that a recording knows, and those that rules give it.
//!
//! Neighbour: `judge.rs`, for which a rule that names a file means the file, by whatever name it was used.

use std::collections::{HashMap, HashSet};

use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::{FileRecord, FileType, Operation, Operations, Present};

/// What tells a file from others, while it exists.
type Inode = (u64, u64);

/// The inode of what a rule means by all of its names: a regular file or a socket.
pub(super) fn inode_of(state: &Present) -> Option<Inode> {
    matches!(state.file_type, FileType::File | FileType::Socket).then(|| state.identity())
}

/// A file that a rule names.
#[derive(Debug, Clone)]
pub struct NamedFile {
    /// The path, as in the rule.
    pub path: Vec<u8>,
    /// What was there when the rule was read.
    pub state: Present,
}

/// A file of a recording: its inode, and whether it is one that got the number of another one, which was there before.
type File = (Inode, bool);

/// The names of the files of a recording.
#[derive(Debug, Default)]
pub struct FileNames<'a> {
    /// The numbers of files from before that others had at the end.
    reused: HashSet<Inode>,
    /// The file at each path.
    inodes: HashMap<(&'a [u8], Side), File>,
    /// The paths of the inodes that have several.
    paths: HashMap<File, Vec<&'a [u8]>>,
    /// The other path of each rename, and on which side it has the file.
    renamed: HashMap<&'a [u8], Vec<(&'a [u8], Side)>>,
    /// The other path of each hard link that was made.
    linked: HashMap<&'a [u8], Vec<&'a [u8]>>,
    /// The paths at which hard links were made.
    made_as_links: HashSet<&'a [u8]>,
    /// The paths that only a rule names.
    by_rule: HashMap<File, Vec<&'a [u8]>>,
    /// The inodes whose content or attributes were changed.
    changed: HashSet<File>,
    /// How many known names each had before.
    before: HashMap<File, u64>,
    /// How many known names each has after.
    after: HashMap<File, u64>,
}

fn attributes(state: &Present) -> (u32, u32, u32, u64, i64, u32) {
    (state.mode, state.uid, state.gid, state.size, state.mtime, state.mtime_nsec)
}

/// The inode numbers that files had before and others, which the command has made, had at the end.
fn reused(files: &[FileRecord]) -> HashSet<Inode> {
    let inode = |record: &FileRecord, side| state(record, side).present().and_then(inode_of);
    let before: HashSet<Inode> = files.iter().filter_map(|record| inode(record, Side::Before)).collect();
    let is_other = |record: &&FileRecord| {
        inode(record, Side::After)
            .is_some_and(|after| before.contains(&after) && inode(record, Side::Before) != Some(after))
    };
    let mut came = files.iter().filter(is_other).peekable();
    if came.peek().is_none() {
        return HashSet::new();
    }
    let records: HashMap<&[u8], &FileRecord> =
        files.iter().map(|record| (record.path.as_slice(), record)).collect();
    // A file from before has come to a path by renames and links from one that it had.
    let may_have_come = |record: &FileRecord, file: Inode| {
        let mut ways = vec![record];
        let mut seen: HashSet<&[u8]> = HashSet::from([record.path.as_slice()]);
        while let Some(record) = ways.pop() {
            let mut from = record.renamed_from.iter().chain(&record.linked_from).peekable();
            let is_made = from.peek().is_none() && record.operations.contains(Operation::Write);
            if inode(record, Side::Before) == Some(file) || from.peek().is_none() && !is_made {
                return true;
            }
            for path in from {
                let Some(record) = records.get(path.as_slice()) else { return true };
                if seen.insert(&record.path) {
                    ways.push(record);
                }
            }
        }
        false
    };
    let (mut reused, mut kept) = (HashSet::new(), HashSet::new());
    for record in came {
        let Some(after) = inode(record, Side::After) else { continue };
        if may_have_come(record, after) {
            kept.insert(after)
        } else {
            reused.insert(after)
        };
    }
    // One that is still at a path of its own is there.
    let stays = files.iter().filter_map(|record| {
        inode(record, Side::After).filter(|after| inode(record, Side::Before) == Some(*after))
    });
    kept.extend(stays);
    reused.retain(|inode| !kept.contains(inode));
    reused
}

impl<'a> FileNames<'a> {
    /// The names that `files` have, and those of `named`, which need not have been used.
    pub fn of(files: &'a [FileRecord], named: &'a [NamedFile]) -> FileNames<'a> {
        // An inode number alone says little: when a file has gone, a new one may get it.
        let mut names = FileNames { reused: reused(files), ..FileNames::default() };
        let mut linked: HashSet<File> = HashSet::new();
        let mut last: HashMap<File, &Present> = HashMap::new();
        for record in files {
            for side in Side::BOTH {
                let Some(state) = state(record, side).present() else { continue };
                let Some(inode) = names.file_of(state, side) else { continue };
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
        for NamedFile { path, state: named } in named {
            let is_same = |other: &Present| {
                inode_of(other) == inode_of(named)
                    && (other.nlink > 1 || attributes(other) == attributes(named))
            };
            let mut states = files.iter().flat_map(|record| [&record.before, &record.after]);
            let is_known = states.any(|state| state.present().is_some_and(is_same));
            let Some(inode) = inode_of(named).filter(|_| is_known) else { continue };
            // The rules may have been read before the command or after it.
            let [inode, other] = [false, true].map(|is_new| (inode, is_new));
            linked.insert(other);
            if !Side::BOTH.into_iter().any(|side| names.inodes.contains_key(&(&**path, side))) {
                names.by_rule.entry(inode).or_default().push(path);
                *names.before.entry(inode).or_default() += 1;
                *names.after.entry(inode).or_default() += 1;
                Side::BOTH.into_iter().for_each(|side| names.add(inode, path, side));
            }
            linked.insert(inode);
        }
        names.paths.retain(|inode, paths| linked.contains(inode) && paths.len() > 1);
        names
    }

    /// The file that has a state on a side.
    fn file_of(&self, state: &Present, side: Side) -> Option<File> {
        inode_of(state).map(|inode| (inode, side == Side::After && self.reused.contains(&inode)))
    }

    /// Adds a name; those of one path come after each other.
    fn add(&mut self, inode: File, path: &'a [u8], side: Side) {
        self.inodes.insert((path, side), inode);
        let paths = self.paths.entry(inode).or_default();
        if paths.last() != Some(&path) {
            paths.push(path);
        }
    }

    /// Notes the renames and hard links of a record, and whether its file was changed in place.
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
        for from in record.linked_from.iter().map(Vec::as_slice) {
            self.made_as_links.insert(path);
            self.linked.entry(path).or_default().push(from);
            self.linked.entry(from).or_default().push(path);
        }
        if let Some(inode) = self.inodes.get(&(path, Side::After)) {
            *self.after.entry(*inode).or_default() += 1;
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

    /// The other names that the files at a path have or had, by hard links and renames; each with whether it is a name that
    /// the file had before the command, as far as is known.
    pub fn others(&self, path: &'a [u8]) -> impl Iterator<Item = (&'a [u8], bool)> {
        self.reachable(path).into_iter().map(move |name| (name, self.is_from_before(name, path)))
    }

    fn reachable(&self, path: &'a [u8]) -> Vec<&'a [u8]> {
        let node = |path, side| (path, side, self.inodes.get(&(path, side)).copied());
        let mut found = Side::BOTH.map(|side| node(path, side)).to_vec();
        if self.has_one_file(path) {
            let one = found.iter().find_map(|(.., inode)| *inode);
            found.iter_mut().for_each(|(.., inode)| *inode = one);
        } else {
            // A hard link that was here for a while may have been a file of neither state.
            let linked = self.linked.get(path).into_iter().flatten();
            found.extend(linked.flat_map(|path| Side::BOTH.map(|side| node(path, side))));
        }
        let mut seen: HashSet<_> = found.iter().copied().collect();
        let mut expanded: HashSet<File> = HashSet::new();
        let mut at = 0;
        while let Some(&(path, _, inode)) = found.get(at) {
            // A path that several files had one after the other connects only those that may be the same.
            let renamed = self.renamed.get(path).into_iter().flatten().filter_map(|(path, side)| {
                let (path, side, there) = node(path, *side);
                (there.is_none() || inode.is_none() || there == inode).then_some((
                    path,
                    side,
                    there.or(inode),
                ))
            });
            // If a path only ever had one file, the link was to that file.
            let linked = self.linked.get(path).into_iter().flatten();
            let linked = linked.flat_map(|path| Side::BOTH.map(|side| node(path, side)));
            let linked = linked.filter_map(|(path, side, there)| {
                let is_possible = there.is_none() || inode.is_none() || there == inode;
                (is_possible || !self.has_one_file(path)).then_some((path, side, inode.or(there)))
            });
            let links =
                inode.filter(|inode| expanded.insert(*inode)).and_then(|inode| self.paths.get(&inode));
            let links = links.into_iter().flatten().flat_map(|path| Side::BOTH.map(|side| node(path, side)));
            let more = renamed.chain(linked).chain(links.filter(|(.., there)| *there == inode));
            found.extend(more.filter(|node| seen.insert(*node)));
            at += 1;
        }
        let mut names: Vec<&[u8]> =
            found.into_iter().map(|(path, ..)| path).filter(|other| *other != path).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn is_from_before(&self, name: &'a [u8], path: &'a [u8]) -> bool {
        let Some(file) = self.inodes.get(&(name, Side::Before)) else { return false };
        let mut here = Side::BOTH.into_iter().filter_map(|side| self.inodes.get(&(path, side))).peekable();
        here.peek().is_none() || here.any(|inode| inode == file)
    }

    /// The names that rules give to the file of a state.
    pub fn by_rule(named: &'a [NamedFile], file: &Present) -> impl Iterator<Item = &'a [u8]> {
        let inode = inode_of(file);
        let is_same = move |named: &&NamedFile| inode.is_some() && inode_of(&named.state) == inode;
        named.iter().filter(is_same).map(|named| named.path.as_slice())
    }

    /// Whether the file of a path is known.
    pub fn knows(&self, path: &'a [u8]) -> bool {
        Side::BOTH.into_iter().any(|side| self.inodes.contains_key(&(path, side)))
    }

    /// Whether a path only ever had one file, as far as its states, renames and links tell.
    fn has_one_file(&self, path: &[u8]) -> bool {
        let [before, after] = Side::BOTH.map(|side| self.inodes.get(&(path, side)));
        let is_one = before.is_none() || after.is_none() || before == after;
        is_one && !self.renamed.contains_key(path) && !self.made_as_links.contains(path)
    }

    /// The other names of a changed file that only rules know.
    pub fn changed_by_rule(&self, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let inodes = Side::BOTH.into_iter().filter_map(move |side| self.inodes.get(&(path, side)));
        let changed = inodes.filter(|inode| self.changed.contains(*inode));
        changed.filter_map(|inode| self.by_rule.get(inode)).flatten().copied()
    }

    /// Whether the content or the attributes of a file were changed that was there before.
    pub fn is_changed(&self, state: &Present) -> bool {
        self.file_of(state, Side::After)
            .is_some_and(|file| self.changed.contains(&file) && self.before.contains_key(&file))
    }

    /// Whether a file has a name that only rules know.
    pub fn has_name_by_rule(&self, state: &Present) -> bool {
        self.file_of(state, Side::Before).is_some_and(|file| self.by_rule.contains_key(&file))
    }

    /// How many names are known that a file has in its state on a side.
    pub fn known(&self, state: &Present, side: Side) -> u64 {
        let names = match side {
            Side::Before => &self.before,
            Side::After => &self.after,
        };
        self.file_of(state, side).and_then(|file| names.get(&file)).copied().unwrap_or(0)
    }
}
