//! `init` and `doctor`: agents' settings are edited and given back byte for byte, and what an agent would run is
//! recorded.

mod copied;
mod hook;
mod printed;
mod server;
mod skill;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    BINARY, NOBODY, Place, Run, User, chmod, copy_program, give_away, is_root, needs_root, set_xattr,
};

/// The programs where `init` copies them, beside each other, and a place to use them in.
struct Installed {
    place: Place,
    /// The directory for the data of programs.
    data: PathBuf,
    bin: PathBuf,
}

/// Whether an agent's hook is set up only where the user allows that it lets commands escape their rules.
fn needs_approval(agent: &str) -> bool {
    ["cursor", "copilot"].contains(&agent)
}

impl Installed {
    fn of(user: User) -> Installed {
        let place = Place::of(user);
        let data = place.home.join(".local/share");
        let bin = data.join("agent-snapshot/bin");
        fs::create_dir_all(&bin).unwrap();
        copy_program(BINARY, &bin);
        symlink("agent-snapshot", bin.join("agent-snapshot-bash")).unwrap();
        if user == User::Nobody {
            give_away(&place.home);
        }
        Installed { place, data, bin }
    }

    /// In a directory whose name means something to a shell, to make and to npm.
    fn in_odd_directory() -> Installed {
        let Installed { place, data, .. } = Installed::of(User::Current);
        let odd = place.base().join("it's an odd#$name");
        fs::rename(data, &odd).unwrap();
        Installed { place, bin: odd.join("agent-snapshot/bin"), data: odd }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.program(self.bin.join("agent-snapshot"));
        command
            .args(arguments)
            .env("SHELL", "/bin/sh")
            .env("TMPDIR", self.place.base())
            .env("XDG_DATA_HOME", &self.data);
        for name in VARIABLES {
            command.env_remove(name);
        }
        command
    }

    /// Sets an agent up, with more options.
    fn init(&self, agent: &str, options: &[&str]) -> Run {
        let approve: &[&str] =
            if needs_approval(agent) && !options.contains(&"--remove") { &["--auto-approve"] } else { &[] };
        self.run(&[&["init", agent], approve, options].concat())
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().unwrap().into()
    }

    fn shell(&self) -> String {
        self.bin.join("agent-snapshot-bash").display().to_string()
    }

    /// The settings file of an agent.
    fn settings(&self, agent: &str) -> PathBuf {
        match agent {
            "claude-code" => self.place.home.join(".claude/settings.json"),
            "opencode" => self.place.config.join("opencode/opencode.json"),
            "aider" => self.place.home.join(".aider.conf.yml"),
            "gemini" => self.place.home.join(".gemini/settings.json"),
            "cursor" => self.place.home.join(".cursor/hooks.json"),
            "copilot" => self.place.home.join(".copilot/hooks/agent-snapshot.json"),
            "codex" => self.place.home.join(".codex/hooks.json"),
            _ => panic!("{agent}"),
        }
    }

    /// Writes an agent's settings, or removes them with the directory that they are in.
    fn write(&self, agent: &str, text: Option<&str>) -> PathBuf {
        let path = self.settings(agent);
        match text {
            Some(text) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, text).unwrap();
            }
            None if agent == "aider" => drop(fs::remove_file(&path)),
            None => drop(fs::remove_dir_all(path.parent().unwrap())),
        }
        if is_root() {
            let owner = fs::metadata(self.place.base()).unwrap().uid();
            let above = path.parent().filter(|above| above.exists()).unwrap_or(&self.place.home);
            if owner == NOBODY {
                give_away(above);
            }
        }
        path
    }

    /// All that is in the two directories where settings are, with what tells a file that was replaced.
    fn everything(&self) -> BTreeMap<PathBuf, (Vec<u8>, u64, i64)> {
        let walk =
            |root: &Path| walkdir::WalkDir::new(root).into_iter().map(|entry| entry.unwrap().into_path());
        let all = walk(&self.place.home).chain(walk(&self.place.config));
        let all = all.filter(|path| !path.starts_with(&self.bin));
        all.map(|path| {
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            (path, (content, stat.ino(), stat.ctime_nsec()))
        })
        .collect()
    }
}

