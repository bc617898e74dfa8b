//! `recover`: makes a snapshot of what a killed recording has left.
//!
//! `snapshot::recover` does the work; this waits for whoever uses the directory, and reports.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::Serialize;

use super::exit::{Exit, VerbResult};
use super::open::directory_to_change;
use super::out::Console;
use super::paths::{number_of_paths, shell_word};
use crate::cli::Recover;
use crate::library::Library;
use crate::snapshot::layout::{self, JOURNAL, SnapshotDir};
use crate::snapshot::recover::{self, Recovered, Recovery};
use crate::snapshot::{Error, Snapshot, printable, printable_path};

/// Runs `recover`.
pub fn run(args: &Recover, console: &mut Console) -> VerbResult {
    let path = directory_to_change(&args.recording, &args.access)?;
    let path = path.as_path();
    if let Err(error) = std::fs::read_dir(path) {
        return Err(Error::io("open", path)(error).into());
    }
    // Nothing else is asked of a directory that is not ours.
    if !is_of_a_recording(path) {
        return no_journal(path, args, console);
    }
    let directory = lock(path, &mut |sentence| console.say(format_args!("{sentence}")))?;
    if args.discard {
        return discard(&directory, path, args, console);
    }
    let is_committed = directory.is_committed();
    let recovery = recover::recover(directory, HashMap::new())?;
    add_to_log(path, &mut |sentence| console.say(format_args!("{sentence}")));
    match recovery {
        Recovery::Done(recovered) => done(&recovered, args, console),
        Recovery::Unneeded if is_committed => nothing(
            path,
            args,
            console,
            "holds a snapshot that was committed: nothing was lost",
            Exit::Success,
        ),
        Recovery::Unneeded => {
            nothing(path, args, console, "holds a recording that had changed nothing yet", Exit::Success)
        }
        Recovery::Nothing if !layout::damaged_journals(path).is_empty() => nothing(
            path,
            args,
            console,
            "was recovered from a damaged journal, which --discard removes",
            Exit::Finding,
        ),
        Recovery::Nothing if is_committed => nothing(
            path,
            args,
            console,
            "holds a complete snapshot: there is nothing to recover",
            Exit::Success,
        ),
        Recovery::Nothing => no_journal(path, args, console),
    }
}

/// Adds the line of what was recovered at `path` to the log, if that is in the library.
pub fn add_to_log(path: &Path, say: &mut dyn FnMut(&str)) {
    // A path needs no library, even one that can't be read.
    let Ok(Some(library)) = Library::find() else { return };
    // The snapshot is there, whatever becomes of its line: `log` finds it.
    if let Err(error) = library.append_recovered(path) {
        say(&error.to_string());
    }
}

/// Locks the directory of an unfinished recording, once nobody else completes it.
pub fn lock(path: &Path, say: &mut dyn FnMut(&str)) -> Result<SnapshotDir, Error> {
    let mut last = String::new();
    loop {
        wait_for_recorder(path, &mut |sentence| {
            if sentence != last {
                say(sentence);
                last = sentence.to_owned();
            }
        })?;
        match SnapshotDir::create(path) {
            // Another recovery, or a recording, was first.
            Err(Error::InUse(_)) => {}
            directory => return directory,
        }
    }
}

/// Waits for whoever completes an unfinished recording: its recorder, if only the front was killed, or
/// another recovery. A directory that is being recorded is refused.
fn wait_for_recorder(path: &Path, say: &mut dyn FnMut(&str)) -> Result<(), Error> {
    if !layout::is_locked(path) {
        return Ok(());
    }
    let dir = printable_path(path);
    match recover::recorder(path) {
        Some(begin)
            if begin.recorder.is_alive() && (begin.front.is_alive() || has_first(path, &begin.id)) =>
        {
            let process = if begin.front.is_alive() { begin.front.pid } else { begin.recorder.pid };
            return Err(Error::Refused(format!(
                "{dir} is being recorded by process {process}: there is nothing to recover"
            )));
        }
        Some(begin) if begin.recorder.is_alive() => {
            say(&waiting_for(begin.recorder.pid));
        }
        // Or the kernel has not closed all files of the recorder yet.
        Some(_) => say(&format!("waiting for another process that recovers {dir}")),
        None => {
            recover::check_journal_access(path).map_err(Error::io("open", path.join(JOURNAL)))?;
            say(&format!("waiting for another process that uses {dir}"));
        }
    }
    layout::wait_until_unlocked(path).map_err(Error::io("wait for the lock of", path))
}

/// Whether the directory has the first snapshot of a recording that goes on in the background.
fn has_first(path: &Path, id: &str) -> bool {
    Snapshot::open(path).is_ok_and(|snapshot| {
        let header = snapshot.header();
        header.id == id && header.running
    })
}

