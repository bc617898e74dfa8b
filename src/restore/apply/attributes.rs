//! Attributes: those of new nodes, of files that stay, and last those of directories and inode flags.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::Applier;
use crate::restore::disk::open_directory;
use crate::restore::error::{Error, failed, failed_at};
use crate::restore::flags;
use crate::restore::journal::{JournalEntry, PathText};
use crate::restore::node::{self, AttributeChanges, Shortfall, XattrChanges};
use crate::restore::plan::{Action, Step, touched};
use crate::restore::root::{Dentry, Handle, parent};
use crate::restore::targets::opposite;
use crate::snapshot::compare::state;
use crate::snapshot::{FileRecord, InodeFlag};

impl Applier<'_, '_, '_> {
    /// Gives a new node all attributes of the wanted state.
    pub(super) fn give_all(&mut self, record: usize, at: &Dentry, handle: &Handle) -> Result<(), Error> {
        let Some(wanted) = self.wanted(record) else { return Ok(()) };
        let attributes = node::attributes_of_new(wanted, self.context.input.policy, at)
            .map_err(failed_at("read the attributes of", self.path(record)))?;
        self.give_to(record, &attributes, handle)
    }

    /// The extended attributes that a file which stays has from the other state, and that the wanted
    /// state has not.
    pub(super) fn surplus(&self, record: usize) -> XattrChanges {
        let input = self.context.input;
        let other = state(&input.files[record], opposite(input.wanted)).present();
        let (Some(wanted), Some(other), Some(live)) = (self.wanted(record), other, self.inspected(record))
        else {
            return XattrChanges::new();
        };
        let is_surplus = |name: &Vec<u8>| {
            !wanted.xattrs.contains_key(name)
                && live.xattrs.get(name) == other.xattrs.get(name)
                && input.policy.allows(name)
                && input.policy.user.may_set(name)
        };
        other.xattrs.keys().filter(|name| is_surplus(name)).map(|name| (name.clone(), None)).collect()
    }

    pub(super) fn give_to(
        &mut self,
        record: usize,
        attributes: &AttributeChanges,
        handle: &Handle,
    ) -> Result<(), Error> {
        let path = self.path(record).to_vec();
        let refused = failed_at("set the attributes of", &path);
        let shortfalls = self.give_with_write_access(record, attributes, handle).map_err(refused)?;
        self.done.shortfalls.extend(shortfalls.into_iter().map(|one| (path.clone(), one)));
        Ok(())
    }

    /// Gives attributes; an unwritable file of the user's is made writable while it gets those that need
    /// write permission (xattr(7)).
    pub(super) fn give_with_write_access(
        &mut self,
        record: usize,
        attributes: &AttributeChanges,
        handle: &Handle,
    ) -> io::Result<Vec<Shortfall>> {
        let user = &self.context.input.policy.user;
        let (of_user, rest): (Vec<_>, Vec<_>) =
            attributes.xattrs.iter().cloned().partition(|(name, _)| name.starts_with(b"user."));
        let (mode, owner) = (handle.stat().st_mode, handle.stat().st_uid);
        if of_user.is_empty() || mode & libc::S_IWUSR != 0 || user.is_root() || owner != user.uid {
            return attributes.give(handle);
        }
        let dentry = self.dentry(record).map_err(io::Error::other)?;
        let again = dentry.handle()?.filter(|again| again.inode() == handle.inode());
        let first = AttributeChanges { xattrs: of_user, ..AttributeChanges::default() };
        let path = self.path(record).to_vec();
        let again = again.ok_or(io::ErrorKind::NotFound)?;
        let mut shortfalls = self.access.with_access(&path, again, 0o600, |handle| first.give(handle))?;
        shortfalls.append(&mut AttributeChanges { xattrs: rest, ..attributes.clone() }.give(handle)?);
        Ok(shortfalls)
    }

    /// Gives attributes to the file at the path of `record`.
    pub(super) fn give(&mut self, record: usize, attributes: &AttributeChanges) -> Result<(), Error> {
        let dentry = self.dentry(record)?;
        let handle = self.handle(record, &dentry)?;
        let now = handle.present().map_err(failed_at("stat", self.path(record)))?;
        if !self.is_as_inspected(record, &now) {
            return Err(self.changed_meanwhile(record));
        }
        self.own_changes.insert(handle.inode());
        self.give_journaled(record, attributes, &handle)
    }

    /// Gives attributes to a file that was there before; if this is interrupted, the next run takes them
    /// back.
    pub(super) fn give_journaled(
        &mut self,
        record: usize,
        attributes: &AttributeChanges,
        handle: &Handle,
    ) -> Result<(), Error> {
        let path = self.path(record).to_vec();
        self.log(&JournalEntry::Attributes { path: PathText(path.clone()), inode: handle.inode() })?;
        self.give_to(record, attributes, handle)?;
        self.log(&JournalEntry::Done { path: PathText(path) })
    }

    /// Gives directories their attributes and times, the deepest first.
    pub(super) fn finish_directories(&mut self) -> Result<(), Error> {
        let context = self.context;
        for path in touched(context.input, context.plan).iter().rev() {
            let directory = open_directory(context.root, path).map_err(failed_at("open", path))?;
            directory
                .into_iter()
                .try_for_each(|one| self.unsynced.add(one))
                .map_err(failed_at("stat", path))?;
        }
        self.unsynced.flush().map_err(failed("sync directories"))?;
        let mut work: BTreeMap<&[u8], Option<&Step>> =
            context.times.keys().map(|path| (path.as_slice(), None)).collect();
        for step in &context.plan.steps {
            let is_directory = self.is_wanted_directory(step.record)
                && matches!(step.action, Action::Node | Action::Attributes(_));
            if is_directory {
                work.insert(self.path(step.record), Some(step));
            }
        }
        let work: Vec<_> = work.into_iter().map(|(path, step)| (path.to_vec(), step)).collect();
        for (path, step) in work.into_iter().rev() {
            let Some(dentry) =
                context.root.dentry(&path).map_err(failed_at("open the directory of", &path))?
            else {
                continue;
            };
            let Some(handle) = dentry.handle().map_err(failed_at("open", &path))? else { continue };
            if step.is_some() {
                self.access.revoke_beneath(&path).map_err(failed_at("change back modes in", &path))?;
            }
            let is_final = match step {
                Some(Step { record, action: Action::Attributes(attributes) }) => {
                    self.give_journaled(*record, attributes, &handle)?;
                    self.changed();
                    attributes.permissions.is_some()
                }
                Some(Step { record, .. }) => {
                    self.give_all(*record, &dentry, &handle)?;
                    self.log(&JournalEntry::Done { path: PathText(path.clone()) })?;
                    true
                }
                None => false,
            };
            if is_final {
                self.access.keep_mode(&path).map_err(failed("write the journal of the restore"))?;
            }
            if let Some(mtime) = context.times.get(&path) {
                let attributes = AttributeChanges { mtime: Some(*mtime), ..AttributeChanges::default() };
                match attributes.give(&handle) {
                    // The time of a directory that is another user's, such as /tmp, is not ours to set.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    given => drop(given.map_err(failed_at("set the time of", &path))?),
                }
            }
        }
        Ok(())
    }

    /// The inode flags that a file is to be given once it is made or written at `record`; none if it has those of the wanted
    /// state by itself.
    pub(super) fn flags_of_new(&mut self, record: usize) -> Option<&BTreeSet<InodeFlag>> {
        let context = self.context;
        let wanted = self.wanted(record).filter(|wanted| flags::has_flags(wanted.file_type))?;
        let had_some = || self.inspected(record).is_some_and(|live| !live.inode_flags.is_empty());
        let is_due = context.input.policy.privileges
            && (!wanted.inode_flags.is_empty()
                || had_some()
                || self.inherits_flags(parent(&context.input.files[record].path)));
        is_due.then_some(&wanted.inode_flags)
    }

    /// Whether what is made in a directory may get inode flags from it.
    fn inherits_flags(&mut self, directory: &[u8]) -> bool {
        if let Some(known) = self.inherits.get(directory) {
            return *known;
        }
        let opened = open_directory(self.context.root, directory).ok().flatten();
        let inherits = opened.is_some_and(|opened| flags::are_inherited(&opened));
        self.inherits.insert(directory.to_vec(), inherits);
        inherits
    }

    /// Notes in the journal that a file with this `inode` is to get inode flags, if it is: once it has its name or its
    /// content at `record`, nothing else tells the next run what it lacks.
    pub(super) fn promise_flags(&mut self, record: usize, inode: (u64, u64)) -> Result<(), Error> {
        if self.flags_of_new(record).is_none() {
            return Ok(());
        }
        let entry = JournalEntry::FlagsDue { path: PathText(self.path(record).to_vec()), inode };
        match self.context.lasting_journal {
            Some(journal) => {
                journal.write(&entry).map_err(failed("write the journal of an interrupted restore"))
            }
            None => self.log(&entry),
        }
    }

    /// Gives inode flags, after everything that they could forbid.
    pub(super) fn give_flags(&mut self) -> Result<(), Error> {
        let context = self.context;
        let mut forgotten = Vec::new();
        for step in context.plan.steps.iter().rev() {
            let path = self.path(step.record).to_vec();
            let new_flags = match &step.action {
                Action::Attributes(attributes) => attributes.flags.clone(),
                Action::File { .. } | Action::HardLink { .. } | Action::Return { .. } | Action::Node => {
                    self.flags_of_new(step.record).cloned()
                }
                Action::Remove => None,
            };
            if new_flags.is_some() || step.action == Action::Remove {
                forgotten.push(path.clone());
            }
            let Some(new_flags) = new_flags else { continue };
            let handle = self.dentry(step.record)?.handle().map_err(failed_at("open", &path))?;
            self.give_flags_to(&path, handle, &new_flags);
        }
        self.give_flags_due()?;
        // Last, so that an interrupted restore leaves either the original flags or the final ones.
        forgotten.iter().try_for_each(|path| {
            self.access.keep_flags(path).map_err(failed("write the journal of the restore"))
        })
    }

    /// Gives inode flags to what interrupted restores have made.
    fn give_flags_due(&mut self) -> Result<(), Error> {
        let context = self.context;
        let (input, privileges) = (context.input, context.input.policy.privileges);
        for &(path, inode) in context.flags_due.iter().filter(|_| privileges).rev() {
            let index = FileRecord::find(input.files, path);
            // What is skipped is left as it is.
            let index = index.filter(|index| input.targets.binary_search(index).is_ok());
            let Some(wanted) = index.and_then(|index| self.wanted(index)) else { continue };
            let dentry = context.root.dentry(path).map_err(failed_at("open the directory of", path))?;
            let handle =
                dentry.map_or(Ok(None), |dentry| dentry.handle()).map_err(failed_at("open", path))?;
            // Flags that forbid changes are these, or somebody else's by now.
            let lacks_them = |handle: &Handle| handle.inode() == inode && !flags::is_locked_now(handle);
            self.give_flags_to(path, handle.filter(lacks_them), &wanted.inode_flags);
        }
        Ok(())
    }

    fn give_flags_to(&mut self, path: &[u8], handle: Option<Handle>, flags: &BTreeSet<InodeFlag>) {
        if handle.is_some_and(|handle| flags::give(&handle, flags).is_err()) {
            let names: Vec<_> = flags.iter().map(|flag| format!("{flag:?}").to_lowercase()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            self.done.shortfalls.push((path.to_vec(), Shortfall::Flags(names)));
        }
    }
}
