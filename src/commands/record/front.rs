//! The front: the process that the user waits for, which the shell takes for the command.
//!
//! It is the parent of the command, stops when the command is stopped, forwards signals to it, ends as it
//! ended, and does no work of the recording. Neighbour: `tracing.rs`, the other process.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signalfd::SignalFd;
// Not rustix's: they panic if the group or session is outside of the PID namespace, where its id is 0.
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getsid};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal, kill_current_process_group, kill_process_group, setrlimit};

use super::channel::{Channel, CommandEnd, Moment, RecordingOutcome, ToFront, ToTracer};
use super::descriptors::{self, wait_readable};
use super::held::HeldFiles;
use super::report::Messages;
use super::witness::Witness;
use crate::cli::Survivors;
use crate::commands::exit::Exit;
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::{self, InheritedFd, Tid};

/// How long after the end of the command the front says which processes it waits for.
const PATIENCE: Duration = Duration::from_secs(2);

/// The grace period for a stop that a SIGCONT may have ended already.
const SIGCONT_GRACE: Duration = Duration::from_millis(200);

/// How a recording ended.
#[derive(Debug)]
pub enum Ending {
    /// The command has ended, and so has the recording.
    Recorded(CommandEnd, RecordingOutcome),
    /// The command has ended; the recording continues without the front.
    Detached(CommandEnd),
    /// `--timeout` ended the process tree.
    TimedOut(RecordingOutcome),
    /// Nothing was run: tracing is impossible.
    Denied(String),
    /// Nothing was run: something else failed.
    Failed(String),
    /// The kernel did not execute the command.
    NotExecuted(i32),
    /// The tracing process was killed, and the process tree with it; with what only a descriptor
    /// holds, by recording.
    Lost(BTreeMap<u32, HashMap<u32, File>>),
}

impl Ending {
    /// Whether a snapshot exists now, or will.
    pub fn leaves_a_snapshot(&self) -> bool {
        match self {
            Ending::Recorded(_, done) | Ending::TimedOut(done) => done.error.is_none(),
            Ending::Detached(_) => true,
            Ending::Denied(_) | Ending::Failed(_) | Ending::NotExecuted(_) | Ending::Lost(_) => false,
        }
    }
}

/// The state of the front.
pub struct Front<'m> {
    channel: Channel,
    held: HeldFiles,
    /// The command's process, which is our child.
    command: Tid,
    /// The tracing process and its pidfd, once it has said who it is.
    tracer: Option<(Tid, OwnedFd)>,
    signals: SignalFd,
    witness: Witness,
    survivors: Survivors,
    messages: &'m Messages,
    /// The inherited descriptors, which are the command's.
    inherited: Vec<InheritedFd>,
    ended: Option<(CommandEnd, Instant)>,
    survivors_reported: bool,
    /// The signal that stopped the command, and when the front is to stop by it, too.
    stopping: Option<(i32, Instant)>,
    /// When the last SIGCONT came from another process.
    continued: Option<Moment>,
    /// Whether the terminal was closed whose session this process leads.
    hung_up: bool,
    /// A duplicate of the seccomp listener, which is only kept open: without any holder the kernel fails
    /// waiting calls with ENOSYS.
    listener: Option<OwnedFd>,
}

