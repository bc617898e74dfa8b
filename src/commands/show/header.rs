//! The lines above the list: what was run, how it ended, and what was not recorded.

use std::os::unix::ffi::OsStrExt;

use anstyle::Style;
use indicatif::HumanCount;

use super::super::level::what_is_kept;
use super::super::out::{Console, OutputError, style, visible};
use super::super::paths::{quoted, shell_line, shown};
use super::git::GitChanges;
use super::network;
use super::processes::{cut, ended};
use super::refused;
use crate::git::below;
use crate::restore::interrupted;
use crate::snapshot::{GitRepository, Header, Snapshot};

/// How many suppressed changes and rules are printed without `--long`.
const NAMED: usize = 6;

/// Writes the lines about the recording as a whole.
pub fn write(
    snapshot: &Snapshot,
    git_changes: &[GitChanges],
    in_full: bool,
    console: &mut Console,
) -> Result<(), OutputError> {
    let header = snapshot.header();
    let mut lines = HeaderLines { console };
    let (whole, title) = (shell_line(&header.command), header.title.as_deref());
    let command = title.map_or_else(|| whole.clone(), visible);
    let limit = lines.console.format.width.filter(|_| !in_full).map(|width| width * 3);
    let command = limit.map_or(command.clone(), |limit| cut(&command, limit));
    lines.line("Command", style::HEADING, &command)?;
    if title.is_some() && in_full {
        lines.line("Started by", Style::new(), &whole)?;
    }
    if !header.kind.is_recording() {
        lines.line("Kind", Style::new(), "rescue: what a restore was about to overwrite")?;
    } else {
        lines.line("Status", status_style(header), &status(header))?;
    }
    lines.line("Directory", Style::new(), &quoted(&header.start_cwd))?;
    for text in repositories(header, git_changes.is_empty()) {
        lines.line("Git", Style::new(), &text)?;
    }
    for GitChanges { repository, changes } in git_changes {
        lines.line("Git state", style::CHANGED, &format!("{repository}: {}", changes.join(", ")))?;
    }
    if let Some(addresses) = network::contacted(header) {
        lines.line("Network", Style::new(), &format!("{addresses} contacted (--network lists them)"))?;
    }
    for text in refused::enforced(header, in_full) {
        lines.line("Enforced", Style::new(), &text)?;
    }
    if let Some(calls) = refused::refused_calls(header) {
        lines.line("Refused", style::CHANGED, &format!("{calls} (--refused lists them)"))?;
    }
    if let Some(name) = &header.name {
        lines.line("Name", Style::new(), &visible(name.as_bytes()))?;
    }
    if let Some(session) = &header.session {
        let step = header.step.map(|step| format!(", step {step}")).unwrap_or_default();
        lines.line("Session", Style::new(), &format!("{}{step}", visible(session.as_bytes())))?;
    }
    let whole = if header.complete { "complete" } else { "incomplete" };
    let attention = if header.complete { Style::new() } else { style::CHANGED };
    let when = moment(&header.started_at);
    let how: String = [
        (header.killed, ", though agent-snapshot itself was killed"),
        (header.running, ", while processes of it were running"),
        (header.recovered, ", recovered from its journal"),
        (header.imported, ", imported"),
    ]
    .iter()
    .filter(|(holds, _)| *holds)
    .map(|(_, how)| *how)
    .collect();
    lines.line("Recorded", attention, &format!("{when}, {whole}{how}"))?;
    if let Some(kept) = what_is_kept(header.keep) {
        lines.line("Kept", Style::new(), kept)?;
    }
    for warning in &header.warnings {
        let (label, style) = if warning.lost { ("Gap", style::CHANGED) } else { ("Note", Style::new()) };
        let times = if warning.count > 1 { format!(" ({} times)", warning.count) } else { String::new() };
        let text = format!("{}: {}{times}", warning.kind.name(), visible(warning.detail.as_bytes()));
        lines.line(label, style, &text)?;
    }
    for why in header.recall.iter().flat_map(|recall| &recall.refused) {
        lines.line("No recall", Style::new(), &visible(why.as_bytes()))?;
    }
    for rescue in interrupted::interrupted(snapshot) {
        let text = format!(
            "interrupted: the same command completes it; what it overwrote is in {}",
            quoted(rescue.path.as_os_str().as_bytes())
        );
        lines.line("Restore", style::CHANGED, &text)?;
    }
    for (is_change, text) in left_out(header, in_full) {
        lines.line("Left out", if is_change { style::CHANGED } else { style::FAINT }, &text)?;
    }
    Ok(())
}

struct HeaderLines<'a, 'c> {
    console: &'a mut Console<'c>,
}

impl HeaderLines<'_, '_> {
    fn line(&mut self, label: &str, style: Style, value: &str) -> Result<(), OutputError> {
        let value = self.console.paint(style, value).to_string();
        let label = self.console.paint(style::FAINT, format_args!("{label:11}")).to_string();
        writeln!(self.console, "{label} {value}")
    }
}

