//! What a note says: a call, or the number of a directory that the process has opened.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, fstatfs, open, readlink, statx};

use super::{is_noted, layout};
use crate::trace::memory::{Fault, Memory, RemoteAddr};
use crate::trace::observer::{Caller, Decision, Observer, SyscallEntry, Waiting};
use crate::trace::sys::{Tid, TraceeMemory};
use crate::trace::syscalls::{self, Args, FileRef};

/// The bytes of a note.
pub type Slot = [u8; layout::SLOT];

/// A directory where paths start.
#[derive(Debug)]
pub enum Start {
    /// It is open here.
    Open(OwnedFd),
    /// The process has opened it, at this path.
    Named { path: Vec<u8>, identity: [u64; 3] },
}

impl Start {
    /// Its path, if it still has the one that is known.
    pub fn path(&self) -> Option<Vec<u8>> {
        match self {
            Start::Open(directory) => text_of(directory),
            Start::Named { path, identity } => {
                (identity_of(CWD, path, AtFlags::SYMLINK_NOFOLLOW)? == *identity).then(|| path.clone())
            }
        }
    }
}

/// The directory that a note names, with its number; none if the note is of a call.
pub fn named(slot: &Slot, start_of: &mut impl FnMut(u32) -> Option<Vec<u8>>) -> Option<(u32, Start)> {
    if half(slot, 0)? != u32::MAX {
        return None;
    }
    let name = noted_path(slot)?;
    let identity = [word(slot, 8)?, word(slot, 16)?, word(slot, 24)?];
    let path = start_of(half(slot, 4)?).map(|start| join(&start, name)).unwrap_or_default();
    Some((half(slot, 32)? | layout::NAMED, Start::Named { path, identity }))
}

fn word(slot: &[u8], at: usize) -> Option<u64> {
    slot.get(at..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

fn half(slot: &[u8], at: usize) -> Option<u32> {
    slot.get(at..)?.first_chunk().map(|half| u32::from_ne_bytes(*half))
}

fn noted_path(slot: &[u8]) -> Option<&[u8]> {
    slot[layout::PATH..].get(..usize::try_from(word(slot, 48)?).ok()?)
}

/// A path that starts at a directory.
fn join(start: &[u8], path: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if start == b"/" { b"" } else { b"/" };
    [start, separator, path].concat()
}

/// A noted call of which the observer was told.
pub struct Told {
    /// Whether it matters how often it is made.
    pub is_counted: bool,
    /// Its digest; zero if it is to be noted each time.
    pub digest: u64,
}

/// Tells the observer of a noted call; none if nothing can be made of it.
pub fn tell(
    process: Tid,
    slot: &Slot,
    mut start_of: impl FnMut(u32) -> Option<Vec<u8>>,
    observer: &impl Observer,
) -> Option<Told> {
    let caller = Caller { tid: process, tgid: process };
    let word = |at| word(slot, at);
    let row = syscalls::row_of(half(slot, 0)?.into()).filter(|row| is_noted(row.name))?;
    let arguments: Args = [word(8)?, word(16)?, word(24)?, word(32)?, word(40)?, 0];
    let mut decoded = syscalls::decode(row, &arguments, &NotedPath(noted_path(slot)?)).ok()?;
    // The kernel refuses it.
    let digest = word(56)?;
    let Some(access) = decoded.accesses.first_mut() else { return Some(Told { is_counted: true, digest }) };
    if !access.is_read_only() {
        return None;
    }
    if let FileRef::Path { path, .. } = &mut access.file
        && !path.starts_with(b"/")
    {
        *path = join(&start_of(half(slot, 4)?)?, path);
    }
    let waiting = Waiting::Notified { steady: false, openable: false };
    let memory = TraceeMemory(process);
    let entry = SyscallEntry { decoded: &decoded, name: row.name, memory, overdue: true, waiting };
    let decision = observer.on_entry(caller, &entry);
    let is_counted = !matches!(decision, Decision::Continue);
    if let Decision::AwaitResult(pending) = decision {
        observer.on_result(caller, pending, None);
    }
    Some(Told { is_counted, digest })
}

/// The memory of a process as far as it has noted it: a path, wherever it was.
struct NotedPath<'a>(&'a [u8]);

impl Memory for NotedPath<'_> {
    fn read(&self, _: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault> {
        into.fill(0);
        let count = self.0.len().min(into.len());
        into[..count].copy_from_slice(&self.0[..count]);
        Ok(into.len())
    }
}

/// A directory where paths may start.
pub struct StartDirectory {
    /// It is open here.
    pub directory: OwnedFd,
    /// Its inode number, device and mount.
    pub identity: [u64; 3],
    /// The length of its path.
    pub length: u64,
}

/// The directory behind a link of procfs; none if its path is too long, or if what is there may be another thing to each
/// process.
pub fn start_directory(link: &str) -> Option<StartDirectory> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(link, flags, Mode::empty()).ok()?;
    if fstatfs(&directory).ok()?.f_type == libc::PROC_SUPER_MAGIC {
        return None;
    }
    let identity = identity_of(directory.as_fd(), b"", AtFlags::EMPTY_PATH)?;
    let length = text_of(&directory)?.len() as u64;
    (length <= layout::LONGEST_START).then_some(StartDirectory { directory, identity, length })
}

/// Inode number, device and mount of what is at a path, as the code sees them.
pub fn identity_of(directory: BorrowedFd<'_>, path: &[u8], flags: AtFlags) -> Option<[u64; 3]> {
    let found = statx(directory, path, flags, StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
    let device = u64::from(found.stx_dev_minor) << 32 | u64::from(found.stx_dev_major);
    Some([found.stx_ino, device, found.stx_mnt_id])
}

/// The path of a directory that is open.
fn text_of(directory: &OwnedFd) -> Option<Vec<u8>> {
    let text = readlink(format!("/proc/self/fd/{}", directory.as_raw_fd()), Vec::new()).ok()?.into_bytes();
    (text.starts_with(b"/") && !text.ends_with(b" (deleted)")).then_some(text)
}
