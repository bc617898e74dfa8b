//! `show`: shows what a command did, as text or as JSON.
//!
//! `list.rs` sorts the records into groups, `fold.rs` shortens long groups, `rows.rs` writes them, `git.rs` tells what
//! became of Git's state, `header.rs` says what was recorded and what was not, `processes.rs` draws the processes, `network.rs`
//! lists the socket addresses, `refused.rs` what rules refused, `json.rs` writes the JSON.

mod fold;
mod git;
mod header;
mod json;
mod list;
mod network;
mod processes;
mod refused;
mod rows;

pub use self::git::{GitChanges, git_changes};
pub use self::header::{left_out, moment, repositories, status};
pub use self::list::{Filter, ListedPath, PathGroup, PathGroups};
pub use self::network::{AddressUse, address_text, address_uses, contacted};
pub use self::processes::cut;
pub use self::refused::{Refusal, enforced, number_of_calls, refusals, refused_calls, refused_sentence};
pub use self::rows::{PathTable, other_attributes, size};
use super::exit::{Exit, UsageError, VerbResult};
use super::level::say_unmatched;
use super::open::{open_last_refused, open_with_paths};
use super::out::{Console, style};
use super::paths::{Selection, number_of_paths};
use crate::cli::Show;
use crate::snapshot::Snapshot;
use crate::snapshot::secrets::masked;

/// Shows all of the snapshot or what the options select.
pub fn run(args: &Show, console: &mut Console) -> VerbResult {
    let paths = [&args.paths[..], &args.after];
    let (snapshot, paths) = match &args.snap {
        None if args.refused => (open_last_refused(&args.access, console)?, paths.concat()),
        snap => open_with_paths(snap.as_deref(), paths, &args.access, console)?,
    };
    let snapshot = masked(snapshot);
    if let Some(id) = args.process
        && !snapshot.header().processes.iter().any(|process| process.id == id)
    {
        let message = format!("the snapshot has no process {id} (show --processes lists them)");
        return Err(UsageError(message).into());
    }
    let filter = Filter::new(args, Selection::new(&snapshot, &paths)?);
    if args.json {
        console.json(&json::ShowJson::new(&snapshot, &filter))?;
    } else {
        text(&snapshot, args, &filter, console)?;
    }
    say_unmatched("show", filter.selection(), &snapshot, console);
    let cut = snapshot.records().into_iter().filter(|record| {
        // Of a path that many processes used, only the first are recorded.
        args.process.is_some_and(|process| !record.processes.contains(&process))
            && record.process_count.is_some()
    });
    match cut.count() {
        0 => {}
        count => console.say(format_args!(
            "show: {count} paths were used by more than 16 processes, and only the first 16 are recorded; process {} may be missing from them",
            args.process.unwrap_or_default()
        )),
    }
    Ok(if filter.selection().unmatched().is_empty() { Exit::Success } else { Exit::Finding })
}

fn text(snapshot: &Snapshot, args: &Show, filter: &Filter, console: &mut Console) -> anyhow::Result<()> {
    let is_asked = filter.is_of_status() || filter.is_of_place();
    let git_changes = if is_asked { Vec::new() } else { git::git_changes(snapshot) };
    if !is_asked {
        header::write(snapshot, &git_changes, args.long, console)?;
    }
    if args.processes {
        if !is_asked {
            writeln!(console)?;
        }
        processes::write(snapshot, args.long, console)?;
    }
    if args.network {
        if !is_asked || args.processes {
            writeln!(console)?;
        }
        network::write(snapshot.header(), args.process, console)?;
    }
    if args.refused {
        if !is_asked || args.processes || args.network {
            writeln!(console)?;
        }
        refused::write(snapshot.header(), args.process, console)?;
    }
    let has_list = args.processes || args.network || args.refused;
    if has_list && !is_asked {
        return Ok(());
    }
    let PathGroups(groups) = PathGroups::new(snapshot, filter, args.long);
    let is_in_full = args.long || filter.is_of_status();
    let mut table = PathTable::new(snapshot, args.long);
    let mut only_looked_up = 0;
    for (group, entries) in &groups {
        if *group == PathGroup::Existence && !is_asked {
            only_looked_up = entries.len();
        } else {
            table.add(*group, entries, is_in_full);
        }
    }
    let has_lines = groups.iter().any(|(group, _)| is_asked || *group != PathGroup::Existence);
    let is_change = |(group, _): &(PathGroup, _)| {
        !matches!(group, PathGroup::GitState | PathGroup::Read | PathGroup::Existence)
    };
    if !is_asked && !groups.iter().any(is_change) {
        let what = if git_changes.is_empty() { "Nothing" } else { "Nothing but Git's state" };
        writeln!(console, "\n{what} was changed.")?;
    }
    if has_lines && (!is_asked || has_list) {
        writeln!(console)?;
    }
    let folded = table.write(console)?;
    let mut notes = Vec::new();
    if folded > 0 {
        let are = if folded == 1 { "is" } else { "are" };
        notes.push(format!(
            "{} {are} folded: --long lists them all, PATH those beneath it",
            number_of_paths(folded)
        ));
    }
    if only_looked_up > 0 {
        notes.push(format!("{} only looked up (--existence lists them)", were(only_looked_up)));
    }
    if let Some(count @ 1..) = snapshot.header().existence_only.filter(|_| !is_asked) {
        let count = were(usize::try_from(count).unwrap_or(usize::MAX));
        notes.push(format!("{count} only looked up and not recorded"));
    }
    if is_asked && groups.is_empty() && filter.selection().unmatched().is_empty() {
        notes.push("no such path is in the snapshot".to_owned());
    }
    if !notes.is_empty() && !groups.is_empty() && !is_asked {
        writeln!(console)?;
    }
    for note in notes {
        let note = console.paint(style::FAINT, note).to_string();
        writeln!(console, "{note}")?;
    }
    Ok(())
}

fn were(count: usize) -> String {
    format!("{} {}", number_of_paths(count), if count == 1 { "was" } else { "were" })
}

#[cfg(test)]
mod tests;
