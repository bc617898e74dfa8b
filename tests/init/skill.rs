//! `init skill`: what an agent is told, and that what it says is so.

use std::fs;

use super::Installed;
use crate::support::User;

#[test]
fn skill_is_written_once_and_taken_back() {
    for user in User::all() {
        let installed = Installed::of(*user);
        let path = installed.place.home.join(".claude/skills/agent-snapshot/SKILL.md");
        let printed = installed.run(&["init", "skill", "--print"]).expect(0);
        assert!(printed.stdout.contains("+name: agent-snapshot") && !path.exists(), "{printed:?}");
        installed.run(&["init", "skill"]).expect(0);
        let text = fs::read_to_string(&path).unwrap();
        let front = text.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap().0;
        assert!(
            front.starts_with("name: agent-snapshot\ndescription: ") && front.lines().count() == 2,
            "{front}"
        );
        let before = installed.everything();
        let again = installed.run(&["init", "skill"]).expect(0);
        assert!(again.stdout.contains("nothing was changed"), "{again:?}");
        assert_eq!(installed.everything(), before);
        installed.run(&["init", "skill", "--remove"]).expect(0);
        assert!(!installed.place.home.join(".claude").exists());
        let again = installed.run(&["init", "skill", "--remove"]).expect(0);
        assert!(again.stdout.contains("nothing to take back"), "{again:?}");
    }
}

#[test]
fn skill_of_the_users_own_is_kept() {
    let installed = Installed::of(User::Current);
    installed.run(&["init", "skill", "--project"]).expect(0);
    let path = installed.place.at(".claude/skills/agent-snapshot/SKILL.md");
    let edited = fs::read_to_string(&path).unwrap() + "- mine\n";
    fs::write(&path, &edited).unwrap();
    let left = installed.run(&["init", "skill", "--project", "--remove"]).expect(0);
    assert!(left.stdout.contains("is not as init left it; nothing to take back"), "{left:?}");
    let refused = installed.run(&["init", "skill", "--project"]).expect(1);
    assert!(refused.stderr.contains("has a text of its own: --force replaces it"), "{refused:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    installed.run(&["init", "skill", "--project", "--force"]).expect(0);
    installed.run(&["init", "skill", "--project", "--remove"]).expect(0);
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
}

/// Each command that the skill names is one.
#[test]
fn commands_of_the_skill_work() {
    let installed = Installed::of(User::Current);
    installed.place.write("f", "one\n");
    let shell = |line: &str| {
        let mut shell = installed.place.program(installed.shell());
        assert!(shell.args(["-c", line]).status().unwrap().success());
    };
    shell("echo two > f");
    let text = installed.run(&["init", "skill", "--print"]).expect(0).stdout;
    let id = installed.run(&["log"]).expect(0).stdout.split_whitespace().next().unwrap().to_owned();
    let commands =
        text.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once("| `agent-snapshot "));
    let commands: Vec<String> = commands
        .map(|(_, words)| words.replace("ID", &id).replace("PATH...", "f").replace("PATH", "f"))
        .collect();
    assert_eq!(commands.len(), 9, "{text}");
    for words in &commands {
        let words: Vec<&str> = words.split(' ').collect();
        // As it is there, each undoes what another one has done.
        match words[0] {
            "undo" | "restore" => {
                installed.run(&words).expect(0);
                if !words.contains(&"--dry-run") {
                    assert_eq!(fs::read_to_string(installed.place.at("f")).unwrap(), "one\n", "{words:?}");
                    let back: &[&str] = if words[0] == "undo" { &["redo"] } else { &["restore", &id, "f"] };
                    installed.run(back).expect(0);
                }
            }
            "redo" => {
                installed.run(&["undo"]).expect(0);
                installed.run(&words).expect(0);
            }
            _ => drop(installed.run(&words).expect(0)),
        }
    }
    assert_eq!(fs::read_to_string(installed.place.at("f")).unwrap(), "two\n");
}
