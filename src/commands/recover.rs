//! `recover`: makes a snapshot of what a killed recording has left.
//!
//! `snapshot::recover` does the work; this waits for whoever uses the directory, and reports.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::Serialize;

use super::exit::{Exit, VerbResult};
use super::out::Console;
use super::paths::{number_of_paths, shell_word};
use crate::cli::Recover;
use crate::snapshot::layout::{self, SnapshotDir};
use crate::snapshot::recover::{self, Recovered, Recovery};
use crate::snapshot::{Error, printable};

/// Runs `recover`.
pub fn run(args: &Recover, console: &mut Console) -> VerbResult {
    let path = args.dir.as_path();
    if let Err(error) = std::fs::read_dir(path) {
        return Err(Error::io("open", path)(error).into());
    }
    wait_for_recorder(path, console)?;
    let directory = SnapshotDir::create(path)?;
    if args.discard {
        return discard(&directory, args, console);
    }
    let is_committed = directory.is_committed();
    match recover::recover(directory, HashMap::new())? {
        Recovery::Done(recovered) => done(&recovered, args, console),
        Recovery::Unneeded if is_committed => {
            nothing(args, console, "holds a snapshot that was committed: nothing was lost", Exit::Success)
        }
        Recovery::Unneeded => {
            nothing(args, console, "holds a recording that had changed nothing yet", Exit::Success)
        }
        Recovery::Nothing if is_committed => {
            nothing(args, console, "holds a complete snapshot: there is nothing to recover", Exit::Success)
        }
        Recovery::Nothing => nothing(
            args,
            console,
            "holds no journal of a recording: there is nothing to recover",
            Exit::Finding,
        ),
    }
}

/// Waits for a recorder whose front was killed: it is about to commit. Any other process that uses the
/// directory is named.
fn wait_for_recorder(path: &Path, console: &mut Console) -> Result<(), Error> {
    if !layout::is_locked(path) {
        return Ok(());
    }
    let dir = shown(path);
    match recover::recorder(path) {
        Some(begin) if begin.recorder.is_alive() => {
            if begin.front.is_alive() {
                return Err(Error::Refused(format!(
                    "{dir} is being recorded by process {}: there is nothing to recover",
                    begin.front.pid
                )));
            }
            console.say(format_args!("waiting for process {}, which completes {dir}", begin.recorder.pid));
            layout::wait_until_unlocked(path).map_err(Error::io("wait for the lock of", path))
        }
        Some(_) => Err(Error::Refused(format!("{dir} is being recovered by another process"))),
        None => Err(Error::Refused(format!("{dir} is in use by another process of agent-snapshot"))),
    }
}

fn discard(directory: &SnapshotDir, args: &Recover, console: &mut Console) -> VerbResult {
    let failed = || Error::io("remove the journal in", &args.dir);
    if directory.open_journal().map_err(failed())?.is_none() {
        return nothing(args, console, "holds no journal of a recording: nothing was removed", Exit::Finding);
    }
    directory.discard_unfinished().map_err(failed())?;
    nothing(args, console, "holds nothing of the killed recording any more", Exit::Success)
}

#[derive(Serialize)]
struct RecoverJson<'a> {
    recovered: bool,
    path: &'a str,
    records: usize,
    missing: Vec<String>,
}

fn done(recovered: &Recovered, args: &Recover, console: &mut Console) -> VerbResult {
    let Recovered { path, records, missing } = recovered;
    if args.json {
        let missing = missing.iter().map(|path| printable(path).into_owned()).collect();
        console.json(&RecoverJson { recovered: true, path: &shown(path), records: *records, missing })?;
        return Ok(Exit::Success);
    }
    let place = shell_word(path.as_os_str().as_bytes());
    writeln!(console, "recovered {} in {place}", number_of_paths(*records))?;
    for path in missing {
        let path = printable(path);
        writeln!(console, "not recovered: the bytes of {path}, which were still being copied")?;
    }
    Ok(Exit::Success)
}

/// Reports that nothing was recovered.
fn nothing(args: &Recover, console: &mut Console, what: &str, exit: Exit) -> VerbResult {
    let dir = shown(&args.dir);
    if args.json {
        console.json(&RecoverJson { recovered: false, path: &dir, records: 0, missing: Vec::new() })?;
    } else {
        console.say(format_args!("{dir} {what}"));
    }
    Ok(exit)
}

/// Recovers what a killed recording has left where the next one is to go; what is said of it, if anything.
pub fn make_way(directory: &SnapshotDir) -> Result<Option<String>, Error> {
    match recover::recover_beside(directory, HashMap::new())? {
        Recovery::Nothing | Recovery::Unneeded => Ok(None),
        Recovery::Done(recovered) => Ok(Some(format!(
            "a recording into {} was killed: what it had changed was recovered and is in {}",
            shown(directory.real_path()),
            shown(&recovered.path)
        ))),
    }
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes()).into_owned()
}
