//! The verbs, one a file, and what their outcomes mean to the shell.
//!
//! The only place that prints. A verb is a function from its options and a [`Console`] to an
//! [`Outcome`]; here is the one function that makes an exit status of it. Neighbours: `cli` has the
//! options, `snapshot` does the work.

pub mod branch;
pub mod cat;
pub mod change;
pub mod completions;
pub mod diff;
mod json;
pub mod out;
pub mod paths;
mod progress;
pub mod record;
pub mod restore;
pub mod show;
#[cfg(test)]
mod testing;
pub mod verify;

use crate::cli::{Cli, Verb};
use crate::snapshot;
use out::{Console, OutputError};

/// What a verb that did its work has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Fine,
    /// A finding: drift, a conflict, bytes that can't be had, a difference that was asked for.
    Finding,
}

/// What a verb comes to; an error says that it could not do its work.
pub type Outcome = anyhow::Result<Verdict>;

/// The options contradict each other or the snapshot that they are used on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Does what the command line says and returns the exit status.
pub fn run(parsed: Result<Cli, clap::Error>) -> i32 {
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // Help and version are no errors; of a recording every failure of ours is 125.
            return if error.use_stderr() { usage_status(std::env::args_os().nth(1)) } else { 0 };
        }
    };
    match cli.verb {
        None => record::run(cli.record),
        Some(verb) => run_verb(verb),
    }
}

/// A usage error of a subcommand is 2, of a recording 125.
fn usage_status(first: Option<std::ffi::OsString>) -> i32 {
    use clap::CommandFactory;
    let is_verb = first
        .and_then(|first| first.into_string().ok())
        .is_some_and(|first| Cli::command().get_subcommands().any(|verb| verb.get_name() == first));
    if is_verb { 2 } else { 125 }
}

/// Runs a verb on the standard streams, tells what went wrong, and returns the exit status.
pub fn run_verb(verb: Verb) -> i32 {
    run_on(verb, &mut Console::standard())
}

fn run_on(verb: Verb, console: &mut Console) -> i32 {
    let outcome = dispatch(verb, console).and_then(|verdict| {
        console.flush()?;
        Ok(verdict)
    });
    let status = exit_status(&outcome);
    if let Err(error) = &outcome
        && status != CLOSED_PIPE
    {
        console.say(format_args!("{}", sentence(error)));
    }
    status
}

/// The error and its causes; one that is told in the sentence already is not told again.
fn sentence(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |text, cause| if text.ends_with(&cause) { text } else { format!("{text}: {cause}") })
}

fn dispatch(verb: Verb, console: &mut Console) -> Outcome {
    match verb {
        Verb::Show(args) => show::run(&args, console),
        Verb::Cat(args) => cat::run(&args, console),
        Verb::Diff(args) => diff::run(&args, console),
        Verb::Completions { shell } => completions::completions(shell, console),
        Verb::Man => completions::man(console),
        Verb::Verify(args) => verify::run(&args, console),
        Verb::Branch(args) => branch::run(&args, console),
        Verb::Restore(args) => restore::run(&args, console),
    }
}

/// What a shell sees of a program that a closed pipe ended: 128 + SIGPIPE.
const CLOSED_PIPE: i32 = 128 + libc::SIGPIPE;

/// The exit status of an outcome: 0 fine, 1 a finding, 2 usage, 3 an invalid or unsafe snapshot, 125
/// anything else.
pub fn exit_status(outcome: &Outcome) -> i32 {
    let error = match outcome {
        Ok(Verdict::Fine) => return 0,
        Ok(Verdict::Finding) => return 1,
        Err(error) => error,
    };
    if error.downcast_ref::<OutputError>().is_some_and(OutputError::is_closed_pipe) {
        return CLOSED_PIPE;
    }
    if error.is::<UsageError>() {
        return 2;
    }
    match error.downcast_ref::<snapshot::Error>() {
        Some(snapshot::Error::Format(_) | snapshot::Error::Corrupt(_) | snapshot::Error::Unsafe(_)) => 3,
        // Where nothing is, no snapshot is.
        Some(snapshot::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => 3,
        _ => 125,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let ran = testing::run(&["cat", "/nowhere/at/all", "x"]);
        assert_eq!(ran.err, "agent-snapshot: open /nowhere/at/all: No such file or directory (os error 2)\n");
        let error = anyhow::anyhow!("why").context("what");
        assert_eq!(sentence(&error), "what: why");
    }

    #[test]
    fn each_kind_of_outcome_has_its_exit_status() {
        let io =
            |kind: std::io::ErrorKind| snapshot::Error::Io { what: "open x".to_owned(), source: kind.into() };
        let status = |error: anyhow::Error| exit_status(&Err(error));
        assert_eq!(exit_status(&Ok(Verdict::Fine)), 0);
        assert_eq!(exit_status(&Ok(Verdict::Finding)), 1);
        assert_eq!(status(UsageError("x".to_owned()).into()), 2);
        assert_eq!(status(snapshot::Error::Format("x".to_owned()).into()), 3);
        assert_eq!(status(snapshot::Error::Corrupt("x".to_owned()).into()), 3);
        assert_eq!(status(snapshot::Error::Unsafe("x".to_owned()).into()), 3);
        assert_eq!(status(anyhow::Error::from(snapshot::Error::Unsafe("x".to_owned())).context("y")), 3);
        assert_eq!(status(io(std::io::ErrorKind::NotFound).into()), 3);
        assert_eq!(status(io(std::io::ErrorKind::PermissionDenied).into()), 125);
        assert_eq!(status(anyhow::anyhow!("x")), 125);
        let closed = OutputError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(status(closed.into()), 141);
    }
}
