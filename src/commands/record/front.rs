//! The process that the user waits for: it stands for the command in the eyes of the shell.
//!
//! It stops when the command is stopped, hands on the signals that were meant for it, ends as the
//! command ended, and does no work of the recording. Neighbour: `tracing.rs`, the other process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::channel::{Channel, CommandEnd, Moment, RecordingOutcome, ToFront, ToTracer};
use super::descriptors::{self, wait_readable};
use crate::cli::Survivors;
use crate::commands::exit::Exit;
use crate::trace::sys::{self, InheritedFd, SignalMask, Tid};

/// After this time we say whom we wait for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A stop that may be over already: so long may the word take that it is.
const WORD_OF_CONTINUING: Duration = Duration::from_millis(200);

/// How a recording ended, as far as the exit status depends on it.
#[derive(Debug)]
pub enum Ending {
    /// It was recorded; what the recording came to.
    Recorded(CommandEnd, RecordingOutcome),
    /// The command ended; the recording goes on without us.
    Detached(CommandEnd),
    /// The time was up.
    TimedOut(RecordingOutcome),
    /// Nothing was run: tracing is impossible.
    Denied(String),
    /// Nothing was run: something else failed.
    Failed(String),
    /// The kernel did not execute the command.
    NotExecuted(i32),
    /// The tracing process died, and the tree with it.
    Lost,
}

impl Ending {
    /// Whether a snapshot is there now, or will be.
    pub fn leaves_a_snapshot(&self) -> bool {
        match self {
            Ending::Recorded(_, done) | Ending::TimedOut(done) => done.error.is_none(),
            Ending::Detached(_) => true,
            Ending::Denied(_) | Ending::Failed(_) | Ending::NotExecuted(_) | Ending::Lost => false,
        }
    }
}

/// What the front watches.
pub struct Front {
    channel: Channel,
    tracer: Tid,
    signals: OwnedFd,
    survivors: Survivors,
    quiet: bool,
    /// Descriptors of the command that we were started with.
    inherited: Vec<InheritedFd>,
    ended: Option<(CommandEnd, Instant)>,
    told_of_survivors: bool,
    /// The signal that the command is stopped by, and when we stop by it, too.
    stopping: Option<(i32, Instant)>,
    /// When the last SIGCONT came from outside.
    continued: Option<Moment>,
    /// Held, never used: see [`ToFront::Launched`].
    listener: Option<OwnedFd>,
}

impl Front {
    /// A front for the tracing process at the other end of `channel`. All signals are blocked.
    pub fn new(
        channel: Channel,
        tracer: Tid,
        signals: OwnedFd,
        survivors: Survivors,
        quiet: bool,
        inherited: Vec<InheritedFd>,
    ) -> Front {
        Front {
            channel,
            tracer,
            signals,
            survivors,
            quiet,
            inherited,
            ended: None,
            told_of_survivors: false,
            stopping: None,
            continued: None,
            listener: None,
        }
    }

    /// Watches until the recording has ended.
    pub fn run(mut self) -> Ending {
        loop {
            let (message, signal) = self.wait();
            if signal {
                self.signals_came();
            }
            if message {
                match self.channel.receive::<ToFront>() {
                    Some((message, listener)) => {
                        self.listener = self.listener.or(listener);
                        if let Some(ending) = self.told(message) {
                            return ending;
                        }
                    }
                    None => {
                        // Gone, and its tracees with it, only when it can be waited for.
                        let _ = sys::wait_for_end(self.tracer);
                        return Ending::Lost;
                    }
                }
            }
            self.look_at_clock();
            // What was told meanwhile comes first: it may be that the command goes on.
            if !message && !signal {
                self.stop_if_due();
            }
        }
    }

    fn wait(&self) -> (bool, bool) {
        let next = [
            self.ended.filter(|_| !self.told_of_survivors).map(|(_, since)| since + PATIENCE),
            self.stopping.map(|(_, due)| due),
        ];
        let next = next.into_iter().flatten().min();
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        wait_readable([self.channel.as_fd(), self.signals.as_fd()], timeout).into()
    }

    fn look_at_clock(&mut self) {
        if let Some((_, since)) = self.ended
            && !self.told_of_survivors
            && Instant::now() >= since + PATIENCE
        {
            self.told_of_survivors = true;
            if self.survivors == Survivors::Wait && !self.quiet {
                eprintln!(
                    "agent-snapshot: the command has ended; waiting for {} (Ctrl-C: record on in the background)",
                    descendants(self.tracer)
                );
            }
        }
    }

