//! Whether a bundle is in use: a lock (flock(2)) on its manifest.
//!
//! Shared by whoever has the bundle open, exclusive for whoever deletes it. The directory has a lock of its own
//! (`layout.rs`), which is the recorder's: readers never take that, so none of them is in the way of a recording.
//! Where the file system has no locks, or is read-only, a bundle is read all the same.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::layout::{self, MANIFEST};

/// How often a lock is tried that another process may have for a moment.
pub const TRIES: u32 = 5;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether the directory at `path` is locked and stays so: a process of a recording that was killed just now may have the lock
/// for a moment.
pub fn stays_locked(path: &Path) -> bool {
    (0..TRIES).all(|_| {
        let is_locked = layout::is_locked(path);
        if is_locked {
            sleep(PAUSE);
        }
        is_locked
    })
}

/// Locks the open manifest of a bundle that is to be read, until the file is closed.
///
/// A deletion keeps its exclusive lock only until it has renamed the directory. If the lock stays taken, another program
/// has it, and the bundle is read without one.
pub fn share(manifest: &File) {
    for _ in 0..TRIES {
        match flock(manifest, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => sleep(PAUSE),
            _ => return,
        }
    }
}

/// Locks the bundle in the directory `path`, so that nobody uses it; none if somebody still does at the last of `tries`
/// tries.
///
/// # Errors
/// It has no manifest, or that can't be opened.
pub fn claim(path: &Path, tries: u32) -> io::Result<Option<File>> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = |access: OFlags| rustix::fs::open(path.join(MANIFEST), access | flags, Mode::empty());
    // On NFS, an exclusive lock needs a descriptor that is open for writing.
    let manifest = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY))?;
    claim_open(File::from(manifest), tries)
}

/// Locks what is open, so that nobody else has a lock on it; none if somebody still does at the last of `tries` tries.
///
/// # Errors
/// It can't be locked for another reason than that there are no locks here.
pub fn claim_open(file: File, tries: u32) -> io::Result<Option<File>> {
    Ok(lock_exclusively(&file, tries)?.then_some(file))
}

/// Locks a file or directory, and tries it `tries` times, 10 ms apart, while another process has a lock on it; false if
/// that keeps it. Where there are no locks nobody is excluded.
///
/// # Errors
/// It can't be locked for another reason.
pub fn lock_exclusively(file: &File, tries: u32) -> io::Result<bool> {
    for _ in 0..tries {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => sleep(PAUSE),
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshot;
    use crate::snapshot::samples::commit;

    #[test]
    fn bundle_that_is_open_can_not_be_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snap");
        commit(&path, |_| Vec::new());
        let [one, other] = [Snapshot::open(&path).unwrap(), Snapshot::open(&path).unwrap()];
        assert!(claim(&path, TRIES).unwrap().is_none());
        drop(one);
        assert!(claim(&path, TRIES).unwrap().is_none());
        drop(other);
        let claimed = claim(&path, TRIES).unwrap();
        assert!(claimed.is_some());
        // Whoever holds it for good does not keep anybody from reading.
        Snapshot::open(&path).unwrap();
    }

    #[test]
    fn bundle_that_went_elsewhere_while_it_was_opened_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snap");
        commit(&path, |_| Vec::new());
        let claimed = claim(&path, TRIES).unwrap();
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| Snapshot::open(&path));
            let manifest = path.join(MANIFEST);
            let is_open =
                |entry: &std::fs::DirEntry| std::fs::read_link(entry.path()).is_ok_and(|to| to == manifest);
            let count = || std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_open).count();
            // Ours, and that of the one who waits for the lock.
            while count() < 2 && !opened.is_finished() {
                std::thread::yield_now();
            }
            std::fs::rename(&path, dir.path().join("aside")).unwrap();
            std::fs::remove_dir_all(dir.path().join("aside")).unwrap();
            drop(claimed);
            // Either it was whole and open before, or there is nothing.
            if let Err(error) = opened.join().unwrap() {
                assert!(error.to_string().contains("No such file"), "{error}");
            }
        });
    }
}
