//! Tables of many recordings, in Parquet: `recordings`, `files`, `processes` and `network`.
//!
//! The recordings of a day that are added at once are one file in each table, `table=TABLE/date=DATE/NAME.parquet`, named by
//! its content and never changed; what is larger than [`FILE_BYTES`] goes on in the next. A recording is there once the
//! table `recordings` has its row.
//!
//! Everything else in the directory begins with `_`, which readers pass over. Files are completed below `_staged` and are on
//! the disk when that is renamed to `_adding`, the commit point; then each is renamed to its place, those of `recordings` last.
//! The next export removes the one and completes the other. Bytes of files are not in the tables, and secrets were
//! taken out of the recording before (`snapshot::secrets`). Prints nothing, and knows no tracing.
//!
//! - `columns.rs`: the columns of each table, and their values; `schema.rs`: their types.
//! - `cells.rs`: columns in memory; `writer.rs`: from there to a file; `reader.rs`: and back.
//! - `index.rs`: which recordings are there.
//! - `compact.rs`: joins files.

mod cells;
mod columns;
mod compact;
mod index;
mod reader;
mod schema;
mod writer;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use self::columns::{Subject, key_of, parse_time, schema_of};
pub use self::compact::Compacted;
use self::index::Index;
use self::writer::TableFile;
use crate::snapshot::{Error, FileRecord, Header, printable};

/// The names of the tables. A recording is there once it is in the first one.
pub const TABLES: [&str; 4] = ["recordings", "files", "processes", "network"];

/// How large a file becomes, if a single recording is not larger.
pub const FILE_BYTES: usize = 128 << 20;

/// The most characters of an identifier.
const MAX_ID: usize = 64;

/// How many files are flushed to the disk at once.
const BATCH: usize = 256;

/// Where files are completed.
const STAGED: &str = "_staged";

/// Where complete files are until they are in their places.
const ADDING: &str = "_adding";

/// The directory of the tables.
pub struct Tables {
    directory: PathBuf,
    /// The directory of the first table, locked.
    locked: Option<File>,
    index: Index,
    /// The day and the files to which recordings are being added.
    open: Option<(String, [TableFile; 4])>,
    /// How many complete files are to be published.
    staged: usize,
    bytes: u64,
    file_bytes: usize,
}

impl Tables {
    /// The tables in a directory, which is made when the first recording is added. Waits until no other export writes to it.
    ///
    /// # Errors
    /// The directory can't be read, or what a killed export has left can't be completed.
    pub fn open(directory: &Path) -> Result<Tables, Error> {
        let mut tables = Tables {
            directory: directory.to_owned(),
            locked: None,
            index: Index::new(directory),
            open: None,
            staged: 0,
            bytes: 0,
            file_bytes: FILE_BYTES,
        };
        if tables.first_table().is_dir() {
            tables.lock()?;
        }
        Ok(tables)
    }

    /// Whether a recording is there whose identifier begins so and that was started at this time.
    ///
    /// A recording with a time that is no time is not there.
    ///
    /// # Errors
    /// The tables of that day can't be read.
    pub fn has(&mut self, start_of_id: &str, started_at: &str) -> Result<bool, Error> {
        let Ok(date) = date(started_at) else { return Ok(false) };
        let next = self.index.day(&date)?.range(start_of_id.to_owned()..).next();
        Ok(next.is_some_and(|id| id.starts_with(start_of_id)))
    }

    /// Adds a recording with all of its records, and returns how many rows each of [`TABLES`] got; none if it is there.
    ///
    /// Those of one day should follow one another: another day begins new files. [`Tables::publish`] makes them visible.
    ///
    /// # Errors
    /// It is no recording, its identifier or time can't be part of the name of a file, or a file can't be written: then
    /// nothing is added of what was not published.
    pub fn add(&mut self, header: &Header, records: Vec<&FileRecord>) -> Result<Option<[usize; 4]>, Error> {
        check(header)?;
        let date = date(&header.started_at)?;
        let subject = Subject::new(header, records)?;
        self.lock()?;
        if self.index.day(&date)?.contains(&header.id) {
            return Ok(None);
        }
        // An export of an earlier version that was killed has left files of this one recording.
        for table in &TABLES[1..] {
            let _ = fs::remove_file(
                partition(&self.directory, table, &date).join(format!("{}.parquet", header.id)),
            );
        }
        let rows = self.write(&subject, &date).inspect_err(|_| self.abandon())?;
        self.index.day(&date)?.insert(header.id.clone());
        Ok(Some(rows))
    }

    /// Adds a recording to the files of its day.
    fn write(&mut self, subject: &Subject<'_>, date: &str) -> Result<[usize; 4], Error> {
        let is_full = |file: &TableFile| file.size() > self.file_bytes;
        if self.open.as_ref().is_some_and(|(day, files)| day != date || files.iter().any(is_full)) {
            self.close()?;
        }
        let mut files = match self.open.take() {
            Some((_, files)) => files,
            None => self.create(date)?,
        };
        let mut rows = [0; 4];
        for ((table, file), rows) in TABLES.iter().zip(&mut files).zip(&mut rows) {
            *rows = subject.write(table, file)?;
        }
        self.open = Some((date.to_owned(), files));
        Ok(rows)
    }

