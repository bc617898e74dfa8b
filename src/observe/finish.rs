//! The end of a recording: the states after, and the manifest's records of it all.
//!
//! Nothing of the tree runs any more, so every path is examined once. Neighbours: the ledger
//! has what is known, `capture.rs` what became of the bytes.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::capture::Threat;
use super::capture::{Finished, Held, Outcome, Source, Ticket};
use super::fit;
use super::ledger::Ledger;
use super::ledger::ids::{InodeId, NameId};
use super::ledger::inodes::{Attributes, Content, Stat};
use super::ledger::names::Name;
use super::mounts::named_twice;
use super::recorder::Recorder;
use super::recording::Recording;
use super::resolve;
use crate::fs::FileStat;
use crate::git::{self, GitFacts, ObservedRepository, Repositories};
use crate::snapshot::blobs::{Side, blob_key};
use crate::snapshot::{
    BlobOmitted, Digest, FileRecord, FileType, GitRepository, GitState, Operations, Present, ProcessRecord,
    State, Suppressed, Warning, WarningKind, live,
};

/// What a recording has come to.
pub struct Recorded {
    /// The gaps and notes.
    pub warnings: Vec<Warning>,
    /// What the rules left out.
    pub suppressed: Vec<Suppressed>,
    /// The repositories that were observed.
    pub repositories: Vec<GitRepository>,
    /// The processes of the tree.
    pub processes: Vec<ProcessRecord>,
    /// The finished blobs.parquet, if it has a row; or why it could not be written.
    pub blobs: io::Result<Option<File>>,
    /// The records.
    pub files: Files,
}

/// The records of a recording, made one by one.
pub struct Files {
    ledger: Ledger,
    repositories: Repositories,
    finished: Finished,
    afters: Vec<(NameId, After)>,
}

/// What was found at a path at the end. Small, since there is one for each path.
#[derive(Debug)]
enum After {
    /// What was there before, by everything that a record tells of it.
    AsBefore(AfterContent),
    /// Nothing, and nothing more to tell.
    Absent,
    /// Something else, or what it was with something more to tell.
    Now(Box<Now>),
}

const _: () = assert!(size_of::<(NameId, After)>() <= 24);

#[derive(Debug, Default)]
struct Now {
    stat: Option<Stat>,
    content: AfterContent,
    more: Option<Box<More>>,
}

/// What few states have.
#[derive(Debug, Default, PartialEq)]
struct More {
    git: Option<GitFacts>,
    target: Option<Vec<u8>>,
    entries: Option<Digest>,
    attributes: Attributes,
}

impl Now {
    fn git(&self) -> Option<&GitFacts> {
        self.more.as_ref()?.git.as_ref()
    }
}

impl After {
    fn stat(&self, name: NameId, ledger: &Ledger) -> Option<Stat> {
        match self {
            After::AsBefore(_) => ledger.before(name).map(|inode| inode.before),
            After::Absent => None,
            After::Now(now) => now.stat,
        }
    }

    fn content(&self) -> AfterContent {
        match self {
            After::AsBefore(content) => *content,
            After::Absent => AfterContent::None,
            After::Now(now) => now.content,
        }
    }

    /// Whether it is a symlink whose target could not be read.
    fn is_unread(&self) -> bool {
        match self {
            After::AsBefore(_) | After::Absent => false,
            After::Now(now) => {
                now.stat.is_some_and(|stat| stat.is_symlink())
                    && now.more.as_ref().is_none_or(|more| more.target.is_none())
            }
        }
    }
}

#[derive(Debug, Default, Clone, Copy)]
enum AfterContent {
    #[default]
    None,
    /// The bytes that this inode had before.
    OfInode(InodeId),
    Taken(Ticket),
    Omitted(BlobOmitted),
}

