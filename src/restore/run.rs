//! A restore in place, from the lock to the end of the rescue.
//!
//! Neighbours: the other files of `restore`, each for its part; `commands::restore` reports the outcome.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::access::TemporaryAccess;
use super::apply::{self, Applied, ApplyContext};
use super::check::check_contents;
use super::disk::lock_exclusively;
use super::displaced::DisplacedFiles;
use super::error::{Error, failed};
use super::git;
use super::git::locks::GitLocks;
use super::git::meaning::{Comparison, Refinement, refined};
use super::inspect::{Inspection, inspect, with_attributes_of_others};
use super::interrupted::{InterruptedRestores, directories_of, in_the_way};
use super::journal::Journal;
use super::known_links;
use super::merge::Merger;
use super::outcome::{RestoreOutcome, conflicts, digest, outcome};
use super::plan::{self, LeftReason, PlanInput, RestorePlan, Step, needs_content};
use super::request::{RestoreProgress, RestoreRequest};
use super::rescue::{self, KeptPath};
use super::rescue_directory;
use super::root::Root;
use super::since::Since;
use super::targets::{HardLinks, opposite, same_file, select};
use super::times::{self, DirectoryTimes};
use crate::fs::child_of;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{has_two_fingerprints, has_two_states, state};
use crate::snapshot::layout::JOURNAL;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{self, FileRecord, FileType, Present, Snapshot, printable};

/// How often a locked snapshot is tried.
const LOCK_TRIES: u32 = 100;