/// The shell that records, which is built beside the binary.
const SHELL: &str = env!("CARGO_BIN_EXE_agent-snapshot-bash");

/// What would have an agent look elsewhere.
const VARIABLES: [&str; 8] = [
    "CLAUDE_CONFIG_DIR",
    "CLAUDE_CODE_SHELL",
    "AGENT_SNAPSHOT",
    "OPENCODE_CONFIG_CONTENT",
    "GEMINI_CLI_HOME",
    "CODEX_HOME",
    "COPILOT_HOME",
    "GOOSE_SHELL",
];

const JSON: [Option<&str>; 18] = [
    None,
    Some(""),
    Some("\n"),
    Some("{}"),
    Some("{ }\n"),
    Some("{\n}\n"),
    Some("\u{feff}{}\r\n"),
    Some("// only a comment\n"),
    Some("{\"a\":1}"),
    Some("{\"env\": {}}"),
    Some("{\n  \"env\": {\n  },\n  \"z\": [1, 2, {\"env\": 3}]\n}"),
    Some("{\n\t\"model\": \"x\", // why\n\t\"env\": {\"A\": \"1\"}\n}\n\n\n"),
    Some("{\r\n    \"env\": {\r\n        \"A\": \"1\" // one\r\n    }\r\n}"),
    Some("/* head */ {\n  // first\n  \"b\": null,\n  \"a\": \"\\u00e4 ö 😀\",\n} // tail"),
    Some(
        "{\"hooks\": {\"PreToolUse\": [{\"matcher\": \"Bash\", \"hooks\": []}]},\n \"env\": {\"B\":\"2\",},}",
    ),
    Some("{\n  \"env\": {\n    \"SHELL\": \"/bin/zsh\"\n  },\n  \"shells\": \"no\"\n}\n"),
    Some("{\n        \"deep\": {\n                \"er\": {}\n        }\n}\n"),
    Some("   {   \"a\"   :   1   }   "),
];

const YAML: [Option<&str>; 9] = [
    None,
    Some(""),
    Some("# only a comment"),
    Some("model: x # why\n"),
    Some("model: x"),
    Some("model: x\r\nset-env:\r\n  - A=b\r\ndark-mode: true\r\n"),
    Some("set-env:\n- A=b # keep\n- C=d\n\n# end\n"),
    Some("read: [a, b]\nset-env: [A=b]\n"),
    Some("---\nmodel: x\n"),
];

/// Hooks of the user's own.
const HOOKS: [Option<&str>; 6] = [
    Some("{\"hooks\": {}}"),
    Some("{\"hooks\": {\"BeforeTool\": [], \"preToolUse\": []}, \"version\": 1}\n"),
    Some(
        "{\n  \"version\": 1,\n  \"hooks\": {\n    \"preToolUse\": [\n      // mine\n      {\"command\": \"x\"}, // too\n    ]\n  }\n}\n",
    ),
    Some(
        "{\n\t\"hooks\": {\n\t\t\"BeforeTool\": [\n\t\t\t{\"matcher\": \".*\", \"hooks\": [{\"command\": \"x\"}]}\n\t\t]\n\t}\n}",
    ),
    Some("{\"hooks\": {\"stop\": [{\"command\": \"agent-snapshot log\"}]}}"),
    Some("{\"hooks\":{\"preToolUse\":[{\"bash\":\"x\"},{\"bash\":\"y\"}],\"BeforeTool\":[7]}}\r\n"),
];

fn texts() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let of = |agent| JSON.into_iter().map(move |text| (agent, text));
    let hooks = ["gemini", "cursor", "copilot", "codex"].into_iter();
    let hooks =
        hooks.flat_map(move |agent| of(agent).chain(HOOKS.into_iter().map(move |text| (agent, text))));
    let shells = of("claude-code").chain(of("opencode")).chain(YAML.into_iter().map(|text| ("aider", text)));
    shells.chain(hooks)
}