impl Recorder {
    /// Takes the states after the end of the tree.
    ///
    /// # Errors
    /// A sentence, where a fault of ours has ended the recording early.
    pub fn finish(&self) -> Result<Recorded, String> {
        let mut known = self.take_state()?;
        let names = known.ledger.names.sorted();
        let mut afters = Vec::with_capacity(names.len());
        let mut parents = Parents::default();
        let git_epoch = known.repositories.settled_epoch();
        for name in names {
            let after = if known.mounts.is_displaced(name, known.ledger.names.path(name)) {
                known.displaced(name)
            } else {
                known.after(name, &mut parents, git_epoch)
            };
            afters.extend(after.map(|after| (name, after)));
        }
        known.omit_what_is_gone(&afters);
        for directory in known.resolver.changed_outside() {
            known.warnings.lost(WarningKind::ExternalChange, None, || {
                format!(
                    "{} was replaced from outside: paths below it may be recorded under a wrong name",
                    String::from_utf8_lossy(&directory)
                )
            });
        }
        known.warn_files_named_twice(&afters);
        let afters = known.leave_out_misfits(afters);
        let Recording { policy, ledger, mut repositories, processes, byte_store, mut warnings, .. } = known;
        let mut finished = byte_store.capture.finish();
        for (name, after) in &afters {
            let content_before = ledger.before(*name).map_or(Content::Unneeded, |inode| inode.content);
            let size_before = ledger.before(*name).map_or(0, |inode| inode.before.size);
            let size_after = after.stat(*name, &ledger).map_or(0, |stat| stat.size);
            let taken = [
                match content_before {
                    Content::Read(ticket) | Content::Digested(ticket) => Some((ticket, size_before, false)),
                    Content::Kept(ticket) => Some((ticket, size_before, true)),
                    _ => None,
                },
                match after.content() {
                    AfterContent::Taken(ticket) => Some((ticket, size_after, true)),
                    _ => None,
                },
            ];
            for (ticket, size, needed) in taken.into_iter().flatten() {
                let Some(reason) = finished.outcome(ticket, size).omitted else { continue };
                let path = ledger.names.path(*name);
                let detail = || {
                    format!(
                        "the bytes of {} are not stored ({})",
                        String::from_utf8_lossy(path),
                        reason.name()
                    )
                };
                if needed || reason != BlobOmitted::TooLarge {
                    warnings.lost(WarningKind::ContentOmitted, None, detail);
                } else {
                    warnings.note(WarningKind::ContentOmitted, None, detail);
                }
            }
        }
        let blobs = std::mem::replace(&mut finished.blobs, Ok(None));
        Ok(Recorded {
            warnings: warnings.into_vec(),
            suppressed: policy.into_suppressed(),
            repositories: repositories.observed().into_iter().map(git_repository).collect(),
            processes: processes.into_records(),
            blobs,
            files: Files { ledger, repositories, finished, afters },
        })
    }
}

/// The directory that was opened last: paths come in order.
#[derive(Debug, Default)]
struct Parents(Option<(Vec<u8>, Opened)>);

/// A directory; none where there is none.
type Opened = Result<Option<OwnedFd>, Hidden>;

/// A place that we may not examine.
#[derive(Debug, Clone, Copy)]
struct Hidden;

