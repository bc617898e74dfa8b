//! Whether the system calls that a recording needs work here; if one does not, who seems to forbid it, and what works
//! without it.
//!
//! Each is tried: a container or sandbox may forbid what the kernel has, and some kernels are not Linux.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, MemfdFlags, Mode, OFlags, ResolveFlags, StatxFlags, flock, memfd_create,
    open, openat2, statx,
};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde::Serialize;

use super::Check;
use crate::fs::DIRECTORY;
use crate::snapshot::printable;
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::arch::CAN_FORCE_RESTART;
use crate::trace::sys::{self, Tid};
use crate::trace::{seqpacket, trials};

/// A call.
struct Call {
    name: &'static str,
    /// The first version of Linux that has it as we need it.
    since: (u32, u32),
    attempt: fn() -> io::Result<()>,
    /// What becomes of recordings without it; none if there are none.
    without: Option<&'static str>,
    /// The call without which this one can't be tried.
    needs: Option<&'static str>,
}

const fn call(name: &'static str, since: (u32, u32), attempt: fn() -> io::Result<()>) -> Call {
    Call { name, since, attempt, without: None, needs: None }
}

impl Call {
    const fn without(self, what: &'static str) -> Call {
        Call { without: Some(what), ..self }
    }

    const fn needs(self, call: &'static str) -> Call {
        Call { needs: Some(call), ..self }
    }
}

/// The calls that may be missing or forbidden, each behind the one that it needs.
const CALLS: [Call; 14] = [
    call(PIDFD_OPEN, (5, 3), || own_pidfd().map(drop)),
    call("signalfd", (2, 6), || sys::signal_descriptor().map(drop)),
    call("eventfd", (2, 6), || Ok(eventfd(0, EventfdFlags::CLOEXEC).map(drop)?)),
    call("socketpair", (2, 6), || seqpacket::pair().map(drop)),
    call("statx", (4, 11), || Ok(statx(CWD, "/", AtFlags::empty(), StatxFlags::empty()).map(drop)?)),
    call(SEIZE, (3, 8), trials::seize),
    call("ptrace (PTRACE_GET_SYSCALL_INFO)", (5, 3), trials::syscall_info).needs(SEIZE),
    call("process_vm_readv", (3, 2), trials::read_memory)
        .needs(SEIZE)
        .without("paths are read from /proc/PID/mem, which is slower"),
    call(FILTER, (3, 17), trials::filter)
        .without("each system call of a command stops twice, which is slower"),
    call("openat2", (5, 6), || {
        Ok(openat2(CWD, "/", DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS).map(drop)?)
    })
    .without("the directories of a path are opened one by one, which is slower"),
    call("memfd_create", (3, 17), || Ok(memfd_create("doctor", MemfdFlags::CLOEXEC).map(drop)?))
        .without("redo --merge fails where files were changed since"),
    call("pidfd_getfd", (5, 6), || {
        let (pipe, _) = io::pipe()?;
        Ok(pidfd_getfd(own_pidfd()?, pipe.as_raw_fd(), PidfdGetfdFlags::empty()).map(drop)?)
    })
    .needs(PIDFD_OPEN)
    .without("a send that a signal interrupts may fail with EINTR where alone it would not"),
    call("close_range", (5, 9), sys::has_close_range).without("descriptors are closed one by one"),
    call("mseal", (6, 10), sys::try_mseal).without("rules are enforced by --enforce=best-effort alone"),
];

const PIDFD_OPEN: &str = "pidfd_open";
const SEIZE: &str = "ptrace (PTRACE_SEIZE)";
const FILTER: &str = "seccomp (SECCOMP_SET_MODE_FILTER)";

fn own_pidfd() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

/// A call that does not work here.
#[derive(Debug, Serialize)]
pub struct Refused {
    call: &'static str,
    /// The message of its error.
    error: String,
    by: By,
}

/// Who seems to forbid a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum By {
    /// A seccomp filter.
    Filter,
    /// A kernel that is too old, or has it not for another reason.
    Kernel,
    /// gVisor, which has some calls of Linux.
    Gvisor,
    /// A missing capability, Yama, or a security module.
    Privilege,
    /// Who has set a listener for the filters of this process: there can be one.
    Listener,
}

/// What is known of this process and its kernel.
struct Host {
    release: String,
    version: (u32, u32),
    is_gvisor: bool,
    has_filter: bool,
}

impl Host {
    fn of_this_process() -> Host {
        let name = rustix::system::uname();
        let release = printable(name.release().to_bytes()).into_owned();
        let mut numbers =
            release.split(|byte: char| !byte.is_ascii_digit()).map_while(|part| part.parse().ok());
        let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        // The build that gVisor says it is, whatever its release.
        let is_gvisor =
            release.contains("gvisor") || name.version().to_bytes() == b"#1 SMP Sun Jan 10 15:06:54 PST 2016";
        let status = ProcStatus::of(Tid(std::process::id().cast_signed()));
        let has_filter = status.is_some_and(|status| status.line("Seccomp:") == Some("2"));
        Host { release, version, is_gvisor, has_filter }
    }

