//! Bytes on their way into the bundle: kept until a call is over, stored on a worker thread.
//!
//! A small file is read at once. A large one keeps a descriptor and is read later, since a
//! deletion or a rename destroys no bytes while that is open; before a change in place, its bytes
//! are cloned or copied to an unnamed file of ours. Memory and descriptors in the queue are
//! bounded: whoever adds too much waits for the worker. Small contents go there in batches, since
//! waking the worker costs more than storing one.

mod outcomes;
mod space;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Resource, getrlimit};

pub use self::outcomes::Outcome;
use self::outcomes::Outcomes;
pub use self::space::{OnLoss, Reserved};
use self::space::{Space, Usage};
use super::ledger::ids::InodeId;
use super::losses::Losses;
use crate::fs;
use crate::snapshot::blobs::{BlobWriter, CHUNK, StoreLimit, Stored};
use crate::snapshot::digest::digest_file;
use crate::snapshot::journal::{Frames, RecordingJournal};
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::{BlobOmitted, Digest, Error, live, sparse};
use crate::sync::lock;

/// Files up to this size are read while the tracee is stopped at the entry of its call.
pub const SMALL: u64 = 64 << 10;
/// Files up to this size are read at once where the call changes them in place.
const SMALL_IN_PLACE: u64 = 1 << 20;
/// Bytes that may wait in the queue, with what is noted of each content.
const QUEUED_BYTES: u64 = 8 << 20;
/// A batch is handed over after this many contents ...
const BATCH_CONTENTS: usize = 64;
/// ... or this many bytes, or a descriptor.
const BATCH_BYTES: u64 = 256 << 10;
/// Descriptors that may wait in the queue, where our limit allows.
const QUEUED_FILES: u64 = 128;
/// Descriptors that are needed for all else.
const OTHER_FILES: u64 = 32;

/// The number of a content that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u32);

/// What a call may do to the bytes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threat {
    /// A name goes: the bytes stay for as long as a descriptor is open.
    Unlink,
    /// They are changed in place.
    Overwrite,
}

/// A regular file whose bytes are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Where it is.
    pub path: &'a [u8],
    /// Its device and inode number: what else is there by now is another file.
    pub identity: (u64, u64),
    /// How many of its first bytes are wanted; all, if none.
    pub length: Option<u64>,
}

/// Bytes that are safe but not handed in yet.
#[derive(Debug)]
pub enum Captured {
    /// In memory.
    Bytes(Vec<u8>),
    /// In a file that nobody changes before the worker has read it.
    File(File),
    /// Unavailable.
    Omitted(BlobOmitted),
}

impl Captured {
    /// How many bytes of data there are, holes apart.
    pub fn data_size(&self) -> u64 {
        match self {
            Captured::Bytes(bytes) => bytes.len() as u64,
            Captured::File(file) => live::data_size(file).unwrap_or(0),
            Captured::Omitted(_) => 0,
        }
    }

    /// An upper bound of what storing them under `key` takes.
    fn bound(&self, key: &str) -> u64 {
        let size = self.data_size();
        let rows = match self {
            // Each run of blocks of a sparse file may be a row.
            Captured::File(file) if file.metadata().is_ok_and(|metadata| metadata.len() > size) => {
                size / sparse::BLOCK as u64
            }
            _ => size / CHUNK as u64,
        };
        // Some filesystems claim any size.
        BlobWriter::bound(key, size, 2 + rows).min(1 << 56)
    }
}

/// Whether a content that is handed in is stored.
#[derive(Debug)]
pub enum Admission {
    /// It is, in the space that it was promised.
    Stored(Reserved),
    /// Its digest is all that is asked for.
    Digested,
    /// Its digest alone is taken, for this reason, unless it is stored already.
    Refused(BlobOmitted),
}

impl From<Result<Reserved, BlobOmitted>> for Admission {
    fn from(reserved: Result<Reserved, BlobOmitted>) -> Admission {
        reserved.map_or_else(Admission::Refused, Admission::Stored)
    }
}

/// Whose bytes are handed in.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Device and inode number of the file, whose own descriptor may hold the bytes.
    pub identity: (u64, u64),
    /// Its number in the ledger.
    pub inode: InodeId,
    /// Whether nothing else may have the bytes: they were not only read.
    pub threatened: bool,
}

struct Job {
    ticket: Ticket,
    key: String,
    captured: Captured,
    admission: Admission,
    /// Whether a call may have destroyed the bytes.
    destroyed: bool,
    origin: Option<Origin>,
}

