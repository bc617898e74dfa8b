use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};

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

/// Exports one recording, and returns the reader of one of its files.
fn exported(header: &Header, records: &[FileRecord], table: &str) -> SerializedFileReader<fs::File> {
    let directory = tempfile::tempdir().unwrap();
    let mut tables = Tables::new(directory.path());
    tables.add(header, records.iter().collect()).unwrap().unwrap();
    tables.publish().unwrap();
    let path = format!("table={table}/date=2026-01-02/{}.parquet", header.id);
    SerializedFileReader::new(fs::File::open(directory.path().join(path)).unwrap()).unwrap()
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
    let mut tables = Tables::new(&directory.path().join("tables"));
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

#[test]
fn a_recording_is_added_once_and_again_if_its_last_file_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let mut tables = Tables::new(directory.path());
    let header = Header { started_at: "2026-01-02T01:00:00+02:00".to_owned(), ..header() };
    let add = |tables: &mut Tables| tables.add(&header, Vec::new()).unwrap();
    let has = |start: &str| Tables::new(directory.path()).has(start, &header.started_at);
    assert_eq!(add(&mut tables).unwrap().rows, [1, 0, 0, 0]);
    assert_eq!(add(&mut tables), None);
    assert!(!has("0123"));
    tables.publish().unwrap();
    assert!(has("0123") && !has("123"));
    assert_eq!(add(&mut tables), None);
    // UTC has another day.
    let path = |table| directory.path().join(format!("table={table}/date=2026-01-01/{}.parquet", header.id));
    fs::remove_file(path("recordings")).unwrap();
    fs::write(path("files"), "half").unwrap();
    let left = path("files").with_file_name(format!(".{}.parquet.tmp", header.id));
    fs::write(left, "of an export that was killed").unwrap();
    assert!(!has("0123"));
    assert_eq!(add(&mut tables).unwrap().rows, [1, 0, 0, 0]);
    tables.publish().unwrap();
    SerializedFileReader::new(fs::File::open(path("files")).unwrap()).unwrap();
    for table in TABLES {
        assert_eq!(fs::read_dir(path(table).parent().unwrap()).unwrap().count(), 1);
    }
    let other_export =
        flock(fs::File::open(directory.path()).unwrap(), FlockOperation::NonBlockingLockExclusive);
    assert_eq!(other_export, Err(Errno::WOULDBLOCK));
    add(&mut Tables::new(&directory.path().join("other"))).unwrap();
    let other = walkdir::WalkDir::new(directory.path().join("other")).into_iter().flatten();
    assert_eq!(other.filter(|entry| entry.file_type().is_file()).count(), 0, "it was not published");
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
