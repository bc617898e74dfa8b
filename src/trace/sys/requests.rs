//! ptrace(2) requests that move data between a stopped tracee and a buffer, for a tracer whom `nested` stands in for.

use std::io;

use super::arch;
use super::process::check;
use super::ptrace::{OPTIONS, Stopped};

/// PTRACE_ARCH_PRCTL of x86_64: no other architecture has a request of this number.
pub const ARCH_PRCTL: u32 = 30;
/// What it may ask for here (arch_prctl(2)).
const ARCH_GET_FS: u64 = 0x1003;
const ARCH_GET_GS: u64 = 0x1004;
/// PTRACE_GET_RSEQ_CONFIGURATION.
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;
/// The size of the kernel's signal set.
const SIGNAL_SET: u64 = 8;

/// How many bytes a request reads from the tracee; none if it reads none.
pub fn bytes_read(request: u32, addr: u64) -> Option<usize> {
    match request {
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => Some(8),
        libc::PTRACE_GETEVENTMSG | ARCH_PRCTL => Some(8),
        libc::PTRACE_GETSIGINFO => Some(size_of::<libc::siginfo_t>()),
        libc::PTRACE_GETSIGMASK if addr == SIGNAL_SET => Some(8),
        libc::PTRACE_GET_SYSCALL_INFO | GET_RSEQ_CONFIGURATION => Some(usize::try_from(addr).ok()?.min(4096)),
        _ => arch::READS.iter().find(|(number, _)| *number == request).map(|(_, size)| *size),
    }
}

/// How many bytes a request writes to the tracee; none if it writes none.
pub fn bytes_written(request: u32, addr: u64) -> Option<usize> {
    match request {
        libc::PTRACE_SETSIGINFO => Some(size_of::<libc::siginfo_t>()),
        libc::PTRACE_SETSIGMASK if addr == SIGNAL_SET => Some(8),
        _ => arch::WRITES.iter().find(|(number, _)| *number == request).map(|(_, size)| *size),
    }
}

impl Stopped {
    /// Gives it these options beside ours.
    pub fn set_options(&self, more: libc::c_int) -> io::Result<()> {
        // SAFETY: this request accesses no memory.
        let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, self.tid().0, 0usize, OPTIONS | more) };
        check(set).map(drop)
    }

    /// Writes a word (PTRACE_POKETEXT, PTRACE_POKEDATA, PTRACE_POKEUSER).
    pub fn poke(&self, request: u32, addr: u64, word: u64) -> io::Result<()> {
        if !matches!(request, libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA | libc::PTRACE_POKEUSER) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // SAFETY: these requests access no memory of this process.
        check(unsafe { libc::syscall(libc::SYS_ptrace, request, self.tid().0, addr, word) }).map(drop)
    }

    /// Reads what `request` reads, of [`bytes_read`]; the result of the call.
    pub fn read(&self, request: u32, addr: u64, data: u64) -> io::Result<(Vec<u8>, i64)> {
        let refused = || io::Error::from_raw_os_error(libc::EIO);
        let size = bytes_read(request, addr).ok_or_else(refused)?;
        // Others would take the address of the buffer for a value.
        if request == ARCH_PRCTL && !matches!(data, ARCH_GET_FS | ARCH_GET_GS) {
            return Err(refused());
        }
        let mut buffer = vec![0u8; size];
        let at = buffer.as_mut_ptr();
        let tid = self.tid().0;
        let result = if request == ARCH_PRCTL {
            // SAFETY: the kernel writes one word to the buffer of eight bytes.
            unsafe { libc::syscall(libc::SYS_ptrace, request, tid, at, data) }
        } else {
            // SAFETY: the kernel writes at most as many bytes as `bytes_read` says.
            unsafe { libc::syscall(libc::SYS_ptrace, request, tid, addr, at) }
        };
        Ok((buffer, check(result)?))
    }

    /// Writes what `request` writes: as many bytes as [`bytes_written`] says.
    pub fn write(&self, request: u32, addr: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes_written(request, addr) != Some(bytes.len()) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // SAFETY: the kernel reads as many bytes as the buffer has.
        check(unsafe { libc::syscall(libc::SYS_ptrace, request, self.tid().0, addr, bytes.as_ptr()) })
            .map(drop)
    }

    /// Reads or writes a register set (PTRACE_GETREGSET, PTRACE_SETREGSET); how many bytes of the buffer were used.
    pub fn register_set(&self, request: u32, kind: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if !matches!(request, libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: `part` is exactly the buffer, and the kernel uses at most that.
        check(unsafe { libc::syscall(libc::SYS_ptrace, request, self.tid().0, kind, &raw mut part) })?;
        Ok(part.iov_len.min(buffer.len()))
    }
}
