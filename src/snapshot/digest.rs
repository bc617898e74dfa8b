//! SHA-256 over bytes and files: what makes two contents the same content.
//!
//! Neighbours: `blobs.rs` stores by digest, `compare.rs` compares by it; `sparse.rs` has the digest of
//! files with holes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use super::error::Error;
use super::manifest::Digest;
use super::sparse::{self, Extents, SparseHasher};

/// What one read takes while hashing: small enough to stay in the cache and in malloc's heap, so
/// that no page of it is faulted in twice.
pub(crate) const STEP: usize = 64 << 10;

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::Sha256(Sha256::digest(bytes).into())
    }

    /// The digest of `bytes`, of the kind of `like`.
    pub fn of_like(bytes: &[u8], like: &Digest) -> Digest {
        let mut hasher = ContentHasher::like(like, bytes.len() as u64);
        hasher.update(0, bytes);
        hasher.finish()
    }

    /// The digest that `hasher` has arrived at.
    pub(crate) fn finish(hasher: Sha256) -> Digest {
        Digest::Sha256(hasher.finalize().into())
    }
}

/// Takes a digest of either kind.
pub(crate) enum ContentHasher {
    Plain(Sha256),
    Sparse(SparseHasher),
}

impl ContentHasher {
    /// Begins a digest of the kind of `like` over a content of `size` bytes.
    pub fn like(like: &Digest, size: u64) -> ContentHasher {
        match like {
            Digest::Sha256(_) => ContentHasher::Plain(Sha256::new()),
            Digest::Sparse(_) => ContentHasher::Sparse(SparseHasher::new(size)),
        }
    }

    /// Adds the bytes at `offset`. Of a sparse content whole blocks are added, and holes are left out.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) {
        match self {
            ContentHasher::Plain(hasher) => hasher.update(bytes),
            ContentHasher::Sparse(hasher) => hasher.update(offset, bytes),
        }
    }

    /// The digest.
    pub fn finish(self) -> Digest {
        match self {
            ContentHasher::Plain(hasher) => Digest::finish(hasher),
            ContentHasher::Sparse(hasher) => hasher.finish(),
        }
    }
}

/// Counts and hashes what is written to `inner`, or read from it.
pub(crate) struct Hashing<T> {
    pub inner: T,
    pub hasher: Sha256,
    pub bytes: u64,
}

impl<T> Hashing<T> {
    pub fn new(inner: T) -> Hashing<T> {
        Hashing { inner, hasher: Sha256::new(), bytes: 0 }
    }

    fn passed(&mut self, bytes: &[u8]) -> usize {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        bytes.len()
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        Ok(self.passed(&bytes[..written]))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        Ok(self.passed(&buffer[..read]))
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Digest, Error> {
        let (kind, hex): (fn([u8; 32]) -> Digest, _) = match text.split_once(':') {
            Some(("sha256", hex)) => (Digest::Sha256, hex),
            Some(("sparse-sha256", hex)) => (Digest::Sparse, hex),
            _ => return Err(not_a_digest()),
        };
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(not_a_digest());
        }
        let mut digest = [0; 32];
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = nibble(*high).ok_or_else(not_a_digest)? << 4 | nibble(*low).ok_or_else(not_a_digest)?;
        }
        Ok(kind(digest))
    }
}

fn not_a_digest() -> Error {
    Error::Format("a digest is `sha256:` or `sparse-sha256:` and 64 lowercase hexadecimal digits".to_owned())
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Hashes the whole of `file` from offset 0, without moving its offset, and counts its bytes.
///
/// The kind of the digest is that of the file: one with holes may be sparse (`sparse.rs`).
pub fn digest_file(file: &File) -> io::Result<(Digest, u64)> {
    let size = file.metadata()?.len();
    if sparse::is_sparse(file, size)? { digest_data(file, size) } else { digest_all(file) }
}

/// The same, with a digest of the kind of `like`, whatever holes the file has.
pub fn digest_file_like(file: &File, like: &Digest) -> io::Result<(Digest, u64)> {
    match like {
        Digest::Sha256(_) => digest_all(file),
        Digest::Sparse(_) => digest_data(file, file.metadata()?.len()),
    }
}

fn digest_all(file: &File) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let size = read_all(file, |chunk| hasher.update(chunk))?;
    Ok((Digest::finish(hasher), size))
}

/// The sparse digest, and the size as far as the data of the file reached.
fn digest_data(file: &File, size: u64) -> io::Result<(Digest, u64)> {
    let mut hasher = SparseHasher::new(size);
    let mut buffer = vec![0; STEP];
    for extent in Extents::new(file, size)? {
        let extent = extent?;
        let mut offset = extent.start;
        while offset < extent.end {
            let len = usize::try_from(extent.end - offset).map_or(STEP, |rest| rest.min(STEP));
            let read = read_at(file, &mut buffer[..len], offset)?;
            hasher.update(offset, &buffer[..read]);
            offset += read as u64;
            if read < len {
                return Ok((hasher.finish(), offset));
            }
        }
    }
    Ok((hasher.finish(), size))
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
