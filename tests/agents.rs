//! Real coding agents, driven by a model server of ours: what the model is given, and what is recorded.
//!
//! The clients come from their registries, in the versions of `testdata/agents/clients.json`, into a cache below the
//! target directory; `AGENTS_NEWEST=1` takes the newest. Each runs the commands of `testdata/agents/commands.json`, in a
//! fresh repository and home directory, as an ordinary user; with `AGENTS_AS_ROOT=1` as root, if that runs the tests.

pub mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use self::lab::{Lab, Mode, commands, commands_of};
use crate::support::{assert_same, needs_root};

/// A client, and how it is started.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// What `init` calls it.
    name: &'static str,
    /// Its program and arguments.
    pub command: &'static [&'static str],
    /// Programs that it needs besides its own; where one is missing, its tests are skipped.
    needs: &'static [&'static str],
    /// What it needs in its environment; `{port}` is the port of the model server.
    pub environment: &'static [(&'static str, &'static str)],
    /// The settings that it starts with, below its home directory.
    settings: &'static [(&'static str, &'static str)],
    /// The settings that `init` edits.
    edited: &'static [&'static str],
    /// How `init` is called to edit its settings.
    init: Option<&'static [&'static str]>,
    /// What `init` prints functions for that start it; its name there is `qwen`, or its own.
    recipe: Option<&'static str>,
    /// What it runs in its shell for itself, by the line up to the first `=`: it changes nothing that is recorded.
    own: &'static [&'static str],
    /// The lines of a result that the agent itself adds or leaves out when a hook has rewritten a command.
    differs_by: &'static [&'static str],
}

/// What it writes to of its own.
const CLAUDE_FILES: &[&str] = &["~/.claude", "~/.claude.json*"];

