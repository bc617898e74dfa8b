//! The credentials that decide what a thread may do with files (credentials(7), capabilities(7)), and in
//! which user namespace they count.
//!
//! Programs set them to what they are already (make does so before each command): that a call was made
//! says nothing.

use crate::trace::sys::Tid;

/// The lines of /proc/TID/status that tell of credentials (proc_pid_status(5)).
const LINES: [&[u8]; 8] =
    [b"Uid:", b"Gid:", b"Groups:", b"CapInh:", b"CapPrm:", b"CapEff:", b"CapBnd:", b"CapAmb:"];

/// Credentials, to be compared with those of another thread.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials(Vec<u8>);

impl Credentials {
    /// Those of a thread; none if /proc does not show them.
    pub fn of(tid: Tid) -> Option<Credentials> {
        let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
        // What they are worth outside of it, only the first namespace tells (user_namespaces(7)).
        let namespace = rustix::fs::readlink(format!("/proc/{tid}/ns/user"), Vec::new()).ok()?;
        let lines = status.split_inclusive(|byte| *byte == b'\n');
        let lines = lines.filter(|line| LINES.iter().any(|name| line.starts_with(name)));
        Some(Credentials(lines.chain([namespace.to_bytes()]).flatten().copied().collect()))
    }
}
