//! The bytes and attributes that a record needs of its before-state, taken before a call may change
//! them.
//!
//! They are the file's, not the name's: of a file with several names one record keeps them, its
//! keeper, and the records of its other names refer to it. Neighbours: `recorder.rs` and `changes.rs`
//! say which call needs what, `capture.rs` stores it.

use std::collections::HashMap;

use nix::sys::stat::FileStat;

use super::capture::{Fate, Held, Ticket};
use super::changes::Part;
use super::recorder::State;
use super::resolve;
use super::table::{Content, PathObservation, ProcessId, RecordId, Stat, Table};
use crate::snapshot::blobs::{Side, blob_key};
use crate::snapshot::{BlobOmitted, Operation, Operations, WarningKind, live};
use crate::trace::syscalls::Effect;

/// The keepers of files with several names, by device and inode.
#[derive(Debug, Default)]
pub(super) struct Keepers(HashMap<(u64, u64), RecordId, foldhash::fast::RandomState>);

impl Keepers {
    /// The record that keeps the before-state of a file that has, or had, several names.
    pub fn find(&self, stat: &FileStat) -> Option<RecordId> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(stat.st_dev, stat.st_ino)).copied()
    }
}

/// Bytes that are safe from the held call, for the record that keeps them.
#[derive(Debug)]
pub(super) struct Holding {
    keeper: RecordId,
    held: Held,
}

/// The bytes that calls under way hold, by keeper: whether another call relies on them.
///
/// Such a call finds the file as the first one may have left it already.
#[derive(Debug, Default)]
pub(super) struct Holdings(HashMap<RecordId, bool, foldhash::fast::RandomState>);

impl Holdings {
    /// Whether a call under way holds the bytes of `keeper`; they are then kept whatever comes of it.
    fn share(&mut self, keeper: RecordId) -> bool {
        self.0.get_mut(&keeper).is_some_and(|shared| {
            *shared = true;
            true
        })
    }
}

impl State {
    /// Asks Git for the blob that has the bytes of a record, once, now that bytes matter.
    fn pin(&mut self, record: RecordId, now: Option<&FileStat>) {
        let observation = self.table.get_mut(record);
        let same = observation.before == now.map(Stat::from);
        if observation.git.is_none() || observation.replaced || !same {
            return;
        }
        if !std::mem::replace(&mut observation.pin_asked, true) {
            let found = self.repositories.classify_again(self.table.path(record), now, true);
            let observation = self.table.get_mut(record);
            let first = observation.git.as_mut().expect("it was asked what is known");
            // All else stays as at first sight; what has become of it is asked at the end.
            if first.take_pin(found.as_ref()) {
                observation.git_epoch = self.repositories.epoch();
            }
        }
    }

    /// Sees to the bytes of a file that is read or executed.
    pub fn read_content(&mut self, record: RecordId, now: Option<&FileStat>) {
        let observation = self.table.get(record);
        if observation.content != Content::NotNeeded {
            return;
        }
        self.pin(record, now);
        let observation = self.table.get(record);
        if !observation.replaced && observation.git.as_ref().is_some_and(|facts| facts.oid().is_some()) {
            self.table.get_mut(record).content = Content::Pinned;
            return;
        }
        let Some((keeper, before)) = self.keeper(record, now) else { return };
        if self.table.get(keeper).content != Content::NotNeeded
            || self.is_pseudo(before.dev, record)
            || self.holdings.share(keeper)
        {
            return;
        }
        self.check_late(keeper, &before, now);
        let held = self.capture.hold(self.table.path(record), Fate::Survive);
        let content = match held {
            Held::Omitted(reason) => Content::Omitted(reason),
            held => {
                let store = before.size <= self.options.max_read_bytes;
                Content::Read(self.hand_in(keeper, held, before, store))
            }
        };
        self.table.get_mut(keeper).content = content;
    }

    /// The bytes of a file that the held call may destroy; none where they are safe already.
    pub fn hold_content(&mut self, record: RecordId, now: Option<&FileStat>, fate: Fate) -> Option<Holding> {
        if fate == Fate::Overwritten
            && let Some(now) = now
        {
            self.capture.settle((now.st_dev, now.st_ino));
        }
        self.pin(record, now);
        let (keeper, before) = self.keeper(record, now)?;
        match self.table.get(keeper).content {
            Content::Kept(_) => return None,
            // Stored already, unless it was too large for what is only read.
            Content::Read(ticket) if before.size <= self.options.max_read_bytes => {
                self.table.get_mut(keeper).content = Content::Kept(ticket);
                return None;
            }
            _ => {}
        }
        if self.is_pseudo(before.dev, record) || self.holdings.share(keeper) {
            return None;
        }
        self.check_late(keeper, &before, now);
        self.holdings.0.insert(keeper, false);
        Some(Holding { keeper, held: self.capture.hold(self.table.path(record), fate) })
    }

