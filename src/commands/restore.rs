//! `restore`: puts a recorded state back, in place or under a directory.
//!
//! `restore::run` does the work; this reports the outcome. `branch.rs` builds under a directory. `preview.rs` shows a plan
//! as a diff, `json.rs` writes the JSON.

mod json;
mod preview;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use self::json::RestoreJson;
pub use self::preview::Preview;
use super::branch::{BranchRequest, build};
use super::exit::{Exit, UsageError, VerbResult};
use super::later::name_later;
use super::level::require_inputs;
use super::open::{known_links, open};
use super::out::{Console, style};
use super::past::{Extent, Past, past};
use super::paths::{Exclusions, Selection, anchored, counted, number_of_paths, shell_line, shell_word};
use super::progress;
use super::provide::provide;
use crate::cli::{Restore, RestoreExtent, SessionAccess};
use crate::git::below;
use crate::library::{Entry, Library};
use crate::observe::policy::ignore::SCRATCH;
use crate::restore::interrupted::UnfinishedRescue;
use crate::restore::merge::Merged;
use crate::restore::node::{RestorePolicy, User};
use crate::restore::outcome::{PathChange, RestoreOutcome};
use crate::restore::plan::LeftReason;
use crate::restore::request::{RestoreProgress, RestoreRequest};
use crate::restore::targets::{Choice, GitStateChoice};
use crate::restore::{rescue, run};
use crate::snapshot::blobs::Side;
use crate::snapshot::request::{MERGING, SKIPPING};
use crate::snapshot::source::Unavailable;
use crate::snapshot::{self, FileRecord, Snapshot, identity, printable};
use crate::trace::sys;

/// How many changes are printed before the rest is only counted.
const NAMED: usize = 50;

/// Runs `restore`.
pub fn run(args: &Restore, console: &mut Console) -> VerbResult {
    if let Some(time) = args.at {
        return at(args, time, console);
    }
    let side = if args.before { Side::Before } else { Side::After };
    let mut snapshot = open(&args.snap, &args.access, console)?;
    provide(&mut snapshot, &args.extent.provide, side)?;
    if args.into.is_some() {
        require_inputs(&snapshot, "restore --into")?;
    }
    let selection = Selection::new(&snapshot, &args.paths)?;
    if let Some(unknown) = selection.unmatched().first() {
        let unknown = printable(unknown.as_encoded_bytes());
        console.say(format_args!("nothing was changed: the snapshot has no record of {unknown}"));
        return Ok(Exit::Finding);
    }
    let is_input = |path: &&Vec<u8>| snapshot.find(path).is_some_and(FileRecord::is_without_states);
    if let Some(input) = selection.wanted().iter().find(is_input) {
        console.say(format_args!(
            "nothing was changed: the content of {} is unavailable: {}",
            printable(input),
            Unavailable::NotKept
        ));
        return Ok(Exit::Finding);
    }
    if let Some(dir) = &args.into {
        if args.dry_run {
            return Err(UsageError("--dry-run applies only to a restore in place".to_owned()).into());
        }
        let chosen = snapshot.files().iter().filter(|record| selection.contains(&record.path));
        let request = BranchRequest { side, dir, preserve: args.preserve, json: args.json };
        return build(&snapshot, chosen, &request, console);
    }
    if args.preserve && !args.foreign {
        return Err(UsageError("--preserve is for --into and for --foreign".to_owned()).into());
    }
    let policy = policy(&snapshot, args.foreign, args.preserve)?;
    let exclusions = Exclusions::new(&args.extent.exclude)?;
    let mut command =
        rescue::command(snapshot.path(), side, &selection.wanted()).context("resolve the snapshot")?;
    command.extend(limits(&args.extent)?);
    let library = Library::find().ok().flatten();
    let known_links =
        library.map(|library| known_links(&snapshot, &library, &args.access)).unwrap_or_default();
    let choice = Chosen {
        selection: &selection,
        exclusions: &exclusions,
        conflicts: &BTreeMap::new(),
        no_git: args.extent.no_git,
    };
    let request = RestoreRequest {
        is_whole: choice.is_whole(),
        known_links: &known_links,
        force: args.extent.force,
        force_git: args.extent.force_git,
        skip_conflicts: args.extent.skip_conflicts,
        merge: args.extent.merge,
        dry_run: args.dry_run,
        ..RestoreRequest::new(side, &policy, &choice, &command)
    };
    let form = OutcomeForm { json: args.json, diff: args.diff, undo: None, at: None };
    let outcome = put_back(&snapshot, &request, &form, console)?;
    if !args.json {
        report_where_the_content_is(&snapshot, &outcome, console);
        name_what_came_later(&snapshot, &outcome, &args.access, console)?;
    }
    Ok(exit(&outcome))
}

