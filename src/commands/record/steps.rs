//! A session: one process tree, and a recording in the library for each of its steps.
//!
//! `observe/session.rs` says where a step begins and ends; this starts and commits its recording, and says how it is
//! called. Neighbours: `tracing.rs` for what a session and a recording have in common, `bundle.rs` writes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signalfd::SignalFd;

use super::bundle::{BundleWriter, MountPoints, RecordingEnd, step_header};
use super::channel::{Channel, RecordingOutcome, ToFront};
use super::control::ControlThread;
use super::descriptors;
use super::held::{self, Duplicates};
use super::journal;
use super::process_tree::{ProcessTree, StepEvents, TreeEvents};
use super::pruning;
use super::report::Messages;
use super::setup::Setup;
use super::tracing::{exec_error, failed, follow, recorder_of};
use crate::agents::program::is_agent;
use crate::cli::ReportFormat;
use crate::commands::paths::counted;
use crate::commands::recover::{add_to_log, lock, not_recovered};
use crate::commands::shell::{Shell, shell_of};
use crate::commands::show::number_of_calls;
use crate::library::{ID_LENGTH, Library};
use crate::observe::losses::Losses;
use crate::observe::session::{Beginning, Launch, Session, Step, Steps};
use crate::observe::{Recorder, ServedDevices, ServedWatch};
use crate::snapshot::change::PathEffect;
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::recover::{self, Recovery};
use crate::snapshot::{FileRecord, Header, RecordedProcess, SnapshotKind, printable};
use crate::sync;
use crate::trace::launch::Launching;
use crate::trace::observer::Observer as _;
use crate::trace::sys::{self, Tid};
use crate::trace::wait_status::End;

/// How many messages are kept for the end: the terminal is the program's until then.
const MESSAGES: usize = 20;

/// What the part of a job is called in which a shell itself does the work.
const SUBSHELL: &[u8] = b"(...)";

/// How many paths the title of an edit names.
const NAMED: usize = 3;

/// Records a session; its steps are committed one by one.
pub fn record(
    mut setup: Setup,
    directory: SnapshotDir,
    channel: &Arc<Channel>,
    duplicates: Arc<Duplicates>,
    front: OwnedFd,
    launching: Launching,
    signals: SignalFd,
) -> Result<(), ToFront> {
    let command = launching.command;
    let library = setup.library.clone();
    let tree = Arc::new(ProcessTree::new(command, setup.options.survivors));
    let inherited = std::mem::take(&mut setup.inherited.descriptors);
    let setup = Arc::new(setup);
    let mut mounted = ServedWatch::begin();
    let state = Arc::new(SessionState {
        duplicates,
        served: mounted.now().clone(),
        next: Mutex::new(Next::Made(setup.id.clone(), directory)),
        begun: AtomicU32::new(setup.last_step),
        counts: Mutex::default(),
        mount_points: Arc::default(),
        setup: Arc::clone(&setup),
        tree: Arc::clone(&tree),
    });
    let events = TreeEvents::new(Arc::clone(&tree), Arc::clone(channel), front, None);
    let steps = Box::new(SessionSteps(Arc::clone(&state)));
    let session = Arc::new(Session::new(command, steps, Box::new(events), mounted));
    let control =
        ControlThread::new(Arc::clone(&tree), Arc::clone(channel), Box::new(|_| Ok(())), signals, None);
    let started = std::thread::Builder::new().name("control".into()).spawn(move || control.run());
    started.map_err(failed("prepare the session"))?;
    let timed = Arc::clone(&session);
    let started = std::thread::Builder::new().name("steps".into()).spawn(move || timed.keep_time());
    started.map_err(failed("prepare the session"))?;
    session.started(command, Tid(0));
    sys::ignore_stops_of_children();
    let _ = std::env::set_current_dir("/");
    descriptors::drop_inherited(inherited, true);
    let launched = follow(&setup, launching, channel, &session, || {});
    session.close();
    state.drop_unused();
    if let Some(error) = exec_error(launched?) {
        channel.send(&ToFront::NotExecuted(error));
        return Ok(());
    }
    tree.wait_for_front();
    let Counts { mut messages, commands, edits, refused } = std::mem::take(&mut *sync::lock(&state.counts));
    let log = setup.options.session.as_deref().map(|name| {
        format!("agent-snapshot log --session {}", crate::commands::paths::shell_word(name.as_bytes()))
    });
    let at_refusal = tree.ending().at_refusal;
    if let (Some(calls), Some(log)) = (number_of_calls(refused), &log) {
        let were = if refused == 1 { "was" } else { "were" };
        let ended = if at_refusal { ", which ended the session" } else { "" };
        messages.push(format!("{calls} {were} refused by rules{ended} ({log} marks the steps)"));
    }
    let report = match (setup.report, log) {
        (ReportFormat::Summary, Some(log)) => format!(
            "agent-snapshot: {}, {} → {log}\n",
            counted(commands, "command", "commands"),
            counted(edits, "edit", "edits"),
        ),
        _ => String::new(),
    };
    let done = RecordingOutcome {
        at_refusal,
        complete: true,
        notes: messages,
        report,
        ..RecordingOutcome::default()
    };
    channel.send(&ToFront::Done(done));
    library.iter().for_each(pruning::start_if_due);
    Ok(())
}

