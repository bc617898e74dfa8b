//! `diff`: what the command changed, as a patch that `git apply` and `patch -p1` take.
//!
//! `plan.rs` says of which paths, `body.rs` has their bytes, `lines.rs` and `binary.rs` compare and
//! encode them, `patch.rs` writes one entry, `summary.rs` the shorter forms and the JSON.

mod binary;
mod body;
mod lines;
mod patch;
mod plan;
mod summary;

use super::exit::{Exit, UsageError, VerbResult};
use super::out::{Console, Look, OutputError};
use super::paths::{Selection, quoted, shown};
use crate::cli::Diff;
use crate::snapshot::Snapshot;
use crate::snapshot::source::Contents;
use body::{Body, Kind, Trouble};
use lines::LineDiff;
use plan::{Entry, Plan};
use summary::{JsonChange, Row, Stat, Status};

/// The form of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Patch,
    Stat,
    NameStatus,
}

/// A renamed text that has less than this in common with what it was, in percent, is another file.
const RENAME_SIMILARITY: u64 = 50;

/// Writes the difference that the command made, of all paths or those of `args`.
pub fn run(args: &Diff, console: &mut Console) -> VerbResult {
    let form = match (args.stat, args.name_status) {
        (false, false) => Form::Patch,
        (true, false) => Form::Stat,
        (false, true) => Form::NameStatus,
        (true, true) => {
            return Err(UsageError("diff: --stat and --name-status exclude each other".to_owned()).into());
        }
    };
    let snapshot = Snapshot::open(&args.snap)?;
    let selection = Selection::new(&snapshot, &args.paths)?;
    let start = snapshot.header().start_cwd.as_slice();
    let base = if args.root { b"/" } else { start };
    let plan = Plan::new(&snapshot, &selection, base);
    let contents = Contents::new(&snapshot);
    let mut teller = Teller {
        contents: &contents,
        form,
        json: args.json,
        count: 0,
        stat: Stat::default(),
        lost: Vec::new(),
    };

    if args.json {
        summary::open_json(base, console)?;
    }
    for entry in &plan.entries {
        teller.tell(entry, console)?;
    }
    let Teller { count, stat, lost, .. } = teller;
    if args.json {
        summary::close_json(&plan, &lost, console)?;
    } else if form == Form::Stat {
        let look = console.look;
        stat.write(console.sink(), look).map_err(OutputError::from)?;
    }

    if !args.json {
        let base = quoted(base);
        let outside = plan.outside.iter().map(|path| quoted(path));
        console.say_list(format_args!("diff: changed outside {base}, left out without --root:"), outside);
        let inherited = plan.inherited.iter().map(|path| shown(path, start));
        console.say_list(
            format_args!(
                "diff: written through a descriptor from before the command, left out unless named:"
            ),
            inherited,
        );
        let untold = plan.untold.iter().map(|(path, what)| format!("{}: {what}", shown(path, start)));
        console.say_list(format_args!("diff: changed in a way that a diff has no words for:"), untold);
    }
    for (path, why) in &lost {
        console.say(format_args!("diff {}: {why}", shown(path, start)));
    }
    for arg in selection.unmatched() {
        let arg = quoted(arg.as_encoded_bytes());
        console.say(format_args!("diff {arg}: the snapshot has no record of it, so it was not used"));
    }
    let differs = args.exit_code && (count > 0 || !plan.untold.is_empty());
    let finding = differs || !lost.is_empty() || !selection.unmatched().is_empty();
    Ok(if finding { Exit::Finding } else { Exit::Success })
}

