//! `export --tables`: recordings as Parquet tables, read by DuckDB, pandas and polars.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use agent_snapshot::snapshot::{Digest, FileRecord, Header, Operation, State};
use agent_snapshot::tables::Tables;
use jiff::{Timestamp, ToSpan as _};
use nix::libc;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::RowAccessor as _;
use serde_json::Value;
use walkdir::WalkDir;

use crate::support::{
    Place, Run, SmallFilesystem, User, chmod, file_record, header, kill, python_with_modules, trace_program,
};

const TABLES: [&str; 4] = ["files", "network", "processes", "recordings"];

/// A statement of docs/reference.md.
fn statement(name: &str) -> &'static str {
    let text = include_str!("../docs/reference.md");
    let block = text.split(&format!("<!-- statement: {name} -->\n```")).nth(1).unwrap();
    block.split_once('\n').unwrap().1.split("```").next().unwrap()
}

fn export(place: &Place, arguments: &[&str]) -> Run {
    let tables = place.base().join("tables");
    let mut command = place.command();
    command.args(["export", "--tables"]).arg(tables).args(arguments).output().unwrap().into()
}

fn export_json(place: &Place, arguments: &[&str]) -> Value {
    let run = export(place, &[arguments, &["--json"]].concat()).expect(0);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Records `sh -c script` into the library.
fn record(place: &Place, options: &[&str], script: &str) {
    let mut command = place.command();
    command.arg("run").args(options).args(["--", "sh", "-c", script]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The files below a directory, without what changes from run to run.
fn files(directory: &Path) -> Vec<String> {
    let entries = WalkDir::new(directory).sort_by_file_name().into_iter().flatten();
    let files = entries.filter(|entry| entry.file_type().is_file());
    files.map(|entry| entry.path().strip_prefix(directory).unwrap().display().to_string()).collect()
}

/// What is in the directory of the tables beside the index.
fn directories(tables: &Path) -> Vec<String> {
    let names = fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "_index").collect();
    names.sort();
    names
}

/// The files of a table that readers see.
fn files_of(tables: &Path, table: &str) -> Vec<String> {
    let of_table = format!("table={table}/");
    let files = files(tables).into_iter();
    files.filter(|name| name.starts_with(&of_table) && name.ends_with(".parquet")).collect()
}

/// The recording of each row of a table, sorted.
fn recordings(tables: &Path, table: &str) -> Vec<String> {
    let mut recordings = Vec::new();
    for name in files_of(tables, table) {
        let file = fs::File::open(tables.join(&name)).unwrap();
        let file = SerializedFileReader::new(file).unwrap_or_else(|error| panic!("{name}: {error}"));
        for row in file.get_row_iter(None).unwrap() {
            recordings.push(row.unwrap().get_string(0).unwrap().clone());
        }
    }
    recordings.sort();
    recordings
}

/// Runs a Python script in the directory of the tables; none if it misses a module.
fn python(place: &Place, script: &str) -> Option<String> {
    let mut command = place.program(python_with_modules());
    let output = command.current_dir(place.base()).args(["-c", script]).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("ModuleNotFoundError") {
        println!("skipped: {}", error.lines().last().unwrap());
        return None;
    }
    assert!(output.status.success(), "{error}");
    Some(text)
}

#[test]
fn duckdb_answers_the_statements_of_the_reference() {
    let place = Place::new();
    record(&place, &["--keep", "all"], "echo one > config; exec cat config");
    record(&place, &["--keep", "all"], "cp config copy; rm config; ln -s copy \"$(printf 'odd\\377')\"");
    record(&place, &["--keep", "all"], "cat copy | tr o 0 > other; exit 0");
    record(&place, &[], "bash -c ': < /dev/tcp/127.0.0.1/9' 2> /dev/null || true");
    assert_eq!(export_json(&place, &["@~1", "@~2"])["exported"], 2);
    let exported = export_json(&place, &["--all"]);
    assert_eq!((&exported["exported"], &exported["present"]), (&2.into(), &2.into()));
    assert_eq!(exported["skipped"], Value::Array(Vec::new()));
    let views = statement("duckdb");
    let asked: Vec<String> = ["writers", "readers", "hosts"]
        .iter()
        .map(|name| {
            statement(name)
                .replace("/etc/app/config.toml", place.at("config").to_str().unwrap())
                .replace(&readers_digest(), &Digest::of(b"one\n").to_string())
        })
        .collect();
    let script = format!(
        r#"
import duckdb, json
duckdb.sql("SET enable_progress_bar = false; SET threads = 1")
def ask(asked):
    return duckdb.sql(f"SELECT COLUMNS(*)::VARCHAR FROM ({{asked}})").fetchall()
duckdb.execute('''{views}''')
answers = [ask(asked) for asked in {asked:?}]
odd = ask("SELECT path, hex(path_bytes), after_target FROM files WHERE path_bytes IS NOT NULL")
print(json.dumps([answers, odd]))
"#
    );
    let Some(text) = python(&place, &script) else { return };
    assert_eq!(export_json(&place, &["--compact"])["damaged"], Value::Array(Vec::new()));
    let tables = place.base().join("tables");
    assert_eq!(TABLES.map(|table| files_of(&tables, table).len()), [1; 4]);
    assert_eq!(python(&place, &script).as_ref(), Some(&text));
    let answers: Value = serde_json::from_str(&text).unwrap();
    let [writers, readers, hosts] = [0, 1, 2].map(|index| answers[0][index].as_array().unwrap());
    let of = |row: &Value, columns: &[usize]| columns.iter().map(|&at| row[at].clone()).collect::<Value>();
    // The last one first.
    let effects: Vec<Value> = writers.iter().map(|row| of(row, &[4, 5])).collect();
    assert_eq!(effects.len(), 2, "{writers:?}");
    assert_eq!(effects[0][0], "deleted");
    assert!(effects[0][1].as_str().unwrap().ends_with("/rm"), "{effects:?}");
    assert_eq!(effects[1][0], "created");
    assert!(writers[1][3].as_str().unwrap().contains("echo one > config; exec cat config"), "{writers:?}");
    let paths: Vec<Value> = readers.iter().map(|row| row[4].clone()).collect();
    assert_eq!(paths, [place.at("copy").to_str().unwrap(), place.at("config").to_str().unwrap()]);
    assert_eq!(of(&hosts[0], &[0, 1, 2, 3]), serde_json::json!(["127.0.0.1", "9", "1", "1"]));
    assert_eq!(hosts.len(), 1);
    let odd = &answers[1][0];
    assert_eq!(odd[0], format!("{}/odd\u{ff}", place.work.display()));
    assert!(odd[1].as_str().unwrap().ends_with("6F6464FF"), "{odd}");
    assert_eq!(odd[2], "copy");
}

/// The digest that the statement `readers` asks for.
fn readers_digest() -> String {
    let text = statement("readers");
    let start = text.find("sha256:").unwrap();
    text[start..].split('\'').next().unwrap().to_owned()
}

#[test]
fn pandas_and_polars_read_the_directory_of_a_table() {
    let place = Place::new();
    record(&place, &[], "echo one > file");
    assert_eq!(export_json(&place, &["@"])["exported"], 1);
    for read in [
        "pandas.read_parquet('tables/table=files')",
        "polars.read_parquet('tables/table=files/**/*.parquet', hive_partitioning=True).to_pandas()",
    ] {
        let module = read.split('.').next().unwrap();
        let script = format!(
            "import {module}\nf = {read}\nr = f[f.effect == 'created'].iloc[0]\n\
             print(r.path, r.after_size, r.after_mtime.tzinfo, r.date, list(r.uses)[0]['operations'])"
        );
        let Some(text) = python(&place, &script) else { continue };
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[0], place.at("file").to_str().unwrap());
        assert_eq!((words[1].trim_end_matches(".0"), words[2]), ("4", "UTC"), "{text}");
        assert!(words[3].starts_with("20") && words.last() == Some(&"write"), "{text}");
    }
}

#[test]
fn second_export_adds_what_is_new_and_leaves_the_rest() {
    for &user in User::all() {
        let place = Place::of(user);
        for number in 0..3 {
            record(&place, &[], &format!("echo {number} > file"));
        }
        assert_eq!(export(&place, &["@"]).expect(0).stdout.split(':').next(), Some("1 recording exported"));
        let tables = place.base().join("tables");
        let modified = |name: &String| fs::metadata(tables.join(name)).unwrap().modified().unwrap();
        let before: Vec<_> = files(&tables).iter().map(|name| (name.clone(), modified(name))).collect();
        assert_eq!(before.len(), TABLES.len());
        let said = export(&place, &["--all"]).expect(0).stdout;
        assert!(
            said.starts_with("2 recordings exported: ") && said.ends_with("; 1 was there already\n"),
            "{said}"
        );
        assert_eq!(files_of(&tables, "recordings").len(), 2);
        assert_eq!(recordings(&tables, "recordings").len(), 3);
        assert!(before.iter().all(|(name, time)| modified(name) == *time));
        assert_eq!(
            export(&place, &["--all"]).expect(0).stdout,
            "0 recordings exported; 3 were there already\n"
        );
        assert_eq!(export_json(&place, &["@~1", "@"])["present"], 2);
    }
}

#[test]
fn what_has_not_ended_is_skipped_and_what_has_gaps_is_not() {
    let place = Place::new();
    place.prepare("mkfifo fifo");
    let script = "sh -c 'read line < fifo' > /dev/null 2>&1 & echo one > file";
    let output = place.record_with(&["--survivors", "background", "--name", "first", "--"], script);
    assert!(output.status.success(), "{output:?}");
    let out = place.out.to_str().unwrap();
    let id = place.snapshot().header().id.clone();
    let run = export(&place, &[out]).expect(1);
    assert_eq!(
        run.stderr,
        format!("agent-snapshot: 1 recording was not exported:\n  {id}: it has not ended\n")
    );
    assert_eq!(run.stdout, "0 recordings exported\n");
    assert!(!place.base().join("tables").exists());
    record(&place, &["--survivors", "background"], "sh -c 'read line < fifo' > /dev/null 2>&1 & true");
    let skipped = &export_json(&place, &["--all"])["skipped"];
    assert_eq!((skipped.as_array().unwrap().len(), &skipped[0]["why"]), (1, &"it has not ended".into()));
    let _fifo = place.write_to_fifo("fifo", "x\nx\n");
    place.wait_for_lock();
    assert_eq!(export_json(&place, &[out])["exported"], 1);

    // What is not recorded is a gap.
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(place.out.join("manifest.json")).unwrap()).unwrap();
    manifest["id"] = "incomplete".into();
    manifest["complete"] = false.into();
    manifest["warnings"] =
        serde_json::json!([{"kind": "io_uring", "lost": true, "count": 1, "detail": "why", "processes": []}]);
    fs::write(place.out.join("manifest.json"), manifest.to_string()).unwrap();
    assert_eq!(export_json(&place, &[out])["exported"], 1);
    let script = "import pandas\nr = pandas.read_parquet('tables/table=recordings').set_index('recording')\n\
                  print(r.complete['incomplete'], list(r.gaps['incomplete']))";
    if let Some(text) = python(&place, script) {
        assert_eq!(text, "False ['why']\n");
    }
}

