//! Descriptors that we were started with: they are the command's, and ours for a while.

use nix::fcntl::OFlag;

use std::path::Path;

use crate::trace::sys::InheritedFd;

/// Drops the inherited descriptors that would only delay the end of a pipe, once the command has
/// its own; standard error too if `all`.
pub fn drop_inherited(descriptors: Vec<InheritedFd>, all: bool) {
    let null = nix::fcntl::open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty());
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
/// They close again in the command.
pub fn fill_standard_streams() {
    for fd in 0..3 {
        if !is_open(fd) {
            let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
            if let Ok(null) = nix::fcntl::open("/dev/null", flags, nix::sys::stat::Mode::empty()) {
                // The lowest free number, which is `fd`; it stays open for the life of this process.
                std::mem::forget(null);
            }
        }
    }
}

fn is_open(fd: i32) -> bool {
    Path::new(&format!("/proc/self/fd/{fd}")).symlink_metadata().is_ok()
}
