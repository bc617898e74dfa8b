//! `undo` and `redo`: restores of the library's recordings, chosen by what was done last.
//!
//! Several are undone as one, with one rescue. `library::recordings` knows what can be undone and what came later,
//! `snapshot::net` makes one of several, `restore.rs` reports the restore. Here: `choose.rs` chooses the recordings,
//! `unfinished.rs` names what can't be undone yet, `pick.rs` asks which paths, `select.rs` adds the other names of their files,
//! `bases.rs` gives a merge what it begins from, `put.rs` asks for the restore.

mod bases;
mod choose;
mod pick;
mod put;
mod select;
mod unfinished;

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;

use self::bases::provide_bases;
use self::pick::{Picked, pick};
pub use self::put::take_back;
use self::put::{Put, command_of, is_hindered};
use self::select::{select, with_tied};
use super::exit::{Exit, UsageError, VerbResult};
use super::later::{Later, name_later};
use super::log::command_line;
use super::open::{
    UndoWords, check_confined, exists, find_whole_recording, known_links, open_net, open_net_of, scope,
    undo_words,
};
use super::out::Console;
use super::paths::{Selection, quoted};
use super::provide::provide;
use super::restore::{Preview, UndoForm, exit, name_interrupted};
use crate::cli::{Redo, SessionAccess, Undo, UndoOptions};
use crate::library::recordings::Recordings;
use crate::library::session::session;
use crate::library::undone::{Undone, UndoneRecordings};
use crate::library::{self, Entry, Library};
use crate::restore::interrupted::interrupted_in;
use crate::restore::outcome::RestoreOutcome;
use crate::restore::rescue_directory::lock_all;
use crate::snapshot::blobs::Side;
use crate::snapshot::net::Net;

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
    let undoing = Undoing::for_change(library, &args.options, args.interactive)?;
    let UndoWords { recordings, mut paths, unknown } =
        undo_words(&args.recordings, &args.options.access, console)?;
    paths.extend(args.paths.iter().cloned());
    let is_by_time = args.number.is_some() || args.since.is_some() || args.options.access.session.is_some();
    let is_named = !recordings.is_empty();
    let is_by_path = !is_named && !paths.is_empty() && !is_by_time;
    let mut chosen = if is_by_path {
        undoing.newest_that_changed(&paths, args)?.into_iter().collect()
    } else if !is_named {
        undoing.newest(args, console)?
    } else {
        match undoing.named(recordings, console) {
            Some(chosen) => chosen,
            None => return Ok(None),
        }
    };
    // A word that names no recording is a path if something is there, or was.
    let unknown = match (unknown, paths.first()) {
        (Some(unknown), Some(path)) if !exists(path) && !undoing.any_changed(path, args)? => Some(unknown),
        _ => None,
    };
    if !is_named
        && unknown.is_none()
        && let Some(refusal) = undoing.passed_over(&chosen, &paths, args)
    {
        console.say(format_args!("{refusal}"));
        return Ok(None);
    }
    if chosen.is_empty() {
        return match (unknown, paths.as_slice()) {
            (Some(unknown), _) => Err(unknown),
            (None, [path]) => {
                let path = quoted(path.as_bytes());
                undoing.nothing(&format!("undo of {path}"), console)
            }
            (None, _) => {
                let named = args.options.access.session.as_deref().and_then(|named| session(Some(named)));
                let of = named.map(|session| format!(" of session {}", quoted(session.as_bytes())));
                undoing.nothing(&format!("undo{}", of.unwrap_or_default()), console)
            }
        };
    }
    if args.with_later {
        chosen = undoing.recordings.with_later(&chosen);
    }
    undoing.permit(&chosen, &args.options.access)?;
    let mut joined = undoing.joined(&chosen, &args.options, console)?;
    let (selection, unchanged) = select(&joined.net, &paths)?;
    let changing = undoing.that_changed(&chosen, &selection);
    if !changing.is_empty() && changing.len() < chosen.len() {
        chosen = changing;
        joined = undoing.joined(&chosen, &args.options, console)?;
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
    let performed = undoing.undo(&chosen, &joined, selection, &args.options, args.interactive, console)?;
    console.say_list(
        format_args!("{} did not change these, which are left as they are:", ids.join(" ")),
        unchanged.iter(),
    );
    Ok(performed.map(|performed| Performed { has_unchanged_paths: !unchanged.is_empty(), ..performed }))
}

/// Redoes what the options choose; none if there is nothing that can be redone, which is said.
pub fn redo(args: &Redo, console: &mut Console) -> anyhow::Result<Option<Performed>> {
    let Some(library) = Library::find()? else { return Ok(nothing("redo", console)) };
    let undoing = Undoing::for_change(library, &args.options, false)?;
    let undone = match &args.recording {
        Some(word) => {
            let id = find_whole_recording(word, &args.options.access)?.id;
            let Some(undone) = undoing.recordings.undone.all_of(&id) else {
                console.say(format_args!("{id} is not undone: there is nothing to redo"));
                return Ok(None);
            };
            undone
        }
        None => match undoing.last_undone(&args.options) {
            Some(undone) => undone,
            None => return undoing.nothing("redo", console),
        },
    };
    undoing.redo(&undone, &args.options, console)
}

