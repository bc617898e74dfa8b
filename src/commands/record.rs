//! Records a command: two processes of ours, and the checks before either starts.
//!
//! `front.rs` is the process that the user waits for, `tracing.rs` the one that traces,
//! `link.rs` what they say to each other, `report.rs` what is said at the end.

mod front;
mod link;
mod report;
mod tracing;

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IsTerminal};

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::cli::{self, Report, Unavailable};
use crate::observe::ignore::{Environment, Ignore};
use crate::observe::inherited::Inherited;
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::printable;
use crate::trace::attributes::ProcessAttributes;
use crate::trace::launch::Program;
use crate::trace::sys::{self, Fork, InheritedFd, Tid};

use front::{Ending, Front};
use link::{CommandEnd, Done, Link};

/// The exit status of every failure of ours.
const OURS: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const TIMED_OUT: i32 = 124;

/// Everything that is decided before the launch.
pub(crate) struct Setup {
    options: cli::Record,
    program: Program,
    start_cwd: Vec<u8>,
    ignore: Ignore,
    inherited: Inherited,
    report: Report,
}

/// Why nothing was started: a sentence and the exit status.
struct Refusal {
    status: i32,
    message: String,
}

impl Refusal {
    fn ours(message: impl Into<String>) -> Refusal {
        Refusal { status: OURS, message: message.into() }
    }
}

/// Records the command and returns the exit status; ends as the command where a signal ended it.
pub fn run(options: cli::Record) -> i32 {
    // Before any descriptor of ours is opened: one that is closed here stays closed in the command.
    fill_standard_streams();
    let attributes = ProcessAttributes::replace();
    let quiet = options.quiet;
    let unavailable = options.if_unavailable;
    let strict = options.strict;
    let (setup, directory) = match set_up(options, attributes) {
        Ok(decided) => decided,
        Err(refusal) => {
            say(&refusal.message);
            return refusal.status;
        }
    };
    if !quiet {
        setup.ignore.notes().iter().for_each(|note| say(note));
    }
    let named = setup.options.command.first().map(|name| printable(name.as_bytes()).into_owned());
    let named = named.unwrap_or_default();
    let program = Program {
        path: setup.program.path.clone(),
        argv: setup.program.argv.clone(),
        attributes: setup.program.attributes,
    };
    let made = directory.made().clone();
    let ending = match start(setup, directory) {
        Ok(front) => front.run(),
        Err(error) => Ending::Failed(format!("start the recording: {error}")),
    };
    if !ending.leaves_a_snapshot() {
        made.remove();
    }
    match ending {
        Ending::Recorded(end, done) => match tell(&done, strict) {
            Some(status) => status,
            None => end_as(end),
        },
        Ending::Detached(end) => end_as(end),
        Ending::TimedOut(done) => tell(&done, strict).unwrap_or(TIMED_OUT),
        Ending::Denied(why) if unavailable == Unavailable::Run => {
            say(&format!("{why}; the command runs unrecorded"));
            run_unrecorded(&program)
        }
        Ending::Denied(why) => {
            say(&why);
            OURS
        }
        Ending::Failed(why) => {
            say(&why);
            OURS
        }
        Ending::NotExecuted(errno) => {
            let error = io::Error::from_raw_os_error(errno);
            say(&format!("execute {named}: {error}"));
            if matches!(errno, libc::ENOENT | libc::ENOTDIR) { NOT_FOUND } else { NOT_EXECUTABLE }
        }
        Ending::Lost => {
            say("the tracing process was ended, and the command with it; there is no snapshot");
            OURS
        }
    }
}

/// Says what the recording came to; the exit status where that is a failure of ours.
fn tell(done: &Done, strict: bool) -> Option<i32> {
    if let Some(error) = &done.error {
        say(&format!("no snapshot was written: {error}"));
        return Some(OURS);
    }
    done.notes.iter().for_each(|note| say(note));
    if !done.report.is_empty() {
        eprint!("{}", done.report);
    }
    if strict && !done.complete {
        say("the recording is incomplete (--strict)");
        return Some(OURS);
    }
    None
}

fn say(sentence: &str) {
    eprintln!("agent-snapshot: {sentence}");
}

fn end_as(end: CommandEnd) -> i32 {
    if let CommandEnd::Killed(signal) = end {
        front::die_by(signal);
    }
    end.exit_status()
}

fn run_unrecorded(program: &Program) -> i32 {
    let argv: Vec<_> = program.argv.iter().map(CString::as_c_str).collect();
    program.attributes.restore();
    let error = sys::execute(&program.path, &argv);
    say(&format!("execute {}: {error}", printable(program.path.to_bytes())));
    NOT_EXECUTABLE
}

/// Opens /dev/null for standard streams that are closed, so that no file of ours gets their numbers.
///
/// They close again in the command.
fn fill_standard_streams() {
    for fd in 0..3 {
        if !is_open(fd) {
            let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
            if let Ok(null) = nix::fcntl::open("/dev/null", flags, nix::sys::stat::Mode::empty()) {
                // The lowest free number, which is `fd`; it stays open for the life of this process.
                std::mem::forget(null);
            }
        }
    }
}

