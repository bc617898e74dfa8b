//! Git's state: what the files of a git directory are, and when two versions of one say the same.
//!
//! All is decided by paths and bytes. Neighbours: `removed.rs` has the objects
//! that were removed; `index.rs` asks the index of an open repository.

use gix::index::entry::Flags;
use sha2::{Digest as _, Sha256};

use super::index;
use super::layout::is_loose;
use super::open::ENTRIES;
use super::paths::components;

/// Entries of a git directory beside [`ENTRIES`].
const OTHER_ENTRIES: [&[u8]; 9] = [
    b"AUTO_MERGE",
    b"BISECT_EXPECTED_REV",
    b"BISECT_LOG",
    b"rebase-apply",
    b"rebase-merge",
    b"reftable",
    b"rr-cache",
    b"sequencer",
    b"shallow",
];

/// What a file of a git directory is, as `gitrepository-layout(5)` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GitFile {
    /// `.git` itself: the directory, or the file or symlink that names another one.
    DotGit,
    /// `HEAD`, also that of a linked worktree or a submodule.
    Head,
    /// Another reference beside `HEAD`: `ORIG_HEAD`, `MERGE_HEAD` and the like.
    PseudoRef,
    /// A loose reference below `refs/`, the stash included.
    Ref,
    /// `packed-refs`.
    PackedRefs,
    /// A reflog below `logs/`.
    Reflog,
    /// A file of a reference database in the reftable format.
    Reftable,
    /// The index.
    Index,
    /// The shared part of a split index.
    SharedIndex,
    /// `config`, `config.worktree`, or `commondir`, which says where the first is.
    Config,
    /// `hooks`, or anything below it.
    Hook,
    /// An object in a file of its own.
    LooseObject,
    /// A pack, or another file in `objects/pack`.
    Pack,
    /// A lock, which Git renames to the file that it locks.
    Lock,
    /// Anything else: messages, the state of a merge or a rebase, exclude rules, directories.
    Other,
}

impl GitFile {
    /// Tells what `path` is: the absolute path of a git directory's file, or of `.git` itself.
    ///
    /// The root of a git directory without a component `.git` is found by the names below it.
    pub fn of(path: &[u8]) -> GitFile {
        split(path).1
    }
}

/// The git directory that `path` is in: the own one of a linked worktree or a submodule. None where it can't
/// be told from the path.
pub fn git_dir_of(path: &[u8]) -> Option<&[u8]> {
    split(path).0
}

/// What is at the top of a git directory and has more beneath it (gitrepository-layout(5)).
const TOP: [&[u8]; 8] =
    [b"refs", b"logs", b"objects", b"hooks", b"info", b"reftable", b"worktrees", b"modules"];

/// The git directory of the repository that `path` belongs to: a linked worktree and a submodule count to the one whose
/// git directory has theirs.
///
/// It may be gone, so the path alone tells: it ends with `.git`, or what is beneath it has the names that Git gives.
pub fn repository_of(path: &[u8]) -> &[u8] {
    let slashes = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/').map(|(at, _)| at);
    let ends: Vec<usize> = slashes.chain([path.len()]).collect();
    let name = |end: usize| {
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        &path[start..end]
    };
    let first = |is_one: &dyn Fn(&[u8]) -> bool| ends.iter().copied().find(|end| is_one(name(*end)));
    let above = |end: usize| end.saturating_sub(name(end).len() + 1);
    let end = first(&|name| name == b".git")
        .or_else(|| first(&|name| name.ends_with(b".git")))
        .or_else(|| first(&|name| TOP.contains(&name)).map(above))
        .unwrap_or_else(|| above(path.len()));
    &path[..end]
}

/// The git directory of the repository and the name, if `git_dir` is that of a linked worktree.
pub fn linked_worktree(git_dir: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = git_dir.iter().rposition(|byte| *byte == b'/')?;
    Some((git_dir[..slash].strip_suffix(b"/worktrees")?, &git_dir[slash + 1..]))
}

