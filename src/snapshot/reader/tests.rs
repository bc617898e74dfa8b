use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::blobs::{BlobWriter, CHUNK, StoreLimit};
use super::super::digest::digest_file_like;
use super::super::manifest::{
    FileType, GitRepository, GitStatus, InodeFlag, Keep, Operation, Present, State, Warning, WarningKind,
};
use super::super::samples::{commit, commit_into, created, directory, header, present, stored};
use super::super::sparse::{BLOCK, Nowhere, SPARSE_ABOVE, SparseFile};
use super::super::wire::write_manifest;
use super::*;

const ABSENT: State = State::Absent { tombstone: false };

fn there(present: Present) -> State {
    State::Present(Box::new(present))
}

/// A directory with this manifest and no blobs.
fn manifest_of(header: &Header, files: &[FileRecord]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_manifest(File::create(dir.path().join(MANIFEST)).unwrap(), header, files).unwrap();
    dir
}

fn open_files(files: &[FileRecord]) -> Result<Snapshot, Error> {
    Snapshot::open(manifest_of(&header(), files).path())
}

fn unsafe_message(result: Result<Snapshot, Error>) -> String {
    match result {
        Err(Error::Unsafe(message)) => message,
        other => panic!("not unsafe: {other:?}"),
    }
}

fn corrupt_message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Corrupt(message)) => message,
        other => panic!("not corrupt: {other:?}"),
    }
}

fn format_message(result: Result<Snapshot, Error>) -> String {
    match result {
        Err(Error::Format(message)) => message,
        other => panic!("no error of the format: {other:?}"),
    }
}

#[test]
fn a_committed_snapshot_gives_back_its_records_and_contents() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/snap");
    let mut written = Vec::new();
    commit(&path, |writer| {
        let one = writer.store_bytes("after:/one", b"first").unwrap();
        let two = writer.store_bytes("after:/two", b"").unwrap();
        written = vec![created(b"/one", stored(&one)), created(b"/two", stored(&two))];
        written.clone()
    });
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(snapshot.files(), written);
    assert_eq!(snapshot.header(), &header());
    assert_eq!(snapshot.path(), path);
    assert_eq!(snapshot.find(b"/two"), Some(&written[1]));
    assert_eq!(snapshot.find(b"/three"), None);
    for (record, content) in written.iter().zip([b"first".as_slice(), b""]) {
        let after = record.after.present().unwrap();
        let mut read = Vec::new();
        let len = snapshot.read_blob(after.blob.as_ref().unwrap(), after.digest.as_ref(), &mut read).unwrap();
        assert_eq!((read.as_slice(), len), (content, content.len() as u64));
    }
    corrupt_message(snapshot.read_blob("after:/three", None, &mut io::sink()));
}

#[test]
fn records_without_states_are_apart_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let input = |path: &[u8], operation: Operation| {
        FileRecord::new(path, State::NotKept, State::NotKept, operation.into())
    };
    let changed = created(b"/b", State::Absent { tombstone: true });
    let files = [input(b"/a", Operation::Read), changed.clone(), input(b"/c", Operation::Directory)];
    let commit = |keep, files: &[FileRecord]| {
        let target = super::super::layout::SnapshotDir::create(dir.path()).unwrap();
        commit_into(target, Header { keep, ..header() }, |_| files.to_vec());
        Snapshot::open(dir.path())
    };
    let snapshot = commit(Keep::Undo, &files).unwrap();
    assert_eq!(snapshot.files(), [changed]);
    assert_eq!(snapshot.inputs(), [files[0].clone(), files[2].clone()]);
    assert_eq!(snapshot.records(), files.iter().collect::<Vec<_>>());
    assert_eq!(files.each_ref().map(|file| snapshot.find(&file.path)), files.each_ref().map(Some));

    assert!(corrupt_message(commit(Keep::All, &files)).contains("/a has no states"));
    let written = [input(b"/d", Operation::Write)];
    assert!(corrupt_message(commit(Keep::Undo, &written)).contains("/d was changed and has no states"));
}

