//! Processes that outlive the command, and the time limit.

use std::process::Stdio;

use agent_snapshot::snapshot::WarningKind;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::{Place, bytes, lost, program, status};

#[test]
fn survivors_are_awaited_killed_or_recorded_in_the_background() {
    let place = Place::new();
    let waited = place.record_with(&["--survivors", "wait"], "(read x < fifo; echo late > late) & exit 3");
    assert_eq!(waited.status.code(), Some(3));
    let place = Place::new();
    let output = place.record_with(&["--survivors", "kill"], "sleep 1000 & exit 4");
    assert_eq!(output.status.code(), Some(4));
    let snapshot = place.snapshot();
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::Survivors));
    assert!(snapshot.header().complete);
    // In the background: the survivor waits for a FIFO that this test writes to.
    let place = Place::new();
    mkfifo(&place.at("fifo"), Mode::S_IRWXU).unwrap();
    let mut command = place.recording();
    command.args(["--survivors", "background"]);
    command.args(["sh", "-c", "(read x < fifo; echo $x > late) <&- & exit 5"]).stdout(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(5));
    assert!(place.snapshot().header().running);
    place.write("fifo", "word\n");
    place.wait_for_lock();
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "late"), false), b"word\n");
}

#[test]
fn daemon_is_recorded_under_each_survivors_option() {
    for survivors in ["wait", "background", "kill"] {
        let place = Place::new();
        mkfifo(&place.at("go"), Mode::S_IRWXU).unwrap();
        let mut command = place.recording();
        command.args(["--survivors", survivors]);
        let mut child = command.arg(program("bypass")).arg("daemon").spawn().unwrap();
        if survivors != "wait" {
            assert!(child.wait().unwrap().success(), "{survivors}");
        }
        if survivors != "kill" {
            assert_eq!(place.out.join("manifest.json").exists(), survivors == "background");
            place.write("go", "x");
        }
        assert!(child.wait().unwrap().success(), "{survivors}");
        // The lock is free when the manifest is there.
        place.wait_for_lock();
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [], "{survivors}");
        if survivors == "kill" {
            assert!(snapshot.find(&place.path("late")).is_none());
            let warnings = &snapshot.header().warnings;
            assert!(warnings.iter().any(|warning| warning.kind == WarningKind::Survivors));
        } else {
            assert_eq!(bytes(&snapshot, place.file(&snapshot, "late"), false), b"from the daemon\n");
        }
    }
}

#[test]
fn timeout_ends_the_command_and_is_reported() {
    let place = Place::new();
    assert_eq!(
        status(&place.record_with(&["--timeout", "0.2"], "echo x > file; sleep 1000 & sleep 1000")),
        124
    );
    let snapshot = place.snapshot();
    assert!(snapshot.header().timed_out);
    assert_eq!(snapshot.header().exit_status, 124);
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::Timeout));
    place.file(&snapshot, "file");
}

#[test]
fn timeout_ends_a_stopped_command() {
    let place = Place::new();
    assert_eq!(status(&place.record_with(&["--timeout", "1s"], "kill -STOP $$; exec sleep 1000")), 124);
    assert!(place.snapshot().header().timed_out);
}

#[test]
fn timeout_does_not_end_background_survivors() {
    let place = Place::new();
    let options = ["--survivors", "background", "--timeout", "0.3"];
    assert_eq!(
        status(&place.record_with(&options, "(sleep 1; echo late > file) > /dev/null 2>&1 & exit 3")),
        3
    );
    // The lock is free when the manifest is there.
    place.wait_for_lock();
    let snapshot = place.snapshot();
    assert_eq!((snapshot.header().exit_status, snapshot.header().timed_out), (3, false));
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), false), b"late\n");
}
