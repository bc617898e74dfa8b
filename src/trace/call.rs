//! What a call that is held at its entry means, by the table and the caller's memory.
//!
//! Both lanes ask here: `tracer.rs` for calls that stop, `lane.rs` for calls that wait for an answer.

use super::filter;
use super::memory::MemoryError;
use super::sys::TraceeMemory;
use super::syscalls::{self, DecodedSyscall, Special, Sysno};

/// The bit that marks an x32 call.
const X32_BIT: u64 = 0x4000_0000;

/// What a call means.
#[derive(Debug)]
pub enum Meaning {
    /// Nothing that matters, or nothing that the kernel will do.
    Nothing,
    /// Its arguments can't be read, though the kernel may read them.
    Unreadable(&'static str),
    /// Its name, for messages, and what it names and does.
    Call(&'static str, DecodedSyscall),
}

/// Reads what the call `number` of ABI `arch` means.
pub fn read(arch: u32, number: u64, arguments: &[u64; 6], memory: TraceeMemory) -> Meaning {
    let special = |special| DecodedSyscall { special: Some(special), ..DecodedSyscall::default() };
    if arch != filter::NATIVE || number & X32_BIT != 0 {
        return Meaning::Call("a call of another ABI", special(Special::Compat));
    }
    let sysno = Sysno::from_register(number);
    match sysno.and_then(syscalls::row) {
        None if sysno.is_some_and(syscalls::is_known) => Meaning::Nothing,
        None => Meaning::Call("a call newer than the table", special(Special::Unmodelled)),
        Some(row) if !row.applies(arguments) => Meaning::Nothing,
        Some(row) => match syscalls::decode(row, arguments, &memory) {
            Ok(decoded) => Meaning::Call(row.name, decoded),
            Err(MemoryError::Unmapped | MemoryError::Gone | MemoryError::NameTooLong) => Meaning::Nothing,
            Err(MemoryError::Unreadable) => Meaning::Unreadable(row.name),
        },
    }
}
