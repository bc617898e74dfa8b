//! Starting, ending and signalling processes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, getpid, getppid, pidfd_getfd, pidfd_open,
    set_parent_process_death_signal,
};
use rustix::thread::set_name;

/// The id of a thread (tid), or of a process, which is the tid of its leader (tgid).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub libc::pid_t);

impl std::fmt::Display for Tid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What `fork` returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// In the child.
    Child,
    /// In the parent, with the child's id.
    Parent(Tid),
}

/// Turns a result of -1 into the error that errno names.
pub(super) fn check(result: impl Into<libc::c_long>) -> io::Result<libc::c_long> {
    let result = result.into();
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// How long a thread that was joined may take to be gone.
const THREAD_END: Duration = Duration::from_secs(1);

/// Whether this process has one thread, as far as it can be told: each has a directory there (proc_pid_task(5)).
fn is_single_threaded() -> bool {
    rustix::fs::stat("/proc/self/task").map_or(true, |tasks| tasks.st_nlink == 3)
}

/// Whether the procfs at /proc shows this process by its number here: that of another PID namespace shows it by another
/// one, and somebody else by this (pid_namespaces(7)).
pub fn has_own_procfs() -> bool {
    let number = rustix::process::getpid().to_string();
    rustix::fs::readlink("/proc/self", Vec::new()).is_ok_and(|shown| shown.as_bytes() == number.as_bytes())
}

/// The file that a process has open as `fd`, for this one, too (pidfd_getfd(2), Linux 5.6); none if it can't be had.
pub fn descriptor_of(process: Tid, fd: i32) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(process.0)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).ok()
}

/// Forks this process (fork(2)); an error if it has more than one thread.
pub fn fork() -> io::Result<Fork> {
    // The kernel may still list a thread that was joined (pthread_join(3) returns before it is gone).
    let deadline = Instant::now() + THREAD_END;
    while !is_single_threaded() {
        if Instant::now() > deadline {
            return Err(io::Error::other("only a process with a single thread may fork"));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(Tid(child))),
    }
}

/// Forks a process that keeps `held` open until the process of the pidfd `until` has ended, and nothing else.
pub fn fork_holder(held: BorrowedFd<'_>, until: BorrowedFd<'_>) -> io::Result<()> {
    if let Fork::Parent(_) = fork()? {
        return Ok(());
    }
    close_all_but([held, until]);
    let _ = poll(&mut [PollFd::from_borrowed_fd(until, PollFlags::IN)], None);
    exit_now(0)
}

/// Forks a process of the same process group that has no descriptors, lets every signal pend, and is killed
/// when this process ends. All signals have to be blocked.
pub fn fork_witness() -> io::Result<Tid> {
    let parent = getpid();
    if let Fork::Parent(witness) = fork()? {
        return Ok(witness);
    }
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != Some(parent) {
        exit_now(0);
    }
    // So that `pkill agent-snapshot` reaches the front and not this process.
    let _ = set_name(c"signal-witness");
    close_all_but([]);
    loop {
        let _ = poll(&mut [], None);
    }
}

/// Closes every descriptor but those of `kept` (close_range(2), Linux 5.9).
///
/// Only for a process that never returns to the owners of the others.
fn close_all_but<const N: usize>(kept: [BorrowedFd<'_>; N]) {
    let mut kept = kept.map(|fd| fd.as_raw_fd().unsigned_abs());
    kept.sort_unstable();
    let mut next = 0;
    for fd in kept {
        close_range(next, fd);
        next = fd + 1;
    }
    close_range(next, u32::MAX);
}

/// Closes the descriptors from `first` up to, but not including, `end`.
fn close_range(first: u32, end: u32) {
    // SAFETY: close_range takes integers only. The callers of `close_all_but` never return to the owners of
    // these descriptors, and their process has no other thread.
    if first >= end || unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) } == 0 {
        return;
    }
    // A filter that does not know the call.
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    for fd in open.collect::<Vec<_>>().into_iter().filter(|fd| (first..end).contains(fd)) {
        // SAFETY: close takes an integer only, and as above. The descriptor of the listing is closed already.
        unsafe { libc::close(fd.cast_signed()) };
    }
}

/// Whether close_range works.
pub fn has_close_range() -> io::Result<()> {
    // SAFETY: close_range takes integers only, and no descriptor has a number that high (fs.nr_open).
    check(unsafe { libc::syscall(libc::SYS_close_range, i32::MAX, u32::MAX - 1, 0) }).map(drop)
}

