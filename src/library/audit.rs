//! `audit.jsonl`: what crossed the border of a session.

use std::path::Path;

use serde::Serialize;

use super::error::Error;
use super::log::append_line;

/// The audit's name in the library.
pub const AUDIT: &str = "audit.jsonl";

#[derive(Serialize)]
struct Crossing<'a> {
    time: String,
    /// The command line of the verb.
    command: Vec<String>,
    id: &'a str,
    /// The session that the verb was called in.
    caller: Option<&'a str>,
    uid: u32,
}

/// Appends a line.
pub fn append(root: &Path, id: &str, caller: Option<&str>) -> Result<(), Error> {
    let uid = rustix::process::geteuid().as_raw();
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let time = jiff::Timestamp::now().to_string();
    append_line(&root.join(AUDIT), &Crossing { time, command, id, caller, uid })
}
