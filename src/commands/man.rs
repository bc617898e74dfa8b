//! `man`: made from the definition in `cli`, but for the page of agent-snapshot-bash, whose options are bash's.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::exit::{Exit, VerbResult};
use crate::cli::Cli;

/// Writes the man pages into `directory`: one of the recording, one of each verb, and one of the shell.
pub fn run(directory: &Path) -> VerbResult {
    write(directory).with_context(|| format!("write man pages to {}", directory.display()))?;
    Ok(Exit::Success)
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)?;
    let shell = include_str!("../../packaging/agent-snapshot-bash.1");
    fs::write(directory.join("agent-snapshot-bash.1"), shell)
}
