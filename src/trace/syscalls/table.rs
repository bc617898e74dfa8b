//! The rows: every x86_64 system call that takes a path or changes a file by descriptor, and the
//! few that must be seen to keep track. Numbers up to Linux 7.0.
//!
//! `testdata/path_syscalls.txt` lists all calls of the kernel with a reason for each that has no row,
//! and the tests hold the two against each other. Numbers follow arch/x86/entry/syscalls/syscall_64.tbl,
//! arguments their man pages. A condition (`when`) looks at registers only, so that one place says for
//! the seccomp program and for decoding which calls matter.

use super::custom::{self, Odd};
use super::decode;
use super::{Args, Effect, Special, Sysno};

/// One system call.
#[derive(Debug)]
pub struct SyscallRow {
    /// Its number.
    pub sysno: Sysno,
    /// Its name in the kernel's table.
    pub name: &'static str,
    /// It matters only if one of these holds; always, if there are none.
    pub when: &'static [Test],
    /// What its arguments name.
    pub(super) operands: &'static [Operand],
    /// What it means beyond them.
    pub(super) beyond: Beyond,
}

/// A condition on one argument register, as the seccomp program can test it.
///
/// Flags, commands and modes are 32 bits wide in the kernel: the upper half of the register is noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// The lower half has one of the bits of `mask`.
    Has {
        /// The argument's index.
        arg: u8,
        /// The bits.
        mask: u32,
    },
    /// The lower half is `value`.
    Is {
        /// The argument's index.
        arg: u8,
        /// The value.
        value: u32,
    },
    /// The register, a pointer, is not null.
    NotNull {
        /// The argument's index.
        arg: u8,
    },
}

impl Test {
    /// Whether the condition holds.
    pub fn holds(self, args: &Args) -> bool {
        match self {
            Test::Has { arg, mask } => decode::low(args, arg) & mask != 0,
            Test::Is { arg, value } => decode::low(args, arg) == value,
            Test::NotNull { arg } => args[usize::from(arg)] != 0,
        }
    }
}

/// Whether a call could be judged at its entry, by what its registers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// It only looks.
    Look,
    /// It only looks unless the lower half of register `arg` has a bit of `mask`.
    LookUnless {
        /// The index of the open flags.
        arg: u8,
        /// The flags that change something.
        mask: u32,
    },
    /// It may change something, or must be followed to its exit, or memory says which.
    Stop,
}

impl SyscallRow {
    /// Whether a call with these registers matters at all.
    pub fn applies(&self, args: &Args) -> bool {
        self.when.is_empty() || self.when.iter().any(|test| test.holds(args))
    }

    /// Whether the call could be judged at its entry.
    pub fn lane(&self) -> Lane {
        if !matches!(self.beyond, Beyond::Nothing) {
            return Lane::Stop;
        }
        let mut lane = Lane::Look;
        for operand in self.operands {
            match operand.act {
                Act::Is(Effect::Query | Effect::List) | Act::QueryFlags(..) => {}
                Act::Is(Effect::Open(open)) if open.is_read_only() => {}
                Act::OpenFlags(arg) => lane = Lane::LookUnless { arg, mask: decode::CHANGING },
                _ => return Lane::Stop,
            }
        }
        lane
    }

    /// Whether a call with these registers is one that only looks.
    pub fn is_read_only(&self, args: &Args) -> bool {
        self.applies(args)
            && match self.lane() {
                Lane::Look => true,
                Lane::LookUnless { arg, mask } => !Test::Has { arg, mask }.holds(args),
                Lane::Stop => false,
            }
    }
}

/// One thing that a call names, and what it does to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand {
    pub name: Name,
    pub act: Act,
    pub follow: Follow,
    pub empty: Empty,
    pub null: Null,
}

/// Which arguments name it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name {
    /// A path from the working directory.
    Path(u8),
    /// A directory descriptor and a path.
    At(u8, u8),
    /// A descriptor.
    Descriptor(u8),
    /// A socket address and its length: the path of an AF_UNIX one.
    Address(u8, u8),
}

