//! Memory of this process that others may map.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::process::check;

/// A file that is mapped to be read and written (mmap(2)).
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: no reference to what is mapped ever exists; single words are atomic, and other bytes mean what others make of them.
unsafe impl Send for SharedMapping {}
// SAFETY: the same.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `length` bytes of a file.
    pub fn of(file: &File, length: usize) -> io::Result<SharedMapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, where the kernel chooses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(SharedMapping { start, length })
    }

    /// Writes `bytes` at `offset`, as far as they lie in the mapping.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let count = bytes.len().min(self.length.saturating_sub(offset));
        // SAFETY: the range lies in the mapping, to which no reference of this process exists.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), count) };
    }

    /// Reads the bytes at `offset`, as far as they lie in the mapping. Another process may be writing them.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let count = into.len().min(self.length.saturating_sub(offset));
        // SAFETY: the range lies in the mapping, to which no reference of this process exists.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(NonNull::from(into).cast(), count) };
    }

    /// The word at `offset`, and with it what was written before it.
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Writes the word at `offset`, after what was written before.
    pub fn store(&self, offset: usize, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Replaces the word at `offset`, if it is `from`; whether it was.
    pub fn exchange(&self, offset: usize, from: u64, to: u64) -> bool {
        let exchange =
            |word: &AtomicU64| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.word(offset).is_some_and(exchange)
    }

    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let fits = offset.is_multiple_of(8) && offset.checked_add(8)? <= self.length;
        // SAFETY: the word lies in the mapping and is aligned; whoever else uses it does so atomically.
        fits.then(|| unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() })
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
    }
}

/// mseal(2), Linux 6.10.
pub const SYS_MSEAL: libc::c_long = 462;

/// Seals no memory: an error where mseal(2) is missing or denied.
pub fn try_mseal() -> io::Result<()> {
    let (address, length, flags) = (0usize, 0usize, 0usize);
    // SAFETY: no memory is meant.
    check(unsafe { libc::syscall(SYS_MSEAL, address, length, flags) }).map(drop)
}
