//! What an agent asks a hook before it runs a command, and how that answers.
//!
//! Pure: from the bytes of a question to those of an answer. A hook decides nothing, or has the agent ask its user.
//! Where an agent's rewritten commands escape the user's rules, they are rewritten only if the user has allowed it.
//!
//! Formats: Gemini CLI 0.26 to 0.62 (docs/hooks/reference.md, `scheduler.ts`); Cursor's hooks of 2026
//! (cursor.com/docs/hooks); Copilot CLI 1.0 (docs.github.com/copilot/reference/hooks-reference); Codex 0.129 to 0.171
//! (`hooks/src/engine/output_parser.rs`, `core/src/exec_policy.rs`). `docs/agents.md` says what each does besides.

use jsonc_parser::cst::CstInputValue;
use serde_json::{Map, Value, json};

use super::quoted;
use super::slot::HookSlot;

/// The longest argument that Linux passes to a program (MAX_ARG_STRLEN), with its NUL, and room for what an agent puts
/// around a command.
const ARGUMENT_LIMIT: usize = (128 - 4) << 10;

/// The longest identifier of a session, in bytes: those of agents are UUIDs.
const SESSION_LIMIT: usize = 200;

/// How one agent asks, and what it takes for an answer.
#[derive(Debug)]
pub struct Protocol {
    /// The key of the name of the tool.
    tool_key: &'static str,
    /// The tool that runs commands.
    tool: &'static str,
    /// The key of the tool's arguments, of which one is `command`.
    arguments_key: &'static str,
    /// The key of the agent's session.
    session_key: &'static str,
    /// The answer that leaves all as it is.
    pub pass: &'static str,
    /// Why a rewritten command may escape the user's rules; none if it does not.
    pub objection: Option<&'static str>,
    /// How a command is rewritten.
    form: Form,
    /// Whether the agent itself refuses or unwraps a command in a way that would be lost on a rewritten one.
    pub is_left_alone: fn(&str) -> bool,
    /// Whether the agent asks its user about a command because of its first word, whatever a rule allows. It does not
    /// find that word in a rewritten command.
    pub is_asked_about: fn(&str) -> bool,
    /// Whether a rule of the user's that restricts the command would not find it once it is rewritten.
    pub is_hidden_from_rules: fn(&str) -> bool,
    /// What the command line of the agent's process contains.
    pub program: &'static str,
    /// The arguments with which the agent is started so that it asks about nothing.
    pub asks_nothing: &'static [&'static str],
    /// The arguments with which it is started so that nobody can be asked.
    pub asks_nobody: &'static [&'static str],
    /// Makes an answer of the arguments.
    answer: fn(Value, Permission) -> Value,
    /// Finds the arguments in an answer.
    rewritten: &'static str,
}

/// How a command is rewritten so that our shell runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `SHELL -c 'COMMAND'`: what the agent shows its user is legible, but its rules find our shell alone.
    Argument,
    /// `exec SHELL -c 'COMMAND';`, and the command again in the lines below, which are never executed: the agent's rules
    /// find each program of it, as they do without us.
    Repeated,
}

/// What an answer says of the permission to run the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Nothing: the agent's own rules apply.
    None,
    /// The agent asks its user.
    Ask,
    /// The command is approved, or may escape the rules.
    Approve,
}

/// That of Gemini CLI.
pub static GEMINI: Protocol = Protocol {
    tool_key: "tool_name",
    tool: "run_shell_command",
    arguments_key: "tool_input",
    session_key: "session_id",
    pass: "{}",
    objection: None,
    form: Form::Repeated,
    is_left_alone: |command| unwraps(command) && SUBSTITUTIONS.iter().any(|start| command.contains(start)),
    is_asked_about: is_dangerous_to_gemini,
    is_hidden_from_rules: |_| false,
    program: "gemini",
    asks_nothing: &["--yolo", "-y", "--approval-mode=yolo", "yolo"],
    asks_nobody: &["-p", "--prompt"],
    answer: |arguments, permission| {
        let mut answer =
            json!({"hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": arguments}});
        if permission == Permission::Ask {
            answer["decision"] = "ask".into();
        }
        answer
    },
    rewritten: "/hookSpecificOutput/tool_input/command",
};

