//! The registers of a syscall at its entry.

use crate::trace::memory::RemoteAddr;

/// The number of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sysno(pub u32);

impl Sysno {
    /// The number in a register; none where it is no `u32`, as no syscall's is.
    pub fn from_register(number: u64) -> Option<Sysno> {
        u32::try_from(number).ok().map(Sysno)
    }
}

/// The six argument registers of a syscall, in the order of its man page.
pub type Args = [u64; 6];

/// The lower half of a register: what the kernel sees of an `int`.
#[allow(clippy::cast_possible_truncation, reason = "the upper half is noise")]
pub(in crate::trace) fn low_half(word: u64) -> u32 {
    word as u32
}

pub(super) fn low(args: &Args, arg: u8) -> u32 {
    low_half(args[usize::from(arg)])
}

pub(super) fn address(args: &Args, arg: u8) -> RemoteAddr {
    RemoteAddr(args[usize::from(arg)])
}

pub(super) fn descriptor(args: &Args, arg: u8) -> i32 {
    low(args, arg).cast_signed()
}
