//! The exit status, and what is refused before the command runs.

use std::fs;

use agent_snapshot::snapshot::WarningKind;

use crate::support::{BINARY, Place, chmod, is_root, status, stderr};

#[test]
fn exit_status_is_that_of_the_command() {
    let place = Place::new();
    assert_eq!(status(&place.record_with(&[], "exit 0")), 0);
    assert_eq!(status(&place.record_with(&[], "exit 77")), 77);
    assert_eq!(place.snapshot().header().exit_status, 77);
}

#[test]
fn fatal_signal_of_the_command_ends_the_recorder() {
    let place = Place::new();
    for (signal, name) in [(15, "SIGTERM"), (9, "SIGKILL"), (2, "SIGINT"), (11, "SIGSEGV")] {
        // A script that starts the tests in the background has them ignore SIGINT.
        let command = format!("exec env --default-signal sh -c 'kill -{signal} $$'");
        assert_eq!(status(&place.record_with(&[], &command)), 1000 + signal);
        let snapshot = place.snapshot();
        assert_eq!(snapshot.header().exit_status, 128 + signal);
        assert_eq!(snapshot.header().exit_signal.as_deref(), Some(name));
    }
}

#[test]
fn output_is_that_of_the_command() {
    let place = Place::new();
    let output = place.record_with(&[], "echo out; echo err >&2");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
}

