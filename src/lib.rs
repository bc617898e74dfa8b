//! Records what a command and its process tree read and change, and works with the record.
//!
//! `docs/internals.md` follows a system call, a content and a restore through the modules. It says what each
//! thread may touch and in which order locks are taken, and explains the words. `CONTRIBUTING.md` has the
//! checklists for a new system call, attribute, secret, input of recall, agent, architecture and verb.
//!
//! # Modules
//!
//! A module uses only those that its arrows lead to, directly or through others:
//!
//! ```text
//! main → commands → cli          (src/main.rs, and src/bin/ for agent-snapshot-bash)
//!        commands → observe → trace
//!                   observe → git, snapshot, policy
//!        commands → restore → snapshot → git
//!        commands → archive → snapshot
//!        commands → library → snapshot, git
//!        commands → agents → snapshot, git
//!        commands → policy → snapshot, git
//!        commands → recall → restore, library → snapshot
//!        commands → tables → snapshot
//!                   agents, archive, git, observe, policy, recall, restore, snapshot, tables → fs
//!                   commands, git, observe, snapshot, trace → sync
//!                   observe, recall, restore → parallel
//! ```
//!
//! - [`agents`]: the coding agents and tools: what each needs to be recorded, and how it runs a command. Prints nothing.
//! - [`archive`]: a snapshot as one tar, for others. Prints nothing.
//! - [`cli`]: the command line, as plain options.
//! - [`commands`]: one file per verb, what they share, and the only place that prints; `shell.rs` is the program agent-snapshot-bash.
//! - [`trace`]: follows a tree of threads. Knows system calls, registers and memory; no files, no snapshots.
//! - [`observe`]: what a system call means for which path: the recorder, and its ledger of names and inodes.
//! - [`git`]: what Git knows of a path, and the blobs that it has. Knows no tracing and no snapshots.
//! - [`fs`]: opens and stats paths where any type of file may be.
//! - [`parallel`]: the same work on many items, on all processors.
//! - [`snapshot`]: the bundle: types, writer, reader, comparison with live files. Knows no tracing.
//! - [`library`]: the snapshots that `run` makes: where they are, how they are named, listed and deleted. Prints
//!   nothing.
//! - [`policy`]: rules of what may be written, read, executed and contacted: judges a finished recording, or one use for
//!   whoever enforces them. Prints nothing.
//! - [`recall`]: whether a command would see what an earlier run saw, and what that left. Prints nothing, knows no tracing.
//! - [`restore`]: puts recorded states back, and finds drift. Prints nothing.
//! - [`sync`]: locks, also after a panic.
//! - [`tables`]: many recordings as Parquet tables for query engines. Prints nothing.
//!
//! # Where to look
//!
//! | for | in |
//! |---|---|
//! | what the arguments of a system call mean | [`trace::syscalls`], `table.rs` |
//! | what a system call does to a path and its content | [`observe`], `effects.rs` |
//! | where a change is applied to the ledger | [`observe::ledger::apply`]; where the rename of a directory is, `observe/calls/rename.rs` |
//! | what happens to a blob between the read and Parquet | `docs/internals.md`, "From the read to Parquet" |
//! | when the state after is taken, and how | `docs/internals.md`, "The state after"; `observe/finish/examine.rs` |
//! | what is a secret, and where it is masked | `docs/internals.md`, "Secrets"; `CONTRIBUTING.md`, "Add a secret" |
//! | what is left to Git instead of copied | `read_content` in `observe/ledger/protect.rs`, `Repository::pin` in `git/repository.rs` |
//! | what stands in the way of an undo | `docs/internals.md`, "Life of a restore", step 6; `restore/plan.rs` |
//! | which calls a process makes without waiting | `docs/internals.md`, "Processes that note their own calls" |
//! | what a recall compares, and what it can't | `docs/internals.md`, "Recall"; `CONTRIBUTING.md`, "Add an input of recall" |
//! | what the notification threads may touch | `docs/internals.md`, the section of that name |
//! | how a system call such as `statmount`, or a verb, is added | `CONTRIBUTING.md`, "Add a system call" and "Add a verb" |
//! | where an exit status is decided, 3 for a bad snapshot say | [`commands::exit`] |
//! | the tools that an agent has by the Model Context Protocol | `src/commands/mcp/tools.rs` |
//! | what is particular to one coding agent | [`agents::AGENTS`]; `CONTRIBUTING.md`, "Add an agent" |
//! | what a key of the manifest means | `docs/format.md`, [`snapshot::manifest`] |
//! | what a column of the tables of `export --tables` is made of | `src/tables/columns.rs` |
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

pub mod agents;
pub mod archive;
pub mod cli;
pub mod commands;
pub mod fs;
pub mod git;
pub mod library;
pub mod observe;
pub mod parallel;
pub mod policy;
pub mod recall;
pub mod restore;
pub mod snapshot;
pub mod sync;
pub mod tables;
pub mod trace;
