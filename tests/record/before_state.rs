//! The before-state: kept under whatever names a file has had, and whoever changes it.

use std::fs;

use agent_snapshot::snapshot::{Snapshot, WarningKind};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::{Place, bytes, has, lost, stderr};

#[test]
fn file_overwritten_in_an_ignored_directory_keeps_its_content() {
    if !has("python3") {
        return;
    }
    let old = vec![b'o'; 30 << 20];
    for rename in ["os.rename('big', 'ignored/big')", "os.rename('d', 'ignored/d')"] {
        let place = Place::new();
        fs::create_dir(place.at("ignored")).unwrap();
        let (name, moved) = if rename.contains("'d'") {
            fs::create_dir(place.at("d")).unwrap();
            ("d/big", "ignored/d/big")
        } else {
            ("big", "ignored/big")
        };
        fs::write(place.at(name), &old).unwrap();
        let program = format!(
            "import os\n{rename}\nfd = os.open('{moved}', os.O_WRONLY)\nos.pwrite(fd, b'n' * (20 << 20), 0)\n"
        );
        fs::write(place.at("program.py"), program).unwrap();
        let ignored = place.at("ignored");
        let output = place.record_with(&["--ignore", ignored.to_str().unwrap()], "python3 -I program.py");
        assert!(output.status.success(), "{}", stderr(&output));
        let snapshot = place.snapshot();
        assert!(bytes(&snapshot, place.file(&snapshot, name), true) == old, "{rename}");
        assert_eq!(lost(&snapshot), [], "{rename}");
    }
}

#[test]
fn file_too_large_to_be_stored_when_read_is_kept_when_renamed() {
    let place = Place::new();
    fs::write(place.at("large"), vec![b'x'; 100_000]).unwrap();
    let output = place.record_with(&["--max-read-bytes", "1000"], "cat large > /dev/null; mv large moved");
    assert!(output.status.success(), "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "large"), true).len(), 100_000);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "moved"), false).len(), 100_000);
}

#[test]
fn file_replaced_by_another_process_is_kept_and_reported() {
    let place = Place::new();
    fs::write(place.at("file"), "at first sight\n").unwrap();
    for fifo in ["seen", "replaced"] {
        mkfifo(&place.at(fifo), Mode::S_IRWXU).unwrap();
    }
    let snapshot = std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::read(place.at("seen")).unwrap();
            fs::write(place.base().join("new"), "an editor's\n").unwrap();
            fs::rename(place.base().join("new"), place.at("file")).unwrap();
            fs::write(place.at("replaced"), "").unwrap();
        });
        place.record("test -e file; : > seen; cat replaced; echo command > file")
    });
    let file = place.file(&snapshot, "file");
    assert_eq!(bytes(&snapshot, file, true), b"an editor's\n");
    assert_eq!(bytes(&snapshot, file, false), b"command\n");
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
}

/// Records a script which waits until a process outside of the tree has written as many other bytes to
/// `file`.
fn record_edited(script: &str) -> Snapshot {
    let place = Place::new();
    let file = place.at("file");
    fs::write(&file, "at first sight\n").unwrap();
    for fifo in ["seen", "edited"] {
        mkfifo(&place.at(fifo), Mode::S_IRWXU).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::read(place.at("seen")).unwrap();
            fs::write(&file, "of an editor..\n").unwrap();
            fs::write(place.at("edited"), "").unwrap();
        });
        place.record(script)
    })
}

#[test]
fn external_edit_after_chmod_is_reported() {
    let snapshot = record_edited("chmod 600 file; : > seen; cat edited file > /dev/null");
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
}

#[test]
fn external_edit_after_utimensat_is_reported() {
    let snapshot = record_edited("touch -c -d 2001-02-03 file; : > seen; cat edited; echo command > file");
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
}

#[test]
fn external_edit_after_a_failed_open_is_reported() {
    if !has("python3") {
        return;
    }
    let open =
        "import os\ntry: os.open('file', os.O_WRONLY | os.O_DIRECTORY)\nexcept NotADirectoryError: pass";
    let snapshot = record_edited(&format!("python3 -Ic \"{open}\"; : > seen; cat edited file > /dev/null"));
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange, WarningKind::LateBeforeState]);
}

#[test]
fn content_after_a_change_of_times_is_kept() {
    let place = Place::new();
    fs::write(place.at("file"), "old").unwrap();
    let snapshot = place.record("touch -c -d 2001-02-03 file; chmod 600 file; echo new > file");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), true), b"old");
    assert_eq!(lost(&snapshot), []);
}
