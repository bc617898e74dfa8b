use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::commands::testing::{BundleTrees, Ran, run};
use crate::snapshot::{BlobOmitted, FileRecord, GitStatus, State, samples::git};

fn cat(trees: &BundleTrees, more: &[&str]) -> Ran {
    let snap = trees.snap();
    run(&[&["cat", snap.to_str().unwrap()], more].concat())
}

fn present(state: &mut State) -> &mut crate::snapshot::Present {
    match state {
        State::Present(present) => present,
        State::Absent { .. } | State::NotKept => panic!("nothing there"),
    }
}

#[test]
fn cat_gives_the_bytes_of_either_state_as_they_are() {
    let trees = BundleTrees::new();
    let (old, new) = (b"old\0\xff\x1b[2J", [b"new".as_slice(), &[0; 70_000]].concat());
    BundleTrees::write(&trees.before(), "f", old);
    BundleTrees::write(&trees.after(), "f", &new);
    symlink("somewhere", trees.after().join("l")).unwrap();
    trees.commit(|_| {});
    let before = cat(&trees, &["f", "--before"]);
    assert_eq!((before.status, before.out.as_slice(), before.err.as_str()), (0, old.as_slice(), ""));
    assert_eq!(cat(&trees, &["/nowhere/work/f"]).out, new);
    assert_eq!(cat(&trees, &["l"]).text(), "somewhere", "a link's target, without a line feed");
}

#[test]
fn cat_gives_pinned_bytes_from_git() {
    let trees = BundleTrees::new();
    let root = trees.dir.path().join("repo");
    fs::create_dir(&root).unwrap();
    git(&root, &["init", "-q"]);
    BundleTrees::write(&root, "f", "committed");
    git(&root, &["add", "."]);
    git(&root, &["commit", "-qm", "one"]);
    let oid = git(&root, &["rev-parse", "HEAD:f"]);
    trees.both("f", "committed");
    trees.commit(|records| pin(&mut records[0], &root, &oid));
    fs::write(root.join("f"), "changed since").unwrap();
    let read = cat(&trees, &["f"]);
    assert_eq!((read.status, read.text()), (0, "committed"));
    let json = cat(&trees, &["f", "--json", "--before"]).json();
    assert_eq!((json["source"].as_str(), json["oid"].as_str()), (Some("git"), Some(oid.as_str())));

    fs::remove_dir_all(root.join(".git/objects")).unwrap();
    let lost = cat(&trees, &["f"]);
    assert_eq!((lost.status, lost.text()), (1, ""));
    assert!(lost.err.contains(&oid) && lost.err.contains("f: its content after the command"), "{}", lost.err);
}

fn pin(record: &mut FileRecord, root: &Path, oid: &str) {
    for state in [&mut record.before, &mut record.after] {
        let present = present(state);
        (present.blob, present.ino) = (None, 5);
    }
    record.git = Some(GitStatus {
        root: root.as_os_str().as_encoded_bytes().to_vec(),
        head: None,
        relative_path: b"f".to_vec(),
        oid: Some(oid.to_owned()),
        tracked: true,
        dirty: false,
        ignored: false,
    });
}

#[test]
fn cat_says_why_there_are_no_bytes() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "gone", "x");
    fs::create_dir(trees.after().join("dir")).unwrap();
    BundleTrees::write(&trees.after(), "large", "12345");
    trees.commit(|records| {
        let large = present(&mut records[2].after);
        (large.blob, large.blob_omitted) = (None, Some(BlobOmitted::TooLarge));
    });
    let why = |path: &str| {
        let ran = cat(&trees, &[path]);
        assert_eq!((ran.status, ran.text()), (1, ""));
        ran.err.trim_end().to_owned()
    };
    assert!(why("gone").ends_with("nothing was there; --before shows what was"), "{}", why("gone"));
    assert!(why("dir").ends_with("it is a directory"));
    assert!(why("large").contains("(too_large)"));
    assert!(
        why("never\nheard")
            .ends_with("never\\nheard\": the snapshot has no record of it, so it was not used")
    );

    let json = cat(&trees, &["large", "--json"]);
    assert_eq!(json.status, 1);
    assert_eq!(json.json()["size"], 5);
    assert!(json.json()["unavailable"].as_str().unwrap().contains("too_large"));
}

#[test]
fn cat_json_has_the_bytes_in_base64() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.after(), "f", b"\0\xffbytes");
    trees.commit(|_| {});
    let ran = cat(&trees, &["f", "--json"]);
    let json = ran.json();
    assert_eq!(json["path"], "/nowhere/work/f");
    assert_eq!((json["state"].as_str(), json["source"].as_str()), (Some("after"), Some("blob")));
    assert_eq!(json["content"], "AP9ieXRlcw==");
}

#[test]
fn cat_of_a_bad_snapshot_is_status_3() {
    let trees = BundleTrees::new();
    let ran = cat(&trees, &["f"]);
    assert_eq!((ran.status, ran.text()), (3, ""));
    BundleTrees::write(&trees.after(), "f", "bytes");
    trees
        .commit(|records| present(&mut records[0].after).digest = Some(crate::snapshot::Digest::of(b"else")));
    assert_eq!(cat(&trees, &["f"]).status, 3);
}

#[test]
fn cat_gives_gits_state() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), ".git/HEAD", "ref: refs/heads/main\n");
    BundleTrees::write(&trees.after(), ".git/HEAD", "ref: refs/heads/foo\n");
    trees.commit(|records| records.iter_mut().for_each(|record| record.is_git_state = true));
    assert_eq!(cat(&trees, &[".git/HEAD", "--before"]).text(), "ref: refs/heads/main\n");
    assert_eq!(cat(&trees, &[".git/HEAD"]).text(), "ref: refs/heads/foo\n");
}
