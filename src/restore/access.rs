//! Temporary access to the user's own files and directories whose mode or inode flags forbid the work.
//!
//! Every change is in the journal before it is made, and is revoked whatever happens: by the same run,
//! or, if that was killed, by the next one. Neighbours: `inspect.rs` and `apply.rs` need the access.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use rustix::fs::{IFlags, Mode};
use rustix::io::Errno;

use super::flags;
use super::journal::{Journal, JournalEntry, PathText};
use super::root::{Dentry, Handle, Root};

/// Permission bits that files and directories had before they were widened, by device and inode.
pub type OriginalModes = HashMap<(u64, u64), u32>;

/// The modes and flags that are changed at the moment.
pub struct TemporaryAccess<'a> {
    root: &'a Root,
    journal: &'a Journal<'a>,
    widened: Vec<WidenedMode>,
    /// What was append-only or immutable, with its original flags.
    cleared: Vec<(Vec<u8>, File, IFlags)>,
}

#[derive(Debug)]
struct WidenedMode {
    path: Vec<u8>,
    handle: Handle,
    /// The original permission bits.
    permissions: u32,
}

impl<'a> TemporaryAccess<'a> {
    /// Changes nothing yet.
    pub fn new(root: &'a Root, journal: &'a Journal<'a>) -> TemporaryAccess<'a> {
        TemporaryAccess { root, journal, widened: Vec::new(), cleared: Vec::new() }
    }

    /// Makes each directory above `path` searchable that is the user's and is not, so that `path` can be
    /// inspected; says whether there was one.
    pub fn make_searchable(&mut self, path: &[u8], uid: u32) -> io::Result<bool> {
        let mut any = false;
        // Below one that was opened there may be another.
        while let Some((closed, handle)) = self.closed(path, uid)?
            && !self.paths().any(|widened| widened == closed)
        {
            self.widen(closed, handle, 0o700)?;
            any = true;
        }
        Ok(any)
    }

    /// Whether the directory that hides `path` is the user's, who may make it searchable.
    pub fn can_make_searchable(&self, path: &[u8], uid: u32) -> bool {
        self.closed(path, uid).is_ok_and(|closed| closed.is_some())
    }

    /// The first directory above `path` that is the user's and not searchable.
    fn closed<'p>(&self, path: &'p [u8], uid: u32) -> io::Result<Option<(&'p [u8], Handle)>> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).skip(1);
        for slash in slashes {
            let Some(dentry) = self.root.dentry(&path[..slash])? else { break };
            let Some(handle) = directory(&dentry)? else { break };
            // A lookup in it needs search permission (path_resolution(7)).
            let probe =
                rustix::fs::statat(dentry.parent(), search_probe(&dentry), rustix::fs::AtFlags::empty());
            if probe.err() == Some(Errno::ACCESS) && handle.stat().st_uid == uid {
                return Ok(Some((&path[..slash], handle)));
            }
        }
        Ok(None)
    }

    /// Makes the file or directory at `path` readable.
    pub fn make_readable(&mut self, path: &[u8]) -> io::Result<()> {
        let handle = self.root.dentry(path)?.map(|dentry| dentry.handle()).transpose()?.flatten();
        let handle = handle.ok_or(io::ErrorKind::NotFound)?;
        let is_directory = handle.stat().st_mode & libc::S_IFMT == libc::S_IFDIR;
        self.widen(path, handle, if is_directory { 0o700 } else { 0o400 })
    }

    /// Makes the directory at `path` writable.
    pub fn make_writable(&mut self, path: &[u8]) -> io::Result<()> {
        let dentry = self.root.dentry(path)?.ok_or(io::ErrorKind::NotFound)?;
        let handle = directory(&dentry)?.ok_or(io::ErrorKind::NotADirectory)?;
        self.widen(path, handle, 0o700)
    }

    /// Clears the inode flags of `path` that forbid changes.
    pub fn clear_flags(&mut self, path: &[u8]) -> io::Result<()> {
        let handle = self.root.dentry(path)?.map(|dentry| dentry.handle()).transpose()?.flatten();
        let handle = handle.ok_or(io::ErrorKind::NotFound)?;
        let (file, flags) = flags::open(&handle)?;
        if flags.intersects(flags::LOCKS) {
            let entry = JournalEntry::FlagsCleared {
                path: PathText(path.to_vec()),
                inode: handle.inode(),
                flags: flags.bits(),
            };
            self.journal.write(&entry)?;
            self.journal.sync()?;
            rustix::fs::ioctl_setflags(&file, flags - flags::LOCKS)?;
            self.cleared.push((path.to_vec(), file, flags));
        }
        Ok(())
    }

    /// Leaves the flags of `path` as they are: it is gone, or gets those of the wanted state.
    pub fn keep_flags(&mut self, path: &[u8]) -> io::Result<()> {
        let count = self.cleared.len();
        self.cleared.retain(|(cleared, ..)| cleared != path);
        if self.cleared.len() == count {
            return Ok(());
        }
        self.journal.write(&JournalEntry::FlagsRestored { path: PathText(path.to_vec()) })
    }

