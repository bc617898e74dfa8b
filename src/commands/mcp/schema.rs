//! What the results of the tools look like, as JSON Schema: the objects of `--json`, in pages.

use std::sync::Arc;

use rmcp::model::JsonObject;
use serde_json::{Value, json};

use crate::policy::RuleWord;

/// Removes what schemars adds and some clients refuse: `format` of integers, since they do not know `uint`, and null, which
/// is a type and the default of each optional argument.
pub fn tidy(schema: &mut Arc<JsonObject>) {
    fn strip(schema: &mut Value) {
        match schema {
            Value::Object(entries) => {
                let is_refused = |key: &str, value: &Value| {
                    key == "format" && value.is_string() || key == "default" && value.is_null()
                };
                entries.retain(|key, value| !is_refused(key, value));
                if let Some(Value::Array(types)) = entries.get_mut("type") {
                    types.retain(|one| one != "null");
                    if types.len() == 1 {
                        entries["type"] = types.remove(0);
                    }
                }
                entries.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    Arc::make_mut(schema).values_mut().for_each(strip);
}

/// Of `log`.
pub fn log() -> Value {
    let recording = recording(
        json!({
            "title": text("The command line, if the command is a shell that was started for it"),
            "cwd": text("The directory that it was started in"),
            "status": {"type": "integer", "description": "The exit status"},
            "refused": count("How many of its calls rules refused"),
            "created": count("How many paths it created"),
            "changed": count("How many paths it changed"),
            "deleted": count("How many paths it deleted")
        }),
        &["cwd", "status", "created", "changed", "deleted"],
    );
    paged(
        "recordings",
        recording,
        json!({
            "changed_nothing": count("How many recordings changed nothing and are left out"),
            "older": count("How many older recordings there are"),
            "evicted": count("How many of the newest were deleted for their size"),
            "gaps": {"type": "array", "items": {"type": "object"}, "description": "Commands that were not recorded"}
        }),
        &["changed_nothing", "older", "evicted"],
    )
}

/// Of `show`.
pub fn show() -> Value {
    let mut schema = paged(
        "files",
        file(),
        json!({
            "id": text("The identifier of the recording"),
            "command": texts("The command and its arguments"),
            "exit_status": {"type": "integer"},
            "start_cwd": text("The directory that it was started in"),
            "started_at": text("When it was started, RFC 3339"),
            "finished_at": text("When its last process had ended, RFC 3339"),
            "complete": {"type": "boolean", "description": "Whether nothing was lost sight of"},
            "counts": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "How many of the selected paths have each status"
            },
            "git_changes": {
                "type": "array", "items": {"type": "object"}, "description": "What became of Git's state"
            },
            "git_files": {"type": "array", "items": file()},
            "processes": {"type": "array", "items": {"type": "object"}},
            "network": {"type": "array", "items": {"type": "object"}},
            "refused": {"type": "array", "items": {"type": "object"}},
            "refused_calls": count("How many calls rules refused")
        }),
        &["id", "command", "exit_status", "start_cwd", "started_at", "complete", "counts"],
    );
    // One of the lists is there.
    if let Some(required) = schema["required"].as_array_mut() {
        required.retain(|key| key != "files");
    }
    schema
}

fn file() -> Value {
    let state = json!({
        "type": "object", "properties": {"exists": {"type": "boolean"}}, "required": ["exists"]
    });
    json!({
        "type": "object",
        "properties": {
            "path": text("The absolute path"),
            "status": {
                "type": "string",
                "enum": ["changed", "created", "deleted", "mount_point", "temporary", "unaltered", "read", "existence"]
            },
            "differs": texts("What of a changed path differs"),
            "operations": texts("What was done with it"),
            "before": state,
            "after": state
        },
        "required": ["path", "status", "operations"]
    })
}

/// Of `diff`.
pub fn diff() -> Value {
    let change = json!({
        "type": "object",
        "properties": {
            "path": text("The absolute path"),
            "status": {"type": "string", "enum": ["added", "deleted", "modified", "renamed", "type_changed"]},
            "renamed_from": text("What it was called before"),
            "binary": {"type": "boolean"},
            "insertions": count("How many lines were added"),
            "deletions": count("How many lines were removed"),
            "patch": text("A unified diff relative to base, which git apply takes")
        },
        "required": ["path", "status"]
    });
    paged(
        "changes",
        change,
        json!({
            "base": text("The directory that the names in patches are relative to"),
            "unsupported": paths("Changes that a patch can't express"),
            "outside": paths("Changed paths that are not below base"),
            "inherited": paths("Paths that were written through an inherited descriptor alone"),
            "unavailable": paths("Paths whose content is unavailable")
        }),
        &["base", "unsupported", "outside", "inherited", "unavailable"],
    )
}

/// Of `undo` and `redo`.
pub fn undo() -> Value {
    let change = json!({
        "type": "object",
        "properties": {
            "path": text("The absolute path"),
            "change": {
                "type": "string",
                "enum": ["create", "replace", "write_in_place", "hard_link", "attributes", "remove"]
            }
        },
        "required": ["path", "change"]
    });
    paged(
        "changes",
        change,
        json!({
            "id": text("The identifier of the snapshot whose state is put back"),
            "recordings": texts("The recordings that are undone or redone"),
            "dry_run": {"type": "boolean", "description": "Whether this is only a plan"},
            "applied": {"type": "boolean", "description": "Whether the changes were made"},
            "refused": {"type": "boolean", "description": "Whether conflicts or missing content are in the way"},
            "digest": text("What carries the plan out, on its last page if it can be carried out"),
            "already": count("How many paths are as they were already"),
            "conflicts": paths("Paths that something else has changed since, and what"),
            "obstacles": paths("Paths that can't be put back, and why"),
            "unavailable": paths("Paths whose content is unavailable"),
            "left": paths("Paths that are left as they are, and why"),
            "rescues": paths("Where what was overwritten is"),
            "not_brought_back": paths("Paths that the command changed and the recording left out")
        }),
        &["dry_run", "applied", "refused", "conflicts", "obstacles", "unavailable", "left"],
    )
}

/// Of `history`.
pub fn history() -> Value {
    let recording = recording(
        json!({
            "programs": texts("The programs that changed the path"),
            "changes": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "path": text("The absolute path"),
                        "effect": {"type": "string", "enum": ["created", "deleted", "changed"]},
                        "size_before": count("The size before, in bytes"),
                        "size_after": count("The size after, in bytes")
                    },
                    "required": ["path", "effect"]
                }
            }
        }),
        &["programs", "changes"],
    );
    paged(
        "recordings",
        recording,
        json!({
            "path": text("The absolute path"),
            "changed_since": {
                "type": "boolean", "description": "Whether something that was not recorded has changed it since"
            }
        }),
        &["path", "changed_since"],
    )
}

