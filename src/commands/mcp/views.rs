//! The tools that change nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::Value;

use super::page::{MOST, is_full, page};
use super::tools::{Project, collect, given, items, nothing, page_from, with_messages};
use crate::cli::{Cat, Diff, History, Log, PolicyCheck, PolicyRules, Show, duration, moment};
use crate::commands::exit::UsageError;
use crate::commands::out::{Collected, Console};
use crate::commands::{cat, check, diff, history, log, show};

/// The arguments of `log`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogInput {
    /// Only recordings that began within this time, such as 10m, 2h or 3d
    since: Option<String>,
    /// Only recordings that changed this path or something beneath it
    path: Option<String>,
    /// Also recordings that changed nothing
    #[serde(default)]
    reads: bool,
    /// How many of the newest recordings to skip
    #[serde(default)]
    offset: usize,
    /// At most this many recordings, up to 200
    #[serde(default = "items")]
    limit: usize,
}

/// Lists recordings.
pub fn log(project: &Project, input: LogInput) -> anyhow::Result<Value> {
    let LogInput { since, path, reads, offset, limit } = input;
    let args = Log {
        all: project.place.is_none(),
        reads,
        limit: limit.clamp(1, MOST),
        offset,
        since: given(since).as_deref().map(duration).transpose().map_err(UsageError)?,
        path: given(path).as_deref().map(|path| project.path_within(path)).transpose()?,
        access: project.access(),
        json: true,
        ..Log::default()
    };
    let object = collect(|console| log::run(&args, console))?;
    let listed = object.get("recordings").and_then(Value::as_array).map_or(0, Vec::len);
    let older = object.get("older").and_then(Value::as_u64).unwrap_or_default();
    let next = |kept| (kept < listed || older > 0).then_some(offset.saturating_add(kept));
    Ok(page(object, "recordings", |page| is_full(page, limit), next))
}

/// The arguments of `show`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowInput {
    /// The recording: an identifier from `log`, or @~1 for the one before the newest [default: the last that changed
    /// something]
    recording: Option<String>,
    /// Only these paths and everything beneath them
    #[serde(default)]
    paths: Vec<String>,
    /// Also paths that were only read or looked up
    #[serde(default)]
    reads: bool,
    /// What to list [default: files]
    #[serde(default)]
    list: ShowList,
    /// How many items of the list to skip
    #[serde(default)]
    offset: usize,
    /// At most this many items, up to 200
    #[serde(default = "items")]
    limit: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ShowList {
    #[default]
    Files,
    GitFiles,
    Processes,
    Network,
    Refused,
}

impl ShowList {
    const ALL: [ShowList; 5] =
        [ShowList::Files, ShowList::GitFiles, ShowList::Processes, ShowList::Network, ShowList::Refused];

    /// The key of the list in the object of `show`.
    fn key(self) -> &'static str {
        match self {
            ShowList::Files => "files",
            ShowList::GitFiles => "git_files",
            ShowList::Processes => "processes",
            ShowList::Network => "network",
            ShowList::Refused => "refused",
        }
    }
}

/// Shows what a recording did.
pub fn show(project: &Project, input: ShowInput) -> anyhow::Result<Value> {
    let ShowInput { recording, paths, reads, list, offset, limit } = input;
    let args = Show {
        snap: given(recording).map(PathBuf::from),
        paths: project.paths(&paths),
        changed: !reads,
        created: !reads,
        deleted: !reads,
        access: project.access().into(),
        json: true,
        ..Show::default()
    };
    let mut object = collect(|console| show::run(&args, console))?;
    for other in ShowList::ALL.into_iter().filter(|other| *other != list) {
        object.remove(other.key());
    }
    // Without a refusal there is no such key.
    object.entry(list.key()).or_insert_with(|| Value::Array(Vec::new()));
    Ok(page_from(object, list.key(), offset, limit, false))
}

/// The arguments of `diff`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffInput {
    /// The recording: an identifier from `log`, or @~1 for the one before the newest [default: the last that changed
    /// something]
    recording: Option<String>,
    /// Only these paths and everything beneath them
    #[serde(default)]
    paths: Vec<String>,
    /// How many paths to skip
    #[serde(default)]
    offset: usize,
    /// At most this many paths, up to 200
    #[serde(default = "items")]
    limit: usize,
}

/// Shows what a recording changed.
pub fn diff(project: &Project, input: DiffInput) -> anyhow::Result<Value> {
    let DiffInput { recording, paths, offset, limit } = input;
    let args = Diff {
        snap: given(recording).map(PathBuf::from),
        paths: project.paths(&paths),
        access: project.access().into(),
        ..Diff::default()
    };
    let mut collected = Collected::default();
    let mut console = Console::collecting(&mut collected);
    let is_enough = |changes: &[Value]| is_full(changes, limit);
    let (value, next) = diff::part(&args, project.place.as_deref(), offset, is_enough, &mut console)?;
    drop(console);
    let Value::Object(object) = value else { return Ok(value) };
    let object = with_messages(object, collected.messages);
    // The part is a page already, with both changes if two belong to the last path.
    Ok(page(object, "changes", |_| false, |_| next))
}

/// The arguments of `history`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryInput {
    /// The path; of a directory, what is beneath it counts
    path: String,
    /// How many of the newest recordings to skip
    #[serde(default)]
    offset: usize,
    /// At most this many recordings, up to 200
    #[serde(default = "items")]
    limit: usize,
}

