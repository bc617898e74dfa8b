//! A restore in place, from the first look to the last: checks, plan, rescue, change.
//!
//! Neighbours: the other rooms of `restore`, each for its part; `commands::restore` tells what came
//! of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::apply::{self, Done, Failure, Job};
use super::look::{Look, Looker};
use super::loosen::Loosener;
use super::make::Policy;
use super::parallel;
use super::place::Place;
use super::plan::{self, Action, Left, Obstacle, Plan, Request, Step, needs_content};
use super::rescue::{self, Rescue, Unfinished};
use super::targets::{Choice, Links, opposite, same_file, select};
use super::times::{self, Times};
use super::torn::{self, Remains};
use crate::snapshot::blobs::Side;
use crate::snapshot::source::{ContentError, Contents, Unavailable};
use crate::snapshot::{self, FileRecord, FileType, Kind, Present, Snapshot, printable};

/// How many contents are in memory at once, each with up to a row of the bundle.
const CONTENT_THREADS: usize = 4;

/// How often a snapshot that is in use is tried, and how long after each time.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What is asked for.
pub struct Wish<'a> {
    /// The state that is to be put back.
    pub goal: Side,
    /// What of it.
    pub policy: &'a Policy,
    /// Which paths.
    pub choice: &'a dyn Choice,
    /// The same, as they were named.
    pub paths: &'a [Vec<u8>],
    /// Whether a target that is at neither of its states is overwritten.
    pub force: bool,
    /// Whether the plan is all that is wanted.
    pub dry_run: bool,
}

/// Who is told how far the work is.
pub trait Progress: Sync {
    /// Work of `len` steps begins.
    fn start(&self, what: &'static str, len: usize);
    /// One step is done.
    fn tick(&self);
    /// The work is done.
    fn end(&self);
}

/// What becomes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is made where nothing is.
    Create,
    /// What is there is replaced.
    Replace,
    /// It is written in place.
    WriteInPlace,
    /// It becomes another name of a file.
    Link,
    /// It gets other attributes.
    Attributes,
    /// It is removed.
    Remove,
}

impl Change {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Change::Create => "create",
            Change::Replace => "replace",
            Change::WriteInPlace => "write_in_place",
            Change::Link => "link",
            Change::Attributes => "attributes",
            Change::Remove => "remove",
        }
    }
}

/// What came of a restore.
#[derive(Debug, Default)]
pub struct Answer {
    /// What is to be done, or was, in the order of the paths.
    pub changes: Vec<(Vec<u8>, Change)>,
    /// Targets at neither of their states, with what is there.
    pub conflicts: Vec<(Vec<u8>, String)>,
    /// Paths that can't be put back.
    pub obstacles: Vec<(Vec<u8>, Obstacle)>,
    /// Paths whose content can't be had.
    pub unavailable: Vec<(Vec<u8>, Unavailable)>,
    /// Targets that are left as they are.
    pub left: Vec<(Vec<u8>, Left)>,
    /// What could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, super::make::Shortfall)>,
    /// How many targets were at the state already.
    pub at_goal: usize,
    /// Where what was overwritten is kept.
    pub rescues: Vec<PathBuf>,
    /// Whether a restore that was killed was completed.
    pub completed: bool,
    /// Whether the changes were made.
    pub applied: bool,
}

impl Answer {
    /// Whether the state was put back whole, or will be.
    pub fn is_whole(&self) -> bool {
        self.obstacles.is_empty()
            && self.unavailable.is_empty()
            && self.left.is_empty()
            && (self.applied || self.conflicts.is_empty())
    }
}

/// Why a restore came to no good end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process works with the snapshot.
    #[error("{0} is being used by another restore or recording")]
    Busy(String),
    /// What is there can't be looked at or locked.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The refusal.
        source: io::Error,
    },
    /// The content of the snapshot is bad; nothing was changed.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// The rescue could not be written; nothing was changed.
    #[error("{0}; nothing was changed")]
    Rescue(rescue::Error),
    /// The work stopped on the way.
    #[error(
        "{failure}; {} of {steps} changes were made, what they overwrote is in {}, and the same command completes them",
        done,
        names(rescues)
    )]
    Stopped {
        /// Why.
        failure: Failure,
        /// How many changes were made.
        done: usize,
        /// Of how many.
        steps: usize,
        /// The unfinished rescues.
        rescues: Vec<PathBuf>,
    },
}

