//! Groups the records by what became of them.

use std::collections::HashSet;

use super::super::paths::Selection;
use super::fold::by_component;
use super::git::names_git_state;
use crate::cli::Show;
use crate::git::below;
use crate::snapshot::change::{PathEffect, origin};
use crate::snapshot::wire::names;
use crate::snapshot::{FileRecord, Operation, Operations, Snapshot};

/// What became of a path or was done with it, as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShownStatus {
    /// It existed before and after, and is different.
    Changed,
    /// It did not exist before.
    Created,
    /// It does not exist any more.
    Deleted,
    /// It was created only for something to be mounted there.
    MountPoint,
    /// It was created and removed again.
    Temporary,
    /// It was written or touched, and is as before.
    Unaltered,
    /// It was only read, executed or listed.
    Read,
    /// Only its existence or metadata was looked up.
    Existence,
}

names!(ShownStatus {
    Changed = "changed",
    Created = "created",
    Deleted = "deleted",
    MountPoint = "mount_point",
    Temporary = "temporary",
    Unaltered = "unaltered",
    Read = "read",
    Existence = "existence",
});

impl ShownStatus {
    /// The status of a record.
    pub fn of(record: &FileRecord) -> ShownStatus {
        match PathEffect::of(record) {
            PathEffect::Changed => ShownStatus::Changed,
            PathEffect::Created => ShownStatus::Created,
            PathEffect::Deleted => ShownStatus::Deleted,
            PathEffect::MountPoint => ShownStatus::MountPoint,
            PathEffect::Temporary => ShownStatus::Temporary,
            PathEffect::Unaltered => ShownStatus::Unaltered,
            PathEffect::None if is_input(record) => ShownStatus::Read,
            PathEffect::None => ShownStatus::Existence,
        }
    }
}

/// Whether the record's content, or the names in it, were read.
fn is_input(record: &FileRecord) -> bool {
    const INPUT: Operations =
        Operations::NONE.with(Operation::Read).with(Operation::Directory).with(Operation::Execute);
    record.operations.intersects(INPUT)
}

/// Selects the records that the options ask for.
#[derive(Debug)]
pub struct Filter<'a> {
    args: &'a Show,
    selection: Selection,
}

impl<'a> Filter<'a> {
    /// The filter of `args`, whose paths are those of `selection`.
    pub fn new(args: &'a Show, selection: Selection) -> Filter<'a> {
        Filter { args, selection }
    }

    /// The paths that were asked for.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Whether options ask for certain statuses.
    pub fn is_of_status(&self) -> bool {
        let Show { changed, created, deleted, read, existence, .. } = self.args;
        *changed || *created || *deleted || *read || *existence
    }

    /// Whether options select certain paths or processes.
    pub fn is_of_place(&self) -> bool {
        self.selection.is_explicit() || self.args.process.is_some()
    }

    /// Whether `record` is listed: Git's state is only with `--long`, or if it is named.
    pub fn takes(&self, record: &FileRecord) -> bool {
        let is_listed =
            !record.is_git_state || self.args.long || names_git_state(&self.selection, &record.path);
        is_listed && self.selects(record)
    }

    /// Whether `record` is one of those that the options select, Git's state included.
    pub fn selects(&self, record: &FileRecord) -> bool {
        let by_status = |status| match status {
            ShownStatus::Changed => self.args.changed,
            ShownStatus::Created | ShownStatus::MountPoint => self.args.created,
            ShownStatus::Deleted => self.args.deleted,
            ShownStatus::Existence => self.args.existence,
            ShownStatus::Temporary | ShownStatus::Unaltered | ShownStatus::Read => false,
        };
        self.selection.contains(&record.path)
            && self.args.process.is_none_or(|process| record.processes.contains(&process))
            && (!self.is_of_status()
                || by_status(ShownStatus::of(record))
                || self.args.read && is_input(record))
    }
}

/// The groups of the text output, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "their headings say it")]
pub enum PathGroup {
    Changed,
    Renamed,
    Created,
    Deleted,
    MountPoint,
    Temporary,
    Unaltered,
    Inherited,
    GitState,
    Read,
    Existence,
}

names!(PathGroup {
    Changed = "changed",
    Renamed = "renamed",
    Created = "created",
    Deleted = "deleted",
    MountPoint = "mount_point",
    Temporary = "temporary",
    Unaltered = "unaltered",
    Inherited = "inherited",
    GitState = "git",
    Read = "read",
    Existence = "existence",
});

impl PathGroup {
    /// Whether the command made these differences, by the names of the paths.
    pub fn is_change(self) -> bool {
        match self {
            PathGroup::Changed | PathGroup::Renamed | PathGroup::Created | PathGroup::Deleted => true,
            PathGroup::MountPoint
            | PathGroup::Temporary
            | PathGroup::Unaltered
            | PathGroup::Inherited
            | PathGroup::GitState
            | PathGroup::Read
            | PathGroup::Existence => false,
        }
    }
}

/// One path of a group.
#[derive(Debug, Clone)]
pub struct ListedPath<'s> {
    /// The record.
    pub record: &'s FileRecord,
    /// The path below the directory where the command was started, or the absolute path.
    pub name: &'s [u8],
    /// The record of the path that was renamed to this one.
    pub origin: Option<&'s FileRecord>,
    /// How many paths moved with it, beneath a renamed directory.
    pub beneath: usize,
}

