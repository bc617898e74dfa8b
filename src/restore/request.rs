//! What a caller asks of a restore in place, and how it learns of the progress.
//!
//! Neighbours: `run.rs` does it, `outcome.rs` is what came of it.

use std::collections::BTreeMap;

use super::node::RestorePolicy;
use super::targets::Choice;
use crate::snapshot::blobs::Side;

/// A request to put back a state of a snapshot in place.
pub struct RestoreRequest<'a> {
    /// The wanted state.
    pub wanted: Side,
    /// What of it is put back.
    pub policy: &'a RestorePolicy,
    /// The paths that are put back.
    pub choice: &'a dyn Choice,
    /// The request in its canonical form: by it the rescue is known as one of the same request.
    pub command: &'a [Vec<u8>],
    /// Whether all of the state is wanted, and not only some paths.
    pub is_whole: bool,
    /// Whether an interrupted restore of the same paths is completed or taken back first.
    pub yields_to_interrupted: bool,
    /// Whether a rescue is left even if there was nothing to change: it marks the recordings as undone or redone.
    pub leaves_mark: bool,
    /// Paths that are conflicts, whatever is there now, and why.
    pub conflicts: &'a BTreeMap<Vec<u8>, String>,
    /// Whether targets in neither of their recorded states are overwritten.
    pub force: bool,
    /// The same for targets that are Git's state, which `force` does not concern.
    pub force_git: bool,
    /// Whether such targets are left as they are, and the rest is put back.
    pub skip_conflicts: bool,
    /// Whether only the plan is wanted.
    pub dry_run: bool,
}

/// Receives the progress of the work.
pub trait RestoreProgress: Sync {
    /// Work of `len` steps begins.
    fn start(&self, what: &'static str, len: usize);
    /// One step is done.
    fn tick(&self);
    /// The work is done.
    fn end(&self);
}
