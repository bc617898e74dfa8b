//! Who has changed a path: the recordings and rescues of a library, found by the index of paths.
//!
//! A rescue tells what an undo, or another restore, has written. Neighbours: `index.rs` has the hashes;
//! `snapshot::timeline` makes of the bundles what was at a path at some time.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::index::{self, IndexedFiles, IndexedPath, PathHashes, PathIndex};
use super::log::EntryState;
use super::{Entry, Error, Library, is_rescue_name};
use crate::snapshot::layout::MANIFEST;
use crate::snapshot::{self, Snapshot};

/// A bundle that may have changed a path.
#[derive(Debug)]
pub struct Source {
    /// The directory of the bundle.
    pub directory: PathBuf,
    /// What the log says of a recording; none of a rescue.
    pub entry: Option<Entry>,
    /// Everything that it changed was changed after this.
    pub started: Timestamp,
    /// Everything that it changed was changed before this; none if that is unknown.
    pub finished: Option<Timestamp>,
    key: String,
}

/// The bundles of a library, in the order of their starts.
pub struct Sources {
    all: Vec<Source>,
    index: PathIndex,
    /// What the index does not know, by the number of the bundle.
    opened: HashMap<usize, PathHashes>,
    /// Those that the index does not know and that can't be read, and why.
    pub unreadable: Vec<(PathBuf, snapshot::Error)>,
}

impl Sources {
    /// The recordings of `library` that `may_see` takes, and all its rescues.
    ///
    /// Bundles that the index does not know are opened and added to it.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn of(library: &Library, may_see: impl Fn(&Entry) -> bool) -> Result<Sources, Error> {
        // The log is read before the index: a recording that has ended in the log has all of its paths in the index.
        let mut all: Vec<Source> = library
            .entries()?
            .into_iter()
            .filter(|entry| !entry.imported && may_see(entry))
            .map(|entry| Source::recording(entry, library))
            .collect();
        all.extend(rescues(library)?);
        all.sort_by_key(|source| source.started);
        let mut sources = Sources {
            index: PathIndex::read(library.root())?,
            all,
            opened: HashMap::new(),
            unreadable: Vec::new(),
        };
        sources.complete(library);
        Ok(sources)
    }

    /// Opens the bundles that the index does not know.
    fn complete(&mut self, library: &Library) {
        let mut new = Vec::new();
        for (number, source) in self.all.iter().enumerate() {
            if source.is_lasting() && self.index.knows(&source.key) {
                continue;
            }
            match Snapshot::open(&source.directory) {
                Ok(snapshot) => {
                    let paths = PathHashes::of(&snapshot);
                    if source.is_lasting() {
                        new.push((source.key.clone(), paths.clone()));
                    }
                    self.opened.insert(number, paths);
                }
                // A recording that goes on may have no snapshot yet.
                Err(_) if !source.is_lasting() => {}
                Err(error) => self.unreadable.push((source.directory.clone(), error)),
            }
        }
        // If that fails, they are opened again the next time.
        let _ = self.index.complete(library.root(), &new);
    }

    /// The bundle with a number.
    pub fn get(&self, number: usize) -> &Source {
        &self.all[number]
    }

    /// The recordings that go on, or were killed and not recovered yet: not all that they changed is known.
    pub fn running(&self) -> impl Iterator<Item = &Entry> {
        self.all.iter().filter(|source| !source.is_lasting()).filter_map(|source| source.entry.as_ref())
    }

    /// The numbers of those that have changed a path or something below it, the oldest first, as far as hashes tell.
    pub fn that_changed(&self, path: &[u8]) -> impl DoubleEndedIterator<Item = usize> {
        self.find(IndexedPath::with_all_below(path))
    }

    /// The numbers of those that have changed the path itself.
    pub fn that_changed_itself(&self, path: &[u8]) -> impl DoubleEndedIterator<Item = usize> {
        self.find(IndexedPath::itself(path))
    }

    /// The numbers of those that have changed one of these files, by whatever name.
    pub fn that_changed_files(&self, files: &IndexedFiles) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.all.len()).filter(move |number| match self.opened.get(number) {
            Some(paths) => files.are_in(paths),
            None => self.index.may_have_changed_one(&self.all[*number].key, files).unwrap_or_default(),
        })
    }

    fn find(&self, path: IndexedPath) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.all.len()).filter(move |number| match self.opened.get(number) {
            Some(paths) => path.is_in(paths),
            None => self.index.may_have_changed(&self.all[*number].key, path).unwrap_or_default(),
        })
    }
}

impl Source {
    fn recording(entry: Entry, library: &Library) -> Source {
        let time = |text: &str| text.parse::<Timestamp>().ok();
        Source {
            directory: library.directory_of(&entry.id),
            started: time(&entry.time).unwrap_or(Timestamp::MIN),
            finished: entry.finished.as_deref().and_then(time),
            key: entry.id.clone(),
            entry: Some(entry),
        }
    }

    /// Whether it is final: no other snapshot will replace it.
    fn is_lasting(&self) -> bool {
        let state = self.entry.as_ref().map(|entry| entry.state);
        !matches!(state, Some(EntryState::Running | EntryState::Unrecovered))
    }
}

/// The finished rescues.
fn rescues(library: &Library) -> Result<Vec<Source>, Error> {
    let names = library.names()?;
    let names = names.iter().filter_map(|name| name.to_str().filter(|name| is_rescue_name(name)));
    Ok(names.filter_map(|name| rescue(library.directory_of(name), name)).collect())
}

fn rescue(directory: PathBuf, name: &str) -> Option<Source> {
    // Its manifest is written just before its restore changes anything.
    let stat = fs::metadata(directory.join(MANIFEST)).ok()?;
    let nanoseconds = i32::try_from(stat.mtime_nsec()).ok()?;
    let written = Timestamp::new(stat.mtime(), nanoseconds).ok()?;
    let key = format!("{name}@{}", written.as_nanosecond());
    Some(Source { directory, entry: None, started: written, finished: Some(written), key })
}

/// Makes the index anew, of all bundles that can be read.
///
/// # Errors
/// The library can't be listed, or the index can't be written.
pub fn rebuild_index(library: &Library) -> Result<(), Error> {
    let seen = index::length(library.root());
    let recordings = library.entries()?.into_iter().map(|entry| Source::recording(entry, library));
    let all = recordings.chain(rescues(library)?).filter(Source::is_lasting);
    let paths = |directory: &Path| Snapshot::open(directory).map(|snapshot| PathHashes::of(&snapshot));
    let known: Vec<_> = all.filter_map(|one| Some((one.key, paths(&one.directory).ok()?))).collect();
    index::rewrite(library.root(), &known, seen)
}
