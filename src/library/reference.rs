//! A reference to a snapshot, as JSON that a program keeps and gives back.
//!
//! `{"provider_id": "agent-snapshot", "ref": {"id", "directory", "session"}}`. A key that is not known is refused outside
//! of `ref` and passed over inside.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::log::ByteText;
use super::{Error, short_id};
use crate::snapshot::{Header, Snapshot, printable};

/// The provider of all references of ours.
const PROVIDER: &str = "agent-snapshot";

/// A reference to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Whose it is: `agent-snapshot`.
    pub provider_id: String,
    /// What it refers to.
    #[serde(rename = "ref")]
    pub target: Target,
}

/// What a reference refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The whole identifier of the snapshot.
    id: String,
    /// The absolute path of its directory.
    directory: ByteText,
    session: Option<String>,
}

impl Reference {
    /// The reference to the snapshot with this header in `directory`.
    pub fn new(header: &Header, directory: &Path) -> Reference {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let directory = ByteText(directory.into_os_string().into_encoded_bytes());
        let target = Target { id: header.id.clone(), directory, session: header.session.clone() };
        Reference { provider_id: PROVIDER.to_owned(), target }
    }

    /// Reads the reference that `word` is; none if it is no JSON object.
    ///
    /// # Errors
    /// It is an object of another kind.
    pub fn parse(word: &[u8]) -> Option<Result<Reference, Error>> {
        if !word.starts_with(b"{") {
            return None;
        }
        let wrong = |why: String| Error::NoSuch(format!("{} is not a reference: {why}", printable(word)));
        Some(match serde_json::from_slice::<Reference>(word) {
            Ok(reference) if reference.provider_id == PROVIDER => Ok(reference),
            Ok(reference) => {
                Err(wrong(format!("it is one of {}", printable(reference.provider_id.as_bytes()))))
            }
            Err(error) => Err(wrong(error.to_string())),
        })
    }

    /// The name of the snapshot in a library.
    pub fn library_id(&self) -> &str {
        short_id(&self.target.id)
    }

    /// Whether the snapshot of this name in a library is the one.
    pub fn is_in(&self, snapshots: &Path) -> bool {
        let here = snapshots.canonicalize().unwrap_or_else(|_| snapshots.to_owned());
        self.directory().parent() == Some(&here)
    }

    /// The directory, if it still holds the snapshot.
    ///
    /// # Errors
    /// It holds another one.
    pub fn checked_directory(&self) -> Result<PathBuf, Error> {
        let directory = self.directory();
        // One that has not ended has no manifest yet, and one that can't be read is an error of whoever opens it.
        match Snapshot::header_of(directory) {
            Ok(header) if header.id != self.target.id => Err(Error::NoSuch(format!(
                "{} holds another snapshot than {}",
                printable(&self.target.directory.0),
                printable(self.target.id.as_bytes())
            ))),
            _ => Ok(directory.to_owned()),
        }
    }

    fn directory(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.target.directory.0))
    }
}
