//! A repository and a home directory of its own, in which a client runs against the model server.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use agent_snapshot::snapshot::change::PathEffect;
use agent_snapshot::snapshot::{FileRecord, Snapshot};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use regex::Regex;
use serde_json::Value;

use super::Client;
use crate::support::{
    BINARY, NOBODY, PATIENCE, Run, SHELL, copy_program, describe_recorded, give_away, has, is_root, json,
    scan_without,
};

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/agents");

/// How long a client may take for all of its commands, in seconds.
const LIMIT: &str = "120";

/// How a client runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As if we did not exist.
    Bare,
    /// As `init` sets it up.
    Wired,
    /// Recorded as a whole.
    Whole,
    /// Recorded step by step.
    Session,
    /// The same, with rules that are enforced and allow it to write to these files of its own.
    Enforced(&'static [&'static str]),
}

/// What is in the repository and what Git says of it.
pub type State = Vec<String>;

/// The commands that the model asks for.
pub fn commands() -> Vec<String> {
    serde_json::from_value(json(&Path::new(TESTDATA).join("commands.json"))).unwrap()
}

/// Those that the user of a client runs: aider has a line for each.
pub fn commands_of(client: &Client) -> Vec<String> {
    let is_possible = |command: &String| client.name != "aider" || !command.contains('\n');
    commands().into_iter().filter(is_possible).collect()
}

/// Where a registry's clients are, installed on the first call; if that fails, the reason of a skip is printed.
pub fn installed(registry: &'static str) -> Option<&'static Path> {
    static NPM: OnceLock<Option<PathBuf>> = OnceLock::new();
    static PYPI: OnceLock<Option<PathBuf>> = OnceLock::new();
    let place = if registry == "npm" { &NPM } else { &PYPI };
    place.get_or_init(|| install(registry)).as_deref()
}

fn install(registry: &str) -> Option<PathBuf> {
    let needed: &[&str] = if registry == "npm" { &["npm", "node"] } else { &["/usr/bin/python3", "script"] };
    if !["git", "python3", "setpriv"].iter().chain(needed).all(|program| has(program)) {
        return None;
    }
    let pinned = json(&Path::new(TESTDATA).join("clients.json"))[registry].clone();
    let is_newest = std::env::var_os("AGENTS_NEWEST").is_some_and(|value| value == "1");
    let target = Path::new(BINARY).ancestors().nth(2).unwrap();
    let cache = target.join(if is_newest { "agents-newest" } else { "agents" }).join(registry);
    fs::create_dir_all(&cache).unwrap();
    // Several runs of the tests share it.
    let lock = File::create(cache.join("lock")).unwrap();
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error).unwrap();
    let (stamp, wanted) = (cache.join("installed.json"), pinned.to_string());
    if is_newest || fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        let (words, joint): (&[&str], _) = match registry {
            "npm" => (&["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix"], "@"),
            _ => (&["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--upgrade", "--target"], "=="),
        };
        let packages =
            pinned.as_object().unwrap().iter().map(|(name, version)| match (is_newest, registry) {
                (false, _) => format!("{name}{joint}{}", version.as_str().unwrap()),
                (true, "npm") => format!("{name}@latest"),
                (true, _) => name.clone(),
            });
        let mut installer = Command::new(words[0]);
        installer.args(&words[1..]).arg(&cache).args(packages);
        let output = installer.stdin(Stdio::null()).output().unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            println!("skipped: the clients of {registry} can't be installed: {said}");
            return None;
        }
        // npm may leave out the scripts that put the program of this machine in place.
        for script in ["@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs"] {
            let script = cache.join("node_modules").join(script);
            if registry == "npm" {
                let mut node = Command::new("node");
                let output = node.current_dir(script.parent().unwrap()).arg(&script).output().unwrap();
                assert!(output.status.success(), "{}: {output:?}", script.display());
            }
        }
        fs::write(&stamp, wanted).unwrap();
    }
    Some(cache)
}

