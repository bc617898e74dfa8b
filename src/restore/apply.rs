//! Carries out a plan: new files beside the old ones and then into their places, the removals after
//! them, links and the attributes of directories last.
//!
//! At every moment a path holds what it held, or what is put back; only a file that has to be written
//! in place is neither for a while, and its bytes are in the rescue. Neighbours: `plan.rs` says what to
//! do, `make.rs` makes new nodes, `rescue.rs` has kept what is overwritten.

mod attributes;
mod nodes;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::io;

use rustix::fs::Mode;

use super::disk::Unsynced;
use super::error::{Error, failed, failed_at};
use super::journal::{Entry, Journal};
use super::loosen::Loosener;
use super::make::Shortfall;
use super::parallel::Tick;
use super::place::{Handle, Place, Spot};
use super::plan::{Action, Left, Plan, Request, is_unchanged, needs_content};
use super::targets::same_file;
use super::times::Times;
use crate::snapshot::compare::state;
use crate::snapshot::source::{Contents, locate};
use crate::snapshot::{FileRecord, FileType, Present, live};

/// How many new files wait for their turn, to be flushed to the disk together.
const BATCH: usize = 4096;
/// How many bytes wait with them.
const BATCH_BYTES: u64 = 1 << 30;

/// What is to be done, with all that it takes.
pub struct Job<'a> {
    /// What was asked for.
    pub request: &'a Request<'a>,
    /// What is to be done.
    pub plan: &'a Plan,
    /// Where.
    pub place: &'a Place,
    /// The contents of the snapshot.
    pub contents: &'a Contents<'a>,
    /// What is told before it is done.
    pub journal: &'a Journal<'a>,
    /// The modification times of directories in which names change.
    pub times: &'a Times,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Done {
    /// Paths that were put back.
    pub changed: usize,
    /// Paths that were removed.
    pub removed: usize,
    /// What could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
    /// Directories that someone put something into meanwhile.
    pub left: Vec<(Vec<u8>, Left)>,
}

/// Carries out the plan of `job`; what was done so far is in `done`, whatever the outcome.
pub fn apply(job: &Job, loosener: &mut Loosener, done: &mut Done, tick: Tick<'_>) -> Result<(), Error> {
    for path in &job.plan.unlock {
        loosener.unlock(path).map_err(failed_at("clear the flags of", path))?;
    }
    for directory in &job.plan.loosen {
        loosener.make_writable(directory).map_err(failed_at("change the mode of", directory))?;
    }
    let mut worker = Worker {
        job,
        loosener,
        done,
        tick,
        prepared: VecDeque::new(),
        prepared_bytes: 0,
        waiting: BTreeMap::new(),
        unsynced: Unsynced::default(),
        own_changes: HashSet::new(),
    };
    worker.make()?;
    worker.remove()?;
    worker.link()?;
    // Before directories are shut again.
    worker.check()?;
    worker.tell(&Entry::Placed)?;
    worker.finish_directories()?;
    worker.give_flags()?;
    worker.loosener.close().map_err(failed("change back the mode of a directory"))
}

struct Worker<'a, 'b, 'l> {
    job: &'a Job<'a>,
    loosener: &'b mut Loosener<'l>,
    done: &'b mut Done,
    tick: Tick<'a>,
    prepared: VecDeque<Prepared>,
    prepared_bytes: u64,
    /// What takes the place of a directory, made before anything is removed from that.
    waiting: BTreeMap<usize, Prepared>,
    unsynced: Unsynced,
    /// Files that were changed in place: under their other names they are no longer as they were seen.
    own_changes: HashSet<(u64, u64)>,
}

/// A node under its temporary name.
#[derive(Debug, Clone, Copy)]
struct Prepared {
    record: usize,
    inode: (u64, u64),
}

impl Drop for Worker<'_, '_, '_> {
    fn drop(&mut self) {
        for prepared in self.prepared.iter().chain(self.waiting.values()) {
            self.discard(*prepared);
        }
    }
}

