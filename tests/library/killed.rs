//! Recordings of the library that go on, and those of which everything was killed: what verbs make of them.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{library, log, newest, read, run, run_command, verb};
use crate::support::{BINARY, Place, Run, command_of, kill, pidfd_of, tracer_of, wait, wait_for_end};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Records a script, kills everything once it has made `done`, and returns the identifier.
pub fn record_and_kill(place: &Place, options: &[&str], script: &str) -> String {
    let script = format!("{script}; echo > done; exec sleep 1000");
    let mut front = run_command(place, options, &script).stdout(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(front.id()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let state = || log(place, &["--all", "--reads"]).first().map(|entry| entry["state"].clone());
    while !(place.at("done").exists() && state().is_some_and(|state| state == "running")) {
        assert!(Instant::now() < deadline);
    }
    fs::remove_file(place.at("done")).unwrap();
    // Stopped, the front recovers nothing.
    let tracer = tracer_of(command_of(pid).unwrap()).unwrap();
    signal::kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    assert!(kill(tracer) && kill(pid));
    wait(&mut front);
    while state().is_none_or(|state| state != "unrecovered") {
        assert!(Instant::now() < deadline);
    }
    newest(place)
}

/// Records a script that goes on in the background until somebody writes to `go`, and returns the identifier.
fn record_in_background(place: &Place, script: &str) -> String {
    place.prepare("mkfifo go");
    let script = format!("{script}; (cat go; echo late > late) &");
    let mut front = run_command(place, &["--survivors", "background"], &script);
    assert!(wait(&mut front.stdout(Stdio::null()).spawn().unwrap()).success());
    newest(place)
}

fn end_background(place: &Place) {
    drop(fs::File::options().write(true).open(place.at("go")).unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while log(place, &["--all"])[0]["state"] == "running" {
        assert!(Instant::now() < deadline);
    }
}

/// Runs the command line that a message ends with.
fn follow(place: &Place, said: &str, start: &str) -> Run {
    let line = said.lines().find_map(|line| line.split_once(start)).unwrap_or_else(|| panic!("{said}")).1;
    let line = line.split(", or ").next().unwrap();
    let directory = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    place.program("sh").env("PATH", path).args(["-c", line]).output().unwrap().into()
}

#[test]
fn undo_passes_over_no_newer_recording_that_goes_on() {
    let place = Place::new();
    run(&place, &[], "echo older > older");
    let older = newest(&place);
    let running = record_in_background(&place, "echo newer > newer");
    for words in [&["undo"][..], &["undo", "-n", "1"], &["undo", "--since", "1h"], &["undo", "older"]] {
        let refused = verb(&place, words).expect(1);
        let said = format!("{running} is newer than {older} and still running: ");
        assert!(refused.stderr.contains(&said) && refused.stderr.lines().count() == 1, "{refused:?}");
        assert_eq!(read(&place, "older").as_deref(), Some("older\n"), "{words:?}");
    }
    // The way that the message names.
    let refused = verb(&place, &["undo"]).expect(1);
    follow(&place, &refused.stderr, " leave it out with: ").expect(0);
    assert!(!place.at("older").exists() && place.at("newer").exists());
    verb(&place, &["redo"]).expect(0);
    end_background(&place);
    verb(&place, &["undo"]).expect(0);
    assert!(place.at("older").exists() && !place.at("newer").exists() && !place.at("late").exists());
}

#[test]
fn undo_passes_over_no_newer_recording_that_was_killed() {
    let place = Place::new();
    run(&place, &[], "echo older > older");
    let older = newest(&place);
    place.write("f", "old");
    let killed = record_and_kill(&place, &[], "echo new > f");
    let refused = verb(&place, &["undo"]).expect(1);
    let said = format!("{killed} is newer than {older} and was killed: ");
    assert!(refused.stderr.contains(&said) && refused.stderr.lines().count() == 1, "{refused:?}");
    assert_eq!(read(&place, "older").as_deref(), Some("older\n"));
    follow(&place, &refused.stderr, " first with: ").expect(0);
    verb(&place, &["undo"]).expect(0);
    assert_eq!(read(&place, "f").as_deref(), Some("old"));
    assert!(place.at("older").exists());
}

#[test]
fn undo_of_a_session_names_what_was_killed_in_it() {
    let place = Place::new();
    place.write("f", "old");
    run(&place, &["--session", "s"], "echo older > older");
    let killed = record_and_kill(&place, &["--session", "s"], "echo new > f");
    let undone = verb(&place, &["undo", "--session", "s"]).expect(0).stderr;
    assert!(undone.contains(&format!("{killed} was killed: what it changed is not undone")), "{undone}");
    assert!(!place.at("older").exists());
}

#[test]
fn undo_in_a_recording_passes_over_that() {
    let place = Place::new();
    for options in [&[][..], &["--mechanism", "stops"]] {
        run(&place, &[], "echo older > older");
        run(&place, options, &format!("echo newer > newer; {BINARY} undo"));
        assert!(!place.at("older").exists() && place.at("newer").exists());
    }
}

#[test]
fn killed_recording_is_deleted_only_when_its_journal_is_discarded() {
    let place = Place::new();
    place.write("f", "old");
    let id = record_and_kill(&place, &[], "echo new > f");
    let directory = library(&place).join("snapshots").join(&id);
    for word in [id.as_str(), "@"] {
        let refused = verb(&place, &["delete", word]).expect(1);
        let path = directory.display();
        for way in
            [format!("agent-snapshot recover {path}"), format!("agent-snapshot recover --discard {path}")]
        {
            assert!(refused.stderr.contains(&way), "{refused:?}");
        }
    }
    verb(&place, &["prune", "--keep-last", "0", "--max-size", "1B"]).expect(0);
    assert_eq!(log(&place, &["--reads"])[0]["state"], "unrecovered");
    verb(&place, &["recover", &directory.display().to_string()]).expect(0);
    assert_eq!(verb(&place, &["cat", "f", "--before"]).expect(0).stdout, "old");
    verb(&place, &["delete", &id]).expect(0);
    // What is discarded can be deleted.
    let id = record_and_kill(&place, &[], "echo newer > f");
    let directory = library(&place).join("snapshots").join(&id);
    verb(&place, &["recover", "--discard", &directory.display().to_string()]).expect(0);
    verb(&place, &["delete", &id]).expect(0);
    assert!(!directory.exists());
    verb(&place, &["fsck"]).expect(0);
}

#[test]
fn recovered_recording_is_in_the_log() {
    let place = Place::new();
    place.write("f", "old");
    let id = record_and_kill(&place, &[], "echo new > f");
    let directory = library(&place).join("snapshots").join(&id).display().to_string();
    verb(&place, &["recover", &directory]).expect(0);
    verb(&place, &["fsck"]).expect(0);
    let lines = fs::read_to_string(library(&place).join("log.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
    assert_eq!([&line["id"], &line["state"]], [&serde_json::json!(id), &serde_json::json!("killed")]);
    // Once is enough, and a repair has nothing to add.
    verb(&place, &["recover", &directory]).expect(0);
    let listed = log(&place, &[]);
    verb(&place, &["fsck", "--repair"]).expect(0);
    assert_eq!(fs::read_to_string(library(&place).join("log.jsonl")).unwrap(), lines);
    assert_eq!(log(&place, &[]), listed);
    assert_eq!(verb(&place, &["history", "f"]).expect(0).stdout.matches(&id).count(), 1);
}

#[test]
fn what_is_recovered_when_the_tracing_process_is_killed_is_in_the_log() {
    let place = Place::new();
    place.prepare("mkfifo go");
    let mut front = run_command(&place, &[], "echo new > f; echo > done; read x < go").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !place.at("done").exists() {
        assert!(Instant::now() < deadline);
    }
    let pid = i32::try_from(front.id()).unwrap();
    assert!(kill(tracer_of(command_of(pid).unwrap()).unwrap()));
    wait(&mut front);
    assert_eq!(log(&place, &[])[0]["state"], "killed");
    verb(&place, &["fsck"]).expect(0);
}

#[test]
fn first_snapshot_of_a_recovered_recording_does_not_go_on() {
    let place = Place::new();
    let id = record_in_background(&place, "echo newer > newer");
    let survivor = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let directory = fs::read_link(entry.path().join("cwd")).ok()?;
        (directory == place.at("") && tracer_of(pid).is_some()).then_some(pid)
    });
    let tracer = tracer_of(survivor.unwrap()).unwrap();
    let recorder = pidfd_of(tracer);
    assert!(kill(tracer));
    wait_for_end(&recorder);
    let directory = library(&place).join("snapshots").join(&id).display().to_string();
    verb(&place, &["recover", &directory]).expect(0);
    assert_eq!(log(&place, &[])[0]["state"], "killed");
    verb(&place, &["fsck"]).expect(0);
}

#[test]
fn killed_recording_is_recovered_by_its_name() {
    let place = Place::new();
    place.write("f", "old");
    for word in ["id", "prefix", "@", "name"] {
        let id = record_and_kill(&place, &["--name", "named"], "echo new > f");
        let word = match word {
            "id" => &id,
            "prefix" => &id[..4],
            "name" => "named",
            word => word,
        };
        let recovered = verb(&place, &["recover", word]).expect(0);
        assert!(recovered.stdout.contains(&id), "{recovered:?}");
        assert_eq!(log(&place, &[])[0]["state"], "killed", "{word}");
        verb(&place, &["undo"]).expect(0);
        assert_eq!(read(&place, "f").as_deref(), Some("old"), "{word}");
        verb(&place, &["delete", &id]).expect(0);
    }
    let id = record_and_kill(&place, &[], "echo new > f");
    let short = verb(&place, &["recover", "--discard", &id[..3]]).expect(2).stderr;
    assert!(short.contains("too short"), "{short}");
    // A directory that is there is meant, whatever the library has.
    fs::create_dir(place.at(&id)).unwrap();
    verb(&place, &["recover", &id]).expect(1);
    fs::remove_dir(place.at(&id)).unwrap();
    verb(&place, &["recover", "--discard", &id]).expect(0);
    let other = record_and_kill(&place, &["--session", "s"], "echo newer > f");
    let of_another = |arguments: &[&str]| -> Run {
        place.command().env("AGENT_SNAPSHOT_SESSION", "t").args(arguments).output().unwrap().into()
    };
    of_another(&["recover", &other]).expect(3);
    of_another(&["recover", &other, "--allow-cross-session"]).expect(0);
}

#[test]
fn directory_without_a_journal_is_no_recording_to_recover() {
    let place = Place::new();
    place.write("mine/file", "mine");
    for flags in [&[][..], &["--discard"]] {
        for word in ["mine", "./mine"] {
            let said = verb(&place, &[&["recover", word], flags].concat()).expect(1).stderr;
            assert!(said.contains(&format!("{word} holds no journal of a recording: ")), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        // With a library and without one.
        for round in 0..2 {
            for word in ["nosuchdir", "./nosuchdir"] {
                let said = verb(&place, &[&["recover", word], flags].concat()).expect(3).stderr;
                assert!(said.contains(word) && said.lines().count() == 1, "{said}");
            }
            if round == 0 {
                run(&place, &[], "true");
            }
        }
    }
    assert_eq!(read(&place, "mine/file").as_deref(), Some("mine"));
}
