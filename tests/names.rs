//! Files by their names: several, none, and names that a link has come between.

use std::os::unix::fs::PermissionsExt;

use agent_snapshot::snapshot::{State, WarningKind};

use crate::support::{Place, bytes, is_root, lost};

#[test]
fn bytes_destroyed_through_a_new_name_are_kept_for_the_old_one() {
    let place = Place::new();
    std::fs::write(place.work.join("old"), "before\n").unwrap();
    let snapshot = place.record("ln old new && echo after > new");
    let old = place.file(&snapshot, "old");
    assert_eq!(bytes(&snapshot, old, true), b"before\n");
    assert_eq!(bytes(&snapshot, old, false), b"after\n");
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn a_name_that_is_met_after_the_file_has_changed_has_its_first_state() {
    let place = Place::new();
    std::fs::write(place.work.join("one"), "before\n").unwrap();
    std::fs::hard_link(place.work.join("one"), place.work.join("two")).unwrap();
    let snapshot = place.record("chmod 600 one && echo after >> one && rm one && mv two three");
    let two = place.file(&snapshot, "two");
    assert_eq!(bytes(&snapshot, two, true), b"before\n");
    assert_eq!(two.before, place.file(&snapshot, "one").before);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "three"), false), b"before\nafter\n");
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn a_file_whose_times_were_set_before_it_was_read_is_no_gap() {
    let place = Place::new();
    std::fs::write(place.work.join("f"), "content\n").unwrap();
    let snapshot = place.record("touch -h -d @1000000000 f && cat f");
    let file = place.file(&snapshot, "f");
    assert_eq!(bytes(&snapshot, file, true), b"content\n");
    assert_eq!(bytes(&snapshot, file, false), b"content\n");
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn nothing_is_after_where_a_directory_on_the_way_has_become_a_link() {
    let place = Place::new();
    std::fs::create_dir(place.work.join("d")).unwrap();
    std::fs::write(place.work.join("f"), "content\n").unwrap();
    let snapshot = place.record("test -e d/f || rmdir d && ln -s . d");
    assert_eq!(place.file(&snapshot, "d/f").after, State::Absent { tombstone: false });
}

#[test]
fn the_directory_above_a_removed_one_has_its_name() {
    let place = Place::new();
    std::fs::create_dir(place.work.join("d")).unwrap();
    let snapshot = place.record("cd d && rmdir ../d && echo 1 > ../one && echo 2 > /proc/self/cwd/../two");
    for name in ["one", "two"] {
        assert!(place.file(&snapshot, name).after.present().is_some());
    }
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn a_missing_directory_in_a_mount_namespace_of_its_own_is_missing_here_too() {
    if !is_root("a mount namespace") {
        return;
    }
    if !std::process::Command::new("unshare")
        .args(["-m", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return println!("skipped: no mount namespace can be made");
    }
    let place = Place::new();
    let snapshot = place.record("unshare -m sh -c 'cat absent/d/f; mkdir absent; : > absent/g' 2> /dev/null");
    assert_eq!(place.file(&snapshot, "absent/d/f").after, State::Absent { tombstone: false });
    assert!(place.file(&snapshot, "absent/g").after.present().is_some());
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn what_can_not_be_looked_at_in_the_end_is_told() {
    let place = Place::new();
    std::fs::create_dir(place.work.join("d")).unwrap();
    std::fs::write(place.work.join("d/read"), "content\n").unwrap();
    let mut command = place.command();
    // Root looks everywhere.
    if nix::unistd::geteuid().is_root() {
        for path in [place.base(), &place.work, &place.work.join("d"), &place.work.join("d/read")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        std::os::unix::process::CommandExt::gid(&mut command, 65534);
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
    }
    let script = "cat d/read; test -e d/asked; echo made > d/made; chmod 0 d";
    let output = command.arg("--snapshot-dir").arg(&place.out).args(["sh", "-c", script]).output();
    let Ok(output) = output else {
        return println!("skipped: an ordinary user can't execute the binary");
    };
    assert!(output.status.success(), "{output:?}");
    std::fs::set_permissions(place.work.join("d"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let snapshot = place.snapshot();
    assert!(place.file(&snapshot, "d/read").after.present().is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let warning = &snapshot.header().warnings[0];
    assert!(warning.detail.contains("d/made"), "{warning:?}");
}
