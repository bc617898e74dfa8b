//! The columns of the tables, each named as the key of the manifest that it is made of.
//!
//! Bytes are text as in the manifest; where they are not UTF-8, a column `..._bytes` has them. `docs/format.md` has the
//! meaning of each column. Neighbours: `schema.rs` has their types, `writer.rs` makes files of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::slice;

use jiff::{SignedDuration, Timestamp};
use parquet::errors::ParquetError;
use parquet::schema::types::TypePtr;

use super::schema::{Column, Kind, Shape, Value, schema};
use super::writer::TableFile;
use crate::snapshot::blobs::Side;
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::{content_id, state};
use crate::snapshot::wire::shown;
use crate::snapshot::{
    Error, FileRecord, GitRepository, GitStatus, Header, NetworkAddress, NetworkUse, Operation, Operations,
    PathUse, Present, RecordedProcess, State, printable,
};

/// The column of each table that has the identifier of the recording.
pub const RECORDING: &str = "recording";

/// A recording as rows.
pub struct Subject<'s> {
    recording: RecordingRow<'s>,
    files: Vec<FileRow<'s>>,
    processes: Vec<ProcessRow<'s>>,
    network: Vec<NetworkRow<'s>>,
}

struct RecordingRow<'s> {
    header: &'s Header,
    started_at: Timestamp,
    finished_at: Timestamp,
    /// The repository of the working tree.
    repository: Option<&'s GitRepository>,
}

struct FileRow<'s> {
    recording: &'s str,
    record: &'s FileRecord,
    uses: Vec<Use<'s>>,
}

/// What a process did with a path, and the program that it executed then.
#[derive(Clone, Copy)]
struct Use<'s> {
    process: u32,
    exe: Option<&'s [u8]>,
    /// None in a recording of an earlier version.
    operations: Option<Operations>,
}

struct ProcessRow<'s> {
    recording: &'s str,
    process: &'s RecordedProcess,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
}

struct NetworkRow<'s> {
    recording: &'s str,
    used: &'s NetworkUse,
}

impl<'s> Subject<'s> {
    /// The rows of a recording.
    ///
    /// # Errors
    /// A time is none.
    pub fn new(header: &'s Header, records: Vec<&'s FileRecord>) -> Result<Subject<'s>, Error> {
        let started_at = parse_time(&header.started_at)?;
        let programs: HashMap<u32, &[u8]> =
            header.processes.iter().map(|process| (process.id, process.image.exe.as_slice())).collect();
        let recording = header.id.as_str();
        let mut files: Vec<FileRow<'_>> = records
            .into_iter()
            .map(|record| FileRow { recording, record, uses: uses(record, &programs) })
            .collect();
        // As the text is sorted, which is not that of the bytes where these are not UTF-8.
        files.sort_by(|one, other| shown(&one.record.path).cmp(&shown(&other.record.path)));
        let at = |microseconds: Option<u64>| {
            let after = SignedDuration::from_micros(i64::try_from(microseconds?).ok()?);
            started_at.checked_add(after).ok()
        };
        let process = |process: &'s RecordedProcess| ProcessRow {
            recording,
            process,
            started_at: at(process.started_us),
            ended_at: at(process.ended_us),
        };
        let is_own = |repository: &&GitRepository| Some(&repository.root) == header.working_tree.as_ref();
        Ok(Subject {
            recording: RecordingRow {
                header,
                started_at,
                finished_at: parse_time(&header.finished_at)?,
                repository: header.git_repositories.iter().find(is_own),
            },
            files,
            processes: header.processes.iter().map(process).collect(),
            network: header.network.iter().map(|used| NetworkRow { recording, used }).collect(),
        })
    }

    /// Adds the rows of one of [`TABLES`](super::TABLES) to its file, and returns how many there are.
    pub fn write(&self, table: &str, file: &mut TableFile) -> Result<usize, Error> {
        match table {
            "recordings" => push_all(file, &recordings(), slice::from_ref(&self.recording)),
            "files" => push_all(file, &files(), &self.files),
            "processes" => push_all(file, &processes(), &self.processes),
            _ => push_all(file, &network(), &self.network),
        }
    }
}

