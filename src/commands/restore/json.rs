//! The JSON of a restore.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::OutcomeForm;
use crate::commands::json::{PathJson, paths, reasons};
use crate::restore::outcome::RestoreOutcome;
use crate::restore::request::RestoreRequest;
use crate::snapshot::Snapshot;
use crate::snapshot::wire::{Each, JsonObject};

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
        let mut object = JsonObject(serializer.serialize_map(None)?);
        match self.form.at {
            Some(time) => object.put("at", &time.to_string())?,
            None => object.put("id", &self.snapshot.header().id)?,
        }
        if let Some(undo) = &self.form.undo {
            object.put("recordings", undo.recordings)?;
        }
        if self.form.at.is_none() {
            object.put("state", self.request.wanted.name())?;
        }
        object.put("dry_run", &self.request.dry_run)?;
        object.put("applied", &outcome.applied)?;
        object.put("refused", &outcome.is_refused)?;
        object.put("completed", &outcome.completed)?;
        object.put("already", &outcome.at_wanted)?;
        let changes = outcome.changes.iter();
        let changes = changes.map(|(path, change)| PathJson(path, "change", Some(change.name())));
        object.put("changes", &Each(|| changes.clone()))?;
        object.put("conflicts", &reasons(&outcome.conflicts))?;
        object.put("obstacles", &reasons(&outcome.obstacles))?;
        object.put("unavailable", &reasons(&outcome.unavailable))?;
        object.put("left", &reasons(&outcome.left))?;
        let merged = outcome.merged.iter();
        let merged = merged.map(|(path, merged)| PathJson(path, "conflicts", Some(merged.conflicts)));
        object.put("merged", &Each(|| merged.clone()))?;
        object.put("not_linked", &paths(outcome.not_linked.iter().map(Vec::as_slice)))?;
        object.put("not_given", &reasons(&outcome.shortfalls))?;
        let rescues = outcome.rescues.iter().map(|path| path.as_os_str().as_encoded_bytes());
        object.put("rescues", &paths(rescues))?;
        let suppressed = self.snapshot.header().suppressed.iter().flat_map(|rule| &rule.changed);
        object.put("not_brought_back", &paths(suppressed.map(Vec::as_slice)))?;
        object.0.end()
    }
}