#[test]
fn settings_are_given_back_byte_for_byte() {
    for user in User::all() {
        let installed = Installed::of(*user);
        for (agent, text) in texts() {
            let path = installed.write(agent, text);
            let label = format!("{agent} {text:?}");
            if text.is_some() {
                chmod(&path, 0o640);
            }
            let printed = installed.init(agent, &["--print", "--json"]).expect(0);
            let planned: serde_json::Value = serde_json::from_str(&printed.stdout).unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), text, "{label}: --print changed it");
            installed.init(agent, &[]).expect(0);
            let set = fs::read_to_string(&path).unwrap();
            assert_eq!(planned["text"], set, "{label}");
            let hook = installed.bin.join(format!("agent-snapshot hook {agent}")).display().to_string();
            assert!(set.contains(&installed.shell()) || set.contains(&hook), "{label}: {set}");
            let before = installed.everything();
            let again = installed.init(agent, &[]).expect(0);
            assert!(again.stdout.contains("nothing was changed"), "{label}: {again:?}");
            assert_eq!(installed.everything(), before, "{label}");
            assert_eq!(
                fs::metadata(&path).unwrap().mode() & 0o777,
                if text.is_some() { 0o640 } else { 0o644 }
            );
            installed.run(&["init", agent, "--remove"]).expect(0);
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), text, "{label}");
            if text.is_none() && agent != "aider" {
                assert!(!path.parent().unwrap().exists(), "{label}: the directory was left");
            }
            let again = installed.run(&["init", agent, "--remove"]).expect(0);
            assert!(again.stdout.contains("nothing to take back"), "{label}: {again:?}");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), text, "{label}");
        }
    }
}

#[test]
fn of_settings_that_were_edited_since_only_ours_goes() {
    let installed = Installed::of(User::Current);
    let shell = installed.shell();
    let check = |agent: &str, before: Option<&str>, edit: &dyn Fn(String) -> String, after: Option<&str>| {
        let path = installed.write(agent, before);
        installed.run(&["init", agent]).expect(0);
        fs::write(&path, edit(fs::read_to_string(&path).unwrap())).unwrap();
        installed.run(&["init", agent, "--remove"]).expect(0);
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), after, "{agent} {before:?}");
    };
    let model = |text: String| text.replacen('{', "{\n  \"model\": \"x\", // new", 1);
    check("claude-code", None, &model, Some("{\n  \"model\": \"x\" // new\n}\n"));
    check("claude-code", None, &|text| format!("{text}\n"), None);
    check("claude-code", Some("{\"env\": {}}"), &|text| format!("{text}\n"), Some("{\"env\": {}}\n"));
    let line = format!("\"CLAUDE_CODE_SHELL\": \"{shell}\"");
    let more = |text: String| text.replace(&line, &format!("{line},\n    \"B\": \"2\""));
    check("claude-code", Some("{}\n"), &more, Some("{\n  \"env\": {\n    \"B\": \"2\"\n  }\n}\n"));
    check(
        "opencode",
        Some("{\n  \"a\": 1\n}\n"),
        &model,
        Some("{\n  \"model\": \"x\", // new\n  \"a\": 1\n}\n"),
    );
    check("aider", Some("model: x\n"), &|text| text.replace('x', "y"), Some("model: y\n"));
    // What the user has set instead stays.
    let other = |text: String| text.replace(&shell, "/bin/zsh");
    let path = installed.write("claude-code", Some("{}"));
    installed.run(&["init", "claude-code"]).expect(0);
    let edited = other(fs::read_to_string(&path).unwrap());
    fs::write(&path, &edited).unwrap();
    let left = installed.run(&["init", "claude-code", "--remove"]).expect(0);
    assert!(left.stdout.contains("nothing to take back"), "{left:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
}

