//! The calls in flight that can change something, and which others have to wait for them.
//!
//! Two calls conflict if one makes, removes or replaces a name that the other walks or lists, or if both
//! change the number of hard links of one file: what the second one does is then known only when the first
//! has ended. Conflicting calls run one after the other; all others run at once. No call waits for one that
//! may block on something outside the tree (a FIFO, a program that serves a filesystem). Neighbour:
//! `changes.rs`, which announces calls and ends them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use crate::fs::parent_of;
use crate::observe::resolve::is_below;
use crate::trace::sys::Tid;

/// A call in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CallId(u64);

/// The names that a call walks, and those that it makes, removes or replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Where its paths lead, and the symlinks on the way.
    pub walked: SmallVec<[Vec<u8>; 2]>,
    /// Those of them that it changes.
    pub changed: SmallVec<[Vec<u8>; 2]>,
    /// The directories that it lists.
    pub listed: SmallVec<[Vec<u8>; 2]>,
    /// The files with several hard links whose number it changes, by device and inode number.
    pub hard_links: SmallVec<[(u64, u64); 2]>,
}

impl Footprint {
    fn conflicts_with(&self, other: &Footprint) -> bool {
        self.changes_way_of(other)
            || other.changes_way_of(self)
            || self.hard_links.iter().any(|file| other.hard_links.contains(file))
    }

    fn changes_way_of(&self, other: &Footprint) -> bool {
        self.changed.iter().any(|changed| {
            other.walked.iter().any(|path| is_below(path, changed))
                || other.listed.iter().any(|directory| parent_of(changed) == Some(directory))
        })
    }
}

#[derive(Debug)]
struct Call {
    footprint: Footprint,
    /// Whether it may change what other paths lead to, or where relative ones start.
    moves: bool,
}

/// Counts the calls that may change names, or what paths lead to, and says how to read where a path starts; may be read
/// without the lock on the recording.
#[derive(Debug, Default)]
pub struct PathChanges {
    begun: AtomicU64,
    ended: AtomicU64,
    starts_are_objects: AtomicBool,
}

impl PathChanges {
    /// How many calls there have been, if none of them is in flight. As long as this is the same, a name that was
    /// read from procfs in between is the same, too.
    pub fn at_rest(&self) -> Option<u64> {
        let begun = self.begun.load(Ordering::SeqCst);
        (self.ended.load(Ordering::SeqCst) == begun).then_some(begun)
    }

    /// Whether where a relative path starts is asked for by the directory itself, not by its path.
    pub fn starts_are_objects(&self) -> bool {
        self.starts_are_objects.load(Ordering::Relaxed)
    }

    /// Sets that.
    pub fn set_starts_are_objects(&self, are: bool) {
        self.starts_are_objects.store(are, Ordering::Relaxed);
    }
}

/// All calls in flight.
#[derive(Debug, Default)]
pub struct InFlight {
    calls: HashMap<CallId, Call, foldhash::fast::RandomState>,
    next: u64,
    moves: usize,
    changes: usize,
    path_changes: Arc<PathChanges>,
    /// The last open for reading of each thread, if nobody is told when it ends.
    unseen: HashMap<Tid, UnseenEnd, foldhash::fast::RandomState>,
}

/// A call whose end nobody is told: it is over when its thread does anything else. It changes nothing.
#[derive(Debug)]
struct UnseenEnd {
    footprint: Footprint,
    since: Instant,
}

impl InFlight {
    /// Notes that a thread begins a call whose end nobody is told.
    pub fn begin_unseen(&mut self, thread: Tid, footprint: Footprint) {
        debug_assert!(footprint.changed.is_empty(), "only opens for reading");
        self.unseen.insert(thread, UnseenEnd { footprint, since: Instant::now() });
    }

    /// Notes that such a call of a thread is over, if it has made one.
    pub fn end_unseen(&mut self, thread: Tid) {
        self.unseen.remove(&thread);
    }

    /// The threads whose calls with unseen ends are in the way of a call with this footprint, and since when.
    pub fn unseen_in_the_way(&self, footprint: &Footprint) -> Vec<(Tid, Instant)> {
        let ends = self.unseen.iter().filter(|(_, end)| end.footprint.conflicts_with(footprint));
        ends.map(|(thread, end)| (*thread, end.since)).collect()
    }

    /// Whether a call with this footprint has to wait for another.
    pub fn conflicts(&self, footprint: &Footprint) -> bool {
        let unseen = self.unseen.values().map(|end| &end.footprint);
        let mut others = self.calls.values().map(|call| &call.footprint).chain(unseen);
        others.any(|other| other.conflicts_with(footprint))
    }

