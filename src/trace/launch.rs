//! Starts the command so that it never runs a moment unwatched.
//!
//! The child waits on a socket until it is seized, installs the filter and executes at once. Its
//! dispositions and descriptors are those that this process was started with, since nothing here has
//! changed them before the fork; the signal mask, the limits and the umask are given back.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::attributes::ProcessAttributes;
use super::filter::{self, Actions, Instruction, Interception};
use super::seqpacket;
use super::sys::{self, Fork, Tid};

/// What to start.
pub struct Program {
    /// The file to execute.
    pub path: CString,
    /// Its arguments, its name first.
    pub argv: Vec<CString>,
    /// What it inherits beside its descriptors and the dispositions of signals.
    pub attributes: ProcessAttributes,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The kernel does not let us trace our own child.
    #[error(
        "tracing is denied here (PTRACE_SEIZE: {0}): another tracer, a container or a security module forbids it"
    )]
    Denied(io::Error),
    /// Anything else that the kernel refused.
    #[error("cannot start a process: {0}")]
    Os(#[from] io::Error),
}

/// A command that waits to execute, seized.
pub struct Launched {
    /// Its process.
    pub command: Tid,
    /// How its calls are caught.
    pub interception: Interception,
    /// Where calls that only look wait for their answer, with [`Interception::Notifications`].
    pub listener: Option<OwnedFd>,
    talk: OwnedFd,
}

const GO: &[u8] = b"go";
const STOPS: &[u8] = b"stops";
const LANES: &[u8] = b"lanes";
const NO_FILTER: &[u8] = b"no filter";

impl Launched {
    /// Lets the command execute.
    pub fn release(&self) -> io::Result<()> {
        if self.interception == Interception::EveryCall {
            // Stopped before it returns from its read, it meets its first call under PTRACE_SYSCALL.
            sys::interrupt(self.command)?;
        }
        seqpacket::send(&self.talk, GO, None)
    }

    /// Ends a command that was not released.
    pub fn abandon(self) {
        abandon(self.command);
    }

    /// The error of the command's execve, once the tree has ended; none where it succeeded.
    pub fn exec_error(self) -> Option<io::Error> {
        let mut errno = [0; 4];
        let (length, _) = seqpacket::receive(&self.talk, &mut errno).ok()?;
        (length == errno.len()).then(|| io::Error::from_raw_os_error(i32::from_le_bytes(errno)))
    }
}

/// A command that is seized and installs its filter, which takes it a while.
pub struct Launching {
    /// Its process.
    pub command: Tid,
    talk: OwnedFd,
}

/// Forks and seizes the command, which then waits for its release; its calls are caught by `wanted`, or
/// by the next simpler interception that the kernel allows.
///
/// This process must have one thread only.
pub fn launch(program: &Program, wanted: Interception) -> Result<Launching, LaunchError> {
    let lanes =
        (wanted == Interception::Notifications && has_lanes()).then(|| filter::program(Actions::LANES));
    let (talk, theirs) = seqpacket::pair()?;
    let command = match sys::fork()? {
        Fork::Child => {
            drop(talk);
            run_child(program, lanes.as_deref(), wanted, &theirs)
        }
        Fork::Parent(child) => child,
    };
    drop(theirs);
    if let Err(error) = sys::seize(command) {
        abandon(command);
        return Err(LaunchError::Denied(error));
    }
    seqpacket::send(&talk, GO, None)?;
    Ok(Launching { command, talk })
}

impl Launching {
    /// Waits until the filter is installed.
    pub fn installed(self) -> Result<Launched, LaunchError> {
        let Launching { command, talk } = self;
        let mut answer = [0; 16];
        let (length, listener) = seqpacket::receive(&talk, &mut answer)?;
        let interception = match &answer[..length] {
            LANES if listener.is_some() => Interception::Notifications,
            STOPS => Interception::Stops,
            NO_FILTER => Interception::EveryCall,
            _ => return Err(io::Error::other("the command's process ended before it was started").into()),
        };
        if let Some(listener) = &listener {
            // Where that is not to be had, calls are answered all the same.
            let _ = sys::wake_on_one_cpu(listener.as_fd());
        }
        Ok(Launched { command, interception, listener, talk })
    }

    /// Ends the command.
    pub fn abandon(self) {
        abandon(self.command);
    }
}

fn abandon(command: Tid) {
    let _ = sys::kill(command, libc::SIGKILL);
    let _ = sys::wait_any();
}

/// Whether the kernel answers waiting calls fast (Linux 6.6), and in messages that we know.
fn has_lanes() -> bool {
    let Ok(name) = nix::sys::utsname::uname() else { return false };
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    (major, minor) >= (6, 6) && sys::notification_sizes_known()
}

fn install(lanes: Option<&[Instruction]>, wanted: Interception) -> (&'static [u8], Option<OwnedFd>) {
    if let Some(listener) = lanes.and_then(|lanes| sys::install_filter_with_listener(lanes).ok()) {
        return (LANES, Some(listener));
    }
    if wanted != Interception::EveryCall && sys::install_filter(&filter::program(Actions::TRACE)).is_ok() {
        return (STOPS, None);
    }
    (NO_FILTER, None)
}

/// Waits until the tracer says so; when it is dead there is nothing to run for.
fn wait_for_go(talk: &OwnedFd) {
    let mut word = [0; 16];
    match seqpacket::receive(talk, &mut word) {
        Ok((length, _)) if &word[..length] == GO => {}
        _ => sys::exit_now(125),
    }
}

fn run_child(program: &Program, lanes: Option<&[Instruction]>, wanted: Interception, talk: &OwnedFd) -> ! {
    wait_for_go(talk);
    let (answer, listener) = install(lanes, wanted);
    if seqpacket::send(talk, answer, listener.as_ref().map(AsFd::as_fd)).is_err() {
        sys::exit_now(125);
    }
    drop(listener);
    wait_for_go(talk);
    let argv: Vec<_> = program.argv.iter().map(CString::as_c_str).collect();
    program.attributes.restore();
    let mut error = sys::execute(&program.path, &argv);
    if error.raw_os_error() == Some(libc::ENOEXEC) {
        // As execvp(3): a text file without `#!` is a script of the shell.
        let mut shell = vec![c"/bin/sh", program.path.as_c_str()];
        shell.extend(argv.iter().skip(1));
        error = sys::execute(c"/bin/sh", &shell);
    }
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let _ = seqpacket::send(talk, &errno.to_le_bytes(), None);
    sys::exit_now(127);
}
