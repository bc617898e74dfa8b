//! Undos and redos that were killed and then taken back: they count as never having been.

use std::ffi::OsStr;
use std::fs;

use nix::sys::signal::{Signal, kill};

use super::undo::{rescues, tree};
use super::{library, log, run, verb};
use crate::support::{Place, User, assert_same, trace_program};

/// What is interrupted, and the opposite of it.
const VERBS: [[&[&str]; 2]; 4] = [
    [&["undo", "--all"], &["redo", "--all"]],
    [&["redo", "--all"], &["undo", "--all"]],
    [&["undo", "-n", "2", "--all"], &["redo", "--all"]],
    [&["redo", "--all"], &["undo", "-n", "2", "--all"]],
];

/// The calls by which a restore gives names.
const RENAMES: &[libc::c_long] = &[
    libc::SYS_renameat2,
    libc::SYS_renameat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
];

/// Runs a verb and kills it at the entry of one of these calls, the one with this number; whether it came to that.
fn kill_at(place: &Place, words: &[&str], calls: &[libc::c_long], number: usize) -> bool {
    let mut stops = 0;
    let (_, status) = trace_program(place, words.iter().map(OsStr::new), |pid, _| {
        let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        if calls.iter().any(|number| call.starts_with(&format!("{number} "))) {
            stops += 1;
            // Each stops at its entry and at its exit.
            if stops == 2 * number - 1 {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
    });
    status.is_none()
}

/// Recordings that a verb is about to undo or redo, and the two trees.
struct Recorded {
    place: Place,
    verb: &'static [&'static str],
    opposite: &'static [&'static str],
    /// The tree that is there, and the one that the verb makes of it.
    trees: [Vec<String>; 2],
    /// Which recordings are undone before it.
    undone: Vec<bool>,
}

fn undone(place: &Place) -> Vec<bool> {
    let is_undone = |entry: &serde_json::Value| {
        assert!(entry["partly_undone"].as_bool() != Some(true), "{entry}");
        entry["undone"].is_string()
    };
    log(place, &["--all"]).iter().map(is_undone).collect()
}

impl Recorded {
    fn of([verb_words, opposite]: [&'static [&'static str]; 2], user: User) -> Recorded {
        let place = Place::of(user);
        place.write("b", "old");
        place.write("c", "two");
        let several = [verb_words, opposite].iter().any(|words| words.contains(&"2"));
        let mut trees = vec![tree(&place)];
        if several {
            run(&place, &[], "echo first > b; echo made > e");
            run(&place, &[], "echo new > b; echo new > c; mkdir d; echo made > d/f");
        } else {
            run(&place, &[], "echo new > b; echo new > c; mkdir d; echo made > d/f");
        }
        trees.push(tree(&place));
        if verb_words[0] == "redo" {
            verb(&place, opposite).expect(0);
            assert_same(&tree(&place), &trees[0], "undone");
        } else {
            trees.reverse();
        }
        let undone = undone(&place);
        Recorded { place, verb: verb_words, opposite, trees: trees.try_into().unwrap(), undone }
    }

    /// All is as before the verb, and it and its opposite go back and forth.
    fn expect_as_before(&self, what: &str) {
        let what = &format!("{:?} {what}", self.verb);
        verb(&self.place, &["fsck"]).expect(0);
        assert_same(&tree(&self.place), &self.trees[0], what);
        assert_eq!(undone(&self.place), self.undone, "{what}");
        self.expect_to_work(what);
    }

    fn expect_to_work(&self, what: &str) {
        let opposite: Vec<bool> = self.undone.iter().map(|undone| !undone).collect();
        for _ in 0..2 {
            verb(&self.place, self.verb).expect(0);
            assert_same(&tree(&self.place), &self.trees[1], what);
            assert_eq!(undone(&self.place), opposite, "{what}");
            verb(&self.place, self.verb).expect(1);
            verb(&self.place, self.opposite).expect(0);
            assert_same(&tree(&self.place), &self.trees[0], what);
            assert_eq!(undone(&self.place), self.undone, "{what}");
        }
        verb(&self.place, &["fsck"]).expect(0);
    }

    fn kill_at_placing(&self, number: usize) {
        assert!(kill_at(&self.place, self.verb, &[libc::SYS_renameat2], number), "{:?} {number}", self.verb);
    }

    fn unfinished(&self) -> String {
        let name = rescues(&self.place).into_iter().find(|name| name.ends_with(".unfinished")).unwrap();
        library(&self.place).join("snapshots").join(name).into_os_string().into_string().unwrap()
    }
}