/// Names the later recordings that are in the way, where the snapshot is a recording of the library.
fn name_what_came_later(
    snapshot: &Snapshot,
    outcome: &RestoreOutcome,
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<()> {
    let is_conflict = |(_, why): &(Vec<u8>, LeftReason)| matches!(why, LeftReason::Conflict(_));
    if outcome.conflicts.is_empty() && !outcome.left.iter().any(is_conflict) {
        return Ok(());
    }
    let Some(library) = Library::find()? else { return Ok(()) };
    let entries = library.entries()?;
    let is_this = |entry: &&Entry| library.directory_of(&entry.id) == snapshot.path();
    if let Some(this) = entries.iter().find(is_this) {
        let later = entries.iter().filter(|entry| entry.time > this.time);
        name_later(snapshot, later, &library, access, console);
    }
    Ok(())
}

/// Puts back paths as they were at `time`.
///
/// They were named with the time: what is there now is no conflict, and the rescue keeps it.
fn at(args: &Restore, time: Timestamp, console: &mut Console) -> VerbResult {
    let words: Vec<OsString> =
        std::iter::once(args.snap.clone().into_os_string()).chain(args.paths.iter().cloned()).collect();
    let exclusions = Exclusions::new(&args.extent.exclude)?;
    let extent = Extent::AllBelow(&exclusions);
    let Past { snapshot, roots, unknown } = past(&words, time, &args.access, &extent, console)?;
    let Some(mut snapshot) = snapshot.filter(|_| unknown.is_empty() || args.extent.skip_conflicts) else {
        let why = |(path, why): &(Vec<u8>, String)| format!("{}: {why}", printable(path));
        let reasons: Vec<String> = unknown.iter().map(why).collect();
        console.say_list(format_args!("nothing was changed:"), reasons.iter());
        return Ok(Exit::Finding);
    };
    provide(&mut snapshot, &args.extent.provide, Side::After)?;
    let skipped = unknown.iter().map(|(path, why)| format!("{}: {why}", printable(path)));
    console.say_list(format_args!("left as they are:"), skipped.collect::<Vec<_>>().iter());
    let policies = snapshot.parts().iter().map(|part| policy(part, false, false));
    let policies = policies.collect::<anyhow::Result<Vec<_>>>()?;
    let Some(policy) = policies.into_iter().next() else { return Ok(Exit::Success) };
    let request =
        [&b"agent-snapshot"[..], b"restore", b"--at", time.to_string().as_bytes()].map(<[u8]>::to_vec);
    let command: Vec<_> =
        request.into_iter().chain(roots.iter().cloned()).chain(limits(&args.extent)?).collect();
    let choice = AtTime { roots: &roots, no_git: args.extent.no_git };
    let request = RestoreRequest {
        force: true,
        force_git: args.extent.force_git,
        dry_run: args.dry_run,
        ..RestoreRequest::new(Side::After, &policy, &choice, &command)
    };
    let form = OutcomeForm { json: args.json, diff: args.diff, undo: None, at: Some(time) };
    let outcome = put_back(&snapshot, &request, &form, console)?;
    Ok(if unknown.is_empty() { exit(&outcome) } else { Exit::Finding })
}

/// Every path of what was at some paths at a time.
struct AtTime<'a> {
    roots: &'a [Vec<u8>],
    no_git: bool,
}

impl Choice for AtTime<'_> {
    fn contains(&self, _: &[u8]) -> bool {
        true
    }

    fn names(&self, _: &[u8]) -> bool {
        true
    }

    fn git_state(&self, path: &[u8], directory: &[u8]) -> GitStateChoice {
        let is_named = |root: &Vec<u8>| below(path, root).is_some() && below(root, directory).is_some();
        match self.no_git {
            true => GitStateChoice::Unwanted,
            false if self.roots.iter().any(is_named) => GitStateChoice::Chosen,
            false => GitStateChoice::Unnamed,
        }
    }
}

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

