//! A session: the rules hold for its commands and for its program.

use std::fs;

use serde_json::Value;

use super::refused_of;
use crate::support::{Place, User, has, json, stderr};

#[test]
fn rules_hold_for_the_commands_and_the_program_of_a_session() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    fs::write(place.base().join("secret"), "top").unwrap();
    let program = "
import subprocess
def attempt(call):
    try: print(call())
    except OSError as error: print(error.strerror)
attempt(lambda: open('../secret').read())
attempt(lambda: open('../new', 'w'))
attempt(lambda: open('in', 'w').write('x'))
attempt(lambda: subprocess.run(['/bin/cat', '../secret']).returncode)
attempt(lambda: subprocess.run(['sh', '-c', 'cat ../secret; echo x > ../new; echo on']).returncode)
";
    let output = place
        .command()
        .args([
            "session",
            "--name",
            "s",
            "--enforce",
            "--deny-read",
            "../secret",
            "--allow-write",
            "@workspace",
        ])
        .args(["python3", "-c", program])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(!printed.contains("top"), "{output:?}");
    assert_eq!(printed.matches("Permission denied").count(), 2, "{output:?}");
    assert!(printed.contains("on\n"), "{output:?}");
    assert!(!place.base().join("new").exists() && place.at("in").exists());
    let snapshots = place.home.join(".local/state/agent-snapshot/snapshots");
    let manifests =
        fs::read_dir(snapshots).unwrap().map(|entry| json(&entry.unwrap().path().join("manifest.json")));
    let mut lines: Vec<(String, String)> = Vec::new();
    for manifest in manifests {
        let kind = |manifest: &Value| manifest["kind"].as_str().unwrap().to_owned();
        assert_eq!(manifest["enforcement"]["mode"], "refuse");
        lines.extend(refused_of(&place, &manifest).into_iter().map(|line| (kind(&manifest), line)));
    }
    lines.sort();
    let line = |kind: &str, line: &str| (kind.to_owned(), line.to_owned());
    assert_eq!(
        lines,
        [
            line("command", "allow-write new write"),
            line("command", "deny-read ../secret secret read"),
            line("edit", "allow-write new write"),
            line("edit", "deny-read ../secret secret read"),
            line("edit", "deny-read ../secret secret read"),
        ],
        "{output:?}"
    );
}

#[test]
fn the_first_refusal_may_end_a_whole_session() {
    for user in User::all() {
        let place = Place::of(*user);
        place.write("key", "top");
        let program = "sh -c 'cat key; echo step' & sh -c 'sleep 1000; echo other' & wait; echo program";
        let mut command = place.command();
        command.args(["session", "--name", "s", "--enforce=end", "--deny-read", "key"]);
        let output = command.args(["bash", "-c", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{output:?}");
        let said = stderr(&output);
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("agent-snapshot: ")).collect();
        let told = "agent-snapshot: 1 call was refused by rules, which ended the session (";
        assert!(ours.len() == 1 && ours[0].contains(told), "{said}");
    }
}

#[test]
fn a_session_takes_rules_only_to_enforce_them() {
    let place = Place::new();
    let output = place.command().args(["session", "--deny-read", "x", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        stderr(&output),
        "agent-snapshot: session takes rules with --enforce only: check judges its recordings\n"
    );
    let config = place.config.join("agent-snapshot");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "[policy]\nenforce = true\n").unwrap();
    place.write("x", "top");
    let output = place.command().args(["session", "--deny-read", "x", "cat", "x"]).output().unwrap();
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn names_that_an_earlier_step_changed_are_known_to_the_next() {
    for user in User::all() {
        let place = Place::of(*user);
        place.prepare("mkdir d; for f in a.key b.key d/f; do echo top > $f; done");
        let program = "sh -c 'ln a.key x; mv b.key y; ln d/f z; echo linked'; for f in x y z; do sh -c \"cat $f\"; done";
        let mut command = place.command();
        command.args(["session", "--name", "s", "--enforce", "--deny-read", "*.key", "--deny-read", "./d"]);
        let output = command.args(["bash", "-c", program]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "linked\n", "{user:?}");
        assert_eq!(stderr(&output).matches("Permission denied").count(), 3, "{user:?} {output:?}");
    }
}
