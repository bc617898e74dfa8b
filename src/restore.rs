//! Puts recorded states back: in place, or as a tree of their own under a new directory.
//!
//! The order of work is: look, plan, keep what will be overwritten, change. Knows bundles and nothing
//! of tracing; prints nothing.
//!
//! - [`build`]: a recorded state as a tree under a new directory.
//! - [`drift`]: where the live files are no longer as recorded.
//! - [`make`]: new nodes and their attributes.
//! - [`place`]: paths of a record as places under a root, reached without a symbolic link on the way.

pub mod apply;
pub mod build;
pub mod drift;
pub mod look;
pub mod loosen;
pub mod make;
pub mod parallel;
pub mod place;
pub mod plan;
pub mod rescue;
pub mod run;
pub mod targets;
pub mod times;
pub mod torn;
