//! What stands in the way of a step: a directory that is missing or can't be changed, flags, mounts, owners.

use super::{Action, Obstacle, Planner};
use crate::restore::flags;
use crate::restore::look::{Above, Access, Look};
use crate::restore::place::parent;
use crate::snapshot::FileType;

impl Planner<'_> {
    /// Sees that each path that is made has a directory to be made in.
    pub(super) fn make_parents(&mut self) {
        let made =
            |action: &Action| matches!(action, Action::File { .. } | Action::Link { .. } | Action::Node);
        let indices: Vec<usize> =
            self.steps.iter().filter(|(_, action)| made(action)).map(|(index, _)| *index).collect();
        for index in indices {
            match self.look(index).map(|look| &look.parent) {
                Some(Above::Missing(missing)) => {
                    for directory in missing.clone() {
                        self.make_parent(directory);
                    }
                }
                Some(Above::Blocked) if !self.has_new_directory_above(index) => {
                    self.obstruct(index, Obstacle::NoDirectory);
                }
                _ => {}
            }
        }
    }

    fn make_parent(&mut self, directory: Vec<u8>) {
        let files = self.request.files;
        let found = files.binary_search_by(|record| record.path.cmp(&directory)).ok();
        match found {
            Some(index) if matches!(self.steps.get(&index), Some(Action::Node)) => {}
            // Not of the command's doing that it is missing, but this is how it was.
            Some(index) if self.goal(index).is_some_and(|goal| goal.file_type == FileType::Directory) => {
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
            let above =
                self.request.files.binary_search_by(|record| record.path.as_slice().cmp(&path[..slash]));
            above.is_ok_and(|above| {
                self.steps.get(&above) == Some(&Action::Node)
                    && self.goal(above).is_some_and(|goal| goal.file_type == FileType::Directory)
            })
        })
    }

    pub(super) fn find_obstacles(&mut self) {
        let steps: Vec<_> = self.steps.iter().map(|(index, action)| (*index, action.clone())).collect();
        for (index, action) in steps {
            let Some(look) = self.look(index) else { continue };
            if let Some(obstacle) = self.obstacle(index, &action, look) {
                self.obstruct(index, obstacle);
            }
        }
    }

    /// Whether the flags that forbid changes are of the command's doing, or were there all the time, and
    /// may be cleared.
    fn may_unlock(&self, index: usize) -> bool {
        let policy = self.request.policy;
        policy.privileges && policy.user.is_root() && self.other(index).is_some_and(flags::is_locked)
    }

    fn obstacle(&mut self, index: usize, action: &Action, look: &Look) -> Option<Obstacle> {
        let user = &self.request.policy.user;
        let is_owner = look.live.as_ref().is_none_or(|live| user.is_root() || live.uid == user.uid);
        if look.immutable {
            if !self.may_unlock(index) {
                return Some(Obstacle::Immutable);
            }
            self.plan.unlock.insert(self.path(index));
        }
        if let Action::Attributes(_) | Action::File { in_place: true, .. } = action {
            return (!is_owner).then_some(Obstacle::Foreign);
        }
        if look.mount {
            return Some(Obstacle::Mount);
        }
        match &look.parent {
            Above::Here { access: Access::No(why), .. } => Some(Obstacle::Directory(why.clone())),
            Above::Here { sticky: Some(owner), .. } if !is_owner && !user.is_root() && *owner != user.uid => {
                Some(Obstacle::Sticky)
            }
            Above::Here { access: Access::Loosen, .. } => {
                let parent = parent(&self.record(index).path);
                self.plan.loosen.insert(parent.to_vec());
                None
            }
            Above::Here { access: Access::Locked, .. } => {
                let parent = parent(&self.record(index).path);
                let found = self.request.files.binary_search_by(|record| record.path.as_slice().cmp(parent));
                if !found.is_ok_and(|parent| self.may_unlock(parent)) {
                    return Some(Obstacle::Directory(
                        "the directory is immutable or append-only (chattr)".to_owned(),
                    ));
                }
                self.plan.unlock.insert(parent.to_vec());
                None
            }
            _ => None,
        }
    }
}
