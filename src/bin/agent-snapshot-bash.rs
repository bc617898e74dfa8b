//! bash, whose commands are recorded into the library: `agent_snapshot::commands::shell`.
//!
//! This is the `main` of C for the reasons that `src/main.rs` has.
#![no_main]

use std::ffi::OsString;

use agent_snapshot::agents::PROGRAM;
use agent_snapshot::cli::Cli;
use agent_snapshot::commands::{self, exit::Exit, shell};

#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const std::ffi::c_char) -> i32 {
    let run = || {
        let words: Vec<OsString> = std::env::args_os().collect();
        // It starts itself by that name for a verb.
        if words.first().is_some_and(|name| name == PROGRAM) {
            commands::run(Cli::of_process())
        } else {
            shell::run(words)
        }
    };
    std::panic::catch_unwind(run).unwrap_or(Exit::Failure).status()
}
