//! What is damaged, missing or foreign in a library, and its repair.
//!
//! Everything is read: each bundle, and each content that it has. A repair makes again what follows from the bundles,
//! completes what was killed, and removes no bundle.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::{fs, io};

use serde::Serialize;

use super::error::failed;
use super::index::INDEX;
use super::log::{self, Event, Log};
use super::rescues::{is_companion, is_unfinished_rescue};
use super::sources::rebuild_index;
use super::{
    Entry, Error, ID_LENGTH, KEYLESS, Library, RECALL, RECEIPTS, SNAPSHOTS, audit, is_id, notes, retention,
};
use crate::snapshot::layout::{self, SnapshotDir};
use crate::snapshot::recover::{self, Recovery};
use crate::snapshot::source::Contents;
use crate::snapshot::usage::stays_locked;
use crate::snapshot::{self, Snapshot, printable};

/// What is wrong with one thing in the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Its path in the library.
    pub path: String,
    /// What kind of problem it is.
    pub kind: ProblemKind,
    /// What was found.
    pub why: String,
}

/// What kind of problem something has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// It can't be read whole, or contradicts itself.
    Damaged,
    /// Its permissions, or a rule that is enforced, forbid to read it: it may be whole.
    Unreadable,
    /// The log tells of it, and it is not there.
    Missing,
    /// The log does not tell of it.
    Unlisted,
    /// The recording was killed, and not recovered.
    Unrecovered,
    /// A killed deletion, or a recording or restore that was killed before it had begun, has left it.
    Leftover,
    /// The rescue of an interrupted restore.
    Unfinished,
    /// It is not ours.
    Foreign,
}

impl ProblemKind {
    /// The kind of problem that an error in reading a bundle shows.
    pub fn of(error: &snapshot::Error) -> ProblemKind {
        match error {
            snapshot::Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                ProblemKind::Unreadable
            }
            _ => ProblemKind::Damaged,
        }
    }

    /// Whether something should be done about it.
    pub fn is_finding(self) -> bool {
        self != ProblemKind::Foreign
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProblemKind::Damaged => "damaged",
            ProblemKind::Unreadable => "not readable",
            ProblemKind::Missing => "missing",
            ProblemKind::Unlisted => "not in the log",
            ProblemKind::Unrecovered => "not recovered",
            ProblemKind::Leftover => "left over",
            ProblemKind::Unfinished => "unfinished",
            ProblemKind::Foreign => "foreign",
        })
    }
}

/// What a check has found.
#[derive(Debug, Default)]
pub struct Findings {
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// How many snapshots were read.
    pub checked: usize,
}

impl Findings {
    /// Adds a problem with what has a path in the library.
    pub fn add(&mut self, path: impl Into<String>, kind: ProblemKind, why: impl Into<String>) {
        self.problems.push(Problem { path: path.into(), kind, why: why.into() });
    }
}

/// Reads all of `library`, and tells `progress` before each of its directories which one it is, and of how many.
///
/// # Errors
/// It can't be listed.
pub fn check(library: &Library, progress: &dyn Fn(usize, usize)) -> Result<Findings, Error> {
    let mut findings = Findings::default();
    let names = library.names()?;
    let log = log::read(library.root())?;
    if log.damaged > 0 {
        findings.add(log::LOG, ProblemKind::Damaged, format!("{} of its lines can't be read", log.damaged));
    }
    check_root(library, &mut findings)?;
    let leftovers = library.leftovers(&log)?;
    let listed: HashSet<&str> = log.recorded.iter().map(|entry| entry.id.as_str()).collect();
    for (number, name) in names.iter().enumerate() {
        progress(number, names.len());
        let path = library.snapshots().join(name);
        let shown = format!("{SNAPSHOTS}/{}", printable(name.as_encoded_bytes()));
        match name.to_str() {
            _ if leftovers.iter().any(|leftover| leftover.path == path) => {
                findings.add(shown, ProblemKind::Leftover, "its recording was deleted");
            }
            Some(id) if is_id(id) => check_recording(id, &path, listed.contains(id), &shown, &mut findings),
            // `restore` knows those.
            Some(name) if is_unfinished_rescue(name) => {}
            Some(name) if is_companion(name) => check_companion(&path, &shown, &mut findings),
            _ => findings.add(shown, ProblemKind::Foreign, "it is no snapshot of the library"),
        }
    }
    let is_there = |id: &str| names.iter().any(|name| name == id);
    let missing: HashSet<&str> = listed.into_iter().filter(|id| !is_there(id)).collect();
    // What was deleted meanwhile has its line in the log by now.
    let now = if missing.is_empty() { Log::default() } else { log::read(library.root())? };
    let mut missing: Vec<&str> = missing.into_iter().filter(|id| !now.deleted.contains_key(*id)).collect();
    missing.retain(|id| !leftovers.iter().any(|leftover| leftover.is_of(id)));
    missing.sort_unstable();
    for id in missing {
        findings.add(
            format!("{SNAPSHOTS}/{id}"),
            ProblemKind::Missing,
            "the log tells of it, and it is not there",
        );
    }
    Ok(findings)
}

