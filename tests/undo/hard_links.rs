//! Files that are written in place, since something else refers to the same inode.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

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
