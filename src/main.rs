//! Parses, runs, and turns the outcome into an exit status.
//!
//! `main` is C's: Rust's own start would ignore SIGPIPE and open /dev/null on closed standard
//! streams, and the recorded command must inherit what we were started with.
#![no_main]

use clap::Parser;

/// The status of a bug of ours.
const INTERNAL: i32 = 125;

#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const std::ffi::c_char) -> i32 {
    std::panic::catch_unwind(run).unwrap_or(INTERNAL)
}

fn run() -> i32 {
    agent_snapshot::commands::run(agent_snapshot::cli::Cli::try_parse())
}
