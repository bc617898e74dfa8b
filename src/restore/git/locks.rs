//! Git's locks on the files that a restore changes: as long as they are there, no Git process changes these.
//!
//! A lock is a file beside the one that it protects. It is made complete under a temporary name and then renamed, so
//! that it is known as ours whenever the restore is killed. Neighbours: `journal.rs` has a record of each before it is
//! made, `settle.rs` removes those that an interrupted restore has left.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::meaning::held;
use super::{is_target, lock_of};
use crate::restore::disk::{remove_temporary, temporary};
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::journal::{Journal, JournalEntry, PathText};
use crate::restore::node;
use crate::restore::plan::{Action, PlanInput, RestorePlan};
use crate::restore::root::{Dentry, Root, parent};

/// The locks that a restore holds. They are released when this is dropped.
#[derive(Debug, Default)]
pub struct GitLocks {
    held: BTreeMap<Vec<u8>, HeldLock>,
    /// What is in each.
    content: Vec<u8>,
}

#[derive(Debug)]
struct HeldLock(Dentry);

/// What is in a lock of the restore `id`.
pub fn content(id: &str) -> Vec<u8> {
    format!("agent-snapshot restore {id}: if it was interrupted, run it again, and this lock is removed\n")
        .into_bytes()
}

impl GitLocks {
    /// Whether the lock at `path` is held.
    pub fn holds(&self, path: &[u8]) -> bool {
        self.held.contains_key(path)
    }

    /// Whether any lock is held.
    pub fn is_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes the locks of all of Git's files that `plan` changes; returns the paths of those whose lock another process
    /// holds, and what to say of it.
    ///
    /// One in a directory that the plan removes or replaces is not taken, since it would be in the way.
    pub fn take(
        &mut self,
        input: &PlanInput,
        plan: &RestorePlan,
        root: &Root,
        journal: &Journal,
    ) -> Result<BTreeMap<Vec<u8>, String>, Error> {
        let mut of_others = BTreeMap::new();
        let gone: Vec<&[u8]> = plan
            .steps
            .iter()
            .filter(|step| !matches!(step.action, Action::Attributes(_)))
            .map(|step| input.files[step.record].path.as_slice())
            .collect();
        self.content = content(journal.id());
        for step in &plan.steps {
            let record = &input.files[step.record];
            let Some(lock) = lock_of(&record.path).filter(|_| record.is_git_state) else { continue };
            if is_target(input.files, input.targets, &lock)
                || gone.binary_search(&parent(&lock)).is_ok()
                || self.holds(&lock)
            {
                continue;
            }
            match self.take_one(&lock, root, journal).map_err(failed_at("make the lock", &lock))? {
                true => {}
                false => {
                    of_others.insert(record.path.clone(), held(&lock));
                }
            }
        }
        Ok(of_others)
    }

    /// Makes the lock at `path`, where its directory exists; false if there is one already.
    fn take_one(&mut self, path: &[u8], root: &Root, journal: &Journal) -> io::Result<bool> {
        let Some(dentry) = root.dentry(path)? else { return Ok(true) };
        if dentry.stat()?.is_some() {
            return Ok(false);
        }
        let directory = rustix::fs::fstat(dentry.parent())?;
        let prepared = dentry.sibling(&temporary(journal.id(), dentry.name()));
        journal.write(&JournalEntry::Temporary { path: PathText(path.to_vec()) })?;
        let mut file = match node::new_file(&prepared) {
            Ok(file) => file,
            // Nor can Git, without more permissions.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(true),
            Err(error) => return Err(error),
        };
        let made = (|| {
            file.write_all(&self.content)?;
            journal.write(&JournalEntry::Locking { path: PathText(path.to_vec()) })?;
            let (from, to) = ((prepared.parent(), prepared.name()), (dentry.parent(), dentry.name()));
            let renamed = rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE);
            let made = match renamed {
                // Not every filesystem supports it.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())
                }
                renamed => renamed,
            };
            match made {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(error) => Err(io::Error::from(error)),
            }
        })();
        let removed = remove_temporary(&prepared);
        if let Ok(true) = made {
            self.held.insert(path.to_vec(), HeldLock(dentry.clone()));
        }
        // Only its owner can do that, and nothing depends on it.
        let time = Timespec {
            tv_sec: directory.st_mtime,
            tv_nsec: i64::try_from(directory.st_mtime_nsec).unwrap_or(0),
        };
        let omit = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        let _ = rustix::fs::utimensat(rustix::fs::CWD, dentry.parent_path(), &times, AtFlags::empty());
        removed?;
        made
    }

    /// Removes the locks.
    pub fn release(&mut self) -> Result<(), Error> {
        let content = std::mem::take(&mut self.content);
        let held = std::mem::take(&mut self.held);
        let released = held.values().map(|lock| remove_own(&lock.0, &content).map(drop));
        released.collect::<Vec<_>>().into_iter().collect::<io::Result<()>>().map_err(failed("remove a lock"))
    }
}

impl Drop for GitLocks {
    fn drop(&mut self) {
        // The journal has them, if one can't be removed.
        let _ = self.release();
    }
}

/// Whether the lock at `dentry` has this content.
pub fn is_own(dentry: &Dentry, content: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dentry.parent(), dentry.name(), flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT | Errno::LOOP | Errno::ACCESS) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    file.take(content.len() as u64 + 1).read_to_end(&mut found)?;
    Ok(found == content)
}

/// Removes the lock at `dentry` if it has this content, and says whether it had.
pub fn remove_own(dentry: &Dentry, content: &[u8]) -> io::Result<bool> {
    let is_own = is_own(dentry, content)?;
    if is_own {
        rustix::fs::unlinkat(dentry.parent(), dentry.name(), AtFlags::empty())?;
    }
    Ok(is_own)
}
