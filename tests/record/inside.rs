//! `--mechanism inside`: what processes note of their own calls is recorded as what is judged call by call.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use regex::Regex;
use serde_json::Value;

use crate::support::{Place, User, has, program, shown, stdout};

/// What differs between two recordings of the same: times, numbers and names of this one.
const OF_ONE_RECORDING: [&str; 15] = [
    "id",
    "version",
    "created_at",
    "started_at",
    "finished_at",
    "started_us",
    "ended_us",
    "pid",
    "parent_pid",
    "mtime",
    "mtime_nsec",
    "ino",
    "dev",
    "size",
    "digest",
];

fn without_what_differs(value: Value, base: &str) -> Value {
    match value {
        Value::Object(object) => {
            // The tests beside this one make directories of their own next to the base.
            let path = object.get("path").and_then(Value::as_str);
            let is_shared = path.is_some_and(|path| Path::new(base).starts_with(path));
            let kept = object.into_iter().filter(|(key, _)| !OF_ONE_RECORDING.contains(&key.as_str()));
            let kept = kept.map(|(key, value)| match value {
                Value::Object(mut state) if is_shared => {
                    for key in ["nlink", "entries_digest", "entry_types_digest"] {
                        state.remove(key);
                    }
                    (key, Value::Object(state))
                }
                value if key.ends_with("_bytes") => (key, decoded(value)),
                value => (key, value),
            });
            kept.map(|(key, value)| (key, without_what_differs(value, base))).collect()
        }
        Value::Array(values) => values.into_iter().map(|value| without_what_differs(value, base)).collect(),
        Value::String(text) => {
            static PROCESS: LazyLock<Regex> = LazyLock::new(|| Regex::new("/proc/[0-9]+/").unwrap());
            // The name of a blob has in hexadecimal what is not UTF-8.
            let text = text.replace(base, "BASE").replace(&faster_hex::hex_string(base.as_bytes()), "BASE");
            // Programs also go there by other paths.
            let name = Path::new(base).file_name().unwrap().to_str().unwrap();
            let text = text.replace(name, "NAME");
            PROCESS.replace_all(&text, "/proc/PID/").into()
        }
        other => other,
    }
}

/// Paths that are not UTF-8, with escapes instead of in base64.
fn decoded(value: Value) -> Value {
    match value {
        Value::String(text) => BASE64_STANDARD.decode(text).unwrap().escape_ascii().to_string().into(),
        Value::Array(values) => values.into_iter().map(decoded).collect(),
        other => other,
    }
}

/// What a recording tells of a command; `prepare` runs before, in the same directory.
fn told(user: User, mechanism: &str, level: &str, prepare: &str, command: &[&str]) -> Value {
    let place = Place::of(user);
    let prepared = place.program("sh").args(["-ec", prepare]).output().unwrap();
    assert!(prepared.status.success(), "{}", shown(&prepared));
    let mut recorded = place.command();
    recorded.arg("--snapshot-dir").arg(&place.out).args([
        "--quiet",
        "--mechanism",
        mechanism,
        "--keep",
        level,
    ]);
    let output = recorded.arg("--").args(command).output().unwrap();
    let text =
        std::fs::read(place.out.join("manifest.json")).unwrap_or_else(|_| panic!("{}", shown(&output)));
    without_what_differs(serde_json::from_slice(&text).unwrap(), place.base().to_str().unwrap())
}

/// The values that differ, by their places.
fn differences(one: &Value, other: &Value, at: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            for key in one.keys().chain(other.keys().filter(|key| !one.contains_key(*key))) {
                let place = format!("{at}/{key}");
                let of = |object: &serde_json::Map<_, _>| object.get(key).cloned().unwrap_or_default();
                differences(&of(one), &of(other), &place, found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (number, (one, other)) in one.iter().zip(other).enumerate() {
                differences(one, other, &format!("{at}/{number}"), found);
            }
        }
        _ if one == other => {}
        _ => found.push(format!("{at}: {:.300} and {:.300}", one.to_string(), other.to_string())),
    }
}

fn is_told_the_same(prepare: &str, command: &[&str]) {
    for &user in User::all() {
        for level in ["all", "undo"] {
            let found = told_differently(user, level, prepare, command, &["auto", "inside"]);
            assert!(found.is_empty(), "{command:?} as {user:?}, {level}: {}", found.join("\n"));
        }
    }
}

