//! Rules on a recording: findings at its end, `--strict`, wrong rules.

use std::fs;
use std::path::Path;

use super::findings;
use crate::support::{BINARY, Place, User, chmod, has, stderr};

#[test]
fn findings_are_told_at_the_end_and_the_command_has_its_status() {
    let place = Place::new();
    let output = place.record_with(&["--allow-write", "@workspace"], "echo x > ../new; exit 3");
    assert_eq!(output.status.code(), Some(3));
    let base = place.base().display();
    assert_eq!(
        stderr(&output),
        format!(
            "agent-snapshot: allow-write {base}/new: write by sh -c 'echo x > ../new; exit 3' (process 1): no --allow-write matches\n\
             agent-snapshot: the command did what the rules forbid\n"
        )
    );
    assert!(place.base().join("new").exists(), "nothing is prevented");
    let output = place.record_with(&["--allow-write", "@workspace", "--strict"], "echo x > ../new");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).ends_with("agent-snapshot: the command did what the rules forbid (--strict)\n"));
    let output = place.record_with(&["--allow-write", "@workspace", "--strict"], "echo x > in; exit 3");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(3), ""));
}

#[test]
fn many_findings_are_counted() {
    let place = Place::new();
    let script = "i=0; while [ $i -lt 30 ]; do echo > ../$i; i=$((i + 1)); done";
    let output = place.record_with(&["--allow-write", "@workspace"], script);
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 22, "{text}");
    assert!(text.contains("\nagent-snapshot: 10 findings more; agent-snapshot check lists them\n"), "{text}");
}

#[test]
fn a_recording_into_the_library_is_judged_too() {
    let place = Place::new();
    let output = place
        .command()
        .args(["run", "--strict", "--deny-write", "/**/secret", "--", "sh", "-c", "echo x > secret"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).starts_with("agent-snapshot: deny-write "), "{output:?}");
    place
        .command()
        .args(["check", "@", "--deny-write", "secret"])
        .output()
        .map(|output| {
            assert_eq!(output.status.code(), Some(1), "{output:?}");
        })
        .unwrap();
}

#[test]
fn what_may_not_be_read_is_recorded_whatever_rule_covers_it() {
    for user in User::all() {
        let place = Place::of(*user);
        let read = "cat /etc/passwd > /dev/null; cat ../home/.cache/x";
        place.prepare("mkdir -p ../home/.cache; echo > ../home/.cache/x");
        let rules = ["--deny-read", "/etc/passwd", "--deny-read", "~/.cache"];
        for keep in ["all", "undo"] {
            let output = place.record_with(&[&rules[..], &["--keep", keep, "--strict"]].concat(), read);
            assert_eq!(output.status.code(), Some(125), "{output:?}");
            let found = findings(&place, &place.verb("check", &[&rules[..], &["--json"]].concat()));
            assert!(found.contains(&"deny-read /etc/passwd read".to_owned()), "{user:?} {found:?}");
            assert!(found.contains(&"deny-read home/.cache/x read".to_owned()), "{user:?} {found:?}");
        }
    }
}

#[test]
fn a_pem_file_is_a_secret_if_it_has_a_private_key() {
    let place = Place::new();
    place.write("cert.pem", "-----BEGIN CERTIFICATE-----\n");
    place.write("key.pem", "-----BEGIN PRIVATE KEY-----\n");
    for keep in ["all", "undo"] {
        let output = place.record_with(&["--keep", keep], "cat cert.pem key.pem");
        assert!(output.status.success(), "{output:?}");
        let found = findings(&place, &place.verb("check", &["--deny-read", "@secrets", "--json"]));
        assert_eq!(found, ["deny-read work/key.pem read"], "{keep}");
    }
}

