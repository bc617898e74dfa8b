//! What Git knows of a path: in which working tree it is, and whether it is tracked, dirty or ignored; and
//! the blob of the first head that has the bytes of its file (the pin). Apart from that, what the files of a git
//! directory are (`state.rs`, `layout.rs`, `packed_refs.rs`), and the objects that were removed (`removed.rs`).
//!
//! Nothing is spawned and nothing is written, not even the index. Only regular files are opened, and only
//! after their type is known. What only a filter driver could decide is decided by the stat data in the
//! index.
//!
//! Where more than one answer would be right:
//!
//! - The root directory of a working tree belongs to that tree, with an empty relative path. The root of a
//!   submodule belongs to the outer working tree, as a tracked entry, which is dirty if another commit is checked out
//!   (its own content does not count).
//! - What is below `.git`, or in the directory of a bare repository, is in no working tree.
//! - A `.git` that is no repository does not count, as it does not for Git: the next one outside of it does.
//!   Of the paths of a repository whose index can't be parsed, nothing is known. Each file that is read has a
//!   limit (index 1 GiB, configuration 4 MiB in all, exclude rules and attributes 1 MiB each); what depends
//!   on a larger one is unknown.
//! - If alternates form a cycle, which Git ignores and gix refuses, nothing is known of the paths of the repository;
//!   that is told ([`Repositories::unreadable`]).
//! - References in a reftable can't be read: `head` is then unknown, nothing is pinned, and dirty means
//!   different from the index.
//! - Exclude rules, attributes and configuration are read once, and again when a traced change affects them.
//!   Those that the command has changed, and the index, are compared with their files at each question.
//! - `assume-unchanged` and `skip-worktree` are not trusted.
//!
//! Neighbours: `observe` asks, reports every change of a path, excludes the git directories that are found
//! here from the record, and writes the answers into the manifest; `snapshot` reads pinned blobs.

mod convert;
mod databases;
mod directories;
mod edited;
mod error;
mod files;
mod index;
mod layout;
mod objects;
mod open;
mod packed_refs;
mod paths;
mod patterns;
mod removed;
mod repository;
mod settings;
mod state;
mod tree;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use gix::ObjectId;

pub use databases::ObjectDatabases;
pub use error::Error;
pub use layout::{
    in_objects_directory, is_in_git_directory, is_left_alone, is_temporary_object, leads_to_objects,
};
pub use objects::BlobHasher;
pub use packed_refs::{changed_packed_refs, merge_packed_refs, packed_references};
pub use paths::below;
pub use removed::{ObjectsDirectory, RemovedPack, loose_object, loose_path, pack_file, retain_unpacked};
pub use state::{
    GitFile, git_dir_of, index_digest_at, index_objects, linked_worktree, reference_name, repository_of,
    same_index,
};

use crate::fs::FileStat;
use directories::{Directories, DirectoryId, Holder};
use edited::Edited;
pub use open::HeadBranch;
use open::{OpenRepository, changes_answers};
use paths::{components, name_length, without_slash};
use patterns::Patterns;
use repository::{PathStatus, Query, Repository};

/// The repositories that were found, each opened once.
///
/// Opening a repository needs a working directory, which must not be removed from this process.
#[derive(Default)]
pub struct Repositories {
    repositories: Vec<Repository>,
    directories: Directories,
    /// Files outside of any repository whose change affects the answers of all repositories.
    watched: HashSet<Vec<u8>>,
    /// The files with rules and settings that the command has changed.
    edited: Edited,
    /// Git directories without a component `.git`, until [`Repositories::take_git_dirs`]; and whether there
    /// were any.
    new_git_dirs: Vec<Vec<u8>>,
    has_git_dirs_elsewhere: bool,
    /// The directories with a repository that Git can read and gix can't.
    unreadable: BTreeSet<Vec<u8>>,
    /// Counts the events that may have changed an answer.
    epoch: u32,
    /// Whether the current question asks for the pin.
    pin: bool,
    /// The repository that the current question is about: a panic makes it unusable.
    busy: Option<u32>,
}

/// What Git knew of a path at one moment. Small, since there is one for each path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitFacts {
    oid: Option<Box<ObjectId>>,
    tracked: bool,
    dirty: bool,
    ignored: bool,
    repository: u32,
}

