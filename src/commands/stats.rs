//! `stats`: how many recordings the library has, and what they take on the disk.

use std::collections::BTreeMap;

use indicatif::BinaryBytes;
use serde::Serialize;

use super::config::Limits;
use super::exit::{Exit, UsageError, VerbResult};
use super::open::scope;
use super::out::Console;
use super::paths::counted;
use crate::cli::Stats;
use crate::library::Library;
use crate::library::retention::sizes;
use crate::snapshot::printable;

/// Runs `stats`.
pub fn run(args: &Stats, console: &mut Console) -> VerbResult {
    let limits = Limits::load().map_err(UsageError)?;
    let scope = scope(&args.access, true);
    let (sizes, total) =
        Library::find()?.map_or_else(|| Ok(Default::default()), |library| sizes(&library))?;
    let mut sessions: BTreeMap<Option<String>, SessionStats> = BTreeMap::new();
    for one in sizes.iter().filter(|one| scope.may_see(&one.entry)) {
        let session = sessions.entry(one.entry.session.clone()).or_insert_with(|| SessionStats {
            session: one.entry.session.clone(),
            ..SessionStats::default()
        });
        session.recordings += 1;
        session.size += one.bytes;
        session.oldest.get_or_insert_with(|| one.entry.time.clone());
    }
    let stats = StatsJson {
        recordings: sessions.values().map(|session| session.recordings).sum(),
        size: sessions.values().map(|session| session.size).sum(),
        library_size: total,
        sessions: sessions.into_values().collect(),
        max_size: limits.max_size,
        max_age_seconds: limits.max_age.as_secs(),
    };
    if args.json {
        console.json(&stats)?;
        return Ok(Exit::Success);
    }
    let number = counted(stats.recordings, "recording", "recordings");
    let days = limits.max_age.as_secs() as f64 / 86_400.0;
    writeln!(console, "{number}, {}", BinaryBytes(stats.size))?;
    for one in &stats.sessions {
        let session = one.session.as_ref().map_or_else(
            || "no session".into(),
            |session| format!("session {}", printable(session.as_bytes())),
        );
        let size = BinaryBytes(one.size).to_string();
        writeln!(console, "{:>7}  {size:>10}  {session}", one.recordings)?;
    }
    let (size, most) = (BinaryBytes(total), BinaryBytes(limits.max_size));
    writeln!(console, "the library takes {size} of {most} (max-size), and keeps {days} days (max-age)")?;
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct StatsJson {
    recordings: usize,
    size: u64,
    /// With what belongs to no recording, or to one of another session.
    library_size: u64,
    sessions: Vec<SessionStats>,
    max_size: u64,
    max_age_seconds: u64,
}

#[derive(Default, Serialize)]
struct SessionStats {
    session: Option<String>,
    recordings: usize,
    size: u64,
    /// When its oldest recording was started.
    oldest: Option<String>,
}
