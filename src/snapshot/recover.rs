//! Makes a bundle of the journal that a killed recording has left.
//!
//! Before-states and their bytes come from the journal, after-states are those that are found now. What was
//! still being copied when the recorder died is named in a warning of its own. A recovery that is killed
//! itself can be repeated: the journal is removed when the bundle is committed. Prints nothing. Neighbours:
//! `journal.rs` has the frames, `layout.rs` the directory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{DirEntry, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blobs::{self, BlobWriter, Compression, Side, StoreLimit, Stored, blob_key};
use super::change::PathEffect;
use super::error::{Error, printable, printable_path};
use super::journal::{Begin, Frame, Reader, StoredContent};
use super::layout::{
    BLOBS, Commit, JOURNAL, MANIFEST, SnapshotDir, damaged_journals, is_gitignore, is_temporary,
};
use super::live;
use super::manifest::*;
use super::reader::Snapshot;
use super::reader::blob_reader::BlobReader;
use super::reader::checks::Wanted;
use super::sparse::SparseFile;
use super::stat::Stat;
use super::wire::write_manifest;
use crate::fs::{self, FileStat};
use crate::git;

/// The length of what a blobs.parquet starts with.
const BLOBS_START: u64 = b"PAR1".len() as u64;

/// What a shell shows of a process that SIGKILL ended.
const KILLED: i32 = 128 + libc::SIGKILL;

/// How many damaged places of a journal are named one by one.
const NAMED: usize = 20;

/// How many frames there may be up to the last that says who records.
const FIRST_FRAMES: usize = 5;

