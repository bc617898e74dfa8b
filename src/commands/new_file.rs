//! A file that a verb makes: complete under its name, or not there at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use super::exit::UsageError;
use crate::snapshot::printable_path;

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
                Err(UsageError(format!("{} is not a regular file", printable_path(path))).into())
            }
            Ok(_) if !force => Err(taken(path)),
            _ => Ok(NewFile { path: path.to_owned(), force }),
        }
    }

    /// The directory that it is to be in.
    pub fn directory(&self) -> &Path {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// Writes `content` to the file.
    pub fn commit(self, content: &[u8]) -> anyhow::Result<()> {
        let what = format!("write {}", printable_path(&self.path));
        self.commit_with(|mut file| file.write_all(content).context(what))
    }

    /// Has `write` fill a temporary file beside the path, and renames it.
    pub fn commit_with<T>(self, write: impl FnOnce(&File) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let what = || format!("write {}", printable_path(&self.path));
        let file = NamedTempFile::new_in(self.directory()).map_err(without_path).with_context(what)?;
        let outcome = write(file.as_file())?;
        if self.force {
            file.persist(&self.path).map_err(|error| error.error).with_context(what)?;
        } else {
            match file.persist_noclobber(&self.path) {
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(taken(&self.path));
                }
                result => result.map_err(|error| error.error).with_context(what)?,
            };
        }
        Ok(outcome)
    }
}

/// The error without the temporary name, which tempfile adds.
fn without_path(error: io::Error) -> io::Error {
    let system = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    system.and_then(io::Error::raw_os_error).map_or(error, io::Error::from_raw_os_error)
}

fn taken(path: &Path) -> anyhow::Error {
    UsageError(format!("{} exists: --force replaces it", printable_path(path))).into()
}
