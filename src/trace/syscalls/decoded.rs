//! What decoding a syscall yields: which files it names, and what it does to each.

use super::args::low_half;
use super::open_flags::OpenFlags;
use crate::trace::memory::RemoteAddr;

/// The accesses of one syscall: more than two, and thus on the heap, only of a sendmmsg to several AF_UNIX paths.
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
    /// Reads a dirfd from a register.
    pub fn from_raw(word: u64) -> Dirfd {
        match low_half(word).cast_signed() {
            libc::AT_FDCWD => Dirfd::Cwd,
            fd => Dirfd::Fd(fd),
        }
    }
}

/// What an argument of a syscall names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRef {
    /// A path.
    Path {
        /// Where it starts when it is relative.
        dirfd: Dirfd,
        /// Its bytes without the NUL; never empty.
        path: Vec<u8>,
    },
    /// A descriptor (fchmod; a changing `*at` syscall with an empty path and AT_EMPTY_PATH).
    Descriptor(i32),
    /// The calling thread's working directory itself (AT_FDCWD with an empty path).
    WorkingDirectory,
}

/// How a path is resolved: the `resolve` bits of openat2(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Resolve {
    /// RESOLVE_IN_ROOT: the start directory is `/` for this path, its `..` and its absolute symlinks.
    pub in_root: bool,
    /// RESOLVE_BENEATH: EXDEV for whatever leaves the start directory.
    pub beneath: bool,
    /// RESOLVE_NO_SYMLINKS: ELOOP at any symlink, magic links included.
    pub no_symlinks: bool,
    /// RESOLVE_NO_MAGICLINKS: ELOOP at magic links.
    pub no_magiclinks: bool,
    /// RESOLVE_NO_XDEV: EXDEV at mount points.
    pub no_xdev: bool,
    /// Whether the syscall is openat2, which rejects flags that open(2) ignores, and may fail with EXDEV or
    /// EAGAIN depending on what the kernel has cached: only its result shows whether it opened anything.
    pub strict: bool,
}

/// What a syscall may ask of a file beyond what stat(2) tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asked {
    /// What may be another though nobody has changed the file: the access time and not the modification time (statx with
    /// such a mask), or where on the disk its extents are (FS_IOC_FIEMAP, FIBMAP).
    Transient,
    /// Extended attributes: the getxattr and listxattr families.
    Xattrs,
    /// Inode flags: FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, file_getattr.
    InodeFlags,
    /// Holes: lseek with SEEK_DATA or SEEK_HOLE.
    Holes,
}

/// What a syscall does to one file or name, if it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Asks whether it exists or may be used, or for a symlink's target: access, readlink, statfs, inotify_add_watch,
    /// connect, name_to_handle_at.
    Query,
    /// Asks for its attributes, its times among them: the stat family.
    Stat,
    /// Asks for something else of it.
    Ask(Asked),
    /// Opens it.
    Open(OpenFlags),
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
    /// Removes a name that is not a directory's.
    Remove,
    /// Removes an empty directory.
    RemoveDirectory,
    /// Makes a directory.
    MakeDirectory,
    /// mknod, bind, BPF_OBJ_PIN.
    MakeNode,
    /// Makes a symlink.
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
    HardLinkFrom,
    /// The new name of a hard link.
    HardLinkTo,
    /// chmod, chown, utime, setxattr families, file_setattr, FS_IOC_SETFLAGS.
    Metadata,
    /// A mount point, what is mounted there, or a node that swapon or quotactl uses. Of the file only its existence
    /// matters; the path may lead to something else afterwards.
    MountPoint,
}

/// A use of one file or name by a syscall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// What is named.
    pub file: FileRef,
    /// What happens to it if the call succeeds.
    pub effect: Effect,
    /// Whether a symlink as the last component is followed. One before a trailing slash always is.
    ///
    /// False for O_CREAT with O_EXCL, which fails at any symlink.
    pub follow: bool,
    /// How the path is resolved.
    pub resolve: Resolve,
}

/// What a syscall does with a socket address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SocketOperation {
    /// connect.
    Connect,
    /// bind.
    Bind,
    /// sendto, sendmsg, sendmmsg.
    Send,
}

/// The use of a socket address by a syscall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketUse {
    /// What is done with it.
    pub operation: SocketOperation,
    /// The descriptor of the socket.
    pub socket: i32,
    /// Its bytes, as long as the syscall says: at most those of a struct sockaddr_storage.
    pub address: Vec<u8>,
}

