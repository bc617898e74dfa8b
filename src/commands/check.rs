//! `check`: judges a recording by rules of what its command may write, read and contact.
//!
//! `policy` judges; this reports the findings. `words.rs` collects the rules, `text.rs` puts a finding into words,
//! `sarif.rs` and `code_quality.rs` are the formats of code hosts, `explain.rs` is `--explain`. A recording with rules reports
//! its findings with [`judged`].

mod code_quality;
mod explain;
mod sarif;
mod text;
mod words;

use std::collections::BTreeSet;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::config;
use super::exit::{Exit, UsageError, VerbResult};
use super::open::{open_library, open_or_last};
use super::out::{Console, style};
use super::paths::{counted, resolved};
use crate::cli::PolicyCheck;
use crate::fs;
use crate::policy::{
    CompiledPolicy, Files, Finding, FindingSubject, PolicyPlaces, PolicyReport, PolicyVerdict, RuleWords,
    judge,
};
use crate::snapshot::secrets::{ContentSign, may_have_sign, recorded_sign};
use crate::snapshot::source::Contents;
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{BlobOmitted, FileRecord, Header, Present, Snapshot, State, live};
use text::FindingText;
pub use text::{Process, id_and_command};
pub use words::Rules;

/// Runs `check`.
pub fn run(args: &PolicyCheck, console: &mut Console) -> VerbResult {
    let given = Rules::given(&args.rules, None).map_err(UsageError)?;
    if let Some(asked) = &args.explain {
        return explain::run(asked.as_encoded_bytes(), &given, args, console);
    }
    let snapshots = match args.all {
        true => open_library(&args.access, console)?,
        false => vec![open_or_last(args.snap.as_deref(), &args.access, console)?],
    };
    let judged = snapshots.iter().map(|snapshot| Judged::new(snapshot, &given, args.allow_incomplete));
    let judged = judged.collect::<Result<Vec<_>, UsageError>>()?;
    let verdict = overall(&judged);
    if args.sarif {
        sarif::write(&judged, console)?;
    } else if args.code_quality {
        code_quality::write(&judged, console)?;
    } else if !args.json {
        print(&judged, args.all, verdict, console)?;
    } else if args.all {
        let recordings = judged.iter().map(CheckJson).collect();
        console.json(&AllJson { verdict: verdict.name(), recordings })?;
    } else {
        judged.iter().try_for_each(|judged| console.json(&CheckJson(judged)))?;
    }
    Ok(if verdict == PolicyVerdict::Pass { Exit::Success } else { Exit::Finding })
}

/// A recording, and what rules say of it.
struct Judged<'a> {
    header: &'a Header,
    report: PolicyReport,
    verdict: PolicyVerdict,
}

impl<'a> Judged<'a> {
    fn new(snapshot: &'a Snapshot, given: &Rules, allow_incomplete: bool) -> Result<Judged<'a>, UsageError> {
        let header = snapshot.header();
        if !header.kind.is_recording() {
            return Err(UsageError("a rescue has no command that could be checked".to_owned()));
        }
        let policy = places(header).and_then(|places| policy_of(given, &places)).map_err(UsageError)?;
        let report = judge(snapshot, &policy, &Live::of(snapshot));
        Ok(Judged { header, verdict: report.verdict(allow_incomplete), report })
    }
}

/// What the given rules mean in these places, or if there are none, those of the configuration.
fn policy_of(given: &Rules, places: &PolicyPlaces) -> Result<CompiledPolicy, String> {
    if !given.is_empty() {
        return given.compiled(places);
    }
    let configured = Rules::default().with_configured(places.workspace())?;
    if configured.is_empty() {
        return Err(
            "check needs a rule: --allow-write GLOB, --deny-write GLOB, the same with read and exec, --allow-net HOST[:PORT], \
             --deny-net[=HOST[:PORT]], --allow-unix GLOB, --policy FILE, or [policy] in config.toml"
                .to_owned(),
        );
    }
    configured.compiled(places)
}

/// The rule of what may be missing in a recording, beside those of the policy.
const INCOMPLETE: &str = "incomplete";

/// What code hosts take for the root of all paths: the working tree of the first recording.
fn root_of(judged: &[Judged]) -> Vec<u8> {
    let workspace = |judged: &Judged| PolicyPlaces::of(judged.header).workspace().to_vec();
    judged.first().map_or_else(|| b"/".to_vec(), workspace)
}

/// The verdict on all recordings: that on the worst.
fn overall(judged: &[Judged]) -> PolicyVerdict {
    let is_any = |verdict| judged.iter().any(|judged| judged.verdict == verdict);
    let worst = [PolicyVerdict::Fail, PolicyVerdict::Unknown].into_iter().find(|verdict| is_any(*verdict));
    worst.unwrap_or(PolicyVerdict::Pass)
}

/// What rules mean in these places.
///
/// # Errors
/// A sentence that names the rule.
pub fn compiled(words: &RuleWords, places: &PolicyPlaces) -> Result<CompiledPolicy, String> {
    Ok(CompiledPolicy::new(words, places, &resolved)?.of_files(&state_of))
}

/// The directories of `$PATH`.
pub fn search_path() -> Vec<Vec<u8>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        std::env::split_paths(&path).map(|directory| directory.into_os_string().into_encoded_bytes());
    directories.filter(|directory| directory.starts_with(b"/")).collect()
}

