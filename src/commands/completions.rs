//! `completions`: made from the definition in `cli`.

use clap::CommandFactory as _;

use super::exit::{Exit, VerbResult};
use super::out::Console;
use crate::cli::Cli;

const NAME: &str = "agent-snapshot";

/// Writes the completions of `shell`.
pub fn run(shell: clap_complete::Shell, console: &mut Console) -> VerbResult {
    // clap_complete panics if a write fails, which one to memory does not.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    console.bytes(&script)?;
    Ok(Exit::Success)
}