#[test]
fn shell_of_the_users_own_is_replaced_by_force_alone_and_put_back() {
    let installed = Installed::of(User::Current);
    for (agent, text, setting) in [
        ("claude-code", "{\"env\": {\"CLAUDE_CODE_SHELL\": \"/bin/zsh\"}}", "env.CLAUDE_CODE_SHELL"),
        ("opencode", "{\n  \"shell\": \"/bin/zsh\" // mine\n}", "shell"),
        ("aider", "set-env:\n  - SHELL=/bin/zsh\n  - A=b\n", "SHELL in set-env"),
    ] {
        let path = installed.write(agent, Some(text));
        let refused = installed.run(&["init", agent]).expect(1);
        let said = format!("sets {setting} to /bin/zsh: --force replaces it");
        assert!(refused.stderr.contains(&said) && refused.stderr.lines().count() == 1, "{refused:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        installed.run(&["init", agent, "--force"]).expect(0);
        assert_eq!(fs::read_to_string(&path).unwrap(), text.replace("/bin/zsh", &installed.shell()));
        // Also if it was edited since.
        fs::write(&path, fs::read_to_string(&path).unwrap() + "\n").unwrap();
        installed.run(&["init", agent, "--remove"]).expect(0);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{text}\n"));
    }
}

#[test]
fn setting_of_another_installation_is_brought_up_to_date() {
    let installed = Installed::of(User::Current);
    let text = "{\n  \"a\": 1\n}\n";
    for (agent, text) in [("claude-code", Some(text)), ("claude-code", None), ("aider", Some("model: x\n"))] {
        let path = installed.write(agent, text);
        installed.run(&["init", agent]).expect(0);
        let old = fs::read_to_string(&path).unwrap();
        fs::write(&path, old.replace(installed.bin.to_str().unwrap(), "/opt/old")).unwrap();
        installed.run(&["init", agent]).expect(0);
        assert_eq!(fs::read_to_string(&path).unwrap(), old);
        installed.run(&["init", agent, "--remove"]).expect(0);
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), text);
    }
}

#[test]
fn settings_with_an_error_are_refused_with_its_place() {
    let installed = Installed::of(User::Current);
    for (agent, text, said) in [
        ("claude-code", "{\n  \"a\": 1,,\n}", "settings.json, line 2, column 10: "),
        ("claude-code", "{\"a\": 1", "settings.json, line 1, column 1: unterminated object"),
        ("claude-code", "{\"env\": []}", "settings.json: \"env\" is an array, not an object"),
        ("claude-code", "[]", "settings.json: it is an array, not an object"),
        (
            "claude-code",
            "{\"env\": {\"CLAUDE_CODE_SHELL\": 7}}",
            "settings.json: \"env.CLAUDE_CODE_SHELL\" is a number, not a string",
        ),
        ("claude-code", "{\"env\": {}, \"env\": {}}", "settings.json: \"env\" is there more than once"),
        ("opencode", "{\"shell\": {}}", "opencode.json: \"shell\" is an object, not a string"),
        ("opencode", "shell", "opencode.json, line 1, column 1: "),
        ("aider", "a: [\n", ".aider.conf.yml, line "),
        ("aider", "a: 1\n b: 2\n", ".aider.conf.yml, line 2, column "),
        ("aider", "- a\n", ".aider.conf.yml: it is no mapping"),
        ("aider", "set-env: A=b\n", ".aider.conf.yml: \"set-env\" is not a list"),
    ] {
        let path = installed.write(agent, Some(text));
        let before = installed.everything();
        for arguments in [&["init", agent][..], &["init", agent, "--remove"], &["init", agent, "--print"]] {
            let refused = installed.run(arguments).expect(1);
            assert!(refused.stderr.contains(said), "{text:?}: {}", refused.stderr);
            assert_eq!((refused.stderr.lines().count(), refused.stdout.as_str()), (1, ""), "{refused:?}");
        }
        assert_eq!(installed.everything(), before, "{text:?}");
        fs::remove_file(path).unwrap();
    }
    let path = installed.write("claude-code", Some(""));
    fs::write(&path, b"{\"a\": \"\xff\"}").unwrap();
    let refused = installed.run(&["init", "claude-code"]).expect(1);
    assert!(refused.stderr.contains("the byte at offset 7 is invalid"), "{refused:?}");
}

