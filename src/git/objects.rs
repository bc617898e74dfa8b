//! Objects of an open repository, each looked up by its id.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gix::ObjectId;
use gix::prelude::Find as _;

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
