//! Signals of this process. Single ones stay raw numbers: a real-time signal has no name in most libraries.

use std::io;
use std::mem::MaybeUninit;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

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

/// Blocks every signal in this thread and returns what was blocked before; async-signal-safe.
pub fn block_signals() -> SigSet {
    SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).expect("a mask can be set")
}

/// Unblocks `signal` alone in this thread.
pub fn unblock_signal(signal: i32) {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is writable, and all-zeroes is a valid, empty sigset_t.
    unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    // SAFETY: initialised above.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut()) };
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
pub fn signal_descriptor() -> io::Result<SignalFd> {
    let mut signals = SigSet::all();
    signals.remove(Signal::SIGCHLD);
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}
