//! `attest`: writes a recording as an in-toto Statement with the runtime-trace predicate, ready to be signed.
//!
//! Shapes: <https://in-toto.io/Statement/v1> and <https://in-toto.io/attestation/runtime-trace/v0.2>. What these leave
//! to the monitor is as in the manifest, in camelCase; what rules refused, in the manifest's own words.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;

use super::config;
use super::exit::{Exit, UsageError, VerbResult};
use super::level::require_inputs;
use super::open::open_or_last;
use super::out::Console;
use super::paths::{self, counted};
use crate::cli::Attest;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{ContentId, content_id, state};
use crate::snapshot::digest::digest_file;
use crate::snapshot::layout::MANIFEST;
use crate::snapshot::secrets::{CommandLines, Redacted, redacted};
use crate::snapshot::wire::shown;
use crate::snapshot::{
    Digest, Enforcement, Exec, FileRecord, Header, NetworkAddress, NetworkUse, Operations, RecordedProcess,
    RefusedUse, Snapshot, State, printable,
};

/// Runs `attest`.
pub fn run(args: &Attest, console: &mut Console) -> VerbResult {
    let secrets = config::secrets().map_err(UsageError)?;
    let snapshot = open_or_last(args.snap.as_deref(), &args.access, console)?;
    require_inputs(&snapshot, "attest")?;
    let Redacted { snapshot, .. } = redacted(snapshot, &secrets, CommandLines::Masked);
    let header = snapshot.header();
    let gaps: Vec<_> = header.warnings.iter().filter(|warning| warning.lost).collect();
    let is_complete = header.complete && !header.running;
    if !is_complete && !args.allow_incomplete {
        let why = match gaps.first() {
            Some(gap) => {
                format!("{} ({})", counted(gaps.len(), "gap", "gaps"), printable(gap.detail.as_bytes()))
            }
            None => "its processes live on".to_owned(),
        };
        console.say(format_args!(
            "the recording is incomplete: {why}; --allow-incomplete attests what there is"
        ));
        return Ok(Exit::Finding);
    }
    let statement = Statement {
        r#type: "https://in-toto.io/Statement/v1",
        subject: subjects(&snapshot, &args.subject)?,
        predicate_type: "https://in-toto.io/attestation/runtime-trace/v0.2",
        predicate: Predicate {
            monitor: Monitor {
                r#type: format!("pkg:cargo/{}@{}", header.tool.name, header.tool.version),
                trace_policy: TracePolicy {
                    keep: header.keep.name(),
                    complete: is_complete,
                    gaps: gaps.iter().map(|gap| shown(gap.detail.as_bytes())).collect(),
                    left_out: header.suppressed.iter().map(|left_out| left_out.rule.as_str()).collect(),
                    enforcement: header.enforcement.as_ref(),
                },
            },
            monitored_process: MonitoredProcess {
                host_id: args
                    .host_id
                    .clone()
                    .unwrap_or_else(|| format!("urn:machine-id:{}", header.host.machine)),
                r#type: args.build_type.as_deref().unwrap_or("urn:agent-snapshot:command"),
                event: args.event.as_deref().unwrap_or(&header.id),
            },
            monitor_log: MonitorLog {
                process: header.processes.iter().map(Process::new).collect(),
                network: network(header),
                refused: &header.refused,
                file_access: snapshot.files().iter().flat_map(accesses).collect(),
            },
            metadata: Metadata {
                build_started_on: &header.started_at,
                build_finished_on: &header.finished_at,
            },
        },
    };
    console.json(&statement)?;
    Ok(Exit::Success)
}

/// The files that the attestation is about: the named ones, or else all that the command changed and left; the
/// manifest, if it left none.
fn subjects<'s>(snapshot: &'s Snapshot, names: &[OsString]) -> anyhow::Result<Vec<ResourceDescriptor<'s>>> {
    let left = |record: &'s FileRecord| {
        let digest = content_id(record, Side::After).map(|id| digest_set(&id))?;
        Some(ResourceDescriptor { name: shown(&record.path), digest: Some(digest), annotations: None })
    };
    if !names.is_empty() {
        let named = names.iter().map(|name| {
            let record = paths::find(snapshot, name)?.ok();
            record.and_then(left).ok_or_else(|| {
                let name = printable(name.as_bytes());
                UsageError(format!("--subject {name}: the recording has no digest of such a file at its end"))
                    .into()
            })
        });
        return named.collect();
    }
    let is_changed = |record: &&FileRecord| {
        let changes = record.operations.intersects(Operations::CHANGES);
        changes && !record.is_git_state && !record.mount_point && !record.is_inherited_alone()
    };
    let changed: Vec<_> = snapshot.files().iter().filter(is_changed).filter_map(left).collect();
    if !changed.is_empty() {
        return Ok(changed);
    }
    let path = snapshot.path().join(MANIFEST);
    let file = std::fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let (digest, _) = digest_file(&file).with_context(|| format!("read {}", path.display()))?;
    let digest = Some(digest_set(&ContentId::Digest(digest)));
    Ok(vec![ResourceDescriptor { name: MANIFEST.into(), digest, annotations: None }])
}

