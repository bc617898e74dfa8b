//! The program that agents are given is a copy, which `init` brings up to date and `uninstall` removes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::server::AGENTS as SERVERS;
use super::{Installed, VARIABLES};
use crate::support::{BINARY, NOBODY, Place, Run, SHELL, User, copy_program, is_root, needs_root};

/// A package that has the programs, and the user's settings of every agent.
struct Package {
    place: Place,
    program: PathBuf,
    copy: PathBuf,
}

/// The agents whose settings are files, with their settings before and their options.
const AGENTS: [(&str, Option<&str>, &[&str]); 8] = [
    ("claude-code", Some("{\n  \"model\": \"x\"\n}\n"), &[]),
    ("opencode", Some("{ // mine\n}\n"), &[]),
    ("aider", Some("model: x # why\n"), &[]),
    ("gemini", None, &[]),
    ("cursor", Some("{\"version\": 1, \"hooks\": {}}"), &["--auto-approve"]),
    ("copilot", None, &["--auto-approve"]),
    ("codex", Some("{}\n"), &[]),
    ("skill", None, &[]),
];

/// Asserts that settings are the same; only those that are not are shown.
#[track_caller]
fn assert_same(now: &[(PathBuf, String)], expected: &[(PathBuf, String)]) {
    let only = |one: &[(PathBuf, String)], other: &[(PathBuf, String)]| -> Vec<_> {
        one.iter().filter(|file| !other.contains(file)).cloned().collect()
    };
    assert_eq!(only(now, expected), only(expected, now));
}

impl Package {
    fn of(user: User) -> Package {
        let place = Place::of(user);
        let directory = place.base().join("package");
        fs::create_dir(&directory).unwrap();
        copy_program(BINARY, &directory);
        let copy = place.home.join(".local/share/agent-snapshot/bin/agent-snapshot");
        Package { program: directory.join("agent-snapshot"), place, copy }
    }

    fn run_in(&self, directory: &Path, program: &Path, arguments: &[&str]) -> Run {
        let mut command = self.place.program(program);
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.args(arguments).env("SHELL", "/bin/sh").current_dir(directory).output().unwrap().into()
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.run_in(&self.place.work, &self.program, arguments)
    }

    /// The settings files that are there, but for our own, with their text.
    fn settings(&self) -> Vec<(PathBuf, String)> {
        let roots = [&self.place.home, &self.place.config, &self.place.work];
        let files = roots.into_iter().flat_map(|root| walkdir::WalkDir::new(root).sort_by_file_name());
        let files = files.map(Result::unwrap).filter(|entry| entry.file_type().is_file());
        let files = files.map(walkdir::DirEntry::into_path);
        files
            .filter(|path| !path.starts_with(self.place.home.join(".local")))
            .filter(|path| !path.starts_with(self.place.config.join("agent-snapshot")))
            .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
            .collect()
    }

