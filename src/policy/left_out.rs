//! What rules of omission left out of a recording, as far as the user's rules are about it.
//!
//! Neighbour: `judge.rs` judges the changes that are listed. Reads are listed only of files of another owner, and otherwise
//! counted.

use super::glob::PathGlob;
use super::judge::{Files, Finding, FindingSubject, PolicyReport};
use super::patterns::{PathMatch, PathRule, SYSTEM};
use super::rules::{CompiledPolicy, Decision, PathUseKind, PolicyPlaces, RuleWord};
use crate::git::below;
use crate::snapshot::{Header, LeftOutUse, Operations, Suppressed};

/// The changes that a rule left out; those of an earlier version by the topmost paths.
pub fn changes(rule: &Suppressed) -> Vec<LeftOutUse> {
    rule.changes.clone().unwrap_or_else(|| {
        let beneath = rule.changed.iter().map(|path| LeftOutUse {
            path: path.clone(),
            beneath: true,
            operations: Operations::NONE,
            process: 0,
        });
        beneath.collect()
    })
}

/// The reads that are listed and forbidden.
pub fn forbidden_reads(header: &Header, policy: &CompiledPolicy, live: &dyn Files) -> Vec<Finding> {
    let listed =
        header.suppressed.iter().flat_map(|rule| rule.read.iter().flatten().map(move |used| (rule, used)));
    let findings = listed.filter_map(|(rule, used)| {
        let reads = used.operations.intersection(Operations::CONTENT_READS);
        let has = |sign| live.has_now(&used.path, sign);
        let (operations, word, text) = match policy.decide(PathUseKind::Read, &used.path, &has) {
            Decision::Denied(word, text) if !reads.is_empty() => (reads, word, Some(text)),
            Decision::NotAllowed(word) => (used.operations, word, None),
            _ => return None,
        };
        let (path, left_out_by) = (used.path.clone(), Some(rule.rule.clone()));
        let subject = FindingSubject::Path { path, operations, through: None, left_out_by };
        Some(Finding { word, text, subject, processes: vec![used.process] })
    });
    findings.collect()
}

/// Tells of reads that were left out and are not listed. If a rule of the user is about the place that the rule of omission
/// covers, they are a gap.
pub fn judge_reads(header: &Header, policy: &CompiledPolicy, live: &dyn Files, report: &mut PolicyReport) {
    let places = PolicyPlaces::of(header);
    // A recording has the reads that its own rules forbid, but in Git directories.
    let has_reads = |rule: &&Suppressed| rule.reads > 0 && (!policy.is_of_recording || rule.rule == GIT);
    let omissions: Vec<_> =
        header.suppressed.iter().filter(has_reads).map(|rule| (rule, region(&rule.rule, &places))).collect();
    if policy.has(RuleWord::DenyRead) {
        judge_denied_reads(&omissions, policy.path_rules(RuleWord::DenyRead), report);
    }
    if policy.has(RuleWord::AllowRead) {
        judge_allowed_reads(&omissions, policy, &places, live, report);
    }
}

/// The rules of omission that are about no place of their own.
const GIT: &str = ".git";
const FOREIGN_OWNER: &str = "foreign owner";

/// A rule of omission that left out reads, and the path that it covers.
type Omission<'a> = (&'a Suppressed, Option<Vec<u8>>);

fn judge_denied_reads(omissions: &[Omission], denying: &[PathRule], report: &mut PolicyReport) {
    let mut left_out = Vec::new();
    for (rule, region) in omissions {
        let denied = denying.iter().find(|denied| is_about(denied, &rule.rule, region.as_deref()));
        match denied {
            Some(denied) => report.unknown.push(format!(
                "deny-read {} is about what the rule {} left out of the recording, {} reads",
                String::from_utf8_lossy(&denied.text),
                rule.rule,
                rule.reads
            )),
            None if rule.read.is_none() && may_be_beneath(denying, region.as_deref()) => {
                left_out.push(rule.rule.as_str())
            }
            None => {}
        }
    }
    note_left_out(RuleWord::DenyRead, &left_out, report);
}

