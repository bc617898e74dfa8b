//! `log`: the recordings of the library, the newest first.
//!
//! Opens no bundle but where only its records tell whether it belongs here, and the rescues of what is listed: ten
//! thousand recordings are listed at once.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use rustix::fs::inotify;
use serde::Serialize;

use super::asked;
use super::exit::{Exit, UsageError, VerbResult};
use super::open::scope;
use super::out::{Console, style};
use super::paths::{live, shell_line};
use super::shell;
use super::show::cut;
use crate::cli::Log;
use crate::library::log::{self, ChangeCounts, EntryState};
use crate::library::notes::Gap;
use crate::library::retention::{NEWEST, place_of};
use crate::library::scope::{Scope, changes_below};
use crate::library::undone::UndoneRecordings;
use crate::library::{Entry, Library, Place};
use crate::snapshot::printable;

/// The most that is listed.
const MOST: usize = 1000;

/// How much of a command is shown in a line that is not cut to a terminal.
pub const COMMAND_WIDTH: usize = 60;

/// Runs `log`.
pub fn run(args: &Log, console: &mut Console) -> VerbResult {
    if args.limit > MOST {
        console.say(format_args!("--limit is {MOST} at most: the newest {MOST} are listed"));
    }
    let scope = scope(&args.access, args.all);
    if args.follow {
        return follow(args, &scope, console);
    }
    let (listed, rest, undone) = match Library::find()? {
        Some(library) => {
            let (listed, rest) = select(args, &scope, &library)?;
            (listed, rest, UndoneRecordings::of(&library)?)
        }
        None => (Vec::new(), Rest::default(), UndoneRecordings::default()),
    };
    let listed: Vec<Listed> = listed.into_iter().map(|entry| Listed::of(entry, &undone)).collect();
    let gaps = asked::account().gaps;
    if args.json {
        let Rest { unchanged, older, evicted } = rest;
        let gaps = &gaps;
        console.json(&LogJson { recordings: &listed, changed_nothing: unchanged, older, evicted, gaps })?;
        return Ok(Exit::Success);
    }
    gaps.iter().for_each(|gap| console.say(format_args!("{}", asked::told(gap))));
    if listed.is_empty() && rest.unchanged == 0 && rest.evicted == 0 {
        let hint = if args.all { "" } else { " here (--all lists what was recorded elsewhere)" };
        console.say(format_args!("nothing was recorded{hint}"));
        return Ok(Exit::Success);
    }
    print(args, &listed, &rest, console)?;
    Ok(Exit::Success)
}

/// A recording that is listed.
#[derive(Serialize)]
pub struct Listed {
    /// What the log says of it.
    #[serde(flatten)]
    pub entry: Entry,
    /// When it was undone, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    undone: Option<String>,
    /// Whether some of its paths are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partly_undone: bool,
}

impl Listed {
    /// A recording, with what was undone of it.
    pub fn of(entry: Entry, undone: &UndoneRecordings) -> Listed {
        let at = undone.get(&entry.id).map(|undone| undone.at.clone());
        Listed { partly_undone: at.is_none() && undone.last(&entry.id).is_some(), undone: at, entry }
    }

    /// Whether it is undone, or partly, in words.
    pub fn mark(&self) -> Option<&'static str> {
        self.undone.as_ref().map(|_| "undone").or(self.partly_undone.then_some("partly undone"))
    }
}

/// How many recordings are not listed.
#[derive(Debug, Default)]
struct Rest {
    /// Those of the newest that were deleted, since these alone exceeded the limit of size.
    evicted: usize,
    /// Those that changed nothing.
    unchanged: usize,
    /// Those beyond the limit.
    older: usize,
}

