//! Git's state as the targets of a restore: what belongs to one repository, and what each file is to Git.
//!
//! A repository is put back whole or not at all, since a ref without its reflog, or HEAD without the index, is a state
//! that was never there. Neighbours: `plan.rs` decides by it, `run.rs` leaves whole repositories as they are. Submodules:
//! [`meaning`] compares what files say and not their bytes, [`locks`] keeps Git out meanwhile.

pub mod locks;
pub mod meaning;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use super::plan::{LeftReason, PlanInput, RestorePlan};
use super::rescue::KeptPath;
use super::root::Root;
use super::targets::{Choice, GitStateChoice, opposite};
use crate::fs::child_of;
use crate::git::{GitFile, git_dir_of, in_objects_directory, repository_of};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::Contents;
use crate::snapshot::{FileRecord, FileType, Operation, Present, State, live};

/// Whether the state that `record` is to get could make Git run programs: hooks, configuration, and what leads to
/// others' (a `.git` file, `commondir`, a symlink). From a foreign snapshot it is never taken.
pub fn may_run_programs(record: &FileRecord, wanted: Side) -> bool {
    let directory = repository_of(&record.path);
    let below = &record.path[directory.len()..];
    let of_type = |side| state(record, side).present().map(|present| present.file_type);
    let is_directory = of_type(wanted).or(of_type(opposite(wanted))) == Some(FileType::Directory);
    if below.is_empty() || of_type(wanted) == Some(FileType::Symlink) {
        return !is_directory;
    }
    let is_ref =
        directory.ends_with(b"/.git") && (below.starts_with(b"/refs/") || below.starts_with(b"/logs/"));
    let names = || below.split(|byte| *byte == b'/');
    let is_file = names().next_back().is_some_and(|last| {
        matches!(last, b"config" | b"config.worktree" | b"commondir" | b"gitdir" | b"alternates")
    });
    !is_ref && !is_directory && (is_file || names().any(|name| name == b"hooks"))
}

/// Whether a directory that stays since it is not empty means nothing to Git: one of refs, reflogs or objects.
pub fn is_namespace(path: &[u8]) -> bool {
    let below = path.strip_prefix(git_dir_of(path).unwrap_or_default()).unwrap_or_default();
    let top = below.split(|byte| *byte == b'/').find(|name| !name.is_empty());
    matches!(top, Some(b"refs" | b"logs" | b"objects"))
}

/// Whether `path` is that of one of `targets`, which are in order as `files` are.
fn is_target(files: &[FileRecord], targets: &[usize], path: &[u8]) -> bool {
    FileRecord::find(files, path).is_some_and(|index| targets.binary_search(&index).is_ok())
}

/// The lock that Git takes to change the file at `path`, if it is one that it locks.
pub fn lock_of(path: &[u8]) -> Option<Vec<u8>> {
    let is_locked = match GitFile::of(path) {
        GitFile::Head | GitFile::PseudoRef | GitFile::Ref | GitFile::PackedRefs | GitFile::Index => true,
        GitFile::Config => !path.ends_with(b"/commondir"),
        GitFile::Reftable => path.ends_with(b"/tables.list"),
        _ => false,
    };
    is_locked.then(|| [path, b".lock"].concat())
}

/// The records, and more of the objects that have come to a repository which is to be removed: recordings leave out
/// what they add to one that is there, and it would be in the way.
pub fn with_added_objects<'a>(files: &'a [FileRecord], wanted: Side, root: &Root) -> Cow<'a, [FileRecord]> {
    let mut added = Vec::new();
    for record in files.iter().filter(|record| record.is_git_state) {
        let was_made = state(record, opposite(wanted)).present().is_some_and(is_directory);
        if in_objects_directory(&record.path).is_some_and(|(_, below)| below.is_empty())
            && was_made
            && state(record, wanted).present().is_none()
        {
            // What can't be listed is in the way, and will be named.
            let _ = add_beneath(&record.path, files, wanted, root, &mut added);
        }
    }
    if added.is_empty() {
        return Cow::Borrowed(files);
    }
    let mut all = [files, &added].concat();
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Cow::Owned(all)
}

fn add_beneath(
    directory: &[u8],
    files: &[FileRecord],
    wanted: Side,
    root: &Root,
    added: &mut Vec<FileRecord>,
) -> io::Result<()> {
    let Some(dentry) = root.dentry(directory)? else { return Ok(()) };
    if !dentry.present()?.as_ref().is_some_and(is_directory) {
        return Ok(());
    }
    for name in live::entries(&dentry.proc_path())? {
        let path = child_of(directory, &name);
        let Some(present) = root.dentry(&path)?.map(|dentry| dentry.present()).transpose()?.flatten() else {
            continue;
        };
        if is_directory(&present) {
            add_beneath(&path, files, wanted, root, added)?;
        }
        if FileRecord::find(files, &path).is_none() {
            let (absent, there) = (State::Absent { tombstone: false }, State::Present(Box::new(present)));
            let (before, after) = match wanted {
                Side::Before => (absent, there),
                Side::After => (there, absent),
            };
            let record = FileRecord::new(&path, before, after, Operation::Write.into());
            added.push(FileRecord { is_git_state: true, ..record });
        }
    }
    Ok(())
}

