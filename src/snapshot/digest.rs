//! SHA-256 over bytes and files: what makes two contents the same content.
//!
//! Neighbours: `blobs.rs` stores by digest, `compare.rs` compares by it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use super::manifest::Digest;

/// What one read takes while hashing: small enough to stay in the cache and in malloc's heap, so
/// that no page of it is faulted in twice.
const STEP: usize = 64 << 10;

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digest that `hasher` has arrived at.
    pub(crate) fn finish(hasher: Sha256) -> Digest {
        Digest(hasher.finalize().into())
    }
}

/// The text is no digest of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is `sha256:` and 64 lowercase hexadecimal digits")]
pub struct NotADigest;

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Digest, NotADigest> {
        let hex = text.strip_prefix("sha256:").ok_or(NotADigest)?.as_bytes();
        let (pairs, rest) = hex.as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(NotADigest);
        }
        let mut digest = [0; 32];
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = nibble(*high).ok_or(NotADigest)? << 4 | nibble(*low).ok_or(NotADigest)?;
        }
        Ok(Digest(digest))
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Hashes the whole of `file` from offset 0, without moving its offset, and counts its bytes.
pub fn digest_file(file: &File) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let size = read_all(file, |chunk| hasher.update(chunk))?;
    Ok((Digest::finish(hasher), size))
}

/// Hands the bytes of `file` from offset 0 to `take`, in order, and counts them.
pub fn read_all(file: &File, mut take: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut buffer = vec![0; STEP];
    let mut offset = 0;
    loop {
        let read = read_at(file, &mut buffer, offset)?;
        if read == 0 {
            return Ok(offset);
        }
        take(&buffer[..read]);
        offset += read as u64;
    }
}

/// Reads at `offset` until `buffer` is full or the file ends.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
