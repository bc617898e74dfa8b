//! What came of a restore, in words.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;

use jiff::Timestamp;
use serde::Serialize;

use super::Preview;
use crate::commands::out::{Console, style};
use crate::commands::paths::{counted, number_of_paths, shell_line, shell_word};
use crate::observe::policy::ignore::SCRATCH;
use crate::restore::interrupted::UnfinishedRescue;
use crate::restore::merge::Merged;
use crate::restore::outcome::{PathChange, RestoreOutcome};
use crate::restore::request::RestoreRequest;
use crate::restore::rescue;
use crate::snapshot::blobs::Side;
use crate::snapshot::{Snapshot, printable};

/// How many changes are printed before the rest is only counted.
const NAMED: usize = 50;

/// How the outcome is reported.
pub struct OutcomeForm<'a> {
    /// As JSON.
    pub json: bool,
    /// What would be done, as a diff.
    pub diff: bool,
    /// What is undone or redone, if that is what is done.
    pub undo: Option<UndoForm<'a>>,
    /// The time whose state is put back, if it is not that before or after a command.
    pub at: Option<Timestamp>,
}

/// How an undo or redo is reported.
pub struct UndoForm<'a> {
    /// The identifiers of the recordings.
    pub recordings: &'a [&'a str],
    /// How it is taken back, if not by the rescue.
    pub way_back: Option<String>,
    /// The side of the recordings whose state is put back.
    pub state: Side,
}

/// Says that nothing was changed, since a restore was interrupted.
pub fn name_interrupted(rescue: &UnfinishedRescue, console: &mut Console) {
    if let Some(remedies) = Remedies::of(rescue) {
        console
            .say(format_args!("nothing was changed, since an earlier restore was interrupted: {remedies}"));
    }
}

/// The command lines that complete an interrupted restore, or take it back.
#[derive(Debug, Serialize)]
pub struct Remedies {
    complete: String,
    take_back: String,
}

impl Remedies {
    /// Those of a rescue.
    pub fn of(rescue: &UnfinishedRescue) -> Option<Remedies> {
        let header = rescue.snapshot.as_ref()?.header();
        let complete = shell_line(&rescue::repetition(&header.command, &rescue.path));
        let path = shell_word(rescue.path.as_os_str().as_bytes());
        Some(Remedies { complete, take_back: format!("agent-snapshot restore --before {path}") })
    }
}

impl fmt::Display for Remedies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "complete it with: {}, or take it back with: {}", self.complete, self.take_back)
    }
}

/// Writes the diff of a plan, and what is not in it as messages.
pub(super) fn print_diff(
    snapshot: &Snapshot,
    request: &RestoreRequest,
    plan: &RestoreOutcome,
    console: &mut Console,
) -> anyhow::Result<()> {
    Preview::new(snapshot, request.wanted, plan)?.write(console)?;
    let left = plan.left.iter().map(|(path, why)| format!("{}: {why}", printable(path)));
    console.say_list(format_args!("left as they are:"), left.collect::<Vec<_>>().iter());
    report_merged(plan, true, console);
    Ok(())
}

/// How many paths were put back to this state, or would be, or are at it already.
pub fn summary(outcome: &RestoreOutcome, is_plan: bool, state: &str) -> String {
    match outcome.changes.len() {
        0 if outcome.at_wanted == 0 => format!("no path remains to be put back to {state}"),
        0 => format!("{} at {state} already", number_of_paths(outcome.at_wanted)),
        count if is_plan => format!("{} would be put back to {state}", number_of_paths(count)),
        count => format!("{} put back to {state}", number_of_paths(count)),
    }
}

pub(super) fn print(
    outcome: &RestoreOutcome,
    request: &RestoreRequest,
    form: &OutcomeForm,
    console: &mut Console,
) -> anyhow::Result<()> {
    let dry_run = request.dry_run;
    if outcome.is_refused {
        report_objections(outcome, dry_run, console);
        return Ok(());
    } else if dry_run && !outcome.conflicts.is_empty() {
        let option = match outcome.git_conflicts.len() {
            0 => "--force",
            count if count == outcome.conflicts.len() => "--force-git",
            _ => "--force --force-git",
        };
        console.say(format_args!("{option} overwrites what has changed since:{}", lines(&outcome.conflicts)));
    }
    for (path, change) in outcome.changes.iter().take(NAMED) {
        let mark = match change {
            PathChange::Create | PathChange::HardLink => style::ADDED,
            PathChange::Remove => style::REMOVED,
            PathChange::Replace | PathChange::WriteInPlace | PathChange::Attributes => style::CHANGED,
        };
        let is_merged = outcome.merged.contains_key(path);
        let word = if is_merged { "merge" } else { change.word() };
        let word = console.paint(mark, format_args!("{word:10}")).to_string();
        writeln!(console, "{word} {}", printable(path))?;
    }
    if outcome.changes.len() > NAMED {
        writeln!(console, "... and {} more (--json names them)", outcome.changes.len() - NAMED)?;
    }
    for (path, why) in &outcome.left {
        let mark = console.paint(style::CHANGED, format_args!("{:10}", "left")).to_string();
        writeln!(console, "{mark} {}: {why}", printable(path))?;
    }
    report_merged(outcome, dry_run, console);
    let state = match form.at {
        None => {
            let side = form.undo.as_ref().map_or(request.wanted, |undo| undo.state);
            format!("the state {} the command", side.name())
        }
        Some(time) => format!("the state of {}", time.strftime("%Y-%m-%d %H:%M:%S UTC")),
    };
    let nothing = if outcome.changes.is_empty() { "nothing to do: " } else { "" };
    writeln!(console, "{nothing}{}", summary(outcome, dry_run, &state))?;
    // One that only marks has nothing.
    let rescues = if outcome.changes.is_empty() { &[] } else { outcome.rescues.as_slice() };
    for rescue in rescues {
        let bytes = rescue.as_os_str().as_encoded_bytes();
        let shown = printable(bytes);
        let back = match &form.undo {
            Some(UndoForm { way_back: Some(way_back), .. }) => way_back.clone(),
            _ => format!("undo with: agent-snapshot restore --before {}", shell_word(bytes)),
        };
        writeln!(console, "what was overwritten is in {shown} ({back})")?;
    }
    if outcome.completed {
        console.say(format_args!("a restore that had been interrupted was completed"));
    }
    let files = outcome.not_linked.iter().map(|path| printable(path));
    console.say_list(
        format_args!(
            "these had other hard links, which are unknown or have changed, and are files of their own:"
        ),
        files.collect::<Vec<_>>().iter(),
    );
    for (path, shortfall) in &outcome.shortfalls {
        console.say(format_args!("{}: {shortfall}", printable(path)));
    }
    Ok(())
}