fn discard(directory: &SnapshotDir, path: &Path, args: &Recover, console: &mut Console) -> VerbResult {
    let failed = || Error::io("remove the journal in", path);
    let damaged = layout::damaged_journals(directory.real_path());
    if directory.open_journal().map_err(failed())?.is_none() && damaged.is_empty() {
        return no_journal(path, args, console);
    }
    if !damaged.is_empty() {
        damaged.iter().try_for_each(std::fs::remove_dir_all).map_err(failed())?;
        return nothing(path, args, console, "holds no damaged journal any more", Exit::Success);
    }
    directory.discard_unfinished().map_err(failed())?;
    nothing(path, args, console, "holds nothing of the killed recording any more", Exit::Success)
}

#[derive(Serialize)]
struct RecoverJson<'a> {
    recovered: bool,
    path: &'a str,
    records: usize,
    missing: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_journal: Option<String>,
}

fn done(recovered: &Recovered, args: &Recover, console: &mut Console) -> VerbResult {
    let Recovered { path, records, missing, damaged_journal } = recovered;
    let is_whole = missing.is_empty() && damaged_journal.is_none();
    let outcome = if is_whole { Exit::Success } else { Exit::Finding };
    if args.json {
        let missing = missing.iter().map(|(path, _)| printable(path).into_owned()).collect();
        let damaged_journal = damaged_journal.as_deref().map(printable_path);
        let (path, records) = (&*printable_path(path), *records);
        console.json(&RecoverJson { recovered: true, path, records, missing, damaged_journal })?;
        return Ok(outcome);
    }
    let place = shell_word(path.as_os_str().as_bytes());
    writeln!(console, "recovered {} in {place}", number_of_paths(*records))?;
    for sentence in not_recovered(recovered) {
        writeln!(console, "{sentence}")?;
    }
    Ok(outcome)
}

/// Says what is lost.
pub fn not_recovered(recovered: &Recovered) -> Vec<String> {
    let bytes = |(path, why): &(Vec<u8>, &str)| {
        format!("not recovered: the bytes of {}, which {why}", printable(path))
    };
    let mut sentences: Vec<String> = recovered.missing.iter().map(bytes).collect();
    sentences.extend(recovered.damaged_journal.as_deref().map(|kept| {
        let dir = shell_word(kept.parent().unwrap_or(kept).as_os_str().as_bytes());
        format!(
            "not recovered: what damaged bytes of the journal said; it is kept in {} until agent-snapshot recover \
             --discard {dir}",
            printable_path(kept)
        )
    }));
    sentences
}

/// Says that the recorder `pid` is waited for.
pub fn waiting_for(pid: u32) -> String {
    format!("waiting for process {pid}, which completes the recording")
}

/// Whether a directory holds anything of a recording, or is in use by one.
fn is_of_a_recording(path: &Path) -> bool {
    path.join(JOURNAL).symlink_metadata().is_ok()
        || !layout::damaged_journals(path).is_empty()
        || Snapshot::header_of(path).is_ok()
        || layout::is_locked(path)
}

/// Reports that there is no journal.
fn no_journal(path: &Path, args: &Recover, console: &mut Console) -> VerbResult {
    let what = match args.discard {
        true => "holds no journal of a recording: nothing was removed",
        false => "holds no journal of a recording: there is nothing to recover",
    };
    nothing(path, args, console, what, Exit::Finding)
}

/// Reports that nothing was recovered.
fn nothing(path: &Path, args: &Recover, console: &mut Console, what: &str, exit: Exit) -> VerbResult {
    let dir = printable_path(path);
    if args.json {
        console.json(&RecoverJson {
            recovered: false,
            path: &dir,
            records: 0,
            missing: Vec::new(),
            damaged_journal: None,
        })?;
    } else {
        console.say(format_args!("{dir} {what}"));
    }
    Ok(exit)
}

/// The directory for a new recording. What a killed one has left there is recovered first, and goes beside it.
pub fn make_way(path: &Path, say: &mut dyn FnMut(&str)) -> Result<SnapshotDir, Error> {
    let is_killed = recover::recorder(path).is_some_and(|begin| !begin.front.is_alive());
    let directory = if is_killed { lock(path, say)? } else { SnapshotDir::create(path)? };
    if let Recovery::Done(recovered) = recover::recover_beside(&directory, HashMap::new())? {
        let (dir, place) = (printable_path(directory.real_path()), printable_path(&recovered.path));
        say(&format!(
            "a recording into {dir} was killed: what it had changed was recovered and is in {place}"
        ));
        not_recovered(&recovered).iter().for_each(|sentence| say(sentence));
    }
    if let Some(aside) = recover::set_aside(&directory)? {
        let (dir, place) = (printable_path(directory.real_path()), printable_path(&aside));
        say(&format!("{dir} had a snapshot that was recovered after a kill: it is in {place} now"));
    }
    Ok(directory)
}
