//! Agents that are set up by a hook: what `init` writes, how `hook` answers, and what `doctor` makes of it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Installed, doctor, needs_approval};
use crate::support::{Random, Run, User, chmod, copy_program};

/// An agent, the keys of its question, the tool that runs commands, and where its answer has the command.
const AGENTS: [(&str, &str, &str, &str, &str); 4] = [
    ("gemini", "tool_name", "tool_input", "run_shell_command", "/hookSpecificOutput/tool_input"),
    ("cursor", "tool_name", "tool_input", "Shell", "/updated_input"),
    ("copilot", "toolName", "toolArgs", "bash", "/modifiedArgs"),
    ("codex", "tool_name", "tool_input", "Bash", "/hookSpecificOutput/updatedInput"),
];

/// What a hook that has nothing to say answers.
fn pass(agent: &str) -> &'static str {
    if ["copilot", "codex"].contains(&agent) { "" } else { "{}\n" }
}

fn answer_of(mut hook: Command, question: &[u8]) -> Run {
    let mut child = hook.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(question).unwrap();
    child.wait_with_output().unwrap().into()
}

fn ask(installed: &Installed, arguments: &[&str], question: &[u8]) -> Run {
    answer_of(installed.command(&[&["hook"], arguments].concat()), question)
}

/// The hook with all that it may do.
fn with_approval(agent: &str) -> Vec<&str> {
    if needs_approval(agent) { vec![agent, "--auto-approve"] } else { vec![agent] }
}

#[test]
fn rewritten_command_is_recorded_and_prints_what_it_prints_alone() {
    for user in User::all() {
        let installed = Installed::of(*user);
        let line = "printf '%s|' \"it's\" $'a\\nb' \"$0\"\necho made > made; exit 3";
        let alone = installed.place.program("bash").args(["-c", line]).output().unwrap();
        for (agent, name, arguments, tool, place) in AGENTS {
            let more =
                json!({"command": line, "description": "x", "timeout": 5, "nested": {"a": [1, null, "ü"]}});
            let sessions =
                ["session_id", "conversation_id", "sessionId"].map(|key| (key, Value::from(agent)));
            let mut question = Value::from_iter(sessions);
            (question[name], question[arguments]) = (tool.into(), more.clone());
            let question = question.to_string();
            let answer = ask(&installed, &with_approval(agent), question.as_bytes()).expect(0);
            assert_eq!(answer.stderr, "", "{agent}");
            let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
            let mut rewritten = answer.pointer(place).unwrap().clone();
            let command = rewritten["command"].take();
            let mut others = more.clone();
            others["command"].take();
            assert_eq!(rewritten, others, "{agent}: other arguments were changed");
            fs::remove_file(installed.place.at("made")).unwrap();
            let mut run = installed.place.program("bash");
            let recorded = run.args(["-c", command.as_str().unwrap()]).output().unwrap();
            assert_eq!((&recorded.stdout, recorded.status.code()), (&alone.stdout, Some(3)), "{command}");
            // What the agent asks again, it gets no second wrapper for.
            let again = json!({name: tool, arguments: {"command": command}}).to_string();
            let again = ask(&installed, &with_approval(agent), again.as_bytes()).expect(0);
            assert_eq!(again.stdout, pass(agent), "{agent}");
        }
        let log = installed.run(&["log"]).expect(0);
        assert_eq!(log.stdout.lines().filter(|line| line.contains("echo made > made")).count(), 4, "{log:?}");
        let log: Value = serde_json::from_str(&installed.run(&["log", "--json"]).expect(0).stdout).unwrap();
        let sessions =
            log["recordings"].as_array().unwrap().iter().map(|entry| entry["session"].as_str().unwrap());
        assert!(sessions.rev().eq(AGENTS.map(|(agent, ..)| agent)), "{log}");
    }
}