#[test]
fn a_snapshot_is_shared_and_a_writer_is_sent_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Snapshot>();
    sent::<super::super::blobs::BlobWriter>();
    sent::<super::super::layout::SnapshotDir>();
}

#[test]
fn many_contents_of_many_sizes_are_found_by_their_keys() {
    let dir = tempfile::tempdir().unwrap();
    let content = |number: usize| match number {
        7 => vec![b'x'; CHUNK + 3],
        _ => format!("{number}-").into_bytes().repeat(number * 37 % 5000),
    };
    let path = |number: usize| format!("/{number:04}").into_bytes();
    commit(dir.path(), |writer| {
        let store = |number| {
            let key = super::super::blobs::blob_key(super::super::blobs::Side::After, &path(number));
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&content(number), 0).unwrap();
            let kept = writer.store_file(&key, &file, Default::default()).unwrap();
            created(&path(number), stored(&kept))
        };
        (0..300).map(store).collect()
    });
    let snapshot = Snapshot::open(dir.path()).unwrap();
    let check = |number: usize| {
        let after = snapshot.find(&path(number)).unwrap().after.present().unwrap();
        let mut read = Vec::new();
        snapshot.read_blob(after.blob.as_ref().unwrap(), after.digest.as_ref(), &mut read).unwrap();
        assert!(read == content(number), "{number}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..300).for_each(check));
        scope.spawn(|| (0..300).rev().for_each(check));
    });
}

#[test]
fn paths_that_could_lead_elsewhere_are_unsafe() {
    for path in [
        b"".as_slice(),
        b"relative",
        b"../up",
        b"/a/../b",
        b"/..",
        b"/a/..",
        b"/./a",
        b"/a/.",
        b"//a",
        b"/a//b",
        b"/a/",
        b"/a\0b",
    ] {
        let message = unsafe_message(open_files(&[created(path, ABSENT)]));
        assert!(message.contains("path "), "{message}");
        let renamed = FileRecord { renamed_from: Some(path.to_vec()), ..created(b"/x", ABSENT) };
        unsafe_message(open_files(&[renamed]));
        let renamed = FileRecord { renamed_to: Some(path.to_vec()), ..created(b"/x", ABSENT) };
        unsafe_message(open_files(&[renamed]));
        let cwd = Header { start_cwd: path.to_vec(), ..header() };
        unsafe_message(Snapshot::open(manifest_of(&cwd, &[]).path()));
        let root = GitRepository {
            branch: None,
            branch_after: None,
            root: path.to_vec(),
            head: None,
            dirty: false,
            head_after: None,
        };
        let repository = Header { git_repositories: vec![root], ..header() };
        unsafe_message(Snapshot::open(manifest_of(&repository, &[]).path()));
    }
    for path in [b"/".as_slice(), b"/...", b"/a/..b", b"/a/b..", b"/.hidden", b"/\xff"] {
        open_files(&[created(path, ABSENT)]).unwrap();
    }
}

#[test]
fn what_git_says_of_a_path_can_not_lead_elsewhere() {
    let git = |root: &[u8], relative_path: &[u8]| GitStatus {
        root: root.to_vec(),
        head: None,
        relative_path: relative_path.to_vec(),
        oid: None,
        tracked: true,
        dirty: false,
        ignored: false,
    };
    let open = |git: GitStatus| {
        let first = FileRecord { git: Some(git.clone()), ..created(b"/x", ABSENT) };
        let last = FileRecord { git_after: Some(git), ..created(b"/x", ABSENT) };
        let (first, last) = (open_files(&[first]), open_files(&[last]));
        assert_eq!(first.is_ok(), last.is_ok());
        first
    };
    for (root, path) in
        [("repo", "x"), ("/repo/..", "x"), ("/repo", "/x"), ("/repo", "../x"), ("/repo", "x/")]
    {
        unsafe_message(open(git(root.as_bytes(), path.as_bytes())));
    }
    for path in ["", "x", "a/b"] {
        open(git(b"/repo", path.as_bytes())).unwrap();
    }
}