/// What the steps of a session share.
struct SessionState {
    setup: Arc<Setup>,
    tree: Arc<ProcessTree>,
    duplicates: Arc<Duplicates>,
    served: ServedDevices,
    next: Mutex<Next>,
    /// The number of the last step.
    begun: AtomicU32,
    counts: Mutex<Counts>,
    mount_points: Arc<MountPoints>,
}

/// The directory of the next step.
enum Next {
    /// It was made, and has this identifier.
    Made(String, SnapshotDir),
    /// None was made.
    None,
    /// There is no next step.
    Never,
}

#[derive(Debug, Default)]
struct Counts {
    messages: Vec<String>,
    commands: usize,
    edits: usize,
    /// The calls that rules refused.
    refused: u64,
}

impl SessionState {
    fn say(&self, message: &str) {
        let mut counts = sync::lock(&self.counts);
        if counts.messages.len() < MESSAGES {
            counts.messages.push(message.to_owned());
        }
    }

    fn begin(self: &Arc<Self>, beginning: Beginning) -> io::Result<Arc<dyn Step>> {
        let Some(library) = &self.setup.library else { return Err(io::ErrorKind::NotFound.into()) };
        let next = std::mem::replace(&mut *sync::lock(&self.next), Next::None);
        let (id, directory) = match next {
            Next::Made(id, directory) => (id, directory),
            Next::None | Next::Never => new_directory(library)?,
        };
        let directory = Arc::new(directory);
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let Beginning { kind, argv, mut cwd, shell } = beginning;
        if cwd.is_empty() {
            // The program has ended.
            cwd.clone_from(&self.setup.start_cwd);
        }
        let header = step_header(&self.setup, id, number, kind, argv, cwd);
        let state = Arc::clone(self);
        let say = Box::new(move |note: &str| {
            state.say(note);
            true
        });
        let losses = Losses::new(say, None);
        let holder = Box::new(self.duplicates.of_recording(number));
        let journaled = journal::start(&self.setup, &directory, &header, holder, losses)?;
        let served = Some(self.served.clone());
        let recorder = recorder_of(
            &self.setup,
            &directory,
            journaled,
            served,
            Box::new(StepEvents(Arc::clone(&self.tree))),
        );
        let bundle = BundleWriter::new(&self.setup, header, Arc::clone(&directory));
        let bundle = bundle.with_mount_points(Arc::clone(&self.mount_points));
        Ok(Arc::new(SessionStep {
            state: Arc::clone(self),
            number,
            kind,
            shell,
            directory,
            recorder,
            bundle,
        }))
    }

    fn prepare(&self) {
        let mut next = sync::lock(&self.next);
        if let (Next::None, Some(library)) = (&*next, &self.setup.library) {
            // Why not, the next step tells.
            *next = new_directory(library).map_or(Next::None, |(id, directory)| Next::Made(id, directory));
        }
    }

    /// Removes the directory that no step has used.
    fn drop_unused(&self) {
        if let Next::Made(_, directory) = std::mem::replace(&mut *sync::lock(&self.next), Next::Never) {
            directory.made().clone().remove();
        }
    }
}

/// A directory for the next step, and its identifier.
fn new_directory(library: &Library) -> io::Result<(String, SnapshotDir)> {
    let id = library.new_id();
    let directory = SnapshotDir::create(&library.directory_of(&id[..ID_LENGTH]));
    Ok((id, directory.map_err(io::Error::other)?))
}

struct SessionSteps(Arc<SessionState>);

impl Steps for SessionSteps {
    fn launch(&self, exe: &[u8], argv: &[Vec<u8>], at_terminal: bool) -> Launch {
        match shell_of(exe, argv, at_terminal) {
            Some(Shell::Command) => Launch::Command,
            Some(Shell::Interactive) => Launch::Shell,
            None if self.0.setup.session.as_ref().is_some_and(|session| session.config.is_command(exe)) => {
                Launch::Command
            }
            None if is_agent(exe) || argv.first().is_some_and(|name| is_agent(name)) => Launch::Agent,
            None => Launch::Other,
        }
    }

    fn prepare(&self) {
        self.0.prepare();
    }

    fn begin(&self, beginning: Beginning) -> Option<Arc<dyn Step>> {
        let command = beginning.argv.iter().map(|word| printable(word)).collect::<Vec<_>>().join(" ");
        let begun = self.0.begin(beginning);
        begun.map_err(|error| self.0.say(&format!("{command}: not recorded: {error}"))).ok()
    }

    fn leave_out(&self, path: &[u8]) -> bool {
        self.0.setup.ignore.covering(path).is_some() || self.was_open(path)
    }

    fn was_open(&self, path: &[u8]) -> bool {
        self.0.setup.inherited.files.iter().any(|file| file.path() == path)
    }

    fn allow_io_uring(&self) -> bool {
        self.0.setup.options.allow_io_uring
    }

    fn enforces(&self) -> bool {
        self.0.setup.enforced.is_some()
    }
}

