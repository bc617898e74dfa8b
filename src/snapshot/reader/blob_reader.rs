//! Reads `blobs.parquet` by key. The file is not trusted: sizes are checked against its length before
//! anything is allocated, and a panic of the parquet library means a corrupt file.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};

use super::super::blobs::{BlobWriter, CHUNK, COLUMNS};
use super::super::digest::ContentHasher;
use super::super::error::{Error, printable};
use super::super::manifest::Digest;
use super::super::sparse::{BLOCK, Sink};
use super::checks::Wanted;

/// The most that a page of ours decompresses to is one row and what was there before it.
const MAX_PAGE: u64 = 64 << 20;
/// How many keys are decoded at once.
const BATCH: usize = 1024;
/// How many decoded windows are kept, and how many readers that can continue behind one.
const KEPT_WINDOWS: usize = 4;
/// The most bytes of all windows that are kept, and of one.
const KEPT_BYTES: usize = 2 * CHUNK;
/// How many groups are decoded at once, at most: each takes twice its size in memory.
const DECODERS: usize = 2;
/// How long a file must have been unchanged before its change time tells a later change: it is that of the kernel's
/// last tick (CONFIG_HZ is 100 or more).
const TICK: Duration = Duration::from_millis(50);

/// The parquet file with an index of the keys that the manifest names.
#[derive(Debug)]
pub struct BlobReader {
    file: Arc<BlobFile>,
    metadata: ParquetMetaData,
    blobs: HashMap<Box<str>, Blob>,
    /// What was decoded last: after one small content its neighbours are often read, and a page is
    /// decompressed as a whole in any case.
    decoded: Mutex<DecodedRows>,
    /// One is taken while a group is decoded: a thread that wants a neighbour of its rows waits for that.
    decoders: [Mutex<()>; DECODERS],
}

/// The latest first.
#[derive(Default)]
struct DecodedRows {
    windows: Vec<Window>,
    cursors: Vec<Cursor>,
}

/// Rows of a group that follow each other: all of them in a group of ours.
#[derive(Clone)]
struct Window {
    group: u32,
    first: usize,
    contents: Arc<[ByteArray]>,
}

/// Continues in a group with too many rows for one window: starting again for each window would take
/// quadratic time.
struct Cursor {
    group: u32,
    next: usize,
    reader: ColumnReaderImpl<ByteArrayType>,
}

impl std::fmt::Debug for DecodedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecodedRows").field("windows", &self.windows.len()).finish_non_exhaustive()
    }
}

/// Where one content is.
#[derive(Debug)]
struct Blob {
    size: u64,
    sparse: bool,
    first: Option<RowLocation>,
    more: Vec<RowLocation>,
    /// The digest that the content was found to have, and the version of the file in which.
    proven: OnceLock<(Digest, FileVersion)>,
}

/// What changes with each write to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    size: u64,
    changed: (i64, i64),
}

#[derive(Debug, Clone, Copy)]
struct RowLocation {
    group: u32,
    /// The row's number in its group.
    row: u32,
    offset: u64,
}

/// The error for a blob that is named and not there.
pub fn missing(key: &str) -> Error {
    Error::Corrupt(format!("the blob {} is missing", printable(key.as_bytes())))
}

fn corrupt(reason: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("blobs.parquet: {reason}"))
}

/// A blob starts at 0 and goes on in order, with holes of whole blocks where it is sparse; no row can be longer than one
/// may be.
fn check_rows(key: &str, blob: &Blob) -> Result<(), Error> {
    let mut rows = blob.rows().peekable();
    match rows.peek() {
        None => return Err(missing(key)),
        Some(first) if first.offset != 0 && !blob.sparse => return Err(misplaced_rows(key)),
        Some(_) => {}
    }
    while let Some(row) = rows.next() {
        let end = rows.peek().map_or(blob.size, |next| next.offset);
        let len = end.checked_sub(row.offset).ok_or_else(|| misplaced_rows(key))?;
        let fits = if blob.sparse {
            // The last row of a content that ends in a hole is empty, and says where that is.
            let is_end = row.offset == blob.size && rows.peek().is_none();
            row.offset.is_multiple_of(BLOCK as u64) && len > 0 || is_end
        } else {
            len <= CHUNK as u64 && (len > 0 || blob.more.is_empty())
        };
        if !fits {
            return Err(misplaced_rows(key));
        }
    }
    Ok(())
}

