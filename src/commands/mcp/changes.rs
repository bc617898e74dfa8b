//! The tools that change files: without a digest they return a plan, with that of the plan they carry it out.
//!
//! The verb is run with the same arguments both times. The restore compares the digest with that of its plan while it
//! excludes other restores, so that what is done is what was seen.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::tools::{Project, given, items, nothing, object_of, page_from};
use crate::cli::{Redo, RestoreExtent, Undo, UndoOptions, duration};
use crate::commands::exit::{Nothing, UsageError};
use crate::commands::out::{Collected, Console};
use crate::commands::undo::{self, Performed};

/// The arguments of `undo`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoInput {
    /// The recordings: identifiers from `log`, undone as one [default: the newest that changed something and is not
    /// undone]
    #[serde(default)]
    recordings: Vec<String>,
    /// Instead of `recordings`: the newest this many
    last: Option<NonZeroUsize>,
    /// Instead of `recordings`: all that began within this time, such as 10m or 2h
    since: Option<String>,
    /// Only these paths and what is beneath them; alone, of the newest recording that changed one of them
    #[serde(default)]
    paths: Vec<String>,
    /// Also the later recordings that changed the same paths
    #[serde(default)]
    with_later: bool,
    /// Leave paths that have been changed since as they are, and put back the others
    #[serde(default)]
    skip_conflicts: bool,
    /// The digest of the plan, to carry it out
    digest: Option<String>,
    /// How many changes of the plan to skip
    #[serde(default)]
    offset: usize,
    /// At most this many changes, up to 200
    #[serde(default = "items")]
    limit: usize,
}

/// Plans an undo, or carries it out.
pub fn undo(project: &Project, input: UndoInput) -> anyhow::Result<Value> {
    let UndoInput { recordings, last, since, paths, with_later, skip_conflicts, digest, offset, limit } =
        input;
    let (since, digest) = (given(since), given(digest));
    let ways = [!recordings.is_empty(), last.is_some(), since.is_some()];
    if ways.iter().filter(|is_given| **is_given).count() > 1 {
        return Err(UsageError("undo takes one of recordings, last and since".to_owned()).into());
    }
    let args = Undo {
        recordings: recordings.into_iter().map(PathBuf::from).collect(),
        number: last,
        since: since.as_deref().map(duration).transpose().map_err(UsageError)?,
        paths: paths.into_iter().map(OsString::from).collect(),
        with_later,
        options: undo_options(project, skip_conflicts, digest),
        ..Undo::default()
    };
    plan_or_apply(args.options.dry_run, offset, limit, |console| undo::undo(&args, console))
}

/// The arguments of `redo`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedoInput {
    /// The undone recording: an identifier from `log` [default: what was undone last]
    recording: Option<String>,
    /// Leave paths that have been changed since as they are, and put back the others
    #[serde(default)]
    skip_conflicts: bool,
    /// The digest of the plan, to carry it out
    digest: Option<String>,
    /// How many changes of the plan to skip
    #[serde(default)]
    offset: usize,
    /// At most this many changes, up to 200
    #[serde(default = "items")]
    limit: usize,
}

/// Plans a redo, or carries it out.
pub fn redo(project: &Project, input: RedoInput) -> anyhow::Result<Value> {
    let RedoInput { recording, skip_conflicts, digest, offset, limit } = input;
    let args = Redo {
        recording: given(recording).map(PathBuf::from),
        options: undo_options(project, skip_conflicts, given(digest)),
    };
    plan_or_apply(args.options.dry_run, offset, limit, |console| undo::redo(&args, console))
}

fn undo_options(project: &Project, skip_conflicts: bool, digest: Option<String>) -> UndoOptions {
    UndoOptions {
        all: project.place.is_none(),
        extent: RestoreExtent { skip_conflicts, ..RestoreExtent::default() },
        dry_run: digest.is_none(),
        agreed: digest,
        access: project.access().into(),
        json: true,
        ..UndoOptions::default()
    }
}

/// Returns a page of the plan, or of what was done.
fn plan_or_apply(
    is_plan: bool,
    offset: usize,
    limit: usize,
    perform: impl FnOnce(&mut Console) -> anyhow::Result<Option<Performed>>,
) -> anyhow::Result<Value> {
    let mut collected = Collected::default();
    let performed = perform(&mut Console::collecting(&mut collected))?;
    let outcome = performed.map(|performed| performed.outcome).unwrap_or_default();
    if outcome.is_other_plan {
        let why = "nothing was changed: the digest is not that of the plan as it is now; call again without it, and look \
                   at the new plan";
        return Err(Nothing(why.to_owned()).into());
    }
    if outcome.interrupted.is_some() {
        return Err(nothing(collected.messages));
    }
    let object = object_of(collected)?;
    if !is_plan && !outcome.applied {
        let why = "nothing was changed: files have changed meanwhile; call again without the digest, and look at the new \
                   plan";
        return Err(Nothing(why.to_owned()).into());
    }
    let can_be_applied = is_plan && !outcome.is_refused && !outcome.changes.is_empty();
    let mut page = page_from(object, "changes", offset, limit, false);
    // Only at the end of the list has all of it been seen.
    let is_shown = page["changes"].as_array().is_some_and(|changes| !changes.is_empty());
    if can_be_applied && is_shown && page.get("next_offset").is_none() {
        page["digest"] = json!(outcome.digest);
    }
    Ok(page)
}
