use std::fs;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Row, RowAccessor as _};
use parquet::schema::printer::print_schema;
use proptest::prelude::*;

use super::super::sparse::BLOCK;
use super::*;
use crate::snapshot::samples::python;

fn writer() -> BlobWriter {
    BlobWriter::new(tempfile::tempfile().unwrap(), Compression::Snappy).unwrap()
}

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// Bytes that don't compress, the same for the same seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// All rows, with the schema that other readers find.
fn rows(file: &File) -> Vec<(String, i64, Vec<u8>)> {
    let reader = SerializedFileReader::new(file.try_clone().unwrap()).unwrap();
    let mut schema = Vec::new();
    print_schema(&mut schema, reader.metadata().file_metadata().schema());
    assert_eq!(
        String::from_utf8(schema).unwrap(),
        "message blobs {\n  REQUIRED BYTE_ARRAY key (STRING);\n  REQUIRED INT64 offset;\n  \
         REQUIRED BYTE_ARRAY content;\n}\n"
    );
    let row = |row: Row| {
        (
            row.get_string(0).unwrap().clone(),
            row.get_long(1).unwrap(),
            row.get_bytes(2).unwrap().data().to_vec(),
        )
    };
    reader.get_row_iter(None).unwrap().map(|found| row(found.unwrap())).collect()
}

/// The number of rows of each row group.
fn groups(file: &File) -> Vec<i64> {
    let reader = SerializedFileReader::new(file.try_clone().unwrap()).unwrap();
    reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect()
}

#[test]
fn nothing_stored_is_no_file() {
    assert!(writer().finish().unwrap().is_none());
}

#[test]
fn identical_content_is_stored_once() {
    let mut writer = writer();
    let first = writer.store_bytes("before:/a", b"same").unwrap();
    let again = writer.store_file("after:/b", &file(b"same"), StoreLimit::NONE).unwrap();
    assert_eq!(first.blob.as_deref(), Some("before:/a"));
    assert_eq!(again, first);
    assert_eq!(writer.key_of(&Digest::of(b"same")).as_deref(), Some("before:/a"));
    let file = writer.finish().unwrap().unwrap();
    assert_eq!(rows(&file), [("before:/a".to_owned(), 0, b"same".to_vec())]);
}

#[test]
fn copy_is_a_file_of_what_is_stored_so_far() {
    let mut writer = writer();
    assert!(!writer.copy_to(&file(b"")).unwrap());
    let mut all = Vec::new();
    for round in 0..3 {
        // Several groups, the last one not full.
        for number in 0..150 {
            let (key, content) = (format!("before:/{round}/{number}"), noise(100, round * 1000 + number));
            writer.store_bytes(&key, &content).unwrap();
            all.push((key, 0, content));
        }
        let copy = file(b"");
        assert!(writer.copy_to(&copy).unwrap());
        assert_eq!(rows(&copy), all);
    }
    let again = writer.store_bytes("after:/again", &noise(100, 0)).unwrap();
    assert_eq!(again.blob.as_deref(), Some("before:/0/0"));
    assert_eq!(rows(&writer.finish().unwrap().unwrap()), all);
}

#[test]
fn empty_content_is_one_empty_row() {
    let mut writer = writer();
    let stored = writer.store_file("before:/empty", &file(b""), StoreLimit::NONE).unwrap();
    assert_eq!((stored.size, stored.digest), (0, Digest::of(b"")));
    let file = writer.finish().unwrap().unwrap();
    assert_eq!(rows(&file), [("before:/empty".to_owned(), 0, vec![])]);
}