#[test]
fn records_are_sorted_and_there_once() {
    for paths in [["/b", "/a"], ["/a", "/a"]] {
        let message = unsafe_message(open_files(&paths.map(|path| created(path.as_bytes(), ABSENT))));
        assert!(message.contains("/a is out of order or there twice"), "{message}");
    }
    open_files(&["/a", "/a-b", "/a/b"].map(|path| created(path.as_bytes(), ABSENT))).unwrap();
}

#[test]
fn nothing_is_beneath_what_is_no_directory() {
    let link = || Present {
        file_type: FileType::Symlink,
        mode: libc::S_IFLNK | 0o777,
        target: Some(b"/etc".to_vec()),
        ..present(4)
    };
    let with = |top: State, below: State| {
        // The records between the two must not hide the first from the last.
        [created(b"/a", top), created(b"/a-b", there(directory())), created(b"/a/b/c/d", below)]
    };
    for top in [present(1), link()] {
        unsafe_message(open_files(&with(there(top.clone()), there(present(1)))));
        let mut before = with(ABSENT, ABSENT);
        before[0].before = there(top.clone());
        before[2].before = there(directory());
        unsafe_message(open_files(&before));
        // In different states the two may be there, one after the other.
        before[2].before = ABSENT;
        before[2].after = there(present(1));
        before[0].after = there(directory());
        open_files(&before).unwrap();
        open_files(&with(there(top), ABSENT)).unwrap();
    }
    open_files(&with(there(directory()), there(present(1)))).unwrap();
    open_files(&with(ABSENT, there(present(1)))).unwrap();
}

#[test]
fn a_state_that_contradicts_itself_is_corrupt() {
    for state in [
        Present { mode: libc::S_IFDIR | 0o755, ..present(1) },
        Present { mode: 0o644, ..present(1) },
        Present { mode: 0o1_000_000 | libc::S_IFREG, ..present(1) },
        Present { mtime_nsec: 1_000_000_000, ..present(1) },
        Present { target: Some(b"x".to_vec()), ..present(1) },
        Present { file_type: FileType::Symlink, mode: libc::S_IFLNK | 0o777, ..present(1) },
        Present { xattrs: [(b"a\0b".to_vec(), vec![])].into(), ..present(1) },
        Present { blob: Some("after:/x".to_owned()), ..directory() },
    ] {
        corrupt_message(open_files(&[created(b"/x", there(state))]));
    }
    let target = Present {
        file_type: FileType::Symlink,
        mode: libc::S_IFLNK | 0o777,
        target: Some(b"a\0b".to_vec()),
        ..present(1)
    };
    unsafe_message(open_files(&[created(b"/x", there(target))]));
}

#[test]
fn a_directory_without_a_manifest_is_no_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    assert!(format_message(Snapshot::open(dir.path())).contains("no manifest.json"));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(format_message(Snapshot::open(&dir.path().join("file"))).contains("not a directory"));
    assert!(matches!(Snapshot::open(&dir.path().join("none")), Err(Error::Io { .. })));
}

#[test]
fn a_link_or_a_fifo_in_the_place_of_a_file_is_not_opened() {
    let file = created(b"/x", there(Present { blob: Some("after:/x".to_owned()), ..present(1) }));
    let good = manifest_of(&header(), std::slice::from_ref(&file));
    for name in [MANIFEST, BLOBS] {
        let dir = manifest_of(&header(), std::slice::from_ref(&file));
        let place = dir.path().join(name);
        let _ = fs::remove_file(&place);
        let said = format!("{} is not a regular file", place.display());
        std::os::unix::fs::symlink(good.path().join(MANIFEST), &place).unwrap();
        assert_eq!(corrupt_message(Snapshot::open(dir.path())), said);
        fs::remove_file(&place).unwrap();
        nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(corrupt_message(Snapshot::open(dir.path())), said);
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert_eq!(corrupt_message(Snapshot::open(dir.path())), said);
    }
}

#[test]
fn a_newer_format_is_reported_as_such() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(MANIFEST), r#"{"format_version": 3, "paths": {}}"#).unwrap();
    let message = format_message(Snapshot::open(dir.path()));
    assert!(message.contains("format version 3") && message.contains("manifest.json"), "{message}");
}

