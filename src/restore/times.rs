//! The modification times of directories in which a restore changes names.
//!
//! To replace a file changes the time of its directory, though the command may have written it in
//! place. Neighbours: `plan.rs` has the steps, `apply.rs` gives the times when all else is done.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use super::loosen::Loosener;
use super::place::{Place, parent};
use super::plan::{Plan, Request, touched};
use super::targets::opposite;
use crate::snapshot::compare::state;
use crate::snapshot::{FileRecord, FileType, Present, live};

/// Modification times by path, in seconds and nanoseconds.
pub type Times = BTreeMap<Vec<u8>, (i64, u32)>;

/// The directories in which names change or whose permission bits are loosened, as they are now.
pub fn directories(
    place: &Place,
    plan: &Plan,
    request: &Request,
    loosener: &Loosener,
) -> io::Result<BTreeMap<Vec<u8>, Present>> {
    let original = loosener.original();
    let mut paths = touched(request, plan);
    paths.extend(plan.loosen.iter().cloned());
    paths.extend(loosener.paths().map(<[u8]>::to_vec));
    let mut found = BTreeMap::new();
    for path in paths {
        let Some(spot) = place.spot(&path)? else { continue };
        let Some(stat) = spot.stat()? else { continue };
        let mut present = live::present(&stat, &spot.proc_path())?;
        if let Some(mode) = original.get(&(present.dev, present.ino)) {
            present.mode = present.mode & libc::S_IFMT | mode;
        }
        if present.file_type == FileType::Directory {
            found.insert(path, present);
        }
    }
    Ok(found)
}

/// The times that directories get: that of the state put back, where nobody but the command and we
/// changed names in them; that of now, where only files are replaced.
///
/// `now` is how they are; `killed` are the records of rescues whose restores were killed.
pub fn times<'a>(
    request: &Request,
    plan: &Plan,
    now: &BTreeMap<Vec<u8>, Present>,
    killed: impl Iterator<Item = &'a FileRecord>,
) -> Times {
    let touched = touched(request, plan);
    let mut renamed: HashSet<&[u8]> = plan.parents.iter().map(|path| parent(path)).collect();
    for step in &plan.steps {
        let record = &request.files[step.record];
        let live = request.looks.get(&step.record).and_then(|look| look.as_ref().ok()?.live.as_ref());
        if live.is_some() != state(record, request.goal).present().is_some() {
            renamed.insert(parent(&record.path));
        }
    }
    // What a killed restore touched first is as it was in the rescue.
    let mut seen: HashMap<&[u8], &Present> = now
        .iter()
        .filter(|(path, _)| touched.contains(*path))
        .map(|(path, at)| (path.as_slice(), at))
        .collect();
    let mut of_killed = HashSet::new();
    // Directories that a killed restore has made have no time of anybody else's.
    let mut made = Times::new();
    for record in killed {
        let before = record.before.present();
        let is_first = of_killed.insert(&record.path);
        if let Some(before) = before
            && is_first
            && before.file_type == FileType::Directory
            && stays_directory(request, &record.path)
        {
            seen.insert(&record.path, before);
        }
        if is_first && before.is_none_or(|before| before.file_type != FileType::Directory) {
            made.extend(goal_directory(request, &record.path).map(|goal| (record.path.clone(), goal)));
        }
        if before.is_some() != record.after.present().is_some() {
            renamed.insert(parent(&record.path));
        }
    }
    let time = |(path, at): (&[u8], &Present)| {
        let time = of_state(request, path, at);
        let kept = (!renamed.contains(path)).then_some((at.mtime, at.mtime_nsec));
        Some((path.to_vec(), time.or(kept)?))
    };
    made.extend(
        seen.into_iter().filter_map(time).filter(|(path, _)| !made.contains_key(path)).collect::<Vec<_>>(),
    );
    made
}

/// The time of the directory that is put back at `path`, if one is.
fn goal_directory(request: &Request, path: &[u8]) -> Option<(i64, u32)> {
    let index = request.files.binary_search_by(|record| record.path.as_slice().cmp(path)).ok()?;
    let goal = state(&request.files[index], request.goal).present()?;
    (goal.file_type == FileType::Directory).then_some((goal.mtime, goal.mtime_nsec))
}

/// Whether what is put back at `path` is a directory, or nothing is and what is there stays.
fn stays_directory(request: &Request, path: &[u8]) -> bool {
    let index = request.files.binary_search_by(|record| record.path.as_slice().cmp(path));
    index.is_err()
        || index.is_ok_and(|index| {
            let goal = state(&request.files[index], request.goal).present();
            goal.is_some_and(|goal| goal.file_type == FileType::Directory)
        })
}

/// The time that the directory at `path` had in the state that is put back, if what it has now is of
/// one of the two states.
fn of_state(request: &Request, path: &[u8], now: &Present) -> Option<(i64, u32)> {
    let time = |at: &Present| (at.mtime, at.mtime_nsec);
    let index = request.files.binary_search_by(|record| record.path.as_slice().cmp(path)).ok()?;
    let directory = |side| {
        let present = state(&request.files[index], side).present();
        present.filter(|at| at.file_type == FileType::Directory)
    };
    let goal = directory(request.goal)?;
    let other = directory(opposite(request.goal));
    let is_known = time(now) == time(goal) || other.is_some_and(|other| time(now) == time(other));
    is_known.then(|| time(goal))
}
