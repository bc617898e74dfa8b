//! What each system call of the table means: which of its arguments name a path, and what the
//! call does to it. Pure: numbers and bytes in, [`DecodedSyscall`] out.
//!
//! `table.rs` holds the rows, `decode.rs` turns a row and six words into accesses (`odd.rs` where no
//! operand says it),
//! [`filter`](super::filter) turns the rows into the seccomp program, and
//! [`memory`](super::memory) is where strings and structures come from.

use super::memory::RemoteAddr;

mod custom;
mod decode;
mod table;
#[cfg(test)]
mod tests;

pub use decode::decode;
pub use table::{LAST, Lane, SyscallRow, Test, is_known};

use table::ROWS;

/// The number of a system call, x86_64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sysno(pub u32);

impl Sysno {
    /// What the register of a held call says; none where no call has such a number.
    pub fn from_register(number: u64) -> Option<Sysno> {
        u32::try_from(number).ok().map(Sysno)
    }
}

/// The six argument registers of a call, in the order of its man page.
pub type Args = [u64; 6];

/// The accesses of one call: never more than two, so never on the heap.
pub type Accesses = smallvec::SmallVec<[Access; 2]>;

/// Where a relative path starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dirfd {
    /// The calling thread's working directory (AT_FDCWD).
    Cwd,
    /// One of its descriptors. An absolute path makes it meaningless, as in the kernel.
    Fd(i32),
}

impl Dirfd {
    /// Reads a dirfd from a register. The kernel takes an `int`: the upper half is noise.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "the register holds an int"
    )]
    pub fn from_raw(word: u64) -> Dirfd {
        match word as u32 as i32 {
            libc::AT_FDCWD => Dirfd::Cwd,
            fd => Dirfd::Fd(fd),
        }
    }
}

/// What a call names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRef {
    /// A path.
    Path {
        /// Where it starts when it is relative.
        dirfd: Dirfd,
        /// Its bytes without the NUL; never empty.
        path: Vec<u8>,
    },
    /// A descriptor (fchmod; a changing `*at` call with an empty path and AT_EMPTY_PATH).
    Descriptor(i32),
    /// The calling thread's working directory itself (AT_FDCWD with an empty path).
    WorkingDirectory,
}

/// How a path is resolved: the `resolve` bits of openat2(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Resolve {
    /// RESOLVE_IN_ROOT: the start directory is `/` for this path, its `..` and its absolute links.
    pub in_root: bool,
    /// RESOLVE_BENEATH: EXDEV for whatever leaves the start directory.
    pub beneath: bool,
    /// RESOLVE_NO_SYMLINKS: ELOOP at any symbolic link, magic links included.
    pub no_symlinks: bool,
    /// RESOLVE_NO_MAGICLINKS: ELOOP at magic links.
    pub no_magiclinks: bool,
    /// RESOLVE_NO_XDEV: EXDEV at mount points.
    pub no_xdev: bool,
    /// Whether the call is openat2, which refuses flags that open(2) ignores and answers EXDEV or
    /// EAGAIN by what the kernel has cached: only its result tells whether it opened anything.
    pub strict: bool,
}

/// The flags of an open that matter here.
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
    /// O_EXCL beside O_CREAT.
    pub exclusive: bool,
    /// O_TRUNC, which needs no write access mode.
    pub truncate: bool,
    /// O_APPEND.
    pub append: bool,
    /// O_PATH, which beats all other flags but O_DIRECTORY and O_NOFOLLOW.
    pub path_only: bool,
    /// O_DIRECTORY.
    pub directory: bool,
    /// O_TMPFILE: the path is the directory, the file has no name.
    pub temporary: bool,
    /// O_NONBLOCK: it waits for nobody at the other end of a FIFO.
    pub nonblocking: bool,
}

impl OpenFlags {
    /// Whether the open can change nothing.
    pub fn is_read_only(self) -> bool {
        !(self.write || self.create || self.truncate || self.temporary)
    }
}

/// What a call does to one place, if it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Asks for metadata, existence or a link's target: stat, access, readlink, getxattr, statfs,
    /// inotify_add_watch, connect, name_to_handle_at.
    Query,
    /// Opens it.
    Open(OpenFlags),
    /// Lists a directory: getdents.
    List,
    /// Makes it the working directory.
    ChangeDirectory,
    /// Makes it the root.
    ChangeRoot,
    /// Executes it.
    Execute,
    /// Truncates or extends it.
    Truncate,
    /// May overwrite what is there though the descriptor was opened for appending: fcntl with F_SETFL,
    /// fallocate, pwritev2 with RWF_NOAPPEND.
    Rewrite,
    /// Removes a name that is no directory's.
    Remove,
    /// Removes an empty directory.
    RemoveDirectory,
    /// Makes a directory.
    MakeDirectory,
    /// mknod, bind, BPF_OBJ_PIN.
    MakeNode,
    /// Makes a symbolic link.
    MakeSymlink,
    /// The old name of a rename.
    RenameFrom {
        /// RENAME_EXCHANGE: both names stay.
        exchange: bool,
    },
    /// The new name of a rename.
    RenameTo {
        /// RENAME_EXCHANGE: both names stay.
        exchange: bool,
        /// RENAME_NOREPLACE: EEXIST if it exists.
        noreplace: bool,
    },
    /// The old name of a hard link.
    LinkFrom,
    /// The new name of a hard link.
    LinkTo,
    /// chmod, chown, utime, setxattr families, file_setattr, FS_IOC_SETFLAGS.
    Metadata,
    /// A directory that something is mounted on or unmounted from, what is mounted there, or a node
    /// that swapon or quotactl uses: existence.
    MountPoint,
}