#[test]
fn symlinked_settings_are_edited_where_they_are() {
    let installed = Installed::of(User::Current);
    let path = installed.write("claude-code", Some("{}"));
    let real = installed.place.home.join("dotfiles.json");
    fs::rename(&path, &real).unwrap();
    symlink("../dotfiles.json", &path).unwrap();
    installed.run(&["init", "claude-code"]).expect(0);
    assert!(path.is_symlink() && fs::read_to_string(&real).unwrap().contains(&installed.shell()));
    installed.run(&["init", "claude-code", "--remove"]).expect(0);
    assert!(path.is_symlink());
    assert_eq!(fs::read_to_string(&real).unwrap(), "{}");
    fs::remove_file(&real).unwrap();
    let refused = installed.run(&["init", "claude-code"]).expect(1);
    assert!(refused.stderr.contains("is a symlink to a file that is not there"), "{refused:?}");
    assert!(path.is_symlink() && !real.exists());
}

#[test]
fn settings_that_may_not_be_written_stay_as_they_are() {
    let installed = Installed::of(User::ordinary());
    let path = installed.write("claude-code", Some("{}"));
    chmod(&path, 0o400);
    let before = installed.everything();
    let refused = installed.run(&["init", "claude-code"]).expect(125);
    assert!(
        refused.stderr.contains("write to") && refused.stderr.contains("Permission denied"),
        "{refused:?}"
    );
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    let same = |now: &BTreeMap<PathBuf, (Vec<u8>, u64, i64)>| {
        before.iter().all(|(path, was)| now.get(path) == Some(was))
    };
    assert!(same(&installed.everything()));
    chmod(&path, 0o644);
    chmod(path.parent().unwrap(), 0o500);
    let refused = installed.run(&["init", "claude-code"]).expect(125);
    assert!(refused.stderr.contains("settings.json: Permission denied"), "{refused:?}");
    chmod(path.parent().unwrap(), 0o700);
    assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    if needs_root("another owner") {
        chmod(&path, 0o666);
        std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        let refused = installed.run(&["init", "claude-code"]).expect(1);
        assert!(refused.stderr.contains("belongs to user 0, who alone may change it"), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    }
}

#[test]
fn owner_mode_and_attributes_are_kept() {
    if !needs_root("another owner") {
        return;
    }
    // Root with a user's HOME.
    let installed = Installed::of(User::Nobody);
    let root = |arguments: &[&str]| -> Run {
        let mut command = Command::new(installed.bin.join("agent-snapshot"));
        installed.place.isolate(&mut command);
        command.env("AGENT_SNAPSHOT_LIBRARY", installed.place.base().join("library-of-root"));
        command.args(arguments).output().unwrap().into()
    };
    let path = installed.write("claude-code", None);
    root(&["init", "claude-code"]).expect(0);
    for made in [path.parent().unwrap(), &path] {
        assert_eq!(fs::metadata(made).unwrap().uid(), NOBODY, "{}", made.display());
    }
    root(&["init", "claude-code", "--remove"]).expect(0);
    assert!(!path.parent().unwrap().exists());
    installed.write("claude-code", Some("{}"));
    chmod(&path, 0o604);
    let attributes = set_xattr(&path, "user.note", b"mine");
    root(&["init", "claude-code"]).expect(0);
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (NOBODY, NOBODY, 0o604));
    if attributes.is_ok() {
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(&path, "user.note", &mut value).unwrap();
        assert_eq!(&value[..length], b"mine");
    }
}

