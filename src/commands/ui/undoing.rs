//! An undo or redo as it is asked for and shown: what it is of, what stands in its way, what it changes.

use super::super::log::command_line;
use super::super::out::{Collected, Console};
use super::super::restore::summary;
use super::super::undo::{Performed, redo, undo};
use super::detail::{Line, LineKind};
use crate::cli::{Redo, RestoreExtent, SessionAccess, Undo, UndoOptions};
use crate::restore::outcome::{PathChange, RestoreOutcome};
use crate::snapshot::printable;

/// An undo or redo that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the options of `undo` have these names")]
pub struct UndoRequest {
    /// The recordings; none to redo what was undone last.
    pub ids: Vec<String>,
    pub is_redo: bool,
    pub force: bool,
    pub skip_conflicts: bool,
    pub no_git: bool,
    pub with_later: bool,
    /// The digest of the plan that was confirmed: if it is another one now, that is returned, and nothing done. Without it,
    /// only the plan is wanted.
    pub agreed: Option<String>,
}

impl UndoRequest {
    /// What is done.
    pub fn verb(&self) -> &'static str {
        if self.is_redo { "redo" } else { "undo" }
    }

    /// Whether only the plan is wanted.
    pub fn is_plan(&self) -> bool {
        self.agreed.is_none()
    }

    /// The request for the plan alone.
    pub fn plan(&self) -> UndoRequest {
        UndoRequest { agreed: None, ..self.clone() }
    }
}

/// What came of it, or would.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UndoReport {
    /// What it is of, what is said, and the changes.
    pub lines: Vec<Line>,
    /// The changes in one sentence.
    pub summary: String,
    /// Whether it was asked for more than a plan.
    pub is_done: bool,
    /// Whether this is a plan that is not refused.
    pub can_be_done: bool,
    /// The digest of the plan.
    pub digest: String,
    /// Whether something that has changed since stands in its way.
    pub has_conflicts: bool,
    /// Whether all was done, and nothing is to be said of it.
    pub is_plain: bool,
}

/// Plans or does it.
pub fn perform(request: &UndoRequest, access: &SessionAccess, is_of_all: bool) -> anyhow::Result<UndoReport> {
    let mut collected = Collected::default();
    let mut console = Console::collecting(&mut collected);
    let extent = RestoreExtent {
        force: request.force,
        skip_conflicts: request.skip_conflicts,
        no_git: request.no_git,
        ..RestoreExtent::default()
    };
    let options = UndoOptions {
        all: is_of_all,
        extent,
        dry_run: request.is_plan(),
        agreed: request.agreed.clone(),
        access: access.clone().into(),
        ..UndoOptions::default()
    };
    let mut ids = request.ids.iter().map(Into::into);
    let performed = if request.is_redo {
        redo(&Redo { recording: ids.next(), options }, &mut console)
    } else {
        let with_later = request.with_later;
        undo(&Undo { recordings: ids.collect(), with_later, options, ..Undo::default() }, &mut console)
    };
    drop(console);
    let performed = performed?;
    if performed.as_ref().is_some_and(|performed| performed.outcome.is_other_plan) {
        let mut now = perform(&request.plan(), access, is_of_all)?;
        let why = "nothing was changed, since the plan is another one now:";
        now.lines.insert(0, Line::new(LineKind::Note, why));
        return Ok(now);
    }
    Ok(report(request, performed.as_ref(), &collected.messages))
}

fn report(request: &UndoRequest, performed: Option<&Performed>, messages: &[String]) -> UndoReport {
    let verb = request.verb();
    let mut report = UndoReport { is_done: !request.is_plan(), ..UndoReport::default() };
    let recordings = performed.iter().flat_map(|performed| performed.recordings.iter().rev());
    report.lines.extend(
        recordings.map(|entry| {
            Line::new(LineKind::Heading, format!("{verb} {}: {}", entry.id, command_line(entry)))
        }),
    );
    let said = messages.iter().flat_map(|said| said.lines());
    let said: Vec<Line> = said.map(|line| Line::new(LineKind::Note, line)).collect();
    let Some(Performed { outcome, .. }) = performed else { return UndoReport { lines: said, ..report } };
    let side = if request.is_redo { "after" } else { "before" };
    let state = format!("the state {side} the command");
    report.summary = summary(outcome, request.is_plan(), &state);
    report.has_conflicts = !outcome.conflicts.is_empty();
    report.can_be_done = request.is_plan() && !outcome.is_refused;
    report.digest.clone_from(&outcome.digest);
    report.is_plain = !request.is_plan() && outcome.is_whole() && said.is_empty();
    // What is refused is said.
    if !outcome.is_refused {
        report.lines.push(Line::new(LineKind::Heading, report.summary.clone()));
    }
    report.lines.extend(said);
    if !outcome.is_refused {
        report.lines.extend(changes(outcome));
    }
    report
}

fn changes(outcome: &RestoreOutcome) -> impl Iterator<Item = Line> {
    let changes = outcome.changes.iter().map(|(path, change)| {
        let kind = match change {
            PathChange::Create | PathChange::HardLink => LineKind::Added,
            PathChange::Remove => LineKind::Removed,
            PathChange::Replace | PathChange::WriteInPlace | PathChange::Attributes => LineKind::Plain,
        };
        Line::new(kind, format!("{:10} {}", change.word(), printable(path)))
    });
    let left = outcome
        .left
        .iter()
        .map(|(path, why)| Line::new(LineKind::Note, format!("{:10} {}: {why}", "left", printable(path))));
    changes.chain(left)
}
