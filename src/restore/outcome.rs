//! What came of a restore in place, for the verb to report.
//!
//! Neighbours: `run.rs` fills it in, `plan.rs` has the plan that it is made of.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::interrupted::UnfinishedRescue;
use super::merge::Merged;
use super::node::Shortfall;
use super::plan::{Action, LeftReason, Obstacle, PlanInput, RestorePlan};
use super::request::RestoreRequest;
use super::since::Since;
use crate::snapshot::compare::state;
use crate::snapshot::source::Unavailable;
use crate::snapshot::wire::names;
use crate::snapshot::{FileType, Present, Snapshot};

/// What becomes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathChange {
    /// It is made; nothing is there.
    Create,
    /// What is there is replaced.
    Replace,
    /// It is written in place.
    WriteInPlace,
    /// It becomes a hard link to another file.
    HardLink,
    /// It gets other attributes.
    Attributes,
    /// It is removed.
    Remove,
}

names!(PathChange {
    Create = "create",
    Replace = "replace",
    WriteInPlace = "write_in_place",
    HardLink = "hard_link",
    Attributes = "attributes",
    Remove = "remove",
});

impl PathChange {
    /// The word for it in text.
    pub fn word(self) -> &'static str {
        match self {
            PathChange::WriteInPlace => "write",
            PathChange::HardLink => "hard link",
            other => other.name(),
        }
    }
}

/// What came of a restore.
#[derive(Debug, Default)]
pub struct RestoreOutcome {
    /// The changes that are to be made or were made, sorted by path.
    pub changes: Vec<(Vec<u8>, PathChange)>,
    /// Targets in neither of their recorded states, with what has happened to them, and known conflicts, with the
    /// reason.
    pub conflicts: Vec<(Vec<u8>, String)>,
    /// Those of them that are Git's state.
    pub git_conflicts: BTreeSet<Vec<u8>>,
    /// Those that no option overrides.
    pub hard_conflicts: BTreeSet<Vec<u8>>,
    /// Paths that can't be put back.
    pub obstacles: Vec<(Vec<u8>, Obstacle)>,
    /// Paths whose content is unavailable.
    pub unavailable: Vec<(Vec<u8>, Unavailable)>,
    /// The files that are merged with what was edited since, or were by the run that was interrupted.
    pub merged: BTreeMap<Vec<u8>, Merged>,
    /// Targets that are left as they are.
    pub left: Vec<(Vec<u8>, LeftReason)>,
    /// Attributes that could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
    /// Files that had other hard links, and are not known to be put back as one of all of these.
    pub not_linked: Vec<Vec<u8>>,
    /// How many targets were at the wanted state already.
    pub at_wanted: usize,
    /// The rescues, which have what was overwritten.
    pub rescues: Vec<PathBuf>,
    /// The interrupted restore because of which nothing was done.
    pub interrupted: Option<UnfinishedRescue>,
    /// Whether an interrupted restore was completed.
    pub completed: bool,
    /// Whether the changes were made.
    pub applied: bool,
    /// Whether the changes are refused, or would be.
    pub is_refused: bool,
    /// Whether conflicts are a reason for that.
    pub has_blocking_conflicts: bool,
    /// What tells the plan from another one; see [`digest`].
    pub digest: String,
    /// Whether nothing was changed since this is not the plan that was agreed to.
    pub is_other_plan: bool,
}

impl RestoreOutcome {
    /// Whether all of the state was put back, or will be, but for what the user did not want.
    pub fn is_whole(&self) -> bool {
        !self.is_refused
            && self.left.iter().all(|(_, why)| why.is_wanted())
            && self.merged.values().all(|merged| merged.conflicts == 0)
            && self.shortfalls.is_empty()
    }
}

/// The outcome that `plan` will have when it is carried out.
pub fn outcome(
    input: &PlanInput,
    plan: &RestorePlan,
    unavailable: Vec<(Vec<u8>, Unavailable)>,
    since: &Since,
) -> RestoreOutcome {
    let inspected =
        |index: usize| input.inspections.get(&index).and_then(|inspection| inspection.as_ref().ok());
    let change = |index: usize, action: &Action| match action {
        Action::File { in_place: true, .. } => PathChange::WriteInPlace,
        Action::File { .. } | Action::Return { .. } | Action::Node => {
            match inspected(index).and_then(|inspection| inspection.live.as_ref()) {
                None => PathChange::Create,
                Some(_) => PathChange::Replace,
            }
        }
        Action::HardLink { .. } => PathChange::HardLink,
        Action::Attributes(_) => PathChange::Attributes,
        Action::Remove => PathChange::Remove,
    };
    let path = |index: usize| input.files[index].path.clone();
    RestoreOutcome {
        changes: plan
            .steps
            .iter()
            .map(|step| (path(step.record), change(step.record, &step.action)))
            .collect(),
        conflicts: conflicts(input, plan, plan.conflicts.iter().copied(), since),
        git_conflicts: plan
            .conflicts
            .iter()
            .filter(|index| input.files[**index].is_git_state)
            .map(|index| path(*index))
            .collect(),
        hard_conflicts: input
            .hard_conflicts
            .keys()
            .cloned()
            .chain(plan.occupied.keys().copied().map(path))
            .collect(),
        has_blocking_conflicts: plan.has_blocking_conflicts(input),
        obstacles: plan.obstacles.clone(),
        unavailable,
        left: plan.left.clone(),
        shortfalls: plan.shortfalls.clone(),
        not_linked: not_linked(input, plan),
        at_wanted: plan.at_wanted,
        ..RestoreOutcome::default()
    }
}

