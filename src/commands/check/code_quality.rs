//! The findings as a Code Quality report, which GitLab shows in merge requests.
//!
//! Neighbour: `text.rs` has the words.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::text::{FindingText, plain};
use super::{INCOMPLETE, Judged, root_of};
use crate::commands::out::{Console, OutputError};
use crate::commands::show::refusals;
use crate::git::below;
use crate::policy::PolicyVerdict;
use crate::snapshot::{Digest, printable};

/// Writes the findings, with paths relative to the working tree of the first recording; a finding that several recordings
/// have is one.
pub fn write(judged: &[Judged], console: &mut Console) -> Result<(), OutputError> {
    let root = &root_of(judged);
    let mut issues = Vec::new();
    for Judged { header, report, verdict } in judged {
        for finding in &report.findings {
            let text = FindingText::new(finding, header);
            let path = finding.subject.path().unwrap_or(root);
            issues.push(issue(finding.word.name(), &text.subject, &text.line(), path, root));
        }
        for refusal in refusals(header, None) {
            let path = refusal.path().unwrap_or(root);
            let mut refused = issue(refusal.word(), &refusal.what(), &refusal.line(header), path, root);
            refused["severity"] = "info".into();
            issues.push(refused);
        }
        if *verdict == PolicyVerdict::Unknown {
            let gaps = report.unknown.iter().map(|gap| plain(gap));
            issues.extend(gaps.map(|gap| issue(INCOMPLETE, &gap, &gap, root, root)));
        }
    }
    let mut seen = HashSet::new();
    issues.retain(|issue| seen.insert(issue["fingerprint"].to_string()));
    console.json(&issues)
}

/// An issue. GitLab tells by the fingerprint, which is of rule and subject, whether it is new.
fn issue(rule: &str, subject: &str, text: &str, path: &[u8], root: &[u8]) -> Value {
    let path = match below(path, root) {
        Some(b"") => b".",
        Some(relative) => relative,
        None => path,
    };
    let fingerprint = Digest::of(format!("{rule} {subject}").as_bytes()).to_string();
    json!({
        "description": text, "check_name": rule, "fingerprint": fingerprint, "severity": "major",
        "location": {"path": printable(path), "lines": {"begin": 1}},
    })
}
