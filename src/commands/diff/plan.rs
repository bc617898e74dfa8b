//! What a diff consists of: its entries, the renames among them, and the changes that a patch can't
//! express.
//!
//! Git knows files, executable files and symlinks; other changes are reported beside the diff.

use std::collections::HashSet;

use super::super::paths::Selection;
use crate::git::below;
use crate::snapshot::blobs::Side;
use crate::snapshot::change::{Differences, PathEffect, origin};
use crate::snapshot::compare::{ContentId, content_id, is_untouched, state};
use crate::snapshot::{FileRecord, FileType, Present, Snapshot};

/// One side of an entry.
#[derive(Debug, Clone, Copy)]
pub struct DiffSide<'s> {
    /// Its record.
    pub record: &'s FileRecord,
    /// Which state of the record it is.
    pub side: Side,
    /// The state.
    pub present: &'s Present,
    /// Its mode in Git: 0o100644, 0o100755 or 0o120000.
    pub mode: u32,
    /// The path in the diff.
    pub name: &'s [u8],
}

impl DiffSide<'_> {
    /// Whether it is a symlink.
    pub fn is_symlink(&self) -> bool {
        self.present.file_type == FileType::Symlink
    }

    /// Whether it has the bytes of `other`; none if they would have to be compared.
    pub fn known_same(&self, other: &DiffSide) -> Option<bool> {
        if self.is_symlink() || other.is_symlink() {
            return Some(self.present.target == other.present.target);
        }
        let is_other_side = std::ptr::eq(self.record, other.record) && self.side != other.side;
        if is_other_side && is_untouched(self.present, other.present) {
            return Some(true);
        }
        match (content_id(self.record, self.side), content_id(other.record, other.side)) {
            _ if self.present.size != other.present.size => Some(false),
            (Some(ContentId::Digest(one)), Some(ContentId::Digest(another))) => Some(one == another),
            (Some(ContentId::Git(one)), Some(ContentId::Git(another))) if one == another => Some(true),
            _ => None,
        }
    }

    /// The kind of object ids in the repository of the path.
    pub fn hash_kind(&self) -> gix::hash::Kind {
        let head = self.record.git.as_ref().and_then(|git| git.head.as_deref());
        head.and_then(|head| gix::hash::Kind::from_hex_len(head.len())).unwrap_or(gix::hash::Kind::Sha1)
    }
}

/// A path that was changed, created, deleted or renamed; it has at least one side.
#[derive(Debug, Clone, Copy)]
pub struct DiffEntry<'s> {
    /// Before.
    pub old: Option<DiffSide<'s>>,
    /// After; under another name if the path was renamed.
    pub new: Option<DiffSide<'s>>,
}

impl<'s> DiffEntry<'s> {
    /// The name of the new side, or else of the old one.
    pub fn name(&self) -> &'s [u8] {
        self.new.or(self.old).map_or(b"", |half| half.name)
    }

    /// The recorded path of the new side, or else of the old one.
    pub fn path(&self) -> &'s [u8] {
        self.new.or(self.old).map_or(b"", |half| &half.record.path)
    }

    /// Both sides, if it has both.
    pub fn both(&self) -> Option<(DiffSide<'s>, DiffSide<'s>)> {
        self.old.zip(self.new)
    }

    /// Whether a file became a symlink, or a symlink a file.
    pub fn is_type_change(&self) -> bool {
        self.both().is_some_and(|(old, new)| old.is_symlink() != new.is_symlink())
    }

    /// Whether it has two sides with different modes.
    pub fn is_mode_change(&self) -> bool {
        self.both().is_some_and(|(old, new)| old.mode != new.mode)
    }

    /// Whether it has two sides with different names.
    pub fn is_rename(&self) -> bool {
        self.both().is_some_and(|(old, new)| old.name != new.name)
    }

    /// The entry as a deletion and a creation.
    pub fn apart(self) -> [DiffEntry<'s>; 2] {
        [DiffEntry { new: None, ..self }, DiffEntry { old: None, ..self }]
    }
}

/// The content of a diff.
#[derive(Debug, Default)]
pub struct DiffPlan<'s> {
    /// The entries, sorted by name.
    pub entries: Vec<DiffEntry<'s>>,
    /// Changes that a patch can't express: the path, and a description.
    pub unsupported: Vec<(&'s [u8], String)>,
    /// Changed paths that are not below the base.
    pub outside: Vec<&'s [u8]>,
    /// Changed paths that were only written through a descriptor from before the launch.
    pub inherited: Vec<&'s [u8]>,
}

