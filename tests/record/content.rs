//! The main job: what a recording says, exits with, keeps and refuses.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::{BlobOmitted, State, WarningKind};

use crate::support::{BINARY, Place, bytes, is_root, lost, stderr};

fn status(place: &Place, options: &[&str], script: &str) -> i32 {
    let status = place.record_with(options, script).status;
    status.code().unwrap_or_else(|| 1000 + status.signal().unwrap())
}

#[test]
fn the_exit_status_is_the_commands() {
    let place = Place::new();
    assert_eq!(status(&place, &[], "exit 0"), 0);
    assert_eq!(status(&place, &[], "exit 77"), 77);
    assert_eq!(place.snapshot().header().exit_status, 77);
}

#[test]
fn a_signal_ends_us_as_it_ended_the_command() {
    let place = Place::new();
    for (signal, name) in [(15, "SIGTERM"), (9, "SIGKILL"), (2, "SIGINT"), (11, "SIGSEGV")] {
        assert_eq!(status(&place, &[], &format!("kill -{signal} $$")), 1000 + signal);
        let snapshot = place.snapshot();
        assert_eq!(snapshot.header().exit_status, 128 + signal);
        assert_eq!(snapshot.header().exit_signal.as_deref(), Some(name));
    }
}

#[test]
fn what_is_printed_is_what_the_command_prints() {
    let place = Place::new();
    let output = place.record_with(&[], "echo out; echo err >&2");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
}

