//! The list of paths as text: a heading for each group and a line for each path, in columns.
//!
//! The path is the last column, so that it is never cut and nothing after it has to be aligned.

use std::borrow::Cow;

use anstyle::Style;
use indicatif::{BinaryBytes, HumanCount};

use super::super::out::{Console, OutputError, style};
use super::super::paths::{number_of_paths, quoted, shown};
use super::fold::{FoldedPart, FoldedRow, fold};
use super::list::{ListedPath, PathGroup, ShownStatus};
use super::processes::heading;
use crate::fs::file_name;
use crate::snapshot::blobs::Side;
use crate::snapshot::change::{Differences, has_same_content};
use crate::snapshot::compare::{content_id, state};
use crate::snapshot::source::{Unavailable, locate};
use crate::snapshot::{BlobOmitted, FileRecord, FileType, Operation, Operations, PathUse, Present, Snapshot};

/// The most lines of a group of changes before it is folded.
const CHANGES: usize = 30;
/// The same for any other group.
const OTHERS: usize = 12;

/// The groups, ready to be written.
pub struct PathTable<'s> {
    start: &'s [u8],
    in_full: bool,
    parts: Vec<(PathGroup, usize, Vec<TableLine>)>,
    folded: usize,
}

#[derive(Debug, Default)]
struct TableLine {
    size: String,
    git: &'static str,
    name: String,
    notes: Vec<String>,
    /// What `--long` adds.
    long: String,
}

