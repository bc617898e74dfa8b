//! Builds a recorded state as a directory tree of its own: each path under a new or empty directory.
//!
//! Files are independent copies, never hard links to live ones, and no live file is touched. Neighbours:
//! `node.rs` makes the nodes, `snapshot::source` has the contents.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Mode};

use super::error::{Error, failed_at};
use super::node::{self, AttributeChanges, RestorePolicy, Shortfall};
use super::root::{Dentry, Root};
use crate::git::is_in_git_directory;
use crate::parallel::Tick;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{self, FileRecord, FileType, Present, printable};

/// Why a path of the state is not built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// The command did not use its content, so it was not recorded.
    #[error("its content was not recorded, since the command did not read it")]
    NotRecorded,
    /// It is a device, which is made only on request and only by root.
    #[error("it is a device")]
    Device,
    /// It is in a `.git` directory, where Git would run or trust it.
    #[error("it is inside a repository's own directory")]
    Repository,
    /// Its content is unavailable.
    #[error("{0}")]
    Unavailable(Unavailable),
}

/// What was built.
#[derive(Debug, Default)]
pub struct BuiltTree {
    /// Regular files.
    pub files: usize,
    /// Directories of the record.
    pub directories: usize,
    /// Symlinks, FIFOs, sockets and devices.
    pub others: usize,
    /// Bytes of content.
    pub bytes: u64,
    /// Paths of the state that are not built.
    pub skipped: Vec<(Vec<u8>, Skipped)>,
    /// What could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
}

/// What to build.
pub struct TreePlan<'a> {
    side: Side,
    policy: &'a RestorePolicy,
    /// What exists in the state and can be made.
    records: Vec<&'a FileRecord>,
    skipped: Vec<(Vec<u8>, Skipped)>,
}

/// Selects what of `records`, sorted by path bytes, can be built: of Git's state nothing. What has no content is
/// skipped.
pub fn plan<'a, 's: 'a>(
    records: impl Iterator<Item = &'s FileRecord>,
    side: Side,
    policy: &'a RestorePolicy,
    contents: &Contents,
) -> TreePlan<'a> {
    let mut plan = TreePlan { side, policy, records: Vec::new(), skipped: Vec::new() };
    // Git's state belongs to a repository that is not built.
    for record in records.filter(|record| !record.is_git_state) {
        let Some(present) = state(record, side).present() else { continue };
        let why = match present.file_type {
            _ if is_in_git_directory(&record.path) => Some(Skipped::Repository),
            FileType::CharDevice | FileType::BlockDevice if !policy.privileges => Some(Skipped::Device),
            FileType::File if present.size > 0 => match contents.check(record, side) {
                Ok(()) => None,
                Err(Unavailable::NotRecorded) => Some(Skipped::NotRecorded),
                Err(why) => Some(Skipped::Unavailable(why)),
            },
            _ => None,
        };
        match why {
            None => plan.records.push(record),
            Some(why) => plan.skipped.push((record.path.clone(), why)),
        }
    }
    plan
}

impl TreePlan<'_> {
    /// How many paths there are to make.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is nothing to make.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Builds the state under `dir`, which is created with its parents if it does not exist.
    pub fn build(self, dir: &Path, contents: &Contents, tick: Tick<'_>) -> Result<BuiltTree, Error> {
        let name = dir.as_os_str().as_bytes();
        std::fs::create_dir_all(dir).map_err(failed_at("create", name))?;
        if std::fs::read_dir(dir).map_err(failed_at("list", name))?.next().is_some() {
            return Err(Error::NotEmpty(printable(name).into_owned()));
        }
        let root = Root::at(dir).map_err(failed_at("open", name))?;
        let mut builder = TreeBuilder {
            root,
            plan: &self,
            contents,
            hard_links: HashMap::new(),
            built: BuiltTree::default(),
        };
        for record in &self.records {
            if let Some(present) = state(record, self.side).present() {
                builder.make(record, present)?;
            }
            tick();
        }
        // Last, and from the leaves up: making entries in a directory changes its times and needs
        // permissions on it.
        for record in self.records.iter().rev() {
            let present = state(record, self.side).present();
            if let Some(present) = present.filter(|present| present.file_type == FileType::Directory) {
                builder.finish_directory(record, present)?;
            }
        }
        let mut built = builder.built;
        built.skipped.extend(self.skipped.iter().cloned());
        built.skipped.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(built)
    }
}

/// What tells a file from another one of the snapshot: type, device and inode numbers, the target of a symlink.
type LinkedNode = (FileType, (u64, u64), Option<Vec<u8>>);

/// What tells the file in this state from others, if it has several names.
fn linked_node(present: &Present) -> Option<LinkedNode> {
    let node = || (present.file_type, present.identity(), present.target.clone());
    (present.nlink > 1).then(node)
}

