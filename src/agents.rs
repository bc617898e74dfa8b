//! The agents and tools whose commands can be recorded: what each of them needs for that, and how it runs a command.
//!
//! Prints nothing. What is particular to an agent is in its row of [`AGENTS`]; in `hook.rs`, if a hook rewrites its commands; in
//! `program.rs` and `server.rs`; and in `MARKS` of `commands/asked.rs`. CONTRIBUTING.md, "Add an agent", lists it.
//!
//! - [`slot`], with `json.rs`, `toml.rs` and `yaml.rs`: one setting in a text of which all else is kept.
//! - `file.rs`: settings files, replaced whole or not at all.
//! - [`setup`]: changes an agent's settings and takes that back, byte for byte by means of `receipt.rs`.
//! - [`installed`]: the copy of our program that agents are given.
//! - [`uninstall`]: all settings that may be ours.
//! - [`effective`]: which of several places the agent takes its shell or hook from.
//! - [`hook`]: what an agent asks a hook, and how that answers.
//! - [`program`]: how agents' programs are called, and where they keep what is their own.
//! - [`server`]: where agents have their servers of the Model Context Protocol.
//! - [`recipe`]: what has to be written by hand, for agents and tools without settings of their own.
//! - [`skill`]: what an agent is told about its own recordings.

pub mod effective;
pub mod error;
mod file;
pub mod hook;
pub mod installed;
mod json;
pub mod program;
mod receipt;
pub mod recipe;
pub mod server;
pub mod setup;
pub mod skill;
pub mod slot;
mod toml;
pub mod uninstall;
mod yaml;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use self::error::Defect;
pub use self::error::Error;
use self::hook::Protocol;
use self::program::{program_of, session_alias};
use self::server::ServerPlace;
use self::slot::{HookSlot, Slot};
use crate::git;

/// The name of this program.
pub const PROGRAM: &str = "agent-snapshot";

/// The name of the shell that records, beside this program.
pub const SHELL: &str = "agent-snapshot-bash";

/// An agent, and all that is particular to it.
#[derive(Debug)]
pub struct Agent {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What its makers call it.
    pub title: &'static str,
    /// What it needs.
    pub means: Means,
    /// Whether it ignores a settings file with comments or trailing commas.
    is_strict: bool,
    /// What doctor and init say besides; `{alias}` stands for the line that records each session as a whole.
    remarks: &'static [&'static str],
    /// The settings file of the user; none where there is no home directory.
    pub user_settings: fn(&Surroundings) -> Option<PathBuf>,
    /// The settings file for one project, if there is such a file.
    pub project_settings: fn(&Surroundings) -> Option<PathBuf>,
    /// Whether a project's settings file is usually committed, and so everybody's.
    pub is_project_shared: bool,
    /// A second setting that its hook needs.
    companion: Option<Companion>,
    /// Where it has its servers of the Model Context Protocol, if that is a file that we edit.
    pub server: Option<&'static ServerPlace>,
    /// Where it looks for its shell or hook, the place that counts most first.
    pub sources: fn(&Surroundings) -> Vec<ShellSource>,
    /// The arguments that it gives its shell to run a command, with a directory for files of its own.
    pub arguments: fn(&str, &Path) -> Vec<OsString>,
}

/// A second setting, in a file beside the first.
#[derive(Debug, Clone, Copy)]
pub struct Companion {
    /// The name of the file.
    file: &'static str,
    /// The setting.
    pub slot: Slot,
}

/// What an agent needs for its commands to be recorded.
#[derive(Debug, Clone, Copy)]
pub enum Means {
    /// A setting that names its shell.
    Shell(Slot),
    /// A hook that rewrites each command.
    Hook(&'static HookSlot, &'static Protocol),
    /// A variable in its environment that names its shell.
    Variable,
}