/// Names what is foreign beside the directory of the snapshots.
fn check_root(library: &Library, findings: &mut Findings) -> Result<(), Error> {
    let own = [
        SNAPSHOTS,
        RECEIPTS,
        RECALL,
        log::LOG,
        log::NEW,
        INDEX,
        KEYLESS,
        audit::AUDIT,
        retention::STAMP,
        notes::NOTES,
        notes::OLD,
    ];
    for entry in fs::read_dir(library.root()).map_err(failed("list", library.root()))? {
        let name = entry.map_err(failed("list", library.root()))?.file_name();
        if !own.iter().any(|own| name == *own) {
            let name = printable(name.as_encoded_bytes()).into_owned();
            findings.add(name, ProblemKind::Foreign, "it is no part of the library");
        }
    }
    Ok(())
}

fn check_recording(id: &str, path: &Path, is_listed: bool, shown: &str, findings: &mut Findings) {
    let is_alive = recover::recorder(path).map(|begin| begin.recorder.is_alive() || begin.front.is_alive());
    if is_alive == Some(true) || stays_locked(path) {
        return;
    }
    if is_alive == Some(false) {
        findings.add(shown, ProblemKind::Unrecovered, "its recording was killed");
        return;
    }
    if recover::has_not_begun(path) {
        findings.add(shown, ProblemKind::Leftover, "its recording was killed before it had begun");
        return;
    }
    findings.checked += 1;
    match prove(path) {
        Err(error) => findings.add(shown, ProblemKind::of(&error), error.to_string()),
        Ok(snapshot) => {
            let header = snapshot.header();
            if !header.kind.is_recording() || header.id.get(..ID_LENGTH) != Some(id) {
                findings.add(shown, ProblemKind::Damaged, "it holds another snapshot");
            } else if !is_listed {
                findings.add(shown, ProblemKind::Unlisted, "the log does not tell of it");
            }
            for kept in layout::damaged_journals(path) {
                let why = format!(
                    "the journal that it was recovered from is damaged (agent-snapshot recover --discard {} removes \
                     it)",
                    printable(path.as_os_str().as_encoded_bytes())
                );
                let name = kept.file_name().unwrap_or_default().to_string_lossy();
                findings.add(format!("{shown}/{name}"), ProblemKind::Damaged, why);
            }
        }
    }
}

fn check_companion(path: &Path, shown: &str, findings: &mut Findings) {
    findings.checked += 1;
    if let Err(error) = prove(path) {
        findings.add(shown, ProblemKind::of(&error), error.to_string());
    }
}

/// Opens a bundle, and reads each content that it has.
fn prove(path: &Path) -> Result<Snapshot, snapshot::Error> {
    let snapshot = Snapshot::open(path)?;
    Contents::new(&snapshot).prove_all()?;
    Ok(snapshot)
}

/// What a repair has done.
#[derive(Debug, Default)]
pub struct Repairs {
    /// The recordings that were recovered.
    pub recovered: Vec<String>,
    /// The rescues of interrupted restores that were taken back, as paths in the library.
    pub taken_back: Vec<String>,
    /// What could not be repaired, and why.
    pub failed: Vec<(String, String)>,
    /// The bytes that are free.
    pub freed: u64,
}

/// Recovers killed recordings, completes deletions, and makes again what follows from the bundles.
///
/// # Errors
/// The library can't be read or written.
pub fn repair(library: &Library) -> Result<Repairs, Error> {
    let mut repairs = Repairs::default();
    for name in library.names()? {
        let Some(id) = name.to_str().filter(|name| is_id(name)) else { continue };
        let path = library.directory_of(id);
        let is_killed = recover::recorder(&path)
            .is_some_and(|begin| !begin.recorder.is_alive() && !begin.front.is_alive());
        if !is_killed {
            continue;
        }
        let recovered = SnapshotDir::create(&path).and_then(|dir| recover::recover(dir, HashMap::new()));
        match recovered {
            Ok(Recovery::Done(_)) => repairs.recovered.push(id.to_owned()),
            Ok(Recovery::Nothing | Recovery::Unneeded) => {}
            // Another process recovers it just now.
            Err(snapshot::Error::InUse(_)) => {}
            Err(error) => repairs.failed.push((id.to_owned(), error.to_string())),
        }
    }
    repairs.freed = library.remove_leftovers()?;
    rebuild(library)?;
    Ok(repairs)
}

/// Makes again what follows from the bundles: the log, and the index of changed paths.
fn rebuild(library: &Library) -> Result<(), Error> {
    rebuild_log(library)?;
    rebuild_index(library)
}

