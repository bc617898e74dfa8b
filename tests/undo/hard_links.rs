//! Files with several names: those that are written in place, and hard links of every kind of file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;

use super::commands::record_keeping;
use crate::support::*;

#[test]
fn file_with_unrecorded_names_is_written_in_place() {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, place.at("module")).unwrap();
    let states = States::of(&place, || place.write("module", "new and longer"));
    let inode = fs::metadata(&store).unwrap().ino();
    place.verb("restore", &["--before"]).expect(0);
    states.expect(&place, true);
    assert_eq!(fs::read_to_string(&store).unwrap(), "old");
    assert_eq!(fs::metadata(place.at("module")).unwrap().ino(), inode);
    states.there_and_back(&place);
    assert_eq!(fs::metadata(place.at("module")).unwrap().ino(), inode);

    // A tool that replaces the file must not reach the store.
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, place.at("module")).unwrap();
    let states = States::of(&place, || {
        fs::remove_file(place.at("module")).unwrap();
        place.write("module", "new");
    });
    states.there_and_back(&place);
    assert_eq!(fs::read_to_string(&store).unwrap(), "old");
}

#[test]
fn replacing_a_hard_link_leaves_its_other_names_alone() {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "stored").unwrap();
    place.write("module", "mine");
    let states = States::of(&place, || {
        fs::remove_file(place.at("module")).unwrap();
        fs::hard_link(&store, place.at("module")).unwrap();
    });
    states.there_and_back(&place);
    assert_eq!(fs::read_to_string(&store).unwrap(), "stored");
}

#[test]
fn mount_point_is_written_in_place() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.write("file", "old");
    place.write("removed", "old");
    place.make_bundle(|| place.write("file", "new!"));
    fs::write(place.base().join("source"), "new!").unwrap();
    let script = r#"set -e; mount --bind "$1/source" "$1/work/file"; "$2" restore "$1/out" --before"#;
    let run = place.run_unshared(script).expect(0);
    assert!(run.stdout.starts_with("write "), "{}", run.stdout);
    assert_eq!(fs::read_to_string(place.base().join("source")).unwrap(), "old");
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "new!");
}

#[test]
fn what_is_in_a_directory_that_is_mounted_twice_is_put_back_once() {
    if !can_mount() {
        return;
    }
    for (command, done) in [
        ("echo new >a/f; echo newer >>b/f", "replace"),
        ("echo new >b/f; echo newer >>a/f", "replace"),
        ("rm b/f; cat a/d/f", "create"),
        ("cat b/d/f; rm -r a/d", "create"),
        ("stat b/d; rm -r a/d", "create"),
    ] {
        let place = Place::new();
        fs::create_dir(place.at("b")).unwrap();
        place.write("a/f", "old");
        place.write("a/d/f", "old");
        let before = scan(&place.work);
        let script = format!(
            r#"set -e; cd "$1/work"; mount --bind a b
            "$2" --quiet --snapshot-dir "$1/out" sh -c '{command}' >&2; "$2" restore "$1/out" --before"#
        );
        let run = place.run_unshared(&script).expect(0);
        assert!(run.stdout.starts_with(done), "{command}: {}", run.stdout);
        let [now, before] = [&scan(&place.work), &before].map(describe_recorded);
        assert_same(&now, &before, command);
    }
}

