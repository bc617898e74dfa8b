//! The notes of one process: the block that is mapped in it, and what was read of its ring.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::RandomState;
use rustix::fs::SealFlags;

use super::layout;
use super::lock;
use super::notes::{Slot, Start, Told, named, start_directory, tell};
use crate::trace::memory::{Memory as _, RemoteAddr};
use crate::trace::observer::{Caller, Observer, gap};
use crate::trace::sys::arch::inside as code;
use crate::trace::sys::{self, Puppet, SharedMapping, Stopped, Tid, TraceeMemory};
use crate::trace::syscalls::{DecodedSyscall, Dirfd, FileRef};

/// Each directory that was learnt is open here; with that many, all are forgotten.
const MOST_LEARNT: u32 = 16;
/// The same of all directories that are known.
const MOST_STARTS: usize = 10_000;

const RING: u64 = layout::END - layout::RING;

/// The notes of a process.
#[derive(Debug)]
pub struct Notebook {
    /// Where the block lies in the process.
    block: u64,
    ring: SharedMapping,
    reader: Mutex<Reader>,
    /// Whether it stays closed.
    is_ended: AtomicBool,
    /// The return addresses at the patched call sites, with the number of the call, in the order of their thunks.
    sites: Mutex<Vec<(u64, u32)>>,
}

#[derive(Debug, Default)]
struct Reader {
    /// How many notes were read.
    tail: u64,
    /// The directories where paths start, by the number that notes have for them.
    starts: HashMap<u32, Start, RandomState>,
    /// How many of them were learnt.
    learnt: u32,
}

impl Notebook {
    /// Maps the block in a process, near a call site.
    pub fn map_in(tracee: &Stopped, return_address: u64, mark: u64) -> io::Result<Notebook> {
        let tid = tracee.tid();
        let block = free_block(tid, return_address).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut puppet = Puppet::between_calls(tracee, return_address - 2)?;
        // The process must not take away what we read.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let length = usize::try_from(RING).map_err(io::Error::other)?;
        // The highest byte of the number at the call site is zero.
        let no_name = return_address - 3;
        puppet.share_memory(no_name, length, seals, |puppet, fd, ring| {
            Notebook::map(puppet, tid, fd, block, mark)?;
            let (reader, sites) = (Mutex::default(), Mutex::default());
            Ok(Notebook { block, ring, reader, is_ended: AtomicBool::new(false), sites })
        })
    }

    fn map(puppet: &mut Puppet<'_>, tid: Tid, fd: u64, block: u64, mark: u64) -> io::Result<()> {
        let bits = |of: i32| u64::from(of.unsigned_abs());
        let (private, none) = (bits(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS), u64::MAX);
        let fixed = bits(libc::MAP_FIXED_NOREPLACE);
        let mut map = |from: u64, to: u64, protection: i32, flags: u64, fd: u64| {
            let arguments = [block + from, to - from, bits(protection), flags | fixed, fd, 0];
            puppet.call(libc::SYS_mmap, arguments)
        };
        map(0, layout::DATA, libc::PROT_READ | libc::PROT_EXEC, private, none)?;
        let data = libc::PROT_READ | libc::PROT_WRITE;
        map(layout::DATA, layout::RING, data, private, none)?;
        map(layout::RING, layout::END, data, bits(libc::MAP_SHARED), fd)?;
        let (at, length) = (block + layout::DATA, layout::RING - layout::DATA);
        puppet.call(libc::SYS_madvise, [at, length, bits(libc::MADV_WIPEONFORK), 0, 0, 0])?;
        puppet.call(libc::SYS_madvise, [block + layout::RING, RING, bits(libc::MADV_DONTFORK), 0, 0, 0])?;
        sys::overwrite_memory(tid, block, code::code())?;
        sys::write_memory(tid, block + layout::NUDGE, &(layout::SLOTS / 2).to_ne_bytes())?;
        sys::write_memory(tid, block + layout::MARK, &mark.to_ne_bytes())?;
        sys::write_memory(tid, block + layout::ACTIVE, &1_u32.to_ne_bytes())
    }

    /// Has the process note nothing until one of its calls has been judged.
    pub fn close(&self) {
        self.ring.store(of_ring(layout::OPEN), 0);
    }

