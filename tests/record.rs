//! Recording a command: what the snapshot says, and what the command notices.

mod before_state;
mod bundle;
mod bypass;
mod content;
mod descriptors;
mod directories;
mod exec;
mod exit_status;
mod external_changes;
mod git;
mod hard_links;
mod inherited;
mod inside;
mod killed;
mod losses;
mod mounts;
mod namespaces;
mod nested_tracers;
mod network;
mod notifications;
mod own_program;
mod permissions;
mod planted;
mod rename;
mod resources;
mod running;
mod secrets;
mod signals;
mod suites;
mod survivors;
mod symlinks;
pub mod syscalls;
mod system_directories;
mod terminal;
mod threads;
mod transparency;
mod views;

use agent_snapshot::snapshot::Snapshot;

use crate::support::{Place, SKIPPED, program, shown};

/// Whether a scenario of `test_programs/bypass.rs` can be run here, in a place of its own and outside of
/// any recording; if not, the reason of a skip is printed. A call that the kernel does not have (ENOSYS) or a
/// sandbox forbids (EPERM) is such a reason, every other error a failure.
fn is_supported(arguments: &[&str], prepare: impl FnOnce(&Place)) -> bool {
    let place = Place::new();
    prepare(&place);
    let alone = place.program(program("bypass")).args(arguments).output().unwrap();
    let is_error = alone.stdout.starts_with(b"E");
    let refused = alone.status.code() == Some(SKIPPED)
        || alone.status.success() && matches!(&*alone.stdout, b"ENOSYS\n" | b"EPERM\n");
    if refused {
        println!("skipped: {arguments:?}: {}", shown(&alone));
    }
    assert!(refused || alone.status.success() && !is_error, "{arguments:?}: {}", shown(&alone));
    !refused
}

/// Records a scenario of `test_programs/bypass.rs`, which must succeed; what it printed, and the snapshot.
#[track_caller]
fn record_scenario(place: &Place, options: &[&str], arguments: &[&str]) -> (String, Snapshot) {
    let output = place.recording().args(options).arg(program("bypass")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", shown(&output));
    (String::from_utf8(output.stdout).unwrap(), place.snapshot())
}