fn push_all<R>(file: &mut TableFile, columns: &[Column<R>], rows: &[R]) -> Result<usize, Error> {
    rows.iter().try_for_each(|row| file.push(columns, row))?;
    Ok(rows.len())
}

/// The schema of one of [`TABLES`](super::TABLES).
pub fn schema_of(table: &str) -> Result<TypePtr, ParquetError> {
    match table {
        "recordings" => schema(&recordings()),
        "files" => schema(&files()),
        "processes" => schema(&processes()),
        _ => schema(&network()),
    }
}

/// The column by which one of [`TABLES`](super::TABLES) is sorted: what statements about it compare.
pub fn key_of(table: &str) -> &'static str {
    if table == "files" { "path" } else { RECORDING }
}

/// A time as RFC 3339 has it, from 1970 on.
pub fn parse_time(text: &str) -> Result<Timestamp, Error> {
    let time = text.parse().ok().filter(|time: &Timestamp| *time >= Timestamp::UNIX_EPOCH);
    time.ok_or_else(|| Error::Format(format!("{} is no time since 1970", printable(text.as_bytes()))))
}

/// What each process did with a path.
fn uses<'s>(record: &'s FileRecord, programs: &HashMap<u32, &'s [u8]>) -> Vec<Use<'s>> {
    let program = |process: u32| programs.get(&process).copied();
    if record.uses.is_empty() {
        let unknown = |&process: &u32| Use { process, exe: program(process), operations: None };
        return record.processes.iter().map(unknown).collect();
    }
    let known = |used: &'s PathUse| Use {
        process: used.process,
        exe: used.exe.as_deref().or_else(|| program(used.process)),
        operations: Some(used.operations),
    };
    record.uses.iter().map(known).collect()
}

fn column<R>(name: &'static str, kind: Kind, shape: Shape, value: fn(&R) -> Value<'_>) -> Column<R> {
    Column { name, kind, shape, value }
}

/// The bytes as text.
fn text(bytes: &[u8]) -> Value<'_> {
    Value::Text(shown(bytes))
}

fn text_if_any(bytes: Option<&[u8]>) -> Value<'_> {
    bytes.map_or(Value::Null, text)
}

/// The bytes, if the text does not have them.
fn bytes(bytes: Option<&[u8]>) -> Value<'_> {
    match bytes {
        Some(bytes) if std::str::from_utf8(bytes).is_err() => Value::Bytes(bytes.into()),
        _ => Value::Null,
    }
}

fn texts(words: &[Vec<u8>]) -> Value<'_> {
    Value::List(words.iter().map(|word| text(word)).collect())
}

/// The bytes of all words, if the text of one does not have them.
fn words_bytes(words: &[Vec<u8>]) -> Value<'_> {
    if words.iter().all(|word| std::str::from_utf8(word).is_ok()) {
        return Value::Null;
    }
    Value::List(words.iter().map(|word| Value::Bytes(word.into())).collect())
}

fn time<'r>(time: Timestamp) -> Value<'r> {
    Value::Integer(time.as_microsecond())
}

