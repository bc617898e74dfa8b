//! `asked.jsonl`: what hooks and shells of ours were asked to have recorded, and what came of it.
//!
//! A hook that answers an agent notes the command, as a digest; the shell that is started with it notes that it records
//! it, or why not. What was asked for and not recorded is a gap, of which `log` and `doctor` tell. Notes are appended
//! with one write(2) each, without a lock, and are never worth a failure. Of the file there are two generations of
//! 64 KiB.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The file's name.
pub const NOTES: &str = "asked.jsonl";

/// The name of the file with the notes before those.
pub const OLD: &str = "asked.jsonl.old";

fn old(path: &Path) -> PathBuf {
    path.with_extension("jsonl.old")
}

/// How large the file becomes before it is the old one.
const LIMIT: u64 = 64 << 10;

/// How much of a reason is noted, in characters.
const REASON: usize = 300;

/// How long nothing need have come of what was asked: the agent may ask its user, and a shell has to start.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub time: Timestamp,
    /// The command line, as [`digest_of`] has it.
    pub line: String,
    /// What.
    #[serde(flatten)]
    pub event: NoteEvent,
}

/// What happened to a command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NoteEvent {
    /// A hook was asked by an agent, and had it rewritten.
    Asked {
        /// The agent's name.
        agent: String,
        /// Why it was left as it is, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// The agent's session, if it told that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    /// A shell has begun to record it.
    Recorded {
        /// The identifier of the recording.
        id: String,
        /// The agent that the environment tells of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// A shell runs it unrecorded.
    Unrecorded {
        /// Why.
        why: String,
        /// The agent that the environment tells of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
}

impl Note {
    /// A note of now.
    pub fn new(line: &[u8], mut event: NoteEvent) -> Note {
        if let NoteEvent::Asked { why: Some(why), .. } | NoteEvent::Unrecorded { why, .. } = &mut event {
            *why = why.chars().take(REASON).collect();
        }
        Note { time: Timestamp::now(), line: digest_of(line), event }
    }
}

/// What stands for a command line.
pub fn digest_of(line: &[u8]) -> String {
    faster_hex::hex_string(&Sha256::digest(line)[..8])
}

/// Adds a note to a file of them; with `only_if_any`, only if it is there.
pub fn append(path: &Path, note: &Note, only_if_any: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(!only_if_any).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = options.open(path)?;
    let stat = file.metadata()?;
    if !stat.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if stat.len() > LIMIT && make_old(&file, path)? {
        file = options.create(true).open(path)?;
    }
    let mut text = serde_json::to_vec(note)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// Makes the notes in an open file the old ones, unless another process does; whether it was done.
fn make_old(file: &File, path: &Path) -> io::Result<bool> {
    if flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    let opened = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) if (named.dev(), named.ino()) == (opened.dev(), opened.ino()) => {
            fs::rename(path, old(path)).map(|()| true)
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// The notes in a file, and the old ones; what is no note is passed over.
pub fn read(path: &Path) -> Vec<Note> {
    notes_in(path, |_| true)
}

/// Those about a command line.
pub fn read_about(path: &Path, line: &[u8]) -> Vec<Note> {
    let digest = digest_of(line);
    let mut notes = notes_in(path, |text| text.windows(digest.len()).any(|part| part == digest.as_bytes()));
    notes.retain(|note| note.line == digest);
    notes
}

fn notes_in(path: &Path, may_be_wanted: impl Fn(&[u8]) -> bool) -> Vec<Note> {
    let text = [old(path), path.to_owned()].map(|path| fs::read(path).unwrap_or_default());
    let lines = text.iter().flat_map(|text| text.split(|byte| *byte == b'\n'));
    lines.filter(|line| may_be_wanted(line)).filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// The session of whoever asked last for a command line, by the notes about it, if that was just now.
pub fn session_of(notes: &[Note], now: Timestamp) -> Option<String> {
    let is_recent = |note: &&Note| now.duration_since(note.time) < PATIENCE;
    let asked = notes.iter().filter(is_recent).filter_map(|note| match &note.event {
        NoteEvent::Asked { session, why: None, .. } => Some((note.time, session)),
        _ => None,
    });
    asked.max_by_key(|(time, _)| *time)?.1.clone()
}

/// Commands that were asked to be recorded and were not, since the last one that was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The name of the agent that asked; none if a shell was started, and nothing tells by whom.
    pub agent: Option<String>,
    /// How many.
    pub count: usize,
    /// When the first of them was asked for.
    pub since: Timestamp,
    /// Why the last one was not recorded, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What notes come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// What was not recorded, by agent.
    pub gaps: Vec<Gap>,
    /// The last recording of each agent: its name, when, and the identifier.
    pub seen: Vec<(String, Timestamp, String)>,
}

/// One command that was asked for.
struct Asked {
    agent: Option<String>,
    line: String,
    time: Timestamp,
    why: Option<String>,
}

/// Sums up notes.
pub fn account(mut notes: Vec<Note>, now: Timestamp) -> Account {
    notes.sort_by_key(|note| note.time);
    let mut account = Account::default();
    let mut open: Vec<Asked> = Vec::new();
    for (at, Note { time, line, event }) in notes.iter().enumerate() {
        let matching =
            |open: &[Asked]| open.iter().position(|asked| asked.line == *line && asked.why.is_none());
        match event {
            NoteEvent::Asked { agent, why, .. } => open.push(Asked {
                agent: Some(agent.clone()),
                line: line.clone(),
                time: *time,
                why: why.clone(),
            }),
            // It had begun, and failed.
            NoteEvent::Recorded { .. } if fails(&notes[at + 1..], line) => {}
            NoteEvent::Recorded { id, agent } => {
                let asked = matching(&open).and_then(|at| open[at].agent.clone());
                let agent = asked.or_else(|| agent.clone());
                open.retain(|asked| asked.agent != agent);
                if let Some(agent) = agent {
                    account.seen.retain(|(other, ..)| *other != agent);
                    account.seen.push((agent, *time, id.clone()));
                }
            }
            NoteEvent::Unrecorded { why, agent } => match matching(&open) {
                Some(at) => open[at].why = Some(why.clone()),
                None => open.push(Asked {
                    agent: agent.clone(),
                    line: line.clone(),
                    time: *time,
                    why: Some(why.clone()),
                }),
            },
        }
    }
    open.retain(|asked| asked.why.is_some() || now.duration_since(asked.time) >= PATIENCE);
    for Asked { agent, time, why, .. } in open {
        match account.gaps.iter_mut().find(|gap| gap.agent == agent) {
            Some(gap) => (gap.count, gap.why) = (gap.count + 1, why.or_else(|| gap.why.take())),
            None => account.gaps.push(Gap { agent, count: 1, since: time, why }),
        }
    }
    account
}

/// Whether the next that is noted of a line is that it was not recorded.
fn fails(later: &[Note], line: &str) -> bool {
    let next = later.iter().find(|note| note.line == line && !matches!(note.event, NoteEvent::Asked { .. }));
    next.is_some_and(|note| matches!(note.event, NoteEvent::Unrecorded { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(agent: &str) -> NoteEvent {
        NoteEvent::Asked { agent: agent.to_owned(), why: None, session: None }
    }

    fn recorded(id: &str) -> NoteEvent {
        NoteEvent::Recorded { id: id.to_owned(), agent: None }
    }

    fn unrecorded(why: &str) -> NoteEvent {
        NoteEvent::Unrecorded { why: why.to_owned(), agent: None }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// What notes of these lines come to, one a second from 0, long after.
    fn of(notes: &[(&str, NoteEvent)]) -> Account {
        let note = |(second, (line, event)): (i64, &(&str, NoteEvent))| Note {
            time: at(second),
            ..Note::new(line.as_bytes(), event.clone())
        };
        account((0..).zip(notes).map(note).collect(), at(10_000))
    }

    fn gap(agent: Option<&str>, count: usize, since: i64, why: Option<&str>) -> Gap {
        Gap { agent: agent.map(str::to_owned), count, since: at(since), why: why.map(str::to_owned) }
    }

    #[test]
    fn what_was_asked_for_since_the_last_recording_is_a_gap() {
        let dropped = [("a", asked("gemini")), ("b", asked("gemini")), ("c", asked("cursor"))];
        assert_eq!(of(&dropped).gaps, [gap(Some("gemini"), 2, 0, None), gap(Some("cursor"), 1, 2, None)]);
        let fine = [&dropped[..], &[("b", recorded("id")), ("c", recorded("other"))]].concat();
        let seen =
            [("gemini".to_owned(), at(3), "id".to_owned()), ("cursor".to_owned(), at(4), "other".to_owned())];
        assert_eq!(of(&fine), Account { gaps: Vec::new(), seen: seen.to_vec() });
        let again = [&fine[..], &[("a", asked("gemini"))]].concat();
        assert_eq!(of(&again).gaps, [gap(Some("gemini"), 1, 5, None)]);
        // One that nobody's hook was asked about, and another agent's, are no proof.
        let other = [("a", asked("gemini")), ("z", recorded("id"))];
        assert_eq!(of(&other), Account { gaps: vec![gap(Some("gemini"), 1, 0, None)], seen: Vec::new() });
    }

    #[test]
    fn reason_is_that_of_the_shell_or_of_the_hook() {
        let shell = [("a", asked("gemini")), ("a", unrecorded("denied")), ("a", asked("gemini"))];
        assert_eq!(of(&shell).gaps, [gap(Some("gemini"), 2, 0, Some("denied"))]);
        // It had begun, and failed: the same line twice, so that each has its own end.
        let failed = [("a", asked("gemini")), ("a", recorded("x")), ("a", unrecorded("denied"))];
        let twice = [&failed[..], &failed].concat();
        assert_eq!(
            of(&twice),
            Account { gaps: vec![gap(Some("gemini"), 2, 0, Some("denied"))], seen: vec![] }
        );
        let direct = [("a", unrecorded("denied")), ("b", unrecorded("full"))];
        assert_eq!(of(&direct).gaps, [gap(None, 2, 0, Some("full"))]);
        let better = [&direct[..], &[("c", recorded("id"))]].concat();
        assert_eq!(of(&better), Account::default());
        let left = NoteEvent::Asked {
            agent: "cursor".to_owned(),
            why: Some("no approval".to_owned()),
            session: None,
        };
        assert_eq!(of(&[("a", left)]).gaps, [gap(Some("cursor"), 1, 0, Some("no approval"))]);
    }

    #[test]
    fn what_was_just_asked_for_may_be_to_come() {
        let note = Note { time: at(100), ..Note::new(b"a", asked("gemini")) };
        let gaps = |now| account(vec![note.clone()], at(now)).gaps.len();
        assert_eq!([gaps(50), gaps(100), gaps(159), gaps(160)], [0, 0, 0, 1]);
    }

    #[test]
    fn session_is_that_of_whoever_asked_last() {
        let of = |line: &str, second, session: Option<&str>| Note {
            time: at(second),
            ..Note::new(
                line.as_bytes(),
                NoteEvent::Asked {
                    agent: "gemini".to_owned(),
                    why: None,
                    session: session.map(str::to_owned),
                },
            )
        };
        let directory = tempfile::tempdir().unwrap();
        let path = &directory.path().join(NOTES);
        for note in [of("a", 1, Some("old")), of("a", 30, Some("s")), of("b", 40, None)] {
            append(path, &note, false).unwrap();
        }
        let session = |line: &str, now| session_of(&read_about(path, line.as_bytes()), at(now));
        assert_eq!(session("a", 50).as_deref(), Some("s"));
        assert_eq!([session("a", 90), session("b", 50), session("c", 50)], [None, None, None]);
    }

    #[test]
    fn notes_that_another_process_has_made_old_are_left_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = &directory.path().join(NOTES);
        let file = File::create(path).unwrap();
        assert!(make_old(&file, path).unwrap());
        assert!(!make_old(&file, path).unwrap(), "it has no name now");
        fs::write(path, "new").unwrap();
        assert!(!make_old(&file, path).unwrap(), "another file has its name");
        assert_eq!(fs::read(path).unwrap(), b"new");
    }

    #[test]
    fn notes_of_many_processes_are_whole_and_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let root = &directory.path().join(NOTES);
        append(root, &Note::new(b"x", recorded("id")), true).unwrap_err();
        assert_eq!(read(root), []);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in 0..500 {
                        let line = format!("{thread} {number}");
                        append(root, &Note::new(line.as_bytes(), asked(&"g".repeat(50))), false).unwrap();
                    }
                });
            }
        });
        let text =
            fs::read_to_string(root).unwrap() + &fs::read_to_string(directory.path().join(OLD)).unwrap();
        assert!(text.len() < 3 * usize::try_from(LIMIT).unwrap(), "{}", text.len());
        assert_eq!(read(root).len(), text.lines().count(), "each line is a note");
        // What is no note is passed over.
        fs::write(root, b"{\n\xff\n[]\n{\"time\":1}\n").unwrap();
        fs::remove_file(directory.path().join(OLD)).unwrap();
        append(root, &Note::new(b"x", unrecorded(&"\u{fc}".repeat(1000))), true).unwrap();
        let [note] = &read(root)[..] else { panic!("one note") };
        assert_eq!(note.event, unrecorded(&"\u{fc}".repeat(REASON)));
    }
}
