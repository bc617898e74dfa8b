//! Holds and follows a tree of threads. Knows calls, registers and memory; no files, no snapshots.
//!
//! - [`syscalls`]: what each system call of x86_64 means: the one table, and decoding by it. Pure.
//! - [`call`]: what a call that is held at its entry means.
//! - [`filter`]: the seccomp program that this table says. Pure.
//! - [`memory`]: reading strings and structures out of a tracee.
//! - [`attributes`]: what the command inherits of this process, and this process changes for itself.
//! - [`launch`]: starts the command seized and filtered, so that it never runs a moment unwatched.
//! - [`fatal`]: which signals end a process with a core dump.
//! - [`stop`]: why a tracee reported, from its raw wait status.
//! - [`handover`]: descriptors that go from one process of ours to another.
//! - [`lane`]: the loop that answers calls that only look, without a stop.
//! - [`tracer`]: the loop that follows the tree and tells an [`tracer::Observer`] of it.
//! - [`sys`]: the unsafe room, the kernel's calls that have no safe wrapper.

pub mod attributes;
pub mod call;
pub mod fatal;
pub mod filter;
pub mod handover;
pub mod lane;
pub mod launch;
pub mod memory;
pub mod stop;
pub mod sys;
pub mod syscalls;
pub mod tracer;
