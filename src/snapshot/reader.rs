//! Opens and checks a bundle, which is not trusted.
//!
//! What `open` guarantees: the format version, all required keys, sorted unique clean absolute paths,
//! and rows in `blobs.parquet` for the whole of every blob that is named. Lengths and digests of
//! content are checked while it is read. `blob_reader.rs` knows the parquet file, `checks.rs` the rules of
//! a manifest, `json.rs` guards the parser against hostile JSON.

pub(super) mod blob_reader;
pub(super) mod checks;
pub(super) mod json;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use self::blob_reader::BlobReader;
pub(crate) use self::blob_reader::catch_panic;
use self::checks::Wanted;
use super::blobs::{BlobWriter, CHUNK, END_BYTES};
use super::error::{Error, printable_path};
use super::layout::{BLOBS, JOURNAL, MANIFEST};
use super::manifest::{Digest, FileRecord, Header, Manifest};
use super::relinked::mark_relinked;
use super::sparse::{BLOCK, Sink};
use super::usage;

/// A larger manifest is refused unread: what is read stays in memory.
const MAX_MANIFEST: u64 = 8 << 30;

/// A bundle that was opened and checked, or the net effect of several. It can be shared between threads.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) files: Vec<FileRecord>,
    pub(super) inputs: Vec<FileRecord>,
    blobs: Blobs,
    /// Those whose net effect this is, the oldest first; none if it is a bundle.
    parts: Vec<Snapshot>,
    /// Files with contents that the bundle lacks.
    pub(super) provided: Vec<File>,
    owner: Option<u32>,
    /// The manifest, whose lock says that the bundle is in use.
    _manifest: Option<File>,
}

/// The contents that a bundle has.
#[derive(Debug)]
enum Blobs {
    /// None.
    None,
    /// Those of a file.
    Open(Box<BlobReader>),
    /// Those of a file that this process may not open.
    Denied,
}

impl Blobs {
    fn reader(&self) -> Option<&BlobReader> {
        match self {
            Blobs::Open(reader) => Some(reader),
            Blobs::None | Blobs::Denied => None,
        }
    }
}

impl Snapshot {
    /// Opens and checks the bundle in the directory `path`.
    pub fn open(path: &Path) -> Result<Snapshot, Error> {
        // A commit may replace the bundle meanwhile, or somebody may delete it: if the manifest is no longer in place
        // once the blobs are open, both are opened again.
        loop {
            let dir = open_dir(path)?;
            let manifest_file = open_in(&dir, path, MANIFEST)?.ok_or_else(|| no_manifest(path))?;
            usage::share(&manifest_file);
            let identity = |stat: &rustix::fs::Stat| (stat.st_dev, stat.st_ino);
            let opened = rustix::fs::fstat(&manifest_file)
                .map_err(|error| Error::io("stat", path.join(MANIFEST))(error.into()))?;
            // Whatever needs no content works without it.
            let (blobs, are_denied) = match open_in(&dir, path, BLOBS) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
                    (None, true)
                }
                blobs => (blobs?, false),
            };
            let stat = |file| rustix::fs::fstat(file).map_err(|error| Error::io("stat", path)(error.into()));
            let at_path = rustix::fs::stat(path).map_err(|error| Error::io("open", path)(error.into()))?;
            if identity(&at_path) != identity(&stat(dir.as_fd())?) {
                continue;
            }
            match rustix::fs::statat(&dir, MANIFEST, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if identity(&named) == identity(&opened) => {}
                Ok(_) => continue,
                Err(_) => return Err(no_manifest(path)),
            }

