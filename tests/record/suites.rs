//! Test suites of other projects, alone and recorded: CPython's tests of files, processes and signals, and
//! the stressors of stress-ng.
//!
//! A test whose verdict differs runs alone again, bare and recorded, since some depend on how busy the
//! machine is. Neighbours: `transparency.rs` has scenarios of this project.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::Snapshot;

use crate::support::{Place, User, chmod, has, lines, shown};
use crate::truth::gaps;

const VERDICTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/verdicts.py");

/// The verdict of each test.
type Verdicts = BTreeMap<String, String>;

/// How often a test that differs is run again, bare and recorded.
const AGAIN: usize = 3;

/// A Python that has its own tests, and that `who` can run.
fn python(place: &Place) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("python3"));
    ["/usr/bin/python3".into()].into_iter().chain(found).filter(|python| python.is_file()).find(|python: &PathBuf| {
        let tried = place.program(python).args(["-c", "import test.support, os; os.stat(os.path.join(os.path.dirname(test.__file__), \"test_os.py\"))"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    })
}

/// Runs tests in a place of their own; their verdicts, and the output.
fn run(python: &Path, user: User, recorded: bool, module: &str, tests: &[String]) -> (Verdicts, String) {
    let place = Place::of(user);
    let base = place.base();
    chmod(base, 0o755);
    let script = base.join("verdicts.py");
    fs::copy(VERDICTS, &script).unwrap();
    let output = base.join("verdicts.json");
    let mut command = if recorded {
        let mut command = place.recorder("auto");
        command.arg(python);
        command
    } else {
        place.program(python)
    };
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.env("HOME", &place.home).env("XDG_CONFIG_HOME", &place.config).env("LC_ALL", "C.UTF-8");
    command.env("TMPDIR", &place.work).stdin(Stdio::null());
    let said = command.arg(&script).arg(&output).arg(module).args(tests).output().unwrap();
    let said = shown(&said);
    let verdicts = fs::read(&output).unwrap_or_else(|error| panic!("{module}: {error}\n{said}"));
    if recorded {
        let snapshot = Snapshot::open(&place.out).unwrap();
        println!("{module} as {user:?}: {} paths{}", snapshot.files().len(), lines(&gaps(&snapshot)));
    }
    (serde_json::from_slice(&verdicts).unwrap(), said)
}

/// The tests whose verdicts differ between two runs.
fn different(one: &Verdicts, other: &Verdicts) -> Vec<String> {
    let tests: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    tests.into_iter().filter(|test| one.get(*test) != other.get(*test)).cloned().collect()
}

/// What the tests that differ say when they are run again; those that never agree.
fn compare(python: &Path, user: User, module: &str) -> Vec<String> {
    let (bare, recorded) = std::thread::scope(|scope| {
        let bare = scope.spawn(|| run(python, user, false, module, &[]));
        (bare.join().unwrap(), run(python, user, true, module, &[]))
    });
    println!("{module} as {user:?}: {} tests", bare.0.len());
    assert!(!bare.0.is_empty(), "{module} has no tests: {}", bare.1);
    let mut wrong = Vec::new();
    for test in different(&bare.0, &recorded.0) {
        let verdict = |verdicts: &Verdicts| verdicts.get(&test).cloned().unwrap_or_default();
        let mut alone = BTreeSet::from([verdict(&bare.0)]);
        let mut watched = BTreeSet::from([verdict(&recorded.0)]);
        let mut said = recorded.1.clone();
        for _ in 0..AGAIN {
            let again = |recorded| run(python, user, recorded, module, std::slice::from_ref(&test));
            alone.insert(verdict(&again(false).0));
            let (verdicts, now) = again(true);
            watched.insert(verdict(&verdicts));
            said = now;
        }
        println!("{test}: alone {alone:?}, recorded {watched:?}");
        if alone.is_disjoint(&watched) {
            wrong.push(format!("{test} as {user:?}: alone {alone:?}, recorded {watched:?}\n{said}"));
        }
    }
    wrong
}

fn compare_suites(modules: &[&str]) {
    let only = std::env::var("SUITE").ok();
    let mut wrong = Vec::new();
    for &user in User::all() {
        let Some(python) = python(&Place::of(user)) else {
            println!("skipped as {user:?}: no Python with its own tests (Debian: libpython3-testsuite)");
            continue;
        };
        for module in modules.iter().filter(|module| only.as_ref().is_none_or(|only| only == *module)) {
            wrong.extend(compare(&python, user, module));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "slow: CPython's own tests"]
fn slow_python_file_and_process_tests_pass_as_alone() {
    compare_suites(&["test_os", "test_posix", "test_shutil", "test_pty", "test_subprocess"]);
}

#[test]
#[ignore = "slow: CPython's own tests"]
fn slow_python_signal_tests_pass_as_alone() {
    compare_suites(&["test_signal"]);
}

#[test]
#[ignore = "slow: CPython's own tests"]
fn slow_python_stream_tests_pass_as_alone() {
    compare_suites(&["test_io"]);
}

/// The methods of some of stress-ng's classes.
fn stressors(class: &str) -> Vec<String> {
    let list = Command::new("stress-ng").args(["--class", &format!("{class}?")]).output().unwrap();
    // They take every processor at real-time priority, or all space of the disk, from the rest of the
    // machine, too.
    let starving = ["softlockup", "forkheavy"];
    let list = String::from_utf8_lossy(&[list.stdout, list.stderr].concat()).into_owned();
    let (_, names) = list.split_once("stressors:").unwrap_or_else(|| panic!("no list: {list}"));
    names.split_whitespace().filter(|name| !starving.contains(name)).map(str::to_owned).collect()
}

/// The exit code and the output of one of them, alone or recorded.
fn stress(name: &str, recorded: bool) -> (Option<i32>, String) {
    let place = Place::new();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]);
    if recorded {
        let recorder = place.recorder("auto");
        command.arg(recorder.get_program()).args(recorder.get_args());
    }
    // Most are done long before the time is up.
    let operations = format!("--{name}-ops");
    command.args(["stress-ng", "--timeout", "1s", &format!("--{name}"), "1", &operations, "200"]);
    command.args(["--temp-path", "."]);
    command.current_dir(&place.work).env("HOME", &place.home).env("XDG_CONFIG_HOME", &place.config);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let mut said = shown(&output);
    if recorded {
        match Snapshot::open(&place.out) {
            Ok(snapshot) => println!("{name}: {} paths{}", snapshot.files().len(), lines(&gaps(&snapshot))),
            Err(error) => {
                said.push_str(&error.to_string());
                return (None, said);
            }
        }
    }
    (output.status.code(), said)
}

fn compare_class(class: &str) {
    if !has("stress-ng") {
        return;
    }
    let only = std::env::var("STRESSOR").ok();
    let mut wrong = Vec::new();
    for name in stressors(class).into_iter().filter(|name| only.as_ref().is_none_or(|only| only == name)) {
        let (status, said) = stress(&name, true);
        if status == Some(0) {
            continue;
        }
        println!("{name}: recorded {status:?}, asked again: {said}");
        let (alone, _) = stress(&name, false);
        let (status, said) = stress(&name, true);
        if status != alone {
            wrong.push(format!("{name}: alone {alone:?}, recorded {status:?}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "slow: up to a second for each method"]
fn slow_filesystem_stressors_end_as_alone() {
    compare_class("filesystem");
}

#[test]
#[ignore = "slow: up to a second for each method"]
fn slow_scheduler_stressors_end_as_alone() {
    compare_class("scheduler");
}
