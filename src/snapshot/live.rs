//! The state of a path now, its attributes, and the holes of a file.
//!
//! Nothing blocks, no final symlink is followed, and access times stay where the kernel allows it.
//! Neighbours: `fs` opens and stats, `compare.rs` compares with a record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxAttributes, StatxFlags, fallocate};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::digest::read_at;
use super::error::printable;
use super::manifest::{self, Digest, InodeFlag, Present};
use super::sparse::{self, BLOCK, Extents, Sink};
use super::stat::Stat;
use crate::fs::{FileStat, open_quietly};

/// The state of `path` by its `stat`, with the target of a symlink. Content, entries, extended attributes and
/// inode flags are not read.
pub fn present(stat: &FileStat, path: &[u8]) -> io::Result<Present> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "a file of unknown type");
    let file_type = manifest::FileType::from_mode(stat.st_mode).ok_or_else(invalid)?;
    let target = match file_type {
        manifest::FileType::Symlink => Some(rustix::fs::readlinkat(CWD, path, Vec::new())?.into_bytes()),
        _ => None,
    };
    Ok(Present { target, ..Present::of(file_type, &Stat::from(stat)) })
}

/// The names in the directory at `path`, sorted by their bytes, without `.` and `..`.
pub fn entries(path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    Ok(typed_entries(path)?.into_iter().map(|(name, _)| name).collect())
}

/// The same, each with its type, if readdir(3) tells it.
pub fn typed_entries(path: &[u8]) -> io::Result<Vec<(Vec<u8>, Option<manifest::FileType>)>> {
    let fd = open_quietly(path, OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::new(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let file_type = manifest::FileType::from_mode(entry.file_type().as_raw_mode());
            entries.push((name.to_vec(), file_type));
        }
    }
    entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(entries)
}

/// The digest over the sorted names in the directory at `path`, each followed by a NUL byte.
pub fn entries_digest(path: &[u8]) -> io::Result<Digest> {
    Ok(digest_of_entries(&entries(path)?))
}

/// The digest over `names`, which are sorted, each followed by a NUL byte.
pub fn digest_of_entries(names: &[Vec<u8>]) -> Digest {
    let mut hasher = Sha256::new();
    for name in names {
        hasher.update(name);
        hasher.update([0]);
    }
    Digest::finish(hasher)
}

/// The digest over the sorted names in the directory at `path` and their types.
pub fn entry_types_digest(path: &[u8]) -> io::Result<Digest> {
    Ok(digest_of_typed_entries(&typed_entries(path)?))
}

/// The digest over `entries`, which are sorted: each name, a NUL byte, its type, a line feed.
pub fn digest_of_typed_entries(entries: &[(Vec<u8>, Option<manifest::FileType>)]) -> Digest {
    let mut hasher = Sha256::new();
    for (name, file_type) in entries {
        hasher.update(name);
        hasher.update([0]);
        hasher.update(file_type.map_or("", manifest::FileType::name));
        hasher.update([b'\n']);
    }
    Digest::finish(hasher)
}

/// Extended attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Some extended attributes of a path could not be read; the message says which one and why.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct UnreadableXattrs {
    /// Those that were read.
    pub readable: Xattrs,
    /// `list its extended attributes`, or the same with the name of the first that could not be read.
    what: String,
    /// The refusal.
    source: Errno,
}

impl UnreadableXattrs {
    /// Whether nothing is at the path any more.
    pub fn is_gone(&self) -> bool {
        self.source == Errno::NOENT
    }
}

impl From<UnreadableXattrs> for io::Error {
    fn from(error: UnreadableXattrs) -> io::Error {
        error.source.into()
    }
}

