//! Writes `blobs.parquet` while a recording runs, in memory that does not grow with the content.
//!
//! Rows are `key`, `offset`, `content`; a content longer than [`CHUNK`] continues in further rows of
//! its key. Those of a sparse file are its runs of blocks that are not all zero, with holes between them;
//! if it ends in a hole, an empty row marks the end. Identical content is stored once. A buffer of [`CHUNK`]
//! bytes has all pending rows; while a thread compresses and writes it, a second one is filled and hashed.
//! Both are reused: fresh pages would cost more than the copying (measured: 0.77 against 2.8 GB/s).
//! Neighbours: `groups.rs` writes the row groups, `layout.rs` makes the file, `reader.rs` reads it back.

use std::collections::HashSet;
use std::fs::File;
use std::hash::BuildHasher as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use faster_hex::hex_string;
use foldhash::fast::RandomState;
use sha2::{Digest as _, Sha256};

pub use self::groups::{CHUNK, COLUMNS, Compression, GROUP_ROWS, GroupLog, complete};
use self::groups::{PendingRow, RowGroup, RowGroupWriter};
use super::digest::{digest_file, digest_file_like, read_at};
use super::error::Error;
use super::manifest::Digest;
use super::sparse::{self, Extents, SparseHasher, runs};
use crate::fs::Signature;

mod groups;

pub(crate) use groups::io_error;

/// How much is read of a sparse file at once, a multiple of the block.
const SPARSE_STEP: usize = 1 << 20;

/// The most that the magic numbers, the schema and the other metadata of the file take.
pub(super) const END_BYTES: u64 = 4 << 10;
/// Compression lengthens bytes by less than one part in this many. A row group with few rows has long ones, so
/// this is enough for its headers, too.
const POOR_COMPRESSION: u64 = 64;

/// The most that a row takes beside its content.
fn row_bytes(key: &str) -> u64 {
    128 + 2 * key.len() as u64
}

/// Which of its two states a content belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the format")]
pub enum Side {
    Before,
    After,
}

impl Side {
    /// Both of them.
    pub const BOTH: [Side; 2] = [Side::Before, Side::After];

    /// The word of the format.
    pub fn name(self) -> &'static str {
        match self {
            Side::Before => "before",
            Side::After => "after",
        }
    }
}

/// The key of the content that `path` had on `side`: `before:/path`.
///
/// A path that is not UTF-8 is shown through Latin-1 and adds `#` and the hexadecimal digits of its
/// bytes. So does the rare UTF-8 path whose key would have that shape. Hence no two paths share a key: the
/// digits identify the path, and no key without them has the shape.
pub fn blob_key(side: Side, path: &[u8]) -> String {
    let text = super::wire::shown(path);
    if std::str::from_utf8(path).is_ok() && !has_hex_suffix(&text) {
        format!("{}:{text}", side.name())
    } else {
        format!("{}:{text}#{}", side.name(), hex_string(path))
    }
}

/// Whether `text` ends in `#` and the hexadecimal digits of bytes that are shown as what precedes it.
fn has_hex_suffix(text: &str) -> bool {
    text.rsplit_once('#').is_some_and(|(shown, digits)| {
        digits.len() >= shown.len() && {
            let exact = hex_string(shown.as_bytes());
            let latin: Option<Vec<u8>> = shown.chars().map(|char| u8::try_from(char).ok()).collect();
            digits == exact || latin.is_some_and(|latin| digits == hex_string(&latin))
        }
    })
}

/// The length up to which content is stored; of longer content only the digest is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreLimit(pub Option<u64>);

impl StoreLimit {
    /// Everything is stored.
    pub const NONE: StoreLimit = StoreLimit(None);
}

/// The outcome of storing a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its digest.
    pub digest: Digest,
    /// Its length.
    pub size: u64,
    /// The key of its blob, which has another path if identical content was stored before; none if the
    /// content is longer than the [`StoreLimit`].
    pub blob: Option<Arc<str>>,
}

