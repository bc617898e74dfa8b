//! One setting in the text of a settings file.

use std::path::{Path, PathBuf};

use jsonc_parser::cst::CstInputValue;

use super::error::Defect;
use super::json::ValueKind;
use super::server::ServerSlot;
use super::{PROGRAM, SHELL, json, toml, yaml};

/// Which setting it is, and in which format.
#[derive(Debug, Clone, Copy)]
pub enum Slot {
    /// A string in JSON, by the keys that lead to it; comments and trailing commas are allowed.
    Json(&'static [&'static str]),
    /// The item `NAME=value` of a list at the top of a YAML file.
    YamlAssignment {
        /// The key of the list.
        list: &'static str,
        /// The name that the value is assigned to.
        name: &'static str,
    },
    /// A switch in a table at the top of a TOML file, which is on: its value is `true`.
    TomlTrue {
        /// The name of the table.
        table: &'static str,
        /// The name of the switch.
        name: &'static str,
    },
    /// A hook in JSON, in an array beside those of others. Its value is the command that it runs.
    Hook(&'static HookSlot),
    /// A server of the Model Context Protocol, beside others. Its value is its settings as JSON without spaces.
    Server(&'static ServerSlot),
    /// The whole text.
    Text,
}

/// Where an agent has its hooks.
#[derive(Debug)]
pub struct HookSlot {
    /// The name of the agent, which our command has as an argument.
    pub agent: &'static str,
    /// The keys that lead to the array of entries.
    pub list: [&'static str; 2],
    /// The key of the array of hooks that each entry has; none if an entry is a hook.
    pub group: Option<&'static str>,
    /// The key of a hook's command.
    pub command: &'static str,
    /// The keys of a setting which, if it is false, has the agent run no hook.
    pub switch: Option<[&'static str; 2]>,
    /// The key of the format's version, and its value, if the file has to have one.
    pub version: Option<(&'static str, &'static str)>,
    /// Makes an entry whose hook runs a command.
    pub entry: fn(&str) -> CstInputValue,
}

impl HookSlot {
    /// The program that a command runs, if it is one of ours.
    pub fn program(&self, command: &str) -> Option<PathBuf> {
        let command = command.strip_suffix(AUTO_APPROVE).unwrap_or(command);
        let program = command.strip_suffix(self.agent)?.strip_suffix(" hook ")?;
        let program = match program.strip_prefix('\'') {
            Some(rest) => PathBuf::from(rest.strip_suffix('\'')?.replace(r"'\''", "'")),
            None => PathBuf::from(program),
        };
        program.file_name().is_some_and(|name| name == PROGRAM).then_some(program)
    }

    /// What the array is called in a message.
    pub fn label(&self) -> String {
        self.list.join(".")
    }
}

/// The value of a switch in TOML that is on.
pub const ON: &str = "true";

/// What is behind the command of a hook that may approve.
pub const AUTO_APPROVE: &str = " --auto-approve";

/// What a text says of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// Nothing.
    Absent,
    /// What it would be in is there without it.
    Without,
    /// This value.
    Value(String),
}

impl Setting {
    /// The value.
    pub fn value(self) -> Option<String> {
        match self {
            Setting::Value(value) => Some(value),
            Setting::Absent | Setting::Without => None,
        }
    }
}

impl Slot {
    /// What `text` says of the setting.
    ///
    /// # Errors
    /// The text has an error, or something of another type where the setting should be.
    pub fn find(self, text: &str) -> Result<Setting, Defect> {
        match self {
            Slot::Json(keys) => json::find(text, keys, ValueKind::String),
            Slot::YamlAssignment { list, name } => yaml::find(text, list, name),
            Slot::TomlTrue { table, name } => toml::find(text, table, name),
            Slot::Hook(slot) => json::find_hook(text, slot),
            Slot::Server(slot) if slot.is_toml => toml::find_table(text, slot.keys),
            Slot::Server(slot) => json::find(text, &slot.keys, ValueKind::Object),
            Slot::Text if text.is_empty() => Ok(Setting::Absent),
            Slot::Text => Ok(Setting::Value(text.to_owned())),
        }
    }

    /// Whether a value is what we set, in whichever version and place.
    pub fn is_ours(self, value: &str) -> bool {
        match self {
            Slot::Json(_) | Slot::YamlAssignment { .. } => is_our_shell(value),
            Slot::Hook(slot) => slot.program(value).is_some(),
            Slot::Server(slot) => slot.program(value).is_some(),
            // Only a receipt can tell.
            Slot::Text | Slot::TomlTrue { .. } => false,
        }
    }

    /// Whether a value that is there does what `value` does: the user may have added options to a server of ours.
    pub fn agrees(self, present: &str, value: &str) -> bool {
        match self {
            Slot::Server(slot) => {
                present == value || slot.program(present).is_some_and(|one| Some(one) == slot.program(value))
            }
            _ => present == value,
        }
    }

    /// The text with the setting.
    ///
    /// # Errors
    /// As of [`Slot::find`].
    pub fn set(self, text: &str, value: &str) -> Result<String, Defect> {
        match self {
            Slot::Json(keys) => json::set(text, keys, ValueKind::String, value),
            Slot::YamlAssignment { list, name } => yaml::set(text, list, name, value),
            Slot::TomlTrue { table, name } => toml::set(text, table, name, value),
            Slot::Hook(slot) => json::add_hook(text, slot, value),
            Slot::Server(slot) if slot.is_toml => toml::set_table(text, slot.keys, value),
            Slot::Server(slot) => json::set(text, &slot.keys, ValueKind::Object, value),
            Slot::Text => Ok(value.to_owned()),
        }
    }

    /// The text without the setting, and without what it is in if that is empty then and `with_parent`.
    ///
    /// # Errors
    /// As of [`Slot::find`].
    pub fn remove(self, text: &str, with_parent: bool) -> Result<String, Defect> {
        match self {
            Slot::Json(keys) => json::remove(text, keys, ValueKind::String, with_parent),
            Slot::YamlAssignment { list, name } => yaml::remove(text, list, name, with_parent),
            Slot::TomlTrue { table, name } => toml::remove(text, table, name, with_parent),
            Slot::Hook(slot) => json::remove_hook(text, slot, with_parent),
            Slot::Server(slot) if slot.is_toml => toml::remove_table(text, slot.keys, with_parent),
            Slot::Server(slot) => json::remove(text, &slot.keys, ValueKind::Object, with_parent),
            Slot::Text => Ok(String::new()),
        }
    }

    /// Whether it is in a list, of which an agent takes the one of a single file.
    pub fn is_list(self) -> bool {
        matches!(self, Slot::YamlAssignment { .. })
    }

    /// Whether it is in JSON.
    pub fn is_json(self) -> bool {
        matches!(self, Slot::Json(_) | Slot::Hook(_) | Slot::Server(ServerSlot { is_toml: false, .. }))
    }

    /// Whether nothing at all is in a text.
    pub fn is_blank(self, text: &str) -> bool {
        let packed = || text.split_whitespace().collect::<String>();
        match self {
            Slot::Json(_) => matches!(packed().as_str(), "" | "{}"),
            Slot::Hook(HookSlot { version: Some((key, value)), .. }) => {
                matches!(packed().as_str(), "" | "{}") || packed() == format!("{{\"{key}\":{value}}}")
            }
            Slot::Server(slot) if slot.is_toml => text.trim().is_empty(),
            Slot::Hook(_) | Slot::Server(_) => matches!(packed().as_str(), "" | "{}"),
            Slot::YamlAssignment { .. } | Slot::TomlTrue { .. } | Slot::Text => text.trim().is_empty(),
        }
    }

    /// What the setting is called in a message.
    pub fn label(self) -> String {
        match self {
            Slot::Json(keys) => keys.join("."),
            Slot::YamlAssignment { list, name } => format!("{name} in {list}"),
            Slot::TomlTrue { table, name } => format!("{table}.{name}"),
            Slot::Hook(slot) => slot.label(),
            Slot::Server(slot) => slot.keys.join("."),
            Slot::Text => "the text".to_owned(),
        }
    }
}

/// Whether a shell is ours, of whichever version and place.
pub fn is_our_shell(shell: &str) -> bool {
    Path::new(shell).file_name().is_some_and(|name| name == SHELL)
}