    fn prepare(&self) {
        let Place { home, config, .. } = &self.place;
        let files = [
            home.join(".claude/settings.json"),
            config.join("opencode/opencode.json"),
            home.join(".aider.conf.yml"),
            home.join(".gemini/settings.json"),
            home.join(".cursor/hooks.json"),
            home.join(".copilot/hooks/agent-snapshot.json"),
            home.join(".codex/hooks.json"),
            home.join(".claude/skills/agent-snapshot/SKILL.md"),
        ];
        for (path, (_, text, _)) in files.iter().zip(AGENTS) {
            if let Some(text) = text {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        }
        if is_root() && !self.place.is_of_current_user() {
            [home, config].into_iter().for_each(|directory| crate::support::give_away(directory));
        }
    }
}

#[test]
fn agents_are_set_up_upgraded_and_given_back() {
    for user in User::all() {
        let package = Package::of(*user);
        package.prepare();
        let before = package.settings();
        let elsewhere = package.place.at("other");
        package.place.prepare("mkdir other");
        for (agent, _, options) in AGENTS {
            let run = package.run(&[&["init", agent], options].concat()).expect(0);
            assert_eq!(run.stderr.contains("copied this program to "), agent == AGENTS[0].0, "{run:?}");
        }
        for agent in SERVERS {
            package.run(&["init", agent, "--mcp"]).expect(0);
        }
        package.run(&["init", "claude-code", "--project"]).expect(0);
        package.run_in(&elsewhere, &package.program, &["init", "gemini", "--project"]).expect(0);
        let set = package.settings();
        let named: Vec<_> =
            set.iter().filter(|(_, text)| text.contains(package.copy.to_str().unwrap())).collect();
        // Those of Gemini and opencode are in a file that names the copy already.
        let of_servers = SERVERS.len() - 2;
        assert_eq!(named.len(), AGENTS.len() + 1 + of_servers, "all but the skill name the copy: {named:#?}");
        assert!(set.iter().all(|(_, text)| !text.contains("/package/")), "{set:#?}");
        assert_eq!(fs::read(&package.copy).unwrap(), fs::read(&package.program).unwrap());
        let owner = fs::metadata(&package.copy).unwrap();
        assert_eq!(
            (owner.uid() == NOBODY, owner.mode() & 0o777),
            (fs::metadata(&package.place.home).unwrap().uid() == NOBODY, 0o755)
        );

        // An agent goes on when the package is gone.
        let installed = package.place.base().join("package");
        fs::rename(&installed, package.place.base().join("gone")).unwrap();
        let shell = package.copy.with_file_name("agent-snapshot-bash");
        package.run_in(&package.place.work, &shell, &["-c", "echo recorded > file"]).expect(0);
        let log = package.run_in(&package.place.work, &package.copy, &["log"]).expect(0).stdout;
        assert!(log.contains("echo recorded > file"), "{log}");
        fs::remove_file(package.place.at("file")).unwrap();
        fs::rename(package.place.base().join("gone"), &installed).unwrap();

        // An upgrade, while an agent runs the copy of the older version.
        let fifo = package.place.at("fifo");
        package.place.prepare("mkfifo fifo");
        let mut agent = package.place.program(&shell);
        let agent = agent.args(["-c", "echo running; read line < fifo"]).stdout(Stdio::piped());
        let mut agent = agent.spawn().unwrap();
        let writer = package.place.write_to_fifo("fifo", "");
        let mut said = String::new();
        BufReader::new(agent.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "running\n");
        let newer = Command::new("sh").args(["-c", "printf newer >> \"$0\""]).arg(&package.program).status();
        assert!(newer.unwrap().success());
        let doctor = package.run(&["doctor"]);
        assert!(
            doctor.stdout.contains("/agent-snapshot, which agents run, is of another version"),
            "{doctor:?}"
        );
        let upgraded = package.run(&["init", "aider"]).expect(0);
        assert!(upgraded.stderr.contains("copied this program to "), "{upgraded:?}");
        assert!(upgraded.stdout.contains("nothing was changed"), "{upgraded:?}");
        assert_eq!(fs::read(&package.copy).unwrap(), fs::read(&package.program).unwrap());
        assert_same(&package.settings(), &set);
        (&writer).write_all(b"end\n").unwrap();
        assert!(agent.wait().unwrap().success());
        fs::remove_file(fifo).unwrap();

        let done = package.run(&["uninstall", "--json"]).expect(0);
        let done: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_same(&package.settings(), &before);
        // Codex has two files, and two projects have settings.
        assert_eq!(
            done["taken_back"].as_array().unwrap().len(),
            AGENTS.len() + 1 + 2 + SERVERS.len(),
            "{done:#}"
        );
        assert_eq!(done["failed"], json!([]));
        assert!(!package.place.home.join(".local/share/agent-snapshot").exists(), "{done:#}");
        assert!(Path::new(done["library"].as_str().unwrap()).join("snapshots").exists(), "{done:#}");
        let again = package.run(&["uninstall"]).expect(0);
        assert!(again.stdout.starts_with("nothing to take back: "), "{again:?}");
    }
}

#[test]
fn root_gives_the_copy_to_the_owner_of_the_home_directory() {
    if !needs_root("another owner") {
        return;
    }
    let package = Package::of(User::Nobody);
    let mut root = Command::new(&package.program);
    package.place.isolate(&mut root);
    root.env("AGENT_SNAPSHOT_LIBRARY", package.place.base().join("library-of-root"));
    assert!(root.args(["init", "aider"]).stdout(Stdio::null()).status().unwrap().success());
    for path in
        [&package.copy, &package.copy.with_file_name("agent-snapshot-bash"), package.copy.parent().unwrap()]
    {
        assert_eq!(fs::symlink_metadata(path).unwrap().uid(), NOBODY, "{}", path.display());
    }
    // So that the user can take it away.
    package.run(&["uninstall"]).expect(0);
    assert!(!package.copy.exists());
}

#[test]
fn program_stays_as_long_as_settings_name_it() {
    let package = Package::of(User::Current);
    package.run(&["init", "claude-code"]).expect(0);
    package.run(&["init", "gemini"]).expect(0);
    let settings = package.place.home.join(".claude/settings.json");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replacen('{', "{,", 1)).unwrap();
    let failed = package.run(&["uninstall"]).expect(1);
    assert!(
        failed.stderr.contains("not taken back: ") && failed.stderr.contains("settings.json, line 1"),
        "{failed:?}"
    );
    assert!(package.copy.exists() && !package.place.home.join(".gemini").exists(), "{failed:?}");
    fs::write(&settings, text).unwrap();
    // Whatever a later version may set and note.
    let noted =
        package.place.home.join(".local/state/agent-snapshot/init/agent-of-later-0123456789abcdef.json");
    let receipts = noted.parent().unwrap();
    let one = fs::read_dir(receipts).unwrap().next().unwrap().unwrap().path();
    fs::copy(one, &noted).unwrap();
    let failed = package.run(&["uninstall"]).expect(1);
    assert!(
        failed.stderr.contains("another version of agent-snapshot has set agent-of-later there"),
        "{failed:?}"
    );
    assert!(package.copy.exists());
    fs::remove_file(noted).unwrap();
    package.run(&["uninstall"]).expect(0);
    assert!(!package.copy.exists() && !settings.exists());
}

