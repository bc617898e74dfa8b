//! Recorded paths beneath a root directory, reached without following a symlink.
//!
//! A recorded path is the real path of its parent and a last name, so a symlink in its parent is a change
//! since or a trap; in both cases nothing of the record is there. All work of `restore` on a path is done
//! on a name in an open directory, or on a descriptor. Neighbours: `snapshot::live` and
//! `snapshot::compare` read what is at a [`Dentry`].

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::fs::{self, DIRECTORY};
use crate::snapshot::compare::{self, Fingerprint};
use crate::snapshot::{FileType, Present, live};

/// The directory that stands for `/` of a record.
#[derive(Debug)]
pub struct Root {
    directory: Arc<OwnedFd>,
}

/// A directory entry: a name in a directory that is held open, whether or not anything has that name.
#[derive(Debug, Clone)]
pub struct Dentry {
    parent: Arc<OwnedFd>,
    name: Vec<u8>,
}

/// What is at the path of a parent directory.
#[derive(Debug)]
pub enum ParentLookup {
    /// The directory.
    Found(Dentry),
    /// Nothing.
    Missing,
    /// Something on the way is no directory, perhaps a symlink.
    Blocked,
}

impl Root {
    /// The live filesystem.
    pub fn live() -> io::Result<Root> {
        Root::at(Path::new("/"))
    }

    /// The directory tree under `root`.
    pub fn at(root: &Path) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Root { directory: Arc::new(rustix::fs::open(root, flags, Mode::empty())?) })
    }

    /// Opens the parent directory of `path`, an absolute path of a record.
    pub fn find(&self, path: &[u8]) -> io::Result<ParentLookup> {
        let (parent, name) = split(path);
        if parent.is_empty() {
            return Ok(ParentLookup::Found(Dentry {
                parent: Arc::clone(&self.directory),
                name: name.to_vec(),
            }));
        }
        match fs::open_directory_beneath(self.directory.as_fd(), parent) {
            Ok(fd) => Ok(ParentLookup::Found(Dentry { parent: Arc::new(fd), name: name.to_vec() })),
            Err(Errno::NOENT) => Ok(ParentLookup::Missing),
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(ParentLookup::Blocked),
            Err(error) => Err(error.into()),
        }
    }

    /// The bytes of the regular file at `path`; none if there is none, it can't be read, or it has more than `most`.
    pub fn read(&self, path: &[u8], most: u64) -> Option<Vec<u8>> {
        let file = fs::open_regular(&self.dentry(path).ok()??.proc_path()).ok()?;
        // A sparse file may claim any size.
        file.metadata().ok().filter(|metadata| metadata.len() <= most)?;
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= most).then_some(bytes)
    }

    /// The dentry of `path`; none if its parent directory does not exist.
    pub fn dentry(&self, path: &[u8]) -> io::Result<Option<Dentry>> {
        Ok(match self.find(path)? {
            ParentLookup::Found(dentry) => Some(dentry),
            ParentLookup::Missing | ParentLookup::Blocked => None,
        })
    }

    /// The dentry of `path`; missing parent directories are created with `mode` and passed to `made`.
    pub fn with_parents(&self, path: &[u8], mode: Mode, made: &mut dyn FnMut(&[u8])) -> io::Result<Dentry> {
        if let Some(dentry) = self.dentry(path)? {
            return Ok(dentry);
        }
        let (parent, name) = split(path);
        let mut at = Arc::clone(&self.directory);
        let mut end = 0;
        for component in parent.split(|byte| *byte == b'/') {
            end += component.len() + 1;
            let down = match rustix::fs::openat(&at, component, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&at, component, mode) {
                        Ok(()) => made(&path[..end]),
                        // By another thread or process.
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    rustix::fs::openat(&at, component, DIRECTORY, Mode::empty())?
                }
                other => other?,
            };
            at = Arc::new(down);
        }
        Ok(Dentry { parent: at, name: name.to_vec() })
    }

    /// The fingerprint of what is at `path`, in the terms of `like` (see [`compare::live`]).
    pub fn fingerprint(&self, path: &[u8], like: &Fingerprint) -> io::Result<Fingerprint> {
        match self.dentry(path)? {
            Some(dentry) => compare::live(&dentry.proc_path(), like),
            None => Ok(Fingerprint::Absent),
        }
    }
}

impl Dentry {
    /// The parent directory, opened with O_PATH.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// The name in the parent directory; `.` for the root itself.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Another name in the same directory.
    #[must_use]
    pub fn sibling(&self, name: &[u8]) -> Dentry {
        Dentry { parent: Arc::clone(&self.parent), name: name.to_vec() }
    }

