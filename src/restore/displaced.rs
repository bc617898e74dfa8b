//! Files that the command gave another name, where their own path is left as it is: they keep the name that they have now, which
//! is their only one.
//!
//! Neighbours: `run.rs` takes these out of the plan; `snapshot::net` ties the names of a file where paths are chosen.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::plan::{Action, PlanInput, RestorePlan, Step};
use super::root::Root;
use super::targets::opposite;
use crate::snapshot::FileRecord;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{are_known_to_differ, content_id, state};
use crate::snapshot::net::renames;

/// Where files belong in the wanted state, by their device and inode numbers.
pub struct DisplacedFiles<'a> {
    homes: HashMap<(u64, u64), Vec<usize>>,
    wanted: Side,
    root: &'a Root,
}

impl<'a> DisplacedFiles<'a> {
    /// The files of these records.
    pub fn of(files: &[FileRecord], wanted: Side, root: &'a Root) -> DisplacedFiles<'a> {
        let mut homes: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, record) in files.iter().enumerate() {
            if let Some(file) = identity(record, wanted) {
                homes.entry(file).or_default().push(index);
            }
        }
        DisplacedFiles { homes, wanted, root }
    }

    /// The targets that are the last name of a file which belongs elsewhere, and which the plan would take from it; with the
    /// path where it belongs, which is no target. As indices of records.
    pub fn find(&self, input: &PlanInput, plan: &RestorePlan) -> BTreeMap<usize, usize> {
        let targets: HashSet<usize> = input.targets.iter().copied().collect();
        let takes_the_name = |step: &&Step| !matches!(step.action, Action::Attributes(_));
        let steps = plan.steps.iter().filter(takes_the_name);
        steps.filter_map(|step| Some((step.record, self.home(step.record, input, &targets)?))).collect()
    }

    fn home(&self, index: usize, input: &PlanInput, targets: &HashSet<usize>) -> Option<usize> {
        let (record, other) = (&input.files[index], opposite(self.wanted));
        let file = identity(record, other)?;
        let is_there = input.inspections.get(&index)?.as_ref().is_ok_and(|inspection| inspection.at_other);
        if !is_there || identity(record, self.wanted) == Some(file) {
            return None;
        }
        let homes = self.homes.get(&file)?;
        let content = content_id(record, other);
        // The inode number may be that of another file since; a file that was renamed may have been changed, too.
        let is_same = |home: &&usize| {
            let home = &input.files[**home];
            are_renamed(record, home) || !are_known_to_differ(&content, &content_id(home, self.wanted))
        };
        let has_other_name =
            |home: &usize| targets.contains(home) || self.is_at(&input.files[*home].path, file);
        let home = *homes.iter().find(is_same)?;
        (!homes.iter().any(has_other_name)).then_some(home)
    }

    /// Whether the file is at `path` now.
    fn is_at(&self, path: &[u8], file: (u64, u64)) -> bool {
        let found = self.root.dentry(path).ok().flatten().and_then(|dentry| dentry.stat().ok().flatten());
        found.is_some_and(|stat| (stat.st_dev, stat.st_ino) == file)
    }
}

/// Whether one of two paths became the other by a rename.
fn are_renamed(one: &FileRecord, other: &FileRecord) -> bool {
    let mut renames = renames(one).chain(renames(other));
    renames.any(|[from, to]| [(&from, &to), (&to, &from)].contains(&(&one.path, &other.path)))
}

fn identity(record: &FileRecord, side: Side) -> Option<(u64, u64)> {
    state(record, side).present()?.linkable_identity()
}
