use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::super::samples::{commit, created, git, present, stored};
use super::super::{BlobOmitted, Operation, State};
use super::*;

/// A repository with one committed file, and the record of a clean read of that.
fn repository(root: &Path, content: &[u8], init: &[&str]) -> FileRecord {
    fs::create_dir_all(root).unwrap();
    git(root, &[&["init", "-q"], init].concat());
    fs::write(root.join("file"), content).unwrap();
    git(root, &["add", "."]);
    git(root, &["commit", "-qm", "one"]);
    pinned_record(root, content)
}

fn pinned_record(root: &Path, content: &[u8]) -> FileRecord {
    let path = root.join("file").into_os_string().into_encoded_bytes();
    let state = State::Present(Box::new(present(content.len() as u64)));
    FileRecord {
        operations: Operation::Read.into(),
        before: state.clone(),
        git: Some(GitStatus {
            root: root.as_os_str().as_encoded_bytes().to_vec(),
            head: Some(git(root, &["rev-parse", "HEAD"])),
            relative_path: b"file".to_vec(),
            oid: Some(git(root, &["rev-parse", "HEAD:file"])),
            tracked: true,
            dirty: false,
            ignored: false,
        }),
        ..created(&path, state)
    }
}

fn empty_snapshot(dir: &Path) -> Snapshot {
    commit(&dir.join("snap"), |_| Vec::new());
    Snapshot::open(&dir.join("snap")).unwrap()
}

fn read(contents: &Contents, record: &FileRecord, side: Side) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let checked = contents.check(record, side);
    let copied = contents.copy(record, side, &mut bytes);
    assert_eq!(checked.is_ok(), copied.is_ok(), "{checked:?} {copied:?}");
    assert_eq!(copied?, bytes.len() as u64);
    Ok(bytes)
}

