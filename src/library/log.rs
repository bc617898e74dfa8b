//! `log.jsonl`: a line for each recording, so that listing many takes no look into each bundle, and one for each that
//! was deleted.
//!
//! Appended under a lock on the file itself. A line that a killed process has left unfinished, or one of a later
//! version, is passed over: `entries` finds the recording by its directory.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::ID_LENGTH;
use super::error::{Error, failed};
use crate::fs::parent_of;
use crate::git;
use crate::snapshot::change::PathEffect;
use crate::snapshot::{FileRecord, Header, Snapshot, SnapshotKind, layout, printable, recover};

/// The log's name in the library.
pub const LOG: &str = "log.jsonl";

/// The name of a log that is to replace it.
pub const NEW: &str = "log.jsonl.new";

/// How many deletions a compacted log keeps that nothing in the library depends on.
const KEPT_DELETIONS: usize = 1000;

/// How many places of a recording's changes are kept; more are merged into the directories above them.
const PLACES: usize = 16;

/// What a line tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "most are recordings")]
pub enum Event {
    /// A recording has ended, or has a first snapshot.
    Recorded(Entry),
    /// A recording was deleted.
    Deleted(Deletion),
}

/// That a recording was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Its identifier.
    pub id: String,
    /// When, RFC 3339.
    pub time: String,
    /// Whether it was one of the newest of its working tree, which alone exceeded the limit of size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evicted: bool,
}

/// What is known of a recording without opening its bundle. Nothing in it is flattened, for serde would buffer each line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The beginning of its identifier, the name of its directory.
    pub id: String,
    /// When the command was started, RFC 3339.
    pub time: String,
    /// When the last process of its tree had ended, RFC 3339; none if it goes on or an earlier version wrote the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<String>,
    /// The command and its arguments.
    pub command: Vec<ByteText>,
    /// What it is called, if that is a line inside of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<ByteText>,
    /// The directory that it was started in.
    pub cwd: ByteText,
    /// The root of the Git working tree that this directory is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_tree: Option<ByteText>,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Which step of that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// What it was made by.
    #[serde(default, skip_serializing_if = "is_no_step")]
    pub kind: SnapshotKind,
    /// Its `--name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The exit status of the command.
    pub status: i32,
    /// How many paths it created.
    pub created: u64,
    /// How many it changed.
    pub changed: u64,
    /// How many it deleted.
    pub deleted: u64,
    /// Whether it changed Git's state; that is not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git: bool,
    /// Directories at or below which all that it changed is.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub places: BTreeSet<ByteText>,
    /// How it ended, or that it has not.
    pub state: EntryState,
    /// Whether the recording has a gap.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// How many of its calls rules refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Whether it came from an archive: it tells nothing of the files of this machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
}

fn is_no_step(kind: &SnapshotKind) -> bool {
    *kind == SnapshotKind::Recording
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How a recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// With its command.
    Ended,
    /// It goes on.
    Running,
    /// The process that the user waited for was killed.
    Killed,
    /// All of it was killed, and it has not been recovered.
    Unrecovered,
}

/// How many paths a recording changed, and whether Git's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words say it")]
pub struct ChangeCounts {
    pub created: u64,
    pub changed: u64,
    pub deleted: u64,
    /// Whether Git's state was changed; it is not counted.
    pub git: bool,
}

impl ChangeCounts {
    /// Whether anything was changed.
    pub fn any(self) -> bool {
        self != ChangeCounts::default()
    }
}

/// The changes of a recording, as its records are seen one by one.
#[derive(Debug, Default)]
pub struct Changes {
    counts: ChangeCounts,
    places: BTreeSet<ByteText>,
}

impl Changes {
    /// How many there are.
    pub fn counts(&self) -> ChangeCounts {
        self.counts
    }

    /// Adds a record whose path had this effect.
    pub fn add(&mut self, record: &FileRecord, effect: PathEffect) {
        // A log that the shell redirects to is not a change that the command made.
        if record.is_inherited_alone() {
            return;
        }
        match effect {
            effect if record.is_git_state => {
                if !effect.lasts() {
                    return;
                }
                self.counts.git = true;
            }
            PathEffect::Created => self.counts.created += 1,
            PathEffect::Changed => self.counts.changed += 1,
            PathEffect::Deleted => self.counts.deleted += 1,
            PathEffect::MountPoint | PathEffect::Temporary | PathEffect::Unaltered | PathEffect::None => {
                return;
            }
        }
        let git_dir = record.is_git_state.then(|| git::git_dir_of(&record.path)).flatten();
        let parent = git_dir.unwrap_or_else(|| directory_above(&record.path));
        if !self.places.iter().any(|place| is_at_or_below(parent, &place.0)) {
            self.places.retain(|place| !is_at_or_below(&place.0, parent));
            self.places.insert(ByteText(parent.to_vec()));
        }
        while self.places.len() > PLACES {
            let Some(deepest) = self.places.iter().max_by_key(|place| depth(&place.0)).cloned() else {
                break;
            };
            let above = directory_above(&deepest.0).to_vec();
            self.places.retain(|place| !is_at_or_below(&place.0, &above));
            self.places.insert(ByteText(above));
        }
    }
}

