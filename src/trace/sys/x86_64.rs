//! What depends on the architecture, for x86_64: the numbers of system calls and the registers.

use std::io;
use std::mem::{MaybeUninit, offset_of};

use libc::user_regs_struct;

use super::process::{Tid, check};
use crate::trace::syscalls::Numbers;

#[path = "x86_64_inside.rs"]
pub mod inside;

/// AUDIT_ARCH_X86_64, the architecture of native system calls.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// The bit of a number that marks a call of another ABI, x32.
pub const FOREIGN_BIT: u32 = 0x4000_0000;

/// O_LARGEFILE as the kernel knows it: for libc it is 0 here.
pub const O_LARGEFILE: i32 = 0o100_000;

/// vfork(2).
pub const VFORK: Option<u64> = Some(libc::SYS_vfork.cast_unsigned());
/// fork(2), which glibc makes by clone(2).
pub const FORK: Option<u64> = Some(libc::SYS_fork.cast_unsigned());

/// Whether a tracer can make the kernel restart a call that a signal has interrupted, whatever the signal's action.
/// If not, a command can notice notifications.
pub const CAN_FORCE_RESTART: bool = true;

/// Whether the register of the first argument is unchanged after the call.
pub const KEEPS_FIRST_ARGUMENT: bool = true;

/// The number of a system call here.
pub const fn number(of: &Numbers) -> u32 {
    of.x86_64
}

/// An address as the kernel reads it.
pub const fn untagged(address: u64) -> u64 {
    address
}

/// How far the instruction pointer is past the instruction that caused a signal, by the bytes before it: after a
/// breakpoint, and after a system call that a filter traps.
pub fn past_fault(signal: i32, before: [u8; 4]) -> u64 {
    const BREAKPOINT: u8 = 0xcc;
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    match (signal, before) {
        (libc::SIGTRAP, [.., BREAKPOINT]) => 1,
        (libc::SIGSYS, [_, _, last @ ..]) if last == SYSCALL => 2,
        _ => 0,
    }
}

/// Where the instruction that makes a system call is in `text`.
pub fn find_system_call(text: &[u8]) -> Option<usize> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    text.windows(2).position(|bytes| bytes == SYSCALL)
}

/// The registers of a thread in ptrace-stop.
#[derive(Debug, Clone, Copy)]
pub struct Registers(user_regs_struct);

impl Registers {
    /// Those of `tid` (PTRACE_GETREGS).
    pub fn of(tid: Tid) -> io::Result<Registers> {
        let mut registers = MaybeUninit::<user_regs_struct>::zeroed();
        // SAFETY: the kernel writes one user_regs_struct there.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid.0, 0usize, registers.as_mut_ptr()) })?;
        // SAFETY: all-zeroes is valid, and the kernel filled it.
        Ok(Registers(unsafe { registers.assume_init() }))
    }

    /// The number of the last system call.
    pub fn number(&self) -> u64 {
        self.0.orig_rax
    }

    /// Its arguments.
    pub fn arguments(&self) -> [u64; 6] {
        let at = &self.0;
        [at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9]
    }

    /// Its result so far: -errno where it failed.
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// The address of the next instruction.
    pub fn instruction_pointer(&self) -> u64 {
        self.0.rip
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    /// The same, about to make a system call with the instruction at an address.
    #[must_use]
    pub fn calling(&self, instruction: u64, number: u64, arguments: [u64; 6]) -> Registers {
        let mut registers = *self;
        let at = &mut registers.0;
        (at.rip, at.rax) = (instruction, number);
        // Not in a system call that the kernel would restart.
        at.orig_rax = u64::MAX;
        [at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9] = arguments;
        registers
    }

    /// The same, about to make the system call again at whose entry or exit the thread is.
    #[must_use]
    pub fn repeating(&self) -> Registers {
        self.making(self.number(), self.arguments())
    }

    /// The same, about to make another system call with the instruction of the one at whose entry or exit the thread is.
    #[must_use]
    pub fn making(&self, number: u64, arguments: [u64; 6]) -> Registers {
        const SYSCALL: u64 = 2;
        self.calling(self.0.rip.wrapping_sub(SYSCALL), number, arguments)
    }

    /// The same, with another system call in place of the one at whose entry or exit the thread is.
    #[must_use]
    fn replacing(&self, number: u64, arguments: [u64; 6]) -> Registers {
        let mut registers = *self;
        let at = &mut registers.0;
        at.orig_rax = number;
        [at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9] = arguments;
        registers
    }

    /// Makes them those of `tid` (PTRACE_SETREGS).
    pub fn set(&self, tid: Tid) -> io::Result<()> {
        // SAFETY: the kernel reads one user_regs_struct there.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid.0, 0usize, &raw const self.0) }).map(drop)
    }
}

/// Skips the call at whose entry a thread is: it returns `result`.
pub fn skip(tid: Tid, result: i64) -> io::Result<()> {
    set(tid, offset_of!(user_regs_struct, orig_rax), u64::MAX)?;
    set_result(tid, result)
}

/// The requests by which a tracer reads registers all at once, with the size of what they write to it.
pub const READS: [(u32, usize); 2] = [
    (libc::PTRACE_GETREGS, size_of::<user_regs_struct>()),
    (libc::PTRACE_GETFPREGS, size_of::<libc::user_fpregs_struct>()),
];

/// The requests by which it writes them.
pub const WRITES: [(u32, usize); 2] = [
    (libc::PTRACE_SETREGS, size_of::<user_regs_struct>()),
    (libc::PTRACE_SETFPREGS, size_of::<libc::user_fpregs_struct>()),
];

/// Replaces the call at whose entry or exit a thread is by another one; its first argument stays the same if it is at the
/// exit.
pub fn replace_call(tid: Tid, number: u64, arguments: [u64; 6]) -> io::Result<()> {
    Registers::of(tid)?.replacing(number, arguments).set(tid)
}

/// Changes an argument of the call at whose entry a thread is, or the register that had it.
pub fn set_argument(tid: Tid, index: u8, value: u64) -> io::Result<()> {
    const OFFSETS: [usize; 6] = [
        offset_of!(user_regs_struct, rdi),
        offset_of!(user_regs_struct, rsi),
        offset_of!(user_regs_struct, rdx),
        offset_of!(user_regs_struct, r10),
        offset_of!(user_regs_struct, r8),
        offset_of!(user_regs_struct, r9),
    ];
    set(tid, OFFSETS[usize::from(index)], value)
}

/// Changes the result of a call.
pub fn set_result(tid: Tid, result: i64) -> io::Result<()> {
    set(tid, offset_of!(user_regs_struct, rax), result.cast_unsigned())
}

/// Changes the address of the next instruction.
pub fn set_instruction_pointer(tid: Tid, address: u64) -> io::Result<()> {
    set(tid, offset_of!(user_regs_struct, rip), address)
}

/// Writes a register, by its place in `struct user` (PTRACE_POKEUSER).
fn set(tid: Tid, offset: usize, value: u64) -> io::Result<()> {
    // SAFETY: the offset lies in `struct user`, and the value is an integer.
    check(unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid.0, offset, value) }).map(drop)
}
