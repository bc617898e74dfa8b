//! The tools that change files: a plan first, and with its digest what it says.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::tools::{Project, collect, given, items, nothing, page_from};
use crate::cli::{Redo, RestoreExtent, Undo, UndoOptions, duration};
use crate::commands::exit::{Nothing, UsageError};
use crate::commands::undo;
use crate::snapshot::Digest;

/// The arguments of its tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoInput {
    /// The recordings: identifiers from `log`, undone as one [default: the newest that changed something and is not
    /// undone]
    #[serde(default)]
    recordings: Vec<String>,
    /// Instead of `recordings`: the newest this many
    #[serde(default)]
    #[schemars(with = "usize", range(min = 1))]
    last: Option<NonZeroUsize>,
    /// Instead of `recordings`: all that began within this time, such as 10m or 2h
    #[serde(default)]
    #[schemars(with = "String")]
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
    #[serde(default)]
    #[schemars(with = "String")]
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
    let chosen = Undo {
        recordings: recordings.into_iter().map(PathBuf::from).collect(),
        number: last,
        since: since.as_deref().map(duration).transpose().map_err(UsageError)?,
        paths: paths.iter().map(OsString::from).collect(),
        with_later,
        options: undo_options(project, skip_conflicts, true),
        ..Undo::default()
    };
    let plan = collect(|console| undo::run(&chosen, console))?;
    plan_or_apply(plan, digest.as_deref(), offset, limit, |ids| {
        let options = undo_options(project, skip_conflicts, false);
        let recordings = ids.into_iter().map(PathBuf::from).collect();
        let paths = paths.iter().map(OsString::from).collect();
        let planned = Undo { recordings, paths, options, ..Undo::default() };
        collect(|console| undo::run(&planned, console))
    })
}

/// The arguments of its tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedoInput {
    /// The undone recording: an identifier from `log` [default: what was undone last]
    #[serde(default)]
    #[schemars(with = "String")]
    recording: Option<String>,
    /// Leave paths that have been changed since as they are, and put back the others
    #[serde(default)]
    skip_conflicts: bool,
    /// The digest of the plan, to carry it out
    #[serde(default)]
    #[schemars(with = "String")]
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
    let run = |recording: Option<PathBuf>, is_plan| {
        let args = Redo { recording, options: undo_options(project, skip_conflicts, is_plan) };
        collect(|console| undo::run_redo(&args, console))
    };
    let plan = run(given(recording).map(PathBuf::from), true)?;
    // Those that were undone with it are redone with it.
    plan_or_apply(plan, given(digest).as_deref(), offset, limit, |ids| {
        run(ids.into_iter().next().map(PathBuf::from), false)
    })
}

fn undo_options(project: &Project, skip_conflicts: bool, dry_run: bool) -> UndoOptions {
    UndoOptions {
        all: project.place.is_none(),
        extent: RestoreExtent { skip_conflicts, ..RestoreExtent::default() },
        dry_run,
        access: project.access(),
        json: true,
        ..UndoOptions::default()
    }
}

/// Returns a page of the plan, or carries it out for the recordings that it names, if `digest` is its.
fn plan_or_apply(
    mut plan: Map<String, Value>,
    digest: Option<&str>,
    offset: usize,
    limit: usize,
    apply: impl FnOnce(Vec<String>) -> anyhow::Result<Map<String, Value>>,
) -> anyhow::Result<Value> {
    let is = |object: &Map<String, Value>, key| object.get(key).and_then(Value::as_bool) == Some(true);
    if plan.contains_key("interrupted") {
        let messages = plan.remove("messages");
        let messages = messages.and_then(|messages| serde_json::from_value(messages).ok());
        return Err(nothing(messages.unwrap_or_default()));
    }
    let current = digest_of(&plan);
    let Some(digest) = digest else {
        let has_work =
            plan.get("changes").and_then(Value::as_array).is_some_and(|changes| !changes.is_empty());
        let can_be_applied = has_work && !is(&plan, "refused");
        let mut page = page_from(plan, "changes", offset, limit, false);
        // Only who has come to the end has seen it.
        let is_shown = page["changes"].as_array().is_some_and(|changes| !changes.is_empty());
        if can_be_applied && is_shown && page.get("next_offset").is_none() {
            page["digest"] = json!(current);
        }
        return Ok(page);
    };
    if digest != current || is(&plan, "refused") {
        let why = "nothing was changed: the digest is not that of the plan as it is now; call again without it, and look \
                   at the new plan";
        return Err(Nothing(why.to_owned()).into());
    }
    let ids = plan.get("recordings").and_then(Value::as_array).into_iter().flatten();
    let done = apply(ids.filter_map(|id| id.as_str().map(str::to_owned)).collect())?;
    if !is(&done, "applied") {
        let why = "nothing was changed: files have changed meanwhile; call again without the digest, and look at the new \
                   plan";
        return Err(Nothing(why.to_owned()).into());
    }
    Ok(page_from(done, "changes", offset, limit, false))
}

/// The digest of a plan: recordings, changes, conflicts, and all else that it tells.
fn digest_of(plan: &Map<String, Value>) -> String {
    let text = json!(plan).to_string();
    let digest = Digest::of(text.as_bytes()).to_string();
    digest.rsplit(':').next().unwrap_or_default().chars().take(16).collect()
}
