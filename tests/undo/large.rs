//! Large contents: how often they are read and written, and that nothing is left of them where a restore goes no
//! further.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use crate::support::*;

/// Two of them are in different row groups: what is read of one is not read of the other.
const SIZE: usize = 10 << 20;

/// Bytes that can't be compressed.
fn noise() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).unwrap();
    bytes
}

/// Runs `sh -c script` with the program and the snapshot as its arguments.
fn run_by(place: &Place, script: &str) -> Run {
    let mut shell = place.program("sh");
    shell.args(["-c", script]).arg(place.executable(BINARY.as_ref())).arg(&place.out);
    let run: Run = shell.output().unwrap().into();
    run.expect(0)
}

/// How many bytes a restore to the state before reads and writes by system calls (proc_pid_io(5)).
fn bytes_of_restore(place: &Place) -> (usize, usize) {
    // The counters of a process include those of its children that have ended.
    let run = run_by(place, r#""$0" restore "$1" --before >/dev/null && cat /proc/$$/io"#);
    let number = |name: &str| {
        let line = run.stdout.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok()).unwrap()
    };
    (number("rchar:"), number("wchar:"))
}

#[test]
fn removed_file_is_read_once_and_written_once() {
    let place = Place::new();
    place.write("removed/deeply/file", noise());
    let states = States::of(&place, || fs::remove_dir_all(place.at("removed")).unwrap());
    let (read, written) = bytes_of_restore(&place);
    states.expect(&place, true);
    assert!(read < SIZE * 3 / 2 && written < SIZE * 3 / 2, "{read} {written}");
}

#[test]
fn what_replaces_a_file_is_read_once_and_the_file_twice() {
    let place = Place::new();
    place.write("edited", noise());
    let states = States::of(&place, || place.write("edited", noise()));
    let (read, written) = bytes_of_restore(&place);
    states.expect(&place, true);
    // The file is inspected, and kept in the rescue.
    assert!(read < SIZE * 7 / 2 && written < SIZE * 5 / 2, "{read} {written}");
}

#[test]
fn damaged_content_is_found_before_anything_changes() {
    let place = Place::new();
    for name in ["first", "second/file", "third"] {
        place.write(name, noise());
    }
    let states = States::of(&place, || {
        fs::remove_file(place.at("first")).unwrap();
        fs::remove_dir_all(place.at("second")).unwrap();
        place.write("third", "edited");
    });
    let blobs = fs::File::options().read(true).write(true).open(place.out.join("blobs.parquet")).unwrap();
    let at = blobs.metadata().unwrap().len() / 2;
    let mut byte = [0];
    blobs.read_exact_at(&mut byte, at).unwrap();
    blobs.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let run = place.verb("restore", &["--before"]);
    assert!(run.status != 0 && run.stderr.contains("does not have the digest"), "{run:#?}");
    states.expect(&place, false);
    let left: Vec<_> = fs::read_dir(&place.work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["third"]);
    let beside = fs::read_dir(place.base()).unwrap().map(|entry| entry.unwrap().file_name());
    let rescues: Vec<_> = beside.filter(|name| name.to_str().unwrap().contains("rescue")).collect();
    assert!(rescues.is_empty(), "{rescues:?}");
}

#[test]
fn more_files_than_may_be_open_are_restored() {
    let place = Place::new();
    for number in 0..40 {
        place.write(&format!("removed/{number}/file"), vec![number; 1 << 20]);
        place.write(&format!("edited-{number}"), vec![number; 1 << 20]);
    }
    let states = States::of(&place, || {
        fs::remove_dir_all(place.at("removed")).unwrap();
        (0..40).for_each(|number| place.write(&format!("edited-{number}"), "edited"));
    });
    run_by(&place, r#"ulimit -n 48; exec "$0" restore "$1" --before"#);
    states.expect(&place, true);
}
