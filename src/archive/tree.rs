//! The recorded files as a tree that tar(1) unpacks: `files/before/PATH` and `files/after/PATH`.
//!
//! Regular files and directories come first, symlinks last, each in the order of their paths: so no file is unpacked
//! through a symlink of the archive. Neighbours: `export.rs` writes these entries, `import.rs` expects them.

use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::{Unavailable, locate};
use crate::snapshot::{FileRecord, FileType, Present};

/// The directory of the trees in an archive.
pub const FILES: &[u8] = b"files/";

/// A path of a tree.
#[derive(Debug, Clone, Copy)]
pub struct TreeEntry {
    /// Which of the two trees.
    pub side: Side,
    /// The number of its record.
    pub record: usize,
}

impl TreeEntry {
    /// Its name in the archive.
    pub fn name(self, record: &FileRecord) -> Vec<u8> {
        let end: &[u8] = match self.present(record) {
            Some(present) if present.file_type == FileType::Directory && record.path != b"/" => b"/",
            _ => b"",
        };
        [FILES, self.side.name().as_bytes(), &record.path, end].concat()
    }

    /// Its state.
    pub fn present(self, record: &FileRecord) -> Option<&Present> {
        state(record, self.side).present()
    }
}

/// Why a path is in no tree.
#[derive(Debug)]
pub struct LeftOut {
    /// Which of the two trees.
    pub side: Side,
    /// The path.
    pub path: Vec<u8>,
    /// Why.
    pub why: String,
}

/// The entries of both trees, in order. `left_out` is told of contents that are stored nowhere, though the recording
/// was to have them.
pub fn entries<'r>(
    records: impl Iterator<Item = &'r FileRecord> + Clone,
    mut left_out: impl FnMut(LeftOut),
) -> Vec<TreeEntry> {
    let mut entries = Vec::new();
    for side in Side::BOTH {
        let mut symlinks = Vec::new();
        for (number, record) in records.clone().enumerate() {
            let entry = TreeEntry { side, record: number };
            let Some(present) = entry.present(record) else { continue };
            let mut leave = |why: String| left_out(LeftOut { side, path: record.path.clone(), why });
            match (present.file_type, locate(record, side)) {
                (FileType::Directory, _) => entries.push(entry),
                (FileType::Symlink, Ok(_)) => symlinks.push(entry),
                (FileType::File, Ok(_)) if present.is_sparse() => leave("it is sparse".to_owned()),
                (FileType::File, Ok(_)) => entries.push(entry),
                // What was only looked up was not to be stored.
                (_, Err(Unavailable::NotRecorded | Unavailable::NoFile(_))) => {}
                (_, Err(why)) => leave(why.to_string()),
                (_, Ok(_)) => {}
            }
        }
        entries.append(&mut symlinks);
    }
    entries
}