/// A repository with a path that was classified, or with changes of its own files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRepository {
    /// The root of its working tree, resolved.
    pub root: Vec<u8>,
    /// The commit of the first head, none when unborn or unknown.
    pub head: Option<ObjectId>,
    /// Whether a tracked path was dirty when it was first classified.
    pub dirty: bool,
    /// The commit of the head now, where it is another one.
    pub head_after: Option<ObjectId>,
    /// The branch at first.
    pub branch: HeadBranch,
    /// The branch now, where it is another one.
    pub branch_after: Option<HeadBranch>,
}

const _: () = assert!(size_of::<Option<GitFacts>>() <= 16);

impl GitFacts {
    /// The pin: the blob of the first head that has, as was proved, the bytes of the file.
    pub fn oid(&self) -> Option<&ObjectId> {
        self.oid.as_deref()
    }

    /// Takes over the pin of `later` facts about the same bytes, and returns whether all other facts are
    /// equal.
    pub fn take_pin(&mut self, later: Option<&GitFacts>) -> bool {
        // Another working tree, inside of the one before, has another head.
        let later = later.filter(|later| later.repository == self.repository);
        self.oid = later.and_then(|later| later.oid.clone());
        later == Some(self)
    }

    /// Whether the path is in the index.
    pub fn tracked(&self) -> bool {
        self.tracked
    }

    /// Whether `git status` would list it as changed against the first head.
    pub fn dirty(&self) -> bool {
        self.dirty
    }

    /// Whether it is untracked and excluded.
    pub fn ignored(&self) -> bool {
        self.ignored
    }
}

/// The root of the innermost working tree that a directory is in: the nearest directory with a `.git` that is, or names,
/// a repository (gitrepository-layout(5)).
pub fn working_tree_of(directory: &Path) -> Option<std::path::PathBuf> {
    directory.ancestors().find(|above| open::is_repository(above)).map(Path::to_owned)
}

/// Git's directory for a working tree, where that lies outside of it, as in a linked working tree and a submodule.
///
/// None if that directory does not name the working tree itself: with `git init --separate-git-dir`, and where somebody has
/// written a file `.git`.
pub fn git_directory_elsewhere(working_tree: &[u8]) -> Option<Vec<u8>> {
    open::git_directory_elsewhere(working_tree)
}

impl Repositories {
    /// Makes an empty set.
    pub fn new() -> Repositories {
        Repositories::default()
    }

    /// Classifies `path` (absolute and resolved) when it is first observed. `stat` is its lstat(2), none when
    /// nothing is there.
    ///
    /// Returns none when the path is in no working tree. Opens nothing but regular files. The pin, which
    /// costs reading the header of an object, is looked up only if `pin` is set.
    pub fn classify(&mut self, path: &[u8], stat: Option<&FileStat>, pin: bool) -> Option<GitFacts> {
        let facts = self.classify_again(path, stat, pin)?;
        if facts.tracked && facts.dirty {
            self.repositories.get_mut(facts.repository as usize)?.dirty = true;
        }
        Some(facts)
    }

    /// Takes note that `path` (absolute and resolved) was observed, and finds its repository: its first head
    /// is the one of now. Reads nothing else, the index included.
    pub fn observe(&mut self, path: &[u8]) {
        self.guarded(|all| {
            let slash = path.iter().rposition(|byte| *byte == b'/')?;
            let parent = all.node(&path[..slash]);
            let holder = all.directories.holder(parent)?;
            all.repositories.get_mut(holder as usize)?.observed = true;
            Some(())
        });
    }

    /// Classifies a path that was observed before, still against the first head.
    pub fn classify_again(&mut self, path: &[u8], stat: Option<&FileStat>, pin: bool) -> Option<GitFacts> {
        self.pin = pin;
        let facts = self.guarded(|all| all.facts(path, stat))?;
        self.repositories.get_mut(facts.repository as usize)?.observed = true;
        Some(facts)
    }

    /// A number that stays the same as long as no answer about an unchanged path can have changed.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The epoch after the files of every repository have been compared.
    pub fn current_epoch(&mut self) -> u32 {
        self.guarded(|all| {
            for path in all.edited.changed() {
                all.note(&path);
            }
            Some(())
        });
        for id in 0..u32::try_from(self.repositories.len()).unwrap_or(u32::MAX) {
            // Where nothing was asked, no answer can have changed.
            if self.repositories.get(id as usize).is_some_and(|repository| repository.asked) {
                self.guarded(|all| all.current(id).map(drop));
            }
        }
        self.epoch
    }

    /// Whether `path` is below the root of a working tree that was found. Reads no file.
    pub fn may_hold(&self, path: &[u8]) -> bool {
        let mut roots = self.repositories.iter().filter_map(|repository| repository.opened.root.as_deref());
        roots.any(|root| below(path, root).is_some())
    }

