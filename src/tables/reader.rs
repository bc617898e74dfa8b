//! Reads files of the tables, which others may have written or damaged.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::schema::types::TypePtr;

use super::cells::Cells;
use super::columns::RECORDING;
use crate::snapshot::blobs::io_error;
use crate::snapshot::reader::catch_panic;
use crate::snapshot::{Error, printable};

/// How many rows are read at once.
const ROWS: usize = 4096;

/// A file of a table.
pub struct TableReader {
    path: PathBuf,
    reader: SerializedFileReader<File>,
}

impl TableReader {
    /// Opens a file.
    ///
    /// # Errors
    /// It is not there, or no Parquet file.
    pub fn open(path: &Path) -> Result<TableReader, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let reader = decode(path, || SerializedFileReader::new(file))?;
        Ok(TableReader { path: path.to_owned(), reader })
    }

    /// Its schema.
    pub fn schema(&self) -> TypePtr {
        self.reader.metadata().file_metadata().schema_descr().root_schema_ptr()
    }

    /// Passes all columns of one row group after the other to `each`, which says how many rows it has read, as long as
    /// there are more.
    pub fn each(&self, mut each: impl FnMut(&mut Rows<'_>) -> Result<usize, Error>) -> Result<(), Error> {
        for group in 0..self.reader.num_row_groups() {
            let columns = decode(&self.path, || {
                let group = self.reader.get_row_group(group)?;
                (0..group.num_columns()).map(|column| group.get_column_reader(column)).collect()
            })?;
            let mut left = self.reader.metadata().row_group(group).num_rows();
            let mut rows = Rows { path: &self.path, columns };
            while left > 0 {
                let read = i64::try_from(each(&mut rows)?).unwrap_or(i64::MAX);
                if read == 0 {
                    return Err(damaged(&self.path, &"it has fewer rows than it says"));
                }
                left -= read;
            }
        }
        Ok(())
    }

    /// The identifiers of the recordings that have rows in it, as often as they have.
    pub fn recordings(&self) -> Result<Vec<String>, Error> {
        self.first_recordings(usize::MAX)
    }

    /// The identifier of the recording that the first row belongs to.
    pub fn first_recording(&self) -> Result<Option<String>, Error> {
        Ok(self.first_recordings(1)?.pop())
    }

    /// The identifiers of the recordings that the first `most` rows belong to.
    fn first_recordings(&self, most: usize) -> Result<Vec<String>, Error> {
        decode(&self.path, || {
            let columns = self.reader.metadata().file_metadata().schema_descr().columns();
            let missing = || ParquetError::General(format!("it has no column {RECORDING}"));
            let index = columns.iter().position(|column| column.path().parts() == [RECORDING]);
            let index = index.ok_or_else(missing)?;
            let mut cells = Cells::new(&columns[index])?;
            let mut left = most;
            for group in 0..self.reader.num_row_groups() {
                let mut column = self.reader.get_row_group(group)?.get_column_reader(index)?;
                loop {
                    match cells.read(&mut column, ROWS.min(left))? {
                        0 => break,
                        read => left -= read,
                    }
                }
            }
            Ok(cells.texts().map(|id| String::from_utf8_lossy(id).into_owned()).collect())
        })
    }
}

/// The columns of a row group, as far as they were not read.
pub struct Rows<'f> {
    path: &'f Path,
    columns: Vec<ColumnReader>,
}

impl Rows<'_> {
    /// Adds the next rows to columns with the same schema, and returns how many.
    pub fn read(&mut self, into: &mut [Cells]) -> Result<usize, Error> {
        decode(self.path, || {
            let mut read = None;
            for (cells, column) in into.iter_mut().zip(&mut self.columns) {
                let rows = cells.read(column, ROWS)?;
                if *read.get_or_insert(rows) != rows {
                    return Err(ParquetError::General(
                        "its columns differ in their number of rows".to_owned(),
                    ));
                }
            }
            Ok(read.unwrap_or_default())
        })
    }
}

/// Runs parquet code, whose errors mean that the file is damaged.
fn decode<T>(path: &Path, work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Error> {
    match catch_panic(work) {
        None => Err(damaged(path, &"it can't be decoded")),
        Some(Err(error @ ParquetError::External(_))) => match io_error(error) {
            error if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged(path, &error)),
            error => Err(Error::io("read", path)(error)),
        },
        Some(Err(error)) => Err(damaged(path, &error)),
        Some(Ok(done)) => Ok(done),
    }
}

fn damaged(path: &Path, why: &dyn Display) -> Error {
    Error::Corrupt(format!("{}: {why}", printable(path.as_os_str().as_encoded_bytes())))
}