    /// Who seems to have made a call fail that Linux has since a version.
    fn blame(&self, error: &io::Error, since: (u32, u32)) -> By {
        match error.raw_os_error() {
            // Only a filter kills.
            None => By::Filter,
            Some(libc::EBUSY) => By::Listener,
            _ if self.is_gvisor => By::Gvisor,
            Some(libc::ENOSYS | libc::EINVAL | libc::EIO | libc::ENOTTY) if self.version < since => {
                By::Kernel
            }
            _ if self.has_filter => By::Filter,
            Some(libc::EPERM | libc::EACCES) => By::Privilege,
            _ => By::Kernel,
        }
    }

    /// Who that is, and what to do about it.
    fn explain(&self, by: By, (major, minor): (u32, u32)) -> (String, String) {
        let (who, advice) = match by {
            By::Filter => (
                "a seccomp filter forbids it".to_owned(),
                "permit it in the seccomp profile of the container or sandbox".to_owned(),
            ),
            By::Kernel => (
                format!("Linux {} does not have it", self.release),
                format!("it needs Linux {major}.{minor} with that call built in"),
            ),
            By::Gvisor => (
                "gVisor does not have it".to_owned(),
                "run the container by another runtime than runsc".to_owned(),
            ),
            By::Privilege => (
                "a capability is missing, or Yama, AppArmor or SELinux forbids it".to_owned(),
                "in a container add the capability SYS_PTRACE; else ask who administers this machine"
                    .to_owned(),
            ),
            By::Listener => (
                "a sandbox or container has a listener for the filters of this process".to_owned(),
                "run outside of it for faster recordings".to_owned(),
            ),
        };
        (who, advice)
    }

    fn refused(
        &self,
        call: &'static str,
        error: &io::Error,
        since: (u32, u32),
        without: Option<&str>,
    ) -> Check {
        let by = self.blame(error, since);
        let (who, advice) = self.explain(by, since);
        let without = without.unwrap_or("without it nothing can be recorded, and commands run unrecorded");
        let found = format!("{call} fails ({error}): {who}; {without}");
        let refused = Refused { call, error: error.to_string(), by };
        Check { refused: Some(refused), ..Check::note("call", found).advise(advice) }
    }
}

/// Tries all of them, but few unless `is_traceable`: something else is known to be in the way of ptrace. The library is in
/// `directory`.
pub fn checks(is_traceable: bool, directory: Option<&Path>) -> Vec<Check> {
    let host = Host::of_this_process();
    let mut checks: Vec<Check> = Vec::new();
    let is_refused = |checks: &[Check], call: &str| {
        checks.iter().any(|check| check.refused.as_ref().is_some_and(|refused| refused.call == call))
    };
    for call in &CALLS {
        let is_told = call.needs.is_some_and(|needed| is_refused(&checks, needed));
        if is_told || !is_traceable && (call.name == SEIZE || call.needs == Some(SEIZE)) {
            continue;
        }
        let tried = match trials::in_child(call.attempt) {
            Ok(tried) => tried,
            Err(error) => return vec![no_child(&error)],
        };
        if let Err(error) = tried {
            let check = host.refused(call.name, &error, call.since, call.without);
            checks.push(if call.without.is_none() { check.wrong() } else { check });
        }
    }
    if !is_traceable {
        return checks;
    }
    checks.extend(directory.into_iter().flat_map(|directory| in_library(&host, directory)));
    if checks.is_empty() {
        checks.push(Check::fine("calls", "all system calls that a recording needs work"));
    }
    if !is_refused(&checks, FILTER) {
        checks.push(kernel(&host));
    }
    checks
}

fn no_child(error: &io::Error) -> Check {
    Check::finding("calls", format!("no process can be started to try them: {error}"), "raise ulimit -u")
}

/// What the filesystem of the library lacks.
fn in_library(host: &Host, directory: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    let unnamed = open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    // A filesystem that is read-only or full is told elsewhere.
    if let Err(error @ (Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOSYS)) = unnamed {
        let without = "new files have a name there until they are complete";
        let found = format!("the filesystem of the library has no O_TMPFILE ({error}): {without}");
        checks.push(Check::note("call", found));
    }
    let locked = open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|directory| flock(directory, FlockOperation::NonBlockingLockShared));
    if let Err(error) = locked
        && error != Errno::WOULDBLOCK
    {
        let without = "do not record, undo and delete in several processes at once";
        checks.push(host.refused("flock", &error.into(), (2, 0), Some(without)));
    }
    checks
}

/// By which mechanism the kernel lets us see calls.
fn kernel(host: &Host) -> Check {
    let release = &host.release;
    if !CAN_FORCE_RESTART {
        let arch = std::env::consts::ARCH;
        return Check::fine("kernel", format!("Linux {release} on {arch}: a ptrace stop at each call"));
    }
    const SINCE: (u32, u32) = (6, 6);
    let tried = match trials::in_child(trials::listener) {
        Ok(tried) => tried,
        Err(error) => return no_child(&error),
    };
    match tried {
        Ok(()) => Check::fine("kernel", format!("Linux {release}: read-only calls by seccomp notification")),
        Err(_) if host.version < SINCE => Check::note(
            "kernel",
            format!("Linux {release}: a ptrace stop at each call; 6.6 and newer is faster"),
        ),
        Err(error) => {
            let without = "each call that matters is a ptrace stop, which is slower";
            let name = "seccomp (SECCOMP_FILTER_FLAG_NEW_LISTENER)";
            Check { name: "kernel", ..host.refused(name, &error, SINCE, Some(without)) }
        }
    }
}
