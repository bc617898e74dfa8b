//! The table of the tools, and what they have in common. `views.rs` and `changes.rs` call the verbs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use rmcp::model::{Tool, ToolAnnotations};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::page::{is_full, page};
use super::{changes, schema, views};
use crate::cli::{Mcp, SessionAccess};
use crate::commands::exit::{Nothing, UsageError, VerbResult};
use crate::commands::out::{Collected, Console};
use crate::commands::paths::{live, quoted};
use crate::git::below;
use crate::library::scope::Scope;

/// What the server is about.
pub struct Project {
    /// What relative paths are relative to. It may be gone by now, with all that is in it.
    directory: PathBuf,
    /// The working tree, or the directory where there is none; nothing if the server is about everything.
    pub place: Option<Vec<u8>>,
}

impl Project {
    /// The project that the options choose.
    pub fn new(args: &Mcp) -> anyhow::Result<Project> {
        if let Some(directory) = &args.directory {
            let shown = quoted(directory.as_os_str().as_bytes());
            std::env::set_current_dir(directory).with_context(|| format!("change to {shown}"))?;
        }
        let directory = std::env::current_dir().context("find the current directory")?;
        Ok(Project { directory, place: Scope::here(None).place.filter(|_| !args.all) })
    }

    /// Whose recordings are in reach.
    pub fn access(&self) -> SessionAccess {
        SessionAccess { confined_to: self.place.clone(), recordings_only: true, ..SessionAccess::default() }
    }

    /// A path as a verb takes it.
    fn path(&self, path: &str) -> OsString {
        // Which the verb refuses.
        if path.is_empty() { OsString::new() } else { self.directory.join(path).into_os_string() }
    }

    /// Paths as a verb takes them.
    pub fn paths(&self, paths: &[String]) -> Vec<OsString> {
        paths.iter().map(|path| self.path(path)).collect()
    }

    /// A path that has to be in the project.
    pub fn path_within(&self, path: &str) -> anyhow::Result<OsString> {
        let full = self.path(path);
        if let Some(place) = &self.place
            && !live(&full)?.iter().all(|one| below(one, place).is_some())
        {
            let (path, place) = (quoted(path.as_bytes()), quoted(place));
            return Err(UsageError(format!("{path} is not in this project, {place}")).into());
        }
        Ok(full)
    }
}

/// A tool.
pub struct ToolRow {
    /// What it is called.
    pub name: &'static str,
    title: &'static str,
    description: &'static str,
    /// Whether it changes files.
    is_change: bool,
    input: fn(Tool) -> Tool,
    output: fn() -> Value,
    /// Calls it.
    pub call: fn(&Project, Map<String, Value>) -> anyhow::Result<Value>,
}

impl ToolRow {
    /// What a client is told of it.
    pub fn described(&self) -> Tool {
        let annotations = ToolAnnotations::new()
            .read_only(!self.is_change)
            .destructive(self.is_change)
            // An undo with the digest of a plan that was carried out is refused.
            .idempotent(true)
            .open_world(false);
        let Value::Object(output) = (self.output)() else { unreachable!("a schema is an object") };
        let tool = Tool::new(self.name, self.description, Map::new())
            .with_title(self.title)
            .with_raw_output_schema(output.into())
            .annotate(annotations);
        let mut tool = (self.input)(tool);
        schema::tidy(&mut tool.input_schema);
        tool
    }
}

