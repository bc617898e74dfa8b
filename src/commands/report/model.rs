//! What a report tells of one recording, as text and numbers.
//!
//! All text is for people: paths and lines are escaped as on a terminal, so nothing in it turns the line around or hides.
//! Escaping for HTML and Markdown is the matter of those who write them.

use std::collections::HashMap;

use indicatif::HumanCount;
use serde::Serialize;

use super::super::level::what_is_kept;
use super::super::out::visible;
use super::super::paths::{Selection, must_be_quoted, number_of_paths, quote_into, quoted, shell_line};
use super::super::show::{
    AddressUse, Filter, ListedPath, PathGroup, PathGroups, PathTable, address_uses, contacted, cut, enforced,
    left_out, moment, refusals, refused_calls, repositories, size, status,
};
use super::diffs::{Diffs, PathDiff};
use crate::cli::Show;
use crate::fs::file_name;
use crate::git::below;
use crate::restore::interrupted;
use crate::snapshot::{FileType, Header, Operations, RecordedProcess, Snapshot};

/// The most characters of a command line.
const COMMAND: usize = 4096;
/// The most characters of the command line of one of the processes.
const PROCESS: usize = 1024;
/// The most refusals that are listed.
const REFUSALS: usize = 100;
/// How much of all diffs is shown.
const DIFFS: usize = 32 << 20;
/// Why the others are not.
const LEFT_OUT: &str = "left out, since the report has as many diffs as it may";

