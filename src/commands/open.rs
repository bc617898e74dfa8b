//! Opens the snapshot that a verb is given, once a killed recording is complete.

use std::path::Path;

use super::out::Console;
use crate::snapshot::recover;
use crate::snapshot::{Error, Snapshot, layout, printable};

/// Opens the snapshot in the directory `path`.
///
/// If its recording was killed, its recorder may still be completing it: that is told, and waited for. If the
/// recorder was killed, too, the recording has to be recovered first: an older snapshot is not taken for it.
pub fn open(path: &Path, console: &mut Console) -> Result<Snapshot, Error> {
    let opened = Snapshot::open(path);
    let Some(begin) = recover::recorder(path).filter(|begin| !begin.front.is_alive()) else { return opened };
    if opened.as_ref().is_ok_and(|snapshot| snapshot.header().id == begin.id) {
        return opened;
    }
    let recorder = begin.recorder;
    if recorder.is_alive() {
        if is_traced_by(recorder.pid) {
            return opened;
        }
        console.say(format_args!("waiting for process {}, which completes the recording", recorder.pid));
    }
    // Or the kernel has not closed all files of the recorder yet.
    layout::wait_until_unlocked(path).map_err(Error::io("wait for the lock of", path))?;
    if recover::recorder(path).is_some() && opened.is_ok() {
        let path = printable(path.as_os_str().as_encoded_bytes());
        return Err(Error::Format(format!(
            "{path} holds a recording that was killed after its snapshot was made: agent-snapshot recover {path} \
             makes another snapshot of what it has changed"
        )));
    }
    Snapshot::open(path)
}

/// Whether this process is traced by that of the id, and so part of what it records.
fn is_traced_by(tracer: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    line.is_some_and(|id| id.trim() == tracer.to_string())
}
