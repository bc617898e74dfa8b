//! A command that is run through the shell as an agent would run it, and the recording that it must leave.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Check, Verdict};
use crate::library::{Entry, Library};
use crate::snapshot::identity::random_id;
use crate::snapshot::{Snapshot, printable};

const NAME: &str = "recording";
/// What the command writes.
const FILE: &str = "written-by-doctor";
/// How many seconds the shell may take, with all that its startup files do.
const LIMIT: i64 = 60;

/// Runs a command through `shell` with the arguments that `arguments` makes of it and of a directory for scratch.
///
/// It is recorded in a session and a directory of its own, so that neither `log` nor `undo` elsewhere come upon it.
pub fn check(shell: &str, arguments: &dyn Fn(&str, &Path) -> Vec<OsString>) -> Check {
    let (entry, said) = match probe(shell, arguments) {
        Ok(done) => done,
        Err(error) => return Check::new(NAME, Verdict::Finding, format!("{error:#}")),
    };
    let Some(entry) = entry else {
        let found = format!("a command through {shell} left no recording");
        let advice =
            if said.is_empty() { "nothing was said of why".to_owned() } else { format!("it said: {said}") };
        return Check::finding(NAME, found, advice);
    };
    let id = &entry.id;
    let found = format!("a command through {shell} was recorded as {id}, with the file that it wrote");
    Check { recording: Some(id.clone()), ..Check::fine(NAME, found) }
        .advise(format!("agent-snapshot show {id}"))
}

/// The recording, if there is one that has the file, and what the shell said.
fn probe(
    shell: &str,
    arguments: &dyn Fn(&str, &Path) -> Vec<OsString>,
) -> anyhow::Result<(Option<Entry>, String)> {
    let scratch = tempfile::Builder::new().prefix("agent-snapshot-doctor-").tempdir();
    let scratch = scratch.context("make a directory to try a command in")?;
    // The kernel's name of it, as the recording has it.
    let directory = scratch.path().canonicalize().context("find a directory to try a command in")?;
    std::fs::write(directory.join("shell-snapshot.sh"), "").context("write a file to try a command with")?;
    let session = format!("doctor-{}", random_id());
    let mut command = Command::new(shell);
    command.args(arguments(&format!("echo recorded > {FILE}"), &directory));
    command.current_dir(&directory).env("AGENT_SNAPSHOT_SESSION", &session);
    // A file: whatever the shell's startup files leave in the background may hold a pipe open.
    let errors = directory.join("said");
    command.stderr(File::create(&errors).context("make a file for messages")?);
    let status = run(command).with_context(|| format!("execute {shell}"))?;
    let said = std::fs::read(&errors).unwrap_or_default();
    let lines = said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let said = lines.map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("; ");
    anyhow::ensure!(status.success(), "a command through {shell} ended with {status}: {said}");
    let Some(library) = Library::find()? else { return Ok((None, said)) };
    let written = directory.join(FILE);
    let is_probe = |entry: &Entry| {
        entry.session.as_ref() == Some(&session)
            && Snapshot::open(&library.directory_of(&entry.id))
                .is_ok_and(|snapshot| snapshot.find(written.as_os_str().as_bytes()).is_some())
    };
    Ok((library.entries()?.into_iter().rev().find(is_probe), said))
}

/// Runs a command without input or output; after the limit it is killed.
fn run(mut command: Command) -> anyhow::Result<ExitStatus> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    let limit = Timespec { tv_sec: LIMIT, tv_nsec: 0 };
    if retry_on_intr(|| poll(&mut watched, Some(&limit)))? == 0 {
        child.kill()?;
    }
    Ok(child.wait()?)
}