/// Puts a state of `snapshot` back in place, or says why it can't.
pub fn run(
    snapshot: &Snapshot,
    request: &RestoreRequest,
    progress: &dyn RestoreProgress,
) -> Result<RestoreOutcome, Error> {
    let _alone = if request.dry_run || request.is_alone { Vec::new() } else { exclude_others(snapshot)? };
    let _locks = snapshot.parts().iter().map(lock).collect::<Result<Vec<_>, _>>()?;
    if request.yields_to_interrupted {
        let interrupted = in_the_way(snapshot, request).map_err(failed("search for unfinished rescues"))?;
        if interrupted.is_some() {
            return Ok(RestoreOutcome { interrupted, is_refused: true, ..RestoreOutcome::default() });
        }
    }
    let root = Root::live().map_err(failed("open /"))?;
    let interrupted = InterruptedRestores::find(snapshot, request)?;
    let begun = interrupted.settle(snapshot, &root, request)?;
    let records = git::with_added_objects(snapshot.files(), request.wanted, &root);
    let records = known_links::with_known_names(records, request, &root, &snapshot.header().finished_at);
    let records = records.as_ref();
    let hard_links = [request.wanted, opposite(request.wanted)].map(|side| HardLinks::of(records, side));
    let hard_links = [&hard_links[0], &hard_links[1]];
    let mut targets = select(records, hard_links, request.choice);
    let unchosen = git::leave_unchosen(records, &mut targets, request.choice);

    let journal = Journal::beside(snapshot.path());
    let mut access = TemporaryAccess::new(&root, &journal);
    let indices = with_other_names(&targets, hard_links);
    let mut inspections = inspect(request, records, hard_links, &indices, &root, &mut access, progress);
    let known_conflicts = conflicts_with_later(request, records, &targets, &inspections);
    let contents = Contents::new(snapshot);
    let mut locks = GitLocks::default();
    let refine = |locks: &GitLocks, inspections: &mut _| {
        let comparison = Comparison {
            files: records,
            targets: &targets,
            wanted: request.wanted,
            force: request.force_git,
            repositories: &snapshot.header().git_repositories,
            contents: &contents,
            root: &root,
            is_own_lock: &|path| locks.holds(path) || begun.contains(path),
        };
        comparison.refine(inspections)
    };
    let mut refinement = refine(&locks, &mut inspections);
    let merged = if request.merge {
        let merger = Merger {
            files: records,
            wanted: request.wanted,
            hard_links,
            contents: &contents,
            root: &root,
            snapshot,
            own: interrupted.own.iter().filter_map(|one| one.snapshot.as_ref()).collect(),
            known_conflicts: &known_conflicts,
            begun: &begun,
        };
        merger.merge(&targets, &mut inspections)
    } else {
        BTreeMap::new()
    };
    refinement.add(&merged);
    let to_put_back = |inspections: &_, refinement: &_| {
        let files = refined(records, request.wanted, inspections, refinement);
        with_attributes_of_others(files, request.wanted, inspections)
    };
    let mut files = to_put_back(&inspections, &refinement);
    let since = Since::new(&root);
    let displaced = DisplacedFiles::of(records, request.wanted, &root);
    let common = CommonInput {
        request,
        known_conflicts: &known_conflicts,
        hard_links,
        begun: &begun,
        since: &since,
        displaced: &displaced,
    };
    let mut decision = decide(&common, &files, &inspections, &refinement, targets.clone());
    let input = common.input(&files, &inspections, &refinement, &decision.targets);
    if !request.dry_run && decision.plan.obstacles.is_empty() && !decision.plan.has_blocking_conflicts(&input)
    {
        let taken = locks.take(&input, &decision.plan, &root, &journal)?;
        if locks.is_any() || !taken.is_empty() {
            // What Git did before the locks were there.
            let of_git: Vec<usize> =
                targets.iter().copied().filter(|index| records[*index].is_git_state).collect();
            inspections.extend(inspect(request, records, hard_links, &of_git, &root, &mut access, progress));
            refinement = refine(&locks, &mut inspections);
            refinement.add(&merged);
            refinement.hard_conflicts.extend(taken);
            files = to_put_back(&inspections, &refinement);
            decision = decide(&common, &files, &inspections, &refinement, targets.clone());
        }
    }
    let Decision { targets, mut plan, left } = decision;
    let input = common.input(&files, &inspections, &refinement, &targets);
    plan.left.extend(unchosen.into_iter().chain(left).chain(unseen(snapshot, request, &root)));
    plan.left.sort_by(|one, other| one.0.cmp(&other.0));
    let mut outcome = outcome(&input, &plan, unavailable(&input, &plan, &contents), &since);
    let merged = merged.into_iter().map(|(index, one)| (files[index].path.clone(), one));
    outcome.merged = merged.collect();
    outcome.digest = digest(snapshot, request, &input, &plan, &outcome);
    outcome.is_other_plan = request.agreed.is_some_and(|agreed| agreed != outcome.digest);
    outcome.is_refused = outcome.is_other_plan
        || outcome.has_blocking_conflicts
        || !plan.obstacles.is_empty()
        || !outcome.unavailable.is_empty();
    if request.dry_run || outcome.is_refused {
        return Ok(outcome);
    }

    let checked = check_contents(&input, &plan, &contents, &root, progress)?;
    outcome.unavailable = checked.unavailable;
    outcome.is_refused = !outcome.unavailable.is_empty();
    if outcome.is_refused {
        return Ok(outcome);
    }

    // Access that only the inspection needed is revoked, unless the work needs it, too.
    let directories =
        times::directories(&root, &plan, &input, &access).map_err(failed("stat a directory"))?;
    let records = interrupted.sources(snapshot).flat_map(Snapshot::files);
    let times = times::times(&input, &plan, &directories, records);
    let is_undone = interrupted.itself && request.wanted == Side::Before && request.is_whole;
    let is_skipped = |(path, why): &(Vec<u8>, LeftReason)| {
        matches!(why, LeftReason::Conflict(_) | LeftReason::FileOfAnother(_)).then(|| path.clone())
    };
    let skipped: BTreeSet<_> = plan.left.iter().filter_map(is_skipped).collect();
    let leaves_mark = request.leaves_mark
        && plan.left.iter().all(|(path, why)| counts_as_undone(request, &files, path, why));
    let nothing_to_do = plan.steps.is_empty() && interrupted.own.is_empty() && !is_undone && !leaves_mark;
    if nothing_to_do {
        access.revoke().map_err(failed("change back the mode of a directory"))?;
        outcome.applied = true;
        return Ok(outcome);
    }
    let mut kept = to_be_kept(&input, &plan, &directories, &times, &interrupted, &root, &mut access);
    git::keep_promised(&input, &plan, &contents, &mut kept);
    for (path, one) in &outcome.merged {
        // For a merge of what is redone. What gets no more than a mode has its content already.
        if let Some(kept) = kept.get_mut(path).filter(|kept| kept.content) {
            kept.promised = Some(one.content.clone());
        }
    }
    let mut rescues: Vec<PathBuf> = interrupted.own.iter().map(|one| one.path.clone()).collect();
    if !kept.is_empty() || leaves_mark && interrupted.own.is_empty() {
        write_rescue(snapshot, request, &interrupted, &journal, kept, &root, &mut access)?;
        rescues.push(journal.directory().map_err(failed("find the rescue"))?.to_owned());
    }
    journal.keep();
    let context = ApplyContext {
        input: &input,
        plan: &plan,
        root: &root,
        contents: &contents,
        unnamed: &checked.files,
        journal: &journal,
        times: &times,
        flags_due: &interrupted.flags_due(),
        lasting_journal: interrupted.lasting_journal(),
    };
    let mut done = Applied::default();
    progress.start("restore", plan.steps.len());
    let applied = apply::apply(&context, &mut access, &mut locks, &mut done, &|| progress.tick());
    progress.end();
    if let Err(cause) = applied {
        let steps = plan.steps.len();
        let done = done.changed + done.removed;
        return Err(Error::Stopped { cause: Box::new(cause), done, steps, rescues });
    }
    drop(access);
    let taken_back = is_undone.then_some((snapshot, &skipped));
    end_rescues(taken_back, journal, &interrupted).map_err(failed("end the rescue"))?;
    outcome.rescues = rescues.iter().map(|path| rescue_directory::final_name(path)).collect();
    outcome.completed = !interrupted.own.is_empty();
    outcome.left.append(&mut done.left);
    outcome.shortfalls.append(&mut done.shortfalls);
    outcome.applied = true;
    Ok(outcome)
}

