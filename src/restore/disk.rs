//! Single operations on the disk: temporary names, staged content, flushes.
//!
//! Neighbours: `apply.rs` and `settle.rs` decide which of them to make.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Advice, AtFlags, Mode, OFlags, RenameFlags, fadvise};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::root::{Dentry, Root};
use crate::snapshot::usage;

/// The temporary name beside `name`, under which its new node is made.
pub fn temporary(id: &str, name: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(name);
    let part = faster_hex::hex_string(&digest[..8]);
    format!(".agent-snapshot-{id}-{part}.tmp").into_bytes()
}

/// The name of the staged content for the file at `path`, in the directory of the rescue.
pub fn stage_name(id: &str, path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&temporary(id, path)))
}

/// Removes the node with a temporary name, if there is one.
pub fn remove_temporary(dentry: &Dentry) -> io::Result<()> {
    let unlink = |flags| rustix::fs::unlinkat(dentry.parent(), dentry.name(), flags);
    match unlink(AtFlags::empty()) {
        Err(Errno::ISDIR) => match unlink(AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Renames with `flags`, if the filesystem supports them.
pub fn rename(from: &Dentry, to: &Dentry, flags: RenameFlags) -> io::Result<()> {
    let rename = |flags| rustix::fs::renameat_with(from.parent(), from.name(), to.parent(), to.name(), flags);
    match rename(flags) {
        // Not supported; nothing was there a moment ago.
        Err(Errno::INVAL) if flags == RenameFlags::NOREPLACE => Ok(rename(RenameFlags::empty())?),
        other => Ok(other?),
    }
}

/// Creates an empty file without a name; a named one would change the time of the directory.
pub fn unnamed_file(directory: &Path, id: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let private = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, private) {
        Ok(fd) => Ok(File::from(fd)),
        // The filesystem does not support O_TMPFILE.
        Err(_) => {
            let path = directory.join(OsStr::from_bytes(&temporary(id, b"")));
            let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, private)?;
            std::fs::remove_file(&path)?;
            Ok(File::from(file))
        }
    }
}

/// Locks a file or directory against other restores; false if another process keeps its lock for `tries` times 10 ms.
pub fn lock_exclusively(file: &File, tries: u32) -> bool {
    // What can't be locked does not keep a restore.
    usage::lock_exclusively(file, tries).unwrap_or(true)
}

/// New files that have to reach the disk: few are flushed one by one, of many each filesystem at once.
#[derive(Debug)]
pub struct Unsynced {
    are_few: bool,
    /// A file on each filesystem that is still to be flushed, by its device number.
    filesystems: Mutex<BTreeMap<u64, File>>,
}

/// As many files are flushed one by one; each costs a commit of the filesystem's journal.
const FEW: usize = 64;

impl Unsynced {
    /// For `count` files.
    pub fn of(count: usize) -> Unsynced {
        Unsynced { are_few: count <= FEW, filesystems: Mutex::default() }
    }

    /// Adds a file; one of few is flushed at once.
    pub fn add(&self, file: File) -> io::Result<()> {
        if self.are_few {
            return sync(rustix::fs::fsync(file));
        }
        let device = file.metadata()?.dev();
        self.filesystems.lock().unwrap_or_else(PoisonError::into_inner).entry(device).or_insert(file);
        Ok(())
    }

    /// Flushes everything that was added.
    pub fn flush(&mut self) -> io::Result<()> {
        let filesystems = self.filesystems.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(filesystems).values().try_for_each(|file| sync(rustix::fs::syncfs(file)))
    }
}

/// Has the disk begin to write a file, and does not wait for it: POSIX_FADV_DONTNEED begins to write what is dirty
/// (mm/fadvise.c); where it does not, a flush has more to do.
pub fn begin_writing(file: &File) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Some filesystems can't sync directories.
fn sync(outcome: Result<(), Errno>) -> io::Result<()> {
    match outcome {
        Ok(()) | Err(Errno::INVAL | Errno::ROFS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory for fsync(2), if that is possible.
pub fn open_directory(root: &Root, path: &[u8]) -> io::Result<Option<File>> {
    let Some(dentry) = root.dentry(path)? else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dentry.parent(), dentry.name(), flags, Mode::empty()) {
        Ok(directory) => Ok(Some(File::from(directory))),
        // Without read permission it can't be synced.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_flushed_at_once_and_of_many_each_filesystem() {
        for (count, left) in [(1, 0), (FEW, 0), (FEW + 1, 1), (1000, 1)] {
            let mut unsynced = Unsynced::of(count);
            (0..count).for_each(|_| unsynced.add(tempfile::tempfile().unwrap()).unwrap());
            assert_eq!(unsynced.filesystems.lock().unwrap().len(), left);
            unsynced.flush().unwrap();
            assert!(unsynced.filesystems.lock().unwrap().is_empty());
        }
    }
}
