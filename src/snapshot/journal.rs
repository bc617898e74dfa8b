//! The journal of a recording: what the command is about to change, on file before it does.
//!
//! Everything that the recorder has learned and not yet committed would be gone with its process. So the
//! before-state of each path that a call may change is appended to one file before that call continues, with
//! the bytes of small files; of larger ones the journal says where they are. The kernel keeps what was
//! written, whatever becomes of the writer. A frame is a head, a kind and a payload, and a byte that ends it. A frame
//! that a kill has cut is left out, so that a journal that is cut anywhere is that of a shorter recording. One that was
//! written whole and can't be read is damaged: what follows it is read all the same.
//! Knows frames and the wire, nothing of tracing. Neighbours: `observe/journal.rs` and `blobs.rs` write,
//! `recover.rs` reads, `layout.rs` has the file's name.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;

use rustix::fs::{FallocateFlags, fallocate};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::digest::read_at;
use super::error::Error;
use super::manifest::{BlobOmitted, FileRecord, Header, Manifest, RecordedProcess};
use super::reader::json;
use super::wire::write_manifest;
use crate::sync::lock;

/// The first bytes of every journal, up to its version.
const MAGIC: &str = "agent-snapshot journal ";
/// The version of the frames.
const VERSION: &str = "2";
/// The longest frame: a content of 1 MiB and a record with all its attributes are far shorter.
const LONGEST: u32 = 64 << 20;
/// The length of the body, its checksum, and the checksum of both and of the place in the file: bytes of another journal
/// in a content are no frames.
const FRAME_HEAD: usize = 12;
/// How much is read at first, and at most, in the search for a frame.
const LEAST_WINDOW: usize = 4 << 10;
const MOST_WINDOW: usize = 1 << 20;
/// How many bytes there are between the two beginnings of a journal: more than a page of most filesystems.
const FILLER: usize = 4096;
/// After this many damaged places, all that follows counts as one.
const MOST_DAMAGED: usize = 10_000;
/// The last byte of a frame, which a write that was cut has not reached.
const END: u8 = 0xA5;
/// The least and the most space that is allocated at once, in a journal that is longer than the least: a write that does
/// not extend the file costs a fifth less on ext4, but the blocks of a short one would cost more than all its writes.
const LEAST_ALLOCATION: u64 = 64 << 10;
const MOST_ALLOCATION: u64 = 1 << 20;

/// What the journal's first frame says of the recorder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The id of the snapshot that it is to become.
    pub id: String,
    /// The process that records.
    pub recorder: ProcessMark,
    /// The process that its user waits for.
    pub front: ProcessMark,
    /// The name of the unfinished `blobs.parquet`, in the same directory.
    pub blobs: String,
    /// Bytes that the command destroyed or wrote are stored up to this size.
    pub max_blob_bytes: Option<u64>,
}

/// Identifies a process for as long as the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMark {
    /// Its process id.
    pub pid: u32,
    /// When it was started, in ticks since the boot: ids are used again.
    pub start: u64,
}

impl ProcessMark {
    /// The process that has the id now.
    pub fn of(pid: u32) -> ProcessMark {
        ProcessMark { pid, start: start_of(pid).unwrap_or(0) }
    }

    /// Whether it still lives.
    pub fn is_alive(self) -> bool {
        start_of(self.pid) == Some(self.start)
    }
}

/// When a process was started (proc_pid_stat(5)); none where it has ended.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may hold anything, closing parentheses included.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A content that the journal does not hold itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredContent {
    /// The inode whose bytes they are.
    pub inode: u32,
    /// How many contents were stored up to this one.
    pub number: u64,
    /// The key of its rows; none if it was too large to be stored.
    pub key: Option<String>,
    /// Its digest.
    pub digest: String,
    /// Its length.
    pub size: u64,
}