/// One recording.
#[derive(Debug)]
pub struct Section {
    /// Its identifier.
    pub id: String,
    /// The command line.
    pub command: String,
    /// How it ended and how long it took.
    pub status: String,
    /// Whether it ended with status 0.
    pub succeeded: bool,
    /// What there is to say of the recording as a whole: label and text.
    pub facts: Vec<(&'static str, String)>,
    /// What was not recorded.
    pub gaps: Vec<String>,
    /// What rules refused.
    pub refused: Vec<String>,
    /// What else there is to know.
    pub notes: Vec<String>,
    /// The directory that changes are inside or outside of.
    pub workspace: String,
    /// The changed paths, Git's state included.
    pub changes: Vec<ShownPath>,
    /// Their diffs.
    pub diffs: Vec<PathDiff>,
    /// What was only read, executed or listed.
    pub reads: Vec<ShownPath>,
    /// How many paths were only looked up.
    pub looked_up: u64,
    /// The socket addresses that were used.
    pub network: Vec<ShownAddress>,
    /// The processes in order of their start.
    pub processes: Vec<ShownProcess>,
    /// The microseconds from the start of the command to the end of its last process, if they are known.
    pub span: Option<u64>,
    /// The answers to the first questions.
    pub answers: Vec<Answer>,
}

/// A question about a recording, with its answer and the filter that shows it.
#[derive(Debug)]
pub struct Answer {
    /// What is asked, in a few words.
    pub label: &'static str,
    /// The answer.
    pub text: String,
    /// What to filter by; nothing if there is nothing to see.
    pub filter: Option<String>,
    /// Whether a reader should see it.
    pub is_alarming: bool,
}

/// A path. The names of the keys are short, since there are many.
#[derive(Debug, Serialize)]
pub struct ShownPath {
    /// The path.
    #[serde(rename = "p")]
    pub path: String,
    /// What became of it.
    #[serde(rename = "g")]
    pub group: &'static str,
    /// Whether it is a directory.
    #[serde(rename = "d", skip_serializing_if = "is_false")]
    pub is_directory: bool,
    /// Its size after the command, or else before it.
    #[serde(rename = "z", skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The processes that changed it, each with the name of its program if it executed another one later.
    #[serde(rename = "w")]
    pub changed_by: Vec<(u32, Option<String>)>,
    /// The other processes that used it; all, if the recording does not tell them apart.
    #[serde(rename = "u")]
    pub used_by: Vec<u32>,
    /// Whether it is outside of the workspace.
    #[serde(rename = "o", skip_serializing_if = "is_false")]
    pub is_outside: bool,
    /// What else there is to say.
    #[serde(rename = "n", skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The lines added and removed.
    #[serde(rename = "c", skip_serializing_if = "Option::is_none")]
    pub lines: Option<(usize, usize)>,
    /// The index of its diff.
    #[serde(rename = "f", skip_serializing_if = "Option::is_none")]
    pub diff: Option<usize>,
}

/// What was done with a socket address. The names of the keys are those of a path, where there are such.
#[derive(Debug, Serialize)]
pub struct ShownAddress {
    /// The address.
    #[serde(rename = "p")]
    pub address: String,
    /// What was done with it.
    #[serde(rename = "g")]
    pub operation: &'static str,
    /// The processes that did it.
    #[serde(rename = "u")]
    pub used_by: Vec<u32>,
    /// How many calls did it.
    #[serde(rename = "c")]
    pub count: u64,
    /// The last error, if all calls are known to have failed.
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A process.
#[derive(Debug, Serialize)]
pub struct ShownProcess {
    /// Its number.
    pub id: u32,
    /// That of its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// The name of its program.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// The names of the programs that it executed before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<String>,
    /// Its working directory.
    pub cwd: String,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// When it started, in microseconds after the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Section {
    /// What is told of `snapshot`.
    pub fn new(snapshot: &Snapshot) -> anyhow::Result<Section> {
        let header = snapshot.header();
        let workspace = workspace(header);
        let (mut changes, mut reads, mut looked_up) = (Vec::new(), Vec::new(), 0);
        let (mut differ, mut diffs) = (Diffs::new(snapshot, DIFFS, LEFT_OUT)?, Vec::new());
        // Without it Git's state and what moved with a directory are left out.
        let all = Show { long: true, ..Show::default() };
        let filter = Filter::new(&all, Selection::new(snapshot, &[])?);
        let table = PathTable::new(snapshot, true);
        for (group, entries) in PathGroups::new(snapshot, &filter, true).0 {
            for entry in entries {
                let list = match group {
                    PathGroup::Existence => {
                        looked_up += 1;
                        continue;
                    }
                    PathGroup::Read => &mut reads,
                    _ => &mut changes,
                };
                let mut path = ShownPath::new(group, &entry, &table, workspace);
                if group.is_change() {
                    let diff = differ.of(&entry.record.path)?;
                    path.lines = diff.as_ref().and_then(|diff| diff.lines);
                    match diff {
                        Some(PathDiff { hunks, note, .. }) if hunks.is_empty() => path.notes.extend(note),
                        Some(diff) => {
                            path.diff = Some(diffs.len());
                            diffs.push(diff);
                        }
                        None => {}
                    }
                }
                list.push(path);
            }
        }
        let processes: Vec<_> = header.processes.iter().map(ShownProcess::new).collect();
        let span = processes.iter().filter_map(|process| process.end.max(process.start)).max();
        let command = match &header.title {
            Some(title) => visible(title),
            None => shell_line(&header.command),
        };
        let (gaps, notes) = warnings(snapshot);
        Ok(Section {
            id: visible(header.id.as_bytes()),
            command: cut(&command, COMMAND),
            status: if header.kind.is_recording() {
                status(header)
            } else {
                "rescue: what a restore was about to overwrite".to_owned()
            },
            succeeded: header.exit_status == 0,
            facts: facts(header),
            gaps,
            refused: refused(header),
            notes,
            workspace: quoted(workspace).into_owned(),
            answers: answers(&changes, &processes, contacted(header)),
            changes,
            diffs,
            reads,
            looked_up: looked_up + header.existence_only.unwrap_or(0),
            network: address_uses(header, None).into_iter().map(ShownAddress::from).collect(),
            processes,
            span,
        })
    }
}

/// The working tree that the command was started in, or else that directory.
fn workspace(header: &Header) -> &[u8] {
    let start = header.start_cwd.as_slice();
    let around = header.git_repositories.iter().filter(|git| below(start, &git.root).is_some());
    around.max_by_key(|git| git.root.len()).map_or(start, |git| &git.root)
}

fn facts(header: &Header) -> Vec<(&'static str, String)> {
    let mut facts = vec![("Directory", quoted(&header.start_cwd).into_owned())];
    facts.extend(repositories(header, true).into_iter().map(|text| ("Git", text)));
    for (label, value) in [("Name", &header.name), ("Session", &header.session)] {
        facts.extend(value.as_ref().map(|value| (label, visible(value.as_bytes()))));
    }
    facts.extend(enforced(header, false).into_iter().map(|text| ("Enforced", text)));
    facts.extend(refused_calls(header).map(|calls| ("Refused", calls)));
    facts.push(("Recorded", moment(&header.started_at)));
    facts.extend(what_is_kept(header.keep).map(|kept| ("Kept", kept.to_owned())));
    facts
}

/// A line for each of the first refusals.
fn refused(header: &Header) -> Vec<String> {
    let refusals = refusals(header, None);
    let mut lines: Vec<_> = refusals.iter().take(REFUSALS).map(|refusal| refusal.line(header)).collect();
    if refusals.len() > REFUSALS {
        lines.push(format!(
            "and {} more; agent-snapshot show --refused lists them",
            refusals.len() - REFUSALS
        ));
    }
    lines
}

/// What was not recorded, and what else there is to know.
fn warnings(snapshot: &Snapshot) -> (Vec<String>, Vec<String>) {
    let header = snapshot.header();
    let (mut gaps, mut notes) = (Vec::new(), Vec::new());
    for warning in &header.warnings {
        let times = if warning.count > 1 { format!(" ({} times)", warning.count) } else { String::new() };
        let text = format!("{}: {}{times}", warning.kind.name(), visible(warning.detail.as_bytes()));
        if warning.lost { &mut gaps } else { &mut notes }.push(text);
    }
    for (holds, text) in [
        (!header.complete && gaps.is_empty(), "the recording is incomplete"),
        (header.recovered, "the recorder was killed: this was recovered from its journal"),
        (header.running, "processes of the command were still running: what they did later is not in it"),
    ] {
        if holds {
            gaps.push(text.to_owned());
        }
    }
    if header.killed {
        notes.push("agent-snapshot itself was killed, and the recording went on".to_owned());
    }
    if !interrupted::interrupted(snapshot).is_empty() {
        gaps.push("a restore of it was interrupted".to_owned());
    }
    for (is_change, text) in left_out(header, false) {
        let text = format!("left out: {text}");
        if is_change { &mut gaps } else { &mut notes }.push(text);
    }
    (gaps, notes)
}

/// A path as it is shown: escaped, but not in quotes, so that its components are those of the directory tree.
fn shown(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.contains(must_be_quoted) => text.to_owned(),
        _ => {
            let mut out = String::with_capacity(path.len() + 8);
            quote_into(&mut out, path);
            out
        }
    }
}

/// The name of a program.
fn program(exe: &[u8]) -> String {
    quoted(file_name(exe)).into_owned()
}

impl ShownPath {
    fn new(group: PathGroup, entry: &ListedPath, table: &PathTable, workspace: &[u8]) -> ShownPath {
        let record = entry.record;
        let now = record.after.present().or(record.before.present());
        let mut notes = table.notes(group, entry);
        if let Some(target) = now.and_then(|now| now.target.as_ref()) {
            notes.insert(0, format!("→ {}", quoted(target)));
        }
        if let (PathGroup::Renamed, Some(origin)) = (group, entry.origin) {
            notes.insert(0, format!("from {}", quoted(&origin.path)));
        }
        if let Some(count) = record.process_count {
            notes.push(format!("used by {count} processes"));
        }
        let mut changed_by: Vec<(u32, Option<String>)> = Vec::new();
        for used in record.uses.iter().filter(|used| used.operations.intersects(Operations::CHANGES)) {
            if changed_by.iter().all(|(id, _)| *id != used.process) {
                changed_by.push((used.process, used.exe.as_deref().map(program)));
            }
        }
        let is_other = |id: &&u32| changed_by.iter().all(|(changer, _)| changer != *id);
        let used_by = record.processes.iter().filter(is_other).copied().collect();
        ShownPath {
            path: shown(&record.path),
            group: group.name(),
            is_directory: now.is_some_and(|now| now.file_type == FileType::Directory),
            size: now.filter(|now| now.file_type == FileType::File).map(|now| now.size),
            changed_by,
            used_by,
            is_outside: group != PathGroup::Inherited && below(&record.path, workspace).is_none(),
            notes,
            lines: None,
            diff: None,
        }
    }

