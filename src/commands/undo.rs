//! `undo` and `redo`: restores of the library's recordings, chosen by what was done last.
//!
//! Several are undone as one, with one rescue. `restore.rs` reports the restore. Neighbours: `library::undone`, which
//! says what is undone; `snapshot::net`, which makes one of several. `pick.rs` asks which paths, `select.rs` adds the other
//! names of their files, `bases.rs` gives a merge what it begins from, `put.rs` asks for the restore, `unfinished.rs` names what
//! can't be undone yet.

mod bases;
mod pick;
mod put;
mod select;
mod unfinished;

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;

use self::bases::provide_bases;
use self::pick::{Picked, pick};
use self::put::{Put, command_of, is_hindered};
use self::select::{select, with_tied};
use super::exit::{Exit, UsageError, VerbResult};
use super::later::{ChangedPaths, ELSEWHERE, name_later};
use super::log::{before_now, command_line, started};
use super::open::{
    UndoWords, check_confined, exists, find_whole_recording, is_in_reach, known_links, open_net, open_net_of,
    scope, undo_words,
};
use super::out::Console;
use super::paths::{Exclusions, Selection, counted, live, quoted};
use super::provide::provide;
use super::restore::{Chosen, Preview, RestoreBar, UndoForm, exit, name_interrupted, policy};
use crate::cli::{Redo, SessionAccess, Undo, UndoOptions};
use crate::library::index::{IndexedPath, PathIndex};
use crate::library::linked::ChangedFiles;
use crate::library::log::{EntryState, is_at_or_below};
use crate::library::scope::changes_any;
use crate::library::session::session;
use crate::library::undone::{Undone, UndoneRecordings};
use crate::library::{self, Entry, Library};
use crate::restore::interrupted::interrupted_in;
use crate::restore::outcome::RestoreOutcome;
use crate::restore::request::RestoreRequest;
use crate::restore::rescue_directory::lock_all;
use crate::restore::{rescue, run};
use crate::snapshot::blobs::Side;
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::{changed_attributes, differing_attributes, has_two_states};
use crate::snapshot::net::{ChainBreak, Net};
use crate::snapshot::{FileRecord, Snapshot, printable};

/// How many recordings are named before the rest is only counted.
const NAMED: usize = 5;

/// An undo or redo that was carried out, or planned.
pub struct Performed {
    /// The recordings that are undone or redone, the oldest first.
    pub recordings: Vec<Entry>,
    /// What came of the restore.
    pub outcome: RestoreOutcome,
    /// Whether the recordings had not changed some of the paths that were named, which are left as they are.
    has_unchanged_paths: bool,
}

/// Runs `undo`.
pub fn run(args: &Undo, console: &mut Console) -> VerbResult {
    Ok(status(undo(args, console)?.as_ref()))
}

/// What an undo or redo comes to; a finding if there was nothing to do.
pub fn status(performed: Option<&Performed>) -> Exit {
    match performed {
        Some(Performed { outcome, has_unchanged_paths: false, .. }) => exit(outcome),
        _ => Exit::Finding,
    }
}