/// One entry of a journal. Inodes are numbered by the recorder: a number is never used twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Who records.
    Begin(Begin),
    /// What the manifest says apart from its lists, as far as it is known at the start.
    Header(Box<Header>),
    /// A process has started, or executes another program.
    Process(Box<RecordedProcess>),
    /// A process has ended: its number and its status.
    Ended(u32, i32),
    /// A path may be changed: its before-state, without content, and the inode that it stood for.
    File(Option<u32>, Box<FileRecord>),
    /// A rename may move what is at the first path to the second.
    Moved(Vec<u8>, Vec<u8>),
    /// The bytes of an inode: their place in the journal.
    Content(u32, Range<u64>),
    /// The bytes of an inode are in a file beside the journal.
    Copy(u32, String),
    /// The bytes of an inode are held by a descriptor of the recorder, and will be stored.
    Held(u32),
    /// The bytes of an inode are unavailable.
    Omitted(u32, BlobOmitted),
    /// The bytes of an inode are in rows that the next row groups complete.
    Stored(StoredContent),
    /// A row group was written, with a footer of its own, or none is due: the contents up to this number are
    /// complete.
    Group(u64, Range<u64>),
    /// Bytes that were a frame, or several, and can't be read.
    Damaged(Range<u64>),
}

/// The kinds of frames, as bytes.
mod kind {
    pub const BEGIN: u8 = 1;
    pub const HEADER: u8 = 2;
    pub const PROCESS: u8 = 3;
    pub const ENDED: u8 = 4;
    pub const FILE: u8 = 5;
    pub const MOVED: u8 = 6;
    pub const CONTENT: u8 = 7;
    pub const COPY: u8 = 8;
    pub const HELD: u8 = 9;
    pub const OMITTED: u8 = 10;
    pub const STORED: u8 = 11;
    pub const GROUP: u8 = 12;
    pub const GIT_FILE: u8 = 13;
    pub const FILLER: u8 = 14;
}

/// Frames that are not written yet.
#[derive(Debug, Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes they are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds who records.
    pub fn begin(&mut self, begin: &Begin) {
        self.json(kind::BEGIN, &[], begin);
    }

    /// Adds what the manifest says apart from its lists.
    pub fn header(&mut self, header: &Header) {
        let mut document = Cursor::new(Vec::new());
        let written = write_manifest(&mut document, header, std::iter::empty::<FileRecord>());
        // A vector takes everything.
        if written.is_ok() {
            self.frame(kind::HEADER, &[document.get_ref()]);
        }
    }

    /// Adds a process as it is now.
    pub fn process(&mut self, process: &RecordedProcess) {
        self.json(kind::PROCESS, &[], process);
    }

    /// Adds the end of a process.
    pub fn ended(&mut self, process: u32, status: i32) {
        self.frame(kind::ENDED, &[&process.to_le_bytes(), &status.to_le_bytes()]);
    }

    /// Adds a path that may be changed, and the inode that it stood for.
    pub fn file(&mut self, inode: Option<u32>, record: &FileRecord) {
        // No inode is numbered by the last number.
        let kind = if record.is_git_state { kind::GIT_FILE } else { kind::FILE };
        self.json(kind, &inode.unwrap_or(u32::MAX).to_le_bytes(), record);
    }

    /// Adds a rename that may be made.
    pub fn moved(&mut self, from: &[u8], to: &[u8]) {
        let length = u32::try_from(from.len()).unwrap_or(u32::MAX);
        self.frame(kind::MOVED, &[&length.to_le_bytes(), from, to]);
    }

    /// Adds the bytes of an inode.
    pub fn content(&mut self, inode: u32, bytes: &[u8]) {
        self.frame(kind::CONTENT, &[&inode.to_le_bytes(), bytes]);
    }

    /// Adds the name of the file that has the bytes of an inode.
    pub fn copy(&mut self, inode: u32, name: &str) {
        self.frame(kind::COPY, &[&inode.to_le_bytes(), name.as_bytes()]);
    }

    /// Adds that the bytes of an inode are held by a descriptor.
    pub fn held(&mut self, inode: u32) {
        self.frame(kind::HELD, &[&inode.to_le_bytes()]);
    }

    /// Adds why the bytes of an inode are unavailable.
    pub fn omitted(&mut self, inode: u32, reason: BlobOmitted) {
        self.json(kind::OMITTED, &inode.to_le_bytes(), &reason);
    }

    fn stored(&mut self, stored: &StoredContent) {
        self.json(kind::STORED, &[], stored);
    }

    fn group(&mut self, stored: u64, footer: &[u8]) {
        self.frame(kind::GROUP, &[&stored.to_le_bytes(), footer]);
    }

    fn json(&mut self, kind: u8, head: &[u8], value: &impl Serialize) {
        let start = self.begin_frame(kind);
        self.0.extend_from_slice(head);
        match serde_json::to_writer(&mut self.0, value) {
            Ok(()) => self.end_frame(start),
            // What is on the wire has no map with keys that are no strings, the one error there is.
            Err(_) => self.0.truncate(start),
        }
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]]) {
        let start = self.begin_frame(kind);
        parts.iter().for_each(|part| self.0.extend_from_slice(part));
        self.end_frame(start);
    }

    fn begin_frame(&mut self, kind: u8) -> usize {
        let start = self.0.len();
        // `seal` completes it.
        self.0.extend([0; FRAME_HEAD]);
        self.0.push(kind);
        start
    }

    fn end_frame(&mut self, start: usize) {
        let body = &self.0[start + FRAME_HEAD..];
        let Some(length) = u32::try_from(body.len()).ok().filter(|length| *length <= LONGEST) else {
            self.0.truncate(start);
            return;
        };
        let checksum = crc32fast::hash(body);
        self.0[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.0[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
        self.0.push(END);
    }
}

/// Completes the heads of frames that are written to `position`.
fn seal(frames: &mut [u8], position: u64) {
    let mut at = 0;
    while let Some(length) = frames.get(at..).and_then(le32) {
        let checksum = head_checksum(position + at as u64, &frames[at..at + 8]);
        frames[at + 8..at + FRAME_HEAD].copy_from_slice(&checksum.to_le_bytes());
        at += FRAME_HEAD + length as usize + 1;
    }
}

fn head_checksum(position: u64, length_and_checksum: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&position.to_le_bytes());
    hasher.update(length_and_checksum);
    hasher.finalize()
}

