//! One setting in the text of a settings file.

use super::error::Defect;
use super::{json, yaml};

/// Which setting names the shell, and in which format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

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
            Slot::Json(keys) => json::find(text, keys),
            Slot::YamlAssignment { list, name } => yaml::find(text, list, name),
        }
    }

    /// The text with the setting.
    ///
    /// # Errors
    /// As of [`Slot::find`].
    pub fn set(self, text: &str, value: &str) -> Result<String, Defect> {
        match self {
            Slot::Json(keys) => json::set(text, keys, value),
            Slot::YamlAssignment { list, name } => yaml::set(text, list, name, value),
        }
    }

    /// The text without the setting, and without what it is in if that is empty then and `with_parent`.
    ///
    /// # Errors
    /// As of [`Slot::find`].
    pub fn remove(self, text: &str, with_parent: bool) -> Result<String, Defect> {
        match self {
            Slot::Json(keys) => json::remove(text, keys, with_parent),
            Slot::YamlAssignment { list, name } => yaml::remove(text, list, name, with_parent),
        }
    }

    /// Whether it is in a list, of which an agent takes the one of a single file.
    pub fn is_list(self) -> bool {
        matches!(self, Slot::YamlAssignment { .. })
    }

    /// Whether nothing at all is in a text.
    pub fn is_blank(self, text: &str) -> bool {
        match self {
            Slot::Json(_) => matches!(text.split_whitespace().collect::<String>().as_str(), "" | "{}"),
            Slot::YamlAssignment { .. } => text.trim().is_empty(),
        }
    }

    /// What the setting is called in a message.
    pub fn label(self) -> String {
        match self {
            Slot::Json(keys) => keys.join("."),
            Slot::YamlAssignment { list, name } => format!("{name} in {list}"),
        }
    }
}
