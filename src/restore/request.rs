//! What a caller asks of a restore in place, and what it is told of the work.
//!
//! Neighbours: `run.rs` does it, `outcome.rs` is what came of it.

use super::make::Policy;
use super::targets::Choice;
use crate::snapshot::blobs::Side;

/// What is asked for.
pub struct Wish<'a> {
    /// The state that is to be put back.
    pub goal: Side,
    /// What of it.
    pub policy: &'a Policy,
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
pub trait Progress: Sync {
    /// Work of `len` steps begins.
    fn start(&self, what: &'static str, len: usize);
    /// One step is done.
    fn tick(&self);
    /// The work is done.
    fn end(&self);
}