impl From<rescue::Error> for Error {
    fn from(error: rescue::Error) -> Error {
        // Not as its source: its text is all in the message.
        Error::Rescue(error)
    }
}

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| printable(path.as_os_str().as_encoded_bytes())).collect();
    names.join(" and ")
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// Puts a state of `snapshot` back in place, or says why not.
pub fn run(snapshot: &Snapshot, wish: &Wish, progress: &dyn Progress) -> Result<Answer, Error> {
    let _lock = lock(snapshot)?;
    let place = Place::live().map_err(failed("open /"))?;
    let killed = Killed::find(snapshot, wish).map_err(failed("look for unfinished rescues"))?;
    if !wish.dry_run {
        killed.remove_leftovers(&place);
    }
    let files = snapshot.files();
    let links = [wish.goal, opposite(wish.goal)].map(|side| Links::of(files, side));
    let links = [&links[0], &links[1]];
    let targets = select(files, links, wish.choice);

    let mut loosener = Loosener::default();
    if !wish.dry_run {
        killed.adopt(&place, &mut loosener).map_err(failed("look at the directories of a killed restore"))?;
    }
    let mut indices: Vec<usize> =
        targets.iter().flat_map(|target| links[0].names(*target)).copied().collect();
    indices.extend(targets.iter().flat_map(|target| links[1].names(*target)));
    indices.extend(&targets);
    indices.sort_unstable();
    indices.dedup();
    let looks = look(wish, files, links, &indices, &place, &mut loosener, progress);
    let unfinished = killed.records();
    let own_half_done = torn::half_done(files, &looks, &killed.remains_of_own(snapshot), &place);
    let mut half_done = torn::half_done(files, &looks, &killed.remains_of_others(snapshot), &place);
    half_done.extend(&own_half_done);
    let request = Request {
        files,
        goal: wish.goal,
        policy: wish.policy,
        force: wish.force,
        targets: &targets,
        links,
        looks: &looks,
        unfinished: &unfinished,
        half_done: &half_done,
    };
    let plan = plan::plan(&request);
    let contents = Contents::new(snapshot);
    let mut answer = answer(&request, &plan, unavailable(&request, &plan, &contents));
    if wish.dry_run || !plan.is_clear(wish.force) || !answer.unavailable.is_empty() {
        return Ok(answer);
    }

    answer.unavailable = check_contents(&request, &plan, &contents, progress)?;
    if !answer.unavailable.is_empty() {
        return Ok(answer);
    }

    // What was loosened only to look is closed again unless the work needs it, too.
    let directories =
        times::directories(&place, &plan, &request, &loosener).map_err(failed("look at a directory"))?;
    let records = killed.sources().flat_map(|(_, files)| files);
    let times = times::times(&request, &plan, &directories, records);
    let is_undone = killed.itself_id.is_some() && wish.goal == Side::Before && wish.paths.is_empty();
    let nothing_to_do = plan.steps.is_empty() && killed.own.is_empty() && !is_undone;
    if nothing_to_do {
        loosener.close().map_err(failed("change back the mode of a directory"))?;
        answer.applied = true;
        return Ok(answer);
    }
    let rescues = write_rescues(
        snapshot,
        wish,
        &request,
        &plan,
        &directories,
        &times,
        &killed,
        &own_half_done,
        &place,
    )?;
    let id = rescues.id.clone();
    let job = Job {
        request: &request,
        plan: &plan,
        place: &place,
        contents: &contents,
        id: &id,
        stage: &rescues.last,
        times: &times,
    };
    let mut done = Done::default();
    progress.start("restore", plan.steps.len());
    let applied = apply::apply(&job, &mut loosener, &mut done, &|| progress.tick());
    progress.end();
    if let Err(failure) = applied {
        let steps = plan.steps.len();
        let done = done.changed + done.removed;
        let rescues = rescues.all.iter().map(|rescue| rescue.path().to_owned()).collect();
        return Err(Error::Stopped { failure, done, steps, rescues });
    }
    answer.completed = rescues.completed;
    if is_undone {
        rescue::finish(snapshot).map_err(failed("give the rescue its final name"))?;
    }
    // The oldest is the last: without it a later one would tell what was half done as what was.
    for rescue in rescues.all.into_iter().rev() {
        answer.rescues.insert(0, rescue.finish().map_err(failed("give the rescue its final name"))?);
    }
    if rescues.completed {
        rescue::remove_abandoned(snapshot.path()).map_err(failed("look for unfinished rescues"))?;
    }
    answer.left.append(&mut done.left);
    answer.shortfalls = done.shortfalls;
    answer.applied = true;
    Ok(answer)
}

