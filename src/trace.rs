//! Holds and follows a tree of threads. Knows calls, registers and memory; no files, no snapshots.
//!
//! - [`syscalls`]: what each system call of x86_64 means: the one table, and decoding by it. Pure.
//! - [`filter`]: the seccomp program that this table says. Pure.
//! - [`memory`]: reading strings and structures out of a tracee.

pub mod filter;
pub mod memory;
pub mod syscalls;