    fn signals_came(&mut self) {
        let us = std::process::id();
        while let Some(received) = sys::take_signal(self.signals.as_fd()) {
            let own = received.sender == us || received.sender == self.tracer.0.unsigned_abs();
            if own && received.code <= 0 {
                continue;
            }
            let at = Moment::now();
            if received.signal == libc::SIGCONT {
                self.continued = Some(at);
            }
            match (self.ended, received.signal) {
                // The shell's prompt is due; what runs on is recorded on.
                (Some(_), libc::SIGINT | libc::SIGQUIT) => self.channel.send(&ToTracer::Detach),
                (Some(_), libc::SIGTERM | libc::SIGHUP) => {
                    self.channel.send(&ToTracer::EndTree);
                }
                // From the keyboard or a hangup: the command has it too, if it would have had it alone.
                _ if received.code > 0 => {}
                _ => self.channel.send(&ToTracer::Signal {
                    signal: received.signal,
                    sender: received.sender,
                    code: received.code,
                    at,
                }),
            }
        }
    }

    /// Stops this process as the command was stopped, so that the shell's job control sees it.
    fn stop_if_due(&mut self) {
        let Some((signal, _)) = self.stopping.filter(|(_, due)| Instant::now() >= *due) else { return };
        if self.ended.is_some() {
            self.stopping = None;
            return;
        }
        // Blocked it is pending, and any SIGCONT from now on takes it from the queue (signal(7)). One
        // that came before was told of first, and then we look again; our queue drops what we sent.
        let _ = sys::kill(Tid(std::process::id().cast_signed()), signal);
        if wait_readable([self.channel.as_fd()], Some(Duration::ZERO)) != [false] {
            return;
        }
        self.stopping = None;
        sys::default_disposition(signal);
        SignalMask::unblock(signal);
        SignalMask::block_all();
    }

    fn told(&mut self, message: ToFront) -> Option<Ending> {
        match message {
            ToFront::Launched => {
                // The command has its own; ours would only delay the end of a pipe.
                descriptors::drop_inherited(std::mem::take(&mut self.inherited), false);
                None
            }
            ToFront::Denied(why) => Some(Ending::Denied(why)),
            ToFront::Failed(why) => Some(Ending::Failed(why)),
            ToFront::NotExecuted(errno) => Some(Ending::NotExecuted(errno)),
            ToFront::Stopped { signal, at } => {
                // A SIGCONT that came later has probably continued the command as it continued us.
                let over = self.continued.is_some_and(|continued| continued > at);
                let wait = if over { WORD_OF_CONTINUING } else { Duration::ZERO };
                self.stopping = Some((signal, Instant::now() + wait));
                None
            }
            ToFront::Continued => {
                self.stopping = None;
                None
            }
            ToFront::Ended(end) => {
                self.ended = Some((end, Instant::now()));
                None
            }
            ToFront::Detached { timed_out } => {
                self.leave_keeper();
                let end = self.ended.map_or(CommandEnd::Exited(0), |(end, _)| end);
                Some(if timed_out {
                    Ending::TimedOut(RecordingOutcome {
                        error: None,
                        complete: true,
                        ..RecordingOutcome::failed(String::new(), true)
                    })
                } else {
                    Ending::Detached(end)
                })
            }
            ToFront::Done(done) => {
                self.wait_for_tracer();
                let end = self.ended.map_or(CommandEnd::Exited(Exit::Failure.status()), |(end, _)| end);
                Some(if done.timed_out { Ending::TimedOut(done) } else { Ending::Recorded(end, done) })
            }
        }
    }

    /// Leaves a process that holds the listener in our place until the tracing process is gone.
    fn leave_keeper(&self) {
        let Some(listener) = &self.listener else { return };
        let Some(pid) = rustix::process::Pid::from_raw(self.tracer.0) else { return };
        let flags = rustix::process::PidfdFlags::empty();
        let Ok(tracer) = rustix::process::pidfd_open(pid, flags) else { return };
        let _ = sys::fork_holder(listener.as_fd(), tracer.as_fd());
    }

    /// The lock on the snapshot is free when the tracing process is gone.
    fn wait_for_tracer(&self) {
        while self.channel.receive::<ToFront>().is_some() {}
        let _ = sys::wait_for_end(self.tracer);
    }
}

/// Ends this process by `signal`, as the command ended, without a core of ours.
pub fn die_by(signal: i32) {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    sys::default_disposition(signal);
    SignalMask::unblock(signal);
    let _ = sys::kill(Tid(std::process::id().cast_signed()), signal);
}

/// Names the processes that the tracing process still traces.
fn descendants(tracer: Tid) -> String {
    let mut names = Vec::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if line("TracerPid:") == Some(&tracer.0.to_string()) {
            let name: String = line("Name:").unwrap_or("?").chars().filter(|c| !c.is_control()).collect();
            names.push(format!("{pid} ({name})"));
        }
    }
    if names.is_empty() {
        return "the recording to be written".to_owned();
    }
    names.sort();
    names.truncate(8);
    names.join(", ")
}