/// The recordings to list, the newest first.
fn select(args: &Log, scope: &Scope, library: &Library) -> anyhow::Result<(Vec<Entry>, Rest)> {
    let oldest = args.since.map(before_now).transpose()?;
    let paths = args.path.as_deref().map(live).transpose()?;
    let mut listed = Vec::new();
    let mut rest = Rest::default();
    let mut newer = args.offset;
    let log = log::read(library.root())?;
    let evicted = log.evicted();
    let entries = library.entries_of(log)?;
    // Only the newest were promised to stay.
    let is_missed = |one: &&Entry| {
        let is_newer = |entry: &&Entry| {
            entry.changes().any() && entry.time > one.time && place_of(entry) == place_of(one)
        };
        entries.iter().filter(is_newer).count() < NEWEST && scope.contains(one, library)
    };
    rest.evicted = evicted.iter().filter(is_missed).count();
    for entry in entries.into_iter().rev() {
        if oldest.is_some_and(|oldest| started(&entry).is_some_and(|started| started < oldest)) {
            break;
        }
        if !scope.contains(&entry, library) {
            continue;
        }
        if let Some(paths) = &paths {
            let snapshot = library.directory_of(&entry.id);
            if !paths.iter().any(|path| entry.may_change(path) && changes_below(&snapshot, path)) {
                continue;
            }
        }
        if is_quiet(&entry) && !args.reads {
            rest.unchanged += 1;
        } else if newer > 0 {
            newer -= 1;
        } else if listed.len() < args.limit.min(MOST) {
            listed.push(entry);
        } else {
            rest.older += 1;
        }
    }
    Ok((listed, rest))
}

/// Whether a recording changed nothing, and there is nothing else to tell of it.
pub fn is_quiet(entry: &Entry) -> bool {
    let is_plain = entry.state == EntryState::Ended && !entry.incomplete && entry.refused == 0;
    is_plain && !entry.changes().any()
}

/// The moment that was this long ago.
pub fn before_now(since: Duration) -> Result<Timestamp, UsageError> {
    Timestamp::now().checked_sub(since).map_err(|_| UsageError("--since is too long".to_owned()))
}

/// When a recording was started.
pub fn started(entry: &Entry) -> Option<Timestamp> {
    entry.time.parse().ok()
}

/// Lists what ends from now on.
fn follow(args: &Log, scope: &Scope, console: &mut Console) -> VerbResult {
    let library = Library::create(&Place::of_this_user())?;
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).context("watch the library")?;
    // A line is appended, or a new log takes the place of the old one.
    let events = inotify::WatchFlags::MODIFY | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CREATE;
    inotify::add_watch(&watch, library.root(), events).context("watch the library")?;
    let has_ended = |entry: &Entry| entry.state != EntryState::Running;
    let known = library.entries()?.into_iter().filter(has_ended).map(|entry| entry.id);
    let mut known: HashSet<String> = known.collect();
    loop {
        for entry in library.entries()?.into_iter().filter(has_ended) {
            let is_wanted = args.reads || entry.changes().any() || entry.incomplete || entry.refused > 0;
            if known.insert(entry.id.clone()) && is_wanted && scope.contains(&entry, &library) {
                print_entry(args, &entry, None, Timestamp::now(), console)?;
            }
        }
        console.flush()?;
        // What has changed, the log tells.
        let mut events = [0; 4096];
        rustix::io::retry_on_intr(|| rustix::io::read(&watch, &mut events)).context("watch the library")?;
    }
}

fn print(args: &Log, listed: &[Listed], rest: &Rest, console: &mut Console) -> anyhow::Result<()> {
    let now = Timestamp::now();
    for one in listed {
        print_entry(args, &one.entry, one.mark(), now, console)?;
    }
    if rest.unchanged > 0 {
        let (count, commands) = (rest.unchanged, if rest.unchanged == 1 { "command" } else { "commands" });
        writeln!(console, "and {count} {commands} that changed nothing (--reads lists them)")?;
    }
    if rest.older > 0 {
        writeln!(console, "and {} older (--limit)", rest.older)?;
    }
    if rest.evicted > 0 {
        let commands = if rest.evicted == 1 { "command is" } else { "commands are" };
        writeln!(
            console,
            "{} of the newest {NEWEST} {commands} gone: alone, these exceeded the library's max-size (agent-snapshot stats)",
            rest.evicted
        )?;
    }
    Ok(())
}

