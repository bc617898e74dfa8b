//! `run --recall`: an earlier run stands for a later one exactly if that would give the same.

mod asks;
mod limits;
mod looks;
mod proof;
mod refusals;
mod replay;
mod tools;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use super::support::{Place, Run};

/// The binary, ready to recall `sh -c script` with more options.
fn recalling(place: &Place, options: &[&str], script: &str) -> Command {
    let mut command = place.command();
    command
        .args(["run", "--recall", "--json", "--timeout", "120s"])
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

/// What a run with --recall came to: its result, without the line of the report, and whether it was recalled.
#[derive(Debug)]
struct Recalled {
    run: Run,
    /// The recording that was recalled, if one was.
    from: Option<String>,
}

fn finish(mut command: Command) -> Recalled {
    command.stdin(Stdio::null());
    finish_with_input(command)
}

fn finish_with_input(mut command: Command) -> Recalled {
    let run: Run = command.output().unwrap().into();
    let report = run.stderr.lines().rfind(|line| line.starts_with('{'));
    let report: serde_json::Value =
        report.map(|line| serde_json::from_str(line).unwrap()).unwrap_or_default();
    let from = report["recalled_from"].as_str().map(str::to_owned);
    let lines = run
        .stderr
        .lines()
        .filter(|line| !line.starts_with('{') && !line.starts_with("agent-snapshot: not recalled"));
    let stderr = lines.flat_map(|line| [line, "\n"]).collect();
    Recalled { run: Run { stderr, ..run }, from }
}

#[track_caller]
fn recall(place: &Place, script: &str) -> Recalled {
    recall_with(place, &[], script)
}

#[track_caller]
fn recall_with(place: &Place, options: &[&str], script: &str) -> Recalled {
    finish(recalling(place, options, script))
}

impl Recalled {
    /// Asserts that it was recalled, and printed this.
    #[track_caller]
    fn expect_hit(self, stdout: &str) -> Recalled {
        assert!(self.from.is_some(), "{self:#?}");
        assert_eq!(self.run.stdout, stdout, "{self:#?}");
        self
    }

    /// Asserts that the command ran, and printed this.
    #[track_caller]
    fn expect_miss(self, stdout: &str) -> Recalled {
        assert!(self.from.is_none(), "{self:#?}");
        assert_eq!(self.run.stdout, stdout, "{self:#?}");
        self
    }
}

/// Has a command start with another umask.
fn with_umask(command: &mut Command, mask: u32) {
    let mask = rustix::fs::Mode::from_raw_mode(mask);
    // SAFETY: umask(2) is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            rustix::process::umask(mask);
            Ok(())
        });
    }
}
