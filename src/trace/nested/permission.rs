//! Whether a process may trace another one.
//!
//! For ATTACH and SEIZE the kernel says it: the caller's ptrace is made into a process_vm_readv of the thread that it wants
//! to trace, which needs the same right (PTRACE_MODE_ATTACH_REALCREDS, ptrace(2)), so that user namespaces, Yama, Landlock
//! and security modules have their say.

use std::io;

use super::requests::low;
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::arch::{self, Registers};
use crate::trace::sys::{Stopped, Tid, write_memory};

/// A ptrace that was made into a read of the memory of the thread that its caller wants to trace.
#[derive(Debug)]
pub(super) struct Asking {
    pub target: Tid,
    pub is_seize: bool,
    pub options: i32,
    registers: Registers,
}

impl Asking {
    /// Asks at the entry of a ptrace.
    pub fn new(stopped: &Stopped, target: Tid, is_seize: bool, options: i32) -> io::Result<Asking> {
        /// Below whatever a function may keep below its stack pointer.
        const BELOW: u64 = 1024;
        /// Where nothing is mapped.
        const NOWHERE: u64 = 1;
        let registers = stopped.registers()?;
        let at = registers.stack_pointer().saturating_sub(BELOW) & !15;
        let (local, remote) = (at, at + 16);
        let words = [at + 32, 1, NOWHERE, 1].map(u64::to_ne_bytes);
        write_memory(stopped.tid(), at, words.as_flattened())?;
        let number = libc::SYS_process_vm_readv.cast_unsigned();
        let target_word = u64::from(target.0.cast_unsigned());
        arch::replace_call(stopped.tid(), number, [target_word, local, 1, remote, 1, 0])?;
        Ok(Asking { target, is_seize, options, registers })
    }

    /// Restores the caller's registers at the exit of the call; what the kernel said.
    pub fn answer(&self, stopped: &Stopped, result: i64) -> Result<(), i32> {
        let _ = self.registers.set(stopped.tid());
        match i32::try_from(-result) {
            Ok(libc::EFAULT) => Ok(()),
            Ok(libc::ESRCH) => Err(libc::ESRCH),
            _ => Err(libc::EPERM),
        }
    }
}

/// Whether a process has no rights that its tracer lacks: no other user, no more capabilities.
pub(super) fn is_within(tracer: Tid, tracee: Tid) -> bool {
    let namespace = |process| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let is_in_other_user_namespace = matches!(
        (namespace(tracer), namespace(tracee)),
        (Some(tracer), Some(tracee)) if tracer != tracee
    );
    let within = || {
        let [tracer, tracee] = [ProcStatus::of(tracer)?, ProcStatus::of(tracee)?];
        let set = |status: &ProcStatus, name| u64::from_str_radix(status.line(name)?, 16).ok();
        let more = set(&tracee, "CapPrm:")? & !set(&tracer, "CapPrm:")?;
        let may_trace = set(&tracer, "CapEff:")? >> CAP_SYS_PTRACE & 1 == 1;
        let same = |name| {
            let own = tracer.line(name)?.split_whitespace().next()?;
            Some(tracee.line(name)?.split_whitespace().take(3).all(|id| id == own))
        };
        // Those in a user namespace below its tracer's are no rights here.
        let more = if is_in_other_user_namespace { 0 } else { more };
        Some(more == 0 && (may_trace || same("Uid:")? && same("Gid:")?))
    };
    within().unwrap_or(false)
}

const CAP_SYS_PTRACE: u32 = 19;

/// Whether a process knows others by numbers that are not ours.
pub(super) fn is_in_other_pid_namespace(process: Tid) -> bool {
    let count = |status: ProcStatus| Some(status.line("NSpid:")?.split_whitespace().count());
    ProcStatus::of(process).and_then(count) != Some(1)
}

/// The process of a pidfd of another process (pidfd_open(2)).
pub(super) fn process_of_pidfd(owner: Tid, pidfd: u64) -> Option<Tid> {
    let info = std::fs::read_to_string(format!("/proc/{owner}/fdinfo/{}", low(pidfd))).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok().map(Tid)
}
