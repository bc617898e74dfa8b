//! The flags of open(2), openat(2) and openat2(2).

use crate::trace::sys::arch::O_LARGEFILE;

/// The flags of an open that only reads, and of which [`OpenFlags`] keeps all but whether the descriptor is closed at an
/// exec.
pub const PLAIN_OPEN: i32 =
    libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC | O_LARGEFILE;

/// The flags of an open that matter here (open(2)).
///
/// `read` and `write` are both false for O_PATH and for access mode 3 (a descriptor for ioctl alone).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct OpenFlags {
    /// O_RDONLY or O_RDWR.
    pub read: bool,
    /// O_WRONLY or O_RDWR.
    pub write: bool,
    /// O_CREAT.
    pub create: bool,
    /// O_EXCL together with O_CREAT.
    pub exclusive: bool,
    /// O_TRUNC, which needs no write access mode.
    pub truncate: bool,
    /// O_APPEND.
    pub append: bool,
    /// O_PATH, which overrides all other flags but O_DIRECTORY and O_NOFOLLOW.
    pub path_only: bool,
    /// O_DIRECTORY.
    pub directory: bool,
    /// O_TMPFILE: the path is the directory, the file has no name.
    pub temporary: bool,
    /// O_NONBLOCK: an open of a FIFO does not wait for its other end.
    pub nonblocking: bool,
    /// The kernel keeps the file to itself, and the result is no descriptor: uselib(2), acct(2).
    pub without_descriptor: bool,
}

impl OpenFlags {
    /// Reads the flags of open(2).
    pub const fn from_raw(flags: u32) -> OpenFlags {
        let flags = flags.cast_signed();
        let path_only = flags & libc::O_PATH != 0;
        let mode = flags & libc::O_ACCMODE;
        let create = !path_only && flags & libc::O_CREAT != 0;
        OpenFlags {
            read: !path_only && (mode == libc::O_RDONLY || mode == libc::O_RDWR),
            write: !path_only && (mode == libc::O_WRONLY || mode == libc::O_RDWR),
            create,
            exclusive: create && flags & libc::O_EXCL != 0,
            truncate: !path_only && flags & libc::O_TRUNC != 0,
            append: !path_only && flags & libc::O_APPEND != 0,
            path_only,
            directory: flags & libc::O_DIRECTORY != 0,
            temporary: !path_only && flags & O_TMPFILE_ALONE != 0,
            nonblocking: !path_only && flags & libc::O_NONBLOCK != 0,
            without_descriptor: false,
        }
    }

    /// Whether the open can change nothing.
    pub fn is_read_only(self) -> bool {
        !(self.write || self.create || self.truncate || self.temporary)
    }
}

/// Whether an open with these flags follows a symlink as the last component.
pub(super) const fn follows(flags: u32) -> bool {
    flags.cast_signed() & libc::O_NOFOLLOW == 0 && !OpenFlags::from_raw(flags).exclusive
}

/// The bit by which O_TMPFILE differs from O_DIRECTORY.
const O_TMPFILE_ALONE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// The flags of an open that may change something: O_WRONLY, O_RDWR and access mode 3, O_CREAT, O_TRUNC,
/// O_TMPFILE.
pub(super) const CHANGING: u32 =
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | O_TMPFILE_ALONE).cast_unsigned();
