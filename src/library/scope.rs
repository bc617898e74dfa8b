//! Which recordings a verb is about: those of a place, and of a session.

use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use super::Library;
use super::log::{Entry, is_at_or_below, working_tree};
use crate::snapshot::Snapshot;
use crate::snapshot::change::PathEffect;

/// What a verb is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only what was recorded at or below this directory, or changed something there.
    pub place: Option<Vec<u8>>,
    /// Only the recordings of this session.
    pub session: Option<String>,
}

impl Scope {
    /// What concerns the Git working tree that the current directory is in, or the directory where it is in none.
    pub fn here(session: Option<String>) -> Scope {
        // The kernel's word, as recordings have it.
        let here = std::fs::read_link("/proc/self/cwd").ok().map(|here| here.into_os_string().into_vec());
        let place = here.map(|here| working_tree(&here).unwrap_or(here));
        Scope { place, session }
    }

    /// Whether a recording is of the session.
    pub fn may_see(&self, entry: &Entry) -> bool {
        self.session.is_none() || self.session == entry.session
    }

    /// Whether a verb is about a recording; also if it can't be read, where only its records tell.
    pub fn contains(&self, entry: &Entry, library: &Library) -> bool {
        if !self.may_see(entry) {
            return false;
        }
        let Some(place) = &self.place else { return true };
        if is_at_or_below(&entry.cwd.0, place) || entry.places.iter().any(|one| is_at_or_below(&one.0, place))
        {
            return true;
        }
        // What is below the place may be among what was merged into a directory above it.
        if !entry.places.iter().any(|one| is_at_or_below(place, &one.0)) {
            return false;
        }
        changes_below(&library.directory_of(&entry.id), place)
    }
}

/// Whether the recording in the directory `snapshot` changed a path or something below it, or can't be read.
pub fn changes_below(snapshot: &Path, path: &[u8]) -> bool {
    changes_any(snapshot, |changed| is_at_or_below(changed, path))
}

/// Whether the recording in the directory `snapshot` changed one of these paths, or can't be read.
pub fn changes_any(snapshot: &Path, is_one: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(snapshot) = Snapshot::open(snapshot) else { return true };
    snapshot.files().iter().any(|record| is_one(&record.path) && PathEffect::of(record).lasts())
}