/// Keeps others from restoring or recording into the snapshot for as long as the result lives.
fn lock(snapshot: &Snapshot) -> Result<File, Error> {
    let directory = File::open(snapshot.path()).map_err(failed("open the snapshot"))?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // A recording that has just ended may still be held by a process that it forked.
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            // A file system without locks is no reason not to restore.
            _ => return Ok(directory),
        }
    }
    Err(Error::Busy(printable(snapshot.path().as_os_str().as_encoded_bytes()).into_owned()))
}

/// Restores of the same snapshot that were killed.
struct Killed {
    /// Those of the same command, which is completed, in the order of their paths.
    own: Vec<Unfinished>,
    /// Those of others: what they left half done is known.
    others: Vec<Unfinished>,
    /// The records of the snapshot itself, where it is the rescue of a restore that was killed.
    itself: Vec<FileRecord>,
    itself_id: Option<String>,
    /// The snapshot that that restore was putting back.
    origin: Option<Snapshot>,
}

impl Killed {
    fn find(snapshot: &Snapshot, wish: &Wish) -> io::Result<Killed> {
        let header = snapshot.header();
        let command = rescue::command(snapshot.path(), wish.goal, wish.paths)?;
        let found = rescue::unfinished(snapshot.path())?;
        let name = Some(rescue::name(&header.id));
        let concerned = found.into_iter().filter(|one| one.snapshot.header().name == name);
        let (own, others): (Vec<_>, Vec<_>) =
            concerned.partition(|one| one.snapshot.header().command == command);
        let is_unfinished = header.kind == Kind::Rescue && rescue::is_unfinished(snapshot)?;
        Ok(Killed {
            own,
            others,
            itself: if is_unfinished { snapshot.files().to_vec() } else { Vec::new() },
            itself_id: is_unfinished.then(|| header.id.clone()),
            origin: if is_unfinished { rescue::origin(header) } else { None },
        })
    }

    fn sources(&self) -> impl Iterator<Item = (&str, &[FileRecord])> {
        let found = self.others.iter().chain(&self.own);
        let itself = self.itself_id.as_deref().map(|id| (id, self.itself.as_slice()));
        itself.into_iter().chain(found.map(|one| (one.rescue.id(), one.snapshot.files())))
    }

    fn records(&self) -> HashMap<&[u8], Vec<&FileRecord>> {
        let records = self.sources().flat_map(|(_, files)| files);
        by_path(records.filter(|record| record.operations.intersects(snapshot::Operations::CHANGES)))
    }

    fn remains_of_own<'a>(&'a self, snapshot: &'a Snapshot) -> Vec<Remains<'a>> {
        self.own.iter().map(|one| Remains { rescue: &one.snapshot, origin: Some(snapshot) }).collect()
    }

    fn remains_of_others<'a>(&'a self, snapshot: &'a Snapshot) -> Vec<Remains<'a>> {
        let itself = Remains { rescue: snapshot, origin: self.origin.as_ref() };
        let itself = self.itself_id.is_some().then_some(itself);
        let others = self.others.iter().map(|one| Remains { rescue: &one.snapshot, origin: Some(snapshot) });
        itself.into_iter().chain(others).collect()
    }

    fn remove_leftovers(&self, place: &Place) {
        // A run that was killed may have named its files after one rescue and worked on the paths of all.
        let ids: Vec<&str> = self.sources().map(|(id, _)| id).collect();
        let paths: BTreeSet<&[u8]> =
            self.sources().flat_map(|(_, files)| files).map(|record| record.path.as_slice()).collect();
        for path in paths {
            for id in &ids {
                // What can't be removed now is met again, and told, where it is in the way.
                let _ = apply::remove_leftover(place, id, path);
            }
        }
    }

