//! `report`: writes what a command did as a page for people, or as Markdown.
//!
//! `model.rs` has what is told of a recording, `diffs.rs` the diffs of its changes. `page.rs` makes the page of it, from
//! `page.html`, `page.css` and `page.js`, and `markdown.rs` the Markdown.

pub mod diffs;
mod markdown;
mod model;
mod page;

use serde::Serialize;

use super::config;
use super::exit::{Exit, UsageError, VerbResult};
use super::new_file::NewFile;
use super::open::{open, open_library, open_or_last};
use super::out::Console;
use crate::cli::Report;
use crate::snapshot::printable;
use crate::snapshot::secrets::{CommandLines, redacted};
use model::Section;

/// What `--json` prints.
#[derive(Serialize)]
struct ReportJson<'a> {
    file: &'a str,
    bytes: usize,
    snapshots: Vec<&'a str>,
}

/// Writes the report of all snapshots.
pub fn run(args: &Report, console: &mut Console) -> VerbResult {
    let output = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    if args.json && output.is_none() {
        return Err(UsageError("--json is about a file, and -o names standard output".to_owned()).into());
    }
    let secrets = config::secrets().map_err(UsageError)?;
    let command_lines = if args.no_redact { CommandLines::Whole } else { CommandLines::Masked };
    // Before the work, so that a name that is taken is told at once.
    let file = output.map(|path| NewFile::create(path, args.force)).transpose()?;
    let snapshots = match args.snaps.as_slice() {
        [] if args.all => open_library(&args.access, console)?,
        [] => vec![open_or_last(None, &args.access, console)?],
        snaps => snaps.iter().map(|snap| open(snap, &args.access, console)).collect::<anyhow::Result<_>>()?,
    };
    let shown = snapshots.into_iter().map(|snapshot| redacted(snapshot, &secrets, command_lines).snapshot);
    let snapshots: Vec<_> = shown.collect();
    let text = if args.markdown {
        let mut left = snapshots.len();
        let mut text = String::new();
        for snapshot in &snapshots {
            let section = Section::new(snapshot)?;
            let room = (markdown::LIMIT - text.len()) / left;
            text += &markdown::section(&section, room);
            left -= 1;
        }
        text
    } else {
        let sections = snapshots.iter().map(Section::new);
        page::page(&sections.collect::<anyhow::Result<Vec<_>>>()?)?
    };
    match file {
        Some(file) => file.commit(text.as_bytes())?,
        None => console.bytes(text.as_bytes())?,
    }
    if let (true, Some(path)) = (args.json, output) {
        let path = printable(path.as_os_str().as_encoded_bytes());
        let ids = snapshots.iter().map(|snapshot| snapshot.header().id.as_str()).collect();
        console.json(&ReportJson { file: &path, bytes: text.len(), snapshots: ids })?;
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests;
