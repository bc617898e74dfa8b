//! Files that a call names by no path: the one that an open really returned, and descriptors that came
//! from elsewhere.
//!
//! Which file a descriptor stands for is asked at the exit of the call that brought it, of /proc/TID/fd.
//! Neighbour: `changes.rs`, whose calls these are.

use std::io::Read as _;

use super::part::Part;
use crate::observe::capture::OnLoss;
use crate::observe::ledger::ids::ProcessId;
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve::view::Unseen;
use crate::observe::resolve::{self, Unresolved};
use crate::snapshot::{Operation, Operations, WarningKind};
use crate::trace::memory::{Memory, RemoteAddr};
use crate::trace::observer::Caller;
use crate::trace::proc_fd;
use crate::trace::sys::TraceeMemory;
use crate::trace::syscalls::{Effect, OpenFlags, Special};

/// The most that is read of the control messages of one message; the kernel sends less.
const CONTROL_MAX: u64 = 64 << 10;
/// The most that is read of /proc/TID/fdinfo/N.
const FDINFO_MAX: u64 = 4 << 10;
/// sizeof(struct msghdr), and of the struct mmsghdr that recvmmsg(2) has an array of.
const MESSAGE: usize = 56;
const MESSAGE_OF_MANY: u64 = 64;
/// sizeof(struct cmsghdr).
const CONTROL_HEADER: usize = 16;
/// The most messages of one recvmmsg(2).
const MESSAGES_MAX: u64 = 1024;

const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

impl Recording {
    /// Records what a call brought that names no path.
    pub fn descriptor_came(
        &mut self,
        caller: Caller,
        process: ProcessId,
        special: Option<Special>,
        result: Option<i64>,
    ) {
        let Some(result) = result else { return };
        match special {
            Some(Special::UnnamedOpen { open }) => {
                if let Some(fd) = i32::try_from(result).ok().filter(|fd| *fd >= 0) {
                    let late = open.is_none_or(|open| open.truncate);
                    self.record_open_descriptor(caller, process, fd, late);
                }
            }
            Some(Special::Received { messages, room }) => {
                let count = match u64::try_from(result) {
                    // The next one may have failed as below.
                    Ok(count) => room.min(count.saturating_add(1)).min(MESSAGES_MAX),
                    // The descriptors come before the kernel writes the header and the address, which may fail.
                    Err(_) if matches!(result, EFAULT | EINVAL) => 1,
                    Err(_) => return,
                };
                if self.mounts.has_namespaces() {
                    self.processes.set_traits(caller.tgid, |traits| traits.in_foreign_mount_namespace = true);
                }
                for at in 0..count {
                    let message = RemoteAddr(messages.0.wrapping_add(at * MESSAGE_OF_MANY));
                    for fd in received(&TraceeMemory(caller.tid), message) {
                        self.record_open_descriptor(caller, process, fd, true);
                    }
                }
            }
            _ => {}
        }
    }

    /// Compares the file that an open returned with the one that was prepared: another thread may
    /// have rewritten the path, or moved what it names.
    pub fn check_opened(
        &mut self,
        caller: Caller,
        process: ProcessId,
        part: &Part,
        open: OpenFlags,
        fd: i32,
    ) {
        if open.temporary {
            return;
        }
        let Some(opened) = part.opened(caller, fd) else { return };
        if part.has_opened_it(caller, fd) {
            return;
        }
        let inode = part.stat.as_ref().and_then(|stat| self.ledger.inodes.of(stat));
        if inode.is_some() && inode == self.ledger.inodes.find((opened.st_dev, opened.st_ino)) {
            return;
        }
        let path = String::from_utf8_lossy(&part.path).into_owned();
        self.warnings.lost(WarningKind::PathChangedAfterCheck, Some(process), || {
            format!("an open of {path} returned another file than the one that was checked")
        });
        self.record_descriptor(caller, process, fd, open.read, open.write || open.truncate, true);
    }

