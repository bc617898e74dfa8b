//! `undo` and `redo`: one command and several, what stands in their way, and interruptions.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{library, log, newest, read, run, verb};
use nix::sys::signal::{Signal, kill};

use crate::support::{Place, Run, User, assert_same, describe, is_root, scan, trace_program, wait, works};

#[test]
fn undo_and_redo_go_back_and_forth_as_in_an_editor() {
    for keep in ["undo", "all"] {
        let place = Place::new();
        place.write("f", "0");
        place.write("large", vec![7; 3 << 20]);
        for number in 1..=3 {
            run(&place, &["--keep", keep], &format!("printf {number} > f; echo > new{number}; rm -f large"));
            run(&place, &[], "cat f");
        }
        let f = || fs::read_to_string(place.at("f")).unwrap();
        for number in [2, 1, 0] {
            let said = verb(&place, &["undo"]).expect(0).stdout;
            assert!(said.starts_with("undo ") && said.contains(&format!("printf {}", number + 1)), "{said}");
            assert_eq!(f(), number.to_string());
            assert!(!place.at(format!("new{}", number + 1)).exists());
        }
        assert_eq!(fs::read(place.at("large")).unwrap(), vec![7; 3 << 20]);
        verb(&place, &["undo"]).expect(1);
        assert!(log(&place, &[]).iter().all(|entry| entry["undone"].is_string()));
        for number in [1, 2, 3] {
            verb(&place, &["redo"]).expect(0);
            assert_eq!(f(), number.to_string());
        }
        assert!(!place.at("large").exists());
        verb(&place, &["redo"]).expect(1);
        assert!(log(&place, &[]).iter().all(|entry| entry["undone"].is_null()));
        // The plain verb counts, too, and so does an undo of an undo by its rescue.
        let newest = log(&place, &[])[0]["id"].as_str().unwrap().to_owned();
        verb(&place, &["restore", "--before", &newest]).expect(0);
        assert!(log(&place, &[])[0]["undone"].is_string());
        verb(&place, &["redo", &newest]).expect(0);
        assert_eq!(f(), "3");
        verb(&place, &["undo"]).expect(0);
        assert_eq!(f(), "2");
    }
}

#[test]
fn bytes_that_an_older_command_left_alone_are_those_that_a_newer_one_removed() {
    let place = Place::new();
    place.write("large", vec![7; 3 << 20]);
    let before = tree(&place);
    for command in ["chmod 600 large", "chmod 640 large", "rm large"] {
        run(&place, &["--keep", "undo"], command);
    }
    verb(&place, &["undo", "-n", "3"]).expect(0);
    assert_same(&tree(&place), &before, "undone");
    verb(&place, &["redo"]).expect(0);
    assert!(!place.at("large").exists());
}

#[test]
fn undo_of_an_older_command_names_what_came_later() {
    let place = Place::new();
    run(&place, &["--name", "first"], "echo 1 > f; echo 1 > g");
    run(&place, &[], "echo 2 > f");
    run(&place, &[], "echo 3 > other");
    let refused = verb(&place, &["undo", "first"]).expect(1);
    let ids: Vec<_> = log(&place, &[]).iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect();
    let [newest, second, _] = ids.as_slice() else { panic!("{ids:?}") };
    assert!(
        refused.stderr.contains(&format!("changed since by {second}: sh -c 'echo 2 > f'")),
        "{refused:?}"
    );
    assert!(!refused.stderr.contains("echo 3"), "{refused:?}");
    assert!(place.at("g").exists());
    verb(&place, &["undo", &newest[..3]]).expect(2);
    verb(&place, &["undo", "--dry-run", &newest[..4]]).expect(0);
    assert!(place.at("other").exists());
    verb(&place, &["undo", &newest[..4]]).expect(0);
    assert!(!place.at("other").exists());
    verb(&place, &["undo", newest]).expect(1);
    verb(&place, &["redo", newest]).expect(0);
    assert!(place.at("other").exists());
    // An edit by hand is a conflict, and not lost.
    place.write("f", "by hand");
    verb(&place, &["undo", second]).expect(1);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "by hand");
}

#[test]
fn undo_keeps_to_its_place_and_session() {
    let place = Place::new();
    place.prepare("git init -q one; git init -q two");
    let at = |directory: &str, session: &str, arguments: &[&str]| -> Run {
        let mut command = place.command();
        command.current_dir(place.at(directory)).env("AGENT_SNAPSHOT_SESSION", session);
        command.args(arguments).output().unwrap().into()
    };
    at("one", "a", &["run", "touch", "of-a"]).expect(0);
    at("one", "b", &["run", "touch", "of-b"]).expect(0);
    at("two", "a", &["run", "touch", "elsewhere"]).expect(0);
    at("one", "a", &["undo"]).expect(0);
    assert!(!place.at("one/of-a").exists() && place.at("one/of-b").exists());
    assert!(place.at("two/elsewhere").exists());
    at("one", "a", &["undo"]).expect(1);
    at("one", "a", &["undo", "--all"]).expect(0);
    assert!(place.at("one/of-b").exists() && !place.at("two/elsewhere").exists());
    let said = at("one", "a", &["undo", "--session", "none"]).expect(1).stderr;
    assert!(said.contains("there is nothing to undo of session none here"), "{said}");
}

