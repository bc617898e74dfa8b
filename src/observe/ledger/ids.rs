//! The numbers by which the ledger is referred to.

use std::num::NonZeroU32;

/// The place of a name in the ledger; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(Place);

/// The place of an inode in the ledger; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(Place);

/// An index plus one, so that an `Option` of it takes no more memory.
type Place = NonZeroU32;

fn place(index: usize) -> Place {
    let place = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
    place.expect("four billion names or inodes do not fit into memory")
}

impl NameId {
    /// The one of this index.
    pub(super) fn of(index: usize) -> NameId {
        NameId(place(index))
    }

    /// Its index.
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl InodeId {
    /// The one of this index.
    pub(super) fn of(index: usize) -> InodeId {
        InodeId(place(index))
    }

    /// Its index.
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Its number in the journal.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

/// A process of the manifest, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);
