//! `doctor`: proves that commands are recorded, by recording one the way an agent runs it.
//!
//! `calls.rs` tries the system calls that a recording needs, `host.rs` has what else all agents have in common, `agent.rs` the
//! settings of one, `probe.rs` the recording.

mod agent;
mod calls;
mod host;
mod probe;

use std::path::Path;

use serde::Serialize;

use self::calls::Refused;
use self::probe::Way;
use super::asked;
use super::exit::{Exit, VerbResult};
use super::init::{row, running_shell};
use super::out::{Console, style};
use crate::agents::{AGENTS, Means, Surroundings};
use crate::cli::Doctor;
use crate::library::notes::{Account, Gap};

/// Runs `doctor`.
pub fn run(args: &Doctor, console: &mut Console) -> VerbResult {
    let here = Surroundings::of_this_process()?;
    let mut checks = host::checks();
    let can_record = checks.iter().all(|check| check.verdict != Verdict::Finding);
    match args.agent {
        Some(name) => {
            let agent = row(name);
            let (check, command) = agent::check(agent, &here, true);
            checks.push(check);
            if let Some(command) = command {
                let way = match agent.means {
                    Means::Hook(_, protocol) => Way::Hook(&command, protocol),
                    _ => Way::Program(&command, &agent.arguments),
                };
                checks.push(probe::check(&way));
            }
        }
        None => {
            if can_record && let Ok(shell) = running_shell() {
                let dash_c = |line: &str, _: &Path| vec!["-c".into(), line.into()];
                checks.push(probe::check(&Way::Program(&shell, &dash_c)));
            }
            checks.extend(AGENTS.iter().map(|agent| agent::check(agent, &here, false).0));
        }
    }
    let account = asked::account();
    prove(&mut checks, &account);
    let is_meant = |gap: &&Gap| {
        args.agent.is_none()
            || gap.agent.is_none()
            || gap.agent.as_deref() == args.agent.map(|name| row(name).name)
    };
    for gap in account.gaps.iter().filter(is_meant) {
        let advice = "let it run a command; agent-snapshot log then lists it, or says why not";
        checks.push(Check::finding("unrecorded", asked::told(gap), advice));
    }
    let found = checks.iter().any(|check| check.verdict == Verdict::Finding);
    if args.json {
        console.json(&DoctorJson { fine: !found, checks: &checks })?;
    } else {
        print(&checks, console)?;
    }
    Ok(if found { Exit::Finding } else { Exit::Success })
}

/// What is set up is only fine if a command of the agent itself was recorded: nothing else shows that it uses it.
fn prove(checks: &mut [Check], account: &Account) {
    for check in checks.iter_mut().filter(|check| check.verdict == Verdict::Fine) {
        let Some(agent) = AGENTS.iter().find(|agent| agent.name == check.name) else { continue };
        match account.seen.iter().find(|(name, ..)| name == agent.name) {
            Some((_, _, id)) => check.found += &format!("; its last command was recorded as {id}"),
            None => {
                let title = agent.title;
                let why = match asked::is_recognised(agent) {
                    true => format!("no command of {title} was recorded"),
                    false => format!("agent-snapshot log shows whether {title} uses it"),
                };
                check.verdict = Verdict::Note;
                check.found += &format!("; configured, not yet seen to work: {why}");
            }
        }
    }
}

/// What was checked, and what came of it.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found, a clause without a full stop.
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// The identifier of the recording that was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<String>,
    /// The system call that does not work, if it is about one.
    #[serde(flatten)]
    refused: Option<Refused>,
}

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Fine,
    /// Good to know, and nothing is wrong.
    Note,
    /// Commands are not recorded, or not as they should be.
    Finding,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
        Check { name, verdict, found: found.into(), advice: None, recording: None, refused: None }
    }

    fn fine(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, Verdict::Fine, found)
    }

    fn finding(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check::new(name, Verdict::Finding, found).advise(advice)
    }

    fn note(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, Verdict::Note, found)
    }

    fn wrong(self) -> Check {
        Check { verdict: Verdict::Finding, ..self }
    }

    fn advise(self, advice: impl Into<String>) -> Check {
        Check { advice: Some(advice.into()), ..self }
    }
}

#[derive(Serialize)]
struct DoctorJson<'a> {
    fine: bool,
    checks: &'a [Check],
}

fn print(checks: &[Check], console: &mut Console) -> anyhow::Result<()> {
    for check in checks {
        let (word, style) = match check.verdict {
            Verdict::Fine => ("ok", style::ADDED),
            Verdict::Note => ("note", style::FAINT),
            Verdict::Finding => ("WRONG", style::REMOVED),
        };
        let word = console.paint(style, format!("{word:5}"));
        writeln!(console, "{word}  {:11}  {}", check.name, check.found)?;
        if let Some(advice) = &check.advice {
            writeln!(console, "{:20}{advice}", "")?;
        }
    }
    Ok(())
}
