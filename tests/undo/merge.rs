//! `--merge`: what was edited since is kept, and what the command changed is undone all the same.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;

use agent_snapshot::restore::merge::{Merged, merge};
use nix::sys::signal::{Signal, kill};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::killed::kills;
use super::random::cases;
use crate::support::*;

fn lines(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn read(place: &Place, name: &str) -> String {
    fs::read_to_string(place.at(name)).unwrap()
}

/// What `git merge-file` makes of three texts, and how many conflicts it counts.
fn merge_of_git(place: &Place, base: &[u8], live: &[u8], wanted: &[u8]) -> Merged {
    for (name, text) in [("base", base), ("live", live), ("wanted", wanted)] {
        place.write(name, text);
    }
    let mut git = place.program("git");
    git.args(["merge-file", "-p", "-L", "now", "-L", "base", "-L", "before", "live", "base", "wanted"]);
    let output = git.output().unwrap();
    let conflicts = usize::try_from(output.status.code().unwrap()).unwrap();
    Merged { content: output.stdout, conflicts }
}

/// The text with each conflict resolved to the live side, or to the wanted one: where conflicts begin and end is a matter
/// of taste.
fn resolved(text: &[u8], to_live: bool) -> String {
    let text = String::from_utf8(text.to_vec()).unwrap();
    let (mut side, mut resolved) = (None, String::new());
    for line in text.split_inclusive('\n') {
        match line.get(..7) {
            Some("<<<<<<<") => side = Some(true),
            Some("=======") => side = Some(false),
            Some(">>>>>>>") => side = None,
            _ if side.is_none_or(|is_live| is_live == to_live) => resolved += line,
            _ => {}
        }
    }
    resolved
}

/// Each edit of a text: at which line, how many lines go, and how many come.
type Edits = Vec<(usize, usize, usize)>;

fn edited(text: &[String], edits: &Edits, by: &str) -> Vec<String> {
    let mut text = text.to_vec();
    for (number, (at, removed, added)) in edits.iter().enumerate() {
        let start = at % (text.len() + 1);
        let end = (start + removed).min(text.len());
        let new = (0..*added).map(|line| format!("{by} {number} {line}\n"));
        text.splice(start..end, new);
    }
    text
}

#[test]
fn merges_are_those_of_git() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    let edits = || prop::collection::vec((0..40_usize, 0..4_usize, 0..4_usize), 0..4);
    let texts = (0..40_usize, edits(), edits(), any::<bool>(), any::<bool>());
    // Each case starts Git once.
    let config = Config { cases: cases(150), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&texts, |(length, mine, theirs, is_cut, has_returns)| {
            let base: Vec<String> = (0..length).map(|line| format!("line {line}\n")).collect();
            let [base, live, wanted] =
                [base.clone(), edited(&base, &mine, "mine"), edited(&base, &theirs, "theirs")].map(|text| {
                    let mut text = text.concat();
                    if is_cut {
                        text.pop();
                    }
                    if has_returns && length > 0 && !is_cut { text.replace('\n', "\r\n") } else { text }
                        .into_bytes()
                });
            let merged = merge(&base, &live, &wanted, "before");
            let of_git = merge_of_git(&place, &base, &live, &wanted);
            prop_assert_eq!(merged.conflicts > 0, of_git.conflicts > 0);
            if merged.conflicts == 0 {
                prop_assert_eq!(&merged.content, &of_git.content);
            }
            for to_live in [true, false] {
                prop_assert_eq!(resolved(&merged.content, to_live), resolved(&of_git.content, to_live));
            }
            Ok(())
        })
        .unwrap();
}

const TEN: [&str; 10] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];

/// A text of ten lines, of which the command changes the second and somebody the ninth later.
fn edited_since(place: &Place) {
    place.write("text", lines(&TEN));
    place.record("sed -i 's/^2$/two/' text");
    place.prepare("sed -i 's/^9$/nine/' text");
}

#[test]
fn later_edit_is_kept_and_the_change_of_the_command_is_undone() {
    for user in [User::Current, User::Nobody] {
        let place = Place::of(user);
        edited_since(&place);
        chmod(place.at("text"), 0o600);
        let edited = read(&place, "text");
        let refused = place.verb("restore", &["--before"]).expect(1);
        assert!(refused.stderr.contains("(--merge merges text, "), "{refused:?}");
        let planned = place.verb("restore", &["--before", "--merge", "--dry-run"]).expect(0);
        assert!(planned.stdout.starts_with("merge      ") && read(&place, "text") == edited, "{planned:?}");
        let merged = place.verb("restore", &["--before", "--merge"]).expect(0);
        assert!(merged.stdout.starts_with("merge      ") && merged.stderr.is_empty(), "{merged:?}");
        assert_eq!(read(&place, "text"), edited.replace("two", "2"));
        assert_eq!(fs::metadata(place.at("text")).unwrap().mode() & 0o777, 0o600);
        // The second time there is nothing to do.
        let again = place.verb("restore", &["--before", "--merge"]).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:?}");
        place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
        assert_eq!(read(&place, "text"), edited);
        // The other way, also with an edit of what was merged.
        place.verb("restore", &["--before", "--merge"]).expect(0);
        place.prepare("sed -i 's/^6$/six/' text");
        place.verb("restore", &["--merge"]).expect(0);
        assert_eq!(read(&place, "text"), edited.replace('6', "six"));
    }
}

