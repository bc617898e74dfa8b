//! The credentials that decide what a thread may do with files (credentials(7), capabilities(7)), and in
//! which user namespace they count.
//!
//! Programs set them to what they are already (make does so before each command): that a call was made
//! says nothing.

use rustix::process::Pid;
use rustix::thread::{CapabilitySets, capabilities};

use crate::trace::sys::Tid;

/// The lines of /proc/TID/status that tell of credentials, but for what capget(2) tells (proc_pid_status(5)).
const LINES: [&[u8]; 5] = [b"Uid:", b"Gid:", b"Groups:", b"CapBnd:", b"CapAmb:"];

/// Credentials, to be compared with those of another thread.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The lines of its status, and the name of its user namespace.
    status: Vec<u8>,
    /// Effective, permitted and inheritable ones.
    capabilities: CapabilitySets,
}

impl Credentials {
    /// Those of a thread; none if /proc does not show them.
    pub fn of(tid: Tid) -> Option<Credentials> {
        let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
        // What they are worth outside of it, only the first namespace tells (user_namespaces(7)).
        let namespace = rustix::fs::readlink(format!("/proc/{tid}/ns/user"), Vec::new()).ok()?;
        let lines = status.split_inclusive(|byte| *byte == b'\n');
        let lines = lines.filter(|line| LINES.iter().any(|name| line.starts_with(name)));
        let status = lines.chain([namespace.to_bytes()]).flatten().copied().collect();
        Some(Credentials { status, capabilities: capabilities(Pid::from_raw(tid.0)).ok()? })
    }

    /// Whether a thread that had these still has them after it has executed files without set-ID bits.
    ///
    /// Without those bits execve(2) changes no user and no group. Whether it has changed capabilities, capget(2) tells
    /// in 0.3 µs; reading the status takes 13 µs.
    pub fn survive_execve(&self, tid: Tid) -> bool {
        capabilities(Pid::from_raw(tid.0)).is_ok_and(|now| now == self.capabilities)
    }
}
