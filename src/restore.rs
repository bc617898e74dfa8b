//! Puts recorded states back: in place, or as a tree of their own under a new directory.
//!
//! The order of work is: look, plan, keep what will be overwritten, change. Knows bundles and nothing
//! of tracing; prints nothing.
//!
//! - [`drift`]: where the live files are no longer as recorded.
//! - [`place`]: paths of a record as places under a root, reached without a symbolic link on the way.

pub mod drift;
pub mod parallel;
pub mod place;