#[test]
fn what_the_hook_decides_never_widens_a_permission() {
    let installed = Installed::of(User::Current);
    let decisions = |answer: &str| {
        let answer: Value = serde_json::from_str(answer).unwrap();
        ["decision", "permission", "permissionDecision"]
            .map(|key| answer.get(key).cloned())
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    for (agent, name, arguments, tool, _) in AGENTS {
        let question = json!({name: tool, arguments: {"command": "ls"}}).to_string();
        let answer = ask(&installed, &[agent], question.as_bytes()).expect(0);
        if needs_approval(agent) {
            assert_eq!(answer.stdout, pass(agent));
        } else {
            assert_eq!(decisions(&answer.stdout), [] as [Value; 0], "{answer:?}");
        }
        let approved = ask(&installed, &[agent, "--auto-approve"], question.as_bytes()).expect(0);
        let expected: &[Value] = if agent == "cursor" { &["allow".into()] } else { &[] };
        assert_eq!(decisions(&approved.stdout), expected, "{agent}");
    }
    // Their rules find each program of the command, which is there as it was, though never executed.
    for (agent, name, arguments, tool, place) in AGENTS.into_iter().filter(|row| !needs_approval(row.0)) {
        let line = "echo 'a' \"$b\" |\n wc # c";
        let question = json!({name: tool, arguments: {"command": line}}).to_string();
        let answer = ask(&installed, &[agent], question.as_bytes()).expect(0);
        let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
        let command = answer.pointer(place).unwrap()["command"].as_str().unwrap().to_owned();
        let start = format!("exec {} -c '", installed.shell());
        assert!(command.starts_with(&start) && command.ends_with(&format!("';\n{line}")), "{command}");
    }
}

/// A process called gemini, which asks the hook as Gemini CLI does.
fn ask_as_gemini(installed: &Installed, arguments: &[&str], command: &str) -> Run {
    let question = json!({"tool_name": "run_shell_command", "tool_input": {"command": command}}).to_string();
    let script = installed.place.base().join("gemini");
    fs::write(&script, "\"$AGENT_SNAPSHOT\" hook gemini\nexit\n").unwrap();
    let mut gemini = installed.place.program("sh");
    gemini.arg(&script).args(arguments).env("AGENT_SNAPSHOT", installed.bin.join("agent-snapshot"));
    answer_of(gemini, question.as_bytes()).expect(0)
}

#[test]
fn what_gemini_asks_about_by_itself_is_not_hidden_from_it() {
    let installed = Installed::of(User::Current);
    // Without a terminal it refuses such a command, and would wait for ever if the hook had it ask.
    for command in ["rm -rf src", "find . -delete", "bash -c 'echo $(date)'"] {
        assert_eq!(ask_as_gemini(&installed, &[], command).stdout, "{}\n", "{command}");
        assert_eq!(ask_as_gemini(&installed, &["-p", "x"], command).stdout, "{}\n", "{command}");
    }
    assert_ne!(ask_as_gemini(&installed, &["-p", "x"], "rm -r src").stdout, "{}\n");
    for arguments in [&["--yolo", "-p", "x"][..], &["-y"], &["--approval-mode", "yolo"]] {
        let answer = ask_as_gemini(&installed, arguments, "rm -rf src").stdout;
        assert!(answer.contains("-c 'rm -rf src'") && !answer.contains("decision"), "{answer}");
    }
}

#[test]
fn whatever_is_asked_the_agent_goes_on() {
    let installed = Installed::of(User::Current);
    let mut random = Random::seeded();
    for (agent, name, arguments, tool, _) in AGENTS {
        let question = json!({name: tool, arguments: {"command": "ls"}}).to_string();
        let mut inputs: Vec<Vec<u8>> = vec![
            Vec::new(),
            b"\xff\x00\xfe".to_vec(),
            b"[[[[[[[[".repeat(10_000),
            question[..question.len() - 1].into(),
            format!("{question}{question}").into(),
            json!({name: "other", arguments: {"command": "ls"}}).to_string().into(),
            json!({name: tool, arguments: {"command": "x".repeat(200_000)}}).to_string().into(),
            json!({name: tool, arguments: {"command": "x".repeat(17 << 20)}}).to_string().into(),
        ];
        for _ in 0..20 {
            let mut bytes = question.clone().into_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = u8::try_from(random.below(256)).unwrap();
            }
            inputs.push(bytes);
        }
        for input in inputs {
            let label = String::from_utf8_lossy(&input[..input.len().min(200)]).into_owned();
            let answer = ask(&installed, &[agent], &input).expect(0);
            // Codex takes a rewritten command only together with that word, which approves nothing.
            let approves = agent != "codex" && answer.stdout.contains("allow");
            assert!(!approves, "{agent}: {label}: {answer:?}");
            let is_json = serde_json::from_str::<Value>(&answer.stdout).is_ok();
            assert!(is_json || answer.stdout == pass(agent), "{agent}: {label}: {answer:?}");
            assert_eq!(answer.stderr, "", "{agent}: {label}");
        }
    }
}

