//! Descriptors that the command inherits: destroyed content is kept, a file that is only appended to is not
//! copied.

use std::fs;
use std::fs::File;

use agent_snapshot::snapshot::Snapshot;

use crate::support::{Place, bytes, has, lost, stderr};

#[test]
fn inherited_descriptors_are_recorded_from_the_launch() {
    let place = Place::new();
    for (name, content) in [("input", "in"), ("log", "old\n"), ("overwritten", "before")] {
        fs::write(place.at(name), content).unwrap();
    }
    let mut command = place.recording();
    command.args(["sh", "-c", "cat; echo err >&2"]);
    command.stdin(fs::File::open(place.at("input")).unwrap());
    command.stdout(fs::OpenOptions::new().append(true).open(place.at("log")).unwrap());
    command.stderr(fs::OpenOptions::new().write(true).open(place.at("overwritten")).unwrap());
    assert!(command.status().unwrap().success());
    let snapshot = place.snapshot();
    assert_eq!(place.recorded(&snapshot), ["input read", "log write", "overwritten write"]);
    assert!(
        snapshot
            .files()
            .iter()
            .filter(|file| file.path.starts_with(&place.path("")))
            .all(|file| file.inherited)
    );
    let log = place.file(&snapshot, "log");
    assert_eq!(log.before.present().unwrap().size, 4);
    assert_eq!(log.before.present().unwrap().blob, None);
    let overwritten = place.file(&snapshot, "overwritten");
    assert_eq!(bytes(&snapshot, overwritten, true), b"before");
    assert_eq!(bytes(&snapshot, overwritten, false), b"err\nre");
}

const OLD: &[u8] = b"precious\n";

/// Records `script` with its standard output appended to `log`, which has `OLD` in it.
fn record_appending(place: &Place, script: &str) -> Snapshot {
    place.write("log", OLD);
    let log = File::options().append(true).open(place.at("log")).unwrap();
    let mut command = place.recording();
    command.args(["sh", "-c", script]);
    let output = command.stdout(log).output().unwrap();
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    place.snapshot()
}

/// Scripts in which a file that was opened for appending loses the content that it had.
const WAYS: [&str; 17] = [
    "echo a; : > log",
    "echo a; mv log gone; : > gone",
    "echo a; rm log",
    "echo a; sed -i s/precious/x/ log",
    "echo a; echo other > o; cp o log",
    "echo a; echo other > o; mv o log",
    "echo a; truncate -s 3 log",
    "echo a; dd if=/dev/zero of=log bs=4 count=1 conv=notrunc 2>/dev/null",
    "echo a; python3 -c 'import os; os.ftruncate(1, 0)'",
    "echo a; python3 -c 'import os, fcntl; fcntl.fcntl(1, fcntl.F_SETFL, 0); os.pwrite(1, b\"x\", 0)'",
    // RWF_NOAPPEND (Linux 6.9); an older kernel refuses it and leaves the bytes.
    "echo a; python3 -c 'import os\ntry: os.pwritev(1, [b\"xx\"], 0, 32)\nexcept OSError: pass'",
    // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE.
    "echo a; python3 -c 'import ctypes; ctypes.CDLL(None).fallocate(1, 3, ctypes.c_long(0), ctypes.c_long(4))'",
    // FS_IOC_UNRESVSP and FS_IOC_UNRESVSP64 of the first four bytes (struct space_resv), and FS_IOC_ZERO_RANGE, which tmpfs
    // refuses.
    "echo a; python3 -c 'import fcntl, struct; fcntl.ioctl(1, 0x40305829, struct.pack(\"hhqqiI16x\", 0, 0, 0, 4, 0, 0))'",
    "echo a; python3 -c 'import fcntl, struct; fcntl.ioctl(1, 0x4030582b, struct.pack(\"hhqqiI16x\", 0, 0, 0, 4, 0, 0))'",
    "echo a; python3 -c 'import fcntl, struct\ntry: fcntl.ioctl(1, 0x40305839, struct.pack(\"hhqqiI16x\", 0, 0, 0, 4, 0, 0))\nexcept OSError: pass'",
    "echo a; : > /proc/self/fd/1",
    "echo a; ln log other; rm log; : > other",
];

#[test]
fn destroyed_content_of_an_appended_file_is_kept() {
    if !has("python3") {
        return;
    }
    for script in WAYS {
        let place = Place::new();
        let snapshot = record_appending(&place, script);
        assert_eq!(lost(&snapshot), [], "{script}");
        let log = place.file(&snapshot, "log");
        assert!(log.inherited, "{script}");
        let before = log.before.present().unwrap();
        if fs::read(place.at("log")).is_ok_and(|now| now.starts_with(OLD)) {
            let may_be_refused = script.contains("pwritev") || script.contains("0x40305839");
            assert!(may_be_refused, "{script}: nothing was destroyed");
            continue;
        }
        assert_eq!(before.size, OLD.len() as u64, "{script}");
        assert_eq!(bytes(&snapshot, log, true), OLD, "{script}");
    }
}

#[test]
fn appended_file_is_not_copied() {
    let place = Place::new();
    let snapshot = record_appending(&place, "echo a; echo b >> log; cat log > /dev/null");
    let log = place.file(&snapshot, "log");
    assert_eq!(lost(&snapshot), []);
    assert_eq!(log.before.present().unwrap().size, OLD.len() as u64);
    assert!(log.inherited);
    let place = Place::new();
    let snapshot = record_appending(&place, "echo a");
    let log = place.file(&snapshot, "log");
    assert_eq!(lost(&snapshot), []);
    assert_eq!(log.before.present().unwrap().blob, None);
    assert_eq!(log.after.present().unwrap().blob, None);
}

#[test]
fn renamed_input_has_its_content_at_both_names() {
    let place = Place::new();
    place.write("list", OLD);
    let mut command = place.recording();
    command.args(["sh", "-c", "mv list list.bak"]);
    let output = command.stdin(File::open(place.at("list")).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["list read+delete", "list.bak write"]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "list"), true), OLD);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "list.bak"), false), OLD);
}
