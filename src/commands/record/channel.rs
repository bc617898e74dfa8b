//! The channel between the two processes of a recording: JSON messages over a SOCK_SEQPACKET socket pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::trace::seqpacket;

/// The most bytes of a message in one packet; a longer message takes several.
const PART: usize = 32 << 10;
/// The last byte of a packet says whether its message ends with it.
const GOES_ON: u8 = 0;
const ENDS: u8 = 1;

/// A moment that both processes can compare: nanoseconds of CLOCK_MONOTONIC (clock_gettime(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(i64);

impl Moment {
    /// The current time.
    pub fn now() -> Moment {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Moment(now.tv_sec * 1_000_000_000 + now.tv_nsec)
    }
}

/// Messages from the tracing process to the front.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToFront {
    /// The id of the tracing process; with its pidfd.
    Started(i32),
    /// The command is about to run; with the seccomp listener, if there is one.
    Launched,
    /// Tracing is impossible; nothing was run.
    Denied(String),
    /// Something else went wrong before the launch; nothing was run.
    Failed(String),
    /// The command could not be executed: the errno.
    NotExecuted(i32),
    /// The command was stopped by a signal of the terminal.
    Stopped {
        /// The number.
        signal: i32,
        /// When the tracer received the stop.
        at: Moment,
    },
    /// The command continues. SIGCONT is sent after this message, in case the front is already stopped.
    Continued,
    /// The command has ended: its status, or the signal.
    Ended(CommandEnd),
    /// The recording continues without the front.
    Detached {
        /// Whether `--timeout` is ending it.
        timed_out: bool,
        /// Why there is no first snapshot.
        no_snapshot: Option<String>,
    },
    /// Something that the user is told at once.
    Note(String),
    /// The recording has ended, with or without a manifest.
    Done(RecordingOutcome),
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnd {
    /// By exit.
    Exited(i32),
    /// By a signal.
    Killed(i32),
}

impl CommandEnd {
    /// The status as a shell shows it.
    pub fn exit_status(self) -> i32 {
        match self {
            CommandEnd::Exited(status) => status,
            CommandEnd::Killed(signal) => 128 + signal,
        }
    }
}

/// The outcome of a recording.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RecordingOutcome {
    /// Why there is no manifest.
    pub error: Option<String>,
    /// Whether `--timeout` ended the process tree.
    pub timed_out: bool,
    /// Whether the first refusal of a forbidden call ended it.
    pub at_refusal: bool,
    /// Whether the manifest is complete.
    pub complete: bool,
    /// Messages that are printed with any kind of report.
    pub notes: Vec<String>,
    /// The report that was asked for.
    pub report: String,
    /// What the rules of the user come to, if there are any.
    pub policy: Option<Box<PolicyOutcome>>,
}

/// What the rules of the user come to.
#[derive(Debug, Serialize, Deserialize)]
pub struct PolicyOutcome {
    /// The findings, and what was refused; sentences.
    pub findings: Vec<String>,
    /// Why the recording does not pass; none if it does.
    pub failure: Option<String>,
}

impl RecordingOutcome {
    /// No manifest was written, for this reason.
    pub fn failed(error: String, timed_out: bool) -> RecordingOutcome {
        RecordingOutcome { error: Some(error), timed_out, ..RecordingOutcome::default() }
    }
}

/// Messages from the front to the tracing process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum ToTracer {
    /// The front has reaped the command.
    Reaped,
    /// End every process of the process tree.
    EndTree,
    /// Continue without the front.
    Detach,
}

/// One end of the channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// Locked while a message is sent, so that its packets stay together.
    sending: Mutex<()>,
}

impl Channel {
    /// Both ends.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = seqpacket::pair()?;
        let channel = |socket| Channel { socket, sending: Mutex::new(()) };
        Ok((channel(one), channel(other)))
    }

    /// Sends a message; it is no error if the peer is gone.
    pub fn send(&self, message: &impl Serialize) {
        self.send_with(message, None);
    }

    /// The same, with a duplicate of `descriptor`.
    pub fn send_with(&self, message: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) {
        let bytes = serde_json::to_vec(message).unwrap_or_default();
        let _together = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut descriptor = descriptor;
        let mut parts = bytes.chunks(PART).peekable();
        while let Some(part) = parts.next() {
            let end = if parts.peek().is_some() { GOES_ON } else { ENDS };
            if seqpacket::send(&self.socket, &[part, &[end]].concat(), descriptor.take()).is_err() {
                return;
            }
        }
    }

    /// Sends a short message if the peer has room for it, and says whether it had.
    pub fn try_send(&self, message: &impl Serialize) -> bool {
        let mut packet = serde_json::to_vec(message).unwrap_or_default();
        packet.push(ENDS);
        let _together = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        seqpacket::offer(&self.socket, &packet, None).is_ok()
    }

    /// Receives the next message, and the descriptor that was sent with it; none if the peer is gone.
    pub fn receive<T: for<'a> Deserialize<'a>>(&self) -> Option<(T, Option<OwnedFd>)> {
        let mut message = Vec::new();
        let mut descriptor = None;
        loop {
            let mut packet = vec![0; seqpacket::next_length(&self.socket).ok()?];
            let (count, passed) = seqpacket::receive(&self.socket, &mut packet).ok()?;
            descriptor = descriptor.or(passed);
            let (end, part) = packet.get(..count)?.split_last()?;
            message.extend_from_slice(part);
            if *end == ENDS {
                return Some((serde_json::from_slice(&message).ok()?, descriptor));
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_any_length_arrives_whole_among_others() {
        let (one, other) = Channel::pair().unwrap();
        let report = "\u{1}\"ä".repeat(100_000);
        std::thread::scope(|scope| {
            let sent = RecordingOutcome {
                report: report.clone(),
                ..RecordingOutcome::failed("why".to_owned(), false)
            };
            let one = &one;
            scope.spawn(move || one.send(&ToFront::Done(sent)));
            scope.spawn(move || (0..50).for_each(|_| one.send(&ToFront::Continued)));
            let (mut done, mut others) = (0, 0);
            while done + others < 51 {
                match other.receive::<ToFront>().unwrap().0 {
                    ToFront::Done(received) => {
                        assert_eq!(received.report, report);
                        done += 1;
                    }
                    ToFront::Continued => others += 1,
                    message => panic!("{message:?}"),
                }
            }
        });
        drop(one);
        assert!(other.receive::<ToFront>().is_none());
    }
}
