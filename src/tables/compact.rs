//! Joins small files of a day into larger ones, a directory at a time.
//!
//! The files that a day is to have are completed in a new directory, `_compact/table=TABLE/date=DATE`: joined files, and hard
//! links to the other files of the table. When that is on the disk, it is exchanged with the directory of the day
//! (`RENAME_EXCHANGE`), so that whoever lists the day sees each row once, at any moment. What else is in the old directory,
//! such as subdirectories and what was copied there meanwhile, is moved to the new one, and the rest is removed.
//!
//! `_joined` in the new directory names the files that it replaces. A day has such a list only once the directories were
//! exchanged. The list is removed when all is moved, before anything is removed from the old directory: a day without a list
//! needs nothing of what is below `_compact`, even if that is half removed. So each step can be repeated.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use parquet::schema::types::TypePtr;
use rustix::fs::{Access, CWD, RenameFlags, access, renameat_with};
use rustix::io::Errno;

use super::columns::key_of;
use super::reader::TableReader;
use super::writer::{TableFile, columns};
use super::{TABLES, Tables, is_absent, is_passed_over, is_table_file, lock, names_in, remove};
use crate::snapshot::{Error, printable};

/// Where directories are made that are to replace those of days, and where these are afterwards.
const COMPACT: &str = "_compact";

/// The list of the files that a directory replaces, separated by NUL.
const JOINED: &str = "_joined";

/// How many directories are flushed to the disk at once.
const BATCH: usize = 64;

/// What became of the files.
#[derive(Debug, Default)]
pub struct Compacted {
    /// How many files were joined.
    pub joined: usize,
    /// Into how many.
    pub into: usize,
    /// How many bytes these have.
    pub bytes: u64,
    /// Which files are damaged and remain as they are, and why.
    pub damaged: Vec<String>,
}

impl Tables {
    /// Joins the files of each day in each table that are smaller than half of [`FILE_BYTES`](super::FILE_BYTES).
    ///
    /// Files are joined with those that have the same columns. `each` is called after each day with how many of how many are done.
    ///
    /// # Errors
    /// A file can't be written, or the filesystem can't exchange directories.
    pub fn compact(&mut self, mut each: impl FnMut(usize, usize)) -> Result<Compacted, Error> {
        self.lock()?;
        let mut days: Vec<(&str, PathBuf)> = Vec::new();
        for table in TABLES {
            let directory = PathBuf::from(format!("table={table}"));
            let mut names = names_in(&self.directory.join(&directory))?;
            names.retain(|name| {
                let stat = fs::symlink_metadata(self.directory.join(&directory).join(name));
                name.as_encoded_bytes().starts_with(b"date=") && stat.is_ok_and(|stat| stat.is_dir())
            });
            days.extend(names.into_iter().map(|day| (table, directory.join(day))));
        }
        let mut compacted = Compacted::default();
        let mut staged: Vec<&Path> = Vec::new();
        let mut run = || {
            for (done, (table, day)) in days.iter().enumerate() {
                if self.stage(table, day, &mut compacted)? {
                    staged.push(day);
                }
                if staged.len() == BATCH || done + 1 == days.len() {
                    self.exchange(&std::mem::take(&mut staged))?;
                }
                each(done + 1, days.len());
            }
            Ok(())
        };
        let outcome: Result<(), Error> = run();
        let recovered = recover(&self.directory);
        outcome.and(recovered).map(|()| compacted)
    }

