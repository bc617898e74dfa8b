//! Arguments that the tree can't change between a decision and what the kernel does.
//!
//! A path or socket address lies in memory that another thread, or another process that shares it, may rewrite while the
//! call is being judged. So where rules refuse calls, what such memory holds is copied to a mapping that the tree can only
//! read and that nobody can unmap (memfd_create(2) with F_SEAL_FUTURE_WRITE, mseal(2)), and the registers point to the
//! copy until the call ends. A process gets the mapping when it needs it and has one thread: before it creates
//! another, or shares its memory. Children inherit it.
//!
//! Neighbours: `tracer.rs` changes the registers; `syscalls` says which arguments matter; `steady.rs` says what is only
//! the caller's.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;
use std::sync::OnceLock;

use foldhash::fast::RandomState;
use rustix::fs::SealFlags;
use smallvec::SmallVec;

use super::memory::{Fault, Memory as _, PATH_MAX, RemoteAddr};
use super::observer::{Caller, Errno};
use super::proc_fd;
use super::sys::{Puppet, SYS_MSEAL, SharedMapping, Stopped, Tid, TraceeMemory, arch};
use super::syscalls::{self, Args, Dirfd, Pinned, Refusable};

/// How many calls may be in flight in the processes that share a mapping.
const SLOTS: usize = 1024;
/// For two paths and a structure.
const SLOT: usize = 3 * PATH_MAX;
const LENGTH: usize = SLOTS * SLOT;

/// The mappings of the tree.
pub(super) struct Pins {
    refusable: Refusable,
    /// None where it could not be had.
    images: HashMap<Tid, Option<Rc<Image>>, RandomState>,
    /// The process of the command, until it has executed that: it is ours.
    launching: Option<Tid>,
}

/// The mapping of a program that was executed, and of its children until they execute another.
struct Image {
    memory: SharedMapping,
    /// Its address in the tracees.
    address: u64,
    /// The slots that are not in use, the one to use next last.
    free: RefCell<Vec<usize>>,
}

/// A part of a mapping, for one call.
pub(super) struct Slot {
    image: Rc<Image>,
    number: usize,
    end: usize,
}

/// The arguments of a call, with pointers to copies.
pub(super) struct PinnedArguments {
    pub arguments: Args,
    pub slot: Slot,
}

impl Pins {
    pub fn new(refusable: Refusable, command: Tid) -> Pins {
        Pins { refusable, images: HashMap::default(), launching: Some(command) }
    }

    /// Whether opens for reading need the address space of their process, which tells who can change their arguments.
    pub fn need_address_spaces(&self) -> bool {
        self.refusable.reads && self.refusable.unseen_ends
    }

    /// Notes that a process has executed a program, which has no mapping yet.
    pub fn executed(&mut self, process: Tid) {
        self.images.remove(&process);
        self.launching = None;
    }

    /// Gives a process the mapping that it needs, instead of the call at whose entry its only thread is; that makes the
    /// call again.
    pub fn map(&mut self, tracee: &Stopped, process: Tid) -> Result<(), NotMapped> {
        let mapped = Image::map_in(tracee).map(Rc::new);
        self.images.insert(process, mapped.as_ref().ok().cloned());
        mapped.map(drop)
    }