impl Parents {
    /// What is at a real path; nothing, where a directory on the way has become a symlink.
    ///
    /// # Errors
    /// A directory on the way can't be searched by us.
    fn lstat(&mut self, path: &[u8]) -> Result<Option<FileStat>, Hidden> {
        let parent = resolve::parent_of(path).unwrap_or(b"/");
        if self.0.as_ref().is_none_or(|(known, _)| known != parent) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = ResolveFlags::NO_SYMLINKS;
            let opened = match rustix::fs::openat2(CWD, parent, flags, Mode::empty(), resolve) {
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

impl Recording {
    /// Tells of inodes that were renamed, and whose bytes are at no recorded name any more.
    fn omit_what_is_gone(&mut self, afters: &[(NameId, After)]) {
        for (name, _) in afters {
            if let Some(id) = self.ledger.names.get(*name).before
                && self.ledger.inodes.get(id).content == Content::InPlace
            {
                self.protector().warn_omitted(id, BlobOmitted::Unreadable);
                self.ledger.inodes.get_mut(id).content = Content::Omitted(BlobOmitted::Unreadable);
            }
        }
    }

    /// What is said of a path whose file was on a mount that is gone, or is hidden by one that came: its
    /// state is the one before, or where a call has changed it, nothing.
    fn displaced(&mut self, name: NameId) -> Option<After> {
        if !self.is_changed(name) {
            return Some(self.unseen_after(name));
        }
        let path = self.ledger.names.path(name);
        self.warnings.lost(WarningKind::MountNamespace, None, || {
            format!(
                "{} was changed on a mount that is gone, or below one that came later, and is left out",
                String::from_utf8_lossy(path)
            )
        });
        None
    }

    /// A file that was changed by a name, and has another that no hard link connects with it.
    fn warn_files_named_twice(&mut self, afters: &[(NameId, After)]) {
        let ledger = &self.ledger;
        let files = afters.iter().filter_map(|(name, after)| {
            let stat = after.stat(*name, ledger).filter(|stat| stat.is_regular() && stat.nlink == 1)?;
            Some((*name, stat.identity()))
        });
        let changed = |name: NameId| ledger.names.get(name).operations.intersects(Operations::CHANGES);
        let pairs = named_twice(files).into_iter().filter(|pair| changed(pair.0) || changed(pair.1));
        for (first, second) in pairs {
            self.warnings.lost(WarningKind::MountNamespace, None, || {
                let [first, second] =
                    [first, second].map(|name| String::from_utf8_lossy(ledger.names.path(name)));
                format!(
                    "{first} and {second} are one file, perhaps by a bind mount: the content before may be \
                     recorded for one of them only"
                )
            });
        }
    }

    /// Leaves out the records that can't be true beside others, and says so.
    fn leave_out_misfits(&mut self, mut afters: Vec<(NameId, After)>) -> Vec<(NameId, After)> {
        let ledger = &self.ledger;
        let before = |name: NameId| ledger.before(name).map(|inode| inode.before);
        let mut misfits: Vec<NameId> = Vec::new();
        afters.retain(|(name, after)| {
            // A symlink whose target nobody can read any more is none that could be made again.
            let unread = ledger
                .before(*name)
                .is_some_and(|inode| inode.before.is_symlink() && inode.target().is_none());
            if unread || after.is_unread() {
                misfits.push(*name);
            }
            !(unread || after.is_unread())
        });
        let found = fit::beneath_no_directory(&ledger.names, &afters, |(name, _)| (*name, before(*name)));
        afters.retain(|(name, _)| !found.contains(name));
        misfits.extend(found);
        let found = fit::beneath_no_directory(&ledger.names, &afters, |(name, after)| {
            (*name, after.stat(*name, ledger))
        });
        afters.retain(|(name, _)| !found.contains(name));
        misfits.extend(found);
        for name in misfits {
            let path = ledger.names.path(name);
            self.warnings.lost(WarningKind::ExternalChange, None, || {
                format!(
                    "{} was changed from outside while it was examined, and is left out",
                    String::from_utf8_lossy(path)
                )
            });
        }
        afters
    }

    /// The state of a path at the end; none where nothing is known of it.
    fn after(&mut self, name: NameId, parents: &mut Parents, git_epoch: u32) -> Option<After> {
        let path = self.ledger.names.path(name).to_vec();
        let Ok(mut found) = parents.lstat(&path) else { return self.hidden(name) };
        let mut target = None;
        if found.as_ref().is_some_and(resolve::is_symlink) {
            target = rustix::fs::readlink(path.as_slice(), Vec::new()).ok();
            if target.is_none() {
                // Somebody has replaced it since.
                let Ok(now) = parents.lstat(&path) else { return self.hidden(name) };
                found = now;
            }
        }
        let stat = found.as_ref().map(Stat::from);
        let before = self.ledger.before(name).map(|inode| inode.before);
        let known = self.ledger.names.get(name);
        // What nobody has asked to pin is compared without.
        let pin = known.pin_asked || before != stat;
        let git = match known.git {
            // No call that is known has changed the file: its times may have been put back.
            Some(facts)
                if known.git_epoch == git_epoch && before == stat && self.ledger.changes(name) == 0 =>
            {
                Some(facts)
            }
            Some(_) => self.repositories.classify_again(&path, found.as_ref(), pin),
            // A working tree may have come to hold it since.
            None if known.git_epoch != git_epoch && self.repositories.may_hold(&path) => {
                self.repositories.classify_again(&path, found.as_ref(), pin)
            }
            None => None,
        };
        self.warn_external_change(name, stat.as_ref());
        let known = self.ledger.names.get(name);
        let entries = match stat {
            Some(now) if known.entries().is_some() && now.is_directory() => live::entries_digest(&path).ok(),
            _ => None,
        };
        let content = match &found {
            Some(now) if resolve::is_regular(now) => self.content_after(name, &path, now),
            _ => AfterContent::None,
        };
        let attributes = match &found {
            Some(now) => self.attributes_after(name, &path, now),
            None => Attributes::default(),
        };
        let target = target.map(|target| target.into_bytes());
        let known = self.ledger.names.get(name);
        let as_before = stat == before
            && (git.is_none() || git == known.git)
            && target.as_ref() == self.ledger.before(name).and_then(|inode| inode.target())
            && entries == known.entries()
            && attributes == Attributes::default();
        if as_before {
            return Some(After::AsBefore(content));
        }
        let more = More { git, target, entries, attributes };
        let more = (more != More::default()).then(|| Box::new(more));
        Some(match (stat, &more) {
            (None, None) => After::Absent,
            _ => After::Now(Box::new(Now { stat, content, more })),
        })
    }

    /// The attributes of what is at a path, where a call may have changed them or has moved it.
    fn attributes_after(&mut self, name: NameId, path: &[u8], now: &FileStat) -> Attributes {
        let inode = self.ledger.inodes.of(now).map(|id| self.ledger.inodes.get(id));
        let had = inode.and_then(|inode| inode.extra.as_ref()).map(|extra| &extra.attributes);
        if had.is_none_or(|had| *had == Attributes::default())
            && inode.is_none_or(|inode| inode.changes == 0)
            && self.ledger.names.get(name).changes == 0
        {
            return Attributes::default();
        }
        // Those of a file that was renamed and not changed are the ones that it had before.
        self.protector().take_attributes(path, now);
        self.protector().attributes(path)
    }

    /// What is said of a path that the tree has left behind a directory that we may not search.
    ///
    /// What no call has changed is as before, and what was removed and not made again is gone. Of what was
    /// changed otherwise no more is known than that it may be there; nothing, if it was not there before.
    fn hidden(&mut self, name: NameId) -> Option<After> {
        if !self.is_changed(name) {
            return Some(self.unseen_after(name));
        }
        if self.ledger.names.get(name).removed {
            return Some(After::Absent);
        }
        let before = self.ledger.before(name).map(|inode| inode.before).filter(|before| !before.is_symlink());
        let path = self.ledger.names.path(name);
        self.warnings.lost(WarningKind::ContentOmitted, None, || {
            format!(
                "what the command left at {} is in a directory that may not be searched",
                String::from_utf8_lossy(path)
            )
        });
        before.map(|before| {
            let content = match before.is_regular() {
                true => AfterContent::Omitted(BlobOmitted::Unreadable),
                false => AfterContent::None,
            };
            After::Now(Box::new(Now { stat: Some(before), content, more: None }))
        })
    }

    /// Whether some call has changed what is at a path, or the file that was there by another name.
    fn is_changed(&self, name: NameId) -> bool {
        let known = self.ledger.names.get(name);
        known.operations.intersects(Operations::CHANGES)
            || known.rebound
            || self.ledger.before(name).is_some_and(|inode| inode.written)
    }

    /// The state of a path that nobody has changed and that can't be examined.
    fn unseen_after(&self, name: NameId) -> After {
        After::AsBefore(match self.ledger.names.get(name).before {
            Some(id) if self.ledger.inodes.get(id).before.is_regular() => AfterContent::OfInode(id),
            _ => AfterContent::None,
        })
    }

    /// The bytes of the regular file that is at a name at the end.
    fn content_after(&mut self, name: NameId, path: &[u8], now: &FileStat) -> AfterContent {
        let stat = Stat::from(now);
        if let Some(id) = self.ledger.inodes.of(now) {
            let inode = self.ledger.inodes.get(id);
            if inode.appended && inode.content == Content::InPlace {
                self.protector().read_in_place(id, path, now);
            }
            let (known, inode) = (self.ledger.names.get(name), self.ledger.inodes.get(id));
            if inode.has_bytes_of_before(&stat) {
                // What nobody has used but to ask for it needs no bytes.
                let is_as_before = known.before == Some(id) && inode.before.same_state(&inode.as_known(stat));
                if inode.content == Content::InPlace || !is_as_before {
                    self.protector().read_in_place(id, path, now);
                }
                return AfterContent::OfInode(id);
            }
            if inode.appended && !known.rebound {
                return AfterContent::None;
            }
        }
        if self.byte_store.filesystems.is_pseudo(stat.dev, path) {
            return AfterContent::None;
        }
        let source = Source { path, identity: stat.identity(), length: None };
        match self.byte_store.capture.hold(source, Threat::Unlink) {
            Held::Omitted(reason) => {
                let path = String::from_utf8_lossy(path);
                self.warnings.lost(WarningKind::ContentOmitted, None, || {
                    format!("the bytes of {path} are not stored ({})", reason.name())
                });
                AfterContent::Omitted(reason)
            }
            held => {
                let key = blob_key(Side::After, path);
                let admission = self.byte_store.admit(&key, &held);
                AfterContent::Taken(self.byte_store.capture.submit(key, held, None, admission, false))
            }
        }
    }

    /// A file that changed though no traced call changed it.
    fn warn_external_change(&mut self, name: NameId, now: Option<&Stat>) {
        let known = self.ledger.names.get(name);
        let inode = self.ledger.before(name);
        if known.operations.intersects(Operations::CHANGES)
            || known.rebound
            || inode.is_some_and(|inode| inode.written)
        {
            return;
        }
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
        let path = self.ledger.names.path(name).to_vec();
        // Files of the kernel's own filesystems change by themselves.
        if changed && !dev.is_some_and(|dev| self.byte_store.filesystems.is_pseudo(dev, &path)) {
            self.warnings.lost(WarningKind::ExternalChange, None, || {
                format!("{} changed, though no recorded call changed it", String::from_utf8_lossy(&path))
            });
        }
    }
}

impl Files {
    /// The records in order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = FileRecord> {
        self.afters.iter().map(|(record, after)| self.record(*record, after))
    }

    fn record(&self, id: NameId, after: &After) -> FileRecord {
        let names = &self.ledger.names;
        let name = names.get(id);
        let path = names.path(id).to_vec();
        let path_of = |other: Option<NameId>| {
            other
                .filter(|other| !names.get(*other).operations.is_empty())
                .map(|other| names.path(other).to_vec())
        };
        let count = name.processes.count_beyond_named();
        FileRecord {
            operations: name.operations,
            processes: name.processes.named(),
            process_count: count.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            inherited: name.inherited,
            changed_by_name: name.inherited && name.changed_by_name,
            renamed_from: path_of(names.renamed_from(id)),
            renamed_to: path_of(names.renamed_to(id)),
            before: self.before(name),
            after: self.after(id, name, after),
            git: name.git.as_ref().map(|facts| git_state(&self.repositories, facts, &path)),
            git_after: match after {
                After::AsBefore(_) | After::Absent => None,
                After::Now(now) => now
                    .git()
                    .filter(|facts| name.git.as_ref() != Some(facts))
                    .map(|facts| git_state(&self.repositories, facts, &path)),
            },
            path,
        }
    }

    fn before(&self, name: &Name) -> State {
        let Some(id) = name.before else { return State::Absent { tombstone: false } };
        let inode = self.ledger.inodes.get(id);
        let mut present = present(&inode.before);
        present.entries_digest = name.entries();
        if let Some(extra) = inode.extra.as_deref() {
            present.target.clone_from(&extra.target);
            put_attributes(&mut present, &extra.attributes);
        }
        self.put_content_of(id, &mut present);
        State::Present(Box::new(present))
    }

    /// The bytes that an inode had before.
    fn put_content_of(&self, id: InodeId, present: &mut Present) {
        match self.ledger.inodes.get(id).content {
            Content::Unneeded | Content::InPlace | Content::Pinned => {}
            Content::Read(ticket) | Content::Digested(ticket) | Content::Kept(ticket) => {
                let outcome = self.finished.outcome(ticket, present.size);
                put(present, outcome);
            }
            Content::Omitted(reason) => present.blob_omitted = Some(reason),
        }
    }

    fn after(&self, id: NameId, name: &Name, after: &After) -> State {
        let Some(stat) = after.stat(id, &self.ledger) else {
            return State::Absent { tombstone: name.removed };
        };
        let mut present = present(&stat);
        match after {
            After::AsBefore(_) => {
                present.target = self.ledger.before(id).and_then(|inode| inode.target().cloned());
                present.entries_digest = name.entries();
            }
            After::Now(now) => {
                if let Some(more) = now.more.as_deref() {
                    present.target.clone_from(&more.target);
                    present.entries_digest = more.entries;
                    put_attributes(&mut present, &more.attributes);
                }
            }
            After::Absent => {}
        }
        // What another name has told of an inode that no call has changed holds for this one.
        if let Some(inode) = self.ledger.inodes.find(stat.identity()).map(|id| self.ledger.inodes.get(id))
            && inode.changes == 0
            && let Some(extra) = inode.extra.as_deref()
        {
            put_attributes(&mut present, &extra.attributes);
        }
        match after.content() {
            AfterContent::None => {}
            AfterContent::OfInode(id) => self.put_content_of(id, &mut present),
            AfterContent::Taken(ticket) => {
                let outcome = self.finished.outcome(ticket, present.size);
                put(&mut present, outcome);
            }
            AfterContent::Omitted(reason) => present.blob_omitted = Some(reason),
        }
        State::Present(Box::new(present))
    }
}

pub(super) fn put_attributes(present: &mut Present, attributes: &Attributes) {
    present.xattrs.clone_from(&attributes.xattrs);
    present.inode_flags.clone_from(&attributes.flags);
}

fn put(present: &mut Present, outcome: Outcome) {
    present.digest = outcome.digest;
    present.blob = outcome.blob.as_deref().map(str::to_owned);
    present.blob_omitted = outcome.omitted;
}

pub(super) fn present(stat: &Stat) -> Present {
    Present::of(FileType::from_mode(stat.mode).unwrap_or(FileType::File), stat)
}

fn git_repository(observed: ObservedRepository) -> GitRepository {
    let ObservedRepository { root, head, dirty, head_after } = observed;
    GitRepository {
        root,
        head: head.map(|id| id.to_string()),
        dirty,
        head_after: head_after.map(|id| id.to_string()),
    }
}

pub(super) fn git_state(repositories: &Repositories, facts: &GitFacts, path: &[u8]) -> GitState {
    let (root, head) = repositories.working_tree(facts);
    GitState {
        root: root.to_vec(),
        head: head.map(|id| id.to_string()),
        relative_path: git::below(root, path).unwrap_or_default().to_vec(),
        oid: facts.oid().map(ToString::to_string),
        tracked: facts.tracked(),
        dirty: facts.dirty(),
        ignored: facts.ignored(),
    }
}
