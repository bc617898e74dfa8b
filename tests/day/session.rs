//! A day in one session: an agent runs the commands, as steps, and edits files itself between them.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use agent_snapshot::snapshot::{Snapshot, SnapshotKind};
use serde_json::{Value, json};

use super::commands::DayCommand;
use super::copies::{changed, copy};
use super::{Day, Step};
use crate::support::{BINARY, wait};

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

/// The agent of a session.
pub struct Agent {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Agent {
    fn tell(&mut self, order: &Value) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the session has ended at {order}");
    }
}

impl Day {
    /// Starts the session in which the commands are run from now on.
    pub fn start_session(&mut self) {
        let mut session = self.program(BINARY);
        session.args(["session", "--name", "day", "--quiet", "--", "python3", "-c", AGENT]);
        let mut process = session.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        self.agent = Some(Agent { process, orders, answers });
    }

    pub fn end_session(&mut self) {
        let mut agent = self.agent.take().unwrap();
        drop(agent.orders.take());
        assert_eq!(wait(&mut agent.process).code(), Some(0));
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
        self.agent.as_mut().unwrap().tell(&json!({"run": command.script}));
        let new: Vec<_> = self.snapshots(true).difference(&known).cloned().collect();
        assert_eq!(new.len(), 1, "{}: {new:?}", command.script);
        self.push(command, new.into_iter().next(), before);
    }

    /// Has the agent write to a file itself, which is a step that ends with the next command.
    pub fn record_edit(&mut self) {
        let mut files: Vec<_> = fs::read_dir(&self.place.work)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.path())
            .collect();
        files.sort();
        files.push(self.place.at(format!("by_agent_{}", self.steps.len())));
        let path = files.swap_remove(self.random.below(files.len()));
        let mode = if self.random.below(2) == 0 { "a" } else { "w" };
        let text = format!("edit {}\n", self.steps.len());
        let before = self.steps.last().map_or_else(|| copy(&self.place), |last| last.after.clone());
        let known = self.snapshots(true);
        let agent = self.agent.as_mut().unwrap();
        agent.tell(&json!({"path": path.to_str().unwrap(), "mode": mode, "text": text}));
        let after = copy(&self.place);
        self.agent.as_mut().unwrap().tell(&json!({"run": ":"}));
        let new: Vec<_> = self.snapshots(true).difference(&known).cloned().collect();
        let is_edit = |id: &String| {
            let snapshot = Snapshot::open(&self.library.join("snapshots").join(id)).unwrap();
            snapshot.header().kind == SnapshotKind::Edit
        };
        let (edits, commands): (Vec<_>, Vec<_>) = new.into_iter().partition(is_edit);
        assert_eq!((edits.len(), commands.len()), (1, 1), "{}", path.display());
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
        self.push(nothing, commands.into_iter().next(), after);
    }
}