impl Worker<'_, '_, '_> {
    fn path(&self, record: usize) -> &[u8] {
        &self.job.request.files[record].path
    }

    fn goal(&self, record: usize) -> Option<&Present> {
        state(&self.job.request.files[record], self.job.request.goal).present()
    }

    /// What was at the path when the plan was made.
    fn looked(&self, record: usize) -> Option<&Present> {
        self.job.request.looks.get(&record)?.as_ref().ok()?.live.as_ref()
    }

    fn is_live_directory(&self, record: usize) -> bool {
        self.looked(record).is_some_and(|live| live.file_type == FileType::Directory)
    }

    fn is_goal_directory(&self, record: usize) -> bool {
        self.goal(record).is_some_and(|goal| goal.file_type == FileType::Directory)
    }

    /// Writes to the journal.
    fn tell(&self, entry: &Entry) -> Result<(), Error> {
        self.job.journal.write(entry).map_err(failed("write the journal of the restore"))
    }

    fn changed(&mut self) {
        self.done.changed += 1;
        (self.tick)();
    }

    /// Whether a directory has to be emptied and replaced.
    fn waits(&self, record: usize) -> bool {
        self.is_live_directory(record) && !self.is_goal_directory(record)
    }

    /// All that is new and needs no directory out of its way; attributes of what stays.
    fn make(&mut self) -> Result<(), Error> {
        let job = self.job;
        // Before another name of the same file is written in place.
        for step in &job.plan.steps {
            if step.action == (Action::File { in_place: false, own_content: true }) {
                let prepared = self.new_file(step.record, true)?;
                self.enqueue(prepared, self.waits(step.record))?;
            }
        }
        for step in &job.plan.steps {
            let waits = self.waits(step.record);
            match &step.action {
                Action::File { in_place: true, .. } => self.write_in_place(step.record)?,
                Action::File { own_content: true, .. } => {}
                Action::File { own_content: false, .. } => {
                    let prepared = self.new_file(step.record, false)?;
                    self.enqueue(prepared, waits)?;
                }
                Action::Node if self.is_goal_directory(step.record) && self.looked(step.record).is_none() => {
                    self.make_directory(step.record)?;
                }
                Action::Node => {
                    let prepared = self.new_node(step.record)?;
                    if self.is_goal_directory(step.record) {
                        // What comes next may be in it.
                        self.put(prepared)?;
                    } else {
                        self.enqueue(prepared, waits)?;
                    }
                }
                Action::Attributes(_) | Action::Link { .. } | Action::Remove => {}
            }
        }
        self.place_prepared()?;
        for step in &job.plan.steps {
            if let Action::Attributes(attributes) = &step.action
                && !self.is_live_directory(step.record)
            {
                self.give(step.record, attributes)?;
                self.changed();
            }
        }
        Ok(())
    }

    /// What has to go, from the leaves up, and what takes the place of a directory.
    fn remove(&mut self) -> Result<(), Error> {
        let job = self.job;
        for step in job.plan.steps.iter().rev() {
            if step.action == Action::Remove {
                self.remove_one(step.record)?;
            } else if let Some(prepared) = self.waiting.remove(&step.record) {
                self.put(prepared)?;
            }
        }
        Ok(())
    }

    fn link(&mut self) -> Result<(), Error> {
        let job = self.job;
        for step in &job.plan.steps {
            if let Action::Link { to } = step.action {
                self.link_one(step.record, to)?;
            }
        }
        self.place_prepared()
    }

    fn spot(&self, record: usize) -> Result<Spot, Error> {
        let path = self.path(record);
        // Those that are missing and recorded are made before, by steps of their own.
        let spot = self.job.place.with_parents(path, Mode::from_raw_mode(0o755), &mut |_| {});
        spot.map_err(failed_at("open the directory of", path))
    }

    fn changed_meanwhile(&self, record: usize) -> Error {
        failed_at("restore", self.path(record))(io::Error::other("it changed meanwhile"))
    }

    /// Whether `now` is what was looked at.
    fn is_as_looked(&self, record: usize, now: &Present) -> bool {
        self.looked(record).is_some_and(|looked| {
            // Of a directory that is in the way only what it holds matters, and that is seen by the kernel.
            now.file_type == FileType::Directory && looked.file_type == FileType::Directory
                || is_unchanged(looked, now)
                || (looked.dev, looked.ino) == (now.dev, now.ino)
                    && self.own_changes.contains(&(now.dev, now.ino))
        })
    }

    fn present(&self, record: usize, spot: &Spot) -> Result<Option<Present>, Error> {
        let path = self.path(record);
        let stat = spot.stat().map_err(failed_at("stat", path))?;
        stat.map(|stat| live::present(&stat, &spot.proc_path()))
            .transpose()
            .map_err(failed_at("look at", path))
    }

    /// Sees that what is at the spot is what was looked at, and says whether something is there.
    fn expect_unchanged(&self, record: usize, spot: &Spot) -> Result<bool, Error> {
        match self.present(record, spot)? {
            None if self.looked(record).is_none() => Ok(false),
            Some(now) if self.is_as_looked(record, &now) => Ok(true),
            _ => Err(self.changed_meanwhile(record)),
        }
    }

    fn hold(&self, record: usize, spot: &Spot) -> Result<Handle, Error> {
        let held = spot.hold().map_err(failed_at("open", self.path(record)))?;
        held.ok_or_else(|| failed_at("open", self.path(record))(io::ErrorKind::NotFound.into()))
    }

    /// Sees by its metadata that every path is as it should be.
    fn check(&self) -> Result<(), Error> {
        let left: BTreeSet<&[u8]> = self.done.left.iter().map(|(path, _)| path.as_slice()).collect();
        for step in &self.job.plan.steps {
            let path = self.path(step.record);
            if left.contains(path) {
                continue;
            }
            let spot = self.job.place.spot(path).map_err(failed_at("look at", path))?;
            let stat = spot.map_or(Ok(None), |spot| spot.stat()).map_err(failed_at("look at", path))?;
            let is_right = match (self.goal(step.record), stat) {
                (None, None) => true,
                (Some(goal), Some(stat)) => {
                    FileType::from_mode(stat.st_mode) == Some(goal.file_type)
                        && (goal.file_type != FileType::File || u64::try_from(stat.st_size) == Ok(goal.size))
                }
                _ => false,
            };
            // An attribute may have been all that was put back, of content that someone changed.
            if !is_right && !matches!(step.action, Action::Attributes(_)) {
                return Err(failed_at("restore", path)(io::Error::other("it changed meanwhile")));
            }
        }
        Ok(())
    }
}

/// The record whose content the file of the record `index` gets: its own, or one of another name of the
/// same file.
pub fn source<'a>(request: &Request<'a>, index: usize) -> &'a FileRecord {
    let mut names = same_file(request.files, request.links[0], index);
    let source = names.find(|source| locate(source, request.goal).is_ok());
    source.unwrap_or(&request.files[index])
}

fn needs_content_of(request: &Request, record: usize) -> bool {
    let action = Action::File { in_place: false, own_content: false };
    needs_content(&request.files[record], request.goal, &action)
}
