//! Identifies a snapshot, the program that wrote it, and the machine.

use std::hash::{BuildHasher as _, RandomState};

use sha2::{Digest as _, Sha256};

use super::manifest::{Digest, Host, Tool};

/// Makes a random identifier, 128 bits in hexadecimal.
pub fn random_id() -> String {
    let half = || RandomState::new().hash_one(());
    format!("{:016x}{:016x}", half(), half())
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
