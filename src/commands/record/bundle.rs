//! The end of a recording: writes its manifest, commits the snapshot and makes the report.
//!
//! Neighbours: `tracing.rs` calls it when the process tree has ended, `process_tree.rs` when the command has and others
//! of its processes live on, `report.rs` formats the report.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::channel::{PolicyOutcome, RecordingOutcome};
use super::recalling::RecallSetup;
use super::report::{self, Facts, RecordCounts};
use super::setup::Setup;
use super::steps;
use crate::cli;
use crate::commands::check::{judged, keys_were_refused};
use crate::commands::exit::Exit;
use crate::commands::shell::{inner_line, step_line, wanted_line};
use crate::commands::show::refused_sentence;
use crate::git::git_directory_elsewhere;
use crate::library::index::PathHashes;
use crate::library::log::{Changes, working_tree};
use crate::library::{Entry, ID_LENGTH, Library};
use crate::observe::Recorder;
use crate::observe::finish::Recorded;
use crate::policy::{CompiledPolicy, PolicyVerdict, may_concern};
use crate::recall::refusal::findings;
use crate::snapshot::change::PathEffect;
use crate::snapshot::layout::{Commit, SnapshotDir};
use crate::snapshot::secrets::{Secrets, redact};
use crate::snapshot::wire::write_manifest;
use crate::snapshot::{
    Error, FileRecord, FileType, Header, Recallable, Snapshot, SnapshotKind, State, WarningKind,
};
use crate::sync::lock;
use crate::trace::wait_status::End;

/// How the process tree ended, or for a first snapshot, the command.
#[derive(Debug, Clone, Copy)]
pub struct RecordingEnd {
    /// How the command ended.
    pub end: End,
    /// Whether `--timeout` ended it.
    pub timed_out: bool,
    /// Whether the first refusal of a forbidden call ended it.
    pub at_refusal: bool,
    /// Whether the front was killed.
    pub killed: bool,
    /// When this was found.
    pub at: jiff::Timestamp,
}

/// Writes the snapshots of one recording: one at its end, and a first one if it goes on after the command.
pub struct BundleWriter {
    /// What the manifest says that is known before the command is started.
    header: Header,
    directory: Arc<SnapshotDir>,
    /// The library that the directory is in.
    library: Option<Library>,
    sync: bool,
    /// What matters if the recording is to be recalled.
    recall: Option<RecallSetup>,
    /// The files whose bytes are withheld; none if nothing is.
    secrets: Option<Secrets>,
    /// Where the first snapshot is, if there is one.
    first: Mutex<Option<SnapshotDir>>,
    /// The rules by which it is judged at its end.
    policy: Option<CompiledPolicy>,
    /// Of a session: the paths that sandboxes have made only to mount something there.
    mount_points: Option<Arc<MountPoints>>,
}

/// Paths that sandboxes have made only to mount something there, and that whoever uses those may remove.
#[derive(Debug, Default)]
pub struct MountPoints(Mutex<HashSet<Vec<u8>>>);

impl MountPoints {
    /// A record, as if a mount point of an earlier step had never been there that this one has removed.
    fn forgotten(&self, mut file: FileRecord) -> FileRecord {
        let is_empty = |state: &State| match state {
            State::Present(there) => there.file_type == FileType::Directory || there.size == 0,
            _ => false,
        };
        if matches!(PathEffect::of(&file), PathEffect::Deleted | PathEffect::Changed)
            && is_empty(&file.before)
            // Lock files of Git that a step has left are not in its records.
            && (file.is_git_state && file.path.ends_with(b".lock") || lock(&self.0).contains(&file.path))
        {
            file.before = State::Absent { tombstone: false };
        }
        file
    }
}

