//! Reads an archive, which may come from anyone: nothing gets a name unless all of it is as `export` writes it.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header as TarHeader};

use super::compression::Unpacker;
use super::export::{BLOCK, LONG_NAME};
use super::tree::{self, FILES, TreeEntry};
use crate::snapshot::digest::Hashing;
use crate::snapshot::layout::{BLOBS, Commit, MANIFEST, SnapshotDir, room_in};
use crate::snapshot::reader::{most_bytes_of_blobs, read_manifest};
use crate::snapshot::source::Contents;
use crate::snapshot::wire::write_manifest;
use crate::snapshot::{Digest, Error, FileRecord, FileType, Header, Manifest, Snapshot, printable};

/// A larger manifest is refused: it is read into memory.
const MAX_MANIFEST: u64 = 1 << 30;
/// The longest name of an entry: that of the longest path.
const MAX_NAME: u64 = 33 << 10;
/// How many zeros a tar may have after its end: programs fill up their records.
const MAX_PADDING: u64 = 1 << 20;

/// An archive whose manifest was read.
pub struct Archive<R: Read> {
    tar: TarReader<R>,
    manifest: Manifest,
}

/// An archive all of which was read and checked.
pub struct CheckedArchive {
    snapshot: Snapshot,
    blobs: Option<File>,
    manifest: File,
}

impl<R: Read> Archive<R> {
    /// Reads the manifest of the archive in `input`, which messages name by `name`.
    ///
    /// # Errors
    /// It is no archive of ours, or can't be read.
    pub fn open(input: R, name: &str) -> Result<Archive<R>, Error> {
        let mut tar = TarReader::new(input, name)?;
        let Some(entry) = tar.next()? else {
            return Err(Error::Format(format!("{name} is empty: it has no manifest.json")));
        };
        let size = entry.size;
        if entry.name != MANIFEST.as_bytes() || !entry.is_plain() {
            return Err(Error::Format(format!(
                "{name} is no exported snapshot: it begins with {} instead of manifest.json",
                printable(&entry.name)
            )));
        }
        if size > MAX_MANIFEST {
            return Err(Error::Format(format!("the manifest.json in {name} is too large: {size} bytes")));
        }
        let mut content = tar.input.by_ref().take(size);
        let manifest = read_manifest(&mut content, Path::new(&format!("{name}: manifest.json")));
        // White space may be left, or, if it is no manifest, anything.
        let passed = io::copy(&mut content, &mut io::sink()).map_err(|error| unreadable(name, error));
        let is_cut_off = content.limit() > 0;
        let manifest = manifest.map_err(|error| match error {
            Error::Io { source, .. } => unreadable(name, source),
            Error::Format(_) if is_cut_off => cut_off(name),
            other => other,
        })?;
        passed?;
        tar.skip_padding(size)?;
        Ok(Archive { tar, manifest })
    }

    /// What the manifest says but its files.
    pub fn header(&self) -> &Header {
        &self.manifest.header
    }

    /// Reads and checks the rest; `sha256` is what the archive must have. Files without a name in `scratch` have what is
    /// to be kept.
    ///
    /// # Errors
    /// The archive is not valid, or can't be read or written.
    pub fn check(self, sha256: Option<&Digest>, scratch: &Path) -> Result<CheckedArchive, Error> {
        let Archive { mut tar, mut manifest } = self;
        let name = tar.name.clone();
        let mut entry = tar.next()?;
        let mut blobs = None;
        if let Some(found) = entry.take_if(|entry| entry.name == BLOBS.as_bytes() && entry.is_plain()) {
            let most = most_bytes_of_blobs(&manifest).map_err(|error| in_archive(&name, error))?;
            blobs = Some(tar.blobs(found.size, most, scratch)?);
            entry = tar.next()?;
        }
        if let Some(found) = entry.as_ref().filter(|entry| !entry.name.starts_with(FILES)) {
            return Err(misplaced(&name, found));
        }
        manifest.header.imported = true;
        let written = |error| Error::io("write to", scratch)(error);
        let contents = blobs.as_ref().map(crate::fs::reopen).transpose().map_err(written)?;
        let snapshot = Snapshot::assemble(Path::new(&name), manifest, contents)?;
        let records = snapshot.records();
        let mut expected = tree::entries(records.iter().copied(), |_| {}).into_iter();
        while let Some(found) = entry {
            if !found.name.starts_with(FILES) {
                return Err(misplaced(&name, &found));
            }
            let is_next = |entry: &TreeEntry| entry.name(records[entry.record]) == found.name;
            let Some(recorded) = expected.find(is_next) else { return Err(misplaced(&name, &found)) };
            tar.tree_entry(&found, recorded, records[recorded.record])?;
            entry = tar.next()?;
        }
        tar.end(sha256)?;
        Contents::new(&snapshot).prove_all()?;
        let manifest = tempfile::tempfile_in(scratch).map_err(written)?;
        write_manifest(&manifest, snapshot.header(), records.iter().copied()).map_err(written)?;
        Ok(CheckedArchive { snapshot, blobs, manifest })
    }
}

