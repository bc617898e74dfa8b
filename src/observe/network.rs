//! The socket addresses that the processes of the tree used.
//!
//! Neighbour: `calls/sockets.rs` notes them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use super::ledger::ids::ProcessId;
use crate::snapshot::{NetworkAddress, NetworkOperation, NetworkUse};
use crate::trace::syscalls::{SocketOperation, SocketUse};

/// How many uses are told apart: a scan of ports must not fill the memory.
pub const MOST: usize = 10_000;

impl From<SocketOperation> for NetworkOperation {
    fn from(operation: SocketOperation) -> NetworkOperation {
        match operation {
            SocketOperation::Connect => NetworkOperation::Connect,
            SocketOperation::Bind => NetworkOperation::Bind,
            SocketOperation::Send => NetworkOperation::Send,
        }
    }
}

/// The addresses that were used so far.
#[derive(Debug, Default)]
pub struct Network(BTreeMap<(u32, NetworkOperation, NetworkAddress), Tally>);

#[derive(Debug, Clone, Copy)]
struct Tally {
    count: u64,
    errno: Option<i32>,
}

/// What was not kept, since there are too many of its kind.
#[derive(Debug)]
pub struct TooMany;

impl Network {
    /// Counts a use; `errno` is its error, if it is known to have failed.
    pub fn note(
        &mut self,
        ProcessId(process): ProcessId,
        operation: SocketOperation,
        address: NetworkAddress,
        errno: Option<i32>,
    ) -> Result<(), TooMany> {
        let is_full = self.0.len() >= MOST;
        match self.0.entry((process, operation.into(), address)) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.count += 1;
                known.errno = known.errno.and(errno);
            }
            Entry::Vacant(_) if is_full => return Err(TooMany),
            Entry::Vacant(new) => {
                new.insert(Tally { count: 1, errno });
            }
        }
        Ok(())
    }

    /// All of them, sorted by process, operation and address.
    pub fn uses(&self) -> Vec<NetworkUse> {
        let uses = self.0.iter().map(|((process, operation, address), Tally { count, errno })| NetworkUse {
            process: *process,
            operation: *operation,
            address: address.clone(),
            count: *count,
            errno: *errno,
        });
        uses.collect()
    }
}

/// The address of a use; none where the kernel refuses it as too short, and of a connect that dissolves an
/// association (AF_UNSPEC).
///
/// Another family than AF_INET, AF_INET6 and AF_UNIX has its name alone.
pub fn address_of(used: &SocketUse) -> Option<NetworkAddress> {
    let (family, rest) = used.address.split_first_chunk::<2>()?;
    Some(match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_UNIX => unix(rest, used.operation)?,
        libc::AF_INET => inet(rest)?,
        libc::AF_INET6 => inet6(rest)?,
        libc::AF_UNSPEC => match used.operation {
            SocketOperation::Connect => return None,
            // To Linux it is AF_INET, if anything (udp_sendmsg, inet_bind).
            SocketOperation::Bind | SocketOperation::Send => inet(rest)?,
        },
        libc::AF_NETLINK => other("netlink"),
        libc::AF_PACKET => other("packet"),
        libc::AF_VSOCK => other("vsock"),
        libc::AF_BLUETOOTH => other("bluetooth"),
        libc::AF_CAN => other("can"),
        libc::AF_ALG => other("alg"),
        libc::AF_XDP => other("xdp"),
        libc::AF_TIPC => other("tipc"),
        number => NetworkAddress::Other(number.to_string()),
    })
}

fn other(family: &str) -> NetworkAddress {
    NetworkAddress::Other(family.to_owned())
}

/// The rest of a struct sockaddr_un: a path ends at its NUL, an abstract name is as long as the call says.
fn unix(rest: &[u8], operation: SocketOperation) -> Option<NetworkAddress> {
    /// The length of `sun_path`.
    const LONGEST: usize = 108;
    let name = match rest.first() {
        Some(0) => rest,
        Some(_) => rest.split(|byte| *byte == 0).next()?,
        // The kernel chooses an abstract name.
        None if operation == SocketOperation::Bind => b"",
        None => return None,
    };
    (rest.len() <= LONGEST).then(|| NetworkAddress::Unix(name.to_vec()))
}

/// The rest of a struct sockaddr_in: a port, an address, and padding.
fn inet(rest: &[u8]) -> Option<NetworkAddress> {
    let rest = rest.first_chunk::<14>()?;
    let port = u16::from_be_bytes([rest[0], rest[1]]);
    let address = Ipv4Addr::new(rest[2], rest[3], rest[4], rest[5]);
    Some(NetworkAddress::Inet(SocketAddrV4::new(address, port)))
}