#[test]
fn forty_mebibytes_are_three_rows_in_order() {
    let content = noise(40 << 20, 1);
    let mut writer = writer();
    let small = writer.store_bytes("before:/small", b"small").unwrap();
    let stored = writer.store_file("before:/long", &file(&content), StoreLimit::NONE).unwrap();
    let after = writer.store_bytes("after:/small", b"more").unwrap();
    assert_eq!(stored.digest, Digest::of(&content));
    assert_eq!(stored.size, 40 << 20);
    let copy = writer.store_file("after:/copy", &file(&content), StoreLimit::NONE).unwrap();
    assert_eq!(copy, stored);

    let file = writer.finish().unwrap().unwrap();
    let rows = rows(&file);
    let shape: Vec<_> =
        rows.iter().map(|(key, offset, content)| (key.as_str(), *offset, content.len())).collect();
    let chunk = i64::try_from(CHUNK).unwrap();
    assert_eq!(
        shape,
        [
            (&*small.blob.unwrap(), 0, 5),
            ("before:/long", 0, CHUNK),
            ("before:/long", chunk, CHUNK),
            ("before:/long", 2 * chunk, 8 << 20),
            (&*after.blob.unwrap(), 0, 4),
        ]
    );
    assert!([rows[1].2.as_slice(), &rows[2].2, &rows[3].2].concat() == content);
}

#[test]
fn long_content_of_equal_length_is_stored_when_it_differs() {
    let (one, two) = (noise(CHUNK + 1, 1), noise(CHUNK + 1, 2));
    let mut writer = writer();
    let first = writer.store_file("before:/1", &file(&one), StoreLimit::NONE).unwrap();
    let second = writer.store_file("before:/2", &file(&two), StoreLimit::NONE).unwrap();
    assert_eq!(first.blob.as_deref(), Some("before:/1"));
    assert_eq!(second.blob.as_deref(), Some("before:/2"));
    assert_eq!(rows(&writer.finish().unwrap().unwrap()).len(), 4);
}

#[test]
fn a_content_of_exactly_one_chunk_is_one_row() {
    let content = noise(CHUNK, 3);
    let mut writer = writer();
    writer.store_file("before:/a", &file(&content), StoreLimit::NONE).unwrap();
    writer.store_bytes("before:/b", &noise(CHUNK, 4)).unwrap();
    assert!(matches!(writer.store_bytes("c", &vec![0; CHUNK + 1]), Err(Error::Read(_))));
    let file = writer.finish().unwrap().unwrap();
    assert_eq!(groups(&file), [1, 1]);
}

#[test]
fn row_groups_end_at_64_rows_or_16_mebibytes() {
    let mut writer = writer();
    for number in 0..130_u32 {
        writer.store_bytes(&format!("before:/{number}"), &number.to_le_bytes()).unwrap();
    }
    for number in 0..3 {
        writer.store_bytes(&format!("after:/{number}"), &noise(10 << 20, 7 + number)).unwrap();
    }
    let file = writer.finish().unwrap().unwrap();
    // The third group has the last two small contents and one of 10 MiB.
    assert_eq!(groups(&file), [64, 64, 3, 1, 1]);
    let reader = SerializedFileReader::new(file).unwrap();
    for column in reader.metadata().row_group(0).columns() {
        assert_eq!(column.statistics().is_some(), column.column_descr().name() == "key");
        assert!(column.dictionary_page_offset().is_none());
    }
}

#[test]
fn beyond_the_limit_only_the_digest_is_taken() {
    let mut writer = writer();
    let limit = StoreLimit(Some(3));
    let stored = writer.store_file("before:/a", &file(b"long"), limit).unwrap();
    assert_eq!(stored, Stored { digest: Digest::of(b"long"), size: 4, blob: None });
    let within = writer.store_file("before:/b", &file(b"fit"), limit).unwrap();
    assert_eq!(within.blob.as_deref(), Some("before:/b"));
    writer.store_bytes("before:/c", b"long").unwrap();
    // What is there already costs nothing.
    let known = writer.store_file("before:/a", &file(b"long"), limit).unwrap();
    assert_eq!(known.blob.as_deref(), Some("before:/c"));
}

#[test]
fn the_offset_of_the_file_is_neither_used_nor_moved() {
    let mut handle = file(b"content");
    handle.seek(io::SeekFrom::Start(3)).unwrap();
    let stored = writer().store_file("before:/a", &handle, StoreLimit::NONE).unwrap();
    assert_eq!(stored.digest, Digest::of(b"content"));
    assert_eq!(handle.stream_position().unwrap(), 3);
}

