//! Reading strings, words and argument lists from a tracee's memory.
//!
//! [`Memory`] is implemented by `sys::TraceeMemory` and, for tests, by `Fake`. Neighbour: `syscalls` decodes
//! arguments through it.

#[cfg(test)]
use std::cell::Cell;

/// An address in a tracee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteAddr(pub u64);

/// The longest path that the kernel accepts, its NUL included.
pub const PATH_MAX: usize = 4096;

/// How many bytes of an argument list are kept.
pub const ARGV_LIMIT: usize = 64 * 1024;

/// The size of the first read of a string: most are shorter, and a smaller read is no cheaper.
const FIRST_READ: usize = 256;

/// Why a tracee's memory has no such value. Decoding decides by it; no user is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing is mapped there, or too little: the kernel fails with EFAULT, too.
    Unmapped,
    /// This user may not read it: the tracee is not dumpable.
    Unreadable,
    /// The tracee is dead.
    Gone,
    /// No NUL within [`PATH_MAX`] bytes: the kernel fails with ENAMETOOLONG, too.
    NameTooLong,
}

/// The memory of a tracee.
pub trait Memory {
    /// Reads from `addr` on and returns how many bytes are there, up to the first hole.
    ///
    /// Never `Ok(0)` for a buffer that is not empty: that is [`Fault::Unmapped`].
    fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault>;

    /// Fills `into`, or fails as copy_from_user does.
    fn read_exact(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<(), Fault> {
        if into.is_empty() || self.read(addr, into)? == into.len() { Ok(()) } else { Err(Fault::Unmapped) }
    }

    /// Reads consecutive 64-bit words, all or none.
    fn read_words(&self, addr: RemoteAddr, into: &mut [u64]) -> Result<(), Fault> {
        let mut bytes = vec![0; into.len() * 8];
        self.read_exact(addr, &mut bytes)?;
        for (word, bytes) in into.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(())
    }

    /// Reads a path, without its NUL, as the kernel's getname does.
    fn read_path(&self, addr: RemoteAddr) -> Result<Vec<u8>, Fault> {
        let mut first = [0; FIRST_READ];
        let count = self.read(addr, &mut first)?.min(FIRST_READ);
        let first = &first[..count];
        match first.iter().position(|&byte| byte == 0) {
            Some(end) => Ok(first[..end].to_vec()),
            None => match read_string(self, addr, first, PATH_MAX)? {
                (path, true) => Ok(path),
                (_, false) => Err(Fault::NameTooLong),
            },
        }
    }

    /// Reads the argument list of an execve(2), and whether it was truncated to `limit` bytes.
    ///
    /// A null list is empty. Each argument counts with its NUL.
    fn read_argv(&self, addr: RemoteAddr, limit: usize) -> Result<(Vec<Vec<u8>>, bool), Fault> {
        let mut argv = Vec::new();
        let mut block = Block::default();
        if addr.0 == 0 {
            return Ok((argv, false));
        }
        let mut left = limit;
        let mut pointers = [0; 64 * 8];
        let mut at = addr.0;
        loop {
            let count = self.read(RemoteAddr(at), &mut pointers)? / 8;
            if count == 0 {
                return Err(Fault::Unmapped);
            }
            for pointer in &pointers.as_chunks().0[..count] {
                let pointer = u64::from_ne_bytes(*pointer);
                if pointer == 0 {
                    return Ok((argv, false));
                }
                if left == 0 {
                    return Ok((argv, true));
                }
                let (argument, whole) = block.string(self, RemoteAddr(pointer), left)?;
                left -= argument.len() + usize::from(whole);
                argv.push(argument);
                if !whole {
                    return Ok((argv, true));
                }
            }
            at = at.wrapping_add(count as u64 * 8);
        }
    }
}

/// Memory that was read at once, since the arguments of a program mostly lie side by side.
#[derive(Debug, Default)]
struct Block {
    start: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// Its bytes from `addr` on, none where that is outside.
    fn rest(&self, addr: RemoteAddr) -> &[u8] {
        let skip = addr.0.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.bytes.get(skip..)).unwrap_or_default()
    }

