//! Which later recordings changed what others had changed: a path, what lies in a directory that they made, or one of their
//! files by another name.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::linked::ChangedFiles;
use super::scope::changes_any;
use super::{Entry, Library};
use crate::snapshot::change::PathEffect;
use crate::snapshot::{FileRecord, FileType, Snapshot, State};

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
            || entry.changes().any()
                && self.paths.iter().any(|path| entry.may_change(path))
                && changes_any(&library.directory_of(&entry.id), is_one)
    }
}

fn is_made_directory(record: &FileRecord) -> bool {
    let is_directory = |state: &State| state.present().is_some_and(|at| at.file_type == FileType::Directory);
    is_directory(&record.after) && !is_directory(&record.before)
}
