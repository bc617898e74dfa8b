//! The attributes of this process that the command is to inherit as we got them, and that we change for
//! ourselves: the signal mask, the resource limits, the umask.
//!
//! What a limit is for is the command: it must not end the recording, and the tree with it.
//! Neighbours: `launch.rs` gives them to the command.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::sys::SignalMask;

/// The limits that could end or hinder us (getrlimit(2)); a core of ours is nothing that anyone wants.
const LIMITS: [Resource; 14] = [
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_LOCKS,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_RSS,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_RTTIME,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_STACK,
];

/// What this process was started with.
#[derive(Clone, Copy)]
pub struct ProcessAttributes {
    mask: SignalMask,
    /// Soft and hard, in the order of [`LIMITS`]; none of one that is as it was.
    limits: [Option<(rlim_t, rlim_t)>; LIMITS.len()],
    umask: Mode,
}

impl ProcessAttributes {
    /// Blocks every signal in this thread, raises the limits of this process as far as it may, and has its
    /// umask take nothing from the owner of a file.
    ///
    /// Only CAP_SYS_RESOURCE raises a hard limit.
    pub fn replace() -> ProcessAttributes {
        let mask = SignalMask::block_all();
        let limits = LIMITS.map(|resource| {
            let (soft, hard) = getrlimit(resource).ok()?;
            raise(resource, soft, hard).then_some((soft, hard))
        });
        let before = umask(Mode::empty());
        umask(before & (Mode::S_IRWXG | Mode::S_IRWXO));
        ProcessAttributes { mask, limits, umask: before }
    }

    /// Gives them back to this process, which is to execute the command; async-signal-safe.
    pub fn restore(&self) {
        umask(self.umask);
        for (resource, limit) in LIMITS.into_iter().zip(self.limits) {
            if let Some((soft, hard)) = limit {
                let _ = setrlimit(resource, soft, hard);
            }
        }
        self.mask.restore();
    }
}

/// Whether it could be raised.
fn raise(resource: Resource, soft: rlim_t, hard: rlim_t) -> bool {
    // No process may have more descriptors than fs.nr_open, which is this where nobody has changed it.
    let most = if resource == Resource::RLIMIT_NOFILE { hard.max(1 << 20) } else { RLIM_INFINITY };
    (hard < most && setrlimit(resource, most, most).is_ok())
        || (soft < hard && setrlimit(resource, hard, hard).is_ok())
}
