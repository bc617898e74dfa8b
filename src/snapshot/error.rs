//! What can be wrong with a bundle and its content, in the kinds that callers answer differently.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::manifest::{BlobOmitted, FileType};
use crate::git;

/// Why a bundle can't be read or written, or a content can't be handed over; each message is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no bundle, or of a format version that this build does not read.
    #[error("{0}")]
    Format(String),
    /// It contradicts itself: content is missing, cut, or has another digest.
    #[error("{0}")]
    Corrupt(String),
    /// Its paths could lead out of the place that is being written.
    #[error("{0}")]
    Unsafe(String),
    /// A directory has foreign files.
    #[error("{0}")]
    Refused(String),
    /// Another process is using a directory.
    #[error("{0}")]
    InUse(String),
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the path, such as `open /x/manifest.json`.
        what: String,
        /// The refusal.
        source: io::Error,
    },
    /// A content is in neither the bundle nor Git: a finding, and no fault of the bundle.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A file changed while it was read; what was read may be no state that it ever had.
    #[error("it changed while it was read")]
    Changed,
    /// A file whose content is to be stored can't be read.
    #[error("read: {0}")]
    Read(#[source] io::Error),
    /// `blobs.parquet` can't be written; storing all later contents fails, too.
    #[error("write blobs: {0}")]
    Write(#[source] io::Error),
    /// A sink could not take a content.
    #[error("{0}")]
    Sink(#[source] io::Error),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Io { source, .. } | Error::Read(source) | Error::Write(source) | Error::Sink(source) => {
                source
            }
            other => io::Error::other(other),
        }
    }
}

/// Why the content of a state is unavailable; each message completes "the content is unavailable: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Nothing was at the path.
    #[error("nothing was there")]
    Absent,
    /// What was at the path has no content.
    #[error("it is a {}", .0.name().replace('_', " "))]
    NoFile(FileType),
    /// Content was needed and is not stored.
    #[error("{}", reason(*.0))]
    Omitted(BlobOmitted),
    /// The file was only stat'ed, so its content was never needed.
    #[error("it was not recorded, since the command did not read it")]
    NotRecorded,
    /// The path was not changed, and the recording keeps no states of such paths.
    #[error("it was not changed, and the recording keeps no states of such paths (--keep all does)")]
    NotKept,
    /// Neither the bundle nor the live file has it.
    #[error("only its digest was recorded, and the live file has other content or is gone")]
    OnlyDigest,
    /// Git was to supply it and does not.
    #[error("Git blob {oid} of {} is unavailable: {why}", printable(.root))]
    Lost {
        /// The root of the working tree.
        root: Vec<u8>,
        /// The blob's object id.
        oid: String,
        /// What is wrong with the object or the repository.
        why: git::Error,
    },
}

fn reason(omitted: BlobOmitted) -> &'static str {
    match omitted {
        BlobOmitted::TooLarge => "it was larger than the limit of the recording (too_large)",
        BlobOmitted::Unreadable => "it could not be read at the recording (unreadable)",
        BlobOmitted::ChangedWhileReading => "it changed while it was recorded (changed_while_reading)",
        BlobOmitted::NoSpace => "there was no space for it (no_space)",
        BlobOmitted::Withheld => "it was withheld (withheld)",
    }
}

impl Error {
    /// Wraps an error of the operating system with the operation on `path` that failed.
    pub(crate) fn io<P: AsRef<std::ffi::OsStr>>(
        operation: &str,
        path: P,
    ) -> impl FnOnce(io::Error) -> Error + use<P> {
        let path = printable(path.as_ref().as_encoded_bytes()).into_owned();
        let what = format!("{operation} {path}");
        move |source| Error::Io { what, source }
    }
}

/// A path for a message.
pub fn printable_path(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes()).into_owned()
}

/// Whether a character of a name is escaped wherever it is shown: it moves the cursor, turns the line
/// around, or can't be seen.
pub fn is_hidden(char: char) -> bool {
    match char {
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => true,
        char => char.is_control(),
    }
}

/// A path for a message or a terminal: hidden characters and bytes that are not UTF-8 are escaped, so
/// that a name can't move the cursor.
pub fn printable(path: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(path) {
        Ok(text) if !text.contains(is_hidden) => Cow::Borrowed(text),
        _ => {
            let mut out = String::with_capacity(path.len() + 8);
            for chunk in path.utf8_chunks() {
                for char in chunk.valid().chars() {
                    if is_hidden(char) { out.extend(char.escape_default()) } else { out.push(char) }
                }
                for byte in chunk.invalid() {
                    // Writing to a String can't fail.
                    let _ = write!(out, "\\x{byte:02x}");
                }
            }
            Cow::Owned(out)
        }
    }
}
