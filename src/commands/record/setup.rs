//! What is decided before the launch: the program, its descriptors, the ignore rules, the directory.
//!
//! Neighbour: `record.rs`, which starts the two processes with it.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::landlock::Domain;
use super::recalling::RecallSetup;
use super::report::Messages;
use crate::cli::{self, Enforce, IfUnavailable, KeepLevel, ReportFormat};
use crate::commands::check::{Rules, search_path};
use crate::commands::config::{self, SessionConfig};
use crate::commands::exit::Exit;
use crate::commands::recover::make_way;
use crate::git::git_directory_elsewhere;
use crate::library::log::working_tree;
use crate::library::session::session;
use crate::library::{self, ID_LENGTH, Library, Place};
use crate::observe::PROGRAMS;
use crate::observe::enforce::{EnforcedRules, KnownNames};
use crate::observe::inherited::Inherited;
use crate::observe::policy::ignore::{Environment, Ignore};
use crate::policy::{Bounds, CompiledPolicy, PathUseKind, PolicyPlaces};
use crate::snapshot::identity::random_id;
use crate::snapshot::journal::ProcessMark;
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::secrets::Secrets;
use crate::snapshot::{Enforcement, EnforcementMode, Keep, printable};
use crate::trace::launch::Program;
use crate::trace::question::is_recorded;
use crate::trace::sys::AddressSpace;
use crate::trace::syscalls::Refusable;
use crate::trace::{self, attributes::ProcessAttributes, sys, trials};

/// Everything that is decided before the launch.
pub struct Setup {
    pub options: cli::RecordingOptions,
    /// The identifier of the snapshot.
    pub id: String,
    /// Which bytes and states are kept.
    pub keep: Keep,
    /// The library that the snapshot is in, if it is in one.
    pub library: Option<Library>,
    /// The real path of this user's library, if there is one.
    pub protected: Option<Vec<u8>>,
    pub program: Program,
    pub start_cwd: Vec<u8>,
    /// The home directory, if one is known.
    pub home: Option<Vec<u8>>,
    /// The directory for temporary files, if one is set.
    pub temporary_directory: Option<Vec<u8>>,
    pub ignore: Ignore,
    pub inherited: Inherited,
    /// The rules of what the command may do, if there are any.
    pub policy: Option<CompiledPolicy>,
    /// The same, if they are enforced.
    pub enforced: Option<EnforcedRules>,
    /// What matters if the recording is to be recalled.
    pub recall: Option<RecallSetup>,
    pub report: ReportFormat,
    /// The configuration file, if a shell records.
    pub shell_config: Option<String>,
    /// The files that hold secrets; none if those are recorded like all else.
    pub secrets: Option<Secrets>,
    /// The process that the user waits for.
    pub front: ProcessMark,
    /// What is particular of the session, if each step is recorded by itself.
    pub session: Option<SessionRules>,
    /// The number of the last step of an earlier session of this name.
    pub last_step: u32,
}

impl Setup {
    /// Which calls rules may refuse, if any may. Asks the kernel.
    pub fn refusable(&self) -> Option<Refusable> {
        let policy = &self.enforced.as_ref()?.policy;
        Some(Refusable {
            reads: policy.judges(PathUseKind::Read),
            addresses: policy.judges_addresses(),
            // In a session, a recorder does not know which opens of another's processes are not over.
            unseen_ends: self.session.is_none() && AddressSpace::can_be_asked(),
        })
    }

    /// Whether the arguments of calls can be copied, so that what was judged is what the kernel uses.
    pub fn can_pin(&self) -> bool {
        self.enforced.as_ref().is_some_and(|rules| rules.can_pin)
    }

