//! Opens the snapshot that a verb is given by a word, once a killed recording is complete.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use super::exit::{Nothing, UsageError};
use super::log::command_line;
use super::out::Console;
use super::paths::Selection;
use super::recover::waiting_for;
use crate::cli::SessionAccess;
use crate::library::log::EntryState;
use crate::library::name::{self, Named};
use crate::library::reference::Reference;
use crate::library::scope::Scope;
use crate::library::session::session;
use crate::library::undone::UndoneRecordings;
use crate::library::{self, Entry, Library, is_start_of_id, linked};
use crate::snapshot::compare::KnownLinks;
use crate::snapshot::journal::Begin;
use crate::snapshot::net::{Net, net};
use crate::snapshot::recover;
use crate::snapshot::{Error, Snapshot, layout, printable};
use crate::trace::proc_status::ProcStatus;
use crate::trace::question::is_recorded;
use crate::trace::sys::Tid;

/// How often a verb checks whether the snapshot that it waits for is there.
const INTERVAL: Duration = Duration::from_millis(20);

/// Opens the snapshot that `word` names.
pub fn open(word: &Path, access: &SessionAccess, console: &mut Console) -> anyhow::Result<Snapshot> {
    Ok(open_directory(&directory_of(word, access)?, console)?)
}

/// How many characters of an identifier name what is to be undone or deleted.
const SHORTEST: usize = 4;

/// The recording of the library that a word names, which must not be a slip: files are changed.
pub fn find_whole_recording(word: &Path, access: &SessionAccess) -> anyhow::Result<Entry> {
    let entry = find_recording(word, access)?;
    require_whole(word, &entry)?;
    Ok(entry)
}

fn require_whole(word: &Path, entry: &Entry) -> Result<(), UsageError> {
    if !word.to_str().is_some_and(|word| is_too_short(word, entry)) {
        return Ok(());
    }
    let word = printable(word.as_os_str().as_bytes());
    Err(UsageError(format!(
        "{word} is too short for what changes files: at least {SHORTEST} characters of {} are needed",
        entry.id
    )))
}

/// Whether a recording was named by too few characters of its identifier, and not by its name.
fn is_too_short(word: &str, entry: &Entry) -> bool {
    word.len() < SHORTEST
        && is_start_of_id(word)
        && entry.id.starts_with(word)
        && entry.name.as_deref() != Some(word)
}

/// The recording of the library that `word` names.
fn find_recording(word: &Path, access: &SessionAccess) -> Result<Entry, library::Error> {
    match find(word, access)? {
        Named::Recording(entry, _) => Ok(*entry),
        Named::Directory(path) => Err(library::Error::NoSuch(format!(
            "{} is not a recording of the library: agent-snapshot restore --before takes a directory",
            printable(path.as_os_str().as_encoded_bytes())
        ))),
    }
}

/// What a verb is about: everything that its session may see, or what concerns the place that this process is in.
///
/// A session that was named is wanted wherever its recordings are.
pub fn scope(access: &SessionAccess, all: bool) -> Scope {
    let session = session(access.session.as_deref());
    match &access.confined_to {
        Some(place) => Scope { place: Some(place.clone()), session },
        None if all || access.session.is_some() => Scope { place: None, session },
        None => Scope::here(session),
    }
}

