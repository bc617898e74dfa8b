//! What a command is started with, as a key: everything that it can see without a system call that names a path.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::FileType;
use rustix::io::FdFlags;
use sha2::{Digest as _, Sha256};

/// Variables that differ from one shell or terminal to the next and mean nothing to what a command makes, unless it
/// asks for them by name. A `*` at the end stands for any characters.
pub const IGNORED_VARIABLES: [&str; 23] = [
    "_",
    "AGENT_SNAPSHOT_SESSION",
    "CODEX_THREAD_ID",
    "GPG_TTY",
    "INVOCATION_ID",
    "ITERM_SESSION_ID",
    "JOURNAL_STREAM",
    "OLDPWD",
    "SHELL_SESSION_ID",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "STY",
    "TERM_SESSION_ID",
    "TMUX",
    "TMUX_PANE",
    "WINDOW",
    "WINDOWID",
    "WT_SESSION",
    "XDG_SESSION_*",
    "XDG_VTNR",
];

/// The lines of `/proc/self/status` that a command inherits (proc_pid_status(5)).
const INHERITED: [&str; 19] = [
    "Umask:",
    "Uid:",
    "Gid:",
    "Groups:",
    "SigBlk:",
    "SigIgn:",
    "CapInh:",
    "CapPrm:",
    "CapEff:",
    "CapBnd:",
    "CapAmb:",
    "NoNewPrivs:",
    "Seccomp:",
    "Seccomp_filters:",
    "Speculation_Store_Bypass:",
    "SpeculationIndirectBranch:",
    "THP_enabled:",
    "Cpus_allowed:",
    "Mems_allowed:",
];

/// The field of `/proc/self/stat` with the real-time priority; the scheduling policy is the next one.
const PRIORITY: usize = 40;

/// What this process hands on to a command besides its descriptors.
#[derive(Debug, Clone)]
pub struct Inheritance(String);

impl Inheritance {
    /// What this process would hand on now: to be taken before it changes anything of itself. `io_priority` is what
    /// ioprio_get(2) says of it.
    ///
    /// # Errors
    /// procfs can't be read.
    pub fn of_this_process(io_priority: i64) -> io::Result<Inheritance> {
        let status = fs::read_to_string("/proc/self/status")?;
        let is_inherited = |line: &&str| INHERITED.iter().any(|name| line.starts_with(name));
        let mut text: String = status.lines().filter(is_inherited).flat_map(|line| [line, "\n"]).collect();
        text.push_str(&fs::read_to_string("/proc/self/limits")?);
        for more in ["personality", "attr/current", "oom_score_adj", "timerslack_ns", "coredump_filter"] {
            // None of them need be there.
            text.push_str(&fs::read_to_string(Path::new("/proc/self").join(more)).unwrap_or_default());
            text.push('\n');
        }
        // The name of the program may have spaces. The fields are counted from 1 (proc_pid_stat(5)).
        let stat = fs::read_to_string("/proc/self/stat")?;
        let fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
        let scheduling: Vec<&str> = fields.skip(PRIORITY - 3).take(2).collect();
        text.push_str(&format!("real-time priority and policy {scheduling:?}\n"));
        let secure_bits = rustix::thread::capabilities_secure_bits()?;
        text.push_str(&format!("secure bits {secure_bits:?} I/O priority {io_priority}\n"));
        let nice = rustix::process::getpriority_process(None)?;
        text.push_str(&format!("nice {nice}\n"));
        Ok(Inheritance(text))
    }
}

/// How a command is started.
#[derive(Debug)]
pub struct CommandStart<'a> {
    /// The file to execute.
    pub program: &'a [u8],
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// The directory that it starts in.
    pub directory: &'a [u8],
    /// What else it inherits.
    pub inheritance: &'a Inheritance,
    /// More variables that do not count, as in [`IGNORED_VARIABLES`].
    pub ignored_variables: &'a [String],
    /// The descriptors beyond standard error that it inherits, each with the file type bits of its mode.
    pub descriptors: &'a [(u32, u32)],
    /// Whether standard output and standard error go to the same place.
    pub has_one_output: bool,
}

/// A key: two starts with the same one differ only in what is found at paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(pub(super) String);

impl CommandStart<'_> {
    /// The key of this start, with the environment and the standard input of this process.
    ///
    /// # Errors
    /// Standard input can't be read.
    pub fn key(&self) -> io::Result<Key> {
        let mut hasher = Sha256::new();
        let mut add = |what: &str, bytes: &[u8]| {
            hasher.update(format!("{what} {}\n", bytes.len()));
            hasher.update(bytes);
        };
        add("program", self.program);
        for argument in self.arguments {
            add("argument", argument.as_bytes());
        }
        add("directory", self.directory);
        add("inherited", self.inheritance.0.as_bytes());
        add("descriptors", format!("{:?}", self.descriptors).as_bytes());
        add("outputs", if self.has_one_output { b"one" } else { b"two" });
        let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        variables.sort();
        for (name, value) in variables.iter().filter(|(name, _)| !self.ignores(name)) {
            add("variable", name.as_bytes());
            add("value", value.as_bytes());
        }
        let system = rustix::system::uname();
        for part in [
            system.sysname(),
            system.nodename(),
            system.domainname(),
            system.release(),
            system.version(),
            system.machine(),
        ] {
            add("system", part.to_bytes());
        }
        add("input", standard_input()?.as_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        Ok(Key(faster_hex::hex_string(&digest)))
    }

    fn ignores(&self, name: &OsStr) -> bool {
        let more = self.ignored_variables.iter().map(String::as_str);
        IGNORED_VARIABLES.into_iter().chain(more).any(|ignored| names(ignored, name))
    }
}

/// Whether a variable has this name, or one that begins so if a `*` ends it.
pub fn names(pattern: &str, variable: &OsStr) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => variable.as_bytes().starts_with(start.as_bytes()),
        None => variable.as_bytes() == pattern.as_bytes(),
    }
}

/// The offset of standard input, if that is a regular file.
///
/// # Errors
/// It can't be examined.
pub fn input_offset() -> io::Result<Option<u64>> {
    let input = std::io::stdin();
    let stat = rustix::fs::fstat(input.as_fd())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    Ok(Some(rustix::fs::seek(input.as_fd(), rustix::fs::SeekFrom::Current(0))?))
}

/// What standard input shows: how it is open, and of a regular file its content and all that fstat(2) says, since every
/// `cat` asks for that, and that no record does.
fn standard_input() -> io::Result<String> {
    let input = std::io::stdin();
    if rustix::io::fcntl_getfd(&input)?.contains(FdFlags::CLOEXEC) {
        return Ok("closed".to_owned());
    }
    let link = Path::new("/proc/self/fd/0");
    let (name, flags) = (fs::read_link(link)?, rustix::fs::fcntl_getfl(&input)?);
    let mut text = format!("{name:?} {flags:?}");
    if let Some(offset) = input_offset()? {
        let stat = rustix::fs::fstat(&input)?;
        // By its link: it may have no name any more.
        let digest = crate::snapshot::digest::digest_file(&fs::File::open(link)?)?.0;
        text.push_str(&format!(
            " offset {offset} content {digest} inode {:?} mode {:o} owner {:?} size {} modified {:?} links {}",
            (stat.st_dev, stat.st_ino),
            stat.st_mode,
            (stat.st_uid, stat.st_gid),
            stat.st_size,
            (stat.st_mtime, stat.st_mtime_nsec),
            stat.st_nlink,
        ));
    }
    Ok(text)
}
