//! Parses, runs, and turns the outcome into an exit status. Called by the name of a shell, this is
//! `agent-snapshot-bash`.
//!
//! This is the `main` of C, since Rust's runtime would ignore SIGPIPE and open /dev/null for closed
//! standard streams, and the recorded command has to inherit both as they were.
#![no_main]

use agent_snapshot::cli::Cli;
use agent_snapshot::commands::{self, exit::Exit, shell};

#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const std::ffi::c_char) -> i32 {
    let run = || match shell::called_as() {
        Some(words) => shell::run(words),
        None => commands::run(Cli::of_process()),
    };
    std::panic::catch_unwind(run).unwrap_or(Exit::Failure).status()
}