/// The digest over what is restored, the changes, what is left or in the way, and what is there now in place of what is
/// put back. Of directories and of Git's state only what the plan makes of them counts: others work on them all the time.
pub fn digest(
    snapshot: &Snapshot,
    request: &RestoreRequest,
    input: &PlanInput,
    plan: &RestorePlan,
    outcome: &RestoreOutcome,
) -> String {
    let RestoreOutcome { changes, conflicts, obstacles, unavailable, left, not_linked, .. } = outcome;
    let sources: Vec<&Path> = snapshot.parts().iter().map(Snapshot::path).collect();
    let mut text = format!(
        "{sources:?} {:?} {conflicts:?} {obstacles:?} {unavailable:?} {left:?} {not_linked:?}",
        request.command
    );
    for (path, change) in changes {
        text.push_str(&format!("\n{} {}", change.name(), path.escape_ascii()));
    }
    let files = plan.steps.iter().filter(|step| !input.files[step.record].is_git_state);
    for step in files {
        let found = input.inspections.get(&step.record).and_then(|found| found.as_ref().ok());
        let live = found.and_then(|found| found.live.as_ref());
        if let Some(live) = live.filter(|live| live.file_type != FileType::Directory) {
            let Present { mode, mtime, mtime_nsec, size, uid, gid, dev, ino, target, .. } = live;
            text.push_str(&format!(
                "\n{mode} {mtime} {mtime_nsec} {size} {uid} {gid} {dev} {ino} {target:?}"
            ));
        }
    }
    faster_hex::hex_string(&Sha256::digest(text.as_bytes())[..8])
}

/// The files that had more hard links than are known, and are new ones by `plan` or since the command.
fn not_linked(input: &PlanInput, plan: &RestorePlan) -> Vec<Vec<u8>> {
    let left: HashSet<&[u8]> = plan.left.iter().map(|(path, _)| path.as_slice()).collect();
    let is_short = |index: &usize| {
        let record = &input.files[*index];
        let Some(wanted) = state(record, input.wanted).present() else { return false };
        let known = input.hard_links[0].names(*index).len().max(1);
        let live = input.inspections.get(index).and_then(|found| found.as_ref().ok()?.live.as_ref());
        let step = plan.steps.binary_search_by_key(index, |step| step.record);
        let is_own = match step.map(|at| &plan.steps[at].action) {
            Ok(Action::File { in_place, .. }) => !in_place,
            Ok(Action::Node) => true,
            Ok(Action::HardLink { .. } | Action::Return { .. } | Action::Remove) => false,
            // What is there has the content, and may have been put in the place of the file by the command.
            Ok(Action::Attributes(_)) | Err(_) => {
                record.relinked
                    && live.is_some_and(|live| live.identity() != wanted.identity())
                    && !left.contains(record.path.as_slice())
            }
        };
        is_own
            && wanted.linkable_identity().is_some()
            && !record.is_git_state
            && u64::try_from(known).is_ok_and(|known| known < wanted.nlink)
    };
    input
        .targets
        .iter()
        .filter(|index| is_short(index))
        .map(|index| input.files[*index].path.clone())
        .collect()
}

/// The paths of the records `indices`, which are conflicts, each with what has happened to it or who changed it.
pub fn conflicts(
    input: &PlanInput,
    plan: &RestorePlan,
    indices: impl Iterator<Item = usize>,
    since: &Since,
) -> Vec<(Vec<u8>, String)> {
    let reason = |index: usize| {
        let path = &input.files[index].path;
        if let Some(why) = plan.occupied.get(&index) {
            return (path.clone(), why.to_string());
        }
        let found = input.inspections.get(&index).and_then(|inspection| inspection.as_ref().ok());
        let why = input.hard_conflicts.get(path).or(input.known_conflicts.get(path)).cloned();
        let note = || found.and_then(|inspection| inspection.note.clone());
        (path.clone(), why.or_else(note).unwrap_or_else(|| since.happened(input, index)))
    };
    indices.map(reason).collect()
}
