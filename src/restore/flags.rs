//! The inode flags of chattr(1): those that forbid changes are cleared first, those of the wanted state
//! are set last.
//!
//! Neighbours: `plan.rs` decides where, `access.rs` clears them for a while, `apply.rs` sets them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use rustix::fs::{IFlags, OFlags};

use super::root::Handle;
use crate::snapshot::{FileType, InodeFlag, Present};

/// The flags that forbid changes.
pub const LOCKS: IFlags = IFlags::APPEND.union(IFlags::IMMUTABLE);
/// All flags that are recorded.
const KNOWN: IFlags = LOCKS.union(IFlags::NODUMP).union(IFlags::COMPRESSED);

fn bit(flag: InodeFlag) -> IFlags {
    match flag {
        InodeFlag::Append => IFlags::APPEND,
        InodeFlag::Immutable => IFlags::IMMUTABLE,
        InodeFlag::Nodump => IFlags::NODUMP,
        InodeFlag::Compressed => IFlags::COMPRESSED,
    }
}

fn bits(flags: &BTreeSet<InodeFlag>) -> IFlags {
    flags.iter().map(|flag| bit(*flag)).collect()
}

/// Whether a state has flags that forbid changes.
pub fn is_locked(at: &Present) -> bool {
    bits(&at.inode_flags).intersects(LOCKS)
}

/// Whether a file has flags now that forbid changes.
pub fn is_locked_now(handle: &Handle) -> bool {
    open(handle).is_ok_and(|(_, flags)| flags.intersects(LOCKS))
}

/// Whether a file of `file_type` can have inode flags.
pub fn has_flags(file_type: FileType) -> bool {
    matches!(file_type, FileType::File | FileType::Directory)
}

/// Opens a regular file or directory and reads its flags.
pub fn open(handle: &Handle) -> io::Result<(File, IFlags)> {
    let file = File::from(handle.open(OFlags::RDONLY | OFlags::NONBLOCK)?);
    let flags = rustix::fs::ioctl_getflags(&file)?;
    Ok((file, flags))
}

/// Whether what is made in a directory may get flags from it.
pub fn are_inherited(directory: &File) -> bool {
    rustix::fs::ioctl_getflags(directory).is_ok_and(|flags| flags.intersects(KNOWN))
}

/// Sets the flags of a state; flags that are never recorded stay as they are.
pub fn give(handle: &Handle, state_flags: &BTreeSet<InodeFlag>) -> io::Result<()> {
    let (file, now) = open(handle)?;
    let flags = (now - KNOWN) | bits(state_flags);
    if flags == now { Ok(()) } else { Ok(rustix::fs::ioctl_setflags(&file, flags)?) }
}
