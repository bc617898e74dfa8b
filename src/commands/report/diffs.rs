//! The diffs of a recording's changes as lines that are shown to people, by path.
//!
//! Their comparison is that of `diff`.

use std::collections::HashMap;

use serde::Serialize;

use super::super::diff::{DiffBody, DiffEntry, DiffError, DiffKind, DiffPlan};
use super::super::out::OutputFormat;
use super::super::paths::Selection;
use super::super::show::size;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{BlobOmitted, Snapshot};

/// The longest diff of one path that is shown whole.
const ONE: usize = 256 << 10;
/// Lines are escaped as on a terminal.
const SHOWN: OutputFormat = OutputFormat { terminal: true, colour: false, width: None };

/// What is shown of the change of one path's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathDiff {
    /// How many lines were added and removed, of a text.
    #[serde(rename = "c", skip_serializing_if = "Option::is_none")]
    pub lines: Option<(usize, usize)>,
    /// Hunks as in a patch, whole lines; may be cut.
    #[serde(rename = "t", skip_serializing_if = "String::is_empty")]
    pub hunks: String,
    /// Why nothing, or not all, is shown.
    #[serde(rename = "n", skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl PathDiff {
    fn note(text: impl Into<String>) -> PathDiff {
        PathDiff { lines: None, hunks: String::new(), note: Some(text.into()) }
    }
}

/// Makes diffs until their text is long enough.
pub struct Diffs<'s> {
    contents: Contents<'s>,
    entries: HashMap<&'s [u8], DiffEntry<'s>>,
    /// How many bytes of text there may still be.
    room: usize,
    /// Why a diff is left out if there may be none.
    left_out: &'static str,
}

impl<'s> Diffs<'s> {
    /// The diffs of `snapshot`. Those that come after `room` bytes of text are left out, with the reason `left_out`.
    pub fn new(snapshot: &'s Snapshot, room: usize, left_out: &'static str) -> anyhow::Result<Diffs<'s>> {
        let plan = DiffPlan::new(snapshot, &Selection::new(snapshot, &[])?, b"/");
        let entries = plan.entries.into_iter().map(|entry| (entry.path(), entry)).collect();
        Ok(Diffs { contents: Contents::new(snapshot), entries, room, left_out })
    }

    /// The diff of the path, if its content or its target changed.
    pub fn of(&mut self, path: &[u8]) -> anyhow::Result<Option<PathDiff>> {
        let Some(entry) = self.entries.get(path).copied() else { return Ok(None) };
        if entry.is_type_change() {
            return Ok(None);
        }
        if self.room == 0 {
            return Ok(Some(PathDiff::note(self.left_out)));
        }
        let diff = match DiffBody::of(&entry, &self.contents) {
            Err(DiffError::Unavailable(_, Unavailable::Omitted(BlobOmitted::Withheld))) => {
                Some(PathDiff::note("withheld: it is taken for a secret"))
            }
            Ok(body) => told(&entry, &body),
            Err(DiffError::Unavailable(half, why)) => {
                let side = half.side.name();
                Some(PathDiff::note(format!("its content {side} the command is unavailable: {why}")))
            }
            Err(error) => return Err(error.into()),
        };
        self.room = self.room.saturating_sub(diff.as_ref().map_or(0, |diff| diff.hunks.len()));
        Ok(diff)
    }
}

fn told(entry: &DiffEntry, body: &DiffBody) -> Option<PathDiff> {
    match body.kind {
        DiffKind::Same => None,
        DiffKind::Binary => {
            let sizes = [entry.old, entry.new].map(|half| half.map(|half| size(half.present.size)));
            Some(PathDiff::note(match sizes {
                [Some(old), Some(new)] => format!("binary, {old} before and {new} after"),
                [Some(only), None] | [None, Some(only)] => format!("binary, {only}"),
                [None, None] => "binary".to_owned(),
            }))
        }
        DiffKind::Text => {
            let lines = body.lines()?;
            let mut text = Vec::new();
            // Writing to memory does not fail.
            lines.write(&mut text, SHOWN).ok()?;
            let mut hunks = String::from_utf8(text).ok()?;
            let mut note = None;
            if hunks.len() > ONE {
                let end =
                    hunks.as_bytes()[..ONE].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                let more = hunks[end..].lines().count();
                hunks.truncate(end);
                note = Some(format!("cut: {more} more lines"));
            }
            Some(PathDiff { lines: Some(lines.counts()), hunks, note })
        }
    }
}