/// The targets, and the other names of their files on both sides.
fn with_other_names(targets: &[usize], hard_links: [&HardLinks; 2]) -> Vec<usize> {
    let others =
        hard_links.into_iter().flat_map(|links| targets.iter().flat_map(|target| links.names(*target)));
    let mut indices: Vec<usize> = others.chain(targets).copied().collect();
    indices.sort_unstable();
    indices.dedup();
    indices
}

/// Writes what is going to be overwritten.
fn write_rescue(
    snapshot: &Snapshot,
    request: &RestoreRequest,
    interrupted: &InterruptedRestores,
    journal: &Journal,
    kept: BTreeMap<Vec<u8>, KeptPath>,
    root: &Root,
    access: &mut TemporaryAccess,
) -> Result<(), Error> {
    let mut header = rescue::header(snapshot.header(), journal.id(), request.command.to_vec());
    // By that, both are known to be of one restore.
    if let Some(interrupted) = interrupted.own.iter().find_map(|one| one.snapshot.as_ref()) {
        header.started_at.clone_from(&interrupted.header().started_at);
    }
    rescue::write(journal, &header, kept, root, access).map_err(|error| match error {
        Error::Overtaken(_) => error,
        error => Error::Rescue(Box::new(error)),
    })
}

/// Gives the rescues of a restore that is done their final names: also that of the one which it has `taken_back`, of which it
/// may have skipped some paths.
fn end_rescues(
    taken_back: Option<(&Snapshot, &BTreeSet<Vec<u8>>)>,
    journal: Journal,
    interrupted: &InterruptedRestores,
) -> io::Result<()> {
    let mut taken_back_whole = None;
    if let Some((rescue, skipped)) = taken_back {
        let path = rescue.path().canonicalize()?;
        if skipped.is_empty() {
            rescue::mark_as_taken_back(rescue)?;
            taken_back_whole = Some(path);
        } else {
            rescue::keep_only(rescue, skipped)?;
            rescue_directory::end(&path)?;
        }
    }
    // The oldest last: without it a later one would present half-written files as what was there.
    journal.finish()?;
    interrupted.own.iter().rev().try_for_each(|one| rescue_directory::end(&one.path))?;
    // Until now, whoever finds it takes it back again, and these with it; alone they would seem to be restores to take back.
    taken_back_whole.map_or(Ok(()), |path| rescue_directory::end(&path))
}