    /// Notes that a process has the mapping of its creator; fails if it has not, which the creator may have asked for
    /// (MADV_DONTFORK). It has not run yet.
    pub fn created(&mut self, creator: Tid, process: Tid) -> io::Result<()> {
        let Some(Some(image)) = self.images.get(&creator) else { return Ok(()) };
        match TraceeMemory(process).read_exact(RemoteAddr(image.address), &mut [0]) {
            Ok(()) | Err(Fault::Gone) => {
                let image = Rc::clone(image);
                self.images.insert(process, Some(image));
                Ok(())
            }
            Err(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Notes that two processes have one memory.
    pub fn share(&mut self, process: Tid, other: Tid) {
        if let Some(Some(image)) = self.images.get(&process) {
            let image = Rc::clone(image);
            self.images.entry(other).or_insert(Some(image));
        }
    }

    pub fn ended(&mut self, process: Tid) {
        self.images.remove(&process);
    }

    /// Copies what the arguments of a call point to; none if nothing is to be copied. `shares` says whether another
    /// thread may change the caller's memory, or what its descriptors stand for.
    ///
    /// # Errors
    /// What becomes of the call, which can't be judged.
    pub fn pin(
        &self,
        caller: Caller,
        number: u64,
        arguments: &Args,
        shares: bool,
        is_steady: impl FnOnce(&[Pinned]) -> bool,
    ) -> Result<Option<PinnedArguments>, Unpinned> {
        if self.launching == Some(caller.tgid) {
            return Ok(None);
        }
        let image = self.images.get(&caller.tgid);
        if !shares && image.is_none() && shares_from_now_on(caller.tid, number, arguments) {
            return Err(Unpinned::Unmapped);
        }
        let Some(row) = syscalls::row_of(number) else { return Ok(None) };
        if !row.applies(arguments) {
            return Ok(None);
        }
        let pointers = row.pinned(arguments, self.refusable);
        if pointers.is_empty() || !shares && is_steady(&pointers) {
            return Ok(None);
        }
        let image = match image {
            Some(Some(image)) => image,
            None if !shares => return Err(Unpinned::Unmapped),
            Some(None) | None => return Err(Unpinned::Fails(Errno(libc::ENOMEM))),
        };
        let mut copies = Copies {
            arguments: *arguments,
            slot: Slot::of(image).ok_or(Unpinned::Waits)?,
            memory: TraceeMemory(caller.tid),
            shares,
        };
        for pointer in pointers {
            copies.copy(pointer).map_err(Unpinned::Fails)?;
        }
        let Copies { arguments, slot, .. } = copies;
        Ok(Some(PinnedArguments { arguments, slot }))
    }
}

/// Whether after this call the memory of its process may be changed at any time, by the kernel (io_submit(2)) or by
/// whoever has the descriptor (UFFDIO_MOVE, ioctl_userfaultfd(2)).
pub(super) fn changes_memory(number: u64) -> bool {
    matches!(libc::c_long::try_from(number), Ok(libc::SYS_io_setup | libc::SYS_userfaultfd))
}

/// Whether a call creates something that can change the caller's memory, or what its descriptors stand for, while the
/// caller runs on.
fn shares_from_now_on(caller: Tid, number: u64, arguments: &Args) -> bool {
    let flags = syscalls::creation_flags(number, arguments, &TraceeMemory(caller));
    let has = |flags_of: u32| flags & u64::from(flags_of) != 0;
    changes_memory(number) || has(syscalls::CLONE_SHARES) && !has(libc::CLONE_VFORK.unsigned_abs())
}

/// Why the arguments of a call can't be copied.
pub(super) enum Unpinned {
    /// There is no room until another call has ended.
    Waits,
    /// The process has no mapping yet, and can be given one.
    Unmapped,
    /// It fails with this, as it can't be judged.
    Fails(Errno),
}

impl Unpinned {
    /// What the call fails with.
    pub fn errno(&self) -> Errno {
        match self {
            Unpinned::Waits | Unpinned::Unmapped => Errno(libc::ENOMEM),
            Unpinned::Fails(errno) => *errno,
        }
    }
}

/// The arguments of a call while they are copied.
struct Copies {
    arguments: Args,
    slot: Slot,
    memory: TraceeMemory,
    /// Whether another thread may change what a descriptor stands for.
    shares: bool,
}

impl Copies {
    fn at(&self, register: u8) -> u64 {
        self.arguments[usize::from(register)]
    }

    /// Copies what is behind a pointer, and makes it point to the copy.
    fn copy(&mut self, pointer: Pinned) -> Result<(), Errno> {
        match pointer {
            Pinned::Path { dirfd, path } => self.redirect(path, |copies, at| copies.path(at, dirfd, 0)),
            Pinned::OpenHow { dirfd, path, how, size } => {
                let length = self.at(size);
                let mut resolve = 0;
                self.redirect(how, |copies, at| {
                    let bytes = copies.bytes(at, length)?;
                    resolve = bytes.as_chunks().0.get(2).map_or(0, |word| u64::from_ne_bytes(*word));
                    Ok(copies.slot.add(&bytes))
                })?;
                self.redirect(path, |copies, at| copies.path(at, Some(dirfd), resolve))
            }
            Pinned::Bytes { address, length } => self.redirect(address, |copies, at| {
                let bytes = copies.bytes(at, length)?;
                Ok(copies.slot.add(&bytes))
            }),
            Pinned::Message { address } => self.redirect(address, Copies::message),
        }
    }

    /// Makes a pointer point to a copy; a null pointer may have a meaning, and points to nothing.
    fn redirect(
        &mut self,
        register: u8,
        copy: impl FnOnce(&mut Copies, u64) -> Result<u64, Uncopied>,
    ) -> Result<(), Errno> {
        let at = self.at(register);
        if at == 0 {
            return Ok(());
        }
        self.arguments[usize::from(register)] = match copy(self, at) {
            Ok(copy) => copy,
            Err(Uncopied::Fault(Fault::Unreadable)) => return Err(Errno(libc::EACCES)),
            Err(Uncopied::Fault(_)) => NOWHERE,
            Err(Uncopied::Fails(errno)) => return Err(Errno(errno)),
        };
        Ok(())
    }

    /// Copies a path. One that begins at a descriptor, for which another may be exchanged, gets the name of that;
    /// `resolve` has the flags of openat2.
    fn path(&mut self, at: u64, dirfd: Option<u8>, resolve: u64) -> Result<u64, Uncopied> {
        const TOO_LONG: [u8; PATH_MAX] = [b'/'; PATH_MAX];
        let mut path = match self.memory.read_path(RemoteAddr(at)) {
            Ok(path) => path,
            Err(Fault::NameTooLong) => return Ok(self.slot.add(&TOO_LONG)),
            Err(fault) => return Err(fault.into()),
        };
        let start = match through_descriptor(&path) {
            Some((descriptor, rest)) => Some((descriptor, rest.to_vec())),
            None if path.is_empty() || path.starts_with(b"/") => None,
            None => dirfd.map(|dirfd| (self.at(dirfd), path.clone())),
        };
        if let Some((descriptor, rest)) = start.filter(|_| self.shares)
            && let Some(base) = self.directory(descriptor).map_err(Uncopied::Fails)?
        {
            // As before Linux 5.6: such a lookup can't begin anywhere else.
            if resolve != 0 {
                return Err(Uncopied::Fails(libc::ENOSYS));
            }
            path = [base.as_slice(), b"/", &rest].concat();
            if path.len() >= PATH_MAX {
                return Ok(self.slot.add(&TOO_LONG));
            }
        }
        path.push(0);
        Ok(self.slot.add(&path))
    }

    /// Reads a structure; one that is longer than any that the kernel accepts is not there.
    fn bytes(&self, at: u64, length: u64) -> Result<Vec<u8>, Uncopied> {
        const LONGEST: usize = 4096;
        let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST);
        let mut bytes = vec![0; length.ok_or(Fault::Unmapped)?];
        self.memory.read_exact(RemoteAddr(at), &mut bytes)?;
        Ok(bytes)
    }

    /// Copies a `struct msghdr`, which begins with the address of a socket address and its length.
    fn message(&mut self, at: u64) -> Result<u64, Uncopied> {
        const SOCKADDR_MAX: u64 = 128;
        let mut words = [0; 7];
        self.memory.read_words(RemoteAddr(at), &mut words)?;
        let (name, length) = (words[0], words[1] & 0xffff_ffff);
        // An int, which the kernel refuses if it is negative.
        if name != 0 && (1..1 << 31).contains(&length) {
            words[1] = length.min(SOCKADDR_MAX);
            let address = self.bytes(name, words[1])?;
            words[0] = self.slot.add(&address);
        }
        Ok(self.slot.add(&words.map(u64::to_ne_bytes).concat()))
    }

    /// The directory that a descriptor stands for, by a name that means the same to the caller and to us; none where
    /// there is no such name, and for AT_FDCWD.
    ///
    /// # Errors
    /// What a call fails with that begins there.
    fn directory(&self, descriptor: u64) -> Result<Option<Vec<u8>>, i32> {
        let Dirfd::Fd(descriptor) = Dirfd::from_raw(descriptor) else { return Ok(None) };
        let link = proc_fd::link(self.memory.0, descriptor);
        let (Ok(path), Ok(stat)) = (std::fs::read_link(&link), std::fs::metadata(&link)) else {
            return Err(libc::EBADF);
        };
        if !stat.is_dir() {
            return Err(libc::ENOTDIR);
        }
        // It was removed.
        if stat.nlink() == 0 {
            return Err(libc::ENOENT);
        }
        let is_ours = |name: &str| {
            let link = |of: &str| std::fs::read_link(format!("/proc/{of}/{name}")).ok();
            link(&self.memory.0.to_string()) == link("self")
        };
        let path = path.into_os_string().into_vec();
        Ok((path.starts_with(b"/") && is_ours("root") && is_ours("ns/mnt")).then_some(path))
    }
}

/// The descriptor of the caller through which a path leads to something beneath what it stands for, and the rest of it.
fn through_descriptor(path: &[u8]) -> Option<(u64, &[u8])> {
    let links = [&b"/proc/self/fd/"[..], b"/proc/thread-self/fd/", b"/dev/fd/"];
    let path = links.iter().find_map(|link| path.strip_prefix(*link))?;
    let (number, rest) = path.split_at(path.iter().position(|byte| *byte == b'/')?);
    let rest = &rest[rest.iter().position(|byte| *byte != b'/')?..];
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

/// Why something can't be copied.
enum Uncopied {
    Fault(Fault),
    /// The call fails with this.
    Fails(i32),
}

impl From<Fault> for Uncopied {
    fn from(fault: Fault) -> Uncopied {
        Uncopied::Fault(fault)
    }
}

/// An address at which there is no memory of any process.
const NOWHERE: u64 = 1 << 62;

impl Slot {
    fn of(image: &Rc<Image>) -> Option<Slot> {
        let number = image.free.borrow_mut().pop()?;
        Some(Slot { image: Rc::clone(image), number, end: 0 })
    }

    /// Adds bytes; their address in the tracee.
    fn add(&mut self, bytes: &[u8]) -> u64 {
        let offset = self.number * SLOT + self.end;
        // Structures of words stay aligned.
        self.end = (self.end + bytes.len()).next_multiple_of(8);
        debug_assert!(self.end <= SLOT, "what is copied has limits");
        self.image.memory.write(offset, bytes);
        self.image.address + offset as u64
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.image.free.borrow_mut().push(self.number);
    }
}

/// Why a process got no mapping.
#[derive(Debug)]
pub enum NotMapped {
    /// It is still at the entry of its call.
    AtEntry(io::Error),
    /// Its call was skipped, and will be made again.
    Later(io::Error),
}

impl Image {
    fn map_in(tracee: &Stopped) -> Result<Image, NotMapped> {
        let no_vdso = || NotMapped::AtEntry(io::Error::other("it can't be read, or has no vDSO"));
        let instruction = call_instruction(tracee.tid()).ok_or_else(no_vdso)?;
        let mut puppet = Puppet::new(tracee, instruction).map_err(NotMapped::AtEntry)?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // Any string will do for its name.
        puppet.share_memory(instruction & !0xfff, LENGTH, seals, Image::map).map_err(NotMapped::Later)
    }

    fn map(puppet: &mut Puppet<'_>, fd: u64, memory: SharedMapping) -> io::Result<Image> {
        let (read, shared) = (libc::PROT_READ.unsigned_abs(), libc::MAP_SHARED.unsigned_abs());
        let length = LENGTH as u64;
        let address = puppet.call(libc::SYS_mmap, [0, length, read.into(), shared.into(), fd, 0])?;
        puppet.call(SYS_MSEAL, [address, length, 0, 0, 0, 0])?;
        Ok(Image { memory, address, free: RefCell::new((0..SLOTS).rev().collect()) })
    }
}

/// The address of an instruction in the vDSO of a process that makes a system call.
fn call_instruction(tid: Tid) -> Option<u64> {
    /// Where it is in each vDSO: all processes have the same one.
    static OFFSET: OnceLock<Option<u64>> = OnceLock::new();
    let offset = OFFSET.get_or_init(|| {
        let own = Tid(std::process::id().cast_signed());
        let mut text = vec![0; 2 * 4096];
        let count = TraceeMemory(own).read(RemoteAddr(vdso(own)?), &mut text).ok()?;
        arch::find_system_call(&text[..count]).map(|offset| offset as u64)
    });
    Some(vdso(tid)? + (*offset)?)
}

/// The address of the vDSO of a process (AT_SYSINFO_EHDR, getauxval(3)).
fn vdso(process: Tid) -> Option<u64> {
    let auxiliary = std::fs::read(format!("/proc/{process}/auxv")).ok()?;
    let words: SmallVec<[u64; 64]> =
        auxiliary.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.as_chunks().0.iter().find_map(|&[key, value]| (key == libc::AT_SYSINFO_EHDR).then_some(value))
}