#[test]
fn addresses_are_judged() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    place.write(
        "script.py",
        "import socket\n\
         a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()\n\
         c = socket.socket(socket.AF_INET6)\n\
         c.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)\n\
         c.connect(('::ffff:127.0.0.1', a.getsockname()[1]))\n\
         u = socket.socket(socket.AF_UNIX); u.bind('s')\n",
    );
    let output = place.recording().args(["python3", "script.py"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = |rule: &str| findings(&place, &place.verb("check", &[rule, "--json"])).len();
    for (rule, count) in [
        ("--deny-net", 2),
        ("--deny-net=localhost", 2),
        ("--deny-net=127.0.0.1", 2),
        ("--deny-net=127.0.0.0/8:1", 0),
        ("--deny-net=unix:/**/work/s", 1),
        ("--deny-net=::1", 0),
    ] {
        assert_eq!(found(rule), count, "{rule}");
    }
}

#[test]
fn a_wrong_rule_is_one_sentence_and_starts_nothing() {
    let place = Place::new();
    fs::write(place.at("rules.toml"), "allow-wrote = []\n").unwrap();
    for (options, why) in [
        (&["--allow-write", "a["][..], "--allow-write a[: the rule has a [ without its ]"),
        (&["--deny-write", "@home"], "--deny-write @home: the rule is no preset"),
        (&["--deny-read", ""], "--deny-read : the rule is empty"),
        (&["--deny-net=example.org:443"], "--deny-net example.org:443: the rule is not an address"),
        (
            &["--policy", "rules.toml"],
            "read rules.toml: line 1: unknown field `allow-wrote`, expected one of",
        ),
        (&["--policy", "none.toml"], "read none.toml: No such file"),
    ] {
        for destination in [&["--snapshot-dir", "../out"][..], &["run"], &["run", "--if-unavailable", "run"]]
        {
            let mut command = place.command();
            let output = command.args(destination).args(options).args(["touch", "made"]).output().unwrap();
            assert_eq!(output.status.code(), Some(125), "{output:?}");
            let said = stderr(&output);
            assert!(said.starts_with(&format!("agent-snapshot: {why}")), "{said}");
            assert_eq!(said.matches('\n').count(), 1, "{said}");
        }
        assert!(!place.at("made").exists() && !place.out.exists());
        assert_eq!(fs::read_dir(&place.home).unwrap().count(), 0);
    }
}

#[test]
fn what_outlives_the_command_is_not_judged_yet() {
    let place = Place::new();
    place.prepare("mkfifo end");
    let options = ["--survivors", "background", "--allow-write", "@workspace", "--strict"];
    let output = place.record_with(&options, "(read line < end) > /dev/null 2>&1 &");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("its rules are not judged"), "{output:?}");
    let run = place.verb("check", &["--allow-write", "@workspace"]).expect(1);
    assert!(run.stdout.contains("lived on when the snapshot was made"), "{run:#?}");
    let _end = place.write_to_fifo("end", "on\n");
    place.wait_for_lock();
    place.verb("check", &["--allow-write", "@workspace"]).expect(0);
}

#[test]
fn ci_recipe_fails_if_the_script_writes_elsewhere() {
    let readme = include_str!("../../README.md");
    let (_, recipe) = readme.split_once("<!-- recipe: ci -->\n```sh\n").unwrap();
    let (recipe, _) = recipe.split_once("```\n").unwrap();
    let place = Place::new();
    let log = place.base().join("log");
    let directory = Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let check = |script: &str| {
        place.write("build.sh", format!("#!/bin/sh\n{script}\n"));
        chmod(place.at("build.sh"), 0o755);
        let mut command = place.program("sh");
        command.env("PATH", &path).env("SNAP", &place.out).args(["-euc", recipe]);
        // The log of the job is outside, and is not of the script's making.
        let status = command.stderr(fs::File::create(&log).unwrap()).status().unwrap();
        let base = format!("agent-snapshot: allow-write {}/", place.base().display());
        let said = fs::read_to_string(&log).unwrap();
        let found = said.lines().filter_map(|line| line.strip_prefix(&base)?.split(':').next());
        (status.code(), found.collect::<Vec<_>>().join(" "))
    };
    fs::write(place.base().join("config.ini"), "x").unwrap();
    let nothing = String::new();
    assert_eq!(
        check("echo made > result; cat ../config.ini > copy; echo log >&2"),
        (Some(0), nothing.clone())
    );
    assert_eq!(
        check("echo made > result; echo y > ../config.ini; mkdir ../new; mv result ../new"),
        (Some(125), "config.ini new new/result".to_owned())
    );
    assert_eq!(check("rm ../config.ini"), (Some(125), "config.ini".to_owned()));
    // A change that a rule leaves out is reported all the same.
    assert_eq!(check("mkdir -p $HOME/.cache/x"), (Some(125), "home/.cache home/.cache/x".to_owned()));
    assert_eq!(check("exit 7"), (Some(7), nothing));
}

#[test]
fn report_as_json_has_the_verdict() {
    let place = Place::new();
    let policy = |options: &[&str], script: &str| -> serde_json::Value {
        let output = place.record_with(&[&["--report", "json"], options].concat(), script);
        let text = String::from_utf8(output.stderr).unwrap();
        let line = text.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{text}"));
        serde_json::from_str::<serde_json::Value>(line).unwrap()["policy"].clone()
    };
    let rule = ["--allow-write", "@workspace"];
    assert_eq!(policy(&[], "echo > f"), serde_json::Value::Null);
    assert_eq!(policy(&rule, "echo > f"), "pass");
    assert_eq!(policy(&rule, "echo > ../g"), "fail");
}
