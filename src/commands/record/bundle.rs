//! The end of a recording: writes its manifest, commits the snapshot and makes the report.
//!
//! Neighbours: `tracing.rs` calls it when the tree has ended, `report.rs` formats the report.

use std::io::BufWriter;
use std::sync::Arc;
use std::time::Duration;

use super::process_tree::ProcessTree;
use super::report::{self, RecordCounts};
use super::setup::Setup;
use crate::cli;
use crate::commands::exit::Exit;
use crate::observe::Recorder;
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::wire::write_manifest;
use crate::snapshot::{Header, Host, Keep, SnapshotKind, Tool, WarningKind, identity};
use crate::trace::wait_status::End;

/// What was written.
pub struct WrittenBundle {
    /// Whether the recording has no gap.
    pub complete: bool,
    /// Messages that are printed with any kind of report.
    pub notes: Vec<String>,
    /// The report that was asked for.
    pub report: String,
}

/// The times of the recording.
pub struct RecordingTimes {
    /// When the command started.
    pub started_at: jiff::Timestamp,
    /// When the last process ended.
    pub finished_at: jiff::Timestamp,
    /// The time between.
    pub elapsed: Duration,
}

/// What the manifest says that is known before the command is started.
pub fn first_header(setup: &Setup) -> Header {
    let now = jiff::Timestamp::now().to_string();
    Header {
        id: identity::random_id(),
        kind: SnapshotKind::Recording,
        name: setup.options.name.clone(),
        session: setup.options.session.clone(),
        tool: Tool::current(),
        host: Host::current(),
        command: setup.program.argv.iter().map(|argument| argument.to_bytes().to_vec()).collect(),
        exit_status: 0,
        exit_signal: None,
        timed_out: false,
        start_cwd: setup.start_cwd.clone(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        started_at: now.clone(),
        finished_at: now,
        keep: match setup.options.keep {
            cli::KeepLevel::All => Keep::All,
            cli::KeepLevel::Changes => Keep::Changes,
            cli::KeepLevel::Undo => Keep::Undo,
        },
        existence_only: None,
        killed: false,
        running: false,
        recovered: false,
        complete: true,
        warnings: Vec::new(),
        suppressed: Vec::new(),
        git_repositories: Vec::new(),
        processes: Vec::new(),
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one manifest")]
/// Writes the snapshot of the recording that has ended.
pub fn write(
    setup: &Setup,
    first: Header,
    recorder: &Recorder,
    tree: &ProcessTree,
    directory: Arc<SnapshotDir>,
    manifest: std::fs::File,
    end: End,
    timed_out: bool,
    times: &RecordingTimes,
) -> Result<WrittenBundle, String> {
    if timed_out {
        recorder.note(WarningKind::Timeout, "the time limit was reached, and every process was ended");
    }
    if let Some(survivors) = tree.survivors_ended() {
        recorder.note(WarningKind::Survivors, &survivors);
    }
    let recorded = recorder
        .finish()
        .map_err(|bug| format!("the recorder failed ({bug}), so there is no snapshot; the command ran on"))?;
    let named = directory.real_path().display().to_string();
    let blobs = recorded.blobs.map_err(|error| format!("write {named}/blobs.parquet: {error}"))?;
    let complete = !recorded.warnings.iter().any(|warning| warning.lost);
    let header = Header {
        exit_status: if timed_out { Exit::TimedOut.status() } else { end.exit_status() },
        exit_signal: match end {
            End::Killed { signal, .. } => Some(signal_name(signal)),
            End::Exited(_) => None,
        },
        timed_out,
        started_at: times.started_at.to_string(),
        finished_at: times.finished_at.to_string(),
        keep: recorded.keep,
        existence_only: recorded.existence_only,
        complete,
        warnings: recorded.warnings,
        suppressed: recorded.suppressed,
        git_repositories: recorded.repositories,
        processes: recorded.processes,
        ..first
    };
    let mut facts = RecordCounts::default();
    let files = recorded.files.iter().inspect(|file| facts.count(file));
    let mut out = BufWriter::with_capacity(1 << 16, &manifest);
    write_manifest(&mut out, &header, files)
        .and_then(|()| std::io::Write::flush(&mut out))
        .map_err(|error| format!("write {named}/manifest.json: {error}"))?;
    drop(out);
    let directory = Arc::into_inner(directory).ok_or("the snapshot's directory is still in use")?;
    let path = directory.commit(blobs, manifest, setup.options.sync).map_err(|error| error.to_string())?;
    let path = path.display().to_string();
    let mut notes = Vec::new();
    if path != named {
        notes.push(format!("the command moved the snapshot's directory: it is {path} now"));
    }
    // The summary has them already.
    if setup.options.strict && setup.report != cli::ReportFormat::Summary {
        notes.extend(report::gaps(&header));
    }
    let report = report::render(setup.report, &header, &facts, times.elapsed, &path);
    Ok(WrittenBundle { complete, notes, report })
}

/// The name of a signal; real-time ones count from SIGRTMIN.
fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) if signal >= libc::SIGRTMIN() => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
        Err(_) => format!("signal {signal}"),
    }
}
