//! Tells whether a signal was sent to the front alone or to its whole process group.
//!
//! The kernel does not say so. A second process of the group, which only lets signals pend, has those that
//! were sent to the group. Neighbour: `front.rs`, which forwards the others to the command.

use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::{self, Tid};

/// The signals that stop a process (signal(7)), as bits of a mask.
pub const STOPS: u64 = bit(libc::SIGSTOP) | bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);

/// A process in our process group that lets every signal pend.
pub struct Witness {
    process: Option<Tid>,
    /// What pended in a process that was replaced, and was not asked for yet.
    left: u64,
}

impl Witness {
    /// Starts it; all signals have to be blocked. Where none can be started, no signal counts as sent to the
    /// group.
    pub fn start() -> Witness {
        Witness { process: sys::fork_witness().ok(), left: 0 }
    }

    /// Whether `signal` was sent to the whole group since the last time that this was asked of it.
    pub fn has_received(&mut self, signal: i32) -> bool {
        while pending(self.process) != 0 {
            // A signal that pends says nothing of the next one. The new process comes before the old one is
            // looked at, so that one of them has whatever is sent meanwhile.
            let next = sys::fork_witness().ok();
            self.left |= pending(self.process);
            self.end();
            self.process = next;
        }
        // A SIGCONT discards the stop signals that pend, and the other way round (signal(7)): what discarded this
        // one came later, and was sent to the group.
        let ends = match signal {
            libc::SIGCONT => STOPS,
            _ if bit(signal) & STOPS != 0 => bit(libc::SIGCONT),
            _ => 0,
        };
        let received = self.left & (bit(signal) | ends) != 0;
        self.left &= !bit(signal);
        received
    }

    /// Ends it: no signal counts as sent to the group any more.
    pub fn end(&mut self) {
        if let Some(witness) = self.process.take() {
            let _ = sys::kill(witness, libc::SIGKILL);
            let _ = sys::wait_for_end(witness);
        }
    }
}

/// The signals that pend for all threads of a process.
pub fn pending(process: impl Into<Option<Tid>>) -> u64 {
    let status = process.into().and_then(ProcStatus::of);
    let mask = status.as_ref().and_then(|status| status.line("ShdPnd:"));
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
}

/// The place of a signal in a mask.
const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.end();
    }
}
