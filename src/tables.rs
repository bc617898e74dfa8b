//! Tables of many recordings, in Parquet: `recordings`, `files`, `processes` and `network`.
//!
//! A recording is one file in each table, `table=TABLE/date=DATE/ID.parquet`, which is not written again. A file gets
//! its name when it is complete, and that of `recordings` comes last. Bytes of files are not in the tables, nor is
//! what is taken for a secret. Prints nothing, and knows no tracing.
//!
//! - `columns.rs`: the columns of each table, and their values.
//! - `writer.rs`: from columns to Parquet.

mod columns;
mod writer;

use std::fs;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use tempfile::{NamedTempFile, TempPath};

use self::columns::{Subject, parse_time};
use crate::snapshot::secrets::Secrets;
use crate::snapshot::{Error, FileRecord, Header, SnapshotKind, printable};

/// The names of the tables. A recording is there once its file is in the first one.
pub const TABLES: [&str; 4] = ["recordings", "files", "processes", "network"];

/// The most characters of an identifier.
const MAX_ID: usize = 64;

/// The directory of the tables.
#[derive(Debug)]
pub struct Tables {
    directory: PathBuf,
}

/// What was written of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Added {
    /// How many rows each of [`TABLES`] got.
    pub rows: [u64; 4],
    /// How many bytes the files have.
    pub bytes: u64,
}

impl Tables {
    /// The tables in a directory, which is made when the first recording is added.
    pub fn new(directory: &Path) -> Tables {
        Tables { directory: directory.to_owned() }
    }

    /// Whether a recording is there whose identifier begins so and that was started at this time.
    ///
    /// A recording with a time that is no time is not there.
    pub fn has(&self, start_of_id: &str, started_at: &str) -> bool {
        let Ok(date) = date(started_at) else { return false };
        let Ok(entries) = fs::read_dir(self.partition(TABLES[0], &date)) else { return false };
        let is_it = |name: &str| name.starts_with(start_of_id) && name.ends_with(".parquet");
        entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_it))
    }

    /// Adds a recording with all of its records; none if it is there.
    ///
    /// # Errors
    /// It is no recording, its identifier or time can't be part of the name of a file, or a file can't be written: then
    /// the tables are as before.
    pub fn add(
        &self,
        header: &Header,
        records: Vec<&FileRecord>,
        secrets: &Secrets,
    ) -> Result<Option<Added>, Error> {
        check(header)?;
        let date = date(&header.started_at)?;
        let path_in = |table: &str| self.partition(table, &date).join(format!("{}.parquet", header.id));
        if path_in(TABLES[0]).is_file() {
            return Ok(None);
        }
        let subject = Subject::new(header, records, secrets)?;
        let mut added = Added::default();
        let mut files: Vec<(TempPath, PathBuf)> = Vec::new();
        for (table, rows) in TABLES.iter().zip(&mut added.rows) {
            let (partition, path) = (self.partition(table, &date), path_in(table));
            let mut write = || {
                fs::create_dir_all(&partition)?;
                // Readers pass over a name that begins with a dot.
                let mut file = NamedTempFile::with_prefix_in(".", &partition)?;
                *rows = subject.write(table, file.as_file_mut())?;
                added.bytes += file.as_file().metadata()?.len();
                Ok(file.into_temp_path())
            };
            let file = write().map_err(Error::io("write", &path))?;
            files.push((file, path));
        }
        while let Some((file, path)) = files.pop() {
            file.persist(&path).map_err(|error| Error::io("write", &path)(error.error))?;
        }
        Ok(Some(added))
    }

    fn partition(&self, table: &str, date: &str) -> PathBuf {
        self.directory.join(format!("table={table}")).join(format!("date={date}"))
    }
}

/// Checks that a snapshot is a recording whose identifier can be the name of a file.
///
/// # Errors
/// It is not.
pub fn check(header: &Header) -> Result<(), Error> {
    let id = || printable(header.id.as_bytes());
    if header.kind != SnapshotKind::Recording {
        return Err(Error::Format(format!("{} is a rescue, and the tables have recordings only", id())));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if header.id.is_empty() || header.id.len() > MAX_ID || !header.id.bytes().all(is_plain) {
        return Err(Error::Format(format!("{} can't be the name of a file", id())));
    }
    Ok(())
}

/// The day of a time, in UTC.
fn date(time: &str) -> Result<String, Error> {
    Ok(parse_time(time)?.to_zoned(TimeZone::UTC).date().to_string())
}

#[cfg(test)]
mod tests;
