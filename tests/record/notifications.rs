//! The notification path, on which read-only syscalls wait for an answer: a tracee does not notice it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::WarningKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Place, command_of, program, rounds, traced_by, tracer_of};

/// Notifications, whatever mechanism the other tests use.
const NOTIFICATIONS: [&str; 2] = ["--mechanism", "auto"];

/// A recording of `test_programs/read_only.rs`, without its arguments.
fn record_read_only(place: &Place) -> Command {
    let mut command = place.recording();
    command.args(NOTIFICATIONS).arg(program("read_only"));
    command
}

#[test]
fn signal_does_not_interrupt_a_read_only_syscall() {
    let place = Place::new();
    let output = record_read_only(&place).args(["interrupted", "3000"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "EINTR 0, other 0\n", "{output:?}");
}

#[test]
fn listener_of_the_command_is_refused_or_reported() {
    for mechanism in ["auto", "stops"] {
        let place = Place::new();
        let script = format!("{} listen", program("read_only").display());
        let output = place.record_with(&["--mechanism", mechanism], &script);
        let snapshot = place.snapshot();
        let warning = snapshot.header().warnings.iter().find(|warning| warning.kind == WarningKind::Listener);
        match String::from_utf8_lossy(&output.stdout).as_ref() {
            "listener\n" => assert!(warning.is_some_and(|warning| warning.lost), "{mechanism}"),
            "busy\n" if mechanism == "auto" => assert!(warning.is_some_and(|warning| !warning.lost)),
            other => panic!("{mechanism}: {other}"),
        }
    }
}

/// Kills one process of the recorder while two tracees make read-only syscalls alone; how many of these had
/// another result than without a recorder.
fn kill_recorder(tracer: bool) -> usize {
    let place = Place::new();
    let report = place.base().join("report");
    let mut child =
        record_read_only(&place).arg("forever").arg(&report).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        said.read_line(&mut String::new()).unwrap();
    }
    let front = i32::try_from(child.id()).unwrap();
    let victim = if tracer { command_of(front).and_then(tracer_of).unwrap() } else { front };
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    // Its end is the end of the tree.
    said.read_to_end(&mut Vec::new()).unwrap();
    child.wait().unwrap();
    fs::read_to_string(report).unwrap().lines().count()
}

fn check_kills(rounds: usize) {
    for round in 0..rounds {
        assert_eq!(kill_recorder(round % 2 == 0), 0, "round {round}");
    }
}

#[test]
fn killing_the_recorder_fails_no_read_only_syscall() {
    check_kills(20);
}

#[test]
#[ignore = "slow: hundreds of kills"]
fn slow_killing_the_recorder_fails_no_read_only_syscall() {
    check_kills(rounds(400));
}

#[test]
fn killing_the_background_tracer_fails_no_read_only_syscall() {
    let place = Place::new();
    let report = place.base().join("report");
    let script = format!(
        "{} forever {} > {} 2>&1 & echo started",
        program("read_only").display(),
        report.display(),
        place.base().join("said").display()
    );
    // The tracer is no child of this test: procfs names it.
    let who = place.base().join("who");
    let script = format!("{script}; sed -n 's/^TracerPid:\\t//p' /proc/$$/status > {}", who.display());
    let output = place.record_with(&[&NOTIFICATIONS[..], &["--survivors", "background"]].concat(), &script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n");
    let tracer: i32 = fs::read_to_string(&who).unwrap().trim().parse().unwrap();
    while !fs::read_to_string(place.base().join("said")).is_ok_and(|said| said.lines().count() == 2) {
        std::thread::yield_now();
    }
    let tracees = traced_by(tracer);
    assert!(!tracees.is_empty());
    kill(Pid::from_raw(tracer), Signal::SIGKILL).unwrap();
    // They are reaped by another process, maybe late.
    let runs =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while tracees.iter().any(runs) {
        std::thread::yield_now();
    }
    assert_eq!(fs::read_to_string(report).unwrap().lines().count(), 0);
}
