//! What the journal of a recording is told: before a call continues that may change something, the
//! before-states and bytes that it may destroy.
//!
//! Each name, each content and each process is written once; a call that tells nothing new costs nothing, any
//! other one write(2). Neighbours: `snapshot/journal.rs` has the frames, `calls/journal.rs` and
//! `ledger/protect.rs` say what is at stake.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::capture::Captured;
use super::ledger::ids::{InodeId, ProcessId};
use crate::snapshot::journal::{Frames, RecordingJournal};
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::{BlobOmitted, FileRecord, RecordedProcess};

/// Frames that nobody waits for are written after this many bytes.
const FLUSH_BYTES: usize = 64 << 10;
/// Frames are written at the latest after this many bytes.
const MAX_PENDING_BYTES: usize = 1 << 20;
/// How often the free space is asked for where there is much, in bytes written.
const SPACE_INTERVAL: u64 = 16 << 20;

/// The journal, and what is still to be written to it.
pub struct ChangeJournal {
    journal: Arc<RecordingJournal>,
    directory: Arc<SnapshotDir>,
    frames: Frames,
    /// Whether a call must not continue before the frames are written.
    due: bool,
    /// The inodes whose bytes it has, or names the place of.
    inodes: HashSet<InodeId, foldhash::fast::RandomState>,
    /// How many bytes may be written before the free space is asked for again.
    room: u64,
    failed: bool,
}

impl ChangeJournal {
    /// Writes to `journal`, with copies of larger files beside it.
    pub fn new(journal: Arc<RecordingJournal>, directory: Arc<SnapshotDir>) -> ChangeJournal {
        ChangeJournal {
            journal,
            directory,
            frames: Frames::default(),
            due: false,
            inodes: HashSet::default(),
            room: 0,
            failed: false,
        }
    }

    /// Adds the bytes of an inode that a call may destroy, or where they are; `identity` is that of the file
    /// itself, and `stores` says whether its bytes are stored at all.
    pub fn protect(&mut self, id: InodeId, captured: &Captured, identity: (u64, u64), stores: bool) {
        if self.failed {
            return;
        }
        let inode = id.number();
        match captured {
            Captured::Bytes(bytes) => {
                if !self.inodes.insert(id) {
                    return;
                }
                if !stores {
                    self.frames.omitted(inode, BlobOmitted::TooLarge);
                } else if self.has_room(bytes.len()) {
                    self.frames.content(inode, bytes);
                } else {
                    self.frames.omitted(inode, BlobOmitted::NoSpace);
                }
            }
            Captured::File(file) if is_same(file, identity) => {
                if !self.inodes.insert(id) {
                    return;
                }
                self.journal.hold(inode, file.as_fd());
                self.frames.held(inode);
            }
            Captured::File(copy) => {
                self.inodes.insert(id);
                let synced = if self.journal.syncs() { copy.sync_all() } else { Ok(()) };
                match synced.and_then(|()| self.directory.name_temporarily(copy)) {
                    Ok(name) => {
                        self.frames.copy(inode, &name);
                        self.journal.note_copy(inode, name);
                    }
                    // The command has removed the directory.
                    Err(_) => {
                        self.journal.hold(inode, copy.as_fd());
                        self.frames.held(inode);
                    }
                }
            }
            Captured::Omitted(reason) => self.frames.omitted(inode, *reason),
        }
        self.due = true;
    }

    /// Notes that the bytes of an inode, held by a descriptor or copied, were not destroyed.
    pub fn release(&mut self, id: InodeId, captured: &Captured) {
        if let Captured::File(_) = captured {
            self.inodes.remove(&id);
            self.directory.remove_temporaries(self.journal.release(id.number()).as_slice());
        }
    }

    /// Adds the record of a path that a call may change, with the inode that was there before.
    pub fn file(&mut self, before: Option<InodeId>, record: &FileRecord) {
        self.frames.file(before.map(InodeId::number), record);
        self.due = true;
        // A directory that moves may have any number of names.
        self.write_beyond(MAX_PENDING_BYTES);
    }

    /// Adds that a call may move what is at `from`.
    pub fn moved(&mut self, from: &[u8], to: &[u8]) {
        self.frames.moved(from, to);
        self.due = true;
    }

    /// Whether writing has failed, so that nothing more is written.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Adds a process that has started or executes another program.
    pub fn process(&mut self, process: &RecordedProcess) {
        self.frames.process(process);
        self.write_beyond(FLUSH_BYTES);
    }

    /// Adds the end of a process.
    pub fn ended(&mut self, process: ProcessId, status: i32) {
        self.frames.ended(process.0, status);
        self.write_beyond(FLUSH_BYTES);
    }

    /// Writes what is pending if it is at least `limit` bytes long.
    fn write_beyond(&mut self, limit: usize) {
        if self.frames.len() >= limit {
            // The journal remembers a failure, and the next flush that is due returns it.
            let _ = self.write();
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let written = self.journal.write(&mut self.frames);
        self.frames.clear();
        written
    }

    /// Whether there is room for more bytes.
    fn has_room(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        if bytes > self.room {
            // Others write there, too, so it is asked again before all of that is used.
            let free = self.directory.room().unwrap_or(u64::MAX);
            if bytes > free {
                return false;
            }
            self.room = (free / 2).clamp(bytes, SPACE_INTERVAL.max(bytes));
        }
        self.room -= bytes;
        true
    }

    /// Writes what must be on file before a call continues.
    ///
    /// # Errors
    /// The first failure of writing; after that nothing is written.
    pub fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.due) || self.failed {
            return Ok(());
        }
        let written = self.write();
        self.failed = written.is_err();
        written
    }
}

fn is_same(file: &File, identity: (u64, u64)) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity)
}