/// Undoes what the options choose; none if there is nothing that can be undone, which is said.
pub fn undo(args: &Undo, console: &mut Console) -> anyhow::Result<Option<Performed>> {
    if args.interactive && !pick::is_possible(console) {
        return Err(UsageError("undo -i asks at a terminal, and this is none".to_owned()).into());
    }
    let Some(library) = Library::find()? else { return Ok(nothing("undo", console)) };
    let history = Recordings::for_change(library, &args.options, args.interactive)?;
    let UndoWords { recordings, mut paths, unknown } =
        undo_words(&args.recordings, &args.options.access, console)?;
    paths.extend(args.paths.iter().cloned());
    let is_by_time = args.number.is_some() || args.since.is_some() || args.options.access.session.is_some();
    let is_named = !recordings.is_empty();
    let is_by_path = !is_named && !paths.is_empty() && !is_by_time;
    let mut chosen = if is_by_path {
        history.newest_that_changed(&paths, args)?.into_iter().collect()
    } else if !is_named {
        history.newest(args, console)?
    } else {
        match history.named(recordings, console) {
            Some(chosen) => chosen,
            None => return Ok(None),
        }
    };
    // A word that names no recording is a path if something is there, or was.
    let unknown = match (unknown, paths.first()) {
        (Some(unknown), Some(path)) if !exists(path) && !history.any_changed(path, args)? => Some(unknown),
        _ => None,
    };
    if !is_named
        && unknown.is_none()
        && let Some(refusal) = history.passed_over(&chosen, &paths, args)
    {
        console.say(format_args!("{refusal}"));
        return Ok(None);
    }
    if chosen.is_empty() {
        return match (unknown, paths.as_slice()) {
            (Some(unknown), _) => Err(unknown),
            (None, [path]) => {
                let path = quoted(path.as_bytes());
                history.nothing(&format!("undo of {path}"), console)
            }
            (None, _) => {
                let named = args.options.access.session.as_deref().and_then(|named| session(Some(named)));
                let of = named.map(|session| format!(" of session {}", quoted(session.as_bytes())));
                history.nothing(&format!("undo{}", of.unwrap_or_default()), console)
            }
        };
    }
    if args.with_later {
        chosen = history.with_later(chosen);
    }
    history.permit(&chosen, &args.options.access)?;
    let mut joined = history.joined(&chosen, &args.options, console)?;
    let (selection, unchanged) = select(&joined.net, &paths)?;
    let changing = history.that_changed(&chosen, &selection);
    if !changing.is_empty() && changing.len() < chosen.len() {
        chosen = changing;
        joined = history.joined(&chosen, &args.options, console)?;
    }
    let ids: Vec<&str> = chosen.iter().map(|entry| entry.id.as_str()).collect();
    if let Some(unknown) = unknown.filter(|_| unchanged.first() == paths.first()) {
        return Err(unknown);
    }
    let unchanged: Vec<_> = unchanged.iter().map(|path| quoted(path.as_bytes())).collect();
    if !unchanged.is_empty() && !is_by_path {
        let ids = ids.join(" ");
        console.say_list(
            format_args!(
                "nothing was changed, since {ids} did not change these, or they are undone already:"
            ),
            unchanged.iter(),
        );
        return Ok(None);
    }
    let performed = history.undo(&chosen, &joined, selection, &args.options, args.interactive, console)?;
    console.say_list(
        format_args!("{} did not change these, which are left as they are:", ids.join(" ")),
        unchanged.iter(),
    );
    Ok(performed.map(|performed| Performed { has_unchanged_paths: !unchanged.is_empty(), ..performed }))
}

/// Redoes what the options choose; none if there is nothing that can be redone, which is said.
pub fn redo(args: &Redo, console: &mut Console) -> anyhow::Result<Option<Performed>> {
    let Some(library) = Library::find()? else { return Ok(nothing("redo", console)) };
    let history = Recordings::for_change(library, &args.options, false)?;
    let undone = match &args.recording {
        Some(word) => {
            let id = find_whole_recording(word, &args.options.access)?.id;
            let Some(undone) = history.undone.all_of(&id) else {
                console.say(format_args!("{id} is not undone: there is nothing to redo"));
                return Ok(None);
            };
            undone
        }
        None => {
            let scope = scope(&args.options.access, args.options.all);
            let candidates = history.entries.iter().filter(|entry| scope.contains(entry, &history.library));
            let undone = candidates.filter_map(|entry| Some((entry, history.undone.last(&entry.id)?)));
            match undone.max_by(|(_, one), (_, other)| one.at.cmp(&other.at)) {
                // The rescue of the redo names no more than one, or all.
                Some((entry, undone)) if undone.rescues.len() > 1 => {
                    history.undone.all_of(&entry.id).unwrap_or_default()
                }
                Some((_, undone)) => undone.clone(),
                None => return history.nothing("redo", console),
            }
        }
    };
    history.redo(&undone, &args.options, console)
}

/// Recordings as one.
struct Joined<'a> {
    net: Net,
    /// The recordings that it is made of, the oldest first: those that are undone, and silent steps.
    of: Vec<&'a Entry>,
}