/// Contents that are handed over together.
#[derive(Default)]
struct Batch {
    jobs: Vec<Job>,
    bytes: u64,
    files: u64,
    /// Whether the user may have to be told of one.
    urgent: bool,
}

impl Batch {
    fn add(&mut self, job: Job) {
        self.bytes += (size_of::<Job>() + job.key.len()) as u64;
        match &job.captured {
            Captured::Bytes(bytes) => self.bytes += bytes.len() as u64,
            Captured::File(_) => self.files += 1,
            Captured::Omitted(_) => {}
        }
        self.urgent |= job.destroyed && matches!(job.admission, Admission::Refused(_));
        self.jobs.push(job);
    }

    fn is_due(&self) -> bool {
        self.urgent || self.files > 0 || self.bytes >= BATCH_BYTES || self.jobs.len() >= BATCH_CONTENTS
    }
}

#[derive(Default)]
struct Queue {
    bytes: u64,
    files: u64,
    done: u32,
    /// How many contents are on file, where there is a journal.
    on_file: u32,
    /// How many contents somebody wants to be on file.
    wanted_on_file: u32,
    worker_gone: bool,
    /// Contents of the ledger that are not stored, and why.
    omitted: HashMap<Ticket, BlobOmitted, foldhash::fast::RandomState>,
    /// Contents that were only read when they were handed in, and that a call may have destroyed since.
    destroyed: HashSet<Ticket, foldhash::fast::RandomState>,
}

#[derive(Default)]
struct Progress {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Progress {
    fn wait_until(&self, ready: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let mut queue = lock(&self.queue);
        while !queue.worker_gone && !ready(&queue) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }
}

/// The way into the bundle.
pub struct Capture {
    batch: Batch,
    progress: Arc<Progress>,
    worker: Worker,
    /// What became of each content, by ticket, as far as the worker was waited for.
    outcomes: Outcomes,
    directory: Arc<SnapshotDir>,
    space: Space,
    losses: Arc<Losses>,
    /// How many descriptors may wait in the queue.
    queued_files: u64,
    next: u32,
    /// Large files that wait for the worker, by inode: a change in place waits for them.
    deferred: HashMap<(u64, u64), Ticket, foldhash::fast::RandomState>,
    journal: Option<Arc<RecordingJournal>>,
}

/// Who stores what is handed over.
enum Worker {
    /// A thread, which is started when it has something to do: what fits one batch is stored at the end.
    Started(Sender<Batch>, JoinHandle<Option<Box<Store>>>),
    /// Whoever hands over, where no thread is needed yet, or none can be started.
    Here(Box<Store>),
    /// Nobody any more.
    Gone,
}

impl Capture {
    /// The way to `writer`, which writes to `blobs` in `directory`.
    pub fn new(
        writer: BlobWriter,
        blobs: File,
        directory: Arc<SnapshotDir>,
        on_loss: OnLoss,
        losses: Losses,
    ) -> Capture {
        // The command's limit may be low, and we can raise ours no higher than it allows.
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let queued_files = (limit.saturating_sub(OTHER_FILES) / 2).clamp(1, QUEUED_FILES);
        let space = Space::new(Arc::clone(&directory), blobs, &writer, on_loss);
        let losses = Arc::new(losses);
        Capture {
            batch: Batch::default(),
            progress: Arc::new(Progress::default()),
            worker: Worker::Here(Box::new(Store::new(
                writer,
                Arc::clone(&directory),
                space.usage(),
                Arc::clone(&losses),
            ))),
            outcomes: Outcomes::default(),
            directory,
            space,
            losses,
            queued_files,
            next: 0,
            deferred: HashMap::default(),
            journal: None,
        }
    }

    /// The same, noting in `journal` what is stored; before anything is handed in.
    pub fn journaled(mut self, journal: Arc<RecordingJournal>) -> Capture {
        if let Worker::Here(store) = &mut self.worker {
            store.journal = Some(Arc::clone(&journal));
        }
        self.journal = Some(journal);
        self
    }

    /// What becomes of a call whose bytes can't be kept.
    pub fn on_loss(&self) -> OnLoss {
        self.space.on_loss
    }

    /// Tells the user of what is lost.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Promises captured bytes the space that storing them under `key` takes.
    ///
    /// # Errors
    /// There is too little.
    pub fn reserve(&mut self, key: &str, captured: &Captured) -> Result<Reserved, BlobOmitted> {
        self.space.reserve(captured.bound(key))
    }

