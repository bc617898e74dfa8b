//! The numbers by which the ledger is referred to.

/// The place of a name in the ledger; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub(super) u32);

/// The place of an inode in the ledger; never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub(super) u32);

impl InodeId {
    /// Its number in the journal.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A process of the manifest, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);
