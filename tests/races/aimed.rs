//! Races that are aimed at one moment each: many tries in one recording.
//!
//! `RACES_TRIES=N` makes N tries of each.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use agent_snapshot::snapshot::{FileRecord, Operation, Operations, Snapshot, State};

use super::{Load, mechanism, mechanisms, number, set_up};
use crate::support::{Namespace, Place, Tree, program, scan, shown};

/// How many tries one recording holds.
const BATCH: usize = 200;

/// How many wrong things a failure shows.
const SHOWN: usize = 12;

/// Runs a race `tries` times with each of the mechanisms, and fails with the number of tries that were
/// recorded or undone wrongly.
fn race(name: &str, tries: usize, mechanisms: &[String], namespace: Namespace) {
    let tries = number("RACES_TRIES").unwrap_or(tries);
    let _load = Load::new(false);
    let mut failures = Vec::new();
    for mechanism in mechanisms {
        let (mut bad, mut sentences) = (0, Vec::new());
        for start in (0..tries).step_by(BATCH) {
            let wrong = record(name, BATCH.min(tries - start), mechanism, namespace);
            // What names no try, such as a warning, is one more.
            let numbers: BTreeSet<_> = wrong.iter().map(|sentence| try_of(sentence)).collect();
            bad += numbers.len();
            sentences.extend(wrong);
        }
        println!("{name}: {bad} of {tries} wrong ({mechanism}, {namespace:?})");
        let shown: Vec<&str> = sentences.iter().take(SHOWN).map(String::as_str).collect();
        if bad > 0 {
            failures.push(format!(
                "{name}: {bad} of {tries} wrong ({mechanism}, {namespace:?}):\n{}",
                shown.join("\n")
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The number of the try that a sentence is about: in the first name of its path.
fn try_of(sentence: &str) -> Option<usize> {
    let name = sentence.trim_start_matches('/').split(['/', ':', ' ']).next()?;
    name.trim_start_matches(|letter: char| letter.is_ascii_lowercase()).parse().ok()
}

/// Makes one recording; what is wrong in it.
fn record(name: &str, tries: usize, mechanism: &str, namespace: Namespace) -> Vec<String> {
    let (place, before) = set_up(&[name, &tries.to_string()]);
    let mut command = place.recorder_in(namespace, mechanism);
    command.arg(program("races")).args([name, &tries.to_string()]);
    let served = name == "served_rename";
    let reads = served || name == "renamed_working_directory";
    let output = if served {
        let (ours, theirs) = UnixStream::pair().unwrap();
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // The descriptor that the command was given ends with it.
        drop(command);
        serve(&place, &ours);
        child.wait_with_output().unwrap()
    } else {
        command.output().unwrap()
    };
    assert!(output.status.success(), "{name}: {}", shown(&output));
    let snapshot = place.snapshot_in(namespace).unwrap_or_else(|error| panic!("{error}: {}", shown(&output)));
    let mut wrong = if reads { misplaced(&place, &snapshot, tries) } else { Vec::new() };
    if served {
        // What others change is no one's to undo.
        return wrong;
    }
    let after = scan(&place.work);
    let said = String::from_utf8_lossy(&output.stdout);
    wrong.extend(super::wrong(&place, &before, &after, &snapshot));
    wrong.extend(never_there(&place, &before, &after, &snapshot, &History::of(&said)));
    wrong
}

/// Renames what it is asked to, until the other side ends.
fn serve(place: &Place, socket: &UnixStream) {
    for request in BufReader::new(socket).lines() {
        let request = request.unwrap();
        let (from, to) = request.split_once(' ').unwrap();
        std::fs::rename(place.work.join(from), place.work.join(to)).unwrap();
        let mut answer = socket;
        answer.write_all(b".").unwrap();
    }
}

/// The read-only calls that are not recorded at the one path that is right.
fn misplaced(place: &Place, snapshot: &Snapshot, tries: usize) -> Vec<String> {
    let mut wanted: BTreeMap<String, Operation> = BTreeMap::new();
    for number in 0..tries {
        wanted.insert(format!("a{number}/asked"), Operation::Existence);
        match number % 3 {
            0 => wanted.insert(format!("b{number}/read"), Operation::Read),
            1 => wanted.insert(format!("b{number}/read"), Operation::Existence),
            _ => wanted.insert(format!("b{number}/link"), Operation::Existence),
        };
        let late = if number % 2 == 0 { Operation::Read } else { Operation::Existence };
        wanted.insert(format!("c{number}/late"), late);
    }
    let root = place.work.as_os_str().as_encoded_bytes();
    let read = |record: &FileRecord| {
        let name = record.path.strip_prefix(root)?.strip_prefix(b"/")?;
        let name = String::from_utf8(name.to_vec()).unwrap();
        let reads = record.operations.iter().filter(|operation| {
            matches!(operation, Operation::Read | Operation::Existence | Operation::Execute)
        });
        let reads: Vec<Operation> = reads.collect();
        (name.contains('/') && !reads.is_empty()).then_some((name, reads))
    };
    let recorded: BTreeMap<String, Vec<Operation>> = snapshot.files().iter().filter_map(read).collect();
    let mut wrong = Vec::new();
    for (name, operation) in &wanted {
        match recorded.get(name) {
            Some(found) if found[..] == [*operation] => {}
            Some(found) => wrong.push(format!("{name}: was used for {found:?}")),
            None => wrong.push(format!("{name}: no call is recorded")),
        }
    }
    let more = recorded.keys().filter(|name| !wanted.contains_key(*name));
    wrong.extend(more.map(|name| format!("{name}: was never asked for")));
    wrong
}

/// When directories were renamed and names created in them, as the program that did it saw it: its clock
/// before and after each call.
#[derive(Default)]
struct History {
    /// By directory: the latest moment at which it still had this name.
    left: BTreeMap<String, u128>,
    /// By try and name: the earliest moment at which the name can have been there.
    created: BTreeMap<(usize, String), u128>,
}

impl History {
    fn of(said: &str) -> History {
        let mut history = History::default();
        let mut last = BTreeMap::new();
        for line in said.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["rename", from, to, _, end] => {
                    history.left.insert(from.to_owned(), end.parse().unwrap());
                    last.insert(try_of(to), to);
                }
                ["create", number, name, start, _] => {
                    let number = number.parse().unwrap();
                    history.created.insert((number, name.to_owned()), start.parse().unwrap());
                }
                _ => {}
            }
        }
        for name in last.values() {
            history.left.insert((*name).to_owned(), u128::MAX);
        }
        history
    }

    /// Whether the name can have been in the directory at some moment.
    fn allows(&self, directory: &str, name: &str) -> bool {
        let created = try_of(directory).and_then(|number| self.created.get(&(number, name.to_owned())));
        match (created, self.left.get(directory)) {
            (Some(created), Some(left)) => created <= left,
            _ => true,
        }
    }
}

/// The records of paths that were at no moment there.
fn never_there(
    place: &Place,
    before: &Tree,
    after: &Tree,
    snapshot: &Snapshot,
    history: &History,
) -> Vec<String> {
    let root = place.work.as_os_str().as_encoded_bytes();
    let phantom = |record: &FileRecord| {
        let absent = |state: &State| matches!(state, State::Absent { .. });
        if !absent(&record.before) || !absent(&record.after) {
            return None;
        }
        if before.contains_key(&record.path) || after.contains_key(&record.path) {
            return None;
        }
        let name = String::from_utf8(record.path.strip_prefix(root)?.strip_prefix(b"/")?.to_vec()).unwrap();
        let (directory, entry) = name.split_once('/')?;
        let changed = record.operations.intersects(Operations::CHANGES);
        (changed && !history.allows(directory, entry)).then(|| format!("{name}: was never there"))
    };
    snapshot.files().iter().filter_map(phantom).collect()
}

macro_rules! races {
    ($($name:ident: $few:literal;)*) => {
        #[test]
        #[ignore = "slow: thousands of tries"]
        fn slow_as_commands_of_a_session() {
            for name in [$(stringify!($name)),*] {
                race(name, 1000, &[mechanism()], Namespace::Command);
            }
        }

        $(
            #[test]
            fn $name() {
                race(stringify!($name), $few, &[mechanism()], Namespace::Shared);
            }
        )*

        mod in_a_namespace {
            $(
                #[test]
                fn $name() {
                    if super::Namespace::Bound.is_possible() {
                        super::race(stringify!($name), $few / 2, &[super::mechanism()], super::Namespace::Bound);
                    }
                }
            )*
        }

        /// What the program of a session does itself; of its reads there are no records.
        #[test]
        fn as_edits_of_a_session() {
            for name in [$(stringify!($name)),*] {
                if !["served_rename", "renamed_working_directory"].contains(&name) {
                    race(name, 30, &[mechanism()], Namespace::Edit);
                }
            }
        }

        mod slow_in_a_namespace {
            $(
                #[test]
                #[ignore = "slow: a thousand tries"]
                fn $name() {
                    if super::Namespace::Bound.is_possible() {
                        super::race(stringify!($name), 1000, &super::mechanisms(), super::Namespace::Bound);
                    }
                }
            )*
        }

        mod slow {
            $(
                #[test]
                #[ignore = "slow: a thousand tries"]
                fn $name() {
                    super::race(stringify!($name), 1000, &super::mechanisms(), super::Namespace::Shared);
                }
            )*
        }
    };
}

races! {
    refused_rename: 100;
    unlink_of_a_hard_link: 100;
    rename_onto: 100;
    hard_link_in_a_moved_directory: 100;
    create_in_a_moved_directory: 100;
    served_rename: 100;
    renamed_working_directory: 100;
    exchange_of_files: 100;
    exchange_of_directories: 100;
    lock_files: 100;
    shared_working_directory: 100;
    dot_dot_through_an_exchange: 100;
}
