//! The tracing process: launches the command, records its process tree and writes the snapshot.
//!
//! Its main thread waits for ptrace stops of its threads; the control thread handles the front and signals,
//! others answer the notifications of read-only calls, and one stores contents if there are many.
//! It is in a session of its own, so that what ends the front and its process group does not end the
//! recording. It has neither a terminal nor standard streams: its messages go through the channel. Neighbour:
//! `front.rs`, the other process.

use std::ffi::CStr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nix::sys::signalfd::SignalFd;
use rustix::process::{PidfdFlags, pidfd_open, setsid};
use rustix::thread::set_name;

use super::bundle::{self, BundleWriter};
use super::channel::{Channel, RecordingOutcome, ToFront};
use super::control::ControlThread;
use super::descriptors;
use super::held::{self, Duplicates, HeldFiles};
use super::journal;
use super::process_tree::{ProcessTree, TreeEvents};
use super::pruning;
use super::setup::Setup;
use super::steps;
use crate::library::{KEYLESS, RECALL};
use crate::observe::capture::Capture;
use crate::observe::losses::Losses;
use crate::observe::policy::OwnDirectories;
use crate::observe::{Events, Options, Recorder, ServedDevices, unseen_kind};
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::{Keep, WarningKind};
use crate::trace;
use crate::trace::inside::{self, Inside};
use crate::trace::launch::{Launched, Launching, Spawned};
use crate::trace::notifications;
use crate::trace::observer::{Observer, panic_text};
use crate::trace::proc_fd;
use crate::trace::shared::Shared;
use crate::trace::sys::{self, Fork, InheritedFd, Interrupter, Tid};
use crate::trace::tracer::Tracer;

/// The name of the tracing process.
const NAME: &CStr = c"agent-snapshot";

/// What the front passes on to this process.
pub struct Handover {
    /// The front's pidfd.
    pub front: OwnedFd,
    /// The command's process, a child of the front.
    pub spawned: Spawned,
    /// Where signals to this process are taken from.
    pub signals: SignalFd,
}

/// Forks this process twice, so that the tracing one is no descendant of the front, and in a session of its
/// own; returns the front's ends of the sockets between them, with what was decided and the directory.
pub fn start(
    setup: Setup,
    directory: SnapshotDir,
    handover: Handover,
) -> std::io::Result<(Channel, HeldFiles, Setup, SnapshotDir)> {
    let (ours, theirs) = Channel::pair()?;
    let (held, duplicates) = held::pair()?;
    match sys::fork()? {
        Fork::Child => {
            // The sockets are to end with the front.
            drop((ours, held));
            let _ = setsid();
            match sys::fork() {
                Ok(Fork::Child) => run(setup, directory, theirs, duplicates, handover),
                Ok(Fork::Parent(_)) => {}
                Err(error) => theirs.send(&ToFront::Failed(format!("start the recording: fork: {error}"))),
            }
            sys::exit_now(0)
        }
        Fork::Parent(between) => {
            let _ = sys::wait_for_end(between);
            Ok((ours, held, setup, directory))
        }
    }
}

/// Launches, records and writes; then this process ends.
fn run(
    setup: Setup,
    directory: SnapshotDir,
    channel: Channel,
    duplicates: Duplicates,
    handover: Handover,
) -> ! {
    let Handover { front, spawned, signals } = handover;
    let channel = Arc::new(channel);
    let record = || record(setup, directory, &channel, duplicates, front, spawned, signals);
    match catch_unwind(AssertUnwindSafe(record)) {
        Ok(Ok(())) => {}
        Ok(Err(message)) => channel.send(&message),
        Err(panic) => {
            let error = format!("the recorder failed ({})", panic_text(&*panic));
            channel.send(&ToFront::Done(RecordingOutcome::failed(error, false)));
        }
    }
    sys::exit_now(0);
}

