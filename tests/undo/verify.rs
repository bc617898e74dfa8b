//! `verify`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use agent_snapshot::snapshot::{GitState, Operation};
use serde_json::{Value, json};

use super::support::*;

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
fn each_state_holds_until_something_changes() {
    let scene = Scene::new();
    scene.write("file", "old");
    scene.write("gone", "x");
    scene.write("dir/inner", "y");
    scene.record(|| {
        scene.write("file", "new");
        fs::remove_file(scene.at("gone")).unwrap();
        scene.write("dir/added", "z");
        symlink("file", scene.at("link")).unwrap();
    });
    verb("verify", &scene.snap(), &[]).expect(0);
    let run = verb("verify", &scene.snap(), &["--before", "--json"]).expect(1);
    let drift = |name: &str| (name.to_owned(), "drift".to_owned());
    let expected = ["tree", "dir", "added", "file", "gone", "link"].map(drift);
    assert_eq!(differences(&run), expected);

    scene.write("file", "third");
    fs::set_permissions(scene.at("dir/added"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(scene.at("link")).unwrap();
    symlink("elsewhere", scene.at("link")).unwrap();
    scene.write("gone", "back");
    scene.write("dir/foreign", "");
    let run = verb("verify", &scene.snap(), &["--json"]).expect(1);
    let expected = ["tree", "dir", "added", "file", "gone", "link"].map(drift);
    assert_eq!(differences(&run), expected);
    let run = verb("verify", &scene.snap(), &["--drift-policy", "off"]).expect(0);
    assert!(run.stdout.contains("target file is elsewhere"), "{}", run.stdout);
    assert!(run.stdout.contains("mode 0644 is 0600"), "{}", run.stdout);
    assert!(run.stdout.contains("3 bytes are 5"), "{}", run.stdout);
    assert!(run.stdout.ends_with("6 paths compared: 6 paths not at the state after the command\n"));
}

#[test]
fn a_difference_has_both_fingerprints() {
    let scene = Scene::new();
    scene.write("file", "old");
    scene.record(|| scene.write("file", "new"));
    fs::remove_file(scene.at("file")).unwrap();
    let run = verb("verify", &scene.snap(), &["--json"]).expect(1);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let file = report["differences"].as_array().unwrap().last().unwrap();
    assert_eq!(file["live_fingerprint"], json!({ "exists": false }));
    let recorded = &file["snapshot_fingerprint"];
    assert_eq!((&recorded["type"], &recorded["size"]), (&json!("file"), &json!(3)));
    assert!(recorded["content"].as_str().unwrap().starts_with("sha256:"));
}

#[test]
fn what_lies_behind_a_link_in_a_parent_is_not_what_was_recorded() {
    let scene = Scene::new();
    scene.write("dir/file", "x");
    scene.write("other/file", "x");
    record_with(&scene.at("dir"), &scene.snap(), |_| true, || {});
    verb("verify", &scene.snap(), &[]).expect(0);
    fs::remove_dir_all(scene.at("dir")).unwrap();
    symlink("other", scene.at("dir")).unwrap();
    let run = verb("verify", &scene.snap(), &["--json"]).expect(1);
    assert_eq!(differences(&run).len(), 2);
}

fn git(scene: &Scene, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"])
        .args(args)
        .current_dir(scene.root())
        .env("HOME", scene.dir())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_pinned_read_does_not_drift_and_is_lost_with_its_object() {
    let scene = Scene::new();
    git(&scene, &["init", "-q"]);
    scene.write("pinned", "tracked");
    git(&scene, &["add", "."]);
    git(&scene, &["commit", "-qm", "one"]);
    let oid = git(&scene, &["rev-parse", "HEAD:pinned"]);
    let tree = scan(&scene.root());
    commit(&scene.snap(), &header(), |_| {
        let path = scene.at("pinned").into_os_string().into_encoded_bytes();
        let mut present = tree[&path].present.clone();
        present.digest = None;
        let state = agent_snapshot::snapshot::State::Present(Box::new(present));
        let mut record = file_record(&path, state.clone(), state, Operation::Read.into());
        record.git = Some(GitState {
            root: scene.root().into_os_string().into_encoded_bytes(),
            head: Some(git(&scene, &["rev-parse", "HEAD"])),
            relative_path: b"pinned".to_vec(),
            oid: Some(oid.clone()),
            tracked: true,
            dirty: false,
            ignored: false,
        });
        vec![record]
    });
    for flags in [&["--before"][..], &[]] {
        verb("verify", &scene.snap(), flags).expect(0);
    }
    scene.write("pinned", "changed since");
    let run = verb("verify", &scene.snap(), &[]).expect(0);
    assert!(run.stdout.contains("1 path pinned in Git"), "{}", run.stdout);

    fs::remove_file(scene.at(&format!(".git/objects/{}/{}", &oid[..2], &oid[2..]))).unwrap();
    let run = verb("verify", &scene.snap(), &["--json"]).expect(1);
    assert_eq!(differences(&run), [("pinned".to_owned(), "pin_lost".to_owned())]);
}

#[test]
fn a_path_that_is_no_text_is_told_exactly() {
    use std::os::unix::ffi::OsStrExt as _;
    let scene = Scene::new();
    let name = scene.root().join(std::ffi::OsStr::from_bytes(b"n\xff\n"));
    scene.record(|| fs::write(&name, "x").unwrap());
    fs::remove_file(&name).unwrap();
    let run = verb("verify", &scene.snap(), &["--json"]).expect(1);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let file = report["differences"].as_array().unwrap().last().unwrap();
    assert!(file["path"].as_str().unwrap().ends_with("n\u{ff}\n"));
    assert!(file["path_bytes"].is_string());
    let run = verb("verify", &scene.snap(), &[]).expect(1);
    assert!(run.stdout.contains("n\\xff\\n"), "{}", run.stdout);
}

#[test]
fn what_is_no_snapshot_is_refused_with_3() {
    let scene = Scene::new();
    verb("verify", &scene.snap(), &[]).expect(3);
    fs::create_dir(scene.snap()).unwrap();
    verb("verify", &scene.snap(), &[]).expect(3);
    fs::write(scene.snap().join("manifest.json"), "{}").unwrap();
    verb("verify", &scene.snap(), &[]).expect(3);
}
