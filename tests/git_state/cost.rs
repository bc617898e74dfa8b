//! What a recording of Git's state costs, and when it costs nothing.

use std::fs;

use agent_snapshot::snapshot::{Operation, Snapshot};

use super::scenario::*;
use crate::support::*;

fn git_files(snapshot: &Snapshot) -> Vec<String> {
    let records = snapshot.files().iter().filter(|record| record.is_git_state);
    records.map(|record| String::from_utf8_lossy(&record.path).into_owned()).collect()
}

#[test]
fn commands_that_only_read_change_nothing_of_gits_state() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, "git update-index -q --refresh", User::Current);
    for command in ["git log --all --oneline", "git status", "git diff", "git stash list", "git branch -a"] {
        accident.record(&[], command);
        let snapshot = accident.place.snapshot();
        assert_eq!(git_files(&snapshot), [""; 0], "{command}");
        let stored = accident.place.names_in_out();
        let size = |name: &str| fs::metadata(accident.place.out.join(name)).unwrap().len();
        let blobs = if stored.contains(&"blobs.parquet".to_owned()) { size("blobs.parquet") } else { 0 };
        assert!(blobs < 64 << 10, "{command}: {blobs} bytes");
    }
}

#[test]
fn refresh_of_the_index_is_no_change() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, "touch -d 2001-02-03 src/*", User::Current);
    let index = || fs::read(accident.place.at("repo/.git/index")).unwrap();
    let before = index();
    accident.record(&[], "git status");
    let index = fs::read(accident.place.at("repo/.git/index")).unwrap();
    assert_ne!(before, index, "the command refreshes it");
    assert_eq!(git_files(&accident.place.snapshot()), [""; 0]);
}

#[test]
fn refresh_of_the_index_after_the_recording_is_no_conflict() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, DIRTY, User::Current);
    let before = accident.probe();
    accident.record(&["--keep", "undo"], "git commit -qam new");
    let after = accident.probe();
    let refresh = "cd repo; touch -d 2001-02-03 src/*; before=$(cksum <.git/index); git status >/dev/null; \
        test \"$before\" != \"$(cksum <.git/index)\"";
    accident.place.prepare(refresh);
    accident.place.verb("verify", &[]).expect(0);
    accident.place.verb("restore", &["--before"]).expect(0);
    assert_text(&accident.probe(), &before, "undone");
    accident.place.prepare(refresh);
    accident.place.verb_on("restore", &accident.rescue(), &["--before"]).expect(0);
    assert_text(&accident.probe(), &after, "redone");
}

#[test]
fn a_commit_that_was_made_since_is_a_conflict_and_not_lost() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, DIRTY, User::Current);
    accident.record(&["--keep", "undo"], "git commit -qam recorded");
    accident.place.prepare("cd repo; git config user.name a; git config user.email a@b; echo since >>src/f; git commit -qam since");
    let since = accident.probe();
    for flags in [&["--before"][..], &["--before", "--force"]] {
        accident.place.verb("restore", flags).expect(1);
        let now = accident.probe();
        let log = |text: &str| text.lines().filter(|line| line.contains("since")).count();
        assert_eq!(log(&now), log(&since), "{flags:?}");
    }
}

#[test]
fn gc_that_drops_a_small_branch_costs_little() {
    if !has("git") {
        return;
    }
    let large = "head -c 20000000 /dev/urandom >large; git add large; git commit -qm large; git repack -adq;";
    let mut accident = Accident::new(&PLAIN, large, User::Current);
    let gc = "git branch -qD dropped; git reflog expire --expire=now --all; git gc -q --prune=now";
    accident.record(&["--keep", "undo"], gc);
    let size: u64 = accident
        .place
        .names_in_out()
        .iter()
        .map(|name| fs::metadata(accident.place.out.join(name)).unwrap().len())
        .sum();
    assert!(size < 1 << 20, "{size} bytes");
    accident.place.verb("restore", &["--before"]).expect(0);
    accident.place.prepare("cd repo; git cat-file -e dropped^{tree}; git fsck --no-progress");
}

#[test]
fn object_that_is_there_already_costs_nothing() {
    if !has("git") {
        return;
    }
    let large = "head -c 5000000 /dev/urandom >large; git add large; git commit -qm large; git repack -adq; \
        touch -d 2001-02-03 .git/objects/pack/*.pack";
    let mut accident = Accident::new(&PLAIN, large, User::Current);
    for keep in ["undo", "all"] {
        accident.record(
            &["--keep", keep, "--strict"],
            "git hash-object -w src/f; find .git/objects/pack -name '*.pack' -newermt 2002-01-01 | grep .",
        );
        assert_eq!(git_files(&accident.place.snapshot()), [""; 0]);
        let blobs = fs::metadata(accident.place.out.join("blobs.parquet")).map_or(0, |blobs| blobs.len());
        assert!(blobs < 1 << 20, "{keep}: {blobs} bytes");
    }
}

#[test]
fn reads_of_gits_state_are_counted_until_it_changes_and_then_recorded() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, "", User::Current);
    accident.record(
        &[],
        "cat .git/HEAD; git checkout -qb other; cat .git/HEAD; cat .git/HEAD; cd .git; cat HEAD",
    );
    let snapshot = accident.place.snapshot();
    let head = snapshot.files().iter().find(|record| record.path.ends_with(b"/.git/HEAD")).unwrap();
    let is_of_cat = |number: u32| {
        let process = snapshot.header().processes.iter().find(|process| process.id == number).unwrap();
        process.image.exe.ends_with(b"/cat")
    };
    let reads = head.uses.iter().filter(|one| one.operations.contains(Operation::Read));
    let read_by_cat: Vec<_> = reads.filter(|one| is_of_cat(one.process)).collect();
    assert_eq!(read_by_cat.len(), 3, "{head:#?}");
}
