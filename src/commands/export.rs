//! `export`: recordings for others, as one archive, or as tables for query engines.

mod archive;
mod tables;

use super::exit::{UsageError, VerbResult};
use super::out::Console;
use crate::cli::Export;

/// Runs `export`.
pub fn run(args: &Export, console: &mut Console) -> VerbResult {
    match (&args.tables, args.snaps.as_slice()) {
        (Some(directory), _) => tables::run(args, directory, console),
        (None, [snap, file]) => archive::run(args, snap, file, console),
        (None, _) => {
            let why = "export takes a snapshot and the archive to write, or --tables DIR and snapshots";
            Err(UsageError(why.to_owned()).into())
        }
    }
}
