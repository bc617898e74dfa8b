//! Puts the outputs of a recorded run in place, as a run now would leave them.

use std::collections::HashSet;
use std::io;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::entry::{Output, OutputState, RecalledRun};
use crate::library::Library;
use crate::parallel;
use crate::restore::node::{RestorePolicy, User};
use crate::restore::request::{RestoreProgress, RestoreRequest};
use crate::restore::targets::{Choice, GitStateChoice};
use crate::restore::{rescue, run};
use crate::snapshot::blobs::Side;
use crate::snapshot::{Snapshot, printable};

/// The paths of an entry.
struct Outputs<'a>(HashSet<&'a [u8]>);

impl Choice for Outputs<'_> {
    fn contains(&self, path: &[u8]) -> bool {
        self.0.contains(path)
    }

    fn names(&self, _: &[u8]) -> bool {
        false
    }

    fn git_state(&self, _: &[u8], _: &[u8]) -> GitStateChoice {
        GitStateChoice::Unwanted
    }
}

struct Silent;

impl RestoreProgress for Silent {
    fn start(&self, _: &'static str, _: usize) {}
    fn tick(&self) {}
    fn end(&self) {}
}

/// Puts the outputs of `entry` in place: all of them, or none.
///
/// # Errors
/// Why the command has to run, as a sentence: nothing was changed then.
pub fn put_back(library: &Library, entry: &RecalledRun) -> Result<(), String> {
    let states = parallel::map(&entry.outputs, &|| {}, Output::state);
    let conflict = entry.outputs.iter().zip(&states).find(|(_, state)| **state == OutputState::Other);
    if let Some((output, _)) = conflict {
        return Err(format!("{}, which it changes, was changed since", printable(&output.path)));
    }
    if states.contains(&OutputState::Before) {
        let directory = library.directory_of(&entry.recording);
        let snapshot = Snapshot::open(&directory).map_err(|error| error.to_string())?;
        let missing: Vec<&Output> = entry
            .outputs
            .iter()
            .zip(&states)
            .filter(|(_, state)| **state == OutputState::Before)
            .map(|(output, _)| output)
            .collect();
        restore(&snapshot, &missing)?;
    }
    modify_again(&entry.outputs).map_err(|error| format!("set the time of an output: {error}"))
}

fn restore(snapshot: &Snapshot, outputs: &[&Output]) -> Result<(), String> {
    let user = User::effective();
    if snapshot.owner() != Some(user.uid) {
        return Err("its recording belongs to another user".to_owned());
    }
    if snapshot.header().imported {
        return Err("its recording was replaced by an import".to_owned());
    }
    let command = rescue::command(snapshot.path(), Side::After, &[]).map_err(|error| error.to_string())?;
    let policy = RestorePolicy::all(user);
    let choice = Outputs(outputs.iter().map(|output| output.path.as_slice()).collect());
    let request =
        RestoreRequest { is_whole: true, ..RestoreRequest::new(Side::After, &policy, &choice, &command) };
    let outcome = run::run(snapshot, &request, &Silent).map_err(|error| error.to_string())?;
    let why = outcome.conflicts.first().map(|(path, why)| (path, why.clone()));
    let why = why.or_else(|| outcome.obstacles.first().map(|(path, why)| (path, why.to_string())));
    let why = why.or_else(|| outcome.unavailable.first().map(|(path, why)| (path, why.to_string())));
    match why {
        _ if outcome.is_whole() && outcome.applied => Ok(()),
        Some((path, why)) => Err(format!("{} can't be put in place: {why}", printable(path))),
        None => Err("its outputs can't be put in place".to_owned()),
    }
}

/// Gives the outputs that a run would have written the times of one that ends now, in their order.
fn modify_again(outputs: &[Output]) -> io::Result<()> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    let mut times: Vec<(i64, u32)> = outputs.iter().filter_map(|output| output.modified).collect();
    times.sort_unstable();
    times.dedup();
    for output in outputs {
        let Some(modified) = output.modified else { continue };
        let later = times.len() - times.partition_point(|time| *time <= modified);
        // A microsecond apart, which the file systems that count can tell.
        let at = now - i128::try_from(later).unwrap_or(0) * 1000;
        let seconds = i64::try_from(at / 1_000_000_000).unwrap_or(0);
        let nanoseconds = i64::try_from(at % 1_000_000_000).unwrap_or(0);
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, output.path.as_slice(), &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
