//! Records what a command and its process tree observe and change, and works with the record.
//!
//! The house, and the only ways in which its rooms know each other:
//!
//! ```text
//! main → cli → commands → observe → trace
//!                         observe → git, snapshot
//!              commands → restore → snapshot
//!                         snapshot → git (pinned blobs)
//!                         git, observe, restore, snapshot → fs
//! ```
//!
//! - [`cli`]: the command line, as plain options. Knows no other room.
//! - [`commands`]: one verb a file, and the only place that prints.
//! - [`trace`]: holds and follows a tree of threads. Knows calls and registers; no files, no snapshots.
//! - [`observe`]: what a held call means for which path, and what was there before and after.
//! - [`git`]: what Git knows of a path, and the blobs that it has. Knows no tracing and no snapshot.
//! - [`fs`]: opens and stats paths at which anything may be. Knows no other room.
//! - [`restore`]: puts recorded states back, and tells where they no longer hold. Prints nothing.
//! - [`snapshot`]: the bundle: types, writer, reader, live states to compare with. Knows nothing of tracing.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap
)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod commands;
pub mod fs;
pub mod git;
pub mod observe;
pub mod restore;
pub mod snapshot;
pub mod trace;
