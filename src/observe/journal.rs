//! What the journal of a recording is told: before a call continues that may change something, the
//! before-states and bytes that it may destroy.
//!
//! Each name, each content and each process is written once; a call that tells nothing new costs nothing, any
//! other one write(2). Neighbours: `snapshot/journal.rs` has the frames, `calls/` and `ledger/protect.rs` say
//! what is at stake.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::calls::part::Part;
use super::capture::Held;
use super::finish;
use super::ledger::apply::Kind;
use super::ledger::ids::{InodeId, NameId, ProcessId};
use super::recording::{Classification, Recording};
use crate::snapshot::journal::{Frames, RecordingJournal};
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::{BlobOmitted, FileRecord, Operation, Operations, ProcessRecord, State, WarningKind};
use crate::trace::syscalls::Effect;

/// Frames that nobody waits for are written when they are so many bytes.
const FLUSH_BYTES: usize = 64 << 10;
/// Frames are written at the latest when they are so many bytes.
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
    pub fn hold(&mut self, id: InodeId, held: &Held, identity: (u64, u64), stores: bool) {
        if self.failed {
            return;
        }
        let inode = id.number();
        match held {
            Held::Bytes(bytes) => {
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
            Held::File(file) if is_same(file, identity) => {
                if !self.inodes.insert(id) {
                    return;
                }
                self.journal.hold(inode, file.as_fd());
                self.frames.held(inode);
            }
            Held::File(copy) => {
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
            Held::Omitted(reason) => self.frames.omitted(inode, *reason),
        }
        self.due = true;
    }

    /// Notes that the bytes of an inode, held by a descriptor or copied, were not destroyed.
    pub fn release(&mut self, id: InodeId, held: &Held) {
        if let Held::File(_) = held {
            self.inodes.remove(&id);
            self.directory.remove_temporaries(self.journal.release(id.number()).as_slice());
        }
    }

    /// Adds a process that has started or executes another program.
    pub fn process(&mut self, process: &ProcessRecord) {
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
        let written = self.journal.write(&self.frames);
        self.frames.clear();
        written
    }

    /// Whether there is room for more bytes.
    fn has_room(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        if bytes > self.room {
            // Others write there, too: half of what is free is asked for again.
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

impl Recording {
    /// Writes to the journal what a call may change or destroy, as far as it is new.
    pub fn journal_call(&mut self, process: ProcessId, parts: &[Part]) {
        if self.byte_store.journal.is_none() {
            return;
        }
        for part in parts {
            self.journal_part(process, part);
        }
        if let [from, to] = parts
            && let Effect::RenameFrom { exchange } = from.effect
        {
            self.journal_renames(process, from, to);
            if exchange {
                self.journal_renames(process, to, from);
            }
        }
        self.flush_journal();
    }

    /// Adds what becomes of one place of a call.
    pub fn journal_part(&mut self, process: ProcessId, part: &Part) {
        let meaning = part.meaning();
        if !meaning.changes || part.is_irrelevant_rewrite(&self.ledger) {
            return;
        }
        let operations = match part.effect {
            Effect::RenameFrom { exchange: true } | Effect::RenameTo { exchange: true, .. } => {
                Operation::Write.into()
            }
            _ => meaning.operations,
        };
        if let Classification::Record(name) = part.classification {
            self.journal_name(name, process, operations);
        }
        // What happens to an inode in place happens at the name by which it was first met, too.
        if let (Some(stat), Kind::Written | Kind::Appended | Kind::Attributes) = (&part.stat, meaning.kind)
            && let Some(id) = self.ledger.inodes.of(stat)
            && let Some(first) = self.ledger.inodes.get(id).name
            && self.ledger.is_bound_to(first, id)
        {
            let operation =
                if meaning.kind == Kind::Attributes { Operation::Metadata } else { Operation::Write };
            self.journal_name(first, process, operation.into());
        }
    }

    /// Adds where a rename moves what is at `from` and beneath it.
    fn journal_renames(&mut self, process: ProcessId, from: &Part, to: &Part) {
        let recorded = |classification: &Classification| matches!(classification, Classification::Record(_));
        if recorded(&from.classification) && recorded(&to.classification) {
            self.journal_move(&from.path, &to.path);
        }
        for moved in &from.moved {
            let ends = [(&moved.classification, Operation::Delete), (&moved.target, Operation::Write)];
            for (classification, operation) in ends {
                if let Classification::Record(name) = classification {
                    self.journal_name(*name, process, operation.into());
                }
            }
            if recorded(&moved.classification) && recorded(&moved.target) {
                let [from, to] = [from, to].map(|part| [part.path.as_slice(), &moved.relative].concat());
                self.journal_move(&from, &to);
            }
        }
    }

    fn journal_move(&mut self, from: &[u8], to: &[u8]) {
        if let Some(journal) = &mut self.byte_store.journal {
            journal.frames.moved(from, to);
            journal.due = true;
        }
    }

    /// Adds the before-state of a name that a call may change, once.
    fn journal_name(&mut self, id: NameId, process: ProcessId, operations: Operations) {
        let Some(journal) = &mut self.byte_store.journal else { return };
        let name = self.ledger.names.get_mut(id);
        if journal.failed || std::mem::replace(&mut name.journaled, true) {
            return;
        }
        let path = self.ledger.names.path(id);
        let name = self.ledger.names.get(id);
        let before = match name.before.map(|inode| self.ledger.inodes.get(inode)) {
            Some(inode) => State::Present(Box::new(finish::present_before(inode))),
            None => State::Absent { tombstone: false },
        };
        let after = State::Absent { tombstone: false };
        let mut record = FileRecord::new(path, before, after, operations.union(name.operations));
        record.processes = name.processes.named();
        if !record.processes.contains(&process.0) {
            record.processes.push(process.0);
        }
        record.inherited = name.inherited;
        record.git = name.git.as_ref().map(|facts| finish::git_state(&self.repositories, facts, path));
        journal.frames.file(name.before.map(InodeId::number), &record);
        journal.due = true;
        // A directory that moves may hold any number of names.
        journal.write_beyond(MAX_PENDING_BYTES);
    }

    /// Writes that the file of a name may be changed, though no call says so.
    pub fn journal_written(&mut self, name: NameId, process: ProcessId) {
        self.journal_name(name, process, Operation::Write.into());
        self.flush_journal();
    }

    /// Adds a process that has started or executes another program.
    pub fn journal_process(&mut self, process: ProcessId) {
        if let Some(journal) = &mut self.byte_store.journal {
            journal.process(&self.processes.record(process));
        }
    }

    /// Writes what must be on file before the stopped call continues.
    pub fn flush_journal(&mut self) {
        let Some(journal) = &mut self.byte_store.journal else { return };
        if let Err(error) = journal.flush() {
            self.warnings.note(WarningKind::ContentOmitted, None, || {
                format!(
                    "the journal could not be written ({error}): had the recording been killed, what was \
                     changed after that could not have been recovered"
                )
            });
        }
    }
}
