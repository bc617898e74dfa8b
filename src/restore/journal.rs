//! The journal of a restore: what each step that takes more than one system call is about to do.
//!
//! An append-only file in the directory of the rescue. The first line identifies it; every further line
//! is an entry: the first half of the SHA-256 digest of its JSON in hexadecimal, a space, the JSON. If
//! the last entry is torn, its step had not begun. Neighbours: `apply.rs` and `access.rs` write it,
//! `settle.rs` reads that of an interrupted restore.

use std::cell::{Cell, OnceCell};
use std::char::TryFromCharError;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::disk::lock_exclusively;
use super::error::{self, Error};
use super::rescue_directory;
use crate::snapshot::layout::RESTORE_JOURNAL;
use crate::snapshot::{identity, printable};

/// The start of the first line of a journal; the version and the identifier of the restore follow.
const MAGIC: &str = "agent-snapshot-restore";
/// The version of the format.
const VERSION: &str = "1";
/// How often a locked journal is tried.
const LOCK_TRIES: u32 = 20;
/// The most bytes of a journal that are read, since they stay in memory; no restore writes more.
const MOST: u64 = 1 << 30;

/// What a restore is about to do, or has done. Files are identified by device and inode, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variants say it")]
pub enum JournalEntry {
    /// The owner gets more permissions for a while: these bits instead of the original ones.
    #[serde(rename = "opened")]
    ModeWidened { path: PathText, inode: (u64, u64), from: u32, to: u32 },
    /// The inode flags that forbid changes are cleared for a while; the original ones, as FS_IOC_GETFLAGS returns them.
    #[serde(rename = "unlocked")]
    FlagsCleared { path: PathText, inode: (u64, u64), flags: u32 },
    /// The flags are the original ones again, or the final ones.
    #[serde(rename = "locked")]
    FlagsRestored { path: PathText },
    /// The file, which gets its name now or has been written in place, gets its inode flags when all else is done: by
    /// this restore, or by the one that completes it.
    FlagsDue { path: PathText, inode: (u64, u64) },
    /// The permission bits are the original ones again, or the final ones.
    #[serde(rename = "closed")]
    ModeRestored { path: PathText },
    /// A node is made under the temporary name beside the path.
    Temporary { path: PathText },
    /// The node with the temporary name takes the place of what is at the path; whether that is cleared away first.
    Placing { path: PathText, inode: (u64, u64), cleared: bool },
    /// A lock of Git, complete under the temporary name, gets its own; it is there as long as the restore runs.
    Locking { path: PathText },
    /// What is at the path is renamed to the temporary name and removed.
    Removing { path: PathText },
    /// The staged content is written into the file at the path.
    Writing { path: PathText, inode: (u64, u64) },
    /// The file gets other attributes.
    Attributes { path: PathText, inode: (u64, u64) },
    /// A directory is made with mode 0700; it gets its attributes when everything is in it.
    Directory { path: PathText },
    /// The file at the path is written, or has its attributes.
    Done { path: PathText },
    /// Every name is in its place.
    Placed,
    /// Everything that was begun is completed or taken back.
    Settled,
}

/// A path, which is text in the journal: each byte is the character with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PathText(pub Vec<u8>);

impl From<PathText> for String {
    fn from(PathText(path): PathText) -> String {
        path.into_iter().map(char::from).collect()
    }
}

impl TryFrom<String> for PathText {
    type Error = TryFromCharError;

    fn try_from(text: String) -> Result<PathText, TryFromCharError> {
        text.chars().map(u8::try_from).collect::<Result<_, _>>().map(PathText)
    }
}

impl Deref for PathText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The journal of a running restore; it is made, with its directory, when the first entry is written.
#[derive(Debug)]
pub struct Journal<'a> {
    snap: &'a Path,
    id: String,
    file: OnceCell<(PathBuf, File)>,
    /// Whether the next run needs it.
    needed: OnceCell<()>,
}

