//! Records the programs of `test_programs/` that make one family of syscalls each. Every case runs in an
//! empty directory of its own; all records below that directory are compared with what the program expects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Place, SKIPPED, User, program};

/// One case of a program.
pub struct Case {
    pub name: String,
    calls: Vec<String>,
    needs: String,
}

/// What a recording shows of a directory.
#[derive(Default)]
pub struct Observations {
    /// The operations, the type before and the type after, by path.
    pub paths: BTreeMap<String, [String; 3]>,
    /// The kinds of what was lost sight of.
    lost: Vec<String>,
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn executable(name: &str) -> PathBuf {
    program(&format!("syscall_{name}"))
}

fn cases(name: &str) -> Vec<Case> {
    let list = text(&Command::new(executable(name)).arg("--list").output().unwrap());
    assert!(!list.is_empty(), "{name} has no cases");
    let fields = list.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    fields
        .map(|fields| Case {
            name: fields[0].to_owned(),
            calls: fields[1].split(',').map(str::to_owned).collect(),
            needs: fields[2].to_owned(),
        })
        .collect()
}

pub fn setup(program: &Path, case: &Case, place: &Place) {
    text(&place.program(program).args(["--setup", &case.name]).output().unwrap());
}

pub fn expected(program: &Path, case: &Case) -> Observations {
    let lines = text(&Command::new(program).args(["--expect", &case.name]).output().unwrap());
    let mut expected = Observations::default();
    for line in lines.lines() {
        match line.split('\t').map(str::to_owned).collect::<Vec<_>>().as_slice() {
            [_, kind] => expected.lost.push(kind.clone()),
            [path, line @ ..] => {
                expected.paths.insert(path.clone(), line.to_vec().try_into().unwrap());
            }
            [] => unreachable!("a line has a field"),
        }
    }
    expected
}

/// Runs each case of a program as everyone who can, and shows what went wrong, all of it.
pub fn check_each(name: &str, check: fn(&Path, &Case, User) -> Result<(), String>) {
    let program = executable(name);
    let mut wrong = String::new();
    for &user in User::all() {
        for case in cases(name) {
            if case.needs == "root" && !user.is_root() || case.needs == "user" && user.is_root() {
                continue;
            }
            if let Err(how) = check(&program, &case, user) {
                let _ = writeln!(wrong, "{name} {} as {user:?}: {how}", case.name);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Whether the case could be run at all; its output, if it failed.
pub fn outcome(case: &Case, output: &Output) -> Result<bool, String> {
    match output.status.code() {
        Some(0) => Ok(true),
        Some(SKIPPED) => {
            print!("{}: {}", case.name, String::from_utf8_lossy(&output.stdout));
            Ok(false)
        }
        _ => Err(format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

fn type_of(path: &Path) -> String {
    let Ok(metadata) = fs::symlink_metadata(path) else { return "absent".to_owned() };
    let kind = metadata.file_type();
    let word = match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symlink",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "socket",
        () if kind.is_char_device() => "char_device",
        () => "block_device",
    };
    word.to_owned()
}

/// Everything below a directory, by its relative path.
fn types_below(root: &Path) -> BTreeMap<String, String> {
    let entries = walkdir::WalkDir::new(root).min_depth(1).into_iter().filter_map(Result::ok);
    let relative = |path: &Path| path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
    entries.map(|entry| (relative(entry.path()), type_of(entry.path()))).collect()
}

/// Without the recorder: the case succeeds, and what it expects of types before and after is so.
fn alone(program: &Path, case: &Case, user: User) -> Result<(), String> {
    let place = Place::of(user);
    setup(program, case, &place);
    let before = types_below(&place.work);
    let output = place.program(program).arg(&case.name).output().unwrap();
    if !outcome(case, &output)? {
        return Ok(());
    }
    let after = types_below(&place.work);
    let expected = expected(program, case);
    let absent = "absent".to_owned();
    for (path, [_, type_before, type_after]) in expected.paths.iter().filter(|(path, _)| *path != ".") {
        let found = [&before, &after].map(|tree| tree.get(path).unwrap_or(&absent));
        let type_after = if type_after == "tombstone" { &absent } else { type_after };
        if found != [type_before, type_after] {
            return Err(format!("{path} is {found:?}, not {:?}", [type_before, type_after]));
        }
    }
    let changed = before
        .keys()
        .chain(after.keys())
        .find(|&path| before.get(path) != after.get(path) && !expected.paths.contains_key(path));
    changed.map_or(Ok(()), |path| Err(format!("{path} changed and no one expects it")))
}

/// The records of the paths below `work`, and of that directory itself as `.`.
fn recorded(manifest: &serde_json::Value, work: &Path) -> Observations {
    let work = str::from_utf8(work.as_os_str().as_bytes()).unwrap();
    let mut found = Observations::default();
    let warnings = manifest["warnings"].as_array().unwrap().iter();
    let lost = warnings.filter(|warning| warning["lost"] == true);
    found.lost = lost.map(|warning| warning["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(manifest["complete"], found.lost.is_empty());
    for file in manifest["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let relative = match path.strip_prefix(work) {
            Some("") => ".",
            Some(below) if below.starts_with('/') => &below[1..],
            _ => continue,
        };
        let operations: Vec<&str> =
            file["operations"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let state = |state: &serde_json::Value| match (state["type"].as_str(), &state["tombstone"]) {
            (Some(word), _) => word.to_owned(),
            (None, serde_json::Value::Bool(true)) => "tombstone".to_owned(),
            (None, _) => "absent".to_owned(),
        };
        let line = [operations.join(","), state(&file["before"]), state(&file["after"])];
        assert!(found.paths.insert(relative.to_owned(), line).is_none(), "{path} has two records");
    }
    found
}

/// With the recorder: the case succeeds as it does alone, and the records are those that it expects.
fn traced(program: &Path, case: &Case, user: User) -> Result<(), String> {
    let place = Place::of(user);
    setup(program, case, &place);
    let mut command = place.recording();
    command.args(["--quiet", "--"]).arg(place.executable(program)).arg(&case.name);
    if !outcome(case, &command.output().unwrap())? {
        // What the recorder alone makes impossible is not to be skipped.
        let place = Place::of(user);
        setup(program, case, &place);
        let alone = outcome(case, &place.program(program).arg(&case.name).output().unwrap())?;
        return if alone { Err("it can only be run without the recorder".to_owned()) } else { Ok(()) };
    }
    let manifest =
        fs::read(place.out.join("manifest.json")).map_err(|error| format!("no manifest: {error}"))?;
    let manifest = serde_json::from_slice(&manifest).map_err(|error| error.to_string())?;
    let (expected, found) = (expected(program, case), recorded(&manifest, &place.work));
    let mut differences = String::new();
    if found.lost != expected.lost {
        let _ = write!(differences, "\n    lost {:?}, expected {:?}", found.lost, expected.lost);
    }
    let (expected, found) = (expected.paths, found.paths);
    let paths: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    for path in paths {
        let show = |line: Option<&[String; 3]>| line.map_or("nothing".to_owned(), |line| line.join(" | "));
        if expected.get(path) != found.get(path) {
            let (expected, found) = (show(expected.get(path)), show(found.get(path)));
            let _ = write!(differences, "\n    {path}: expected {expected}, recorded {found}");
        }
    }
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

/// Every call that has a row is made by some program.
#[test]
fn every_path_syscall_has_a_test_program() {
    let made: Vec<String> =
        PROGRAMS.iter().flat_map(|name| cases(name)).flat_map(|case| case.calls).collect();
    let checklist = include_str!("../../testdata/path_syscalls.txt");
    let lines = checklist.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let fields = lines.map(|line| line.split(' ').collect::<Vec<_>>());
    let missing: Vec<&str> = fields
        .filter(|fields| fields[1] != "none" && !made.iter().any(|call| call == fields[0]))
        .map(|fields| fields[0])
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

macro_rules! programs {
    ($($name:ident),* $(,)?) => {
        pub const PROGRAMS: &[&str] = &[$(stringify!($name)),*];

        /// The programs' expectations hold without a recorder, as far as they can be seen then.
        mod alone {
            $(
                #[test]
                fn $name() {
                    super::check_each(stringify!($name), super::alone);
                }
            )*
        }

        /// The recordings say what the programs expect.
        mod traced {
            $(
                #[test]
                fn $name() {
                    super::check_each(stringify!($name), super::traced);
                }
            )*
        }
    };
}
programs!(
    attributes,
    directories,
    exec,
    handles,
    links,
    mode,
    mounts,
    nodes,
    open,
    rename,
    stat,
    times,
    tracking,
    truncate,
    unlink,
    watch,
    xattr,
);
