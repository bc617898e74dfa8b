//! What was found at a path at the end.
//!
//! Neighbours: `examine.rs` finds it, `records.rs` makes the state of a record of it.

use super::open_files::OpenFiles;
use crate::git::GitFacts;
use crate::observe::capture::Ticket;
use crate::observe::ledger::Ledger;
use crate::observe::ledger::ids::{InodeId, NameId};
use crate::observe::ledger::inodes::{Attributes, Stat};
use crate::snapshot::{BlobOmitted, Digest};

/// What was found when states were taken of a recording that went on.
pub(in crate::observe) struct Interim {
    /// What was at each name.
    pub afters: Vec<(NameId, After)>,
    /// What the tree may change without a call that is seen.
    pub open: OpenFiles,
}

/// What was found at a path. Small, since there is one for each path.
#[derive(Debug, Clone)]
pub(in crate::observe) enum After {
    /// What was there before, by everything that a record tells of it.
    AsBefore(AfterContent),
    /// Nothing.
    Absent(Option<Box<More>>),
    /// Something else, or what it was with something more to tell.
    Now(AfterContent, Box<Now>),
    /// Unknown: the recording keeps no states of what was not changed.
    NotKept,
}

const _: () = assert!(size_of::<(NameId, After)>() <= 24);

#[derive(Debug, Clone)]
pub(in crate::observe) struct Now {
    pub stat: Stat,
    pub more: Option<Box<More>>,
}

const _: () = assert!(size_of::<Now>() <= 72);

/// What few states have.
#[derive(Debug, Default, Clone, PartialEq)]
pub(in crate::observe) struct More {
    pub git: Option<GitFacts>,
    pub target: Option<Vec<u8>>,
    pub entries: Option<Digest>,
    pub attributes: Attributes,
}

impl After {
    pub fn stat(&self, name: NameId, ledger: &Ledger) -> Option<Stat> {
        match self {
            After::AsBefore(_) => ledger.before(name).map(|inode| inode.before),
            After::Absent(_) | After::NotKept => None,
            After::Now(_, now) => Some(now.stat),
        }
    }

    pub fn content(&self) -> AfterContent {
        match self {
            After::AsBefore(content) | After::Now(content, _) => *content,
            After::Absent(_) | After::NotKept => AfterContent::None,
        }
    }

    pub fn more(&self) -> Option<&More> {
        match self {
            After::AsBefore(_) | After::NotKept => None,
            After::Absent(more) => more.as_deref(),
            After::Now(_, now) => now.more.as_deref(),
        }
    }

    /// Whether it is a symlink whose target could not be read.
    pub fn is_unread(&self) -> bool {
        let is_symlink = matches!(self, After::Now(_, now) if now.stat.is_symlink());
        is_symlink && self.more().is_none_or(|more| more.target.is_none())
    }
}

/// Where the bytes of a state at the end are.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::observe) enum AfterContent {
    #[default]
    None,
    /// The bytes that this inode had before.
    OfInode(InodeId),
    Taken(Ticket),
    /// Their digest alone is kept.
    Digested(Ticket),
    Omitted(BlobOmitted),
    /// They are in a directory that may not be searched.
    Hidden,
}
