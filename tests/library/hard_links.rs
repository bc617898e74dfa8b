//! Hard links whose names are known to different recordings: they are undone and redone by file, not by name.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use super::undo::{ids, tree};
use super::{library, run, verb};
use crate::support::{Place, Run, assert_same, is_root, works};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The content of each name, and the first name of the same file.
type Names = BTreeMap<&'static str, (String, &'static str)>;

fn names(place: &Place) -> Names {
    let inode = |name: &str| fs::symlink_metadata(place.at(name)).ok().map(|stat| stat.ino());
    let first = |name: &str| NAMES.into_iter().find(|one| inode(one) == inode(name)).unwrap();
    let there = NAMES.into_iter().filter(|name| inode(name).is_some());
    there.map(|name| (name, (fs::read_to_string(place.at(name)).unwrap(), first(name)))).collect()
}

/// A place with the files that a script makes unseen, after these recordings; the oldest identifier is the first.
fn recorded(made: &str, scripts: &[&str]) -> (Place, Vec<Names>, Vec<String>) {
    let place = Place::new();
    place.prepare(made);
    let mut trees = vec![names(&place)];
    for script in scripts {
        run(&place, &[], script);
        trees.push(names(&place));
    }
    let mut ids = ids(&place);
    ids.reverse();
    (place, trees, ids)
}

fn undo(place: &Place, options: &[&str], id: &str) -> Run {
    verb(place, &[&["undo"], options, &[id]].concat())
}

#[test]
fn name_that_was_replaced_becomes_a_hard_link_again() {
    let (place, trees, ids) = recorded("echo one > a; ln a b", &["echo two > b", "rm a; echo other > a"]);
    for _ in 0..2 {
        let said = undo(&place, &[], &ids[1]).expect(0);
        assert!(said.stdout.contains("hard link"), "{}", said.stdout);
        assert!(!said.stderr.contains("of their own"), "{}", said.stderr);
        assert_eq!(names(&place), trees[1]);
        undo(&place, &[], &ids[0]).expect(0);
        assert_eq!(names(&place), trees[0]);
        verb(&place, &["redo", &ids[0]]).expect(0);
        assert_eq!(names(&place), trees[1]);
        verb(&place, &["redo", &ids[1]]).expect(0);
        assert_eq!(names(&place), trees[2]);
    }
    verb(&place, &["restore", "--before", &ids[1]]).expect(0);
    assert_eq!(names(&place), trees[1]);
}

#[test]
fn change_through_another_name_is_a_conflict_that_goes_with_later_ones() {
    for scripts in [
        ["echo two > b", "rm a; echo other > a"],
        ["rm a; echo other > a", "echo two > b"],
        ["echo two > b", "rm a"],
        ["rm a", "echo two > b"],
    ] {
        let (place, trees, ids) = recorded("echo one > a; ln a b", &scripts);
        let said = undo(&place, &[], &ids[0]).expect(1).stderr;
        assert!(said.contains("its hard link") && said.contains(&ids[1]), "{scripts:?}: {said}");
        assert!(said.contains("undo --with-later"), "{scripts:?}: {said}");
        assert_eq!(names(&place), trees[2], "{scripts:?}");
        undo(&place, &["--with-later"], &ids[0]).expect(0);
        assert_eq!(names(&place), trees[0], "{scripts:?}");
        verb(&place, &["redo"]).expect(0);
        assert_eq!(names(&place), trees[2], "{scripts:?}");
        for number in [1, 0] {
            undo(&place, &[], &ids[number]).expect(0);
            assert_eq!(names(&place), trees[number], "{scripts:?}");
        }
    }
}

