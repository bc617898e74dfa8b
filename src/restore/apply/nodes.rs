//! New nodes: made under temporary names, put into their places, and what was there removed.

use std::io;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use super::files::NewFile;
use super::{Applier, PreparedNode};
use crate::restore::disk::{self, remove_temporary, temporary};
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::journal::{JournalEntry, PathText};
use crate::restore::node;
use crate::restore::plan::LeftReason;
use crate::restore::root::Dentry;
use crate::snapshot::FileType;

impl Applier<'_, '_, '_> {
    pub(super) fn temporary(&self, dentry: &Dentry) -> Dentry {
        dentry.sibling(&temporary(self.context.journal.id(), dentry.name()))
    }

    /// The dentry of the path of `record`, and the temporary one beside it.
    pub(super) fn dentries(&self, record: usize) -> Result<(Dentry, Dentry), Error> {
        let dentry = self.dentry(record)?;
        let temporary = self.temporary(&dentry);
        Ok((dentry, temporary))
    }

    /// Queues a new node to be put into its place, or to wait until the directory there is empty.
    pub(super) fn enqueue(&mut self, prepared: PreparedNode, waits: bool) {
        if waits {
            self.waiting.insert(prepared.record, prepared);
        } else {
            self.prepared.push_back(prepared);
        }
    }

    /// Removes the node with the temporary name, if it is still the one that was made.
    pub(super) fn discard(&self, prepared: PreparedNode) {
        let Ok((_, temporary)) = self.dentries(prepared.record) else { return };
        let found = temporary.stat().ok().flatten().map(|stat| (stat.st_dev, stat.st_ino));
        if found == Some(prepared.inode) {
            // The error that stopped the work is reported, and the journal has the name.
            let _ = remove_temporary(&temporary);
        }
    }

    /// Makes the queued files, flushes them to the disk, and puts all that is prepared into its place.
    pub(super) fn place_prepared(&mut self) -> Result<(), Error> {
        self.make_files()?;
        self.unsynced.flush().map_err(failed("sync new files"))?;
        while let Some(prepared) = self.prepared.pop_front() {
            self.put(prepared)?;
        }
        Ok(())
    }

    /// Puts a prepared node into its place.
    pub(super) fn put(&mut self, prepared: PreparedNode) -> Result<(), Error> {
        let put = self.place(prepared);
        put.inspect_err(|_| self.discard(prepared))
    }

    pub(super) fn place(&mut self, prepared: PreparedNode) -> Result<(), Error> {
        let PreparedNode { record, inode } = prepared;
        let (dentry, temporary) = self.dentries(record)?;
        let is_there = self.expect_unchanged(record, &dentry)?;
        let crosses = is_there && self.is_live_directory(record) != self.is_wanted_directory(record);
        let path = self.path(record).to_vec();
        let rename = |flags| {
            let (from, to) = (temporary.name(), dentry.name());
            rustix::fs::renameat_with(temporary.parent(), from, dentry.parent(), to, flags)
        };
        let refused = |error: Errno| failed_at("replace", &path)(error.into());
        self.promise_flags(record, inode)?;
        self.log(&JournalEntry::Placing { path: PathText(path.clone()), inode, cleared: false })?;
        let flags = if is_there { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        match rename(flags) {
            Ok(()) if is_there => {
                // What came out may not be what was inspected a moment ago.
                let out = self.present(record, &temporary)?;
                let is_expected = out.is_some_and(|out| self.is_as_inspected(record, &out));
                let removed = if is_expected { Some(remove_temporary(&temporary)) } else { None };
                match removed {
                    Some(Ok(())) => {}
                    Some(Err(error)) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                        rename(RenameFlags::EXCHANGE).map_err(refused)?;
                        self.discard(prepared);
                        self.leave_with_new_entries(record);
                        return Ok(());
                    }
                    Some(Err(error)) => return Err(failed_at("remove what was replaced at", &path)(error)),
                    None => {
                        rename(RenameFlags::EXCHANGE).map_err(refused)?;
                        return Err(self.changed_meanwhile(record));
                    }
                }
            }
            Ok(()) => {}
            Err(Errno::EXIST) if !is_there => return Err(self.changed_meanwhile(record)),
            Err(Errno::BUSY)
                if self.wanted(record).is_some_and(|wanted| wanted.file_type == FileType::File) =>
            {
                self.discard(prepared);
                return self.write_in_place(record);
            }
            // A filesystem that supports neither flag; what is removed is in the rescue.
            Err(Errno::INVAL | Errno::NOSYS) => {
                if crosses {
                    self.log(&JournalEntry::Placing { path: PathText(path.clone()), inode, cleared: true })?;
                    match remove_temporary(&dentry) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                            self.discard(prepared);
                            self.leave_with_new_entries(record);
                            return Ok(());
                        }
                        Err(error) => return Err(failed_at("remove", &path)(error)),
                    }
                }
                rename(RenameFlags::empty()).map_err(refused)?;
            }
            Err(error) => return Err(refused(error)),
        }
        self.changed();
        Ok(())
    }

    pub(super) fn leave_with_new_entries(&mut self, record: usize) {
        let path = self.path(record).to_vec();
        self.done.left.push((path, LeftReason::Entries(Vec::new())));
    }

    /// Makes a directory where nothing is; it gets its attributes when everything is in it.
    pub(super) fn make_directory(&mut self, record: usize) -> Result<(), Error> {
        let Some(wanted) = self.wanted(record) else { return Ok(()) };
        let dentry = self.dentry(record)?;
        if self.flags_of_new(record).is_some() {
            // Its flags are promised before it has its name.
            let prepared = self.new_node(record)?;
            return self.put(prepared);
        }
        self.log(&JournalEntry::Directory { path: PathText(self.path(record).to_vec()) })?;
        match node::new_node(&dentry, wanted) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed_at("create", self.path(record))(error))
            }
            _ => {
                self.changed();
                Ok(())
            }
        }
    }

    /// Makes anything but a regular file under its temporary name.
    pub(super) fn new_node(&mut self, record: usize) -> Result<PreparedNode, Error> {
        let (_, temporary) = self.dentries(record)?;
        let path = self.path(record).to_vec();
        self.log(&JournalEntry::Temporary { path: PathText(path.clone()) })?;
        if let Some(wanted) = self.wanted(record) {
            node::new_node(&temporary, wanted).map_err(failed_at("create a node beside", &path))?;
        }
        let handle = self.handle(record, &temporary)?;
        let prepared = PreparedNode { record, inode: handle.inode() };
        if self.is_wanted_directory(record) {
            self.log(&JournalEntry::Directory { path: PathText(path) })?;
        } else {
            self.give_all(record, &temporary, &handle).inspect_err(|_| self.discard(prepared))?;
        }
        Ok(prepared)
    }

    pub(super) fn remove_one(&mut self, record: usize) -> Result<(), Error> {
        let (dentry, temporary) = self.dentries(record)?;
        if !self.expect_unchanged(record, &dentry)? {
            return Ok(());
        }
        let path = self.path(record).to_vec();
        let refused = |error: Errno| failed_at("remove", &path)(error.into());
        let removed = if self.is_live_directory(record) {
            rustix::fs::unlinkat(dentry.parent(), dentry.name(), AtFlags::REMOVEDIR)
        } else {
            // Renamed before it is removed, so that what is removed is what was inspected, even if
            // another process was quicker.
            self.log(&JournalEntry::Removing { path: PathText(path.clone()) })?;
            disk::rename(&dentry, &temporary, RenameFlags::NOREPLACE).map_err(failed_at("remove", &path))?;
            let out = self.present(record, &temporary)?;
            if !out.is_some_and(|out| self.is_as_inspected(record, &out)) {
                let back = disk::rename(&temporary, &dentry, RenameFlags::NOREPLACE);
                back.map_err(failed_at("put back", &path))?;
                return Err(self.changed_meanwhile(record));
            }
            rustix::fs::unlinkat(temporary.parent(), temporary.name(), AtFlags::empty())
        };
        match removed {
            Ok(()) => {
                self.done.removed += 1;
                (self.tick)();
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                self.leave_with_new_entries(record);
                Ok(())
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Gives a file its old name again.
    pub(super) fn return_file(&mut self, record: usize, from: usize) -> Result<(), Error> {
        let handle = self.handle(from, &self.dentry(from)?)?;
        let is_expected = handle.present().is_ok_and(|now| self.is_as_inspected(from, &now));
        if !is_expected {
            return Err(self.changed_meanwhile(from));
        }
        let waits = self.waits(record);
        let link = |temporary: &Dentry| {
            let (file, follow) = (handle.proc_path(), AtFlags::SYMLINK_FOLLOW);
            rustix::fs::linkat(CWD, &file, temporary.parent(), temporary.name(), follow)
        };
        match self.link(record, link)? {
            Some(prepared) => {
                self.enqueue(prepared, waits);
                Ok(())
            }
            None => self.make_own(record, waits),
        }
    }

    pub(super) fn make_hard_link(&mut self, record: usize, to: usize) -> Result<(), Error> {
        let (dentry, leader) = (self.dentry(record)?, self.dentry(to)?);
        let inode = |dentry: &Dentry| -> io::Result<Option<(u64, u64)>> {
            Ok(dentry.stat()?.map(|stat| (stat.st_dev, stat.st_ino)))
        };
        let path = self.path(record);
        let own = inode(&dentry).map_err(failed_at("stat", path))?;
        if own.is_some() && own == inode(&leader).map_err(failed_at("stat", path))? {
            return Ok(());
        }
        let link = |temporary: &Dentry| {
            let flags = AtFlags::empty();
            rustix::fs::linkat(leader.parent(), leader.name(), temporary.parent(), temporary.name(), flags)
        };
        match self.link(record, link)? {
            Some(prepared) => self.put(prepared),
            None => self.make_own(record, false),
        }
    }

    /// Makes a file of its own where one of several names was wanted, and queues it to be put into its place.
    fn make_own(&mut self, record: usize, waits: bool) -> Result<(), Error> {
        if self.wanted(record).is_some_and(|wanted| wanted.file_type == FileType::File) {
            return self.add_file(NewFile { record, own_content: false, waits });
        }
        let prepared = self.new_node(record)?;
        self.enqueue(prepared, waits);
        Ok(())
    }

    /// Makes a hard link by `link` under the temporary name of `record`; none if a file can't get one more name, and a
    /// file of its own has the same content.
    fn link(
        &self,
        record: usize,
        link: impl FnOnce(&Dentry) -> rustix::io::Result<()>,
    ) -> Result<Option<PreparedNode>, Error> {
        let (_, temporary) = self.dentries(record)?;
        self.log(&JournalEntry::Temporary { path: PathText(self.path(record).to_vec()) })?;
        match link(&temporary) {
            Ok(()) => Ok(Some(PreparedNode { record, inode: self.handle(record, &temporary)?.inode() })),
            // Another filesystem by now, too many hard links, not permitted, not possible there, or no name is left.
            Err(
                Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOENT,
            ) => Ok(None),
            Err(error) => Err(failed_at("make a hard link at", self.path(record))(error.into())),
        }
    }
}