fn recordings<'s>() -> Vec<Column<RecordingRow<'s>>> {
    use Kind::*;
    use Shape::*;
    vec![
        column(RECORDING, Text, One, |row| (&row.header.id).into()),
        column("name", Text, OneOrNull, |row| row.header.name.as_ref().into()),
        column("session", Text, OneOrNull, |row| row.header.session.as_ref().into()),
        column("tool_version", Text, One, |row| (&row.header.tool.version).into()),
        column("machine", Text, One, |row| (&row.header.host.machine).into()),
        column("arch", Text, One, |row| (&row.header.host.arch).into()),
        column("kernel", Text, One, |row| (&row.header.host.kernel).into()),
        column("uid", Integer, One, |row| row.header.uid.into()),
        column("gid", Integer, One, |row| row.header.gid.into()),
        column("command", Text, List, |row| texts(&row.header.command)),
        column("command_bytes", Bytes, ListOrNull, |row| words_bytes(&row.header.command)),
        column("start_cwd", Text, One, |row| text(&row.header.start_cwd)),
        column("start_cwd_bytes", Bytes, OneOrNull, |row| bytes(Some(&row.header.start_cwd))),
        column("working_tree", Text, OneOrNull, |row| text_if_any(row.header.working_tree.as_deref())),
        column("working_tree_bytes", Bytes, OneOrNull, |row| bytes(row.header.working_tree.as_deref())),
        column("git_head", Text, OneOrNull, |row| row.repository.and_then(|git| git.head.as_ref()).into()),
        column("git_branch", Text, OneOrNull, |row| {
            row.repository.and_then(|git| git.branch.as_ref()).into()
        }),
        column("git_dirty", Boolean, OneOrNull, |row| row.repository.map(|git| git.dirty).into()),
        column("started_at", Time, One, |row| time(row.started_at)),
        column("finished_at", Time, One, |row| time(row.finished_at)),
        column("exit_status", Integer, One, |row| row.header.exit_status.into()),
        column("exit_signal", Text, OneOrNull, |row| row.header.exit_signal.as_ref().into()),
        column("timed_out", Boolean, One, |row| row.header.timed_out.into()),
        column("keep", Text, One, |row| row.header.keep.name().into()),
        column("killed", Boolean, One, |row| row.header.killed.into()),
        column("recovered", Boolean, One, |row| row.header.recovered.into()),
        column("complete", Boolean, One, |row| row.header.complete.into()),
        column("gaps", Text, List, |row| {
            let gaps = row.header.warnings.iter().filter(|warning| warning.lost);
            Value::List(gaps.map(|gap| text(gap.detail.as_bytes())).collect())
        }),
        column("refused_calls", Integer, One, |row| row.header.refused_calls().into()),
    ]
}

/// The columns of one of the two states.
macro_rules! states {
    ($side:literal, $of:path) => {
        [
            column(concat!($side, "_type"), Text, OneOrNull, |row| row.file_type($of).into()),
            column(concat!($side, "_digest"), Text, OneOrNull, |row| row.digest($of)),
            column(concat!($side, "_size"), Integer, OneOrNull, |row| {
                row.present($of).map(|at| at.size).into()
            }),
            column(concat!($side, "_mode"), Integer, OneOrNull, |row| {
                row.present($of).map(|at| at.mode).into()
            }),
            column(concat!($side, "_uid"), Integer, OneOrNull, |row| {
                row.present($of).map(|at| at.uid).into()
            }),
            column(concat!($side, "_gid"), Integer, OneOrNull, |row| {
                row.present($of).map(|at| at.gid).into()
            }),
            column(concat!($side, "_mtime"), Time, OneOrNull, |row| row.present($of).and_then(mtime).into()),
            column(concat!($side, "_target"), Text, OneOrNull, |row| row.target($of)),
            column(concat!($side, "_target_bytes"), Bytes, OneOrNull, |row| row.target_bytes($of)),
            column(concat!($side, "_omitted"), Text, OneOrNull, |row| row.omitted($of)),
        ]
    };
}

