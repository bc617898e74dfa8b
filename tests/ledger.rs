//! Bytes that must be kept whatever names a file has had, and whoever changes it.

use std::fs;
use std::process::Command;

use agent_snapshot::snapshot::{Snapshot, WarningKind};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::{Place, bytes, lost, stderr};

fn has_python() -> bool {
    let has = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: python3 is missing");
    }
    has
}

#[test]
fn bytes_of_a_file_that_is_overwritten_where_a_rule_leaves_it_out_are_those_of_before() {
    if !has_python() {
        return;
    }
    let old = vec![b'o'; 30 << 20];
    for rename in ["os.rename('big', 'ignored/big')", "os.rename('d', 'ignored/d')"] {
        let place = Place::new();
        fs::create_dir(place.work.join("ignored")).unwrap();
        let (name, moved) = if rename.contains("'d'") {
            fs::create_dir(place.work.join("d")).unwrap();
            ("d/big", "ignored/d/big")
        } else {
            ("big", "ignored/big")
        };
        fs::write(place.work.join(name), &old).unwrap();
        let program = format!(
            "import os\n{rename}\nfd = os.open('{moved}', os.O_WRONLY)\nos.pwrite(fd, b'n' * (20 << 20), 0)\n"
        );
        fs::write(place.work.join("program.py"), program).unwrap();
        let ignored = place.work.join("ignored");
        let output = place.record_with(&["--ignore", ignored.to_str().unwrap()], "python3 -I program.py");
        assert!(output.status.success(), "{}", stderr(&output));
        let snapshot = place.snapshot();
        assert!(bytes(&snapshot, place.file(&snapshot, name), true) == old, "{rename}");
        assert_eq!(lost(&snapshot), [], "{rename}");
    }
}

#[test]
fn a_file_that_was_too_large_to_be_stored_when_it_was_read_is_kept_when_it_moves() {
    let place = Place::new();
    fs::write(place.work.join("large"), vec![b'x'; 100_000]).unwrap();
    let output = place.record_with(&["--max-read-bytes", "1000"], "cat large > /dev/null; mv large moved");
    assert!(output.status.success(), "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "large"), true).len(), 100_000);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "moved"), false).len(), 100_000);
}

#[test]
fn what_somebody_else_put_in_the_place_of_a_file_is_kept_and_told() {
    let place = Place::new();
    fs::write(place.work.join("file"), "at first sight\n").unwrap();
    for fifo in ["seen", "replaced"] {
        mkfifo(&place.work.join(fifo), Mode::S_IRWXU).unwrap();
    }
    let snapshot = std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::read(place.work.join("seen")).unwrap();
            fs::write(place.base().join("new"), "an editor's\n").unwrap();
            fs::rename(place.base().join("new"), place.work.join("file")).unwrap();
            fs::write(place.work.join("replaced"), "").unwrap();
        });
        place.record("test -e file; : > seen; cat replaced; echo command > file")
    });
    let file = place.file(&snapshot, "file");
    assert_eq!(bytes(&snapshot, file, true), b"an editor's\n");
    assert_eq!(bytes(&snapshot, file, false), b"command\n");
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
}

/// Records a script which waits until somebody outside of the tree has written as many other bytes to `file`.
fn record_edited(script: &str) -> Snapshot {
    let place = Place::new();
    let file = place.work.join("file");
    fs::write(&file, "at first sight\n").unwrap();
    for fifo in ["seen", "edited"] {
        mkfifo(&place.work.join(fifo), Mode::S_IRWXU).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::read(place.work.join("seen")).unwrap();
            fs::write(&file, "of an editor..\n").unwrap();
            fs::write(place.work.join("edited"), "").unwrap();
        });
        place.record(script)
    })
}

#[test]
fn an_edit_from_outside_after_a_change_of_the_mode_is_told() {
    let snapshot = record_edited("chmod 600 file; : > seen; cat edited file > /dev/null");
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
}

#[test]
fn an_edit_from_outside_after_a_change_of_the_times_is_told() {
    let snapshot = record_edited("touch -c -d 2001-02-03 file; : > seen; cat edited; echo command > file");
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
}

#[test]
fn an_edit_from_outside_after_an_open_that_failed_is_told() {
    if !has_python() {
        return;
    }
    let open =
        "import os\ntry: os.open('file', os.O_WRONLY | os.O_DIRECTORY)\nexcept NotADirectoryError: pass";
    let snapshot = record_edited(&format!("python3 -Ic \"{open}\"; : > seen; cat edited file > /dev/null"));
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange, WarningKind::LateBeforeState]);
}

#[test]
fn bytes_after_a_change_of_the_times_are_those_of_before() {
    let place = Place::new();
    fs::write(place.work.join("file"), "old").unwrap();
    let snapshot = place.record("touch -c -d 2001-02-03 file; chmod 600 file; echo new > file");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), true), b"old");
    assert_eq!(lost(&snapshot), []);
}