#[test]
fn bad_input_is_one_sentence_and_its_status_before_anything_runs() {
    let place = Place::new();
    let foreign = place.base().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("precious"), "mine").unwrap();
    fs::write(place.work.join("plain"), "not a program").unwrap();
    let out = place.out.to_str().unwrap();
    let foreign_name = foreign.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 11] = [
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
        (&["touch", "ran"], 125, "--snapshot-dir"),
    ];
    for (arguments, expected, named) in cases {
        let output = place.command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(named), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"));
        assert!(output.stdout.is_empty());
        assert!(!place.work.join("ran").exists(), "{arguments:?}");
    }
    assert_eq!(fs::read(foreign.join("precious")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
}

#[test]
fn an_ignore_list_that_is_none_stops_the_recording() {
    let place = Place::new();
    let list = place.base().join("config/agent-snapshot/ignore.json");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    for wrong in ["{}", "[1]", "[\"a\"", ""] {
        fs::write(&list, wrong).unwrap();
        let output = place.record_with(&[], "touch ran");
        assert_eq!(output.status.code(), Some(125), "{wrong}");
        assert!(stderr(&output).contains("ignore.json"), "{}", stderr(&output));
        assert!(!place.work.join("ran").exists());
    }
}

#[test]
fn a_directory_that_another_recording_writes_is_refused() {
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
fn a_program_without_its_interpreter_is_not_found() {
    let place = Place::new();
    let script = place.work.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = place.command().arg("--snapshot-dir").arg(&place.out).arg("./script").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(!place.out.join("manifest.json").exists());
}

#[test]
fn bytes_before_and_after_are_those_of_the_files() {
    let place = Place::new();
    fs::write(place.work.join("changed"), "old").unwrap();
    fs::write(place.work.join("deleted"), "gone").unwrap();
    fs::write(place.work.join("read"), "input").unwrap();
    fs::write(place.work.join("appended"), "one\n").unwrap();
    let snapshot =
        place.record("cat read; echo new > changed; rm deleted; echo two >> appended; echo x > created");
    let check = |name: &str, before: Option<&str>, after: Option<&str>| {
        let file = place.file(&snapshot, name);
        match before {
            Some(content) => assert_eq!(bytes(&snapshot, file, true), content.as_bytes(), "{name}"),
            None => assert_eq!(file.before, State::Absent { tombstone: false }, "{name}"),
        }
        match after {
            Some(content) => assert_eq!(bytes(&snapshot, file, false), content.as_bytes(), "{name}"),
            None => assert_eq!(file.after, State::Absent { tombstone: true }, "{name}"),
        }
    };
    check("changed", Some("old"), Some("new\n"));
    check("deleted", Some("gone"), None);
    check("read", Some("input"), Some("input"));
    check("appended", Some("one\n"), Some("one\ntwo\n"));
    check("created", None, Some("x\n"));
    assert!(snapshot.header().complete);
    assert_eq!(
        place.recorded(&snapshot),
        ["appended write", "changed write", "created write", "deleted existence+delete", "read read"].map(
            |line| if line.starts_with("deleted") {
                place.recorded(&snapshot)[3].clone()
            } else {
                line.to_owned()
            }
        )
    );
}

#[test]
fn a_recording_survives_the_removal_of_its_directory() {
    let place = Place::new();
    let mut command = place.command();
    fs::write(place.work.join("file"), "content").unwrap();
    command.args(["--snapshot-dir", "out", "sh", "-c", "rm -rf * && mkdir left"]);
    assert!(command.output().unwrap().status.success());
    let snapshot = agent_snapshot::snapshot::Snapshot::open(&place.work.join("out")).unwrap();
    let file = place.file(&snapshot, "file");
    assert_eq!(bytes(&snapshot, file, true), b"content");
    assert!(snapshot.files().iter().all(|file| !file.path.starts_with(&place.path("out"))));
}

#[test]
fn what_the_command_puts_in_the_place_of_the_directory_is_not_followed() {
    for (script, end) in [
        ("rm -rf out; ln -s $victim out", 125),
        ("mv out other; ln -s $victim out", 0),
        ("cd /; mv $work $work.moved; ln -s $victim $work; mkdir $victim/out", 0),
    ] {
        let place = Place::new();
        let victim = place.base().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = place.command();
        command.env("victim", &victim).env("work", &place.work);
        let output = command.args(["--snapshot-dir", "out", "sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(end), "{script}: {}", stderr(&output));
        assert!(!victim.join("manifest.json").exists() && !victim.join("out/manifest.json").exists());
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o7777, 0o755, "{script}");
        // The snapshot is where its directory is now, which is said.
        let moved = [place.work.join("other"), place.base().join("work.moved/out")];
        match moved.iter().find(|path| path.exists()) {
            Some(path) => {
                assert!(
                    stderr(&output).contains(&format!("is {} now", path.display())),
                    "{}",
                    stderr(&output)
                );
                agent_snapshot::snapshot::Snapshot::open(path).unwrap();
            }
            None => assert!(stderr(&output).contains("no snapshot was written"), "{}", stderr(&output)),
        }
    }
}

#[test]
fn an_older_snapshot_stays_until_the_new_one_is_whole() {
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
fn a_killed_recording_leaves_no_process_and_no_manifest() {
    for victim in ["front", "tracer"] {
        let place = Place::new();
        let mut command = place.command();
        command.arg("--snapshot-dir").arg(&place.out);
        command.args(["sh", "-c", "echo $PPID $$; sleep 1000 & wait"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&mut stdout), &mut line).unwrap();
        let tracer: i32 = line.split_whitespace().next().unwrap().parse().unwrap();
        let target = if victim == "front" { i32::try_from(child.id()).unwrap() } else { tracer };
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(target), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), (victim == "tracer").then_some(125));
        // The pipe ends when the last process of the tree is gone.
        stdout.read_to_string(&mut line).unwrap();
        assert!(!place.out.join("manifest.json").exists());
    }
}

#[test]
fn a_terminated_recording_ends_the_command_and_writes_its_manifest() {
    let place = Place::new();
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out).args([
        "sh",
        "-c",
        "echo x > file; echo ready; exec sleep 1000",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), false), b"x\n");
}

#[test]
fn survivors_are_waited_for_ended_or_recorded_on() {
    let place = Place::new();
    let waited = place.record_with(&["--survivors", "wait"], "(read x < fifo; echo late > late) & exit 3");
    assert_eq!(waited.status.code(), Some(3));
    let place = Place::new();
    let output = place.record_with(&["--survivors", "kill"], "sleep 1000 & exit 4");
    assert_eq!(output.status.code(), Some(4));
    let snapshot = place.snapshot();
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::Survivors));
    assert!(snapshot.header().complete);
    // In the background: the pipe that the survivor waits for is ours.
    let place = Place::new();
    nix::unistd::mkfifo(&place.work.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out).args(["--survivors", "background"]);
    command.args(["sh", "-c", "(read x < fifo; echo $x > late) <&- & exit 5"]).stdout(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(5));
    assert!(!place.out.join("manifest.json").exists());
    fs::write(place.work.join("fifo"), "word\n").unwrap();
    // The lock is free when the manifest is there.
    let dir = fs::File::open(&place.out).unwrap();
    dir.lock().unwrap();
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "late"), false), b"word\n");
}

