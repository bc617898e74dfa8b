//! Patterns of socket addresses.
//!
//! Neighbours: `rules.rs` has the words, `patterns.rs` the patterns of paths.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::glob::{PathGlob, check, name_matches};
use super::patterns::{PRESETS, PathMatch};
use crate::snapshot::{NetworkAddress, NetworkOperation, NetworkUse};

/// Which socket addresses a rule means.
#[derive(Debug, Clone)]
pub enum AddressRule {
    /// All but those of AF_UNIX, and of netlink, by which the kernel itself is asked.
    Any,
    /// Internet addresses: of these hosts, at this port or any.
    Inet(Hosts, Option<u16>),
    /// AF_UNIX: all, or those whose path matches.
    Unix(Option<PathMatch>),
    /// Abstract names of AF_UNIX that match.
    Abstract(Vec<u8>),
}

/// Which hosts a rule means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// All of them.
    Any,
    /// This machine.
    Loopback,
    /// Those whose address begins with as many bits of this one.
    Network(IpAddr, u8),
}

impl AddressRule {
    /// Reads a rule; `paths` makes the patterns of a path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(
        text: &[u8],
        paths: impl FnOnce(&[u8]) -> Result<Vec<PathGlob>, String>,
    ) -> Result<AddressRule, String> {
        match text.strip_prefix(b"unix:").map(|path| path.strip_prefix(b"@").ok_or(path)) {
            Some(Ok(name)) => AddressRule::abstract_name(name),
            Some(Err(path)) => Ok(AddressRule::Unix(Some(PathMatch::Globs(paths(path)?)))),
            None if text == b"unix" => Ok(AddressRule::Unix(None)),
            None => AddressRule::parse_inet(text),
        }
    }

    /// Reads a rule about sockets of AF_UNIX: a path, a preset, or `@` and an abstract name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_unix(
        text: &[u8],
        paths: impl FnOnce(&[u8]) -> Result<PathMatch, String>,
    ) -> Result<AddressRule, String> {
        match text.strip_prefix(b"@") {
            _ if PRESETS.contains(&text) => Ok(AddressRule::Unix(Some(paths(text)?))),
            Some(name) => AddressRule::abstract_name(name),
            None => Ok(AddressRule::Unix(Some(paths(text)?))),
        }
    }

    fn abstract_name(name: &[u8]) -> Result<AddressRule, String> {
        check(name)?;
        Ok(AddressRule::Abstract(name.to_vec()))
    }

    /// Reads a rule about other addresses than those of AF_UNIX.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_inet(text: &[u8]) -> Result<AddressRule, String> {
        if text == b"*" {
            return Ok(AddressRule::Any);
        }
        if text == b"unix" || text.starts_with(b"unix:") {
            return Err("is about sockets of AF_UNIX, which --allow-unix allows".to_owned());
        }
        let text = std::str::from_utf8(text).map_err(|_| NOT_AN_ADDRESS.to_owned())?;
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(None) => return Err("has a [ without its ]".to_owned()),
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, rest))) => {
                (host, Some(rest.strip_prefix(':').ok_or("has something behind its ] that is no port")?))
            }
            // An address of IPv6 has two colons at least.
            None => match text.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (text, None),
            },
        };
        let port =
            port.map(str::parse).transpose().map_err(|_| "has a port that is no number up to 65535")?;
        Ok(AddressRule::Inet(Hosts::parse(host)?, port))
    }

    /// The port that it names.
    pub fn port(&self) -> Option<u16> {
        match self {
            AddressRule::Inet(_, port) => *port,
            AddressRule::Any | AddressRule::Unix(_) | AddressRule::Abstract(_) => None,
        }
    }

    /// The paths of sockets that it names.
    pub fn paths(&self) -> Option<&PathMatch> {
        match self {
            AddressRule::Unix(paths) => paths.as_ref(),
            AddressRule::Any | AddressRule::Inet(..) | AddressRule::Abstract(_) => None,
        }
    }

    /// Whether a use is of such an address.
    pub fn matches(&self, used: &NetworkUse) -> bool {
        match (self, &used.address) {
            (AddressRule::Any, NetworkAddress::Inet(_) | NetworkAddress::Inet6(_)) => true,
            (AddressRule::Any, NetworkAddress::Other(family)) => family != "netlink",
            (AddressRule::Inet(hosts, port), address) => {
                let (host, its_port) = match address {
                    NetworkAddress::Inet(address) => (IpAddr::from(*address.ip()), address.port()),
                    NetworkAddress::Inet6(address) => (IpAddr::from(*address.ip()), address.port()),
                    NetworkAddress::Unix(_) | NetworkAddress::Other(_) => return false,
                };
                port.is_none_or(|port| port == its_port) && hosts.contain(host, used.operation)
            }
            (AddressRule::Unix(None), NetworkAddress::Unix(_)) => true,
            (AddressRule::Unix(Some(paths)), NetworkAddress::Unix(path)) => {
                path.starts_with(b"/") && paths.matches(path, |_| false)
            }
            (AddressRule::Abstract(glob), NetworkAddress::Unix(name)) => {
                name.strip_prefix(b"\0").is_some_and(|name| name_matches(glob, name))
            }
            (AddressRule::Any, NetworkAddress::Unix(_))
            | (
                AddressRule::Unix(_) | AddressRule::Abstract(_),
                NetworkAddress::Inet(_) | NetworkAddress::Inet6(_) | NetworkAddress::Other(_),
            ) => false,
        }
    }
}