    /// Makes what was added visible, once it is on the disk: a file that a loss of power has cut would stay, and fail each
    /// statement. Returns how many bytes of files were made visible since the tables were opened.
    ///
    /// # Errors
    /// It can't be flushed or renamed.
    pub fn publish(&mut self) -> Result<u64, Error> {
        self.close().inspect_err(|_| self.abandon())?;
        if self.staged > 0 {
            self.sync()?;
            self.staged = 0;
            let adding = self.directory.join(ADDING);
            fs::rename(self.directory.join(STAGED), &adding).map_err(Error::io("write", &adding))?;
            self.complete()?;
        }
        Ok(self.bytes)
    }

    /// Makes the files of a day.
    fn create(&self, date: &str) -> Result<[TableFile; 4], Error> {
        let create = |table: &str| {
            let schema = schema_of(table).map_err(|error| Error::Format(error.to_string()))?;
            TableFile::create(&partition(&self.directory.join(STAGED), table, date), schema, key_of(table))
        };
        let [first, second, third, fourth] = TABLES.map(create);
        Ok([first?, second?, third?, fourth?])
    }

    /// Completes the files to which recordings are being added.
    fn close(&mut self) -> Result<(), Error> {
        let Some((_, files)) = self.open.take() else { return Ok(()) };
        for file in files {
            self.bytes += file.finish()?.1;
            self.staged += 1;
        }
        if self.staged >= BATCH { self.publish().map(drop) } else { Ok(()) }
    }

    /// Flushes what was written to the disk.
    fn sync(&self) -> Result<(), Error> {
        let synced = self.locked.as_ref().map(rustix::fs::syncfs).transpose();
        synced.map(drop).map_err(|error| Error::io("sync", &self.directory)(error.into()))
    }

    /// Removes what was not published: it may not be whole.
    fn abandon(&mut self) {
        (self.open, self.staged) = (None, 0);
        self.index.forget();
        let _ = remove(&self.directory.join(STAGED));
    }

    /// Makes the directory, waits until no other export writes to it, and completes or removes what a killed one has left.
    fn lock(&mut self) -> Result<(), Error> {
        if self.locked.is_some() {
            return Ok(());
        }
        let make = || {
            fs::create_dir_all(self.first_table())?;
            lock(&self.first_table())
        };
        self.locked = Some(make().map_err(Error::io("write", &self.directory))?);
        self.index.forget();
        self.complete()?;
        remove(&self.directory.join(STAGED))?;
        compact::recover(&self.directory)
    }

    /// What exports lock: not the directory of all, which is for readers.
    fn first_table(&self) -> PathBuf {
        self.directory.join(format!("table={}", TABLES[0]))
    }

    /// Gives files that are committed their names.
    fn complete(&self) -> Result<(), Error> {
        let adding = self.directory.join(ADDING);
        for table in TABLES.iter().rev().map(|table| format!("table={table}")) {
            for date in names_in(&adding.join(&table))? {
                let [from, to] = [&adding, &self.directory].map(|above| above.join(&table).join(&date));
                fs::create_dir_all(&to).map_err(Error::io("write", &to))?;
                for name in names_in(&from)? {
                    let to = to.join(&name);
                    // One of the same name has the same content, such as no rows.
                    if !to.exists() {
                        fs::rename(from.join(name), &to).map_err(Error::io("write", &to))?;
                    }
                }
            }
        }
        remove(&adding)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        if self.locked.is_some() {
            self.abandon();
        }
    }
}

/// Locks a directory, once nobody else has it locked.
fn lock(directory: &Path) -> io::Result<File> {
    let directory = File::open(directory)?;
    match flock(&directory, FlockOperation::LockExclusive) {
        // Where there are no locks, nothing keeps two exports apart.
        Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(directory),
        Err(error) => Err(error.into()),
    }
}

/// The directory of a day in a table.
fn partition(tables: &Path, table: &str, date: &str) -> PathBuf {
    tables.join(format!("table={table}")).join(format!("date={date}"))
}

/// Whether readers take a file of this name for one of the table.
fn is_table_file(name: &str) -> bool {
    name.ends_with(".parquet") && !is_passed_over(name.as_ref())
}

/// Whether readers pass over a file or directory of this name.
fn is_passed_over(name: &OsStr) -> bool {
    matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_'))
}

/// What is in a directory, sorted; nothing if there is none.
fn names_in(directory: &Path) -> Result<Vec<OsString>, Error> {
    let list = || fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect();
    match list() {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        names => {
            let mut names: Vec<OsString> = names.map_err(Error::io("list", directory))?;
            names.sort();
            Ok(names)
        }
    }
}

/// Removes a directory with all that it has, if there is one.
fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if !is_absent(&error) => Err(Error::io("remove", directory)(error)),
        _ => Ok(()),
    }
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
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
///
/// # Errors
/// It is no time since 1970.
pub fn date(time: &str) -> Result<String, Error> {
    Ok(parse_time(time)?.to_zoned(TimeZone::UTC).date().to_string())
}

#[cfg(test)]
mod tests;