#[test]
fn hard_link_is_made_only_to_the_file_that_was_recorded() {
    // Written to since; another file with the same content, mode and time.
    for since in ["echo more >> b", "cp -p b c; rm b; mv c b"] {
        let (place, _, ids) = recorded("echo one > a; ln a b", &["echo two > b", "rm a; echo other > a"]);
        place.prepare(since);
        let other = fs::read(place.at("b")).unwrap();
        let said = undo(&place, &[], &ids[1]).expect(0).stderr;
        assert!(said.contains("files of their own") && said.contains("/a"), "{since}: {said}");
        let found = names(&place);
        assert_eq!(found["a"], ("two\n".to_owned(), "a"), "{since}");
        assert_eq!(found["b"].1, "b", "{since}");
        assert_eq!(fs::read(place.at("b")).unwrap(), other, "{since}");
    }
}

#[test]
fn hard_link_is_never_made_to_a_later_file_that_got_the_inode_number() {
    let place = Place::new();
    // As an archive with fixed times leaves files: all of them have the same mode and time.
    let made = "printf same > a; chmod 644 a; touch -d @978307200 a";
    run(&place, &[], &format!("{made}; ln a b"));
    let inode = place.inode("a");
    run(&place, &[], "rm a");
    fs::remove_file(place.at("b")).unwrap();
    // Inodes are stamped with a clock that stands still for some milliseconds.
    let ended = SystemTime::now();
    let probe = place.base().join("probe");
    let is_stamped_later = || {
        fs::write(&probe, "x").unwrap();
        fs::metadata(&probe).unwrap().modified().unwrap() > ended
    };
    while !is_stamped_later() {}
    // Most filesystems give a free number to one of the next files.
    let other = (0..400).map(|number| format!("other-{number}")).find(|name| {
        place.write(name, "same");
        place.inode(name) == inode
    });
    let Some(other) = other else { return println!("skipped: no inode number was used again") };
    place.prepare(&format!("mv {other} b; chmod 644 b; touch -d @978307200 b"));
    let said = verb(&place, &["undo"]).expect(0).stderr;
    assert!(said.contains("files of their own"), "{said}");
    place.write("a", "mine");
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "same");
}

#[test]
fn file_made_again_with_the_number_of_another_one_that_is_made_again_is_told_from_it() {
    let (place, trees, _) = recorded("", &["echo 1 > d", "echo 2 > c", "rm d; ln c d"]);
    let inode = place.inode("c");
    for number in [2, 1, 0] {
        verb(&place, &["undo"]).expect(0);
        assert_eq!(names(&place), trees[number]);
    }
    // `d` gets the number that `c` had, as it may when a restore makes it again.
    let held = (0..400).map(|number| format!("held-{number}")).find(|name| {
        place.write(name, "");
        place.inode(name) == inode
    });
    let Some(held) = held else { return println!("skipped: no inode number was used again") };
    verb(&place, &["redo"]).expect(0);
    place.prepare(&format!("cat d > {held}; touch -r d {held}; mv {held} d"));
    assert_eq!(names(&place), trees[1]);
    for tree in &trees[2..] {
        verb(&place, &["redo"]).expect(0);
        assert_eq!(names(&place), *tree);
    }
}

#[test]
fn hard_link_of_a_later_name_leads_to_the_file() {
    let (place, trees, ids) = recorded("echo one > a; ln a b; ln a c", &["rm b", "mv c d", "echo two > a"]);
    for number in [2, 1, 0] {
        undo(&place, &[], &ids[number]).expect(0);
        assert_eq!(names(&place), trees[number], "{number}");
    }
}

#[test]
fn undo_needs_no_index() {
    let place = Place::new();
    place.write("f", "one\n");
    run(&place, &[], "echo two > f");
    // Not even root can read it.
    let index = library(&place).join("paths.idx");
    let _ = fs::remove_file(&index);
    fs::create_dir(&index).unwrap();
    for (verb_name, content) in [("undo", "one\n"), ("redo", "two\n")] {
        verb(&place, &[verb_name]).expect(0);
        assert_eq!(fs::read_to_string(place.at("f")).unwrap(), content);
    }
}