impl<'s> PathTable<'s> {
    /// An empty table; with `in_full` its lines have all details.
    pub fn new(snapshot: &'s Snapshot, in_full: bool) -> PathTable<'s> {
        PathTable { start: &snapshot.header().start_cwd, in_full, parts: Vec::new(), folded: 0 }
    }

    /// Adds a group, which is folded if it is long, unless `each` path is to be listed.
    pub fn add(&mut self, group: PathGroup, entries: &[ListedPath], each: bool) {
        let budget = match group {
            _ if each => usize::MAX,
            PathGroup::Changed | PathGroup::Renamed | PathGroup::Created | PathGroup::Deleted => CHANGES,
            _ => OTHERS,
        };
        let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        let rows = fold(&names, budget);
        let lines = rows.iter().map(|row| match row {
            FoldedRow::One(index) => self.one(group, &entries[*index]),
            FoldedRow::Folded { prefix, members, what } => {
                self.folded += members.len();
                folded(entries, *prefix, members, *what)
            }
        });
        let lines = lines.collect();
        let along: usize = entries.iter().map(|entry| entry.beneath).sum();
        self.folded += along;
        self.parts.push((group, entries.len() + along, lines));
    }

    fn one(&self, group: PathGroup, entry: &ListedPath) -> TableLine {
        let record = entry.record;
        let now = record.after.present().or(record.before.present());
        let is_file = now.is_some_and(|now| now.file_type == FileType::File);
        let mut name = quoted(entry.name).into_owned();
        match now {
            Some(now) if now.file_type == FileType::Directory && entry.name != b"/" => name.push('/'),
            Some(Present { target: Some(target), .. }) => name += &format!(" → {}", quoted(target)),
            _ => {}
        }
        if let (PathGroup::Renamed, Some(origin)) = (group, entry.origin) {
            name = format!("{} → {name}", self.shown(&origin.path));
        }
        let mut line = TableLine { name, notes: self.notes(group, entry), ..TableLine::default() };
        if let Some(now) = now.filter(|_| is_file) {
            line.size = size(now.size);
        }
        if now.is_some_and(|now| matches!(now.file_type, FileType::File | FileType::Symlink)) {
            let origin = entry.origin.filter(|_| group == PathGroup::Renamed).unwrap_or(record);
            line.git = git_mark(origin);
        }
        if self.in_full {
            line.long = long(record);
        }
        line
    }

    fn shown<'p>(&self, path: &'p [u8]) -> Cow<'p, str> {
        if self.start == b"/" { quoted(path) } else { shown(path, self.start) }
    }

    /// What there is to say of a path beside its group and its size.
    pub fn notes(&self, group: PathGroup, entry: &ListedPath) -> Vec<String> {
        let record = entry.record;
        let mut notes = Vec::new();
        match (record.before.present(), record.after.present()) {
            (Some(before), Some(after)) => differences(record, before, after, &mut notes),
            (None, None) if group == PathGroup::Existence => notes.push("not there".to_owned()),
            _ if group == PathGroup::GitState => notes.push(ShownStatus::of(record).name().to_owned()),
            _ => {}
        }
        match (group, entry.origin) {
            (PathGroup::Renamed, Some(origin)) => {
                if let (Some(before), Some(after)) = (origin.before.present(), record.after.present()) {
                    let ids = (content_id(origin, Side::Before), content_id(record, Side::After));
                    let is_file = before.file_type == FileType::File;
                    if is_file && !has_same_content((before.size, &ids.0), (after.size, &ids.1)) {
                        notes.push("and changed".to_owned());
                    }
                }
                if entry.beneath > 0 {
                    notes.push(format!("and {} beneath", number_of_paths(entry.beneath)));
                }
            }
            _ => {
                // Git writes a file as its lock.
                let is_lock = |from: &&Vec<u8>| record.is_git_state && from.ends_with(b".lock");
                if let Some(from) = record.renamed_from.as_ref().filter(|from| !is_lock(from)) {
                    notes.push(format!("from {}", self.shown(from)));
                }
                if let Some(to) = record.renamed_to.as_ref().filter(|_| group != PathGroup::Temporary) {
                    notes.push(format!("went to {}", self.shown(to)));
                }
            }
        }
        if record.operations.contains(Operation::Execute) && group == PathGroup::Read {
            notes.push("executed".to_owned());
        }
        let omitted = record.before.present().and_then(|present| present.blob_omitted);
        if omitted == Some(BlobOmitted::Withheld) && group == PathGroup::Read {
            notes.push("a secret, withheld".to_owned());
        }
        if record.inherited && group != PathGroup::Inherited {
            notes.push("through an inherited descriptor".to_owned());
        }
        if let Some(lost) = lost(group, record, Side::Before) {
            notes.push(format!("its old bytes are not stored: {lost}"));
        } else if let Some(lost) = lost(group, record, Side::After) {
            notes.push(format!("its bytes are not stored: {lost}"));
        }
        notes
    }

    /// Writes all groups, and returns how many paths have no line of their own.
    pub fn write(self, console: &mut Console) -> Result<usize, OutputError> {
        let lines = || self.parts.iter().flat_map(|(_, _, lines)| lines);
        let widest =
            |of: fn(&TableLine) -> &str| lines().map(|line| of(line).chars().count()).max().unwrap_or(0);
        let (sizes, marks) = (widest(|line| &line.size), widest(|line| line.git));
        for (index, (group, count, lines)) in self.parts.iter().enumerate() {
            let (title, style) = title(*group);
            let count = HumanCount(*count as u64);
            let title = console.paint(heading(style), format_args!("{title}: {count}")).to_string();
            writeln!(console, "{}{title}", if index > 0 { "\n" } else { "" })?;
            for line in lines {
                let TableLine { size, git, name, notes, long } = line;
                let git_style =
                    if matches!(*git, "tracked" | "ignored") { style::FAINT } else { style::CHANGED };
                let separator = if marks > 0 { "  " } else { "" };
                let git = console.paint(git_style, format_args!("{git:marks$}")).to_string();
                write!(console, "  {size:>sizes$}{separator}{git}  {name}")?;
                if !notes.is_empty() {
                    let notes = console.paint(style::FAINT, notes.join(", ")).to_string();
                    write!(console, "  {notes}")?;
                }
                writeln!(console)?;
                if !long.is_empty() {
                    let indent = sizes + separator.len() + marks + 6;
                    let long = console.paint(style::FAINT, long).to_string();
                    writeln!(console, "{:indent$}{long}", "")?;
                }
            }
        }
        Ok(self.folded)
    }
}

fn title(group: PathGroup) -> (&'static str, Style) {
    match group {
        PathGroup::Changed => ("Changed", style::CHANGED),
        PathGroup::Renamed => ("Renamed", style::CHANGED),
        PathGroup::Created => ("Created", style::ADDED),
        PathGroup::Deleted => ("Deleted", style::REMOVED),
        PathGroup::MountPoint => ("Made only as mount points", Style::new()),
        PathGroup::Temporary => ("Made and removed again", Style::new()),
        PathGroup::Unaltered => ("Written or touched, but unchanged", Style::new()),
        PathGroup::Inherited => ("Written through an inherited descriptor", Style::new()),
        PathGroup::GitState => ("Git's state", Style::new()),
        PathGroup::Read => ("Only read", Style::new()),
        PathGroup::Existence => ("Only looked up", Style::new()),
    }
}

/// The status of the path in Git at its first use, as one word.
fn git_mark(record: &FileRecord) -> &'static str {
    match record.git.as_ref().or(record.git_after.as_ref()) {
        None => "",
        Some(git) if git.tracked && git.dirty => "modified",
        Some(git) if git.tracked => "tracked",
        Some(git) if git.ignored => "ignored",
        Some(_) => "untracked",
    }
}

