//! `agent-snapshot-bash`: behaves as bash, and records its command into the library.
//!
//! A program of its own, not a verb: `src/bin/agent-snapshot-bash.rs` calls it. `invocation.rs` tells from the
//! arguments whether there is a command, `words.rs` which program a command line starts, `title.rs` what a recording is
//! called, `told.rs` what was said before in the session. Neighbours: `record.rs` records, `config.rs` has the programs that run unrecorded.

mod invocation;
mod title;
mod told;
mod words;

use std::ffi::{CString, OsString};
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use clap::Parser;
use rustix::fs::Access;

use self::invocation::Invocation;
pub use self::title::{inner_line, line_of};
pub use self::told::own_places;
use super::asked;
use super::config::Config;
use super::exit::Exit;
use super::record::{self, Messages, ShellNotes, not_executed};
use crate::agents::PROGRAM;
use crate::cli::{Cli, RecordingOptions};
use crate::library::notes::NoteEvent;
use crate::observe::policy::ignore::Environment;
use crate::observe::{identity_of, own_programs};
use crate::trace::question::is_recorded;
use crate::trace::sys;

/// The options of a recording, with their defaults.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct ShellOptions {
    #[command(flatten)]
    recording: RecordingOptions,
}

/// Runs bash with the arguments of this process, and records it if it has a command.
pub fn run() -> Exit {
    let mut arguments = std::env::args_os();
    if std::env::args_os().next().is_some_and(|name| name == PROGRAM) {
        return super::run(Cli::of_process());
    }
    // Before anything is looked up: an outer recording has it all, and its sandbox may forbid what we need.
    let is_inside = is_recorded();
    let is_login = arguments.next().is_some_and(|name| name.as_bytes().starts_with(b"-"));
    let arguments: Vec<OsString> = arguments.collect();
    let messages = Messages::of_shell(notes_of(&arguments));
    let Some(bash) = find_bash() else {
        messages.say("execute bash: there is no /bin/bash, and no other one in PATH");
        return Exit::NotFound;
    };
    // As bash is called, so that `$0` and its messages name it.
    let name = OsString::from(if is_login { "-bash" } else { "bash" });
    let command: Vec<OsString> = std::iter::once(name).chain(arguments.iter().cloned()).collect();
    if is_inside || !is_to_be_recorded(&arguments, &messages) {
        return execute(bash, command, &messages);
    }
    let options = ["--survivors", "background", "--report", "none", "--"].map(OsString::from);
    match ShellOptions::try_parse_from(options.iter().chain(&command)) {
        Ok(options) => record::run_as_shell(options.recording, bash, &messages),
        // A variable that stands for an option.
        Err(error) => {
            let error = error.to_string();
            let why = error.lines().next().unwrap_or_default();
            let why = why.strip_prefix("error: ").unwrap_or(why);
            messages.warn_unrecorded(&format!("{why}; the command runs unrecorded"));
            execute(bash, command, &messages)
        }
    }
}

/// What is noted of a command line; nothing of a script.
fn notes_of(arguments: &[OsString]) -> ShellNotes {
    let line = match invocation::read(arguments, || false) {
        Invocation::CommandLine(line) => Some(line.to_vec()),
        Invocation::Script | Invocation::Interactive | Invocation::Nothing => None,
    };
    let note = move |came: Result<&str, &str>| {
        let agent = asked::agent_of_environment();
        let event = match came {
            Ok(id) => NoteEvent::Recorded { id: id.to_owned(), agent },
            Err(why) => NoteEvent::Unrecorded { why: why.to_owned(), agent },
        };
        line.iter().for_each(|line| asked::note(line, event.clone()));
    };
    ShellNotes { is_first: Box::new(|| told::is_first("unrecorded")), note: Box::new(note) }
}

/// Whether there is a command to record, which the user has not exempted.
fn is_to_be_recorded(arguments: &[OsString], messages: &Messages) -> bool {
    if is_switched_off() {
        return false;
    }
    let at_terminal = || io::stdin().is_terminal() && io::stderr().is_terminal();
    let line = match invocation::read(arguments, at_terminal) {
        Invocation::CommandLine(line) => Some(line),
        Invocation::Script => None,
        Invocation::Interactive | Invocation::Nothing => return false,
    };
    let config = Config::load(&Environment::from_process(b"/")).unwrap_or_else(|why| {
        if told::is_first("configuration") {
            messages.say(&why);
        }
        Config::default()
    });
    !line.is_some_and(|line| leaves_out(&config, line))
}

/// Whether a command line starts a program that the user has run unrecorded.
pub fn leaves_out(config: &Config, line: &[u8]) -> bool {
    words::first_program(line).is_some_and(|program| config.shell.leaves_out(&program))
}

/// Whether the user has switched recordings off.
pub fn is_switched_off() -> bool {
    std::env::var_os("AGENT_SNAPSHOT").is_some_and(|value| value == "off")
}

/// Finds the real bash: a link in PATH may lead to this program.
fn find_bash() -> Option<PathBuf> {
    let ours = own_programs();
    let is_bash = |path: &PathBuf| {
        path.is_file()
            && rustix::fs::access(path, Access::EXEC_OK).is_ok()
            && identity_of(path).is_some_and(|program| !ours.contains(&program))
            && !is_copy_of_ours(path)
    };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search).filter(|directory| directory.is_absolute());
    let candidates = std::iter::once(PathBuf::from("/bin/bash")).chain(found.map(|path| path.join("bash")));
    candidates.into_iter().find(is_bash)
}

/// Whether a link leads to another installation of this program, which would search for bash as well.
fn is_copy_of_ours(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path.file_name().is_some_and(|name| name == "agent-snapshot-bash"))
}

/// Becomes bash; returns only if that fails.
fn execute(bash: PathBuf, command: Vec<OsString>, messages: &Messages) -> Exit {
    // What comes from an argument vector or a path holds no NUL.
    let c_string = |text: OsString| CString::new(text.into_vec()).unwrap_or_default();
    let argv: Vec<CString> = command.into_iter().map(c_string).collect();
    let argv: Vec<_> = argv.iter().map(CString::as_c_str).collect();
    let shown = bash.display().to_string();
    let error = sys::execute(&c_string(bash.into_os_string()), &argv);
    not_executed(&shown, &error, messages)
}