impl CheckedArchive {
    /// What it has.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Commits the bundle to an empty directory, and opens it.
    ///
    /// # Errors
    /// It can't be written.
    pub fn commit(self, directory: SnapshotDir) -> Result<Snapshot, Error> {
        drop(self.snapshot);
        let committed = directory.commit(self.blobs, self.manifest, Commit::Only, false)?;
        committed.unlock();
        Snapshot::open(committed.real_path())
    }
}

/// The nearest directory at or above `path` that is there, in which files without a name can be made.
pub fn scratch_for(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = absolute.ancestors().find(|path| path.is_dir());
    there.map_or_else(std::env::temp_dir, Path::to_owned)
}

/// The header of an entry.
struct TarEntry {
    name: Vec<u8>,
    entry_type: EntryType,
    target: Vec<u8>,
    size: u64,
    /// Whether its name or its target is in an entry of its own.
    is_long: bool,
}

impl TarEntry {
    /// Whether it is a regular file with a short name.
    fn is_plain(&self) -> bool {
        self.entry_type == EntryType::Regular && !self.is_long
    }
}

/// Reads the entries of a tar.
struct TarReader<R: Read> {
    input: Unpacker<Hashing<R>>,
    name: String,
}

impl<R: Read> TarReader<R> {
    fn new(input: R, name: &str) -> Result<TarReader<R>, Error> {
        let input = Unpacker::new(Hashing::new(input)).map_err(|error| unreadable(name, error))?;
        Ok(TarReader { input, name: name.to_owned() })
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        self.input.read_exact(buffer).map_err(|error| unreadable(&self.name, error))
    }

    /// The header of the next entry; none at the end of the tar.
    fn next(&mut self) -> Result<Option<TarEntry>, Error> {
        let (mut long_name, mut long_target) = (None, None);
        loop {
            let Some(mut entry) = self.next_header()? else {
                return if long_name.is_none() && long_target.is_none() {
                    Ok(None)
                } else {
                    Err(self.cut_off())
                };
            };
            let long = match entry.entry_type {
                EntryType::GNULongName => &mut long_name,
                EntryType::GNULongLink => &mut long_target,
                _ => {
                    entry.is_long = long_name.is_some() || long_target.is_some();
                    entry.name = long_name.unwrap_or(entry.name);
                    entry.target = long_target.unwrap_or(entry.target);
                    self.check_name(&entry)?;
                    return Ok(Some(entry));
                }
            };
            if long.is_some() || entry.name != LONG_NAME || !(2..=MAX_NAME).contains(&entry.size) {
                return Err(self.refused(&entry, "is an extended header that no exported snapshot has"));
            }
            let length = usize::try_from(entry.size).unwrap_or_default();
            let mut text = vec![0; length];
            self.read_exact(&mut text)?;
            self.skip_padding(entry.size)?;
            if text.pop() != Some(0) {
                return Err(self.refused(&entry, "is an extended header that no exported snapshot has"));
            }
            *long = Some(text);
        }
    }