/// A number of bytes in binary units.
pub fn size(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

fn differences(record: &FileRecord, before: &Present, after: &Present, notes: &mut Vec<String>) {
    let differences = Differences::between(record, before, after);
    if differences.file_type {
        notes.push(format!("was a {}", before.file_type.name().replace('_', " ")));
    }
    if differences.content {
        notes.push(match before.size == after.size {
            true => "other content".to_owned(),
            false => format!("was {}", size(before.size)),
        });
    }
    if let (true, Some(target)) = (differences.target, &before.target) {
        notes.push(format!("was → {}", quoted(target)));
    } else if differences.target {
        notes.push("another device".to_owned());
    }
    other_attributes(differences, before, after, notes);
}

/// Adds in which attributes two states of a path differ, in words.
pub fn other_attributes(
    differences: Differences,
    before: &Present,
    after: &Present,
    words: &mut Vec<String>,
) {
    if differences.permissions {
        words.push(format!("mode {:04o} → {:04o}", before.mode & 0o7777, after.mode & 0o7777));
    }
    if differences.owner {
        words.push(format!("owner {}:{} → {}:{}", before.uid, before.gid, after.uid, after.gid));
    }
    if differences.xattrs {
        words.push("other extended attributes".to_owned());
    }
    if differences.inode_flags {
        words.push("other inode flags".to_owned());
    }
    if differences.hard_links {
        words.push("other hard links".to_owned());
    }
}

/// Why bytes that a restore would need are not in the snapshot, as the manifest names it.
fn lost(group: PathGroup, record: &FileRecord, side: Side) -> Option<&'static str> {
    let is_needed = group.is_change() || matches!(group, PathGroup::Inherited | PathGroup::GitState);
    state(record, side).present().filter(|_| is_needed)?;
    match locate(record, side) {
        Err(Unavailable::Omitted(why)) => Some(why.name()),
        _ => None,
    }
}

/// What `--long` prints beneath the line of a record.
fn long(record: &FileRecord) -> String {
    let joined =
        |operations: Operations| operations.iter().map(Operation::name).collect::<Vec<_>>().join("+");
    let mut text = joined(record.operations);
    if let Some(now) = record.after.present().or(record.before.present()) {
        text += &format!(", mode {:04o}, {}:{}", now.mode & 0o7777, now.uid, now.gid);
        text += &format!(", {}", modified(now));
    }
    let processes: Vec<_> = record.processes.iter().map(u32::to_string).collect();
    let many = if processes.len() == 1 { "process" } else { "processes" };
    match record.uses.as_slice() {
        _ if processes.is_empty() => {}
        [] | [PathUse { exe: None, .. }] => text += &format!(", {many} {}", processes.join(" ")),
        // Which of them wrote it, say.
        uses => {
            let told = |used: &PathUse| {
                let exe = used.exe.as_deref().map(|exe| format!(" ({})", quoted(file_name(exe))));
                format!("{} by {}{}", joined(used.operations), used.process, exe.unwrap_or_default())
            };
            text += &format!(", {many}: {}", uses.iter().map(told).collect::<Vec<_>>().join(", "));
        }
    }
    if let Some(count) = record.process_count {
        text += &format!(" of {count}");
    }
    text
}

fn modified(at: &Present) -> String {
    let nanoseconds = i32::try_from(at.mtime_nsec).unwrap_or(0);
    match jiff::Timestamp::new(at.mtime, nanoseconds) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S%.9f UTC").to_string(),
        Err(_) => format!("{}.{:09} s after 1970", at.mtime, at.mtime_nsec),
    }
}

/// The line of paths that share a directory.
fn folded(entries: &[ListedPath], prefix: usize, members: &[usize], what: FoldedPart) -> TableLine {
    let entries: Vec<&ListedPath> = members.iter().map(|index| &entries[*index]).collect();
    // Of a whole directory the first member is the directory itself, without a slash.
    let first = entries.last().map_or(&b""[..], |entry| entry.name);
    let dir = match first.get(..prefix) {
        None | Some(b"") => Cow::Borrowed("./"),
        Some(dir) => quoted(dir),
    };
    let files =
        entries.iter().filter_map(|entry| entry.record.after.present().or(entry.record.before.present()));
    let files = files.filter(|present| present.file_type == FileType::File);
    let bytes = files.fold(0_u64, |sum, present| sum.saturating_add(present.size));
    let count = members.len();
    let note = match what {
        FoldedPart::Whole => format!("and {} beneath", number_of_paths(count - 1)),
        FoldedPart::Beneath => format!("{} beneath", number_of_paths(count)),
        FoldedPart::Direct => format!("{} in it", number_of_paths(count)),
        FoldedPart::Rest => format!("and {} more in it", HumanCount(count as u64)),
    };
    let size = if bytes > 0 { size(bytes) } else { String::new() };
    TableLine { size, name: dir.into_owned(), notes: vec![note], ..TableLine::default() }
}
