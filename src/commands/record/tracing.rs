//! The process that traces: it launches the command, records its tree and writes the snapshot.
//!
//! Its main thread waits for the tree; another listens to the front and to signals, one answers calls
//! that only look, one stores contents where there are many. It has no terminal and no standard
//! streams: what it has to say goes through the link. Neighbour: `front.rs`, the other process.

use std::collections::BTreeSet;
use std::io::BufWriter;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Setup;
use super::link::{CommandEnd, Done, Link, Moment, ToFront, ToTracer};
use super::report::{self, Facts};
use crate::cli::{self, Survivors};
use crate::observe::capture::Capture;
use crate::observe::{Events, Options, Recorder, unseen_kind};
use crate::snapshot::blobs::{BlobWriter, Compression};
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::wire::write_manifest;
use crate::snapshot::{Header, Host, Kind, Tool, WarningKind, live};
use crate::trace::filter::Interception;
use crate::trace::launch::{LaunchError, Launched, launch};
use crate::trace::notifications;
use crate::trace::observer::{Observer, panic_text};
use crate::trace::shared::Shared;
use crate::trace::sys::{self, InheritedFd, Interrupter, ReceivedSignal, Tid};
use crate::trace::tracer::Tracer;
use crate::trace::wait_status::End;

/// After SIGTERM the tree has this long before SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// A signal to both of us reaches both within this time.
const SAME_SIGNAL: Duration = Duration::from_millis(200);
/// A front that has just been stopped tells late of what continued it, for which nothing waits.
const SAME_JOB_CONTROL: Duration = Duration::from_secs(2);

/// Launches, records and writes; then this process ends.
pub fn run(mut setup: Setup, directory: SnapshotDir, link: Link, signals: OwnedFd) -> ! {
    let link = Arc::new(link);
    match catch_unwind(AssertUnwindSafe(|| record(&mut setup, directory, &link, signals))) {
        Ok(Ok(())) => {}
        Ok(Err(message)) => link.send(&message),
        Err(panic) => {
            let error = format!("the recorder failed ({})", panic_text(&*panic));
            link.send(&ToFront::Done(Done::failed(error, false)));
        }
    }
    sys::exit_now(0);
}

