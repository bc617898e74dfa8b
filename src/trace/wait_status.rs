//! Why waitpid(2) returned for a tracee: a raw wait status as one of a few kinds. Pure.
//!
//! Neighbour: `tracer.rs` acts on it.

/// Why waitpid(2) returned for a thread (ptrace(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    /// It has ended.
    Ended(End),
    /// It is in ptrace-stop until resumed.
    Stopped(Stop),
}

/// How a thread or process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By exit, with this status.
    Exited(i32),
    /// By a signal; whether the kernel says that it dumped core.
    Killed {
        /// The signal's number.
        signal: i32,
        /// WCOREDUMP of wait(2).
        core_dumped: bool,
    },
}

/// How a thread or process was created, as ptrace(2) distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// With SIGCHLD as its signal of termination.
    Fork,
    /// Its creator waits until it has executed a program or ended (CLONE_VFORK).
    Vfork,
    /// Anything else.
    Clone,
}

impl End {
    /// The raw wait status.
    pub fn raw(self) -> i32 {
        match self {
            End::Exited(status) => status << 8,
            End::Killed { signal, core_dumped } => signal | if core_dumped { 0x80 } else { 0 },
        }
    }

    /// Reads the raw wait status of a process that has ended.
    pub fn from_raw(status: i32) -> End {
        if libc::WIFEXITED(status) {
            return End::Exited(libc::WEXITSTATUS(status));
        }
        End::Killed { signal: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
    }

    /// The status as a shell shows it: 128+N after signal N.
    pub fn exit_status(self) -> i32 {
        match self {
            End::Exited(status) => status,
            End::Killed { signal, .. } => 128 + signal,
        }
    }
}

/// Why a tracee is in ptrace-stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The entry or exit of a syscall; PTRACE_GET_SYSCALL_INFO tells which.
    Syscall,
    /// It created a thread or process; the message is the new tid.
    Clone(Creation),
    /// It executed a program; the message is its former tid.
    Exec,
    /// Another ptrace event, which needs nothing: its number.
    Other(i32),
    /// A group-stop: this signal stopped its whole process.
    Group(i32),
    /// The first stop of a new tracee, the end of a group-stop, or PTRACE_INTERRUPT.
    Trap,
    /// A signal-delivery-stop; the raw number, since it may be a real-time signal.
    Signal(i32),
}

impl WaitStatus {
    /// Reads a raw status.
    pub fn from_raw(status: i32) -> WaitStatus {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            return WaitStatus::Ended(End::from_raw(status));
        }
        let signal = libc::WSTOPSIG(status);
        WaitStatus::Stopped(match status >> 16 {
            0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            0 => Stop::Signal(signal),
            libc::PTRACE_EVENT_SECCOMP => Stop::Syscall,
            libc::PTRACE_EVENT_FORK => Stop::Clone(Creation::Fork),
            libc::PTRACE_EVENT_CLONE => Stop::Clone(Creation::Clone),
            libc::PTRACE_EVENT_VFORK => Stop::Clone(Creation::Vfork),
            libc::PTRACE_EVENT_EXEC => Stop::Exec,
            libc::PTRACE_EVENT_STOP => match signal {
                libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => Stop::Group(signal),
                _ => Stop::Trap,
            },
            event => Stop::Other(event),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(signal: i32, event: i32) -> WaitStatus {
        WaitStatus::from_raw(event << 16 | signal << 8 | 0x7f)
    }

    #[test]
    fn a_bare_trap_is_the_programs_own_signal() {
        assert_eq!(stopped(libc::SIGTRAP, 0), WaitStatus::Stopped(Stop::Signal(libc::SIGTRAP)));
        assert_eq!(stopped(libc::SIGTRAP | 0x80, 0), WaitStatus::Stopped(Stop::Syscall));
    }

    #[test]
    fn real_time_signals_keep_their_numbers() {
        assert_eq!(stopped(63, 0), WaitStatus::Stopped(Stop::Signal(63)));
        assert_eq!(
            WaitStatus::from_raw(63),
            WaitStatus::Ended(End::Killed { signal: 63, core_dumped: false })
        );
    }

    #[test]
    fn an_event_stop_is_a_group_stop_only_for_stopping_signals() {
        for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            assert_eq!(stopped(signal, libc::PTRACE_EVENT_STOP), WaitStatus::Stopped(Stop::Group(signal)));
        }
        assert_eq!(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_STOP), WaitStatus::Stopped(Stop::Trap));
    }

    #[test]
    fn an_end_by_signal_is_128_and_the_signal() {
        assert_eq!(WaitStatus::from_raw(7 << 8), WaitStatus::Ended(End::Exited(7)));
        let End::Killed { signal: 11, core_dumped: true } = (match WaitStatus::from_raw(0x80 | 11) {
            WaitStatus::Ended(end) => end,
            WaitStatus::Stopped(_) => panic!("not a stop"),
        }) else {
            panic!("not a core dump")
        };
        assert_eq!(End::Killed { signal: 11, core_dumped: true }.exit_status(), 139);
    }
}
