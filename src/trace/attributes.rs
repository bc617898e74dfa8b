//! Process attributes that this process changes for itself, and gives back before it executes the command:
//! the signal mask, the resource limits, the umask.
//!
//! A limit is meant for the command: reaching it must not end the recording, and the tree with it.
//! Neighbour: `launch.rs` restores them in the child.

use nix::sys::signal::SigSet;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use super::sys::block_signals;

/// The limits that could end or hinder us (getrlimit(2)). RLIMIT_CORE is not: nobody wants a core dump of
/// ours.
const LIMITS: [Resource; 14] = [
    Resource::As,
    Resource::Cpu,
    Resource::Data,
    Resource::Fsize,
    Resource::Locks,
    Resource::Memlock,
    Resource::Msgqueue,
    Resource::Nofile,
    Resource::Nproc,
    Resource::Rss,
    Resource::Rtprio,
    Resource::Rttime,
    Resource::Sigpending,
    Resource::Stack,
];

/// The attributes that this process was started with.
#[derive(Clone, Copy)]
pub struct ProcessAttributes {
    mask: SigSet,
    /// In the order of [`LIMITS`]; none for a limit that was not raised.
    limits: [Option<Rlimit>; LIMITS.len()],
    umask: Mode,
}

impl ProcessAttributes {
    /// Blocks every signal in this thread, raises the limits of this process as far as it may, and clears the
    /// owner's bits of its umask.
    ///
    /// Only CAP_SYS_RESOURCE raises a hard limit.
    pub fn replace() -> ProcessAttributes {
        let mask = block_signals();
        let limits = LIMITS.map(|resource| {
            let before = getrlimit(resource);
            raise(resource, before).then_some(before)
        });
        let before = umask(Mode::empty());
        umask(before & (Mode::RWXG | Mode::RWXO));
        ProcessAttributes { mask, limits, umask: before }
    }

    /// Gives them back to this process, which is about to execute the command; async-signal-safe.
    pub fn restore(&self) {
        umask(self.umask);
        for (resource, limit) in LIMITS.into_iter().zip(self.limits) {
            if let Some(limit) = limit {
                let _ = setrlimit(resource, limit);
            }
        }
        let _ = self.mask.thread_set_mask();
    }
}

/// Raises a limit as far as it may; whether it was changed.
fn raise(resource: Resource, before: Rlimit) -> bool {
    let value = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    // No process may have more descriptors than fs.nr_open, whose default this is.
    let most = match (resource, before.maximum) {
        (Resource::Nofile, Some(hard)) => Some(hard.max(1 << 20)),
        _ => None,
    };
    let set = |limit| setrlimit(resource, Rlimit { current: limit, maximum: limit }).is_ok();
    value(before.maximum) < value(most) && set(most)
        || value(before.current) < value(before.maximum) && set(before.maximum)
}