    /// The record that keeps the before-state of the file that is at `record` now, and that state;
    /// none where no record's before-state has these bytes.
    fn keeper(&self, record: RecordId, now: Option<&FileStat>) -> Option<(RecordId, Stat)> {
        if let Some(keeper) = now.and_then(|now| self.keepers.find(now)) {
            let observation = self.table.get(keeper);
            let before = observation.before.filter(Stat::is_regular)?;
            return (!observation.overwritten).then_some((keeper, before));
        }
        let observation = self.table.get(record);
        let before = observation.before.filter(Stat::is_regular)?;
        (!observation.replaced).then_some((record, before))
    }

    /// Drops the bytes that a call held which has changed nothing, unless another call relies on them.
    pub fn release_all(&mut self, holdings: impl IntoIterator<Item = Holding>) {
        for holding in holdings {
            if self.holdings.0.get(&holding.keeper) == Some(&true) {
                self.keep_content(holding);
            } else {
                self.holdings.0.remove(&holding.keeper);
            }
        }
    }

    /// Hands in bytes that the tree may now destroy.
    pub fn keep_content(&mut self, Holding { keeper, held }: Holding) {
        self.holdings.0.remove(&keeper);
        let Some(before) = self.table.get(keeper).before else { return };
        self.table.get_mut(keeper).content = match held {
            Held::Omitted(reason) => {
                self.omitted(keeper, reason);
                Content::Omitted(reason)
            }
            held => {
                let store = self.options.max_blob_bytes.is_none_or(|limit| before.size <= limit);
                Content::Kept(self.hand_in(keeper, held, before, store))
            }
        };
    }

    fn hand_in(&mut self, record: RecordId, held: Held, before: Stat, store: bool) -> Ticket {
        let key = blob_key(Side::Before, self.table.path(record));
        self.capture.submit(key, held, Some(before.inode()), store)
    }

    /// Tells that the bytes of a record could not be had.
    pub fn omitted(&mut self, record: RecordId, reason: BlobOmitted) {
        let path = self.table.path(record);
        self.warnings.lost(WarningKind::ContentOmitted, None, || {
            format!("the bytes of {} are not stored ({})", String::from_utf8_lossy(path), reason.name())
        });
    }

    fn check_late(&mut self, keeper: RecordId, before: &Stat, now: Option<&FileStat>) {
        let touched = self.table.get(keeper).touched;
        let known = |now: &FileStat| self.table.get(keeper).as_known(Stat::from(now));
        if now.is_none_or(|now| before.same_content(&known(now), touched)) {
            return;
        }
        let path = self.table.path(keeper);
        self.warnings.lost(WarningKind::LateBeforeState, None, || {
            format!(
                "{} changed between its first sight and the first call that needed its bytes",
                String::from_utf8_lossy(path)
            )
        });
    }

    /// Takes the extended attributes of a path that the held call may change, once.
    pub fn take_xattrs(&mut self, record: RecordId, now: Option<&FileStat>) {
        let keeper = now.and_then(|now| self.keepers.find(now));
        let named = keeper.is_some();
        let keeper = keeper.unwrap_or(record);
        let observation = self.table.get_mut(keeper);
        if std::mem::replace(&mut observation.xattrs_taken, true)
            || (observation.replaced && !named)
            || observation.before.is_none_or(|before| before.is_link())
        {
            return;
        }
        let Ok(xattrs) = live::xattrs(self.table.path(record)) else { return };
        // Most files have none, and most records no rarer facts.
        if !xattrs.is_empty() {
            self.table.get_mut(keeper).extra_mut().xattrs = xattrs;
        }
    }

