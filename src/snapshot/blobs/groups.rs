//! Writes row groups: a thread compresses and writes one while the next is filled.
//!
//! Knows rows and their bytes, nothing of digests. Neighbour: `blobs.rs` fills the groups.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use parquet::basic::{Compression as Codec, ConvertedType, Encoding, LogicalType, Repetition, Type};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type as Schema};

/// The most bytes that one row holds.
pub const CHUNK: usize = 16 << 20;
/// The most rows that one row group holds.
pub const GROUP_ROWS: usize = 64;

/// The columns, in order.
pub const COLUMNS: [&str; 3] = ["key", "offset", "content"];

/// How the column chunks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names of the codecs")]
pub enum Compression {
    #[default]
    Snappy,
    Zstd,
    None,
}

/// A row without its bytes.
pub(super) struct PendingRow {
    pub key: Arc<str>,
    pub offset: u64,
    pub len: usize,
}

/// The rows of a group, and their bytes one after the other.
pub(super) struct RowGroup {
    pub rows: Vec<PendingRow>,
    /// [`CHUNK`] bytes, and one to detect that a file has grown.
    pub buffer: Vec<u8>,
}

impl RowGroup {
    pub fn new() -> RowGroup {
        RowGroup { rows: Vec::with_capacity(GROUP_ROWS), buffer: vec![0; CHUNK + 1] }
    }
}

type WriteOutcome = (RowGroup, Result<(), ParquetError>);

/// Writes groups one after the other.
pub(super) struct RowGroupWriter(GroupWriter);

type Parquet = Box<CountedWriter>;

/// The parquet file, and how many bytes of its contents are written.
struct CountedWriter {
    file: SerializedFileWriter<File>,
    written: Arc<AtomicU64>,
}

enum GroupWriter {
    /// On the calling thread: there was one group so far, or no thread can be started.
    Inline(Parquet),
    Threaded(WriterThread),
}

struct WriterThread {
    groups: SyncSender<RowGroup>,
    written: Receiver<WriteOutcome>,
    thread: JoinHandle<Option<Parquet>>,
}

impl RowGroupWriter {
    /// Writes to `file`, and counts in `written` the bytes of contents that are in it.
    pub fn new(file: File, compression: Compression, written: Arc<AtomicU64>) -> io::Result<RowGroupWriter> {
        let file = start(file, compression)?;
        Ok(RowGroupWriter(GroupWriter::Inline(Box::new(CountedWriter { file, written }))))
    }

    /// Passes a group to be written, and returns an empty one.
    ///
    /// # Errors
    /// The group before could not be written.
    pub fn write(&mut self, group: RowGroup) -> io::Result<RowGroup> {
        if let GroupWriter::Inline(_) = self.0
            && let Ok((writers, there)) = spawn()
            && let GroupWriter::Inline(parquet) = std::mem::replace(&mut self.0, GroupWriter::Threaded(there))
        {
            writers.send(parquet).map_err(|_| gone())?;
            self.hand_over(group)?;
            return Ok(RowGroup::new());
        }
        match &mut self.0 {
            GroupWriter::Inline(parquet) => {
                let (empty, result) = write(parquet, group);
                result.map_err(io_error)?;
                Ok(empty)
            }
            GroupWriter::Threaded(there) => {
                let (empty, result) = there.written.recv().map_err(|_| gone())?;
                result.map_err(io_error)?;
                self.hand_over(group)?;
                Ok(empty)
            }
        }
    }

    fn hand_over(&self, group: RowGroup) -> io::Result<()> {
        match &self.0 {
            GroupWriter::Threaded(there) => there.groups.send(group).map_err(|_| gone()),
            GroupWriter::Inline(_) => Err(gone()),
        }
    }

