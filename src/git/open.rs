//! Opens a repository, after checking that gix can open it without blocking.
//!
//! GIT_* variables do not count. The user's and the system's configuration count as they do for Git. The
//! owner of a repository does not matter, since nothing that its configuration names is run.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::bstr::ByteSlice;
use gix::objs::CommitRefIter;
use gix::refs::Target;
use gix::sec::Permission;

use super::files;
use super::paths::{below, path_of};
use super::patterns::Sources;
use super::settings::{Settings, configuration, global_configuration};

/// The size limit of a `.git` file and of a reference.
const LIMIT: u64 = 64 << 10;

/// The size limit of all files of a configuration together, which takes several times as much memory.
const CONFIGURATION_LIMIT: u64 = 4 << 20;

/// How deep configuration files may include others, as in Git.
const INCLUDES: usize = 10;

/// The size limit of `packed-refs`: a million references.
const PACKED_REFS_LIMIT: u64 = 100 << 20;

/// The size limit of a list of commits or of directories.
const LIST_LIMIT: u64 = 1 << 20;

/// As many symbolic references as Git follows (`SYMREF_MAXDEPTH`).
const DEPTH: usize = 5;

/// A repository as gix opened it, with the settings that matter here.
pub(super) struct OpenRepository {
    /// The directory that has the entry `.git`.
    pub(super) directory: Vec<u8>,
    /// The root of the working tree, resolved; none of a bare repository.
    pub(super) root: Option<Vec<u8>>,
    /// Device and inode of the entry `.git`.
    pub(super) identity: (u64, u64),
    pub(super) git: gix::Repository,
    pub(super) index_path: PathBuf,
    pub(super) settings: Settings,
    pub(super) sources: Sources,
    /// The files outside of it that its answers depend on, and the symlinks on the way to them.
    pub(super) watched: Vec<Vec<u8>>,
    /// Its private and its common directory, resolved.
    pub(super) git_dirs: [Vec<u8>; 2],
}

/// What `HEAD` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GitHead {
    /// There is no commit yet.
    Unborn,
    /// A commit and its tree object, where that can be read.
    Commit(ObjectId, Option<ObjectId>),
    /// It can't be understood.
    Unknown,
}

/// Which branch `HEAD` is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadBranch {
    /// The branch with this short name, which may have no commit yet.
    Named(String),
    /// It is a commit.
    Detached,
    /// It can't be understood.
    Unknown,
}

impl HeadBranch {
    /// The branch of a symbolic `HEAD`.
    fn named(target: &gix::refs::FullNameRef) -> HeadBranch {
        let name = target.as_bstr();
        let short = name.strip_prefix(b"refs/heads/").unwrap_or(name);
        String::from_utf8(short.to_vec()).map_or(HeadBranch::Unknown, HeadBranch::Named)
    }
}

impl GitHead {
    /// The commit.
    pub(super) fn commit(self) -> Option<ObjectId> {
        match self {
            GitHead::Commit(id, _) => Some(id),
            GitHead::Unborn | GitHead::Unknown => None,
        }
    }
}

/// Whether `directory`'s entry `.git` is a repository, or names one.
pub(super) fn is_repository(directory: &Path) -> bool {
    let dot_git = directory.join(".git");
    let Some(git_dir) = git_dir(directory, &dot_git) else { return false };
    files::harmless(&git_dir.join("HEAD"), LIMIT)
        && files::harmless(&git_dir.join("commondir"), LIMIT)
        && gix::discover::is_git(&dot_git).is_ok()
}

/// Git's directory for a working tree, where that lies elsewhere and says itself which working tree it is for: the common
/// directory of a linked working tree, that of a submodule (gitrepository-layout(5)). What `.git` says does not count
/// alone, since it may have been written by whoever may write in the working tree.
pub(super) fn git_directory_elsewhere(working_tree: &[u8]) -> Option<Vec<u8>> {
    // Most have a directory there, and need not be opened.
    let dot_git = path_of(working_tree).join(".git").symlink_metadata().ok()?;
    if !dot_git.is_file() {
        return None;
    }
    let repository = OpenRepository::at(working_tree)?;
    let [own, common] = &repository.git_dirs;
    let is_elsewhere = below(common, working_tree).is_none();
    let is_for_it = if own == common {
        is_configured(common) && repository.root.as_deref() == Some(working_tree)
    } else {
        is_linked(own, common, working_tree)
    };
    (is_elsewhere && is_for_it).then(|| common.clone())
}

