//! Carries out a plan: new files beside the old ones and then into their places, then the removals, the
//! hard links, and last the attributes of directories.
//!
//! At every moment a path has its old content or its new one. The exception is a file that is written in
//! place, whose old content is in the rescue. Neighbours: `plan.rs` decides what to do, `node.rs` makes
//! new nodes, `rescue.rs` has kept what is overwritten.

mod attributes;
mod files;
mod nodes;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io;

use rustix::fs::Mode;

use self::files::NewFile;
use super::access::TemporaryAccess;
use super::check::UnnamedFiles;
use super::disk::Unsynced;
use super::error::{Error, failed, failed_at};
use super::git::locks::GitLocks;
use super::journal::{InterruptedJournal, Journal, JournalEntry};
use super::node::Shortfall;
use super::plan::{Action, LeftReason, PlanInput, RestorePlan, is_unchanged};
use super::root::{Dentry, Handle, Root};
use super::targets::same_file;
use super::times::DirectoryTimes;
use crate::parallel::Tick;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentSource, Contents, locate};
use crate::snapshot::{FileRecord, FileType, Present};

/// How many new files are made and flushed to the disk together.
const BATCH: usize = 4096;
/// How many bytes they may have.
const BATCH_BYTES: u64 = 1 << 30;

/// What is to be done, and what is needed for it.
pub struct ApplyContext<'a> {
    /// What the plan was made from.
    pub input: &'a PlanInput<'a>,
    /// The plan.
    pub plan: &'a RestorePlan,
    /// The live filesystem.
    pub root: &'a Root,
    /// The contents of the snapshot.
    pub contents: &'a Contents<'a>,
    /// The large new files that are already written.
    pub unnamed: &'a UnnamedFiles,
    /// The journal, which each step is written to before it is taken.
    pub journal: &'a Journal<'a>,
    /// The modification times of directories in which names change.
    pub times: &'a DirectoryTimes,
    /// The files to which interrupted restores were to give inode flags at the end.
    pub flags_due: &'a [(&'a [u8], (u64, u64))],
    /// The journal of an interrupted restore that this one completes. It is there until that is done; the own journal,
    /// if it has no rescue beside it, only until it is settled.
    pub lasting_journal: Option<&'a InterruptedJournal>,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Applied {
    /// Paths that were put back.
    pub changed: usize,
    /// Paths that were removed.
    pub removed: usize,
    /// What could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
    /// Directories that are left, since somebody put something into them meanwhile.
    pub left: Vec<(Vec<u8>, LeftReason)>,
}

/// Carries out the plan of `context`; `done` says what was done so far, also after an error.
pub fn apply(
    context: &ApplyContext,
    access: &mut TemporaryAccess,
    locks: &mut GitLocks,
    done: &mut Applied,
    tick: Tick<'_>,
) -> Result<(), Error> {
    for path in &context.plan.clear_flags {
        access.clear_flags(path).map_err(failed_at("clear the flags of", path))?;
    }
    for directory in &context.plan.make_writable {
        access.make_writable(directory).map_err(failed_at("change the mode of", directory))?;
    }
    let mut applier = Applier {
        context,
        access,
        done,
        tick,
        new_files: Vec::new(),
        new_bytes: 0,
        prepared: VecDeque::new(),
        waiting: BTreeMap::new(),
        unsynced: Unsynced::of(
            context.plan.steps.iter().filter(|step| matches!(step.action, Action::File { .. })).count(),
        ),
        own_changes: HashSet::new(),
        inherits: HashMap::new(),
    };
    applier.make()?;
    applier.remove()?;
    applier.make_hard_links()?;
    // While the directories are still accessible.
    applier.check()?;
    applier.log(&JournalEntry::Placed)?;
    // Before directories get their times.
    locks.release()?;
    applier.finish_directories()?;
    applier.give_flags()?;
    applier.access.revoke().map_err(failed("change back the mode of a directory"))
}

struct Applier<'a, 'b, 'l> {
    context: &'a ApplyContext<'a>,
    access: &'b mut TemporaryAccess<'l>,
    done: &'b mut Applied,
    tick: Tick<'a>,
    /// Regular files that are still to be made.
    new_files: Vec<NewFile>,
    new_bytes: u64,
    prepared: VecDeque<PreparedNode>,
    /// What takes the place of a directory; it is made before anything in that directory is removed.
    waiting: BTreeMap<usize, PreparedNode>,
    unsynced: Unsynced,
    /// Files that were changed in place: under their other names they differ from their inspection.
    own_changes: HashSet<(u64, u64)>,
    /// Whether what is made in a directory may get inode flags from it.
    inherits: HashMap<Vec<u8>, bool>,
}

