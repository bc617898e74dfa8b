//! Hard links: names that were one file become one again, and names that were not become files of their own.

use super::{Action, Planner};
use crate::restore::targets::Links;
use crate::snapshot::FileType;

impl Planner<'_> {
    /// Makes one file again of the names that were one, and files of their own of those that were not.
    pub(super) fn link(&mut self) {
        let [goal_links, other_links] = self.request.links;
        // First, so that of several names that leave a file together one leads and the others follow it.
        for &index in self.request.targets {
            self.separate(index);
        }
        for members in goal_links.groups() {
            self.link_group(members, other_links);
        }
    }

    fn link_group(&mut self, members: &[usize], other_links: &Links) {
        let is_relinked = |index: &usize| other_links.names(*index) != members;
        let persists = |planner: &Planner, index: usize| {
            let look = planner.look(index)?;
            let live = look.live.as_ref()?;
            let stays = match planner.steps.get(&index) {
                None => look.at_goal,
                Some(Action::Attributes(_) | Action::File { in_place: true, .. }) => true,
                Some(_) => false,
            };
            let goal = planner.goal(index)?;
            stays.then_some((index, (live.dev, live.ino), (goal.dev, goal.ino) == (live.dev, live.ino)))
        };
        let lasting: Vec<_> = members.iter().filter_map(|index| persists(self, *index)).collect();
        // The file that it was, if it is still there; else any that is as it should be.
        let found = lasting.iter().find(|(.., same)| *same).or(lasting.first()).copied();
        let new = || {
            members.iter().copied().find(|index| matches!(self.steps.get(index), Some(Action::File { .. })))
        };
        let Some((leader, inode)) =
            found.map(|(index, inode, _)| (index, Some(inode))).or(new().map(|index| (index, None)))
        else {
            return;
        };
        for &index in members.iter().filter(|index| **index != leader) {
            let is_target = self.request.targets.binary_search(&index).is_ok();
            let live = self.look(index).and_then(|look| look.live.as_ref());
            let is_linked = inode.is_some() && live.map(|live| (live.dev, live.ino)) == inode;
            match self.steps.get(&index) {
                // What is written under one name is written under all.
                Some(Action::File { .. } | Action::Attributes(_)) if is_linked => {
                    self.steps.remove(&index);
                }
                Some(Action::File { .. }) => {
                    self.steps.insert(index, Action::Link { to: leader });
                }
                Some(Action::Attributes(_)) | None
                    if is_target && !is_linked && live.is_some() && is_relinked(&index) =>
                {
                    self.steps.insert(index, Action::Link { to: leader });
                }
                _ => {}
            }
        }
    }

    /// Makes a file of its own of a target that the command made a name of another one.
    fn separate(&mut self, index: usize) {
        let [goal_links, other_links] = self.request.links;
        let (names, others) = (goal_links.names(index), other_links.names(index));
        if !matches!(self.steps.get(&index), None | Some(Action::Attributes(_))) || names == others {
            return;
        }
        let inode = |index: usize| {
            let live = self.look(index)?.live.as_ref().filter(|live| live.file_type == FileType::File)?;
            Some((live.dev, live.ino))
        };
        let Some(own) = inode(index) else { return };
        let goal = |index: usize| self.goal(index).map(|goal| (goal.dev, goal.ino));
        // The one that keeps its file is that which had it.
        let is_foreign = |other: &usize| {
            *other != index
                && !names.contains(other)
                && inode(*other) == Some(own)
                && goal(*other) == Some(own)
        };
        let is_kept = self.look(index).is_some_and(|look| look.same_content);
        if is_kept && others.iter().any(is_foreign) {
            self.steps.insert(index, Action::File { in_place: false, own_content: true });
        }
    }
}
