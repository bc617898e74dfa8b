//! The command line, as plain options. Uses no other module.
//!
//! If a recording option comes first, what follows the options is the command to record, even if it is
//! named like a subcommand. Help, completions and the man pages are made from this definition.

// The structs of options have no doc comments: since the definitions of the verbs are deferred, clap would print those in
// place of the sentence that `Verb` has for each.
#![allow(missing_docs, reason = "`Verb` documents them")]

use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

/// Record every path that a command and its process tree observe or change, and work with the record.
#[derive(Debug, Parser)]
#[command(
    name = "agent-snapshot",
    version,
    about,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    override_usage = "agent-snapshot --snapshot-dir <DIR> [OPTIONS] [--] <COMMAND> [ARG]...\n       agent-snapshot run [OPTIONS] [--] <COMMAND> [ARG]...\n       agent-snapshot <VERB> [OPTIONS] ...",
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs"
)]
pub struct Cli {
    /// What to do with a snapshot; none records a command.
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// What to record.
    #[command(flatten)]
    pub record: Record,
}

impl Cli {
    /// Parses the arguments of this process.
    ///
    /// # Errors
    /// They are wrong, or ask for help or the version.
    pub fn of_process() -> Result<Cli, clap::Error> {
        Cli::try_parse_from(reference_as_snapshot(std::env::args_os().collect()))
    }
}

/// The arguments with the reference of `VERB --ref JSON` where the snapshot is named otherwise.
fn reference_as_snapshot(mut arguments: Vec<OsString>) -> Vec<OsString> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    // The definition is built only where there may be one: a recording starts here, too.
    let may_have_one = arguments.iter().any(|argument| argument.as_bytes().starts_with(b"--ref"));
    let takes_one = may_have_one
        && arguments.get(1).and_then(|verb| verb.to_str()).is_some_and(|verb| {
            let mut command = Cli::command();
            command.find_subcommand_mut(verb).is_some_and(|verb| {
                verb.build();
                verb.get_arguments().any(|argument| argument.get_id() == "reference")
            })
        });
    if !takes_one {
        return arguments;
    }
    let mut place = 2;
    let mut at = 2;
    while arguments.get(at).is_some_and(|argument| argument != "--") {
        let argument = arguments[at].as_bytes();
        let json = match argument.strip_prefix(b"--ref=") {
            Some(json) => OsString::from_vec(json.to_vec()),
            None if argument == b"--ref" && at + 1 < arguments.len() => arguments.remove(at + 1),
            None => {
                at += 1;
                continue;
            }
        };
        arguments.remove(at);
        arguments.insert(place, json);
        (place, at) = (place + 1, at + 1);
    }
    arguments
}

// A recording into a directory.
#[derive(Debug, Args)]
pub struct Record {
    /// Directory for the snapshot: new, empty, or one that holds a snapshot
    #[arg(long, visible_alias = "output", value_name = "DIR", required = true)]
    pub snapshot_dir: Option<PathBuf>,
    /// What to record, and how.
    #[command(flatten)]
    pub options: RecordingOptions,
}

// Options of a recording, wherever its snapshot goes.
#[derive(Debug, Args)]
pub struct RecordingOptions {
    /// Leave out PATH and everything beneath it, as the ignore list does (repeatable)
    #[arg(long, value_name = "PATH")]
    pub ignore: Vec<OsString>,
    /// Name of the snapshot, kept in the manifest
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Session that the recording belongs to, kept in the manifest [env: AGENT_SNAPSHOT_SESSION]
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// What to do with processes that outlive the command
    #[arg(long, value_enum, default_value_t = Survivors::Wait)]
    pub survivors: Survivors,
    /// End everything after this time, such as 90s or 5m, and exit with 124
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// What to keep of the paths that the command uses [default: all; of run: undo]
    #[arg(long, value_enum)]
    pub keep: Option<KeepLevel>,
    /// Largest file to store if it was only read, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub max_read_bytes: u64,
    /// Largest file to store if the command changed or removed it [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_blob_bytes: Option<u64>,
    /// What to do if the bytes that a call may destroy can't be kept
    #[arg(long, value_enum, default_value_t = OnLossChoice::Warn)]
    pub on_loss: OnLossChoice,
    /// Compression of the stored bytes
    #[arg(long, value_enum, default_value_t = CompressionChoice::Snappy)]
    pub compression: CompressionChoice,
    /// Flush the snapshot to disk before it is committed
    #[arg(long)]
    pub sync: bool,
    /// Record secrets, too: the content of secret files that are only read, and secret values in command lines
    #[arg(long)]
    pub no_redact: bool,
    /// Allow io_uring, whose operations are not recorded
    #[arg(long)]
    pub allow_io_uring: bool,
    /// What to do if the command can't be recorded [default: fail; of run: run]
    #[arg(long, value_enum)]
    pub if_unavailable: Option<IfUnavailable>,
    /// Exit with 125 if the recording is incomplete, or the command did what the rules forbid
    #[arg(long)]
    pub strict: bool,
    /// Print nothing but errors
    #[arg(long)]
    pub quiet: bool,
    /// Report on standard error at the end [default: summary on a terminal, otherwise none]
    #[arg(long, value_enum)]
    pub report: Option<ReportFormat>,
    /// The same as --report json
    #[arg(long, conflicts_with = "report")]
    pub json: bool,
    /// What its calls may do, and how they are intercepted.
    #[command(flatten)]
    pub calls: CallOptions,
    /// How many threads answer read-only system calls [default: a quarter of the CPUs, at most 4]
    #[arg(
        long,
        value_name = "N",
        env = "AGENT_SNAPSHOT_ANSWERING_THREADS",
        value_parser = number::<NonZeroUsize>,
        hide_short_help = true
    )]
    pub answering_threads: Option<NonZeroUsize>,
    /// With --mechanism inside, after how many calls from one call site a process notes them
    #[arg(
        long,
        value_name = "N",
        env = "AGENT_SNAPSHOT_INSIDE_AFTER",
        value_parser = number::<NonZeroU32>,
        hide = true
    )]
    pub inside_after: Option<NonZeroU32>,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

