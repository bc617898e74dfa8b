//! `diff`: writes what the command changed as a patch for `git apply` and `patch -p1`.
//!
//! Git's state is left out. `plan.rs` selects the paths, `body.rs` has their bytes, `lines.rs` and `binary.rs` compare
//! and encode them, `patch.rs` writes one entry, `summary.rs` the shorter forms and the JSON.

mod binary;
mod body;
pub mod lines;
mod patch;
mod plan;
mod summary;

use serde_json::Value;

use super::exit::{Exit, UsageError, VerbResult};
use super::level::say_unmatched;
use super::open::open_with_paths;
use super::out::{Console, OutputError, OutputFormat};
use super::paths::{Selection, quoted, shown};
use crate::cli::Diff;
use crate::snapshot::Snapshot;
use crate::snapshot::source::Contents;
pub use body::{DiffBody, DiffError, DiffKind, TEXT_LIMIT};
use lines::LineDiff;
pub use plan::{DiffEntry, DiffPlan, half};
use summary::{DiffJson, DiffStat, DiffStatus, LineCounts};

/// The form of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Patch,
    Stat,
    NameStatus,
}

/// A renamed text with a lower similarity than this, in percent, is a deleted and a new file.
const RENAME_SIMILARITY: u64 = 50;

/// Writes the changes of the paths that `args` selects.
pub fn run(args: &Diff, console: &mut Console) -> VerbResult {
    let form = match (args.stat, args.name_status) {
        (false, false) => Form::Patch,
        (true, false) => Form::Stat,
        (false, true) => Form::NameStatus,
        (true, true) => {
            return Err(UsageError("diff: --stat and --name-status exclude each other".to_owned()).into());
        }
    };
    let paths = [&args.paths[..], &args.after];
    let (snapshot, paths) = open_with_paths(args.snap.as_deref(), paths, &args.access, console)?;
    let selection = Selection::new(&snapshot, &paths)?;
    let start = snapshot.header().start_cwd.as_slice();
    let base = if args.root { b"/" } else { start };
    let plan = DiffPlan::new(&snapshot, &selection, base);
    let contents = Contents::new(&snapshot);
    let mut teller = DiffWriter::new(&contents, form, args.json);

    if args.json {
        summary::open_json(base, console)?;
    }
    for entry in &plan.entries {
        teller.tell(entry, console)?;
    }
    let DiffWriter { count, stat, lost, .. } = teller;
    if args.json {
        summary::close_json(&plan, &lost, console)?;
    } else if form == Form::Stat {
        let format = console.format;
        stat.write(console.sink(), format).map_err(OutputError::from)?;
    }

    if !args.json {
        let base = quoted(base);
        let outside = plan.outside.iter().map(|path| quoted(path));
        console
            .say_list(format_args!("diff: changed outside {base}, left out (--root includes it):"), outside);
        let inherited = plan.inherited.iter().map(|path| shown(path, start));
        console.say_list(
            format_args!("diff: written through an inherited descriptor, left out unless named:"),
            inherited,
        );
        let unsupported =
            plan.unsupported.iter().map(|(path, what)| format!("{}: {what}", shown(path, start)));
        console.say_list(format_args!("diff: changed in a way that a patch can't express:"), unsupported);
    }
    for (path, why) in &lost {
        console.say(format_args!("diff {}: {why}", shown(path, start)));
    }
    say_unmatched("diff", &selection, &snapshot, console);
    let differs = args.exit_code && (count > 0 || !plan.unsupported.is_empty());
    let finding = differs || !lost.is_empty() || !selection.unmatched().is_empty();
    Ok(if finding { Exit::Finding } else { Exit::Success })
}

/// Writes what a snapshot tells of the selected paths as a patch relative to `base`, and says what is not in it.
pub fn write_patch(
    snapshot: &Snapshot,
    selection: &Selection,
    base: &[u8],
    console: &mut Console,
) -> anyhow::Result<()> {
    let plan = DiffPlan::new(snapshot, selection, base);
    let contents = Contents::new(snapshot);
    let mut teller = DiffWriter::new(&contents, Form::Patch, false);
    for entry in &plan.entries {
        teller.tell(entry, console)?;
    }
    let unsupported = plan.unsupported.iter().map(|(path, what)| (path, what));
    for (path, why) in unsupported.chain(teller.lost.iter().map(|(path, why)| (path, why))) {
        console.say(format_args!("diff {}: {why}", shown(path, base)));
    }
    Ok(())
}

/// The object of `--json` for a part of the paths: from the number `offset` on, until `is_enough` says of the changes so
/// far that they are enough. Also the number of the first path that is not in it, if there are more.
pub fn part(
    args: &Diff,
    base: Option<&[u8]>,
    offset: usize,
    is_enough: impl Fn(&[Value]) -> bool,
    console: &mut Console,
) -> anyhow::Result<(Value, Option<usize>)> {
    let paths = [&args.paths[..], &args.after];
    let (snapshot, paths) = open_with_paths(args.snap.as_deref(), paths, &args.access, console)?;
    let selection = Selection::new(&snapshot, &paths)?;
    let base = base.unwrap_or(b"/");
    let plan = DiffPlan::new(&snapshot, &selection, base);
    let contents = Contents::new(&snapshot);
    let mut teller =
        DiffWriter { collected: Some(Vec::new()), ..DiffWriter::new(&contents, Form::Patch, true) };
    let mut next = offset.min(plan.entries.len());
    for entry in &plan.entries[next..] {
        teller.tell(entry, console)?;
        next += 1;
        if is_enough(teller.collected.as_deref().unwrap_or_default()) {
            break;
        }
    }
    say_unmatched("diff", &selection, &snapshot, console);
    let value = summary::object(base, teller.collected.unwrap_or_default(), &plan, &teller.lost)?;
    Ok((value, (next < plan.entries.len()).then_some(next)))
}