/// Writes entries in the form that was asked for.
struct Teller<'s, 'c> {
    contents: &'c Contents<'s>,
    form: Form,
    json: bool,
    /// How many differences there were.
    count: usize,
    stat: Stat<'s>,
    /// The paths whose bytes can't be had, and why.
    lost: Vec<(&'s [u8], String)>,
}

impl<'s> Teller<'s, '_> {
    fn tell(&mut self, entry: &Entry<'s>, console: &mut Console) -> anyhow::Result<()> {
        match self.try_tell(entry, console) {
            Ok(()) => Ok(()),
            Err(Trouble::Unavailable(half, why)) => {
                let side = half.side.name();
                self.lost
                    .push((&half.record.path, format!("its content {side} the command can't be had: {why}")));
                Ok(())
            }
            Err(Trouble::Snapshot(error)) => Err(error.into()),
            Err(Trouble::Output(error)) => Err(OutputError::from(error).into()),
        }
    }

    fn try_tell(&mut self, entry: &Entry<'s>, console: &mut Console) -> Result<(), Trouble<'s>> {
        if entry.is_type_change() {
            let parts = entry.apart();
            return match self.form {
                Form::NameStatus => self.write(Status::TypeChanged, entry, &[], console),
                _ => {
                    let bodies = [self.body(&parts[0])?, self.body(&parts[1])?];
                    let parts = [(parts[0], &bodies[0]), (parts[1], &bodies[1])];
                    self.write(Status::TypeChanged, entry, &parts, console)
                }
            };
        }
        let same_bytes = entry.both().map(|(old, new)| old.known_same(&new));
        let status = match same_bytes {
            None if entry.new.is_some() => Status::Added,
            None => Status::Deleted,
            Some(_) if entry.is_rename() => Status::Renamed(100),
            Some(_) => Status::Modified,
        };
        let is_settled = same_bytes != Some(None) && (!entry.is_rename() || same_bytes == Some(Some(true)));
        if self.form == Form::NameStatus && is_settled {
            return self.write(status, entry, &[], console);
        }
        let body = self.body(entry)?;
        if body.kind == Kind::Same && !entry.is_rename() && !entry.is_mode_change() {
            return Ok(());
        }
        let status = match status {
            Status::Renamed(_) => {
                let similarity = body.similarity();
                if similarity < RENAME_SIMILARITY {
                    let [old, new] = entry.apart();
                    self.try_tell(&old, console)?;
                    return self.try_tell(&new, console);
                }
                Status::Renamed(similarity)
            }
            status => status,
        };
        self.write(status, entry, &[(*entry, &body)], console)
    }

    fn body(&self, entry: &Entry<'s>) -> Result<Body, Trouble<'s>> {
        Body::of(entry, self.contents)
    }

    /// Writes one difference: `parts` are what its patch is made of.
    fn write(
        &mut self,
        status: Status,
        entry: &Entry<'s>,
        parts: &[(Entry<'s>, &Body)],
        console: &mut Console,
    ) -> Result<(), Trouble<'s>> {
        let look = if self.json { Look::PLAIN } else { console.look };
        let (mut row, mut patch) = (Row::default(), Vec::new());
        for (entry, body) in parts {
            let lines = body.lines();
            row.add(body.kind, lines.as_ref().map(LineDiff::counts));
            // The bytes of a binary file are `cat`'s to give: an object is to fit into memory.
            let is_wanted = self.form == Form::Patch && !(self.json && body.kind == Kind::Binary);
            let is_sparse = entry.old.iter().chain(&entry.new).any(|half| half.present.is_sparse());
            if is_wanted && is_sparse && body.kind != Kind::Same {
                let why = "a patch of a sparse file would be as long as its holes; cat gives its bytes";
                self.lost.push((entry.path(), why.to_owned()));
            } else if is_wanted {
                let sink: &mut dyn std::io::Write = if self.json { &mut patch } else { console.sink() };
                patch::write(entry, body, lines.as_ref(), status, self.contents, sink, look)?;
            }
        }
        self.count += 1;
        if self.json {
            let change =
                JsonChange { status, entry, row: (!parts.is_empty()).then_some(&row), patch: &patch };
            summary::write_json(&change, self.count == 1, console.sink())?;
        } else if self.form == Form::NameStatus {
            summary::write_name_status(status, entry, console.sink(), look)?;
        } else if self.form == Form::Stat {
            self.stat.add(entry, row);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
