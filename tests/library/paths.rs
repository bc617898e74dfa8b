//! `undo PATH`: some paths of a command are undone, and the rest of it later.

use std::fs;

use super::undo::{ids, rescues, tree};
use super::{library, log, read, run, verb};
use crate::support::{BINARY, Place, Run, User};
use crate::undo::random::cases;

fn marks(place: &Place) -> Vec<&'static str> {
    let mark = |entry: &serde_json::Value| match (&entry["undone"], &entry["partly_undone"]) {
        (at, part) if at.is_string() && part.is_null() => "undone",
        (at, part) if at.is_null() && part == true => "partly",
        (at, part) if at.is_null() && part.is_null() => "",
        other => panic!("{other:?}"),
    };
    log(place, &[]).iter().map(mark).collect()
}

#[test]
fn a_path_is_undone_alone_and_the_rest_later() {
    for user in [User::Current, User::Nobody] {
        for keep in ["undo", "all"] {
            let place = Place::of(user);
            place.write("f", "0");
            place.write("d/gone", "g");
            let before = tree(&place);
            run(&place, &["--keep", keep], "printf 1 > f; printf 1 > new; rm -r d");
            let after = tree(&place);
            let said = verb(&place, &["undo", "f"]).expect(0);
            assert!(said.stdout.starts_with("undo ") && said.stdout.contains("1 path put back"), "{said:?}");
            assert_eq!(read(&place, "f").as_deref(), Some("0"));
            assert!(place.at("new").exists() && !place.at("d").exists());
            assert_eq!(marks(&place), ["partly"]);
            assert!(verb(&place, &["log"]).stdout.contains("(partly undone)"));
            let in_history =
                |path: &str| verb(&place, &["history", path]).expect(0).stdout.contains("(undone)");
            assert!(in_history("f") && !in_history("new"));
            // It is not undone twice, and nothing else has changed it.
            let again = verb(&place, &["undo", "f"]).expect(1);
            assert!(again.stderr.contains("there is nothing to undo of f here"), "{again:?}");
            // Of a directory that is gone, and of what was in it.
            verb(&place, &["undo", "d"]).expect(0);
            assert_eq!(read(&place, "d/gone").as_deref(), Some("g"));
            // Redo takes back one after the other.
            verb(&place, &["redo"]).expect(0);
            assert!(!place.at("d").exists() && read(&place, "f").as_deref() == Some("0"));
            verb(&place, &["undo"]).expect(0);
            assert_eq!((tree(&place), marks(&place)), (before.clone(), vec!["undone"]));
            verb(&place, &["redo"]).expect(0);
            assert_eq!((read(&place, "f").as_deref(), place.at("d").exists()), (Some("0"), false));
            assert_eq!(marks(&place), ["partly"]);
            verb(&place, &["redo"]).expect(0);
            assert_eq!((tree(&place), marks(&place)), (after.clone(), vec![""]));
            verb(&place, &["redo"]).expect(1);
            // Path by path, all of it is undone; by its name, all of that is redone as one.
            verb(&place, &["undo", "f", "new"]).expect(0);
            verb(&place, &["undo", "d"]).expect(0);
            assert_eq!((tree(&place), marks(&place)), (before.clone(), vec!["undone"]));
            verb(&place, &["undo"]).expect(1);
            let id = ids(&place).remove(0);
            let redone = verb(&place, &["redo", &id]).expect(0);
            assert!(redone.stdout.contains("put back"), "{redone:?}");
            assert_eq!((tree(&place), marks(&place)), (after, vec![""]));
            // A restore of some paths is the same.
            verb(&place, &["restore", "--before", &id, "new"]).expect(0);
            assert_eq!(marks(&place), ["partly"]);
            verb(&place, &["restore", &id, "new"]).expect(0);
            assert_eq!(marks(&place), [""]);
        }
    }
}

