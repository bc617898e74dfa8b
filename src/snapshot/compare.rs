//! Compares a live path with a record.
//!
//! For `verify`, both sides are put into the same [`Fingerprint`], and equal fingerprints are the same state: times
//! don't count. `restore::inspect` compares single attributes. Neighbours: `live.rs` has the state of a path now, `manifest.rs` the recorded one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::blobs::Side;
use super::digest::{digest_file_like, read_all};
use super::live;
use super::manifest::{Digest, FileRecord, FileType, Operation, Operations, Present, State};
use super::stat::Stat;
use super::wire::shown;
use crate::fs;
use crate::git::BlobHasher;

/// What identifies the content of a regular file.
#[derive(Clone, PartialEq, Eq)]
pub enum ContentId {
    /// The digest of its bytes.
    Digest(Digest),
    /// The Git blob that has its bytes, as the hexadecimal object id.
    Git(String),
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContentId::Digest(digest) => digest.fmt(f),
            ContentId::Git(oid) => write!(f, "git:{oid}"),
        }
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A state of a path as far as it is compared; an object with `exists`, `type`, `mode` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fingerprint {
    /// Nothing is there.
    Absent,
    /// Something is there.
    Present {
        /// Its type.
        file_type: FileType,
        /// Its permission bits, those of set-ID and sticky included.
        permissions: u32,
        /// The target of a symlink.
        target: Option<Vec<u8>>,
        /// The device that a device node stands for.
        rdev: Option<u64>,
        /// The length and identity of the content, where it is compared. The identity is left out of
        /// a live file of another length, which need not be read.
        content: Option<(u64, Option<ContentId>)>,
        /// The digest over the names in a directory, where they are compared.
        entries: Option<Digest>,
    },
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        match self {
            Fingerprint::Absent => object.serialize_entry("exists", &false)?,
            Fingerprint::Present { file_type, permissions, target, rdev, content, entries } => {
                object.serialize_entry("exists", &true)?;
                object.serialize_entry("type", file_type)?;
                object.serialize_entry("permissions", &format_args!("{permissions:04o}"))?;
                if let Some(target) = target {
                    object.serialize_entry("target", &shown(target))?;
                }
                if let Some(rdev) = rdev {
                    object.serialize_entry("rdev", rdev)?;
                }
                if let Some((size, id)) = content {
                    object.serialize_entry("size", size)?;
                    if let Some(id) = id {
                        object.serialize_entry("content", &format_args!("{id}"))?;
                    }
                }
                if let Some(entries) = entries {
                    object.serialize_entry("entries_digest", entries)?;
                }
            }
        }
        object.end()
    }
}

/// Whether the names in a listed directory count: they do for `verify`, not for `restore`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words say it")]
pub enum Entries {
    Compare,
    Ignore,
}

/// The state of `record` on `side`.
pub fn state(record: &FileRecord, side: Side) -> &State {
    match side {
        Side::Before => &record.before,
        Side::After => &record.after,
    }
}

/// What the record says of the content on `side`: its digest, or the Git blob that was proved to be
/// it; none where it is no regular file or its content was never read.
///
/// An after-state that is the before-state untouched has the content of that.
pub fn content_id(record: &FileRecord, side: Side) -> Option<ContentId> {
    let present = state(record, side).present().filter(|present| present.file_type == FileType::File)?;
    let pinned = |git: &Option<super::manifest::GitStatus>| {
        git.as_ref().and_then(|git| git.oid.clone()).map(ContentId::Git)
    };
    let own = present.digest.map(ContentId::Digest);
    match side {
        Side::Before => own.or_else(|| pinned(&record.git)),
        Side::After => own.or_else(|| {
            let before = record.before.present()?;
            if is_untouched(before, present) {
                content_id(record, Side::Before).or_else(|| pinned(&record.git_after))
            } else {
                pinned(&record.git_after)
            }
        }),
    }
}

/// Whether two states are of one inode that was not written to between them. A content that is unavailable
/// after must have been unavailable before, for the same reason.
pub(crate) fn is_untouched(before: &Present, after: &Present) -> bool {
    let identity = |at: &Present| (at.file_type, at.dev, at.ino, at.size, at.mtime, at.mtime_nsec);
    let digest = |at: &Present| at.digest.map(ContentId::Digest);
    let is_other = are_known_to_differ(&digest(before), &digest(after));
    identity(before) == identity(after)
        && !is_other
        && (after.blob_omitted.is_none() || after.blob_omitted == before.blob_omitted)
}

