//! What a call tells the journal before it continues: the names that it may change, and where it moves them.
//!
//! Neighbours: `part.rs` has the places of a call, `observe/journal.rs` what is still to be written.

use super::part::Part;
use crate::observe::finish;
use crate::observe::ledger::apply::Kind;
use crate::observe::ledger::ids::{NameId, ProcessId};
use crate::observe::recording::{Classification, Recording};
use crate::snapshot::{FileRecord, Operation, Operations, State, WarningKind};
use crate::trace::syscalls::Effect;

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
        if let Classification::Recorded(name) = part.classification {
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
        let recorded =
            |classification: &Classification| matches!(classification, Classification::Recorded(_));
        if recorded(&from.classification) && recorded(&to.classification) {
            self.journal_move(&from.path, &to.path);
        }
        for moved in &from.moved {
            let ends = [(&moved.classification, Operation::Delete), (&moved.target, Operation::Write)];
            for (classification, operation) in ends {
                if let Classification::Recorded(name) = classification {
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
            journal.moved(from, to);
        }
    }

    /// Adds the before-state of a name that a call may change, once.
    fn journal_name(&mut self, id: NameId, process: ProcessId, operations: Operations) {
        let Some(journal) = &mut self.byte_store.journal else { return };
        let name = self.ledger.names.get_mut(id);
        if journal.has_failed() || std::mem::replace(&mut name.journaled, true) {
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
        record.processes = name.uses.processes();
        record.uses = self.processes.recorded_uses(&name.uses);
        if !record.processes.contains(&process.0) {
            record.processes.push(process.0);
        }
        record.uses.push(self.processes.use_now(process, operations));
        record.inherited = name.inherited;
        record.is_git_state = name.is_git_state;
        record.git = name.git.as_ref().map(|facts| finish::git_status(&self.repositories, facts, path));
        journal.file(name.before, &record);
    }

    /// Writes that the file of a name may be changed, though no call says so.
    pub fn journal_written(&mut self, name: NameId, process: ProcessId) {
        self.journal_name(name, process, Operation::Write.into());
        self.flush_journal();
    }

    /// Adds a process that has started or executes another program.
    pub fn journal_process(&mut self, process: ProcessId) {
        if let Some(journal) = &mut self.byte_store.journal {
            journal.process(&self.processes.recorded(process));
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