fn record(
    mut setup: Setup,
    directory: SnapshotDir,
    channel: &Arc<Channel>,
    duplicates: Duplicates,
    front: OwnedFd,
    spawned: Spawned,
    signals: SignalFd,
) -> Result<(), ToFront> {
    // Whatever the front is called.
    let _ = set_name(NAME);
    let us = rustix::process::getpid();
    let pidfd = pidfd_open(us, PidfdFlags::empty());
    channel.send_with(&ToFront::Started(us.as_raw_pid()), pidfd.ok().as_ref().map(AsFd::as_fd));
    sys::keep_large_buffers();
    let launching = spawned.seize().map_err(refused)?;
    let duplicates = Arc::new(duplicates);
    if setup.session.is_some() {
        return steps::record(setup, directory, channel, duplicates, front, launching, signals);
    }
    let directory = Arc::new(directory);
    // While the command's process installs its seccomp filter.
    let unstarted = Unstarted(Some(&directory));
    let header = bundle::first_header(&setup);
    let bundle = BundleWriter::new(&setup, header.clone(), Arc::clone(&directory));
    let bundle = Arc::new(bundle.with_policy(setup.policy.clone()));
    let notes = Arc::clone(channel);
    let say = Box::new(move |note: &str| notes.try_send(&ToFront::Note(note.to_owned())));
    let losses = Losses::new(say, setup.shell_config.take());
    let holder = Box::new(duplicates.of_recording(0));
    let journaled =
        journal::start(&setup, &directory, &header, holder, losses).map_err(failed("start the journal"))?;
    let (recorder, tree) =
        prepare(&setup, &directory, journaled, &bundle, channel, front, signals, launching.command)
            .map_err(failed("prepare the recording"))?;
    sys::ignore_stops_of_children();
    // The command may remove or unmount the directory that it was started in.
    let _ = std::env::set_current_dir("/");
    // Created before the command runs, since that may remove the directory.
    let manifest = directory.unnamed_file().map_err(failed("create the manifest"))?;
    recorder.inherit(launching.command, &setup.inherited.files);
    record_unseen_descriptors(&recorder, launching.command, &setup.inherited.descriptors);
    descriptors::drop_inherited(std::mem::take(&mut setup.inherited.descriptors), true);
    let started = Instant::now();
    let launched = follow(&setup, launching, channel, &recorder, || unstarted.started())?;
    let elapsed = started.elapsed();
    if let Some(error) = exec_error(launched) {
        let _ = directory.discard_unfinished();
        channel.send(&ToFront::NotExecuted(error));
        return Ok(());
    }
    tree.wait_for_front();
    let ending = tree.ending();
    let named = directory.real_path().display().to_string();
    if let Some(survivors) = tree.survivors_ended() {
        recorder.note(WarningKind::Survivors, &survivors);
    }
    let done = bundle.write(&setup, &recorder, manifest, ending, elapsed).unwrap_or_else(|error| {
        let what = match directory.open_journal() {
            Ok(Some(journal)) if journal.metadata().is_ok_and(|found| found.len() > 0) => {
                format!("agent-snapshot recover {named} makes one of what was changed")
            }
            _ => "there is no journal from which one could be made".to_owned(),
        };
        RecordingOutcome::failed(format!("{error}; {what}"), ending.timed_out)
    });
    channel.send(&ToFront::Done(done));
    if let Some(library) = &setup.library {
        pruning::start_if_due(library);
    }
    Ok(())
}

/// What becomes of an error before the launch.
pub fn failed(what: &str) -> impl FnOnce(std::io::Error) -> ToFront {
    move |error| ToFront::Failed(format!("{what}: {error}"))
}

/// The same of one by which the system denies a recording.
fn denied(what: &str) -> impl FnOnce(std::io::Error) -> ToFront {
    move |error| ToFront::Denied(format!("{what}: {error}"))
}

fn refused(error: trace::Error) -> ToFront {
    match error {
        trace::Error::Denied(_) | trace::Error::NoSyscallInfo(_) | trace::Error::ForeignProcfs => {
            ToFront::Denied(error.to_string())
        }
        trace::Error::NotConfined | trace::Error::Os(_) => ToFront::Failed(error.to_string()),
    }
}

/// Lets the command execute and follows its process tree to the end; `released` is called in between.
pub fn follow<O>(
    setup: &Setup,
    launching: Launching,
    channel: &Channel,
    observer: &Arc<O>,
    released: impl FnOnce(),
) -> Result<Launched, ToFront>
where
    O: Observer<Pending: Send> + Send + Sync + 'static,
{
    let mut launched = launching.installed().map_err(refused)?;
    let after = setup.options.inside_after.map_or(inside::CALLS_BEFORE_PATCH, NonZeroU32::get);
    let inside = launched.noted.map(|mark| Inside::new(mark, after));
    let shared = Arc::new(Shared::new(inside).map_err(denied("start the recording: eventfd"))?);
    let refusable = setup.refusable();
    if let Some(listener) = launched.listener.take() {
        // The front keeps it open, too: without any holder the kernel fails waiting calls with ENOSYS.
        channel.send_with(&ToFront::Launched, Some(listener.as_fd()));
        let interrupter = Interrupter::of_this_thread().map_err(denied("prepare to interrupt"))?;
        let answering = (listener, Arc::clone(&shared), Mutex::new(interrupter), Arc::clone(observer));
        let answering = Arc::new(answering);
        let wanted =
            setup.options.answering_threads.map_or_else(notifications::default_threads, NonZeroUsize::get);
        for number in 0..wanted {
            let answering = Arc::clone(&answering);
            // It may wait for another call when this process ends, and ends with it.
            let started = std::thread::Builder::new().name("notifications".into()).spawn(move || {
                let (listener, shared, interrupter, observer) = &*answering;
                notifications::serve(listener, shared, interrupter, &**observer, refusable);
            });
            // One is enough.
            if let (Err(error), 0) = (started, number) {
                return Err(denied("start the notification thread")(error));
            }
        }
    } else {
        channel.send(&ToFront::Launched);
    }
    if shared.inside().is_some() {
        let (shared, observer) = (Arc::clone(&shared), Arc::clone(observer));
        let read = move || {
            if let Some(inside) = shared.inside() {
                inside.keep_reading(&*observer)
            }
        };
        let started = std::thread::Builder::new().name("notes".into()).spawn(read);
        started.map_err(denied("start the thread that reads notes"))?;
    }
    launched.release().map_err(failed("start the command"))?;
    released();
    let watched = setup.recall.as_ref().map(|recall| recall.numbers());
    let tracer = Tracer::new(launched.command, launched.interception, &shared, &**observer);
    let tracer = tracer.refuse(refusable).pin(refusable.filter(|_| setup.can_pin()));
    match &watched {
        Some(descriptors) => tracer.watch(descriptors).run(),
        None => tracer.run(),
    }
    Ok(launched)
}