    /// Notes that a call begins; `moves` of one that may change what paths lead to.
    pub fn begin(&mut self, footprint: Footprint, moves: bool) -> CallId {
        let id = CallId(self.next);
        self.next += 1;
        self.moves += usize::from(moves);
        let changes = !footprint.changed.is_empty();
        self.changes += usize::from(changes);
        self.path_changes.begun.fetch_add(u64::from(moves || changes), Ordering::SeqCst);
        self.calls.insert(id, Call { footprint, moves });
        id
    }

    /// Notes that it is over.
    pub fn end(&mut self, id: CallId) {
        if let Some(call) = self.calls.remove(&id) {
            self.moves -= usize::from(call.moves);
            let changes = !call.footprint.changed.is_empty();
            self.changes -= usize::from(changes);
            self.path_changes.ended.fetch_add(u64::from(call.moves || changes), Ordering::SeqCst);
        }
    }

    /// The counters of calls that may change names, or what paths lead to, for readers without the lock.
    pub fn path_changes(&self) -> &Arc<PathChanges> {
        &self.path_changes
    }

    /// Whether what is at `path` may be changing at this moment.
    pub fn may_change(&self, path: &[u8]) -> bool {
        self.calls.values().any(|Call { footprint, .. }| {
            footprint.walked.iter().any(|walked| walked == path)
                || footprint.changed.iter().any(|changed| is_below(path, changed))
        })
    }

    /// Whether what paths lead to may be changing at this moment.
    pub fn moves(&self) -> bool {
        self.moves > 0
    }

    /// Whether any name, or what paths lead to, may be changing at this moment.
    pub fn changes_paths(&self) -> bool {
        self.path_changes.at_rest().is_none()
    }

    /// Whether any name may be changing at this moment.
    pub fn changes(&self) -> bool {
        self.changes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(walked: &[&str], changed: &[&str]) -> Footprint {
        let bytes = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        Footprint { walked: bytes(walked), changed: bytes(changed), ..Footprint::default() }
    }

    #[test]
    fn a_name_that_changes_on_the_way_is_a_conflict() {
        let unlink = |path: &str| footprint(&[path], &[path]);
        let write = |path: &str| footprint(&[path], &[]);
        assert!(unlink("/d/f").conflicts_with(&write("/d/f")));
        assert!(write("/d/f").conflicts_with(&unlink("/d/f")), "whoever is first");
        assert!(unlink("/d").conflicts_with(&write("/d/f")), "a directory above it");
        assert!(unlink("/l").conflicts_with(&footprint(&["/d/f", "/l"], &[])), "a link on the way");
        assert!(!write("/d/f").conflicts_with(&write("/d/f")), "two writers change no name");
        assert!(!unlink("/d/f").conflicts_with(&unlink("/d/g")), "names in one directory");
        assert!(!unlink("/d/f").conflicts_with(&write("/d/fg")), "whole components");
        assert!(!unlink("/d/f").conflicts_with(&write("/d")), "the directory stays");
        let list = Footprint { listed: [b"/d".to_vec()].into_iter().collect(), ..write("/d") };
        assert!(unlink("/d/f").conflicts_with(&list) && !unlink("/d/e/f").conflicts_with(&list));
        let one_of_two =
            |path: &str| Footprint { hard_links: [(1, 2)].into_iter().collect(), ..unlink(path) };
        assert!(one_of_two("/d/f").conflicts_with(&one_of_two("/d/g")), "two names of one file");
    }

    #[test]
    fn a_call_that_is_over_is_in_nobodys_way() {
        let mut calls = InFlight::default();
        let rename = calls.begin(footprint(&["/a", "/b"], &["/a", "/b"]), true);
        let other = calls.begin(footprint(&["/c"], &[]), false);
        assert!(calls.conflicts(&footprint(&["/b/f"], &[])) && calls.moves() && calls.changes());
        assert!(calls.changes_paths() && calls.path_changes().at_rest().is_none());
        let may_change = |paths: &[&str]| paths.iter().all(|path| calls.may_change(path.as_bytes()));
        assert!(may_change(&["/a", "/b/f", "/c"]) && !may_change(&["/c/f"]) && !may_change(&["/ab"]));
        calls.end(rename);
        assert_eq!(calls.path_changes().at_rest(), Some(1));
        assert!(!calls.conflicts(&footprint(&["/b/f"], &[])) && !calls.moves() && !calls.changes());
        calls.end(other);
        calls.end(other);
        assert!(!calls.conflicts(&footprint(&["/c"], &["/c"])));
    }
}
