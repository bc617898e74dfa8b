//! Tells whether a signal was sent to the front alone or to its whole process group.
//!
//! The kernel does not say so. A second process of the group, which only lets signals pend, has those that
//! were sent to the group. Neighbour: `front.rs`, which forwards the others to the command.

use crate::trace::sys::{self, Tid};

/// A process in our process group that lets every signal pend.
pub struct Witness(Option<Tid>);

impl Witness {
    /// Starts it; all signals have to be blocked. Where none can be started, no signal counts as sent to the
    /// group.
    pub fn start() -> Witness {
        Witness(sys::fork_witness().ok())
    }

    /// Whether `signal` was sent to the whole group since the last time that this was asked of it.
    pub fn has_received(&mut self, signal: i32) -> bool {
        let Some(witness) = self.0 else { return false };
        let status = std::fs::read_to_string(format!("/proc/{witness}/status")).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        let received = pending & 1 << (signal - 1) != 0;
        if received {
            // A signal that pends says nothing of the next one.
            self.end();
            *self = Witness::start();
        }
        received
    }

    fn end(&mut self) {
        if let Some(witness) = self.0.take() {
            let _ = sys::kill(witness, libc::SIGKILL);
            let _ = sys::wait_for_end(witness);
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.end();
    }
}
