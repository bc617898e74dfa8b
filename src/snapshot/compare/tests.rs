use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use serde_json::json;

use super::super::manifest::GitStatus;
use super::super::samples::created;
use super::*;

/// A record whose two states are what is at `path` now, the content of a file looked at.
fn record(path: &Path) -> FileRecord {
    let bytes = path.as_os_str().as_bytes();
    let stat = crate::fs::lstat(bytes).unwrap().unwrap();
    let mut present = live::present(&stat, bytes).unwrap();
    match present.file_type {
        FileType::File => present.digest = Some(Digest::of(&fs::read(path).unwrap())),
        FileType::Directory => present.entries_digest = Some(live::entries_digest(bytes).unwrap()),
        _ => {}
    }
    let state = State::Present(Box::new(present));
    FileRecord { before: state.clone(), ..created(bytes, state) }
}

/// Whether what is at the path of `record` is what it has on `side`.
fn compares(record: &FileRecord, side: Side, entries: Entries) -> bool {
    let like = recorded(record, side, entries);
    live(&record.path, &like).unwrap() == like
}

/// In the sense of a verification.
fn verify(record: &FileRecord) -> bool {
    compares(record, Side::After, Entries::Compare)
}

/// In the sense of a restore: existence, type, permission bits, link target and content are equal.
fn is_at(record: &FileRecord, side: Side) -> bool {
    compares(record, side, Entries::Ignore)
}

fn git(oid: Option<&str>) -> Option<GitStatus> {
    Some(GitStatus {
        root: b"/".to_vec(),
        head: None,
        relative_path: b"x".to_vec(),
        oid: oid.map(str::to_owned),
        tracked: true,
        dirty: false,
        ignored: false,
    })
}

fn present_mut(state: &mut State) -> &mut Present {
    match state {
        State::Present(present) => present,
        State::Absent { .. } | State::NotKept => panic!("nothing there"),
    }
}

#[test]
fn a_file_is_at_its_state_until_content_permissions_type_or_existence_differ() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let record = record(&path);
    assert!(is_at(&record, Side::After));

    fs::File::open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
    assert!(is_at(&record, Side::After));
    fs::write(&path, "test").unwrap();
    assert!(!is_at(&record, Side::After));
    fs::write(&path, "longer").unwrap();
    assert!(!is_at(&record, Side::After));
    fs::write(&path, "text").unwrap();
    assert!(is_at(&record, Side::After));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(!is_at(&record, Side::After));
    fs::remove_file(&path).unwrap();
    assert!(!is_at(&record, Side::After));
    symlink("text", &path).unwrap();
    assert!(!is_at(&record, Side::After));
    nix::unistd::unlink(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(!is_at(&record, Side::After));
    fs::remove_dir(&path).unwrap();
    assert!(is_at(&created(&record.path, State::Absent { tombstone: true }), Side::After));
}

#[test]
fn a_link_is_compared_by_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("link");
    symlink("one", &path).unwrap();
    let record = record(&path);
    assert!(is_at(&record, Side::Before));
    fs::remove_file(&path).unwrap();
    symlink("two", &path).unwrap();
    assert!(!is_at(&record, Side::Before));
}

#[test]
fn the_entries_of_a_directory_count_for_verify_and_not_for_restore() {
    let dir = tempfile::tempdir().unwrap();
    let record = record(dir.path());
    assert!(verify(&record));
    fs::write(dir.path().join("new"), "").unwrap();
    assert!(!verify(&record));
    assert!(is_at(&record, Side::After));
}

#[test]
fn content_of_another_length_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text").unwrap();
    let like = recorded(&record(&path), Side::After, Entries::Compare);
    fs::write(&path, "longer").unwrap();
    let now = live(path.as_os_str().as_bytes(), &like).unwrap();
    assert!(matches!(now, Fingerprint::Present { content: Some((6, None)), .. }), "{now:?}");
}

#[test]
fn content_that_was_never_read_is_not_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text").unwrap();
    let mut record = record(&path);
    present_mut(&mut record.after).digest = None;
    record.before = State::Absent { tombstone: false };
    fs::write(&path, "other content").unwrap();
    assert!(is_at(&record, Side::After));
}

