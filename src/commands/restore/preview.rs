//! What a restore would do to the live files, as a diff. Neighbours: `restore::run` makes the plan, `diff` writes it.

use std::collections::BTreeSet;

use crate::commands::diff::{DiffBody, DiffEntry, TEXT_LIMIT, half, write_entry};
use crate::commands::out::Console;
use crate::commands::paths::{here, quoted};
use crate::git::{below, git_dir_of, repository_of};
use crate::restore::merge::merged_mode;
use crate::restore::outcome::RestoreOutcome;
use crate::restore::root::Root;
use crate::restore::targets::opposite;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::Contents;
use crate::snapshot::{Error, FileRecord, FileType, Operation, Present, Snapshot, State};

/// Tells what a plan would do to each path.
pub struct Preview<'a> {
    snapshot: &'a Snapshot,
    contents: Contents<'a>,
    wanted: Side,
    plan: &'a RestoreOutcome,
    root: Root,
    /// What names in the diff are relative to.
    base: Vec<u8>,
}

/// What a path is now, and what it would be.
pub struct PreviewedChange {
    record: FileRecord,
    name: Vec<u8>,
    bytes: [Vec<u8>; 2],
}

impl PreviewedChange {
    /// The entries of the diff: none if it has no part of the change, two if a file becomes a symlink or the other way
    /// round.
    pub fn entries(&self) -> Vec<(DiffEntry<'_>, DiffBody)> {
        let side = |side| half(&self.name, &self.record, side);
        let entry = DiffEntry { old: side(Side::Before), new: side(Side::After) };
        let [old, new] = self.bytes.clone();
        let mode = |state: &State| state.present().map(|at| at.mode);
        let is_same = mode(&self.record.before) == mode(&self.record.after) && old == new;
        let entries = match (entry.old, entry.new) {
            (None, None) => return Vec::new(),
            // Its times alone change, for example.
            (Some(_), Some(_)) if is_same => return Vec::new(),
            _ if entry.is_type_change() => {
                let [gone, made] = entry.apart();
                vec![(gone, [old, Vec::new()]), (made, [Vec::new(), new])]
            }
            _ => vec![(entry, [old, new])],
        };
        entries.into_iter().map(|(entry, [old, new])| (entry, DiffBody::of_bytes(&entry, old, new))).collect()
    }
}

impl<'a> Preview<'a> {
    /// A preview of the `plan` to put back a state of `snapshot`.
    pub fn new(
        snapshot: &'a Snapshot,
        wanted: Side,
        plan: &'a RestoreOutcome,
    ) -> anyhow::Result<Preview<'a>> {
        let here = here();
        let is_below = |path: &[u8]| below(path, &here).is_some_and(|name| !name.is_empty());
        let is_here = plan.changes.iter().all(|(path, _)| git_dir_of(path).is_some() || is_below(path));
        let base = if is_here { here } else { b"/".to_vec() };
        let contents = Contents::new(snapshot);
        Ok(Preview { snapshot, contents, wanted, plan, root: Root::live()?, base })
    }

    /// What would become of a path, or why that can't be shown.
    pub fn change(&self, path: &[u8]) -> Result<PreviewedChange, String> {
        let live = self.root.dentry(path).ok().flatten().and_then(|dentry| dentry.present().ok().flatten());
        let recorded = self.snapshot.find(path);
        let merged = self.plan.merged.get(path);
        let wanted = recorded.and_then(|record| state(record, self.wanted).present());
        let after = match (merged, &live) {
            (Some(merged), Some(live)) => {
                let other = recorded.and_then(|record| state(record, opposite(self.wanted)).present());
                let modes = [wanted, other, Some(live)].map(|at| at.map_or(live.mode, |at| at.mode) & 0o7777);
                let mode = merged_mode(modes).map_or(live.mode, |mode| live.mode & libc::S_IFMT | mode);
                Some(Present { size: merged.content.len() as u64, mode, ..live.clone() })
            }
            _ => wanted.cloned(),
        };
        let of_live = |live: &Present| match live.file_type {
            FileType::File if live.size > TEXT_LIMIT => Err("it is longer than 8 MiB".to_owned()),
            FileType::File => self.root.read(path, TEXT_LIMIT).ok_or_else(|| "it can't be read".to_owned()),
            _ => Ok(live.target.clone().unwrap_or_default()),
        };
        let of_record = |record: &FileRecord, wanted: &Present| match (merged, wanted.file_type) {
            (Some(merged), _) => Ok(merged.content.clone()),
            (None, FileType::File) if wanted.size > TEXT_LIMIT => Err("it is longer than 8 MiB".to_owned()),
            (None, FileType::File) => {
                let mut bytes = Vec::new();
                let copied = self.contents.copy(record, self.wanted, &mut bytes);
                copied.map(|_| bytes).map_err(|error| match error {
                    Error::Unavailable(why) => format!("its content is unavailable: {why}"),
                    error => error.to_string(),
                })
            }
            (None, _) => Ok(wanted.target.clone().unwrap_or_default()),
        };
        let old = live.as_ref().map(of_live).transpose()?.unwrap_or_default();
        let new = recorded.zip(wanted).map(|(record, wanted)| of_record(record, wanted)).transpose()?;
        // Without digests, the diff compares the bytes.
        let state = |at: Option<Present>| match at {
            Some(at) => State::Present(Box::new(Present { digest: None, blob: None, ..at })),
            None => State::Absent { tombstone: false },
        };
        let name = below(path, &self.base).unwrap_or(path).to_vec();
        let mut record = FileRecord::new(path, state(live), state(after), Operation::Write.into());
        record.git = recorded.and_then(|record| record.git.clone());
        Ok(PreviewedChange { record, name, bytes: [old, new.unwrap_or_default()] })
    }

    /// Writes the diff of one path.
    pub fn write_one(&self, path: &[u8], console: &mut Console) -> anyhow::Result<()> {
        match self.change(path) {
            Ok(change) => {
                for (entry, body) in change.entries() {
                    write_entry(&entry, &body, &self.contents, console)?;
                }
            }
            Err(why) => console.say(format_args!("diff {}: {why}", quoted(path))),
        }
        Ok(())
    }

    /// Writes the diff of all paths, and names the repositories whose Git state would be put back.
    pub fn write(&self, console: &mut Console) -> anyhow::Result<()> {
        let mut repositories = BTreeSet::new();
        for (path, _) in &self.plan.changes {
            match git_dir_of(path) {
                Some(_) => {
                    repositories.insert(repository_of(path));
                }
                None => self.write_one(path, console)?,
            }
        }
        let repositories: Vec<_> = repositories.into_iter().map(|path| quoted(path)).collect();
        console.say_list(format_args!("Git's state would be put back, too:"), repositories.iter());
        Ok(())
    }
}
