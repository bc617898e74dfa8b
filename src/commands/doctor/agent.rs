//! Whether one agent starts our shell.

use std::path::Path;

use super::{Check, Verdict};
use crate::agents::effective::{Effective, effective};
use crate::agents::setup::is_ours;
use crate::agents::{Agent, ShellSource, Surroundings};
use crate::commands::init::check_shell;
use crate::snapshot::printable;

/// Looks into the agent's settings. The check, and the shell if it is ours and can be executed. That an agent is not
/// set up is only wrong if it was asked for.
pub fn check(agent: &Agent, here: &Surroundings, was_asked_for: bool) -> (Check, Option<String>) {
    let init = format!("agent-snapshot init {}", agent.name);
    let label = agent.slot.label();
    let Effective { shell, hidden_by } = match effective(agent, here) {
        Ok(effective) => effective,
        Err(error) => return (Check::finding(agent.name, error.to_string(), "correct the file"), None),
    };
    let own = agent.user_settings(here).map(ShellSource::File);
    let not_set_up = |found: String| {
        let verdict = if was_asked_for { Verdict::Finding } else { Verdict::Note };
        (Check::new(agent.name, verdict, found).advise(init.clone()), None)
    };
    match (shell, hidden_by) {
        (Some((shell, source)), _) if is_ours(&shell) => {
            let found = said(&source, &label, &shell);
            match check_shell(Path::new(&shell)) {
                Ok(()) => {
                    let advice = agent.remark.map(str::to_owned);
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
        (None, None) => not_set_up("not set up: nothing names a shell".to_owned()),
        (Some((shell, source @ ShellSource::Path(_))), None) => {
            not_set_up(format!("not set up: {}", said(&source, &label, &shell)))
        }
        (Some((shell, source)), None) => {
            let advice = match Some(&source) == own.as_ref() {
                true => format!("{init} --force"),
                false => "remove it there: it counts more than what agent-snapshot init writes".to_owned(),
            };
            (Check::finding(agent.name, said(&source, &label, &shell), advice), None)
        }
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
