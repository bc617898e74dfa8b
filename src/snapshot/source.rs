//! The content of a recorded state, wherever it is: in the bundle, or in Git as the pinned blob.
//!
//! [`locate`] says where, without reading any file; [`Contents`] reads it there and checks lengths, digests
//! and object ids. Neighbours: `reader.rs` has the blobs, `git` the objects,
//! `compare.rs` the identity of a content.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};

use super::blobs::Side;
use super::compare::{ContentId, content_id, identify, is_untouched, state};
use super::digest::{ContentHasher, STEP, digest_file, digest_file_like, read_at};
use super::error::Error;
pub use super::error::Unavailable;
use super::manifest::{Digest, FileRecord, FileType, GitStatus, Present, State};
use super::reader::Snapshot;
use super::sparse::{Extents, Nowhere, Sink, SparseFile, runs};
use crate::fs;
use crate::git::{self, ObjectDatabases};

/// Where the content of a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentSource<'a> {
    /// In the bundle.
    Blob {
        /// Its key.
        key: &'a str,
        /// Its digest, where the record says it.
        digest: Option<&'a Digest>,
    },
    /// In Git, as the blob that the file's bytes were proved to be.
    Git {
        /// The root of the working tree.
        root: &'a [u8],
        /// The blob's object id.
        oid: &'a str,
        /// The digest of the content, where the record says it.
        digest: Option<&'a Digest>,
    },
    /// In the record itself: the target of a symlink.
    Target(&'a [u8]),
    /// Nowhere, and nothing is missing: the digest is that of no bytes at all.
    Empty,
    /// In the live file, as long as that has the recorded digest.
    Live {
        /// The path.
        path: &'a [u8],
        /// The digest.
        digest: &'a Digest,
    },
}

/// Says where the content of `record` on `side` is; of a symlink that is its target.
///
/// An after-state that is the before-state untouched has the content of that.
pub fn locate(record: &FileRecord, side: Side) -> Result<ContentSource<'_>, Unavailable> {
    let present = match state(record, side) {
        State::Present(present) => present,
        State::Absent { .. } => return Err(Unavailable::Absent),
        State::NotKept => return Err(Unavailable::NotKept),
    };
    match (present.file_type, &present.target) {
        (FileType::File, _) => {}
        (FileType::Symlink, Some(target)) => {
            let omitted = present.blob_omitted.map(Unavailable::Omitted);
            return omitted.map_or(Ok(ContentSource::Target(target)), Err);
        }
        (other, _) => return Err(Unavailable::NoFile(other)),
    }
    let digest = present.digest.as_ref();
    if let Some(key) = &present.blob {
        return Ok(ContentSource::Blob { key, digest });
    }
    if present.size == 0 && digest == Some(&Digest::of(b"")) {
        return Ok(ContentSource::Empty);
    }
    let missing = present.blob_omitted.map_or(Unavailable::NotRecorded, Unavailable::Omitted);
    let same = || record.before.present().is_some_and(|before| has_same_content(before, present));
    let (git, elsewhere) = match side {
        Side::Before => (&record.git, Err(missing)),
        Side::After if same() => (&record.git_after, locate(record, Side::Before)),
        Side::After => (&record.git_after, Err(missing)),
    };
    let (pinned, live) =
        (pinned(git, digest), digest.map(|digest| ContentSource::Live { path: &record.path, digest }));
    match elsewhere {
        Err(Unavailable::NotRecorded) | Ok(ContentSource::Live { .. }) => {
            pinned.or(live).ok_or(Unavailable::NotRecorded)
        }
        Err(error) => pinned.ok_or(error),
        stored => stored,
    }
}

fn pinned<'a>(git: &'a Option<GitStatus>, digest: Option<&'a Digest>) -> Option<ContentSource<'a>> {
    let git = git.as_ref()?;
    Some(ContentSource::Git { root: &git.root, oid: git.oid.as_ref()?, digest })
}

fn has_same_content(before: &Present, after: &Present) -> bool {
    let same_digest = before.digest.is_some() && before.digest == after.digest;
    is_untouched(before, after) || same_digest && before.size == after.size
}