/// That of Cursor.
pub static CURSOR: Protocol = Protocol {
    tool_key: "tool_name",
    tool: "Shell",
    arguments_key: "tool_input",
    session_key: "conversation_id",
    // Without any JSON it reports the hook as failed.
    pass: "{}",
    objection: Some(
        "takes a rewritten command only together with an approval, so that it may run each command without asking you",
    ),
    form: Form::Argument,
    is_left_alone: |_| false,
    is_asked_about: |_| false,
    is_hidden_from_rules: |_| false,
    program: "",
    asks_nothing: &[],
    asks_nobody: &[],
    answer: |arguments, _| json!({"permission": "allow", "updated_input": arguments}),
    rewritten: "/updated_input/command",
};

/// That of Copilot CLI.
pub static COPILOT: Protocol = Protocol {
    tool_key: "toolName",
    tool: "bash",
    arguments_key: "toolArgs",
    session_key: "sessionId",
    pass: "",
    objection: Some(
        "compares your rules with the rewritten command, so that one that denies a program no longer finds that",
    ),
    form: Form::Argument,
    is_left_alone: |_| false,
    is_asked_about: |_| false,
    is_hidden_from_rules: |_| false,
    program: "",
    asks_nothing: &[],
    asks_nobody: &[],
    answer: |arguments, _| json!({"modifiedArgs": arguments}),
    rewritten: "/modifiedArgs/command",
};

/// That of Codex.
///
/// It takes a rewritten command only together with `allow`, which does not approve it: its rules and its user are asked
/// about the rewritten command all the same.
pub static CODEX: Protocol = Protocol {
    tool_key: "tool_name",
    tool: "Bash",
    arguments_key: "tool_input",
    session_key: "session_id",
    pass: "",
    objection: None,
    form: Form::Repeated,
    is_left_alone: |_| false,
    is_asked_about: |_| false,
    // It looks for the program of a command with a here-document only if that is the only command.
    is_hidden_from_rules: |command| command.contains("<<"),
    program: "",
    asks_nothing: &[],
    asks_nobody: &[],
    answer: |arguments, _| {
        json!({"hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": arguments,
        }})
    },
    rewritten: "/hookSpecificOutput/updatedInput/command",
};

/// What begins a substitution, for which Gemini CLI refuses a command.
const SUBSTITUTIONS: [&str; 4] = ["$(", "`", "<(", ">("];

/// Whether Gemini CLI takes a command from what looks like `sh -c '...'` before it looks at it.
fn unwraps(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let shell = words.next().map(|word| word.rsplit('/').next().unwrap_or(word).to_ascii_lowercase());
    let option = words.next().map(str::to_ascii_lowercase);
    match (shell.as_deref(), option.as_deref()) {
        (Some("sh" | "bash" | "zsh"), Some("-c")) | (Some("cmd.exe"), Some("/c")) => true,
        (Some(shell), Some(_)) => shell.starts_with("pwsh") || shell.starts_with("powershell"),
        _ => false,
    }
}

/// Whether Gemini CLI asks about a command outside of its YOLO mode even if a rule allows each command
/// (`isDangerousCommand`), or a little more than that.
fn is_dangerous_to_gemini(command: &str) -> bool {
    let words = command.split([' ', '\t', '\n', ';', '&', '|', '(', ')', '<', '>']);
    let words = words.map(|word| word.replace(['\'', '"', '\\'], "")).filter(|word| !word.is_empty());
    let words: Vec<String> = words.skip_while(|word| word == "sudo").collect();
    let [program, arguments @ ..] = words.as_slice() else { return false };
    let any = |is: &dyn Fn(&str) -> bool| arguments.iter().any(|argument| is(argument));
    match program.rsplit('/').next().unwrap_or_default() {
        "rm" => arguments.first().is_some_and(|first| ["-f", "-rf", "-fr"].contains(&first.as_str())),
        "ln" => any(&|argument| {
            argument == "--symbolic"
                || argument.starts_with('-') && !argument.starts_with("--") && argument.contains('s')
        }),
        "find" => any(&|argument| {
            ["-exec", "-ok", "-fprint"].iter().any(|start| argument.starts_with(start))
                || ["-delete", "-fls"].contains(&argument)
        }),
        "rg" | "rg.exe" => any(&|argument| {
            ["--pre", "--hostname-bin", "--search-zip", "-z"].iter().any(|start| argument.starts_with(start))
        }),
        "git" => any(&|argument| {
            let starts = [
                "-c",
                "-p",
                "--config-env",
                "--exec",
                "--git-dir",
                "--work-tree",
                "--namespace",
                "--super-prefix",
                "--output",
                "--ext-diff",
                "--textconv",
                "--paginate",
            ];
            argument == "branch" || starts.iter().any(|start| argument.starts_with(start))
        }),
        "base64" => any(&|argument| argument.starts_with("-o") || argument.starts_with("--output")),
        _ => false,
    }
}

