//! Our own program, called by a recorded shell: what it changes is its own affair.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use agent_snapshot::snapshot::WarningKind;

use crate::support::{BINARY, LEVELS, MECHANISMS, Place, bytes, copy_program, lost, stderr};

/// A place with a recording in `out-earlier` of a script, and that directory's name.
fn after_a_recorded(script: &str) -> (Place, String) {
    let place = Place::new();
    place.write("f", "first\n");
    place.write("read", "as ever\n");
    place.write("d/x", "x\n");
    place.write("d/y", "y\n");
    place.record(script);
    let earlier = place.base().join("out-earlier");
    fs::rename(&place.out, &earlier).unwrap();
    (place, earlier.display().to_string())
}

#[test]
fn undo_by_a_recorded_shell_works_and_is_not_recorded() {
    for mechanism in MECHANISMS {
        let (place, earlier) = after_a_recorded("echo second > f; mv d e; rm e/x; chmod 600 read");
        let script = format!(
            "cat f > copy; cat e/y >> copy; {BINARY} restore --before {earlier} > said || exit
             ls d >> copy; cat f read >> copy; echo more > g"
        );
        let output = place.recorder(mechanism).args(["sh", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read_to_string(place.at("copy")).unwrap(), "second\ny\nx\ny\nfirst\nas ever\n");
        let snapshot = place.snapshot();
        assert_eq!(
            place.recorded(&snapshot),
            [
                "copy write",
                "d existence+directory",
                "e/y read",
                "f read",
                "g write",
                "read read",
                "said write"
            ],
            "{mechanism}"
        );
        assert_eq!(lost(&snapshot), [], "{mechanism}");
        let mut notes = snapshot.header().warnings.iter();
        let note = notes.find(|warning| warning.kind == WarningKind::ExternalChange).unwrap();
        assert!(note.detail.ends_with("is agent-snapshot: what it changes is not recorded"), "{note:?}");
        let f = place.file(&snapshot, "f");
        assert!(f.before == f.after && bytes(&snapshot, f, true) == b"second\n", "{f:?}");
        // It wrote there through a descriptor that the shell had opened.
        let said = place.file(&snapshot, "said");
        assert_eq!(bytes(&snapshot, said, false), fs::read(place.at("said")).unwrap());
        assert!(!fs::read(place.at("said")).unwrap().is_empty());
        // An undo of the second recording leaves alone what the first undo did.
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "first\n");
        assert!(place.at("d/x").exists() && !place.at("g").exists());
    }
}

#[test]
fn what_the_shell_itself_changed_before_an_undo_keeps_its_states() {
    for keep in LEVELS {
        let (place, earlier) = after_a_recorded("echo second > f; rm d/x");
        let script = format!(
            "echo third > f; mv d/y d/z; rm read
             {BINARY} restore --before --force {earlier} > /dev/null || exit; cat f; rm -r d"
        );
        let output = place.record_with(&["--keep", keep], &script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "first\n", "{output:?}");
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [], "{keep:?}");
        let f = place.file(&snapshot, "f");
        assert_eq!(bytes(&snapshot, f, true), b"second\n");
        if keep == "all" {
            assert_eq!(bytes(&snapshot, f, false), b"third\n", "not what the undo has left");
        }
        let (y, x) = (place.file(&snapshot, "d/y"), place.file(&snapshot, "d/x"));
        assert_eq!(bytes(&snapshot, y, true), b"y\n");
        assert_eq!(bytes(&snapshot, x, true), b"x\n", "the undo made it and the shell removed it");
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "read"), true), b"as ever\n");
    }
}

#[test]
fn copy_of_our_program_is_any_other_program() {
    let (place, earlier) = after_a_recorded("echo second > f");
    copy_program(BINARY, place.at("copy"));
    let snapshot = place.record(&format!("./copy restore --before {earlier} > /dev/null"));
    let f = place.file(&snapshot, "f");
    assert_eq!(
        (bytes(&snapshot, f, true), bytes(&snapshot, f, false)),
        (b"second\n".into(), b"first\n".into())
    );
}

#[test]
fn command_that_our_program_runs_is_recorded() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        let inner = place.base().join("out-inner");
        let script = format!(
            "{BINARY} --if-unavailable run --snapshot-dir {} -- sh -c 'echo inner > inner' && echo outer > outer",
            inner.display()
        );
        let output = place.recorder(mechanism).args(["sh", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(
            stderr(&output).contains("this is recorded already: there is no snapshot of its own"),
            "{output:?}"
        );
        let snapshot = place.snapshot();
        assert_eq!(place.recorded(&snapshot), ["inner write", "outer write"], "{mechanism}");
        assert_eq!(lost(&snapshot), [], "{mechanism}");
        for kind in [WarningKind::ExternalChange, WarningKind::NestedTracer] {
            let warned = snapshot.header().warnings.iter().any(|warning| warning.kind == kind);
            assert!(!warned, "{mechanism}: {kind:?}");
        }
        assert!(snapshot.find(inner.as_os_str().as_encoded_bytes()).is_none() && !inner.exists());
    }
}