/// The name of the reference whose loose file is at `path`, such as `refs/heads/main` or `HEAD`.
pub fn reference_name(path: &[u8]) -> Option<&[u8]> {
    let (Some(directory), GitFile::Head | GitFile::PseudoRef | GitFile::Ref) = split(path) else {
        return None;
    };
    path.strip_prefix(directory)?.strip_prefix(b"/")
}

/// The git directory of `path`, where it can be told, and what `path` is there.
fn split(path: &[u8]) -> (Option<&[u8]>, GitFile) {
    let parts: Vec<(&[u8], &[u8])> = components(path).collect();
    let names: Vec<&[u8]> = parts.iter().map(|(name, _)| *name).collect();
    let directory = |root: usize| root.checked_sub(1).and_then(|at| parts.get(at)).map(|(_, path)| *path);
    // The last one: a repository may be in the directory of another one, and no reference has this name.
    if let Some(at) = names.iter().rposition(|name| *name == b".git") {
        let (inner, file) = inside(&names[at + 1..]);
        return (directory(at + 1 + inner), file.unwrap_or(GitFile::Other));
    }
    let is_bare = |at: &usize| names.get(at - 1).is_some_and(|name| name.ends_with(b".git"));
    let known = |at: usize| {
        let (inner, file) = inside(&names[at..]);
        file.map(|file| (directory(at + inner), file))
    };
    (1..names.len())
        .filter(is_bare)
        .find_map(known)
        .or_else(|| (0..names.len()).filter(|at| is_typical(&names[*at..])).find_map(known))
        .unwrap_or_else(|| {
            // Taken for a hook when in doubt: it may be one that a hook runs.
            let hooks = names.iter().rposition(|name| *name == b"hooks");
            (hooks.and_then(directory), hooks.map_or(GitFile::Other, |_| GitFile::Hook))
        })
}

/// What the path of these `names` in a git directory is, none where Git makes no such file there; and how
/// many of them lead to a git directory inside of that one.
fn inside(names: &[&[u8]]) -> (usize, Option<GitFile>) {
    let mut skipped = 0;
    loop {
        let names = &names[skipped..];
        skipped += match names {
            [b"worktrees", _, _, ..] => 2,
            // The name of a submodule is one component or more.
            [b"modules", _, rest @ ..] => match rest.iter().position(|name| is_entry(name)) {
                Some(at) => 2 + at,
                None => return (skipped, None),
            },
            _ => return (skipped, entry(names)),
        };
    }
}

/// The same of names that don't lead to another git directory.
fn entry(names: &[&[u8]]) -> Option<GitFile> {
    Some(match names {
        [] => GitFile::DotGit,
        [b"hooks", ..] => GitFile::Hook,
        [b"objects", b"pack", name] if !is_lock(name) => GitFile::Pack,
        [b"objects", fan, rest] if is_loose(fan, rest) => GitFile::LooseObject,
        // `git-check-ref-format(1)`: no component of a reference ends so.
        [.., name] if is_lock(name) => GitFile::Lock,
        [b"refs", _, ..] => GitFile::Ref,
        [b"logs", _, ..] => GitFile::Reflog,
        [b"reftable", _] => GitFile::Reftable,
        [b"HEAD"] => GitFile::Head,
        [b"index"] => GitFile::Index,
        [b"packed-refs"] => GitFile::PackedRefs,
        [b"config" | b"config.worktree" | b"commondir"] => GitFile::Config,
        // It is no reference: it lists several.
        [b"FETCH_HEAD"] => GitFile::Other,
        [b"AUTO_MERGE" | b"BISECT_EXPECTED_REV"] => GitFile::PseudoRef,
        [name] if name.ends_with(b"_HEAD") => GitFile::PseudoRef,
        [name] if name.starts_with(b"sharedindex.") => GitFile::SharedIndex,
        [name, ..] if is_entry(name) => GitFile::Other,
        _ => return None,
    })
}

