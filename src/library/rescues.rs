//! The rescues of a library, and the recordings that each is of.
//!
//! A rescue of `undo -n 3` is beside the newest of the three and tells of all. So it stays as long as one of its
//! recordings does, whichever it is named after: without it, that one would look as if it were not undone. What was
//! recovered of a recording beside its first snapshot (`ID-recovered-N`) counts as a rescue here: it goes with the
//! recording.
//! Neighbours: `undone.rs`, which says what the finished ones undo; `delete.rs`, which removes them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Error, ID_LENGTH, Library, is_absent, is_id, is_rescue_name};
use crate::snapshot::Snapshot;
use crate::snapshot::layout::{MANIFEST, UNFINISHED};

/// A rescue of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rescue {
    /// Its directory.
    pub path: PathBuf,
    /// The recordings that its restore was of, or may still need, by their identifiers.
    pub ids: BTreeSet<String>,
    /// When its restore was started, RFC 3339; none of one that can't be read.
    pub started_at: Option<String>,
    /// Whether its restore has not ended.
    pub is_unfinished: bool,
    /// Whether there is nothing in it yet: its restore has changed nothing.
    pub is_empty: bool,
}

/// What the header of a rescue says of its restore.
#[derive(Debug)]
struct PastRestore {
    command: Vec<Vec<u8>>,
    started_at: String,
}

impl PastRestore {
    /// Whether it was one to a time: as long as it is unfinished, it may need the contents of any recording.
    fn is_to_a_time(&self) -> bool {
        matches!(self.command.get(1..3), Some([verb, option]) if verb == b"restore" && option == b"--at")
    }
}

/// The rescues of a library, each of which is read once.
#[derive(Debug)]
pub struct Rescues<'l> {
    library: &'l Library,
    /// Their restores, by the names of their directories; none where the rescue can't be read.
    restores: BTreeMap<String, Option<PastRestore>>,
    /// What follows from that, in the order of the names.
    all: Vec<Rescue>,
}

impl<'l> Rescues<'l> {
    /// Reads those that are there now.
    ///
    /// # Errors
    /// The library can't be listed.
    pub fn of(library: &'l Library) -> Result<Rescues<'l>, Error> {
        let mut rescues = Rescues { library, restores: BTreeMap::new(), all: Vec::new() };
        rescues.refresh()?;
        Ok(rescues)
    }

    /// Reads again which there are.
    ///
    /// # Errors
    /// The library can't be listed.
    pub fn refresh(&mut self) -> Result<(), Error> {
        let mut known = std::mem::take(&mut self.restores);
        let names = self.library.names()?.into_iter().filter_map(|name| name.into_string().ok());
        let names: Vec<String> = names.collect();
        let recordings: BTreeSet<String> = names.iter().filter(|name| is_id(name)).cloned().collect();
        for name in names.into_iter().filter(|name| is_companion(name)) {
            let read = || {
                let header = Snapshot::header_of(&self.library.directory_of(&name)).ok()?;
                Some(PastRestore { command: header.command, started_at: header.started_at })
            };
            // An unfinished one may be written just now.
            let restore = known.remove(&name).filter(|_| !name.ends_with(UNFINISHED)).unwrap_or_else(read);
            self.restores.insert(name, restore);
        }
        self.all = self.put_together(&recordings);
        Ok(())
    }

    /// All of them, in the order of their names.
    pub fn all(&self) -> &[Rescue] {
        &self.all
    }

    fn put_together(&self, all_recordings: &BTreeSet<String>) -> Vec<Rescue> {
        let restores = self.restores.iter();
        let commands: HashMap<&str, &[Vec<u8>]> = restores
            .filter_map(|(name, restore)| {
                Some((name.strip_suffix(UNFINISHED).unwrap_or(name), restore.as_ref()?.command.as_slice()))
            })
            .collect();
        let rescue = |(name, restore): (&String, &Option<PastRestore>)| {
            let path = self.library.directory_of(name);
            let base = name.strip_suffix(UNFINISHED);
            let manifest = || fs::symlink_metadata(path.join(MANIFEST));
            let mut ids = recordings(base.unwrap_or(name), &commands);
            if base.is_some() && restore.as_ref().is_some_and(PastRestore::is_to_a_time) {
                ids.extend(all_recordings.iter().cloned());
            }
            Rescue {
                ids,
                started_at: restore.as_ref().map(|restore| restore.started_at.clone()),
                is_unfinished: base.is_some(),
                is_empty: base.is_some() && manifest().is_err_and(|error| is_absent(&error)),
                path,
            }
        };
        self.restores.iter().map(rescue).collect()
    }

    /// Those of a recording.
    pub fn of_recording(&self, id: &str) -> Vec<Rescue> {
        self.all.iter().filter(|rescue| rescue.ids.contains(id)).cloned().collect()
    }
}

/// Whether a name is that of a rescue, or of what was recovered of a recording beside its first snapshot.
pub fn is_companion(name: &str) -> bool {
    let recovered = name.split_once("-recovered-");
    is_rescue_name(name.strip_suffix(UNFINISHED).unwrap_or(name))
        || recovered.is_some_and(|(id, number)| is_id(id) && number.parse::<u32>().is_ok())
}

/// Whether a name is that of a rescue whose restore has not ended.
pub fn is_unfinished_rescue(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(is_rescue_name)
}

/// The recordings that the rescue with this name belongs to; one of another rescue belongs to those of that.
fn recordings(name: &str, commands: &HashMap<&str, &[Vec<u8>]>) -> BTreeSet<String> {
    let (mut ids, mut seen) = (BTreeSet::new(), HashSet::new());
    let mut names = vec![name.to_owned()];
    while let Some(name) = names.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        if is_id(&name) {
            ids.insert(name);
            continue;
        }
        // The one that it is named after: nothing more is known of a rescue that can't be read.
        names.extend(name.get(..ID_LENGTH).map(str::to_owned));
        if let Some(command) = commands.get(name.as_str()).filter(|_| is_rescue_name(&name)) {
            names.extend(named(command));
        }
    }
    ids
}

