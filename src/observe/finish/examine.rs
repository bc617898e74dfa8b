//! Examines each path once, when nothing of the tree runs any more, or for interim states.
//!
//! Neighbours: the ledger knows what the tree has done to each, `after.rs` has what is found.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::after::{After, AfterContent, Interim};
use crate::fs::{FileStat, open_directory};
use crate::git::{GitFacts, GitFile};
use crate::observe::capture::{Admission, Captured, Source};
use crate::observe::ledger::Ledger;
use crate::observe::ledger::found::RareStateFacts;
use crate::observe::ledger::ids::{InodeId, NameId};
use crate::observe::ledger::inodes::{Attributes, Content, Stat};
use crate::observe::ledger::names::Name;
use crate::observe::mounts::Displacement;
use crate::observe::recording::Recording;
use crate::observe::resolve;
use crate::snapshot::blobs::{Side, blob_key};
use crate::snapshot::{BlobOmitted, Keep, Operation, Operations, WarningKind, live};

/// How many times a path is looked at, if what was found is removed or replaced before it was read.
const LOOKS: u32 = 3;

/// The directory that was opened last: paths come in order.
#[derive(Debug, Default)]
struct Parents(Option<(Vec<u8>, Opened)>);

/// A directory; none where there is none.
type Opened = Result<Option<OwnedFd>, Hidden>;

/// A place that we may not examine.
#[derive(Debug, Clone, Copy)]
struct Hidden;

impl Parents {
    /// The same as `lstat`; nothing, too, where we may not examine it.
    fn stat(&mut self, path: &[u8]) -> Option<Stat> {
        self.lstat(path).ok().flatten().map(|found| Stat::from(&found))
    }

    /// What is at a real path; nothing, where a directory on the way has become a symlink.
    ///
    /// # Errors
    /// A directory on the way can't be searched by us.
    fn lstat(&mut self, path: &[u8]) -> Result<Option<FileStat>, Hidden> {
        let parent = crate::fs::parent_of(path).unwrap_or(b"/");
        if self.0.as_ref().is_none_or(|(known, _)| known != parent) {
            let opened = match open_directory(parent) {
                Ok(directory) => Ok(Some(directory)),
                Err(Errno::ACCESS) => Err(Hidden),
                Err(_) => Ok(None),
            };
            self.0 = Some((parent.to_vec(), opened));
        }
        let directory = match &self.0 {
            Some((_, Ok(Some(directory)))) => directory,
            Some((_, Err(Hidden))) => return Err(Hidden),
            _ => return Ok(None),
        };
        let name = path.get(parent.len()..).unwrap_or_default();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        match rustix::fs::statat(directory, name, flags) {
            Err(Errno::ACCESS) => Err(Hidden),
            found => Ok(found.ok()),
        }
    }
}

/// What was found at the end.
#[derive(Debug)]
pub(super) struct Examined {
    /// What is at each name, sorted by path.
    pub afters: Vec<(NameId, After)>,
    /// How many other paths were only asked for, if the level of the recording leaves those out.
    pub existence_only: Option<u64>,
    /// The names whose interim state was taken over.
    pub kept: HashSet<NameId, foldhash::fast::RandomState>,
    /// Those of which nothing is known, since we may not search a directory above them; sorted by path.
    pub unseen: Vec<NameId>,
}

/// What changes affect besides the changed paths themselves: the directories that gained or lost an entry, and
/// the files that gained or lost a hard link.
#[derive(Debug, Default)]
struct Affected {
    directories: HashSet<NameId, foldhash::fast::RandomState>,
    inodes: HashSet<InodeId, foldhash::fast::RandomState>,
}

impl Affected {
    fn contains(&self, name: NameId, known: &Name) -> bool {
        self.directories.contains(&name) || known.before.is_some_and(|inode| self.inodes.contains(&inode))
    }
}

/// Takes the states of a recording, after its end or meanwhile.
pub(super) struct Examiner<'a> {
    recording: &'a mut Recording,
    /// What is known to be at a name.
    known: HashMap<NameId, After, foldhash::fast::RandomState>,
    /// Those of them that are interim states.
    kept: HashSet<NameId, foldhash::fast::RandomState>,
    unseen: Vec<NameId>,
    /// The directory that was opened last.
    parents: Parents,
    /// The epoch of what Git says (`Repositories::epoch`).
    git_epoch: u32,
    /// Whether the tree goes on: one of its writes may be in flight.
    is_interim: bool,
}

