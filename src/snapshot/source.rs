//! The content of a recorded state, wherever it is: in the bundle, or in Git as the pinned blob.
//!
//! [`locate`] says where, without a look at any file; [`Contents`] goes there and proves what it
//! finds: lengths, digests and object ids. Nothing of a repository but its object database is opened,
//! so that no configuration of it counts. Neighbours: `reader.rs` has the blobs, `compare.rs` the
//! identity of a content.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gix::hash::ObjectId;
use gix::objs::{FindHeader as _, Kind};
use gix::odb::Store;
use gix::odb::pack::Find as _;

use super::blobs::Side;
use super::compare::{is_untouched, state};
use super::error::{Error, printable};
use super::manifest::{BlobOmitted, Digest, FileRecord, FileType, GitState, Present};
use super::reader::Snapshot;
use super::sparse::{Nowhere, Sink, SparseFile, runs};

/// Where the content of a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
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
    /// In the record itself: the target of a symbolic link.
    Target(&'a [u8]),
    /// Nowhere, and nothing is missing: the digest is that of no bytes at all.
    Empty,
}

/// Why the content of a state can't be had; each message completes "the content is unavailable: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Nothing was at the path.
    #[error("nothing was there")]
    Absent,
    /// What was at the path has no content.
    #[error("it is a {}", .0.name().replace('_', " "))]
    NoFile(FileType),
    /// Content was needed and is not stored.
    #[error("{}", told(*.0))]
    Omitted(BlobOmitted),
    /// The file was only asked about, so its content was never needed.
    #[error("it was not recorded, since the command did not use it")]
    NotRecorded,
    /// Git was to supply it and does not.
    #[error("Git blob {oid} of {} can't be had: {why}", printable(.root))]
    Lost {
        /// The root of the working tree.
        root: Vec<u8>,
        /// The blob's object id.
        oid: String,
        /// What is wrong with the object or the repository.
        why: String,
    },
}

fn told(reason: BlobOmitted) -> &'static str {
    match reason {
        BlobOmitted::TooLarge => "it was larger than the limit of the recording (too_large)",
        BlobOmitted::Unreadable => "it could not be read at the recording (unreadable)",
        BlobOmitted::ChangedWhileReading => "it changed while it was recorded (changed_while_reading)",
        BlobOmitted::NoSpace => "there was no space for it (no_space)",
        BlobOmitted::Withheld => "it was withheld (withheld)",
    }
}

/// Why a content was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// It can't be had, which is a finding and no fault of the bundle.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The bundle is bad or unreadable.
    #[error(transparent)]
    Snapshot(#[from] Error),
    /// The sink refused it.
    #[error("{0}")]
    Sink(#[source] io::Error),
}

/// Says where the content of `record` on `side` is; of a symbolic link that is its target.
///
/// An after-state that is the before-state untouched has the content of that.
pub fn locate(record: &FileRecord, side: Side) -> Result<Source<'_>, Unavailable> {
    let present = state(record, side).present().ok_or(Unavailable::Absent)?;
    match (present.file_type, &present.target) {
        (FileType::File, _) => {}
        (FileType::Symlink, Some(target)) => return Ok(Source::Target(target)),
        (other, _) => return Err(Unavailable::NoFile(other)),
    }
    let digest = present.digest.as_ref();
    if let Some(key) = &present.blob {
        return Ok(Source::Blob { key, digest });
    }
    if present.size == 0 && digest == Some(&Digest::of(b"")) {
        return Ok(Source::Empty);
    }
    let missing = present.blob_omitted.map_or(Unavailable::NotRecorded, Unavailable::Omitted);
    match side {
        Side::Before => pinned(&record.git, digest).ok_or(missing),
        Side::After => {
            let same = record.before.present().is_some_and(|before| has_same_content(before, present));
            let before = if same { locate(record, Side::Before) } else { Err(missing) };
            before.or_else(|error| pinned(&record.git_after, digest).ok_or(error))
        }
    }
}

