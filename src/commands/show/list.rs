//! What there is to show: each record in the group of what became of it.

use std::collections::HashSet;

use super::super::change::{PathEffect, origin};
use super::super::paths::{Selection, below};
use super::fold::by_component;
use crate::cli::Show;
use crate::snapshot::{FileRecord, Operation, Operations, Snapshot};

/// What became of a path or what was done with it, one word for each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShownStatus {
    /// It was there and is another now.
    Changed,
    /// It was not there and is now.
    Created,
    /// It was there and is not now.
    Deleted,
    /// It was made and removed again.
    Temporary,
    /// It was written or touched, and is as before.
    Unaltered,
    /// It was read, executed or listed, no more.
    Read,
    /// Its existence or metadata was asked for, no more.
    Existence,
}

impl ShownStatus {
    /// All of them.
    pub const ALL: [ShownStatus; 7] = [
        ShownStatus::Changed,
        ShownStatus::Created,
        ShownStatus::Deleted,
        ShownStatus::Temporary,
        ShownStatus::Unaltered,
        ShownStatus::Read,
        ShownStatus::Existence,
    ];

    /// The status of a record.
    pub fn of(record: &FileRecord) -> ShownStatus {
        match PathEffect::of(record) {
            PathEffect::Changed => ShownStatus::Changed,
            PathEffect::Created => ShownStatus::Created,
            PathEffect::Deleted => ShownStatus::Deleted,
            PathEffect::Temporary => ShownStatus::Temporary,
            PathEffect::Unaltered => ShownStatus::Unaltered,
            PathEffect::None if is_input(record) => ShownStatus::Read,
            PathEffect::None => ShownStatus::Existence,
        }
    }

    /// The word of the JSON.
    pub fn name(self) -> &'static str {
        match self {
            ShownStatus::Changed => "changed",
            ShownStatus::Created => "created",
            ShownStatus::Deleted => "deleted",
            ShownStatus::Temporary => "temporary",
            ShownStatus::Unaltered => "unaltered",
            ShownStatus::Read => "read",
            ShownStatus::Existence => "existence",
        }
    }
}

/// Whether the record's content, or the names in it, were read.
fn is_input(record: &FileRecord) -> bool {
    const INPUT: Operations =
        Operations::NONE.with(Operation::Read).with(Operation::Directory).with(Operation::Execute);
    record.operations.intersects(INPUT)
}

/// The records that the options ask for.
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

    /// Whether anything but a status limits what is shown.
    pub fn is_of_place(&self) -> bool {
        self.selection.is_explicit() || self.args.process.is_some()
    }

    /// Whether `record` is asked for.
    pub fn takes(&self, record: &FileRecord) -> bool {
        let by_status = |status| match status {
            ShownStatus::Changed => self.args.changed,
            ShownStatus::Created => self.args.created,
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

/// The groups for a person, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "their headings say it")]
pub enum PathGroup {
    Changed,
    Renamed,
    Created,
    Deleted,
    Temporary,
    Unaltered,
    Inherited,
    Read,
    Existence,
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
    /// How many paths went along beneath a renamed directory.
    pub beneath: usize,
}

/// The groups that have something in them.
pub struct PathGroups<'s>(pub Vec<(PathGroup, Vec<ListedPath<'s>>)>);

impl<'s> PathGroups<'s> {
    /// Groups the records that `filter` takes.
    ///
    /// A renamed path is one entry, under its new name, unless the filter parts the two; with
    /// `in_full` that holds for each path beneath a renamed directory, too.
    pub fn new(snapshot: &'s Snapshot, filter: &Filter, in_full: bool) -> PathGroups<'s> {
        let start = snapshot.header().start_cwd.as_slice();
        let taken: Vec<_> = snapshot.files().iter().filter(|record| filter.takes(record)).collect();
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
            let is_renamed = origin.is_some_and(|from| is_one(record, from) && moved.insert(&from.path));
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
    let status = ShownStatus::of(record);
    let is_of_others = record.is_inherited_alone() && !selection.names(&record.path);
    match status {
        // The log that a shell redirects to is not the command's doing.
        ShownStatus::Changed | ShownStatus::Created | ShownStatus::Deleted | ShownStatus::Unaltered
            if is_of_others =>
        {
            PathGroup::Inherited
        }
        ShownStatus::Changed => PathGroup::Changed,
        ShownStatus::Created => PathGroup::Created,
        ShownStatus::Deleted => PathGroup::Deleted,
        ShownStatus::Temporary => PathGroup::Temporary,
        ShownStatus::Unaltered => PathGroup::Unaltered,
        ShownStatus::Read => PathGroup::Read,
        ShownStatus::Existence => PathGroup::Existence,
    }
}

/// The renamed paths without those that went along with a directory.
fn topmost(entries: Vec<ListedPath>) -> Vec<ListedPath> {
    let mut top: Vec<ListedPath> = Vec::new();
    for entry in entries {
        // What is beneath a directory comes right after it.
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
