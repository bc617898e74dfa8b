//! Attributes: of what was made, of what stays, and last those of directories and inode flags.

use std::collections::BTreeMap;
use std::io;

use super::Worker;
use crate::restore::disk::open_directory;
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::flags;
use crate::restore::journal::Entry;
use crate::restore::make::{self, Attributes, Shortfall, Xattrs};
use crate::restore::place::{Handle, Spot};
use crate::restore::plan::{Action, Step, touched};
use crate::restore::targets::opposite;
use crate::snapshot::FileType;
use crate::snapshot::compare::state;

impl Worker<'_, '_, '_> {
    /// Gives all attributes of the goal to a new node.
    pub(super) fn give_all(&mut self, record: usize, at: &Spot, held: &Handle) -> Result<(), Error> {
        let policy = self.job.request.policy;
        let Some(goal) = self.goal(record) else { return Ok(()) };
        let mut attributes = Attributes::all(goal, policy);
        if policy.ownership && goal.file_type != FileType::Symlink {
            let lists = make::inherited_lists(at, goal)
                .map_err(failed_at("read the attributes of", self.path(record)));
            attributes.xattrs.extend(lists?);
        }
        self.give_to(record, &attributes, held)
    }

    /// The extended attributes that a file which stays has from the other state and that the goal has not.
    pub(super) fn surplus(&self, record: usize) -> Xattrs {
        let request = self.job.request;
        let other = state(&request.files[record], opposite(request.goal)).present();
        let (Some(goal), Some(other), Some(live)) = (self.goal(record), other, self.looked(record)) else {
            return Xattrs::new();
        };
        let is_surplus = |name: &Vec<u8>| {
            !goal.xattrs.contains_key(name)
                && live.xattrs.get(name) == other.xattrs.get(name)
                && request.policy.allows(name)
                && request.policy.user.may_set(name)
        };
        other.xattrs.keys().filter(|name| is_surplus(name)).map(|name| (name.clone(), None)).collect()
    }

    pub(super) fn give_to(
        &mut self,
        record: usize,
        attributes: &Attributes,
        held: &Handle,
    ) -> Result<(), Error> {
        let path = self.path(record).to_vec();
        let refused = failed_at("set the attributes of", &path);
        let shortfalls = self.give_xattrs_of_shut(record, attributes, held).map_err(refused)?;
        self.done.shortfalls.extend(shortfalls.into_iter().map(|one| (path.clone(), one)));
        Ok(())
    }

    /// Gives attributes; a file of our own that may not be written is opened while it gets those that need
    /// that (xattr(7)).
    pub(super) fn give_xattrs_of_shut(
        &mut self,
        record: usize,
        attributes: &Attributes,
        held: &Handle,
    ) -> io::Result<Vec<Shortfall>> {
        let user = &self.job.request.policy.user;
        let (of_user, rest): (Vec<_>, Vec<_>) =
            attributes.xattrs.iter().cloned().partition(|(name, _)| name.starts_with(b"user."));
        let (mode, owner) = (held.stat().st_mode, held.stat().st_uid);
        if of_user.is_empty() || mode & libc::S_IWUSR != 0 || user.is_root() || owner != user.uid {
            return attributes.give(held);
        }
        let spot = self.spot(record).map_err(io::Error::other)?;
        let again = spot.hold()?.filter(|again| again.inode() == held.inode());
        let first = Attributes { xattrs: of_user, ..Attributes::default() };
        let path = self.path(record).to_vec();
        let again = again.ok_or(io::ErrorKind::NotFound)?;
        let mut shortfalls = self.loosener.for_a_moment(&path, again, 0o600, |held| first.give(held))?;
        shortfalls.append(&mut Attributes { xattrs: rest, ..attributes.clone() }.give(held)?);
        Ok(shortfalls)
    }

    /// Gives attributes to what is at the path of `record`.
    pub(super) fn give(&mut self, record: usize, attributes: &Attributes) -> Result<(), Error> {
        let spot = self.spot(record)?;
        let held = self.hold(record, &spot)?;
        let now = held.present().map_err(failed_at("look at", self.path(record)))?;
        if !self.is_as_looked(record, &now) {
            return Err(self.changed_meanwhile(record));
        }
        self.own_changes.insert(held.inode());
        self.give_journaled(record, attributes, &held)
    }

    /// Gives attributes to what was there before, or takes them back at the next run.
    pub(super) fn give_journaled(
        &mut self,
        record: usize,
        attributes: &Attributes,
        held: &Handle,
    ) -> Result<(), Error> {
        let path = self.path(record).to_vec();
        self.tell(&Entry::Attributes { path: path.clone(), inode: held.inode() })?;
        self.give_to(record, attributes, held)?;
        self.tell(&Entry::Done { path })
    }

    /// Gives directories their attributes and times, the deepest first.
    pub(super) fn finish_directories(&mut self) -> Result<(), Error> {
        let job = self.job;
        for path in touched(job.request, job.plan).iter().rev() {
            let directory = open_directory(job.place, path).map_err(failed_at("open", path))?;
            directory
                .into_iter()
                .try_for_each(|one| self.unsynced.add(one))
                .map_err(failed_at("stat", path))?;
        }
        self.unsynced.flush().map_err(failed("sync directories"))?;
        let mut work: BTreeMap<&[u8], Option<&Step>> =
            job.times.keys().map(|path| (path.as_slice(), None)).collect();
        for step in &job.plan.steps {
            let is_directory = self.is_goal_directory(step.record)
                && matches!(step.action, Action::Node | Action::Attributes(_));
            if is_directory {
                work.insert(self.path(step.record), Some(step));
            }
        }
        let work: Vec<_> = work.into_iter().map(|(path, step)| (path.to_vec(), step)).collect();
        for (path, step) in work.into_iter().rev() {
            let Some(spot) = job.place.spot(&path).map_err(failed_at("open the directory of", &path))? else {
                continue;
            };
            let Some(held) = spot.hold().map_err(failed_at("open", &path))? else { continue };
            if step.is_some() {
                self.loosener.close_beneath(&path).map_err(failed_at("change back modes in", &path))?;
            }
            let is_final = match step {
                Some(Step { record, action: Action::Attributes(attributes) }) => {
                    self.give_journaled(*record, attributes, &held)?;
                    self.changed();
                    attributes.permissions.is_some()
                }
                Some(Step { record, .. }) => {
                    self.give_all(*record, &spot, &held)?;
                    self.tell(&Entry::Done { path: path.clone() })?;
                    true
                }
                None => false,
            };
            if is_final {
                self.loosener.forget(&path).map_err(failed("write the journal of the restore"))?;
            }
            if let Some(mtime) = job.times.get(&path) {
                let attributes = Attributes { mtime: Some(*mtime), ..Attributes::default() };
                attributes.give(&held).map_err(failed_at("set the time of", &path))?;
            }
        }
        Ok(())
    }

    /// Gives inode flags, after all that they could forbid.
    pub(super) fn give_flags(&mut self) -> Result<(), Error> {
        let job = self.job;
        let mut forgotten = Vec::new();
        for step in job.plan.steps.iter().rev() {
            let path = self.path(step.record).to_vec();
            let wanted = match (&step.action, self.goal(step.record)) {
                (Action::Attributes(attributes), _) => attributes.flags.as_ref(),
                (Action::File { .. } | Action::Link { .. } | Action::Node, Some(goal))
                    if job.request.policy.privileges && flags::has_flags(goal.file_type) =>
                {
                    let has_some = self.looked(step.record).is_some_and(|live| !live.inode_flags.is_empty());
                    Some(&goal.inode_flags).filter(|flags| has_some || !flags.is_empty())
                }
                _ => None,
            };
            let wanted = wanted.cloned();
            if wanted.is_some() || step.action == Action::Remove {
                forgotten.push(path.clone());
            }
            let Some(wanted) = wanted else { continue };
            let held = self.spot(step.record)?.hold().map_err(failed_at("open", &path))?;
            if held.is_some_and(|held| flags::give(&held, &wanted).is_err()) {
                let names: Vec<_> = wanted.iter().map(|flag| format!("{flag:?}").to_lowercase()).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                self.done.shortfalls.push((path, Shortfall::Flags(names)));
            }
        }
        // Last, so that whoever completes this finds the flags that were there or those that are to be.
        forgotten.iter().try_for_each(|path| {
            self.loosener.forget_lock(path).map_err(failed("write the journal of the restore"))
        })
    }
}
