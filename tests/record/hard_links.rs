//! Files with several names.

use std::fs;
use std::process::Command;

use agent_snapshot::snapshot::{State, WarningKind};

use crate::support::{BINARY, Place, bytes, lost, needs_root};

#[test]
fn content_overwritten_through_a_new_name_is_kept_for_the_old_one() {
    let place = Place::new();
    place.write("old", "before\n");
    let snapshot = place.record("ln old new && echo after > new");
    let old = place.file(&snapshot, "old");
    assert_eq!(bytes(&snapshot, old, true), b"before\n");
    assert_eq!(bytes(&snapshot, old, false), b"after\n");
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn name_seen_after_a_change_has_the_first_state() {
    let place = Place::new();
    place.write("one", "before\n");
    fs::hard_link(place.at("one"), place.at("two")).unwrap();
    let snapshot = place.record("chmod 600 one && echo after >> one && rm one && mv two three");
    let two = place.file(&snapshot, "two");
    assert_eq!(bytes(&snapshot, two, true), b"before\n");
    assert_eq!(two.before, place.file(&snapshot, "one").before);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "three"), false), b"before\nafter\n");
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn change_through_a_temporary_name_is_a_change_of_the_file() {
    let place = Place::new();
    place.write("f", "before\n");
    let snapshot = place.record("ln f t; echo more >> t; chmod 600 t; rm t");
    assert!(
        place.recorded(&snapshot).contains(&"f write+existence+metadata".to_owned()),
        "{:?}",
        place.recorded(&snapshot)
    );
}

#[test]
fn xattrs_stay_as_long_as_one_name() {
    let place = Place::new();
    place.write("p", "content\n");
    fs::hard_link(place.at("p"), place.at("q")).unwrap();
    if rustix::fs::setxattr(place.at("p"), "user.a", b"4", rustix::fs::XattrFlags::empty()).is_err() {
        return println!("skipped: the filesystem has no extended attributes");
    }
    let snapshot = place.record("stat q; rm p");
    let q = place.file(&snapshot, "q");
    let xattrs = |state: &State| state.present().unwrap().xattrs.clone();
    assert_eq!(xattrs(&q.after), xattrs(&q.before));
    assert_eq!(xattrs(&q.after).len(), 1);
}

/// Each command changes `f`, which has the name `other` beside it, and leaves it no name of those that the command used.
#[test]
fn change_that_only_an_unknown_name_keeps_is_a_gap() {
    let commands = [
        ("exec 3>>f; rm f; echo more >&3", true),
        ("echo more >> f; mv new f", true),
        ("chmod 600 f; rm f", true),
        ("echo more >> f", false),
        ("echo more >> f; ln f g; rm f", false),
        ("echo more >> f; mv f g", false),
        ("echo more >> f; rm f; stat other", false),
        ("echo more >> f; rm f other", false),
        ("rm f", false),
        ("mv new f", false),
    ];
    for (command, is_gap) in commands {
        for keep in ["all", "undo"] {
            let place = Place::new();
            place.write("f", "before\n");
            place.write("new", "new\n");
            fs::hard_link(place.at("f"), place.at("other")).unwrap();
            place.record_with(&["--keep", keep], command);
            let found = lost(&place.snapshot());
            let expected: &[WarningKind] = if is_gap { &[WarningKind::ContentOmitted] } else { &[] };
            assert_eq!(found, expected, "{command}, {keep}");
        }
    }
}

/// An overlay copies a file of its lower layer alone, whatever other names that has.
#[test]
fn change_of_a_file_that_an_overlay_copies_is_no_gap() {
    if !needs_root("an overlay") {
        return;
    }
    for change in ["echo more >> f", "echo more >> f; rm f", "chmod 600 f", "chmod 600 f; rm f"] {
        let place = Place::new();
        place.prepare("mkdir low up internal m; echo before > low/f; ln low/f low/other");
        let script = "mount -t overlay x -o lowerdir=low,upperdir=up,workdir=internal m; cd m; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-euc", script, "sh", BINARY, "--snapshot-dir"]).arg(&place.out);
        place.isolate(&mut command);
        let output = command.args(["sh", "-c", change]).current_dir(&place.work).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(lost(&place.snapshot()), [], "{change}");
    }
}
