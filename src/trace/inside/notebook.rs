//! The notes of one process: the block that is mapped in it, and what was read of its ring.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::fast::RandomState;
use rustix::fs::{AtFlags, CWD, SealFlags};

use super::layout;
use super::notes::{Slot, Start, StartDirectory, Told, identity_of, named, start_directory, tell};
use super::sites::{CallSite, Mappings};
use super::{lock, try_lock};
use crate::trace::memory::{Memory as _, RemoteAddr};
use crate::trace::observer::{Caller, LateCalls, Observer, gap};
use crate::trace::proc_fd;
use crate::trace::sys::arch::inside as code;
use crate::trace::sys::{self, Puppet, SharedMapping, Stopped, Tid, TraceeMemory};
use crate::trace::syscalls::{self, DecodedSyscall, Dirfd, FileRef};

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
    /// How many notes were read; whoever reads them has it.
    read: Mutex<u64>,
    starts: Mutex<Starts>,
    /// The patched call sites, in the order of their thunks.
    sites: Mutex<Vec<CallSite>>,
}

#[derive(Debug, Default)]
struct Starts {
    /// The directories where paths start, by the number that notes have for them.
    known: HashMap<u32, Arc<Start>, RandomState>,
    /// How many of them were learnt.
    learnt: u32,
    /// How often the notebook was closed.
    times_closed: u64,
    /// Whether it stays closed.
    is_ended: bool,
}