/// The rest of a struct sockaddr_in6: a port, flow information, an address, and a scope, which RFC 2133 had not.
fn inet6(rest: &[u8]) -> Option<NetworkAddress> {
    let (port, rest) = rest.split_first_chunk()?;
    let (_flow, rest) = rest.split_first_chunk::<4>()?;
    let (address, scope) = rest.split_first_chunk::<16>()?;
    let scope = scope.first_chunk().map_or(0, |scope| u32::from_ne_bytes(*scope));
    let address = Ipv6Addr::from(*address);
    Some(NetworkAddress::Inet6(SocketAddrV6::new(address, u16::from_be_bytes(*port), 0, scope)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(operation: SocketOperation, address: &[u8]) -> Option<NetworkAddress> {
        address_of(&SocketUse { operation, socket: 3, address: address.to_vec() })
    }

    fn connected(address: &[u8]) -> Option<NetworkAddress> {
        used(SocketOperation::Connect, address)
    }

    const INET: [u8; 16] = [2, 0, 1, 187, 10, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9];

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let inet = Some(NetworkAddress::Inet("10.0.0.1:443".parse().unwrap()));
        assert_eq!(connected(&INET), inet);
        assert_eq!(connected(&[&INET[..], &[1; 8]].concat()), inet);
        assert_eq!(connected(&INET[..15]), None, "EINVAL");
        let inet6 = [&[10, 0, 0, 80, 7, 7, 7, 7][..], &Ipv6Addr::LOCALHOST.octets(), &[3, 0, 0, 0]].concat();
        assert_eq!(connected(&inet6), Some(NetworkAddress::Inet6("[::1%3]:80".parse().unwrap())));
        assert_eq!(connected(&inet6[..24]), Some(NetworkAddress::Inet6("[::1]:80".parse().unwrap())));
        assert_eq!(connected(&inet6[..23]), None, "EINVAL");
        let unix = |name: &[u8]| Some(NetworkAddress::Unix(name.to_vec()));
        assert_eq!(connected(b"\x01\0/s\0rest"), unix(b"/s"));
        assert_eq!(connected(b"\x01\0/s"), unix(b"/s"));
        assert_eq!(connected(b"\x01\0\0a\0b\0"), unix(b"\0a\0b\0"));
        assert_eq!(connected(&[&[1, 0][..], &[b'x'; 108]].concat()), unix(&[b'x'; 108]));
        assert_eq!(connected(&[&[1, 0][..], &[b'x'; 109]].concat()), None, "EINVAL");
        assert_eq!(connected(b"\x01\0"), None, "EINVAL");
        assert_eq!(used(SocketOperation::Bind, b"\x01\0"), unix(b""));
        let other = |family: &str| Some(NetworkAddress::Other(family.to_owned()));
        assert_eq!(connected(&[16, 0, 0, 0]), other("netlink"));
        assert_eq!(connected(&[43, 0]), other("43"));
        assert_eq!(connected(&[2]), None);
        assert_eq!(connected(b""), None);
    }

    #[test]
    fn unspecified_family_dissolves_or_is_inet() {
        let unspecified = [&[0, 0], &INET[2..]].concat();
        assert_eq!(connected(&unspecified), None);
        assert_eq!(used(SocketOperation::Send, &unspecified), connected(&INET));
        assert_eq!(used(SocketOperation::Bind, &unspecified), connected(&INET));
        assert_eq!(used(SocketOperation::Send, &unspecified[..8]), None);
    }

    #[test]
    fn error_is_kept_until_a_call_may_have_succeeded() {
        let mut network = Network::default();
        let mut note = |errno| {
            let address = NetworkAddress::Unix(b"/s".to_vec());
            network.note(ProcessId(1), SocketOperation::Bind, address, errno).unwrap();
            let uses = network.uses();
            (uses.len(), uses[0].count, uses[0].errno)
        };
        assert_eq!(note(Some(98)), (1, 1, Some(98)));
        assert_eq!(note(Some(13)), (1, 2, Some(13)));
        assert_eq!(note(None), (1, 3, None));
        assert_eq!(note(Some(98)), (1, 4, None));
    }

    #[test]
    fn number_of_uses_is_bounded() {
        let mut network = Network::default();
        let mut note = |number: usize| {
            let address = NetworkAddress::Unix(number.to_string().into_bytes());
            network.note(ProcessId(1), SocketOperation::Connect, address, None).is_ok()
        };
        assert!((0..MOST).all(&mut note));
        assert!(!note(MOST));
        assert!(note(0), "those that are known are counted on");
        assert_eq!(network.uses().len(), MOST);
    }
}
