//! Tries calls that a recording needs, without a recording: whether they work depends on more than the kernel's version.
//!
//! A child process makes the calls, since a filter may kill their caller. Neighbours: `launch.rs` and `tracer.rs`
//! make these calls.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::thread::{SecureComputingMode, secure_computing_mode};

use super::filter::allow_all;
use super::sys::{self, Fork, Tid, Waited};

/// Does `trial` in a child process: its error, or one without a number if that process was killed.
///
/// # Errors
/// There is no child.
pub fn in_child(trial: impl FnOnce() -> io::Result<()>) -> io::Result<io::Result<()>> {
    let Fork::Parent(child) = sys::fork()? else {
        let error = trial().err().map(|error| error.raw_os_error().unwrap_or(libc::EIO));
        sys::exit_now(error.unwrap_or(0));
    };
    Ok(match sys::wait_for_end(child)? {
        0 => Ok(()),
        errno @ 1..=127 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::other("the caller is killed")),
    })
}

/// mseal of no memory, in a child process only if this one has a filter.
///
/// # Errors
/// It is missing or denied.
pub fn mseal() -> io::Result<()> {
    match secure_computing_mode() {
        Ok(SecureComputingMode::Disabled) => sys::try_mseal(),
        _ => in_child(sys::try_mseal)?,
    }
}

/// PTRACE_SEIZE with the options of a recording.
pub fn seize() -> io::Result<()> {
    with_tracee(|_| Ok(()))
}

/// PTRACE_INTERRUPT, waitpid, PTRACE_GET_SYSCALL_INFO.
pub fn syscall_info() -> io::Result<()> {
    with_tracee(|tracee| {
        sys::interrupt(tracee)?;
        match sys::wait(Duration::ZERO, None)? {
            Some(Waited::Stopped { tracee, .. }) => tracee.syscall_stop().map(drop),
            _ => Err(io::ErrorKind::Other.into()),
        }
    })
}

/// process_vm_readv of a tracee.
pub fn read_memory() -> io::Result<()> {
    static BYTE: u8 = 1;
    // The child has it at the same address.
    with_tracee(|tracee| sys::read_memory(tracee, (&raw const BYTE).addr() as u64, &mut [0]).map(drop))
}

/// seccomp with SECCOMP_SET_MODE_FILTER.
pub fn filter() -> io::Result<()> {
    sys::install_filter(&allow_all())
}

/// The same with a listener that recordings can use: its notifications are fast.
pub fn listener() -> io::Result<()> {
    let listener = sys::install_filter_with_listener(&allow_all())?;
    sys::wake_on_one_cpu(listener.as_fd())
}

/// Seizes a child, which ends with this process.
fn with_tracee(trial: impl FnOnce(Tid) -> io::Result<()>) -> io::Result<()> {
    let child = sys::fork_witness()?;
    let tried = sys::seize(child).and_then(|()| trial(child));
    let _ = sys::kill(child, libc::SIGKILL);
    tried
}
