//! Tables of many recordings, in Parquet: `recordings`, `files`, `processes` and `network`.
//!
//! A recording is one file in each table, `table=TABLE/date=DATE/ID.parquet`, which is not written again. A file gets
//! its name when it is complete and on the disk, and that of `recordings` comes last. Bytes of files are not in the
//! tables, and secrets were taken out of the recording before (`snapshot::secrets`). Prints nothing, and knows no tracing.
//!
//! - `columns.rs`: the columns of each table, and their values.
//! - `writer.rs`: from rows to Parquet.

mod columns;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tempfile::TempPath;

use self::columns::{Subject, parse_time};
use crate::snapshot::{Error, FileRecord, Header, printable};

/// The names of the tables. A recording is there once its file is in the first one.
pub const TABLES: [&str; 4] = ["recordings", "files", "processes", "network"];

/// The most characters of an identifier.
const MAX_ID: usize = 64;

/// How many recordings are flushed to the disk at once.
const BATCH: usize = 256;

/// The directory of the tables.
#[derive(Debug)]
pub struct Tables {
    directory: PathBuf,
    /// The directory, locked as long as something is added: temporary files are named by the recording.
    locked: Option<File>,
    /// The complete files of each recording, by its last name, and the names that they are to get in this order.
    pending: BTreeMap<PathBuf, Vec<(TempPath, PathBuf)>>,
    /// The names that the table of recordings had on the day that was asked for last.
    listed: (String, BTreeSet<String>),
}

/// What was written of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Added {
    /// How many rows each of [`TABLES`] got.
    pub rows: [usize; 4],
    /// How many bytes the files have.
    pub bytes: u64,
}

impl Tables {
    /// The tables in a directory, which is made when the first recording is added.
    pub fn new(directory: &Path) -> Tables {
        let directory = directory.to_owned();
        Tables { directory, locked: None, pending: BTreeMap::new(), listed: Default::default() }
    }

    /// Whether a recording is there whose identifier begins so and that was started at this time.
    ///
    /// Each day is listed once. A recording with a time that is no time is not there.
    pub fn has(&mut self, start_of_id: &str, started_at: &str) -> bool {
        let Ok(date) = date(started_at) else { return false };
        if self.listed.0 != date {
            let entries = fs::read_dir(self.partition(TABLES[0], &date)).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            self.listed = (date, names.filter(|name| name.ends_with(".parquet")).collect());
        }
        let next = self.listed.1.range(start_of_id.to_owned()..).next();
        next.is_some_and(|name| name.starts_with(start_of_id))
    }

    /// Adds a recording with all of its records; none if it is there. [`Tables::publish`] makes it visible.
    ///
    /// # Errors
    /// It is no recording, its identifier or time can't be part of the name of a file, or a file can't be written: then
    /// nothing of it is there.
    pub fn add(&mut self, header: &Header, records: Vec<&FileRecord>) -> Result<Option<Added>, Error> {
        check(header)?;
        let date = date(&header.started_at)?;
        let subject = Subject::new(header, records)?;
        self.lock().map_err(Error::io("write", &self.directory))?;
        let path_in = |table: &str| self.partition(table, &date).join(format!("{}.parquet", header.id));
        let last = path_in(TABLES[0]);
        if last.is_file() || self.pending.contains_key(&last) {
            return Ok(None);
        }
        let mut added = Added::default();
        let mut files: Vec<(TempPath, PathBuf)> = Vec::new();
        for (table, rows) in TABLES.iter().zip(&mut added.rows).rev() {
            let (partition, path) = (self.partition(table, &date), path_in(table));
            let mut write = || {
                fs::create_dir_all(&partition)?;
                // Readers pass over a name that begins with a dot. What a killed export has left is replaced.
                let name = partition.join(format!(".{}.parquet.tmp", header.id));
                let mut options = File::options();
                let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&name)?;
                let name = TempPath::try_from_path(name)?;
                let (content, count) = subject.file(table).map_err(io::Error::other)?;
                file.write_all(&content)?;
                (*rows, added.bytes) = (count, added.bytes + content.len() as u64);
                Ok(name)
            };
            let file = write().map_err(Error::io("write", &path))?;
            files.push((file, path));
        }
        self.pending.insert(last, files);
        if self.pending.len() >= BATCH {
            self.publish()?;
        }
        Ok(Some(added))
    }

    /// Gives what was added its names, once it is on the disk: a file that a loss of power has cut would stay, and fail
    /// each statement.
    ///
    /// # Errors
    /// It can't be flushed or renamed.
    pub fn publish(&mut self) -> Result<(), Error> {
        if let Some(directory) = self.locked.as_ref().filter(|_| !self.pending.is_empty()) {
            let failed = Error::io("sync", &self.directory);
            rustix::fs::syncfs(directory).map_err(|error| failed(error.into()))?;
        }
        for (file, path) in std::mem::take(&mut self.pending).into_values().flatten() {
            file.persist(&path).map_err(|error| Error::io("write", &path)(error.error))?;
        }
        Ok(())
    }

    /// Makes the directory, and waits until no other export writes to it.
    fn lock(&mut self) -> io::Result<()> {
        if self.locked.is_none() {
            fs::create_dir_all(&self.directory)?;
            let directory = File::open(&self.directory)?;
            match flock(&directory, FlockOperation::LockExclusive) {
                // Without locks, two exports of one recording at a time are not to be.
                Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
            self.locked = Some(directory);
        }
        Ok(())
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
    if !header.kind.is_recording() {
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