/// One place and what happens to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// What is named.
    pub file: FileRef,
    /// What happens to it if the call succeeds.
    pub effect: Effect,
    /// Whether a symbolic link as the last component is followed (a trailing slash always follows).
    ///
    /// False for O_CREAT with O_EXCL, which refuses any link.
    pub follow: bool,
    /// How the path is resolved.
    pub resolve: Resolve,
}

/// A call that matters beyond the paths it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// io_uring_setup.
    IoUring,
    /// ptrace with TRACEME, ATTACH or SEIZE.
    Ptrace,
    /// seccomp with SECCOMP_FILTER_FLAG_NEW_LISTENER.
    Listener,
    /// unshare, setns, clone or clone3 with CLONE_NEWNS or CLONE_NEWUSER; mount family, pivot_root,
    /// chroot: the name resolution or the rights of the caller, or of all, may change.
    Namespace,
    /// clone or clone3 with CLONE_UNTRACED.
    Untraced {
        /// Which of the two: clone has its flags in the first register, clone3 in memory there.
        clone3: bool,
        /// Whether it is [`Special::Namespace`] too.
        namespace: bool,
    },
    /// setuid family, capset: the caller's rights on files may change.
    Credentials,
    /// landlock_restrict_self: the caller's rights on files change.
    Landlock,
    /// open_by_handle_at, XFS_IOC_OPEN_BY_HANDLE, pidfd_getfd: the result is a descriptor of a file that the call does not
    /// name; at the exit `/proc/TID/fd/N` and `fdinfo/N` tell which, and how it is open.
    UnnamedOpen {
        /// The flags, where the call has them. Those that change take effect before the path is known.
        open: Option<OpenFlags>,
    },
    /// recvmsg, recvmmsg with room for control messages: those that came may bring descriptors.
    Received {
        /// The message, or the array of them.
        messages: RemoteAddr,
        /// Whether it is an array, of as many as the call returns.
        many: bool,
    },
    /// A number that the table does not know, or a call that is only counted.
    Unmodelled,
    /// A call of another ABI: i386 by int 0x80, x32. Decoding never yields it: it is seen by the
    /// architecture of the stop and by bit 30 of the number.
    Compat,
}

/// What a call means.
///
/// The default, nothing at all, is what a call gets that the kernel refuses before it looks at any
/// path: an empty path where none may be, a bad size of a structure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DecodedSyscall {
    /// At most two places, in the order of the arguments.
    pub accesses: Accesses,
    /// What else matters.
    pub special: Option<Special>,
    /// For execve and execveat: where argv is.
    pub argv: Option<RemoteAddr>,
}

impl DecodedSyscall {
    /// Whether the call only looks, so that it can be judged at its entry; what can change anything,
    /// and what is judged by its result (changing directory, openat2), does not.
    pub fn is_read_only(&self) -> bool {
        self.special.is_none() && self.accesses.iter().all(Access::is_read_only)
    }
}

impl Access {
    /// Whether this access only looks; see [`DecodedSyscall::is_read_only`].
    pub fn is_read_only(&self) -> bool {
        match self.effect {
            Effect::Query | Effect::List => true,
            Effect::Open(open) => open.is_read_only() && !self.resolve.strict,
            _ => false,
        }
    }
}

/// All rows, by number: what the README lists and the seccomp program is made of.
pub fn rows() -> &'static [SyscallRow] {
    ROWS
}

const NONE: u8 = u8::MAX;

/// Where each number's row is in [`ROWS`].
static INDEX: [u8; 512] = {
    assert!(ROWS.len() < NONE as usize);
    let mut index = [NONE; 512];
    let mut at: u8 = 0;
    while (at as usize) < ROWS.len() {
        index[ROWS[at as usize].sysno.0 as usize] = at;
        at += 1;
    }
    index
};

/// The row of a call, if it has one.
pub fn row(sysno: Sysno) -> Option<&'static SyscallRow> {
    let at = INDEX.get(usize::try_from(sysno.0).ok()?)?;
    ROWS.get(usize::from(*at))
}
