//! A directory of its own for each test, and the built binary run in it.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use agent_snapshot::snapshot::{FileRecord, Operation, Snapshot};
use nix::fcntl::{Flock, FlockArg};

use super::{
    BINARY, NOBODY, Namespace, PATIENCE, User, copy_program, give_away, needs_root, unshare_mounts, works,
};

/// A directory to work in, with a home, a configuration and a snapshot directory beside it.
pub struct Place {
    _base: tempfile::TempDir,
    base: PathBuf,
    /// Where the command runs.
    pub work: PathBuf,
    /// Where the snapshot goes.
    pub out: PathBuf,
    /// The home directory.
    pub home: PathBuf,
    /// The configuration directory.
    pub config: PathBuf,
    user: User,
}

impl Place {
    pub fn new() -> Place {
        Place::in_directory(&std::env::temp_dir())
    }

    /// A place below `directory`.
    pub fn in_directory(directory: &Path) -> Place {
        let guard = tempfile::tempdir_in(directory).unwrap();
        let base = guard.path().canonicalize().unwrap();
        let [work, home, config, out] = ["work", "home", "config", "out"].map(|name| base.join(name));
        for directory in [&work, &home, &config] {
            fs::create_dir(directory).unwrap();
        }
        Place { _base: guard, base, work, out, home, config, user: User::Current }
    }

    /// A place that belongs to `user`, who runs the commands in it.
    pub fn of(user: User) -> Place {
        let place = Place { user, ..Place::new() };
        if user == User::Nobody {
            give_away(&place.base);
        }
        place
    }

    /// Whether the one who runs the tests runs the commands.
    pub fn is_of_current_user(&self) -> bool {
        self.user == User::Current
    }