/// What the manifest says that is known before the command is started.
pub fn first_header(setup: &Setup) -> Header {
    let mut command: Vec<_> =
        setup.program.argv.iter().map(|argument| argument.to_bytes().to_vec()).collect();
    let mut line = step_line(&command).map(|line| vec![b"-c".to_vec(), line]);
    let redacted = setup.secrets.is_some() && redact(&mut command) | line.as_mut().is_some_and(redact);
    let title = line.and_then(|mut words| words.pop());
    let header = Header::new(setup.id.clone(), SnapshotKind::Recording, command, setup.start_cwd.clone());
    Header { name: setup.options.name.clone(), title, redacted, ..with_surroundings(setup, header) }
}

/// The same for a step of a session.
pub fn step_header(
    setup: &Setup,
    id: String,
    step: u32,
    kind: SnapshotKind,
    mut command: Vec<Vec<u8>>,
    cwd: Vec<u8>,
) -> Header {
    let redacted = setup.secrets.is_some() && redact(&mut command);
    Header { step: Some(step), redacted, ..with_surroundings(setup, Header::new(id, kind, command, cwd)) }
}

fn with_surroundings(setup: &Setup, header: Header) -> Header {
    let working_tree = working_tree(&header.start_cwd);
    Header {
        session: setup.options.session.clone(),
        keep: setup.keep,
        git_directory: working_tree.as_deref().and_then(git_directory_elsewhere),
        working_tree,
        home: setup.home.clone(),
        temporary_directory: setup.temporary_directory.clone(),
        enforcement: setup.enforced.as_ref().map(|enforced| enforced.manifest.clone()),
        ..header
    }
}

impl BundleWriter {
    /// A bundle in `directory`, of which nothing is written yet.
    pub fn new(setup: &Setup, header: Header, directory: Arc<SnapshotDir>) -> BundleWriter {
        let library = setup.library.clone();
        let (sync, recall) = (setup.options.sync, setup.recall.clone());
        let secrets = setup.secrets.clone();
        BundleWriter {
            header,
            directory,
            library,
            sync,
            recall,
            secrets,
            policy: None,
            first: Mutex::default(),
            mount_points: None,
        }
    }

    /// The same, judged by these rules at its end.
    pub fn with_policy(self, policy: Option<CompiledPolicy>) -> BundleWriter {
        BundleWriter { policy, ..self }
    }

    /// The same for a step of a session, whose steps share what is known of mount points.
    pub fn with_mount_points(self, mount_points: Arc<MountPoints>) -> BundleWriter {
        BundleWriter { mount_points: Some(mount_points), ..self }
    }

    fn adjusted(&self, file: FileRecord) -> FileRecord {
        match &self.mount_points {
            Some(mount_points) => mount_points.forgotten(file),
            None => file,
        }
    }

    /// Writes a first snapshot: the command has ended, and other processes of it live on.
    ///
    /// # Errors
    /// Why there is no first snapshot; the recording goes on all the same.
    pub fn write_first(&self, recorder: &Recorder, ending: RecordingEnd) -> Result<(), String> {
        if lock(&self.first).is_some() {
            return Ok(());
        }
        let file = || self.directory.unnamed_file().map_err(|error| self.failed("write", &error));
        let (blobs, manifest) = (file()?, file()?);
        recorder.finish_first(blobs, |recorded| {
            let committed =
                self.commit(recorded, self.header.clone(), manifest, Commit::First, None, ending)?;
            *lock(&self.first) = Some(committed.directory);
            Ok(())
        })
    }