#[test]
fn bad_input_is_one_sentence_and_nothing_is_written() {
    let place = Place::new();
    record(&place, &[], "echo one > file");
    place.record("echo two > file");
    let out = place.out.to_str().unwrap();
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let run = export(&place, arguments).expect(status);
        assert!(run.stderr.contains(why), "{run:#?}");
        assert_eq!(run.stdout, "");
        assert!(!place.base().join("tables").exists(), "{arguments:?}");
    };
    refused(&[], 2, "<SNAP>");
    refused(&["--all", "@"], 2, "cannot be used with");
    refused(&["zzzzzzzz"], 3, "agent-snapshot: ");
    refused(&[out, "@", "zzzzzzzz"], 3, "agent-snapshot: ");
    fs::create_dir(place.base().join("empty")).unwrap();
    refused(&[out, place.base().join("empty").to_str().unwrap()], 3, "holds no manifest.json");
    fs::write(place.base().join("tables"), "mine").unwrap();
    let run = export(&place, &["--all"]).expect(2);
    assert!(run.stderr.ends_with("/tables is not a directory\n"), "{run:#?}");
    assert_eq!(fs::read(place.base().join("tables")).unwrap(), b"mine");
}

#[test]
fn directory_that_can_not_be_written_is_named() {
    let place = Place::of(User::Nobody);
    record(&place, &[], "echo one > file");
    let tables = place.base().join("tables");
    fs::create_dir(&tables).unwrap();
    chmod(&tables, 0o555);
    let run = export(&place, &["--all"]).expect(125);
    assert!(run.stderr.starts_with("agent-snapshot: write /"), "{run:#?}");
    assert!(run.stderr.ends_with(": Permission denied (os error 13)\n"), "{run:#?}");
    assert_eq!(files(&tables), [""; 0]);
}

