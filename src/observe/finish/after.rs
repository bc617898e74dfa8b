//! What was found at a path at the end.
//!
//! Neighbours: `examine.rs` finds it, `records.rs` makes the state of a record of it, `ledger/found.rs` keeps what is
//! not as before.

use std::collections::HashSet;

use super::open_files::OpenFiles;
use crate::observe::capture::Ticket;
use crate::observe::ledger::Ledger;
use crate::observe::ledger::found::RareStateFacts;
use crate::observe::ledger::ids::{FactsId, InodeId, NameId, StatId};
use crate::observe::ledger::inodes::Stat;
use crate::snapshot::BlobOmitted;

/// What was found when states were taken of a recording that went on.
pub(in crate::observe) struct Interim {
    /// What was at each name.
    pub afters: Vec<(NameId, After)>,
    /// What the tree may change without a call that is seen.
    pub open: OpenFiles,
    /// The names whose states are the last ones, though their files may be open: what is written from now on is another
    /// recording's.
    pub yielded: HashSet<NameId>,
}

/// What was found at a path. Small, since there is one for each path.
#[derive(Debug, Clone, Copy)]
pub(in crate::observe) enum After {
    /// What was there before, by everything that a record tells of it.
    AsBefore(AfterContent),
    /// Nothing; where Git knows the path all the same, with what it says.
    Absent(Option<FactsId>),
    /// Something else, or what it was with something more to tell.
    Now(AfterContent, StatId, Option<FactsId>),
    /// Unknown: the recording keeps no states of what was not changed.
    NotKept,
}

const _: () = assert!(size_of::<(NameId, After)>() <= 20);

impl After {
    pub fn stat(self, name: NameId, ledger: &Ledger) -> Option<Stat> {
        match self {
            After::AsBefore(_) => ledger.before(name).map(|inode| inode.before),
            After::Absent(_) | After::NotKept => None,
            After::Now(_, stat, _) => Some(*ledger.found.stat(stat)),
        }
    }

    pub fn content(self) -> AfterContent {
        match self {
            After::AsBefore(content) | After::Now(content, ..) => content,
            After::Absent(_) | After::NotKept => AfterContent::None,
        }
    }

    /// Takes over the content that was found `earlier`, if the file can't be read any more and has not been written to since.
    pub fn take_content_of(&mut self, name: NameId, earlier: &After, ledger: &Ledger) {
        let After::Now(content @ AfterContent::Omitted(BlobOmitted::Unreadable), stat, _) = self else {
            return;
        };
        let now = ledger.found.stat(*stat);
        if earlier
            .stat(name, ledger)
            .is_some_and(|stat| stat.identity() == now.identity() && now.same_content(&stat))
        {
            *content = earlier.content();
        }
    }

    /// What few states have; none of a state that is as before, whose facts are in the ledger.
    pub fn facts(self, ledger: &Ledger) -> Option<&RareStateFacts> {
        match self {
            After::AsBefore(_) | After::NotKept => None,
            After::Absent(facts) | After::Now(_, _, facts) => facts.map(|facts| ledger.found.facts(facts)),
        }
    }

    /// Whether it is a symlink whose target could not be read.
    pub fn is_unread(self, ledger: &Ledger) -> bool {
        let is_symlink = matches!(self, After::Now(_, stat, _) if ledger.found.stat(stat).is_symlink());
        is_symlink && self.facts(ledger).is_none_or(|facts| facts.target.is_none())
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
    Omitted(BlobOmitted),
    /// They are in a directory that may not be searched.
    Hidden,
}
