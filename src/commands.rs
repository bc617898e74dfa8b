//! One verb a file, and the only place that prints.

pub mod record;

use crate::cli::Cli;

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
        Some(_) => 2,
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
