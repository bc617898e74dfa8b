//! `redo`: takes back the last undo.

use super::exit::VerbResult;
use super::out::Console;
use super::undo;
use crate::cli::Redo;

/// Runs `redo`.
pub fn run(args: &Redo, console: &mut Console) -> VerbResult {
    Ok(undo::status(undo::redo(args, console)?.as_ref()))
}
