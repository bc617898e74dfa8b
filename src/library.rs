//! The library: the snapshots that `run` makes, and what is known of them without opening each.
//!
//! A plain directory: `snapshots/ID/` is a bundle like any other; `log.jsonl` has a line for each recording and
//! can be made again from the bundles. Many processes record at once: each makes a directory of its own, and
//! appends its line under a lock. Prints nothing, and knows no tracing.
//!
//! - `place.rs`: where the library is, and whose.
//! - [`log`]: the lines of `log.jsonl`.
//! - [`index`]: the paths that each has changed, in `paths.idx`; [`sources`] finds by it who has changed a path, and
//!   [`linked`] who has changed a file by another name.
//! - [`session`], [`scope`]: which snapshots a verb may see, and which it means.
//! - [`name`]: how a snapshot is named on the command line.
//! - [`notes`]: what hooks and shells were asked to have recorded, and what came of it.
//! - [`reference`]: how a program names one.
//! - [`recordings`]: the recordings in their order, for undo and redo: what can be undone, and what came later. [`touched`]: which
//!   later recordings changed what others had changed.
//! - [`undone`]: which recordings are undone; [`rescues`]: of which recordings a rescue is.
//! - [`delete`]: removes a recording and its rescues; [`retention`]: decides which ones go. [`disk`]: what they take.
//! - [`fsck`]: what is damaged, missing or foreign.
//! - `audit.rs`: what crossed a session's border.

mod audit;
pub mod delete;
pub mod disk;
pub mod error;
pub mod fsck;
pub mod index;
pub mod linked;
pub mod log;
pub mod name;
pub mod notes;
mod place;
pub mod recordings;
pub mod reference;
pub mod rescues;
pub mod retention;
pub mod scope;
pub mod session;
pub mod sources;
pub mod touched;
pub mod undone;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use self::error::Error;
use self::error::failed;
use self::index::PathHashes;
pub use self::log::Entry;
pub use self::place::Place;
use crate::snapshot::{Snapshot, identity};

/// The directory of the receipts of `init`.
pub const RECEIPTS: &str = "init";

/// The directory of what `run --recall` keeps.
pub const RECALL: &str = "recall";

/// The table of files without a private key.
pub const KEYLESS: &str = "keyless";

/// The directory of the snapshots.
const SNAPSHOTS: &str = "snapshots";

/// How many characters of its identifier name a snapshot.
pub const ID_LENGTH: usize = 8;

/// A library that exists.
#[derive(Debug, Clone)]
pub struct Library {
    root: PathBuf,
}

impl Library {
    /// The library of this user, if there is one.
    ///
    /// # Errors
    /// It belongs to somebody else, or can't be read.
    pub fn find() -> Result<Option<Library>, Error> {
        let Place { root, .. } = Place::of_this_user();
        match fs::symlink_metadata(&root) {
            Ok(_) => place::check(&root).map(|()| Some(Library { root })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(failed("open", &root)(error)),
        }
    }

    /// The library at `place`, made if there is none.
    ///
    /// # Errors
    /// It belongs to somebody else, or can't be made.
    pub fn create(place: &Place) -> Result<Library, Error> {
        let root = &place.root;
        place::make(root)?;
        place::check(root)?;
        let snapshots = root.join(SNAPSHOTS);
        place::make(&snapshots)?;
        Ok(Library { root: root.clone() })
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory that the snapshots and their rescues are in.
    pub fn snapshots(&self) -> PathBuf {
        self.root.join(SNAPSHOTS)
    }

    /// The directory of the snapshot with this identifier, or of a rescue by its name.
    pub fn directory_of(&self, name: &str) -> PathBuf {
        self.snapshots().join(name)
    }

    /// An identifier whose beginning names no snapshot yet.
    pub fn new_id(&self) -> String {
        loop {
            let id = identity::random_id();
            if fs::symlink_metadata(self.directory_of(&id[..ID_LENGTH])).is_err() {
                return id;
            }
        }
    }

    /// The recordings, the oldest first: those that the log tells of and that are still there, and those of
    /// which it does not tell yet.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        self.entries_of(log::read(&self.root)?)
    }

    /// The recordings, with what the log told of them a moment ago.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn entries_of(&self, log: log::Log) -> Result<Vec<Entry>, Error> {
        let names = self.names()?.into_iter().filter_map(|name| name.into_string().ok());
        let there: HashSet<String> = names.filter(|name| is_id(name)).collect();
        let mut entries: HashMap<String, Entry> = HashMap::new();
        for entry in log.recorded {
            // The last line of a recording has replaced the one of its first snapshot.
            if there.contains(&entry.id) {
                entries.insert(entry.id.clone(), entry);
            }
        }
        for id in there {
            if !entries.contains_key(&id)
                && let Some(entry) = self.unlogged(&id)
            {
                entries.insert(id, entry);
            }
        }
        let mut entries: Vec<Entry> = entries.into_values().collect();
        entries.sort_by(|one, other| (&one.time, &one.id).cmp(&(&other.time, &other.id)));
        Ok(entries)
    }

