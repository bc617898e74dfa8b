//! The content of files before and after, and the limits on what is stored.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use agent_snapshot::snapshot::{BlobOmitted, State, WarningKind};

use crate::support::{Place, bytes, lost, stderr};

#[test]
fn content_before_and_after_is_stored() {
    let place = Place::new();
    place.write("changed", "old");
    place.write("deleted", "gone");
    place.write("read", "input");
    place.write("appended", "one\n");
    let snapshot =
        place.record("cat read; echo new > changed; rm deleted; echo two >> appended; echo x > created");
    let check = |name: &str, before: Option<&str>, after: Option<&str>| {
        let file = place.file(&snapshot, name);
        match before {
            Some(content) => assert_eq!(bytes(&snapshot, file, true), content.as_bytes(), "{name}"),
            None => assert_eq!(file.before, State::Absent { tombstone: false }, "{name}"),
        }
        match after {
            Some(content) => assert_eq!(bytes(&snapshot, file, false), content.as_bytes(), "{name}"),
            None => assert_eq!(file.after, State::Absent { tombstone: true }, "{name}"),
        }
    };
    check("changed", Some("old"), Some("new\n"));
    check("deleted", Some("gone"), None);
    check("read", Some("input"), Some("input"));
    check("appended", Some("one\n"), Some("one\ntwo\n"));
    check("created", None, Some("x\n"));
    assert!(snapshot.header().complete);
    let expected =
        ["appended write", "changed write", "created write", "deleted existence+delete", "read read"];
    assert_eq!(place.recorded(&snapshot), expected);
}

#[test]
fn names_of_any_bytes_are_recorded_exactly() {
    let place = Place::new();
    let names: [&[u8]; 5] = [b"new\nline", b"quo\"te'", b"\xff\xfe", b"caf\xc3\xa9", b" (deleted)"];
    for name in names {
        fs::write(place.at(OsStr::from_bytes(name)), name).unwrap();
    }
    let snapshot = place.record("for f in *; do echo more >> \"$f\"; done");
    for name in names {
        let file = place.file(&snapshot, OsStr::from_bytes(name));
        assert_eq!(bytes(&snapshot, file, true), name);
        assert_eq!(bytes(&snapshot, file, false), [name, b"more\n"].concat());
    }
}

#[test]
fn fifo_is_recorded_and_never_opened() {
    let place = Place::new();
    let snapshot =
        place.record("mkfifo pipe; echo word > pipe & read line < pipe; echo $line > result; wait");
    let pipe = place.file(&snapshot, "pipe");
    assert_eq!(pipe.after.present().unwrap().digest, None);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "result"), false), b"word\n");
    assert!(snapshot.header().complete);
}

#[test]
fn content_over_a_limit_has_a_digest_and_a_reason() {
    let place = Place::new();
    place.write("read", "0123456789");
    place.write("rewritten", "0123456789");
    let output = place.record_with(&["--max-read-bytes", "5"], "cat read rewritten; echo new > rewritten");
    assert!(output.status.success());
    let snapshot = place.snapshot();
    let read = place.file(&snapshot, "read").before.present().unwrap();
    // What destroys the same bytes elsewhere stores them for both.
    assert!(read.digest.is_some());
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "rewritten"), true), b"0123456789");
    assert!(snapshot.header().complete);
    let output = place.record_with(&["--max-blob-bytes", "5"], "echo longer than that > rewritten");
    assert!(output.status.success());
    let snapshot = place.snapshot();
    let after = place.file(&snapshot, "rewritten").after.present().unwrap();
    assert_eq!(after.blob_omitted, Some(BlobOmitted::TooLarge));
    assert!(after.digest.is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
    let strict =
        place.record_with(&["--max-blob-bytes", "5", "--strict"], "echo longer than that > rewritten");
    assert_eq!(strict.status.code(), Some(125));
    let why = stderr(&strict);
    assert!(
        why.contains("agent-snapshot: incomplete: content_omitted: ") && why.contains("(--strict)"),
        "{why}"
    );
    place.snapshot();
}

#[test]
fn file_read_after_its_times_were_set_has_its_content() {
    let place = Place::new();
    place.write("f", "content\n");
    let snapshot = place.record("touch -h -d @1000000000 f && cat f");
    let file = place.file(&snapshot, "f");
    assert_eq!(bytes(&snapshot, file, true), b"content\n");
    assert_eq!(bytes(&snapshot, file, false), b"content\n");
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn concurrent_overwrites_and_deletes_keep_the_before_state() {
    let place = Place::new();
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    names.iter().for_each(|name| fs::write(place.at(name), format!("before {name}\n")).unwrap());
    let snapshot =
        place.record("for f in f*; do (echo a > $f) & (echo b > $f) & (rm -f $f) & (cat $f) & done; wait");
    for name in &names {
        assert_eq!(
            bytes(&snapshot, place.file(&snapshot, name), true),
            format!("before {name}\n").as_bytes()
        );
    }
    assert_eq!(lost(&snapshot), []);
}