    /// The same, whatever it calls.
    pub fn close_for_good(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.close();
    }

    /// Patches the call site before a return address, which has these bytes. Unsupported: there is no room for another one.
    pub fn patch(
        &self,
        tracee: &Stopped,
        return_address: u64,
        bytes: [u8; code::SITE],
        name: &str,
        number: u32,
    ) -> io::Result<()> {
        let unfit = || io::Error::from(io::ErrorKind::Unsupported);
        let mut sites = lock(&self.sites);
        let at = self.thunk(sites.len());
        if at + code::THUNK > self.block + layout::DATA {
            return Err(unfit());
        }
        let thunk = code::thunk(self.block, at, return_address, name, number).ok_or_else(unfit)?;
        let jump = code::jump(bytes, number, return_address, at).ok_or_else(unfit)?;
        sys::overwrite_memory(tracee.tid(), at, &thunk)?;
        sys::overwrite_memory(tracee.tid(), return_address - code::SITE as u64, &jump)?;
        sites.push((return_address, number));
        Ok(())
    }

    /// Puts back what was at the call sites, as far as nobody else has written there. No thread may be in the code.
    pub fn restore(&self, tracee: &Stopped) {
        for (index, &(return_address, number)) in lock(&self.sites).iter().enumerate() {
            let (original, start) = (code::site(number), return_address - code::SITE as u64);
            let Some(jump) = code::jump(original, number, return_address, self.thunk(index)) else {
                continue;
            };
            let mut bytes = jump;
            let read = TraceeMemory(tracee.tid()).read_exact(RemoteAddr(start), &mut bytes);
            if read.is_ok() && bytes == jump {
                // ESRCH: it was killed.
                let _ = sys::overwrite_memory(tracee.tid(), start, &original[..jump.len()]);
            }
        }
    }

    /// The address of the thunk of a call site.
    fn thunk(&self, index: usize) -> u64 {
        self.block + layout::THUNKS + index as u64 * code::THUNK
    }

    /// Calls that were noted are noted again from now on.
    pub fn begin_generation(&self) {
        let generation = self.ring.load(of_ring(layout::GENERATION));
        self.ring.store(of_ring(layout::GENERATION), generation.wrapping_add(1));
    }

    /// Opens it, and learns where the path of a call starts which waits to be made.
    pub fn learn(&self, caller: Caller, decoded: Option<&DecodedSyscall>, observer: &impl Observer) {
        if self.is_ended.load(Ordering::Acquire) {
            return;
        }
        let was_closed = self.ring.load(of_ring(layout::OPEN)) == 0;
        if was_closed || lock(&self.reader).starts.len() > MOST_STARTS {
            self.read(caller.tgid, observer);
            self.forget_starts();
            self.ring.store(of_ring(layout::OPEN), 1);
        }
        let file = decoded.and_then(|decoded| decoded.accesses.first()).map(|access| &access.file);
        let Some(FileRef::Path { dirfd, path }) = file else { return };
        if path.starts_with(b"/") {
            return;
        }
        let link = match *dirfd {
            Dirfd::Cwd => format!("/proc/{}/cwd", caller.tid),
            Dirfd::Fd(fd) => format!("/proc/{}/fd/{fd}", caller.tid),
        };
        let Some((directory, identity, length)) = start_directory(&link) else { return };
        if lock(&self.reader).learnt >= MOST_LEARNT {
            self.read(caller.tgid, observer);
            self.forget_starts();
        }
        let mut reader = lock(&self.reader);
        reader.learnt += 1;
        let number = if *dirfd == Dirfd::Cwd { layout::CWD } else { layout::CWD + reader.learnt };
        reader.starts.insert(number, Start::Open(directory));
        if number == layout::CWD {
            let [.., mount] = identity;
            self.ring.store(of_ring(layout::CWD_MOUNT), mount);
            self.ring.store(of_ring(layout::KNOWS_CWD), length << 32 | 1);
            return;
        }
        let at = known(identity[0]);
        for (word, value) in identity.into_iter().chain([length << 32 | u64::from(number)]).enumerate() {
            self.ring.store(at + 8 * word, value);
        }
    }

