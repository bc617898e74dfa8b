//! The lines of /proc/PID/status (proc_pid_status(5)).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::sys::Tid;

/// What the kernel says of a process or thread at one moment.
pub struct ProcStatus(String);

impl ProcStatus {
    /// Reads it; none where there is no such thread any more.
    pub fn of(tid: Tid) -> Option<ProcStatus> {
        ProcStatus::read(format!("/proc/{tid}/status").as_bytes())
    }

    /// Reads the file of a procfs that need not be ours.
    pub fn read(path: &[u8]) -> Option<ProcStatus> {
        std::fs::read_to_string(OsStr::from_bytes(path)).ok().map(ProcStatus)
    }

    /// The value of a line such as `TracerPid:`.
    pub fn line(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }
}

/// The process of a thread, and the parent of that.
pub(super) fn process_and_parent(tid: Tid) -> Option<(Tid, Tid)> {
    let status = ProcStatus::of(tid)?;
    let number = |name| status.line(name)?.parse().ok().map(Tid);
    Some((number("Tgid:")?, number("PPid:")?))
}
