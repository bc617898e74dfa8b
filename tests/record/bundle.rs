//! The snapshot directory: which are refused, and what is in it if a recording ends early.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use agent_snapshot::snapshot::Snapshot;
use nix::sys::signal;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::support::{BINARY, Place, bytes, chmod, stderr};

#[test]
fn snapshot_directory_in_use_is_refused() {
    let place = Place::new();
    let mut first = place.command();
    first.arg("--snapshot-dir").arg(&place.out).args(["sh", "-c", "echo ready; read line"]);
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    first.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let second = place.record_with(&[], "touch ran");
    assert_eq!(second.status.code(), Some(125));
    assert!(stderr(&second).contains("another recording"), "{}", stderr(&second));
    first.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(first.wait().unwrap().success());
    place.snapshot();
}

#[test]
fn removed_snapshot_directory_is_created_again() {
    let place = Place::new();
    let mut command = place.command();
    place.write("file", "content");
    command.args(["--snapshot-dir", "out", "sh", "-c", "rm -rf * && mkdir left"]);
    assert!(command.output().unwrap().status.success());
    let snapshot = Snapshot::open(&place.at("out")).unwrap();
    let file = place.file(&snapshot, "file");
    assert_eq!(bytes(&snapshot, file, true), b"content");
    assert!(snapshot.files().iter().all(|file| !file.path.starts_with(&place.path("out"))));
}

#[test]
fn replaced_snapshot_directory_is_not_followed() {
    for (script, end) in [
        ("rm -rf out; ln -s $victim out", 125),
        ("mv out other; ln -s $victim out", 0),
        ("cd /; mv $work $work.moved; ln -s $victim $work; mkdir $victim/out", 0),
    ] {
        let place = Place::new();
        let victim = place.base().join("victim");
        fs::create_dir(&victim).unwrap();
        chmod(&victim, 0o755);
        let mut command = place.command();
        command.env("victim", &victim).env("work", &place.work);
        let output = command.args(["--snapshot-dir", "out", "sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(end), "{script}: {}", stderr(&output));
        assert!(!victim.join("manifest.json").exists() && !victim.join("out/manifest.json").exists());
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o7777, 0o755, "{script}");
        // The snapshot is in its directory, wherever that was moved, and the message names the path.
        let moved = [place.at("other"), place.base().join("work.moved/out")];
        match moved.iter().find(|path| path.exists()) {
            Some(path) => {
                assert!(
                    stderr(&output).contains(&format!("is {} now", path.display())),
                    "{}",
                    stderr(&output)
                );
                Snapshot::open(path).unwrap();
            }
            None => assert!(stderr(&output).contains("no snapshot was written"), "{}", stderr(&output)),
        }
    }
}

#[test]
fn old_snapshot_stays_until_the_new_one_is_complete() {
    let place = Place::new();
    place.record("echo one > file");
    let old = fs::read(place.out.join("manifest.json")).unwrap();
    let out = place.out.to_str().unwrap();
    let seen = place.record_with(&[], &format!("cat {out}/manifest.json; echo two > file"));
    assert_eq!(seen.stdout, old);
    assert_ne!(fs::read(place.out.join("manifest.json")).unwrap(), old);
    let names: Vec<_> = fs::read_dir(&place.out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn sigterm_ends_the_command_and_writes_the_manifest() {
    let place = Place::new();
    let mut command = place.recording();
    command.args(["sh", "-c", "echo x > file; echo ready; exec sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    signal::kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), false), b"x\n");
}

#[test]
fn summary_counts_changed_paths() {
    let place = Place::new();
    let summary = |script: &str| {
        let script =
            format!("exec {BINARY} --snapshot-dir {} --report summary {script}", place.out.display());
        let mut command = place.program("sh");
        stderr(&command.args(["-c", &script]).output().unwrap())
    };
    let said = summary("sh -c 'echo made > made; echo log' > log");
    assert!(
        said.contains("1 created, 0 changed, 0 deleted, 1 written through inherited descriptors"),
        "{said}"
    );
    assert!(said.contains("; 1 process, "), "{said}");
    let said = summary("sh -c 'chmod 600 made; (rm log)' < /dev/null");
    assert!(said.contains("0 created, 1 changed, 1 deleted, ") && said.contains(" processes, "), "{said}");
}

#[test]
fn both_mechanisms_write_the_same_records() {
    let script = "cat in > copy; mkdir d; mv copy d/; ln -s d/copy l; cat l missing; rm -r d; sh -c 'exit 3'";
    let records = |mechanism: &str| {
        let place = Place::new();
        place.write("in", "in");
        place.record_with(&["--mechanism", mechanism], script);
        let snapshot = place.snapshot();
        (place.recorded(&snapshot), snapshot.header().processes.len(), snapshot.header().exit_status)
    };
    assert_eq!(records("auto"), records("every-call"));
}