impl<'m> Front<'m> {
    /// A front for the command and for the tracing process at the other end of `channel`; all signals have to
    /// be blocked.
    pub fn new(
        channel: Channel,
        held: HeldFiles,
        command: Tid,
        signals: SignalFd,
        survivors: Survivors,
        messages: &'m Messages,
        inherited: Vec<InheritedFd>,
    ) -> Front<'m> {
        Front {
            channel,
            held,
            command,
            tracer: None,
            signals,
            witness: Witness::start(),
            survivors,
            messages,
            inherited,
            ended: None,
            survivors_reported: false,
            stopping: None,
            continued: None,
            hung_up: false,
            listener: None,
        }
    }

    /// Runs until the recording has ended or continues without it.
    pub fn run(mut self) -> Ending {
        loop {
            let (message, signal, held) = self.wait();
            if held {
                self.held.receive();
            }
            if signal {
                self.take_signals();
            }
            if message {
                match self.channel.receive::<ToFront>() {
                    Some((message, descriptor)) => {
                        if let Some(ending) = self.receive(message, descriptor) {
                            return ending;
                        }
                    }
                    None => {
                        self.wait_for_tracer();
                        self.end_command();
                        return Ending::Lost(self.held.into_files());
                    }
                }
            }
            self.report_survivors_if_due();
            // Messages first: the command may have been continued.
            if !message && !signal && !held {
                self.stop_if_due();
            }
        }
    }

    fn wait(&self) -> (bool, bool, bool) {
        let next = [
            self.ended.filter(|_| !self.survivors_reported).map(|(_, since)| since + PATIENCE),
            self.stopping.map(|(_, due)| due),
        ];
        let next = next.into_iter().flatten().min();
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        let [channel, signals, held] = [self.channel.as_fd(), self.signals.as_fd(), self.held.as_fd()];
        if self.held.has_ended() {
            let [message, signal] = wait_readable([channel, signals], timeout);
            return (message, signal, false);
        }
        wait_readable([channel, signals, held], timeout).into()
    }

    fn report_survivors_if_due(&mut self) {
        if let Some((_, since)) = self.ended
            && !self.survivors_reported
            && Instant::now() >= since + PATIENCE
        {
            self.survivors_reported = true;
            if self.survivors == Survivors::Wait {
                let processes =
                    self.tracer.as_ref().map_or_else(String::new, |(tracer, _)| traced_by(*tracer));
                self.messages.note(&format!(
                    "the command has ended; waiting for {processes} (Ctrl-C continues the recording in the background)"
                ));
            }
        }
    }

    fn take_signals(&mut self) {
        let us = std::process::id();
        let tracer = self.tracer.as_ref().map(|(tracer, _)| tracer.0.unsigned_abs());
        while let Ok(Some(received)) = self.signals.read_signal() {
            let is_from_kernel = received.ssi_code > 0;
            if !is_from_kernel && (received.ssi_pid == us || Some(received.ssi_pid) == tracer) {
                continue;
            }
            let signal = received.ssi_signo.cast_signed();
            if signal == libc::SIGCONT {
                self.continued = Some(Moment::now());
            }
            if self.ended.is_none() {
                let has_group = self.witness.has_received(signal);
                let is_forwarded = match (is_from_kernel, has_group) {
                    // Typed at the terminal: the command receives it, too, if it would without us.
                    (true, true) => false,
                    // The hangup of a terminal reaches the leader of its session alone (tty_ioctl(4)).
                    (true, false) => {
                        let hangs_up = is_session_leader() && matches!(signal, libc::SIGHUP | libc::SIGCONT);
                        self.hung_up |= hangs_up;
                        hangs_up
                    }
                    (false, true) => !self.is_command_in_our_group(),
                    (false, false) => true,
                };
                if is_forwarded {
                    let _ = sys::kill(self.command, signal);
                }
                continue;
            }
            match signal {
                // Return to the shell; the other processes are still recorded.
                libc::SIGINT | libc::SIGQUIT => self.channel.send(&ToTracer::Detach),
                libc::SIGTERM => self.channel.send(&ToTracer::EndTree),
                // Unless it was to be ignored: nohup(1).
                libc::SIGHUP if !sys::is_ignored(libc::SIGHUP) => self.channel.send(&ToTracer::EndTree),
                _ => {}
            }
        }
    }

    /// Sends SIGHUP to the foreground process group of the terminal, as the kernel does when the leader of a
    /// session ends: to the shell and to `sshd` the command is that leader, and this process may live on.
    fn leave_terminal(&self) {
        let terminal = rustix::fs::open(c"/dev/tty", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if let Ok(foreground) = terminal.and_then(rustix::termios::tcgetpgrp) {
            let _ = kill_process_group(foreground, Signal::HUP);
        } else if self.hung_up {
            let _ = kill_current_process_group(Signal::HUP);
            let _ = kill_current_process_group(Signal::CONT);
        }
    }

    fn is_command_in_our_group(&self) -> bool {
        getpgid(Some(Pid::from_raw(self.command.0))) == Ok(getpgrp())
    }

    /// Stops this process as the command was stopped, for the shell's job control.
    fn stop_if_due(&mut self) {
        let Some((signal, _)) = self.stopping.filter(|(_, due)| Instant::now() >= *due) else { return };
        if self.ended.is_some() {
            self.stopping = None;
            return;
        }
        // While it is blocked it stays pending, and a SIGCONT from now on discards it (signal(7)). If
        // there was a SIGCONT before, its message is there already, so check once more; the signal
        // descriptor ignores our own signal.
        let _ = sys::kill(Tid(std::process::id().cast_signed()), signal);
        if wait_readable([self.channel.as_fd()], Some(Duration::ZERO)) != [false] {
            return;
        }
        self.stopping = None;
        sys::default_disposition(signal);
        sys::unblock_signal(signal);
        sys::block_signals();
    }

    fn receive(&mut self, message: ToFront, descriptor: Option<OwnedFd>) -> Option<Ending> {
        match message {
            ToFront::Started(tracer) => {
                self.tracer = descriptor.map(|pidfd| (Tid(tracer), pidfd));
                None
            }
            ToFront::Launched => {
                self.listener = descriptor;
                // The command has its own; ours would only delay the end of a pipe.
                descriptors::drop_inherited(std::mem::take(&mut self.inherited), false);
                None
            }
            ToFront::Denied(why) => {
                self.end_command();
                Some(Ending::Denied(why))
            }
            ToFront::Failed(why) => {
                self.end_command();
                Some(Ending::Failed(why))
            }
            ToFront::NotExecuted(errno) => {
                self.end_command();
                Some(Ending::NotExecuted(errno))
            }
            ToFront::Stopped { signal, at } => {
                // A SIGCONT after the stop has probably continued the command as well.
                let over = self.continued.is_some_and(|continued| continued > at);
                let wait = if over { SIGCONT_GRACE } else { Duration::ZERO };
                self.stopping = Some((signal, Instant::now() + wait));
                None
            }
            ToFront::Continued => {
                self.stopping = None;
                None
            }
            ToFront::Ended(end) => {
                let _ = sys::wait_for_end(self.command);
                self.channel.send(&ToTracer::Reaped);
                // Neither is needed any more. Freeing them takes a while, in which the other process writes the snapshot.
                self.witness.end();
                self.listener.take_if(|listener| sys::has_no_tracee(listener.as_fd()));
                if is_session_leader() {
                    self.leave_terminal();
                }
                self.ended = Some((end, Instant::now()));
                None
            }
            ToFront::Detached { timed_out, no_snapshot } => {
                if let Some(why) = no_snapshot {
                    self.messages.say(&format!(
                        "no first snapshot was written: {why}; there will be one when the last process ends"
                    ));
                }
                self.keep_listener_open();
                let end = self.ended.map_or(CommandEnd::Exited(0), |(end, _)| end);
                Some(if timed_out {
                    Ending::TimedOut(RecordingOutcome {
                        timed_out: true,
                        complete: true,
                        ..RecordingOutcome::default()
                    })
                } else {
                    Ending::Detached(end)
                })
            }
            ToFront::Note(note) => {
                self.messages.say(&note);
                None
            }
            ToFront::Done(done) => {
                self.wait_for_tracer();
                let end = self.ended.map_or(CommandEnd::Exited(Exit::Failure.status()), |(end, _)| end);
                Some(if done.timed_out { Ending::TimedOut(done) } else { Ending::Recorded(end, done) })
            }
        }
    }

    /// Forks a process that keeps the listener open until the tracing process is gone.
    fn keep_listener_open(&self) {
        let (Some(listener), Some((_, tracer))) = (&self.listener, &self.tracer) else { return };
        let _ = sys::fork_holder(listener.as_fd(), tracer.as_fd());
    }

    /// Waits until the tracing process is gone, which releases the lock on the snapshot.
    fn wait_for_tracer(&self) {
        while self.channel.receive::<ToFront>().is_some() {}
        if let Some((_, tracer)) = &self.tracer {
            wait_readable([tracer.as_fd()], None);
        }
    }

    /// Kills the command, if it still runs, and reaps it.
    fn end_command(&self) {
        if self.ended.is_none() {
            let _ = sys::kill(self.command, libc::SIGKILL);
            let _ = sys::wait_for_end(self.command);
        }
    }
}

/// Whether this process is the leader of its session.
fn is_session_leader() -> bool {
    getsid(None) == Ok(getpid())
}

/// Ends this process by `signal`, as the command ended, without a core dump.
pub fn die_by(signal: i32) {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    sys::default_disposition(signal);
    sys::unblock_signal(signal);
    let _ = sys::kill(Tid(std::process::id().cast_signed()), signal);
}

/// Lists the processes that `tracer` still traces.
fn traced_by(tracer: Tid) -> String {
    let mut names = Vec::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(status) = ProcStatus::of(Tid(pid)) else { continue };
        if status.line("TracerPid:") == Some(&tracer.0.to_string()) {
            let name = status.line("Name:").unwrap_or("?");
            let name: String = name.chars().filter(|c| !c.is_control()).collect();
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
