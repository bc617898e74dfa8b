//! Why settings can't be read or changed.

use std::io;
use std::path::Path;

use crate::snapshot::printable_path;

/// Why settings can't be read or changed; each message is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is there is not to be changed: it is no settings file, has an error, or holds something of the user's own.
    #[error("{0}")]
    Refused(String),
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the path.
        what: String,
        /// The refusal.
        source: io::Error,
    },
}

/// What is wrong with a text, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defect {
    /// The line and the column, both from 1, if it is at one place.
    pub at: Option<(usize, usize)>,
    /// What is wrong.
    pub what: String,
}

impl Defect {
    /// A defect of the text as a whole.
    pub fn of_all(what: impl Into<String>) -> Defect {
        Defect { at: None, what: what.into() }
    }

    /// The refusal of the file with this text.
    pub fn of_file(self, path: &Path) -> Error {
        let path = printable_path(path);
        Error::Refused(match self.at {
            Some((line, column)) => format!("{path}, line {line}, column {column}: {}", self.what),
            None => format!("{path}: {}", self.what),
        })
    }
}

/// Makes the error of an operation on a path.
pub fn failed(operation: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("{operation} {}", printable_path(path));
    move |source| Error::Io { what, source }
}
