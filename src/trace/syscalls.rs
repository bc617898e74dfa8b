//! What each system call means: which of its arguments name a file, and what it does to that. Pure: numbers
//! and bytes in, [`DecodedSyscall`] out.
//!
//! - `table.rs`: the rows, and how to add one; `numbers.rs`: the numbers of all calls on each architecture.
//! - `row.rs`: what a row is made of.
//! - `decode.rs`: turns a row and six registers into a [`DecodedSyscall`]; `custom.rs` where a row can't
//!   express it; `socket.rs` reads socket addresses.
//! - `decoded.rs`, `open_flags.rs`: what comes out.
//! - `args.rs`: the registers.
//!
//! Neighbours: [`filter`](super::filter) makes the seccomp program of the rows; strings and structures come
//! from [`memory`](super::memory).

mod args;
mod custom;
mod decode;
mod decoded;
mod numbers;
mod open_flags;
mod row;
mod socket;
mod table;
#[cfg(test)]
mod tests;

pub(super) use args::low_half;
pub use args::{Args, Sysno};
pub use custom::{CLONE_SHARES, creation_flags};
pub use decode::{Interpretation, decode, interpret};
pub use decoded::{
    Access, Accesses, Asked, DecodedSyscall, Dirfd, Effect, FileRef, Resolve, SocketOperation, SocketUse,
    Special,
};
pub(crate) use numbers::index;
pub use numbers::{Index, LAST, NONE, Numbers, is_known, number};
pub use open_flags::{OpenFlags, PLAIN_OPEN};
pub use row::{Condition, Pinned, ReadOnly, Refusable, SyscallRow};
pub use socket::may_wait_for_peer;
pub use table::{SENDMSG, all_rows, find as row, rows};

/// The row of a number in a register, if it has one.
pub fn row_of(number: u64) -> Option<&'static SyscallRow> {
    Sysno::from_register(number).and_then(row)
}