struct SessionStep {
    state: Arc<SessionState>,
    number: u32,
    kind: SnapshotKind,
    /// The arguments of the shell whose job it is.
    shell: Option<Vec<Vec<u8>>>,
    directory: Arc<SnapshotDir>,
    recorder: Recorder,
    bundle: BundleWriter,
}

impl Step for SessionStep {
    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn end(&self, end: Option<End>) {
        let ending = RecordingEnd {
            end: end.unwrap_or(End::Exited(0)),
            timed_out: false,
            at_refusal: false,
            killed: false,
            at: jiff::Timestamp::now(),
        };
        let written = self.bundle.write_step(&self.recorder, self.shell.as_deref(), ending);
        match written {
            Ok(Some(refused)) => {
                let mut counts = sync::lock(&self.state.counts);
                counts.refused = counts.refused.saturating_add(refused);
                match self.kind {
                    SnapshotKind::Edit => counts.edits += 1,
                    _ => counts.commands += 1,
                }
            }
            Ok(None) => return self.discard(),
            Err(error) => {
                let place = self.directory.real_path().display();
                self.state.say(&format!(
                    "{error}; agent-snapshot recover {place} makes a snapshot of what was changed"
                ));
            }
        }
        self.state.duplicates.ended(self.number);
    }

    fn discard(&self) {
        // Before another step has the number.
        self.state.duplicates.ended(self.number);
        let _ = self.directory.discard_unfinished();
        self.directory.made().clone().remove();
        // Numbers have no gaps where one step follows the other.
        let _ = self.state.begun.compare_exchange(
            self.number,
            self.number - 1,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}

/// What an edit of these files is called; none if none of them was changed.
pub fn edit_title(start: &[u8], files: impl Iterator<Item = FileRecord>) -> Option<Vec<u8>> {
    let is_changed = |file: &FileRecord| {
        matches!(PathEffect::of(file), PathEffect::Created | PathEffect::Changed | PathEffect::Deleted)
            || file.is_git_state && PathEffect::of(file).lasts()
    };
    let mut changed: Vec<Vec<u8>> = files.filter(is_changed).map(|file| file.path).collect();
    changed.sort_unstable();
    let rest = changed.len().saturating_sub(NAMED);
    changed.truncate(NAMED);
    let names: Vec<Vec<u8>> = changed
        .iter()
        .map(|path| match path.strip_prefix(start).and_then(|rest| rest.strip_prefix(b"/")) {
            Some(relative) => relative.to_vec(),
            None => path.clone(),
        })
        .collect();
    let rest = if rest > 0 { format!(" and {rest} more").into_bytes() } else { Vec::new() };
    (!names.is_empty()).then(|| [b"edit ", names.join(&b", "[..]).as_slice(), &rest].concat())
}

/// A step that is called as the processes are that its program started itself: the parts of a job. `shell` are the
/// arguments of the shell whose job it is, which a part still has that executed nothing.
pub fn named_by_processes(header: Header, processes: &[RecordedProcess], shell: &[Vec<u8>]) -> Header {
    let mut started: Vec<_> = processes.iter().filter(|process| process.parent.is_none()).collect();
    // They are known in the order of their first calls.
    started.sort_by_key(|process| process.pid);
    let parts: Vec<Option<&[Vec<u8>]>> = started
        .into_iter()
        .map(|process| match process.execs.first() {
            Some(first) => Some(first.argv.as_slice()),
            None => Some(process.image.argv.as_slice()).filter(|argv| *argv != shell),
        })
        .collect();
    match parts.as_slice() {
        [Some(command)] => Header { command: command.to_vec(), ..header },
        parts => {
            let line = |part: &Option<&[Vec<u8>]>| part.map_or(SUBSHELL.to_vec(), |words| words.join(&b' '));
            let title = parts.iter().map(line).collect::<Vec<_>>().join(&b" | "[..]);
            Header { title: Some(title), ..header }
        }
    }
}

/// Recovers the steps that were running when the tracing process was killed.
pub fn recover_lost(held: BTreeMap<u32, HashMap<u32, File>>, messages: &Messages) {
    let mut recovered = 0;
    for (_, mut files) in held {
        let Some(journal) = files.remove(&held::JOURNAL) else { continue };
        files.remove(&held::BLOBS);
        let Some(directory) = directory_of(&journal) else { continue };
        let done = lock(&directory, &mut |_| {}).and_then(|directory| recover::recover(directory, files));
        match done {
            Ok(Recovery::Done(done)) => {
                recovered += 1;
                add_to_log(&directory, &mut |sentence| messages.say(sentence));
                not_recovered(&done).iter().for_each(|sentence| messages.say(sentence));
            }
            Ok(Recovery::Nothing | Recovery::Unneeded) => {}
            Err(error) => messages.say(&format!("{}: {error}", directory.display())),
        }
    }
    let steps = counted(recovered, "step that was running was", "steps that were running were");
    messages.say(&format!("the tracing process was killed, and the session with it; {steps} recovered"));
}

/// The directory of a journal that is open.
fn directory_of(journal: &File) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", journal.as_raw_fd())).ok()?;
    path.parent().map(Path::to_owned)
}
