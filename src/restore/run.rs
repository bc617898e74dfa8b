//! A restore in place, from the first look to the last: checks, plan, rescue, change.
//!
//! Neighbours: the other rooms of `restore`, each for its part; `commands::restore` tells what came
//! of it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::apply::{self, Done, Job};
use super::error::{Error, failed};
use super::interrupted::Killed;
use super::journal::Journal;
use super::look::look;
use super::loosen::Loosener;
use super::outcome::{Answer, answer};
use super::parallel;
use super::place::Place;
use super::plan::{self, Plan, Request, Step, needs_content};
use super::request::{Progress, Wish};
use super::rescue::{self, Kept};
use super::rescue_directory;
use super::targets::{Links, opposite, same_file, select};
use super::times::{self, Times};
use crate::snapshot::blobs::Side;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{self, FileRecord, Present, Snapshot, printable};

/// How many contents are in memory at once, each with up to a row of the bundle.
const CONTENT_THREADS: usize = 4;

/// How often a snapshot that is in use is tried, and how long after each time.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

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
        rescue::write(&journal, &header, kept, &place, &mut loosener)
            .map_err(|error| Error::Rescue(Box::new(error)))?;
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
    if let Err(cause) = applied {
        let steps = plan.steps.len();
        let done = done.changed + done.removed;
        return Err(Error::Stopped { cause: Box::new(cause), done, steps, rescues });
    }
    drop(loosener);
    let ended = failed("end the rescue");
    (|| {
        if is_undone {
            rescue_directory::end(&snapshot.path().canonicalize()?)?;
        }
        // The oldest is the last: without it a later one would tell what was half done as what was.
        journal.finish()?;
        killed.own.iter().rev().try_for_each(|one| rescue_directory::end(&one.path))
    })()
    .map_err(ended)?;
    answer.rescues = rescues.iter().map(|path| rescue_directory::final_name(path)).collect();
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

fn by_path<'a>(records: impl Iterator<Item = &'a FileRecord>) -> HashMap<&'a [u8], Vec<&'a FileRecord>> {
    let mut found: HashMap<&[u8], Vec<&FileRecord>> = HashMap::new();
    for record in records {
        found.entry(&record.path).or_default().push(record);
    }
    found
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
            Err(snapshot::Error::Unavailable(why)) => unavailable.push((record.path.clone(), why)),
            Err(snapshot::Error::Sink(error)) => return Err(failed("check the content")(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(unavailable)
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
