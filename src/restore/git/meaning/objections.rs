//! What speaks against a change although the file itself is as recorded: what the repository has elsewhere by now.
//!
//! Neighbours: `meaning.rs` has compared the file with its states.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use gix::ObjectId;

use super::{Comparison, MOST, MOST_OF_REF, Refinement};
use crate::fs::child_of;
use crate::git::{
    GitFile, ObjectsDirectory, changed_packed_refs, git_dir_of, index_objects, linked_worktree, loose_object,
    packed_references, retain_unpacked,
};
use crate::restore::inspect::Inspection;
use crate::snapshot::compare::state;
use crate::snapshot::{live, printable};

impl Comparison<'_> {
    /// Adds the objections to what `inspections` and `refinement` have decided so far.
    pub(super) fn add_objections(
        &self,
        inspections: &mut HashMap<usize, io::Result<Inspection>>,
        refinement: &mut Refinement,
    ) {
        let mut named: Vec<(usize, Vec<u8>, Vec<ObjectId>)> = Vec::new();
        for &index in self.targets {
            let record = &self.files[index];
            let Some(Ok(inspection)) = inspections.get_mut(&index).filter(|_| record.is_git_state) else {
                continue;
            };
            if inspection.at_wanted {
                continue;
            }
            let why = match GitFile::of(&record.path) {
                GitFile::PackedRefs => self.shadowed(index, refinement),
                GitFile::Reftable if self.force && !inspection.at_other => {
                    Some("it has changed since, and has other refs, too, which force would drop".to_owned())
                }
                GitFile::Head => self.checked_out_elsewhere(index).or_else(|| self.moved_branch(index)),
                _ => None,
            };
            let objects = self.named_objects(index, refinement);
            match (why, git_dir_of(&record.path)) {
                (Some(why), _) => drop(refinement.hard_conflicts.entry(record.path.clone()).or_insert(why)),
                (None, Some(directory)) if !objects.is_empty() => {
                    named.push((index, objects_of(directory), objects));
                }
                (None, _) => {}
            }
        }
        let directories: BTreeSet<&Vec<u8>> = named.iter().map(|(_, directory, _)| directory).collect();
        for directory in directories {
            let of_directory = || named.iter().filter(|(_, other, _)| other == directory);
            let ids = of_directory().flat_map(|(_, _, ids)| ids.iter().copied()).collect();
            let missing = self.missing_objects(directory, ids);
            for (index, _, ids) in of_directory() {
                if let Some(id) = ids.iter().filter(|id| missing.contains(*id)).min() {
                    let why = format!("the object {id} that it would name is not in the repository any more");
                    refinement.hard_conflicts.entry(self.files[*index].path.clone()).or_insert(why);
                }
            }
        }
    }

    /// A ref that changes in packed-refs and has a loose file now, which Git would go by.
    fn shadowed(&self, index: usize, refinement: &Refinement) -> Option<String> {
        let directory = git_dir_of(&self.files[index].path)?;
        self.packed_changes(index, refinement).into_iter().find_map(|(name, wanted)| {
            let path = child_of(directory, &name);
            let loose = self.root.read(&path, MOST_OF_REF).filter(|_| !self.is_target(&path))?;
            let is_wanted = wanted.is_some() && ObjectId::from_hex(loose.trim_ascii()).ok() == wanted;
            (!is_wanted).then(|| format!("{} moved since, and is a loose ref now", printable(&name)))
        })
    }

    /// The branch that the HEAD of record `index` is to name.
    fn wanted_branch(&self, index: usize) -> Option<Vec<u8>> {
        branch_of(&self.recorded(&self.files[index], self.wanted)?).map(<[u8]>::to_vec)
    }

    /// The branch that HEAD is to name, if another worktree has it checked out.
    fn checked_out_elsewhere(&self, index: usize) -> Option<String> {
        let record = &self.files[index];
        let branch = self.wanted_branch(index)?;
        let common = common_directory(git_dir_of(&record.path)?);
        let linked = [common, b"/worktrees"].concat();
        let names = live::entries(&linked).unwrap_or_default();
        let linked = names.iter().map(|name| [linked.as_slice(), b"/", name, b"/HEAD"].concat());
        // A bare repository has no working tree for its own.
        let main = common.ends_with(b"/.git").then(|| [common, b"/HEAD"].concat());
        let is_there = |path: Vec<u8>| {
            path != record.path
                && !self.is_target(&path)
                && self.root.read(&path, MOST_OF_REF).is_some_and(|now| branch_of(&now) == Some(&branch))
        };
        let name = printable(&branch);
        main.into_iter()
            .chain(linked)
            .any(is_there)
            .then(|| format!("{name} is checked out in another worktree now"))
    }

    /// The branch that HEAD is to name, if it has another commit than the recording knows: the index would be that of
    /// the former one, and the next commit would take back what came between.
    fn moved_branch(&self, index: usize) -> Option<String> {
        let branch = self.wanted_branch(index)?;
        let directory = git_dir_of(&self.files[index].path)?;
        let path = child_of(directory, &branch);
        let root = directory.strip_suffix(b"/.git")?;
        let repository = self.repositories.iter().find(|repository| repository.root == root)?;
        let head_after = repository.head_after.as_ref().or(repository.head.as_ref());
        let sides = [(&repository.branch, repository.head.as_ref()), (&repository.branch_after, head_after)];
        let short = branch.strip_prefix(b"refs/heads/")?;
        let of_branch =
            sides.into_iter().filter(|(name, _)| name.as_ref().is_some_and(|name| name.as_bytes() == short));
        let known: Vec<_> =
            of_branch.filter_map(|(_, commit)| ObjectId::from_hex(commit?.as_bytes()).ok()).collect();
        let packed = [directory, b"/packed-refs"].concat();
        if known.is_empty() || self.is_target(&path) || self.is_target(&packed) {
            return None;
        }
        let now =
            self.root.read(&path, MOST_OF_REF).and_then(|bytes| ObjectId::from_hex(bytes.trim_ascii()).ok());
        let now = now
            .or_else(|| packed_references(&self.root.read(&packed, MOST)?).get(branch.as_slice()).copied())?;
        (!known.contains(&now))
            .then(|| format!("{} moved since, and is at {} now", printable(&branch), now.to_hex_with_len(7)))
    }

    /// Those of the objects that the repository does not have in the objects directory `directory` any more, and that
    /// are not put back either.
    ///
    /// Alternates and promised objects of a partial clone are elsewhere, so where there are any, nothing is missing.
    fn missing_objects(&self, directory: &[u8], ids: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let alternates = self.root.dentry(&[directory, b"/info/alternates"].concat()).ok().flatten();
        if alternates.is_some_and(|found| matches!(found.stat(), Ok(Some(_)))) {
            return BTreeSet::new();
        }
        let mut missing: BTreeSet<ObjectId> = ObjectsDirectory::open(directory).lacks(ids);
        if missing.is_empty() || has_promises(directory) {
            return BTreeSet::new();
        }
        for target in self.targets.iter().map(|target| &self.files[*target]) {
            if state(target, self.wanted).present().is_none() || !target.path.starts_with(directory) {
                continue;
            }
            if let Some((_, id)) = loose_object(&target.path).filter(|(other, _)| *other == directory) {
                missing.remove(&id);
            } else if target.path.ends_with(b".idx")
                && let Some(bytes) = self.recorded(target, self.wanted)
            {
                retain_unpacked(&mut missing, bytes);
            }
        }
        missing
    }

    /// The objects that the file of record `index` is to name, and does not name now.
    fn named_objects(&self, index: usize, refinement: &Refinement) -> Vec<ObjectId> {
        let record = &self.files[index];
        let new = || self.recorded(record, self.wanted).unwrap_or_default();
        let ids = match GitFile::of(&record.path) {
            GitFile::PackedRefs => {
                self.packed_changes(index, refinement).into_iter().filter_map(|(_, id)| id).collect()
            }
            // Git lets them outlive their objects.
            GitFile::PseudoRef
                if record.path.ends_with(b"/ORIG_HEAD") || record.path.ends_with(b"/AUTO_MERGE") =>
            {
                Vec::new()
            }
            GitFile::Head | GitFile::PseudoRef | GitFile::Ref => ids_of_lines(&new(), 0),
            // The entries of the stash.
            GitFile::Reflog if record.path.ends_with(b"/logs/refs/stash") => ids_of_lines(&new(), 1),
            GitFile::Index => {
                let now: HashSet<_> = self
                    .root
                    .read(&record.path, MOST)
                    .map(|bytes| index_objects(&bytes))
                    .into_iter()
                    .flatten()
                    .collect();
                index_objects(&new()).into_iter().filter(|id| !now.contains(id)).collect()
            }
            _ => Vec::new(),
        };
        // Git knows the empty ones without a file.
        let is_kept = |id: &ObjectId| !id.is_null() && !id.is_empty_blob() && !id.is_empty_tree();
        ids.into_iter().filter(is_kept).collect()
    }

    /// The refs that change in the `packed-refs` of record `index`, and the objects that they get.
    fn packed_changes(&self, index: usize, refinement: &Refinement) -> Vec<(Vec<u8>, Option<ObjectId>)> {
        let record = &self.files[index];
        let now = self.root.read(&record.path, MOST).unwrap_or_default();
        let new = refinement.replaced.get(&index).cloned();
        let new = new.or_else(|| self.recorded(record, self.wanted)).unwrap_or_default();
        changed_packed_refs(&now, &new)
    }
}

/// The branch that a symbolic HEAD names.
fn branch_of(head: &[u8]) -> Option<&[u8]> {
    head.trim_ascii().strip_prefix(b"ref: ")
}

/// The objects directory of a git directory: a linked worktree has that of its repository.
fn objects_of(git_directory: &[u8]) -> Vec<u8> {
    [common_directory(git_directory), b"/objects"].concat()
}

fn common_directory(git_dir: &[u8]) -> &[u8] {
    linked_worktree(git_dir).map_or(git_dir, |(repository, _)| repository)
}

/// Whether a pack is one of a partial clone.
fn has_promises(objects: &[u8]) -> bool {
    let names = live::entries(&[objects, b"/pack"].concat()).unwrap_or_default();
    names.iter().any(|name| name.ends_with(b".promisor"))
}

/// The object ids that are the word number `at` of the lines.
fn ids_of_lines(bytes: &[u8], at: usize) -> Vec<ObjectId> {
    let words =
        bytes.split(|byte| *byte == b'\n').filter_map(|line| line.split(u8::is_ascii_whitespace).nth(at));
    words.filter_map(|word| ObjectId::from_hex(word).ok()).collect()
}
