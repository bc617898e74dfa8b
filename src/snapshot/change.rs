//! What became of a path.
//!
//! Only what a restore would put back counts as a change, so other times alone do not. Neighbour:
//! `compare.rs`, which compares with the live files.

use std::collections::HashSet;

use super::blobs::Side;
use super::compare::{ContentId, content_id, is_untouched};
use super::{FileRecord, FileType, Operations, Present, Snapshot, State};

/// What became of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathEffect {
    /// It existed before and after, and is different.
    Changed,
    /// It did not exist before.
    Created,
    /// It does not exist any more.
    Deleted,
    /// It was created only for something to be mounted there, and is still there.
    MountPoint,
    /// It was created and removed again.
    Temporary,
    /// It was written or touched, and is as before.
    Unaltered,
    /// It was not written or touched.
    None,
}

impl PathEffect {
    /// Whether the path is another than before.
    pub fn lasts(self) -> bool {
        matches!(self, PathEffect::Changed | PathEffect::Created | PathEffect::Deleted)
    }

    /// Whether an undo puts back something of the path, if only its times.
    pub fn is_undone(self) -> bool {
        self.lasts() || matches!(self, PathEffect::Unaltered | PathEffect::MountPoint)
    }

    /// What became of the path of `record`.
    pub fn of(record: &FileRecord) -> PathEffect {
        let acted = record.operations.intersects(Operations::CHANGES);
        match (&record.before, &record.after) {
            (State::Absent { .. }, State::Present(_)) if record.mount_point => PathEffect::MountPoint,
            (State::Absent { .. }, State::Present(_)) => PathEffect::Created,
            (State::Present(_), State::Absent { .. }) => PathEffect::Deleted,
            (State::Present(before), State::Present(after))
                if Differences::between(record, before, after).any() =>
            {
                PathEffect::Changed
            }
            (State::Absent { .. }, State::Absent { tombstone }) if acted || *tombstone => {
                PathEffect::Temporary
            }
            (State::Present(_), State::Present(_)) if acted => PathEffect::Unaltered,
            _ => PathEffect::None,
        }
    }
}

/// In what two states of a path differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the words say it")]
pub struct Differences {
    pub file_type: bool,
    pub permissions: bool,
    pub owner: bool,
    /// Of a file; also if one of its contents is unknown.
    pub content: bool,
    /// The target of a symlink, or the device number of a device.
    pub target: bool,
    pub xattrs: bool,
    pub inode_flags: bool,
    /// Which other names its file has.
    pub hard_links: bool,
}

impl Differences {
    /// In what the two states of `record` differ.
    pub fn between(record: &FileRecord, before: &Present, after: &Present) -> Differences {
        let same_type = before.file_type == after.file_type;
        let is_file = same_type && before.file_type == FileType::File;
        let acted = record.operations.intersects(Operations::CHANGES);
        let ids = || (content_id(record, Side::Before), content_id(record, Side::After));
        Differences {
            file_type: !same_type,
            // A symlink has none of its own.
            permissions: same_type
                && before.file_type != FileType::Symlink
                && (before.mode ^ after.mode) & 0o7777 != 0,
            owner: (before.uid, before.gid) != (after.uid, after.gid),
            content: is_file
                && !is_untouched(before, after)
                && !has_same_content((before.size, &ids().0), (after.size, &ids().1)),
            target: same_type && (&before.target, before.rdev) != (&after.target, after.rdev),
            // They are recorded only of paths that the command changes.
            xattrs: acted && before.xattrs != after.xattrs,
            inode_flags: acted && before.inode_flags != after.inode_flags,
            hard_links: record.relinked && same_type,
        }
    }

    /// Whether they differ at all.
    pub fn any(self) -> bool {
        self != Differences::default()
    }
}

