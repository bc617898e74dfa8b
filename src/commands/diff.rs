//! `diff`.

use super::out::Console;
use super::{Outcome, Verdict};
use crate::cli::Diff;

/// Runs `diff`.
pub fn run(_args: &Diff, _console: &mut Console) -> Outcome {
    Ok(Verdict::Fine)
}
