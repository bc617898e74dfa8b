//! `attest`: a recording as an in-toto Statement, held against in-toto's own classes.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Place, Run, python_with_modules};

/// Validates a Statement, and each ResourceDescriptor in its predicate, by the classes of in-toto.
const VALIDATE: &str = r#"
import json, sys
from google.protobuf import json_format
from in_toto_attestation.v1 import resource_descriptor, resource_descriptor_pb2, statement, statement_pb2
given = json.load(sys.stdin)
statement.Statement.copy_from_pb(json_format.ParseDict(given, statement_pb2.Statement())).validate()
for access in given["predicate"]["monitorLog"]["fileAccess"]:
    parsed = json_format.ParseDict(access, resource_descriptor_pb2.ResourceDescriptor())
    resource_descriptor.ResourceDescriptor.copy_from_pb(parsed).validate()
"#;

fn sha256(content: &str) -> Value {
    json!({"sha256": faster_hex::hex_string(&Sha256::digest(content))})
}

fn attest(place: &Place, flags: &[&str]) -> Value {
    let run = place.verb("attest", flags).expect(0);
    assert_eq!(run.stderr, "");
    serde_json::from_str(&run.stdout).unwrap()
}

fn validate(place: &Place, statement: &Value) {
    if !place.can_run(&[&python_with_modules(), "-c", "import in_toto_attestation"]) {
        println!("skipped: no in-toto-attestation");
        return;
    }
    let mut python =
        place.program(python_with_modules()).args(["-c", VALIDATE]).stdin(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(statement.to_string().as_bytes()).unwrap();
    assert!(python.wait().unwrap().success());
}

/// The states of a path in the trace.
fn accesses<'s>(place: &Place, statement: &'s Value, name: &str) -> Vec<&'s Value> {
    let path = place.at(name);
    let all = statement["predicate"]["monitorLog"]["fileAccess"].as_array().unwrap();
    all.iter().filter(|access| access["name"] == path.to_str().unwrap()).collect()
}

#[test]
fn statement_has_the_shape_that_in_toto_publishes() {
    let place = Place::new();
    place.write("input", "one");
    place.write("gone", "two");
    place.write("odd\n\"<b>", "three");
    let log = std::fs::File::create(place.at("log")).unwrap();
    let script =
        "cat input ./odd* > output; rm gone; mkdir made; printf x | tee made/file > /dev/null; echo said";
    // Whoever redirects the output has chosen the file: the command did not make it.
    assert!(place.recording().args(["sh", "-c", script]).stdout(log).status().unwrap().success());
    let snapshot = place.snapshot();
    let statement = attest(&place, &[]);
    validate(&place, &statement);
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://in-toto.io/attestation/runtime-trace/v0.2");
    let path = |name: &str| place.at(name).to_str().unwrap().to_owned();
    assert_eq!(
        statement["subject"],
        json!([
            {"name": path("made/file"), "digest": sha256("x")},
            {"name": path("output"), "digest": sha256("onethree")},
        ])
    );
    let input = accesses(&place, &statement, "input");
    assert_eq!(input.len(), 1);
    assert_eq!(input[0]["digest"], sha256("one"));
    assert_eq!(input[0]["annotations"]["state"], "before");
    let gone = accesses(&place, &statement, "gone");
    assert_eq!(gone[0]["digest"], sha256("two"));
    assert_eq!((&gone[1]["annotations"]["type"], gone[1].get("digest")), (&json!("none"), None));
    assert_eq!(accesses(&place, &statement, "odd\n\"<b>")[0]["digest"], sha256("three"));

    let predicate = &statement["predicate"];
    let process = predicate["monitorLog"]["process"].as_array().unwrap();
    assert_eq!(process.len(), snapshot.header().processes.len());
    assert_eq!(process[0]["execs"][0]["argv"][0], "sh");
    assert_eq!(predicate["monitoredProcess"]["event"], snapshot.header().id);
    assert_eq!(predicate["monitor"]["tracePolicy"]["complete"], true);
    assert_eq!(predicate["metadata"]["buildStartedOn"], snapshot.header().started_at);
}

#[test]
fn caller_names_the_subjects_and_the_job() {
    let place = Place::new();
    place
        .record("echo a > a; echo b > b; true --password hunter2; cat .env 2> /dev/null; echo SECRET > .env");
    let b = place.at("b");
    let flags = ["--subject", b.to_str().unwrap(), "--host-id", "https://ci.example", "--event", "run 7"];
    let statement = attest(&place, &flags);
    assert_eq!(statement["subject"], json!([{"name": b, "digest": sha256("b\n")}]));
    let process = &statement["predicate"]["monitoredProcess"];
    assert_eq!((&process["hostID"], &process["event"]), (&json!("https://ci.example"), &json!("run 7")));
    let text = statement.to_string();
    assert!(!text.contains("hunter2") && !text.contains(sha256("SECRET\n")["sha256"].as_str().unwrap()));

    for name in ["nothing", ".env"] {
        let refused = place.verb("attest", &["--subject", place.at(name).to_str().unwrap()]).expect(2);
        assert!(refused.stderr.contains("has no digest of such a file at its end"), "{}", refused.stderr);
        assert_eq!(refused.stdout, "");
    }
}

#[test]
fn recording_without_a_file_is_attested_by_its_manifest() {
    let place = Place::new();
    place.record("true");
    let statement = attest(&place, &[]);
    validate(&place, &statement);
    let manifest = std::fs::read_to_string(place.out.join("manifest.json")).unwrap();
    assert_eq!(statement["subject"], json!([{"name": "manifest.json", "digest": sha256(&manifest)}]));
}

#[test]
fn gaps_are_refused_unless_they_are_allowed() {
    let place = Place::new();
    place.write("file", "one");
    let output = place.record_with(&["--max-blob-bytes", "1B", "--"], "echo two > file");
    assert!(output.status.success(), "{output:?}");
    let Run { stdout, stderr, .. } = place.verb("attest", &[]).expect(1);
    assert!(stderr.starts_with("agent-snapshot: the recording is incomplete: 1 gap ("), "{stderr}");
    assert!(stdout.is_empty() && stderr.lines().count() == 1, "{stderr}");
    let policy = &attest(&place, &["--allow-incomplete"])["predicate"]["monitor"]["tracePolicy"];
    assert_eq!((&policy["complete"], policy["gaps"].as_array().unwrap().len()), (&json!(false), 1));

    let place = Place::new();
    place.record_with(&["--keep", "undo", "--"], "true");
    let refused = place.verb("attest", &[]).expect(2);
    assert!(refused.stderr.contains("record with --keep all"), "{}", refused.stderr);
}