#[test]
fn the_newest_command_that_changed_the_path_is_the_one() {
    let place = Place::new();
    place.write("f", "0");
    place.write("sub/x", "0");
    run(&place, &[], "printf 1 > f; printf 1 > g; printf 1 > sub/x");
    run(&place, &[], "printf 2 > f");
    run(&place, &[], "cat f; printf 3 > g");
    let dry = verb(&place, &["undo", "--dry-run", "f"]).expect(0);
    assert!(dry.stdout.contains("printf 2 > f") && read(&place, "f").as_deref() == Some("2"), "{dry:?}");
    verb(&place, &["undo", "f"]).expect(0);
    assert_eq!((read(&place, "f").as_deref(), read(&place, "g").as_deref()), (Some("1"), Some("3")));
    assert_eq!(marks(&place), ["", "undone", ""]);
    // From another directory, and a name that has gone meanwhile.
    let mut below = place.command();
    let below: Run = below.current_dir(place.at("sub")).args(["undo", "../f"]).output().unwrap().into();
    below.expect(0);
    assert_eq!(read(&place, "f").as_deref(), Some("0"));
    // What the command did not change is said, and the rest is done.
    let both = verb(&place, &["undo", "g", "sub"]).expect(1);
    assert!(both.stderr.contains("did not change these, which are left as they are:\n  sub\n"), "{both:?}");
    assert_eq!((read(&place, "g").as_deref(), read(&place, "sub/x").as_deref()), (Some("1"), Some("1")));
    // With a recording, all of the paths must be its own.
    let oldest = ids(&place).remove(2);
    verb(&place, &["undo", &oldest, "none"]).expect(3);
    let refused = verb(&place, &["undo", &oldest, "g", "none"]).expect(1);
    assert!(refused.stderr.contains("nothing was changed, since") && place.at("g").exists(), "{refused:?}");
    verb(&place, &["undo", &oldest, "--", "g"]).expect(0);
    assert!(!place.at("g").exists() && read(&place, "sub/x").as_deref() == Some("1"));
    // What is neither a recording nor a path.
    verb(&place, &["undo", "nothing-of-the-kind"]).expect(3);
    verb(&place, &["undo", "--", "nothing-of-the-kind"]).expect(1);
    // An edit by hand is a conflict, and stays.
    place.write("sub/x", "mine");
    let conflict = verb(&place, &["undo", "sub/x"]).expect(1);
    assert!(conflict.stderr.contains("edited since") && marks(&place)[2] == "partly", "{conflict:?}");
    assert_eq!(read(&place, "sub/x").as_deref(), Some("mine"));
}

#[test]
fn name_of_a_recording_comes_before_a_path() {
    let place = Place::new();
    run(&place, &["--name", "build"], "mkdir build; printf 1 > build/out; printf 1 > f");
    run(&place, &[], "printf 2 > build/out");
    let path = verb(&place, &["undo", "--dry-run", "--", "build"]).expect(0);
    assert!(path.stdout.contains("printf 2") && path.stderr.is_empty(), "{path:?}");
    let named = verb(&place, &["undo", "--dry-run", "build", "f"]).expect(0);
    assert!(named.stdout.contains("1 path would be put back"), "{named:?}");
    assert!(named.stderr.contains("build is taken for the recording "), "{named:?}");
    // Too few characters of an identifier, and a path.
    let start = ids(&place)[0][..2].to_owned();
    verb(&place, &["undo", &start]).expect(2);
    run(&place, &[], &format!("printf x > {start}"));
    verb(&place, &["undo", &start]).expect(0);
    assert!(!place.at(&start).exists() && place.at("f").exists());
}

#[test]
fn renamed_file_goes_back_whichever_of_its_names_is_undone() {
    for name in ["old", "new"] {
        let place = Place::new();
        place.write("old", "content");
        let before = tree(&place);
        run(&place, &[], "mv old new; printf 1 > other");
        verb(&place, &["undo", name]).expect(0);
        assert_eq!((read(&place, "old").as_deref(), place.at("new").exists()), (Some("content"), false));
        verb(&place, &["undo"]).expect(0);
        assert_eq!(tree(&place), before);
    }
}

