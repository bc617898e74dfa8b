//! Traces a tree of threads. Knows syscalls, registers and memory; no files, no snapshots.
//!
//! - [`syscalls`]: what each system call means: the one table, and decoding by it. Pure.
//! - [`filter`]: the seccomp program that the table determines. Pure.
//! - `foreign_filter`: filters that the tree installs itself.
//! - [`inside`]: processes that note their own read-only calls.
//! - `nested`: tracers inside of the tree, for which this stands in for the kernel.
//! - `refused_tracers`: processes of the tree that try to trace others and may not.
//! - `pins`: arguments that the tree can't change while a call is judged.
//! - [`memory`]: reading strings and structures from a tracee.
//! - `steady`: whether only the caller can change what the arguments of its call point to.
//! - [`asks`]: calls that ask for what no path tells; they matter only where a recording may be recalled. Pure.
//! - [`descriptors`]: calls that use a descriptor from before the launch; they matter only there, too. Pure.
//! - [`attributes`]: process attributes that the command inherits, though this process changes them for
//!   itself.
//! - [`launch`]: starts the command seized and filtered, so that it never runs untraced.
//! - [`proc_fd`]: the descriptors of a thread in procfs.
//! - [`proc_status`]: what /proc/PID/status says of a process.
//! - [`wait_status`]: why waitpid(2) returned for a tracee, from its raw status. Pure.
//! - [`seqpacket`]: messages with descriptors between processes of ours.
//! - [`observer`]: the [`observer::Observer`], which decides what becomes of a syscall and is told what
//!   happened.
//! - [`question`]: whether this process is recorded already.
//! - [`shared`]: what the two loops share.
//! - [`notifications`]: the loop that answers notifications of read-only syscalls, without a ptrace-stop.
//! - [`trials`]: whether the calls that all of this needs work here.
//! - [`tracer`]: the loop over waitpid(2) that follows the tree.
//! - `tracees`: what the tracer remembers of each thread.
//! - `postponed`: the syscalls that wait at their entry until another one has ended.
//! - `signal_delivery`: signal-delivery-stops: core dumps, and syscalls that must be restarted.
//! - `error`: why nothing was started.
//! - [`sys`]: system calls that have no safe wrapper: the one module with unsafe code.

pub mod asks;
pub mod attributes;
pub mod descriptors;
pub mod filter;
pub mod inside;
pub mod launch;
pub mod memory;
pub mod notifications;
pub mod observer;
pub mod proc_fd;
pub mod proc_status;
pub mod question;
mod refused_tracers;
pub mod seqpacket;
pub mod shared;
pub mod sys;
pub mod syscalls;
pub mod tracer;
pub mod trials;
pub mod wait_status;

mod error;
mod foreign_filter;
mod nested;
mod pins;
mod postponed;
mod signal_delivery;
mod steady;
mod tracees;

pub use error::Error;
