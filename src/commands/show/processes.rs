//! The process tree.

use std::collections::HashMap;

use anstyle::Style;

use super::super::out::{Console, OutputError, style, visible};
use super::super::paths::{number_of_paths, quoted, shell_line};
use crate::snapshot::{Exec, RecordedProcess, Snapshot};

/// The most levels that are drawn.
const DEPTH: usize = 16;

/// Writes a line for each process, children beneath their parents.
pub fn write(snapshot: &Snapshot, in_full: bool, console: &mut Console) -> Result<(), OutputError> {
    let processes = &snapshot.header().processes;
    let mut uses: HashMap<u32, usize> = HashMap::new();
    for id in snapshot.records().into_iter().flat_map(|record| &record.processes) {
        *uses.entry(*id).or_default() += 1;
    }
    let known: HashMap<u32, usize> =
        processes.iter().enumerate().map(|(index, process)| (process.id, index)).collect();
    let mut children: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut roots = Vec::new();
    for (index, process) in processes.iter().enumerate() {
        match process.parent.filter(|parent| known.contains_key(parent) && *parent < process.id) {
            Some(parent) => children.entry(parent).or_default().push(index),
            // A parent that does not exist, or is not older than its child, is ignored.
            None => roots.push(index),
        }
    }
    let digits = processes.iter().map(|process| process.id).max().unwrap_or(0).to_string().len();
    // Each process, and for every level above it whether a younger sibling follows.
    let mut stack: Vec<(usize, Vec<bool>)> = roots.iter().rev().map(|root| (*root, Vec::new())).collect();
    let mut drawn = vec![false; processes.len()];
    while let Some((index, levels)) = stack.pop() {
        let process = &processes[index];
        if std::mem::replace(&mut drawn[index], true) {
            continue;
        }
        let branch = branch(&levels);
        let used = uses.get(&process.id).copied().unwrap_or(0);
        line(process, used, (digits, &branch), in_full, console)?;
        let below = children.remove(&process.id).unwrap_or_default();
        let last = below.last().copied();
        for child in below.into_iter().rev() {
            let mut levels = levels.clone();
            if levels.len() < DEPTH {
                levels.push(Some(child) != last);
            }
            stack.push((child, levels));
        }
    }
    Ok(())
}

fn branch(levels: &[bool]) -> String {
    let Some((own, above)) = levels.split_last() else { return String::new() };
    let mut text: String = above.iter().map(|follows| if *follows { "│ " } else { "  " }).collect();
    text.push_str(if *own { "├─" } else { "└─" });
    text
}

fn line(
    process: &RecordedProcess,
    used: usize,
    (digits, branch): (usize, &str),
    in_full: bool,
    console: &mut Console,
) -> Result<(), OutputError> {
    let mut end = match process.exit_status {
        Some(0) => String::new(),
        Some(status) => ended(status, None),
        None => "end not seen".to_owned(),
    };
    if used > 0 {
        end += if end.is_empty() { "" } else { ", " };
        end += &number_of_paths(used);
    }
    let command = shell_line(&process.image.argv);
    let taken = digits + 2 + branch.chars().count() + 2 + end.chars().count();
    let room = console.format.width.filter(|_| !in_full).map(|width| width.saturating_sub(taken + 1).max(20));
    let command = room.map_or(command.clone(), |room| cut(&command, room));
    let is_bad = process.exit_status.is_some_and(|status| status != 0);
    let id = console.paint(style::HUNK, format_args!("{:digits$}", process.id)).to_string();
    let branch_text = console.paint(style::FAINT, branch).to_string();
    let separator = if end.is_empty() { "" } else { "  " };
    let end = console.paint(if is_bad { style::REMOVED } else { style::FAINT }, end).to_string();
    writeln!(console, "{id} {branch_text} {command}{separator}{end}")?;
    if in_full {
        let indent = " ".repeat(digits + 2 + branch.chars().count());
        let told = |exec: &Exec| quoted(&exec.exe).into_owned();
        let programs = if process.execs.is_empty() {
            told(&process.image)
        } else {
            process.execs.iter().map(told).collect::<Vec<_>>().join(", then ")
        };
        let cwd = quoted(&process.cwd);
        let text = format!("pid {}, in {cwd}, ran {programs}", process.pid);
        let text = console.paint(style::FAINT, text).to_string();
        writeln!(console, "{indent}{text}")?;
    }
    Ok(())
}

/// How a process ended.
pub fn ended(status: i32, signal: Option<&str>) -> String {
    match signal {
        Some(signal) => {
            format!("ended by {} ({status})", visible(signal.as_bytes()))
        }
        None => format!("exit {status}"),
    }
}

/// The first `room` characters of `text`, with an ellipsis if there are more.
pub fn cut(text: &str, room: usize) -> String {
    match text.char_indices().nth(room.saturating_sub(1)) {
        Some((at, _)) if text[at..].chars().nth(1).is_some() => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}

/// The style of a heading, in the colour of the lines beneath it.
pub fn heading(style: Style) -> Style {
    style.bold()
}