impl BlobReader {
    /// Indexes the blobs of `wanted`.
    pub fn open(file: File, wanted: HashMap<Box<str>, Wanted>) -> Result<BlobReader, Error> {
        let content = BlobReader::index_of(file, wanted)?;
        content.blobs.iter().try_for_each(|(key, blob)| check_rows(key, blob))?;
        Ok(content)
    }

    /// Indexes those of `wanted` whose rows are all there.
    pub fn open_what_is_whole(file: File, wanted: HashMap<Box<str>, Wanted>) -> Result<BlobReader, Error> {
        let mut content = BlobReader::index_of(file, wanted)?;
        content.blobs.retain(|key, blob| check_rows(key, blob).is_ok());
        Ok(content)
    }

    fn index_of(file: File, wanted: HashMap<Box<str>, Wanted>) -> Result<BlobReader, Error> {
        let len = file.metadata().map_err(Error::io("stat", "blobs.parquet"))?.len();
        let source = BlobFile {
            file: Arc::new(file),
            len,
            pages: false,
            #[cfg(test)]
            asked: Default::default(),
        };
        guarded(|| {
            let metadata = ParquetMetaDataReader::new()
                .with_page_index_policy(PageIndexPolicy::Skip)
                .parse_and_finish(&source)?;
            let blobs = wanted
                .into_iter()
                .map(|(key, Wanted { size, sparse })| {
                    let (first, more, proven) = (None, Vec::new(), OnceLock::new());
                    (key, Blob { size, sparse, first, more, proven })
                })
                .collect();
            let file = Arc::new(BlobFile { pages: true, ..source });
            let (decoded, decoders) = (Mutex::default(), Default::default());
            let mut content = BlobReader { file, metadata, blobs, decoded, decoders };
            content.check_shape()?;
            for group in 0..content.metadata.num_row_groups() {
                content.index(group)?;
            }
            Ok(content)
        })
    }

    /// Writes the content of `key` to `sink`, what is between the rows of a sparse one as a hole.
    ///
    /// It is hashed the first time, and again only if the file was changed since.
    pub fn read(&self, key: &str, expected: Option<&Digest>, sink: &mut dyn Sink) -> Result<u64, Error> {
        let blob = self.blobs.get(key).ok_or_else(|| missing(key))?;
        let broken = |why: &str| corrupt(format!("the content of {} {why}", printable(key.as_bytes())));
        let version = self.file.version()?;
        let is_proven =
            |expected: &Digest| blob.proven.get().is_some_and(|proven| *proven == (*expected, version));
        let unproven = expected.filter(|expected| !is_proven(expected));
        let mut hasher = unproven.map(|expected| ContentHasher::like(expected, blob.size));
        let mut position = 0;
        let mut rows = blob.rows().peekable();
        while let Some(row) = rows.next() {
            let end = rows.peek().map_or(blob.size, |next| next.offset);
            let bytes = guarded(|| self.row(row))?;
            if !blob.takes(bytes.len(), end - row.offset, rows.peek().is_none()) {
                return Err(broken("does not have the length that the manifest says"));
            }
            if row.offset > position {
                sink.hole(row.offset - position).map_err(Error::Sink)?;
            }
            position = row.offset + bytes.len() as u64;
            if let Some(hasher) = &mut hasher {
                hasher.update(row.offset, bytes.data());
            }
            sink.data(bytes.data()).map_err(Error::Sink)?;
        }
        let is_same_version = self.file.version()? == version;
        match hasher.map(ContentHasher::finish) {
            Some(digest) if Some(&digest) != expected => {
                return Err(broken("does not have the digest that the manifest says"));
            }
            Some(digest) if is_same_version && version.is_settled() => {
                // Another thread may have been quicker.
                let _ = blob.proven.set((digest, version));
            }
            Some(_) => {}
            None if expected.is_some() && !is_same_version => {
                return Err(broken("was changed while it was read"));
            }
            None => {}
        }
        Ok(blob.size)
    }

