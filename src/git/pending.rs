//! Stands in for what is still to come.
use gix::ObjectId;
use std::fs::File;
use std::io::{self, Write};

/// The objects of a repository.
#[derive(Debug)]
pub struct ObjectsDirectory;
impl ObjectsDirectory {
    /// Opens it.
    pub fn open(_: &[u8]) -> ObjectsDirectory {
        ObjectsDirectory
    }
    /// Whether a pack has an object.
    pub fn has_packed(&mut self, _: &ObjectId) -> bool {
        false
    }
}
/// A removed pack.
#[derive(Debug)]
pub struct RemovedPack;
impl RemovedPack {
    /// Opens it.
    pub fn open(_: File, _: File) -> io::Result<RemovedPack> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// How many objects it had.
    pub fn count(&self) -> usize {
        0
    }
    /// The objects that the directory has no more.
    pub fn missing(&self, _: &mut ObjectsDirectory) -> Vec<ObjectId> {
        Vec::new()
    }
    /// Writes one as a loose object.
    pub fn write_loose(&self, _: &ObjectId, _: impl Write) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
/// The objects directory and the id of a loose object.
pub fn loose_object(_: &[u8]) -> Option<(&[u8], ObjectId)> {
    None
}
/// The objects directory and the name of a pack, without an extension.
pub fn pack_file(_: &[u8]) -> Option<(&[u8], &[u8])> {
    None
}
/// The path of a loose object.
pub fn loose_path(directory: &[u8], _: &ObjectId) -> Vec<u8> {
    directory.to_vec()
}
