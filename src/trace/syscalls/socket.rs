//! Socket addresses: an argument of connect, bind and sendto.
//!
//! Neighbour: `decode.rs` reads the other arguments.

use super::args::{Args, address, descriptor};
use super::decoded::{Dirfd, FileRef, SocketOperation, SocketUse};
use crate::trace::memory::{Fault, Memory};

/// sizeof(struct sockaddr_storage), the limit for every family.
const SOCKADDR_MAX: usize = 128;

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
    Ok(Some(SocketUse { operation, address: bytes }))
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