    /// The file, if `is_wanted` says so of the key of each of its rows.
    pub fn file_without_other_rows(&self, is_wanted: &dyn Fn(&str) -> bool) -> Option<&File> {
        let rows = self.metadata.row_groups().iter().map(|group| group.num_rows());
        let wanted = self.blobs.iter().filter(|(key, _)| is_wanted(key));
        let wanted: usize = wanted.map(|(_, blob)| blob.rows().count()).sum();
        (i64::try_from(wanted) == Ok(rows.sum())).then_some(&*self.file.file)
    }

    /// Copies the rows of the blobs whose key `is_wanted` says so of, in their order. Digests are not checked.
    pub fn copy_rows(&self, is_wanted: &dyn Fn(&str) -> bool, writer: &mut BlobWriter) -> Result<(), Error> {
        let mut rows: Vec<(RowLocation, Arc<str>)> = Vec::new();
        for (key, blob) in self.blobs.iter().filter(|(key, _)| is_wanted(key)) {
            let key: Arc<str> = (&**key).into();
            rows.extend(blob.rows().map(|row| (row, Arc::clone(&key))));
        }
        rows.sort_unstable_by_key(|(row, _)| (row.group, row.row));
        for (row, key) in rows {
            let bytes = guarded(|| self.row(row))?;
            if bytes.len() > CHUNK {
                return Err(misplaced_rows(&key));
            }
            writer.copy_row(&key, row.offset, bytes.data())?;
        }
        Ok(())
    }

    /// How many bytes of pages were asked for so far, and how many pages of contents have.
    #[cfg(test)]
    pub fn asked(&self) -> (u64, u64) {
        let contents = self.metadata.row_groups().iter().map(|group| group.column(2).byte_range().1);
        (self.file.asked.load(std::sync::atomic::Ordering::Relaxed), contents.sum())
    }

    /// Whether the content of `key` was found to have its digest, in the file as it is.
    #[cfg(test)]
    pub fn is_proven(&self, key: &str) -> bool {
        self.blobs[key].proven.get().is_some_and(|(_, version)| *version == self.file.version().unwrap())
    }

    fn check_shape(&self) -> Result<(), Error> {
        let schema = self.metadata.file_metadata().schema_descr();
        let types = [Type::BYTE_ARRAY, Type::INT64, Type::BYTE_ARRAY];
        let fits = schema.num_columns() == COLUMNS.len()
            && schema.columns().iter().zip(COLUMNS).zip(types).all(|((column, name), kind)| {
                column.name() == name
                    && column.path().parts().len() == 1
                    && column.physical_type() == kind
                    && column.max_def_level() == 0
                    && column.max_rep_level() == 0
            });
        if !fits {
            return Err(corrupt("its columns are not key, offset and content"));
        }
        for group in self.metadata.row_groups() {
            let rows = group.num_rows();
            let whole = rows >= 0
                && u32::try_from(rows).is_ok()
                && group.num_columns() == COLUMNS.len()
                && group.columns().iter().all(|column| {
                    // `byte_range` panics where a number is negative; that is caught as well.
                    let (start, len) = column.byte_range();
                    column.num_values() == rows
                        && start.checked_add(len).is_some_and(|end| end <= self.file.len)
                });
            if !whole {
                return Err(corrupt("a row group lies outside the file"));
            }
        }
        Ok(())
    }

    fn column<T: DataType>(&self, group: usize, column: usize) -> Result<ColumnReaderImpl<T>, ParquetError> {
        let group = self.metadata.row_group(group);
        let chunk = group.column(column);
        let rows = usize::try_from(group.num_rows())?;
        let pages = SerializedPageReader::new(Arc::clone(&self.file), chunk, rows, None)?;
        Ok(ColumnReaderImpl::new(chunk.column_descr_ptr(), Box::new(pages)))
    }

    /// Notes the rows of one group whose key is wanted.
    fn index(&mut self, group: usize) -> Result<(), Error> {
        let rows: usize = fit(self.metadata.row_group(group).num_rows())?;
        let mut keys = self.column::<ByteArrayType>(group, 0)?;
        let mut offsets = self.column::<Int64Type>(group, 1)?;
        let (mut batch, mut starts) = (Vec::new(), Vec::new());
        let mut row = 0;
        while row < rows {
            batch.clear();
            starts.clear();
            let count = BATCH.min(rows - row);
            let read = keys.read_records(count, None, None, &mut batch)?.0;
            let also = offsets.read_records(count, None, None, &mut starts)?.0;
            if read == 0 || read != also || batch.len() != read || starts.len() != read {
                return Err(few_rows());
            }
            for (key, offset) in batch.iter().zip(&starts) {
                let blob = std::str::from_utf8(key.data()).ok().and_then(|key| self.blobs.get_mut(key));
                if let Some(blob) = blob {
                    let offset = fit(*offset)?;
                    blob.push(RowLocation { group: fit(group)?, row: fit(row)?, offset });
                }
                row += 1;
            }
        }
        Ok(())
    }

