//! Starts `prune` after a recording into the library.
//!
//! In a process of its own: nobody waits for it, neither the command nor whoever waits for that.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::agents::PROGRAM;
use crate::library::{Library, retention};

/// Starts it if it is due.
pub fn start_if_due(library: &Library) {
    if !retention::is_due(library) {
        return;
    }
    // Something else may have the path of this program by now. By this name, agent-snapshot-bash is agent-snapshot.
    let mut prune = Command::new("/proc/self/exe");
    prune.arg0(PROGRAM).args(["prune", "--automatic"]).env("AGENT_SNAPSHOT_LIBRARY", library.root());
    // If that fails, it is tried again in an hour.
    let _ = prune.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}