#[test]
fn damaged_recording_does_not_keep_others_from_being_exported() {
    let place = Place::new();
    record(&place, &["--name", "damaged"], "echo one > file");
    record(&place, &[], "echo two > file");
    let snapshots = place.home.join(".local/state/agent-snapshot/snapshots");
    let damaged = fs::read_dir(snapshots).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
        let manifest = fs::read_to_string(path.join("manifest.json"));
        manifest.is_ok_and(|manifest| manifest.contains("\"damaged\""))
    });
    fs::write(damaged.unwrap().join("manifest.json"), "{").unwrap();
    let run = export(&place, &["--all"]).expect(3);
    assert!(run.stderr.starts_with("agent-snapshot: 1 recording was not exported:\n  "), "{run:#?}");
    assert!(run.stderr.contains("manifest.json: EOF while parsing"), "{run:#?}");
    assert!(run.stdout.starts_with("1 recording exported: "), "{run:#?}");
    assert_eq!(files(&place.base().join("tables")).len(), TABLES.len());
}

#[test]
fn full_disk_leaves_only_whole_files() {
    let place = Place::new();
    let tables = place.base().join("tables");
    let Some(_mounted) = SmallFilesystem::at(&tables, "size=128k") else { return };
    record(&place, &[], "echo one > file");
    export(&place, &["--all"]).expect(0);
    let before = TABLES.map(|table| files_of(&tables, table));
    let mut mine = fs::File::create(tables.join("mine")).unwrap();
    while mine.write_all(&[0; 4096]).is_ok() {}
    mine.set_len(mine.metadata().unwrap().len() - (12 << 10)).unwrap();
    record(&place, &[], "for number in $(seq 2000); do : < /dev/null > file$number; done");
    let run = export(&place, &["--all"]).expect(125);
    assert!(run.stderr.ends_with(": No space left on device (os error 28)\n"), "{run:#?}");
    fs::remove_file(tables.join("mine")).unwrap();
    assert_eq!(TABLES.map(|table| files_of(&tables, table)), before);
    assert_eq!(directories(&tables), TABLES.map(|table| format!("table={table}")));
}

