//! Whether one agent starts our shell, or asks our hook.

use std::path::PathBuf;

use super::{Check, Verdict};
use crate::agents::effective::{Effective, effective, switched_off};
use crate::agents::slot::{Slot, is_our_shell};
use crate::agents::{Agent, Means, ShellSource, Surroundings};
use crate::commands::init::{check_shell, our_program};
use crate::snapshot::printable;

/// Looks into the agent's settings. The check, and the shell, or command of a hook, if it is ours and can be executed.
/// That an agent is not set up is only wrong if it was asked for.
pub fn check(agent: &Agent, here: &Surroundings, was_asked_for: bool) -> (Check, Option<String>) {
    let init = match agent.means {
        Means::Hook(_, protocol) if protocol.objection.is_some() => {
            format!("agent-snapshot init {} --auto-approve", agent.name)
        }
        _ => format!("agent-snapshot init {}", agent.name),
    };
    let label = agent.slot().map(Slot::label).unwrap_or_default();
    let Effective { shell, hidden_by } = match effective(agent, here) {
        Ok(effective) => effective,
        Err(error) => return (Check::finding(agent.name, error.to_string(), "correct the file"), None),
    };
    let own = (agent.user_settings)(here).map(ShellSource::File);
    let not_set_up = |found: String| {
        let verdict = if was_asked_for { Verdict::Finding } else { Verdict::Note };
        (Check::new(agent.name, verdict, found).advise(init.clone()), None)
    };
    let shell = shell.map(|(shell, source)| (our_program_in(agent, &shell), shell, source));
    match (shell, hidden_by) {
        (Some((Some(program), shell, source)), _) => {
            let found = said(&source, &label, &shell);
            if let Ok(Some((file, setting))) = switched_off(agent, here) {
                let file = printable(file.as_os_str().as_encoded_bytes()).into_owned();
                let found = format!("{found}, but {file} has hooks switched off");
                return (Check::finding(agent.name, found, format!("remove {setting} there")), None);
            }
            match check_shell(&program) {
                Ok(()) => {
                    let remarks = agent.remarks(&our_program().unwrap_or_default());
                    let advice = (!remarks.is_empty()).then(|| remarks.join("; "));
                    (Check { advice, ..Check::fine(agent.name, found) }, Some(shell))
                }
                Err(error) => {
                    let found = format!("{found}, which can't be executed: {error}");
                    (Check::finding(agent.name, found, init.clone()), None)
                }
            }
        }
        (_, Some(source)) => {
            let found =
                format!("{} has a list of its own, which hides {label} in other files", shown(&source));
            (Check::finding(agent.name, found, format!("add {label} there")), None)
        }
        (None, None) => not_set_up(match agent.means {
            Means::Hook(..) => format!("not set up: {label} has no hook of ours"),
            Means::Shell(_) | Means::Variable => "not set up: nothing names a shell".to_owned(),
        }),
        (Some((None, shell, source @ ShellSource::Path(_))), None) => {
            not_set_up(format!("not set up: {}", said(&source, &label, &shell)))
        }
        (Some((None, shell, source)), None) => {
            let advice = match Some(&source) == own.as_ref() {
                true => format!("{init} --force"),
                false => "remove it there: it counts more than what agent-snapshot init writes".to_owned(),
            };
            (Check::finding(agent.name, said(&source, &label, &shell), advice), None)
        }
    }
}

/// Our program that a setting names, if it does.
fn our_program_in(agent: &Agent, value: &str) -> Option<PathBuf> {
    match agent.means {
        Means::Hook(slot, _) => slot.program(value),
        Means::Shell(_) | Means::Variable => is_our_shell(value).then(|| PathBuf::from(value)),
    }
}

fn said(source: &ShellSource, label: &str, shell: &str) -> String {
    let (place, shell) = (shown(source), printable(shell.as_bytes()));
    match source {
        ShellSource::Path(_) => format!("{place} is {shell}"),
        ShellSource::File(_) | ShellSource::Text(_) => format!("{place} sets {label} to {shell}"),
    }
}

fn shown(source: &ShellSource) -> String {
    match source {
        ShellSource::File(path) => printable(path.as_os_str().as_encoded_bytes()).into_owned(),
        ShellSource::Text(name) | ShellSource::Path(name) => format!("${name}"),
    }
}
