//! `history`: the recordings that changed a path, the newest first.
//!
//! Neighbours: `library::sources`, which finds them without a look into each bundle; `diff`, which writes what each did.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use indicatif::BinaryBytes;
use jiff::Timestamp;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::diff;
use super::exit::{Exit, UsageError, VerbResult};
use super::log::{COMMAND_WIDTH, age, command_line, counts, marks};
use super::out::{Console, style};
use super::past::{note_use, open_or_name, visible_sources};
use super::paths::{Selection, here, live, quoted, shown};
use super::show::{cut, other_attributes};
use crate::cli::History;
use crate::fs::{file_name, lstat_beneath_directories};
use crate::git::below;
use crate::library::log::Changes;
use crate::library::sources::{Source, Sources};
use crate::library::undone::UndoneRecordings;
use crate::library::{Entry, Library};
use crate::snapshot::blobs::Side;
use crate::snapshot::change::{Differences, PathEffect};
use crate::snapshot::compare::{self, Entries};
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{FileRecord, FileType, Operations, Present, Snapshot};

/// How many programs are named in a line.
const PROGRAMS: usize = 3;

/// Runs `history`.
pub fn run(args: &History, console: &mut Console) -> VerbResult {
    if args.limit == 0 {
        return Err(UsageError("history: --limit is at least 1".to_owned()).into());
    }
    let candidates = live(&args.path)?;
    let none = |path: &[u8], console: &mut Console| {
        console.say(format_args!("no recording in the library has changed {}", quoted(path)));
        Ok(Exit::Finding)
    };
    let Some(library) = Library::find()? else {
        return none(candidates.first().map_or(b"", Vec::as_slice), console);
    };
    let sources = visible_sources(&library, &args.access, console)?;
    let known = candidates.iter().find(|path| sources.that_changed(path).next().is_some());
    let Some(path) = known else { return none(candidates.last().map_or(b"", Vec::as_slice), console) };
    let undone = UndoneRecordings::of(&library)?;
    let mut listed = Vec::new();
    let mut has_more = false;
    for source in sources.that_changed(path).rev().map(|number| sources.get(number)) {
        let Some(entry) = &source.entry else { continue };
        has_more = listed.len() == args.limit;
        if has_more {
            break;
        }
        note_use(source, &library, &args.access)?;
        let Some(snapshot) = open_or_name(source, console) else { continue };
        let Some(mut event) = PathEvent::of(entry, snapshot, path) else { continue };
        let is_undone_there = || {
            let paths = undone.paths_of(&entry.id);
            event.records().all(|record| paths.contain(&record.path))
        };
        let in_part = || undone.last(&entry.id).filter(|_| is_undone_there());
        event.undone = undone.get(&entry.id).or_else(in_part).map(|undone| undone.at.clone());
        listed.push(event);
    }
    if listed.is_empty() {
        return none(path, console);
    }
    let changed_since = is_changed_since(&sources, path, console);
    if args.json {
        console.json(&HistoryJson { path, recordings: &listed, has_more, changed_since })?;
        return Ok(Exit::Success);
    }
    print(args, path, &listed, console)?;
    if has_more {
        writeln!(console, "and older ones (--limit)")?;
    }
    if changed_since {
        let path = quoted(path);
        let running: Vec<&str> = sources.running().map(|entry| entry.id.as_str()).collect();
        let or_one_of_these = match running.as_slice() {
            [] => String::new(),
            running => format!(", unless it was {}, which is not finished yet", running.join(" or ")),
        };
        console.say(format_args!(
            "{path} was changed since then by something that is not in the library, or is not visible here\
             {or_one_of_these}"
        ));
    }
    Ok(Exit::Success)
}

/// What a recording did to the path.
struct PathEvent {
    entry: Entry,
    snapshot: Snapshot,
    /// The numbers of the records of what it changed, at the path or beneath it.
    records: Vec<usize>,
    /// When what it did there was undone, if it is.
    undone: Option<String>,
}

impl PathEvent {
    /// None if the recording has changed nothing there.
    fn of(entry: &Entry, snapshot: Snapshot, path: &[u8]) -> Option<PathEvent> {
        let is_one = |record: &FileRecord| {
            below(&record.path, path).is_some()
                && PathEffect::of(record).lasts()
                && !record.is_inherited_alone()
        };
        let numbers = snapshot.files().iter().enumerate().filter(|(_, record)| is_one(record));
        let records: Vec<usize> = numbers.map(|(number, _)| number).collect();
        (!records.is_empty()).then(|| PathEvent { entry: entry.clone(), snapshot, records, undone: None })
    }