#[test]
fn merge_that_was_killed_before_the_mode_is_completed() {
    if !has("strace") {
        return;
    }
    let place = Place::new();
    place.write("text", "old\n");
    place.record("chmod 600 text");
    place.write("text", "edited\n");
    let mut strace = place.program("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", "trace=fchmodat"]);
    strace.args(["-e", "inject=fchmodat:signal=KILL:when=1", BINARY]);
    let killed = strace.args(["restore", "--before", "--merge"]).arg(&place.out).output().unwrap();
    assert_eq!(killed.status.signal(), Some(libc::SIGKILL), "{killed:?}");
    place.verb("restore", &["--before", "--merge"]).expect(0);
    let mode = || fs::metadata(place.at("text")).unwrap().mode() & 0o777;
    assert_eq!((mode(), read(&place, "text").as_str()), (0o644, "edited\n"));
    // The way back is that of the mode, too.
    place.write("text", "edited again\n");
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    assert_eq!((mode(), read(&place, "text").as_str()), (0o600, "edited again\n"));
}

#[test]
fn overlapping_edits_are_marked_and_told() {
    let place = Place::new();
    place.write("text", lines(&TEN));
    place.write("other", "old\n");
    place.record("sed -i 's/^2$/two/' text; echo new > other");
    let id = place.snapshot().header().id[..8].to_owned();
    place.prepare("sed -i 's/^two$/TWO/' text");
    let edited = read(&place, "text");
    let run = place.verb("restore", &["--before", "--merge", "--json"]).expect(1);
    let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&json["applied"], &json["merged"][0]["conflicts"]), (&true.into(), &1.into()), "{json}");
    let marked = lines(&["<<<<<<< now", "TWO", "=======", "2", &format!(">>>>>>> before {id}")]);
    assert_eq!(read(&place, "text"), edited.replace("TWO\n", &marked));
    assert_eq!(read(&place, "other"), "old\n");
    // Markers are not merged again.
    let again = place.verb("restore", &["--before", "--merge"]).expect(1);
    assert!(again.stderr.contains("there are conflict markers in it"), "{again:?}");
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    assert_eq!((read(&place, "text"), read(&place, "other")), (edited, "new\n".to_owned()));
    let text = place.verb("restore", &["--before", "--merge"]).expect(1);
    assert!(text.stderr.contains("conflict markers are in these, to be edited:\n  "), "{text:?}");
    assert!(text.stderr.contains("/text: 1 conflict\n"), "{text:?}");
}

#[test]
fn what_can_not_be_merged_stays_a_conflict() {
    let place = Place::new();
    for name in ["binary", "removed", "symlink", "gone", "linked", "mode", "large"] {
        place.write(name, lines(&TEN));
    }
    place.write("large", vec![b'\n'; (8 << 20) + 1]);
    place.hard_link("linked", "other");
    let script = "cat other; printf 'a\\0b' > binary; rm gone; echo made > made; chmod 640 mode; \
        for f in removed symlink linked mode large; do echo new >> $f; done";
    place.record(script);
    place.prepare(
        "echo x >> binary; rm removed symlink; echo mine > gone; echo mine >> made; chmod 600 mode; \
        for f in linked mode large; do sed -i 1s/^/mine/ $f; done",
    );
    symlink("gone", place.at("symlink")).unwrap();
    let now = scan(&place.work);
    let run = place.verb("restore", &["--before", "--merge"]).expect(1);
    for (name, why) in [
        ("binary", "it is binary"),
        ("removed", "it is not there in each of the three states"),
        ("gone", "it is not there in each of the three states"),
        ("made", "it is not there in each of the three states"),
        ("symlink", "it is not a file in each of the three states"),
        ("linked", "it has several names"),
        ("mode", "its mode was changed, too, to another one"),
        ("large", "it is longer than 8 MiB"),
    ] {
        let line = format!("/{name}: changed since, and can't be merged: {why}\n");
        assert!(run.stderr.contains(&line), "{line}: {}", run.stderr);
    }
    assert_eq!(scan(&place.work), now);
    // A conflict is merged or overwritten, not both.
    place.verb("restore", &["--before", "--merge", "--force"]).expect(2);
}

#[test]
fn file_with_other_names_is_merged_in_place() {
    let place = Place::new();
    place.write("text", lines(&TEN));
    fs::hard_link(place.at("text"), place.base().join("unknown")).unwrap();
    place.record("cat text > t; sed 's/^2$/two/' t > u; cat u > text; rm t u");
    let inode = place.inode("text");
    let edited = read(&place, "text").replace('9', "nine");
    fs::write(place.at("text"), &edited).unwrap();
    let run = place.verb("restore", &["--before", "--merge"]).expect(0);
    assert!(run.stdout.contains("merge      "), "{run:?}");
    assert_eq!((place.inode("text"), read(&place, "text")), (inode, edited.replace("two", "2")));
}

