//! Renames: what a moved name takes along, and what it replaces.
//!
//! A rename destroys no bytes of what it moves. Every path beneath a directory that moves is deleted at its
//! old name and written at its new one: it is walked at the entry, while no other call may change what is in
//! it, and listed again at the result for what came from outside. Neighbours: `changes.rs`, whose calls these
//! are, and the ledger, which takes what was done.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::part::{Moved, Part};
use crate::fs::{self, FileStat};
use crate::observe::capture::Threat;
use crate::observe::ledger::apply::{Change, CopyUp, Kind};
use crate::observe::ledger::ids::ProcessId;
use crate::observe::policy::suppressed::LeftOut;
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve;
use crate::snapshot::{Operation, Operations, Seen, WarningKind};
use crate::trace::syscalls::Effect;

/// Paths beneath a directory that moves.
type KnownPaths<'a> = HashSet<&'a [u8], foldhash::fast::RandomState>;

impl Recording {
    /// Prepares a rename: walks the directories that it moves, unless the kernel will refuse it.
    pub fn prepare_moves(&mut self, parts: &mut [Part]) {
        if let [from] = parts
            && matches!(from.effect, Effect::RenameFrom { .. } | Effect::RenameTo { .. })
        {
            // It goes where nothing is recorded.
            return self.protect_part(from);
        }
        let [from, to] = parts else { return };
        let Effect::RenameFrom { exchange } = from.effect else { return };
        let Some(from_stat) = from.stat else { return };
        if !is_recorded(&to.classification) {
            self.protect_part(from);
        }
        if exchange && !is_recorded(&from.classification) {
            self.protect_part(to);
        }
        if will_be_refused(&from_stat, from, to, exchange) {
            return;
        }
        if from.classification == Classification::Own && to.stat.is_none() {
            to.classification = Classification::Own;
        }
        from.moved = self.walk(from, &from.path.clone(), &to.path, &KnownPaths::default());
        if exchange {
            to.moved = self.walk(to, &to.path.clone(), &from.path, &KnownPaths::default());
        }
        // Another process may use the new names before the result is known.
        for (moved, path) in [(&mut from.moved, &to.path), (&mut to.moved, &from.path)] {
            self.find_targets(moved, path);
        }
    }

    fn protect_part(&mut self, part: &mut Part) {
        if let (Some(stat), None, true) =
            (part.stat, &part.protected, part.classification != Classification::Own)
        {
            let on_loss = self.byte_store.capture.on_loss();
            match self.protector().try_protect(&part.path, &stat, Threat::Unlink, on_loss) {
                Ok(claim) => part.protected = claim,
                Err(reason) => part.loss = Some(reason),
            }
        }
    }

    /// Finds the records of the names that moved paths get below `path`.
    fn find_targets(&mut self, moved: &mut [Moved], path: &[u8]) {
        // What is our own stays so.
        for moved in moved.iter_mut().filter(|moved| moved.classification != Classification::Own) {
            // Nothing is there: a directory that is replaced is empty, and what is in one that is
            // exchanged was seen just now.
            let path = [path, &moved.relative].concat();
            moved.target = self.classify_for_write(path.clone(), None);
            if let Classification::Recorded(name) = moved.target {
                self.ask_git(name, &path, None);
            }
        }
    }