    /// Takes back space that was promised.
    pub fn release(&mut self, reserved: Reserved) {
        self.space.release(reserved);
    }

    /// Notes what the manifest is expected to take.
    pub fn expect_manifest(&mut self, bytes: u64) {
        self.space.expect_manifest(bytes);
    }

    /// Notes that a call may destroy bytes that were handed in as they were read; says why they are not
    /// stored, if they are known not to be.
    pub fn note_destroyed(&mut self, ticket: Ticket) -> Option<BlobOmitted> {
        let mut queue = lock(&self.progress.queue);
        let omitted = queue.omitted.get(&ticket).copied();
        if omitted.is_none() && queue.done <= ticket.0 {
            queue.destroyed.insert(ticket);
        }
        omitted
    }

    /// The journal, and the directory that it is in.
    pub fn journal(&self) -> Option<(Arc<RecordingJournal>, Arc<SnapshotDir>)> {
        Some((Arc::clone(self.journal.as_ref()?), Arc::clone(&self.directory)))
    }

    /// A file of ours without a name, for bytes that are to be handed in.
    pub fn unnamed_file(&self) -> io::Result<File> {
        self.directory.unnamed_file()
    }

    /// Makes the bytes of a file safe from a call that is about to be made. Without a threat, they are only read: a
    /// descriptor keeps those of a large file, as if a name went.
    pub fn protect(&self, source: Source<'_>, threat: Option<Threat>) -> Captured {
        let mut opened = fs::open_regular(source.path);
        let no_more = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if opened.as_ref().is_err_and(no_more) {
            self.wait_for_files();
            opened = fs::open_regular(source.path);
        }
        let file = match opened {
            Ok(file) => file,
            // Something else is there by now, or nothing.
            Err(_) if !is_there(source) => return Captured::Omitted(BlobOmitted::ChangedWhileReading),
            Err(_) => return Captured::Omitted(BlobOmitted::Unreadable),
        };
        self.protect_file(file, source, threat).unwrap_or(Captured::Omitted(BlobOmitted::Unreadable))
    }

    fn protect_file(
        &self,
        mut file: File,
        source: Source<'_>,
        threat: Option<Threat>,
    ) -> io::Result<Captured> {
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) != source.identity {
            return Ok(Captured::Omitted(BlobOmitted::ChangedWhileReading));
        }
        let size = source.length.unwrap_or(metadata.len());
        let is_overwritten = threat == Some(Threat::Overwrite);
        let small = if is_overwritten { SMALL_IN_PLACE } else { SMALL };
        if size <= small {
            let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
            // One byte more than expected shows that the file has grown.
            let most = source.length.unwrap_or(size + 1);
            (&mut file).take(most).read_to_end(&mut bytes)?;
            return Ok(if bytes.len() as u64 == size {
                Captured::Bytes(bytes)
            } else {
                Captured::Omitted(BlobOmitted::ChangedWhileReading)
            });
        }
        // The worker reads whole files.
        if !is_overwritten && source.length.is_none() {
            return Ok(Captured::File(file));
        }
        self.copy(&file, size)
    }

    /// Opens a large file that is wanted whole and can't be cloned: before a change in place, its bytes must be stored
    /// or copied. None for any other file.
    pub fn only_in_place(&self, source: Source<'_>) -> Option<Captured> {
        let file = fs::open_regular(source.path).ok()?;
        let metadata = file.metadata().ok()?;
        let is_large = metadata.len() > SMALL_IN_PLACE && source.length.is_none();
        if !is_large || (metadata.dev(), metadata.ino()) != source.identity {
            return None;
        }
        let is_cloned = rustix::fs::ioctl_ficlone(self.directory.unnamed_file().ok()?, &file).is_ok();
        (!is_cloned).then_some(Captured::File(file))
    }

    /// A copy of bytes that are safe from the loss of a name alone, before they are changed in place; none
    /// where they are safe from that, too.
    pub fn copy_captured(&self, captured: &Captured) -> Option<Captured> {
        let Captured::File(file) = captured else { return None };
        let copied = file.metadata().and_then(|metadata| self.copy(file, metadata.len()));
        Some(copied.unwrap_or(Captured::Omitted(BlobOmitted::Unreadable)))
    }