/// The record of the path whose file came to the path of `record` by renames.
pub fn origin<'s>(snapshot: &'s Snapshot, record: &'s FileRecord) -> Option<&'s FileRecord> {
    let mut seen: HashSet<&[u8]> = HashSet::new();
    let mut at = record;
    while at.before.present().is_none() {
        let from = at.renamed_from.as_deref()?;
        // A malicious snapshot may have a cycle of renames.
        at = snapshot.find(from).filter(|_| seen.insert(from))?;
    }
    (!std::ptr::eq(at, record)).then_some(at)
}

/// Whether two contents, each a length and an identity, are known to be the same.
pub fn has_same_content(one: (u64, &Option<ContentId>), other: (u64, &Option<ContentId>)) -> bool {
    one.0 == other.0 && one.1.is_some() && one.1 == other.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::samples::{created, present};
    use crate::snapshot::{Digest, InodeFlag, Operation};

    fn both(operation: Operation, edit: impl FnOnce(&mut Present)) -> FileRecord {
        let before = Present { digest: Some(Digest::of(b"x")), ..present(1) };
        let mut after = before.clone();
        edit(&mut after);
        let [before, after] = [before, after].map(|present| State::Present(Box::new(present)));
        FileRecord { before, operations: operation.into(), ..created(b"/f", after) }
    }

    #[test]
    fn times_alone_are_no_change() {
        let touched = both(Operation::Metadata, |after| after.mtime += 1);
        assert_eq!(PathEffect::of(&touched), PathEffect::Unaltered);
        let replaced = both(Operation::Write, |after| (after.ino, after.mtime) = (9, 9));
        assert_eq!(PathEffect::of(&replaced), PathEffect::Unaltered);
        let read = both(Operation::Read, |after| after.mtime += 1);
        assert_eq!(PathEffect::of(&read), PathEffect::None);
    }

    #[test]
    fn each_part_of_a_state_is_told() {
        let differences = |edit: fn(&mut Present)| {
            let record = both(Operation::Write, edit);
            assert_eq!(PathEffect::of(&record), PathEffect::Changed);
            Differences::between(&record, record.before.present().unwrap(), record.after.present().unwrap())
        };
        let none = Differences::default();
        assert_eq!(differences(|after| after.mode ^= 0o100), Differences { permissions: true, ..none });
        assert_eq!(differences(|after| after.gid += 1), Differences { owner: true, ..none });
        assert_eq!(
            differences(|after| (after.mtime, after.digest) = (1, Some(Digest::of(b"y")))),
            Differences { content: true, ..none }
        );
        assert_eq!(
            differences(|after| (after.mtime, after.digest) = (1, None)),
            Differences { content: true, ..none },
            "what nobody knows counts as changed"
        );
        assert_eq!(
            differences(|after| drop(after.xattrs.insert(b"user.x".to_vec(), Vec::new()))),
            Differences { xattrs: true, ..none }
        );
        assert_eq!(
            differences(|after| after.inode_flags = [InodeFlag::Immutable].into()),
            Differences { inode_flags: true, ..none }
        );
        let relinked = FileRecord { relinked: true, ..both(Operation::Write, |after| after.ino += 1) };
        assert_eq!(PathEffect::of(&relinked), PathEffect::Changed);
        let symlink = |after: &mut Present| {
            (after.file_type, after.mode) = (FileType::Symlink, libc::S_IFLNK | 0o777);
            after.target = Some(b"t".to_vec());
        };
        assert_eq!(differences(symlink), Differences { file_type: true, ..none });
    }

    #[test]
    fn what_is_absent_on_both_sides_was_temporary_if_it_was_ever_made() {
        let absent = |operation: Operation| FileRecord {
            operations: operation.into(),
            ..created(b"/f", State::Absent { tombstone: false })
        };
        assert_eq!(PathEffect::of(&absent(Operation::Write)), PathEffect::Temporary);
        assert_eq!(PathEffect::of(&absent(Operation::Existence)), PathEffect::None);
    }
}
