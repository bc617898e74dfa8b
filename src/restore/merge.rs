//! Merges what a restore would put back with what was edited since, in text files.
//!
//! A three-way merge as Git's: from the state that the restore is to replace, one way leads to the state that it is to
//! put back, the other to the live file. Neighbours: `inspect.rs` has found the conflicts; the plan is made of what this
//! makes of its inspections; the rescue keeps the live file as it keeps any other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use gix::diff::blob::InternedInput;
use gix::merge::blob::builtin_driver::text as merge_text;
use gix::merge::blob::builtin_driver::text::{Labels, Options};

use super::inspect::Inspection;
use super::root::Root;
use super::targets::{HardLinks, opposite};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::Contents;
use crate::snapshot::{Digest, Error, FileRecord, FileType, Present, Snapshot};

/// The longest file that is merged.
pub const MOST: u64 = 8 << 20;

/// The label of the live file in conflict markers.
const LIVE: &str = "now";

/// A file that was merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// What it is to hold.
    pub content: Vec<u8>,
    /// How many conflicts are marked in it.
    pub conflicts: usize,
}

/// Merges the changes from `base` to `live` with those from `base` to `wanted`, which conflict markers call so.
pub fn merge(base: &[u8], live: &[u8], wanted: &[u8], name_of_wanted: &str) -> Merged {
    let labels = Labels { ancestor: None, current: Some(LIVE.into()), other: Some(name_of_wanted.into()) };
    let mut content = Vec::new();
    let mut lines = InternedInput::default();
    merge_text(&mut content, &mut lines, labels, live, base, wanted, Options::default());
    Merged { conflicts: marked_conflicts(&content), content }
}

/// How many conflicts a merge has marked in a text.
fn marked_conflicts(text: &[u8]) -> usize {
    text.split(|byte| *byte == b'\n').filter(|line| is_marker(line)).count()
}

/// Whether a line begins a conflict that a merge has marked.
fn is_marker(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.strip_prefix(b"<<<<<<< ") == Some(LIVE.as_bytes())
}

/// Merges conflicts.
pub struct Merger<'a> {
    /// The records.
    pub files: &'a [FileRecord],
    /// The wanted state.
    pub wanted: Side,
    /// The hard links of the wanted state, and those of the other one.
    pub hard_links: [&'a HardLinks; 2],
    /// The contents of the records.
    pub contents: &'a Contents<'a>,
    /// The live filesystem.
    pub root: &'a Root,
    /// What is restored.
    pub snapshot: &'a Snapshot,
    /// The rescues of the same request that was interrupted, which may have merged some files.
    pub own: Vec<&'a Snapshot>,
    /// Paths that are conflicts, whatever is there now.
    pub known_conflicts: &'a BTreeMap<Vec<u8>, String>,
    /// Paths that are to be settled first, in a dry run.
    pub begun: &'a BTreeSet<Vec<u8>>,
}

