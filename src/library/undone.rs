//! Which recordings are undone, by the rescues that the restores of them have left.
//!
//! Nothing else says so: a restore that was killed has left no finished rescue.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::error::failed;
use super::{Error, Library, is_id};
use crate::snapshot::{Header, Snapshot};

/// The rescues of a library, by the identifiers of their recordings.
#[derive(Debug, Default)]
pub struct Rescues(HashMap<String, Vec<PathBuf>>);

/// That a recording is undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// When, RFC 3339.
    pub at: String,
    /// The rescue that has what was overwritten then.
    pub rescue: PathBuf,
}

/// What a restore did to the recording as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Undo,
    Redo,
}

impl Rescues {
    /// The finished rescues of `library`.
    ///
    /// # Errors
    /// It can't be listed.
    pub fn of(library: &Library) -> Result<Rescues, Error> {
        let directory = library.snapshots();
        let mut rescues = Rescues::default();
        for entry in fs::read_dir(&directory).map_err(failed("list", &directory))? {
            let name = entry.map_err(failed("list", &directory))?.file_name();
            let Some((id, number)) = name.to_str().and_then(|name| name.split_once("-rescue-")) else {
                continue;
            };
            if is_id(id) && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
                rescues.0.entry(id.to_owned()).or_default().push(directory.join(&name));
            }
        }
        Ok(rescues)
    }

    /// Whether the recording `id` is undone: by the last restore of all of it.
    pub fn undone(&self, id: &str) -> Option<Undone> {
        let mut effects: Vec<(String, PathBuf, Effect)> = Vec::new();
        let mut headers: Vec<(PathBuf, Header)> = self
            .0
            .get(id)?
            .iter()
            .filter_map(|path| Some((path.clone(), Snapshot::open(path).ok()?.header().clone())))
            .collect();
        headers.sort_by(|(_, one), (_, other)| one.started_at.cmp(&other.started_at));
        for (path, header) in headers {
            let effect_of = |rescue: &Path| {
                effects
                    .iter()
                    .find(|(_, path, _)| path.file_name() == rescue.file_name())
                    .map(|(_, _, effect)| *effect)
            };
            if let Some(effect) = effect(&header, id, effect_of) {
                effects.push((header.started_at, path, effect));
            }
        }
        match effects.pop()? {
            (at, rescue, Effect::Undo) => Some(Undone { at, rescue }),
            (_, _, Effect::Redo) => None,
        }
    }
}

/// What the restore did that a rescue tells of; none if it was one of some paths.
fn effect(header: &Header, id: &str, effect_of: impl Fn(&Path) -> Option<Effect>) -> Option<Effect> {
    let words: Vec<&[u8]> = header.command.iter().map(Vec::as_slice).collect();
    let (snapshot, is_before) = match words.as_slice() {
        [_, b"restore", snapshot, b"--before"] => (snapshot, true),
        [_, b"restore", snapshot] => (snapshot, false),
        _ => return None,
    };
    let snapshot = Path::new(OsStr::from_bytes(snapshot));
    if snapshot.file_name() == Some(OsStr::new(id)) {
        return Some(if is_before { Effect::Undo } else { Effect::Redo });
    }
    match (effect_of(snapshot)?, is_before) {
        (Effect::Undo, true) | (Effect::Redo, false) => Some(Effect::Redo),
        (Effect::Redo, true) | (Effect::Undo, false) => Some(Effect::Undo),
    }
}