/// The tools, in the order in which they are listed.
pub static TOOLS: [ToolRow; 8] = [
    ToolRow {
        name: "log",
        title: "List recordings",
        description: "List the recordings of commands and edits in this project, the newest first: identifier, time, \
            command, exit status, and how many paths each created, changed and deleted.",
        is_change: false,
        input: Tool::with_input_schema::<views::LogInput>,
        output: schema::log,
        call: |project, arguments| views::log(project, parse(arguments)?),
    },
    ToolRow {
        name: "show",
        title: "Show a recording",
        description: "Show what a recorded command did: which paths it changed, created and deleted, with their states \
            before and after, which processes and network addresses it used, or what rules refused.",
        is_change: false,
        input: Tool::with_input_schema::<views::ShowInput>,
        output: schema::show,
        call: |project, arguments| views::show(project, parse(arguments)?),
    },
    ToolRow {
        name: "diff",
        title: "Show changes as a patch",
        description: "Show what a recorded command changed in this project, as one unified diff for each path.",
        is_change: false,
        input: Tool::with_input_schema::<views::DiffInput>,
        output: schema::diff,
        call: |project, arguments| views::diff(project, parse(arguments)?),
    },
    ToolRow {
        name: "undo",
        title: "Undo recordings",
        description: "Take back what recorded commands changed. Without `digest` it changes nothing and returns the plan: \
            each path that would be changed, the conflicts, and on its last page a digest. With that digest and otherwise \
            the same arguments it carries the plan out, unless anything has changed meanwhile. What it overwrites is kept: \
            `redo` puts that back.",
        is_change: true,
        input: Tool::with_input_schema::<changes::UndoInput>,
        output: schema::undo,
        call: |project, arguments| changes::undo(project, parse(arguments)?),
    },
    ToolRow {
        name: "redo",
        title: "Redo what was undone",
        description: "Do again what `undo` took back. Without `digest` it changes nothing and returns the plan and, on its \
            last page, a digest; with that digest it carries the plan out, unless anything has changed meanwhile.",
        is_change: true,
        input: Tool::with_input_schema::<changes::RedoInput>,
        output: schema::undo,
        call: |project, arguments| changes::redo(project, parse(arguments)?),
    },
    ToolRow {
        name: "history",
        title: "List who changed a path",
        description: "List the recordings that changed a path of this project or something beneath it, the newest first, \
            with the programs that did it and the sizes before and after.",
        is_change: false,
        input: Tool::with_input_schema::<views::HistoryInput>,
        output: schema::history,
        call: |project, arguments| views::history(project, parse(arguments)?),
    },
    ToolRow {
        name: "file_at",
        title: "Read an earlier version of a file",
        description: "Read what a file of this project contained after or before a recording, or at a time. `offset` and \
            `limit` are in bytes.",
        is_change: false,
        input: Tool::with_input_schema::<views::FileAtInput>,
        output: schema::file_at,
        call: |project, arguments| views::file_at(project, parse(arguments)?),
    },
    ToolRow {
        name: "check",
        title: "Check a recording by rules",
        description: "Check whether a recorded command wrote, read or contacted what rules forbid. At least one rule is \
            needed. A pattern is one of .gitignore, or @workspace, @tmp, @secrets.",
        is_change: false,
        input: Tool::with_input_schema::<views::CheckInput>,
        output: schema::check,
        call: |project, arguments| views::check(project, parse(arguments)?),
    },
];

/// The tool of this name.
pub fn find(name: &str) -> Option<&'static ToolRow> {
    TOOLS.iter().find(|tool| tool.name == name)
}

fn parse<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, UsageError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| UsageError(format!("invalid arguments: {error}")))
}

/// Runs a verb, and returns its object with its messages.
pub fn collect(run: impl FnOnce(&mut Console) -> VerbResult) -> anyhow::Result<Map<String, Value>> {
    let mut collected = Collected::default();
    run(&mut Console::collecting(&mut collected))?;
    object_of(collected)
}

/// The object that a verb has told, with its messages; these are the error of one that has told none.
pub fn object_of(Collected { value, messages }: Collected) -> anyhow::Result<Map<String, Value>> {
    match value {
        Some(Value::Object(object)) => Ok(with_messages(object, messages)),
        _ => Err(nothing(messages)),
    }
}

/// The object with what a verb said.
pub fn with_messages(mut object: Map<String, Value>, messages: Vec<String>) -> Map<String, Value> {
    if !messages.is_empty() {
        object.insert("messages".to_owned(), messages.into());
    }
    object
}

/// The error of a verb that has only messages.
pub fn nothing(messages: Vec<String>) -> anyhow::Error {
    Nothing(messages.join("; ")).into()
}

/// A page of the list at `key` of an object, which begins with the item `offset`; `has_more` says that the list goes on
/// behind what is there.
pub fn page_from(
    mut object: Map<String, Value>,
    key: &str,
    offset: usize,
    limit: usize,
    has_more: bool,
) -> Value {
    let items = object.get_mut(key).and_then(Value::as_array_mut);
    let count = items.map_or(0, |items| {
        let count = items.len();
        items.drain(..offset.min(count));
        count
    });
    let next = |kept| {
        let end = offset.saturating_add(kept);
        (end < count || has_more).then_some(end)
    };
    page(object, key, |page| is_full(page, limit), next)
}

/// How many items a page has, unless the caller says it.
pub fn items() -> usize {
    50
}

/// An optional argument. Models also give an empty text for none.
pub fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}