    /// Takes note of a change of `path`, of whatever kind. Every traced change is reported; most cost next to
    /// nothing.
    ///
    /// Called after the change. Of a path below `.git` it is called before the change as well, so that the
    /// first head is the one before it.
    pub fn note_change(&mut self, path: &[u8]) {
        self.guarded(|all| {
            all.note(path);
            Some(())
        });
    }

    /// The repositories that were observed, with their heads now.
    pub fn observed(&mut self) -> Vec<ObservedRepository> {
        let mut list = Vec::new();
        for at in 0..self.repositories.len() {
            let moved = self.guarded(|all| {
                let repository = all.repositories.get(at)?;
                all.busy = u32::try_from(at).ok();
                let (commit, branch) = repository.head_now();
                let commit = commit.filter(|now| repository.head.commit() != Some(*now));
                let is_known = ![&branch, &repository.branch].contains(&&HeadBranch::Unknown);
                Some((commit, (is_known && branch != repository.branch).then_some(branch)))
            });
            let (head_after, branch_after) = moved.unwrap_or_default();
            let repository = &self.repositories[at];
            if repository.observed {
                list.push(ObservedRepository {
                    root: repository.opened.root.clone().unwrap_or_default(),
                    head: repository.head.commit(),
                    dirty: repository.dirty,
                    head_after,
                    branch: repository.branch.clone(),
                    branch_after,
                });
            }
        }
        list.sort_by(|a, b| a.root.cmp(&b.root));
        list
    }

