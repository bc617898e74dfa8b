//! What `check` finds in a recording is what is refused where the same rules are enforced.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::landlock::has_landlock;
use super::{below, enforced, refused, refused_of};
use crate::support::{Place, User, json, lines, program, rounds, shown};

/// Two places alike, with something outside of the workspace.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.base().join("outside")).unwrap();
    for name in ["outside/a", "outside/b.key", "secret"] {
        fs::write(place.base().join(name), "old").unwrap();
    }
    place.write("in/c.key", "old");
    place
}

/// The findings of `check`, as [`refused`] has them: a line for each operation.
fn found_in(place: &Place, rules: &[&str]) -> BTreeSet<String> {
    findings(place, rules, |_| true)
}

/// The same of those that are wanted.
fn findings(place: &Place, rules: &[&str], is_wanted: impl Fn(&Value) -> bool) -> BTreeSet<String> {
    let run = place.verb("check", &[rules, &["--json"]].concat());
    let json: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:#?}"));
    let findings = json["findings"].as_array().unwrap().iter().filter(|finding| is_wanted(finding));
    let lines = findings.flat_map(|finding| {
        let pattern = finding["pattern"].as_str().map(|text| format!(" {text}")).unwrap_or_default();
        let path = finding["path"].as_str().unwrap_or_else(|| panic!("{finding}"));
        let path = below(place, path);
        let rule = format!("{}{pattern}", finding["rule"].as_str().unwrap());
        let operations = finding["operations"].as_array().unwrap().iter();
        let operations = operations.map(|operation| operation.as_str().unwrap().to_owned());
        operations.map(|operation| format!("{rule} {path} {operation}")).collect::<Vec<_>>()
    });
    lines.collect()
}

#[test]
fn one_call_is_refused_where_check_finds_it() {
    let rules: [&[&str]; 6] = [
        &["--allow-write", "@workspace"],
        &["--deny-write", "*.key"],
        &["--deny-read", "../secret", "--deny-read", "*.key"],
        &["--allow-read", "@workspace", "--allow-read", "@system"],
        &["--allow-write", "./in", "--deny-read", "/**/b.key"],
        &["--deny-exec", "cat"],
    ];
    let has_landlock = has_landlock(&place());
    // Each of them makes one call that a rule may forbid.
    for script in [
        ": > ../outside/new",
        ": > ../outside/a",
        ": >> in/c.key",
        ": > in/new",
        "read x < ../secret",
        "read x < ../outside/b.key",
        "read x < in/c.key",
        "cd ../outside",
        "exec cat in/c.key",
        "exec rm ../outside/a",
        "exec rm in/c.key",
        "exec rmdir ../outside/a",
        "exec mkdir ../outside/d",
        "exec mkdir -p ../outside",
        "exec chmod 600 ../outside/a",
        "exec chmod 600 in/c.key",
        "exec ln -s x ../outside/l",
        "exec mkfifo in/p",
        "exec ls ../outside",
        "exec mv in/c.key in/d",
        "exec ln in/c.key in/d",
        "exec mv in/c.key in/d.key",
        "exec ln in/c.key in/d.key",
    ] {
        let recorded = place();
        recorded.record_any(script);
        for rules in rules {
            let refusing = place();
            let output = enforced(&refusing, rules, script);
            let refused: BTreeSet<String> = if refusing.out.exists() {
                refused(&refusing).into_iter().collect()
            } else {
                panic!("{output:?}")
            };
            let found = found_in(&recorded, rules);
            assert_eq!(refused, found, "{script} {rules:?}");
            let run = refusing.verb("check", &[rules, &["--json"]].concat());
            let judged: Value = serde_json::from_str(&run.stdout).unwrap();
            assert_eq!(judged["findings"], serde_json::json!([]), "{script} {rules:?}");
            if has_landlock && rules[0].starts_with("--allow") {
                let in_domain = place();
                let rules = [rules, &["--landlock"]].concat();
                let status = enforced(&in_domain, &rules, script).status;
                let refused = super::refused(&in_domain).into_iter().collect();
                assert_eq!((status, found), (output.status, refused), "{script} {rules:?}");
            }
        }
    }
}

/// A rule about a directory that may not be read. The random programs have hard links from the beginning, and such a rule
/// means a file by the names that the program has met until then, for `check` by all: what that finds by another name than
/// the one that was used does not count.
const DIRECTORY: [&str; 2] = ["--deny-read", "./b"];

/// Rules about the names that the random programs use.
const RANDOM_RULES: [&[&str]; 7] = [
    &["--deny-write", "./b"],
    &["--allow-write", "./a"],
    &["--deny-write", "f"],
    &["--deny-write", "./a/c", "--deny-write", "/**/e"],
    &["--allow-write", "@workspace", "--allow-read", "/"],
    &DIRECTORY,
    &["--deny-read", "f"],
];

/// Records the random program of a seed, and runs it with the rules enforced up to the first refusal: nothing forbidden
/// happens, and if check finds anything, something is refused. What is wrong.
///
/// A call may be refused that fails alone: for an attribute that is not there, say.
fn compare(seed: u64, rules: &[&str], user: User) -> Result<(), String> {
    let program = program("random");
    let run = |options: &[&str]| {
        let place = Place::of(user);
        let setup = place.program(&program).args(["--setup", &seed.to_string()]).output().unwrap();
        assert!(setup.status.success(), "seed {seed}: {}", shown(&setup));
        let mut command = place.recording();
        command.args(options).args(rules).arg(place.executable(&program)).arg(seed.to_string());
        let output = command.output().unwrap();
        (place, output)
    };
    let found_in =
        |place: &Place| findings(place, rules, |finding| rules != DIRECTORY || finding["through"].is_null());
    let (recorded, output) = run(&[]);
    let found = found_in(&recorded);
    let (refusing, enforced) = run(&["--enforce=end"]);
    let manifest = json(&refusing.out.join("manifest.json"));
    let refused = refused_of(&refusing, &manifest);
    let happened = found_in(&refusing);
    if happened.is_empty() && (found.is_empty() || !refused.is_empty()) {
        return Ok(());
    }
    let found = lines(&found.into_iter().collect::<Vec<_>>());
    let happened = lines(&happened.into_iter().collect::<Vec<_>>());
    Err(format!(
        "found:\n{found}\nrefused:\n{}\nhappened:\n{happened}\n{}\n{}",
        lines(&refused),
        shown(&output),
        shown(&enforced)
    ))
}

fn compare_all(seeds: std::ops::Range<u64>) {
    let only = std::env::var("ENFORCE_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    let mut failures = Vec::new();
    for &user in User::all() {
        for seed in seeds.clone() {
            for rules in RANDOM_RULES {
                if let Err(how) = compare(seed, rules, user) {
                    println!("ENFORCE_SEED={seed} as {user:?} {rules:?}: {how}\n");
                    failures.push(format!("{seed} as {user:?} {rules:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} differ: {}", failures.len(), failures.join(", "));
}

#[test]
fn random_programs_are_refused_what_check_finds() {
    compare_all(0..2);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_are_refused_what_check_finds() {
    compare_all(100..100 + rounds(15) as u64);
}
