//! The JSON of a restore.

use std::collections::BTreeMap;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::OutcomeForm;
use crate::commands::branch::ReasonsJson;
use crate::commands::json;
use crate::restore::merge::Merged;
use crate::restore::outcome::{PathChange, RestoreOutcome};
use crate::restore::request::RestoreRequest;
use crate::snapshot::Snapshot;

/// The JSON of the outcome.
pub struct RestoreJson<'a> {
    /// What was restored.
    pub snapshot: &'a Snapshot,
    /// How.
    pub request: &'a RestoreRequest<'a>,
    /// What is reported of it.
    pub form: &'a OutcomeForm<'a>,
    /// What came of it.
    pub outcome: &'a RestoreOutcome,
}

impl Serialize for RestoreJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let outcome = self.outcome;
        let mut object = serializer.serialize_map(None)?;
        match self.form.at {
            Some(time) => object.serialize_entry("at", &time.to_string())?,
            None => object.serialize_entry("id", &self.snapshot.header().id)?,
        }
        if let Some(undo) = &self.form.undo {
            object.serialize_entry("recordings", undo.recordings)?;
        }
        if self.form.at.is_none() {
            object.serialize_entry("state", self.request.wanted.name())?;
        }
        object.serialize_entry("dry_run", &self.request.dry_run)?;
        object.serialize_entry("applied", &outcome.applied)?;
        object.serialize_entry("refused", &outcome.is_refused)?;
        object.serialize_entry("completed", &outcome.completed)?;
        object.serialize_entry("already", &outcome.at_wanted)?;
        object.serialize_entry("changes", &ChangesJson(&outcome.changes))?;
        object.serialize_entry("conflicts", &ReasonsJson(&outcome.conflicts))?;
        object.serialize_entry("obstacles", &ReasonsJson(&outcome.obstacles))?;
        object.serialize_entry("unavailable", &ReasonsJson(&outcome.unavailable))?;
        object.serialize_entry("left", &ReasonsJson(&outcome.left))?;
        object.serialize_entry("merged", &MergedJson(&outcome.merged))?;
        object.serialize_entry(
            "not_linked",
            &PathsJson(outcome.not_linked.iter().map(Vec::as_slice).collect()),
        )?;
        object.serialize_entry("not_given", &ReasonsJson(&outcome.shortfalls))?;
        let rescues = outcome.rescues.iter().map(|path| path.as_os_str().as_encoded_bytes());
        object.serialize_entry("rescues", &PathsJson(rescues.collect()))?;
        let suppressed = self.snapshot.header().suppressed.iter().flat_map(|rule| &rule.changed);
        object.serialize_entry("not_brought_back", &PathsJson(suppressed.map(Vec::as_slice).collect()))?;
        object.end()
    }
}

struct ChangesJson<'a>(&'a [(Vec<u8>, PathChange)]);

impl Serialize for ChangesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ChangeJson))
    }
}

struct ChangeJson<'a>(&'a (Vec<u8>, PathChange));

impl Serialize for ChangeJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        json::put_text(&mut object, "path", &self.0.0)?;
        object.serialize_entry("change", self.0.1.name())?;
        object.end()
    }
}

struct MergedJson<'a>(&'a BTreeMap<Vec<u8>, Merged>);

impl Serialize for MergedJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(path, merged)| MergedFileJson(path, merged.conflicts)))
    }
}

struct MergedFileJson<'a>(&'a [u8], usize);

impl Serialize for MergedFileJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        json::put_text(&mut object, "path", self.0)?;
        object.serialize_entry("conflicts", &self.1)?;
        object.end()
    }
}

struct PathsJson<'a>(Vec<&'a [u8]>);

impl Serialize for PathsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|path| PathJson(path)))
    }
}

struct PathJson<'a>(&'a [u8]);

impl Serialize for PathJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        json::put_text(&mut object, "path", self.0)?;
        object.end()
    }
}
