//! Syscalls whose arguments no operand can express: flags in memory, structures, a command that selects what
//! the other arguments are. Each function adds to what its row's operands yield.

use super::args::{Args, address, descriptor, low, low_half};
use super::decoded::{Access, Asked, DecodedSyscall, Dirfd, Effect, FileRef, Resolve, Special};
use super::open_flags::OpenFlags;
use super::row::Condition;
use crate::trace::memory::{Fault, Memory, PATH_MAX, RemoteAddr};
use crate::trace::sys::arch;

type Decoding = Result<(), Fault>;

/// CLONE_UNTRACED.
const UNTRACED: u32 = 0x0080_0000;
/// CLONE_NEWNS and CLONE_NEWUSER.
pub(super) const CLONE_NAMESPACE: u32 = 0x0002_0000 | 0x1000_0000;

/// CLONE_VM and CLONE_FILES.
pub const CLONE_SHARES: u32 = 0x0000_0100 | 0x0000_0400;

pub(super) const CLONES: &[Condition] = &[Condition::Has { arg: 0, mask: UNTRACED | CLONE_NAMESPACE }];

/// The flags of clone are in its first register.
pub(super) fn clone(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = clone_flags(low(args, 0), false);
    Ok(())
}

/// The flags of clone3 are the first field of `struct clone_args`.
pub(super) fn clone3(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    const FIRST_VERSION: u64 = 64;
    if args[1] >= FIRST_VERSION {
        let mut flags = [0; 8];
        memory.read_exact(address(args, 0), &mut flags)?;
        decoded.special = clone_flags(low_half(u64::from_ne_bytes(flags)), true);
    }
    Ok(())
}

/// The flags with which a call creates a process or thread (clone(2)); none, if it creates nothing, or is of another ABI.
pub fn creation_flags(number: u64, args: &Args, memory: &dyn Memory) -> u64 {
    let vfork = (libc::CLONE_VM | libc::CLONE_VFORK).unsigned_abs();
    match libc::c_long::try_from(number) {
        _ if Some(number) == arch::VFORK => vfork.into(),
        _ if Some(number) == arch::FORK => libc::SIGCHLD.unsigned_abs().into(),
        Ok(libc::SYS_clone) => args[0],
        Ok(libc::SYS_clone3) => {
            let mut flags = [0];
            memory.read_words(address(args, 0), &mut flags).map_or(0, |()| flags[0])
        }
        _ => 0,
    }
}

fn clone_flags(flags: u32, clone3: bool) -> Option<Special> {
    let namespace = flags & CLONE_NAMESPACE != 0;
    if flags & UNTRACED != 0 {
        Some(Special::Untraced { clone3, namespace })
    } else {
        namespace.then_some(Special::Namespace)
    }
}

/// The ioctls that change the metadata of a file, through a read-only descriptor too: FS_IOC_SETFLAGS, its
/// 32-bit form, FS_IOC_SETVERSION, EXT4_IOC_SETVERSION_OLD, FS_IOC_FSSETXATTR, FAT_IOCTL_SET_ATTRIBUTES,
/// FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY.
const METADATA_IOCTLS: [u32; 8] =
    [0x4008_6602, 0x4004_6602, 0x4008_7602, 0x4008_6604, 0x401c_5820, 0x4004_7211, 0x4080_6685, 0x800c_6613];

/// The ioctls that change bytes in the middle of a file, as fallocate does, also one that is open for appending:
/// FS_IOC_ZERO_RANGE, FS_IOC_UNRESVSP, FS_IOC_UNRESVSP64.
const REWRITING_IOCTLS: [u32; 3] = [0x4030_5839, 0x4030_5829, 0x4030_582b];

/// The ioctls that tell inode flags: FS_IOC_GETFLAGS, its 32-bit form, FS_IOC_FSGETXATTR.
const FLAG_IOCTLS: [u32; 3] = [0x8008_6601, 0x8004_6601, 0x801c_581f];

/// The ioctls that tell where on the disk the extents of a file are: FS_IOC_FIEMAP, FIBMAP.
const EXTENT_IOCTLS: [u32; 2] = [0xc020_660b, 1];

