//! What a recalled run leaves and prints.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

use super::{finish, recall, recall_with, recalling};
use crate::support::{Place, User, open_pty, scan};

#[test]
fn second_run_is_recalled_for_every_user() {
    for user in User::all() {
        let place = Place::of(*user);
        place.write("in", "hello\n");
        let script = "cat in > out; cat in; echo err >&2";
        recall(&place, script).expect_miss("hello\n");
        let inode = place.inode("out");
        let second = recall(&place, script).expect_hit("hello\n");
        assert_eq!(second.run.stderr, "err\n");
        assert_eq!(place.inode("out"), inode, "what is as it was left stays");
        place.write("in", "other\n");
        recall(&place, script).expect_miss("other\n");
        assert_eq!(fs::read(place.at("out")).unwrap(), b"other\n");
    }
}

#[test]
fn outputs_come_back_as_a_run_would_leave_them() {
    let place = Place::new();
    place.write("in", "hello\n");
    place.write("old", "x");
    let script = "cat in > b; mkdir d; cat in > d/a; chmod 750 d/a; ln -s b link; rm old; : > empty";
    let make = || place.write("old", "x");
    recall(&place, script).expect_miss("");
    let left = scan(&place.work);
    for name in ["b", "link", "empty", "d"] {
        let path = place.at(name);
        if name == "d" { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    make();
    recall(&place, script).expect_hit("");
    let again = scan(&place.work);
    assert_eq!(left.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>());
    for (path, entry) in &left {
        let now = &again[path];
        assert_eq!((entry.present.mode, &entry.content), (now.present.mode, &now.content));
        assert_eq!(entry.present.target, now.present.target);
    }
    let modified = |name: &str| {
        let metadata = fs::metadata(place.at(name)).unwrap();
        (metadata.mtime(), metadata.mtime_nsec())
    };
    assert!(modified("b") > modified("in") && modified("b") <= modified("d/a"), "fresh, in their order");
    assert!(modified("d/a") <= modified("empty"));
}

#[test]
fn time_that_the_command_has_set_comes_back() {
    let place = Place::new();
    let script = "echo x > f; touch -d 2001-02-03 f";
    recall(&place, script).expect_miss("");
    let set = fs::metadata(place.at("f")).unwrap().mtime();
    fs::remove_file(place.at("f")).unwrap();
    recall(&place, script).expect_hit("");
    assert_eq!(fs::metadata(place.at("f")).unwrap().mtime(), set);
}

#[test]
fn edited_output_runs_the_command() {
    let place = Place::new();
    let script = "echo made > out";
    recall(&place, script).expect_miss("");
    place.write("out", "my own");
    recall(&place, script).expect_miss("");
    assert_eq!(fs::read(place.at("out")).unwrap(), b"made\n");
    fs::set_permissions(place.at("out"), fs::Permissions::from_mode(0o600)).unwrap();
    recall(&place, script).expect_miss("");
    assert_eq!(place.at("out").metadata().unwrap().mode() & 0o777, 0o600, "as alone");
}

#[test]
fn both_streams_come_back_in_one_order() {
    let place = Place::new();
    let script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done; printf 'no newline'";
    let merged = || {
        let mut shell = place.program("sh");
        let command = "exec \"$0\" run --recall -- sh -c \"$1\" 2>&1";
        shell.args(["-c", command, crate::support::BINARY, script]).stdin(Stdio::null());
        String::from_utf8(shell.output().unwrap().stdout).unwrap()
    };
    let expected: String = (1..=5).map(|i| format!("out {i}\nerr {i}\n")).collect();
    for _ in 0..3 {
        assert_eq!(merged(), format!("{expected}no newline"));
    }
    let apart = recall(&place, script).expect_miss("out 1\nout 2\nout 3\nout 4\nout 5\nno newline");
    let again = recall(&place, script).expect_hit(&apart.run.stdout);
    assert_eq!(again.run.stderr, apart.run.stderr);
}

#[test]
fn binary_and_large_output_comes_back() {
    let place = Place::new();
    let script = "head -c 20000000 /dev/zero | tr '\\0' '\\377'; printf 'a\\0b' >&2";
    for is_hit in [false, true] {
        let output = recalling(&place, &["--quiet"], script).output().unwrap();
        assert_eq!(output.stdout.len(), 20_000_000, "{is_hit}");
        assert!(output.stdout.iter().all(|byte| *byte == 0xff));
        assert!(output.stderr.starts_with(b"a\0b"));
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains("recalled_from"), is_hit);
    }
}

#[test]
fn reader_that_leaves_ends_the_command_as_a_pipe_does() {
    let place = Place::new();
    let mut shell = place.program("sh");
    let command = "\"$0\" run --recall --quiet -- sh -c 'yes; echo $? > status' | head -n 1";
    let output = shell.args(["-c", command, crate::support::BINARY]).output().unwrap();
    assert_eq!(output.stdout, b"y\n");
    let mut bare = place.program("sh");
    bare.args(["-c", "sh -c 'yes; echo $? > bare' | head -n 1"]).output().unwrap();
    assert_eq!(fs::read(place.at("status")).unwrap(), fs::read(place.at("bare")).unwrap());
}

#[test]
fn two_runs_at_once_are_two_whole_runs() {
    let place = Place::new();
    place.write("in", "hello\n");
    let script = "cat in; cat in > out";
    for round in 0..3 {
        let runs: Vec<_> = (0..4)
            .map(|_| {
                let mut command = recalling(&place, &[], script);
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        for run in runs {
            let output = run.wait_with_output().unwrap();
            assert!(output.status.success(), "{round}: {output:?}");
            assert_eq!(output.stdout, b"hello\n");
        }
        assert_eq!(fs::read(place.at("out")).unwrap(), b"hello\n");
    }
    recall(&place, script).expect_hit("hello\n");
}

#[test]
fn check_runs_the_command_and_tells_what_differs() {
    let place = Place::new();
    let check = |options: &[&str], script: &str| {
        let mut command = place.command();
        command.args(["run", "--recall=check"]).args(options).args(["--", "sh", "-c", script]);
        finish(command).run
    };
    let same = "echo same > f; echo printed";
    for _ in 0..3 {
        assert_eq!(check(&[], same).expect(0).stdout, "printed\n");
    }
    // What no call tells of: the clock.
    let other = "date +%N > f; date +%N";
    check(&[], other).expect(0);
    let run = check(&[], other).expect(125);
    assert!(run.stderr.contains("the same inputs gave another result"), "{}", run.stderr);
    assert!(run.stderr.contains("it printed something else"), "{}", run.stderr);
    assert!(run.stderr.contains(&format!("{} differs", place.at("f").display())), "{}", run.stderr);
}

#[test]
fn undo_takes_back_what_a_recall_has_put_in_place() {
    let place = Place::new();
    place.write("in", "hello\n");
    let script = "cat in > out";
    recall(&place, script).expect_miss("");
    let undo = || place.command().args(["undo"]).output().unwrap();
    assert!(undo().status.success());
    assert!(!place.at("out").exists());
    recall(&place, script).expect_hit("");
    assert_eq!(fs::read(place.at("out")).unwrap(), b"hello\n");
    let output = undo();
    assert!(output.status.success(), "{output:?}");
    assert!(!place.at("out").exists());
}

#[test]
fn standard_input_counts_if_it_is_a_file() {
    let place = Place::new();
    place.write("one", "one\n");
    place.write("two", "two\n");
    let read = |name: &str| {
        let mut command = recalling(&place, &[], "cat");
        command.stdin(fs::File::open(place.at(name)).unwrap());
        let output = command.output().unwrap();
        let is_hit = String::from_utf8_lossy(&output.stderr).contains("recalled_from");
        (String::from_utf8(output.stdout).unwrap(), is_hit)
    };
    assert_eq!(read("one"), ("one\n".to_owned(), false));
    assert_eq!(read("two"), ("two\n".to_owned(), false));
    assert_eq!(read("one"), ("one\n".to_owned(), true));
    let command = "{ \"$0\" run --recall --quiet -- head -n 1; cat; } < lines";
    // As much as head reads at once, and more.
    place.write("lines", format!("first\n{}last\n", "x".repeat(100_000)));
    let [alone, recorded, recalled] = ["head -n 1", "", ""].map(|program| {
        let mut shell = place.program("sh");
        let command =
            if program.is_empty() { command.to_owned() } else { format!("{{ {program}; cat; }} < lines") };
        shell.args(["-c", &command, crate::support::BINARY]).output().unwrap().stdout
    });
    assert_eq!((recorded == alone, recalled == alone), (true, true));
}

#[test]
fn command_with_another_standard_input_runs_with_it_and_is_not_recalled() {
    let place = Place::new();
    let piped = |text: &str| {
        let mut command = recalling(&place, &[], "cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    for text in ["one", "one", "two"] {
        let output = piped(text);
        assert_eq!(output.stdout, text.as_bytes());
        let said = String::from_utf8(output.stderr).unwrap();
        let why = "nothing is recalled, and this run is not kept for recall: standard input is a pipe, not a regular file";
        assert_eq!(said.matches(why).count(), 1, "{said}");
    }
    // At a terminal.
    let (mut ours, theirs) = open_pty();
    let mut command = recalling(&place, &[], "head -n 1");
    command.stdin(theirs).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command);
    ours.write_all(b"typed\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"typed\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard input is a terminal"), "{output:?}");
}

#[test]
fn summary_says_what_was_recalled() {
    let place = Place::new();
    let command = || {
        let mut command = place.command();
        command.args(["run", "--recall", "--report", "summary", "--", "echo", "x"]);
        finish(command).run
    };
    command().expect(0);
    let second = command().expect(0);
    assert!(second.stderr.starts_with("agent-snapshot: recalled from "), "{}", second.stderr);
    let stats = place.command().args(["recall", "stats", "--json"]).output().unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    assert_eq!((&stats["entries"], &stats["commands"]), (&1.into(), &1.into()));
    let cleared = place.command().args(["recall", "clear"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&cleared.stdout).starts_with("removed 1 run of 1 command, "),
        "{cleared:?}"
    );
    assert!(!command().stderr.contains("recalled"));
}

#[test]
fn recalled_failure_has_its_status_if_it_is_allowed() {
    let place = Place::new();
    let script = "echo before; exit 3";
    for hit in [false, true] {
        let run = recall_with(&place, &["--recall-failures"], script);
        assert_eq!((run.run.status, run.from.is_some()), (3, hit), "{run:?}");
        assert_eq!(run.run.stdout, "before\n");
    }
}
