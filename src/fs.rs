//! Opens and stats a path where any type of file may be: nothing blocks, no final symlink is followed, and
//! no access time is updated if the kernel lets us avoid it. Also finds the home directory of a user.
//!
//! Every module may use this one, and it uses none.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, makedev, statx};
use rustix::io::Errno;

/// What the kernel's clock may stand still between two changes of a file (CONFIG_HZ=100), twice.
pub const CLOCK_STEP: i64 = 20_000_000;

/// The same where a filesystem keeps whole seconds, or as FAT does, every other one.
pub const COARSE_STEP: i64 = 2_000_000_000;

/// An object, and the mount that it was reached by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// The mount.
    pub mount: u64,
    /// The device and the inode number.
    pub inode: (u64, u64),
}

impl ObjectId {
    /// What is at a path, or what a magic link stands for.
    pub fn of(path: &[u8]) -> Option<ObjectId> {
        ObjectId::at(CWD, path)
    }

    /// The same from a directory (statx(2), Linux 5.8).
    pub fn at(directory: BorrowedFd<'_>, path: &[u8]) -> Option<ObjectId> {
        ObjectId::found(directory, path, AtFlags::empty())
    }

    /// What has a name, if that is a symlink, too.
    pub fn named(path: &[u8]) -> Option<ObjectId> {
        ObjectId::found(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn found(directory: BorrowedFd<'_>, path: &[u8], flags: AtFlags) -> Option<ObjectId> {
        let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(directory, path, flags, StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
        let has_mount = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
        let device = makedev(found.stx_dev_major, found.stx_dev_minor);
        has_mount.then_some(ObjectId { mount: found.stx_mnt_id, inode: (device, found.stx_ino) })
    }
}

/// The most bytes of one write(2) by [`InPieces`].
const PIECE: usize = 256 << 10;

/// Writes to a file in pieces that stay in the processor's cache: 16 MiB by one write(2) take up to ten times as long
/// on ext4, whose folios then are as large (Linux 6.18).
#[derive(Debug)]
pub struct InPieces<F>(pub F);

impl<F: Write> Write for InPieces<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The home directory of a user by /etc/passwd, else by what getent(1) finds: the name services are shared objects, which
/// a static program can't load.
pub fn home_of(uid: u32) -> Option<PathBuf> {
    let uid = uid.to_string();
    let of_line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let home = fields.get(5).filter(|home| home.starts_with(b"/"))?;
        (fields[2] == uid.as_bytes()).then(|| PathBuf::from(OsStr::from_bytes(home)))
    };
    let find = |entries: &[u8]| entries.split(|byte| *byte == b'\n').find_map(of_line);
    std::fs::read("/etc/passwd").ok().and_then(|entries| find(&entries)).or_else(|| {
        let getent = Command::new("getent").args(["passwd", &uid]).stdin(Stdio::null()).output();
        find(&getent.ok()?.stdout)
    })
}

/// Opens the regular file at `path` for reading; anything else there is `InvalidInput`.
///
/// O_NOFOLLOW and O_NONBLOCK, so that neither a symlink nor a FIFO is opened (open(2)); O_NOATIME
/// where we own the file.
pub fn open_regular(path: &[u8]) -> io::Result<File> {
    open_if_regular(path, OFlags::NOFOLLOW)
}

/// Opens the regular file that `link`, a magic link of procfs, stands for. It may have no name; anything else
/// there is `InvalidInput`.
pub fn open_regular_behind(link: &[u8]) -> io::Result<File> {
    open_if_regular(link, OFlags::empty())
}

/// Waits until the writes to a regular file are done that have set its modification time already: write(2) sets it before
/// it copies the bytes, and a read in between finds the old ones with the new time.
///
/// A seek for data behind the end finds nothing, moves nothing, and takes the lock that a write holds (ext4, btrfs, tmpfs
/// and FUSE, as of Linux 6.18; on XFS a read takes it).
pub fn wait_for_writes(path: &[u8]) {
    if let Ok(file) = open_regular(path) {
        let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(i64::MAX as u64));
    }
}

/// Opens a regular file that is open already, with an offset of its own.
pub fn reopen(file: &File) -> io::Result<File> {
    open_regular_behind(format!("/proc/self/fd/{}", file.as_raw_fd()).as_bytes())
}

fn open_if_regular(path: &[u8], flags: OFlags) -> io::Result<File> {
    let fd = open_quietly(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(File::from(fd))
}

/// Opens `path` for reading, with O_NOATIME where we own the file.
pub(crate) fn open_quietly(path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(CWD, path, flags, Mode::empty()),
        other => other,
    }
}

/// How a directory is opened: O_PATH needs no permission on it (open(2)).
pub const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the directory at an absolute, normal path, with O_PATH, if no symlink leads there.
pub fn open_directory(path: &[u8]) -> Result<OwnedFd, Errno> {
    open_directory_from(CWD, path, ResolveFlags::NO_SYMLINKS)
}

/// Opens the directory at a path beneath `root`, with O_PATH, if no symlink leads there.
pub fn open_directory_beneath(root: BorrowedFd<'_>, relative: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_directory_from(root, relative, resolve)
}

fn open_directory_from(root: BorrowedFd<'_>, path: &[u8], resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    loop {
        return match rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), resolve) {
            // A rename elsewhere raced with the walk (openat2(2)).
            Err(Errno::AGAIN) => continue,
            // No openat2 before Linux 5.6, filters of containers that don't know it, and no path beyond PATH_MAX.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => walk(root, path),
            other => other,
        };
    }
}

