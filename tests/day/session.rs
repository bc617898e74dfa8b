//! A day in one session: somebody runs the commands, as steps, and edits files between them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;

use agent_snapshot::snapshot::{Snapshot, SnapshotKind};
use serde_json::{Value, json};

use super::commands::DayCommand;
use super::copies::{changed, copy};
use super::{Day, Step};
use crate::agents::CLAUDE;
use crate::agents::lab::{ModelServer, installed};
use crate::support::{BINARY, Terminal, wait};

/// Does what it is told, a line of JSON for each order, and answers each.
const AGENT: &str = r#"
import json, subprocess, sys
for line in sys.stdin:
    order = json.loads(line)
    if "run" in order:
        subprocess.run(["sh", "-c", order["run"]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, process_group=0)
    else:
        with open(order["path"], order["mode"]) as file:
            file.write(order["text"])
    print(flush=True)
"#;

/// Who runs the commands of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A script that does what it is told.
    Script,
    /// Somebody at the terminal of an interactive bash.
    Person,
    /// Claude Code, whose model says what to do.
    ClaudeCode,
}

/// A session that goes on.
pub enum Session {
    Script { process: Child, orders: Option<ChildStdin>, answers: BufReader<ChildStdout> },
    Person(Terminal),
    ClaudeCode { process: Child, model: ModelServer },
}

impl Session {
    /// Has a program that takes orders do one; it answers when that is done.
    fn order(orders: &mut Option<ChildStdin>, answers: &mut BufReader<ChildStdout>, order: &Value) {
        writeln!(orders.as_mut().unwrap(), "{order}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the session has ended at {order}");
    }

    /// Has Claude Code run a command or call a tool.
    fn call(model: &mut ModelServer, call: &Value) {
        assert!(!model.tell(call).is_empty(), "the session has ended at {call}");
    }

    /// Has a script run; `form` chooses how a person has it run.
    fn run(&mut self, script: &str, form: usize) {
        match self {
            Session::Script { orders, answers, .. } => {
                Session::order(orders, answers, &json!({"run": script}));
            }
            Session::Person(terminal) => {
                fs::write(terminal.place.base().join("script"), script).unwrap();
                let forms = [
                    "sh ../script QUIET",
                    "(. ../script) QUIET",
                    "sh ../script QUIET | cat",
                    "sh ../script QUIET & wait",
                ];
                let line = forms[form % forms.len()].replace("QUIET", "< /dev/null > /dev/null 2>&1");
                terminal.line(&format!("{line}; echo next."), "next.\r\n$ ");
            }
            Session::ClaudeCode { model, .. } => Session::call(model, &json!(script)),
        }
    }

    /// Has a file be written.
    fn edit(&mut self, path: &Path, mode: &str, text: &str) {
        match self {
            Session::Script { orders, answers, .. } => {
                let order = json!({"path": path.to_str().unwrap(), "mode": mode, "text": text});
                Session::order(orders, answers, &order);
            }
            Session::Person(terminal) => {
                let octal: String =
                    path.as_os_str().as_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
                let operator = if mode == "a" { ">>" } else { ">" };
                let line = format!("echo '{}' {operator} $'{octal}'; echo next.", text.trim_end());
                terminal.line(&line, "next.\r\n$ ");
            }
            Session::ClaudeCode { model, .. } => {
                // It writes only to files that it has read.
                if path.exists() {
                    Session::call(model, &json!({"tool": "Read", "input": {"file_path": path}}));
                }
                let input = json!({"file_path": path, "content": text});
                Session::call(model, &json!({"tool": "Write", "input": input}));
            }
        }
    }

    fn end(self) {
        match self {
            Session::Script { mut process, orders, .. } => {
                drop(orders);
                assert_eq!(wait(&mut process).code(), Some(0));
            }
            Session::Person(terminal) => drop(terminal.end()),
            Session::ClaudeCode { mut process, mut model } => {
                model.end_turn();
                assert_eq!(wait(&mut process).code(), Some(0));
            }
        }
    }
}

impl Day {
    /// Starts the session in which the commands are run from now on; none where its program is missing.
    pub fn start_session(&mut self, who: Who) -> Option<()> {
        const SESSION: [&str; 5] = ["session", "--name", "day", "--quiet", "--"];
        let mut command = self.program(BINARY);
        command.args(SESSION);
        self.session = Some(match who {
            Who::Script => {
                command.args(["python3", "-c", AGENT]).stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut process = command.spawn().unwrap();
                let orders = process.stdin.take();
                let answers = BufReader::new(process.stdout.take().unwrap());
                Session::Script { process, orders, answers }
            }
            Who::Person => {
                let (path, library) = (self.path.to_str().unwrap(), self.library.to_str().unwrap());
                let environment = [("PATH", path), ("AGENT_SNAPSHOT_LIBRARY", library)];
                let words = [&[BINARY], &SESSION[..]].concat();
                Session::Person(Terminal::new(Rc::clone(&self.place), &words, &environment)?)
            }
            Who::ClaudeCode => {
                let clients = installed("npm")?.join("node_modules/.bin");
                let model = ModelServer::to_be_told();
                let port = model.port.to_string();
                command.arg(clients.join(CLAUDE.command[0])).args(&CLAUDE.command[1..]);
                command.envs(
                    CLAUDE.environment.iter().map(|(name, value)| (name, value.replace("{port}", &port))),
                );
                // What it keeps for itself is none of the day's.
                let home = self.place.base().join("home_of_agent");
                fs::create_dir(&home).unwrap();
                command.env("HOME", home).stdin(Stdio::null()).stdout(Stdio::null());
                let process = command.spawn().unwrap();
                Session::ClaudeCode { process, model }
            }
        });
        // A directory is there before the first step.
        self.session.as_mut()?.run(":", 0);
        Some(())
    }

