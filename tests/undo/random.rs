//! Random changes: a restore undoes exactly those and touches nothing else.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::stat::Mode;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use agent_snapshot::snapshot::{FileType, Present};

use crate::support::*;

/// One call of a program; a call that fails changes nothing.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub enum Call {
    Write(usize, u8, usize),
    Append(usize, u8, usize),
    Unlink(usize),
    RemoveAll(usize),
    Mkdir(usize),
    Rename(usize, usize),
    Exchange(usize, usize),
    Link(usize, usize),
    Symlink(usize, usize),
    Fifo(usize),
    Chmod(usize, u32),
    Touch(usize, u64),
    Xattr(usize, u8),
}

/// Paths with odd names and siblings that sort between a directory and what is in it.
const PATHS: [&[u8]; 20] = [
    b"a",
    b"a/x",
    b"a/y",
    b"a/d",
    b"a/d/x",
    b"a/d/\xff\n",
    b"a-b",
    b"a.c",
    b"b",
    b"b/x",
    b"b/d",
    b"b/d/e",
    b"b/d/e/f",
    b"f",
    b"g",
    b"h",
    b" ",
    b"-rf",
    b"*",
    b"\\n",
];

fn path(root: &Path, index: usize) -> PathBuf {
    root.join(std::ffi::OsStr::from_bytes(PATHS[index % PATHS.len()]))
}

/// Makes the calls below `root`.
pub fn perform(root: &Path, calls: &[Call]) {
    for call in calls {
        // Whether it succeeds is the program's affair.
        let _ = one(root, call);
    }
}

fn one(root: &Path, call: &Call) -> std::io::Result<()> {
    let at = |index: &usize| path(root, *index);
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    match call {
        Call::Write(to, byte, len) => {
            // No write through a symlink: what is outside of the tree is not compared.
            if fs::symlink_metadata(at(to)).is_ok_and(|there| !there.is_file()) {
                return Ok(());
            }
            fs::write(at(to), vec![*byte; *len])
        }
        Call::Append(to, byte, len) => {
            if fs::symlink_metadata(at(to)).is_ok_and(|there| !there.is_file()) {
                return Ok(());
            }
            use std::io::Write as _;
            fs::OpenOptions::new().append(true).open(at(to))?.write_all(&vec![*byte; *len])
        }
        Call::Unlink(at_) => fs::remove_file(at(at_)),
        Call::RemoveAll(at_) => fs::remove_dir_all(at(at_)),
        Call::Mkdir(at_) => fs::create_dir(at(at_)),
        Call::Rename(from, to) => fs::rename(at(from), at(to)),
        Call::Exchange(from, to) => Ok(rustix::fs::renameat_with(
            rustix::fs::CWD,
            text(&at(from)),
            rustix::fs::CWD,
            text(&at(to)),
            rustix::fs::RenameFlags::EXCHANGE,
        )?),
        Call::Link(from, to) => fs::hard_link(at(from), at(to)),
        Call::Symlink(target, to) => symlink(at(target), at(to)),
        Call::Fifo(to) => Ok(nix::unistd::mkfifo(&at(to), Mode::from_bits_truncate(0o644))?),
        Call::Chmod(to, mode) => {
            let there = fs::symlink_metadata(at(to))?;
            if there.is_symlink() {
                return Ok(());
            }
            // The user that runs the tests must be able to read it.
            let mode = if there.is_dir() { mode | 0o500 } else { mode | 0o400 };
            fs::set_permissions(at(to), fs::Permissions::from_mode(mode))
        }
        Call::Touch(to, seconds) => {
            if !fs::symlink_metadata(at(to))?.is_file() {
                return Ok(());
            }
            fs::File::open(at(to))?.set_modified(UNIX_EPOCH + Duration::new(*seconds, 123_456_789))
        }
        Call::Xattr(to, value) => {
            if !fs::symlink_metadata(at(to))?.is_file() {
                return Ok(());
            }
            let flags = rustix::fs::XattrFlags::empty();
            Ok(rustix::fs::setxattr(text(&at(to)), "user.test", &[*value], flags)?)
        }
    }
}

