//! What a recording prints: its messages, and the report at the end, a few lines to read or one JSON object.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::cli::ReportFormat;
use crate::commands::paths::counted;
use crate::library::reference::Reference;
use crate::policy::PolicyVerdict;
use crate::snapshot::change::PathEffect;
use crate::snapshot::{FileRecord, Header, Operation, Warning, WarningKind, printable};

/// How many suppressed changes are named.
const NAMED: usize = 5;

/// How many records there are of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RecordCounts {
    paths: u64,
    read: u64,
    created: u64,
    changed: u64,
    deleted: u64,
    /// Git's state that is not as before.
    git: u64,
    /// Written only through a descriptor from before the command, and none of the above.
    inherited: u64,
}

impl RecordCounts {
    /// Counts one record, of whose path this became.
    pub fn count(&mut self, file: &FileRecord, effect: PathEffect) {
        if file.is_git_state {
            self.git += 1;
            return;
        }
        self.paths += 1;
        let count = match effect {
            PathEffect::MountPoint | PathEffect::Temporary | PathEffect::None => None,
            // A log that the shell redirects to is not a change that the command made.
            _ if file.is_inherited_alone() => Some(&mut self.inherited),
            PathEffect::Created => Some(&mut self.created),
            PathEffect::Deleted => Some(&mut self.deleted),
            PathEffect::Changed => Some(&mut self.changed),
            PathEffect::Unaltered => None,
        };
        if let Some(count) = count {
            *count += 1;
        }
        self.read += u64::from(file.operations.contains(Operation::Read));
    }
}

/// The gaps of a recording, one line each.
pub fn gaps(header: &Header) -> impl Iterator<Item = String> {
    let gaps = header.warnings.iter().filter(|warning| warning.lost);
    gaps.map(|warning| format!("incomplete: {}: {}", warning.kind.name(), shown(warning)))
}

/// What a warning says, and how often.
fn shown(warning: &Warning) -> String {
    let times = if warning.count > 1 { format!(" ({} times)", warning.count) } else { String::new() };
    format!("{}{times}", printable(warning.detail.as_bytes()))
}

/// What is told of a recording beside its header.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// How many paths it has of each kind.
    pub counts: &'a RecordCounts,
    /// How long it took.
    pub elapsed: Duration,
    /// What its rules come to, if it has some.
    pub verdict: Option<PolicyVerdict>,
}

/// Formats the report on the snapshot in `directory`, which is `shown` to the user; with its final newline, empty if
/// none is wanted.
pub fn render(kind: ReportFormat, header: &Header, facts: &Facts, shown: &str, directory: &Path) -> String {
    let Facts { counts, elapsed, verdict } = *facts;
    match kind {
        ReportFormat::None => String::new(),
        ReportFormat::Summary => summary(header, counts, elapsed, shown),
        ReportFormat::Json => {
            let warnings: Vec<_> = header.warnings.iter().map(|warning| &warning.detail).collect();
            let Reference { provider_id, target } = Reference::new(header, directory);
            let mut report = json!({
                "provider_id": provider_id, "ref": target,
                "snapshot": shown, "exit_status": header.exit_status, "complete": header.complete,
                "keep": header.keep,
                "seconds": elapsed.as_secs_f64(), "processes": header.processes.len(), "paths": counts.paths,
                "created": counts.created, "changed": counts.changed, "deleted": counts.deleted,
                "git": counts.git, "inherited": counts.inherited, "read": counts.read, "warnings": warnings,
            });
            if header.enforcement.is_some() {
                report["refused"] = header.refused_calls().into();
            }
            if let Some(verdict) = verdict {
                report["policy"] = verdict.name().into();
            }
            format!("{report}\n")
        }
    }
}

fn summary(header: &Header, facts: &RecordCounts, elapsed: Duration, directory: &str) -> String {
    let mut text = String::new();
    let RecordCounts { created, changed, deleted, inherited, read, git, .. } = facts;
    let git = if *git > 0 { ", Git's state changed" } else { "" };
    let inherited = match inherited {
        0 => String::new(),
        count => format!(", {count} written through inherited descriptors"),
    };
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "agent-snapshot: {created} created, {changed} changed, {deleted} deleted{git}{inherited}, {read} read; {}, {:.1} s → {directory}",
        counted(header.processes.len(), "process", "processes"),
        elapsed.as_secs_f64(),
    );
    for gap in gaps(header) {
        let _ = writeln!(text, "agent-snapshot: {gap}");
    }
    for limit in header.enforcement.iter().flat_map(|enforcement| &enforcement.limits) {
        let _ = writeln!(text, "agent-snapshot: not enforced: {}", printable(limit.as_bytes()));
    }
    // Nothing is lost, but the command did not do what it does alone.
    for tracer in header.warnings.iter().filter(|warning| warning.kind == WarningKind::NestedTracer) {
        let _ = writeln!(text, "agent-snapshot: {}", shown(tracer));
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
        if let Some(rule) =
            header.suppressed.iter().find(|rule| is_system(&rule.rule) && !rule.changed.is_empty())
        {
            let _ = writeln!(
                text,
                "agent-snapshot: reads:{0} instead of {0} in ignore.json records what a command changes there",
                rule.rule
            );
        }
    }
    text
}

/// Takes the identifier of a recording that has begun, or why there is none.
pub type NoteRecording = Box<dyn Fn(Result<&str, &str>)>;

/// What a shell of ours does with what becomes of its recording.
pub struct ShellNotes {
    /// Says whether the session had no recording that failed before.
    pub is_first: Box<dyn Fn() -> bool>,
    /// Notes whether there is a recording.
    pub note: NoteRecording,
}

/// What this process prints on stderr, as long as that takes it: its terminal may be gone.
pub struct Messages {
    quiet: bool,
    /// How many more sentences are printed.
    left: Cell<u32>,
    shell: Option<ShellNotes>,
}

impl Messages {
    /// All messages, or with `quiet` only those of failures.
    pub fn new(quiet: bool) -> Messages {
        Messages { quiet, left: Cell::new(u32::MAX), shell: None }
    }

    /// Those of a shell, which agents call several hundred times: at most one sentence, of a failure; that there
    /// is no recording, only if `is_first` says so.
    pub fn of_shell(shell: ShellNotes) -> Messages {
        Messages { quiet: true, left: Cell::new(1), shell: Some(shell) }
    }

    /// Whether they are those of a shell.
    pub fn are_of_shell(&self) -> bool {
        self.shell.is_some()
    }

    /// Prints a sentence.
    pub fn say(&self, sentence: &str) {
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            print(&format!("agent-snapshot: {sentence}\n"));
        }
    }

    /// Prints a sentence, unless only failures are told.
    pub fn note(&self, sentence: &str) {
        if !self.quiet {
            self.say(sentence);
        }
    }

    /// Notes that a recording has begun.
    pub fn has_begun(&self, id: &str) {
        if let Some(shell) = &self.shell {
            (shell.note)(Ok(id));
        }
    }

    /// Prints and notes why there is no recording.
    pub fn warn_unrecorded(&self, sentence: &str) {
        if let Some(shell) = &self.shell {
            (shell.note)(Err(sentence));
        }
        // What can't be said now is left for the next command.
        if self.left.get() > 0 && self.shell.as_ref().is_none_or(|shell| (shell.is_first)()) {
            self.say(sentence);
        }
    }
}

/// Prints a text on stderr.
pub fn print(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Whether an entry of the ignore list is one of those that the default list had before it had `reads:`.
fn is_system(entry: &str) -> bool {
    ["/usr", "/bin"].contains(&entry)
}
