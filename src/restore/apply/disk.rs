//! Single moves on the disk: temporary names, swaps, files that are written in place, flushes.
//!
//! Neighbours: `apply.rs` decides which of them to make.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::super::place::{Handle, Place, Spot};

/// The name under which what is to be at `name` is made.
pub fn temporary(id: &str, name: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(name);
    let part: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!(".agent-snapshot-{id}-{part}.tmp").into_bytes()
}

/// Removes what a killed restore has left beside `path`.
pub fn remove_leftover(place: &Place, id: &str, path: &[u8]) -> io::Result<()> {
    match place.spot(path)? {
        Some(spot) => remove_temporary(&spot.sibling(&temporary(id, spot.name()))),
        None => Ok(()),
    }
}

/// Removes what is under a temporary name, if anything is.
pub fn remove_temporary(spot: &Spot) -> io::Result<()> {
    let unlink = |flags| rustix::fs::unlinkat(spot.parent(), spot.name(), flags);
    match unlink(AtFlags::empty()) {
        Err(Errno::ISDIR) => match unlink(AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Swaps a directory and something that is none, and removes what was there.
pub fn exchange(
    spot: &Spot,
    temporary: &Spot,
    rename: &dyn Fn(RenameFlags) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let old_is_directory = |at: &Spot| {
        rustix::fs::statat(at.parent(), at.name(), AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
    };
    let remove = |at: &Spot| {
        let flags = if old_is_directory(at)? { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(at.parent(), at.name(), flags)
    };
    match rename(RenameFlags::EXCHANGE) {
        Ok(()) => match remove(temporary) {
            Err(error @ (Errno::NOTEMPTY | Errno::EXIST)) => {
                rename(RenameFlags::EXCHANGE)?;
                Err(error)
            }
            other => other,
        },
        // A file system that can't exchange; the rescue has what is removed.
        Err(Errno::INVAL | Errno::NOSYS) => {
            remove(spot)?;
            rename(RenameFlags::empty())
        }
        Err(error) => Err(error),
    }
}

/// Opens a held regular file for writing; one of our own that we may not write is made writable for
/// that moment.
pub fn open_for_writing(held: &Handle) -> io::Result<File> {
    let mode = held.stat().st_mode;
    if mode & libc::S_IFMT != libc::S_IFREG {
        return Err(io::Error::other("it is no regular file any more"));
    }
    match held.open(OFlags::WRONLY) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            rustix::fs::chmod(held.proc_path(), Mode::from_raw_mode(mode & 0o7777 | 0o200))?;
            Ok(File::from(held.open(OFlags::WRONLY)?))
        }
        other => Ok(File::from(other?)),
    }
}

/// An empty file without a name; beside a file that is written in place it would change the time of
/// the directory.
pub fn unnamed_file(directory: &Path, id: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let private = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, private) {
        Ok(fd) => Ok(File::from(fd)),
        // A file system without such files.
        Err(_) => {
            let path = directory.join(OsStr::from_bytes(&temporary(id, b"")));
            let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, private)?;
            std::fs::remove_file(&path)?;
            Ok(File::from(file))
        }
    }
}

/// Flushes the names in a directory to the disk, where that is possible.
pub fn sync_directory(place: &Place, path: &[u8]) -> io::Result<()> {
    let Some(spot) = place.spot(path)? else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(spot.parent(), spot.name(), flags, Mode::empty()) {
        // Some file systems sync no directory, and what may not be read can't be synced.
        Ok(directory) => match rustix::fs::fsync(directory.as_fd()) {
            Ok(()) | Err(Errno::INVAL | Errno::ROFS) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
