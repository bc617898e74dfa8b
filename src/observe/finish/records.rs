//! Makes the manifest's records of what the ledger knows and what was found at the end, one by one.
//!
//! Neighbours: `after.rs` has what was found, `capture.rs` what became of the bytes.

use std::collections::{BTreeMap, HashSet};

use super::after::{After, AfterContent};
use crate::fs::parent_of;
use crate::git::{self, GitFacts, Repositories};
use crate::observe::capture::{Capture, Outcome};
use crate::observe::git_state::ExtractedObject;
use crate::observe::ledger::Ledger;
use crate::observe::ledger::ids::{InodeId, NameId};
use crate::observe::ledger::inodes::{Attributes, Content, Inode, Stat};
use crate::observe::ledger::names::Name;
use crate::observe::processes::ProcessTable;
use crate::snapshot::change::PathEffect;
use crate::snapshot::relinked::{NameStates, NamedFile, relinked};
use crate::snapshot::{BlobOmitted, FileRecord, FileType, GitStatus, Operations, Present, State};

/// The records of a recording, made one by one.
pub struct Files<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) repositories: &'a Repositories,
    pub(super) capture: &'a Capture,
    pub(super) processes: &'a ProcessTable,
    pub(super) afters: &'a [(NameId, After)],
    /// The names that serve only as mount points.
    pub(super) mount_points: HashSet<NameId>,
    /// The names that are of another file, with other hard links than before.
    pub(super) relinked: HashSet<NameId>,
    /// Objects that were taken out of removed packs.
    pub(super) extracted: &'a BTreeMap<Vec<u8>, ExtractedObject>,
}

/// The names that serve as mount points at the end, and as nothing else.
pub(super) fn mere_mount_points(ledger: &Ledger, afters: &[(NameId, After)]) -> HashSet<NameId> {
    if ledger.mount_points.is_empty() {
        return HashSet::new();
    }
    let made = afters.iter().filter(|(id, _)| ledger.names.get(*id).before.is_none());
    let made = made.filter_map(|(id, after)| Some((*id, after.stat(*id, ledger)?)));
    let (points, others): (Vec<_>, Vec<_>) = made.partition(|(id, stat)| {
        ledger.mount_points.contains(id) && (stat.is_directory() || stat.is_regular() && stat.size == 0)
    });
    let mut points: HashSet<NameId> = points.into_iter().map(|(id, _)| id).collect();
    for (id, _) in others {
        let above = std::iter::successors(parent_of(ledger.names.path(id)), |path| parent_of(path));
        for directory in above.filter_map(|path| ledger.names.find(path)) {
            points.remove(&directory);
        }
    }
    points
}

/// The changed names that share a file with other names than before.
pub(super) fn relinked_names(ledger: &Ledger, afters: &[(NameId, After)]) -> HashSet<NameId> {
    let states = afters.iter().filter(|(_, after)| !matches!(after, After::NotKept)).map(|(id, after)| {
        let name = ledger.names.get(*id);
        let before = name.before.map(|before| ledger.inodes.get(before).before);
        NameStates {
            name: *id,
            is_changed: name.operations.intersects(Operations::CHANGES) && !name.is_git_state,
            files: [before, after.stat(*id, ledger)].map(|stat| NamedFile::of_stat(&stat?)),
        }
    });
    relinked(states)
}

