//! `export --tables`: recordings as Parquet tables.
//!
//! One snapshot at a time is in memory, however many there are.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use indicatif::BinaryBytes;
use serde::Serialize;

use crate::cli::Export;
use crate::commands::config;
use crate::commands::exit::{Exit, UsageError, VerbResult};
use crate::commands::open::{directory_of, open_directory, scope};
use crate::commands::out::{Console, OutputError};
use crate::commands::paths::counted;
use crate::commands::progress;
use crate::library::Library;
use crate::library::log::EntryState;
use crate::snapshot::secrets::{CommandLines, Redacted, Secrets, redacted};
use crate::snapshot::{Error, printable};
use crate::tables::{self, Compacted, TABLES, Tables};

/// Writes the tables of recordings into the directory `tables`.
pub fn run(args: &Export, tables: &Path, console: &mut Console) -> VerbResult {
    let secrets = config::secrets().map_err(UsageError)?;
    let directory = printable(tables.as_os_str().as_encoded_bytes()).into_owned();
    if !tables.is_dir() && (args.compact || tables.symlink_metadata().is_ok()) {
        return Err(UsageError(format!("{directory} is not a directory")).into());
    }
    if args.compact {
        return compact(args, tables, directory, console);
    }
    let outcome = TablesOutcome {
        directory,
        exported: 0,
        present: 0,
        skipped: Vec::new(),
        rows: TABLES.map(|table| (table, 0)).into(),
        bytes: 0,
    };
    let mut export = TableExport { tables: Tables::open(tables)?, secrets, outcome };
    let result = if args.all { export.all(args, console) } else { export.named(args, console) };
    // What was added before an error is complete.
    let published = export.tables.publish();
    let exit = result?;
    export.outcome.bytes = published?;
    let outcome = &export.outcome;
    console.say_list(
        format_args!("{} not exported:", counted(outcome.skipped.len(), "recording was", "recordings were")),
        outcome.skipped.iter().map(|skipped| format!("{}: {}", skipped.id, skipped.why)),
    );
    if args.json {
        console.json(outcome)?;
    } else {
        outcome.print(console)?;
    }
    Ok(exit)
}

/// Joins the files that earlier exports have left.
fn compact(args: &Export, tables: &Path, directory: String, console: &mut Console) -> VerbResult {
    let bar = progress::bar("joining", 0);
    let each = |done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    };
    let Compacted { joined, into, bytes, damaged } = Tables::open(tables)?.compact(each)?;
    bar.finish_and_clear();
    let not_joined = format_args!("{} damaged:", counted(damaged.len(), "file is", "files are"));
    console.say_list(not_joined, damaged.iter());
    let exit = if damaged.is_empty() { Exit::Success } else { Exit::Finding };
    if args.json {
        console.json(&CompactJson { directory, joined, into, bytes, damaged })?;
    } else if joined == 0 {
        writeln!(console, "there is nothing to join")?;
    } else {
        let size = BinaryBytes(bytes);
        writeln!(console, "{} joined into {into}: {size}", counted(joined, "file", "files"))?;
    }
    Ok(exit)
}

#[derive(Serialize)]
struct CompactJson {
    directory: String,
    joined: usize,
    into: usize,
    bytes: u64,
    damaged: Vec<String>,
}

/// An export in progress.
struct TableExport {
    tables: Tables,
    secrets: Secrets,
    outcome: TablesOutcome,
}

/// What was exported.
#[derive(Serialize)]
struct TablesOutcome {
    directory: String,
    /// How many recordings.
    exported: usize,
    /// How many were there already.
    present: usize,
    skipped: Vec<SkippedRecording>,
    rows: BTreeMap<&'static str, usize>,
    bytes: u64,
}

/// A recording that was not exported.
#[derive(Serialize)]
struct SkippedRecording {
    id: String,
    why: String,
}

/// Why a recording that goes on is not exported: its file would not be replaced by that of the whole.
const RUNNING: &str = "it has not ended";

