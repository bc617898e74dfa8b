//! `mcp`, used by a client that is made with the official SDK, and by raw input.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{BINARY, Place, User, python_with_modules};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/mcp_client.py");

/// A client and its server; both end with it.
struct Client {
    process: Child,
    input: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    tools: Value,
}

impl Client {
    /// Starts one in the working directory of a place; none if the SDK is missing, which is said.
    fn start(place: &Place, arguments: &[&str]) -> Option<Client> {
        if !place.can_run(&[&python_with_modules(), "-c", "import mcp, jsonschema"]) {
            println!("skipped: no mcp or jsonschema");
            return None;
        }
        let mut command = place.program(python_with_modules());
        command.arg(CLIENT).arg(place.executable(Path::new(BINARY))).arg("mcp").args(arguments);
        Some(Client::of(command))
    }

    fn of(mut command: Command) -> Client {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let tools = next(&mut answers);
        Client { process, input, answers, tools }
    }

    fn answer(&mut self, tool: &str, arguments: Value) -> Value {
        writeln!(self.input.as_mut().unwrap(), "{}", json!([tool, arguments])).unwrap();
        next(&mut self.answers)
    }

    /// The result of a call that has to succeed.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let mut answer = self.answer(tool, arguments);
        assert!(answer["length"].as_u64().is_some_and(|length| length < 80_000), "{answer}");
        answer["structured"].take()
    }

    /// The sentence of a call that has to fail.
    #[track_caller]
    fn error(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.answer(tool, arguments);
        let sentence = answer["error"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence:?}");
        sentence
    }

    /// All items of a list that comes in pages.
    fn all(&mut self, tool: &str, list: &str, arguments: Value) -> Vec<Value> {
        let (mut all, mut offset) = (Vec::new(), json!(0));
        loop {
            let mut arguments = arguments.clone();
            arguments["offset"] = offset;
            let page = self.call(tool, arguments);
            all.extend(page[list].as_array().unwrap().clone());
            match page.get("next_offset") {
                Some(next) => offset = next.clone(),
                None => return all,
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

fn next(answers: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Records a script in the working directory of a place; the identifier.
#[track_caller]
fn record(place: &Place, script: &str) -> String {
    record_in(place, &place.work, script)
}

#[track_caller]
fn record_in(place: &Place, directory: &Path, script: &str) -> String {
    let mut command = place.command();
    let output =
        command.args(["run", "--quiet", "sh", "-c", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = place.command().args(["log", "--json", "--all"]).output().unwrap();
    let log: Value = serde_json::from_slice(&log.stdout).unwrap();
    log["recordings"][0]["id"].as_str().unwrap().to_owned()
}

fn keys(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tools_say_what_they_change() {
    let place = Place::new();
    let Some(client) = Client::start(&place, &[]) else { return };
    let names = ["log", "show", "diff", "undo", "redo", "history", "file_at", "check"];
    assert_eq!(keys(&client.tools, "name"), names);
    for tool in client.tools.as_array().unwrap() {
        let changes = ["undo", "redo"].contains(&tool["name"].as_str().unwrap());
        let expected = json!({
            "readOnlyHint": !changes, "destructiveHint": changes, "idempotentHint": true, "openWorldHint": false
        });
        assert_eq!(tool["annotations"], expected, "{tool}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        let properties = tool["inputSchema"]["properties"].as_object().unwrap();
        assert!(properties.values().all(|property| property["description"].is_string()), "{tool}");
        // What clients of some models refuse.
        for refused in ["\"format\"", "$ref", "null"] {
            assert!(!tool["inputSchema"].to_string().contains(refused), "{tool}");
        }
    }
}

#[test]
fn each_tool_tells_what_its_verb_tells() {
    let place = Place::new();
    place.write("keep", "old\n");
    let made = record(&place, "echo one > a; mkdir d; echo x > d/f");
    let changed = record(&place, "echo two >> a; rm d/f; cat keep");
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let log = client.call("log", json!({}));
    assert_eq!(keys(&log["recordings"], "id"), [changed.as_str(), &made]);
    assert_eq!(log["recordings"][0]["deleted"], 1);
    let of_path = client.call("log", json!({"path": "d", "limit": 1}));
    assert_eq!(
        (keys(&of_path["recordings"], "id"), &of_path["next_offset"]),
        (vec![changed.clone()], &json!(1))
    );

    let show = client.call("show", json!({}));
    assert_eq!(show["counts"]["changed"], 1);
    let paths = |value: &Value, key: &str| {
        let base = format!("{}/", place.work.display());
        keys(&value[key], "path").iter().map(|path| path.replace(&base, "")).collect::<Vec<_>>()
    };
    assert_eq!(paths(&show, "files"), ["a", "d/f"]);
    let processes = client.call("show", json!({"recording": made, "list": "processes"}));
    assert!(processes.get("files").is_none(), "{processes}");
    assert!(processes["processes"][0]["argv"].to_string().contains("echo one"), "{processes}");

    let diff = client.call("diff", json!({"recording": changed, "paths": ["a"]}));
    assert_eq!(paths(&diff, "changes"), ["a"]);
    assert!(diff["changes"][0]["patch"].as_str().unwrap().ends_with("@@ -1 +1,2 @@\n one\n+two\n"), "{diff}");
    let history = client.call("history", json!({"path": "a"}));
    assert_eq!(keys(&history["recordings"], "id"), [changed.as_str(), &made]);

    let content =
        |client: &mut Client, arguments: Value| client.call("file_at", arguments)["content"].clone();
    assert_eq!(content(&mut client, json!({"path": "a"})), "one\ntwo\n");
    assert_eq!(content(&mut client, json!({"path": "a", "before": true})), "one\n");
    assert_eq!(content(&mut client, json!({"path": "d/f", "recording": made})), "x\n");
    assert!(client.error("file_at", json!({"path": "d/f"})).contains("is unavailable"));

    let check = client.call("check", json!({"deny_write": ["*"], "limit": 1}));
    assert_eq!((&check["verdict"], &check["next_offset"]), (&json!("fail"), &json!(1)));
    assert_eq!(client.call("check", json!({"allow_write": ["@workspace"]}))["verdict"], "pass");
    assert!(client.error("check", json!({})).starts_with("check needs a rule"));
}

#[test]
fn undo_is_done_with_the_digest_of_the_plan_as_it_is_alone() {
    for user in User::all() {
        let place = Place::of(*user);
        place.write("a", "one\n");
        place.write("b", "one\n");
        let id = record(&place, "echo two > a; echo two > b");
        let Some(mut client) = Client::start(&place, &[]) else { return };
        let read = |name: &str| fs::read_to_string(place.at(name)).unwrap();
        let plan = client.call("undo", json!({}));
        assert_eq!(plan["recordings"], json!([id]));
        assert_eq!(
            (&plan["applied"], &plan["dry_run"], read("a")),
            (&json!(false), &json!(true), "two\n".into())
        );
        let digest = plan["digest"].clone();
        for wrong in [json!("0123456789abcdef"), json!("x")] {
            let why = client.error("undo", json!({"digest": wrong}));
            assert!(why.starts_with("nothing was changed: the digest is not that of the plan"), "{why}");
        }
        // A conflict makes another plan, which can't be carried out.
        place.write("b", "mine\n");
        let why = client.error("undo", json!({"digest": digest}));
        assert!(why.starts_with("nothing was changed: the digest is not that of the plan"), "{why}");
        assert_eq!((read("a"), read("b")), ("two\n".into(), "mine\n".into()));
        let refused = client.call("undo", json!({}));
        assert_eq!((&refused["refused"], refused.get("digest")), (&json!(true), None));
        assert!(refused["conflicts"][0]["path"].as_str().unwrap().ends_with("/b"), "{refused}");
        // So does another recording.
        let partial = client.call("undo", json!({"skip_conflicts": true}));
        let later = record(&place, "echo three > c");
        client.error("undo", json!({"skip_conflicts": true, "digest": partial["digest"]}));
        let arguments = json!({"recordings": [id], "skip_conflicts": true, "digest": partial["digest"]});
        let done = client.call("undo", arguments.clone());
        assert_eq!((&done["applied"], read("a"), read("b")), (&json!(true), "one\n".into(), "mine\n".into()));
        // It has been done.
        client.error("undo", arguments);

        let plan = client.call("redo", json!({}));
        assert_eq!((&plan["recordings"], read("a")), (&json!([id]), "one\n".into()));
        client.error("redo", json!({"digest": "x"}));
        assert_eq!(client.call("redo", json!({"digest": plan["digest"]}))["applied"], true);
        assert_eq!(read("a"), "two\n");
        let both = client.call("undo", json!({"last": 2, "skip_conflicts": true}));
        assert_eq!(both["recordings"], json!([id, later]));
        let arguments = json!({"last": 2, "skip_conflicts": true, "digest": both["digest"]});
        assert_eq!(client.call("undo", arguments)["applied"], true);
        assert_eq!((read("a"), place.at("c").exists()), ("one\n".into(), false));
        let why = client.error("undo", json!({"last": 2, "since": "1h"}));
        assert_eq!(why, "undo takes one of recordings, last and since");
    }
}

#[test]
fn long_lists_come_in_pages_and_long_texts_are_cut() {
    let place = Place::new();
    record(&place, "for i in $(seq 90); do echo $i > f$i; done");
    for number in 0..5 {
        record(&place, &format!("echo {number} > g"));
    }
    place.write("long", "start\n");
    let long = record(
        &place,
        "seq 20000 > long; printf 'ä%.0s' $(seq 30000) > umlauts; head -c 50000 /dev/zero > zero",
    );
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let made = client.all("log", "recordings", json!({"limit": 2})).last().unwrap()["id"].clone();
    assert_eq!(client.all("log", "recordings", json!({"limit": 2})).len(), 7);
    assert_eq!(client.all("history", "recordings", json!({"path": "g", "limit": 2})).len(), 5);
    for (tool, list) in [("show", "files"), ("diff", "changes")] {
        let all = client.all(tool, list, json!({"recording": made, "limit": 7}));
        let mut paths: Vec<String> = keys(&json!(all), "path");
        paths.dedup();
        // Of the directory that they are in, the time is another.
        assert_eq!(paths.iter().filter(|path| path.contains("/f")).count(), 90, "{tool}");
    }
    // The digest is on the last page.
    let arguments = json!({"recordings": [made], "limit": 50});
    let first = client.call("undo", arguments.clone());
    assert_eq!((first.get("digest"), &first["next_offset"]), (None, &json!(50)));
    let last = client.call("undo", json!({"recordings": [made], "limit": 50, "offset": 50}));
    assert!(last["digest"].is_string() && last.get("next_offset").is_none(), "{last}");
    let done = client.call("undo", json!({"recordings": [made], "limit": 1, "digest": last["digest"]}));
    assert_eq!((&done["applied"], done["changes"].as_array().unwrap().len()), (&json!(true), 1));
    assert!(!place.at("f90").exists());

    let diff = client.call("diff", json!({"recording": long, "paths": ["long"]}));
    assert_eq!(diff["cut"][0]["at"], "/changes/0/patch");
    assert!(diff["cut"][0]["of"].as_u64().unwrap() > 100_000, "{diff}");
    for (name, encoding) in [("umlauts", "utf-8"), ("zero", "utf-8"), ("long", "utf-8")] {
        let (mut text, mut offset) = (String::new(), json!(0));
        while !offset.is_null() {
            let part = client
                .call("file_at", json!({"path": name, "recording": long, "offset": offset, "limit": 9999}));
            assert_eq!(part["encoding"], encoding);
            text += part["content"].as_str().unwrap();
            offset = part["next_offset"].clone();
        }
        assert_eq!(text, fs::read_to_string(place.at(name)).unwrap(), "{name}");
    }
    let beyond = client.call("file_at", json!({"path": "long", "offset": u64::MAX}));
    assert_eq!(beyond["content"], "");
}

#[test]
fn both_changes_of_a_path_are_on_one_page() {
    let place = Place::new();
    place.prepare("seq 1000 1900 > old");
    // Of a renamed file that is another one now, one change says that it is gone, one that it is new. The first fills the
    // page.
    record(
        &place,
        "for name in a b c d; do head -c 7500 /dev/zero | tr '\\0' x > $name; done; mv old z; echo other > z",
    );
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let changes = client.all("diff", "changes", json!({}));
    let status = ["added", "added", "added", "added", "deleted", "added"];
    assert_eq!(keys(&json!(changes), "status"), status, "{changes:?}");
}

#[test]
fn what_concerns_another_project_is_out_of_reach() {
    let place = Place::new();
    let other = place.base().join("other");
    fs::create_dir(&other).unwrap();
    let foreign = record_in(&place, &other, "echo secret-command > f");
    let own = record(&place, "echo one > a");
    std::os::unix::fs::symlink(&other, place.at("way")).unwrap();
    let Some(mut client) = Client::start(&place, &[]) else { return };
    assert_eq!(keys(&client.call("log", json!({}))["recordings"], "id"), [own.as_str()]);
    let library = place.home.join(".local/state/agent-snapshot/snapshots");
    let reference = json!({"provider_id": "agent-snapshot", "ref": {
        "id": foreign, "directory": library.join(&foreign), "session": null
    }});
    let words = [
        foreign.clone(),
        foreign[..4].to_owned(),
        "@~1".to_owned(),
        library.join(&foreign).display().to_string(),
        reference.to_string(),
        "..".to_owned(),
    ];
    for word in &words {
        for tool in ["show", "diff", "check", "redo"] {
            let rules = if tool == "check" { json!({"deny_write": ["*"]}) } else { json!({}) };
            let mut arguments = rules;
            arguments["recording"] = json!(word);
            let why = client.error(tool, arguments);
            assert!(why.contains("does not name one recording of this project"), "{tool} {word}: {why}");
            assert!(!why.contains("secret-command"), "{why}");
        }
        let why = client.error("undo", json!({"recordings": [word]}));
        assert!(why.contains("does not name one recording of this project"), "{word}: {why}");
    }
    for path in ["../other/f", "way/f", "/etc/passwd", "..", &other.join("f").display().to_string()] {
        for tool in ["history", "file_at", "log"] {
            let why = client.error(tool, json!({"path": path}));
            assert!(why.contains("is not in this project, "), "{tool} {path}: {why}");
        }
    }
    drop(client);
    let Some(mut client) = Client::start(&place, &["--all"]) else { return };
    assert_eq!(client.call("log", json!({}))["recordings"].as_array().unwrap().len(), 2);
    assert_eq!(
        client.call("file_at", json!({"path": "../other/f", "recording": foreign}))["content"],
        "secret-command\n"
    );
    drop(client);
    let Some(mut client) = Client::start(&place, &["--directory", "../other"]) else { return };
    assert_eq!(keys(&client.call("log", json!({}))["recordings"], "id"), [foreign.as_str()]);
}

#[test]
fn later_recordings_that_are_undone_too_are_of_the_project() {
    let place = Place::new();
    let other = place.base().join("other");
    fs::create_dir(&other).unwrap();
    let first = record(&place, "echo one > a; echo one > ../other/b");
    record_in(&place, &other, "echo two > b");
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let why = client.error("undo", json!({"recordings": [first], "with_later": true}));
    assert_eq!(
        why,
        "nothing was changed, since this concerns a recording elsewhere, too, which is out of reach"
    );
}

#[test]
fn messages_tell_nothing_of_recordings_elsewhere() {
    let place = Place::new();
    let other = place.base().join("other");
    fs::create_dir(&other).unwrap();
    place.prepare("echo zero > a; ln a ../other/link");
    let first = record(&place, "echo one > ../other/b; echo one > a");
    let foreign = record_in(&place, &other, "echo secret > b; rm link; echo secret > link");
    let last = record(&place, "echo three > ../other/b");
    let Some(mut client) = Client::start(&place, &[]) else { return };
    for recordings in [vec![&first], vec![&first, &last]] {
        let plan = client.call("undo", json!({"recordings": recordings}));
        assert_eq!(plan["refused"], true, "{plan}");
        let text = plan.to_string();
        assert!(text.contains("by a recording elsewhere"), "{text}");
        for told in [foreign.as_str(), "secret", "with-later"] {
            assert!(!text.contains(told), "{told}: {text}");
        }
    }
    for (recordings, reason) in [
        (vec![&first], "a hard link of it was changed since by a recording elsewhere"),
        (vec![&first, &last], "it was changed by a recording elsewhere"),
    ] {
        let plan = client.call("undo", json!({"recordings": recordings}));
        assert!(plan["conflicts"].to_string().contains(reason), "{plan}");
    }
}

#[test]
fn name_of_a_recording_is_one_of_the_project() {
    let place = Place::new();
    let named = |directory: &Path, script: &str| {
        fs::create_dir_all(directory).unwrap();
        let mut command = place.command();
        command.args(["run", "--quiet", "--name", "deploy", "sh", "-c", script]).current_dir(directory);
        assert!(command.output().unwrap().status.success());
    };
    for other in ["one", "two"] {
        named(&place.base().join(other), "echo secret > f");
    }
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let why = client.error("show", json!({"recording": "deploy"}));
    assert_eq!(why, "deploy does not name one recording of this project (log lists them)");
    named(&place.work, "echo mine > f");
    let show = client.call("show", json!({"recording": "deploy"}));
    assert!(show["command"].to_string().contains("echo mine"), "{show}");
    let plan = client.call("undo", json!({"recordings": ["deploy"]}));
    assert!(plan["digest"].is_string(), "{plan}");
}

#[test]
fn path_is_no_recording() {
    let place = Place::new();
    fs::create_dir(place.at("src")).unwrap();
    place.write("notes", "one\n");
    let id = record(&place, "echo two > notes; echo two > other; echo two > src/file");
    for arguments in [&[][..], &["--all"]] {
        let Some(mut client) = Client::start(&place, arguments) else { return };
        for word in ["notes", "src", "/etc/passwd", "/", "nonexistent", "/nonexistent"] {
            for tool in ["show", "diff"] {
                let why = client.error(tool, json!({"recording": word}));
                assert!(why.starts_with(&format!("{word} does not name one recording")), "{tool}: {why}");
            }
            for recordings in [json!([word]), json!([id, word])] {
                let why = client.error("undo", json!({"recordings": recordings}));
                assert!(why.starts_with(&format!("{word} does not name one recording")), "{why}");
            }
        }
    }
}

#[test]
fn what_is_done_is_what_the_plan_showed() {
    let place = Place::new();
    for name in ["first", "second", "third"] {
        place.write(name, "one\n");
    }
    record(&place, "for name in first second third; do echo two > $name; done");
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let mut agree = |tool: &str, arguments: Value| {
        let plan = client.call(tool, arguments.clone());
        let mut arguments = arguments;
        arguments["digest"] = plan["digest"].clone();
        let done = client.call(tool, arguments);
        assert_eq!((&done["applied"], &done["changes"]), (&json!(true), &plan["changes"]));
    };
    let read = || ["first", "second", "third"].map(|name| fs::read_to_string(place.at(name)).unwrap());
    // A path that was not changed does not keep the other from being undone.
    agree("undo", json!({"paths": ["first", "nonexistent"]}));
    assert_eq!(read(), ["one\n", "two\n", "two\n"]);
    agree("undo", json!({"paths": ["second"]}));
    assert_eq!(read(), ["one\n", "one\n", "two\n"]);
    // The last undo alone.
    agree("redo", json!({}));
    assert_eq!(read(), ["one\n", "two\n", "two\n"]);
    agree("redo", json!({}));
    assert_eq!(read(), ["two\n", "two\n", "two\n"]);
}

#[test]
fn file_that_was_written_again_after_the_plan_makes_another_plan() {
    let place = Place::new();
    place.prepare(
        "git init -q; git config user.name a; git config user.email a@example.org; echo one > a; \
         git add a; git commit -qm one",
    );
    record(&place, "echo two > a; git commit -qam two");
    let Some(mut client) = Client::start(&place, &[]) else { return };
    let plan = client.call("undo", json!({}));
    // The same text, and so no conflict.
    place.write("a", "two\n");
    let why = client.error("undo", json!({"digest": plan["digest"]}));
    assert!(why.starts_with("nothing was changed: the digest is not that of the plan"), "{why}");
    let plan = client.call("undo", json!({}));
    // What git does by itself to its index does not count.
    place.prepare("git status");
    assert_eq!(client.call("undo", json!({"digest": plan["digest"]}))["applied"], true);
    assert_eq!(fs::read_to_string(place.at("a")).unwrap(), "one\n");
}

#[test]
fn session_of_the_environment_limits_the_tools() {
    let place = Place::new();
    record(&place, "echo one > a");
    let mut command = place.command();
    let words = ["run", "--quiet", "--session", "mine", "sh", "-c", "echo two > b"];
    assert!(command.args(words).output().unwrap().status.success());
    if Client::start(&place, &[]).is_none() {
        return;
    }
    let mut command = place.program(python_with_modules());
    command.args([CLIENT, BINARY, "mcp"]).env("AGENT_SNAPSHOT_SESSION", "mine");
    let mut client = Client::of(command);
    let log = client.call("log", json!({}));
    assert_eq!(log["recordings"].as_array().unwrap().len(), 1);
    assert_eq!(log["recordings"][0]["session"], "mine");
}

#[test]
fn project_that_was_removed_comes_back() {
    let place = Place::new();
    let project = place.at("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("a"), "one\n").unwrap();
    let directory = project.display().to_string();
    let Some(mut client) = Client::start(&place, &["--directory", &directory]) else { return };
    record_in(&place, &project, "rm -rf ../project");
    assert!(!project.exists());
    let plan = client.call("undo", json!({}));
    assert_eq!(client.call("undo", json!({"digest": plan["digest"]}))["applied"], true);
    assert_eq!(fs::read_to_string(project.join("a")).unwrap(), "one\n");
    assert_eq!(client.call("file_at", json!({"path": "a", "before": true}))["content"], "one\n");
}

#[test]
fn undo_works_inside_a_session() {
    let place = Place::new();
    place.write("a", "one\n");
    if Client::start(&place, &[]).is_none() {
        return;
    }
    let mut command = place.command();
    let python = python_with_modules();
    let script = format!("echo two > a; echo $(cat a); exec {python} {CLIENT} {BINARY} mcp");
    command.args(["session", "--quiet", "--name", "s", "--", "sh", "-c", &script]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = process.stdin.take();
    let mut answers = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    assert_eq!(line, "two\n");
    let tools = next(&mut answers);
    let mut client = Client { process, input, answers, tools };
    // The edit ends some seconds after it was made.
    let plan = loop {
        let answer = client.answer("undo", json!({}));
        if answer.get("structured").is_some() {
            break answer["structured"].clone();
        }
        std::thread::yield_now();
    };
    assert_eq!(client.call("undo", json!({"digest": plan["digest"]}))["applied"], true);
    assert_eq!(fs::read_to_string(place.at("a")).unwrap(), "one\n");
}

#[test]
fn hostile_input_gets_a_sentence_each() {
    let place = Place::new();
    record(&place, "echo one > a");
    let Some(mut client) = Client::start(&place, &[]) else { return };
    for (tool, arguments, said) in [
        ("log", json!({"limit": "x"}), "invalid type"),
        ("log", json!({"limit": -1}), "invalid value"),
        ("log", json!({"limit": 1e300}), "invalid type"),
        ("log", json!({"nonsense": 1}), "unknown field `nonsense`"),
        ("log", json!({"since": "soon"}), "a duration is"),
        ("show", json!({"list": "everything"}), "unknown variant"),
        ("show", json!({"recording": 7}), "invalid type"),
        ("show", json!({"recording": "a\nb"}), "does not name one recording"),
        ("history", json!({}), "missing field `path`"),
        ("history", json!({"path": "a\nb"}), "no recording in the library has changed"),
        ("history", json!({"path": "nul\u{0}"}), ""),
        ("file_at", json!({"path": ""}), ""),
        ("file_at", json!({"path": "a", "at": "1h", "before": true}), "file_at takes at"),
        ("file_at", json!({"path": "a", "at": "yesterday"}), "a time is"),
        ("check", json!({"deny_net": ["not an address!"]}), ""),
        ("undo", json!({"last": 0}), "invalid value"),
        ("undo", json!({"recordings": ["a"]}), "does not name one recording"),
        ("redo", json!({}), "there is nothing to redo here"),
    ] {
        let why = client.error(tool, arguments.clone());
        assert!(why.contains(said), "{tool} {arguments}: {why}");
    }
    assert!(
        client.answer("rm -rf", json!({}))["refused"].as_str().unwrap().contains("there is no tool rm -rf")
    );
    let huge = json!({"limit": u64::MAX, "offset": u64::MAX});
    assert_eq!(client.call("log", huge.clone())["recordings"], json!([]));
    assert_eq!(client.call("show", huge.clone())["files"], json!([]));
    assert_eq!(client.call("diff", huge)["changes"], json!([]));
    assert_eq!(client.call("log", json!({"limit": 0}))["recordings"].as_array().unwrap().len(), 1);
}

/// What the server writes to raw input; it has to end well when the input does.
fn raw(place: &Place, input: &[u8]) -> Vec<Value> {
    let mut command = place.command();
    let mut process = command
        .arg("mcp")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input).unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn end_of_input_is_the_end_and_nothing_else_is_written() {
    let place = Place::new();
    assert_eq!(raw(&place, b""), [] as [Value; 0]);
    let begin = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}
    }});
    let begun = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "log"}});
    let answers = raw(&place, format!("{begin}\n").as_bytes());
    assert_eq!(answers[0]["result"]["serverInfo"]["name"], "agent-snapshot");
    // No library is there yet, and none is made.
    let input = format!("{begin}\n{begun}\n{{\n\u{0}garbage\n[]\n7\n{call}\n");
    let answers = raw(&place, input.as_bytes());
    let found = answers.iter().find(|answer| answer["id"] == 2).unwrap();
    assert_eq!(found["result"]["structuredContent"]["recordings"], json!([]));
    assert!(!place.home.join(".local").exists());
    let missing = place.command().args(["mcp", "--directory", "/nowhere"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&missing.stderr).starts_with("agent-snapshot: change to /nowhere: "));
}