/// Writes an entry whose bytes are known.
pub fn write_entry(
    entry: &DiffEntry,
    body: &DiffBody,
    contents: &Contents,
    console: &mut Console,
) -> anyhow::Result<()> {
    let status = match (entry.old, entry.new) {
        (None, _) => DiffStatus::Added,
        (_, None) => DiffStatus::Deleted,
        _ => DiffStatus::Modified,
    };
    let (lines, format) = (body.lines(), console.format);
    Ok(patch::write(entry, body, lines.as_ref(), status, contents, console.sink(), format)?)
}

/// Writes entries in one of the forms.
struct DiffWriter<'s, 'c> {
    contents: &'c Contents<'s>,
    form: Form,
    json: bool,
    /// The objects of the JSON, if they are not written.
    collected: Option<Vec<Value>>,
    /// How many entries differ.
    count: usize,
    stat: DiffStat<'s>,
    /// The paths whose bytes are unavailable, and why.
    lost: Vec<(&'s [u8], String)>,
}

impl<'s, 'c> DiffWriter<'s, 'c> {
    fn new(contents: &'c Contents<'s>, form: Form, json: bool) -> DiffWriter<'s, 'c> {
        DiffWriter {
            contents,
            form,
            json,
            collected: None,
            count: 0,
            stat: DiffStat::default(),
            lost: Vec::new(),
        }
    }

    fn tell(&mut self, entry: &DiffEntry<'s>, console: &mut Console) -> anyhow::Result<()> {
        match self.try_tell(entry, console) {
            Ok(()) => Ok(()),
            Err(DiffError::Unavailable(half, why)) => {
                let side = half.side.name();
                self.lost.push((
                    &half.record.path,
                    format!("its content {side} the command is unavailable: {why}"),
                ));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn try_tell(&mut self, entry: &DiffEntry<'s>, console: &mut Console) -> Result<(), DiffError<'s>> {
        if entry.is_type_change() {
            let parts = entry.apart();
            return match self.form {
                Form::NameStatus => self.write(DiffStatus::TypeChanged, entry, &[], console),
                _ => {
                    let bodies = [self.body(&parts[0])?, self.body(&parts[1])?];
                    let parts = [(parts[0], &bodies[0]), (parts[1], &bodies[1])];
                    self.write(DiffStatus::TypeChanged, entry, &parts, console)
                }
            };
        }
        let same_bytes = entry.both().map(|(old, new)| old.known_same(&new));
        let status = match same_bytes {
            None if entry.new.is_some() => DiffStatus::Added,
            None => DiffStatus::Deleted,
            Some(_) if entry.is_rename() => DiffStatus::Renamed(100),
            Some(_) => DiffStatus::Modified,
        };
        let is_settled = same_bytes != Some(None) && (!entry.is_rename() || same_bytes == Some(Some(true)));
        if self.form == Form::NameStatus && is_settled {
            return self.write(status, entry, &[], console);
        }
        let body = self.body(entry)?;
        if body.kind == DiffKind::Same && !entry.is_rename() && !entry.is_mode_change() {
            return Ok(());
        }
        let status = match status {
            DiffStatus::Renamed(_) => {
                let similarity = body.similarity();
                if similarity < RENAME_SIMILARITY {
                    let [old, new] = entry.apart();
                    self.try_tell(&old, console)?;
                    return self.try_tell(&new, console);
                }
                DiffStatus::Renamed(similarity)
            }
            status => status,
        };
        self.write(status, entry, &[(*entry, &body)], console)
    }

    fn body(&self, entry: &DiffEntry<'s>) -> Result<DiffBody, DiffError<'s>> {
        DiffBody::of(entry, self.contents)
    }

    /// Writes one entry, whose patch consists of `parts`.
    fn write(
        &mut self,
        status: DiffStatus,
        entry: &DiffEntry<'s>,
        parts: &[(DiffEntry<'s>, &DiffBody)],
        console: &mut Console,
    ) -> Result<(), DiffError<'s>> {
        let format = if self.json { OutputFormat::PLAIN } else { console.format };
        let (mut row, mut patch) = (LineCounts::default(), Vec::new());
        for (entry, body) in parts {
            let lines = body.lines();
            row.add(body.kind, lines.as_ref().map(LineDiff::counts));
            // JSON has no binary patches, since an object has to fit into memory; `cat` gives the bytes.
            let is_wanted = self.form == Form::Patch && !(self.json && body.kind == DiffKind::Binary);
            let is_sparse = entry.old.iter().chain(&entry.new).any(|half| half.present.is_sparse());
            if is_wanted && is_sparse && body.kind != DiffKind::Same {
                let why = "a patch of a sparse file would be as long as its holes; cat gives its bytes";
                self.lost.push((entry.path(), why.to_owned()));
            } else if is_wanted {
                let sink: &mut dyn std::io::Write = if self.json { &mut patch } else { console.sink() };
                patch::write(entry, body, lines.as_ref(), status, self.contents, sink, format)?;
            }
        }
        self.count += 1;
        if self.json {
            let change = DiffJson { status, entry, row: (!parts.is_empty()).then_some(&row), patch: &patch };
            match &mut self.collected {
                Some(collected) => {
                    collected.push(serde_json::to_value(&change).map_err(std::io::Error::from)?)
                }
                None => summary::write_json(&change, self.count == 1, console.sink())?,
            }
        } else if self.form == Form::NameStatus {
            summary::write_name_status(status, entry, console.sink(), format)?;
        } else if self.form == Form::Stat {
            self.stat.add(entry, row);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