#[test]
fn renamed_file_goes_back_by_way_of_names_that_are_gone() {
    // By a name in between, by several commands, in a circle, and out of a directory.
    let all: [(&[&str], &[&str], &[&str]); 4] = [
        (&["mv x y; mv y z"], &["undo", "z"], &["undo", "x"]),
        (&["mv x y", "echo more >> y"], &["undo", "-n", "2", "--", "y"], &["undo", "-n", "2", "--", "x"]),
        (&["mv d t; mv c d; mv b c; mv a b; mv t a"], &["undo", "a"], &["undo", "c"]),
        (&["mv a e; mv e/f y; rmdir e"], &["undo", "y"], &["undo", "a"]),
    ];
    for (scripts, one, other) in all {
        for undo in [one, other] {
            let place = Place::new();
            place.write("x", "keep");
            for name in ["b", "c", "d"] {
                place.write(name, name);
            }
            if scripts[0].contains("e/f") {
                place.write("a/f", "f")
            } else {
                place.write("a", "a")
            }
            let before = tree(&place);
            scripts.iter().for_each(|script| drop(run(&place, &[], script)));
            let after = tree(&place);
            verb(&place, undo).expect(0);
            assert_eq!(tree(&place), before, "{undo:?}");
            verb(&place, &["redo"]).expect(0);
            assert_eq!(tree(&place), after, "{undo:?}");
        }
    }
}

#[test]
fn each_redo_takes_back_one_undo_whatever_its_options() {
    for limit in ["--merge", "--skip-conflicts", "--exclude=none", "--no-git"] {
        let place = Place::new();
        let names = ["a", "b", "c"];
        names.iter().for_each(|name| place.write(name, "0"));
        run(&place, &[], "for f in a b c; do echo 1 > $f; done");
        verb(&place, &["undo", "a"]).expect(0);
        verb(&place, &["undo", "b"]).expect(0);
        verb(&place, &["redo", limit]).expect(0);
        let is_undone = || names.map(|name| read(&place, name).as_deref() == Some("0"));
        assert_eq!((is_undone(), marks(&place)), ([true, false, false], vec!["partly"]), "{limit}");
        verb(&place, &["redo", limit]).expect(0);
        assert_eq!((is_undone(), marks(&place)), ([false; 3], vec![""]), "{limit}");
        // Some of a whole undo.
        verb(&place, &["undo"]).expect(0);
        verb(&place, &["redo", "--exclude", "c"]).expect(0);
        assert_eq!((is_undone(), marks(&place)), ([false, false, true], vec!["partly"]));
        // What is redone was changed by hand, which is in nobody's way.
        place.write("a", "mine");
        verb(&place, &["redo", limit]).expect(0);
        assert_eq!((read(&place, "c").as_deref(), marks(&place)), (Some("1\n"), vec![""]));
        verb(&place, &["redo"]).expect(1);
    }
}

