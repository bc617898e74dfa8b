//! The process that carries the output of a command from pipes to where it goes, and keeps it in a log.
//!
//! A process of its own: it goes on for what outlives the command and the front, and a reader that waits stops nobody
//! but the command.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::setsid;

use crate::recall::output_log::{self, FRAME, Stream};
use crate::trace::sys::{self, Fork, Tid};

/// How the output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayEnd {
    /// All of it is in the log.
    Complete,
    /// It was larger than the log may be.
    TooLarge,
    /// Whoever read it has gone.
    Closed,
    /// The log could not be written.
    Failed,
}

impl RelayEnd {
    const ALL: [RelayEnd; 4] = [RelayEnd::Complete, RelayEnd::TooLarge, RelayEnd::Closed, RelayEnd::Failed];

    fn status(self) -> i32 {
        let at = RelayEnd::ALL.iter().position(|end| *end == self);
        at.and_then(|at| i32::try_from(at).ok()).unwrap_or(1)
    }
}

/// The process, and the ends of the pipes that the command writes to.
#[derive(Debug)]
pub struct Relay {
    process: Tid,
    /// Standard output, and standard error if that goes elsewhere.
    pipes: Vec<OwnedFd>,
}

impl Relay {
    /// Starts the process, which writes up to `limit` bytes into `log`.
    ///
    /// # Errors
    /// A pipe or a process can't be made.
    pub fn start(log: &File, limit: u64, has_one_output: bool) -> io::Result<Relay> {
        let streams = if has_one_output { &[Stream::Out][..] } else { &[Stream::Out, Stream::Error] };
        let (mut sources, mut pipes) = (Vec::new(), Vec::new());
        for stream in streams {
            let (read, write) = io::pipe()?;
            sources.push((*stream, OwnedFd::from(read)));
            pipes.push(OwnedFd::from(write));
        }
        match sys::fork()? {
            Fork::Child => {
                drop(pipes);
                // What ends the process group of the command does not take its last words.
                let _ = setsid();
                let mut log = OutputLog { file: log, left: limit, end: RelayEnd::Complete };
                while !sources.is_empty() {
                    carry(&mut sources, &mut log);
                }
                sys::exit_now(log.end.status())
            }
            Fork::Parent(process) => Ok(Relay { process, pipes }),
        }
    }

    /// Does `launch` with the pipes as standard output and standard error of this process, and closes them then.
    ///
    /// # Errors
    /// The descriptors can't be replaced.
    pub fn as_outputs<T>(&mut self, launch: impl FnOnce() -> T) -> io::Result<T> {
        let saved = (fcntl_dupfd_cloexec(io::stdout(), 3)?, fcntl_dupfd_cloexec(io::stderr(), 3)?);
        let flags = (rustix::io::fcntl_getfd(io::stdout())?, rustix::io::fcntl_getfd(io::stderr())?);
        let pipes = std::mem::take(&mut self.pipes);
        if let (Some(out), Some(error)) = (pipes.first(), pipes.last()) {
            rustix::stdio::dup2_stdout(out)?;
            rustix::stdio::dup2_stderr(error)?;
        }
        let launched = launch();
        rustix::stdio::dup2_stdout(&saved.0)?;
        rustix::stdio::dup2_stderr(&saved.1)?;
        restore_flags(io::stdout().as_fd(), flags.0)?;
        restore_flags(io::stderr().as_fd(), flags.1)?;
        Ok(launched)
    }

    /// Waits until nobody can write any more.
    pub fn wait(&self) -> RelayEnd {
        let status = sys::wait_for_end(self.process).ok();
        let end = status.and_then(|status| RelayEnd::ALL.get(usize::try_from(status).ok()?).copied());
        end.unwrap_or(RelayEnd::Failed)
    }
}

fn restore_flags(fd: BorrowedFd<'_>, flags: FdFlags) -> io::Result<()> {
    Ok(fcntl_setfd(fd, flags)?)
}

struct OutputLog<'a> {
    file: &'a File,
    left: u64,
    end: RelayEnd,
}

impl OutputLog<'_> {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        if self.end != RelayEnd::Complete {
            return;
        }
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return self.give_up(RelayEnd::TooLarge),
        }
        if output_log::append(&mut self.file, stream, bytes).is_err() {
            self.give_up(RelayEnd::Failed);
        }
    }

    fn give_up(&mut self, why: RelayEnd) {
        self.end = why;
        // What is of no use takes no space.
        let _ = self.file.set_len(0);
    }
}

/// Waits for output, and carries what there is.
fn carry(sources: &mut Vec<(Stream, OwnedFd)>, log: &mut OutputLog<'_>) {
    let mut ready: Vec<PollFd<'_>> =
        sources.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
    if let Err(error) = poll(&mut ready, None)
        && error != Errno::INTR
    {
        return sources.clear();
    }
    let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
    let mut buffer = [0; FRAME];
    let mut is_ready = ready.into_iter();
    sources.retain(|(stream, pipe)| {
        if is_ready.next() != Some(true) {
            return true;
        }
        let count = match rustix::io::read(pipe, &mut buffer) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return true,
            Err(_) => 0,
        };
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { return false };
        log.add(*stream, bytes);
        let written = match stream {
            Stream::Out => write_all(io::stdout().as_fd(), bytes),
            Stream::Error => write_all(io::stderr().as_fd(), bytes),
        };
        if written.is_err() && log.end == RelayEnd::Complete {
            log.give_up(RelayEnd::Closed);
        }
        // Without the pipe the command gets a SIGPIPE, as it would without us.
        written.is_ok()
    });
}

/// Writes to a descriptor that somebody else may have made non-blocking.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