/// Stores contents in a parquet file, each once.
pub struct BlobWriter {
    groups: RowGroupWriter,
    /// The rows that are pending; their contents follow one another in the buffer.
    group: RowGroup,
    filled: usize,
    /// An upper bound of the length of the file, with all rows and its end.
    length: u64,
    written: Arc<AtomicU64>,
    keys: std::collections::HashMap<Digest, Arc<str>, RandomState>,
    /// Hashes of the keys that have rows. A false match only adds a number to a key.
    taken: HashSet<u64, RandomState>,
    /// The lengths of stored contents of more than one row.
    long: HashSet<u64, RandomState>,
    /// The first write error; nothing is written after it.
    failed: Option<(io::ErrorKind, String)>,
    /// Where it is noted what is on file.
    log: Option<GroupLog>,
}

impl BlobWriter {
    /// Starts writing to `file`, which is empty. Rows are written later than they are stored; if that fails,
    /// all later contents and `finish` fail.
    pub fn new(file: File, compression: Compression) -> io::Result<BlobWriter> {
        BlobWriter::logged(file, compression, None)
    }

    /// The same, noting in a journal what is on file.
    pub fn logged(file: File, compression: Compression, log: Option<GroupLog>) -> io::Result<BlobWriter> {
        let written = Arc::<AtomicU64>::default();
        Ok(BlobWriter {
            groups: RowGroupWriter::new(file, compression, log.clone(), Arc::clone(&written))?,
            group: RowGroup::new(),
            filled: 0,
            length: END_BYTES,
            written,
            keys: Default::default(),
            taken: Default::default(),
            long: Default::default(),
            failed: None,
            log,
        })
    }

