//! What is decided before the launch: the program, its descriptors, the ignore rules, the directory.
//!
//! Neighbour: `record.rs`, which starts the two processes with it.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cli::{self, ReportFormat};
use crate::commands::exit::Exit;
use crate::commands::recover::make_way;
use crate::observe::inherited::Inherited;
use crate::observe::policy::ignore::{Environment, Ignore};
use crate::snapshot::journal::ProcessMark;
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::printable;
use crate::trace::attributes::ProcessAttributes;
use crate::trace::launch::Program;

/// Everything that is decided before the launch.
pub struct Setup {
    pub options: cli::Record,
    pub program: Program,
    pub start_cwd: Vec<u8>,
    pub ignore: Ignore,
    pub inherited: Inherited,
    pub report: ReportFormat,
    /// The process that the user waits for.
    pub front: ProcessMark,
}

/// Why nothing was started, and the exit that follows from it.
pub struct SetupError {
    pub exit: Exit,
    pub message: String,
}

impl SetupError {
    fn ours(message: impl Into<String>) -> SetupError {
        SetupError { exit: Exit::Failure, message: message.into() }
    }
}

/// Makes all decisions before the launch.
pub fn set_up(
    options: cli::Record,
    attributes: ProcessAttributes,
) -> Result<(Setup, SnapshotDir), SetupError> {
    let inherited = Inherited::of_this_process();
    let start_cwd = rustix::fs::readlink("/proc/self/cwd", Vec::new())
        .map(|path| path.into_bytes())
        .map_err(|error| SetupError::ours(format!("find the current directory: {error}")))?;
    let name = options.command.first().cloned().unwrap_or_default();
    let path = find_program(&name)?;
    let argv = options.command.iter().map(|argument| c_string(argument)).collect::<Result<_, _>>()?;
    let program = Program { path: c_string(path.as_os_str())?, argv, attributes };
    let ignored: Vec<Vec<u8>> = options.ignore.iter().map(|path| path.clone().into_vec()).collect();
    let ignore = Ignore::load(&Environment::from_process(&start_cwd), &ignored)
        .map_err(|error| SetupError::ours(error.to_string()))?;
    let Some(snapshot_dir) = &options.snapshot_dir else {
        return Err(SetupError::ours("--snapshot-dir is missing"));
    };
    let directory = make_way(snapshot_dir, &mut |sentence| super::say(sentence))
        .map_err(|error| SetupError::ours(error.to_string()))?;
    let report = match options.report {
        Some(report) => report,
        None if options.quiet || !io::stderr().is_terminal() => ReportFormat::None,
        None => ReportFormat::Summary,
    };
    let front = ProcessMark::of(std::process::id());
    Ok((Setup { options, program, start_cwd, ignore, inherited, report, front }, directory))
}

fn c_string(text: &OsStr) -> Result<CString, SetupError> {
    CString::new(text.as_bytes()).map_err(|_| SetupError::ours("an argument holds a NUL byte"))
}

/// Finds the program as a shell does: a name without a slash is searched in PATH.
fn find_program(name: &OsString) -> Result<PathBuf, SetupError> {
    let shown = printable(name.as_bytes());
    let not_found =
        || SetupError { exit: Exit::NotFound, message: format!("execute {shown}: there is no such command") };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match check_program(&path) {
            Ok(()) => Ok(path),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(SetupError { exit: Exit::NotFound, message: format!("execute {shown}: {error}") })
            }
            Err(error) => {
                Err(SetupError { exit: Exit::NotExecutable, message: format!("execute {shown}: {error}") })
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
        Some((path, error)) => Err(SetupError {
            exit: Exit::NotExecutable,
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