    /// The domain that the command is to be in, if any.
    ///
    /// # Errors
    /// One sentence.
    pub fn domain(&self, directory: &SnapshotDir) -> Result<Option<Domain>, String> {
        let Some(rules) = self.enforced.as_ref().filter(|rules| !rules.manifest.landlock.is_empty()) else {
            return Ok(None);
        };
        // Our own program works there.
        let own = [self.protected.as_deref(), Some(directory.real_path().as_os_str().as_bytes())];
        let domain = Domain::new(&rules.policy.bounds(), own.into_iter().flatten());
        domain.map(Some).map_err(|error| format!("start the recording: {error}"))
    }
}

/// Why nothing was started, and the exit that follows from it.
#[derive(Debug)]
pub struct SetupError {
    pub exit: Exit,
    pub message: String,
}

impl SetupError {
    fn ours(message: impl Into<String>) -> SetupError {
        SetupError { exit: Exit::Failure, message: message.into() }
    }
}

/// Where the snapshot of a recording goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Into this directory.
    Directory(PathBuf),
    /// Into the library.
    Library,
    /// Into the library, each step by itself.
    Session(SessionRules),
}

/// What is particular of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRules {
    /// What is at these paths is left out.
    pub own_state: Vec<Vec<u8>>,
    /// Which programs are commands.
    pub config: SessionConfig,
    /// Whether no earlier session can have its name.
    pub is_new: bool,
}

/// The program to run: this file, or the one that a shell would find.
pub fn program(
    options: &cli::RecordingOptions,
    file: Option<PathBuf>,
    attributes: ProcessAttributes,
) -> Result<Program, SetupError> {
    let path = match file {
        Some(file) => file,
        None => find_program(&options.command.first().cloned().unwrap_or_default())?,
    };
    let argv = options.command.iter().map(|argument| c_string(argument)).collect::<Result<_, _>>()?;
    Ok(Program { path: c_string(path.as_os_str())?, argv, attributes })
}

/// The rules of what the command may do.
#[derive(Debug)]
pub struct UserRules {
    /// What they mean here.
    pub policy: CompiledPolicy,
    /// The same, if they are to be enforced.
    pub enforced: Option<EnforcedRules>,
}

/// The rules of what the command may do, if there are any.
pub fn rules(
    options: &cli::RecordingOptions,
    destination: &Destination,
) -> Result<Option<UserRules>, SetupError> {
    let rules = rules_here(options).map_err(SetupError::ours)?;
    if options.calls.enforce.is_some() && rules.is_empty() {
        return Err(SetupError::ours("--enforce needs a rule, such as --deny-read @secrets"));
    }
    if options.calls.landlock && rules.enforce.is_none() {
        return Err(SetupError::ours("--landlock is for rules that are enforced: it needs --enforce"));
    }
    if rules.is_empty() {
        return Ok(None);
    }
    if matches!(destination, Destination::Session(_))
        && options.calls.rules.is_given()
        && rules.enforce.is_none()
    {
        return Err(SetupError::ours("session takes rules with --enforce only: check judges its recordings"));
    }
    if let Some(why) = rules.enforce.and_then(|_| why_not_enforced(options)) {
        let what =
            if options.calls.enforce.is_some() { "--enforce" } else { "enforce, in the configuration," };
        return Err(SetupError::ours(format!("{what} can't be combined with {why}")));
    }
    let places = places_here().map_err(SetupError::ours)?;
    let policy = rules.compiled(&places).map_err(SetupError::ours)?.of_recording();
    let enforced =
        rules.enforce.map(|enforce| enforced_rules(enforce, &rules, policy.clone(), options, &places));
    Ok(Some(UserRules { policy, enforced: enforced.transpose()? }))
}