#[test]
fn after_the_timeout_everything_is_ended_and_told() {
    let place = Place::new();
    assert_eq!(status(&place, &["--timeout", "0.2"], "echo x > file; sleep 1000 & sleep 1000"), 124);
    let snapshot = place.snapshot();
    assert!(snapshot.header().timed_out);
    assert_eq!(snapshot.header().exit_status, 124);
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::Timeout));
    place.file(&snapshot, "file");
}

#[test]
fn names_of_any_bytes_are_recorded_as_they_are() {
    let place = Place::new();
    let names: [&[u8]; 5] = [b"new\nline", b"quo\"te'", b"\xff\xfe", b"caf\xc3\xa9", b" (deleted)"];
    for name in names {
        fs::write(place.work.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let snapshot = place.record("for f in *; do echo more >> \"$f\"; done");
    for name in names {
        let file = place.file(&snapshot, std::ffi::OsStr::from_bytes(name));
        assert_eq!(bytes(&snapshot, file, true), name);
        assert_eq!(bytes(&snapshot, file, false), [name, b"more\n"].concat());
    }
}

#[test]
fn a_fifo_is_recorded_and_never_opened() {
    let place = Place::new();
    let snapshot =
        place.record("mkfifo pipe; echo word > pipe & read line < pipe; echo $line > result; wait");
    let pipe = place.file(&snapshot, "pipe");
    assert_eq!(pipe.after.present().unwrap().digest, None);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "result"), false), b"word\n");
    assert!(snapshot.header().complete);
}

#[test]
fn a_file_that_the_command_may_not_read_is_existence() {
    let place = Place::new();
    if nix::unistd::geteuid().is_root() {
        println!("skipped: root may read everything");
        return;
    }
    fs::write(place.work.join("secret"), "secret").unwrap();
    fs::set_permissions(place.work.join("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    let output = place.record_with(&[], "cat secret");
    assert_eq!(output.status.code(), Some(1));
    let snapshot = place.snapshot();
    assert_eq!(place.recorded(&snapshot), ["secret existence"]);
    assert!(snapshot.header().complete);
}

#[test]
fn inherited_descriptors_are_recorded_from_the_launch() {
    let place = Place::new();
    for (name, content) in [("input", "in"), ("log", "old\n"), ("overwritten", "before")] {
        fs::write(place.work.join(name), content).unwrap();
    }
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out).args(["sh", "-c", "cat; echo err >&2"]);
    command.stdin(fs::File::open(place.work.join("input")).unwrap());
    command.stdout(fs::OpenOptions::new().append(true).open(place.work.join("log")).unwrap());
    command.stderr(fs::OpenOptions::new().write(true).open(place.work.join("overwritten")).unwrap());
    assert!(command.status().unwrap().success());
    let snapshot = place.snapshot();
    assert_eq!(place.recorded(&snapshot), ["input read", "log write", "overwritten write"]);
    assert!(
        snapshot
            .files()
            .iter()
            .filter(|file| file.path.starts_with(&place.path("")))
            .all(|file| file.inherited)
    );
    let log = place.file(&snapshot, "log");
    assert_eq!(log.before.present().unwrap().size, 4);
    assert_eq!(log.before.present().unwrap().blob, None);
    let overwritten = place.file(&snapshot, "overwritten");
    assert_eq!(bytes(&snapshot, overwritten, true), b"before");
    assert_eq!(bytes(&snapshot, overwritten, false), b"err\nre");
}

#[test]
fn the_summary_counts_what_show_lists() {
    let place = Place::new();
    let summary = |script: &str| {
        let script =
            format!("exec {BINARY} --snapshot-dir {} --report summary {script}", place.out.display());
        let mut command = Command::new("sh");
        place.isolate(&mut command);
        stderr(&command.args(["-c", &script]).output().unwrap())
    };
    let said = summary("sh -c 'echo made > made; echo log' > log");
    assert!(said.contains("1 created, 0 changed, 0 deleted, 1 written through descriptors"), "{said}");
    assert!(said.contains("; 1 process, "), "{said}");
    let said = summary("sh -c 'chmod 600 made; (rm log)' < /dev/null");
    assert!(said.contains("0 created, 1 changed, 1 deleted, ") && said.contains(" processes, "), "{said}");
}

#[test]
fn limits_leave_digests_and_say_why() {
    let place = Place::new();
    fs::write(place.work.join("read"), "0123456789").unwrap();
    fs::write(place.work.join("rewritten"), "0123456789").unwrap();
    let output = place.record_with(&["--max-read-bytes", "5"], "cat read rewritten; echo new > rewritten");
    assert!(output.status.success());
    let snapshot = place.snapshot();
    let read = place.file(&snapshot, "read").before.present().unwrap();
    // What destroys the same bytes elsewhere stores them for both.
    assert!(read.digest.is_some());
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "rewritten"), true), b"0123456789");
    assert!(snapshot.header().complete);
    let output = place.record_with(&["--max-blob-bytes", "5"], "echo longer than that > rewritten");
    assert!(output.status.success());
    let snapshot = place.snapshot();
    let after = place.file(&snapshot, "rewritten").after.present().unwrap();
    assert_eq!(after.blob_omitted, Some(BlobOmitted::TooLarge));
    assert!(after.digest.is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let strict =
        place.record_with(&["--max-blob-bytes", "5", "--strict"], "echo longer than that > rewritten");
    assert_eq!(strict.status.code(), Some(125));
    let why = stderr(&strict);
    assert!(
        why.contains("agent-snapshot: incomplete: content_omitted: ") && why.contains("(--strict)"),
        "{why}"
    );
    place.snapshot();
}

