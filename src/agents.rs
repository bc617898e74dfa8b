//! The agents whose commands can be recorded: where each one's setting of a shell is, and how it starts that shell.
//!
//! Prints nothing. All that is particular to an agent is in its row of [`AGENTS`].
//!
//! - [`slot`], with `json.rs` and `yaml.rs`: one setting in a text of which all else is kept.
//! - `file.rs`: settings files, replaced whole or not at all.
//! - [`setup`]: sets an agent's shell and takes that back, byte for byte by means of `receipt.rs`.
//! - [`effective`]: which of several places the agent takes its shell from.

pub mod effective;
pub mod error;
mod file;
mod json;
mod receipt;
pub mod setup;
pub mod slot;
mod yaml;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};
use serde::de::IgnoredAny;

use self::error::Defect;
pub use self::error::Error;
use self::slot::Slot;
use crate::git;

/// The name of the shell that records, beside this program.
pub const SHELL: &str = "agent-snapshot-bash";

/// An agent, and all that is particular to it.
#[derive(Debug)]
pub struct Agent {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What its makers call it.
    pub title: &'static str,
    /// Which setting names its shell.
    pub slot: Slot,
    /// Whether it ignores a settings file with comments or trailing commas.
    is_strict: bool,
    /// What doctor and init say besides.
    pub remark: Option<&'static str>,
    /// The settings file of the user.
    user_settings: fn(&Surroundings) -> Option<PathBuf>,
    /// The settings file of the user in one project, below the current directory, if there is such a file.
    project_settings: Option<&'static str>,
    /// Where it looks for its shell, the place that counts most first.
    sources: fn(&Surroundings) -> Vec<ShellSource>,
    /// The arguments that it gives its shell to run a command, with a directory for files of its own.
    arguments: fn(&str, &Path) -> Vec<OsString>,
}

/// A place where an agent looks for its shell.
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
pub static AGENTS: [Agent; 3] = [
    Agent {
        name: "claude-code",
        title: "Claude Code",
        slot: Slot::Json(&["env", "CLAUDE_CODE_SHELL"]),
        is_strict: true,
        remark: None,
        user_settings: |here| Some(claude_directory(here)?.join("settings.json")),
        project_settings: Some(".claude/settings.local.json"),
        sources: |here| {
            let project = ["settings.local.json", "settings.json"];
            // Only where it is started, though that may be below the root of the working tree.
            let project = project.map(|name| ShellSource::File(here.directory.join(".claude").join(name)));
            let user = claude_directory(here).map(|above| ShellSource::File(above.join("settings.json")));
            let places = claude_policy().into_iter().chain(project).chain(user);
            places.chain([ShellSource::Path("CLAUDE_CODE_SHELL"), ShellSource::Path("SHELL")]).collect()
        },
        arguments: |command, scratch| {
            let [snapshot, cwd] = ["shell-snapshot.sh", "cwd"].map(|name| quoted(&scratch.join(name)));
            let script = format!(
                "source {snapshot} 2>/dev/null || true && shopt -u extglob 2>/dev/null || true \
                 && eval {} < /dev/null && pwd -P >| {cwd}",
                quoted(Path::new(command))
            );
            ["-c", "-l", &script].map(OsString::from).to_vec()
        },
    },
    Agent {
        name: "opencode",
        title: "opencode",
        slot: Slot::Json(&["shell"]),
        is_strict: false,
        remark: None,
        user_settings: |here| {
            let above = here.config_home.as_ref()?.join("opencode");
            let commented = above.join("opencode.jsonc");
            Some(if commented.exists() { commented } else { above.join("opencode.json") })
        },
        project_settings: None,
        sources: |here| {
            let names = ["opencode.jsonc", "opencode.json"];
            let both = |above: PathBuf| names.map(|name| ShellSource::File(above.join(name)));
            let above = || here.directory.ancestors().take_while(|above| above.starts_with(&here.project));
            let dotted = above().map(|above| above.join(".opencode"));
            let dotted = dotted.chain(here.home.iter().map(|home| home.join(".opencode")));
            let dotted = here.variable("OPENCODE_CONFIG_DIR").map(PathBuf::from).into_iter().chain(dotted);
            let user = here.config_home.as_ref().map(|above| above.join("opencode"));
            let user_old = user.as_ref().map(|above| ShellSource::File(above.join("config.json")));
            let mut places: Vec<ShellSource> = both("/etc/opencode".into()).into();
            places.push(ShellSource::Text("OPENCODE_CONFIG_CONTENT"));
            places.extend(dotted.flat_map(both));
            places.extend(above().map(Path::to_owned).flat_map(both));
            places.extend(here.variable("OPENCODE_CONFIG").map(|path| ShellSource::File(path.into())));
            places.extend(user.into_iter().flat_map(both).chain(user_old));
            places.push(ShellSource::Path("SHELL"));
            places
        },
        arguments: |command, _| ["-c", command].map(OsString::from).to_vec(),
    },
    Agent {
        name: "aider",
        title: "aider",
        slot: Slot::YamlAssignment { list: "set-env", name: "SHELL" },
        is_strict: false,
        remark: Some(
            "without a terminal, and for its linters, aider takes /bin/sh whatever is set: record it as a whole then \
             (agent-snapshot run -- aider ...)",
        ),
        user_settings: |here| Some(here.home.as_ref()?.join(AIDER_SETTINGS)),
        project_settings: None,
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
];

const AIDER_SETTINGS: &str = ".aider.conf.yml";

fn claude_directory(here: &Surroundings) -> Option<PathBuf> {
    let chosen = here.variable("CLAUDE_CONFIG_DIR").map(|path| here.directory.join(path));
    chosen.or_else(|| Some(here.home.as_ref()?.join(".claude")))
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

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

impl Agent {
    /// The agent with this name on the command line.
    pub fn named(name: &str) -> Option<&'static Agent> {
        AGENTS.iter().find(|agent| agent.name == name)
    }

    /// The settings file of the user; none where there is no home directory.
    pub fn user_settings(&self, here: &Surroundings) -> Option<PathBuf> {
        (self.user_settings)(here)
    }

    /// The settings file of the user in one project; none if the agent has no such file.
    pub fn project_settings(&self, here: &Surroundings) -> Option<PathBuf> {
        self.project_settings.map(|below| here.directory.join(below))
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

    /// Where it looks for its shell, the place that counts most first.
    pub fn sources(&self, here: &Surroundings) -> Vec<ShellSource> {
        (self.sources)(here)
    }

    /// The arguments that it gives its shell to run a command, with `scratch` for files of its own.
    pub fn arguments(&self, command: &str, scratch: &Path) -> Vec<OsString> {
        (self.arguments)(command, scratch)
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
        let of_passwd = || User::from_uid(Uid::effective()).ok().flatten().map(|user| user.dir);
        let home = absolute("HOME").or_else(of_passwd);
        let config_home =
            absolute("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        let project = git::working_tree_of(&directory).unwrap_or_else(|| directory.clone());
        Ok(Surroundings { home, config_home, directory, project })
    }

    /// The value of an environment variable, none if it is empty.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        variable(name)
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
