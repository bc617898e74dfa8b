//! The files with rules and settings that the traced command has changed, compared again at each question
//! that depends on them.
//!
//! A change is reported once, when a file is opened for writing; the bytes may be written later. So each file
//! is kept by the directory below which answers depend on it, and a question costs one stat(2) for each such
//! file above its path, however many there are elsewhere. Neighbour: `git.rs` knows which files these are,
//! and what a change of one means.

use std::collections::HashMap;
use std::path::Path;

use super::files;
use super::paths::{components, path_of};
use crate::fs::Signature;

/// Versions of longer files are distinguished by their metadata alone.
const LIMIT: u64 = 1 << 20;

/// The files as they were when they were last compared.
#[derive(Default)]
pub(super) struct Edited {
    /// By the directory below which answers depend on them.
    directories: HashMap<Vec<u8>, HashMap<Vec<u8>, FileVersion>, foldhash::fast::RandomState>,
}

/// Identifies a version of a file.
#[derive(PartialEq, Eq)]
struct FileVersion {
    signature: Signature,
    /// The content, where the next change may come so soon that the times stay the same.
    content: Option<Vec<u8>>,
}

impl Edited {
    /// Remembers the current version of `path` for questions about `directory` and what is below it.
    pub(super) fn note(&mut self, directory: &[u8], path: &[u8]) {
        let version = FileVersion::of(&path_of(path), false);
        if let Some(version) = version {
            self.directories.entry(directory.to_vec()).or_default().insert(path.to_vec(), version);
        } else if let Some(files) = self.directories.get_mut(directory) {
            files.remove(path);
        }
    }

    /// Removes and returns the files that have changed and that an answer about `path` depends on.
    pub(super) fn changed_above(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        if self.directories.is_empty() {
            return Vec::new();
        }
        let mut changed = Vec::new();
        for directory in std::iter::once(b"/".as_slice()).chain(components(path).map(|(_, at)| at)) {
            if let Some(files) = self.directories.get_mut(directory) {
                changed.extend(take_changed(files));
            }
        }
        changed
    }

    /// Removes and returns all files that have changed.
    pub(super) fn changed(&mut self) -> Vec<Vec<u8>> {
        self.directories.values_mut().flat_map(take_changed).collect()
    }
}

fn take_changed(files: &mut HashMap<Vec<u8>, FileVersion>) -> impl Iterator<Item = Vec<u8>> {
    files.extract_if(|path, known| known.is_past(&path_of(path))).map(|(path, _)| path)
}

impl FileVersion {
    /// The version of the regular file that `path` resolves to, with its content if that is needed or
    /// `wanted`; none where there is no such file.
    fn of(path: &Path, wanted: bool) -> Option<FileVersion> {
        let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        // The signature comes first: a later one could hide a change.
        let signature = Signature::from(&metadata);
        let wanted = wanted || signature.is_recent();
        let content = wanted.then(|| files::read_followed(path, LIMIT).ok()?).flatten();
        Some(FileVersion { signature, content })
    }

    /// Whether another version is at `path` now.
    fn is_past(&mut self, path: &Path) -> bool {
        let Some(now) = FileVersion::of(path, self.content.is_some()) else { return true };
        let is_past = now != *self;
        if !now.signature.is_recent() {
            self.content = None;
        }
        is_past
    }
}