    fn next_header(&mut self) -> Result<Option<TarEntry>, Error> {
        let mut block = [0; BLOCK];
        self.read_exact(&mut block)?;
        if block == [0; BLOCK] {
            self.read_exact(&mut block)?;
            if block != [0; BLOCK] {
                return Err(self.goes_on());
            }
            return Ok(None);
        }
        let header = TarHeader::from_byte_slice(&block);
        let mut summed = header.clone();
        summed.set_cksum();
        if header.cksum().ok() != summed.cksum().ok() {
            let name = &self.name;
            return Err(Error::Format(format!(
                "{name} is no tar, or damaged: a header has a wrong checksum"
            )));
        }
        let fields = header.as_old();
        let mut entry = TarEntry {
            name: header.path_bytes().into_owned(),
            entry_type: header.entry_type(),
            target: header.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default(),
            size: 0,
            is_long: false,
        };
        // Other programs read the bytes behind a NUL, or more of a number than eight bytes.
        let has_more = |field: &[u8]| {
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            field[end..].iter().any(|byte| *byte != 0)
        };
        if has_more(&fields.name) || has_more(&fields.linkname) {
            return Err(self.refused(&entry, "has a NUL byte in its name"));
        }
        let size = &fields.size;
        let is_plain = size[0] & 0x80 == 0 || size[..4] == [0x80, 0, 0, 0];
        entry.size = match header.entry_size() {
            Ok(size) if is_plain && size <= i64::MAX as u64 => size,
            _ => return Err(self.refused(&entry, "has a size that no file can have")),
        };
        Ok(Some(entry))
    }

    /// Refuses an entry that leads somewhere else when it is unpacked.
    fn check_name(&self, entry: &TarEntry) -> Result<(), Error> {
        let is_in_tree = entry.name.starts_with(FILES);
        let refused = |why: &str| Err(self.refused(entry, why));
        match entry.entry_type {
            EntryType::Regular => {}
            EntryType::Symlink | EntryType::Directory if is_in_tree => {}
            EntryType::Symlink | EntryType::Link => return refused("is a link"),
            EntryType::Char | EntryType::Block | EntryType::Fifo => return refused("is a device or a pipe"),
            EntryType::Directory => return refused("is a directory"),
            EntryType::GNUSparse => return refused("is a sparse file"),
            EntryType::XHeader | EntryType::XGlobalHeader => {
                return refused("is an extended header that no exported snapshot has");
            }
            _ => return refused("is of an unknown type"),
        }
        if entry.entry_type != EntryType::Regular && entry.size > 0 {
            return refused("has a content and is no file");
        }
        if entry.name.starts_with(b"/") {
            return refused("is an absolute path");
        }
        if entry.name.split(|byte| *byte == b'/').any(|component| component == b"..") {
            return refused("leads out of the archive");
        }
        if entry.name.contains(&0) || entry.target.contains(&0) {
            return refused("has a NUL byte in its name");
        }
        Ok(())
    }

    /// Copies the content of `blobs.parquet` to a file without a name in `scratch`.
    fn blobs(&mut self, size: u64, most: u64, scratch: &Path) -> Result<File, Error> {
        if size > most {
            return Err(Error::Corrupt(format!(
                "the blobs.parquet in {} has {size} bytes, more than its manifest.json has use for",
                self.name
            )));
        }
        let failed = |error: io::Error| Error::io("write to", scratch)(error);
        let mut file = tempfile::tempfile_in(scratch).map_err(failed)?;
        let directory = File::open(scratch).map_err(failed)?;
        if size > room_in(&directory).map_err(failed)? {
            return Err(failed(io::ErrorKind::StorageFull.into()));
        }
        self.content(size, |bytes| file.write_all(bytes).map_err(failed))?;
        Ok(file)
    }

