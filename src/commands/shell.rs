//! `agent-snapshot-bash`: behaves as bash, and records its command into the library. Called `bwrap`, it behaves as that,
//! and records it where it starts a shell of ours: an agent may start its sandbox without its shell.
//!
//! A program of its own, not a verb: `src/bin/agent-snapshot-bash.rs` calls it, and `src/main.rs` if that program is called
//! by the name of a shell. `invocation.rs` tells from the arguments whether there is a command, `words.rs` which program a
//! command line starts, `title.rs` what a recording is called, `told.rs` what was said before in the session. Neighbours:
//! `record.rs` records, `config.rs` has the programs that run unrecorded.

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
use self::title::given_line;
pub use self::title::{inner_line, line_of, step_line, wanted_line};
pub use self::told::own_places;
use super::asked;
use super::check::Rules;
use super::config::{self, Config};
use super::exit::Exit;
use super::record::{self, Messages, ShellNotes, not_executed, workspace_here};
use crate::agents::{PROGRAM, SHELL};
use crate::cli::RecordingOptions;
use crate::fs::file_name;
use crate::library::notes::NoteEvent;
use crate::observe::policy::ignore::Environment;
use crate::observe::{identity_of, own_programs};
use crate::trace::question::is_recorded;
use crate::trace::sys;

/// Bubblewrap, as which this program can be called.
const SANDBOX: &str = "bwrap";

/// What a shell is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    /// A command line, or a script.
    Command,
    /// What a person, or a program in place of one, types.
    Interactive,
}

/// The names of shells.
const SHELLS: [&[u8]; 8] = [b"bash", b"sh", b"zsh", b"dash", b"fish", b"ksh", b"ash", SHELL.as_bytes()];

/// What the program at a path is to do that gets these arguments, its name first: a shell, or one that is given the command
/// line of one; none of another.
pub fn shell_of(exe: &[u8], argv: &[Vec<u8>], at_terminal: bool) -> Option<Shell> {
    let name = file_name(exe);
    let arguments: Vec<OsString> = argv.iter().skip(1).map(|word| OsString::from_vec(word.clone())).collect();
    if !SHELLS.contains(&name) {
        // A sandbox, say.
        return given_line(argv.iter().map(Vec::as_slice)).map(|_| Shell::Command);
    }
    match invocation::read(&arguments, || at_terminal) {
        Invocation::CommandLine(_) | Invocation::Script => Some(Shell::Command),
        Invocation::Interactive => Some(Shell::Interactive),
        Invocation::Nothing => None,
    }
}

/// The options of a recording, with their defaults.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct ShellOptions {
    #[command(flatten)]
    recording: RecordingOptions,
}

/// The defaults of the options of a recording, with a command.
pub fn default_options(command: Vec<OsString>) -> RecordingOptions {
    let words = ["--survivors".into(), "background".into(), "--".into()];
    let parsed = ShellOptions::parse_from(words.into_iter().chain(command));
    parsed.recording
}

/// The name by which this process was called and its arguments, if that is the name of a shell or of bubblewrap.
/// `packaging/wheel/scripts` passes both after [`SHELL`].
pub fn called_as() -> Option<Vec<OsString>> {
    let is_name = |word: &OsString| {
        let name = file_name(word.as_bytes());
        let name = name.strip_prefix(b"-").unwrap_or(name);
        name == SANDBOX.as_bytes() || SHELLS.contains(&name)
    };
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if !words.first().is_some_and(is_name) {
        words.get(1).filter(|word| *word == SHELL)?;
        words.drain(..2);
    }
    Some(words)
}

/// Runs bash, called by the first of these words with the others as its arguments, and records it if it has a command.
pub fn run(words: Vec<OsString>) -> Exit {
    let mut arguments = words.into_iter();
    // Before anything is looked up: an outer recording has it all, and its sandbox may forbid what we need.
    let is_inside = is_recorded();
    let called = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    if Path::new(&called).file_name().is_some_and(|name| name == SANDBOX) {
        return run_sandbox(is_inside, arguments);
    }
    let line = match invocation::read(&arguments, || false) {
        Invocation::CommandLine(line) => Some(line.to_vec()),
        // Nothing is noted of a script.
        Invocation::Script | Invocation::Interactive | Invocation::Nothing => None,
    };
    let messages = Messages::of_shell(notes_of(line.clone()));
    let Some(bash) = find_program("bash", Some(Path::new("/bin/bash"))) else {
        messages.say("execute bash: there is no /bin/bash, and no other one in PATH");
        return Exit::NotFound;
    };
    // As bash is called, so that `$0` and its messages name it.
    let name = OsString::from(if called.as_bytes().starts_with(b"-") { "-bash" } else { "bash" });
    let is_wanted = !is_inside && is_to_be_recorded(&arguments, &messages);
    let session = line.filter(|_| is_wanted).and_then(|line| asked::session_of(&line));
    start(bash, name, arguments, is_wanted, session, &messages)
}

