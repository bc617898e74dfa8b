//! What an agent asks a hook before it runs a command, and how that answers.
//!
//! Pure: from the bytes of a question to those of an answer. A hook decides nothing, or has the agent ask its user.
//! Where an agent's rewritten commands escape the user's rules, they are rewritten only if the user has allowed it.
//!
//! Formats: Gemini CLI 0.26 to 0.62 (docs/hooks/reference.md, `scheduler.ts`); Cursor's hooks of 2026
//! (cursor.com/docs/hooks); Copilot CLI 1.0 (docs.github.com/copilot/reference/hooks-reference).

use jsonc_parser::cst::CstInputValue;
use serde_json::{Map, Value, json};

use super::quoted;
use super::slot::HookSlot;

/// The longest argument that Linux passes to a program (MAX_ARG_STRLEN), with its NUL.
const ARGUMENT_LIMIT: usize = 128 << 10;

/// How one agent asks, and what it takes for an answer.
#[derive(Debug)]
pub struct Protocol {
    /// The key of the name of the tool.
    tool_key: &'static str,
    /// The tool that runs commands.
    tool: &'static str,
    /// The key of the tool's arguments, of which one is `command`.
    arguments_key: &'static str,
    /// The answer that leaves all as it is.
    pub pass: &'static str,
    /// Why a rewritten command may escape the user's rules; none if it does not.
    pub objection: Option<&'static str>,
    /// Whether the agent applies its rules to the rewritten command, and looks through a wrapper called `bash`.
    pub sees_through_bash: bool,
    /// Makes an answer of the arguments.
    answer: fn(Value, Permission) -> Value,
    /// Finds the arguments in an answer.
    rewritten: &'static str,
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
    pass: "{}",
    objection: None,
    sees_through_bash: true,
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
    // Without any JSON it reports the hook as failed.
    pass: "{}",
    objection: Some(
        "takes a rewritten command only together with an approval, so that it may run each command without asking you",
    ),
    sees_through_bash: false,
    answer: |arguments, _| json!({"permission": "allow", "updated_input": arguments}),
    rewritten: "/updated_input/command",
};

/// That of Copilot CLI.
pub static COPILOT: Protocol = Protocol {
    tool_key: "toolName",
    tool: "bash",
    arguments_key: "toolArgs",
    pass: "",
    objection: Some(
        "compares your rules with the rewritten command, so that one that denies a program no longer finds that",
    ),
    sees_through_bash: false,
    answer: |arguments, _| json!({"modifiedArgs": arguments}),
    rewritten: "/modifiedArgs/command",
};

/// What an agent asks: whether to run a command, as it is or rewritten.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The command.
    pub command: String,
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
        can_be_passed.then_some(Question { command, arguments })
    }

    /// The answer that has the command run by `shell`; none if it is already, would be too long, or is not taken with
    /// this permission.
    pub fn rewrite(&self, question: Question, shell: &str, permission: Permission) -> Option<String> {
        if self.objection.is_some() && permission != Permission::Approve {
            return None;
        }
        let Question { command, mut arguments } = question;
        let start = format!("{} -c ", word(shell));
        let is_rewritten = command.strip_prefix(&start).is_some_and(is_one_quoted_word);
        let rewritten = format!("{start}{}", quoted(&command));
        if is_rewritten || rewritten.len() >= ARGUMENT_LIMIT {
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

/// A path as one word of any shell (`$'...'` is only bash's), without quotes if it needs none.
pub fn word(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./+@%,:=".contains(&byte);
    if path.bytes().all(is_plain) { path.to_owned() } else { quoted(path) }
}

/// Whether a text is one that [`quoted`] makes.
fn is_one_quoted_word(text: &str) -> bool {
    let inner = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    inner.is_some_and(|inner| !inner.replace(r"'\''", "").contains('\''))
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

fn object<const N: usize>(strings: [(&str, &str); N]) -> CstInputValue {
    CstInputValue::Object(strings.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [&Protocol; 3] = [&GEMINI, &CURSOR, &COPILOT];

    fn rewrite(protocol: &Protocol, input: &str, permission: Permission) -> Option<Value> {
        let answer =
            protocol.rewrite(protocol.read(input.as_bytes())?, "/b/agent-snapshot-bash", permission)?;
        Some(serde_json::from_str(&answer).unwrap())
    }

    #[test]
    fn answer_has_the_command_rewritten_and_all_else_as_it_was() {
        let gemini = r#"{"session_id": "s", "tool_name": "run_shell_command", "tool_input":
            {"description": "d", "command": "echo 'a' \"$b\"", "dir_path": "x", "is_background": true}}"#;
        let command = r#"/b/agent-snapshot-bash -c 'echo '\''a'\'' "$b"'"#;
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
            let rewritten = protocol.question("/b/agent-snapshot-bash -c 'echo '\\''a'\\'''", "/");
            assert_eq!(rewrite(protocol, &rewritten, Permission::Approve), None);
            let only_begins_so = protocol.question("/b/agent-snapshot-bash -c 'a' && rm 'b'", "/");
            assert!(rewrite(protocol, &only_begins_so, Permission::Approve).is_some());
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

    proptest! {
        #[test]
        fn shell_gets_the_command_byte_for_byte(command in "[^\0]*[^\0[:space:]][^\0]*") {
            for protocol in ALL {
                let answer = rewrite(protocol, &protocol.question(&command, "/"), Permission::Approve).unwrap();
                let rewritten = protocol.rewritten(answer.to_string().as_bytes()).unwrap();
                let word = rewritten.strip_prefix("/b/agent-snapshot-bash -c '").unwrap().strip_suffix('\'').unwrap();
                // Outside of the escaped quotes, none ends the word.
                let parts: Vec<&str> = word.split(r"'\''").collect();
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