/// The working directory as far as an undo puts it back.
pub fn tree(place: &Place) -> Vec<String> {
    describe(&scan(&place.at("")), |_| false)
}

pub fn rescues(place: &Place) -> Vec<String> {
    let names = fs::read_dir(library(place).join("snapshots")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.contains("-rescue-")).collect();
    names.sort();
    names
}

/// Whether the rescue of a restore is complete, and the restore has not ended.
pub fn is_restore_begun(place: &Place) -> bool {
    let snapshots = library(place).join("snapshots");
    let is_begun =
        |name: &String| name.ends_with(".unfinished") && snapshots.join(name).join("manifest.json").exists();
    rescues(place).iter().any(is_begun)
}

pub fn ids(place: &Place) -> Vec<String> {
    log(place, &["--reads"]).iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn several_are_undone_as_one() {
    for user in [User::Current, User::Nobody] {
        let place = Place::of(user);
        place.write("f", "0");
        place.write("gone/a", "a");
        place.write("large", vec![7; 2 << 20]);
        place.write("mode", "m");
        let mut trees = vec![tree(&place)];
        for script in [
            "echo 1 > f; echo temporary > made-and-removed; mv large larger",
            "echo 2 >> f; rm -r gone; rm made-and-removed; mkdir -p new/deep; echo x > new/deep/x",
            "mkdir gone; echo other > gone/b; chmod 600 mode; ln -s f link; mv new moved; truncate -s 10 larger",
            "echo 4 > f; rm moved/deep/x; echo again > made-and-removed",
        ] {
            run(&place, &["--session", "s"], script);
            trees.push(tree(&place));
        }
        let ids = ids(&place);
        for (arguments, number) in [
            (vec!["-n", "3"], 1),
            (vec!["--since", "1h"], 0),
            (vec!["--session", "s"], 0),
            (vec![ids[0].as_str(), &ids[1]], 2),
            (vec![ids[2].as_str(), "--with-later"], 1),
        ] {
            let before = rescues(&place).len();
            verb(&place, &[&["undo"], arguments.as_slice()].concat()).expect(0);
            assert_same(&tree(&place), &trees[number], &format!("{arguments:?}"));
            assert_eq!(rescues(&place).len(), before + 1, "{arguments:?}");
            let undone = log(&place, &[]).iter().filter(|entry| entry["undone"].is_string()).count();
            assert_eq!(undone, trees.len() - 1 - number, "{arguments:?}");
            verb(&place, &["redo"]).expect(0);
            assert_same(&tree(&place), &trees[4], "");
            assert!(log(&place, &[]).iter().all(|entry| entry["undone"].is_null()));
        }
        let json = verb(&place, &["undo", "-n", "9", "--json"]).expect(0);
        assert!(json.stderr.contains("there are only 4 commands to undo here, not 9"), "{json:?}");
        let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(json["recordings"].as_array().unwrap().len(), 4);
        assert_same(&tree(&place), &trees[0], "");
        // One of them brings all of them back: they were undone as one.
        verb(&place, &["redo", &ids[2]]).expect(0);
        assert_same(&tree(&place), &trees[4], "");
        verb(&place, &["undo", "-n", "3"]).expect(0);
        let last = verb(&place, &["undo", "-n", "2"]).expect(0);
        assert!(last.stderr.contains("there is only 1 command to undo here, not 2"), "{last:?}");
        assert_same(&tree(&place), &trees[0], "");
    }
}

#[test]
fn broken_chain_is_a_conflict_that_names_who_broke_it() {
    let place = Place::new();
    place.write("f", "0");
    run(&place, &["--name", "one"], "echo 1 > f; echo 1 > temporary");
    run(&place, &["--name", "two"], "echo 2 > f");
    run(&place, &["--name", "three"], "echo 3 > f; echo three > g");
    let two = ids(&place)[1].clone();
    let refused = verb(&place, &["undo", "one", "three"]).expect(1);
    assert!(refused.stderr.contains(&format!("f: between {} and {}", ids(&place)[2], ids(&place)[0])));
    assert!(refused.stderr.contains(&format!("it was changed by {two} (sh -c 'echo 2 > f')")), "{refused:?}");
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "3\n");
    assert!(place.at("g").exists() && rescues(&place).is_empty());
    // By hand, of what is gone again at the end: its bytes are still those of nobody else.
    place.write("temporary", "by hand");
    run(&place, &[], "rm temporary");
    let refused = verb(&place, &["undo", "-n", "4"]).expect(1);
    assert!(refused.stderr.contains("temporary: between"), "{refused:?}");
    assert!(refused.stderr.contains("it was changed by something that is not in the library"), "{refused:?}");
    let undone = verb(&place, &["undo", "-n", "4", "--force"]).expect(0);
    assert!(undone.stdout.contains(" put back to the state before the command\n"), "{undone:?}");
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "0");
    assert!(!place.at("g").exists() && !place.at("temporary").exists());
    let redone = verb(&place, &["redo"]).expect(0);
    assert!(redone.stdout.contains(" put back to the state after the command\n"), "{redone:?}");
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "3\n");
    // What came last by hand is overwritten by force alone, and then kept.
    place.write("f", "by hand");
    verb(&place, &["undo", "-n", "4"]).expect(1);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "by hand");
    verb(&place, &["undo", "-n", "4", "--force"]).expect(0);
    let rescue = library(&place).join("snapshots").join(rescues(&place).last().unwrap());
    let kept = verb(&place, &["cat", "--before", &rescue.display().to_string(), "f"]).expect(0);
    assert_eq!(kept.stdout, "by hand");
}

