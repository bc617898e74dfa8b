//! Puts recorded states back: in place, or as a tree of their own under a new directory.
//!
//! The order of work is: settle what a killed restore had begun, look, plan, keep what will be overwritten, change. Knows bundles and nothing
//! of tracing; prints nothing.
//!
//! - [`build`]: a recorded state as a tree under a new directory.
//! - [`drift`]: where the live files are no longer as recorded.
//! - [`journal`]: what a restore is about to do; [`settle`]: what a killed one had begun.
//! - [`make`]: new nodes and their attributes.
//! - [`place`]: paths of a record as places under a root, reached without a symbolic link on the way.

pub mod apply;
pub mod build;
pub mod disk;
pub mod drift;
mod error;
mod flags;
mod in_place;
pub mod interrupted;
pub mod journal;
pub mod look;
pub mod loosen;
pub mod make;
pub mod outcome;
pub mod parallel;
pub mod place;
pub mod plan;
pub mod request;
pub mod rescue;
pub mod rescue_directory;
pub mod run;
pub mod settle;
pub mod targets;
pub mod times;

pub use error::Error;
