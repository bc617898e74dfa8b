//! What tells one snapshot, one build of the program and one machine from others.

use std::hash::{BuildHasher as _, RandomState};

use super::live::machine_id_hash;
use super::manifest::{Host, Tool};

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