#[test]
fn restore_of_what_was_undone_or_redone_counts() {
    let place = Place::new();
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| place.write(name, "0"));
    run(&place, &[], "for f in a b c; do echo 1 > $f; done");
    let id = ids(&place).remove(0);
    let is_undone = || names.map(|name| read(&place, name).as_deref() == Some("0"));
    let newest_rescue = || {
        let name = rescues(&place).into_iter().max_by_key(|name| {
            let number = name.rsplit('-').next().unwrap();
            number.parse::<u32>().unwrap()
        });
        library(&place).join("snapshots").join(name.unwrap()).into_os_string().into_string().unwrap()
    };
    // The undo of a redo of some paths is one of these paths.
    verb(&place, &["undo", "a"]).expect(0);
    verb(&place, &["undo", "b"]).expect(0);
    verb(&place, &["redo", &id]).expect(0);
    verb(&place, &["restore", "--before", &newest_rescue()]).expect(0);
    assert_eq!((is_undone(), marks(&place)), ([true, true, false], vec!["partly"]));
    verb(&place, &["undo"]).expect(0);
    assert_eq!((is_undone(), marks(&place)), ([true; 3], vec!["undone"]));
    verb(&place, &["redo", &id]).expect(0);
    // Some of what was undone comes back, from the recording or from the rescue.
    for by_rescue in [false, true] {
        verb(&place, &["undo", "a", "b"]).expect(0);
        let rescue = newest_rescue();
        let back =
            if by_rescue { vec!["restore", "--before", &rescue, "a"] } else { vec!["restore", &id, "a"] };
        verb(&place, &back).expect(0);
        assert_eq!((is_undone(), marks(&place)), ([false, true, false], vec!["partly"]));
        verb(&place, &["undo", "a"]).expect(0);
        assert_eq!(is_undone(), [true, true, false]);
        verb(&place, &["undo"]).expect(0);
        assert_eq!((is_undone(), marks(&place)), ([true; 3], vec!["undone"]));
        verb(&place, &["redo", &id]).expect(0);
        assert_eq!((is_undone(), marks(&place)), ([false; 3], vec![""]));
    }
    verb(&place, &["undo", "a", "b"]).expect(0);
    verb(&place, &["restore", &id, "a", "b", "--exclude", "b"]).expect(0);
    assert_eq!((is_undone(), marks(&place)), ([false, true, false], vec!["partly"]));
    verb(&place, &["redo"]).expect(0);
    assert_eq!((is_undone(), marks(&place)), ([false; 3], vec![""]));
}

#[test]
fn what_an_undo_left_out_is_not_undone() {
    let place = Place::new();
    for name in ["d/x", "d/y", "e"] {
        place.write(name, "0");
    }
    run(&place, &[], "for f in d/x e; do echo 1 > $f; done");
    let is_undone = |name: &str| read(&place, name).as_deref() == Some("0");
    verb(&place, &["undo", "e"]).expect(0);
    verb(&place, &["undo", "d", "--exclude", "x"]);
    assert_eq!((is_undone("d/x"), marks(&place)), (false, vec!["partly"]));
    verb(&place, &["redo"]).expect(0);
    verb(&place, &["undo", "--exclude", "x", "--exclude", "e"]);
    assert_eq!((is_undone("e"), marks(&place)), (false, vec![""]));
    // A conflict that was skipped, and is none any more.
    run(&place, &[], "for f in d/x d/y e; do echo 2 > $f; done");
    verb(&place, &["undo", "e"]).expect(0);
    place.write("d/x", "mine");
    verb(&place, &["undo", "d", "--skip-conflicts"]);
    assert_eq!((is_undone("d/y"), marks(&place)), (true, vec!["partly", ""]));
    place.write("d/x", "2\n");
    verb(&place, &["undo", "d"]).expect(0);
    assert_eq!((read(&place, "d/x").as_deref(), marks(&place)), (Some("1\n"), vec!["undone", ""]));
    // Each of these is redone by itself.
    verb(&place, &["redo"]).expect(0);
    assert_eq!((read(&place, "d/x").as_deref(), is_undone("d/y")), (Some("2\n"), true));
    verb(&place, &["redo"]).expect(0);
    assert_eq!((is_undone("d/y"), read(&place, "e").as_deref()), (false, Some("1\n")));
    verb(&place, &["redo"]).expect(0);
    assert_eq!(marks(&place), ["", ""]);
    // The same of a whole recording.
    place.write("e", "mine");
    verb(&place, &["undo", "--skip-conflicts"]);
    assert_eq!((read(&place, "d/x").as_deref(), marks(&place)), (Some("1\n"), vec!["partly", ""]));
}

