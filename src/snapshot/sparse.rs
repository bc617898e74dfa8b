//! Files with holes: where their data is, what their digest is over, and how holes stay holes.
//!
//! A file of more than [`SPARSE_ABOVE`] bytes with holes is sparse: of it only the data is read, hashed
//! and stored. Its digest, `sparse-sha256`, is SHA-256 over
//!
//! 1. its size, and
//! 2. for each maximal run of blocks of 4 KiB that are not all zero, from the first to the last: the
//!    run's offset, its bytes, and its length,
//!
//! all numbers as unsigned little-endian of 8 bytes. Blocks begin at multiples of 4 KiB; the last one
//! ends with the file. So the digest depends on size and bytes alone, and not on which zeros the
//! filesystem has allocated; and no two contents are hashed as the same bytes, since these can be taken
//! apart from their end. The length comes last, so that a run need not be known before it is hashed.
//!
//! Neighbours: `digest.rs` chooses the kind of digest, `blobs.rs` stores what [`Extents`] finds,
//! `reader.rs` gives it back to a [`Sink`].

use std::fs::File;
use std::io::{self, Seek as _, Write};
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::manifest::Digest;
use crate::fs::InPieces;

/// The unit of data and holes.
pub const BLOCK: usize = 4096;
/// Up to this size a file is read as a whole, holes and all.
pub const SPARSE_ABOVE: u64 = 64 << 20;
/// The source of zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Whether `file`, of `size` bytes, is long enough to be sparse and has a hole.
pub fn is_sparse(file: &File, size: u64) -> io::Result<bool> {
    if size <= SPARSE_ABOVE {
        return Ok(false);
    }
    let extents = Extents::new(file, size)?;
    let hole = extents.seek(SeekFrom::Hole(0))?;
    Ok(hole.is_some_and(|hole| hole < size))
}

/// The data of a file in ranges of whole blocks, as SEEK_DATA and SEEK_HOLE of lseek(2) report it; what
/// is between them is a hole. A range may well hold blocks of zeros.
///
/// A filesystem that knows no holes has one range. The offset of the file is restored at the end; no other
/// code may use it until then.
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    size: u64,
    /// Where to go on; a multiple of [`BLOCK`], or `size`.
    position: u64,
    offset: u64,
}

impl<'a> Extents<'a> {
    /// The data of `file`, of `size` bytes.
    pub fn new(file: &'a File, size: u64) -> io::Result<Extents<'a>> {
        let offset = rustix::fs::seek(file, SeekFrom::Current(0))?;
        Ok(Extents { file, size, position: 0, offset })
    }

    /// None where there is nothing of that kind from there on.
    fn seek(&self, to: SeekFrom) -> io::Result<Option<u64>> {
        match (rustix::fs::seek(self.file, to), to) {
            (Ok(found), _) => Ok(Some(found)),
            (Err(Errno::NXIO), _) => Ok(None),
            // No holes are known to this filesystem.
            (Err(Errno::INVAL | Errno::OPNOTSUPP), SeekFrom::Data(from)) => Ok(Some(from)),
            (Err(Errno::INVAL | Errno::OPNOTSUPP), _) => Ok(Some(self.size)),
            (Err(error), _) => Err(error.into()),
        }
    }

    fn find(&mut self) -> io::Result<Option<Range<u64>>> {
        if self.position >= self.size {
            return Ok(None);
        }
        let Some(data) = self.seek(SeekFrom::Data(self.position))?.filter(|data| *data < self.size) else {
            return Ok(None);
        };
        // Somebody may have cut the file since: then there is no hole either.
        let hole = self.seek(SeekFrom::Hole(data))?.unwrap_or(self.size).max(data + 1);
        let block = BLOCK as u64;
        let start = (data - data % block).max(self.position);
        self.position = hole.checked_next_multiple_of(block).map_or(self.size, |end| end.min(self.size));
        Ok(Some(start..self.position))
    }
}

impl Iterator for Extents<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<io::Result<Range<u64>>> {
        self.find().transpose()
    }
}

impl Drop for Extents<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::seek(self.file, SeekFrom::Start(self.offset));
    }
}

/// The maximal runs of blocks in `bytes` that are not all zero.
pub fn runs(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_zero = |at: usize| {
            let block = &bytes[at..bytes.len().min(at + BLOCK)];
            *block == ZEROS[..block.len()]
        };
        while at < bytes.len() && is_zero(at) {
            at += BLOCK;
        }
        let start = at;
        while at < bytes.len() && !is_zero(at) {
            at += BLOCK;
        }
        (start < bytes.len()).then(|| start..at.min(bytes.len()))
    })
}

/// Takes the digest of a sparse content.
pub struct SparseHasher {
    hasher: Sha256,
    /// The run that is not ended yet.
    run: Range<u64>,
}

impl SparseHasher {
    /// Begins the digest of a content of `size` bytes.
    pub fn new(size: u64) -> SparseHasher {
        SparseHasher { hasher: Sha256::new_with_prefix(size.to_le_bytes()), run: 0..0 }
    }

    /// Adds the bytes at `offset`, which lies behind all that was added. Both `offset` and the end are at
    /// the border of a block; what is left out counts as zeros.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) {
        for part in runs(bytes) {
            let start = offset + part.start as u64;
            if self.run.is_empty() || self.run.end != start {
                self.end_run();
                self.hasher.update(start.to_le_bytes());
                self.run = start..start;
            }
            self.run.end += part.len() as u64;
            self.hasher.update(&bytes[part]);
        }
    }

    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.hasher.update((self.run.end - self.run.start).to_le_bytes());
        }
    }

    /// The digest.
    pub fn finish(mut self) -> Digest {
        self.end_run();
        Digest::Sparse(self.hasher.finalize().into())
    }
}

/// Takes a content in order, from its first byte to its last.
pub trait Sink {
    /// Takes the next bytes.
    fn data(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Takes a hole: so many zeros.
    fn hole(&mut self, len: u64) -> io::Result<()>;
}

/// A writer of plain bytes gets the zeros of a hole.
impl<W: Write> Sink for W {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn hole(&mut self, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let step = usize::try_from(len).map_or(ZEROS.len(), |len| len.min(ZEROS.len()));
            self.write_all(&ZEROS[..step])?;
            len -= step as u64;
        }
        Ok(())
    }
}

/// Discards a content that is only read to be checked.
pub struct Nowhere;

impl Sink for Nowhere {
    fn data(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn hole(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Puts a content at the end of a regular file, where its holes become holes.
pub struct SparseFile<'a>(&'a File);

impl<'a> SparseFile<'a> {
    /// Goes on at the end of `file`.
    pub fn at_end_of(mut file: &'a File) -> io::Result<SparseFile<'a>> {
        file.seek(io::SeekFrom::End(0))?;
        Ok(SparseFile(file))
    }
}

impl Sink for SparseFile<'_> {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        InPieces(self.0).write_all(bytes)
    }

    fn hole(&mut self, len: u64) -> io::Result<()> {
        let end = self.0.stream_position()?.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
        self.0.set_len(end)?;
        self.0.seek(io::SeekFrom::Start(end)).map(drop)
    }
}

#[cfg(test)]
mod tests;
