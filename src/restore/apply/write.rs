//! Files that are written in place, because a new file would lose their other names or their mount.

use std::fs::File;
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Worker;
use crate::restore::disk::stage_name;
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::in_place;
use crate::restore::journal::Entry;
use crate::restore::make::Attributes;
use crate::restore::place::{Handle, Spot};
use crate::snapshot::{Present, live};

impl Worker<'_, '_, '_> {
    /// Writes into the file that is there. The content is whole in a file of its own before the first
    /// byte of the other changes, and the other is compared for the last time right before.
    pub(super) fn write_in_place(&mut self, record: usize) -> Result<(), Error> {
        let spot = self.spot(record)?;
        let held = self.hold(record, &spot)?;
        let path = self.path(record).to_vec();
        let stage = self.stage(record)?;
        self.tell(&Entry::Writing { path: path.clone(), inode: held.inode() })?;
        self.job.journal.sync().map_err(failed("write the journal of the restore"))?;
        let file = self.open_for_writing(&path, &spot, &held).map_err(failed_at("open", &path))?;
        let is_expected = || {
            let now = rustix::fs::fstat(&file).ok().and_then(|now| live::present(&now, b"").ok());
            // Its rights may have been opened, and its names are told by the plan.
            self.looked(record)
                .zip(now)
                .is_some_and(|(looked, now)| self.is_as_looked(record, &Present { mode: looked.mode, ..now }))
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
        self.own_changes.insert(held.inode());
        self.give_all(record, &spot, &held)?;
        let surplus = Attributes { xattrs: self.surplus(record), ..Attributes::default() };
        self.give_to(record, &surplus, &held)?;
        file.sync_all().map_err(failed_at("sync", &path))?;
        self.tell(&Entry::Done { path: path.clone() })?;
        let staged = self.job.journal.directory().map(|at| at.join(stage_name(self.job.journal.id(), &path)));
        staged.and_then(std::fs::remove_file).map_err(failed_at("remove the staged content of", &path))?;
        self.changed();
        Ok(())
    }

    /// Writes the content that the file of `record` gets into the directory of the rescue.
    pub(super) fn stage(&self, record: usize) -> Result<File, Error> {
        let path = self.path(record);
        let journal = self.job.journal;
        let staged = journal.directory().and_then(|directory| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = directory.join(stage_name(journal.id(), path));
            Ok(File::from(rustix::fs::open(name, flags, Mode::RUSR | Mode::WUSR)?))
        });
        let mut file = staged.map_err(failed_at("stage the content of", path))?;
        self.write_content(record, &mut file)?;
        file.sync_all().map_err(failed_at("stage the content of", path))?;
        Ok(file)
    }

    /// Opens a regular file for writing; one of our own that we may not write is made writable for that
    /// moment.
    pub(super) fn open_for_writing(&mut self, path: &[u8], spot: &Spot, held: &Handle) -> io::Result<File> {
        if held.stat().st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::other("it is no regular file any more"));
        }
        match held.open(OFlags::WRONLY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let again = spot.hold()?.filter(|again| again.inode() == held.inode()).ok_or(error)?;
                let opened = self.loosener.for_a_moment(path, again, 0o200, |held| held.open(OFlags::WRONLY));
                Ok(File::from(opened?))
            }
            other => Ok(File::from(other?)),
        }
    }

    /// Whether the filesystem of `file` has no room for what `content` has more: better now than half way.
    pub(super) fn has_no_room(&self, content: &File, file: &File) -> io::Result<bool> {
        let more = live::data_size(content)?.saturating_sub(live::data_size(file)?);
        let free = rustix::fs::fstatvfs(file)?;
        Ok(more > free.f_bavail.saturating_mul(free.f_frsize))
    }
}