/// An address that a user asks about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskedAddress {
    /// A host, at this port or any.
    Inet(IpAddr, Option<u16>),
    /// A socket of AF_UNIX, as recorded.
    Unix(Vec<u8>),
}

impl AskedAddress {
    /// Reads one host, `localhost`, or `unix:` and a socket, as rules have them; none if it is something else.
    pub fn parse(text: &[u8]) -> Option<AskedAddress> {
        if let Some(name) = text.strip_prefix(b"unix:") {
            let is_abstract = name.starts_with(b"@");
            let path = if is_abstract { [b"\0", &name[1..]].concat() } else { name.to_vec() };
            return Some(AskedAddress::Unix(path));
        }
        match AddressRule::parse_inet(text).ok()? {
            AddressRule::Inet(Hosts::Loopback, port) => {
                Some(AskedAddress::Inet(Ipv4Addr::LOCALHOST.into(), port))
            }
            AddressRule::Inet(Hosts::Network(host, length), port) => {
                let is_one = length == if host.is_ipv4() { 32 } else { 128 };
                is_one.then_some(AskedAddress::Inet(host, port))
            }
            AddressRule::Any
            | AddressRule::Inet(Hosts::Any, _)
            | AddressRule::Unix(_)
            | AddressRule::Abstract(_) => None,
        }
    }

    /// A connection to it; `port` counts if it has none.
    pub(super) fn connection(&self, port: Option<u16>) -> NetworkUse {
        let address = match self {
            AskedAddress::Unix(name) => NetworkAddress::Unix(name.clone()),
            AskedAddress::Inet(host, own) => match SocketAddr::new(*host, own.or(port).unwrap_or_default()) {
                SocketAddr::V4(address) => NetworkAddress::Inet(address),
                SocketAddr::V6(address) => NetworkAddress::Inet6(address),
            },
        };
        NetworkUse { process: 0, operation: NetworkOperation::Connect, address, count: 1, errno: None }
    }
}

const NOT_AN_ADDRESS: &str = "is not an address: recordings know addresses such as 10.0.0.1, [fd00::1]:443, \
    10.0.0.0/8, localhost, :25 or unix:/run/x.sock, and no names";

impl Hosts {
    fn parse(text: &str) -> Result<Hosts, String> {
        let (host, length) = match text.split_once('/') {
            Some((host, length)) => (host, Some(length)),
            None => (text, None),
        };
        match (host, length) {
            ("" | "*", None) => return Ok(Hosts::Any),
            ("localhost", None) => return Ok(Hosts::Loopback),
            _ => {}
        }
        let address: IpAddr = host.parse().map_err(|_| NOT_AN_ADDRESS.to_owned())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => longest,
            Some(length) => length
                .parse()
                .ok()
                .filter(|length| *length <= longest)
                .ok_or_else(|| format!("has a length of its prefix that is no number up to {longest}"))?,
        };
        Ok(Hosts::Network(address, length))
    }

    fn contain(self, host: IpAddr, operation: NetworkOperation) -> bool {
        let is_bound = operation == NetworkOperation::Bind;
        self.has(host) || !is_bound && loopback_for(host).is_some_and(|host| self.has(host))
    }

    fn has(self, host: IpAddr) -> bool {
        let canonical = host.to_canonical();
        match self {
            Hosts::Any => true,
            Hosts::Loopback => canonical.is_loopback(),
            Hosts::Network(IpAddr::V6(network), length) => match host {
                IpAddr::V6(host) => same_start(network.to_bits(), host.to_bits(), 128, length),
                IpAddr::V4(host) => {
                    same_start(network.to_bits(), host.to_ipv6_mapped().to_bits(), 128, length)
                        && network.to_ipv4_mapped().is_some()
                }
            },
            Hosts::Network(IpAddr::V4(network), length) => match canonical {
                IpAddr::V4(host) => same_start(network.to_bits().into(), host.to_bits().into(), 32, length),
                IpAddr::V6(_) => false,
            },
        }
    }
}