/// The recordings and rescues that the command of a restore names.
fn named(command: &[Vec<u8>]) -> Vec<String> {
    let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
    let text = |word: &&[u8]| String::from_utf8_lossy(word).into_owned();
    match words.as_slice() {
        [_, b"undo" | b"redo", ids @ ..] => ids.iter().map(text).filter(|id| is_id(id)).collect(),
        [_, b"restore", snapshot, ..] => {
            let path = text(snapshot);
            let name = Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.map(|name| name.strip_suffix(UNFINISHED).unwrap_or(&name).to_owned());
            name.filter(|name| is_id(name) || is_rescue_name(name)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rescue_is_of_the_recordings_that_its_command_names() {
        let of = |command: &str| -> Vec<Vec<u8>> {
            command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
        };
        let undo = of("agent-snapshot undo aaaaaaaa bbbbbbbb --no-git");
        let redo = of("agent-snapshot restore /l/snapshots/bbbbbbbb-rescue-1 --before");
        let settled = of("agent-snapshot restore /l/snapshots/bbbbbbbb-rescue-2.unfinished --before");
        let alone = of("agent-snapshot restore /l/snapshots/bbbbbbbb --before f");
        let commands: HashMap<&str, &[Vec<u8>]> = HashMap::from([
            ("bbbbbbbb-rescue-1", &undo[..]),
            ("bbbbbbbb-rescue-2", &redo[..]),
            ("bbbbbbbb-rescue-3", &settled[..]),
            ("bbbbbbbb-rescue-4", &alone[..]),
        ]);
        let ids = |name: &str| recordings(name, &commands).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(ids("bbbbbbbb-rescue-1"), "aaaaaaaa bbbbbbbb");
        assert_eq!(ids("bbbbbbbb-rescue-2"), "aaaaaaaa bbbbbbbb");
        assert_eq!(ids("bbbbbbbb-rescue-3"), "aaaaaaaa bbbbbbbb");
        assert_eq!(ids("bbbbbbbb-rescue-4"), "bbbbbbbb");
        assert_eq!(
            ids("bbbbbbbb-rescue-5"),
            "bbbbbbbb",
            "what can't be read is of the one that it is named after"
        );
    }
}
