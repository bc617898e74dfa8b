//! `init`: has an agent start our shell, and takes that back.
//!
//! `agents` knows the settings of each; here is what is asked and printed.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{Access, AtFlags, CWD};
use serde::Serialize;
use similar::TextDiff;

use super::exit::{Exit, UsageError, VerbResult};
use super::out::{Console, style, visible};
use crate::agents::setup::{SettingsChange, SetupPlan};
use crate::agents::{Agent, SHELL, Surroundings};
use crate::cli::{AgentName, Init};
use crate::library::{Library, Place, RECEIPTS};
use crate::snapshot::printable;

/// Runs `init`.
pub fn run(args: &Init, console: &mut Console) -> VerbResult {
    let agent = row(args.agent);
    let here = Surroundings::of_this_process()?;
    let settings = settings(agent, &here, args.project)?;
    let place = Place::of_this_user();
    let receipts =
        Library::find()?.map_or(place.root.clone(), |library| library.root().to_owned()).join(RECEIPTS);
    let (plan, shell) = if args.remove {
        (SetupPlan::take_back(agent, &settings, &receipts)?, None)
    } else {
        let shell = our_shell()?;
        (SetupPlan::set(agent, &settings, &shell, args.force, &receipts)?, Some(shell))
    };
    let report = Report::of(agent, &plan, shell, !args.print);
    let (before, change) = (plan.before().to_owned(), plan.change().clone());
    if !args.print {
        plan.check()?;
        if !args.remove && change != SettingsChange::None {
            Library::create(&place)?;
        }
        plan.apply()?;
    }
    if args.json {
        console.json(&report)?;
        return Ok(Exit::Success);
    }
    print(args, agent, &report, &before, &change, console)?;
    Ok(Exit::Success)
}

/// What is known of an agent.
pub fn row(name: AgentName) -> &'static Agent {
    Agent::named(&name.word()).expect("a test finds each name in the table")
}

/// The settings file that is meant.
fn settings(agent: &Agent, here: &Surroundings, in_project: bool) -> anyhow::Result<PathBuf> {
    if in_project {
        return agent.project_settings(here).ok_or_else(|| {
            let title = agent.title;
            UsageError(format!(
                "{title} has no settings of yours for one project, only shared ones: use --user"
            ))
            .into()
        });
    }
    agent.user_settings(here).context("find the settings: there is no home directory")
}

/// The path of the shell that records, which is beside this program.
pub fn our_shell() -> anyhow::Result<String> {
    let program = std::env::current_exe().context("find this program")?;
    let shell = program.with_file_name(SHELL);
    let shown = printable(shell.as_os_str().as_encoded_bytes()).into_owned();
    check_shell(&shell).with_context(|| format!("{shown} can't be used as a shell"))?;
    shell
        .into_os_string()
        .into_string()
        .map_err(|_| anyhow::anyhow!("{shown} is no UTF-8 text, as settings are"))
}

/// Checks that a shell is there and executable.
pub fn check_shell(shell: &Path) -> std::io::Result<()> {
    if !std::fs::metadata(shell)?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(rustix::fs::accessat(CWD, shell, Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// What was done, or would be.
#[derive(Serialize)]
struct Report {
    agent: &'static str,
    file: String,
    setting: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<String>,
    change: &'static str,
    done: bool,
    /// The text of the file, unless it is removed or unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl Report {
    fn of(agent: &Agent, plan: &SetupPlan, shell: Option<String>, done: bool) -> Report {
        let (change, text) = match plan.change() {
            SettingsChange::None => ("none", None),
            SettingsChange::Write(text) => ("write", Some(text.clone())),
            SettingsChange::Remove(_) => ("remove", None),
        };
        let file = printable(plan.path().as_os_str().as_encoded_bytes()).into_owned();
        Report { agent: agent.name, file, setting: agent.slot.label(), shell, change, done, text }
    }
}

fn print(
    args: &Init,
    agent: &Agent,
    report: &Report,
    before: &str,
    change: &SettingsChange,
    console: &mut Console,
) -> anyhow::Result<()> {
    let Report { file, setting, .. } = report;
    let title = agent.title;
    let done = |word: &'static str, past: &'static str| if args.print { word } else { past };
    match change {
        SettingsChange::None if args.remove => {
            writeln!(console, "{file}: {setting} is not set to {SHELL}; nothing to take back")?
        }
        SettingsChange::None => writeln!(console, "{file}: {setting} is set already; nothing was changed")?,
        SettingsChange::Write(_) => writeln!(console, "{} {file}:", done("would write", "wrote"))?,
        SettingsChange::Remove(_) => writeln!(console, "{} {file}:", done("would remove", "removed"))?,
    }
    let after = match change {
        SettingsChange::None => before,
        SettingsChange::Write(text) => text,
        SettingsChange::Remove(_) => "",
    };
    let diff = TextDiff::from_lines(before, after);
    for hunk in diff.unified_diff().context_radius(1).iter_hunks() {
        for line in hunk.to_string().split_inclusive('\n').filter(|line| !line.starts_with("@@")) {
            let style = match line.as_bytes().first() {
                Some(b'+') => style::ADDED,
                Some(b'-') => style::REMOVED,
                _ => anstyle::Style::new(),
            };
            writeln!(
                console,
                "  {}",
                console.format.paint(style, visible(line.trim_end_matches(['\r', '\n']).as_bytes()))
            )?;
        }
    }
    if let Some(objection) = agent.objection(after).filter(|_| !args.remove) {
        console.say(format_args!("{}", objection.of_file(Path::new(file))));
    }
    if *change == SettingsChange::None || args.print {
        return Ok(());
    }
    if args.remove {
        writeln!(console, "{title} will start its own shell again, from its next start on")?;
        return Ok(());
    }
    let project = if args.project { " --project" } else { "" };
    writeln!(
        console,
        "{title} will record its commands, from its next start on; agent-snapshot log lists them"
    )?;
    writeln!(
        console,
        "Check it with: agent-snapshot doctor {0}\nTake it back with: agent-snapshot init {0} --remove{project}",
        agent.name
    )?;
    if let Some(remark) = agent.remark {
        console.say(format_args!("{remark}"));
    }
    if !rustix::process::geteuid().is_root() {
        console.say(format_args!("{PRIVILEGES}"));
    }
    Ok(())
}

/// What becomes of set-ID programs without root, and the way out.
pub const PRIVILEGES: &str = "sudo and other set-ID programs lose their privilege in recorded commands; config.toml \
    ([shell] unrecorded = [\"sudo\"]) or AGENT_SNAPSHOT=off runs them unrecorded";

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::agents::AGENTS;

    #[test]
    fn table_has_each_agent_of_the_command_line_and_no_other() {
        let names = AgentName::value_variants().iter().map(|name| name.word());
        assert!(names.eq(AGENTS.iter().map(|agent| agent.name.to_owned())));
    }
}