/// The rules that are enforced; an error names what can't be enforced here, unless that is accepted.
fn enforced_rules(
    enforce: Enforce,
    rules: &Rules,
    policy: CompiledPolicy,
    options: &cli::RecordingOptions,
    places: &PolicyPlaces,
) -> Result<EnforcedRules, SetupError> {
    let mut limits = Vec::new();
    let can_pin = match try_to_pin() {
        Ok(()) => true,
        Err(why) => {
            limits.push(why);
            false
        }
    };
    let mut landlock = Vec::new();
    if options.calls.landlock || rules.landlock {
        match landlock_words(&policy) {
            Ok(words) => landlock = words,
            Err(why) => limits.push(why),
        }
    }
    if let Some(limit) = limits.first().filter(|_| enforce != Enforce::BestEffort) {
        return Err(SetupError::ours(format!(
            "rules can't be enforced here: {limit}; --enforce=best-effort enforces the rest"
        )));
    }
    let mode = match enforce {
        Enforce::End => EnforcementMode::End,
        Enforce::Refuse | Enforce::BestEffort => EnforcementMode::Refuse,
    };
    Ok(EnforcedRules {
        policy,
        protected: protected(options, places),
        keyless: None,
        can_pin,
        manifest: Enforcement { mode, rules: rules.lines(), landlock, limits },
        names: KnownNames::default(),
    })
}

/// Tries whether the arguments of calls can be copied; a sentence if not.
fn try_to_pin() -> Result<(), String> {
    trials::mseal().map_err(|error| {
        format!(
            "what a call names can be rewritten by another thread after it was judged (mseal: {error}; it is in Linux 6.10 \
             and newer)"
        )
    })
}

/// The words of the rules that Landlock enforces, too, or why it enforces none.
fn landlock_words(policy: &CompiledPolicy) -> Result<Vec<String>, String> {
    let bounds = policy.bounds();
    if bounds.is_empty() {
        return Err("Landlock knows no rule but those that allow".to_owned());
    }
    Domain::new(&bounds, std::iter::empty()).map_err(|error| format!("Landlock: {error}"))?;
    let words: BTreeSet<_> = bounds.iter().flat_map(Bounds::words).collect();
    Ok(words.into_iter().map(|word| word.name().to_owned()).collect())
}

/// The option with which rules can't be enforced, and why.
fn why_not_enforced(options: &cli::RecordingOptions) -> Option<&'static str> {
    match options {
        _ if options.allow_io_uring => Some("--allow-io-uring, whose operations are not seen"),
        _ if options.if_unavailable == Some(IfUnavailable::Run) => {
            Some("--if-unavailable run: what is not recorded is not refused")
        }
        _ => None,
    }
}

/// What the command may not change while rules are enforced: the rules, the configuration, and our programs.
fn protected(options: &cli::RecordingOptions, places: &PolicyPlaces) -> Vec<Vec<u8>> {
    let environment = Environment::from_process(&places.start);
    let exe = std::fs::read_link("/proc/self/exe").ok();
    let programs = exe.iter().flat_map(|exe| PROGRAMS.map(|name| exe.with_file_name(name)));
    let of_project = [places.workspace(), &places.start];
    let of_project = of_project.map(|place| PathBuf::from(OsStr::from_bytes(place)).join(config::PROJECT));
    // A new one only makes the rules stricter: it may come with a checkout.
    let of_project = of_project.into_iter().filter(|path| path.symlink_metadata().is_ok());
    let files = options.calls.rules.policy.clone().into_iter().chain(config::path(&environment));
    let paths = files.chain(exe.clone()).chain(programs).chain(of_project);
    // As the paths of calls, without a symlink on the way; also one that is not there yet.
    // Of a symlink, also where it leads.
    let real = paths.flat_map(|path| {
        let absolute = std::path::absolute(&path).unwrap_or(path);
        let directory = absolute.parent().and_then(|parent| parent.canonicalize().ok());
        let named = directory.zip(absolute.file_name()).map(|(directory, name)| directory.join(name));
        [Some(named.unwrap_or_else(|| absolute.clone())), absolute.canonicalize().ok()].into_iter().flatten()
    });
    let mut real: Vec<_> = real.map(|path| path.into_os_string().into_vec()).collect();
    real.sort_unstable();
    real.dedup();
    real
}

