//! `init --mcp`: the server among those of an agent, and taken back.

use std::fs;
use std::path::PathBuf;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::CstRootNode;
use serde_json::{Value, json};

use super::{Installed, JSON, User};
use crate::support::chmod;

const TOML: [Option<&str>; 7] = [
    None,
    Some(""),
    Some("# only a comment"),
    Some("model = \"x\" # why\r\n"),
    Some("model = \"x\"\n\n[features]\nhooks = true\n\n\n"),
    Some("[mcp_servers.other] # mine\ncommand = \"x\"\n\n[mcp_servers.other.env]\nA = \"b\"\n\n[z]\n"),
    Some("[mcp_servers]\n[[array]]\na = 1"),
];

/// The agents that take the tools of `mcp`.
pub const AGENTS: [&str; 6] = ["claude-code", "opencode", "gemini", "cursor", "copilot", "codex"];

fn settings(installed: &Installed, agent: &str) -> PathBuf {
    let home = &installed.place.home;
    match agent {
        "claude-code" => home.join(".claude.json"),
        "opencode" => installed.place.config.join("opencode/opencode.json"),
        "gemini" => home.join(".gemini/settings.json"),
        "cursor" => home.join(".cursor/mcp.json"),
        "copilot" => home.join(".copilot/mcp-config.json"),
        "codex" => home.join(".codex/config.toml"),
        _ => panic!("{agent}"),
    }
}

/// What an agent's settings say of our server.
fn server(agent: &str, text: &str) -> Value {
    let text = text.trim_start_matches('\u{feff}');
    let json = || CstRootNode::parse(text, &ParseOptions::default()).unwrap().to_serde_value().unwrap();
    let (settings, key): (Value, _) = match agent {
        "codex" => (toml::from_str(text).unwrap(), "mcp_servers"),
        "opencode" => (json(), "mcp"),
        _ => (json(), "mcpServers"),
    };
    settings[key]["agent-snapshot"].clone()
}

fn expected(installed: &Installed, agent: &str) -> Value {
    let program = installed.bin.join("agent-snapshot").display().to_string();
    match agent {
        "claude-code" => json!({"type": "stdio", "command": program, "args": ["mcp"]}),
        "opencode" => json!({"type": "local", "command": [program, "mcp"], "enabled": true}),
        "cursor" => json!({"command": program, "args": ["mcp", "--directory", "${workspaceFolder}"]}),
        "copilot" => json!({"type": "local", "command": program, "args": ["mcp"], "tools": ["*"]}),
        "codex" => {
            let variables =
                ["AGENT_SNAPSHOT_LIBRARY", "AGENT_SNAPSHOT_SESSION", "XDG_CONFIG_HOME", "XDG_STATE_HOME"];
            json!({"command": program, "args": ["mcp"], "env_vars": variables})
        }
        _ => json!({"command": program, "args": ["mcp"]}),
    }
}

#[test]
fn server_is_set_up_and_given_back_byte_for_byte() {
    let installed = Installed::of(User::Current);
    for agent in AGENTS {
        let path = settings(&installed, agent);
        let texts: &[Option<&str>] = match agent {
            "codex" => &TOML,
            "claude-code" => &JSON,
            _ => &JSON[..3],
        };
        for text in texts {
            let label = format!("{agent} {text:?}");
            match text {
                Some(text) => {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(&path, text).unwrap();
                    chmod(&path, 0o640);
                }
                None => drop(fs::remove_file(&path)),
            }
            let printed = installed.run(&["init", agent, "--mcp", "--print", "--json"]).expect(0);
            let planned: Value = serde_json::from_str(&printed.stdout).unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), *text, "{label}: --print changed it");
            installed.run(&["init", agent, "--mcp"]).expect(0);
            let set = fs::read_to_string(&path).unwrap();
            assert_eq!(planned["text"], set, "{label}");
            assert_eq!(server(agent, &set), expected(&installed, agent), "{label}: {set}");
            let before = installed.everything();
            let again = installed.run(&["init", agent, "--mcp"]).expect(0);
            assert!(again.stdout.contains("nothing was changed"), "{label}: {again:?}");
            assert_eq!(installed.everything(), before, "{label}");
            installed.run(&["init", agent, "--mcp", "--remove"]).expect(0);
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), *text, "{label}");
            let again = installed.run(&["init", agent, "--mcp", "--remove"]).expect(0);
            assert!(again.stdout.contains("nothing to take back"), "{label}: {again:?}");
        }
    }
}

