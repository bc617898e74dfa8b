//! What depends on the architecture, for aarch64: the numbers of system calls and the registers.

use std::io;
use std::mem::MaybeUninit;

use libc::user_regs_struct;

use super::process::{Tid, check};
use crate::trace::syscalls::Numbers;

#[path = "aarch64_inside.rs"]
pub mod inside;

/// AUDIT_ARCH_AARCH64, the architecture of native system calls.
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// No bit of a number marks a call of another ABI: those of 32 bits have an architecture of their own.
pub const FOREIGN_BIT: u32 = 0;

/// O_LARGEFILE as the kernel knows it: for libc it is 0 here.
pub const O_LARGEFILE: i32 = 0o400_000;

/// There is no vfork(2): clone(2) has its flags.
pub const VFORK: Option<u64> = None;
/// Nor fork(2).
pub const FORK: Option<u64> = None;

/// Whether a tracer can make the kernel restart a call that a signal has interrupted, whatever the signal's action.
/// If not, a command can notice notifications. Here the kernel has already prepared the restart when the tracer sees the
/// signal, and cancels it for a handler without SA_RESTART (`do_signal` in arch/arm64/kernel/signal.c).
pub const CAN_FORCE_RESTART: bool = false;

/// Whether the register of the first argument is unchanged after the call. Here it holds the result.
pub const KEEPS_FIRST_ARGUMENT: bool = false;

/// The number of a system call here.
pub const fn number(of: &Numbers) -> u32 {
    of.aarch64
}

/// An address as the kernel reads it: without the tag in its upper byte (Documentation/arch/arm64/tagged-address-abi.rst).
pub const fn untagged(address: u64) -> u64 {
    address & 0x00ff_ffff_ffff_ffff
}

/// How far the instruction pointer is past the instruction that caused a signal, by the bytes before it: after a
/// system call that a filter traps. At a breakpoint it is not past it.
pub fn past_fault(signal: i32, before: [u8; 4]) -> u64 {
    /// SVC with any number, which Linux ignores.
    const SVC: u32 = 0xd400_0001;
    const NUMBER: u32 = 0xffff << 5;
    let is_call = u32::from_le_bytes(before) & !NUMBER == SVC;
    if signal == libc::SIGSYS && is_call { 4 } else { 0 }
}

/// NT_PRSTATUS: the general registers (elf.h).
const GENERAL: libc::c_int = 1;
/// NT_ARM_SYSTEM_CALL: the number of the system call alone.
const NUMBER: libc::c_int = 0x404;

/// Where the instruction that makes a system call is in `text`.
pub fn find_system_call(text: &[u8]) -> Option<usize> {
    const SVC: [u8; 4] = 0xd400_0001_u32.to_le_bytes();
    text.as_chunks().0.iter().position(|bytes| *bytes == SVC).map(|at| at * 4)
}

/// The registers of a thread in ptrace-stop.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    general: user_regs_struct,
    number: i32,
}

impl Registers {
    /// Those of `tid` (PTRACE_GETREGSET).
    pub fn of(tid: Tid) -> io::Result<Registers> {
        Ok(Registers { general: get(tid, GENERAL)?, number: get(tid, NUMBER)? })
    }

    /// The number of the last system call.
    pub fn number(&self) -> u64 {
        i64::from(self.number).cast_unsigned()
    }

    /// Its arguments, until it ends: then the result is where the first one was.
    pub fn arguments(&self) -> [u64; 6] {
        let [arguments @ .., _] = *self.general.regs.first_chunk::<7>().expect("31 registers");
        arguments
    }

    /// Its result, once it has ended: -errno where it failed.
    pub fn result(&self) -> i64 {
        self.general.regs[0].cast_signed()
    }

    /// The address of the next instruction.
    pub fn instruction_pointer(&self) -> u64 {
        self.general.pc
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        self.general.sp
    }