    /// What lies beneath the directory of `part`, which is at `now` and moves to `to`, but for what is known.
    fn walk(&mut self, part: &Part, now: &[u8], to: &[u8], known: &KnownPaths<'_>) -> Vec<Moved> {
        if !part.stat.as_ref().is_some_and(resolve::is_directory) {
            return Vec::new();
        }
        let mut moved = Vec::new();
        let start = Path::new(OsStr::from_bytes(now));
        let mut walk = walkdir::WalkDir::new(start).min_depth(1).follow_links(false).into_iter();
        while let Some(entry) = walk.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let path = error.path().map_or(&b""[..], |path| path.as_os_str().as_bytes());
                    self.not_walked(path);
                    continue;
                }
            };
            let path = entry.path().as_os_str().as_bytes();
            let relative = &path[now.len()..];
            if known.contains(relative) {
                continue;
            }
            let relative = relative.to_vec();
            if self.resolver.is_served(path) {
                self.not_walked(path);
                walk.skip_current_dir();
                continue;
            }
            let stat = match fs::lstat(path) {
                Ok(Some(stat)) => stat,
                Ok(None) => continue,
                Err(_) => {
                    self.not_walked(path);
                    continue;
                }
            };
            let name = [part.path.as_slice(), &relative].concat();
            let classification = self.classify_for_write(name.clone(), Some(&stat));
            match &classification {
                Classification::Recorded(known) => {
                    self.ask_git(*known, &name, Some(&stat));
                    self.protector().pin(*known, path, &stat);
                }
                // What a rule leaves out is not walked, and counted once, unless it comes where none does.
                Classification::Suppressed(..)
                    if self.policy.exclusion(&[to, &relative].concat(), None).is_none() => {}
                Classification::Suppressed(..) | Classification::Own if resolve::is_directory(&stat) => {
                    walk.skip_current_dir()
                }
                Classification::Suppressed(..) | Classification::Own => {}
            }
            moved.push(Moved { relative, stat, classification, target: Classification::Own });
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
                if let Classification::Recorded(name) = part.classification {
                    self.ledger.merge(name, Operation::Existence.into(), process);
                }
            }
            return;
        }
        self.find_newcomers(from, to);
        if exchange {
            self.find_newcomers(to, from);
        }
        // An overlay copies up what it moves.
        self.protector().note_copy_up(&to.path, &from_stat, CopyUp::Only);
        if exchange && let Some(to_stat) = &to.stat {
            self.protector().note_copy_up(&from.path, to_stat, CopyUp::Only);
        }
        let write = Operations::from(Operation::Write);
        if exchange {
            let (kinds, operations) =
                ([kind_of_exchange(&to.classification), kind_of_exchange(&from.classification)], write);
            self.moved_part(process, from, kinds[0], operations);
            self.moved_part(process, to, kinds[1], operations);
        } else {
            let kind = if is_recorded(&to.classification) { Kind::Moved } else { Kind::Removed };
            self.moved_part(process, from, kind, Operation::Delete.into());
            self.moved_part(process, to, Kind::Bound, write);
        }
        self.connect_records(&from.classification, &to.classification, exchange);
        self.move_beneath(process, from, to);
        self.move_beneath(process, to, from);
        self.mounts.renamed(&from.path, &to.path, exchange);
        let names_moved = |stat: &FileStat| resolve::is_directory(stat) || resolve::is_symlink(stat);
        if names_moved(&from_stat) || to.stat.as_ref().is_some_and(names_moved) {
            self.resolver.renamed(&from.path, &to.path, exchange);
            self.policy.renamed(&from.path, &to.path);
            self.mounts.names_changed();
            self.forget_names();
        } else {
            self.forget_mounts_of(&from.path);
            self.forget_mounts_of(&to.path);
        }
    }

    /// Adds what has come into a directory that moved, from outside, after it was walked.
    fn find_newcomers(&mut self, from: &mut Part, to: &Part) {
        let known = from.moved.iter().map(|moved| moved.relative.as_slice()).collect();
        let mut newcomers = self.walk(from, &to.path, &to.path, &known);
        self.find_targets(&mut newcomers, &to.path);
        from.moved.append(&mut newcomers);
    }

    fn moved_part(&mut self, process: ProcessId, part: &mut Part, kind: Kind, operations: Operations) {
        let name = match &part.classification {
            Classification::Recorded(name) => Some(*name),
            Classification::Suppressed(rule, topmost) => {
                let change = LeftOut { topmost, path: &part.path, operations, by: process };
                self.policy.suppressed.write(*rule, change);
                None
            }
            Classification::Own => return,
        };
        if let Some(name) = name {
            self.ledger.see(name, part.meaning().seen);
        }
        self.change(process, part, name, kind, operations);
    }

    fn connect_records(&mut self, from: &Classification, to: &Classification, exchange: bool) {
        if let (Classification::Recorded(from), Classification::Recorded(to)) = (from, to) {
            self.ledger.names.note_renamed(*from, *to);
            if exchange {
                self.ledger.names.note_renamed(*to, *from);
            }
        }
    }

    /// Notes in the record of a hard link which file it was made from: the link may be gone at the end.
    pub fn connect_link(&mut self, from: &Classification, to: &Classification) {
        if let (Classification::Recorded(from), Classification::Recorded(to)) = (from, to) {
            self.ledger.names.note_linked(*from, *to);
        }
    }

    fn move_beneath(&mut self, process: ProcessId, from: &mut Part, to: &Part) {
        for moved in std::mem::take(&mut from.moved) {
            let path = [to.path.as_slice(), &moved.relative].concat();
            let kind = if is_recorded(&moved.target) { Kind::Moved } else { Kind::Removed };
            if kind == Kind::Removed
                && moved.classification != Classification::Own
                && let Some(protected) = self.protector().protect(&path, &moved.stat, Threat::Unlink)
            {
                self.protector().keep(protected);
            }
            let old = [from.path.as_slice(), &moved.relative].concat();
            let ends = [
                (&old, &moved.classification, kind, Operation::Delete, Some(&moved.stat)),
                (&path, &moved.target, Kind::Bound, Operation::Write, None),
            ];
            for (path, classification, kind, operation, stat) in ends {
                let name = match classification {
                    Classification::Recorded(name) => Some(*name),
                    Classification::Suppressed(rule, topmost) => {
                        let change = LeftOut { topmost, path, operations: operation.into(), by: process };
                        self.policy.suppressed.write(*rule, change);
                        None
                    }
                    Classification::Own => continue,
                };
                if let (Some(name), Operation::Delete) = (name, operation) {
                    self.ledger.see(name, Seen::CONTENT);
                }
                let operations = operation.into();
                let (by, began_us) = (process, from.began_us);
                self.apply(Change { name, stat, kind, operations, by, by_name: true, began_us });
            }
            self.repositories.note_change(&path);
            self.connect_records(&moved.classification, &moved.target, false);
        }
    }
}

fn is_recorded(classification: &Classification) -> bool {
    matches!(classification, Classification::Recorded(_))
}

/// What an exchange does to a name whose inode goes where `other` is.
fn kind_of_exchange(other: &Classification) -> Kind {
    if is_recorded(other) { Kind::Exchanged } else { Kind::Bound }
}

/// Whether the kernel will refuse to move a directory there, so that walking it is in vain.
fn will_be_refused(from_stat: &FileStat, from: &Part, to: &Part, exchange: bool) -> bool {
    let parent = fs::parent_of(&to.path).and_then(|parent| fs::lstat(parent).ok().flatten());
    let other_device = parent.is_none_or(|parent| parent.st_dev != from_stat.st_dev);
    let beneath_itself = resolve::is_below(&to.path, &from.path);
    let occupied = !exchange && to.stat.is_some() && {
        let entries = std::fs::read_dir(OsStr::from_bytes(&to.path));
        !entries.is_ok_and(|mut entries| entries.next().is_none())
    };
    resolve::is_directory(from_stat) && (other_device || beneath_itself || occupied)
}
