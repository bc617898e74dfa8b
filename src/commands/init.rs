//! `init`: has an agent start our shell, or ask our hook, and takes that back.
//!
//! `agents` knows what each of them needs; here is what is asked and printed.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{Access, AtFlags, CWD};
use serde::Serialize;

use super::diff::lines::{LineDiff, NO_NEWLINE};
use super::exit::{Exit, UsageError, VerbResult};
use super::out::{Console, visible};
use crate::agents::hook::word as shell_word;
use crate::agents::installed::ProgramCopy;
use crate::agents::program::{program_of, session_alias};
use crate::agents::recipe::Recipe;
use crate::agents::server::{self, ServerPlace};
use crate::agents::setup::{SettingsChange, SetupPlan};
use crate::agents::skill::{self, SKILL};
use crate::agents::slot::{AUTO_APPROVE, ON, Slot};
use crate::agents::{Agent, Means, PROGRAM, SHELL, Surroundings};
use crate::cli::{AgentName, Init, word};
use crate::library::{Library, Place, RECEIPTS};
use crate::snapshot::printable_path;

/// Runs `init`.
pub fn run(args: &Init, console: &mut Console) -> VerbResult {
    let name = word(args.target);
    if args.session {
        return print_alias(&name, args, console);
    }
    if let Some(recipe) = Recipe::named(&name) {
        return if args.mcp {
            print_server(&name, args, console)
        } else {
            print_recipe(recipe, args, console)
        };
    }
    let here = Surroundings::of_this_process()?;
    let setup = TargetSetting::of(&name, args, &here)?;
    let place = Place::of_this_user();
    let receipts = receipts(&place)?;
    let receipt = if args.mcp { ServerPlace::receipt(&name) } else { name.clone() };
    let plan = |slot, settings: &Path, value: &str| match args.remove {
        true => SetupPlan::take_back(&receipt, slot, settings, &receipts),
        false => SetupPlan::set(&receipt, slot, settings, value, args.force, &receipts),
    };
    let main = plan(setup.slot, &setup.settings, setup.value.as_deref().unwrap_or_default())?;
    let companion = setup.companion();
    let companion = match companion {
        Some((slot, settings)) => Some((slot, plan(slot, &settings, ON)?)),
        None => None,
    };
    let report = Report::of(&name, &setup, &main, companion.as_ref(), !args.print);
    let plans: Vec<SetupPlan> = companion.map(|(_, plan)| plan).into_iter().chain([main]).collect();
    let edits: Vec<Edit> = plans.iter().rev().map(Edit::of).collect();
    if !args.print {
        plans.iter().try_for_each(SetupPlan::check)?;
        if setup.agent.is_some() {
            copy_program(args, console)?;
        }
        if !args.remove && edits.iter().any(|edit| edit.change != SettingsChange::None) {
            Library::create(&place)?;
        }
        plans.into_iter().try_for_each(SetupPlan::apply)?;
    }
    if args.json {
        console.json(&report)?;
        return Ok(Exit::Success);
    }
    print(args, &setup, &report, &edits, console)?;
    Ok(Exit::Success)
}

/// What becomes of one settings file.
struct Edit {
    before: String,
    change: SettingsChange,
}

impl Edit {
    fn of(plan: &SetupPlan) -> Edit {
        Edit { before: plan.before().to_owned(), change: plan.change().clone() }
    }
}

/// Where the receipts are.
pub fn receipts(place: &Place) -> anyhow::Result<PathBuf> {
    Ok(Library::find()?.map_or(place.root.clone(), |library| library.root().to_owned()).join(RECEIPTS))
}

/// What is known of an agent.
pub fn row(name: AgentName) -> &'static Agent {
    Agent::named(&word(name)).expect("a test finds each name in the table")
}

/// What is to be written, and where.
struct TargetSetting {
    /// None for a skill.
    agent: Option<&'static Agent>,
    slot: Slot,
    settings: PathBuf,
    /// What is set; none if it is taken back.
    value: Option<String>,
}

impl TargetSetting {
    /// The second setting that is needed, and where it is.
    fn companion(&self) -> Option<(Slot, PathBuf)> {
        match self.slot {
            Slot::Server(_) => None,
            _ => self.agent?.companion(&self.settings),
        }
    }