#[test]
fn what_only_a_later_command_has_put_back_is_a_conflict() {
    for (made, scripts) in [
        ("echo same > b; cp -p b c", ["rm b", "ln c b"]),
        ("echo 0 > a", ["echo 1 > a", "echo 0 > a"]),
        ("mkdir dir; echo 0 > a", ["rmdir dir; rm a", "mkdir dir; echo 1 > a"]),
    ] {
        let (place, trees, ids) = recorded(made, &scripts);
        let said = undo(&place, &[], &ids[0]).expect(1).stderr;
        assert!(said.contains(&format!("put back since by {} (sh -c", ids[1])), "{said}");
        assert!(said.contains("undo --with-later"), "{said}");
        assert_eq!(names(&place), trees[2], "{scripts:?}");
        undo(&place, &["--with-later"], &ids[0]).expect(0);
        assert_eq!(names(&place), trees[0], "{scripts:?}");
    }
    // It was made and removed since.
    let (place, _, ids) = recorded("", &["mkdir dir", "rmdir dir", "mkdir dir"]);
    undo(&place, &[], &ids[0]).expect(1);
    assert!(place.at("dir").exists());
}

#[test]
fn several_are_undone_by_a_name_that_they_did_not_use() {
    let (place, trees, _) = recorded("", &["echo 0 > a; ln a b", "echo 199 >> b", "rm b"]);
    let said = verb(&place, &["undo", "-n", "2"]).expect(0);
    assert!(!said.stderr.contains("of their own"), "{said:?}");
    assert_eq!(names(&place), trees[1]);
    verb(&place, &["redo"]).expect(0);
    assert_eq!(names(&place), trees[3]);
}

#[test]
fn file_that_all_names_were_removed_of_gets_all_of_them_back() {
    let (place, trees, ids) = recorded("", &["echo 0 > a; ln a b", "rm a", "rm b", "echo 1 > c"]);
    for _ in 0..2 {
        for number in [3, 2, 1, 0] {
            let said = undo(&place, &[], &ids[number]).expect(0);
            assert!(!said.stderr.contains("of their own"), "{said:?}");
            assert_eq!(names(&place), trees[number]);
        }
        for number in [0, 1, 2, 3] {
            verb(&place, &["redo"]).expect(0);
            assert_eq!(names(&place), trees[number + 1]);
        }
    }
}

#[test]
fn name_is_taken_from_a_file_whatever_has_become_of_its_content() {
    let (place, trees, ids) = recorded("echo 0 > a", &["echo 1 >> a", "ln a b"]);
    undo(&place, &[], &ids[0]).expect(0);
    undo(&place, &[], &ids[1]).expect(0);
    assert_eq!(names(&place), trees[0]);
    // Its only name is another matter.
    let (place, _, ids) = recorded("", &["echo 1 > a"]);
    place.prepare("echo mine > a; ln a b");
    undo(&place, &[], &ids[0]).expect(1);
    assert_eq!(names(&place)["a"].0, "mine\n");
}

#[test]
fn undo_of_a_path_is_of_all_names_that_were_written_to() {
    let (place, trees, ids) = recorded("echo 0 > a; ln a b", &["echo 1 >> a; rm b; echo 3 > c"]);
    verb(&place, &["undo", "b"]).expect(0);
    let mut wanted = trees[0].clone();
    wanted.insert("c", ("3\n".to_owned(), "c"));
    assert_eq!(names(&place), wanted);
    undo(&place, &[], &ids[0]).expect(0);
    assert_eq!(names(&place), trees[0]);
    // What was undone by path is no later change.
    let (place, trees, ids) = recorded("echo 0 > a; ln a b", &["echo 1 >> a", "echo 2 >> b; echo 3 > c"]);
    verb(&place, &["undo", "b"]).expect(0);
    undo(&place, &[], &ids[0]).expect(0);
    assert_eq!(names(&place)["a"], trees[0]["a"]);
    assert!(place.at("c").exists());
}

