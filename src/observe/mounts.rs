//! Whether names can still be trusted: once anything was mounted, moved or unmounted here, or where a
//! process started from a directory whose name is not its own, every name is checked.
//!
//! Neighbour: `view.rs` does the checking.

use std::fs::File;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::resolve;
use crate::trace::sys::Tid;

/// What is known of the mounts that names lead through.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// It is ready once the mounts of this namespace have changed (proc_pid_mounts(5)).
    table: Option<File>,
    moved: bool,
}

impl Mounts {
    /// Begins to watch.
    pub fn watch() -> Mounts {
        Mounts { table: File::open("/proc/self/mountinfo").ok(), moved: false }
    }

    /// Whether a name may mean something else than the directory it was read from.
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// Looks whether a call has changed the mounts.
    pub fn look(&mut self) {
        let Some(table) = &self.table else { return };
        let mut fds = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        self.moved |= poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
    }

    /// Looks whether `process` starts from directories whose names lead somewhere else: in another
    /// mount namespace, or under a mount.
    pub fn look_at(&mut self, process: Tid) {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let links = descriptors.map(|entry| entry.path()).chain([format!("/proc/{process}/cwd").into()]);
        self.moved |= links.into_iter().any(|link| is_hidden(link.as_os_str().as_encoded_bytes()));
    }
}

/// Whether a magic link stands for a directory that has a name, which is another's out here.
pub(super) fn is_hidden(link: &[u8]) -> bool {
    let hidden = |stat: &nix::sys::stat::FileStat| stat.st_nlink > 0 && resolve::is_directory(stat);
    nix::sys::stat::stat(link).is_ok_and(|stat| hidden(&stat)) && resolve::named_object(link).is_err()
}
