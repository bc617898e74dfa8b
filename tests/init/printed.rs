//! What `init` only prints: each line is put where it says, and what the tool then runs is in the library.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::{Installed, doctor};
use crate::support::{Run, Terminal, User, has};

/// What goes into the file, alone on standard output.
fn printed(installed: &Installed, name: &str) -> String {
    let run = installed.run(&["init", name]).expect(0);
    assert!(run.stderr.starts_with("agent-snapshot: this goes into "), "{run:?}");
    run.stdout
}

/// Runs a tool, which must end well, and finds its command in the library.
#[track_caller]
fn expect_recorded(installed: &Installed, mut tool: Command, line: &str) {
    let output: Run = tool.output().unwrap().into();
    let output = output.expect(0);
    assert_eq!(fs::read_to_string(installed.place.at("out")).unwrap(), "built\n", "{output:?}");
    let log = installed.run(&["log"]).expect(0);
    assert!(
        log.stdout.lines().any(|entry| entry.contains(line) && entry.contains("+1")),
        "{log:?} {output:?}"
    );
}

#[test]
fn make_records_each_line_of_a_recipe() {
    if !has("make") {
        return;
    }
    for installed in [Installed::of(User::Current), Installed::in_odd_directory()] {
        let line = printed(&installed, "make");
        installed.place.write("Makefile", format!("{line}\nall:\n\techo built > out\n"));
        expect_recorded(&installed, installed.place.program("make"), "  echo built > out");
        // For a single run.
        fs::remove_file(installed.place.at("out")).unwrap();
        installed.place.write("Makefile", "all:\n\techo built >  out\n");
        let mut make = installed.place.program("make");
        // There # begins no comment.
        make.arg(line.trim_end().replace(" := ", "=").replace(r"\#", "#"));
        expect_recorded(&installed, make, "  echo built >  out");
    }
}

#[test]
fn just_records_each_line_of_a_recipe() {
    if !has("just") {
        return;
    }
    for installed in [Installed::of(User::Current), Installed::in_odd_directory()] {
        let line = printed(&installed, "just");
        installed.place.write("justfile", format!("{line}\nbuild:\n    echo built > out\n"));
        expect_recorded(&installed, installed.place.program("just"), "  echo built > out");
    }
}

