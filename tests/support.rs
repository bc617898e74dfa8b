//! A place of its own for each test, and the built binary run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agent_snapshot::snapshot::{FileRecord, Operation, Snapshot, WarningKind};

/// A directory to work in, with a home, a configuration and a snapshot directory beside it.
pub struct Place {
    base: tempfile::TempDir,
    /// Where the command runs.
    pub work: PathBuf,
    /// Where the snapshot goes.
    pub out: PathBuf,
}

/// The built binary.
pub const BINARY: &str = env!("CARGO_BIN_EXE_agent-snapshot");

impl Place {
    pub fn new() -> Place {
        Place::in_directory(&std::env::temp_dir())
    }

    /// A place below `directory`.
    pub fn in_directory(directory: &Path) -> Place {
        let base = tempfile::tempdir_in(directory).unwrap();
        let path = base.path().canonicalize().unwrap();
        for name in ["work", "home", "config"] {
            std::fs::create_dir(path.join(name)).unwrap();
        }
        Place { work: path.join("work"), out: path.join("out"), base }
    }

    /// The directory that holds all of it.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    /// The binary, in this place, without the developer's own settings.
    pub fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        self.isolate(&mut command);
        command
    }

    /// Another program, in this place.
    pub fn isolate(&self, command: &mut Command) {
        let home = self.work.with_file_name("home");
        command
            .current_dir(&self.work)
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", self.work.with_file_name("config"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env_remove("AGENT_SNAPSHOT_SESSION")
            .stdin(Stdio::null());
    }

    /// Records `sh -c script` with more options, and returns what it printed.
    pub fn record_with(&self, options: &[&str], script: &str) -> Output {
        let mut command = self.command();
        command.arg("--snapshot-dir").arg(&self.out).args(options).args(["sh", "-c", script]);
        command.output().unwrap()
    }

    /// Records `sh -c script`, which must succeed, and reads the snapshot.
    pub fn record(&self, script: &str) -> Snapshot {
        let output = self.record_with(&[], script);
        assert!(output.status.success(), "{output:?}");
        self.snapshot()
    }

    /// Reads the snapshot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::open(&self.out).unwrap()
    }

    /// The path of `name` below `work`, in bytes.
    pub fn path(&self, name: impl AsRef<Path>) -> Vec<u8> {
        self.work.join(name).into_os_string().into_encoded_bytes()
    }

    /// The record of `name` below `work`.
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

/// The stored bytes of the state before or after.
pub fn bytes(snapshot: &Snapshot, file: &FileRecord, before: bool) -> Vec<u8> {
    let state = if before { &file.before } else { &file.after };
    let present = state.present().unwrap();
    let key = present.blob.as_deref().unwrap_or_else(|| panic!("no blob: {present:?}"));
    let mut content = Vec::new();
    snapshot.read_blob(key, present.digest.as_ref(), &mut content).unwrap();
    content
}

/// The warnings that something was lost.
pub fn lost(snapshot: &Snapshot) -> Vec<WarningKind> {
    let warnings = snapshot.header().warnings.iter();
    warnings.filter(|warning| warning.lost).map(|warning| warning.kind).collect()
}

/// What was printed on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether the test runs as root; if not, the reason of a skip is printed.
pub fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: {what} needs root");
    }
    root
}
