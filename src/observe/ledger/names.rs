//! One [`Name`] per path: what it stood for at first sight, and how it was used.
//!
//! The first sight decides the before-state; operations and processes only grow. Neighbours:
//! `inodes.rs` has what names stand for, `apply.rs` changes both, `finish.rs` makes the records of a
//! manifest.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use super::blocks::Blocks;
use super::ids::{InodeId, NameId, ProcessId};
use crate::git::GitFacts;
use crate::observe::resolve::is_below;
use crate::snapshot::{Digest, Operations, Seen};

/// How many processes are kept for a name.
const NAMED_PROCESSES: usize = 16;

/// How many uses are kept for a name: a process may execute several programs that use it.
const NAMED_USES: usize = 64;

/// Who uses a path: a process, and how many programs it had executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct User {
    /// From 1, so that 0 is none.
    process: u32,
    programs: u16,
}

impl User {
    /// A process that has executed so many programs itself.
    pub fn new(process: ProcessId, programs: u16) -> User {
        User { process: process.0, programs }
    }

    /// The process.
    pub fn process(self) -> ProcessId {
        ProcessId(self.process)
    }

    /// How many programs it had executed.
    pub fn programs(self) -> u16 {
        self.programs
    }
}

// Flat, so that it takes eight bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    process: u32,
    programs: u16,
    operations: Operations,
}

impl Use {
    fn user(self) -> User {
        User { process: self.process, programs: self.programs }
    }

    fn merge(&mut self, operations: Operations) {
        self.operations = self.operations.union(operations);
    }
}

/// The uses of a path: those of the first 16 processes by name, of the others how many they are.
#[derive(Debug, Default)]
pub struct Uses {
    // Most paths are used by one process.
    first: Use,
    more: Option<Box<MoreUses>>,
}

#[derive(Debug, Default)]
struct MoreUses {
    /// After the first.
    named: Vec<Use>,
    /// Of how many processes those are, the first one apart.
    processes: usize,
    rest: HashSet<u32, foldhash::fast::RandomState>,
}

impl Uses {
    fn add(&mut self, operations: Operations, user: User) {
        let used = Use { process: user.process, programs: user.programs, operations };
        if self.first.process == 0 {
            self.first = used;
        }
        if self.first.user() == user {
            return self.first.merge(operations);
        }
        let more = self.more.get_or_insert_default();
        if let Some(known) = more.named.iter_mut().find(|known| known.user() == user) {
            return known.merge(operations);
        }
        let of_process = |known: &Use| known.process == user.process;
        let is_named = of_process(&self.first) || more.named.iter().any(of_process);
        if is_named && more.named.len() + 1 >= NAMED_USES {
            // By one of its programs at least.
            more.named
                .iter_mut()
                .rfind(|known| of_process(known))
                .unwrap_or(&mut self.first)
                .merge(operations);
        } else if is_named || more.processes + 1 < NAMED_PROCESSES {
            more.named.push(used);
            more.processes += usize::from(!is_named);
        } else {
            more.rest.insert(user.process);
        }
    }

    /// Those of the first processes, in order of use.
    pub fn named(&self) -> impl Iterator<Item = (User, Operations)> {
        let first = (self.first.process != 0).then_some(&self.first);
        let more = self.more.as_ref().map_or(&[][..], |more| &more.named);
        first.into_iter().chain(more).map(|known| (known.user(), known.operations))
    }

    /// How one of the first processes used it.
    pub fn of(&self, process: ProcessId) -> Operations {
        let number = User::new(process, 0).process;
        let of_process = self.named().filter(|(user, _)| user.process == number);
        of_process.fold(Operations::NONE, |all, (_, operations)| all.union(operations))
    }

    /// The first processes, in order of use.
    pub fn processes(&self) -> Vec<u32> {
        let mut processes = Vec::new();
        for (user, _) in self.named() {
            if !processes.contains(&user.process) {
                processes.push(user.process);
            }
        }
        processes
    }

    /// How many processes there are, where `processes` does not hold them all.
    pub fn count_beyond_named(&self) -> Option<usize> {
        let more = self.more.as_ref().filter(|more| !more.rest.is_empty())?;
        Some(1 + more.processes + more.rest.len())
    }
}

/// What few names have.
#[derive(Debug, Default)]
pub struct RareNameFacts {
    /// The digest of the entries that a directory had before.
    pub entries: Option<Digest>,
    /// The same with their types, if it is noted what the tree learns.
    pub entry_types: Option<Digest>,
}