impl ContentId {
    /// Whether both identify a content in the same way, so that equal contents have equal identities.
    pub fn is_comparable_with(&self, other: &ContentId) -> bool {
        match (self, other) {
            (ContentId::Digest(one), ContentId::Digest(other)) => {
                std::mem::discriminant(one) == std::mem::discriminant(other)
            }
            (ContentId::Git(_), ContentId::Git(_)) => true,
            _ => false,
        }
    }
}

/// Whether two contents are known to be different: both are identified, and in the same way.
pub fn are_known_to_differ(one: &Option<ContentId>, other: &Option<ContentId>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one.is_comparable_with(other) && one != other)
}

/// Whether the file has the same content in both states, although that may never have been read: nothing
/// that the command did to it can have changed its bytes.
pub fn content_is_untouched(record: &FileRecord) -> bool {
    let file = |at: &Present| (at.file_type, at.dev, at.ino, at.size);
    let times = |at: &Present| (at.mtime, at.mtime_nsec);
    let writes =
        record.operations.contains(Operation::Write) || record.operations.contains(Operation::Delete);
    match (&record.before, &record.after) {
        (State::Present(before), State::Present(after)) => {
            file(before) == file(after) && (!writes || times(before) == times(after))
        }
        _ => false,
    }
}

/// What identifies a file with several names at a moment: a regular file, a symlink, a FIFO, a socket or a device.
///
/// Not the inode alone: the states of two paths are from two moments, and an inode number may have been reused between
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkedFile {
    inode: (u64, u64),
    size: u64,
    mode: u32,
    mtime: (i64, u32),
}

impl LinkedFile {
    /// The file in this state, if it has other names.
    pub fn of(at: &Present) -> Option<LinkedFile> {
        LinkedFile::of_any(at).filter(|_| at.nlink > 1)
    }

    /// The file in this state, whether or not it has other names at that moment.
    pub fn of_any(at: &Present) -> Option<LinkedFile> {
        let (inode, mtime) = (at.linkable_identity()?, (at.mtime, at.mtime_nsec));
        Some(LinkedFile { inode, size: at.size, mode: at.mode, mtime })
    }

    /// The file that stat(2) says this of; none of a directory.
    pub fn of_stat(stat: &Stat) -> Option<LinkedFile> {
        let (inode, mtime) = (stat.identity(), (stat.mtime, stat.mtime_nsec));
        (!stat.is_directory()).then_some(LinkedFile { inode, size: stat.size, mode: stat.mode, mtime })
    }

    /// Its device and inode numbers.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// The same state of a file with these numbers.
    pub fn with_inode(self, inode: (u64, u64)) -> LinkedFile {
        LinkedFile { inode, ..self }
    }
}

/// Hard links of the files of a snapshot that other recordings know. They prove nothing: what is at a name now decides.
#[derive(Debug, Default)]
pub struct KnownLinks {
    /// Names that the files have or had.
    pub names: BTreeSet<Vec<u8>>,
    /// The device and inode numbers of files that had several names, although the snapshot may know one alone.
    pub files: HashSet<(u64, u64)>,
    /// For a file that a restore has made again, in each state that it has had since, the numbers of the one that it
    /// stands for. Its own number alone would not do: another file that is made again may get the number of this one.
    pub made_again: HashMap<LinkedFile, (u64, u64)>,
    /// The file that a restore was the last to put back at a name.
    pub put_back: HashMap<Vec<u8>, LinkedFile>,
    /// The states in which the snapshot has left files, by whatever name.
    pub left: HashSet<LinkedFile>,
}

impl KnownLinks {
    /// The file, by the numbers of the one that it stands for.
    pub fn original(&self, file: LinkedFile) -> LinkedFile {
        self.made_again.get(&file).map_or(file, |inode| file.with_inode(*inode))
    }
}

/// The fingerprint of the state that `record` has on `side`.
pub fn recorded(record: &FileRecord, side: Side, entries: Entries) -> Fingerprint {
    let Some(present) = state(record, side).present() else { return Fingerprint::Absent };
    let content = content_id(record, side).map(|id| (present.size, Some(id)));
    let entries = present.entries_digest.filter(|_| entries == Entries::Compare);
    fingerprint(present, content, entries)
}

/// Whether the two states of a record differ in what is compared, or in other attributes.
pub fn has_two_states(record: &FileRecord) -> bool {
    has_two_fingerprints(record) || !changed_attributes(record).is_empty()
}

