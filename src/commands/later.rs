//! What recordings have changed since, in words: what is in the way of an undo, redo or restore, and what else could be undone.
//!
//! `library::recordings` and `library::touched` find it.

use std::collections::{BTreeMap, HashSet};

use super::log::command_line;
use super::open::is_in_reach;
use super::out::Console;
use crate::cli::SessionAccess;
use crate::library::recordings::{ChangedBy, Recordings};
use crate::library::touched::ChangedPaths;
use crate::library::undone::Undone;
use crate::library::{Entry, Library};
use crate::snapshot::net::{ChainBreak, Net};
use crate::snapshot::{Snapshot, printable};

/// How many recordings are named before the rest is only counted.
const NAMED: usize = 5;

/// What a recording is called if `access` does not reach it.
const ELSEWHERE: &str = "a recording elsewhere";

/// Paths, and why each is a conflict.
type Conflicts = BTreeMap<Vec<u8>, String>;

/// Names those of `entries` that changed something which `snapshot` tells of, and says whether there is one and all are in
/// reach.
pub fn name_later<'e>(
    snapshot: &Snapshot,
    entries: impl Iterator<Item = &'e Entry>,
    library: &Library,
    access: &SessionAccess,
    console: &mut Console,
) -> bool {
    let mut changed = ChangedPaths::default();
    changed.add(snapshot);
    let later = entries.filter(|entry| changed.are_touched_by(entry, library));
    let (later, elsewhere): (Vec<_>, Vec<_>) = later.partition(|entry| is_in_reach(entry, library, access));
    for other in later.iter().take(NAMED) {
        console.say(format_args!("changed since by {}: {}", other.id, command_line(other)));
    }
    if later.len() > NAMED {
        console.say(format_args!("and by {} more", later.len() - NAMED));
    }
    if !elsewhere.is_empty() {
        console.say(format_args!("changed since by {ELSEWHERE}"));
    }
    !later.is_empty() && elsewhere.is_empty()
}

/// Says what later recordings have changed.
pub struct Later<'a> {
    /// The recordings.
    pub recordings: &'a Recordings,
    /// Which of them may be named.
    pub access: &'a SessionAccess,
}

impl Later<'_> {
    fn reaches(&self, entry: &Entry) -> bool {
        is_in_reach(entry, &self.recordings.library, self.access)
    }

    fn called(&self, entry: &Entry) -> String {
        match self.reaches(entry) {
            true => format!("{} ({})", entry.id, command_line(entry)),
            false => ELSEWHERE.to_owned(),
        }
    }

    fn reasons(&self, changed: ChangedBy<'_>, why: impl Fn(&str) -> String) -> Conflicts {
        changed.into_iter().map(|(path, entry)| (path, why(&self.called(entry)))).collect()
    }

    /// What is in the way of an undo of `chosen`, which is that of the recordings `of` as one.
    pub fn conflicts_of_undo(&self, chosen: &[&Entry], net: &Net, of: &[&Entry]) -> Conflicts {
        let later = self.recordings.later_than(chosen);
        let by_other_names = self.recordings.changed_by_other_names(&net.snapshot, later);
        let why = |(entry, name): (&Entry, Vec<u8>)| match self.reaches(entry) {
            true => format!("its hard link {} was changed since by {}", printable(&name), self.called(entry)),
            false => format!("a hard link of it was changed since by {ELSEWHERE}"),
        };
        let by_other_names = by_other_names.into_iter().map(|(path, changed)| (path, why(changed)));
        let breaks = net.breaks.iter().map(|one| (one.path.clone(), self.reason_of(one, of)));
        by_other_names.chain(breaks).collect()
    }

    /// Who has changed a path between two of the recordings `of`.
    fn reason_of(&self, broken: &ChainBreak, of: &[&Entry]) -> String {
        let (older, newer) = (of[broken.older], of[broken.newer]);
        let who = self.recordings.changed_between(broken, older, newer).map(|entry| self.called(entry));
        let who = who.unwrap_or_else(|| "something that is not in the library".to_owned());
        format!("between {} and {} it was changed by {who}", older.id, newer.id)
    }

    /// What is in the way of a redo of the recordings `ids`, of which `rescue` is what the undo has overwritten.
    pub fn conflicts_of_redo(&self, undone: &Undone, ids: &[&str], rescue: &Net) -> Conflicts {
        let interrupted = "it was changed while the undo was interrupted";
        let mut conflicts: Conflicts =
            rescue.breaks.iter().map(|one| (one.path.clone(), interrupted.to_owned())).collect();
        let attributes = self.recordings.with_other_attributes_since(undone, &rescue.snapshot);
        conflicts.extend(self.reasons(attributes, |who| format!("changed since by {who}")));
        let undone_since = self.recordings.undone_since(undone, ids, &rescue.snapshot);
        conflicts
            .extend(self.reasons(undone_since, |who| format!("{who} was undone since: redo that first")));
        conflicts
    }

    /// Which of these paths recordings have changed after `chosen`, and which one.
    pub fn changed_later(&self, chosen: &[&Entry], paths: &HashSet<&[u8]>) -> Conflicts {
        self.reasons(self.recordings.changed_later(chosen, paths), str::to_owned)
    }
}