/// A place where an agent looks for its shell or hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellSource {
    /// A settings file, which need not exist.
    File(PathBuf),
    /// An environment variable that holds the text of settings.
    Text(&'static str),
    /// An environment variable that holds the path of a shell.
    Path(&'static str),
}

/// The agents, in the order of the documentation.
pub static AGENTS: [Agent; 8] = [
    Agent {
        name: "claude-code",
        title: "Claude Code",
        means: Means::Shell(Slot::Json(&["env", "CLAUDE_CODE_SHELL"])),
        is_strict: true,
        remarks: &[
            "if you use its sandbox, run agent-snapshot init bubblewrap as well: newer versions start the sandbox without \
             the shell of their settings",
        ],
        user_settings: |here| Some(claude_directory(here)?.join("settings.json")),
        project_settings: |here| Some(here.directory.join(".claude/settings.local.json")),
        is_project_shared: false,
        companion: None,
        server: Some(&server::CLAUDE),
        sources: |here| {
            let project = ["settings.local.json", "settings.json"];
            // Only where it is started, though that may be below the root of the working tree.
            let project = project.map(|name| ShellSource::File(here.directory.join(".claude").join(name)));
            let user = claude_directory(here).map(|above| ShellSource::File(above.join("settings.json")));
            let places = claude_policy().into_iter().chain(project).chain(user);
            places.chain([ShellSource::Path("CLAUDE_CODE_SHELL"), ShellSource::Path("SHELL")]).collect()
        },
        arguments: |command, scratch| {
            let [snapshot, cwd] =
                ["shell-snapshot.sh", "cwd"].map(|name| quoted(&scratch.join(name).display().to_string()));
            let script = format!(
                "source {snapshot} 2>/dev/null || true && shopt -u extglob 2>/dev/null || true \
                 && eval {} < /dev/null && pwd -P >| {cwd}",
                quoted(command)
            );
            ["-c", "-l", &script].map(OsString::from).to_vec()
        },
    },
    Agent {
        name: "opencode",
        title: "opencode",
        means: Means::Shell(Slot::Json(&["shell"])),
        is_strict: false,
        remarks: &[],
        user_settings: opencode_settings,
        project_settings: |_| None,
        is_project_shared: false,
        companion: None,
        server: Some(&server::OPENCODE),
        sources: |here| {
            let names = ["opencode.jsonc", "opencode.json"];
            let both = |above: PathBuf| names.map(|name| ShellSource::File(above.join(name)));
            let above = || here.directory.ancestors().take_while(|above| above.starts_with(&here.project));
            let dotted = above().map(|above| above.join(".opencode"));
            let dotted = dotted.chain(here.home.iter().map(|home| home.join(".opencode")));
            let dotted = variable("OPENCODE_CONFIG_DIR").map(PathBuf::from).into_iter().chain(dotted);
            let user = here.config_home.as_ref().map(|above| above.join("opencode"));
            let user_old = user.as_ref().map(|above| ShellSource::File(above.join("config.json")));
            let mut places: Vec<ShellSource> = both("/etc/opencode".into()).into();
            places.push(ShellSource::Text("OPENCODE_CONFIG_CONTENT"));
            places.extend(dotted.flat_map(both));
            places.extend(above().map(Path::to_owned).flat_map(both));
            places.extend(variable("OPENCODE_CONFIG").map(|path| ShellSource::File(path.into())));
            places.extend(user.into_iter().flat_map(both).chain(user_old));
            places.push(ShellSource::Path("SHELL"));
            places
        },
        arguments: |command, _| ["-c", command].map(OsString::from).to_vec(),
    },
    Agent {
        name: "aider",
        title: "aider",
        means: Means::Shell(Slot::YamlAssignment { list: "set-env", name: "SHELL" }),
        is_strict: false,
        remarks: &[
            "without a terminal, and for its linters, aider takes /bin/sh whatever is set: record it as a whole then \
             (agent-snapshot run -- aider ...)",
        ],
        user_settings: |here| Some(here.home.as_ref()?.join(AIDER_SETTINGS)),
        project_settings: |_| None,
        is_project_shared: false,
        companion: None,
        server: None,
        sources: |here| {
            let places = [Some(&here.directory), Some(&here.project), here.home.as_ref()];
            let mut files: Vec<_> = places
                .into_iter()
                .flatten()
                .map(|above| ShellSource::File(above.join(AIDER_SETTINGS)))
                .collect();
            files.dedup();
            files.push(ShellSource::Path("SHELL"));
            files
        },
        arguments: |command, _| ["-i", "-c", command].map(OsString::from).to_vec(),
    },
    Agent {
        name: "gemini",
        title: "Gemini CLI",
        means: Means::Hook(&hook::GEMINI_SLOT, &hook::GEMINI),
        is_strict: false,
        remarks: &[],
        user_settings: gemini_settings,
        project_settings: |here| Some(here.directory.join(GEMINI_SETTINGS)),
        is_project_shared: true,
        companion: None,
        server: Some(&server::GEMINI),
        // The administrator's count most, then the project's.
        sources: |here| files_of(here, "gemini", Path::new("/etc/gemini-cli/settings.json")),
        arguments: |command, _| dash_c(command),
    },
    Agent {
        name: "cursor",
        title: "Cursor",
        means: Means::Hook(&hook::CURSOR_SLOT, &hook::CURSOR),
        is_strict: false,
        remarks: &[],
        user_settings: |here| Some(here.home.as_ref()?.join(CURSOR_HOOKS)),
        project_settings: |here| Some(here.project.join(CURSOR_HOOKS)),
        is_project_shared: true,
        companion: None,
        server: Some(&server::CURSOR),
        sources: |here| files_of(here, "cursor", Path::new("/etc/cursor/hooks.json")),
        arguments: |command, _| dash_c(command),
    },
    Agent {
        name: "copilot",
        title: "Copilot CLI",
        means: Means::Hook(&hook::COPILOT_SLOT, &hook::COPILOT),
        is_strict: true,
        remarks: &[
            "Copilot CLI compares its rules with the rewritten command, whose program is agent-snapshot-bash: one that \
             denies rm no longer finds it, and to approve agent-snapshot-bash for a session is to approve every command",
        ],
        user_settings: |here| Some(copilot_directory(here)?.join("hooks/agent-snapshot.json")),
        project_settings: |here| Some(here.project.join(".github/hooks/agent-snapshot.json")),
        is_project_shared: true,
        companion: None,
        server: Some(&server::COPILOT),
        sources: |here| {
            files_of(here, "copilot", Path::new("/etc/github-copilot/policy.d/agent-snapshot.json"))
        },
        arguments: |command, _| dash_c(command),
    },
    Agent {
        name: "goose",
        title: "goose",
        means: Means::Variable,
        is_strict: false,
        remarks: &[],
        user_settings: |_| None,
        project_settings: |_| None,
        is_project_shared: false,
        companion: None,
        server: None,
        sources: |_| vec![ShellSource::Path("GOOSE_SHELL")],
        arguments: |command, _| dash_c(command),
    },
    Agent {
        name: "codex",
        title: "Codex",
        means: Means::Hook(&hook::CODEX_SLOT, &hook::CODEX),
        is_strict: true,
        remarks: &[
            "Codex runs the hook once you have trusted it: start codex and approve it under /hooks \
             (--dangerously-bypass-hook-trust trusts each hook for one start)",
            "Codex's sandbox (read-only, workspace-write) forbids tracing: a command runs there, unrecorded",
            "or record each session as a whole, in its sandbox too, by a line in ~/.bashrc or the like: {alias}",
        ],
        user_settings: |here| Some(codex_directory(here)?.join(CODEX_HOOKS)),
        project_settings: |here| Some(here.project.join(".codex").join(CODEX_HOOKS)),
        is_project_shared: true,
        companion: Some(Companion {
            file: "config.toml",
            slot: Slot::TomlTrue { table: "features", name: "hooks" },
        }),
        server: Some(&server::CODEX),
        sources: |here| files_of(here, "codex", &Path::new("/etc/codex").join(CODEX_HOOKS)),
        arguments: |command, _| dash_c(command),
    },
];

const GEMINI_SETTINGS: &str = ".gemini/settings.json";
const CURSOR_HOOKS: &str = ".cursor/hooks.json";

const CODEX_HOOKS: &str = "hooks.json";

const AIDER_SETTINGS: &str = ".aider.conf.yml";

/// The directory in which Claude Code keeps the user's settings.
pub fn claude_directory(here: &Surroundings) -> Option<PathBuf> {
    let chosen = variable("CLAUDE_CONFIG_DIR").map(|path| here.directory.join(path));
    chosen.or_else(|| Some(here.home.as_ref()?.join(".claude")))
}

/// The directory in which Codex keeps the user's settings.
fn codex_directory(here: &Surroundings) -> Option<PathBuf> {
    let chosen = variable("CODEX_HOME").map(|path| here.directory.join(path));
    chosen.or_else(|| Some(here.home.as_ref()?.join(".codex")))
}

/// The settings file of the user of opencode.
fn opencode_settings(here: &Surroundings) -> Option<PathBuf> {
    let above = here.config_home.as_ref()?.join("opencode");
    let commented = above.join("opencode.jsonc");
    Some(if commented.exists() { commented } else { above.join("opencode.json") })
}

/// The settings file of the user of Gemini CLI.
fn gemini_settings(here: &Surroundings) -> Option<PathBuf> {
    let home = variable("GEMINI_CLI_HOME").map(PathBuf::from);
    Some(home.or_else(|| here.home.clone())?.join(GEMINI_SETTINGS))
}

/// The directory in which Copilot CLI keeps the user's settings.
fn copilot_directory(here: &Surroundings) -> Option<PathBuf> {
    let home = variable("COPILOT_HOME").map(PathBuf::from);
    home.or_else(|| Some(here.home.as_ref()?.join(".copilot")))
}

/// Whether a rule of Codex may restrict a command, rather than allow it.
pub fn has_restrictive_rules(here: &Surroundings) -> bool {
    let project = here.directory.ancestors().map(|above| above.join(".codex"));
    let directories = codex_directory(here).into_iter().chain([PathBuf::from("/etc/codex")]).chain(project);
    let entries = directories.filter_map(|above| std::fs::read_dir(above.join("rules")).ok());
    let files = entries.flatten().flatten().map(|entry| entry.path());
    let mut texts = files.filter_map(|path| std::fs::read(path).ok());
    // The names of the decisions, wherever they are.
    texts.any(|text| {
        let text = String::from_utf8_lossy(&text);
        ["prompt", "forbidden"].iter().any(|decision| text.contains(decision))
    })
}

/// The settings of the machine's administrator, whose additions count more than the main file.
fn claude_policy() -> Vec<ShellSource> {
    let above = Path::new("/etc/claude-code");
    let entries = std::fs::read_dir(above.join("managed-settings.d")).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort_by(|one, other| other.cmp(one));
    files.push(above.join("managed-settings.json"));
    files.into_iter().map(ShellSource::File).collect()
}

/// The files in which an agent looks for hooks: all of them count.
fn files_of(here: &Surroundings, name: &str, of_machine: &Path) -> Vec<ShellSource> {
    let agent = Agent::named(name).expect("it is the agent that asks");
    let files = [Some(of_machine.to_owned()), (agent.project_settings)(here), (agent.user_settings)(here)];
    files.into_iter().flatten().map(ShellSource::File).collect()
}

fn dash_c(command: &str) -> Vec<OsString> {
    ["-c", command].map(OsString::from).to_vec()
}

/// A text as one word of a shell, between quotes in any case.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Agent {
    /// The agent with this name on the command line.
    pub fn named(name: &str) -> Option<&'static Agent> {
        AGENTS.iter().find(|agent| agent.name == name)
    }

    /// The setting that `init` writes; none if there is no such setting.
    pub fn slot(&self) -> Option<Slot> {
        match self.means {
            Means::Shell(slot) => Some(slot),
            Means::Hook(slot, _) => Some(Slot::Hook(slot)),
            Means::Variable => None,
        }
    }

    /// What doctor and init say besides, given the path of this program.
    pub fn remarks(&self, program: &str) -> Vec<String> {
        let alias = program_of(self.name).map(|agent| session_alias(program, agent)).unwrap_or_default();
        self.remarks.iter().map(|remark| remark.replace("{alias}", &alias)).collect()
    }

    /// The second setting that its hook needs, and where it is if the hook is in `settings`.
    pub fn companion(&self, settings: &Path) -> Option<(Slot, PathBuf)> {
        self.companion.map(|companion| (companion.slot, settings.with_file_name(companion.file)))
    }

    /// Why the agent itself ignores settings that can be edited; none if it reads them.
    pub fn objection(&self, text: &str) -> Option<Defect> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if !self.is_strict || text.trim().is_empty() {
            return None;
        }
        let error = serde_json::from_str::<IgnoredAny>(text).err()?;
        let what = format!("{} ignores settings with comments or trailing commas, all of them", self.title);
        Some(Defect { at: Some((error.line(), error.column())), what })
    }
}

/// What the places of settings depend on.
#[derive(Debug, Clone)]
pub struct Surroundings {
    home: Option<PathBuf>,
    config_home: Option<PathBuf>,
    directory: PathBuf,
    project: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    ///
    /// # Errors
    /// The current directory was removed.
    pub fn of_this_process() -> Result<Surroundings, Error> {
        let directory = std::env::current_dir()
            .map_err(|source| Error::Io { what: "find the current directory".to_owned(), source })?;
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let of_passwd = || crate::fs::home_of(rustix::process::geteuid().as_raw());
        let home = absolute("HOME").or_else(of_passwd);
        let config_home =
            absolute("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        let project = git::working_tree_of(&directory).unwrap_or_else(|| directory.clone());
        Ok(Surroundings { home, config_home, directory, project })
    }

    /// The directory for the data of programs; none where there is no home directory.
    fn data_home(&self) -> Option<PathBuf> {
        let chosen = variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        chosen.or_else(|| Some(self.home.as_ref()?.join(".local/share")))
    }
}

/// The value of an environment variable, none if it is empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
