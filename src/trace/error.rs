//! The error of this module.

use std::io;

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not let us trace the command.
    #[error(
        "tracing is denied here (PTRACE_SEIZE: {0}): another tracer, a container or a security module forbids it"
    )]
    Denied(io::Error),
    /// The kernel lets us trace the command, but does not tell its system calls.
    #[error("tracing is denied here (PTRACE_GET_SYSCALL_INFO: {0}): a container forbids it")]
    NoSyscallInfo(io::Error),
    /// What is mounted at /proc tells nothing of this process, or of another one under its number.
    #[error(
        "/proc does not show the processes of this PID namespace: mount a procfs there (unshare --mount-proc, bwrap --proc)"
    )]
    ForeignProcfs,
    /// The kernel refuses to confine the command.
    #[error("the command can't enter a Landlock domain: domains are nested too deeply")]
    NotConfined,
    /// Anything else that the kernel refused.
    #[error("cannot start a process: {0}")]
    Os(#[from] io::Error),
}
