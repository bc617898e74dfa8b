//! The rules of the configuration: `[policy]` in config.toml, and the `.agent-snapshot.toml` of a project.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{BINARY, Place, Run, SHELL, User, give_away, has};

/// A place with a working tree, if there is Git.
fn place_of(user: User) -> Option<Place> {
    if !has("git") || !Path::new("/bin/bash").exists() {
        return None;
    }
    let place = Place::of(user);
    place.prepare("git init -q; mkdir src");
    Some(place)
}

fn give(place: &Place, path: &Path) {
    if !place.is_of_current_user() {
        give_away(path);
    }
}

fn config(place: &Place) -> PathBuf {
    place.config.join("agent-snapshot/config.toml")
}

fn configure(place: &Place, text: &str) {
    fs::create_dir_all(config(place).parent().unwrap()).unwrap();
    fs::write(config(place), text).unwrap();
    give(place, &place.config);
}

/// The ways to record a command line below `src`.
const WAYS: [&str; 4] = ["--snapshot-dir", "run", "session", "shell"];

fn record(place: &Place, way: &str, line: &str) -> Run {
    // Both have to be beside each other.
    place.executable(BINARY.as_ref());
    let mut command = match way {
        "shell" => place.program(SHELL),
        "--snapshot-dir" => place.recording(),
        _ => {
            let mut command = place.command();
            command.args([way, "--"]);
            command
        }
    };
    command.env("XDG_RUNTIME_DIR", place.base().join("runtime")).env_remove("AGENT_SNAPSHOT");
    if way != "shell" {
        command.arg("sh");
    }
    command.current_dir(place.at("src")).args(["-c", line]).output().unwrap().into()
}

/// What was said, without what is the same in all lines.
fn findings(place: &Place, run: &Run) -> Vec<String> {
    let work = format!("{}/", place.work.display());
    let lines = run.stderr.lines().filter_map(|line| line.strip_prefix("agent-snapshot: "));
    let lines = lines.filter_map(|line| Some(line.split_once(": ")?.0.replace(&work, "")));
    lines.collect()
}

#[test]
fn rules_of_the_configuration_hold_for_each_recording() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        configure(&place, "[policy]\ndeny-write = [\"secret\"]\n");
        // The steps of a session are judged by `check`.
        for way in WAYS.into_iter().filter(|way| *way != "session") {
            let run = record(&place, way, "echo x > secret; exit 3").expect(3);
            assert_eq!(findings(&place, &run), ["deny-write src/secret"], "{way}: {run:?}");
            assert!(way != "shell" || run.stderr.lines().count() == 1, "{run:?}");
            let run = record(&place, way, "echo x > other").expect(0);
            assert_eq!(run.stderr, "", "{way}");
        }
        let given = place
            .recording()
            .current_dir(place.at("src"))
            .args(["--deny-write", "other"])
            .args(["sh", "-c", "echo > other; echo > secret"])
            .output()
            .unwrap()
            .into();
        assert_eq!(findings(&place, &given), ["deny-write src/other", "deny-write src/secret"], "{given:?}");
    }
}

#[test]
fn a_project_makes_them_stricter_and_its_paths_are_relative_to_its_root() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        configure(&place, "[policy]\nallow-write = [\"@workspace\", \"../../elsewhere\"]\n");
        place.write("migrations/1", "");
        place.write(
            ".agent-snapshot.toml",
            "allow-write = [\"/**\"]\ndeny-write = [\"migrations/\"]\nenforce = false\n",
        );
        let line = "echo > ../migrations/1; echo > x; echo > ../../elsewhere; echo > ../../other";
        let run = record(&place, "run", line).expect(0);
        let base = place.base().display();
        let other = format!("allow-write {base}/other");
        assert_eq!(findings(&place, &run), [other.as_str(), "deny-write migrations/1"], "{run:?}");
        place.write(".agent-snapshot.toml", "allow-write = [\"./src\"]\n");
        let run = record(&place, "run", line).expect(0);
        let elsewhere = format!("allow-write {base}/elsewhere");
        let expected = [elsewhere.as_str(), other.as_str(), "allow-write migrations/1"];
        assert_eq!(findings(&place, &run), expected, "{run:?}");
    }
}

