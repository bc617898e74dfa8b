//! Random bytes that the tree asks for: what it makes of them is another thing at each run.
//!
//! The GNU C library asks, too: once in each program for a key by which malloc finds errors, and now and then for the name
//! of a temporary file, which it then makes. Neither shows in what a program does.

use std::collections::HashSet;

use super::recording::Recording;
use crate::trace::observer::Caller;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{DecodedSyscall, Effect};

/// Who asked for random bytes.
#[derive(Debug, Default)]
pub struct RandomBytes {
    /// Whether a program did.
    by_a_program: bool,
    /// The processes whose malloc has got its key.
    keyed: HashSet<Tid>,
    /// The threads that asked once more, and whose next call tells for what.
    asking: HashSet<Tid>,
}

impl RandomBytes {
    /// Whether a program asked for any.
    pub fn were_asked_for(&self) -> bool {
        self.by_a_program || !self.asking.is_empty()
    }

    /// Notes that a process has started, with the memory of its parent.
    pub fn started(&mut self, process: Tid, parent: Tid) {
        if self.keyed.contains(&parent) {
            self.keyed.insert(process);
        }
    }

    /// Notes that a process executes another program.
    pub fn executed(&mut self, process: Tid) {
        self.keyed.remove(&process);
    }
}

impl Recording {
    /// Notes that a thread asks for random bytes.
    pub fn asks_for_random_bytes(&mut self, caller: Caller, may_be_of_libc: bool) {
        if !may_be_of_libc {
            self.random_bytes.by_a_program = true;
        } else if !self.random_bytes.keyed.insert(caller.tgid) {
            self.random_bytes.asking.insert(caller.tid);
        }
    }

    /// Judges by the call after it whether a thread asked for the name of a temporary file.
    pub fn judge_random_bytes(&mut self, caller: Caller, next: &DecodedSyscall) {
        let asking = &mut self.random_bytes.asking;
        if asking.is_empty() || !asking.remove(&caller.tid) {
            return;
        }
        let makes = |effect| match effect {
            Effect::Open(open) => open.create && open.exclusive,
            Effect::MakeDirectory => true,
            _ => false,
        };
        self.random_bytes.by_a_program |= !next.accesses.iter().any(|access| makes(access.effect));
    }
}
