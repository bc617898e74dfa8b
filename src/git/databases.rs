//! Blobs of object databases, by the root of the working tree.
//!
//! Nothing of a repository but its object database is opened, so that no configuration of it counts.
//! Neighbour: `objects.rs` reads objects of a repository that is open.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gix::hash::ObjectId;
use gix::objs::{FindHeader as _, Kind};
use gix::odb::Store;
use gix::odb::pack::Find as _;

use super::error::Error;
use crate::sync::lock;

/// Object databases, each opened once when a blob of it is first needed. Can be shared between threads.
#[derive(Default)]
pub struct ObjectDatabases {
    stores: Mutex<HashMap<PathBuf, Result<Arc<Store>, Error>>>,
}

impl ObjectDatabases {
    /// Checks that the repository whose working tree is at `root` has a blob `oid` of `size` bytes. Reads
    /// its header only.
    pub fn check(&self, root: &[u8], oid: &str, size: u64) -> Result<(), Error> {
        self.find(root, oid, size).map(drop)
    }

    /// Reads that blob, and proves that its bytes are those of its id.
    pub fn read(&self, root: &[u8], oid: &str, size: u64) -> Result<Vec<u8>, Error> {
        let (store, id) = self.find(root, oid, size)?;
        let mut bytes = Vec::new();
        let found = store.to_handle_arc().try_find(&id, &mut bytes).map_err(database)?;
        found.ok_or(Error::Missing)?;
        // The object database is not trusted: one of its files can be damaged or forged.
        let actual = gix::objs::compute_hash(id.kind(), Kind::Blob, &bytes).map_err(database)?;
        if actual == id { Ok(bytes) } else { Err(Error::OtherBytes) }
    }

    fn find(&self, root: &[u8], oid: &str, size: u64) -> Result<(Arc<Store>, ObjectId), Error> {
        let id = ObjectId::from_hex(oid.as_bytes()).map_err(database)?;
        let store = self.store(root, id.kind())?;
        let header = store.to_handle_arc().try_header(&id).map_err(database)?;
        match header {
            None => Err(Error::Missing),
            Some(header) if header.kind != Kind::Blob => Err(Error::NotABlob(header.kind)),
            // Before anything is allocated: neither size is trusted.
            Some(header) if header.size != size => {
                Err(Error::OtherSize { found: header.size, expected: size })
            }
            Some(_) => Ok((store, id)),
        }
    }

    fn store(&self, root: &[u8], hash: gix::hash::Kind) -> Result<Arc<Store>, Error> {
        let path = PathBuf::from(OsStr::from_bytes(root));
        // A panic in another thread can only have left a map with one entry less.
        let mut stores = lock(&self.stores);
        stores.entry(path).or_insert_with_key(|root| open(root, hash)).clone()
    }
}

fn database(error: impl ToString) -> Error {
    Error::Database(error.to_string())
}

/// Opens the object database of the repository whose working tree is at `root`.
fn open(root: &Path, hash: gix::hash::Kind) -> Result<Arc<Store>, Error> {
    let objects = objects_dir(root).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::RepositoryGone,
        _ => database(error),
    })?;
    let options = gix::odb::store::init::Options::default();
    Store::at_opts(objects, hash, &mut std::iter::empty(), options).map(Arc::new).map_err(database)
}

/// `.git/objects`, or that of the repository which a `.git` file (of a linked worktree, of a
/// submodule) names.
fn objects_dir(root: &Path) -> io::Result<PathBuf> {
    let dot_git = root.join(".git");
    let git_dir = if is_regular(&dot_git)? {
        gix::discover::path::from_gitdir_file(&dot_git)
            .map_err(|error| io::Error::other(error.to_string()))?
    } else {
        dot_git
    };
    let common = git_dir.join("commondir");
    let common = match is_regular(&common) {
        Ok(true) => gix::discover::path::from_plain_file_relative_to_file(&common).transpose()?,
        _ => None,
    };
    let objects = common.unwrap_or(git_dir).join("objects");
    objects.metadata()?;
    Ok(objects)
}

/// Whether a regular file is at `path`: opening anything else could block.
fn is_regular(path: &Path) -> io::Result<bool> {
    Ok(path.metadata()?.is_file())
}
