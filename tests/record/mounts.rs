//! Mounts that the tree makes in the namespace that it was started in.

use std::fs;
use std::process::{Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use agent_snapshot::snapshot::WarningKind;

use crate::support::{BINARY, Place, bytes, can_mount, has, lost};

/// What the environment of all processes of one recording has.
const MARK: &str = "AGENT_SNAPSHOT_TEST_MOUNTS";

/// Records `script` in a mount namespace that the recorder itself is in, so that nothing stays mounted. All
/// of it is killed when it does not end within a minute.
fn record_in_own_namespace(place: &Place, options: &[&str], script: &str) -> Output {
    let mark = place.base().to_str().unwrap();
    let mut command = place.program("unshare");
    command.args(["-m", BINARY, "--snapshot-dir"]).arg(&place.out).args(options);
    command.args(["sh", "-c", script]).env(MARK, mark).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let (ended, end) = channel::<()>();
    std::thread::scope(|scope| {
        let guard = scope.spawn(move || {
            let late = end.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout);
            if late {
                kill_marked(mark);
            }
            late
        });
        let output = child.wait_with_output().unwrap();
        drop(ended);
        assert!(!guard.join().unwrap(), "it did not end: {output:?}");
        output
    })
}

/// Kills every process with the mark: a process that waits for a filesystem ends with who serves that.
fn kill_marked(mark: &str) {
    let mark = format!("{MARK}={mark}");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
    }
}

#[test]
fn filesystem_served_by_a_tracee_does_not_deadlock() {
    // In the namespace of the recorder, and in one that the command makes.
    for (mechanism, shell) in
        [("auto", "sh"), ("stops", "sh"), ("auto", "unshare -m sh"), ("stops", "unshare -m sh")]
    {
        let place = Place::new();
        if !can_mount() {
            return;
        }
        if !has("bindfs") || !fs::exists("/dev/fuse").unwrap() {
            return;
        }
        for name in ["src", "mnt"] {
            fs::create_dir(place.at(name)).unwrap();
        }
        fs::write(place.at("src/f"), "content\n").unwrap();
        // Single-threaded, so that one call of the daemon holds up all others.
        let script = "bindfs --no-allow-other -s src mnt || exit; cat mnt/f; cd mnt; ls; echo new >g; cat ../src/g <f; cd ..
            mv mnt/g mnt/h; ln -s h mnt/l; cat mnt/l; cp /bin/true mnt/t; mnt/t; cat mnt/no/such; umount mnt && echo unmounted";
        let script = format!("exec {shell} -c '{script}'");
        let output = record_in_own_namespace(&place, &["--mechanism", mechanism], &script);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "content\nf\nnew\nnew\nunmounted\n",
            "{mechanism}: {output:?}"
        );
        let snapshot = place.snapshot();
        // What the daemon does is seen, whoever asked for it.
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "src/h"), false), b"new\n");
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "src/f"), true), b"content\n");
        let recorded = place.recorded(&snapshot);
        assert!(!recorded.iter().any(|record| record.starts_with("mnt/")), "{recorded:?}");
        assert_eq!(lost(&snapshot), [WarningKind::MountNamespace], "{mechanism} {shell}");
    }
}

/// Records `script` in a namespace of its own, and then undoes it in the one of the test.
fn record_and_undo(place: &Place, script: &str) -> agent_snapshot::snapshot::Snapshot {
    let output = record_in_own_namespace(place, &[], script);
    assert!(output.status.success(), "{output:?}");
    let snapshot = place.snapshot();
    place.verb("restore", &["--before"]).expect(0);
    snapshot
}

#[test]
fn content_of_an_unmounted_filesystem_is_not_that_of_the_mount_point() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    for name in ["d", "e", "late"] {
        fs::create_dir(place.at(name)).unwrap();
        fs::write(place.at(name).join("f"), "precious\n").unwrap();
    }
    let snapshot = record_and_undo(
        &place,
        "cat e/f; mount -t tmpfs x d; echo over >d/f; echo other >d/g; umount d
         mount -t tmpfs x e; echo over >e/f; umount e; echo changed >e/f
         cat late/f; mount -t tmpfs x late; rm -f late/f; echo done >result",
    );
    for name in ["d/f", "e/f", "late/f"] {
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), "precious\n", "{name}");
    }
    assert!(!place.at("result").exists());
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    let recorded = place.recorded(&snapshot);
    assert!(!recorded.iter().any(|record| record.starts_with("d/")), "{recorded:?}");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "e/f"), true), b"precious\n");
    let late = place.file(&snapshot, "late/f");
    assert_eq!(late.before, late.after);
}

#[test]
fn filesystem_with_a_reused_device_number_is_another() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    fs::create_dir(place.at("d")).unwrap();
    // It stays mounted, as long as its namespace does.
    let output = record_in_own_namespace(
        &place,
        &[],
        "mount -t proc x d && stat -c %d d && cat d/version && umount d && mount -t tmpfs x d && stat -c %d d && echo bytes >d/f",
    );
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = said.lines();
    if lines.next() != lines.last() {
        return println!("skipped: the device number was not reused");
    }
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"bytes\n");
}

#[test]
fn file_with_two_names_by_a_bind_mount_is_reported() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    for name in ["a", "b"] {
        fs::create_dir(place.at(name)).unwrap();
    }
    fs::write(place.at("a/f"), "old\n").unwrap();
    record_in_own_namespace(&place, &[], "cat a/f; mount --bind a b; cat b/f");
    assert_eq!(lost(&place.snapshot()), [], "nothing was changed by a name that is not recorded");
    record_in_own_namespace(&place, &[], "echo new >a/f; mount --bind a b; echo newer >b/f");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    let detail = &snapshot.header().warnings[0].detail;
    assert!(detail.contains("a/f") && detail.contains("b/f"), "{detail}");
}

#[test]
fn overlay_mounted_by_the_command_is_reported() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    let script = "mkdir low up work m && mount -t tmpfs tmpfs . && cd \"$PWD\" && mkdir low up work m && \
        mount -t overlay overlay -o lowerdir=low,upperdir=up,workdir=work m && echo new > m/f";
    if !Place::new().can_run(&["unshare", "-m", "sh", "-c", script]) {
        return;
    }
    let output = record_in_own_namespace(&place, &[], script);
    assert!(output.status.success(), "{output:?}");
    let snapshot = place.snapshot();
    let told = snapshot.header().warnings.iter().any(|warning| {
        warning.lost && warning.kind == WarningKind::MountNamespace && warning.detail.contains("overlay")
    });
    assert!(told, "{:?}", snapshot.header().warnings);
}