#[test]
fn undo_of_an_older_command_merges_what_later_ones_did() {
    let place = Place::new();
    place.write("text", lines(&TEN));
    let run = |arguments: &[&str]| -> Run { place.command().args(arguments).output().unwrap().into() };
    run(&["run", "--name", "first", "sh", "-c", "sed -i 's/^2$/two/' text"]).expect(0);
    run(&["run", "sh", "-c", "sed -i 's/^9$/nine/' text"]).expect(0);
    let after = read(&place, "text");
    let undone = run(&["undo", "first", "--merge"]).expect(0);
    assert!(undone.stdout.contains("merge      "), "{undone:?}");
    assert_eq!(read(&place, "text"), after.replace("two", "2"));
    assert!(run(&["log"]).stdout.lines().nth(1).unwrap().contains("(undone)"));
    run(&["redo"]).expect(0);
    assert_eq!(read(&place, "text"), after);
    // By a path, and back.
    place.write("path", "x\n1\n2\n3\n");
    run(&["run", "sh", "-c", "echo y >> path"]).expect(0);
    place.write("path", "1\n2\n3\ny\n");
    run(&["undo", "--merge", "path"]).expect(0);
    assert_eq!(read(&place, "path"), "1\n2\n3\n");
    run(&["redo"]).expect(0);
    assert_eq!(read(&place, "path"), "1\n2\n3\ny\n");
    // A redo merges, too.
    run(&["undo", "--merge", "path"]).expect(0);
    place.write("path", "1\n2\n3\nz\n");
    run(&["redo"]).expect(1);
    run(&["redo", "--merge"]).expect(1);
    assert!(
        read(&place, "path").contains("<<<<<<< now\nz\n=======\ny\n>>>>>>> "),
        "{}",
        read(&place, "path")
    );
}

#[test]
fn killed_merge_is_completed_or_taken_back_at_any_syscall() {
    let scene = || {
        let place = Place::new();
        for name in ["clean", "marked", "in-place"] {
            place.write(name, lines(&TEN));
        }
        fs::hard_link(place.at("in-place"), place.base().join("unknown")).unwrap();
        place.record("for f in *; do sed 's/^2$/two/' $f > t; cat t > $f; rm t; done");
        for (name, edit) in
            [("clean", "s/^9$/nine/"), ("marked", "s/^two$/TWO/"), ("in-place", "s/^9$/nine/")]
        {
            place.prepare(&format!("sed '{edit}' {name} > t; cat t > {name}; rm t"));
        }
        place
    };
    let flags = ["--before", "--merge"];
    let contents = |place: &Place| ["clean", "marked", "in-place"].map(|name| read(place, name));
    let place = scene();
    let edited = contents(&place);
    let (calls, status) = trace_restore(&place, &flags, |_, _| {});
    assert_eq!(status, Some(1));
    // The marks name the snapshot, which is another one each time.
    let id = |place: &Place| place.snapshot().header().id[..8].to_owned();
    let with_id = |place: &Place| contents(place).map(|text| text.replace(&id(place), "ID"));
    let merged = with_id(&place);
    let (mut completed, mut had_marks) = (0, 0);
    // From where the rescue is written on, and as soon as there are marks, which may be at another call each time.
    let moments = kills(calls * 8 / 10, calls, 16).map(Some).chain([None]);
    for (number, at) in moments.enumerate() {
        let place = scene();
        trace_restore(&place, &flags, |pid, calls| {
            let is_there = at.map_or_else(|| read(&place, "marked").contains("<<<<<<< "), |at| calls >= at);
            if is_there {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let halfway = with_id(&place);
        let is_whole = |index: usize| halfway[index] == edited[index] || halfway[index] == merged[index];
        assert!(is_whole(0) && is_whole(1), "{halfway:?} after a kill at call {at:?}");
        let unfinished =
            fs::read_dir(place.base()).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
                path.to_str().unwrap().ends_with(".unfinished") && path.join("manifest.json").exists()
            });
        if at.is_some()
            && number % 2 == 0
            && let Some(unfinished) = &unfinished
        {
            place.verb_on("restore", unfinished, &["--before"]).expect(0);
            assert_eq!(contents(&place), edited, "after a kill at call {at:?}");
            continue;
        }
        // It had come to its end, or is completed: the marks are told all the same.
        let had_ended = place.rescue(1).exists();
        had_marks += u32::from(!had_ended && halfway[1] == merged[1]);
        let run = place.verb("restore", &flags).expect(1);
        completed += u32::from(run.stderr.contains("had been interrupted"));
        assert!(
            had_ended || run.stderr.contains("/marked: 1 conflict\n"),
            "{run:?} after a kill at call {at:?}"
        );
        assert_eq!(with_id(&place), merged, "after a kill at call {at:?}");
    }
    assert!(completed > 0 && had_marks > 0, "{completed} {had_marks}");
}