/// What is at a path now.
fn state_of(path: &[u8]) -> Option<Present> {
    let stat = fs::lstat(path).ok().flatten()?;
    live::present(&stat, path).ok()
}

/// Whether each file of a recording was looked through for a private key when it was about to be read.
pub fn keys_were_refused(header: &Header) -> bool {
    header.enforcement.as_ref().is_some_and(|rules| rules.limits.is_empty())
}

/// What a recording that has just been made did, judged by rules: sentences, and whether it passes.
pub fn judged(snapshot: &Snapshot, policy: &CompiledPolicy) -> (Vec<String>, PolicyVerdict) {
    /// How many findings are told.
    const TOLD: usize = 20;
    let header = snapshot.header();
    let live = Live { keys_were_refused: keys_were_refused(header), ..Live::of(snapshot) };
    let report = judge(snapshot, policy, &live);
    let findings = &report.findings;
    let mut lines: Vec<String> =
        findings.iter().take(TOLD).map(|finding| FindingText::new(finding, header).line()).collect();
    if findings.len() > TOLD {
        lines.push(format!(
            "{} more; agent-snapshot check lists them",
            counted(findings.len() - TOLD, "finding", "findings")
        ));
    }
    lines.extend(
        report
            .unknown
            .iter()
            .map(|gap| format!("not all is known that rules are about: {}", text::plain(gap))),
    );
    (lines, report.verdict(false))
}

/// The live files, and the contents that the recording has.
pub struct Live<'a> {
    /// The contents.
    pub contents: Contents<'a>,
    /// Whether each file was looked through for a private key when it was about to be read, so that no file is
    /// looked through again.
    pub keys_were_refused: bool,
}

impl<'a> Live<'a> {
    /// Those of a recording whose reads nobody has looked through.
    pub fn of(snapshot: &'a Snapshot) -> Live<'a> {
        Live { contents: Contents::new(snapshot), keys_were_refused: false }
    }
}

impl Files for Live<'_> {
    fn has(&self, record: &FileRecord, sign: ContentSign) -> bool {
        let is_known_without = sign == ContentSign::Key && self.keys_were_refused;
        !is_known_without && may_have(record, &self.contents, sign)
    }

    fn has_now(&self, path: &[u8], sign: ContentSign) -> bool {
        may_have_sign(path, sign)
    }

    fn state(&self, path: &[u8]) -> Option<Present> {
        state_of(path)
    }

    fn resolved(&self, path: &[u8]) -> Vec<u8> {
        resolved(path)
    }
}

/// The places of a recording. Earlier versions did not record the working tree: where it is not known, the workspace is
/// the start directory, since a repository may be one that the command has made.
pub fn places(header: &Header) -> Result<PolicyPlaces, String> {
    let mut places =
        PolicyPlaces { secrets: config::secrets()?, programs: search_path(), ..PolicyPlaces::of(header) };
    if places.home.is_none() && header.uid == rustix::process::geteuid().as_raw() {
        places.home = std::env::var_os("HOME").map(std::ffi::OsString::into_encoded_bytes);
    }
    Ok(places)
}

