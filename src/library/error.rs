//! What can be wrong with the library and with the words that name a snapshot.

use std::io;
use std::path::Path;

use crate::snapshot::{self, printable};

/// Why the library can't be used, or a snapshot can't be named; each message is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library belongs to another user, or others may write there.
    #[error("{0}")]
    Unsafe(String),
    /// No snapshot has this name; similar ones are in the message.
    #[error("{0}")]
    NoSuch(String),
    /// More than one snapshot has this name; the message lists them.
    #[error("{0}")]
    Ambiguous(String),
    /// The snapshot with this identifier belongs to another session.
    #[error(
        "{0} belongs to another session: --allow-cross-session allows its use, which is written to audit.jsonl"
    )]
    OtherSession(String),
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the path.
        what: String,
        /// The refusal.
        source: io::Error,
    },
    /// A snapshot of the library can't be read.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
}

/// Makes the error of an operation on a path.
pub fn failed(operation: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("{operation} {}", printable(path.as_os_str().as_encoded_bytes()));
    move |source| Error::Io { what, source }
}