/// Why a syscall matters beyond the files that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// io_uring_setup.
    IoUring,
    /// ptrace with TRACEME, ATTACH or SEIZE.
    Ptrace {
        /// The thread that is to be traced; none if it is the caller (TRACEME).
        thread: Option<i32>,
    },
    /// seccomp with SECCOMP_SET_MODE_FILTER, prctl with PR_SET_SECCOMP: a filter is installed.
    Filter {
        /// The address of its program (struct sock_fprog).
        program: RemoteAddr,
        /// Whether it has a listener (SECCOMP_FILTER_FLAG_NEW_LISTENER).
        listener: bool,
    },
    /// prctl with PR_GET_SECCOMP: whether the caller has a filter.
    FilterQuery,
    /// prctl with PR_SET_SYSCALL_USER_DISPATCH: calls of the caller raise SIGSYS, except those from a range of addresses.
    Dispatch,
    /// unshare, setns, clone or clone3 with CLONE_NEWNS or CLONE_NEWUSER; mount family, pivot_root,
    /// chroot: path resolution or the rights of the caller, or of every process, may change.
    Namespace,
    /// clone or clone3 with CLONE_UNTRACED.
    Untraced {
        /// Which of the two: the flags of clone are in its first register, those of clone3 in memory.
        clone3: bool,
        /// Whether it is [`Special::Namespace`] too.
        namespace: bool,
    },
    /// setuid family, capset, lsm_set_self_attr: the caller's rights on files may change.
    Credentials,
    /// landlock_restrict_self: the caller's rights on files change.
    Landlock,
    /// memfd_secret: memory that can hold arguments, and that the recorder can't read.
    SecretMemory,
    /// An ioctl that lets a process evade rules: TIOCSTI and TIOCLINUX put input into its terminal, and with
    /// USERFAULTFD_IOC_NEW it handles page faults itself.
    Unjudgeable,
    /// open_by_handle_at, XFS_IOC_OPEN_BY_HANDLE, pidfd_getfd: the result is a descriptor of a file that no
    /// argument names; at the exit `/proc/TID/fd/N` and `fdinfo/N` tell which, and how it is open.
    UnnamedOpen {
        /// The flags, where the syscall has any. What they change is changed before the path is known.
        open: Option<OpenFlags>,
    },
    /// recvmsg, recvmmsg with room for control messages, which may bring descriptors.
    Received {
        /// The message, or the array of them.
        messages: RemoteAddr,
        /// For how many messages there is room.
        room: u64,
    },
    /// listen: a socket without an address gets one.
    Listen {
        /// The socket.
        fd: i32,
    },
    /// chmod family, with a mode that does not let the owner read a file or search a directory.
    Closes {
        /// The mode.
        mode: u32,
    },
    /// A number that the table does not know, or a syscall that is only counted.
    Unmodelled,
    /// A syscall of another ABI: of 32 bits, x32.
    Compat,
}

/// What a syscall names and does.
///
/// The default, nothing at all, stands for one that the kernel rejects before it resolves any path: for an
/// empty path where none is allowed, or a bad structure size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DecodedSyscall {
    /// In the order of the arguments.
    pub accesses: Accesses,
    /// The socket addresses, those of AF_UNIX paths included.
    pub sockets: Vec<SocketUse>,
    /// What else matters.
    pub special: Option<Special>,
    /// For execve and execveat: where argv is.
    pub argv: Option<RemoteAddr>,
}

impl DecodedSyscall {
    /// Whether it only asks for what is there, opens nothing, and uses no socket address.
    pub fn asks_only(&self) -> bool {
        self.sockets.is_empty() && self.accesses.iter().all(Access::asks_only)
    }

    /// Whether the syscall is read-only: it can change nothing, and its entry shows what it does. That
    /// excludes those whose result matters (bind, chdir, openat2).
    pub fn is_read_only(&self) -> bool {
        self.special.is_none()
            && self.accesses.iter().all(Access::is_read_only)
            && self.sockets.iter().all(|used| used.operation != SocketOperation::Bind)
    }
}

impl Access {
    /// Whether it only asks for what is there, and opens nothing.
    fn asks_only(&self) -> bool {
        matches!(self.effect, Effect::Query | Effect::Stat | Effect::Ask(_))
    }

    /// Whether this access is read-only; see [`DecodedSyscall::is_read_only`].
    pub fn is_read_only(&self) -> bool {
        match self.effect {
            Effect::Query | Effect::Stat | Effect::Ask(_) => true,
            Effect::Open(open) => open.is_read_only() && !open.without_descriptor && !self.resolve.strict,
            _ => false,
        }
    }
}