/// Takes duplicates of descriptors by which the recorder alone holds bytes, for as long as it does.
pub trait DescriptorHolder: Send + Sync {
    /// The bytes of an inode are held by `file` alone from now on.
    fn held(&self, inode: u32, file: BorrowedFd<'_>);
    /// They are stored, or nobody needs them any more.
    fn released(&self, inode: u32);
    /// Waits until the duplicates of what was released are closed.
    fn wait_for_releases(&self);
}

/// The journal of a recording that runs.
pub struct RecordingJournal {
    file: File,
    sync: bool,
    holder: Box<dyn DescriptorHolder>,
    state: Mutex<WrittenState>,
}

#[derive(Debug, Default)]
struct WrittenState {
    /// Where the last whole frame ends.
    length: u64,
    /// How long the file is: what follows the last frame is zeros, which are none.
    allocated: u64,
    /// Why it could not be written.
    failure: Option<(io::ErrorKind, String)>,
    /// How many contents were stored.
    stored: u64,
    /// Those of them that no row group completes yet: their number and inode.
    unfinished: Vec<(u64, u32)>,
    /// The names of the copies, by inode.
    copies: HashMap<u32, String>,
}

impl std::fmt::Debug for RecordingJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordingJournal").field("state", &self.state).finish_non_exhaustive()
    }
}

impl RecordingJournal {
    /// Starts a journal in `file`, which is empty. With `sync` each write reaches the disk before it returns.
    pub fn start(
        file: File,
        sync: bool,
        begin: &Begin,
        header: &Header,
        holder: Box<dyn DescriptorHolder>,
    ) -> io::Result<RecordingJournal> {
        let journal = RecordingJournal { file, sync, holder, state: Mutex::default() };
        let mut frames = Frames::default();
        // Twice, on different pages: what can't be read of one, the other has.
        frames.begin(begin);
        frames.header(header);
        frames.frame(kind::FILLER, &[&[0; FILLER]]);
        frames.begin(begin);
        frames.header(header);
        let mut bytes = format!("{MAGIC}{VERSION}\n").into_bytes();
        seal(&mut frames.0, bytes.len() as u64);
        bytes.append(&mut frames.0);
        journal.append(&mut lock(&journal.state), &bytes)?;
        Ok(journal)
    }

    /// Writes frames by one write(2), behind what is there.
    ///
    /// # Errors
    /// They, or earlier ones, could not be written. Nothing is written after that: no frame is missing before another.
    pub fn write(&self, frames: &mut Frames) -> io::Result<()> {
        self.write_locked(&mut lock(&self.state), frames)
    }

    fn write_locked(&self, state: &mut WrittenState, frames: &mut Frames) -> io::Result<()> {
        seal(&mut frames.0, state.length);
        self.append(state, &frames.0)
    }