#[test]
fn what_can_not_be_set_up_is_said_in_one_sentence() {
    let installed = Installed::of(User::Current);
    let one = |run: Run, said: &str| {
        assert!(run.stderr.contains(said) && run.stderr.lines().count() == 1, "{run:?}");
    };
    one(
        installed.run(&["init", "opencode", "--project"]).expect(2),
        "opencode has no settings of yours for one project",
    );
    assert_eq!(installed.run(&["init", "emacs"]).status, 2);
    let file = installed.place.base().join("file");
    fs::write(&file, "").unwrap();
    let mut command = installed.command(&["init", "claude-code"]);
    let refused = Run::from(command.env("XDG_DATA_HOME", &file).output().unwrap()).expect(125);
    one(refused, "copy this program to ");
    assert!(!installed.settings("claude-code").exists());
    // It is not needed to take back.
    installed.run(&["init", "claude-code", "--remove"]).expect(0);
}

#[test]
fn settings_are_where_the_agent_looks_for_them() {
    let installed = Installed::of(User::Current);
    installed.run(&["init", "claude-code", "--project"]).expect(0);
    let project = installed.place.at(".claude/settings.local.json");
    assert!(fs::read_to_string(&project).unwrap().contains(&installed.shell()));
    installed.run(&["init", "claude-code", "--project", "--remove"]).expect(0);
    assert!(!installed.place.at(".claude").exists());
    let chosen = installed.place.base().join("chosen");
    let mut command = installed.command(&["init", "claude-code"]);
    assert!(command.env("CLAUDE_CONFIG_DIR", &chosen).status().unwrap().success());
    assert!(chosen.join("settings.json").exists() && !installed.settings("claude-code").exists());
    let commented = installed.place.config.join("opencode/opencode.jsonc");
    fs::create_dir(commented.parent().unwrap()).unwrap();
    fs::write(&commented, "{}").unwrap();
    installed.run(&["init", "opencode"]).expect(0);
    assert!(
        fs::read_to_string(&commented).unwrap().contains("shell") && !installed.settings("opencode").exists()
    );
}

