//! What is known of names and inodes, and the one way in which a change is applied.
//!
//! The kernel has names and inodes, and so has the ledger: a name stood for nothing or for an inode at first
//! sight; bytes, attributes and hard links are the inode's. A call that can change something is announced
//! (`in_flight.rs`), what it may destroy is protected (`protect.rs`), and what it did is applied
//! (`apply.rs`). Calls, core dumps, inherited and received descriptors all go this way. Neighbours:
//! `recording.rs` classifies paths, `calls/` says what calls do, `finish.rs` reads the ledger at the end.

pub mod apply;
mod blocks;
mod entries;
pub mod found;
pub mod ids;
pub mod in_flight;
pub mod inodes;
pub mod names;
pub mod protect;

use std::collections::{HashMap, HashSet};

use self::found::FoundStates;
use self::ids::{InodeId, NameId, ProcessId};
use self::in_flight::InFlight;
use self::inodes::{Inode, Inodes};
use self::names::{Names, User};
use crate::fs::{FileStat, parent_of};
use crate::snapshot::{Operation, Operations, Seen};

/// The names and inodes of a recording.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The names, one per path.
    pub names: Names,
    /// The inodes, one per file that a name stood for.
    pub inodes: Inodes,
    /// Whether any inode was only appended to, through a descriptor from before the launch.
    pub(super) appends: bool,
    /// The calls that may be changing something at this moment.
    pub in_flight: InFlight,
    /// How many programs each process has executed itself, by its number; 0 beyond the end.
    programs: Vec<u16>,
    /// Names that are gone from directories which were not listed yet, by directory.
    pub(super) gone: HashMap<Vec<u8>, Vec<Vec<u8>>, foldhash::fast::RandomState>,
    /// The names to which our own program has put something else, called by a process of the tree.
    pub(super) put_by_us: HashSet<NameId, foldhash::fast::RandomState>,
    /// The names that calls of another recording's tree have changed.
    pub(in crate::observe) changed_by_others: HashSet<NameId, foldhash::fast::RandomState>,
    /// The names on which the process that had made them mounted something, and those of directories that it made
    /// above them.
    pub mount_points: HashSet<NameId, foldhash::fast::RandomState>,
    /// Whether the recording may be recalled: then what the tree learns of each name before it changes it is noted.
    pub for_recall: bool,
    /// The states that were found at the end, or meanwhile, of what is not as before.
    pub found: FoundStates,
    /// When the first call began that changed each name, in microseconds since 1970, if that is noted.
    pub(super) first_changes: Option<HashMap<NameId, u64, foldhash::fast::RandomState>>,
    /// When the first call began that changed each inode in place, by any of its names.
    first_changes_in_place: HashMap<InodeId, u64, foldhash::fast::RandomState>,
    /// The names that had been changed before times were noted.
    changed_early: HashSet<NameId, foldhash::fast::RandomState>,
    /// When the recording began, in microseconds since 1970.
    began_us: u64,
    /// When the last state was taken of each name that had been changed by then.
    taken_us: HashMap<NameId, u64, foldhash::fast::RandomState>,
    /// The directory without a record in which a name was last changed.
    pub(super) last_changed_in: Vec<u8>,
    /// What was changed since interim states were taken.
    pub(super) changes_since_interim: Option<ChangesSinceInterim>,
}

/// What calls have changed since interim states were taken.
#[derive(Debug, Default)]
pub struct ChangesSinceInterim {
    /// The names, and whether they stand for something else now.
    pub names: HashMap<NameId, bool, foldhash::fast::RandomState>,
    /// What was changed in place.
    pub inodes: HashSet<InodeId, foldhash::fast::RandomState>,
}

/// Now, in microseconds since 1970.
pub fn now_us() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or_default()
}

impl Ledger {
    /// An empty ledger of a recording that may be recalled if `for_recall`.
    pub fn new(for_recall: bool) -> Ledger {
        Ledger { for_recall, began_us: now_us(), ..Ledger::default() }
    }

    /// Whether the times of changes are noted.
    pub(in crate::observe) fn notes_change_times(&self) -> bool {
        self.first_changes.is_some()
    }

    /// Notes the times of changes from now on.
    pub fn note_change_times(&mut self) {
        if self.first_changes.is_none() {
            self.first_changes = Some(HashMap::default());
            self.changed_early =
                self.names.sorted().into_iter().filter(|name| self.changes(*name) > 0).collect();
        }
    }

