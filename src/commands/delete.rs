//! `delete`: removes recordings from the library.
//!
//! Whatever is refused is named, and the rest is deleted. Neighbour: `library::delete` does the work.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use indicatif::BinaryBytes;
use serde::Serialize;

use super::exit::{Exit, VerbResult};
use super::open::{find_whole_recording, scope};
use super::out::Console;
use super::paths::shell_word;
use crate::cli::{Delete, SessionAccess};
use crate::library::delete::{Deletions, Leftover, Obstacle};
use crate::library::reference::Reference;
use crate::library::{self, Library, is_id, log};
use crate::snapshot::printable;

/// Runs `delete`.
pub fn run(args: &Delete, console: &mut Console) -> VerbResult {
    let library = Library::find()?;
    // All words first: `@~1` is another one when `@` is gone.
    let found = args.recordings.iter().map(|word| find(word, library.as_ref(), &args.access));
    let found = found.collect::<anyhow::Result<Vec<_>>>()?;
    let mut done = DeleteJson::default();
    // The rest is deleted even if one can't be.
    let mut failure = None;
    for found in found {
        match found {
            Found::There(id, library) => match delete(&id, library) {
                Err(error) => drop(failure.get_or_insert(error)),
                Ok(Ok(bytes)) => {
                    if !args.json {
                        writeln!(console, "deleted {id}: {} freed", BinaryBytes(bytes))?;
                    }
                    done.freed += bytes;
                    done.deleted.push(Deleted { id, bytes });
                }
                Ok(Err(why)) => done.refuse(why, console),
            },
            Found::Deleted(id) => console.say(format_args!("{id} was deleted before")),
            Found::Refused(why) => done.refuse(why, console),
        }
    }
    if let Some(library) = &library {
        match library.remove_leftovers() {
            Ok(bytes) => done.freed += bytes,
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    if args.json {
        console.json(&done)?;
    }
    if let Some(error) = failure {
        return Err(error.into());
    }
    Ok(if done.refused.is_empty() { Exit::Success } else { Exit::Finding })
}

#[derive(Default, Serialize)]
struct DeleteJson {
    deleted: Vec<Deleted>,
    freed: u64,
    /// Why others were not deleted.
    refused: Vec<String>,
}

#[derive(Serialize)]
struct Deleted {
    id: String,
    bytes: u64,
}

impl DeleteJson {
    fn refuse(&mut self, why: String, console: &mut Console) {
        console.say(format_args!("{why}"));
        self.refused.push(why);
    }
}

/// What a word names.
enum Found<'l> {
    There(String, &'l Library),
    Deleted(String),
    /// Nothing that may be deleted, in one sentence.
    Refused(String),
}

fn find<'l>(word: &Path, library: Option<&'l Library>, access: &SessionAccess) -> anyhow::Result<Found<'l>> {
    let bytes = word.as_os_str().as_bytes();
    let reference = Reference::parse(bytes).transpose()?;
    if reference.is_none() && bytes.contains(&b'/') {
        let word = printable(bytes);
        return Ok(Found::Refused(format!(
            "{word} is a directory, not the name of a recording of the library"
        )));
    }
    let Some(library) = library else {
        return Ok(Found::Refused(format!(
            "there is no snapshot {}: nothing was recorded yet",
            printable(bytes)
        )));
    };
    let error = match find_whole_recording(word, access) {
        Ok(entry) => return Ok(Found::There(entry.id, library)),
        Err(error) => error,
    };
    match error.downcast_ref::<library::Error>() {
        Some(library::Error::NoSuch(_) | library::Error::Ambiguous(_)) => {
            let id = reference.as_ref().map(Reference::library_id).or(word.to_str()).filter(|id| is_id(id));
            let found = id.map(|id| find_unlisted(id, library, access)).transpose()?.flatten();
            Ok(found.unwrap_or_else(|| Found::Refused(error.to_string())))
        }
        Some(library::Error::OtherSession(_)) => Ok(Found::Refused(error.to_string())),
        _ => Err(error),
    }
}

/// What an identifier names that is not listed: a recording that was deleted, or that can't be read.
fn find_unlisted<'l>(
    id: &str,
    library: &'l Library,
    access: &SessionAccess,
) -> Result<Option<Found<'l>>, library::Error> {
    let id = id.to_owned();
    let is_there = library.directory_of(&id).symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    if !is_there {
        let log = log::read(library.root())?;
        let is_begun = |leftover: &Leftover| leftover.is_of(&id);
        let is_deleted = log.deleted.contains_key(&id) || library.leftovers(&log)?.iter().any(is_begun);
        return Ok(is_deleted.then_some(Found::Deleted(id)));
    }
    // Nobody knows its session.
    let session = scope(access, true).session;
    Ok(Some(match session {
        Some(_) if !access.allow_cross_session => {
            Found::Refused(library::Error::OtherSession(id).to_string())
        }
        session => {
            if session.is_some() {
                library.audit(&id, session.as_deref())?;
            }
            Found::There(id, library)
        }
    }))
}

/// Deletes a recording, or says why that is refused.
fn delete(id: &str, library: &Library) -> Result<Result<u64, String>, library::Error> {
    let deleted = Deletions::of(library)?.delete(id)?;
    Ok(deleted.map_err(|obstacle| match obstacle {
        Obstacle::Gone => format!("{id} was deleted by another process"),
        Obstacle::Running => format!("{id} is still being recorded"),
        Obstacle::Unrecovered(directory) => {
            let directory = shell_word(directory.as_os_str().as_bytes());
            format!(
                "{id} was killed, and only its journal has what it changed: recover it with: agent-snapshot recover \
                 {directory}, or remove the journal with: agent-snapshot recover --discard {directory}"
            )
        }
        Obstacle::InUse => format!("{id} is in use by another process"),
        Obstacle::Unfinished(rescue) => format!(
            "{id} is needed by a restore that was interrupted: run that again, or take it back with: agent-snapshot \
             restore --before {}",
            shell_word(rescue.as_os_str().as_bytes())
        ),
    }))
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::run;

    #[test]
    fn a_directory_is_refused() {
        let ran = run(&["delete", "/nowhere/at/all"]);
        assert_eq!(ran.status, 1);
        assert!(
            ran.err.contains("/nowhere/at/all is a directory, not the name of a recording"),
            "{}",
            ran.err
        );
    }
}
