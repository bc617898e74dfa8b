//! The programs of agents, and the directories in which they keep what is their own.

use super::hook::word;
use super::{Surroundings, quoted, variable};
use crate::fs::file_name;

/// How the programs of agents are called, and where below the home directory each keeps its state: settings, transcripts,
/// caches.
const PROGRAMS: [(&str, &[&str]); 14] = [
    ("claude", &[".claude", ".claude.json*", ".cache/claude-cli-nodejs"]),
    ("codex", &[".codex"]),
    ("gemini", &[".gemini"]),
    ("qwen", &[".qwen"]),
    ("opencode", &[".local/share/opencode", ".local/state/opencode", ".config/opencode", ".cache/opencode"]),
    ("cursor-agent", &[".cursor"]),
    ("copilot", &[".copilot"]),
    ("goose", &[".config/goose", ".local/share/goose", ".local/state/goose"]),
    ("aider", &[".aider"]),
    ("amp", &[".config/amp", ".local/share/amp", ".cache/amp"]),
    ("crush", &[".config/crush", ".local/share/crush"]),
    ("cline", &[".cline"]),
    ("kiro-cli", &[".kiro"]),
    ("droid", &[".factory"]),
];

/// What Claude Code and its sandbox keep in the directory for temporary files; `UID` stands for the user's number.
const TEMPORARY: [&str; 5] =
    ["claude-UID", "claude-http-*.sock", "cc-socks*", "cc-daemon-UID", "srt-mux-*.sock"];

/// What shells keep of what is typed.
const HISTORIES: [&str; 5] =
    [".bash_history", ".zsh_history", ".histfile", ".local/share/fish", ".python_history"];

/// Whether the program at a path is an agent, by its name.
pub fn is_agent(path: &[u8]) -> bool {
    let name = file_name(path);
    PROGRAMS.iter().any(|(program, _)| program.as_bytes() == name)
}

/// The program of an agent, by the name that it has on our command line.
pub fn program_of(agent: &str) -> Option<&'static str> {
    let program = match agent {
        "claude-code" => "claude",
        "cursor" => "cursor-agent",
        agent => agent,
    };
    PROGRAMS.iter().map(|(known, _)| *known).find(|known| *known == program)
}

/// The shell alias that runs an agent in a session; `program` is the path of agent-snapshot.
pub fn session_alias(program: &str, agent: &str) -> String {
    format!("alias {agent}={}", quoted(&format!("{} session -- {agent}", word(program))))
}

/// What agents and shells keep for themselves, wherever they were told to: no step of a session is about it.
pub fn own_state(here: &Surroundings) -> Vec<Vec<u8>> {
    let below_home = PROGRAMS.iter().flat_map(|(_, state)| state.iter()).chain(&HISTORIES);
    let of_home = here.home.iter().flat_map(|home| below_home.clone().map(|name| home.join(name)));
    let chosen = ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "HISTFILE"];
    let chosen = chosen.iter().filter_map(|name| Some(here.directory.join(variable(name)?)));
    let user = rustix::process::getuid().as_raw().to_string();
    let temporary = TEMPORARY.map(|name| std::env::temp_dir().join(name.replace("UID", &user)));
    of_home.chain(chosen).chain(temporary).map(|path| path.into_os_string().into_encoded_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_that_is_set_up_has_a_program() {
        for agent in &crate::agents::AGENTS {
            assert!(program_of(agent.name).is_some(), "{}", agent.name);
        }
        assert_eq!((program_of("goose"), program_of("make")), (Some("goose"), None));
        assert_eq!(
            session_alias("/a b/agent-snapshot", "qwen"),
            r#"alias qwen=''\''/a b/agent-snapshot'\'' session -- qwen'"#
        );
    }

    #[test]
    fn agents_are_known_by_the_name_of_their_program() {
        assert!(is_agent(b"/usr/local/bin/claude") && is_agent(b"codex"));
        assert!(!is_agent(b"/home/claude/bin/tool") && !is_agent(b"claude-code.txt") && !is_agent(b""));
    }
}