fn is_directory(present: &Present) -> bool {
    present.file_type == FileType::Directory
}

/// Takes Git's state out of `targets` where it was not chosen, and says of which git directories, and why.
pub fn leave_unchosen(
    files: &[FileRecord],
    targets: &mut Vec<usize>,
    choice: &dyn Choice,
) -> BTreeMap<Vec<u8>, LeftReason> {
    let mut left = BTreeMap::new();
    targets.retain(|index| {
        let record = &files[*index];
        if !record.is_git_state {
            return true;
        }
        let directory = repository_of(&record.path);
        let why = match choice.git_state(&record.path, directory) {
            GitStateChoice::Chosen => return true,
            GitStateChoice::Unwanted => LeftReason::NoGit,
            GitStateChoice::Unnamed => LeftReason::GitNotNamed,
        };
        left.entry(directory.to_vec()).or_insert(why);
        false
    });
    left
}

/// The git directories of which something can't be put back, and what that is: nothing of these is put back.
///
/// Conflicts count if they are to be skipped; otherwise they are reported as such.
pub fn unrestorable(
    input: &PlanInput,
    plan: &RestorePlan,
    conflicts: &[(Vec<u8>, String)],
) -> BTreeMap<Vec<u8>, LeftReason> {
    let mut unrestorable = BTreeMap::new();
    let find = |path: &[u8]| {
        let found = FileRecord::find(input.files, path);
        found.map(|index| &input.files[index]).filter(|record| record.is_git_state)
    };
    let reasons = plan.left.iter().map(|(path, why)| (path, why.to_string()));
    let conflicts = conflicts.iter().map(|(path, why)| (path, why.clone()));
    for (path, why) in conflicts.chain(reasons) {
        let Some(record) = find(path) else { continue };
        if input.policy.git_programs || !may_run_programs(record, input.wanted) {
            let directory = repository_of(path).to_vec();
            unrestorable.entry(directory).or_insert_with(|| LeftReason::GitState { path: path.clone(), why });
        }
    }
    unrestorable
}

/// Keeps the contents that indexes and refs get, packed or not: what has become of them since can't be judged without.
pub fn keep_promised(
    input: &PlanInput,
    plan: &RestorePlan,
    contents: &Contents,
    kept: &mut BTreeMap<Vec<u8>, KeptPath>,
) {
    for step in &plan.steps {
        let record = &input.files[step.record];
        let is_read =
            matches!(GitFile::of(&record.path), GitFile::Index | GitFile::PackedRefs | GitFile::Ref);
        if let Some(kept) = kept.get_mut(&record.path).filter(|_| record.is_git_state && is_read) {
            let replaced = input.replaced.get(&step.record).cloned();
            kept.promised = replaced.or_else(|| meaning::recorded(contents, record, input.wanted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::samples::{created, directory, present};

    #[test]
    fn what_could_run_programs_is_known_wherever_it_is() {
        let file = || State::Present(Box::new(present(5)));
        for (path, expected) in [
            ("/r/.git/config", true),
            ("/r/.git/config.worktree", true),
            ("/r/.git/hooks/pre-commit", true),
            ("/r/.git/modules/sub/config", true),
            ("/r/.git/modules/refs/hooks/post-checkout", true),
            ("/r/.git/worktrees/w/commondir", true),
            ("/srv/bare/hooks/update", true),
            ("/r/.git", true),
            ("/r/.git/refs/heads/config", false),
            ("/r/.git/logs/refs/heads/hooks/x", false),
            ("/r/.git/HEAD", false),
            ("/r/.git/index", false),
        ] {
            let record = created(path.as_bytes(), file());
            assert_eq!(may_run_programs(&record, Side::After), expected, "{path}");
            assert_eq!(may_run_programs(&record, Side::Before), expected, "removal of {path}");
        }
        let made = |path: &[u8], present| created(path, State::Present(Box::new(present)));
        let symlink = Present { file_type: FileType::Symlink, ..present(1) };
        assert!(may_run_programs(&made(b"/r/.git/modules", symlink), Side::After));
        assert!(!may_run_programs(&made(b"/r/.git/hooks", directory()), Side::After));
        assert!(!may_run_programs(&made(b"/r/.git", directory()), Side::After));
    }
}