    pub fn end_session(&mut self) {
        self.session.take().unwrap().end();
    }

    /// Has a script run as a step; the identifiers of it and of the edits that are not known yet. Other steps, which the
    /// program of the session runs for itself, do not count. None if Claude Code refuses the script.
    fn run_step(&mut self, script: &str, known: &BTreeSet<String>) -> Option<(String, Vec<String>)> {
        let form = self.random.below(4);
        let session = self.session.as_mut().unwrap();
        let home = self.place.home.display();
        // It stays in the directory to which a command has changed.
        let elsewhere = format!("cd {}; HOME={home}; {script}", self.place.work.display());
        let is_claude = matches!(session, Session::ClaudeCode { .. });
        let script = if is_claude { &elsewhere } else { script };
        session.run(script, form);
        let is_typed = matches!(session, Session::Person(_));
        let mut steps = Vec::new();
        let mut edits = Vec::new();
        for id in self.snapshots(true).difference(known) {
            // An edit that changes nothing leaves nothing.
            if !self.wait_for(id) {
                continue;
            }
            let snapshot = Snapshot::open(&self.library.join("snapshots").join(id)).unwrap();
            let header = snapshot.header();
            let is_script = |word: &Vec<u8>| word.as_slice() == script.as_bytes();
            // A person runs nothing else, and a shell may become the last command of the script.
            let is_it = is_typed
                || header.command.iter().any(is_script)
                || header.title.as_ref().is_some_and(is_script);
            match header.kind {
                SnapshotKind::Edit => edits.push(id.clone()),
                _ if is_it => steps.push(id.clone()),
                _ => {}
            }
        }
        if is_claude && steps.is_empty() && edits.is_empty() {
            return None;
        }
        assert_eq!(steps.len(), 1, "{script}: {steps:?}, {edits:?}");
        Some((steps.remove(0), edits))
    }

    /// Runs the next command as a step. What is about options of `run`, or kills whoever runs it, is for other days.
    pub fn record_step(&mut self) {
        let command = loop {
            let command = self.generator.next();
            if command.options.is_empty() && !command.kind.contains("killed") {
                break command;
            }
        };
        let before = self.steps.last().map_or_else(|| copy(&self.place), |last| last.after.clone());
        let known = self.snapshots(true);
        let Some((id, edits)) = self.run_step(&command.script, &known) else {
            // Claude Code refuses some commands itself: then nothing has been changed.
            let changed = changed(&before, &copy(&self.place));
            assert!(changed.is_empty(), "{}: {changed:?}", command.script);
            return self.record_step();
        };
        assert!(edits.is_empty(), "{}: {edits:?}", command.script);
        self.push(command, Some(id), before);
    }

    /// Has the program of the session write to a file itself, which is a step that ends with the next command.
    pub fn record_edit(&mut self) {
        let is_claude = matches!(self.session, Some(Session::ClaudeCode { .. }));
        let mut files: Vec<_> = fs::read_dir(&self.place.work)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.path())
            // It reads some kinds of files in another way.
            .filter(|path| !is_claude || path.to_str().unwrap().contains("by_agent"))
            .collect();
        files.sort();
        files.push(self.place.at(format!("by_agent_{}", self.steps.len())));
        let path = files.swap_remove(self.random.below(files.len()));
        let mode = if self.random.below(2) == 0 { "a" } else { "w" };
        let text = format!("edit {}\n", self.steps.len());
        let before = self.steps.last().map_or_else(|| copy(&self.place), |last| last.after.clone());
        let known = self.snapshots(true);
        self.session.as_mut().unwrap().edit(&path, mode, &text);
        let after = copy(&self.place);
        let (id, edits) = self.run_step(":", &known).unwrap();
        assert_eq!(edits.len(), 1, "{}", path.display());
        let edit = DayCommand { kind: "edit", script: path.display().to_string(), options: &[] };
        let at = jiff::Timestamp::now().to_string();
        let changed = changed(&before, &after);
        self.steps.push(Step {
            command: edit,
            id: edits.into_iter().next(),
            before,
            after: after.clone(),
            after_at: at,
            changed,
            counts: false,
        });
        let nothing = DayCommand { kind: "nothing", script: ":".to_owned(), options: &[] };
        self.push(nothing, Some(id), after);
    }
}