#[test]
fn a_pin_stands_for_the_content_of_both_states_of_an_untouched_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text").unwrap();
    let digest = Some(ContentId::Digest(Digest::of(b"text")));
    let pin = |oid: &str| Some(ContentId::Git(oid.to_owned()));
    let whole = FileRecord { git: git(Some("aa")), git_after: git(Some("bb")), ..record(&path) };
    // A digest of its own goes first.
    assert_eq!(content_id(&whole, Side::Before), digest);
    assert_eq!(content_id(&whole, Side::After), digest);

    let mut pinned = whole.clone();
    present_mut(&mut pinned.before).digest = None;
    present_mut(&mut pinned.after).digest = None;
    assert_eq!(content_id(&pinned, Side::Before), pin("aa"));
    assert_eq!(content_id(&pinned, Side::After), pin("aa"));

    let mut written = pinned.clone();
    present_mut(&mut written.after).mtime += 1;
    assert_eq!(content_id(&written, Side::After), pin("bb"));
    written.git_after = git(None);
    assert_eq!(content_id(&written, Side::After), None);
    // What Git said of the file before it was written is nothing about what was written.
    written.git_after = None;
    assert_eq!(content_id(&written, Side::After), None);

    // The digest of the before-state holds for an untouched after-state, too.
    let mut read = whole;
    present_mut(&mut read.after).digest = None;
    assert_eq!(content_id(&read, Side::After), digest);
}

#[test]
fn a_live_file_is_identified_as_git_identifies_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text\n").unwrap();
    for format in ["sha1", "sha256"] {
        let repository = dir.path().join(format);
        let init =
            Command::new("git").args(["init", "-q", "--object-format", format]).arg(&repository).status();
        if !init.is_ok_and(|status| status.success()) {
            println!("skipped: no git that knows {format}");
            continue;
        }
        let hash =
            Command::new("git").arg("-C").arg(&repository).arg("hash-object").arg(&path).output().unwrap();
        let oid = String::from_utf8(hash.stdout).unwrap();
        let mut record = record(&path);
        present_mut(&mut record.before).digest = None;
        record.git = git(Some(oid.trim()));
        assert!(is_at(&record, Side::Before), "{format}");
        fs::write(&path, "TEXT\n").unwrap();
        assert!(!is_at(&record, Side::Before), "{format}");
        fs::write(&path, "text\n").unwrap();
    }
    let file = File::open(&path).unwrap();
    assert!(identify(&file, &ContentId::Git("abc".to_owned())).is_err());
}

#[test]
fn a_fingerprint_is_an_object_that_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut record = record(&path);
    let print =
        |record: &FileRecord| serde_json::to_value(recorded(record, Side::Before, Entries::Compare)).unwrap();
    assert_eq!(
        print(&record),
        json!({ "exists": true, "type": "file", "permissions": "0644", "size": 4,
                "content": Digest::of(b"text").to_string() })
    );
    present_mut(&mut record.before).digest = None;
    record.git = git(Some("abc"));
    assert_eq!(print(&record)["content"], "git:abc");
    record.before = State::Absent { tombstone: false };
    assert_eq!(print(&record), json!({ "exists": false }));
}

#[test]
fn a_sparse_file_is_compared_by_its_data_whatever_is_allocated() {
    use std::os::unix::fs::FileExt as _;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = fs::File::create_new(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"data", 1 << 39).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let bytes = path.as_os_str().as_bytes();
    let mut present = live::present(&crate::fs::lstat(bytes).unwrap().unwrap(), bytes).unwrap();
    let (digest, size) = super::super::digest::digest_file(&crate::fs::open_regular(bytes).unwrap()).unwrap();
    assert!(matches!(digest, Digest::Sparse(_)) && size == 1 << 40, "{digest:?}");
    present.digest = Some(digest);
    let record = created(bytes, State::Present(Box::new(present)));
    assert!(verify(&record));
    file.write_all_at(&[0; 8192], 1 << 20).unwrap();
    assert!(verify(&record));
    file.write_all_at(b"d", 1 << 20).unwrap();
    assert!(!verify(&record));
    file.write_all_at(b"\0", 1 << 20).unwrap();
    file.set_len((1 << 40) + 1).unwrap();
    assert!(!verify(&record));
}
