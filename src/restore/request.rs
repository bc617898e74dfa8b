//! What a caller asks of a restore in place, and how it learns of the progress.
//!
//! Neighbours: `run.rs` does it, `outcome.rs` is what came of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use super::node::RestorePolicy;
use super::targets::Choice;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::KnownLinks;

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
    /// Whether the caller excludes other restores in the directories of the snapshot already.
    pub is_alone: bool,
    /// Whether nothing is done as long as another restore of the same paths is interrupted.
    pub yields_to_interrupted: bool,
    /// Whether a rescue is left even if there was nothing to change: it marks the recordings as undone or redone.
    pub leaves_mark: bool,
    /// Paths that are conflicts, whatever is there now, and why.
    pub conflicts: &'a BTreeMap<Vec<u8>, String>,
    /// Which of some paths later recordings have changed, and which one: that such a path is in a recorded state is its
    /// doing, and undoing it changes the path again.
    pub changed_later: Option<&'a ChangedLater<'a>>,
    /// What other recordings know of the hard links of the files.
    pub known_links: &'a KnownLinks,
    /// Whether targets in neither of their recorded states are overwritten.
    pub force: bool,
    /// The same for targets that are Git's state, which `force` does not concern.
    pub force_git: bool,
    /// Whether such targets are left as they are, and the rest is put back.
    pub skip_conflicts: bool,
    /// Whether text files among such targets are merged with what was edited since.
    pub merge: bool,
    /// Whether only the plan is wanted.
    pub dry_run: bool,
    /// The digest of the plan that was agreed to: no other one is carried out.
    pub agreed: Option<&'a str>,
}

/// Says which of some paths were changed later, and what to call the recording that did.
pub type ChangedLater<'a> = dyn Fn(&HashSet<&[u8]>) -> BTreeMap<Vec<u8>, String> + 'a;

/// Nothing is known of hard links.
static NO_LINKS: LazyLock<KnownLinks> = LazyLock::new(KnownLinks::default);

/// No path is a conflict whatever is there.
static NO_CONFLICTS: BTreeMap<Vec<u8>, String> = BTreeMap::new();

impl<'a> RestoreRequest<'a> {
    /// A request of some paths, which overwrites nothing that has changed since.
    pub fn new(
        wanted: Side,
        policy: &'a RestorePolicy,
        choice: &'a dyn Choice,
        command: &'a [Vec<u8>],
    ) -> RestoreRequest<'a> {
        RestoreRequest {
            wanted,
            policy,
            choice,
            command,
            is_whole: false,
            is_alone: false,
            yields_to_interrupted: false,
            leaves_mark: false,
            conflicts: &NO_CONFLICTS,
            changed_later: None,
            known_links: &NO_LINKS,
            force: false,
            force_git: false,
            skip_conflicts: false,
            merge: false,
            dry_run: false,
            agreed: None,
        }
    }
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
