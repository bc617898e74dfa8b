//! Descriptors that this process was started with, and that no object of it owns.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd};

/// A descriptor that this process was started with. It stays open when this is dropped.
#[derive(Debug)]
pub struct InheritedFd(i32);

impl InheritedFd {
    /// All of them: those that survive an execve. This process must not have opened any such itself.
    ///
    /// The second call returns none, so that there is one object for each descriptor.
    pub fn take_all() -> Vec<InheritedFd> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Vec::new();
        }
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let descriptors = numbers.map(InheritedFd);
        // The descriptor of this listing has FD_CLOEXEC.
        descriptors
            .filter(|fd| fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)))
            .collect()
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.0
    }

    /// Closes it.
    pub fn close(self) {
        // SAFETY: close takes an integer only; `self` is the only object that stands for this descriptor.
        unsafe { libc::close(self.0) };
    }

    /// Makes its number refer to the file of `other`, with FD_CLOEXEC (dup3(2)).
    pub fn replace(self, other: impl AsFd) {
        // SAFETY: dup3 takes integers only; `self` is the only object that stands for this descriptor.
        unsafe { libc::dup3(other.as_fd().as_raw_fd(), self.0, libc::O_CLOEXEC) };
    }
}

impl AsFd for InheritedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it was open when this was made, and only `close` and `replace`, which consume it, end that.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}
