//! Writes row groups: a thread compresses and writes one while the next is filled.
//!
//! Knows rows and their bytes, nothing of digests. Neighbour: `blobs.rs` fills the groups.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use parquet::basic::{Compression as Codec, ConvertedType, Encoding, LogicalType, Repetition, Type};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    FileMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, SchemaDescPtr, Type as Schema};

use super::super::journal::RecordingJournal;
use super::super::layout::SnapshotDir;
use super::super::live;
use crate::fs::InPieces;

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
    /// As many bytes as contents have needed; at most [`CHUNK`], and one to detect that a file has grown.
    buffer: Vec<u8>,
    /// How many contents the journal says are stored in this group and those before.
    pub stored: u64,
}

/// How long a buffer is at first.
const LEAST_BUFFER: usize = 16 << 10;

impl RowGroup {
    pub fn new() -> RowGroup {
        RowGroup { rows: Vec::with_capacity(GROUP_ROWS), buffer: Vec::new(), stored: 0 }
    }

    /// Room for a content of `length` bytes behind `filled` ones.
    pub fn room(&mut self, filled: usize, length: usize) -> &mut [u8] {
        let end = filled + length;
        if self.buffer.len() < end {
            // Most recordings store little.
            let length = end.next_power_of_two().clamp(LEAST_BUFFER, CHUNK + 1);
            // Pages of zeros that were never touched cost nothing.
            let mut grown = vec![0; length];
            grown[..filled].copy_from_slice(&self.buffer[..filled]);
            self.buffer = grown;
        }
        &mut self.buffer[filled..end]
    }
}

type WriteOutcome = (RowGroup, Result<(), ParquetError>);

/// Where it is noted that a row group is on file: a journal, and what happens to the copies of contents that
/// it completes.
#[derive(Clone)]
pub struct GroupLog {
    /// The journal.
    pub journal: Arc<RecordingJournal>,
    /// Where copies have their names.
    pub directory: Arc<SnapshotDir>,
    /// Whether a group reaches the disk before the journal says so.
    pub sync: bool,
}

/// Writes groups one after the other.
pub(super) struct RowGroupWriter(GroupWriter);

type Parquet = Box<LoggedWriter>;

/// The parquet file, the journal of its groups, and how many bytes of its contents are written.
struct LoggedWriter {
    parquet: SerializedFileWriter<InPieces<File>>,
    log: Option<GroupLog>,
    written: Arc<AtomicU64>,
}

enum GroupWriter {
    /// On the calling thread: there was one group so far, or no thread can be started.
    Inline(Parquet),
    Threaded(WriterThread),
    /// The thread has failed.
    Gone,
}

struct WriterThread {
    groups: SyncSender<RowGroup>,
    written: Receiver<WriteOutcome>,
    thread: JoinHandle<Option<Parquet>>,
    /// The group that was written last, if that was waited for.
    returned: Option<RowGroup>,
}

impl WriterThread {
    /// Waits until the group that was passed last is written, and returns it empty.
    fn wait(&mut self) -> io::Result<RowGroup> {
        if let Some(group) = self.returned.take() {
            return Ok(group);
        }
        let (empty, result) = self.written.recv().map_err(|_| gone())?;
        result.map_err(io_error)?;
        Ok(empty)
    }
}

impl RowGroupWriter {
    /// Writes to `file`, and counts in `written` the bytes of contents that are in it.
    pub fn new(
        file: File,
        compression: Compression,
        log: Option<GroupLog>,
        written: Arc<AtomicU64>,
    ) -> io::Result<RowGroupWriter> {
        let parquet = start(file, compression)?;
        Ok(RowGroupWriter(GroupWriter::Inline(Box::new(LoggedWriter { parquet, log, written }))))
    }

    /// Waits until all groups that were passed are written.
    pub fn flush(&mut self) -> io::Result<()> {
        if let GroupWriter::Threaded(there) = &mut self.0 {
            there.returned = Some(there.wait()?);
        }
        Ok(())
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
                let empty = there.wait()?;
                self.hand_over(group)?;
                Ok(empty)
            }
            GroupWriter::Gone => Err(gone()),
        }
    }

    fn hand_over(&self, group: RowGroup) -> io::Result<()> {
        match &self.0 {
            GroupWriter::Threaded(there) => there.groups.send(group).map_err(|_| gone()),
            GroupWriter::Inline(_) | GroupWriter::Gone => Err(gone()),
        }
    }

    /// Takes the file back from the thread, once all groups that were passed are written.
    fn take_back(&mut self) -> io::Result<Parquet> {
        match std::mem::replace(&mut self.0, GroupWriter::Gone) {
            GroupWriter::Inline(parquet) => Ok(parquet),
            GroupWriter::Threaded(mut there) => {
                there.wait()?;
                let WriterThread { groups, thread, .. } = there;
                drop(groups);
                thread.join().ok().flatten().ok_or_else(gone)
            }
            GroupWriter::Gone => Err(gone()),
        }
    }

    /// Copies the groups that were passed so far to `copy`, an empty file, and ends that one. Returns whether
    /// there are any.
    pub fn copy_to(&mut self, copy: &File) -> io::Result<bool> {
        let mut writer = self.take_back()?;
        let copied = copy_groups(&mut writer.parquet, copy);
        self.0 = GroupWriter::Inline(writer);
        copied
    }

    /// Writes the last group and ends the file; nothing where it would have no row.
    pub fn finish(mut self, last: RowGroup) -> io::Result<Option<File>> {
        let mut parquet = self.take_back()?;
        if last.rows.is_empty() && parquet.parquet.flushed_row_groups().is_empty() {
            return Ok(None);
        }
        if !last.rows.is_empty() {
            write(&mut parquet, last).1.map_err(io_error)?;
        }
        Ok(Some(parquet.parquet.into_inner().map_err(io_error)?.0))
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
    Ok((writers, WriterThread { groups, written, thread, returned: None }))
}

