//! Starts the command so that it never runs a moment unwatched.
//!
//! The child waits on a pipe until it is seized, installs the filter and executes at once. Its
//! dispositions, limits and descriptors are those that this process was started with, since
//! nothing here has changed them before the fork; the signal mask is given back.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;

use super::filter::Instruction;
use super::sys::{self, Fork, SignalMask, Tid};
use super::tracer::Mechanism;

/// What to start.
pub struct Program {
    /// The file to execute.
    pub path: CString,
    /// Its arguments, its name first.
    pub argv: Vec<CString>,
    /// The signals that are to be blocked in it.
    pub mask: SignalMask,
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
    pub mechanism: Mechanism,
    go: std::fs::File,
    status: std::fs::File,
}

const FILTERED: u8 = 1;
const UNFILTERED: u8 = 2;

impl Launched {
    /// Lets the command execute.
    pub fn release(&mut self) -> io::Result<()> {
        if self.mechanism == Mechanism::EveryCall {
            // Stopped before it returns from its read, it meets its first call under PTRACE_SYSCALL.
            sys::interrupt(self.command)?;
        }
        self.go.write_all(b"g")
    }

    /// Ends a command that was not released.
    pub fn abandon(self) {
        let _ = sys::kill(self.command, libc::SIGKILL);
        let _ = sys::wait_any();
    }

    /// The error of the command's execve, once the tree has ended; none where it succeeded.
    pub fn exec_error(mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.status.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_le_bytes(errno)))
    }
}

/// Forks and seizes the command, which then waits for its release; with `filter` where the kernel
/// takes it.
///
/// This process must have one thread only.
pub fn launch(program: &Program, filter: Option<&[Instruction]>) -> Result<Launched, LaunchError> {
    let (go_read, go_write) = pipe()?;
    let (status_read, status_write) = pipe()?;
    let command = match sys::fork()? {
        Fork::Child => {
            drop((go_write, status_read));
            run_child(program, filter, go_read.into(), status_write.into())
        }
        Fork::Parent(child) => child,
    };
    drop((go_read, status_write));
    let mut go = std::fs::File::from(go_write);
    let mut status = std::fs::File::from(status_read);
    if let Err(error) = sys::seize(command) {
        let _ = sys::kill(command, libc::SIGKILL);
        let _ = sys::wait_any();
        return Err(LaunchError::Denied(error));
    }
    go.write_all(b"g")?;
    let mut answer = [0];
    status.read_exact(&mut answer)?;
    let mechanism = if answer[0] == FILTERED { Mechanism::Filter } else { Mechanism::EveryCall };
    Ok(Launched { command, mechanism, go, status })
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

fn run_child(
    program: &Program,
    filter: Option<&[Instruction]>,
    mut go: std::fs::File,
    mut status: std::fs::File,
) -> ! {
    let mut byte = [0];
    // The tracer's end closes when it dies: then there is nothing to run for.
    if go.read_exact(&mut byte).is_err() {
        sys::exit_now(125);
    }
    let filtered = filter.is_some_and(|filter| sys::install_filter(filter).is_ok());
    let answer = if filtered { FILTERED } else { UNFILTERED };
    if status.write_all(&[answer]).is_err() || go.read_exact(&mut byte).is_err() {
        sys::exit_now(125);
    }
    let argv: Vec<_> = program.argv.iter().map(CString::as_c_str).collect();
    program.mask.restore();
    let mut error = sys::execute(&program.path, &argv);
    if error.raw_os_error() == Some(libc::ENOEXEC) {
        // As execvp(3): a text file without `#!` is a script of the shell.
        let mut shell = vec![c"/bin/sh", program.path.as_c_str()];
        shell.extend(argv.iter().skip(1));
        error = sys::execute(c"/bin/sh", &shell);
    }
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let _ = status.write_all(&errno.to_le_bytes());
    sys::exit_now(127);
}
