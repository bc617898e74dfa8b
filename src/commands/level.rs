//! What a verb can do with a recording that keeps less than all (`--keep`).

use super::exit::UsageError;
use super::out::Console;
use super::paths::{Selection, quoted};
use crate::snapshot::{Keep, Snapshot};

/// Refuses `what`, which needs the states of all that the command used, if the recording does not keep them.
pub fn require_inputs(snapshot: &Snapshot, what: &str) -> Result<(), UsageError> {
    let keep = snapshot.header().keep;
    if keep.has_inputs() {
        return Ok(());
    }
    let path = quoted(snapshot.path().as_os_str().as_encoded_bytes());
    Err(UsageError(format!(
        "{what} needs what the command only read, and {path} was recorded with --keep {}: record with --keep all",
        keep.name()
    )))
}

/// Says why a path has no record.
pub fn without_record(snapshot: &Snapshot) -> &'static str {
    if snapshot.header().keep.has_inputs() {
        "the snapshot has no record of it, so it was not used"
    } else {
        "the snapshot has no record of it, so the command did not use it, or only looked it up"
    }
}

/// Says of the arguments that select no path why the snapshot has no record of them.
pub fn say_unmatched(verb: &str, selection: &Selection, snapshot: &Snapshot, console: &mut Console) {
    for arg in selection.unmatched() {
        let arg = quoted(arg.as_encoded_bytes());
        console.say(format_args!("{verb} {arg}: {}", without_record(snapshot)));
    }
}

/// Says what a recording keeps of the paths that were used; none if that is all.
pub fn what_is_kept(keep: Keep) -> Option<&'static str> {
    match keep {
        Keep::All => None,
        Keep::Changes => Some("changes: states of changed paths only"),
        Keep::Undo => Some(
            "undo: states of changed paths only; bytes after the command only of files up to 1 MiB that Git does \
             not ignore",
        ),
    }
}