/// What an agent was asked for, in the command line that it gave its shell.
pub fn asked_for(line: &str) -> String {
    // Claude Code, and Gemini CLI and Qwen Code.
    let around = [
        r"(?s)&& eval '(.*)' (?:\\?< /dev/null )?&& pwd -P >\|",
        r"(?s)_bgpids_file.*' EXIT\n(.*)\n\)\n__code=",
    ];
    let found =
        around.iter().find_map(|pattern| Some(Regex::new(pattern).unwrap().captures(line)?[1].to_owned()));
    found.map_or_else(|| line.to_owned(), |line| line.replace(r"'\''", "'").replace("'\"'\"'", "'"))
}

/// Whether a recording is one of what the client runs for itself.
pub fn is_own_of(client: &Client, entry: &Value) -> bool {
    let line = line_of(entry);
    client.own.contains(&line.split_once('=').map_or(line, |(name, _)| name))
}

/// The command line that the shell of a recording was given, behind `-c` and `-l`.
pub fn line_of(entry: &Value) -> &str {
    let words = entry["command"].as_array().unwrap();
    let mut words = words.iter().map(|word| word.as_str().unwrap_or_default());
    words.find(|word| *word == "-c").and_then(|_| words.find(|word| *word != "-l")).unwrap_or("?")
}

/// Whether a recording has changed something.
pub fn changes(entry: &Value) -> bool {
    ["created", "changed", "deleted"].iter().any(|kind| entry[kind] != 0) || entry.get("git").is_some()
}

/// Results without the lines by which those of a recorded client differ from those of one that runs alone.
pub fn without_differences(client: &Client, results: &[String]) -> Vec<String> {
    let is_left_out = |line: &str| client.differs_by.iter().any(|start| line.starts_with(start));
    let rest = |text: &String| {
        let lines: Vec<&str> = text.trim_end().lines().filter(|line| !is_left_out(line)).collect();
        lines.join("\n").trim_end().to_owned()
    };
    results.iter().map(rest).collect()
}

/// A client that has run.
pub struct Lab {
    root: tempfile::TempDir,
    /// Where the client is installed.
    place: &'static Path,
    client: Client,
    /// Its home directory.
    pub home: PathBuf,
    /// The repository that it ran in.
    pub repository: PathBuf,
    /// The state of the repository before.
    pub before: State,
    /// The settings that `init` edits, before it did.
    pub settings_before: BTreeMap<&'static str, Option<Vec<u8>>>,
}

impl Lab {
    /// Runs a client with the commands of all.
    pub fn run(client: &Client, mode: Mode) -> Option<Lab> {
        let commands = commands_of(client);
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        Lab::run_commands(client, mode, &commands, "")
    }

    /// Runs a client with some commands, and rules of its user's in the settings that name them.
    pub fn run_commands(client: &Client, mode: Mode, commands: &[&str], rules: &str) -> Option<Lab> {
        Lab::run_calls(client, mode, &commands.into(), rules)
    }

    /// The same with commands and calls of tools, as the model server takes them.
    pub fn run_calls(client: &Client, mode: Mode, calls: &Value, rules: &str) -> Option<Lab> {
        // Codex keeps its helper programs out of the temporary directory.
        Lab::run_calls_in("/var/tmp", client, mode, calls, rules)
    }