#[test]
fn a_full_disk_stops_the_capture_and_not_the_command() {
    if !is_root("a small file system") {
        return;
    }
    let place = Place::new();
    fs::create_dir(&place.out).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
        .arg(&place.out)
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        println!("skipped: mount is not allowed here");
        return;
    }
    let mut noise = vec![0; 12 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(place.work.join("big"), &noise).unwrap();
    let output = place.record_with(&[], "cat big > copy; cmp big copy && echo same");
    let snapshot = place.snapshot();
    let unmounted = Command::new("umount").arg("-l").arg(&place.out).status().unwrap();
    assert!(unmounted.success());
    assert_eq!(output.stdout, b"same\n");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let copy = place.file(&snapshot, "copy").after.present().unwrap();
    assert_eq!(copy.blob_omitted, Some(BlobOmitted::NoSpace));
    assert!(copy.digest.is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
}

/// Records a script under a limit on the length of files, of so many blocks of 512 bytes.
fn record_limited(place: &Place, limit: &str, script: &str) -> std::process::Output {
    let script = format!(
        "ulimit -c 0; ulimit {limit}; exec {} --snapshot-dir {} sh -c '{script}'",
        BINARY,
        place.out.display()
    );
    let mut command = Command::new("sh");
    place.isolate(&mut command);
    command.args(["-c", &script]).output().unwrap()
}

/// Whether we may raise a hard limit, by CAP_SYS_RESOURCE.
fn may_raise_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(effective, 16).unwrap() >> 24 & 1 == 1
}

#[test]
fn a_limit_on_the_length_of_files_is_the_commands() {
    let mut noise = vec![0; 3 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    for (limit, seen) in [("-S -f 2048", "2048\nunlimited\n"), ("-f 2048", "2048\n2048\n")] {
        let place = Place::new();
        fs::write(place.work.join("big"), &noise).unwrap();
        fs::write(place.work.join("small"), "small\n").unwrap();
        let script = "cat big small > /dev/null; ulimit -f; ulimit -Hf
            (cat big > copy) 2> /dev/null; echo $?; : > big; wc -c < copy";
        let output = record_limited(&place, limit, script);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("{seen}153\n1048576\n"), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let snapshot = place.snapshot();
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "small"), true), b"small\n");
        let big = place.file(&snapshot, "big").before.present().unwrap();
        if limit.starts_with("-S") || may_raise_limits() {
            assert_eq!(lost(&snapshot), []);
            assert!(bytes(&snapshot, place.file(&snapshot, "big"), true) == noise);
        } else {
            // The limit is ours, too.
            assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
            assert_eq!(big.blob_omitted, Some(BlobOmitted::NoSpace));
            assert!(big.digest.is_some());
        }
    }
}