pub const CLAUDE: Client = Client {
    name: "claude-code",
    command: &["claude", "-p", "--dangerously-skip-permissions", "do the steps"],
    needs: &[],
    environment: &[
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:{port}"),
        ("ANTHROPIC_API_KEY", "dummy"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        // Without it root may not skip permissions.
        ("IS_SANDBOX", "1"),
    ],
    settings: &[],
    edited: &[".claude/settings.json"],
    init: Some(&["claude-code"]),
    recipe: None,
    // It saves the functions and options of a login shell.
    own: &["env", "SNAPSHOT_FILE"],
    differs_by: &[],
};

/// On a busy machine Claude Code may not have saved the functions of a shell in time, and runs its first commands in login
/// shells; so it runs all of these.
const CLAUDE_WITHOUT_SAVED_SHELL: Client = Client { settings: &[NO_SAVED_SHELL], ..CLAUDE };

/// A file where Claude Code makes a directory for what it saves of a shell.
const NO_SAVED_SHELL: (&str, &str) = (".claude/shell-snapshots", "");

const CLAUDE_SANDBOX_SETTINGS: (&str, &str) =
    (".claude/settings.json", "{\"sandbox\": {\"enabled\": true, \"autoAllowBashIfSandboxed\": true}}\n");

const CLAUDE_SANDBOX: Client = Client {
    needs: &["bwrap", "socat"],
    settings: &[CLAUDE_SANDBOX_SETTINGS],
    recipe: Some("bubblewrap"),
    ..CLAUDE
};

const CLAUDE_SANDBOX_WITHOUT_SAVED_SHELL: Client =
    Client { settings: &[CLAUDE_SANDBOX_SETTINGS, NO_SAVED_SHELL], ..CLAUDE_SANDBOX };

const CODEX_CONFIG: &str = "model = \"mock\" # of the tests\nmodel_provider = \"mock\"\n\n[model_providers.mock]\n\
                            name = \"mock\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\nenv_key = \"OPENAI_API_KEY\"\n\
                            wire_api = \"responses\"\n";

/// What it writes to of its own.
const CODEX_FILES: &[&str] = &["~/.codex"];

const CODEX: Client = Client {
    name: "codex",
    command: &[
        "codex",
        "exec",
        "--dangerously-bypass-approvals-and-sandbox",
        "--dangerously-bypass-hook-trust",
        "do the steps",
    ],
    needs: &[],
    environment: &[("OPENAI_API_KEY", "dummy")],
    settings: &[(".codex/config.toml", CODEX_CONFIG)],
    edited: &[".codex/config.toml", ".codex/hooks.json"],
    init: Some(&["codex"]),
    recipe: None,
    own: &[],
    differs_by: &[],
};

const CODEX_SANDBOX: Client = Client {
    command: &[
        "codex",
        "exec",
        "--sandbox",
        "workspace-write",
        "--dangerously-bypass-hook-trust",
        "do the steps",
    ],
    // Once a session.
    differs_by: &["agent-snapshot: "],
    ..CODEX
};

/// Codex may start the first command before it has saved the functions of a shell; so it starts each of these.
const CODEX_WITHOUT_SAVED_SHELL: Client = Client {
    command: &[
        "codex",
        "exec",
        "--disable",
        "shell_snapshot",
        "--dangerously-bypass-approvals-and-sandbox",
        "--dangerously-bypass-hook-trust",
        "do the steps",
    ],
    ..CODEX
};

const CODEX_SANDBOX_WITHOUT_SAVED_SHELL: Client = Client {
    command: &[
        "codex",
        "exec",
        "--disable",
        "shell_snapshot",
        "--sandbox",
        "workspace-write",
        "--dangerously-bypass-hook-trust",
        "do the steps",
    ],
    ..CODEX_SANDBOX
};

const GEMINI_SETTINGS: (&str, &str) =
    (".gemini/settings.json", "{\"security\": {\"auth\": {\"selectedType\": \"gemini-api-key\"}}}\n");

const GEMINI: Client = Client {
    name: "gemini",
    command: &["gemini", "--yolo", "--skip-trust", "-p", "do the steps"],
    needs: &[],
    environment: &[("GEMINI_API_KEY", "dummy"), ("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:{port}")],
    settings: &[GEMINI_SETTINGS],
    edited: &[".gemini/settings.json"],
    init: Some(&["gemini"]),
    recipe: None,
    own: &[],
    differs_by: &["[System] Tool input parameters were modified by a hook", "Background PIDs: "],
};

const GEMINI_BY_PATH: Client =
    Client { init: None, recipe: Some("qwen"), differs_by: &[], edited: &[], ..GEMINI };

const QWEN: Client = Client {
    name: "qwen",
    command: &["qwen", "--yolo", "-p", "do the steps"],
    needs: &[],
    environment: &[
        ("OPENAI_API_KEY", "dummy"),
        ("OPENAI_BASE_URL", "http://127.0.0.1:{port}/v1"),
        ("OPENAI_MODEL", "mock"),
    ],
    settings: &[(".qwen/settings.json", "{\"security\": {\"auth\": {\"selectedType\": \"openai\"}}}\n")],
    edited: &[],
    init: None,
    recipe: Some("qwen"),
    own: &[],
    differs_by: &[],
};

/// What it writes to of its own.
const OPENCODE_FILES: &[&str] =
    &["~/.local/share", "~/.local/state", "~/.cache", "~/.config/opencode", "~/.npm"];

const OPENCODE: Client = Client {
    name: "opencode",
    command: &["opencode", "run", "do the steps"],
    needs: &[],
    environment: &[("OPENCODE_DISABLE_AUTOUPDATE", "1"), ("OPENCODE_DISABLE_MODELS_FETCH", "1")],
    settings: &[(
        ".config/opencode/opencode.json",
        // opencode adds the first one itself.
        "{\"$schema\": \"https://opencode.ai/config.json\", \"provider\": {\"mock\": \
         {\"npm\": \"@ai-sdk/openai-compatible\", \"options\": {\"baseURL\": \"http://127.0.0.1:{port}/v1\", \"apiKey\": \"dummy\"}, \"models\": {\"mock\": {}}}}, \
         \"model\": \"mock/mock\", \"permission\": \"allow\"}\n",
    )],
    edited: &[".config/opencode/opencode.json"],
    init: Some(&["opencode"]),
    recipe: None,
    own: &[],
    differs_by: &[],
};

/// On a terminal, where it takes its user's shell: the commands are what the user runs in the chat.
const AIDER: Client = Client {
    name: "aider",
    command: &["script", "-qec", "/usr/bin/python3 -m aider --load ../steps --message done", "/dev/null"],
    needs: &[],
    environment: &[
        ("GIT_PAGER", "cat"),
        ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
        ("OPENAI_API_BASE", "http://127.0.0.1:{port}/v1"),
        ("OPENAI_API_KEY", "dummy"),
        ("PYTHONPATH", "{python}"),
        ("SHELL", "/bin/bash"),
    ],
    settings: &[(
        ".aider.conf.yml",
        "model: openai/mock # of the tests\nyes-always: true\ngitignore: false\nauto-commits: false\n\
         check-update: false\nshow-model-warnings: false\nshow-release-notes: false\nanalytics-disable: true\n\
         map-tokens: 0\nchat-history-file: ../chat.md\ninput-history-file: ../input\n",
    )],
    edited: &[".aider.conf.yml"],
    init: Some(&["aider"]),
    recipe: None,
    own: &[],
    differs_by: &[],
};

const COPILOT: Client = Client {
    name: "copilot",
    command: &["copilot", "-p", "do the steps", "--allow-all-tools", "--allow-all-paths", "--no-auto-update"],
    needs: &[],
    environment: &[
        ("COPILOT_OFFLINE", "true"),
        ("COPILOT_MODEL", "mock"),
        ("COPILOT_PROVIDER_BASE_URL", "http://127.0.0.1:{port}/v1"),
        ("COPILOT_PROVIDER_API_KEY", "dummy"),
    ],
    settings: &[],
    edited: &[".copilot/hooks/agent-snapshot.json"],
    init: Some(&["copilot", "--auto-approve"]),
    recipe: None,
    own: &[],
    differs_by: &[],
};

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_claude_code() {
    is_recorded_as_it_runs_alone(&CLAUDE);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_claude_code_in_its_sandbox() {
    is_recorded_as_it_runs_alone(&CLAUDE_SANDBOX);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_claude_code_without_a_saved_shell() {
    is_recorded_as_it_runs_alone(&CLAUDE_WITHOUT_SAVED_SHELL);
    is_recorded_as_it_runs_alone(&CLAUDE_SANDBOX_WITHOUT_SAVED_SHELL);
}

/// Its newer versions start the sandbox without the shell of its settings, and nothing is recorded inside.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_claude_code_in_its_sandbox_alone_is_told() {
    // Once a session.
    let client = Client { recipe: None, differs_by: &["agent-snapshot: "], ..CLAUDE_SANDBOX };
    let Some((lab, _)) = runs_as_alone(&client) else { return };
    let log = lab.log();
    assert!(log.iter().all(|entry| lab::is_own_of(&client, entry)), "{log:?}");
    let told = lab.doctor();
    assert!(told.contains("Claude Code asked for ") && told.contains("none was recorded"), "{told}");
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_codex() {
    is_recorded_as_it_runs_alone(&CODEX);
}

/// Its sandbox forbids tracing: the commands run as they do alone, and nothing is recorded.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_codex_in_its_sandbox() {
    let Some((lab, given)) = runs_as_alone(&CODEX_SANDBOX) else { return };
    assert_eq!(given.len(), commands().len());
    assert_eq!(lab.log(), [] as [Value; 0]);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_codex_in_its_sandbox_as_a_whole() {
    let client = Client { init: Some(&[]), edited: &[], ..CODEX_SANDBOX };
    let Some(alone) = given_alone(&client) else { return };
    let Some(whole) = Lab::run(&client, Mode::Whole) else { return };
    assert_eq!(whole.given(), alone);
    let log = whole.log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_complete(&whole, &log[0]);
    whole.assert_no_machinery(&log[0]);
    whole.undo(&log[0]);
    assert_same(&whole.state(), &whole.before, "undone");
}

/// Each command is a step, titled by it and complete, also in the agent's own sandbox.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_in_a_session() {
    let clients = [
        &CLAUDE,
        &CLAUDE_SANDBOX,
        &CLAUDE_WITHOUT_SAVED_SHELL,
        &CLAUDE_SANDBOX_WITHOUT_SAVED_SHELL,
        &CODEX,
        &CODEX_SANDBOX,
        &CODEX_WITHOUT_SAVED_SHELL,
        &CODEX_SANDBOX_WITHOUT_SAVED_SHELL,
        &GEMINI,
        &QWEN,
        &OPENCODE,
        &COPILOT,
    ];
    for client in clients {
        println!("{}", client.command.join(" "));
        let client = Client { init: Some(&[]), recipe: None, edited: &[], ..*client };
        let Some(alone) = given_alone(&client) else { return };
        let Some(lab) = Lab::run(&client, Mode::Session) else { return };
        assert_eq!(lab.given(), alone);
        let log = lab.log();
        let wanted = commands_of(&client);
        let commands: Vec<&Value> = log
            .iter()
            .filter(|entry| entry["kind"] == "command" && wanted.contains(&title_of(entry)))
            .collect();
        let all = || {
            let shown = |entry: &Value| {
                let words: Vec<String> = entry["command"].as_array().unwrap().iter().map(brief).collect();
                format!("{} {}: {}", entry["kind"], brief(&entry["title"]), words.join(" | "))
            };
            log.iter().map(shown).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(commands.iter().copied().map(title_of).collect::<Vec<_>>(), wanted, "{}", all());
        log.iter().for_each(|entry| assert_complete(&lab, entry));
        commands.iter().for_each(|entry| lab.assert_no_machinery(entry));
        assert_ne!(lab.state(), lab.before);
        let changed: Vec<&Value> = log.iter().filter(|entry| lab::changes(entry)).collect();
        changed.iter().rev().for_each(|entry| lab.undo_in_session(Some(entry)));
        assert_same(&lab.state(), &lab.before, "each undone");
        changed.iter().for_each(|entry| lab.redo(entry));
        lab.undo_in_session(None);
        assert_same(&lab.state(), &lab.before, "all undone");
    }
}

/// Rules refuse what they forbid, and nothing else: those of `config.toml` in the commands that `init` has recorded, those
/// of a session also in what the agent itself does.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_under_enforced_rules() {
    const KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n";
    // Claude Code saves the functions of a shell there.
    const POLICY: &str = "[policy]\nenforce = true\ndeny-read = [\"@secrets\"]\n\
                          allow-write = [\"@workspace\", \"@tmp\", \"~/.claude/shell-snapshots\"]\n";
    // What is below a directory for temporary files may be written.
    let parent = "/srv";
    if !(needs_root("a directory outside of those for temporary files") && fs::metadata(parent).is_ok()) {
        return;
    }
    let mut steps = commands();
    let planted = ["cat ~/.ssh/id_rsa", "echo x > ~/../outside"];
    steps.extend(planted.map(str::to_owned));
    for (client, own_files) in [(&CLAUDE, CLAUDE_FILES), (&CODEX, CODEX_FILES), (&OPENCODE, OPENCODE_FILES)] {
        println!("{}", client.name);
        let with = |settings: &[(&'static str, &'static str)]| {
            let all = [client.settings, &[(".ssh/id_rsa", KEY)], settings].concat();
            Client { settings: all.leak(), ..*client }
        };
        let calls = json!(steps);
        let run = |client: &Client, mode| Lab::run_calls_in(parent, client, mode, &calls, "");
        let Some(alone) = run(&with(&[]), Mode::Bare) else { return };
        let alone = alone.given();
        let configured = with(&[(".config/agent-snapshot/config.toml", POLICY)]);
        for (client, mode) in [(configured, Mode::Wired), (with(&[]), Mode::Enforced(own_files))] {
            let lab = run(&client, mode).unwrap();
            let given = lab.given();
            let (rest, refused) = given.split_at(given.len() - planted.len());
            assert_eq!(rest, &alone[..rest.len()], "{mode:?}");
            assert!(refused.iter().all(|text| text.contains("ermission denied")), "{refused:?}");
            let expected =
                ["read LAB/home/.ssh/id_rsa: deny-read @secrets", "write LAB/outside: allow-write"];
            assert_eq!(lab.refused(), expected.map(str::to_owned).into(), "{mode:?}");
            lab.log().iter().for_each(|entry| assert_complete(&lab, entry));
        }
    }
}

/// The commands of two subagents that wait for each other are steps that run at the same time.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_two_subagents_in_a_session() {
    let client = Client { init: Some(&[]), recipe: None, edited: &[], ..CLAUDE };
    let subagent = |prompt: &str| {
        let input = json!({
            "description": "step",
            "prompt": prompt,
            "subagent_type": "general-purpose",
            "run_in_background": false,
        });
        json!({"tool": "Agent", "input": input})
    };
    let lines = [
        "read -r line < ../meet; echo $line > one.txt; echo 1 >> both.txt",
        "echo met > ../meet; echo 2 >> both.txt",
    ];
    let calls = json!({
        "the first half": [lines[0]],
        "the second half": [lines[1]],
        "do the steps": [
            "mkfifo ../meet; echo 0 > both.txt",
            [subagent("do the first half"), subagent("do the second half")],
            "rm ../meet; sort both.txt",
        ],
    });
    let Some(lab) = Lab::run_calls(&client, Mode::Session, &calls, "") else { return };
    let log = lab.log();
    let steps: Vec<&Value> =
        log.iter().filter(|entry| lines.contains(&entry["title"].as_str().unwrap_or_default())).collect();
    assert_eq!(steps.len(), 2, "{log:#?}");
    assert!(steps[1]["time"].as_str() < steps[0]["finished"].as_str(), "{steps:#?}");
    log.iter().for_each(|entry| assert_complete(&lab, entry));
    assert!(lab.given().last().unwrap().ends_with("0\n1\n2"), "{:?}", lab.given());
    lab.undo_in_session(None);
    assert_same(&lab.state(), &lab.before, "undone");
}

/// By the server that `init --mcp` has set up, the agent finds what it did and takes it back, with a digest that it has
/// from the plan.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_undo_by_tools() {
    for (client, init, settings, prefix) in [
        (&CLAUDE, &["claude-code", "--mcp"], ".claude.json", "mcp__agent-snapshot__"),
        (&CODEX, &["codex", "--mcp"], ".codex/config.toml", "mcp__agent_snapshot__"),
        (&OPENCODE, &["opencode", "--mcp"], ".config/opencode/opencode.json", "agent-snapshot_"),
    ] {
        println!("{}", client.name);
        let client = Client { init: Some(init), edited: &[], ..*client };
        let tool = |name: &str, input: Value| json!({"tool": format!("{prefix}{name}"), "input": input});
        let calls = json!([
            "../bin/agent-snapshot run -- sh -c 'echo changed > notes.txt; rm -r src'",
            tool("log", json!({})),
            tool("undo", json!({})),
            tool("undo", json!({"digest": "0123456789abcdef"})),
            tool("undo", json!({"digest": "{digest}"})),
        ]);
        let Some(lab) = Lab::run_calls(&client, Mode::Wired, &calls, "") else { return };
        let given = lab.results();
        assert_eq!(given.len(), 5, "{given:#?}");
        assert!(given[1].contains("echo changed > notes.txt; rm -r src"), "{given:#?}");
        assert!(given[2].contains("\"applied\":false") && given[2].contains("\"digest\""), "{given:#?}");
        assert!(given[3].contains("nothing was changed: the digest is not that of the plan"), "{given:#?}");
        assert!(given[4].contains("\"applied\":true"), "{given:#?}");
        assert_same(&lab.state(), &lab.before, "undone");
        assert!(lab.settings(settings).contains("agent-snapshot"));
        lab.take_back();
        assert!(!lab.settings(settings).contains("agent-snapshot"), "{}", lab.settings(settings));
    }
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_gemini() {
    is_recorded_as_it_runs_alone(&GEMINI);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_gemini_by_the_bash_in_path() {
    is_recorded_as_it_runs_alone(&GEMINI_BY_PATH);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_qwen() {
    is_recorded_as_it_runs_alone(&QWEN);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_opencode() {
    is_recorded_as_it_runs_alone(&OPENCODE);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_aider() {
    is_recorded_as_it_runs_alone(&AIDER);
}

#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_copilot() {
    is_recorded_as_it_runs_alone(&COPILOT);
}

/// Codex refuses what it refuses without us, and a rule of the user's finds the programs of a rewritten command.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_codex_keeps_its_rules() {
    let rules = "prefix_rule(pattern=[\"git\", \"push\"], decision=\"forbidden\")\n";
    let client = Client {
        settings: &[(".codex/config.toml", CODEX_CONFIG), (".codex/rules/default.rules", "{rules}")],
        ..CODEX
    };
    let refused = ["rm -rf sub", "git push origin main", "echo 'it is' && git push 'origin' main"];
    let Some(given) = both(&client, &refused, rules) else { return };
    for result in &given {
        assert!(result.contains("Rejected: "), "{result}");
    }
}

/// Codex asks about a rewritten command as about any other, though nobody is there to be asked: `allow` in the answer of
/// a hook approves nothing.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_codex_asks_all_the_same() {
    const COMMAND: &[&str] = &[
        "codex",
        "exec",
        "-c",
        "approval_policy=\"on-request\"",
        "--sandbox",
        "danger-full-access",
        "--dangerously-bypass-hook-trust",
        "do the steps",
    ];
    let rules = "prefix_rule(pattern=[\"touch\"], decision=\"prompt\")\n";
    let settings = &[(".codex/config.toml", CODEX_CONFIG), (".codex/rules/default.rules", "{rules}")];
    let client = Client { command: COMMAND, settings, ..CODEX };
    let Some(given) = both(&client, &["touch made"], rules) else { return };
    assert!(given[0].contains("rejected") || given[0].contains("approval"), "{given:?}");
}

/// The rules that Gemini CLI has by itself, and those of its user, find the programs of a rewritten command.
#[test]
#[ignore = "slow: installs and runs a real client"]
fn slow_agents_gemini_keeps_its_rules() {
    let rules = "[[rule]]\ntoolName = \"run_shell_command\"\ndecision = \"allow\"\npriority = 10\n\n\
                 [[rule]]\ntoolName = \"run_shell_command\"\ncommandPrefix = \"rm\"\ndecision = \"deny\"\npriority = 100\n";
    let client = Client {
        command: &["gemini", "--skip-trust", "-p", "do the steps"],
        settings: &[GEMINI_SETTINGS, (".gemini/policies/rules.toml", "{rules}")],
        ..GEMINI
    };
    let refused = [
        "true && rm src/a.c",
        "echo a; echo $(date)",
        "bash -c 'echo $(date)'",
        "ln -s src/a.c link",
        "find . -name k -delete",
    ];
    let Some(given) = both(&client, &refused, rules) else { return };
    for result in &given {
        let words = ["denied by policy", "Command injection detected", "requires user confirmation"];
        assert!(words.iter().any(|word| result.contains(word)), "{result}");
    }
}

/// What the model is given for commands that are refused, the same with and without us.
fn both(client: &Client, commands: &[&str], rules: &str) -> Option<Vec<String>> {
    let alone = Lab::run_commands(client, Mode::Bare, commands, rules)?;
    let wired = Lab::run_commands(client, Mode::Wired, commands, rules)?;
    assert_eq!(wired.given(), alone.given());
    assert_same(&wired.state(), &wired.before, client.name);
    Some(alone.given())
}

/// The beginning of a text, or of a value as JSON.
fn brief(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.chars().take(200).collect()
}

/// What a recording is called, or else the agent was asked for.
fn title_of(entry: &Value) -> String {
    entry["title"].as_str().map_or_else(|| lab::asked_for(lab::line_of(entry)), str::to_owned)
}

/// What the model is given by a client that runs alone: once for each command line and its settings, for all tests.
fn given_alone(client: &Client) -> Option<Vec<String>> {
    static KNOWN: Mutex<BTreeMap<String, Option<Vec<String>>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{:?} {:?}", client.command, client.settings);
    let results = known.entry(key).or_insert_with(|| Some(Lab::run(client, Mode::Bare)?.results()));
    Some(lab::without_differences(client, results.as_ref()?))
}

/// Runs a client alone and as `init` sets it up: the model is given the same. The second run, and what was given.
fn runs_as_alone(client: &Client) -> Option<(Lab, Vec<String>)> {
    let expected = given_alone(client)?;
    let wired = Lab::run(client, Mode::Wired)?;
    let given = wired.given();
    // aider may lose the output of a command that ends before it was read, with us and without.
    let may_end_early = |pair: (&String, &String)| {
        client.name == "aider" && (pair.0.starts_with(pair.1) || pair.1.starts_with(pair.0))
    };
    let is_same = given.len() == expected.len()
        && given.iter().zip(&expected).all(|pair| pair.0 == pair.1 || may_end_early(pair));
    if !is_same {
        assert_eq!(given, expected, "{}", client.name);
    }
    Some((wired, given))
}

/// Runs a client alone and as `init` sets it up: the model is given the same, and each command is a recording that is
/// titled by it, complete, without anything of the agent's own, and undone.
fn is_recorded_as_it_runs_alone(client: &Client) {
    let Some((lab, given)) = runs_as_alone(client) else { return };
    assert_eq!(given.len(), commands_of(client).len(), "{given:?}");
    let (own, log): (Vec<Value>, Vec<Value>) =
        lab.log().into_iter().partition(|entry| lab::is_own_of(client, entry));
    assert!(own.iter().all(|entry| !lab::changes(entry)), "{own:?}");
    let titles: Vec<String> = log.iter().map(title_of).collect();
    assert_eq!(titles, commands_of(client));
    for entry in &log {
        assert_complete(&lab, entry);
        lab.assert_no_machinery(entry);
    }
    // Where a hook is asked, it is told the session.
    if ["codex", "copilot", "gemini"].contains(&client.name) && client.init.is_some() {
        let sessions: BTreeSet<Option<&str>> = log.iter().map(|entry| entry["session"].as_str()).collect();
        assert!(sessions.len() == 1 && !sessions.contains(&None), "{sessions:?}");
    }
    assert_ne!(lab.state(), lab.before);
    // Each one, the last first, and then all of them again at once.
    for entry in log.iter().rev() {
        lab.undo(entry);
    }
    assert_same(&lab.state(), &lab.before, "each undone");
    lab.redo_and_undo_all(&log);
    assert_same(&lab.state(), &lab.before, "all undone");
    lab.take_back();
    let settings: BTreeMap<&str, Option<Vec<u8>>> =
        client.edited.iter().map(|name| (*name, fs::read(lab.home.join(name)).ok())).collect();
    assert_eq!(settings, lab.settings_before, "{}", client.name);
}

#[track_caller]
fn assert_complete(lab: &Lab, entry: &Value) {
    let is_complete = entry.get("incomplete").is_none_or(|incomplete| incomplete == false);
    assert!(is_complete && entry["state"] == "ended", "{}", lab.show(entry));
}
