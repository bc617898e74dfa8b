//! `show`.

use super::out::Console;
use super::{Outcome, Verdict};
use crate::cli::Show;

/// Runs `show`.
pub fn run(_args: &Show, _console: &mut Console) -> Outcome {
    Ok(Verdict::Fine)
}
