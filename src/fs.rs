//! Opens and stats a path at which anything may be: nothing blocks, no final symlink is followed, and
//! no access time moves where the kernel lets us avoid that.
//!
//! Every room may use this one, and it uses none.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Opens the regular file at `path` for reading; anything else there is `InvalidInput`.
///
/// O_NOFOLLOW and O_NONBLOCK, so that neither a link nor a FIFO is opened (open(2)); O_NOATIME
/// where we own the file.
pub fn open_regular(path: &[u8]) -> io::Result<File> {
    open_if_regular(path, OFlags::NOFOLLOW)
}

/// Opens the regular file that a magic link of procfs stands for, which may have no name; anything else
/// there is `InvalidInput`.
pub fn open_regular_behind(link: &[u8]) -> io::Result<File> {
    open_if_regular(link, OFlags::empty())
}

fn open_if_regular(path: &[u8], flags: OFlags) -> io::Result<File> {
    let fd = open_quietly(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(File::from(fd))
}

/// Opens `path` for reading, with O_NOATIME where we own the file.
pub(crate) fn open_quietly(path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(CWD, path, flags, Mode::empty()),
        other => other,
    }
}

/// The metadata of what is at `path`, none where nothing is.
pub fn lstat(path: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
