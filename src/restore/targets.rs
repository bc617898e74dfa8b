//! Which records a restore puts back, and which names were one file.
//!
//! Pure. Neighbours: `inspect.rs` inspects the paths, `plan.rs` decides what becomes of them.

use std::collections::HashMap;

use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{
    self, ContentId, Entries, LinkedFile, are_known_to_differ, content_id, state,
};
use crate::snapshot::{FileRecord, FileType, Operations, Present, State};

/// The other side.
pub fn opposite(side: Side) -> Side {
    match side {
        Side::Before => Side::After,
        Side::After => Side::Before,
    }
}

/// Whether the two states of `record` differ in anything that a restore puts back.
///
/// The time of a directory counts only if the command changed the directory itself, since making an entry
/// changes it, too.
pub fn differs(record: &FileRecord) -> bool {
    let fingerprint = |side| compare::recorded(record, side, Entries::Ignore);
    let (State::Present(before), State::Present(after)) = (&record.before, &record.after) else {
        return record.before.present().is_some() != record.after.present().is_some();
    };
    let attributes = |at: &Present| {
        let flags = at.inode_flags.clone();
        (at.uid, at.gid, at.xattrs.clone(), flags, own_time(record, at), own_size(at))
    };
    fingerprint(Side::Before) != fingerprint(Side::After) || attributes(before) != attributes(after)
}

/// The modification time, if it is set by changes of the file itself and not by its entries or by what
/// passes through it.
pub fn own_time(record: &FileRecord, at: &Present) -> Option<(i64, u32)> {
    let is_own = match at.file_type {
        FileType::File | FileType::Symlink => true,
        FileType::Directory | FileType::Fifo => record.operations.intersects(Operations::CHANGES),
        FileType::Socket | FileType::CharDevice | FileType::BlockDevice => false,
    };
    is_own.then_some((at.mtime, at.mtime_nsec))
}

fn own_size(at: &Present) -> Option<u64> {
    (at.file_type == FileType::File).then_some(at.size)
}

/// The names that were one file in one of the states, as indices of records.
#[derive(Debug, Default)]
pub struct HardLinks {
    group_of: HashMap<usize, usize>,
    groups: Vec<Vec<usize>>,
}

impl HardLinks {
    /// Finds the files with several recorded names in the state `side`.
    pub fn of(files: &[FileRecord], side: Side) -> HardLinks {
        let mut by_inode: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, record) in files.iter().enumerate() {
            let Some(at) = state(record, side).present() else { continue };
            // The states may be of different moments: one name was counted when another had gone.
            if let Some(file) = LinkedFile::of_any(at) {
                by_inode.entry(file).or_default().push(index);
            }
        }
        let has_other_names =
            |index: &usize| state(&files[*index], side).present().is_some_and(|at| at.nlink > 1);
        by_inode.retain(|_, group| group.len() > 1 && group.iter().any(has_other_names));
        let contents = by_inode.into_values().flat_map(|group| of_one_content(files, side, group));
        let mut groups: Vec<_> = contents.filter(|group| group.len() > 1).collect();
        groups.sort_unstable();
        let pairs = groups.iter().enumerate();
        let group_of = pairs.flat_map(|(group, members)| members.iter().map(move |member| (*member, group)));
        HardLinks { group_of: group_of.collect(), groups }
    }

    /// The names of the file of record `index`, itself included; empty if no other name is recorded.
    pub fn names(&self, index: usize) -> &[usize] {
        self.group_of.get(&index).and_then(|group| self.groups.get(*group)).map_or(&[], Vec::as_slice)
    }

    /// All files with several recorded names.
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }
}