#[test]
fn export_that_is_killed_can_be_repeated() {
    killed_exports_can_be_repeated(4);
}

#[test]
#[ignore = "slow: kills hundreds of exports"]
fn slow_export_that_is_killed_after_any_change_can_be_repeated() {
    killed_exports_can_be_repeated(1);
}

/// Kills exports and compactions after each change of a directory, or after one of `step` changes.
fn killed_exports_can_be_repeated(step: usize) {
    let (place, tables, first, all) = two_exports();
    let base = |name: &str| place.base().join(name);
    for changes in (1..).step_by(step) {
        copy(&place, &base("first"), &tables);
        if !killed(&place, &["--all"], after_changes(changes)) {
            break;
        }
        // Other tables may be ahead of that of the recordings.
        let [files, _, _, known] = TABLES.map(|table| recordings(&tables, table));
        assert!(files == first[0] || files == all[0], "{changes}: {files:?}");
        assert!(known == first[3] || known == all[3], "{changes}: {known:?}");
        // Not the same again, which would get the same names.
        export(&place, &["@"]).expect(0);
        assert_eq!(whole(&place, &["--all"]), all, "{changes}");
    }
    for changes in (1..).step_by(step) {
        copy(&place, &base("before"), &tables);
        if !killed(&place, &["--compact"], after_changes(changes)) {
            break;
        }
        assert_eq!(TABLES.map(|table| recordings(&tables, table)), all, "{changes}");
        assert_eq!(whole(&place, &["--compact"]), all, "{changes}");
        assert_eq!(files_of(&tables, "files").len(), 1);
    }
}

#[test]
fn recovery_that_is_killed_can_be_repeated() {
    killed_recoveries_can_be_repeated(false);
}

#[test]
#[ignore = "slow: kills hundreds of exports"]
fn slow_recovery_that_is_killed_twice_can_be_repeated() {
    killed_recoveries_can_be_repeated(true);
}

