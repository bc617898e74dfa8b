//! The space that contents take in the snapshot's filesystem, counted before they are written.
//!
//! A content is promised its space when it is accepted, and takes it when its row group is written. Under
//! [`OnLoss::Refuse`] the blocks are allocated before the call goes on that destroys the bytes, so that
//! nobody else can take them (fallocate(2)); where the filesystem can't do that, they are counted alone.
//! Neighbours: `capture.rs` accepts contents, its worker writes them.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use crate::snapshot::BlobOmitted;
use crate::snapshot::blobs::BlobWriter;
use crate::snapshot::layout::SnapshotDir;

/// The filesystem is asked again after this many bytes ...
const INTERVAL_BYTES: u64 = 16 << 20;
/// ... or after so long.
const INTERVAL: Duration = Duration::from_millis(100);
/// The most that is counted as written and is still in a buffer.
const BUFFERED: u64 = 16 << 10;

/// What becomes of a call that may destroy bytes which can't be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// It goes on, and the user is told.
    Warn,
    /// It is refused.
    Refuse,
}

/// Space that a content was promised: it goes with the content to the worker, or back to [`Space`].
#[derive(Debug)]
#[must_use = "space that nobody takes has to be given back"]
pub struct Reserved(u64);

/// What the recorder and the worker both count, in bytes of blobs.parquet. A content is added to `rows` before it
/// is subtracted from `promised`, and readers load in the other order, so none is missed.
#[derive(Debug, Default)]
pub struct Usage {
    /// Of contents that were promised space and are no rows yet.
    promised: AtomicU64,
    /// Of all rows so far, and of what else the file has: an upper bound.
    rows: AtomicU64,
    /// Whether writing has failed, so that nothing more is stored.
    failed: AtomicBool,
}

impl Usage {
    /// A content has become rows of a file that is at most `length` long now, or none.
    pub fn take(&self, Reserved(bytes): Reserved, length: u64) {
        self.rows.store(length, Ordering::SeqCst);
        self.promised.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Writing has failed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }
}

/// The space of the contents of a recording.
pub struct Space {
    directory: Arc<SnapshotDir>,
    /// What is written, and how much of it.
    blobs: File,
    written: Arc<AtomicU64>,
    usage: Arc<Usage>,
    pub(super) on_loss: OnLoss,
    /// How long a file of ours may be (RLIMIT_FSIZE, setrlimit(2)).
    longest: u64,
    /// What the manifest is expected to take.
    manifest: u64,
    /// Up to where the file has blocks.
    allocated: u64,
    /// Whether the filesystem can allocate.
    allocates: bool,
    /// How much may be promised before it is asked again, and when it was asked.
    left: u64,
    asked: Option<Instant>,
}

impl Space {
    /// For what `writer` writes to `blobs` in `directory`.
    pub fn new(directory: Arc<SnapshotDir>, blobs: File, writer: &BlobWriter, on_loss: OnLoss) -> Space {
        let usage = Usage { rows: writer.length().into(), ..Usage::default() };
        Space {
            directory,
            blobs,
            written: writer.written(),
            usage: Arc::new(usage),
            on_loss,
            longest: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
            manifest: 0,
            allocated: 0,
            allocates: on_loss == OnLoss::Refuse,
            left: 0,
            asked: None,
        }
    }

    /// What the worker counts.
    pub fn usage(&self) -> Arc<Usage> {
        Arc::clone(&self.usage)
    }

    /// Notes what the manifest is expected to take, which must fit beside the contents.
    pub fn expect_manifest(&mut self, bytes: u64) {
        if bytes > self.manifest {
            self.left = self.left.saturating_sub(bytes - self.manifest);
            self.manifest = bytes;
        }
    }

    /// Promises so many bytes of the file to a content.
    ///
    /// # Errors
    /// There is too little space.
    pub fn reserve(&mut self, bytes: u64) -> Result<Reserved, BlobOmitted> {
        if self.usage.failed.load(Ordering::SeqCst) {
            return Err(BlobOmitted::NoSpace);
        }
        let reserved = Reserved(bytes);
        self.usage.promised.fetch_add(reserved.0, Ordering::SeqCst);
        let is_recent = self.allocates || self.asked.is_some_and(|asked| asked.elapsed() < INTERVAL);
        if reserved.0 <= self.left && is_recent {
            self.left -= reserved.0;
            return Ok(reserved);
        }
        match self.ask() {
            Ok(left) => {
                (self.left, self.asked) = (left, Some(Instant::now()));
                Ok(reserved)
            }
            Err(reason) => {
                self.release(reserved);
                Err(reason)
            }
        }
    }

    /// Takes space back that no content needs.
    pub fn release(&mut self, Reserved(bytes): Reserved) {
        self.usage.promised.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Whether so many bytes fit beside what was promised.
    pub fn has_room(&self, bytes: u64) -> bool {
        let (length, end) = self.lengths();
        self.fits(bytes.saturating_add(end.saturating_sub(self.allocated.max(length))))
    }

    /// Whether so many bytes may still be taken of the filesystem; one that can't be asked has them.
    fn fits(&self, bytes: u64) -> bool {
        self.directory.room().map_or(true, |room| bytes <= room)
    }

    /// How long the file is, and how long it becomes with all that was promised.
    fn lengths(&self) -> (u64, u64) {
        let written = self.written.load(Ordering::SeqCst);
        let promised = self.usage.promised.load(Ordering::SeqCst);
        let rows = self.usage.rows.load(Ordering::SeqCst);
        let length = self.blobs.metadata().map_or(0, |metadata| metadata.size());
        (length, length + BUFFERED + promised + rows.saturating_sub(written) + self.manifest)
    }

    /// Makes sure of the space for all that was promised, and says how much more may be.
    fn ask(&mut self) -> Result<u64, BlobOmitted> {
        let (length, end) = self.lengths();
        let longest = self.longest.saturating_add(self.manifest);
        if end > longest {
            return Err(BlobOmitted::NoSpace);
        }
        if let Some(left) = self.allocate(end)? {
            return Ok(left.min(longest - end));
        }
        // Whatever others take meanwhile is missed until it is asked again.
        let ample = if self.on_loss == OnLoss::Warn { INTERVAL_BYTES } else { 0 };
        let mut more = [ample, ample / 4, ample / 16, 0].into_iter();
        let more = more.find(|more| self.fits(end + more - length)).ok_or(BlobOmitted::NoSpace)?;
        Ok(more.min(longest - end))
    }

    /// Allocates blocks up to `end`, and more to spare where there are some, and says how many bytes more;
    /// none where that is not wanted or the filesystem can't.
    fn allocate(&mut self, end: u64) -> Result<Option<u64>, BlobOmitted> {
        for wanted in [end + INTERVAL_BYTES, end] {
            if !self.allocates {
                return Ok(None);
            }
            if end <= self.allocated {
                break;
            }
            let more = wanted - self.allocated;
            if !self.fits(more) {
                continue;
            }
            let keep_size = FallocateFlags::KEEP_SIZE;
            match retry_on_intr(|| fallocate(&self.blobs, keep_size, self.allocated, more)) {
                Ok(()) => self.allocated = wanted,
                Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {}
                Err(_) => (self.allocates, self.allocated) = (false, 0),
            }
        }
        self.allocated.checked_sub(end).map(Some).ok_or(BlobOmitted::NoSpace)
    }

    /// Gives back what was allocated beyond the end of a file that is written.
    pub fn trim(&self, file: &File) -> io::Result<()> {
        match self.on_loss {
            OnLoss::Warn => Ok(()),
            OnLoss::Refuse => file.set_len(file.metadata()?.size()),
        }
    }
}