struct TreeBuilder<'a, 's> {
    root: Root,
    plan: &'a TreePlan<'a>,
    contents: &'a Contents<'s>,
    /// The first name of each file with several hard links.
    hard_links: HashMap<LinkedNode, Dentry>,
    built: BuiltTree,
}

impl TreeBuilder<'_, '_> {
    fn make(&mut self, record: &FileRecord, present: &Present) -> Result<(), Error> {
        let path = &record.path;
        if path == b"/" {
            return Ok(());
        }
        let dentry = self.dentry(path)?;
        match present.file_type {
            FileType::File => self.make_file(&dentry, record, present),
            FileType::Directory => {
                self.built.directories += 1;
                match node::new_node(&dentry, present) {
                    // It was made already, as the parent of a path without a record.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    made => made.map_err(failed_at("create", path)),
                }
            }
            _ => {
                self.built.others += 1;
                if self.make_hard_link(&dentry, path, present)? {
                    return Ok(());
                }
                node::new_node(&dentry, present).map_err(failed_at("create", path))?;
                self.give(&dentry, path, present)?;
                self.remember(dentry, present);
                Ok(())
            }
        }
    }

    fn make_file(&mut self, dentry: &Dentry, record: &FileRecord, present: &Present) -> Result<(), Error> {
        let path = &record.path;
        if self.make_hard_link(dentry, path, present)? {
            self.built.files += 1;
            return Ok(());
        }
        let mut file = node::new_file(dentry).map_err(failed_at("create", path))?;
        match write_content(self.contents, record, self.plan.side, &mut file) {
            Ok(bytes) => self.built.bytes += bytes,
            Err(snapshot::Error::Unavailable(why)) => {
                self.built.skipped.push((path.clone(), Skipped::Unavailable(why)));
                let removed = rustix::fs::unlinkat(dentry.parent(), dentry.name(), AtFlags::empty());
                return removed.map_err(|error| failed_at("remove", path)(error.into()));
            }
            Err(snapshot::Error::Sink(error)) => return Err(failed_at("write", path)(error)),
            Err(error) => return Err(error.into()),
        }
        self.built.files += 1;
        self.give(dentry, path, present)?;
        self.remember(dentry.clone(), present);
        Ok(())
    }

    /// Makes a hard link at `dentry` if another name of the file was made already, and says so.
    fn make_hard_link(&self, dentry: &Dentry, path: &[u8], present: &Present) -> Result<bool, Error> {
        let Some(first) = linked_node(present).and_then(|node| self.hard_links.get(&node)) else {
            return Ok(false);
        };
        let flags = AtFlags::empty();
        rustix::fs::linkat(first.parent(), first.name(), dentry.parent(), dentry.name(), flags)
            .map_err(|error| failed_at("make a hard link at", path)(error.into()))?;
        Ok(true)
    }

    /// Remembers the first name of a file that has several.
    fn remember(&mut self, dentry: Dentry, present: &Present) {
        self.hard_links.extend(linked_node(present).map(|node| (node, dentry)));
    }

    fn finish_directory(&mut self, record: &FileRecord, present: &Present) -> Result<(), Error> {
        if record.path == b"/" {
            return Ok(());
        }
        let dentry = self.dentry(&record.path)?;
        self.give(&dentry, &record.path, present)
    }

    fn give(&mut self, dentry: &Dentry, path: &[u8], present: &Present) -> Result<(), Error> {
        let handle = dentry.handle().map_err(failed_at("open", path))?;
        let gone = || failed_at("open", path)(io::ErrorKind::NotFound.into());
        let shortfalls = AttributeChanges::all(present, self.plan.policy)
            .give(&handle.ok_or_else(gone)?)
            .map_err(failed_at("set the attributes of", path))?;
        self.built.shortfalls.extend(shortfalls.into_iter().map(|one| (path.to_vec(), one)));
        Ok(())
    }

    /// The dentry of `path`; parent directories without a record are made.
    fn dentry(&self, path: &[u8]) -> Result<Dentry, Error> {
        let dentry = self.root.with_parents(path, Mode::from_raw_mode(0o777), &mut |_| {});
        dentry.map_err(failed_at("open the parent of", path))
    }
}

/// Writes the content of `record` on `side` into an empty file.
fn write_content(
    contents: &Contents,
    record: &FileRecord,
    side: Side,
    file: &mut File,
) -> Result<u64, snapshot::Error> {
    if state(record, side).present().is_none_or(|present| present.size == 0) {
        return Ok(0);
    }
    let bytes = contents.copy_to_file(record, side, file)?;
    file.flush().map_err(snapshot::Error::Sink)?;
    Ok(bytes)
}
