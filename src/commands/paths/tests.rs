use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::snapshot::samples::{commit_into, created, header, present};
use crate::snapshot::{State, layout::SnapshotDir};

fn snapshot_of(dir: &Path, start_cwd: &[u8], paths: &[&[u8]]) -> Snapshot {
    let mut header = header();
    header.start_cwd = start_cwd.to_vec();
    let mut paths: Vec<_> = paths.to_vec();
    paths.sort_unstable();
    let target = SnapshotDir::create(&dir.join("snap")).unwrap();
    commit_into(target, header, |_| {
        paths.iter().map(|path| created(path, State::Present(Box::new(present(1))))).collect()
    });
    Snapshot::open(&dir.join("snap")).unwrap()
}

#[test]
fn an_argument_means_a_path_and_what_is_beneath_it() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = snapshot_of(dir.path(), b"/x", &[b"/x/a-b", b"/x/a/f", b"/x/only/f", b"/x/b"]);
    let select = |args: &[&str]| {
        Selection::new(&snapshot, &args.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
    };
    let selected = select(&["/x/./a/", "/x/q/../only"]);
    assert!(selected.contains(b"/x/a/f") && selected.contains(b"/x/only/f"));
    assert!(!selected.contains(b"/x/a-b") && !selected.contains(b"/x/b") && !selected.contains(b"/x"));
    assert_eq!(selected.unmatched(), &[] as &[OsString]);
    assert!(select(&["/"]).contains(b"/x/b"));
    assert!(select(&[]).contains(b"/anything") && !select(&[]).is_explicit());

    let nothing = select(&["/x/q"]);
    assert_eq!(nothing.unmatched(), ["/x/q"]);
    assert!(!nothing.contains(b"/x/q") && !nothing.contains(b"/x/a"));
}

#[test]
fn a_relative_argument_is_taken_from_here_and_else_from_the_start_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let here = std::env::current_dir().unwrap().join("both").into_os_string().into_encoded_bytes();
    let snapshot = snapshot_of(dir.path(), b"/start", &[&here, b"/start/both", b"/start/there"]);
    let named = |arg: &str| find(&snapshot, OsStr::new(arg)).unwrap().map(|record| record.path.clone());
    assert_eq!(named("both"), Ok(here.clone()));
    assert_eq!(named("there"), Ok(b"/start/there".to_vec()));
    assert_eq!(named("/start/both"), Ok(b"/start/both".to_vec()));
    let mut missing = here;
    missing.truncate(missing.len() - 4);
    missing.extend_from_slice(b"none");
    assert_eq!(named("none"), Err(missing));
}

#[test]
fn an_argument_through_a_symbolic_link_finds_the_real_path() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
    let recorded = real.join("gone/file").into_os_string().into_encoded_bytes();
    let snapshot = snapshot_of(dir.path(), b"/", &[&recorded]);
    let arg = dir.path().join("link/gone/file").into_os_string();
    assert_eq!(find(&snapshot, &arg).unwrap().map(|record| &record.path), Ok(&recorded));
}

#[test]
fn names_are_shown_below_the_start_and_quoted_where_they_must_be() {
    assert_eq!(shown(b"/a/b", b"/a"), "b");
    assert_eq!(shown(b"/a", b"/a"), ".");
    assert_eq!(shown(b"/ab/c", b"/a"), "/ab/c");
    assert_eq!(shown(b"/a", b"/"), "a");
    assert_eq!(quoted("größe von x".as_bytes()), "größe von x");
    assert_eq!(quoted(b"a\n\x1b[2J\"\\"), r#""a\n\033[2J\"\\""#);
    assert_eq!(quoted(b"caf\xe9"), r#""caf\351""#);
    assert_eq!(quoted("a\u{202e}b\u{9b}".as_bytes()), r#""a\342\200\256b\302\233""#);
}

#[test]
fn a_command_is_shown_as_a_shell_takes_it() {
    let line = |words: &[&[u8]]| shell_line(&words.iter().map(|word| word.to_vec()).collect::<Vec<_>>());
    assert_eq!(line(&[b"make", b"-j2", b"CC=gcc"]), "make -j2 CC=gcc");
    assert_eq!(line(&[b"sh", b"-c", b"echo \"it's\" > x", b""]), r#"sh -c 'echo "it'\''s" > x' ''"#);
    assert_eq!(line(&[b"printf", b"it's\n\x1b\xff"]), r"printf $'it\'s\n\033\377'");
    assert_eq!(line(&[b"ls", b"~"]), "ls '~'");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bash_reads_a_shown_command_back(words in prop::collection::vec(prop::collection::vec(1_u8.., 0..12), 1..4)) {
        let script = format!("printf '%s\\0' {}", shell_line(&words));
        let Ok(output) = Command::new("bash").args(["-c", &script]).output() else { return Ok(()) };
        let expected: Vec<u8> = words.iter().flat_map(|word| [word.as_slice(), b"\0"].concat()).collect();
        prop_assert_eq!(output.stdout, expected, "{}", script);
    }

    #[test]
    fn a_shown_name_is_one_visible_line(name in prop::collection::vec(any::<u8>(), 0..24)) {
        prop_assert!(!quoted(&name).contains(char::is_control));
        prop_assert!(!shell_word(&name).contains(char::is_control));
    }
}
