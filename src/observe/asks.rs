//! What calls of the tree ask for that no path tells: what of it another run may not rely on.
//!
//! A process may ask for what is of its own tree, whose numbers are other ones at each run; what it learns of
//! others, no later run can check. Neighbours: `random.rs` knows who asks for random bytes, `recall::refusal` says
//! it in words.

use std::os::unix::ffi::OsStringExt as _;

use super::recording::Recording;
use crate::snapshot::Told;
use crate::snapshot::live::Filesystem;
use crate::trace::asks::Ask;
use crate::trace::observer::Caller;
use crate::trace::proc_fd;
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::Tid;

impl Recording {
    /// Notes what a call is about to tell a process.
    pub fn asked(&mut self, caller: Caller, ask: Ask) {
        let told = match ask {
            Ask::RandomBytes { may_be_of_libc } => return self.asks_for_random_bytes(caller, may_be_of_libc),
            Ask::FreeSpace(path) if !has_space(caller, &path) => return,
            Ask::FreeSpace(_) => Told::FreeSpace,
            Ask::Lock(descriptor) => match self.lock(caller, descriptor) {
                Some(told) => told,
                None => return,
            },
            Ask::Lease => Told::Lease,
            Ask::Keys => Told::Keys,
            Ask::MessageQueue => Told::MessageQueues,
            Ask::SystemV => Told::SystemV,
            Ask::Network => Told::Network,
            Ask::Process(0) => return,
            Ask::Process(number) if self.is_of_the_tree(caller, number) => return,
            // The group that the command starts in is that of whoever has started the recording, too.
            Ask::Group(number) if self.processes.has_had(Tid(group_of(caller, number))) => return,
            Ask::Process(_) | Ask::Group(_) | Ask::Processes => Told::OtherProcesses,
            Ask::System => Told::System,
        };
        self.unrepeatable.told.insert(told);
    }

    /// Whether a process or thread is one of the tree, or was.
    fn is_of_the_tree(&self, caller: Caller, number: i32) -> bool {
        if number == caller.tgid.0 || number == caller.tid.0 || self.processes.has_had(Tid(number)) {
            return true;
        }
        let status = ProcStatus::of(Tid(number));
        let process = status.and_then(|status| status.line("Tgid:")?.parse().ok());
        process.is_some_and(|process| self.processes.has_had(Tid(process)))
    }

    /// Judges a lock on the file of a descriptor: a later run gets it, too, if nobody else has one.
    fn lock(&mut self, caller: Caller, descriptor: i32) -> Option<Told> {
        let link = proc_fd::link(caller.tid, descriptor);
        let (Ok(stat), Ok(path)) = (rustix::fs::stat(&link), std::fs::read_link(&link)) else { return None };
        let Ok(locks) = crate::fs::locks() else { return Some(Told::Locks) };
        let is_foreign =
            |pid: &i32| *pid != caller.tgid.0 && (*pid <= 0 || !self.processes.has_had(Tid(*pid)));
        if locks.iter().any(|lock| lock.inode == stat.st_ino && is_foreign(&lock.process)) {
            return Some(Told::Locks);
        }
        self.unrepeatable.locked_files.insert(path.into_os_string().into_vec());
        None
    }
}

/// The number of a process group; 0 is the caller's.
fn group_of(caller: Caller, number: i32) -> i32 {
    let own = || nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(caller.tgid.0)));
    if number == 0 { own().map_or(0, nix::unistd::Pid::as_raw) } else { number }
}

/// Whether there is a file system with free space at a path of a call, or may be.
fn has_space(caller: Caller, path: &[u8]) -> bool {
    // An absolute path stays what it is.
    let base = std::path::PathBuf::from(format!("/proc/{}/cwd", caller.tid));
    let path = base.join(std::ffi::OsString::from_vec(path.to_vec()));
    rustix::fs::statfs(&path).is_ok_and(|found| Filesystem::from_magic(found.f_type) != Filesystem::Pseudo)
}