// What the calls of a command may do, and how they are intercepted.
#[derive(Debug, Args)]
pub struct CallOptions {
    /// What the command may do.
    #[command(flatten)]
    pub rules: PolicyRules,
    /// Refuse what the rules forbid, before it happens: the call fails with EACCES [default: refuse]
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "refuse")]
    pub enforce: Option<Enforce>,
    /// Also enforce the rules that allow by Landlock, as far as it can express them; the command can't mount then
    #[arg(long, hide_short_help = true)]
    pub landlock: bool,
    /// How system calls are intercepted
    #[arg(
        long,
        value_enum,
        default_value_t = Mechanism::Auto,
        env = "AGENT_SNAPSHOT_MECHANISM",
        hide_short_help = true
    )]
    pub mechanism: Mechanism,
}

// Rules of what a command may do: what it does nevertheless is reported, and with --enforce prevented.
#[derive(Debug, Args, Default, Clone, PartialEq)]
pub struct PolicyRules {
    /// Report every change but those of these paths and what is beneath them: a pattern as in .gitignore, relative to
    /// the start directory, or @workspace, @tmp (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub allow_write: Vec<OsString>,
    /// Report changes of these paths (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub deny_write: Vec<OsString>,
    /// Report every read, listing and execution but those of these paths, such as @workspace, @system (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub allow_read: Vec<OsString>,
    /// Report that files at these paths, such as @secrets, were read or executed (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub deny_read: Vec<OsString>,
    /// Report every execution but those of these programs: a path, or a name from $PATH (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub allow_exec: Vec<OsString>,
    /// Report executions of these programs: a path, or a name, wherever it is (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub deny_exec: Vec<OsString>,
    /// Report uses of every socket address but these, those of AF_UNIX and netlink (repeatable)
    #[arg(long, value_name = "HOST[:PORT]")]
    pub allow_net: Vec<OsString>,
    /// Report uses of these socket addresses: an address or network, localhost, :PORT, unix:GLOB; without a value, of
    /// all but AF_UNIX and netlink (repeatable)
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "*"
    )]
    pub deny_net: Vec<OsString>,
    /// Report uses of every AF_UNIX socket but these: a path, or @ and an abstract name (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub allow_unix: Vec<OsString>,
    /// Take rules from a TOML file, too, whose keys are the names of these options
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

impl PolicyRules {
    /// Whether there are any.
    pub fn is_given(&self) -> bool {
        *self != PolicyRules::default()
    }
}

/// What follows when the command is about to do what the rules forbid; the stricter the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Enforce {
    /// As refuse, also where not all can be enforced; what can't is reported
    BestEffort,
    /// The call fails, and the command goes on
    Refuse,
    /// The call fails, and everything is ended, as by --timeout
    End,
}

/// What to do with processes that outlive the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Survivors {
    /// Wait until all have ended
    Wait,
    /// Return when the command ends; the recording goes on until the last process ends
    Background,
    /// End them with SIGTERM, and with SIGKILL after 5 s
    Kill,
}

/// What to keep of the paths that the command uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeepLevel {
    /// States and bytes of all paths, inputs included
    All,
    /// States and bytes, before and after, of changed paths
    Changes,
    /// What an undo needs: bytes before each change; bytes after it only of files up to 1 MiB that Git does not
    /// ignore
    Undo,
}

/// What to do if the bytes that a call may destroy can't be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLossChoice {
    /// Let the call go on, and say so at once
    Warn,
    /// Let the call fail: ENOSPC, EACCES for an unreadable file, EFBIG for --max-blob-bytes, EBUSY for one that
    /// others keep changing
    Refuse,
}

/// Compression of the stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompressionChoice {
    /// Fast
    Snappy,
    /// Smaller
    Zstd,
    /// No compression
    None,
}

/// What to do if tracing is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IfUnavailable {
    /// Exit with 125 before the command starts
    Fail,
    /// Run the command unrecorded, with one warning and no manifest
    Run,
}

/// The report at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Nothing
    None,
    /// A few lines to read
    Summary,
    /// One JSON object
    Json,
}

/// How system calls are intercepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mechanism {
    /// By the fastest mechanism that the kernel permits: seccomp notifications, or else stops
    Auto,
    /// By the fastest, and processes note their own read-only calls
    Inside,
    /// By a ptrace stop at every call that matters, selected by a seccomp filter
    Stops,
    /// By a ptrace stop at every call
    EveryCall,
}

