//! The inherited descriptors, which are the command's and are closed here when it has them; waiting for
//! others.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::trace::sys::InheritedFd;

/// Closes the inherited descriptors once the command has its own, since they would delay the end of a
/// pipe; standard error only if `all`.
pub fn drop_inherited(descriptors: Vec<InheritedFd>, all: bool) {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    for fd in descriptors {
        match (fd.number(), &null) {
            (2, _) if !all => {}
            (0..=2, Ok(null)) => fd.replace(null),
            _ => fd.close(),
        }
    }
}

/// Opens /dev/null for standard streams that are closed, so that no file of ours gets their numbers.
///
/// They are close-on-exec, so they are closed in the command again.
pub fn fill_standard_streams() {
    for fd in 0..3 {
        if !is_open(fd) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            if let Ok(null) = rustix::fs::open("/dev/null", flags, Mode::empty()) {
                // It has the lowest free number, which is `fd`, and stays open until this process ends.
                std::mem::forget(null);
            }
        }
    }
}

fn is_open(fd: i32) -> bool {
    Path::new(&format!("/proc/self/fd/{fd}")).symlink_metadata().is_ok()
}

/// Waits until one of the descriptors is readable or closed, a signal handler has run, or `timeout` is over;
/// says which are.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Option<Duration>) -> [bool; N] {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // A time that poll(2) can't take is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let _ = poll(&mut fds, timeout.as_ref());
    fds.map(|fd| !fd.revents().is_empty())
}
