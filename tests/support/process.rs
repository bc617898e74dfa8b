//! Other processes: to find, to wait for, and to stop at their system calls.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::ptrace;
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::{BINARY, Place};

/// Longer than any answer takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Both ends of a terminal, which no other child inherits.
pub fn open_pty() -> (fs::File, fs::File) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = nix::pty::posix_openpt(flags).unwrap();
    nix::pty::grantpt(&master).unwrap();
    nix::pty::unlockpt(&master).unwrap();
    let name = nix::pty::ptsname_r(&master).unwrap();
    let slave = nix::fcntl::open(name.as_str(), flags, nix::sys::stat::Mode::empty()).unwrap();
    let master = master.as_fd().try_clone_to_owned().unwrap();
    (master.into(), slave.into())
}

/// The children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// All processes below `pid`.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut all = children(pid);
    let mut at = 0;
    while at < all.len() {
        all.extend(children(all[at]));
        at += 1;
    }
    all
}

/// The process that traces another one, if there is one.
pub fn tracer_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|tracer| *tracer != 0)
}

/// The command of the recording whose front is `front`: its first child.
pub fn command_of(front: i32) -> Option<i32> {
    children(front).first().copied()
}

/// All processes that `tracer` traces.
pub fn traced_by(tracer: i32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| tracer_of(*pid) == Some(tracer)).collect()
}

/// Sends SIGKILL to a process; whether there was one.
pub fn kill(pid: i32) -> bool {
    signal::kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
}

/// A descriptor of a process, which need be no child of ours.
pub fn pidfd_of(process: i32) -> OwnedFd {
    pidfd_open(rustix::process::Pid::from_raw(process).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Waits for the end of a process that should end.
pub fn wait_for_end(pidfd: &OwnedFd) {
    let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
    assert_eq!(poll(&mut ended, Some(&PATIENCE.try_into().unwrap())), Ok(1), "a process does not end");
}

/// Waits for the end of a child that should end.
pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "{} does not end", child.id());
        std::thread::yield_now();
    }
}

/// Runs a restore as [`trace_verb`] does.
pub fn trace_restore(place: &Place, flags: &[&str], each: impl FnMut(Pid, u64)) -> (u64, Option<i32>) {
    trace_verb(place, "restore", flags, each)
}

/// Runs a verb on the snapshot with `flags` and calls `each` at every stop of its first thread, with the process and
/// how many system calls it has made; how many it made in all, and its exit status unless it was killed.
pub fn trace_verb(
    place: &Place,
    verb: &str,
    flags: &[&str],
    each: impl FnMut(Pid, u64),
) -> (u64, Option<i32>) {
    let words = [verb.as_ref(), place.out.as_os_str()].into_iter().chain(flags.iter().map(OsStr::new));
    trace_program(place, words, each)
}

/// The same for the binary with any arguments.
pub fn trace_program<'a>(
    place: &Place,
    arguments: impl IntoIterator<Item = &'a OsStr>,
    mut each: impl FnMut(Pid, u64),
) -> (u64, Option<i32>) {
    // It waits for a line on its standard input.
    let mut command = place.program("sh");
    command.args(["-c", r#"read _; exec "$0" "$@""#]).arg(place.executable(BINARY.as_ref()));
    command.args(arguments).current_dir(&place.home);
    #[allow(clippy::zombie_processes, reason = "waitpid below waits for it")]
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    // Refused for a moment while the child becomes the program.
    while let Err(error) = ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
        assert_eq!(error, Errno::EPERM);
    }
    ptrace::interrupt(pid).unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    let mut stops = 0;
    loop {
        match waitpid(pid, None).unwrap() {
            WaitStatus::Exited(_, status) => return (stops / 2, Some(status)),
            WaitStatus::Signaled(..) => return (stops / 2, None),
            WaitStatus::PtraceSyscall(_) => stops += 1,
            WaitStatus::Stopped(_, signal) if signal != Signal::SIGTRAP => {
                let _ = ptrace::syscall(pid, signal);
                continue;
            }
            _ => {}
        }
        each(pid, stops / 2);
        let _ = ptrace::syscall(pid, None);
    }
}