#[test]
fn invalid_arguments_are_refused_before_anything_runs() {
    let place = Place::new();
    let foreign = place.base().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("precious"), "mine").unwrap();
    place.write("plain", "not a program");
    let out = place.out.to_str().unwrap();
    let foreign_name = foreign.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 16] = [
        (&["--snapshot-dir", out, "no-such-command"], 127, "no-such-command"),
        (&["--snapshot-dir", out, "./missing"], 127, "./missing"),
        (&["--snapshot-dir", out, "./plain"], 126, "./plain"),
        (&["--snapshot-dir", out, "."], 126, "."),
        (&["--snapshot-dir", foreign_name, "touch", "ran"], 125, foreign_name),
        (&["--snapshot-dir", "plain", "touch", "ran"], 125, "plain"),
        (&["--snapshot-dir", out, "--no-such-option", "touch", "ran"], 125, "--no-such-option"),
        (&["--snapshot-dir", out, "--max-read-bytes", "many", "touch", "ran"], 125, "many"),
        (&["--snapshot-dir", out, "--timeout", "soon", "touch", "ran"], 125, "soon"),
        (&["--snapshot-dir", out], 125, "COMMAND"),
        (
            &["touch", "ran"],
            125,
            "agent-snapshot run touch ..., or agent-snapshot --snapshot-dir DIR touch ...",
        ),
        (&["undoo"], 2, "did you mean undo?"),
        (&["help"], 2, "did you mean --help?"),
        (&["undo", "--dry-rnu"], 2, "'--dry-run'"),
        (&["--snapshot-dri", out, "touch", "ran"], 125, "'--snapshot-dir'"),
        (&["run", "--quite", "touch", "ran"], 125, "'--quiet'"),
    ];
    for (arguments, expected, named) in cases {
        let output = place.command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(named), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"));
        assert!(output.stdout.is_empty());
        assert!(!place.at("ran").exists(), "{arguments:?}");
    }
    assert_eq!(fs::read(foreign.join("precious")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
}

#[test]
fn invalid_ignore_list_stops_the_recording() {
    let place = Place::new();
    let list = place.base().join("config/agent-snapshot/ignore.json");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    for wrong in ["{}", "[1]", "[\"a\"", ""] {
        fs::write(&list, wrong).unwrap();
        let output = place.record_with(&[], "touch ran");
        assert_eq!(output.status.code(), Some(125), "{wrong}");
        assert!(stderr(&output).contains("ignore.json"), "{}", stderr(&output));
        assert!(!place.at("ran").exists());
    }
}

#[test]
fn program_without_its_interpreter_is_not_found() {
    let place = Place::new();
    let script = place.at("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    chmod(&script, 0o755);
    let output = place.recording().arg("./script").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(!place.out.join("manifest.json").exists());
}

#[test]
fn command_that_does_not_start_leaves_no_directory() {
    let place = Place::new();
    let script = place.at("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    chmod(&script, 0o755);
    let deep = place.base().join("a/b/c");
    for command in ["./script", "./missing", "no-such-command"] {
        let output = place.command().arg("--snapshot-dir").arg(&deep).arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(!place.base().join("a").exists(), "{command}");
    }
    // A directory that was there before stays.
    fs::create_dir_all(&deep).unwrap();
    let output = place.command().arg("--snapshot-dir").arg(&deep).arg("./script").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(deep.exists());
}

#[test]
fn unwritable_snapshot_directory_is_refused_before_the_command() {
    let place = Place::new();
    let dir = place.base().join("dir");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o555);
    let below = if is_root() { "/proc/sys/out".into() } else { dir.join("out") };
    let output = place.command().arg("--snapshot-dir").arg(&below).args(["touch", "ran"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains(below.to_str().unwrap()), "{}", stderr(&output));
    assert!(!place.at("ran").exists());
}

#[test]
fn denied_tracing_runs_nothing_unless_asked() {
    let place = Place::new();
    let inner = place.base().join("inner");
    let nested = |more: &str| {
        let script = format!("{} --snapshot-dir {} {more} sh -c 'echo ran'", BINARY, inner.display());
        place.record_with(&[], &script)
    };
    let refused = nested("");
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("tracing is denied"), "{}", stderr(&refused));
    assert!(refused.stdout.is_empty());
    let run = nested("--if-unavailable run");
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    assert_eq!(run.stdout, b"ran\n");
    assert!(!inner.join("manifest.json").exists());
}

#[test]
fn nothing_is_recorded_without_the_procfs_of_the_pid_namespace() {
    let place = Place::new();
    let without = ["unshare", "-rm", "sh", "-c", r#"mount -t tmpfs none /proc && exec "$@""#, "sh"];
    for (words, status) in
        [(&["unshare", "-rpf"][..], 125), (&["unshare", "-rpf", "--mount-proc"], 0), (&without, 125)]
    {
        if !place.can_run(&[words, &["true"]].concat()) {
            continue;
        }
        let mut command = place.program(words[0]);
        command.args(&words[1..]).arg(BINARY).arg("--snapshot-dir").arg(&place.out);
        let output = command.args(["sh", "-c", "echo new > f; cat f"]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", stderr(&output));
        if status == 0 {
            let snapshot = place.snapshot();
            assert!(snapshot.header().complete, "{:?}", snapshot.header().warnings);
            place.file(&snapshot, "f");
            fs::remove_file(place.at("f")).unwrap();
        } else {
            assert!(stderr(&output).contains("/proc does not show"), "{}", stderr(&output));
            assert!(!place.at("f").exists(), "{words:?}: it ran");
        }
    }
}

#[test]
fn unrecorded_command_is_executed_as_a_recorded_one_is() {
    let place = Place::new();
    let (plain, lost) = (place.at("plain"), place.at("lost"));
    fs::write(&plain, "echo ran $1\n").unwrap();
    fs::write(&lost, "#!/no/such/interpreter\n").unwrap();
    chmod(&plain, 0o755);
    chmod(&lost, 0o755);
    let inner = place.base().join("inner");
    let nested = |script: &str| {
        let options = "--if-unavailable run --quiet";
        place.record_with(&[], &format!("{BINARY} --snapshot-dir {} {options} {script}", inner.display()))
    };
    let run = nested("./plain twice");
    assert_eq!((run.status.code(), run.stdout.as_slice()), (Some(0), &b"ran twice\n"[..]), "{run:?}");
    assert!(
        stderr(&run).contains("this is recorded already: there is no snapshot of its own"),
        "{}",
        stderr(&run)
    );
    let run = nested("./lost");
    assert_eq!(run.status.code(), Some(127), "{run:?}");
    assert!(stderr(&run).contains("execute ./lost: No such file"), "{}", stderr(&run));
}

#[test]
fn nested_recording_is_refused_unless_it_may_run_unrecorded() {
    let place = Place::new();
    let inner = |options: &str| format!("{} --snapshot-dir ../inner {options} echo ran", BINARY);
    let (output, snapshot) = place.record_any(&format!("{}; echo $?", inner("")));
    assert_eq!(output.stdout, b"125\n");
    assert!(stderr(&output).contains("another tracer"), "{}", stderr(&output));
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::NestedTracer));
    assert!(!place.base().join("inner").exists());
    let output = place.record_with(&[], &inner("--if-unavailable run"));
    assert_eq!(output.stdout, b"ran\n");
    assert_eq!(output.status.code(), Some(0));
}
