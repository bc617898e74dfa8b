//! Ways around a list of path calls: each is closed, or told.

use std::fs;
use std::process::{Command, Output};

use agent_snapshot::snapshot::{Snapshot, WarningKind};

use crate::support::{Place, bytes, is_root, lost};

/// Whether a command succeeds here; if not, the reason of a skip is printed.
fn works(place: &Place, command: &[&str]) -> bool {
    let mut probe = Command::new(command[0]);
    place.isolate(&mut probe);
    let works = probe.args(&command[1..]).output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: {command:?} does not work here");
    }
    works
}

/// Records a script that may be refused something, and reads the snapshot.
fn record(place: &Place, script: &str) -> (Output, Snapshot) {
    let output = place.record_with(&[], script);
    (output, place.snapshot())
}

#[test]
fn names_of_another_mount_namespace_are_recorded_only_where_they_are_ours() {
    let place = Place::new();
    if !works(&place, &["unshare", "-rm", "true"]) {
        return;
    }
    fs::create_dir(place.work.join("d")).unwrap();
    fs::write(place.work.join("d/f"), "below\n").unwrap();
    fs::write(place.work.join("f"), "ours\n").unwrap();
    // What is absent there and here loses nothing, though its directory is absent, too.
    let (_, snapshot) = record(&place, "unshare -rm sh -c 'cat f; test -e no/such/file'");
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["f read", "no/such/file existence"]);
    let script = "unshare -rm sh -c 'mount -t tmpfs x d && echo hidden > d/f && ln -s ../f d/l &&
        echo more >> d/l && cat d/f && umount d && cat d/f'";
    let (output, snapshot) = record(&place, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hidden\nbelow\n");
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    let inner = place.file(&snapshot, "d/f");
    assert_eq!(bytes(&snapshot, inner, false), b"below\n");
    assert!(snapshot.find(&place.path("d/l")).is_none(), "a link that nobody sees out here");
}

#[test]
fn what_is_reached_below_a_mount_is_no_record_of_what_is_above() {
    if !is_root("a mount in the namespace of all") {
        return;
    }
    let place = Place::new();
    if !works(&place, &["unshare", "-m", "true"]) {
        return;
    }
    fs::create_dir(place.work.join("d")).unwrap();
    // The recorder itself is in the namespace, so that nothing stays mounted.
    let script =
        "cd d && mount -t tmpfs x . && echo below > f && cat f && echo above > ../d/f; cd ..; cat d/f";
    let mut command = Command::new("unshare");
    place.isolate(&mut command);
    command.args(["-m", crate::support::BINARY, "--snapshot-dir"]).arg(&place.out).args(["sh", "-c", script]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "below\nabove\n");
    // What the recording calls d/f is what is seen at its end: that of the mount.
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"above\n");
}

#[test]
fn a_pivoted_root_gives_no_file_a_wrong_name() {
    if !is_root("pivot_root") {
        return;
    }
    let place = Place::new();
    if !works(&place, &["unshare", "-m", "true"]) {
        return;
    }
    fs::create_dir_all(place.work.join("d/old")).unwrap();
    fs::write(place.work.join("d/f"), "content\n").unwrap();
    let script = "unshare -m sh -c 'mount --bind d d && cd d && pivot_root . old && cd / && echo pivoted > f;
        echo new > created; echo above > /old$0/up' $PWD";
    let (_, snapshot) = record(&place, script);
    assert_eq!(fs::read(place.work.join("d/created")).unwrap(), b"new\n");
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert!(snapshot.find(b"/f").is_none() && snapshot.find(b"/created").is_none());
}

#[test]
fn a_sandbox_of_bubblewrap_is_told() {
    let place = Place::new();
    let sandbox = "bwrap --ro-bind / / --bind . /mnt --proc /proc --dev /dev --unshare-all";
    if !works(&place, &["sh", "-c", &format!("{sandbox} true")]) {
        return;
    }
    fs::write(place.work.join("f"), "old\n").unwrap();
    let script =
        format!("{sandbox} sh -c 'cat f /proc/self/cwd/f; echo new > /mnt/f; cat /dev/stdin < /mnt/f'");
    let (output, snapshot) = record(&place, &script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "old\nold\nnew\n");
    // What was read by its own name has been changed by one that nobody has out here.
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange, WarningKind::MountNamespace]);
    assert!(snapshot.find(b"/mnt/f").is_none());
}

#[test]
fn detours_lead_to_the_file_that_they_lead_to() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
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

#[test]
fn a_directory_too_deep_to_be_named_is_told() {
    let place = Place::new();
    let script =
        "n=$(printf '%0200d' 0); i=0; while [ $i -lt 25 ]; do mkdir $n && cd -P $n && i=$((i + 1)); done
        echo x > f; cat f";
    let (output, snapshot) = record(&place, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\n");
    assert_eq!(lost(&snapshot), [WarningKind::UnreadableTracee]);
}