#[test]
fn later_ones_go_with_an_older_one_if_that_is_wanted() {
    let place = Place::new();
    run(&place, &["--name", "first"], "mkdir d; echo 1 > f");
    let start = tree(&place);
    run(&place, &["--name", "makes"], "mkdir d/sub");
    run(&place, &["--name", "independent"], "echo > other");
    run(&place, &["--name", "below"], "echo > d/sub/x; echo > shared");
    run(&place, &["--name", "follows"], "echo more >> shared");
    run(&place, &["--name", "apart"], "echo > apart");
    let refused = verb(&place, &["undo", "makes"]).expect(1);
    let ids = ids(&place);
    let (follows, below) = (&ids[1], &ids[2]);
    assert!(refused.stderr.contains(&format!("changed since by {below}")), "{refused:?}");
    assert!(refused.stderr.contains("undo --with-later"), "{refused:?}");
    let said = verb(&place, &["undo", "--with-later", "makes"]).expect(0).stdout;
    assert!(said.contains(follows) && said.contains(below), "{said}");
    assert!(place.at("other").exists() && place.at("apart").exists());
    fs::remove_file(place.at("other")).unwrap();
    fs::remove_file(place.at("apart")).unwrap();
    assert_same(&tree(&place), &start, "");
}

#[test]
fn merge_that_leaves_markers_offers_no_other_undo_of_what_is_undone() {
    let place = Place::new();
    place.write("f", "0\n");
    run(&place, &["--name", "first"], "echo 1 > f");
    run(&place, &[], "echo 2 > f");
    let planned = verb(&place, &["undo", "--merge", "--dry-run", "first"]).expect(1);
    assert!(planned.stderr.contains("undo --with-later"), "{planned:?}");
    let merged = verb(&place, &["undo", "--merge", "first"]).expect(1);
    assert!(merged.stderr.contains("changed since by"), "{merged:?}");
    assert!(!merged.stderr.contains("--with-later"), "{merged:?}");
    verb(&place, &["undo", "--with-later", "first"]).expect(1);
    // What is not undone as a whole can be undone with what came later.
    verb(&place, &["redo", "--force"]).expect(0);
    run(&place, &["--name", "two"], "echo 1 > f; echo 1 > g");
    run(&place, &[], "echo 2 > f");
    let skipped = verb(&place, &["undo", "--skip-conflicts", "two"]).expect(1);
    assert!(skipped.stderr.contains("undo --with-later"), "{skipped:?}");
    verb(&place, &["undo", "--with-later", "two"]).expect(0);
    assert!(!place.at("g").exists());
}

#[test]
fn hard_links_that_several_commands_changed_stay_linked() {
    let place = Place::new();
    place.write("a", "0");
    place.hard_link("a", "b");
    let mut trees = vec![tree(&place)];
    for script in ["printf 1 >> a", "printf 2 >> b", "printf 3 >> a; ln b c", "printf 4 >> c; rm a"] {
        run(&place, &[], script);
        trees.push(tree(&place));
    }
    for number in 1..=4 {
        verb(&place, &["undo", "-n", &number.to_string()]).expect(0);
        assert_same(&tree(&place), &trees[4 - number], &number.to_string());
        verb(&place, &["redo"]).expect(0);
        assert_same(&tree(&place), &trees[4], &number.to_string());
    }
}

