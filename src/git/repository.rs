//! One repository and its working tree, and how it classifies a path.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gix::ObjectId;
use gix::index::entry::Mode;

use super::convert::{self, Conversion, Eol};
use super::error::Error;
use super::index::{Index, IndexEntry, Lookup};
use super::objects::{self, has_harmless_file};
use super::open::{GitHead, HeadBranch, OpenRepository};
use super::patterns::{Global, Patterns};
use super::tree::TreeCache;
use crate::fs::{self, FileStat, Signature};

/// The facts about a path, without its repository.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PathStatus {
    pub(super) oid: Option<ObjectId>,
    pub(super) tracked: bool,
    pub(super) dirty: bool,
    pub(super) ignored: bool,
}

/// A path to classify.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) path: &'a Path,
    pub(super) relative: &'a [u8],
    pub(super) stat: Option<&'a FileStat>,
    /// Whether the pin is asked for.
    pub(super) pin: bool,
}

/// A repository with a working tree.
pub(super) struct Repository {
    pub(super) opened: OpenRepository,
    /// The commit at the first observation, and what its tree object has.
    pub(super) head: GitHead,
    /// The branch at the first observation.
    pub(super) branch: HeadBranch,
    /// Whether a path of it was classified, or a change of its own files reported.
    pub(super) observed: bool,
    /// Whether a tracked path was dirty when it was first observed.
    pub(super) dirty: bool,
    /// Counts what invalidates the patterns of its directories.
    pub(super) generation: u32,
    /// Whether the command has changed the rules of conversion: blobs in the index may have been made by other
    /// rules.
    pub(super) converted_otherwise: bool,
    /// Whether it must be opened again before the next question.
    pub(super) stale: bool,
    /// Whether gix has panicked on it: it is not used again.
    pub(super) broken: bool,
    /// Whether an answer was ever asked for that depends on its files.
    pub(super) asked: bool,
    global: Global,
    index: Option<Index>,
    /// The signature of an index that can't be parsed, which need not be read again.
    unfit_index: Option<Signature>,
    trees: TreeCache,
    sizes: RefCell<HashMap<ObjectId, Option<u64>, foldhash::fast::RandomState>>,
}

/// What the first `HEAD` has at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadEntry {
    Nothing,
    Something(Mode, ObjectId),
    Unknown,
}

impl Repository {
    /// Takes an opened repository; what its `HEAD` is now will be its first one.
    pub(super) fn new(opened: OpenRepository) -> Repository {
        let (head, branch) = opened.head();
        Repository {
            head,
            branch,
            observed: false,
            dirty: false,
            generation: 0,
            converted_otherwise: false,
            stale: false,
            broken: false,
            asked: false,
            global: Global::read(&opened.sources),
            index: None,
            unfit_index: None,
            trees: TreeCache::default(),
            sizes: RefCell::default(),
            opened,
        }
    }

    /// Replaces the open repository; the first head stays.
    pub(super) fn replace(&mut self, opened: OpenRepository) {
        self.global = Global::read(&opened.sources);
        self.opened = opened;
        self.index = None;
        self.trees.retry();
        self.generation += 1;
        self.stale = false;
    }

    /// Forgets the index, which was changed, perhaps within one step of its timestamps.
    pub(super) fn forget_index(&mut self) {
        self.index = None;
        self.unfit_index = None;
    }

    /// Makes the next answers those of the current files.
    ///
    /// Returns none where Git could not work: its answers are then unknown.
    pub(super) fn bring_up_to_date(&mut self) -> Option<()> {
        self.asked = true;
        if self.broken {
            return None;
        }
        if self.stale {
            let opened = OpenRepository::at(&self.opened.directory)?;
            if opened.root != self.opened.root {
                return None;
            }
            self.replace(opened);
        }
        let path = &self.opened.index_path;
        if !self.index.as_ref().is_some_and(|index| index.is_current(path)) {
            self.index = None;
            let signature = Index::signature(path);
            if signature.is_some() && signature == self.unfit_index {
                return None;
            }
            self.index = Index::read(path, self.opened.git.object_hash());
            self.unfit_index = signature.filter(|signature| self.index.is_none() && !signature.is_recent());
            self.generation += 1;
        }
        (self.index.is_some() && self.global.is_whole()).then_some(())
    }

    /// The patterns of the directory at `relative`, from those of its parent; none where a file with them is
    /// too large.
    pub(super) fn patterns(&mut self, parent: Option<&Patterns>, relative: &[u8]) -> Option<Patterns> {
        let Repository { opened, index, global, .. } = self;
        let mut indexed = |path: &[u8], skipped: bool| {
            let id = index.as_ref()?.pattern_file(path, skipped)?;
            Some(objects::read(&opened.git, id)?.data)
        };
        global.directory(parent, &opened.root_path(), relative, &mut indexed)
    }

    /// The commit of `HEAD` now, and its branch.
    pub(super) fn head_now(&self) -> (Option<ObjectId>, HeadBranch) {
        let (head, branch) = self.opened.head();
        (head.commit(), branch)
    }