    /// Those of `pins` whose blobs can't be read from Git now by the root of their working tree. Each has the facts
    /// about a file and its size.
    pub fn lost_pins<'f, T: Copy>(&mut self, pins: impl Iterator<Item = (T, &'f GitFacts, u64)>) -> Vec<T> {
        let databases = ObjectDatabases::default();
        let mut opened: HashMap<u32, Option<OpenRepository>> = HashMap::new();
        let mut is_kept = |all: &Repositories, facts: &GitFacts, size: u64| {
            let oid = facts.oid()?;
            let known = &all.repositories.get(facts.repository as usize)?.opened;
            let now = opened.entry(facts.repository).or_insert_with(|| OpenRepository::at(&known.directory));
            // A FIFO in the place of an object would block.
            let is_harmless = objects::has_harmless_file(&now.as_ref()?.git, *oid);
            let root = known.root.as_deref().filter(|_| is_harmless)?;
            databases.check(root, &oid.to_string(), size).ok()
        };
        let is_lost = |(pin, facts, size)| {
            let found = self.guarded(|all| is_kept(all, facts, size));
            found.is_none().then_some(pin)
        };
        pins.filter_map(is_lost).collect()
    }

    /// The root of the working tree that `facts` is about, and the commit of its first head.
    pub fn working_tree(&self, facts: &GitFacts) -> (&[u8], Option<ObjectId>) {
        let repository = self.repositories.get(facts.repository as usize);
        let root = repository.and_then(|repository| repository.opened.root.as_deref());
        (root.unwrap_or_default(), repository.and_then(|repository| repository.head.commit()))
    }

    /// The resolved git directories that were found since the last call and have no component `.git`.
    ///
    /// Of one that contains its own working tree, the entries that Git makes there.
    pub fn take_git_dirs(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.new_git_dirs)
    }

    /// The directories with a repository of which nothing is known, or not all the time, though Git can read it: its
    /// alternates form a cycle.
    pub fn unreadable(&self) -> impl Iterator<Item = &[u8]> {
        self.unreadable.iter().map(Vec::as_slice)
    }

    /// Runs `ask`; if gix panics, the repository is not used again, and the recording goes on.
    fn guarded<T>(&mut self, ask: impl FnOnce(&mut Repositories) -> Option<T>) -> Option<T> {
        self.busy = None;
        match std::panic::catch_unwind(AssertUnwindSafe(|| ask(self))) {
            Ok(answer) => answer,
            Err(_) => {
                let busy = self.busy.and_then(|busy| self.repositories.get_mut(busy as usize));
                if let Some(repository) = busy {
                    repository.broken = true;
                }
                None
            }
        }
    }

    fn facts(&mut self, path: &[u8], stat: Option<&FileStat>) -> Option<GitFacts> {
        if components(path).any(|(component, _)| component == b".git") {
            return None;
        }
        self.note_edited(path);
        let parent = path.iter().rposition(|byte| *byte == b'/').map(|slash| &path[..slash]);
        let parent = parent.filter(|_| path != b"/").map(|parent| self.node(parent));
        let holder = parent.and_then(|parent| self.directories.holder(parent));
        if stat.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR) {
            let node = self.node(path);
            let own = self.directories.holder(node);
            if own != holder {
                return self.root_of_tree(own?, holder, path);
            }
        }
        let id = holder?;
        let directory = parent?;
        let repository = self.current(id)?;
        let relative = below(path, repository.opened.root.as_deref()?)?;
        let patterns = self.patterns(directory, id, &path[..path.len() - name_length(path)])?;
        let query = Query { path: Path::new(OsStr::from_bytes(path)), relative, stat, pin: self.pin };
        let known = self.repositories.get_mut(id as usize)?.classify(query, &patterns);
        Some(facts(id, known))
    }

    /// The facts of the root directory of the working tree `own`, which is inside of `outer` or of none.
    fn root_of_tree(&mut self, own: u32, outer: Holder, path: &[u8]) -> Option<GitFacts> {
        let (checked_out, _) = self.repositories.get(own as usize)?.head_now();
        if let Some(outer) = outer
            && let Some(repository) = self.current(outer)
            && let Some(relative) = repository.opened.root.as_deref().and_then(|root| below(path, root))
            && let Some(known) = repository.gitlink(relative, checked_out)
        {
            return Some(facts(outer, known));
        }
        self.current(own)?;
        Some(facts(own, PathStatus::default()))
    }

    /// The repository `id`, up to date with its files.
    fn current(&mut self, id: u32) -> Option<&mut Repository> {
        self.busy = Some(id);
        let repository = self.repositories.get_mut(id as usize)?;
        let generation = repository.generation;
        let was_stale = repository.stale;
        let updated = repository.bring_up_to_date();
        if was_stale {
            self.watched.extend(repository.opened.watched.iter().cloned());
        }
        let directory = &repository.opened.directory;
        if repository.stale
            && !self.unreadable.contains(directory)
            && open::has_unusable_alternates(directory)
        {
            self.unreadable.insert(directory.clone());
        }
        if updated.is_none() || repository.generation != generation {
            self.epoch = self.epoch.wrapping_add(1);
        }
        updated?;
        Some(repository)
    }

    /// The patterns for the entries of `directory`, which is at `path` in the working tree `id`.
    fn patterns(&mut self, directory: DirectoryId, id: u32, path: &[u8]) -> Option<Patterns> {
        let repository = self.repositories.get(id as usize)?;
        let generation = repository.generation;
        if let Some(patterns) = self.directories.patterns(directory, generation) {
            return Some(patterns.clone());
        }
        let root = repository.opened.root.clone()?;
        let mut patterns: Option<Patterns> = None;
        let from_root = std::iter::once(root.as_slice()).chain(
            components(path).map(|(_, at)| at).filter(|at| below(at, &root).is_some_and(|at| !at.is_empty())),
        );
        for at in from_root {
            let node = self.node(at);
            let known = self.directories.patterns(node, generation).cloned();
            let found = match known {
                Some(known) => known,
                None => {
                    let repository = self.repositories.get_mut(id as usize)?;
                    let found = repository.patterns(patterns.as_ref(), below(at, &root)?)?;
                    self.directories.set_patterns(node, generation, found.clone());
                    found
                }
            };
            patterns = Some(found);
        }
        patterns
    }

    fn node(&mut self, at: &[u8]) -> DirectoryId {
        let Repositories { repositories, directories, watched, new_git_dirs, unreadable, .. } = self;
        let node = directories.node(at, &mut |directory, outer| {
            discover(repositories, watched, new_git_dirs, unreadable, directory, outer)
        });
        self.has_git_dirs_elsewhere |= !self.new_git_dirs.is_empty();
        node
    }

    /// Takes note of writes to files that were opened earlier and that an answer about `path` depends on.
    fn note_edited(&mut self, path: &[u8]) {
        for changed in self.edited.changed_above(path) {
            self.note(&changed);
        }
    }

    fn note(&mut self, path: &[u8]) {
        if self.takes_note(path) {
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    /// Takes note of a change of `path`, and returns whether it may change an answer about another path.
    fn takes_note(&mut self, path: &[u8]) -> bool {
        let mut matters = false;
        let name = &path[path.len() - name_length(path)..];
        let parent = &path[..path.len() - name.len()];
        // Git reads none of its lock files, and makes some even to read.
        let is_lock = name.ends_with(b".lock");
        if matches!(name, b".gitignore" | b".gitattributes") {
            let holder = self.directories.nearest(parent).and_then(|node| self.directories.holder(node));
            if let Some(repository) = holder.and_then(|id| self.repositories.get_mut(id as usize)) {
                repository.generation += 1;
                repository.converted_otherwise |= name == b".gitattributes";
                self.edited.note(without_slash(parent), path);
                matters = true;
            }
        }
        if self.watched.contains(path) {
            for repository in &mut self.repositories {
                repository.stale = true;
                repository.converted_otherwise = true;
            }
            self.edited.note(b"/", path);
            matters = true;
        }
        // A directory may have been removed or replaced.
        matters |= self.directories.forget(path);
        let dot_git = components(path).find(|(component, _)| *component == b".git");
        if let Some((component, at)) = dot_git {
            let directory = &at[..at.len() - component.len()];
            let directory = without_slash(directory);
            self.note_below_dot_git(directory, at == path);
            if at == path {
                self.edited.note(directory, path);
            }
            matters |= !is_lock;
        }
        if dot_git.is_none() && !self.has_git_dirs_elsewhere {
            return matters;
        }
        for repository in &mut self.repositories {
            let inside = repository.opened.git_dirs.iter().find_map(|directory| below(path, directory));
            match inside {
                Some(b"") => repository.stale = true,
                Some(b"index") => repository.forget_index(),
                Some(inside) if changes_answers(inside) && !is_lock => {
                    repository.stale = true;
                    repository.converted_otherwise |= !inside.starts_with(b"objects");
                    if !inside.starts_with(b"objects/pack/") {
                        self.edited.note(&repository.opened.directory, path);
                    }
                }
                _ => continue,
            }
            matters = true;
        }
        matters
    }

    /// Takes note of a change of, or below, the entry `.git` of `directory`.
    fn note_below_dot_git(&mut self, directory: &[u8], itself: bool) {
        let is_known = |all: &Repositories| {
            let node = all.directories.existing(directory)?;
            let repository = all.repositories.get(all.directories.holder(node)? as usize)?;
            (repository.opened.directory == directory).then_some(())
        };
        if is_known(self).is_some() && !itself {
            return;
        }
        self.directories.forget(directory);
        let node = self.node(directory);
        let holder = self.directories.holder(node);
        match is_known(self).and(holder).and_then(|id| self.repositories.get_mut(id as usize)) {
            Some(repository) => {
                repository.observed = true;
                repository.stale |= itself;
            }
            // Perhaps a repository that is being made: it is discovered again at the next question.
            None => drop(self.directories.forget(directory)),
        }
    }
}

fn facts(repository: u32, known: PathStatus) -> GitFacts {
    let PathStatus { oid, tracked, dirty, ignored } = known;
    GitFacts { oid: oid.map(Box::new), tracked, dirty, ignored, repository }
}

/// The working tree that holds the entries of `directory`, the parent of which has `outer`.
fn discover(
    repositories: &mut Vec<Repository>,
    watched: &mut HashSet<Vec<u8>>,
    new_git_dirs: &mut Vec<Vec<u8>>,
    unreadable: &mut BTreeSet<Vec<u8>>,
    directory: &[u8],
    outer: Holder,
) -> Holder {
    let Some(identity) = open::identity(directory) else { return outer };
    let known = repositories.iter().position(|known| known.opened.directory == directory);
    if let Some(at) = known
        && let Some(repository) = repositories.get(at)
        && repository.opened.identity == identity
        && !repository.stale
    {
        return u32::try_from(at).ok();
    }
    let Some(opened) = OpenRepository::at(directory) else {
        if !open::has_unusable_alternates(directory) {
            return outer;
        }
        // To Git, what is there is in this repository and in no other.
        unreadable.insert(directory.to_vec());
        return None;
    };
    // A working tree elsewhere is discovered from there.
    let root = opened.root.clone()?;
    below(directory, &root)?;
    watched.extend(opened.watched.iter().cloned());
    for git_dir in &opened.git_dirs {
        if components(git_dir).any(|(component, _)| component == b".git") {
            continue;
        }
        if below(&root, git_dir).is_some() {
            new_git_dirs.extend(open::ENTRIES.iter().map(|entry| [git_dir, entry.as_bytes()].join(&b'/')));
        } else {
            new_git_dirs.push(git_dir.clone());
        }
    }
    match known {
        Some(at) => {
            repositories.get_mut(at)?.replace(opened);
            u32::try_from(at).ok()
        }
        None => {
            repositories.push(Repository::new(opened));
            u32::try_from(repositories.len() - 1).ok()
        }
    }
}

#[cfg(test)]
mod tests;
