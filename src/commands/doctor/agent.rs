//! Whether one agent starts our shell.

use std::path::Path;

use super::{Check, Verdict};
use crate::agents::effective::{Effective, Place, effective};
use crate::agents::setup::is_ours;
use crate::agents::{Agent, Surroundings};
use crate::commands::init::check_shell;
use crate::snapshot::printable;

/// Looks into the agent's settings. The check, and the shell if it is ours and can be executed. That an agent is not
/// set up is only wrong if it was asked for.
pub fn check(agent: &Agent, here: &Surroundings, was_asked_for: bool) -> (Check, Option<String>) {
    let init = format!("agent-snapshot init {}", agent.name);
    let label = agent.slot.label();
    let Effective { shell, hidden_by, errors } = effective(agent, here);
    if let Some(error) = errors.first() {
        let advice = "correct the file";
        return (Check::finding(agent.name, error.to_string(), advice), None);
    }
    let own = agent.user_settings(here);
    let is_own = |place: &Place| matches!(place, Place::File(path) if Some(path) == own.as_ref());
    let not_set_up = |found: String| {
        let verdict = if was_asked_for { Verdict::Finding } else { Verdict::Note };
        (Check::new(agent.name, verdict, found).advise(init.clone()), None)
    };
    match (shell, hidden_by) {
        (Some((shell, place)), _) if is_ours(&shell) => match check_shell(Path::new(&shell)) {
            Ok(()) => {
                let found = format!("{} sets {label} to {shell}", shown(&place));
                let check =
                    Check { advice: agent.remark.map(str::to_owned), ..Check::fine(agent.name, found) };
                (check, Some(shell))
            }
            Err(error) => {
                let found =
                    format!("{} sets {label} to {shell}, which can't be executed: {error}", shown(&place));
                (Check::finding(agent.name, found, init.clone()), None)
            }
        },
        (_, Some(place)) => {
            let found =
                format!("{} has a list of its own, which hides {label} in other files", shown(&place));
            let advice = format!("add {label} there");
            (Check::finding(agent.name, found, advice), None)
        }
        (None, None) => not_set_up("not set up: no place names a shell".to_owned()),
        (Some((shell, Place::Variable(name))), None) => {
            not_set_up(format!("not set up: ${name} is {}", printable(shell.as_bytes())))
        }
        (Some((shell, place)), None) => {
            let found = format!("{} sets {label} to {}", shown(&place), printable(shell.as_bytes()));
            let advice = match is_own(&place) {
                true => format!("{init} --force"),
                false => "remove it there: it counts more than what agent-snapshot init writes".to_owned(),
            };
            (Check::finding(agent.name, found, advice), None)
        }
    }
}

fn shown(place: &Place) -> String {
    match place {
        Place::File(path) => printable(path.as_os_str().as_encoded_bytes()).into_owned(),
        Place::Variable(name) => format!("${name}"),
    }
}