    /// Writes the snapshot of the recording that has ended, in place of the first one if there is one.
    pub fn write(
        &self,
        setup: &Setup,
        recorder: &Recorder,
        manifest: File,
        ending: RecordingEnd,
        elapsed: Duration,
    ) -> Result<RecordingOutcome, String> {
        if ending.timed_out {
            recorder.note(WarningKind::Timeout, "the time limit was reached, and every process was ended");
        }
        let Committed { directory, header, counts, not_listed, concerns_rules } =
            recorder.finish(|recorded| {
                let first = lock(&self.first).take();
                let commit = if first.is_some() { Commit::Last } else { Commit::Only };
                self.commit(recorded, self.header.clone(), manifest, commit, first, ending)
            })?;
        let path = match &self.library {
            Some(_) => header.id[..ID_LENGTH].to_owned(),
            None => directory.real_path().display().to_string(),
        };
        let mut notes: Vec<String> = not_listed.into_iter().collect();
        if directory.real_path() != self.directory.real_path() {
            notes.push(format!("the command moved the snapshot's directory: it is {path} now"));
        }
        // The summary has them already.
        if setup.options.strict && setup.report != cli::ReportFormat::Summary {
            notes.extend(report::gaps(&header));
        }
        let judged = self.policy.as_ref().map(|policy| {
            let path = directory.real_path();
            let snapshot = match concerns_rules {
                true => Snapshot::open(path),
                false => Snapshot::without_records(path, header.clone()),
            };
            outcome_of(policy, snapshot)
        });
        let facts = Facts { counts: &counts, elapsed, verdict: judged.as_ref().map(|(_, verdict)| *verdict) };
        let report = report::render(setup.report, &header, &facts, &path, directory.real_path());
        let mut policy = judged.map(|(outcome, _)| Box::new(outcome));
        if let Some(policy) = &mut policy {
            policy.findings.extend(refused_sentence(&header));
        }
        let RecordingEnd { timed_out, at_refusal, .. } = ending;
        let complete = header.complete;
        Ok(RecordingOutcome { error: None, timed_out, at_refusal, complete, notes, report, policy })
    }

    /// Writes the snapshot of a step of a session, if it is a job, of a shell with these arguments, and counts the calls that
    /// rules refused; none if it is an edit that changed nothing, of which none is written.
    pub fn write_step(
        &self,
        recorder: &Recorder,
        shell: Option<&[Vec<u8>]>,
        ending: RecordingEnd,
    ) -> Result<Option<u64>, String> {
        let manifest = self.directory.unnamed_file().map_err(|error| self.failed("write", &error))?;
        let committed = recorder.finish(|recorded| {
            let header = self.header.clone();
            let named = match (header.kind, shell) {
                (SnapshotKind::Edit, _) => {
                    let files = recorded.files.iter().map(|file| self.adjusted(file));
                    let title = steps::edit_title(&header.start_cwd, files);
                    // Something may have been missed.
                    let has_gap =
                        recorded.warnings.iter().any(|warning| warning.lost) || !recorded.refused.is_empty();
                    match title.or_else(|| has_gap.then(|| b"edit".to_vec())) {
                        Some(title) => Header { title: Some(title), ..header },
                        None => return Ok(None),
                    }
                }
                (_, Some(shell)) => steps::named_by_processes(header, &recorded.processes, shell),
                (_, None) => Header { title: wanted_line(&header.command, &recorded.processes), ..header },
            };
            self.commit(recorded, named, manifest, Commit::Only, None, ending).map(Some)
        })?;
        match committed {
            Some(Committed { not_listed: Some(why), .. }) => Err(why),
            committed => Ok(committed.map(|committed| committed.header.refused_calls())),
        }
    }