impl Notebook {
    /// Maps the block in a process, near a call site.
    pub fn map_in(
        tracee: &Stopped,
        mappings: &Mappings,
        return_address: u64,
        mark: u64,
    ) -> io::Result<Notebook> {
        let tid = tracee.tid();
        let block = free_block(mappings, return_address).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut puppet = Puppet::between_calls(tracee, return_address - 2)?;
        // The process must not take away what we read.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let length = usize::try_from(RING).map_err(io::Error::other)?;
        // The highest byte of the number at the call site is zero.
        let no_name = return_address - 3;
        puppet.share_memory(no_name, length, seals, |puppet, fd, ring| {
            Notebook::map(puppet, tid, fd, block, mark)?;
            let (read, starts, sites) = (Mutex::default(), Mutex::default(), Mutex::default());
            Ok(Notebook { block, ring, read, starts, sites })
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

    /// How many calls the process has made that did not wait, as it says.
    pub fn calls(&self) -> u64 {
        self.ring.load(of_ring(layout::CALLS))
    }

    /// Whether a thread is in the code.
    pub fn is_busy(&self) -> bool {
        self.ring.load(of_ring(layout::BUSY)) != 0
    }

    /// How often it was closed.
    pub fn times_closed(&self) -> u64 {
        lock(&self.starts).times_closed
    }

    /// Has the process note nothing until one of its calls has been judged that has yet to begin.
    pub fn close(&self) {
        lock(&self.starts).times_closed += 1;
        self.ring.store(of_ring(layout::OPEN), 0);
    }

    /// Has it note nothing that opens anything.
    pub fn allow_queries(&self) {
        self.ring.exchange(of_ring(layout::OPEN), layout::ALL_CALLS, layout::QUERIES);
    }

    /// Has it note nothing any more, whatever it calls.
    pub fn close_for_good(&self) {
        lock(&self.starts).is_ended = true;
        self.close();
    }

    /// Patches a call site. Unsupported: it is too far away, or there is no room for another one.
    pub fn patch(&self, tracee: &Stopped, site: CallSite) -> io::Result<()> {
        let unfit = || io::Error::from(io::ErrorKind::Unsupported);
        let (return_address, number) = site;
        let name = syscalls::row_of(number.into()).ok_or_else(unfit)?.name;
        let mut sites = lock(&self.sites);
        let at = self.thunk(sites.len());
        if at + code::THUNK > self.block + layout::DATA {
            return Err(unfit());
        }
        let thunk = code::thunk(self.block, at, return_address, name, number).ok_or_else(unfit)?;
        let jump = code::jump(code::site(number), number, return_address, at).ok_or_else(unfit)?;
        sys::overwrite_memory(tracee.tid(), at, &thunk)?;
        sys::overwrite_memory(tracee.tid(), return_address - code::SITE as u64, &jump)?;
        sites.push(site);
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

    /// Opens it for some calls, unless it was closed more often than this, and learns where the path of a call starts which
    /// waits to be made. If a thread is in the code, it stays as it is.
    pub fn learn(
        &self,
        caller: Caller,
        decoded: Option<&DecodedSyscall>,
        observer: &impl Observer,
        late_calls: LateCalls,
        times_closed: u64,
    ) {
        let open = match late_calls {
            LateCalls::None => return,
            LateCalls::Queries => layout::QUERIES,
            LateCalls::All => layout::ALL_CALLS,
        };
        let file = decoded.and_then(|decoded| decoded.accesses.first()).map(|access| &access.file);
        let dirfd = match file {
            Some(FileRef::Path { dirfd, path }) if !path.starts_with(b"/") => Some(*dirfd),
            _ => None,
        };
        let is_open = self.ring.load(of_ring(layout::OPEN)) == open;
        if is_open && dirfd.is_none_or(|dirfd| self.knows(caller, dirfd)) {
            return;
        }
        let start = dirfd.and_then(|dirfd| Some((dirfd, start_directory(&link_of(caller, dirfd))?)));
        if is_open && start.is_none() || !self.ring.exchange(of_ring(layout::BUSY), 0, 1) {
            return;
        }
        self.learn_alone(caller.tgid, start, open, observer, times_closed);
        self.ring.store(of_ring(layout::BUSY), 0);
    }

    /// Opens it, and learns where a path starts; no thread is in the code.
    fn learn_alone(
        &self,
        process: Tid,
        start: Option<(Dirfd, StartDirectory)>,
        open: u64,
        observer: &impl Observer,
        times_closed: u64,
    ) {
        let was_closed = self.ring.load(of_ring(layout::OPEN)) == 0;
        if was_closed || start.is_some() && lock(&self.starts).learnt >= MOST_LEARNT {
            // Nobody waits for whoever reads notes.
            let Some(read) = try_lock(&self.read) else { return };
            self.read_with(read, process, observer, || {});
            self.forget_starts();
        }
        if let Some((dirfd, start)) = start {
            self.add_start(dirfd, start);
        }
        let starts = lock(&self.starts);
        if !starts.is_ended && starts.times_closed == times_closed {
            self.ring.store(of_ring(layout::OPEN), open);
        }
    }

    /// Whether it is known where the paths of a caller start.
    fn knows(&self, caller: Caller, dirfd: Dirfd) -> bool {
        if dirfd == Dirfd::Cwd {
            return self.ring.load(of_ring(layout::KNOWS_CWD)) != 0;
        }
        identity_of(CWD, link_of(caller, dirfd).as_bytes(), AtFlags::empty()).is_some_and(|identity| {
            let at = known(identity[0]);
            let has = |(word, value): (usize, u64)| self.ring.load(at + 8 * word) == value;
            identity.into_iter().enumerate().all(has) && self.ring.load(at + 24) != 0
        })
    }

    /// Adds a directory where paths may start; no thread is in the code.
    fn add_start(&self, dirfd: Dirfd, StartDirectory { directory, identity, length }: StartDirectory) {
        let mut starts = lock(&self.starts);
        starts.learnt += 1;
        let number = if dirfd == Dirfd::Cwd { layout::CWD } else { layout::CWD + starts.learnt };
        starts.known.insert(number, Arc::new(Start::Open(directory)));
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

    /// Forgets where paths start; all notes were read, and no thread is in the code.
    fn forget_starts(&self) {
        self.ring.store(of_ring(layout::KNOWS_CWD), 0);
        for number in 0..layout::MOST_KNOWN {
            self.ring.store(known(number) + 24, 0);
        }
        let mut starts = lock(&self.starts);
        starts.known.clear();
        starts.learnt = 0;
        // The numbers are given again.
        self.begin_generation();
    }

    /// Whether notes should be read before there is no room for more.
    pub fn is_filling(&self) -> bool {
        let [head, tail] = [layout::HEAD, layout::TAIL].map(|word| self.ring.load(of_ring(word)));
        head.wrapping_sub(tail) >= layout::SLOTS / 4
    }

    /// The same as [`read`](Self::read), unless somebody else is about it; calls `between` before each note.
    pub fn try_read(&self, process: Tid, observer: &impl Observer, between: impl Fn()) -> bool {
        try_lock(&self.read).is_none_or(|read| self.read_with(read, process, observer, between))
    }

    /// Tells the observer of the notes that nobody has read; whether there were any.
    pub fn read(&self, process: Tid, observer: &impl Observer) -> bool {
        self.read_with(lock(&self.read), process, observer, || {})
    }

    fn read_with(
        &self,
        mut read: MutexGuard<'_, u64>,
        process: Tid,
        observer: &impl Observer,
        between: impl Fn(),
    ) -> bool {
        let head = self.ring.load(of_ring(layout::HEAD));
        if head.wrapping_sub(*read) > layout::SLOTS {
            gap(observer, &format!("process {process} has overwritten what it noted of its calls"));
            *read = head;
        }
        let had_notes = *read != head;
        let mut texts = HashMap::new();
        while *read != head {
            between();
            let mut slot: Slot = [0; layout::SLOT];
            self.ring
                .read(of_ring(layout::FIRST_SLOT + *read % layout::SLOTS * layout::SLOT as u64), &mut slot);
            let mut start_of = |number: u32| {
                let start = || lock(&self.starts).known.get(&number).cloned();
                texts.entry(number).or_insert_with(|| start()?.path()).clone()
            };
            let told = match named(&slot, &mut start_of) {
                Some((number, start)) => {
                    texts.remove(&number);
                    lock(&self.starts).known.insert(number, Arc::new(start));
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
            *read += 1;
            if read.is_multiple_of(layout::SLOTS / 16) {
                self.ring.store(of_ring(layout::TAIL), *read);
            }
        }
        self.ring.store(of_ring(layout::TAIL), *read);
        if lock(&self.starts).known.len() > MOST_STARTS {
            self.close();
        }
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
        let left = code::leave(&registers, self.block, &saved, thunk);
        left.registers.set(tracee.tid()).ok()?;
        if left.had_block {
            self.ring.store(of_ring(layout::BUSY), 0);
        }
        Some(())
    }
}

/// Where a block fits in a process, below an address in its code and not far from it.
fn free_block(mappings: &Mappings, address: u64) -> Option<u64> {
    /// As far as a jump reaches, and no nearer to the first page than programs may map.
    const FAR: u64 = 1 << 30;
    const LOWEST: u64 = 1 << 16;
    let mut ranges: Vec<_> = mappings.ranges.iter().collect();
    ranges.retain(|range| range.start <= address);
    let ends = ranges.iter().rev().skip(1).map(|range| range.end).chain([LOWEST]);
    ranges.iter().rev().zip(ends).find_map(|(range, end)| {
        let block = range.start.checked_sub(layout::END)?;
        (block >= end.max(LOWEST) && address - block < FAR).then_some(block)
    })
}

/// The link of procfs that stands for where the paths of a caller start.
fn link_of(caller: Caller, dirfd: Dirfd) -> String {
    match dirfd {
        Dirfd::Cwd => format!("/proc/{}/cwd", caller.tid),
        Dirfd::Fd(fd) => proc_fd::link(caller.tid, fd),
    }
}

/// Where something is in the ring.
fn of_ring(offset: u64) -> usize {
    usize::try_from(offset - layout::RING).expect("a ring is small")
}

/// Where it is in the ring what is known of a directory, by its inode number.
fn known(inode: u64) -> usize {
    of_ring(layout::KNOWN + 32 * (inode % layout::MOST_KNOWN))
}
