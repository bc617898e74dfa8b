//! Where things lie in the block of memory that a process has for its notes, in bytes from its start. The code depends on it.

use crate::trace::memory::PATH_MAX;

/// The code, and after it a thunk for each call site.
pub const THUNKS: u64 = 0x800;
/// What the process writes for itself; zeroes in a process that it forks.
pub const DATA: u64 = 0x1000;
/// Whether the code may run at all, 32 bits.
pub const ACTIVE: u64 = DATA;
/// The number of the next note before which a call is made unnoted.
pub const NUDGE: u64 = DATA + 0x60;
/// What the register of a sixth argument has in calls that the filter lets pass.
pub const MARK: u64 = DATA + 0x68;
/// An empty string.
pub const EMPTY: u64 = DATA + 0x70;
/// Four words.
pub const SCRATCH: u64 = DATA + 0x80;
/// A `struct statx`.
pub const STATX: u64 = DATA + 0x100;
/// What it shares with the tracer; not mapped in a process that it forks.
pub const RING: u64 = 0x2000;
/// How many notes were written. Only the process writes it.
pub const HEAD: u64 = RING;
/// How many were read. Only the tracer writes this, and what follows.
pub const TAIL: u64 = RING + 0x40;
/// Which calls may be noted, 32 bits: zero for none.
pub const OPEN: u64 = RING + 0x80;
/// Of [`OPEN`]: all that can be.
pub const ALL_CALLS: u64 = 1;
/// Of [`OPEN`]: those that open nothing.
pub const QUERIES: u64 = 2;
/// Whether the tracer knows the working directory, and the length of its path, 32 bits each.
pub const KNOWS_CWD: u64 = RING + 0x88;
/// How often something may have changed, or a path may have begun to start elsewhere.
pub const GENERATION: u64 = RING + 0x90;
/// The mount of the working directory.
pub const CWD_MOUNT: u64 = RING + 0x98;
/// The directories that are known, each at the lowest bits of its inode number: inode number, device, mount, and the number
/// by which notes name it, or zero, with the length of its path in the upper half.
pub const KNOWN: u64 = RING + 0x2000;
/// How many of them.
pub const MOST_KNOWN: u64 = 1024;
/// The saved registers, which only the process writes: rdi, rsi, rdx, r8, r9, r10, the end of the call site, the number of the
/// call; and the result of an open. They are here since the tracer may not be allowed to read other memory of the process.
pub const SAVED: u64 = RING + 0x100;
/// The last of these.
pub const RESULT: u64 = SAVED + 64;
/// Whether a thread has the block, 32 bits: between the save of its registers and its return.
pub const BUSY: u64 = RING + 0x180;
/// How many calls were made that did not wait, noted or not.
pub const CALLS: u64 = RING + 0x188;
/// The digests of calls that need not be noted again.
pub const FIRST_NOTED: u64 = RING + 0x1000;
/// How many of these.
pub const NOTED: u64 = 512;
/// The slots of the notes, each of [`SLOT`] bytes: the number of the call and that of the directory where its path starts,
/// 32 bits each, rdi, rsi, rdx, r10, r8, the length of the path, the digest of the call or 0, and at [`PATH`] the path.
///
/// Without a number of a call, the note says what an open has opened: a directory, which has inode number, device, mount,
/// and from now on this number.
pub const FIRST_SLOT: u64 = RING + 0xa000;
/// How many slots.
pub const SLOTS: u64 = 1024;
/// The size of a slot.
pub const SLOT: usize = 256;
/// Where the path is in a slot.
pub const PATH: usize = 64;
/// The longest path that is noted.
pub const LONGEST: u64 = 183;
/// The longest path of a directory where noted paths may start: together they have to be one that can be looked up.
pub const LONGEST_START: u64 = PATH_MAX as u64 - LONGEST - 2;
/// The end of the block.
pub const END: u64 = FIRST_SLOT + SLOTS * SLOT as u64;

/// Where a path starts: at the working directory. Others have higher numbers.
pub const CWD: u32 = 1;
/// The bit in the numbers of those that the process has named.
pub const NAMED: u32 = 1 << 31;
