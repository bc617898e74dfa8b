//! The verbs, one file for each.
//!
//! The only place that prints. A verb is a function from its options and a [`Console`] to a
//! [`VerbResult`]. `shell.rs` is no verb but another program. Neighbours: `cli` has the options, `exit.rs` the exit statuses; `restore`, `observe` and
//! `snapshot` do the work.

pub mod asked;
pub mod attest;
pub mod branch;
pub mod cat;
pub mod check;
pub mod completions;
mod config;
pub mod delete;
pub mod diff;
pub mod doctor;
pub mod exit;
pub mod export;
pub mod fsck;
pub mod history;
pub mod hook;
pub mod import;
pub mod init;
mod json;
mod later;
mod level;
pub mod log;
pub mod man;
pub mod mcp;
mod new_file;
mod open;
pub mod out;
mod past;
pub mod paths;
pub mod policy;
mod progress;
mod provide;
pub mod prune;
pub mod recall;
pub mod record;
pub mod recover;
pub mod redo;
pub mod report;
pub mod restore;
pub mod run;
pub mod session;
pub mod shell;
pub mod show;
pub mod stats;
#[cfg(test)]
mod testing;
pub mod ui;
pub mod undo;
mod uninstall;
mod usage;
pub mod verify;

use crate::cli::{Cli, Verb};
use exit::{Exit, VerbResult};
use out::Console;
use record::Destination;

/// Runs what the command line asks for.
pub fn run(parsed: Result<Cli, clap::Error>) -> Exit {
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error, &mut Console::standard()),
    };
    match cli.verb {
        None => {
            let directory = cli.record.snapshot_dir.unwrap_or_default();
            record::run(cli.record.options, Destination::Directory(directory), None)
        }
        Some(verb) => run_verb(verb, &mut Console::standard()),
    }
}

/// Runs a verb and reports its error.
fn run_verb(verb: Verb, console: &mut Console) -> Exit {
    let result = dispatch(verb, console).and_then(|exit| {
        console.flush()?;
        Ok(exit)
    });
    result.unwrap_or_else(|error| {
        let exit = Exit::of_error(&error);
        if exit != Exit::ClosedPipe {
            console.say(format_args!("{}", sentence(&error)));
        }
        exit
    })
}

/// The error and its causes, without those that its message ends with already.
fn sentence(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |text, cause| if text.ends_with(&cause) { text } else { format!("{text}: {cause}") })
}

fn dispatch(verb: Verb, console: &mut Console) -> VerbResult {
    verb.access().map_or(Ok(()), open::check_session)?;
    match verb {
        Verb::Run(args) => Ok(run::run(args)),
        Verb::Recall(args) => recall::run(&args, console),
        Verb::Session(args) => Ok(session::run(args)),
        Verb::Log(args) => log::run(&args, console),
        Verb::Ui(args) => ui::run(&args, console),
        Verb::Undo(args) => undo::run(&args, console),
        Verb::Redo(args) => redo::run(&args, console),
        Verb::History(args) => history::run(&args, console),
        Verb::Mcp(args) => mcp::run(&args),
        Verb::Show(args) => show::run(&args, console),
        Verb::Cat(args) => cat::run(&args, console),
        Verb::Diff(args) => diff::run(&args, console),
        Verb::Completions { shell } => completions::run(shell, console),
        Verb::Man { dir } => man::run(&dir),
        Verb::Report(args) => report::run(&args, console),
        Verb::Attest(args) => attest::run(&args, console),
        Verb::Verify(args) => verify::run(&args, console),
        Verb::Check(args) => check::run(&args, console),
        Verb::Policy(verb) => policy::run(&verb, console),
        Verb::Export(args) => export::run(&args, console),
        Verb::Import(args) => import::run(&args, console),
        Verb::Recover(args) => recover::run(&args, console),
        Verb::Delete(args) => delete::run(&args, console),
        Verb::Prune(args) => prune::run(&args, console),
        Verb::Stats(args) => stats::run(&args, console),
        Verb::Fsck(args) => fsck::run(&args, console),
        Verb::Init(args) => init::run(&args, console),
        Verb::Uninstall(args) => uninstall::run(&args, console),
        Verb::Hook(args) => hook::run(&args, console),
        Verb::Doctor(args) => doctor::run(&args, console),
        Verb::Branch(args) => branch::run(&args, console),
        Verb::Restore(args) => restore::run(&args, console),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checklist of CONTRIBUTING.md, as far as the compiler does not enforce it.
    #[test]
    fn every_verb_is_where_the_checklist_says() {
        use clap::{CommandFactory as _, Parser as _};
        let reference = include_str!("../docs/reference.md");
        let completions = testing::run(&["completions", "bash"]);
        let pages = tempfile::tempdir().unwrap();
        let man = pages.path().join("man1");
        assert_eq!(testing::run(&["man".as_ref(), man.as_os_str()]).status, 0);
        let page = |name: &str| std::fs::read_to_string(man.join(name)).unwrap();
        let overview = page("agent-snapshot.1");
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let name = verb.get_name();
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            let help = Cli::try_parse_from(["agent-snapshot", name, "--help"]).unwrap_err().to_string();
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert!(!about.is_empty() && words(&help).starts_with(&words(&about)), "{name}: {help}");
            let file = format!("{}/src/commands/{name}.rs", env!("CARGO_MANIFEST_DIR"));
            assert!(std::path::Path::new(&file).is_file(), "{name}: no file of its own");
            assert!(
                completions.text().contains(&format!("agent__snapshot__subcmd__{name}")),
                "{name}: completions"
            );
            assert!(overview.contains(&format!("agent\\-snapshot\\-{name}(1)")), "{name}: overview");
            assert!(page(&format!("agent-snapshot-{name}.1")).contains("SYNOPSIS"), "{name}: man page");
            assert!(reference.contains(&format!("agent-snapshot {name} ")), "{name}: reference");
        }
    }

    #[test]
    fn the_reference_names_the_verbs_without_json() {
        use clap::CommandFactory as _;
        fn without_json(verb: &clap::Command, name: &str) -> Vec<String> {
            let verbs =
                verb.get_subcommands().map(|verb| without_json(verb, &format!("{name} {}", verb.get_name())));
            let within: Vec<String> = verbs.flatten().collect();
            let has_json = verb.get_arguments().any(|argument| argument.get_id() == "json");
            if has_json || verb.has_subcommands() { within } else { vec![name.trim_start().to_owned()] }
        }
        let mut command = Cli::command();
        command.build();
        let names: Vec<String> = without_json(&command, "").iter().map(|name| format!("`{name}`")).collect();
        let (last, others) = names.split_last().unwrap();
        let sentence = format!("Every verb but {} and {last} takes `--json`", others.join(", "));
        let reference = include_str!("../docs/reference.md").replace('\n', " ");
        assert!(reference.contains(&sentence), "{sentence}");
    }

    #[test]
    fn a_cause_is_told_once() {
        let ran = testing::run(&["cat", "/nowhere/at/all", "x"]);
        assert_eq!(ran.err, "agent-snapshot: open /nowhere/at/all: No such file or directory (os error 2)\n");
        let error = anyhow::anyhow!("why").context("what");
        assert_eq!(sentence(&error), "what: why");
    }
}