#[test]
fn npm_records_each_script() {
    if !has("npm") {
        return;
    }
    for installed in [Installed::of(User::Current), Installed::in_odd_directory()] {
        installed.place.write(".npmrc", printed(&installed, "npm"));
        installed.place.write("package.json", r#"{"name": "x", "scripts": {"build": "echo built > out"}}"#);
        let mut npm = installed.place.program("npm");
        npm.args(["run", "build"]).env("npm_config_update_notifier", "false");
        expect_recorded(&installed, npm, "  echo built > out");
    }
}

#[test]
fn github_actions_records_each_run_step() {
    let installed = Installed::of(User::Current);
    let yaml = printed(&installed, "github-actions");
    let shell = yaml.lines().find_map(|line| line.strip_prefix("    shell: ")).unwrap();
    // As the runner does: the first word is looked up in PATH, {0} is a script.
    let script = installed.place.base().join("step.sh");
    let step = |text: &str| {
        fs::write(&script, text).unwrap();
        let line = shell.replace("{0}", script.to_str().unwrap());
        let mut words = line.split_whitespace();
        let mut command = installed.place.program(installed.bin.join(words.next().unwrap()));
        command.args(words);
        command
    };
    let failed = step("false | true\necho not reached > out\n").status().unwrap();
    assert_eq!((failed.code(), installed.place.at("out").exists()), (Some(1), false));
    expect_recorded(&installed, step("echo built > out\n"), " -eo pipefail /");
}

#[test]
fn goose_takes_the_shell_from_its_environment() {
    for installed in [Installed::of(User::Current), Installed::in_odd_directory()] {
        let line = printed(&installed, "goose");
        let (status, checks) = doctor(&installed, "goose");
        assert_eq!(
            (status, &checks["goose"]["advice"]),
            (1, &"agent-snapshot init goose".into()),
            "{checks:?}"
        );
        let profile = installed.place.base().join("profile");
        fs::write(&profile, &line).unwrap();
        let mut goose = installed.place.program("sh");
        goose.args(["-c", ". \"$0\" && exec \"$GOOSE_SHELL\" -c 'echo built > out'"]).arg(&profile);
        expect_recorded(&installed, goose, "  echo built > out");
        let mut with = installed.command(&["doctor", "goose"]);
        let with: Run = with.env("GOOSE_SHELL", installed.shell()).output().unwrap().into();
        assert!(with.expect(0).stdout.contains("was recorded as"));
    }
}

#[test]
fn qwen_takes_the_bash_of_path() {
    for installed in [Installed::of(User::Current), Installed::in_odd_directory()] {
        let lines = printed(&installed, "qwen");
        // A program of that name, which runs a command as Qwen Code does.
        let qwen = installed.bin.join("qwen");
        fs::write(&qwen, "#!/bin/sh\nbash -c \"$1\"\n").unwrap();
        fs::set_permissions(&qwen, fs::Permissions::from_mode(0o755)).unwrap();
        let startup = installed.place.base().join("startup");
        fs::write(&startup, format!("{lines}{lines}qwen 'echo built > out'\n")).unwrap();
        let mut shell = installed.place.program("sh");
        let path = format!("{}:{}", installed.bin.display(), std::env::var("PATH").unwrap());
        shell.arg(&startup).env("PATH", path).env_remove("XDG_DATA_HOME");
        expect_recorded(&installed, shell, "  echo built > out");
    }
}

#[test]
fn what_is_only_printed_is_neither_written_nor_taken_back() {
    let installed = Installed::of(User::Current);
    let before = installed.everything();
    for name in ["goose", "qwen", "bash", "zsh", "fish", "github-actions", "make", "just", "npm"] {
        assert_eq!(installed.run(&["init", name, "--print"]).expect(0).stdout, printed(&installed, name));
        let json = installed.run(&["init", name, "--json"]).expect(0);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(json["text"], printed(&installed, name));
        for option in ["--remove", "--project", "--force", "--auto-approve"] {
            let refused = installed.run(&["init", name, option]).expect(2);
            assert!(
                refused.stderr.contains(&format!("init {name} writes nothing: it prints")),
                "{refused:?}"
            );
            assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        }
    }
    assert_eq!(installed.everything(), before);
}

#[test]
fn alias_of_an_agent_starts_a_session() {
    for installed in [Installed::of(User::Current), Installed::in_odd_directory()] {
        let run = installed.run(&["init", "codex", "--session"]).expect(0);
        assert!(run.stderr.contains("command codex starts it without a session"), "{run:?}");
        for wrong in [&["init", "make", "--session"][..], &["init", "codex", "--session", "--project"]] {
            installed.run(wrong).expect(2);
        }
        let place = &installed.place;
        place.write("codex", "#!/bin/sh\necho own > own\nsh -c 'echo built > out'\n");
        // An alias is for an interactive shell.
        let script = format!("shopt -s expand_aliases\nPATH=$PWD:$PATH\n{}codex\n", run.stdout);
        place.prepare("chmod +x codex");
        let mut shell = place.program("bash");
        shell.args(["-c", &script]);
        expect_recorded(&installed, shell, "built > out");
        let log = installed.run(&["log"]).expect(0).stdout;
        assert!(log.contains("edit own"), "{log}");
    }
}

#[test]
fn shells_go_on_in_a_session() {
    for (shell, file, prompt) in [
        ("bash", ".bashrc", "PS1='$ '\n"),
        ("zsh", ".zshrc", "PS1='$ '\n"),
        ("fish", ".config/fish/config.fish", "function fish_prompt; echo -n '$ '; end\n"),
    ] {
        if !has(shell) {
            continue;
        }
        println!("{shell}");
        let installed = Installed::of(User::Current);
        let line = printed(&installed, shell);
        let Installed { place, .. } = installed;
        let file = place.home.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{prompt}{line}")).unwrap();
        let config = place.home.join(".config").display().to_string();
        // A command in such a shell is no session.
        let output = place.program(shell).args(["-i", "-c", "echo alone"]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("alone\n"), "{output:?}");
        let environment = [("XDG_CONFIG_HOME", &*config)];
        let Some(mut terminal) = Terminal::with(place, &[shell, "-i"], &environment) else { return };
        terminal.line("touch made", "$ ");
        terminal.line("echo $AGENT_SNAPSHOT_SESSION.", ".\r");
        let place = terminal.end();
        assert!(place.at("made").exists());
        let run: Run = place.command().args(["log", "--all"]).output().unwrap().into();
        let log = run.expect(0).stdout;
        assert!(log.contains("touch made"), "{shell}: {log}");
    }
}

#[test]
fn edit_of_settings_is_printed_by_its_lines() {
    let installed = Installed::of(User::Current);
    let path = installed.write("claude-code", Some("{\n  \"a\": 1,\n  \"b\": 2\n}"));
    let printed = installed.run(&["init", "claude-code", "--print"]).expect(0).stdout;
    let lines = [
        format!("would write {}:", path.display()),
        "     \"a\": 1,".to_owned(),
        "  -  \"b\": 2".to_owned(),
        "  +  \"b\": 2,".to_owned(),
        "  +  \"env\": {".to_owned(),
        format!("  +    \"CLAUDE_CODE_SHELL\": \"{}\"", installed.shell()),
        "  +  }".to_owned(),
        "   }".to_owned(),
        "  \\ No newline at end of file".to_owned(),
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), lines);
}
