//! A reader that stops hostile JSON before the parser has to hold it: nesting and single strings
//! beyond anything that we write.
//!
//! serde_json limits the depth of what it builds, but passes over the value of an unknown key with a
//! stack of its own, as deep as the brackets go.

use std::io::{self, BufReader, Read};

use serde::de::DeserializeOwned;

const MAX_DEPTH: u32 = 32;
/// The kernel takes no argument beyond 128 KiB and no attribute beyond 64 KiB (execve(2), xattr(7)),
/// and no byte takes more than six in JSON.
const MAX_STRING: u64 = 4 << 20;

/// Passes bytes through and counts brackets and the length of strings.
struct Guard<'a> {
    inner: &'a mut dyn Read,
    depth: u32,
    string: Option<u64>,
    escaped: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct LimitExceeded(&'static str);

/// Whether the parser's error is ours: a read of a file never fails in this kind.
pub fn is_limit_exceeded(error: &serde_json::Error) -> bool {
    error.io_error_kind() == Some(io::ErrorKind::InvalidData)
}

/// Reads one value, after which the bytes end. Takes any reader as one type, so that the code for each `T` is compiled once.
///
/// # Errors
/// Reading fails, or they are not such a value.
pub fn read<T: DeserializeOwned>(bytes: &mut dyn Read) -> serde_json::Result<T> {
    let guard = Guard { inner: bytes, depth: 0, string: None, escaped: false };
    serde_json::from_reader(BufReader::with_capacity(64 << 10, guard))
}

impl Guard<'_> {
    fn count(&mut self, bytes: &[u8]) -> Result<(), LimitExceeded> {
        for byte in bytes {
            match &mut self.string {
                Some(_) if self.escaped => self.escaped = false,
                Some(_) if *byte == b'"' => self.string = None,
                Some(len) => {
                    self.escaped = *byte == b'\\';
                    *len += 1;
                    if *len > MAX_STRING {
                        return Err(LimitExceeded("a string is too long"));
                    }
                }
                None => match byte {
                    b'"' => self.string = Some(0),
                    b'[' | b'{' => {
                        self.depth += 1;
                        if self.depth > MAX_DEPTH {
                            return Err(LimitExceeded("it is nested too deeply"));
                        }
                    }
                    b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                },
            }
        }
        Ok(())
    }
}

impl Read for Guard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count(&buffer[..read]).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(read)
    }
}
