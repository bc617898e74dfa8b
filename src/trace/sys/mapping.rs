//! Memory of this process that others may map.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

/// A file that is mapped to be written (mmap(2)).
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    length: usize,
}

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
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
    }
}
