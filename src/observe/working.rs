//! The working directories of threads, which /proc is not asked for again at each look.
//!
//! What it said is believed for a moment only, since another program may rename a directory, and not
//! while a call is under way that gives a thread another directory or a directory another name.
//! Neighbours: `lookups.rs` asks, `changes.rs` tells of such calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::trace::sys::Tid;

/// So long what /proc said is believed: nobody can learn of it, start a program and have it rename a
/// directory within this time.
const BELIEVED_FOR: Duration = Duration::from_micros(200);

/// How many threads are remembered at most.
const LIMIT: usize = 64;

/// What /proc has just said.
#[derive(Debug, Default)]
pub struct WorkingDirectories {
    told: HashMap<Tid, (Instant, Vec<u8>), foldhash::fast::RandomState>,
    /// How many calls are under way that may change what it says.
    moves: usize,
}

impl WorkingDirectories {
    /// The directory of a thread; `ask` asks /proc.
    pub fn of<E>(&mut self, tid: Tid, ask: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        if self.moves() {
            return ask();
        }
        let now = Instant::now();
        if let Some((then, directory)) = self.told.get(&tid)
            && now - *then < BELIEVED_FOR
        {
            return Ok(directory.clone());
        }
        let directory = ask()?;
        if self.told.len() >= LIMIT {
            self.told.clear();
        }
        self.told.insert(tid, (now, directory.clone()));
        Ok(directory)
    }

    /// Notes that a call begins that may change what was told.
    pub fn move_begins(&mut self) {
        self.moves += 1;
        self.told.clear();
    }

    /// Whether such a call is under way.
    pub fn moves(&self) -> bool {
        self.moves > 0
    }

    /// Notes that it is over.
    pub fn move_ends(&mut self) {
        self.moves = self.moves.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &mut WorkingDirectories, tid: i32, now: &str) -> String {
        let told: Result<_, ()> = all.of(Tid(tid), || Ok(now.into()));
        String::from_utf8(told.unwrap()).unwrap()
    }

    #[test]
    fn what_was_told_is_believed_until_a_move_begins_and_for_a_moment_only() {
        let mut all = WorkingDirectories::default();
        // However slowly this runs, one answer of many comes soon enough.
        assert!((0..1000).any(|_| of(&mut all, 1, "/a") == "/a" && of(&mut all, 1, "/b") == "/a"));
        assert_eq!(of(&mut all, 2, "/b"), "/b", "another thread");
        all.move_begins();
        assert_eq!(of(&mut all, 1, "/b"), "/b");
        assert_eq!(of(&mut all, 1, "/c"), "/c", "nothing is believed meanwhile");
        all.move_begins();
        all.move_ends();
        assert_eq!(of(&mut all, 1, "/d"), "/d", "nor while another is under way");
        all.move_ends();
        assert_eq!(of(&mut all, 1, "/e"), "/e");
        let begun = Instant::now();
        while begun.elapsed() <= BELIEVED_FOR {
            std::hint::spin_loop();
        }
        assert_eq!(of(&mut all, 1, "/f"), "/f");
    }
}