    /// The string at `addr`, as of [`read_string`]; reads another block if it does not end in this one.
    fn string<M: Memory + ?Sized>(
        &mut self,
        memory: &M,
        addr: RemoteAddr,
        limit: usize,
    ) -> Result<(Vec<u8>, bool), Fault> {
        if !self.rest(addr).contains(&0) {
            self.bytes.resize(PATH_MAX, 0);
            let count = memory.read(addr, &mut self.bytes)?;
            self.bytes.truncate(count);
            self.start = addr.0;
        }
        let rest = self.rest(addr);
        let rest = &rest[..rest.len().min(limit)];
        match rest.iter().position(|&byte| byte == 0) {
            Some(end) => Ok((rest[..end].to_vec(), true)),
            None => read_string(memory, addr, rest, limit),
        }
    }
}

/// Reads the string at `addr`, which begins with the bytes `known`; the flag is false if there is no NUL in
/// its first `limit` bytes.
fn read_string<M: Memory + ?Sized>(
    memory: &M,
    addr: RemoteAddr,
    known: &[u8],
    limit: usize,
) -> Result<(Vec<u8>, bool), Fault> {
    let mut bytes = known.to_vec();
    while bytes.len() < limit {
        let from = bytes.len();
        // The second read is long enough for any path.
        let want = if from < FIRST_READ { FIRST_READ } else { PATH_MAX }.min(limit - from);
        bytes.resize(from + want, 0);
        let count = memory.read(RemoteAddr(addr.0.wrapping_add(from as u64)), &mut bytes[from..])?;
        bytes.truncate(from + count);
        if let Some(end) = bytes[from..].iter().position(|&byte| byte == 0) {
            bytes.truncate(from + end);
            return Ok((bytes, true));
        }
        if count < want {
            return Err(Fault::Unmapped);
        }
    }
    Ok((bytes, false))
}

/// A tracee's memory for tests: mapped stretches with holes between them.
#[cfg(test)]
#[derive(Debug, Clone)]
pub struct Fake {
    stretches: Vec<(u64, Vec<u8>)>,
    next: u64,
    /// What a read of a hole answers.
    pub fault: Fault,
    /// How many reads there were.
    pub reads: Cell<usize>,
}

#[cfg(test)]
impl Default for Fake {
    fn default() -> Self {
        Fake { stretches: Vec::new(), next: 0x10000, fault: Fault::Unmapped, reads: Cell::default() }
    }
}

#[cfg(test)]
impl Fake {
    /// Maps `bytes` with a hole before and behind, and returns their address.
    pub fn map(&mut self, bytes: impl Into<Vec<u8>>) -> RemoteAddr {
        let at = self.next;
        let bytes = bytes.into();
        self.next += (bytes.len() as u64 | 0xfff) + 0x1001;
        self.stretches.push((at, bytes));
        RemoteAddr(at)
    }

    /// Maps `path` and a NUL.
    pub fn map_path(&mut self, path: &str) -> RemoteAddr {
        self.map([path.as_bytes(), b"\0"].concat())
    }

    /// Maps consecutive words.
    pub fn map_words(&mut self, words: &[u64]) -> RemoteAddr {
        self.map(words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())
    }
}