/// What the recordings by the other mechanisms tell differently from that by the first.
fn told_differently(user: User, level: &str, prepare: &str, command: &[&str], by: &[&str]) -> Vec<String> {
    let mut recordings = by.iter().map(|mechanism| told(user, mechanism, level, prepare, command));
    let first = recordings.next().unwrap();
    let mut found = Vec::new();
    for (other, mechanism) in recordings.zip(&by[1..]) {
        differences(&first, &other, mechanism, &mut found);
    }
    found
}

/// Whether a random program has one thread in one process: what several do at once is not the same each time. Each line that it
/// prints begins with the number of a thread.
fn runs_alone(program: &Path, user: User, seed: u64) -> bool {
    let place = Place::of(user);
    let run = |arguments: &[&str]| place.program(program).args(arguments).output().unwrap();
    let seed = seed.to_string();
    run(&["--setup", &seed]);
    let printed = String::from_utf8_lossy(&run(&[&seed]).stderr).into_owned();
    let threads: BTreeSet<&str> = printed.lines().filter_map(|line| line.split(' ').next()).collect();
    threads.len() == 1
}

/// `TRUTH_SEEDS=N` changes how many are run, `TRUTH_SEED=N` where they begin: at N or the next seed that will do, which is
/// then run alone if nothing says how many.
/// Run hundreds as an ordinary user or in a container: some of their paths lead out of the directory, to `/` among others.
#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_are_told_the_same() {
    let number = |name| env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let first = number("TRUTH_SEED");
    let count = number("TRUTH_SEEDS").unwrap_or(if first.is_some() { 1 } else { 150 });
    let program = program("random");
    let mut failures = Vec::new();
    let user_of = |seed: u64| User::all()[seed as usize % User::all().len()];
    let seeds = (first.unwrap_or(4000)..).filter(|seed| runs_alone(&program, user_of(*seed), *seed));
    for seed in seeds.take(count as usize) {
        let user = user_of(seed);
        let level = ["undo", "undo", "all", "all"][seed as usize % 4];
        let (program, number) = (program.to_str().unwrap(), seed.to_string());
        let prepare = format!("{program} --setup {number}");
        let by = ["auto", "stops", "inside"];
        let found = told_differently(user, level, &prepare, &[program, &number], &by);
        if !found.is_empty() {
            println!("TRUTH_SEED={seed} as {user:?}, {level}: {}\n", found.join("\n"));
            failures.push(seed);
        }
    }
    assert!(failures.is_empty(), "{} seeds are told differently: {failures:?}", failures.len());
}

#[test]
fn process_notes_its_own_calls() {
    let program = program("noted_calls");
    for (mechanism, notes) in [("auto", "0\nfalse\n"), ("inside", "0\ntrue\n")] {
        let place = Place::new();
        let mut recorded = place.recorder(mechanism);
        let output = recorded.arg(&program).arg("notes").output().unwrap();
        let can = agent_snapshot::trace::launch::has_notifications();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            if can { notes } else { "0\nfalse\n" },
            "{mechanism}"
        );
    }
}

/// What another thread may rewrite before the kernel reads it is not noted.
#[test]
fn threads_note_calls_that_open_nothing() {
    let place = Place::new();
    let output = place.recorder("inside").arg(program("noted_calls")).arg("thread_notes").output().unwrap();
    let notes = agent_snapshot::trace::launch::has_notifications();
    assert_eq!(stdout(&output), format!("0\nqueries {notes}\nopens false\n"), "{}", shown(&output));
}

#[test]
fn program_that_has_noted_many_calls_notes_them_sooner_the_next_time() {
    if !agent_snapshot::trace::launch::has_notifications() {
        return;
    }
    let place = Place::new();
    let program = program("noted_calls");
    let twice = format!("{0} first_noted; {0} first_noted", program.display());
    let mut recorded = place.recorder("inside");
    recorded.env("AGENT_SNAPSHOT_INSIDE_AFTER", "60").args(["sh", "-c", &twice]);
    let output = recorded.output().unwrap();
    let printed = stdout(&output);
    let calls = |line: &str| line.strip_prefix("Some(")?.strip_suffix(')')?.parse::<u32>().ok();
    let calls: Vec<_> = printed.lines().map(calls).collect();
    assert!(matches!(calls[..], [Some(10..), Some(..10)]), "{}", shown(&output));
}

