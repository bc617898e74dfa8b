//! What is kept for recall, how long, and what is asked for in the wrong way.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use super::{recall, recall_with, recalling};
use crate::support::{Place, SmallFilesystem};

fn configure(place: &Place, text: &str) {
    fs::create_dir_all(place.config.join("agent-snapshot")).unwrap();
    fs::write(place.config.join("agent-snapshot/config.toml"), format!("[recall]\n{text}\n")).unwrap();
}

fn entries(place: &Place) -> u64 {
    let stats = place.command().args(["recall", "stats", "--json"]).output().unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    stats["entries"].as_u64().unwrap()
}

#[test]
fn limits_are_kept_and_the_least_used_goes_first() {
    let place = Place::new();
    configure(&place, "max-size = \"350KiB\"\nmax-entry = \"150KiB\"");
    let write = |name: &str| recall(&place, &format!("head -c 100000 /dev/zero > {name}"));
    for name in ["a", "b", "c"] {
        write(name).expect_miss("");
    }
    assert_eq!(entries(&place), 3);
    write("a").expect_hit("");
    write("d").expect_miss("");
    assert_eq!(entries(&place), 3);
    write("a").expect_hit("");
    let large = recall(&place, "head -c 200000 /dev/zero > large").expect_miss("");
    assert!(large.run.stderr.contains("more than 150.00 KiB (max-entry)"), "{large:?}");
    let printed = recall(&place, "head -c 200000 /dev/zero");
    assert!(
        printed.run.stderr.contains("its output is larger than 150.00 KiB (max-entry)"),
        "{:?}",
        printed.run.stderr
    );
    assert_eq!(entries(&place), 3, "what is too large evicts nothing");
}

#[test]
fn limits_that_contradict_themselves_are_refused() {
    let place = Place::new();
    for (text, why) in [
        ("max-size = \"-1\"", "max-size: a size is a whole number"),
        ("max-size = \"1MiB\"\nmax-entry = \"2MiB\"", "max-entry is more than max-size"),
        ("max-sise = \"1MiB\"", "unknown field `max-sise`"),
    ] {
        configure(&place, text);
        for arguments in
            [&["run", "--recall", "--", "touch", "made"][..], &["recall", "stats"], &["recall", "clear"]]
        {
            let output = place.command().args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(if arguments[0] == "run" { 125 } else { 2 }), "{said}");
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
        assert!(!place.at("made").exists());
    }
}

#[test]
fn options_that_make_no_sense_together_are_refused() {
    let place = Place::new();
    for (options, why) in [
        (&["--recall", "--ttl", "5m"][..], "--ttl is for --consistency lazy"),
        (&["--recall", "--consistency", "lazy"], "--consistency lazy needs --ttl"),
        (&["--recall", "--keep", "undo"], "--recall needs the bytes after each change"),
        (&["--recall", "--deny-net"], "--recall can't be combined with rules"),
        (&["--recall-failures"], "--recall"),
        (&["--recall=maybe"], "maybe"),
    ] {
        let output = place.command().arg("run").args(options).args(["--", "touch", "made"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
        assert!(!place.at("made").exists(), "{options:?}");
    }
}

#[test]
fn young_run_is_trusted_without_a_look() {
    let place = Place::new();
    place.write("in", "one\n");
    let lazy = &["--consistency", "lazy", "--ttl", "1h"];
    recall_with(&place, lazy, "cat in").expect_miss("one\n");
    place.write("in", "two\n");
    recall_with(&place, lazy, "cat in").expect_hit("one\n");
    recall_with(&place, &["--consistency", "lazy", "--ttl", "1ms"], "cat in").expect_miss("two\n");
    recall(&place, "cat in").expect_hit("two\n");
}

#[test]
fn recording_that_is_gone_is_not_recalled() {
    let place = Place::new();
    recall(&place, "echo x").expect_miss("x\n");
    let from = recall(&place, "echo x").expect_hit("x\n").from.unwrap();
    assert!(place.command().args(["delete", &from]).output().unwrap().status.success());
    recall(&place, "echo x").expect_miss("x\n");
    recall(&place, "echo x").expect_hit("x\n");
}

#[test]
fn damaged_entries_are_not_recalled() {
    let place = Place::new();
    place.write("in", "hello\n");
    let directory = place.home.join(".local/state/agent-snapshot/recall");
    for extension in ["set", "entry", "log"] {
        recall(&place, "cat in");
        recall(&place, "cat in").expect_hit("hello\n");
        for entry in walkdir::WalkDir::new(&directory).into_iter().map(Result::unwrap) {
            if entry.path().extension().is_some_and(|found| found == extension) {
                fs::write(entry.path(), b"\x07garbage").unwrap();
            }
        }
        let after = recall(&place, "cat in");
        assert!(extension == "log" || after.from.is_none(), "{after:?}");
        if extension == "log" {
            assert_eq!(after.run.status, 125, "{after:?}");
            place.command().args(["recall", "clear"]).output().unwrap();
        }
    }
}

/// A kill at any moment of a run that is kept, or that is recalled, leaves nothing that a later run takes for whole.
#[test]
fn killed_runs_leave_no_half_output() {
    let place = Place::new();
    place.write("in", "x".repeat(3_000_000));
    let script = "cat in > one; cat in > two; cat in";
    let mut hits = 0;
    for round in 0..24_u64 {
        if round % 4 == 0 {
            place.command().args(["recall", "clear"]).output().unwrap();
        }
        if round % 2 == 0 {
            let _ = fs::remove_file(place.at("one"));
            let _ = fs::remove_file(place.at("two"));
        }
        let mut command = recalling(&place, &[], script);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The moment is what is tried, whatever it is.
        std::thread::sleep(Duration::from_millis(round * 9));
        let _ = child.kill();
        // What was started may end after it: its standard error is open until then.
        let killed = child.wait_with_output().unwrap().status.signal().is_some();
        let after = recall(&place, script);
        assert_eq!(after.run.status, 0, "{round} {killed}: {}", after.run.stderr);
        assert_eq!(after.run.stdout.len(), 3_000_000, "{round} {killed}");
        for name in ["one", "two"] {
            assert_eq!(fs::metadata(place.at(name)).unwrap().len(), 3_000_000, "{round} {killed} {name}");
        }
        hits += u32::from(after.from.is_some());
    }
    assert!(hits > 0);
}

/// Outputs that do not fit leave everything as it was, and the command runs, as it would have.
#[test]
fn full_disk_leaves_no_half_output() {
    let place = Place::new();
    let Some(_small) = SmallFilesystem::at(&place.at("small"), "size=3m") else { return };
    let script = "head -c 2000000 /dev/zero > small/one; head -c 500000 /dev/zero > small/two";
    recall(&place, script).expect_miss("");
    recall(&place, script).expect_hit("");
    fs::remove_file(place.at("small/one")).unwrap();
    fs::remove_file(place.at("small/two")).unwrap();
    fs::write(place.at("small/other"), vec![1; 1_500_000]).unwrap();
    let full = recall(&place, script);
    assert!(full.from.is_none(), "{full:?}");
    assert_ne!(full.run.status, 0, "the command itself finds the disk full");
    fs::remove_file(place.at("small/other")).unwrap();
    for name in ["one", "two"] {
        let _ = fs::remove_file(place.at("small").join(name));
    }
    recall(&place, script).expect_hit("");
    assert_eq!(fs::metadata(place.at("small/one")).unwrap().len(), 2_000_000);
}