    /// The content of one row.
    fn row(&self, row: RowLocation) -> Result<ByteArray, Error> {
        let index = row.row as usize;
        let decoder = &self.decoders[row.group as usize % DECODERS];
        let _decoder = decoder.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = || self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        let (window, cursor) = {
            let mut decoded = lock();
            let holds = |window: &&Window| window.group == row.group && window.get(index).is_some();
            let window = decoded.windows.iter().find(holds).cloned();
            let leads = |cursor: &Cursor| cursor.group == row.group && cursor.next <= index;
            let cursor = decoded.cursors.iter().position(leads).filter(|_| window.is_none());
            (window, cursor.map(|cursor| decoded.cursors.remove(cursor)))
        };
        if let Some(window) = window {
            return window.get(index).cloned().ok_or_else(few_rows);
        }
        let mut cursor = match cursor {
            Some(cursor) => cursor,
            None => Cursor { group: row.group, next: 0, reader: self.column(row.group as usize, 2)? },
        };
        // The row's neighbours on either side are in one window with it.
        let mut window = self.window(&mut cursor, index - index % BATCH)?;
        while cursor.next <= index {
            let next = cursor.next;
            window = self.window(&mut cursor, next)?;
        }
        let content = window.get(index).cloned().ok_or_else(few_rows);
        let mut decoded = lock();
        if self.rows_of(row.group)? > cursor.next {
            decoded.cursors.insert(0, cursor);
            decoded.cursors.truncate(KEPT_WINDOWS);
        }
        if window.contents.len() > 1 {
            decoded.windows.insert(0, window);
            decoded.forget_windows();
        }
        content
    }

    fn rows_of(&self, group: u32) -> Result<usize, Error> {
        fit(self.metadata.row_group(group as usize).num_rows())
    }

    /// Decodes the rows from `first` on, or from where the cursor is already, as many as are worth keeping.
    fn window(&self, cursor: &mut Cursor, first: usize) -> Result<Window, Error> {
        let first = first.max(cursor.next);
        let rows = BATCH.min(self.rows_of(cursor.group)?.saturating_sub(first));
        let mut contents = Vec::with_capacity(rows);
        let mut bytes = 0;
        let skip = first - cursor.next;
        if cursor.reader.skip_records(skip)? != skip {
            return Err(few_rows());
        }
        while contents.len() < rows && bytes < KEPT_BYTES {
            if cursor.reader.read_records(1, None, None, &mut contents)?.0 == 0 {
                return Err(few_rows());
            }
            bytes += contents.last().map_or(0, ByteArray::len);
        }
        cursor.next = first + contents.len();
        Ok(Window { group: cursor.group, first, contents: contents.into() })
    }
}

impl DecodedRows {
    /// Forgets the oldest windows that are too many or too large together.
    fn forget_windows(&mut self) {
        let mut bytes = 0;
        let kept = self.windows.iter().take(KEPT_WINDOWS).take_while(|window| {
            bytes += window.contents.iter().map(ByteArray::len).sum::<usize>();
            bytes <= KEPT_BYTES
        });
        let kept = kept.count();
        self.windows.truncate(kept);
    }
}

impl FileVersion {
    /// Whether a write from now on makes another version.
    fn is_settled(self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let since_epoch = u64::try_from(seconds).ok().zip(u32::try_from(nanoseconds).ok());
        let at = since_epoch.map(|(seconds, nanoseconds)| UNIX_EPOCH + Duration::new(seconds, nanoseconds));
        let age = at.and_then(|at| SystemTime::now().duration_since(at).ok());
        // A filesystem may keep whole seconds only.
        nanoseconds != 0 && age.is_some_and(|age| age > TICK)
    }
}