    /// Notes at first sight that a file is known by another name, which may be gone: what it was is
    /// known once.
    pub fn meet_names(&self, observation: &mut PathObservation, stat: Option<&FileStat>) {
        // An outside program may have freed the number, and something of another type have got it.
        let same_type = |keeper: &RecordId| {
            let types = [self.table.get(*keeper).before, observation.before];
            types[0].map(|stat| stat.mode & libc::S_IFMT) == types[1].map(|stat| stat.mode & libc::S_IFMT)
        };
        if let Some(keeper) = stat.and_then(|stat| self.keepers.find(stat)).filter(same_type) {
            observation.before = self.table.get(keeper).before;
            observation.extra_mut().keeper = Some(keeper);
        }
    }

    /// The same, now that it has a record.
    pub fn keep_names(&mut self, record: RecordId) {
        let before = self.table.get(record).before;
        if let Some(before) = before.filter(|before| before.nlink > 1 && !before.is_directory()) {
            self.keepers.0.entry(before.inode()).or_insert(record);
        }
    }

    /// Notes that the file at `record` is about to get another name.
    pub fn name_again(&mut self, record: RecordId, now: Option<&FileStat>) {
        let Some(now) = now.filter(|now| !resolve::is_directory(now)) else { return };
        let inode = (now.st_dev, now.st_ino);
        let observation = self.table.get(record);
        if observation.before.is_some_and(|before| before.inode() == inode) {
            self.keepers.0.entry(inode).or_insert(record);
        } else if observation.changes > 0 {
            // What came here by a rename may now change by a name that nobody connects with this one.
            self.count_change(record);
        }
    }

    /// Notes that the call which was just made has let an overlay copy the file to its upper layer.
    ///
    /// The copy may have another device and inode number, and no other names: where it had some, or where
    /// the layers are on several file systems (the kernel's overlayfs.rst, "Inode properties").
    pub(super) fn note_copy_up(&mut self, record: RecordId, part: &Part) {
        let Some(stat) = part.stat.filter(resolve::is_regular) else { return };
        let (write, truncate) = match part.effect {
            Effect::Open(open) if open.write || open.truncate => (true, open.truncate),
            Effect::Truncate => (true, true),
            Effect::Metadata | Effect::LinkFrom => (false, false),
            _ => return,
        };
        if !self.is_overlay(stat.st_dev, &part.path) {
            return;
        }
        let Some(now) = resolve::lstat(&part.path).ok().flatten() else { return };
        let inode = (now.st_dev, now.st_ino);
        // A copy has the size and time of the file, unless the call itself has set them.
        let copy = Stat { dev: stat.st_dev, ino: stat.st_ino, ..Stat::from(&now) };
        let set_time = part.effect == Effect::Metadata;
        if inode == (stat.st_dev, stat.st_ino)
            || !truncate && !Stat::from(&stat).same_content(&copy, set_time)
        {
            return;
        }
        let observation = self.table.get_mut(record);
        observation.extra_mut().copied_up = Some(inode);
        if !write && !observation.replaced {
            self.keepers.0.insert(inode, record);
        }
    }

    /// Notes that a file was changed in place: what its other names show has changed, too.
    pub fn changed_in_place(&mut self, process: ProcessId, stat: Option<&FileStat>, operations: Operations) {
        let Some(keeper) = stat.and_then(|stat| self.keepers.find(stat)) else { return };
        let observation = self.table.get_mut(keeper);
        let told =
            [Operation::Write, Operation::Metadata].into_iter().filter(|one| operations.contains(*one));
        told.for_each(|one| observation.merge(one.into(), process));
        observation.overwritten |= operations.contains(Operation::Write);
        observation.touched = true;
        self.count_change(keeper);
    }

    /// Notes that a name is gone: the number of a file without names may be used again.
    pub fn unnamed(&mut self, stat: Option<&FileStat>) {
        if let Some(stat) = stat.filter(|stat| stat.st_nlink == 1 && !resolve::is_directory(stat))
            && !self.keepers.0.is_empty()
        {
            self.keepers.0.remove(&(stat.st_dev, stat.st_ino));
        }
    }
}

impl Table {
    /// The record that keeps the before-state of the file that `record` names: itself, or another
    /// name's.
    pub fn keeper(&self, record: RecordId) -> RecordId {
        self.get(record).extra.as_ref().and_then(|extra| extra.keeper).unwrap_or(record)
    }

    /// Where the bytes of a record's before-state are.
    pub fn content(&self, record: RecordId) -> Content {
        match self.get(self.keeper(record)).content {
            Content::NotNeeded => self.get(record).content,
            content => content,
        }
    }
}
