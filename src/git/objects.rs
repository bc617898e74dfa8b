//! Objects of an open repository, read by their ids; the ids of blobs.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gix::ObjectId;
use gix::prelude::Find as _;

use super::error::Error;
use super::files;

/// An object, read whole.
pub(super) struct GitObject {
    pub(super) kind: gix::objs::Kind,
    pub(super) data: Vec<u8>,
}

/// Reads an object; none where it is missing, damaged or no object at all.
pub(super) fn read(repository: &gix::Repository, id: ObjectId) -> Option<GitObject> {
    if !has_harmless_file(repository, id) {
        return None;
    }
    let mut data = Vec::new();
    let kind = repository.objects.try_find(&id, &mut data).ok()??.kind;
    Some(GitObject { kind, data })
}

/// Whether opening the object, if it is in a file of its own, can't block.
pub(super) fn has_harmless_file(repository: &gix::Repository, id: ObjectId) -> bool {
    let mut hex = gix::hash::Kind::hex_buf();
    let (directory, name) = id.hex_to_buf(&mut hex).split_at(2);
    let common = repository.common_dir().as_os_str().as_bytes();
    let path = [common, b"/objects/", directory.as_bytes(), b"/", name.as_bytes()].concat();
    files::harmless(Path::new(OsStr::from_bytes(&path)), u64::MAX)
}

/// Takes the id of the blob that has exactly the bytes that are written to it.
pub struct BlobHasher(gix::hash::Hasher);

impl BlobHasher {
    /// Begins the id of a blob of `size` bytes.
    pub fn new(hash: gix::hash::Kind, size: u64) -> BlobHasher {
        let mut hasher = gix::hash::hasher(hash);
        hasher.update(&gix::objs::encode::loose_header(gix::objs::Kind::Blob, size));
        BlobHasher(hasher)
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The id.
    ///
    /// # Errors
    /// The bytes are an attack on SHA-1: Git accepts no such blob.
    pub fn finish(self) -> Result<ObjectId, Error> {
        self.0.try_finalize().map_err(|error| Error::Database(error.to_string()))
    }
}

impl io::Write for BlobHasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