/// Puts a state back in place and reports what came of it.
pub fn put_back(
    snapshot: &Snapshot,
    request: &RestoreRequest,
    form: &OutcomeForm,
    console: &mut Console,
) -> anyhow::Result<RestoreOutcome> {
    // Several threads read large contents, and hand them on.
    sys::keep_large_buffers();
    sys::share_one_arena();
    let bar = RestoreBar { is_hidden: !console.is_standard, ..RestoreBar::default() };
    let outcome = run::run(snapshot, request, &bar)?;
    if let Some(interrupted) = &outcome.interrupted {
        name_interrupted(interrupted, console);
        if form.json {
            let remedies = Remedies::of(interrupted);
            console.json(&json!({"applied": false, "refused": true, "interrupted": remedies}))?;
        }
        return Ok(outcome);
    }
    if outcome.is_other_plan {
        console.say(format_args!("nothing was changed, since that would not do what the plan showed"));
        return Ok(outcome);
    }
    if form.json {
        console.json(&RestoreJson { snapshot, request, form, outcome: &outcome })?;
    } else {
        if form.diff && !outcome.is_refused {
            print_diff(snapshot, request, &outcome, console)?;
        } else {
            print(&outcome, request, form, console)?;
        }
        report_suppressed(snapshot, console);
    }
    Ok(outcome)
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

/// What a restore with this outcome comes to.
pub fn exit(outcome: &RestoreOutcome) -> Exit {
    if outcome.is_whole() { Exit::Success } else { Exit::Finding }
}

/// What of the state is put back; an error if the snapshot is from another machine or user.
pub fn policy(snapshot: &Snapshot, foreign: bool, preserve: bool) -> anyhow::Result<RestorePolicy> {
    let header = snapshot.header();
    let user = User::effective();
    let is_of_machine = header.host.machine == identity::machine_id_hash().to_string();
    let is_of_user = header.uid == user.uid;
    // Anyone can write any header, but the kernel knows who owns the file.
    let is_own = snapshot.owner() == Some(user.uid);
    if is_of_machine && is_of_user && is_own && !header.imported {
        return Ok(RestorePolicy::all(user));
    }
    if !foreign {
        let whose = match snapshot.owner() {
            _ if header.imported => "was imported".to_owned(),
            _ if !is_of_machine => "was recorded on another machine".to_owned(),
            _ if !is_of_user => format!("was recorded by user {}", header.uid),
            Some(owner) => format!("belongs to user {owner}"),
            None => format!("may have been written by users other than {}", user.uid),
        };
        let message = format!(
            "{} {whose}: restore it in place with --foreign, or into a new directory with --into",
            printable(snapshot.path().as_os_str().as_encoded_bytes())
        );
        return Err(snapshot::Error::Unsafe(message).into());
    }
    if preserve {
        return Ok(RestorePolicy { git_programs: false, ..RestorePolicy::all(user) });
    }
    // User and group ids mean the same on the same machine. Set-ID bits are never taken from a snapshot
    // of someone else.
    Ok(RestorePolicy { ownership: is_of_machine && !header.imported, ..RestorePolicy::safe(user) })
}

/// The options that limit or merge what is put back, in the canonical form of a request.
pub fn limits(extent: &RestoreExtent) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut options = Vec::new();
    if extent.skip_conflicts {
        options.push(SKIPPING.to_vec());
    }
    for glob in &extent.exclude {
        options.push([b"--exclude=", &*anchored(glob)?].concat());
    }
    if extent.no_git {
        options.push(b"--no-git".to_vec());
    }
    if extent.merge {
        options.push(MERGING.to_vec());
    }
    Ok(options)
}

/// The selected paths that are not left out, and explicitly the ones that are conflicts.
pub struct Chosen<'a> {
    /// Those that were named, or all.
    pub selection: &'a Selection,
    /// Those that are left out.
    pub exclusions: &'a Exclusions,
    /// Those that are conflicts, whatever is there now.
    pub conflicts: &'a BTreeMap<Vec<u8>, String>,
    /// Whether Git's state is left.
    pub no_git: bool,
}

impl Chosen<'_> {
    /// Whether that is all.
    pub fn is_whole(&self) -> bool {
        !self.selection.is_explicit() && self.exclusions.is_empty() && !self.no_git
    }
}

impl Choice for Chosen<'_> {
    fn contains(&self, path: &[u8]) -> bool {
        self.selection.contains(path) && !self.exclusions.contain(path)
    }

    fn names(&self, path: &[u8]) -> bool {
        (self.selection.names(path) || self.conflicts.contains_key(path)) && self.contains(path)
    }

    fn git_state(&self, path: &[u8], directory: &[u8]) -> GitStateChoice {
        if self.no_git {
            GitStateChoice::Unwanted
        } else if self.selection.names_between(directory, path)
            || !self.selection.is_explicit() && self.exclusions.is_empty()
        {
            GitStateChoice::Chosen
        } else {
            GitStateChoice::Unnamed
        }
    }
}

/// The bar of the current phase.
#[derive(Default)]
pub struct RestoreBar {
    bar: Mutex<Option<ProgressBar>>,
    is_hidden: bool,
}

impl RestoreBar {
    fn with(&self, work: impl FnOnce(&mut Option<ProgressBar>)) {
        work(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl RestoreProgress for RestoreBar {
    fn start(&self, what: &'static str, len: usize) {
        if !self.is_hidden {
            self.with(|bar| *bar = Some(progress::bar(what, len)));
        }
    }

    fn tick(&self) {
        self.with(|bar| bar.iter().for_each(|bar| bar.inc(1)));
    }

    fn end(&self) {
        self.with(|bar| bar.take().iter().for_each(ProgressBar::finish_and_clear));
    }
}

/// Writes the diff of a plan, and what is not in it as messages.
fn print_diff(
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

fn print(
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
fn report_where_the_content_is(snapshot: &Snapshot, outcome: &RestoreOutcome, console: &mut Console) {
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
fn report_suppressed(snapshot: &Snapshot, console: &mut Console) {
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
