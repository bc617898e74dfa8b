//! Files of a Git repository: what is left to Git, and what is stored.

use std::process::Command;

use agent_snapshot::snapshot::Snapshot;

use crate::support::{BINARY, Place, bytes, lost};

/// Runs a script in the place, outside of any recording.
fn prepare(place: &Place, script: &str) {
    let mut command = Command::new("sh");
    place.isolate(&mut command);
    for (name, value) in [("AUTHOR", "a"), ("COMMITTER", "c")] {
        command.env(format!("GIT_{name}_NAME"), value);
        command.env(format!("GIT_{name}_EMAIL"), format!("{value}@example.com"));
    }
    let output = command.args(["-euc", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

fn pin(place: &Place, snapshot: &Snapshot, name: &str) -> Option<String> {
    place.file(snapshot, name).git.as_ref().unwrap().oid.clone()
}

#[test]
fn a_file_of_a_filter_whose_configuration_is_gone_is_stored() {
    let place = Place::new();
    // It keeps the length, and Git believes the stat data in its index.
    prepare(
        &place,
        "git init -q; git config filter.rot.clean 'tr a-z n-za-m'; echo '*.txt filter=rot' >.gitattributes
         echo hello >f.txt; echo plain >plain; git add .; git commit -qm 1
         git config --remove-section filter.rot; touch -d '+1 minute' .git/index; git diff --quiet",
    );
    let snapshot = place.record("cat f.txt plain");
    assert!(pin(&place, &snapshot, "plain").is_some());
    assert_eq!(pin(&place, &snapshot, "f.txt"), None);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f.txt"), true), b"hello\n");
}

#[test]
fn a_repository_is_dirty_only_where_a_dirty_path_was_observed() {
    let place = Place::new();
    prepare(&place, "git init -q; echo 1 >a; echo 1 >b; git add .; git commit -qm 1; echo 2 >b");
    for (script, dirty) in [("cat a", serde_json::Value::Null), ("cat a b", true.into())] {
        place.record(script);
        let manifest = std::fs::read(place.out.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let root = place.work.to_str().unwrap();
        let mut repositories = manifest["git_repositories"].as_array().unwrap().iter();
        let repository = repositories.find(|repository| repository["root"] == root).unwrap();
        assert_eq!(repository["dirty"], dirty, "{script}");
    }
}

#[test]
fn an_index_of_any_size_costs_no_memory_and_nothing_but_what_git_knows() {
    let place = Place::new();
    prepare(
        &place,
        "git init -q; echo 1 >a; git add .; git commit -qm 1; echo new >b; truncate -s 40G .git/index",
    );
    // What is read whole shall not fill the machine's memory before it is noticed.
    let script = "cat a b >c; grep VmHWM /proc/$PPID/status";
    let mut command = Command::new("sh");
    place.isolate(&mut command);
    command.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh", BINARY, "--snapshot-dir"]).arg(&place.out);
    let output = command.args(["sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let peak: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 100 << 10, "{text}");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["a read", "b read", "c write"]);
    assert!(
        snapshot.files().iter().all(|file| file.git.is_none() || !file.path.starts_with(&place.path("")))
    );
    for (name, before, content) in [("a", true, "1\n"), ("b", true, "new\n"), ("c", false, "1\nnew\n")] {
        assert_eq!(bytes(&snapshot, place.file(&snapshot, name), before), content.as_bytes());
    }
}
