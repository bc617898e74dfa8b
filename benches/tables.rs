//! What `export --tables` costs, and what DuckDB and Spark make of the tables.
//!
//! First the verb exports a library of 10,000 simulated recordings of 100 paths. Then 10,000 simulated recordings of 1,000
//! paths, over 365 days, are written by the same writer: ten million rows, of which `benches/tables.py` asks the
//! statements of docs/reference.md. `RECORDINGS=N` makes another number, `PYTHON=PROGRAM` names a Python with duckdb,
//! pandas, pyspark and a Java.

use std::fs::{self, DirBuilder, File};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use agent_snapshot::library::log::{self, Changes, Entry, Event};
use agent_snapshot::snapshot::change::PathEffect;
use agent_snapshot::snapshot::wire::write_manifest;
use agent_snapshot::snapshot::{
    Digest, Exec, FileRecord, FileType, Header, NetworkAddress, NetworkOperation, NetworkUse, Operation,
    Operations, PathUse, Present, RecordedProcess, SnapshotKind, State,
};
use agent_snapshot::tables::Tables;
use jiff::{Timestamp, ToSpan as _};
use nix::sys::resource::{UsageWho, getrusage};

const BINARY: &str = env!("CARGO_BIN_EXE_agent-snapshot");

/// The days over which the recordings are spread, up to today.
const DAYS: usize = 365;
/// What the statements ask for, as docs/reference.md has it: written by one recording in 100, read by one in 50.
const PATH: &str = "/etc/app/config.toml";
const CONTENT: &[u8] = b"release\n";

fn main() {
    let count = std::env::var("RECORDINGS").map_or(10_000, |count| count.parse().expect("a number"));
    let base = tempfile::tempdir().expect("make a directory");
    library(&base.path().join("library"), &base.path().join("exported"), count);
    let directory = base.path().join("tables");
    let begun = Instant::now();
    let (rows, bytes) = simulate(&directory, count);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{count} recordings simulated and written: {rows} rows, {} MiB, {seconds:.1} s", bytes >> 20);
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = [root.join("benches/tables.py"), root.join("docs/reference.md")];
    // How many recordings of the last seven days wrote the path, and read the content.
    let expected = [100, 50].map(|share| {
        let is_one = |number: &usize| number.is_multiple_of(share) && number % DAYS < 7;
        (0..count).filter(is_one).count().to_string()
    });
    let status = Command::new(python)
        .args(script)
        .arg(&directory)
        .arg(BINARY)
        .args(expected)
        .env("TZ", "UTC")
        .status();
    assert!(status.expect("run Python").success(), "the statements fail");
}

/// Makes a library and has the verb export it.
fn library(root: &Path, exported: &Path, count: usize) {
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700);
    for number in 0..count {
        let (header, files) = recording(number, 100);
        let directory = root.join("snapshots").join(&header.id[..8]);
        private.create(&directory).expect("make a directory");
        let manifest = File::create(directory.join("manifest.json")).expect("make a file");
        write_manifest(&manifest, &header, &files).expect("write a manifest");
        let mut changes = Changes::default();
        files.iter().for_each(|record| changes.add(record, PathEffect::of(record)));
        log::append(root, &Event::Recorded(Entry::new(&header, changes))).expect("append to the log");
    }
    for what in ["first", "second"] {
        let begun = Instant::now();
        let mut command = Command::new(BINARY);
        command.args(["export", "--all", "--tables"]).arg(exported).env("AGENT_SNAPSHOT_LIBRARY", root);
        let output = command.stdin(Stdio::null()).output().expect("run the program");
        assert!(output.status.success(), "{output:?}");
        let seconds = begun.elapsed().as_secs_f64();
        let memory = getrusage(UsageWho::RUSAGE_CHILDREN).expect("ask for the memory").max_rss() >> 10;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{what} export: {seconds:.1} s, {memory} MiB of memory: {}", said.trim_end());
    }

    fs::remove_dir_all(root).expect("remove the library");
    fs::remove_dir_all(exported).expect("remove the tables");
}

/// Writes the recordings, each to files of its own since the next is of another day, and returns how many rows and bytes
/// the tables have.
fn simulate(directory: &Path, count: usize) -> (usize, u64) {
    let mut tables = Tables::open(directory).expect("open");
    let mut rows = 0;
    for number in 0..count {
        let (header, files) = recording(number, 1000);
        let added = tables.add(&header, files.iter().collect()).expect("write").expect("it is new");
        rows += added.iter().sum::<usize>();
    }
    (rows, tables.publish().expect("write"))
}