    /// Classifies the root of a submodule, `relative` in this working tree, whose own `HEAD` is
    /// `checked_out`. Returns none where it is not a submodule.
    pub(super) fn gitlink(&mut self, relative: &[u8], checked_out: Option<ObjectId>) -> Option<PathStatus> {
        let Lookup::Entry(entry) = self.lookup(relative) else { return None };
        if !entry.mode.is_submodule() {
            return None;
        }
        let moved = checked_out.is_some_and(|id| id != entry.oid);
        let dirty = moved || self.at_head(relative, Some(&entry)).differs_from(&entry);
        Some(PathStatus { tracked: true, dirty, ..PathStatus::default() })
    }

    /// Classifies a path that is not the root of a working tree.
    pub(super) fn classify(&mut self, query: Query<'_>, patterns: &Patterns) -> PathStatus {
        let is_dir = query.stat.is_some_and(|stat| kind(stat) == libc::S_IFDIR);
        match self.lookup(query.relative) {
            Lookup::Entry(entry) => self.tracked(query, patterns, &entry),
            Lookup::Conflict => {
                let head = self.at_head(query.relative, None);
                let oid = query.stat.and_then(|stat| self.pin(head, &self.content(query, stat), false));
                PathStatus { tracked: true, dirty: true, oid, ..PathStatus::default() }
            }
            // What was untracked, or lies below a tree object of a sparse index that does not have it.
            Lookup::Absent | Lookup::Sparse { .. } => {
                let head = self.at_head(query.relative, None);
                let left_head = matches!(head, HeadEntry::Something(mode, _) if !mode.is_sparse());
                let has_tracked =
                    is_dir && self.index.as_ref().is_some_and(|index| index.has_below(query.relative));
                PathStatus {
                    oid: query.stat.and_then(|stat| self.pin(head, &self.content(query, stat), false)),
                    tracked: false,
                    dirty: left_head,
                    ignored: !has_tracked && self.global.is_excluded(patterns, query.relative, is_dir),
                }
            }
        }
    }

    /// Looks a path up in the index, a sparse one included.
    fn lookup(&mut self, relative: &[u8]) -> Lookup {
        let Some(index) = &self.index else { return Lookup::Absent };
        match index.lookup(relative) {
            Lookup::Sparse { tree, rest } => {
                match self.trees.lookup(&self.opened.git, tree, &relative[rest..]) {
                    Ok(Some((mode, oid))) if !mode.is_sparse() => {
                        Lookup::Entry(IndexEntry::of_tree(mode, oid))
                    }
                    _ => Lookup::Sparse { tree, rest },
                }
            }
            found => found,
        }
    }

    /// What the first head has at `relative`; `entry` is what the index has there.
    fn at_head(&mut self, relative: &[u8], entry: Option<&IndexEntry>) -> HeadEntry {
        let tree = match self.head {
            GitHead::Unborn => return HeadEntry::Nothing,
            GitHead::Unknown | GitHead::Commit(_, None) => return HeadEntry::Unknown,
            GitHead::Commit(_, Some(tree)) => tree,
        };
        if self.index.as_ref().and_then(Index::tree) == Some(tree) {
            return entry.map_or(HeadEntry::Nothing, |entry| HeadEntry::Something(entry.mode, entry.oid));
        }
        match self.trees.lookup(&self.opened.git, tree, relative) {
            Ok(Some((mode, oid))) => HeadEntry::Something(mode, oid),
            Ok(None) => HeadEntry::Nothing,
            Err(_) => HeadEntry::Unknown,
        }
    }

    fn tracked(&mut self, query: Query<'_>, patterns: &Patterns, entry: &IndexEntry) -> PathStatus {
        let known = PathStatus { tracked: true, dirty: true, ..PathStatus::default() };
        let Some(stat) = query.stat else { return known };
        let head = self.at_head(query.relative, Some(entry));
        let staged = head.differs_from(entry) || entry.intent_to_add;
        if entry.mode.is_submodule() {
            // Not checked out, which is clean, or something else has its place.
            return PathStatus { dirty: staged || kind(stat) != libc::S_IFDIR, ..known };
        }
        let settings = &self.opened.settings;
        let conversion = if kind(stat) == libc::S_IFREG {
            self.global.conversion(patterns, query.relative, settings.eol, |name| settings.driver(name))
        } else {
            Conversion::default(Eol::Binary)
        };
        let proven = self.index.as_ref().is_some_and(|index| index.proves(entry, stat));
        let content = self.content(query, stat);
        // Equal stat data proves that the file still has the bytes that the blob was made from. They are the
        // bytes of the blob only if nothing but line endings can have been converted, then or now, and if the
        // lengths are equal.
        let as_blob = proven
            && conversion.only_shortens()
            && !self.converted_otherwise
            && !settings.may_keep_length(stat)
            && head == HeadEntry::Something(entry.mode, entry.oid);
        let oid = self.pin(head, &content, as_blob);
        let dirty = staged
            || (!proven && self.differs(&content, entry, &conversion))
            || self.has_other_mode(entry, stat);
        PathStatus { oid, dirty, ..known }
    }

