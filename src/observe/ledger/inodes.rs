//! One [`Inode`] per file, whatever its names: its state at first sight, and where its bytes are.
//!
//! Only what was there before the tree changed it is an inode of the ledger; what the tree makes is known
//! by its name alone. Neighbours: `names.rs` has the names, `protect.rs` takes bytes and attributes,
//! `apply.rs` notes changes.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher as _;

use super::blocks::Blocks;
use super::ids::{InodeId, NameId};
use crate::fs::FileStat;
use crate::observe::capture::Ticket;
pub use crate::snapshot::Stat;
use crate::snapshot::live::Xattrs;
use crate::snapshot::{BlobOmitted, InodeFlag};

/// Where the bytes of an inode's before-state are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// Nothing has needed them.
    #[default]
    Unneeded,
    /// The inode has been renamed and its bytes are as before: they are read at the end, or before a call
    /// may destroy them.
    InPlace,
    /// Git has them.
    Pinned,
    /// They were only read, and are stored.
    Read(Ticket),
    /// They were only read, or left alone by calls that changed attributes, and are too long to be stored: their digest is
    /// kept.
    Digested(Ticket),
    /// The tree may destroy them: stored up to `--max-blob-bytes`.
    Kept(Ticket),
    /// They are unavailable.
    Omitted(BlobOmitted),
}

impl Content {
    /// Whether nobody has read them yet.
    pub fn is_unread(self) -> bool {
        matches!(self, Content::Unneeded | Content::Pinned)
    }
}

/// What an inode has beside its metadata and bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// The extended attributes (xattr(7)).
    pub xattrs: Xattrs,
    /// The flags that chattr(1) sets.
    pub flags: BTreeSet<InodeFlag>,
}

/// What few inodes have.
#[derive(Debug, Default)]
pub struct RareInodeFacts {
    /// The target of a symlink before.
    pub target: Option<Vec<u8>>,
    /// The attributes before.
    pub attributes: Attributes,
    /// The modification time that the last traced call left, if [`Modified::Set`]: seconds and nanoseconds.
    pub set_mtime: (i64, u32),
    /// Device and inode numbers of copies in an overlay's upper layer: each name may get one of its own.
    pub copies: Vec<(u64, u64)>,
}

/// The modification time that an inode has for as long as nobody outside the tree has changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Modified {
    /// That of its before-state: no traced call has changed its metadata or bytes.
    #[default]
    Before,
    /// The one that the last such call left ([`RareInodeFacts::set_mtime`]).
    Set,
    /// Any: it could not be determined after the last such call.
    Unknown,
}

/// All that is known of an inode while the tree runs. Small, since most paths have one.
#[derive(Debug, Default)]
pub struct Inode {
    /// Its state at first sight.
    pub before: Stat,
    /// The name that it was first met by.
    pub name: Option<NameId>,
    /// The bytes of that state.
    pub content: Content,
    /// Whether a call that may change it in place has begun, whatever came of it: until then what differs was
    /// changed from outside.
    pub threatened: bool,
    /// Whether its bytes may have been changed in place.
    pub written: bool,
    /// The modification time by which its bytes are known to be those of before.
    pub modified: Modified,
    /// How many calls in flight may set its times.
    pub times_in_flight: u16,
    /// Whether what was written was only appended, through a descriptor from before the launch: the bytes
    /// of the before-state are its first ones.
    pub appended: bool,
    /// Whether the file has another entry for the names that it gets from now on: another recording's tree has renamed or
    /// linked it after this one had changed it.
    pub superseded: bool,
    /// Whether the attributes before were taken.
    pub attributes_taken: bool,
    /// How many traced calls changed it by any of its names.
    pub changes: u32,
    /// What few inodes have.
    pub extra: Option<Box<RareInodeFacts>>,
}

const _: () = assert!(size_of::<Inode>() <= 88);

impl Inode {
    /// The rarer facts, made where there were none.
    pub fn extra_mut(&mut self) -> &mut RareInodeFacts {
        self.extra.get_or_insert_default()
    }

    /// The target of a symlink before.
    pub fn target(&self) -> Option<&Vec<u8>> {
        self.extra.as_ref().and_then(|extra| extra.target.as_ref())
    }

    /// A later state, with the device and inode number of before if it is the same file copied up.
    pub fn as_known(&self, now: Stat) -> Stat {
        if self.extra.as_ref().is_some_and(|extra| extra.copies.contains(&now.identity())) {
            Stat { dev: self.before.dev, ino: self.before.ino, ..now }
        } else {
            now
        }
    }

    /// Whether an overlay has copied it to its upper layer.
    pub fn is_copied(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.copies.is_empty())
    }

    /// Whether its times or other metadata may have been changed in place.
    pub fn is_touched(&self) -> bool {
        self.modified != Modified::Before
    }

    /// Whether `now`, a later state of the inode, has the bytes of before, as long as no traced call has
    /// written any: nobody else has modified it.
    pub fn is_unmodified(&self, now: &Stat) -> bool {
        let now = self.as_known(*now);
        let modified = match self.modified {
            Modified::Before => Some(self.before.modified()),
            Modified::Set => Some(self.extra.as_ref().map(|extra| extra.set_mtime).unwrap_or_default()),
            Modified::Unknown => None,
        };
        (now.identity(), now.size) == (self.before.identity(), self.before.size)
            && (self.times_in_flight > 0 || modified.is_none_or(|modified| modified == now.modified()))
    }

    /// Whether `now`, a later state of the inode, has the bytes of before.
    pub fn has_bytes_of_before(&self, now: &Stat) -> bool {
        !self.written && self.is_unmodified(now)
    }
}