#[test]
fn a_file_written_to_between_two_stats_has_changed() {
    let handle = file(b"before");
    let before = signature(&handle).unwrap();
    handle.write_at(b"after!", 0).unwrap();
    // The kernel's clock of modification times is coarse: make the write visible to it.
    handle.set_modified(std::time::UNIX_EPOCH).unwrap();
    let error = check_unchanged(&handle, &before, &Digest::of(b"before")).unwrap_err();
    assert!(matches!(error, Error::Changed), "{error}");
}

#[test]
fn a_write_with_the_modification_time_put_back_is_found_by_the_bytes() {
    let handle = file(b"before");
    let before = signature(&handle).unwrap();
    let moved = Signature { ctime: (0, 0), ..before };
    // As after an unlink or a chmod, only the change time differs: the bytes are the same.
    check_unchanged(&handle, &moved, &Digest::of(b"before")).unwrap();
    let error = check_unchanged(&handle, &moved, &Digest::of(b"behind")).unwrap_err();
    assert!(matches!(error, Error::Changed), "{error}");
}

#[test]
fn a_file_that_is_not_as_long_as_it_says_has_changed() {
    for (content, claimed) in [(noise(100, 1), 99), (noise(100, 1), 101), (vec![], 1)] {
        let handle = file(&content);
        let before = Signature { size: claimed, ..signature(&handle).unwrap() };
        let len = usize::try_from(claimed).unwrap();
        let mut writer = writer();
        let short = writer.store_short("before:/a", &handle, &before, len);
        assert!(matches!(short, Err(Error::Changed)), "{short:?}");
        let long = writer.store_long("before:/a", &handle, &before, false);
        assert!(matches!(long, Err(Error::Changed)), "{long:?}");
        assert!(writer.group.rows.is_empty() && writer.filled == 0);
    }
}

#[test]
fn a_content_stored_anew_after_a_change_has_a_key_of_its_own() {
    let content = noise(CHUNK + 10, 5);
    let handle = file(&content);
    let cut = Signature { size: content.len() as u64 + 1, ..signature(&handle).unwrap() };
    let mut writer = writer();
    assert!(matches!(writer.store_long("before:/a", &handle, &cut, false), Err(Error::Changed)));
    let stored = writer.store_file("before:/a", &handle, StoreLimit::NONE).unwrap();
    assert_eq!(stored.blob.as_deref(), Some("before-2:/a"));
    let rows = rows(&writer.finish().unwrap().unwrap());
    let keys: Vec<_> = rows.iter().map(|(key, offset, _)| (key.as_str(), *offset)).collect();
    // The first row of the attempt is in the file, and no record refers to it.
    assert_eq!(keys, [("before:/a", 0), ("before-2:/a", 0), ("before-2:/a", i64::try_from(CHUNK).unwrap())]);
}

#[test]
fn an_unreadable_file_is_a_read_error() {
    let directory = File::open("/").unwrap();
    let error = writer().store_file("before:/", &directory, StoreLimit::NONE).unwrap_err();
    assert!(matches!(error, Error::Read(_)), "{error}");
}

/// Files whose kernel refuses to write: a full one, and memory that is not there.
fn refusing() -> [(File, Option<i32>); 2] {
    let open = |path| fs::OpenOptions::new().write(true).open(path).unwrap();
    let full = open("/dev/full");
    let unmapped = open("/proc/self/mem");
    [(full, Some(libc::ENOSPC)), (unmapped, Some(libc::EIO))]
}

#[test]
fn after_a_write_error_nothing_is_stored() {
    for (file, errno) in refusing() {
        let mut writer = BlobWriter::new(file, Compression::None).unwrap();
        writer.store_bytes("before:/a", &noise(CHUNK, 1)).unwrap();
        // It is written meanwhile, which the next that is full waits for.
        let error = writer.store_bytes("before:/b", &noise(CHUNK, 2)).unwrap_err();
        let Error::Write(error) = error else { panic!("{error}") };
        assert_eq!(error.raw_os_error(), errno);
        let again = writer.store_bytes("before:/c", b"c").unwrap_err();
        assert!(matches!(again, Error::Write(_)) && again.to_string().contains("since a write failed"));
        assert!(writer.finish().is_err());
    }
}

