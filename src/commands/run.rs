//! `run`: records a command into the library.
//!
//! `record.rs` does the work, as for a recording into a directory.

use super::exit::VerbResult;
use super::record::{self, Destination};
use crate::cli::RecordingOptions;

/// Runs `run`.
pub fn run(options: RecordingOptions) -> VerbResult {
    Ok(record::run(options, Destination::Library))
}