/// The address that Linux takes for the unspecified one in a connect or sendto (ip(7), ipv6(7)).
fn loopback_for(host: IpAddr) -> Option<IpAddr> {
    let loopback = match host.to_canonical() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    host.to_canonical().is_unspecified().then_some(loopback)
}

/// Whether the first `length` of `bits` bits are the same.
fn same_start(one: u128, other: u128, bits: u8, length: u8) -> bool {
    (one ^ other).checked_shr(u32::from(bits - length)).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<AddressRule, String> {
        AddressRule::parse(text.as_bytes(), |path| {
            let base: &[u8] = if path.starts_with(b"/") { b"/" } else { b"/w" };
            Ok(vec![PathGlob::below(base, path)?])
        })
    }

    fn used(address: &str) -> NetworkUse {
        let operation =
            if address.starts_with("bind ") { NetworkOperation::Bind } else { NetworkOperation::Connect };
        let address = address.strip_prefix("bind ").unwrap_or(address);
        let address = match address.parse() {
            Ok(std::net::SocketAddr::V4(address)) => NetworkAddress::Inet(address),
            Ok(std::net::SocketAddr::V6(address)) => NetworkAddress::Inet6(address),
            Err(_) if address.starts_with(['/', '\0']) => NetworkAddress::Unix(address.into()),
            Err(_) => NetworkAddress::Other(address.to_owned()),
        };
        NetworkUse { process: 1, operation, address, count: 1, errno: None }
    }

    #[test]
    fn rules_match_addresses() {
        for (text, matching, others) in [
            ("*", &["1.2.3.4:80", "[::1]:1", "packet", "bind 0.0.0.0:80"][..], &["netlink", "/s", "\0s"][..]),
            ("1.2.3.4", &["1.2.3.4:80", "[::ffff:1.2.3.4]:80"], &["1.2.3.5:80", "[::1]:80", "/1.2.3.4"]),
            ("1.2.3.4:80", &["1.2.3.4:80"], &["1.2.3.4:81"]),
            ("127.0.0.1", &["0.0.0.0:80", "[::ffff:0.0.0.0]:80"], &["bind 0.0.0.0:80", "[::]:80"]),
            ("::1", &["[::]:80"], &["bind [::]:80", "0.0.0.0:80"]),
            ("0.0.0.0", &["0.0.0.0:80", "bind 0.0.0.0:80"], &["127.0.0.1:80"]),
            ("10.0.0.0/8", &["10.9.9.9:1"], &["11.0.0.1:1"]),
            ("0.0.0.0/0:25", &["9.9.9.9:25"], &["9.9.9.9:26", "[::1]:25"]),
            (":25", &["1.2.3.4:25", "[fd00::1]:25"], &["1.2.3.4:26"]),
            ("fd00::/8", &["[fd12::1]:1"], &["[fe80::1]:1", "10.0.0.1:1"]),
            ("[fd00::1]:443", &["[fd00::1]:443", "[fd00::1%3]:443"], &["[fd00::1]:80", "[fd00::2]:443"]),
            ("[fd00::/8]:443", &["[fd12::1]:443"], &["[fd12::1]:80"]),
            ("::ffff:1.2.3.4", &["1.2.3.4:1", "[::ffff:1.2.3.4]:1"], &["1.2.3.5:1"]),
            (
                "localhost",
                &["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "0.0.0.0:1", "[::]:1"],
                &["bind 0.0.0.0:1"],
            ),
            ("unix", &["/s", "\0s"], &["1.2.3.4:1", "netlink"]),
            ("unix:/run/*.sock", &["/run/a.sock"], &["/run/a", "\0/run/a.sock"]),
            ("unix:s", &["/w/s"], &["/s"]),
            ("unix:@dbus-*", &["\0dbus-1"], &["/dbus-1", "\0x"]),
        ] {
            let rule = rule(text).unwrap();
            for address in matching {
                assert!(rule.matches(&used(address)), "{text} {address}");
            }
            for address in others {
                assert!(!rule.matches(&used(address)), "{text} {address}");
            }
        }
    }

    #[test]
    fn a_rule_that_is_no_address_is_refused() {
        for (wrong, why) in [
            ("example.org", "is not an address"),
            ("example.org:443", "is not an address"),
            ("1.2.3", "is not an address"),
            ("1.2.3.4:http", "has a port"),
            ("1.2.3.4:65536", "has a port"),
            ("1.2.3.4:", "has a port"),
            ("1.2.3.4/33", "has a length"),
            ("[::1", "has a ["),
            ("[::1]80", "has something"),
            ("unix:[", "has a ["),
            ("unix:@[", "has a ["),
        ] {
            let said = rule(wrong).unwrap_err();
            assert!(said.starts_with(why), "{wrong}: {said}");
        }
    }
}