/// Ends this process at once, without running destructors or flushing buffers (_exit(2)).
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit takes any integer and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

/// Sets a variable of the environment that programs get, before this process has a second thread.
pub fn set_variable(name: &str, value: &str) {
    // SAFETY: no other thread reads the environment.
    unsafe { std::env::set_var(name, value) };
}

/// Replaces this process by the program at `path`, with the environment that this process was given.
///
/// Returns only when that fails (execve(2)).
pub fn execute(path: &CStr, argv: &[&CStr]) -> io::Error {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: path and every argument are NUL-terminated and outlive the call; `pointers` ends with
    // a null; `environ` is libc's own, which nothing changes here.
    unsafe { libc::execve(path.as_ptr(), pointers.as_ptr(), environ) };
    io::Error::last_os_error()
}

/// Makes faccessat with arguments of which none is valid; how it fails.
pub fn faccessat_of_nothing(arguments: [u64; 3]) -> io::Error {
    let [descriptor, path, mode] = arguments;
    // SAFETY: the kernel only reads memory, and no bit of the mode is of a permission, so that not even that.
    match unsafe { libc::syscall(libc::SYS_faccessat, descriptor, path, mode) } {
        -1 => io::Error::last_os_error(),
        _ => io::ErrorKind::Other.into(),
    }
}

/// Sends `signal` to a process (kill(2)); real-time signals too.
pub fn kill(process: Tid, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes integers only.
    check(unsafe { libc::kill(process.0, signal) }).map(drop)
}

/// Sends `signal` to a thread (tgkill(2)).
pub fn kill_thread(process: Tid, thread: Tid, signal: i32) -> io::Result<()> {
    // SAFETY: tgkill takes integers only.
    check(unsafe { libc::syscall(libc::SYS_tgkill, process.0, thread.0, signal) }).map(drop)
}

/// The I/O scheduling class and priority of the calling thread (ioprio_get(2)).
pub fn io_priority() -> io::Result<libc::c_long> {
    /// IOPRIO_WHO_PROCESS
    const PROCESS: libc::c_long = 1;
    // SAFETY: ioprio_get takes integers only; 0 is the calling thread.
    check(unsafe { libc::syscall(libc::SYS_ioprio_get, PROCESS, 0 as libc::c_long) })
}

/// Waits until a child of this process has ended, reaps it, and returns its exit status, 128+N if signal N ended it.
pub fn wait_for_end(child: Tid) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable.
        match check(unsafe { libc::waitpid(child.0, &raw mut status, libc::__WALL) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) if libc::WIFEXITED(status) => return Ok(libc::WEXITSTATUS(status)),
            Ok(_) if libc::WIFSIGNALED(status) => return Ok(128 + libc::WTERMSIG(status)),
            Ok(_) => {}
        }
    }
}

/// The raw wait status of the process of a pidfd, which has ended (PIDFD_GET_INFO, Linux 6.15).
pub fn exit_code(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    /// The first version of struct pidfd_info (linux/pidfd.h).
    #[repr(C)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    /// _IOWR(0xff, 11, struct pidfd_info)
    const GET_INFO: libc::Ioctl = 0xc040_ff0b;
    const EXIT: u64 = 1 << 3;
    const _: () = assert!(size_of::<Info>() == 64);
    let mut info = Info { mask: EXIT, cgroup: 0, ids: [0; 11], exit_code: 0 };
    // SAFETY: the kernel reads and writes 64 bytes, as the request says.
    check(unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) })?;
    if info.mask & EXIT == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info.exit_code)
}

/// Makes malloc keep freed memory for reuse instead of returning it: otherwise each large buffer costs a page
/// fault for every 4 KiB each time (mallopt(3)). Does nothing in a process with several threads.
pub fn keep_large_buffers() {
    const KEEP: libc::c_int = 1 << 30;
    if is_single_threaded() {
        // SAFETY: mallopt takes integers only, and no other thread allocates meanwhile.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, KEEP) };
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP) };
    }
}

/// Makes all threads allocate from one arena: what a thread has freed in its own is of no use to the others
/// (mallopt(3)). Does nothing in a process with several threads.
pub fn share_one_arena() {
    if is_single_threaded() {
        // SAFETY: mallopt takes integers only, and no other thread allocates meanwhile.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_does_not_fork() {
        // The test harness has at least the thread of this test and its own.
        assert!(!is_single_threaded());
        assert!(fork().is_err());
    }
}
