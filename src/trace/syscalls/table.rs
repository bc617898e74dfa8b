//! The table: a row for every system call that names a file by path, changes one by descriptor, or changes what later
//! ones mean, up to Linux 7.0. Those of one architecture alone are among them.
//!
//! Filter, decoding and the choice between notification and ptrace-stop are all derived from it. A condition
//! (`when`) reads registers only, so that the seccomp program can test it.
//!
//! CONTRIBUTING.md, "Add a system call", lists what belongs to a new row.

use super::args::Sysno;
use super::custom;
use super::decoded::{Asked, Effect, SocketOperation, Special};
use super::numbers::{Index, NONE, index, number};
use super::open_flags::OpenFlags;
use super::row::{Act, Condition, Null, SyscallRow, address, at, fd, path, row};
use super::socket;

const fn has(arg: u8, mask: u32) -> Condition {
    Condition::Has { arg, mask }
}

const fn is(arg: u8, value: u32) -> Condition {
    Condition::Is { arg, value }
}

/// sendmsg, by which the launch passes the listener of the filter itself.
pub const SENDMSG: Sysno = Sysno(number("sendmsg"));

/// AT_SYMLINK_FOLLOW.
const FOLLOW: u32 = 0x400;
/// AT_EMPTY_PATH.
const EMPTY_PATH: u32 = 0x1000;
/// UMOUNT_NOFOLLOW of umount2.
const UMOUNT_NOFOLLOW: u32 = 0x8;
/// RWF_NOAPPEND of pwritev2 (linux/fs.h, Linux 6.9).
const RWF_NOAPPEND: u32 = 0x20;

/// An open with these flags by the kernel, which keeps the file to itself.
const fn opened(flags: i32) -> Effect {
    let flags = OpenFlags::from_raw(flags.cast_unsigned());
    Effect::Open(OpenFlags { without_descriptor: true, ..flags })
}

const CREAT: Effect =
    Effect::Open(OpenFlags::from_raw((libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC).cast_unsigned()));
const XATTRS: Effect = Effect::Ask(Asked::Xattrs);
const RENAME_FROM: Effect = Effect::RenameFrom { exchange: false };
const RENAME_TO: Effect = Effect::RenameTo { exchange: false, noreplace: false };