    /// A path for system calls that take no descriptor: through the open parent, so that only the last
    /// name is resolved again.
    pub fn proc_path(&self) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}/", self.parent.as_raw_fd()).into_bytes();
        path.extend_from_slice(&self.name);
        path
    }

    /// The path of the parent directory, for system calls that take no O_PATH descriptor.
    pub fn parent_path(&self) -> String {
        format!("/proc/self/fd/{}", self.parent.as_raw_fd())
    }

    /// The metadata of what has the name, in the terms of a record; none if nothing has.
    pub fn present(&self) -> io::Result<Option<Present>> {
        self.stat()?.map(|stat| live::present(&stat, &self.proc_path())).transpose()
    }

    /// The metadata of what has the name (lstat(2)); none if nothing has.
    pub fn stat(&self) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.parent, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// When what has the name was made, if the filesystem tells (statx(2), STATX_BTIME). Nobody can set it.
    pub fn birth(&self) -> Option<Timestamp> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let statx = rustix::fs::statx(&self.parent, self.name.as_slice(), flags, StatxFlags::BTIME).ok()?;
        let is_told = StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::BTIME);
        let nanoseconds = i32::try_from(statx.stx_btime.tv_nsec).ok()?;
        Timestamp::new(statx.stx_btime.tv_sec, nanoseconds).ok().filter(|_| is_told)
    }
}

/// An O_PATH descriptor, so that nothing that takes the name later is used instead.
#[derive(Debug)]
pub struct Handle {
    fd: OwnedFd,
    stat: Stat,
}

impl Dentry {
    /// Opens what has the name with O_PATH; none if nothing has.
    pub fn handle(&self) -> io::Result<Option<Handle>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.parent, self.name.as_slice(), flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Handle::new(fd)?)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Handle {
    /// Wraps an open descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<Handle> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Handle { fd, stat })
    }

    /// The metadata at the time of the open.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Its device and inode.
    pub fn inode(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// A path that names this file and no other, for system calls that take no O_PATH descriptor; if it
    /// is a symlink, it is not followed (proc_pid_fd(5)).
    pub fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// The metadata at the time of the open, in the terms of a record.
    pub fn present(&self) -> io::Result<Present> {
        let mut present = live::present(&self.stat, self.proc_path().as_bytes())?;
        if present.file_type == FileType::Symlink {
            // The path in /proc is itself a symlink, so readlink(2) on it would return something else.
            present.target = Some(rustix::fs::readlinkat(&self.fd, c"", Vec::new())?.into_bytes());
        }
        Ok(present)
    }

    /// The descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Opens the regular file or directory.
    pub fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(self.proc_path(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)
    }
}

/// The parent of an absolute path, relative to the root, and the last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let relative = path.strip_prefix(b"/").unwrap_or(path);
    match relative.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&relative[..slash], &relative[slash + 1..]),
        None if relative.is_empty() => (b"", b"."),
        None => (b"", relative),
    }
}

/// The parent directory of an absolute path.
pub fn parent(path: &[u8]) -> &[u8] {
    let end = path.len() - split(path).1.len();
    &path[..end.saturating_sub(1).max(1).min(path.len())]
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn a_symlink_in_a_parent_is_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("outside")).unwrap();
        fs::create_dir_all(root.join("inside/real")).unwrap();
        fs::write(root.join("outside/file"), "x").unwrap();
        symlink("../outside", root.join("inside/relative")).unwrap();
        symlink(root.join("outside"), root.join("inside/absolute")).unwrap();
        symlink("real", root.join("inside/within")).unwrap();
        let root = Root::at(&root.join("inside")).unwrap();
        for path in ["/relative/file", "/absolute/file", "/within/file"] {
            assert!(matches!(root.find(path.as_bytes()).unwrap(), ParentLookup::Blocked), "{path}");
        }
        assert!(matches!(root.find(b"/real/file").unwrap(), ParentLookup::Found(_)));
        assert!(matches!(root.find(b"/none/file").unwrap(), ParentLookup::Missing));
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path()).unwrap();
        let name = vec![b'n'; 200];
        let mut path = Vec::new();
        for _ in 0..25 {
            path.push(b'/');
            path.extend_from_slice(&name);
            let dentry = root.dentry(&path).unwrap().unwrap();
            rustix::fs::mkdirat(dentry.parent(), dentry.name(), Mode::RWXU).unwrap();
        }
        assert!(path.len() > 4096);
        assert!(root.dentry(&path).unwrap().unwrap().stat().unwrap().is_some());
        let like = Fingerprint::Absent;
        assert_ne!(root.fingerprint(&path, &like).unwrap(), Fingerprint::Absent);
    }

    #[test]
    fn root_has_a_dentry() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path()).unwrap();
        let dentry = root.dentry(b"/").unwrap().unwrap();
        let expected = fs::metadata(dir.path()).unwrap();
        assert_eq!(dentry.stat().unwrap().unwrap().st_ino, expected.ino());
    }
}
