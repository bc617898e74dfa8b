//! Which recordings are undone, or some of their paths are, by the rescues that the restores of them have left.
//!
//! Nothing else says so: a restore that was killed has left no finished rescue. One that was then taken back counts for
//! nothing, and so does what took it back.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::log::is_at_or_below;
use super::{Error, Library, is_id, is_rescue_name};
use crate::snapshot::change::PathEffect;
use crate::snapshot::layout::UNFINISHED;
use crate::snapshot::request::{MERGING, TAKEN_BACK, is_same_request};
use crate::snapshot::{Header, Snapshot};

/// What was undone of the recordings of a library, by their identifiers: one entry for each undo that is not redone, the
/// oldest first.
#[derive(Debug, Default)]
pub struct UndoneRecordings {
    undone: HashMap<String, Vec<Undone>>,
    /// Recordings of which all was undone path by path.
    in_parts: HashSet<String>,
}

/// That a recording is undone, or some of its paths are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undone {
    /// When it was begun, RFC 3339.
    pub at: String,
    /// The rescues that keep what was overwritten, the oldest first: several if it was interrupted.
    pub rescues: Vec<PathBuf>,
    /// Whether all of the recording was undone, and nothing of that was redone since.
    pub is_whole: bool,
    /// The paths that were named; none if it was of all.
    paths: Vec<Vec<u8>>,
    /// As [`PastRestore::is_limited`].
    is_limited: bool,
    /// The command of its rescues: an undo that was interrupted is completed by the same one.
    command: Vec<Vec<u8>>,
    /// What it has changed and is not redone; not filled in as long as it is whole.
    changed: HashSet<Vec<u8>>,
    /// What it had changed and is redone.
    redone: HashSet<Vec<u8>>,
}

impl Undone {
    /// The paths of the rescues that are redone already.
    pub fn redone(&self) -> &HashSet<Vec<u8>> {
        &self.redone
    }

    /// Adds a rescue, and what its restore has changed.
    fn add(&mut self, rescue: &Path, at: &str, is_limited: bool) {
        at.clone_into(&mut self.at);
        if self.is_whole && is_limited {
            // The request that completed it left conflicts.
            (self.is_whole, self.is_limited) = (false, true);
            self.changed = self.rescues.iter().flat_map(|rescue| changed_by(rescue)).collect();
        }
        self.rescues.push(rescue.to_owned());
        if !self.is_whole {
            self.changed.extend(changed_by(rescue));
        }
    }

    /// Notes that these paths were redone.
    fn note_redone(&mut self, redone: &HashSet<Vec<u8>>) {
        if self.is_whole {
            self.changed = self.rescues.iter().flat_map(|rescue| changed_by(rescue)).collect();
        }
        if self.changed.is_empty() && !self.is_whole {
            self.paths.retain(|path| !redone.iter().any(|redone| is_at_or_below(redone, path)));
            return;
        }
        // Paths that the undo had found in their state already count as undone only until something is redone.
        if !redone.is_empty() {
            (self.is_whole, self.is_limited) = (false, true);
        }
        let (taken, left): (HashSet<_>, HashSet<_>) =
            self.changed.drain().partition(|path| redone.contains(path));
        self.changed = left;
        self.redone.extend(taken);
    }

    /// The paths that were named, if all of them were in their state already.
    fn marked(&self) -> &[Vec<u8>] {
        if self.changed.is_empty() && !self.is_limited { &self.paths } else { &[] }
    }

    fn is_of_something(&self) -> bool {
        !self.rescues.is_empty() && (self.is_whole || !self.changed.is_empty() || !self.marked().is_empty())
    }
}

/// What a restore has changed, as its rescue tells; nothing if that can't be read.
fn changed_by(rescue: &Path) -> HashSet<Vec<u8>> {
    let Ok(rescue) = Snapshot::open(rescue) else { return HashSet::new() };
    let changed = rescue.files().iter().filter(|record| PathEffect::of(record).lasts());
    changed.map(|record| record.path.clone()).collect()
}

/// The paths of a recording that are undone by undos of some paths.
#[derive(Debug, Default)]
pub struct UndonePaths {
    changed: HashSet<Vec<u8>>,
    /// What was named where nothing had to be changed.
    marked: Vec<Vec<u8>>,
}

impl UndonePaths {
    /// Whether a path is one of them.
    pub fn contain(&self, path: &[u8]) -> bool {
        self.changed.contains(path) || self.marked.iter().any(|marked| is_at_or_below(path, marked))
    }

    /// Those that an undo has put back.
    pub fn changed(&self) -> &HashSet<Vec<u8>> {
        &self.changed
    }
}

/// A restore of recordings.
#[derive(Debug)]
struct PastRestore {
    ids: Vec<String>,
    effect: Effect,
    /// The paths that were named; none if it was of all.
    paths: Vec<Vec<u8>>,
    /// Whether some of them may have been left out: by an option, or by the restore that it takes back.
    is_limited: bool,
    /// Whether it puts back all of the recordings.
    is_whole: bool,
    /// The name of the rescue that it puts back; without one, a redo takes back all that was undone of these.
    takes_back: Option<OsString>,
    /// Whether it was interrupted and taken back, or has taken back one that was: nothing has come of it.
    is_void: bool,
    command: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Undo,
    Redo,
}

