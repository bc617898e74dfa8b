//! What a recording did, as lines: the changed paths, each with its diff.
//!
//! The groups are those of `show`, the diffs those of `report`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use super::super::paths::{Selection, number_of_paths, quoted, shown};
use super::super::report::diffs::Diffs;
use super::super::show::{Filter, GitChanges, PathGroup, PathGroups, PathTable, git_changes};
use crate::cli::Show;
use crate::snapshot::{FileType, Snapshot};

/// How much text of diffs is shown of a recording; the history of a path has room of its own.
const ROOM: usize = 1 << 20;
/// Why the others are not.
const LEFT_OUT: &str = "left out, since there is much before it: h shows it";
/// How many paths are listed before the rest is only counted.
const PATHS: usize = 10_000;
/// The columns between two tab stops.
const TAB: usize = 8;

/// How a line is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    /// A path, or a recording.
    Heading,
    /// The position of a hunk.
    Hunk,
    /// What was, or is, added.
    Added,
    /// What was, or is, removed.
    Removed,
    /// What stays, or is said.
    Plain,
    /// What calls for attention.
    Note,
}

/// A line, escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// How it is shown.
    pub kind: LineKind,
    /// Its text.
    pub text: String,
}

impl Line {
    /// A line.
    pub fn new(kind: LineKind, text: impl Into<String>) -> Line {
        Line { kind, text: text.into() }
    }
}

/// What a recording did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The lines.
    pub lines: Vec<Line>,
    /// The numbers of the lines where the changed paths begin, in order, and the paths.
    pub files: Vec<(usize, Vec<u8>)>,
}

impl Detail {
    /// What `snapshot` tells, or tells of one path; none if `is_superseded` says that it is not wanted any more.
    pub fn of(
        snapshot: &Snapshot,
        path: Option<&[u8]>,
        is_superseded: &dyn Fn() -> bool,
    ) -> anyhow::Result<Option<Detail>> {
        let paths: Vec<OsString> = path.into_iter().map(|path| OsStr::from_bytes(path).to_owned()).collect();
        let changes = Show { changed: true, created: true, deleted: true, ..Show::default() };
        let filter = Filter::new(&changes, Selection::new(snapshot, &paths)?);
        let table = PathTable::new(snapshot, true);
        let mut differ = Diffs::new(snapshot, ROOM, LEFT_OUT)?;
        let mut detail = Detail::default();
        let mut more = 0;
        for (group, entries) in PathGroups::new(snapshot, &filter, false).0 {
            let Some(word) = word(group) else { continue };
            for entry in entries {
                if is_superseded() {
                    return Ok(None);
                }
                if detail.files.len() == PATHS {
                    more += 1;
                    continue;
                }
                let record = entry.record;
                let diff = differ.of(&record.path)?;
                let mut notes = table.notes(group, &entry);
                if let Some((added, removed)) = diff.as_ref().and_then(|diff| diff.lines) {
                    notes.insert(0, format!("+{added} -{removed}"));
                }
                if let (PathGroup::Renamed, Some(origin)) = (group, entry.origin) {
                    notes.insert(0, format!("from {}", shown(&origin.path, &snapshot.header().start_cwd)));
                }
                let now = record.after.present().or(record.before.present());
                let is_directory = now.is_some_and(|now| now.file_type == FileType::Directory);
                let slash = if is_directory && !entry.name.ends_with(b"/") { "/" } else { "" };
                let name = quoted(entry.name);
                let notes = if notes.is_empty() { String::new() } else { format!("  {}", notes.join(", ")) };
                if !detail.lines.is_empty() {
                    detail.lines.push(Line::new(LineKind::Plain, ""));
                }
                detail.files.push((detail.lines.len(), record.path.clone()));
                detail.lines.push(Line::new(LineKind::Heading, format!("{word} {name}{slash}{notes}")));
                if let Some(diff) = diff {
                    detail.lines.extend(diff.hunks.lines().map(line_of_hunk));
                    detail.lines.extend(diff.note.map(|note| Line::new(LineKind::Note, format!("  {note}"))));
                }
            }
        }
        if more > 0 {
            let text = format!("and {} more", number_of_paths(more));
            detail.lines.push(Line::new(LineKind::Plain, ""));
            detail.lines.push(Line::new(LineKind::Note, text));
        }
        if path.is_none() {
            for GitChanges { repository, changes } in git_changes(snapshot) {
                if !detail.lines.is_empty() {
                    detail.lines.push(Line::new(LineKind::Plain, ""));
                }
                let text = format!("Git state of {repository}: {}", changes.join(", "));
                detail.lines.push(Line::new(LineKind::Note, text));
            }
        }
        if detail.lines.is_empty() {
            let text = if path.is_some() { "it did not change this path" } else { "it changed nothing" };
            detail.lines.push(Line::new(LineKind::Plain, text));
        }
        Ok(Some(detail))
    }

    /// The path whose diff a line is in; the first one of the lines before any.
    pub fn path_at(&self, line: usize) -> Option<&[u8]> {
        let before = self.files.partition_point(|(start, _)| *start <= line);
        self.files.get(before.saturating_sub(1)).map(|(_, path)| path.as_slice())
    }
}

/// The word for a group that is listed.
fn word(group: PathGroup) -> Option<&'static str> {
    match group {
        PathGroup::Inherited => Some("written through an inherited descriptor"),
        group => group.is_change().then(|| group.name()),
    }
}

fn line_of_hunk(text: &str) -> Line {
    let kind = match text.bytes().next() {
        Some(b'@') => LineKind::Hunk,
        Some(b'+') => LineKind::Added,
        Some(b'-') => LineKind::Removed,
        _ => LineKind::Plain,
    };
    Line::new(kind, without_tabs(text))
}

/// The text of a line with spaces to the next tab stop in place of tabs; its first column is the sign.
fn without_tabs(text: &str) -> String {
    if !text.contains('\t') {
        return text.to_owned();
    }
    let (mut out, mut column) = (String::with_capacity(text.len() + TAB), 0_usize);
    for char in text.chars() {
        if char == '\t' {
            let width = TAB - column.saturating_sub(1) % TAB;
            out.extend(std::iter::repeat_n(' ', width));
            column += width;
        } else {
            out.push(char);
            column += unicode_width::UnicodeWidthChar::width(char).unwrap_or(0);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tab_stops_are_counted_from_behind_the_sign() {
        assert_eq!(without_tabs("+\tx"), "+        x");
        assert_eq!(without_tabs(" ab\tx"), " ab      x");
        assert_eq!(without_tabs("-12345678\tx"), "-12345678        x");
        assert_eq!(without_tabs(" 日本\tx"), " 日本    x");
    }
}