    /// Whether a file with `stat` has another kind or permission than its entry in the index.
    fn has_other_mode(&self, entry: &IndexEntry, stat: &FileStat) -> bool {
        let settings = &self.opened.settings;
        match (kind(stat), entry.mode) {
            (libc::S_IFREG, Mode::FILE | Mode::FILE_EXECUTABLE) => {
                settings.file_mode && actual_mode(stat) != Some(entry.mode)
            }
            (libc::S_IFREG, Mode::SYMLINK) => settings.symlinks,
            (libc::S_IFLNK, Mode::SYMLINK) => false,
            _ => true,
        }
    }

    /// Whether `git status` would say that the content differs from the entry in the index.
    fn differs(&self, content: &WorktreeContent<'_>, entry: &IndexEntry, conversion: &Conversion) -> bool {
        let Some(index) = &self.index else { return true };
        let stat = content.stat;
        if index.size_differs(entry, stat) || self.has_other_mode(entry, stat) {
            return true;
        }
        let git = &self.opened.git;
        let id = if conversion.compares_bytes(stat) {
            // A blob of another size can't be it, whatever is in the file.
            if self.blob_size(entry.oid).is_some_and(|size| size != fs::size(stat)) {
                return true;
            }
            content.id()
        } else {
            conversion.object_id(content.path, stat, content.hash, &mut |limit| {
                let fits = self.blob_size(entry.oid).is_some_and(|size| size <= limit);
                fits.then(|| objects::read(git, entry.oid).map(|object| object.data))?
            })
        };
        match id {
            Ok(id) => id != entry.oid,
            // The times are those in an index that was written at almost the same moment: most
            // likely by the checkout that wrote the file. Otherwise it was touched at least.
            Err(Error::NeedsFilter) => !index.equals(entry, stat),
            Err(_) => true,
        }
    }

    fn content<'a>(&self, query: Query<'a>, stat: &'a FileStat) -> WorktreeContent<'a> {
        let hash = self.opened.git.object_hash();
        WorktreeContent { path: query.path, stat, hash, pin: query.pin, id: OnceCell::new() }
    }

    /// The size of a blob; none where it is missing or damaged. Each is looked up once in a recording.
    fn blob_size(&self, id: ObjectId) -> Option<u64> {
        *self.sizes.borrow_mut().entry(id).or_insert_with(|| {
            if !has_harmless_file(&self.opened.git, id) {
                return None;
            }
            let header = self.opened.git.try_find_header(id).ok()??;
            (header.kind() == gix::objs::Kind::Blob).then(|| header.size())
        })
    }

    /// The blob that the first head has at the path, if the file's bytes are proved to be its own,
    /// the mode is the same and the object is there.
    ///
    /// `as_blob` says that the bytes are those of the blob if the lengths are equal.
    fn pin(&self, head: HeadEntry, content: &WorktreeContent<'_>, as_blob: bool) -> Option<ObjectId> {
        let HeadEntry::Something(mode, oid) = head else { return None };
        if !content.pin
            || mode != actual_mode(content.stat)?
            || self.blob_size(oid)? != fs::size(content.stat)
        {
            return None;
        }
        (as_blob || content.id() == Ok(oid)).then_some(oid)
    }
}

impl HeadEntry {
    /// Whether the index has something else staged. Without a known head, nothing is.
    fn differs_from(self, entry: &IndexEntry) -> bool {
        self != HeadEntry::Unknown && self != HeadEntry::Something(entry.mode, entry.oid)
    }
}

/// The content of a file or the target of a symlink, hashed when its id is first needed.
struct WorktreeContent<'a> {
    path: &'a Path,
    stat: &'a FileStat,
    hash: gix::hash::Kind,
    pin: bool,
    id: OnceCell<Result<ObjectId, Error>>,
}

impl WorktreeContent<'_> {
    /// The id of the blob that has exactly these bytes.
    fn id(&self) -> Result<ObjectId, Error> {
        let id = self.id.get_or_init(|| match kind(self.stat) {
            libc::S_IFLNK => {
                let target = std::fs::read_link(self.path).map_err(|_| Error::FileChanged)?;
                convert::blob_id(target.as_os_str().as_bytes(), self.hash)
            }
            _ => convert::file_id(self.path, self.stat, self.hash),
        });
        id.clone()
    }
}

fn kind(stat: &FileStat) -> u32 {
    stat.st_mode & libc::S_IFMT
}

/// The mode that Git has for such a file; none for what it can't keep.
fn actual_mode(stat: &FileStat) -> Option<Mode> {
    match kind(stat) {
        libc::S_IFREG if stat.st_mode & libc::S_IXUSR != 0 => Some(Mode::FILE_EXECUTABLE),
        libc::S_IFREG => Some(Mode::FILE),
        libc::S_IFLNK => Some(Mode::SYMLINK),
        _ => None,
    }
}