/// The recordings of a library, and which of them are undone.
struct Recordings {
    library: Library,
    /// The oldest first.
    entries: Vec<Entry>,
    undone: UndoneRecordings,
    index: OnceCell<PathIndex>,
    /// Keeps other restores out of the library.
    alone: Option<File>,
}

impl Recordings {
    /// The recordings that an undo or redo chooses from. Other restores are excluded before the choice, so that it is still
    /// right when it is carried out; but not while a user picks paths, which may take long.
    fn for_change(
        library: Library,
        options: &UndoOptions,
        is_interactive: bool,
    ) -> anyhow::Result<Recordings> {
        let alone = match options.dry_run || is_interactive {
            true => None,
            false => lock_all(&library.snapshots())?,
        };
        Ok(Recordings { alone, ..Recordings::of(library)? })
    }

    fn of(library: Library) -> anyhow::Result<Recordings> {
        let entries = library.entries()?;
        let undone = UndoneRecordings::of(&library)?;
        Ok(Recordings { library, entries, undone, index: OnceCell::new(), alone: None })
    }

    /// Whether a recording can be undone, and that would change something.
    fn is_candidate(&self, entry: &Entry) -> bool {
        entry.changes.any() && self.can_be_undone(entry)
    }

    /// Whether a recording can be undone, if it has changed anything.
    fn can_be_undone(&self, entry: &Entry) -> bool {
        !entry.imported
            && matches!(entry.state, EntryState::Ended | EntryState::Killed)
            && self.undone.get(&entry.id).is_none()
    }

    /// The candidates that the options choose by time, the oldest first.
    fn newest(&self, args: &Undo, console: &mut Console) -> anyhow::Result<Vec<&Entry>> {
        let scope = scope(&args.options.access, args.options.all);
        let candidates = self.entries.iter().rev().filter(|entry| self.is_candidate(entry));
        let candidates = candidates.filter(|entry| scope.contains(entry, &self.library));
        let is_whole_session = args.options.access.session.is_some();
        if is_whole_session {
            self.name_unfinished(args, console);
        }
        let mut chosen: Vec<&Entry> = match (args.number, args.since) {
            (Some(number), _) => candidates.take(number.get()).collect(),
            (None, Some(since)) => {
                let oldest = before_now(since)?;
                candidates.filter(|entry| started(entry).is_some_and(|at| at >= oldest)).collect()
            }
            (None, None) if is_whole_session => candidates.collect(),
            (None, None) => candidates.take(1).collect(),
        };
        if let Some(number) = args.number.filter(|number| !chosen.is_empty() && chosen.len() < number.get()) {
            let there = counted(chosen.len(), "command", "commands");
            let are = if chosen.len() == 1 { "is" } else { "are" };
            console.say(format_args!("there {are} only {there} to undo here, not {number}"));
        }
        chosen.reverse();
        Ok(chosen)
    }

    /// Whether one of the recordings has changed something at a path, or below it.
    fn any_changed(&self, path: &OsStr, args: &Undo) -> anyhow::Result<bool> {
        let (scope, paths) = (scope(&args.options.access, args.options.all), live(path)?);
        let changed_one =
            |entry: &Entry| scope.contains(entry, &self.library) && self.changed_one(entry, &paths, |_| true);
        Ok(self.entries.iter().rev().any(changed_one))
    }

    /// The newest candidate that changed something at one of these paths that is not undone.
    fn newest_that_changed(&self, paths: &[OsString], args: &Undo) -> anyhow::Result<Option<&Entry>> {
        let scope = scope(&args.options.access, args.options.all);
        let paths = paths.iter().map(|path| live(path)).collect::<anyhow::Result<Vec<_>>>()?.concat();
        let is_it = |entry: &&Entry| {
            let undone = self.undone.paths_of(&entry.id);
            self.is_candidate(entry)
                && scope.contains(entry, &self.library)
                && self.changed_one(entry, &paths, |changed| !undone.contain(changed))
        };
        Ok(self.entries.iter().rev().find(is_it))
    }

