//! Files and directories of our own that permit too little for the work: opened to their owner for a
//! while.
//!
//! What was opened is closed again whatever happens; short of SIGKILL by the run that opened it, and else
//! by the next one, from the journal. Neighbours: `look.rs` and `apply.rs` meet such directories.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use rustix::fs::{IFlags, Mode};
use rustix::io::Errno;

use super::flags;
use super::journal::{Entry, Journal};
use super::place::{Handle, Place, Spot};

/// Permission bits that directories had before they were loosened, by device and inode.
pub type Loosened = HashMap<(u64, u64), u32>;

/// What is open at the moment.
pub struct Loosener<'a> {
    place: &'a Place,
    journal: &'a Journal<'a>,
    open: Vec<Open>,
    /// What was append-only or immutable, with the flags that it had.
    unlocked: Vec<(Vec<u8>, File, IFlags)>,
}

#[derive(Debug)]
struct Open {
    path: Vec<u8>,
    handle: Handle,
    /// The permission bits to give it in the end.
    permissions: u32,
}

impl<'a> Loosener<'a> {
    /// Opens nothing yet.
    pub fn new(place: &'a Place, journal: &'a Journal<'a>) -> Loosener<'a> {
        Loosener { place, journal, open: Vec::new(), unlocked: Vec::new() }
    }

    /// Opens every directory above `path` that is ours and may not be searched, so that `path` can be
    /// looked at; true where there was one.
    pub fn make_searchable(&mut self, path: &[u8], uid: u32) -> io::Result<bool> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).skip(1);
        let mut any = false;
        for slash in slashes {
            let Some(spot) = self.place.spot(&path[..slash])? else { break };
            let Some(handle) = directory(&spot)? else { break };
            // What is looked up in it needs the right to search (path_resolution(7)).
            let probe = rustix::fs::statat(spot.parent(), search_probe(&spot), rustix::fs::AtFlags::empty());
            if probe.err() == Some(Errno::ACCESS) && handle.stat().st_uid == uid {
                self.open(&path[..slash], handle, 0o700)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Opens the file or directory at `path` to be read.
    pub fn make_readable(&mut self, path: &[u8]) -> io::Result<()> {
        let held = self.place.spot(path)?.map(|spot| spot.hold()).transpose()?.flatten();
        let held = held.ok_or(io::ErrorKind::NotFound)?;
        let is_directory = held.stat().st_mode & libc::S_IFMT == libc::S_IFDIR;
        self.open(path, held, if is_directory { 0o700 } else { 0o400 })
    }

    /// Opens the directory at `path` for changes.
    pub fn make_writable(&mut self, path: &[u8]) -> io::Result<()> {
        let spot = self.place.spot(path)?.ok_or(io::ErrorKind::NotFound)?;
        let handle = directory(&spot)?.ok_or(io::ErrorKind::NotADirectory)?;
        self.open(path, handle, 0o700)
    }

    /// Clears the flags of what is at `path` that forbid changes.
    pub fn unlock(&mut self, path: &[u8]) -> io::Result<()> {
        let held = self.place.spot(path)?.map(|spot| spot.hold()).transpose()?.flatten();
        let held = held.ok_or(io::ErrorKind::NotFound)?;
        let (file, flags) = flags::open(&held)?;
        if flags.intersects(flags::LOCKS) {
            let entry = Entry::Unlocked { path: path.to_vec(), inode: held.inode(), flags: flags.bits() };
            self.journal.write(&entry)?;
            self.journal.sync()?;
            rustix::fs::ioctl_setflags(&file, flags - flags::LOCKS)?;
            self.unlocked.push((path.to_vec(), file, flags));
        }
        Ok(())
    }

    /// Lets the flags of `path` be: it is gone, or gets those that it is to have.
    pub fn forget_lock(&mut self, path: &[u8]) -> io::Result<()> {
        let count = self.unlocked.len();
        self.unlocked.retain(|(unlocked, ..)| unlocked != path);
        if self.unlocked.len() == count {
            return Ok(());
        }
        self.journal.write(&Entry::Locked { path: path.to_vec() })
    }

    /// Gives the owner of what is held at `path` the rights `bits` for as long as `work` takes.
    pub fn for_a_moment<T>(
        &mut self,
        path: &[u8],
        handle: Handle,
        bits: u32,
        work: impl FnOnce(&Handle) -> io::Result<T>,
    ) -> io::Result<T> {
        self.open(path, handle, bits)?;
        let at = self.open.iter().position(|open| open.path == path).ok_or(io::ErrorKind::NotFound)?;
        let done = work(&self.open[at].handle);
        let open = self.open.remove(at);
        self.close_one(&open)?;
        done
    }

    fn open(&mut self, path: &[u8], handle: Handle, bits: u32) -> io::Result<()> {
        let permissions = handle.stat().st_mode & 0o7777;
        if self.open.iter().all(|open| open.path != path) {
            let inode = (handle.stat().st_dev, handle.stat().st_ino);
            let to = permissions | bits;
            self.journal.write(&Entry::Opened { path: path.to_vec(), inode, from: permissions, to })?;
            self.journal.sync()?;
            self.open.push(Open { path: path.to_vec(), handle, permissions });
            let open = self.open.last().ok_or(io::ErrorKind::NotFound)?;
            rustix::fs::chmod(open.handle.proc_path(), Mode::from_raw_mode(to))?;
        }
        Ok(())
    }

    /// The bits that the open directories had.
    pub fn original(&self) -> Loosened {
        let entry = |open: &Open| ((open.handle.stat().st_dev, open.handle.stat().st_ino), open.permissions);
        self.open.iter().map(entry).collect()
    }

    /// What is open.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.open.iter().map(|open| open.path.as_slice())
    }

    /// Closes what is open beneath `path`, so that no later run needs a way through it.
    pub fn close_beneath(&mut self, path: &[u8]) -> io::Result<()> {
        self.close_some(|open| open.path.strip_prefix(path).is_some_and(|rest| rest.first() == Some(&b'/')))
    }

    /// Lets `path` be: it has the bits that it is to have.
    pub fn forget(&mut self, path: &[u8]) -> io::Result<()> {
        if let Some(at) = self.open.iter().position(|open| open.path == path) {
            self.journal.write(&Entry::Closed { path: path.to_vec() })?;
            self.open.remove(at);
        }
        Ok(())
    }

    /// Closes all, the deepest first.
    pub fn close(&mut self) -> io::Result<()> {
        let closed = self.close_some(|_| true);
        let locked: Vec<io::Result<()>> = std::mem::take(&mut self.unlocked)
            .iter()
            .map(|(path, file, flags)| {
                rustix::fs::ioctl_setflags(file, *flags)?;
                self.journal.write(&Entry::Locked { path: path.clone() })
            })
            .collect();
        closed.and(locked.into_iter().collect())
    }

    /// Closes what is no directory.
    pub fn close_files(&mut self) -> io::Result<()> {
        self.close_some(|open| open.handle.stat().st_mode & libc::S_IFMT != libc::S_IFDIR)
    }

    fn close_some(&mut self, is_one: impl Fn(&Open) -> bool) -> io::Result<()> {
        let (mut some, rest): (Vec<_>, _) = std::mem::take(&mut self.open).into_iter().partition(is_one);
        self.open = rest;
        some.sort_by(|one, other| other.path.cmp(&one.path));
        let closed: Vec<io::Result<()>> = some.iter().map(|open| self.close_one(open)).collect();
        closed.into_iter().collect()
    }

    fn close_one(&self, open: &Open) -> io::Result<()> {
        match rustix::fs::chmod(open.handle.proc_path(), Mode::from_raw_mode(open.permissions)) {
            // It was removed, as it should be.
            Ok(()) | Err(Errno::NOENT) => self.journal.write(&Entry::Closed { path: open.path.clone() }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Loosener<'_> {
    fn drop(&mut self) {
        if self.close().is_err() {
            // Nobody is left to be told; the next run tries again.
            self.journal.keep();
        }
    }
}

fn directory(spot: &Spot) -> io::Result<Option<Handle>> {
    let is_directory = |handle: &Handle| handle.stat().st_mode & libc::S_IFMT == libc::S_IFDIR;
    Ok(spot.hold()?.filter(is_directory))
}

/// A path through the directory at `spot`.
fn search_probe(spot: &Spot) -> Vec<u8> {
    [spot.name(), b"/."].concat()
}
