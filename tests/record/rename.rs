//! Renamed files and directories.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use agent_snapshot::snapshot::{FileRecord, Operation, Operations, Snapshot, State};

use crate::support::{Place, bytes, lost, shown};

#[test]
fn renamed_file_shares_its_content_until_written() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    for name in ["kept", "by-descriptor", "by-name", "by-link"] {
        fs::write(place.at("d").join(name), format!("1 {name}")).unwrap();
    }
    // All times are put back, and no size differs.
    let snapshot = place.record(
        "touch -r d/by-name t; exec 3<> d/by-descriptor; mv d e; printf 2 >&3; touch -r t /proc/self/fd/3; \
         printf 2 1<> e/by-name; touch -r t e/by-name; \
         ln e/by-link link; printf 2 1<> link; touch -r t link; rm link",
    );
    for (name, after) in [
        ("kept", "1 kept"),
        ("by-descriptor", "2 by-descriptor"),
        ("by-name", "2 by-name"),
        ("by-link", "2 by-link"),
    ] {
        let former = place.file(&snapshot, format!("d/{name}"));
        let moved = place.file(&snapshot, format!("e/{name}"));
        assert_eq!(bytes(&snapshot, former, true), format!("1 {name}").as_bytes());
        assert_eq!(bytes(&snapshot, moved, false), after.as_bytes());
    }
    assert!(lost(&snapshot).is_empty());
}

#[test]
fn directory_renamed_out_of_an_ignored_place_is_recorded() {
    let place = Place::new();
    fs::create_dir_all(place.at("cache/d/sub")).unwrap();
    place.write("cache/d/sub/nested", "content\n");
    place.record_with(&["--ignore", place.at("cache").to_str().unwrap()], "mv cache/d d && cat d/sub/nested");
    let snapshot = place.snapshot();
    let nested = place.file(&snapshot, "d/sub/nested");
    assert_eq!(nested.before, State::Absent { tombstone: false });
    assert_eq!(bytes(&snapshot, nested, false), b"content\n");
}

#[test]
fn entries_of_a_renamed_directory_were_absent_before() {
    for _ in 0..20 {
        let place = Place::new();
        fs::create_dir(place.at("d")).unwrap();
        (0..20).for_each(|number| fs::write(place.at(format!("d/{number}")), "content\n").unwrap());
        let snapshot = place.record(
            "(until test -e e; do :; done; cat e/7 e/8 e/9 e/10 e/11 e/12) > /dev/null & sleep 0.01; mv d e; wait",
        );
        for number in 0..20 {
            let found = place.file(&snapshot, format!("e/{number}"));
            assert_eq!(found.before, State::Absent { tombstone: false }, "{number}");
            assert_eq!(found.operations.contains(Operation::Read), (7..13).contains(&number), "{number}");
        }
    }
}

#[test]
fn directory_of_the_snapshot_is_not_recorded_where_the_command_moves_it() {
    for (script, out, names) in [
        ("mv out moved; echo new > out", "moved", &["out"][..]),
        ("mkdir a; mv out a/; mv a b; mkdir out; echo new > out/f", "b/out", &["b", "out", "out/f"]),
    ] {
        let place = Place::new();
        let mut command = place.command();
        command.args(["--quiet", "--snapshot-dir", "out", "sh", "-c", script]).current_dir(&place.work);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        let snapshot = Snapshot::open(&place.at(out)).unwrap();
        let beneath = |record: &FileRecord| {
            Some(record.path.strip_prefix(place.work.as_os_str().as_bytes())?.get(1..)?.to_vec())
        };
        let is_there = |record: &&FileRecord| {
            matches!(record.after, State::Present(_)) && record.operations.intersects(Operations::CHANGES)
        };
        let recorded = snapshot.files().iter().filter(is_there).filter_map(beneath);
        let recorded: Vec<_> = recorded.map(|name| String::from_utf8(name).unwrap()).collect();
        assert_eq!(recorded, names, "{script}");
    }
}