impl<'s> DiffPlan<'s> {
    /// Plans the diff of the selected paths below `base`.
    pub fn new(snapshot: &'s Snapshot, selection: &Selection, base: &[u8]) -> DiffPlan<'s> {
        let mut plan = DiffPlan::default();
        let mut changed = Vec::new();
        for record in snapshot.files().iter().filter(|record| !record.is_git_state) {
            let effect = PathEffect::of(record);
            let acted = matches!(effect, PathEffect::Changed | PathEffect::Created | PathEffect::Deleted);
            if !acted || !selection.contains(&record.path) {
                continue;
            }
            match below(&record.path, base) {
                None | Some(b"") => plan.outside.push(&record.path),
                // A log that the shell redirects to is not a change that the command made.
                Some(_) if record.is_inherited_alone() && !selection.names(&record.path) => {
                    plan.inherited.push(&record.path)
                }
                Some(name) => changed.push((name, record)),
            }
        }
        plan.pair(snapshot, &changed);
        plan.tell_unsupported(&changed);
        plan.entries.sort_by(|one, other| one.name().cmp(other.name()));
        plan
    }

    fn pair(&mut self, snapshot: &'s Snapshot, changed: &[(&'s [u8], &'s FileRecord)]) {
        let mut sources: HashSet<&[u8]> = HashSet::new();
        let mut entries = Vec::new();
        let find = |path: &[u8]| {
            let found = changed.binary_search_by(|(_, record)| record.path.as_slice().cmp(path));
            found.ok().and_then(|index| changed.get(index)).copied()
        };
        for &(name, record) in changed {
            let old = half(name, record, Side::Before);
            let new = half(name, record, Side::After);
            let source = match (old, new) {
                (None, Some(new)) => origin(snapshot, record).and_then(|origin| find(&origin.path)).and_then(
                    |(name, record)| {
                        let old = half(name, record, Side::Before)?;
                        // patch(1) renames no symlinks.
                        (record.after.present().is_none() && !old.is_symlink() && !new.is_symlink())
                            .then_some(old)
                    },
                ),
                _ => None,
            };
            match source {
                Some(source) if sources.insert(&source.record.path) => {
                    entries.push(DiffEntry { old: Some(source), new });
                }
                _ if old.is_none() && new.is_none() => {}
                _ => entries.push(DiffEntry { old, new }),
            }
        }
        // A renamed path is one entry, under its new name.
        entries.retain(|entry: &DiffEntry| {
            entry.new.is_some() || entry.old.is_some_and(|old| !sources.contains(old.record.path.as_slice()))
        });
        self.entries.extend(entries);
    }

    fn tell_unsupported(&mut self, changed: &[(&'s [u8], &'s FileRecord)]) {
        // A directory with a file in it is implied.
        let implied = |side: fn(&DiffEntry<'s>) -> Option<DiffSide<'s>>| {
            let halves = self.entries.iter().filter_map(side);
            halves.flat_map(|half| parents(half.name)).collect::<HashSet<_>>()
        };
        let (implied_before, implied_after) = (implied(|entry| entry.old), implied(|entry| entry.new));
        for &(name, record) in changed {
            let (before, after) = (record.before.present(), record.after.present());
            let kind = |present: Option<&Present>| present.map(|present| present.file_type);
            let old = kind(before).filter(|kind| !is_told(*kind) && !implied_before.contains(name));
            let new = kind(after).filter(|kind| !is_told(*kind) && !implied_after.contains(name));
            let article = |kind: FileType| format!("a {}", kind.name().replace('_', " "));
            match (old, new) {
                (Some(old), None) if kind(after) != Some(old) => {
                    self.unsupported.push((&record.path, format!("{} was removed", article(old))));
                }
                (None, Some(new)) if kind(before) != Some(new) => {
                    self.unsupported.push((&record.path, format!("{} was made", article(new))));
                }
                (Some(old), Some(new)) if old != new => {
                    self.unsupported
                        .push((&record.path, format!("{} became {}", article(old), article(new))));
                }
                _ => {}
            }
            if let (Some(before), Some(after)) = (before, after) {
                let differences = Differences::between(record, before, after);
                let executable = |present: &Present| present.mode & 0o100;
                let told = is_told(before.file_type) && (before.mode ^ after.mode) & 0o7777 == 0o111;
                if differences.permissions && !told {
                    let (old, new) = (before.mode & 0o7777, after.mode & 0o7777);
                    let told = executable(before) != executable(after) && is_told(before.file_type);
                    let rest = if told { ", of which a diff tells the executable bit" } else { "" };
                    self.unsupported
                        .push((&record.path, format!("its mode went from {old:04o} to {new:04o}{rest}")));
                }
                if differences.owner {
                    self.unsupported.push((
                        &record.path,
                        format!(
                            "its owner went from {}:{} to {}:{}",
                            before.uid, before.gid, after.uid, after.gid
                        ),
                    ));
                }
                if differences.xattrs {
                    self.unsupported.push((&record.path, "its extended attributes changed".to_owned()));
                }
                if differences.inode_flags {
                    self.unsupported.push((&record.path, "its inode flags changed".to_owned()));
                }
                if differences.hard_links {
                    self.unsupported.push((&record.path, "its hard links changed".to_owned()));
                }
            }
        }
    }
}

fn is_told(kind: FileType) -> bool {
    matches!(kind, FileType::File | FileType::Symlink)
}

/// A side of an entry; none if the state is one that a patch can't tell.
pub fn half<'s>(name: &'s [u8], record: &'s FileRecord, side: Side) -> Option<DiffSide<'s>> {
    let present = state(record, side).present()?;
    let mode = match present.file_type {
        FileType::File if present.mode & 0o100 != 0 => 0o100_755,
        FileType::File => 0o100_644,
        FileType::Symlink => 0o120_000,
        _ => return None,
    };
    Some(DiffSide { record, side, present, mode, name })
}

/// The directories above a relative name.
fn parents(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(slash, _)| &name[..slash])
}
