//! The gaps and notes of a recording, counted by kind, each with its first example.

use std::collections::BTreeMap;

use super::ledger::ids::ProcessId;
use crate::snapshot::{Warning, WarningKind};

/// How many processes a warning names.
const NAMED_PROCESSES: usize = 16;

/// The warnings of a recording.
#[derive(Debug, Default, Clone)]
pub struct Warnings(BTreeMap<(WarningKind, bool), Warning>);

impl Warnings {
    /// Counts something that was lost sight of; `detail` is kept of the first.
    pub fn lost(&mut self, kind: WarningKind, process: Option<ProcessId>, detail: impl FnOnce() -> String) {
        self.add(kind, true, process, detail);
    }

    /// Counts something that is worth knowing but loses nothing.
    pub fn note(&mut self, kind: WarningKind, process: Option<ProcessId>, detail: impl FnOnce() -> String) {
        self.add(kind, false, process, detail);
    }

    fn add(
        &mut self,
        kind: WarningKind,
        lost: bool,
        process: Option<ProcessId>,
        detail: impl FnOnce() -> String,
    ) {
        let warning = self.0.entry((kind, lost)).or_insert_with(|| Warning {
            kind,
            lost,
            count: 0,
            detail: detail(),
            processes: Vec::new(),
        });
        warning.count += 1;
        if let Some(ProcessId(id)) = process
            && warning.processes.len() < NAMED_PROCESSES
            && !warning.processes.contains(&id)
        {
            warning.processes.push(id);
        }
    }

    /// The warnings in order of their kind.
    pub fn into_vec(self) -> Vec<Warning> {
        self.0.into_values().collect()
    }
}