    /// The same in a new directory below another one.
    pub fn run_calls_in(
        parent: &str,
        client: &Client,
        mode: Mode,
        calls: &Value,
        rules: &str,
    ) -> Option<Lab> {
        if !client.needs.iter().all(|program| has(program)) {
            return None;
        }
        let place = installed(if client.name == "aider" { "pypi" } else { "npm" })?;
        // Sandboxes of Codex share their mount points in /tmp, and the last one removes them.
        static SANDBOX: Mutex<()> = Mutex::new(());
        let _alone = client
            .command
            .contains(&"workspace-write")
            .then(|| SANDBOX.lock().unwrap_or_else(PoisonError::into_inner));
        let root = tempfile::Builder::new().prefix("agents-").tempdir_in(parent).unwrap();
        let [home, repository, bin] = ["home", "repo", "bin"].map(|name| root.path().join(name));
        for directory in [&home, &repository, &bin] {
            fs::create_dir(directory).unwrap();
        }
        [BINARY, SHELL].iter().for_each(|program| copy_program(program, &bin));
        let mut lab = Lab {
            client: *client,
            before: State::new(),
            settings_before: BTreeMap::new(),
            home,
            repository,
            place,
            root,
        };
        lab.own();
        lab.shell(
            "git init -q -b main && git config user.name u && git config user.email u@example.org && mkdir src sub \
             && echo a > src/a.c && echo keep > sub/k && git add -A && git commit -qm one && echo b > src/b.c \
             && git add -A && git commit -qm two && echo 'call Ada' > notes.txt && mkfifo ../go",
        );
        fs::write(lab.at("commands.json"), calls.to_string()).unwrap();
        let lines = calls.as_array().into_iter().flatten().filter_map(Value::as_str);
        fs::write(lab.at("steps"), lines.map(|line| format!("/run {line}\n")).collect::<String>()).unwrap();
        let server = ModelServer::start(&lab.at("commands.json"), &lab.at("given.jsonl"));
        for (name, text) in client.settings {
            let path = lab.home.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = text.replace("{port}", &server.port.to_string()).replace("{rules}", rules);
            fs::write(path, text).unwrap();
        }
        lab.own();
        lab.settings_before =
            client.edited.iter().map(|name| (*name, fs::read(lab.home.join(name)).ok())).collect();
        let mut startup = String::new();
        if mode == Mode::Wired {
            if let Some(arguments) = client.init {
                lab.own_program(&[&["init"], arguments].concat()).expect(0);
            }
            if let Some(recipe) = client.recipe {
                // The lines for Qwen Code are those for each agent that takes the bash of PATH.
                let lines = lab.own_program(&["init", recipe]).expect(0).stdout;
                startup = lines.replace("qwen", client.command[0]);
            }
        }
        lab.before = lab.state();
        // Open as long as the client runs: what waits for a line in the background can be woken afterwards.
        let mut go = File::options().read(true).write(true).open(lab.at("go")).unwrap();
        let words: Vec<String> = client.command.iter().map(|word| quoted(word)).collect();
        let recorded = match mode {
            Mode::Bare | Mode::Wired => String::new(),
            Mode::Whole => "agent-snapshot run -- ".to_owned(),
            Mode::Session => "agent-snapshot session --name session -- ".to_owned(),
            Mode::Enforced(own) => {
                let own: String = own.iter().map(|file| format!(" --allow-write '{file}'")).collect();
                let rules = "--allow-write @workspace --allow-write @tmp --deny-read @secrets";
                format!("agent-snapshot session --enforce {rules}{own} -- ")
            }
        };
        let script = format!("{startup}\n{recorded}{}\n", words.join(" "));
        let mut run = lab.as_user("timeout", &[LIMIT, "bash", "-c", &script]);
        let (port, python) = (server.port.to_string(), place.display().to_string());
        run.envs(
            client
                .environment
                .iter()
                .map(|(name, value)| (*name, value.replace("{port}", &port).replace("{python}", &python))),
        );
        let output = run.output().unwrap();
        fs::write(lab.at("output"), [output.stdout.as_slice(), &output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{}: {}", output.status, lab.output());
        go.write_all(b"go\n").unwrap();
        lab.wait_for_recordings();
        Some(lab)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// What the client printed.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.at("output")).unwrap_or_default()).into_owned()
    }

    /// Gives all of it to the ordinary user.
    fn own(&self) {
        if is_ordinary() {
            give_away(self.root.path());
        }
    }

    /// A program in the repository as the ordinary user, with an environment of its own.
    fn as_user(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = match is_ordinary() {
            true => {
                let id = NOBODY.to_string();
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]);
                command
            }
            false => Command::new(program),
        };
        let clients = self.place.join("node_modules/.bin").display().to_string();
        let system = std::env::var("PATH").unwrap();
        command
            .args(arguments)
            .current_dir(&self.repository)
            .env_clear()
            .env("PATH", format!("{}:{clients}:{system}", self.at("bin").display()))
            .env("HOME", &self.home)
            .env("LANG", "C.UTF-8")
            .stdin(Stdio::null());
        command
    }