// A program whose commands are recorded one by one.
#[derive(Debug, Args)]
pub struct Session {
    /// Name of the session, by which --session of other verbs means it [default: a random one]
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// What to keep of the paths that a step uses [default: undo]
    #[arg(long, value_enum)]
    pub keep: Option<KeepLevel>,
    /// Record what agents and shells keep for themselves, too: settings, transcripts, histories
    #[arg(long)]
    pub all: bool,
    /// Leave out PATH and everything beneath it, as the ignore list does (repeatable)
    #[arg(long, value_name = "PATH")]
    pub ignore: Vec<OsString>,
    /// Record secrets, too: the content of secret files that are only read, and secret values in command lines
    #[arg(long)]
    pub no_redact: bool,
    /// Allow io_uring, whose operations are not recorded
    #[arg(long)]
    pub allow_io_uring: bool,
    /// Print nothing but errors
    #[arg(long)]
    pub quiet: bool,
    /// What its calls may do, and how they are intercepted.
    #[command(flatten)]
    pub calls: CallOptions,
    /// The program, an agent or a shell, and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// What to do with a snapshot.
#[derive(Debug, Subcommand)]
#[command(defer = true)] // so that only the verb that is called is defined
pub enum Verb {
    /// Record a command into the library
    Run(Run),
    /// Record each command that a shell or an agent starts, and its own edits, as steps of a session
    Session(Session),
    /// List the recordings of the library, the newest first
    Log(Log),
    /// Look through the recordings on a terminal: diffs, histories of files, undo and redo
    Ui(Ui),
    /// Undo the last command of the library that changed something, or others
    Undo(Undo),
    /// Redo what was undone last
    Redo(Redo),
    /// List the recordings that changed a path, the newest first
    History(History),
    /// Let an agent list, show and undo the recordings of a project: a server of the Model Context Protocol on standard
    /// input and output
    Mcp(Mcp),
    /// Show what the command did
    Show(Show),
    /// Write the recorded bytes of a file, or the target of a symlink, to standard output
    Cat(Cat),
    /// Show what the command changed as a diff that `git apply` accepts
    Diff(Diff),
    /// Write a page for people: what was run, what it changed, read and contacted, and what is missing
    Report(Report),
    /// Write a recording as an in-toto Statement (runtime trace), to be signed
    Attest(Attest),
    /// Check whether the live files are still as recorded
    Verify(Verify),
    /// Check whether the command did only what it may: write, read and contact
    Check(PolicyCheck),
    /// Write a policy file that recordings pass
    #[command(subcommand)]
    Policy(PolicyVerb),
    /// Put back the state after the command, or with --before the state before it
    Restore(Restore),
    /// Build the recorded state under a new directory
    Branch(Branch),
    /// Write a snapshot as one archive, without secrets, for others; or many as Parquet tables, for query engines
    Export(Export),
    /// Make a snapshot of an exported archive
    Import(Import),
    /// Make a snapshot of what a killed recording has left
    Recover(Recover),
    /// Show or remove the recordings that `run --recall` keeps for recall
    Recall(Recall),
    /// Delete recordings of the library
    Delete(Delete),
    /// Delete the recordings of the library that are not to be kept
    Prune(Prune),
    /// Show how many recordings the library has, and what they take
    Stats(Stats),
    /// Check the library: what is damaged, missing or foreign
    Fsck(Fsck),
    /// Have an agent or tool run its commands through agent-snapshot-bash, which records each into the library
    Init(Init),
    /// Take back what every init has set, and remove the program that agents were given; recordings stay
    Uninstall(Uninstall),
    /// Answer an agent's hook: have the command that it is about to run recorded
    Hook(Hook),
    /// Check whether the commands of agents are recorded, by recording one
    Doctor(Doctor),
    /// Print the completions of a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages, agent-snapshot.1 and one for each verb, into a directory
    Man {
        /// The directory
        dir: PathBuf,
    },
}

impl Verb {
    /// Whose recordings the verb is about, if it is about any.
    pub fn access(&self) -> Option<&SessionAccess> {
        match self {
            Verb::Log(Log { access, .. })
            | Verb::Ui(Ui { access, .. })
            | Verb::History(History { access, .. })
            | Verb::Policy(PolicyVerb::From(PolicyFrom { access, .. }))
            | Verb::Recover(Recover { access, .. })
            | Verb::Prune(Prune { access, .. })
            | Verb::Stats(Stats { access, .. }) => Some(access),
            Verb::Undo(Undo { options: UndoOptions { access, .. }, .. })
            | Verb::Redo(Redo { options: UndoOptions { access, .. }, .. })
            | Verb::Show(Show { access, .. })
            | Verb::Cat(Cat { access, .. })
            | Verb::Diff(Diff { access, .. })
            | Verb::Report(Report { access, .. })
            | Verb::Attest(Attest { access, .. })
            | Verb::Verify(Verify { access, .. })
            | Verb::Check(PolicyCheck { access, .. })
            | Verb::Restore(Restore { access, .. })
            | Verb::Branch(Branch { access, .. })
            | Verb::Export(Export { access, .. })
            | Verb::Delete(Delete { access, .. }) => Some(access),
            Verb::Run(_)
            | Verb::Session(_)
            | Verb::Mcp(_)
            | Verb::Import(_)
            | Verb::Recall(_)
            | Verb::Fsck(_)
            | Verb::Init(_)
            | Verb::Uninstall(_)
            | Verb::Hook(_)
            | Verb::Doctor(_)
            | Verb::Completions { .. }
            | Verb::Man { .. } => None,
        }
    }
}

#[derive(Debug, Args)]
pub struct Run {
    /// Whether an earlier run may stand for this one.
    #[command(flatten)]
    pub recall: RecallOptions,
    /// What to record, and how.
    #[command(flatten)]
    pub options: RecordingOptions,
}

// Whether an earlier run may stand for this one.
#[derive(Debug, Args)]
pub struct RecallOptions {
    /// If everything that the command would see is as an earlier run saw it, put back what that left and print what it
    /// printed, instead of running the command; with check, run it and exit with 125 if it leaves or prints anything
    /// else
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "use", value_name = "WHAT")]
    pub recall: Option<RecallMode>,
    /// How sure to be that nothing has changed
    #[arg(long, value_enum, default_value_t = ConsistencyChoice::Always, requires = "recall")]
    pub consistency: ConsistencyChoice,
    /// With --consistency lazy: how old the earlier run may be, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "recall")]
    pub ttl: Option<Duration>,
    /// Recall runs that ended with a status other than 0, too
    #[arg(long, requires = "recall")]
    pub recall_failures: bool,
    /// Recall runs that asked for random bytes, too
    #[arg(long, requires = "recall")]
    pub allow_random: bool,
}