/// What an agent asks: whether to run a command, as it is or rewritten.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The command.
    pub command: String,
    /// The agent's session, if it told that.
    pub session: Option<String>,
    /// All arguments, the command among them.
    arguments: Map<String, Value>,
}

impl Protocol {
    /// Reads a question; none if it is about something else than a command, or can't be read.
    pub fn read(&self, input: &[u8]) -> Option<Question> {
        let Value::Object(mut question) = serde_json::from_slice(input).ok()? else { return None };
        if question.get(self.tool_key)?.as_str()? != self.tool {
            return None;
        }
        let arguments = match question.remove(self.arguments_key)? {
            Value::Object(arguments) => arguments,
            // Older versions of Copilot CLI have JSON in a string.
            Value::String(text) => serde_json::from_str(&text).ok()?,
            _ => return None,
        };
        let command = arguments.get("command")?.as_str()?.to_owned();
        let can_be_passed = !command.trim().is_empty() && !command.contains('\0');
        let session = question.get(self.session_key).and_then(Value::as_str);
        let session = session.filter(|id| (1..=SESSION_LIMIT).contains(&id.len())).map(str::to_owned);
        can_be_passed.then_some(Question { command, session, arguments })
    }

    /// The answer that has the command run by `shell`; none if it is already, would be too long, or is not taken with
    /// this permission.
    pub fn rewrite(&self, question: Question, shell: &str, permission: Permission) -> Option<String> {
        if self.objection.is_some() && permission != Permission::Approve {
            return None;
        }
        let Question { command, mut arguments, .. } = question;
        let rewritten = self.form.of(shell, &command);
        if self.form.is_made_of(shell, &command) || rewritten.len() >= ARGUMENT_LIMIT {
            return None;
        }
        arguments.insert("command".to_owned(), rewritten.into());
        Some((self.answer)(Value::Object(arguments), permission).to_string())
    }

    /// A question about a command, as the agent asks it.
    pub fn question(&self, command: &str, directory: &str) -> String {
        json!({
            "cwd": directory,
            self.tool_key: self.tool,
            self.arguments_key: {"command": command},
        })
        .to_string()
    }

    /// The command that an answer has the agent run; none if that leaves it as it is.
    pub fn rewritten(&self, answer: &[u8]) -> Option<String> {
        let answer: Value = serde_json::from_slice(answer).ok()?;
        Some(answer.pointer(self.rewritten)?.as_str()?.to_owned())
    }
}

impl Form {
    /// The command that has `shell` run `command`.
    fn of(self, shell: &str, command: &str) -> String {
        let word = word(shell);
        match self {
            Form::Argument => format!("{word} -c {}", quoted(command)),
            Form::Repeated => format!("exec {word} -c {};\n{command}", quoted_twice(command)),
        }
    }

    /// Whether a command was made by [`Form::of`].
    fn is_made_of(self, shell: &str, command: &str) -> bool {
        let word = word(shell);
        match self {
            Form::Argument => command
                .strip_prefix(&format!("{word} -c "))
                .is_some_and(|rest| end_of_quoted_word(rest, QUOTE) == Some(rest.len())),
            Form::Repeated => {
                let Some(rest) = command.strip_prefix(&format!("exec {word} -c ")) else { return false };
                let Some(end) = end_of_quoted_word(rest, QUOTED_QUOTE) else { return false };
                rest[end..].strip_prefix(";\n").is_some_and(|inner| rest[..end] == quoted_twice(inner))
            }
        }
    }
}