#[test]
fn a_write_error_shows_at_the_end_at_the_latest() {
    for content in [noise(CHUNK, 1), b"small".to_vec()] {
        for (file, errno) in refusing() {
            let mut writer = BlobWriter::new(file, Compression::None).unwrap();
            writer.store_bytes("before:/a", &content).unwrap();
            let error = writer.finish().unwrap_err();
            assert_eq!(error.raw_os_error(), errno);
        }
    }
}

#[test]
fn keys_name_the_state_and_the_path() {
    assert_eq!(blob_key(Side::Before, b"/repo/input.txt"), "before:/repo/input.txt");
    assert_eq!(blob_key(Side::After, "/repo/é#1".as_bytes()), "after:/repo/é#1");
    assert_eq!(blob_key(Side::After, b"/\xff"), "after:/ÿ#2fff");
    // The UTF-8 path that is spelled like the key above gets one of its own.
    let twin = blob_key(Side::After, "/ÿ#2fff".as_bytes());
    assert_eq!(twin, format!("after:/ÿ#2fff#{}", hex_string("/ÿ#2fff".as_bytes())));
}

/// Paths that try to be spelled like the keys of others.
fn tricky_path() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec(prop::sample::select(&[b'a', b'#', 0xc3, 0xbf, 0xff, b'2'][..]), 0..4);
    (bytes, 0..4_u8).prop_map(|(mut path, rounds)| {
        for _ in 0..rounds {
            let key = format!("{}#{}", super::super::wire::shown(&path), hex_string(&path));
            path = key.into_bytes();
        }
        path
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_two_paths_share_a_key(one in tricky_path(), two in tricky_path()) {
        prop_assert_eq!(
            one == two,
            blob_key(Side::Before, &one) == blob_key(Side::Before, &two)
        );
    }
}

#[test]
fn zstd_and_no_compression_are_read_back_alike() {
    for compression in [Compression::Snappy, Compression::Zstd, Compression::None] {
        let mut writer = BlobWriter::new(tempfile::tempfile().unwrap(), compression).unwrap();
        writer.store_bytes("before:/a", &[b'x'; 100_000]).unwrap();
        let mut file = writer.finish().unwrap().unwrap();
        assert_eq!(rows(&file), [("before:/a".to_owned(), 0, vec![b'x'; 100_000])]);
        assert_eq!(file.metadata().unwrap().len() > 100_000, compression == Compression::None);
        file.rewind().unwrap();
        let mut magic = [0; 4];
        file.read_exact(&mut magic).unwrap();
        assert_eq!(&magic, b"PAR1");
    }
}

const MEMORY: &str = "AGENT_SNAPSHOT_TEST_MEMORY";

/// Not a test of its own: the child of the next one, whose peak memory is its own.
#[test]
fn stores_a_lot_in_a_process_of_its_own() {
    if std::env::var_os(MEMORY).is_none() {
        return;
    }
    let handle = tempfile::tempfile().unwrap();
    let chunk = noise(8 << 20, 9);
    for part in 0..15 {
        handle.write_all_at(&chunk, part << 23).unwrap();
    }
    drop(chunk);
    let peak = || -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let mut writer = writer();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    writer.store_file("before:/long", &handle, StoreLimit::NONE).unwrap();
    for number in 0..2000_u64 {
        writer.store_bytes(&format!("before:/{number}"), &noise(5000, number + 100)).unwrap();
    }
    handle.set_len(CHUNK as u64).unwrap();
    for number in 0..4 {
        handle.write_all_at(&[number], 0).unwrap();
        writer.store_file(&format!("after:/{number}"), &handle, StoreLimit::NONE).unwrap();
    }
    writer.finish().unwrap();
    println!("{MEMORY} {} {}", before, peak());
}

#[test]
fn the_peak_memory_does_not_depend_on_how_much_is_stored() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "snapshot::blobs::tests::stores_a_lot_in_a_process_of_its_own"])
        .env(MEMORY, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let line = text.lines().find_map(|line| line.split_once(MEMORY)).unwrap().1;
    let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let used = numbers[1] - numbers[0];
    println!("peak {} KiB, {used} KiB above the start", numbers[1]);
    // A group that is filled, one that waits, and one that is written, as it is, compressed, and in the file's buffer.
    assert!(used < 6 * (CHUNK as u64 >> 10), "{used} KiB");
}