#[cfg(test)]
impl Memory for Fake {
    fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault> {
        self.reads.set(self.reads.get() + 1);
        let found = self.stretches.iter().find_map(|(start, bytes)| {
            let skip = usize::try_from(addr.0.checked_sub(*start)?).ok()?;
            bytes.get(skip..).filter(|rest| !rest.is_empty())
        });
        let rest = found.ok_or(self.fault)?;
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_ends_at_its_nul_and_may_stand_before_a_hole() {
        let mut memory = Fake::default();
        let short = memory.map(*b"a/b\0rest");
        let last = memory.map(*b"x\0");
        let empty = memory.map(*b"\0");
        assert_eq!(memory.read_path(short), Ok(b"a/b".to_vec()));
        assert_eq!(memory.read_path(last), Ok(b"x".to_vec()));
        assert_eq!(memory.read_path(empty), Ok(Vec::new()));
    }

    #[test]
    fn a_path_that_runs_into_a_hole_is_a_fault() {
        let mut memory = Fake::default();
        for len in [1, 255, 256, 257, 4095] {
            let addr = memory.map(vec![b'a'; len]);
            assert_eq!(memory.read_path(addr), Err(Fault::Unmapped), "{len}");
        }
        assert_eq!(memory.read_path(RemoteAddr(0)), Err(Fault::Unmapped));
        memory.fault = Fault::Unreadable;
        assert_eq!(memory.read_path(RemoteAddr(0)), Err(Fault::Unreadable));
    }

    #[test]
    fn a_path_of_path_max_bytes_is_too_long() {
        let mut memory = Fake::default();
        for len in [254, 255, 256, 257, 511, 512, 4094, 4095] {
            let addr = memory.map_path(&"a".repeat(len));
            assert_eq!(memory.read_path(addr), Ok(vec![b'a'; len]), "{len}");
        }
        let addr = memory.map_path(&"a".repeat(4096));
        assert_eq!(memory.read_path(addr), Err(Fault::NameTooLong));
        let unended = memory.map(vec![b'a'; 4096]);
        assert_eq!(memory.read_path(unended), Err(Fault::NameTooLong));
    }

    #[test]
    fn words_are_read_all_or_none() {
        let mut memory = Fake::default();
        let addr = memory.map_words(&[1, 2]);
        let mut two = [0; 2];
        assert_eq!(memory.read_words(addr, &mut two), Ok(()));
        assert_eq!(two, [1, 2]);
        assert_eq!(memory.read_words(addr, &mut [0; 3]), Err(Fault::Unmapped));
    }

    #[test]
    fn an_argument_list_is_read_to_its_null() {
        let mut memory = Fake::default();
        let long = "l".repeat(5000);
        let words: Vec<u64> =
            ["ls", "", &long].iter().map(|word| memory.map_path(word).0).chain([0]).collect();
        let argv = memory.map_words(&words);
        let expected = vec![b"ls".to_vec(), Vec::new(), long.into_bytes()];
        assert_eq!(memory.read_argv(argv, ARGV_LIMIT), Ok((expected, false)));
        assert_eq!(memory.read_argv(RemoteAddr(0), ARGV_LIMIT), Ok((Vec::new(), false)));
    }

    #[test]
    fn arguments_that_lie_side_by_side_are_read_at_once() {
        let mut memory = Fake::default();
        let words: Vec<String> = (0..900).map(|number| "w".repeat(number * 7 % 31)).collect();
        let at =
            memory.map(words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>());
        let starts = words.iter().scan(at.0, |next, word| {
            let start = *next;
            *next += word.len() as u64 + 1;
            Some(start)
        });
        let mut pointers: Vec<u64> = starts.collect();
        // One in the middle of another, and not in their order.
        pointers.extend([pointers[3] + 2, pointers[0]]);
        let mut expected: Vec<Vec<u8>> = words.iter().map(|word| word.clone().into_bytes()).collect();
        expected.extend([expected[3][2..].to_vec(), expected[0].clone()]);
        let argv = memory.map_words(&[&pointers[..], &[0]].concat());
        memory.reads.set(0);
        assert_eq!(memory.read_argv(argv, ARGV_LIMIT), Ok((expected, false)));
        // 15 of pointers, four of the strings in their order, and one for each of the two others.
        assert_eq!(memory.reads.get(), 21);
    }

    #[test]
    fn a_long_argument_list_is_cut_at_the_limit() {
        let mut memory = Fake::default();
        let word = memory.map_path("0123456789").0;
        let argv = memory.map_words(&[[word; 200].as_slice(), &[0]].concat());
        let (all, cut) = memory.read_argv(argv, 200 * 11).unwrap();
        assert_eq!((all.len(), cut), (200, false));
        assert_eq!(all.iter().map(Vec::capacity).sum::<usize>(), 200 * 10, "no more than their bytes");
        let (some, cut) = memory.read_argv(argv, 100 * 11 + 5).unwrap();
        assert_eq!((some.len(), cut), (101, true));
        assert_eq!(some[100], b"01234");
        let (some, cut) = memory.read_argv(argv, 100 * 11).unwrap();
        assert_eq!((some.len(), cut), (100, true));
    }

    #[test]
    fn an_argument_list_with_a_bad_pointer_is_a_fault() {
        let mut memory = Fake::default();
        let word = memory.map_path("word").0;
        let bad_argument = memory.map_words(&[word, 8, 0]);
        let unended = memory.map_words(&[word, word]);
        assert_eq!(memory.read_argv(bad_argument, ARGV_LIMIT), Err(Fault::Unmapped));
        assert_eq!(memory.read_argv(unended, ARGV_LIMIT), Err(Fault::Unmapped));
    }
}
