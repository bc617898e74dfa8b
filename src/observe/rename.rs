//! Renames: what a moved name takes along, and what it replaces.
//!
//! A directory is walked before it moves: every path beneath it is deleted at its old name and
//! written at its new one. Neighbour: `changes.rs`, whose calls these are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::stat::FileStat;

use super::capture::Fate;
use super::changes::Part;
use super::recorder::{Sight, State};
use super::resolve;
use super::table::{ProcessId, RecordId};
use crate::snapshot::{Operation, Operations, WarningKind};
use crate::trace::syscalls::Effect;

/// A path beneath a directory that is about to move.
#[derive(Debug)]
pub(super) struct Moved {
    /// Its name below the directory, with a slash in front.
    relative: Vec<u8>,
    sight: Sight,
    /// That of the name which it gets.
    target: Sight,
}

impl State {
    /// Walks the directories that a rename moves, unless the kernel will refuse it.
    pub fn prepare_moves(&mut self, parts: &mut [Part]) {
        let [from, to] = parts else { return };
        let Effect::RenameFrom { exchange } = from.effect else { return };
        let Some(from_stat) = from.stat else { return };
        if will_be_refused(&from_stat, from, to, exchange) {
            return;
        }
        from.moved = self.walk(from, &to.path);
        if exchange {
            to.moved = self.walk(to, &from.path);
        }
        // Another process may look at the new names before the result is known.
        for (moved, path) in [(&mut from.moved, &to.path), (&mut to.moved, &from.path)] {
            for moved in moved {
                // Nothing is there: a directory that is replaced is empty, and what is in one that is
                // exchanged was seen just now.
                moved.target = self.sight_of_change([path.as_slice(), &moved.relative].concat(), None);
            }
        }
    }

