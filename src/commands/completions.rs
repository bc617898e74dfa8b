//! `completions` and `man`: both are made from the definition in `cli`.

use std::io::Write as _;

use clap::CommandFactory as _;

use super::exit::{Exit, VerbResult};
use super::out::{Console, OutputError};
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

/// Writes the man page: the options of the recording and a list of the verbs.
pub fn man(console: &mut Console) -> VerbResult {
    let page = || -> std::io::Result<Vec<u8>> {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        page.flush()?;
        Ok(page)
    };
    let page = page().map_err(OutputError::from)?;
    console.bytes(&page)?;
    Ok(Exit::Success)
}