    /// The server of `mcp` among those of an agent.
    fn of_server(
        agent: Option<&'static Agent>,
        args: &Init,
        here: &Surroundings,
    ) -> anyhow::Result<TargetSetting> {
        let place = agent.and_then(|agent| agent.server);
        let (Some(agent), Some(place)) = (agent, place) else {
            let name = agent.map_or(skill::NAME, |agent| agent.title);
            return Err(UsageError(format!("{name} has no settings for MCP servers")).into());
        };
        let settings = match args.project {
            true => (place.project)(here).ok_or_else(|| {
                UsageError(format!("{} has no settings for the MCP servers of one project", agent.title))
            })?,
            false => (place.user)(here).context(NO_HOME)?,
        };
        let value = if args.remove { None } else { Some(place.slot.value(&our_program()?)) };
        Ok(TargetSetting { agent: Some(agent), slot: Slot::Server(place.slot), settings, value })
    }

    fn of(name: &str, args: &Init, here: &Surroundings) -> anyhow::Result<TargetSetting> {
        let agent = Agent::named(name);
        if args.mcp {
            return TargetSetting::of_server(agent, args, here);
        }
        let slot = agent.map_or(Some(Slot::Text), Agent::slot).context("find what is set")?;
        let objection = agent.and_then(|agent| match agent.means {
            Means::Hook(_, protocol) => protocol.objection,
            _ => None,
        });
        let title = agent.map_or(skill::NAME, |agent| agent.title);
        if args.auto_approve && objection.is_none() {
            return Err(UsageError(format!("{title} is set up without --auto-approve")).into());
        }
        if let Some(objection) = objection.filter(|_| !args.remove && !args.auto_approve) {
            let why = format!("{title} {objection}: --auto-approve allows that");
            return Err(crate::agents::Error::Refused(why).into());
        }
        let settings = match agent {
            Some(agent) if args.project => (agent.project_settings)(here).ok_or_else(|| {
                UsageError(format!(
                    "{title} has no settings of yours for one project, only shared ones: use --user"
                ))
            })?,
            Some(agent) => (agent.user_settings)(here).context(NO_HOME)?,
            None => skill::file(here, args.project).context(NO_HOME)?,
        };
        let value = match agent.map(|agent| agent.means) {
            _ if args.remove => None,
            None => Some(SKILL.to_owned()),
            Some(Means::Hook(slot, _)) => {
                let approve = if args.auto_approve { AUTO_APPROVE } else { "" };
                Some(format!("{} hook {}{approve}", shell_word(&our_program()?), slot.agent))
            }
            Some(_) => Some(our_shell()?),
        };
        Ok(TargetSetting { agent, slot, settings, value })
    }
}

/// Prints the alias that runs an agent in a session.
fn print_alias(name: &str, args: &Init, console: &mut Console) -> VerbResult {
    const PLACE: &str = "the startup file of your shell, such as ~/.bashrc";
    let Some(agent) = program_of(name) else {
        return Err(UsageError(format!("{name} is no agent: --session is for those")).into());
    };
    let remarks = [
        "from the next terminal on, its commands and its own edits are recorded as steps; an editor that starts it \
         without a shell needs agent-snapshot session -- in front of the command",
        &format!(
            "sudo and other set-ID programs lose their privilege in it; command {agent} starts it without a session"
        ),
    ];
    copy_program(args, console)?;
    let text = session_alias(&our_program()?, agent) + "\n";
    print_lines(&RecipeJson { agent: name, place: PLACE, text: &text, remarks: &remarks }, args, console)
}

const NO_HOME: &str = "find the settings: there is no home directory";

/// Prints what has to be written by hand: the lines alone on standard output, so that it can go into the file.
fn print_recipe(recipe: &Recipe, args: &Init, console: &mut Console) -> VerbResult {
    let Recipe { name, place, remarks, .. } = recipe;
    if args.remove || args.project || args.force || args.auto_approve {
        let why = format!("init {name} writes nothing: it prints what goes into {place}");
        return Err(UsageError(why).into());
    }
    copy_program(args, console)?;
    let text = (recipe.lines)(&our_program()?, &our_shell()?);
    print_lines(&RecipeJson { agent: name, place, text: &text, remarks }, args, console)
}

/// Prints the settings of the server of `mcp` for an agent whose settings are not edited.
fn print_server(name: &str, args: &Init, console: &mut Console) -> VerbResult {
    if name != "goose" {
        return Err(UsageError(format!("{name} has no settings for MCP servers")).into());
    }
    if args.remove || args.project || args.force {
        let why = format!("init {name} --mcp writes nothing: it prints what goes into config.yaml");
        return Err(UsageError(why).into());
    }
    copy_program(args, console)?;
    let text = server::goose_lines(&our_program()?);
    let remarks = ["if there are extensions already, it goes among them; goose configure does the same"];
    let place = "~/.config/goose/config.yaml";
    print_lines(&RecipeJson { agent: name, place, text: &text, remarks: &remarks }, args, console)
}