/// The extended attributes of what is at `path`, a symlink's own included; empty where the
/// filesystem has none.
///
/// # Errors
/// Some could not be read: those of the namespace `user` need read permission on the file (xattr(7)), and
/// a list beyond 64 KiB is cut by no filesystem but refused (E2BIG). No permission is changed for it.
pub fn xattrs(path: &[u8]) -> Result<Xattrs, UnreadableXattrs> {
    let mut readable = Xattrs::new();
    let names = match grown(|buffer| rustix::fs::llistxattr(path, buffer)) {
        Ok(names) => names,
        Err(Errno::NOTSUP) => return Ok(readable),
        Err(source) => {
            let what = "list its extended attributes".to_owned();
            return Err(UnreadableXattrs { readable, what, source });
        }
    };
    let mut refusal = None;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match grown(|buffer| rustix::fs::lgetxattr(path, name, buffer)) {
            Ok(value) => {
                readable.insert(name.to_vec(), value);
            }
            // Gone since it was listed, or listed by a filesystem that has no values of that namespace.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(source) => refusal = refusal.or(Some((name, source))),
        }
    }
    match refusal {
        None => Ok(readable),
        Some((name, source)) => {
            let what = format!("read its extended attribute {}", printable(name));
            Err(UnreadableXattrs { readable, what, source })
        }
    }
}

/// The inode flags of what is at `path`, a symlink's own included; empty where the filesystem
/// has none.
pub fn inode_flags(path: &[u8]) -> io::Result<BTreeSet<InodeFlag>> {
    const FLAGS: [(StatxAttributes, InodeFlag); 4] = [
        (StatxAttributes::APPEND, InodeFlag::Append),
        (StatxAttributes::IMMUTABLE, InodeFlag::Immutable),
        (StatxAttributes::NODUMP, InodeFlag::Nodump),
        (StatxAttributes::COMPRESSED, InodeFlag::Compressed),
    ];
    let statx = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    let set = statx.stx_attributes & statx.stx_attributes_mask;
    Ok(FLAGS.into_iter().filter(|(bit, _)| set.contains(*bit)).map(|(_, flag)| flag).collect())
}

/// Calls one of the xattr family, which says ERANGE where the buffer is too small, until it fits.
fn grown(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    // XATTR_SIZE_MAX and XATTR_LIST_MAX of linux/limits.h.
    const MOST: usize = 65536;
    let mut buffer = vec![0; 256];
    loop {
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < MOST => buffer.resize(buffer.len() * 16, 0),
            Err(error) => return Err(error),
        }
    }
}

/// Makes the first `size` bytes of `from` the content of `to`, and says how many of them there are.
///
/// The extents are cloned where the filesystem can do that, else the data is copied in the kernel. In
/// either case holes stay holes.
pub fn copy_keeping_holes(from: &File, to: &File, size: u64) -> io::Result<u64> {
    let old = to.metadata()?.len();
    if old == 0 && rustix::fs::ioctl_ficlone(to, from).is_ok() {
        // All of it was cloned.
        let length = to.metadata()?.len().min(size);
        to.set_len(length)?;
        return Ok(length);
    }
    to.set_len(size)?;
    let whole_blocks = |size: u64| size.next_multiple_of(BLOCK as u64);
    let old = whole_blocks(old);
    let mut end = 0;
    for extent in Extents::new(from, size)? {
        let extent = extent?;
        clear(to, end..extent.start.min(old))?;
        end = extent.end;
        copy_range(from, to, extent)?;
    }
    if end < size {
        clear(to, end..whole_blocks(size).min(old))?;
    }
    // Behind the end of a file that was cut meanwhile there was nothing to copy.
    Ok(from.metadata()?.len().min(size))
}

/// Makes a hole of a range, or zeros where the filesystem takes none; beyond the end of the file it is
/// left as it is.
fn clear(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let len = range.end - range.start;
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range.start, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let end = file.metadata()?.len();
            let mut file = file;
            file.seek(SeekFrom::Start(range.start))?;
            Sink::hole(&mut file, len.min(end.saturating_sub(range.start)))
        }
        done => Ok(done?),
    }
}

fn copy_range(from: &File, to: &File, range: Range<u64>) -> io::Result<()> {
    // The offset of neither file is moved.
    let (mut source, mut target) = (range.start, range.start);
    while source < range.end {
        let len = usize::try_from(range.end - source).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), len) {
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => return Err(error.into()),
            // Not between these two, or the end.
            Ok(0) | Err(_) => return copy_through_memory(from, to, source..range.end),
            Ok(_) => {}
        }
    }
    Ok(())
}