#[test]
fn later_recordings_of_what_is_undone_already_stay() {
    let place = Place::new();
    place.write("f", "0");
    run(&place, &["--name", "first"], "echo 1 > f; echo 1 > g");
    run(&place, &[], "echo 2 > f; echo 2 > h");
    verb(&place, &["undo", "f"]).expect(0);
    verb(&place, &["undo", "--with-later", "first"]).expect(0);
    assert_eq!((read(&place, "f").as_deref(), read(&place, "h").as_deref()), (Some("0"), Some("2\n")));
    assert_eq!(marks(&place), ["partly", "undone"]);
}

#[test]
fn redo_merges_with_what_was_edited_since_an_undo() {
    let place = Place::new();
    place.write("f", "1\n2\n3\n4\n5\n6\n7\n");
    for keep in ["undo", "all"] {
        run(&place, &["--keep", keep], "sed -i s/2/two/ f");
        verb(&place, &["undo"]).expect(0);
        place.prepare("sed -i s/7/seven/ f");
        verb(&place, &["redo"]).expect(1);
        verb(&place, &["redo", "--merge"]).expect(0);
        assert_eq!(read(&place, "f").as_deref(), Some("1\ntwo\n3\n4\n5\n6\nseven\n"));
        assert_eq!(marks(&place)[0], "");
        place.write("f", "1\n2\n3\n4\n5\n6\n7\n");
    }
}

#[test]
fn chain_of_several_goes_on_below_what_is_undone_already() {
    let place = Place::new();
    place.write("f", "0");
    let before = tree(&place);
    run(&place, &[], "printf 1 > f; mkdir d; printf 1 > d/x");
    run(&place, &[], "printf 2 > f; printf 2 > g; printf 2 > d/x");
    let after = tree(&place);
    verb(&place, &["undo", "f", "d"]).expect(0);
    assert_eq!((read(&place, "f").as_deref(), read(&place, "d/x").as_deref()), (Some("1"), Some("1")));
    verb(&place, &["undo", "-n", "2"]).expect(0);
    assert_eq!((tree(&place), marks(&place)), (before, vec!["undone"; 2]));
    verb(&place, &["redo"]).expect(0);
    verb(&place, &["redo"]).expect(0);
    assert_eq!((tree(&place), marks(&place)), (after, vec![""; 2]));
    // Of several, some paths; and a marked path that was back already.
    verb(&place, &["undo", "-n", "2", "--", "f"]).expect(0);
    assert_eq!((read(&place, "f").as_deref(), read(&place, "g").as_deref()), (Some("0"), Some("2")));
    assert_eq!(marks(&place), ["partly", "partly"]);
    verb(&place, &["redo"]).expect(0);
    place.write("g", "");
    fs::remove_file(place.at("g")).unwrap();
    assert!(verb(&place, &["undo", "g"]).expect(0).stdout.contains("nothing to do"));
    verb(&place, &["undo", "g"]).expect(1);
}

#[test]
fn directory_that_a_later_recording_made_takes_what_was_in_it() {
    let place = Place::new();
    for name in ["d/b", "d/c"] {
        place.write(name, name);
    }
    let before = tree(&place);
    run(&place, &["--name", "removal"], "rm -r d");
    run(&place, &[], "mkdir d; echo 2 > d/c");
    verb(&place, &["undo", "d/b"]).expect(0);
    verb(&place, &["undo", "d"]);
    assert_eq!((read(&place, "d/b").as_deref(), read(&place, "d/c")), (Some("d/b"), None));
    verb(&place, &["undo", "removal"]).expect(0);
    assert_eq!(tree(&place), before);
    // What it made in there is gone again.
    run(&place, &["--name", "again"], "rm -r d");
    run(&place, &[], "mkdir d; echo 2 > d/c; rm d/c");
    verb(&place, &["undo", "d/b"]).expect(0);
    verb(&place, &["undo", "again"]).expect(0);
    assert_eq!(tree(&place), before);
}

