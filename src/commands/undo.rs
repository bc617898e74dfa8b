//! `undo` and `redo`: restores of the library's recordings, chosen by what was done last.
//!
//! `restore.rs` does the work. Neighbour: `library::undone`, which says what is undone.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::exit::{Exit, UsageError, VerbResult};
use super::open::find_recording;
use super::out::Console;
use super::paths::shell_line;
use super::restore;
use crate::cli::{Restore, SessionAccess, Undo};
use crate::library::log::EntryState;
use crate::library::scope::{Scope, changes_any};
use crate::library::session::session;
use crate::library::undone::{Rescues, Undone};
use crate::library::{Entry, Library, is_start_of_id};
use crate::snapshot::change::PathEffect;
use crate::snapshot::{Snapshot, printable};

/// How many characters of an identifier name what is to be undone.
const SHORTEST: usize = 4;

/// How many later recordings are named.
const NAMED: usize = 5;

/// Runs `undo`.
pub fn run(args: &Undo, console: &mut Console) -> VerbResult {
    let Some(library) = Library::find()? else { return nothing("undo", console) };
    let rescues = Rescues::of(&library)?;
    let entries = library.entries()?;
    let entry = match &args.recording {
        Some(word) => {
            let entry = named(word, &args.access)?;
            if let Some(Undone { at, .. }) = rescues.undone(&entry.id) {
                let id = &entry.id;
                console
                    .say(format_args!("{id} was undone at {at} (agent-snapshot redo {id} takes that back)"));
                return Ok(Exit::Finding);
            }
            entry
        }
        None => {
            let scope = Scope::of(session(args.access.session.as_deref()), args.all);
            let is_candidate = |entry: &&Entry| {
                entry.changes.any()
                    && matches!(entry.state, EntryState::Ended | EntryState::Killed)
                    && scope.contains(entry, &library)
                    && rescues.undone(&entry.id).is_none()
            };
            match entries.iter().rev().find(is_candidate) {
                Some(entry) => entry.clone(),
                None => return nothing("undo", console),
            }
        }
    };
    introduce("undo", &entry, args, console)?;
    let directory = library.directory_of(&entry.id);
    let exit = restore(args, directory.clone(), console)?;
    if exit == Exit::Finding {
        name_later(&library, &entries, &entry, &directory, console);
    }
    Ok(exit)
}

/// Runs `redo`.
pub fn redo(args: &Undo, console: &mut Console) -> VerbResult {
    let Some(library) = Library::find()? else { return nothing("redo", console) };
    let rescues = Rescues::of(&library)?;
    let undone = |entry: &Entry| rescues.undone(&entry.id);
    let (entry, rescue) = match &args.recording {
        Some(word) => {
            let entry = named(word, &args.access)?;
            let Some(Undone { rescue, .. }) = undone(&entry) else {
                console.say(format_args!("{} is not undone: there is nothing to redo", entry.id));
                return Ok(Exit::Finding);
            };
            (entry, rescue)
        }
        None => {
            let scope = Scope::of(session(args.access.session.as_deref()), args.all);
            let entries = library.entries()?;
            let candidates = entries.iter().filter(|entry| scope.contains(entry, &library));
            let candidates = candidates.filter_map(|entry| Some((entry, undone(entry)?)));
            match candidates.max_by(|(_, one), (_, other)| one.at.cmp(&other.at)) {
                Some((entry, Undone { rescue, .. })) => (entry.clone(), rescue),
                None => return nothing("redo", console),
            }
        }
    };
    introduce("redo", &entry, args, console)?;
    restore(args, rescue, console)
}

/// The recording that a word names, which must not be a slip: files are changed.
fn named(word: &Path, access: &SessionAccess) -> anyhow::Result<Entry> {
    let entry = find_recording(word, access)?;
    let bytes = word.as_os_str().as_bytes();
    let is_short = word.to_str().is_some_and(|word| is_start_of_id(word) && entry.id.starts_with(word));
    if is_short && bytes.len() < SHORTEST {
        let word = printable(bytes);
        return Err(UsageError(format!(
            "{word} is too short for what changes files: at least {SHORTEST} characters of {} are needed",
            entry.id
        ))
        .into());
    }
    Ok(entry)
}

fn nothing(what: &str, console: &mut Console) -> VerbResult {
    console.say(format_args!("there is nothing to {what} here (agent-snapshot log lists what was recorded)"));
    Ok(Exit::Finding)
}

/// Says what is undone or redone.
fn introduce(what: &str, entry: &Entry, args: &Undo, console: &mut Console) -> anyhow::Result<()> {
    if !args.json {
        writeln!(console, "{what} {}: {}", entry.id, shell_line(&entry.command))?;
    }
    Ok(())
}

fn restore(args: &Undo, snap: PathBuf, console: &mut Console) -> VerbResult {
    let restore = Restore {
        snap,
        paths: Vec::new(),
        before: true,
        into: None,
        force: args.force,
        dry_run: args.dry_run,
        foreign: false,
        preserve: false,
        access: SessionAccess::default(),
        json: args.json,
    };
    restore::run(&restore, console)
}

/// Names the later recordings that changed something which `entry` had changed.
fn name_later(library: &Library, entries: &[Entry], entry: &Entry, directory: &Path, console: &mut Console) {
    let Ok(snapshot) = Snapshot::open(directory) else { return };
    let changed = snapshot.files().iter().filter(|record| PathEffect::of(record).lasts());
    let paths: HashSet<&[u8]> = changed.map(|record| record.path.as_slice()).collect();
    let later = entries.iter().filter(|other| other.time > entry.time && other.changes.any());
    let touches = |other: &&Entry| {
        paths.iter().any(|path| other.may_change(path))
            && changes_any(&library.directory_of(&other.id), |path| paths.contains(path))
    };
    for other in later.filter(touches).take(NAMED) {
        console.say(format_args!("changed since by {}: {}", other.id, other.command_line()));
    }
}
