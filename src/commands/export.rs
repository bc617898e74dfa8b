//! `export`: recordings for other programs.

mod tables;

use super::exit::VerbResult;
use super::out::Console;
use crate::cli::Export;

/// Runs `export`.
pub fn run(args: &Export, console: &mut Console) -> VerbResult {
    tables::run(args, console)
}