    fn append(&self, state: &mut WrittenState, bytes: &[u8]) -> io::Result<()> {
        if let Some((kind, message)) = &state.failure {
            return Err(io::Error::new(*kind, message.clone()));
        }
        let end = state.length + bytes.len() as u64;
        if end > state.allocated && state.length > LEAST_ALLOCATION {
            let start = state.length.max(state.allocated);
            let length = (end - start) + state.length.clamp(LEAST_ALLOCATION, MOST_ALLOCATION);
            // Where this is impossible, each write extends the file.
            let _ = fallocate(&self.file, FallocateFlags::empty(), start, length);
            state.allocated = start + length;
        }
        let written = self.file.write_all_at(bytes, state.length);
        let written = written.and_then(|()| if self.sync { self.file.sync_data() } else { Ok(()) });
        match &written {
            Ok(()) => state.length = end,
            Err(error) => state.failure = Some((error.kind(), error.to_string())),
        }
        written
    }

    /// Notes that the bytes of an inode are held by `file` alone.
    pub fn hold(&self, inode: u32, file: BorrowedFd<'_>) {
        self.holder.held(inode, file);
    }

    /// Waits until no duplicate is open of a descriptor that was released.
    pub fn wait_for_releases(&self) {
        self.holder.wait_for_releases();
    }

    /// Notes the name of the file that has the bytes of an inode.
    pub fn note_copy(&self, inode: u32, name: String) {
        lock(&self.state).copies.insert(inode, name);
    }

    /// Notes that bytes of an inode were not destroyed, and returns the name of a copy that is not needed.
    pub fn release(&self, inode: u32) -> Option<String> {
        self.holder.released(inode);
        lock(&self.state).copies.remove(&inode)
    }

    /// Writes that the bytes of an inode are stored in rows that may not be written yet; `threatened` if
    /// nothing else may have them.
    pub fn stored(&self, inode: u32, key: Option<&str>, digest: String, size: u64, threatened: bool) {
        let mut state = lock(&self.state);
        state.stored += 1;
        let number = state.stored;
        if threatened {
            state.unfinished.push((number, inode));
        }
        let mut frames = Frames::default();
        frames.stored(&StoredContent { inode, number, key: key.map(str::to_owned), digest, size });
        // Whoever prepares the next call is told of the failure.
        let _ = self.write_locked(&mut state, &mut frames);
    }

    /// Whether each write reaches the disk before it returns.
    pub fn syncs(&self) -> bool {
        self.sync
    }

    /// How many contents were stored so far, and whether some of them are not complete on file.
    pub fn progress(&self) -> (u64, bool) {
        let state = lock(&self.state);
        (state.stored, !state.unfinished.is_empty())
    }

    /// Writes that all contents are complete which were stored so far; the names of the copies that are not
    /// needed any more.
    pub fn complete(&self) -> Vec<String> {
        let (stored, _) = self.progress();
        self.group_written(stored, &[])
    }

    /// Writes that a row group is on file which completes the contents up to `stored`; the names of the
    /// copies that are not needed any more.
    pub fn group_written(&self, stored: u64, footer: &[u8]) -> Vec<String> {
        let mut state = lock(&self.state);
        let mut frames = Frames::default();
        frames.group(stored, footer);
        if self.write_locked(&mut state, &mut frames).is_err() {
            return Vec::new();
        }
        let finished: Vec<u32> = state
            .unfinished
            .extract_if(.., |(number, _)| *number <= stored)
            .map(|(_, inode)| inode)
            .collect();
        let names = finished.iter().filter_map(|inode| state.copies.remove(inode)).collect();
        drop(state);
        finished.into_iter().for_each(|inode| self.holder.released(inode));
        names
    }
}

/// Reads the frames of a journal, and names what can't be read.
#[derive(Debug)]
pub struct Reader {
    file: BufReader<File>,
    position: u64,
    /// How long the file is.
    length: u64,
    /// The first line, if that is damaged.
    damaged_line: Option<Range<u64>>,
    /// How many damaged places were met.
    damaged: usize,
}

/// What is at a place of a journal.
enum Found {
    Frame(Frame),
    /// A frame that says nothing.
    Filler,
    /// A frame that was written whole and can't be read; where the next one begins, if its head says that.
    Damaged(Option<u64>),
    /// The end, or what a kill has left of a frame.
    End,
}

