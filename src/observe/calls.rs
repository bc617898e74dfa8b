//! What each system call of the tree means for the ledger.
//!
//! - `read_only.rs`: calls that change nothing, judged at their entry.
//! - `changes.rs`: calls that may change something, prepared at their entry and judged by their result. Each
//!   place that one names is a [`part::Part`]; `effects.rs` says what each effect means for it.
//! - `rename.rs`, `exec.rs` (with [`program`], which reads the files that the kernel opens),
//!   `descriptors.rs`: what those calls need beyond it.
//! - `overlay.rs`: changes through an overlay that the tree has mounted.
//! - `enforced.rs`, `ways.rs`, `new_names.rs`: calls that rules forbid.
//! - `sockets.rs`: the socket addresses of calls.
//! - `journal.rs`: what the journal is told of a call.
//! - `own_program.rs`: calls of our own program, which are not recorded.
//! - [`inherited`], `core_dump.rs`: changes that no call of the tree makes.

pub mod changes;
pub mod core_dump;
pub mod descriptors;
mod effects;
mod enforced;
mod exec;
pub mod inherited;
mod journal;
mod new_names;
mod overlay;
pub mod own_program;
pub mod part;
pub mod program;
pub mod read_only;
mod rename;
mod sockets;
mod ways;