    /// What a directory tells of which the log does not: its recording has not ended, or was killed.
    fn unlogged(&self, id: &str) -> Option<Entry> {
        let path = self.directory_of(id);
        let of = |snapshot: &Snapshot| snapshot.header().kind.is_recording().then(|| Entry::of(snapshot));
        if let Ok(snapshot) = Snapshot::open(&path) {
            return of(&snapshot);
        }
        let unfinished = Entry::unfinished(&path);
        if unfinished.as_ref().is_some_and(|entry| entry.state == log::EntryState::Running) {
            return unfinished;
        }
        // It may have ended meanwhile.
        Snapshot::open(&path).map_or(unfinished, |snapshot| of(&snapshot))
    }

    /// Adds the line of a recording to the log, and the paths that it has changed to the index.
    ///
    /// # Errors
    /// The line can't be written.
    pub fn append(&self, entry: &Entry, paths: &PathHashes) -> Result<(), Error> {
        // Before the line, which says that the recording has ended. Without it, the recording is opened and added.
        let _ = index::append(&self.root, &entry.id, paths);
        log::append(&self.root, &log::Event::Recorded(entry.clone()))
    }

    /// Adds the line of the recording in the directory at `path`, of which nobody was left to add it, if the directory is one
    /// of the library's.
    ///
    /// # Errors
    /// The log can't be read or written.
    pub fn append_recovered(&self, path: &Path) -> Result<(), Error> {
        let is_ours = |path: &PathBuf| {
            let snapshots = self.snapshots().canonicalize();
            snapshots.is_ok_and(|snapshots| path.parent() == Some(&snapshots))
        };
        let path = path.canonicalize().ok().filter(is_ours);
        let Some(id) = path.as_ref().and_then(|path| path.file_name()?.to_str()).filter(|id| is_id(id))
        else {
            return Ok(());
        };
        // Without a snapshot, nothing was changed.
        let Ok(snapshot) = Snapshot::open(&self.directory_of(id)) else { return Ok(()) };
        let known = log::read(&self.root)?.recorded.into_iter().rfind(|entry| entry.id == id);
        let entry = Entry::again(&snapshot, known.clone());
        if known.as_ref() == Some(&entry) {
            return Ok(());
        }
        self.append(&entry, &PathHashes::of(&snapshot))
    }

    /// Writes down that a verb crossed the border of a session.
    ///
    /// # Errors
    /// It can't be written: the verb must not go on.
    pub fn audit(&self, id: &str, caller: Option<&str>) -> Result<(), Error> {
        audit::append(&self.root, id, caller)
    }
}

/// What names a snapshot in a library: the beginning of its identifier.
pub fn short_id(id: &str) -> &str {
    id.get(..ID_LENGTH).unwrap_or(id)
}

/// Whether a word looks like an identifier: eight characters of a to z and 2 to 7.
pub fn is_id(word: &str) -> bool {
    word.len() == ID_LENGTH && is_start_of_id(word)
}

/// Whether a word may be the start of an identifier.
pub fn is_start_of_id(word: &str) -> bool {
    word.len() <= ID_LENGTH && word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}

/// Whether a word is the name of the directory of a finished rescue.
fn is_rescue_name(word: &str) -> bool {
    let parts = word.split_once("-rescue-");
    parts.is_some_and(|(id, number)| is_id(id) && number.parse::<u32>().is_ok())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
