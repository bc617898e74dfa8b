//! Every way of writing in the table of system calls, outside of the workspace: each is a finding, exactly.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::record::syscalls::{Case, check_each, expected, outcome, setup};
use crate::support::{Place, User, give_away, json};

/// The words that are changes.
const CHANGES: [&str; 3] = ["write", "delete", "metadata"];

/// What a case changes, by path: with what it writes to a node of one of these types, nothing changes.
fn changes(program: &Path, case: &Case) -> BTreeMap<String, String> {
    let passes = ["fifo", "char_device", "socket"];
    let mut changes = BTreeMap::new();
    for (path, [operations, before, after]) in expected(program, case).paths {
        let words: Vec<&str> = operations.split(',').filter(|word| CHANGES.contains(word)).collect();
        let is_passed = words == ["write"] && before == after && passes.contains(&before.as_str());
        if !words.is_empty() && !is_passed {
            changes.insert(path, words.join(","));
        }
    }
    changes
}

/// The command goes from the workspace to a directory outside of it, and changes what it finds there.
fn judged(program: &Path, case: &Case, user: User, options: &[&str]) -> Result<(), String> {
    let place = Place::of(user);
    setup(program, case, &place);
    let workspace = place.base().join("workspace");
    fs::create_dir(&workspace).unwrap();
    if user == User::Nobody {
        give_away(&workspace);
    }
    let mut command = place.recording();
    command.current_dir(&workspace).arg("--quiet").args(options);
    command.args(["--", "sh", "-c", "cd \"$1\" && exec \"$2\" \"$3\"", "sh"]).arg(&place.work);
    command.arg(place.executable(program)).arg(&case.name);
    if !outcome(case, &command.output().unwrap())? {
        return Ok(());
    }
    let run = place.verb("check", &["--allow-write", "@workspace", "--json"]);
    let report: Value = serde_json::from_str(&run.stdout).map_err(|error| format!("{error}: {run:#?}"))?;
    let work = place.work.to_str().unwrap();
    let mut found = BTreeMap::new();
    for finding in report["findings"].as_array().unwrap() {
        let path = finding["path"].as_str().unwrap();
        let relative = match path.strip_prefix(work) {
            Some("") => ".",
            Some(below) if below.starts_with('/') => &below[1..],
            _ => continue,
        };
        let words = finding["operations"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.map(|word| word.as_str().unwrap()).collect();
        // The other names of a changed file are told, too.
        if finding.get("through").is_none() {
            found.insert(relative.to_owned(), words.join(","));
        }
    }
    let expected = changes(program, case);
    let complete = json(&place.out.join("manifest.json"))["complete"] == true;
    let status = i32::from(!expected.is_empty() || !complete);
    if found == expected && run.status == status {
        return Ok(());
    }
    let mut how = String::new();
    let _ = write!(how, "expected {expected:?} and {status}, found {found:?} and {}", run.status);
    Err(how)
}

fn recorded(program: &Path, case: &Case, user: User) -> Result<(), String> {
    judged(program, case, user, &[])
}

/// What a rule leaves out is found all the same.
fn left_out(program: &Path, case: &Case, user: User) -> Result<(), String> {
    judged(program, case, user, &["--ignore", "../work"])
}

macro_rules! programs {
    ($($name:ident),* $(,)?) => {
        /// Which programs are tried.
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];

        mod recorded {
            $(
                #[test]
                fn $name() {
                    super::check_each(stringify!($name), super::recorded);
                }
            )*
        }

        mod left_out {
            $(
                #[test]
                fn $name() {
                    super::check_each(stringify!($name), super::left_out);
                }
            )*
        }
    };
}
programs!(
    attributes,
    directories,
    handles,
    links,
    mode,
    mounts,
    nodes,
    open,
    rename,
    times,
    truncate,
    unlink,
    xattr
);

/// What is not tried only reads.
#[test]
fn every_program_that_changes_something_is_tried() {
    let others = crate::record::syscalls::PROGRAMS.iter().filter(|name| !PROGRAMS.contains(name));
    assert_eq!(others.copied().collect::<Vec<_>>(), ["exec", "stat", "tracking", "watch"]);
}
