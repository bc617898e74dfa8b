//! What can go wrong with a restore, in the kinds that a verb handles differently.

use std::io;
use std::path::PathBuf;

use crate::snapshot::{self, printable};

/// Why a restore failed, or the building of a state under a directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process is using the snapshot.
    #[error("{0} is being used by another restore or recording")]
    Busy(String),
    /// The directory to build under has entries.
    #[error("{0} is not empty: name a new or an empty directory")]
    NotEmpty(String),
    /// The snapshot is invalid.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// A journal does not match its checksums.
    #[error(
        "{0} is damaged at record {1}, so that what an interrupted restore had begun is not known: what it \
         overwrote is kept beside that file, which is to be removed to go on without it"
    )]
    JournalDamaged(String, usize),
    /// A journal is in the format of another version.
    #[error(
        "{0} was written by another version of agent-snapshot: complete the interrupted restore with that one"
    )]
    JournalVersion(String),
    /// Somebody has changed a file between the check and the rescue.
    #[error("nothing was changed, since {0} was changed meanwhile: run the same command again")]
    Overtaken(String),
    /// The rescue could not be written.
    #[error("{0}; nothing was changed")]
    Rescue(Box<Error>),
    /// The restore stopped before its end.
    #[error(
        "{cause}; {done} of {steps} changes were made; what they overwrote is in {}; run the same command again to \
         complete the restore",
        names(rescues)
    )]
    Stopped {
        /// Why.
        cause: Box<Error>,
        /// How many changes were made.
        done: usize,
        /// How many there were.
        steps: usize,
        /// The unfinished rescues.
        rescues: Vec<PathBuf>,
    },
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the path, such as `create /x/y`.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| printable(path.as_os_str().as_encoded_bytes())).collect();
    names.join(" and ")
}

/// Wraps an error of the operating system with the operation that failed.
pub fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what: what.into(), source }
}

/// The same, with the path that the operation was on.
pub fn failed_at(what: &'static str, path: &[u8]) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_vec();
    move |source| failed(format!("{what} {}", printable(&path)))(source)
}