    /// Checks whether the file that an open for reading returned was recorded, or left out, at its entry.
    pub fn check_opened_for_reading(&mut self, caller: Caller, process: ProcessId, fd: i32) {
        let opened = match self.object_of_descriptor(caller, fd) {
            Ok(opened) => opened,
            Err(Unseen::Private(..)) => return,
            Err(_) => return self.hidden_file(caller, process, fd),
        };
        let seen = match self.ledger.names.find(&opened.path) {
            Some(record) => {
                // What another thread has just moved or made is known as well.
                let reads = Operations::from(Operation::Read).with(Operation::Directory);
                let known = self.ledger.names.get(record).operations;
                self.ledger.names.get(record).left_out
                    || known.intersects(reads)
                    || known.intersects(Operations::CHANGES)
            }
            None => self.policy.exclusion(&opened.path, opened.stat.as_ref()).is_some(),
        };
        let regular = opened.stat.as_ref().is_some_and(resolve::is_regular);
        let directory = opened.stat.as_ref().is_some_and(resolve::is_directory);
        if !seen && (regular || directory) {
            self.path_changed(process, &opened.path);
            self.record_descriptor(caller, process, fd, true, false, true);
        }
    }

    fn path_changed(&mut self, process: ProcessId, path: &[u8]) {
        self.warnings.lost(WarningKind::PathChangedAfterCheck, Some(process), || {
            let path = String::from_utf8_lossy(path);
            format!("an open returned {path}, which is not the file that was checked")
        });
    }

    /// Records a file by a descriptor of the caller; its bytes are those of now.
    fn record_descriptor(
        &mut self,
        caller: Caller,
        process: ProcessId,
        fd: i32,
        read: bool,
        write: bool,
        late: bool,
    ) {
        let resolved = match self.object_of_descriptor(caller, fd) {
            Ok(resolved) => resolved,
            Err(Unseen::Unresolved(Unresolved::Nameless)) => return self.hidden_file(caller, process, fd),
            Err(unseen) => return self.unseen(process, unseen),
        };
        let new = self.ledger.names.find(&resolved.path).is_none();
        let open = OpenFlags { read, write, ..OpenFlags::default() };
        let mut part = self.prepare_part(Effect::Open(open), resolved, OnLoss::Warn);
        // What is left out has no before-state, and nothing that is not a file on a disk has bytes.
        let has_bytes = match (&part.classification, &part.stat) {
            (Classification::Recorded(_), Some(stat)) => {
                resolve::is_regular(stat) && !self.byte_store.filesystems.is_pseudo(stat.st_dev, &part.path)
            }
            _ => false,
        };
        if late && new && write && has_bytes {
            let path = String::from_utf8_lossy(&part.path).into_owned();
            self.warnings.lost(WarningKind::LateBeforeState, Some(process), || {
                format!("{path} was already open for writing when it was first seen")
            });
        }
        self.journal_part(process, &part);
        self.flush_journal();
        self.apply_part(caller, process, &mut part, None);
        self.protector().release(part.protected);
    }

    /// Counts a file that has a name, but none in our mount namespace; not a pipe or a deleted file.
    fn hidden_file(&mut self, caller: Caller, process: ProcessId, fd: i32) {
        let link = proc_fd::link(caller.tid, fd);
        if let Ok(path) = resolve::read_magic_link(link.as_bytes())
            && self.resolver.may_be_served(&path)
        {
            return self.unseen(process, Unresolved::Served(path).into());
        }
        let named = rustix::fs::stat(link.as_str()).is_ok_and(|stat| {
            stat.st_nlink > 0 && (resolve::is_regular(&stat) || resolve::is_directory(&stat))
        });
        if named && let Ok(path) = rustix::fs::readlink(link, Vec::new()) {
            self.unseen(process, Unseen::InForeignMountNamespace(path.into_bytes()));
        }
    }

