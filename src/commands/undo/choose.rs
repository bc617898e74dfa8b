//! Which recordings an undo or redo is about: those that were named, or the newest.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use super::Undoing;
use crate::cli::{Undo, UndoOptions};
use crate::commands::log::{before_now, started};
use crate::commands::open::scope;
use crate::commands::out::Console;
use crate::commands::paths::{counted, live};
use crate::library::Entry;
use crate::library::log::EntryState;
use crate::library::undone::Undone;
use crate::snapshot::Snapshot;

impl Undoing {
    /// The candidates that the options choose by time, the oldest first.
    pub(super) fn newest(&self, args: &Undo, console: &mut Console) -> anyhow::Result<Vec<&Entry>> {
        let scope = scope(&args.options.access, args.options.all);
        let candidates =
            self.recordings.entries.iter().rev().filter(|entry| self.recordings.is_candidate(entry));
        let candidates = candidates.filter(|entry| scope.contains(entry, &self.recordings.library));
        let is_whole_session = args.options.access.session.is_some();
        if is_whole_session {
            self.name_unfinished(args, console);
        }
        let mut chosen: Vec<&Entry> = match (args.number, args.since) {
            (Some(number), _) => candidates.take(number.get()).collect(),
            (None, Some(since)) => {
                let oldest = before_now(since)?;
                candidates.filter(|entry| started(entry).is_some_and(|at| at >= oldest)).collect()
            }
            (None, None) if is_whole_session => candidates.collect(),
            (None, None) => candidates.take(1).collect(),
        };
        if let Some(number) = args.number.filter(|number| !chosen.is_empty() && chosen.len() < number.get()) {
            let there = counted(chosen.len(), "command", "commands");
            let are = if chosen.len() == 1 { "is" } else { "are" };
            console.say(format_args!("there {are} only {there} to undo here, not {number}"));
        }
        chosen.reverse();
        Ok(chosen)
    }

    /// Whether one of the recordings has changed something at a path, or below it.
    pub(super) fn any_changed(&self, path: &OsStr, args: &Undo) -> anyhow::Result<bool> {
        let (scope, paths) = (scope(&args.options.access, args.options.all), live(path)?);
        let changed_one = |entry: &Entry| {
            scope.contains(entry, &self.recordings.library)
                && self.recordings.changed_one(entry, &paths, |_| true)
        };
        Ok(self.recordings.entries.iter().rev().any(changed_one))
    }

    /// The newest candidate that changed something at one of these paths that is not undone.
    pub(super) fn newest_that_changed(
        &self,
        paths: &[OsString],
        args: &Undo,
    ) -> anyhow::Result<Option<&Entry>> {
        let scope = scope(&args.options.access, args.options.all);
        let paths = paths.iter().map(|path| live(path)).collect::<anyhow::Result<Vec<_>>>()?.concat();
        let is_it = |entry: &&Entry| {
            let undone = self.recordings.undone.paths_of(&entry.id);
            self.recordings.is_candidate(entry)
                && scope.contains(entry, &self.recordings.library)
                && self.recordings.changed_one(entry, &paths, |changed| !undone.contain(changed))
        };
        Ok(self.recordings.entries.iter().rev().find(is_it))
    }

    /// The recordings that were named, the oldest first; none if one of them can't be undone.
    pub(super) fn named(&self, recordings: Vec<Entry>, console: &mut Console) -> Option<Vec<&Entry>> {
        let mut ids = HashSet::new();
        for entry in recordings {
            if entry.imported {
                let id = &entry.id;
                console.say(format_args!(
                    "{id} was imported: agent-snapshot restore --before --foreign {id} puts back what it has changed"
                ));
                return None;
            }
            if entry.state == EntryState::Running {
                let id = &entry.id;
                match Snapshot::open(&self.recordings.library.directory_of(id)) {
                    Ok(_) => console.say(format_args!(
                        "{id} is still running: agent-snapshot restore --before {id} puts back what it has changed so far"
                    )),
                    Err(_) => console.say(format_args!("{id} is still running: it can be undone once it has ended")),
                }
                return None;
            }
            if let Some(Undone { at, .. }) = self.recordings.undone.get(&entry.id) {
                let id = &entry.id;
                console
                    .say(format_args!("{id} was undone at {at} (agent-snapshot redo {id} takes that back)"));
                return None;
            }
            ids.insert(entry.id);
        }
        Some(self.recordings.entries.iter().filter(|entry| ids.contains(&entry.id)).collect())
    }

    /// What was undone last.
    pub(super) fn last_undone(&self, options: &UndoOptions) -> Option<Undone> {
        let scope = scope(&options.access, options.all);
        let entries = self.recordings.entries.iter();
        let candidates = entries.filter(|entry| scope.contains(entry, &self.recordings.library));
        let undone = candidates.filter_map(|entry| Some((entry, self.recordings.undone.last(&entry.id)?)));
        let (entry, undone) = undone.max_by(|(_, one), (_, other)| one.at.cmp(&other.at))?;
        // The rescue of the redo names no more than one, or all.
        if undone.rescues.len() > 1 { self.recordings.undone.all_of(&entry.id) } else { Some(undone.clone()) }
    }
}
