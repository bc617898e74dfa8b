//! Puts recorded states back: in place, or as a directory tree of their own under a new directory.
//!
//! A restore in place settles what an interrupted restore had begun, inspects the targets, makes a plan,
//! writes a rescue of what will be overwritten, and applies the plan (see [`run`]). This module knows
//! bundles and nothing of tracing, and prints nothing.
//!
//! - [`run`]: a restore in place; [`request`] and [`outcome`]: what goes into it and what comes of it.
//! - [`targets`], [`inspect`], [`plan`]: which paths, what is there now, what becomes of them.
//! - `since.rs`: what has happened to a path since, for those that are conflicts.
//! - [`git`]: Git's state, of each repository whole or not at all.
//! - [`merge`]: what is put back, merged with what was edited since.
//! - `displaced.rs`: renamed files whose own path is left as it is, so that they keep the name that they have.
//! - `check.rs`: the contents that a plan needs, checked before anything changes.
//! - [`apply`]: carries the plan out; [`node`], [`access`], [`disk`], [`times`] for its steps.
//! - [`rescue`], [`rescue_directory`], [`journal`]: what makes it possible to undo or complete it.
//! - [`interrupted`], [`settle`]: restores that were killed, and what they had begun.
//! - [`build`]: a recorded state as a directory tree under a new directory.
//! - [`drift`]: where the live files are no longer as recorded.
//! - [`root`]: recorded paths beneath a root directory, reached without following a symlink.

pub mod access;
pub mod apply;
pub mod build;
mod check;
pub mod disk;
mod displaced;
pub mod drift;
mod error;
mod flags;
pub mod git;
mod in_place;
pub mod inspect;
pub mod interrupted;
pub mod journal;
mod known_links;
pub mod merge;
pub mod node;
pub mod outcome;
pub mod plan;
pub mod request;
pub mod rescue;
pub mod rescue_directory;
pub mod root;
pub mod run;
pub mod settle;
mod since;
pub mod targets;
pub mod times;

pub use error::Error;
