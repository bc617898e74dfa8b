//! The file of a report: complete under its name, or not there at all.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use super::super::exit::UsageError;
use crate::snapshot::printable;

/// A file that is to get its name when it is complete. Only its owner may read it, as a bundle.
pub struct NewFile {
    path: PathBuf,
    force: bool,
}

impl NewFile {
    /// Checks that a file may be written to `path`: none is there, or `force` replaces it.
    pub fn create(path: &Path, force: bool) -> anyhow::Result<NewFile> {
        match fs::symlink_metadata(path) {
            // A rename would replace the device or the symlink itself.
            Ok(found) if !found.is_file() => {
                Err(UsageError(format!("{} is not a regular file", shown(path))).into())
            }
            Ok(_) if !force => Err(taken(path)),
            _ => Ok(NewFile { path: path.to_owned(), force }),
        }
    }

    /// Writes `content` to a temporary file beside the path, and renames it.
    pub fn commit(self, content: &[u8]) -> anyhow::Result<()> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let what = || format!("write {}", shown(&self.path));
        let mut file = NamedTempFile::new_in(directory.unwrap_or(Path::new("."))).with_context(what)?;
        file.write_all(content).with_context(what)?;
        if self.force {
            file.persist(&self.path).map(drop).map_err(|error| error.error).with_context(what)
        } else {
            match file.persist_noclobber(&self.path) {
                Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
                    Err(taken(&self.path))
                }
                result => result.map(drop).map_err(|error| error.error).with_context(what),
            }
        }
    }
}

fn taken(path: &Path) -> anyhow::Error {
    UsageError(format!("{} exists: --force replaces it", shown(path))).into()
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes()).into_owned()
}