/// The directory above a path; of `/` itself.
fn directory_above(path: &[u8]) -> &[u8] {
    parent_of(path).unwrap_or(b"/")
}

fn depth(path: &[u8]) -> usize {
    std::iter::successors(parent_of(path), |above| parent_of(above)).count()
}

/// Whether `path` is `above`, or lies below it.
pub fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    git::below(path, above).is_some()
}

/// The root of the Git working tree that a directory is in.
pub fn working_tree(directory: &[u8]) -> Option<Vec<u8>> {
    git::working_tree_of(Path::new(OsStr::from_bytes(directory))).map(|root| root.into_os_string().into_vec())
}

impl Entry {
    /// The entry of a recording with this header, which made these changes.
    pub fn new(header: &Header, Changes { counts, places }: Changes) -> Entry {
        let state = match header {
            Header { running: true, .. } => EntryState::Running,
            Header { killed: true, .. } | Header { recovered: true, .. } => EntryState::Killed,
            _ => EntryState::Ended,
        };
        Entry {
            id: header.id.chars().take(ID_LENGTH).collect(),
            time: header.started_at.clone(),
            finished: (state != EntryState::Running).then(|| header.finished_at.clone()),
            command: header.command.iter().cloned().map(ByteText).collect(),
            title: header.title.clone().map(ByteText),
            cwd: ByteText(header.start_cwd.clone()),
            working_tree: if header.imported {
                header.working_tree.clone().map(ByteText)
            } else {
                working_tree(&header.start_cwd).map(ByteText)
            },
            session: header.session.clone(),
            step: header.step,
            kind: header.kind,
            name: header.name.clone(),
            status: header.exit_status,
            created: counts.created,
            changed: counts.changed,
            deleted: counts.deleted,
            git: counts.git,
            places,
            state,
            incomplete: !header.complete,
            refused: header.refused_calls(),
            imported: header.imported,
        }
    }

    /// What it changed.
    pub fn changes(&self) -> ChangeCounts {
        let Entry { created, changed, deleted, git, .. } = *self;
        ChangeCounts { created, changed, deleted, git }
    }

    /// The entry of the recording in a snapshot.
    pub fn of(snapshot: &Snapshot) -> Entry {
        let mut changes = Changes::default();
        snapshot.files().iter().for_each(|record| changes.add(record, PathEffect::of(record)));
        Entry::new(snapshot.header(), changes)
    }

    /// The entry of the recording in a snapshot of which the log may tell already.
    pub fn again(snapshot: &Snapshot, known: Option<Entry>) -> Entry {
        let mut entry = Entry::of(snapshot);
        // If the working tree is gone, only the log still has it.
        entry.working_tree = known.and_then(|known| known.working_tree).or(entry.working_tree);
        // Its recorder was killed after the first snapshot.
        let path = snapshot.path();
        if entry.state == EntryState::Running && !layout::is_locked(path) && recover::recorder(path).is_none()
        {
            entry.state = EntryState::Killed;
        }
        entry
    }

    /// Whether it stays until somebody deletes it: it has a name, or was imported.
    pub fn is_to_stay(&self) -> bool {
        self.name.is_some() || self.imported
    }

    /// Whether what the recording changed may be at a path or below it.
    pub fn may_change(&self, path: &[u8]) -> bool {
        self.places.iter().any(|place| is_at_or_below(&place.0, path) || is_at_or_below(path, &place.0))
    }

    /// The words of the command in one line, or its title.
    pub fn command_line(&self) -> String {
        if let Some(title) = &self.title {
            return printable(&title.0).into_owned();
        }
        let words: Vec<_> = self.command.iter().map(|word| printable(&word.0)).collect();
        words.join(" ")
    }

