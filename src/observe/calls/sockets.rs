//! The socket addresses of calls.
//!
//! A bind is noted with its result, a connect or a send at its entry. Most sockets that connect don't block, so
//! that the result of the call is EINPROGRESS and tells nothing of the connection; and a call that blocks would have
//! to be interrupted for its result.
//!
//! The peer of a connected socket that a process receives from another one is noted as a connect of the receiver.
//! Neighbours: `read_only.rs` and `changes.rs` call in here, `network.rs` has the addresses.

use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrV4, SocketAddrV6, getpeername, getsockname};

use super::changes::name_of;
use crate::observe::ledger::ids::ProcessId;
use crate::observe::network::{self, MOST};
use crate::observe::recording::Recording;
use crate::snapshot::{NetworkAddress, WarningKind};
use crate::trace::observer::Caller;
use crate::trace::sys::descriptor_of;
use crate::trace::syscalls::{DecodedSyscall, SocketOperation, SocketUse};

/// How addresses of these families begin.
const INET: [u8; 2] = AddressFamily::INET.as_raw().to_ne_bytes();
const INET6: [u8; 2] = AddressFamily::INET6.as_raw().to_ne_bytes();

impl Recording {
    /// Notes the socket addresses of a call whose result will not be seen. A path at which nothing is makes it
    /// fail.
    pub fn use_sockets(&mut self, caller: Caller, process: ProcessId, decoded: &DecodedSyscall) {
        let mut accesses = decoded.accesses.iter();
        for used in &decoded.sockets {
            let Some(mut address) = self.address_of(caller, used) else { continue };
            let mut errno = None;
            // The paths of a call are those of its addresses, in the same order.
            if let NetworkAddress::Unix(name) = &mut address
                && !name.starts_with(b"\0")
                && let Some(access) = accesses.next()
            {
                let place = self.locate(caller, access);
                errno = place.as_ref().is_ok_and(|place| place.stat.is_none()).then_some(libc::ENOENT);
                *name = name_of(&place).unwrap_or_else(|| std::mem::take(name));
            }
            self.note_socket_use(process, used.operation, address, errno);
        }
    }

    /// The address of a use. A packet socket takes whatever it is sent to for an address of its own, and has no regard to
    /// the family (packet_sendmsg of Linux).
    pub fn address_of(&self, caller: Caller, used: &SocketUse) -> Option<NetworkAddress> {
        let is_internet = || used.address.starts_with(&INET) || used.address.starts_with(&INET6);
        let may_be_packet =
            used.operation == SocketOperation::Send && (self.enforcer.is_some() || !is_internet());
        let domain = || socket_domain(descriptor_of(caller.tgid, used.socket)?).ok();
        match may_be_packet && domain() == Some(AddressFamily::PACKET) {
            true => Some(NetworkAddress::Other("packet".to_owned())),
            false => network::address_of(used),
        }
    }

    /// Notes the internet address of the peer of a socket that a process has received, if it is connected.
    pub fn note_peer(&mut self, caller: Caller, process: ProcessId, fd: i32) {
        let peer = descriptor_of(caller.tgid, fd).and_then(|socket| inet_address(getpeername(socket).ok()??));
        if let Some(peer) = peer {
            self.note_socket_use(process, SocketOperation::Connect, peer, None);
        }
    }

    /// Counts the use of a socket address, with its error if it is known to have failed.
    pub fn note_socket_use(
        &mut self,
        process: ProcessId,
        operation: SocketOperation,
        address: NetworkAddress,
        errno: Option<i32>,
    ) {
        if self.network.note(process, operation, address, errno).is_err() {
            self.warnings.lost(WarningKind::Network, Some(process), || {
                format!("after {MOST} socket addresses, others are not recorded")
            });
        }
    }
}

/// The internet address to which listen(2) binds a socket that is not bound yet; its port is 0: the kernel chooses one.
pub fn address_to_listen_at(caller: Caller, fd: i32) -> Option<NetworkAddress> {
    let address = inet_address(getsockname(descriptor_of(caller.tgid, fd)?).ok()?)?;
    let port = match &address {
        NetworkAddress::Inet(address) => address.port(),
        NetworkAddress::Inet6(address) => address.port(),
        NetworkAddress::Unix(_) | NetworkAddress::Other(_) => return None,
    };
    (port == 0).then_some(address)
}

fn inet_address(address: SocketAddrAny) -> Option<NetworkAddress> {
    let inet = SocketAddrV4::try_from(address.clone()).map(NetworkAddress::Inet);
    inet.or_else(|_| SocketAddrV6::try_from(address).map(NetworkAddress::Inet6)).ok()
}
