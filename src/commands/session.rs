//! `session`: records each command that a program starts, and its own edits, as steps.
//!
//! `record.rs` does the work, as for `run`.

use super::config;
use super::exit::Exit;
use super::record::{self, Destination, Messages, SessionRules};
use super::shell::default_options;
use crate::agents::Surroundings;
use crate::agents::program::own_state;
use crate::cli::{RecordingOptions, Session};
use crate::snapshot::identity::random_id;
use crate::trace::sys;

/// The variable that names the session to what runs in it.
const VARIABLE: &str = "AGENT_SNAPSHOT_SESSION";

/// How long the name is that a session gets.
const NAME_LENGTH: usize = 8;

/// Runs `session`, whose status is the program's.
pub fn run(args: Session) -> Exit {
    let Session { name, keep, all, ignore, no_redact, allow_io_uring, quiet, calls, command } = args;
    let is_new = name.is_none();
    let name = name.unwrap_or_else(|| random_id()[..NAME_LENGTH].to_owned());
    if name.is_empty() || name.contains('\0') {
        Messages::new(quiet).say("--name needs a name");
        return Exit::Failure;
    }
    let own_state = match Surroundings::of_this_process() {
        _ if all => Vec::new(),
        Ok(here) => own_state(&here),
        Err(error) => {
            Messages::new(quiet).say(&error.to_string());
            return Exit::Failure;
        }
    };
    let config = match config::session() {
        Ok(config) => config,
        Err(why) => {
            Messages::new(quiet).say(&why);
            return Exit::Failure;
        }
    };
    sys::set_variable(VARIABLE, &name);
    let options = RecordingOptions {
        session: Some(name),
        keep,
        ignore,
        no_redact,
        allow_io_uring,
        quiet,
        calls,
        ..default_options(command)
    };
    record::run(options, Destination::Session(SessionRules { own_state, config, is_new }), None)
}