#[test]
fn attributes_of_a_file_go_back_by_the_name_that_the_command_used() {
    let mut scripts = vec![
        "chmod 600 b; setfattr -n user.k -v 1 b",
        "chmod 600 b; chmod 640 b; setfattr -n user.k -v 1 b",
        "chmod 600 b; chmod 640 b; setfattr -x user.k b; setfattr -n user.new -v 1 b",
        "touch b; setfattr -n user.k -v 1 b; chmod 600 b",
        "echo more >> b; setfattr -n user.k -v 1 b; setfattr -n user.new -v 1 b",
        "cat a; chmod 600 b; setfattr -n user.k -v 1 b",
        "cat a; chmod 600 b; chmod 640 b; setfattr -n user.k -v 1 b",
        "chmod 600 b; setfacl -m u:1234:r b",
        "rm c; setfattr -n user.k -v 1 b; chmod 600 b",
    ];
    if is_root() {
        scripts.push("chown 1234 b");
        scripts.push("chmod 600 b; chown 1234:1234 b");
        scripts.push("cat a; chown 1234 b");
    }
    for script in scripts {
        for (before, keep) in [("true", "undo"), ("chmod 640 a", "undo"), ("chmod 640 a", "all")] {
            let place = Place::new();
            place.prepare("echo one > a; ln a b; ln a c; chmod 640 a");
            let set = ["-n", "user.k", "-v", "0", "a"];
            if !works(place.program("setfattr").args(set))
                || script.contains("setfacl") && !works(place.program("setfacl").args(["-b", "a"]))
            {
                continue;
            }
            run(&place, &[], before);
            place.prepare("setfattr -n user.mine -v 0 a");
            let trees = [tree(&place), {
                run(&place, &["--keep", keep], script);
                tree(&place)
            }];
            for _ in 0..2 {
                verb(&place, &["undo"]).expect(0);
                assert_same(&tree(&place), &trees[0], &format!("undo {script} after {before}, {keep}"));
                verb(&place, &["redo"]).expect(0);
                assert_same(&tree(&place), &trees[1], &format!("redo {script} after {before}, {keep}"));
            }
            if script.contains("more") {
                continue;
            }
            place.prepare("setfattr -n user.mine -v 2 a");
            verb(&place, &["undo"]).expect(0);
            let mine = || place.prepare("getfattr --only-values -n user.mine a");
            assert_eq!(mine(), "2", "{script} after {before}, {keep}");
        }
    }
}

/// Each name, and the first name of the same FIFO, symlink or socket.
fn linked_names(place: &Place) -> Vec<(&'static str, &'static str)> {
    let inode = |name: &str| fs::symlink_metadata(place.at(name)).ok().map(|stat| stat.ino());
    let first = |name: &str| NAMES.into_iter().find(|one| inode(one) == inode(name)).unwrap();
    NAMES.into_iter().filter(|name| inode(name).is_some()).map(|name| (name, first(name))).collect()
}

#[test]
fn hard_link_that_only_another_recording_knows_is_made_again_of_every_kind() {
    for make in ["mkfifo a", "ln -s there a"] {
        let place = Place::new();
        place.prepare(make);
        run(&place, &[], "ln -P a b");
        run(&place, &[], "rm a");
        for id in &ids(&place)[..1] {
            let said = undo(&place, &[], id).expect(0);
            assert!(!said.stderr.contains("of their own"), "{make}: {}", said.stderr);
            assert_eq!(linked_names(&place), [("a", "a"), ("b", "a")], "{make}");
        }
        // Another one that is there by the other name since is left alone.
        verb(&place, &["redo"]).expect(0);
        place.prepare(&format!("rm b; {make}; mv a b"));
        let said = undo(&place, &[], &ids(&place)[0]).expect(0);
        assert!(said.stderr.contains("of their own"), "{make}: {}", said.stderr);
        assert_eq!(linked_names(&place), [("a", "a"), ("b", "b")], "{make}");
    }
}

