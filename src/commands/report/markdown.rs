//! A recording as Markdown for a pull request or a job summary, which is cut where these end.

use std::collections::HashMap;

use super::super::paths::counted;
use super::super::show::size;
use super::model::{Section, ShownAddress, ShownPath};

/// What is below the 1 MiB that a job summary of GitHub takes.
pub const LIMIT: usize = (1 << 20) - (16 << 10);
/// What stays free for the sentences about what was cut.
const RESERVE: usize = 2 << 10;
/// The most characters of a line about the recording.
const LINE: usize = 1000;

/// The Markdown of a recording in at most `room` bytes.
pub fn section(section: &Section, room: usize) -> String {
    let mut text = Room { text: String::new(), left: room.saturating_sub(RESERVE) };
    let mut cut = Vec::new();
    text.push(&format!("### Recorded: {}\n\n", code(&short(&section.status))));
    text.push(&fenced("sh", &section.command));
    for (title, lines, one, many) in [
        ("This record has gaps", &section.gaps, "gap", "gaps"),
        ("Rules refused calls of this command", &section.refused, "refusal", "refusals"),
    ] {
        if !lines.is_empty() {
            text.push(&format!("> [!WARNING]\n> {title}:\n>\n"));
            let shown = text.push_each(lines.iter().map(|line| format!("> - {}\n", code(&short(line)))));
            note(&mut cut, lines.len() - shown, one, many);
            text.push("\n");
        }
    }
    let lasting: Vec<&ShownPath> = section.changes.iter().filter(|path| path.lasts()).collect();
    let programs = section.processes.iter().map(|process| (process.id, process.name.as_str())).collect();
    if lasting.is_empty() {
        text.push("Nothing was changed.\n");
    } else {
        let answers = section
            .answers
            .iter()
            .map(|answer| format!("- {}: {}\n", answer.label, code(&short(&answer.text))));
        text.push_each(answers);
        text.push("\n| | path | size | lines | by |\n|---|---|---:|---:|---|\n");
        let shown = text.push_each_into_half(lasting.iter().map(|path| row(path, &programs)));
        note(&mut cut, lasting.len() - shown, "path", "paths");
        text.push("\n");
    }
    if !section.network.is_empty() {
        text.push("\nNetwork:\n\n| | address | times | by | |\n|---|---|---:|---|---|\n");
        let rows = section.network.iter().map(|used| address_row(used, &programs));
        let shown = text.push_each_into_half(rows);
        note(&mut cut, section.network.len() - shown, "address", "addresses");
        text.push("\n");
    }
    // What is left, at least a quarter of the room, is for the diffs.
    if !lasting.is_empty() {
        let diffs = lasting.iter().filter_map(|path| Some((*path, section.diffs.get(path.diff?)?)));
        let diffs: Vec<_> = diffs.collect();
        let shown = diffs.iter().filter(|(path, diff)| {
            let more = diff.note.as_ref().map(|note| format!("{}\n\n", code(note))).unwrap_or_default();
            text.push(&format!(
                "<details><summary>{} <code>{}</code></summary>\n\n{}{more}</details>\n\n",
                path.group,
                escaped(&path.path),
                fenced("diff", &diff.hunks),
            ))
        });
        let shown = shown.count();
        note(&mut cut, diffs.len() - shown, "diff", "diffs");
    }
    if !cut.is_empty() {
        // What was kept free is enough for it.
        let id = code(&short(&section.id));
        let cut = cut.join(" and ");
        text.text += &format!(
            "\nLeft out to stay below 1 MiB: {cut}. `agent-snapshot show` and `agent-snapshot diff` print all of {id}.\n"
        );
    }
    text.text + "\n"
}

fn note(cut: &mut Vec<String>, count: usize, one: &str, many: &str) {
    if count > 0 {
        cut.push(counted(count, one, many));
    }
}

/// A text that does not grow beyond its room.
struct Room {
    text: String,
    left: usize,
}

impl Room {
    /// Appends `part` if there is room for all of it, and says so.
    fn push(&mut self, part: &str) -> bool {
        let fits = part.len() <= self.left;
        if fits {
            self.left -= part.len();
            self.text += part;
        }
        fits
    }

    /// Appends parts up to the first that does not fit, and counts them.
    fn push_each(&mut self, mut parts: impl Iterator<Item = String>) -> usize {
        let mut count = 0;
        while parts.next().is_some_and(|part| self.push(&part)) {
            count += 1;
        }
        count
    }

    /// The same with half of the room.
    fn push_each_into_half(&mut self, parts: impl Iterator<Item = String>) -> usize {
        let kept = self.left / 2;
        self.left -= kept;
        let count = self.push_each(parts);
        self.left += kept;
        count
    }
}

fn row(path: &ShownPath, programs: &HashMap<u32, &str>) -> String {
    let size = path.size.map(size).unwrap_or_default();
    let lines = path.lines.map(|(added, removed)| format!("+{added} −{removed}")).unwrap_or_default();
    let changers = path
        .changed_by
        .iter()
        .map(|(id, program)| (*id, program.as_deref().unwrap_or_else(|| name_of(*id, programs))));
    // Who changed it, unless the recording does not say.
    let users = path.used_by.iter().filter(|_| path.changed_by.is_empty());
    let by = by(changers.chain(users.map(|id| (*id, name_of(*id, programs)))));
    let outside = if path.is_outside { " (outside)" } else { "" };
    format!("| {}{outside} | {} | {size} | {lines} | {by} |\n", path.group, cell(&path.path))
}

fn address_row(used: &ShownAddress, programs: &HashMap<u32, &str>) -> String {
    let by = by(used.used_by.iter().map(|id| (*id, name_of(*id, programs))));
    let failed = used.error.as_ref().map(|error| format!("failed: {}", cell(error))).unwrap_or_default();
    format!("| {} | {} | {} | {by} | {failed} |\n", used.operation, cell(&used.address), used.count)
}

fn name_of<'p>(id: u32, programs: &HashMap<u32, &'p str>) -> &'p str {
    programs.get(&id).copied().unwrap_or("process")
}

/// The first processes of a row, each with its program.
fn by<'p>(processes: impl Iterator<Item = (u32, &'p str)>) -> String {
    processes.take(3).map(|(id, name)| format!("{} {id}", cell(name))).collect::<Vec<_>>().join(", ")
}

/// A text of one line as a code span, in which nothing has a meaning.
fn code(text: &str) -> String {
    let ticks = "`".repeat(longest_run(text) + 1);
    let space = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    format!("{ticks}{space}{text}{space}{ticks}")
}

/// The same in a cell of a table, where a bar ends the cell even in a code span.
fn cell(text: &str) -> String {
    code(text).replace('|', "\\|")
}

/// Text in an element of HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// A code block with a fence that is not in the text.
fn fenced(language: &str, text: &str) -> String {
    let fence = "`".repeat((longest_run(text) + 1).max(3));
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}\n\n")
}

/// The number of backticks in the longest run of them.
fn longest_run(text: &str) -> usize {
    text.split(|char| char != '`').map(str::len).max().unwrap_or(0)
}

fn short(text: &str) -> String {
    super::super::show::cut(text, LINE)
}