#[test]
fn check_without_rules_judges_by_those_of_the_configuration() {
    let Some(place) = place_of(User::Current) else { return };
    place.record("echo > a; echo > b");
    let check = |rules: &[&str]| {
        let run = place.verb("check", &[rules, &["--json"]].concat());
        let json: Value = serde_json::from_str(&run.stdout).unwrap_or(Value::Null);
        let found = json["findings"].as_array().into_iter().flatten();
        let name = |finding: &Value| finding["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (run.status, found.map(name).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(check(&[]), (2, String::new()));
    place.write(".agent-snapshot.toml", "deny-write = [\"a\"]\n");
    assert_eq!(check(&[]), (1, "a".to_owned()));
    configure(&place, "[policy]\ndeny-write = [\"b\"]\n");
    assert_eq!(check(&[]), (1, "a b".to_owned()));
    assert_eq!(check(&["--deny-write", "c"]), (0, String::new()));
    let explain = place.command().args(["check", "--explain", "b"]).output().unwrap();
    assert!(String::from_utf8(explain.stdout).unwrap().contains("denied   --deny-write b"));
}

#[test]
fn a_policy_that_can_not_be_read_starts_nothing() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let project = place.at(".agent-snapshot.toml");
        let refused = |file: &Path, why: &str| {
            for way in WAYS.into_iter().chain(["shell"]) {
                let run = record(&place, way, "echo > made").expect(125);
                let said = format!("agent-snapshot: read {}: {why}", file.display());
                assert!(run.stderr.starts_with(&said) && run.stderr.lines().count() == 1, "{way}: {run:?}");
                assert!(!place.at("src/made").exists(), "{way}");
            }
        };
        for (text, why) in [
            ("[policy]\ndeny-wrote = []\n", "line 2: unknown field `deny-wrote`"),
            ("[policy]\nenforce = \"of course\"\n", "line 2: enforce is true, false, \"end\" or"),
            ("[policy\n", "line 1: "),
            ("[shell]\nunrecordet = []\n[policy]\ndeny-write = [\"x\"]\n", "line 2: unknown field"),
            ("[policy]\ndeny-write = [\"a[\"]\n", "--deny-write a[: the rule has a [ without its ]"),
        ] {
            configure(&place, text);
            refused(&config(&place), why);
        }
        fs::remove_file(config(&place)).unwrap();
        for (text, why) in [
            ("deny-wrote = []\n", "line 1: unknown field `deny-wrote`"),
            ("deny-read = [\"@nothing\"]\n", "--deny-read @nothing: the rule is no preset"),
        ] {
            place.write(".agent-snapshot.toml", text);
            refused(&project, why);
        }
        fs::remove_file(&project).unwrap();
        std::os::unix::fs::symlink("/dev/null", &project).unwrap();
        refused(&project, "not a regular file");
        let run: Run = place.command().args(["check", "--explain", "x"]).output().unwrap().into();
        assert!(run.expect(2).stderr.contains(".agent-snapshot.toml: not a regular file"));
    }
}

#[test]
fn no_program_is_exempt_from_what_is_enforced() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let recorded = || {
            let log: Value =
                serde_json::from_str(&place.run(["log", "--all", "--reads", "--json"]).stdout).unwrap();
            log["recordings"].as_array().unwrap().len()
        };
        let rules = |more: &str| format!("[shell]\nunrecorded = [\"printf\"]\n[policy]\n{more}\n");
        configure(&place, &rules("deny-write = [\"secret\"]"));
        record(&place, "shell", "printf x").expect(0);
        assert_eq!(recorded(), 0);
        configure(&place, &rules("enforce = true"));
        record(&place, "shell", "printf x").expect(0);
        assert_eq!(recorded(), 0, "there are no rules");
        place.write(".agent-snapshot.toml", "enforce = true\ndeny-write = [\"secret\"]\n");
        record(&place, "shell", "printf x").expect(0);
        assert_eq!(recorded(), 1);
    }
}