    /// Stores `content`, of at most [`CHUNK`] bytes, under `key` unless it is stored already.
    pub fn store_bytes(&mut self, key: &str, content: &[u8]) -> Result<Stored, Error> {
        self.check_alive()?;
        if content.len() > CHUNK {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "content longer than one row");
            return Err(Error::Read(error));
        }
        self.make_room(content.len())?;
        self.group.room(self.filled, content.len()).copy_from_slice(content);
        self.admit(key, content.len(), Digest::of(content))
    }

    /// Stores the whole content of `file` under `key` unless it is stored already.
    ///
    /// The offset of `file` is neither used nor moved. Of a content longer than `limit` only the digest is
    /// taken. If the file changes during the read, the rows that were written stay unreferenced.
    pub fn store_file(&mut self, key: &str, file: &File, limit: StoreLimit) -> Result<Stored, Error> {
        self.check_alive()?;
        let before = signature(file)?;
        if limit.0.is_some_and(|limit| before.size > limit) {
            let (digest, size) = digest_unchanged(file, &before)?;
            return Ok(Stored { digest, size, blob: self.keys.get(&digest).cloned() });
        }
        match usize::try_from(before.size) {
            Ok(len) if len <= CHUNK => self.store_short(key, file, &before, len),
            _ => {
                let is_sparse = sparse::is_sparse(file, before.size).map_err(Error::Read)?;
                self.store_long(key, file, &before, is_sparse)
            }
        }
    }

    /// Adds a row as another file has it; a content's rows follow each other in order. `key` is in no other use here.
    pub fn copy_row(&mut self, key: &Arc<str>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_alive()?;
        self.make_room(bytes.len())?;
        self.group.room(self.filled, bytes.len()).copy_from_slice(bytes);
        self.push_row(key, offset, bytes.len())
    }

    /// An upper bound of what a content of `size` bytes in so many rows under `key` adds to the length of the
    /// file.
    pub fn bound(key: &str, size: u64, rows: u64) -> u64 {
        size.saturating_add(size / POOR_COMPRESSION).saturating_add(rows.saturating_mul(row_bytes(key)))
    }

    /// An upper bound of the length of the file, with all rows so far and its end.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many bytes of the contents are written, which another thread may be doing.
    pub fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    /// The key that holds the content with `digest`, if it is stored.
    pub fn key_of(&self, digest: &Digest) -> Option<Arc<str>> {
        self.keys.get(digest).cloned()
    }

    /// Writes what is pending, so that all contents which are stored are on file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.check_alive()?;
        self.pass_group()?;
        self.groups.flush().inspect_err(|error| {
            self.failed = Some((error.kind(), error.to_string()));
        })
    }

    /// Copies all contents that are stored so far to `copy`, an empty file, as a file of its own. Returns whether
    /// there are any.
    pub fn copy_to(&mut self, copy: &File) -> io::Result<bool> {
        self.flush()?;
        self.groups.copy_to(copy)
    }

    /// Finishes the file and returns it; none if no row was written.
    pub fn finish(self) -> io::Result<Option<File>> {
        self.check_alive()?;
        self.groups.finish(self.group)
    }

    fn store_short(
        &mut self,
        key: &str,
        file: &File,
        before: &Signature,
        len: usize,
    ) -> Result<Stored, Error> {
        self.make_room(len)?;
        // One byte more is read to detect that the file has grown.
        let room = self.group.room(self.filled, len + 1);
        let read = read_at(file, room, 0).map_err(Error::Read)?;
        if read != len {
            return Err(Error::Changed);
        }
        let digest = Digest::of(&room[..len]);
        check_unchanged(file, before, &digest)?;
        self.admit(key, len, digest)
    }

    /// Makes the `len` bytes behind the filled part of the buffer a row, if their content is new.
    fn admit(&mut self, key: &str, len: usize, digest: Digest) -> Result<Stored, Error> {
        let size = len as u64;
        if let Some(blob) = self.keys.get(&digest) {
            return Ok(Stored { digest, size, blob: Some(Arc::clone(blob)) });
        }
        let key = self.free_key(key);
        self.push_row(&key, 0, len)?;
        self.keys.insert(digest, Arc::clone(&key));
        Ok(Stored { digest, size, blob: Some(key) })
    }

    fn store_long(
        &mut self,
        key: &str,
        file: &File,
        before: &Signature,
        is_sparse: bool,
    ) -> Result<Stored, Error> {
        if self.long.contains(&before.size) {
            // Likely the same content again: reading it twice is cheaper than storing it twice.
            let (digest, size) = digest_unchanged(file, before)?;
            if let Some(blob) = self.keys.get(&digest) {
                return Ok(Stored { digest, size, blob: Some(Arc::clone(blob)) });
            }
        }
        self.pass_group().map_err(Error::Write)?;
        let key = self.free_key(key);
        let stored =
            if is_sparse { self.stream_data(&key, file, before) } else { self.stream(&key, file, before) };
        if stored.is_err() {
            // The content is incomplete: nothing more of it is written.
            self.group.rows.clear();
            self.filled = 0;
        }
        let digest = stored?;
        self.keys.insert(digest, Arc::clone(&key));
        self.long.insert(before.size);
        Ok(Stored { digest, size: before.size, blob: Some(key) })
    }

    fn stream(&mut self, key: &Arc<str>, file: &File, before: &Signature) -> Result<Digest, Error> {
        let mut hasher = Sha256::new();
        let mut offset = 0;
        while offset < before.size {
            let len = usize::try_from(before.size - offset).map_or(CHUNK, |rest| rest.min(CHUNK));
            let room = self.group.room(0, len);
            if read_at(file, room, offset).map_err(Error::Read)? != len {
                return Err(Error::Changed);
            }
            hasher.update(&*room);
            self.push_row(key, offset, len)?;
            offset += len as u64;
        }
        let grown = read_at(file, &mut [0], offset).map_err(Error::Read)? != 0;
        if grown {
            return Err(Error::Changed);
        }
        let digest = Digest::finish(hasher);
        check_unchanged(file, before, &digest)?;
        Ok(digest)
    }

    fn stream_data(&mut self, key: &Arc<str>, file: &File, before: &Signature) -> Result<Digest, Error> {
        let mut hasher = SparseHasher::new(before.size);
        let mut buffer = vec![0; SPARSE_STEP];
        let mut end = 0;
        for extent in Extents::new(file, before.size).map_err(Error::Read)? {
            let extent = extent.map_err(Error::Read)?;
            let mut offset = extent.start;
            while offset < extent.end {
                let len =
                    usize::try_from(extent.end - offset).map_or(SPARSE_STEP, |rest| rest.min(SPARSE_STEP));
                let bytes = &mut buffer[..len];
                if read_at(file, bytes, offset).map_err(Error::Read)? != len {
                    return Err(Error::Changed);
                }
                hasher.update(offset, bytes);
                for run in runs(bytes) {
                    let start = offset + run.start as u64;
                    end = offset + run.end as u64;
                    self.add_run(key, start, &bytes[run])?;
                }
                offset += len as u64;
            }
        }
        if end < before.size {
            self.push_row(key, before.size, 0)?;
        }
        let digest = hasher.finish();
        check_unchanged(file, before, &digest)?;
        Ok(digest)
    }

    fn add_run(&mut self, key: &Arc<str>, mut offset: u64, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.filled));
            self.group.room(self.filled, now.len()).copy_from_slice(now);
            self.push_row(key, offset, now.len())?;
            offset += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// `key`, or where it has rows already (of a content that changed while it was read, say)
    /// `before-2:/path` and so on. A key's side ends at the first colon, so no path has such a key.
    fn free_key(&mut self, key: &str) -> Arc<str> {
        let hash = |key: &str| self.keys.hasher().hash_one(key);
        let mut free = key.to_owned();
        let mut hashed = hash(&free);
        let mut number = 2_u64;
        while !self.taken.insert(hashed) {
            free = match key.split_once(':') {
                Some((side, path)) => format!("{side}-{number}:{path}"),
                None => format!("{key}-{number}"),
            };
            hashed = hash(&free);
            number += 1;
        }
        free.into()
    }

    fn make_room(&mut self, len: usize) -> Result<(), Error> {
        if self.filled + len > CHUNK { self.pass_group().map_err(Error::Write) } else { Ok(()) }
    }

    /// Makes the next `len` bytes of the buffer a row, or a part of the last one where they go on with it.
    fn push_row(&mut self, key: &Arc<str>, offset: u64, len: usize) -> Result<(), Error> {
        self.length = self.length.saturating_add(BlobWriter::bound(key, len as u64, 1));
        match self.group.rows.last_mut() {
            Some(last) if Arc::ptr_eq(&last.key, key) && last.offset + last.len as u64 == offset => {
                last.len += len;
            }
            _ => self.group.rows.push(PendingRow { key: Arc::clone(key), offset, len }),
        }
        self.filled += len;
        if self.group.rows.len() >= GROUP_ROWS || self.filled >= CHUNK {
            self.pass_group().map_err(Error::Write)?;
        }
        Ok(())
    }

    fn check_alive(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some((kind, message)) => {
                let message = format!("nothing is stored since a write failed: {message}");
                Err(Error::Write(io::Error::new(*kind, message)))
            }
        }
    }

    fn pass_group(&mut self) -> io::Result<()> {
        if self.group.rows.is_empty() {
            return Ok(());
        }
        self.filled = 0;
        self.group.stored = self.log.as_ref().map_or(0, |log| log.journal.progress().0);
        let full = std::mem::replace(&mut self.group, RowGroup::new());
        self.group = self.groups.write(full).inspect_err(|error| {
            self.failed = Some((error.kind(), error.to_string()));
        })?;
        Ok(())
    }
}

fn signature(file: &File) -> Result<Signature, Error> {
    file.metadata().map(|metadata| Signature::from(&metadata)).map_err(Error::Read)
}

/// Fails where the content may have changed since `before` and while `digest` was taken.
fn check_unchanged(file: &File, before: &Signature, digest: &Digest) -> Result<(), Error> {
    let now = signature(file)?;
    if now == *before {
        return Ok(());
    }
    if (now.size, now.mtime) != (before.size, before.mtime) {
        return Err(Error::Changed);
    }
    // The change time alone moves at an unlink, a rename or a chmod, too, which the command may do
    // during the read; but also when a writer resets the modification time. The bytes decide.
    match digest_file_like(file, digest) {
        Ok((again, size)) if again == *digest && size == before.size => Ok(()),
        Ok(_) => Err(Error::Changed),
        Err(error) => Err(Error::Read(error)),
    }
}

fn digest_unchanged(file: &File, before: &Signature) -> Result<(Digest, u64), Error> {
    let (digest, size) = digest_file(file).map_err(Error::Read)?;
    if size != before.size {
        return Err(Error::Changed);
    }
    check_unchanged(file, before, &digest)?;
    Ok((digest, size))
}

#[cfg(test)]
mod tests;
