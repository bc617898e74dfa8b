//! `restore`: puts a recorded state back, in place or under a directory.
//!
//! `restore::run` does the work; `text.rs` reports the outcome, and `json.rs` writes it as JSON. `preview.rs` shows a plan as a
//! diff, `branch.rs` builds under a directory.

mod json;
mod preview;
mod text;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::json;

use self::json::RestoreJson;
pub use self::preview::Preview;
pub use self::text::{OutcomeForm, Remedies, UndoForm, name_interrupted, report_objections, summary};
use self::text::{print, print_diff, report_suppressed, report_where_the_content_is};
use super::branch::{BranchRequest, build};
use super::exit::{Exit, UsageError, VerbResult};
use super::later::name_later;
use super::level::require_inputs;
use super::open::{known_links, open};
use super::out::Console;
use super::past::{Extent, Past, past};
use super::paths::{Exclusions, Selection, anchored};
use super::progress;
use super::provide::provide;
use crate::cli::{Restore, RestoreExtent, SessionAccess};
use crate::git::below;
use crate::library::{Entry, Library};
use crate::restore::node::{RestorePolicy, User};
use crate::restore::outcome::RestoreOutcome;
use crate::restore::plan::LeftReason;
use crate::restore::request::{RestoreProgress, RestoreRequest};
use crate::restore::targets::{Choice, GitStateChoice};
use crate::restore::{rescue, run};
use crate::snapshot::blobs::Side;
use crate::snapshot::request::{MERGING, SKIPPING};
use crate::snapshot::source::Unavailable;
use crate::snapshot::{self, FileRecord, Snapshot, identity, printable};
use crate::trace::sys;

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
