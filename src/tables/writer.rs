//! A Parquet file of a table in progress: rows are kept until they fill a row group, sorted, and written.
//!
//! Encodings are those that every reader of Parquet has had for years, and pages are of version 1.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{DEFAULT_DATA_PAGE_ROW_COUNT_LIMIT, EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{SchemaDescriptor, TypePtr};
use sha2::Digest as _;

use super::cells::Cells;
use super::schema::Column;
use crate::fs::InPieces;
use crate::snapshot::Error;
use crate::snapshot::blobs::io_error;
use crate::snapshot::digest::Hashing;

/// The name of a file that is being written: readers pass over it.
const UNFINISHED: &str = "_unfinished";

/// The most rows of a row group: what readers take at once, and prune by its statistics.
const GROUP_ROWS: usize = 100_000;

/// How many bytes of rows in memory make a row group, if there are not as many rows.
const GROUP_BYTES: usize = 32 << 20;

/// A file of a table, in the directory where it is to be.
pub struct TableFile {
    path: PathBuf,
    output: Output,
    schema: TypePtr,
    /// The column by which each row group is sorted, if there is one of that name.
    key: Option<usize>,
    cells: Vec<Cells>,
    /// How many rows the cells have, and how many bytes they take.
    buffered: (usize, usize),
}

enum Output {
    /// Nothing was written yet.
    Empty(File),
    Begun(Box<SerializedFileWriter<Hashing<InPieces<File>>>>),
    /// Writing has failed.
    Failed,
}

impl TableFile {
    /// Makes a file of columns with this schema in a directory, each row group of which is sorted by the column `key`.
    pub fn create(directory: &Path, schema: TypePtr, key: &str) -> Result<TableFile, Error> {
        let path = directory.join(UNFINISHED);
        let create = || {
            fs::create_dir_all(directory)?;
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)
        };
        let output = Output::Empty(create().map_err(Error::io("write", &path))?);
        let descriptor = SchemaDescriptor::new(Arc::clone(&schema));
        let key = descriptor.columns().iter().position(|column| column.path().parts() == [key]);
        let cells = columns(&schema).map_err(failed(&path))?;
        Ok(TableFile { path, output, schema, key, cells, buffered: (0, 0) })
    }

    /// Adds a row.
    pub fn push<R>(&mut self, columns: &[Column<R>], row: &R) -> Result<(), Error> {
        for (column, cells) in columns.iter().zip(&mut self.cells) {
            cells.push(column.shape, (column.value)(row));
        }
        self.count(1)
    }

    /// Has `read` add rows to the columns and say how many, and returns that.
    pub fn fill(&mut self, read: impl FnOnce(&mut [Cells]) -> Result<usize, Error>) -> Result<usize, Error> {
        let rows = read(&mut self.cells)?;
        self.count(rows)?;
        Ok(rows)
    }

    fn count(&mut self, rows: usize) -> Result<(), Error> {
        self.buffered = (self.buffered.0 + rows, self.cells.iter().map(Cells::size).sum());
        if self.buffered.0 >= GROUP_ROWS || self.buffered.1 >= GROUP_BYTES {
            self.write_group(false).map_err(failed(&self.path))?;
        }
        Ok(())
    }

    /// The most bytes that the file has if nothing is added any more, but for its footer.
    pub fn size(&self) -> usize {
        let written = match &self.output {
            Output::Begun(writer) => writer.bytes_written(),
            Output::Empty(_) | Output::Failed => 0,
        };
        written + self.buffered.1
    }

    /// Writes the rest, gives the file a name that no other content has, and returns its path and how many bytes it has.
    pub fn finish(mut self) -> Result<(PathBuf, u64), Error> {
        self.write_group(true).map_err(failed(&self.path))?;
        let hashing = match self.output {
            Output::Begun(writer) => writer.into_inner(),
            Output::Empty(_) | Output::Failed => Err(again()),
        };
        let hashing = hashing.map_err(failed(&self.path))?;
        let name = faster_hex::hex_string(&hashing.hasher.finalize()[..16]);
        let path = self.path.with_file_name(format!("{name}.parquet"));
        let rename = || fs::rename(&self.path, &path).and_then(|()| hashing.inner.0.metadata());
        let bytes = rename().map_err(Error::io("write", &path))?.len();
        Ok((path, bytes))
    }

    /// Writes the rows that are there, sorted, as a row group; as the last one also none.
    fn write_group(&mut self, is_last: bool) -> Result<(), ParquetError> {
        let (rows, _) = std::mem::take(&mut self.buffered);
        let mut writer = match std::mem::replace(&mut self.output, Output::Failed) {
            Output::Begun(writer) => writer,
            Output::Empty(file) => {
                // A single page has the statistics of its column chunk: its own would make a small file a fifth larger.
                let has_pages = !is_last || rows > DEFAULT_DATA_PAGE_ROW_COUNT_LIMIT;
                let properties = Arc::new(self.properties(has_pages)?);
                let file = Hashing::new(InPieces(file));
                Box::new(SerializedFileWriter::new(file, Arc::clone(&self.schema), properties)?)
            }
            Output::Failed => return Err(again()),
        };
        if rows > 0 {
            let columns = std::mem::replace(&mut self.cells, columns(&self.schema)?);
            let order = self.key.and_then(|key| columns.get(key)?.order());
            let mut group = writer.next_row_group()?;
            for cells in columns {
                let mut into = group.next_column()?.ok_or_else(again)?;
                let cells = if let Some(order) = &order { cells.ordered(order) } else { cells };
                cells.write(&mut into)?;
                into.close()?;
            }
            group.close()?;
        }
        self.output = Output::Begun(writer);
        Ok(())
    }

    fn properties(&self, has_pages: bool) -> Result<WriterProperties, ParquetError> {
        let key = self.key.map(i32::try_from).transpose()?;
        let sorting =
            key.map(|column_idx| vec![SortingColumn { column_idx, descending: false, nulls_first: false }]);
        let statistics = if has_pages { EnabledStatistics::Page } else { EnabledStatistics::Chunk };
        Ok(WriterProperties::builder()
            .set_created_by(concat!("agent-snapshot ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(statistics)
            .set_offset_index_disabled(!has_pages)
            .set_sorting_columns(sorting)
            .build())
    }
}

/// The columns of a schema, without rows.
pub fn columns(schema: &TypePtr) -> Result<Vec<Cells>, ParquetError> {
    SchemaDescriptor::new(Arc::clone(schema)).columns().iter().map(|column| Cells::new(column)).collect()
}

fn again() -> ParquetError {
    ParquetError::General("an earlier write has failed".to_owned())
}

/// The error of writing to a file.
fn failed(path: &Path) -> impl Fn(ParquetError) -> Error {
    move |error| Error::io("write", path)(io_error(error))
}