fn record(
    setup: &mut Setup,
    directory: SnapshotDir,
    link: &Arc<Link>,
    signals: OwnedFd,
) -> Result<(), ToFront> {
    let directory = Arc::new(directory);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| ToFront::Failed(format!("{what}: {error}"))
    };
    sys::keep_large_buffers();
    let wanted = match setup.options.mechanism {
        cli::Mechanism::Auto => Interception::Notifications,
        cli::Mechanism::Stops => Interception::Stops,
        cli::Mechanism::EveryCall => Interception::EveryCall,
    };
    let refused = |error: LaunchError| match error {
        LaunchError::Denied(_) => ToFront::Denied(error.to_string()),
        LaunchError::Os(_) => ToFront::Failed(error.to_string()),
    };
    let launching = launch(&setup.program, wanted).map_err(refused)?;
    // While the command's process installs its filter.
    let (recorder, tree) = match prepare(setup, &directory, link, signals, launching.command) {
        Ok(prepared) => prepared,
        Err(error) => {
            launching.abandon();
            return Err(failed("prepare the recording")(error));
        }
    };
    sys::ignore_stops_of_children();
    // The command may remove or unmount the directory that it was started in.
    let _ = std::env::set_current_dir("/");
    // Made before the command runs: it may remove the directory.
    let manifest = directory.unnamed_file().map_err(failed("create the manifest"))?;
    recorder.inherit(launching.command, &setup.inherited.files);
    tell_of_unseen(&recorder, launching.command, &setup.inherited.descriptors);
    super::drop_inherited(&mut setup.inherited.descriptors, true);
    let mut launched = launching.installed().map_err(refused)?;
    let started_at = jiff::Timestamp::now();
    let started = Instant::now();
    let shared = Arc::new(Shared::new().map_err(failed("start the recording"))?);
    if let Some(listener) = launched.listener.take() {
        // The front holds it too: without a holder the kernel answers ENOSYS to what waits.
        link.send_with(&ToFront::Launched, Some(listener.as_fd()));
        let interrupter = Interrupter::of_this_thread().map_err(failed("prepare to interrupt"))?;
        let (recorder, shared) = (Arc::clone(&recorder), Arc::clone(&shared));
        // It may wait for one more call at the end of this process, and ends with it.
        std::thread::Builder::new()
            .name("notifications".into())
            .spawn(move || notifications::serve(&listener, &shared, &interrupter, &*recorder))
            .map_err(failed("start the thread that answers"))?;
    } else {
        link.send(&ToFront::Launched);
    }
    launched.release().map_err(failed("start the command"))?;
    Tracer::new(launched.command, launched.interception, &shared, &*recorder).run();
    // The thread that ends the tree may not have come to its end yet.
    if tree.lock().dying {
        sys::exit_now(125);
    }
    let finished_at = jiff::Timestamp::now();
    if let Some(error) = exec_error(launched) {
        link.send(&ToFront::NotExecuted(error));
        return Ok(());
    }
    let end = tree.lock().root_end.unwrap_or(End::Exited(125));
    let timed_out = tree.timed_out.load(Ordering::Relaxed);
    let times = Times { started_at, finished_at, elapsed: started.elapsed() };
    let done = match write(setup, &recorder, &tree, directory, manifest, end, timed_out, &times) {
        Ok(Written { complete, notes, report }) => Done { error: None, timed_out, complete, notes, report },
        Err(error) => Done::failed(error, timed_out),
    };
    link.send(&ToFront::Done(done));
    Ok(())
}

/// Tells of inherited descriptors through which files are opened unseen.
fn tell_of_unseen(recorder: &Recorder, command: Tid, descriptors: &[InheritedFd]) {
    for fd in descriptors {
        let link = rustix::fs::readlink(format!("/proc/{command}/fd/{}", fd.number()), Vec::new());
        if let Some(kind) = link.ok().and_then(|link| unseen_kind(link.as_bytes())) {
            let detail = "the command inherited a descriptor through which files are opened unseen";
            recorder.lost(kind, detail);
        }
    }
}

/// What was written.
struct Written {
    complete: bool,
    notes: Vec<String>,
    report: String,
}

struct Times {
    started_at: jiff::Timestamp,
    finished_at: jiff::Timestamp,
    elapsed: Duration,
}