/// A file of `size` bytes with `data` at these offsets.
fn sparse_file(size: u64, data: &[(u64, &[u8])]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(size).unwrap();
    data.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).unwrap());
    file
}

#[test]
fn the_rows_of_a_sparse_file_are_its_runs() {
    let (large, block) = (20 << 30, vec![7; BLOCK]);
    let long = vec![9; CHUNK + 2 * BLOCK];
    let end = [[0; BLOCK].as_slice(), &[3; 5]].concat();
    let at = |number: u64| number * BLOCK as u64;
    let mut writer = writer();
    writer.store_bytes("before:/small", b"small").unwrap();
    let first = sparse_file(large, &[(at(3), &block), (at(5) + 10, b"x"), (at(100), &long)]);
    let first = writer.store_file("before:/a", &first, StoreLimit::NONE).unwrap();
    assert!(matches!(first.digest, Digest::Sparse(_)), "{first:?}");
    let second = sparse_file(at(1 << 20) + 5, &[(at((1 << 20) - 1), &end)]);
    writer.store_file("before:/b", &second, StoreLimit::NONE).unwrap();
    writer.store_file("before:/c", &sparse_file(large, &[]), StoreLimit::NONE).unwrap();
    // The same again, with zeros where the other has a hole.
    let again =
        sparse_file(large, &[(at(3), &block), (at(5) + 10, b"x"), (at(100), &long), (at(9), &[0; BLOCK])]);
    assert_eq!(writer.store_file("before:/d", &again, StoreLimit::NONE).unwrap(), first);

    let file = writer.finish().unwrap().unwrap();
    assert!(file.metadata().unwrap().len() < 4 << 20, "{:?}", file.metadata());
    let found = rows(&file);
    let found: Vec<_> = found.iter().map(|(key, offset, content)| (&**key, *offset, content.len())).collect();
    let row = |key, block: u64, len| (key, i64::try_from(at(block)).unwrap(), len);
    assert_eq!(
        found,
        [
            ("before:/small", 0, 5),
            row("before:/a", 3, BLOCK),
            row("before:/a", 5, BLOCK),
            // The group is full before the row is.
            row("before:/a", 100, CHUNK - 2 * BLOCK),
            row("before:/a", 100 + 4094, 4 * BLOCK),
            row("before:/a", 20 << 18, 0),
            row("before:/b", 1 << 20, 5),
            row("before:/c", 20 << 18, 0),
        ]
    );
}

#[test]
fn a_sparse_file_that_changes_while_it_is_read_is_detected() {
    let mut writer = writer();
    let file = sparse_file(1 << 30, &[(0, b"x")]);
    let before = signature(&file).unwrap();
    file.write_all_at(b"y", 1 << 29).unwrap();
    // The kernel's clock of modification times may be coarse.
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert!(matches!(writer.store_long("before:/a", &file, &before, true), Err(Error::Changed)));
    let before = signature(&file).unwrap();
    file.set_len(1 << 28).unwrap();
    assert!(matches!(writer.store_long("before:/a", &file, &before, true), Err(Error::Changed)));
    assert!(writer.finish().unwrap().is_none());
}

#[test]
fn pyarrow_reads_the_file_as_it_is() {
    let python = |script: &str| python().args(["-c", script]).output();
    if !python("import pyarrow").is_ok_and(|output| output.status.success()) {
        println!("skipped: no Python with pyarrow");
        return;
    }
    let mut writer = writer();
    writer.store_bytes("before:/a", b"first").unwrap();
    writer.store_bytes(&blob_key(Side::After, b"/\xff"), b"\0\xff").unwrap();
    let mut file = writer.finish().unwrap().unwrap();
    let mut named = tempfile::NamedTempFile::new().unwrap();
    file.rewind().unwrap();
    io::copy(&mut file, &mut named).unwrap();
    let script = format!(
        "import pyarrow.parquet as pq; print(pq.read_table({:?}).to_pylist())",
        named.path().to_str().unwrap()
    );
    let output = python(&script).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "[{'key': 'before:/a', 'offset': 0, 'content': b'first'}, \
         {'key': 'after:/ÿ#2fff', 'offset': 0, 'content': b'\\x00\\xff'}]\n"
    );
}
