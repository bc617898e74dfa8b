//! Which recordings are undone, or some of their paths are, by the rescues that the restores of them have left.
//!
//! Nothing else says so: a restore that was killed has left no finished rescue.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::log::is_at_or_below;
use super::{Error, Library, is_id, is_rescue_name};
use crate::snapshot::change::PathEffect;
use crate::snapshot::layout::UNFINISHED;
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
    /// When it was done last, RFC 3339.
    pub at: String,
    /// The rescues that have what was overwritten then, the oldest first: several if it was interrupted.
    pub rescues: Vec<PathBuf>,
    /// The paths that were named; none if all was undone.
    pub paths: Vec<Vec<u8>>,
}

/// The paths of a recording that are undone although it is not.
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
    /// The name of the rescue whose restore it was; without it, a redo takes back all that was undone of these.
    takes_back: Option<OsString>,
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
        rescues.sort_by(|(one, _), (other, _)| one.started_at.cmp(&other.started_at));
        let mut restores: HashMap<OsString, PastRestore> = HashMap::new();
        let mut all = UndoneRecordings::default();
        for (header, rescue) in rescues {
            let Some(mut restore) = past_restore(&header, &restores) else { continue };
            // One that went on has changed more since.
            restore.ids.retain(|id| !goes_on(id, &header.started_at));
            all.add(&restore, &header.started_at, &rescue);
            restores.extend(rescue.file_name().map(|name| (name.to_owned(), restore)));
        }
        all.in_parts = all.undone.keys().filter(|id| all.is_undone_in_parts(id, library)).cloned().collect();
        Ok(all)
    }

    fn add(&mut self, restore: &PastRestore, at: &str, rescue: &Path) {
        for id in &restore.ids {
            let undone = self.undone.entry(id.clone()).or_default();
            match (restore.effect, &restore.takes_back) {
                (Effect::Undo, _) => {
                    // An undo that was interrupted and completed has left several.
                    if undone.last().is_none_or(|last| last.paths != restore.paths) {
                        undone.push(Undone { paths: restore.paths.clone(), ..Undone::default() });
                    }
                    let last = undone.last_mut().into_iter();
                    last.for_each(|last| {
                        at.clone_into(&mut last.at);
                        last.rescues.push(rescue.to_owned());
                    });
                }
                (Effect::Redo, Some(name)) => {
                    undone.iter_mut().for_each(|one| one.rescues.retain(|one| one.file_name() != Some(name)));
                }
                (Effect::Redo, None) if restore.paths.is_empty() => undone.clear(),
                (Effect::Redo, None) => {
                    let is_redone =
                        |path: &Vec<u8>| restore.paths.iter().any(|redone| is_at_or_below(path, redone));
                    undone.retain(|one| one.paths.is_empty() || !one.paths.iter().all(is_redone));
                }
            }
            undone.retain(|one| !one.rescues.is_empty());
        }
        self.undone.retain(|_, undone| !undone.is_empty());
    }

    /// Whether each path that a recording has changed was undone by itself.
    fn is_undone_in_parts(&self, id: &str, library: &Library) -> bool {
        let is_whole = |undone: &Undone| undone.paths.is_empty();
        if self.undone.get(id).is_none_or(|all| all.iter().any(is_whole)) {
            return false;
        }
        let Ok(snapshot) = Snapshot::open(&library.directory_of(id)) else { return false };
        let paths = self.paths_of(id);
        let mut changed = snapshot.files().iter().filter(|record| PathEffect::of(record).lasts());
        changed.all(|record| paths.contain(&record.path))
    }

    /// Whether the recording `id` is undone: by the last undo of all of it, or path by path.
    pub fn get(&self, id: &str) -> Option<&Undone> {
        let undone = self.undone.get(id)?;
        let whole = undone.iter().rev().find(|one| one.paths.is_empty());
        whole.or(undone.last().filter(|_| self.in_parts.contains(id)))
    }

    /// What was undone last of the recording `id`, if only some paths of it.
    pub fn last(&self, id: &str) -> Option<&Undone> {
        self.undone.get(id)?.last()
    }

    /// All that was undone of the recording `id`, and of those that were undone together with it.
    pub fn all_of(&self, id: &str) -> Option<Undone> {
        let mut all = self.last(id)?.clone();
        loop {
            let ids = self.with(&all);
            let mut rescues: Vec<(&str, &PathBuf)> = Vec::new();
            for undone in ids.iter().filter_map(|id| self.undone.get(*id)).flatten() {
                rescues.extend(undone.rescues.iter().map(|rescue| (undone.at.as_str(), rescue)));
            }
            // Those of one undo stay in their order.
            rescues.sort_by_key(|(at, _)| *at);
            let mut known = HashSet::new();
            rescues.retain(|(_, rescue)| known.insert(*rescue));
            if rescues.len() == all.rescues.len() {
                return Some(all);
            }
            all.rescues = rescues.into_iter().map(|(_, rescue)| rescue.clone()).collect();
        }
    }

    /// The paths of the recording `id` that were undone by themselves.
    pub fn paths_of(&self, id: &str) -> UndonePaths {
        let mut paths = UndonePaths::default();
        for undone in self.undone.get(id).into_iter().flatten().filter(|undone| !undone.paths.is_empty()) {
            let mut is_mark = true;
            for rescue in undone.rescues.iter().filter_map(|rescue| Snapshot::open(rescue).ok()) {
                let changed = rescue.files().iter().filter(|record| PathEffect::of(record).lasts());
                let before = paths.changed.len();
                paths.changed.extend(changed.map(|record| record.path.clone()));
                is_mark &= paths.changed.len() == before;
            }
            if is_mark {
                paths.marked.extend(undone.paths.iter().cloned());
            }
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

/// The restore that a rescue tells of; none if it was of some paths of a rescue, or all but some of a recording.
fn past_restore(header: &Header, restores: &HashMap<OsString, PastRestore>) -> Option<PastRestore> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let is_path = |word: &&&[u8]| word.starts_with(b"/");
    let paths = |words: &[&[u8]]| words.iter().filter(is_path).map(|path| path.to_vec()).collect::<Vec<_>>();
    let of_several = |words: &[&[u8]], effect| {
        let ids = words.iter().map(|id| text(id)).filter(|id| is_id(id)).collect();
        Some(PastRestore { ids, effect, paths: paths(words), takes_back: None })
    };
    let words: Vec<&[u8]> = header.command.iter().map(Vec::as_slice).collect();
    let (snapshot, is_before, rest) = match words.as_slice() {
        [_, b"undo", rest @ ..] => return of_several(rest, Effect::Undo),
        [_, b"redo", rest @ ..] => return of_several(rest, Effect::Redo),
        [_, b"restore", b"--at", ..] => return None,
        [_, b"restore", snapshot, b"--before", rest @ ..] => (snapshot, true, rest),
        [_, b"restore", snapshot, rest @ ..] => (snapshot, false, rest),
        _ => return None,
    };
    let paths = paths(rest);
    // A merge leaves nothing out.
    if paths.is_empty() && rest.iter().any(|word| *word != b"--merge") {
        return None;
    }
    let name = Path::new(OsStr::from_bytes(snapshot)).file_name()?;
    // A rescue that was restored before its own restore had ended has its final name since.
    let name =
        OsStr::from_bytes(name.as_bytes().strip_suffix(UNFINISHED.as_bytes()).unwrap_or(name.as_bytes()));
    let Some(earlier) = restores.get(name) else {
        let effect = if is_before { Effect::Undo } else { Effect::Redo };
        return Some(PastRestore { ids: vec![text(name.as_bytes())], effect, paths, takes_back: None });
    };
    if !paths.is_empty() {
        return None;
    }
    let effect = match (earlier.effect, is_before) {
        (Effect::Undo, true) | (Effect::Redo, false) => Effect::Redo,
        (Effect::Redo, true) | (Effect::Undo, false) => Effect::Undo,
    };
    let takes_back = is_before.then(|| name.to_owned());
    Some(PastRestore { ids: earlier.ids.clone(), effect, paths: earlier.paths.clone(), takes_back })
}
