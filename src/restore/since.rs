//! What has happened to a path since the command, in words: for the list of conflicts.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use rustix::fs::{Mode, OFlags};

use super::plan::PlanInput;
use super::root::{Dentry, Root, parent};
use super::targets::opposite;
use crate::fs::child_of;
use crate::snapshot::compare::state;
use crate::snapshot::{FileType, Present, printable};

/// Names of a directory by their inode numbers.
type Names = HashMap<u64, Vec<Vec<u8>>>;

/// Finds out what has happened to paths.
pub struct Since<'a> {
    root: &'a Root,
    /// What was read of directories, in which something that was moved may be.
    directories: RefCell<Option<HashMap<Vec<u8>, Names>>>,
}

impl<'a> Since<'a> {
    /// For the live filesystem.
    pub fn new(root: &'a Root) -> Since<'a> {
        Since { root, directories: RefCell::default() }
    }

    /// What has happened to the path of the record `index` since it was in the state that is to be replaced.
    pub fn happened(&self, input: &PlanInput, index: usize) -> String {
        let record = &input.files[index];
        let inspection = input.inspections.get(&index).and_then(|inspection| inspection.as_ref().ok());
        let live = inspection.and_then(|inspection| inspection.live.as_ref());
        match (state(record, opposite(input.wanted)).present(), live) {
            (None, None) => "nothing is there now".to_owned(),
            (None, Some(live)) => format!("created since: {} is there now", describe(live)),
            (Some(left), None) => match self.find_moved(input, left) {
                Some(path) => format!("moved since, to {}", printable(&path)),
                None => "removed since".to_owned(),
            },
            (Some(left), Some(live)) if left.file_type != live.file_type => {
                format!("replaced since: {} is there now", describe(live))
            }
            (Some(left), Some(live)) if has_other_mode_alone(left, live) => {
                let [was, is] = [left, live].map(|at| at.mode & 0o7777);
                format!("its mode was changed since, from {was:04o} to {is:04o}")
            }
            (Some(_), Some(live)) => format!("edited since: {} is there now", describe(live)),
        }
    }

    /// Where the file that was left is now, if it is in a directory in which the command changed something.
    fn find_moved(&self, input: &PlanInput, left: &Present) -> Option<Vec<u8>> {
        let mut directories = self.directories.borrow_mut();
        let directories = directories.get_or_insert_with(|| {
            let parents: BTreeSet<&[u8]> =
                input.targets.iter().map(|index| parent(&input.files[*index].path)).collect();
            parents.into_iter().map(|directory| (directory.to_vec(), self.names(directory))).collect()
        });
        let named = directories.iter().flat_map(|(directory, names)| {
            names.get(&left.ino).into_iter().flatten().map(move |name| child_of(directory, name))
        });
        named.filter(|path| self.is_at(path, left)).min()
    }

    /// The names in a directory; none if it can't be read.
    fn names(&self, directory: &[u8]) -> Names {
        let mut names = Names::new();
        let dentry = self.root.dentry(directory).ok().flatten();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |at: Dentry| rustix::fs::openat(at.parent(), at.name(), flags, Mode::empty()).ok();
        let entries = dentry.and_then(open).and_then(|opened| rustix::fs::Dir::read_from(opened).ok());
        for entry in entries.into_iter().flatten().flatten() {
            names.entry(entry.ino()).or_default().push(entry.file_name().to_bytes().to_vec());
        }
        names
    }

    /// Whether the file that was left is at a path: the number of a removed one may have been given to another.
    fn is_at(&self, path: &[u8], left: &Present) -> bool {
        let found = self.root.dentry(path).ok().flatten().and_then(|dentry| dentry.present().ok().flatten());
        let identity = |at: &Present| (at.dev, at.ino, at.file_type, at.mtime, at.mtime_nsec);
        found.is_some_and(|found| identity(&found) == identity(left))
    }
}

/// Whether two states of one type differ in their permission bits and, as far as the metadata tells, in nothing else.
fn has_other_mode_alone(left: &Present, live: &Present) -> bool {
    let rest = |at: &Present| (at.size, at.mtime, at.mtime_nsec, at.target.clone(), at.rdev);
    let is_directory = live.file_type == FileType::Directory;
    left.mode != live.mode && (is_directory || rest(left) == rest(live))
}

/// What is there, in a few words.
fn describe(live: &Present) -> String {
    let name = live.file_type.name().replace('_', " ");
    let bits = live.mode & 0o7777;
    match (&live.target, live.file_type) {
        (Some(target), _) => format!("a symlink to {}", printable(target)),
        (_, FileType::File) => format!("a file of {} bytes with mode {bits:04o}", live.size),
        _ => format!("a {name} with mode {bits:04o}"),
    }
}
