//! Identifies a snapshot, the program that wrote it, and the machine.

use std::hash::{BuildHasher as _, RandomState};

use sha2::{Digest as _, Sha256};

use super::manifest::{Digest, Header, Host, SnapshotKind, Tool};

/// Makes a random identifier: 26 characters of base 32 (RFC 4648), 128 bits.
pub fn random_id() -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let half = || {
        let random = RandomState::new().hash_one(());
        (0..13)
            .map(move |digit| char::from(DIGITS[usize::from((random >> (5 * digit)).to_le_bytes()[0] % 32)]))
    };
    half().chain(half()).collect()
}

impl Header {
    /// The header of a snapshot that this process makes now, for its own user: complete, and with every list
    /// empty.
    pub fn new(id: String, kind: SnapshotKind, command: Vec<Vec<u8>>, start_cwd: Vec<u8>) -> Header {
        let now = jiff::Timestamp::now().to_string();
        Header {
            id,
            kind,
            tool: Tool::current(),
            host: Host::current(),
            command,
            start_cwd,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            started_at: now.clone(),
            finished_at: now,
            complete: true,
            ..Header::default()
        }
    }
}

impl Tool {
    /// This program.
    pub fn current() -> Tool {
        Tool { name: env!("CARGO_PKG_NAME").to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl Host {
    /// This machine.
    pub fn current() -> Host {
        Host {
            arch: std::env::consts::ARCH.to_owned(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            machine: machine_id_hash().to_string(),
        }
    }
}

/// Identifies this machine without disclosing its machine id: a hash of that, or of the host name if there is
/// none.
pub fn machine_id_hash() -> Digest {
    let id = std::fs::read("/etc/machine-id").unwrap_or_default();
    let id = match id.trim_ascii() {
        b"" => rustix::system::uname().nodename().to_bytes().to_vec(),
        id => id.to_vec(),
    };
    let mut hasher = Sha256::new();
    hasher.update("agent-snapshot:");
    hasher.update(id);
    Digest::finish(hasher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_the_machine_stays_the_same_and_hides_the_id() {
        assert_eq!(machine_id_hash(), machine_id_hash());
        let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        assert!(id.trim().is_empty() || !machine_id_hash().to_string().contains(id.trim()));
    }
}