/// The inodes of a recording.
#[derive(Debug, Default)]
pub struct Inodes {
    all: Blocks<Inode>,
    /// By device and inode number, for as long as these are theirs.
    index: hashbrown::HashTable<InodeId>,
    /// Other numbers of inodes that an overlay has copied up.
    copies: HashMap<(u64, u64), InodeId, foldhash::fast::RandomState>,
    hasher: foldhash::fast::RandomState,
}

impl Inodes {
    /// The inode with these numbers.
    pub fn find(&self, identity: (u64, u64)) -> Option<InodeId> {
        let hash = self.hasher.hash_one(identity);
        let found = self.index.find(hash, |id| self.get(*id).before.identity() == identity).copied();
        match found {
            None if !self.copies.is_empty() => self.copies.get(&identity).copied(),
            found => found,
        }
    }

    /// The inode that lstat(2) has found.
    pub fn of(&self, stat: &FileStat) -> Option<InodeId> {
        self.find((stat.st_dev, stat.st_ino))
    }

    /// The inode at first sight of one of its names: the known one, or a new one where a program outside of
    /// the tree has freed the number and something else has it.
    pub fn meet(&mut self, stat: &FileStat) -> InodeId {
        let now = Stat::from(stat);
        if let Some(id) = self.of(stat) {
            let known = self.get(id);
            let same_type = (known.before.mode ^ now.mode) & libc::S_IFMT == 0;
            let changed = known.threatened || now.is_directory();
            if same_type && (changed || known.before.same_state(&known.as_known(now))) {
                return id;
            }
            self.forget(id);
        }
        let id = InodeId::of(self.all.push(Inode { before: now, ..Inode::default() }));
        let hash = self.hasher.hash_one(now.identity());
        let (all, hasher) = (&self.all, &self.hasher);
        self.index.insert_unique(hash, id, |id| hasher.hash_one(all.get(id.index()).before.identity()));
        id
    }

    /// Notes that an overlay has copied an inode to its upper layer, where it has other numbers.
    pub fn note_copy(&mut self, id: InodeId, identity: (u64, u64)) {
        self.copies.insert(identity, id);
        self.get_mut(id).extra_mut().copies.push(identity);
    }

    /// Notes that the numbers of an inode may be another's from now on.
    pub fn forget(&mut self, id: InodeId) {
        let hash = self.hasher.hash_one(self.get(id).before.identity());
        if let Ok(entry) = self.index.find_entry(hash, |found| *found == id) {
            entry.remove();
        }
        let copies = self.all.get(id.index()).extra.as_ref().map_or(&[][..], |extra| &extra.copies);
        for copy in copies {
            self.copies.remove(copy);
        }
    }

    /// Lets a file that was changed be met anew by the names that it gets from now on.
    pub fn supersede(&mut self, id: InodeId) {
        let inode = self.get(id);
        if inode.before.is_regular() && (inode.written || inode.is_touched()) {
            self.get_mut(id).superseded = true;
            self.forget(id);
        }
    }

    /// An inode.
    pub fn get(&self, id: InodeId) -> &Inode {
        self.all.get(id.index())
    }

    /// An inode, to change.
    pub fn get_mut(&mut self, id: InodeId) -> &mut Inode {
        self.all.get_mut(id.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ino: u64, size: i64) -> FileStat {
        let mut stat = rustix::fs::lstat("/").unwrap();
        (stat.st_mode, stat.st_ino, stat.st_size) = (libc::S_IFREG | 0o644, ino, size);
        stat
    }

    #[test]
    fn an_inode_is_met_once_whatever_its_names() {
        let mut inodes = Inodes::default();
        let first = inodes.meet(&stat(7, 1));
        assert_eq!(inodes.meet(&stat(7, 1)), first);
        assert_ne!(inodes.meet(&stat(8, 1)), first);
        inodes.get_mut(first).threatened = true;
        assert_eq!(inodes.meet(&stat(7, 2)), first, "the tree may be changing it");
    }

    #[test]
    fn a_number_that_was_freed_is_another_inode() {
        let mut inodes = Inodes::default();
        let first = inodes.meet(&stat(7, 1));
        let second = inodes.meet(&stat(7, 2));
        assert_ne!(first, second, "nobody in the tree has changed its size");
        assert_eq!(inodes.of(&stat(7, 2)), Some(second));
        inodes.forget(second);
        assert_eq!(inodes.of(&stat(7, 2)), None);
    }

    #[test]
    fn a_copy_in_the_upper_layer_is_the_same_inode() {
        let mut inodes = Inodes::default();
        let id = inodes.meet(&stat(7, 1));
        inodes.note_copy(id, (1, 99));
        assert_eq!(inodes.find((1, 99)), Some(id));
        assert_eq!(inodes.get(id).as_known(Stat { dev: 1, ino: 99, ..Stat::default() }).ino, 7);
        inodes.forget(id);
        assert_eq!(inodes.find((1, 99)), None);
    }
}