/// What to do with an earlier run that saw the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecallMode {
    /// Recall it
    Use,
    /// Run the command, and compare
    Check,
}

/// How sure to be that nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyChoice {
    /// Look at everything that the earlier run saw
    Always,
    /// Look at nothing if the earlier run is younger than --ttl
    Lazy,
}

#[derive(Debug, Args)]
pub struct Recall {
    /// What to do
    #[command(subcommand)]
    pub action: RecallAction,
}

#[derive(Debug, Subcommand)]
pub enum RecallAction {
    /// Show how many runs are kept, and what they take
    Stats {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove all of them; the recordings stay
    Clear {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args, Default)]
pub struct Log {
    /// Everything, not only what was recorded in, or changed something in, this Git working tree or directory
    #[arg(long)]
    pub all: bool,
    /// Also commands that changed nothing
    #[arg(long)]
    pub reads: bool,
    /// At most this many, up to 1,000
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// How many of the newest to leave out; no option sets it.
    #[arg(skip)]
    pub offset: usize,
    /// Only what was started within this time, such as 10m or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<Duration>,
    /// Only what changed this path or something beneath it
    #[arg(long, value_name = "PATH")]
    pub path: Option<OsString>,
    /// Times, directories, sessions and names
    #[arg(long, short)]
    pub long: bool,
    /// List what ends from now on, until Ctrl-C
    #[arg(long, short, conflicts_with_all = ["json", "since", "limit"])]
    pub follow: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct Ui {
    /// Everything, not only what was recorded in, or changed something in, this Git working tree or directory
    #[arg(long)]
    pub all: bool,
    /// Also commands that changed nothing
    #[arg(long)]
    pub reads: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
}

#[derive(Debug, Args)]
pub struct History {
    /// The path; of a directory, what is beneath it counts
    pub path: OsString,
    /// What each recording did to it, as `diff` prints it
    #[arg(long, conflicts_with = "json")]
    pub diff: bool,
    /// At most this many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Mcp {
    /// The directory whose project it is about [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Everything in the library, not only what concerns this project
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args, Default)]
pub struct Undo {
    /// The recordings: identifiers or at least four characters of them, names, or @~1 [default: the newest that is
    /// not undone; with --session, all of the session]; then paths, if only these and what is beneath them is to be
    /// undone [without a recording: of the newest that changed one of them]
    #[arg(value_name = "SNAP|PATH")]
    pub recordings: Vec<PathBuf>,
    /// Paths, whatever recording has that name
    #[arg(value_name = "PATHS", last = true)]
    pub paths: Vec<OsString>,
    /// The newest N
    #[arg(short, value_name = "N", value_parser = number::<NonZeroUsize>, conflicts_with_all = ["recordings", "since"])]
    pub number: Option<NonZeroUsize>,
    /// All that was started within this time, such as 10m or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "recordings")]
    pub since: Option<Duration>,
    /// Pick in the terminal which paths to undo
    #[arg(long, short, conflicts_with_all = ["json", "dry_run"])]
    pub interactive: bool,
    /// Also the later recordings that changed something which these had changed
    #[arg(long)]
    pub with_later: bool,
    /// The options of both.
    #[command(flatten)]
    pub options: UndoOptions,
}

#[derive(Debug, Args, Default)]
pub struct Redo {
    /// The recording [default: what was undone last]
    #[arg(value_name = "SNAP")]
    pub recording: Option<PathBuf>,
    /// The options of both.
    #[command(flatten)]
    pub options: UndoOptions,
}

// Options of both `undo` and `redo`.
#[derive(Debug, Args, Default)]
pub struct UndoOptions {
    /// Choose from everything, not only from what concerns this Git working tree or directory
    #[arg(long)]
    pub all: bool,
    /// What is put back.
    #[command(flatten)]
    pub extent: RestoreExtent,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print that as a diff of the live files
    #[arg(long, requires = "dry_run", conflicts_with = "json")]
    pub diff: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// The digest of the plan that was seen: no other one is carried out; no option sets it.
    #[arg(skip)]
    pub agreed: Option<String>,
}

// What of a state is put back, where not all of it is.
#[derive(Debug, Args, Default)]
pub struct RestoreExtent {
    /// Overwrite what has been changed since
    #[arg(long, conflicts_with = "skip_conflicts")]
    pub force: bool,
    /// Leave what has been changed since as it is, and put back the rest
    #[arg(long)]
    pub skip_conflicts: bool,
    /// Merge what has been changed since, where it is text: both changes are kept, and where they overlap, conflict
    /// markers are written (exit status 1)
    #[arg(long, conflicts_with = "force")]
    pub merge: bool,
    /// Leave out these paths and everything beneath them, by a pattern as in .gitignore (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// Leave Git's state as it is: HEAD, branches, index, stash
    #[arg(long)]
    pub no_git: bool,
    /// Take content that the snapshot lacks from a file, which must be what PATH was (repeatable)
    #[arg(long, value_name = "PATH=FILE")]
    pub provide: Vec<OsString>,
    /// Overwrite what has been changed since of Git's state; its reflogs keep every entry
    #[arg(long, conflicts_with = "no_git")]
    pub force_git: bool,
}

// Which session's recordings a verb may see.
#[derive(Debug, Args, Default, Clone)]
pub struct SessionAccess {
    /// Only the recordings of this session, wherever they are; without ID of the one that this is run in [env:
    /// AGENT_SNAPSHOT_SESSION]
    #[arg(long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    pub session: Option<String>,
    /// Allow a recording of another session, which is written to the library's audit.jsonl
    #[arg(long)]
    pub allow_cross_session: bool,
    /// Only recordings that concern this directory, whatever names them; no option sets it.
    #[arg(skip)]
    pub confined_to: Option<Vec<u8>>,
    /// A word for a recording is never a path or directory; no option sets it.
    #[arg(skip)]
    pub recordings_only: bool,
}

// The same of a verb that names snapshots, and the other way to name one.
#[derive(Debug, Args, Default, Clone)]
pub struct SnapshotAccess {
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
    /// Instead of SNAP: a reference, as --json prints it
    // Never read: [`Cli::of_process`] puts it in the place of SNAP.
    #[arg(long = "ref", value_name = "JSON")]
    pub reference: Option<OsString>,
}

impl From<SessionAccess> for SnapshotAccess {
    fn from(access: SessionAccess) -> SnapshotAccess {
        SnapshotAccess { access, reference: None }
    }
}

impl Deref for SnapshotAccess {
    type Target = SessionAccess;

