//! Which recordings are undone, by the rescues that the restores of them have left.
//!
//! Nothing else says so: a restore that was killed has left no finished rescue.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{Error, Library, is_id, is_rescue_name};
use crate::snapshot::layout::UNFINISHED;
use crate::snapshot::{Header, Snapshot};

/// The recordings of a library that are undone, by their identifiers.
#[derive(Debug, Default)]
pub struct UndoneRecordings(HashMap<String, Undone>);

/// That a recording is undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undone {
    /// When it was done last, RFC 3339.
    pub at: String,
    /// The rescues that have what was overwritten then, the oldest first: several if it was interrupted.
    pub rescues: Vec<PathBuf>,
}

/// A restore of whole recordings.
#[derive(Debug)]
struct WholeRestore {
    ids: Vec<String>,
    effect: Effect,
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
        let mut restores: HashMap<OsString, WholeRestore> = HashMap::new();
        let mut undone: HashMap<String, Undone> = HashMap::new();
        for (header, rescue) in rescues {
            let Some(mut restore) = whole_restore(&header, &restores) else { continue };
            // One that went on has changed more since.
            restore.ids.retain(|id| !goes_on(id, &header.started_at));
            for id in &restore.ids {
                if restore.effect == Effect::Undo {
                    let undone = undone.entry(id.clone()).or_default();
                    undone.at.clone_from(&header.started_at);
                    undone.rescues.push(rescue.clone());
                } else if let Some(earlier) = undone.get_mut(id) {
                    earlier.rescues.retain(|one| {
                        restore.takes_back.as_ref().is_some_and(|name| one.file_name() != Some(name))
                    });
                }
            }
            undone.retain(|_, undone| !undone.rescues.is_empty());
            restores.extend(rescue.file_name().map(|name| (name.to_owned(), restore)));
        }
        Ok(UndoneRecordings(undone))
    }

    /// Whether the recording `id` is undone: by the last restore of all of it.
    pub fn get(&self, id: &str) -> Option<&Undone> {
        self.0.get(id)
    }

    /// The recordings that were undone together with `undone`, by their identifiers.
    pub fn with(&self, undone: &Undone) -> Vec<&str> {
        let shares = |other: &Undone| other.rescues.iter().any(|rescue| undone.rescues.contains(rescue));
        let same = self.0.iter().filter(|(_, other)| shares(other));
        let mut ids: Vec<&str> = same.map(|(id, _)| id.as_str()).collect();
        ids.sort_unstable();
        ids
    }
}

/// The restore that a rescue tells of; none if it was one of some paths.
fn whole_restore(header: &Header, restores: &HashMap<OsString, WholeRestore>) -> Option<WholeRestore> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let ids =
        |words: &[&[u8]]| -> Vec<String> { words.iter().map(|id| text(id)).filter(|id| is_id(id)).collect() };
    let restore = |ids, effect| Some(WholeRestore { ids, effect, takes_back: None });
    let words: Vec<&[u8]> = header.command.iter().map(Vec::as_slice).collect();
    let (snapshot, is_before) = match words.as_slice() {
        [_, b"undo", rest @ ..] => return restore(ids(rest), Effect::Undo),
        [_, b"redo", rest @ ..] => return restore(ids(rest), Effect::Redo),
        [_, b"restore", snapshot, b"--before"] => (snapshot, true),
        [_, b"restore", snapshot] => (snapshot, false),
        _ => return None,
    };
    let name = Path::new(OsStr::from_bytes(snapshot)).file_name()?;
    // A rescue that was restored before its own restore had ended has its final name since.
    let name =
        OsStr::from_bytes(name.as_bytes().strip_suffix(UNFINISHED.as_bytes()).unwrap_or(name.as_bytes()));
    let Some(earlier) = restores.get(name) else {
        return restore(vec![text(name.as_bytes())], if is_before { Effect::Undo } else { Effect::Redo });
    };
    let effect = match (earlier.effect, is_before) {
        (Effect::Undo, true) | (Effect::Redo, false) => Effect::Redo,
        (Effect::Redo, true) | (Effect::Undo, false) => Effect::Undo,
    };
    let takes_back = is_before.then(|| name.to_owned());
    Some(WholeRestore { ids: earlier.ids.clone(), effect, takes_back })
}
