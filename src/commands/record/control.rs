//! The control thread of the tracing process: waits for the front, for signals and for `--timeout`.
//!
//! Neighbours: `front.rs` at the other end of the channel, `process_tree.rs`, whose processes it ends.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signalfd::SignalFd;

use super::bundle::RecordingEnd;
use super::channel::{Channel, ToTracer};
use super::descriptors::wait_readable;
use super::process_tree::ProcessTree;

/// Writes the first snapshot of a recording that goes on without the front.
pub type WriteFirst = Box<dyn Fn(RecordingEnd) -> Result<(), String> + Send>;

/// Handles messages of the front and signals to this process.
pub struct ControlThread {
    tree: Arc<ProcessTree>,
    channel: Arc<Channel>,
    write_first: WriteFirst,
    signals: SignalFd,
    /// When `--timeout` expires; the front could not handle it while it is stopped.
    deadline: Option<Instant>,
    /// Whether the front is at the other end of the channel.
    connected: bool,
}

impl ControlThread {
    /// Prepares the thread, which ends the process tree after `timeout` if there is one.
    pub fn new(
        tree: Arc<ProcessTree>,
        channel: Arc<Channel>,
        write_first: WriteFirst,
        signals: SignalFd,
        timeout: Option<Duration>,
    ) -> ControlThread {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        ControlThread { tree, channel, write_first, signals, deadline, connected: true }
    }

    /// Runs until this process ends.
    pub fn run(mut self) {
        loop {
            let timeout = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let fds = [self.signals.as_fd(), self.channel.as_fd()];
            let message = if self.connected {
                wait_readable(fds, timeout)[1]
            } else {
                wait_readable([fds[0]], timeout);
                false
            };
            self.take_signals();
            if message {
                match self.channel.receive::<ToTracer>() {
                    Some((message, _)) => self.receive(message),
                    None => {
                        self.connected = false;
                        if !self.tree.detached.load(Ordering::SeqCst) {
                            self.tree.front_died();
                        }
                    }
                }
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.deadline = None;
                if !self.tree.detached.load(Ordering::SeqCst) {
                    self.tree.timed_out.store(true, Ordering::SeqCst);
                    self.tree.end();
                }
            }
        }
    }

    fn receive(&self, message: ToTracer) {
        match message {
            ToTracer::Reaped => self.tree.command_reaped(),
            ToTracer::EndTree => self.tree.end(),
            ToTracer::Detach => self.tree.detach(&self.channel, &self.write_first),
        }
    }

    /// Takes the signals that were sent to this process. As long as there is a front, they are for that.
    fn take_signals(&self) {
        while let Ok(Some(received)) = self.signals.read_signal() {
            if !self.connected && matches!(received.ssi_signo.cast_signed(), libc::SIGTERM | libc::SIGINT) {
                self.tree.end();
            }
        }
    }
}
