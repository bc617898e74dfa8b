//! What each system call of the tree means for which path, and what was there before and after.
//!
//! - [`recorder`]: the observer of a recording. `recording.rs`: what it knows while the tree runs; it finds
//!   and classifies paths.
//! - [`session`]: the observer of a session, which has a recorder for each step.
//! - `calls/`: what each system call means for the ledger.
//! - [`resolve`]: the path as the kernel resolves it for the tracee, by its name in our mount namespace.
//! - [`ledger`]: what is known of names and inodes, and the one way in which a change is applied.
//! - [`capture`]: bytes on their way into the bundle.
//! - `journal.rs`: what is put on file before a call continues, for the case that everything is killed.
//! - [`policy`]: which paths are not recorded, and under which rule.
//! - [`lookups`]: a cache of judged read-only accesses. `mounts.rs`: whether names can be trusted.
//! - [`enforce`]: the rules of the user that are enforced, and what was refused.
//! - `network.rs`: the socket addresses that were used.
//! - [`losses`]: tells at once which bytes or privileges are lost. [`processes`]: the process table. [`warnings`]: gaps and
//!   notes.
//! - `asks.rs`: what calls ask for that no path tells, where the recording may be recalled.
//! - [`finish`]: the end of a recording: the states after, and the records of the manifest.

mod asks;
mod calls;
pub mod capture;
pub mod enforce;
pub mod finish;
mod git_state;
mod journal;
mod keyless;
pub mod ledger;
pub mod lookups;
pub mod losses;
mod mounts;
mod network;
pub mod policy;
pub mod processes;
pub mod random;
pub mod recorder;
mod recording;
pub mod resolve;
pub mod session;
pub mod warnings;

pub use calls::descriptors::unseen_kind;
pub use calls::own_program::{NAMES as PROGRAMS, identity_of, own_programs};
pub use calls::{inherited, program};
pub use mounts::{ServedDevices, ServedWatch};
pub use recorder::{Events, Options, Recorder};