/// A node under its temporary name.
#[derive(Debug, Clone, Copy)]
struct PreparedNode {
    record: usize,
    inode: (u64, u64),
}

impl Drop for Applier<'_, '_, '_> {
    fn drop(&mut self) {
        for prepared in self.prepared.iter().chain(self.waiting.values()) {
            self.discard(*prepared);
        }
    }
}

impl<'a> Applier<'a, '_, '_> {
    fn path(&self, record: usize) -> &[u8] {
        &self.context.input.files[record].path
    }

    fn wanted(&self, record: usize) -> Option<&'a Present> {
        state(&self.context.input.files[record], self.context.input.wanted).present()
    }

    /// What was at the path when it was inspected.
    fn inspected(&self, record: usize) -> Option<&Present> {
        self.context.input.inspections.get(&record)?.as_ref().ok()?.live.as_ref()
    }

    fn is_live_directory(&self, record: usize) -> bool {
        self.inspected(record).is_some_and(|live| live.file_type == FileType::Directory)
    }

    fn is_wanted_directory(&self, record: usize) -> bool {
        self.wanted(record).is_some_and(|wanted| wanted.file_type == FileType::Directory)
    }

    /// Writes an entry to the journal.
    fn log(&self, entry: &JournalEntry) -> Result<(), Error> {
        self.context.journal.write(entry).map_err(failed("write the journal of the restore"))
    }

    fn changed(&mut self) {
        self.done.changed += 1;
        (self.tick)();
    }

    /// Whether a directory has to be emptied before its place can be taken.
    fn waits(&self, record: usize) -> bool {
        self.is_live_directory(record) && !self.is_wanted_directory(record)
    }

    /// Has files take their old names again: those whose other names are only removed (`are_removed`), or those whose
    /// other names something else is to take.
    fn return_files(&mut self, are_removed: bool) -> Result<(), Error> {
        let steps = &self.context.plan.steps;
        let is_removed = |record: usize| {
            let step = steps.binary_search_by_key(&record, |step| step.record);
            step.is_ok_and(|at| steps[at].action == Action::Remove)
        };
        for step in steps {
            if let Action::Return { from } = step.action
                && is_removed(from) == are_removed
            {
                self.return_file(step.record, from)?;
            }
        }
        self.place_prepared()
    }

    /// Makes everything new that needs no directory out of its way, and gives attributes to what stays.
    fn make(&mut self) -> Result<(), Error> {
        let context = self.context;
        self.return_files(false)?;
        // Before another name of the same file is written in place.
        for step in &context.plan.steps {
            if step.action == (Action::File { in_place: false, own_content: true }) {
                let waits = self.waits(step.record);
                self.add_file(NewFile { record: step.record, own_content: true, waits })?;
            }
        }
        self.make_files()?;
        for step in &context.plan.steps {
            let waits = self.waits(step.record);
            match &step.action {
                Action::File { in_place: true, .. } => self.write_in_place(step.record)?,
                Action::File { own_content: true, .. } => {}
                Action::File { own_content: false, .. } => {
                    self.add_file(NewFile { record: step.record, own_content: false, waits })?;
                }
                Action::Node
                    if self.is_wanted_directory(step.record) && self.inspected(step.record).is_none() =>
                {
                    self.make_directory(step.record)?;
                }
                Action::Node => {
                    let prepared = self.new_node(step.record)?;
                    if self.is_wanted_directory(step.record) {
                        // The next step may be in it.
                        self.put(prepared)?;
                    } else {
                        self.enqueue(prepared, waits);
                    }
                }
                Action::Attributes(_) | Action::HardLink { .. } | Action::Return { .. } | Action::Remove => {}
            }
        }
        self.place_prepared()?;
        self.return_files(true)?;
        for step in &context.plan.steps {
            if let Action::Attributes(attributes) = &step.action
                && !self.is_live_directory(step.record)
            {
                self.give(step.record, attributes)?;
                self.changed();
            }
        }
        Ok(())
    }

    /// Removes what has to go, from the leaves up, and replaces directories that are empty by then.
    fn remove(&mut self) -> Result<(), Error> {
        let context = self.context;
        for step in context.plan.steps.iter().rev() {
            if step.action == Action::Remove {
                self.remove_one(step.record)?;
            } else if let Some(prepared) = self.waiting.remove(&step.record) {
                self.put(prepared)?;
            }
        }
        Ok(())
    }

    fn make_hard_links(&mut self) -> Result<(), Error> {
        let context = self.context;
        for step in &context.plan.steps {
            if let Action::HardLink { to } = step.action {
                self.make_hard_link(step.record, to)?;
            }
        }
        self.place_prepared()
    }

    fn dentry(&self, record: usize) -> Result<Dentry, Error> {
        dentry(self.context.root, self.path(record))
    }

    fn changed_meanwhile(&self, record: usize) -> Error {
        failed_at("restore", self.path(record))(io::Error::other("it changed meanwhile"))
    }

    /// Whether `now` is what was inspected.
    fn is_as_inspected(&self, record: usize, now: &Present) -> bool {
        self.inspected(record).is_some_and(|inspected| {
            // Of a directory that is in the way only the entries matter, and the kernel refuses to remove
            // one that has any.
            now.file_type == FileType::Directory && inspected.file_type == FileType::Directory
                || is_unchanged(inspected, now)
                || inspected.identity() == now.identity() && self.own_changes.contains(&now.identity())
        })
    }

    fn present(&self, record: usize, dentry: &Dentry) -> Result<Option<Present>, Error> {
        dentry.present().map_err(failed_at("stat", self.path(record)))
    }

    /// Checks that what is at `dentry` is what was inspected, and says whether anything is there.
    fn expect_unchanged(&self, record: usize, dentry: &Dentry) -> Result<bool, Error> {
        match self.present(record, dentry)? {
            None if self.inspected(record).is_none() => Ok(false),
            Some(now) if self.is_as_inspected(record, &now) => Ok(true),
            _ => Err(self.changed_meanwhile(record)),
        }
    }

    fn handle(&self, record: usize, dentry: &Dentry) -> Result<Handle, Error> {
        let handle = dentry.handle().map_err(failed_at("open", self.path(record)))?;
        handle.ok_or_else(|| failed_at("open", self.path(record))(io::ErrorKind::NotFound.into()))
    }

    /// Checks by its metadata that every path is at the wanted state.
    fn check(&self) -> Result<(), Error> {
        let left: BTreeSet<&[u8]> = self.done.left.iter().map(|(path, _)| path.as_slice()).collect();
        for step in &self.context.plan.steps {
            let path = self.path(step.record);
            if left.contains(path) {
                continue;
            }
            let dentry = self.context.root.dentry(path).map_err(failed_at("stat", path))?;
            let stat = dentry.map_or(Ok(None), |dentry| dentry.stat()).map_err(failed_at("stat", path))?;
            let is_right = match (self.wanted(step.record), stat) {
                (None, None) => true,
                (Some(wanted), Some(stat)) => {
                    FileType::from_mode(stat.st_mode) == Some(wanted.file_type)
                        && (wanted.file_type != FileType::File
                            || u64::try_from(stat.st_size) == Ok(wanted.size))
                }
                _ => false,
            };
            // If only attributes were put back, the content may be someone else's.
            if !is_right && !matches!(step.action, Action::Attributes(_)) {
                return Err(failed_at("restore", path)(io::Error::other("it changed meanwhile")));
            }
        }
        Ok(())
    }
}

/// The dentry of the path of a record.
fn dentry(root: &Root, path: &[u8]) -> Result<Dentry, Error> {
    // Directories that are missing and recorded were made by steps of their own.
    let dentry = root.with_parents(path, Mode::from_raw_mode(0o755), &mut |_| {});
    dentry.map_err(failed_at("open the directory of", path))
}

/// The record that has the content of the file of record `index`: its own, or that of another name of the
/// same file.
pub fn source<'a>(input: &PlanInput<'a>, index: usize) -> &'a FileRecord {
    let names = || same_file(input.files, input.hard_links[0], index);
    let is_stored = |source: &&FileRecord| {
        locate(source, input.wanted).is_ok_and(|found| !matches!(found, ContentSource::Live { .. }))
    };
    let is_found = |source: &&FileRecord| locate(source, input.wanted).is_ok();
    names().find(is_stored).or_else(|| names().find(is_found)).unwrap_or(&input.files[index])
}