    /// The entry of a recording that has no snapshot yet, by its journal.
    pub fn unfinished(path: &Path) -> Option<Entry> {
        let journaled = recover::header_of(path)?;
        let is_alive = recover::recorder(path).is_some_and(|begin| begin.recorder.is_alive());
        let state = if is_alive { EntryState::Running } else { EntryState::Unrecovered };
        Some(Entry { state, incomplete: !is_alive, ..Entry::new(&journaled, Changes::default()) })
    }
}

/// Bytes that are text in most cases: a string in JSON, or else an object with their base64.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteText(pub Vec<u8>);

impl AsRef<[u8]> for ByteText {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ByteTextForm {
    Text(String),
    Bytes { base64: String },
}

impl Serialize for ByteText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match String::from_utf8(self.0.clone()) {
            Ok(text) => ByteTextForm::Text(text),
            Err(error) => ByteTextForm::Bytes { base64: STANDARD.encode(error.into_bytes()) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ByteText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ByteText, D::Error> {
        struct ByteTextVisitor;
        impl<'de> serde::de::Visitor<'de> for ByteTextVisitor {
            type Value = ByteText;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, or an object with base64")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteText, E> {
                Ok(ByteText(text.as_bytes().to_vec()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<ByteText, A::Error> {
                #[derive(Deserialize)]
                struct Encoded {
                    base64: String,
                }
                let Encoded { base64 } =
                    Encoded::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                STANDARD.decode(base64).map(ByteText).map_err(serde::de::Error::custom)
            }
        }
        deserializer.deserialize_any(ByteTextVisitor)
    }
}

/// What the log tells of.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The recordings, in the order of their lines; those that were deleted, too.
    pub recorded: Vec<Entry>,
    /// The recordings that were deleted, by their identifiers.
    pub deleted: HashMap<String, Deletion>,
    /// How many lines are no JSON.
    pub damaged: usize,
    /// How many lines tell what this version does not know.
    pub unknown: usize,
}

impl Log {
    /// The recordings that were deleted though they were among the newest of their working tree.
    pub fn evicted(&self) -> Vec<Entry> {
        let is_evicted =
            |entry: &&Entry| self.deleted.get(&entry.id).is_some_and(|deletion| deletion.evicted);
        let last: HashMap<&str, &Entry> =
            self.recorded.iter().filter(is_evicted).map(|entry| (entry.id.as_str(), entry)).collect();
        last.into_values().cloned().collect()
    }

    /// The lines that a smaller log needs: the last one of each recording that `is_there`, was evicted or was never
    /// deleted, and of the deletions those that `is_needed` names, those of evicted ones, and the newest.
    pub fn compacted(
        mut self,
        is_there: impl Fn(&str) -> bool,
        is_needed: impl Fn(&str) -> bool,
    ) -> Vec<Event> {
        // An import may have made a deleted one again.
        let is_kept = |entry: &Entry| {
            is_there(&entry.id) || self.deleted.get(&entry.id).is_none_or(|deletion| deletion.evicted)
        };
        let last: HashMap<String, usize> =
            self.recorded.iter().enumerate().map(|(at, entry)| (entry.id.clone(), at)).collect();
        let recorded = std::mem::take(&mut self.recorded).into_iter().enumerate();
        let recorded = recorded.filter(|(at, entry)| last.get(&entry.id) == Some(at) && is_kept(entry));
        let mut events: Vec<Event> = recorded.map(|(_, entry)| Event::Recorded(entry)).collect();
        let mut deleted: Vec<Deletion> = self.deleted.into_values().collect();
        deleted.sort_by(|one, other| other.time.cmp(&one.time));
        let deleted = deleted.into_iter().enumerate();
        let deleted = deleted.filter(|(at, one)| *at < KEPT_DELETIONS || one.evicted || is_needed(&one.id));
        events.extend(deleted.map(|(_, deletion)| Event::Deleted(deletion)));
        events
    }

    /// Whether compacting would remove more than a third of the lines, and none that this version can't read.
    pub fn is_worth_compacting(&self) -> bool {
        let is_gone = |entry: &&Entry| self.deleted.get(&entry.id).is_some_and(|deletion| !deletion.evicted);
        let deletions = self.deleted.values().filter(|deletion| !deletion.evicted).count();
        let needless =
            self.recorded.iter().filter(is_gone).count() + deletions.saturating_sub(KEPT_DELETIONS);
        let lines = self.recorded.len() + self.deleted.len();
        needless > KEPT_DELETIONS && needless > lines / 3 && self.damaged == 0 && self.unknown == 0
    }
}

/// Reads the log.
pub fn read(root: &Path) -> Result<Log, Error> {
    let path = root.join(LOG);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Log::default()),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let mut log = Log::default();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match event(line) {
            Ok(Event::Recorded(entry)) => log.recorded.push(entry),
            Ok(Event::Deleted(deletion)) => drop(log.deleted.insert(deletion.id.clone(), deletion)),
            // A line of a later version is no damage.
            Err(error) if error.is_data() => log.unknown += 1,
            Err(_) => log.damaged += 1,
        }
    }
    Ok(log)
}

/// Replaces the log by these events, if there are any, while nobody appends to it.
pub fn replace(
    root: &Path,
    events: impl FnOnce(Log) -> Result<Option<Vec<Event>>, Error>,
) -> Result<(), Error> {
    let path = root.join(LOG);
    let _locked = open_locked(&path).map_err(failed("open", &path))?;
    let Some(events) = events(read(root)?)? else { return Ok(()) };
    let write = || -> io::Result<()> {
        let mut text = Vec::new();
        for event in &events {
            serde_json::to_writer(&mut text, event)?;
            text.push(b'\n');
        }
        let new = root.join(NEW);
        let mut file = OpenOptions::new().write(true).truncate(true).create(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(new, &path)
    };
    write().map_err(failed("write", &path))
}

/// What a line tells.
fn event(line: &[u8]) -> serde_json::Result<Event> {
    // If serde has to look for the tag, it buffers the line.
    if line.starts_with(br#"{"event":"recorded""#) {
        return serde_json::from_slice(line).map(Event::Recorded);
    }
    serde_json::from_slice(line)
}

/// Appends a line.
pub fn append(root: &Path, event: &Event) -> Result<(), Error> {
    append_line(&root.join(LOG), event)
}

/// Appends a line to a file that several processes append to.
pub fn append_line(path: &Path, line: &impl Serialize) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        let mut file = open_locked(path)?;
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if !ends_a_line(&mut file)? {
            text.insert(0, b'\n');
        }
        file.write_all(&text)
    };
    write().map_err(failed("write", path))
}

