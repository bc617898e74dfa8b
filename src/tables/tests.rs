use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::reader::TableReader;
use super::*;
use crate::snapshot::samples::{created, header, present};
use crate::snapshot::{
    Digest, Exec, NetworkAddress, NetworkOperation, NetworkUse, Operation, Operations, PathUse, Present,
    RecordedProcess, SnapshotKind, State,
};

fn process(id: u32, exe: &str, argv: &[&[u8]]) -> RecordedProcess {
    let argv = argv.iter().map(|word| word.to_vec()).collect();
    let image = Exec { exe: exe.into(), argv, ..Exec::default() };
    RecordedProcess {
        id,
        pid: 4000 + id,
        parent: id.checked_sub(1).filter(|parent| *parent > 0),
        image: Arc::new(image),
        cwd: b"/work".to_vec(),
        exit_status: (id == 1).then_some(0),
        execs: Vec::new(),
        started_us: (id == 1).then_some(1),
        ended_us: None,
    }
}

/// The files of a table that readers see.
fn files_of(directory: &Path, table: &str) -> Vec<PathBuf> {
    let files = walkdir::WalkDir::new(directory.join(format!("table={table}"))).sort_by_file_name();
    let files = files.into_iter().flatten().filter(|entry| entry.file_type().is_file());
    files.map(|entry| entry.into_path()).filter(|path| path.extension() == Some("parquet".as_ref())).collect()
}

fn open(path: &Path) -> SerializedFileReader<fs::File> {
    SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap()
}

/// The value of a text column in each row of a table.
fn texts(directory: &Path, table: &str, column: &str) -> Vec<String> {
    let rows =
        |path: &PathBuf| open(path).get_row_iter(None).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    files_of(directory, table).iter().flat_map(rows).map(|row| cell(&row, column)).collect()
}

/// Exports one recording, and returns the reader of one of its files.
fn exported(header: &Header, records: &[FileRecord], table: &str) -> SerializedFileReader<fs::File> {
    let directory = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(directory.path()).unwrap();
    tables.add(header, records.iter().collect()).unwrap().unwrap();
    tables.publish().unwrap();
    let files = files_of(directory.path(), table);
    assert_eq!(files.len(), 1);
    open(&files[0])
}