/// The conflicts of the request, and those with later recordings: targets that are in a recorded state because a later
/// recording has put them there.
fn conflicts_with_later(
    request: &RestoreRequest,
    files: &[FileRecord],
    targets: &[usize],
    inspections: &HashMap<usize, io::Result<Inspection>>,
) -> BTreeMap<Vec<u8>, String> {
    let mut conflicts = request.conflicts.clone();
    let Some(changed_later) = request.changed_later else { return conflicts };
    let found_at = |index: &usize| inspections.get(index).and_then(|found| found.as_ref().ok());
    let is_in_a_state =
        |index: &usize| found_at(index).is_some_and(|found| found.at_wanted || found.at_other);
    let in_a_state = targets.iter().filter(|index| is_in_a_state(index)).map(|index| &files[*index]);
    let in_a_state = in_a_state.filter(|record| !record.is_git_state && has_two_states(record));
    let paths = in_a_state.map(|record| record.path.as_slice());
    let paths: HashSet<&[u8]> = paths.filter(|path| !conflicts.contains_key(*path)).collect();
    // A directory that holds something is not removed: neither by this restore nor by the undo of the later change. So
    // what a later recording did to a directory is no conflict
    // - if it is there as wanted and holds something: it stays if the later change is undone. Not so if it is a
    //   directory in both states: its attributes were changed, and the undo of the later change would change them again.
    // - if it is not wanted, and holds something that this recording does not tell of and no later one has changed:
    //   this restore leaves it where it is.
    let is_directory = |index: usize, side| {
        state(&files[index], side).present().is_some_and(|at| at.file_type == FileType::Directory)
    };
    let stays = |path: &[u8]| {
        let Some((index, found)) = FileRecord::find(files, path).and_then(|at| Some((at, found_at(&at)?)))
        else {
            return false;
        };
        match state(&files[index], request.wanted).present() {
            Some(_) if is_directory(index, request.wanted) => {
                found.at_wanted
                    && !is_directory(index, opposite(request.wanted))
                    && std::fs::read_dir(OsStr::from_bytes(path))
                        .is_ok_and(|mut entries| entries.next().is_some())
            }
            Some(_) => false,
            None => {
                let unknown = unknown_entries(files, path, found, &found_at);
                !unknown.is_empty() && !are_changed_later(request, &unknown)
            }
        }
    };
    if !paths.is_empty() {
        let how = |path: &[u8]| match FileRecord::find(files, path) {
            Some(index) if has_two_fingerprints(&files[index]) => "put back",
            _ => "changed",
        };
        let changed = changed_later(&paths).into_iter().filter(|(path, _)| !stays(path));
        conflicts.extend(changed.map(|(path, who)| {
            let why = format!("{} since by {who}", how(&path));
            (path, why)
        }));
    }
    conflicts
}

/// What an inspected directory that is to be removed and those beneath it hold, and no record tells of.
fn unknown_entries<'a>(
    files: &[FileRecord],
    path: &[u8],
    directory: &Inspection,
    found_at: &dyn Fn(&usize) -> Option<&'a Inspection>,
) -> Vec<Vec<u8>> {
    let mut unknown = Vec::new();
    for entry in directory.entries.iter().map(|name| child_of(path, name)) {
        match FileRecord::find(files, &entry) {
            Some(index) => {
                let beneath = found_at(&index).map(|found| unknown_entries(files, &entry, found, found_at));
                unknown.extend(beneath.into_iter().flatten());
            }
            None => unknown.push(entry),
        }
    }
    unknown
}

/// Whether later recordings have changed any of these paths.
fn are_changed_later(request: &RestoreRequest, paths: &[Vec<u8>]) -> bool {
    let paths = paths.iter().map(Vec::as_slice).collect();
    request.changed_later.is_some_and(|changed_later| !changed_later(&paths).is_empty())
}