    fn shell(&self, script: &str) -> String {
        let run: Run = self.as_user("sh", &["-c", script]).output().unwrap().into();
        run.expect(0).stdout
    }

    fn own_program(&self, arguments: &[&str]) -> Run {
        self.as_user("agent-snapshot", arguments).output().unwrap().into()
    }

    /// The results that the model was given, without what differs from run to run or with a recording.
    pub fn given(&self) -> Vec<String> {
        without_differences(&self.client, &self.results())
    }

    /// The results that the model was given, without what differs from run to run.
    pub fn results(&self) -> Vec<String> {
        let text = fs::read_to_string(self.at("given.jsonl")).unwrap_or_default();
        let patterns = [
            (r"(Process Group PGID|PID|PGID|session ID|Chunk ID|shellId|Wall time): ?[0-9a-f.]+", "$1: N"),
            (r"Background PIDs: [0-9, ]+", "Background PIDs: N"),
            (r"\b[0-9.]+ seconds", "N seconds"),
            (r"Original token count: [0-9]+", "Original token count: N"),
            // Qwen Code may see the hangup of its terminal, or not.
            (r"Signal: [0-9]+", "Signal: N"),
            // Codex names the command as it was rewritten.
            (r#"(?s)Rejected\(.*?` rejected: "#, "Rejected: "),
            (r"pid-?[0-9]+|exec-[0-9a-f-]+", "ID"),
        ];
        let patterns = patterns.map(|(pattern, with)| (Regex::new(pattern).unwrap(), with));
        text.lines()
            .map(|line| {
                let result: Value = serde_json::from_str(line).unwrap();
                let mut text = texts(&result).replace(&self.root.path().display().to_string(), "LAB");
                for (pattern, with) in &patterns {
                    text = pattern.replace_all(&text, *with).into_owned();
                }
                text
            })
            .collect()
    }

    /// What rules have refused, in all recordings: how which path was to be used, and the rule.
    pub fn refused(&self) -> BTreeSet<String> {
        let snapshots = self.home.join(".local/state/agent-snapshot/snapshots");
        let of = |entry: io::Result<fs::DirEntry>| {
            let manifest = json(&entry.unwrap().path().join("manifest.json"));
            manifest["refused"].as_array().cloned().unwrap_or_default()
        };
        let text = |refused: &Value, key: &str| refused[key].as_str().unwrap_or_default().to_owned();
        let refused = fs::read_dir(snapshots).into_iter().flatten().flat_map(of);
        let line = |refused: Value| {
            let path = text(&refused, "path").replace(&self.root.path().display().to_string(), "LAB");
            format!("{} {path}: {}", text(&refused, "operation"), text(&refused, "rule"))
        };
        refused.map(line).collect()
    }

    /// The recordings, the oldest first.
    pub fn log(&self) -> Vec<Value> {
        let run = self.own_program(&["log", "--json", "--reads", "--all"]).expect(0);
        let log: Value = serde_json::from_str(&run.stdout).unwrap();
        let mut entries = log["recordings"].as_array().unwrap().clone();
        entries.reverse();
        entries
    }

    /// Waits until no recording goes on.
    fn wait_for_recordings(&self) {
        let snapshots = self.home.join(".local/state/agent-snapshot/snapshots");
        for entry in fs::read_dir(snapshots).into_iter().flatten() {
            // The session that ends removes the directory that it had made for its next step.
            let directory = match File::open(entry.unwrap().path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                directory => directory.unwrap(),
            };
            let (sender, locked) = mpsc::channel();
            // `flock` has no timeout.
            thread::spawn(move || sender.send(Flock::lock(directory, FlockArg::LockExclusive).map(drop)));
            let deadline = Instant::now() + PATIENCE;
            let ended = loop {
                self.end_orphaned_sandboxes();
                match locked.recv_timeout(Duration::from_secs(1)) {
                    Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                    ended => break ended,
                }
            };
            ended.expect("a recording does not end").unwrap();
        }
    }

    /// Ends the sandboxes of Claude Code that stay for ever, with us and without: it ends `bwrap` when a command takes too
    /// long, and the first process inside only ends with it once it has asked for that (`--die-with-parent`).
    fn end_orphaned_sandboxes(&self) {
        let root = self.root.path().display().to_string();
        let command_of = |process: &str| fs::read_to_string(format!("/proc/{process}/cmdline"));
        let is_bwrap =
            |process: &str| command_of(process).is_ok_and(|command| command.starts_with("bwrap\0"));
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let process = entry.file_name().to_string_lossy().into_owned();
            let Ok(id) = process.parse() else { continue };
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let last_of = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key));
                line.and_then(|line| line.split_whitespace().last()).unwrap_or_default()
            };
            let is_of_here = is_bwrap(&process) && command_of(&process).is_ok_and(|it| it.contains(&root));
            if is_of_here && last_of("NSpid:") == "1" && !is_bwrap(last_of("PPid:")) {
                // It may have ended meanwhile.
                let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
            }
        }
    }

    /// Asserts that only what the commands are about is recorded as changed.
    pub fn assert_no_machinery(&self, entry: &Value) {
        let id = entry["id"].as_str().unwrap();
        let found = self.own_program(&["show", id, "--json"]).expect(0);
        let id = serde_json::from_str::<Value>(&found.stdout).unwrap()["id"].as_str().unwrap().to_owned();
        let snapshots = self.home.join(".local/state/agent-snapshot/snapshots");
        let directories = fs::read_dir(snapshots).unwrap().map(|entry| entry.unwrap().path());
        let directory = directories
            .filter(|path| path.file_name().is_some_and(|name| id.starts_with(&*name.to_string_lossy())))
            .min()
            .unwrap_or_else(|| panic!("there is no {id}"));
        let snapshot = Snapshot::open(&directory).unwrap();
        let names = ["src", "notes.txt", "new.txt", "late.txt", ".git"];
        let is_change = |file: &&FileRecord| PathEffect::of(file).lasts() && !file.is_inherited_alone();
        for file in snapshot.files().iter().filter(is_change) {
            let path = String::from_utf8_lossy(&file.path).into_owned();
            let name = Path::new(&path).strip_prefix(&self.repository).ok();
            let first = name.map(|name| name.iter().next().unwrap_or_default());
            // Of a directory that something was added to, its time.
            let is_known = |first: &OsStr| first.is_empty() || names.iter().any(|name| first == *name);
            assert!(first.is_some_and(is_known), "{path} in {entry}");
        }
    }

    /// Undoes a recording, if it has changed something.
    pub fn undo(&self, entry: &Value) {
        if changes(entry) {
            self.own_program(&["undo", entry["id"].as_str().unwrap()]).expect(0);
        }
    }

    /// Redoes a recording.
    pub fn redo(&self, entry: &Value) {
        self.own_program(&["redo", entry["id"].as_str().unwrap()]).expect(0);
    }

    /// Redoes all recordings, and undoes them at once.
    pub fn redo_and_undo_all(&self, log: &[Value]) {
        let ids: Vec<&str> =
            log.iter().filter(|entry| changes(entry)).map(|entry| entry["id"].as_str().unwrap()).collect();
        for id in &ids {
            self.own_program(&["redo", id]).expect(0);
        }
        self.own_program(&[&["undo"], ids.as_slice()].concat()).expect(0);
    }

    /// Undoes all of the session, or a step of it. A directory above what is left out stays.
    pub fn undo_in_session(&self, step: Option<&Value>) {
        let run = match step {
            Some(step) => self.own_program(&["undo", step["id"].as_str().unwrap()]),
            None => self.own_program(&["undo", "--session", "session"]),
        };
        assert!(
            run.status == 0 || run.status == 1 && run.stdout.contains("that the snapshot does not know"),
            "{run:?}"
        );
    }

    /// Takes back what `init` has set up.
    pub fn take_back(&self) {
        if let Some([name, options @ ..]) = self.client.init {
            let mcp = options.iter().copied().filter(|option| *option == "--mcp");
            let arguments: Vec<&str> = ["init", name, "--remove"].into_iter().chain(mcp).collect();
            self.own_program(&arguments).expect(0);
        }
    }

    /// A settings file below the home directory.
    pub fn settings(&self, name: &str) -> String {
        fs::read_to_string(self.home.join(name)).unwrap_or_default()
    }

    /// What `show` prints of a recording.
    pub fn show(&self, entry: &Value) -> String {
        self.own_program(&["show", entry["id"].as_str().unwrap()]).expect(0).stdout
    }

    /// What `doctor` says of the client: something is wrong.
    pub fn doctor(&self) -> String {
        self.own_program(&["doctor", self.client.name]).expect(1).stdout
    }

    /// What is in the repository, and what Git says of it.
    pub fn state(&self) -> State {
        let git = self.repository.join(".git");
        // Claude Code makes directories of its own.
        let is_left_out = |path: &Path| path == git || path.ends_with(".claude");
        let mut state = describe_recorded(&scan_without(&self.repository, is_left_out));
        let said = self.shell(
            "git log --all --format='%H %d %s' && git status --porcelain=v2 --branch && git stash list",
        );
        state.extend(said.lines().map(str::to_owned));
        state
    }
}

