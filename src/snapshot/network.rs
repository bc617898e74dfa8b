//! The network in a manifest: which process used which socket address, and how.
//!
//! Neighbours: `manifest.rs` has the other records, `wire.rs` their JSON.

use std::net::{SocketAddrV4, SocketAddrV6};

/// What a process did with a socket address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkOperation {
    /// connect.
    Connect,
    /// bind.
    Bind,
    /// sendto, sendmsg or sendmmsg with an address.
    Send,
}

/// A socket address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkAddress {
    /// AF_INET.
    Inet(SocketAddrV4),
    /// AF_INET6; the flow information is left out.
    Inet6(SocketAddrV6),
    /// AF_UNIX: a path, or an abstract name, which begins with a NUL. Empty if the kernel chooses the name.
    Unix(Vec<u8>),
    /// Another family: its name, or its number.
    Other(String),
}

impl NetworkAddress {
    /// The name of its family, or the number of a family without a name here.
    pub fn family(&self) -> &str {
        match self {
            NetworkAddress::Inet(_) => "inet",
            NetworkAddress::Inet6(_) => "inet6",
            NetworkAddress::Unix(_) => "unix",
            NetworkAddress::Other(family) => family,
        }
    }

    /// Its host, with the scope of a link-local address behind a `%`, and its port.
    pub fn host_and_port(&self) -> Option<(String, u16)> {
        match self {
            NetworkAddress::Inet(address) => Some((address.ip().to_string(), address.port())),
            NetworkAddress::Inet6(address) => {
                let scope = match address.scope_id() {
                    0 => String::new(),
                    scope => format!("%{scope}"),
                };
                Some((format!("{}{scope}", address.ip()), address.port()))
            }
            NetworkAddress::Unix(_) | NetworkAddress::Other(_) => None,
        }
    }
}

/// All uses of one address by one process in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUse {
    /// The process (an id of `processes`).
    pub process: u32,
    /// What it did.
    pub operation: NetworkOperation,
    /// The address.
    pub address: NetworkAddress,
    /// How many calls did it.
    pub count: u64,
    /// The last error (errno(3)), if all calls are known to have failed.
    pub errno: Option<i32>,
}