    /// Whether a recording has changed something that counts at one of these paths, or below it.
    fn changed_one(&self, entry: &Entry, paths: &[Vec<u8>], counts: impl Fn(&[u8]) -> bool) -> bool {
        let is_one =
            |changed: &[u8]| paths.iter().any(|path| is_at_or_below(changed, path)) && counts(changed);
        // Without the index, each that may have is opened.
        let index = self.index.get_or_init(|| PathIndex::read(self.library.root()).unwrap_or_default());
        let may_have_changed = |path: &Vec<u8>| {
            let path_and_below = IndexedPath::with_all_below(path);
            entry.may_change(path) && index.may_have_changed(&entry.id, path_and_below) != Some(false)
        };
        paths.iter().any(may_have_changed) && changes_any(&self.library.directory_of(&entry.id), is_one)
    }

    /// The recordings that were named, the oldest first; none if one of them can't be undone.
    fn named(&self, recordings: Vec<Entry>, console: &mut Console) -> Option<Vec<&Entry>> {
        let mut ids = HashSet::new();
        for entry in recordings {
            if entry.imported {
                let id = &entry.id;
                console.say(format_args!(
                    "{id} was imported: agent-snapshot restore --before --foreign {id} puts back what it has changed"
                ));
                return None;
            }
            if entry.state == EntryState::Running {
                let id = &entry.id;
                match Snapshot::open(&self.library.directory_of(id)) {
                    Ok(_) => console.say(format_args!(
                        "{id} is still running: agent-snapshot restore --before {id} puts back what it has changed so far"
                    )),
                    Err(_) => console.say(format_args!("{id} is still running: it can be undone once it has ended")),
                }
                return None;
            }
            if let Some(Undone { at, .. }) = self.undone.get(&entry.id) {
                let id = &entry.id;
                console
                    .say(format_args!("{id} was undone at {at} (agent-snapshot redo {id} takes that back)"));
                return None;
            }
            ids.insert(entry.id);
        }
        Some(self.entries.iter().filter(|entry| ids.contains(&entry.id)).collect())
    }