fn files<'s>() -> Vec<Column<FileRow<'s>>> {
    use Kind::*;
    use Shape::*;
    let path: Vec<Column<FileRow<'s>>> = vec![
        column(RECORDING, Text, One, |row| row.recording.into()),
        column("path", Text, One, |row| text(&row.record.path)),
        column("path_bytes", Bytes, OneOrNull, |row| bytes(Some(&row.record.path))),
        column("effect", Text, OneOrNull, |row| effect(PathEffect::of(row.record)).into()),
        column("op_read", Boolean, One, |row| row.does(Operation::Read)),
        column("op_write", Boolean, One, |row| row.does(Operation::Write)),
        column("op_existence", Boolean, One, |row| row.does(Operation::Existence)),
        column("op_directory", Boolean, One, |row| row.does(Operation::Directory)),
        column("op_delete", Boolean, One, |row| row.does(Operation::Delete)),
        column("op_execute", Boolean, One, |row| row.does(Operation::Execute)),
        column("op_metadata", Boolean, One, |row| row.does(Operation::Metadata)),
        column("changed_by", Integer, OneOrNull, |row| row.changer().map(|used| used.process).into()),
        column("changed_by_exe", Text, OneOrNull, |row| text_if_any(row.changer().and_then(|used| used.exe))),
        column("process_count", Integer, One, |row| {
            let listed = row.record.processes.len() as u64;
            row.record.process_count.map_or(listed, u64::from).into()
        }),
        column("uses.process", Integer, List, |row| row.each_use(|used| used.process.into())),
        column("uses.exe", Text, ListOfNulls, |row| row.each_use(|used| text_if_any(used.exe))),
        column("uses.operations", Text, ListOfNulls, |row| {
            row.each_use(|used| used.operations.map(words).into())
        }),
        column("inherited", Boolean, One, |row| row.record.inherited.into()),
        column("git_state", Boolean, One, |row| row.record.is_git_state.into()),
        column("renamed_from", Text, OneOrNull, |row| text_if_any(row.record.renamed_from.as_deref())),
        column("renamed_from_bytes", Bytes, OneOrNull, |row| bytes(row.record.renamed_from.as_deref())),
        column("renamed_to", Text, OneOrNull, |row| text_if_any(row.record.renamed_to.as_deref())),
        column("renamed_to_bytes", Bytes, OneOrNull, |row| bytes(row.record.renamed_to.as_deref())),
    ];
    let git: Vec<Column<FileRow<'s>>> = vec![
        column("git_root", Text, OneOrNull, |row| text_if_any(row.git().map(|git| git.root.as_slice()))),
        column("git_relative_path", Text, OneOrNull, |row| {
            text_if_any(row.git().map(|git| git.relative_path.as_slice()))
        }),
        column("git_tracked", Boolean, OneOrNull, |row| row.git().map(|git| git.tracked).into()),
        column("git_dirty", Boolean, OneOrNull, |row| row.git().map(|git| git.dirty).into()),
        column("git_ignored", Boolean, OneOrNull, |row| row.git().map(|git| git.ignored).into()),
    ];
    let [before, after]: [[Column<FileRow<'s>>; 10]; 2] =
        [states!("before", Side::Before), states!("after", Side::After)];
    path.into_iter().chain(before).chain(after).chain(git).collect()
}

fn effect(effect: PathEffect) -> Option<&'static str> {
    Some(match effect {
        PathEffect::Changed => "changed",
        PathEffect::Created => "created",
        PathEffect::Deleted => "deleted",
        PathEffect::MountPoint => "mount_point",
        PathEffect::Temporary => "temporary",
        PathEffect::Unaltered => "unaltered",
        PathEffect::None => return None,
    })
}

/// The names of the operations, as the manifest has them, in one text.
fn words<'r>(operations: Operations) -> Value<'r> {
    let words: Vec<&str> = operations.iter().map(Operation::name).collect();
    Value::Text(words.join(",").into())
}

fn mtime(present: &Present) -> Option<i64> {
    present.mtime.checked_mul(1_000_000)?.checked_add(i64::from(present.mtime_nsec / 1000))
}