#[test]
fn what_can_not_be_recorded_runs_by_a_shell_unless_rules_are_enforced() {
    let Some(place) = place_of(User::Current) else { return };
    let library = place.base().join("library");
    fs::write(&library, "").unwrap();
    for (enforce, status) in [("false", 0), ("true", 125)] {
        configure(&place, &format!("[policy]\nenforce = {enforce}\ndeny-write = [\"secret\"]\n"));
        let run: Run = place.command().args(["run", "--recall", "--", "true"]).output().unwrap().into();
        let why = "--recall can't be combined with rules, also those of [policy]";
        assert!(run.expect(125).stderr.contains(why));
        for (name, value) in
            [("AGENT_SNAPSHOT_MECHANISM", "none"), ("AGENT_SNAPSHOT_LIBRARY", library.to_str().unwrap())]
        {
            let made = format!("{name}-{enforce}");
            let mut command = place.program(SHELL);
            command.env("XDG_RUNTIME_DIR", place.base().join("runtime")).env(name, value);
            let run: Run = command.args(["-c", &format!("echo > {made}")]).output().unwrap().into();
            assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
            assert_eq!((run.status, place.at(&made).exists()), (status, status == 0), "{run:?}");
        }
        let run: Run = place
            .command()
            .env("AGENT_SNAPSHOT_LIBRARY", &library)
            .args(["run", "--", "touch", "made"])
            .output()
            .unwrap()
            .into();
        assert!(!place.at("made").exists(), "{:?}", run.expect(125));
    }
}

#[test]
fn inside_of_a_recording_the_rules_are_those_of_the_outer_one() {
    let Some(place) = place_of(User::Current) else { return };
    configure(&place, "[policy]\ndeny-write = [\"secret\"]\n");
    let run = record(&place, "shell", &format!("{BINARY} run sh -c 'echo > secret; echo inner'")).expect(0);
    assert_eq!(run.stdout, "inner\n", "{run:?}");
    assert_eq!(findings(&place, &run).last().map(String::as_str), Some("deny-write src/secret"), "{run:?}");
}

#[test]
fn what_the_configuration_enforces_is_refused_and_told() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        configure(&place, "[policy]\nenforce = true\ndeny-read = [\"key\"]\n");
        place.write("src/key", "secret");
        let key = place.at("src/key").display().to_string();
        let told = format!("1 call was refused by rules: read {key} (--deny-read key)");
        for way in WAYS {
            let run = record(&place, way, "cat key; echo rest").expect(0);
            assert_eq!(run.stdout, "rest\n", "{way}: {run:?}");
            let ours: Vec<_> = run.stderr.lines().filter(|line| !line.starts_with("cat: ")).collect();
            let expected = match way {
                "session" => {
                    "agent-snapshot: 1 call was refused by rules (agent-snapshot log --session ".to_owned()
                }
                _ => format!("agent-snapshot: {told}"),
            };
            assert!(ours.len() == 1 && ours[0].starts_with(&expected), "{way}: {run:?}");
        }
        record(&place, "run", "echo > changed").expect(0);
        let last: Run =
            place.command().args(["show", "--refused"]).current_dir(place.at("src")).output().unwrap().into();
        assert!(last.expect(0).stdout.contains("\nRefused     1 call "));
        let show = place.verb("show", &["--refused"]).expect(0).stdout;
        assert!(
            show.contains("\nEnforced    deny-read key\nRefused     1 call (--refused lists them)\n"),
            "{show}"
        );
        let list = show.split_once("\n\n").unwrap().1;
        assert!(list.starts_with(&format!("read      {key}  cat (process ")), "{list}");
        let log = place.run(["log", "--all"]).expect(0).stdout;
        assert_eq!(log.matches("  (1 refused)\n").count(), 3, "{log}");
        let mut json = place.recording();
        json.args(["--json", "sh", "-c", "cat ../src/key"]);
        let said = json.current_dir(place.at("src")).output().unwrap().stderr;
        let said = String::from_utf8(said).unwrap();
        let report = said.lines().find(|line| line.starts_with('{')).unwrap();
        assert_eq!(serde_json::from_str::<Value>(report).unwrap()["refused"], 1);
    }
}