    fn records(&self) -> impl ExactSizeIterator<Item = &FileRecord> {
        self.records.iter().map(|number| &self.snapshot.files()[*number])
    }

    /// The record of the path itself, if nothing beneath it was changed.
    fn only(&self, path: &[u8]) -> Option<&FileRecord> {
        self.records().next().filter(|record| self.records.len() == 1 && record.path == path)
    }

    /// The programs that changed it; those that used it, if the snapshot does not tell them apart.
    fn programs(&self) -> Vec<String> {
        let processes = &self.snapshot.header().processes;
        let image = |id: u32| {
            let index = processes.binary_search_by_key(&id, |process| process.id).ok()?;
            Some(processes[index].image.exe.as_slice())
        };
        let mut users: Vec<(u32, &[u8])> = Vec::new();
        for record in self.records() {
            let changes = record.uses.iter().filter(|used| used.operations.intersects(Operations::CHANGES));
            users.extend(changes.filter_map(|used| {
                Some((used.process, used.exe.as_deref().or_else(|| image(used.process))?))
            }));
            if record.uses.is_empty() {
                users.extend(record.processes.iter().filter_map(|id| Some((*id, image(*id)?))));
            }
        }
        users.sort_unstable();
        let mut names = Vec::new();
        for (_, exe) in users {
            let name = quoted(file_name(exe)).into_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn row(&self, path: &[u8], base: &[u8]) -> [String; 3] {
        let mut programs = self.programs();
        if programs.len() > PROGRAMS {
            programs.truncate(PROGRAMS);
            programs.push("…".to_owned());
        }
        let programs = programs.join(" ");
        match self.only(path) {
            Some(record) => [effect(record, base), sizes(record), programs],
            None => [self.counts(), String::new(), programs],
        }
    }

    fn counts(&self) -> String {
        let mut changes = Changes::default();
        self.records().for_each(|record| changes.add(record, PathEffect::of(record)));
        counts(changes.counts())
    }
}

/// What became of the path, in words.
fn effect(record: &FileRecord, base: &[u8]) -> String {
    let renamed = |word: &str, other: &Option<Vec<u8>>| {
        other.as_ref().map(|other| format!("renamed {word} {}", shown(other, base)))
    };
    match (record.before.present(), record.after.present()) {
        (Some(before), Some(after)) => {
            let differences = Differences::between(record, before, after);
            let mut words = Vec::new();
            if differences.file_type {
                words.push(format!("became a {}", after.file_type.name().replace('_', " ")));
            } else if differences.content || differences.target {
                words.push("changed".to_owned());
            }
            other_attributes(differences, before, after, &mut words);
            words.join(", ")
        }
        (None, _) => renamed("from", &record.renamed_from).unwrap_or_else(|| "created".to_owned()),
        _ => renamed("to", &record.renamed_to).unwrap_or_else(|| "deleted".to_owned()),
    }
}

/// The sizes before and after, of a file.
fn sizes(record: &FileRecord) -> String {
    let size = |at: Option<&Present>| {
        at.filter(|at| at.file_type == FileType::File).map(|at| BinaryBytes(at.size).to_string())
    };
    match (size(record.before.present()), size(record.after.present())) {
        (Some(before), Some(after)) if before != after => format!("{before} → {after}"),
        (before, after) => after.or(before).unwrap_or_default(),
    }
}

/// Whether what is there now differs from what the last recording or restore has left.
fn is_changed_since(sources: &Sources, path: &[u8], console: &mut Console) -> bool {
    let finished = |source: &Source| source.finished.unwrap_or(Timestamp::MAX);
    let mut found: Vec<_> = sources.that_changed(path).map(|number| sources.get(number)).collect();
    found.sort_by_key(|source| std::cmp::Reverse(finished(source)));
    let mut newest: Option<(Timestamp, Vec<FileRecord>)> = None;
    for source in found {
        // One that finished later may have changed it earlier, if both ran at the same time.
        if newest.as_ref().is_some_and(|(last, _)| finished(source) <= *last) {
            break;
        }
        let Some(snapshot) = open_or_name(source, console) else { return false };
        let records = snapshot.files().iter().filter(|record| below(&record.path, path).is_some());
        let records: Vec<_> = records.filter(|record| PathEffect::of(record).is_undone()).cloned().collect();
        let last = |record: &FileRecord| record.changed_between(Timestamp::MIN, finished(source)).1;
        let last = records.iter().map(last).max().unwrap_or_else(|| finished(source));
        if newest.as_ref().is_none_or(|(newest, _)| last > *newest) {
            newest = Some((last, records));
        }
    }
    let records = newest.map(|(_, records)| records).unwrap_or_default();
    records.iter().any(|record| !is_as_left(&record.path, record) && !has_other_names(&record.path))
}

/// Whether what is at `path` now is what `record` says was left.
fn is_as_left(path: &[u8], record: &FileRecord) -> bool {
    let left = compare::recorded(record, Side::After, Entries::Ignore);
    if matches!(lstat_beneath_directories(path), Ok(Err(_))) {
        return record.after.present().is_none();
    }
    // A file that may not be read is not reported.
    compare::live(path, &left).map_or(true, |now| now == left)
}

/// Whether the file there has other names: a recording that wrote to one of them knows it by that one alone.
fn has_other_names(path: &[u8]) -> bool {
    let stat = crate::fs::lstat(path).ok().flatten().map(|stat| crate::snapshot::Stat::from(&stat));
    stat.is_some_and(|stat| stat.is_regular() && stat.nlink > 1)
}

fn print(args: &History, path: &[u8], listed: &[PathEvent], console: &mut Console) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let here = here();
    let base = if below(path, &here).is_some() { here.as_slice() } else { b"/" };
    let rows: Vec<[String; 3]> = listed.iter().map(|event| event.row(path, &here)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [effects, sizes, programs] = [width(0), width(1), width(2)];
    for (event, [effect, size, program]) in listed.iter().zip(&rows) {
        let entry = &event.entry;
        let size = if sizes > 0 { format!("{size:sizes$}  ") } else { String::new() };
        let head =
            format!("{}  {:>4}  {effect:effects$}  {size}{program:programs$}  ", entry.id, age(entry, now));
        let marks = marks(entry, event.undone.as_ref().map(|_| "undone"));
        let width = console
            .format
            .width
            .map_or(COMMAND_WIDTH, |width| width.saturating_sub(head.chars().count() + marks.len()).max(20));
        let command = cut(&command_line(entry), width);
        let marks = console.paint(style::CHANGED, marks).to_string();
        writeln!(console, "{head}{command}{marks}")?;
        if args.diff {
            let selection = Selection::new(&event.snapshot, &[OsStr::from_bytes(path).to_owned()])?;
            diff::write_patch(&event.snapshot, &selection, base, console)?;
        }
    }
    Ok(())
}

/// The JSON of the list.
struct HistoryJson<'a> {
    path: &'a [u8],
    recordings: &'a [PathEvent],
    has_more: bool,
    changed_since: bool,
}

impl Serialize for HistoryJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("path", self.path)?;
        object.put("recordings", &self.recordings)?;
        object.put("more", &self.has_more)?;
        object.put("changed_since", &self.changed_since)?;
        object.0.end()
    }
}

