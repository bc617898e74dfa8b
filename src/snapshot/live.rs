//! The live filesystem, looked at without disturbing it: nothing blocks, no final symlink is
//! followed, and no access time moves where the kernel lets us avoid that.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FileType, Mode, OFlags};

/// Opens the regular file at `path` for reading; anything else there is `InvalidInput`.
///
/// O_NOFOLLOW and O_NONBLOCK, so that neither a link nor a FIFO is opened (open(2)); O_NOATIME
/// where we own the file.
pub fn open_regular(path: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd: OwnedFd = match rustix::fs::openat(CWD, path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(rustix::io::Errno::PERM) => rustix::fs::openat(CWD, path, flags, Mode::empty())?,
        other => other?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(File::from(fd))
}