impl UndoneRecordings {
    /// Those that the finished rescues of `library` tell of.
    ///
    /// # Errors
    /// It can't be listed.
    pub fn of(library: &Library) -> Result<UndoneRecordings, Error> {
        let mut rescues: Vec<(Header, PathBuf)> = Vec::new();
        for name in library.names()? {
            if name.to_str().is_some_and(is_rescue_name) {
                let path = library.snapshots().join(name);
                // One that can't be read tells nothing.
                rescues.extend(Snapshot::header_of(&path).ok().map(|header| (header, path)));
            }
        }
        let mut ends: HashMap<String, Option<Timestamp>> = HashMap::new();
        let mut goes_on = |id: &str, at: &str| {
            let end = || Snapshot::header_of(&library.directory_of(id)).ok()?.finished_at.parse().ok();
            let end = *ends.entry(id.to_owned()).or_insert_with(end);
            end.is_some_and(|end| at.parse().is_ok_and(|at: Timestamp| at < end))
        };
        // Those of one restore have numbers.
        let key = |(header, path): &(Header, PathBuf)| {
            let name = path.file_name().map(OsStr::to_owned).unwrap_or_default();
            (header.started_at.clone(), name.len(), name)
        };
        rescues.sort_by_cached_key(key);
        let mut restores: HashMap<OsString, PastRestore> = HashMap::new();
        let mut all = UndoneRecordings::default();
        for (header, rescue) in rescues {
            let Some(mut restore) = past_restore(&header, &restores) else { continue };
            // One that went on has changed more since.
            restore.ids.retain(|id| !goes_on(id, &header.started_at));
            if !restore.is_void {
                all.add(&mut restore, &header.started_at, &rescue);
            }
            restores.extend(rescue.file_name().map(|name| (name.to_owned(), restore)));
        }
        all.in_parts = all.undone.keys().filter(|id| all.is_undone_in_parts(id, library)).cloned().collect();
        Ok(all)
    }

    fn add(&mut self, restore: &mut PastRestore, at: &str, rescue: &Path) {
        let is_all = restore.paths.is_empty() && !restore.is_limited;
        let redone = match restore.effect {
            Effect::Redo if !is_all => changed_by(rescue),
            _ => HashSet::new(),
        };
        for id in &restore.ids {
            let undone = self.undone.entry(id.clone()).or_default();
            match (restore.effect, &restore.takes_back) {
                (Effect::Undo, _) => {
                    let is_same =
                        |last: &Undone| is_same_request(&last.command, &restore.command) && last.at == at;
                    // An undo that was interrupted and completed has left several.
                    if !undone.last().is_some_and(is_same) {
                        undone.push(Undone {
                            paths: restore.paths.clone(),
                            is_whole: restore.is_whole,
                            is_limited: restore.is_limited,
                            command: restore.command.clone(),
                            ..Undone::default()
                        });
                    }
                    undone.last_mut().into_iter().for_each(|last| last.add(rescue, at, restore.is_limited));
                }
                (Effect::Redo, Some(name)) => {
                    let is_it = |one: &PathBuf| one.file_name() == Some(name);
                    for one in undone.iter_mut().filter(|one| one.rescues.iter().any(is_it)) {
                        restore.is_whole &= one.is_whole;
                        match is_all {
                            true => one.rescues.retain(|one| !is_it(one)),
                            false => one.note_redone(&redone),
                        }
                    }
                }
                (Effect::Redo, None) if is_all => {
                    restore.is_whole &= undone.iter().any(|one| one.is_whole);
                    undone.clear();
                }
                (Effect::Redo, None) => undone.iter_mut().for_each(|one| one.note_redone(&redone)),
            }
            undone.retain(Undone::is_of_something);
        }
        self.undone.retain(|_, undone| !undone.is_empty());
    }

    /// Whether each path that a recording has changed is undone, by several undos.
    fn is_undone_in_parts(&self, id: &str, library: &Library) -> bool {
        if self.undone.get(id).is_none_or(|all| all.iter().any(|undone| undone.is_whole)) {
            return false;
        }
        let Ok(snapshot) = Snapshot::open(&library.directory_of(id)) else { return false };
        let paths = self.paths_of(id);
        let mut changed = snapshot.files().iter().filter(|record| PathEffect::of(record).lasts());
        changed.all(|record| paths.contain(&record.path))
    }

    /// The undo by which all of the recording `id` is undone: the last one of all of it, or if it was undone path by path, the
    /// last of these.
    pub fn get(&self, id: &str) -> Option<&Undone> {
        let undone = self.undone.get(id)?;
        let whole = undone.iter().rev().find(|one| one.is_whole);
        whole.or(undone.last().filter(|_| self.in_parts.contains(id)))
    }