    /// Copies the first `size` bytes of a file to one of our own.
    fn copy(&self, file: &File, size: u64) -> io::Result<Captured> {
        if !self.space.has_room(live::data_size(file)?) {
            return Ok(Captured::Omitted(BlobOmitted::NoSpace));
        }
        let spool = self.directory.unnamed_file()?;
        match live::copy_keeping_holes(file, &spool, size) {
            Ok(copied) if copied == size => Ok(Captured::File(spool)),
            Ok(_) => Ok(Captured::Omitted(BlobOmitted::ChangedWhileReading)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge) =>
            {
                Ok(Captured::Omitted(BlobOmitted::NoSpace))
            }
            Err(error) => Err(error),
        }
    }

    /// Hands bytes in under `key`. `destroyed` says that a call may have destroyed them, so that the user is
    /// told if they are not stored.
    ///
    /// `origin` is the file itself where `captured` may still be its own descriptor.
    pub fn submit(
        &mut self,
        key: String,
        captured: Captured,
        origin: Option<Origin>,
        admission: impl Into<Admission>,
        destroyed: bool,
    ) -> Ticket {
        let admission = admission.into();
        let ticket = Ticket(self.next);
        self.next += 1;
        if let (Captured::File(_), Some(Origin { identity, .. })) = (&captured, origin) {
            self.deferred.insert(identity, ticket);
        }
        self.batch.add(Job { ticket, key, captured, admission, destroyed, origin });
        if self.batch.is_due() {
            self.hand_over();
        }
        ticket
    }

    fn hand_over(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        {
            let mut queue = self.progress.wait_until(|queue| {
                (queue.bytes == 0 || queue.bytes + batch.bytes <= QUEUED_BYTES)
                    && (queue.files == 0 || queue.files + batch.files <= self.queued_files)
            });
            queue.bytes += batch.bytes;
            queue.files += batch.files;
        }
        if let Worker::Here(_) = self.worker
            && let Ok((stores, batches, thread)) = start(&self.progress)
            && let Worker::Here(store) = std::mem::replace(&mut self.worker, Worker::Started(batches, thread))
        {
            // It waits for this.
            let _ = stores.send(store);
        }
        match &mut self.worker {
            // One that is gone is told at the end; the command runs on.
            Worker::Started(batches, _) => drop(batches.send(batch)),
            Worker::Here(store) => {
                store.take_batch(batch, &self.progress);
                store.put_on_file(&self.progress);
            }
            Worker::Gone => {}
        }
    }

    /// Waits until no descriptor of a file is open any more: it would keep a filesystem from being unmounted.
    pub fn release_files(&mut self) {
        if let (Some(journal), Some(last)) = (self.journal.clone(), self.next.checked_sub(1)) {
            self.put_on_file(Ticket(last));
            journal.wait_for_releases();
        }
        self.wait_for_files();
    }

    fn wait_for_files(&self) {
        // A batch with a file was handed over at once.
        drop(self.progress.wait_until(|queue| queue.files == 0));
    }

    /// Waits until no content of `inode` is still to be read from the file itself.
    pub fn wait_for(&mut self, inode: (u64, u64)) {
        if let Some(ticket) = self.deferred.remove(&inode) {
            match self.journal {
                // The file itself is the only other place that has them.
                Some(_) => self.put_on_file(ticket),
                None => drop(self.progress.wait_until(|queue| queue.done > ticket.0)),
            }
        }
    }

    /// Waits until a content that was handed in is on file, where it outlives this process.
    pub fn put_on_file(&mut self, ticket: Ticket) {
        {
            let mut queue = lock(&self.progress.queue);
            if queue.on_file > ticket.0 {
                return;
            }
            queue.wanted_on_file = queue.wanted_on_file.max(ticket.0 + 1);
        }
        self.hand_over();
        drop(self.progress.wait_until(|queue| queue.on_file > ticket.0));
    }