/// The names of in-toto's DigestSet.
fn digest_set(id: &ContentId) -> BTreeMap<&'static str, String> {
    let (name, value) = match id {
        ContentId::Digest(Digest::Sha256(bytes)) => ("sha256", faster_hex::hex_string(bytes)),
        ContentId::Digest(Digest::Sparse(bytes)) => ("sparse-sha256", faster_hex::hex_string(bytes)),
        ContentId::Git(oid) => ("gitBlob", oid.clone()),
    };
    BTreeMap::from([(name, value)])
}

/// The states of a path: the one before, and the one after if the command changed it.
fn accesses(record: &FileRecord) -> Vec<ResourceDescriptor<'_>> {
    let is_changed = record.operations.intersects(Operations::CHANGES);
    let sides = [Some(Side::Before), is_changed.then_some(Side::After)];
    let access = |side| {
        let digest = content_id(record, side).map(|id| digest_set(&id));
        let annotations = AccessAnnotations {
            state: side.name(),
            r#type: match state(record, side) {
                State::Present(present) => present.file_type.name(),
                State::Absent { .. } | State::NotKept => "none",
            },
            operations: record.operations.iter().map(|operation| operation.name()).collect(),
            processes: &record.processes,
            path_bytes: std::str::from_utf8(&record.path).is_err().then(|| BASE64.encode(&record.path)),
        };
        ResourceDescriptor { name: shown(&record.path), digest, annotations: Some(annotations) }
    };
    sides.into_iter().flatten().map(access).collect()
}

fn network(header: &Header) -> Vec<Connection<'_>> {
    let processes: HashMap<u32, &RecordedProcess> =
        header.processes.iter().map(|process| (process.id, process)).collect();
    let connection = |used: &NetworkUse| {
        let (ip, port) = used.address.host_and_port().unzip();
        let path = match &used.address {
            NetworkAddress::Unix(path) => Some(shown(path).into_owned()),
            _ => None,
        };
        let process = processes.get(&used.process);
        Connection {
            ip,
            // 0 where the kernel chooses.
            port: port.filter(|port| *port > 0),
            family: used.address.family().to_owned(),
            path,
            operation: used.operation.name(),
            count: used.count,
            errno: used.errno,
            invoking_process: InvokingProcess {
                id: used.process,
                pid: process.map(|process| process.pid),
                exe: process.map(|process| shown(&process.image.exe)),
            },
        }
    };
    header.network.iter().map(connection).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Statement<'s> {
    #[serde(rename = "_type")]
    r#type: &'static str,
    subject: Vec<ResourceDescriptor<'s>>,
    predicate_type: &'static str,
    predicate: Predicate<'s>,
}

#[derive(Serialize)]
struct ResourceDescriptor<'s> {
    name: Cow<'s, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<BTreeMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<AccessAnnotations<'s>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessAnnotations<'s> {
    state: &'static str,
    r#type: &'static str,
    operations: Vec<&'static str>,
    processes: &'s [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Predicate<'s> {
    monitor: Monitor<'s>,
    monitored_process: MonitoredProcess<'s>,
    monitor_log: MonitorLog<'s>,
    metadata: Metadata<'s>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Monitor<'s> {
    r#type: String,
    trace_policy: TracePolicy<'s>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TracePolicy<'s> {
    keep: &'static str,
    complete: bool,
    gaps: Vec<Cow<'s, str>>,
    left_out: Vec<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enforcement: Option<&'s Enforcement>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MonitoredProcess<'s> {
    #[serde(rename = "hostID")]
    host_id: String,
    r#type: &'s str,
    event: &'s str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MonitorLog<'s> {
    process: Vec<Process<'s>>,
    network: Vec<Connection<'s>>,
    #[serde(skip_serializing_if = "<[RefusedUse]>::is_empty")]
    refused: &'s [RefusedUse],
    file_access: Vec<ResourceDescriptor<'s>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'s> {
    build_started_on: &'s str,
    build_finished_on: &'s str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Process<'s> {
    id: u32,
    pid: u32,
    parent: Option<u32>,
    cwd: Cow<'s, str>,
    exit_status: Option<i32>,
    /// The programs that it executed, in order.
    execs: Vec<Program<'s>>,
}

impl<'s> Process<'s> {
    fn new(process: &'s RecordedProcess) -> Process<'s> {
        let execs = match process.execs.as_slice() {
            [] => vec![Program::new(&process.image)],
            execs => execs.iter().map(Program::new).collect(),
        };
        let RecordedProcess { id, pid, parent, exit_status, .. } = *process;
        Process { id, pid, parent, cwd: shown(&process.cwd), exit_status, execs }
    }
}

#[derive(Serialize)]
struct Program<'s> {
    exe: Cow<'s, str>,
    argv: Vec<String>,
}

impl<'s> Program<'s> {
    fn new(exec: &'s Exec) -> Program<'s> {
        Program {
            exe: shown(&exec.exe),
            argv: exec.argv.iter().map(|word| shown(word).into_owned()).collect(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connection<'s> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    family: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    operation: &'static str,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    invoking_process: InvokingProcess<'s>,
}

#[derive(Serialize)]
struct InvokingProcess<'s> {
    id: u32,
    pid: Option<u32>,
    exe: Option<Cow<'s, str>>,
}