impl Reader {
    /// Reads from `file`; none where it was cut before its first frame.
    ///
    /// # Errors
    /// It is no journal, or of another version.
    pub fn new(file: File) -> Result<Option<Reader>, Error> {
        let failed = || Error::io("read", "the journal");
        let length = file.metadata().map_err(failed())?.len();
        let line = format!("{MAGIC}{VERSION}\n");
        let position = line.len() as u64;
        let mut start = vec![0; line.len()];
        let read = read_at(&file, &mut start, 0).map_err(failed())?;
        start.truncate(read);
        let file = BufReader::with_capacity(256 << 10, file);
        let mut reader = Reader { file, position, length, damaged_line: None, damaged: 0 };
        reader.seek(position).map_err(failed())?;
        let text = String::from_utf8_lossy(&start);
        if text == line {
            return Ok(Some(reader));
        }
        // After a power failure the space may be there and the bytes not.
        let written = text.trim_end_matches('\0');
        if line.starts_with(written) && reader.is_zero_from(written.len() as u64).map_err(failed())? {
            return Ok(None);
        }
        if reader.next_frame_from(position).map_err(failed())?.is_some() {
            reader.damaged_line = Some(0..position);
            return Ok(Some(reader));
        }
        Err(Error::Format(match text.strip_prefix(MAGIC).map(str::trim_end) {
            Some(version) => format!(
                "the journal is of version {version}, which this build of agent-snapshot does not read: recover \
                 with the one that recorded"
            ),
            None => "what should be the journal of a recording is none".to_owned(),
        }))
    }

    fn frame(&mut self) -> io::Result<Option<Frame>> {
        if let Some(line) = self.damaged_line.take() {
            return Ok(Some(Frame::Damaged(line)));
        }
        loop {
            let start = self.position;
            let next = match self.found_at(start)? {
                Found::Frame(frame) => return Ok(Some(frame)),
                Found::Filler => continue,
                Found::End => return Ok(None),
                Found::Damaged(_) if self.damaged >= MOST_DAMAGED => self.length,
                Found::Damaged(Some(next)) => next.min(self.length),
                Found::Damaged(None) => self.next_frame_from(start + 1)?.unwrap_or(self.length),
            };
            self.damaged += 1;
            if next != self.position {
                self.seek(next)?;
            }
            return Ok(Some(Frame::Damaged(start..next)));
        }
    }

    fn found_at(&mut self, start: u64) -> io::Result<Found> {
        let mut head = [0; FRAME_HEAD];
        // What was written since is not looked at.
        if start >= self.length || !fill(&mut self.file, &mut head)? {
            return Ok(Found::End);
        }
        let body_start = start + FRAME_HEAD as u64;
        self.position = body_start;
        let Some((length, checksum)) = parse_head(start, &head) else {
            // What a kill has cut in its head is followed by nothing but zeros.
            return Ok(if self.is_zero_from(body_start)? { Found::End } else { Found::Damaged(None) });
        };
        let mut body = Vec::new();
        self.position += (&mut self.file).take(length + 1).read_to_end(&mut body)? as u64;
        let end = body_start + length + 1;
        let is_ended = body.len() as u64 == length + 1 && body.pop() != Some(0);
        if body.len() as u64 == length && crc32fast::hash(&body) == checksum {
            return Ok(match body.first() {
                Some(&kind::FILLER) => Found::Filler,
                _ => parse(body_start, &body).map_or(Found::Damaged(Some(end)), Found::Frame),
            });
        }
        let is_cut = !is_ended && self.is_zero_from(end)?;
        Ok(if is_cut { Found::End } else { Found::Damaged(Some(end)) })
    }

    /// Where the first frame begins that is not before `at`, by its head.
    fn next_frame_from(&self, mut at: u64) -> io::Result<Option<u64>> {
        let mut window = vec![0; LEAST_WINDOW];
        loop {
            let read = read_at(self.file.get_ref(), &mut window, at)?;
            if read < FRAME_HEAD || at >= self.length {
                return Ok(None);
            }
            for (position, head) in (at..).zip(window[..read].windows(FRAME_HEAD)) {
                let length = parse_head(position, head).map(|(length, _)| length);
                if length.is_some_and(|length| position + FRAME_HEAD as u64 + length <= self.length) {
                    return Ok(Some(position));
                }
            }
            at += (read - FRAME_HEAD + 1) as u64;
            window.resize((window.len() * 4).min(MOST_WINDOW), 0);
        }
    }

    fn is_zero_from(&self, mut at: u64) -> io::Result<bool> {
        let mut window = vec![0; LEAST_WINDOW];
        loop {
            let read = read_at(self.file.get_ref(), &mut window, at)?;
            if read == 0 || window[..read].iter().any(|byte| *byte != 0) {
                return Ok(read == 0);
            }
            at += read as u64;
        }
    }