    /// The same, about to make a system call with the instruction at an address.
    #[must_use]
    pub fn calling(&self, instruction: u64, number: u64, arguments: [u64; 6]) -> Registers {
        let mut registers = *self;
        registers.general.pc = instruction;
        registers.general.regs[8] = number;
        registers.general.regs[..6].copy_from_slice(&arguments);
        registers
    }

    /// The same, about to make the system call again at whose entry the thread is.
    #[must_use]
    pub fn repeating(&self) -> Registers {
        self.making(self.number(), self.arguments())
    }

    /// The same, about to make another system call with the instruction of the one at whose entry or exit the thread is.
    #[must_use]
    pub fn making(&self, number: u64, arguments: [u64; 6]) -> Registers {
        const SVC: u64 = 4;
        self.calling(self.general.pc.wrapping_sub(SVC), number, arguments)
    }

    /// Makes them those of `tid` (PTRACE_SETREGSET).
    pub fn set(&self, tid: Tid) -> io::Result<()> {
        set(tid, GENERAL, &self.general)
    }
}

/// Skips the call at whose entry a thread is: it returns `result`.
pub fn skip(tid: Tid, result: i64) -> io::Result<()> {
    set(tid, NUMBER, &-1_i32)?;
    set_result(tid, result)
}

/// There is no request by which a tracer reads registers all at once but PTRACE_GETREGSET.
pub const READS: [(u32, usize); 0] = [];

/// Nor one by which it writes them but PTRACE_SETREGSET.
pub const WRITES: [(u32, usize); 0] = [];

/// Replaces the call at whose entry or exit a thread is by another one; its first argument has to stay the same if it is at
/// the exit: for a restart the kernel takes the one that it was called with.
pub fn replace_call(tid: Tid, number: u64, arguments: [u64; 6]) -> io::Result<()> {
    let low = i32::try_from(number).map_err(io::Error::other)?;
    set(tid, NUMBER, &low)?;
    change(tid, |registers| {
        registers.regs[8] = number;
        registers.regs[..6].copy_from_slice(&arguments);
    })
}

/// Changes an argument of the call at whose entry a thread is, or the register that had it.
pub fn set_argument(tid: Tid, index: u8, value: u64) -> io::Result<()> {
    change(tid, |registers| registers.regs[usize::from(index)] = value)
}

/// Changes the result of a call.
pub fn set_result(tid: Tid, result: i64) -> io::Result<()> {
    change(tid, |registers| registers.regs[0] = result.cast_unsigned())
}

/// Changes the address of the next instruction.
pub fn set_instruction_pointer(tid: Tid, address: u64) -> io::Result<()> {
    change(tid, |registers| registers.pc = address)
}

fn change(tid: Tid, change: impl FnOnce(&mut user_regs_struct)) -> io::Result<()> {
    let mut registers = get(tid, GENERAL)?;
    change(&mut registers);
    set(tid, GENERAL, &registers)
}

/// Register sets, which any bytes are.
trait Set: Copy {}

impl Set for user_regs_struct {}
impl Set for i32 {}

/// Reads a register set (PTRACE_GETREGSET).
fn get<S: Set>(tid: Tid, kind: libc::c_int) -> io::Result<S> {
    let mut registers = MaybeUninit::<S>::zeroed();
    let mut into = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of::<S>() };
    // SAFETY: the kernel writes at most the length of the one set there.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid.0, kind, &raw mut into) })?;
    // SAFETY: all-zeroes is valid, and the kernel filled a prefix.
    Ok(unsafe { registers.assume_init() })
}

/// Writes a register set (PTRACE_SETREGSET).
fn set<S: Set>(tid: Tid, kind: libc::c_int, registers: &S) -> io::Result<()> {
    let base = std::ptr::from_ref(registers).cast_mut().cast();
    let from = libc::iovec { iov_base: base, iov_len: size_of::<S>() };
    // SAFETY: the kernel reads at most the length of the one set there.
    check(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid.0, kind, &raw const from) }).map(drop)
}