    /// The last undo of the recording `id`, of all of it or of some paths.
    pub fn last(&self, id: &str) -> Option<&Undone> {
        self.undone.get(id)?.last()
    }

    /// All that was undone of the recording `id`, and of those that were undone together with it.
    pub fn all_of(&self, id: &str) -> Option<Undone> {
        let mut all = self.last(id)?.clone();
        loop {
            let ids = self.with(&all);
            let parts = || ids.iter().filter_map(|id| self.undone.get(*id)).flatten();
            let mut rescues: Vec<(&str, &PathBuf)> = Vec::new();
            for undone in parts() {
                rescues.extend(undone.rescues.iter().map(|rescue| (undone.at.as_str(), rescue)));
            }
            // Those of one undo stay in their order.
            rescues.sort_by_key(|(at, _)| *at);
            let mut known = HashSet::new();
            rescues.retain(|(_, rescue)| known.insert(*rescue));
            if rescues.len() == all.rescues.len() {
                all.is_whole = parts().all(|one| one.is_whole);
                all.redone = parts().flat_map(|one| one.redone.iter().cloned()).collect();
                // What was undone again is not redone.
                all.redone.retain(|path| !parts().any(|one| one.is_whole || one.changed.contains(path)));
                return Some(all);
            }
            all.rescues = rescues.into_iter().map(|(_, rescue)| rescue.clone()).collect();
        }
    }

    /// The paths of the recording `id` that are undone by undos of some paths.
    pub fn paths_of(&self, id: &str) -> UndonePaths {
        let mut paths = UndonePaths::default();
        for undone in self.undone.get(id).into_iter().flatten() {
            paths.changed.extend(undone.changed.iter().cloned());
            paths.marked.extend(undone.marked().iter().cloned());
        }
        paths
    }

    /// The recordings that were undone together with `undone`, by their identifiers.
    pub fn with(&self, undone: &Undone) -> Vec<&str> {
        let shares = |other: &Undone| other.rescues.iter().any(|rescue| undone.rescues.contains(rescue));
        let same = self.undone.iter().filter(|(_, all)| all.iter().any(shares));
        let mut ids: Vec<&str> = same.map(|(id, _)| id.as_str()).collect();
        ids.sort_unstable();
        ids
    }
}

/// The restore that a rescue tells of.
fn past_restore(header: &Header, restores: &HashMap<OsString, PastRestore>) -> Option<PastRestore> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let words: Vec<&[u8]> = header.command.iter().map(Vec::as_slice).collect();
    let (snapshot, is_before, rest) = match words.as_slice() {
        [_, b"undo", rest @ ..] => (None, true, rest),
        [_, b"redo", rest @ ..] => (None, false, rest),
        [_, b"restore", b"--at", ..] => return None,
        [_, b"restore", snapshot, b"--before", rest @ ..] => (Some(snapshot), true, rest),
        [_, b"restore", snapshot, rest @ ..] => (Some(snapshot), false, rest),
        _ => return None,
    };
    let paths: Vec<_> = rest.iter().filter(|word| word.starts_with(b"/")).map(|path| path.to_vec()).collect();
    // --merge leaves nothing out.
    let is_limited = rest.iter().any(|word| word.starts_with(b"--") && *word != MERGING);
    let mut restore = PastRestore {
        ids: Vec::new(),
        effect: if is_before { Effect::Undo } else { Effect::Redo },
        is_whole: paths.is_empty() && !is_limited,
        paths,
        is_limited,
        takes_back: None,
        is_void: rest.contains(&TAKEN_BACK),
        command: header.command.clone(),
    };
    let Some(snapshot) = snapshot else {
        restore.ids = rest.iter().map(|id| text(id)).filter(|id| is_id(id)).collect();
        return Some(restore);
    };
    let name = Path::new(OsStr::from_bytes(snapshot)).file_name()?;
    // A rescue that was restored before its own restore had ended has its final name since.
    let final_name = name.as_bytes().strip_suffix(UNFINISHED.as_bytes());
    let was_unfinished = final_name.is_some();
    let name = final_name.map_or(name, OsStr::from_bytes);
    let Some(earlier) = restores.get(name) else {
        restore.ids = vec![text(name.as_bytes())];
        return Some(restore);
    };
    restore.ids.clone_from(&earlier.ids);
    restore.is_void |= earlier.is_void && is_before && was_unfinished;
    restore.effect = match (earlier.effect, is_before) {
        (Effect::Undo, true) | (Effect::Redo, false) => Effect::Redo,
        (Effect::Redo, true) | (Effect::Undo, false) => Effect::Undo,
    };
    restore.is_whole &= earlier.is_whole;
    restore.takes_back = is_before.then(|| name.to_owned());
    // A redo takes back its rescue as a whole; of any other restore of some paths, its own rescue tells which.
    if restore.effect == Effect::Undo || !is_before {
        restore.is_limited |= !restore.is_whole;
    }
    Some(restore)
}