/// The rules that hold for a recording: those that were given, and those of the configuration.
///
/// # Errors
/// One sentence, which names the file and the fault.
fn rules_here(options: &cli::RecordingOptions) -> Result<Rules, String> {
    let given = Rules::given(&options.calls.rules, options.calls.enforce)?;
    // An outer recording has those of the configuration.
    if is_recorded() { Ok(given) } else { given.with_configured(&workspace_here()) }
}

/// Whether there are rules of what the command may do.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn has_rules(options: &cli::RecordingOptions) -> Result<bool, String> {
    rules_here(options).map(|rules| !rules.is_empty())
}

/// The root of the project that a recording which is started here is of.
pub fn workspace_here() -> Vec<u8> {
    // If that is unknown, so is any file there.
    let start = start_directory().unwrap_or_default();
    working_tree(&start).unwrap_or(start)
}

/// What rules are relative to in a recording that is started here.
///
/// # Errors
/// A sentence.
pub fn places_here() -> Result<PolicyPlaces, String> {
    let start = start_directory().map_err(|error| error.message)?;
    let working_tree = working_tree(&start);
    Ok(PolicyPlaces {
        git_directory: working_tree.as_deref().and_then(git_directory_elsewhere),
        working_tree,
        home: home(&Environment::from_process(&start)),
        temporary: temporary_directory(),
        programs: search_path(),
        secrets: config::secrets()?,
        start,
    })
}

/// The directory that the command is started in.
pub fn start_directory() -> Result<Vec<u8>, SetupError> {
    let link = rustix::fs::readlink("/proc/self/cwd", Vec::new());
    link.map(|path| path.into_bytes()).map_err(|error| match sys::has_own_procfs() {
        true => SetupError::ours(format!("find the current directory: {error}")),
        false => SetupError::ours(trace::Error::ForeignProcfs.to_string()),
    })
}

/// Makes all decisions before the launch.
pub fn set_up(
    mut options: cli::RecordingOptions,
    program: Program,
    rules: Option<UserRules>,
    recall: Option<RecallSetup>,
    destination: &Destination,
    messages: &Messages,
) -> Result<(Setup, SnapshotDir), SetupError> {
    let (policy, enforced) = rules.map(|rules| (rules.policy, rules.enforced)).unzip();
    let enforced = enforced.flatten();
    let mut inherited = Inherited::of_this_process();
    if recall.is_some() {
        // The command gets pipes in their place.
        inherited.leave_out_outputs();
    }
    let start_cwd = start_directory()?;
    let ignored: Vec<Vec<u8>> = options.ignore.iter().map(|path| path.clone().into_vec()).collect();
    let environment = Environment::from_process(&start_cwd);
    let mut ignore =
        Ignore::load(&environment, &ignored).map_err(|error| SetupError::ours(error.to_string()))?;
    if let Some(policy) = policy.clone().filter(|policy| policy.judges(PathUseKind::Read)) {
        ignore.watch(move |path| policy.may_forbid_reading(path));
    }
    if recall.is_some() {
        ignore.watch_all_but(&environment, &ignored).map_err(|error| SetupError::ours(error.to_string()))?;
    }
    if let Destination::Session(rules) = destination {
        ignore.leave_out(&rules.own_state);
    }
    let secrets = (!options.no_redact).then(|| secrets(messages));
    options.session = session(options.session.as_deref());
    let (id, library, snapshot_dir) = match destination {
        Destination::Directory(directory) => (random_id(), None, directory.clone()),
        Destination::Library | Destination::Session(_) => {
            let (library, id) = in_library(messages)?;
            let directory = library.directory_of(&id[..ID_LENGTH]);
            (id, Some(library), directory)
        }
    };
    let directory = make_way(&snapshot_dir, &mut |sentence| messages.say(sentence))
        .map_err(|error| SetupError::ours(error.to_string()))?;
    let keep = match (options.keep, destination) {
        (Some(KeepLevel::All), _) | (None, Destination::Directory(_)) => Keep::All,
        (Some(KeepLevel::Changes), _) => Keep::Changes,
        (None, Destination::Library) if recall.is_some() => Keep::Changes,
        (Some(KeepLevel::Undo), _) | (None, Destination::Library | Destination::Session(_)) => Keep::Undo,
    };
    let report = match options.report {
        _ if options.json => ReportFormat::Json,
        Some(report) => report,
        None if options.quiet || !io::stderr().is_terminal() => ReportFormat::None,
        None => ReportFormat::Summary,
    };
    let front = ProcessMark::of(std::process::id());
    let session = match destination {
        Destination::Session(rules) => Some(rules.clone()),
        Destination::Library | Destination::Directory(_) => None,
    };
    let last_step = match (&library, &options.session) {
        (Some(library), Some(name)) if session.as_ref().is_some_and(|session| !session.is_new) => {
            last_step(library, name)
        }
        _ => 0,
    };
    // One that can't be used is not protected.
    let existing = library.clone().or_else(|| Library::find().ok().flatten());
    let protected = existing.and_then(|library| library.root().canonicalize().ok());
    let protected = protected.map(|root| root.into_os_string().into_vec());
    let shell_config = messages.are_of_shell().then(|| config::path(&environment)).flatten();
    let shell_config = shell_config.map(|path| printable(path.as_os_str().as_bytes()).into_owned());
    let setup = Setup {
        options,
        id,
        keep,
        library,
        protected,
        program,
        start_cwd,
        home: home(&environment),
        temporary_directory: temporary_directory(),
        ignore,
        inherited,
        policy,
        enforced,
        recall,
        report,
        shell_config,
        secrets,
        front,
        session,
        last_step,
    };
    Ok((setup, directory))
}