#[test]
fn what_is_enforced_can_not_be_switched_off_by_a_command() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        configure(&place, "[policy]\nenforce = true\ndeny-read = [\"key\"]\n");
        // A first file of a project may come with a checkout.
        record(&place, "shell", "echo 'deny-write = [\"migrations\"]' > ../.agent-snapshot.toml").expect(0);
        let rules = "../.agent-snapshot.toml";
        let config = config(&place).display().to_string();
        let directory = place.config.display();
        for line in [
            format!("echo > {rules}"),
            format!("rm {rules}"),
            format!("mv {rules} x"),
            format!("echo > x; mv x {rules}"),
            format!("ln {rules} y && echo > y"),
            format!("echo > {config}"),
            format!("rm {config}"),
            format!("mv {directory} {directory}.old"),
            format!("chmod 0 {config}"),
            "echo > ../migrations".to_owned(),
        ] {
            let run = record(&place, "shell", &line);
            assert!(run.status != 0 && run.stderr.contains("refused by rules: "), "{line}: {run:?}");
        }
        assert_eq!(
            fs::read_to_string(place.at(".agent-snapshot.toml")).unwrap(),
            "deny-write = [\"migrations\"]\n"
        );
        assert!(fs::read_to_string(&config).unwrap().starts_with("[policy]\nenforce = true\n"));
        let dotfile = place.home.join("dotfile");
        fs::rename(&config, &dotfile).unwrap();
        std::os::unix::fs::symlink(&dotfile, &config).unwrap();
        give(&place, &place.config);
        for line in [format!("rm {config}"), format!("mv {config} z"), "echo > ~/dotfile".to_owned()] {
            let run = record(&place, "shell", &line);
            assert!(run.status != 0 && run.stderr.contains("refused by rules: "), "{line}: {run:?}");
        }
        for options in [&["--allow-io-uring"][..], &["--if-unavailable", "run"]] {
            let run: Run = place.recording().args(options).arg("true").output().unwrap().into();
            let why = format!("enforce, in the configuration, can't be combined with {}", options.join(" "));
            assert!(run.expect(125).stderr.contains(&why), "{options:?}");
        }
    }
}

#[test]
fn doctor_says_what_holds() {
    let Some(place) = place_of(User::Current) else { return };
    let policy = || {
        let run: Run = place.command().args(["doctor", "--json"]).output().unwrap().into();
        let json: Value = serde_json::from_str(&run.stdout).unwrap();
        let checks = json["checks"].as_array().unwrap();
        let policy = checks.iter().find(|check| check["name"] == "policy").unwrap();
        (policy["verdict"].as_str().unwrap().to_owned(), policy["found"].as_str().unwrap().to_owned())
    };
    let (verdict, found) = policy();
    assert!(verdict == "note" && found.starts_with("no rules are set"), "{found}");
    configure(&place, "[policy]\ndeny-write = [\"secret\"]\n");
    let file = config(&place).display().to_string();
    assert_eq!(policy(), ("note".to_owned(), format!("the rules of {file} are judged, and not enforced")));
    place.write(".agent-snapshot.toml", "enforce = \"end\"\ndeny-write = [\"x\"]\n");
    let files = format!("{file} and {}", place.at(".agent-snapshot.toml").display());
    let expected = format!("the rules of {files} are enforced, and the first refusal ends a command");
    assert_eq!(policy(), ("fine".to_owned(), expected));
    place.write(".agent-snapshot.toml", "deny-write = [\"x[\"]\n");
    let (verdict, found) = policy();
    assert!(verdict == "finding" && found.contains(".agent-snapshot.toml: --deny-write x["), "{found}");
}
