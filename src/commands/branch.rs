//! `branch` and `restore --into`: build the recorded state under a directory of its own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::exit::{Exit, VerbResult};
use super::json::reasons;
use super::level::require_inputs;
use super::open::open;
use super::out::{Console, style};
use super::paths::{Selection, counted};
use super::progress;
use crate::cli::Branch;
use crate::library::reference::Reference;
use crate::library::short_id;
use crate::restore::build::{self, BuiltTree, Skipped};
use crate::restore::node::{RestorePolicy, User};
use crate::snapshot::blobs::Side;
use crate::snapshot::source::Contents;
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{FileRecord, Header, Snapshot, printable};

/// How many left-out paths are printed before the rest is only counted.
const NAMED: usize = 10;

/// Runs `branch`.
pub fn run(args: &Branch, console: &mut Console) -> VerbResult {
    let snapshot = open(&args.snap, &args.access, console)?;
    require_inputs(&snapshot, "branch")?;
    let selection = Selection::new(&snapshot, &args.paths)?;
    if let Some(unknown) = selection.unmatched().first() {
        let unknown = printable(unknown.as_encoded_bytes());
        console.say(format_args!("nothing was built: the snapshot has no record of {unknown}"));
        return Ok(Exit::Finding);
    }
    let side = if args.before { Side::Before } else { Side::After };
    let chosen = snapshot.files().iter().filter(|record| selection.contains(&record.path));
    let request = BranchRequest { side, dir: &args.dir, preserve: args.preserve, json: args.json };
    build(&snapshot, chosen, &request, console)
}

/// What `branch` or `restore --into` is to build.
pub struct BranchRequest<'a> {
    /// The state.
    pub side: Side,
    /// The directory.
    pub dir: &'a Path,
    /// Whether ownership and set-ID bits are put back.
    pub preserve: bool,
    /// Whether the outcome is printed as JSON.
    pub json: bool,
}

/// Builds the state of `records` and reports what was built.
pub fn build<'s>(
    snapshot: &'s Snapshot,
    records: impl Iterator<Item = &'s FileRecord>,
    request: &BranchRequest,
    console: &mut Console,
) -> VerbResult {
    let policy = if request.preserve {
        RestorePolicy::all(User::effective())
    } else {
        RestorePolicy::safe(User::effective())
    };
    let contents = Contents::new(snapshot);
    let plan = build::plan(records, request.side, &policy, &contents);
    let bar = progress::bar("build", plan.len());
    let dir = place(request.dir, snapshot.header());
    let built = plan.build(&dir, &contents, &|| bar.inc(1));
    bar.finish_and_clear();
    let request = &BranchRequest { dir: &dir, ..*request };
    let built = built?;
    if request.json {
        console.json(&BranchJson { snapshot, request, built: &built })?;
    } else {
        print(&built, request, console)?;
    }
    let is_missing = built.skipped.iter().any(|(_, why)| matches!(why, Skipped::Unavailable(_)));
    Ok(if is_missing { Exit::Finding } else { Exit::Success })
}

/// Where the state is built: in the named directory, or, if that has entries and is named with a slash at the end, in a
/// new directory inside it.
fn place(dir: &Path, header: &Header) -> PathBuf {
    let is_parent = dir.as_os_str().as_bytes().ends_with(b"/")
        && std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if !is_parent {
        return dir.to_owned();
    }
    let start = Path::new(OsStr::from_bytes(&header.start_cwd));
    let mut name = start.file_name().unwrap_or(OsStr::new("root")).to_owned();
    name.push(format!("-restored-{}", short_id(&header.id)));
    dir.join(name)
}

fn print(built: &BuiltTree, request: &BranchRequest, console: &mut Console) -> anyhow::Result<()> {
    writeln!(
        console,
        "{} holds the state {} the command: {}, {}, {} ({} bytes)",
        printable(request.dir.as_os_str().as_encoded_bytes()),
        request.side.name(),
        counted(built.files, "file", "files"),
        counted(built.directories, "directory", "directories"),
        counted(built.others, "other", "others"),
        built.bytes,
    )?;
    let is_missing = |why: &Skipped| matches!(why, Skipped::Unavailable(_));
    // Every path with missing content is printed.
    let (missing, rest): (Vec<_>, Vec<_>) = built.skipped.iter().partition(|(_, why)| is_missing(why));
    for (path, why) in missing.iter().chain(rest.iter().take(NAMED)) {
        let left = console.paint(style::CHANGED, "left out").to_string();
        writeln!(console, "{left} {}: {why}", printable(path))?;
    }
    if rest.len() > NAMED {
        writeln!(console, "and {} more paths left out (--json names them)", rest.len() - NAMED)?;
    }
    for (path, shortfall) in &built.shortfalls {
        console.say(format_args!("{}: {shortfall}", printable(path)));
    }
    Ok(())
}

/// The JSON of the outcome.
struct BranchJson<'a> {
    snapshot: &'a Snapshot,
    request: &'a BranchRequest<'a>,
    built: &'a BuiltTree,
}

impl Serialize for BranchJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        let Reference { provider_id, target } = Reference::new(self.snapshot.header(), self.snapshot.path());
        object.put("provider_id", &provider_id)?;
        object.put("ref", &target)?;
        object.put("id", &self.snapshot.header().id)?;
        object.put("state", self.request.side.name())?;
        object.text("dir", self.request.dir.as_os_str().as_encoded_bytes())?;
        object.put("files", &self.built.files)?;
        object.put("directories", &self.built.directories)?;
        object.put("others", &self.built.others)?;
        object.put("bytes", &self.built.bytes)?;
        object.put("left_out", &reasons(&self.built.skipped))?;
        object.put("not_given", &reasons(&self.built.shortfalls))?;
        object.0.end()
    }
}
