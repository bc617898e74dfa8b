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
    /// Nothing, and nothing more to tell.
    Absent,
    /// Something else, or what it was with something more to tell.
    Now(Box<Now>),
    /// Unknown: the recording keeps no states of what was not changed.
    NotKept,
}

const _: () = assert!(size_of::<(NameId, After)>() <= 24);

#[derive(Debug, Default, Clone)]
pub(in crate::observe) struct Now {
    pub stat: Option<Stat>,
    pub content: AfterContent,
    pub more: Option<Box<More>>,
}

/// What few states have.
#[derive(Debug, Default, Clone, PartialEq)]
pub(in crate::observe) struct More {
    pub git: Option<GitFacts>,
    pub target: Option<Vec<u8>>,
    pub entries: Option<Digest>,
    pub attributes: Attributes,
}

impl Now {
    pub fn git(&self) -> Option<&GitFacts> {
        self.more.as_ref()?.git.as_ref()
    }
}

impl After {
    pub fn stat(&self, name: NameId, ledger: &Ledger) -> Option<Stat> {
        match self {
            After::AsBefore(_) => ledger.before(name).map(|inode| inode.before),
            After::Absent | After::NotKept => None,
            After::Now(now) => now.stat,
        }
    }

    pub fn content(&self) -> AfterContent {
        match self {
            After::AsBefore(content) => *content,
            After::Absent | After::NotKept => AfterContent::None,
            After::Now(now) => now.content,
        }
    }

    /// Whether it is a symlink whose target could not be read.
    pub fn is_unread(&self) -> bool {
        match self {
            After::AsBefore(_) | After::Absent | After::NotKept => false,
            After::Now(now) => {
                now.stat.is_some_and(|stat| stat.is_symlink())
                    && now.more.as_ref().is_none_or(|more| more.target.is_none())
            }
        }
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