#[test]
fn which_names_are_one_file_is_a_change_that_is_undone_and_redone() {
    let scripts = [
        ("echo one > a; cp -p a b; ln a c", "ln -f a b", &["b"][..]),
        ("echo one > a; ln a b", "cp -p --remove-destination a b", &["b"]),
        ("echo one > a; cp -p a b; cp -p a c", "ln a t; mv t b; ln -f b c", &["b", "c"]),
        ("echo one > a; ln a b; cp -p a c; ln c d", "stat a; ln -f c b", &["b"]),
    ];
    for (made, script, changed) in scripts {
        let (place, trees, ids) = recorded(made, &[script]);
        let id = ids[0].as_str();
        let said = verb(&place, &["log"]).expect(0).stdout;
        assert!(said.contains(&format!("~{} ", changed.len())), "{script}: {said}");
        let shown: serde_json::Value =
            serde_json::from_str(&verb(&place, &["show", "--json", id]).expect(0).stdout).unwrap();
        let differing = shown["files"].as_array().unwrap().iter().filter(|one| one["status"] == "changed");
        let differing: Vec<_> = differing.map(|one| (one["path"].clone(), one["differs"].clone())).collect();
        let expected = changed
            .iter()
            .map(|name| (place.at(name).to_str().unwrap().into(), serde_json::json!(["hard_links"])));
        assert_eq!(differing, expected.collect::<Vec<_>>(), "{script}");
        let said = verb(&place, &["diff", "--exit-code", id]).expect(1).stderr;
        assert!(said.contains("its hard links changed"), "{script}: {said}");
        for options in [&[][..], changed] {
            let undone = verb(&place, &[&["undo", "--"], options].concat()).expect(0);
            assert_eq!(names(&place), trees[0], "{script}");
            assert!(!undone.stderr.contains("of their own"), "{script}: {}", undone.stderr);
            assert!(verb(&place, &["log"]).expect(0).stdout.contains("(undone)"), "{script}");
            verb(&place, &["redo"]).expect(0);
            assert_eq!(names(&place), trees[1], "{script}");
        }
    }
}

#[test]
fn names_that_get_another_file_together_are_no_change() {
    let (place, trees, _) = recorded("echo one > a; ln a b", &["cp -p a t; ln -f t a; ln -f t b; rm t"]);
    assert_eq!(trees[0], trees[1]);
    let said = verb(&place, &["log"]).expect(0);
    assert!(!said.stdout.contains("~"), "{}", said.stdout);
    assert!(said.stdout.contains("changed nothing"), "{}", said.stdout);
}

#[test]
fn link_to_an_unknown_name_that_is_not_restored_is_named() {
    for (made, script) in [
        ("echo one > a; ln a ../unknown", "cp -p a t; mv t a"),
        ("mkfifo a; ln a ../unknown", "mkfifo t; mv t a"),
        ("mkfifo -m 600 a; ln a ../unknown", "rm a; mkfifo -m 644 a"),
    ] {
        let place = Place::new();
        place.prepare(made);
        run(&place, &[], script);
        let said = verb(&place, &["undo"]).expect(0);
        let named = format!("files of their own:\n  {}", place.at("a").display());
        assert!(said.stderr.contains(&named), "{script}: {}", said.stderr);
        assert!(verb(&place, &["log"]).expect(0).stdout.contains("(undone)"), "{script}");
    }
}

#[test]
fn file_that_changed_by_two_names_is_undone_by_both() {
    for change in ["chmod go-r d/a d/b", "echo more >> d/a; echo more >> d/b"] {
        for words in [&["d"][..], &["d/a", "d/b", "d/c"], &["--exclude", "other"]] {
            let place = Place::new();
            place.prepare("mkdir d; echo one > d/a; ln d/a d/b; echo old > older");
            run(&place, &[], "echo new > older");
            let before = tree(&place);
            run(&place, &[], &format!("{change}; echo made > d/c"));
            let after = tree(&place);
            verb(&place, &[&["undo"], words].concat()).expect(0);
            assert_same(&tree(&place), &before, "undone");
            // It is undone, and not a part of it.
            verb(&place, &["redo"]).expect(0);
            assert_same(&tree(&place), &after, "redone");
            verb(&place, &[&["undo"], words].concat()).expect(0);
            verb(&place, &["undo"]).expect(0);
            assert_eq!(fs::read_to_string(place.at("older")).unwrap(), "old\n", "{change} {words:?}");
        }
    }
}
