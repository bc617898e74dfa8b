//! How a snapshot is named on the command line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::scope::Scope;
use super::{Entry, Error, ID_LENGTH, Library, is_rescue_name, is_start_of_id};
use crate::snapshot::{layout, printable};

/// How many candidates are named in a message.
const CANDIDATES: usize = 5;

/// How many characters of an identifier name a snapshot, if no other one begins with them.
const SHORTEST: usize = 2;

/// A snapshot that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// The directory of a bundle.
    Directory(PathBuf),
    /// A recording of the library, and the directory of its bundle.
    Recording(Box<Entry>, PathBuf),
}

impl Named {
    fn of(entry: &Entry, library: &Library) -> Named {
        Named::Recording(Box::new(entry.clone()), library.directory_of(&entry.id))
    }
}

/// Finds the snapshot that `word` names, in this order: `@` and `@~N`, the newest in `scope` and the ones before it;
/// with a `/`, a directory; an identifier; the start of one; a `--name`; a directory with a manifest.
///
/// # Errors
/// It names none, or more than one: the candidates are in the message.
pub fn find(word: &OsStr, library: &Library, scope: &Scope) -> Result<Named, Error> {
    find_among(word, library, scope, &|_| true)
}

/// The same, as if the library had only the recordings in `scope`.
///
/// # Errors
/// As of [`find`].
pub fn find_in_scope(word: &OsStr, library: &Library, scope: &Scope) -> Result<Named, Error> {
    find_among(word, library, scope, &|entry| scope.contains(entry, library))
}

fn find_among(
    word: &OsStr,
    library: &Library,
    scope: &Scope,
    is_known: &dyn Fn(&Entry) -> bool,
) -> Result<Named, Error> {
    let bytes = word.as_bytes();
    if let Some(text) = word.to_str().filter(|text| text.starts_with('@')) {
        return nth(text, library, scope);
    }
    if bytes.contains(&b'/') {
        return Ok(Named::Directory(word.into()));
    }
    let Some(text) = word.to_str() else { return Ok(Named::Directory(word.into())) };
    let entries = library.entries()?;
    let matching = |is_match: &dyn Fn(&Entry) -> bool| -> Vec<&Entry> {
        entries.iter().rev().filter(|entry| is_match(entry) && is_known(entry)).collect()
    };
    let mut candidates = matching(&|entry| entry.id == text);
    if candidates.is_empty() && text.len() >= SHORTEST && is_start_of_id(text) {
        candidates = matching(&|entry| entry.id.starts_with(text));
    }
    if candidates.is_empty() {
        candidates = matching(&|entry| entry.name.as_deref() == Some(text));
    }
    match candidates.as_slice() {
        [one] => Ok(Named::of(one, library)),
        [] if is_bundle(Path::new(word)) => Ok(Named::Directory(word.into())),
        [] if is_rescue_name(text) && is_bundle(&library.directory_of(text)) => {
            Ok(Named::Directory(library.directory_of(text)))
        }
        [] => Err(unknown(text, &entries)),
        several => Err(Error::Ambiguous(format!(
            "{} could be several snapshots:{}",
            printable(bytes),
            list(several)
        ))),
    }
}

/// Whether a directory is that of a snapshot, or of a recording that has none yet.
pub fn is_bundle(path: &Path) -> bool {
    path.join(layout::MANIFEST).exists() || path.join(layout::JOURNAL).exists()
}

/// The newest recording in scope, or one before it.
fn nth(text: &str, library: &Library, scope: &Scope) -> Result<Named, Error> {
    let back = match text.strip_prefix("@~") {
        None if text == "@" => Some(0),
        None => None,
        Some("") => Some(1),
        Some(number) => number.parse::<usize>().ok(),
    };
    let Some(back) = back else {
        return Err(Error::NoSuch(format!(
            "{} names no snapshot: @ is the newest, @~1 the one before it",
            printable(text.as_bytes())
        )));
    };
    let mut in_scope = 0;
    for entry in library.entries()?.iter().rev() {
        if scope.contains(entry, library) {
            if in_scope == back {
                return Ok(Named::of(entry, library));
            }
            in_scope += 1;
        }
    }
    Err(Error::NoSuch(match in_scope {
        0 => "nothing was recorded here (agent-snapshot log --all lists what was recorded elsewhere)"
            .to_owned(),
        1 => format!("{text} is not there: only one command was recorded here"),
        count => format!("{text} is not there: only {count} commands were recorded here"),
    }))
}

fn unknown(text: &str, entries: &[Entry]) -> Error {
    let shown = printable(text.as_bytes());
    if is_start_of_id(text) && text.len() < SHORTEST {
        return Error::NoSuch(format!(
            "{shown} is too short to name a snapshot: at least {SHORTEST} characters of its identifier are needed"
        ));
    }
    // A slip of one character is the most likely one.
    let is_near = |entry: &&Entry| {
        let others = entry.id.bytes().zip(text.bytes()).filter(|(one, other)| one != other).count();
        text.len() >= 3 && others + ID_LENGTH.abs_diff(text.len()) <= 2
    };
    let near: Vec<&Entry> = entries.iter().rev().filter(is_near).collect();
    match near.as_slice() {
        [] => Error::NoSuch(format!("there is no snapshot {shown} (agent-snapshot log lists them)")),
        near => Error::NoSuch(format!("there is no snapshot {shown}; similar ones are:{}", list(near))),
    }
}

fn list(entries: &[&Entry]) -> String {
    let mut text = String::new();
    for entry in entries.iter().take(CANDIDATES) {
        text.push_str(&format!("\n  {}  {}  {}", entry.id, entry.time, entry.command_line()));
    }
    if entries.len() > CANDIDATES {
        text.push_str(&format!("\n  and {} more", entries.len() - CANDIDATES));
    }
    text
}
