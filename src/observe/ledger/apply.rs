//! Applies a change to the ledger: the only way in which it learns that anything has changed.
//!
//! System calls, core dumps, inherited and received descriptors all end here. Neighbours: `changes.rs`,
//! `rename.rs`, `core_dump.rs`, `inherited.rs` and `descriptors.rs` say what has happened.

use super::Ledger;
use super::ids::{InodeId, NameId, ProcessId};
use super::inodes::{Content, Modified, Stat};
use super::protect::Protector;
use crate::fs::{self, FileStat};
use crate::observe::resolve;
use crate::snapshot::{BlobOmitted, Operation, Operations};

/// What has happened to a name, or to the inode that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it was read, listed, executed or asked about.
    Used,
    /// It stands for something else now: a new file, directory or node, or what was linked or renamed to it.
    Bound,
    /// It was removed.
    Removed,
    /// It was renamed away: the inode has another name, which is recorded too.
    Moved,
    /// It has another inode now, and its own has another name, which is recorded too.
    Exchanged,
    /// The bytes of the inode may have been changed in place.
    Written,
    /// The bytes of the inode may have been changed in place, by appending alone.
    Appended,
    /// The metadata of the inode was changed.
    Attributes,
}

/// One change, and who made it.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The name; none where a rule leaves it out, and only the inode matters.
    pub name: Option<NameId>,
    /// What was there when the call began; none where nothing was.
    pub stat: Option<&'a FileStat>,
    /// What happened.
    pub kind: Kind,
    /// How the name was used.
    pub operations: Operations,
    /// By which process.
    pub by: ProcessId,
    /// Whether by the name, and not by a descriptor from before the command.
    pub by_name: bool,
    /// When the call began, in microseconds since 1970.
    pub began_us: u64,
}

impl Ledger {
    /// Applies a change. Returns whether the name, which was left out so far, is recorded from now on.
    #[must_use = "cached lookups of the name are stale then"]
    pub fn apply(&mut self, change: Change<'_>) -> bool {
        let Change { name, stat, kind, by, .. } = change;
        let inode = stat.and_then(|stat| self.inodes.of(stat));
        let in_place = matches!(kind, Kind::Written | Kind::Appended | Kind::Attributes);
        if let Some(changes) = self.changes_since_interim.as_mut().filter(|_| kind != Kind::Used) {
            if let Some(name) = name {
                *changes.names.entry(name).or_default() |= !in_place;
            }
            changes.inodes.extend(inode.filter(|_| in_place));
        }
        if kind != Kind::Used {
            self.note_change(name, inode.filter(|_| in_place), change.began_us);
        }
        let is_recorded_now = name.is_some_and(|name| self.apply_to_name(name, change));
        match (kind, inode) {
            (_, None) | (Kind::Used, _) => {}
            (Kind::Bound | Kind::Removed, Some(inode)) => self.lose_name(inode, stat),
            (Kind::Moved | Kind::Exchanged, Some(inode)) => self.need_in_place(inode),
            (Kind::Written | Kind::Appended | Kind::Attributes, Some(inode)) => {
                self.change_in_place(inode, kind, by);
            }
        }
        is_recorded_now
    }

    fn apply_to_name(&mut self, name: NameId, change: Change<'_>) -> bool {
        let Change { kind, operations, by, by_name, .. } = change;
        if matches!(kind, Kind::Removed | Kind::Moved) {
            self.note_gone(name);
        }
        self.merge(name, operations, by);
        let known = self.names.get_mut(name);
        match kind {
            Kind::Used => return false,
            Kind::Bound | Kind::Exchanged => {
                known.rebound = true;
                known.removed = false;
            }
            Kind::Removed | Kind::Moved => {
                known.rebound = true;
                known.removed = true;
            }
            Kind::Written | Kind::Appended | Kind::Attributes => {}
        }
        known.changed_by_name |= by_name;
        known.changes = known.changes.wrapping_add(1);
        known.left_out && known.changes == 1
    }

    /// Notes that the bytes of an inode are needed, which are still where they were.
    fn need_in_place(&mut self, id: InodeId) {
        let inode = self.inodes.get_mut(id);
        if inode.before.is_regular()
            && matches!(
                inode.content,
                Content::Unneeded
                    | Content::Pinned
                    | Content::Digested(_)
                    | Content::Omitted(BlobOmitted::Withheld)
            )
        {
            inode.content = Content::InPlace;
        }
    }

    /// Notes that an inode has lost a name: with the last one, its number may be another's.
    fn lose_name(&mut self, inode: InodeId, stat: Option<&FileStat>) {
        if stat.is_some_and(|stat| stat.st_nlink == 1 || resolve::is_directory(stat)) {
            self.inodes.forget(inode);
        }
    }

    /// Notes that an inode was changed in place, also at the name by which it was first met.
    fn change_in_place(&mut self, id: InodeId, kind: Kind, by: ProcessId) {
        let inode = self.inodes.get_mut(id);
        inode.threatened = true;
        inode.modified = Modified::Unknown;
        inode.changes = inode.changes.wrapping_add(1);
        let writes = kind != Kind::Attributes;
        if writes {
            inode.appended = kind == Kind::Appended && (inode.appended || !inode.written);
            inode.written = true;
            self.appends |= inode.appended;
        }
        if let Some(first) = inode.name
            && self.is_bound_to(first, id)
        {
            let operation = if writes { Operation::Write } else { Operation::Metadata };
            self.merge(first, operation.into(), by);
        }
    }

    /// Notes the modification time that a call has left at `path`, where `before` was.
    pub fn note_times(&mut self, path: &[u8], before: &FileStat) {
        let Some(id) = self.inodes.of(before) else { return };
        let Some(now) = fs::lstat(path).ok().flatten() else { return };
        let inode = self.inodes.get_mut(id);
        // Each copy in an overlay's upper layer has a time of its own.
        let now = Stat::from(&now);
        if !inode.is_copied() && now.identity() == inode.before.identity() {
            inode.extra_mut().set_mtime = now.modified();
            inode.modified = Modified::Set;
        }
    }
}

impl Protector<'_> {
    /// Notes that a call has let an overlay copy the file at `path` to its upper layer.
    ///
    /// The copy may have another device and inode number, and no other names: where it had some, or where
    /// the layers are on several filesystems (the kernel's overlayfs.rst, "Inode properties").
    pub fn note_copy_up(&mut self, path: &[u8], stat: &FileStat, effect: CopyUp) {
        if !resolve::is_regular(stat) || !self.byte_store.filesystems.is_overlay(stat.st_dev, path) {
            return;
        }
        let Some(id) = self.ledger.inodes.of(stat) else { return };
        let Some(now) = fs::lstat(path).ok().flatten() else { return };
        let identity = (now.st_dev, now.st_ino);
        // A copy has the size and time of the file, unless the call itself has set them.
        let copy = Stat { dev: stat.st_dev, ino: stat.st_ino, ..Stat::from(&now) };
        let mut copied = Stat::from(stat);
        if effect == CopyUp::SetsTimes {
            (copied.mtime, copied.mtime_nsec) = copy.modified();
        }
        if identity != (stat.st_dev, stat.st_ino)
            && (effect == CopyUp::Truncates || copied.same_content(&copy))
        {
            self.ledger.inodes.note_copy(id, identity);
        }
    }
}

/// What else a call does that makes an overlay copy a file up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyUp {
    /// It truncates the copy.
    Truncates,
    /// It may set the copy's times.
    SetsTimes,
    /// Nothing.
    Only,
}
