//! The later recordings that changed what is to be put back: what is in the way, and what else could be undone.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::log::command_line;
use super::open::is_in_reach;
use super::out::Console;
use crate::cli::SessionAccess;
use crate::library::linked::ChangedFiles;
use crate::library::scope::changes_any;
use crate::library::{Entry, Library};
use crate::snapshot::change::PathEffect;
use crate::snapshot::{FileRecord, FileType, Snapshot, State};

/// How many recordings are named before the rest is only counted.
const NAMED: usize = 5;

/// What a recording is called if `access` does not reach it.
pub const ELSEWHERE: &str = "a recording elsewhere";

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

/// Paths that recordings changed.
#[derive(Default)]
pub struct ChangedPaths {
    paths: HashSet<Vec<u8>>,
    /// Directories that undoing removes, with all that is in them.
    made_directories: HashSet<Vec<u8>>,
    files: ChangedFiles,
}

impl ChangedPaths {
    /// Adds what a recording changed, as far as an undo changes it.
    pub fn add(&mut self, snapshot: &Snapshot) {
        // Every command in a sandbox makes the same mount points.
        let counts = |effect: PathEffect| effect.is_undone() && effect != PathEffect::MountPoint;
        for record in snapshot.files().iter().filter(|record| counts(PathEffect::of(record))) {
            if is_made_directory(record) {
                self.made_directories.insert(record.path.clone());
            }
            self.paths.insert(record.path.clone());
        }
        self.files.add(snapshot);
    }

    /// Whether a later recording changed one of them, or one of these files by another name. An import has changed
    /// nothing here.
    pub fn are_touched_by(&mut self, entry: &Entry, library: &Library) -> bool {
        self.are_touched_apart_from(&HashSet::new(), entry, library)
    }

    /// The same, where some changes of that recording do not count.
    pub fn are_touched_apart_from(
        &mut self,
        undone: &HashSet<Vec<u8>>,
        entry: &Entry,
        library: &Library,
    ) -> bool {
        if entry.imported {
            return false;
        }
        let is_one = |path: &[u8]| {
            !undone.contains(path)
                && (self.paths.contains(path)
                    || !self.made_directories.is_empty()
                        && Path::new(OsStr::from_bytes(path))
                            .ancestors()
                            .any(|above| self.made_directories.contains(above.as_os_str().as_bytes())))
        };
        self.files.changed_by(entry, library).iter().any(|(_, name)| !undone.contains(name))
            || entry.changes.any()
                && self.paths.iter().any(|path| entry.may_change(path))
                && changes_any(&library.directory_of(&entry.id), is_one)
    }
}

fn is_made_directory(record: &FileRecord) -> bool {
    let is_directory = |state: &State| state.present().is_some_and(|at| at.file_type == FileType::Directory);
    is_directory(&record.after) && !is_directory(&record.before)
}
