//! New nodes: made under temporary names, put into their places, and what was there removed.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::{Applier, BATCH, BATCH_BYTES, PreparedNode, needs_content_of, source};
use crate::fs;
use crate::restore::disk::{self, remove_temporary, temporary};
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::journal::JournalEntry;
use crate::restore::node;
use crate::restore::plan::LeftReason;
use crate::restore::root::{Dentry, Handle};
use crate::snapshot::{self, FileType, live};

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
    pub(super) fn enqueue(&mut self, prepared: PreparedNode, waits: bool) -> Result<(), Error> {
        if waits {
            self.waiting.insert(prepared.record, prepared);
            return Ok(());
        }
        self.prepared_bytes += self.wanted(prepared.record).map_or(0, |wanted| wanted.size);
        self.prepared.push_back(prepared);
        if self.prepared.len() >= BATCH || self.prepared_bytes >= BATCH_BYTES {
            self.place_prepared()?;
        }
        Ok(())
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

    /// Makes a regular file under its temporary name, with content and attributes.
    pub(super) fn new_file(&mut self, record: usize, own_content: bool) -> Result<PreparedNode, Error> {
        let (dentry, temporary) = self.dentries(record)?;
        let path = self.path(record);
        self.log(&JournalEntry::Temporary { path: path.to_vec() })?;
        let mut file = node::new_file(&temporary).map_err(failed_at("create a file beside", path))?;
        let written = if own_content {
            let copied = fs::open_regular(&dentry.proc_path()).and_then(|from| {
                let size = from.metadata()?.len();
                live::copy_keeping_holes(&from, &file, size)
            });
            copied.map(drop).map_err(failed_at("copy", path))
        } else {
            self.write_content(record, &mut file)
        };
        let handle = Handle::new(OwnedFd::from(file)).map_err(failed_at("stat", self.path(record)))?;
        let prepared = PreparedNode { record, inode: handle.inode() };
        let given = written.and_then(|()| self.give_all(record, &temporary, &handle));
        let kept = given.and_then(|()| {
            self.unsynced.add(File::from(handle.into_fd())).map_err(failed_at("stat", self.path(record)))
        });
        kept.inspect_err(|_| self.discard(prepared))?;
        Ok(prepared)
    }

    pub(super) fn write_content(&self, record: usize, file: &mut File) -> Result<(), Error> {
        let input = self.context.input;
        if self.wanted(record).is_none_or(|wanted| wanted.size == 0) {
            return Ok(());
        }
        if let Some(content) = input.replaced.get(&record) {
            return file.write_all(content).map_err(failed_at("write", self.path(record)));
        }
        let source = source(input, record);
        let path = self.path(record);
        let written = self.context.contents.copy_to_file(source, input.wanted, file);
        written.map_err(|error| match error {
            snapshot::Error::Sink(error) => failed_at("write", path)(error),
            error => failed_at("get the content of", path)(io::Error::other(error)),
        })?;
        file.flush().map_err(failed_at("write", path))
    }

    /// Flushes the prepared files to the disk and puts them into their places.
    pub(super) fn place_prepared(&mut self) -> Result<(), Error> {
        self.unsynced.flush().map_err(failed("sync new files"))?;
        self.prepared_bytes = 0;
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
        self.log(&JournalEntry::Placing { path: path.clone(), inode, cleared: false })?;
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
                    self.log(&JournalEntry::Placing { path: path.clone(), inode, cleared: true })?;
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
        self.log(&JournalEntry::Directory { path: self.path(record).to_vec() })?;
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
        self.log(&JournalEntry::Temporary { path: path.clone() })?;
        if let Some(wanted) = self.wanted(record) {
            node::new_node(&temporary, wanted).map_err(failed_at("create a node beside", &path))?;
        }
        let handle = self.handle(record, &temporary)?;
        let prepared = PreparedNode { record, inode: handle.inode() };
        if self.is_wanted_directory(record) {
            self.log(&JournalEntry::Directory { path })?;
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
            self.log(&JournalEntry::Removing { path: path.clone() })?;
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
        let temporary = self.temporary(&dentry);
        self.log(&JournalEntry::Temporary { path: path.to_vec() })?;
        let flags = AtFlags::empty();
        let made =
            rustix::fs::linkat(leader.parent(), leader.name(), temporary.parent(), temporary.name(), flags);
        let prepared = match made {
            Ok(()) => {
                let handle = self.handle(record, &temporary)?;
                return self.put(PreparedNode { record, inode: handle.inode() });
            }
            // Another filesystem by now, too many hard links, or not permitted: a file of its own has the
            // same content.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
                let own_content = !needs_content_of(self.context.input, record);
                self.new_file(record, own_content)?
            }
            Err(error) => return Err(failed_at("make a hard link at", path)(error.into())),
        };
        self.enqueue(prepared, false)
    }
}