fn rebuild_log(library: &Library) -> Result<(), Error> {
    log::replace(library.root(), |log| {
        let mut last: HashMap<&str, &Entry> = HashMap::new();
        last.extend(log.recorded.iter().map(|entry| (entry.id.as_str(), entry)));
        // `log` counts these.
        let mut events: Vec<Event> = log.evicted().into_iter().map(Event::Recorded).collect();
        for name in library.names()? {
            let Some(id) = name.to_str().filter(|name| is_id(name)) else { continue };
            let known = last.get(id).map(|entry| (*entry).clone());
            let entry = match Snapshot::open(&library.directory_of(id)) {
                Ok(snapshot) if snapshot.header().kind.is_recording() => Some(Entry::again(&snapshot, known)),
                _ => known,
            };
            events.extend(entry.map(Event::Recorded));
        }
        events.sort_by_key(|event| match event {
            Event::Recorded(entry) => entry.time.clone(),
            Event::Deleted(deletion) => deletion.time.clone(),
        });
        events.extend(log.deleted.into_values().map(Event::Deleted));
        Ok(Some(events))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Place;
    use crate::library::index::PathHashes;
    use crate::snapshot::Side;
    use crate::snapshot::samples::{commit_into, created, header, stored};
    use crate::snapshot::{Header, blobs};

    /// A library with two recordings, one of them in the log.
    fn sample() -> (tempfile::TempDir, Library) {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::create(&Place { root: dir.path().join("library"), instead: None }).unwrap();
        for id in ["aaaaaaaa", "bbbbbbbb"] {
            let target = SnapshotDir::create(&library.directory_of(id)).unwrap();
            let header = Header { id: format!("{id}cccc"), ..header() };
            commit_into(target, header, |writer| {
                let path = b"/nowhere/f";
                let mut file = tempfile::tempfile().unwrap();
                std::io::Write::write_all(&mut file, format!("{id} has content").as_bytes()).unwrap();
                let key = blobs::blob_key(Side::After, path);
                let kept = writer.store_file(&key, &file, blobs::StoreLimit::NONE).unwrap();
                vec![created(path, stored(&kept))]
            });
        }
        let logged = Snapshot::open(&library.directory_of("aaaaaaaa")).unwrap();
        library.append(&Entry::of(&logged), &PathHashes::of(&logged)).unwrap();
        (dir, library)
    }

    fn found(library: &Library) -> Vec<(String, ProblemKind)> {
        check(library, &|_, _| {})
            .unwrap()
            .problems
            .into_iter()
            .map(|problem| (problem.path, problem.kind))
            .collect()
    }

    #[test]
    fn log_is_made_again() {
        let (_dir, library) = sample();
        assert_eq!(found(&library), [("snapshots/bbbbbbbb".to_owned(), ProblemKind::Unlisted)]);
        let log = library.root().join(log::LOG);
        let text = fs::read_to_string(&log).unwrap();
        fs::write(&log, text.replace("aaaaaaaa", "zzzzzzzz") + "{\"event\":\"rec\n{\"event\":\"later\"}\n")
            .unwrap();
        let problems = found(&library);
        for (path, kind) in [
            ("log.jsonl", ProblemKind::Damaged),
            ("snapshots/aaaaaaaa", ProblemKind::Unlisted),
            ("snapshots/zzzzzzzz", ProblemKind::Missing),
        ] {
            assert!(problems.contains(&(path.to_owned(), kind)), "{path}: {problems:?}");
        }
        repair(&library).unwrap();
        assert_eq!(found(&library), []);
        fs::remove_file(&log).unwrap();
        let before = library.entries().unwrap();
        repair(&library).unwrap();
        assert_eq!(found(&library), []);
        assert_eq!(library.entries().unwrap(), before);
    }

    #[test]
    fn each_damage_is_found_and_nothing_is_deleted_for_it() {
        let (_dir, library) = sample();
        repair(&library).unwrap();
        fs::write(library.root().join("mine"), "").unwrap();
        fs::create_dir(library.directory_of("other")).unwrap();
        fs::create_dir(library.directory_of("aaaaaaaa-rescue-1")).unwrap();
        let blobs = library.directory_of("aaaaaaaa").join("blobs.parquet");
        let mut bytes = fs::read(&blobs).unwrap();
        // In the middle of the content of its only blob.
        let at = bytes.windows(7).position(|bytes| bytes == b"content").unwrap();
        bytes[at] = b'C';
        fs::write(&blobs, bytes).unwrap();
        fs::remove_file(library.directory_of("bbbbbbbb").join("blobs.parquet")).unwrap();
        let expected = [
            ("mine", ProblemKind::Foreign),
            ("snapshots/aaaaaaaa", ProblemKind::Damaged),
            ("snapshots/aaaaaaaa-rescue-1", ProblemKind::Damaged),
            ("snapshots/bbbbbbbb", ProblemKind::Damaged),
            ("snapshots/other", ProblemKind::Foreign),
        ];
        let expected = expected.map(|(path, kind)| (path.to_owned(), kind));
        assert_eq!(found(&library), expected);
        repair(&library).unwrap();
        assert_eq!(found(&library), expected);
        assert_eq!(library.entries().unwrap().len(), 2);
    }
}
