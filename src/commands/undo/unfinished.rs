//! Recordings that go on or were killed, which can't be undone yet: an undo that names no recording does not take an
//! older one instead.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use super::Undoing;
use crate::cli::Undo;
use crate::commands::open::{is_part_of, scope};
use crate::commands::out::Console;
use crate::commands::paths::{shell_line, shell_word};
use crate::library::Entry;
use crate::library::log::EntryState;
use crate::library::session::session;
use crate::snapshot::recover;

/// Why a recording can't be undone yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unfinished {
    /// It goes on.
    Running,
    /// All of it was killed, and it has not been recovered.
    Killed,
}

impl Undoing {
    /// Why a recording can't be undone yet; none if it can, or if this process is part of it.
    fn unfinished(&self, entry: &Entry) -> Option<Unfinished> {
        if entry.imported || !matches!(entry.state, EntryState::Running | EntryState::Unrecovered) {
            return None;
        }
        // The log calls it running if all of it was killed after its first snapshot.
        let begin = recover::recorder(&self.recordings.library.directory_of(&entry.id))?;
        let is_alive = begin.recorder.is_alive() || begin.front.is_alive();
        (!is_part_of(&begin)).then_some(if is_alive { Unfinished::Running } else { Unfinished::Killed })
    }

    /// Those in scope, the newest first.
    fn all_unfinished(&self, args: &Undo) -> impl Iterator<Item = (&Entry, Unfinished)> {
        let scope = scope(&args.options.access, args.options.all);
        let unfinished =
            self.recordings.entries.iter().rev().filter_map(|entry| Some((entry, self.unfinished(entry)?)));
        unfinished.filter(move |(entry, _)| scope.contains(entry, &self.recordings.library))
    }

    /// Says which unfinished recording in scope is newer than the oldest of those that were chosen, and the ways that work; none
    /// if there is none, or if a session is undone as a whole, since [`Undoing::name_unfinished`] has named its own.
    pub(super) fn passed_over(&self, chosen: &[&Entry], paths: &[OsString], args: &Undo) -> Option<String> {
        if args.options.access.session.is_some() {
            return None;
        }
        let oldest = chosen.first();
        let is_newer = |entry: &Entry| oldest.is_none_or(|oldest| entry.time > oldest.time);
        let (Entry { id, .. }, why) = self.all_unfinished(args).find(|(entry, _)| is_newer(entry))?;
        let newer = oldest.map(|oldest| format!("is newer than {} and ", oldest.id)).unwrap_or_default();
        let why = match why {
            Unfinished::Running if oldest.is_none() => "is still running: it can be undone once it has ended",
            Unfinished::Running => "still running: wait for its end",
            Unfinished::Killed => &format!("was killed: recover it first with: {}", self.recovery(id)),
        };
        let instead = oldest.map(|_| {
            let mut words = vec![b"agent-snapshot".as_slice(), b"undo"];
            words.extend(chosen.iter().map(|entry| entry.id.as_bytes()));
            if !paths.is_empty() {
                words.push(b"--");
                words.extend(paths.iter().map(|path| path.as_bytes()));
            }
            format!(", or leave it out with: {}", shell_line(&words))
        });
        Some(format!("{id} {newer}{why}{}", instead.unwrap_or_default()))
    }

    /// Names the unfinished recordings of a session that is undone as a whole: what they change is not undone.
    pub(super) fn name_unfinished(&self, args: &Undo, console: &mut Console) {
        for (Entry { id, .. }, why) in self.all_unfinished(args) {
            match why {
                // The command that undoes is one of its session itself.
                Unfinished::Running if session(None).is_some() => {}
                Unfinished::Running => {
                    console.say(format_args!("{id} is still running: what it changes is not undone"));
                }
                Unfinished::Killed => console.say(format_args!(
                    "{id} was killed: what it changed is not undone ({} makes a snapshot of it)",
                    self.recovery(id)
                )),
            }
        }
    }

    /// The command line that recovers a recording.
    fn recovery(&self, id: &str) -> String {
        let path = self.recordings.library.directory_of(id);
        format!("agent-snapshot recover {}", shell_word(path.as_os_str().as_bytes()))
    }
}
