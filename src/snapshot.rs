//! The bundle: `manifest.json` and `blobs.parquet`, written, read, checked and compared.
//!
//! Knows nothing of tracing, so that a verb which only reads a bundle can't be broken by it.
//!
//! - [`manifest`]: the types; [`wire`] their JSON.
//! - [`layout`]: the directory, and how a bundle gets into it in one piece.
//! - [`blobs`]: writes `blobs.parquet` while the recording runs.
//! - [`journal`]: what a recording has changed so far; [`recover`] makes a bundle of it after a kill.
//! - [`reader`]: opens a bundle that may come from anyone.
//! - [`source`]: the content of a recorded state, from the bundle or from Git.
//! - [`live`]: the state of a path now; [`compare`] compares it with a record. [`change`]: what became of a path;
//!   [`relinked`] of its hard links. [`stat`]: from stat(2) to a state.
//! - [`net`]: what several recordings did, as if they were one. [`timeline`]: what was at a path at some time.
//! - [`secrets`]: which files and which words of a command line are not for others.
//! - [`request`]: what the restore of a rescue was asked for.
//! - [`usage`]: whether a bundle is in use, so that it can't be deleted.
//! - [`identity`]: identifies a snapshot, the program and the machine.
//! - [`digest`]: the digest of a content; [`sparse`]: files with holes.

pub mod blobs;
pub mod change;
pub mod compare;
pub mod digest;
mod enforcement;
mod error;
pub mod identity;
pub mod journal;
pub mod layout;
pub mod live;
pub mod manifest;
pub mod net;
mod network;
pub mod reader;
pub mod recover;
pub mod relinked;
pub mod request;

#[cfg(test)]
pub(crate) mod samples;
pub mod secrets;
pub mod source;
pub mod sparse;
pub mod stat;
pub mod timeline;
mod unrepeatable;
pub mod usage;
pub mod wire;

pub use blobs::Side;
pub use enforcement::{Enforcement, EnforcementMode, PROTECTED, RefusedSubject, RefusedUse};
pub use error::{Error, is_hidden, printable, printable_path};
pub use manifest::*;
pub use network::{NetworkAddress, NetworkOperation, NetworkUse};
pub use reader::Snapshot;
pub use stat::Stat;
pub use unrepeatable::{Told, Unrepeatable};