    /// Whether the path is another than before.
    pub fn lasts(&self) -> bool {
        matches!(self.group, "changed" | "renamed" | "created" | "deleted")
    }
}

impl From<AddressUse> for ShownAddress {
    fn from(AddressUse { operation, address, count, processes, error }: AddressUse) -> ShownAddress {
        ShownAddress { address, operation: operation.name(), used_by: processes, count, error }
    }
}

impl ShownProcess {
    fn new(process: &RecordedProcess) -> ShownProcess {
        let image = &process.image;
        let former = process.execs.split_last().map(|(_, former)| former).unwrap_or_default();
        ShownProcess {
            id: process.id,
            parent: process.parent,
            name: program(&image.exe),
            command: cut(&shell_line(&image.argv), PROCESS),
            former: former.iter().map(|exec| program(&exec.exe)).collect(),
            cwd: quoted(&process.cwd).into_owned(),
            status: process.exit_status,
            start: process.started_us,
            end: process.ended_us,
        }
    }

    /// Whether it ended with another status than 0.
    pub fn failed(&self) -> bool {
        self.status.is_some_and(|status| status != 0)
    }
}

fn answers(changes: &[ShownPath], processes: &[ShownProcess], contacted: Option<String>) -> Vec<Answer> {
    let lasting = || changes.iter().filter(|path| path.lasts());
    let answer = |label, count: usize, text: String, filter: &str, is_alarming| Answer {
        label,
        text,
        filter: (count > 0).then(|| filter.to_owned()),
        is_alarming: is_alarming && count > 0,
    };
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for path in lasting() {
        *counts.entry(path.group).or_default() += 1;
    }
    let parts: Vec<_> = ["created", "changed", "renamed", "deleted"]
        .into_iter()
        .filter_map(|group| Some(format!("{} {group}", HumanCount(*counts.get(group)? as u64))))
        .collect();
    let outside = lasting().filter(|path| path.is_outside).count();
    let failed = processes.iter().filter(|process| process.failed()).count();
    let largest = lasting()
        .filter(|path| path.group != "deleted")
        .filter_map(|path| Some((path.size?, path)))
        .max_by_key(|(size, _)| *size);
    let nothing = || "nothing".to_owned();
    let changed = if parts.is_empty() { nothing() } else { parts.join(", ") };
    let mut answers = vec![
        answer("Changed", lasting().count(), changed, "is:lasting", false),
        answer(
            "Changed outside the workspace",
            outside,
            if outside == 0 { nothing() } else { number_of_paths(outside) },
            "is:outside",
            true,
        ),
        answer(
            "Failed",
            failed,
            match failed {
                0 => "no process".to_owned(),
                1 => "1 process".to_owned(),
                count => format!("{} processes", HumanCount(count as u64)),
            },
            "is:failed",
            true,
        ),
        Answer {
            label: "Largest output",
            text: largest.map_or_else(nothing, |(bytes, path)| {
                let name = path.path.rsplit('/').next().unwrap_or_default();
                format!("{name}, {}", size(bytes))
            }),
            filter: largest.map(|(_, path)| format!("\"{}\"", path.path)),
            is_alarming: false,
        },
    ];
    answers.extend(contacted.map(|text| Answer {
        label: "Contacted",
        text,
        filter: Some("is:network".to_owned()),
        is_alarming: false,
    }));
    answers
}
