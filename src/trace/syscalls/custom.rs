//! The calls whose meaning no operand of a row can say: flags in memory, a structure, a command
//! that chooses what the other arguments are.

use super::super::memory::{Memory, MemoryError, RemoteAddr};
use super::decode::{STRUCT_MAX, address, descriptor, low, open_flags};
use super::table::Test;
use super::{Access, Args, DecodedSyscall, Dirfd, Effect, FileRef, Resolve, Special};

/// A function for the meaning of a call. Adds to what the operands said.
pub(super) type Odd = fn(&Args, &dyn Memory, &mut DecodedSyscall) -> Result<(), MemoryError>;

/// CLONE_UNTRACED.
const UNTRACED: u32 = 0x0080_0000;
/// CLONE_NEWNS and CLONE_NEWUSER.
pub(super) const CLONE_NAMESPACE: u32 = 0x0002_0000 | 0x1000_0000;

pub(super) const CLONES: &[Test] = &[Test::Has { arg: 0, mask: UNTRACED | CLONE_NAMESPACE }];

/// clone: its flags are in the first register.
pub(super) fn clone(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Result<(), MemoryError> {
    decoded.special = clone_flags(low(args, 0), false);
    Ok(())
}

/// `struct clone_args` begins with its flags.
pub(super) fn clone3(
    args: &Args,
    memory: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    const FIRST_VERSION: u64 = 64;
    if (FIRST_VERSION..=STRUCT_MAX).contains(&args[1]) {
        let mut flags = [0; 8];
        memory.read_exact(address(args, 0), &mut flags)?;
        decoded.special = clone_flags(low(&[u64::from_ne_bytes(flags), 0, 0, 0, 0, 0], 0), true);
    }
    Ok(())
}

fn clone_flags(flags: u32, clone3: bool) -> Option<Special> {
    let namespace = flags & CLONE_NAMESPACE != 0;
    if flags & UNTRACED != 0 {
        Some(Special::Untraced { clone3, namespace })
    } else {
        namespace.then_some(Special::Namespace)
    }
}

/// The ioctls that change a file's metadata through any descriptor: FS_IOC_SETFLAGS, its 32-bit form,
/// FS_IOC_SETVERSION, FS_IOC_FSSETXATTR, FAT_IOCTL_SET_ATTRIBUTES.
const METADATA_IOCTLS: [u32; 5] = [0x4008_6602, 0x4004_6602, 0x4008_7602, 0x401c_5820, 0x4004_7211];

/// The ioctls that make or remove directories by a name in their structure, and are only counted:
/// BTRFS_IOC_SUBVOL_CREATE, SUBVOL_CREATE_V2, SNAP_CREATE, SNAP_CREATE_V2, SNAP_DESTROY, SNAP_DESTROY_V2.
///
/// XFS_IOC_ATTRMULTI_BY_HANDLE changes extended attributes of what only a handle names.
const COUNTED_IOCTLS: [u32; 7] =
    [0x5000_940e, 0x5000_9418, 0x5000_9401, 0x5000_9417, 0x5000_940f, 0x5000_943f, 0x4048_587b];

/// XFS_IOC_OPEN_BY_HANDLE, which opens what only a handle names.
const OPEN_BY_HANDLE: u32 = 0xc038_586b;

pub(super) const IOCTLS: &[Test] = &{
    let mut tests = [Test::Is { arg: 1, value: OPEN_BY_HANDLE }; 13];
    let mut at = 0;
    while at < tests.len() - 1 {
        let value = if at < 5 { METADATA_IOCTLS[at] } else { COUNTED_IOCTLS[at - 5] };
        tests[at] = Test::Is { arg: 1, value };
        at += 1;
    }
    tests
};

pub(super) fn ioctl(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Result<(), MemoryError> {
    if METADATA_IOCTLS.contains(&low(args, 1)) {
        decoded.accesses.push(Access {
            file: FileRef::Descriptor(descriptor(args, 0)),
            effect: Effect::Metadata,
            follow: true,
            resolve: Resolve::default(),
        });
    } else if low(args, 1) == OPEN_BY_HANDLE {
        decoded.special = Some(Special::UnnamedOpen { open: None });
    } else {
        decoded.special = Some(Special::Unmodelled);
    }
    Ok(())
}

/// The events of a group bring descriptors of files that no call names, unless it reports file handles.
pub(super) fn fanotify_init(
    args: &Args,
    _: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    const HANDLES: u32 = libc::FAN_REPORT_FID | libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME;
    if low(args, 0) & HANDLES == 0 {
        decoded.special = Some(Special::Unmodelled);
    }
    Ok(())
}

/// A path that is asked for, or mounted, and whose last link is followed.
fn followed(dirfd: Dirfd, path: Vec<u8>, effect: Effect) -> Access {
    Access { file: FileRef::Path { dirfd, path }, effect, follow: true, resolve: Resolve::default() }
}

/// Adds the source of a mount, where it is a path: always for MS_BIND and MS_MOVE, and for a new mount
/// if it begins with `/`; for the rest it is a word of the file system.
pub(super) fn mount(
    args: &Args,
    memory: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    decoded.special = Some(Special::Namespace);
    const PROPAGATION: libc::c_ulong =
        libc::MS_SHARED | libc::MS_PRIVATE | libc::MS_SLAVE | libc::MS_UNBINDABLE;
    let mut flags = libc::c_ulong::from(low(args, 3));
    // Old programs mark their flags with MS_MGC_VAL.
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
    Ok(())
}

const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_SET_PATH: u32 = 3;
const FSCONFIG_SET_PATH_EMPTY: u32 = 4;

pub(super) const FSCONFIGS: &[Test] = &[
    Test::Is { arg: 1, value: FSCONFIG_SET_STRING },
    Test::Is { arg: 1, value: FSCONFIG_SET_PATH },
    Test::Is { arg: 1, value: FSCONFIG_SET_PATH_EMPTY },
];

/// A path option, from the directory `aux`, or the string option `source` where it is an absolute path.
pub(super) fn fsconfig(
    args: &Args,
    memory: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    let string = low(args, 1) == FSCONFIG_SET_STRING;
    if string && memory.read_path(address(args, 2))? != b"source" {
        return Ok(());
    }
    let path = memory.read_path(address(args, 3))?;
    let dirfd = if string { Dirfd::Cwd } else { Dirfd::from_raw(args[4]) };
    if path.first() == Some(&b'/') || !string && !path.is_empty() {
        decoded.accesses.push(followed(dirfd, path, Effect::MountPoint));
    }
    Ok(())
}

/// Q_QUOTAON names the quota file at its fourth argument.
pub(super) fn quotactl(
    args: &Args,
    memory: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    const Q_QUOTAON: u32 = 0x80_0002;
    if low(args, 0) >> 8 == Q_QUOTAON {
        let path = memory.read_path(address(args, 3))?;
        if !path.is_empty() {
            decoded.accesses.push(followed(Dirfd::Cwd, path, Effect::MountPoint));
        }
    }
    Ok(())
}

pub(super) fn open_by_handle_at(
    args: &Args,
    _: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    decoded.special = Some(Special::UnnamedOpen { open: Some(open_flags(low(args, 2)).0) });
    Ok(())
}

/// `struct msghdr` says whether there is room for a descriptor to come.
pub(super) fn recvmsg(
    args: &Args,
    memory: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    /// CMSG_LEN of one descriptor.
    const ONE: u64 = 20;
    let mut words = [0; 6];
    memory.read_words(address(args, 1), &mut words)?;
    if words[4] != 0 && words[5] >= ONE {
        decoded.special = Some(Special::Received { messages: address(args, 1), many: false });
    }
    Ok(())
}

/// An array of messages, each with room or without.
pub(super) fn recvmmsg(args: &Args, _: &dyn Memory, decoded: &mut DecodedSyscall) -> Result<(), MemoryError> {
    decoded.special = Some(Special::Received { messages: address(args, 1), many: true });
    Ok(())
}

/// With OPEN_TREE_CLONE the result is a mount of its own.
pub(super) fn open_tree(
    args: &Args,
    _: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), MemoryError> {
    const OPEN_TREE_CLONE: u32 = 1;
    if low(args, 2) & OPEN_TREE_CLONE != 0 {
        decoded.special = Some(Special::Namespace);
    }
    Ok(())
}

pub(super) const BPF_OBJ_PIN: u32 = 6;
pub(super) const BPF_OBJ_GET: u32 = 7;

/// The attributes begin with a path, a descriptor, flags and, since 6.5, a directory.
pub(super) fn bpf(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Result<(), MemoryError> {
    const PATH_FD: u32 = 1 << 14;
    let mut bytes = [0; 24];
    // The kernel takes a shorter structure as one that goes on with zeros.
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