/// Refuses `--session` without a name where there is no session that it could mean.
pub fn check_session(access: &SessionAccess) -> Result<(), UsageError> {
    match &access.session {
        Some(named) if session(Some(named)).is_none() => {
            Err(UsageError("this is not run in a session: --session ID names one".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Refuses a recording that does not concern the directory that a verb is confined to.
pub fn check_confined(
    entry: &Entry,
    library: &Library,
    access: &SessionAccess,
) -> Result<(), library::Error> {
    match is_in_reach(entry, library, access) {
        true => Ok(()),
        false => Err(library::Error::NoSuch(
            "nothing was changed, since this concerns a recording elsewhere, too, which is out of reach"
                .to_owned(),
        )),
    }
}

/// Whether a verb may name a recording: any, unless it is confined to a directory that the recording does not concern.
pub fn is_in_reach(entry: &Entry, library: &Library, access: &SessionAccess) -> bool {
    access.confined_to.is_none() || scope(access, false).contains(entry, library)
}

/// The recording in scope that a word names where it can't be a path. The error tells nothing of other recordings.
fn find_recording_only(word: &Path, access: &SessionAccess) -> Result<Named, library::Error> {
    let unknown = || {
        let word = printable(word.as_os_str().as_bytes());
        let of = if access.confined_to.is_some() { " of this project" } else { "" };
        library::Error::NoSuch(format!("{word} does not name one recording{of} (log lists them)"))
    };
    let library = Library::find()?.ok_or_else(unknown)?;
    match name::find_in_scope(word.as_os_str(), &library, &scope(access, true)) {
        Ok(Named::Directory(_)) | Err(library::Error::NoSuch(_)) => Err(unknown()),
        found => found,
    }
}

/// The directory of the snapshot that `word` names.
pub fn directory_of(word: &Path, access: &SessionAccess) -> Result<PathBuf, library::Error> {
    Ok(match find(word, access)? {
        Named::Directory(path) | Named::Recording(_, path) => path,
    })
}

/// The directory that a word names, for a verb that changes it: of an identifier enough must be given to rule out a slip. An
/// existing directory goes before a recording of that name.
pub fn directory_to_change(word: &Path, access: &SessionAccess) -> anyhow::Result<PathBuf> {
    if word.is_dir() {
        return Ok(word.to_owned());
    }
    match find(word, access)? {
        Named::Directory(path) => Ok(path),
        Named::Recording(entry, path) => {
            require_whole(word, &entry)?;
            Ok(path)
        }
    }
}

/// What a word names, if the verb's session may see it.
fn find(word: &Path, access: &SessionAccess) -> Result<Named, library::Error> {
    if access.recordings_only {
        return find_recording_only(word, access);
    }
    let bytes = word.as_os_str().as_encoded_bytes();
    let reference = Reference::parse(bytes).transpose()?;
    // A path needs no library, even one that can't be read.
    if reference.is_none() && bytes.contains(&b'/') {
        return Ok(Named::Directory(word.to_owned()));
    }
    let library = Library::find()?;
    let in_library =
        |reference: &Reference| library.as_ref().is_some_and(|library| reference.is_in(&library.snapshots()));
    if let Some(elsewhere) = reference.as_ref().filter(|reference| !in_library(reference)) {
        return elsewhere.checked_directory().map(Named::Directory);
    }
    let Some(library) = library else { return Ok(Named::Directory(word.to_owned())) };
    let scope = scope(access, false);
    let word = reference.as_ref().map_or(word.as_os_str(), |reference| reference.library_id().as_ref());
    let named = name::find(word, &library, &scope)?;
    if let Some(reference) = &reference {
        reference.checked_directory()?;
    }
    if let Named::Recording(entry, _) = &named
        && !scope.may_see(entry)
    {
        if !access.allow_cross_session {
            return Err(library::Error::OtherSession(entry.id.clone()));
        }
        library.audit(&entry.id, scope.session.as_deref())?;
    }
    Ok(named)
}

/// Opens the snapshot in the directory `path`.
///
/// If its recording was killed, its recorder may still be completing it: that is reported, and waited for. If the
/// recorder was killed, too, the recording has to be recovered first: an older snapshot is not taken for it.
pub fn open_directory(path: &Path, console: &mut Console) -> Result<Snapshot, Error> {
    let opened = Snapshot::open(path);
    let recorder = recover::recorder(path);
    let shown = printable(path.as_os_str().as_encoded_bytes());
    if let (Err(_), Some(begin)) = (&opened, recorder.as_ref().filter(|begin| begin.front.is_alive())) {
        let process = begin.front.pid;
        return Err(Error::Format(format!(
            "{shown} is being recorded by process {process}: it has no snapshot yet"
        )));
    }
    let Some(begin) = recorder.filter(|begin| !begin.front.is_alive()) else { return opened };
    if opened.as_ref().is_ok_and(|snapshot| snapshot.header().running) && !begin.recorder.is_alive() {
        console.say(format_args!(
            "{shown} is a first snapshot, and its recorder was killed: agent-snapshot recover {shown} makes another \
             snapshot of what came later"
        ));
    }
    let is_its_own = |opened: &Result<Snapshot, Error>| {
        opened.as_ref().is_ok_and(|snapshot| snapshot.header().id == begin.id)
    };
    if is_its_own(&opened) || begin.recorder.is_alive() && is_traced_by(begin.recorder.pid) {
        return opened;
    }
    if begin.recorder.is_alive() {
        console.say(format_args!("{}", waiting_for(begin.recorder.pid)));
    }
    // Its lock may outlive the recorder for a moment, and its first snapshot comes before it is released.
    while layout::is_locked(path) {
        let now = Snapshot::open(path);
        if is_its_own(&now) {
            return now;
        }
        std::thread::sleep(INTERVAL);
    }
    if recover::recorder(path).is_some() && opened.is_ok() {
        return Err(Error::Format(format!(
            "{shown} holds a recording that was killed after its snapshot was made: agent-snapshot recover {shown} \
             makes another snapshot of what it has changed"
        )));
    }
    Snapshot::open(path)
}

/// Opens bundles, the oldest first, as one.
pub fn open_net(directories: impl Iterator<Item = PathBuf>, console: &mut Console) -> anyhow::Result<Net> {
    Ok(net(open_all(directories, console)?)?)
}

/// Opens all recordings of the library that the verb's session may see, the oldest first.
pub fn open_library(access: &SessionAccess, console: &mut Console) -> anyhow::Result<Vec<Snapshot>> {
    let nothing = || Nothing("the library has no recording".to_owned());
    let library = Library::find()?.ok_or_else(nothing)?;
    let scope = scope(access, true);
    let mut entries = library.entries()?;
    entries.retain(|entry| scope.may_see(entry));
    if entries.is_empty() {
        return Err(nothing().into());
    }
    Ok(open_all(entries.iter().map(|entry| library.directory_of(&entry.id)), console)?)
}

/// Opens recordings of the library, the oldest first, as one, without the paths that are undone already.
pub fn open_net_of(
    ids: &[&str],
    library: &Library,
    undone: &UndoneRecordings,
    console: &mut Console,
) -> anyhow::Result<Net> {
    let mut snapshots = open_all(ids.iter().map(|id| library.directory_of(id)), console)?;
    for (snapshot, id) in snapshots.iter_mut().zip(ids) {
        snapshot.forget(undone.paths_of(id).changed());
    }
    Ok(net(snapshots)?)
}

/// Opens several bundles.
pub fn open_all(
    directories: impl Iterator<Item = PathBuf>,
    console: &mut Console,
) -> Result<Vec<Snapshot>, Error> {
    raise_descriptor_limit();
    directories.map(|directory| open_directory(&directory, console)).collect()
}

/// Each of several bundles is open at the same time.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where that is forbidden, the limit is an error once it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Whether there is a snapshot of what a command has changed on this machine.
fn shows_changes(entry: &Entry) -> bool {
    entry.changes().any() && entry.state != EntryState::Unrecovered && !entry.imported
}

/// Opens the snapshot that `word` names; without one, that of the last command in scope that changed something, which it
/// names on standard error.
pub fn open_or_last(
    word: Option<&Path>,
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<Snapshot> {
    if let Some(word) = word {
        return open(word, access, console);
    }
    let (snapshot, last) = last(CHANGED, shows_changes, access, console)?;
    say_which(&last, console);
    Ok(snapshot)
}

/// Opens the snapshot of the last command in scope of which something was refused, which it names on standard error.
pub fn open_last_refused(access: &SessionAccess, console: &mut Console) -> anyhow::Result<Snapshot> {
    let (snapshot, last) =
        last("of which something was refused", |entry| entry.refused > 0, access, console)?;
    say_which(&last, console);
    Ok(snapshot)
}

/// What a verb is about where no recording is named.
const CHANGED: &str = "that changed something";

/// Opens the snapshot of the last command in scope of which `is_such` is true; `such` says so in words.
fn last(
    such: &str,
    is_such: impl Fn(&Entry) -> bool,
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<(Snapshot, Entry)> {
    let nothing = || library::Error::NoSuch(format!("no command {such} was recorded here"));
    let library = Library::find()?.ok_or_else(nothing)?;
    let (scope, mut entries) = (scope(access, false), library.entries()?);
    let is_candidate = |entry: &Entry| is_such(entry) && scope.contains(entry, &library);
    let last = entries.iter().rposition(is_candidate).ok_or_else(nothing)?;
    let last = entries.swap_remove(last);
    Ok((open_directory(&library.directory_of(&last.id), console)?, last))
}

/// Names the recording that a verb takes where none was named.
fn say_which(entry: &Entry, console: &mut Console) {
    console.say(format_args!("{}: {}", entry.id, command_line(entry)));
}

/// Opens what a verb takes where no recording is named: what the recordings of the session that was named have done
/// together, but for those that are undone; without one, the last command that changed something, which is returned, too.
fn default(access: &SessionAccess, console: &mut Console) -> anyhow::Result<(Snapshot, Option<Entry>)> {
    if access.session.is_none() {
        return last(CHANGED, shows_changes, access, console).map(|(snapshot, last)| (snapshot, Some(last)));
    }
    let scope = scope(access, true);
    let nothing = || {
        let session = printable(scope.session.as_deref().unwrap_or_default().as_bytes()).into_owned();
        Nothing(format!("session {session} has no recording that changed something and is not undone"))
    };
    let library = Library::find()?.ok_or_else(nothing)?;
    let undone = UndoneRecordings::of(&library)?;
    let mut entries = library.entries()?;
    entries.retain(|entry| scope.may_see(entry) && shows_changes(entry) && undone.get(&entry.id).is_none());
    if entries.is_empty() {
        return Err(nothing().into());
    }
    let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
    Ok((open_net_of(&ids, &library, &undone, console)?.snapshot, None))
}

/// Opens the snapshot that `word` names, and says which paths of it are meant: `paths`, and `word` if it names no
/// recording and is a path. Without a recording, that is what [`default`] opens.
///
/// A word is a path if something is there or the snapshot has it.
pub fn open_with_paths(
    word: Option<&Path>,
    paths: [&[OsString]; 2],
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<(Snapshot, Vec<OsString>)> {
    let mut paths = paths.concat();
    let unknown = match word {
        None => None,
        Some(word) => match named(word, access, console)? {
            Ok(directory) => return Ok((open_directory(&directory, console)?, paths)),
            Err(unknown) if access.recordings_only => return Err(unknown),
            Err(unknown) => Some((word.as_os_str().to_owned(), unknown)),
        },
    };
    let (snapshot, last) = match (default(access, console), unknown) {
        (opened, None) => opened?,
        // Without a recording to have paths of, the word can only have been meant for one.
        (Err(_), Some((_, unknown))) => return Err(unknown),
        (Ok(opened), Some((word, unknown))) => {
            let is_path =
                exists(&word) || Selection::new(&opened.0, slice::from_ref(&word))?.unmatched().is_empty();
            if !is_path {
                return Err(unknown);
            }
            paths.insert(0, word);
            opened
        }
    };
    last.iter().for_each(|last| say_which(last, console));
    Ok((snapshot, paths))
}

/// The directory of the snapshot that `word` names; if it names none, the inner error says so.
fn named(
    word: &Path,
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<Result<PathBuf, anyhow::Error>> {
    match find(word, access) {
        Ok(Named::Recording(entry, directory)) => {
            say_if_both(word, &entry, access, console);
            Ok(Ok(directory))
        }
        Ok(Named::Directory(directory)) if name::is_bundle(&directory) => Ok(Ok(directory)),
        Ok(Named::Directory(directory)) => match open_directory(&directory, console) {
            Ok(_) => Ok(Ok(directory)),
            Err(error) => Ok(Err(error.into())),
        },
        Err(error @ library::Error::NoSuch(_)) => Ok(Err(error.into())),
        Err(error) => Err(error.into()),
    }
}

/// What the words of `undo` mean.
pub struct UndoWords {
    /// The recordings that the first of them name.
    pub recordings: Vec<Entry>,
    /// The others.
    pub paths: Vec<OsString>,
    /// What is wrong if the first of these is no path either.
    pub unknown: Option<anyhow::Error>,
}

/// Finds out what the words of `undo` mean: from the first on that names no recording, they are paths.
pub fn undo_words(
    words: &[PathBuf],
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<UndoWords> {
    let mut recordings = Vec::new();
    for (number, word) in words.iter().enumerate() {
        let unknown = match find_recording(word, access) {
            Ok(entry) => match require_whole(word, &entry) {
                Ok(()) => {
                    say_if_both(word, &entry, access, console);
                    recordings.push(entry);
                    continue;
                }
                Err(error) if access.recordings_only => return Err(error.into()),
                Err(error) => error.into(),
            },
            Err(error @ library::Error::NoSuch(_)) if !access.recordings_only && !name::is_bundle(word) => {
                error.into()
            }
            Err(error) => return Err(error.into()),
        };
        let paths = words[number..].iter().map(|word| word.as_os_str().to_owned()).collect();
        return Ok(UndoWords { recordings, paths, unknown: Some(unknown) });
    }
    Ok(UndoWords { recordings, paths: Vec::new(), unknown: None })
}

/// Says which a word is taken for that is the name of a recording and a path.
fn say_if_both(word: &Path, entry: &Entry, access: &SessionAccess, console: &mut Console) {
    if !access.recordings_only && exists(word.as_os_str()) {
        let (shown, id) = (printable(word.as_os_str().as_bytes()), &entry.id);
        console.say(format_args!("{shown} is taken for the recording {id}: -- {shown} means the path"));
    }
}

/// Whether something is at the path that a word is.
pub fn exists(word: &OsStr) -> bool {
    std::fs::symlink_metadata(word).is_ok()
}

/// Whether this process is traced by that of the id, and so part of what it records.
fn is_traced_by(recorder: u32) -> bool {
    tracer() == Some(recorder)
}

/// Whether this process is part of the recording that this frame began; also if it is part of one whose recorder it can't see.
pub fn is_part_of(begin: &Begin) -> bool {
    tracer().map_or_else(is_recorded, |tracer| tracer == begin.recorder.pid)
}

/// The process that traces this one, if it can be seen.
fn tracer() -> Option<u32> {
    let status = ProcStatus::of(Tid(std::process::id().cast_signed()))?;
    status.line("TracerPid:")?.parse().ok().filter(|tracer| *tracer != 0)
}

/// What the recordings that the session may see know of the hard links of the files that `snapshot` changed; nothing
/// if the library can't be read.
pub fn known_links(snapshot: &Snapshot, library: &Library, access: &SessionAccess) -> KnownLinks {
    let scope = scope(access, true);
    let may_see = |entry: &Entry| scope.may_see(entry) || access.allow_cross_session;
    linked::known_links(snapshot, library, may_see).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::log::Changes;
    use crate::snapshot::samples::header;

    #[test]
    fn a_name_may_be_as_short_as_it_likes() {
        let mut entry = Entry::new(&header(), Changes::default());
        entry.id = "cvygw4ft".to_owned();
        assert!(is_too_short("c", &entry) && is_too_short("cvy", &entry));
        assert!(!is_too_short("cvyg", &entry) && !is_too_short("d", &entry));
        entry.name = Some("c".to_owned());
        assert!(!is_too_short("c", &entry));
    }
}
