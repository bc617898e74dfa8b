//! Files that the command, or the recorder, may not read.

use std::fs;
use std::os::unix::fs::chown;

use agent_snapshot::snapshot::{BlobOmitted, State, WarningKind};

use crate::support::{
    NOBODY, Place, User, assert_same, bytes, chmod, describe, is_root, lost, needs_root, numbered, scan,
    stderr,
};

#[test]
fn unreadable_file_is_recorded_as_existence() {
    let place = Place::of(User::ordinary());
    place.write("secret", "secret");
    chmod(place.at("secret"), 0o000);
    let (output, snapshot) = place.record_any("cat secret");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(place.recorded(&snapshot), ["secret existence"]);
    assert!(snapshot.header().complete);
}

#[test]
fn root_without_capabilities_reads_nothing_of_others() {
    let place = Place::new();
    // Capabilities dropped from the bounding set are lost at the exec: prctl(2), PR_CAPBSET_DROP.
    let drop = numbered("syscall(SYS_prctl, 24, 1, 0, 0, 0); syscall(SYS_prctl, 24, 2, 0, 0, 0); exec");
    if !needs_root("capabilities") || !place.can_run(&["perl", "-e", "exit"]) {
        return;
    }
    let file = place.at("f");
    fs::write(&file, "of another\n").unwrap();
    chmod(&file, 0o600);
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let (output, snapshot) = place.record_any(&format!("perl -e '{drop} \"cat\", \"f\"'"));
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
    assert_eq!(place.recorded(&snapshot), ["f existence"]);
}

#[test]
fn program_with_a_set_id_bit_reads_with_the_rights_that_it_gives() {
    let place = Place::new();
    if !needs_root("chown(2)") {
        return;
    }
    place.prepare("cp \"$(command -v cat)\" own; echo content >f");
    for (name, mode) in [("own", 0o2755), ("f", 0o040)] {
        chown(place.at(name), Some(NOBODY), Some(NOBODY)).unwrap();
        chmod(place.at(name), mode);
    }
    // A root that reads by its user and groups alone. Without these two capabilities, a set-ID bit has no effect in a
    // recording.
    let capabilities = ["setpriv", "--bounding-set=-all,+sys_admin,+sys_ptrace", "--inh-caps=-all"];
    let groups = ["--regid=0", "--clear-groups"];
    let alone = [&capabilities[..], &groups, &["./own", "f"]].concat();
    if !place.can_run(&alone) {
        return;
    }
    let mut command = place.program(alone[0]);
    let recorder = place.recording();
    command.args(&alone[1..5]).arg(recorder.get_program()).args(recorder.get_args());
    // Another user's file is recorded only if a rule names it.
    let output = command.args(["--deny-read", "f", "sh", "-c", "./own f; true"]).output().unwrap();
    assert_eq!(output.stdout, b"content\n", "{output:?}");
    assert_eq!(place.recorded(&place.snapshot()), ["f read"]);
}

#[test]
fn reads_in_a_user_namespace_follow_its_permissions() {
    // unshare(2), CLONE_NEWUSER; and who is root in it.
    let unshare = numbered(
        "use strict; syscall(SYS_unshare, 0x10000000) == 0 or exit 77;
        sub put { open(my $f, '>', $_[0]) or die; print $f $_[1]; close $f }
        put('/proc/self/setgroups', 'deny'); put('/proc/self/uid_map', \"0 $< 1\");
        put('/proc/self/gid_map', '0 '.(0+$().' 1');",
    );
    let place = Place::new();
    let file = place.at("f");
    fs::write(&file, "content\n").unwrap();
    let root = is_root();
    // Root loses its power over the files of others, another user gets some over its own.
    chmod(&file, if root { 0o600 } else { 0 });
    if root {
        chown(&file, Some(1000), Some(1000)).unwrap();
    }
    if !place.can_run(&["perl", "-e", &unshare]) {
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
    let output =
        place.record_with(&[], "cat d/read; test -e d/asked; exec 3> d/made; chmod 0 d; echo made >&3");
    assert!(output.status.success(), "{output:?}");
    chmod(place.at("d"), 0o755);
    let snapshot = place.snapshot();
    assert!(place.file(&snapshot, "d/read").after.present().is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let warning = &snapshot.header().warnings[0];
    assert!(warning.detail.contains("d/made"), "{warning:?}");
}

#[test]
fn what_was_changed_in_a_directory_before_it_was_closed_is_known() {
    for (mode, closing) in [
        ("000", "chmod 000 d"),
        ("644", "perl -e 'chmod 0644, q(d)'"),
        ("040", "perl -e 'open(my $d, q(<), q(d)); chmod 040, $d'"),
    ] {
        let place = Place::of(User::ordinary());
        place.prepare(
            "mkdir -p d/sub/deep; for f in changed mode removed sub/deep/file; do echo old >d/$f; done",
        );
        let before = describe(&scan(&place.work), |_| false);
        let script = format!(
            "echo new >d/changed; echo new >d/sub/deep/file; echo made >d/made; rm d/removed; chmod 600 d/mode
            chmod 0 d/sub; {closing}"
        );
        let snapshot = place.record(&script);
        let after = |name: &str| place.file(&snapshot, name).after.present().cloned().unwrap();
        assert_eq!(lost(&snapshot), []);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/made"), false), b"made\n");
        assert_eq!(after("d/mode").mode & 0o777, 0o600);
        assert_eq!(after("d/sub").mode & 0o777, 0);
        assert_eq!(after("d").mode & 0o777, u32::from_str_radix(mode, 8).unwrap());
        place.verb("restore", &["--before"]).expect(0);
        assert_same(&describe(&scan(&place.work), |_| false), &before, closing);
        place.verb("restore", &[]).expect(0);
        for closed in ["d", "d/sub"] {
            chmod(place.at(closed), 0o755);
        }
        let read = |name| fs::read_to_string(place.at(name)).unwrap();
        assert_eq!(
            [read("d/changed"), read("d/sub/deep/file"), read("d/made")],
            ["new\n", "new\n", "made\n"]
        );
    }
}

#[test]
fn files_in_an_unsearchable_directory_are_not_deleted() {
    let place = Place::of(User::ordinary());
    place.prepare("mkdir d; for f in changed read removed; do echo old >d/$f; done");
    let script =
        "exec 3>d/changed 4>d/made; cat d/read; rm d/removed; chmod 0 d; echo new >&3; cat d/read; true";
    let snapshot = place.record(script);
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let changed = place.file(&snapshot, "d/changed");
    assert_eq!(bytes(&snapshot, changed, true), b"old\n");
    assert_eq!(changed.after.present().unwrap().blob_omitted, Some(BlobOmitted::Unreadable));
    let read = place.file(&snapshot, "d/read");
    assert_eq!(read.before, read.after);
    assert_eq!(place.file(&snapshot, "d/removed").after, State::Absent { tombstone: true });
    // Nothing is known of what is there now.
    assert!(snapshot.find(&place.path("d/made")).is_none());
    assert_eq!(snapshot.header().unseen, [place.path("d/made")]);

    let shown = place.verb("show", &[]).stdout;
    let deleted = shown.split("\n\n").find(|part| part.starts_with("Deleted")).unwrap();
    assert!(deleted.contains("d/removed") && !deleted.contains("d/changed"), "{shown}");

    let undone = place.verb("restore", &["--before", "--force"]);
    chmod(place.at("d"), 0o700);
    for name in ["changed", "read", "removed"] {
        let content = fs::read_to_string(place.at("d").join(name));
        assert_eq!(content.ok().as_deref(), Some("old\n"), "{name}: {undone:?}");
    }
}