/// The number of the last step of the sessions of a name.
fn last_step(library: &Library, name: &str) -> u32 {
    let entries = library.entries().unwrap_or_default();
    let of_name = entries.iter().filter(|entry| entry.session.as_deref() == Some(name));
    of_name.filter_map(|entry| entry.step).max().unwrap_or_default()
}

/// The files that hold secrets, as the configuration says; if that has a fault, the built-in list.
fn secrets(messages: &Messages) -> Secrets {
    config::secrets().unwrap_or_else(|why| {
        // A shell has told of it already.
        if !messages.are_of_shell() {
            messages.note(&format!("{why}; only the built-in list of secret files is used"));
        }
        Secrets::default()
    })
}

/// The library, and the identifier of a new snapshot in it.
fn in_library(messages: &Messages) -> Result<(Library, String), SetupError> {
    let place = Place::of_this_user();
    if let (Some(instead), false) = (&place.instead, place.root.exists()) {
        messages.note(instead);
    }
    let failed = |error: library::Error| SetupError::ours(error.to_string());
    let library = Library::create(&place).map_err(failed)?;
    let id = library.new_id();
    Ok((library, id))
}

fn home(environment: &Environment) -> Option<Vec<u8>> {
    clean_absolute(environment.home().map(|home| OsString::from_vec(home.to_vec())))
}

fn temporary_directory() -> Option<Vec<u8>> {
    clean_absolute(std::env::var_os("TMPDIR"))
}

/// A path of the environment, if it is absolute and no `..` leads out of it.
fn clean_absolute(path: Option<OsString>) -> Option<Vec<u8>> {
    let path = PathBuf::from(path?);
    let is_clean =
        path.is_absolute() && !path.components().any(|component| component == Component::ParentDir);
    // Collected, it has neither `.` nor doubled slashes.
    is_clean.then(|| path.components().collect::<PathBuf>().into_os_string().into_vec())
}

fn c_string(text: &OsStr) -> Result<CString, SetupError> {
    CString::new(text.as_bytes()).map_err(|_| SetupError::ours("an argument holds a NUL byte"))
}

/// Finds the program as a shell does: a name without a slash is searched in PATH.
pub fn find_program(name: &OsString) -> Result<PathBuf, SetupError> {
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