fn expect_nothing_of_it(user: User, verbs: impl IntoIterator<Item = [&'static [&'static str]; 2]>) {
    for verbs in verbs {
        for number in 1..=3 {
            for by_hand in [false, true] {
                let recorded = Recorded::of(verbs, user);
                recorded.kill_at_placing(number);
                if by_hand {
                    verb(&recorded.place, &["restore", "--before", &recorded.unfinished()]).expect(0);
                } else {
                    let said = verb(&recorded.place, &["fsck", "--repair"]).expect(0).stdout;
                    assert!(said.contains("took back the interrupted restore of "), "{said}");
                }
                recorded.expect_as_before(&format!("killed at {number}, taken back by hand: {by_hand}"));
            }
        }
    }
}

#[test]
fn undo_and_redo_that_are_killed_and_taken_back_count_as_never_having_been() {
    expect_nothing_of_it(User::Current, VERBS);
}

#[test]
fn the_same_for_an_ordinary_user() {
    expect_nothing_of_it(User::Nobody, [VERBS[1], VERBS[2]]);
}

/// Whatever is tried then: the verb is refused or goes through, and the repair ends the rest.
#[test]
fn taking_back_that_is_killed_itself_loses_nothing() {
    for (verbs, placed) in [(VERBS[0], 1), (VERBS[0], 2), (VERBS[1], 2)] {
        for number in 1.. {
            let recorded = Recorded::of(verbs, User::Current);
            let place = &recorded.place;
            recorded.kill_at_placing(placed);
            let way = ["restore", "--before", &recorded.unfinished()];
            let was_killed = kill_at(place, &way, RENAMES, number);
            let what = format!("killed at {placed}, taken back until {number}");
            let mut is_done = false;
            if was_killed && number % 2 == 0 {
                let tried = verb(place, recorded.verb);
                is_done = tried.status == 0;
                assert!(
                    is_done || tried.stderr.contains(" was interrupted: complete it with: "),
                    "{tried:?}"
                );
            }
            verb(place, &["fsck", "--repair"]).expect(0);
            if is_done {
                assert_same(&tree(place), &recorded.trees[1], &what);
                verb(place, recorded.opposite).expect(0);
            }
            recorded.expect_as_before(&what);
            if !was_killed {
                assert!(number > 2, "{what}");
                break;
            }
        }
    }
}

/// What was overwritten by the taking back is in its rescue, which counts if it is put back later.
#[test]
fn rescue_of_a_taking_back_has_what_that_overwrote() {
    let recorded = Recorded::of(VERBS[0], User::Current);
    let place = &recorded.place;
    recorded.kill_at_placing(2);
    place.write("b", "by hand");
    let refused = verb(place, &["fsck", "--repair"]).expect(1);
    assert!(refused.stdout.contains("can't be repaired"), "{refused:?}");
    verb(place, &["restore", "--force", "--before", &recorded.unfinished()]).expect(0);
    assert_same(&tree(place), &recorded.trees[0], "taken back");
    assert_eq!(undone(place), [false]);
    let names = rescues(place);
    let rescue = library(place).join("snapshots").join(names.last().unwrap());
    verb(place, &["restore", "--before", rescue.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "by hand");
    assert_eq!(log(place, &["--all"])[0]["partly_undone"], true);
    verb(place, &["redo", "--all"]).expect(0);
    assert_same(&tree(place), &recorded.trees[0], "redone");
    recorded.expect_as_before("redone");
}