fn pinned<'a>(git: &'a Option<GitState>, digest: Option<&'a Digest>) -> Option<Source<'a>> {
    let git = git.as_ref()?;
    Some(Source::Git { root: &git.root, oid: git.oid.as_ref()?, digest })
}

fn has_same_content(before: &Present, after: &Present) -> bool {
    let same_digest = before.digest.is_some() && before.digest == after.digest;
    is_untouched(before, after) || same_digest && before.size == after.size
}

/// The contents of one snapshot. It can be shared between threads; repositories are opened once.
pub struct Contents<'s> {
    snapshot: &'s Snapshot,
    stores: Mutex<HashMap<PathBuf, Result<Arc<Store>, String>>>,
}

impl<'s> Contents<'s> {
    /// The contents of `snapshot`.
    pub fn new(snapshot: &'s Snapshot) -> Contents<'s> {
        Contents { snapshot, stores: Mutex::default() }
    }

    /// Whether [`Contents::copy`] will find the content of `record` on `side`, without reading it: a
    /// blob is promised by [`Snapshot::open`], of an object in Git its header is read.
    pub fn check(&self, record: &FileRecord, side: Side) -> Result<(), Unavailable> {
        match locate(record, side)? {
            Source::Git { root, oid, .. } => {
                let size = state(record, side).present().map_or(0, |present| present.size);
                self.open_object(root, oid, size).map(drop).map_err(|why| lost(root, oid, why))
            }
            Source::Blob { .. } | Source::Target(_) | Source::Empty => Ok(()),
        }
    }

    /// Writes the content of `record` on `side` to `sink`, the target of a symbolic link as it is,
    /// and counts its bytes.
    ///
    /// A blob streams, a row at a time; an object of Git is decoded in memory. What the sink has
    /// received counts only when this returns `Ok`: a blob's digest is known at its end.
    pub fn copy(&self, record: &FileRecord, side: Side, sink: &mut dyn Write) -> Result<u64, ContentError> {
        self.hand_over(record, side, &mut &mut *sink)
    }

    /// The same, into a regular file at its end, where the holes of a sparse file become holes.
    pub fn copy_to_file(&self, record: &FileRecord, side: Side, file: &File) -> Result<u64, ContentError> {
        let mut sink = SparseFile::at_end_of(file).map_err(ContentError::Sink)?;
        self.hand_over(record, side, &mut sink)
    }

    /// Reads the content for the sake of its checks, and counts its bytes.
    pub fn prove(&self, record: &FileRecord, side: Side) -> Result<u64, ContentError> {
        self.hand_over(record, side, &mut Nowhere)
    }

    fn hand_over(&self, record: &FileRecord, side: Side, sink: &mut dyn Sink) -> Result<u64, ContentError> {
        match locate(record, side)? {
            Source::Empty => Ok(0),
            Source::Target(target) => {
                sink.data(target).map_err(ContentError::Sink)?;
                Ok(target.len() as u64)
            }
            Source::Blob { key, digest } => {
                let mut sink = Watched { sink, refusal: None };
                self.snapshot.read_blob(key, digest, &mut sink).map_err(|error| match sink.refusal {
                    Some(refusal) => ContentError::Sink(refusal),
                    None => ContentError::Snapshot(error),
                })
            }
            Source::Git { root, oid, digest } => {
                let size = state(record, side).present().map_or(0, |present| present.size);
                let bytes = self.read_object(root, oid, size, digest).map_err(|why| lost(root, oid, why))?;
                let written = match digest {
                    Some(Digest::Sparse(_)) => give_sparse(&bytes, sink),
                    _ => sink.data(&bytes),
                };
                written.map_err(ContentError::Sink)?;
                Ok(bytes.len() as u64)
            }
        }
    }

    /// The object database that has `oid`, seen to hold a blob of `size` bytes under it.
    fn open_object(&self, root: &[u8], oid: &str, size: u64) -> Result<(Arc<Store>, ObjectId), String> {
        let id = ObjectId::from_hex(oid.as_bytes()).map_err(|error| error.to_string())?;
        let store = self.store(root, id.kind())?;
        let header = store.to_handle_arc().try_header(&id).map_err(|error| error.to_string())?;
        match header {
            None => Err("the repository has it no more".to_owned()),
            Some(header) if header.kind != Kind::Blob => Err(format!("it is a {}", header.kind)),
            // Before anything is allocated: nobody vouches for either of the two.
            Some(header) if header.size != size => {
                Err(format!("it has {} bytes and not the {size} of the record", header.size))
            }
            Some(_) => Ok((store, id)),
        }
    }

    fn read_object(
        &self,
        root: &[u8],
        oid: &str,
        size: u64,
        digest: Option<&Digest>,
    ) -> Result<Vec<u8>, String> {
        let (store, id) = self.open_object(root, oid, size)?;
        let mut bytes = Vec::new();
        let found = store.to_handle_arc().try_find(&id, &mut bytes).map_err(|error| error.to_string())?;
        found.ok_or("the repository has it no more")?;
        // Git's own database is not believed: a file of it can be damaged or put there.
        let actual =
            gix::objs::compute_hash(id.kind(), Kind::Blob, &bytes).map_err(|error| error.to_string())?;
        if actual != id || digest.is_some_and(|digest| Digest::of_like(&bytes, digest) != *digest) {
            return Err("its bytes are others".to_owned());
        }
        Ok(bytes)
    }

    fn store(&self, root: &[u8], kind: gix::hash::Kind) -> Result<Arc<Store>, String> {
        let path = PathBuf::from(OsStr::from_bytes(root));
        // What a panic elsewhere could have left here is a map with one entry less.
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.entry(path).or_insert_with_key(|root| open_store(root, kind)).clone()
    }
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

fn lost(root: &[u8], oid: &str, why: String) -> Unavailable {
    Unavailable::Lost { root: root.to_vec(), oid: oid.to_owned(), why }
}

/// Opens the object database of the repository whose working tree is at `root`.
fn open_store(root: &Path, object_hash: gix::hash::Kind) -> Result<Arc<Store>, String> {
    let objects = objects_dir(root).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "the repository is gone".to_owned(),
        _ => error.to_string(),
    })?;
    let options = gix::odb::store::init::Options::default();
    let store = Store::at_opts(objects, object_hash, &mut std::iter::empty(), options);
    store.map(Arc::new).map_err(|error| error.to_string())
}