impl Serialize for PathEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        let entry = &self.entry;
        object.put("id", &entry.id)?;
        object.put("time", &entry.time)?;
        object.put("command", &entry.command)?;
        object.put_some("session", &entry.session)?;
        object.put("state", &entry.state)?;
        object.put_some("undone", &self.undone)?;
        object.put("programs", &self.programs())?;
        let changes: Vec<_> = self.records().map(PathChangeJson).collect();
        object.put("changes", &changes)?;
        object.0.end()
    }
}

/// What became of one path.
struct PathChangeJson<'a>(&'a FileRecord);

impl Serialize for PathChangeJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PathChangeJson(record) = self;
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("path", &record.path)?;
        object.put(
            "effect",
            match PathEffect::of(record) {
                PathEffect::Created => "created",
                PathEffect::Deleted => "deleted",
                _ => "changed",
            },
        )?;
        for (key, other) in [("renamed_from", &record.renamed_from), ("renamed_to", &record.renamed_to)] {
            if let Some(other) = other {
                object.text(key, other)?;
            }
        }
        let size = |at: Option<&Present>| at.filter(|at| at.file_type == FileType::File).map(|at| at.size);
        object.put_some("size_before", &size(record.before.present()))?;
        object.put_some("size_after", &size(record.after.present()))?;
        object.put("processes", &record.processes)?;
        object.0.end()
    }
}
