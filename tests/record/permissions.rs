//! What permissions keep from the command, or from the recorder.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use agent_snapshot::snapshot::WarningKind;

use crate::support::{NOBODY, Place, User, is_root, lost, needs_root, stderr};

#[test]
fn unreadable_file_is_recorded_as_existence() {
    let place = Place::of(User::ordinary());
    place.write("secret", "secret");
    fs::set_permissions(place.at("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    let (output, snapshot) = place.record_any("cat secret");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(place.recorded(&snapshot), ["secret existence"]);
    assert!(snapshot.header().complete);
}

#[test]
fn root_without_capabilities_reads_nothing_of_others() {
    let place = Place::new();
    // Dropped from the bounding set, they are gone after the exec: prctl(2), PR_CAPBSET_DROP.
    let drop = "syscall(157, 24, 1, 0, 0, 0); syscall(157, 24, 2, 0, 0, 0); exec";
    if !needs_root("capabilities") || !place.can_run(&["perl", "-e", "exit"]) {
        return;
    }
    let file = place.at("f");
    fs::write(&file, "of another\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let (output, snapshot) = place.record_any(&format!("perl -e '{drop} \"cat\", \"f\"'"));
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
    assert_eq!(place.recorded(&snapshot), ["f existence"]);
}

#[test]
fn reads_in_a_user_namespace_follow_its_permissions() {
    // unshare(2), CLONE_NEWUSER; and who is root in it.
    let unshare = "use strict; syscall(272, 0x10000000) == 0 or exit 77;
        sub put { open(my $f, '>', $_[0]) or die; print $f $_[1]; close $f }
        put('/proc/self/setgroups', 'deny'); put('/proc/self/uid_map', \"0 $< 1\");
        put('/proc/self/gid_map', '0 '.(0+$().' 1');";
    let place = Place::new();
    let file = place.at("f");
    fs::write(&file, "content\n").unwrap();
    let root = is_root();
    // Root loses its power over the files of others, another user gets some over its own.
    fs::set_permissions(&file, fs::Permissions::from_mode(if root { 0o600 } else { 0 })).unwrap();
    if root {
        chown(&file, Some(1000), Some(1000)).unwrap();
    }
    if !place.can_run(&["perl", "-e", unshare]) {
        return;
    }
    let open = format!("{unshare} print open(my $g, \"<\", \"f\") ? 1 : 0");
    let (output, snapshot) = place.record_any(&format!("perl -e '{}'", open.replace('\'', "'\\''")));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, if root { "0" } else { "1" });
    assert_eq!(place.recorded(&snapshot), [if root { "f existence" } else { "f read" }]);
}

#[test]
fn file_in_a_closed_directory_is_reported() {
    let place = Place::of(User::ordinary());
    place.write("d/read", "content\n");
    let output = place.record_with(&[], "cat d/read; test -e d/asked; echo made > d/made; chmod 0 d");
    assert!(output.status.success(), "{output:?}");
    fs::set_permissions(place.at("d"), fs::Permissions::from_mode(0o755)).unwrap();
    let snapshot = place.snapshot();
    assert!(place.file(&snapshot, "d/read").after.present().is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let warning = &snapshot.header().warnings[0];
    assert!(warning.detail.contains("d/made"), "{warning:?}");
}
