//! The socket addresses that the processes used.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use indicatif::HumanCount;

use super::super::out::{Console, OutputError, style, visible};
use super::super::paths::quoted;
use crate::snapshot::{Header, NetworkAddress, NetworkOperation, NetworkUse};

/// The longest address that the column after it is aligned to.
pub const WIDTH: usize = 48;

/// How many addresses were connected or sent to; none if there were none.
///
/// Left out: calls that are known to have failed, and netlink, by which the kernel itself is asked.
pub fn contacted(header: &Header) -> Option<String> {
    let is_contact = |used: &&NetworkUse| {
        used.operation != NetworkOperation::Bind && used.errno.is_none() && used.address.family() != "netlink"
    };
    let addresses: BTreeSet<_> = header.network.iter().filter(is_contact).map(|used| &used.address).collect();
    match addresses.len() {
        0 => None,
        1 => Some("1 address".to_owned()),
        count => Some(format!("{} addresses", HumanCount(count as u64))),
    }
}

/// All uses of one address in one way.
#[derive(Debug)]
pub struct AddressUse {
    /// What was done with it.
    pub operation: NetworkOperation,
    /// The address, escaped as on a terminal.
    pub address: String,
    /// How many calls did it.
    pub count: u64,
    /// The processes that did it.
    pub processes: Vec<u32>,
    /// The last error, if all calls are known to have failed.
    pub error: Option<String>,
}

/// The uses of each address in each way, sorted: by all processes, or by one.
pub fn address_uses(header: &Header, process: Option<u32>) -> Vec<AddressUse> {
    let mut uses: BTreeMap<(NetworkOperation, &NetworkAddress), Vec<&NetworkUse>> = BTreeMap::new();
    for used in header.network.iter().filter(|used| process.is_none_or(|process| process == used.process)) {
        uses.entry((used.operation, &used.address)).or_default().push(used);
    }
    let uses = uses.into_iter().map(|((operation, address), uses)| AddressUse {
        operation,
        address: address_text(address),
        count: uses.iter().fold(0, |count, used| count.saturating_add(used.count)),
        processes: uses.iter().map(|used| used.process).collect(),
        error: uses.iter().try_fold(0, |_, used| used.errno).map(error),
    });
    uses.collect()
}

/// Writes a line for each address and operation: of all processes, or of one.
pub fn write(header: &Header, process: Option<u32>, console: &mut Console) -> Result<(), OutputError> {
    let uses = address_uses(header, process);
    if uses.is_empty() {
        let none = console.paint(style::FAINT, "no socket address was used").to_string();
        return writeln!(console, "{none}");
    }
    let widths = uses.iter().map(|used| used.address.chars().count());
    let width = widths.filter(|width| *width <= WIDTH).max().unwrap_or(0);
    for used in &uses {
        let (operation, address) = (used.operation.name(), &used.address);
        let details = console.paint(style::FAINT, details(header, used)).to_string();
        writeln!(console, "{operation:8} {address:width$}  {details}")?;
    }
    Ok(())
}

/// An abstract name of AF_UNIX has an `@` for its NUL, as in ss(8).
pub fn address_text(address: &NetworkAddress) -> String {
    match address {
        NetworkAddress::Inet(address) => address.to_string(),
        NetworkAddress::Inet6(address) => address.to_string(),
        NetworkAddress::Unix(name) => match name.split_first() {
            None => "unix, a name that the kernel chose".to_owned(),
            Some((0, name)) => quoted(&[b"@", name].concat()).into_owned(),
            Some(_) => quoted(name).into_owned(),
        },
        NetworkAddress::Other(family) => visible(family.as_bytes()),
    }
}

fn details(header: &Header, used: &AddressUse) -> String {
    let mut text = users(header, &used.processes, used.count);
    if let Some(error) = &used.error {
        text += &format!(", failed: {error}");
    }
    text
}

/// Which processes made so many calls: the program of one, or how many.
pub fn users(header: &Header, processes: &[u32], calls: u64) -> String {
    let mut text = match processes {
        [id] => {
            let process = header.processes.iter().find(|process| process.id == *id);
            let exe = process.map_or(&b""[..], |process| &process.image.exe);
            let name = Path::new(std::ffi::OsStr::from_bytes(exe)).file_name();
            match name {
                Some(name) => format!("{} (process {id})", quoted(name.as_bytes())),
                None => format!("process {id}"),
            }
        }
        ids => format!("{} processes", HumanCount(ids.len() as u64)),
    };
    if calls > 1 {
        text += &format!(", {} times", HumanCount(calls));
    }
    text
}

/// The text of strerror(3).
fn error(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
