//! `hook`: answers an agent that asks before it runs a command, so that the command is recorded.
//!
//! `agents::hook` knows the questions and answers; here is whether a command is to be recorded at all. Whatever goes
//! wrong, the answer leaves the command as it is and the exit status is 0: any other has an agent refuse it.

use std::fs;
use std::io::{self, Read as _};

use super::asked;
use super::config::Config;
use super::exit::{Exit, UsageError, VerbResult};
use super::init::{row, running_shell};
use super::out::Console;
use super::shell::{is_switched_off, leaves_out};
use crate::agents::hook::{Permission, Protocol};
use crate::agents::{Means, Surroundings, has_restrictive_rules};
use crate::cli::Hook;
use crate::library::notes::NoteEvent;
use crate::observe::policy::ignore::Environment;

/// No question is longer, and whoever asks must not be able to exhaust our memory.
const SIZE_LIMIT: u64 = 16 << 20;

/// Runs `hook`.
pub fn run(args: &Hook, console: &mut Console) -> VerbResult {
    let agent = row(args.agent);
    let Means::Hook(_, protocol) = agent.means else {
        return Err(UsageError(format!("{} is not set up by a hook", agent.title)).into());
    };
    let answer = answer(agent.name, protocol, args.auto_approve).unwrap_or_else(|error| {
        console.say(format_args!("the command runs unrecorded: {error:#}"));
        None
    });
    let answer = answer.as_deref().unwrap_or(protocol.pass);
    if !answer.is_empty() {
        writeln!(console, "{answer}")?;
    }
    Ok(Exit::Success)
}

/// The answer to the question on standard input; none leaves the command as it is.
fn answer(agent: &str, protocol: &Protocol, may_approve: bool) -> anyhow::Result<Option<String>> {
    let mut input = Vec::new();
    let mut stdin = io::stdin().lock();
    stdin.by_ref().take(SIZE_LIMIT + 1).read_to_end(&mut input)?;
    if input.len() as u64 > SIZE_LIMIT {
        // The agent may take a closed pipe for a failure.
        io::copy(&mut stdin, &mut io::sink())?;
        return Ok(None);
    }
    let Some(question) = protocol.read(&input) else { return Ok(None) };
    let config = Config::load(&Environment::from_process(b"/")).unwrap_or_default();
    let hides = (protocol.is_hidden_from_rules)(&question.command);
    if hides && has_restrictive_rules(&Surroundings::of_this_process()?) {
        return Ok(None);
    }
    let is_exempt = is_switched_off() || leaves_out(&config, question.command.as_bytes());
    if is_exempt || (protocol.is_left_alone)(&question.command) {
        return Ok(None);
    }
    let (command, session) = (question.command.clone(), question.session.clone());
    let note = |why: Option<&str>| {
        let (agent, why, session) = (agent.to_owned(), why.map(str::to_owned), session.clone());
        asked::note(command.as_bytes(), NoteEvent::Asked { agent, why, session });
    };
    let shell = running_shell().inspect_err(|error| note(Some(&format!("{error:#}"))))?;
    let permission = match protocol.objection {
        Some(_) if may_approve => Permission::Approve,
        None if (protocol.is_asked_about)(&question.command) => match attendance(protocol) {
            Attendance::Waived => Permission::None,
            Attendance::Present => Permission::Ask,
            // The agent refuses it, or has a rule of its user's for it.
            Attendance::Absent => {
                note(Some("without a terminal it can't ask about such a command"));
                return Ok(None);
            }
        },
        _ => Permission::None,
    };
    let answer = protocol.rewrite(question, &shell, permission);
    let needs_approval = protocol.objection.is_some() && permission != Permission::Approve;
    match &answer {
        Some(_) => note(None),
        None if needs_approval => note(Some("its hook was set up without --auto-approve")),
        // It is rewritten already, or too long.
        None => {}
    }
    Ok(answer)
}

/// Whether the agent can ask somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attendance {
    /// It was started so that it asks about nothing.
    Waived,
    /// It has a terminal.
    Present,
    /// There is nobody to answer: it would wait for ever.
    Absent,
}

/// Finds the agent among the nearest ancestors of this process, and how it was started.
fn attendance(protocol: &Protocol) -> Attendance {
    let mut process = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    let mut attendance = Attendance::Absent;
    // A shell, the agent, and what has started that again with another limit of its memory.
    for _ in 0..4 {
        let Some(id) = process.filter(|id| *id > 1) else { break };
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let arguments: Vec<&str> =
            command.split(|byte| *byte == 0).map(|word| str::from_utf8(word).unwrap_or_default()).collect();
        if arguments.iter().any(|word| word.contains(protocol.program)) {
            if arguments.iter().any(|word| protocol.asks_nothing.contains(word)) {
                return Attendance::Waived;
            }
            if arguments.iter().any(|word| protocol.asks_nobody.contains(word)) {
                return Attendance::Absent;
            }
            let input = fs::read_link(format!("/proc/{id}/fd/0")).unwrap_or_default();
            if ["/dev/pts", "/dev/tty", "/dev/console"].iter().any(|place| input.starts_with(place)) {
                attendance = Attendance::Present;
            }
        }
        process = parent_of(id);
    }
    attendance
}

/// The parent of a process.
fn parent_of(id: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
