//! What a run depends on besides its start and the paths that it looked at: found by the run, compared like a path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::key::names;
use crate::fs::HeldLock;
use crate::snapshot::printable;

/// Something that a run depended on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Probe {
    /// The variables of this name, or those whose names begin so if a `*` ends it, which do not count for other runs.
    Variable(String),
    /// Whether anybody holds a lock on this file.
    Lock(#[serde(with = "super::entry::bytes")] Vec<u8>),
}

impl Probe {
    /// What the run found, in the environment of this process.
    pub fn recorded(&self) -> String {
        match self {
            Probe::Variable(pattern) => variables(pattern),
            // A run that was told of somebody else's is not kept.
            Probe::Lock(_) => held(false),
        }
    }

    /// What is found now.
    pub fn now(&self) -> String {
        /// One look for all.
        static LOCKS: LazyLock<Option<Vec<HeldLock>>> = LazyLock::new(|| crate::fs::locks().ok());
        match self {
            Probe::Variable(pattern) => variables(pattern),
            Probe::Lock(path) => {
                let inode = crate::fs::lstat(path).ok().flatten().map(|stat| stat.st_ino);
                held(match &*LOCKS {
                    Some(locks) => locks.iter().any(|lock| Some(lock.inode) == inode),
                    None => true,
                })
            }
        }
    }

    /// What it is, for a sentence.
    pub fn named(&self) -> String {
        match self {
            Probe::Variable(pattern) => format!("the variable {pattern}"),
            Probe::Lock(path) => format!("the lock on {}", printable(path)),
        }
    }
}

fn held(is_held: bool) -> String {
    if is_held { "locked" } else { "free" }.to_owned()
}

fn variables(pattern: &str) -> String {
    let mut found: Vec<_> = std::env::vars_os().filter(|(name, _)| names(pattern, name)).collect();
    found.sort();
    let text = |name: &OsStr| faster_hex::hex_string(name.as_bytes());
    found.iter().map(|(name, value)| format!("{}={}\n", text(name), text(value))).collect()
}