fn copy_through_memory(from: &File, to: &File, range: Range<u64>) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut offset = range.start;
    while offset < range.end {
        let len = usize::try_from(range.end - offset).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let read = read_at(from, &mut buffer[..len], offset)?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], offset)?;
        offset += read as u64;
    }
    Ok(())
}

/// How many bytes of `file` are data: all but its holes. What is stored of it is not more.
pub fn data_size(file: &File) -> io::Result<u64> {
    let size = file.metadata()?.len();
    if !sparse::is_sparse(file, size)? {
        return Ok(size);
    }
    Extents::new(file, size)?
        .try_fold(0, |sum, extent| extent.map(|extent| sum + (extent.end - extent.start)))
}

/// What provides the files of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// The kernel, from a disk or from memory.
    Local,
    /// The kernel, from layers of other filesystems: the first change of a file copies it up.
    Overlay,
    /// A program or another machine, so that a signal may interrupt an open.
    Served,
    /// The kernel, which makes them up: procfs, sysfs, cgroup, debugfs, tracefs, securityfs, bpffs,
    /// configfs.
    Pseudo,
}

/// Whether `path`, or the nearest directory above it that exists, is on a [`Filesystem::Pseudo`].
pub fn is_pseudo_filesystem(path: &[u8]) -> io::Result<bool> {
    Ok(filesystem(path)? == Filesystem::Pseudo)
}

/// The filesystem of `path`, or of the nearest directory above it that exists.
pub fn filesystem(path: &[u8]) -> io::Result<Filesystem> {
    let mut at = path;
    loop {
        match rustix::fs::openat(CWD, at, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => return Ok(Filesystem::from_magic(rustix::fs::fstatfs(&fd)?.f_type)),
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => {
                let slash = at.iter().rposition(|byte| *byte == b'/');
                at = match slash {
                    Some(0) if at.len() > 1 => b"/",
                    Some(slash) if slash > 0 => &at[..slash],
                    _ => return Err(error.into()),
                };
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl Filesystem {
    /// By the numbers of statfs(2).
    pub fn from_magic(magic: i64) -> Filesystem {
        // configfs, 9P, CIFS, SMB2 and Ceph, which libc has not (linux/magic.h, fs/*/super.c).
        const CONFIGFS_MAGIC: i64 = 0x6265_6570;
        const V9FS_MAGIC: i64 = 0x0102_1997;
        const CIFS_MAGIC: i64 = 0xff53_4d42;
        const SMB2_MAGIC: i64 = 0xfe53_4d42;
        const CEPH_MAGIC: i64 = 0x00c3_6400;
        const PSEUDO: [i64; 9] = [
            libc::PROC_SUPER_MAGIC,
            libc::SYSFS_MAGIC,
            libc::CGROUP_SUPER_MAGIC,
            libc::CGROUP2_SUPER_MAGIC,
            libc::DEBUGFS_MAGIC,
            libc::TRACEFS_MAGIC,
            libc::SECURITYFS_MAGIC,
            libc::BPF_FS_MAGIC,
            CONFIGFS_MAGIC,
        ];
        const SERVED: [i64; 10] = [
            libc::FUSE_SUPER_MAGIC,
            libc::NFS_SUPER_MAGIC,
            libc::SMB_SUPER_MAGIC,
            libc::AFS_SUPER_MAGIC,
            libc::CODA_SUPER_MAGIC,
            libc::AUTOFS_SUPER_MAGIC,
            V9FS_MAGIC,
            CIFS_MAGIC,
            SMB2_MAGIC,
            CEPH_MAGIC,
        ];
        match magic {
            _ if PSEUDO.contains(&magic) => Filesystem::Pseudo,
            _ if SERVED.contains(&magic) => Filesystem::Served,
            libc::OVERLAYFS_SUPER_MAGIC => Filesystem::Overlay,
            _ => Filesystem::Local,
        }
    }
}

#[cfg(test)]
mod tests;