/// A path as one word of any shell (`$'...'` is only bash's), without quotes if it needs none.
pub fn word(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./+@%,:=".contains(&byte);
    if path.bytes().all(is_plain) { path.to_owned() } else { quoted(path) }
}

/// A single quote in a word that [`quoted`] makes.
const QUOTE: &str = r"'\''";

/// A single quote in a word that [`quoted_twice`] makes.
const QUOTED_QUOTE: &str = r#"'"'"'"#;

/// A text as one word of a shell, with quotes of both kinds and no backslash: a word with an escaped quote hides all that
/// is beside it from the rules of Codex.
fn quoted_twice(text: &str) -> String {
    format!("'{}'", text.replace('\'', QUOTED_QUOTE))
}

/// Where the word that begins a text ends, if it is between single quotes, those within written as `escaped`.
fn end_of_quoted_word(text: &str, escaped: &str) -> Option<usize> {
    let mut at = text.starts_with('\'').then_some(1)?;
    loop {
        at += text[at..].find('\'')?;
        if !text[at..].starts_with(escaped) {
            return Some(at + 1);
        }
        at += escaped.len();
    }
}

/// Where Gemini CLI has its hooks.
pub static GEMINI_SLOT: HookSlot = HookSlot {
    agent: "gemini",
    list: ["hooks", "BeforeTool"],
    group: Some("hooks"),
    command: "command",
    switch: Some(["hooksConfig", "enabled"]),
    version: None,
    entry: |command| {
        let hook = object([("type", "command"), ("name", "agent-snapshot"), ("command", command)]);
        let CstInputValue::Object(mut entry) = object([("matcher", "run_shell_command")]) else {
            return hook;
        };
        entry.push(("hooks".to_owned(), CstInputValue::Array(vec![hook])));
        CstInputValue::Object(entry)
    },
};

/// Where Cursor has its hooks.
pub static CURSOR_SLOT: HookSlot = HookSlot {
    agent: "cursor",
    list: ["hooks", "preToolUse"],
    group: None,
    command: "command",
    switch: None,
    version: Some(("version", "1")),
    entry: |command| object([("command", command), ("matcher", "Shell")]),
};

/// Where Copilot CLI has its hooks.
pub static COPILOT_SLOT: HookSlot = HookSlot {
    agent: "copilot",
    list: ["hooks", "preToolUse"],
    group: None,
    command: "bash",
    switch: None,
    version: Some(("version", "1")),
    entry: |command| object([("type", "command"), ("bash", command)]),
};

/// Where Codex has its hooks.
pub static CODEX_SLOT: HookSlot = HookSlot {
    agent: "codex",
    list: ["hooks", "PreToolUse"],
    group: Some("hooks"),
    command: "command",
    switch: None,
    version: None,
    entry: |command| {
        let hook = object([("type", "command"), ("command", command)]);
        let CstInputValue::Object(mut entry) = object([("matcher", "^Bash$")]) else { return hook };
        entry.push(("hooks".to_owned(), CstInputValue::Array(vec![hook])));
        CstInputValue::Object(entry)
    },
};