/// The same, one component at a time.
fn walk(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let open = |from: BorrowedFd<'_>, name: &[u8]| rustix::fs::openat(from, name, DIRECTORY, Mode::empty());
    let mut at = if path.starts_with(b"/") { Some(open(root, b"/")?) } else { None };
    for component in path.split(|byte| *byte == b'/').skip(usize::from(at.is_some())) {
        match component {
            // The root itself.
            b"" if path == b"/" => {}
            b"" | b"." | b".." => return Err(Errno::INVAL),
            _ => at = Some(open(at.as_ref().map_or(root, |fd| fd.as_fd()), component)?),
        }
    }
    at.ok_or(Errno::INVAL)
}

/// The directory part of an absolute, normal path; none for `/`.
pub fn parent_of(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    match (slash, path.len()) {
        (0, 1) => None,
        (0, _) => Some(b"/"),
        _ => Some(&path[..slash]),
    }
}

/// What follows the last slash of a path.
pub fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The path of a name in a directory.
pub fn child_of(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory == b"/" { b"" } else { b"/" };
    [directory, separator, name].concat()
}

/// The absolute path of these components; `/` without any.
pub fn joined<C: AsRef<[u8]>>(components: impl IntoIterator<Item = C>) -> Vec<u8> {
    let mut path = Vec::new();
    for component in components {
        path.push(b'/');
        path.extend_from_slice(component.as_ref());
    }
    if path.is_empty() { b"/".to_vec() } else { path }
}

/// Whether a name or path matches a pattern, in which one `*` stands for any characters.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else { return pattern == name };
    name.strip_prefix(&pattern[..star]).is_some_and(|rest| rest.ends_with(&pattern[star + 1..]))
}

/// What stat(2) says of a file.
pub type FileStat = rustix::fs::Stat;

/// Whether `stat` is of a regular file.
pub fn is_regular(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// What lstat(2) says of `path`, none where nothing is.
pub fn lstat(path: &[u8]) -> io::Result<Option<FileStat>> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A lock that a process holds (proc_locks(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock {
    /// The process; not positive for a lock of an open file description.
    pub process: i32,
    /// The inode number of the file. The device is none that stat(2) tells of on btrfs and overlayfs.
    pub inode: u64,
}

/// All locks that are held, as far as this PID namespace shows them.
pub fn locks() -> io::Result<Vec<HeldLock>> {
    let text = std::fs::read_to_string("/proc/locks")?;
    let lock = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1).peekable();
        // Somebody waits for it.
        if words.peek() == Some(&"->") {
            return None;
        }
        let process = words.nth(3)?.parse().ok()?;
        let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
        Some(HeldLock { process, inode })
    };
    Ok(text.lines().filter_map(lock).collect())
}

/// What lstat(2) says of `path` if no symlink is above it; where nothing is there, what it says of the deepest
/// directory above it, or of the symlink in the place of one.
pub fn lstat_beneath_directories(path: &[u8]) -> io::Result<Result<FileStat, FileStat>> {
    let mut above = rustix::fs::lstat("/")?;
    let mut parents: Vec<&[u8]> = std::iter::successors(parent_of(path), |path| parent_of(path)).collect();
    parents.pop();
    for path in parents.into_iter().rev().chain([path]) {
        if FileType::from_raw_mode(above.st_mode) != FileType::Directory {
            return Ok(Err(above));
        }
        match lstat(path)? {
            Some(stat) => above = stat,
            None => return Ok(Err(above)),
        }
    }
    Ok(Ok(above))
}

/// When a file was modified last; none if no calendar has that time.
pub fn modification_time(stat: &FileStat) -> Option<jiff::Timestamp> {
    jiff::Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).ok()?).ok()
}