fn calls(most: usize) -> impl Strategy<Value = Vec<Call>> {
    let path = || 0..PATHS.len();
    let len = || prop_oneof![Just(0_usize), 1..5000_usize];
    let call = prop_oneof![
        6 => (path(), any::<u8>(), len()).prop_map(|(to, byte, len)| Call::Write(to, byte, len)),
        2 => (path(), any::<u8>(), len()).prop_map(|(to, byte, len)| Call::Append(to, byte, len)),
        3 => path().prop_map(Call::Unlink),
        2 => path().prop_map(Call::RemoveAll),
        5 => path().prop_map(Call::Mkdir),
        3 => (path(), path()).prop_map(|(from, to)| Call::Rename(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| Call::Exchange(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Call::Link(from, to)),
        2 => (path(), path()).prop_map(|(target, to)| Call::Symlink(target, to)),
        1 => path().prop_map(Call::Fifo),
        2 => (path(), 0..0o10000_u32).prop_map(|(to, mode)| Call::Chmod(to, mode)),
        1 => (path(), 0..4_000_000_000_u64).prop_map(|(to, seconds)| Call::Touch(to, seconds)),
        1 => (path(), any::<u8>()).prop_map(|(to, value)| Call::Xattr(to, value)),
    ];
    proptest::collection::vec(call, 0..most)
}

/// What changes with every change of a file.
fn untouched(path: &[u8]) -> (u64, i64, i64) {
    let there = fs::symlink_metadata(std::ffi::OsStr::from_bytes(path)).unwrap();
    (there.ino(), there.ctime(), there.ctime_nsec())
}

/// Whether a file is under other names in the one state than in the other.
fn gets_names(states: &States, file: &Present) -> bool {
    let names = |tree: &Tree| -> Vec<Vec<u8>> {
        let of_file =
            tree.iter().filter(|(_, entry)| (entry.present.dev, entry.present.ino) == (file.dev, file.ino));
        of_file.map(|(path, _)| path.clone()).collect()
    };
    file.nlink > 1 && names(&states.before) != names(&states.after)
}

/// How many programs: `AGENT_SNAPSHOT_CASES` asks for more.
pub fn cases(few: u32) -> u32 {
    std::env::var("AGENT_SNAPSHOT_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few)
}

#[test]
fn random_changes_are_undone_and_redone_exactly() {
    let config = Config { cases: cases(24), failure_persistence: None, ..Config::default() };
    let outcome =
        TestRunner::new(config).run(&(calls(40), calls(20), any::<bool>()), |(build, program, reads)| {
            let place = Place::new();
            perform(&place.work, &build);
            let states = States::with(&place, |_| reads, || perform(&place.work, &program));
            // A file that has a name more or less is another file to ctime.
            let same: Vec<Vec<u8>> = states
                .before
                .iter()
                .filter(|(_, entry)| entry.present.file_type != FileType::Directory)
                .filter(|(_, entry)| !gets_names(&states, &entry.present))
                .filter(|(path, entry)| {
                    states.after.get(*path).is_some_and(|after| after.present == entry.present)
                })
                .map(|(path, _)| path.clone())
                .collect();
            let seen: Vec<_> = same.iter().map(|path| untouched(path)).collect();
            states.there_and_back(&place);
            for (path, seen) in same.iter().zip(seen) {
                prop_assert_eq!(untouched(path), seen, "{:?}", path);
            }
            Ok(())
        });
    outcome.unwrap();
}

/// The calls of the program that is recorded, in JSON.
const CALLS: &str = "UNDO_TEST_CALLS";

#[test]
#[ignore = "not a test, but the program that recorded_random_changes_are_undone_and_redone records"]
fn program() {
    let Ok(calls) = std::env::var(CALLS) else { return };
    let calls: Vec<Call> = serde_json::from_str(&calls).unwrap();
    perform(&std::env::current_dir().unwrap(), &calls);
}

#[test]
fn recorded_random_changes_are_undone_and_redone() {
    let config = Config { cases: cases(12), failure_persistence: None, ..Config::default() };
    let given = (calls(40), calls(20), prop::sample::select(&LEVELS[..]));
    let outcome = TestRunner::new(config).run(&given, |(build, program, keep)| {
        let place = Place::new();
        perform(&place.work, &build);
        let before = scan(&place.work);
        let output = place
            .recording()
            .args(["--quiet", "--timeout", "300s", "--keep", keep, "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["undo::random::program", "--exact", "--ignored"])
            .env(CALLS, serde_json::to_string(&program).unwrap())
            .output()
            .unwrap();
        Run::from(output).expect(0);
        let after = scan(&place.work);
        for (flags, wanted) in [(&["--before"][..], &before), (&[], &after), (&["--before"], &before)] {
            place.verb("restore", flags).expect(0);
            prop_assert_eq!(describe_recorded(&scan(&place.work)), describe_recorded(wanted));
            let again = place.verb("restore", flags).expect(0);
            prop_assert!(again.stdout.starts_with("nothing to do"), "{:#?}", again);
        }
        Ok(())
    });
    outcome.unwrap();
}
