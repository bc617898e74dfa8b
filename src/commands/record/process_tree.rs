//! The living processes of the recorded tree, for the threads that signal them.
//!
//! Neighbours: the recorder of `observe` reports each start and end, `control.rs` ends them.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};

use super::bundle::{BundleWriter, RecordingEnd};
use super::channel::{Channel, CommandEnd, Moment, ToFront};
use super::witness;
use crate::cli::Survivors;
use crate::commands::exit::Exit;
use crate::commands::paths::counted;
use crate::observe::{Events, Recorder};
use crate::sync::lock;
use crate::trace::sys::{self, Tid};
use crate::trace::wait_status::End;

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// How long the front may take to notice the end of the command.
const FRONT_PATIENCE: Duration = Duration::from_secs(1);

/// The living processes of the recorded tree.
pub struct ProcessTree {
    /// The process of the command.
    pub root: Tid,
    survivors: Survivors,
    state: Mutex<ProcessTreeState>,
    changed: Condvar,
    /// Whether `--timeout` is ending it.
    pub timed_out: AtomicBool,
    /// Whether the first refusal of a forbidden call is ending it.
    at_refusal: AtomicBool,
    /// Whether the recording continues without the front.
    pub detached: AtomicBool,
}

/// The part of a process tree that is behind its lock.
#[derive(Default)]
pub struct ProcessTreeState {
    living: BTreeSet<Tid>,
    /// How the process of the command ended.
    pub root_end: Option<End>,
    ending: bool,
    /// Whether the front was killed, and the command with it.
    pub killed: bool,
    /// Whether the front has reaped the command.
    reaped: bool,
    ended_survivors: usize,
}

impl ProcessTree {
    /// A process tree with `root` alone, which has not been reported yet.
    pub fn new(root: Tid, survivors: Survivors) -> ProcessTree {
        ProcessTree {
            root,
            survivors,
            state: Mutex::default(),
            changed: Condvar::new(),
            timed_out: AtomicBool::new(false),
            at_refusal: AtomicBool::new(false),
            detached: AtomicBool::new(false),
        }
    }

    /// Says how many processes outlived the command and were ended.
    pub fn survivors_ended(&self) -> Option<String> {
        let count = lock(&self.state).ended_survivors;
        (count > 0).then(|| {
            format!(
                "{} outlived the command and {} ended",
                counted(count, "process", "processes"),
                if count == 1 { "was" } else { "were" }
            )
        })
    }

    /// Kills the command, since the front was killed, which stands for it. What is left of the process tree is ended,
    /// or recorded on with [`Survivors::Background`].
    pub fn front_died(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.killed = true;
        self.changed.notify_all();
        if state.root_end.is_none() {
            let _ = sys::kill(self.root, libc::SIGKILL);
        }
        drop(state);
        match self.survivors {
            Survivors::Background => self.detached.store(true, Ordering::SeqCst),
            Survivors::Wait | Survivors::Kill => self.end(),
        }
    }

    /// Notes that the front has reaped the command.
    pub fn command_reaped(&self) {
        lock(&self.state).reaped = true;
        self.changed.notify_all();
    }

    /// Waits until the front has reaped a command that SIGKILL ended, or is gone: one signal to their group ends
    /// both, in any order.
    pub fn wait_for_front(&self) {
        let state = lock(&self.state);
        let killed = matches!(state.root_end, Some(End::Killed { signal: libc::SIGKILL, .. }));
        if killed && !self.detached.load(Ordering::SeqCst) {
            let waits = |state: &mut ProcessTreeState| !state.killed && !state.reaped;
            // A front that is stopped does neither.
            drop(self.changed.wait_timeout_while(state, FRONT_PATIENCE, waits));
        }
    }

    /// Lets the recording go on without the front, which whoever waits for it is told when a first snapshot is
    /// there, which `write_first` writes.
    pub fn detach(&self, channel: &Channel, write_first: impl FnOnce(RecordingEnd) -> Result<(), String>) {
        self.detached.store(true, Ordering::SeqCst);
        let ending = self.ending();
        // The last snapshot is written all the same.
        let no_snapshot = write_first(ending).err();
        channel.send(&ToFront::Detached { timed_out: ending.timed_out, no_snapshot });
    }

    /// How the command ended, for a snapshot of what it and others have changed up to now.
    pub fn ending(&self) -> RecordingEnd {
        let state = lock(&self.state);
        RecordingEnd {
            end: state.root_end.unwrap_or(End::Exited(Exit::Failure.status())),
            timed_out: self.timed_out.load(Ordering::SeqCst),
            at_refusal: self.at_refusal.load(Ordering::SeqCst),
            killed: state.killed,
            at: jiff::Timestamp::now(),
        }
    }