/// The chosen paths of which the snapshot knows nothing but that the command made them, and that may be there.
fn unseen(snapshot: &Snapshot, request: &RestoreRequest, root: &Root) -> Vec<(Vec<u8>, LeftReason)> {
    let is_gone = |path: &[u8]| match root.dentry(path) {
        Ok(Some(dentry)) => dentry.present().is_ok_and(|found| found.is_none()),
        Ok(None) => true,
        Err(_) => false,
    };
    let stays =
        |path: &&Vec<u8>| request.choice.contains(path) && !(request.wanted == Side::Before && is_gone(path));
    let paths = snapshot.header().unseen.iter().filter(stays);
    paths.map(|path| (path.clone(), LeftReason::Unseen)).collect()
}

/// Whether the recording counts as undone although the plan leaves a path: the user asked for that, or the path is a directory
/// that the command made, and no later recording made what it holds; or nothing is known of it, and no other undo would do more.
fn counts_as_undone(request: &RestoreRequest, files: &[FileRecord], path: &[u8], why: &LeftReason) -> bool {
    let LeftReason::Entries(names) = why else { return why.is_wanted() || *why == LeftReason::Unseen };
    let is_made = FileRecord::find(files, path)
        .is_some_and(|index| state(&files[index], request.wanted).present().is_none());
    let entries: Vec<_> = names.iter().map(|name| child_of(path, name)).collect();
    is_made && !are_changed_later(request, &entries)
}

/// What all plans of a restore are made from.
struct CommonInput<'a> {
    request: &'a RestoreRequest<'a>,
    known_conflicts: &'a BTreeMap<Vec<u8>, String>,
    hard_links: [&'a HardLinks; 2],
    begun: &'a BTreeSet<Vec<u8>>,
    since: &'a Since<'a>,
    displaced: &'a DisplacedFiles<'a>,
}

impl<'a> CommonInput<'a> {
    fn input(
        &self,
        files: &'a [FileRecord],
        inspections: &'a HashMap<usize, io::Result<Inspection>>,
        refinement: &'a Refinement,
        targets: &'a [usize],
    ) -> PlanInput<'a> {
        PlanInput {
            files,
            wanted: self.request.wanted,
            policy: self.request.policy,
            force: self.request.force,
            force_git: self.request.force_git,
            targets,
            hard_links: self.hard_links,
            inspections,
            begun: self.begun,
            known_conflicts: self.known_conflicts,
            known_files: &self.request.known_links.files,
            replaced: &refinement.replaced,
            hard_conflicts: &refinement.hard_conflicts,
        }
    }
}

/// A plan, and what it leaves out.
struct Decision {
    /// The targets of the plan.
    targets: Vec<usize>,
    plan: RestorePlan,
    /// Conflicts that are skipped, and git directories of which something can't be put back.
    left: Vec<(Vec<u8>, LeftReason)>,
}

/// Plans, and takes targets out until there is nothing to skip.
fn decide(
    common: &CommonInput,
    files: &[FileRecord],
    inspections: &HashMap<usize, io::Result<Inspection>>,
    refinement: &Refinement,
    mut targets: Vec<usize>,
) -> Decision {
    let mut left = Vec::new();
    loop {
        let input = common.input(files, inspections, refinement, &targets);
        let plan = plan::plan(&input);
        let is_skipped = |index: &usize| common.request.skip_conflicts && !input.is_forced(*index);
        let skipped: HashSet<usize> = plan.conflicts.iter().copied().filter(is_skipped).collect();
        let in_order = plan.conflicts.iter().copied().filter(|index| skipped.contains(index));
        let (of_git, of_files): (Vec<_>, Vec<_>) =
            in_order.partition(|index: &usize| files[*index].is_git_state);
        let conflicts_of_git = conflicts(&input, &plan, of_git.into_iter(), common.since);
        let unrestorable = git::unrestorable(&input, &plan, &conflicts_of_git);
        if skipped.is_empty() && unrestorable.is_empty() {
            let displaced = common.displaced.find(&input, &plan);
            if displaced.is_empty() {
                return Decision { targets, plan, left };
            }
            targets.retain(|index| !displaced.contains_key(index));
            let of_another = |(index, home): (usize, usize)| {
                (files[index].path.clone(), LeftReason::FileOfAnother(files[home].path.clone()))
            };
            left.extend(displaced.into_iter().map(of_another));
            continue;
        }
        let of_files = conflicts(&input, &plan, of_files.into_iter(), common.since);
        left.extend(of_files.into_iter().map(|(path, why)| (path, LeftReason::Conflict(why))));
        // What is left out is as if it had not been chosen.
        let is_unrestorable = |record: &FileRecord| {
            record.is_git_state && unrestorable.contains_key(crate::git::repository_of(&record.path))
        };
        targets.retain(|index| !skipped.contains(index) && !is_unrestorable(&files[*index]));
        left.extend(unrestorable);
    }
}