impl TableExport {
    /// Exports what the library has.
    fn all(&mut self, args: &Export, console: &mut Console) -> VerbResult {
        let Some(library) = Library::find()? else { return Ok(Exit::Success) };
        let scope = scope(&args.access, true);
        let mut entries = library.entries()?;
        entries.retain(|entry| scope.may_see(entry));
        // Those of a day become one file.
        entries.sort_by_cached_key(|entry| tables::date(&entry.time).unwrap_or_default());
        let bar = progress::bar("exporting", entries.len());
        let mut exit = Exit::Success;
        for entry in entries {
            bar.inc(1);
            let directory = library.directory_of(&entry.id);
            match entry.state {
                EntryState::Running => self.skip(&entry.id, RUNNING),
                EntryState::Unrecovered => {
                    self.skip(&entry.id, "it was killed, and is to be recovered first")
                }
                // The library has no two recordings whose identifiers begin so.
                EntryState::Ended | EntryState::Killed if self.tables.has(&entry.id, &entry.time)? => {
                    self.outcome.present += 1;
                }
                EntryState::Ended | EntryState::Killed => match self.add(&directory, console) {
                    Ok(_) => {}
                    Err(Error::Io { source, .. }) if is_gone(&source, &directory) => {}
                    // One that is damaged does not keep the others from being exported.
                    Err(error @ (Error::Format(_) | Error::Corrupt(_) | Error::Unsafe(_))) => {
                        self.skip(&entry.id, &error.to_string());
                        exit = Exit::BadSnapshot;
                    }
                    Err(error) => return Err(error.into()),
                },
            }
        }
        Ok(exit)
    }

    /// Exports what was named.
    fn named(&mut self, args: &Export, console: &mut Console) -> VerbResult {
        let directories = args.snaps.iter().map(|word| directory_of(word, &args.access));
        let mut directories = directories.collect::<Result<Vec<_>, _>>()?;
        if directories.len() > 1 {
            // Nothing is written if one of them is invalid, and those of a day become one file.
            let mut days = HashMap::new();
            for directory in &directories {
                let snapshot = open_directory(directory, console)?;
                tables::check(snapshot.header())?;
                days.insert(directory.clone(), tables::date(&snapshot.header().started_at)?);
            }
            directories.sort_by(|one, other| days[one].cmp(&days[other]));
        }
        let mut exit = Exit::Success;
        for directory in &directories {
            if !self.add(directory, console)? {
                exit = Exit::Finding;
            }
        }
        Ok(exit)
    }

    /// Exports the snapshot in a directory, unless it is there; whether it could be.
    fn add(&mut self, directory: &Path, console: &mut Console) -> Result<bool, Error> {
        let snapshot = open_directory(directory, console)?;
        let header = snapshot.header();
        if header.running {
            self.skip(&header.id, RUNNING);
            return Ok(false);
        }
        tables::check(header)?;
        let Redacted { snapshot, .. } = redacted(snapshot, &self.secrets, CommandLines::Masked);
        match self.tables.add(snapshot.header(), snapshot.records())? {
            Some(added) => {
                self.outcome.exported += 1;
                for (table, rows) in TABLES.iter().zip(added) {
                    *self.outcome.rows.entry(table).or_default() += rows;
                }
            }
            None => self.outcome.present += 1,
        }
        Ok(true)
    }

    fn skip(&mut self, id: &str, why: &str) {
        let id = printable(id.as_bytes()).into_owned();
        self.outcome.skipped.push(SkippedRecording { id, why: why.to_owned() });
    }
}

/// Whether a recording was deleted meanwhile.
fn is_gone(error: &io::Error, directory: &Path) -> bool {
    error.kind() == io::ErrorKind::NotFound && !directory.exists()
}

impl TablesOutcome {
    fn print(&self, console: &mut Console) -> Result<(), OutputError> {
        write!(console, "{} exported", counted(self.exported, "recording", "recordings"))?;
        if self.exported > 0 {
            let [files, processes, network] = [
                ("files", "file", "files"),
                ("processes", "process", "processes"),
                ("network", "address", "addresses"),
            ]
            .map(|(table, one, many)| counted(self.rows[table], one, many));
            let size = BinaryBytes(self.bytes);
            write!(console, ": {files}, {processes}, {network}; {size}")?;
        }
        if self.present > 0 {
            write!(console, "; {} there already", counted(self.present, "was", "were"))?;
        }
        writeln!(console)
    }
}