/// Recordings as one.
struct Joined<'a> {
    net: Net,
    /// The recordings that it is made of, the oldest first: those that are undone, and silent steps.
    of: Vec<&'a Entry>,
}

/// What an undo or redo chooses from.
struct Undoing {
    recordings: Recordings,
    /// Keeps other restores out of the library.
    alone: Option<File>,
}

impl Undoing {
    /// The recordings that an undo or redo chooses from. Other restores are excluded before the choice, so that it is still
    /// right when it is carried out; but not while a user picks paths, which may take long.
    fn for_change(library: Library, options: &UndoOptions, is_interactive: bool) -> anyhow::Result<Undoing> {
        let alone = match options.dry_run || is_interactive {
            true => None,
            false => lock_all(&library.snapshots())?,
        };
        Ok(Undoing { alone, recordings: Recordings::of(library)? })
    }

    /// Says that there is nothing to do, unless something was interrupted.
    fn nothing(&self, what: &str, console: &mut Console) -> anyhow::Result<Option<Performed>> {
        Ok(match interrupted_in(&self.recordings.library.snapshots())?.first() {
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
        entries.iter().try_for_each(|entry| check_confined(entry, &self.recordings.library, access))?;
        for entry in entries.iter().filter(|entry| !scope.may_see(entry)) {
            if !access.allow_cross_session {
                return Err(library::Error::OtherSession(entry.id.clone()));
            }
            self.recordings.library.audit(&entry.id, scope.session.as_deref())?;
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
            open_net_of(&ids, &self.recordings.library, &self.recordings.undone, console)
        };
        let mut net = join(&of)?;
        let silent = self.recordings.silent_steps(chosen, &net.snapshot);
        if !silent.is_empty() {
            let is_part = |entry: &&Entry| [chosen, &silent].concat().iter().any(|part| part.id == entry.id);
            of = self.recordings.entries.iter().filter(is_part).collect();
            net = join(&of)?;
        }
        provide(&mut net.snapshot, &options.extent.provide, Side::Before)?;
        Ok(Joined { net, of })
    }

    /// Those of these recordings that changed one of the selected paths: the others are not marked as undone.
    fn that_changed<'a>(&self, chosen: &[&'a Entry], selection: &Selection) -> Vec<&'a Entry> {
        match selection.is_explicit() && chosen.len() > 1 {
            true => self.recordings.that_changed(chosen, |path| selection.contains(path)),
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
        let snapshot = &net.snapshot;
        introduce("undo", chosen, options, console)?;
        let ids: Vec<&str> = chosen.iter().map(|entry| entry.id.as_str()).collect();
        let later = Later { recordings: &self.recordings, access: &options.access };
        let conflicts = later.conflicts_of_undo(chosen, net, of);
        let known_links = known_links(snapshot, &self.recordings.library, &options.access);
        let changed_later = |paths: &HashSet<&[u8]>| later.changed_later(chosen, paths);
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
            let later = self.recordings.later_than(chosen);
            let named = name_later(snapshot, later, &self.recordings.library, &options.access, console);
            // What a merge has undone can't be undone once more.
            let undone = UndoneRecordings::of(&self.recordings.library)?;
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
        let ids = self.recordings.undone.with(undone);
        let entries: Vec<&Entry> =
            self.recordings.entries.iter().filter(|entry| ids.contains(&entry.id.as_str())).collect();
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
        let mut rescue = open_net(undone.rescues.iter().cloned(), console)?;
        rescue.snapshot.forget(undone.redone());
        if options.extent.merge {
            provide_bases(&mut rescue.snapshot, &ids, &self.recordings.library)?;
        }
        provide(&mut rescue.snapshot, &options.extent.provide, Side::Before)?;
        let snapshot = &rescue.snapshot;
        let selection = Selection::all();
        let command = command_of("redo", snapshot, &ids, &selection, options)?;
        let later = Later { recordings: &self.recordings, access: &options.access };
        let conflicts = later.conflicts_of_redo(undone, &ids, &rescue);
        let known_links = known_links(snapshot, &self.recordings.library, &options.access);
        let put = Put {
            snapshot,
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
            let is_later = |entry: &&Entry| entry.changes().any() && entry.time > undone.at;
            let later = self.recordings.entries.iter().filter(is_later);
            name_later(snapshot, later, &self.recordings.library, &options.access, console);
        }
        let recordings = entries.into_iter().cloned().collect();
        Ok(Some(Performed { recordings, outcome, has_unchanged_paths: false }))
    }
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