/// Waits for the other restores in the directories of a snapshot, and excludes them for as long as the returned files live.
fn exclude_others(snapshot: &Snapshot) -> Result<Vec<File>, Error> {
    let directories = directories_of(snapshot).map_err(failed("resolve the snapshot"))?;
    directories.iter().filter_map(|directory| rescue_directory::lock_all(directory).transpose()).collect()
}

/// Locks a bundle against other restores and recordings for as long as the returned files live.
fn lock(snapshot: &Snapshot) -> Result<Vec<File>, Error> {
    let open = |path: &Path| File::open(path).map_err(failed("open the snapshot"));
    let mut files = vec![open(snapshot.path())?];
    // The recording that goes on keeps the directory: other restores are excluded by its journal, which it removes when
    // it ends. The manifest is locked by whoever reads it.
    let journal = File::open(snapshot.path().join(JOURNAL)).ok().filter(|_| snapshot.header().running);
    let is_locked = if let Some(journal) = journal {
        let _ = lock_exclusively(&files[0], 1);
        files.push(journal);
        lock_exclusively(&files[1], LOCK_TRIES)
    } else {
        // A process forked by a recording that has just ended may still have the lock.
        lock_exclusively(&files[0], LOCK_TRIES)
    };
    // Whoever deletes it gives it another name before the lock is free.
    let is_there = std::fs::metadata(snapshot.path()).is_ok_and(|named| {
        files[0].metadata().is_ok_and(|open| (open.dev(), open.ino()) == (named.dev(), named.ino()))
    });
    if is_locked && is_there {
        return Ok(files);
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

/// The contents that the plan needs and that are unavailable.
fn unavailable(input: &PlanInput, plan: &RestorePlan, contents: &Contents) -> Vec<(Vec<u8>, Unavailable)> {
    let mut missing = Vec::new();
    for step in &plan.steps {
        let record = &input.files[step.record];
        if !needs_content(input, step.record, &step.action) {
            continue;
        }
        let mut why = None;
        let found = same_file(input.files, input.hard_links[0], step.record).any(|record| {
            match contents.check(record, input.wanted) {
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

/// What has to be kept of everything that is overwritten, without what a rescue of the same command has
/// already.
fn to_be_kept(
    input: &PlanInput,
    plan: &RestorePlan,
    directories: &BTreeMap<Vec<u8>, Present>,
    times: &DirectoryTimes,
    interrupted: &InterruptedRestores,
    root: &Root,
    access: &mut TemporaryAccess,
) -> BTreeMap<Vec<u8>, KeptPath> {
    let own =
        by_path(interrupted.own.iter().filter_map(|one| one.snapshot.as_ref()).flat_map(Snapshot::files));
    let mut is_kept = |step: &Step| {
        let live = input
            .inspections
            .get(&step.record)
            .and_then(|inspection| inspection.as_ref().ok()?.live.as_ref());
        let path = input.files[step.record].path.as_slice();
        own.get(path).is_some_and(|records| {
            let by_other_name = || own.values().flatten().filter(|record| record.path != path).copied();
            rescue::is_kept(records, step, live, root, access)
                || live.is_some_and(|live| {
                    rescue::is_written_by_us(path, records, by_other_name(), live, root, access)
                })
        })
    };
    let steps: Vec<_> = plan.steps.iter().filter(|step| !is_kept(step)).cloned().collect();
    let parents = plan.parents.iter().filter(|path| !own.contains_key(path.as_slice())).cloned();
    let new_directories: BTreeMap<Vec<u8>, Present> = directories
        .iter()
        .filter(|(path, _)| !own.contains_key(path.as_slice()))
        .map(|(path, at)| (path.clone(), at.clone()))
        .collect();
    let mut kept = rescue::kept(input, &steps, parents, &new_directories);
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
