//! On aarch64 no process notes its own calls: each is a ptrace-stop there, since there are no notifications.

use super::Registers;
use crate::trace::inside::Left;

/// There is no code.
pub fn code() -> &'static [u8] {
    &[]
}

/// How long the thunk of a call site is.
pub const THUNK: u64 = 32;

/// The names of the calls that can be noted: none.
pub fn calls() -> impl Iterator<Item = &'static str> {
    std::iter::empty()
}

/// How long a call site is.
pub const SITE: usize = 8;

/// The bytes of one, of which there are none.
pub fn site(_: u32) -> [u8; SITE] {
    [0; SITE]
}

/// No place is a call site.
pub fn jump(_: [u8; SITE], _: u32, _: u64, _: u64) -> Option<[u8; 4]> {
    None
}

/// Nor has it a thunk.
pub fn thunk(_: u64, _: u64, _: u64, _: &str, _: u32) -> Option<Vec<u8>> {
    None
}

/// No thread is in the code.
pub fn leave(registers: &Registers, _: u64, _: &[u64; 9], _: Option<(u64, u32)>) -> Left {
    Left { registers: *registers, had_block: false }
}
