//! A command that is run through the shell or hook as an agent would run it, and the recording that it must leave.

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
use crate::agents::hook::Protocol;
use crate::commands::asked::DOCTOR_SESSION;
use crate::library::{Entry, Library};
use crate::snapshot::identity::random_id;
use crate::snapshot::{Snapshot, printable};

const NAME: &str = "recording";
/// What the command writes.
const FILE: &str = "written-by-doctor";
/// How many seconds the shell may take, with all that its startup files do.
const LIMIT: i64 = 60;

/// How an agent runs a command.
pub enum Way<'a> {
    /// A program gets it, with the arguments that are made of it and of a directory for scratch.
    Program(&'a str, &'a dyn Fn(&str, &Path) -> Vec<OsString>),
    /// The command of a hook is asked first.
    Hook(&'a str, &'a Protocol),
}

impl Way<'_> {
    /// What the command goes through.
    fn through(&self) -> &str {
        match self {
            Way::Program(program, _) => program,
            Way::Hook(hook, _) => hook,
        }
    }

    /// The process that runs a command in `directory`.
    fn process(&self, line: &str, directory: &Path, session: &str) -> anyhow::Result<Command> {
        match self {
            Way::Program(program, arguments) => {
                let mut command = Command::new(program);
                command.args(arguments(line, directory));
                Ok(command)
            }
            Way::Hook(hook, protocol) => {
                let rewritten = ask(hook, protocol, line, directory, session)?;
                let mut command = Command::new("/bin/sh");
                command.args(["-c", &rewritten]);
                Ok(command)
            }
        }
    }
}

/// What a hook makes of a command.
fn ask(
    hook: &str,
    protocol: &Protocol,
    line: &str,
    directory: &Path,
    session: &str,
) -> anyhow::Result<String> {
    let [question, answer, said] = ["question", "answer", "hook-said"].map(|name| directory.join(name));
    std::fs::write(&question, protocol.question(line, &directory.display().to_string()))
        .context("write a question for the hook")?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", hook]).current_dir(directory).env("AGENT_SNAPSHOT_SESSION", session);
    command.stdin(File::open(&question)?).stdout(File::create(&answer)?).stderr(File::create(&said)?);
    let status = run(command).with_context(|| format!("run {hook}"))?;
    let said = lines(&std::fs::read(&said).unwrap_or_default());
    anyhow::ensure!(status.success(), "{hook} ended with {status}: {said}");
    let answer = std::fs::read(&answer).context("read the answer of the hook")?;
    let why = if said.is_empty() { "it did not say why" } else { &said };
    protocol
        .rewritten(&answer)
        .with_context(|| format!("{hook} left the command as it is, so that it would run unrecorded: {why}"))
}

/// What was printed, as one line.
fn lines(text: &[u8]) -> String {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("; ")
}

/// Runs a command the way an agent would.
///
/// It is recorded in a session and a directory of its own, so that neither `log` nor `undo` elsewhere come upon it.
pub fn check(way: &Way) -> Check {
    let through = way.through();
    let (entry, said) = match probe(way) {
        Ok(done) => done,
        Err(error) => return Check::new(NAME, Verdict::Finding, format!("{error:#}")),
    };
    let Some(entry) = entry else {
        let found = format!("a command through {through} left no recording");
        let advice =
            if said.is_empty() { "nothing was said of why".to_owned() } else { format!("it said: {said}") };
        return Check::finding(NAME, found, advice);
    };
    let id = &entry.id;
    let found = format!("a command through {through} was recorded as {id}, with the file that it wrote");
    Check { recording: Some(id.clone()), ..Check::fine(NAME, found) }
        .advise(format!("agent-snapshot show {id}"))
}

/// The recording, if there is one that has the file, and what the shell said.
fn probe(way: &Way) -> anyhow::Result<(Option<Entry>, String)> {
    let through = way.through();
    let scratch = tempfile::Builder::new().prefix("agent-snapshot-doctor-").tempdir();
    let scratch = scratch.context("make a directory to try a command in")?;
    // The kernel's name of it, as the recording has it.
    let directory = scratch.path().canonicalize().context("find a directory to try a command in")?;
    std::fs::write(directory.join("shell-snapshot.sh"), "").context("write a file to try a command with")?;
    let session = format!("{DOCTOR_SESSION}{}", random_id());
    let mut command = way.process(&format!("echo recorded > {FILE}"), &directory, &session)?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.current_dir(&directory).env("AGENT_SNAPSHOT_SESSION", &session);
    // A file: whatever the shell's startup files leave in the background may hold a pipe open.
    let errors = directory.join("said");
    command.stderr(File::create(&errors).context("make a file for messages")?);
    let status = run(command).with_context(|| format!("execute {through}"))?;
    let said = lines(&std::fs::read(&errors).unwrap_or_default());
    anyhow::ensure!(status.success(), "a command through {through} ended with {status}: {said}");
    let Some(library) = Library::find()? else { return Ok((None, said)) };
    let written = directory.join(FILE);
    let is_probe = |entry: &Entry| {
        entry.session.as_ref() == Some(&session)
            && Snapshot::open(&library.directory_of(&entry.id))
                .is_ok_and(|snapshot| snapshot.find(written.as_os_str().as_bytes()).is_some())
    };
    Ok((library.entries()?.into_iter().rev().find(is_probe), said))
}

/// Runs a command; after the limit it is killed.
fn run(mut command: Command) -> anyhow::Result<ExitStatus> {
    let mut child = command.spawn()?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    let limit = Timespec { tv_sec: LIMIT, tv_nsec: 0 };
    if retry_on_intr(|| poll(&mut watched, Some(&limit)))? == 0 {
        child.kill()?;
    }
    Ok(child.wait()?)
}