    fn deref(&self) -> &SessionAccess {
        &self.access
    }
}

#[derive(Debug, Args, Default)]
pub struct Show {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory; or a path
    /// [default: the last that changed something; with --session, all of the session as if they were one]
    #[arg(value_name = "SNAP|PATH")]
    pub snap: Option<PathBuf>,
    /// Only these paths and everything beneath them
    pub paths: Vec<OsString>,
    /// The same after `--`, whatever recording has that name
    #[arg(value_name = "PATHS", last = true)]
    pub after: Vec<OsString>,
    /// Only paths that were changed
    #[arg(long)]
    pub changed: bool,
    /// Only paths that were created
    #[arg(long)]
    pub created: bool,
    /// Only paths that were deleted
    #[arg(long)]
    pub deleted: bool,
    /// Only paths that were read
    #[arg(long)]
    pub read: bool,
    /// Only paths that were looked up
    #[arg(long)]
    pub existence: bool,
    /// Only paths that this process used
    #[arg(long, value_name = "ID")]
    pub process: Option<u32>,
    /// Operations, modes, times and processes of each path
    #[arg(long, short)]
    pub long: bool,
    /// The process tree
    #[arg(long)]
    pub processes: bool,
    /// The addresses that sockets were connected or bound to, or sent to
    #[arg(long)]
    pub network: bool,
    /// The calls that rules refused
    #[arg(long)]
    pub refused: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Cat {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory; or the path alone, of
    /// the last that changed something
    #[arg(value_name = "SNAP|PATH")]
    pub snap: PathBuf,
    /// The path
    #[arg(conflicts_with = "at")]
    pub path: Option<OsString>,
    /// The bytes at this time, whichever snapshot has them: so long ago (1h), a date and time, or a time of today
    #[arg(long, value_name = "WHEN", value_parser = moment, conflicts_with_all = ["before", "reference"])]
    pub at: Option<jiff::Timestamp>,
    /// The bytes before the command instead of those after it
    #[arg(long)]
    pub before: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// A JSON object with the bytes in base64
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Report {
    /// The snapshots: each @ (the newest), @~1, an identifier or its beginning, a name, or a directory [default: the last
    /// that changed something]
    #[arg(value_name = "SNAP")]
    pub snaps: Vec<PathBuf>,
    /// All recordings of the library
    #[arg(long, conflicts_with = "snaps")]
    pub all: bool,
    /// The file to write; `-` is standard output
    #[arg(long, short, value_name = "FILE", required_unless_present = "markdown")]
    pub output: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Markdown below 1 MiB, for a pull request or a job summary [default without -o: to standard output]
    #[arg(long)]
    pub markdown: bool,
    /// Show the secrets of command lines; the content of secret files is never shown
    #[arg(long)]
    pub no_redact: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object, about the file that was written
    #[arg(long, requires = "output")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Attest {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory [default: the last that
    /// changed something]
    pub snap: Option<PathBuf>,
    /// A file that the attestation is about (repeatable) [default: all that the command changed and left]
    #[arg(long, value_name = "PATH")]
    pub subject: Vec<OsString>,
    /// Attest an incomplete recording, too; its gaps are named
    #[arg(long)]
    pub allow_incomplete: bool,
    /// Identity of the machine or CI platform, such as https://github.com [default: its machine id]
    #[arg(long, value_name = "URI")]
    pub host_id: Option<String>,
    /// What kind of process this was, such as the buildType of a CI platform
    #[arg(long, value_name = "URI")]
    pub build_type: Option<String>,
    /// The job, such as the URL of the CI run [default: the snapshot's identifier]
    #[arg(long, value_name = "TEXT")]
    pub event: Option<String>,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "agent-snapshot export [OPTIONS] <SNAP> <FILE|->\n       agent-snapshot export [OPTIONS] --tables <DIR> <SNAP>...|--all|--compact"
)]
pub struct Export {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory; and the archive: a name
    /// that ends in .tar, .tar.gz or .tar.zst, or - for standard output. With --tables: one snapshot or several
    #[arg(value_name = "SNAP", required_unless_present_any = ["all", "compact"])]
    pub snaps: Vec<PathBuf>,
    /// Compression of the archive [default: by the name; of standard output: none]
    #[arg(long, value_enum)]
    pub compress: Option<ArchiveCompressionChoice>,
    /// Also the files before and after the command, under files/before and files/after, as `tar -xf` unpacks them
    #[arg(long)]
    pub expand: bool,
    /// Keep secrets: the content of secret files, and secret values in command lines
    #[arg(long)]
    pub no_redact: bool,
    /// Replace FILE if it exists
    #[arg(long)]
    pub force: bool,
    /// Write Parquet tables into this directory; what it has of a recording already is left as it is
    #[arg(long, value_name = "DIR", conflicts_with_all = ["compress", "expand", "no_redact", "force"])]
    pub tables: Option<PathBuf>,
    /// All recordings of the library
    #[arg(long, conflicts_with = "snaps", requires = "tables")]
    pub all: bool,
    /// Join the small files that earlier exports have left, while others may read them
    #[arg(long, conflicts_with_all = ["snaps", "all"], requires = "tables")]
    pub compact: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args, Default)]
pub struct Diff {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory; or a path
    /// [default: the last that changed something; with --session, all of the session as if they were one]
    #[arg(value_name = "SNAP|PATH")]
    pub snap: Option<PathBuf>,
    /// Only these paths and everything beneath them
    pub paths: Vec<OsString>,
    /// The same after `--`, whatever recording has that name
    #[arg(value_name = "PATHS", last = true)]
    pub after: Vec<OsString>,
    /// Include paths outside the working directory; names are relative to /
    #[arg(long)]
    pub root: bool,
    /// Lines added and removed for each path
    #[arg(long)]
    pub stat: bool,
    /// Status letter and name of each path
    #[arg(long)]
    pub name_status: bool,
    /// Exit with 1 if there are differences
    #[arg(long)]
    pub exit_code: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory [default: the last that
    /// changed something]
    pub snap: Option<PathBuf>,
    /// Compare with the state before the command: would it see the same inputs?
    #[arg(long)]
    pub before: bool,
    /// Exit status if the files differ
    #[arg(long, value_enum, default_value_t = DriftPolicy::Strict)]
    pub drift_policy: DriftPolicy,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PolicyCheck {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory [default: the last that
    /// changed something]
    pub snap: Option<PathBuf>,
    /// All recordings of the library
    #[arg(long, conflicts_with = "snap")]
    pub all: bool,
    /// What the command may do.
    #[command(flatten)]
    pub rules: PolicyRules,
    /// Say which rule decides on writing, reading and executing this path, or on connecting to this address, and why;
    /// without SNAP, as in a recording that is started here
    #[arg(long, value_name = "PATH|HOST[:PORT]", conflicts_with_all = ["all", "allow_incomplete", "sarif", "code_quality"])]
    pub explain: Option<OsString>,
    /// Let a recording pass that may lack something
    #[arg(long)]
    pub allow_incomplete: bool,
    /// SARIF 2.1.0, for code hosts
    #[arg(long, conflicts_with = "json")]
    pub sarif: bool,
    /// A Code Quality report, for GitLab
    #[arg(long, conflicts_with_all = ["json", "sarif"])]
    pub code_quality: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Write the rules that allow what recordings did, and little more, as a file for --policy
    From(PolicyFrom),
}

#[derive(Debug, Args)]
pub struct PolicyFrom {
    /// The snapshots: @ (the newest), @~1, an identifier or its beginning, a name, or a directory [default: the last that
    /// changed something]
    #[arg(value_name = "SNAP")]
    pub snaps: Vec<PathBuf>,
    /// All recordings of the library
    #[arg(long, conflicts_with = "snaps")]
    pub all: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
}

/// Whether a difference makes the exit status 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DriftPolicy {
    /// Exit with 1
    Strict,
    /// Report it, and exit with 0
    Off,
}

#[derive(Debug, Args)]
pub struct Restore {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory; with --at a path
    #[arg(value_name = "SNAP|PATH")]
    pub snap: PathBuf,
    /// Only these paths and everything beneath them
    pub paths: Vec<OsString>,
    /// Undo: put back the state before the command
    #[arg(long)]
    pub before: bool,
    /// Put back the paths as they were at this time, whichever snapshots have them: so long ago (1h), a date and
    /// time, or a time of today
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = moment,
        conflicts_with_all = ["before", "into", "foreign", "preserve", "reference", "merge"]
    )]
    pub at: Option<jiff::Timestamp>,
    /// Build the state under DIR (new or empty) and touch no live file
    #[arg(long, value_name = "DIR", conflicts_with = "merge")]
    pub into: Option<PathBuf>,
    /// What is put back.
    #[command(flatten)]
    pub extent: RestoreExtent,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print that as a diff of the live files
    #[arg(long, requires = "dry_run", conflicts_with = "json")]
    pub diff: bool,
    /// Allow a snapshot from another machine or user
    #[arg(long)]
    pub foreign: bool,
    /// With --into or --foreign: also restore ownership and set-ID bits
    #[arg(long)]
    pub preserve: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Branch {
    /// The snapshot: @ (the newest), @~1, an identifier or its beginning, a name, or a directory
    pub snap: PathBuf,
    /// The directory to build it in: new or empty
    pub dir: PathBuf,
    /// Only these paths and everything beneath them
    pub paths: Vec<OsString>,
    /// The state before the command
    #[arg(long)]
    pub before: bool,
    /// Also put back ownership and set-ID bits
    #[arg(long)]
    pub preserve: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Compression of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArchiveCompressionChoice {
    /// No compression
    None,
    /// gzip
    Gz,
    /// zstd
    Zst,
}

#[derive(Debug, Args)]
pub struct Import {
    /// The archive, or - for standard input
    pub file: PathBuf,
    /// A new or empty directory for the snapshot [default: the library]
    pub dir: Option<PathBuf>,
    /// The SHA-256 that the archive must have
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<String>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Recover {
    /// The directory of the recording; or a recording of the library: an identifier or at least four characters of it, a
    /// name, or @
    #[arg(value_name = "SNAP|DIR")]
    pub recording: PathBuf,
    /// Only remove what the recording has left
    #[arg(long)]
    pub discard: bool,
    /// Whose recording.
    #[command(flatten)]
    pub access: SessionAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Delete {
    /// The recordings: identifiers or at least four characters of them, names, or @~1
    #[arg(value_name = "SNAP", required = true)]
    pub recordings: Vec<PathBuf>,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SnapshotAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

// Without a rule, the limits of the configuration apply.
#[derive(Debug, Args)]
pub struct Prune {
    /// Keep the newest N
    #[arg(long, value_name = "N")]
    pub keep_last: Option<usize>,
    /// Keep what was started within this time, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub keep_within: Option<Duration>,
    /// Delete the oldest until the library is no larger than this, such as 5GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Print what would be deleted, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
    /// As a recording starts it: no message, and nothing where the configuration has a fault
    #[arg(long, hide = true, conflicts_with_all = ["keep_last", "keep_within", "max_size", "dry_run"])]
    pub automatic: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Stats {
    /// Whose recordings.
    #[command(flatten)]
    pub access: SessionAccess,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Fsck {
    /// Make the log again, recover killed recordings and complete what was being deleted
    #[arg(long)]
    pub repair: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Init {
    /// The agent or tool
    #[arg(value_enum, value_name = "AGENT")]
    pub target: InitTarget,
    /// Print what would be written, and change nothing
    #[arg(long)]
    pub print: bool,
    /// Take back what was written
    #[arg(long, conflicts_with = "force")]
    pub remove: bool,
    /// In your settings for all projects, the default
    #[arg(long, conflicts_with = "project")]
    pub user: bool,
    /// In the settings for the project in the current directory
    #[arg(long)]
    pub project: bool,
    /// Replace another shell that is set there
    #[arg(long)]
    pub force: bool,
    /// Let the hook approve each command, without the agent asking you: Cursor takes a rewritten command only so
    #[arg(long, conflicts_with = "remove")]
    pub auto_approve: bool,
    /// Only print a shell alias that runs the agent in a session
    #[arg(long, conflicts_with_all = ["print", "remove", "user", "project", "force", "auto_approve", "mcp"])]
    pub session: bool,
    /// Not what records its commands, but the tools of `agent-snapshot mcp`, with which it lists and undoes them
    #[arg(long, conflicts_with = "auto_approve")]
    pub mcp: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Uninstall {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Hook {
    /// The agent, whose question is read from standard input
    #[arg(value_enum)]
    pub agent: AgentName,
    /// Approve the command, if the agent takes it only so
    #[arg(long)]
    pub auto_approve: bool,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// The agent; none checks what all have in common, and which of them are set up
    #[arg(value_enum)]
    pub agent: Option<AgentName>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// An agent whose commands can be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AgentName {
    /// Claude Code
    ClaudeCode,
    /// opencode
    Opencode,
    /// aider
    Aider,
    /// Gemini CLI
    Gemini,
    /// Cursor
    Cursor,
    /// Copilot CLI
    Copilot,
    /// goose
    Goose,
    /// Codex
    Codex,
}

/// What `init` sets up: an agent, a tool, or what an agent is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InitTarget {
    /// Claude Code
    ClaudeCode,
    /// opencode
    Opencode,
    /// aider
    Aider,
    /// Gemini CLI, by a hook
    Gemini,
    /// Cursor, by a hook
    Cursor,
    /// Copilot CLI, by a hook
    Copilot,
    /// goose: only printed
    Goose,
    /// Codex, by a hook
    Codex,
    /// Qwen Code: only printed
    Qwen,
    /// bubblewrap, for the sandbox of Claude Code: only printed
    Bubblewrap,
    /// bash, for each terminal to be a session: only printed
    Bash,
    /// zsh, likewise: only printed
    Zsh,
    /// fish, likewise: only printed
    Fish,
    /// GitHub Actions: only printed
    GithubActions,
    /// make: only printed
    Make,
    /// just: only printed
    Just,
    /// npm: only printed
    Npm,
    /// A skill for Claude Code, which says how it lists and undoes its own commands
    Skill,
}

/// The word on the command line.
pub fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Reads a number that is not zero.
///
/// # Errors
/// A sentence that says what it has to be.
fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "it is a whole number, at least 1".to_owned())
}

/// Reads a size: a number of bytes, or one with a unit (k, M, G, T as 1024, also KiB, and kB as 1000).
///
/// # Errors
/// A sentence that says what a size is.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "a size is a whole number with a unit, such as 64MiB or 1000".to_owned())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("{unit:?} is not a unit of size: use KiB, MiB, GiB or TiB")),
    };
    number.checked_mul(factor).ok_or_else(|| "the size is larger than any file".to_owned())
}

/// Reads a duration such as `90s`, `1h 30m` or a number of seconds.
///
/// # Errors
/// A sentence that says what a duration is.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().map(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let duration = match seconds {
        Some(seconds) => seconds,
        None => {
            let span = text.parse::<jiff::Span>().ok();
            let of_days = jiff::SpanRelativeTo::days_are_24_hours();
            let exact = span.and_then(|span| span.to_duration(of_days).ok());
            exact.and_then(|duration| Duration::try_from(duration).ok())
        }
    };
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "a duration is a number of seconds or one with units, such as 90s or 1h30m".to_owned())
}

/// Reads a moment that has passed: a duration before now, an RFC 3339 time, a local date and time, or a time of today.
///
/// # Errors
/// A sentence that says what a moment is.
pub fn moment(text: &str) -> Result<jiff::Timestamp, String> {
    use jiff::civil::{DateTime, Time};
    let now = jiff::Zoned::now();
    let local = |time: DateTime| time.to_zoned(now.time_zone().clone()).ok().map(|time| time.timestamp());
    let of_today = |time: Time| local(now.date().to_datetime(time));
    // `04:50:05` could be a duration, too, and `90` a time.
    let time_of_day = || text.contains(':').then(|| text.parse::<Time>().ok()).flatten();
    let moment = text
        .parse()
        .ok()
        .or_else(|| text.parse::<DateTime>().ok().and_then(local))
        .or_else(|| time_of_day().and_then(of_today))
        .or_else(|| {
            let ago = text.strip_suffix("ago").unwrap_or(text).trim_end();
            duration(ago).ok().and_then(|ago| now.timestamp().checked_sub(ago).ok())
        });
    let moment = moment.ok_or_else(|| {
        "a time is a duration before now (1h), a date and time (2026-11-23 10:30), or a time of today (10:30)".to_owned()
    })?;
    if moment > now.timestamp() { Err("it is in the future".to_owned()) } else { Ok(moment) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["agent-snapshot"], line].concat())
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_recording_option_first_makes_a_subcommands_name_a_command() {
        let cli = parse(&["--snapshot-dir", "out", "restore", "--before", "x"]).unwrap();
        assert!(cli.verb.is_none());
        assert_eq!(cli.record.options.command, ["restore", "--before", "x"]);
    }

    #[test]
    fn a_bare_subcommand_is_one() {
        let cli = parse(&["restore", "snap", "--before"]).unwrap();
        assert!(matches!(cli.verb, Some(Verb::Restore(Restore { before: true, .. }))));
    }

    #[test]
    fn options_after_the_command_are_the_commands() {
        let cli = parse(&["--output", "o", "--quiet", "ls", "--quiet", "--", "-l"]).unwrap();
        assert_eq!(cli.record.options.command, ["ls", "--quiet", "--", "-l"]);
        let cli = parse(&["--output", "o", "--", "--odd-name"]).unwrap();
        assert_eq!(cli.record.options.command, ["--odd-name"]);
    }

    #[test]
    fn a_recording_needs_a_directory_and_a_command() {
        assert!(parse(&["ls"]).is_err());
        assert!(parse(&["--snapshot-dir", "out"]).is_err());
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn a_reference_takes_the_place_of_the_snapshot() {
        let rewritten = |line: &[&str]| {
            let arguments = line.iter().map(OsString::from).collect();
            reference_as_snapshot(arguments).join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(rewritten(&["a", "cat", "path", "--ref", "{}", "--json"]), "a cat {} path --json");
        assert_eq!(rewritten(&["a", "undo", "--ref={1}", "-n", "--ref", "{2}"]), "a undo {1} {2} -n");
        assert_eq!(rewritten(&["a", "cat", "x", "--", "--ref", "{}"]), "a cat x -- --ref {}");
        assert_eq!(rewritten(&["a", "run", "cat", "--ref", "{}"]), "a run cat --ref {}");
        assert_eq!(rewritten(&["a", "show", "--ref"]), "a show --ref");
    }

    #[test]
    fn a_reference_is_offered_where_a_snapshot_is() {
        let has =
            |verb: &clap::Command, id: &str| verb.get_arguments().any(|argument| argument.get_id() == id);
        let mut command = Cli::command();
        command.build();
        // No reference tells of a recording that was killed.
        let is_about_snapshots =
            |verb: &&clap::Command| has(verb, "session") && !matches!(verb.get_name(), "run" | "recover");
        for verb in command.get_subcommands().filter(is_about_snapshots) {
            let names = |argument: &clap::Arg| {
                let names = argument.get_value_names().unwrap_or_default();
                argument.is_positional() && names.iter().any(|name| name.starts_with("SNAP"))
            };
            let takes_snapshot = verb.get_arguments().any(names);
            assert_eq!(has(verb, "reference"), takes_snapshot, "{}", verb.get_name());
        }
        assert!(parse(&["log", "--ref", "{}"]).is_err());
    }

    #[test]
    fn numbers_are_at_least_one() {
        for line in [&["undo", "-n", "0"][..], &["run", "--answering-threads", "0", "true"]] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains("at least 1"), "{error}");
        }
        let error = parse(&["undo", "-n", "x"]).unwrap_err().to_string();
        assert!(error.contains("it is a whole number"), "{error}");
        assert!(parse(&["undo", "-n", "1"]).is_ok());
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
        assert_eq!(size("1 kB"), Ok(1000));
        for wrong in ["", "MiB", "-1", "1.5M", "1QB", "99999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_seconds_or_have_units() {
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "0", "-1", "soon", "-5s", "inf", "nan"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn moments_are_in_the_past() {
        let ago = |text: &str| {
            let moment = moment(text).unwrap();
            jiff::Timestamp::now().duration_since(moment).as_secs()
        };
        assert_eq!([ago("1h"), ago("90s"), ago("2d"), ago("5 minutes ago")], [3600, 90, 172_800, 300]);
        let time = |text: &str| moment(text).unwrap();
        let local = |text: &str| {
            let zone = jiff::tz::TimeZone::system();
            text.parse::<jiff::civil::DateTime>().unwrap().to_zoned(zone).unwrap().timestamp()
        };
        assert_eq!(time("2026-01-02T03:04:05Z").to_string(), "2026-01-02T03:04:05Z");
        assert_eq!(time("2026-01-02T03:04:05+02:00").to_string(), "2026-01-02T01:04:05Z");
        assert_eq!(time("2026-01-02 03:04"), local("2026-01-02T03:04:00"));
        assert_eq!(time("2026-01-02"), local("2026-01-02T00:00:00"));
        let today = jiff::Zoned::now().date();
        assert_eq!(
            [time("00:00"), time("00:00:01")],
            ["00", "01"].map(|s| local(&format!("{today}T00:00:{s}")))
        );
        for wrong in ["", "soon", "-1h", "2999-01-01", "2026-02-30 10:00", "25:00"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