fn judge_allowed_reads(
    omissions: &[Omission],
    policy: &CompiledPolicy,
    places: &PolicyPlaces,
    live: &dyn Files,
    report: &mut PolicyReport,
) {
    let allows = |path: &[u8]| {
        policy.decide_beneath(PathUseKind::Read, path) != Decision::NotAllowed(RuleWord::AllowRead)
    };
    let allows = |path: &[u8]| allows(path) || allows(&live.resolved(path));
    let mut left_out = Vec::new();
    for (rule, region) in omissions {
        let is_allowed = match (region, rule.rule.as_str()) {
            (Some(region), _) => allows(region),
            (None, GIT) => allows(places.workspace()),
            (None, FOREIGN_OWNER) if rule.read.is_some() => true,
            (None, FOREIGN_OWNER) => SYSTEM.iter().all(|path| allows(path)),
            (None, _) => true,
        };
        if !is_allowed {
            report.unknown.push(format!(
                "allow-read does not allow all that the rule {} may have left out of the recording, {} reads",
                rule.rule, rule.reads
            ));
        } else if region.is_none() && rule.read.is_none() {
            left_out.push(rule.rule.as_str());
        }
    }
    note_left_out(RuleWord::AllowRead, &left_out, report);
}

fn note_left_out(word: RuleWord, rules: &[&str], report: &mut PolicyReport) {
    if !rules.is_empty() {
        let (word, rules) = (word.name(), rules.join(", "));
        report
            .notes
            .push(format!("{word} does not judge reads that these rules left out of the recording: {rules}"));
    }
}

/// What must be allowed for the reads that were left out and are not listed.
#[derive(Debug, Default)]
pub struct Needed {
    /// Presets.
    pub presets: Vec<&'static [u8]>,
    /// Paths, with the number of reads.
    pub paths: Vec<(Vec<u8>, u64)>,
}

impl Needed {
    /// For the reads of a recording.
    pub fn of(header: &Header, places: &PolicyPlaces) -> Needed {
        let mut needed = Needed::default();
        for rule in header.suppressed.iter().filter(|rule| rule.reads > 0) {
            match (region(&rule.rule, places), rule.rule.as_str()) {
                (Some(path), _) => needed.paths.push((path, rule.reads)),
                (None, GIT) => needed.presets.push(b"@workspace"),
                (None, FOREIGN_OWNER) if rule.read.is_none() => needed.presets.push(b"@system"),
                (None, _) => {}
            }
        }
        needed
    }
}

/// Whether a rule names something in the place that a rule of omission covers.
fn is_about(denied: &PathRule, omission: &str, region: Option<&[u8]>) -> bool {
    let PathMatch::Globs(globs) = &denied.paths else { return false };
    globs.iter().any(|glob| match region {
        Some(region) => below(glob.prefix(), region).is_some(),
        None => omission == GIT && glob.prefix().split(|byte| *byte == b'/').any(|name| name == b".git"),
    })
}

/// Whether a rule about reading may be about something in the place that a rule of omission covers.
fn may_be_beneath(denying: &[PathRule], region: Option<&[u8]>) -> bool {
    denying.iter().any(|rule| region.is_none_or(|region| rule.paths.may_match_beneath(region)))
}

/// The path that a rule of omission covers; none of `.git`, of the owner's, and of a pattern.
fn region(rule: &str, places: &PolicyPlaces) -> Option<Vec<u8>> {
    let path = rule.strip_prefix("reads:").unwrap_or(rule);
    if [GIT, FOREIGN_OWNER].contains(&path) || path.contains('*') {
        return None;
    }
    let home = || places.home.as_deref();
    Some(match (path.strip_prefix("$HOME"), path.strip_prefix("$XDG_CONFIG_HOME")) {
        (Some(rest), _) => [home()?, rest.as_bytes()].concat(),
        (_, Some(rest)) => [home()?, b"/.config", rest.as_bytes()].concat(),
        _ if path.starts_with('/') => path.as_bytes().to_vec(),
        _ => PathGlob::below(&places.start, path.as_bytes()).ok()?.literal_path()?.to_vec(),
    })
}