/// What is known of a path while the tree runs. Small, since there is one for each path.
#[derive(Debug, Default)]
pub struct Name {
    /// How it was used.
    pub operations: Operations,
    /// What was learnt of it before it was changed, if that is noted.
    pub seen: Seen,
    /// By whom.
    pub uses: Uses,
    /// The inode that it stood for at first sight; none where nothing was there.
    pub before: Option<InodeId>,
    /// How Git knew it.
    pub git: Option<GitFacts>,
    /// When that was asked (`Repositories::epoch`).
    pub git_epoch: u32,
    /// What few names have.
    pub extra: Option<Box<RareNameFacts>>,
    /// How many traced calls changed what it stands for.
    pub changes: u32,
    /// A traced call has made, replaced or removed it, or may have.
    pub rebound: bool,
    /// Deleted or renamed away, and not made again.
    pub removed: bool,
    /// Used through a descriptor from before the launch.
    pub inherited: bool,
    /// Changed by a call that named it.
    pub changed_by_name: bool,
    /// A rule leaves it out unless it is changed.
    pub left_out: bool,
    /// It is in a git directory.
    pub is_git_state: bool,
    /// Nothing was there at first sight, and somebody outside of the tree has made what is taken for its
    /// before-state.
    pub appeared: bool,
    /// Whether Git was asked for the blob that has the bytes before.
    pub pin_asked: bool,
    /// Whether the journal has it.
    pub journaled: bool,
}

const _: () = assert!(size_of::<Name>() <= 64);

impl Name {
    /// Merges one more use: both sets only grow.
    pub fn merge(&mut self, operations: Operations, user: User) {
        self.operations = self.operations.union(operations);
        self.uses.add(operations, user);
    }

    /// The rarer facts, made where there were none.
    pub fn extra_mut(&mut self) -> &mut RareNameFacts {
        self.extra.get_or_insert_default()
    }

    /// The digest of the entries that a directory had before, where it was listed.
    pub fn entries(&self) -> Option<Digest> {
        self.extra.as_ref().and_then(|extra| extra.entries)
    }
}

/// The names of a recording, by path.
///
/// Neither the entries nor the bytes of the paths ever move: a vector that doubles needs its old and its new memory at
/// the same time.
#[derive(Default)]
pub struct Names {
    entries: Blocks<NameEntry>,
    bytes: Arena,
    /// The names by the hash of their paths.
    index: hashbrown::HashTable<NameId>,
    /// Which name a rename moved to each, and to which one it moved each.
    renamed_from: HashMap<NameId, NameId, foldhash::fast::RandomState>,
    renamed_to: HashMap<NameId, NameId, foldhash::fast::RandomState>,
    /// The names from which hard links were made at each.
    linked_from: HashMap<NameId, Vec<NameId>, foldhash::fast::RandomState>,
    hasher: foldhash::fast::RandomState,
}

#[derive(Debug)]
struct NameEntry {
    path: Span,
    name: Name,
}

/// Bytes of one block of names.
const NAME_BLOCK: usize = 64 << 10;

/// Where the bytes of a path are.
#[derive(Debug, Clone, Copy)]
struct Span {
    block: u32,
    start: u32,
    length: u32,
}

/// The bytes of all paths.
#[derive(Debug, Default)]
struct Arena(Vec<Vec<u8>>);

impl Arena {
    fn add(&mut self, path: &[u8]) -> Span {
        let free = self.0.last().map_or(0, |block| block.capacity() - block.len());
        if free < path.len() {
            self.0.push(Vec::with_capacity(path.len().max(NAME_BLOCK)));
        }
        let at = self.0.len() - 1;
        let block = &mut self.0[at];
        let start = block.len();
        block.extend_from_slice(path);
        let narrow = |number: usize| u32::try_from(number).expect("paths are shorter than four gigabytes");
        Span { block: narrow(at), start: narrow(start), length: narrow(path.len()) }
    }

    fn get(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        &self.0[span.block as usize][start..start + span.length as usize]
    }
}

impl Names {
    /// Notes that a rename moved what was at `from` to `to`.
    pub fn note_renamed(&mut self, from: NameId, to: NameId) {
        self.renamed_to.insert(from, to);
        self.renamed_from.insert(to, from);
    }

    /// The name that a rename moved here.
    pub fn renamed_from(&self, name: NameId) -> Option<NameId> {
        self.renamed_from.get(&name).copied()
    }

    /// The name that a rename moved this to.
    pub fn renamed_to(&self, name: NameId) -> Option<NameId> {
        self.renamed_to.get(&name).copied()
    }

    /// Notes that a hard link was made from `from` at `to`.
    pub fn note_linked(&mut self, from: NameId, to: NameId) {
        let known = self.linked_from.entry(to).or_default();
        if !known.contains(&from) {
            known.push(from);
        }
    }

    /// The names from which hard links were made here.
    pub fn linked_from(&self, name: NameId) -> &[NameId] {
        self.linked_from.get(&name).map_or(&[], Vec::as_slice)
    }

