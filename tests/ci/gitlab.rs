//! A job of GitLab CI, run as its runner does: `before_script` and `script` become one text, which a shell evaluates.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::github::yaml;
use crate::support::{Place, Run};

const TEMPLATE: &str = "packaging/gitlab/agent-snapshot.yml";

/// How the runner has a shell evaluate the text of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    Eval,
    /// With FF_USE_NEW_BASH_EVAL_STRATEGY and FF_ENABLE_BASH_EXIT_CODE_CHECK.
    Subshell,
}

/// A job that extends the template, or does not.
pub struct Job<'p> {
    place: &'p Place,
    template: Value,
}

/// A word for a shell, as the runner quotes it.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\'', "\\'");
    format!("$'{}'", escaped.replace('\x1b', "\\x1b"))
}

impl Job<'_> {
    /// A job of the template; none if Python can't read it.
    pub fn new(place: &Place) -> Option<Job<'_>> {
        let file = yaml(place, &Path::new(env!("CARGO_MANIFEST_DIR")).join(TEMPLATE))?;
        Some(Job { place, template: file[".agent-snapshot"].clone() })
    }

    /// A job without the template.
    pub fn alone(place: &Place) -> Job<'_> {
        Job { place, template: json!({"variables": {}, "before_script": []}) }
    }

    /// Runs a script by a shell, with variables of the job.
    pub fn run(
        &self,
        shell: &[&str],
        strategy: Strategy,
        script: &[&str],
        variables: &[(&str, &str)],
    ) -> Run {
        let project = self.place.work.to_str().unwrap();
        let mut text = format!("export CI_PROJECT_DIR={}\ncd {}\n", quoted(project), quoted(project));
        for (name, value) in self.template["variables"].as_object().unwrap() {
            let given = variables.iter().find(|(given, _)| given == name).map(|(_, value)| *value);
            let value = given.or(value.as_str()).unwrap();
            text += &format!("export {name}={}\n", quoted(value));
        }
        let before =
            self.template["before_script"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
        for command in before.chain(script.iter().copied()).map(str::trim) {
            let first = command.lines().next().unwrap();
            text += &format!("echo {}\n{command}\n", quoted(&format!("\x1b[32;1m$ {first}\x1b[0;m")));
            if strategy == Strategy::Subshell {
                text += "_runner_exit_code=$?; if [ $_runner_exit_code -ne 0 ]; then exit $_runner_exit_code; fi\n";
            }
        }
        let evaluated = match strategy {
            Strategy::Eval => format!(": | eval {}", quoted(&text)),
            Strategy::Subshell => format!(": | (eval {})", quoted(&text)),
        };
        let text = format!("set -eo pipefail\nset +o noclobber\n{evaluated}\nexit 0\n");
        let mut command = self.place.program(shell[0]);
        command.args(&shell[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        shell.wait_with_output().unwrap().into()
    }

    /// The Code Quality report that GitLab would take.
    pub fn code_quality(&self) -> Value {
        let file = self.template["artifacts"]["reports"]["codequality"].as_str().unwrap();
        serde_json::from_str(&fs::read_to_string(self.place.at(file)).unwrap()).unwrap()
    }
}