fn status_style(header: &Header) -> Style {
    if header.exit_status == 0 { Style::new() } else { style::REMOVED }
}

/// How the command ended, and how long all its processes took.
pub fn status(header: &Header) -> String {
    let mut text = ended(header.exit_status, header.exit_signal.as_deref());
    if header.timed_out {
        text += ", ended by --timeout";
    }
    if let Some(seconds) = seconds(header) {
        text += &format!(", {}", duration(seconds));
    }
    match header.processes.len() {
        0 => {}
        1 => text += ", 1 process",
        count => text += &format!(", {} processes", HumanCount(count as u64)),
    }
    text
}

/// The seconds from the start of the command to the end of its last process, if both are recorded.
pub fn seconds(header: &Header) -> Option<f64> {
    let [start, end] = [&header.started_at, &header.finished_at].map(|time| time.parse::<jiff::Timestamp>());
    let seconds = end.ok()?.duration_since(start.ok()?).as_secs_f64();
    (seconds >= 0.0).then_some(seconds)
}

fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.2} s");
    }
    // Whole seconds from here on; the limit keeps the conversion exact.
    let whole = std::time::Duration::from_secs_f64(seconds.min(1e9)).as_secs();
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours == 0 { format!("{minutes} min {seconds} s") } else { format!("{hours} h {minutes} min") }
}

/// A recorded time, to the second.
pub fn moment(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => visible(time.as_bytes()),
    }
}

/// The repository that the command was started in, and those whose HEAD it moved, unless that is told elsewhere.
pub fn repositories(header: &Header, tells_moves: bool) -> Vec<String> {
    let start = header.start_cwd.as_slice();
    let around = header.git_repositories.iter().filter(|git| below(start, &git.root).is_some());
    let around = around.max_by_key(|git| git.root.len()).map(|git| &git.root);
    let has_moved = |git: &GitRepository| tells_moves && git.head_after.is_some();
    let concerned = header.git_repositories.iter().filter(|git| has_moved(git) || Some(&git.root) == around);
    let short = |commit: &Option<String>| {
        let commit = commit.as_deref().map_or("no commit", |commit| commit.get(..12).unwrap_or(commit));
        visible(commit.as_bytes())
    };
    concerned
        .map(|git| {
            let branch = git.branch.as_ref();
            let branch = branch.map(|branch| format!(" on branch {}", quoted(branch.as_bytes())));
            let branch = branch.unwrap_or_default();
            let moved =
                if has_moved(git) { format!(", now at {}", short(&git.head_after)) } else { String::new() };
            let dirty = if git.dirty { ", with uncommitted changes" } else { "" };
            format!("{} at {}{branch}{dirty}{moved}", quoted(&git.root), short(&git.head))
        })
        .collect()
}

/// What the ignore rules left out: changes by name, the rest as a count; and whether it was changed.
pub fn left_out(header: &Header, in_full: bool) -> Vec<(bool, String)> {
    let named = if in_full { usize::MAX } else { NAMED };
    let changed = header.suppressed.iter().filter(|rule| !rule.changed.is_empty()).map(|rule| {
        let paths: Vec<_> =
            rule.changed.iter().take(named).map(|path| shown(path, &header.start_cwd)).collect();
        let mut text = paths.join(", ");
        if rule.changed.len() > paths.len() {
            text += &format!(" and {} more", rule.changed.len() - paths.len());
        }
        let why =
            format!(" (rule {}): changed, not recorded, not to be undone", visible(rule.rule.as_bytes()));
        (true, text + &why)
    });
    let mut lines: Vec<_> = changed.collect();
    if !header.private_mounts.is_empty() {
        let mut mounts: Vec<_> = header
            .private_mounts
            .iter()
            .take(named)
            .map(|mount| format!("{} {}", visible(mount.fstype.as_bytes()), quoted(&mount.mount_point)))
            .collect();
        if header.private_mounts.len() > mounts.len() {
            mounts.push(format!("{} more", header.private_mounts.len() - mounts.len()));
        }
        let uses = header.private_mounts.iter().fold(0, |sum: u64, mount| sum.saturating_add(mount.uses));
        let times = if uses == 1 { "use" } else { "uses" };
        let text = format!("{} {times} of private mounts: {}", HumanCount(uses), mounts.join(", "));
        lines.push((false, text));
    }
    let uses: u64 = header.suppressed.iter().map(|rule| rule.reads.saturating_add(rule.writes)).sum();
    if uses > 0 {
        let mut rules: Vec<_> =
            header.suppressed.iter().take(named).map(|rule| visible(rule.rule.as_bytes())).collect();
        if header.suppressed.len() > rules.len() {
            rules.push(format!("{} more rules", header.suppressed.len() - rules.len()));
        }
        let times = if uses == 1 { "use" } else { "uses" };
        lines.push((false, format!("{} {times} of paths by rule: {}", HumanCount(uses), rules.join(", "))));
    }
    lines
}