/// What was recovered.
#[derive(Debug)]
pub struct Recovered {
    /// Where the bundle is.
    pub path: PathBuf,
    /// How many records it has.
    pub records: usize,
    /// The paths whose bytes are lost, and why.
    pub missing: Vec<(Vec<u8>, &'static str)>,
    /// The directory where the journal is kept, if something in it could not be read.
    pub damaged_journal: Option<PathBuf>,
}

/// What became of an unfinished recording.
#[derive(Debug)]
pub enum Recovery {
    /// There is none.
    Nothing,
    /// It had changed nothing yet, or was committed before it was killed; what it left was removed.
    Unneeded,
    /// It is a bundle now.
    Done(Recovered),
}

/// Who records into the directory at `path`, or was recording when it was killed.
pub fn recorder(path: &Path) -> Option<Begin> {
    begin_of(journal_in(path)?)
}

/// Checks that the journal in the directory at `path`, if there is one, may be read.
///
/// # Errors
/// Its permissions, or a rule that is enforced, forbid to read it.
pub fn check_journal_access(path: &Path) -> io::Result<()> {
    match fs::open_regular(path.join(JOURNAL).as_os_str().as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// Whether there is nothing in the directory at `path` but what a recording makes before its journal says anything.
pub fn has_not_begun(path: &Path) -> bool {
    let is_left = |entry: io::Result<DirEntry>| {
        entry.is_ok_and(|entry| {
            let journal = || fs::open_regular(entry.path().as_os_str().as_bytes()).map(Reader::new);
            match entry.file_name().as_bytes() {
                name if name == JOURNAL.as_bytes() => matches!(journal(), Ok(Ok(None))),
                // More than the start of a blobs.parquet may be all that is left of a file.
                name if is_temporary(name) => entry.metadata().is_ok_and(|file| file.len() <= BLOBS_START),
                name => is_gitignore(name),
            }
        })
    };
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.all(is_left))
}

/// The journal in the directory at `path`, if there is one.
fn journal_in(path: &Path) -> Option<Reader> {
    // Whatever has this name: only a regular file is opened.
    let file = fs::open_regular(path.join(JOURNAL).as_os_str().as_bytes()).ok()?;
    Reader::new(file).ok()?
}

/// Whether the start of a manifest, which may be long, says that the snapshot was recovered.
fn says_recovered(path: &Path) -> bool {
    let mut start = Vec::new();
    let file = fs::open_regular(path.join(MANIFEST).as_os_str().as_bytes());
    let is_read = file.is_ok_and(|file| file.take(64 << 10).read_to_end(&mut start).is_ok());
    is_read && String::from_utf8_lossy(&start).replace(' ', "").contains("\"recovered\":true")
}

/// Moves a snapshot that was recovered in `directory` out of the way of a new recording, and returns where it is.
pub fn set_aside(directory: &SnapshotDir) -> Result<Option<PathBuf>, Error> {
    let path = directory.real_path();
    if !says_recovered(path) || !Snapshot::open(path).is_ok_and(|snapshot| snapshot.header().recovered) {
        return Ok(None);
    }
    let (aside, ()) = first_beside(path, |path| (!path.exists()).then_some(()));
    SnapshotDir::create(&aside)?;
    // One of the two is whole at each moment.
    for name in [BLOBS, MANIFEST] {
        match std::fs::hard_link(path.join(name), aside.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            linked => linked.map_err(Error::io("keep the recovered snapshot of", path))?,
        }
    }
    for damaged in damaged_journals(path) {
        let there = aside.join(damaged.file_name().unwrap_or_default());
        std::fs::rename(&damaged, there).map_err(Error::io("keep the damaged journal of", path))?;
    }
    for name in [MANIFEST, BLOBS] {
        match std::fs::remove_file(path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(Error::io("move the recovered snapshot of", path))?,
        }
    }
    Ok(Some(aside))
}

/// What is known of the recording that has a journal in the directory at `path`.
pub fn header_of(path: &Path) -> Option<Header> {
    journal_in(path)?.take(FIRST_FRAMES).find_map(|frame| match frame.ok()? {
        Frame::Header(header) => Some(*header),
        _ => None,
    })
}

/// Makes `directory` again with copies of what was in it, if the command has removed the journal of its recording.
pub fn put_back(directory: SnapshotDir, journal: &File, blobs: &File) -> Result<SnapshotDir, Error> {
    let is_there = directory.open_journal().is_ok_and(|journal| journal.is_some());
    match fs::reopen(journal).ok().and_then(|journal| begin_of(Reader::new(journal).ok()??)) {
        Some(begin) if !is_there => directory.put_back(journal, (&begin.blobs, blobs)),
        _ => Ok(directory),
    }
}

fn begin_of(reader: Reader) -> Option<Begin> {
    reader.take(FIRST_FRAMES).find_map(|frame| match frame.ok()? {
        Frame::Begin(begin) => Some(begin),
        _ => None,
    })
}

/// Recovers the unfinished recording in `directory`, into the directory itself or, if that holds an older
/// snapshot, beside it. `held` are files by which the recorder alone held bytes, by inode.
pub fn recover(directory: SnapshotDir, held: HashMap<u32, File>) -> Result<Recovery, Error> {
    if directory.is_committed() {
        return recover_beside(&directory, held);
    }
    let Some(journal) = journal_of(&directory)? else { return Ok(Recovery::Nothing) };
    let Some(journaled) = journal else { return discard(&directory) };
    let is_damaged = journaled.is_damaged();
    let bundle = Builder::new(journaled, &directory, &directory, held)?.build()?;
    let RecoveredBundle { blobs, manifest, records, missing } = bundle;
    let directory = directory.commit(blobs, manifest, Commit::Recovered, false)?;
    let damaged_journal = end(&directory, is_damaged)?;
    let path = directory.real_path().to_owned();
    Ok(Recovery::Done(Recovered { path, records, missing, damaged_journal }))
}

/// Removes the journal of what was recovered; a damaged one is kept, in the directory that is returned.
fn end(directory: &SnapshotDir, is_damaged: bool) -> Result<Option<PathBuf>, Error> {
    let ended = match is_damaged {
        true => directory.keep_damaged().map(Some),
        false => directory.discard_unfinished().map(|()| None),
    };
    ended.map_err(Error::io("remove the journal in", directory.real_path()))
}

/// Recovers the unfinished recording in `directory` into `DIRECTORY-recovered-N`, if it has changed anything.
pub fn recover_beside(directory: &SnapshotDir, held: HashMap<u32, File>) -> Result<Recovery, Error> {
    let Some(journal) = journal_of(directory)? else { return Ok(Recovery::Nothing) };
    let Some(journaled) = journal.filter(|journaled| !journaled.files.is_empty() || journaled.is_damaged())
    else {
        return discard(directory);
    };
    let is_damaged = journaled.is_damaged();
    let found_at = |path: &Path| {
        // The first snapshot of a recording that went on is not all of it.
        Snapshot::open(path).ok().filter(|snapshot| {
            let header = snapshot.header();
            header.id == journaled.header.id && !header.running
        })
    };
    if let Some(snapshot) = found_at(directory.real_path()) {
        return end_recovered(directory, &snapshot, is_damaged);
    }
    let target = first_beside(directory.real_path(), |path| {
        if !path.exists() {
            return Some(None);
        }
        // A recovery was killed between its commit and the end.
        found_at(path).map(Some)
    });
    let target = match target {
        (_, Some(snapshot)) => return end_recovered(directory, &snapshot, is_damaged),
        (path, None) => SnapshotDir::create(&path)?,
    };
    let made = target.made().clone();
    let bundle = Builder::new(journaled, directory, &target, held).and_then(Builder::build);
    let committed = bundle.and_then(|RecoveredBundle { blobs, manifest, records, missing }| {
        let committed = target.commit(blobs, manifest, Commit::Only, false)?;
        committed.unlock();
        let path = committed.real_path().to_owned();
        Ok(Recovered { path, records, missing, damaged_journal: None })
    });
    match committed {
        Ok(recovered) => {
            let damaged_journal = end(directory, is_damaged)?;
            Ok(Recovery::Done(Recovered { damaged_journal, ..recovered }))
        }
        Err(error) => {
            made.remove();
            Err(error)
        }
    }
}

/// Ends a recovery that was killed after its snapshot had been committed.
fn end_recovered(directory: &SnapshotDir, snapshot: &Snapshot, is_damaged: bool) -> Result<Recovery, Error> {
    // If the recorder itself has committed it, the journal has nothing more.
    let is_damaged = is_damaged && snapshot.header().recovered;
    let damaged_journal = end(directory, is_damaged)?;
    Ok(match damaged_journal {
        None => Recovery::Unneeded,
        Some(_) => Recovery::Done(Recovered {
            path: snapshot.path().to_owned(),
            records: snapshot.files().len(),
            missing: Vec::new(),
            damaged_journal,
        }),
    })
}

/// The first of `PATH-recovered-1` and so on that `accept` takes, and what it says.
fn first_beside<T>(path: &Path, accept: impl Fn(&Path) -> Option<T>) -> (PathBuf, T) {
    let mut number = 1_u64;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-recovered-{number}"));
        let candidate = PathBuf::from(name);
        if let Some(accepted) = accept(&candidate) {
            return (candidate, accepted);
        }
        number += 1;
    }
}

fn discard(directory: &SnapshotDir) -> Result<Recovery, Error> {
    directory.discard_unfinished().map_err(Error::io("remove the journal in", directory.real_path()))?;
    Ok(Recovery::Unneeded)
}

/// The journal in a directory; the inner none where it was cut before anything could be changed.
fn journal_of(directory: &SnapshotDir) -> Result<Option<Option<Journaled>>, Error> {
    let at = |message: String| Error::Format(format!("{}: {message}", printable_path(directory.real_path())));
    let failed = || Error::io("read the journal in", directory.real_path());
    let Some(file) = directory.open_journal().map_err(failed())? else { return Ok(None) };
    let metadata = file.metadata().map_err(failed())?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        let user = metadata.uid();
        return Err(Error::Refused(format!(
            "the journal in {} is user {user}'s",
            printable_path(directory.real_path())
        )));
    }
    let reader = match Reader::new(file.try_clone().map_err(failed())?) {
        Ok(Some(reader)) => reader,
        Ok(None) => return Ok(Some(None)),
        Err(Error::Format(message)) => return Err(at(message)),
        Err(error) => return Err(error),
    };
    Journaled::read(reader, file).map(Some).map_err(failed())
}

