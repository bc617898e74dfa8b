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
fn what_comes_out_of_a_place_that_is_left_out_is_recorded_where_it_comes() {
    let place = Place::new();
    std::fs::create_dir_all(place.work.join("cache/d/sub")).unwrap();
    std::fs::write(place.work.join("cache/d/sub/nested"), "content\n").unwrap();
    place.record_with(
        &["--ignore", place.work.join("cache").to_str().unwrap()],
        "mv cache/d d && cat d/sub/nested",
    );
    let snapshot = place.snapshot();
    let nested = place.file(&snapshot, "d/sub/nested");
    assert_eq!(nested.before, State::Absent { tombstone: false });
    assert_eq!(bytes(&snapshot, nested, false), b"content\n");
}

#[test]
fn before_states_outlive_several_processes_that_destroy_them_at_once() {
    let place = Place::new();
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    names.iter().for_each(|name| std::fs::write(place.work.join(name), format!("before {name}\n")).unwrap());
    let snapshot =
        place.record("for f in f*; do (echo a > $f) & (echo b > $f) & (rm -f $f) & (cat $f) & done; wait");
    for name in &names {
        assert_eq!(
            bytes(&snapshot, place.file(&snapshot, name), true),
            format!("before {name}\n").as_bytes()
        );
    }
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn what_another_process_finds_in_a_directory_that_just_came_was_not_there_before() {
    for _ in 0..20 {
        let place = Place::new();
        std::fs::create_dir(place.work.join("d")).unwrap();
        (0..20)
            .for_each(|number| std::fs::write(place.work.join(format!("d/{number}")), "content\n").unwrap());
        let snapshot = place.record(
            "(until test -e e; do :; done; cat e/7 e/8 e/9 e/10 e/11 e/12) > /dev/null & sleep 0.01; mv d e; wait",
        );
        for number in 0..20 {
            let found = place.file(&snapshot, format!("e/{number}"));
            assert_eq!(found.before, State::Absent { tombstone: false }, "{number}");
        }
    }
}

#[test]
fn a_link_that_gets_another_name_leads_on_by_it() {
    let place = Place::new();
    std::fs::create_dir(place.work.join("d")).unwrap();
    std::fs::write(place.work.join("d/f"), "content\n").unwrap();
    std::os::unix::fs::symlink("d", place.work.join("l")).unwrap();
    let snapshot =
        place.record(r#"perl -e '-e "n/f"; link("l", "n") or die; open(my $f, "<", "n/f") or die'"#);
    assert!(place.recorded(&snapshot).contains(&"d/f read".to_owned()), "{:?}", place.recorded(&snapshot));
}

#[test]
fn what_was_changed_by_a_name_for_a_moment_was_changed_by_its_own() {
    let place = Place::new();
    std::fs::write(place.work.join("f"), "before\n").unwrap();
    let snapshot = place.record("ln f t; echo more >> t; chmod 600 t; rm t");
    assert!(
        place.recorded(&snapshot).contains(&"f write+existence+metadata".to_owned()),
        "{:?}",
        place.recorded(&snapshot)
    );
}

#[test]
fn a_directory_that_is_listed_after_it_has_changed_had_the_entries_of_before() {
    let place = Place::new();
    std::fs::create_dir(place.work.join("d")).unwrap();
    for name in ["kept", "moved", "removed", "again"] {
        std::fs::write(place.work.join("d").join(name), "").unwrap();
    }
    let snapshot = place.record("cd d; touch new; rm removed again; mv moved ../elsewhere; touch again; ls");
    let entries = ["again", "kept", "moved", "removed"].map(|name| name.as_bytes().to_vec());
    let digest = agent_snapshot::snapshot::live::digest_of_entries(&entries);
    let before = place.file(&snapshot, "d").before.clone();
    assert_eq!(before.present().unwrap().entries_digest, Some(digest));
}

#[test]
fn the_attributes_of_a_file_are_there_as_long_as_one_of_its_names() {
    let place = Place::new();
    std::fs::write(place.work.join("p"), "content\n").unwrap();
    std::fs::hard_link(place.work.join("p"), place.work.join("q")).unwrap();
    if rustix::fs::setxattr(place.work.join("p"), "user.a", b"4", rustix::fs::XattrFlags::empty()).is_err() {
        return println!("skipped: no extended attributes here");
    }
    let snapshot = place.record("stat q; rm p");
    let q = place.file(&snapshot, "q");
    let xattrs = |state: &State| state.present().unwrap().xattrs.clone();
    assert_eq!(xattrs(&q.after), xattrs(&q.before));
    assert_eq!(xattrs(&q.after).len(), 1);
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
