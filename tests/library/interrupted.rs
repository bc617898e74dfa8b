//! Undo, redo and restore at once, killed at any moment: what a message says to do about it works.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use super::undo::{ids, is_restore_begun, rescues, tree};
use super::{library, run, verb};
use crate::support::{BINARY, Place, Random, Run, assert_same, trace_program, works};

/// How often verbs are started at most for one way that is to be followed.
const ROUNDS: usize = 12;
/// How long they go on at most once one of them has begun to change files.
const MOST_MICROS: usize = 3000;

/// Starts verbs at once, and kills them all some time after one of them has begun to change files.
fn kill_all(place: &Place, verbs: &[Vec<String>], after: Duration) {
    let start = |arguments: &Vec<String>| {
        let mut command = place.command();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut children: Vec<Child> = verbs.iter().map(start).collect();
    let mut runs = || children.iter_mut().any(|child| child.try_wait().unwrap().is_none());
    while !is_restore_begun(place) && runs() {
        thread::yield_now();
    }
    // The moment is what is tried.
    thread::sleep(after);
    for mut child in children {
        let _ = child.kill();
        child.wait().unwrap();
    }
}

/// The command lines that messages about interrupted restores name: one that completes it, and one that takes it back.
fn ways(said: &str) -> Vec<String> {
    let lines = said.lines().filter(|line| line.contains(" was interrupted: "));
    let both = lines.flat_map(|line| {
        let (_, ways) = line.split_once("complete it with: ").unwrap();
        let (complete, back) = ways.split_once(", or take it back with: ").unwrap();
        [complete.to_owned(), back.to_owned()]
    });
    both.collect()
}

/// Runs a command line of a message in the working directory.
fn follow(place: &Place, line: &str) -> Run {
    let directory = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    place.program("sh").env("PATH", path).args(["-c", line]).output().unwrap().into()
}

#[test]
fn every_way_that_a_message_names_after_kills_works() {
    follow_ways(4);
}

#[test]
#[ignore = "slow: a minute"]
fn slow_every_way_that_a_message_names_after_kills_works() {
    follow_ways(12);
}

/// Interrupts restores until this many ways were followed.
fn follow_ways(wanted: usize) {
    let place = Place::new();
    for number in 0..24 {
        place.write(&format!("edited/{number}"), format!("old {number}"));
        place.write(&format!("gone/{number}/file"), "gone");
        place.write(&format!("apart/{number}"), "old");
    }
    place.write("in-place", "old");
    place.hard_link("in-place", "other-name");
    let start = tree(&place);
    run(&place, &[], "for i in $(seq 0 20); do echo 1 > edited/$i; done; printf longer > in-place");
    run(&place, &[], "rm -r gone; mkdir -p made/deep; for i in 1 2 3; do echo > made/deep/$i; done");
    run(&place, &[], "for i in $(seq 0 20); do echo 3 > apart/$i; done");
    let end = tree(&place);
    let recordings = ids(&place);
    let mut random = Random::seeded();
    let mut followed = 0;
    for round in 0.. {
        if followed >= wanted {
            break;
        }
        assert!(round < ROUNDS * wanted, "only {followed} messages about interrupted restores");
        let verbs = |random: &mut Random| -> Vec<String> {
            let id = recordings[random.below(recordings.len())].clone();
            let words: &[&str] = match random.below(6) {
                0 => &["undo"],
                1 => &["redo"],
                2 => &["undo", "-n", "2"],
                3 => &["undo", &id],
                4 => &["redo", &id],
                _ => &["restore", "--before", &id],
            };
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        let started: Vec<Vec<String>> = (0..4).map(|_| verbs(&mut random)).collect();
        kill_all(&place, &started, Duration::from_micros(random.below(MOST_MICROS) as u64));
        // Whoever goes on, or checks the library, is told what was interrupted and what to do.
        for step in 0.. {
            assert!(step < 20, "round {round}: it does not end");
            let asks = random.below(4) == 0;
            let check = verb(&place, &[if asks { "undo" } else { "fsck" }]);
            let ways = ways(&[check.stdout.as_str(), &check.stderr].concat());
            if ways.is_empty() && !asks {
                if check.status == 0 {
                    break;
                }
                assert!(check.stdout.contains("left over: "), "round {round}: {check:?}");
            }
            match random.below(ways.len() + 1) {
                0 if asks && ways.is_empty() => {}
                0 => drop(verb(&place, &["fsck", "--repair"])),
                number => {
                    followed += 1;
                    let way = &ways[number - 1];
                    let done = follow(&place, way);
                    let done = match done.status {
                        1 if done.stderr.contains("--force") => follow(&place, &format!("{way} --force")),
                        _ => done,
                    };
                    assert_eq!(
                        done.status,
                        0,
                        "round {round}: {check:?}\n{way}: {done:?}\n{:?}",
                        rescues(&place)
                    );
                }
            }
        }
        let left: Vec<String> =
            rescues(&place).into_iter().filter(|name| name.ends_with(".unfinished")).collect();
        assert_eq!(left, [] as [String; 0], "round {round}");
        // And nothing is lost: each state can be put back.
        for id in &recordings {
            verb(&place, &["restore", "--force", "--before", id]).expect(0);
        }
        assert_same(&tree(&place), &start, &format!("round {round}"));
        for id in recordings.iter().rev() {
            verb(&place, &["restore", "--force", id]).expect(0);
        }
        assert_same(&tree(&place), &end, &format!("round {round}"));
    }
}

/// Two recordings of different files, the first of which is being undone when that is killed.
fn interrupted_undo() -> (Place, [Vec<String>; 2]) {
    let place = Place::new();
    for number in 0..8 {
        place.write(&format!("edited/{number}"), "old");
    }
    run(&place, &[], "for i in 0 1 2 3 4 5 6 7; do echo new > edited/$i; done");
    run(&place, &[], "mkdir apart; echo apart > apart/f");
    let [apart, edited]: [String; 2] = ids(&place).try_into().unwrap();
    let after = tree(&place);
    let arguments = ["undo", &edited].map(std::ffi::OsStr::new);
    let (_, status) = trace_program(&place, arguments, |pid, _| {
        if std::fs::read_to_string(place.at("edited/3")).is_ok_and(|text| text == "old") {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    assert_eq!(status, None);
    assert_ne!(tree(&place), after);
    let [apart, edited] = [apart, edited].map(|id| vec!["undo".to_owned(), id]);
    (place, [apart, edited])
}

fn verb_of(place: &Place, words: &[String]) -> Run {
    verb(place, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn interrupted_restore_is_in_the_way_of_the_same_paths_alone() {
    let (place, [apart, edited]) = interrupted_undo();
    let before = tree(&place);
    let both = verb_of(&place, &[edited.as_slice(), &apart[1..]].concat()).expect(1);
    assert!(both.stderr.contains("an earlier restore was interrupted: complete it with: "), "{both:?}");
    assert_eq!(tree(&place), before);
    verb_of(&place, &apart).expect(0);
    assert!(!place.at("apart").exists());
    verb_of(&place, &edited).expect(0);
    assert_eq!(std::fs::read_to_string(place.at("edited/7")).unwrap(), "old");
    verb(&place, &["fsck"]).expect(0);
}

#[test]
fn repair_takes_an_interrupted_restore_back() {
    let (place, [apart, edited]) = interrupted_undo();
    verb_of(&place, &apart).expect(0);
    verb(&place, &["redo", &apart[1]]).expect(0);
    // As versions before this one may have left it: another rescue has its number.
    let snapshots = library(&place).join("snapshots");
    let [first, second] =
        ["1.unfinished", "1"].map(|end| snapshots.join(format!("{}-rescue-{end}", edited[1])));
    let output = Command::new("cp").arg("-r").args([&first, &second]).output().unwrap();
    assert!(output.status.success());
    std::fs::remove_file(second.join(".agent-snapshot-restore")).unwrap();
    let found = verb(&place, &["fsck"]).expect(1);
    assert!(found.stdout.contains("its restore was interrupted: complete it with: "), "{found:?}");
    let repaired = verb(&place, &["fsck", "--repair"]).expect(0);
    assert!(repaired.stdout.contains("took back the interrupted restore of "), "{repaired:?}");
    for number in 0..8 {
        assert_eq!(std::fs::read_to_string(place.at(format!("edited/{number}"))).unwrap(), "new\n");
    }
    assert!(rescues(&place).iter().all(|name| !name.ends_with(".unfinished")), "{:?}", rescues(&place));
}

#[test]
fn repair_takes_back_what_was_begun_before_any_file_was_changed() {
    let place = Place::new();
    place.prepare("git init -q && git -c user.name=u -c user.email=u@e commit -q --allow-empty -m one");
    run(&place, &[], "echo new > f; git add f");
    let after = tree(&place);
    let lock = place.at(".git/index.lock");
    let (_, status) = trace_program(&place, ["undo", "--all"].map(std::ffi::OsStr::new), |pid, _| {
        if lock.exists() && !is_restore_begun(&place) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    assert!(status.is_none() && lock.exists());
    let found = verb(&place, &["fsck"]).expect(1);
    assert!(found.stdout.contains("killed before it had changed any file"), "{found:?}");
    verb(&place, &["fsck", "--repair"]).expect(0);
    assert!(!lock.exists());
    assert_same(&tree(&place), &after, "");
    verb(&place, &["undo"]).expect(0);
    assert!(!place.at("f").exists());
}

/// The files of [`interrupted_undo`] that have this content.
fn files_with(place: &Place, text: &str) -> usize {
    let has = |number: &usize| {
        std::fs::read_to_string(place.at(format!("edited/{number}"))).unwrap().trim_end() == text
    };
    (0..8).filter(has).count()
}

#[test]
fn undo_that_was_taken_back_but_for_a_conflict_is_one_of_that_alone() {
    let (place, [_, edited]) = interrupted_undo();
    place.write("edited/0", "by hand");
    let way = &ways(&verb(&place, &["fsck"]).expect(1).stdout)[1];
    let refused = follow(&place, way).expect(1);
    assert!(refused.stderr.contains("--skip-conflicts"), "{refused:?}");
    follow(&place, &format!("{way} --skip-conflicts"));
    assert_eq!((files_with(&place, "by hand"), files_with(&place, "new")), (1, 7));
    verb(&place, &["fsck"]).expect(0);
    // All others are still to be undone.
    verb_of(&place, &edited).expect(0);
    assert_eq!((files_with(&place, "by hand"), files_with(&place, "old")), (1, 7));
    verb(&place, &["redo", &edited[1], "--skip-conflicts"]);
    assert_eq!((files_with(&place, "by hand"), files_with(&place, "new")), (1, 7));
}

#[test]
fn interrupted_undo_is_completed_whatever_becomes_of_conflicts() {
    let (place, [_, edited]) = interrupted_undo();
    // One that it had not come to.
    place.write("edited/7", "by hand");
    let refused = verb_of(&place, &edited).expect(1);
    assert!(refused.stderr.contains("--skip-conflicts"), "{refused:?}");
    let undone = verb_of(&place, &[&edited[..], &["--skip-conflicts".to_owned()]].concat());
    assert_eq!((files_with(&place, "by hand"), files_with(&place, "old")), (1, 7), "{undone:?}");
    verb(&place, &["fsck"]).expect(0);
    let redone = verb(&place, &["redo", &edited[1], "--skip-conflicts"]);
    assert_eq!((files_with(&place, "by hand"), files_with(&place, "new")), (1, 7), "{redone:?}");
}

#[test]
fn file_that_an_interrupted_undo_wrote_by_another_name_is_nobody_elses_change() {
    let place = Place::new();
    place.write("a", "old");
    let before = tree(&place);
    run(&place, &[], "echo new > a; ln a b");
    let after = tree(&place);
    // Killed as it begins to remove the new name.
    let mut strace = place.program("strace");
    strace.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=renameat2",
        "-e",
        "inject=renameat2:signal=KILL:when=1",
    ]);
    if !works(place.program("strace").arg("--version")) {
        return println!("skipped: there is no strace");
    }
    strace.arg(BINARY).arg("undo").output().unwrap();
    assert_eq!(std::fs::read_to_string(place.at("b")).unwrap(), "old");
    verb(&place, &["undo"]).expect(0);
    assert_same(&tree(&place), &before, "undone");
    verb(&place, &["redo"]).expect(0);
    assert_same(&tree(&place), &after, "redone");
}

/// What is undone is chosen when no other undo or redo is being made.
#[test]
fn undo_after_a_redo_at_the_same_time_undoes_what_that_redid() {
    let place = Place::new();
    run(&place, &[], "echo one > p");
    run(&place, &[], "rm p; echo two > q");
    verb(&place, &["undo"]).expect(0);
    let directory = std::fs::File::open(library(&place).join("snapshots")).unwrap();
    directory.lock().unwrap();
    let start = |word: &str| {
        let mut command = place.command();
        let child = command.arg(word).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        // Until it waits for the directory.
        let waits = || {
            let calls = std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
            [libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_flock]
                .iter()
                .any(|call| calls.starts_with(&format!("{call} ")))
        };
        while !waits() {
            thread::yield_now();
        }
        child
    };
    let children = ["redo", "undo"].map(start);
    directory.unlock().unwrap();
    let statuses = children.map(|child| child.wait_with_output().unwrap().status.code());
    // One after the other, in some order: the file of the first recording comes back, or goes for good, with its mark.
    let there = ["p", "q"].map(|name| place.at(name).exists());
    verb(&place, &["redo"]);
    verb(&place, &["redo"]);
    let end = ["p", "q"].map(|name| place.at(name).exists());
    assert_eq!(end, [false, true], "{statuses:?} {there:?}");
}