    /// Makes the directory that is to replace that of a day; whether there is anything to replace.
    pub(super) fn stage(
        &mut self,
        table: &str,
        day: &Path,
        compacted: &mut Compacted,
    ) -> Result<bool, Error> {
        // Left by a compaction whose directory in `_compact` was lost, to a loss of power for example.
        let stale = self.directory.join(day).join(JOINED);
        match fs::remove_file(&stale) {
            Err(error) if !is_absent(&error) => return Err(Error::io("remove", &stale)(error)),
            _ => {}
        }
        let live = Directory::of(self.directory.join(day))?;
        let groups = self.groups(&live, compacted)?;
        if groups.is_empty() || !live.can_be_emptied() {
            return Ok(false);
        }
        let joined: BTreeSet<&OsString> = groups.iter().flat_map(|group| &group.1).collect();
        let new = self.directory.join(COMPACT).join(day);
        let begin = || {
            fs::create_dir_all(&new)?;
            let names: Vec<&[u8]> = joined.iter().map(|name| name.as_bytes()).collect();
            fs::write(new.join(JOINED), names.join(&0))?;
            for name in live.names.iter().filter(|name| !joined.contains(name)) {
                let path = live.path.join(name);
                // What readers pass over is moved after the exchange.
                if !is_passed_over(name) && !fs::symlink_metadata(&path)?.is_dir() {
                    fs::hard_link(path, new.join(name))?;
                }
            }
            resemble(&new, &live.stat)
        };
        begin().map_err(Error::io("write", &new))?;
        let mut into = Vec::new();
        for (schema, names) in &groups {
            match self.join(&live, names, &new, schema, key_of(table)) {
                Ok(files) => into.extend(files),
                Err(Error::Corrupt(why)) => {
                    compacted.damaged.push(why);
                    remove(&new)?;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        compacted.joined += joined.len();
        compacted.into += into.len();
        compacted.bytes += into.iter().sum::<u64>();
        Ok(true)
    }

    /// The small files of a day that have the same columns, if there are several.
    fn groups(
        &mut self,
        live: &Directory,
        compacted: &mut Compacted,
    ) -> Result<Vec<(TypePtr, Vec<OsString>)>, Error> {
        let is_small = |name: &&OsString| {
            let stat = fs::symlink_metadata(live.path.join(name));
            let is_small = |stat: Metadata| stat.is_file() && stat.len() < self.file_bytes as u64 / 2;
            name.to_str().is_some_and(is_table_file) && stat.is_ok_and(is_small)
        };
        let small: Vec<&OsString> = live.names.iter().filter(is_small).collect();
        let mut groups: Vec<(TypePtr, Vec<OsString>)> = Vec::new();
        for name in small.iter().filter(|_| small.len() > 1) {
            let reader = match TableReader::open(&live.path.join(name)) {
                Ok(reader) => reader,
                Err(Error::Corrupt(why)) => {
                    compacted.damaged.push(why);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.is_left_over(&live.path, name, &reader)? {
                continue;
            }
            let schema = reader.schema();
            match groups.iter_mut().find(|(other, _)| *other == schema) {
                Some((_, names)) => names.push((*name).clone()),
                None => groups.push((schema, vec![(*name).clone()])),
            }
        }
        // Other programs have other types of columns.
        groups.retain(|(schema, names)| names.len() > 1 && columns(schema).is_ok());
        Ok(groups)
    }

    /// Whether a file is of an export of an earlier version that was killed: [`Tables::add`] removes it by its name.
    fn is_left_over(&mut self, day: &Path, name: &OsStr, reader: &TableReader) -> Result<bool, Error> {
        let id = Path::new(name).file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let date = day.file_name().and_then(|name| name.to_str()?.strip_prefix("date=")).unwrap_or_default();
        // Files of other programs have no such column.
        if !reader.first_recording().is_ok_and(|first| first.is_some_and(|first| first == id)) {
            return Ok(false);
        }
        match self.index.day(date) {
            Ok(recordings) => Ok(!recordings.contains(id)),
            // It may be a recording of the damaged file.
            Err(Error::Corrupt(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Writes the rows of files to new ones, and returns how large each is.
    fn join(
        &self,
        live: &Directory,
        names: &[OsString],
        new: &Path,
        schema: &TypePtr,
        key: &str,
    ) -> Result<Vec<u64>, Error> {
        let create = || TableFile::create(new, schema.clone(), key);
        let (mut open, mut finished) = (Some(create()?), Vec::new());
        for name in names {
            let reader = TableReader::open(&live.path.join(name))?;
            reader.each(|rows| {
                if let Some(full) = open.take_if(|file| file.size() > self.file_bytes) {
                    finished.push(full.finish()?);
                }
                let file = if let Some(file) = &mut open { file } else { open.insert(create()?) };
                file.fill(|cells| rows.read(cells))
            })?;
        }
        open.map(|file| file.finish().map(|file| finished.push(file))).transpose()?;
        let like = fs::metadata(live.path.join(&names[0])).map_err(Error::io("stat", &live.path))?;
        for (path, _) in &finished {
            resemble(path, &like).map_err(Error::io("write", path))?;
        }
        Ok(finished.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// Puts the new directories of days in the place of the old ones.
    fn exchange(&self, days: &[&Path]) -> Result<(), Error> {
        if days.is_empty() {
            return Ok(());
        }
        self.sync()?;
        // Readers that share the lock have listed and opened the old ones.
        let locked = lock(&self.directory).map_err(Error::io("lock", &self.directory))?;
        for day in days {
            let (new, live) = (self.directory.join(COMPACT).join(day), self.directory.join(day));
            match renameat_with(CWD, &new, CWD, &live, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => {
                    let shown = printable(live.as_os_str().as_bytes()).into_owned();
                    let why = "its filesystem can't exchange two directories, so readers would see rows twice or never";
                    return Err(Error::Refused(format!("{shown} remains as it is: {why}")));
                }
                Err(error) => return Err(Error::io("replace", &live)(error.into())),
            }
        }
        drop(locked);
        recover(&self.directory)
    }
}

/// A directory of a day.
struct Directory {
    path: PathBuf,
    stat: Metadata,
    names: Vec<OsString>,
}

impl Directory {
    fn of(path: PathBuf) -> Result<Directory, Error> {
        let stat = fs::metadata(&path).map_err(Error::io("stat", &path))?;
        let names = names_in(&path)?;
        Ok(Directory { path, stat, names })
    }

    /// Whether its subdirectories can be moved to another directory.
    fn can_be_emptied(&self) -> bool {
        self.names.iter().all(|name| {
            let path = self.path.join(name);
            let is_fixed = |stat: Metadata| {
                let is_writable = || access(&path, Access::WRITE_OK).is_ok();
                stat.is_dir() && (stat.dev() != self.stat.dev() || !is_writable())
            };
            !fs::symlink_metadata(&path).is_ok_and(is_fixed)
        })
    }
}

/// Gives a file or directory the permissions of another, and the owner, where that is allowed.
fn resemble(path: &Path, other: &Metadata) -> std::io::Result<()> {
    let _ = chown(path, Some(other.uid()), Some(other.gid()));
    fs::set_permissions(path, Permissions::from_mode(other.permissions().mode() & 0o7777))
}

/// Ends the compaction that was killed: what was not exchanged is not needed.
pub fn recover(tables: &Path) -> Result<(), Error> {
    let compact = tables.join(COMPACT);
    for table in names_in(&compact)? {
        for day in names_in(&compact.join(&table))? {
            let day = Path::new(&table).join(day);
            finish_exchange(&compact.join(&day), &tables.join(&day))?;
        }
    }
    remove(&compact)
}

/// Removes a directory that was exchanged with that of a day, but for what that lacks and does not replace; or one that was
/// not exchanged.
fn finish_exchange(old: &Path, live: &Path) -> Result<(), Error> {
    let list = live.join(JOINED);
    if !old.join(JOINED).try_exists().map_err(Error::io("stat", old))? {
        match fs::read(&list) {
            Ok(joined) => {
                carry(old, live, &joined.split(|byte| *byte == 0).collect())?;
                fs::remove_file(&list).map_err(Error::io("remove", &list))?;
            }
            // Nothing was exchanged, or all was moved, and then the removal was killed.
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(Error::io("read", &list)(error)),
        }
    }
    remove(old)
}

/// Moves what another directory lacks there, but for what that replaces.
fn carry(old: &Path, live: &Path, replaced: &BTreeSet<&[u8]>) -> Result<(), Error> {
    for name in names_in(old)?.iter().filter(|name| !replaced.contains(name.as_bytes())) {
        let (from, to) = (old.join(name), live.join(name));
        let is_dir = |path: &Path| fs::symlink_metadata(path).map(|stat| stat.is_dir());
        match is_dir(&to) {
            // Made again after the exchange.
            Ok(true) if is_dir(&from).is_ok_and(|is_dir| is_dir) => carry(&from, &to, &BTreeSet::new())?,
            Ok(_) => {}
            Err(_) => fs::rename(&from, &to).map_err(Error::io("write", &to))?,
        }
    }
    Ok(())
}