/// Where the journal says that the bytes of an inode are.
#[derive(Debug)]
enum Place {
    Journal(Range<u64>),
    Copy(String),
    Descriptor,
    Nowhere(BlobOmitted),
}

/// All that a journal says.
struct Journaled {
    file: File,
    begin: Begin,
    header: Header,
    processes: BTreeMap<u32, RecordedProcess>,
    /// Each path with the number of the inode that it stood for.
    files: BTreeMap<Vec<u8>, (Option<u32>, FileRecord)>,
    moves: Vec<(Vec<u8>, Vec<u8>)>,
    places: HashMap<u32, Place>,
    stored: HashMap<u32, StoredContent>,
    /// The footers of the row groups that are on file.
    footers: Vec<Vec<u8>>,
    /// How many contents these complete.
    complete: u64,
    /// What could not be read.
    damaged: Vec<Range<u64>>,
}

impl Journaled {
    /// Reads a journal; none where it was cut before anything could be changed.
    fn read(reader: Reader, file: File) -> io::Result<Option<Journaled>> {
        let (mut begin, mut header, mut damaged) = (None, None, Vec::new());
        let mut journaled = None::<Journaled>;
        for frame in reader {
            match (frame?, &mut journaled) {
                (frame, Some(journaled)) => journaled.add(frame)?,
                (Frame::Begin(found), None) => begin = Some(found),
                (Frame::Header(found), None) => header = Some(found),
                (Frame::Damaged(range), None) => damaged.push(range),
                // Of a recording whose beginning can't be read.
                (_, None) => {}
            }
            if let (None, Some(begin), Some(header)) = (&journaled, &begin, &header) {
                journaled = Some(Journaled {
                    file: file.try_clone()?,
                    begin: begin.clone(),
                    header: (**header).clone(),
                    processes: BTreeMap::new(),
                    files: BTreeMap::new(),
                    moves: Vec::new(),
                    places: HashMap::new(),
                    stored: HashMap::new(),
                    footers: Vec::new(),
                    complete: 0,
                    damaged: std::mem::take(&mut damaged),
                });
            }
        }
        if journaled.is_none() && !damaged.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is damaged where it says what records",
            ));
        }
        Ok(journaled)
    }

    /// Whether something in it could not be read.
    fn is_damaged(&self) -> bool {
        !self.damaged.is_empty()
    }

    fn add(&mut self, frame: Frame) -> io::Result<()> {
        match frame {
            Frame::Begin(_) | Frame::Header(_) => {}
            Frame::Damaged(range) => match self.damaged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => self.damaged.push(range),
            },
            Frame::Process(process) => drop(self.processes.insert(process.id, *process)),
            Frame::Ended(id, status) => {
                if let Some(process) = self.processes.get_mut(&id) {
                    process.exit_status = Some(status);
                }
            }
            Frame::File(inode, record) => {
                self.files.entry(record.path.clone()).or_insert((inode, *record));
            }
            Frame::Moved(from, to) => self.moves.push((from, to)),
            Frame::Content(inode, bytes) => drop(self.places.insert(inode, Place::Journal(bytes))),
            Frame::Copy(inode, name) => self.place(inode, Place::Copy(name)),
            Frame::Held(inode) => self.place(inode, Place::Descriptor),
            Frame::Omitted(inode, reason) => self.place(inode, Place::Nowhere(reason)),
            Frame::Stored(stored) => drop(self.stored.insert(stored.inode, stored)),
            Frame::Group(stored, footer) => {
                self.complete = self.complete.max(stored);
                if !footer.is_empty() {
                    self.footers.push(read_range(&self.file, &footer)?);
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, inode: u32, place: Place) {
        // A call that failed may have been the first to hold them.
        if !matches!(self.places.get(&inode), Some(Place::Journal(_))) {
            self.places.insert(inode, place);
        }
    }
}

fn read_range(file: &File, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

/// The two files of a bundle that is not committed yet.
struct RecoveredBundle {
    blobs: Option<File>,
    manifest: File,
    records: usize,
    missing: Vec<(Vec<u8>, &'static str)>,
}

/// What is known of a content.
#[derive(Debug, Clone, Default)]
struct RecoveredContent {
    digest: Option<Digest>,
    blob: Option<Arc<str>>,
    omitted: Option<BlobOmitted>,
}

impl RecoveredContent {
    fn put(self, present: &mut Present) {
        present.digest = self.digest;
        present.blob = self.blob.as_deref().map(str::to_owned);
        present.blob_omitted = self.omitted;
    }

    fn omitted(reason: BlobOmitted) -> RecoveredContent {
        RecoveredContent { omitted: Some(reason), ..RecoveredContent::default() }
    }
}

/// Makes the bundle.
struct Builder<'a> {
    journaled: Journaled,
    /// Where the journal is.
    directory: &'a SnapshotDir,
    /// Where the bundle goes.
    target: &'a SnapshotDir,
    held: HashMap<u32, File>,
    writer: BlobWriter,
    /// The rows that the recorder has written.
    rows: Option<BlobReader>,
    /// What is at each path now.
    found: HashMap<Vec<u8>, FileStat>,
    /// A path of each regular file that was found.
    paths: HashMap<(u64, u64), Vec<u8>>,
    /// The contents before, by inode.
    contents: HashMap<u32, RecoveredContent>,
    warnings: Vec<Warning>,
    missing: Vec<(Vec<u8>, &'static str)>,
}

impl<'a> Builder<'a> {
    fn new(
        mut journaled: Journaled,
        directory: &'a SnapshotDir,
        target: &'a SnapshotDir,
        held: HashMap<u32, File>,
    ) -> Result<Builder<'a>, Error> {
        let rows = rows(&mut journaled, directory)?;
        let failed = || Error::io("write blobs in", target.real_path());
        let writer = target.unnamed_file().and_then(|file| BlobWriter::new(file, Compression::Snappy));
        let mut found = HashMap::new();
        let mut paths = HashMap::new();
        for path in journaled.files.keys() {
            let Ok(Some(stat)) = fs::lstat(path) else { continue };
            if Stat::from(&stat).is_regular() {
                paths.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| path.clone());
            }
            found.insert(path.clone(), stat);
        }
        Ok(Builder {
            journaled,
            directory,
            target,
            held,
            writer: writer.map_err(failed())?,
            rows,
            found,
            paths,
            contents: HashMap::new(),
            warnings: Vec::new(),
            missing: Vec::new(),
        })
    }

    fn build(mut self) -> Result<RecoveredBundle, Error> {
        let files = std::mem::take(&mut self.journaled.files);
        let metadata_changed: HashSet<u32> = files
            .values()
            .filter(|(_, record)| record.operations.contains(Operation::Metadata))
            .filter_map(|(inode, _)| *inode)
            .collect();
        let is_made = |record: &FileRecord| record.is_git_state && record.before.present().is_none();
        let made = files.iter().filter(|(_, (_, record))| is_made(record));
        let made: HashSet<Vec<u8>> = made.map(|(path, _)| path.clone()).collect();
        let is_damaged = self.journaled.is_damaged();
        let mut records = Vec::with_capacity(files.len());
        for (path, (inode, mut record)) in files {
            if let Some(inode) = inode {
                self.before(&path, inode, &mut record, metadata_changed.contains(&inode))?;
            }
            record.after = self.after(&path, &record)?;
            complete_operations(&mut record);
            let is_left_out = record.is_git_state
                && (!PathEffect::of(&record).lasts()
                    || !is_damaged && git::is_left_alone(&path, |path| !made.contains(path)));
            if !is_left_out {
                records.push(record);
            }
        }
        self.connect_records(&mut records);
        self.leave_out_misfits(&mut records);
        let Builder { journaled, target, writer, mut warnings, missing, .. } = self;
        let failed = |what: &str| Error::io(what, target.real_path());
        let blobs = writer.finish().map_err(failed("write blobs in"))?;
        warnings.insert(
            0,
            lost(
                WarningKind::ExternalChange,
                "the recorder was killed: the states after are those that were found at the recovery, and of \
                 what was only read, and of the network, nothing is recorded",
            ),
        );
        warnings.extend(journaled.damaged.iter().take(NAMED).map(|Range { start, end }| {
            let detail =
                format!("the bytes {start} to {end} of the journal are damaged: what they said is lost");
            lost(WarningKind::ExternalChange, &detail)
        }));
        if let Some(more) = journaled.damaged.len().checked_sub(NAMED).filter(|more| *more > 0) {
            let detail = "other bytes of the journal are damaged: what they said is lost";
            warnings.push(Warning { count: more as u64, ..lost(WarningKind::ExternalChange, detail) });
        }
        let header = header(journaled, &records, warnings);
        let manifest = target.unnamed_file().map_err(failed("write the manifest in"))?;
        let mut out = BufWriter::new(&manifest);
        write_manifest(&mut out, &header, &records)
            .and_then(|()| out.flush())
            .map_err(failed("write the manifest in"))?;
        drop(out);
        Ok(RecoveredBundle { blobs, manifest, records: records.len(), missing })
    }

    /// Adds the content of a before-state.
    fn before(
        &mut self,
        path: &[u8],
        inode: u32,
        record: &mut FileRecord,
        metadata_changed: bool,
    ) -> Result<(), Error> {
        let State::Present(present) = &mut record.before else { return Ok(()) };
        if present.file_type != FileType::File {
            return Ok(());
        }
        if let Some(content) = self.contents.get(&inode) {
            content.clone().put(present);
            return Ok(());
        }
        let key = blob_key(Side::Before, path);
        let threatened = self.journaled.places.contains_key(&inode);
        // A damaged journal may have had the bytes of an inode that it does not mention.
        let is_known = !self.journaled.is_damaged()
            || threatened
            || self.journaled.stored.contains_key(&inode)
            || self.is_untouched(path);
        let found = match is_known {
            true => self.content_of(inode, &key, present, metadata_changed)?,
            false => None,
        };
        let content = match found {
            Some(content)
                if content.omitted == Some(BlobOmitted::NoSpace) && !self.is_in_place(path, present) =>
            {
                self.lose(path, "found no space when the command destroyed them");
                content
            }
            Some(content) => content,
            // It is as it was, or Git has its bytes.
            None if is_known && self.is_in_place(path, present) || has_blob_in_git(&record.git) => {
                return Ok(());
            }
            // It was appended to, through a descriptor from before the launch.
            None if is_known && record.inherited && !threatened => return Ok(()),
            None => {
                self.lose(
                    path,
                    if threatened {
                        "were still being copied when the recorder was killed"
                    } else {
                        "are not where the recorder knew them to be"
                    },
                );
                RecoveredContent::omitted(BlobOmitted::Unreadable)
            }
        };
        self.contents.insert(inode, content.clone());
        content.put(present);
        Ok(())
    }

    /// Notes that the bytes of a path are lost.
    fn lose(&mut self, path: &[u8], why: &'static str) {
        self.missing.push((path.to_vec(), why));
        self.lost(path, why);
    }

    /// Whether the file at a path is as it was before the recording, by its time of change, which nobody can set.
    fn is_untouched(&self, path: &[u8]) -> bool {
        let Ok(started) = self.journaled.header.started_at.parse::<jiff::Timestamp>() else { return false };
        self.found.get(path).is_some_and(|found| {
            let changed =
                jiff::Timestamp::new(found.st_ctime, i32::try_from(found.st_ctime_nsec).unwrap_or(0));
            changed.is_ok_and(|changed| changed < started)
        })
    }

    /// Whether nothing has happened to a path.
    fn is_in_place(&self, path: &[u8], before: &Present) -> bool {
        self.found.get(path).is_some_and(|found| {
            let now = Present::of(before.file_type, &Stat::from(found));
            let facts =
                |at: &Present| (at.dev, at.ino, at.mode, at.size, at.mtime, at.mtime_nsec, at.uid, at.gid);
            facts(&now) == facts(before)
        })
    }

    /// The bytes of an inode before, wherever they are; none if they are nowhere or not needed.
    fn content_of(
        &mut self,
        inode: u32,
        key: &str,
        present: &Present,
        metadata_changed: bool,
    ) -> Result<Option<RecoveredContent>, Error> {
        let place = self.journaled.places.remove(&inode);
        if let Some(Place::Journal(range)) = &place {
            let bytes = read_range(&self.journaled.file, range)
                .map_err(Error::io("read the journal in", self.directory.real_path()))?;
            let stored = self.writer.store_bytes(key, &bytes);
            return self.content(stored, present.size).map(Some);
        }
        if let Some(stored) = self.journaled.stored.remove(&inode)
            && let Some(content) = self.stored_content(key, &stored)?
        {
            return Ok(Some(content));
        }
        let file = match &place {
            Some(Place::Copy(name)) => self.directory.open_temporary(name).ok(),
            Some(Place::Descriptor) => self.held.remove(&inode),
            Some(Place::Nowhere(reason)) => return Ok(Some(RecoveredContent::omitted(*reason))),
            Some(Place::Journal(_)) | None => None,
        };
        if let Some(file) = file {
            let stored = self.writer.store_file(key, &file, StoreLimit::NONE);
            return self.content(stored, present.size).map(Some);
        }
        // Its bytes are where they were as long as nothing has destroyed them.
        let Some(path) = self.paths.get(&present.identity()) else { return Ok(None) };
        let Some(now) = self.found.get(path).map(Stat::from) else { return Ok(None) };
        let same_time = now.modified() == (present.mtime, present.mtime_nsec);
        if now.size != present.size || !(same_time || metadata_changed && place.is_none()) {
            return Ok(None);
        }
        let path = path.clone();
        if self.is_in_place(&path, present) && place.is_none() && blob_key(Side::Before, &path) == key {
            return Ok(None);
        }
        let stored = open_same(&path, &now).and_then(|file| {
            self.writer.store_file(key, &file, StoreLimit(self.journaled.begin.max_blob_bytes))
        });
        self.content(stored, present.size).map(Some)
    }

    /// What storing has come to.
    fn content(&self, stored: Result<Stored, Error>, size: u64) -> Result<RecoveredContent, Error> {
        match stored {
            Ok(stored) if stored.size != size => {
                Ok(RecoveredContent::omitted(BlobOmitted::ChangedWhileReading))
            }
            Ok(Stored { digest, blob, .. }) => {
                let omitted = blob.is_none().then_some(BlobOmitted::TooLarge);
                Ok(RecoveredContent { digest: Some(digest), blob, omitted })
            }
            Err(Error::Changed) => Ok(RecoveredContent::omitted(BlobOmitted::ChangedWhileReading)),
            // There is no room: the journal stays, and a later recovery may find some.
            Err(Error::Write(error)) => Err(Error::io("write blobs in", self.target.real_path())(error)),
            Err(_) => Ok(RecoveredContent::omitted(BlobOmitted::Unreadable)),
        }
    }

    /// A content that the recorder has stored itself; none if its rows are not complete.
    fn stored_content(
        &mut self,
        key: &str,
        stored: &StoredContent,
    ) -> Result<Option<RecoveredContent>, Error> {
        let Ok(digest) = stored.digest.parse::<Digest>() else { return Ok(None) };
        let Some(old_key) = &stored.key else {
            let omitted = Some(BlobOmitted::TooLarge);
            return Ok(Some(RecoveredContent { digest: Some(digest), blob: None, omitted }));
        };
        let Some(rows) = self.rows.as_ref().filter(|_| stored.number <= self.journaled.complete) else {
            return Ok(None);
        };
        if let Some(blob) = self.writer.key_of(&digest) {
            return Ok(Some(RecoveredContent { digest: Some(digest), blob: Some(blob), omitted: None }));
        }
        let failed = || Error::io("write blobs in", self.target.real_path());
        let copy = self.target.unnamed_file().map_err(failed())?;
        let mut sink = SparseFile::at_end_of(&copy).map_err(failed())?;
        match rows.read(old_key, Some(&digest), &mut sink) {
            Ok(_) => {}
            Err(Error::Sink(error)) => return Err(failed()(error)),
            Err(_) => return Ok(None),
        }
        let again = self.writer.store_file(key, &copy, StoreLimit::NONE);
        self.content(again, stored.size).map(Some)
    }

    /// What is at a path now.
    fn after(&mut self, path: &[u8], record: &FileRecord) -> Result<State, Error> {
        let existed = record.before.present().is_some();
        let absent = State::Absent { tombstone: existed };
        let Some(stat) = self.found.get(path) else { return Ok(absent) };
        let now = Stat::from(stat);
        let Ok(mut present) = live::present(stat, path) else { return Ok(absent) };
        match live::xattrs(path) {
            Ok(xattrs) => present.xattrs = xattrs,
            Err(error) => {
                present.xattrs = error.readable;
                self.lost(path, "have extended attributes that could not be read");
            }
        }
        present.inode_flags = live::inode_flags(path).unwrap_or_default();
        if present.file_type != FileType::File || live::is_pseudo_filesystem(path).unwrap_or(false) {
            return Ok(State::Present(Box::new(present)));
        }
        let before = record.before.present();
        if before.is_some_and(|before| before.blob.is_none() && self.is_in_place(path, before)) {
            return Ok(State::Present(Box::new(present)));
        }
        let key = blob_key(Side::After, path);
        let limit = StoreLimit(self.journaled.begin.max_blob_bytes);
        let stored = open_same(path, &now).and_then(|file| self.writer.store_file(&key, &file, limit));
        let content = self.content(stored, present.size)?;
        if let Some(reason) = content.omitted {
            self.lost(path, &format!("are not stored ({})", reason.name()));
        }
        content.put(&mut present);
        Ok(State::Present(Box::new(present)))
    }

    /// Connects the records of renames that have taken place.
    fn connect_records(&self, records: &mut [FileRecord]) {
        for (from, to) in &self.journaled.moves {
            let [old, new] = [from, to].map(|path| FileRecord::find(records, path));
            let (Some(old), Some(new)) = (old, new) else { continue };
            let before = records[old].before.present().map(Present::identity);
            if before.is_some() && before == records[new].after.present().map(Present::identity) {
                records[old].renamed_to = Some(to.clone());
                records[new].renamed_from = Some(from.clone());
            }
        }
    }

    /// Leaves out what can't be true beside other records, a path beneath one that is no directory, and symlinks
    /// whose target nobody can read any more.
    fn leave_out_misfits(&mut self, records: &mut Vec<FileRecord>) {
        for state in [|record: &FileRecord| record.before.clone(), |record: &FileRecord| record.after.clone()]
        {
            let others: HashSet<Vec<u8>> = records
                .iter()
                .filter(|record| {
                    state(record).present().is_some_and(|at| at.file_type != FileType::Directory)
                })
                .map(|record| record.path.clone())
                .collect();
            records.retain(|record| {
                let path = Path::new(std::ffi::OsStr::from_bytes(&record.path));
                let fits = state(record).present().is_none_or(|at| {
                    (at.file_type != FileType::Symlink || at.target.is_some())
                        && !path
                            .ancestors()
                            .skip(1)
                            .any(|above| others.contains(above.as_os_str().as_bytes()))
                });
                if !fits {
                    let path = printable(&record.path);
                    self.warnings.push(lost(
                        WarningKind::ExternalChange,
                        &format!("{path} was changed from outside, and is left out"),
                    ));
                }
                fits
            });
        }
    }

    fn lost(&mut self, path: &[u8], what: &str) {
        let detail = format!("the bytes of {} {what}", printable(path));
        self.warnings.push(lost(WarningKind::ContentOmitted, &detail));
    }
}

fn lost(kind: WarningKind, detail: &str) -> Warning {
    Warning { kind, lost: true, count: 1, detail: detail.to_owned(), processes: Vec::new() }
}

/// The rows of all contents that are complete on file; none where there are none, or they can't be read.
fn rows(journaled: &mut Journaled, directory: &SnapshotDir) -> Result<Option<BlobReader>, Error> {
    let Ok(mut file) = directory.open_temporary(&journaled.begin.blobs) else { return Ok(None) };
    let is_damaged = journaled.is_damaged();
    if is_damaged {
        // Groups may follow whose footers could not be read: they are kept as they are.
        let copied = || -> io::Result<File> {
            let copy = directory.unnamed_file()?;
            live::copy_keeping_holes(&file, &copy, file.metadata()?.len())?;
            Ok(copy)
        };
        file = copied().map_err(Error::io("copy the stored contents in", directory.real_path()))?;
    }
    if blobs::complete(&file, &journaled.footers).is_err() {
        return Ok(None);
    }
    let complete = |stored: &&StoredContent| stored.number <= journaled.complete;
    let mut wanted: HashMap<Box<str>, Wanted> = HashMap::new();
    for StoredContent { key, digest, size, .. } in journaled.stored.values().filter(complete) {
        let (Some(key), Ok(digest)) = (key, digest.parse()) else { continue };
        let sparse = matches!(digest, Digest::Sparse(_));
        wanted.insert(key.as_str().into(), Wanted { size: *size, sparse });
    }
    Ok(match wanted.is_empty() {
        true => None,
        false if is_damaged => BlobReader::open_what_is_whole(file, wanted).ok(),
        false => BlobReader::open(file, wanted).ok(),
    })
}

fn has_blob_in_git(git: &Option<GitStatus>) -> bool {
    git.as_ref().is_some_and(|git| git.oid.is_some())
}

/// Opens the file that was found at a path.
fn open_same(path: &[u8], found: &Stat) -> Result<File, Error> {
    let file = fs::open_regular(path).map_err(Error::Read)?;
    let metadata = file.metadata().map_err(Error::Read)?;
    if (metadata.dev(), metadata.ino()) == found.identity() { Ok(file) } else { Err(Error::Changed) }
}

/// Adds what the states tell to the operations that were about to be made when the path was first changed.
fn complete_operations(record: &mut FileRecord) {
    let more = match (record.before.present(), record.after.present()) {
        (None, None) => return,
        (Some(_), None) => Operation::Delete.into(),
        (None, Some(_)) => Operation::Write.into(),
        (Some(before), Some(after)) => {
            let bytes = |at: &Present| (at.digest, at.size, at.target.clone(), at.file_type);
            let metadata =
                |at: &Present| (at.mode, at.uid, at.gid, at.xattrs.clone(), at.inode_flags.clone());
            let mut more = Operations::NONE;
            if bytes(before) != bytes(after) {
                more = more.with(Operation::Write);
            }
            if metadata(before) != metadata(after) {
                more = more.with(Operation::Metadata);
            }
            more
        }
    };
    record.operations = record.operations.union(more);
}

/// The header of a recovered snapshot.
fn header(journaled: Journaled, records: &[FileRecord], warnings: Vec<Warning>) -> Header {
    let mut processes: Vec<RecordedProcess> = journaled.processes.into_values().collect();
    for index in 0..processes.len() {
        // A process that has executed nothing has the image of its parent, which is before it.
        if processes[index].image.exe.is_empty()
            && let Some(parent) = processes[index].parent
            && let Ok(at) = processes[..index].binary_search_by_key(&parent, |process| process.id)
        {
            processes[index].image = Arc::clone(&processes[at].image);
        }
    }
    // Of a damaged journal, the first may be another one.
    let root = processes.first().filter(|process| process.parent.is_none());
    let root = root.and_then(|process| process.exit_status);
    let mut repositories: BTreeMap<Vec<u8>, GitRepository> = BTreeMap::new();
    for git in records.iter().filter_map(|record| record.git.as_ref()) {
        let repository = repositories.entry(git.root.clone()).or_insert_with(|| GitRepository {
            branch: None,
            branch_after: None,
            root: git.root.clone(),
            head: git.head.clone(),
            dirty: false,
            head_after: None,
        });
        repository.dirty |= git.dirty;
    }
    // The last that is known of it.
    let written = journaled.file.metadata().and_then(|metadata| metadata.modified()).ok();
    let finished = written.and_then(|time| jiff::Timestamp::try_from(time).ok());
    Header {
        // The kernel kills what its tracer leaves.
        exit_status: root.unwrap_or(KILLED),
        exit_signal: root.is_none().then(|| "SIGKILL".to_owned()),
        finished_at: finished.map_or(journaled.header.started_at.clone(), |time| time.to_string()),
        recovered: true,
        // The journal has changes alone.
        keep: match journaled.header.keep {
            Keep::All | Keep::Changes => Keep::Changes,
            Keep::Undo => Keep::Undo,
        },
        complete: false,
        warnings,
        git_repositories: repositories.into_values().collect(),
        processes,
        ..journaled.header
    }
}
