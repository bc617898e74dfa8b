//! Where agents have their servers of the Model Context Protocol, and what they take for one.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{
    GEMINI_SETTINGS, PROGRAM, Surroundings, claude_directory, codex_directory, copilot_directory,
    gemini_settings, opencode_settings, variable,
};

/// Where an agent has its servers.
#[derive(Debug)]
pub struct ServerPlace {
    /// The setting.
    pub slot: &'static ServerSlot,
    /// The settings file of the user.
    pub user: fn(&Surroundings) -> Option<PathBuf>,
    /// The settings file for one project, if there is such a file. It is usually committed.
    pub project: fn(&Surroundings) -> Option<PathBuf>,
}

impl ServerPlace {
    /// The name of the receipt for the server of an agent: it and the shell or hook can be in one file, and each is taken
    /// back by itself.
    pub fn receipt(agent: &str) -> String {
        format!("{agent}-mcp")
    }
}

/// Our server among others in a settings file.
#[derive(Debug)]
pub struct ServerSlot {
    /// The key of the servers, and that of ours.
    pub keys: [&'static str; 2],
    /// Whether the file is TOML, not JSON.
    pub is_toml: bool,
    /// The settings of the server that a program is.
    entry: fn(&str) -> Value,
}

impl ServerSlot {
    /// The settings that start a program as our server.
    pub fn value(&self, program: &str) -> String {
        (self.entry)(program).to_string()
    }

    /// The program that settings start, if it is one of ours.
    pub fn program(&self, value: &str) -> Option<PathBuf> {
        let entry: Value = serde_json::from_str(value).ok()?;
        let words = |value: &Value| match value {
            Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
            one => one.as_str().map(|word| vec![word.to_owned()]),
        };
        let mut line = words(&entry["command"])?;
        line.extend(words(&entry["args"]).unwrap_or_default());
        let program = PathBuf::from(line.first()?);
        let is_ours = program.file_name().is_some_and(|name| name == PROGRAM);
        (is_ours && line.get(1).is_some_and(|verb| verb == VERB)).then_some(program)
    }
}

/// The verb that is the server.
const VERB: &str = "mcp";

const SERVERS: [&str; 2] = ["mcpServers", PROGRAM];

/// Claude Code.
pub static CLAUDE: ServerPlace = ServerPlace {
    slot: &ServerSlot {
        keys: SERVERS,
        is_toml: false,
        entry: |program| json!({"type": "stdio", "command": program, "args": [VERB]}),
    },
    user: |here| match variable("CLAUDE_CONFIG_DIR") {
        Some(_) => Some(claude_directory(here)?.join(".claude.json")),
        None => Some(here.home.as_ref()?.join(".claude.json")),
    },
    project: |here| Some(here.directory.join(".mcp.json")),
};

/// opencode.
pub static OPENCODE: ServerPlace = ServerPlace {
    slot: &ServerSlot {
        keys: ["mcp", PROGRAM],
        is_toml: false,
        entry: |program| json!({"type": "local", "command": [program, VERB], "enabled": true}),
    },
    user: opencode_settings,
    project: |here| Some(here.project.join("opencode.json")),
};

/// Gemini CLI.
pub static GEMINI: ServerPlace = ServerPlace {
    slot: &ServerSlot {
        keys: SERVERS,
        is_toml: false,
        entry: |program| json!({"command": program, "args": [VERB]}),
    },
    user: gemini_settings,
    project: |here| Some(here.directory.join(GEMINI_SETTINGS)),
};

/// Cursor, which starts servers of the user anywhere, and puts in the directory of its window.
pub static CURSOR: ServerPlace = ServerPlace {
    slot: &ServerSlot {
        keys: SERVERS,
        is_toml: false,
        entry: |program| json!({"command": program, "args": [VERB, "--directory", "${workspaceFolder}"]}),
    },
    user: |here| Some(here.home.as_ref()?.join(CURSOR_SERVERS)),
    project: |here| Some(here.project.join(CURSOR_SERVERS)),
};

const CURSOR_SERVERS: &str = ".cursor/mcp.json";

/// Copilot CLI.
pub static COPILOT: ServerPlace = ServerPlace {
    slot: &ServerSlot {
        keys: SERVERS,
        is_toml: false,
        entry: |program| json!({"type": "local", "command": program, "args": [VERB], "tools": ["*"]}),
    },
    user: |here| Some(copilot_directory(here)?.join("mcp-config.json")),
    project: |_| None,
};

/// Codex, which gives servers few variables of its environment, and not those that say where the library is.
pub static CODEX: ServerPlace = ServerPlace {
    slot: &ServerSlot {
        keys: ["mcp_servers", PROGRAM],
        is_toml: true,
        entry: |program| json!({"command": program, "args": [VERB], "env_vars": VARIABLES}),
    },
    user: |here| Some(codex_directory(here)?.join("config.toml")),
    project: |here| Some(here.project.join(".codex/config.toml")),
};

const VARIABLES: [&str; 4] =
    ["AGENT_SNAPSHOT_LIBRARY", "AGENT_SNAPSHOT_SESSION", "XDG_CONFIG_HOME", "XDG_STATE_HOME"];

/// The lines of goose's configuration, which `goose configure` edits.
pub fn goose_lines(program: &str) -> String {
    let program = json!(program);
    format!(
        "extensions:\n  {PROGRAM}:\n    type: stdio\n    name: {PROGRAM}\n    enabled: true\n    cmd: {program}\n    \
         args: [{VERB}]\n    timeout: 300\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_known_by_its_program_and_verb() {
        for place in [&CLAUDE, &OPENCODE, &GEMINI, &CURSOR, &COPILOT, &CODEX] {
            let value = place.slot.value("/a b/agent-snapshot");
            assert_eq!(place.slot.program(&value), Some(PathBuf::from("/a b/agent-snapshot")), "{value}");
        }
        let slot = CODEX.slot;
        assert!(slot.program(r#"{"command":"/x/agent-snapshot","args":["mcp","--all"]}"#).is_some());
        for other in [
            r#"{"command":"npx","args":["mcp"]}"#,
            r#"{"command":"/x/agent-snapshot","args":[]}"#,
            r#"{"command":7}"#,
            r#"{"url":"https://x"}"#,
            "7",
        ] {
            assert_eq!(slot.program(other), None, "{other}");
        }
    }
}