/// `.git/objects`, or that of the repository which a `.git` file (of a linked worktree, of a
/// submodule) leads to.
fn objects_dir(root: &Path) -> io::Result<PathBuf> {
    let dot_git = root.join(".git");
    let git_dir = if regular(&dot_git)? {
        gix::discover::path::from_gitdir_file(&dot_git)
            .map_err(|error| io::Error::other(error.to_string()))?
    } else {
        dot_git
    };
    let common = git_dir.join("commondir");
    let common = match regular(&common) {
        Ok(true) => gix::discover::path::from_plain_file_relative_to_file(&common).transpose()?,
        _ => None,
    };
    let objects = common.unwrap_or(git_dir).join("objects");
    objects.metadata()?;
    Ok(objects)
}

/// Whether a regular file is at `path`: what else is there could block at an open.
fn regular(path: &Path) -> io::Result<bool> {
    Ok(path.metadata()?.is_file())
}

/// A sink that remembers its own refusal, apart from the errors of what is read.
struct Watched<'a> {
    sink: &'a mut dyn Sink,
    refusal: Option<io::Error>,
}

impl Sink for Watched<'_> {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let taken = self.sink.data(bytes);
        self.note(taken)
    }

    fn hole(&mut self, len: u64) -> io::Result<()> {
        let taken = self.sink.hole(len);
        self.note(taken)
    }
}

impl Watched<'_> {
    fn note(&mut self, taken: io::Result<()>) -> io::Result<()> {
        taken.map_err(|error| {
            let kind = error.kind();
            self.refusal = Some(error);
            kind.into()
        })
    }
}

#[cfg(test)]
mod tests;