fn why(result: Result<Vec<u8>, Error>) -> String {
    match result {
        Err(Error::Unavailable(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pin_gives_the_committed_bytes_though_the_file_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repo");
    let record = repository(&root, b"committed\n", &[]);
    fs::write(root.join("file"), "changed since").unwrap();
    let snapshot = empty_snapshot(dir.path());
    let contents = Contents::new(&snapshot);
    assert_eq!(read(&contents, &record, Side::Before).unwrap(), b"committed\n");
    assert_eq!(read(&contents, &record, Side::After).unwrap(), b"committed\n", "untouched");
}

#[test]
fn a_pin_is_found_in_packs_alternates_linked_worktrees_and_sha256_repositories() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = empty_snapshot(dir.path());
    let contents = Contents::new(&snapshot);
    let content = b"a line of text\n".repeat(1000);
    let check = |record: &FileRecord| {
        assert_eq!(read(&contents, record, Side::Before).unwrap(), content);
    };

    let root = dir.path().join("packed");
    let record = repository(&root, &content, &[]);
    git(&root, &["gc", "-q"]);
    check(&record);

    let borrower = dir.path().join("borrower");
    git(dir.path(), &["clone", "-q", "--shared", "packed", "borrower"]);
    check(&pinned_record(&borrower, &content));

    let linked = dir.path().join("linked");
    git(&root, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    check(&pinned_record(&linked, &content));

    check(&repository(&dir.path().join("sha256"), &content, &["--object-format=sha256"]));
}

#[test]
fn a_pin_that_is_lost_damaged_or_no_blob_of_the_size_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = empty_snapshot(dir.path());
    let root = dir.path().join("repo");
    let record = repository(&root, b"committed\n", &[]);
    let unavailable = |record: &FileRecord| why(read(&Contents::new(&snapshot), record, Side::Before));

    let mut longer = record.clone();
    longer.before = State::Present(Box::new(present(11)));
    assert!(unavailable(&longer).contains("it has 10 bytes, not 11"), "{}", unavailable(&longer));
    let mut tree = record.clone();
    tree.git.as_mut().unwrap().oid = Some(git(&root, &["rev-parse", "HEAD^{tree}"]));
    assert!(unavailable(&tree).ends_with("it is a tree"));
    let mut nonsense = record.clone();
    nonsense.git.as_mut().unwrap().oid = Some("../../x".to_owned());
    unavailable(&nonsense);

    let oid = git(&root, &["rev-parse", "HEAD:file"]);
    let object = root.join(".git/objects").join(&oid[..2]).join(&oid[2..]);
    fs::remove_file(&object).unwrap();
    assert!(unavailable(&record).ends_with("no longer has it"), "{}", unavailable(&record));

    // The object of other bytes of the same length, put where the lost one was.
    fs::write(root.join("other"), "Committed\n").unwrap();
    let other = git(&root, &["hash-object", "-w", "other"]);
    fs::copy(root.join(".git/objects").join(&other[..2]).join(&other[2..]), &object).unwrap();
    let mut bytes = Vec::new();
    let error = Contents::new(&snapshot).copy(&record, Side::Before, &mut bytes).unwrap_err();
    assert!(error.to_string().ends_with("its bytes differ"), "{error}");
    assert_eq!(bytes, b"");

    fs::remove_dir_all(root.join(".git")).unwrap();
    assert!(unavailable(&record).ends_with("the repository is gone"), "{}", unavailable(&record));
}

#[test]
fn a_blob_comes_first_and_a_wrong_digest_is_a_bad_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    commit(dir.path().join("snap").as_path(), |writer| {
        let mut good = created(b"/good", stored(&writer.store_bytes("after:/good", b"bytes").unwrap()));
        good.git = None;
        let mut bad = stored(&writer.store_bytes("after:/bad", b"other").unwrap());
        if let State::Present(present) = &mut bad {
            present.digest = Some(Digest::of(b"else"));
        }
        vec![created(b"/bad", bad), good]
    });
    let snapshot = Snapshot::open(&dir.path().join("snap")).unwrap();
    let contents = Contents::new(&snapshot);
    let good = snapshot.find(b"/good").unwrap();
    assert_eq!(read(&contents, good, Side::After).unwrap(), b"bytes");
    assert_eq!(why(read(&contents, good, Side::Before)), "nothing was there");
    let bad = contents.copy(snapshot.find(b"/bad").unwrap(), Side::After, &mut Vec::new());
    assert!(matches!(bad, Err(Error::Corrupt(_))), "{bad:?}");
}

#[test]
fn a_sink_that_fails_is_no_bad_snapshot() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    commit(dir.path().join("snap").as_path(), |writer| {
        vec![created(b"/file", stored(&writer.store_bytes("after:/file", b"bytes").unwrap()))]
    });
    let snapshot = Snapshot::open(&dir.path().join("snap")).unwrap();
    let copied = Contents::new(&snapshot).copy(&snapshot.files()[0], Side::After, &mut Closed);
    match copied {
        Err(Error::Sink(error)) => assert_eq!(error.kind(), io::ErrorKind::BrokenPipe),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_stored_says_why() {
    let with = |change: fn(&mut Present)| {
        let mut state = present(3);
        change(&mut state);
        created(b"/file", State::Present(Box::new(state)))
    };
    let why = |change: fn(&mut Present)| locate(&with(change), Side::After).unwrap_err();
    assert_eq!(why(|_| {}), Unavailable::NotRecorded);
    let omitted = why(|state| state.blob_omitted = Some(BlobOmitted::TooLarge));
    assert_eq!(omitted, Unavailable::Omitted(BlobOmitted::TooLarge));
    let directory = why(|state| state.file_type = FileType::Directory);
    assert_eq!(directory, Unavailable::NoFile(FileType::Directory));

    let link = with(|state| {
        state.file_type = FileType::Symlink;
        state.target = Some(b"to".to_vec());
    });
    assert_eq!(locate(&link, Side::After), Ok(ContentSource::Target(b"to")));
    let empty = with(|state| {
        state.size = 0;
        state.digest = Some(Digest::of(b""));
    });
    assert_eq!(locate(&empty, Side::After), Ok(ContentSource::Empty));
}

#[test]
fn a_fifo_in_place_of_git_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repo");
    let record = repository(&root, b"committed\n", &[]);
    fs::remove_dir_all(root.join(".git")).unwrap();
    nix::unistd::mkfifo(&root.join(".git"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(root.join(".git").metadata().unwrap().permissions().mode() & 0o700 == 0o700);
    let snapshot = empty_snapshot(dir.path());
    why(read(&Contents::new(&snapshot), &record, Side::Before));
}

#[test]
fn contents_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Contents>();
}

#[test]
fn a_pin_of_a_sparse_file_is_proved_by_its_digest_and_leaves_holes() {
    use std::os::unix::fs::MetadataExt as _;

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repo");
    let mut content = vec![0; 65 << 20];
    content[1 << 20..(1 << 20) + 5].copy_from_slice(b"pin\0\0");
    let mut record = repository(&root, &content, &[]);
    let sparse = Digest::of_like(&content, &Digest::Sparse([0; 32]));
    let mut set = |digest| match (&mut record.before, &mut record.after) {
        (State::Present(before), State::Present(after)) => {
            (before.digest, after.digest) = (Some(digest), Some(digest));
            record.clone()
        }
        _ => panic!("absent"),
    };
    let snapshot = empty_snapshot(dir.path());
    let contents = Contents::new(&snapshot);
    let right = set(sparse);
    let restored = tempfile::tempfile_in(dir.path()).unwrap();
    assert_eq!(contents.copy_to_file(&right, Side::Before, &restored).unwrap(), 65 << 20);
    assert!(restored.metadata().unwrap().blocks() < 64);
    assert!(read(&contents, &right, Side::After).unwrap() == content);
    let wrong = set(Digest::Sparse([0; 32]));
    let error = contents.prove(&wrong, Side::Before).unwrap_err();
    assert!(error.to_string().contains("its bytes differ"), "{error}");
}
