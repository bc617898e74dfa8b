//! `fsck`: what is damaged, missing or foreign in the library.
//!
//! Neighbours: `library::fsck` does the work, `restore::interrupted` knows the restores that have not ended.

use std::path::Path;

use serde::Serialize;

use super::exit::{Exit, VerbResult};
use super::out::Console;
use super::paths::counted;
use super::progress;
use super::restore::Remedies;
use super::undo::take_back;
use crate::cli::Fsck;
use crate::library::Library;
use crate::library::fsck::{Findings, Problem, ProblemKind, Repairs, check, repair};
use crate::library::rescues::is_unfinished_rescue;
use crate::restore::interrupted::{abandoned_in, interrupted_in, is_running, settle_abandoned};
use crate::snapshot::printable;

/// Runs `fsck`.
pub fn run(args: &Fsck, console: &mut Console) -> VerbResult {
    let (repairs, findings) = match Library::find()? {
        Some(library) => {
            let mut repairs = Repairs::default();
            if args.repair {
                repairs = repair(&library)?;
                end_restores(&library, &mut repairs)?;
            }
            let bar = progress::bar("check", 0);
            let mut findings = check(&library, &|number, of| {
                bar.set_length(of as u64);
                bar.set_position(number as u64);
            })?;
            bar.finish_and_clear();
            check_restores(&library, &mut findings)?;
            (repairs, findings)
        }
        None => (Repairs::default(), Findings::default()),
    };
    let Findings { problems, checked } = findings;
    let is_clean = repairs.failed.is_empty() && !problems.iter().any(|problem| problem.kind.is_finding());
    if args.json {
        let Repairs { recovered, taken_back, freed, .. } = repairs;
        console.json(&FsckJson { checked, problems: &problems, recovered, taken_back, freed })?;
    } else {
        for id in &repairs.recovered {
            writeln!(console, "recovered {id}")?;
        }
        for path in &repairs.taken_back {
            writeln!(console, "took back the interrupted restore of {path}")?;
        }
        for (what, why) in &repairs.failed {
            console.say(format_args!("{what} could not be repaired: {why}"));
        }
        for Problem { path, kind, why } in &problems {
            writeln!(console, "{kind}: {path}: {why}")?;
        }
        let snapshots = counted(checked, "snapshot", "snapshots");
        let found = match (problems.iter().filter(|problem| problem.kind.is_finding()).count(), args.repair) {
            (0, _) => "nothing is wrong".to_owned(),
            (number, true) => format!("{} can't be repaired", counted(number, "problem", "problems")),
            (number, false) => {
                format!("{} (--repair mends what can be mended)", counted(number, "problem", "problems"))
            }
        };
        writeln!(console, "{snapshots} read: {found}")?;
    }
    Ok(if is_clean { Exit::Success } else { Exit::Finding })
}

/// Names the restores that have not ended, and how each is completed or taken back.
fn check_restores(library: &Library, findings: &mut Findings) -> anyhow::Result<()> {
    let (abandoned, interrupted) =
        (abandoned_in(&library.snapshots())?, interrupted_in(&library.snapshots())?);
    let names = library.names()?;
    for name in names.iter().filter(|name| name.to_str().is_some_and(is_unfinished_rescue)) {
        let path = library.snapshots().join(name);
        let shown = shown(library, &path);
        if let Some((_, state)) = abandoned.iter().find(|(other, _)| *other == path) {
            match state {
                Ok(_) => {
                    let why = "its restore was killed before it had changed any file";
                    findings.add(shown, ProblemKind::Leftover, why);
                }
                Err(error) => findings.add(shown, ProblemKind::Damaged, error.to_string()),
            }
        } else if let Some(rescue) = interrupted.iter().find(|rescue| rescue.path == path) {
            let remedies =
                Remedies::of(rescue).map(|remedies| format!("its restore was interrupted: {remedies}"));
            findings.add(shown, ProblemKind::Unfinished, remedies.unwrap_or_default());
        } else if path.exists() && !is_running(&path) {
            let why = "its restore was interrupted, and what that has overwritten can't be read";
            findings.add(shown, ProblemKind::Damaged, why);
        }
    }
    Ok(())
}

/// Takes back the restores that were interrupted, where nothing has changed since.
fn end_restores(library: &Library, repairs: &mut Repairs) -> anyhow::Result<()> {
    if let Err(error) = settle_abandoned(&library.snapshots()) {
        repairs.failed.push((shown(library, &library.snapshots()), error.to_string()));
    }
    for rescue in interrupted_in(&library.snapshots())? {
        // To take one back may complete another.
        let Some(snapshot) = rescue.snapshot.as_ref().filter(|_| rescue.path.exists()) else { continue };
        match take_back(snapshot) {
            Ok(outcome) if outcome.applied => repairs.taken_back.push(shown(library, &rescue.path)),
            // It is named when the library is checked.
            Ok(_) => {}
            Err(error) => repairs.failed.push((shown(library, &rescue.path), format!("{error:#}"))),
        }
    }
    Ok(())
}

/// The path of what is in the library, from there.
fn shown(library: &Library, path: &Path) -> String {
    printable(path.strip_prefix(library.root()).unwrap_or(path).as_os_str().as_encoded_bytes()).into_owned()
}

#[derive(Serialize)]
struct FsckJson<'a> {
    checked: usize,
    problems: &'a [Problem],
    /// The recordings that a repair has recovered.
    recovered: Vec<String>,
    /// The rescues of the restores that it has taken back.
    taken_back: Vec<String>,
    freed: u64,
}