#[test]
fn endless_json_is_refused_from_its_first_bytes() {
    for (start, endless, limit) in [
        ("", b'[', 1_u64 << 20),
        ("{\"format_version\":1,\"unknown\":", b'[', 1 << 20),
        ("{\"unknown\":\"", b'x', 5 << 20),
        ("{\"format_version\":1,\"id\":\"", b'x', 5 << 20),
    ] {
        let mut endless = io::Cursor::new(start).chain(io::repeat(endless)).take(1 << 40);
        let error = json::read::<Manifest>(&mut endless).unwrap_err();
        assert!(json::is_limit_exceeded(&error), "{error}");
        assert!((1 << 40) - endless.limit() < limit);
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(MANIFEST), "[".repeat(1 << 20)).unwrap();
    assert!(format_message(Snapshot::open(dir.path())).contains("nested too deeply"));
}

#[test]
fn brackets_and_quotes_within_strings_do_not_count() {
    let odd = "[{\\\"".repeat(100);
    let file = created(odd.replace('\\', "/").replace("//", "/").as_bytes(), ABSENT);
    let path = [b"/".as_slice(), &file.path].concat();
    open_files(&[FileRecord { path, ..file }]).unwrap();
    let warning = Warning {
        kind: WarningKind::Chroot,
        lost: false,
        count: 1,
        detail: format!("{odd}\\"),
        processes: vec![],
    };
    Snapshot::open(manifest_of(&Header { warnings: vec![warning], ..header() }, &[]).path()).unwrap();
}

#[test]
fn a_manifest_beyond_all_measure_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join(MANIFEST)).unwrap();
    if file.set_len(MAX_MANIFEST + 1).is_err() {
        println!("skipped: the filesystem takes no file of that length");
        return;
    }
    assert!(format_message(Snapshot::open(dir.path())).contains("too large"));
}

/// Writes `blobs.parquet` with these rows, one row group each.
fn write_rows(dir: &Path, rows: &[(&str, i64, &[u8])]) {
    write_groups(dir, rows, 1);
}

