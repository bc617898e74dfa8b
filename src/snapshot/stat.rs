//! What stat(2) says of a file in the terms of the manifest: the one way from the kernel's structure to a
//! state.

use super::manifest::{FileType, Present};
use crate::fs::{self, FileStat};

/// What stat(2) says of a file, as far as a record keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// `st_mode`.
    pub mode: u32,
    /// The nanoseconds of `mtime`.
    pub mtime_nsec: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, seconds since 1970.
    pub mtime: i64,
    /// Bytes.
    pub size: u64,
    /// Device of the filesystem.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Number of names: a `u32` in the kernel.
    pub nlink: u32,
    /// The device that a device node stands for: 32 bits in the kernel.
    pub rdev: u32,
}

impl From<&FileStat> for Stat {
    fn from(stat: &FileStat) -> Self {
        Stat {
            mode: stat.st_mode,
            mtime_nsec: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            size: fs::size(stat),
            dev: stat.st_dev,
            ino: stat.st_ino,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            rdev: u32::try_from(stat.st_rdev).unwrap_or(u32::MAX),
        }
    }
}

impl Stat {
    /// Whether it is of a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Whether it is of a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether it is of a symlink.
    pub fn is_symlink(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFLNK
    }

    /// Device and inode number.
    pub fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Seconds and nanoseconds of the modification time.
    pub fn modified(&self) -> (i64, u32) {
        (self.mtime, self.mtime_nsec)
    }

    /// Whether it is the same file, as long as it was and modified when it was.
    pub fn same_content(&self, other: &Stat) -> bool {
        (self.identity(), self.size, self.modified()) == (other.identity(), other.size, other.modified())
    }

    /// Whether nothing that a record tells differs, the number of names apart.
    pub fn same_state(&self, other: &Stat) -> bool {
        self.same_content(other)
            && (self.mode, self.uid, self.gid, self.rdev) == (other.mode, other.uid, other.gid, other.rdev)
    }
}

impl Present {
    /// What `stat` says of a file of that type. The target of a symlink, content, entries, extended
    /// attributes and inode flags are unknown.
    pub fn of(file_type: FileType, stat: &Stat) -> Present {
        let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        Present {
            mtime: stat.mtime,
            mtime_nsec: stat.mtime_nsec,
            size: stat.size,
            uid: stat.uid,
            gid: stat.gid,
            dev: stat.dev,
            ino: stat.ino,
            nlink: stat.nlink.into(),
            rdev: is_device.then_some(stat.rdev.into()),
            ..Present::new(file_type, stat.mode)
        }
    }
}