    fn walk(&mut self, part: &Part, to: &[u8]) -> Vec<Moved> {
        if !part.stat.as_ref().is_some_and(resolve::is_directory) {
            return Vec::new();
        }
        let mut moved = Vec::new();
        let start = Path::new(OsStr::from_bytes(&part.path));
        let mut walk = walkdir::WalkDir::new(start).min_depth(1).follow_links(false).into_iter();
        while let Some(entry) = walk.next() {
            let path = match &entry {
                Ok(entry) => entry.path().as_os_str().as_bytes().to_vec(),
                Err(error) => {
                    let path =
                        error.path().map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec());
                    self.not_walked(&path);
                    continue;
                }
            };
            if self.resolver.is_served(&path) {
                self.not_walked(&path);
                walk.skip_current_dir();
                continue;
            }
            let stat = match resolve::lstat(&path) {
                Ok(Some(stat)) => stat,
                Ok(None) => continue,
                Err(_) => {
                    self.not_walked(&path);
                    continue;
                }
            };
            let relative = path[part.path.len()..].to_vec();
            let sight = self.sight_of_change(path, Some(&stat));
            match &sight {
                Sight::Record(record) => {
                    self.take_xattrs(*record, Some(&stat));
                    if let Some(held) = self.hold_content(*record, Some(&stat), Fate::Survive) {
                        self.keep_content(held);
                    }
                }
                // What a rule leaves out is not looked into, and counted once, unless it comes where none does.
                Sight::Suppressed(..) if self.rule_of(&[to, &relative].concat(), None).is_none() => {}
                Sight::Suppressed(..) | Sight::Own if resolve::is_directory(&stat) => walk.skip_current_dir(),
                Sight::Suppressed(..) | Sight::Own => {}
            }
            moved.push(Moved { relative, sight, target: Sight::Own });
        }
        moved
    }

    fn not_walked(&mut self, path: &[u8]) {
        self.warnings.lost(WarningKind::LateBeforeState, None, || {
            format!("{} moved, but could not be walked", String::from_utf8_lossy(path))
        });
    }

    /// Records a rename that was done.
    pub fn renamed(&mut self, process: ProcessId, from: &mut Part, to: &mut Part) {
        let (Effect::RenameFrom { exchange }, Some(from_stat)) = (from.effect, from.stat) else { return };
        if let Some(to_stat) = to.stat
            && (from_stat.st_dev, from_stat.st_ino) == (to_stat.st_dev, to_stat.st_ino)
        {
            // Two names of one file: rename(2) does nothing.
            for part in [from, to] {
                if let Sight::Record(record) = part.sight {
                    self.table.get_mut(record).merge(Operation::Existence.into(), process);
                }
            }
            return;
        }
        let write = Operations::from(Operation::Write);
        let source = if exchange { write } else { Operation::Delete.into() };
        self.moved_part(process, from, source);
        self.moved_part(process, to, write);
        if !exchange {
            self.unnamed(to.stat.as_ref());
        }
        self.link_records(&from.sight, &to.sight, exchange);
        self.move_beneath(process, from, to);
        self.move_beneath(process, to, from);
        let names_moved = |stat: &FileStat| resolve::is_directory(stat) || resolve::is_link(stat);
        if names_moved(&from_stat) || to.stat.as_ref().is_some_and(names_moved) {
            self.resolver.renamed(&from.path, &to.path, exchange);
            self.forget_names();
        }
    }

    fn moved_part(&mut self, process: ProcessId, part: &mut Part, operations: Operations) {
        self.repositories.note_change(&part.path);
        match &part.sight {
            Sight::Record(record) => {
                let record = *record;
                if let Some(held) = part.held.take() {
                    self.keep_content(held);
                }
                self.move_record(process, record, operations);
            }
            Sight::Suppressed(rule, topmost) => self.suppressed.write(*rule, topmost),
            Sight::Own => {}
        }
    }

    fn move_record(&mut self, process: ProcessId, record: RecordId, operations: Operations) {
        self.count_change(record);
        let observation = self.table.get_mut(record);
        observation.merge(operations, process);
        observation.replaced = true;
        observation.written |= operations.contains(Operation::Write);
        observation.deleted |= operations.contains(Operation::Delete);
        if operations.contains(Operation::Delete) {
            self.note_gone(record);
        }
    }

    fn link_records(&mut self, from: &Sight, to: &Sight, exchange: bool) {
        if let (Sight::Record(from), Sight::Record(to)) = (from, to) {
            self.table.note_renamed(*from, *to);
            if exchange {
                self.table.note_renamed(*to, *from);
            }
        }
    }

    fn move_beneath(&mut self, process: ProcessId, from: &mut Part, to: &Part) {
        for moved in std::mem::take(&mut from.moved) {
            match &moved.sight {
                Sight::Record(record) => self.move_record(process, *record, Operation::Delete.into()),
                Sight::Suppressed(rule, topmost) => self.suppressed.write(*rule, topmost),
                Sight::Own => continue,
            }
            self.repositories.note_change(&[to.path.as_slice(), &moved.relative].concat());
            match &moved.target {
                Sight::Record(record) => self.move_record(process, *record, Operation::Write.into()),
                Sight::Suppressed(rule, topmost) => self.suppressed.write(*rule, topmost),
                Sight::Own => {}
            }
            self.link_records(&moved.sight, &moved.target, false);
        }
    }
}

/// Whether the kernel will refuse to move a directory there, so that walking it is in vain.
fn will_be_refused(from_stat: &FileStat, from: &Part, to: &Part, exchange: bool) -> bool {
    let parent = resolve::parent_of(&to.path).and_then(|parent| resolve::lstat(parent).ok().flatten());
    let other_device = parent.is_none_or(|parent| parent.st_dev != from_stat.st_dev);
    let beneath_itself = super::recorder::is_below(&to.path, &from.path);
    let occupied = !exchange && to.stat.is_some() && {
        let entries = std::fs::read_dir(OsStr::from_bytes(&to.path));
        !entries.is_ok_and(|mut entries| entries.next().is_none())
    };
    resolve::is_directory(from_stat) && (other_device || beneath_itself || occupied)
}