#[test]
fn place_of_two_paths_that_were_found_in_two_states_is_left() {
    if !can_mount() {
        return;
    }
    for command in [
        "echo made >a/g; echo more >>b/g",
        "rm a/f; echo new >b/f",
        "rm b/f; echo new >a/f",
        "mv a/f a/g; cat b/g >b/f",
    ] {
        let place = Place::new();
        fs::create_dir(place.at("b")).unwrap();
        place.write("a/f", "old");
        let script = format!(
            r#"set -e; cd "$1/work"; mount --bind a b
            "$2" --quiet --snapshot-dir "$1/out" sh -c '{command}' >&2; cat a/*; "$2" restore "$1/out" --before || cat a/*"#
        );
        let run = place.run_unshared(&script).expect(0);
        let (left, now) = run.stdout.split_at(run.stdout.len() / 2);
        assert!(left == now && run.stderr.contains("was found in another state there"), "{command}: {run:?}");
    }
}

#[test]
fn files_that_one_of_two_mounts_covers_are_two() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("b")).unwrap();
    place.write("a/f", "under");
    place.write("cover", "over");
    let script = r#"set -e; cd "$1/work"; mount --bind a b; mount --bind cover a/f
        "$2" --quiet --snapshot-dir "$1/out" sh -c 'echo x >a/f; echo y >b/f'; "$2" restore "$1/out" --before >&2; cat a/f b/f"#;
    assert_eq!(place.run_unshared(script).expect(0).stdout, "overunder");
}

#[test]
fn added_xattr_of_a_file_with_other_names_is_removed() {
    let place = Place::new();
    fs::write(place.at("one"), "old").unwrap();
    fs::hard_link(place.at("one"), place.at("two")).unwrap();
    fs::hard_link(place.at("one"), place.base().join("store")).unwrap();
    if set_xattr(place.at("one"), "user.kept", b"x").is_err() {
        return println!("skipped: the filesystem has no extended attributes");
    }
    let states = States::of(&place, || {
        place.write("one", "new");
        set_xattr(place.at("one"), "user.mark", b"x").unwrap();
    });
    states.there_and_back(&place);
    set_xattr(place.at("one"), "user.mine", b"x").unwrap();
    place.verb("restore", &[]).expect(0);
    place.verb("restore", &["--before"]).expect(0);
    let path = place.at("two").into_os_string().into_encoded_bytes();
    let now = scan(&place.work)[&path].present.xattrs.clone();
    let names: Vec<_> = now.into_keys().collect();
    assert_eq!(names, [b"user.kept".to_vec(), b"user.mine".to_vec()]);
}

#[test]
fn names_that_got_one_new_file_are_separate_files_again() {
    for (before, script) in [
        ("echo x > f; cp f g", "cp f n; mv n f; ln -f f g"),
        ("echo x > f; cp f g; cp f k", "cp f n; mv n f; ln -f f g; ln -f f k"),
        ("echo x > f; cp f g; ln g k", "cp f n; mv n f; ln -f f g; ln -f f k"),
        ("echo x > f; ln f h; cp f g", "stat h; cp f n; mv n f; ln -f f g; ln f a"),
    ] {
        let place = Place::new();
        place.prepare(before);
        let before = nodes(&place);
        record_keeping(&place, "undo", script);
        let after = nodes(&place);
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(nodes(&place), before, "{script}");
        place.verb("restore", &[]).expect(0);
        assert_eq!(nodes(&place), after, "{script}");
    }
}

/// What can have several names; devices take root.
const KINDS: [&str; 5] = ["file", "symlink", "fifo", "socket", "device"];

/// Makes a file of a kind; the `second` one is another one than the first.
fn make(place: &Place, kind: &str, name: &str, second: bool) {
    let path = place.at(name);
    match kind {
        "file" => fs::write(&path, name).unwrap(),
        "symlink" => return symlink(if second { "there" } else { "here" }, path).unwrap(),
        "socket" => drop(UnixListener::bind(&path).unwrap()),
        "fifo" => drop(place.prepare(&format!("mkfifo {name}"))),
        _ => drop(place.prepare(&format!("mknod {name} c 1 {}", if second { 5 } else { 3 }))),
    }
    chmod(path, if second { 0o640 } else { 0o600 });
}

/// Type, mode, target and device of each name, and the first name of the same file.
fn nodes(place: &Place) -> BTreeMap<String, (u32, Option<String>, u64, String)> {
    let names = fs::read_dir(&place.work).unwrap().map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    let stat = |name: &String| fs::symlink_metadata(place.at(name)).unwrap();
    let node = |name: &String| {
        let found = stat(name);
        let first = names.iter().find(|other| stat(other).ino() == found.ino()).unwrap();
        let target = fs::read_link(place.at(name)).ok().map(|to| to.to_str().unwrap().to_owned());
        (name.clone(), (found.mode(), target, found.rdev(), first.clone()))
    };
    names.iter().map(node).collect()
}

/// `a` and `b` are one file, `c` is another one.
#[test]
fn hard_links_of_every_kind_are_undone_and_redone() {
    let scripts = [
        "ln -fP a c",
        "ln -fP c a",
        "ln -fP c a; ln -fP c b",
        "rm a b",
        "rm *",
        "mv a d; rm b",
        "mv c a",
        "ln -P a d; ln -P c e; rm b",
        "rm a; mkdir a",
        "stat b; ln -fP c a; rm b; ln -P a b; rm c",
    ];
    for kind in KINDS {
        if kind == "device" && !needs_root("to make devices") {
            continue;
        }
        for (script, keep) in scripts.iter().flat_map(|script| LEVELS.map(|keep| (*script, keep))) {
            let place = Place::new();
            make(&place, kind, "a", false);
            fs::hard_link(place.at("a"), place.at("b")).unwrap();
            make(&place, kind, "c", true);
            let what = format!("{kind}, --keep {keep}: {script}");
            let before = nodes(&place);
            record_keeping(&place, keep, script);
            let after = nodes(&place);
            for _ in 0..2 {
                let back = place.verb("restore", &["--before"]).expect(0);
                // Without the other name of the file, which the command did not use, this can only be told.
                if back.stderr.contains("files of their own") {
                    break;
                }
                assert_eq!(nodes(&place), before, "{what}");
                place.verb("restore", &[]).expect(0);
                assert_eq!(nodes(&place), after, "{what}");
            }
        }
    }
}
