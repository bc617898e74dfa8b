//! The end of a recording: the states after, and the manifest's records of it all.
//!
//! Nothing of the tree runs any more, so every path is looked at once. Neighbours: `table.rs`
//! says what is known, `capture.rs` what became of the bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::AtFlags;
use nix::sys::stat::FileStat;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::capture::{Fate, Finished, Held, Outcome, Ticket};
use super::fit;
use super::git::{Facts, Repositories};
use super::mounts::named_twice;
use super::recorder::{Recorder, State as Known};
use super::resolve;
use super::table::{Content, PathObservation, RecordId, Stat, Table};
use crate::snapshot::blobs::{Side, blob_key};
use crate::snapshot::{
    BlobOmitted, Digest, FileRecord, FileType, GitRepository, Operations, Present, ProcessRecord, State,
    Suppressed, Warning, WarningKind, live,
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
    table: Table,
    repositories: Repositories,
    finished: Finished,
    afters: Vec<(RecordId, After)>,
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

const _: () = assert!(size_of::<(RecordId, After)>() <= 24);

#[derive(Debug, Default)]
struct Now {
    stat: Option<Stat>,
    content: AfterContent,
    more: Option<Box<More>>,
}

/// What few states have.
#[derive(Debug, Default, PartialEq)]
struct More {
    git: Option<Facts>,
    target: Option<Vec<u8>>,
    entries: Option<Digest>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Now {
    fn git(&self) -> Option<&Facts> {
        self.more.as_ref()?.git.as_ref()
    }
}

impl After {
    fn stat(&self, record: RecordId, table: &Table) -> Option<Stat> {
        match self {
            After::AsBefore(_) => table.get(record).before,
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

    /// Whether it is a link whose target could not be read.
    fn is_unread(&self) -> bool {
        match self {
            After::AsBefore(_) | After::Absent => false,
            After::Now(now) => {
                now.stat.is_some_and(|stat| stat.is_link())
                    && now.more.as_ref().is_none_or(|more| more.target.is_none())
            }
        }
    }
}

#[derive(Debug, Default, Clone, Copy)]
enum AfterContent {
    #[default]
    None,
    SameAsBefore,
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
        let records = known.table.sorted();
        let mut afters = Vec::with_capacity(records.len());
        let mut parents = Parents::default();
        let git_epoch = known.repositories.settled_epoch();
        for record in records {
            let after = if known.mounts.is_displaced(record, known.table.path(record)) {
                known.displaced(record)
            } else {
                known.after(record, &mut parents, git_epoch)
            };
            afters.extend(after.map(|after| (record, after)));
        }
        for directory in known.resolver.changed_outside() {
            known.warnings.lost(WarningKind::ExternalChange, None, || {
                format!(
                    "{} was replaced from outside: what was used below it may be recorded by a wrong name",
                    String::from_utf8_lossy(&directory)
                )
            });
        }
        known.tell_files_named_twice(&afters);
        let afters = known.leave_out_misfits(afters);
        let Known { ignore, table, mut repositories, processes, capture, mut warnings, suppressed, .. } =
            known;
        let mut finished = capture.finish();
        for (record, after) in &afters {
            let size_before = table.get(*record).before.map_or(0, |before| before.size);
            let size_after = after.stat(*record, &table).map_or(0, |stat| stat.size);
            let taken = [
                match table.content(*record) {
                    Content::Read(ticket) => Some((ticket, size_before, false)),
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
                let path = table.path(*record);
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
            suppressed: suppressed.into_suppressed(&ignore),
            repositories: repositories.repositories(),
            processes: processes.into_records(),
            blobs,
            files: Files { table, repositories, finished, afters },
        })
    }
}

/// The directory that was looked into last: paths come in order.
#[derive(Debug, Default)]
struct Parents(Option<(Vec<u8>, Opened)>);

/// A directory; none where there is none.
type Opened = Result<Option<OwnedFd>, Hidden>;

/// A place that we may not look at.
#[derive(Debug, Clone, Copy)]
struct Hidden;

impl Parents {
    /// What is at a real path; nothing, where a directory on the way has become a link.
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
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW | AtFlags::AT_EMPTY_PATH;
        match nix::sys::stat::fstatat(directory, name, flags) {
            Err(nix::errno::Errno::EACCES) => Err(Hidden),
            found => Ok(found.ok()),
        }
    }
}

impl Known {
    /// What is said of a path whose file was on a mount that is gone, or is hidden by one that came: its
    /// state is the one before, or where a call has changed it, nothing.
    fn displaced(&mut self, record: RecordId) -> Option<After> {
        if !self.is_changed(record) {
            return Some(self.unseen_after(record));
        }
        let path = self.table.path(record);
        self.warnings.lost(WarningKind::MountNamespace, None, || {
            format!(
                "{} was changed on a mount that is gone, or below one that came later, and is left out",
                String::from_utf8_lossy(path)
            )
        });
        None
    }

    /// A file that was changed by a name, and has another that no link connects with it.
    fn tell_files_named_twice(&mut self, afters: &[(RecordId, After)]) {
        let table = &self.table;
        let files = afters.iter().filter_map(|(record, after)| {
            let stat = after.stat(*record, table).filter(|stat| stat.is_regular() && stat.nlink == 1)?;
            Some((*record, stat.inode()))
        });
        let changed = |record: RecordId| table.get(record).operations.intersects(Operations::CHANGES);
        for (first, second) in
            named_twice(files).into_iter().filter(|pair| changed(pair.0) || changed(pair.1))
        {
            self.warnings.lost(WarningKind::MountNamespace, None, || {
                let [first, second] = [first, second].map(|record| String::from_utf8_lossy(table.path(record)));
                format!("{first} and {second} are one file, perhaps by a bind mount: which bytes it had before is not told of both")
            });
        }
    }

    /// Leaves out the records that can't be true beside others, and says so.
    fn leave_out_misfits(&mut self, mut afters: Vec<(RecordId, After)>) -> Vec<(RecordId, After)> {
        let table = &self.table;
        let mut misfits: Vec<RecordId> = Vec::new();
        afters.retain(|(record, after)| {
            // A link whose target nobody can read any more is none that could be made again.
            let known = table.get(*record);
            let link = known.before.is_some_and(|stat| stat.is_link());
            let unread = link && known.extra.as_ref().is_none_or(|extra| extra.target.is_none());
            if unread || after.is_unread() {
                misfits.push(*record);
            }
            !(unread || after.is_unread())
        });
        let found =
            fit::beneath_no_directory(table, &afters, |(record, _)| (*record, table.get(*record).before));
        afters.retain(|(record, _)| !found.contains(record));
        misfits.extend(found);
        let found = fit::beneath_no_directory(table, &afters, |(record, after)| {
            (*record, after.stat(*record, table))
        });
        afters.retain(|(record, _)| !found.contains(record));
        misfits.extend(found);
        for record in misfits {
            let path = table.path(record);
            self.warnings.lost(WarningKind::ExternalChange, None, || {
                format!(
                    "{} was changed from outside while it was looked at, and is left out",
                    String::from_utf8_lossy(path)
                )
            });
        }
        afters
    }

    /// The state of a path at the end; none where nothing is known of it.
    fn after(&mut self, record: RecordId, parents: &mut Parents, git_epoch: u32) -> Option<After> {
        let path = self.table.path(record).to_vec();
        let Ok(mut found) = parents.lstat(&path) else { return self.hidden(record) };
        let mut target = None;
        if found.as_ref().is_some_and(resolve::is_link) {
            target = rustix::fs::readlink(path.as_slice(), Vec::new()).ok();
            if target.is_none() {
                // Somebody has replaced it since.
                let Ok(now) = parents.lstat(&path) else { return self.hidden(record) };
                found = now;
            }
        }
        let stat = found.as_ref().map(Stat::from);
        let observation = self.table.get(record);
        // What nobody has asked to pin is compared without.
        let pin = observation.pin_asked || observation.before != stat;
        let git = match observation.git {
            // No call that is known has changed the file: its times may have been put back.
            Some(facts)
                if observation.git_epoch == git_epoch
                    && observation.before == stat
                    && observation.changes == 0
                    && self.table.get(self.table.keeper(record)).changes == 0 =>
            {
                Some(facts)
            }
            Some(_) => self.repositories.classify_again(&path, found.as_ref(), pin),
            // A working tree may have come to hold it since.
            None if observation.git_epoch != git_epoch && self.repositories.may_hold(&path) => {
                self.repositories.classify_again(&path, found.as_ref(), pin)
            }
            None => None,
        };
        self.tell_external_change(record, stat.as_ref());
        let observation = self.table.get(record);
        let extra = observation.extra.as_deref();
        let listed = extra.is_some_and(|extra| extra.entries.is_some());
        let entries = match stat {
            Some(now) if listed && now.is_directory() => live::entries_digest(&path).ok(),
            _ => None,
        };
        let xattrs = match stat {
            Some(now) if !now.is_link() && self.may_have_xattrs(record) => {
                live::xattrs(&path).unwrap_or_default()
            }
            _ => BTreeMap::new(),
        };
        let target = target.map(|target| target.into_bytes());
        let as_before = stat == observation.before
            && (git.is_none() || git == observation.git)
            && target.as_ref() == extra.and_then(|extra| extra.target.as_ref())
            && entries == extra.and_then(|extra| extra.entries)
            && xattrs.is_empty();
        let content = match stat {
            Some(now) if now.is_regular() => self.content_after(record, &path, &now),
            _ => AfterContent::None,
        };
        if as_before {
            return Some(After::AsBefore(content));
        }
        let more = More { git, target, entries, xattrs };
        let more = (more != More::default()).then(|| Box::new(more));
        Some(match (stat, &more) {
            (None, None) => After::Absent,
            _ => After::Now(Box::new(Now { stat, content, more })),
        })
    }

    /// Whether a file has been changed by one of its names, or had extended attributes before.
    fn may_have_xattrs(&self, record: RecordId) -> bool {
        let keeper = self.table.get(self.table.keeper(record));
        let had = keeper.extra.as_ref().is_some_and(|extra| !extra.xattrs.is_empty());
        had || keeper.changes > 0 || self.table.get(record).changes > 0
    }

    /// What is said of a path that the tree has left behind a directory that we may not search.
    ///
    /// What no call has changed is as before, and what was removed and not made again is gone. Of what was
    /// changed otherwise no more is known than that it may be there; nothing, if it was not there before.
    fn hidden(&mut self, record: RecordId) -> Option<After> {
        if !self.is_changed(record) {
            return Some(self.unseen_after(record));
        }
        let observation = self.table.get(record);
        if observation.deleted && !observation.written {
            return Some(After::Absent);
        }
        let before = observation.before.filter(|before| !before.is_link());
        let path = self.table.path(record);
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
    fn is_changed(&self, record: RecordId) -> bool {
        let observation = self.table.get(record);
        let file = self.table.get(self.table.keeper(record));
        observation.operations.intersects(Operations::CHANGES)
            || observation.replaced
            || observation.overwritten
            || file.overwritten
    }

    /// The state of a path that nobody has changed and that can't be looked at.
    fn unseen_after(&self, record: RecordId) -> After {
        After::AsBefore(match self.table.get(record).before {
            Some(stat) if stat.is_regular() => AfterContent::SameAsBefore,
            _ => AfterContent::None,
        })
    }

    fn content_after(&mut self, record: RecordId, path: &[u8], now: &Stat) -> AfterContent {
        let observation = self.table.get(record);
        let keeper = self.table.keeper(record);
        let file = self.table.get(keeper);
        let replaced = observation.replaced || observation.overwritten || file.overwritten;
        let now = &observation.as_known(*now);
        let before = observation.before.filter(|_| !replaced);
        if before.is_some_and(|before| before.same_state(now)) {
            return AfterContent::SameAsBefore;
        }
        if observation.append_only {
            return AfterContent::None;
        }
        // Only metadata changed: these are the bytes of the before-state, too.
        let untouched = before.is_some_and(|before| before.same_content(now, file.touched));
        if untouched && self.table.content(record) != Content::NotNeeded {
            return AfterContent::SameAsBefore;
        }
        if self.is_pseudo(now.dev, record) {
            return AfterContent::None;
        }
        if let Some(ticket) = self.moved_content(record, now) {
            return AfterContent::Taken(ticket);
        }
        match self.capture.hold(path, Fate::Survive) {
            Held::Omitted(reason) => {
                self.omitted(record, reason);
                AfterContent::Omitted(reason)
            }
            held => {
                let side = if untouched { Side::Before } else { Side::After };
                let store = self.options.max_blob_bytes.is_none_or(|limit| now.size <= limit);
                let ticket = self.capture.submit(blob_key(side, path), held, None, store);
                if untouched {
                    self.table.get_mut(keeper).content = Content::Kept(ticket);
                }
                AfterContent::Taken(ticket)
            }
        }
    }

    /// The bytes of a file that was renamed to here and not changed otherwise: those that it had by its
    /// former name.
    fn moved_content(&self, record: RecordId, now: &Stat) -> Option<Ticket> {
        let observation = self.table.get(record);
        let from = self.table.renamed_from(record)?;
        let former = self.table.get(from);
        let keeper = self.table.get(self.table.keeper(from));
        let by_the_rename_alone = |known: &PathObservation| known.changes == 1 && !known.inherited;
        let unchanged = by_the_rename_alone(observation)
            && by_the_rename_alone(former)
            && !(keeper.overwritten || keeper.touched)
            && former.before?.same_content(now, false);
        match self.table.content(from) {
            Content::Kept(ticket) if unchanged => Some(ticket),
            _ => None,
        }
    }

    /// A file that changed though no traced call changed it.
    fn tell_external_change(&mut self, record: RecordId, now: Option<&Stat>) {
        let observation = self.table.get(record);
        let file = self.table.get(self.table.keeper(record));
        let overwritten = observation.overwritten || file.overwritten;
        if observation.operations.intersects(Operations::CHANGES) || observation.replaced || overwritten {
            return;
        }
        let known = now.map(|now| observation.as_known(*now));
        let now = known.as_ref();
        let changed = match (&observation.before, now) {
            (None, None) => false,
            (Some(before), Some(now)) => {
                let attributes = |stat: &Stat| (stat.mode, stat.uid, stat.gid);
                // Another target makes another link, perhaps with the same number.
                ((before.is_regular() || before.is_link()) && !before.same_content(now, file.touched))
                    || (before.mode ^ now.mode) & libc::S_IFMT != 0
                    || (!file.touched && attributes(before) != attributes(now))
            }
            _ => true,
        };
        let dev = now.or(observation.before.as_ref()).map(|stat| stat.dev);
        // Files of the kernel's own file systems change by themselves.
        if changed && !dev.is_some_and(|dev| self.is_pseudo(dev, record)) {
            let path = self.table.path(record);
            self.warnings.lost(WarningKind::ExternalChange, None, || {
                format!("{} changed, though no recorded call changed it", String::from_utf8_lossy(path))
            });
        }
    }
}

impl Files {
    /// The records in order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = FileRecord> {
        self.afters.iter().map(|(record, after)| self.record(*record, after))
    }

    fn record(&self, record: RecordId, after: &After) -> FileRecord {
        let observation = self.table.get(record);
        let path = self.table.path(record).to_vec();
        let path_of = |other: Option<RecordId>| {
            other
                .filter(|other| !self.table.get(*other).operations.is_empty())
                .map(|other| self.table.path(other).to_vec())
        };
        let count = observation.processes.count_beyond_named();
        FileRecord {
            operations: observation.operations,
            processes: observation.processes.named(),
            process_count: count.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            inherited: observation.inherited,
            renamed_from: path_of(self.table.renamed_from(record)),
            renamed_to: path_of(self.table.renamed_to(record)),
            before: self.before(record, observation),
            after: self.after(record, observation, after),
            git: observation.git.as_ref().map(|facts| self.repositories.state(facts, &path)),
            git_after: match after {
                After::AsBefore(_) | After::Absent => None,
                After::Now(now) => now
                    .git()
                    .filter(|facts| observation.git.as_ref() != Some(facts))
                    .map(|facts| self.repositories.state(facts, &path)),
            },
            path,
        }
    }

    fn before(&self, record: RecordId, observation: &PathObservation) -> State {
        let Some(stat) = observation.before else { return State::Absent { tombstone: false } };
        let mut present = present(&stat);
        if let Some(extra) = observation.extra.as_deref() {
            present.target.clone_from(&extra.target);
            present.entries_digest = extra.entries;
        }
        if let Some(extra) = self.table.get(self.table.keeper(record)).extra.as_deref() {
            present.xattrs.clone_from(&extra.xattrs);
        }
        self.put_before_content(record, &mut present);
        State::Present(Box::new(present))
    }

    fn put_before_content(&self, record: RecordId, present: &mut Present) {
        match self.table.content(record) {
            Content::NotNeeded | Content::Pinned => {}
            Content::Read(ticket) | Content::Kept(ticket) => {
                let outcome = self.finished.outcome(ticket, present.size);
                put(present, outcome);
            }
            Content::Omitted(reason) => present.blob_omitted = Some(reason),
        }
    }

    fn after(&self, record: RecordId, observation: &PathObservation, after: &After) -> State {
        let Some(stat) = after.stat(record, &self.table) else {
            return State::Absent { tombstone: observation.deleted };
        };
        let mut present = present(&stat);
        match after {
            After::AsBefore(_) => {
                if let Some(extra) = observation.extra.as_deref() {
                    present.target.clone_from(&extra.target);
                    present.entries_digest = extra.entries;
                }
            }
            After::Now(now) => {
                if let Some(more) = now.more.as_deref() {
                    present.target.clone_from(&more.target);
                    present.entries_digest = more.entries;
                    present.xattrs.clone_from(&more.xattrs);
                }
            }
            After::Absent => {}
        }
        match after.content() {
            AfterContent::None => {}
            AfterContent::SameAsBefore => self.put_before_content(record, &mut present),
            AfterContent::Taken(ticket) => {
                let outcome = self.finished.outcome(ticket, present.size);
                put(&mut present, outcome);
            }
            AfterContent::Omitted(reason) => present.blob_omitted = Some(reason),
        }
        State::Present(Box::new(present))
    }
}

fn put(present: &mut Present, outcome: Outcome) {
    present.digest = outcome.digest;
    present.blob = outcome.blob.as_deref().map(str::to_owned);
    present.blob_omitted = outcome.omitted;
}

fn present(stat: &Stat) -> Present {
    let file_type = FileType::from_mode(stat.mode).unwrap_or(FileType::File);
    let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    Present {
        file_type,
        mode: stat.mode,
        mtime: stat.mtime,
        mtime_nsec: stat.mtime_nsec,
        size: stat.size,
        uid: stat.uid,
        gid: stat.gid,
        dev: stat.dev,
        ino: stat.ino,
        nlink: stat.nlink,
        target: None,
        rdev: device.then_some(stat.rdev),
        entries_digest: None,
        xattrs: BTreeMap::new(),
        digest: None,
        blob: None,
        blob_omitted: None,
    }
}