/// In a container all have its filter. One of the process's own may object to the mark.
#[test]
fn process_with_a_filter_of_its_own_notes_nothing() {
    if !agent_snapshot::trace::launch::has_notifications() {
        return;
    }
    let [noting, seal] = ["noted_calls", "seal"].map(program);
    let filter = "EPERM=acct";
    for (is_outside, notes) in [(true, "0\ntrue\n"), (false, "0\nfalse\n")] {
        let place = Place::new();
        let mut recorder = place.recorder("inside");
        let mut command = if is_outside {
            let mut sealed = place.program(&seal);
            sealed.arg(filter).arg(recorder.get_program()).args(recorder.get_args());
            sealed
        } else {
            recorder.arg(&seal).arg(filter);
            recorder
        };
        let output = command.arg(&noting).arg("notes").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), notes, "{}", shown(&output));
    }
}

/// A stop that comes while the recorder has a process make calls ends with SIGCONT as any other. Rules have it make some, too.
#[test]
fn stopped_process_is_continued() {
    let program = program("noted_calls");
    for options in [&["--mechanism", "inside"][..], &["--enforce", "--deny-write", "none"]] {
        let place = Place::new();
        let mut recorded = place.command();
        recorded.arg("--snapshot-dir").arg(&place.out).args(options);
        let output =
            recorded.args(["--quiet", "--timeout", "300s", "--"]).arg(&program).arg("stops").output();
        let output = output.unwrap();
        let stopped = stdout(&output).lines().filter(|line| *line != "exited 0").count();
        assert_eq!((stopped, output.status.code()), (0, Some(0)), "{options:?}: {}", shown(&output));
    }
}

#[test]
fn process_whose_memory_nobody_may_read_has_handlers() {
    let program = program("noted_calls");
    for &user in User::all() {
        let place = Place::of(user);
        let output =
            place.recorder("inside").arg(place.executable(&program)).arg("undumpable").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{user:?}: {}", shown(&output));
    }
}

#[test]
fn tracer_sees_no_code_that_notes() {
    let program = program("noted_calls");
    for &user in User::all() {
        let place = Place::of(user);
        let output = place.recorder("inside").arg(place.executable(&program)).arg("traced").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{user:?}: {}", shown(&output));
    }
}

#[test]
fn what_disturbs_it_is_told_the_same() {
    let program = program("noted_calls");
    let program = program.to_str().unwrap();
    let list = Command::new(program).arg("--list").output().unwrap();
    for scenario in String::from_utf8(list.stdout).unwrap().lines() {
        is_told_the_same("true", &[program, scenario]);
    }
}

#[test]
fn programs_that_walk_are_told_the_same() {
    let tree = "mkdir -p t/a/b/c t/d 'a b'; ln -s ../d t/a/link; ln -s nowhere t/dangling; mkfifo t/d/fifo
        for i in $(seq 300); do echo $i > t/a/b/$i; echo x$i > t/d/x$i; done";
    let unreadable = format!("{tree}; chmod 000 t/a/b/7");
    for command in [
        "find t -type f",
        "find -L t -name '*1'",
        "du -a t; ls -lR t",
        "grep -r 4 t",
        "cp -r t u; rm -r u",
        "tar cf t.tar t; tar tf t.tar",
        "cat t/a/b/* t/d/x*",
        "for i in 1 2 3; do [ -e t/none$i ]; cd t/a; [ -f b/$i ]; cd ../..; done; mv t v; find v; mv v t; find t",
    ] {
        is_told_the_same(&unreadable, &["sh", "-c", command]);
    }
    if has("git") {
        let repository = format!(
            "{tree}\n# Git reads what is not older than its index.
            find t -exec touch -h -d @1000000000 {{}} +; git init -q; git add .
            export GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'; git -c user.name=n -c user.email=e commit -qm m"
        );
        is_told_the_same(&repository, &["git", "status", "--short"]);
    }
    if has("python3") {
        is_told_the_same(tree, &["python3", "-c", "import json, email, os; print(len(list(os.walk('t'))))"]);
    }
}