/// Of `file_at`.
pub fn file_at() -> Value {
    let mut properties = json!({
        "path": text("The absolute path"),
        "state": {"type": "string", "enum": ["before", "after"]},
        "at": text("The time that was asked for"),
        "type": text("file or symlink, whose content is its target"),
        "size": count("The size of the file, in bytes"),
        "digest": text("The digest of the whole content"),
        "source": text("Where the content comes from"),
        "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
        "content": text("The bytes from offset on")
    });
    add_common(&mut properties);
    json!({"type": "object", "properties": properties, "required": ["path", "encoding", "content"]})
}

/// Of `check`.
pub fn check() -> Value {
    let finding = json!({
        "type": "object",
        "properties": {
            "rule": {"type": "string", "enum": RuleWord::ALL.map(RuleWord::name)},
            "pattern": text("The pattern that matched"),
            "path": text("The path"),
            "operations": texts("What was done with it"),
            "network": {"type": "object", "description": "The socket address"},
            "processes": {"type": "array", "items": {"type": "object"}}
        },
        "required": ["rule", "processes"]
    });
    paged(
        "findings",
        finding,
        json!({
            "id": text("The identifier of the recording"),
            "verdict": {"type": "string", "enum": ["pass", "fail", "unknown"]},
            "complete": {"type": "boolean", "description": "Whether the recording lost sight of nothing"},
            "unknown": {"type": "array", "description": "What may be missing from the findings"},
            "notes": {"type": "array", "description": "What the rules did not judge"},
            "refused": {
                "type": "array", "items": {"type": "object"}, "description": "What was refused when rules were enforced"
            }
        }),
        &["id", "verdict", "complete", "unknown", "notes"],
    )
}

/// A recording in a list, with these properties besides.
fn recording(mut properties: Value, required: &[&str]) -> Value {
    properties["id"] = text("What other tools take as recording");
    properties["time"] = text("When the command was started, RFC 3339");
    properties["command"] = texts("The command and its arguments");
    properties["session"] = text("The session of the agent that ran it");
    properties["state"] = json!({"type": "string", "enum": ["ended", "running", "killed", "unrecovered"]});
    properties["undone"] = text("When it was undone, if it is");
    let required: Vec<&str> = ["id", "time", "command", "state"].iter().chain(required).copied().collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// An object with a list that comes in pages, and these properties besides.
fn paged(list: &str, item: Value, mut properties: Value, required: &[&str]) -> Value {
    properties[list] = json!({"type": "array", "items": item});
    add_common(&mut properties);
    let required: Vec<&str> = required.iter().copied().chain([list]).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn add_common(properties: &mut Value) {
    properties["next_offset"] = count("The offset of the next page, unless this is the last");
    properties["messages"] = texts("What else there is to know");
    properties["cut"] = json!({
        "type": "array",
        "description": "What was shortened: at this place, so many bytes or items are kept, of so many",
        "items": {
            "type": "object",
            "properties": {"at": text("A JSON pointer"), "kept": count("Kept"), "of": count("Of")},
            "required": ["at", "kept", "of"]
        }
    });
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn texts(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": description})
}

fn count(description: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "description": description})
}

fn paths(description: &str) -> Value {
    let item = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    json!({"type": "array", "items": item, "description": description})
}