    fn commit(
        &self,
        recorded: Recorded<'_>,
        named: Header,
        manifest: File,
        commit: Commit,
        place: Option<SnapshotDir>,
        RecordingEnd { end, timed_out, at_refusal, killed, at }: RecordingEnd,
    ) -> Result<Committed, String> {
        let blobs = recorded.blobs.map_err(|error| self.failed("write blobs.parquet in", &error))?;
        let mut header = Header {
            exit_status: match () {
                () if timed_out => Exit::TimedOut.status(),
                () if at_refusal => Exit::Failure.status(),
                () => end.exit_status(),
            },
            exit_signal: match end {
                End::Killed { signal, .. } => Some(signal_name(signal)),
                End::Exited(_) => None,
            },
            timed_out,
            finished_at: at.to_string(),
            existence_only: recorded.existence_only,
            killed,
            running: commit == Commit::First,
            complete: !recorded.warnings.iter().any(|warning| warning.lost),
            warnings: recorded.warnings,
            suppressed: recorded.suppressed,
            private_mounts: recorded.private_mounts,
            unseen: recorded.unseen,
            git_repositories: recorded.repositories,
            network: recorded.network,
            refused: recorded.refused,
            title: named.title.or_else(|| inner_line(&named.command, &recorded.processes)),
            processes: recorded.processes,
            ..named
        };
        header.recall = self.recall.as_ref().map(|recall| {
            let (files, allowed) = (recorded.files.iter(), &recall.allowed);
            let found = findings(&header, files, &recorded.unrepeatable, allowed, self.secrets.as_ref());
            let locked_files = recorded.unrepeatable.locked_files.iter().cloned().collect();
            Recallable { refused: found.refused, kernel_files: found.kernel_files, locked_files }
        });
        let (mut counts, mut changes) = (RecordCounts::default(), Changes::default());
        let keys_were_refused = keys_were_refused(&header);
        let mut concerns_rules = false;
        let mut paths = self.library.as_ref().map(|_| PathHashes::default());
        let files = recorded.files.iter().map(|file| self.adjusted(file)).inspect(|file| {
            let effect = PathEffect::of(file);
            match (&self.mount_points, effect) {
                (Some(mount_points), PathEffect::MountPoint) => {
                    lock(&mount_points.0).insert(file.path.clone());
                }
                (Some(mount_points), PathEffect::Created | PathEffect::Changed) => {
                    lock(&mount_points.0).remove(&file.path);
                }
                _ => {}
            }
            if let Some(policy) = self.policy.as_ref().filter(|_| !concerns_rules) {
                concerns_rules = may_concern(policy, file, keys_were_refused);
            }
            counts.count(file, effect);
            changes.add(file, effect);
            paths.iter_mut().for_each(|paths| paths.add(file, effect));
        });
        let mut out = BufWriter::with_capacity(1 << 16, &manifest);
        write_manifest(&mut out, &header, files)
            .and_then(|()| std::io::Write::flush(&mut out))
            .map_err(|error| self.failed("write manifest.json in", &error))?;
        drop(out);
        let directory = match place {
            Some(place) => place,
            None => self.directory.try_clone().map_err(|error| self.failed("write", &error))?,
        };
        let directory =
            directory.commit(blobs, manifest, commit, self.sync).map_err(|error| error.to_string())?;
        // The snapshot is there, whatever becomes of its line: `log` finds it.
        let entry = Entry::new(&header, changes);
        let listed = self.library.as_ref().zip(paths);
        let listed = listed.map_or(Ok(()), |(library, paths)| library.append(&entry, &paths));
        let not_listed = listed.err().map(|error| error.to_string());
        // Whoever has waited for the end finds the line.
        if commit != Commit::First {
            directory.unlock();
        }
        Ok(Committed { directory, header, counts, not_listed, concerns_rules })
    }

    fn failed(&self, what: &str, error: &io::Error) -> String {
        format!("{what} {}: {error}", self.directory.real_path().display())
    }
}

/// What rules come to.
fn outcome_of(policy: &CompiledPolicy, snapshot: Result<Snapshot, Error>) -> (PolicyOutcome, PolicyVerdict) {
    let snapshot = match snapshot {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let failure = Some(format!("the rules were not judged: {error}"));
            return (PolicyOutcome { findings: Vec::new(), failure }, PolicyVerdict::Unknown);
        }
    };
    let (findings, verdict) = judged(&snapshot, policy);
    let failure = match verdict {
        PolicyVerdict::Pass => None,
        PolicyVerdict::Fail => Some("the command did what the rules forbid"),
        PolicyVerdict::Unknown => Some("not all is known that the rules are about"),
    };
    (PolicyOutcome { findings, failure: failure.map(str::to_owned) }, verdict)
}

/// A snapshot that was committed.
struct Committed {
    directory: SnapshotDir,
    header: Header,
    counts: RecordCounts,
    /// Why the library's log has no line of it.
    not_listed: Option<String>,
    /// Whether the rules may find anything because of a record.
    concerns_rules: bool,
}

/// The name of a signal; real-time ones count from SIGRTMIN.
fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) if signal >= libc::SIGRTMIN() => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
        Err(_) => format!("signal {signal}"),
    }
}