#[test]
fn a_manifest_beyond_a_limit_on_the_length_of_files_is_a_failure_of_ours_alone() {
    if may_raise_limits() {
        println!("skipped: no such limit is ours");
        return;
    }
    let place = Place::new();
    let output = record_limited(&place, "-f 0", "test -e a; echo done; exit 3");
    assert_eq!(output.stdout, b"done\n");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("manifest.json"), "{}", stderr(&output));
    assert!(!place.out.join("manifest.json").exists());
}

#[test]
fn both_mechanisms_write_the_same_records() {
    let script = "cat in > copy; mkdir d; mv copy d/; ln -s d/copy l; cat l missing; rm -r d; sh -c 'exit 3'";
    let records = |mechanism: &str| {
        let place = Place::new();
        fs::write(place.work.join("in"), "in").unwrap();
        place.record_with(&["--mechanism", mechanism], script);
        let snapshot = place.snapshot();
        (place.recorded(&snapshot), snapshot.header().processes.len(), snapshot.header().exit_status)
    };
    assert_eq!(records("auto"), records("every-call"));
}

#[test]
fn where_tracing_is_denied_nothing_runs_unless_that_is_wanted() {
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
fn the_memory_of_a_recording_does_not_grow_with_what_it_stores() {
    let place = Place::new();
    let file = fs::File::create(place.work.join("big")).unwrap();
    let mut noise = vec![0; 1 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    for round in 0..96u8 {
        noise[0] = round;
        (&file).write_all(&noise).unwrap();
    }
    // The tracing process is the parent of the command.
    let script = "cat big > copy; grep VmHWM /proc/$PPID/status";
    let output = place.record_with(&["--max-read-bytes", "1G"], script);
    let text = String::from_utf8(output.stdout).unwrap();
    let kib: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 100 << 10, "{text}");
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "copy"), false).len(), 96 << 20);
    assert_eq!(
        place.file(&snapshot, "copy").after.present().unwrap().blob.as_deref(),
        Some(&*format!("before:{}", String::from_utf8_lossy(&place.path("big"))))
    );
}

#[test]
fn clean_tracked_files_are_pinned_and_what_is_destroyed_is_stored_all_the_same() {
    let place = Place::new();
    let mut git = Command::new("sh");
    place.isolate(&mut git);
    let script = "git init -q && for f in read deleted changed dirty; do echo $f > $f; done && git add . &&
        git -c user.name=a -c user.email=a@example.org commit -qm one && echo more >> dirty && git rev-parse HEAD:read";
    let Ok(output) = git.args(["-c", script]).output() else { return };
    if !output.status.success() {
        println!("skipped: git is missing");
        return;
    }
    let oid = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let snapshot = place.record("cat read dirty; rm deleted; echo new > changed");
    let pinned = place.file(&snapshot, "read");
    assert_eq!(pinned.git.as_ref().unwrap().oid.as_deref(), Some(oid.as_str()));
    assert_eq!(pinned.before.present().unwrap().blob, None);
    assert_eq!(pinned.after.present().unwrap().blob, None);
    for name in ["deleted", "changed"] {
        let file = place.file(&snapshot, name);
        assert!(file.git.as_ref().unwrap().oid.is_some(), "{name}");
        assert_eq!(bytes(&snapshot, file, true), format!("{name}\n").as_bytes());
    }
    let dirty = place.file(&snapshot, "dirty");
    assert_eq!(dirty.git.as_ref().map(|git| (git.oid.is_some(), git.dirty)), Some((false, true)));
    assert_eq!(bytes(&snapshot, dirty, true), b"dirty\nmore\n");
    let root = place.work.as_os_str().as_bytes();
    // Programs that were looked for may lie in repositories, too.
    let repository = snapshot.header().git_repositories.iter().find(|repository| repository.root == root);
    assert!(repository.is_some_and(|repository| repository.dirty));
}

