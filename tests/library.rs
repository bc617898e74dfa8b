//! The library: what `run` records, `log` lists and verbs name, from one user's and another's side.

mod delete;
mod hard_links;
mod history;
mod interrupted;
mod killed;
mod linked_programs;
mod paths;
mod pick;
mod session;
mod stress;
mod taken_back;
mod undo;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use agent_snapshot::snapshot::{FileRecord, Snapshot, WarningKind};

use crate::support::{BINARY, MECHANISMS, Place, Run, User, bytes, kill, lost, stderr, wait};

/// Where the library of a place is.
fn library(place: &Place) -> PathBuf {
    place.home.join(".local/state/agent-snapshot")
}

fn run_command(place: &Place, options: &[&str], script: &str) -> Command {
    let mut command = place.command();
    command.arg("run").args(options).args(["--", "sh", "-c", script]);
    command
}

#[track_caller]
fn run(place: &Place, options: &[&str], script: &str) -> Output {
    let output = run_command(place, options, script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// Runs a verb in the working directory.
fn verb(place: &Place, arguments: &[&str]) -> Run {
    place.command().args(arguments).output().unwrap().into()
}

fn log(place: &Place, arguments: &[&str]) -> Vec<serde_json::Value> {
    let run = verb(place, &[&["log", "--json"], arguments].concat()).expect(0);
    let log: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    log["recordings"].as_array().unwrap().clone()
}

/// The text of a file, if it is there.
fn read(place: &Place, name: &str) -> Option<String> {
    fs::read_to_string(place.at(name)).ok()
}

fn newest(place: &Place) -> String {
    log(place, &["--all", "--reads"])[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn commands_are_recorded_listed_and_named() {
    for user in [User::Current, User::Nobody] {
        let place = Place::of(user);
        run(&place, &[], "echo one > f; mkdir d; echo x > d/x");
        run(&place, &["--name", "second"], "echo two > f; rm -r d");
        run(&place, &[], "cat f");
        let listed = log(&place, &[]);
        let commands: Vec<_> = listed.iter().map(|entry| entry["command"][2].as_str().unwrap()).collect();
        assert_eq!(commands, ["echo two > f; rm -r d", "echo one > f; mkdir d; echo x > d/x"]);
        let counts = |key: &str| listed.iter().map(|entry| entry[key].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!([counts("created"), counts("changed"), counts("deleted")], [[0, 3], [1, 0], [2, 0]]);
        let text = verb(&place, &["log"]).expect(0).stdout;
        assert!(text.ends_with("and 1 command that changed nothing (--reads lists them)\n"), "{text}");
        assert_eq!(log(&place, &["--reads"]).len(), 3);
        assert_eq!(log(&place, &["--path", "d"]).len(), 2);
        assert_eq!(log(&place, &["--path", "d/none"]).len(), 0);
        let second = listed[0]["id"].as_str().unwrap();
        let names = ["@~1", second, &second[..5], "second"].map(str::to_owned);
        let directory = library(&place).join("snapshots").join(second);
        for name in names.into_iter().chain([directory.display().to_string()]) {
            let before = verb(&place, &["cat", &name, "f", "--before"]).expect(0);
            assert_eq!(before.stdout, "one\n", "{name}");
        }
        verb(&place, &["restore", "--before", "second"]).expect(0);
        assert_eq!(fs::read_to_string(place.at("d/x")).unwrap(), "x\n");
        assert_eq!(Snapshot::open(&directory).unwrap().header().id[..8], *second);
        assert_eq!(fs::metadata(library(&place)).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn word_that_names_no_snapshot_is_refused_with_candidates() {
    let place = Place::new();
    assert_eq!(verb(&place, &["show", "@"]).status, 3);
    // A path that is no start of an identifier.
    run(&place, &["--name", "same"], "echo 1 > file");
    run(&place, &["--name", "same"], "echo 2 > file");
    let id = newest(&place);
    let mut slip = id.clone().into_bytes();
    slip[3] = if slip[3] == b'a' { b'b' } else { b'a' };
    let slip = String::from_utf8(slip).unwrap();
    for (word, said) in [
        ("same", "same could be several snapshots"),
        ("@~2", "only 2 commands were recorded here"),
        ("@x", "names no snapshot"),
        (&id[..1], "too short"),
        (slip.as_str(), id.as_str()),
        ("no-such-word", "there is no snapshot no-such-word"),
    ] {
        let run = verb(&place, &["show", word]).expect(3);
        assert!(run.stderr.contains(said), "{word}: {run:?}");
    }
    // Nothing is run, though a command goes unrecorded where recording is impossible.
    for wrong in [["--name", &id], ["--name", "@"], ["--name", "a/b"], ["--ignore", ""]] {
        let output = run_command(&place, &wrong, "echo ran").output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]), "{wrong:?}");
        assert!(stderr(&output).contains(wrong[0]), "{wrong:?}");
    }
}

/// What a recording's name, a path and neither mean, where the verb takes both.
#[test]
fn first_word_of_show_and_diff_is_a_recording_or_a_path() {
    let place = Place::new();
    run(&place, &["--name", "older"], "mkdir d; echo old > d/f; echo old > older; echo gone > gone");
    run(&place, &["--keep", "all"], "echo new > d/f; rm gone; cat older");
    let last = newest(&place);
    let from = |directory: &str, arguments: &[&str]| -> Run {
        place.command().current_dir(place.at(directory)).args(arguments).output().unwrap().into()
    };
    let which = format!("agent-snapshot: {last}: sh -c 'echo new > d/f; rm gone; cat older'\n");
    // A path that is there, from another directory, one that the recording alone has, and paths after `--`.
    for (directory, paths) in [
        ("", &["d"][..]),
        ("d", &["f"]),
        ("", &["gone"]),
        ("", &["--", "d/f", "gone"]),
        ("", &["d", "--", "gone"]),
    ] {
        for verb in ["show", "diff", "show --json"] {
            let words: Vec<_> = verb.split(' ').chain(paths.iter().copied()).collect();
            let paths = paths.iter().copied().filter(|path| *path != "--");
            let by_name: Vec<_> = verb.split(' ').chain([last.as_str()]).chain(paths).collect();
            let (short, long) = (from(directory, &words).expect(0), from(directory, &by_name).expect(0));
            assert_eq!(short.stdout, long.stdout, "{words:?}");
            assert_eq!((short.stderr, long.stderr.as_str()), (which.clone(), ""), "{words:?}");
        }
    }
    assert!(from("", &["diff", "d"]).stdout.contains("+new"));
    // The name of a recording comes first, and that is said where it is a path, too.
    let named = from("", &["diff", "older"]).expect(0);
    assert!(named.stdout.contains("+old"), "{named:?}");
    assert!(named.stderr.contains("older is taken for the recording"), "{named:?}");
    assert!(named.stderr.contains(": -- older means the path\n"), "{named:?}");
    let path = from("", &["show", "--", "older"]).expect(0);
    assert!(path.stdout.contains("older") && path.stderr == which, "{path:?}");
    let attested = from("", &["attest"]).expect(0);
    assert_eq!(
        (attested.stdout, attested.stderr),
        (from("", &["attest", &last]).expect(0).stdout, which.clone())
    );
    // What is neither is an unknown recording, and no recording is named instead.
    for word in ["neither", "./neither"] {
        let unknown = from("", &["show", word]).expect(3);
        assert!(!unknown.stderr.contains(&last) && unknown.stderr.contains("neither"), "{unknown:?}");
    }
    // A path that the last recording does not know is not looked for in others.
    fs::write(place.at("other"), "").unwrap();
    let other = from("", &["show", "other"]).expect(1);
    assert!(other.stderr.starts_with(&which) && other.stderr.contains("show other: "), "{other:?}");
}

#[test]
fn verbs_without_a_recording_are_about_the_last_that_changed_something() {
    let place = Place::new();
    let none = verb(&place, &["show"]).expect(3);
    assert!(none.stderr.contains("no command that changed something was recorded here"), "{none:?}");
    fs::create_dir(place.at("elsewhere")).unwrap();
    place.prepare("git init -q elsewhere");
    // A single argument of `cat` is the path, whatever recordings are called.
    run(&place, &["--name", "f"], "echo one > f");
    let last = newest(&place);
    run(&place, &[], "cat f");
    for arguments in [
        ["show"].as_slice(),
        &["show", "--json"],
        &["diff"],
        &["verify"],
        &["check", "--allow-write", "**"],
        &["report", "--markdown"],
        &["cat", "f"],
    ] {
        let by_name = [&arguments[..1], &[&last], &arguments[1..]].concat();
        let (short, long) = (verb(&place, arguments).expect(0), verb(&place, &by_name).expect(0));
        assert_eq!(short.stdout, long.stdout, "{arguments:?}");
        assert_eq!(short.stderr, format!("agent-snapshot: {last}: sh -c 'echo one > f'\n"), "{arguments:?}");
    }
    let mut elsewhere = place.command();
    let elsewhere: Run = elsewhere.current_dir(place.at("elsewhere")).arg("show").output().unwrap().into();
    elsewhere.expect(3);
}

#[test]
fn library_that_is_still_being_made_is_empty() {
    let place = Place::new();
    let root = library(&place);
    fs::create_dir_all(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    for (arguments, status) in [
        (["log"].as_slice(), 0),
        (&["stats"], 0),
        (&["fsck"], 0),
        (&["history", "f"], 1),
        (&["show"], 3),
        (&["undo"], 1),
        (&["redo"], 1),
    ] {
        verb(&place, arguments).expect(status);
    }
}

#[test]
fn log_has_the_scope_of_the_working_tree() {
    let place = Place::new();
    place.prepare("git init -q one; git init -q two; mkdir one/deep");
    run(&place, &[], "cd one; echo > f");
    run(&place, &[], "cd two; echo > f");
    let count = |directory: &str, arguments: &[&str]| {
        let mut command = place.command();
        let output = command.current_dir(place.at(directory)).arg("log").args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    assert_eq!([count("one", &[]), count("one/deep", &[]), count("two", &[]), count("", &[])], [1, 1, 1, 2]);
    assert_eq!([count("one", &["--all"]), count("one", &["--all", "--limit", "1"])], [2, 2]);
    // One, and how many are older.
    assert_eq!([count("one", &["--all", "-n", "1"]), count("one", &["--all", "-n2"])], [2, 2]);
    assert_eq!(count("one", &["--all", "--since", "1h"]), 2);
}

#[test]
fn git_directory_that_is_no_repository_makes_no_workspace() {
    let place = Place::new();
    let check = |directory: &str| {
        let _ = fs::remove_dir_all(&place.out);
        let mut recorder = place.recording();
        let output = recorder.current_dir(place.at(directory)).args(["sh", "-c", "echo > ../g"]).output();
        assert!(output.unwrap().status.success());
        let mut check = place.command();
        check
            .current_dir(place.at(directory))
            .arg("check")
            .arg(&place.out)
            .args(["--allow-write", "@workspace"]);
        check.output().unwrap().status.code()
    };
    place.prepare("git init -q real; mkdir -p real/inner empty/.git empty/inner broken/inner");
    place.write("broken/.git", "gitdir: nowhere\n");
    assert_eq!(["real/inner", "empty/inner", "broken/inner"].map(check), [Some(0), Some(1), Some(1)]);
}

#[test]
fn sessions_see_their_own_recordings_alone() {
    let place = Place::new();
    let in_session = |session: &str, arguments: &[&str]| -> Run {
        place.command().env("AGENT_SNAPSHOT_SESSION", session).args(arguments).output().unwrap().into()
    };
    in_session("one", &["run", "--name", "of-one", "sh", "-c", "echo > f"]).expect(0);
    in_session("two", &["run", "sh", "-c", "echo > g"]).expect(0);
    let of_agent = place.command().env("CODEX_THREAD_ID", "three").args(["run", "touch", "h"]).status();
    assert!(of_agent.unwrap().success());
    assert_eq!(in_session("one", &["log"]).stdout.lines().count(), 1);
    assert!(in_session("one", &["show", "@"]).stdout.contains("echo > f"));
    assert_eq!(log(&place, &[]).len(), 3, "without a session all are seen");
    assert_eq!(log(&place, &["--session", "three"]).len(), 1);
    let denied = in_session("two", &["restore", "--before", "of-one"]).expect(3);
    assert!(denied.stderr.contains("belongs to another session"), "{denied:?}");
    assert!(place.at("f").exists() && !library(&place).join("audit.jsonl").exists());
    in_session("two", &["restore", "--before", "of-one", "--allow-cross-session"]).expect(0);
    let audit = fs::read_to_string(library(&place).join("audit.jsonl")).unwrap();
    let crossing: serde_json::Value = serde_json::from_str(audit.trim()).unwrap();
    assert_eq!(crossing["caller"], "two");
    assert!(!place.at("f").exists());
}

#[test]
fn recorded_tree_cannot_change_the_library() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        run(&place, &["--mechanism", mechanism], "echo one > f");
        let root = library(&place);
        let before = fs::read(root.join("log.jsonl")).unwrap();
        let script = "rm -rf ~/.local; mv ~/.local ~/away; ln -s ~/.local l; rm -rf l/state/agent-snapshot/*
            echo x >> ~/.local/state/agent-snapshot/log.jsonl; chmod 0 ~/.local/state/agent-snapshot
            ln ~/.local/state/agent-snapshot/log.jsonl hard; mkdir ~/.local/state/agent-snapshot/mine
            cat ~/.local/state/agent-snapshot/log.jsonl > copy; mkdir ~/.local/beside && touch ~/.local/beside/made";
        let output = run(&place, &["--mechanism", mechanism], script);
        let said = String::from_utf8(output.stderr).unwrap();
        let refused = said.lines().filter(|line| line.contains("Operation not permitted")).count();
        assert!(refused >= 7, "{said}");
        assert!(!place.at("hard").exists() && place.home.join(".local/beside/made").exists());
        assert_eq!(fs::read(place.at("copy")).unwrap(), before);
        assert_eq!(log(&place, &[]).len(), 2);
        let snapshot = Snapshot::open(&root.join("snapshots").join(newest(&place))).unwrap();
        assert_eq!(lost(&snapshot), []);
        let warnings = &snapshot.header().warnings;
        assert!(warnings.iter().any(|warning| warning.kind == WarningKind::Library), "{warnings:?}");
        let root = root.as_os_str().as_encoded_bytes();
        assert!(snapshot.files().iter().all(|file| !file.path.starts_with(root)));
        // A recording into a directory is no other.
        place.record("rm -rf ~/.local || true");
        assert_eq!(log(&place, &[]).len(), 2);
        // But our own program may.
        run(&place, &["--mechanism", mechanism], &format!("{BINARY} restore --before @~1; echo last > f"));
        assert!(!place.at("copy").exists());
    }
}

#[test]
fn library_that_can_not_be_used_is_told_once_and_the_command_runs() {
    let place = Place::of(User::Nobody);
    let runs = |home: &std::path::Path| -> Run {
        let mut command = run_command(&place, &[], "echo ran");
        command.env("HOME", home).output().unwrap().into()
    };
    let ran = runs(&place.home).expect(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("ran\n", ""));
    // One that others may write to.
    let root = library(&place);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    let ran = runs(&place.home).expect(0);
    assert_eq!(ran.stdout, "ran\n");
    assert!(ran.stderr.contains("may write to the library") && ran.stderr.lines().count() == 1, "{ran:?}");
    assert_eq!(verb(&place, &["log"]).status, 3);
    let ran: Run = run_command(&place, &["--if-unavailable", "fail"], "echo ran").output().unwrap().into();
    assert_eq!((ran.status, ran.stdout.as_str()), (125, ""));
}

#[test]
fn library_is_found_where_the_environment_says() {
    let place = Place::new();
    let (chosen, state) = (place.base().join("chosen"), place.base().join("state"));
    let set = |name: &str, value: &str| -> Output {
        run_command(&place, &[], "true").env(name, value).output().unwrap()
    };
    assert!(set("AGENT_SNAPSHOT_LIBRARY", &chosen.display().to_string()).status.success());
    assert!(chosen.join("log.jsonl").exists());
    assert!(set("XDG_STATE_HOME", &state.display().to_string()).status.success());
    assert!(state.join("agent-snapshot/log.jsonl").exists());
    assert!(set("XDG_STATE_HOME", "relative").status.success());
    assert!(library(&place).join("log.jsonl").exists() && !place.at("relative").exists());
}

#[test]
fn recordings_at_once_and_killed_ones_leave_a_log_that_is_whole() {
    let place = Place::new();
    let children: Vec<_> = (0..12)
        .map(|i| run_command(&place, &["--quiet"], &format!("echo {i} > f{i}")).spawn().unwrap())
        .collect();
    for mut child in children {
        assert!(wait(&mut child).success());
    }
    assert_eq!(log(&place, &[]).len(), 12);
    // A line that a killed process has left unfinished.
    let path = library(&place).join("log.jsonl");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    assert_eq!(log(&place, &[]).len(), 12);
    run(&place, &[], "echo more > more");
    assert_eq!(log(&place, &[]).len(), 13);
    fs::remove_file(&path).unwrap();
    let entries = log(&place, &[]);
    assert_eq!(entries.len(), 13);
    assert_eq!(entries[0]["command"][2], "echo more > more");
    // One that runs, and one whose front is killed.
    place.prepare("mkfifo go ready");
    let mut command = run_command(&place, &["--quiet"], "rm f0; echo > ready; read line < go; sleep 1000");
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    place.prepare("read line < ready");
    assert_eq!(log(&place, &[])[0]["state"], "running");
    kill(child.id().cast_signed());
    wait(&mut child);
    let show = verb(&place, &["show", "@"]).expect(0);
    assert!(show.stdout.contains("killed"), "{show:?}");
    assert_eq!(log(&place, &[])[0]["state"], "killed");
    verb(&place, &["restore", "--before", "@"]).expect(0);
    assert_eq!(fs::read(place.at("f0")).unwrap(), b"0\n");
}

#[test]
fn bytes_are_kept_as_an_undo_needs_them() {
    let place = Place::new();
    place.write("f", "old\n");
    run(&place, &[], "cat /etc/passwd > read; echo new > f");
    let path = library(&place).join("snapshots").join(newest(&place));
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"old\n");
    assert!(snapshot.find(b"/etc/passwd").is_none_or(FileRecord::is_without_states));
    run(&place, &["--keep", "all"], "cat f");
    let path = library(&place).join("snapshots").join(newest(&place));
    assert!(!Snapshot::open(&path).unwrap().find(&place.path("f")).unwrap().is_without_states());
}

#[test]
fn recording_that_did_not_start_leaves_nothing() {
    let place = Place::new();
    place.write("broken", "#!/no/such/interpreter\n");
    place.prepare("chmod +x broken");
    let output = place.command().args(["run", "./broken"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let outer = run(&place, &[], &format!("{BINARY} run --quiet touch inner; touch outer"));
    assert!(place.at("inner").exists() && outer.status.success());
    let names: Vec<_> = fs::read_dir(library(&place).join("snapshots")).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn damaged_snapshot_does_not_keep_the_others_from_being_listed() {
    let place = Place::new();
    run(&place, &[], "echo 1 > f");
    let first = library(&place).join("snapshots").join(newest(&place));
    run(&place, &[], "echo 2 > f");
    fs::write(first.join("manifest.json"), "{").unwrap();
    assert_eq!(log(&place, &["--path", "f"]).len(), 2);
    verb(&place, &["show", "@"]).expect(0);
    assert!(verb(&place, &["show", "@~1"]).expect(3).stderr.contains("manifest.json"));
}

#[test]
fn reference_that_a_program_was_given_names_the_snapshot() {
    let place = Place::new();
    place.write("f", "old\n");
    let reported = run(&place, &["--json", "--session", "s"], "echo new > f");
    let report: serde_json::Value = serde_json::from_slice(&reported.stderr).unwrap();
    let mut reference = serde_json::json!({ "provider_id": report["provider_id"], "ref": report["ref"] });
    reference["ref"]["note"] = "of the program".into();
    let text = reference.to_string();
    let cat = verb(&place, &["cat", "--before", "f", "--ref", &text]).expect(0);
    assert_eq!(cat.stdout, "old\n");
    // Into a directory that has entries already, and not over them.
    fs::create_dir(place.at("parent")).unwrap();
    fs::write(place.at("parent/mine"), "mine").unwrap();
    verb(&place, &["branch", &newest(&place), "parent/", "f"]).expect(2);
    let place_of_branch = |record: &[&str]| -> serde_json::Value {
        let recorded = run(&place, &[&["--keep", "all", "--json"], record].concat(), "cat f");
        let report: serde_json::Value = serde_json::from_slice(&recorded.stderr).unwrap();
        let text = serde_json::json!({ "provider_id": "agent-snapshot", "ref": report["ref"] }).to_string();
        let branch = verb(&place, &["branch", "parent/", "f", "--ref", &text, "--json"]).expect(0);
        serde_json::from_str(&branch.stdout).unwrap()
    };
    let branch = place_of_branch(&[]);
    assert_eq!(branch["ref"]["id"], branch["id"]);
    let id = &branch["id"].as_str().unwrap()[..8];
    let dir = format!("parent/work-restored-{id}");
    assert_eq!(branch["dir"], dir);
    let built = place.at(dir);
    let file = built.join(place.at("f").strip_prefix("/").unwrap());
    assert_eq!(fs::read_to_string(file).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(place.at("parent/mine")).unwrap(), "mine");
    // Another session's, another provider's, another snapshot in its place, and none.
    let mut other = place.command();
    other.env("AGENT_SNAPSHOT_SESSION", "other").args(["show", "--ref", &text]);
    let refused: Run = other.output().unwrap().into();
    assert!(refused.expect(3).stderr.contains("belongs to another session"));
    for (key, value) in [("provider_id", "other"), ("more", "x"), ("ref", "no object")] {
        let mut wrong = reference.clone();
        wrong[key] = value.into();
        let refused = verb(&place, &["show", "--ref", &wrong.to_string()]).expect(3);
        assert!(refused.stderr.contains("is not a reference"), "{refused:?}");
    }
    place.record("true");
    let out = place.out.to_str().unwrap();
    reference["ref"]["directory"] = out.into();
    let refused = verb(&place, &["show", "--ref", &reference.to_string()]).expect(3);
    assert!(refused.stderr.contains("holds another snapshot"), "{refused:?}");
    verb(&place, &["undo", "--ref", &text]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "old\n");
}