impl Merger<'_> {
    /// Merges the targets that are in neither of their recorded states, corrects their inspections, and says what they are
    /// to hold, by the index of the record.
    pub fn merge(
        &self,
        targets: &[usize],
        inspections: &mut HashMap<usize, io::Result<Inspection>>,
    ) -> BTreeMap<usize, Merged> {
        let mut merged = BTreeMap::new();
        for &index in targets {
            let record = &self.files[index];
            let Some(Ok(inspection)) = inspections.get_mut(&index) else { continue };
            if record.is_git_state
                || inspection.at_wanted
                || inspection.at_other
                || inspection.pseudo
                || self.known_conflicts.contains_key(&record.path)
                || self.begun.contains(&record.path)
            {
                continue;
            }
            match self.merge_one(index, inspection) {
                Ok(one) => merged.extend(one.map(|one| (index, one))),
                Err(why) => inspection.note = Some(format!("changed since, and can't be merged: {why}")),
            }
        }
        merged
    }

    /// Merges a file; none if there is nothing to be done.
    fn merge_one(&self, index: usize, inspection: &mut Inspection) -> Result<Option<Merged>, String> {
        let record = &self.files[index];
        let sides = [self.wanted, opposite(self.wanted)].map(|side| state(record, side).present());
        let is_file = |at: &Present| at.file_type == FileType::File;
        let ([Some(wanted), Some(other)], Some(live)) = (sides, &inspection.live) else {
            return Err("it is not there in each of the three states".to_owned());
        };
        if ![wanted, other, live].into_iter().all(is_file) {
            return Err("it is not a file in each of the three states".to_owned());
        }
        if self.hard_links.iter().any(|hard_links| !hard_links.names(index).is_empty()) {
            return Err("it has several names".to_owned());
        }
        let modes = [wanted, other, live].map(|at| at.mode & 0o7777);
        let Some(mode) = merged_mode(modes) else {
            return Err("its mode was changed, too, to another one".to_owned());
        };
        if [wanted, other, live].into_iter().any(|at| at.size > MOST) {
            return Err("it is longer than 8 MiB".to_owned());
        }
        let now = self.root.read(&record.path, MOST).ok_or("it can't be read")?;
        let read = |side: Side| {
            let mut bytes = Vec::new();
            match self.contents.copy(record, side, &mut bytes) {
                Ok(_) => Ok(bytes),
                Err(Error::Unavailable(why)) => {
                    Err(format!("its content {} is unavailable: {why}", self.name_of(side)))
                }
                Err(error) => Err(error.to_string()),
            }
        };
        // What the rescue of an interrupted run promises was merged by that.
        let digest = Some(Digest::of(&now));
        let mut of_own = self.own.iter().filter_map(|rescue| rescue.find(&record.path)?.after.present());
        let conflicts = marked_conflicts(&now);
        if let Some(promised) = of_own.find(|after| after.digest == digest) {
            if (promised.mode ^ live.mode) & 0o7777 == 0 {
                inspection.accept();
                return Ok((conflicts > 0).then_some(Merged { content: now, conflicts }));
            }
            // It has the content, and not yet the mode.
            (inspection.same_content, inspection.at_other) = (true, true);
            return Ok(Some(Merged { content: now, conflicts }));
        }
        if conflicts > 0 {
            return Err("there are conflict markers in it".to_owned());
        }
        let merged = if wanted.digest.is_some() && wanted.digest == other.digest {
            // No more than attributes was changed.
            Merged { content: now.clone(), conflicts: 0 }
        } else {
            let (base, to) = (read(opposite(self.wanted))?, read(self.wanted)?);
            if [&now, &base, &to].into_iter().any(|content| content.contains(&0)) {
                return Err("it is binary".to_owned());
            }
            merge(&base, &now, &to, &self.name_of(self.wanted))
        };
        inspection.same_content = merged.content == now;
        if inspection.same_content && mode == live.mode & 0o7777 {
            inspection.accept();
            return Ok(None);
        }
        inspection.at_other = true;
        Ok(Some(merged))
    }

    /// The name of a state for people.
    fn name_of(&self, side: Side) -> String {
        let header = self.snapshot.header();
        let what = header.name.as_deref().filter(|_| !header.kind.is_recording());
        format!("{} {}", side.name(), what.unwrap_or(header.id.get(..8).unwrap_or(&header.id)))
    }
}

/// The permission bits that come of a merge of the wanted, the other and the live ones; none if both ways change them.
pub fn merged_mode([wanted, other, live]: [u32; 3]) -> Option<u32> {
    match () {
        () if live == other || live == wanted => Some(wanted),
        () if wanted == other => Some(live),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_both_sides_are_kept_and_conflicts_say_which_side_is_what() {
        let clean = merge(b"1\n2\n3\n4\n5\n", b"1\n2\n3\n4\n5 mine\n", b"old\n2\n3\n4\n5\n", "before x");
        assert_eq!(clean, Merged { content: b"old\n2\n3\n4\n5 mine\n".to_vec(), conflicts: 0 });
        let marked = merge(b"1\nnew\n3\n", b"1\nmine\n3\n", b"1\nold\n3\n", "before x");
        let text = "1\n<<<<<<< now\nmine\n=======\nold\n>>>>>>> before x\n3\n";
        assert_eq!((std::str::from_utf8(&marked.content), marked.conflicts), (Ok(text), 1));
    }

    #[test]
    fn mode_of_one_side_is_kept() {
        assert_eq!(merged_mode([0o644, 0o755, 0o755]), Some(0o644));
        assert_eq!(merged_mode([0o644, 0o644, 0o600]), Some(0o600));
        assert_eq!(merged_mode([0o644, 0o755, 0o644]), Some(0o644));
        assert_eq!(merged_mode([0o644, 0o755, 0o600]), None);
    }
}