/// A build of one of 40 projects on one of 50 machines, with so many paths.
fn recording(number: usize, paths: usize) -> (Header, Vec<FileRecord>) {
    let (machine, project) = (number % 50, number % 40);
    let digits = Digest::of(&number.to_le_bytes()).to_string();
    let letter = |digit: char| char::from(b'a' + digit.to_digit(16).expect("a digit") as u8);
    let id: String = digits["sha256:".len()..].chars().take(26).map(letter).collect();
    let root = format!("/home/user{machine}/project{project}");
    let command = vec![b"make".to_vec(), format!("-j{}", machine % 16 + 1).into_bytes()];
    let back = ((number % DAYS) as i64 * 24).hours();
    let midnight = Timestamp::now().to_string()[..10].to_owned() + "T00:00:00Z";
    let midnight: Timestamp = midnight.parse().expect("a time");
    let started = midnight - back + ((number / DAYS) as i64 * 40).seconds();
    let programs = ["/usr/bin/make", "/usr/bin/gcc", "/usr/bin/ld", "/usr/bin/cp"];
    let process = |id: u32| RecordedProcess {
        id,
        pid: 1000 + id,
        parent: (id > 1).then_some(1),
        image: Arc::new(Exec {
            exe: programs[id as usize % 4].into(),
            argv: vec![
                programs[id as usize % 4].into(),
                format!("-o{id}.o").into(),
                format!("{id}.c").into(),
            ],
            ..Exec::default()
        }),
        cwd: root.clone().into_bytes(),
        exit_status: Some(0),
        execs: Vec::new(),
        started_us: Some(u64::from(id) * 1000),
        ended_us: Some(u64::from(id) * 1000 + 900),
    };
    let contact = |index: usize| NetworkUse {
        process: 1,
        operation: if index == 0 { NetworkOperation::Bind } else { NetworkOperation::Connect },
        address: NetworkAddress::Inet(SocketAddrV4::new(
            Ipv4Addr::new(10, 0, (number % 7) as u8, (number * index % 200) as u8),
            if index == 0 { 8080 } else { 443 },
        )),
        count: 1 + index as u64,
        errno: None,
    };
    let mut header = Header::new(id, SnapshotKind::Recording, command, root.clone().into_bytes());
    header.host.machine = Digest::of(&machine.to_le_bytes()).to_string();
    (header.uid, header.gid) = (1000 + machine as u32, 1000 + machine as u32);
    header.started_at = started.to_string();
    header.finished_at = (started + 20.seconds()).to_string();
    header.working_tree = Some(root.clone().into_bytes());
    header.processes = (1..=20).map(process).collect();
    header.network = (0..4).map(contact).collect();
    let mut files: Vec<FileRecord> = (0..paths - 2)
        .map(|index| {
            let is_output = index % 5 == 0;
            let (suffix, of) =
                if is_output { ("o", number) } else { ("c", project * 12 + number % DAYS / 31) };
            let path = format!("{root}/src/module{:02}/file{index:04}.{suffix}", index % 37);
            let content = format!("{of} {index}");
            file(&path, content.as_bytes(), is_output, index as u32 % 19 + 2)
        })
        .collect();
    let is_read = number.is_multiple_of(50);
    files.push(file(&format!("{root}/release"), if is_read { CONTENT } else { b"other" }, false, 2));
    if number.is_multiple_of(100) {
        files.push(file(PATH, b"port = 1", true, 4));
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    (header, files)
}

/// A file that a process wrote, or read.
fn file(path: &str, content: &[u8], is_output: bool, process: u32) -> FileRecord {
    let present = Present {
        mtime: 1_770_000_000,
        size: content.len() as u64,
        digest: Some(Digest::of(content)),
        ..Present::new(FileType::File, libc::S_IFREG | 0o644)
    };
    let present = State::Present(Box::new(present));
    let used = if is_output { Operation::Write } else { Operation::Read };
    let operations = Operations::from(used).with(Operation::Existence);
    let before = if is_output { State::Absent { tombstone: false } } else { present.clone() };
    FileRecord {
        processes: vec![process],
        uses: vec![PathUse { process, operations, exe: None }],
        ..FileRecord::new(path.as_bytes(), before, present, operations)
    }
}
