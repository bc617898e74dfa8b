//! What a run of the program comes to, and the exit status that says so.
//!
//! Every exit status has its number here. A verb or recording ends with an [`Exit`]; [`Exit::of_error`] turns
//! an error into one.

use super::out::OutputError;
use crate::{agents, library, restore, snapshot};

/// What a verb comes to; an error says that it could not do its work.
pub type VerbResult = anyhow::Result<Exit>;

/// The options contradict each other or the snapshot that they are used on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// What is asked for is well named, and there is none of it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Nothing(pub String);

/// What a run of the program comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Success,
    /// A finding: drift, a conflict, unavailable content, a difference with `--exit-code`, settings that are not to
    /// be changed.
    Finding,
    /// The command line of a verb is wrong.
    Usage,
    /// The snapshot is invalid or unsafe.
    BadSnapshot,
    /// Any other failure of ours; for a recording, also a wrong command line.
    Failure,
    /// `--timeout` ended the recorded command.
    TimedOut,
    /// The command to record is not executable.
    NotExecutable,
    /// The command to record does not exist.
    NotFound,
    /// The recorded command ended with this status, as a shell shows it.
    Command(i32),
    /// Nobody reads standard output any more.
    ClosedPipe,
}

impl Exit {
    /// The exit status.
    pub fn status(self) -> i32 {
        match self {
            Exit::Success => 0,
            Exit::Finding => 1,
            Exit::Usage => 2,
            Exit::BadSnapshot => 3,
            Exit::TimedOut => 124,
            Exit::Failure => 125,
            Exit::NotExecutable => 126,
            Exit::NotFound => 127,
            Exit::Command(status) => status,
            // What a shell shows of a program that the signal ended.
            Exit::ClosedPipe => 128 + libc::SIGPIPE,
        }
    }

    /// What an error of a verb comes to.
    pub fn of_error(error: &anyhow::Error) -> Exit {
        if error.downcast_ref::<OutputError>().is_some_and(OutputError::is_closed_pipe) {
            return Exit::ClosedPipe;
        }
        if error.is::<UsageError>() {
            return Exit::Usage;
        }
        if error.is::<Nothing>() {
            return Exit::Finding;
        }
        match error.downcast_ref::<agents::Error>() {
            Some(agents::Error::Refused(_)) => return Exit::Finding,
            Some(agents::Error::Io { .. }) => return Exit::Failure,
            None => {}
        }
        match error.downcast_ref::<library::Error>() {
            Some(
                library::Error::NoSuch(_)
                | library::Error::Ambiguous(_)
                | library::Error::OtherSession(_)
                | library::Error::Unsafe(_),
            ) => return Exit::BadSnapshot,
            Some(library::Error::Snapshot(error)) => return Exit::of_snapshot(error),
            Some(library::Error::Io { .. }) | None => {}
        }
        let of_snapshot = match error.downcast_ref::<restore::Error>() {
            Some(restore::Error::NotEmpty(_)) => return Exit::Usage,
            Some(restore::Error::Overtaken(_)) => return Exit::Finding,
            Some(restore::Error::Snapshot(error)) => Some(error),
            Some(_) => return Exit::Failure,
            None => error.downcast_ref(),
        };
        of_snapshot.map_or(Exit::Failure, Exit::of_snapshot)
    }

    fn of_snapshot(error: &snapshot::Error) -> Exit {
        match error {
            snapshot::Error::Format(_) | snapshot::Error::Corrupt(_) | snapshot::Error::Unsafe(_) => {
                Exit::BadSnapshot
            }
            // If nothing is there, it is no snapshot.
            snapshot::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Exit::BadSnapshot
            }
            _ => Exit::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_exit_status() {
        let io =
            |kind: std::io::ErrorKind| snapshot::Error::Io { what: "open x".to_owned(), source: kind.into() };
        let status = |error: anyhow::Error| Exit::of_error(&error).status();
        assert_eq!(status(UsageError("x".to_owned()).into()), 2);
        assert_eq!(status(Nothing("x".to_owned()).into()), 1);
        assert_eq!(status(snapshot::Error::Format("x".to_owned()).into()), 3);
        assert_eq!(status(snapshot::Error::Corrupt("x".to_owned()).into()), 3);
        assert_eq!(status(snapshot::Error::Unsafe("x".to_owned()).into()), 3);
        assert_eq!(status(anyhow::Error::from(snapshot::Error::Unsafe("x".to_owned())).context("y")), 3);
        assert_eq!(status(io(std::io::ErrorKind::NotFound).into()), 3);
        assert_eq!(status(io(std::io::ErrorKind::PermissionDenied).into()), 125);
        assert_eq!(status(anyhow::anyhow!("x")), 125);
        assert_eq!(status(agents::Error::Refused("x".to_owned()).into()), 1);
        let corrupt = || restore::Error::from(snapshot::Error::Corrupt("x".to_owned()));
        assert_eq!(status(corrupt().into()), 3);
        assert_eq!(status(restore::Error::Rescue(Box::new(corrupt())).into()), 125);
        assert_eq!(status(restore::Error::NotEmpty("x".to_owned()).into()), 2);
        assert_eq!(status(restore::Error::Overtaken("x".to_owned()).into()), 1);
        let closed = OutputError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(status(closed.into()), 141);
    }
}
