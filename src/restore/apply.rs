//! Carries out a plan: new files beside the old ones and then into their places, the removals after
//! them, links and the attributes of directories last.
//!
//! At every moment a path holds what it held, or what is put back; only a file that has to be written
//! in place is neither for a while, and its bytes are in the rescue. Neighbours: `plan.rs` says what to
//! do, `make.rs` makes new nodes, `rescue.rs` has kept what is overwritten.

mod disk;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, Mode, RenameFlags};
use rustix::io::Errno;

pub use self::disk::remove_leftover;
use self::disk::{exchange, open_for_writing, remove_temporary, sync_directory, temporary, unnamed_file};
use super::loosen::Loosener;
use super::make::{self, Attributes, Shortfall, Xattrs};
use super::parallel::Tick;
use super::place::{Handle, Place, Spot, split};
use super::plan::{Action, Left, Plan, Request, Step, is_unchanged, needs_content};
use super::targets::{opposite, same_file};
use super::times::Times;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentError, Contents, locate};
use crate::snapshot::{FileRecord, FileType, Present, live, printable};

/// How many new files wait for their turn: they are flushed to the disk one after another, which is
/// cheap once the first has taken the file system's journal with it.
const BATCH: usize = 128;
/// How many bytes wait with them.
const BATCH_BYTES: u64 = 64 << 20;

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
    /// What tells the temporary files of this restore from others.
    pub id: &'a str,
    /// A directory for content on its way: that of the rescue.
    pub stage: &'a Path,
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

/// Why the work stopped.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", printable(path))]
pub struct Failure {
    /// The operation.
    pub what: &'static str,
    /// The path.
    pub path: Vec<u8>,
    /// The refusal.
    pub source: io::Error,
}

fn failed(what: &'static str, path: &[u8]) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_vec();
    move |source| Failure { what, path, source }
}

/// The directories in which the steps of `plan` change names.
pub fn touched(request: &Request, plan: &Plan) -> BTreeSet<Vec<u8>> {
    let changes_names = |step: &&Step| match step.action {
        Action::File { in_place, .. } => !in_place,
        Action::Link { .. } | Action::Node | Action::Remove => true,
        Action::Attributes(_) => false,
    };
    let paths = plan.steps.iter().filter(changes_names).map(|step| &request.files[step.record].path);
    paths.chain(&plan.parents).map(|path| parent(path).to_vec()).collect()
}

/// The parent directory of an absolute path.
pub fn parent(path: &[u8]) -> &[u8] {
    let end = path.len() - split(path).1.len();
    &path[..end.saturating_sub(1).max(1).min(path.len())]
}

/// Carries out the plan of `job`; what was done so far is in `done`, whatever the outcome.
pub fn apply(job: &Job, loosener: &mut Loosener, done: &mut Done, tick: Tick<'_>) -> Result<(), Failure> {
    for directory in &job.plan.loosen {
        loosener.make_writable(job.place, directory).map_err(failed("change the mode of", directory))?;
    }
    let mut worker =
        Worker { job, done, tick, prepared: Vec::new(), prepared_bytes: 0, own_changes: HashSet::new() };
    worker.make()?;
    worker.remove()?;
    worker.link()?;
    // Before directories are shut again.
    worker.check()?;
    worker.finish_directories(loosener)?;
    loosener.close().map_err(failed("change back the mode of", b"a directory"))
}

struct Worker<'a, 'b> {
    job: &'a Job<'a>,
    done: &'b mut Done,
    tick: Tick<'a>,
    prepared: Vec<Prepared>,
    prepared_bytes: u64,
    /// Files that were changed in place: under their other names they are no longer as they were seen.
    own_changes: HashSet<(u64, u64)>,
}

/// A node under its temporary name; removed where it does not come to its place.
struct Prepared {
    record: usize,
    spot: Spot,
    temporary: Spot,
    /// A regular file that is still to be flushed to the disk.
    file: Option<File>,
    placed: bool,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.placed {
            // It is ours, and what stopped the work is told.
            let _ = remove_temporary(&self.temporary);
        }
    }
}