    fn seek(&mut self, position: u64) -> io::Result<()> {
        self.position = position;
        self.file.seek(SeekFrom::Start(position)).map(drop)
    }
}

/// The length and the checksum of a body, if the head at this place is whole.
fn parse_head(position: u64, head: &[u8]) -> Option<(u64, u32)> {
    let (length, checksum) = (le32(head)?, le32(&head[4..])?);
    let is_possible = (1..=LONGEST).contains(&length);
    (is_possible && le32(&head[8..]) == Some(head_checksum(position, &head[..8])))
        .then_some((length.into(), checksum))
}

impl Iterator for Reader {
    type Item = io::Result<Frame>;

    fn next(&mut self) -> Option<io::Result<Frame>> {
        self.frame().transpose()
    }
}

fn fill(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn le32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.first_chunk()?))
}

/// The value of this JSON; none if it is damaged.
fn value<T: DeserializeOwned>(mut json: &[u8]) -> Option<T> {
    json::read(&mut json).ok()
}

/// The frame with this body, which starts at `start`; none where it is none of this version.
fn parse(start: u64, body: &[u8]) -> Option<Frame> {
    let (kind, payload) = body.split_first()?;
    let end = start + body.len() as u64;
    let json = |from: usize| payload.get(from..);
    let inode = || le32(payload);
    Some(match *kind {
        kind::BEGIN => Frame::Begin(value(payload)?),
        kind::HEADER => Frame::Header(Box::new(value::<Manifest>(payload)?.header)),
        kind::PROCESS => Frame::Process(Box::new(value(payload)?)),
        kind::ENDED => Frame::Ended(inode()?, i32::from_le_bytes(*payload.get(4..)?.first_chunk()?)),
        kind::FILE | kind::GIT_FILE => {
            let inode = inode().map(|inode| Some(inode).filter(|inode| *inode != u32::MAX))?;
            let record: FileRecord = value(json(4)?)?;
            Frame::File(inode, Box::new(FileRecord { is_git_state: *kind == kind::GIT_FILE, ..record }))
        }
        kind::MOVED => {
            let (from, to) = payload.get(4..)?.split_at_checked(le32(payload)? as usize)?;
            Frame::Moved(from.to_vec(), to.to_vec())
        }
        // Kind and inode precede the bytes.
        kind::CONTENT => Frame::Content(inode()?, start + 5..end),
        kind::COPY => Frame::Copy(inode()?, std::str::from_utf8(json(4)?).ok()?.to_owned()),
        kind::HELD => Frame::Held(inode()?),
        kind::OMITTED => Frame::Omitted(inode()?, value(json(4)?)?),
        kind::STORED => Frame::Stored(value(payload)?),
        kind::GROUP => Frame::Group(u64::from_le_bytes(*payload.first_chunk()?), start + 9..end),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::samples;
    use crate::snapshot::{Exec, Operation, State};

    /// Holds nothing: what only a descriptor has is lost with the recorder.
    impl DescriptorHolder for () {
        fn held(&self, _: u32, _: BorrowedFd<'_>) {}
        fn released(&self, _: u32) {}
        fn wait_for_releases(&self) {}
    }

    fn mark() -> ProcessMark {
        ProcessMark::of(std::process::id())
    }

    /// A journal with a frame of each kind.
    fn journal() -> (tempfile::NamedTempFile, Vec<Frame>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let begin = Begin {
            id: "id".to_owned(),
            recorder: mark(),
            front: mark(),
            blobs: "blobs".to_owned(),
            max_blob_bytes: Some(7),
        };
        let header = samples::header();
        let journal =
            RecordingJournal::start(file.reopen().unwrap(), false, &begin, &header, Box::new(())).unwrap();
        let mut frames = Frames::default();
        let process = RecordedProcess {
            id: 1,
            pid: 2,
            parent: None,
            image: Arc::new(Exec { exe: b"/bin/\xff".to_vec(), ..Exec::default() }),
            cwd: b"/".to_vec(),
            exit_status: None,
            execs: Vec::new(),
            started_us: Some(5),
            ended_us: None,
        };
        let absent = State::Absent { tombstone: false };
        let record = FileRecord::new(b"/\xff", absent.clone(), absent, Operation::Write.into());
        frames.process(&process);
        frames.ended(1, 137);
        frames.file(Some(3), &record);
        frames.file(None, &record);
        frames.moved(b"/a", b"/\xff");
        frames.content(3, b"CONTENT");
        frames.content(4, b"");
        frames.copy(5, ".agent-snapshot-x.tmp");
        frames.held(6);
        frames.omitted(7, BlobOmitted::NoSpace);
        journal.write(&mut frames).unwrap();
        journal.stored(6, Some("before:/x"), "sha256:0".to_owned(), 9, true);
        assert_eq!(journal.progress(), (1, true));
        journal.group_written(1, b"footer");
        assert_eq!(journal.progress(), (1, false));
        let stored = StoredContent {
            inode: 6,
            number: 1,
            key: Some("before:/x".to_owned()),
            digest: "sha256:0".to_owned(),
            size: 9,
        };
        let bytes = |text: &[u8]| {
            let whole = std::fs::read(file.path()).unwrap();
            let start = whole.windows(text.len()).position(|window| window == text).unwrap() as u64;
            start..start + text.len() as u64
        };
        let content = bytes(b"CONTENT");
        // An empty one ends where its frame does.
        let empty = content.end + 1 + FRAME_HEAD as u64 + 5;
        let wanted = vec![
            Frame::Begin(begin.clone()),
            Frame::Header(Box::new(header.clone())),
            Frame::Begin(begin),
            Frame::Header(Box::new(header)),
            Frame::Process(Box::new(process)),
            Frame::Ended(1, 137),
            Frame::File(Some(3), Box::new(record.clone())),
            Frame::File(None, Box::new(record)),
            Frame::Moved(b"/a".to_vec(), b"/\xff".to_vec()),
            Frame::Content(3, content),
            Frame::Content(4, empty..empty),
            Frame::Copy(5, ".agent-snapshot-x.tmp".to_owned()),
            Frame::Held(6),
            Frame::Omitted(7, BlobOmitted::NoSpace),
            Frame::Stored(stored),
            Frame::Group(1, bytes(b"footer")),
        ];
        (file, wanted)
    }

    fn frames_of(file: &tempfile::NamedTempFile) -> Vec<u8> {
        std::fs::read(file.path()).unwrap()
    }

    fn read(bytes: &[u8]) -> Vec<Frame> {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, bytes).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        Reader::new(file).ok().flatten().into_iter().flatten().map(Result::unwrap).collect()
    }

    #[test]
    fn every_kind_of_frame_is_read_as_it_was_written() {
        let (file, wanted) = journal();
        assert_eq!(read(&frames_of(&file)), wanted);
    }

    #[test]
    fn long_journal_is_allocated_ahead_and_read_as_it_was_written() {
        let (file, mut wanted) = journal();
        let state = WrittenState { length: frames_of(&file).len() as u64, ..WrittenState::default() };
        let (file_of_journal, state) = (file.reopen().unwrap(), Mutex::new(state));
        let journal = RecordingJournal { file: file_of_journal, sync: false, holder: Box::new(()), state };
        for inode in 0..10_000 {
            let mut frames = Frames::default();
            frames.held(inode);
            journal.write(&mut frames).unwrap();
            wanted.push(Frame::Held(inode));
        }
        let bytes = frames_of(&file);
        assert_eq!(bytes.last(), Some(&0));
        assert_eq!(read(&bytes), wanted);
    }

    #[test]
    fn journal_cut_at_any_byte_has_its_first_frames() {
        let (file, wanted) = journal();
        let whole = frames_of(&file);
        let mut most = 0;
        for cut in 0..whole.len() {
            let frames = read(&whole[..cut]);
            assert!(frames.len() >= most, "{cut}");
            assert_eq!(frames, wanted[..frames.len()]);
            most = frames.len();
            // The same where the file was longer already; a frame may end in zeros.
            let longer = read(&[&whole[..cut], &[0; 64]].concat());
            assert!(longer.len() <= frames.len() + 1 && wanted.starts_with(&longer), "{cut}");
        }
        // Without its last byte, the last frame is whole.
        assert_eq!(most, wanted.len());
    }

    #[test]
    fn flipped_bit_costs_its_frame_alone() {
        let (file, wanted) = journal();
        let whole = frames_of(&file);
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let mut frames = read(&changed);
            let is_damaged = frames.iter().any(|frame| matches!(frame, Frame::Damaged(_)));
            frames.retain(|frame| !matches!(frame, Frame::Damaged(_)));
            let kept = wanted.iter().filter(|frame| frames.contains(frame)).count();
            assert!(kept + 1 >= wanted.len(), "{bit}: {frames:?}");
            // The byte that ends a frame says nothing.
            assert!(is_damaged || frames == wanted, "{bit}: {frames:?}");
        }
    }

    #[test]
    fn frames_after_any_damage_are_read() {
        let (file, wanted) = journal();
        let whole = frames_of(&file);
        let start = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        // Kind, number, and `footer`.
        let last_start = whole.len() - (FRAME_HEAD + 1 + 8 + 6 + 1);
        for length in [1, 9, 40, 300] {
            for at in (start..whole.len() - length).step_by(7) {
                let mut changed = whole.clone();
                changed[at..at + length].fill(0);
                let frames = read(&changed);
                let is_known = |frame: &Frame| matches!(frame, Frame::Damaged(_)) || wanted.contains(frame);
                assert!(frames.iter().all(is_known), "{at}");
                let last = frames.iter().rev().find(|frame| !matches!(frame, Frame::Damaged(_)));
                let is_in_last = at + length > last_start;
                assert!(is_in_last || last == wanted.last(), "{at}, {length}: {frames:?}");
            }
        }
    }

    #[test]
    fn any_number_of_fillers_says_nothing() {
        let mut frames = Frames::default();
        for _ in 0..200_000 {
            frames.frame(kind::FILLER, &[]);
        }
        frames.held(2);
        let line = format!("{MAGIC}{VERSION}\n").into_bytes();
        seal(&mut frames.0, line.len() as u64);
        assert_eq!(read(&[line, frames.0].concat()), [Frame::Held(2)]);
    }

    #[test]
    fn lost_first_page_costs_what_was_on_it_alone() {
        let (file, wanted) = journal();
        let mut bytes = frames_of(&file);
        bytes[..4096].fill(0);
        let mut frames = read(&bytes);
        frames.retain(|frame| !matches!(frame, Frame::Damaged(_)));
        assert_eq!(frames, wanted[2..]);
    }

    #[test]
    fn journal_in_a_content_has_no_frames() {
        let (inner, _) = journal();
        let file = tempfile::NamedTempFile::new().unwrap();
        let state = Mutex::default();
        let journal =
            RecordingJournal { file: file.reopen().unwrap(), sync: false, holder: Box::new(()), state };
        journal.append(&mut lock(&journal.state), format!("{MAGIC}{VERSION}\n").as_bytes()).unwrap();
        let mut frames = Frames::default();
        frames.content(1, &frames_of(&inner));
        frames.held(2);
        journal.write(&mut frames).unwrap();
        let mut bytes = frames_of(&file);
        // The head of the content's frame, so that what follows is searched.
        bytes[MAGIC.len() + VERSION.len() + 2] ^= 1;
        let frames = read(&bytes);
        assert!(matches!(frames[..], [Frame::Damaged(_), Frame::Held(2)]), "{frames:?}");
    }

    #[test]
    fn journal_of_zeros_is_an_empty_one() {
        assert_eq!(read(&[0; 4096]), []);
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[0; 4096]).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        assert!(Reader::new(file).unwrap().is_none());
    }

    #[test]
    fn failed_write_is_the_last() {
        // A file that is open for reading takes nothing.
        let file = tempfile::NamedTempFile::new().unwrap();
        let reopened = File::open(file.path()).unwrap();
        let state = Mutex::default();
        let journal = RecordingJournal { file: reopened, sync: false, holder: Box::new(()), state };
        let mut frames = Frames::default();
        frames.held(1);
        assert!(journal.write(&mut frames).is_err());
        assert!(journal.write(&mut Frames::default()).is_err());
    }

    #[test]
    fn process_that_has_ended_is_not_alive() {
        assert!(mark().is_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = ProcessMark::of(child.id());
        child.wait().unwrap();
        assert!(!of_child.is_alive());
        assert!(!ProcessMark { start: mark().start + 1, ..mark() }.is_alive());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_at_all_panic(bytes: Vec<u8>, body: Vec<u8>) {
            read(&bytes);
            let mut frames = Frames::default();
            frames.frame(body.first().copied().unwrap_or(0) % 14, &[&body]);
            let line = format!("{MAGIC}{VERSION}\n").into_bytes();
            seal(&mut frames.0, line.len() as u64);
            read(&[line, frames.0].concat());
        }
    }
}