    /// Reads an entry of the tree, which must be as the manifest says.
    fn tree_entry(
        &mut self,
        entry: &TarEntry,
        recorded: TreeEntry,
        record: &FileRecord,
    ) -> Result<(), Error> {
        let differs = |what: &str| {
            let (name, entry) = (&self.name, printable(&entry.name));
            Err(Error::Corrupt(format!("{name} has {entry} with another {what} than its manifest.json says")))
        };
        let Some(present) = recorded.present(record) else { return Err(misplaced(&self.name, entry)) };
        let (entry_type, target) = match present.file_type {
            FileType::Directory => (EntryType::Directory, &[][..]),
            FileType::Symlink => (EntryType::Symlink, present.target.as_deref().unwrap_or_default()),
            _ => (EntryType::Regular, &[][..]),
        };
        if entry.entry_type != entry_type {
            return differs("type");
        }
        if entry.target != target {
            return differs("target");
        }
        if entry_type != EntryType::Regular {
            return Ok(());
        }
        if entry.size != present.size {
            return differs("length");
        }
        let mut hasher = Sha256::new();
        self.content(entry.size, |bytes| {
            hasher.update(bytes);
            Ok(())
        })?;
        // The content of a clean file in Git is known by its object alone.
        let found = Digest::finish(hasher);
        if present.digest.is_some_and(|digest| digest != found) {
            let (name, entry) = (&self.name, printable(&entry.name));
            return Err(Error::Corrupt(format!(
                "{name} has {entry} with another content than its manifest.json says"
            )));
        }
        Ok(())
    }

    /// Gives the content of an entry to `take`, and passes over what fills its last block.
    fn content(&mut self, size: u64, mut take: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut left = size;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            let step = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            self.read_exact(&mut buffer[..step])?;
            take(&buffer[..step])?;
            left -= step as u64;
        }
        self.skip_padding(size)
    }

    fn skip_padding(&mut self, size: u64) -> Result<(), Error> {
        let mut padding = [0; BLOCK];
        let length = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or_default();
        self.read_exact(&mut padding[..length])
    }

    /// Checks that nothing follows the end of the tar, and what the whole archive has.
    fn end(mut self, sha256: Option<&Digest>) -> Result<(), Error> {
        let mut buffer = vec![0; 64 << 10];
        let mut padding = 0;
        loop {
            let read = self.input.read(&mut buffer).map_err(|error| unreadable(&self.name, error))?;
            padding += read as u64;
            if buffer[..read].iter().any(|byte| *byte != 0) || padding > MAX_PADDING {
                return Err(self.goes_on());
            }
            if read == 0 {
                break;
            }
        }
        let name = &self.name;
        let Some(input) = self.input.into_ended().map_err(|error| unreadable(name, error))? else {
            return Err(Error::Format(format!("{name} goes on after its compressed data")));
        };
        let found = Digest::finish(input.hasher);
        match sha256 {
            Some(wanted) if *wanted != found => {
                Err(Error::Corrupt(format!("{name} is not the expected archive: its digest is {found}")))
            }
            _ => Ok(()),
        }
    }

    fn refused(&self, entry: &TarEntry, why: &str) -> Error {
        Error::Unsafe(format!("{} has {}, which {why}", self.name, printable(&entry.name)))
    }

    fn goes_on(&self) -> Error {
        Error::Format(format!("{} goes on after its end", self.name))
    }

    fn cut_off(&self) -> Error {
        cut_off(&self.name)
    }
}

/// The error for an entry that comes twice, in the wrong place, or that the manifest does not know.
fn misplaced(name: &str, entry: &TarEntry) -> Error {
    let shown = printable(&entry.name);
    if [MANIFEST, BLOBS].iter().any(|known| known.as_bytes() == entry.name) {
        return Error::Format(format!("{name} has {shown} twice, or not in its place"));
    }
    Error::Unsafe(format!("{name} has {shown}, which is no part of the snapshot, or not in its place"))
}

fn cut_off(name: &str) -> Error {
    Error::Format(format!("{name} is cut off"))
}

/// What an error while the archive is read says of it.
fn unreadable(name: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => cut_off(name),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
            Error::Format(format!("{name} is damaged: {error}"))
        }
        _ => Error::io("read", name)(error),
    }
}

/// Puts the name of the archive before a message.
fn in_archive(name: &str, error: Error) -> Error {
    match error {
        Error::Unsafe(message) => Error::Unsafe(format!("{name}: {message}")),
        Error::Corrupt(message) => Error::Corrupt(format!("{name}: {message}")),
        other => other,
    }
}