/// All rows, by the number on x86_64.
const ROWS: &[SyscallRow] = &[
    // open(path, flags, mode)
    row("open", &[path(0).act(Act::OpenFlags(1))]),
    // stat(path, statbuf)
    row("stat", &[path(0).does(Effect::Stat)]),
    // lstat(path, statbuf)
    row("lstat", &[path(0).does(Effect::Stat).nofollow()]),
    // lseek(fd, offset, whence): SEEK_DATA, SEEK_HOLE
    row("lseek", &[fd(0).does(Effect::Ask(Asked::Holes))])
        .when(&[is(2, libc::SEEK_DATA.unsigned_abs()), is(2, libc::SEEK_HOLE.unsigned_abs())])
        .for_recall(),
    // ioctl(fd, op, argp)
    row("ioctl", &[]).when(custom::IOCTLS).custom(custom::ioctl),
    // access(path, mode)
    row("access", &[path(0)]),
    // connect(sockfd, addr, addrlen)
    row("connect", &[address(SocketOperation::Connect, 1, 2)]),
    // sendto(sockfd, buf, size, flags, dest_addr, addrlen)
    row("sendto", &[address(SocketOperation::Send, 4, 5)]).when(&[Condition::NotNull { arg: 4 }]),
    // sendmsg(sockfd, msg, flags)
    row("sendmsg", &[]).query(socket::sendmsg),
    // recvmsg(sockfd, msg, flags)
    row("recvmsg", &[]).custom(custom::recvmsg),
    // bind(sockfd, addr, addrlen)
    row("bind", &[address(SocketOperation::Bind, 1, 2).does(Effect::MakeNode).nofollow()]),
    // listen(sockfd, backlog)
    row("listen", &[]).custom(custom::listen),
    // clone(flags, stack, parent_tid, child_tid, tls)
    row("clone", &[]).when(custom::CLONES).custom(custom::clone),
    // execve(path, argv, envp)
    row("execve", &[path(0).does(Effect::Execute)]).argv(1),
    // fcntl(fd, cmd, arg)
    row("fcntl", &[fd(0).does(Effect::Rewrite)])
        .when(&[Condition::Is { arg: 1, value: libc::F_SETFL.unsigned_abs() }]),
    // truncate(path, length)
    row("truncate", &[path(0).does(Effect::Truncate)]),
    // ftruncate(fd, length)
    row("ftruncate", &[fd(0).does(Effect::Truncate)]),
    // chdir(path)
    row("chdir", &[path(0).does(Effect::ChangeDirectory)]),
    // fchdir(fd)
    row("fchdir", &[fd(0).does(Effect::ChangeDirectory)]),
    // rename(oldpath, newpath)
    row("rename", &[path(0).does(RENAME_FROM).nofollow(), path(1).does(RENAME_TO).nofollow()]),
    // mkdir(path, mode)
    row("mkdir", &[path(0).does(Effect::MakeDirectory).nofollow()]),
    // rmdir(path)
    row("rmdir", &[path(0).does(Effect::RemoveDirectory).nofollow()]),
    // creat(path, mode)
    row("creat", &[path(0).does(CREAT)]),
    // link(oldpath, newpath)
    row(
        "link",
        &[path(0).does(Effect::HardLinkFrom).nofollow(), path(1).does(Effect::HardLinkTo).nofollow()],
    ),
    // unlink(path)
    row("unlink", &[path(0).does(Effect::Remove).nofollow()]),
    // symlink(target, linkpath)
    row("symlink", &[path(1).does(Effect::MakeSymlink).nofollow()]),
    // readlink(path, buf, bufsiz)
    row("readlink", &[path(0).nofollow()]),
    // chmod(path, mode)
    row("chmod", &[path(0).does(Effect::Metadata)]).custom(custom::chmod),
    // fchmod(fd, mode)
    row("fchmod", &[fd(0).does(Effect::Metadata)]).custom(custom::chmod),
    // chown(path, owner, group)
    row("chown", &[path(0).does(Effect::Metadata)]),
    // fchown(fd, owner, group)
    row("fchown", &[fd(0).does(Effect::Metadata)]),
    // lchown(path, owner, group)
    row("lchown", &[path(0).does(Effect::Metadata).nofollow()]),
    // ptrace(op, pid, addr, data): PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE
    row("ptrace", &[])
        .when(&[is(0, custom::TRACEME), is(0, custom::ATTACH), is(0, custom::SEIZE)])
        .custom(custom::ptrace),
    row("setuid", &[]).special(Special::Credentials),
    row("setgid", &[]).special(Special::Credentials),
    row("setreuid", &[]).special(Special::Credentials),
    row("setregid", &[]).special(Special::Credentials),
    row("setgroups", &[]).special(Special::Credentials),
    row("setresuid", &[]).special(Special::Credentials),
    row("setresgid", &[]).special(Special::Credentials),
    row("setfsuid", &[]).special(Special::Credentials),
    row("setfsgid", &[]).special(Special::Credentials),
    row("capset", &[]).special(Special::Credentials),
    // utime(path, times)
    row("utime", &[path(0).does(Effect::Metadata)]),
    // mknod(path, mode, dev)
    row("mknod", &[path(0).does(Effect::MakeNode).nofollow()]),
    // uselib(library), gone since Linux 6.16
    row("uselib", &[path(0).does(opened(libc::O_RDONLY))]),
    // statfs(path, buf)
    row("statfs", &[path(0)]),
    // pivot_root(new_root, put_old)
    row("pivot_root", &[path(0).does(Effect::MountPoint), path(1).does(Effect::MountPoint)])
        .special(Special::Namespace),
    // prctl(option, mode, program)
    row("prctl", &[])
        .when(&[is(0, custom::GET_SECCOMP), is(0, custom::SET_SECCOMP), is(0, custom::SET_DISPATCH)])
        .custom(custom::prctl),
    // chroot(path)
    row("chroot", &[path(0).does(Effect::ChangeRoot)]).special(Special::Namespace),
    // acct(filename): the kernel opens the file to append to it; null turns accounting off
    row("acct", &[path(0).does(opened(libc::O_WRONLY | libc::O_APPEND)).null(Null::Nothing)]),
    // mount(source, target, filesystemtype, mountflags, data)
    row("mount", &[path(1).does(Effect::MountPoint)]).custom(custom::mount),
    // umount2(target, flags)
    row("umount2", &[path(0).does(Effect::MountPoint).nofollow_if(1, UMOUNT_NOFOLLOW)])
        .special(Special::Namespace),
    // swapon(path, swapflags)
    row("swapon", &[path(0).does(Effect::MountPoint)]),
    // swapoff(path)
    row("swapoff", &[path(0).does(Effect::MountPoint)]),
    // quotactl(op, special, id, addr)
    row("quotactl", &[path(1).does(Effect::MountPoint).null(Null::Nothing)]).custom(custom::quotactl),
    // setxattr(path, name, value, size, flags)
    row("setxattr", &[path(0).does(Effect::Metadata)]),
    // lsetxattr(path, name, value, size, flags)
    row("lsetxattr", &[path(0).does(Effect::Metadata).nofollow()]),
    // fsetxattr(fd, name, value, size, flags)
    row("fsetxattr", &[fd(0).does(Effect::Metadata)]),
    // getxattr(path, name, value, size)
    row("getxattr", &[path(0).does(XATTRS)]),
    // lgetxattr(path, name, value, size)
    row("lgetxattr", &[path(0).does(XATTRS).nofollow()]),
    // fgetxattr(fd, name, value, size)
    row("fgetxattr", &[fd(0).does(XATTRS)]).for_recall(),
    // listxattr(path, list, size)
    row("listxattr", &[path(0).does(XATTRS)]),
    // llistxattr(path, list, size)
    row("llistxattr", &[path(0).does(XATTRS).nofollow()]),
    // flistxattr(fd, list, size)
    row("flistxattr", &[fd(0).does(XATTRS)]).for_recall(),
    // removexattr(path, name)
    row("removexattr", &[path(0).does(Effect::Metadata)]),
    // lremovexattr(path, name)
    row("lremovexattr", &[path(0).does(Effect::Metadata).nofollow()]),
    // fremovexattr(fd, name)
    row("fremovexattr", &[fd(0).does(Effect::Metadata)]),
    // utimes(path, times)
    row("utimes", &[path(0).does(Effect::Metadata)]),
    // inotify_add_watch(fd, path, mask)
    row(
        "inotify_add_watch",
        &[path(1).act(Act::QueryFlags(2, libc::IN_ONLYDIR)).nofollow_if(2, libc::IN_DONT_FOLLOW)],
    ),
    // openat(dirfd, path, flags, mode)
    row("openat", &[at(0, 1).act(Act::OpenFlags(2))]),
    // mkdirat(dirfd, path, mode)
    row("mkdirat", &[at(0, 1).does(Effect::MakeDirectory).nofollow()]),
    // mknodat(dirfd, path, mode, dev)
    row("mknodat", &[at(0, 1).does(Effect::MakeNode).nofollow()]),
    // fchownat(dirfd, path, owner, group, flags)
    row("fchownat", &[at(0, 1).does(Effect::Metadata).at_flags(4)]),
    // futimesat(dirfd, path, times)
    row("futimesat", &[at(0, 1).does(Effect::Metadata).null(Null::Descriptor)]),
    // newfstatat(dirfd, path, statbuf, flags)
    row("newfstatat", &[at(0, 1).does(Effect::Stat).at_flags(3).null(Null::Empty)]),
    // unlinkat(dirfd, path, flags)
    row("unlinkat", &[at(0, 1).act(Act::RemoveFlags(2)).nofollow()]),
    // renameat(olddirfd, oldpath, newdirfd, newpath)
    row("renameat", &[at(0, 1).does(RENAME_FROM).nofollow(), at(2, 3).does(RENAME_TO).nofollow()]),
    // linkat(olddirfd, oldpath, newdirfd, newpath, flags)
    row(
        "linkat",
        &[
            at(0, 1).does(Effect::HardLinkFrom).follow_if(4, FOLLOW).empty_if(4, EMPTY_PATH),
            at(2, 3).does(Effect::HardLinkTo).nofollow(),
        ],
    ),
    // symlinkat(target, newdirfd, linkpath)
    row("symlinkat", &[at(1, 2).does(Effect::MakeSymlink).nofollow()]),
    // readlinkat(dirfd, path, buf, bufsiz): an empty path names a symlink opened with O_PATH
    row("readlinkat", &[at(0, 1).nofollow().may_be_symlink()]),
    // fchmodat(dirfd, path, mode)
    row("fchmodat", &[at(0, 1).does(Effect::Metadata)]).custom(custom::fchmodat),
    // faccessat(dirfd, path, mode)
    row("faccessat", &[at(0, 1)]),
    // unshare(flags)
    row("unshare", &[]).when(&[has(0, custom::CLONE_NAMESPACE)]).special(Special::Namespace),
    // utimensat(dirfd, path, times, flags)
    row("utimensat", &[at(0, 1).does(Effect::Metadata).at_flags(3).null(Null::Descriptor)]),
    // fallocate(fd, mode, offset, size): FALLOC_FL_KEEP_SIZE alone changes no byte
    row("fallocate", &[fd(0).does(Effect::Rewrite)])
        .when(&[has(1, !libc::FALLOC_FL_KEEP_SIZE.unsigned_abs())]),
    // recvmmsg(sockfd, msgvec, vlen, flags, timeout)
    row("recvmmsg", &[]).custom(custom::recvmmsg),
    // fanotify_init(flags, event_f_flags)
    row("fanotify_init", &[]).custom(custom::fanotify_init),
    // fanotify_mark(fanotify_fd, flags, mask, dirfd, path)
    row(
        "fanotify_mark",
        &[at(3, 4)
            .act(Act::QueryFlags(1, libc::FAN_MARK_ONLYDIR))
            .nofollow_if(1, libc::FAN_MARK_DONT_FOLLOW)
            .null(Null::Nothing)],
    ),
    // name_to_handle_at(dirfd, path, handle, mount_id, flags)
    row("name_to_handle_at", &[at(0, 1).follow_if(4, FOLLOW).empty_if(4, EMPTY_PATH)]),
    // open_by_handle_at(mount_fd, handle, flags)
    row("open_by_handle_at", &[]).custom(custom::open_by_handle_at),
    // sendmmsg(sockfd, msgvec, vlen, flags)
    row("sendmmsg", &[]).query(socket::sendmmsg),
    // setns(fd, nstype)
    row("setns", &[]).special(Special::Namespace),
    // process_vm_writev(pid, local_iov, liovcnt, remote_iov, riovcnt, flags): the memory may be a shared
    // mapping of a file, in a process outside the tree
    row("process_vm_writev", &[]).special(Special::Unmodelled),
    // renameat2(olddirfd, oldpath, newdirfd, newpath, flags)
    row(
        "renameat2",
        &[at(0, 1).act(Act::RenameFromFlags(4)).nofollow(), at(2, 3).act(Act::RenameToFlags(4)).nofollow()],
    ),
    // seccomp(operation, flags, args)
    row("seccomp", &[]).when(&[is(0, libc::SECCOMP_SET_MODE_FILTER)]).custom(custom::install_filter),
    // bpf(cmd, attr, size): BPF_OBJ_PIN, BPF_OBJ_GET
    row("bpf", &[]).when(&[is(0, custom::BPF_OBJ_PIN), is(0, custom::BPF_OBJ_GET)]).custom(custom::bpf),
    // execveat(dirfd, path, argv, envp, flags)
    row("execveat", &[at(0, 1).act(Act::ExecuteFlags(4)).at_flags(4)]).argv(2),
    // pwritev2(fd, iov, iovcnt, pos_l, pos_h, flags)
    row("pwritev2", &[fd(0).does(Effect::Rewrite)]).when(&[has(5, RWF_NOAPPEND)]),
    // statx(dirfd, path, flags, mask, statxbuf)
    row("statx", &[at(0, 1).act(Act::StatMask(3)).at_flags(2).null(Null::Empty)]),
    // io_uring_setup(entries, params)
    row("io_uring_setup", &[]).special(Special::IoUring),
    // open_tree(dirfd, path, flags)
    row("open_tree", &[at(0, 1).at_flags(2)]).custom(custom::open_tree),
    // move_mount(from_dirfd, from_path, to_dirfd, to_path, flags):
    // MOVE_MOUNT_F_SYMLINKS, F_EMPTY_PATH, T_SYMLINKS, T_EMPTY_PATH
    row(
        "move_mount",
        &[
            at(0, 1).does(Effect::MountPoint).follow_if(4, 0x01).empty_if(4, 0x04),
            at(2, 3).does(Effect::MountPoint).follow_if(4, 0x10).empty_if(4, 0x40),
        ],
    )
    .special(Special::Namespace),
    // fsconfig(fd, cmd, key, value, aux)
    row("fsconfig", &[]).when(custom::FSCONFIGS).custom(custom::fsconfig),
    // fsmount(fs_fd, flags, attr_flags): makes a mount that only a descriptor names
    row("fsmount", &[]).special(Special::Namespace),
    // fspick(dirfd, path, flags): FSPICK_SYMLINK_NOFOLLOW, FSPICK_EMPTY_PATH
    row("fspick", &[at(0, 1).does(Effect::MountPoint).nofollow_if(2, 0x2).empty_if(2, 0x8)]),
    // clone3(cl_args, size): its flags are in memory
    row("clone3", &[]).custom(custom::clone3),
    // openat2(dirfd, path, how, size)
    row("openat2", &[at(0, 1).act(Act::OpenHow(2, 3))]),
    // pidfd_getfd(pidfd, targetfd, flags)
    row("pidfd_getfd", &[]).special(Special::UnnamedOpen { open: None }),
    // faccessat2(dirfd, path, mode, flags)
    row("faccessat2", &[at(0, 1).at_flags(3)]),
    // mount_setattr(dirfd, path, flags, attr, size)
    row("mount_setattr", &[at(0, 1).does(Effect::MountPoint).at_flags(2)]).special(Special::Namespace),
    // landlock_restrict_self(ruleset_fd, flags): from here on the kernel denies more than the credentials
    // tell
    row("landlock_restrict_self", &[]).special(Special::Landlock),
    // memfd_secret(flags): memory that can hold arguments, and that no other process can read
    row("memfd_secret", &[]).special(Special::SecretMemory),
    // fchmodat2(dirfd, path, mode, flags)
    row("fchmodat2", &[at(0, 1).does(Effect::Metadata).at_flags(3)]).custom(custom::fchmodat),
    row("lsm_set_self_attr", &[]).special(Special::Credentials),
    // setxattrat(dirfd, path, at_flags, name, args, size)
    row("setxattrat", &[at(0, 1).does(Effect::Metadata).at_flags(2).null(Null::Empty)]),
    // getxattrat(dirfd, path, at_flags, name, args, size)
    row("getxattrat", &[at(0, 1).does(XATTRS).at_flags(2).null(Null::Empty)]),
    // listxattrat(dirfd, path, at_flags, list, size)
    row("listxattrat", &[at(0, 1).does(XATTRS).at_flags(2).null(Null::Empty)]),
    // removexattrat(dirfd, path, at_flags, name)
    row("removexattrat", &[at(0, 1).does(Effect::Metadata).at_flags(2).null(Null::Empty)]),
    // open_tree_attr(dirfd, path, flags, attr, size)
    row("open_tree_attr", &[at(0, 1).at_flags(2)]).custom(custom::open_tree),
    // file_getattr(dirfd, path, attr, size, at_flags)
    row("file_getattr", &[at(0, 1).does(Effect::Ask(Asked::InodeFlags)).at_flags(4).null(Null::Empty)]),
    // file_setattr(dirfd, path, attr, size, at_flags)
    row("file_setattr", &[at(0, 1).does(Effect::Metadata).at_flags(4).null(Null::Empty)]),
];

/// The rows of the calls that there are here: what the seccomp program is made of.
pub fn rows() -> impl Iterator<Item = &'static SyscallRow> {
    ROWS.iter().filter(|row| row.sysno.0 != NONE)
}

/// The rows of all architectures: what the documentation lists.
pub fn all_rows() -> &'static [SyscallRow] {
    ROWS
}

/// Where each number's row is in [`ROWS`].
static INDEX: Index = index!(ROWS, sysno.0);

/// The row of a syscall, if it has one.
pub fn find(sysno: Sysno) -> Option<&'static SyscallRow> {
    INDEX.find(sysno.0.into()).map(|at| &ROWS[at])
}