/// The contents of one snapshot. It can be shared between threads; repositories are opened once.
pub struct Contents<'s> {
    snapshot: &'s Snapshot,
    databases: ObjectDatabases,
}

impl<'s> Contents<'s> {
    /// The contents of `snapshot`.
    pub fn new(snapshot: &'s Snapshot) -> Contents<'s> {
        Contents { snapshot, databases: ObjectDatabases::default() }
    }

    /// Whether [`Contents::copy`] will find the content of `record` on `side`, without reading it: a
    /// blob is promised by [`Snapshot::open`], of an object in Git its header is read.
    pub fn check(&self, record: &FileRecord, side: Side) -> Result<(), Unavailable> {
        match locate(record, side)? {
            ContentSource::Git { root, oid, .. } => {
                let size = state(record, side).present().map_or(0, |present| present.size);
                self.databases.check(root, oid, size).map_err(|why| lost(root, oid, why))
            }
            ContentSource::Live { path, digest } => open_live(path, digest).map(drop),
            ContentSource::Blob { .. } | ContentSource::Target(_) | ContentSource::Empty => Ok(()),
        }
    }

    /// Writes the content of `record` on `side` to `sink`, the target of a symlink as it is,
    /// and counts its bytes.
    ///
    /// A blob streams, a row at a time; an object of Git is decoded in memory. What the sink has
    /// received counts only when this returns `Ok`: a blob's digest is known at its end.
    pub fn copy(&self, record: &FileRecord, side: Side, sink: &mut dyn Write) -> Result<u64, Error> {
        self.hand_over(record, side, &mut &mut *sink)
    }

    /// The same, into a regular file at its end, where the holes of a sparse file become holes.
    pub fn copy_to_file(&self, record: &FileRecord, side: Side, file: &File) -> Result<u64, Error> {
        let mut sink = SparseFile::at_end_of(file).map_err(Error::Sink)?;
        self.hand_over(record, side, &mut sink)
    }

    /// Reads the content for the sake of its checks, and counts its bytes.
    pub fn prove(&self, record: &FileRecord, side: Side) -> Result<u64, Error> {
        self.hand_over(record, side, &mut Nowhere)
    }

    /// Reads each content that the bundle itself has, once, for the sake of its checks.
    pub fn prove_all(&self) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for record in self.snapshot.files() {
            for side in Side::BOTH {
                if let Ok(ContentSource::Blob { key, .. }) = locate(record, side)
                    && seen.insert(key)
                {
                    self.prove(record, side)?;
                }
            }
        }
        Ok(())
    }

    fn hand_over(&self, record: &FileRecord, side: Side, sink: &mut dyn Sink) -> Result<u64, Error> {
        match locate(record, side)? {
            ContentSource::Empty => Ok(0),
            ContentSource::Target(target) => {
                sink.data(target).map_err(Error::Sink)?;
                Ok(target.len() as u64)
            }
            ContentSource::Blob { key, digest } => match (self.snapshot.provided(key), digest) {
                (Some(file), Some(digest)) => {
                    copy_live(&fs::reopen(file).map_err(Error::Read)?, digest, sink)
                }
                _ => self.snapshot.read_blob(key, digest, sink),
            },
            ContentSource::Live { path, digest } => copy_live(&open_live(path, digest)?, digest, sink),
            ContentSource::Git { root, oid, digest } => {
                let size = state(record, side).present().map_or(0, |present| present.size);
                let bytes = self.databases.read(root, oid, size).map_err(|why| lost(root, oid, why))?;
                if digest.is_some_and(|digest| Digest::of_like(&bytes, digest) != *digest) {
                    return Err(lost(root, oid, git::Error::OtherBytes).into());
                }
                let written = match digest {
                    Some(Digest::Sparse(_)) => give_sparse(&bytes, sink),
                    _ => sink.data(&bytes),
                };
                written.map_err(Error::Sink)?;
                Ok(bytes.len() as u64)
            }
        }
    }
}

/// The beginning of the key of a content that was provided; the number of its file follows.
const PROVIDED: &str = "provided:";

