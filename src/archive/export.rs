//! Writes a snapshot as an archive, whose bytes depend on the snapshot alone.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::path::Path;

use tar::{EntryType, Header as TarHeader};

use super::compression::{ArchiveCompression, Packer};
use super::tree::{self, LeftOut, TreeEntry};
use crate::snapshot::blobs::{BlobWriter, Compression};
use crate::snapshot::digest::Hashing;
use crate::snapshot::layout::{BLOBS, MANIFEST};
use crate::snapshot::source::Contents;
use crate::snapshot::wire::write_manifest;
use crate::snapshot::{Digest, Error, FileRecord, FileType, Header, Snapshot, State};

/// A tar consists of blocks of this size.
pub const BLOCK: usize = 512;
/// The name of an entry whose content is the name of the next entry, or the target of a symlink.
pub const LONG_NAME: &[u8] = b"././@LongLink";

/// How a snapshot is exported.
pub struct ExportOptions<'a> {
    /// How the archive is compressed.
    pub compression: ArchiveCompression,
    /// Whether it has the recorded files as a tree, too.
    pub expand: bool,
    /// A directory for a copy of the contents, if some are withheld.
    pub scratch: &'a Path,
}

/// What came of an export.
#[derive(Debug)]
pub struct Exported {
    /// The length of the archive.
    pub bytes: u64,
    /// The digest of the archive.
    pub digest: Digest,
    /// What the tree lacks.
    pub left_out: Vec<LeftOut>,
}

/// Writes `snapshot` to `out`, with all that it has: what is not for others was taken out of it before.
///
/// # Errors
/// The snapshot is damaged, or `out` fails, which is [`Error::Sink`].
pub fn export(snapshot: &Snapshot, options: &ExportOptions, out: impl Write) -> Result<Exported, Error> {
    let records = snapshot.records();
    let contents = Contents::new(snapshot);
    // Where it was imported concerns nobody else.
    let header = Header { imported: false, ..snapshot.header().clone() };
    let keys: HashSet<&str> = records.iter().flat_map(|record| blobs(record)).collect();
    let blobs = exported_blobs(snapshot, &keys, options.scratch)?;
    let mut manifest = Cursor::new(Vec::new());
    write_manifest(&mut manifest, &header, records.iter().copied()).map_err(Error::io("write", MANIFEST))?;
    let manifest = manifest.into_inner();

    let time = header.finished_at.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second);
    let out = Hashing::new(out);
    let mut tar = TarWriter { out: Packer::new(out, options.compression).map_err(Error::Sink)? };
    tar.file(MANIFEST.as_bytes(), manifest.len() as u64, 0o600, time)?;
    tar.content(manifest.len() as u64, |out| out.write_all(&manifest).map_err(Error::Sink))?;
    drop(manifest);
    if let Some(blobs) = &blobs {
        let size = blobs.metadata().map_err(Error::io("stat", BLOBS))?.len();
        tar.file(BLOBS.as_bytes(), size, 0o600, time)?;
        tar.content(size, |out| copy_file(blobs, out))?;
    }
    let mut left_out = Vec::new();
    if options.expand {
        for entry in tree::entries(records.iter().copied(), |one| left_out.push(one)) {
            tar.tree_entry(entry, records[entry.record], &contents, &mut left_out)?;
        }
    }
    let out = tar.finish()?;
    Ok(Exported { bytes: out.bytes, digest: Digest::finish(out.hasher), left_out })
}

/// The keys that a record names.
fn blobs(record: &FileRecord) -> impl Iterator<Item = &str> {
    let states = [&record.before, &record.after].into_iter().filter_map(State::present);
    states.filter_map(|present| present.blob.as_deref())
}

/// The file with these blobs, and no other bytes: rows that nobody names may be those of a secret.
fn exported_blobs(snapshot: &Snapshot, keys: &HashSet<&str>, scratch: &Path) -> Result<Option<File>, Error> {
    if keys.is_empty() {
        return Ok(None);
    }
    let is_wanted = |key: &str| keys.contains(key);
    if let Some(whole) = snapshot.blobs_without_other_rows(&is_wanted) {
        return crate::fs::reopen(whole).map(Some).map_err(Error::io("open", BLOBS));
    }
    let failed = || Error::io("write a copy of blobs.parquet without secrets to", scratch);
    let file = tempfile::tempfile_in(scratch).map_err(failed())?;
    let mut writer = BlobWriter::new(file, Compression::Snappy).map_err(failed())?;
    snapshot.copy_blobs(&is_wanted, &mut writer).map_err(|error| match error {
        Error::Write(error) => failed()(error),
        error => error,
    })?;
    let file = writer.finish().map_err(failed())?;
    file.map(|file| crate::fs::reopen(&file)).transpose().map_err(failed())
}

