//! Socket addresses: an argument of connect, bind and sendto, and in the messages of sendmsg and sendmmsg.
//!
//! Neighbours: `decode.rs` and the rows of `table.rs` use it.

use super::args::{Args, address, descriptor, low, low_half};
use super::decoded::{Access, DecodedSyscall, Dirfd, Effect, FileRef, Resolve, SocketOperation, SocketUse};
use crate::trace::memory::{Fault, Memory, RemoteAddr};

/// sizeof(struct sockaddr_storage), the limit for every family.
const SOCKADDR_MAX: usize = 128;
/// The argument of each of these calls that is the socket.
const SOCKET: u8 = 0;

/// The socket address at register `addr`; none where the kernel fails with EINVAL because of its length.
pub(super) fn socket_use(
    operation: SocketOperation,
    args: &Args,
    addr: u8,
    len: u8,
    memory: &dyn Memory,
) -> Result<Option<SocketUse>, Fault> {
    let len = usize::try_from(descriptor(args, len)).unwrap_or(usize::MAX);
    if len > SOCKADDR_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    memory.read_exact(address(args, addr), &mut bytes)?;
    Ok(Some(SocketUse { operation, socket: descriptor(args, SOCKET), address: bytes }))
}

/// The path of an AF_UNIX address; none for other families, and for abstract and unnamed addresses.
pub(super) fn unix_path(address: &[u8]) -> Option<FileRef> {
    /// sizeof(struct sockaddr_un).
    const UNIX: usize = 110;
    let unix = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0).to_ne_bytes();
    let (family, name) = address.split_first_chunk()?;
    if *family != unix || address.len() > UNIX {
        return None;
    }
    // A path need not end with a NUL.
    let path = name.split(|&byte| byte == 0).next().unwrap_or_default();
    (!path.is_empty()).then(|| FileRef::Path { dirfd: Dirfd::Cwd, path: path.to_vec() })
}

/// `struct msghdr` begins with the address; it is null in most messages.
pub(super) fn sendmsg(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Result<(), Fault> {
    let mut header = [0; 16];
    memory.read_exact(address(args, 1), &mut header)?;
    add_destination(descriptor(args, SOCKET), &header, memory, decoded)
}

/// An array of `struct mmsghdr`, each of which begins with a `struct msghdr`.
///
/// The kernel takes no more than UIO_MAXIOV, and sends those before the first one that it can't read.
pub(super) fn sendmmsg(args: &Args, memory: &dyn Memory, decoded: &mut DecodedSyscall) -> Result<(), Fault> {
    const UIO_MAXIOV: u32 = 1024;
    /// sizeof(struct mmsghdr).
    const SIZE: usize = 64;
    let count = usize::try_from(low(args, 2).min(UIO_MAXIOV)).unwrap_or(0);
    if count == 0 {
        return Ok(());
    }
    let mut headers = vec![0; count * SIZE];
    let length = memory.read(address(args, 1), &mut headers)?;
    for (number, header) in headers[..length].as_chunks::<SIZE>().0.iter().enumerate() {
        match add_destination(descriptor(args, SOCKET), header, memory, decoded) {
            Err(fault) if number == 0 => return Err(fault),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Adds the address of a message, which the kernel cuts if it is too long; once, however many messages of a call
/// have it.
fn add_destination(
    socket: i32,
    header: &[u8],
    memory: &dyn Memory,
    decoded: &mut DecodedSyscall,
) -> Result<(), Fault> {
    let (words, _) = header.as_chunks();
    let (name, length) = (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1]));
    // An int; the rest of the word is padding. The kernel refuses a negative one.
    let Ok(length @ 1..) = usize::try_from(low_half(length).cast_signed()) else { return Ok(()) };
    if name == 0 {
        return Ok(());
    }
    let mut address = vec![0; length.min(SOCKADDR_MAX)];
    memory.read_exact(RemoteAddr(name), &mut address)?;
    let used = SocketUse { operation: SocketOperation::Send, socket, address };
    if !decoded.sockets.contains(&used) {
        if let Some(file) = unix_path(&used.address) {
            let (effect, follow, resolve) = (Effect::Query, true, Resolve::default());
            decoded.accesses.push(Access { file, effect, follow, resolve });
        }
        decoded.sockets.push(used);
    }
    Ok(())
}

/// Whether a syscall may wait for its peer, so that a signal may interrupt it: for a connection, or for room.
pub fn may_wait_for_peer(number: u64, args: &Args) -> bool {
    let flags = match number.cast_signed() {
        libc::SYS_connect => return true,
        libc::SYS_sendmsg => 2,
        libc::SYS_sendto | libc::SYS_sendmmsg => 3,
        _ => return false,
    };
    low(args, flags) & libc::MSG_DONTWAIT.cast_unsigned() == 0
}