    /// These, and the later recordings that changed something which these had changed, and so on.
    fn with_later<'a>(&'a self, chosen: Vec<&'a Entry>) -> Vec<&'a Entry> {
        let mut changed = ChangedPaths::default();
        let first = chosen.first().map(|entry| entry.time.as_str()).unwrap_or_default();
        let ids: HashSet<&str> = chosen.iter().map(|entry| entry.id.as_str()).collect();
        let mut all = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.time.as_str() >= first) {
            let undone = self.undone.paths_of(&entry.id);
            if ids.contains(entry.id.as_str())
                || self.is_candidate(entry)
                    && changed.are_touched_apart_from(undone.changed(), entry, &self.library)
            {
                if let Ok(mut snapshot) = Snapshot::open(&self.library.directory_of(&entry.id)) {
                    snapshot.forget(undone.changed());
                    changed.add(&snapshot);
                }
                all.push(entry);
            }
        }
        all
    }

    /// Says that there is nothing to do, unless something was interrupted.
    fn nothing(&self, what: &str, console: &mut Console) -> anyhow::Result<Option<Performed>> {
        Ok(match interrupted_in(&self.library.snapshots())?.first() {
            Some(rescue) => {
                name_interrupted(rescue, console);
                None
            }
            None => nothing(what, console),
        })
    }

    /// Refuses recordings of another session, or writes down that they are used.
    fn permit(&self, entries: &[&Entry], access: &SessionAccess) -> Result<(), library::Error> {
        let scope = scope(access, true);
        entries.iter().try_for_each(|entry| check_confined(entry, &self.library, access))?;
        for entry in entries.iter().filter(|entry| !scope.may_see(entry)) {
            if !access.allow_cross_session {
                return Err(library::Error::OtherSession(entry.id.clone()));
            }
            self.library.audit(&entry.id, scope.session.as_deref())?;
        }
        Ok(())
    }

    /// These recordings as one, without the paths that are undone already.
    fn joined<'a>(
        &'a self,
        chosen: &[&'a Entry],
        options: &UndoOptions,
        console: &mut Console,
    ) -> anyhow::Result<Joined<'a>> {
        let mut of = chosen.to_vec();
        let mut join = |of: &[&Entry]| {
            let ids: Vec<&str> = of.iter().map(|entry| entry.id.as_str()).collect();
            open_net_of(&ids, &self.library, &self.undone, console)
        };
        let mut net = join(&of)?;
        let silent = self.silent_steps(chosen, &net.snapshot);
        if !silent.is_empty() {
            let is_part = |entry: &&Entry| [chosen, &silent].concat().iter().any(|part| part.id == entry.id);
            of = self.entries.iter().filter(is_part).collect();
            net = join(&of)?;
        }
        provide(&mut net.snapshot, &options.extent.provide, Side::Before)?;
        Ok(Joined { net, of })
    }

    /// The steps of the same sessions that left no change, and meanwhile changed what these have changed at the same time:
    /// these may have found what such a step made, and lost it to that.
    fn silent_steps<'a>(&'a self, chosen: &[&Entry], net: &Snapshot) -> Vec<&'a Entry> {
        let is_timed = |record: &&FileRecord| record.changed_between_us.is_some();
        let paths: HashSet<&[u8]> =
            net.files().iter().filter(is_timed).map(|record| record.path.as_slice()).collect();
        if paths.is_empty() {
            return Vec::new();
        }
        let is_silent = |entry: &&Entry| {
            entry.step.is_some()
                && !entry.changes.any()
                && self.can_be_undone(entry)
                && chosen.iter().any(|one| one.session == entry.session && ran_at_once(one, entry))
        };
        let has_changed_one = |entry: &&Entry| {
            let Ok(snapshot) = Snapshot::open(&self.library.directory_of(&entry.id)) else { return false };
            snapshot.files().iter().filter(is_timed).any(|record| paths.contains(record.path.as_slice()))
        };
        self.entries.iter().filter(is_silent).filter(has_changed_one).collect()
    }

    /// Those of these recordings that changed one of the selected paths: the others are not marked as undone.
    fn that_changed<'a>(&self, chosen: &[&'a Entry], selection: &Selection) -> Vec<&'a Entry> {
        let is_one = |entry: &&Entry| {
            let Ok(snapshot) = Snapshot::open(&self.library.directory_of(&entry.id)) else { return true };
            let mut changed = snapshot.files().iter().filter(|record| PathEffect::of(record).is_undone());
            changed.any(|record| selection.contains(&record.path))
        };
        match selection.is_explicit() && chosen.len() > 1 {
            true => chosen.iter().copied().filter(is_one).collect(),
            false => chosen.to_vec(),
        }
    }

    /// Undoes the selected paths of these recordings as one.
    fn undo(
        &self,
        chosen: &[&Entry],
        joined: &Joined<'_>,
        selection: Selection,
        options: &UndoOptions,
        is_interactive: bool,
        console: &mut Console,
    ) -> anyhow::Result<Option<Performed>> {
        let Joined { net, of } = joined;
        let Net { snapshot, breaks, .. } = net;
        introduce("undo", chosen, options, console)?;
        let ids: Vec<&str> = chosen.iter().map(|entry| entry.id.as_str()).collect();
        let newest = chosen.last().map(|entry| entry.time.as_str()).unwrap_or_default();
        let is_later = |entry: &&Entry| {
            !ids.contains(&entry.id.as_str()) && self.is_candidate(entry) && entry.time.as_str() > newest
        };
        let later = || self.entries.iter().filter(is_later);
        let mut conflicts = self.changed_by_other_names(snapshot, later(), &options.access);
        conflicts
            .extend(breaks.iter().map(|one| (one.path.clone(), self.reason_of(one, of, &options.access))));
        let known_links = known_links(snapshot, &self.library, &options.access);
        let changed_later = |paths: &HashSet<&[u8]>| self.changed_later(chosen, paths, &options.access);
        let put = Put {
            snapshot,
            selection: &selection,
            command: &[],
            conflicts: &conflicts,
            changed_later: Some(&changed_later),
            known_links: &known_links,
            is_alone: self.alone.is_some(),
        };
        let picked = if is_interactive {
            let plan = put.plan(options)?;
            match pick(&plan, &Preview::new(snapshot, Side::Before, &plan)?, console)? {
                Picked::All => None,
                Picked::These(paths) => {
                    let selection = with_tied(net, paths);
                    let changing = self.that_changed(chosen, &selection);
                    if changing.len() < chosen.len() {
                        let joined = self.joined(&changing, options, console)?;
                        return self.undo(&changing, &joined, selection, options, false, console);
                    }
                    Some(selection)
                }
                Picked::Nothing => return Ok(None),
            }
        } else {
            None
        };
        let selection = picked.as_ref().unwrap_or(&selection);
        let command = command_of("undo", snapshot, &ids, selection, options)?;
        let put = Put { selection, command: &command, ..put };
        let way_back = Some("redo with: agent-snapshot redo".to_owned());
        let outcome =
            put.back(UndoForm { recordings: &ids, way_back, state: Side::Before }, options, console)?;
        if is_hindered(&outcome) {
            let named = name_later(snapshot, later(), &self.library, &options.access, console);
            // What a merge has undone can't be undone once more.
            let undone = UndoneRecordings::of(&self.library)?;
            let can_be_undone = ids.iter().all(|id| undone.get(id).is_none());
            if named && can_be_undone && !selection.is_explicit() {
                let ids = ids.join(" ");
                console.say(format_args!("agent-snapshot undo --with-later {ids} undoes those, too"));
            }
        }
        let recordings = chosen.iter().copied().cloned().collect();
        Ok(Some(Performed { recordings, outcome, has_unchanged_paths: false }))
    }

    /// Redoes what was undone by one undo or several.
    fn redo(
        &self,
        undone: &Undone,
        options: &UndoOptions,
        console: &mut Console,
    ) -> anyhow::Result<Option<Performed>> {
        let ids = self.undone.with(undone);
        let entries: Vec<&Entry> =
            self.entries.iter().filter(|entry| ids.contains(&entry.id.as_str())).collect();
        self.permit(&entries, &options.access)?;
        let is_listed = |id: &&str| entries.iter().any(|entry| entry.id == *id);
        let gone: Vec<&str> = ids.iter().copied().filter(|id| !is_listed(id)).collect();
        if !gone.is_empty() && !options.extent.force {
            let (gone, are) = (gone.join(" "), if gone.len() == 1 { "is" } else { "are" });
            console.say(format_args!(
                "nothing was changed, since this would also redo {gone}, which {are} no longer in the library \
                 (--force does it)"
            ));
            return Ok(None);
        }
        introduce("redo", &entries, options, console)?;
        let Net { mut snapshot, breaks, .. } = open_net(undone.rescues.iter().cloned(), console)?;
        snapshot.forget(undone.redone());
        if options.extent.merge {
            provide_bases(&mut snapshot, &ids, &self.library)?;
        }
        provide(&mut snapshot, &options.extent.provide, Side::Before)?;
        let selection = Selection::all();
        let command = command_of("redo", &snapshot, &ids, &selection, options)?;
        let reason = "it was changed while the undo was interrupted";
        let mut conflicts: BTreeMap<_, _> =
            breaks.into_iter().map(|one| (one.path, reason.to_owned())).collect();
        conflicts.extend(self.with_other_attributes_since(undone, &snapshot, &options.access));
        conflicts.extend(self.undone_since(undone, &ids, &snapshot, &options.access));
        let known_links = known_links(&snapshot, &self.library, &options.access);
        let put = Put {
            snapshot: &snapshot,
            selection: &selection,
            command: &command,
            conflicts: &conflicts,
            changed_later: None,
            known_links: &known_links,
            is_alone: self.alone.is_some(),
        };
        let way_back = match ids.as_slice() {
            [id] if undone.is_whole => Some(format!("undo with: agent-snapshot undo {id}")),
            _ => None,
        };
        let outcome =
            put.back(UndoForm { recordings: &ids, way_back, state: Side::After }, options, console)?;
        if is_hindered(&outcome) {
            let is_later = |entry: &&Entry| entry.changes.any() && entry.time > undone.at;
            let later = self.entries.iter().filter(is_later);
            name_later(&snapshot, later, &self.library, &options.access, console);
        }
        let recordings = entries.into_iter().cloned().collect();
        Ok(Some(Performed { recordings, outcome, has_unchanged_paths: false }))
    }

    /// The paths of a redo that a recording has changed which was undone after it. Redone in another order, they would get
    /// states that they never had together.
    fn undone_since(
        &self,
        redone: &Undone,
        ids: &[&str],
        snapshot: &Snapshot,
        access: &SessionAccess,
    ) -> BTreeMap<Vec<u8>, String> {
        let mut conflicts = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| !ids.contains(&entry.id.as_str())) {
            if self.undone.last(&entry.id).is_none_or(|undone| undone.at <= redone.at) {
                continue;
            }
            let is_whole = self.undone.get(&entry.id).is_some();
            let undone = self.undone.paths_of(&entry.id);
            let Ok(other) = Snapshot::open(&self.library.directory_of(&entry.id)) else { continue };
            let lasts = |path: &[u8]| {
                let change =
                    |record: &FileRecord| PathEffect::of(record).is_undone() && has_two_states(record);
                (is_whole || undone.contain(path)) && other.find(path).is_some_and(change)
            };
            for record in snapshot.files().iter().filter(|record| lasts(&record.path)) {
                let who = self.called(entry, access);
                conflicts.insert(record.path.clone(), format!("{who} was undone since: redo that first"));
            }
        }
        conflicts
    }

    /// The paths of a redo to which a recording has given other attributes since the undo than the redo would: it leaves what
    /// somebody else has given them.
    fn with_other_attributes_since(
        &self,
        undone: &Undone,
        rescue: &Snapshot,
        access: &SessionAccess,
    ) -> BTreeMap<Vec<u8>, String> {
        let mut conflicts = BTreeMap::new();
        let of_redo: Vec<_> = rescue
            .files()
            .iter()
            .map(|record| (record, changed_attributes(record)))
            .filter(|(_, changed)| !changed.is_empty())
            .collect();
        let is_later = |entry: &&Entry| self.is_candidate(entry) && entry.time > undone.at;
        for entry in self.entries.iter().filter(|_| !of_redo.is_empty()).filter(is_later) {
            if !of_redo.iter().any(|(record, _)| entry.may_change(&record.path)) {
                continue;
            }
            let Ok(later) = Snapshot::open(&self.library.directory_of(&entry.id)) else { continue };
            for (record, changed) in &of_redo {
                let Some(other) = later.find(&record.path) else { continue };
                if changed.is_disjoint(&changed_attributes(other)) {
                    continue;
                }
                let (Some(wanted), Some(left)) = (record.before.present(), other.after.present()) else {
                    continue;
                };
                if changed.is_disjoint(&differing_attributes(wanted, left)) {
                    conflicts.remove(&record.path);
                } else {
                    let why = format!("changed since by {}", self.called(entry, access));
                    conflicts.insert(record.path.clone(), why);
                }
            }
        }
        conflicts
    }

    /// The paths of files that later recordings have changed by other names, and who did.
    fn changed_by_other_names<'a>(
        &self,
        snapshot: &Snapshot,
        later: impl Iterator<Item = &'a Entry>,
        access: &SessionAccess,
    ) -> BTreeMap<Vec<u8>, String> {
        let mut files = ChangedFiles::default();
        files.add(snapshot);
        let mut conflicts = BTreeMap::new();
        for entry in later {
            let undone = self.undone.paths_of(&entry.id);
            for (path, name) in files.changed_by(entry, &self.library) {
                if undone.contain(&name) {
                    continue;
                }
                let why = if is_in_reach(entry, &self.library, access) {
                    let (name, by) = (printable(&name), command_line(entry));
                    format!("its hard link {name} was changed since by {} ({by})", entry.id)
                } else {
                    format!("a hard link of it was changed since by {ELSEWHERE}")
                };
                conflicts.entry(path).or_insert(why);
            }
        }
        conflicts
    }

    /// Which of these paths a recording has changed after the last of the chosen ones that did, and who.
    fn changed_later(
        &self,
        chosen: &[&Entry],
        paths: &HashSet<&[u8]>,
        access: &SessionAccess,
    ) -> BTreeMap<Vec<u8>, String> {
        let may_have_changed = |entry: &Entry, path: &[u8]| {
            let index =
                || self.index.get_or_init(|| PathIndex::read(self.library.root()).unwrap_or_default());
            let itself = IndexedPath::itself(path);
            entry.may_change(path) && index().may_have_changed(&entry.id, itself) != Some(false)
        };
        let oldest = chosen.first().map(|entry| entry.time.as_str()).unwrap_or_default();
        let mut changed = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.time.as_str() >= oldest) {
            let is_chosen = chosen.iter().any(|one| one.id == entry.id);
            // A chosen one only takes back what others before it have changed.
            let counts = if is_chosen { !changed.is_empty() } else { self.is_candidate(entry) };
            if !counts || !paths.iter().any(|path| may_have_changed(entry, path)) {
                continue;
            }
            let Ok(snapshot) = Snapshot::open(&self.library.directory_of(&entry.id)) else { continue };
            let undone = self.undone.paths_of(&entry.id);
            let records = snapshot.files().iter().filter(|record| paths.contains(record.path.as_slice()));
            for record in records.filter(|record| has_two_states(record) && !undone.contain(&record.path)) {
                if is_chosen {
                    changed.remove(&record.path);
                    continue;
                }
                let who = self.called(entry, access);
                changed.entry(record.path.clone()).or_insert(who);
            }
        }
        changed
    }

    /// How a message names a recording.
    fn called(&self, entry: &Entry, access: &SessionAccess) -> String {
        match is_in_reach(entry, &self.library, access) {
            true => format!("{} ({})", entry.id, command_line(entry)),
            false => ELSEWHERE.to_owned(),
        }
    }

    /// Who has changed a path between two recordings.
    fn reason_of(&self, broken: &ChainBreak, of: &[&Entry], access: &SessionAccess) -> String {
        let (older, newer) = (of[broken.older], of[broken.newer]);
        let between = |entry: &&Entry| {
            entry.time >= older.time
                && entry.time <= newer.time
                && ![&older.id, &newer.id].contains(&&entry.id)
                && !entry.imported
                && entry.may_change(&broken.path)
                && changes_any(&self.library.directory_of(&entry.id), |path| path == broken.path)
        };
        let who = self.entries.iter().rev().find(between).map(|entry| self.called(entry, access));
        let who = who.unwrap_or_else(|| "something that is not in the library".to_owned());
        format!("between {} and {} it was changed by {who}", older.id, newer.id)
    }
}