fn object<const N: usize>(strings: [(&str, &str); N]) -> CstInputValue {
    CstInputValue::Object(strings.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [&Protocol; 4] = [&GEMINI, &CURSOR, &COPILOT, &CODEX];

    fn rewrite(protocol: &Protocol, input: &str, permission: Permission) -> Option<Value> {
        let answer =
            protocol.rewrite(protocol.read(input.as_bytes())?, "/b/agent-snapshot-bash", permission)?;
        Some(serde_json::from_str(&answer).unwrap())
    }

    #[test]
    fn answer_has_the_command_rewritten_and_all_else_as_it_was() {
        let gemini = r#"{"session_id": "s", "tool_name": "run_shell_command", "tool_input":
            {"description": "d", "command": "echo 'a' \"$b\"", "dir_path": "x", "is_background": true}}"#;
        let command = "exec /b/agent-snapshot-bash -c 'echo '\"'\"'a'\"'\"' \"$b\"';\necho 'a' \"$b\"";
        let arguments =
            json!({"description": "d", "command": command, "dir_path": "x", "is_background": true});
        let output = json!({"hookEventName": "BeforeTool", "tool_input": arguments});
        assert_eq!(
            rewrite(&GEMINI, gemini, Permission::None).unwrap(),
            json!({"hookSpecificOutput": output.clone()})
        );
        assert_eq!(
            rewrite(&GEMINI, gemini, Permission::Ask).unwrap(),
            json!({"hookSpecificOutput": output, "decision": "ask"})
        );
        let codex = r#"{"tool_name": "Bash", "tool_use_id": "c", "tool_input": {"command": "ls"}}"#;
        let output = json!({
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": {"command": "exec /b/agent-snapshot-bash -c 'ls';\nls"},
        });
        assert_eq!(rewrite(&CODEX, codex, Permission::None).unwrap(), json!({"hookSpecificOutput": output}));
        let cursor = r#"{"tool_name": "Shell", "tool_input": {"command": "ls", "working_directory": "/p", "timeout": 3}}"#;
        let arguments =
            json!({"command": "/b/agent-snapshot-bash -c 'ls'", "working_directory": "/p", "timeout": 3});
        assert_eq!(
            rewrite(&CURSOR, cursor, Permission::Approve).unwrap(),
            json!({"permission": "allow", "updated_input": arguments})
        );
        let arguments = json!({"command": "/b/agent-snapshot-bash -c 'ls'", "mode": "sync"});
        for copilot in [
            r#"{"toolName": "bash", "toolArgs": {"command": "ls", "mode": "sync"}}"#,
            r#"{"toolName": "bash", "toolArgs": "{\"command\": \"ls\", \"mode\": \"sync\"}"}"#,
        ] {
            assert_eq!(
                rewrite(&COPILOT, copilot, Permission::Approve).unwrap(),
                json!({"modifiedArgs": arguments})
            );
        }
    }

    #[test]
    fn what_is_no_question_about_a_command_is_left_alone() {
        for protocol in ALL {
            let (name, arguments) = (protocol.tool_key, protocol.arguments_key);
            let tool = protocol.tool;
            for input in [
                String::new(),
                "null".to_owned(),
                "[]".to_owned(),
                "{".to_owned(),
                "\u{feff}{}".to_owned(),
                format!(r#"{{"{name}": "read_file", "{arguments}": {{"command": "ls"}}}}"#),
                format!(r#"{{"{name}": 7, "{arguments}": {{"command": "ls"}}}}"#),
                format!(r#"{{"{arguments}": {{"command": "ls"}}}}"#),
                format!(r#"{{"{name}": "{tool}"}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": null}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": "ls"}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": {{}}}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": {{"command": ["ls"]}}}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": {{"command": " \n"}}}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": {{"command": "a\u0000b"}}}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": {{"command": "\ud800"}}}}"#),
                format!(r#"{{"{name}": "{tool}", "{arguments}": {{"command": "a\ b"}}}}"#),
            ] {
                assert_eq!(protocol.read(input.as_bytes()), None, "{input}");
            }
            assert_eq!(protocol.read(b"\xff\xfe{}"), None);
            let long = protocol.question(&"x".repeat(ARGUMENT_LIMIT), "/");
            assert_eq!(rewrite(protocol, &long, Permission::Approve), None);
            for only_begins_so in [
                "/b/agent-snapshot-bash -c 'a' && rm 'b'",
                "exec /b/agent-snapshot-bash -c 'a';\nrm b",
                "exec /b/agent-snapshot-bash -c 'a';\na;rm b",
                "exec /b/agent-snapshot-bash -c 'a",
            ] {
                let question = protocol.question(only_begins_so, "/");
                assert!(rewrite(protocol, &question, Permission::Approve).is_some(), "{only_begins_so}");
            }
        }
    }

    #[test]
    fn command_of_the_hook_names_its_program() {
        for (command, program) in [
            ("/b/agent-snapshot hook cursor", Some("/b/agent-snapshot")),
            ("/b/agent-snapshot hook cursor --auto-approve", Some("/b/agent-snapshot")),
            (r"'/b '\''x/agent-snapshot' hook cursor", Some("/b 'x/agent-snapshot")),
            ("/b/agent-snapshot hook gemini", None),
            ("/b/other hook cursor", None),
            ("agent-snapshot log", None),
            ("hook cursor", None),
            ("' hook cursor", None),
        ] {
            assert_eq!(
                CURSOR_SLOT.program(command).as_deref(),
                program.map(std::path::Path::new),
                "{command}"
            );
        }
    }

    #[test]
    fn what_gemini_would_unwrap_and_refuse_is_left_to_it() {
        for (command, is_left) in [
            ("bash -c 'echo $(date)'", true),
            ("  /usr/bin/SH  -c \"echo `date`\"", true),
            ("zsh -c 'diff <(a) b'", true),
            ("pwsh -Command \"$(x)\"", true),
            ("bash -c 'echo a'", false),
            ("echo $(date)", false),
            ("bash script.sh `x`", false),
            ("", false),
        ] {
            assert_eq!((GEMINI.is_left_alone)(command), is_left, "{command}");
            assert!(!(CODEX.is_left_alone)(command) && !(CURSOR.is_left_alone)(command));
        }
    }

    #[test]
    fn what_gemini_asks_about_in_any_case_is_known() {
        for (command, is_asked_about) in [
            ("rm -rf src", true),
            ("rm -f a", true),
            (" sudo  'rm' -fr /", true),
            ("rm -r src", false),
            ("cd a && rm -rf src", false),
            ("ln -s a b", true),
            ("ln -sf a b", true),
            ("ln a b", false),
            ("find . -name x -delete", true),
            ("find . -execdir rm {} +", true),
            ("find . -name x", false),
            ("rg --pre=x y", true),
            ("rg y", false),
            ("git -c core.pager=x log", true),
            ("git branch -D main", true),
            ("git log --output=x", true),
            ("git commit -q --allow-empty -m three", false),
            ("base64 -o a b", true),
            ("base64 a", false),
            ("ls -la", false),
            ("", false),
        ] {
            assert_eq!((GEMINI.is_asked_about)(command), is_asked_about, "{command}");
            assert!(!(CODEX.is_asked_about)(command));
        }
    }

    proptest! {
        #[test]
        fn shell_gets_the_command_byte_for_byte(command in "[^\0]*[^\0[:space:]][^\0]*") {
            for protocol in ALL {
                let answer = rewrite(protocol, &protocol.question(&command, "/"), Permission::Approve).unwrap();
                let rewritten = protocol.rewritten(answer.to_string().as_bytes()).unwrap();
                let line = match protocol.form {
                    Form::Argument => rewritten.as_str(),
                    // Its rules find the command below, as it was.
                    Form::Repeated => {
                        let line = rewritten.strip_suffix(&format!(";\n{command}")).unwrap();
                        line.strip_prefix("exec ").unwrap()
                    }
                };
                let word = line.strip_prefix("/b/agent-snapshot-bash -c '").unwrap().strip_suffix('\'').unwrap();
                // Outside of the quoted quotes, none ends the word.
                let quote = if protocol.form == Form::Repeated { QUOTED_QUOTE } else { QUOTE };
                let parts: Vec<&str> = word.split(quote).collect();
                prop_assert!(parts.iter().all(|part| !part.contains('\'')));
                prop_assert_eq!(parts.join("'"), command.as_str());
                prop_assert_eq!(rewrite(protocol, &protocol.question(&rewritten, "/"), Permission::Approve), None);
            }
        }

        #[test]
        fn any_bytes_are_read_or_left_alone(input in proptest::collection::vec(any::<u8>(), 0..300)) {
            for protocol in ALL {
                protocol.read(&input);
                protocol.rewritten(&input);
            }
        }
    }
}