/// Whether the content of a record's file has what makes it a secret. If nobody knows, that is so of a file whose name says
/// that it may, unless the command has made it and removed it.
fn may_have(record: &FileRecord, contents: &Contents, sign: ContentSign) -> bool {
    let is_withheld = |state: &State| {
        state.present().is_some_and(|present| present.blob_omitted == Some(BlobOmitted::Withheld))
    };
    if is_withheld(&record.before) || is_withheld(&record.after) {
        return true;
    }
    let is_absent = |state: &State| matches!(state, State::Absent { .. });
    let is_temporary = is_absent(&record.before)
        && is_absent(&record.after)
        && record.renamed_from.is_none()
        && record.linked_from.is_empty();
    recorded_sign(record, contents, sign)
        .unwrap_or_else(|| !is_temporary && may_have_sign(&record.path, sign))
}

fn print(
    judged: &[Judged],
    is_named: bool,
    verdict: PolicyVerdict,
    console: &mut Console,
) -> anyhow::Result<()> {
    for Judged { header, report, .. } in judged {
        if is_named && !(report.findings.is_empty() && report.unknown.is_empty()) {
            let (id, command) = id_and_command(header);
            writeln!(console, "{id}: {command}")?;
        }
        for finding in &report.findings {
            let text = FindingText::new(finding, header);
            let word = console.paint(style::CHANGED, format_args!("{:11}", finding.word.name())).to_string();
            let details = console.paint(style::FAINT, text.details()).to_string();
            writeln!(console, "{word} {}  {details}", text.subject)?;
        }
        for gap in &report.unknown {
            let word = console.paint(style::CHANGED, format_args!("{INCOMPLETE:11}")).to_string();
            writeln!(console, "{word} {}", text::plain(gap))?;
        }
    }
    let refused = judged.iter().fold(0, |sum: u64, judged| sum.saturating_add(judged.header.refused_calls()));
    if refused > 0 {
        let calls = counted(usize::try_from(refused).unwrap_or(usize::MAX), "call was", "calls were");
        writeln!(console, "{calls} refused when the rules were enforced (show --refused lists them)")?;
    }
    let count = judged.iter().map(|judged| judged.report.findings.len()).sum();
    let found = match verdict {
        PolicyVerdict::Pass => "nothing is forbidden".to_owned(),
        PolicyVerdict::Fail => counted(count, "finding", "findings"),
        PolicyVerdict::Unknown => {
            "nothing that was recorded is forbidden, but not all was recorded (--allow-incomplete lets it pass)".to_owned()
        }
    };
    writeln!(console, "{}: {found}", verdict.name())?;
    let notes: BTreeSet<_> = judged.iter().flat_map(|judged| &judged.report.notes).collect();
    for note in notes {
        console.say(format_args!("{}", text::plain(note)));
    }
    Ok(())
}

/// The JSON of all recordings.
#[derive(Serialize)]
struct AllJson<'a> {
    verdict: &'static str,
    recordings: Vec<CheckJson<'a>>,
}

/// The JSON of one recording.
struct CheckJson<'a>(&'a Judged<'a>);

impl Serialize for CheckJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Judged { header, report, verdict } = self.0;
        let findings: Vec<_> =
            report.findings.iter().map(|finding| FindingJson { finding, header }).collect();
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("id", &header.id)?;
        object.serialize_entry("verdict", verdict.name())?;
        object.serialize_entry("complete", &header.complete)?;
        object.serialize_entry("findings", &findings)?;
        object.serialize_entry("unknown", &report.unknown)?;
        object.serialize_entry("notes", &report.notes)?;
        if !header.refused.is_empty() {
            object.serialize_entry("refused", &header.refused)?;
        }
        object.end()
    }
}

/// A finding, as JSON.
struct FindingJson<'a> {
    finding: &'a Finding,
    header: &'a Header,
}

impl Serialize for FindingJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Finding { word, text, subject, processes } = self.finding;
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.put("rule", word.name())?;
        object.text_some("pattern", text)?;
        match subject {
            FindingSubject::Path { path, operations, through, left_out_by } => {
                object.text("path", path)?;
                object.put("operations", operations)?;
                object.text_some("through", through)?;
                object.put_some("left_out_by", left_out_by)?;
            }
            FindingSubject::Beneath { path, left_out_by } => {
                object.text("path", path)?;
                object.put("beneath", &true)?;
                object.put("left_out_by", left_out_by)?;
            }
            FindingSubject::Somewhere { left_out_by } => object.put("left_out_by", left_out_by)?,
            FindingSubject::Address(used) => object.put("network", used)?,
        }
        let processes: Vec<_> = processes.iter().map(|id| Process::new(*id, self.header)).collect();
        object.put("processes", &processes)?;
        object.0.end()
    }
}

#[cfg(test)]
pub mod tests;