/// Takes an interrupted restore back, unless something has changed since.
pub fn take_back(rescue: &Snapshot) -> anyhow::Result<RestoreOutcome> {
    let choice = Chosen {
        selection: &Selection::all(),
        exclusions: &Exclusions::new(&[])?,
        conflicts: &BTreeMap::new(),
        no_git: false,
    };
    let (policy, command) =
        (policy(rescue, false, false)?, rescue::command(rescue.path(), Side::Before, &[])?);
    let request =
        RestoreRequest { is_whole: true, ..RestoreRequest::new(Side::Before, &policy, &choice, &command) };
    Ok(run::run(rescue, &request, &RestoreBar::default())?)
}

/// Whether two commands ran at the same time, as far as is known.
fn ran_at_once(one: &Entry, other: &Entry) -> bool {
    let began_before_end = |one: &Entry, other: &Entry| {
        other.finished.as_ref().is_none_or(|finished| one.time.as_str() <= finished.as_str())
    };
    began_before_end(one, other) && began_before_end(other, one)
}

fn nothing(what: &str, console: &mut Console) -> Option<Performed> {
    console.say(format_args!("there is nothing to {what} here (agent-snapshot log lists what was recorded)"));
    None
}

/// Says what is undone or redone, the newest first.
fn introduce(
    what: &str,
    entries: &[&Entry],
    options: &UndoOptions,
    console: &mut Console,
) -> anyhow::Result<()> {
    if options.json {
        return Ok(());
    }
    for entry in entries.iter().rev().take(NAMED) {
        let line = format!("{what} {}: {}", entry.id, command_line(entry));
        // The diff is all of the result.
        if options.diff { console.say(format_args!("{line}")) } else { writeln!(console, "{line}")? }
    }
    if entries.len() > NAMED && !options.diff {
        writeln!(console, "{what} {} more", entries.len() - NAMED)?;
    }
    Ok(())
}