fn print_lines(printed: &RecipeJson<'_>, args: &Init, console: &mut Console) -> VerbResult {
    if args.json {
        console.json(printed)?;
        return Ok(Exit::Success);
    }
    console.say(format_args!("this goes into {}:", printed.place));
    write!(console, "{}", printed.text)?;
    console.flush()?;
    for remark in printed.remarks {
        console.say(format_args!("{remark}"));
    }
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct RecipeJson<'a> {
    agent: &'a str,
    place: &'a str,
    text: &'a str,
    remarks: &'a [&'a str],
}

/// Copies this program to where agents are given it, unless that is done.
fn copy_program(args: &Init, console: &mut Console) -> anyhow::Result<()> {
    let copy = ProgramCopy::of(&Surroundings::of_this_process()?).filter(|_| !args.print && !args.remove);
    if let Some(copy) = copy
        && copy.install(&beside_us(PROGRAM)?)?
    {
        console.say(format_args!("copied this program to {}", printable_path(&copy.path(PROGRAM))));
    }
    Ok(())
}

/// The path of this program that agents are given: that of a copy, which no package manager takes away.
pub fn our_program() -> anyhow::Result<String> {
    given(PROGRAM)
}

/// The path of the shell that records, as agents are given it.
pub fn our_shell() -> anyhow::Result<String> {
    given(SHELL)
}

fn given(name: &str) -> anyhow::Result<String> {
    let copy = ProgramCopy::of(&Surroundings::of_this_process()?);
    text_of(copy.map_or_else(|| beside_us(name), |copy| Ok(copy.path(name)))?)
}

/// The path of the shell that records, which is beside this program.
pub fn running_shell() -> anyhow::Result<String> {
    text_of(beside_us(SHELL)?)
}

/// A program of ours that is beside this one, or is this one.
pub fn beside_us(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("find this program")?.with_file_name(name);
    check_shell(&program).with_context(|| format!("{} can't be executed", printable_path(&program)))?;
    Ok(program)
}

fn text_of(program: PathBuf) -> anyhow::Result<String> {
    let path = printable_path(&program);
    let text = program.into_os_string().into_string();
    text.map_err(|_| anyhow::anyhow!("{path} is no UTF-8 text, as settings are"))
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
    agent: String,
    #[serde(flatten)]
    settings: SettingsReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<String>,
    /// The command of the hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    hook: Option<String>,
    /// The settings of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<serde_json::Value>,
    done: bool,
    /// The second setting that a hook needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    also: Option<SettingsReport>,
}

/// What becomes of one settings file.
#[derive(Serialize)]
struct SettingsReport {
    file: String,
    setting: String,
    change: &'static str,
    /// The text of the file, unless it is removed or unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl SettingsReport {
    fn of(slot: Slot, plan: &SetupPlan) -> SettingsReport {
        let (change, text) = match plan.change() {
            SettingsChange::None => ("none", None),
            SettingsChange::Write(text) => ("write", Some(text.clone())),
            SettingsChange::Remove(_) => ("remove", None),
        };
        let file = printable_path(plan.path());
        SettingsReport { file, setting: slot.label(), change, text }
    }
}

impl Report {
    fn of(
        name: &str,
        setup: &TargetSetting,
        plan: &SetupPlan,
        companion: Option<&(Slot, SetupPlan)>,
        done: bool,
    ) -> Report {
        let value = setup.value.clone();
        let (shell, hook, server) = match setup.slot {
            Slot::Json(_) | Slot::YamlAssignment { .. } => (value, None, None),
            Slot::Hook(_) => (None, value, None),
            Slot::Server(_) => (None, None, value.and_then(|value| serde_json::from_str(&value).ok())),
            Slot::TomlTrue { .. } | Slot::Text => (None, None, None),
        };
        let settings = SettingsReport::of(setup.slot, plan);
        let also = companion.map(|(slot, plan)| SettingsReport::of(*slot, plan));
        Report { agent: name.to_owned(), settings, shell, hook, server, done, also }
    }
}