/// The ioctls that make or remove directories by a name in their structure, which are only counted:
/// BTRFS_IOC_SUBVOL_CREATE, SUBVOL_CREATE_V2, SNAP_CREATE, SNAP_CREATE_V2, SNAP_DESTROY, SNAP_DESTROY_V2.
///
/// And XFS_IOC_ATTRMULTI_BY_HANDLE, which changes extended attributes of a file that only a handle names.
const COUNTED_IOCTLS: [u32; 7] =
    [0x5000_940e, 0x5000_9418, 0x5000_9401, 0x5000_9417, 0x5000_940f, 0x5000_943f, 0x4048_587b];

/// XFS_IOC_OPEN_BY_HANDLE, which opens a file that only a handle names.
const OPEN_BY_HANDLE: u32 = 0xc038_586b;

/// TIOCSTI, TIOCLINUX, USERFAULTFD_IOC_NEW.
const UNJUDGEABLE: [u32; 3] = [0x5412, 0x541c, 0xaa00];

pub(super) const IOCTLS: &[Condition] = &{
    const KINDS: [&[u32]; 7] = [
        &METADATA_IOCTLS,
        &REWRITING_IOCTLS,
        &COUNTED_IOCTLS,
        &FLAG_IOCTLS,
        &EXTENT_IOCTLS,
        &UNJUDGEABLE,
        &[OPEN_BY_HANDLE],
    ];
    const COUNT: usize = {
        let (mut count, mut kind) = (0, 0);
        while kind < KINDS.len() {
            count += KINDS[kind].len();
            kind += 1;
        }
        count
    };
    let mut conditions = [Condition::Is { arg: 1, value: 0 }; COUNT];
    let (mut at, mut kind) = (0, 0);
    while kind < KINDS.len() {
        let mut one = 0;
        while one < KINDS[kind].len() {
            conditions[at] = Condition::Is { arg: 1, value: KINDS[kind][one] };
            at += 1;
            one += 1;
        }
        kind += 1;
    }
    conditions
};

pub(super) fn ioctl(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    let effect = match low(args, 1) {
        operation if METADATA_IOCTLS.contains(&operation) => Effect::Metadata,
        operation if REWRITING_IOCTLS.contains(&operation) => Effect::Rewrite,
        operation if FLAG_IOCTLS.contains(&operation) => Effect::Ask(Asked::InodeFlags),
        operation if EXTENT_IOCTLS.contains(&operation) => Effect::Ask(Asked::Transient),
        operation => {
            decoded.special = Some(match operation {
                OPEN_BY_HANDLE => Special::UnnamedOpen { open: None },
                _ if UNJUDGEABLE.contains(&operation) => Special::Unjudgeable,
                _ => Special::Unmodelled,
            });
            return Ok(());
        }
    };
    let file = FileRef::Descriptor(descriptor(args, 0));
    decoded.accesses.push(Access { file, effect, follow: true, resolve: Resolve::default() });
    Ok(())
}

/// The events of a group bring descriptors of files that no syscall names, unless it reports file handles.
pub(super) fn fanotify_init(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    const HANDLES: u32 = libc::FAN_REPORT_FID | libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME;
    if low(args, 0) & HANDLES == 0 {
        decoded.special = Some(Special::Unmodelled);
    }
    Ok(())
}

/// A path whose last component is followed if it is a symlink.
fn followed(dirfd: Dirfd, path: Vec<u8>, effect: Effect) -> Access {
    Access { file: FileRef::Path { dirfd, path }, effect, follow: true, resolve: Resolve::default() }
}

/// Adds the source of a mount, where it is a path: always for MS_BIND and MS_MOVE, and for a new mount
/// if it begins with `/`; otherwise it is a name that the filesystem interprets.
pub(super) fn mount(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = Some(Special::Namespace);
    const PROPAGATION: libc::c_ulong =
        libc::MS_SHARED | libc::MS_PRIVATE | libc::MS_SLAVE | libc::MS_UNBINDABLE;
    let mut flags = libc::c_ulong::from(low(args, 3));
    // Old programs set MS_MGC_VAL in their flags.
    if flags & 0xffff_0000 == 0xc0ed_0000 {
        flags &= 0xffff;
    }
    let bind = flags & libc::MS_BIND != 0;
    if args[0] == 0 || flags & libc::MS_REMOUNT != 0 || flags & PROPAGATION != 0 && !bind {
        return Ok(());
    }
    let source = memory.read_path(address(args, 0))?;
    let path = bind || flags & libc::MS_MOVE != 0;
    if source.first() == Some(&b'/') || path && !source.is_empty() {
        decoded.accesses.insert(0, followed(Dirfd::Cwd, source, Effect::MountPoint));
    }
    if !path && args[2] != 0 && args[4] != 0 && memory.read_path(address(args, 2))? == b"overlay" {
        let options = mount_options(address(args, 4), memory)?;
        let changed = changed_layers(&options);
        let changed = changed.map(|path| followed(Dirfd::Cwd, path, Effect::Metadata));
        decoded.accesses.insert_many(0, changed);
    }
    Ok(())
}