/// What `doctor` says of an agent, and its exit status.
fn doctor(installed: &Installed, agent: &str) -> (i32, BTreeMap<String, serde_json::Value>) {
    let run = installed.run(&["doctor", agent, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:?}"));
    assert_eq!(json["fine"], run.status == 0, "{run:?}");
    let checks = json["checks"].as_array().unwrap().iter();
    (run.status, checks.map(|check| (check["name"].as_str().unwrap().to_owned(), check.clone())).collect())
}

#[test]
fn doctor_proves_that_commands_are_recorded() {
    for user in User::all() {
        let installed = Installed::of(*user);
        for agent in ["claude-code", "opencode", "aider"] {
            let (status, checks) = doctor(&installed, agent);
            assert_eq!((status, &checks[agent]["verdict"]), (1, &"finding".into()), "{checks:?}");
            assert_eq!(checks[agent]["advice"], format!("agent-snapshot init {agent}"));
            installed.run(&["init", agent]).expect(0);
            let (status, checks) = doctor(&installed, agent);
            assert_eq!(status, 0, "{checks:?}");
            let id = checks["recording"]["recording"].as_str().unwrap();
            let shown = installed.run(&["show", id]).expect(0);
            assert!(shown.stdout.contains("written-by-doctor"), "{shown:?}");
        }
        // In a place of its own, where nobody undoes it by mistake.
        assert!(installed.run(&["log"]).expect(0).stderr.contains("nothing was recorded here"));
        assert_eq!(installed.run(&["log", "--all"]).expect(0).stdout.lines().count(), 3);
        let all = installed.run(&["doctor"]).expect(0);
        assert_eq!(
            all.stdout.lines().filter(|line| line.contains("agent-snapshot-bash")).count(),
            5,
            "{all:?}"
        );
        assert_eq!(all.stdout.contains("set-ID programs lose"), !user.is_root(), "{all:?}");
    }
}

#[test]
fn doctor_finds_what_keeps_the_setting_from_being_used() {
    let installed = Installed::of(User::Current);
    let found = |agent: &str, name: &str, said: &str| {
        let (status, checks) = doctor(&installed, agent);
        let text = checks[name]["found"].as_str().unwrap();
        assert!(status == 1 && text.contains(said), "{checks:?}");
    };
    installed.run(&["init", "claude-code"]).expect(0);
    installed.place.write(".claude/settings.json", r#"{"env": {"CLAUDE_CODE_SHELL": "/bin/bash"}}"#);
    found("claude-code", "claude-code", "work/.claude/settings.json sets env.CLAUDE_CODE_SHELL to /bin/bash");
    installed.place.write(".claude/settings.json", "{");
    found("claude-code", "claude-code", "settings.json, line 1, column 1: unterminated object");
    fs::remove_dir_all(installed.place.at(".claude")).unwrap();
    let path = installed.settings("claude-code");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("// mine\n{text}")).unwrap();
    found("claude-code", "claude-code", "line 1, column 1: Claude Code ignores settings with comments");
    fs::write(&path, text.replace("agent-snapshot-bash", "moved/agent-snapshot-bash")).unwrap();
    found("claude-code", "claude-code", "which can't be executed: No such file");
    fs::write(&path, &text).unwrap();
    installed.run(&["init", "aider"]).expect(0);
    installed.place.write(".aider.conf.yml", "set-env: [A=b]\n");
    found("aider", "aider", "work/.aider.conf.yml has a list of its own, which hides SHELL in set-env");
    let mut content = installed.command(&["doctor", "opencode"]);
    let content = content.env("OPENCODE_CONFIG_CONTENT", r#"{"shell": "/bin/sh"}"#).output().unwrap();
    let content = Run::from(content).expect(1);
    let said = "$OPENCODE_CONFIG_CONTENT sets shell to /bin/sh";
    assert!(content.stdout.contains(said) && content.stdout.contains("remove it there"), "{content:?}");
    let off = installed.command(&["doctor", "claude-code"]).env("AGENT_SNAPSHOT", "off").output().unwrap();
    let off = Run::from(off).expect(1);
    assert!(off.stdout.contains("AGENT_SNAPSHOT=off: nothing is recorded"), "{off:?}");
    let inside = installed.command(&["run", "--", BINARY, "doctor", "claude-code"]).output().unwrap();
    let inside = Run::from(inside).expect(1);
    assert!(
        inside.stdout.contains("this is being recorded, so that it can't be recorded again"),
        "{inside:?}"
    );
    let shell = installed.bin.join("agent-snapshot-bash");
    fs::remove_file(&shell).unwrap();
    symlink("/bin/bash", &shell).unwrap();
    found("claude-code", "recording", "left no recording");
}

#[test]
fn scratch_files_of_an_agents_shell_are_no_changes() {
    let installed = Installed::of(User::Current);
    let script = "mkdir -p ~/.claude/shell-snapshots; echo > ~/.claude/shell-snapshots/one.sh; \
                  cat f && pwd -P >| $TMPDIR/claude-1f2e-cwd";
    installed.place.write("f", "");
    installed.command(&["run", "--", "sh", "-c", script]).output().unwrap();
    assert!(installed.place.base().join("claude-1f2e-cwd").exists());
    let log = installed.run(&["log"]).expect(0);
    assert_eq!(log.stdout, "and 1 command that changed nothing (--reads lists them)\n");
    // What the agent was asked for is what is listed.
    let line = "source s.sh 2>/dev/null || true && eval 'echo new > f' < /dev/null && pwd -P >| $TMPDIR/claude-1f-cwd";
    let mut shell = installed.place.program(installed.shell());
    shell.args(["-c", line]).env("TMPDIR", installed.place.base());
    assert!(shell.status().unwrap().success());
    let log = installed.run(&["log"]).expect(0);
    assert!(log.stdout.lines().next().unwrap().ends_with("  ~1              echo new > f"), "{log:?}");
    assert!(installed.run(&["log", "--long"]).expect(0).stdout.contains("source s.sh"));
}