    /// Records the file of a descriptor as it is open, or the peer of its socket.
    fn record_open_descriptor(&mut self, caller: Caller, process: ProcessId, fd: i32, late: bool) {
        let link = rustix::fs::readlink(proc_fd::link(caller.tid, fd), Vec::new());
        let link = link.as_ref().map_or(&b""[..], |link| link.as_bytes());
        if link.starts_with(b"socket:") {
            return self.note_peer(caller, process, fd);
        }
        if let Some(kind) = unseen_kind(link) {
            let who = caller.tgid;
            return self.warnings.lost(kind, Some(process), || {
                format!("process {who} got a descriptor through which files are opened unseen")
            });
        }
        // The flags come first; of an epoll descriptor, as much may follow as it watches.
        let mut info = String::new();
        if let Ok(file) = std::fs::File::open(format!("/proc/{}/fdinfo/{fd}", caller.tid)) {
            let _ = file.take(FDINFO_MAX).read_to_string(&mut info);
        }
        let Some(flags) = proc_fd::flags(&info) else { return };
        let mode = flags & libc::O_ACCMODE;
        let write = mode == libc::O_WRONLY || mode == libc::O_RDWR;
        if flags & libc::O_PATH == 0 {
            self.record_descriptor(caller, process, fd, mode != libc::O_WRONLY, write, late);
        }
    }
}

/// The warning for a descriptor through which files are opened unseen, by its symlink in /proc/PID/fd: an
/// io_uring, or a fanotify group, whose events carry open descriptors.
pub fn unseen_kind(link: &[u8]) -> Option<WarningKind> {
    match link {
        b"anon_inode:[io_uring]" => Some(WarningKind::IoUring),
        b"anon_inode:[fanotify]" => Some(WarningKind::UnmodelledSyscall),
        _ => None,
    }
}

/// The descriptors that a message brought (SCM_RIGHTS of unix(7), cmsg(3)).
fn received(memory: &dyn Memory, message: RemoteAddr) -> Vec<i32> {
    let mut header = [0; MESSAGE];
    if memory.read_exact(message, &mut header).is_err() {
        return Vec::new();
    }
    let (words, _) = header.as_chunks::<8>();
    let (address, length) = (u64::from_ne_bytes(words[4]), u64::from_ne_bytes(words[5]));
    let mut control = vec![0; usize::try_from(length.min(CONTROL_MAX)).unwrap_or(0)];
    if memory.read_exact(RemoteAddr(address), &mut control).is_err() {
        return Vec::new();
    }
    rights(&control)
}

/// The descriptors in a buffer of control messages, whatever its bytes are.
fn rights(mut control: &[u8]) -> Vec<i32> {
    let mut found = Vec::new();
    while let Some((header, rest)) = control.split_at_checked(CONTROL_HEADER) {
        let (words, _) = header.as_chunks::<8>();
        let length = usize::try_from(u64::from_ne_bytes(words[0])).unwrap_or(usize::MAX);
        let (kind, _) = words[1].as_chunks::<4>();
        let Some(data) = length.checked_sub(CONTROL_HEADER).and_then(|length| rest.get(..length)) else {
            break;
        };
        if kind.iter().map(|word| i32::from_ne_bytes(*word)).eq([libc::SOL_SOCKET, libc::SCM_RIGHTS]) {
            found.extend(data.as_chunks().0.iter().map(|fd| i32::from_ne_bytes(*fd)));
        }
        control = control.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = ((CONTROL_HEADER + data.len()) as u64).to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn all_descriptors_of_all_control_messages_are_found() {
        let fds = |fds: &[i32]| fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect::<Vec<_>>();
        let mut control = message(libc::SCM_RIGHTS, &fds(&[3, 4, 5]));
        control.extend(message(libc::SCM_CREDENTIALS, &fds(&[1, 2, 3])));
        control.extend(message(libc::SCM_RIGHTS, &fds(&[7])));
        assert_eq!(rights(&control), [3, 4, 5, 7]);
        // A message that was cut off says so in its length, and is none.
        assert_eq!(rights(&control[..control.len() - 8]), [3, 4, 5]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_at_all_panic(control: Vec<u8>, length: u64) {
            rights(&control);
            rights(&[&length.to_ne_bytes(), control.as_slice()].concat());
        }
    }
}
