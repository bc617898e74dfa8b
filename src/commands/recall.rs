//! `recall`: how many runs are kept for `run --recall`, and their removal.

use indicatif::BinaryBytes;
use serde::Serialize;

use super::config;
use super::exit::{Exit, UsageError, VerbResult};
use super::out::Console;
use super::paths::counted;
use crate::cli::{Recall, RecallAction};
use crate::library::Library;
use crate::recall::store::{RecallStore, Totals};

/// Runs `recall`.
pub fn run(args: &Recall, console: &mut Console) -> VerbResult {
    let limits = config::recall().map_err(UsageError)?.limits;
    let store = Library::find()?.map(|library| RecallStore::of(&library));
    let (totals, is_json, what) = match args.action {
        RecallAction::Stats { json } => (store.map(|store| store.totals()).unwrap_or_default(), json, ""),
        RecallAction::Clear { json } => {
            (store.map(|store| store.clear()).transpose()?.unwrap_or_default(), json, "removed ")
        }
    };
    let Totals { entries, keys, bytes } = totals;
    if is_json {
        console.json(&TotalsJson { entries, commands: keys, bytes, max_size: limits.max_size })?;
        return Ok(Exit::Success);
    }
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let (runs, commands) =
        (counted(count(entries), "run", "runs"), counted(count(keys), "command", "commands"));
    let (size, most) = (BinaryBytes(bytes), BinaryBytes(limits.max_size));
    writeln!(console, "{what}{runs} of {commands}, {size} of {most} (max-size)")?;
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct TotalsJson {
    entries: u64,
    commands: u64,
    bytes: u64,
    max_size: u64,
}
