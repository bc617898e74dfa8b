//! Hard links: names that were one file are to be one again, names that were not get files of their own, and a file that
//! was renamed gets its old name back.

use std::collections::HashMap;

use super::{Action, Planner, is_kept};
use crate::restore::inspect::ParentState;
use crate::restore::targets::{HardLinks, opposite};
use crate::snapshot::compare::{LinkedFile, content_id, state};
use crate::snapshot::{FileType, Present};

impl Planner<'_> {
    /// Joins the names that were one file, and separates those that were not.
    pub(super) fn join_and_separate(&mut self) {
        let [wanted_hard_links, other_hard_links] = self.input.hard_links;
        // First, so that of several names that leave a file together one leads and the others follow it.
        let made = |(index, action): (&usize, &Action)| {
            let is_made = matches!(action, Action::File { in_place: false, .. } | Action::Node);
            Some((LinkedFile::of_any(self.wanted(*index).filter(|_| is_made)?)?, *index))
        };
        let made: HashMap<LinkedFile, usize> = self.steps.iter().filter_map(made).collect();
        for &index in self.input.targets {
            self.separate(index, &made);
        }
        for &index in self.input.targets {
            self.leave_shared_file(index);
        }
        for members in wanted_hard_links.groups() {
            self.join_group(members, other_hard_links);
        }
    }

    fn join_group(&mut self, members: &[usize], other_hard_links: &HardLinks) {
        let is_relinked = |index: &usize| other_hard_links.names(*index) != members;
        let persists = |planner: &Planner, index: usize| {
            let inspection = planner.inspect(index)?;
            let live = inspection.live.as_ref()?;
            let stays = match planner.steps.get(&index) {
                None => inspection.at_wanted,
                Some(Action::Attributes(_) | Action::File { in_place: true, .. }) => true,
                Some(_) => false,
            };
            let wanted = planner.wanted(index)?;
            stays.then_some((index, live.identity(), wanted.identity() == live.identity()))
        };
        let lasting: Vec<_> = members.iter().filter_map(|index| persists(self, *index)).collect();
        // The original file, if it is still there, or else any file at the wanted state.
        let found = lasting.iter().find(|(.., same)| *same).or(lasting.first()).copied();
        let new = || {
            let is_new =
                |index: &usize| matches!(self.steps.get(index), Some(Action::File { .. } | Action::Node));
            members.iter().copied().find(is_new)
        };
        // Of its names the one whose record tells most of what is to be changed.
        let leads = |inode| {
            let of_it = lasting.iter().filter(move |(_, other, _)| *other == inode).map(|(index, ..)| *index);
            of_it.min_by_key(|index| match self.steps.get(index) {
                Some(Action::File { .. }) => 0,
                Some(_) => 1,
                None => 2,
            })
        };
        let found = found.and_then(|(_, inode, _)| Some((leads(inode)?, Some(inode))));
        let Some((leader, inode)) = found.or(new().map(|index| (index, None))) else {
            return;
        };
        for &index in members.iter().filter(|index| **index != leader) {
            let is_target = self.input.targets.binary_search(&index).is_ok();
            let live = self.inspect(index).and_then(|inspection| inspection.live.as_ref());
            let is_linked = inode.is_some() && live.map(|live| live.identity()) == inode;
            match self.steps.get(&index) {
                // It leaves the file that the leader stays a name of.
                Some(Action::File { own_content: true, .. } | Action::Node) if is_linked => {}
                // What is written through one name is written for all.
                Some(Action::File { .. } | Action::Attributes(_)) if is_linked => {
                    let step = self.steps.remove(&index);
                    if let (Some(Action::Attributes(own)), Some(Action::Attributes(all))) =
                        (step, self.steps.get_mut(&leader))
                    {
                        all.add(own);
                    }
                }
                Some(Action::File { .. } | Action::Node) => {
                    self.steps.insert(index, Action::HardLink { to: leader });
                }
                Some(Action::Attributes(_)) | None
                    if is_target && !is_linked && live.is_some() && is_relinked(&index) =>
                {
                    self.steps.insert(index, Action::HardLink { to: leader });
                }
                _ => {}
            }
        }
    }

    /// Gives a target a file of its own if the command made it a hard link to another one, which may be one of those
    /// that are to be `made`.
    fn separate(&mut self, index: usize, made: &HashMap<LinkedFile, usize>) {
        let [wanted_hard_links, other_hard_links] = self.input.hard_links;
        let (names, others) = (wanted_hard_links.names(index), other_hard_links.names(index));
        let live = self.inspect(index).and_then(|inspection| inspection.live.as_ref());
        let returns = live.and_then(LinkedFile::of_any).and_then(|file| made.get(&file));
        let is_taken = returns.is_some_and(|other| !names.contains(other));
        if !matches!(self.steps.get(&index), None | Some(Action::Attributes(_)))
            || names == others && !is_taken
        {
            return;
        }
        let inode = |index: usize| self.inspect(index)?.live.as_ref()?.linkable_identity();
        let (Some(own), Some(wanted_here)) = (inode(index), self.wanted(index)) else { return };
        let wanted = |index: usize| self.wanted(index).map(|wanted| wanted.identity());
        // The name that had the file before keeps it, or if none had it, the first one that stays.
        let sharing = || others.iter().copied().filter(|other| inode(*other) == Some(own));
        let stays = |other: &usize| {
            wanted(*other).is_some() && matches!(self.steps.get(other), None | Some(Action::Attributes(_)))
        };
        let keeper = sharing().find(|other| wanted(*other) == Some(own)).or_else(|| sharing().find(stays));
        let is_kept_by_another = keeper.is_some_and(|keeper| keeper != index && !names.contains(&keeper));
        let is_kept = self.inspect(index).is_some_and(|inspection| {
            inspection.live.as_ref().is_some_and(|live| is_kept(wanted_here, live, inspection))
        });
        if !is_kept || !is_taken && !is_kept_by_another {
            return;
        }
        match wanted_here.file_type {
            FileType::File => {
                self.steps.insert(index, Action::File { in_place: false, own_content: true });
            }
            _ => self.make_node(index, wanted_here),
        }
    }

    /// Has a target written to a new file if another name stays on the file that both share now, though they are to be
    /// different files.
    fn leave_shared_file(&mut self, index: usize) {
        let [wanted_hard_links, other_hard_links] = self.input.hard_links;
        let inode = |index: usize| self.inspect(index)?.live.as_ref().map(|live| live.identity());
        let stays = |other: &usize| {
            !wanted_hard_links.names(index).contains(other)
                && inode(*other) == inode(index)
                && matches!(self.steps.get(other), None | Some(Action::Attributes(_)))
        };
        if matches!(self.steps.get(&index), Some(Action::File { in_place: true, .. }))
            && !self.inspect(index).is_some_and(|inspection| inspection.mount)
            && other_hard_links.names(index).iter().any(stays)
        {
            self.steps.insert(index, Action::File { in_place: false, own_content: false });
        }
    }

    /// Has files that lose another name take their old one, instead of copies of them: so they keep the hard links that
    /// the snapshot does not know, and FIFOs and sockets the programs at their other end.
    pub(super) fn return_files(&mut self) {
        let leaves = |(index, action): (&usize, &Action)| {
            let inspection = self.inspect(*index).filter(|inspection| inspection.at_other)?;
            let live = inspection.live.as_ref().filter(|_| !inspection.mount)?;
            let leaves = match action {
                Action::Remove | Action::HardLink { .. } | Action::Node => true,
                Action::File { in_place, .. } => !in_place,
                Action::Return { .. } | Action::Attributes(_) => false,
            };
            // Whoever writes to a FIFO changes its time.
            let at = match live.file_type {
                FileType::File => live,
                _ => self.other(*index).filter(|other| other.identity() == live.identity())?,
            };
            leaves.then_some((LinkedFile::of_any(at)?, *index))
        };
        let mut leaving: HashMap<LinkedFile, usize> = self.steps.iter().filter_map(leaves).collect();
        let attributes =
            |at: &Present| (at.uid, at.gid, self.input.policy.permissions(at), at.xattrs.clone());
        let content = |index: usize, side| {
            let at = state(self.record(index), side).present()?;
            let id = content_id(self.record(index), side);
            let is_known = at.file_type != FileType::File || at.size == 0 || id.is_some();
            is_known.then(|| (at.size, id, at.target.clone(), at.rdev))
        };
        let mut returned = Vec::new();
        for (index, action) in &self.steps {
            let is_made =
                matches!(action, Action::File { in_place: false, own_content: false } | Action::Node);
            let Some(wanted) = self.wanted(*index).filter(|_| is_made) else { continue };
            let Some((file, from)) =
                LinkedFile::of_any(wanted).and_then(|file| Some((file, *leaving.get(&file)?)))
            else {
                continue;
            };
            let (Some(left), Some(live)) =
                (self.other(from), self.inspect(from).and_then(|inspection| inspection.live.as_ref()))
            else {
                continue;
            };
            // An owner or extended attribute that somebody else has changed since stays. A file of somebody else's may get no
            // other link (proc_sys_fs(5), protected_hardlinks).
            let may_link = self.input.policy.user.is_root() || live.uid == left.uid;
            let found = content(from, opposite(self.input.wanted));
            // What takes its other name comes after it, and may come before the directory that it is to be in.
            let comes_first = self.steps.get(&from) == Some(&Action::Remove)
                || self.inspect(*index).is_some_and(|at| matches!(at.parent, ParentState::Exists { .. }));
            let is_same = found.is_some()
                && content(*index, self.input.wanted) == found
                && attributes(left) == attributes(wanted)
                && live.inode_flags == wanted.inode_flags
                && may_link
                && self.input.policy.permissions(wanted) == wanted.mode & 0o7777
                && !self.input.replaced.contains_key(index);
            if comes_first && is_same {
                // Other names of it are hard links to this one.
                leaving.remove(&file);
                returned.push((*index, Action::Return { from }));
            }
        }
        self.steps.extend(returned);
    }
}