#[test]
fn snapshot_that_is_being_recorded_is_refused_inside_it() {
    for verb in ["show", "verify", "diff", "restore --before"] {
        let place = Place::new();
        let output = place.record_with(&[], &format!("echo x > f; {BINARY} {verb} {}", place.out.display()));
        assert_eq!(output.status.code(), Some(3), "{verb}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("is being recorded by process"), "{verb}: {said}");
        assert!(place.at("f").exists());
    }
}

#[test]
fn edit_undo_and_another_edit_keep_the_first_state() {
    for (keep, edit) in [("all", "echo third > f"), ("undo", "echo third > f"), ("all", "cat f")] {
        let (place, earlier) = after_a_recorded("echo second > f");
        let script =
            format!("{edit}; {BINARY} restore --before --force {earlier} > said; echo fourth > f; rm said");
        let output = place.record_with(&["--keep", keep], &script);
        assert!(output.status.success(), "{output:?}");
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [], "{keep}, {edit}");
        let f = place.file(&snapshot, "f");
        let states = [true, false].map(|before| bytes(&snapshot, f, before));
        assert_eq!(states, [b"second\n".to_vec(), b"fourth\n".to_vec()], "{keep}, {edit}");
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "second\n");
    }
}

#[test]
fn inode_numbers_that_an_undo_frees_are_other_files() {
    for edit in ["echo third >> f$i", "chmod 600 f$i"] {
        let place = Place::new();
        for i in 0..20 {
            place.write(&format!("f{i}"), "first\n");
            place.write(&format!("h{i}"), format!("precious {i}\n"));
        }
        let seq = "$(seq 0 19)";
        let mut earlier = Vec::new();
        for (number, script) in ["for i in SEQ; do echo second > f$i; done", "rm h*"].iter().enumerate() {
            place.record(&script.replace("SEQ", seq));
            let kept = place.base().join(format!("out-{number}"));
            fs::rename(&place.out, &kept).unwrap();
            earlier.push(kept.display().to_string());
        }
        let script = format!(
            "for i in {seq}; do {edit}; done
             {BINARY} restore --before --force {} && {BINARY} restore --before {} || exit
             rm h*",
            earlier[0], earlier[1]
        );
        let snapshot = place.record(&script);
        assert_eq!(lost(&snapshot), []);
        for i in 0..20 {
            let removed = place.file(&snapshot, format!("h{i}"));
            assert_eq!(bytes(&snapshot, removed, true), format!("precious {i}\n").into_bytes());
            let edited = place.file(&snapshot, format!("f{i}"));
            assert_eq!(bytes(&snapshot, edited, true), b"second\n");
        }
    }
}

#[test]
fn hard_links_that_the_shell_made_are_examined_together() {
    let (place, earlier) = after_a_recorded("echo second > f");
    let undo = format!("{BINARY} restore --before {earlier} > /dev/null");
    let snapshot = place.record(&format!("echo a > n; ln n n2; {undo}; echo bbb > n2"));
    for name in ["n", "n2"] {
        assert_eq!(bytes(&snapshot, place.file(&snapshot, name), false), b"bbb\n", "{name}");
    }
    let (place, earlier) = after_a_recorded("echo second > f");
    let undo = format!("{BINARY} restore --before {earlier} > /dev/null");
    let snapshot = place.record(&format!("echo a > n; ln n n2; {undo}; rm n2"));
    assert_eq!(place.file(&snapshot, "n").after.present().unwrap().nlink, 1);
}

#[test]
fn directory_that_was_replaced_before_an_undo_is_reported() {
    let (place, earlier) = after_a_recorded("echo second > f");
    place.prepare("mkfifo go ready");
    let script = format!(
        "cat d/x; echo > ready; read line < go; {BINARY} restore --before {earlier} > /dev/null; echo new > d/z"
    );
    let child =
        place.recording().args(["--quiet", "sh", "-c", &script]).stdout(Stdio::null()).spawn().unwrap();
    place.prepare("read line < ready; mv d away; mkdir d; echo > go");
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(lost(&place.snapshot()), [WarningKind::ExternalChange]);
}

#[test]
fn program_that_a_loader_runs_is_not_ours() {
    let loader = "/lib64/ld-linux-x86-64.so.2";
    if !Path::new(loader).exists() {
        println!("skipped: programs use another loader here");
        return;
    }
    let place = Place::new();
    place.write("victim", "precious\n");
    let mut command = place.program(loader);
    command.arg(BINARY).arg("--snapshot-dir").arg(&place.out);
    let script = format!("{loader} $(command -v rm) victim");
    assert!(command.args(["--quiet", "sh", "-c", &script]).status().unwrap().success());
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "victim"), true), b"precious\n");
}