/// Kills a compaction before it exchanges directories and between two exchanges, and then the export that recovers after
/// each of its changes; if `twice`, then the next one, too.
fn killed_recoveries_can_be_repeated(twice: bool) {
    let (place, tables, _, all) = two_exports();
    let before = place.base().join("before");
    let (left, half) = (place.base().join("left"), place.base().join("half"));
    // What readers pass over is not linked, but moved.
    fs::write(tables.join(day_of(&tables)).join("_mine"), "mine").unwrap();
    copy(&place, &tables, &before);
    let check = |what: &str| {
        assert_eq!(TABLES.map(|table| recordings(&tables, table)), all, "{what}");
        assert_eq!(whole(&place, &["--compact"]), all, "{what}");
        assert_eq!(files_of(&tables, "files").len(), 1, "{what}");
        assert_eq!(fs::read(tables.join(day_of(&tables)).join("_mine")).unwrap(), b"mine", "{what}");
    };
    for (exchanges, call) in [(0, libc::SYS_syncfs), (2, libc::SYS_renameat2)] {
        copy(&place, &before, &tables);
        let mut left_to_see = exchanges.max(1);
        let is_killed = killed(&place, &["--compact"], |number| {
            left_to_see -= usize::from(number == call);
            left_to_see == 0
        });
        assert!(is_killed);
        copy(&place, &tables, &left);
        for changes in 1.. {
            copy(&place, &left, &tables);
            // It has nothing to add.
            if !killed(&place, &["@"], after_changes(changes)) {
                assert!(changes > 8, "{changes}");
                break;
            }
            if !twice {
                check(&format!("{exchanges}: {changes}"));
                continue;
            }
            copy(&place, &tables, &half);
            for again in 1.. {
                copy(&place, &half, &tables);
                if !killed(&place, &["@"], after_changes(again)) {
                    break;
                }
                check(&format!("{exchanges}: {changes}, {again}"));
            }
        }
    }
}

/// A place with two exports of a day, and how the tables are after the first one (also in `first`) and after both.
fn two_exports() -> (Place, PathBuf, [Vec<String>; 4], [Vec<String>; 4]) {
    let place = Place::new();
    let tables = place.base().join("tables");
    for number in 0..3 {
        record(&place, &[], &format!("echo {number} > file"));
        if number == 0 {
            export(&place, &["--all"]).expect(0);
        }
    }
    let first = TABLES.map(|table| recordings(&tables, table));
    copy(&place, &tables, &place.base().join("first"));
    let all = whole(&place, &["--all"]);
    assert_eq!(all[3].len(), 3);
    copy(&place, &tables, &place.base().join("before"));
    (place, tables, first, all)
}

/// Exports, and returns the recordings of each table, beside which there is nothing.
fn whole(place: &Place, arguments: &[&str]) -> [Vec<String>; 4] {
    let tables = place.base().join("tables");
    export(place, arguments).expect(0);
    assert_eq!(directories(&tables), TABLES.map(|table| format!("table={table}")));
    TABLES.map(|table| recordings(&tables, table))
}

/// Puts a copy of a directory in the place of another one.
fn copy(place: &Place, from: &Path, to: &Path) {
    place.prepare(&format!("rm -rf {1} && cp -a {0} {1}", from.display(), to.display()));
}

/// The directory of the only day of the files.
fn day_of(tables: &Path) -> PathBuf {
    let name = files_of(tables, "files").remove(0);
    Path::new(&name).parent().unwrap().to_owned()
}

/// Kills an export at the end of the first system call for which `is_last` holds, and says whether there was one.
fn killed(place: &Place, arguments: &[&str], mut is_last: impl FnMut(i64) -> bool) -> bool {
    let tables = place.base().join("tables");
    let words = ["export".as_ref(), "--tables".as_ref(), tables.as_os_str()].into_iter();
    let mut ended = 0;
    let (_, status) = trace_program(place, words.chain(arguments.iter().map(OsStr::new)), |pid, calls| {
        // The first stop after another call is that at its end.
        if calls > std::mem::replace(&mut ended, calls) {
            let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            let number = call.split(' ').next().and_then(|number| number.parse().ok());
            if number.is_some_and(&mut is_last) {
                kill(pid.as_raw());
            }
        }
    });
    status.is_none()
}

/// Holds for the last one of so many system calls that change a directory.
fn after_changes(changes: usize) -> impl FnMut(i64) -> bool {
    let mut left = changes;
    move |number| {
        left = left.saturating_sub(usize::from(CHANGES.contains(&number)));
        left == 0
    }
}

/// System calls that change a directory.
const CHANGES: &[i64] = &[
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
];

