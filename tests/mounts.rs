//! Mounts that the tree makes in the namespace that it was started in.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use agent_snapshot::snapshot::WarningKind;

use crate::support::{BINARY, Place, bytes, is_root, lost};

/// What the environment of all processes of one recording has.
const MARK: &str = "AGENT_SNAPSHOT_TEST_MOUNTS";

/// Whether the test can mount; if not, the reason of a skip is printed.
fn can_mount(place: &Place) -> bool {
    if !is_root("a mount") {
        return false;
    }
    let mut command = Command::new("unshare");
    place.isolate(&mut command);
    command.args(["-m", "mount", "-t", "tmpfs", "tmpfs", "."]);
    let works = command.output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: mount is not allowed here");
    }
    works
}

/// Records `script` in a mount namespace that the recorder itself is in, so that nothing stays mounted. All
/// of it is killed when it does not end within a minute.
fn record_in_own_namespace(place: &Place, options: &[&str], script: &str) -> Output {
    let mark = place.base().to_str().unwrap();
    let mut command = Command::new("unshare");
    place.isolate(&mut command);
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

/// Kills every process with the mark: a process that waits for a file system ends with who serves that.
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
fn a_file_system_that_the_tree_serves_holds_nobody() {
    // In the namespace of the recorder, and in one that the command makes.
    for (mechanism, shell) in
        [("auto", "sh"), ("stops", "sh"), ("auto", "unshare -m sh"), ("stops", "unshare -m sh")]
    {
        let place = Place::new();
        if !can_mount(&place) {
            return;
        }
        if Command::new("bindfs").arg("--version").output().is_err() || !fs::exists("/dev/fuse").unwrap() {
            return println!("skipped: bindfs is missing");
        }
        for name in ["src", "mnt"] {
            fs::create_dir(place.work.join(name)).unwrap();
        }
        fs::write(place.work.join("src/f"), "content\n").unwrap();
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