            let files = [Some(manifest_file.as_fd()), blobs.as_ref().map(AsFd::as_fd)];
            let files = files.into_iter().flatten().map(stat).collect::<Result<Vec<_>, _>>()?;
            let owner = only_writer(&stat(dir.as_fd())?, &files);
            let manifest = parse(&manifest_file, &path.join(MANIFEST))?;
            let opened = Snapshot::of_manifest(path, manifest, |wanted| match are_denied {
                true => Ok(Blobs::Denied),
                false => open_blobs(blobs, wanted),
            })?;
            return Ok(Snapshot { owner, _manifest: Some(manifest_file), ..opened });
        }
    }

    /// Checks a bundle that is in no directory yet. Messages name it by `path`.
    pub fn assemble(path: &Path, manifest: Manifest, blobs: Option<File>) -> Result<Snapshot, Error> {
        Snapshot::of_manifest(path, manifest, |wanted| open_blobs(blobs, wanted))
    }

    fn of_manifest(
        path: &Path,
        manifest: Manifest,
        open_blobs: impl FnOnce(HashMap<Box<str>, Wanted>) -> Result<Blobs, Error>,
    ) -> Result<Snapshot, Error> {
        let blobs = checks::check(&manifest).and_then(open_blobs).map_err(|error| with_path(error, path))?;
        let Manifest { header, files } = manifest;
        let (inputs, mut files): (_, Vec<_>) = files.into_iter().partition(FileRecord::is_without_states);
        mark_relinked(&mut files);
        let (path, parts, provided) = (path.to_owned(), Vec::new(), Vec::new());
        Ok(Snapshot { path, header, files, inputs, blobs, parts, provided, owner: None, _manifest: None })
    }

    /// A recording in the directory `path` without its records.
    pub fn without_records(path: &Path, header: Header) -> Result<Snapshot, Error> {
        Snapshot::assemble(path, Manifest { header, files: Vec::new() }, None)
    }

    /// The file of the blobs, if all of its rows are of blobs that a record names and `is_wanted` says so of.
    pub fn blobs_without_other_rows(&self, is_wanted: &dyn Fn(&str) -> bool) -> Option<&File> {
        self.blobs.reader().and_then(|blobs| blobs.file_without_other_rows(is_wanted))
    }

    /// Copies the rows of the blobs that a record names and `is_wanted` says so of; their digests are not checked.
    pub fn copy_blobs(&self, is_wanted: &dyn Fn(&str) -> bool, writer: &mut BlobWriter) -> Result<(), Error> {
        match &self.blobs {
            Blobs::None => Ok(()),
            Blobs::Open(blobs) => {
                blobs.copy_rows(is_wanted, writer).map_err(|error| with_path(error, &self.path))
            }
            Blobs::Denied => Err(self.blobs_denied()),
        }
    }

    /// Reads the header of the bundle in the directory `path` alone; its records are not checked.
    pub fn header_of(path: &Path) -> Result<Header, Error> {
        let manifest = open_in(&open_dir(path)?, path, MANIFEST)?.ok_or_else(|| no_manifest(path))?;
        Ok(parse(&manifest, &path.join(MANIFEST))?.header)
    }

    /// The snapshot that stands for `parts` with these records, whose blobs are named by [`part_key`].
    pub(super) fn of_parts(
        path: PathBuf,
        header: Header,
        mut files: Vec<FileRecord>,
        parts: Vec<Snapshot>,
    ) -> Snapshot {
        mark_relinked(&mut files);
        let owner = parts.first().and_then(Snapshot::owner);
        let owner = owner.filter(|_| parts.iter().all(|part| part.owner == owner));
        let (inputs, provided) = (Vec::new(), Vec::new());
        Snapshot { path, header, files, inputs, blobs: Blobs::None, parts, provided, owner, _manifest: None }
    }

    /// The bundles that it consists of, the oldest first.
    pub fn parts(&self) -> &[Snapshot] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }

    /// The directory of the bundle, as it was given to `open`; of several, that of the newest.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The user who alone may have written what is in the bundle, root apart: the owner of its directory
    /// and files. None where they have several, or others may write to them.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Everything but the files.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The records with states, sorted by path bytes.
    pub fn files(&self) -> &[FileRecord] {
        &self.files
    }

    /// Forgets the records of these paths.
    pub fn forget(&mut self, paths: &HashSet<Vec<u8>>) {
        if !paths.is_empty() {
            self.files.retain(|record| !paths.contains(&record.path));
        }
    }

    /// The records without states, sorted by path bytes: paths that were used and not changed, where the
    /// recording keeps no states of those.
    pub fn inputs(&self) -> &[FileRecord] {
        &self.inputs
    }

    /// All records, sorted by path bytes.
    pub fn records(&self) -> Vec<&FileRecord> {
        let mut records: Vec<_> = self.files.iter().chain(&self.inputs).collect();
        records.sort_by(|one, other| one.path.cmp(&other.path));
        records
    }

    /// The record of `path`, with or without states.
    pub fn find(&self, path: &[u8]) -> Option<&FileRecord> {
        [&self.files, &self.inputs]
            .into_iter()
            .find_map(|records| records.get(FileRecord::find(records, path)?))
    }

    /// Writes the content of the blob `key` to `sink`, a row at a time, and counts it.
    ///
    /// What the sink has received counts only when this returns `Ok`: lengths are checked as it
    /// comes, the digest at its end.
    pub fn read_blob(&self, key: &str, expected: Option<&Digest>, sink: &mut dyn Sink) -> Result<u64, Error> {
        if let Some((part, key)) = split_part_key(key).filter(|_| !self.parts.is_empty()) {
            let part = self.parts.get(part).ok_or_else(|| blob_reader::missing(key))?;
            return part.read_blob(key, expected, sink);
        }
        match &self.blobs {
            Blobs::Open(blobs) => blobs.read(key, expected, sink),
            Blobs::None => Err(blob_reader::missing(key)),
            Blobs::Denied => return Err(self.blobs_denied()),
        }
        .map_err(|error| with_path(error, &self.path))
    }

    fn blobs_denied(&self) -> Error {
        Error::io("open", self.path.join(BLOBS))(Errno::ACCESS.into())
    }
}