fn print_entry(
    args: &Log,
    entry: &Entry,
    undone: Option<&str>,
    now: Timestamp,
    console: &mut Console,
) -> anyhow::Result<()> {
    let counts = counts(entry.changes());
    let marks = marks(entry, undone);
    let head = format!("{}  {:>4}  {:>3}  {counts:14}  ", entry.id, age(entry, now), entry.status);
    let command = if args.long { shell_line(&entry.command) } else { command_line(entry) };
    let width = match console.format.width {
        Some(width) => width.saturating_sub(head.len() + marks.len()).max(20),
        None if args.long => usize::MAX,
        None => COMMAND_WIDTH,
    };
    let command = cut(&command, width);
    let marks = console.paint(style::CHANGED, marks).to_string();
    writeln!(console, "{head}{command}{marks}")?;
    if args.long {
        for (label, value) in details(entry) {
            writeln!(console, "          {label:9} {value}")?;
        }
    }
    Ok(())
}

/// `+2 ~1 -3 git`: created, changed, deleted, and Git's state.
pub fn counts(counts: ChangeCounts) -> String {
    let parts = [('+', counts.created), ('~', counts.changed), ('-', counts.deleted)];
    let parts = parts.iter().filter(|(_, count)| *count > 0).map(|(sign, count)| format!("{sign}{count}"));
    let git = counts.git.then(|| "git".to_owned());
    parts.chain(git).collect::<Vec<_>>().join(" ")
}

/// What is particular of a recording, in words and parentheses, behind two spaces; empty if nothing is.
pub fn marks(entry: &Entry, undone: Option<&str>) -> String {
    let state = match entry.state {
        EntryState::Ended => None,
        EntryState::Running => Some("running"),
        EntryState::Killed => Some("killed"),
        EntryState::Unrecovered => Some("killed, not recovered"),
    };
    let imported = entry.imported.then_some("imported");
    let incomplete = entry.incomplete.then_some("incomplete");
    let refused = (entry.refused > 0).then(|| format!("{} refused", entry.refused));
    let marks = undone.into_iter().chain(state).chain(refused.as_deref()).chain(incomplete).chain(imported);
    let marks: Vec<&str> = marks.collect();
    if marks.is_empty() { String::new() } else { format!("  ({})", marks.join(", ")) }
}

fn details(entry: &Entry) -> BTreeMap<&'static str, String> {
    let text = |bytes: &[u8]| printable(bytes).into_owned();
    let mut details = BTreeMap::from([("Directory", text(&entry.cwd.0)), ("Started", entry.time.clone())]);
    if let Some(step) = entry.step {
        details.insert("Step", step.to_string());
    }
    for (label, value) in [("Name", &entry.name), ("Session", &entry.session)] {
        if let Some(value) = value {
            details.insert(label, text(value.as_bytes()));
        }
    }
    details
}

/// The command in one line; of a shell that an agent started, the line that it was asked for.
pub fn command_line(entry: &Entry) -> String {
    title(&entry.command, entry.title.as_ref().map(AsRef::as_ref))
}

/// What a recording of a command is called: the line inside of it if it has such a title, else its own.
pub fn title(command: &[impl AsRef<[u8]>], title: Option<&[u8]>) -> String {
    let line = title.map(<[u8]>::to_vec).or_else(|| shell::line_of(command));
    line.map_or_else(|| shell_line(command), |line| printable(&line).into_owned())
}

/// How long ago a recording was started, in one unit.
pub fn age(entry: &Entry, now: Timestamp) -> String {
    let Some(started) = started(entry) else { return String::new() };
    let seconds = now.duration_since(started).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The JSON of the list.
#[derive(Serialize)]
struct LogJson<'a> {
    recordings: &'a [Listed],
    /// How many are left out that changed nothing.
    changed_nothing: usize,
    /// How many are left out beyond the limit.
    older: usize,
    /// How many of the newest were deleted for their size.
    evicted: usize,
    /// What was asked to be recorded and was not.
    #[serde(skip_serializing_if = "<[Gap]>::is_empty")]
    gaps: &'a [Gap],
}
