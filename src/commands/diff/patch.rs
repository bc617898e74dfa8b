//! One entry as Git writes it: the header, then hunks, a binary patch, or nothing.
//!
//! The format is that of `git diff` (Documentation/diff-generate-patch), for `git apply` and `patch -p1`.

use std::borrow::Cow;
use std::io::Write;

use super::binary::literal;
use super::body::{DiffBody, DiffError, DiffKind, copy, object_id};
use super::lines::LineDiff;
use super::plan::{DiffEntry, DiffSide};
use super::summary::DiffStatus;
use crate::commands::out::{OutputFormat, style};
use crate::commands::paths::{must_be_quoted, quote_into, quoted};
use crate::snapshot::source::Contents;

/// How many digits object ids have before hunks; a binary patch needs all.
const ABBREVIATED: usize = 7;

/// Writes `entry` with the content `body`, which is `lines` if it is text. On a terminal the bytes of a
/// binary patch are left out.
pub fn write<'s>(
    entry: &DiffEntry<'s>,
    body: &DiffBody,
    lines: Option<&LineDiff>,
    status: DiffStatus,
    contents: &Contents,
    out: &mut dyn Write,
    format: OutputFormat,
) -> Result<(), DiffError<'s>> {
    let literals = body.kind == DiffKind::Binary && !format.terminal;
    let mut header = Vec::new();
    write_header(entry, status, &mut header)?;
    if body.kind != DiffKind::Same {
        let hash = entry.new.or(entry.old).map_or(gix::hash::Kind::Sha1, |half| half.hash_kind());
        let id = |half, bytes: &Option<Vec<u8>>| object_id(half, bytes.as_deref(), hash, contents);
        let (old, new) = (id(entry.old, &body.old)?, id(entry.new, &body.new)?);
        let digits = if literals { old.len() } else { ABBREVIATED };
        write!(header, "index {}..{}", &old[..digits], &new[..digits])?;
        match entry.both() {
            Some((old, new)) if old.mode == new.mode => writeln!(header, " {:06o}", new.mode)?,
            _ => writeln!(header)?,
        }
    }
    // The header is written only when nothing that precedes the rest can fail any more.
    for line in header.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        format.line(out, style::HEADING, format_args!("{text}"))?;
    }
    match (lines, body.kind) {
        (Some(lines), _) if lines.counts() != (0, 0) => {
            for (sign, side, half) in [("---", "a/", entry.old), ("+++", "b/", entry.new)] {
                let name = half.map_or(Cow::Borrowed("/dev/null"), |half| file_line(side, half));
                format.line(out, style::HEADING, format_args!("{sign} {name}"))?;
            }
            Ok(lines.write(out, format)?)
        }
        (_, DiffKind::Binary) if literals => {
            writeln!(out, "GIT binary patch")?;
            write_literal(entry.new, body.new.as_deref(), contents, out)?;
            write_literal(entry.old, body.old.as_deref(), contents, out)
        }
        (_, DiffKind::Binary) => {
            let size = |half: Option<DiffSide>| half.map_or(0, |half| half.present.size);
            let (old, new) = (size(entry.old), size(entry.new));
            Ok(writeln!(out, "Binary file, {old} -> {new} bytes (a pipe or a file gets the patch)")?)
        }
        _ => Ok(()),
    }
}

fn write_header(entry: &DiffEntry, status: DiffStatus, out: &mut Vec<u8>) -> std::io::Result<()> {
    let (old_name, new_name) = match entry.both() {
        Some((old, new)) => (old.name, new.name),
        None => (entry.name(), entry.name()),
    };
    // Git does not quote a space here, but without a `---` line patch(1) takes the name from this line.
    let words = |side, name: &[u8]| match prefixed(side, name) {
        name if name.contains(' ') && !name.starts_with('"') => format!("\"{name}\""),
        name => name.into_owned(),
    };
    writeln!(out, "diff --git {} {}", words("a/", old_name), words("b/", new_name))?;
    match (entry.old, entry.new) {
        (None, Some(new)) => writeln!(out, "new file mode {:06o}", new.mode)?,
        (Some(old), None) => writeln!(out, "deleted file mode {:06o}", old.mode)?,
        (Some(old), Some(new)) if old.mode != new.mode => {
            writeln!(out, "old mode {:06o}\nnew mode {:06o}", old.mode, new.mode)?;
        }
        _ => {}
    }
    if let DiffStatus::Renamed(similarity) = status {
        writeln!(out, "similarity index {similarity}%")?;
        writeln!(out, "rename from {}\nrename to {}", quoted(old_name), quoted(new_name))?;
    }
    Ok(())
}

fn write_literal<'s>(
    half: Option<DiffSide<'s>>,
    bytes: Option<&[u8]>,
    contents: &Contents,
    out: &mut dyn Write,
) -> Result<(), DiffError<'s>> {
    let size = match (bytes, half) {
        (Some(bytes), _) => bytes.len() as u64,
        (None, half) => half.map_or(0, |half| half.present.size),
    };
    literal(out, size, |sink| match (bytes, half) {
        (Some(bytes), _) => Ok(sink.write_all(bytes)?),
        (None, Some(half)) => copy(half, contents, sink),
        (None, None) => Ok(()),
    })
}

/// A name after `a/` or `b/`, quoted as a whole if necessary.
fn prefixed<'n>(side: &str, name: &'n [u8]) -> Cow<'n, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !text.contains(must_be_quoted) => Cow::Owned(format!("{side}{text}")),
        _ => {
            let mut out = format!("\"{side}");
            quote_into(&mut out, name);
            out.push('"');
            Cow::Owned(out)
        }
    }
}

/// The name in a `---` or `+++` line; one with spaces is ended by a tab, which patch(1) expects.
fn file_line<'n>(side: &str, half: DiffSide<'n>) -> Cow<'n, str> {
    let name = prefixed(side, half.name);
    if name.contains(' ') && !name.starts_with('"') { Cow::Owned(format!("{name}\t")) } else { name }
}
