//! The numbers by which the ledger is referred to.

use std::num::NonZeroU32;

/// The place of a name in the ledger; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(Place);

/// The place of an inode in the ledger; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(Place);

/// The place of what lstat(2) has said at the end; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatId(Place);

/// The place of what a state at the end has beside that; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FactsId(Place);

/// An index plus one, so that an `Option` of it takes no more memory.
type Place = NonZeroU32;

fn place(index: usize) -> Place {
    let place = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
    place.expect("four billion of them do not fit into memory")
}

macro_rules! indexed {
    ($($id:ident),+) => {
        $(impl $id {
            /// The one of this index.
            pub(super) fn of(index: usize) -> $id {
                $id(place(index))
            }

            /// Its index.
            pub(super) fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        })+
    };
}

indexed!(NameId, InodeId, StatId, FactsId);

impl InodeId {
    /// Its number in the journal.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

/// A process of the manifest, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);
