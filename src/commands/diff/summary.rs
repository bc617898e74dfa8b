//! The shorter forms of a diff, and the JSON.

use std::io::{self, Write};

use anstyle::Style;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::Value;

use super::body::DiffKind;
use super::plan::{DiffEntry, DiffPlan, DiffSide};
use crate::commands::json::PathJson;
use crate::commands::out::{Console, OutputError, OutputFormat, style};
use crate::commands::paths::quoted;
use crate::snapshot::wire::JsonObject;

/// What became of a path, as Git names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffStatus {
    /// It is new.
    Added,
    /// It is gone.
    Deleted,
    /// Its content or mode is another.
    Modified,
    /// It was renamed, with this similarity in percent.
    Renamed(u64),
    /// A file became a symlink, or a symlink a file.
    TypeChanged,
}

impl DiffStatus {
    fn word(self) -> &'static str {
        match self {
            DiffStatus::Added => "added",
            DiffStatus::Deleted => "deleted",
            DiffStatus::Modified => "modified",
            DiffStatus::Renamed(_) => "renamed",
            DiffStatus::TypeChanged => "type_changed",
        }
    }

    fn style(self) -> Style {
        match self {
            DiffStatus::Added => style::ADDED,
            DiffStatus::Deleted => style::REMOVED,
            DiffStatus::Modified | DiffStatus::Renamed(_) | DiffStatus::TypeChanged => style::CHANGED,
        }
    }
}

/// Writes the line of one difference for `--name-status`.
pub fn write_name_status(
    status: DiffStatus,
    entry: &DiffEntry,
    out: &mut dyn Write,
    format: OutputFormat,
) -> io::Result<()> {
    let letter = match status {
        DiffStatus::Added => "A",
        DiffStatus::Deleted => "D",
        DiffStatus::Modified => "M",
        DiffStatus::TypeChanged => "T",
        DiffStatus::Renamed(similarity) => {
            let letter = format!("R{similarity:03}");
            let old = entry.old.map_or(entry.name(), |old| old.name);
            write!(out, "{}\t{}", format.paint(status.style(), letter), quoted(old))?;
            return writeln!(out, "\t{}", quoted(entry.name()));
        }
    };
    writeln!(out, "{}\t{}", format.paint(status.style(), letter), quoted(entry.name()))
}

/// How much changed.
#[derive(Debug, Clone, Copy, Default)]
pub struct LineCounts {
    added: usize,
    removed: usize,
    binary: bool,
}

impl LineCounts {
    /// Adds a part of the difference.
    pub fn add(&mut self, kind: DiffKind, counts: Option<(usize, usize)>) {
        let (added, removed) = counts.unwrap_or_default();
        self.added += added;
        self.removed += removed;
        self.binary |= kind == DiffKind::Binary;
    }
}

/// The rows of `--stat`.
#[derive(Debug, Default)]
pub struct DiffStat<'s> {
    rows: Vec<(DiffEntry<'s>, LineCounts)>,
}

impl<'s> DiffStat<'s> {
    /// Adds a difference.
    pub fn add(&mut self, entry: &DiffEntry<'s>, row: LineCounts) {
        self.rows.push((*entry, row));
    }

    /// Writes all rows and their sum.
    pub fn write(&self, out: &mut dyn Write, format: OutputFormat) -> io::Result<()> {
        let names: Vec<String> = self.rows.iter().map(|(entry, _)| stat_name(entry)).collect();
        let width = format.width.unwrap_or(80);
        let name_width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(width * 5 / 8);
        let most = self.rows.iter().map(|(_, row)| row.added + row.removed).max().unwrap_or(0);
        let count_width = most.to_string().len().max(3);
        let bar = width.saturating_sub(name_width + count_width + 5).max(10);
        for ((entry, row), name) in self.rows.iter().zip(&names) {
            write!(out, " {name:name_width$} | ")?;
            if row.binary {
                let size = |half: Option<DiffSide>| half.map_or(0, |half| half.present.size);
                writeln!(out, "{:>count_width$} {} -> {} bytes", "Bin", size(entry.old), size(entry.new))?;
                continue;
            }
            // At least one sign stays, however much the bar is scaled down.
            let scaled =
                |count: usize| if most > bar { (count * bar / most).max(count.min(1)) } else { count };
            let (added, removed) = ("+".repeat(scaled(row.added)), "-".repeat(scaled(row.removed)));
            let count = row.added + row.removed;
            let (added, removed) = (format.paint(style::ADDED, added), format.paint(style::REMOVED, removed));
            if count == 0 {
                writeln!(out, "{count:>count_width$}")?;
            } else {
                writeln!(out, "{count:>count_width$} {added}{removed}")?;
            }
        }
        let sum = |part: fn(&LineCounts) -> usize| self.rows.iter().map(|(_, row)| part(row)).sum::<usize>();
        let (added, removed) = (sum(|row| row.added), sum(|row| row.removed));
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let files = self.rows.len();
        writeln!(
            out,
            " {files} file{} changed, {added} insertion{}(+), {removed} deletion{}(-)",
            plural(files),
            plural(added),
            plural(removed)
        )
    }
}