impl<'a> Journal<'a> {
    /// The journal of a restore of the snapshot in `snap`.
    pub fn beside(snap: &'a Path) -> Journal<'a> {
        Journal { snap, id: identity::random_id(), file: OnceCell::new(), needed: OnceCell::new() }
    }

    /// The identifier in the names of the temporary files of this restore.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory of the rescue.
    pub fn directory(&self) -> io::Result<&Path> {
        Ok(&self.open()?.0)
    }

    /// Whether anything was written.
    pub fn is_begun(&self) -> bool {
        self.file.get().is_some()
    }

    /// Keeps the journal and its directory, although the restore has not ended.
    pub fn keep(&self) {
        self.needed.get_or_init(|| ());
    }

    fn open(&self) -> io::Result<&(PathBuf, File)> {
        if let Some(open) = self.file.get() {
            return Ok(open);
        }
        let (directory, mut file) = rescue_directory::create_beside(self.snap, create)?;
        file.write_all(head(&self.id).as_bytes())?;
        Ok(self.file.get_or_init(|| (directory, file)))
    }

    /// Appends an entry.
    pub fn write(&self, entry: &JournalEntry) -> io::Result<()> {
        append(&self.open()?.1, entry)
    }

    /// Flushes the entries to the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.open()?.1.sync_data()
    }

    /// Ends the restore: removes the journal, and its directory if there is no rescue in it.
    pub fn finish(mut self) -> io::Result<()> {
        match self.file.take() {
            Some((directory, _)) => rescue_directory::end(&directory),
            None => Ok(()),
        }
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        if let (Some((directory, _)), None) = (self.file.get(), self.needed.get()) {
            // What remains is reported and removed by the next run.
            let _ = rescue_directory::end(directory);
        }
    }
}

fn head(id: &str) -> String {
    format!("{MAGIC} {VERSION} {id} {}\n", checksum(id.as_bytes()))
}

fn append(mut file: &File, entry: &JournalEntry) -> io::Result<()> {
    let json = serde_json::to_string(entry)?;
    file.write_all(format!("{} {json}\n", checksum(json.as_bytes())).as_bytes())
}

fn checksum(bytes: &[u8]) -> String {
    faster_hex::hex_string(&Sha256::digest(bytes)[..16])
}