/// Lists who changed a path.
pub fn history(project: &Project, input: HistoryInput) -> anyhow::Result<Value> {
    let HistoryInput { path, offset, limit } = input;
    let limit = limit.clamp(1, MOST);
    let args = History {
        path: project.path_within(&path)?,
        diff: false,
        limit: offset.saturating_add(limit),
        access: project.access(),
        json: true,
    };
    let mut object = collect(|console| history::run(&args, console))?;
    let has_more = object.remove("more").and_then(|more| more.as_bool()).unwrap_or_default();
    Ok(page_from(object, "recordings", offset, limit, has_more))
}

/// The arguments of `file_at`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileAtInput {
    /// The path
    path: String,
    /// The recording: an identifier from `log` [default, without `at`: the last that changed something]
    recording: Option<String>,
    /// What was there before the recorded command, not after it
    #[serde(default)]
    before: bool,
    /// Instead of `recording`: the time, such as 1h (before now), 2026-11-23 10:30, or 10:30 (today)
    at: Option<String>,
    /// How many bytes to skip
    #[serde(default)]
    offset: u64,
    /// At most this many bytes, up to 32768
    #[serde(default = "bytes")]
    limit: usize,
}

/// The most bytes of a file that are returned at once.
fn bytes() -> usize {
    32 << 10
}

/// Reads a version of a file.
pub fn file_at(project: &Project, input: FileAtInput) -> anyhow::Result<Value> {
    let FileAtInput { path, recording, before, at, offset, limit } = input;
    let (recording, at) = (given(recording), given(at));
    let at = at.as_deref().map(moment).transpose().map_err(UsageError)?;
    if at.is_some() && (recording.is_some() || before) {
        return Err(UsageError("file_at takes at, or recording and before".to_owned()).into());
    }
    let path = project.path_within(&path)?;
    let (snap, path) = match recording {
        Some(recording) => (PathBuf::from(recording), Some(path)),
        None => (PathBuf::from(path), None),
    };
    let args = Cat { snap, path, at, before, access: project.access().into(), json: true };
    // A character that the end of the window divides goes to the next one.
    let limit = limit.clamp(4, bytes());
    let mut collected = Collected::default();
    let part = cat::part(&args, offset, limit, &mut Console::collecting(&mut collected))?;
    let Some((Value::Object(mut object), mut window)) = part else { return Err(nothing(collected.messages)) };
    let end = offset.saturating_add(window.len() as u64);
    let size = object.get("size").and_then(Value::as_u64).unwrap_or(end);
    if end < size
        && let Err(error) = std::str::from_utf8(&window)
        && error.error_len().is_none()
    {
        window.truncate(error.valid_up_to());
    }
    let end = offset.saturating_add(window.len() as u64);
    let (encoding, content) = match String::from_utf8(window) {
        Ok(text) => ("utf-8", text),
        Err(error) => ("base64", BASE64.encode(error.as_bytes())),
    };
    object.insert("encoding".to_owned(), encoding.into());
    object.insert("content".to_owned(), content.into());
    if end < size {
        object.insert("next_offset".to_owned(), end.into());
    }
    Ok(Value::Object(with_messages(object, collected.messages)))
}

/// The arguments of `check`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckInput {
    /// The recording: an identifier from `log`, or @~1 for the one before the newest [default: the last that changed
    /// something]
    recording: Option<String>,
    /// Report every change but those of these paths and what is beneath them
    #[serde(default)]
    allow_write: Vec<String>,
    /// Report changes of these paths
    #[serde(default)]
    deny_write: Vec<String>,
    /// Report every read, listing and execution but those of these paths, such as @workspace and @system
    #[serde(default)]
    allow_read: Vec<String>,
    /// Report that files at these paths were read or executed
    #[serde(default)]
    deny_read: Vec<String>,
    /// Report every execution but those of these programs
    #[serde(default)]
    allow_exec: Vec<String>,
    /// Report executions of these programs
    #[serde(default)]
    deny_exec: Vec<String>,
    /// Report uses of every socket address but these, those of AF_UNIX and netlink
    #[serde(default)]
    allow_net: Vec<String>,
    /// Report uses of these socket addresses: an address or network, localhost, :PORT, unix:GLOB, or * for all but
    /// AF_UNIX and netlink
    #[serde(default)]
    deny_net: Vec<String>,
    /// Report uses of every AF_UNIX socket but these
    #[serde(default)]
    allow_unix: Vec<String>,
    /// How many findings to skip
    #[serde(default)]
    offset: usize,
    /// At most this many findings, up to 200
    #[serde(default = "items")]
    limit: usize,
}

/// Checks a recording by rules.
pub fn check(project: &Project, input: CheckInput) -> anyhow::Result<Value> {
    let words = |words: Vec<String>| words.into_iter().map(OsString::from).collect();
    let rules = PolicyRules {
        allow_write: words(input.allow_write),
        deny_write: words(input.deny_write),
        allow_read: words(input.allow_read),
        deny_read: words(input.deny_read),
        allow_exec: words(input.allow_exec),
        deny_exec: words(input.deny_exec),
        allow_net: words(input.allow_net),
        deny_net: words(input.deny_net),
        allow_unix: words(input.allow_unix),
        policy: None,
    };
    let args = PolicyCheck {
        snap: given(input.recording).map(PathBuf::from),
        all: false,
        rules,
        explain: None,
        allow_incomplete: false,
        sarif: false,
        code_quality: false,
        access: project.access().into(),
        json: true,
    };
    let object = collect(|console| check::run(&args, console))?;
    Ok(page_from(object, "findings", input.offset, input.limit, false))
}