/// Opens a file for appending, and locks it: the one that has the name then.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::LockExclusive) {
            // Without locks, lines are still appended whole in most cases.
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let (opened, named) = (file.metadata()?, std::fs::metadata(path));
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino())) {
            return Ok(file);
        }
    }
}

/// Whether a file is empty or ends with a newline: a killed process may have left a part of a line.
fn ends_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::samples::{created, header, present};
    use crate::snapshot::{FileRecord, State};

    fn entry(paths: &[(&str, bool)]) -> Entry {
        let mut changes = Changes::default();
        for (path, is_git_state) in paths {
            let record = created(path.as_bytes(), State::Present(Box::new(present(1))));
            let record = FileRecord { is_git_state: *is_git_state, ..record };
            changes.add(&record, PathEffect::of(&record));
        }
        Entry::new(&header(), changes)
    }

    #[test]
    fn a_change_of_gits_state_is_a_change_and_not_counted() {
        let refs = [("/repo/.git/refs/heads/a", true), ("/repo/.git/logs/refs/heads/a", true)];
        let entry = entry(&refs);
        assert!(entry.changes().any());
        assert_eq!(entry.changes(), ChangeCounts { git: true, ..ChangeCounts::default() });
        assert_eq!(entry.places.iter().map(|place| place.0.as_slice()).collect::<Vec<_>>(), [b"/repo/.git"]);
        assert!(entry.may_change(b"/repo") && entry.may_change(b"/repo/.git/HEAD"));
        let line = serde_json::to_string(&Event::Recorded(entry.clone())).unwrap();
        assert!(line.contains("\"git\":true"), "{line}");
        let Ok(Event::Recorded(read)) = serde_json::from_str(&line) else { panic!("{line}") };
        assert_eq!(read, entry);
        let odd = Entry { cwd: ByteText(b"/odd\xff".to_vec()), finished: None, ..entry };
        let line = serde_json::to_vec(&Event::Recorded(odd.clone())).unwrap();
        let Ok(Event::Recorded(read)) = event(&line) else { panic!("{line:?}") };
        assert_eq!(read, odd);
    }

    #[test]
    fn lines_without_the_mark_of_git_are_read() {
        let entry = entry(&[("/repo/f", false)]);
        let line = serde_json::to_string(&Event::Recorded(entry.clone())).unwrap();
        assert!(!line.contains("git"), "{line}");
        let Ok(Event::Recorded(read)) = serde_json::from_str(&line) else { panic!("{line}") };
        assert_eq!(read, entry);
    }
}