/// Creates and locks the journal in `directory`; none if there is one.
fn create(directory: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
    match rustix::fs::open(directory.join(RESTORE_JOURNAL), flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => {
            let file = File::from(fd);
            // Whoever only reads it has the lock for a moment. On a filesystem without locks nobody can be excluded.
            let _ = lock_exclusively(&file, LOCK_TRIES);
            Ok(Some(file))
        }
        Err(Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The journal of an interrupted restore.
#[derive(Debug)]
pub struct InterruptedJournal {
    file: File,
    /// The length of its complete entries.
    length: Cell<u64>,
    /// The identifier in the names of the temporary files of that restore.
    pub id: String,
    /// Its entries.
    pub entries: Vec<JournalEntry>,
}

/// The state of the restore of a directory.
#[derive(Debug)]
pub enum JournalState {
    /// Nothing: there is no journal.
    Missing,
    /// The restore is running.
    InUse,
    /// The restore was interrupted.
    Interrupted(InterruptedJournal),
}

/// Opens and locks the journal in `directory`.
pub fn find(directory: &Path) -> Result<JournalState, Error> {
    let path = directory.join(RESTORE_JOURNAL);
    let name = || printable(path.as_os_str().as_encoded_bytes()).into_owned();
    let failed = |error: io::Error| error::failed(format!("read {}", name()))(error);
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(JournalState::Missing),
        Err(error) => return Err(failed(error.into())),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || !rescue_directory::is_private(&metadata) {
        // With a journal of their own, another user could claim that our files are half written.
        return Ok(JournalState::Missing);
    }
    // Whoever only reads it has the lock for a moment.
    if !lock_exclusively(&file, LOCK_TRIES) {
        return Ok(JournalState::InUse);
    }
    let mut bytes = Vec::new();
    (&file).take(MOST).read_to_end(&mut bytes).map_err(failed)?;
    let (id, entries, length) = parse(&bytes).map_err(|fault| match fault {
        JournalDamage::Version => Error::JournalVersion(name()),
        JournalDamage::Record(number) => Error::JournalDamaged(name(), number),
    })?;
    Ok(JournalState::Interrupted(InterruptedJournal { file, length: Cell::new(length as u64), id, entries }))
}

impl InterruptedJournal {
    /// The files that were to get their inode flags at the end.
    pub fn flags_due(&self) -> impl Iterator<Item = (&[u8], (u64, u64))> {
        self.entries.iter().filter_map(|entry| match entry {
            JournalEntry::FlagsDue { path, inode } => Some((&**path, *inode)),
            _ => None,
        })
    }

    /// Appends an entry, which is not among `entries`.
    pub fn write(&self, entry: &JournalEntry) -> io::Result<()> {
        // It must not follow a torn one.
        self.file.set_len(self.length.get())?;
        append(&self.file, entry)?;
        self.length.set(self.file.metadata()?.len());
        Ok(())
    }

    /// Records that everything that was begun is completed or taken back.
    pub fn settled(&self) -> io::Result<()> {
        self.write(&JournalEntry::Settled)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum JournalDamage {
    Version,
    Record(usize),
}

/// The identifier of a journal, its entries, and their length.
fn parse(bytes: &[u8]) -> Result<(String, Vec<JournalEntry>, usize), JournalDamage> {
    let (mut id, mut entries, mut length) = (String::new(), Vec::new(), 0);
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let Some(whole) = line.strip_suffix(b"\n") else { break };
        let text = std::str::from_utf8(whole).unwrap_or_default();
        if number == 0 {
            let mut words = text.split(' ');
            match [(); 4].map(|()| words.next()) {
                [Some(MAGIC), Some(VERSION), Some(word), Some(sum)] if checksum(word.as_bytes()) == sum => {
                    id = word.to_owned();
                }
                [Some(MAGIC), Some(other), ..] if other != VERSION => return Err(JournalDamage::Version),
                _ => return Err(JournalDamage::Record(0)),
            }
        } else {
            let entry = text.split_once(' ').filter(|(sum, json)| checksum(json.as_bytes()) == *sum);
            match entry.and_then(|(_, json)| serde_json::from_str(json).ok()) {
                Some(entry) => entries.push(entry),
                None => return Err(JournalDamage::Record(number)),
            }
        }
        length += line.len();
    }
    Ok((id, entries, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<JournalEntry> {
        let path = PathText(b"/a b\n\xff".to_vec());
        vec![
            JournalEntry::ModeWidened { path: path.clone(), inode: (1, 2), from: 0, to: 0o700 },
            JournalEntry::Placing { path: path.clone(), inode: (u64::MAX, 3), cleared: false },
            JournalEntry::Done { path },
            JournalEntry::Placed,
        ]
    }

    fn written() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let file = create(directory.path()).unwrap().unwrap();
        (&file).write_all(head("0123").as_bytes()).unwrap();
        some().iter().for_each(|entry| append(&file, entry).unwrap());
        std::fs::read(directory.path().join(RESTORE_JOURNAL)).unwrap()
    }

    #[test]
    fn a_journal_that_is_cut_anywhere_has_the_records_before_the_cut() {
        let bytes = written();
        for cut in 0..=bytes.len() {
            let (_, entries, length) = parse(&bytes[..cut]).unwrap();
            let whole = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(entries, some()[..whole.saturating_sub(1)], "cut at {cut}");
            assert_eq!(length, bytes[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        }
    }

    #[test]
    fn a_journal_with_another_byte_is_damaged_where_that_is() {
        let bytes = written();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            let parsed = parse(&bytes);
            assert_eq!(parsed.is_err(), at < bytes.len() - 1, "{at}: {parsed:?}");
        }
    }

    #[test]
    fn a_journal_of_another_version_is_not_read() {
        assert_eq!(parse(b"agent-snapshot-restore 2 0123\nanything\n"), Err(JournalDamage::Version));
        assert_eq!(parse(b"anything at all\n"), Err(JournalDamage::Record(0)));
    }
}