    /// Waits until all is stored that was handed in, and copies it to `copy`, an empty file, as a blobs.parquet
    /// of its own. Returns whether that has a row.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn copy_to(&mut self, copy: &File) -> io::Result<bool> {
        let mut store = self.take_back()?;
        let copied = match &store.failure {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None if !self.space.has_room(store.writer.length()) => Err(io::ErrorKind::StorageFull.into()),
            None => store.writer.copy_to(copy),
        };
        self.worker = Worker::Here(store);
        copied
    }

    /// Waits until all is stored that was handed in; the finished blobs.parquet, if it has a row. Nothing more
    /// can be handed in.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(&mut self) -> io::Result<Option<File>> {
        let store = self.take_back();
        self.losses.finish();
        let Store { failure, writer, .. } = *store?;
        let file = match failure {
            Some(error) => Err(error),
            None => writer.finish(),
        }?;
        if let Some(file) = &file {
            self.space.trim(file)?;
        }
        Ok(file)
    }

    /// Takes the store back from the worker, once all is stored that was handed in.
    fn take_back(&mut self) -> io::Result<Box<Store>> {
        let last = std::mem::take(&mut self.batch);
        let store = match std::mem::replace(&mut self.worker, Worker::Gone) {
            Worker::Here(mut store) => {
                store.take_batch(last, &self.progress);
                Some(store)
            }
            Worker::Started(batches, thread) => {
                let _ = batches.send(last);
                drop(batches);
                thread.join().ok().flatten()
            }
            Worker::Gone => None,
        };
        let mut store = store.ok_or_else(|| io::Error::other("the thread that stores contents failed"))?;
        self.outcomes.extend(std::mem::take(&mut store.outcomes));
        Ok(store)
    }

    /// What became of the content of `ticket`, which was `size` bytes long when its state was taken; known once
    /// all is stored that was handed in.
    ///
    /// Bytes of another length were read after somebody else had changed the file: they are not
    /// those of the state.
    pub fn outcome(&self, ticket: Ticket, size: u64) -> Outcome {
        // A worker that died early leaves the rest unstored.
        match self.outcomes.get(ticket.0 as usize) {
            None => Outcome::omitted(BlobOmitted::Unreadable),
            Some(outcome) if outcome.digest.is_some() && outcome.size != size => {
                Outcome::omitted(BlobOmitted::ChangedWhileReading)
            }
            Some(outcome) => outcome,
        }
    }
}

/// Whether a file is where it is to be read.
fn is_there(source: Source<'_>) -> bool {
    let found = fs::lstat(source.path).ok().flatten();
    found.is_some_and(|stat| (stat.st_dev, stat.st_ino) == source.identity)
}

/// Tells waiters that the worker is gone, however it went.
struct WorkerGone(Arc<Progress>);

impl Drop for WorkerGone {
    fn drop(&mut self) {
        lock(&self.0.queue).worker_gone = true;
        self.0.changed.notify_all();
    }
}

type Start = (Sender<Box<Store>>, Sender<Batch>, JoinHandle<Option<Box<Store>>>);

/// Starts a thread that stores, and first waits for what it stores with: that is not lost where no thread
/// can be started.
fn start(progress: &Arc<Progress>) -> io::Result<Start> {
    let (stores, store) = channel::<Box<Store>>();
    let (batches, queue) = channel();
    lock(&progress.queue).worker_gone = false;
    let progress = Arc::clone(progress);
    let thread = std::thread::Builder::new().name("capture".into()).spawn(move || {
        let _gone = WorkerGone(Arc::clone(&progress));
        let mut store = store.recv().ok()?;
        loop {
            let batch = match queue.try_recv() {
                Ok(batch) => batch,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    store.put_on_file(&progress);
                    match queue.recv() {
                        Ok(batch) => batch,
                        Err(_) => break,
                    }
                }
            };
            store.take_batch(batch, &progress);
        }
        Some(store)
    })?;
    Ok((stores, batches, thread))
}

/// Stores contents one after the other.
struct Store {
    writer: BlobWriter,
    directory: Arc<SnapshotDir>,
    usage: Arc<Usage>,
    losses: Arc<Losses>,
    /// The first error of writing.
    failure: Option<io::Error>,
    outcomes: Outcomes,
    journal: Option<Arc<RecordingJournal>>,
}

impl Store {
    fn new(writer: BlobWriter, directory: Arc<SnapshotDir>, usage: Arc<Usage>, losses: Arc<Losses>) -> Store {
        Store {
            writer,
            directory,
            usage,
            losses,
            failure: None,
            outcomes: Outcomes::default(),
            journal: None,
        }
    }

    /// Puts on file what was stored, if that is asked for or nothing else has it: there is time.
    fn put_on_file(&mut self, progress: &Progress) {
        let Some(journal) = &self.journal else { return };
        let is_wanted = {
            let queue = lock(&progress.queue);
            queue.on_file < queue.wanted_on_file
        };
        if !is_wanted && !journal.progress().1 {
            return;
        }
        if self.failure.is_none() {
            match self.writer.flush() {
                // Also those that needed no row of their own.
                Ok(()) => self.directory.remove_temporaries(&journal.complete()),
                Err(error) => self.failure = Some(error),
            }
        }
        let mut queue = lock(&progress.queue);
        queue.on_file = queue.done;
        drop(queue);
        progress.changed.notify_all();
    }

