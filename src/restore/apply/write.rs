//! Files that are written in place, since a new file would lose their other hard links or their mount.

use std::fs::File;
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Applier;
use super::files::write_content;
use crate::restore::disk::stage_name;
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::in_place;
use crate::restore::journal::{JournalEntry, PathText};
use crate::restore::node::AttributeChanges;
use crate::restore::root::{Dentry, Handle};
use crate::snapshot::{Present, live};

impl Applier<'_, '_, '_> {
    /// Writes into the existing file. Its new content is complete in a staged file before the first byte
    /// changes, and the file is compared with its inspection right before.
    pub(super) fn write_in_place(&mut self, record: usize) -> Result<(), Error> {
        let dentry = self.dentry(record)?;
        let handle = self.handle(record, &dentry)?;
        let path = self.path(record).to_vec();
        let stage = self.stage(record)?;
        self.log(&JournalEntry::Writing { path: PathText(path.clone()), inode: handle.inode() })?;
        self.context.journal.sync().map_err(failed("write the journal of the restore"))?;
        let file = self.open_for_writing(&path, &dentry, &handle).map_err(failed_at("open", &path))?;
        let is_expected = || {
            let now = rustix::fs::fstat(&file).ok().and_then(|now| live::present(&now, b"").ok());
            // Its mode may be widened; its hard links were part of the plan.
            self.inspected(record).zip(now).is_some_and(|(inspected, now)| {
                self.is_as_inspected(record, &Present { mode: inspected.mode, ..now })
            })
        };
        let is_too_large = self.has_no_room(&stage, &file).map_err(failed_at("stat", &path))?;
        let written = if is_too_large {
            Err(Errno::NOSPC.into())
        } else {
            in_place::overwrite(&file, &stage, is_expected)
        };
        match written {
            Ok(true) => {}
            Ok(false) => return Err(self.changed_meanwhile(record)),
            Err(error) => return Err(failed_at("write", &path)(error)),
        }
        self.own_changes.insert(handle.inode());
        self.give_all(record, &dentry, &handle)?;
        let surplus = AttributeChanges { xattrs: self.surplus(record), ..AttributeChanges::default() };
        self.give_to(record, &surplus, &handle)?;
        file.sync_all().map_err(failed_at("sync", &path))?;
        self.promise_flags(record, handle.inode())?;
        self.log(&JournalEntry::Done { path: PathText(path.clone()) })?;
        let staged =
            self.context.journal.directory().map(|at| at.join(stage_name(self.context.journal.id(), &path)));
        staged.and_then(std::fs::remove_file).map_err(failed_at("remove the staged content of", &path))?;
        self.changed();
        Ok(())
    }

    /// Writes the new content of the file of `record` into the directory of the rescue.
    pub(super) fn stage(&self, record: usize) -> Result<File, Error> {
        let path = self.path(record);
        let journal = self.context.journal;
        let staged = journal.directory().and_then(|directory| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = directory.join(stage_name(journal.id(), path));
            Ok(File::from(rustix::fs::open(name, flags, Mode::RUSR | Mode::WUSR)?))
        });
        let mut file = staged.map_err(failed_at("stage the content of", path))?;
        write_content(self.context.input, self.context.contents, record, &mut file)?;
        file.sync_all().map_err(failed_at("stage the content of", path))?;
        Ok(file)
    }

    /// Opens a regular file for writing; an unwritable one of the user's is made writable for the open.
    pub(super) fn open_for_writing(
        &mut self,
        path: &[u8],
        dentry: &Dentry,
        handle: &Handle,
    ) -> io::Result<File> {
        if handle.stat().st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::other("it is not a regular file any more"));
        }
        match handle.open(OFlags::WRONLY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let again = dentry.handle()?.filter(|again| again.inode() == handle.inode()).ok_or(error)?;
                let opened =
                    self.access.with_access(path, again, 0o200, |handle| handle.open(OFlags::WRONLY));
                Ok(File::from(opened?))
            }
            other => Ok(File::from(other?)),
        }
    }

    /// Whether the filesystem of `file` has no room for the additional data of `content`: better to fail
    /// before the first write than in the middle.
    pub(super) fn has_no_room(&self, content: &File, file: &File) -> io::Result<bool> {
        let more = live::data_size(content)?.saturating_sub(live::data_size(file)?);
        let free = rustix::fs::fstatvfs(file)?;
        Ok(more > free.f_bavail.saturating_mul(free.f_frsize))
    }
}
