//! Where hooks and shells leave their notes of what they were asked, and how those are told.
//!
//! `library::notes` has the notes. Neighbours: `hook.rs` and `shell.rs` leave them, `log.rs` and `doctor` tell.

use std::path::PathBuf;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::paths::counted;
use super::shell::own_places;
use crate::agents::{Agent, Means};
use crate::library::notes::{self, Account, Gap, NOTES, Note, NoteEvent, digest_of};
use crate::library::session::session;
use crate::library::{Library, Place};
use crate::snapshot::printable;
use crate::trace::question::is_recorded;

/// How the sessions begin in which doctor tries a command: what comes of that is no agent's doing.
pub const DOCTOR_SESSION: &str = "doctor-";

/// The variables by which agents tell the programs that they start of themselves.
const MARKS: [(&str, &str); 6] = [
    ("CLAUDECODE", "claude-code"),
    ("OPENCODE", "opencode"),
    ("GOOSE_TERMINAL", "goose"),
    ("GEMINI_CLI", "gemini"),
    ("CURSOR_AGENT", "cursor"),
    ("CODEX_THREAD_ID", "codex"),
];

/// The agent that the environment tells of.
pub fn agent_of_environment() -> Option<String> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    MARKS.iter().find(|(name, _)| is_set(name)).map(|(_, agent)| (*agent).to_owned())
}

/// Whether a command can be told to be this agent's: it has a hook of ours, or marks what it starts.
pub fn is_recognised(agent: &Agent) -> bool {
    matches!(agent.means, Means::Hook(..)) || MARKS.iter().any(|(_, name)| *name == agent.name)
}

/// Notes what happened to a command line, in the library, or where else this user may write. That it was recorded is
/// only noted if an agent is known or something was noted before. Never fails.
pub fn note(line: &[u8], event: NoteEvent) {
    // An outer recording has it all.
    if session(None).is_some_and(|session| session.starts_with(DOCTOR_SESSION)) || is_recorded() {
        return;
    }
    let is_needless = matches!(event, NoteEvent::Recorded { agent: None, .. });
    let note = Note::new(line, event);
    let place = Place { instead: None, ..Place::of_this_user() };
    let in_library = place.root.join(NOTES);
    if is_needless {
        let _ = notes::append(&in_library, &note, true);
        return;
    }
    // Its owner is checked, and a hook may be the first to need it.
    if Library::create(&place).is_err() || notes::append(&in_library, &note, false).is_err() {
        outside(true).find(|path| notes::append(path, &note, false).is_ok());
    }
}

/// The files for notes outside of a library that can't be written to: a sandbox may let nothing but /tmp be changed.
fn outside(makes: bool) -> impl Iterator<Item = PathBuf> {
    // By the library's place as the environment has it, which is the same outside of the sandbox.
    let variables = ["AGENT_SNAPSHOT_LIBRARY", "XDG_STATE_HOME", "HOME"].map(std::env::var_os);
    let place = digest_of(format!("{variables:?}").as_bytes());
    own_places(makes).map(move |directory| directory.join(format!("{place}.{NOTES}")))
}

/// What all notes come to.
pub fn account() -> Account {
    notes::account(files().flat_map(|path| notes::read(&path)).collect(), Timestamp::now())
}

/// The session of the agent that a hook of ours has just answered about a command line, if nothing else tells one.
pub fn session_of(line: &[u8]) -> Option<String> {
    if session(None).is_some() {
        return None;
    }
    let about: Vec<Note> = files().flat_map(|path| notes::read_about(&path, line)).collect();
    notes::session_of(&about, Timestamp::now())
}

/// The files that may have notes.
fn files() -> impl Iterator<Item = PathBuf> {
    let in_library = Library::find().ok().flatten().map(|library| library.root().join(NOTES));
    in_library.into_iter().chain(outside(false))
}

/// A gap as a sentence without a full stop.
pub fn told(gap: &Gap) -> String {
    let (commands, none) =
        (counted(gap.count, "command", "commands"), if gap.count == 1 { "it" } else { "none" });
    let was = if gap.count == 1 { "was not recorded" } else { "was recorded" };
    let since = gap.since.to_zoned(TimeZone::system());
    let is_recent = Timestamp::now().duration_since(gap.since).as_hours() < 12;
    let since = since.strftime(if is_recent { "%H:%M" } else { "%Y-%m-%d %H:%M" });
    let who = gap.agent.as_deref().map(|name| Agent::named(name).map_or(name, |agent| agent.title));
    let head = match who {
        Some(who) => format!("{who} asked for {commands} since {since}"),
        None => format!("agent-snapshot-bash ran {commands} since {since}"),
    };
    let why = gap.why.as_deref().map_or_else(
        || {
            "agent-snapshot-bash was not started: the agent dropped the rewritten command, or did not run it"
                .into()
        },
        |why| printable(why.as_bytes()),
    );
    format!("{head}, {none} {was}: {why}")
}