    /// Writes the last group and ends the file; nothing where it would have no row.
    pub fn finish(self, last: RowGroup) -> io::Result<Option<File>> {
        let (mut parquet, begun) = match self.0 {
            GroupWriter::Inline(parquet) => {
                let begun = !parquet.file.flushed_row_groups().is_empty();
                (parquet, begun)
            }
            GroupWriter::Threaded(WriterThread { groups, written, thread }) => {
                let (_, result) = written.recv().map_err(|_| gone())?;
                result.map_err(io_error)?;
                drop(groups);
                (thread.join().ok().flatten().ok_or_else(gone)?, true)
            }
        };
        if last.rows.is_empty() && !begun {
            return Ok(None);
        }
        if !last.rows.is_empty() {
            write(&mut parquet, last).1.map_err(io_error)?;
        }
        Ok(Some(parquet.file.into_inner().map_err(io_error)?))
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that writes contents failed")
}

/// Starts a thread that receives the writer as its first message: the writer is not lost if no thread can be
/// started.
fn spawn() -> io::Result<(SyncSender<Parquet>, WriterThread)> {
    let (writers, writer) = sync_channel::<Parquet>(1);
    let (groups, queue) = sync_channel::<RowGroup>(1);
    let (done, written) = sync_channel(1);
    let thread = std::thread::Builder::new().name("groups".into()).spawn(move || {
        let mut parquet = writer.recv().ok()?;
        for group in queue {
            if done.send(write(&mut parquet, group)).is_err() {
                break;
            }
        }
        Some(parquet)
    })?;
    Ok((writers, WriterThread { groups, written, thread }))
}

fn start(file: File, compression: Compression) -> Result<SerializedFileWriter<File>, ParquetError> {
    let column = |name, kind, logical, converted| {
        Schema::primitive_type_builder(name, kind)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(logical)
            .with_converted_type(converted)
            .build()
            .map(Arc::new)
    };
    let schema = Schema::group_type_builder("blobs")
        .with_fields(vec![
            column(COLUMNS[0], Type::BYTE_ARRAY, Some(LogicalType::String), ConvertedType::UTF8)?,
            column(COLUMNS[1], Type::INT64, None, ConvertedType::NONE)?,
            column(COLUMNS[2], Type::BYTE_ARRAY, None, ConvertedType::NONE)?,
        ])
        .build()?;
    let codec = match compression {
        Compression::Snappy => Codec::SNAPPY,
        Compression::Zstd => Codec::ZSTD(Default::default()),
        Compression::None => Codec::UNCOMPRESSED,
    };
    let properties = WriterProperties::builder()
        .set_created_by(concat!("agent-snapshot ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_writer_version(WriterVersion::PARQUET_2_0)
        // The default of version 2, DELTA, copies all content once more.
        .set_encoding(Encoding::PLAIN)
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled(ColumnPath::from(COLUMNS[0]), EnabledStatistics::Chunk)
        .set_max_row_group_row_count(None)
        // The size of a page is checked after each batch: pages of 1 MiB, not of 16.
        .set_write_batch_size(1)
        .build();
    SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
}

/// Writes a row group and returns it empty, with the same buffer.
fn write(parquet: &mut CountedWriter, mut group: RowGroup) -> WriteOutcome {
    let keys: Vec<ByteArray> = group.rows.iter().map(|row| ByteArray::from(&*row.key)).collect();
    let lent = Bytes::from(group.buffer);
    let mut start = 0;
    let contents: Vec<ByteArray> = group
        .rows
        .iter()
        .map(|row| {
            let content = lent.slice(start..start + row.len);
            start += row.len;
            ByteArray::from(content)
        })
        .collect();
    let written = (|| {
        let offsets: Vec<i64> =
            group.rows.iter().map(|row| i64::try_from(row.offset)).collect::<Result<_, _>>()?;
        let mut group = parquet.file.next_row_group()?;
        let missing = || ParquetError::General("the schema has three columns".to_owned());
        let mut column = group.next_column()?.ok_or_else(missing)?;
        column.typed::<ByteArrayType>().write_batch(&keys, None, None)?;
        column.close()?;
        let mut column = group.next_column()?.ok_or_else(missing)?;
        column.typed::<Int64Type>().write_batch(&offsets, None, None)?;
        column.close()?;
        let mut column = group.next_column()?.ok_or_else(missing)?;
        column.typed::<ByteArrayType>().write_batch(&contents, None, None)?;
        column.close()?;
        group.close()?;
        Ok(())
    })();
    drop(contents);
    if written.is_ok() {
        parquet.written.fetch_add(start as u64, Ordering::SeqCst);
    }
    group.rows.clear();
    // The slices are dropped, so this is the same memory and not a copy.
    (RowGroup { rows: group.rows, buffer: Vec::from(lent) }, written)
}

/// The operating system's error if there is one behind parquet's.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