#[test]
fn what_is_to_run_unrecorded_is_left_alone() {
    let installed = Installed::of(User::Current);
    let config = installed.place.config.join("agent-snapshot/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "[shell]\nunrecorded = [\"sudo\"]\n").unwrap();
    for (agent, name, arguments, tool, _) in AGENTS {
        let question = |command: &str| json!({name: tool, arguments: {"command": command}}).to_string();
        let exempt =
            ask(&installed, &with_approval(agent), question("cd /srv && sudo make").as_bytes()).expect(0);
        assert_eq!(exempt.stdout, pass(agent));
        let mut off = installed.command(&[&["hook"], with_approval(agent).as_slice()].concat());
        off.env("AGENT_SNAPSHOT", "off");
        assert_eq!(answer_of(off, question("ls").as_bytes()).expect(0).stdout, pass(agent));
        let ls = ask(&installed, &with_approval(agent), question("ls").as_bytes()).expect(0);
        assert_ne!(ls.stdout, pass(agent));
    }
    // Without the shell nothing can be recorded, and the agent goes on.
    fs::remove_file(installed.shell()).unwrap();
    for (agent, name, arguments, tool, _) in AGENTS {
        let question = json!({name: tool, arguments: {"command": "ls"}}).to_string();
        let answer = ask(&installed, &with_approval(agent), question.as_bytes()).expect(0);
        assert_eq!(answer.stdout, pass(agent));
        assert!(answer.stderr.contains("the command runs unrecorded: "), "{answer:?}");
    }
    let refused = installed.run(&["hook", "aider"]).expect(2);
    assert!(refused.stderr.contains("aider is not set up by a hook"), "{refused:?}");
}

#[test]
fn approval_has_to_be_allowed() {
    let installed = Installed::of(User::Current);
    for (agent, said) in [
        ("cursor", "Cursor takes a rewritten command only together with an approval"),
        ("copilot", "Copilot CLI compares your rules with the rewritten command"),
    ] {
        let refused = installed.run(&["init", agent]).expect(1);
        assert!(
            refused.stderr.contains(said) && refused.stderr.contains("--auto-approve allows that"),
            "{refused:?}"
        );
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        assert!(!installed.settings(agent).exists());
    }
    let needless = installed.run(&["init", "gemini", "--auto-approve"]).expect(2);
    assert!(needless.stderr.contains("Gemini CLI is set up without --auto-approve"), "{needless:?}");
    installed.init("cursor", &[]).expect(0);
    let text = fs::read_to_string(installed.settings("cursor")).unwrap();
    assert!(text.contains("/agent-snapshot hook cursor --auto-approve\""), "{text}");
    installed.run(&["init", "cursor", "--remove"]).expect(0);
    assert!(!installed.settings("cursor").exists());
}

#[test]
fn hooks_that_were_edited_since_keep_what_is_not_ours() {
    let installed = Installed::of(User::Current);
    let check = |agent: &str, before: Option<&str>, edit: &dyn Fn(String) -> String, after: Option<&str>| {
        let path = installed.write(agent, before);
        installed.init(agent, &[]).expect(0);
        fs::write(&path, edit(fs::read_to_string(&path).unwrap())).unwrap();
        installed.init(agent, &["--remove"]).expect(0);
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), after, "{agent} {before:?}");
    };
    for agent in ["gemini", "cursor", "copilot", "codex"] {
        check(agent, None, &|text| format!("{text}\n"), None);
    }
    let model = |text: String| text.replacen('{', "{\n  \"model\": \"x\", // new", 1);
    check("gemini", None, &model, Some("{\n  \"model\": \"x\" // new\n}\n"));
    let stop = |text: String| text.replace("\"hooks\": {", "\"hooks\": {\n    \"stop\": [],");
    check(
        "cursor",
        Some("{\n  \"version\": 1\n}\n"),
        &stop,
        Some("{\n  \"version\": 1,\n  \"hooks\": {\n    \"stop\": []\n  }\n}\n"),
    );
    let other =
        |text: String| text.replace("\"preToolUse\": [", "\"preToolUse\": [\n      {\"bash\": \"x\"},");
    let left = "{\n  \"version\": 1,\n  \"hooks\": {\n    \"preToolUse\": [\n      {\"bash\": \"x\"}\n    ]\n  }\n}\n";
    check("copilot", None, &other, Some(left));
}