fn rows(header: &Header, records: &[FileRecord], table: &str) -> Vec<Row> {
    exported(header, records, table).get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

/// What a row has in a column, as text.
fn cell(row: &Row, name: &str) -> String {
    let cell = row.get_column_iter().find(|(column, _)| *column == name).unwrap().1;
    match cell {
        Field::Str(text) => text.clone(),
        Field::Bytes(bytes) => format!("{:?}", bytes.data()),
        other => other.to_string(),
    }
}

#[test]
fn nulls_lists_and_bytes_are_as_recorded() {
    let mut header = header();
    header.processes =
        vec![process(1, "/bin/a", &[b"a", b"--token=x"]), process(2, "/bin/b", &[b"b", b"\xff"])];
    let used = |process, operation: Operation, exe: Option<&[u8]>| PathUse {
        process,
        operations: operation.into(),
        exe: exe.map(<[u8]>::to_vec),
    };
    let written = FileRecord {
        uses: vec![
            used(1, Operation::Read, None),
            used(2, Operation::Write, Some(b"/bin/c")),
            used(3, Operation::Write, None),
        ],
        operations: Operations::NONE.with(Operation::Read).with(Operation::Write),
        processes: vec![1, 2, 3],
        ..created(
            b"/w/\xffz",
            State::Present(Box::new(Present { digest: Some(Digest::of(b"x")), ..present(1) })),
        )
    };
    let mut before = present(2);
    before.mtime = i64::MAX;
    let read = FileRecord {
        operations: Operation::Read.into(),
        before: State::Present(Box::new(before)),
        after: State::NotKept,
        // Of an earlier version.
        processes: vec![2],
        ..created(b"/w/\xc3\xbf", State::NotKept)
    };
    let unused = FileRecord::new(b"/w/a", State::NotKept, State::NotKept, Operations::NONE);
    let files = rows(&header, &[unused, read, written], "files");
    assert_eq!(
        files.iter().map(|row| cell(row, "path")).collect::<Vec<_>>(),
        ["/w/a", "/w/\u{ff}", "/w/\u{ff}z"]
    );
    let cells = |name: &str| files.iter().map(|row| cell(row, name)).collect::<Vec<_>>();
    assert_eq!(cells("path_bytes"), ["null", "null", "[47, 119, 47, 255, 122]"]);
    assert_eq!(cells("effect"), ["null", "null", "created"]);
    assert_eq!(cells("op_read"), ["false", "true", "true"]);
    assert_eq!(cells("changed_by"), ["null", "null", "2"]);
    assert_eq!(cells("changed_by_exe"), ["null", "null", "/bin/c"]);
    assert_eq!(cells("process_count"), ["0", "1", "3"]);
    assert_eq!(
        cells("uses"),
        [
            "[]".to_owned(),
            "[{process: 2, exe: \"/bin/b\", operations: null}]".to_owned(),
            "[{process: 1, exe: \"/bin/a\", operations: \"read\"}, {process: 2, exe: \"/bin/c\", operations: \
             \"write\"}, {process: 3, exe: null, operations: \"write\"}]"
                .to_owned(),
        ]
    );
    assert_eq!(cells("before_type"), ["null", "file", "none"]);
    assert_eq!(cells("before_mtime")[..2], ["null", "null"]);
    assert_eq!(cells("after_mtime")[2], "2026-02-02 02:40:00.000000 +00:00");
    assert_eq!(cells("after_digest")[2], Digest::of(b"x").to_string());

    let processes = rows(&header, &[], "processes");
    let cells = |name: &str| processes.iter().map(|row| cell(row, name)).collect::<Vec<_>>();
    assert_eq!(cells("argv"), [r#"["a", "--token=x"]"#, "[\"b\", \"\u{ff}\"]"]);
    assert_eq!(cells("argv_bytes")[0], "null");
    assert!(cells("argv_bytes")[1].contains("255"), "{:?}", cells("argv_bytes"));
    assert_eq!(cells("parent"), ["null", "1"]);
    assert_eq!(cells("execs"), [r#"["/bin/a"]"#, r#"["/bin/b"]"#]);
    assert_eq!(cells("exit_status"), ["0", "null"]);
}

#[test]
fn network_has_what_its_family_has() {
    let mut header = header();
    let used = |address| NetworkUse {
        process: 1,
        operation: NetworkOperation::Connect,
        address,
        count: 2,
        errno: None,
    };
    header.network = vec![
        used(NetworkAddress::Inet(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 443))),
        used(NetworkAddress::Unix(b"/run/\xff".to_vec())),
        used(NetworkAddress::Unix(Vec::new())),
        used(NetworkAddress::Other("netlink".to_owned())),
    ];
    let rows = rows(&header, &[], "network");
    let cells = |name: &str| rows.iter().map(|row| cell(row, name)).collect::<Vec<_>>();
    assert_eq!(cells("family"), ["inet", "unix", "unix", "netlink"]);
    assert_eq!(cells("address"), ["127.0.0.1", "null", "null", "null"]);
    assert_eq!(cells("port"), ["443", "null", "null", "null"]);
    assert_eq!(cells("path"), ["null", "/run/\u{ff}", "null", "null"]);
    assert_eq!(cells("count"), ["2"; 4]);
}

#[test]
fn files_are_sorted_by_path_in_row_groups_with_statistics() {
    let path = |number: usize| format!("/w/{number:06}");
    let mut records: Vec<FileRecord> =
        (0..150_000).map(|number| created(path(number).as_bytes(), State::NotKept)).collect();
    records.reverse();
    let file = exported(&header(), &records, "files");
    let groups = file.metadata().row_groups();
    assert_eq!(groups.iter().map(|group| group.num_rows()).collect::<Vec<_>>(), [100_000, 50_000]);
    let bounds = |group: usize| {
        let statistics = groups[group].column(1).statistics().unwrap();
        (statistics.min_bytes_opt().unwrap().to_vec(), statistics.max_bytes_opt().unwrap().to_vec())
    };
    assert_eq!(bounds(0), (path(0).into_bytes(), path(99_999).into_bytes()));
    assert_eq!(bounds(1), (path(100_000).into_bytes(), path(149_999).into_bytes()));
    assert_eq!(groups[0].sorting_columns().unwrap()[0].column_idx, 1);
}

#[test]
fn what_can_not_be_named_or_dated_is_no_recording() {
    let directory = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(&directory.path().join("tables")).unwrap();
    let mut refused = |change: &dyn Fn(&mut Header)| {
        let mut header = header();
        change(&mut header);
        let error = tables.add(&header, Vec::new()).unwrap_err();
        assert!(matches!(error, Error::Format(_)), "{error:?}");
        error.to_string()
    };
    for id in ["", "../x", "a/b", ".x", &"x".repeat(65)] {
        let why = refused(&|header| header.id = id.to_owned());
        assert!(why.ends_with("can't be the name of a file"), "{why}");
    }
    assert!(refused(&|header| header.kind = SnapshotKind::Rescue).contains("is a rescue"));
    for time in ["soon", "1969-12-31T23:59:59Z", "-009999-01-02T01:59:59Z"] {
        refused(&|header| header.started_at = time.to_owned());
        refused(&|header| header.finished_at = time.to_owned());
    }
    assert!(!directory.path().join("tables").exists());
}

/// A recording of one path, with one process.
fn recording(number: usize) -> (Header, FileRecord) {
    let header = Header { id: format!("recording{number}"), ..header() };
    (header, created(format!("/w/{}", 9 - number % 10).as_bytes(), State::NotKept))
}

/// Exports recordings at once.
fn export(directory: &Path, numbers: std::ops::Range<usize>) {
    let mut tables = Tables::open(directory).unwrap();
    for number in numbers {
        let (header, record) = recording(number);
        tables.add(&header, vec![&record]).unwrap().unwrap();
    }
    tables.publish().unwrap();
}

/// Exports recordings, each by itself.
fn export_each(directory: &Path, numbers: std::ops::Range<usize>) {
    numbers.for_each(|number| export(directory, number..number + 1));
}

/// Exports three recordings, each by itself, and stages the compaction of the first table, as if it were killed before the
/// exchange; the new directory.
fn staged(directory: &Path) -> PathBuf {
    export_each(directory, 0..3);
    let day = Path::new("table=recordings/date=2026-01-02");
    let mut tables = Tables::open(directory).unwrap();
    assert!(tables.stage("recordings", day, &mut Compacted::default()).unwrap());
    directory.join("_compact").join(day)
}

/// Which recordings have a row in each table, and that there is nothing else in the directory but the index.
fn expect(directory: &Path, numbers: std::ops::Range<usize>) {
    let expected: Vec<String> = numbers.map(|number| recording(number).0.id).collect();
    for table in ["recordings", "files"] {
        let mut recordings = texts(directory, table, "recording");
        recordings.sort();
        assert_eq!(recordings, expected, "{table}");
    }
    let mut names = names_in(directory).unwrap();
    names.retain(|name| name != "_index");
    assert_eq!(names, ["table=files", "table=network", "table=processes", "table=recordings"]);
    let files =
        walkdir::WalkDir::new(directory).into_iter().flatten().filter(|entry| entry.file_type().is_file());
    let other = files.map(|entry| entry.into_path()).filter(|path| {
        path.extension() != Some("parquet".as_ref())
            && path.parent().unwrap().file_name() != Some("_index".as_ref())
    });
    assert_eq!(other.collect::<Vec<_>>(), [""; 0].map(PathBuf::from));
}

#[test]
fn recordings_of_a_day_are_one_file_a_table_sorted_by_what_statements_compare() {
    let directory = tempfile::tempdir().unwrap();
    export(directory.path(), 0..5);
    for table in TABLES {
        assert_eq!(files_of(directory.path(), table).len(), 1, "{table}");
    }
    assert_eq!(texts(directory.path(), "files", "path"), ["/w/5", "/w/6", "/w/7", "/w/8", "/w/9"]);
    let recordings: Vec<String> = (0..5).rev().map(|number| recording(number).0.id).collect();
    assert_eq!(texts(directory.path(), "files", "recording"), recordings);
    expect(directory.path(), 0..5);
}

#[test]
fn a_full_file_is_followed_by_another() {
    let directory = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(directory.path()).unwrap();
    tables.file_bytes = 3000;
    for number in 0..9 {
        let (header, record) = recording(number);
        tables.add(&header, vec![&record; 10]).unwrap().unwrap();
    }
    tables.publish().unwrap();
    for table in ["recordings", "files"] {
        assert!(files_of(directory.path(), table).len() > 1, "{table}");
    }
    assert_eq!(texts(directory.path(), "files", "path").len(), 90);
    assert_eq!(texts(directory.path(), "recordings", "recording").len(), 9);
}

#[test]
fn a_recording_is_added_once_and_another_export_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(directory.path()).unwrap();
    let header = Header { started_at: "2026-01-02T01:00:00+02:00".to_owned(), ..header() };
    let add = |tables: &mut Tables| tables.add(&header, Vec::new()).unwrap();
    assert_eq!(add(&mut tables), Some([1, 0, 0, 0]));
    assert_eq!(add(&mut tables), None);
    let first_table = fs::File::open(directory.path().join("table=recordings")).unwrap();
    let other_export = flock(first_table, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(other_export, Err(Errno::WOULDBLOCK));
    // It is not there before it is published.
    drop(tables);
    assert_eq!(names_in(directory.path()).unwrap(), ["table=recordings"]);
    let mut tables = Tables::open(directory.path()).unwrap();
    assert_eq!(add(&mut tables), Some([1, 0, 0, 0]));
    tables.publish().unwrap();
    drop(tables);
    // UTC has another day.
    assert!(directory.path().join("table=files/date=2026-01-01").is_dir());
    // By the index or without it.
    for _ in 0..3 {
        let mut tables = Tables::open(directory.path()).unwrap();
        let mut has = |start: &str| tables.has(start, &header.started_at).unwrap();
        assert!(has("0123") && !has("123"));
        assert_eq!(add(&mut tables), None);
        let index = directory.path().join("_index/2026-01-01.json");
        if fs::read(&index).unwrap() != b"{" {
            fs::write(&index, "{").unwrap()
        } else {
            fs::remove_file(index).unwrap()
        }
    }
}

#[test]
fn a_file_for_each_recording_as_earlier_versions_made_is_recognized() {
    let directory = tempfile::tempdir().unwrap();
    export_each(directory.path(), 0..2);
    for table in TABLES {
        for path in files_of(directory.path(), table) {
            let id = TableReader::open(&path).unwrap().first_recording().unwrap();
            let id = id.unwrap_or_else(|| path.file_stem().unwrap().to_str().unwrap().to_owned());
            fs::rename(&path, path.with_file_name(format!("{id}.parquet"))).unwrap();
        }
    }
    let name = |table| format!("table={table}/date=2026-01-02/recording1.parquet");
    let mut tables = Tables::open(directory.path()).unwrap();
    assert!(tables.has("recording1", &header().started_at).unwrap());
    drop(tables);
    // It was killed before the last of the four files.
    fs::remove_file(directory.path().join(name("recordings"))).unwrap();
    export(directory.path(), 1..2);
    assert!(!directory.path().join(name("files")).exists());
    expect(directory.path(), 0..2);
}

#[test]
fn what_a_killed_export_has_left_is_completed_once_it_was_committed() {
    let directory = tempfile::tempdir().unwrap();
    let live = |table: &str| directory.path().join(format!("table={table}"));
    export(directory.path(), 0..2);
    let aside = directory.path().join("aside");
    fs::create_dir(&aside).unwrap();
    TABLES.iter().for_each(|table| fs::rename(live(table), aside.join(format!("table={table}"))).unwrap());
    fs::rename(&aside, directory.path().join(STAGED)).unwrap();
    export(directory.path(), 0..2);
    expect(directory.path(), 0..2);
    // Between the renames of its files.
    for table in ["recordings", "files"] {
        let adding = directory.path().join(ADDING).join(format!("table={table}"));
        fs::create_dir_all(&adding).unwrap();
        fs::rename(live(table).join("date=2026-01-02"), adding.join("date=2026-01-02")).unwrap();
    }
    let mut tables = Tables::open(directory.path()).unwrap();
    assert!(tables.has("recording1", &header().started_at).unwrap());
    expect(directory.path(), 0..2);
}

#[test]
fn files_of_a_day_are_joined_and_nothing_is_joined_twice() {
    let directory = tempfile::tempdir().unwrap();
    export_each(directory.path(), 0..5);
    let rows = |table: &str| -> Vec<String> {
        let rows = files_of(directory.path(), table).into_iter().flat_map(|path| {
            open(&path).get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect::<Vec<_>>()
        });
        sorted(rows.collect())
    };
    let before = TABLES.map(rows);
    let compact = || Tables::open(directory.path()).unwrap().compact(|_, _| {}).unwrap();
    let compacted = compact();
    // Those of the tables without rows have the same content, and so the same name.
    assert_eq!((compacted.joined, compacted.into), (10, 2));
    assert_eq!(TABLES.map(rows), before);
    for table in TABLES {
        assert_eq!(files_of(directory.path(), table).len(), 1, "{table}");
    }
    assert_eq!(texts(directory.path(), "files", "path"), ["/w/5", "/w/6", "/w/7", "/w/8", "/w/9"]);
    expect(directory.path(), 0..5);
    assert_eq!(compact().joined, 0);
    assert!(Tables::open(directory.path()).unwrap().has("recording4", &header().started_at).unwrap());
}

#[test]
fn joined_files_are_as_large_as_others() {
    let directory = tempfile::tempdir().unwrap();
    export_each(directory.path(), 0..9);
    let size = fs::metadata(&files_of(directory.path(), "files")[0]).unwrap().len();
    let compact = || {
        let mut tables = Tables::open(directory.path()).unwrap();
        tables.file_bytes = usize::try_from(size).unwrap() * 2 + 2;
        tables.compact(|_, _| {}).unwrap()
    };
    compact();
    expect(directory.path(), 0..9);
    assert!(files_of(directory.path(), "files").len() < 9);
}

#[test]
fn damaged_and_foreign_files_remain_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    export_each(directory.path(), 0..3);
    let day = directory.path().join("table=files/date=2026-01-02");
    fs::write(day.join("damaged.parquet"), "PAR1 and so on").unwrap();
    fs::copy(&files_of(directory.path(), "recordings")[0], day.join("foreign.parquet")).unwrap();
    fs::write(day.join("notes.txt"), "mine").unwrap();
    for number in 0..2 {
        let schema = "message schema { required int32 other; required group keys { required int32 a; } }";
        let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
        let file = fs::File::create(day.join(format!("int{number}.parquet"))).unwrap();
        parquet::file::writer::SerializedFileWriter::new(file, schema, Arc::default())
            .unwrap()
            .close()
            .unwrap();
    }
    let compacted = Tables::open(directory.path()).unwrap().compact(|_, _| {}).unwrap();
    assert_eq!((compacted.joined, compacted.into, compacted.damaged.len()), (6, 2, 1));
    assert!(compacted.damaged[0].contains("date=2026-01-02/damaged.parquet: "), "{compacted:?}");
    let mut names = names_in(&day).unwrap();
    assert_eq!(names.len(), 6);
    names.retain(|name| name.len() < 32);
    let others = ["damaged.parquet", "foreign.parquet", "int0.parquet", "int1.parquet", "notes.txt"];
    assert_eq!(names, others);
}

#[test]
fn what_comes_while_files_are_joined_stays() {
    for is_killed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        export(other.path(), 3..4);
        let mut is_copied = false;
        let mut copy = |done, _| {
            // All are staged, and exchanged after the last one.
            if done == 3 && !is_copied {
                for table in TABLES {
                    let to = directory.path().join(format!("table={table}/date=2026-01-02"));
                    let from = &files_of(other.path(), table)[0];
                    fs::copy(from, to.join(from.file_name().unwrap())).unwrap();
                }
                is_copied = true;
            }
        };
        if is_killed {
            // As if it were killed after the exchange.
            let new = staged(directory.path());
            copy(3, 4);
            let day = directory.path().join("table=recordings/date=2026-01-02");
            renameat_with(CWD, &new, CWD, &day, RenameFlags::EXCHANGE).unwrap();
            drop(Tables::open(directory.path()).unwrap());
        } else {
            export_each(directory.path(), 0..3);
            Tables::open(directory.path()).unwrap().compact(copy).unwrap();
        }
        expect(directory.path(), 0..4);
    }
}

#[test]
fn a_compaction_that_was_killed_before_the_exchange_has_done_nothing() {
    let directory = tempfile::tempdir().unwrap();
    assert!(staged(directory.path()).exists());
    let before = files_of(directory.path(), "recordings");
    drop(Tables::open(directory.path()).unwrap());
    assert_eq!(files_of(directory.path(), "recordings"), before);
    expect(directory.path(), 0..3);
}

#[test]
fn a_new_directory_of_a_day_that_is_half_removed_was_not_exchanged() {
    let directory = tempfile::tempdir().unwrap();
    fs::remove_file(staged(directory.path()).join("_joined")).unwrap();
    drop(Tables::open(directory.path()).unwrap());
    expect(directory.path(), 0..3);
}

#[test]
fn what_is_no_table_file_stays_in_a_day_that_is_joined() {
    let directory = tempfile::tempdir().unwrap();
    export_each(directory.path(), 0..3);
    let day = directory.path().join("table=files/date=2026-01-02");
    for subdirectory in ["_temporary/0", "sub.parquet", "empty"] {
        fs::create_dir_all(day.join(subdirectory)).unwrap();
    }
    fs::write(day.join("_temporary/0/part"), "mine").unwrap();
    fs::write(day.join("_unfinished"), "mine").unwrap();
    std::os::unix::fs::symlink("nowhere", day.join("link.parquet")).unwrap();
    fs::write(directory.path().join("table=files/date=file"), "mine").unwrap();
    let mut is_made = false;
    let mut tables = Tables::open(directory.path()).unwrap();
    let compacted = tables.compact(|done, of| {
        if done + 1 == of && !is_made {
            fs::create_dir(day.join("late")).unwrap();
            is_made = true;
        }
    });
    assert_eq!(compacted.unwrap().joined, 6);
    drop(tables);
    let mut names = names_in(&day).unwrap();
    names.retain(|name| name.len() < 32);
    assert_eq!(names, ["_temporary", "_unfinished", "empty", "late", "link.parquet", "sub.parquet"]);
    assert_eq!(fs::read(day.join("_temporary/0/part")).unwrap(), b"mine");
    assert_eq!(fs::read(day.join("_unfinished")).unwrap(), b"mine");
    assert_eq!(fs::read(directory.path().join("table=files/date=file")).unwrap(), b"mine");
    assert!(!directory.path().join("_compact").exists());
}

#[test]
fn what_a_killed_export_of_an_earlier_version_has_left_is_not_joined() {
    let directory = tempfile::tempdir().unwrap();
    export_each(directory.path(), 0..3);
    let name_by_recording = |table: &str| {
        for path in files_of(directory.path(), table) {
            let id = TableReader::open(&path).unwrap().first_recording().unwrap().unwrap();
            fs::rename(&path, path.with_file_name(format!("{id}.parquet"))).unwrap();
        }
    };
    ["files", "recordings"].into_iter().for_each(name_by_recording);
    let day = |table: &str| directory.path().join(format!("table={table}/date=2026-01-02"));
    fs::remove_file(day("recordings").join("recording2.parquet")).unwrap();
    let compacted = Tables::open(directory.path()).unwrap().compact(|_, _| {}).unwrap();
    assert_eq!((compacted.joined, compacted.into), (4, 2));
    assert!(day("files").join("recording2.parquet").exists());
    export(directory.path(), 2..3);
    expect(directory.path(), 0..3);
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

/// docs/format.md has each column with its type, and no other.
#[test]
fn the_format_describes_every_column() {
    let text = include_str!("../../docs/format.md");
    let section = text.split("\n## Tables\n").nth(1).unwrap().split("\n## ").next().unwrap();
    for table in TABLES {
        let part = section.split(&format!("\n`{table}` has ")).nth(1).unwrap();
        let mut documented: Vec<(String, String)> = Vec::new();
        for line in part
            .lines()
            .skip_while(|line| !line.starts_with("|---"))
            .skip(1)
            .take_while(|line| line.starts_with('|'))
        {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let names: Vec<&str> = cells[1].split(", ").map(|name| name.trim_matches('`')).collect();
            let types: Vec<&str> =
                if cells[2].starts_with('{') { vec![cells[2]] } else { cells[2].split(", ").collect() };
            for (index, name) in names.iter().enumerate() {
                let of_all = types.len() == 1;
                documented.push(((*name).to_owned(), types[if of_all { 0 } else { index }].to_owned()));
            }
        }
        let file = exported(&header(), &[], table);
        let fields = file.metadata().file_metadata().schema().get_fields().to_vec();
        let mut written: Vec<(String, String)> =
            fields.iter().map(|field| (field.name().to_owned(), described(field))).collect();
        documented.sort();
        written.sort();
        assert_eq!(documented, written, "{table}");
    }
}

/// A type as the format names it.
fn described(field: &parquet::schema::types::Type) -> String {
    use parquet::basic::{ConvertedType, Repetition, Type};
    let null = if field.get_basic_info().repetition() == Repetition::OPTIONAL { "?" } else { "" };
    if field.is_group() && field.get_basic_info().converted_type() == ConvertedType::LIST {
        let element = &field.get_fields()[0].get_fields()[0];
        return format!("{}[]{null}", described(element));
    }
    if field.is_group() {
        let keys = field.get_fields().iter().map(|key| format!("`{}` {}", key.name(), described(key)));
        return format!("{{{}}}", keys.collect::<Vec<_>>().join(", "));
    }
    let name = match (field.get_physical_type(), field.get_basic_info().converted_type()) {
        (Type::BYTE_ARRAY, ConvertedType::UTF8) => "text",
        (Type::BYTE_ARRAY, _) => "bytes",
        (Type::INT64, ConvertedType::TIMESTAMP_MICROS) => "time",
        (Type::INT64, _) => "integer",
        (Type::BOOLEAN, _) => "boolean",
        other => panic!("{other:?}"),
    };
    format!("{name}{null}")
}
