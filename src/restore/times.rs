//! The modification times of directories in which a restore changes entries.
//!
//! Replacing a file changes the time of its directory, although the command may have written the file in
//! place. Neighbours: `plan.rs` has the steps, `apply.rs` sets the times when all else is done.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use super::access::TemporaryAccess;
use super::plan::{PlanInput, RestorePlan, touched};
use super::root::{Root, parent};
use super::targets::opposite;
use crate::snapshot::compare::state;
use crate::snapshot::{FileRecord, FileType, Present};

/// Modification times by path, in seconds and nanoseconds.
pub type DirectoryTimes = BTreeMap<Vec<u8>, (i64, u32)>;

/// The directories in which entries change or whose modes are widened, with their current metadata.
pub fn directories(
    root: &Root,
    plan: &RestorePlan,
    input: &PlanInput,
    access: &TemporaryAccess,
) -> io::Result<BTreeMap<Vec<u8>, Present>> {
    let original = access.original_modes();
    let mut paths = touched(input, plan);
    paths.extend(plan.make_writable.iter().cloned());
    paths.extend(access.paths().map(<[u8]>::to_vec));
    let mut found = BTreeMap::new();
    for path in paths {
        let Some(dentry) = root.dentry(&path)? else { continue };
        let Some(mut present) = dentry.present()? else { continue };
        if let Some(mode) = original.get(&present.identity()) {
            present.mode = present.mode & libc::S_IFMT | mode;
        }
        if present.file_type == FileType::Directory {
            found.insert(path, present);
        }
    }
    Ok(found)
}

/// The times that directories get: the time of the wanted state, if only the command and we changed
/// entries in it; the current one, if files are only replaced.
///
/// `now` are the current states; `interrupted` are the records of the rescues of interrupted restores.
pub fn times<'a>(
    input: &PlanInput,
    plan: &RestorePlan,
    now: &BTreeMap<Vec<u8>, Present>,
    interrupted: impl Iterator<Item = &'a FileRecord>,
) -> DirectoryTimes {
    let touched = touched(input, plan);
    let mut renamed: HashSet<&[u8]> = plan.parents.iter().map(|path| parent(path)).collect();
    for step in &plan.steps {
        let record = &input.files[step.record];
        let live = input
            .inspections
            .get(&step.record)
            .and_then(|inspection| inspection.as_ref().ok()?.live.as_ref());
        if live.is_some() != state(record, input.wanted).present().is_some() {
            renamed.insert(parent(&record.path));
        }
    }
    // What an interrupted restore changed first is in its rescue as it was.
    let mut seen: HashMap<&[u8], &Present> = now
        .iter()
        .filter(|(path, _)| touched.contains(*path))
        .map(|(path, at)| (path.as_slice(), at))
        .collect();
    let mut of_killed = HashSet::new();
    // Directories that an interrupted restore made have no time of anybody else's.
    let mut made = DirectoryTimes::new();
    for record in interrupted {
        let before = record.before.present();
        let is_first = of_killed.insert(&record.path);
        if let Some(before) = before
            && is_first
            && before.file_type == FileType::Directory
            && stays_directory(input, &record.path)
        {
            seen.insert(&record.path, before);
        }
        if is_first && before.is_none_or(|before| before.file_type != FileType::Directory) {
            made.extend(wanted_directory(input, &record.path).map(|wanted| (record.path.clone(), wanted)));
        }
        if before.is_some() != record.after.present().is_some() {
            renamed.insert(parent(&record.path));
        }
    }
    let time = |(path, at): (&[u8], &Present)| {
        let time = of_state(input, path, at);
        let kept = (!renamed.contains(path)).then_some((at.mtime, at.mtime_nsec));
        Some((path.to_vec(), time.or(kept)?))
    };
    made.extend(
        seen.into_iter().filter_map(time).filter(|(path, _)| !made.contains_key(path)).collect::<Vec<_>>(),
    );
    made
}

/// The time of the directory that is put back at `path`, if one is.
fn wanted_directory(input: &PlanInput, path: &[u8]) -> Option<(i64, u32)> {
    let index = FileRecord::find(input.files, path)?;
    let wanted = state(&input.files[index], input.wanted).present()?;
    (wanted.file_type == FileType::Directory).then_some((wanted.mtime, wanted.mtime_nsec))
}

/// Whether `path` is a directory in the wanted state, or is not recorded and stays as it is.
fn stays_directory(input: &PlanInput, path: &[u8]) -> bool {
    FileRecord::find(input.files, path).is_none_or(|index| {
        let wanted = state(&input.files[index], input.wanted).present();
        wanted.is_some_and(|wanted| wanted.file_type == FileType::Directory)
    })
}

/// The time of the directory at `path` in the wanted state, if its current time is that of one of the two
/// states.
fn of_state(input: &PlanInput, path: &[u8], now: &Present) -> Option<(i64, u32)> {
    let time = |at: &Present| (at.mtime, at.mtime_nsec);
    let index = FileRecord::find(input.files, path)?;
    let directory = |side| {
        let present = state(&input.files[index], side).present();
        present.filter(|at| at.file_type == FileType::Directory)
    };
    let wanted = directory(input.wanted)?;
    let other = directory(opposite(input.wanted));
    let is_known = time(now) == time(wanted) || other.is_some_and(|other| time(now) == time(other));
    is_known.then(|| time(wanted))
}
