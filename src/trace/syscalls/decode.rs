//! Reads the arguments of a syscall by its row: which flags follow a symlink, what an empty path or a null
//! pointer names, and what structures in memory say.
//!
//! A syscall that the kernel rejects before it resolves a path decodes to nothing. One that may fail later is
//! decoded as if it succeeded: its result tells. Neighbours: `row.rs` defines the rows, `custom.rs` decodes
//! what they can't express.

use super::args::{Args, Sysno, address, descriptor, low, low_half};
use super::decoded::{Access, Asked, DecodedSyscall, Dirfd, Effect, FileRef, Resolve, SocketUse, Special};
use super::numbers::is_known;
use super::open_flags::{OpenFlags, follows};
use super::row::{Act, Beyond, Empty, Follow, NamedBy, Null, Operand, SyscallRow};
use super::socket::{socket_use, unix_path};
use super::table;
use crate::trace::memory::{Fault, Memory};
use crate::trace::sys::arch::{AUDIT_ARCH, FOREIGN_BIT};

/// What a syscall means for the observer.
#[derive(Debug)]
pub enum Interpretation {
    /// Nothing, or nothing that the kernel will do.
    Irrelevant,
    /// Unknown: this process may not read its arguments, though the kernel may.
    Unreadable(&'static str),
    /// Its name, for messages, and what it names and does.
    Relevant(&'static str, DecodedSyscall),
}

impl Interpretation {
    /// What it names and does, if it matters.
    pub fn decoded(&self) -> Option<&DecodedSyscall> {
        match self {
            Interpretation::Relevant(_, decoded) => Some(decoded),
            Interpretation::Irrelevant | Interpretation::Unreadable(_) => None,
        }
    }
}

/// Interprets the syscall `number` of ABI `arch`.
pub fn interpret(arch: u32, number: u64, args: &Args, memory: &dyn Memory) -> Interpretation {
    let special = |special| DecodedSyscall { special: Some(special), ..DecodedSyscall::default() };
    if arch != AUDIT_ARCH || number & u64::from(FOREIGN_BIT) != 0 {
        return Interpretation::Relevant("a call of another ABI", special(Special::Compat));
    }
    let sysno = Sysno::from_register(number);
    match sysno.and_then(table::find) {
        None if sysno.is_some_and(is_known) => Interpretation::Irrelevant,
        None => Interpretation::Relevant("a call newer than the table", special(Special::Unmodelled)),
        Some(row) if !row.applies(args) => Interpretation::Irrelevant,
        Some(row) => match decode(row, args, memory) {
            Ok(decoded) if decoded == DecodedSyscall::default() => Interpretation::Irrelevant,
            Ok(decoded) => Interpretation::Relevant(row.name, decoded),
            Err(Fault::Unmapped | Fault::Gone | Fault::NameTooLong) => Interpretation::Irrelevant,
            Err(Fault::Unreadable) => Interpretation::Unreadable(row.name),
        },
    }
}

/// Decodes a syscall by its row, to nothing if no condition of the row holds.
///
/// Fails if an argument can't be read, by the kernel neither (EFAULT, ENAMETOOLONG) or by this process only.
pub fn decode(row: &SyscallRow, args: &Args, memory: &dyn Memory) -> Result<DecodedSyscall, Fault> {
    let mut decoded = DecodedSyscall::default();
    if !row.applies(args) {
        return Ok(decoded);
    }
    for operand in row.operands {
        match access(operand, args, memory, &mut decoded.sockets)? {
            Named::It(access) => decoded.accesses.push(access),
            Named::Nothing => {}
            Named::Refused => return Ok(DecodedSyscall::default()),
        }
    }
    match row.beyond {
        Beyond::Nothing => {}
        Beyond::Special(special) => decoded.special = Some(special),
        Beyond::Argv(arg) if decoded.accesses.iter().any(|access| access.effect == Effect::Execute) => {
            decoded.argv = Some(address(args, arg));
        }
        Beyond::Argv(_) => {}
        Beyond::Custom(custom) | Beyond::Query(custom) => custom(args, memory, &mut decoded)?,
    }
    Ok(decoded)
}

/// What an operand names.
enum Named<T> {
    It(T),
    /// Nothing that matters.
    Nothing,
    /// The kernel rejects the syscall before it resolves any path.
    Refused,
}

fn access(
    operand: &Operand,
    args: &Args,
    memory: &dyn Memory,
    sockets: &mut Vec<SocketUse>,
) -> Result<Named<Access>, Fault> {
    let mut follow = match operand.follow {
        Follow::Always => true,
        Follow::Never => false,
        Follow::Unless(arg, flag) => low(args, arg) & flag == 0,
        Follow::If(arg, flag) => low(args, arg) & flag != 0,
    };
    let mut resolve = Resolve::default();
    let effect = match operand.act {
        Act::Is(effect) => effect,
        Act::OpenFlags(arg) => {
            follow = follows(low(args, arg));
            Effect::Open(OpenFlags::from_raw(low(args, arg)))
        }
        Act::OpenHow(how, size) => {
            let Some(how) = open_how(args, how, size, memory)? else { return Ok(Named::Refused) };
            (follow, resolve) = (how.follow, how.resolve);
            Effect::Open(how.open)
        }
        Act::RemoveFlags(arg) if low(args, arg) & AT_REMOVEDIR != 0 => Effect::RemoveDirectory,
        Act::RemoveFlags(_) => Effect::Remove,
        Act::RenameFromFlags(arg) => {
            Effect::RenameFrom { exchange: low(args, arg) & libc::RENAME_EXCHANGE != 0 }
        }
        Act::RenameToFlags(arg) => Effect::RenameTo {
            exchange: low(args, arg) & libc::RENAME_EXCHANGE != 0,
            noreplace: low(args, arg) & libc::RENAME_NOREPLACE != 0,
        },
        Act::QueryFlags(arg, flag) if low(args, arg) & flag != 0 => DIRECTORY,
        Act::QueryFlags(..) => Effect::Query,
        Act::StatMask(arg) if low(args, arg) & (STATX_ATIME | STATX_MTIME) == STATX_ATIME => {
            Effect::Ask(Asked::Transient)
        }
        Act::StatMask(_) => Effect::Stat,
        Act::ExecuteFlags(arg) if low(args, arg) & AT_EXECVE_CHECK != 0 => Effect::Query,
        Act::ExecuteFlags(_) => Effect::Execute,
    };
    let file = match operand.named_by {
        NamedBy::Descriptor(arg) => Named::It(FileRef::Descriptor(descriptor(args, arg))),
        NamedBy::Address(operation, addr, len) => {
            let Some(used) = socket_use(operation, args, addr, len, memory)? else {
                return Ok(Named::Refused);
            };
            let path = unix_path(&used.address).map_or(Named::Nothing, Named::It);
            sockets.push(used);
            path
        }
        NamedBy::Path(path) => path_at(operand, Dirfd::Cwd, path, args, memory)?,
        NamedBy::At(dirfd, path) => {
            let dirfd = Dirfd::from_raw(args[usize::from(dirfd)]);
            match path_at(operand, dirfd, path, args, memory)? {
                // A descriptor that is only queried, as by fstat: its open was the access.
                Named::It(FileRef::Descriptor(_))
                    if matches!(effect, Effect::Query | Effect::Stat | Effect::MountPoint) =>
                {
                    Named::Nothing
                }
                named => named,
            }
        }
    };
    Ok(match file {
        Named::It(file) => Named::It(Access { file, effect, follow, resolve }),
        Named::Nothing => Named::Nothing,
        Named::Refused => Named::Refused,
    })
}

/// What the pointer to a path in register `path` names: that path, or what `dirfd` itself refers to.
fn path_at(
    operand: &Operand,
    dirfd: Dirfd,
    path: u8,
    args: &Args,
    memory: &dyn Memory,
) -> Result<Named<FileRef>, Fault> {
    let itself = match dirfd {
        Dirfd::Cwd => FileRef::WorkingDirectory,
        Dirfd::Fd(fd) => FileRef::Descriptor(fd),
    };
    let may_be_empty = match operand.empty {
        Empty::Refused => false,
        Empty::Symlink => dirfd != Dirfd::Cwd,
        Empty::ItselfIf(arg, flag) => low(args, arg) & flag != 0,
    };
    let addr = address(args, path);
    if addr.0 == 0 {
        match (operand.null, dirfd) {
            (Null::Nothing, _) => return Ok(Named::Nothing),
            (Null::Descriptor, Dirfd::Fd(_)) => return Ok(Named::It(itself)),
            (Null::Empty, _) if may_be_empty => return Ok(Named::It(itself)),
            _ => {}
        }
    }
    let path = memory.read_path(addr)?;
    Ok(match (path.is_empty(), may_be_empty) {
        (false, _) => Named::It(FileRef::Path { dirfd, path }),
        (true, true) => Named::It(itself),
        (true, false) => Named::Refused,
    })
}

/// AT_REMOVEDIR of unlinkat.
const AT_REMOVEDIR: u32 = 0x200;
/// STATX_ATIME and STATX_MTIME of statx.
const STATX_ATIME: u32 = 0x20;
const STATX_MTIME: u32 = 0x40;
/// AT_EXECVE_CHECK of execveat, Linux 6.14.
const AT_EXECVE_CHECK: u32 = 0x10000;
/// A query for a directory.
const DIRECTORY: Effect =
    Effect::Open(OpenFlags::from_raw((libc::O_PATH | libc::O_DIRECTORY).cast_unsigned()));

/// What a `struct open_how` says.
struct OpenHow {
    open: OpenFlags,
    follow: bool,
    resolve: Resolve,
}

/// Reads `struct open_how` (flags, mode, resolve); none where openat2 fails with EINVAL or E2BIG because of
/// its size. Of a structure longer than any kernel knows, the end is not read: many kernels accept it.
fn open_how(args: &Args, how: u8, size: u8, memory: &dyn Memory) -> Result<Option<OpenHow>, Fault> {
    const FIRST_VERSION: usize = 24;
    let (addr, size) = (address(args, how), args[usize::from(size)]);
    let mut bytes = [0; 4096];
    let size = usize::try_from(size).unwrap_or(usize::MAX).min(bytes.len());
    if size < FIRST_VERSION {
        return Ok(None);
    }
    let bytes = &mut bytes[..size];
    memory.read_exact(addr, bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let (flags, resolve) = (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[2]));
    if bytes[FIRST_VERSION..].iter().any(|&byte| byte != 0) {
        return Ok(None);
    }
    let (open, follow) = (OpenFlags::from_raw(low_half(flags)), follows(low_half(flags)));
    let resolve = Resolve {
        no_xdev: resolve & 0x01 != 0,
        no_magiclinks: resolve & 0x02 != 0,
        no_symlinks: resolve & 0x04 != 0,
        beneath: resolve & 0x08 != 0,
        in_root: resolve & 0x10 != 0,
        strict: true,
    };
    Ok(Some(OpenHow { open, follow, resolve }))
}
