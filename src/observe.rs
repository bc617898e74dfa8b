//! What a held call means for which path, and what was there before and after.
//!
//! - [`recorder`]: the observer of a recording; `changes.rs`, `descriptors.rs`, `rename.rs`,
//!   `core_dump.rs` and [`inherited`] judge what can change something, [`finish`] makes the manifest's records, `fit.rs`
//!   leaves out those that contradict others.
//! - [`view`], [`resolve`]: the path as the tracee's kernel finds it, by its name out here.
//! - `mounts.rs`: whether names can be trusted. `credentials.rs`: whether a thread may see what we see. [`lookups`]: the looks that need no second judgement, with `working.rs`.
//! - [`table`]: one record a path. [`processes`], [`warnings`], [`suppressed`]: the other lists.
//! - `content.rs`: what is needed of a before-state. [`capture`]: bytes on their way out. [`program`]: the files that the kernel opens at an exec.
//! - [`git`]: how Git knows a path. [`ignore`]: which paths are not recorded, and under which rule.

pub mod capture;
mod changes;
mod content;
mod core_dump;
mod credentials;
mod descriptors;
pub mod finish;
mod fit;
pub mod git;
pub mod ignore;
pub mod inherited;
pub mod lookups;
mod mounts;
pub mod processes;
pub mod program;
pub mod recorder;
mod rename;
pub mod resolve;
pub mod suppressed;
pub mod table;
pub mod view;
pub mod warnings;
mod working;

pub use descriptors::unseen_kind;
pub use recorder::{Events, Options, Recorder};