/// Writes `blobs.parquet` with these rows, so many in a row group.
fn write_groups(dir: &Path, rows: &[(&str, i64, &[u8])], in_group: usize) {
    let schema = "message blobs { REQUIRED BYTE_ARRAY key (UTF8); REQUIRED INT64 offset;
                  REQUIRED BYTE_ARRAY content; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(dir.join(BLOBS)).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    for rows in rows.chunks(in_group) {
        let bytes = |bytes: &[u8]| ByteArray::from(bytes.to_vec());
        let keys: Vec<_> = rows.iter().map(|(key, ..)| bytes(key.as_bytes())).collect();
        let offsets: Vec<_> = rows.iter().map(|(_, offset, _)| *offset).collect();
        let contents: Vec<_> = rows.iter().map(|(.., content)| bytes(content)).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&keys, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&offsets, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&contents, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// A snapshot of one file of `size` bytes whose blob has the key `k`.
fn one_blob(size: u64) -> TempDir {
    let state = Present { blob: Some("k".to_owned()), ..present(size) };
    manifest_of(&header(), &[created(b"/x", there(state))])
}

#[test]
fn a_named_blob_that_is_not_there_is_corrupt() {
    let dir = one_blob(3);
    assert!(corrupt_message(Snapshot::open(dir.path())).ends_with(": blobs.parquet is missing"));
    write_rows(dir.path(), &[("other", 0, b"abc")]);
    assert!(corrupt_message(Snapshot::open(dir.path())).contains("the blob k is missing"));
    fs::write(dir.path().join(BLOBS), "PAR1").unwrap();
    corrupt_message(Snapshot::open(dir.path()));
}

#[test]
fn rows_with_gaps_or_overlaps_are_corrupt() {
    let (chunk, long) = (CHUNK as u64, vec![0; 3]);
    let at = i64::try_from(CHUNK).unwrap();
    for (size, offsets) in [
        (3, &[1_i64] as &[i64]),
        (3, &[-1]),
        (3, &[0, 0]),
        (3, &[0, 2, 1]),
        (3, &[0, 3]),
        (3, &[0, 4]),
        (3, &[2, 0]),
        (chunk + 1, &[0]),
        (chunk + 2, &[0, at + 1]),
        (u64::MAX, &[0, at]),
    ] {
        let dir = one_blob(size);
        let rows: Vec<_> = offsets.iter().map(|offset| ("k", *offset, long.as_slice())).collect();
        write_rows(dir.path(), &rows);
        corrupt_message(Snapshot::open(dir.path()));
    }
}

/// A snapshot of one sparse file of `size` bytes whose blob has the key `k`.
fn one_sparse(size: u64) -> TempDir {
    let digest = Some(Digest::Sparse([0; 32]));
    let state = Present { blob: Some("k".to_owned()), digest, ..present(size) };
    manifest_of(&header(), &[created(b"/x", there(state))])
}

#[test]
fn rows_of_a_sparse_file_leave_gaps_of_whole_blocks() {
    const B: usize = BLOCK;
    let bytes = vec![1; CHUNK + B];
    let read = |size: usize, rows: &[(usize, usize)]| {
        let dir = one_sparse(size as u64);
        let row = |(offset, len): &(usize, usize)| ("k", i64::try_from(*offset).unwrap(), &bytes[..*len]);
        write_rows(dir.path(), &rows.iter().map(row).collect::<Vec<_>>());
        let snapshot = Snapshot::open(dir.path())?;
        let mut read = Vec::new();
        assert_eq!(snapshot.read_blob("k", None, &mut read)?, size as u64);
        let mut expected = vec![0; size];
        rows.iter().for_each(|(offset, len)| expected[*offset..offset + len].copy_from_slice(&bytes[..*len]));
        assert!(read == expected);
        Ok::<_, Error>(())
    };
    for (size, rows) in [
        (5 * B, &[(B, B), (3 * B, 2 * B)] as &[_]),
        (5 * B, &[(0, B), (5 * B, 0)]),
        (5 * B, &[(0, 5 * B)]),
        (5 * B, &[(0, 5 * B), (5 * B, 0)]),
        (5 * B, &[(5 * B, 0)]),
        (5 * B + 7, &[(0, B), (5 * B, 7)]),
        (5 * B + 7, &[(0, B), (5 * B + 7, 0)]),
        (5 * B + 7, &[(B, 4 * B + 7)]),
        (0, &[(0, 0)]),
    ] {
        read(size, rows).unwrap();
    }
    for (size, rows) in [
        (5 * B, &[] as &[_]),
        (5 * B, &[(0, B)]),                 // no end
        (5 * B, &[(0, 0), (5 * B, 0)]),     // no bytes
        (5 * B, &[(7, B), (5 * B, 0)]),     // within a block
        (5 * B, &[(0, 7), (5 * B, 0)]),     // a part of a block
        (5 * B, &[(0, B), (4 * B, 7)]),     // no end
        (5 * B, &[(0, 2 * B), (B, 4 * B)]), // overlap
        (5 * B, &[(2 * B, B), (0, B), (5 * B, 0)]),
        (5 * B, &[(0, B), (5 * B, 0), (5 * B, 0)]),
        (5 * B, &[(0, B), (6 * B, 0)]),
        (5 * B, &[(0, B), (5 * B, B)]),
        (2 * CHUNK, &[(0, CHUNK + B), (2 * CHUNK, 0)]),
    ] {
        corrupt_message(read(size, rows));
    }
    // What no row says is nobody's to fill where the file is not sparse.
    let dir = one_blob(5 * B as u64);
    write_rows(dir.path(), &[("k", 0, &bytes[..B]), ("k", 4 * 4096, &bytes[..B])]);
    let snapshot = Snapshot::open(dir.path()).unwrap();
    assert!(corrupt_message(snapshot.read_blob("k", None, &mut io::sink())).contains("length"));
}

#[test]
fn a_blob_is_sparse_for_all_records_or_for_none() {
    let state = |digest| there(Present { blob: Some("k".to_owned()), digest, ..present(3) });
    let states = [Digest::Sparse([0; 32]), Digest::Sha256([0; 32])].map(|digest| state(Some(digest)));
    let [sparse, plain] = states;
    let dir = manifest_of(&header(), &[created(b"/x", sparse), created(b"/y", plain)]);
    write_rows(dir.path(), &[("k", 0, b"abc")]);
    assert!(corrupt_message(Snapshot::open(dir.path())).contains("is sparse or has another length"));
}

/// A size, and blocks that are data.
fn any_sparse() -> impl Strategy<Value = (u64, Vec<(u64, u64, u8)>)> {
    let last = 3 * SPARSE_ABOVE / 2 / BLOCK as u64;
    let part = (0..last, prop_oneof![1..8_u64, 1..5000_u64], 0..3_u8);
    (SPARSE_ABOVE + 1..last * BLOCK as u64, prop::collection::vec(part, 0..6))
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn a_sparse_file_comes_back_as_it_was((size, data) in any_sparse(), in_memory: bool) {
        let dir = if in_memory { tempfile::tempdir_in("/dev/shm") } else { tempfile::tempdir() }.unwrap();
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        file.set_len(size).unwrap();
        let mut content = vec![0; usize::try_from(size).unwrap()];
        for (block, blocks, byte) in data {
            let start = (block * BLOCK as u64 + u64::from(byte)).min(size);
            let end = (start + blocks * BLOCK as u64).min(size);
            let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
            content[range.clone()].fill(byte);
            file.write_all_at(&content[range], start).unwrap();
        }
        let is_sparse = crate::snapshot::sparse::is_sparse(&file, size).unwrap();
        let snap = dir.path().join("snap");
        commit(&snap, |writer| {
            let kept = writer.store_file("after:/x", &file, StoreLimit::NONE).unwrap();
            assert_eq!(matches!(kept.digest, Digest::Sparse(_)), is_sparse);
            vec![created(b"/x", stored(&kept))]
        });
        let snapshot = Snapshot::open(&snap).unwrap();
        let state = snapshot.files()[0].after.present().unwrap();
        let read = |sink: &mut dyn Sink| {
            snapshot.read_blob(state.blob.as_ref().unwrap(), state.digest.as_ref(), sink).unwrap()
        };
        let mut bytes = Vec::new();
        prop_assert_eq!(read(&mut bytes), size);
        prop_assert!(bytes == content);
        let restored = tempfile::tempfile_in(dir.path()).unwrap();
        prop_assert_eq!(read(&mut SparseFile::at_end_of(&restored).unwrap()), size);
        let digest = state.digest.unwrap();
        prop_assert_eq!(digest_file_like(&restored, &digest).unwrap(), (digest, size));
        let blocks = |file: &File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        prop_assert!(blocks(&restored) <= blocks(&file));
    }
}

#[test]
fn many_rows_of_a_group_are_decoded_once() {
    const ROWS: usize = 5000;
    let content: Vec<u8> = (0..ROWS).map(|at| at.to_le_bytes()[0]).collect();
    let names: Vec<String> = (0..ROWS).map(|number| format!("k{number:04}")).collect();
    let one: Vec<_> = content.chunks(1).zip(0..).map(|(byte, offset)| ("k", offset, byte)).collect();
    let many: Vec<_> = content.chunks(1).zip(&names).map(|(byte, name)| (name.as_str(), 0, byte)).collect();
    for (rows, in_group) in [(&one, ROWS), (&many, ROWS), (&one, 64), (&many, 64)] {
        let record = |(key, offset, _): &(&str, i64, &[u8])| {
            let size = if *key == "k" { ROWS as u64 } else { 1 };
            let state = Present { blob: Some((*key).to_owned()), ..present(size) };
            (*offset == 0).then(|| created(format!("/{key}").as_bytes(), there(state)))
        };
        let dir = manifest_of(&header(), &rows.iter().filter_map(record).collect::<Vec<_>>());
        write_groups(dir.path(), rows, in_group);
        let snapshot = Snapshot::open(dir.path()).unwrap();
        let asked = || snapshot.blobs.reader().unwrap().asked();
        let ((opened, length), mut read) = (asked(), Vec::new());
        for record in snapshot.files() {
            let blob = record.after.present().unwrap().blob.as_ref().unwrap();
            snapshot.read_blob(blob, None, &mut read).unwrap();
        }
        assert!(read == content);
        let asked = asked().0 - opened;
        assert!(asked <= length, "{asked} bytes of {length}");
    }
}

#[test]
fn rows_need_not_follow_each_other() {
    let dir = one_blob(5);
    write_rows(dir.path(), &[("k", 0, b"ab"), ("l", 0, b"x"), ("k", 2, b"cde")]);
    let snapshot = Snapshot::open(dir.path()).unwrap();
    let mut read = Vec::new();
    assert_eq!(snapshot.read_blob("k", None, &mut read).unwrap(), 5);
    assert_eq!(read, b"abcde");
    let other = Digest::of(b"abcd!");
    assert!(corrupt_message(snapshot.read_blob("k", Some(&other), &mut io::sink())).contains("digest"));
    snapshot.read_blob("k", Some(&Digest::of(b"abcde")), &mut io::sink()).unwrap();
}

#[test]
fn content_is_hashed_again_if_the_file_was_changed_since() {
    let dir = one_blob(11);
    let (content, digest) = (b"abcdefghijk", Digest::of(b"abcdefghijk"));
    write_rows(dir.path(), &[("k", 0, content)]);
    let snapshot = Snapshot::open(dir.path()).unwrap();
    let blobs = snapshot.blobs.reader().unwrap();
    // Not as long as a change would leave the same change time.
    while !blobs.is_proven("k") {
        snapshot.read_blob("k", Some(&digest), &mut io::sink()).unwrap();
    }
    snapshot.read_blob("k", Some(&digest), &mut io::sink()).unwrap();
    let path = dir.path().join(BLOBS);
    let at = fs::read(&path).unwrap().windows(11).position(|window| window == content).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"X", at as u64).unwrap();
    file.set_modified(modified).unwrap();
    assert!(corrupt_message(snapshot.read_blob("k", Some(&digest), &mut io::sink())).contains("digest"));
}

#[test]
fn content_of_another_length_is_corrupt_before_it_is_written() {
    for content in [b"ab".as_slice(), b"abcd", b""] {
        let dir = one_blob(3);
        write_rows(dir.path(), &[("k", 0, content)]);
        let snapshot = Snapshot::open(dir.path()).unwrap();
        let mut read = Vec::new();
        assert!(corrupt_message(snapshot.read_blob("k", None, &mut read)).contains("length"));
        assert!(read.is_empty());
    }
}

#[test]
fn two_states_that_give_a_blob_two_lengths_are_corrupt() {
    let state = |size| there(Present { blob: Some("k".to_owned()), ..present(size) });
    let dir = manifest_of(&header(), &[created(b"/x", state(3)), created(b"/y", state(4))]);
    write_rows(dir.path(), &[("k", 0, b"abc")]);
    assert!(corrupt_message(Snapshot::open(dir.path())).contains("another length"));
}

#[test]
fn a_sink_that_fails_is_no_fault_of_the_bundle() {
    let dir = one_blob(3);
    write_rows(dir.path(), &[("k", 0, b"abc")]);
    let snapshot = Snapshot::open(dir.path()).unwrap();
    let mut full = File::options().write(true).open("/dev/full").unwrap();
    let error = snapshot.read_blob("k", None, &mut full).unwrap_err();
    assert!(matches!(error, Error::Sink(_)), "{error}");
}

fn sparse_record(writer: &mut BlobWriter) -> FileRecord {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SPARSE_ABOVE + 9).unwrap();
    file.write_all_at(b"data", 1 << 20).unwrap();
    file.write_all_at(b"data", SPARSE_ABOVE + 5).unwrap();
    created(b"/60", stored(&writer.store_file("after:/60", &file, StoreLimit::NONE).unwrap()))
}