/// Both are in one file, and each is taken back by itself. The file goes with the last of them.
#[test]
fn server_and_recording_are_set_up_apart() {
    for agent in ["gemini", "opencode", "codex"] {
        for removed_first in ["--mcp", "--user"] {
            let installed = Installed::of(User::Current);
            let path = settings(&installed, agent);
            installed.init(agent, &[]).expect(0);
            installed.run(&["init", agent, "--mcp"]).expect(0);
            let both = fs::read_to_string(&path).unwrap();
            let again = installed.init(agent, &[]).expect(0);
            assert!(again.stdout.contains("nothing was changed"), "{again:?}");
            installed.run(&["init", agent, "--remove", removed_first]).expect(0);
            let one = fs::read_to_string(&path).unwrap();
            assert_eq!(server(agent, &one).is_null(), removed_first == "--mcp", "{both} {one}");
            let other = if removed_first == "--mcp" { "--user" } else { "--mcp" };
            installed.run(&["init", agent, "--remove", other]).expect(0);
            assert!(!path.parent().unwrap().exists(), "{agent}: {one}");
        }
    }
}

#[test]
fn server_of_the_users_own_is_kept() {
    let installed = Installed::of(User::Current);
    let path = settings(&installed, "claude-code");
    let text = "{\"mcpServers\": {\"agent-snapshot\": {\"command\": \"npx\", \"args\": [\"x\"]}}}\n";
    fs::write(&path, text).unwrap();
    let refused = installed.run(&["init", "claude-code", "--mcp"]).expect(1);
    assert!(
        refused.stderr.contains("--force replaces it") && refused.stderr.lines().count() == 1,
        "{refused:?}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    installed.run(&["init", "claude-code", "--mcp", "--force"]).expect(0);
    // Also if it was edited since.
    fs::write(&path, fs::read_to_string(&path).unwrap() + "\n").unwrap();
    installed.run(&["init", "claude-code", "--mcp", "--remove"]).expect(0);
    let kept = server("claude-code", &fs::read_to_string(&path).unwrap());
    assert_eq!(kept, json!({"command": "npx", "args": ["x"]}));
    // Options that the user has added to ours stay.
    installed.run(&["init", "claude-code", "--mcp", "--force"]).expect(0);
    let edited = fs::read_to_string(&path).unwrap().replace("\"mcp\"", "\"mcp\", \"--all\"");
    fs::write(&path, &edited).unwrap();
    installed.run(&["init", "claude-code", "--mcp"]).expect(0);
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
}

#[test]
fn server_of_a_project_is_in_its_file() {
    let installed = Installed::of(User::Current);
    installed.place.prepare("git init -q .");
    for (agent, file) in [
        ("claude-code", ".mcp.json"),
        ("opencode", "opencode.json"),
        ("gemini", ".gemini/settings.json"),
        ("cursor", ".cursor/mcp.json"),
        ("codex", ".codex/config.toml"),
    ] {
        let run = installed.run(&["init", agent, "--mcp", "--project"]).expect(0);
        assert!(run.stderr.contains("is for everybody who uses this project"), "{run:?}");
        let text = fs::read_to_string(installed.place.at(file)).unwrap();
        assert_eq!(server(agent, &text), expected(&installed, agent));
        installed.run(&["init", agent, "--mcp", "--project", "--remove"]).expect(0);
        assert!(!installed.place.at(file).exists(), "{agent}");
    }
    for (arguments, said) in [
        (&["init", "aider", "--mcp"][..], "aider has no settings for MCP servers"),
        (&["init", "qwen", "--mcp"], "qwen has no settings for MCP servers"),
        (&["init", "skill", "--mcp"], "skill has no settings for MCP servers"),
        (
            &["init", "copilot", "--mcp", "--project"],
            "Copilot CLI has no settings for the MCP servers of one project",
        ),
        (&["init", "goose", "--mcp", "--remove"], "init goose --mcp writes nothing"),
    ] {
        let refused = installed.run(arguments).expect(2);
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
    let goose = installed.run(&["init", "goose", "--mcp"]).expect(0).stdout;
    assert!(goose.starts_with("extensions:\n  agent-snapshot:\n    type: stdio\n"), "{goose}");
}