/// The key of a blob of one of several parts.
pub(super) fn part_key(part: usize, key: &str) -> String {
    format!("{part} {key}")
}

pub(super) fn split_part_key(key: &str) -> Option<(usize, &str)> {
    let (part, key) = key.split_once(' ')?;
    Some((part.parse().ok()?, key))
}

fn open_dir(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR => Error::Format(format!("{} is not a directory", printable_path(path))),
        error => Error::io("open", path)(error.into()),
    })
}

/// The owner of a directory and of its files, if no other user may write to them.
fn only_writer(dir: &rustix::fs::Stat, files: &[rustix::fs::Stat]) -> Option<u32> {
    let of_others = libc::S_IWGRP | libc::S_IWOTH;
    // In a sticky directory only their owners, and its own, rename and remove files.
    let is_closed = dir.st_mode & of_others == 0 || dir.st_mode & libc::S_ISVTX != 0;
    let is_own = |file: &rustix::fs::Stat| file.st_uid == dir.st_uid && file.st_mode & of_others == 0;
    (is_closed && files.iter().all(is_own)).then_some(dir.st_uid)
}

fn no_manifest(path: &Path) -> Error {
    if path.join(JOURNAL).exists() {
        return Error::Format(format!(
            "{0} holds a recording that has not ended, or was killed: agent-snapshot recover {0} makes a \
             snapshot of what it has changed",
            printable_path(path)
        ));
    }
    Error::Format(format!(
        "{} holds no manifest.json: it is not a snapshot, or an unfinished one",
        printable_path(path)
    ))
}

/// Puts the path of the directory before a message.
fn with_path(error: Error, path: &Path) -> Error {
    let at = |message: String| format!("{}: {message}", printable_path(path));
    match error {
        Error::Format(message) => Error::Format(at(message)),
        Error::Corrupt(message) => Error::Corrupt(at(message)),
        Error::Unsafe(message) => Error::Unsafe(at(message)),
        Error::Refused(message) => Error::Refused(at(message)),
        Error::InUse(message) => Error::InUse(at(message)),
        other => other,
    }
}

/// Opens a regular file of the directory, which messages name by `path`; a symlink in its place is not followed, a FIFO
/// not waited for.
fn open_in(dir: &OwnedFd, path: &Path, name: &str) -> Result<Option<File>, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = path.join(name);
    let irregular = || Error::Corrupt(format!("{} is not a regular file", printable_path(&path)));
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        // A symlink, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => return Err(irregular()),
        Err(error) => return Err(Error::io("open", &path)(error.into())),
    };
    let metadata = file.metadata().map_err(Error::io("stat", &path))?;
    if metadata.is_file() { Ok(Some(file)) } else { Err(irregular()) }
}

fn parse(mut file: &File, path: &Path) -> Result<Manifest, Error> {
    let size = file.metadata().map_err(Error::io("stat", path))?.len();
    if size > MAX_MANIFEST {
        return Err(Error::Format(format!("{} is too large: {size} bytes", printable_path(path))));
    }
    read_manifest(&mut file, path)
}

/// Reads a manifest. Its records are not checked.
///
/// # Errors
/// Reading fails, or it is not one.
pub fn read_manifest(manifest: &mut dyn Read, path: &Path) -> Result<Manifest, Error> {
    json::read(manifest).map_err(|error| {
        if error.is_io() && !json::is_limit_exceeded(&error) {
            Error::io("read", path)(error.into())
        } else {
            Error::Format(format!("{}: {error}", printable_path(path)))
        }
    })
}

/// How many bytes the blobs that the records name take in `blobs.parquet` at most.
///
/// # Errors
/// The records are not valid.
pub fn most_bytes_of_blobs(manifest: &Manifest) -> Result<u64, Error> {
    let bytes = checks::check(manifest)?.into_iter().map(|(key, Wanted { size, sparse })| {
        let row = if sparse { BLOCK } else { CHUNK } as u64;
        BlobWriter::bound(&key, size, size / row + 2)
    });
    Ok(bytes.fold(0, u64::saturating_add).saturating_add(END_BYTES))
}

fn open_blobs(blobs: Option<File>, wanted: HashMap<Box<str>, Wanted>) -> Result<Blobs, Error> {
    match blobs {
        Some(file) if !wanted.is_empty() => {
            BlobReader::open(file, wanted).map(|reader| Blobs::Open(Box::new(reader)))
        }
        // No record refers to the file, so it is not read.
        Some(_) => Ok(Blobs::None),
        None if wanted.is_empty() => Ok(Blobs::None),
        None => Err(Error::Corrupt(format!("{BLOBS} is missing"))),
    }
}

#[cfg(test)]
mod past;
#[cfg(test)]
mod tests;
