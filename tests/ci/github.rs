//! A job of GitHub Actions, run as the runner does: each step's script in a file, the files by which steps set variables,
//! and the commands in what they print. What a standard action would do is noted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, python_with_modules};

/// Prints a YAML file as JSON.
const TO_JSON: &str = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";

/// The most that a summary may have.
const SUMMARY: usize = 1 << 20;

/// Values by their names.
pub type Values = BTreeMap<String, String>;

/// A job, between its steps.
pub struct Job<'p> {
    place: &'p Place,
    pub temporary: PathBuf,
    variables: Values,
    path: Vec<String>,
    pub summary: String,
    /// The standard actions that were used, with their inputs.
    pub used: Vec<(String, Values)>,
    /// What was printed.
    pub log: String,
    /// The commands to the runner that were printed.
    pub commands: Vec<String>,
    steps: usize,
}

/// What a step has come to.
#[derive(Debug)]
pub struct Step {
    pub status: i32,
    pub outputs: Values,
}

/// A YAML file; none if Python can't read it.
pub fn yaml(place: &Place, file: &Path) -> Option<Value> {
    if !place.can_run(&[&python_with_modules(), "-c", "import yaml"]) {
        println!("skipped: Python has no yaml");
        return None;
    }
    let output = place.program(python_with_modules()).args(["-c", TO_JSON]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

impl Job<'_> {
    pub fn new(place: &Place) -> Job<'_> {
        let temporary = place.base().join("temp");
        fs::create_dir_all(temporary.join("_runner_file_commands")).unwrap();
        let variables = [
            ("CI", "true"),
            ("GITHUB_ACTIONS", "true"),
            ("RUNNER_TEMP", temporary.to_str().unwrap()),
            ("GITHUB_WORKSPACE", place.work.to_str().unwrap()),
            ("GITHUB_SERVER_URL", &format!("file://{}", place.base().join("server").display())),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let path = vec![std::env::var("PATH").unwrap()];
        let (summary, log) = Default::default();
        let (used, commands) = Default::default();
        Job { place, temporary, variables, path, summary, used, log, commands, steps: 0 }
    }

    /// A step with `run`, in a shell as `shell` or `defaults.run.shell` name it.
    pub fn run(&mut self, shell: &str, script: &str, variables: &Values) -> Step {
        let shell = if shell == "bash" { "bash --noprofile --norc -e -o pipefail {0}" } else { shell };
        self.steps += 1;
        let name = |what: &str| self.temporary.join(format!("{what}{}", self.steps));
        let file = name("5c9ce1a8-");
        fs::write(&file, script).unwrap();
        let mut words = shell.split(' ').map(|word| word.replace("{0}", file.to_str().unwrap()));
        let program = words.next().unwrap();
        let mut directories = self.path.iter().rev().flat_map(|path| path.split(':'));
        let found = directories.find_map(|directory| {
            let path = Path::new(directory).join(&program);
            path.is_file().then_some(path)
        });
        let mut command = Command::new(found.unwrap_or_else(|| panic!("{program} is not in PATH")));
        self.place.isolate(&mut command);
        command
            .args(words)
            .envs(&self.variables)
            .envs(variables)
            .env("PATH", self.path.iter().rev().map(String::as_str).collect::<Vec<_>>().join(":"));
        let files = ["OUTPUT", "ENV", "PATH", "STEP_SUMMARY"].map(|what| {
            let file = name(&format!("_runner_file_commands/{what}"));
            fs::write(&file, "").unwrap();
            command.env(format!("GITHUB_{what}"), &file);
            file
        });
        let output = command.output().unwrap();
        let [outputs, environment, path, summary] = files.map(|file| fs::read_to_string(file).unwrap());
        self.variables.extend(assignments(&environment));
        self.path.extend(path.lines().map(str::to_owned));
        assert!(summary.len() < SUMMARY, "{} bytes", summary.len());
        self.summary += &summary;
        // The runner reads both, each by itself.
        for stream in [&output.stdout, &output.stderr] {
            let printed = String::from_utf8_lossy(stream);
            self.commands.extend(commands(&printed));
            self.log += &printed;
        }
        Step { status: output.status.code().unwrap(), outputs: assignments(&outputs) }
    }

    /// A step that uses the composite action in a directory of this repository.
    pub fn uses(&mut self, directory: &str, with: &[(&str, &str)]) -> Option<Step> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join("action.yml");
        let action = yaml(self.place, &file)?;
        assert_eq!(action["runs"]["using"], "composite");
        let mut context: Values = [("github.action_repository".to_owned(), "owner/name".to_owned())].into();
        for (name, input) in action["inputs"].as_object().unwrap() {
            let given = with.iter().find(|(given, _)| given == name).map(|(_, value)| *value);
            let value = given.or(input["default"].as_str()).unwrap();
            context.insert(format!("inputs.{name}"), value.to_owned());
        }
        assert!(with.iter().all(|(name, _)| context.contains_key(&format!("inputs.{name}"))));
        let mut status = 0;
        for step in action["runs"]["steps"].as_array().unwrap() {
            if !holds(step["if"].as_str().unwrap_or("success()"), status == 0, &context) {
                continue;
            }
            let values = |key: &str| -> Values {
                let values = step[key].as_object().into_iter().flatten();
                values.map(|(name, value)| (name.clone(), text(value.as_str().unwrap(), &context))).collect()
            };
            if let Some(standard) = step["uses"].as_str() {
                self.used.push((standard.to_owned(), values("with")));
                continue;
            }
            let script = step["run"].as_str().unwrap();
            assert!(!script.contains("${{"), "an input would be a part of the script");
            let done = self.run(step["shell"].as_str().unwrap(), script, &values("env"));
            status = if status == 0 { done.status } else { status };
            if let Some(id) = step["id"].as_str() {
                let outputs = done.outputs.into_iter();
                context.extend(outputs.map(|(name, value)| (format!("steps.{id}.outputs.{name}"), value)));
            }
        }
        let outputs = action["outputs"].as_object().into_iter().flatten();
        let outputs =
            outputs.map(|(name, output)| (name.clone(), text(output["value"].as_str().unwrap(), &context)));
        Some(Step { status, outputs: outputs.collect() })
    }
}