impl Window {
    fn get(&self, row: usize) -> Option<&ByteArray> {
        self.contents.get(row.checked_sub(self.first)?)
    }
}

impl Blob {
    fn push(&mut self, row: RowLocation) {
        match self.first {
            None => self.first = Some(row),
            Some(_) => self.more.push(row),
        }
    }

    /// Whether a row may have `len` bytes where `room` are left before the next row, or before the end of
    /// the content where it `is_last`. What it leaves of them is a hole.
    fn takes(&self, len: usize, room: u64, is_last: bool) -> bool {
        let leaves_hole = self.sparse && !is_last && len.is_multiple_of(BLOCK) && (1..=CHUNK).contains(&len);
        len as u64 == room || leaves_hole && (len as u64) < room
    }

    fn rows(&self) -> impl Iterator<Item = RowLocation> {
        self.first.into_iter().chain(self.more.iter().copied())
    }
}

fn few_rows() -> Error {
    corrupt("a row group has fewer rows than it says")
}

fn misplaced_rows(key: &str) -> Error {
    corrupt(format!("the rows of {} do not follow one another", printable(key.as_bytes())))
}

impl From<ParquetError> for Error {
    fn from(error: ParquetError) -> Error {
        match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(error) => match error.kind() {
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => corrupt(error),
                    _ => Error::io("read", "blobs.parquet")(*error),
                },
                Err(other) => corrupt(other),
            },
            other => corrupt(other),
        }
    }
}

/// A number of the file in the type that it must fit.
fn fit<N, T: TryFrom<N>>(number: N) -> Result<T, Error> {
    T::try_from(number).map_err(|_| corrupt("a number is negative or too large"))
}

/// Runs parquet code on a file that is not trusted; a panic becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_panic(work).unwrap_or_else(|| Err(corrupt("it can't be decoded")))
}

/// Runs parquet code on a file that is not trusted; none if it panics.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let shout = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                shout(info);
            }
        }));
    });
    QUIET.set(true);
    // What a panic leaves half done are the local readers and the index of `open`, dropped with it.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    outcome.ok()
}

/// The file for parquet: positioned reads, so that threads don't share an offset, within its length.
#[derive(Debug)]
struct BlobFile {
    file: Arc<File>,
    len: u64,
    /// Whether pages are read, and no longer the footer.
    pages: bool,
    /// How many bytes were asked for.
    #[cfg(test)]
    asked: std::sync::atomic::AtomicU64,
}

/// Reads on from one position: in the footer, or at the header of a page.
struct Tail {
    file: Arc<File>,
    position: u64,
    checked: bool,
}

impl Read for Tail {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        if !self.checked && page_size(&buffer[..read]).is_none_or(|size| size > MAX_PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a page is too large or has no header"));
        }
        self.checked = true;
        self.position += read as u64;
        Ok(read)
    }
}

impl BlobFile {
    fn version(&self) -> Result<FileVersion, Error> {
        let stat = self.file.metadata().map_err(Error::io("stat", "blobs.parquet"))?;
        Ok(FileVersion { size: stat.len(), changed: (stat.ctime(), stat.ctime_nsec()) })
    }
}

impl Length for BlobFile {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for BlobFile {
    type T = BufReader<Tail>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let tail = Tail { file: Arc::clone(&self.file), position: start, checked: !self.pages };
        // A header of ours has some thirty bytes.
        Ok(BufReader::with_capacity(256, tail))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF("what it refers to lies outside the file".to_owned()));
        }
        #[cfg(test)]
        self.asked.fetch_add(length as u64, std::sync::atomic::Ordering::Relaxed);
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}

/// The uncompressed size in the header of a page, which parquet allocates without a check.
///
/// Thrift's compact protocol: fields 1 (the type) and 2 (the size), both i32, start every header.
fn page_size(header: &[u8]) -> Option<u64> {
    const NEXT_FIELD_I32: u8 = 0x15;
    fn number(bytes: &mut &[u8]) -> Option<u64> {
        *bytes = bytes.strip_prefix(&[NEXT_FIELD_I32])?;
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                // Zigzag: the odd ones are negative.
                return (value & 1 == 0).then_some(value >> 1);
            }
        }
        None
    }
    let mut rest = header;
    number(&mut rest)?;
    number(&mut rest)
}