#[test]
fn undo_of_several_that_was_killed_is_completed_by_the_same_one() {
    let place = Place::new();
    for number in 0..8 {
        place.write(&format!("edited-{number}"), format!("old {number}"));
        place.write(&format!("gone/{number}/file"), "gone");
    }
    place.write("in-place", "old");
    place.hard_link("in-place", "other-name");
    let trees = [tree(&place), {
        run(&place, &[], "for i in 0 1 2 3 4 5; do echo 1 > edited-$i; done; printf longer > in-place");
        run(&place, &[], "rm -r gone; mkdir -p made/deep; for i in 1 2 3; do echo > made/deep/$i; done");
        run(&place, &[], "for i in 3 4 5 6 7; do echo 3 > edited-$i; done; mv made/deep/1 made/moved");
        tree(&place)
    }];
    let arguments = ["undo", "-n", "3", "--all"].map(std::ffi::OsStr::new);
    let note_begin = |begun: &mut Option<u64>, call| {
        if begun.is_none() && is_restore_begun(&place) {
            *begun = Some(call);
        }
    };
    let mut begun = None;
    let (calls, status) = trace_program(&place, arguments, |_, call| note_begin(&mut begun, call));
    assert_eq!(status, Some(0));
    let begun = begun.unwrap();
    assert_same(&tree(&place), &trees[0], "not killed");
    verb(&place, &["redo"]).expect(0);
    let mut interrupted = 0;
    for part in 1..16 {
        let mut begun_now = None;
        let (_, status) = trace_program(&place, arguments, |pid, call| {
            note_begin(&mut begun_now, call);
            let is_time = match part {
                1..4 => call >= begun * part / 4,
                _ => begun_now.is_some_and(|first| call >= first + (calls - begun) * (part - 4) / 12),
            };
            if is_time {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let mut said = Vec::new();
        if is_restore_begun(&place) {
            interrupted += 1;
            // Whoever asks for another undo is told what is in the way.
            for other in [["undo", "-n", "2"].as_slice(), &["redo"], &["undo"]] {
                let refused = verb(&place, other);
                assert!(
                    refused.stderr.contains("interrupted: complete it with: agent-snapshot undo "),
                    "{refused:?}"
                );
            }
        }
        if status.is_none() {
            // The kill may have come after the end of the restore.
            let is_undone =
                !is_restore_begun(&place) && log(&place, &[]).iter().all(|one| one["undone"].is_string());
            said.push(verb(&place, &["undo", "-n", "3"]).expect(i32::from(is_undone)));
        }
        assert_same(&tree(&place), &trees[0], &format!("{part}: {said:?}"));
        said.push(verb(&place, &["redo"]).expect(0));
        assert_same(&tree(&place), &trees[1], &format!("{part}: {said:?}"));
        assert!(rescues(&place).iter().all(|name| !name.ends_with(".unfinished")), "{part}: {said:?}");
    }
    assert!(interrupted > 6, "{interrupted}");
}

#[test]
fn restore_names_the_later_recording_that_is_in_the_way() {
    let place = Place::new();
    run(&place, &[], "echo 1 > f");
    run(&place, &[], "echo 2 > other");
    run(&place, &[], "echo 2 > f");
    let recordings = log(&place, &[]);
    let [later, _, first] = [0, 1, 2].map(|at| recordings[at]["id"].as_str().unwrap());
    let refused = verb(&place, &["restore", "--before", first]).expect(1);
    let named: Vec<_> = refused.stderr.lines().filter(|line| line.contains("changed since by")).collect();
    assert_eq!(named, [format!("agent-snapshot: changed since by {later}: sh -c 'echo 2 > f'")]);
    verb(&place, &["restore", "--before", later]).expect(0);
    let restored = verb(&place, &["restore", "--before", first]).expect(0);
    assert!(!restored.stderr.contains("changed since"), "{restored:?}");
}

#[test]
fn what_one_command_left_unread_is_known_by_the_next() {
    let place = Place::new();
    place.write("f", "1111");
    place.write("g", "1111");
    let start = tree(&place);
    run(&place, &[], "chmod 600 f; echo > x");
    run(&place, &[], "printf 2222 > f; printf 2222 > g");
    run(&place, &[], "chmod 644 g; echo > y");
    let end = tree(&place);
    verb(&place, &["undo", "-n", "3"]).expect(0);
    assert_same(&tree(&place), &start, "undone");
    verb(&place, &["redo"]).expect(0);
    assert_same(&tree(&place), &end, "redone");
    // By hand, of the same size: the newest command has not read it.
    place.write("g", "9222");
    let refused = verb(&place, &["undo", "-n", "3"]).expect(1);
    assert!(refused.stderr.contains("/g: edited since: a file of 4 bytes"), "{refused:?}");
    assert_eq!(fs::read_to_string(place.at("g")).unwrap(), "9222");
}

#[test]
fn hard_link_that_one_command_made_and_another_wrote_to_is_undone() {
    let place = Place::new();
    place.write("a", "1111");
    let start = tree(&place);
    run(&place, &[], "ln a b");
    run(&place, &[], "echo 2222 > b");
    let end = tree(&place);
    verb(&place, &["undo", "-n", "2"]).expect(0);
    assert_same(&tree(&place), &start, "undone");
    verb(&place, &["redo"]).expect(0);
    assert_same(&tree(&place), &end, "redone");
}

#[test]
fn copy_with_the_same_size_and_time_is_a_change() {
    let place = Place::new();
    place.write("f", "1111");
    place.write("from", "2222");
    place.prepare("touch -d 2020-01-01 f from");
    let start = tree(&place);
    run(&place, &[], "cp -p from f");
    assert_eq!(log(&place, &[])[0]["changed"], 1);
    let diff = verb(&place, &["diff", "@", "--stat"]).expect(0);
    assert!(diff.stdout.contains("f "), "{diff:?}");
    verb(&place, &["undo"]).expect(0);
    assert_same(&tree(&place), &start, "undone");
}

#[test]
fn undo_of_nothing_but_what_is_left_out_says_so() {
    let place = Place::new();
    run(&place, &[], "echo 1 > f");
    let said = verb(&place, &["undo", "--exclude", "f"]).expect(0).stdout;
    assert!(
        said.ends_with("\nnothing to do: no path remains to be put back to the state before the command\n"),
        "{said}"
    );
    verb(&place, &["undo"]).expect(0);
    assert!(!place.at("f").exists());
}

#[test]
fn undo_that_has_nothing_to_change_makes_way_for_the_next_one() {
    let place = Place::new();
    run(&place, &[], "echo 1 > older");
    run(&place, &[], "echo 1 > newer");
    fs::remove_file(place.at("newer")).unwrap();
    let said = verb(&place, &["undo"]).expect(0).stdout;
    assert!(said.contains("nothing to do") && !said.contains("overwritten"), "{said}");
    verb(&place, &["undo"]).expect(0);
    assert!(!place.at("older").exists());
    verb(&place, &["undo"]).expect(1);
    place.write("older", "1\n");
    for _ in 0..2 {
        verb(&place, &["redo"]).expect(0);
    }
    // As it was when it was undone.
    assert!(!place.at("newer").exists());
    verb(&place, &["redo"]).expect(1);
    assert!(log(&place, &[]).iter().all(|entry| entry["undone"].is_null()));
}

#[test]
fn interrupted_undo_that_is_taken_back_by_its_rescue_is_not_undone() {
    let place = Place::new();
    for number in 0..8 {
        place.write(&format!("edited-{number}"), "old");
    }
    run(&place, &[], "for i in 0 1 2 3; do echo new > edited-$i; done");
    run(&place, &[], "for i in 4 5 6 7; do echo new > edited-$i; done");
    let end = tree(&place);
    let arguments = ["undo", "-n", "2", "--all"].map(std::ffi::OsStr::new);
    let unfinished = || rescues(&place).into_iter().find(|name| name.ends_with(".unfinished"));
    trace_program(&place, arguments, |pid, _| {
        if place.at("edited-2").metadata().unwrap().len() == 3 {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    let rescue = library(&place).join("snapshots").join(unfinished().unwrap());
    let older = &ids(&place)[1];
    assert!(verb(&place, &["show", older]).expect(0).stdout.contains("interrupted"));
    verb(&place, &["restore", "--before", rescue.to_str().unwrap()]).expect(0);
    assert_same(&tree(&place), &end, "taken back");
    assert!(log(&place, &[]).iter().all(|entry| entry["undone"].is_null()));
    verb(&place, &["undo", "-n", "2"]).expect(0);
    assert_eq!(fs::read(place.at("edited-7")).unwrap(), b"old");
}

#[test]
fn undo_does_not_cross_the_border_of_its_session() {
    let place = Place::new();
    let in_session = |session: &str, arguments: &[&str]| -> Run {
        place.command().env("AGENT_SNAPSHOT_SESSION", session).args(arguments).output().unwrap().into()
    };
    in_session("one", &["run", "--name", "first", "sh", "-c", "echo 1 > f"]).expect(0);
    in_session("two", &["run", "sh", "-c", "echo 2 > f"]).expect(0);
    let refused = in_session("one", &["undo", "--with-later", "first"]).expect(3);
    assert!(refused.stderr.contains("belongs to another session"), "{refused:?}");
    in_session("one", &["undo", "--with-later", "first", "--allow-cross-session"]).expect(0);
    assert!(!place.at("f").exists());
    in_session("one", &["redo"]).expect(3);
    verb(&place, &["redo"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "2\n");
    assert!(library(&place).join("audit.jsonl").exists());
}

#[test]
fn conflicts_are_skipped_and_paths_excluded_if_that_is_wanted() {
    let place = Place::new();
    place.write("d/f", "0");
    place.write("d/deep/g", "0");
    place.write("h.log", "0");
    run(
        &place,
        &[],
        "for f in d/f d/deep/g h.log; do echo 1 > $f; done; mkdir made; echo > made/x; echo > made/y",
    );
    let text = |name: &str| fs::read_to_string(place.at(name)).unwrap();
    place.write("d/f", "by hand");
    place.write("made/x", "by hand");
    let refused = verb(&place, &["undo"]).expect(1);
    assert!(refused.stderr.contains("--skip-conflicts leaves them"), "{refused:?}");
    let said =
        verb(&place, &["undo", "--skip-conflicts", "--exclude", "*.log", "--exclude", "d/de*/"]).expect(1);
    assert!(said.stdout.contains("d/f: edited since: a file of 7 bytes"), "{said:?}");
    assert_eq!([text("d/f"), text("made/x")], ["by hand", "by hand"]);
    assert_eq!([text("d/deep/g"), text("h.log")], ["1\n", "1\n"]);
    assert!(!place.at("made/y").exists());
    assert_eq!(log(&place, &[])[0]["partly_undone"], true);
    verb(&place, &["redo"]).expect(0);
    assert!(place.at("made/y").exists());
    verb(&place, &["undo", "--force", "--skip-conflicts"]).expect(2);
    let newest = &ids(&place)[0];
    verb(&place, &["restore", "--before", newest, "--exclude", "made", "--skip-conflicts"]).expect(1);
    assert_eq!([text("d/f"), text("d/deep/g"), text("h.log")], ["by hand", "0", "0"]);
    assert!(place.at("made/y").exists());
}

#[test]
fn with_later_takes_what_moved_a_file_that_was_only_touched() {
    let place = Place::new();
    place.write("touched", "0");
    run(&place, &["--name", "first"], "echo 1 > f; touch touched; echo > temporary; rm temporary");
    run(&place, &["--name", "second"], "mv touched moved");
    run(&place, &["--name", "other"], "echo by another > temporary");
    run(&place, &["--name", "third"], "echo 3 > f; echo 3 > touched; echo 3 > temporary");
    verb(&place, &["undo", "first"]).expect(1);
    verb(&place, &["undo", "--with-later", "first"]).expect(0);
    assert!(!place.at("f").exists() && !place.at("moved").exists());
    assert_eq!(fs::read_to_string(place.at("touched")).unwrap(), "0");
    // A file that the first one had made and removed again is nothing that it depends on.
    assert_eq!(fs::read_to_string(place.at("temporary")).unwrap(), "by another\n");
}

#[test]
fn file_with_names_that_a_command_never_used_is_written_in_place_by_each_undo() {
    for keep in ["undo", "all"] {
        let place = Place::new();
        place.write("one", "first\n");
        place.hard_link("one", "two");
        let before = tree(&place);
        run(&place, &["--keep", keep], "echo more >> one");
        let after = tree(&place);
        // The undo of this makes another file for both names.
        run(&place, &["--keep", keep], "rm one two");
        verb(&place, &["undo"]).expect(0);
        assert_eq!(tree(&place), after);
        verb(&place, &["undo"]).expect(0);
        assert_eq!(tree(&place), before);
        verb(&place, &["redo"]).expect(0);
        assert_eq!(tree(&place), after);
    }
}

#[test]
fn content_that_a_command_left_alone_is_that_of_the_others() {
    for keep in ["undo", "all"] {
        let place = Place::new();
        place.write("removed", "0");
        if !works(place.program("setfattr").args(["-n", "user.test", "-v", "0", "removed"])) {
            return;
        }
        let before = tree(&place);
        run(&place, &["--keep", keep], "setfattr -n user.test -v 1 removed; echo 1 > f");
        run(&place, &["--keep", keep], "rm removed; cp f copy; mv copy f");
        run(&place, &["--keep", keep], "cp f copy; mv copy f");
        run(&place, &["--keep", keep], "setfattr -n user.test -v 2 f");
        run(&place, &["--keep", keep], "echo 4 >> f");
        let after = tree(&place);
        verb(&place, &["undo", "-n", "4"]).expect(0);
        assert_eq!(tree(&place), before);
        verb(&place, &["redo"]).expect(0);
        assert_eq!(tree(&place), after);
    }
    // An edit that nobody recorded is found by the next one that reads it, or by what is there.
    let place = Place::new();
    for recorded in [true, false] {
        run(&place, &[], "rm -f f; echo 1 > f");
        run(&place, &[], "setfattr -n user.test -v 1 f");
        place.write("f", "2\n");
        if recorded {
            run(&place, &[], "echo 3 >> f");
        }
        verb(&place, &["undo", "-n", if recorded { "3" } else { "2" }]).expect(1);
        assert!(fs::read_to_string(place.at("f")).unwrap().starts_with('2'));
    }
}

#[test]
fn restore_of_a_recording_that_goes_on_does_not_make_it_undone() {
    let place = Place::new();
    place.prepare("mkfifo go");
    let mut running =
        super::run_command(&place, &["--survivors", "background"], "echo 1 > f; (cat go; echo 2 > f) &")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
    assert!(wait(&mut running).success());
    let id = newest(&place);
    verb(&place, &["restore", "--before", &id]).expect(0);
    assert!(!place.at("f").exists());
    // It is opened when somebody reads it, who then finds its end.
    drop(fs::File::options().write(true).open(place.at("go")).unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while log(&place, &["--all"])[0]["state"] == "running" {
        assert!(Instant::now() < deadline);
    }
    assert!(!log(&place, &["--all"])[0]["undone"].is_string());
    verb(&place, &["undo", &id]).expect(0);
    assert!(!place.at("f").exists());
}

#[test]
fn names_that_left_a_file_leave_it_again() {
    for (keep, looks) in
        [("undo", "true"), ("undo", "stat one > /dev/null"), ("undo", "cat one"), ("all", "cat one")]
    {
        let place = Place::new();
        place.write("one", "same\n");
        place.hard_link("one", "two");
        place.hard_link("one", "three");
        let script =
            format!("{looks}; rm two three; echo same > two; echo same > three; chmod 600 two three");
        run(&place, &["--keep", keep], &script);
        let after = tree(&place);
        verb(&place, &["undo"]).expect(0);
        verb(&place, &["redo"]).expect(0);
        assert_same(&tree(&place), &after, &format!("{keep} {looks}"));
    }
}

#[test]
fn redo_out_of_order_is_a_conflict_where_another_was_undone_since() {
    let place = Place::new();
    run(&place, &[], "echo one > p");
    run(&place, &[], "rm p; echo two > q");
    let [second, first]: [String; 2] = ids(&place).try_into().unwrap();
    verb(&place, &["undo"]).expect(0);
    verb(&place, &["undo"]).expect(0);
    let refused = verb(&place, &["redo", &second]).expect(1);
    assert!(
        refused.stderr.contains(&format!("{first} (sh -c 'echo one > p') was undone since: redo that first")),
        "{refused:?}"
    );
    assert!(!place.at("q").exists());
    verb(&place, &["redo"]).expect(0);
    verb(&place, &["redo"]).expect(0);
    assert_eq!([false, true], ["p", "q"].map(|name| place.at(name).exists()));
}

/// A place whose files `a` and `e` have extended attributes; none if there can be none.
fn place_with_attributes() -> Option<Place> {
    let place = Place::new();
    place.write("a", "old\n");
    place.write("e", "new\n");
    let set = ["-n", "user.k", "-v", "0", "a"];
    works(place.program("setfattr").args(set)).then_some(place)
}

#[test]
fn attributes_that_several_commands_changed_are_undone_and_redone_in_order() {
    let mut scripts = vec![
        ["setfattr -n user.k -v 1 a", "mv e a"],
        ["setfattr -x user.k a", "setfattr -n user.k -v 2 a"],
        ["setfattr -n user.k -v 1 a", "echo more >> a"],
        ["echo more >> a; setfattr -n user.k -v 1 a", "setfattr -n user.k -v 2 a"],
        ["setfacl -m u:1234:r a", "cat e > f; setfacl -m u:1234:r f; mv f a"],
        ["setfattr -n user.k -v 1 .", "setfattr -n user.k -v 2 ."],
        ["chmod 700 .", "chmod 755 ."],
    ];
    if is_root() {
        scripts.push(["chown 1234 a", "mv e a"]);
        scripts.push(["chown 1234 a", "chown 1235:1235 a"]);
    }
    for [first, second] in scripts {
        let Some(place) = place_with_attributes() else { return };
        if first.contains("setfacl") && !works(place.program("setfacl").args(["-m", "u:1234:r", "e"])) {
            continue;
        }
        let mut trees = vec![tree(&place)];
        for script in [first, second] {
            run(&place, &[], script);
            trees.push(tree(&place));
        }
        let [newer, older]: [String; 2] = ids(&place).try_into().unwrap();
        let refused = verb(&place, &["undo", &older]).expect(1).stderr;
        assert!(refused.contains(&format!("since by {newer}")), "{first}: {refused}");
        assert_same(&tree(&place), &trees[2], first);
        for number in [1, 0] {
            verb(&place, &["undo"]).expect(0);
            assert_same(&tree(&place), &trees[number], first);
        }
        let refused = verb(&place, &["redo", &newer]).expect(1).stderr;
        assert!(
            refused.contains(&format!("{older} (sh -c '{first}') was undone since")),
            "{first}: {refused}"
        );
        for wanted in &trees[1..] {
            verb(&place, &["redo"]).expect(0);
            assert_same(&tree(&place), wanted, first);
        }
        verb(&place, &["undo", "--with-later", &older]).expect(0);
        assert_same(&tree(&place), &trees[0], first);
        verb(&place, &["redo"]).expect(0);
        assert_same(&tree(&place), &trees[2], first);
    }
}

#[test]
fn attributes_that_somebody_else_changed_between_two_commands_stay() {
    let Some(place) = place_with_attributes() else { return };
    run(&place, &[], "setfattr -n user.k -v 1 a; setfattr -n user.l -v 1 a");
    place.prepare("setfattr -n user.k -v mine a; setfattr -n user.m -v mine a");
    let wanted = place.prepare("cp -a a copy; setfattr -x user.l copy; getfattr -d copy; rm copy");
    run(&place, &[], "setfattr -n user.k -v 2 a; setfattr -n user.l -v 2 a; setfattr -n user.m -v 2 a");
    let after = tree(&place);
    let now = || place.prepare("getfattr -d a").replace("file: a", "file: copy");
    verb(&place, &["undo", "-n", "2"]).expect(0);
    assert_eq!(now(), wanted);
    verb(&place, &["redo"]).expect(0);
    assert_same(&tree(&place), &after, "redo");
    // As one after the other.
    for _ in 0..2 {
        verb(&place, &["undo"]).expect(0);
    }
    assert_eq!(now(), wanted);
}

#[test]
fn attribute_that_a_later_command_has_changed_is_a_conflict_of_a_redo() {
    let Some(place) = place_with_attributes() else { return };
    run(&place, &[], "setfattr -n user.k -v 1 a");
    let first = newest(&place);
    verb(&place, &["undo"]).expect(0);
    // Another attribute is in nobody's way.
    run(&place, &[], "setfattr -n user.other -v 2 a");
    verb(&place, &["redo", &first]).expect(0);
    verb(&place, &["undo"]).expect(0);
    verb(&place, &["undo"]).expect(0);
    run(&place, &[], "setfattr -n user.k -v 2 a");
    let later = newest(&place);
    let before = tree(&place);
    let refused = verb(&place, &["redo", &first]).expect(1).stderr;
    assert!(refused.contains(&format!("changed since by {later} (sh -c")), "{refused}");
    assert_same(&tree(&place), &before, "refused");
    verb(&place, &["redo", "--skip-conflicts", &first]).expect(1);
    assert_eq!(place.prepare("getfattr --only-values -n user.k a"), "2");
}

#[test]
fn empty_path_is_no_path() {
    let place = Place::new();
    place.write("k", "old");
    run(&place, &[], "echo new > k; echo > n");
    for words in [
        &["undo", "--", ""][..],
        &["undo", "@", "--", ""],
        &["restore", "--before", "@", ""],
        &["restore", "k", "", "--at", "1h"],
        &["history", ""],
        &["undo", "--exclude", ""],
        &["undo", "--exclude", "["],
    ] {
        let refused = verb(&place, words).expect(2);
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        assert_eq!(super::read(&place, "k").as_deref(), Some("new\n"), "{words:?}");
    }
}

#[test]
fn file_whose_place_a_directory_keeps_is_not_undone() {
    let place = Place::new();
    place.write("t", "precious");
    run(&place, &[], "rm t; mkdir t; echo 2 > t/made; echo 3 > z");
    place.write("t/mine", "mine");
    let refused = verb(&place, &["undo"]).expect(1);
    let why = format!("{}: it holds mine that the snapshot does not know", place.at("t").display());
    assert!(refused.stderr.contains("something else was in the place of these directories"), "{refused:#?}");
    assert!(refused.stderr.contains(&why), "{refused:#?}");
    assert!(place.at("t/made").exists() && place.at("z").exists());
    for skipping in ["--skip-conflicts", "--force"] {
        let undone = verb(&place, &["undo", skipping]).expect(1);
        assert!(undone.stdout.contains(&why), "{undone:#?}");
        assert!(verb(&place, &["log"]).stdout.contains("(partly undone)"));
        assert_eq!(read(&place, "t/mine").as_deref(), Some("mine"));
        assert!(!place.at("z").exists());
    }
    fs::remove_file(place.at("t/mine")).unwrap();
    verb(&place, &["undo"]).expect(0);
    assert_eq!(read(&place, "t").as_deref(), Some("precious"));
    assert!(verb(&place, &["log"]).stdout.contains("(undone)"));
}
