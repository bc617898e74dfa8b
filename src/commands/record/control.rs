//! The control thread of the tracing process: waits for the front, for signals and for `--timeout`.
//!
//! Neighbours: `front.rs` at the other end of the channel, `process_tree.rs`, whose processes it signals.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpgid, getpgrp};

use super::channel::{Channel, Moment, ToFront, ToTracer};
use super::descriptors::wait_readable;
use super::process_tree::ProcessTree;
use crate::trace::sys::{self, ReceivedSignal};

/// A signal that is sent to both processes reaches both within this time.
const SAME_SIGNAL: Duration = Duration::from_millis(200);
/// The same for job control: a front that was stopped reports late what continued it, and nothing waits
/// for that.
const SAME_JOB_CONTROL: Duration = Duration::from_secs(2);

/// Handles messages of the front and signals to this process.
pub struct ControlThread {
    tree: Arc<ProcessTree>,
    channel: Arc<Channel>,
    signals: OwnedFd,
    /// Signals that this process received and the front has not reported, or never will.
    recent: Vec<Recent>,
    /// When `--timeout` expires; the front could not handle it while it is stopped.
    deadline: Option<Instant>,
}

struct Recent {
    received: ReceivedSignal,
    at: Moment,
    since: Instant,
}

impl ControlThread {
    /// Prepares the thread, which ends the tree after `timeout` if there is one.
    pub fn new(
        tree: Arc<ProcessTree>,
        channel: Arc<Channel>,
        signals: OwnedFd,
        timeout: Option<Duration>,
    ) -> ControlThread {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        ControlThread { tree, channel, signals, recent: Vec::new(), deadline }
    }

    /// Runs until this process ends.
    pub fn run(mut self) {
        let mut connected = true;
        loop {
            let soon = (!self.recent.is_empty()).then_some(Duration::from_millis(50));
            let up = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let fds = [self.signals.as_fd(), self.channel.as_fd()];
            let timeout = [soon, up].into_iter().flatten().min();
            let message = if connected {
                wait_readable(fds, timeout)[1]
            } else {
                wait_readable([fds[0]], timeout);
                false
            };
            self.drain();
            if message {
                match self.channel.receive::<ToTracer>() {
                    Some((message, _)) => self.receive(message),
                    None if self.tree.detached.load(Ordering::SeqCst) => connected = false,
                    // The front is dead: nothing may run unrecorded, and nobody would be told.
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

    fn receive(&mut self, message: ToTracer) {
        match message {
            ToTracer::Signal { signal, sender, code, at } => {
                // A signal to our process group has reached the command already, if it is in it.
                let sent = ReceivedSignal { signal, sender, code };
                let stopped_since =
                    self.recent.iter().any(|recent| is_stop(recent.received.signal) && recent.at > at);
                let twin = self.recent.iter().position(|recent| recent.received == sent);
                match twin.map(|twin| self.recent.remove(twin)) {
                    Some(_) if self.is_command_in_our_group() => {}
                    Some(_) => self.forward(signal),
                    // A later stop signal to our group has discarded our pending SIGCONT (signal(7)).
                    None if signal == libc::SIGCONT && stopped_since => {}
                    None => self.forward(signal),
                }
            }
            ToTracer::EndTree => self.tree.end(),
            ToTracer::Detach => {
                self.tree.detached.store(true, Ordering::SeqCst);
                self.channel
                    .send(&ToFront::Detached { timed_out: self.tree.timed_out.load(Ordering::SeqCst) });
            }
        }
    }

    fn is_command_in_our_group(&self) -> bool {
        let command = Pid::from_raw(self.tree.root.0);
        command.is_some_and(|command| getpgid(Some(command)) == Ok(getpgrp()))
    }

    /// Forwards signals that were sent to this process alone.
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
