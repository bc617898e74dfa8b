//! Turns a row and six argument words into accesses: which flags follow a link, what an empty path
//! or a null pointer names, and the calls whose meaning is a structure in memory.
//!
//! `table.rs` holds the rows, `odd.rs` those calls. What the kernel refuses before it looks at a path is nothing; what it
//! may refuse later is decoded as if it succeeded, and its result tells.

use super::super::memory::{Memory, MemoryError, RemoteAddr};
use super::table::{Act, Beyond, Empty, Follow, Name, Null, Operand, SyscallRow};
use super::{Access, Args, DecodedSyscall, Dirfd, Effect, FileRef, OpenFlags, Resolve};

/// Says what a call means.
///
/// Nothing for registers that no condition of the row holds for. A [`MemoryError`] where the kernel, too,
/// can't read an argument (EFAULT, ENAMETOOLONG), or where the tracee does not let us.
pub fn decode(row: &SyscallRow, args: &Args, memory: &dyn Memory) -> Result<DecodedSyscall, MemoryError> {
    let mut decoded = DecodedSyscall::default();
    if !row.applies(args) {
        return Ok(decoded);
    }
    for operand in row.operands {
        match access(operand, args, memory)? {
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
        Beyond::By(odd) => odd(args, memory, &mut decoded)?,
    }
    Ok(decoded)
}

/// The lower half of a register: what the kernel sees of an `int`.
#[allow(clippy::cast_possible_truncation, reason = "the upper half is noise")]
pub(super) fn low(args: &Args, arg: u8) -> u32 {
    args[usize::from(arg)] as u32
}

pub(super) fn address(args: &Args, arg: u8) -> RemoteAddr {
    RemoteAddr(args[usize::from(arg)])
}

pub(super) fn descriptor(args: &Args, arg: u8) -> i32 {
    low(args, arg).cast_signed()
}

/// What an operand, or a part of it, came to.
enum Named<T> {
    It(T),
    /// Nothing that matters.
    Nothing,
    /// The kernel refuses the call before it looks at any path.
    Refused,
}

fn access(operand: &Operand, args: &Args, memory: &dyn Memory) -> Result<Named<Access>, MemoryError> {
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
            let open;
            (open, follow) = open_flags(low(args, arg));
            Effect::Open(open)
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
        Act::ExecuteFlags(arg) if low(args, arg) & AT_EXECVE_CHECK != 0 => Effect::Query,
        Act::ExecuteFlags(_) => Effect::Execute,
    };
    let file = match operand.name {
        Name::Descriptor(arg) => Named::It(FileRef::Descriptor(descriptor(args, arg))),
        Name::Address(addr, len) => unix_path(args, addr, len, memory)?,
        Name::Path(path) => path_at(operand, Dirfd::Cwd, path, args, memory)?,
        Name::At(dirfd, path) => {
            let dirfd = Dirfd::from_raw(args[usize::from(dirfd)]);
            match path_at(operand, dirfd, path, args, memory)? {
                // A descriptor that is only asked, as by fstat.
                Named::It(FileRef::Descriptor(_)) if matches!(effect, Effect::Query | Effect::MountPoint) => {
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

/// What the pointer to a path at argument `path` names: that path, or what `dirfd` is.
fn path_at(
    operand: &Operand,
    dirfd: Dirfd,
    path: u8,
    args: &Args,
    memory: &dyn Memory,
) -> Result<Named<FileRef>, MemoryError> {
    let itself = match dirfd {
        Dirfd::Cwd => FileRef::WorkingDirectory,
        Dirfd::Fd(fd) => FileRef::Descriptor(fd),
    };
    let may_be_empty = match operand.empty {
        Empty::Refused => false,
        Empty::Link => dirfd != Dirfd::Cwd,
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
/// AT_EXECVE_CHECK of execveat, Linux 6.14.
const AT_EXECVE_CHECK: u32 = 0x10000;
/// The bit by which O_TMPFILE differs from O_DIRECTORY.
const O_TMPFILE_ALONE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// The open flags that change something: O_WRONLY, O_RDWR and access mode 3, O_CREAT, O_TRUNC, O_TMPFILE.
pub(super) const CHANGING: u32 =
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | O_TMPFILE_ALONE).cast_unsigned();

/// What creat(2) is.
pub(super) const CREAT: Effect =
    Effect::Open(open_flags((libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC).cast_unsigned()).0);
/// How the kernel opens the file of acct(2).
pub(super) const APPEND: Effect =
    Effect::Open(open_flags((libc::O_WRONLY | libc::O_APPEND).cast_unsigned()).0);
/// How the kernel opens the file of uselib(2).
pub(super) const READ: Effect = Effect::Open(open_flags(libc::O_RDONLY.cast_unsigned()).0);

/// The question whether there is a directory.
const DIRECTORY: Effect = Effect::Open(open_flags((libc::O_PATH | libc::O_DIRECTORY).cast_unsigned()).0);

/// What open flags mean, and whether a last link is followed.
pub(super) const fn open_flags(flags: u32) -> (OpenFlags, bool) {
    let flags = flags.cast_signed();
    let directory = flags & libc::O_DIRECTORY != 0;
    let nofollow = flags & libc::O_NOFOLLOW != 0;
    if flags & libc::O_PATH != 0 {
        let none = open_flags(libc::O_ACCMODE.cast_unsigned()).0;
        return (OpenFlags { path_only: true, directory, ..none }, !nofollow);
    }
    let mode = flags & libc::O_ACCMODE;
    let create = flags & libc::O_CREAT != 0;
    let exclusive = create && flags & libc::O_EXCL != 0;
    let open = OpenFlags {
        read: mode == libc::O_RDONLY || mode == libc::O_RDWR,
        write: mode == libc::O_WRONLY || mode == libc::O_RDWR,
        create,
        exclusive,
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
        path_only: false,
        directory,
        temporary: flags & O_TMPFILE_ALONE != 0,
        nonblocking: flags & libc::O_NONBLOCK != 0,
    };
    (open, !(nofollow || exclusive))
}

/// What a `struct open_how` says.
struct How {
    open: OpenFlags,
    follow: bool,
    resolve: Resolve,
}

/// The largest structure that the kernel takes: a page.
pub(super) const STRUCT_MAX: u64 = 4096;

/// Reads `struct open_how` (flags, mode, resolve); none where openat2 answers EINVAL or E2BIG for its size.
fn open_how(args: &Args, how: u8, size: u8, memory: &dyn Memory) -> Result<Option<How>, MemoryError> {
    const FIRST_VERSION: u64 = 24;
    let (addr, size) = (address(args, how), args[usize::from(size)]);
    if !(FIRST_VERSION..=STRUCT_MAX).contains(&size) {
        return Ok(None);
    }
    let mut bytes = [0; 4096];
    let bytes = &mut bytes[..usize::try_from(size).unwrap_or(0)];
    memory.read_exact(addr, bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let (flags, resolve) = (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[2]));
    if bytes[24..].iter().any(|&byte| byte != 0) {
        return Ok(None);
    }
    let (open, follow) = open_flags(low(&[flags, 0, 0, 0, 0, 0], 0));
    let resolve = Resolve {
        no_xdev: resolve & 0x01 != 0,
        no_magiclinks: resolve & 0x02 != 0,
        no_symlinks: resolve & 0x04 != 0,
        beneath: resolve & 0x08 != 0,
        in_root: resolve & 0x10 != 0,
        strict: true,
    };
    Ok(Some(How { open, follow, resolve }))
}

/// The path of an AF_UNIX address; nothing for other families, abstract and unnamed addresses.
fn unix_path(args: &Args, addr: u8, len: u8, memory: &dyn Memory) -> Result<Named<FileRef>, MemoryError> {
    // sizeof(struct sockaddr_storage) is what any family takes, sizeof(struct sockaddr_un) this one.
    const ANY: usize = 128;
    const UNIX: usize = 110;
    let len = usize::try_from(descriptor(args, len)).unwrap_or(usize::MAX);
    if len > ANY {
        return Ok(Named::Refused);
    }
    let mut bytes = [0; ANY];
    let bytes = &mut bytes[..len];
    memory.read_exact(address(args, addr), bytes)?;
    let unix = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0).to_ne_bytes();
    let Some((family, name)) = bytes.split_first_chunk() else { return Ok(Named::Nothing) };
    if *family != unix || len > UNIX {
        return Ok(Named::Nothing);
    }
    // A name need not end with a NUL.
    let path = name.split(|&byte| byte == 0).next().unwrap_or_default();
    if path.is_empty() {
        return Ok(Named::Nothing);
    }
    Ok(Named::It(FileRef::Path { dirfd: Dirfd::Cwd, path: path.to_vec() }))
}