impl Snapshot {
    /// Takes the content that `path` had on `side` from `file` from now on.
    ///
    /// # Errors
    /// It can't be read, or is not that content: [`Error::Refused`].
    pub fn provide(&mut self, path: &[u8], side: Side, file: File) -> Result<(), Error> {
        let side_name = side.name();
        let index = FileRecord::find(&self.files, path);
        let record = index.and_then(|index| self.files.get_mut(index));
        let id = record.as_deref().and_then(|record| content_id(record, side));
        let state = record.map(|record| match side {
            Side::Before => &mut record.before,
            Side::After => &mut record.after,
        });
        let Some(State::Present(present)) = state else {
            return Err(Error::Refused(format!("nothing was there {side_name} the command")));
        };
        if present.file_type != FileType::File {
            let name = present.file_type.name().replace('_', " ");
            return Err(Error::Refused(format!("it was a {name} {side_name} the command")));
        }
        let size = file.metadata().map_err(Error::Read)?.len();
        if size != present.size {
            return Err(Error::Refused(format!(
                "it had {} bytes {side_name} the command, not {size}",
                present.size
            )));
        }
        if let Some(id) = &id {
            let (found, _) = identify(&file, id).map_err(Error::Read)?;
            if found != *id {
                return Err(Error::Refused(format!("it was {id} {side_name} the command, not {found}")));
            }
        }
        let digest = match id {
            Some(ContentId::Digest(digest)) => digest,
            Some(ContentId::Git(_)) | None => digest_file(&file).map_err(Error::Read)?.0,
        };
        (present.digest, present.blob_omitted) = (Some(digest), None);
        present.blob = Some(format!("{PROVIDED}{}", self.provided.len()));
        self.provided.push(file);
        Ok(())
    }

    /// The file that was provided as the content with this key.
    fn provided(&self, key: &str) -> Option<&File> {
        self.provided.get(key.strip_prefix(PROVIDED)?.parse::<usize>().ok()?)
    }
}

/// Opens the live file, if it has the recorded content.
fn open_live(path: &[u8], digest: &Digest) -> Result<File, Unavailable> {
    let open = || {
        let file = fs::open_regular(path)?;
        let (found, _) = digest_file_like(&file, digest)?;
        io::Result::Ok((found == *digest).then_some(file))
    };
    // What can't be read has become something else, as far as we can tell.
    open().ok().flatten().ok_or(Unavailable::OnlyDigest)
}

/// Gives the bytes of a live file, which were those of the record a moment ago.
fn copy_live(file: &File, digest: &Digest, sink: &mut dyn Sink) -> Result<u64, Error> {
    let size = file.metadata().map_err(Error::Read)?.len();
    let extents: Vec<_> = match digest {
        Digest::Sha256(_) => std::iter::once(0..size).collect(),
        Digest::Sparse(_) => {
            let extents = Extents::new(file, size).and_then(Iterator::collect);
            extents.map_err(Error::Read)?
        }
    };
    let mut hasher = ContentHasher::like(digest, size);
    let mut buffer = vec![0; STEP];
    let mut end = 0;
    for extent in extents {
        sink.hole(extent.start - end).map_err(Error::Sink)?;
        end = extent.start;
        while end < extent.end {
            let step = usize::try_from(extent.end - end).map_or(STEP, |rest| rest.min(STEP));
            let read = read_at(file, &mut buffer[..step], end).map_err(Error::Read)?;
            if read == 0 {
                return Err(Unavailable::OnlyDigest.into());
            }
            hasher.update(end, &buffer[..read]);
            sink.data(&buffer[..read]).map_err(Error::Sink)?;
            end += read as u64;
        }
    }
    sink.hole(size - end).map_err(Error::Sink)?;
    if hasher.finish() == *digest { Ok(size) } else { Err(Unavailable::OnlyDigest.into()) }
}

/// Gives the blocks of zeros as holes.
fn give_sparse(bytes: &[u8], sink: &mut dyn Sink) -> io::Result<()> {
    let mut end = 0;
    for run in runs(bytes) {
        sink.hole((run.start - end) as u64)?;
        end = run.end;
        sink.data(&bytes[run])?;
    }
    sink.hole((bytes.len() - end) as u64)
}

fn lost(root: &[u8], oid: &str, why: git::Error) -> Unavailable {
    Unavailable::Lost { root: root.to_vec(), oid: oid.to_owned(), why }
}

#[cfg(test)]
mod tests;