/// What is done to it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    /// Always this.
    Is(Effect),
    /// An open; the flags are in this register.
    OpenFlags(u8),
    /// An open; `struct open_how` is at this address, its size in that register.
    OpenHow(u8, u8),
    /// A removal; AT_REMOVEDIR may be in this register.
    RemoveFlags(u8),
    /// The old name of a rename; its flags are in this register.
    RenameFromFlags(u8),
    /// The new name of a rename; its flags are in this register.
    RenameToFlags(u8),
    /// A question; the flag in this register asks for a directory only, as O_PATH with O_DIRECTORY does.
    QueryFlags(u8, u32),
    /// Execution, unless AT_EXECVE_CHECK (6.14) in this register only asks for leave.
    ExecuteFlags(u8),
}

/// Whether a symbolic link as the last component is followed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Follow {
    Always,
    Never,
    /// Unless the register has the flag.
    Unless(u8, u32),
    /// If the register has the flag.
    If(u8, u32),
}

/// What an empty path means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Empty {
    /// ENOENT.
    Refused,
    /// The descriptor itself, a link opened with O_PATH; ENOENT with AT_FDCWD (readlinkat).
    Link,
    /// The descriptor itself if the register has the flag, else ENOENT.
    ItselfIf(u8, u32),
}

/// What a null pointer means as a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Null {
    /// EFAULT.
    Fault,
    /// Nothing is named, or a descriptor that is only asked.
    Nothing,
    /// The descriptor itself; EFAULT with AT_FDCWD.
    Descriptor,
    /// The same as an empty path, where that names the descriptor (statx and newfstatat since 6.11).
    Empty,
}

/// What a call means beyond its operands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Beyond {
    Nothing,
    Special(Special),
    /// The argument list is at this address.
    Argv(u8),
    /// What a function of its own makes of it.
    By(Odd),
}

const fn row(number: u32, name: &'static str, operands: &'static [Operand]) -> SyscallRow {
    SyscallRow { sysno: Sysno(number), name, when: &[], operands, beyond: Beyond::Nothing }
}

impl SyscallRow {
    const fn when(mut self, tests: &'static [Test]) -> SyscallRow {
        self.when = tests;
        self
    }

    const fn special(mut self, special: Special) -> SyscallRow {
        self.beyond = Beyond::Special(special);
        self
    }

    const fn argv(mut self, address: u8) -> SyscallRow {
        self.beyond = Beyond::Argv(address);
        self
    }

    const fn by(mut self, odd: Odd) -> SyscallRow {
        self.beyond = Beyond::By(odd);
        self
    }
}

const fn operand(name: Name) -> Operand {
    Operand {
        name,
        act: Act::Is(Effect::Query),
        follow: Follow::Always,
        empty: Empty::Refused,
        null: Null::Fault,
    }
}

/// The path at argument `path`, from the working directory.
const fn path(path: u8) -> Operand {
    operand(Name::Path(path))
}

/// The path at argument `path`, from the directory descriptor `dirfd`.
const fn at(dirfd: u8, path: u8) -> Operand {
    operand(Name::At(dirfd, path))
}

/// The descriptor at argument `fd`.
const fn fd(fd: u8) -> Operand {
    operand(Name::Descriptor(fd))
}

/// The path of an AF_UNIX address.
const fn address(address: u8, len: u8) -> Operand {
    operand(Name::Address(address, len))
}

impl Operand {
    /// The registers that it looks at.
    #[cfg(test)]
    pub(super) fn registers(&self) -> Vec<u8> {
        let mut registers = match self.name {
            Name::Path(arg) | Name::Descriptor(arg) => vec![arg],
            Name::At(first, second) | Name::Address(first, second) => vec![first, second],
        };
        registers.extend(match self.act {
            Act::Is(_) => vec![],
            Act::OpenHow(how, size) => vec![how, size],
            Act::OpenFlags(arg)
            | Act::RemoveFlags(arg)
            | Act::RenameFromFlags(arg)
            | Act::RenameToFlags(arg)
            | Act::QueryFlags(arg, _)
            | Act::ExecuteFlags(arg) => vec![arg],
        });
        if let Follow::Unless(arg, _) | Follow::If(arg, _) = self.follow {
            registers.push(arg);
        }
        if let Empty::ItselfIf(arg, _) = self.empty {
            registers.push(arg);
        }
        registers
    }