    /// Notes that a call which began at this time has changed a name, or a file in place.
    fn note_change(&mut self, name: Option<NameId>, in_place: Option<InodeId>, began: u64) {
        let Some(first_changes) = &mut self.first_changes else { return };
        let earlier = |first: &mut u64| *first = began.min(*first);
        if let Some(name) = name {
            first_changes.entry(name).and_modify(earlier).or_insert(began);
        }
        if let Some(inode) = in_place {
            self.first_changes_in_place.entry(inode).and_modify(earlier).or_insert(began);
        }
    }

    /// Notes that the states of these names have been taken.
    pub(super) fn note_taken(&mut self, names: impl Iterator<Item = NameId>) {
        let now = now_us();
        let changed: Vec<_> = names.filter(|name| self.changes(*name) > 0).collect();
        self.taken_us.extend(changed.into_iter().map(|name| (name, now)));
    }

    /// Notes that these names may have been changed until now, although their states were taken earlier.
    pub(super) fn extend_to_now(&mut self, names: &[NameId]) {
        let now = now_us();
        for name in names {
            self.taken_us.entry(*name).and_modify(|taken| *taken = now);
        }
    }

    /// When the first call began that changed a name, and when its last state was taken, if times are noted.
    pub fn changed_between(&self, name: NameId) -> Option<(u64, u64)> {
        let first_changes = self.first_changes.as_ref().filter(|_| self.changes(name) > 0)?;
        let in_place = self.names.get(name).before.and_then(|inode| self.first_changes_in_place.get(&inode));
        let first = first_changes.get(&name).into_iter().chain(in_place).min().copied();
        // A change before times were noted may have been at any time since the beginning.
        let first = first.filter(|_| !self.changed_early.contains(&name)).unwrap_or(self.began_us);
        Some((first, *self.taken_us.get(&name)?))
    }

    /// Notes that `process` has mounted something on a path.
    pub fn mounted_on(&mut self, path: &[u8], process: ProcessId) {
        let mut above = std::iter::successors(Some(path), |path| parent_of(path));
        while let Some(id) = above.next().and_then(|path| self.names.find(path))
            && let name = self.names.get(id)
            && name.before.is_none()
            && name.uses.of(process).contains(Operation::Write)
        {
            self.mount_points.insert(id);
        }
    }

    /// Notes that `process` used a name.
    pub fn merge(&mut self, name: NameId, operations: Operations, process: ProcessId) {
        // What a change learns, its effect says.
        if !operations.intersects(Operations::CHANGES) {
            self.see(name, Seen::by(operations));
        }
        let programs = self.programs.get(process.0 as usize).copied().unwrap_or(0);
        self.names.get_mut(name).merge(operations, User::new(process, programs));
    }

    /// Notes what the tree learns of a name, unless it has changed that before.
    pub fn see(&mut self, name: NameId, seen: Seen) {
        if self.for_recall && self.changes(name) == 0 {
            let known = self.names.get_mut(name);
            known.seen = known.seen.union(seen);
        }
    }

    /// Notes that `process` has executed another program, which makes its uses from now on.
    pub fn note_program(&mut self, process: ProcessId) {
        let index = process.0 as usize;
        if self.programs.len() <= index {
            self.programs.resize(index + 1, 0);
        }
        self.programs[index] = self.programs[index].saturating_add(1);
    }

    /// The inode that a name stood for at first sight.
    pub fn before(&self, name: NameId) -> Option<&Inode> {
        self.names.get(name).before.map(|inode| self.inodes.get(inode))
    }

    /// Whether the file that lstat(2) has found was only appended to, through a descriptor from before the
    /// launch.
    pub fn is_appended(&self, stat: &FileStat) -> bool {
        self.inodes.of(stat).is_some_and(|id| self.inodes.get(id).appended)
    }

    /// How many traced calls changed what a name stands for, by this name or another one.
    pub fn changes(&self, name: NameId) -> u32 {
        let own = self.names.get(name).changes;
        self.before(name).map_or(own, |inode| own.wrapping_add(inode.changes))
    }

    /// Whether a name still stands for the inode that it stood for at first sight, as far as calls tell.
    pub fn is_bound_to(&self, name: NameId, inode: InodeId) -> bool {
        let name = self.names.get(name);
        name.before == Some(inode) && !name.rebound
    }
}