impl<'a> Examiner<'a> {
    pub fn new(recording: &'a mut Recording, is_interim: bool) -> Examiner<'a> {
        let git_epoch = recording.repositories.current_epoch();
        Examiner {
            recording,
            known: HashMap::default(),
            kept: HashSet::default(),
            unseen: Vec::new(),
            parents: Parents::default(),
            git_epoch,
            is_interim,
        }
    }

    /// What is at each of these names, which are sorted, as far as the level of the recording asks for it.
    pub fn examine_all(mut self, names: Vec<NameId>) -> Examined {
        if let Some(interim) = self.recording.interim.take() {
            self.keep_interim(interim, &names);
        }
        let has_inputs = self.recording.byte_store.keep.has_inputs();
        // In one list, which keeps its order and its place: there may be a million.
        let mut afters = Vec::with_capacity(names.len());
        for name in names {
            if has_inputs || self.is_changed(name) || self.recording.ledger.changes(name) > 0 {
                afters.extend(self.examine(name).map(|after| (name, after)));
            } else {
                afters.push((name, After::NotKept));
            }
        }
        if has_inputs {
            return Examined { afters, existence_only: None, kept: self.kept, unseen: self.unseen };
        }
        let ledger = &self.recording.ledger;
        let affected = self.affected_by(&afters, |name| ledger.names.get(name).rebound);
        let mut existence_only = 0;
        afters.retain_mut(|(name, after)| {
            if !matches!(after, After::NotKept) {
                return true;
            }
            let known = self.recording.ledger.names.get(*name);
            if affected.contains(*name, known) {
                let examined = self.examine(*name);
                examined.map(|examined| *after = examined).is_some()
            } else {
                let is_named_alone = known.operations == Operation::Existence.into();
                existence_only += u64::from(is_named_alone);
                !is_named_alone
            }
        });
        Examined { afters, existence_only: Some(existence_only), kept: self.kept, unseen: self.unseen }
    }

    /// Takes over the interim states, as far as no call has changed them since: somebody else may have undone what
    /// the tree did.
    ///
    /// Afterwards, an interim state is in `known` only if no call of the tree can have changed the name since, nor its
    /// file by any name, nor the names in it. Names that were changed have a state of now there, all others have none.
    fn keep_interim(&mut self, Interim { afters, open, yielded }: Interim, names: &[NameId]) {
        let changes = self.recording.ledger.changes_since_interim.take().unwrap_or_default();
        let ledger = &self.recording.ledger;
        let is_changed_inode = |id: Option<InodeId>| id.is_some_and(|id| changes.inodes.contains(&id));
        let parents = &mut self.parents;
        let mut now = |name: NameId| parents.stat(ledger.names.path(name));
        let taken = afters.into_iter().filter(|(_, after)| !matches!(after, After::NotKept));
        let (changed_since, mut kept): (HashMap<_, _, _>, HashMap<_, _, _>) =
            taken.partition(|(name, after)| {
                let file = after.stat(*name, ledger).map(|stat| stat.identity());
                // Somebody else may have renamed the file before it was changed.
                file.is_some_and(|file| {
                    is_changed_inode(ledger.inodes.find(file))
                        && now(*name).is_some_and(|now| now.identity() == file)
                })
            });
        // Somebody else may have given the name another file.
        let mut is_changed_in_place = |name: NameId| {
            let before = ledger.names.get(name).before.filter(|before| is_changed_inode(Some(*before)));
            before.zip(now(name)).is_some_and(|(before, now)| {
                let inode = ledger.inodes.get(before);
                inode.as_known(now).identity() == inode.before.identity()
            })
        };
        let changed: Vec<NameId> = names
            .iter()
            .filter(|name| changes.names.contains_key(name) || is_changed_in_place(**name))
            .copied()
            .collect();
        let mut again = Vec::with_capacity(changed.len());
        // The files of before and now, among whose names some may be unchanged: what the tree has made is no
        // inode of the ledger.
        let (mut files_before, mut files_now) = (HashSet::new(), HashSet::new());
        let file = |ledger: &Ledger, name, after: &After| {
            after.stat(name, ledger).filter(|stat| stat.is_regular()).map(|stat| stat.identity())
        };
        for name in changed {
            let interim = kept.remove(&name);
            if let Some(interim) = &interim {
                files_before.extend(file(&self.recording.ledger, name, interim));
            }
            if let Some(mut after) = self.examine(name) {
                if let Some(interim) = interim.as_ref().or(changed_since.get(&name)) {
                    after.take_content_of(name, interim, &self.recording.ledger);
                }
                files_now.extend(file(&self.recording.ledger, name, &after));
                again.push((name, after));
            }
        }
        let affected = self.affected_by(&again, |name| changes.names.get(&name) == Some(&true));
        let ledger = &self.recording.ledger;
        let by_others = &ledger.changed_by_others;
        let parents = &mut self.parents;
        kept.retain(|name, after| {
            let stat = after.stat(*name, ledger);
            let file = stat.filter(Stat::is_regular).map(|stat| stat.identity());
            let is_one_of = |files: &HashSet<_>| file.is_some_and(|file| files.contains(&file));
            let is_affected = !by_others.contains(name) && affected.contains(*name, ledger.names.get(*name));
            if !is_affected && !is_one_of(&files_before) && !is_one_of(&files_now) {
                return true;
            }
            let Some(left) = stat.filter(Stat::is_regular) else { return false };
            // The number may be another file's by now. What is in a file of which the tree has only lost a name since,
            // somebody else may have written.
            !parents.stat(ledger.names.path(*name)).is_some_and(|now| {
                now.identity() == left.identity() && (is_one_of(&files_now) || now.same_content(&left))
            })
        });
        // Whatever is above what is there is a directory, though no call has made it one.
        for (name, _) in again.iter().filter(|(name, after)| after.stat(*name, ledger).is_some()) {
            let mut path = ledger.names.path(*name);
            while let Some(parent) = crate::fs::parent_of(path) {
                if let Some(above) = ledger.names.find(parent)
                    && let Some(after) = kept.get(&above)
                    && !after.stat(above, ledger).is_some_and(|stat| stat.is_directory())
                    && !by_others.contains(&above)
                {
                    kept.remove(&above);
                }
                path = parent;
            }
        }
        let parents = &mut self.parents;
        kept.retain(|name, after| {
            let first = after.stat(*name, ledger).filter(|stat| stat.is_regular());
            let Some(first) = first.filter(|first| {
                !yielded.contains(name) && open.may_contain(ledger.names.path(*name), first.identity())
            }) else {
                return true;
            };
            // Another file in its place was put there by somebody else. Where nobody may look, it may be the same one.
            let now = parents.lstat(ledger.names.path(*name));
            now.is_ok_and(|now| now.is_none_or(|now| Stat::from(&now).identity() != first.identity()))
        });
        self.kept = kept.keys().copied().collect();
        kept.extend(again);
        self.known = kept;
    }

    /// What the changes of these names affect besides; `is_rebound` tells for which of them the directory entry
    /// changed.
    fn affected_by(&self, changed: &[(NameId, After)], is_rebound: impl Fn(NameId) -> bool) -> Affected {
        let ledger = &self.recording.ledger;
        let mut affected = Affected::default();
        for (name, after) in changed.iter().filter(|(_, after)| !matches!(after, After::NotKept)) {
            let known = ledger.names.get(*name);
            if is_rebound(*name) {
                let directory = crate::fs::parent_of(ledger.names.path(*name));
                affected.directories.extend(directory.and_then(|directory| ledger.names.find(directory)));
            }
            let has_more_names = |stat: &Stat| !stat.is_directory() && stat.nlink > 1;
            let before = known.before.filter(|id| has_more_names(&ledger.inodes.get(*id).before));
            let after = after.stat(*name, ledger).filter(has_more_names);
            let after = after.and_then(|stat| ledger.inodes.find(stat.identity()));
            affected.inodes.extend(before.into_iter().chain(after));
        }
        affected
    }

    /// What is at a name; none where nothing is known of it.
    fn examine(&mut self, name: NameId) -> Option<After> {
        if let Some(after) = self.known.remove(&name) {
            return Some(after);
        }
        match self.recording.mounts.displacement(name, self.recording.ledger.names.path(name)) {
            Displacement::None => self.after(name, LOOKS),
            Displacement::Hidden | Displacement::Gone => self.displaced(name),
            Displacement::Private(id) => {
                self.recording.mounts.private_used(id);
                if self.is_changed(name) {
                    self.recording.mounts.private_changed(id);
                }
                None
            }
        }
    }

    /// What is said of a path whose file was on a mount that is gone, or is hidden by one that came: its
    /// state is the one before, or where a call has changed it, nothing.
    fn displaced(&mut self, name: NameId) -> Option<After> {
        if !self.is_changed(name) {
            return Some(self.unseen_after(name));
        }
        let path = self.recording.ledger.names.path(name);
        self.recording.warnings.lost(WarningKind::MountNamespace, None, || {
            format!(
                "{} was changed on a mount that is gone, or below one that came later, and is left out",
                String::from_utf8_lossy(path)
            )
        });
        None
    }

    /// The state of a path at the end; none where nothing is known of it. Where somebody removes or replaces what was
    /// found, it is looked for so many times.
    fn after(&mut self, name: NameId, looks: u32) -> Option<After> {
        let ledger = &self.recording.ledger;
        if ledger.changes(name) == 0 && !self.is_changed(name) && ledger.changed_by_others.contains(&name) {
            // It is as it was, as far as the tree goes.
            return Some(self.unseen_after(name));
        }
        let path = ledger.names.path(name).to_vec();
        let Ok(found) = self.parents.lstat(&path) else { return self.hidden(name) };
        let mut target = None;
        if found.as_ref().is_some_and(resolve::is_symlink) {
            target = rustix::fs::readlink(path.as_slice(), Vec::new()).ok();
            if target.is_none() && looks > 1 {
                return self.after(name, looks - 1);
            }
        }
        let stat = found.as_ref().map(Stat::from);
        let before = self.recording.ledger.before(name).map(|inode| inode.before);
        let known = self.recording.ledger.names.get(name);
        // What nobody has asked to pin is compared without.
        let has_inputs = self.recording.byte_store.keep.has_inputs();
        let pin = has_inputs && (known.pin_asked || before != stat);
        let git = match known.git.clone() {
            // No call that is known has changed the file: its times may have been put back.
            Some(facts)
                if known.git_epoch == self.git_epoch
                    && before == stat
                    && self.recording.ledger.changes(name) == 0 =>
            {
                Some(facts)
            }
            Some(_) => self.recording.repositories.classify_again(&path, found.as_ref(), pin),
            // A working tree may have come to contain it since, or nobody asked at first sight.
            None if known.git_epoch != self.git_epoch && self.recording.repositories.may_hold(&path)
                || !has_inputs && self.is_changed(name) =>
            {
                self.recording.repositories.classify_again(&path, found.as_ref(), pin)
            }
            None => None,
        };
        let attributes = match &found {
            Some(now) => self.attributes_after(name, &path, now),
            None => Attributes::default(),
        };
        if stat.is_some_and(|now| self.is_freshened(name, now, &attributes)) {
            return Some(After::AsBefore(AfterContent::None));
        }
        let content = match &found {
            Some(now) if resolve::is_regular(now) => self.content_after(name, &path, now, git.as_ref()),
            _ => AfterContent::None,
        };
        if matches!(content, AfterContent::Omitted(BlobOmitted::ChangedWhileReading)) && looks > 1 {
            let now = self.parents.lstat(&path).ok().flatten();
            if now.as_ref().map(|now| Stat::from(now).identity()) != stat.map(|stat| stat.identity()) {
                return self.after(name, looks - 1);
            }
        }
        self.warn_external_change(name, stat.as_ref());
        let known = self.recording.ledger.names.get(name);
        let entries = match stat {
            Some(now) if known.entries().is_some() && now.is_directory() => live::entries_digest(&path).ok(),
            _ => None,
        };
        let target = target.map(|target| target.into_bytes());
        let known = self.recording.ledger.names.get(name);
        let as_before = stat == before
            && (git.is_none() || git == known.git)
            && target.as_ref() == self.recording.ledger.before(name).and_then(|inode| inode.target())
            && entries == known.entries()
            && attributes == Attributes::default();
        if as_before {
            return Some(After::AsBefore(content));
        }
        let found = &mut self.recording.ledger.found;
        let facts = found.add_facts(RareStateFacts { git, target, entries, attributes });
        Some(match stat {
            None => After::Absent(facts),
            Some(stat) => After::Now(content, found.add(stat), facts),
        })
    }

    /// Whether Git has set the time of an object or pack, and nothing else, as it does instead of writing an object that it
    /// has already. The file, which may be a large pack, is not read then.
    fn is_freshened(&self, name: NameId, now: Stat, attributes: &Attributes) -> bool {
        let ledger = &self.recording.ledger;
        let known = ledger.names.get(name);
        if !known.is_git_state || known.rebound || ledger.for_recall {
            return false;
        }
        let is_object =
            || matches!(GitFile::of(ledger.names.path(name)), GitFile::LooseObject | GitFile::Pack);
        ledger.before(name).is_some_and(|inode| {
            let Stat { mtime, mtime_nsec, .. } = inode.before;
            let had = inode.extra.as_deref().map(|extra| &extra.attributes);
            inode.has_bytes_of_before(&now)
                && Stat { mtime, mtime_nsec, ..now } == inode.before
                && attributes == had.unwrap_or(&Attributes::default())
                && is_object()
        })
    }

    /// The attributes of what is at a path, where a call may have changed them or has moved it.
    fn attributes_after(&mut self, name: NameId, path: &[u8], now: &FileStat) -> Attributes {
        let id = self.recording.ledger.inodes.of(now);
        let inode = id.map(|id| self.recording.ledger.inodes.get(id));
        let had = inode.and_then(|inode| inode.extra.as_ref()).map(|extra| &extra.attributes);
        let is_unchanged = inode.is_some_and(|inode| inode.changes == 0);
        if had.is_none_or(|had| *had == Attributes::default())
            && inode.is_none_or(|inode| inode.changes == 0)
            && self.recording.ledger.names.get(name).changes == 0
        {
            return Attributes::default();
        }
        self.recording.protector().take_attributes(path, now);
        match id.filter(|_| is_unchanged) {
            // Those of a file that was renamed and not changed are the ones that it had before.
            Some(id) => {
                let extra = self.recording.ledger.inodes.get(id).extra.as_ref();
                extra.map_or_else(Attributes::default, |extra| extra.attributes.clone())
            }
            None => self.recording.protector().attributes(path),
        }
    }

    /// What is said of a path that the tree has left behind a directory that we may not search.
    ///
    /// What no call has changed is as before, and what was removed and not made again is gone. Of what was
    /// changed otherwise no more is known than that it may be there; nothing, if it was not there before.
    fn hidden(&mut self, name: NameId) -> Option<After> {
        if !self.is_changed(name) {
            return Some(self.unseen_after(name));
        }
        if self.recording.ledger.names.get(name).removed {
            return Some(After::Absent(None));
        }
        let before = self
            .recording
            .ledger
            .before(name)
            .map(|inode| inode.before)
            .filter(|before| !before.is_symlink());
        let path = self.recording.ledger.names.path(name);
        self.recording.warnings.lost(WarningKind::ContentOmitted, None, || {
            format!(
                "what the command left at {} is in a directory that may not be searched",
                String::from_utf8_lossy(path)
            )
        });
        if before.is_none() {
            self.unseen.push(name);
        }
        before.map(|before| {
            let content = match before.is_regular() {
                true => AfterContent::Hidden,
                false => AfterContent::None,
            };
            After::Now(content, self.recording.ledger.found.add(before), None)
        })
    }

    /// Whether some call has changed what is at a path, or the file that was there by another name.
    fn is_changed(&self, name: NameId) -> bool {
        let known = self.recording.ledger.names.get(name);
        known.operations.intersects(Operations::CHANGES)
            || known.rebound
            || self.recording.ledger.before(name).is_some_and(|inode| inode.written)
    }

    /// The state of a path that nobody has changed and that can't be examined.
    fn unseen_after(&self, name: NameId) -> After {
        After::AsBefore(match self.recording.ledger.names.get(name).before {
            Some(id) if self.recording.ledger.inodes.get(id).before.is_regular() => AfterContent::OfInode(id),
            _ => AfterContent::None,
        })
    }

    /// The bytes of the regular file that is at a name at the end.
    fn content_after(
        &mut self,
        name: NameId,
        path: &[u8],
        now: &FileStat,
        git: Option<&GitFacts>,
    ) -> AfterContent {
        let stat = Stat::from(now);
        if let Some(id) = self.recording.ledger.inodes.of(now) {
            let inode = self.recording.ledger.inodes.get(id);
            if inode.appended && inode.content == Content::InPlace {
                self.recording.protector().read_in_place(id, path, now);
            }
            let (known, inode) =
                (self.recording.ledger.names.get(name), self.recording.ledger.inodes.get(id));
            // Another name of a file that nobody has changed: undoing needs no bytes for it.
            let is_new_name = self.recording.byte_store.keep == Keep::Undo
                && known.before != Some(id)
                && inode.content == Content::Unneeded;
            if inode.has_bytes_of_before(&stat) && !is_new_name {
                // What nobody has used but to ask for it needs no bytes.
                let is_as_before = known.before == Some(id) && inode.before.same_state(&inode.as_known(stat));
                if inode.content == Content::InPlace {
                    self.recording.protector().read_in_place(id, path, now);
                } else if !is_as_before {
                    self.recording.protector().read_unchanged(id, path, now);
                }
                return AfterContent::OfInode(id);
            }
            if inode.appended && !known.rebound {
                return AfterContent::None;
            }
        }
        if self.recording.byte_store.filesystems.is_pseudo(stat.dev, path) {
            return AfterContent::None;
        }
        if self.is_interim {
            crate::fs::wait_for_writes(path);
        }
        let source = Source { path, identity: stat.identity(), length: None };
        match self.recording.byte_store.capture.protect(source, None) {
            Captured::Omitted(reason) => AfterContent::Omitted(reason),
            captured => {
                let byte_store = &mut self.recording.byte_store;
                let key = blob_key(Side::After, path);
                // A restore has to know what these say, whatever their bytes are by then.
                let is_read = matches!(GitFile::of(path), GitFile::Index | GitFile::PackedRefs);
                let is_git_state = self.recording.ledger.names.get(name).is_git_state;
                let is_kept = byte_store.keeps_after(&captured, git) || is_git_state && is_read;
                // Where the digest is enough, no space is needed.
                let admission = match is_kept {
                    true => byte_store.admit(&key, &captured).into(),
                    false => Admission::Digested,
                };
                AfterContent::Taken(byte_store.capture.submit(key, captured, None, admission, false))
            }
        }
    }

    /// A file that changed though no traced call changed it.
    fn warn_external_change(&mut self, name: NameId, now: Option<&Stat>) {
        let Ledger { names, in_flight, .. } = &self.recording.ledger;
        if self.is_changed(name) || self.is_interim && in_flight.may_change(names.path(name)) {
            return;
        }
        let inode = self.recording.ledger.before(name);
        let changed = match (inode, now) {
            (None, None) => false,
            (Some(inode), Some(now)) => {
                let (before, now) = (&inode.before, &inode.as_known(*now));
                let attributes = |stat: &Stat| (stat.mode, stat.uid, stat.gid);
                // Another target makes another symlink, perhaps with the same number.
                ((before.is_regular() || before.is_symlink()) && !inode.is_unmodified(now))
                    || (before.mode ^ now.mode) & libc::S_IFMT != 0
                    || (!inode.is_touched() && attributes(before) != attributes(now))
            }
            _ => true,
        };
        let dev = now.map(|now| now.dev).or(inode.map(|inode| inode.before.dev));
        let path = self.recording.ledger.names.path(name).to_vec();
        // Files of the kernel's own filesystems change by themselves.
        if changed && !dev.is_some_and(|dev| self.recording.byte_store.filesystems.is_pseudo(dev, &path)) {
            self.recording.warnings.lost(WarningKind::ExternalChange, None, || {
                format!("{} changed, though no recorded call changed it", String::from_utf8_lossy(&path))
            });
        }
    }
}