#[test]
fn nothing_is_copied_to_print_or_to_take_back() {
    let package = Package::of(User::Current);
    symlink(SHELL, package.program.with_file_name("agent-snapshot-bash")).unwrap();
    let copy = package.copy.to_str().unwrap();
    for arguments in [&["init", "claude-code", "--print"][..], &["init", "make", "--print"]] {
        let printed = package.run(arguments).expect(0);
        assert!(printed.stdout.contains(copy), "{printed:?}");
    }
    package.run(&["init", "claude-code", "--remove"]).expect(0);
    assert!(!package.copy.exists());
    // What goes into a startup file or a Makefile names it as well.
    let made = package.run(&["init", "make"]).expect(0);
    assert_eq!(made.stdout, format!("SHELL := {copy}-bash\n"));
    assert!(package.copy.exists());
}

/// The settings of [`Installed`] are those of a program that is its own copy.
#[test]
fn program_that_is_the_copy_is_left_alone() {
    let installed = Installed::of(User::Current);
    let before = fs::metadata(installed.bin.join("agent-snapshot")).unwrap().ino();
    let run = installed.run(&["init", "claude-code"]).expect(0);
    assert!(!run.stderr.contains("copied"), "{run:?}");
    assert_eq!(fs::metadata(installed.bin.join("agent-snapshot")).unwrap().ino(), before);
    installed.run(&["uninstall"]).expect(0);
    assert!(!installed.bin.exists());
}

#[test]
fn program_stays_for_a_project_that_is_not_there() {
    let package = Package::of(User::Current);
    package.place.prepare("mkdir project");
    let (project, moved) = (package.place.at("project"), package.place.at("moved"));
    package.run_in(&project, &package.program, &["init", "gemini", "--project"]).expect(0);
    fs::rename(&project, &moved).unwrap();
    let failed = package.run(&["uninstall"]).expect(1);
    assert!(failed.stderr.contains("it is not there now, and names the program"), "{failed:?}");
    assert!(package.copy.exists());
    fs::rename(&moved, &project).unwrap();
    package.run(&["uninstall"]).expect(0);
    assert!(!package.copy.exists() && !project.join(".gemini").exists());
}
