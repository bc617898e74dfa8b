//! What can go wrong with a restore, in the kinds that a verb answers differently.

use std::io;
use std::path::PathBuf;

use crate::snapshot::{self, printable};

/// Why a restore, or the building of a tree, came to no good end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process works with the snapshot.
    #[error("{0} is being used by another restore or recording")]
    Busy(String),
    /// The directory that a tree is to be built under has entries.
    #[error("{0} is not empty: name a new or an empty directory")]
    NotEmpty(String),
    /// The snapshot is bad.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// The bytes of a journal are not those that were written.
    #[error(
        "{0} is damaged at record {1}, so that what an interrupted restore had begun is not known: what it \
         overwrote is kept beside that file, which is to be removed to go on without it"
    )]
    JournalDamaged(String, usize),
    /// A journal is in a format of the future or of the past.
    #[error(
        "{0} was written by another version of agent-snapshot: complete the interrupted restore with that one"
    )]
    JournalVersion(String),
    /// The rescue could not be written.
    #[error("{0}; nothing was changed")]
    Rescue(Box<Error>),
    /// The work stopped on the way.
    #[error(
        "{cause}; {done} of {steps} changes were made, what they overwrote is in {}, and the same command completes them",
        names(rescues)
    )]
    Stopped {
        /// Why.
        cause: Box<Error>,
        /// How many changes were made.
        done: usize,
        /// Of how many.
        steps: usize,
        /// The unfinished rescues.
        rescues: Vec<PathBuf>,
    },
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the path, such as `create /x/y`.
        what: String,
        /// The refusal.
        source: io::Error,
    },
}

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| printable(path.as_os_str().as_encoded_bytes())).collect();
    names.join(" and ")
}

/// Makes an [`Error`] of a refusal of the operation `what`.
pub fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what: what.into(), source }
}

/// Makes an [`Error`] of a refusal of the operation `what` on `path`.
pub fn failed_at(what: &'static str, path: &[u8]) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_vec();
    move |source| failed(format!("{what} {}", printable(&path)))(source)
}