#[test]
fn directory_that_stays_for_what_others_put_there_makes_way_for_the_next_undo() {
    let place = Place::new();
    for name in ["d/b", "d/c"] {
        place.write(name, name);
    }
    let before = tree(&place);
    run(&place, &[], "rm -r d");
    run(&place, &[], "mkdir d; echo 1 > a");
    run(&place, &[], "rm -r d");
    run(&place, &["--name", "last"], "mkdir d; echo 2 > d/c; rm d/c");
    let after = tree(&place);
    verb(&place, &["undo", "d/b"]).expect(0);
    let left = verb(&place, &["undo"]).expect(1).stdout;
    assert!(left.contains("d: it holds b"), "{left}");
    assert!((0..6).any(|_| verb(&place, &["undo"]).stderr.contains("there is nothing to undo")));
    assert_eq!(tree(&place), before);
    assert!((0..6).any(|_| verb(&place, &["redo"]).stderr.contains("there is nothing to redo")));
    assert_eq!(tree(&place), after);
}

/// Whatever is undone before, everything can be undone, and redone.
#[test]
#[ignore = "slow: twenty random histories"]
fn slow_nothing_is_lost_whatever_was_undone_by_path() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    let step = (0..5_usize, 0..4_usize);
    let all = (
        prop::collection::vec(prop::collection::vec(step, 1..4), 2..5),
        prop::collection::vec(0..7_usize, 1..5),
    );
    let config = Config { cases: cases(20), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&all, |(commands, undone)| {
            // To a command that removes a directory and makes it again it is unaltered. Once the undo of an earlier
            // command by this path has removed it, that is a conflict for good, which only --force resolves.
            let makes_again = |steps: &Vec<(usize, usize)>| {
                let removal = steps.iter().position(|(what, _)| *what == 1);
                removal.is_some_and(|at| steps[at..].iter().any(|(what, _)| *what > 2))
            };
            prop_assume!(!(undone.contains(&1) && commands.iter().any(makes_again)));
            let place = Place::new();
            for (name, text) in [("a", "a"), ("d/b", "b"), ("d/c", "c")] {
                place.write(name, text);
            }
            let before = tree(&place);
            for (number, steps) in commands.iter().enumerate() {
                let script: String = steps
                    .iter()
                    .map(|(what, which)| {
                        let name = ["a", "d/b", "d/c", "e/f"][*which];
                        match what {
                            0 => format!("rm -f {name};"),
                            1 => "rm -rf d;".to_owned(),
                            2 => format!("test -e {name} && mv {name} {name}.{number};"),
                            _ => format!("mkdir -p d e; echo {number}{what} >> {name};"),
                        }
                    })
                    .collect();
                run(&place, &[], &format!("{script} :"));
            }
            let after = tree(&place);
            for which in &undone {
                // Some of them change nothing there.
                verb(&place, &["undo", "--", ["a", "d", "d/b", "d/c", "e", "e/f", "d/b.1"][*which]]);
            }
            // A directory that a later command made stays while it holds what the undo of an earlier one brought back.
            // What is left then is undone by its identifier.
            let all = |what: &str, ids: &mut dyn Iterator<Item = String>| {
                let is_done = |_: usize| verb(&place, &[what]).stderr.contains("there is nothing to");
                if !(0..10).any(is_done) {
                    ids.for_each(|id| drop(verb(&place, &[what, &id])));
                }
            };
            all("undo", &mut ids(&place).into_iter());
            prop_assert_eq!(&tree(&place), &before, "{:?}", ids(&place));
            all("redo", &mut ids(&place).into_iter().rev());
            prop_assert_eq!(&tree(&place), &after);
            Ok(())
        })
        .unwrap();
}

