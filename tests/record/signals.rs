//! Signals to the command and to the recorder.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use agent_snapshot::snapshot::Operation;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::support::{Place, bytes, lost, stderr, wait};

#[test]
fn signal_reaches_the_command_once() {
    for group in [false, true] {
        let place = Place::new();
        let script =
            "trap 'echo term >> seen' TERM; trap 'exit 4' USR1; echo up; while :; do read line; done";
        let mut command = place.recording();
        command.args(["bash", "-c", script]);
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let to = Pid::from_raw(if group { -pid } else { pid });
        let mut input = child.stdin.take().unwrap();
        kill(to, Signal::SIGTERM).unwrap();
        // bash runs its traps when its read has ended.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !place.at("seen").exists() {
            assert!(Instant::now() < deadline, "the signal does not come");
            input.write_all(b"\n").unwrap();
            std::thread::yield_now();
        }
        kill(to, Signal::SIGUSR1).unwrap();
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the command does not end");
            let _ = input.write_all(b"\n");
            std::thread::yield_now();
        }
        assert_eq!(child.wait().unwrap().code(), Some(4));
        assert_eq!(fs::read(place.at("seen")).unwrap(), b"term\n", "to the group: {group}");
    }
}

#[test]
fn core_dump_is_recorded() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        println!("skipped: a core dump is {}", pattern.trim());
        return;
    }
    let script = "ulimit -c unlimited && sh -c 'kill -SEGV $$; echo never'; exit 5";
    let alone = Place::new();
    alone.program("sh").args(["-c", script]).output().unwrap();
    let is_core = |entry: fs::DirEntry| entry.file_name().to_str().unwrap().starts_with("core");
    if !fs::read_dir(&alone.work).unwrap().any(|entry| is_core(entry.unwrap())) {
        println!("skipped: no core is dumped");
        return;
    }
    let place = Place::new();
    place.write("core", "there before\n");
    let (output, snapshot) = place.record_any(script);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let core = snapshot.files().iter().find(|file| {
        file.path.starts_with(&place.path("core")) && file.operations.contains(Operation::Write)
    });
    let core = core.unwrap();
    assert_eq!(lost(&snapshot), []);
    assert!(bytes(&snapshot, core, false).starts_with(b"\x7fELF"));
    if core.path == place.path("core") {
        assert_eq!(bytes(&snapshot, core, true), b"there before\n");
    }
}

#[test]
fn command_killed_while_stopped_has_ended() {
    for signal in ["STOP", "TSTP"] {
        let place = Place::new();
        let mut command = place.recording();
        command.args(["sh", "-c", &format!("echo $$; kill -{signal} $$")]);
        // Its group has a leader whose parent is in another group of the session: it is no orphan.
        let mut front = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(front.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let shell: i32 = line.trim().parse().unwrap();
        let stops = WaitPidFlag::WUNTRACED;
        let stopped = waitpid(Pid::from_raw(front.id().cast_signed()), Some(stops)).unwrap();
        assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
        kill(Pid::from_raw(shell), Signal::SIGKILL).unwrap();
        assert_eq!(wait(&mut front).signal(), Some(Signal::SIGKILL as i32));
        assert_eq!(place.snapshot().header().exit_signal.as_deref(), Some("SIGKILL"));
    }
}
