//! Opens the snapshot that a verb is given, once a killed recording is complete.

use std::path::Path;
use std::time::Duration;

use super::out::Console;
use super::recover::waiting_for;
use crate::snapshot::recover;
use crate::snapshot::{Error, Snapshot, layout, printable};
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::Tid;

/// How often a verb looks whether the snapshot that it waits for is there.
const INTERVAL: Duration = Duration::from_millis(20);

/// Opens the snapshot in the directory `path`.
///
/// If its recording was killed, its recorder may still be completing it: that is told, and waited for. If the
/// recorder was killed, too, the recording has to be recovered first: an older snapshot is not taken for it.
pub fn open(path: &Path, console: &mut Console) -> Result<Snapshot, Error> {
    let opened = Snapshot::open(path);
    let Some(begin) = recover::recorder(path).filter(|begin| !begin.front.is_alive()) else { return opened };
    let is_its_own = |opened: &Result<Snapshot, Error>| {
        opened.as_ref().is_ok_and(|snapshot| snapshot.header().id == begin.id)
    };
    if is_its_own(&opened) || begin.recorder.is_alive() && is_traced_by(begin.recorder.pid) {
        return opened;
    }
    if begin.recorder.is_alive() {
        console.say(format_args!("{}", waiting_for(begin.recorder.pid)));
    }
    // Its lock may outlive the recorder for a moment, and its first snapshot comes before it is released.
    while layout::is_locked(path) {
        let now = Snapshot::open(path);
        if is_its_own(&now) {
            return now;
        }
        std::thread::sleep(INTERVAL);
    }
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
    let status = ProcStatus::of(Tid(std::process::id().cast_signed()));
    status.is_some_and(|status| status.line("TracerPid:") == Some(&tracer.to_string()))
}
