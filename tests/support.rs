//! The helpers of all tests: a directory for each test, programs to run in it, trees to compare.

mod bundle;
mod debian;
mod many;
mod namespace;
mod place;
mod process;
mod screen;
mod terminal;
mod tree;
mod user;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use agent_snapshot::snapshot::{FileRecord, Snapshot, WarningKind};
use agent_snapshot::trace::syscalls;

pub use bundle::{States, commit, file_record, header, make_bundle, records};
pub use debian::debian;
pub use many::multiply;
pub use namespace::{Namespace, unshare_mounts};
pub use place::{Place, Run, SmallFilesystem};
pub use process::{
    PATIENCE, command_of, descendants, kill, open_pty, pidfd_of, trace_program, trace_restore, trace_verb,
    traced_by, tracer_of, wait, wait_for_end,
};
pub use screen::Screen;
pub use terminal::Terminal;
pub use tree::{Entry, Tree, assert_same, describe, describe_recorded, scan, scan_without};
pub use user::{NOBODY, User, give_away, is_root, needs_root};

/// The built binary.
pub const BINARY: &str = env!("CARGO_BIN_EXE_agent-snapshot");

/// The built shell.
pub const SHELL: &str = env!("CARGO_BIN_EXE_agent-snapshot-bash");

/// The exit status of a test program that can't do here what it is for.
pub const SKIPPED: i32 = 77;

/// The mechanisms that a recording can be made with.
pub const MECHANISMS: [&str; 4] = ["auto", "stops", "every-call", "inside"];

/// The levels of `--keep`.
pub const LEVELS: [&str; 3] = ["all", "changes", "undo"];

/// A program of `test_programs/`, by the name of its example in Cargo.toml.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    // A run of all tests builds them, a run of this target alone does not.
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

/// Copies a program that is executed. In a process of its own: a file that another test's fork holds open for writing
/// can't be executed (ETXTBSY).
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().unwrap().success());
}

/// Whether a program is in the search path; if not, the reason of a skip is printed.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        println!("skipped: {program} is missing");
    }
    found
}

/// A script with numbers in place of the names of system calls, `SYS_mount`.
pub fn numbered(script: &str) -> String {
    let mut parts = script.split("SYS_");
    let mut numbered = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|next: char| !next.is_ascii_alphanumeric() && next != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        numbered += &format!("{}{rest}", syscalls::number(name));
    }
    numbered
}

/// Whether a command succeeds here; if not, the reason of a skip is printed.
pub fn works(command: &mut Command) -> bool {
    let works = command.output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: {command:?} does not work here");
    }
    works
}

/// Whether root can mount in a namespace of its own; if not, the reason of a skip is printed.
pub fn can_mount() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    needs_root("a mount")
        && *WORKS
            .get_or_init(|| works(Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "x", "/tmp"])))
}

/// The stored bytes of the state before or after.
pub fn bytes(snapshot: &Snapshot, file: &FileRecord, before: bool) -> Vec<u8> {
    let state = if before { &file.before } else { &file.after };
    let present = state.present().unwrap();
    let key = present.blob.as_deref().unwrap_or_else(|| panic!("no blob: {present:?}"));
    let mut content = Vec::new();
    snapshot.read_blob(key, present.digest.as_ref(), &mut content).unwrap();
    content
}

/// The warnings of a loss.
pub fn lost(snapshot: &Snapshot) -> Vec<WarningKind> {
    let warnings = snapshot.header().warnings.iter().filter(|warning| warning.lost);
    // Shown if the test fails.
    warnings.inspect(|warning| println!("{}", warning.detail)).map(|warning| warning.kind).collect()
}

/// What was printed on standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What was printed on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The status and the output of a command, for the message of a failure.
pub fn shown(output: &Output) -> String {
    format!("{}\n{}{}", output.status, stdout(output), stderr(output))
}

/// Sentences as the lines of one message.
pub fn lines(sentences: &[String]) -> String {
    sentences.iter().map(|sentence| format!("\n    {sentence}")).collect()
}

/// Changes the permissions of a path.
#[track_caller]
pub fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Sets an extended attribute, which not every filesystem has.
pub fn set_xattr(path: impl AsRef<Path>, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::setxattr(path.as_ref(), name, value, rustix::fs::XattrFlags::empty())
}

/// The content of `file`, read as JSON.
pub fn json(file: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The exit code of a command, or 1000 and the number of the signal that ended it.
pub fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| 1000 + output.status.signal().unwrap())
}

/// How often a slow test does something: as often as it says, or `SLOW_PERCENT` of that.
pub fn rounds(all: usize) -> usize {
    let percent = std::env::var("SLOW_PERCENT").map_or(100, |percent| percent.parse().unwrap());
    (all * percent).div_ceil(100)
}

/// The Python that has the modules: `PYTHON`, or the first one of PATH.
pub fn python_with_modules() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// Numbers that follow from a seed (xorshift64).
pub struct Random(u64);

impl Random {
    /// Numbers that a failure can be repeated with: the seed is printed, or taken from KILLS_SEED.
    pub fn seeded() -> Random {
        let seed = std::env::var("KILLS_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            u64::from(now.subsec_nanos()) << 20 | now.as_secs() & 0xf_ffff
        });
        println!("KILLS_SEED={seed}");
        Random::new(seed)
    }

    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }
}