fn copy_file(mut file: &File, out: &mut dyn Write) -> Result<(), Error> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(Error::Read)? {
            0 => return Ok(()),
            read => out.write_all(&buffer[..read]).map_err(Error::Sink)?,
        }
    }
}

/// Writes the entries of a tar.
struct TarWriter<W: Write> {
    out: Packer<Hashing<W>>,
}

impl<W: Write> TarWriter<W> {
    /// Writes the header of a regular file.
    fn file(&mut self, name: &[u8], size: u64, mode: u32, time: i64) -> Result<(), Error> {
        self.header(name, EntryType::Regular, b"", size, mode, time)
    }

    fn header(
        &mut self,
        name: &[u8],
        entry_type: EntryType,
        target: &[u8],
        size: u64,
        mode: u32,
        time: i64,
    ) -> Result<(), Error> {
        for (long, entry_type) in [(target, EntryType::GNULongLink), (name, EntryType::GNULongName)] {
            // A field that is full has no NUL at its end, which some programs want.
            if long.len() >= 100 {
                let mut header = new_header(LONG_NAME, entry_type, long.len() as u64 + 1);
                header.set_cksum();
                self.out.write_all(header.as_bytes()).map_err(Error::Sink)?;
                self.content(long.len() as u64 + 1, |out| {
                    out.write_all(long).and_then(|()| out.write_all(&[0])).map_err(Error::Sink)
                })?;
            }
        }
        let mut header = new_header(name, entry_type, size);
        let target = &target[..target.len().min(99)];
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
        header.set_mode(mode);
        header.set_mtime(u64::try_from(time).unwrap_or_default());
        header.set_cksum();
        self.out.write_all(header.as_bytes()).map_err(Error::Sink)
    }

    /// Writes the content that a header was written for, and fills the last block.
    fn content(
        &mut self,
        size: u64,
        write: impl FnOnce(&mut dyn Write) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut out = CountingWriter { out: &mut self.out, left: size };
        write(&mut out)?;
        if out.left > 0 {
            return Err(Error::Changed);
        }
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        io::copy(&mut io::repeat(0).take(padding), &mut self.out).map_err(Error::Sink)?;
        Ok(())
    }

    /// Writes an entry of the tree, if its content is available.
    fn tree_entry(
        &mut self,
        entry: TreeEntry,
        record: &FileRecord,
        contents: &Contents,
        left_out: &mut Vec<LeftOut>,
    ) -> Result<(), Error> {
        let Some(present) = entry.present(record) else { return Ok(()) };
        let (name, time) = (entry.name(record), present.mtime);
        // Whoever unpacks it must be able to read it, and to remove it.
        let permissions = present.mode & 0o777;
        match present.file_type {
            FileType::Directory => {
                self.header(&name, EntryType::Directory, b"", 0, permissions | 0o700, time)
            }
            FileType::Symlink => {
                let target = present.target.as_deref().unwrap_or_default();
                self.header(&name, EntryType::Symlink, target, 0, 0o777, time)
            }
            _ => {
                // The header comes before the content: whether that is as recorded must be known by then.
                match contents.prove(record, entry.side) {
                    Ok(_) => {}
                    Err(Error::Unavailable(why)) => {
                        let (side, path, why) = (entry.side, record.path.clone(), why.to_string());
                        left_out.push(LeftOut { side, path, why });
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                self.file(&name, present.size, permissions | 0o600, time)?;
                self.content(present.size, |mut out| contents.copy(record, entry.side, &mut out).map(drop))
            }
        }
    }

    fn finish(mut self) -> Result<Hashing<W>, Error> {
        self.out.write_all(&[0; 2 * BLOCK]).map_err(Error::Sink)?;
        let mut out = self.out.finish().map_err(Error::Sink)?;
        out.flush().map_err(Error::Sink)?;
        Ok(out)
    }
}

/// A header of mode, owner and time 0. A name that is too long for it is cut.
fn new_header(name: &[u8], entry_type: EntryType, size: u64) -> TarHeader {
    let mut header = TarHeader::new_gnu();
    let name = &name[..name.len().min(99)];
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(entry_type);
    header.set_size(size);
    header.set_mode(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Takes no more bytes than a header says.
struct CountingWriter<W> {
    out: W,
    left: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        let left = self.left.checked_sub(written as u64);
        self.left = left.ok_or_else(|| io::Error::other("a content is longer than the snapshot says"))?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
