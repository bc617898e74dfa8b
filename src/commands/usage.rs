//! A wrong command line: says what is wrong, and what may have been meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue};

use super::exit::Exit;
use super::out::Console;
use super::paths::shell_word;
use super::record;
use crate::cli::Cli;

/// Reports why the arguments of this process were refused, or prints the help or version that they ask for.
pub fn report(error: &clap::Error, console: &mut Console) -> Exit {
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::Success;
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((message, exit)) = unknown_word(&words, record::is_program) {
        console.say(format_args!("{message}"));
        return exit;
    }
    let _ = error.print();
    // A recording exits with the command's status, which 2 could be.
    let is_recording = words.first().is_none_or(|first| first == "run" || !is_verb(first));
    if is_recording { Exit::Failure } else { Exit::Usage }
}

/// What may have been meant by words that begin with neither a verb nor an option, and the exit status.
fn unknown_word(words: &[OsString], is_program: impl Fn(&OsString) -> bool) -> Option<(String, Exit)> {
    let first = words.first()?;
    if first.as_bytes().starts_with(b"-") || is_verb(first) {
        return None;
    }
    let word = shell_word(first.as_bytes());
    if is_program(first) {
        let more = if words.len() > 1 { " ..." } else { "" };
        return Some((
            format!(
                "{word} is a program, not a verb; to record it: agent-snapshot run {word}{more}, or \
                 agent-snapshot --snapshot-dir DIR {word}{more}"
            ),
            Exit::Failure,
        ));
    }
    let message = match similar(first) {
        Some(similar) => format!("there is no verb {word}; did you mean {similar}?"),
        None => format!("there is no verb or program {word}; see agent-snapshot --help"),
    };
    Some((message, Exit::Usage))
}

/// Whether a word is the name of a verb.
fn is_verb(word: &OsStr) -> bool {
    Cli::command().get_subcommands().any(|verb| word == verb.get_name())
}

/// The verb, or the option, that is spelled most like `word`, if one is.
fn similar(word: &OsStr) -> Option<String> {
    if word == "help" || word == "version" {
        return Some(format!("--{}", word.display()));
    }
    // Where clap expects a verb alone, it suggests one; the best of several is the last.
    let verbs = clap::Command::new("agent-snapshot").subcommands(Cli::command().get_subcommands().cloned());
    let error = verbs.try_get_matches_from([OsStr::new("agent-snapshot"), word]).err()?;
    match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::Strings(verbs) => verbs.last().cloned(),
        ContextValue::String(verb) => Some(verb.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(line: &[&str]) -> Option<(String, Exit)> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        unknown_word(&words, |word| word == "make")
    }

    #[test]
    fn a_misspelt_verb_is_suggested() {
        for (word, verb) in [
            ("undoo", "undo"),
            ("shwo", "show"),
            ("veriyf", "verify"),
            ("complations", "completions"),
            ("help", "--help"),
            ("version", "--version"),
        ] {
            let message = format!("there is no verb {word}; did you mean {verb}?");
            assert_eq!(meant(&[word, "-n", "3"]), Some((message, Exit::Usage)));
        }
        let (message, exit) = meant(&["zzz x"]).unwrap();
        assert_eq!(
            (message.as_str(), exit),
            ("there is no verb or program 'zzz x'; see agent-snapshot --help", Exit::Usage)
        );
    }

    #[test]
    fn a_program_is_to_be_recorded() {
        // `man` is spelled much like it.
        assert_eq!(
            meant(&["make"]).unwrap(),
            (
                "make is a program, not a verb; to record it: agent-snapshot run make, or \
                 agent-snapshot --snapshot-dir DIR make"
                    .to_owned(),
                Exit::Failure
            )
        );
        assert!(meant(&["make", "-k"]).unwrap().0.ends_with("--snapshot-dir DIR make ..."));
    }

    #[test]
    fn verbs_and_options_are_left_to_clap() {
        assert_eq!(meant(&["undo", "--dry-rnu"]), None);
        assert_eq!(meant(&["--snapshot-dri", "out", "make"]), None);
        assert_eq!(meant(&[]), None);
    }
}
