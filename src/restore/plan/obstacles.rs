//! Obstacles to a step: a missing or unwritable directory, inode flags, mounts, owners.

use super::{Action, Obstacle, Planner};
use crate::restore::flags;
use crate::restore::inspect::{Inspection, NameAccess, ParentState};
use crate::restore::root::parent;
use crate::snapshot::FileRecord;
use crate::snapshot::FileType;

impl Planner<'_> {
    /// Plans the parent directories of everything that is made.
    pub(super) fn make_parents(&mut self) {
        let made = |action: &Action| !matches!(action, Action::Attributes(_) | Action::Remove);
        let indices: Vec<usize> =
            self.steps.iter().filter(|(_, action)| made(action)).map(|(index, _)| *index).collect();
        for index in indices {
            match self.inspect(index).map(|inspection| &inspection.parent) {
                Some(ParentState::Missing(missing)) => {
                    for directory in missing.clone() {
                        self.make_parent(directory);
                    }
                }
                Some(ParentState::Blocked) if !self.has_new_directory_above(index) => {
                    self.obstruct(index, Obstacle::NoDirectory);
                }
                _ => {}
            }
        }
    }

    fn make_parent(&mut self, directory: Vec<u8>) {
        let files = self.input.files;
        let found = FileRecord::find(files, &directory);
        match found {
            Some(index) if matches!(self.steps.get(&index), Some(Action::Node)) => {}
            // The command did not remove it, but it was there.
            Some(index)
                if self.wanted(index).is_some_and(|wanted| wanted.file_type == FileType::Directory) =>
            {
                self.steps.insert(index, Action::Node);
            }
            _ => {
                self.plan.parents.insert(directory);
            }
        }
    }

    fn has_new_directory_above(&self, index: usize) -> bool {
        let path = &self.record(index).path;
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        slashes.skip(1).any(|slash| {
            FileRecord::find(self.input.files, &path[..slash]).is_some_and(|above| {
                self.steps.get(&above) == Some(&Action::Node)
                    && self.wanted(above).is_some_and(|wanted| wanted.file_type == FileType::Directory)
            })
        })
    }

    pub(super) fn find_obstacles(&mut self) {
        let steps: Vec<_> = self.steps.iter().map(|(index, action)| (*index, action.clone())).collect();
        for (index, action) in steps {
            let Some(inspection) = self.inspect(index) else { continue };
            if let Some(obstacle) = self.obstacle(index, &action, inspection) {
                self.obstruct(index, obstacle);
            }
        }
    }

    /// Whether the command set the flags that forbid changes, or they were there all the time, and the
    /// user may clear them.
    fn may_unlock(&self, index: usize) -> bool {
        let policy = self.input.policy;
        policy.privileges && policy.user.is_root() && self.other(index).is_some_and(flags::is_locked)
    }

    fn obstacle(&mut self, index: usize, action: &Action, inspection: &Inspection) -> Option<Obstacle> {
        let user = &self.input.policy.user;
        let is_owner = inspection.live.as_ref().is_none_or(|live| user.is_root() || live.uid == user.uid);
        if inspection.immutable {
            if !self.may_unlock(index) {
                return Some(Obstacle::Immutable);
            }
            self.plan.clear_flags.insert(self.path(index));
        }
        match action {
            // What else the plan gives to another user's file does not need its owner.
            Action::Attributes(changes) if changes.permissions.is_none() => return None,
            Action::Attributes(_) | Action::File { in_place: true, .. } => {
                return (!is_owner).then_some(Obstacle::Foreign);
            }
            _ => {}
        }
        if inspection.mount {
            return Some(Obstacle::Mount);
        }
        match &inspection.parent {
            ParentState::Exists { access: NameAccess::Denied(why), .. } => {
                Some(Obstacle::Directory(why.clone()))
            }
            ParentState::Exists { sticky: Some(owner), .. }
                if !is_owner && !user.is_root() && *owner != user.uid =>
            {
                Some(Obstacle::Sticky)
            }
            ParentState::Exists { access: NameAccess::OwnerMayAllow, .. } => {
                let parent = parent(&self.record(index).path);
                self.plan.make_writable.insert(parent.to_vec());
                None
            }
            ParentState::Exists { access: NameAccess::LockedByFlags, .. } => {
                let parent = parent(&self.record(index).path);
                let found = FileRecord::find(self.input.files, parent);
                if !found.is_some_and(|parent| self.may_unlock(parent)) {
                    return Some(Obstacle::Directory(
                        "the directory is immutable or append-only (chattr)".to_owned(),
                    ));
                }
                self.plan.clear_flags.insert(parent.to_vec());
                None
            }
            _ => None,
        }
    }
}
