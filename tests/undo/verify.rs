//! `verify`.

use std::fs;
use std::os::unix::fs::symlink;

use agent_snapshot::snapshot::{GitStatus, Operation};
use serde_json::{Value, json};

use crate::support::*;

fn differences(run: &Run) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    report["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (text(&one["path"]).rsplit('/').next().unwrap().to_owned(), text(&one["kind"])))
        .collect()
}

#[test]
fn state_verifies_until_something_changes() {
    let place = Place::new();
    place.write("file", "old");
    place.write("gone", "x");
    place.write("dir/inner", "y");
    place.make_bundle(|| {
        place.write("file", "new");
        fs::remove_file(place.at("gone")).unwrap();
        place.write("dir/added", "z");
        symlink("file", place.at("link")).unwrap();
    });
    place.verb("verify", &[]).expect(0);
    let run = place.verb("verify", &["--before", "--json"]).expect(1);
    let drift = |name: &str| (name.to_owned(), "drift".to_owned());
    let expected = ["work", "dir", "added", "file", "gone", "link"].map(drift);
    assert_eq!(differences(&run), expected);

    place.write("file", "third");
    chmod(place.at("dir/added"), 0o600);
    fs::remove_file(place.at("link")).unwrap();
    symlink("elsewhere", place.at("link")).unwrap();
    place.write("gone", "back");
    place.write("dir/foreign", "");
    let run = place.verb("verify", &["--json"]).expect(1);
    let expected = ["work", "dir", "added", "file", "gone", "link"].map(drift);
    assert_eq!(differences(&run), expected);
    let run = place.verb("verify", &["--drift-policy", "off"]).expect(0);
    assert!(run.stdout.contains("target: file recorded, elsewhere now"), "{}", run.stdout);
    assert!(run.stdout.contains("mode: 0644 recorded, 0600 now"), "{}", run.stdout);
    assert!(run.stdout.contains("size: 3 bytes recorded, 5 now"), "{}", run.stdout);
    assert!(run.stdout.ends_with("6 paths compared: 6 paths not in the state after the command\n"));
}

#[test]
fn what_was_only_read_is_counted_where_its_states_are_not_kept() {
    let place = Place::new();
    place.write("read", "x");
    place.record_with(&["--keep", "undo"], ": < read; echo > made");
    let run = place.verb("verify", &[]).expect(0);
    assert!(
        run.stdout.contains(" left out (only read, with --keep undo): all are in the state after"),
        "{run:?}"
    );
}

#[test]
fn difference_has_both_fingerprints() {
    let place = Place::new();
    place.write("file", "old");
    place.make_bundle(|| place.write("file", "new"));
    fs::remove_file(place.at("file")).unwrap();
    let run = place.verb("verify", &["--json"]).expect(1);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let file = report["differences"].as_array().unwrap().last().unwrap();
    assert_eq!(file["live_fingerprint"], json!({ "exists": false }));
    let recorded = &file["snapshot_fingerprint"];
    assert_eq!((&recorded["type"], &recorded["size"]), (&json!("file"), &json!(3)));
    assert!(recorded["content"].as_str().unwrap().starts_with("sha256:"));
}

#[test]
fn file_behind_a_symlinked_parent_differs() {
    let place = Place::new();
    place.write("dir/file", "x");
    place.write("other/file", "x");
    make_bundle(&place.at("dir"), &place.out, |_| true, || {});
    place.verb("verify", &[]).expect(0);
    fs::remove_dir_all(place.at("dir")).unwrap();
    symlink("other", place.at("dir")).unwrap();
    let run = place.verb("verify", &["--json"]).expect(1);
    assert_eq!(differences(&run).len(), 2);
}

#[test]
fn pinned_read_does_not_drift_and_needs_its_object() {
    let place = Place::new();
    let ids = place.prepare(
        "git init -q; printf tracked >pinned; git add .; git commit -qm one; git rev-parse HEAD:pinned HEAD",
    );
    let [oid, head] = ids.lines().map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
    let tree = scan(&place.work);
    commit(&place.out, &header(), |_| {
        let path = place.at("pinned").into_os_string().into_encoded_bytes();
        let mut present = tree[&path].present.clone();
        present.digest = None;
        let state = agent_snapshot::snapshot::State::Present(Box::new(present));
        let mut record = file_record(&path, state.clone(), state, Operation::Read.into());
        record.git = Some(GitStatus {
            root: place.work.clone().into_os_string().into_encoded_bytes(),
            head: Some(head.clone()),
            relative_path: b"pinned".to_vec(),
            oid: Some(oid.clone()),
            tracked: true,
            dirty: false,
            ignored: false,
        });
        vec![record]
    });
    for flags in [&["--before"][..], &[]] {
        place.verb("verify", flags).expect(0);
    }
    place.write("pinned", "changed since");
    let run = place.verb("verify", &[]).expect(0);
    assert!(run.stdout.contains("1 path pinned in Git"), "{}", run.stdout);

    fs::remove_file(place.at(format!(".git/objects/{}/{}", &oid[..2], &oid[2..]))).unwrap();
    let run = place.verb("verify", &["--json"]).expect(1);
    assert_eq!(differences(&run), [("pinned".to_owned(), "pin_lost".to_owned())]);
}

#[test]
fn path_that_is_not_utf8_is_reported_exactly() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = Place::new();
    let name = place.work.join(std::ffi::OsStr::from_bytes(b"n\xff\n"));
    place.make_bundle(|| fs::write(&name, "x").unwrap());
    fs::remove_file(&name).unwrap();
    let run = place.verb("verify", &["--json"]).expect(1);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let file = report["differences"].as_array().unwrap().last().unwrap();
    assert!(file["path"].as_str().unwrap().ends_with("n\u{ff}\n"));
    assert!(file["path_bytes"].is_string());
    let run = place.verb("verify", &[]).expect(1);
    assert!(run.stdout.contains("n\\xff\\n"), "{}", run.stdout);
}

#[test]
fn invalid_snapshot_exits_with_3() {
    let place = Place::new();
    place.verb("verify", &[]).expect(3);
    fs::create_dir(&place.out).unwrap();
    place.verb("verify", &[]).expect(3);
    fs::write(place.out.join("manifest.json"), "{}").unwrap();
    place.verb("verify", &[]).expect(3);
}
