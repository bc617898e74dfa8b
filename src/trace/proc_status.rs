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

/// Whether a thread has left its memory, or is gone: it makes no call any more, and its other files in procfs are root's.
pub fn has_ended(tid: Tid) -> bool {
    ProcStatus::of(tid).is_none_or(|status| status.line("VmSize:").is_none())
}

/// What a thread is doing at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It runs, or may: in a system call or not.
    Runs,
    /// It waits in a system call of this number; none where it is in no system call.
    Waits(Option<u64>),
    /// It has ended.
    Gone,
}

impl Activity {
    /// Reads it (/proc/PID/syscall, proc_pid_syscall(5)).
    pub fn of(tid: Tid) -> Activity {
        let read = std::fs::read_to_string(format!("/proc/{tid}/syscall"));
        let text = match read {
            Ok(text) => text,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {
                return Activity::Gone;
            }
            Err(_) => return Activity::Runs,
        };
        let number = text.split_ascii_whitespace().next().map(str::parse::<i64>);
        number.and_then(Result::ok).map_or(Activity::Runs, |number| Activity::Waits(number.try_into().ok()))
    }
}

/// The process of a thread, and the parent of that.
pub(super) fn process_and_parent(tid: Tid) -> Option<(Tid, Tid)> {
    let status = ProcStatus::of(tid)?;
    let number = |name| status.line(name)?.parse().ok().map(Tid);
    Some((number("Tgid:")?, number("PPid:")?))
}