#[test]
fn a_file_that_was_moved_has_its_bytes_stored_once_and_one_written_to_since_has_its_own() {
    let place = Place::new();
    fs::create_dir(place.work.join("d")).unwrap();
    for name in ["kept", "by-descriptor", "by-name", "by-link"] {
        fs::write(place.work.join("d").join(name), format!("1 {name}")).unwrap();
    }
    // All times are put back, and no size differs.
    let snapshot = place.record(
        "touch -r d/by-name t; exec 3<> d/by-descriptor; mv d e; printf 2 >&3; touch -r t /proc/self/fd/3; \
         printf 2 1<> e/by-name; touch -r t e/by-name; \
         ln e/by-link link; printf 2 1<> link; touch -r t link; rm link",
    );
    for (name, after) in [
        ("kept", "1 kept"),
        ("by-descriptor", "2 by-descriptor"),
        ("by-name", "2 by-name"),
        ("by-link", "2 by-link"),
    ] {
        let former = place.file(&snapshot, format!("d/{name}"));
        let moved = place.file(&snapshot, format!("e/{name}"));
        assert_eq!(bytes(&snapshot, former, true), format!("1 {name}").as_bytes());
        assert_eq!(bytes(&snapshot, moved, false), after.as_bytes());
    }
    assert!(lost(&snapshot).is_empty());
}

#[test]
fn attributes_and_rules_that_are_written_after_they_were_opened_count() {
    let place = Place::new();
    let mut git = Command::new("sh");
    place.isolate(&mut git);
    // The index is written well after the file, so that its stat data proves what it is the data of.
    let script = "git init -q && git config filter.rot.clean 'tr a-z n-za-m' && git config filter.rot.smudge 'tr a-z n-za-m' &&
        echo '*.txt filter=rot' > .gitattributes && cp .gitattributes attributes && echo '*.log' > rules &&
        echo hello > f.txt && sleep 0.1 && git add . && git -c user.name=a -c user.email=a@example.org commit -qm one &&
        sleep 0.1 && touch .git/index";
    if !git.args(["-c", script]).status().is_ok_and(|status| status.success()) {
        println!("skipped: git is missing");
        return;
    }
    let snapshot = place
        .record("cat attributes > .gitattributes; cat f.txt; cat rules > .gitignore; echo hello > x.log");
    let file = place.file(&snapshot, "f.txt");
    let git = file.git.as_ref().unwrap();
    assert_eq!((git.tracked, git.dirty, git.oid.as_deref()), (true, false, None));
    assert_eq!(bytes(&snapshot, file, true), b"hello\n");
    assert!(place.file(&snapshot, "x.log").git.as_ref().unwrap().ignored);
    // The same by a descriptor from before the launch.
    for name in [".gitignore", ".git/info/exclude"] {
        fs::create_dir_all(place.work.join(".git/info")).unwrap();
        fs::write(place.work.join(".gitignore"), "").unwrap();
        let rules = fs::File::create(place.work.join(name)).unwrap();
        let mut command = place.command();
        command.arg("--snapshot-dir").arg(&place.out).args(["sh", "-c", "cat rules; echo hello > x.log"]);
        assert!(command.stdout(rules).status().unwrap().success());
        let snapshot = place.snapshot();
        assert!(place.file(&snapshot, "x.log").git.as_ref().unwrap().ignored, "{name}");
    }
}