/// The options of a mount: of longer ones, the kernel takes the first page.
fn mount_options(at: RemoteAddr, memory: &dyn Memory) -> Result<Vec<u8>, Fault> {
    match memory.read_path(at) {
        Err(Fault::NameTooLong) => {
            let mut options = vec![0; PATH_MAX - 1];
            memory.read_exact(at, &mut options)?;
            Ok(options)
        }
        options => options,
    }
}

/// The options that name a directory which an overlay changes when it is mounted: it sets extended attributes, and makes
/// directories of its own.
const CHANGED_LAYERS: [&[u8]; 2] = [b"upperdir", b"workdir"];

/// The values of these among the options of an overlay, in which a backslash makes the next byte a part of the value.
fn changed_layers(options: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut words = vec![Vec::new()];
    let mut bytes = options.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => words.push(Vec::new()),
            b'\\' => words.last_mut().into_iter().for_each(|word| word.extend(bytes.next())),
            byte => words.last_mut().into_iter().for_each(|word| word.push(*byte)),
        }
    }
    words.into_iter().filter_map(|word| {
        let at = word.iter().position(|byte| *byte == b'=')?;
        let is_changed = CHANGED_LAYERS.contains(&&word[..at]) && word.len() > at + 1;
        is_changed.then(|| word[at + 1..].to_vec())
    })
}

const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_SET_PATH: u32 = 3;
const FSCONFIG_SET_PATH_EMPTY: u32 = 4;
const FSCONFIG_SET_FD: u32 = 5;

pub(super) const FSCONFIGS: &[Condition] = &[
    Condition::Is { arg: 1, value: FSCONFIG_SET_STRING },
    Condition::Is { arg: 1, value: FSCONFIG_SET_PATH },
    Condition::Is { arg: 1, value: FSCONFIG_SET_PATH_EMPTY },
    Condition::Is { arg: 1, value: FSCONFIG_SET_FD },
];

/// A path option, relative to the directory `aux`, or the string option `source` if it is an absolute path; and what names a
/// directory that an overlay changes, also by a descriptor.
pub(super) fn fsconfig(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    let string = low(args, 1) == FSCONFIG_SET_STRING;
    let key = memory.read_path(address(args, 2))?;
    let is_changed = CHANGED_LAYERS.contains(&key.as_slice());
    let effect = if is_changed { Effect::Metadata } else { Effect::MountPoint };
    if low(args, 1) == FSCONFIG_SET_FD {
        let file = FileRef::Descriptor(low(args, 4).cast_signed());
        let access = Access { file, effect, follow: true, resolve: Resolve::default() };
        decoded.accesses.extend(is_changed.then_some(access));
        return Ok(());
    }
    if string && !is_changed && key != b"source" {
        return Ok(());
    }
    let path = memory.read_path(address(args, 3))?;
    let dirfd = if string { Dirfd::Cwd } else { Dirfd::from_raw(args[4]) };
    if path.first() == Some(&b'/') || (is_changed || !string) && !path.is_empty() {
        decoded.accesses.push(followed(dirfd, path, effect));
    }
    Ok(())
}

/// The fourth argument of Q_QUOTAON is the path of the quota file, to which the kernel writes.
pub(super) fn quotactl(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    const Q_QUOTAON: u32 = 0x80_0002;
    if low(args, 0) >> 8 == Q_QUOTAON {
        let path = memory.read_path(address(args, 3))?;
        if !path.is_empty() {
            let written = OpenFlags::from_raw(libc::O_WRONLY.cast_unsigned());
            let effect = Effect::Open(OpenFlags { without_descriptor: true, ..written });
            decoded.accesses.push(followed(Dirfd::Cwd, path, effect));
        }
    }
    Ok(())
}

pub(super) fn open_by_handle_at(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = Some(Special::UnnamedOpen { open: Some(OpenFlags::from_raw(low(args, 2))) });
    Ok(())
}