fn stat_name(entry: &DiffEntry) -> String {
    match entry.both() {
        Some((old, new)) if entry.is_rename() => format!("{} => {}", quoted(old.name), quoted(new.name)),
        _ => quoted(entry.name()).into_owned(),
    }
}

/// A difference as an object of `--json`.
pub struct DiffJson<'a, 's> {
    /// What became of the path.
    pub status: DiffStatus,
    /// The path.
    pub entry: &'a DiffEntry<'s>,
    /// How many lines changed, if they were compared.
    pub row: Option<&'a LineCounts>,
    /// The patch, if there is one.
    pub patch: &'a [u8],
}

impl Serialize for DiffJson<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        let record = self.entry.new.or(self.entry.old).map(|half| half.record);
        object.text("path", record.map_or(b"", |record| &record.path))?;
        object.put("status", self.status.word())?;
        if let (DiffStatus::Renamed(similarity), Some(old)) = (self.status, self.entry.old) {
            object.text("renamed_from", &old.record.path)?;
            object.put("similarity", &similarity)?;
        }
        let mode = |half: Option<DiffSide>| half.map(|half| format!("{:06o}", half.mode));
        object.put_some("old_mode", &mode(self.entry.old))?;
        object.put_some("new_mode", &mode(self.entry.new))?;
        if let Some(row) = self.row {
            object.put("binary", &row.binary)?;
            if !row.binary {
                object.put("insertions", &row.added)?;
                object.put("deletions", &row.removed)?;
            }
        }
        if !self.patch.is_empty() {
            object.text("patch", self.patch)?;
        }
        object.0.end()
    }
}

/// Starts the object of `--json`.
pub fn open_json(base: &[u8], console: &mut Console) -> Result<(), OutputError> {
    let base = serde_json::to_string(&DiffBase(base)).map_err(io::Error::from)?;
    write!(console, "{},\n\"changes\":[", base.strip_suffix('}').unwrap_or(&base))
}

/// Writes one difference into the object.
pub fn write_json(change: &DiffJson, first: bool, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(if first { b"\n" } else { b",\n" })?;
    Ok(serde_json::to_writer(out, change)?)
}

/// Ends the object with what is not in the diff.
pub fn close_json(
    plan: &DiffPlan,
    lost: &[(&[u8], String)],
    console: &mut Console,
) -> Result<(), OutputError> {
    let json = |notes: &[DiffNote]| serde_json::to_string(notes).map_err(io::Error::from);
    let omitted = DiffOmitted::of(plan, lost);
    writeln!(console, "],\n\"unsupported\":{},", json(&omitted.unsupported)?)?;
    writeln!(console, "\"outside\":{},", json(&omitted.outside)?)?;
    writeln!(console, "\"inherited\":{},", json(&omitted.inherited)?)?;
    writeln!(console, "\"unavailable\":{}}}", json(&omitted.unavailable)?)
}

/// The object of `--json` as a value.
pub fn object(
    base: &[u8],
    changes: Vec<Value>,
    plan: &DiffPlan,
    lost: &[(&[u8], String)],
) -> serde_json::Result<Value> {
    #[derive(Serialize)]
    struct Whole<'a> {
        #[serde(flatten)]
        base: DiffBase<'a>,
        changes: Vec<Value>,
        #[serde(flatten)]
        omitted: DiffOmitted<'a>,
    }
    serde_json::to_value(Whole { base: DiffBase(base), changes, omitted: DiffOmitted::of(plan, lost) })
}

/// The directory that names are relative to.
struct DiffBase<'a>(&'a [u8]);

impl Serialize for DiffBase<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("base", self.0)?;
        object.0.end()
    }
}

/// A path, and why it is not in the diff.
type DiffNote<'a> = PathJson<'a, &'a String>;

/// What is not in the diff.
#[derive(Serialize)]
struct DiffOmitted<'a> {
    unsupported: Vec<DiffNote<'a>>,
    outside: Vec<DiffNote<'a>>,
    inherited: Vec<DiffNote<'a>>,
    unavailable: Vec<DiffNote<'a>>,
}

impl<'a> DiffOmitted<'a> {
    fn of(plan: &'a DiffPlan<'a>, lost: &'a [(&[u8], String)]) -> DiffOmitted<'a> {
        let paths = |paths: &[&'a [u8]]| paths.iter().map(|path| PathJson(path, "detail", None)).collect();
        let reason = |(path, why): &'a (&[u8], String)| PathJson(path, "detail", Some(why));
        let reasons = |paths: &'a [_]| paths.iter().map(reason).collect();
        DiffOmitted {
            unsupported: reasons(&plan.unsupported),
            outside: paths(&plan.outside),
            inherited: paths(&plan.inherited),
            unavailable: reasons(lost),
        }
    }
}