    /// Takes over the directories that a killed restore had opened to itself.
    fn adopt(&self, place: &Place, loosener: &mut Loosener) -> io::Result<()> {
        for record in self.sources().flat_map(|(_, files)| files) {
            let Some(before) = record.before.present() else { continue };
            if before.file_type == FileType::Directory && before.mode & 0o700 != 0o700 {
                loosener.adopt(place, &record.path, before)?;
            }
        }
        Ok(())
    }
}

fn by_path<'a>(records: impl Iterator<Item = &'a FileRecord>) -> HashMap<&'a [u8], Vec<&'a FileRecord>> {
    let mut found: HashMap<&[u8], Vec<&FileRecord>> = HashMap::new();
    for record in records {
        found.entry(&record.path).or_default().push(record);
    }
    found
}

fn look(
    wish: &Wish,
    files: &[FileRecord],
    links: [&Links; 2],
    indices: &[usize],
    place: &Place,
    loosener: &mut Loosener,
    progress: &dyn Progress,
) -> HashMap<usize, io::Result<Look>> {
    progress.start("look", indices.len());
    let look_at = |indices: &[usize], loosener: &Loosener| {
        let loosened = loosener.original();
        let looker =
            Looker { place, files, links, goal: wish.goal, policy: wish.policy, loosened: &loosened };
        looker.look_at(indices, &|| progress.tick())
    };
    let mut looks = look_at(indices, loosener);
    let is_hidden = |look: &io::Result<Look>| {
        look.as_ref().err().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    let mut hidden: Vec<usize> =
        looks.iter().filter(|(_, look)| is_hidden(look)).map(|(index, _)| *index).collect();
    hidden.sort_unstable();
    if !wish.dry_run && !hidden.is_empty() {
        let mut opened = false;
        for index in hidden {
            let made = loosener.make_searchable(place, &files[index].path, wish.policy.user.uid);
            opened |= made.unwrap_or_default();
        }
        if opened {
            // The opened directories themselves are seen with other bits now, too.
            looks = look_at(indices, loosener);
        }
    }
    progress.end();
    looks
}

/// The contents that the plan needs and that can't be had.
fn unavailable(request: &Request, plan: &Plan, contents: &Contents) -> Vec<(Vec<u8>, Unavailable)> {
    let mut missing = Vec::new();
    for step in &plan.steps {
        let record = &request.files[step.record];
        if !needs_content(record, request.goal, &step.action) {
            continue;
        }
        let mut why = None;
        let found = same_file(request.files, request.links[0], step.record).any(|record| {
            match contents.check(record, request.goal) {
                Ok(()) => true,
                Err(error) => {
                    why.get_or_insert(error);
                    false
                }
            }
        });
        if let (false, Some(why)) = (found, why) {
            missing.push((record.path.clone(), why));
        }
    }
    missing
}

/// Reads all content that the plan needs, so that a bad one is met before anything changes.
fn check_contents(
    request: &Request,
    plan: &Plan,
    contents: &Contents,
    progress: &dyn Progress,
) -> Result<Vec<(Vec<u8>, Unavailable)>, Error> {
    let needed: Vec<&FileRecord> = plan
        .steps
        .iter()
        .filter(|step| needs_content(&request.files[step.record], request.goal, &step.action))
        .map(|step| apply::source(request, step.record))
        .collect();
    progress.start("check", needed.len());
    let checked = parallel::map_on(CONTENT_THREADS, &needed, &|| progress.tick(), |record| {
        contents.prove(record, request.goal)
    });
    progress.end();
    let mut unavailable = Vec::new();
    for (record, checked) in needed.into_iter().zip(checked) {
        match checked {
            Ok(_) => {}
            Err(ContentError::Unavailable(why)) => unavailable.push((record.path.clone(), why)),
            Err(ContentError::Snapshot(error)) => return Err(error.into()),
            Err(ContentError::Sink(error)) => return Err(failed("check the content")(error)),
        }
    }
    Ok(unavailable)
}

fn answer(request: &Request, plan: &Plan, unavailable: Vec<(Vec<u8>, Unavailable)>) -> Answer {
    let looked = |index: usize| request.looks.get(&index).and_then(|look| look.as_ref().ok());
    let change = |index: usize, action: &Action| match action {
        Action::File { in_place: true, .. } => Change::WriteInPlace,
        Action::File { .. } | Action::Node => match looked(index).and_then(|look| look.live.as_ref()) {
            None => Change::Create,
            Some(_) => Change::Replace,
        },
        Action::Link { .. } => Change::Link,
        Action::Attributes(_) => Change::Attributes,
        Action::Remove => Change::Remove,
    };
    let path = |index: usize| request.files[index].path.clone();
    let conflict = |index: &usize| {
        let live = looked(*index).and_then(|look| look.live.as_ref());
        (path(*index), live.map_or_else(|| "nothing is there now".to_owned(), describe))
    };
    Answer {
        changes: plan
            .steps
            .iter()
            .map(|step| (path(step.record), change(step.record, &step.action)))
            .collect(),
        conflicts: plan.conflicts.iter().map(conflict).collect(),
        obstacles: plan.obstacles.clone(),
        unavailable,
        left: plan.left.clone(),
        at_goal: plan.at_goal,
        ..Answer::default()
    }
}

/// What is there, in a few words.
fn describe(live: &Present) -> String {
    let name = live.file_type.name().replace('_', " ");
    let bits = live.mode & 0o7777;
    match (&live.target, live.file_type) {
        (Some(target), _) => format!("a symlink to {} is there now", printable(target)),
        (_, FileType::File) => format!("a file of {} bytes with mode {bits:04o} is there now", live.size),
        _ => format!("a {name} with mode {bits:04o} is there now"),
    }
}

/// The rescues of one restore.
struct Rescues {
    all: Vec<Rescue>,
    /// The number in the names of temporary files.
    id: String,
    /// The one that the number is of.
    last: PathBuf,
    completed: bool,
}

#[allow(clippy::too_many_arguments, reason = "the parts of one snapshot")]
fn write_rescues(
    snapshot: &Snapshot,
    wish: &Wish,
    request: &Request,
    plan: &Plan,
    directories: &BTreeMap<Vec<u8>, Present>,
    times: &Times,
    killed: &Killed,
    half_done: &HashSet<usize>,
    place: &Place,
) -> Result<Rescues, Error> {
    let own = by_path(killed.own.iter().flat_map(|one| one.snapshot.files()));
    // Bytes of our own over such a file are no loss.
    let stored: HashSet<_> = own
        .values()
        .flatten()
        .filter_map(|record| record.before.present().filter(|before| before.digest.is_some()))
        .map(|before| (before.dev, before.ino))
        .collect();
    let is_kept = |step: &Step| {
        let index = step.record;
        let live = request.looks.get(&index).and_then(|look| look.as_ref().ok()?.live.as_ref());
        let is_stored = live.is_some_and(|live| stored.contains(&(live.dev, live.ino)));
        half_done.contains(&index) && (is_stored || matches!(step.action, Action::Attributes(_)))
            || own
                .get(request.files[index].path.as_slice())
                .is_some_and(|records| rescue::is_kept(records, step, live, place))
    };
    let steps: Vec<_> = plan.steps.iter().filter(|step| !is_kept(step)).cloned().collect();
    let parents = plan.parents.iter().filter(|path| !own.contains_key(path.as_slice())).cloned();
    let new_directories: BTreeMap<Vec<u8>, Present> = directories
        .iter()
        .filter(|(path, _)| !own.contains_key(path.as_slice()))
        .map(|(path, at)| (path.clone(), at.clone()))
        .collect();
    let mut kept = rescue::kept(request, &steps, parents, &new_directories);
    for (path, one) in &mut kept {
        if let (Some((mtime, mtime_nsec)), snapshot::State::Present(after)) =
            (times.get(path), &mut one.record.after)
            && !one.record.operations.intersects(snapshot::Operations::CHANGES)
        {
            (after.mtime, after.mtime_nsec) = (*mtime, *mtime_nsec);
        }
    }
    let completed = !killed.own.is_empty();
    let mut all: Vec<Rescue> = killed.own.iter().map(|one| one.rescue.clone()).collect();
    if !kept.is_empty() {
        let header = snapshot.header();
        let command = rescue::command(snapshot.path(), wish.goal, wish.paths)
            .map_err(failed("resolve the snapshot"))?;
        let header = rescue::header(header, command);
        all.push(rescue::write(snapshot.path(), &header, kept, place)?);
    }
    let last = all.last().map(|rescue| (rescue.id().to_owned(), rescue.path().to_owned()));
    let (id, last) = last.unwrap_or_default();
    Ok(Rescues { all, id, last, completed })
}
