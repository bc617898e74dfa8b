//! The socket addresses that the processes used.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use indicatif::HumanCount;

use super::super::out::{Console, OutputError, style, visible};
use super::super::paths::quoted;
use crate::snapshot::{Header, NetworkAddress, NetworkOperation, NetworkUse};

/// The longest address that the column after it is aligned to.
const WIDTH: usize = 48;

/// How many addresses were connected or sent to, as a line of the header; none if there were none.
///
/// Left out: calls that are known to have failed, and netlink, by which the kernel itself is asked.
pub fn contacted(header: &Header) -> Option<String> {
    let is_contact = |used: &&NetworkUse| {
        used.operation != NetworkOperation::Bind && used.errno.is_none() && used.address.family() != "netlink"
    };
    let addresses: BTreeSet<_> = header.network.iter().filter(is_contact).map(|used| &used.address).collect();
    match addresses.len() {
        0 => None,
        1 => Some("1 address contacted (--network shows it)".to_owned()),
        count => Some(format!("{} addresses contacted (--network lists them)", HumanCount(count as u64))),
    }
}

/// All uses of one address in one way.
#[derive(Debug, Default)]
struct Uses {
    count: u64,
    processes: Vec<u32>,
    errno: Option<i32>,
    may_have_succeeded: bool,
}

/// Writes a line for each address and operation: of all processes, or of one.
pub fn write(header: &Header, process: Option<u32>, console: &mut Console) -> Result<(), OutputError> {
    let mut lines: BTreeMap<(NetworkOperation, &NetworkAddress), Uses> = BTreeMap::new();
    for used in header.network.iter().filter(|used| process.is_none_or(|process| process == used.process)) {
        let uses = lines.entry((used.operation, &used.address)).or_default();
        uses.count = uses.count.saturating_add(used.count);
        uses.processes.push(used.process);
        uses.errno = used.errno;
        uses.may_have_succeeded |= used.errno.is_none();
    }
    if lines.is_empty() {
        let none = console.paint(style::FAINT, "no socket address was used").to_string();
        return writeln!(console, "{none}");
    }
    let texts: Vec<_> = lines.keys().map(|(_, address)| text(address)).collect();
    let width = texts.iter().map(|text| text.chars().count()).filter(|width| *width <= WIDTH).max();
    let width = width.unwrap_or(0);
    for (((operation, _), uses), text) in lines.iter().zip(&texts) {
        let operation = operation.name();
        let details = console.paint(style::FAINT, details(header, uses)).to_string();
        writeln!(console, "{operation:8} {text:width$}  {details}")?;
    }
    Ok(())
}

/// An abstract name of AF_UNIX has an `@` for its NUL, as in ss(8).
fn text(address: &NetworkAddress) -> String {
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

fn details(header: &Header, uses: &Uses) -> String {
    let mut text = match uses.processes.as_slice() {
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
    if uses.count > 1 {
        text += &format!(", {} times", HumanCount(uses.count));
    }
    if let Some(errno) = uses.errno.filter(|_| !uses.may_have_succeeded) {
        text += &format!(", failed: {}", error(errno));
    }
    text
}

/// The text of strerror(3).
fn error(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
