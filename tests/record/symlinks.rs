//! Paths through symlinks and the magic links of procfs.

use std::fs;
use std::os::unix::fs::symlink;

use agent_snapshot::snapshot::State;

use crate::support::{Place, bytes, lost};

#[test]
fn directory_replaced_by_a_symlink_leaves_nothing_at_the_path() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    place.write("f", "content\n");
    let snapshot = place.record("test -e d/f || rmdir d && ln -s . d");
    assert_eq!(place.file(&snapshot, "d/f").after, State::Absent { tombstone: false });
}

#[test]
fn hard_link_to_a_symlink_is_followed() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    place.write("d/f", "content\n");
    symlink("d", place.at("l")).unwrap();
    let snapshot =
        place.record(r#"perl -e '-e "n/f"; link("l", "n") or die; open(my $f, "<", "n/f") or die'"#);
    assert!(place.recorded(&snapshot).contains(&"d/f read".to_owned()), "{:?}", place.recorded(&snapshot));
}

#[test]
fn magic_links_of_procfs_resolve_to_the_file() {
    let place = Place::new();
    place.write("f", "content\n");
    for path in [
        "/proc/self/cwd/f",
        "/usr/..$PWD/f",
        "/proc/$$/cwd/f",
        "/proc/self/root$PWD/f",
        "/dev/fd/7",
        "/proc/$$/fd/7",
    ] {
        let snapshot = place.record(&format!("exec 7> opened; echo x > {path}; cat f 2> /dev/null"));
        let name = if path.ends_with('7') { "opened" } else { "f" };
        assert_eq!(bytes(&snapshot, place.file(&snapshot, name), false), b"x\n", "{path}");
        assert_eq!(lost(&snapshot), [], "{path}");
    }
}
