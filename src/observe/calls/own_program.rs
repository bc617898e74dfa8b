//! Our own program, executed by a process of the tree: an agent undoes through its recorded shell.
//!
//! What it changes is not recorded, since its own rescue covers it. What the tree changed before that keeps the
//! state that it had then. Neighbours: `finish.rs` takes those states, `changes.rs` has every other call.

use super::changes::Pending;
use crate::observe::processes::OwnProgram;
use crate::observe::recording::Recording;
use crate::trace::observer::{Caller, Decision, SyscallEntry};
use crate::trace::syscalls::{Effect, Special};

/// Device and inode number of the program that `process` executes; none where there is no such process.
pub fn program_of(process: &str) -> Option<(u64, u64)> {
    let program = rustix::fs::stat(format!("/proc/{process}/exe")).ok()?;
    Some((program.st_dev, program.st_ino))
}

impl Recording {
    /// Notes whether the program that a process has just executed is ours.
    pub fn note_own_program(&mut self, caller: Caller) {
        let own = self.own_program.is_some() && program_of(&caller.tid.to_string()) == self.own_program;
        if let Some(traits) = self.processes.traits_mut(caller.tgid) {
            traits.own_program = if own { OwnProgram::Runs } else { OwnProgram::No };
        }
    }

    /// Whether a call is one of our own program, which continues unrecorded.
    pub fn is_own_call(&self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        self.processes.traits(caller.tgid).own_program != OwnProgram::No
            && !call.decoded.accesses.iter().any(|access| access.effect == Effect::Execute)
    }

    /// Lets a call of our own program continue that may change something, once the states are taken of what it
    /// may change.
    pub fn prepare_own_call(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        let located = self.locate_all(caller, call);
        let footprint = self.announcement(caller, &located).footprint;
        if self.ledger.in_flight.conflicts(&footprint) && !call.overdue {
            return Decision::Postpone;
        }
        if self.processes.traits(caller.tgid).own_program == OwnProgram::Runs {
            self.take_interim_states();
            if let Some(traits) = self.processes.traits_mut(caller.tgid) {
                traits.own_program = OwnProgram::Changes;
            }
        }
        for stat in located.iter().filter_map(|(_, place)| place.as_ref().ok()?.stat.as_ref()) {
            self.byte_store.capture.settle((stat.st_dev, stat.st_ino));
        }
        let id = self.ledger.in_flight.begin(footprint, true);
        self.resolver.pause(true);
        // Which file a descriptor stands for is no matter.
        let names_a_file =
            |special: &Special| matches!(special, Special::UnnamedOpen { .. } | Special::Received { .. });
        let special = call.decoded.special.filter(|special| !names_a_file(special));
        Decision::AwaitResult(Pending::of_own_call(call.name, special, id))
    }

    /// Forgets what is known of names, directories that were replaced included.
    pub fn forget_all_names(&mut self) {
        self.resolver.forget_all();
        self.lookups.forget();
    }
}