/// Makes tables of so many days with three files of each in each table, and returns how many rows that of the files has.
fn many_small_files(tables: &Path, days: i64) -> usize {
    let mut into = Tables::open(tables).unwrap();
    let mut rows = 0;
    for round in 0..3 {
        // Another day begins other files.
        for day in 0..days {
            let started: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let header = Header {
                id: format!("recording{round}of{day}"),
                started_at: (started + (day * 24).hours()).to_string(),
                ..header()
            };
            let record = |number: i64| {
                let path = format!("/w/{:03}", (number * 7 + round) % 100);
                file_record(path.as_bytes(), State::NotKept, State::NotKept, Operation::Read.into())
            };
            let records: Vec<FileRecord> = (0..20).map(record).collect();
            rows += into.add(&header, records.iter().collect()).unwrap().unwrap()[1];
        }
    }
    into.publish().unwrap();
    rows
}

/// Reads again and again until the file `stop` is there, every other time with a lock; then says how often.
///
/// Without a lock, a file that was listed may be gone, and a reader that stats what it has listed passes over that.
const READER: &str = r#"
import fcntl, json, os, sys
rows = int(sys.argv[1])
tables = os.open("tables", os.O_RDONLY)
told = dict(all=0, gone=0, fewer=0)
is_last = False
while not is_last:
    is_last = os.path.exists("stop")
    fcntl.flock(tables, fcntl.LOCK_SH)
    assert read() == [rows, rows], read()
    fcntl.flock(tables, fcntl.LOCK_UN)
    try:
        count, distinct = read()
        assert count == distinct <= rows, (count, distinct)
        told["all" if count == rows else "fewer"] += 1
    except Exception as error:
        if not is_gone(error):
            raise
        told["gone"] += 1
    open("reading-" + sys.argv[2], "w").close()
print(json.dumps(told))
"#;

const OF_DUCKDB: &str = r#"
import duckdb
duckdb.sql("SET enable_progress_bar = false; SET threads = 2")
def read():
    return list(duckdb.sql("""SELECT count(*), count(DISTINCT recording || path)
        FROM read_parquet('tables/table=files/*/*.parquet', hive_partitioning = true)""").fetchall()[0])
def is_gone(error):
    return isinstance(error, duckdb.IOException) and ("No such file" in str(error) or "No files found" in str(error))
"#;

const OF_SPARK: &str = r#"
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).config("spark.ui.showConsoleProgress", False)
spark = spark.config("spark.sql.shuffle.partitions", 2).config("spark.driver.memory", "1g").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
def read():
    frame = spark.read.parquet("tables/table=files")
    return list(frame.selectExpr("count(*)", "count(DISTINCT concat(recording, path))").collect()[0])
def is_gone(error):
    return "FILE_NOT_EXIST" in str(error) or "FileNotFoundException" in str(error)
"#;

/// Joins files while readers read: all rows with a lock, and none twice without.
fn readers_see_all_rows(engines: &[&str], days: i64) {
    let place = Place::new();
    let tables = place.base().join("tables");
    let rows = many_small_files(&tables, days);
    let python = python_with_modules();
    let begin = |(number, engine): (usize, &&str)| {
        let mut command = place.program(&python);
        command.current_dir(place.base()).args(["-c", &format!("{engine}{READER}"), &rows.to_string()]);
        command.arg(number.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut readers: Vec<Child> = engines.iter().enumerate().map(begin).collect();
    let is_reading = |number: usize| place.base().join(format!("reading-{number}")).exists();
    let has_ended =
        |readers: &mut Vec<Child>| readers.iter_mut().any(|reader| reader.try_wait().unwrap().is_some());
    while !(0..readers.len()).all(is_reading) && !has_ended(&mut readers) {
        std::thread::yield_now();
    }
    if !has_ended(&mut readers) {
        let compacted = export_json(&place, &["--compact"]);
        assert_eq!(compacted["joined"].as_i64(), Some(2 * 3 * days), "{compacted}");
    }
    fs::write(place.base().join("stop"), "").unwrap();
    for reader in readers {
        let output = reader.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("ModuleNotFoundError") {
            return println!("skipped: {}", error.lines().last().unwrap());
        }
        assert!(output.status.success(), "{error}");
        println!("reads without a lock: {}", String::from_utf8_lossy(&output.stdout).trim_end());
    }
    assert_eq!(recordings(&tables, "files").len(), rows);
    assert_eq!(i64::try_from(files_of(&tables, "files").len()), Ok(days));
}

#[test]
fn duckdb_sees_all_rows_while_files_are_joined() {
    readers_see_all_rows(&[OF_DUCKDB], 40);
}

#[test]
#[ignore = "slow: starts Spark"]
fn slow_spark_sees_all_rows_while_files_are_joined() {
    readers_see_all_rows(&[OF_DUCKDB, OF_SPARK], 60);
}