/// Whether Git makes an entry of this name in a git directory.
fn is_entry(name: &[u8]) -> bool {
    let name = name.strip_suffix(b".lock").unwrap_or(name);
    ENTRIES.iter().any(|entry| entry.as_bytes() == name)
        || OTHER_ENTRIES.contains(&name)
        || name.ends_with(b"_HEAD")
        || name.starts_with(b"sharedindex.")
}

fn is_lock(name: &[u8]) -> bool {
    name.ends_with(b".lock")
}

/// Whether these names, of which the first may be in any directory, are unlikely outside of a git directory.
fn is_typical(names: &[&[u8]]) -> bool {
    match names {
        [b"refs", kind, ..] | [b"logs", b"refs", kind, ..] => matches!(
            *kind,
            b"bisect"
                | b"heads"
                | b"notes"
                | b"original"
                | b"prefetch"
                | b"remotes"
                | b"replace"
                | b"rewritten"
                | b"stash"
                | b"tags"
                | b"worktree"
        ),
        [b"objects", fan, rest] => *fan == b"pack" || *fan == b"info" || is_loose(fan, rest),
        [b"worktrees" | b"modules", _, _, ..] => true,
        [b"logs", b"HEAD"] | [b"hooks" | b"reftable" | b"info", _] | [_] => true,
        _ => false,
    }
}

/// Whether two versions of an index have the same entries: path, mode, object, stage and flags. Stat data and
/// extensions don't count.
///
/// False when one can't be parsed. The parts of a split index must name the same shared index and replace and
/// delete the same entries of it.
pub fn same_index(one: &[u8], other: &[u8]) -> bool {
    one == other || index_digest(one).is_some_and(|digest| index_digest(other) == Some(digest))
}

/// A digest of the entries of an index, equal for two that [`same_index`] takes for the same; none if it can't be
/// parsed.
fn index_digest(bytes: &[u8]) -> Option<[u8; 32]> {
    let index = decode_index(bytes)?;
    let counted = Flags::STAGE_MASK | Flags::ASSUME_VALID | Flags::SKIP_WORKTREE | Flags::INTENT_TO_ADD;
    let mut digest = Sha256::new();
    for entry in index.entries() {
        digest.update(entry.mode.bits().to_le_bytes());
        digest.update((entry.flags & counted).bits().to_le_bytes());
        digest.update(entry.id.as_slice());
        digest.update(entry.path(&index).iter().as_slice());
        digest.update([0]);
    }
    if let Some(link) = index.link() {
        // The bitmaps can only be compared as bytes.
        let mut bytes = link.shared_index_checksum.as_slice().to_vec();
        for bitmap in link.bitmaps.iter().flat_map(|both| [&both.delete, &both.replace]) {
            bitmap.write_to(&mut bytes).ok()?;
        }
        digest.update([1]);
        digest.update(bytes);
    }
    Some(digest.finalize().into())
}

/// The same digest of the index at `path`; none if there is no index that can be parsed.
pub fn index_digest_at(path: &[u8]) -> Option<[u8; 32]> {
    index_digest(&index::bytes_of(path)?)
}

/// The objects that the entries of an index name, without the commits of submodules; none if it can't be parsed.
pub fn index_objects(bytes: &[u8]) -> Vec<gix::ObjectId> {
    let index = decode_index(bytes);
    let entries = index.iter().flat_map(|index| index.entries());
    entries.filter(|entry| entry.mode != gix::index::entry::Mode::COMMIT).map(|entry| entry.id).collect()
}

fn decode_index(bytes: &[u8]) -> Option<gix::index::State> {
    // The length of the checksum at the end tells the kind of hash: only with the right one can it be parsed.
    let kinds = [gix::hash::Kind::Sha1, gix::hash::Kind::Sha256];
    kinds.into_iter().find_map(|hash| index::decode(bytes, hash))
}

#[cfg(test)]
mod tests;
