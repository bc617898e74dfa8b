//! What a caller asks of a restore in place, and what it is told of the work.
//!
//! Neighbours: `run.rs` does it, `outcome.rs` is what came of it.

use super::node::RestorePolicy;
use super::targets::Choice;
use crate::snapshot::blobs::Side;

/// What is asked for.
pub struct RestoreRequest<'a> {
    /// The state that is to be put back.
    pub wanted: Side,
    /// What of it.
    pub policy: &'a RestorePolicy,
    /// Which paths.
    pub choice: &'a dyn Choice,
    /// The same, as they were named.
    pub paths: &'a [Vec<u8>],
    /// Whether a target that is at neither of its states is overwritten.
    pub force: bool,
    /// Whether the plan is all that is wanted.
    pub dry_run: bool,
}

/// Who is told how far the work is.
pub trait RestoreProgress: Sync {
    /// Work of `len` steps begins.
    fn start(&self, what: &'static str, len: usize);
    /// One step is done.
    fn tick(&self);
    /// The work is done.
    fn end(&self);
}