    /// Gives the owner of the file at `path` the permission `bits` while `work` runs.
    pub fn with_access<T>(
        &mut self,
        path: &[u8],
        handle: Handle,
        bits: u32,
        work: impl FnOnce(&Handle) -> io::Result<T>,
    ) -> io::Result<T> {
        self.widen(path, handle, bits)?;
        let at = self.widened.iter().position(|one| one.path == path).ok_or(io::ErrorKind::NotFound)?;
        let done = work(&self.widened[at].handle);
        let one = self.widened.remove(at);
        self.revoke_one(&one)?;
        done
    }

    fn widen(&mut self, path: &[u8], handle: Handle, bits: u32) -> io::Result<()> {
        let permissions = handle.stat().st_mode & 0o7777;
        if self.widened.iter().all(|one| one.path != path) {
            let inode = (handle.stat().st_dev, handle.stat().st_ino);
            let to = permissions | bits;
            self.journal.write(&JournalEntry::ModeWidened {
                path: PathText(path.to_vec()),
                inode,
                from: permissions,
                to,
            })?;
            self.journal.sync()?;
            self.widened.push(WidenedMode { path: path.to_vec(), handle, permissions });
            let one = self.widened.last().ok_or(io::ErrorKind::NotFound)?;
            rustix::fs::chmod(one.handle.proc_path(), Mode::from_raw_mode(to))?;
        }
        Ok(())
    }

    /// The original permission bits of everything that is widened.
    pub fn original_modes(&self) -> OriginalModes {
        let record =
            |one: &WidenedMode| ((one.handle.stat().st_dev, one.handle.stat().st_ino), one.permissions);
        self.widened.iter().map(record).collect()
    }

    /// The paths whose modes are widened.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.widened.iter().map(|one| one.path.as_slice())
    }

    /// Revokes access beneath `path`, so that no later run has to get through it.
    pub fn revoke_beneath(&mut self, path: &[u8]) -> io::Result<()> {
        self.revoke_some(|one| one.path.strip_prefix(path).is_some_and(|rest| rest.first() == Some(&b'/')))
    }

    /// Leaves the mode of `path` as it is: it is the final one.
    pub fn keep_mode(&mut self, path: &[u8]) -> io::Result<()> {
        if let Some(at) = self.widened.iter().position(|one| one.path == path) {
            self.journal.write(&JournalEntry::ModeRestored { path: PathText(path.to_vec()) })?;
            self.widened.remove(at);
        }
        Ok(())
    }

    /// Revokes all access, the deepest paths first.
    pub fn revoke(&mut self) -> io::Result<()> {
        let revoked = self.revoke_some(|_| true);
        let restored: Vec<io::Result<()>> = std::mem::take(&mut self.cleared)
            .iter()
            .map(|(path, file, flags)| {
                rustix::fs::ioctl_setflags(file, *flags)?;
                self.journal.write(&JournalEntry::FlagsRestored { path: PathText(path.clone()) })
            })
            .collect();
        revoked.and(restored.into_iter().collect())
    }

    /// Revokes access to everything but directories.
    pub fn revoke_on_files(&mut self) -> io::Result<()> {
        self.revoke_some(|one| one.handle.stat().st_mode & libc::S_IFMT != libc::S_IFDIR)
    }

    fn revoke_some(&mut self, is_one: impl Fn(&WidenedMode) -> bool) -> io::Result<()> {
        let (mut some, rest): (Vec<_>, _) = std::mem::take(&mut self.widened).into_iter().partition(is_one);
        self.widened = rest;
        some.sort_by(|one, other| other.path.cmp(&one.path));
        let revoked: Vec<io::Result<()>> = some.iter().map(|one| self.revoke_one(one)).collect();
        revoked.into_iter().collect()
    }

    fn revoke_one(&self, one: &WidenedMode) -> io::Result<()> {
        match rustix::fs::chmod(one.handle.proc_path(), Mode::from_raw_mode(one.permissions)) {
            // It was removed, as planned.
            Ok(()) | Err(Errno::NOENT) => {
                self.journal.write(&JournalEntry::ModeRestored { path: PathText(one.path.clone()) })
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for TemporaryAccess<'_> {
    fn drop(&mut self) {
        if self.revoke().is_err() {
            // Nobody is left to be told; the next run tries again.
            self.journal.keep();
        }
    }
}

fn directory(dentry: &Dentry) -> io::Result<Option<Handle>> {
    let is_directory = |handle: &Handle| handle.stat().st_mode & libc::S_IFMT == libc::S_IFDIR;
    Ok(dentry.handle()?.filter(is_directory))
}

/// A path that is resolved through the directory `dentry`.
fn search_probe(dentry: &Dentry) -> Vec<u8> {
    [dentry.name(), b"/."].concat()
}
