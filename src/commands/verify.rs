//! `verify`: checks whether the live files are still at the recorded state.
//!
//! `restore::drift` compares; this reports the differences.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::exit::{Exit, VerbResult};
use super::level::require_inputs;
use super::open::open_or_last;
use super::out::{Console, style};
use super::paths::{number_of_paths, shell_line, shell_word};
use super::progress;
use crate::cli::{DriftPolicy, Verify};
use crate::restore::drift::{self, Difference, Drift, DriftKind};
use crate::restore::interrupted;
use crate::restore::rescue::repetition;
use crate::restore::root::Root;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::Fingerprint;
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{FileType, Snapshot, printable};

/// Runs `verify`.
pub fn run(args: &Verify, console: &mut Console) -> VerbResult {
    let snapshot = open_or_last(args.snap.as_deref(), &args.access, console)?;
    if args.before {
        require_inputs(&snapshot, "verify --before")?;
    }
    let side = if args.before { Side::Before } else { Side::After };
    let bar = progress::bar("verify", snapshot.files().len());
    let drift = drift::check(&snapshot, side, &Root::live()?, &|| bar.inc(1));
    bar.finish_and_clear();
    if args.json {
        console.json(&VerifyJson { snapshot: &snapshot, side, drift: &drift })?;
    } else {
        print(&snapshot, &drift, side, console)?;
        report_interrupted(&snapshot, console);
    }
    let strict = args.drift_policy == DriftPolicy::Strict;
    Ok(if strict && !drift.differences.is_empty() { Exit::Finding } else { Exit::Success })
}

/// Reports interrupted restores of the snapshot.
fn report_interrupted(snapshot: &Snapshot, console: &mut Console) {
    for rescue in interrupted::interrupted(snapshot) {
        let Some(snapshot) = &rescue.snapshot else { continue };
        let command = shell_line(&repetition(&snapshot.header().command, &rescue.path));
        let path = shell_word(rescue.path.as_os_str().as_encoded_bytes()).into_owned();
        console.say(format_args!(
            "a restore of this snapshot was interrupted: {command} completes it, and agent-snapshot restore --before \
             {path} takes it back"
        ));
    }
}

fn print(snapshot: &Snapshot, drift: &Drift, side: Side, console: &mut Console) -> anyhow::Result<()> {
    for difference in &drift.differences {
        let path = printable(&difference.record.path);
        let (mark, what) = match &difference.kind {
            DriftKind::Drift => ("drift", changes(&difference.recorded, difference.live.as_ref())),
            DriftKind::Modified => ("modified", "its content was withheld".to_owned()),
            DriftKind::PinLost(lost) => ("pin_lost", lost.to_string()),
            DriftKind::Unreadable(error) => ("unreadable", error.to_string()),
        };
        let mark = console.paint(style::CHANGED, format_args!("{mark:10}")).to_string();
        let what = console.paint(style::FAINT, what).to_string();
        writeln!(console, "{mark} {path}  {what}")?;
    }
    let withheld = match drift.withheld {
        0 => String::new(),
        count => format!(" ({count} by their metadata, since their content was withheld)"),
    };
    let pinned = match drift.pinned {
        0 => String::new(),
        pinned => format!(", {} pinned in Git", number_of_paths(pinned)),
    };
    let left_out = match drift.left_out {
        0 => String::new(),
        count => format!(", {} left out (the command's output went there)", number_of_paths(count)),
    };
    let not_kept = match snapshot.inputs().len() {
        0 => String::new(),
        count => {
            let keep = snapshot.header().keep.name();
            format!(", {} left out (only read, with --keep {keep})", number_of_paths(count))
        }
    };
    let found = match drift.differences.len() {
        0 => format!("all are in the state {} the command", side.name()),
        count => format!("{} not in the state {} the command", number_of_paths(count), side.name()),
    };
    let compared = number_of_paths(drift.compared);
    writeln!(console, "{compared} compared{withheld}{pinned}{left_out}{not_kept}: {found}")?;
    Ok(())
}

/// Says in a few words how `live` differs from `recorded`.
fn changes(recorded: &Fingerprint, live: Option<&Fingerprint>) -> String {
    let (
        Fingerprint::Present { file_type, permissions, target, rdev, content, entries },
        Some(Fingerprint::Present {
            file_type: live_type,
            permissions: live_permissions,
            target: live_target,
            rdev: live_rdev,
            content: live_content,
            entries: live_entries,
        }),
    ) = (recorded, live)
    else {
        return if *recorded == Fingerprint::Absent { "exists now" } else { "is gone" }.to_owned();
    };
    if file_type != live_type {
        let name = |file_type: &FileType| file_type.name().replace('_', " ");
        return format!("{} is a {} now", name(file_type), name(live_type));
    }
    let mut told = Vec::new();
    if permissions != live_permissions {
        told.push(format!("mode: {permissions:04o} recorded, {live_permissions:04o} now"));
    }
    if let (Some(target), Some(live_target)) = (target, live_target)
        && target != live_target
    {
        told.push(format!("target: {} recorded, {} now", printable(target), printable(live_target)));
    }
    if rdev != live_rdev {
        told.push("another device".to_owned());
    }
    if content != live_content {
        told.push(match (content, live_content) {
            (Some((size, _)), Some((live_size, _))) if size != live_size => {
                format!("size: {size} bytes recorded, {live_size} now")
            }
            _ => "other content".to_owned(),
        });
    }
    if entries != live_entries {
        told.push("other entries".to_owned());
    }
    told.join(", ")
}

/// The JSON of the outcome.
struct VerifyJson<'a> {
    snapshot: &'a Snapshot,
    side: Side,
    drift: &'a Drift<'a>,
}

impl Serialize for VerifyJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("id", &self.snapshot.header().id)?;
        object.serialize_entry("state", self.side.name())?;
        object.serialize_entry("keep", &self.snapshot.header().keep)?;
        object.serialize_entry("compared", &self.drift.compared)?;
        object.serialize_entry("withheld", &self.drift.withheld)?;
        object.serialize_entry("pinned", &self.drift.pinned)?;
        object.serialize_entry("left_out", &self.drift.left_out)?;
        object.serialize_entry("not_kept", &self.snapshot.inputs().len())?;
        object.serialize_entry("differences", &self.drift.differences)?;
        object.end()
    }
}

impl Serialize for Difference<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("path", &self.record.path)?;
        match &self.kind {
            DriftKind::Drift => object.put("kind", "drift")?,
            DriftKind::Modified => object.put("kind", "modified")?,
            DriftKind::PinLost(lost) => {
                object.put("kind", "pin_lost")?;
                object.put("detail", &lost.to_string())?;
            }
            DriftKind::Unreadable(error) => {
                object.put("kind", "unreadable")?;
                object.put("detail", &error.to_string())?;
            }
        }
        object.put("snapshot_fingerprint", &self.recorded)?;
        object.put_some("live_fingerprint", &self.live)?;
        object.0.end()
    }
}
