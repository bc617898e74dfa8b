//! A restore in place, from the first look to the last: checks, plan, rescue, change.
//!
//! Neighbours: the other rooms of `restore`, each for its part; `commands::restore` tells what came
//! of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::apply::{self, Done, Failure, Job};
use super::journal::{self, Found, Journal};
use super::look::{Look, Looker};
use super::loosen::Loosener;
use super::make::Policy;
use super::parallel;
use super::place::Place;
use super::plan::{self, Action, Left, Obstacle, Plan, Request, Step, needs_content};
use super::rescue::{self, Kept, Unfinished};
use super::settle::Settler;
use super::targets::{Choice, Links, opposite, same_file, select};
use super::times::{self, Times};
use crate::snapshot::blobs::Side;
use crate::snapshot::source::{ContentError, Contents, Unavailable};
use crate::snapshot::{self, FileRecord, FileType, Present, Snapshot, printable};

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
    /// Whether they are not made, or would not be, for what stands in the way.
    pub is_refused: bool,
    /// Whether conflicts are in the way, and not to be overwritten.
    pub has_blocking_conflicts: bool,
}

impl Answer {
    /// Whether the state was put back whole, or will be.
    pub fn is_whole(&self) -> bool {
        !self.is_refused && self.left.is_empty()
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
    /// The journal of a restore that was interrupted can't be read; nothing was changed.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// What a restore that was interrupted had begun can be neither completed nor taken back.
    #[error(transparent)]
    Settle(Failure),
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
    let killed = Killed::find(snapshot, wish)?;
    let begun = killed.settle(snapshot, &place, wish)?;
    let files = snapshot.files();
    let links = [wish.goal, opposite(wish.goal)].map(|side| Links::of(files, side));
    let links = [&links[0], &links[1]];
    let targets = select(files, links, wish.choice);

    let journal = Journal::beside(snapshot.path());
    let mut loosener = Loosener::new(&place, &journal);
    let mut indices: Vec<usize> =
        targets.iter().flat_map(|target| links[0].names(*target)).copied().collect();
    indices.extend(targets.iter().flat_map(|target| links[1].names(*target)));
    indices.extend(&targets);
    indices.sort_unstable();
    indices.dedup();
    let looks = look(wish, files, links, &indices, &place, &mut loosener, progress);
    let request = Request {
        files,
        goal: wish.goal,
        policy: wish.policy,
        force: wish.force,
        targets: &targets,
        links,
        looks: &looks,
        begun: &begun,
    };
    let plan = plan::plan(&request);
    let contents = Contents::new(snapshot);
    let mut answer = answer(&request, &plan, unavailable(&request, &plan, &contents));
    answer.has_blocking_conflicts = !wish.force && !plan.conflicts.is_empty();
    answer.is_refused = !plan.is_clear(wish.force) || !answer.unavailable.is_empty();
    if wish.dry_run || answer.is_refused {
        return Ok(answer);
    }

    answer.unavailable = check_contents(&request, &plan, &contents, progress)?;
    answer.is_refused = !answer.unavailable.is_empty();
    if answer.is_refused {
        return Ok(answer);
    }

    // What was loosened only to look is closed again unless the work needs it, too.
    let directories =
        times::directories(&place, &plan, &request, &loosener).map_err(failed("look at a directory"))?;
    let records = killed.sources(snapshot).flat_map(Snapshot::files);
    let times = times::times(&request, &plan, &directories, records);
    let is_undone = killed.itself && wish.goal == Side::Before && wish.paths.is_empty();
    let nothing_to_do = plan.steps.is_empty() && killed.own.is_empty() && !is_undone;
    if nothing_to_do {
        loosener.close().map_err(failed("change back the mode of a directory"))?;
        answer.applied = true;
        return Ok(answer);
    }
    let kept = what_is_kept(&request, &plan, &directories, &times, &killed, &place, &mut loosener);
    let has_rescue = !kept.is_empty();
    if has_rescue {
        let command = rescue::command(snapshot.path(), wish.goal, wish.paths)
            .map_err(failed("resolve the snapshot"))?;
        let header = rescue::header(snapshot.header(), journal.id(), command);
        rescue::write(&journal, &header, kept, &place, &mut loosener)?;
    }
    let mut rescues: Vec<PathBuf> = killed.own.iter().map(|one| one.path.clone()).collect();
    if has_rescue {
        rescues.push(journal.directory().map_err(failed("find the rescue"))?.to_owned());
    }
    journal.keep();
    let job = Job {
        request: &request,
        plan: &plan,
        place: &place,
        contents: &contents,
        journal: &journal,
        times: &times,
    };
    let mut done = Done::default();
    progress.start("restore", plan.steps.len());
    let applied = apply::apply(&job, &mut loosener, &mut done, &|| progress.tick());
    progress.end();
    if let Err(failure) = applied {
        let steps = plan.steps.len();
        let done = done.changed + done.removed;
        return Err(Error::Stopped { failure, done, steps, rescues });
    }
    drop(loosener);
    let ended = failed("end the rescue");
    (|| {
        if is_undone {
            rescue::end(&snapshot.path().canonicalize()?)?;
        }
        // The oldest is the last: without it a later one would tell what was half done as what was.
        journal.finish()?;
        killed.own.iter().rev().try_for_each(|one| rescue::end(&one.path))
    })()
    .map_err(ended)?;
    answer.rescues = rescues.iter().map(|path| rescue::final_name(path)).collect();
    answer.completed = !killed.own.is_empty();
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

/// Restores of the same snapshot and of its rescues that were killed.
struct Killed {
    /// Those of the same command, which is completed, in the order of their paths.
    own: Vec<Unfinished>,
    /// Those of others.
    others: Vec<Unfinished>,
    /// Whether the snapshot is itself the rescue of a restore that was killed.
    itself: bool,
    /// What each had begun, and where its journal is.
    journals: Vec<(PathBuf, journal::Killed)>,
}

impl Killed {
    fn find(snapshot: &Snapshot, wish: &Wish) -> Result<Killed, Error> {
        let path = snapshot.path().canonicalize().map_err(failed("resolve the snapshot"))?;
        let looked = failed("look for unfinished rescues");
        let command = rescue::command(snapshot.path(), wish.goal, wish.paths);
        let (found, command) =
            rescue::unfinished(&path).and_then(|found| Ok((found, command?))).map_err(looked)?;
        let mut killed = Killed { own: Vec::new(), others: Vec::new(), itself: false, journals: Vec::new() };
        let name = Some(rescue::name(&snapshot.header().id));
        for one in found {
            match journal::find(&one.path)? {
                Found::Alive => continue,
                Found::Killed(journal) => killed.journals.push((one.path.clone(), journal)),
                Found::Nothing => {}
            }
            let header = one.snapshot.as_ref().map(Snapshot::header);
            if one.path == path {
                killed.itself = true;
            } else if header.is_some_and(|header| header.name == name && header.command == command) {
                killed.own.push(one);
            } else {
                killed.others.push(one);
            }
        }
        Ok(killed)
    }

    /// The rescues that tell what was half done, those of the same command last.
    fn sources<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Snapshot> {
        let itself = self.itself.then_some(snapshot);
        let name = rescue::name(&snapshot.header().id);
        let others = self.others.iter().filter_map(|one| one.snapshot.as_ref());
        let others = others.filter(move |one| one.header().name.as_ref() == Some(&name));
        itself.into_iter().chain(others).chain(self.own.iter().filter_map(|one| one.snapshot.as_ref()))
    }

    /// Completes or takes back what each of them had begun; of a dry run, the paths where it would be done.
    fn settle(&self, snapshot: &Snapshot, place: &Place, wish: &Wish) -> Result<BTreeSet<Vec<u8>>, Error> {
        let all = self.own.iter().chain(&self.others).filter_map(|one| one.snapshot.as_ref());
        let mut rescues: Vec<&Snapshot> = all.chain(self.itself.then_some(snapshot)).collect();
        rescues.sort_by_key(|one| std::cmp::Reverse((one.path().as_os_str().len(), one.path().to_owned())));
        let settler = Settler { place, rescues, policy: wish.policy, dry_run: wish.dry_run };
        let mut begun = BTreeSet::new();
        for (path, journal) in self.journals.iter().rev() {
            begun.append(&mut settler.settle(journal, path).map_err(Error::Settle)?);
        }
        if !wish.dry_run {
            for one in self.others.iter().filter(|one| one.snapshot.is_none()) {
                // One with what is no business of ours stays.
                let _ = rescue::end(&one.path);
            }
        }
        Ok(begun)
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
    loosener: &mut Loosener<'_>,
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
    // Twice: what is in a directory that was opened may be shut as well.
    for _ in 0..2 {
        let is_hidden = |look: &io::Result<Look>| match look {
            Ok(look) => look.is_shut,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        let mut hidden: Vec<usize> =
            looks.iter().filter(|(_, look)| is_hidden(look)).map(|(index, _)| *index).collect();
        hidden.sort_unstable();
        if wish.dry_run || hidden.is_empty() {
            break;
        }
        let mut opened = false;
        let mut readable = BTreeSet::new();
        for index in hidden {
            let path = files[index].path.as_slice();
            let made = loosener.make_searchable(path, wish.policy.user.uid);
            opened |= made.unwrap_or_default();
            if looks.get(&index).is_some_and(Result::is_ok) && loosener.make_readable(path).is_ok() {
                opened = true;
                readable.insert(path);
            }
        }
        if opened {
            // The opened directories themselves are seen with other bits now, too.
            looks = look_at(indices, loosener);
        }
        // Directories stay open, as a way to what is in them; what can't be closed now is closed then.
        let _ = loosener.close_files();
        for (index, look) in &mut looks {
            if let (Ok(look), true) = (look, readable.contains(files[*index].path.as_slice())) {
                look.is_shut = false;
            }
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

/// What of all that is overwritten no rescue of the same command has yet.
fn what_is_kept(
    request: &Request,
    plan: &Plan,
    directories: &BTreeMap<Vec<u8>, Present>,
    times: &Times,
    killed: &Killed,
    place: &Place,
    loosener: &mut Loosener,
) -> BTreeMap<Vec<u8>, Kept> {
    let own = by_path(killed.own.iter().filter_map(|one| one.snapshot.as_ref()).flat_map(Snapshot::files));
    let mut is_kept = |step: &Step| {
        let live = request.looks.get(&step.record).and_then(|look| look.as_ref().ok()?.live.as_ref());
        let records = own.get(request.files[step.record].path.as_slice());
        records.is_some_and(|records| rescue::is_kept(records, step, live, place, loosener))
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
    kept
}