impl Worker<'_, '_> {
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

    fn changed(&mut self) {
        self.done.changed += 1;
        (self.tick)();
    }

    /// All that is new and needs no directory out of its way; attributes of what stays.
    fn make(&mut self) -> Result<(), Failure> {
        let job = self.job;
        for step in &job.plan.steps {
            let waits = self.is_live_directory(step.record) && !self.is_goal_directory(step.record);
            match &step.action {
                Action::File { .. } | Action::Node if waits => {}
                Action::File { in_place: true, .. } => self.write_in_place(step.record)?,
                Action::File { own_content, .. } => self.prepare_file(step.record, *own_content)?,
                Action::Node => self.make_node(step.record)?,
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
    fn remove(&mut self) -> Result<(), Failure> {
        let job = self.job;
        for step in job.plan.steps.iter().rev() {
            let waited = self.is_live_directory(step.record) && !self.is_goal_directory(step.record);
            match &step.action {
                Action::Remove => self.remove_one(step.record)?,
                Action::File { own_content, .. } if waited => {
                    self.prepare_file(step.record, *own_content)?;
                    self.place_prepared()?;
                }
                Action::Node if waited => self.make_node(step.record)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn link(&mut self) -> Result<(), Failure> {
        let job = self.job;
        for step in &job.plan.steps {
            if let Action::Link { to } = step.action {
                self.link_one(step.record, to)?;
            }
        }
        self.place_prepared()
    }

    fn spot(&self, record: usize) -> Result<Spot, Failure> {
        let path = self.path(record);
        // Those that are missing and recorded are made before, by steps of their own.
        let spot = self.job.place.with_parents(path, Mode::from_raw_mode(0o755), &mut |_| {});
        spot.map_err(failed("open the directory of", path))
    }

    /// Sees that what is at the spot is what was looked at, and says whether something is there.
    fn expect_unchanged(&self, record: usize, spot: &Spot) -> Result<bool, Failure> {
        let path = self.path(record);
        let changed = || failed("restore", path)(io::Error::other("it changed meanwhile"));
        let stat = spot.stat().map_err(failed("stat", path))?;
        let Some(stat) = stat else {
            return if self.looked(record).is_none() { Ok(false) } else { Err(changed()) };
        };
        let now = live::present(&stat, &spot.proc_path()).map_err(failed("look at", path))?;
        let is_same = self.looked(record).is_some_and(|looked| {
            // Of a directory that is in the way only what it holds matters, and that is seen by the kernel.
            now.file_type == FileType::Directory && looked.file_type == FileType::Directory
                || is_unchanged(looked, &now)
                || (looked.dev, looked.ino) == (now.dev, now.ino)
                    && self.own_changes.contains(&(now.dev, now.ino))
        });
        if is_same { Ok(true) } else { Err(changed()) }
    }

    fn temporary(&self, spot: &Spot) -> Spot {
        spot.sibling(&temporary(self.job.id, spot.name()))
    }

    /// Makes a file under its temporary name, with content and attributes.
    fn prepare_file(&mut self, record: usize, own_content: bool) -> Result<(), Failure> {
        let spot = self.spot(record)?;
        let prepared = self.new_file(record, &spot, own_content)?;
        self.prepared_bytes += self.goal(record).map_or(0, |goal| goal.size);
        self.prepared.push(prepared);
        if self.prepared.len() >= BATCH || self.prepared_bytes >= BATCH_BYTES {
            self.place_prepared()?;
        }
        Ok(())
    }

    fn new_file(&mut self, record: usize, spot: &Spot, own_content: bool) -> Result<Prepared, Failure> {
        let temporary = self.temporary(spot);
        let mut file =
            make::new_file(&temporary).map_err(failed("create a file beside", self.path(record)))?;
        let mut prepared = Prepared { record, spot: spot.clone(), temporary, file: None, placed: false };
        if own_content {
            let live = live::open_regular(&spot.proc_path()).map_err(failed("open", self.path(record)))?;
            let copied = live.metadata().and_then(|stat| live::copy_keeping_holes(&live, &file, stat.len()));
            copied.map_err(failed("copy", self.path(record)))?;
        } else {
            self.write_content(record, &mut file)?;
        }
        let held = Handle::new(OwnedFd::from(file)).map_err(failed("stat", self.path(record)))?;
        self.give_all(record, &prepared.temporary, &held)?;
        prepared.file = Some(File::from(held.into_fd()));
        Ok(prepared)
    }

    fn write_content(&self, record: usize, file: &mut File) -> Result<(), Failure> {
        let request = self.job.request;
        if self.goal(record).is_none_or(|goal| goal.size == 0) {
            return Ok(());
        }
        let source = source(request, record);
        let path = self.path(record);
        let written = self.job.contents.copy_to_file(source, request.goal, file);
        written.map_err(|error| match error {
            ContentError::Sink(error) => failed("write", path)(error),
            error => failed("get the content of", path)(io::Error::other(error)),
        })?;
        file.flush().map_err(failed("write", path))
    }

    /// Gives all attributes of the goal to a new node.
    fn give_all(&mut self, record: usize, at: &Spot, held: &Handle) -> Result<(), Failure> {
        let policy = self.job.request.policy;
        let Some(goal) = self.goal(record) else { return Ok(()) };
        let mut attributes = Attributes::all(goal, policy);
        if policy.ownership && goal.file_type != FileType::Symlink {
            let lists =
                make::inherited_lists(at, goal).map_err(failed("read the attributes of", self.path(record)));
            attributes.xattrs.extend(lists?);
        }
        self.give_to(record, &attributes, held)
    }

    /// The extended attributes that a file which stays has from the other state and that the goal has not.
    fn surplus(&self, record: usize) -> Xattrs {
        let request = self.job.request;
        let other = state(&request.files[record], opposite(request.goal)).present();
        let (Some(goal), Some(other), Some(live)) = (self.goal(record), other, self.looked(record)) else {
            return Xattrs::new();
        };
        let is_surplus = |name: &Vec<u8>| {
            !goal.xattrs.contains_key(name)
                && live.xattrs.get(name) == other.xattrs.get(name)
                && request.policy.allows(name)
                && request.policy.user.may_set(name)
        };
        other.xattrs.keys().filter(|name| is_surplus(name)).map(|name| (name.clone(), None)).collect()
    }

    fn give_to(&mut self, record: usize, attributes: &Attributes, held: &Handle) -> Result<(), Failure> {
        let path = self.path(record).to_vec();
        let shortfalls = attributes.give(held).map_err(failed("set the attributes of", &path))?;
        self.done.shortfalls.extend(shortfalls.into_iter().map(|one| (path.clone(), one)));
        Ok(())
    }

    /// Gives attributes to what is at the path of `record`.
    fn give(&mut self, record: usize, attributes: &Attributes) -> Result<(), Failure> {
        let spot = self.spot(record)?;
        self.expect_unchanged(record, &spot)?;
        let held = self.hold(record, &spot)?;
        self.own_changes.insert((held.stat().st_dev, held.stat().st_ino));
        self.give_to(record, attributes, &held)
    }

    fn hold(&self, record: usize, spot: &Spot) -> Result<Handle, Failure> {
        let held = spot.hold().map_err(failed("open", self.path(record)))?;
        held.ok_or_else(|| failed("open", self.path(record))(io::ErrorKind::NotFound.into()))
    }

    /// Flushes the prepared files to the disk and puts them into their places.
    fn place_prepared(&mut self) -> Result<(), Failure> {
        for prepared in &self.prepared {
            if let Some(file) = &prepared.file {
                file.sync_all().map_err(failed("sync", self.path(prepared.record)))?;
            }
        }
        self.prepared_bytes = 0;
        for mut prepared in std::mem::take(&mut self.prepared) {
            prepared.file = None;
            self.put(prepared)?;
        }
        Ok(())
    }

    /// Puts a prepared node into its place.
    fn put(&mut self, mut prepared: Prepared) -> Result<(), Failure> {
        let record = prepared.record;
        let is_there = self.expect_unchanged(record, &prepared.spot)?;
        let crosses = is_there && self.is_live_directory(record) != self.is_goal_directory(record);
        let (spot, temporary) = (&prepared.spot, &prepared.temporary);
        let rename = |flags| {
            let (from, to) = (temporary.name(), spot.name());
            rustix::fs::renameat_with(temporary.parent(), from, spot.parent(), to, flags)
        };
        let put = if crosses {
            exchange(spot, temporary, &rename)
        } else if is_there {
            rename(RenameFlags::empty())
        } else {
            match rename(RenameFlags::NOREPLACE) {
                // The file system does not know how; the name was free a moment ago.
                Err(Errno::INVAL) => rename(RenameFlags::empty()),
                other => other,
            }
        };
        match put {
            Ok(()) => {
                prepared.placed = true;
                drop(prepared);
                self.changed();
                Ok(())
            }
            Err(Errno::BUSY) if self.goal(record).is_some_and(|goal| goal.file_type == FileType::File) => {
                drop(prepared);
                self.write_in_place(record)
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) if crosses && self.is_live_directory(record) => {
                drop(prepared);
                self.someone_put_something_into(record);
                Ok(())
            }
            Err(error) => Err(failed("replace", self.path(record))(error.into())),
        }
    }

    fn someone_put_something_into(&mut self, record: usize) {
        let path = self.path(record).to_vec();
        self.done.left.push((path, Left::Entries(Vec::new())));
    }

    fn make_node(&mut self, record: usize) -> Result<(), Failure> {
        let Some(goal) = self.goal(record) else { return Ok(()) };
        let spot = self.spot(record)?;
        if goal.file_type == FileType::Directory && self.looked(record).is_none() {
            // Its attributes come when all is in it.
            return match make::new_node(&spot, goal) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(failed("create", self.path(record))(error))
                }
                _ => {
                    self.changed();
                    Ok(())
                }
            };
        }
        let temporary = self.temporary(&spot);
        make::new_node(&temporary, goal).map_err(failed("create a node beside", self.path(record)))?;
        let prepared = Prepared { record, spot, temporary, file: None, placed: false };
        if !self.is_goal_directory(record) {
            let held = self.hold(record, &prepared.temporary)?;
            self.give_all(record, &prepared.temporary, &held)?;
        }
        self.put(prepared)
    }

    fn remove_one(&mut self, record: usize) -> Result<(), Failure> {
        let spot = self.spot(record)?;
        if !self.expect_unchanged(record, &spot)? {
            return Ok(());
        }
        let flags = if self.is_live_directory(record) { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(spot.parent(), spot.name(), flags) {
            Ok(()) => {
                self.done.removed += 1;
                (self.tick)();
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                self.someone_put_something_into(record);
                Ok(())
            }
            Err(error) => Err(failed("remove", self.path(record))(error.into())),
        }
    }

    fn link_one(&mut self, record: usize, to: usize) -> Result<(), Failure> {
        let (spot, leader) = (self.spot(record)?, self.spot(to)?);
        let inode = |spot: &Spot| -> io::Result<Option<(u64, u64)>> {
            Ok(spot.stat()?.map(|stat| (stat.st_dev, stat.st_ino)))
        };
        let path = self.path(record);
        let own = inode(&spot).map_err(failed("stat", path))?;
        if own.is_some() && own == inode(&leader).map_err(failed("stat", path))? {
            return Ok(());
        }
        let temporary = self.temporary(&spot);
        let flags = AtFlags::empty();
        let linked =
            rustix::fs::linkat(leader.parent(), leader.name(), temporary.parent(), temporary.name(), flags);
        match linked {
            Ok(()) => self.put(Prepared { record, spot, temporary, file: None, placed: false }),
            // Another file system by now, or too many names, or not allowed: a file of its own has the
            // same content.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
                let own_content = !needs_content_of(self.job.request, record);
                self.prepare_file(record, own_content)
            }
            Err(error) => Err(failed("link", path)(error.into())),
        }
    }

    /// Writes into the file that is there. The content is whole in a file of its own before the first
    /// byte of the other changes.
    fn write_in_place(&mut self, record: usize) -> Result<(), Failure> {
        let spot = self.spot(record)?;
        self.expect_unchanged(record, &spot)?;
        let held = self.hold(record, &spot)?;
        self.own_changes.insert((held.stat().st_dev, held.stat().st_ino));
        let mut content = unnamed_file(self.job.stage, self.job.id)
            .map_err(failed("stage the content of", self.path(record)))?;
        self.write_content(record, &mut content)?;
        let path = self.path(record).to_vec();
        let written = open_for_writing(&held).and_then(|mut file| {
            content.rewind()?;
            let (size, old) = (content.metadata()?.len(), file.metadata()?.len());
            if self.goal(record).is_some_and(Present::is_sparse) {
                live::copy_keeping_holes(&content, &file, size)?;
                return Ok(file);
            }
            if size > old {
                // Better no room now than half way.
                match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, old, size - old) {
                    Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            io::copy(&mut content, &mut file)?;
            file.set_len(size)?;
            Ok(file)
        });
        let file = written.map_err(failed("write", &path))?;
        self.give_all(record, &spot, &held)?;
        let surplus = Attributes { xattrs: self.surplus(record), ..Attributes::default() };
        self.give_to(record, &surplus, &held)?;
        file.sync_all().map_err(failed("sync", &path))?;
        self.changed();
        Ok(())
    }

    /// Gives directories their attributes and times, the deepest first.
    fn finish_directories(&mut self, loosener: &mut Loosener) -> Result<(), Failure> {
        let job = self.job;
        for path in touched(job.request, job.plan).iter().rev() {
            sync_directory(job.place, path).map_err(failed("sync", path))?;
        }
        let mut work: BTreeMap<&[u8], Option<&Step>> =
            job.times.keys().map(|path| (path.as_slice(), None)).collect();
        for step in &job.plan.steps {
            let is_directory = self.is_goal_directory(step.record)
                && matches!(step.action, Action::Node | Action::Attributes(_));
            if is_directory {
                work.insert(self.path(step.record), Some(step));
            }
        }
        let work: Vec<_> = work.into_iter().map(|(path, step)| (path.to_vec(), step)).collect();
        for (path, step) in work.into_iter().rev() {
            let Some(spot) = job.place.spot(&path).map_err(failed("open the directory of", &path))? else {
                continue;
            };
            let Some(held) = spot.hold().map_err(failed("open", &path))? else { continue };
            match step {
                Some(Step { record, action: Action::Attributes(attributes) }) => {
                    self.give_to(*record, attributes, &held)?;
                    if let Some(permissions) = attributes.permissions {
                        loosener.close_with(&path, permissions);
                    }
                    self.changed();
                }
                Some(Step { record, .. }) => {
                    self.give_all(*record, &spot, &held)?;
                    if let Some(goal) = self.goal(*record) {
                        loosener.close_with(&path, job.request.policy.permissions(goal));
                    }
                }
                None => {}
            }
            if let Some(mtime) = job.times.get(&path) {
                let attributes = Attributes { mtime: Some(*mtime), ..Attributes::default() };
                attributes.give(&held).map_err(failed("set the time of", &path))?;
            }
        }
        Ok(())
    }

    /// Sees by its metadata that every path is as it should be.
    fn check(&self) -> Result<(), Failure> {
        let left: BTreeSet<&[u8]> = self.done.left.iter().map(|(path, _)| path.as_slice()).collect();
        for step in &self.job.plan.steps {
            let path = self.path(step.record);
            if left.contains(path) {
                continue;
            }
            let spot = self.job.place.spot(path).map_err(failed("look at", path))?;
            let stat = spot.map_or(Ok(None), |spot| spot.stat()).map_err(failed("look at", path))?;
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
                return Err(failed("restore", path)(io::Error::other("it changed meanwhile")));
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