/// Says where conflict markers are.
fn report_merged(outcome: &RestoreOutcome, dry_run: bool, console: &mut Console) {
    let conflicts = |(path, merged): (&Vec<u8>, &Merged)| {
        let count = counted(merged.conflicts, "conflict", "conflicts");
        (merged.conflicts > 0).then(|| format!("{}: {count}", printable(path)))
    };
    let marked: Vec<String> = outcome.merged.iter().filter_map(conflicts).collect();
    let are = if dry_run { "would be" } else { "are" };
    console.say_list(
        format_args!("the same lines were changed since: conflict markers {are} in these, to be edited:"),
        marked.iter(),
    );
}

fn lines<R: std::fmt::Display>(list: &[(Vec<u8>, R)]) -> String {
    list.iter().map(|(path, why)| format!("\n  {}: {why}", printable(path))).collect()
}

/// Says why nothing is changed.
pub fn report_objections(outcome: &RestoreOutcome, dry_run: bool, console: &mut Console) {
    let start = if dry_run { "nothing would be changed" } else { "nothing was changed" };
    if !outcome.obstacles.is_empty() {
        console.say(format_args!(
            "{start}, since this can't be put back (--exclude PATH leaves it):{}",
            lines(&outcome.obstacles)
        ));
    }
    if !outcome.unavailable.is_empty() {
        console.say(format_args!(
            "{start}, since content is unavailable (--provide PATH=FILE gives it):{}",
            lines(&outcome.unavailable)
        ));
    }
    if outcome.has_blocking_conflicts {
        let (of_git, of_files): (Vec<_>, Vec<_>) =
            outcome.conflicts.iter().cloned().partition(|(path, _)| outcome.git_conflicts.contains(path));
        let is_hard = |(path, _): &(Vec<u8>, String)| outcome.hard_conflicts.contains(path);
        let (occupied, of_files): (Vec<_>, Vec<_>) = of_files.into_iter().partition(is_hard);
        if !occupied.is_empty() {
            console.say(format_args!(
                "{start}: something else was in the place of these directories (move away what they hold, or --skip-conflicts \
                 leaves them):{}",
                lines(&occupied)
            ));
        }
        if !of_files.is_empty() {
            console.say(format_args!(
                "{start}: these paths have changed since (--merge merges text, --force overwrites them, --skip-conflicts leaves them):{}",
                lines(&of_files)
            ));
        }
        let why = match of_git.iter().all(is_hard) {
            true => "Git's state can't be put back (--no-git leaves it)",
            false => "Git's state has changed since (--force-git overwrites it, --no-git leaves it)",
        };
        if !of_git.is_empty() {
            console.say(format_args!("{start}: {why}:{}", lines(&of_git)));
        }
    }
}

/// If content of a rescue is unavailable, says which snapshot has it.
pub(super) fn report_where_the_content_is(
    snapshot: &Snapshot,
    outcome: &RestoreOutcome,
    console: &mut Console,
) {
    let header = snapshot.header();
    if header.kind.is_recording() || outcome.unavailable.is_empty() {
        return;
    }
    let origin = match header.command.as_slice() {
        [_, verb, ids @ ..] if verb != b"restore" => shell_line(ids),
        [_, _, snapshot, ..] => printable(snapshot).into_owned(),
        _ => return,
    };
    console.say(format_args!("a rescue keeps what was overwritten; what was put back is in {origin}"));
}

/// Reports what the command changed and the ignore rules left out.
pub(super) fn report_suppressed(snapshot: &Snapshot, console: &mut Console) {
    let suppressed = &snapshot.header().suppressed;
    // What is the agent's own is not missed.
    for rule in suppressed.iter().filter(|rule| !SCRATCH.contains(&rule.rule.as_str())) {
        for path in &rule.changed {
            console.say(format_args!(
                "{} was changed by the command and not recorded ({}): it is not brought back",
                printable(path),
                printable(rule.rule.as_bytes())
            ));
        }
    }
}