    /// Forgets where paths start; all notes were read, and the process waits.
    fn forget_starts(&self) {
        self.ring.store(of_ring(layout::KNOWS_CWD), 0);
        for number in 0..layout::MOST_KNOWN {
            self.ring.store(known(number) + 24, 0);
        }
        let mut reader = lock(&self.reader);
        reader.starts.clear();
        reader.learnt = 0;
        // The numbers are given again.
        self.begin_generation();
    }

    /// Tells the observer of the notes that nobody has read; whether there were any.
    pub fn read(&self, process: Tid, observer: &impl Observer) -> bool {
        let mut reader = lock(&self.reader);
        let head = self.ring.load(of_ring(layout::HEAD));
        if head.wrapping_sub(reader.tail) > layout::SLOTS {
            gap(observer, &format!("process {process} has overwritten what it noted of its calls"));
            reader.tail = head;
        }
        let had_notes = reader.tail != head;
        let mut texts = HashMap::new();
        while reader.tail != head {
            let mut slot: Slot = [0; layout::SLOT];
            self.ring.read(
                of_ring(layout::FIRST_SLOT + reader.tail % layout::SLOTS * layout::SLOT as u64),
                &mut slot,
            );
            let mut start_of = |number: u32| {
                let text = texts.entry(number).or_insert_with(|| reader.starts.get(&number)?.path());
                text.clone()
            };
            let told = match named(&slot, &mut start_of) {
                Some((number, start)) => {
                    texts.remove(&number);
                    reader.starts.insert(number, start);
                    Some(Told { is_counted: true, digest: 0 })
                }
                None => tell(process, &slot, start_of, observer),
            };
            match told {
                Some(Told { is_counted: false, digest }) if digest != 0 => {
                    self.ring.store(of_ring(layout::FIRST_NOTED + 8 * (digest % layout::NOTED)), digest);
                }
                Some(_) => {}
                None => gap(observer, &format!("a call that process {process} has noted can't be read")),
            }
            reader.tail += 1;
            if reader.tail.is_multiple_of(layout::SLOTS / 16) {
                self.ring.store(of_ring(layout::TAIL), reader.tail);
            }
        }
        self.ring.store(of_ring(layout::TAIL), reader.tail);
        had_notes
    }

    /// Has a thread leave the code; none if it is elsewhere.
    pub fn leave(&self, tracee: &Stopped) -> Option<()> {
        let registers = tracee.registers().ok()?;
        let offset = registers.instruction_pointer().checked_sub(self.block)?;
        let sites = lock(&self.sites);
        if offset >= layout::DATA {
            return None;
        }
        let thunk = offset.checked_sub(layout::THUNKS).map(|into| into / code::THUNK);
        let thunk = thunk.and_then(|index| sites.get(usize::try_from(index).ok()?).copied());
        let saved = std::array::from_fn(|word| self.ring.load(of_ring(layout::SAVED) + 8 * word));
        code::leave(&registers, self.block, &saved, thunk).set(tracee.tid()).ok()
    }
}

/// Where a block fits in a process, below an address in its code and not far from it.
fn free_block(process: Tid, address: u64) -> Option<u64> {
    /// As far as a jump reaches, and no nearer to the first page than programs may map.
    const FAR: u64 = 1 << 30;
    const LOWEST: u64 = 1 << 16;
    let mut ranges: Vec<_> = sys::mapped_ranges(process).ok()?.into_iter().map(|(range, _)| range).collect();
    ranges.retain(|range| range.start <= address);
    let ends = ranges.iter().rev().skip(1).map(|range| range.end).chain([LOWEST]);
    ranges.iter().rev().zip(ends).find_map(|(range, end)| {
        let block = range.start.checked_sub(layout::END)?;
        (block >= end.max(LOWEST) && address - block < FAR).then_some(block)
    })
}

/// Where something is in the ring.
fn of_ring(offset: u64) -> usize {
    usize::try_from(offset - layout::RING).expect("a ring is small")
}

/// Where it is in the ring what is known of a directory, by its inode number.
fn known(inode: u64) -> usize {
    of_ring(layout::KNOWN + 32 * (inode % layout::MOST_KNOWN))
}
