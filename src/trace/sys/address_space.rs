//! The address space of a process: what is mapped there (PROCMAP_QUERY, proc_pid_maps(5), Linux 6.11) and what is in it
//! (proc_pid_mem(5)).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use super::arch;
use super::process::{Tid, check};
use crate::trace::memory::{Fault, Memory, RemoteAddr};

/// The address space of a process, until it executes another program.
///
/// Whoever has it open reads it in less time than by process_vm_readv(2), which finds the process and asks for the right to
/// read it each time.
#[derive(Debug)]
pub struct AddressSpace {
    maps: File,
    memory: File,
}

/// A mapping of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The first address after it.
    pub end: u64,
    /// Whether what is written there goes to a file, or to other processes (MAP_SHARED).
    pub is_shared: bool,
    /// Whether it shows a file or a device.
    pub is_of_file: bool,
    /// Whether the process may use it in any way: then the kernel reads it for the process, and so do we. We read all else, too.
    pub is_accessible: bool,
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    mapping_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_and_build_id_sizes: [u32; 2],
    name: u64,
    build_id: u64,
}

impl AddressSpace {
    /// The one that a process has now.
    pub fn of(process: Tid) -> io::Result<AddressSpace> {
        let path = |name| format!("/proc/{process}/{name}");
        let memory = File::options().read(true).write(true).open(path("mem"))?;
        Ok(AddressSpace { maps: File::open(path("maps"))?, memory })
    }

    /// Whether the kernel tells of single mappings.
    pub fn can_be_asked() -> bool {
        let here = (AddressSpace::can_be_asked as fn() -> bool as usize) as u64;
        AddressSpace::of(Tid(std::process::id().cast_signed())).is_ok_and(|space| space.mapping(here).is_ok())
    }

    /// The mapping at an address. ENOENT: there is none; ENOTTY: the kernel does not know the request; ESRCH: the
    /// process has executed another program.
    pub fn mapping(&self, address: u64) -> io::Result<Mapping> {
        /// _IOWR('f', 17, struct procmap_query).
        const QUERY: libc::Ioctl = 0xc068_6611;
        const READABLE_WRITABLE_OR_EXECUTABLE: u64 = 0x07;
        const SHARED: u64 = 0x08;
        let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
        // SAFETY: the kernel reads and writes one procmap_query there.
        check(unsafe { libc::ioctl(self.maps.as_raw_fd(), QUERY, &raw mut query) })?;
        Ok(Mapping {
            end: query.end,
            is_shared: query.mapping_flags & SHARED != 0,
            is_of_file: query.inode != 0 || query.device != [0; 2],
            is_accessible: query.mapping_flags & READABLE_WRITABLE_OR_EXECUTABLE != 0,
        })
    }

    /// Gives the process pages of its own in a private mapping of a file, by writing to each a byte that is there.
    pub fn unshare_pages(&self, Range { start, end }: Range<u64>) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let mut at = start;
        while at < end {
            let mut byte = [0];
            self.memory.read_exact_at(&mut byte, at)?;
            self.memory.write_all_at(&byte, at)?;
            let Some(next) = (at & !(PAGE - 1)).checked_add(PAGE) else { break };
            at = next;
        }
        Ok(())
    }
}

/// The addresses of each mapping of a process, with the rest of its line: "perms offset dev inode path" (proc_pid_maps(5)).
pub fn mapped_ranges(process: Tid) -> io::Result<Vec<(Range<u64>, Vec<u8>)>> {
    let maps = std::fs::read(format!("/proc/{process}/maps"))?;
    let of_line = |line: &[u8]| {
        let (range, rest) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')? + 1)?;
        let (start, end) = std::str::from_utf8(range).ok()?.trim_end().split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some((number(start)?..number(end)?, rest.to_vec()))
    };
    Ok(maps.split(|byte| *byte == b'\n').filter_map(of_line).collect())
}

impl Memory for AddressSpace {
    fn read(&self, address: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault> {
        match self.memory.read_at(into, arch::untagged(address.0)) {
            Ok(0) => Err(Fault::Gone),
            Ok(count) => Ok(count),
            Err(_) => Err(Fault::Unmapped),
        }
    }
}