fn start(file: File, compression: Compression) -> Result<SerializedFileWriter<InPieces<File>>, ParquetError> {
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
    SerializedFileWriter::new(InPieces(file), Arc::new(schema), Arc::new(properties))
}

/// Writes a row group and returns it empty, with the same buffer.
fn write(writer: &mut LoggedWriter, mut group: RowGroup) -> WriteOutcome {
    let LoggedWriter { parquet, log, written: count } = writer;
    let keys: Vec<ByteArray> = group.rows.iter().map(|row| ByteArray::from(&*row.key)).collect();
    let lent = Bytes::from(group.buffer);
    let stored = group.stored;
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
        let mut group = parquet.next_row_group()?;
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
        let written = group.close()?;
        match log {
            Some(log) => log_group(log, parquet, &written, stored),
            None => Ok(()),
        }
    })();
    drop(contents);
    if written.is_ok() {
        count.fetch_add(start as u64, Ordering::SeqCst);
    }
    group.rows.clear();
    // The slices are dropped, so this is the same memory and not a copy.
    (RowGroup { rows: group.rows, buffer: Vec::from(lent), stored: 0 }, written)
}

/// Puts a group on file, and says so in the journal.
fn log_group(
    log: &GroupLog,
    parquet: &mut SerializedFileWriter<InPieces<File>>,
    group: &RowGroupMetaData,
    stored: u64,
) -> Result<(), ParquetError> {
    parquet.flush()?;
    if log.sync {
        parquet.inner().0.sync_data()?;
    }
    let footer = footer(Arc::new(parquet.schema_descr().clone()), vec![group.clone()])?;
    log.directory.remove_temporaries(&log.journal.group_written(stored, &footer));
    Ok(())
}

/// Writes the end of a parquet file whose writer was killed, behind its last whole row group: `footers` has
/// the footer of each group, as the journal keeps it.
pub fn complete(file: &File, footers: &[Vec<u8>]) -> io::Result<()> {
    let mut groups: Vec<RowGroupMetaData> = Vec::new();
    let mut schema = None;
    for footer in footers {
        let mut reader = ParquetMetaDataReader::new();
        reader.try_parse(&Bytes::from(footer.clone())).map_err(io_error)?;
        let metadata = reader.finish().map_err(io_error)?;
        groups.extend_from_slice(metadata.row_groups());
        schema = Some(metadata.file_metadata().schema_descr_ptr());
    }
    match schema {
        Some(schema) => end_file(file, schema, groups),
        None => Ok(()),
    }
}

/// Copies all row groups of a file that is still being written.
fn copy_groups(parquet: &mut SerializedFileWriter<InPieces<File>>, copy: &File) -> io::Result<bool> {
    parquet.flush()?;
    let groups = parquet.flushed_row_groups().to_vec();
    if groups.is_empty() {
        return Ok(false);
    }
    let written = parquet.inner().0.metadata()?.len();
    live::copy_keeping_holes(&parquet.inner().0, copy, written)?;
    end_file(copy, Arc::new(parquet.schema_descr().clone()), groups)?;
    Ok(true)
}

/// Writes the end of a parquet file behind its last row group.
fn end_file(file: &File, schema: SchemaDescPtr, groups: Vec<RowGroupMetaData>) -> io::Result<()> {
    let ends = groups.iter().flat_map(|group| group.columns()).map(|column| {
        let (start, length) = column.byte_range();
        start + length
    });
    let end = ends.max().unwrap_or(0);
    let footer = footer(schema, groups).map_err(io_error)?;
    file.set_len(end)?;
    file.write_all_at(&footer, end)
}

/// The end of a parquet file that has these row groups.
fn footer(schema: SchemaDescPtr, groups: Vec<RowGroupMetaData>) -> Result<Vec<u8>, ParquetError> {
    let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
    let metadata = ParquetMetaData::new(FileMetaData::new(2, rows, None, None, schema, None), groups);
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
    Ok(footer)
}

/// The operating system's error if there is one behind parquet's.
pub(crate) fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
