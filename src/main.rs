//! Parses, runs, and turns the outcome into an exit status.
//!
//! This is the `main` of C, since Rust's runtime would ignore SIGPIPE and open /dev/null for closed
//! standard streams, and the recorded command has to inherit both as they were.
#![no_main]

use agent_snapshot::cli::Cli;
use agent_snapshot::commands::{self, exit::Exit};

#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const std::ffi::c_char) -> i32 {
    std::panic::catch_unwind(|| commands::run(Cli::of_process())).unwrap_or(Exit::Failure).status()
}