/// The two files of a snapshot that has something of everything.
fn sound() -> (Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    commit(dir.path(), |writer| {
        let mut files: Vec<_> = (10..50_u8)
            .map(|number| {
                let content = [number].repeat(usize::from(number) * 20);
                let kept = writer.store_bytes(&format!("after:/{number}"), &content).unwrap();
                let mut record = created(format!("/{number}").as_bytes(), stored(&kept));
                record.operations = record.operations.with(Operation::Read);
                if let State::Present(after) = &mut record.after {
                    after.inode_flags = [InodeFlag::Append, InodeFlag::Immutable].into();
                }
                record
            })
            .collect();
        files.push(sparse_record(writer));
        files
    });
    (fs::read(dir.path().join(MANIFEST)).unwrap(), fs::read(dir.path().join(BLOBS)).unwrap())
}

fn open_bytes(manifest: &[u8], blobs: &[u8]) -> Result<Snapshot, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(MANIFEST), manifest).unwrap();
    fs::write(dir.path().join(BLOBS), blobs).unwrap();
    let snapshot = Snapshot::open(dir.path())?;
    for record in snapshot.files() {
        if let Some(after) = record.after.present().filter(|after| after.blob.is_some()) {
            let _ = snapshot.read_blob(after.blob.as_ref().unwrap(), after.digest.as_ref(), &mut Nowhere);
        }
    }
    Ok(snapshot)
}