/// Whether the configuration of a repository says where its working tree is.
fn is_configured(git_dir: &[u8]) -> bool {
    let path = path_of(git_dir).join("config");
    let content = files::read_followed(&path, CONFIGURATION_LIMIT).ok().flatten();
    let metadata = gix::config::file::Metadata::from(gix::config::Source::Local);
    let parse = |content: Vec<u8>| {
        gix::config::File::from_bytes_no_includes(&content, metadata, Default::default()).ok()
    };
    content.and_then(parse).is_some_and(|config| config.raw_value("core.worktree").is_ok())
}

/// Whether a private directory is one of the common directory, and names the working tree.
fn is_linked(own: &[u8], common: &[u8], working_tree: &[u8]) -> bool {
    let own = path_of(own);
    let content = files::read_followed(&own.join("gitdir"), LIMIT).ok().flatten().unwrap_or_default();
    let dot_git = own.join(path_of(content.trim_end_with(|end| end == '\n' || end == '\r')));
    let named = dot_git.parent().and_then(|named| named.canonicalize().ok());
    own.parent() == Some(&path_of(common).join("worktrees"))
        && dot_git.ends_with(".git")
        && named.is_some_and(|named| named.as_os_str().as_bytes() == working_tree)
}

/// The device and inode of `directory`'s entry `.git`.
pub(super) fn identity(directory: &[u8]) -> Option<(u64, u64)> {
    let metadata = path_of(directory).join(".git").symlink_metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

impl OpenRepository {
    /// Opens the repository that `directory`'s entry `.git` is or names; none if it is none.
    pub(super) fn at(directory: &[u8]) -> Option<OpenRepository> {
        let identity = identity(directory)?;
        let at = path_of(directory);
        let dot_git = at.join(".git");
        if !is_harmless(&at, &dot_git) {
            return None;
        }
        let mut git = gix::open_opts(&dot_git, options()).ok()?;
        // Objects are read by their own ids.
        git.objects.ignore_replacements = true;
        // A missing object costs one lookup, not a scan for new packs.
        git.objects.refresh_never();
        // Read, not mapped: truncating a mapped file would end this process with SIGBUS.
        git.refs.set_packed_buffer_mmap_threshold(u64::MAX);
        let root = git.workdir().and_then(|root| root.canonicalize().ok());
        let root = root.map(|root| root.into_os_string().into_encoded_bytes());
        let (settings, sources, mut watched) = configuration(&git, root.as_deref().map(path_of).as_deref());
        let resolved = |path: &Path| {
            path.canonicalize().unwrap_or_else(|_| path.to_owned()).into_os_string().into_encoded_bytes()
        };
        let git_dirs = [resolved(git.git_dir()), resolved(git.common_dir())];
        // A change of these is one of this repository alone.
        watched.retain(|path| {
            !git_dirs.iter().filter_map(|directory| below(path, directory)).any(changes_answers)
        });
        Some(OpenRepository {
            directory: directory.to_vec(),
            root,
            identity,
            index_path: git.index_path(),
            settings,
            sources,
            watched,
            git_dirs,
            git,
        })
    }

    /// The root as a path; empty of a bare repository.
    pub(super) fn root_path(&self) -> PathBuf {
        path_of(self.root.as_deref().unwrap_or_default())
    }

    /// What `HEAD` is now, and its branch.
    pub(super) fn head(&self) -> (GitHead, HeadBranch) {
        let mut branch = HeadBranch::Unknown;
        if self.settings.foreign_references
            || !references_are_harmless(self.git.git_dir(), self.git.common_dir())
        {
            return (GitHead::Unknown, branch);
        }
        // Not peeled by gix: the commit may be in a pack that is newer than the open repository.
        let mut name: gix::refs::FullName = "HEAD".try_into().expect("a valid name");
        for _ in 0..=DEPTH {
            let is_first = name.as_bstr() == "HEAD";
            let target = match self.git.try_find_reference(name.as_ref()) {
                Ok(Some(reference)) => reference.detach().target,
                Ok(None) => return (GitHead::Unborn, branch),
                Err(_) => return (GitHead::Unknown, branch),
            };
            match target {
                Target::Symbolic(next) => {
                    if is_first {
                        branch = HeadBranch::named(next.as_ref());
                    }
                    name = next;
                }
                Target::Object(id) => {
                    let branch = if is_first { HeadBranch::Detached } else { branch };
                    return (GitHead::Commit(id, self.tree_of(id)), branch);
                }
            }
        }
        (GitHead::Unknown, branch)
    }

    fn tree_of(&self, commit: ObjectId) -> Option<ObjectId> {
        let object = super::objects::read(&self.git, commit)?;
        let is_commit = object.kind == gix::objs::Kind::Commit;
        is_commit.then(|| CommitRefIter::from_bytes(&object.data, commit.kind()).tree_id().ok())?
    }
}

fn options() -> gix::open::Options {
    use gix::open::permissions::{Attributes, Config, Environment};
    gix::open::Options::isolated()
        .permissions(gix::open::Permissions {
            env: Environment {
                home: Permission::Allow,
                xdg_config_home: Permission::Allow,
                ..Environment::isolated()
            },
            config: Config { env: false, ..Config::all() },
            attributes: Attributes::all(),
        })
        .open_path_as_is(true)
        .filter_config_section(|_| true)
        .with(gix::sec::Trust::Full)
        .config_overrides([
            // The objects that are read whole: commits, trees, and blobs that are converted (64 MiB).
            "gitoxide.objects.allocLimit=67108864",
            // Replacements are not used, so they need not be listed.
            "core.useReplaceRefs=false",
        ])
}

/// Whether gix can open the repository of `.git` in `directory` without blocking and within the size limits.
fn is_harmless(directory: &Path, dot_git: &Path) -> bool {
    let Some(git_dir) = git_dir(directory, dot_git) else { return false };
    let Some(common) = common_dir(&git_dir) else { return false };
    let within = |limit| move |path: PathBuf| files::harmless(&path, limit);
    let packs = common.join("objects/pack").read_dir().into_iter().flatten().flatten();
    // What is never read whole has no limit: the index has its own.
    ["HEAD", "commondir", "gitdir"].map(|name| git_dir.join(name)).into_iter().all(within(LIMIT))
        && ["shallow", "objects/info/alternates"]
            .map(|name| common.join(name))
            .into_iter()
            .all(within(LIST_LIMIT))
        && within(PACKED_REFS_LIMIT)(common.join("packed-refs"))
        && [git_dir.join("index"), common.join("objects/info/multi-pack-index")]
            .into_iter()
            .all(within(u64::MAX))
        && packs.map(|pack| pack.path()).all(within(u64::MAX))
        && is_harmless_configuration(&git_dir, &common)
        && references_are_harmless(&git_dir, &common)
}

/// Whether gix can read the configuration with all that it includes, whatever the conditions of an include.
fn is_harmless_configuration(git_dir: &Path, common: &Path) -> bool {
    let own = [common.join("config"), git_dir.join("config.worktree")];
    let mut room = CONFIGURATION_LIMIT;
    own.into_iter().chain(global_configuration()).all(|file| take_configuration(&file, INCLUDES, &mut room))
}

/// Subtracts the size of a configuration file and of what it includes from `room`, and returns whether there
/// was enough.
fn take_configuration(file: &Path, includes: usize, room: &mut u64) -> bool {
    if !files::harmless(file, *room) {
        return false;
    }
    let content = match files::read_followed(file, *room) {
        Ok(Some(content)) => content,
        Ok(None) => return true,
        Err(_) => return false,
    };
    *room -= content.len() as u64;
    // gix does not open what it can't parse.
    let Ok(config) = gix::config::File::try_from(content.as_bstr()) else { return true };
    if includes == 0 {
        return true;
    }
    let sections = ["include", "includeIf"].map(|name| config.sections_by_name(name).into_iter().flatten());
    let paths = sections.into_iter().flatten().flat_map(|section| section.values("path"));
    let home = gix::path::env::home_dir();
    let mut included = paths.filter_map(|path| {
        let context = gix::config::path::interpolate::Context {
            home_dir: home.as_deref(),
            home_for_user: Some(gix::config::path::interpolate::home_for_user),
            ..Default::default()
        };
        let path = gix::config::Path::from(path).interpolate(context).ok()?;
        Some(file.parent()?.join(path))
    });
    included.all(|included| !included.is_file() || take_configuration(&included, includes - 1, room))
}

/// The directory that `.git` is, or that the file `.git` names.
fn git_dir(directory: &Path, dot_git: &Path) -> Option<PathBuf> {
    let metadata = dot_git.metadata().ok()?;
    if metadata.is_dir() {
        return Some(dot_git.to_owned());
    }
    if !metadata.is_file() {
        return None;
    }
    let content = files::read_followed(dot_git, LIMIT).ok()??;
    let named = content.strip_prefix(b"gitdir: ")?.trim_end_with(|end| end == '\n' || end == '\r');
    Some(directory.join(path_of(named)))
}

/// The directory with the objects of the repository that has this git directory; none if what names it is too large.
fn common_dir(git_dir: &Path) -> Option<PathBuf> {
    let content = files::read_followed(&git_dir.join("commondir"), LIMIT).ok()?;
    Some(content.map_or_else(|| git_dir.to_owned(), |content| git_dir.join(path_of(content.trim_end()))))
}

/// Whether `directory`'s entry `.git` is a repository, or names one, that gix can't open because of its alternates: it
/// refuses those that form a cycle, which Git ignores.
pub(super) fn has_unusable_alternates(directory: &[u8]) -> bool {
    let at = path_of(directory);
    let dot_git = at.join(".git");
    let common = git_dir(&at, &dot_git).and_then(|git_dir| common_dir(&git_dir));
    let resolve = |common: PathBuf| gix::odb::alternate::resolve(common.join("objects"), Path::new("/"));
    is_repository(&at) && is_harmless(&at, &dot_git) && common.is_some_and(|common| resolve(common).is_err())
}

/// Whether every file on the way from `HEAD` to a commit can be read without waiting.
fn references_are_harmless(git_dir: &Path, common: &Path) -> bool {
    let mut file = git_dir.join("HEAD");
    for _ in 0..DEPTH {
        if !files::harmless(&file, LIMIT) || !files::harmless(&common.join("packed-refs"), PACKED_REFS_LIMIT)
        {
            return false;
        }
        let Ok(Some(content)) = files::read_followed(&file, LIMIT) else { return true };
        let Some(name) = content.strip_prefix(b"ref:") else { return true };
        let name = path_of(name.trim());
        if name.as_os_str().as_bytes().starts_with(b"/") {
            return false;
        }
        let own = git_dir.join(&name);
        if !files::harmless(&own, LIMIT) {
            return false;
        }
        file = common.join(name);
    }
    files::harmless(&file, LIMIT)
}

/// What Git makes in a git directory.
pub(super) const ENTRIES: [&str; 22] = [
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "HEAD",
    "MERGE_HEAD",
    "MERGE_MSG",
    "ORIG_HEAD",
    "branches",
    "commondir",
    "config",
    "config.worktree",
    "description",
    "gitdir",
    "hooks",
    "index",
    "info",
    "lfs",
    "logs",
    "modules",
    "objects",
    "packed-refs",
    "refs",
    "worktrees",
];

/// Whether a change of this file of a git directory can change what is known of other paths.
/// Loose objects are looked up each time, and the first head stays.
pub(super) fn changes_answers(inside: &[u8]) -> bool {
    inside.starts_with(b"config")
        || inside.starts_with(b"info/")
        || inside.starts_with(b"objects/pack/")
        || inside.starts_with(b"objects/info/")
        || matches!(inside, b"commondir" | b"gitdir" | b"info" | b"objects" | b"objects/pack")
}
