//! bash, whose commands are recorded into the library: `agent_snapshot::commands::shell`.
//!
//! This is the `main` of C for the reasons that `src/main.rs` has.
#![no_main]

use agent_snapshot::commands::{exit::Exit, shell};

#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const std::ffi::c_char) -> i32 {
    std::panic::catch_unwind(shell::run).unwrap_or(Exit::Failure).status()
}