#[test]
fn hook_of_another_installation_is_brought_up_to_date() {
    let installed = Installed::of(User::Current);
    for agent in ["gemini", "cursor", "copilot", "codex"] {
        let path = installed.write(agent, Some("{\n  \"a\": 1\n}\n"));
        installed.init(agent, &[]).expect(0);
        let now = fs::read_to_string(&path).unwrap();
        fs::write(&path, now.replace(installed.bin.to_str().unwrap(), "/opt/it's old")).unwrap();
        let changed = installed.init(agent, &[]).expect(0);
        assert!(changed.stdout.starts_with("wrote "), "{changed:?}");
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("/opt/") && text.matches(" hook ").count() == 1, "{text}");
        installed.init(agent, &["--remove"]).expect(0);
    }
}

#[test]
fn projects_have_files_of_their_own_which_are_shared() {
    let installed = Installed::of(User::Current);
    for (agent, file) in [
        ("gemini", ".gemini/settings.json"),
        ("cursor", ".cursor/hooks.json"),
        ("copilot", ".github/hooks/agent-snapshot.json"),
    ] {
        let set = installed.init(agent, &["--project"]).expect(0);
        assert!(set.stderr.contains("is for everybody who uses this project, if it is committed"), "{set:?}");
        assert!(installed.place.at(file).exists() && !installed.settings(agent).exists());
        assert_eq!(doctor(&installed, agent).0, 0, "{agent}");
        installed.init(agent, &["--project", "--remove"]).expect(0);
        assert!(!installed.place.at(file).parent().unwrap().exists());
    }
    // Copilot looks in the root of the repository, wherever it is started.
    installed.place.prepare("git init -q . && mkdir below");
    let mut below = installed.command(&["init", "copilot", "--project", "--auto-approve"]);
    assert!(below.current_dir(installed.place.at("below")).status().unwrap().success());
    assert!(installed.place.at(".github/hooks/agent-snapshot.json").exists());
    for (agent, variable, file) in [
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
        ("copilot", "COPILOT_HOME", "hooks/agent-snapshot.json"),
    ] {
        let chosen = installed.place.base().join(agent);
        let approve: &[&str] = if needs_approval(agent) { &["--auto-approve"] } else { &[] };
        let mut command = installed.command(&[&["init", agent], approve].concat());
        assert!(command.env(variable, &chosen).status().unwrap().success());
        assert!(chosen.join(file).exists() && !installed.settings(agent).exists());
    }
}

#[test]
fn doctor_asks_the_hook_and_runs_what_it_answers() {
    let installed = User::all().iter().map(|user| Installed::of(*user));
    for installed in installed.chain([Installed::in_odd_directory()]) {
        for agent in ["gemini", "cursor", "copilot", "codex"] {
            let (status, checks) = doctor(&installed, agent);
            assert_eq!((status, &checks[agent]["verdict"]), (1, &"finding".into()), "{checks:?}");
            assert!(
                checks[agent]["advice"]
                    .as_str()
                    .unwrap()
                    .starts_with(&format!("agent-snapshot init {agent}"))
            );
            installed.init(agent, &[]).expect(0);
            let (status, checks) = doctor(&installed, agent);
            assert_eq!(status, 0, "{checks:?}");
            let id = checks["recording"]["recording"].as_str().unwrap();
            let shown = installed.run(&["show", id]).expect(0);
            assert!(shown.stdout.contains("written-by-doctor"), "{shown:?}");
        }
    }
}