    const fn does(mut self, effect: Effect) -> Operand {
        self.act = Act::Is(effect);
        self
    }

    const fn act(mut self, act: Act) -> Operand {
        self.act = act;
        self
    }

    const fn nofollow(mut self) -> Operand {
        self.follow = Follow::Never;
        self
    }

    const fn nofollow_if(mut self, arg: u8, flag: u32) -> Operand {
        self.follow = Follow::Unless(arg, flag);
        self
    }

    const fn follow_if(mut self, arg: u8, flag: u32) -> Operand {
        self.follow = Follow::If(arg, flag);
        self
    }

    const fn empty_if(mut self, arg: u8, flag: u32) -> Operand {
        self.empty = Empty::ItselfIf(arg, flag);
        self
    }

    const fn may_be_link(mut self) -> Operand {
        self.empty = Empty::Link;
        self
    }

    const fn null(mut self, null: Null) -> Operand {
        self.null = null;
        self
    }

    /// AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH are in register `arg`.
    const fn at_flags(self, arg: u8) -> Operand {
        self.nofollow_if(arg, NOFOLLOW).empty_if(arg, EMPTY_PATH)
    }
}

const fn has(arg: u8, mask: u32) -> Test {
    Test::Has { arg, mask }
}

const fn is(arg: u8, value: u32) -> Test {
    Test::Is { arg, value }
}

/// AT_SYMLINK_NOFOLLOW.
const NOFOLLOW: u32 = 0x100;
/// AT_SYMLINK_FOLLOW.
const FOLLOW: u32 = 0x400;
/// AT_EMPTY_PATH.
const EMPTY_PATH: u32 = 0x1000;
/// UMOUNT_NOFOLLOW of umount2.
const UMOUNT_NOFOLLOW: u32 = 0x8;
/// SECCOMP_FILTER_FLAG_NEW_LISTENER.
const NEW_LISTENER: u32 = 0x8;
/// linux/fs.h (Linux 6.9).
const RWF_NOAPPEND: u32 = 0x20;

const RENAME_FROM: Effect = Effect::RenameFrom { exchange: false };
const RENAME_TO: Effect = Effect::RenameTo { exchange: false, noreplace: false };

