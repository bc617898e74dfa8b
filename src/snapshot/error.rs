//! What can be wrong with a bundle, in the kinds that a verb answers differently.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

/// Why a bundle can't be read or a directory can't take one; each message is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no bundle, or one of a format that this build does not read.
    #[error("{0}")]
    Format(String),
    /// It contradicts itself: content is missing, cut, or has another digest.
    #[error("{0}")]
    Corrupt(String),
    /// Its paths could lead out of the place that is being written.
    #[error("{0}")]
    Unsafe(String),
    /// A directory holds what is not ours, or somebody else is using it.
    #[error("{0}")]
    Refused(String),
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the path, such as `open /x/manifest.json`.
        what: String,
        /// The refusal.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the operating system with the operation on `path` that met it.
    pub(crate) fn io<P: AsRef<std::ffi::OsStr>>(
        operation: &str,
        path: P,
    ) -> impl FnOnce(io::Error) -> Error + use<P> {
        let path = printable(path.as_ref().as_encoded_bytes()).into_owned();
        let what = format!("{operation} {path}");
        move |source| Error::Io { what, source }
    }
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