/// What an environment file says: `NAME=VALUE`, or `NAME<<END` and the lines up to that word.
fn assignments(text: &str) -> Values {
    let mut lines = text.lines();
    let mut values = Values::new();
    while let Some(line) = lines.next() {
        let (name, value) = match (line.find('='), line.find("<<")) {
            (Some(at), end) if end.is_none_or(|end| at < end) => (&line[..at], line[at + 1..].to_owned()),
            (_, Some(at)) => {
                let inside = lines.by_ref().take_while(|inside| *inside != &line[at + 2..]);
                (&line[..at], inside.collect::<Vec<_>>().join("\n"))
            }
            _ => panic!("{line}"),
        };
        values.insert(name.to_owned(), value);
    }
    values
}

/// The commands to the runner in what a step has printed.
fn commands(printed: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut stopped: Option<String> = None;
    for line in printed.lines() {
        if let Some(token) = &stopped {
            if line.trim() == format!("::{token}::") {
                stopped = None;
            }
        } else if let Some(token) = line.trim_start().strip_prefix("::stop-commands::") {
            stopped = Some(token.trim().to_owned());
        } else if line.trim_start().starts_with("::") || line.contains("##[") {
            found.push(line.to_owned());
        }
    }
    assert_eq!(stopped, None, "later steps have no commands");
    found
}

/// A text with the values of its expressions.
fn text(template: &str, context: &Values) -> String {
    let mut parts = template.split("${{");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap();
        text += context.get(name.trim()).map_or("", String::as_str);
        text += rest;
    }
    text
}

/// Whether a condition holds; `success()` is a part of one that names no status.
fn holds(condition: &str, is_success: bool, context: &Values) -> bool {
    let has_status = condition.contains("always()");
    (has_status || is_success)
        && condition.split(" && ").all(|part| {
            let value = |name: &str| match name.strip_prefix('\'') {
                Some(literal) => literal.strip_suffix('\'').unwrap().to_owned(),
                None => context.get(name).cloned().unwrap_or_default(),
            };
            match (part, part.split_once(" == "), part.split_once(" != ")) {
                ("always()" | "success()", ..) => true,
                (_, Some((one, other)), _) => value(one) == value(other),
                (_, _, Some((one, other))) => value(one) != value(other),
                _ => panic!("{part}"),
            }
        })
}
