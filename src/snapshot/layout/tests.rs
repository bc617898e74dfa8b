use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::super::blobs::Stored;
use super::super::reader::Snapshot;
use super::super::samples::{commit, commit_into, created, header, stored};
use super::*;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Commits a snapshot whose only file has this content.
fn commit_text(dir: &Path, text: &str) {
    commit(dir, |writer| vec![created(b"/file", stored(&store(writer, text)))]);
}

fn store(writer: &mut super::super::blobs::BlobWriter, text: &str) -> Stored {
    writer.store_bytes("after:/file", text.as_bytes()).unwrap()
}

/// The content of the only file of the snapshot in `dir`.
fn text(dir: &Path) -> String {
    let snapshot = Snapshot::open(dir).unwrap();
    let after = snapshot.files()[0].after.present().unwrap();
    let mut text = Vec::new();
    snapshot.read_blob(after.blob.as_deref().unwrap(), after.digest.as_ref(), &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn message(result: Result<SnapshotDir, Error>) -> String {
    match result {
        Err(error @ (Error::Refused(_) | Error::InUse(_))) => error.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

fn with_text(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn the_directory_and_its_files_are_the_owners_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("parent/snap");
    commit_text(&dir, "text");
    assert_eq!(names(&dir), ["blobs.parquet", "manifest.json"]);
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&dir.join(MANIFEST)), 0o600);
    assert_eq!(mode(&dir.join(BLOBS)), 0o600);
}

#[test]
fn nothing_has_a_name_before_the_commit_and_an_older_snapshot_stays_whole() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("snap");
    commit_text(&dir, "old");

    let target = SnapshotDir::create(&dir).unwrap();
    let mut unfinished = target.unnamed_file().unwrap();
    unfinished.write_all(b"half").unwrap();
    assert_eq!(names(&dir), ["blobs.parquet", "manifest.json"]);
    assert_eq!(text(&dir), "old");
    drop((target, unfinished));
    assert_eq!(text(&dir), "old");

    commit_text(&dir, "new");
    assert_eq!(text(&dir), "new");
}

#[test]
fn a_new_snapshot_without_blobs_removes_the_old_ones() {
    let root = tempfile::tempdir().unwrap();
    commit_text(root.path(), "old");
    commit(root.path(), |_| Vec::new());
    assert_eq!(names(root.path()), ["manifest.json"]);
    assert!(Snapshot::open(root.path()).unwrap().files().is_empty());
}

#[test]
fn a_directory_removed_during_the_run_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("parent/snap");
    let target = SnapshotDir::create(&dir).unwrap();
    commit_into(target, header(), |writer| {
        let stored_text = store(writer, "kept");
        fs::remove_dir_all(root.path().join("parent")).unwrap();
        vec![created(b"/file", stored(&stored_text))]
    });
    assert_eq!(text(&dir), "kept");
    assert_eq!(mode(&dir), 0o700);
}

#[test]
fn a_directory_moved_away_during_the_run_takes_the_snapshot_with_it() {
    let root = tempfile::tempdir().unwrap();
    for (moved, to) in [("a/snap", "b"), ("a", "c")] {
        let target = SnapshotDir::create(&root.path().join("a/snap")).unwrap();
        fs::rename(root.path().join(moved), root.path().join(to)).unwrap();
        let path = target.commit(None, with_text("manifest"), Commit::Only, true).unwrap();
        let expected = root.path().join(if to == "c" { "c/snap" } else { to });
        assert_eq!(path.real_path(), expected.canonicalize().unwrap());
        assert_eq!(names(&expected), [MANIFEST]);
        assert!(!root.path().join("a/snap").exists());
    }
}

#[test]
fn a_symlink_in_the_place_of_a_removed_directory_is_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("parent/snap");
    for planted in ["parent/snap", "parent"] {
        let victim = tempfile::tempdir().unwrap();
        fs::set_permissions(victim.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let target = SnapshotDir::create(&dir).unwrap();
        fs::remove_dir_all(root.path().join(planted)).unwrap();
        std::os::unix::fs::symlink(victim.path(), root.path().join(planted)).unwrap();
        let error = target.commit(None, with_text("manifest"), Commit::Only, false).unwrap_err();
        assert!(error.to_string().contains("parent/snap"), "{error}");
        assert!(names(victim.path()).is_empty());
        assert_eq!(mode(victim.path()), 0o755);
        fs::remove_file(root.path().join(planted)).unwrap();
    }
}

#[test]
fn a_directory_of_somebody_else_in_the_place_of_a_removed_one_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a directory away");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("snap");
    let target = SnapshotDir::create(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    let error = target.commit(None, with_text("manifest"), Commit::Only, false).unwrap_err();
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    assert!(names(&dir).is_empty());
    assert_eq!(mode(&dir), 0o755);
}

