//! `prune`: deletes the recordings that are not to be kept, when it is asked to or as the end of a recording.
//!
//! Neighbours: `library::retention` decides what goes; `record/pruning.rs` starts it after a recording.

use indicatif::BinaryBytes;
use serde::Serialize;

use super::config::Limits;
use super::exit::{Exit, UsageError, VerbResult};
use super::log::command_line;
use super::open::scope;
use super::out::Console;
use super::paths::counted;
use crate::cli::Prune;
use crate::library::Library;
use crate::library::delete::Deletions;
use crate::library::retention::{Going, NEWEST, Rules, plan};

/// Runs `prune`.
pub fn run(args: &Prune, console: &mut Console) -> VerbResult {
    let rules = match rules(args) {
        // What can't be read may be a rule that keeps more than the default.
        Err(_) if args.automatic => return Ok(Exit::Success),
        rules => rules?,
    };
    if args.automatic {
        // If that fails, it runs at normal priority.
        let _ = rustix::process::nice(19);
    }
    let Some(library) = Library::find()? else {
        return report(&PruneJson { dry_run: args.dry_run, ..PruneJson::default() }, &[], args, console);
    };
    let scope = scope(&args.access, true);
    let sees_all = args.automatic || args.access.allow_cross_session;
    let plan = plan(&library, &rules, |entry| sees_all || scope.may_see(entry))?;
    let mut done = PruneJson { dry_run: args.dry_run, protected: plan.protected, ..PruneJson::default() };
    let mut deleted = Vec::new();
    // The rest is deleted even if one can't be.
    let mut failure = None;
    let mut deletions = Deletions::of(&library)?;
    for batch in plan.going.chunks(BATCH) {
        let freed = if args.dry_run {
            Ok(batch.iter().map(|going| Ok(Ok(going.bytes))).collect())
        } else {
            for Going { entry, .. } in
                batch.iter().filter(|going| !args.automatic && !scope.may_see(&going.entry))
            {
                library.audit(&entry.id, scope.session.as_deref())?;
            }
            let ids: Vec<_> = batch.iter().map(|going| (going.entry.id.as_str(), going.evicted)).collect();
            deletions.delete_batch(&ids)
        };
        let freed = freed.unwrap_or_else(|error| vec![Err(error)]);
        for (going, freed) in batch.iter().zip(freed) {
            match freed {
                Ok(Ok(bytes)) => {
                    done.freed += bytes;
                    done.deleted.push(Pruned { id: going.entry.id.clone(), bytes, evicted: going.evicted });
                    deleted.push(going);
                }
                // It is in use by now, and stays until the next time.
                Ok(Err(_)) => {}
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
    }
    if !args.dry_run {
        match library.remove_leftovers() {
            Ok(bytes) => done.freed += bytes,
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    done.size = plan.size.saturating_sub(done.freed);
    if rules.max_size.is_some_and(|most| done.size > most) {
        console.say(format_args!(
            "the library is still larger: what is left is in use, has a name, or is not yours to delete"
        ));
    }
    let exit = report(&done, &deleted, args, console)?;
    failure.map_or(Ok(exit), |error| Err(error.into()))
}

/// How many recordings are deleted together: reading the library before each would take a time that grows with the
/// square of their number.
const BATCH: usize = 32;

#[derive(Default, Serialize)]
struct PruneJson {
    dry_run: bool,
    deleted: Vec<Pruned>,
    freed: u64,
    /// What the rest takes.
    size: u64,
    /// How many stay that no rule keeps.
    protected: usize,
}

#[derive(Serialize)]
struct Pruned {
    id: String,
    bytes: u64,
    /// Whether it was one of the newest of its working tree.
    evicted: bool,
}

/// What the options ask for, or else the configuration.
fn rules(args: &Prune) -> Result<Rules, UsageError> {
    let asked = Rules { keep_last: args.keep_last, keep_within: args.keep_within, max_size: args.max_size };
    if asked != (Rules { keep_last: None, keep_within: None, max_size: None }) {
        return Ok(asked);
    }
    let Limits { max_size, max_age } = Limits::load().map_err(UsageError)?;
    Ok(Rules { keep_last: None, keep_within: Some(max_age), max_size: Some(max_size) })
}

fn report(done: &PruneJson, deleted: &[&Going], args: &Prune, console: &mut Console) -> VerbResult {
    if args.json {
        console.json(done)?;
        return Ok(Exit::Success);
    }
    let (did, was) = if args.dry_run { ("would delete", "would be deleted") } else { ("deleted", "deleted") };
    for Going { entry, bytes, .. } in deleted {
        let bytes = BinaryBytes(*bytes).to_string();
        writeln!(console, "{did} {}  {bytes:>10}  {}", entry.id, command_line(entry))?;
    }
    let number = counted(deleted.len(), "recording", "recordings");
    let (freed, size) = (BinaryBytes(done.freed), BinaryBytes(done.size));
    writeln!(console, "{number} {was}, {freed} freed; {size} are left")?;
    if done.protected > 0 {
        writeln!(
            console,
            "{} not deleted: the newest {NEWEST} of each working tree stay, and those with a name or imported",
            counted(done.protected, "recording was", "recordings were")
        )?;
    }
    Ok(Exit::Success)
}