    /// Ends it since a forbidden call was refused.
    fn end_at_refusal(self: &Arc<Self>) {
        self.at_refusal.store(true, Ordering::SeqCst);
        self.end();
    }

    /// Sends SIGTERM to every process, and SIGKILL to those that are left after the grace period.
    pub fn end(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.ending, true) {
            return;
        }
        // At once: after a refusal, none goes on to its next call.
        for process in &state.living {
            let _ = sys::kill(*process, libc::SIGTERM);
            let _ = sys::kill(*process, libc::SIGCONT);
        }
        drop(state);
        let tree = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("end".into()).spawn(move || {
            let mut state = lock(&tree.state);
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
            for process in &lock(&self.state).living {
                let _ = sys::kill(*process, libc::SIGKILL);
            }
        }
    }
}

/// Reports what happens to the process tree to the front and to the other threads.
pub struct TreeEvents {
    tree: Arc<ProcessTree>,
    channel: Arc<Channel>,
    front: OwnedFd,
    /// What writes a first snapshot when the front is left. Each step of a session that goes on has its own.
    bundle: Option<Arc<BundleWriter>>,
    /// Whether the command is stopped, and the front with it.
    stopped: AtomicBool,
}

impl TreeEvents {
    /// Reports to `tree`, and to the process of the pidfd `front` at the other end of `channel`.
    pub fn new(
        tree: Arc<ProcessTree>,
        channel: Arc<Channel>,
        front: OwnedFd,
        bundle: Option<Arc<BundleWriter>>,
    ) -> TreeEvents {
        TreeEvents { tree, channel, front, bundle, stopped: AtomicBool::new(false) }
    }

    /// Signals the front, if it is still there.
    fn signal_front(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.front, signal);
    }
}

impl Events for TreeEvents {
    fn started(&self, process: Tid) {
        let mut state = lock(&self.tree.state);
        state.living.insert(process);
        let is_cut_short =
            || self.tree.timed_out.load(Ordering::Relaxed) || self.tree.at_refusal.load(Ordering::Relaxed);
        if state.ending && is_cut_short() {
            let _ = sys::kill(process, libc::SIGTERM);
        }
    }

    fn ended(&self, recorder: Option<&Recorder>, process: Tid, end: End) {
        let mut state = lock(&self.tree.state);
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
        self.channel.send(&ToFront::Ended(match end {
            End::Exited(status) => CommandEnd::Exited(status),
            End::Killed { signal, .. } => CommandEnd::Killed(signal),
        }));
        if self.stopped.load(Ordering::Relaxed) {
            // It was killed while it was stopped; a shell is told at once.
            self.signal_front(Signal::CONT);
        }
        // After a refusal that ends all, they are being ended.
        if others > 0 && !self.tree.at_refusal.load(Ordering::SeqCst) {
            match self.tree.survivors {
                Survivors::Wait => {}
                Survivors::Kill => self.tree.end(),
                Survivors::Background => self.tree.detach(&self.channel, |ending| {
                    let (Some(bundle), Some(recorder)) = (&self.bundle, recorder) else { return Ok(()) };
                    bundle.write_first(recorder, ending)
                }),
            }
        }
    }

    fn stopped(&self, process: Tid, signal: i32) {
        if process != self.tree.root {
            return;
        }
        self.stopped.store(true, Ordering::Relaxed);
        match signal {
            // The front can't block it; this thread sends both it and the SIGCONT after it, so they stay
            // in order.
            libc::SIGSTOP => self.signal_front(Signal::STOP),
            _ => self.channel.send(&ToFront::Stopped { signal, at: Moment::now() }),
        }
    }

    fn continued(&self, process: Tid) {
        if process == self.tree.root {
            self.stopped.store(false, Ordering::Relaxed);
            self.channel.send(&ToFront::Continued);
            // It stops again at once if it was stopped since, and the front with it.
            if witness::pending(process) & witness::STOPS == 0 {
                self.signal_front(Signal::CONT);
            }
        }
    }

    fn forbidden(&self) {
        self.tree.end_at_refusal();
    }
}

/// What a step of a session tells of its processes: the session is told of them.
pub struct StepEvents(pub Arc<ProcessTree>);

impl Events for StepEvents {
    fn forbidden(&self) {
        self.0.end_at_refusal();
    }
}
