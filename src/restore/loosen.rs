//! Directories of our own that permit too little for the work: opened to their owner for a while.
//!
//! What was opened is closed again whatever happens, short of SIGKILL; for that the rescue knows the
//! bits. Neighbours: `look.rs` and `apply.rs` meet such directories.

use std::io;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::look::Loosened;
use super::place::{Handle, Place, Spot};
use crate::snapshot::Present;

/// The directories that are open at the moment.
#[derive(Debug, Default)]
pub struct Loosener {
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    path: Vec<u8>,
    handle: Handle,
    /// The permission bits to give it in the end.
    permissions: u32,
}

impl Loosener {
    /// Opens every directory above `path` that is ours and may not be searched, so that `path` can be
    /// looked at; true where there was one.
    pub fn make_searchable(&mut self, place: &Place, path: &[u8], uid: u32) -> io::Result<bool> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).skip(1);
        let mut any = false;
        for slash in slashes {
            let Some(spot) = place.spot(&path[..slash])? else { break };
            let Some(handle) = directory(&spot)? else { break };
            // What is looked up in it needs the right to search (path_resolution(7)).
            let probe = rustix::fs::statat(spot.parent(), search_probe(&spot), rustix::fs::AtFlags::empty());
            if probe.err() == Some(Errno::ACCESS) && handle.stat().st_uid == uid {
                self.open(path[..slash].to_vec(), handle)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Opens the directory at `path` for changes.
    pub fn make_writable(&mut self, place: &Place, path: &[u8]) -> io::Result<()> {
        let spot = place.spot(path)?.ok_or(io::ErrorKind::NotFound)?;
        let handle = directory(&spot)?.ok_or(io::ErrorKind::NotADirectory)?;
        self.open(path.to_vec(), handle)
    }

    /// Takes over the directory at `path` if it is open though it was as `before` says.
    pub fn adopt(&mut self, place: &Place, path: &[u8], before: &Present) -> io::Result<()> {
        let Some(handle) = place.spot(path)?.map(|spot| directory(&spot)).transpose()?.flatten() else {
            return Ok(());
        };
        let (now, then) = (handle.stat().st_mode & 0o7777, before.mode & 0o7777);
        if now != then && now == then | 0o700 {
            self.open.push(Open { path: path.to_vec(), handle, permissions: then });
        }
        Ok(())
    }

    fn open(&mut self, path: Vec<u8>, handle: Handle) -> io::Result<()> {
        let permissions = handle.stat().st_mode & 0o7777;
        if self.open.iter().all(|open| open.path != path) {
            rustix::fs::chmod(handle.proc_path(), Mode::from_raw_mode(permissions | 0o700))?;
            self.open.push(Open { path, handle, permissions });
        }
        Ok(())
    }

    /// The bits that the open directories had.
    pub fn original(&self) -> Loosened {
        let entry = |open: &Open| ((open.handle.stat().st_dev, open.handle.stat().st_ino), open.permissions);
        self.open.iter().map(entry).collect()
    }

    /// The open directories.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.open.iter().map(|open| open.path.as_slice())
    }

    /// Gives the directory at `path` other bits in the end than those that it had.
    pub fn close_with(&mut self, path: &[u8], permissions: u32) {
        if let Some(open) = self.open.iter_mut().find(|open| open.path == path) {
            open.permissions = permissions;
        }
    }

    /// Closes all, the deepest first.
    pub fn close(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        self.open.sort_by(|one, other| one.path.cmp(&other.path));
        while let Some(open) = self.open.pop() {
            match rustix::fs::chmod(open.handle.proc_path(), Mode::from_raw_mode(open.permissions)) {
                // It was removed, as it should be.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => outcome = Err(error.into()),
            }
        }
        outcome
    }
}

impl Drop for Loosener {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.close();
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