#[test]
fn what_git_knows_at_the_end_is_told_of_files_that_nobody_touched() {
    let place = Place::new();
    let git = |script: &str| {
        let mut command = Command::new("sh");
        place.isolate(&mut command);
        let status = command.args(["-ec", script]).current_dir(&place.work).status().unwrap();
        assert!(status.success());
    };
    git("git init -q; for f in kept added excluded dropped; do echo $f > $f; done; git add kept dropped; \
         git -c user.name=a -c user.email=a@example.org commit -qm one");
    let known = |script: &str, names: &[&str]| -> Vec<_> {
        let snapshot = place.record(script);
        let of = |git: &Option<agent_snapshot::snapshot::GitState>| {
            git.as_ref().map(|git| (git.tracked, git.ignored))
        };
        let file = |name: &&str| {
            let file = place.file(&snapshot, name);
            (of(&file.git), of(&file.git_after))
        };
        names.iter().map(file).collect()
    };
    let (tracked, untracked, ignored) = (Some((true, false)), Some((false, false)), Some((false, true)));
    assert_eq!(
        known("cat kept added excluded; echo excluded > .gitignore", &["kept", "added", "excluded"]),
        [(tracked, None), (untracked, None), (untracked, ignored)]
    );
    assert_eq!(
        known(
            "cat kept added dropped; git add added; git rm -q --cached dropped",
            &["kept", "added", "dropped"]
        ),
        [(tracked, None), (untracked, tracked), (tracked, untracked)]
    );
    // Read, and so asked for a pin, when the index has changed.
    let script = "stat kept added dropped; git add dropped; git rm -q --cached added; cat kept added dropped";
    assert_eq!(
        known(script, &["kept", "added", "dropped"]),
        [(tracked, None), (tracked, untracked), (untracked, tracked)]
    );
    // As long as before, and with its time put back.
    let snapshot = place.record("touch -r kept t; printf K 1<> kept; touch -r t kept");
    let file = place.file(&snapshot, "kept");
    let dirty = |git: &Option<agent_snapshot::snapshot::GitState>| git.as_ref().map(|git| git.dirty);
    assert_eq!((dirty(&file.git), dirty(&file.git_after)), (Some(false), Some(true)));
}

#[test]
fn a_repository_that_is_made_holds_what_was_seen_before_it() {
    let place = Place::new();
    if Command::new("git").arg("--version").output().is_err() {
        println!("skipped: git is missing");
        return;
    }
    for name in ["r/added", "r/d/untracked", "r/ignored", "outside"] {
        let path = place.work.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let snapshot = place.record(
        "cat r/added r/d/untracked r/ignored outside; git init -q r; cd r; echo ignored > .git/info/exclude; git add added",
    );
    let after = |name: &str| {
        let file = place.file(&snapshot, name);
        assert_eq!(file.git, None, "{name}");
        file.git_after.as_ref().map(|git| (git.tracked, git.ignored))
    };
    assert_eq!(after("r/added"), Some((true, false)));
    assert_eq!(after("r/d/untracked"), Some((false, false)));
    assert_eq!(after("r/ignored"), Some((false, true)));
    assert_eq!(after("outside"), None);
}

#[test]
fn a_path_that_turns_back_from_a_directory_that_is_gone_leads_nowhere() {
    for end in ["", "; : > d"] {
        for seen in ["", "test -e d/../f; "] {
            let place = Place::new();
            fs::write(place.work.join("f"), "f").unwrap();
            let script = format!("mkdir d; : > d/x; {seen}rm d/x; rmdir d{end}; cat d/../f");
            assert!(!place.record_with(&[], &script).status.success());
            let snapshot = place.snapshot();
            let recorded = place.recorded(&snapshot);
            let expected = if seen.is_empty() { &[][..] } else { &["f existence"] };
            assert_eq!(recorded.iter().filter(|name| name.starts_with("f ")).collect::<Vec<_>>(), expected);
            assert!(recorded.iter().any(|name| name.starts_with("d ")), "{recorded:?}");
        }
    }
}

#[test]
fn the_time_of_a_command_that_is_stopped_is_up_all_the_same() {
    let place = Place::new();
    assert_eq!(status(&place, &["--timeout", "1s"], "kill -STOP $$; exec sleep 1000"), 124);
    assert!(place.snapshot().header().timed_out);
}

#[test]
fn the_time_is_of_no_matter_to_what_runs_on_in_the_background() {
    let place = Place::new();
    let options = ["--survivors", "background", "--timeout", "0.3"];
    assert_eq!(status(&place, &options, "(sleep 1; echo late > file) > /dev/null 2>&1 & exit 3"), 3);
    // The lock is free when the manifest is there.
    fs::File::open(&place.out).unwrap().lock().unwrap();
    let snapshot = place.snapshot();
    assert_eq!((snapshot.header().exit_status, snapshot.header().timed_out), (3, false));
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), false), b"late\n");
}
