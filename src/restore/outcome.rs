//! What came of a restore in place, for whoever tells it.
//!
//! Neighbours: `run.rs` fills it in, `plan.rs` has the plan that it is made of.

use std::path::PathBuf;

use super::make::Shortfall;
use super::plan::{Action, Left, Obstacle, Plan, Request};
use crate::snapshot::source::Unavailable;
use crate::snapshot::{FileType, Present, printable};

/// What becomes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is made where nothing is.
    Create,
    /// What is there is replaced.
    Replace,
    /// It is written in place.
    WriteInPlace,
    /// It becomes another name of a file.
    Link,
    /// It gets other attributes.
    Attributes,
    /// It is removed.
    Remove,
}

impl Change {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Change::Create => "create",
            Change::Replace => "replace",
            Change::WriteInPlace => "write_in_place",
            Change::Link => "link",
            Change::Attributes => "attributes",
            Change::Remove => "remove",
        }
    }
}

/// What came of a restore.
#[derive(Debug, Default)]
pub struct Answer {
    /// What is to be done, or was, in the order of the paths.
    pub changes: Vec<(Vec<u8>, Change)>,
    /// Targets at neither of their states, with what is there.
    pub conflicts: Vec<(Vec<u8>, String)>,
    /// Paths that can't be put back.
    pub obstacles: Vec<(Vec<u8>, Obstacle)>,
    /// Paths whose content can't be had.
    pub unavailable: Vec<(Vec<u8>, Unavailable)>,
    /// Targets that are left as they are.
    pub left: Vec<(Vec<u8>, Left)>,
    /// What could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
    /// How many targets were at the state already.
    pub at_goal: usize,
    /// Where what was overwritten is kept.
    pub rescues: Vec<PathBuf>,
    /// Whether a restore that was killed was completed.
    pub completed: bool,
    /// Whether the changes were made.
    pub applied: bool,
    /// Whether they are not made, or would not be, for what stands in the way.
    pub is_refused: bool,
    /// Whether conflicts are in the way, and not to be overwritten.
    pub has_blocking_conflicts: bool,
}

impl Answer {
    /// Whether the state was put back whole, or will be.
    pub fn is_whole(&self) -> bool {
        !self.is_refused && self.left.is_empty()
    }
}

/// The outcome that `plan` will have when it is carried out.
pub fn answer(request: &Request, plan: &Plan, unavailable: Vec<(Vec<u8>, Unavailable)>) -> Answer {
    let looked = |index: usize| request.looks.get(&index).and_then(|look| look.as_ref().ok());
    let change = |index: usize, action: &Action| match action {
        Action::File { in_place: true, .. } => Change::WriteInPlace,
        Action::File { .. } | Action::Node => match looked(index).and_then(|look| look.live.as_ref()) {
            None => Change::Create,
            Some(_) => Change::Replace,
        },
        Action::Link { .. } => Change::Link,
        Action::Attributes(_) => Change::Attributes,
        Action::Remove => Change::Remove,
    };
    let path = |index: usize| request.files[index].path.clone();
    let conflict = |index: &usize| {
        let live = looked(*index).and_then(|look| look.live.as_ref());
        (path(*index), live.map_or_else(|| "nothing is there now".to_owned(), describe))
    };
    Answer {
        changes: plan
            .steps
            .iter()
            .map(|step| (path(step.record), change(step.record, &step.action)))
            .collect(),
        conflicts: plan.conflicts.iter().map(conflict).collect(),
        obstacles: plan.obstacles.clone(),
        unavailable,
        left: plan.left.clone(),
        at_goal: plan.at_goal,
        ..Answer::default()
    }
}

/// What is there, in a few words.
fn describe(live: &Present) -> String {
    let name = live.file_type.name().replace('_', " ");
    let bits = live.mode & 0o7777;
    match (&live.target, live.file_type) {
        (Some(target), _) => format!("a symlink to {} is there now", printable(target)),
        (_, FileType::File) => format!("a file of {} bytes with mode {bits:04o} is there now", live.size),
        _ => format!("a {name} with mode {bits:04o} is there now"),
    }
}
