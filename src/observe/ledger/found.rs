//! The states that were found at the end where they differ from those before. They are kept in blocks and named by
//! number, since there may be one for each path.
//!
//! Neighbours: `finish/examine.rs` finds them, `finish/records.rs` makes the states of records of them.

use super::blocks::Blocks;
use super::ids::{FactsId, StatId};
use super::inodes::{Attributes, Stat};
use crate::git::GitFacts;
use crate::snapshot::Digest;

/// What few states have beside what lstat(2) says.
#[derive(Debug, Default, PartialEq)]
pub struct RareStateFacts {
    /// How Git knows it.
    pub git: Option<GitFacts>,
    /// The target of a symlink.
    pub target: Option<Vec<u8>>,
    /// The digest of the entries of a directory.
    pub entries: Option<Digest>,
    /// The extended attributes and flags.
    pub attributes: Attributes,
}

/// The states that were found.
#[derive(Debug, Default)]
pub struct FoundStates {
    stats: Blocks<Stat>,
    facts: Blocks<RareStateFacts>,
}

impl FoundStates {
    /// Adds what lstat(2) has said.
    pub fn add(&mut self, stat: Stat) -> StatId {
        StatId::of(self.stats.push(stat))
    }

    /// Adds what there is beside that, if there is anything.
    pub fn add_facts(&mut self, facts: RareStateFacts) -> Option<FactsId> {
        (facts != RareStateFacts::default()).then(|| FactsId::of(self.facts.push(facts)))
    }

    /// What lstat(2) has said.
    pub fn stat(&self, id: StatId) -> &Stat {
        self.stats.get(id.index())
    }

    /// What there is beside that.
    pub fn facts(&self, id: FactsId) -> &RareStateFacts {
        self.facts.get(id.index())
    }
}