impl Drop for Lab {
    /// Removes its directory, also where a process that outlives a client adds a file meanwhile.
    fn drop(&mut self) {
        let is_left = || fs::remove_dir_all(self.root.path()).is_err() && self.root.path().exists();
        for _ in 0..100 {
            if !is_left() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether root runs the clients as an ordinary user.
fn is_ordinary() -> bool {
    is_root() && std::env::var_os("AGENTS_AS_ROOT").is_none_or(|value| value != "1")
}

/// All texts of a result, in order.
fn texts(result: &Value) -> String {
    match result {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(texts).collect::<Vec<_>>().join("\n"),
        Value::Object(fields) => {
            let known = fields.iter().filter(|(name, _)| *name != "type");
            known.map(|(_, value)| texts(value)).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The model server, which ends with the test.
pub struct ModelServer {
    process: Child,
    answers: BufReader<ChildStdout>,
    /// Where it listens.
    pub port: u16,
}

impl ModelServer {
    /// One that asks for the commands of a file.
    fn start(commands: &Path, log: &Path) -> ModelServer {
        ModelServer::with(
            Command::new("python3").arg(Path::new(TESTDATA).join("model_server.py")).args([commands, log]),
        )
    }

    /// One that asks for what it is told.
    pub fn to_be_told() -> ModelServer {
        let mut server = Command::new("python3");
        ModelServer::with(server.arg(Path::new(TESTDATA).join("model_server.py")).stdin(Stdio::piped()))
    }

    fn with(server: &mut Command) -> ModelServer {
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        ModelServer { process, answers, port: line.trim().parse().expect("the port of the model server") }
    }

    /// Has an agent run a command, or call another tool; what it has answered.
    pub fn tell(&mut self, call: &Value) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{call}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
    }

    /// Has no more for the agent to do.
    pub fn end_turn(&mut self) {
        drop(self.process.stdin.take());
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