/// All rows, by number.
pub(super) const ROWS: &[SyscallRow] = &[
    // open(path, flags, mode)
    row(2, "open", &[path(0).act(Act::OpenFlags(1))]),
    // stat(path, statbuf)
    row(4, "stat", &[path(0)]),
    // lstat(path, statbuf)
    row(6, "lstat", &[path(0).nofollow()]),
    // ioctl(fd, op, argp)
    row(16, "ioctl", &[]).when(custom::IOCTLS).by(custom::ioctl),
    // access(path, mode)
    row(21, "access", &[path(0)]),
    // connect(sockfd, addr, addrlen)
    row(42, "connect", &[address(1, 2)]),
    // sendto(sockfd, buf, size, flags, dest_addr, addrlen)
    row(44, "sendto", &[address(4, 5)]).when(&[Test::NotNull { arg: 4 }]),
    // recvmsg(sockfd, msg, flags)
    row(47, "recvmsg", &[]).by(custom::recvmsg),
    // bind(sockfd, addr, addrlen)
    row(49, "bind", &[address(1, 2).does(Effect::MakeNode).nofollow()]),
    // clone(flags, stack, parent_tid, child_tid, tls)
    row(56, "clone", &[]).when(custom::CLONES).by(custom::clone),
    // execve(path, argv, envp)
    row(59, "execve", &[path(0).does(Effect::Execute)]).argv(1),
    // fcntl(fd, cmd, arg)
    row(72, "fcntl", &[fd(0).does(Effect::Rewrite)])
        .when(&[Test::Is { arg: 1, value: libc::F_SETFL.unsigned_abs() }]),
    // truncate(path, length)
    row(76, "truncate", &[path(0).does(Effect::Truncate)]),
    // ftruncate(fd, length)
    row(77, "ftruncate", &[fd(0).does(Effect::Truncate)]),
    // getdents(fd, dirp, count)
    row(78, "getdents", &[fd(0).does(Effect::List)]),
    // chdir(path)
    row(80, "chdir", &[path(0).does(Effect::ChangeDirectory)]),
    // fchdir(fd)
    row(81, "fchdir", &[fd(0).does(Effect::ChangeDirectory)]),
    // rename(oldpath, newpath)
    row(82, "rename", &[path(0).does(RENAME_FROM).nofollow(), path(1).does(RENAME_TO).nofollow()]),
    // mkdir(path, mode)
    row(83, "mkdir", &[path(0).does(Effect::MakeDirectory).nofollow()]),
    // rmdir(path)
    row(84, "rmdir", &[path(0).does(Effect::RemoveDirectory).nofollow()]),
    // creat(path, mode)
    row(85, "creat", &[path(0).does(decode::CREAT)]),
    // link(oldpath, newpath)
    row(86, "link", &[path(0).does(Effect::LinkFrom).nofollow(), path(1).does(Effect::LinkTo).nofollow()]),
    // unlink(path)
    row(87, "unlink", &[path(0).does(Effect::Remove).nofollow()]),
    // symlink(target, linkpath)
    row(88, "symlink", &[path(1).does(Effect::MakeSymlink).nofollow()]),
    // readlink(path, buf, bufsiz)
    row(89, "readlink", &[path(0).nofollow()]),
    // chmod(path, mode)
    row(90, "chmod", &[path(0).does(Effect::Metadata)]),
    // fchmod(fd, mode)
    row(91, "fchmod", &[fd(0).does(Effect::Metadata)]),
    // chown(path, owner, group)
    row(92, "chown", &[path(0).does(Effect::Metadata)]),
    // fchown(fd, owner, group)
    row(93, "fchown", &[fd(0).does(Effect::Metadata)]),
    // lchown(path, owner, group)
    row(94, "lchown", &[path(0).does(Effect::Metadata).nofollow()]),
    // ptrace(op, pid, addr, data): PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE
    row(101, "ptrace", &[]).when(&[is(0, 0), is(0, 16), is(0, 0x4206)]).special(Special::Ptrace),
    row(105, "setuid", &[]).special(Special::Credentials),
    row(106, "setgid", &[]).special(Special::Credentials),
    row(113, "setreuid", &[]).special(Special::Credentials),
    row(114, "setregid", &[]).special(Special::Credentials),
    row(116, "setgroups", &[]).special(Special::Credentials),
    row(117, "setresuid", &[]).special(Special::Credentials),
    row(119, "setresgid", &[]).special(Special::Credentials),
    row(122, "setfsuid", &[]).special(Special::Credentials),
    row(123, "setfsgid", &[]).special(Special::Credentials),
    row(126, "capset", &[]).special(Special::Credentials),
    // utime(path, times)
    row(132, "utime", &[path(0).does(Effect::Metadata)]),
    // mknod(path, mode, dev)
    row(133, "mknod", &[path(0).does(Effect::MakeNode).nofollow()]),
    // uselib(library), gone since Linux 6.16
    row(134, "uselib", &[path(0).does(decode::READ)]),
    // statfs(path, buf)
    row(137, "statfs", &[path(0)]),
    // pivot_root(new_root, put_old)
    row(155, "pivot_root", &[path(0).does(Effect::MountPoint), path(1).does(Effect::MountPoint)])
        .special(Special::Namespace),
    // chroot(path)
    row(161, "chroot", &[path(0).does(Effect::ChangeRoot)]).special(Special::Namespace),
    // acct(filename): the kernel opens the file to append to it; null switches off
    row(163, "acct", &[path(0).does(decode::APPEND).null(Null::Nothing)]),
    // mount(source, target, filesystemtype, mountflags, data)
    row(165, "mount", &[path(1).does(Effect::MountPoint)]).by(custom::mount),
    // umount2(target, flags)
    row(166, "umount2", &[path(0).does(Effect::MountPoint).nofollow_if(1, UMOUNT_NOFOLLOW)])
        .special(Special::Namespace),
    // swapon(path, swapflags)
    row(167, "swapon", &[path(0).does(Effect::MountPoint)]),
    // swapoff(path)
    row(168, "swapoff", &[path(0).does(Effect::MountPoint)]),
    // quotactl(op, special, id, addr)
    row(179, "quotactl", &[path(1).does(Effect::MountPoint).null(Null::Nothing)]).by(custom::quotactl),
    // setxattr(path, name, value, size, flags)
    row(188, "setxattr", &[path(0).does(Effect::Metadata)]),
    // lsetxattr(path, name, value, size, flags)
    row(189, "lsetxattr", &[path(0).does(Effect::Metadata).nofollow()]),
    // fsetxattr(fd, name, value, size, flags)
    row(190, "fsetxattr", &[fd(0).does(Effect::Metadata)]),
    // getxattr(path, name, value, size)
    row(191, "getxattr", &[path(0)]),
    // lgetxattr(path, name, value, size)
    row(192, "lgetxattr", &[path(0).nofollow()]),
    // listxattr(path, list, size)
    row(194, "listxattr", &[path(0)]),
    // llistxattr(path, list, size)
    row(195, "llistxattr", &[path(0).nofollow()]),
    // removexattr(path, name)
    row(197, "removexattr", &[path(0).does(Effect::Metadata)]),
    // lremovexattr(path, name)
    row(198, "lremovexattr", &[path(0).does(Effect::Metadata).nofollow()]),
    // fremovexattr(fd, name)
    row(199, "fremovexattr", &[fd(0).does(Effect::Metadata)]),
    // getdents64(fd, dirp, count)
    row(217, "getdents64", &[fd(0).does(Effect::List)]),
    // utimes(path, times)
    row(235, "utimes", &[path(0).does(Effect::Metadata)]),
    // inotify_add_watch(fd, path, mask)
    row(
        254,
        "inotify_add_watch",
        &[path(1).act(Act::QueryFlags(2, libc::IN_ONLYDIR)).nofollow_if(2, libc::IN_DONT_FOLLOW)],
    ),
    // openat(dirfd, path, flags, mode)
    row(257, "openat", &[at(0, 1).act(Act::OpenFlags(2))]),
    // mkdirat(dirfd, path, mode)
    row(258, "mkdirat", &[at(0, 1).does(Effect::MakeDirectory).nofollow()]),
    // mknodat(dirfd, path, mode, dev)
    row(259, "mknodat", &[at(0, 1).does(Effect::MakeNode).nofollow()]),
    // fchownat(dirfd, path, owner, group, flags)
    row(260, "fchownat", &[at(0, 1).does(Effect::Metadata).at_flags(4)]),
    // futimesat(dirfd, path, times)
    row(261, "futimesat", &[at(0, 1).does(Effect::Metadata).null(Null::Descriptor)]),
    // newfstatat(dirfd, path, statbuf, flags)
    row(262, "newfstatat", &[at(0, 1).at_flags(3).null(Null::Empty)]),
    // unlinkat(dirfd, path, flags)
    row(263, "unlinkat", &[at(0, 1).act(Act::RemoveFlags(2)).nofollow()]),
    // renameat(olddirfd, oldpath, newdirfd, newpath)
    row(264, "renameat", &[at(0, 1).does(RENAME_FROM).nofollow(), at(2, 3).does(RENAME_TO).nofollow()]),
    // linkat(olddirfd, oldpath, newdirfd, newpath, flags)
    row(
        265,
        "linkat",
        &[
            at(0, 1).does(Effect::LinkFrom).follow_if(4, FOLLOW).empty_if(4, EMPTY_PATH),
            at(2, 3).does(Effect::LinkTo).nofollow(),
        ],
    ),
    // symlinkat(target, newdirfd, linkpath)
    row(266, "symlinkat", &[at(1, 2).does(Effect::MakeSymlink).nofollow()]),
    // readlinkat(dirfd, path, buf, bufsiz): an empty path is a link opened with O_PATH
    row(267, "readlinkat", &[at(0, 1).nofollow().may_be_link()]),
    // fchmodat(dirfd, path, mode)
    row(268, "fchmodat", &[at(0, 1).does(Effect::Metadata)]),
    // faccessat(dirfd, path, mode)
    row(269, "faccessat", &[at(0, 1)]),
    // unshare(flags)
    row(272, "unshare", &[]).when(&[has(0, custom::CLONE_NAMESPACE)]).special(Special::Namespace),
    // utimensat(dirfd, path, times, flags)
    row(280, "utimensat", &[at(0, 1).does(Effect::Metadata).at_flags(3).null(Null::Descriptor)]),
    // fallocate(fd, mode, offset, size): FALLOC_FL_KEEP_SIZE alone changes no byte
    row(285, "fallocate", &[fd(0).does(Effect::Rewrite)])
        .when(&[has(1, !libc::FALLOC_FL_KEEP_SIZE.unsigned_abs())]),
    // recvmmsg(sockfd, msgvec, vlen, flags, timeout)
    row(299, "recvmmsg", &[]).by(custom::recvmmsg),
    // fanotify_init(flags, event_f_flags)
    row(300, "fanotify_init", &[]).by(custom::fanotify_init),
    // fanotify_mark(fanotify_fd, flags, mask, dirfd, path)
    row(
        301,
        "fanotify_mark",
        &[at(3, 4)
            .act(Act::QueryFlags(1, libc::FAN_MARK_ONLYDIR))
            .nofollow_if(1, libc::FAN_MARK_DONT_FOLLOW)
            .null(Null::Nothing)],
    ),
    // name_to_handle_at(dirfd, path, handle, mount_id, flags)
    row(303, "name_to_handle_at", &[at(0, 1).follow_if(4, FOLLOW).empty_if(4, EMPTY_PATH)]),
    // open_by_handle_at(mount_fd, handle, flags)
    row(304, "open_by_handle_at", &[]).by(custom::open_by_handle_at),
    // setns(fd, nstype)
    row(308, "setns", &[]).special(Special::Namespace),
    // process_vm_writev(pid, local_iov, liovcnt, remote_iov, riovcnt, flags): what is written may be a
    // mapping of a file that a process outside of the tree has open
    row(311, "process_vm_writev", &[]).special(Special::Unmodelled),
    // renameat2(olddirfd, oldpath, newdirfd, newpath, flags)
    row(
        316,
        "renameat2",
        &[at(0, 1).act(Act::RenameFromFlags(4)).nofollow(), at(2, 3).act(Act::RenameToFlags(4)).nofollow()],
    ),
    // seccomp(operation, flags, args)
    row(317, "seccomp", &[]).when(&[has(1, NEW_LISTENER)]).special(Special::Listener),
    // bpf(cmd, attr, size): BPF_OBJ_PIN, BPF_OBJ_GET
    row(321, "bpf", &[]).when(&[is(0, custom::BPF_OBJ_PIN), is(0, custom::BPF_OBJ_GET)]).by(custom::bpf),
    // execveat(dirfd, path, argv, envp, flags)
    row(322, "execveat", &[at(0, 1).act(Act::ExecuteFlags(4)).at_flags(4)]).argv(2),
    // pwritev2(fd, iov, iovcnt, pos_l, pos_h, flags)
    row(328, "pwritev2", &[fd(0).does(Effect::Rewrite)]).when(&[has(5, RWF_NOAPPEND)]),
    // statx(dirfd, path, flags, mask, statxbuf)
    row(332, "statx", &[at(0, 1).at_flags(2).null(Null::Empty)]),
    // io_uring_setup(entries, params)
    row(425, "io_uring_setup", &[]).special(Special::IoUring),
    // open_tree(dirfd, path, flags)
    row(428, "open_tree", &[at(0, 1).at_flags(2)]).by(custom::open_tree),
    // move_mount(from_dirfd, from_path, to_dirfd, to_path, flags):
    // MOVE_MOUNT_F_SYMLINKS, F_EMPTY_PATH, T_SYMLINKS, T_EMPTY_PATH
    row(
        429,
        "move_mount",
        &[
            at(0, 1).does(Effect::MountPoint).follow_if(4, 0x01).empty_if(4, 0x04),
            at(2, 3).does(Effect::MountPoint).follow_if(4, 0x10).empty_if(4, 0x40),
        ],
    )
    .special(Special::Namespace),
    // fsconfig(fd, cmd, key, value, aux)
    row(431, "fsconfig", &[]).when(custom::FSCONFIGS).by(custom::fsconfig),
    // fsmount(fs_fd, flags, attr_flags): makes a mount that only a descriptor names
    row(432, "fsmount", &[]).special(Special::Namespace),
    // fspick(dirfd, path, flags): FSPICK_SYMLINK_NOFOLLOW, FSPICK_EMPTY_PATH
    row(433, "fspick", &[at(0, 1).does(Effect::MountPoint).nofollow_if(2, 0x2).empty_if(2, 0x8)]),
    // clone3(cl_args, size): its flags are in memory
    row(435, "clone3", &[]).by(custom::clone3),
    // openat2(dirfd, path, how, size)
    row(437, "openat2", &[at(0, 1).act(Act::OpenHow(2, 3))]),
    // pidfd_getfd(pidfd, targetfd, flags)
    row(438, "pidfd_getfd", &[]).special(Special::UnnamedOpen { open: None }),
    // faccessat2(dirfd, path, mode, flags)
    row(439, "faccessat2", &[at(0, 1).at_flags(3)]),
    // mount_setattr(dirfd, path, flags, attr, size)
    row(442, "mount_setattr", &[at(0, 1).does(Effect::MountPoint).at_flags(2)]).special(Special::Namespace),
    // landlock_restrict_self(ruleset_fd, flags): from here on more is refused than credentials say
    row(446, "landlock_restrict_self", &[]).special(Special::Landlock),
    // fchmodat2(dirfd, path, mode, flags)
    row(452, "fchmodat2", &[at(0, 1).does(Effect::Metadata).at_flags(3)]),
    // setxattrat(dirfd, path, at_flags, name, args, size)
    row(463, "setxattrat", &[at(0, 1).does(Effect::Metadata).at_flags(2).null(Null::Empty)]),
    // getxattrat(dirfd, path, at_flags, name, args, size)
    row(464, "getxattrat", &[at(0, 1).at_flags(2).null(Null::Empty)]),
    // listxattrat(dirfd, path, at_flags, list, size)
    row(465, "listxattrat", &[at(0, 1).at_flags(2).null(Null::Empty)]),
    // removexattrat(dirfd, path, at_flags, name)
    row(466, "removexattrat", &[at(0, 1).does(Effect::Metadata).at_flags(2).null(Null::Empty)]),
    // open_tree_attr(dirfd, path, flags, attr, size)
    row(467, "open_tree_attr", &[at(0, 1).at_flags(2)]).by(custom::open_tree),
    // file_getattr(dirfd, path, attr, size, at_flags)
    row(468, "file_getattr", &[at(0, 1).at_flags(4).null(Null::Empty)]),
    // file_setattr(dirfd, path, attr, size, at_flags)
    row(469, "file_setattr", &[at(0, 1).does(Effect::Metadata).at_flags(4).null(Null::Empty)]),
];

/// The newest call that the table knows: rseq_slice_yield of Linux 7.0.
pub const LAST: Sysno = Sysno(471);

/// The numbers that have a meaning in some kernel, with a row or without: up to uprobe, and from
/// pidfd_send_signal on. What is between is free for new calls of this architecture alone.
const KNOWN: [std::ops::RangeInclusive<u32>; 2] = [0..=336, 424..=LAST.0];

/// Whether the kernel call `sysno` was there when the table was made.
///
/// A call that was not is [`Special::Unmodelled`].
pub fn is_known(sysno: Sysno) -> bool {
    KNOWN.iter().any(|stretch| stretch.contains(&sysno.0))
}
