//! System calls that a tracee makes for its tracer.

use std::fs::File;
use std::io;

use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};
use rustix::process::WaitIdOptions;

use super::arch::Registers;
use super::mapping::SharedMapping;
use super::process::{Tid, check, kill};
use super::ptrace::{Stopped, SyscallStop, interrupt, peek_news, syscall_stop};
use crate::trace::wait_status::{Stop, WaitStatus};

/// A tracee that makes system calls for us. When this value is dropped, its registers are what they were, or it is about to
/// make the call again at whose entry it was. No other thread may use its memory meanwhile.
#[derive(Debug)]
pub struct Puppet<'a> {
    tracee: &'a Stopped,
    /// The address of an instruction that makes a system call.
    instruction: u64,
    registers: Registers,
    /// The signals that it blocks.
    mask: u64,
    /// Whether a SIGSTOP has come, which can't be blocked.
    was_stopped: bool,
}

impl<'a> Puppet<'a> {
    /// A tracee that is stopped at the entry of a system call.
    pub fn new(tracee: &'a Stopped, instruction: u64) -> io::Result<Puppet<'a>> {
        let tid = tracee.tid();
        let (mask, registers) = (signal_mask(tid)?, tracee.registers()?);
        set_signal_mask(tid, u64::MAX)?;
        let registers = registers.repeating();
        let mut puppet = Puppet { tracee, instruction, registers, mask, was_stopped: false };
        tracee.skip(0)?;
        while !matches!(puppet.advance()?, SyscallStop::Exit { .. }) {}
        Ok(puppet)
    }

    /// A tracee that is stopped between two system calls, and runs on there when this value is dropped.
    pub fn between_calls(tracee: &'a Stopped, instruction: u64) -> io::Result<Puppet<'a>> {
        let tid = tracee.tid();
        let (mask, registers) = (signal_mask(tid)?, tracee.registers()?);
        set_signal_mask(tid, u64::MAX)?;
        Ok(Puppet { tracee, instruction, registers, mask, was_stopped: false })
    }

    /// Makes a memfd of `length` bytes, maps it here and seals it (memfd_create(2)); has `map` map it in the tracee by the
    /// tracee's descriptor, which is then closed. `name` is the address of a string in the tracee.
    pub fn share_memory<T>(
        &mut self,
        name: u64,
        length: usize,
        seals: SealFlags,
        map: impl FnOnce(&mut Self, u64, SharedMapping) -> io::Result<T>,
    ) -> io::Result<T> {
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let fd = self.call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0])?;
        let path = format!("/proc/{}/fd/{fd}", self.tracee.tid());
        let shared = File::options().read(true).write(true).open(path).and_then(|file| {
            ftruncate(&file, length as u64)?;
            let shared = SharedMapping::of(&file, length)?;
            fcntl_add_seals(&file, seals)?;
            Ok(shared)
        });
        let mapped = shared.and_then(|shared| map(self, fd, shared));
        let closed = self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        mapped.and_then(|mapped| closed.map(|_| mapped))
    }

    /// Makes a system call; its result. The process is killed if it makes another call instead: the program has replaced the
    /// code at the instruction.
    pub fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<u64> {
        let tid = self.tracee.tid();
        let number = number.cast_unsigned();
        self.registers.calling(self.instruction, number, arguments).set(tid)?;
        loop {
            match self.advance()? {
                SyscallStop::Entry { number: made, arguments: with, .. }
                    if (made, with) == (number, arguments) => {}
                SyscallStop::None => {}
                SyscallStop::Entry { .. } => {
                    kill(tid, libc::SIGKILL)?;
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                SyscallStop::Exit { result } => {
                    return match i32::try_from(result) {
                        Ok(errno @ -4095..=-1) => Err(io::Error::from_raw_os_error(-errno)),
                        _ => Ok(result.cast_unsigned()),
                    };
                }
            }
        }
    }

    /// Resumes the tracee to its next stop at a system call; ESRCH if it is dead, which is left for others to be told. A SIGSTOP
    /// is delivered at once, and ends with the SIGCONT that may follow; the tracee runs on meanwhile.
    fn advance(&mut self) -> io::Result<SyscallStop> {
        let tid = self.tracee.tid();
        let mut signal = 0;
        loop {
            // SAFETY: this request accesses no memory.
            check(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, tid.0, 0usize, i64::from(signal)) })?;
            signal = 0;
            match wait_for_stop(tid)? {
                Stop::Syscall => return syscall_stop(tid),
                Stop::Signal(libc::SIGSTOP) => {
                    signal = libc::SIGSTOP;
                    self.was_stopped = true;
                }
                // The program has unmapped or replaced the code at the instruction.
                Stop::Signal(_) => return Err(io::ErrorKind::InvalidData.into()),
                _ => {}
            }
        }
    }
}

impl Drop for Puppet<'_> {
    fn drop(&mut self) {
        let tid = self.tracee.tid();
        let _ = self.registers.set(tid);
        let _ = set_signal_mask(tid, self.mask);
        if self.was_stopped {
            // The next stop is a group-stop, if it is still stopped.
            let _ = interrupt(tid);
        }
    }
}

fn wait_for_stop(tid: Tid) -> io::Result<Stop> {
    let news = peek_news(tid, WaitIdOptions::empty())?;
    if news.is_some_and(|news| news.exited() || news.killed() || news.dumped()) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    check(unsafe { libc::waitpid(tid.0, &raw mut status, libc::__WALL | libc::WNOHANG) })?;
    match WaitStatus::from_raw(status) {
        WaitStatus::Stopped(stop) => Ok(stop),
        WaitStatus::Ended(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// The signals that a stopped thread blocks (PTRACE_GETSIGMASK).
fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes as many bytes there as we pass.
    check(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, tid.0, size_of::<u64>(), &raw mut mask) })?;
    Ok(mask)
}

/// Changes the signals that a stopped thread blocks (PTRACE_SETSIGMASK).
fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes there as we pass.
    check(unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, tid.0, size_of::<u64>(), &raw const mask) })
        .map(drop)
}
