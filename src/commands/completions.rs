//! `completions` and `man`: both are made from the definition in `cli`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::exit::{Exit, VerbResult};
use super::out::Console;
use crate::cli::Cli;

const NAME: &str = "agent-snapshot";

/// Writes the completions of `shell`.
pub fn completions(shell: clap_complete::Shell, console: &mut Console) -> VerbResult {
    // clap_complete panics if a write fails, which one to memory does not.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    console.bytes(&script)?;
    Ok(Exit::Success)
}

/// Writes the man pages into `directory`: one of the recording, and one of each verb.
pub fn man(directory: &Path) -> VerbResult {
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.with_context(|| format!("write man pages to {}", directory.display()))?;
    Ok(Exit::Success)
}