/// Lets the notes of what was asked for be a day older.
fn age_notes(installed: &Installed) {
    let path = installed.place.home.join(".local/state/agent-snapshot/asked.jsonl");
    let mut notes: Vec<Value> =
        fs::read_to_string(&path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for note in &mut notes {
        let time: jiff::Timestamp = note["time"].as_str().unwrap().parse().unwrap();
        note["time"] = (time - jiff::SignedDuration::from_hours(24)).to_string().into();
    }
    fs::write(&path, notes.iter().map(|note| format!("{note}\n")).collect::<String>()).unwrap();
}

/// What `log` says of what was not recorded.
fn gaps(installed: &Installed) -> Vec<String> {
    let said = installed.run(&["log", "--all"]).expect(0).stderr;
    let gaps = said.lines().filter(|line| line.contains(" since "));
    let time = regex::Regex::new(r"\d{4}-\d\d-\d\d \d\d:\d\d").unwrap();
    gaps.map(|line| time.replace(line, "TIME").replace("agent-snapshot: ", "")).collect()
}

#[test]
fn command_that_was_asked_for_and_not_recorded_is_told() {
    for user in User::all() {
        let installed = Installed::of(*user);
        installed.init("gemini", &[]).expect(0);
        let state = |agent: &str| {
            let (status, checks) = doctor(&installed, agent);
            (
                status,
                checks[agent]["verdict"].clone(),
                checks[agent]["found"].as_str().unwrap().to_owned(),
                checks,
            )
        };
        // What doctor itself records is no proof.
        for _ in 0..2 {
            let (status, verdict, found, _) = state("gemini");
            assert_eq!((status, &verdict), (0, &"note".into()), "{found}");
            assert!(found.contains("not yet seen to work: no command of Gemini CLI was recorded"), "{found}");
        }
        let ask_gemini = |line: &str| {
            let question =
                json!({"tool_name": "run_shell_command", "tool_input": {"command": line}}).to_string();
            let answer: Value =
                serde_json::from_str(&ask(&installed, &["gemini"], question.as_bytes()).stdout).unwrap();
            answer.pointer("/hookSpecificOutput/tool_input/command").unwrap().as_str().unwrap().to_owned()
        };
        let rewritten = ["echo one", "echo two"].map(ask_gemini);
        assert_eq!(gaps(&installed), [""; 0], "the agent may still ask its user");
        age_notes(&installed);
        let dropped =
            "agent-snapshot-bash was not started: the agent dropped the rewritten command, or did not run it";
        assert_eq!(
            gaps(&installed),
            [format!("Gemini CLI asked for 2 commands since TIME, none was recorded: {dropped}")]
        );
        let log: Value = serde_json::from_str(&installed.run(&["log", "--json"]).expect(0).stdout).unwrap();
        assert_eq!((&log["gaps"][0]["agent"], &log["gaps"][0]["count"]), (&"gemini".into(), &2.into()));
        let (status, _, _, checks) = state("gemini");
        assert_eq!((status, &checks["unrecorded"]["verdict"]), (1, &"finding".into()), "{checks:?}");
        // The shell is started, and can't record.
        let seal = installed.place.executable(&crate::support::program("seal"));
        let mut sealed = installed.place.program(&seal);
        assert!(sealed.args(["sh", "-c", &rewritten[1]]).output().unwrap().status.success());
        let [gap] = &gaps(&installed)[..] else { panic!("one gap") };
        assert!(gap.starts_with("Gemini CLI asked for 2 commands since TIME, none was recorded: "), "{gap}");
        assert!(gap.ends_with("; the command runs unrecorded") && !gap.contains(dropped), "{gap}");
        // It works, and all is told of.
        ask_gemini("echo two");
        assert!(installed.place.program("sh").args(["-c", &rewritten[1]]).output().unwrap().status.success());
        assert_eq!(gaps(&installed), [""; 0]);
        let (status, verdict, found, _) = state("gemini");
        assert_eq!((status, &verdict), (0, &"fine".into()), "{found}");
        let id = found.rsplit(' ').next().unwrap();
        assert!(installed.run(&["show", id]).expect(0).stdout.contains("echo two"), "{found}");
    }
}

#[test]
fn command_that_a_hook_leaves_as_it_is_is_told_unless_the_user_wants_that() {
    let installed = Installed::of(User::Current);
    let question =
        |command: &str| json!({"tool_name": "Shell", "tool_input": {"command": command}}).to_string();
    let config = installed.place.config.join("agent-snapshot/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "[shell]\nunrecorded = [\"sudo\"]\n").unwrap();
    ask(&installed, &with_approval("cursor"), question("sudo make").as_bytes()).expect(0);
    ask(&installed, &with_approval("cursor"), b"{}").expect(0);
    assert_eq!(gaps(&installed), [""; 0]);
    assert!(!installed.place.home.join(".local/state/agent-snapshot").exists(), "nothing was noted");
    let hook = installed.bin.join("agent-snapshot").display().to_string();
    let inside = installed.command(&["run", "--quiet", "--", &hook, "hook", "cursor"]);
    answer_of(inside, question("make").as_bytes()).expect(0);
    let notes = installed.place.home.join(".local/state/agent-snapshot/asked.jsonl");
    assert!(!notes.exists(), "the outer recording has it");
    ask(&installed, &["cursor"], question("make").as_bytes()).expect(0);
    age_notes(&installed);
    let why = "its hook was set up without --auto-approve";
    assert_eq!(
        gaps(&installed),
        [format!("Cursor asked for 1 command since TIME, it was not recorded: {why}")]
    );
}

#[test]
fn doctor_finds_what_keeps_a_hook_from_being_used() {
    let installed = Installed::of(User::Current);
    installed.init("copilot", &[]).expect(0);
    let path = installed.settings("copilot");
    let text = fs::read_to_string(&path).unwrap();
    let found = |name: &str, said: &str| {
        let (status, checks) = doctor(&installed, "copilot");
        let text = checks[name]["found"].as_str().unwrap();
        assert!(status == 1 && text.contains(said), "{checks:?}");
    };
    fs::write(&path, text.replace("/agent-snapshot hook", "/moved/agent-snapshot hook")).unwrap();
    found("copilot", "which can't be executed: No such file");
    let other = installed.place.base().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(
        other.join("agent-snapshot"),
        "#!/bin/sh\necho '{\"modifiedArgs\": {\"command\": \":\"}}'\nexit 3\n",
    )
    .unwrap();
    chmod(other.join("agent-snapshot"), 0o755);
    fs::write(&path, text.replace(installed.bin.to_str().unwrap(), other.to_str().unwrap())).unwrap();
    found("recording", "other/agent-snapshot hook copilot --auto-approve ended with exit status: 3");
    fs::write(&path, format!("// mine\n{text}")).unwrap();
    found("copilot", "line 1, column 1: Copilot CLI ignores settings with comments");
    fs::write(&path, "{").unwrap();
    found("copilot", "agent-snapshot.json, line 1, column 1: unterminated object");
    fs::write(&path, &text).unwrap();
    fs::remove_file(installed.shell()).unwrap();
    found("recording", "left the command as it is, so that it would run unrecorded: agent-snapshot: ");
    symlink("/bin/bash", installed.shell()).unwrap();
    found("recording", "left no recording");
    installed.init("gemini", &[]).expect(0);
    installed.place.write(".gemini/settings.json", "{\"hooksConfig\": {\"enabled\": false}}");
    let (status, checks) = doctor(&installed, "gemini");
    let said = checks["gemini"]["found"].as_str().unwrap();
    assert!(status == 1 && said.ends_with("work/.gemini/settings.json has hooks switched off"), "{checks:?}");
    // Cursor's hook may no longer approve.
    fs::remove_file(installed.shell()).unwrap();
    copy_program(super::SHELL, &installed.bin);
    installed.init("cursor", &[]).expect(0);
    let path = installed.settings("cursor");
    let text = fs::read_to_string(&path).unwrap().replace(" --auto-approve", "");
    fs::write(&path, text).unwrap();
    let (status, checks) = doctor(&installed, "cursor");
    let said = "left the command as it is, so that it would run unrecorded: it did not say why";
    assert!(status == 1 && checks["recording"]["found"].as_str().unwrap().contains(said), "{checks:?}");
}

/// The feature that Codex's hooks need, in a file of its own.
#[test]
fn codex_is_set_up_in_two_files() {
    let installed = Installed::of(User::Current);
    let (hooks, config) = (installed.settings("codex"), installed.place.home.join(".codex/config.toml"));
    let text = "model = \"x\" # why\n\n[features] # mine\nweb = true\n\n[z]\n";
    for before in [None, Some(""), Some(text), Some("[features]\nhooks = true\n"), Some("# end")] {
        installed.write("codex", None);
        if let Some(before) = before {
            fs::create_dir_all(config.parent().unwrap()).unwrap();
            fs::write(&config, before).unwrap();
        }
        let everything = installed.everything();
        let printed = installed.run(&["init", "codex", "--print", "--json"]).expect(0);
        let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
        assert_eq!(installed.everything(), everything, "--print changed something");
        let done = installed.run(&["init", "codex"]).expect(0);
        let set = fs::read_to_string(&config).unwrap();
        assert_eq!(printed["also"]["text"].as_str(), (before != Some(set.as_str())).then_some(set.as_str()));
        assert_eq!(printed["text"], fs::read_to_string(&hooks).unwrap());
        assert_eq!(set.matches("hooks = true").count(), 1, "{set}");
        assert!(
            before != Some(text) || set.contains("[features] # mine\nweb = true\nhooks = true\n"),
            "{set}"
        );
        for said in ["approve it under /hooks", "forbids tracing", "alias codex='", " session -- codex'"] {
            assert!(done.stderr.contains(said), "{done:?}");
        }
        let everything = installed.everything();
        let again = installed.run(&["init", "codex"]).expect(0);
        assert_eq!(again.stdout.matches("nothing was changed").count(), 2, "{again:?}");
        assert_eq!(installed.everything(), everything);
        installed.run(&["init", "codex", "--remove"]).expect(0);
        assert_eq!(fs::read_to_string(&config).ok().as_deref(), before);
        assert!(!hooks.exists());
    }
    // What Codex writes beside ours, such as that the hook is trusted, stays.
    installed.write("codex", None);
    installed.run(&["init", "codex"]).expect(0);
    let trusted = "\n[hooks.state]\na = 1\n";
    fs::write(&config, fs::read_to_string(&config).unwrap() + trusted).unwrap();
    installed.run(&["init", "codex", "--remove"]).expect(0);
    assert_eq!(fs::read_to_string(&config).unwrap(), trusted);
    // One that is switched off is not switched on without a word.
    fs::write(&config, "[features]\nhooks = false\n").unwrap();
    let refused = installed.run(&["init", "codex"]).expect(1);
    assert!(refused.stderr.contains("sets features.hooks to false: --force replaces it"), "{refused:?}");
    assert!(!hooks.exists());
    fs::write(&config, "features = 7\n").unwrap();
    let refused = installed.run(&["init", "codex"]).expect(1);
    assert!(refused.stderr.contains("config.toml: \"features\" is of the type integer"), "{refused:?}");
    assert!(!hooks.exists());
}

#[test]
fn doctor_asks_codexs_hook_and_sees_that_it_is_switched_off() {
    let installed = Installed::of(User::Current);
    installed.run(&["init", "codex"]).expect(0);
    let (status, checks) = doctor(&installed, "codex");
    assert_eq!(status, 0, "{checks:?}");
    assert!(checks["recording"]["recording"].is_string(), "{checks:?}");
    fs::write(installed.place.home.join(".codex/config.toml"), "[features]\nhooks = false\n").unwrap();
    let (status, checks) = doctor(&installed, "codex");
    assert_eq!(status, 1, "{checks:?}");
    assert_eq!(checks["codex"]["advice"], "remove features.hooks there", "{checks:?}");
}

/// Codex's rules do not find the program of a here-document in a rewritten command: one that might be restricted is left
/// to Codex.
#[test]
fn here_documents_are_left_to_codex_where_its_rules_restrict() {
    let installed = Installed::of(User::Current);
    let answer = |command: &str| {
        let question = json!({"tool_name": "Bash", "tool_input": {"command": command}}).to_string();
        ask(&installed, &["codex"], question.as_bytes()).expect(0).stdout
    };
    let document = "git push <<'EOF'\nx\nEOF";
    let rules = installed.place.home.join(".codex/rules/default.rules");
    fs::create_dir_all(rules.parent().unwrap()).unwrap();
    for (decision, is_left) in [("allow", false), ("prompt", true), ("forbidden", true)] {
        fs::write(&rules, format!("prefix_rule(pattern=[\"git\"], decision=\"{decision}\")\n")).unwrap();
        assert_eq!(answer(document).is_empty(), is_left, "{decision}");
        assert!(!answer("git push").is_empty());
    }
}