#[test]
fn only_directories_that_were_made_and_are_still_empty_are_removed_again() {
    let root = tempfile::tempdir().unwrap();
    let victim = tempfile::tempdir().unwrap();
    fs::create_dir_all(victim.path().join("b/snap")).unwrap();
    let dir = root.path().join("a/b/snap");
    let made = SnapshotDir::create(&dir).unwrap().made().clone();
    fs::rename(root.path().join("a"), root.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(victim.path(), root.path().join("a")).unwrap();
    made.remove();
    assert!(victim.path().join("b/snap").exists());
    assert_eq!(names(&root.path().join("moved")), [] as [&str; 0]);
}

#[test]
fn files_that_cannot_be_linked_are_copied() {
    let root = tempfile::tempdir().unwrap();
    let target = SnapshotDir::create(root.path()).unwrap();
    // The name is gone for good, as on a filesystem without O_TMPFILE.
    let mut manifest = unlinked(&target.dir).unwrap();
    assert!(names(root.path()).is_empty());
    super::super::wire::write_manifest(&manifest, &header(), &[] as &[super::super::FileRecord]).unwrap();
    manifest.write_all(b" ").unwrap();
    target.commit(None, manifest, Commit::Only, true).unwrap();
    assert_eq!(names(root.path()), ["manifest.json"]);
    assert_eq!(mode(&root.path().join(MANIFEST)), 0o600);
    Snapshot::open(root.path()).unwrap();
}

#[test]
fn a_commit_that_fails_midway_leaves_no_manifest_and_no_temporaries() {
    let root = tempfile::tempdir().unwrap();
    commit_text(root.path(), "old");
    let target = SnapshotDir::create(root.path()).unwrap();
    // A directory is not removed as a file is.
    fs::remove_file(root.path().join(BLOBS)).unwrap();
    fs::create_dir(root.path().join(BLOBS)).unwrap();
    let error =
        target.commit(Some(with_text("blobs")), with_text("manifest"), Commit::Only, false).unwrap_err();
    assert!(error.to_string().contains("blobs.parquet"), "{error}");
    assert_eq!(names(root.path()), ["blobs.parquet"]);
}

#[test]
fn what_a_killed_commit_left_is_taken_over_and_removed() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(".agent-snapshot-0123456789abcdef.tmp"), "manifest").unwrap();
    fs::write(root.path().join(BLOBS), "blobs").unwrap();
    commit_text(root.path(), "new");
    assert_eq!(names(root.path()), ["blobs.parquet", "manifest.json"]);
    assert_eq!(text(root.path()), "new");
}

#[test]
fn a_directory_of_others_is_refused_with_its_path_and_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("dir");
    fs::create_dir(&dir).unwrap();
    for (name, content) in [
        ("notes.txt", ""),
        (BLOBS, ""),
        (MANIFEST, "{}"),
        (MANIFEST, ""),
        (MANIFEST, r#"{"format_version":"1.0","id":"x"}"#),
        (MANIFEST, r#"{"format_version":3,"id":"x"}"#),
        (MANIFEST, r#"{"format_version":0,"id":"x"}"#),
        (".agent-snapshot-x", ""),
        ("x.tmp", ""),
    ] {
        fs::write(dir.join(name), content).unwrap();
        let message = message(SnapshotDir::create(&dir));
        assert!(message.starts_with(&*dir.to_string_lossy()) && message.contains(name), "{message}");
        assert_eq!(names(&dir), [name]);
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), content);
        fs::remove_file(dir.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("/dev/null", dir.join(MANIFEST)).unwrap();
    message(SnapshotDir::create(&dir));
    let file = dir.join(MANIFEST);
    fs::remove_file(&file).unwrap();
    fs::write(&file, "").unwrap();
    assert!(message(SnapshotDir::create(&file)).contains("is not a directory"));
}

#[test]
fn a_refused_directory_keeps_its_mode() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.path().join("notes.txt"), "").unwrap();
    message(SnapshotDir::create(root.path()));
    assert_eq!(mode(root.path()), 0o755);
    fs::remove_file(root.path().join("notes.txt")).unwrap();
    drop(SnapshotDir::create(root.path()).unwrap());
    assert_eq!(mode(root.path()), 0o700);
}

#[test]
fn a_reformatted_manifest_of_ours_is_still_ours() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(MANIFEST), "{\n  \"format_version\": 1,\n  \"id\": \"x\"\n}").unwrap();
    SnapshotDir::create(root.path()).unwrap();
}

#[test]
fn a_directory_that_is_in_use_is_refused_until_it_is_free() {
    let root = tempfile::tempdir().unwrap();
    let first = SnapshotDir::create(root.path()).unwrap();
    assert!(message(SnapshotDir::create(root.path())).contains("another recording"));
    commit_into(first, header(), |_| Vec::new());
    SnapshotDir::create(root.path()).unwrap();
}

#[test]
fn a_committed_directory_is_free_though_a_child_has_the_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let target = SnapshotDir::create(dir.path()).unwrap();
    let of_a_child = target.dir.try_clone().unwrap();
    commit_into(target, header(), |_| Vec::new());
    SnapshotDir::create(dir.path()).unwrap();
    drop(of_a_child);
}

#[test]
fn the_real_path_and_the_identity_are_those_of_the_directory() {
    let root = tempfile::tempdir().unwrap();
    let real = root.path().canonicalize().unwrap().join("real");
    fs::create_dir(&real).unwrap();
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let target = SnapshotDir::create(&link).unwrap();
    let stat = fs::metadata(&real).unwrap();
    assert_eq!(target.real_path(), real);
    assert_eq!(target.identity().unwrap(), (stat.dev(), stat.ino()));
    assert!(rustix::io::fcntl_getfd(&target.dir).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn who_reads_during_a_commit_sees_one_whole_snapshot_or_none() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("snap");
    let text_of = |number: usize| format!("{number}").repeat(number + 1);
    commit_text(&dir, &text_of(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..60).for_each(|number| commit_text(&dir, &text_of(number))));
        while !writer.is_finished() {
            match Snapshot::open(&dir) {
                Ok(snapshot) => {
                    let after = snapshot.files()[0].after.present().unwrap();
                    let blob = after.blob.as_deref().unwrap();
                    snapshot.read_blob(blob, after.digest.as_ref(), &mut io::sink()).unwrap();
                }
                Err(Error::Format(message)) => assert!(message.contains("no manifest.json"), "{message}"),
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert_eq!(text(&dir), text_of(59));
}
