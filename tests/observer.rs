//! How the tracer treats what an observer answers, as seen by the traced command and by the observer.
//!
//! `test_programs/observer.rs` is the tracer.

use std::process::Output;
use std::thread;

use crate::support::{MECHANISMS, Place, program};

/// A read-only syscall: `test -e` is built into the shell, which makes no other syscall on that name.
const READ: &str = "test -e second";
const CHANGE: &str = "mkdir second";

/// Traces `sh -c script` by `rule`.
fn observe(place: &Place, rule: &str, mechanism: &str, script: &str) -> Output {
    let mut command = place.program("timeout");
    command.args(["--kill-after=5", "60"]).arg(program("observer"));
    command.args([rule, mechanism, "/bin/sh", "-c", script]).output().unwrap()
}

/// The lines that the observer printed; it must have succeeded.
fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// How often the syscall on `name` was classified.
fn judged(lines: &[String], name: &str) -> u32 {
    let line = lines.iter().find(|line| line.starts_with("judged") && line.contains(name));
    let line = line.unwrap_or_else(|| panic!("no syscall on {name}: {lines:#?}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn at(lines: &[String], what: &str) -> Option<usize> {
    lines.iter().position(|line| line.starts_with("over") && line.ends_with(what))
}

#[test]
fn postponed_syscall_is_classified_again_until_overdue() {
    let check = |mechanism, script| {
        let place = Place::new();
        let lines = lines(&observe(&place, "forever", mechanism, &format!("{script}; mkdir third")));
        assert!(judged(&lines, "second") > 2, "{mechanism}: {lines:#?}");
        assert!(lines.last().unwrap().starts_with("overdue: true"), "{mechanism}: {lines:#?}");
        assert!(at(&lines, "second").is_some(), "{mechanism}: {lines:#?}");
        assert_eq!(place.at("second").exists(), script == CHANGE);
        assert!(place.at("third").exists());
    };
    // Each waits for seconds, so all at once.
    thread::scope(|scope| {
        for mechanism in MECHANISMS {
            for script in [CHANGE, READ] {
                scope.spawn(move || check(mechanism, script));
            }
        }
    });
}

#[test]
fn postponed_syscall_continues_when_the_decision_changes() {
    for mechanism in MECHANISMS {
        for script in [CHANGE, READ] {
            let place = Place::new();
            let lines = lines(&observe(&place, "thrice", mechanism, script));
            assert!((2..=4).contains(&judged(&lines, "second")), "{mechanism}: {lines:#?}");
            assert!(at(&lines, "second").is_some(), "{mechanism}: {lines:#?}");
        }
    }
}

#[test]
fn postponed_syscall_runs_after_the_one_it_waits_for() {
    for mechanism in MECHANISMS {
        for (second, first) in [
            (CHANGE, "mkdir first"),
            (READ, "test -e first"),
            (CHANGE, "test -e first"),
            (READ, "mkdir first"),
        ] {
            let place = Place::new();
            let script = format!("{second} & {first}; wait");
            let lines = lines(&observe(&place, "after-first", mechanism, &script));
            let (first, second) = (at(&lines, "first").unwrap(), at(&lines, "second").unwrap());
            // On a machine that is busy elsewhere, the first may come too late.
            let overdue = lines.last().unwrap().starts_with("overdue: true");
            assert!(first < second || overdue, "{mechanism}: {lines:#?}");
        }
    }
}

#[test]
fn killed_thread_drops_its_postponed_syscall() {
    for mechanism in MECHANISMS {
        for script in [CHANGE, READ] {
            let place = Place::new();
            let script = format!("({script}; mkdir third) & wait; mkdir fourth");
            let lines = lines(&observe(&place, "killed", mechanism, &script));
            assert!(lines.last().unwrap().contains("killed: 1"), "{mechanism}: {lines:#?}");
            assert_eq!(at(&lines, "second"), None, "{mechanism}: {lines:#?}");
            assert!(!place.at("second").exists());
            assert!(place.at("fourth").exists());
        }
    }
}

#[test]
fn panicking_observer_does_not_affect_the_command() {
    let script = "mkdir first; mkdir second; test -e first || echo lost; test -e second || echo lost
        sh -c 'kill -s TERM $$' & trap 'echo handled' USR1; kill -s USR1 $$; wait; echo alone";
    for mechanism in MECHANISMS {
        for rule in ["panic-before", "panic-after", "panic-always"] {
            let place = Place::new();
            let lines = lines(&observe(&place, rule, mechanism, script));
            assert_eq!(lines[..2], ["handled", "alone"], "{mechanism}, {rule}: {lines:#?}");
            assert!(lines.last().unwrap().ends_with("failed: true"), "{mechanism}, {rule}: {lines:#?}");
            assert!(place.at("first").exists() && place.at("second").exists());
        }
    }
}

#[test]
fn observer_sees_only_fatal_core_dumping_signals() {
    let script = "ulimit -c 0; trap : QUIT ABRT; kill -s QUIT $$; kill -s ABRT $$; trap '' QUIT; kill -s QUIT $$
        kill -s WINCH $$; sh -c 'kill -s TERM $$'; sh -c 'kill -s SEGV $$'; sh -c 'trap - QUIT; kill -s QUIT $$'
        sh -c 'kill -s SYS $$'; true";
    for mechanism in MECHANISMS {
        let lines = lines(&observe(&Place::new(), "forever", mechanism, script));
        let signals = lines.iter().find_map(|line| line.strip_prefix("signals "));
        assert_eq!(signals, Some(format!("{:?}", [libc::SIGSEGV, libc::SIGSYS]).as_str()), "{lines:#?}");
    }
}

/// On one CPU, many a child stops before its creator does for its creation.
#[test]
fn process_is_taken_up_when_its_creator_has_told_of_it() {
    let script =
        "import os\nfor _ in range(300):\n if os.fork() == 0: os._exit(0)\nfor _ in range(300): os.wait()";
    for mechanism in MECHANISMS {
        let script = format!("exec taskset -c 0 python3 -c '{script}'");
        let lines = lines(&observe(&Place::new(), "forever", mechanism, &script));
        let last = lines.last().unwrap();
        let count =
            |what| last.split_once(what).unwrap().1.split(';').next().unwrap().parse::<u32>().unwrap();
        let (started, ended) = (count(" started: "), count(" ended: "));
        assert!(started >= 300, "{mechanism}: {last}");
        // Nobody creates the command.
        assert_eq!(started + 1, ended, "{mechanism}: {last}");
    }
}
