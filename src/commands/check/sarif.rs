//! The findings as SARIF 2.1.0, the format that code hosts take.
//!
//! Neighbour: `text.rs` has the words. The test compares the output with the schema in `testdata/`.

use serde_json::{Value, json};

use super::text::{FindingText, Process, plain};
use super::{INCOMPLETE, Judged, overall, root_of};
use crate::commands::out::{Console, OutputError};
use crate::commands::show::{Refusal, refusals};
use crate::git::below;
use crate::policy::{Finding, FindingSubject, PolicyVerdict, RuleWord};
use crate::snapshot::{Header, PROTECTED};

/// The name of the directory that relative URIs start from.
const BASE: &str = "SRCROOT";

/// Writes the findings as one run, with paths relative to the working tree of the first recording: code hosts refuse several
/// runs of one tool.
pub fn write(judged: &[Judged], console: &mut Console) -> Result<(), OutputError> {
    let root = &root_of(judged);
    let (mut results, mut notifications) = (Vec::new(), Vec::new());
    for Judged { header, report, verdict } in judged {
        results.extend(report.findings.iter().map(|finding| result_of(finding, header, root)));
        if *verdict == PolicyVerdict::Unknown {
            results.extend(report.unknown.iter().map(|gap| {
                let index = RuleWord::ALL.len();
                json!({
                    "ruleId": INCOMPLETE, "ruleIndex": index, "level": "error",
                    "message": {"text": escaped(&plain(gap))},
                    "locations": [location(root, root)],
                })
            }));
        }
        results.extend(refusals(header, None).iter().map(|refusal| refused(refusal, header, root)));
        let notification =
            |level: &str, text: &String| json!({"level": level, "message": {"text": escaped(&plain(text))}});
        notifications.extend(report.unknown.iter().map(|gap| notification("error", gap)));
        notifications.extend(report.notes.iter().map(|note| notification("note", note)));
    }
    let mut rules: Vec<Value> =
        RuleWord::ALL.iter().map(|word| rule(word.name(), description(*word))).collect();
    rules.push(rule(INCOMPLETE, "The recording may lack something that rules are about"));
    rules.push(rule(PROTECTED, "The command was to change a recording, or what decides on rules"));
    let snapshots: Vec<&str> = judged.iter().map(|judged| judged.header.id.as_str()).collect();
    console.json(&json!({
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "agent-snapshot",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "originalUriBaseIds": {BASE: {"uri": format!("file://{}", directory_uri(root))}},
            "invocations": [{"executionSuccessful": true, "toolExecutionNotifications": notifications}],
            "properties": {"snapshots": snapshots, "verdict": overall(judged).name()},
            "results": results,
        }],
    }))
}

fn rule(id: &str, description: &str) -> Value {
    json!({"id": id, "shortDescription": {"text": description}, "defaultConfiguration": {"level": "error"}})
}

fn description(word: RuleWord) -> &'static str {
    match word {
        RuleWord::AllowWrite => "The command changed a path that no rule allows",
        RuleWord::DenyWrite => "The command changed a path that a rule denies",
        RuleWord::AllowRead => "The command read a path that no rule allows",
        RuleWord::DenyRead => "The command read a file that a rule denies",
        RuleWord::AllowExec => "The command executed a program that no rule allows",
        RuleWord::DenyExec => "The command executed a program that a rule denies",
        RuleWord::AllowNet => "The command used a socket address that no rule allows",
        RuleWord::DenyNet => "The command used a socket address that a rule denies",
        RuleWord::AllowUnix => "The command used an AF_UNIX socket that no rule allows",
    }
}

fn result_of(finding: &Finding, header: &Header, root: &[u8]) -> Value {
    let text = FindingText::new(finding, header);
    // A result without a place is refused by code hosts: that of an address is the program.
    let place = match &finding.subject {
        FindingSubject::Address(_) => program(finding.processes.first(), header).unwrap_or(root),
        subject => subject.path().unwrap_or(root),
    };
    let processes: Vec<_> = finding.processes.iter().map(|id| Process::new(*id, header)).collect();
    let index = RuleWord::ALL.iter().position(|word| *word == finding.word);
    json!({
        "ruleId": finding.word.name(), "ruleIndex": index, "level": "error",
        "message": {"text": escaped(&text.line())},
        "locations": [location(place, root)],
        "properties": {"processes": processes},
    })
}

/// A call that did not happen.
fn refused(refusal: &Refusal, header: &Header, root: &[u8]) -> Value {
    let (id, index) = match RuleWord::ALL.iter().position(|word| word.name() == refusal.word()) {
        Some(index) => (refusal.word(), index),
        None => (PROTECTED, RuleWord::ALL.len() + 1),
    };
    let place = refusal.path().or_else(|| program(refusal.processes.first(), header)).unwrap_or(root);
    let processes: Vec<_> = refusal.processes.iter().map(|id| Process::new(*id, header)).collect();
    json!({
        "ruleId": id, "ruleIndex": index, "level": "note",
        "message": {"text": escaped(&refusal.line(header))},
        "locations": [location(place, root)],
        "properties": {"processes": processes, "refused": refusal.count},
    })
}

/// The program of a process, by its path.
fn program<'h>(id: Option<&u32>, header: &'h Header) -> Option<&'h [u8]> {
    let process = header.processes.iter().find(|process| Some(&process.id) == id)?;
    Some(process.image.exe.as_slice()).filter(|exe| exe.starts_with(b"/"))
}

/// The place of a path: relative to the working tree if it is beneath it.
fn location(path: &[u8], root: &[u8]) -> Value {
    let artifact = match below(path, root) {
        Some(b"") => json!({"uri": "./", "uriBaseId": BASE}),
        Some(relative) => json!({"uri": uri(relative), "uriBaseId": BASE}),
        None => json!({"uri": format!("file://{}", uri(path))}),
    };
    json!({"physicalLocation": {"artifactLocation": artifact}})
}

/// The URI of a directory ends with a slash.
fn directory_uri(path: &[u8]) -> String {
    let uri = uri(path);
    if uri.ends_with('/') { uri } else { uri + "/" }
}

/// A path as the path of a URI (RFC 3986): every byte but unreserved characters and slashes is encoded.
fn uri(path: &[u8]) -> String {
    let mut uri = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// A text without a link or a placeholder (SARIF 2.1.0, 3.11.5 and 3.11.6).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '{' | '}' => out.extend([char, char]),
            '[' | ']' => out.extend(['\\', char]),
            char => out.push(char),
        }
    }
    out
}
