//! Compares two texts by lines, and writes the hunks.
//!
//! A line ends at a line feed only, as in Git and patch(1).

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anstyle::Style;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};

use super::super::out::{OutputFormat, style, visible};

/// Lines around a change.
const CONTEXT: usize = 3;

/// What follows a line without a line feed, as in Git and diff(1).
pub const NO_NEWLINE: &str = "\\ No newline at end of file";

/// The time after which the search for the smallest difference of a file ends; the result is correct, but
/// may be longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The difference of two texts.
pub struct LineDiff<'a> {
    old: Vec<&'a [u8]>,
    new: Vec<&'a [u8]>,
    ops: Vec<DiffOp>,
}

impl<'a> LineDiff<'a> {
    /// Compares `old` with `new`.
    pub fn new(old: &'a [u8], new: &'a [u8]) -> LineDiff<'a> {
        let lines = |text: &'a [u8]| text.split_inclusive(|byte| *byte == b'\n').collect::<Vec<_>>();
        let (old, new) = (lines(old), lines(new));
        let deadline = Instant::now() + PATIENCE;
        let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
        LineDiff { old, new, ops }
    }

    /// How many lines were added, and how many removed.
    pub fn counts(&self) -> (usize, usize) {
        let changed = self.ops.iter().filter(|op| !matches!(op, DiffOp::Equal { .. }));
        changed.fold((0, 0), |(added, removed), op| {
            (added + op.new_range().len(), removed + op.old_range().len())
        })
    }

    /// How much of the larger text is in both, in percent; at most 99.
    pub fn similarity(&self) -> u64 {
        let len = |lines: &[&[u8]]| lines.iter().map(|line| line.len() as u64).sum::<u64>();
        let equal = self.ops.iter().filter(|op| matches!(op, DiffOp::Equal { .. }));
        let common: u64 = equal.map(|op| len(&self.old[op.old_range()])).sum();
        let larger = len(&self.old).max(len(&self.new)).max(1);
        (common * 100 / larger).min(99)
    }

    /// Writes the hunks.
    pub fn write(&self, out: &mut dyn Write, format: OutputFormat) -> io::Result<()> {
        for hunk in group_diff_ops(self.ops.clone(), CONTEXT) {
            self.write_hunk(&hunk, out, format)?;
        }
        Ok(())
    }

    fn write_hunk(&self, hunk: &[DiffOp], out: &mut dyn Write, format: OutputFormat) -> io::Result<()> {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return Ok(()) };
        let old = HunkRange(first.old_range().start, last.old_range().end);
        let new = HunkRange(first.new_range().start, last.new_range().end);
        format.line(out, style::HUNK, format_args!("@@ -{old} +{new} @@"))?;
        for (sign, style, line) in self.lines_of(hunk) {
            write_line(line, sign, style, out, format)?;
        }
        Ok(())
    }

    /// The lines that differ and `context` lines around them, each with its sign.
    pub fn lines(&self, context: usize) -> Vec<(u8, Style, &'a [u8])> {
        group_diff_ops(self.ops.clone(), context).iter().flat_map(|hunk| self.lines_of(hunk)).collect()
    }

    fn lines_of(&self, hunk: &[DiffOp]) -> Vec<(u8, Style, &'a [u8])> {
        let mut lines = Vec::new();
        for op in hunk {
            let (old, new) = (&self.old[op.old_range()], &self.new[op.new_range()]);
            if matches!(op, DiffOp::Equal { .. }) {
                lines.extend(old.iter().map(|line| (b' ', Style::new(), *line)));
            } else {
                lines.extend(old.iter().map(|line| (b'-', style::REMOVED, *line)));
                lines.extend(new.iter().map(|line| (b'+', style::ADDED, *line)));
            }
        }
        lines
    }
}

fn write_line(
    line: &[u8],
    sign: u8,
    style: Style,
    out: &mut dyn Write,
    format: OutputFormat,
) -> io::Result<()> {
    let text = line.strip_suffix(b"\n");
    if format.terminal || format.colour {
        let text = visible(text.unwrap_or(line));
        format.line(out, style, format_args!("{}{text}", char::from(sign)))?;
    } else {
        out.write_all(&[sign])?;
        out.write_all(text.unwrap_or(line))?;
        out.write_all(b"\n")?;
    }
    if text.is_none() {
        writeln!(out, "{NO_NEWLINE}")?;
    }
    Ok(())
}

/// A range of lines in a hunk header: counted from 1; a count of 1 is omitted, and an empty range has the
/// line before it.
struct HunkRange(usize, usize);

impl std::fmt::Display for HunkRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HunkRange(start, end) = *self;
        match end - start {
            0 => write!(f, "{start},0"),
            1 => write!(f, "{}", start + 1),
            count => write!(f, "{},{count}", start + 1),
        }
    }
}
