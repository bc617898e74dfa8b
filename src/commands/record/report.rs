//! What a recording says at its end: a few lines for people, or one JSON object.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use crate::cli::Report;
use crate::snapshot::{FileRecord, Header, Operation, State, printable};

/// How many suppressed changes are named.
const NAMED: usize = 5;

/// What the records come to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    paths: u64,
    read: u64,
    created: u64,
    changed: u64,
    deleted: u64,
}

impl Facts {
    /// Counts one record.
    pub fn count(&mut self, file: &FileRecord) {
        self.paths += 1;
        match (&file.before, &file.after) {
            (State::Absent { .. }, State::Present(_)) => self.created += 1,
            (State::Present(_), State::Absent { .. }) => self.deleted += 1,
            (State::Present(before), State::Present(after)) if file.changes() => {
                let same = before.digest == after.digest
                    && before.mode == after.mode
                    && before.target == after.target;
                self.changed += u64::from(!same);
            }
            _ => {}
        }
        self.read += u64::from(file.operations.contains(Operation::Read));
    }
}

impl FileRecord {
    /// Whether the tree changed the path, whatever it is now.
    fn changes(&self) -> bool {
        self.operations.intersects(crate::snapshot::Operations::CHANGES)
    }
}

/// The report, with its final newline; nothing where none is wanted.
pub fn render(kind: Report, header: &Header, facts: &Facts, elapsed: Duration, directory: &str) -> String {
    match kind {
        Report::None => String::new(),
        Report::Summary => summary(header, facts, elapsed, directory),
        Report::Json => {
            let warnings: Vec<_> = header.warnings.iter().map(|warning| &warning.detail).collect();
            let report = json!({
                "snapshot": directory, "exit_status": header.exit_status, "complete": header.complete,
                "seconds": elapsed.as_secs_f64(), "processes": header.processes.len(), "paths": facts.paths,
                "created": facts.created, "changed": facts.changed, "deleted": facts.deleted,
                "read": facts.read, "warnings": warnings,
            });
            format!("{report}\n")
        }
    }
}

fn summary(header: &Header, facts: &Facts, elapsed: Duration, directory: &str) -> String {
    let mut text = String::new();
    let Facts { created, changed, deleted, read, .. } = facts;
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "agent-snapshot: {created} created, {changed} changed, {deleted} deleted, {read} read; {} processes, {:.1} s → {directory}",
        header.processes.len(),
        elapsed.as_secs_f64(),
    );
    for warning in header.warnings.iter().filter(|warning| warning.lost) {
        let times = if warning.count > 1 { format!(" ({} times)", warning.count) } else { String::new() };
        let _ = writeln!(text, "agent-snapshot: incomplete: {}{times}", printable(warning.detail.as_bytes()));
    }
    let unrecorded: Vec<_> = header.suppressed.iter().flat_map(|rule| &rule.changed).collect();
    if !unrecorded.is_empty() {
        let named: Vec<_> = unrecorded.iter().take(NAMED).map(|path| printable(path)).collect();
        let more = if unrecorded.len() > NAMED {
            format!(" and {} more", unrecorded.len() - NAMED)
        } else {
            String::new()
        };
        let _ = writeln!(text, "agent-snapshot: changed but not recorded: {}{more}", named.join(", "));
    }
    text
}
