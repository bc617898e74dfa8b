//! Processes in a mount namespace of their own, sandboxes among them.

use std::fs;

use agent_snapshot::snapshot::{State, WarningKind};

use crate::support::{BINARY, Place, bytes, can_mount, lost, stderr};

#[test]
fn directory_missing_in_a_foreign_mount_namespace_loses_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let snapshot = place.record("unshare -m sh -c 'cat absent/d/f; mkdir absent; : > absent/g' 2> /dev/null");
    assert_eq!(place.file(&snapshot, "absent/d/f").after, State::Absent { tombstone: false });
    assert!(place.file(&snapshot, "absent/g").after.present().is_some());
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn foreign_mount_namespace_is_recorded_only_where_names_agree() {
    let place = Place::new();
    if !place.can_run(&["unshare", "-rm", "true"]) {
        return;
    }
    fs::create_dir(place.at("d")).unwrap();
    place.write("d/f", "below\n");
    place.write("f", "ours\n");
    // What is absent there and here loses nothing, though its directory is absent, too.
    let (_, snapshot) = place.record_any("unshare -rm sh -c 'cat f; test -e no/such/file'");
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["f read", "no/such/file existence"]);
    let script = "unshare -rm sh -c 'mount -t tmpfs x d && echo hidden > d/f && ln -s ../f d/l &&
        echo more >> d/l && cat d/f && umount d && cat d/f'";
    let (output, snapshot) = place.record_any(script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hidden\nbelow\n");
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    let inner = place.file(&snapshot, "d/f");
    assert_eq!(bytes(&snapshot, inner, false), b"below\n");
    assert!(snapshot.find(&place.path("d/l")).is_none(), "a symlink of the other namespace");
}

#[test]
fn file_covered_by_a_mount_is_not_recorded() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    // The recorder itself is in the namespace, so that nothing stays mounted.
    let script =
        "cd d && mount -t tmpfs x . && echo below > f && cat f && echo above > ../d/f; cd ..; cat d/f";
    let mut command = place.program("unshare");
    command.args(["-m", BINARY, "--snapshot-dir"]).arg(&place.out).args(["sh", "-c", script]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "below\nabove\n");
    // The record of d/f is of the file that this path leads to at the end.
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"above\n");
}

#[test]
fn filesystem_can_be_unmounted_after_a_large_read() {
    let place = Place::new();
    if !place.can_run(&["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/tmp"]) {
        return;
    }
    fs::create_dir(place.at("d")).unwrap();
    let script = "mount -t tmpfs x d && head -c 30000000 /dev/zero > d/big && exec \"$@\"";
    let mut command = place.program("unshare");
    command.args(["-rm", "sh", "-c", script, "sh", BINARY, "--snapshot-dir"]);
    let output = command.arg(&place.out).args(["sh", "-c", "cat d/big > /dev/null; umount d"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/big"), true).len(), 30_000_000);
}

#[test]
fn pivot_root_gives_no_file_a_wrong_name() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.at("d/old")).unwrap();
    place.write("d/f", "content\n");
    let script = "unshare -m sh -c 'mount --bind d d && cd d && pivot_root . old && cd / && echo pivoted > f;
        echo new > created; echo above > /old$0/up' $PWD";
    let (_, snapshot) = place.record_any(script);
    assert_eq!(fs::read(place.at("d/created")).unwrap(), b"new\n");
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert!(snapshot.find(b"/f").is_none() && snapshot.find(b"/created").is_none());
}

#[test]
fn bubblewrap_sandbox_is_reported() {
    let place = Place::new();
    let sandbox = "bwrap --ro-bind / / --bind . /mnt --proc /proc --dev /dev --unshare-all";
    if !place.can_run(&["sh", "-c", &format!("{sandbox} true")]) {
        return;
    }
    place.write("f", "old\n");
    let script =
        format!("{sandbox} sh -c 'cat f /proc/self/cwd/f; echo new > /mnt/f; cat /dev/stdin < /mnt/f'");
    let (output, snapshot) = place.record_any(&script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "old\nold\nnew\n");
    // The file was read by its own name, and changed by a name that only the sandbox has.
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange, WarningKind::MountNamespace]);
    assert!(snapshot.find(b"/mnt/f").is_none());
}
