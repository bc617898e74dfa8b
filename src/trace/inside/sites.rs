//! Call sites: where they are in a process, and in which file, so that those of a library are known in the next process.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;

use foldhash::fast::RandomState;

use crate::trace::memory::{Memory as _, RemoteAddr};
use crate::trace::sys::arch::inside as code;
use crate::trace::sys::{Tid, TraceeMemory, mapped_ranges};

/// A call site: the return address of its call, and the number of that.
pub type CallSite = (u64, u32);

/// Device and inode number of a file, as proc_pid_maps(5) has them.
type FileId = Vec<u8>;

/// The mappings of a process.
#[derive(Debug)]
pub struct Mappings {
    /// The addresses of all of them.
    pub ranges: Vec<Range<u64>>,
    code: Vec<CodeMapping>,
}

/// Private, executable memory.
#[derive(Debug)]
struct CodeMapping {
    range: Range<u64>,
    /// The file that is mapped, and where in it the mapping begins.
    file: Option<(FileId, u64)>,
}

impl CodeMapping {
    /// From the addresses and "perms offset dev inode path"; none if it is something else. What is written to shared memory,
    /// others execute, too, and a file may keep.
    fn new(range: Range<u64>, rest: &[u8]) -> Option<CodeMapping> {
        let mut fields = rest.splitn(5, |byte| *byte == b' ');
        let mut field = || fields.next();
        if !field()?.ends_with(b"xp") {
            return None;
        }
        let offset = u64::from_str_radix(std::str::from_utf8(field()?).ok()?, 16).ok()?;
        let (device, inode) = (field()?, field()?);
        let file = (inode != b"0").then(|| ([device, b" ", inode].concat(), offset));
        Some(CodeMapping { range, file })
    }
}

impl Mappings {
    /// What is mapped now.
    pub fn of(process: Tid) -> io::Result<Mappings> {
        let mappings = mapped_ranges(process)?;
        let code =
            mappings.iter().filter_map(|(range, rest)| CodeMapping::new(range.clone(), rest)).collect();
        Ok(Mappings { ranges: mappings.into_iter().map(|(range, _)| range).collect(), code })
    }

    /// Whether there is a call site, byte for byte.
    pub fn has_call_at(&self, thread: Tid, (return_address, number): CallSite) -> bool {
        let Some(start) = return_address.checked_sub(code::SITE as u64) else { return false };
        let is_there = |code: &CodeMapping| code.range.start <= start && return_address <= code.range.end;
        let mut bytes = [0; code::SITE];
        self.code.iter().any(is_there)
            && TraceeMemory(thread).read_exact(RemoteAddr(start), &mut bytes).is_ok()
            && bytes == code::site(number)
    }
}

/// The call sites in files that were patched in some process: by their return addresses, as offsets in the file, the numbers of
/// the calls.
#[derive(Debug, Default)]
pub struct KnownSites(HashMap<FileId, BTreeMap<u64, u32>, RandomState>);

impl KnownSites {
    /// One was patched.
    pub fn add(&mut self, mappings: &Mappings, (return_address, number): CallSite) {
        let found = mappings.code.iter().find(|code| code.range.contains(&return_address));
        if let Some(CodeMapping { range, file: Some((file, begin)) }) = found {
            let at = begin + (return_address - range.start);
            self.0.entry(file.clone()).or_default().insert(at, number);
        }
    }

    /// Those that should be in a process; the file may have been changed since.
    pub fn in_process(&self, mappings: &Mappings) -> impl Iterator<Item = CallSite> {
        mappings.code.iter().flat_map(|CodeMapping { range, file }| {
            let (start, length) = (range.start, range.end - range.start);
            let known = file.as_ref().and_then(|(file, begin)| Some((self.0.get(file)?, *begin)));
            known.into_iter().flat_map(move |(sites, begin)| {
                let sites = sites.range(begin..begin.saturating_add(length));
                sites.map(move |(at, number)| (start + (at - begin), *number))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_site_of_a_file_is_found_where_the_file_is_mapped_in_another_process() {
        let mapped = |lines: &[(Range<u64>, &str)]| Mappings {
            ranges: Vec::new(),
            code: lines
                .iter()
                .filter_map(|(range, rest)| CodeMapping::new(range.clone(), rest.as_bytes()))
                .collect(),
        };
        let first = mapped(&[
            (0x1000..0x3000, "r-xp 00026000 fe:00 1234    /lib/libc.so"),
            (0x5000..0x6000, "rwxs 00000000 fe:00 77      /shared"),
            (0x8000..0x9000, "r-xp 00000000 00:00 0"),
        ]);
        let mut known = KnownSites::default();
        [0x1107, 0x5007, 0x8007].into_iter().for_each(|address| known.add(&first, (address, 4)));
        let second = mapped(&[
            (0x50000..0x52000, "r-xp 00026000 fe:00 1234    /lib/libc.so"),
            (0x60000..0x62000, "rw-p 00026000 fe:00 1234    /lib/libc.so"),
            (0x70000..0x72000, "r-xp 00027000 fe:00 1234    /lib/libc.so"),
            (0x80000..0x82000, "r-xp 00026000 fe:00 1235    /lib/other.so"),
            (0x90000..0x92000, "r-xp 00000000 fe:00 77      /shared"),
            (0xa0000..0xa2000, "r-xp 00000000 00:00 0"),
        ]);
        assert_eq!(known.in_process(&second).collect::<Vec<_>>(), [(0x50107, 4)]);
    }
}