/// `struct msghdr` tells whether there is room for a descriptor.
pub(super) fn recvmsg(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    /// CMSG_LEN for one descriptor.
    const ONE: u64 = 20;
    let mut words = [0; 6];
    memory.read_words(address(args, 1), &mut words)?;
    if words[4] != 0 && words[5] >= ONE {
        decoded.special = Some(Special::Received { messages: address(args, 1), room: 1 });
    }
    Ok(())
}

/// An array of messages: which of them had room is seen after the syscall.
pub(super) fn recvmmsg(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = Some(Special::Received { messages: address(args, 1), room: low(args, 2).into() });
    Ok(())
}

pub(super) fn chmod(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = closing(low(args, 1));
    Ok(())
}

pub(super) fn fchmodat(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = closing(low(args, 2));
    Ok(())
}

fn closing(mode: u32) -> Option<Special> {
    const OPEN: u32 = libc::S_IRUSR | libc::S_IXUSR;
    (mode & OPEN != OPEN).then_some(Special::Closes { mode })
}

pub(super) fn listen(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = Some(Special::Listen { fd: low(args, 0).cast_signed() });
    Ok(())
}

/// With OPEN_TREE_CLONE the result is a new mount.
pub(super) fn open_tree(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    const OPEN_TREE_CLONE: u32 = 1;
    if low(args, 2) & OPEN_TREE_CLONE != 0 {
        decoded.special = Some(Special::Namespace);
    }
    Ok(())
}

pub(super) const TRACEME: u32 = libc::PTRACE_TRACEME;
pub(super) const ATTACH: u32 = libc::PTRACE_ATTACH;
pub(super) const SEIZE: u32 = libc::PTRACE_SEIZE;

/// ptrace(op, pid, addr, data).
pub(super) fn ptrace(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    let thread = (low(args, 0) != TRACEME).then(|| low(args, 1).cast_signed());
    decoded.special = Some(Special::Ptrace { thread });
    Ok(())
}

pub(super) const BPF_OBJ_PIN: u32 = 6;
pub(super) const BPF_OBJ_GET: u32 = 7;

pub(super) const GET_SECCOMP: u32 = libc::PR_GET_SECCOMP.unsigned_abs();
pub(super) const SET_SECCOMP: u32 = libc::PR_SET_SECCOMP.unsigned_abs();
/// PR_SET_SYSCALL_USER_DISPATCH.
pub(super) const SET_DISPATCH: u32 = 59;

/// prctl(option, mode, program).
pub(super) fn prctl(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    decoded.special = match low(args, 0) {
        GET_SECCOMP => Some(Special::FilterQuery),
        SET_DISPATCH => Some(Special::Dispatch),
        _ => return install_filter(args, memory, decoded),
    };
    Ok(())
}

/// seccomp(operation, flags, program), and the older prctl(PR_SET_SECCOMP, mode, program).
pub(super) fn install_filter(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    const NEW_LISTENER: u64 = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let (by_prctl, second) = (low(args, 0) == SET_SECCOMP, low(args, 1));
    if !by_prctl || second == libc::SECCOMP_MODE_FILTER {
        let listener = !by_prctl && u64::from(second) & NEW_LISTENER != 0;
        decoded.special = Some(Special::Filter { program: address(args, 2), listener });
    }
    Ok(())
}

/// The attributes begin with a path, a descriptor, flags and, since 6.5, a directory.
pub(super) fn bpf(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Decoding {
    const PATH_FD: u32 = 1 << 14;
    let mut bytes = [0; 24];
    // The kernel pads a shorter structure with zeros.
    let size = usize::try_from(low(args, 2)).unwrap_or(usize::MAX).min(bytes.len());
    memory.read_exact(address(args, 1), &mut bytes[..size])?;
    let (words, _) = bytes.as_chunks::<4>();
    let flags = u32::from_ne_bytes(words[3]);
    let dirfd = if flags & PATH_FD == 0 {
        Dirfd::Cwd
    } else {
        Dirfd::from_raw(u64::from(u32::from_ne_bytes(words[4])))
    };
    let path = memory.read_path(RemoteAddr(u64::from_ne_bytes(bytes.as_chunks().0[0])))?;
    if !path.is_empty() {
        let pin = low(args, 0) == BPF_OBJ_PIN;
        let effect = if pin { Effect::MakeNode } else { Effect::Query };
        decoded.accesses.push(Access { follow: !pin, ..followed(dirfd, path, effect) });
    }
    Ok(())
}