/// Removes the journal where no command is started: there is nothing to recover.
struct Unstarted<'a>(Option<&'a SnapshotDir>);

impl Unstarted<'_> {
    fn started(mut self) {
        self.0 = None;
    }
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if let Some(directory) = self.0 {
            let _ = directory.discard_unfinished();
        }
    }
}

/// Records a gap for each inherited descriptor through which files can be opened unseen.
fn record_unseen_descriptors(recorder: &Recorder, command: Tid, descriptors: &[InheritedFd]) {
    for fd in descriptors {
        let target = rustix::fs::readlink(proc_fd::link(command, fd.number()), Vec::new());
        if let Some(kind) = target.ok().and_then(|target| unseen_kind(target.as_bytes())) {
            let detail = "the command inherited a descriptor through which files are opened unseen";
            recorder.lost(kind, detail);
        }
    }
}

/// Why the command could not be executed.
pub fn exec_error(launched: Launched) -> Option<i32> {
    launched.exec_error().map(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

#[allow(clippy::too_many_arguments, reason = "what a recording is made of")]
fn prepare(
    setup: &Setup,
    directory: &Arc<SnapshotDir>,
    journaled: (Capture, Option<std::io::Error>),
    bundle: &Arc<BundleWriter>,
    channel: &Arc<Channel>,
    front: OwnedFd,
    signals: SignalFd,
    command: Tid,
) -> std::io::Result<(Arc<Recorder>, Arc<ProcessTree>)> {
    let tree = Arc::new(ProcessTree::new(command, setup.options.survivors));
    let events = TreeEvents::new(Arc::clone(&tree), Arc::clone(channel), front, Some(Arc::clone(bundle)));
    let recorder = Arc::new(recorder_of(setup, directory, journaled, None, Box::new(events)));
    let writing = (Arc::clone(&recorder), Arc::clone(bundle));
    let control = ControlThread::new(
        Arc::clone(&tree),
        Arc::clone(channel),
        Box::new(move |ending| writing.1.write_first(&writing.0, ending)),
        signals,
        setup.options.timeout,
    );
    std::thread::Builder::new().name("control".into()).spawn(move || control.run())?;
    recorder.started(command, Tid(0));
    Ok((recorder, tree))
}

/// A recorder into `directory` that has seen nothing yet; `served` is what others served before the tree was started.
pub fn recorder_of(
    setup: &Setup,
    directory: &SnapshotDir,
    (capture, no_journal): (Capture, Option<std::io::Error>),
    served: Option<ServedDevices>,
    events: Box<dyn Events>,
) -> Recorder {
    let in_library = |name: &str| {
        setup.protected.as_ref().map(|library| [library.as_slice(), b"/", name.as_bytes()].concat())
    };
    let options = Options {
        // What was only read gets a digest.
        keep: if setup.recall.is_some() { Keep::All } else { setup.keep },
        max_read_bytes: match (&setup.recall, setup.keep) {
            (Some(_), Keep::Changes) => 0,
            _ => setup.options.max_read_bytes,
        },
        max_blob_bytes: setup.options.max_blob_bytes,
        allow_io_uring: setup.options.allow_io_uring,
        secrets: setup.secrets.clone(),
        recall: setup.recall.is_some(),
        watched: setup.recall.as_ref().map(|recall| recall.descriptors.clone()).unwrap_or_default(),
        enforced: setup.enforced.clone().map(|mut enforced| {
            // The library is protected as a whole.
            if setup.library.is_none() {
                enforced.protected.push(directory.real_path().as_os_str().as_encoded_bytes().to_vec());
            }
            // Also from our own programs, which do not change it within a command.
            if let Some(keyless) = in_library(KEYLESS) {
                enforced.protected.push(keyless.clone());
                enforced.keyless = Some(keyless);
            }
            Arc::new(enforced)
        }),
        served,
    };
    let own = OwnDirectories {
        snapshot: directory.real_path().as_os_str().as_encoded_bytes().to_vec(),
        library: setup.protected.clone(),
        printed: in_library(RECALL),
    };
    let recorder = Recorder::new(options, setup.ignore.clone(), own, capture, events);
    if let Some(error) = no_journal {
        let what = "there was no journal, so a killed recording could not have been recovered";
        recorder.note(WarningKind::ContentOmitted, &format!("{what} ({error})"));
    }
    recorder
}