/// The groups that are not empty.
pub struct PathGroups<'s>(pub Vec<(PathGroup, Vec<ListedPath<'s>>)>);

impl<'s> PathGroups<'s> {
    /// Groups the records that `filter` takes.
    ///
    /// A renamed path is listed once, under its new name, unless the filter selects only one of the two.
    /// The paths beneath a renamed directory are counted, or listed with `in_full`.
    pub fn new(snapshot: &'s Snapshot, filter: &Filter, in_full: bool) -> PathGroups<'s> {
        let start = snapshot.header().start_cwd.as_slice();
        let taken: Vec<_> = snapshot.records().into_iter().filter(|record| filter.takes(record)).collect();
        let origins = taken.iter().map(|record| match ShownStatus::of(record) {
            ShownStatus::Created => origin(snapshot, record),
            _ => None,
        });
        let origins: Vec<_> = origins.collect();
        let is_one = |to: &FileRecord, from: &FileRecord| {
            ShownStatus::of(from) == ShownStatus::Deleted && filter.takes(from) && !to.inherited
        };
        let mut moved: HashSet<&[u8]> = HashSet::new();
        let mut groups: Vec<(PathGroup, ListedPath)> = Vec::with_capacity(taken.len());
        for (record, origin) in taken.iter().zip(&origins) {
            let origin = *origin;
            let is_renamed = !record.is_git_state
                && origin.is_some_and(|from| is_one(record, from) && moved.insert(&from.path));
            let group = if is_renamed { PathGroup::Renamed } else { group(record, filter.selection()) };
            let entry = ListedPath { record, name: name(&record.path, start), origin, beneath: 0 };
            groups.push((group, entry));
        }
        groups.retain(|(_, entry)| !moved.contains(entry.record.path.as_slice()));
        groups.sort_by(|(group, entry), (other_group, other)| {
            group.cmp(other_group).then_with(|| by_component(entry.name, other.name))
        });
        let parts = groups.chunk_by(|(one, _), (other, _)| one == other);
        let parts = parts.map(|part| {
            let entries: Vec<_> = part.iter().map(|(_, entry)| entry.clone()).collect();
            let group = part[0].0;
            (group, if group == PathGroup::Renamed && !in_full { topmost(entries) } else { entries })
        });
        PathGroups(parts.collect())
    }
}

fn group(record: &FileRecord, selection: &Selection) -> PathGroup {
    if record.is_git_state {
        return PathGroup::GitState;
    }
    let status = ShownStatus::of(record);
    let is_of_others = record.is_inherited_alone() && !selection.names(&record.path);
    match status {
        // A log that the shell redirects to is not a change that the command made.
        ShownStatus::Changed | ShownStatus::Created | ShownStatus::Deleted | ShownStatus::Unaltered
            if is_of_others =>
        {
            PathGroup::Inherited
        }
        ShownStatus::Changed => PathGroup::Changed,
        ShownStatus::Created => PathGroup::Created,
        ShownStatus::Deleted => PathGroup::Deleted,
        ShownStatus::MountPoint => PathGroup::MountPoint,
        ShownStatus::Temporary => PathGroup::Temporary,
        ShownStatus::Unaltered => PathGroup::Unaltered,
        ShownStatus::Read => PathGroup::Read,
        ShownStatus::Existence => PathGroup::Existence,
    }
}

/// The renamed paths without those that moved with a directory.
fn topmost(entries: Vec<ListedPath>) -> Vec<ListedPath> {
    let mut top: Vec<ListedPath> = Vec::new();
    for entry in entries {
        // Paths beneath a directory directly follow it.
        let along = top.last_mut().filter(|last| {
            let below_new = below(&entry.record.path, &last.record.path);
            let below_old = entry.origin.zip(last.origin).and_then(|(own, old)| below(&own.path, &old.path));
            below_new.is_some() && below_new == below_old
        });
        match along {
            Some(last) => last.beneath += 1,
            None => top.push(entry),
        }
    }
    top
}

/// The name to list a path under.
fn name<'p>(path: &'p [u8], start: &[u8]) -> &'p [u8] {
    match below(path, start) {
        _ if start == b"/" => path,
        Some(b"") => b".",
        Some(relative) => relative,
        None => path,
    }
}