fn exec_error(launched: Launched) -> Option<i32> {
    launched.exec_error().map(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

fn prepare(
    setup: &Setup,
    directory: &Arc<SnapshotDir>,
    link: &Arc<Link>,
    signals: OwnedFd,
    command: Tid,
) -> std::io::Result<(Arc<Recorder>, Arc<Tree>)> {
    let tree = Arc::new(Tree::new(command, setup.options.survivors));
    let compression = match setup.options.compression {
        cli::Compression::Snappy => Compression::Snappy,
        cli::Compression::Zstd => Compression::Zstd,
        cli::Compression::None => Compression::None,
    };
    let writer = BlobWriter::new(directory.unnamed_file()?, compression)?;
    let capture = Capture::new(writer, Arc::clone(directory));
    let options = Options {
        max_read_bytes: setup.options.max_read_bytes,
        max_blob_bytes: setup.options.max_blob_bytes,
        allow_io_uring: setup.options.allow_io_uring,
    };
    let own = directory.real_path().as_os_str().as_encoded_bytes().to_vec();
    let events = TreeEvents {
        tree: Arc::clone(&tree),
        link: Arc::clone(link),
        front: Tid(nix::unistd::getppid().as_raw()),
        stopped: AtomicBool::new(false),
    };
    let recorder = Recorder::new(options, setup.ignore.clone(), own, capture, Box::new(events));
    let listener = Listener {
        tree: Arc::clone(&tree),
        link: Arc::clone(link),
        signals,
        recent: Vec::new(),
        deadline: setup.options.timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
    };
    std::thread::Builder::new().name("listener".into()).spawn(move || listener.run())?;
    // From here on the listener sees to it that we do not outlive the front unasked.
    rustix::process::set_parent_process_death_signal(None)?;
    recorder.started(command, Tid(0));
    Ok((Arc::new(recorder), tree))
}

#[allow(clippy::too_many_arguments, reason = "the parts of one manifest")]
fn write(
    setup: &Setup,
    recorder: &Recorder,
    tree: &Tree,
    directory: Arc<SnapshotDir>,
    manifest: std::fs::File,
    end: End,
    timed_out: bool,
    times: &Times,
) -> Result<Written, String> {
    if timed_out {
        recorder.note(WarningKind::Timeout, "the time was up, and every process was ended");
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
        id: super::random_id(),
        kind: Kind::Recording,
        name: setup.options.name.clone(),
        session: setup.options.session.clone(),
        tool: Tool { name: env!("CARGO_PKG_NAME").to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        host: Host {
            arch: std::env::consts::ARCH.to_owned(),
            kernel: nix::sys::utsname::uname()
                .map(|name| name.release().to_string_lossy().into_owned())
                .unwrap_or_default(),
            machine: live::machine_id_hash().to_string(),
        },
        command: setup.program.argv.iter().map(|argument| argument.to_bytes().to_vec()).collect(),
        exit_status: if timed_out { 124 } else { end.exit_status() },
        exit_signal: match end {
            End::Killed { signal, .. } => Some(super::signal_name(signal)),
            End::Exited(_) => None,
        },
        timed_out,
        start_cwd: setup.start_cwd.clone(),
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        started_at: times.started_at.to_string(),
        finished_at: times.finished_at.to_string(),
        complete,
        warnings: recorded.warnings,
        suppressed: recorded.suppressed,
        git_repositories: recorded.repositories,
        processes: recorded.processes,
    };
    let mut facts = Facts::default();
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
    // The summary names them, too.
    if setup.options.strict && setup.report != cli::Report::Summary {
        notes.extend(report::gaps(&header));
    }
    let report = report::render(setup.report, &header, &facts, times.elapsed, &path);
    Ok(Written { complete, notes, report })
}

/// The living processes of the tree, for the threads that send signals to them.
struct Tree {
    root: Tid,
    survivors: Survivors,
    state: Mutex<TreeState>,
    changed: Condvar,
    timed_out: AtomicBool,
    detached: AtomicBool,
}

#[derive(Default)]
struct TreeState {
    living: BTreeSet<Tid>,
    root_end: Option<End>,
    ending: bool,
    /// Whether the front is dead: nothing is to be written.
    dying: bool,
    ended_survivors: usize,
}

impl Tree {
    fn new(root: Tid, survivors: Survivors) -> Tree {
        Tree {
            root,
            survivors,
            state: Mutex::default(),
            changed: Condvar::new(),
            timed_out: AtomicBool::new(false),
            detached: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TreeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn survivors_ended(&self) -> Option<String> {
        let count = self.lock().ended_survivors;
        (count > 0).then(|| {
            format!(
                "{} outlived the command and {} ended",
                report::counted(count, "process", "processes"),
                if count == 1 { "was" } else { "were" }
            )
        })
    }

    /// Ends every process, and then this one: while we live, no call of theirs goes astray.
    fn die(&self) -> ! {
        let mut state = self.lock();
        state.dying = true;
        while !state.living.is_empty() {
            for process in &state.living {
                let _ = sys::kill(*process, libc::SIGKILL);
            }
            // What is forked meanwhile is met in the next round.
            state = self
                .changed
                .wait_timeout(state, Duration::from_millis(20))
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        sys::exit_now(125)
    }

    /// SIGTERM to every process, SIGKILL to those that are left after the grace.
    fn end(self: &Arc<Self>) {
        if std::mem::replace(&mut self.lock().ending, true) {
            return;
        }
        let tree = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("end".into()).spawn(move || {
            let mut state = tree.lock();
            for process in &state.living {
                let _ = sys::kill(*process, libc::SIGTERM);
                let _ = sys::kill(*process, libc::SIGCONT);
            }
            let deadline = Instant::now() + GRACE;
            while !state.living.is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    for process in &state.living {
                        let _ = sys::kill(*process, libc::SIGKILL);
                    }
                }
                // What is forked meanwhile is met in the next round.
                let pause = if left.is_zero() { Duration::from_millis(100) } else { left };
                state = tree
                    .changed
                    .wait_timeout(state, pause)
                    .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
            }
        });
        if spawned.is_err() {
            for process in &self.lock().living {
                let _ = sys::kill(*process, libc::SIGKILL);
            }
        }
    }
}

/// Tells the front and the other threads what happens to the tree.
struct TreeEvents {
    tree: Arc<Tree>,
    link: Arc<Link>,
    front: Tid,
    /// Whether the command is stopped, and the front with it.
    stopped: AtomicBool,
}

impl TreeEvents {
    /// Signals the front, while it is our parent.
    fn signal_front(&self, signal: i32) {
        if nix::unistd::getppid().as_raw() == self.front.0 {
            let _ = sys::kill(self.front, signal);
        }
    }
}

impl Events for TreeEvents {
    fn started(&self, process: Tid) {
        let mut state = self.tree.lock();
        state.living.insert(process);
        if state.ending && self.tree.timed_out.load(Ordering::Relaxed) {
            let _ = sys::kill(process, libc::SIGTERM);
        }
    }

    fn ended(&self, process: Tid, end: End) {
        let mut state = self.tree.lock();
        state.living.remove(&process);
        self.tree.changed.notify_all();
        if process != self.tree.root {
            return;
        }
        state.root_end = Some(end);
        let others = state.living.len();
        if self.tree.survivors == Survivors::Kill && others > 0 {
            state.ended_survivors = others;
        }
        drop(state);
        self.link.send(&ToFront::Ended(match end {
            End::Exited(status) => CommandEnd::Exited(status),
            End::Killed { signal, .. } => CommandEnd::Killed(signal),
        }));
        if self.stopped.load(Ordering::Relaxed) {
            // It was killed while it was stopped, which a shell learns of at once.
            self.signal_front(libc::SIGCONT);
        }
        if others > 0 {
            match self.tree.survivors {
                Survivors::Wait => {}
                Survivors::Kill => self.tree.end(),
                Survivors::Background => {
                    self.tree.detached.store(true, Ordering::SeqCst);
                    self.link
                        .send(&ToFront::Detached { timed_out: self.tree.timed_out.load(Ordering::SeqCst) });
                }
            }
        }
    }

    fn stopped(&self, process: Tid, signal: i32) {
        if process != self.tree.root {
            return;
        }
        self.stopped.store(true, Ordering::Relaxed);
        match signal {
            // Nobody can hold it back, so one thread sends both this and what ends it, in order.
            libc::SIGSTOP => self.signal_front(libc::SIGSTOP),
            _ => self.link.send(&ToFront::Stopped { signal, at: Moment::now() }),
        }
    }

    fn continued(&self, process: Tid) {
        if process == self.tree.root {
            self.stopped.store(false, Ordering::Relaxed);
            self.link.send(&ToFront::Continued);
            self.signal_front(libc::SIGCONT);
        }
    }
}

/// Listens to the front and to signals of this process.
struct Listener {
    tree: Arc<Tree>,
    link: Arc<Link>,
    signals: OwnedFd,
    /// Signals that came to us and not yet, or never, to the front.
    recent: Vec<Recent>,
    /// When the time is up for who waits; the front can't tell while it is stopped.
    deadline: Option<Instant>,
}

struct Recent {
    received: ReceivedSignal,
    at: Moment,
    since: Instant,
}

impl Listener {
    fn run(mut self) {
        let mut connected = true;
        loop {
            let soon = (!self.recent.is_empty()).then_some(Duration::from_millis(50));
            let up = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = match [soon, up].into_iter().flatten().min() {
                Some(left) => {
                    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
                }
                None => PollTimeout::NONE,
            };
            let mut fds = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.link.as_fd(), PollFlags::POLLIN),
            ];
            let count = if connected { 2 } else { 1 };
            let _ = poll(&mut fds[..count], timeout);
            let message = connected && fds[1].revents().is_some_and(|events| !events.is_empty());
            self.drain();
            if message {
                match self.link.receive::<ToTracer>() {
                    Some((message, _)) => self.told(message),
                    None if self.tree.detached.load(Ordering::SeqCst) => connected = false,
                    // The front is dead: nothing may run on unwatched, and nobody would learn of it.
                    None => self.tree.die(),
                }
            }
            self.forward_own();
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.deadline = None;
                if !self.tree.detached.load(Ordering::SeqCst) {
                    self.tree.timed_out.store(true, Ordering::SeqCst);
                    self.tree.end();
                }
            }
        }
    }

    fn drain(&mut self) {
        while let Some(received) = sys::take_signal(self.signals.as_fd()) {
            self.recent.push(Recent { received, at: Moment::now(), since: Instant::now() });
        }
    }

    fn told(&mut self, message: ToTracer) {
        match message {
            ToTracer::Signal { signal, sender, code, at } => {
                // A signal to our whole group has reached the command itself, if it is in it.
                let sent = ReceivedSignal { signal, sender, code };
                let stopped_since =
                    self.recent.iter().any(|recent| is_stop(recent.received.signal) && recent.at > at);
                let twin = self.recent.iter().position(|recent| recent.received == sent);
                match twin.map(|twin| self.recent.remove(twin)) {
                    Some(_) if self.is_command_in_our_group() => {}
                    Some(_) => self.forward(signal),
                    // A later stop of our group took our own copy from the queue (signal(7)).
                    None if signal == libc::SIGCONT && stopped_since => {}
                    None => self.forward(signal),
                }
            }
            ToTracer::EndTree => self.tree.end(),
            ToTracer::Detach => {
                self.tree.detached.store(true, Ordering::SeqCst);
                self.link.send(&ToFront::Detached { timed_out: self.tree.timed_out.load(Ordering::SeqCst) });
            }
        }
    }

    fn is_command_in_our_group(&self) -> bool {
        let command = nix::unistd::Pid::from_raw(self.tree.root.0);
        nix::unistd::getpgid(Some(command)) == Ok(nix::unistd::getpgrp())
    }

    /// Signals that were sent to this process alone go on to the command, too.
    fn forward_own(&mut self) {
        let due = |recent: &Recent| {
            let signal = recent.received.signal;
            let job_control = signal == libc::SIGCONT || is_stop(signal);
            recent.since.elapsed() >= if job_control { SAME_JOB_CONTROL } else { SAME_SIGNAL }
        };
        let alone: Vec<i32> = self
            .recent
            .extract_if(.., |recent| due(recent))
            .map(|recent| recent.received)
            .filter(|received| received.code <= 0 && is_request(received.signal))
            .map(|received| received.signal)
            .collect();
        for signal in alone {
            self.forward(signal);
        }
    }

    fn forward(&self, signal: i32) {
        let state = self.tree.lock();
        if state.root_end.is_none() {
            let _ = sys::kill(self.tree.root, signal);
        } else if matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP) {
            drop(state);
            self.tree.end();
        }
    }
}

fn is_request(signal: i32) -> bool {
    !is_stop(signal) && !matches!(signal, libc::SIGCONT | libc::SIGPIPE)
}

fn is_stop(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}