/// A few places where bytes are put in the place of others.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, Vec<u8>, usize)>> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(b"\x00\x7f\x80\xff[]{}\",:-0".as_slice())];
    let place = (any::<prop::sample::Index>(), prop::collection::vec(byte, 0..3), 0..4_usize);
    prop::collection::vec(place, 1..4)
}

fn damaged(bytes: &[u8], damage: Vec<(prop::sample::Index, Vec<u8>, usize)>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (place, put, taken) in damage {
        let place = place.index(bytes.len());
        let end = bytes.len().min(place + taken);
        bytes.splice(place..end, put);
    }
    bytes
}

fn cases(cases: u32) -> ProptestConfig {
    // More of them on demand: PROPTEST_CASES=100000.
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig::with_cases(asked.unwrap_or(cases))
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn any_manifest_bytes_never_panic_the_reader(bytes: Vec<u8>, places in damage()) {
        thread_local!(static SOUND: (Vec<u8>, Vec<u8>) = sound());
        SOUND.with(|(manifest, blobs)| {
            let _ = open_bytes(&bytes, blobs);
            let _ = open_bytes(&damaged(manifest, places), blobs);
        });
    }

    #[test]
    fn any_blob_bytes_never_panic_the_reader(bytes: Vec<u8>, places in damage()) {
        thread_local!(static SOUND: (Vec<u8>, Vec<u8>) = sound());
        SOUND.with(|(manifest, blobs)| {
            let _ = open_bytes(manifest, &bytes);
            let _ = open_bytes(manifest, &damaged(blobs, places));
        });
    }
}

