//! New nodes: made under temporary names, put into their places, and what is there removed.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::{BATCH, BATCH_BYTES, Prepared, Worker, needs_content_of, source};
use crate::restore::disk::{self, remove_temporary, temporary};
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::journal::Entry;
use crate::restore::make;
use crate::restore::place::{Handle, Spot};
use crate::restore::plan::Left;
use crate::snapshot::{self, FileType, live};

impl Worker<'_, '_, '_> {
    pub(super) fn temporary(&self, spot: &Spot) -> Spot {
        spot.sibling(&temporary(self.job.journal.id(), spot.name()))
    }

    /// The place of what will be at the path of `record`, and the temporary one beside it.
    pub(super) fn spots(&self, record: usize) -> Result<(Spot, Spot), Error> {
        let spot = self.spot(record)?;
        let temporary = self.temporary(&spot);
        Ok((spot, temporary))
    }

    /// Lets a new node wait for its turn, or until the directory in its place is empty.
    pub(super) fn enqueue(&mut self, prepared: Prepared, waits: bool) -> Result<(), Error> {
        if waits {
            self.waiting.insert(prepared.record, prepared);
            return Ok(());
        }
        self.prepared_bytes += self.goal(prepared.record).map_or(0, |goal| goal.size);
        self.prepared.push_back(prepared);
        if self.prepared.len() >= BATCH || self.prepared_bytes >= BATCH_BYTES {
            self.place_prepared()?;
        }
        Ok(())
    }

    /// Removes what is under a temporary name, if it is still what was made there.
    pub(super) fn discard(&self, prepared: Prepared) {
        let Ok((_, temporary)) = self.spots(prepared.record) else { return };
        let found = temporary.stat().ok().flatten().map(|stat| (stat.st_dev, stat.st_ino));
        if found == Some(prepared.inode) {
            // What stopped the work is told, and the journal knows of it.
            let _ = remove_temporary(&temporary);
        }
    }

    /// Makes a file under its temporary name, with content and attributes.
    pub(super) fn new_file(&mut self, record: usize, own_content: bool) -> Result<Prepared, Error> {
        let (spot, temporary) = self.spots(record)?;
        let path = self.path(record);
        self.tell(&Entry::Temporary { path: path.to_vec() })?;
        let mut file = make::new_file(&temporary).map_err(failed_at("create a file beside", path))?;
        let written = if own_content {
            let copied = live::open_regular(&spot.proc_path()).and_then(|from| {
                let size = from.metadata()?.len();
                live::copy_keeping_holes(&from, &file, size)
            });
            copied.map(drop).map_err(failed_at("copy", path))
        } else {
            self.write_content(record, &mut file)
        };
        let held = Handle::new(OwnedFd::from(file)).map_err(failed_at("stat", self.path(record)))?;
        let prepared = Prepared { record, inode: held.inode() };
        let given = written.and_then(|()| self.give_all(record, &temporary, &held));
        let kept = given.and_then(|()| {
            self.unsynced.add(File::from(held.into_fd())).map_err(failed_at("stat", self.path(record)))
        });
        kept.inspect_err(|_| self.discard(prepared))?;
        Ok(prepared)
    }

    pub(super) fn write_content(&self, record: usize, file: &mut File) -> Result<(), Error> {
        let request = self.job.request;
        if self.goal(record).is_none_or(|goal| goal.size == 0) {
            return Ok(());
        }
        let source = source(request, record);
        let path = self.path(record);
        let written = self.job.contents.copy_to_file(source, request.goal, file);
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
    pub(super) fn put(&mut self, prepared: Prepared) -> Result<(), Error> {
        let put = self.place(prepared);
        put.inspect_err(|_| self.discard(prepared))
    }

    pub(super) fn place(&mut self, prepared: Prepared) -> Result<(), Error> {
        let Prepared { record, inode } = prepared;
        let (spot, temporary) = self.spots(record)?;
        let is_there = self.expect_unchanged(record, &spot)?;
        let crosses = is_there && self.is_live_directory(record) != self.is_goal_directory(record);
        let path = self.path(record).to_vec();
        let rename = |flags| {
            let (from, to) = (temporary.name(), spot.name());
            rustix::fs::renameat_with(temporary.parent(), from, spot.parent(), to, flags)
        };
        let refused = |error: Errno| failed_at("replace", &path)(error.into());
        self.tell(&Entry::Placing { path: path.clone(), inode, cleared: false })?;
        let flags = if is_there { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        match rename(flags) {
            Ok(()) if is_there => {
                // What came out may not be what was looked at a moment ago.
                let out = self.present(record, &temporary)?;
                let is_expected = out.is_some_and(|out| self.is_as_looked(record, &out));
                let removed = if is_expected { Some(remove_temporary(&temporary)) } else { None };
                match removed {
                    Some(Ok(())) => {}
                    Some(Err(error)) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                        rename(RenameFlags::EXCHANGE).map_err(refused)?;
                        self.discard(prepared);
                        self.someone_put_something_into(record);
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
            Err(Errno::BUSY) if self.goal(record).is_some_and(|goal| goal.file_type == FileType::File) => {
                self.discard(prepared);
                return self.write_in_place(record);
            }
            // A filesystem that can do neither; the rescue has what is removed.
            Err(Errno::INVAL | Errno::NOSYS) => {
                if crosses {
                    self.tell(&Entry::Placing { path: path.clone(), inode, cleared: true })?;
                    match remove_temporary(&spot) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                            self.discard(prepared);
                            self.someone_put_something_into(record);
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

    pub(super) fn someone_put_something_into(&mut self, record: usize) {
        let path = self.path(record).to_vec();
        self.done.left.push((path, Left::Entries(Vec::new())));
    }

    /// Makes a directory where nothing is; its attributes come when all is in it.
    pub(super) fn make_directory(&mut self, record: usize) -> Result<(), Error> {
        let Some(goal) = self.goal(record) else { return Ok(()) };
        let spot = self.spot(record)?;
        self.tell(&Entry::Directory { path: self.path(record).to_vec() })?;
        match make::new_node(&spot, goal) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed_at("create", self.path(record))(error))
            }
            _ => {
                self.changed();
                Ok(())
            }
        }
    }

    /// Makes a node that is no regular file under its temporary name.
    pub(super) fn new_node(&mut self, record: usize) -> Result<Prepared, Error> {
        let (_, temporary) = self.spots(record)?;
        let path = self.path(record).to_vec();
        self.tell(&Entry::Temporary { path: path.clone() })?;
        if let Some(goal) = self.goal(record) {
            make::new_node(&temporary, goal).map_err(failed_at("create a node beside", &path))?;
        }
        let held = self.hold(record, &temporary)?;
        let prepared = Prepared { record, inode: held.inode() };
        if self.is_goal_directory(record) {
            self.tell(&Entry::Directory { path })?;
        } else {
            self.give_all(record, &temporary, &held).inspect_err(|_| self.discard(prepared))?;
        }
        Ok(prepared)
    }

    pub(super) fn remove_one(&mut self, record: usize) -> Result<(), Error> {
        let (spot, temporary) = self.spots(record)?;
        if !self.expect_unchanged(record, &spot)? {
            return Ok(());
        }
        let path = self.path(record).to_vec();
        let refused = |error: Errno| failed_at("remove", &path)(error.into());
        let removed = if self.is_live_directory(record) {
            rustix::fs::unlinkat(spot.parent(), spot.name(), AtFlags::REMOVEDIR)
        } else {
            // Out of the way first: what is removed is what was looked at, whoever was quicker.
            self.tell(&Entry::Removing { path: path.clone() })?;
            disk::rename(&spot, &temporary, RenameFlags::NOREPLACE).map_err(failed_at("remove", &path))?;
            let out = self.present(record, &temporary)?;
            if !out.is_some_and(|out| self.is_as_looked(record, &out)) {
                let back = disk::rename(&temporary, &spot, RenameFlags::NOREPLACE);
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
                self.someone_put_something_into(record);
                Ok(())
            }
            Err(error) => Err(refused(error)),
        }
    }

    pub(super) fn link_one(&mut self, record: usize, to: usize) -> Result<(), Error> {
        let (spot, leader) = (self.spot(record)?, self.spot(to)?);
        let inode = |spot: &Spot| -> io::Result<Option<(u64, u64)>> {
            Ok(spot.stat()?.map(|stat| (stat.st_dev, stat.st_ino)))
        };
        let path = self.path(record);
        let own = inode(&spot).map_err(failed_at("stat", path))?;
        if own.is_some() && own == inode(&leader).map_err(failed_at("stat", path))? {
            return Ok(());
        }
        let temporary = self.temporary(&spot);
        self.tell(&Entry::Temporary { path: path.to_vec() })?;
        let flags = AtFlags::empty();
        let linked =
            rustix::fs::linkat(leader.parent(), leader.name(), temporary.parent(), temporary.name(), flags);
        let prepared = match linked {
            Ok(()) => {
                let held = self.hold(record, &temporary)?;
                return self.put(Prepared { record, inode: held.inode() });
            }
            // Another file system by now, or too many names, or not allowed: a file of its own has the
            // same content.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
                let own_content = !needs_content_of(self.job.request, record);
                self.new_file(record, own_content)?
            }
            Err(error) => return Err(failed_at("link", path)(error.into())),
        };
        self.enqueue(prepared, false)
    }
}