    /// The name `path`, if it is known.
    pub fn find(&self, path: &[u8]) -> Option<NameId> {
        self.index.find(self.hasher.hash_one(path), |name| self.path(*name) == path).copied()
    }

    /// The names below the path of a directory.
    pub fn below<'a>(&'a self, directory: &'a [u8]) -> impl Iterator<Item = NameId> + 'a {
        let all = (0..self.index.len()).map(NameId::of);
        all.filter(move |name| self.path(*name) != directory && is_below(self.path(*name), directory))
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.index.len()
    }

    /// The name that is added next.
    pub fn next(&self) -> NameId {
        NameId::of(self.index.len())
    }

    /// Adds the name of a path that has none.
    pub fn add(&mut self, path: Vec<u8>, name: Name) -> NameId {
        let span = self.bytes.add(&path);
        let id = NameId::of(self.entries.push(NameEntry { path: span, name }));
        let hash = self.hasher.hash_one(path.as_slice());
        let (entries, bytes, hasher) = (&self.entries, &self.bytes, &self.hasher);
        self.index.insert_unique(hash, id, |id| hasher.hash_one(bytes.get(entries.get(id.index()).path)));
        id
    }

    /// What is known of a name.
    pub fn get(&self, name: NameId) -> &Name {
        &self.entries.get(name.index()).name
    }

    /// The same, to change.
    pub fn get_mut(&mut self, name: NameId) -> &mut Name {
        &mut self.entries.get_mut(name.index()).name
    }

    /// The path of a name.
    pub fn path(&self, name: NameId) -> &[u8] {
        self.bytes.get(self.entries.get(name.index()).path)
    }

    /// The names with an operation, sorted by path bytes.
    pub fn sorted(&self) -> Vec<NameId> {
        let count = self.index.len();
        let mut found: Vec<NameId> =
            (0..count).map(NameId::of).filter(|name| !self.get(*name).operations.is_empty()).collect();
        found.sort_unstable_by_key(|name| self.path(*name));
        found
    }
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("count", &self.index.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Operation;

    #[test]
    fn a_name_keeps_sixteen_processes_and_counts_the_rest_once() {
        let mut name = Name::default();
        for round in 0..2 {
            for process in 1..=20 {
                name.merge(Operation::Read.into(), User::new(ProcessId(process), 1));
            }
            assert_eq!(name.uses.processes(), (1..=16).collect::<Vec<_>>(), "round {round}");
            assert_eq!(name.uses.count_beyond_named(), Some(20));
        }
    }

    #[test]
    fn a_name_keeps_what_each_program_of_a_process_did_up_to_a_limit() {
        let mut name = Name::default();
        let user = |process, programs| User::new(ProcessId(process), programs);
        name.merge(Operation::Write.into(), user(2, 0));
        for process in 3..=20 {
            name.merge(Operation::Existence.into(), user(process, 1));
        }
        name.merge(Operation::Read.into(), user(2, 1));
        name.merge(Operation::Execute.into(), user(2, 1));
        let of_second: Vec<_> = name.uses.named().filter(|(user, _)| user.process == 2).collect();
        let read_and_executed = Operations::from(Operation::Read).with(Operation::Execute);
        assert_eq!(of_second, [(user(2, 0), Operation::Write.into()), (user(2, 1), read_and_executed)]);
        for programs in 2..1000 {
            name.merge(Operation::Delete.into(), user(3, programs));
        }
        name.merge(Operation::Metadata.into(), user(3, 1000));
        assert_eq!(name.uses.named().count(), NAMED_USES);
        let all = name.uses.named().fold(Operations::NONE, |all, (_, operations)| all.union(operations));
        assert_eq!(all, name.operations);
        assert_eq!(name.uses.count_beyond_named(), Some(19));
    }

    #[test]
    fn every_path_is_found_again_whatever_its_length() {
        let mut names = Names::default();
        let path = |number: usize| format!("/{}{number}", "x".repeat(number * number % 70_000)).into_bytes();
        let added: Vec<_> = (0..300).map(|number| names.add(path(number), Name::default())).collect();
        for (number, name) in added.into_iter().enumerate() {
            assert_eq!(names.find(&path(number)), Some(name));
            assert_eq!(names.path(name), path(number));
        }
        assert_eq!(names.find(b"/nowhere"), None);
    }

    #[test]
    fn names_sort_by_path_bytes_and_unused_ones_are_left_out() {
        let mut names = Names::default();
        for path in ["/b", "/a/b", "/a.b", "/unused"] {
            let name = names.add(path.into(), Name::default());
            if path != "/unused" {
                names.get_mut(name).merge(Operation::Existence.into(), User::new(ProcessId(1), 0));
            }
        }
        let paths: Vec<_> = names.sorted().into_iter().map(|name| names.path(name)).collect();
        assert_eq!(paths, [&b"/a.b"[..], b"/a/b", b"/b"]);
    }
}