/// Runs bubblewrap with these arguments, and records it if it starts a shell of ours with a command.
fn run_sandbox(is_inside: bool, arguments: Vec<OsString>) -> Exit {
    let line = title::sandboxed_line(&arguments);
    let is_wanted = !is_inside && line.is_some() && !is_switched_off();
    let messages = Messages::of_shell(notes_of(line));
    let Some(program) = find_program(SANDBOX, None) else {
        messages.say("execute bwrap: there is no other one in PATH");
        return Exit::NotFound;
    };
    start(program, OsString::from(SANDBOX), arguments, is_wanted, None, &messages)
}

/// Starts a program under this name, and records it if that `is_wanted`, in this session, if the environment tells no
/// other; else this process becomes it.
fn start(
    program: PathBuf,
    name: OsString,
    arguments: Vec<OsString>,
    is_wanted: bool,
    session: Option<String>,
    messages: &Messages,
) -> Exit {
    let command: Vec<OsString> = std::iter::once(name).chain(arguments).collect();
    if !is_wanted {
        return execute(program, command, messages);
    }
    let options = ["--survivors", "background", "--report", "none", "--"].map(OsString::from);
    match ShellOptions::try_parse_from(options.iter().chain(&command)) {
        Ok(ShellOptions { mut recording }) => {
            recording.session = recording.session.or(session);
            record::run_as_shell(recording, program, messages)
        }
        // A variable that stands for an option.
        Err(error) => {
            let error = error.to_string();
            let why = error.lines().next().unwrap_or_default();
            let why = why.strip_prefix("error: ").unwrap_or(why);
            if enforces_rules() {
                messages.say(why);
                return Exit::Failure;
            }
            messages.warn_unrecorded(&format!("{why}; the command runs unrecorded"));
            execute(program, command, messages)
        }
    }
}

/// What is noted of a command line, if there is one.
fn notes_of(line: Option<Vec<u8>>) -> ShellNotes {
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
        // If a policy can't be read, the recording says so instead, and is not started.
        if config::policy().is_ok() && told::is_first("configuration") {
            messages.say(&why);
        }
        Config::default()
    });
    !line.is_some_and(|line| leaves_out(&config, line))
}

/// Whether a command line starts a program that the user has run unrecorded. Where rules are enforced, none is: what follows
/// the program in the line would escape them.
pub fn leaves_out(config: &Config, line: &[u8]) -> bool {
    let is_exempt = words::first_program(line).is_some_and(|program| config.shell.leaves_out(&program));
    is_exempt && !enforces_rules()
}

/// Whether the configuration has rules that are enforced here, or can't be read.
fn enforces_rules() -> bool {
    Rules::default().with_configured(&workspace_here()).map_or(true, |rules| rules.are_enforced())
}

/// Whether the user has switched recordings off.
pub fn is_switched_off() -> bool {
    std::env::var_os("AGENT_SNAPSHOT").is_some_and(|value| value == "off")
}

/// Finds the real program: a link in PATH may lead to this one.
fn find_program(name: &str, first: Option<&Path>) -> Option<PathBuf> {
    let ours = own_programs();
    let is_real = |path: &PathBuf| {
        path.is_file()
            && rustix::fs::access(path, Access::EXEC_OK).is_ok()
            && identity_of(path).is_some_and(|program| !ours.contains(&program))
            && !is_copy_of_ours(path)
    };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search).filter(|directory| directory.is_absolute());
    let mut candidates = first.map(Path::to_owned).into_iter().chain(found.map(|path| path.join(name)));
    candidates.find(is_real)
}

/// Whether a link leads to another installation of this program, which would search for the real one as well.
fn is_copy_of_ours(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| {
        path.file_name().is_some_and(|name| [PROGRAM, SHELL].iter().any(|ours| name == *ours))
    })
}

/// Becomes the program; returns only if that fails.
fn execute(program: PathBuf, command: Vec<OsString>, messages: &Messages) -> Exit {
    // What comes from an argument vector or a path holds no NUL.
    let c_string = |text: OsString| CString::new(text.into_vec()).unwrap_or_default();
    let argv: Vec<CString> = command.into_iter().map(c_string).collect();
    let argv: Vec<_> = argv.iter().map(CString::as_c_str).collect();
    let shown = program.display().to_string();
    let error = sys::execute(&c_string(program.into_os_string()), &argv);
    not_executed(&shown, &error, messages)
}