fn is_open(fd: i32) -> bool {
    Path::new(&format!("/proc/self/fd/{fd}")).symlink_metadata().is_ok()
}

fn set_up(options: cli::Record, attributes: ProcessAttributes) -> Result<(Setup, SnapshotDir), Refusal> {
    let inherited = Inherited::of_this_process();
    let start_cwd = rustix::fs::readlink("/proc/self/cwd", Vec::new())
        .map(|path| path.into_bytes())
        .map_err(|error| Refusal::ours(format!("find the current directory: {error}")))?;
    let name = options.command.first().cloned().unwrap_or_default();
    let path = find_program(&name)?;
    let argv = options.command.iter().map(|argument| c_string(argument)).collect::<Result<_, _>>()?;
    let program = Program { path: c_string(path.as_os_str())?, argv, attributes };
    let ignored: Vec<Vec<u8>> = options.ignore.iter().map(|path| path.clone().into_vec()).collect();
    let ignore = Ignore::load(&Environment::from_process(&start_cwd), &ignored)
        .map_err(|error| Refusal::ours(error.to_string()))?;
    let Some(snapshot_dir) = &options.snapshot_dir else {
        return Err(Refusal::ours("--snapshot-dir is missing"));
    };
    let directory = SnapshotDir::create(snapshot_dir).map_err(|error| Refusal::ours(error.to_string()))?;
    let report = match options.report {
        Some(report) => report,
        None if options.quiet || !io::stderr().is_terminal() => Report::None,
        None => Report::Summary,
    };
    Ok((Setup { options, program, start_cwd, ignore, inherited, report }, directory))
}

fn c_string(text: &OsStr) -> Result<CString, Refusal> {
    CString::new(text.as_bytes()).map_err(|_| Refusal::ours("an argument holds a NUL byte"))
}

/// Finds the program as a shell does: a name without a slash in the directories of PATH.
fn find_program(name: &OsString) -> Result<PathBuf, Refusal> {
    let shown = printable(name.as_bytes());
    let not_found =
        || Refusal { status: NOT_FOUND, message: format!("execute {shown}: there is no such command") };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match check_program(&path) {
            Ok(()) => Ok(path),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(Refusal { status: NOT_FOUND, message: format!("execute {shown}: {error}") })
            }
            Err(error) => {
                Err(Refusal { status: NOT_EXECUTABLE, message: format!("execute {shown}: {error}") })
            }
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for directory in std::env::split_paths(&search) {
        // An empty entry means the current directory.
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        let path = directory.join(name);
        match check_program(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                refused.get_or_insert((path, error));
            }
            Err(_) => {}
        }
    }
    match refused {
        Some((path, error)) => Err(Refusal {
            status: NOT_EXECUTABLE,
            message: format!("execute {}: {error}", printable(path.as_os_str().as_bytes())),
        }),
        None => Err(not_found()),
    }
}

fn check_program(path: &Path) -> io::Result<()> {
    let metadata = path.metadata()?;
    let executable = metadata.is_file()
        && metadata.permissions().mode() & 0o111 != 0
        && rustix::fs::accessat(
            rustix::fs::CWD,
            path,
            rustix::fs::Access::EXEC_OK,
            rustix::fs::AtFlags::EACCESS,
        )
        .is_ok();
    if executable { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Starts the tracing process; in it, this does not return.
fn start(setup: Setup, directory: SnapshotDir) -> io::Result<Front> {
    let (ours, theirs) = Link::pair()?;
    let signals = sys::signal_descriptor()?;
    let front = Tid(std::process::id().cast_signed());
    match sys::fork()? {
        Fork::Child => {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if nix::unistd::getppid().as_raw() != front.0 {
                sys::exit_now(OURS);
            }
            drop(ours);
            tracing::run(setup, directory, theirs, signals)
        }
        Fork::Parent(tracer) => {
            drop(theirs);
            let Setup { options, inherited, .. } = setup;
            Ok(Front::new(ours, tracer, signals, options.survivors, options.quiet, inherited.descriptors))
        }
    }
}

/// Drops the inherited descriptors that would only delay the end of a pipe, once the command has
/// its own; standard error too if `all`.
fn drop_inherited(descriptors: &mut Vec<InheritedFd>, all: bool) {
    let null = nix::fcntl::open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty());
    for fd in descriptors.drain(..) {
        match (fd.number(), &null) {
            (2, _) if !all => {}
            (0..=2, Ok(null)) => fd.replace(null),
            _ => fd.close(),
        }
    }
}

/// A random identifier, 128 bits in hexadecimal.
fn random_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        |_| format!("{:032x}", jiff::Timestamp::now().as_nanosecond()),
        |uuid| uuid.trim().replace('-', ""),
    )
}

/// The name of a signal; real-time ones count from SIGRTMIN.
fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) if signal >= libc::SIGRTMIN() => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
        Err(_) => format!("signal {signal}"),
    }
}
