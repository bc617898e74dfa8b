//! Signals of this process. They stay raw numbers: a real-time signal has no name in most libraries.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::process::check;

/// Gives `signal` its default disposition (signal(7)).
pub fn default_disposition(signal: i32) {
    // SAFETY: SIG_DFL is a valid disposition for every signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Whether this process ignores `signal` (SIG_IGN, sigaction(2)).
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `action` is writable, and no new one is set.
    unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all-zeroes is a valid sigaction.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// The signals that are blocked in this thread.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Blocks every signal in this thread and returns what was blocked before.
    pub fn block_all() -> SignalMask {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is writable, and all-zeroes is a valid sigset_t.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: both sets are valid; SIG_SETMASK with a filled set cannot fail.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: zeroed at first, then written by sigprocmask.
        SignalMask(unsafe { before.assume_init() })
    }

    /// Makes this the mask of the thread.
    pub fn restore(&self) {
        // SAFETY: the set came from sigprocmask.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// Unblocks `signal` alone in this thread.
    pub fn unblock(signal: i32) {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is writable, and all-zeroes is a valid, empty sigset_t.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        // SAFETY: initialised above.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut()) };
    }
}

/// A signal that was taken from the queue of this process, and who sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The number.
    pub signal: i32,
    /// The sender's process id, 0 where the kernel sent it.
    pub sender: u32,
    /// `si_code` (sigaction(2)).
    pub code: i32,
}

/// Asks for no SIGCHLD when a child or tracee merely stops (SA_NOCLDSTOP, sigaction(2)): there is a stop for
/// each syscall that the filter stops, and waitpid reports it anyway.
pub fn ignore_stops_of_children() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zeroes is a valid sigaction: SIG_DFL, an empty mask, no flags.
    unsafe { action.assume_init_mut() }.sa_flags = libc::SA_NOCLDSTOP;
    // SAFETY: `action` is initialised, and the old one is not asked for.
    unsafe { libc::sigaction(libc::SIGCHLD, action.as_ptr(), std::ptr::null_mut()) };
}

/// Opens a descriptor that is readable while a signal of this process other than SIGCHLD is pending
/// (signalfd(2)).
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is writable.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: as above.
    unsafe { libc::sigdelset(all.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, all.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(fd)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one pending signal from `descriptor`, if there is one.
pub fn take_signal(descriptor: BorrowedFd<'_>) -> Option<ReceivedSignal> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer is `size` bytes long and any bytes are a valid signalfd_siginfo.
    let count = unsafe { libc::read(descriptor.as_raw_fd(), info.as_mut_ptr().cast::<c_void>(), size) };
    if usize::try_from(count) != Ok(size) {
        return None;
    }
    // SAFETY: zeroed at first, then filled by the read.
    let info = unsafe { info.assume_init() };
    Some(ReceivedSignal {
        signal: i32::try_from(info.ssi_signo).ok()?,
        sender: info.ssi_pid,
        code: info.ssi_code,
    })
}
