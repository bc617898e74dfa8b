//! Whether only a caller itself can change what the arguments of its call point to: then nothing changes while it waits
//! for a decision.
//!
//! Nobody else can, if no other thread has the caller's memory, and the mapping is private and shows no file. A private
//! mapping of a file shows each change of the file until the process writes to the page; so this writes to the page the
//! byte that is there. Neighbour: `pins.rs` copies what is not steady.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::memory::{Memory, PATH_MAX, RemoteAddr};
use super::observer::Caller;
use super::shared::Shared;
use super::sys::AddressSpace;
use super::syscalls::{Args, Pinned};

/// A part of a caller's memory.
struct Extent {
    start: u64,
    length: u64,
    /// Whether it is a path, which may be shorter.
    is_path: bool,
}

/// The address space of a caller, which is at the entry of a call, if only itself can change what these arguments point to
/// from now on. None also where the kernel does not tell. `is_alive` says whether the call waits still.
pub fn steady_memory<P>(
    shared: &Shared<P>,
    caller: Caller,
    arguments: &Args,
    pointers: &[Pinned],
    is_alive: impl FnOnce() -> bool,
) -> Option<Arc<AddressSpace>> {
    let is_steady = |space: &AddressSpace, pointer| {
        let extents = extents(space, arguments, pointer).unwrap_or_default();
        !extents.is_empty() && extents.iter().all(|extent| is_own(space, extent).unwrap_or(false))
    };
    let space = shared.memory_of_one_writer(caller.tgid, is_alive)?;
    pointers.iter().all(|pointer| is_steady(&space, *pointer)).then_some(space)
}

/// What an argument points to; none where that can't be read.
fn extents(memory: &AddressSpace, arguments: &Args, pointer: Pinned) -> Option<SmallVec<[Extent; 2]>> {
    let at = |register: u8| arguments[usize::from(register)];
    let bytes = |register, length| Extent { start: at(register), length, is_path: false };
    let path = |register| Extent { start: at(register), length: PATH_MAX as u64, is_path: true };
    Some(match pointer {
        Pinned::Path { path: register, .. } => smallvec![path(register)],
        Pinned::Bytes { address, length } => smallvec![bytes(address, length)],
        Pinned::OpenHow { path: register, how, size, .. } => {
            smallvec![path(register), bytes(how, at(size))]
        }
        Pinned::Message { address } => {
            const MESSAGE: u64 = 56;
            let mut words = [0; 2];
            memory.read_words(RemoteAddr(at(address)), &mut words).ok()?;
            let [start, length] = words;
            smallvec![bytes(address, MESSAGE), Extent { start, length: length & 0xffff_ffff, is_path: false }]
        }
    })
}

/// Whether an extent lies in memory that nobody else can change; none where that is not known. A null pointer points to
/// nothing.
fn is_own(space: &AddressSpace, extent: &Extent) -> Option<bool> {
    if extent.start == 0 {
        return Some(true);
    }
    let mut at = extent.start;
    let mut end = at.checked_add(extent.length)?;
    let mut is_measured = !extent.is_path;
    while at < end {
        let mapping = space.mapping(at).ok()?;
        if mapping.is_shared || !mapping.is_accessible {
            return Some(false);
        }
        // Most paths lie in mappings that end far behind them.
        if !is_measured && (mapping.is_of_file || mapping.end < end) {
            end = extent.start + space.read_path(RemoteAddr(extent.start)).ok()?.len() as u64 + 1;
            is_measured = true;
        }
        let until = end.min(mapping.end);
        if mapping.is_of_file {
            space.unshare_pages(at..until).ok()?;
        }
        at = until;
    }
    Some(true)
}