impl Files<'_> {
    /// The records in order of their paths; of Git's state those of what is not as before.
    pub fn iter(&self) -> impl Iterator<Item = FileRecord> {
        let records = self.afters.iter().map(|(record, after)| self.record(*record, after));
        let seen = self.ledger.for_recall;
        let lasting = records.filter_map(move |record| {
            if !record.is_git_state || PathEffect::of(&record).lasts() {
                return Some(record);
            }
            // What was only read there is an input like any other.
            seen.then_some(FileRecord { is_git_state: false, ..record })
        });
        lasting.chain(self.extracted.values().map(|object| object.record(self.capture)))
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
        let count = name.uses.count_beyond_named();
        FileRecord {
            is_git_state: name.is_git_state,
            operations: name.operations,
            processes: name.uses.processes(),
            uses: self.processes.recorded_uses(&name.uses),
            seen: name.seen,
            process_count: count.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            inherited: name.inherited,
            changed_by_name: name.inherited && name.changed_by_name,
            mount_point: self.mount_points.contains(&id),
            changed_between_us: self.ledger.changed_between(id),
            renamed_from: path_of(names.renamed_from(id)),
            renamed_to: path_of(names.renamed_to(id)),
            linked_from: names.linked_from(id).iter().filter_map(|other| path_of(Some(*other))).collect(),
            relinked: self.relinked.contains(&id),
            before: if matches!(after, After::NotKept) { State::NotKept } else { self.before(name) },
            after: self.after(id, name, after),
            git: name.git.as_ref().map(|facts| git_status(self.repositories, facts, &path)),
            git_after: after
                .facts(self.ledger)
                .and_then(|facts| facts.git.as_ref())
                .filter(|facts| name.git.as_ref() != Some(facts))
                .map(|facts| git_status(self.repositories, facts, &path)),
            path,
        }
    }

    fn before(&self, name: &Name) -> State {
        let Some(id) = name.before else { return State::Absent { tombstone: false } };
        let mut present = present_before(self.ledger.inodes.get(id));
        present.entries_digest = name.entries();
        present.entry_types_digest = name.extra.as_ref().and_then(|extra| extra.entry_types);
        self.put_content_of(id, &mut present);
        State::Present(Box::new(present))
    }

    /// The bytes that an inode had before.
    fn put_content_of(&self, id: InodeId, present: &mut Present) {
        match self.ledger.inodes.get(id).content {
            Content::Unneeded | Content::InPlace | Content::Pinned => {}
            Content::Read(ticket) | Content::Digested(ticket) | Content::Kept(ticket) => {
                let outcome = self.capture.outcome(ticket, present.size);
                put(present, outcome);
            }
            Content::Omitted(reason) => present.blob_omitted = Some(reason),
        }
    }

    fn after(&self, id: NameId, name: &Name, after: &After) -> State {
        if matches!(after, After::NotKept) {
            return State::NotKept;
        }
        let Some(stat) = after.stat(id, self.ledger) else {
            return State::Absent { tombstone: name.removed };
        };
        let mut present = present(&stat);
        if matches!(after, After::AsBefore(_)) {
            present.target = self.ledger.before(id).and_then(|inode| inode.target().cloned());
            present.entries_digest = name.entries();
        } else if let Some(facts) = after.facts(self.ledger) {
            present.target.clone_from(&facts.target);
            present.entries_digest = facts.entries;
            put_attributes(&mut present, &facts.attributes);
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
                let outcome = self.capture.outcome(ticket, present.size);
                put(&mut present, outcome);
            }
            AfterContent::Omitted(reason) => present.blob_omitted = Some(reason),
            AfterContent::Hidden => present.blob_omitted = Some(BlobOmitted::Unreadable),
        }
        State::Present(Box::new(present))
    }
}

/// The before-state of an inode, without its content and entries.
pub(in crate::observe) fn present_before(inode: &Inode) -> Present {
    let mut present = present(&inode.before);
    if let Some(extra) = inode.extra.as_deref() {
        present.target.clone_from(&extra.target);
        put_attributes(&mut present, &extra.attributes);
    }
    present
}

fn put_attributes(present: &mut Present, attributes: &Attributes) {
    present.xattrs.clone_from(&attributes.xattrs);
    present.inode_flags.clone_from(&attributes.flags);
}

pub(in crate::observe) fn put(present: &mut Present, outcome: Outcome) {
    present.digest = outcome.digest;
    present.blob = outcome.blob.as_deref().map(str::to_owned);
    present.blob_omitted = outcome.omitted;
}

fn present(stat: &Stat) -> Present {
    Present::of(FileType::from_mode(stat.mode).unwrap_or(FileType::File), stat)
}

pub(in crate::observe) fn git_status(
    repositories: &Repositories,
    facts: &GitFacts,
    path: &[u8],
) -> GitStatus {
    let (root, head) = repositories.working_tree(facts);
    GitStatus {
        root: root.to_vec(),
        head: head.map(|id| id.to_string()),
        relative_path: git::below(path, root).unwrap_or_default().to_vec(),
        oid: facts.oid().map(ToString::to_string),
        tracked: facts.tracked(),
        dirty: facts.dirty(),
        ignored: facts.ignored(),
    }
}
