//! `branch`, and `restore --into`: the recorded state under a directory of its own.

use std::path::Path;

use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use super::out::{Console, style};
use super::{Outcome, UsageError, Verdict, json, progress};
use crate::cli::Branch;
use crate::restore::build::{self, Built, Error};
use crate::restore::make::{Policy, User};
use crate::snapshot::blobs::Side;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{FileRecord, Snapshot, printable};

/// How many paths of one kind are named to a person before the rest is counted.
const NAMED: usize = 10;

/// Runs `branch`.
pub fn run(args: &Branch, console: &mut Console) -> Outcome {
    let snapshot = Snapshot::open(&args.snap)?;
    let side = if args.before { Side::Before } else { Side::After };
    let wish = Wish { side, dir: &args.dir, preserve: args.preserve, anyway: false, json: args.json };
    build(&snapshot, snapshot.files().iter(), &wish, console)
}

/// What to build, and how.
pub struct Wish<'a> {
    /// The state.
    pub side: Side,
    /// The directory.
    pub dir: &'a Path,
    /// Whether set-ID bits and ownership are put back.
    pub preserve: bool,
    /// Whether to go on without the content that can't be had.
    pub anyway: bool,
    /// Whether the answer is JSON.
    pub json: bool,
}

/// Builds the state of `records` and tells what was built.
pub fn build<'s>(
    snapshot: &'s Snapshot,
    records: impl Iterator<Item = &'s FileRecord>,
    wish: &Wish,
    console: &mut Console,
) -> Outcome {
    let policy = if wish.preserve { Policy::all(User::effective()) } else { Policy::safe(User::effective()) };
    let contents = Contents::new(snapshot);
    let built = build::plan(records, wish.side, &policy, wish.anyway, &contents).and_then(|plan| {
        let bar = progress::bar("build", plan.len());
        let built = plan.build(wish.dir, &contents, &|| bar.inc(1));
        bar.finish_and_clear();
        built
    });
    let answer = match built {
        Ok(built) => Answer::Built(built),
        Err(Error::Unavailable(missing)) => Answer::Unavailable(missing),
        Err(error @ Error::NotEmpty(_)) => return Err(UsageError(error.to_string()).into()),
        Err(Error::Snapshot(error)) => return Err(error.into()),
        Err(error) => return Err(error.into()),
    };
    let verdict = if matches!(answer, Answer::Built(_)) { Verdict::Fine } else { Verdict::Finding };
    if wish.json {
        console.json(&Report { snapshot, wish, answer: &answer })?;
    } else {
        match &answer {
            Answer::Built(built) => print(built, wish, console)?,
            Answer::Unavailable(missing) => tell_unavailable(missing, console),
        }
    }
    Ok(verdict)
}

enum Answer {
    Built(Built),
    Unavailable(Vec<(Vec<u8>, Unavailable)>),
}

/// Names every path whose content can't be had.
pub fn tell_unavailable(missing: &[(Vec<u8>, Unavailable)], console: &mut Console) {
    let lines = missing.iter().map(|(path, why)| format!("\n  {}: {why}", printable(path)));
    let lines: String = lines.collect();
    console.say(format_args!("nothing was changed, since content can't be had:{lines}"));
}

fn print(built: &Built, wish: &Wish, console: &mut Console) -> anyhow::Result<()> {
    let count =
        |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    writeln!(
        console,
        "{} holds the state {} the command: {}, {}, {} ({} bytes)",
        printable(wish.dir.as_os_str().as_encoded_bytes()),
        wish.side.name(),
        count(built.files, "file", "files"),
        count(built.directories, "directory", "directories"),
        count(built.others, "other", "others"),
        built.bytes,
    )?;
    for (path, why) in built.skipped.iter().take(NAMED) {
        let left = console.paint(style::CHANGED, "left out").to_string();
        writeln!(console, "{left} {}: {why}", printable(path))?;
    }
    if built.skipped.len() > NAMED {
        writeln!(console, "and {} more paths left out (--json names them)", built.skipped.len() - NAMED)?;
    }
    for (path, shortfall) in &built.shortfalls {
        console.say(format_args!("{}: {shortfall}", printable(path)));
    }
    Ok(())
}

/// The JSON of the whole answer.
struct Report<'a> {
    snapshot: &'a Snapshot,
    wish: &'a Wish<'a>,
    answer: &'a Answer,
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("id", &self.snapshot.header().id)?;
        object.serialize_entry("state", self.wish.side.name())?;
        json::put_text(&mut object, "dir", self.wish.dir.as_os_str().as_encoded_bytes())?;
        match self.answer {
            Answer::Built(built) => {
                object.serialize_entry("files", &built.files)?;
                object.serialize_entry("directories", &built.directories)?;
                object.serialize_entry("others", &built.others)?;
                object.serialize_entry("bytes", &built.bytes)?;
                object.serialize_entry("left_out", &Reasons(&built.skipped))?;
                object.serialize_entry("not_given", &Reasons(&built.shortfalls))?;
            }
            Answer::Unavailable(missing) => object.serialize_entry("unavailable", &Reasons(missing))?,
        }
        object.end()
    }
}

/// Paths, each with a reason.
pub struct Reasons<'a, R>(pub &'a [(Vec<u8>, R)]);

impl<R: std::fmt::Display> Serialize for Reasons<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for (path, reason) in self.0 {
            list.serialize_element(&Reason(path, reason))?;
        }
        list.end()
    }
}

struct Reason<'a, R>(&'a [u8], &'a R);

impl<R: std::fmt::Display> Serialize for Reason<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        json::put_text(&mut object, "path", self.0)?;
        object.serialize_entry("reason", &format_args!("{}", self.1))?;
        object.end()
    }
}