/// Whether the two states of a record differ in what is compared.
pub fn has_two_fingerprints(record: &FileRecord) -> bool {
    recorded(record, Side::Before, Entries::Ignore) != recorded(record, Side::After, Entries::Ignore)
}

/// An attribute that is no part of a fingerprint, and that a restore gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute<'a> {
    /// The owner.
    Owner,
    /// The group.
    Group,
    /// The inode flags.
    InodeFlags,
    /// The extended attribute of this name.
    Xattr(&'a [u8]),
}

/// The attributes in which two states differ.
pub fn differing_attributes<'a>(one: &'a Present, other: &'a Present) -> BTreeSet<Attribute<'a>> {
    let names = one.xattrs.keys().chain(other.xattrs.keys());
    let differing = names.filter(|name| one.xattrs.get(*name) != other.xattrs.get(*name));
    let mut attributes: BTreeSet<_> = differing.map(|name| Attribute::Xattr(name)).collect();
    if one.uid != other.uid {
        attributes.insert(Attribute::Owner);
    }
    if one.gid != other.gid {
        attributes.insert(Attribute::Group);
    }
    if one.inode_flags != other.inode_flags {
        attributes.insert(Attribute::InodeFlags);
    }
    attributes
}

/// Gives `to` these attributes of `found`.
pub fn take_over(to: &mut Present, found: &Present, attributes: BTreeSet<Attribute>) {
    for attribute in attributes {
        match attribute {
            Attribute::Owner => to.uid = found.uid,
            Attribute::Group => to.gid = found.gid,
            Attribute::InodeFlags => to.inode_flags.clone_from(&found.inode_flags),
            Attribute::Xattr(name) => match found.xattrs.get(name) {
                Some(value) => drop(to.xattrs.insert(name.to_vec(), value.clone())),
                None => drop(to.xattrs.remove(name)),
            },
        }
    }
}

/// The attributes in which the two states of a record differ. They are recorded only of paths that the command changes.
pub fn changed_attributes(record: &FileRecord) -> BTreeSet<Attribute<'_>> {
    match (&record.before, &record.after) {
        (State::Present(before), State::Present(after))
            if record.operations.intersects(Operations::CHANGES) =>
        {
            differing_attributes(before, after)
        }
        _ => BTreeSet::new(),
    }
}

fn fingerprint(
    present: &Present,
    content: Option<(u64, Option<ContentId>)>,
    entries: Option<Digest>,
) -> Fingerprint {
    Fingerprint::Present {
        file_type: present.file_type,
        permissions: present.mode & 0o7777,
        target: present.target.clone(),
        rdev: present.rdev,
        content,
        entries,
    }
}

/// The fingerprint of what is at `path` now, in the terms of `like`: content is read only where
/// `like` has an identity to compare with and the lengths are equal.
pub fn live(path: &[u8], like: &Fingerprint) -> io::Result<Fingerprint> {
    let Some(stat) = fs::lstat(path)? else { return Ok(Fingerprint::Absent) };
    let present = live::present(&stat, path)?;
    let Fingerprint::Present { content: like_content, entries: like_entries, .. } = like else {
        return Ok(fingerprint(&present, None, None));
    };
    let content = match like_content {
        Some((size, Some(id))) if present.file_type == FileType::File => {
            if *size == present.size {
                let file = fs::open_regular(path)?;
                let (id, size) = identify(&file, id)?;
                Some((size, Some(id)))
            } else {
                Some((present.size, None))
            }
        }
        _ => None,
    };
    let entries = match like_entries {
        Some(_) if present.file_type == FileType::Directory => Some(live::entries_digest(path)?),
        _ => None,
    };
    Ok(fingerprint(&present, content, entries))
}

/// The identity of the content of `file` in the terms of `like`, and its length.
pub fn identify(file: &File, like: &ContentId) -> io::Result<(ContentId, u64)> {
    match like {
        ContentId::Digest(like) => {
            digest_file_like(file, like).map(|(digest, size)| (ContentId::Digest(digest), size))
        }
        ContentId::Git(oid) => {
            let like = gix::hash::ObjectId::from_hex(oid.as_bytes())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let size = file.metadata()?.len();
            let mut hasher = BlobHasher::new(like.kind(), size);
            let read = read_all(file, |chunk| hasher.update(chunk))?;
            let id = hasher.finish().map_err(io::Error::other)?;
            Ok((ContentId::Git(id.to_string()), read))
        }
    }
}

#[cfg(test)]
mod tests;