/// The names of what looks like one file, apart where their contents are known to differ: states of different
/// recordings may be of two files that had the inode number one after the other.
fn of_one_content(files: &[FileRecord], side: Side, group: Vec<usize>) -> Vec<Vec<usize>> {
    let mut apart: Vec<(Option<ContentId>, Vec<usize>)> = Vec::new();
    for index in group {
        let content = content_id(&files[index], side);
        let same = apart.iter_mut().find(|(known, _)| !are_known_to_differ(known, &content));
        match same {
            Some((known, members)) => {
                *known = known.take().or(content);
                members.push(index);
            }
            None => apart.push((content, vec![index])),
        }
    }
    apart.into_iter().map(|(_, members)| members).collect()
}

/// Whether a file was changed only through a descriptor from before the launch, so that it is no target
/// unless it is named.
///
/// Earlier versions did not record whether it was also changed by name; another inode shows that it was.
pub fn is_inherited_alone(record: &FileRecord) -> bool {
    let node = |at: &Present| (at.file_type, at.dev, at.ino);
    let is_same = match (&record.before, &record.after) {
        (State::Present(before), State::Present(after)) => node(before) == node(after),
        _ => false,
    };
    record.is_inherited_alone() && is_same
}

/// The user's choice of paths.
pub trait Choice {
    /// Whether a path is chosen; every one is if no path was named.
    fn contains(&self, path: &[u8]) -> bool;
    /// Whether the path itself was named.
    fn names(&self, path: &[u8]) -> bool;
    /// Whether Git's state is chosen, too, at a chosen `path` in the git directory `directory`.
    fn git_state(&self, path: &[u8], directory: &[u8]) -> GitStateChoice;
}

/// Whether Git's state is put back with the paths that were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitStateChoice {
    /// It is.
    Chosen,
    /// The user does not want it.
    Unwanted,
    /// Only some paths are put back, and none in the git directory was named.
    Unnamed,
}

/// The indices of the records that a restore puts back, in order.
///
/// These are the paths that the command changed, limited to the chosen ones. Changes only through a
/// descriptor from before the launch are left out. A path that was named itself is put back whatever the
/// command did to it.
pub fn select(files: &[FileRecord], hard_links: [&HardLinks; 2], choice: &dyn Choice) -> Vec<usize> {
    let is_changing = |index: usize| files[index].operations.intersects(Operations::CHANGES);
    // A file that was changed through one of its names has changed under all of them.
    let is_changed = |index: usize| {
        is_changing(index)
            || hard_links
                .iter()
                .any(|hard_links| hard_links.names(index).iter().any(|other| is_changing(*other)))
    };
    let is_relinked =
        |index: usize| files[index].relinked || hard_links[0].names(index) != hard_links[1].names(index);
    let is_target = |index: usize| {
        let record = &files[index];
        choice.names(&record.path)
            || choice.contains(&record.path)
                && !is_inherited_alone(record)
                && is_changed(index)
                && (differs(record) || is_changing(index) && is_relinked(index))
    };
    (0..files.len()).filter(|index| is_target(*index)).collect()
}

/// The records that may have the content of the file of record `index`: itself, and its other names.
pub fn same_file<'a>(
    files: &'a [FileRecord],
    hard_links: &HardLinks,
    index: usize,
) -> impl Iterator<Item = &'a FileRecord> {
    let others = hard_links.names(index).iter().copied().filter(move |other| *other != index);
    let indices: Vec<usize> = std::iter::once(index).chain(others).collect();
    indices.into_iter().map(|index| &files[index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Digest;
    use crate::snapshot::samples::{created, present};

    #[test]
    fn names_of_an_inode_number_that_was_used_again_are_not_one_file() {
        let name = |path: &[u8], text: &str| {
            let digest = (!text.is_empty()).then(|| Digest::of(text.as_bytes()));
            created(path, State::Present(Box::new(Present { digest, nlink: 2, ..present(4) })))
        };
        let files = [name(b"/a", "1111"), name(b"/b", "2222"), name(b"/c", "1111"), name(b"/d", "")];
        let hard_links = HardLinks::of(&files, Side::After);
        assert_eq!(hard_links.groups(), [vec![0, 2, 3]]);
    }
}