fn print(
    args: &Init,
    setup: &TargetSetting,
    report: &Report,
    edits: &[Edit],
    console: &mut Console,
) -> anyhow::Result<()> {
    let Report { agent: name, settings: SettingsReport { file, .. }, .. } = report;
    let slots = [Some(setup.slot), setup.companion().map(|(slot, _)| slot)];
    for ((edit, settings), slot) in
        edits.iter().zip([Some(&report.settings), report.also.as_ref()]).zip(slots)
    {
        let (Some(settings), Some(slot)) = (settings, slot) else { continue };
        print_edit(args, slot, settings, edit, console)?;
    }
    let after = match &edits.first().map(|edit| (&edit.before, &edit.change)) {
        Some((before, SettingsChange::None)) => before.as_str(),
        Some((_, SettingsChange::Write(text))) => text,
        Some((_, SettingsChange::Remove(_))) | None => "",
    };
    let agent = setup.agent.filter(|_| !args.remove && setup.slot.is_json());
    let objection = agent.and_then(|agent| agent.objection(after));
    if let Some(objection) = objection {
        console.say(format_args!("{}", objection.of_file(Path::new(file))));
    }
    if edits.iter().all(|edit| edit.change == SettingsChange::None) || args.print {
        return Ok(());
    }
    let project = if args.project { " --project" } else { "" };
    let mcp = if args.mcp { " --mcp" } else { "" };
    let take_back = format!("Take it back with: agent-snapshot init {name}{mcp} --remove{project}");
    let Some(agent) = setup.agent else {
        if !args.remove {
            writeln!(console, "Claude Code will know how to list and undo its own commands\n{take_back}")?;
        }
        return Ok(());
    };
    let title = agent.title;
    let is_for_all = args.project && (args.mcp || agent.is_project_shared);
    if args.mcp {
        return print_server_end(title, args, &take_back, is_for_all.then_some(file), console);
    }
    if args.remove {
        writeln!(console, "{title} will start its own shell again, from its next start on")?;
        return Ok(());
    }
    writeln!(
        console,
        "{title} will record its commands, from its next start on; agent-snapshot log lists them"
    )?;
    writeln!(console, "Check it with: agent-snapshot doctor {name}\n{take_back}")?;
    for remark in agent.remarks(&our_program()?) {
        console.say(format_args!("{remark}"));
    }
    if is_for_all {
        say_shared(file, console);
    }
    if !rustix::process::geteuid().is_root() {
        console.say(format_args!("{PRIVILEGES}"));
    }
    Ok(())
}

fn say_shared(file: &str, console: &mut Console) {
    console.say(format_args!(
        "{file} is for everybody who uses this project, if it is committed, and names a path of this machine"
    ));
}

/// Says what a server in an agent's settings comes to; `shared` is a file that everybody has.
fn print_server_end(
    title: &str,
    args: &Init,
    take_back: &str,
    shared: Option<&String>,
    console: &mut Console,
) -> anyhow::Result<()> {
    if args.remove {
        writeln!(console, "{title} will have the tools of agent-snapshot no more, from its next start on")?;
        return Ok(());
    }
    writeln!(
        console,
        "{title} can list, show and undo what was recorded, from its next start on\n{take_back}"
    )?;
    if let Some(file) = shared {
        say_shared(file, console);
    }
    Ok(())
}

/// Prints what becomes of one settings file.
fn print_edit(
    args: &Init,
    slot: Slot,
    settings: &SettingsReport,
    edit: &Edit,
    console: &mut Console,
) -> anyhow::Result<()> {
    let SettingsReport { file, setting, .. } = settings;
    let Edit { before, change } = edit;
    let done = |word: &'static str, past: &'static str| if args.print { word } else { past };
    match change {
        SettingsChange::None if args.remove => {
            let whose = match slot {
                Slot::Hook(_) => "has no hook of ours",
                Slot::Server(_) => "is no server of ours",
                Slot::Text | Slot::TomlTrue { .. } => "is not as init left it",
                Slot::Json(_) | Slot::YamlAssignment { .. } => &format!("is not set to {SHELL}"),
            };
            writeln!(console, "{file}: {setting} {whose}; nothing to take back")?
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
    for (sign, style, line) in LineDiff::new(before.as_bytes(), after.as_bytes()).lines(1) {
        let end = line.len() - line.iter().rev().take_while(|byte| b"\r\n".contains(byte)).count();
        let text = format!("{}{}", char::from(sign), visible(&line[..end]));
        writeln!(console, "  {}", console.format.paint(style, text))?;
        if !line.ends_with(b"\n") {
            writeln!(console, "  {NO_NEWLINE}")?;
        }
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
    use crate::cli::InitTarget;

    #[test]
    fn table_has_each_agent_of_the_command_line_and_no_other() {
        let names = AgentName::value_variants().iter().map(|name| word(*name));
        assert!(names.eq(AGENTS.iter().map(|agent| agent.name.to_owned())));
    }

    #[test]
    fn each_target_is_printed_or_has_a_setting() {
        for target in InitTarget::value_variants() {
            let name = word(*target);
            let has_setting = Agent::named(&name).is_some_and(|agent| agent.slot().is_some());
            let is_printed = Recipe::named(&name).is_some();
            assert!(has_setting != is_printed || name == skill::NAME, "{name}");
        }
        for agent in &AGENTS {
            assert!(InitTarget::value_variants().iter().any(|target| word(*target) == agent.name));
        }
    }
}
