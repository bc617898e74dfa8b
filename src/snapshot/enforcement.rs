//! Enforcement in a manifest: which rules held while the command ran, and what was refused by them.
//!
//! Neighbours: `manifest.rs` has the other records, `wire.rs` their JSON.

use serde::{Deserialize, Serialize};

use super::manifest::{Header, Operation};
use super::network::{NetworkAddress, NetworkOperation};

/// The rule, in a refusal, of what may not be changed whatever the rules are: the rules, our programs, the snapshot.
pub const PROTECTED: &str = "protected";

/// What follows when a rule forbids a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcementMode {
    /// The call fails, and the command goes on.
    Refuse,
    /// The call fails, and the process tree is ended.
    End,
}

/// The rules that were enforced while the command ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforcement {
    /// What followed from a forbidden call.
    pub mode: EnforcementMode,
    /// The rules as given, each behind its word: `deny-read @secrets`.
    pub rules: Vec<String>,
    /// The words of the rules that Landlock enforced, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub landlock: Vec<String>,
    /// What could not be enforced; sentences.
    pub limits: Vec<String>,
}

/// All calls of one process that one rule refused for one path or address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedUse {
    /// What the calls were about to use, and how.
    pub subject: RefusedSubject,
    /// The rule: with its word, the word alone if it allows and does not match, or `protected`.
    pub rule: String,
    /// The process (an id of `processes`).
    pub process: u32,
    /// How many calls were refused.
    pub count: u64,
}

/// What a refused call was about to use, and how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RefusedSubject {
    /// A path.
    Path {
        /// The path that the rule is about.
        path: Vec<u8>,
        /// The other name of the file, by which it was to be used.
        through: Option<Vec<u8>>,
        /// How.
        operation: Operation,
    },
    /// A socket address.
    Address {
        /// The address.
        address: NetworkAddress,
        /// How.
        operation: NetworkOperation,
    },
}

impl RefusedSubject {
    /// The word for how it was to be used.
    pub fn operation(&self) -> &'static str {
        match self {
            RefusedSubject::Path { operation, .. } => operation.name(),
            RefusedSubject::Address { operation, .. } => operation.name(),
        }
    }
}

impl Header {
    /// How many calls rules refused.
    pub fn refused_calls(&self) -> u64 {
        self.refused.iter().fold(0, |sum, refused| sum.saturating_add(refused.count))
    }
}
