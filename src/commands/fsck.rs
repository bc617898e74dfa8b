//! `fsck`: what is damaged, missing or foreign in the library.
//!
//! Neighbour: `library::fsck` does the work.

use serde::Serialize;

use super::exit::{Exit, VerbResult};
use super::out::Console;
use super::paths::counted;
use crate::cli::Fsck;
use crate::library::Library;
use crate::library::fsck::{Findings, Problem, Repairs, check, repair};

/// Runs `fsck`.
pub fn run(args: &Fsck, console: &mut Console) -> VerbResult {
    let (repairs, findings) = match Library::find()? {
        Some(library) => {
            let repairs = args.repair.then(|| repair(&library)).transpose()?;
            (repairs.unwrap_or_default(), check(&library)?)
        }
        None => (Repairs::default(), Findings::default()),
    };
    let Findings { problems, checked } = findings;
    let is_clean = repairs.failed.is_empty() && !problems.iter().any(|problem| problem.kind.is_finding());
    if args.json {
        let Repairs { recovered, freed, .. } = repairs;
        console.json(&FsckJson { checked, problems: &problems, recovered, freed })?;
    } else {
        for id in &repairs.recovered {
            writeln!(console, "recovered {id}")?;
        }
        for (id, why) in &repairs.failed {
            console.say(format_args!("{id} could not be recovered: {why}"));
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

#[derive(Serialize)]
struct FsckJson<'a> {
    checked: usize,
    problems: &'a [Problem],
    /// The recordings that a repair has recovered.
    recovered: Vec<String>,
    freed: u64,
}
