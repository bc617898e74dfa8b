//! What a held call means for which path, and what was there before and after.
//!
//! - [`recorder`]: the observer of a recording; `changes.rs`, `descriptors.rs`, `rename.rs`,
//!   `core_dump.rs` and [`inherited`] judge what can change something (`effects.rs` says what each effect means), [`finish`] makes the manifest's records, `fit.rs`
//!   leaves out those that contradict others.
//! - [`view`], [`resolve`]: the path as the tracee's kernel finds it, by its name out here.
//! - `mounts.rs`: whether names can be trusted. `credentials.rs`: whether a thread may see what we see. [`lookups`]: the read-only calls that need no second judgement.
//! - [`ledger`]: what is known of names and inodes, and the one way in which a change is applied.
//! - [`processes`], [`warnings`], [`suppressed`]: the other lists.
//! - [`capture`]: bytes on their way out. [`program`]: the files that the kernel opens at an exec.
//! - [`ignore`]: which paths are not recorded, and under which rule.

pub mod capture;
mod changes;
mod core_dump;
mod credentials;
mod descriptors;
mod effects;
mod exec;
pub mod finish;
mod fit;
pub mod ignore;
pub mod inherited;
pub mod ledger;
pub mod lookups;
mod mounts;
mod part;
pub mod processes;
pub mod program;
mod read_only;
pub mod recorder;
mod recording;
mod rename;
pub mod resolve;
pub mod suppressed;
pub mod view;
pub mod warnings;

pub use descriptors::unseen_kind;
pub use recorder::{Events, Options, Recorder};