#[test]
fn a_key_of_the_wrong_type_is_an_error_of_the_format() {
    let (manifest, blobs) = sound();
    let whole: Value = serde_json::from_slice(&manifest).unwrap();
    for (place, wrong) in [
        ("/files/0/before/exists", json!("yes")),
        ("/files/0/after/size", json!(-1)),
        ("/files/0/after/type", json!("folder")),
        ("/files/0/after/digest", json!("sha256:xyz")),
        ("/files/0/after/inode_flags", json!(["append", "sticky"])),
        ("/files/0/after/inode_flags", json!("append")),
        ("/files/0/after/sparse", json!(true)),
        ("/files/0/after/entries_digest", json!(format!("sparse-sha256:{}", "00".repeat(32)))),
        ("/files/40/after/sparse", json!(false)),
        ("/files/40/after/sparse", json!("yes")),
        ("/files/40/after/digest", json!(format!("sha256:{}", "00".repeat(32)))),
        ("/files/0/operations", json!(["read", "remove"])),
        ("/uid", json!(1_u64 << 32)),
        ("/command", json!("true")),
        ("/files", json!({})),
    ] {
        let mut broken = whole.clone();
        let (parent, key) = place.rsplit_once('/').unwrap();
        broken.pointer_mut(parent).unwrap()[key] = wrong;
        let result = open_bytes(&serde_json::to_vec(&broken).unwrap(), &blobs);
        assert!(format_message(result).contains("manifest.json"), "{place}");
    }
}
