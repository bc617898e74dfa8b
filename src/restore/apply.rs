//! Carries out a plan: new files beside the old ones and then into their places, the removals after
//! them, links and the attributes of directories last.
//!
//! At every moment a path holds what it held, or what is put back; only a file that has to be written
//! in place is neither for a while, and its bytes are in the rescue. Neighbours: `plan.rs` says what to
//! do, `make.rs` makes new nodes, `rescue.rs` has kept what is overwritten.

mod disk;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use self::disk::{Unsynced, open_directory};
pub use self::disk::{remove_temporary, stage_name, temporary, unnamed_file};
use super::flags;
use super::in_place;
use super::journal::{Entry, Journal};
use super::loosen::Loosener;
use super::make::{self, Attributes, Shortfall, Xattrs};
use super::parallel::Tick;
use super::place::{Handle, Place, Spot, split};
use super::plan::{Action, Left, Plan, Request, Step, is_unchanged, needs_content};
use super::settle;
use super::targets::{opposite, same_file};
use super::times::Times;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentError, Contents, locate};
use crate::snapshot::{FileRecord, FileType, Present, live, printable};

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

/// Makes a [`Failure`] of a refusal.
pub fn failed(what: &'static str, path: &[u8]) -> impl FnOnce(io::Error) -> Failure {
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
    for path in &job.plan.unlock {
        loosener.unlock(path).map_err(failed("clear the flags of", path))?;
    }
    for directory in &job.plan.loosen {
        loosener.make_writable(directory).map_err(failed("change the mode of", directory))?;
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
    worker.loosener.close().map_err(failed("change back the mode of", b"a directory"))
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
    fn tell(&self, entry: &Entry) -> Result<(), Failure> {
        self.job.journal.write(entry).map_err(failed("write the journal of", b"the restore"))
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
    fn make(&mut self) -> Result<(), Failure> {
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
    fn remove(&mut self) -> Result<(), Failure> {
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

    fn changed_meanwhile(&self, record: usize) -> Failure {
        failed("restore", self.path(record))(io::Error::other("it changed meanwhile"))
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

    fn present(&self, record: usize, spot: &Spot) -> Result<Option<Present>, Failure> {
        let path = self.path(record);
        let stat = spot.stat().map_err(failed("stat", path))?;
        stat.map(|stat| live::present(&stat, &spot.proc_path())).transpose().map_err(failed("look at", path))
    }

    /// Sees that what is at the spot is what was looked at, and says whether something is there.
    fn expect_unchanged(&self, record: usize, spot: &Spot) -> Result<bool, Failure> {
        match self.present(record, spot)? {
            None if self.looked(record).is_none() => Ok(false),
            Some(now) if self.is_as_looked(record, &now) => Ok(true),
            _ => Err(self.changed_meanwhile(record)),
        }
    }

    fn temporary(&self, spot: &Spot) -> Spot {
        spot.sibling(&temporary(self.job.journal.id(), spot.name()))
    }

    /// The place of what will be at the path of `record`, and the temporary one beside it.
    fn spots(&self, record: usize) -> Result<(Spot, Spot), Failure> {
        let spot = self.spot(record)?;
        let temporary = self.temporary(&spot);
        Ok((spot, temporary))
    }

    /// Lets a new node wait for its turn, or until the directory in its place is empty.
    fn enqueue(&mut self, prepared: Prepared, waits: bool) -> Result<(), Failure> {
        if waits {
            self.waiting.insert(prepared.record, prepared);
            return Ok(());
        }
        self.prepared_bytes += self.goal(prepared.record).map_or(0, |goal| goal.size);
        self.prepared.push_back(prepared);
        if self.prepared.len() >= BATCH || self.prepared_bytes >= BATCH_BYTES {
            self.place_prepared()?;
        }
        Ok(())
    }

    /// Removes what is under a temporary name, if it is still what was made there.
    fn discard(&self, prepared: Prepared) {
        let Ok((_, temporary)) = self.spots(prepared.record) else { return };
        let found = temporary.stat().ok().flatten().map(|stat| (stat.st_dev, stat.st_ino));
        if found == Some(prepared.inode) {
            // What stopped the work is told, and the journal knows of it.
            let _ = remove_temporary(&temporary);
        }
    }

    /// Makes a file under its temporary name, with content and attributes.
    fn new_file(&mut self, record: usize, own_content: bool) -> Result<Prepared, Failure> {
        let (spot, temporary) = self.spots(record)?;
        let path = self.path(record);
        self.tell(&Entry::Temporary { path: path.to_vec() })?;
        let mut file = make::new_file(&temporary).map_err(failed("create a file beside", path))?;
        let written = if own_content {
            let copied = live::open_regular(&spot.proc_path()).and_then(|from| {
                let size = from.metadata()?.len();
                live::copy_keeping_holes(&from, &file, size)
            });
            copied.map(drop).map_err(failed("copy", path))
        } else {
            self.write_content(record, &mut file)
        };
        let held = Handle::new(OwnedFd::from(file)).map_err(failed("stat", self.path(record)))?;
        let prepared = Prepared { record, inode: held.inode() };
        let given = written.and_then(|()| self.give_all(record, &temporary, &held));
        let kept = given.and_then(|()| {
            self.unsynced.add(File::from(held.into_fd())).map_err(failed("stat", self.path(record)))
        });
        kept.inspect_err(|_| self.discard(prepared))?;
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
        let refused = failed("set the attributes of", &path);
        let shortfalls = self.give_xattrs_of_shut(record, attributes, held).map_err(refused)?;
        self.done.shortfalls.extend(shortfalls.into_iter().map(|one| (path.clone(), one)));
        Ok(())
    }

    /// Gives attributes; a file of our own that may not be written is opened while it gets those that need
    /// that (xattr(7)).
    fn give_xattrs_of_shut(
        &mut self,
        record: usize,
        attributes: &Attributes,
        held: &Handle,
    ) -> io::Result<Vec<Shortfall>> {
        let user = &self.job.request.policy.user;
        let (of_user, rest): (Vec<_>, Vec<_>) =
            attributes.xattrs.iter().cloned().partition(|(name, _)| name.starts_with(b"user."));
        let (mode, owner) = (held.stat().st_mode, held.stat().st_uid);
        if of_user.is_empty() || mode & libc::S_IWUSR != 0 || user.is_root() || owner != user.uid {
            return attributes.give(held);
        }
        let spot = self.spot(record).map_err(io::Error::other)?;
        let again = spot.hold()?.filter(|again| again.inode() == held.inode());
        let first = Attributes { xattrs: of_user, ..Attributes::default() };
        let path = self.path(record).to_vec();
        let again = again.ok_or(io::ErrorKind::NotFound)?;
        let mut shortfalls = self.loosener.for_a_moment(&path, again, 0o600, |held| first.give(held))?;
        shortfalls.append(&mut Attributes { xattrs: rest, ..attributes.clone() }.give(held)?);
        Ok(shortfalls)
    }

    /// Gives attributes to what is at the path of `record`.
    fn give(&mut self, record: usize, attributes: &Attributes) -> Result<(), Failure> {
        let spot = self.spot(record)?;
        let held = self.hold(record, &spot)?;
        let now = held.present().map_err(failed("look at", self.path(record)))?;
        if !self.is_as_looked(record, &now) {
            return Err(self.changed_meanwhile(record));
        }
        self.own_changes.insert(held.inode());
        self.give_journaled(record, attributes, &held)
    }

    /// Gives attributes to what was there before, or takes them back at the next run.
    fn give_journaled(
        &mut self,
        record: usize,
        attributes: &Attributes,
        held: &Handle,
    ) -> Result<(), Failure> {
        let path = self.path(record).to_vec();
        self.tell(&Entry::Attributes { path: path.clone(), inode: held.inode() })?;
        self.give_to(record, attributes, held)?;
        self.tell(&Entry::Done { path })
    }

    fn hold(&self, record: usize, spot: &Spot) -> Result<Handle, Failure> {
        let held = spot.hold().map_err(failed("open", self.path(record)))?;
        held.ok_or_else(|| failed("open", self.path(record))(io::ErrorKind::NotFound.into()))
    }

    /// Flushes the prepared files to the disk and puts them into their places.
    fn place_prepared(&mut self) -> Result<(), Failure> {
        self.unsynced.flush().map_err(failed("sync", b"new files"))?;
        self.prepared_bytes = 0;
        while let Some(prepared) = self.prepared.pop_front() {
            self.put(prepared)?;
        }
        Ok(())
    }

    /// Puts a prepared node into its place.
    fn put(&mut self, prepared: Prepared) -> Result<(), Failure> {
        let put = self.place(prepared);
        put.inspect_err(|_| self.discard(prepared))
    }

    fn place(&mut self, prepared: Prepared) -> Result<(), Failure> {
        let Prepared { record, inode } = prepared;
        let (spot, temporary) = self.spots(record)?;
        let is_there = self.expect_unchanged(record, &spot)?;
        let crosses = is_there && self.is_live_directory(record) != self.is_goal_directory(record);
        let path = self.path(record).to_vec();
        let rename = |flags| {
            let (from, to) = (temporary.name(), spot.name());
            rustix::fs::renameat_with(temporary.parent(), from, spot.parent(), to, flags)
        };
        let refused = |error: Errno| failed("replace", &path)(error.into());
        self.tell(&Entry::Placing { path: path.clone(), inode, cleared: false })?;
        let flags = if is_there { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        match rename(flags) {
            Ok(()) if is_there => {
                // What came out may not be what was looked at a moment ago.
                let out = self.present(record, &temporary)?;
                let is_expected = out.is_some_and(|out| self.is_as_looked(record, &out));
                let removed = if is_expected { Some(remove_temporary(&temporary)) } else { None };
                match removed {
                    Some(Ok(())) => {}
                    Some(Err(error)) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                        rename(RenameFlags::EXCHANGE).map_err(refused)?;
                        self.discard(prepared);
                        self.someone_put_something_into(record);
                        return Ok(());
                    }
                    Some(Err(error)) => return Err(failed("remove what was replaced at", &path)(error)),
                    None => {
                        rename(RenameFlags::EXCHANGE).map_err(refused)?;
                        return Err(self.changed_meanwhile(record));
                    }
                }
            }
            Ok(()) => {}
            Err(Errno::EXIST) if !is_there => return Err(self.changed_meanwhile(record)),
            Err(Errno::BUSY) if self.goal(record).is_some_and(|goal| goal.file_type == FileType::File) => {
                self.discard(prepared);
                return self.write_in_place(record);
            }
            // A filesystem that can do neither; the rescue has what is removed.
            Err(Errno::INVAL | Errno::NOSYS) => {
                if crosses {
                    self.tell(&Entry::Placing { path: path.clone(), inode, cleared: true })?;
                    match remove_temporary(&spot) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                            self.discard(prepared);
                            self.someone_put_something_into(record);
                            return Ok(());
                        }
                        Err(error) => return Err(failed("remove", &path)(error)),
                    }
                }
                rename(RenameFlags::empty()).map_err(refused)?;
            }
            Err(error) => return Err(refused(error)),
        }
        self.changed();
        Ok(())
    }

    fn someone_put_something_into(&mut self, record: usize) {
        let path = self.path(record).to_vec();
        self.done.left.push((path, Left::Entries(Vec::new())));
    }

    /// Makes a directory where nothing is; its attributes come when all is in it.
    fn make_directory(&mut self, record: usize) -> Result<(), Failure> {
        let Some(goal) = self.goal(record) else { return Ok(()) };
        let spot = self.spot(record)?;
        self.tell(&Entry::Directory { path: self.path(record).to_vec() })?;
        match make::new_node(&spot, goal) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed("create", self.path(record))(error))
            }
            _ => {
                self.changed();
                Ok(())
            }
        }
    }

    /// Makes a node that is no regular file under its temporary name.
    fn new_node(&mut self, record: usize) -> Result<Prepared, Failure> {
        let (_, temporary) = self.spots(record)?;
        let path = self.path(record).to_vec();
        self.tell(&Entry::Temporary { path: path.clone() })?;
        if let Some(goal) = self.goal(record) {
            make::new_node(&temporary, goal).map_err(failed("create a node beside", &path))?;
        }
        let held = self.hold(record, &temporary)?;
        let prepared = Prepared { record, inode: held.inode() };
        if self.is_goal_directory(record) {
            self.tell(&Entry::Directory { path })?;
        } else {
            self.give_all(record, &temporary, &held).inspect_err(|_| self.discard(prepared))?;
        }
        Ok(prepared)
    }

    fn remove_one(&mut self, record: usize) -> Result<(), Failure> {
        let (spot, temporary) = self.spots(record)?;
        if !self.expect_unchanged(record, &spot)? {
            return Ok(());
        }
        let path = self.path(record).to_vec();
        let refused = |error: Errno| failed("remove", &path)(error.into());
        let removed = if self.is_live_directory(record) {
            rustix::fs::unlinkat(spot.parent(), spot.name(), AtFlags::REMOVEDIR)
        } else {
            // Out of the way first: what is removed is what was looked at, whoever was quicker.
            self.tell(&Entry::Removing { path: path.clone() })?;
            settle::rename(&spot, &temporary, RenameFlags::NOREPLACE).map_err(failed("remove", &path))?;
            let out = self.present(record, &temporary)?;
            if !out.is_some_and(|out| self.is_as_looked(record, &out)) {
                let back = settle::rename(&temporary, &spot, RenameFlags::NOREPLACE);
                back.map_err(failed("put back", &path))?;
                return Err(self.changed_meanwhile(record));
            }
            rustix::fs::unlinkat(temporary.parent(), temporary.name(), AtFlags::empty())
        };
        match removed {
            Ok(()) => {
                self.done.removed += 1;
                (self.tick)();
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                self.someone_put_something_into(record);
                Ok(())
            }
            Err(error) => Err(refused(error)),
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
        self.tell(&Entry::Temporary { path: path.to_vec() })?;
        let flags = AtFlags::empty();
        let linked =
            rustix::fs::linkat(leader.parent(), leader.name(), temporary.parent(), temporary.name(), flags);
        let prepared = match linked {
            Ok(()) => {
                let held = self.hold(record, &temporary)?;
                return self.put(Prepared { record, inode: held.inode() });
            }
            // Another file system by now, or too many names, or not allowed: a file of its own has the
            // same content.
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {
                let own_content = !needs_content_of(self.job.request, record);
                self.new_file(record, own_content)?
            }
            Err(error) => return Err(failed("link", path)(error.into())),
        };
        self.enqueue(prepared, false)
    }

    /// Writes into the file that is there. The content is whole in a file of its own before the first
    /// byte of the other changes, and the other is compared for the last time right before.
    fn write_in_place(&mut self, record: usize) -> Result<(), Failure> {
        let spot = self.spot(record)?;
        let held = self.hold(record, &spot)?;
        let path = self.path(record).to_vec();
        let stage = self.stage(record)?;
        self.tell(&Entry::Writing { path: path.clone(), inode: held.inode() })?;
        self.job.journal.sync().map_err(failed("write the journal of", b"the restore"))?;
        let file = self.open_for_writing(&path, &spot, &held).map_err(failed("open", &path))?;
        let is_expected = || {
            let now = rustix::fs::fstat(&file).ok().and_then(|now| live::present(&now, b"").ok());
            // Its rights may have been opened, and its names are told by the plan.
            self.looked(record)
                .zip(now)
                .is_some_and(|(looked, now)| self.is_as_looked(record, &Present { mode: looked.mode, ..now }))
        };
        let is_too_large = self.has_no_room(&stage, &file).map_err(failed("stat", &path))?;
        let written = if is_too_large {
            Err(Errno::NOSPC.into())
        } else {
            in_place::overwrite(&file, &stage, is_expected)
        };
        match written {
            Ok(true) => {}
            Ok(false) => return Err(self.changed_meanwhile(record)),
            Err(error) => return Err(failed("write", &path)(error)),
        }
        self.own_changes.insert(held.inode());
        self.give_all(record, &spot, &held)?;
        let surplus = Attributes { xattrs: self.surplus(record), ..Attributes::default() };
        self.give_to(record, &surplus, &held)?;
        file.sync_all().map_err(failed("sync", &path))?;
        self.tell(&Entry::Done { path: path.clone() })?;
        let staged = self.job.journal.directory().map(|at| at.join(stage_name(self.job.journal.id(), &path)));
        staged.and_then(std::fs::remove_file).map_err(failed("remove the staged content of", &path))?;
        self.changed();
        Ok(())
    }

    /// Writes the content that the file of `record` gets into the directory of the rescue.
    fn stage(&self, record: usize) -> Result<File, Failure> {
        let path = self.path(record);
        let journal = self.job.journal;
        let staged = journal.directory().and_then(|directory| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = directory.join(stage_name(journal.id(), path));
            Ok(File::from(rustix::fs::open(name, flags, Mode::RUSR | Mode::WUSR)?))
        });
        let mut file = staged.map_err(failed("stage the content of", path))?;
        self.write_content(record, &mut file)?;
        file.sync_all().map_err(failed("stage the content of", path))?;
        Ok(file)
    }

    /// Opens a regular file for writing; one of our own that we may not write is made writable for that
    /// moment.
    fn open_for_writing(&mut self, path: &[u8], spot: &Spot, held: &Handle) -> io::Result<File> {
        if held.stat().st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::other("it is no regular file any more"));
        }
        match held.open(OFlags::WRONLY) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let again = spot.hold()?.filter(|again| again.inode() == held.inode()).ok_or(error)?;
                let opened = self.loosener.for_a_moment(path, again, 0o200, |held| held.open(OFlags::WRONLY));
                Ok(File::from(opened?))
            }
            other => Ok(File::from(other?)),
        }
    }

    /// Whether the filesystem of `file` has no room for what `content` has more: better now than half way.
    fn has_no_room(&self, content: &File, file: &File) -> io::Result<bool> {
        let more = live::data_size(content)?.saturating_sub(live::data_size(file)?);
        let free = rustix::fs::fstatvfs(file)?;
        Ok(more > free.f_bavail.saturating_mul(free.f_frsize))
    }

    /// Gives directories their attributes and times, the deepest first.
    fn finish_directories(&mut self) -> Result<(), Failure> {
        let job = self.job;
        for path in touched(job.request, job.plan).iter().rev() {
            let directory = open_directory(job.place, path).map_err(failed("open", path))?;
            directory.into_iter().try_for_each(|one| self.unsynced.add(one)).map_err(failed("stat", path))?;
        }
        self.unsynced.flush().map_err(failed("sync", b"directories"))?;
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
            if step.is_some() {
                self.loosener.close_beneath(&path).map_err(failed("change back modes in", &path))?;
            }
            let is_final = match step {
                Some(Step { record, action: Action::Attributes(attributes) }) => {
                    self.give_journaled(*record, attributes, &held)?;
                    self.changed();
                    attributes.permissions.is_some()
                }
                Some(Step { record, .. }) => {
                    self.give_all(*record, &spot, &held)?;
                    self.tell(&Entry::Done { path: path.clone() })?;
                    true
                }
                None => false,
            };
            if is_final {
                self.loosener.forget(&path).map_err(failed("write the journal of", b"the restore"))?;
            }
            if let Some(mtime) = job.times.get(&path) {
                let attributes = Attributes { mtime: Some(*mtime), ..Attributes::default() };
                attributes.give(&held).map_err(failed("set the time of", &path))?;
            }
        }
        Ok(())
    }

    /// Gives inode flags, after all that they could forbid.
    fn give_flags(&mut self) -> Result<(), Failure> {
        let job = self.job;
        let mut forgotten = Vec::new();
        for step in job.plan.steps.iter().rev() {
            let path = self.path(step.record).to_vec();
            let wanted = match (&step.action, self.goal(step.record)) {
                (Action::Attributes(attributes), _) => attributes.flags.as_ref(),
                (Action::File { .. } | Action::Link { .. } | Action::Node, Some(goal))
                    if job.request.policy.privileges && flags::has_flags(goal.file_type) =>
                {
                    let has_some = self.looked(step.record).is_some_and(|live| !live.inode_flags.is_empty());
                    Some(&goal.inode_flags).filter(|flags| has_some || !flags.is_empty())
                }
                _ => None,
            };
            let wanted = wanted.cloned();
            if wanted.is_some() || step.action == Action::Remove {
                forgotten.push(path.clone());
            }
            let Some(wanted) = wanted else { continue };
            let held = self.spot(step.record)?.hold().map_err(failed("open", &path))?;
            if held.is_some_and(|held| flags::give(&held, &wanted).is_err()) {
                let names: Vec<_> = wanted.iter().map(|flag| format!("{flag:?}").to_lowercase()).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                self.done.shortfalls.push((path, Shortfall::Flags(names)));
            }
        }
        // Last, so that whoever completes this finds the flags that were there or those that are to be.
        forgotten.iter().try_for_each(|path| {
            self.loosener.forget_lock(path).map_err(failed("write the journal of", b"the restore"))
        })
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