/// Tells two states of a file apart, as far as metadata can: any write moves ctime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Device of the filesystem.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// `st_size` in bytes.
    pub size: u64,
    /// The modification time, in seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// The time of the last change of the inode, in seconds and nanoseconds.
    pub ctime: (i64, i64),
}

impl From<&Metadata> for Signature {
    fn from(metadata: &Metadata) -> Signature {
        Signature {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl From<&FileStat> for Signature {
    fn from(stat: &FileStat) -> Signature {
        // Nanoseconds are below 10^9.
        let nanoseconds = |number| i64::try_from(number).unwrap_or_default();
        Signature {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: size(stat),
            mtime: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            ctime: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
        }
    }
}

impl Signature {
    /// When the inode was changed last, in nanoseconds since 1970.
    pub fn changed_at(&self) -> i128 {
        i128::from(self.ctime.0) * 1_000_000_000 + i128::from(self.ctime.1)
    }

    /// Whether the file was changed so shortly ago that one more change may get the same time.
    pub fn is_recent(&self) -> bool {
        let step = if self.ctime.1 == 0 { COARSE_STEP } else { CLOCK_STEP };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX) - self.changed_at();
        // A file server's clock may be ahead of ours.
        age.abs() < i128::from(step)
    }
}

/// The size of a file, which `st_size` keeps as a signed number.
pub fn size(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn write_that_has_set_the_time_is_waited_for() {
        const SIZE: usize = 64 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().as_os_str().as_bytes();
        std::fs::write(file.path(), vec![b'o'; SIZE]).unwrap();
        let modified = || file.as_file().metadata().unwrap().modified().unwrap();
        let before = modified();
        std::thread::scope(|scope| {
            scope.spawn(|| file.as_file().write_all_at(&vec![b'n'; SIZE], 0).unwrap());
            while modified() == before {
                std::thread::yield_now();
            }
            wait_for_writes(path);
            let mut end = [0; 1];
            file.as_file().read_exact_at(&mut end, SIZE as u64 - 1).unwrap();
            assert_eq!(end, *b"n");
        });
    }

    #[test]
    fn walk_follows_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/deep")).unwrap();
        std::os::unix::fs::symlink("real", base.join("within")).unwrap();
        std::os::unix::fs::symlink(base.join("real"), base.join("absolute")).unwrap();
        let root = File::open(&base).unwrap();
        let bytes = |path: &str| base.join(path).into_os_string().into_encoded_bytes();
        for path in ["absolute", "within", "within/deep", "none"] {
            for found in
                [walk(root.as_fd(), path.as_bytes()), walk(CWD, &bytes(path)), open_directory(&bytes(path))]
            {
                assert!(matches!(found, Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT)), "{path}");
            }
        }
        for found in [walk(root.as_fd(), b"real/deep"), walk(CWD, &bytes("real/deep"))] {
            let found = rustix::fs::fstat(found.unwrap()).unwrap();
            assert_eq!(found.st_ino, std::fs::metadata(base.join("real/deep")).unwrap().ino());
        }
        assert!(walk(CWD, b"/").is_ok());
        for path in ["..", "", "real/", "real/../real"] {
            assert_eq!(walk(root.as_fd(), path.as_bytes()).err(), Some(Errno::INVAL), "{path}");
        }
        assert!(open_directory_beneath(root.as_fd(), b"../outside").is_err());
    }

    #[test]
    fn home_is_that_of_the_user_database() {
        let uid = rustix::process::getuid().as_raw();
        let entries = Command::new("getent").args(["passwd", &uid.to_string()]).output().unwrap();
        let entry = String::from_utf8(entries.stdout).unwrap();
        assert_eq!(home_of(uid), entry.trim_end().split(':').nth(5).map(PathBuf::from));
        assert_eq!(home_of(3_999_999_999), None);
    }
}