    /// Tells the journal what became of a content that it does not hold itself.
    fn note(&self, origin: Origin, outcome: &Outcome) {
        let Some(journal) = &self.journal else { return };
        let inode = origin.inode.number();
        match (outcome.digest, outcome.omitted) {
            (Some(digest), None | Some(BlobOmitted::TooLarge)) => journal.stored(
                inode,
                outcome.blob.as_deref(),
                digest.to_string(),
                outcome.size,
                origin.threatened,
            ),
            (_, reason) => {
                let mut frames = Frames::default();
                frames.omitted(inode, reason.unwrap_or(BlobOmitted::Unreadable));
                // Whoever prepares the next call is told of the failure.
                let _ = journal.write(&mut frames);
            }
        }
    }

    fn take_batch(&mut self, Batch { jobs, bytes, files, .. }: Batch, progress: &Progress) {
        let count = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        self.take_all(jobs, progress);
        let mut queue = lock(&progress.queue);
        // The last batch was not waited for.
        queue.bytes = queue.bytes.saturating_sub(bytes);
        queue.files = queue.files.saturating_sub(files);
        queue.done += count;
        drop(queue);
        progress.changed.notify_all();
    }

    fn take_all(&mut self, jobs: Vec<Job>, progress: &Progress) {
        for job in jobs {
            let Job { ticket, key, captured, admission, destroyed, origin } = job;
            let may_be_destroyed = origin.is_some();
            // The journal itself has what is in memory.
            let origin = origin.filter(|_| matches!(captured, Captured::File(_)));
            let outcome = self.take(&key, captured, admission);
            if let Some(origin) = origin {
                self.note(origin, &outcome);
            }
            if let Some(reason) = outcome.omitted {
                let mut queue = lock(&progress.queue);
                if may_be_destroyed {
                    queue.omitted.insert(ticket, reason);
                }
                let destroyed = destroyed || queue.destroyed.contains(&ticket);
                drop(queue);
                if destroyed {
                    let path = key.split_once(':').map_or(key.as_str(), |(_, path)| path);
                    self.losses.lost(path.as_bytes(), reason);
                }
            }
            self.outcomes.push(outcome);
        }
    }

    fn take(&mut self, key: &str, captured: Captured, admission: Admission) -> Outcome {
        if let Captured::Omitted(reason) = captured {
            return Outcome::omitted(reason);
        }
        let (reserved, reason) = match admission {
            Admission::Stored(reserved) => (Some(reserved), Some(BlobOmitted::NoSpace)),
            Admission::Digested => (None, None),
            Admission::Refused(reason) => (None, Some(reason)),
        };
        let store = reserved.is_some() && self.failure.is_none();
        let stored =
            if store { put(&mut self.writer, key, &captured) } else { digest(&self.writer, &captured) };
        if let Some(reserved) = reserved {
            self.usage.take(reserved, self.writer.length());
        }
        match stored {
            Ok(Stored { digest, size, blob: Some(blob) }) => {
                Outcome { digest: Some(digest), size, blob: Some(blob), omitted: None }
            }
            Ok(stored) => {
                Outcome { digest: Some(stored.digest), size: stored.size, blob: None, omitted: reason }
            }
            Err(Error::Changed) => Outcome::omitted(BlobOmitted::ChangedWhileReading),
            Err(Error::Write(error)) => {
                self.usage.fail();
                self.failure.get_or_insert(error);
                Outcome::omitted(BlobOmitted::NoSpace)
            }
            Err(_) => Outcome::omitted(BlobOmitted::Unreadable),
        }
    }
}

fn put(writer: &mut BlobWriter, key: &str, captured: &Captured) -> Result<Stored, Error> {
    match captured {
        Captured::Bytes(bytes) => writer.store_bytes(key, bytes),
        Captured::File(file) => writer.store_file(key, file, StoreLimit::NONE),
        Captured::Omitted(_) => Err(Error::Changed),
    }
}

/// The digest alone; stored all the same where the content is stored already.
fn digest(writer: &BlobWriter, captured: &Captured) -> Result<Stored, Error> {
    let (digest, size) = match captured {
        Captured::Bytes(bytes) => (Digest::of(bytes), bytes.len() as u64),
        Captured::File(file) => digest_file(file).map_err(Error::Read)?,
        Captured::Omitted(_) => return Err(Error::Changed),
    };
    Ok(Stored { digest, size, blob: writer.key_of(&digest) })
}