impl FileRow<'_> {
    fn does(&self, operation: Operation) -> Value<'_> {
        self.record.operations.contains(operation).into()
    }

    /// The first process that changed the path.
    fn changer(&self) -> Option<&Use<'_>> {
        let changes = |used: &&Use| {
            used.operations.is_some_and(|operations| operations.intersects(Operations::CHANGES))
        };
        self.uses.iter().find(changes)
    }

    fn each_use<'r>(&'r self, value: impl Fn(&'r Use<'r>) -> Value<'r>) -> Value<'r> {
        Value::List(self.uses.iter().map(value).collect())
    }

    fn present(&self, side: Side) -> Option<&Present> {
        state(self.record, side).present()
    }

    /// What was there, `none` if nothing was; none if that is unknown.
    fn file_type(&self, side: Side) -> Option<&'static str> {
        match state(self.record, side) {
            State::Present(present) => Some(present.file_type.name()),
            State::Absent { .. } => Some("none"),
            State::NotKept => None,
        }
    }

    fn digest(&self, side: Side) -> Value<'_> {
        content_id(self.record, side).map(|id| Cow::from(id.to_string())).into()
    }

    fn omitted(&self, side: Side) -> Value<'_> {
        self.present(side).and_then(|present| present.blob_omitted).map(|why| why.name()).into()
    }

    fn target_of(&self, side: Side) -> Option<&[u8]> {
        self.present(side)?.target.as_deref()
    }

    fn target(&self, side: Side) -> Value<'_> {
        text_if_any(self.target_of(side))
    }

    fn target_bytes(&self, side: Side) -> Value<'_> {
        bytes(self.target_of(side))
    }

    fn git(&self) -> Option<&GitStatus> {
        self.record.git.as_ref()
    }
}

fn processes<'s>() -> Vec<Column<ProcessRow<'s>>> {
    use Kind::*;
    use Shape::*;
    vec![
        column(RECORDING, Text, One, |row| row.recording.into()),
        column("process", Integer, One, |row| row.process.id.into()),
        column("parent", Integer, OneOrNull, |row| row.process.parent.into()),
        column("pid", Integer, One, |row| row.process.pid.into()),
        column("exe", Text, One, |row| text(&row.process.image.exe)),
        column("exe_bytes", Bytes, OneOrNull, |row| bytes(Some(&row.process.image.exe))),
        column("argv", Text, List, |row| texts(&row.process.image.argv)),
        column("argv_bytes", Bytes, ListOrNull, |row| words_bytes(&row.process.image.argv)),
        column("argv_truncated", Boolean, One, |row| row.process.image.argv_truncated.into()),
        column("execs", Text, List, |row| match row.process.execs.as_slice() {
            [] => Value::List(vec![text(&row.process.image.exe)]),
            execs => Value::List(execs.iter().map(|exec| text(&exec.exe)).collect()),
        }),
        column("cwd", Text, One, |row| text(&row.process.cwd)),
        column("cwd_bytes", Bytes, OneOrNull, |row| bytes(Some(&row.process.cwd))),
        column("started_at", Time, OneOrNull, |row| row.started_at.map_or(Value::Null, time)),
        column("ended_at", Time, OneOrNull, |row| row.ended_at.map_or(Value::Null, time)),
        column("exit_status", Integer, OneOrNull, |row| row.process.exit_status.into()),
    ]
}

fn network<'s>() -> Vec<Column<NetworkRow<'s>>> {
    use Kind::*;
    use Shape::*;
    vec![
        column(RECORDING, Text, One, |row| row.recording.into()),
        column("process", Integer, One, |row| row.used.process.into()),
        column("operation", Text, One, |row| row.used.operation.name().into()),
        column("family", Text, One, |row| row.used.address.family().into()),
        column("address", Text, OneOrNull, |row| {
            row.used.address.host_and_port().map(|(host, _)| Cow::from(host)).into()
        }),
        column("port", Integer, OneOrNull, |row| {
            row.used.address.host_and_port().map(|(_, port)| u32::from(port)).into()
        }),
        column("path", Text, OneOrNull, |row| text_if_any(row.path())),
        column("path_bytes", Bytes, OneOrNull, |row| bytes(row.path())),
        column("count", Integer, One, |row| row.used.count.into()),
        column("errno", Integer, OneOrNull, |row| row.used.errno.into()),
    ]
}

impl NetworkRow<'_> {
    /// That of AF_UNIX; none if the kernel chose the name.
    fn path(&self) -> Option<&[u8]> {
        match &self.used.address {
            NetworkAddress::Unix(path) => Some(path.as_slice()).filter(|path| !path.is_empty()),
            _ => None,
        }
    }
}