#[test]
fn killed_undo_of_a_path_is_completed_or_taken_back() {
    let place = Place::new();
    let old: Vec<String> = (0..40).map(|number| format!("d/{number}")).collect();
    old.iter().for_each(|name| place.write(name, "old"));
    run(&place, &[], "for f in d/*; do echo new > $f; done; echo new > other");
    let id = ids(&place).remove(0);
    // As a kill leaves it: the rescue is there, and has not ended.
    verb(&place, &["undo", "d"]).expect(0);
    let rescue = library(&place).join("snapshots").join(&rescues(&place)[0]);
    let unfinished = rescue.with_file_name(format!("{id}-rescue-1.unfinished"));
    fs::rename(&rescue, &unfinished).unwrap();
    place.write("d/7", "new\n");
    let refused = verb(&place, &["undo"]).expect(1);
    assert!(refused.stderr.contains("agent-snapshot restore"), "{refused:?}");
    verb(&place, &["undo", "d"]).expect(0);
    assert_eq!(
        (read(&place, "d/7").as_deref(), read(&place, "other").as_deref()),
        (Some("old"), Some("new\n"))
    );
    assert_eq!(marks(&place), ["partly"]);
    verb(&place, &["redo"]).expect(0);
    assert!(old.iter().all(|name| read(&place, name).as_deref() == Some("new\n")));
    assert_eq!(marks(&place), [""]);
}

#[test]
fn recordings_that_did_not_change_the_path_are_not_marked() {
    let place = Place::new();
    run(&place, &[], "echo 0 > x");
    run(&place, &[], "echo 1 > y");
    verb(&place, &["undo", "-n", "2", "--", "x"]).expect(0);
    assert_eq!(marks(&place), ["", "undone"]);
    verb(&place, &["undo"]).expect(0);
    verb(&place, &["redo"]).expect(0);
    assert!(place.at("y").exists() && !place.at("x").exists());
    verb(&place, &["redo"]).expect(0);
    assert_eq!(marks(&place), ["", ""]);
}

#[test]
fn two_undos_of_the_same_path_are_redone_one_by_one() {
    let place = Place::new();
    run(&place, &[], "mkdir d; echo 0 > d/x; echo 0 > d/y");
    place.write("d/x", "mine");
    verb(&place, &["undo", "d", "--skip-conflicts"]).expect(1);
    assert!(place.at("d/x").exists() && !place.at("d/y").exists());
    place.write("d/x", "0\n");
    verb(&place, &["undo", "d", "--skip-conflicts"]).expect(0);
    assert!(!place.at("d").exists());
    verb(&place, &["redo"]).expect(0);
    assert!(place.at("d/x").exists() && !place.at("d/y").exists());
    verb(&place, &["redo"]).expect(0);
    assert!(place.at("d/y").exists());
}

#[test]
fn file_whose_own_path_is_left_keeps_the_name_that_it_has() {
    let all: [(&[&str], &str, &[&str]); 9] = [
        (&["mv a b"], "echo mine > a", &["undo", "--skip-conflicts"]),
        (&["mv a b"], "", &["undo", "--exclude", "a"]),
        (&["mv a b"], "", &["restore", "--before", "@", "b"]),
        (&["mv d e"], "mkdir d; echo mine > d/f", &["undo", "--skip-conflicts"]),
        (&["mv a a~; echo new > a"], "echo mine > a", &["undo", "--skip-conflicts"]),
        (&["mv a b; echo more >> b"], "echo mine > a", &["undo", "--skip-conflicts"]),
        (&["mv a b", "mv b c"], "echo mine > a", &["undo", "-n", "2", "--skip-conflicts"]),
        (&["mv a t; mv x a; mv t x"], "mv a elsewhere", &["undo", "--skip-conflicts"]),
        (&["mv a b"], "$AS undo; echo mine > b", &["redo", "--skip-conflicts"]),
    ];
    for (scripts, by_hand, words) in all {
        let place = Place::new();
        for name in ["a", "x", "d/f"] {
            place.write(name, format!("precious {name}\n"));
        }
        scripts.iter().for_each(|script| drop(run(&place, &[], script)));
        place.prepare(&by_hand.replace("$AS", BINARY));
        let said = verb(&place, words).expect(1);
        let kept: String = tree(&place).concat();
        let contents = place.prepare("cat $(find . -type f | sort)");
        for name in ["a", "x", "d/f"] {
            assert!(contents.contains(&format!("precious {name}\n")), "{words:?} {said:?} {kept}");
        }
    }
}