    /// The directory that holds all of it.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// A path below `work`.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.work.join(name)
    }

    /// A path below `work`, in bytes.
    pub fn path(&self, name: impl AsRef<Path>) -> Vec<u8> {
        self.at(name).into_os_string().into_encoded_bytes()
    }

    /// Writes a file below `work`, with its parents.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        if self.user == User::Nobody {
            give_away(&self.work);
        }
    }

    /// Writes to a FIFO below `work`, whether or not anybody reads it: that may be done as long as the result is open.
    #[must_use]
    pub fn write_to_fifo(&self, name: &str, text: &str) -> fs::File {
        let mut fifo = fs::File::options().read(true).write(true).open(self.at(name)).unwrap();
        fifo.write_all(text.as_bytes()).unwrap();
        fifo
    }

    /// Makes a hard link below `work`.
    pub fn hard_link(&self, from: &str, to: &str) {
        fs::hard_link(self.at(from), self.at(to)).unwrap();
    }

    /// The inode number of a file below `work`.
    pub fn inode(&self, name: &str) -> u64 {
        fs::metadata(self.at(name)).unwrap().ino()
    }

    /// What is in the directory of the snapshot, sorted.
    pub fn names_in_out(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.out).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A program as the user of this place, with nothing of the developer's own settings.
    pub fn program(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(self.executable(program.as_ref()));
        self.isolate(&mut command);
        if self.user == User::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// The built binary as the user of this place.
    pub fn command(&self) -> Command {
        self.program(BINARY)
    }

    /// A program where the user of this place can execute it: a copy if it lies in a private directory.
    pub fn executable(&self, program: &Path) -> PathBuf {
        if self.user == User::Current || !program.is_absolute() {
            return program.to_owned();
        }
        let mut test = Command::new("test");
        let reachable = test.arg("-x").arg(program).uid(NOBODY).gid(NOBODY).status().unwrap().success();
        let copy = self.base.join(program.file_name().unwrap());
        if reachable {
            return program.to_owned();
        }
        if !copy.exists() {
            copy_program(program, &copy);
        }
        copy
    }

    /// Gives a command this place, and nothing of the developer's own settings.
    pub fn isolate(&self, command: &mut Command) {
        command
            .current_dir(&self.work)
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", &self.config)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("AGENT_SNAPSHOT_INSIDE_AFTER", "1") // with --mechanism inside
            .env("NO_COLOR", "1")
            .env_remove("CLICOLOR")
            .env_remove("CLICOLOR_FORCE")
            .env_remove("CI") // terminals of CI have colours
            .env_remove("LD_LIBRARY_PATH") // of cargo; our program is any program with it where rules are enforced
            .env_remove("AGENT_SNAPSHOT_SESSION")
            .env_remove("AGENT_SNAPSHOT_LIBRARY")
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("CLAUDE_CODE_SESSION_ID")
            .env_remove("CODEX_THREAD_ID")
            .env_remove("CLAUDECODE")
            .env_remove("OPENCODE")
            .env_remove("GEMINI_CLI")
            .env_remove("CURSOR_AGENT")
            .env_remove("GOOSE_TERMINAL")
            .stdin(Stdio::null());
    }

    /// Runs a shell script here, outside of any recording; it must succeed. What it printed.
    #[track_caller]
    pub fn prepare(&self, script: &str) -> String {
        let mut command = self.program("sh");
        for (name, value) in [("AUTHOR", "a"), ("COMMITTER", "c")] {
            command.env(format!("GIT_{name}_NAME"), value);
            command.env(format!("GIT_{name}_EMAIL"), format!("{value}@example.org"));
        }
        let output = command.args(["-euc", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The binary, ready for the command that is to be recorded by `mechanism`.
    pub fn recorder(&self, mechanism: &str) -> Command {
        let mut command = self.command();
        // What hangs is a failure, not the end of the tests.
        // mount(8) of the tests beside this one writes to /run/mount.
        let options =
            ["--ignore", "/run/mount", "--quiet", "--timeout", "300s", "--mechanism", mechanism, "--"];
        command.arg("--snapshot-dir").arg(&self.out).args(options);
        command
    }

    /// The binary, ready for the command that is to be recorded by `mechanism` in a namespace, or as a step of a session.
    pub fn recorder_in(&self, namespace: Namespace, mechanism: &str) -> Command {
        let mut command = match namespace.step() {
            None => self.recorder(mechanism),
            Some(_) => {
                let mut command = self.command();
                command.args([
                    "session",
                    "--name",
                    "s",
                    "--keep",
                    "all",
                    "--quiet",
                    "--ignore",
                    "/run/mount",
                ]);
                command.args(["--mechanism", mechanism, "--"]);
                command
            }
        };
        command.args(namespace.words(self));
        command
    }

    /// Reads the snapshot of a command that was recorded in a namespace; that of a step is moved to where others are.
    pub fn snapshot_in(&self, namespace: Namespace) -> Result<Snapshot, String> {
        if let Some(kind) = namespace.step() {
            let snapshots = self.home.join(".local/state/agent-snapshot/snapshots");
            let all = fs::read_dir(snapshots).map_err(|error| error.to_string())?;
            let all: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
            let is_it =
                |path: &&PathBuf| Snapshot::open(path).is_ok_and(|snapshot| snapshot.header().kind == kind);
            let steps: Vec<&PathBuf> = all.iter().filter(is_it).collect();
            let [step] = *steps else { return Err(format!("{kind:?}: {steps:?} of {all:?}")) };
            fs::rename(step, &self.out).unwrap();
        }
        Snapshot::open(&self.out).map_err(|error| error.to_string())
    }

    /// The binary, ready for more options and the command that is to be recorded.
    pub fn recording(&self) -> Command {
        let mut command = self.command();
        command.arg("--snapshot-dir").arg(&self.out);
        command
    }

    /// Records `sh -c script` with more options, and returns what it printed.
    pub fn record_with(&self, options: &[&str], script: &str) -> Output {
        self.recording().args(options).args(["sh", "-c", script]).output().unwrap()
    }

    /// Records `sh -c script`, which must succeed, and reads the snapshot.
    #[track_caller]
    pub fn record(&self, script: &str) -> Snapshot {
        let output = self.record_with(&[], script);
        assert!(output.status.success(), "{output:?}");
        self.snapshot()
    }

    /// Records `sh -c script`, which may fail, and reads the snapshot.
    #[track_caller]
    pub fn record_any(&self, script: &str) -> (Output, Snapshot) {
        let output = self.record_with(&[], script);
        (output, self.snapshot())
    }

    /// Whether a command succeeds here outside of any recording; if not, the reason of a skip is printed.
    pub fn can_run(&self, command: &[&str]) -> bool {
        works(self.program(command[0]).args(&command[1..]))
    }

    /// Runs the binary in the home directory.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Run {
        self.command().current_dir(&self.home).args(arguments).output().unwrap().into()
    }

    /// Runs a script in a mount namespace of its own, with the directory that holds all as `$1` and the
    /// binary as `$2`.
    pub fn run_unshared(&self, script: &str) -> Run {
        let mut command = self.program("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&self.base).arg(BINARY).current_dir(&self.home);
        command.output().unwrap().into()
    }

    /// Runs a verb on the snapshot with flags.
    pub fn verb(&self, verb: &str, flags: &[&str]) -> Run {
        self.verb_on(verb, &self.out, flags)
    }

    /// Runs a verb on another snapshot with flags.
    pub fn verb_on(&self, verb: &str, snapshot: &Path, flags: &[&str]) -> Run {
        self.run([verb.as_ref(), snapshot.as_os_str()].into_iter().chain(flags.iter().map(OsStr::new)))
    }

    /// Reads the snapshot.
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::open(&self.out).unwrap()
    }

    /// Waits for the end of a recording whose front is gone: it releases its lock.
    #[track_caller]
    pub fn wait_for_lock(&self) {
        let out = fs::File::open(&self.out).unwrap();
        let (sender, locked) = mpsc::channel();
        // `flock` has no timeout: what never ends fails one test, rather than be waited for by all.
        thread::spawn(move || sender.send(Flock::lock(out, FlockArg::LockExclusive).map(drop)));
        locked.recv_timeout(PATIENCE).expect("the recording does not end").unwrap();
    }

    /// The record of `name` below `work`.
    #[track_caller]
    pub fn file<'s>(&self, snapshot: &'s Snapshot, name: impl AsRef<Path>) -> &'s FileRecord {
        let path = self.path(&name);
        snapshot.find(&path).unwrap_or_else(|| panic!("{} is not recorded", name.as_ref().display()))
    }

    /// The names below `work` that have records, with their operations.
    pub fn recorded(&self, snapshot: &Snapshot) -> Vec<String> {
        let root = self.path("");
        let below = snapshot.files().iter().filter_map(|file| {
            let name = file.path.strip_prefix(root.as_slice())?;
            let operations: Vec<_> = file.operations.iter().map(Operation::name).collect();
            Some(format!("{} {}", String::from_utf8_lossy(name), operations.join("+")))
        });
        below.collect()
    }
}

/// What a run of the binary printed and how it ended.
#[derive(Debug)]
pub struct Run {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Run {
    /// Asserts that the run ended with `status`.
    #[track_caller]
    pub fn expect(self, status: i32) -> Run {
        assert_eq!(self.status, status, "{self:#?}");
        self
    }
}

/// A small filesystem at a directory, which the thread and its children alone see, and which is unmounted in the end.
pub struct SmallFilesystem(PathBuf);

impl SmallFilesystem {
    /// Mounts a tmpfs with `options` at `path`; if that is impossible, the reason of a skip is printed.
    pub fn at(path: &Path, options: &str) -> Option<SmallFilesystem> {
        if !needs_root("a small filesystem") {
            return None;
        }
        fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path);
        if unshare_mounts().is_err() || !mount.status().is_ok_and(|status| status.success()) {
            println!("skipped: mount is not allowed here");
            return None;
        }
        Some(SmallFilesystem(path.to_owned()))
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
