//! The path as the tracee's kernel finds it: from a base and the bytes of a call to the real
//! name, with every symlink that is crossed on the way.
//!
//! A walk asks only for names whose parents are already resolved, so the same walk serves a
//! tracee with another root (or mount namespace) through /proc/TID/root. Neighbours: `view.rs`
//! says where a thread's paths start; `recording.rs` records what is found.

pub mod credentials;
mod known;
pub mod view;

use std::collections::HashMap;
use std::os::fd::AsRawFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

pub use crate::fs::is_regular;
use crate::fs::{self, FileStat, ObjectId, parent_of};
use crate::trace::memory::PATH_MAX;
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::Tid;

use super::mounts::{Layers, Mounts, Place, PrivateId, View};
use known::KnownDirectories;

/// The kernel's limit of symlinks in one path (path_resolution(7)).
const MAX_SYMLINKS: u32 = 40;
/// NAME_MAX of every local filesystem.
const NAME_MAX: usize = 255;
/// How many directories that paths started at are remembered at most.
const MAX_STARTS: usize = 10_000;

/// The process from whose root and mount namespace a walk starts.
#[derive(Debug, Clone)]
pub struct Viewpoint<'m> {
    /// What is put before a path to reach it from here: empty, or `/proc/TID/root`.
    pub prefix: Vec<u8>,
    /// What the text of a magic link, which is a path of the mount namespace, has before it is one of this root.
    pub root: Vec<u8>,
    /// What paths of the namespace are called here, if their names may differ.
    pub mounts: Option<(&'m Mounts, &'m View)>,
    /// The process that `/proc/self` means.
    pub process: i32,
    /// The thread that `/proc/thread-self` means.
    pub thread: i32,
}

/// A path that was resolved.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Its real name: no `.`, no `..`, no symlink but perhaps the last component.
    pub path: Vec<u8>,
    /// What is there, not followed.
    pub stat: Option<FileStat>,
    /// The symlinks that were crossed, in order.
    pub crossed: Vec<Crossed>,
    /// The directories that it left by a `..`.
    pub left: Vec<Vec<u8>>,
    /// Whether the path as named, or the target of the symlink that it names, ended in a slash, so that it
    /// must be a directory.
    pub must_be_directory: bool,
    /// Whether nothing is there, and the path goes on from it by a dot or two, so that nothing can be made by it.
    pub leads_nowhere: bool,
    /// Its path in the thread's own mount namespace, if that need not be the same.
    pub seen_at: Option<Vec<u8>>,
    /// The directories of the overlay that shows it, if the tree has mounted that.
    pub overlay: Option<Layers>,
}

impl Resolved {
    /// An object by its name, which no path led to.
    pub fn object(path: Vec<u8>, stat: FileStat) -> Resolved {
        Resolved { path, stat: Some(stat), ..Resolved::default() }
    }

    /// What is at a place of an overlay that the tree has mounted.
    fn on_overlay(layers: Layers) -> Resolved {
        Resolved { path: layers.path(), stat: layers.lstat(), overlay: Some(layers), ..Resolved::default() }
    }
}

/// A symlink that a path led through.
#[derive(Debug)]
pub struct Crossed {
    /// Its own real name.
    pub path: Vec<u8>,
    /// What lstat says of it.
    pub stat: FileStat,
}

/// A place on a mount whose content is gone when its mount namespace is.
#[derive(Debug)]
pub struct PrivatePlace {
    /// The mount.
    pub mount: PrivateId,
    /// The path, as the thread calls it.
    pub path: Vec<u8>,
    /// What is there, not followed.
    pub stat: Option<FileStat>,
}

/// Why a path has no name to record.
#[derive(Debug)]
pub enum Unresolved {
    /// A component that is no directory is used as one (ENOTDIR): its name.
    NotADirectory(Vec<u8>),
    /// Too many symlinks (ELOOP): the symlinks that were seen.
    Loop(Vec<Crossed>),
    /// A name longer than the kernel accepts (ENAMETOOLONG).
    TooLong,
    /// A directory on the way may not be searched (EACCES): its name, and the symlinks seen before.
    Denied(Vec<u8>, Vec<Crossed>),
    /// Something without a name: a pipe, a deleted file, an object behind a magic link.
    Nameless,
    /// It leads to what has no name in our root and mount namespace, or none in the root of the walk.
    Unnamed(Vec<u8>),
    /// It leads to a private mount.
    Private(Box<PrivatePlace>),
    /// A name that the kernel reaches step by step, and that is too long to be named at once.
    TooDeep,
    /// The kernel does not tell us where the path starts.
    UnknownStart,
    /// The thread that named it has ended, and does not make its call any more.
    CallerEnded,
    /// A magic link on the way, whose text this is, stands for something on another mount than the one at that path here.
    OnOtherMount(Vec<u8>),
    /// It leads to a filesystem that the tree serves itself, which must not be accessed while a tracee is
    /// stopped. As much of its name as is known.
    Served(Vec<u8>),
}

impl Unresolved {
    /// The names that decide that the path leads nowhere, as far as they are known.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let symlinks = |crossed: &[Crossed]| crossed.iter().map(|symlink| symlink.path.clone()).collect();
        match self {
            Unresolved::NotADirectory(path) => vec![path.clone()],
            Unresolved::Loop(crossed) => symlinks(crossed),
            Unresolved::Denied(directory, crossed) => {
                let mut names: Vec<Vec<u8>> = symlinks(crossed);
                names.push(directory.clone());
                names
            }
            Unresolved::TooLong
            | Unresolved::Nameless
            | Unresolved::Unnamed(_)
            | Unresolved::Private(..)
            | Unresolved::TooDeep
            | Unresolved::UnknownStart
            | Unresolved::CallerEnded
            | Unresolved::OnOtherMount(_)
            | Unresolved::Served(_) => Vec::new(),
        }
    }
}

/// The walker, with the directories that it knows to be real ones.
#[derive(Debug, Default)]
pub struct Resolver {
    known: KnownDirectories,
    /// Whether a call in flight may change one of them: then none is used, and none is added.
    paused: bool,
    /// The mount points of served filesystems: nothing at or below one may be accessed.
    served: Vec<Vec<u8>>,
    /// Those in other namespaces, which the text of a magic link may name.
    served_elsewhere: Vec<Vec<u8>>,
    /// Directories that paths started at.
    starts: HashMap<ObjectId, StartNames, foldhash::fast::RandomState>,
}

/// What a directory is called.
#[derive(Debug)]
struct StartNames {
    /// In its mount namespace, as the text of a magic link to it.
    text: Box<[u8]>,
    /// Here.
    ours: Box<[u8]>,
}

impl Resolver {
    /// Sets the mount points of served filesystems, at and below which nothing may be accessed, in our namespace and
    /// in others.
    pub fn set_served(&mut self, here: Vec<Vec<u8>>, elsewhere: Vec<Vec<u8>>) {
        self.served = here;
        self.served_elsewhere = elsewhere;
        // Names of directories may lead there now.
        self.starts.clear();
    }

    /// Whether the tree serves a filesystem: then nothing is asked for by a magic link before its text is known.
    pub fn is_serving(&self) -> bool {
        !self.served.is_empty() || !self.served_elsewhere.is_empty()
    }

    /// Whether the text of a magic link may name what is on a served filesystem of some namespace.
    pub fn may_be_served(&self, text: &[u8]) -> bool {
        let elsewhere = || self.served_elsewhere.iter().any(|place| inside(text, trim_root(place)).is_some());
        self.is_served(text) || elsewhere()
    }

    /// Whether `path` is on a served filesystem, which must not be accessed.
    pub fn is_served(&self, path: &[u8]) -> bool {
        self.served.iter().any(|place| inside(path, trim_root(place)).is_some())
    }

    /// Like the function [`named_object`], but accesses no served filesystem.
    pub fn named_object(&self, link: &[u8]) -> Result<(Vec<u8>, FileStat), Unresolved> {
        if self.is_serving() {
            let path = read_magic_link(link)?;
            if self.may_be_served(&path) {
                return Err(Unresolved::Served(path));
            }
        }
        named_object(link)
    }

    /// Suspends or resumes the cache of directories: while suspended it is neither used nor filled.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// The text of a magic link to this directory, if it is noted and the directory has the name that it had then: the
    /// lstat(2) costs less than reading the link.
    pub fn text_of(&self, directory: ObjectId) -> Option<&[u8]> {
        let names = self.starts.get(&directory)?;
        let stat = fs::lstat(&names.ours).ok()??;
        ((stat.st_dev, stat.st_ino) == directory.inode).then_some(&names.text)
    }

    /// Notes the text of a magic link to a directory that has a name here.
    pub fn note_text(&mut self, mounts: &Mounts, directory: ObjectId, text: &[u8]) {
        let Some(Place::Named(name)) = mounts.place_on_mount(directory.mount, text) else { return };
        if self.is_served(&name) {
            return;
        }
        if self.starts.len() >= MAX_STARTS {
            self.starts.clear();
        }
        self.starts.insert(directory, StartNames { text: text.into(), ours: name.into() });
    }

    /// Trusts nothing that is known of directories until it is seen again: a rename, a symlink or a mount may
    /// have changed it.
    pub fn forget(&mut self) {
        self.known.distrust();
    }

    /// Notes which directories somebody outside has replaced so far.
    pub fn note_replaced(&mut self) {
        self.known.note_all_replaced();
    }

    /// Forgets all directories: some were changed by calls that are not reported here.
    pub fn forget_all(&mut self) {
        self.known.clear();
    }

    /// Forgets one directory, which a traced call has removed.
    pub fn forget_directory(&mut self, directory: &[u8]) {
        self.known.removed(directory);
    }

    /// Notes that a traced call has renamed what is at `from`, whatever it is, and all below it.
    pub fn renamed(&mut self, from: &[u8], to: &[u8], exchange: bool) {
        self.known.renamed(from, to, exchange);
    }

    /// Notes that the tree has mounted something over `path`, or unmounted it.
    pub fn mounts_changed(&mut self, path: &[u8]) {
        self.known.hidden(path);
    }

    /// The directories that paths led through and that are others now, though no traced call moved or
    /// removed them; of nested ones the topmost. Costs an lstat(2) for each directory that was met.
    pub fn changed_outside(&self) -> Vec<Vec<u8>> {
        self.known.replaced()
    }

    /// Resolves `path` from the real directory `base`, the last component's symlink only if `follow`.
    pub fn resolve(
        &mut self,
        names: &Viewpoint<'_>,
        base: &[u8],
        path: &[u8],
        follow: bool,
    ) -> Result<Resolved, Unresolved> {
        if path.len() >= PATH_MAX {
            return Err(Unresolved::TooLong);
        }
        if (names.prefix.is_empty() || names.mounts.is_some()) && !self.paused {
            if let Some(resolved) = self.resolve_in_known(names, base, path, follow) {
                return Ok(resolved);
            }
            // An error is judged by what is there now.
            if let Ok(resolved) = Walk::new(self, names, true).run(base, path, follow) {
                return Ok(resolved);
            }
        }
        Walk::new(self, names, false).run(base, path, follow)
    }

    /// The short way: no dots, and a parent that is known to be a real directory.
    fn resolve_in_known(
        &mut self,
        names: &Viewpoint<'_>,
        base: &[u8],
        path: &[u8],
        follow: bool,
    ) -> Option<Resolved> {
        if path.ends_with(b"/") {
            return None;
        }
        let mut name = if path.starts_with(b"/") { Vec::new() } else { trim_root(base).to_vec() };
        name.reserve(path.len() + 1);
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" => {}
                b"." | b".." => return None,
                _ if component.len() > NAME_MAX => return None,
                _ => {
                    name.push(b'/');
                    name.extend_from_slice(component);
                }
            }
        }
        // What is mounted on the way to another mount is mounted on a real directory.
        let (name, parent, seen_at) = match names.place(&name) {
            None => {
                let parent = parent_of(&name)?.to_vec();
                (name, parent, None)
            }
            Some(Place::Named(ours)) => {
                let place = match names.is_mount_point(&name) {
                    true => names.place(parent_of(&name)?)?,
                    false => Place::Named(parent_of(&ours)?.to_vec()),
                };
                let Place::Named(parent) = place else { return None };
                (ours, parent, Some(names.in_namespace(&name)))
            }
            Some(_) => return None,
        };
        if !self.known.contains(&parent) || self.is_served(&name) {
            return None;
        }
        // ENOTDIR: what was a directory is none any more, which the walk will see.
        let stat = match rustix::fs::lstat(name.as_slice()) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(_) => return None,
        };
        if follow && stat.as_ref().is_some_and(is_symlink) {
            return None;
        }
        if let Some(stat) = stat.as_ref().filter(|stat| is_directory(stat)) {
            self.learn(&name, stat);
        }
        Some(Resolved { path: name, stat, seen_at, ..Resolved::default() })
    }

    /// The device of a directory of our own names, if it is known to be a real one.
    pub fn device_of(&self, directory: &[u8]) -> Option<u64> {
        self.known.device_of(directory).filter(|_| !self.paused)
    }

    /// Remembers a real directory of our own names.
    fn learn(&mut self, directory: &[u8], stat: &FileStat) {
        if !self.paused {
            self.known.learn(directory, stat);
        }
    }
}

struct Walk<'a> {
    resolver: &'a mut Resolver,
    names: &'a Viewpoint<'a>,
    /// Whether a directory that is known to be a real one is not asked for again.
    trusting: bool,
    crossed: Vec<Crossed>,
    left: Vec<Vec<u8>>,
    symlinks: u32,
    leads_nowhere: bool,
}

impl<'a> Walk<'a> {
    fn new(resolver: &'a mut Resolver, names: &'a Viewpoint<'a>, trusting: bool) -> Self {
        Walk {
            resolver,
            names,
            trusting,
            crossed: Vec::new(),
            left: Vec::new(),
            symlinks: 0,
            leads_nowhere: false,
        }
    }

    fn run(mut self, base: &[u8], path: &[u8], follow: bool) -> Result<Resolved, Unresolved> {
        // The components still to come, the next one last.
        let mut todo: Vec<Vec<u8>> = Vec::new();
        push_components(&mut todo, path);
        let mut must_be_directory = path.ends_with(b"/") || last_is_dots(path);
        let follow = follow || path.ends_with(b"/");
        let mut real = if path.starts_with(b"/") { Vec::new() } else { trim_root(base).to_vec() };
        loop {
            let Some(component) = todo.pop() else {
                let path = if real.is_empty() { b"/".to_vec() } else { real };
                let stat = self.lstat(&path)?;
                return self.arrived(path, stat, must_be_directory);
            };
            match component.as_slice() {
                b"." => continue,
                b".." => {
                    self.left.push(real.clone());
                    real.truncate(real.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                    continue;
                }
                name if name.len() > NAME_MAX => return Err(Unresolved::TooLong),
                _ => {}
            }
            let parent = real.len();
            real.push(b'/');
            real.extend_from_slice(&component);
            let last = todo.is_empty();
            if self.trusting && !last && self.is_known(&real) {
                continue;
            }
            let Some(stat) = self.lstat(&real)? else {
                // Nothing is there: the rest of the name is as named, up to a `..`.
                while let Some(rest) = todo.pop() {
                    match rest.as_slice() {
                        b"." => self.leads_nowhere = true,
                        b".." => {
                            self.leads_nowhere = true;
                            break;
                        }
                        _ => {
                            real.push(b'/');
                            real.extend_from_slice(&rest);
                        }
                    }
                }
                return self.arrived(real, None, must_be_directory);
            };
            if is_symlink(&stat) && (!last || follow) {
                self.symlinks += 1;
                if self.symlinks > MAX_SYMLINKS {
                    return Err(Unresolved::Loop(self.crossed_by_name()?));
                }
                if let Some(object) = self.object_of_other_mounts(&real, &stat) {
                    let link = self.outside(&real);
                    self.crossed.push(Crossed { path: real, stat });
                    return self.run_from_object(object?, Some(&link), todo, follow);
                }
                let target = self.read_symlink(&real, &stat);
                if let (Err(Unresolved::Nameless), Some((mounts, _))) = (&target, self.names.mounts) {
                    // A removed directory, whose `..` has a name here.
                    let name = |link: &[u8]| {
                        let text = read_magic_link(link).ok()?;
                        Some(object_behind(mounts, link, &text).ok()?.path)
                    };
                    let found = above_unnamed(&self.outside(&real), || todo.pop(), name);
                    let found = found.ok_or(Unresolved::Nameless)?;
                    let directory = fs::lstat(&found).ok().flatten().ok_or(Unresolved::Nameless)?;
                    self.crossed.push(Crossed { path: real, stat });
                    return self.run_from_object(Resolved::object(found, directory), None, todo, follow);
                }
                let target = match target {
                    Err(Unresolved::Nameless) if self.names.prefix.is_empty() => {
                        let found = above_unnamed(&self.outside(&real), || todo.pop(), name_of_object);
                        found.ok_or(Unresolved::Nameless)?
                    }
                    target => target?,
                };
                self.crossed.push(Crossed { path: real.clone(), stat });
                if target.starts_with(b"/") {
                    real.clear();
                } else {
                    real.truncate(parent);
                }
                must_be_directory |= last && target.ends_with(b"/");
                push_components(&mut todo, &target);
            } else if is_directory(&stat) {
                match self.names.place(&real) {
                    None if self.names.prefix.is_empty() => self.resolver.learn(&real, &stat),
                    Some(Place::Named(ours)) => self.resolver.learn(&ours, &stat),
                    _ => {}
                }
                if last {
                    return self.arrived(real, Some(stat), must_be_directory);
                }
            } else if last {
                return self.arrived(real, Some(stat), must_be_directory);
            } else {
                return Err(self.not_a_directory(&real));
            }
        }
    }

    /// Goes on from an object that is known by its name here; if a magic link stands for it, what is found has to be what the
    /// thread reaches through that.
    fn run_from_object(
        mut self,
        object: Resolved,
        link: Option<&[u8]>,
        mut todo: Vec<Vec<u8>>,
        follow: bool,
    ) -> Result<Resolved, Unresolved> {
        let mut crossed = self.crossed_by_name()?;
        if todo.is_empty() {
            return Ok(Resolved { crossed, ..object });
        }
        todo.reverse();
        let rest = todo.join(&b'/');
        if let (Some(layers), Some(link)) = (&object.overlay, link) {
            let found = below_on_overlay(layers, link, &rest, follow)?;
            return Ok(Resolved { crossed, ..found });
        }
        let is_serving = self.resolver.is_serving();
        let Viewpoint { process, thread, .. } = *self.names;
        let ours = Viewpoint { prefix: Vec::new(), root: Vec::new(), mounts: None, process, thread };
        let walk = Walk::new(self.resolver, &ours, false);
        let mut found = walk.run(&object.path, &rest, follow)?;
        if link.is_some_and(|link| !is_serving && !is_reached(&found, link, &rest, follow)) {
            return Err(Unresolved::Unnamed(found.path));
        }
        crossed.append(&mut found.crossed);
        Ok(Resolved { crossed, ..found })
    }

    /// What the walk has come to, by its name here.
    fn arrived(
        mut self,
        path: Vec<u8>,
        stat: Option<FileStat>,
        must_be_directory: bool,
    ) -> Result<Resolved, Unresolved> {
        let crossed = self.crossed_by_name()?;
        let left = std::mem::take(&mut self.left);
        let (mut overlay, mut seen_at) = (None, None);
        let (path, left) = match self.names.place(&path) {
            None => ([self.names.root.as_slice(), trim_root(&path)].concat(), left),
            Some(place) => {
                let left = left.iter().filter_map(|path| match self.names.place(or_root(path))? {
                    Place::Named(ours) => Some(ours),
                    _ => None,
                });
                seen_at = Some(self.names.in_namespace(&path));
                if let Place::Overlay(layers) = &place {
                    overlay = Some(layers.clone());
                }
                (named(place, &path, stat)?, left.collect())
            }
        };
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        let leads_nowhere = self.leads_nowhere;
        Ok(Resolved { path, stat, crossed, left, must_be_directory, leads_nowhere, seen_at, overlay })
    }

    /// The symlinks on the way by their names here; those on private mounts have none.
    fn crossed_by_name(&mut self) -> Result<Vec<Crossed>, Unresolved> {
        let mut crossed = Vec::new();
        for Crossed { path, stat } in std::mem::take(&mut self.crossed) {
            let path = match self.names.place(&path) {
                None => [self.names.root.as_slice(), &path].concat(),
                Some(Place::Private(_)) => continue,
                Some(place) => named(place, &path, Some(stat))?,
            };
            crossed.push(Crossed { path, stat });
        }
        Ok(crossed)
    }

    fn not_a_directory(&self, path: &[u8]) -> Unresolved {
        match self.names.place(path) {
            None => Unresolved::NotADirectory([self.names.root.as_slice(), path].concat()),
            Some(Place::Named(ours)) => Unresolved::NotADirectory(ours),
            // It is refused, and nothing can be said of it.
            Some(_) => Unresolved::Loop(Vec::new()),
        }
    }

    /// The error for a directory that may not be searched.
    fn denied(&mut self, directory: &[u8]) -> Unresolved {
        let crossed = match self.crossed_by_name() {
            Ok(crossed) => crossed,
            Err(unresolved) => return unresolved,
        };
        match self.names.place(directory) {
            None => {
                let directory = [self.names.root.as_slice(), trim_root(directory)].concat();
                Unresolved::Denied(if directory.is_empty() { b"/".to_vec() } else { directory }, crossed)
            }
            Some(place) => match named(place, directory, None) {
                Ok(ours) => Unresolved::Denied(ours, crossed),
                Err(unresolved) => unresolved,
            },
        }
    }

    /// Whether a directory is known to be a real one.
    fn is_known(&self, path: &[u8]) -> bool {
        match self.names.place(path) {
            None => self.resolver.known.contains(path),
            Some(Place::Named(ours)) => self.resolver.known.contains(&ours),
            Some(_) => false,
        }
    }

    /// What a magic link stands for that was opened on a mount which is not, or no longer, at that path of the
    /// namespace; none if it stands for what is there.
    fn object_of_other_mounts(&self, path: &[u8], stat: &FileStat) -> Option<Result<Resolved, Unresolved>> {
        if !self.is_on_procfs(path, stat) {
            return None;
        }
        let link = self.outside(path);
        let text = read_magic_link(&link).ok().filter(|text| text.starts_with(b"/"))?;
        if self.resolver.may_be_served(&text) {
            return None;
        }
        let mount = ObjectId::of(&link)?.mount;
        let Some((mounts, view)) = self.names.mounts else {
            let has_name = !text.ends_with(b" (deleted)");
            let is_here = ObjectId::named(&text).is_some_and(|here| here.mount == mount);
            return (has_name && !is_here).then_some(Err(Unresolved::OnOtherMount(text)));
        };
        if mounts.is_on(view, &text, mount) && inside(&text, &self.names.root).is_some() {
            return None;
        }
        Some(object_behind(mounts, &link, &text))
    }

    /// A path by which what is at `path` can be reached from here.
    fn outside(&self, path: &[u8]) -> Vec<u8> {
        self.outside_of(self.names.place(path), path)
    }

    /// The same where it is known what the path is called here.
    fn outside_of(&self, place: Option<Place>, path: &[u8]) -> Vec<u8> {
        match place {
            Some(Place::Named(ours)) => ours,
            Some(Place::Overlay(layers)) => layers.path(),
            _ => [self.names.prefix.as_slice(), path].concat(),
        }
    }

    fn lstat(&mut self, path: &[u8]) -> Result<Option<FileStat>, Unresolved> {
        let place = self.names.place(path);
        let whole = || [self.names.root.as_slice(), path].concat();
        let served = match &place {
            Some(Place::Overlay(layers)) => return Ok(layers.lstat()),
            Some(Place::Served) => Some(whole()),
            Some(Place::Private(_)) => Some(whole()).filter(|whole| self.names.is_changing(whole)),
            Some(Place::Named(ours)) => self.resolver.is_served(ours).then(|| ours.clone()),
            Some(Place::Unnamed) => None,
            None if self.resolver.served.is_empty() => None,
            None => Some(whole()).filter(|whole| self.resolver.is_served(whole)),
        };
        if let Some(served) = served {
            return Err(Unresolved::Served(served));
        }
        let outside = self.outside_of(place, path);
        match rustix::fs::lstat(outside.as_slice()) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            // A descriptor that a path starts from need be no directory.
            Err(Errno::NOTDIR) => Err(self.not_a_directory(path)),
            Err(Errno::NAMETOOLONG) if outside.len() >= PATH_MAX => Err(Unresolved::TooDeep),
            Err(Errno::NAMETOOLONG) => Err(Unresolved::TooLong),
            Err(_) => Err(self.denied(parent_of(path).unwrap_or(b"/"))),
        }
    }

    /// The target of the symlink at `path`; symlinks of procfs as they are for the tracee.
    fn read_symlink(&mut self, path: &[u8], stat: &FileStat) -> Result<Vec<u8>, Unresolved> {
        let outside = self.outside(path);
        let is_on_procfs = self.is_on_procfs(path, stat);
        // Of these the text depends on who reads it, who need not be in the namespace of the procfs.
        match path.rsplit(|byte| *byte == b'/').next() {
            Some(b"self") if is_on_procfs => {
                return Ok(self.number_in(path, stat, self.names.process).to_string().into_bytes());
            }
            Some(b"thread-self") if is_on_procfs => {
                let [process, thread] =
                    [self.names.process, self.names.thread].map(|tid| self.number_in(path, stat, tid));
                return Ok(format!("{process}/task/{thread}").into_bytes());
            }
            _ => {}
        }
        let Ok(target) = rustix::fs::readlinkat(CWD, outside.as_slice(), Vec::new()) else {
            return Err(self.denied(path));
        };
        let target = target.into_bytes();
        // `/proc/mounts` and `/proc/net` are ordinary relative symlinks.
        if !is_on_procfs || target.starts_with(b"self/") {
            return Ok(target);
        }
        // A magic link jumps to an object; its text is a name only if it names that object.
        if !target.starts_with(b"/") {
            return Err(Unresolved::Nameless);
        }
        if self.resolver.may_be_served(&target) {
            return Err(Unresolved::Served(target));
        }
        let is_named = self.is_named(&outside, &target);
        match inside(&target, &self.names.root) {
            Some(inside) if is_named => Ok(inside.to_vec()),
            Some(_) => Err(Unresolved::Nameless),
            None if self.names.prefix.is_empty() => Err(Unresolved::Nameless),
            None => Err(Unresolved::Unnamed(target)),
        }
    }

    /// The number of a thread in the procfs of a link, which may be of another process-id namespace than ours.
    fn number_in(&self, link: &[u8], stat: &FileStat, tid: i32) -> i32 {
        if is_on_procfs(stat) {
            return tid;
        }
        // From ours to that of the thread itself (Linux 4.1); those of a procfs begin with the one of its namespace.
        let numbers = |status: &ProcStatus| -> Vec<i32> {
            let line = status.line("NSpid:").unwrap_or_default();
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        let all = ProcStatus::of(Tid(tid)).map(|status| numbers(&status)).unwrap_or_default();
        let procfs = self.outside(parent_of(link).unwrap_or(b"/"));
        let is_shown = |from: &usize| {
            let path = [procfs.as_slice(), format!("/{}/status", all[*from]).as_bytes()].concat();
            ProcStatus::read(&path).is_some_and(|status| numbers(&status) == all[*from..])
        };
        (1..all.len()).find(is_shown).map_or(tid, |from| all[from])
    }

    /// Whether the text of a magic link names its object.
    fn is_named(&self, link: &[u8], text: &[u8]) -> bool {
        let named = match self.names.mounts {
            None => text.to_vec(),
            Some((mounts, view)) => match mounts.place(view, text) {
                Place::Named(ours) => ours,
                // By the whole namespace's root, which may be above the process's own.
                _ => match view.inside(text) {
                    Some(inside) => [self.names.prefix.as_slice(), inside].concat(),
                    None => return false,
                },
            },
        };
        let object = rustix::fs::statat(CWD, link, AtFlags::empty());
        let named = rustix::fs::statat(CWD, named.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        matches!((object, named), (Ok(object), Ok(named))
            if (object.st_dev, object.st_ino) == (named.st_dev, named.st_ino))
    }

    /// Whether a symlink is one of procfs; another process-id namespace has a procfs of its own.
    fn is_on_procfs(&self, path: &[u8], stat: &FileStat) -> bool {
        is_on_procfs(stat)
            || !self.names.prefix.is_empty() && {
                is_in_procfs(&self.outside(parent_of(path).unwrap_or(b"/")))
            }
    }
}

impl Viewpoint<'_> {
    /// What a path is called here; none where all paths have the same names as here.
    fn place(&self, path: &[u8]) -> Option<Place> {
        let (mounts, view) = self.mounts?;
        Some(mounts.place(view, &self.in_namespace(path)))
    }

    /// Whether something is mounted at a path itself.
    fn is_mount_point(&self, path: &[u8]) -> bool {
        self.mounts.is_some_and(|(mounts, view)| mounts.is_mounted_over(view, &self.in_namespace(path)))
    }

    /// The path of the mount namespace that a path below the root of the thread is.
    fn in_namespace(&self, path: &[u8]) -> Vec<u8> {
        let whole = [self.root.as_slice(), trim_root(path)].concat();
        if whole.is_empty() { b"/".to_vec() } else { whole }
    }

    /// Whether something is being mounted at a path of the namespace, or above it.
    fn is_changing(&self, path: &[u8]) -> bool {
        self.mounts.is_some_and(|(mounts, view)| mounts.is_changing(view, path))
    }
}

/// The name here of what a walk has found at `path`.
fn named(place: Place, path: &[u8], stat: Option<FileStat>) -> Result<Vec<u8>, Unresolved> {
    match place {
        Place::Named(ours) => Ok(ours),
        Place::Overlay(layers) => Ok(layers.path()),
        Place::Private(mount) => {
            Err(Unresolved::Private(Box::new(PrivatePlace { mount, path: path.to_vec(), stat })))
        }
        Place::Served => Err(Unresolved::Served(path.to_vec())),
        Place::Unnamed => Err(Unresolved::Unnamed(path.to_vec())),
    }
}

/// What a magic link with this text stands for, by its name here.
pub fn object_behind(mounts: &Mounts, link: &[u8], text: &[u8]) -> Result<Resolved, Unresolved> {
    if !text.starts_with(b"/") {
        return Err(Unresolved::Nameless);
    }
    let Some(object) = ObjectId::of(link) else { return Err(Unresolved::Nameless) };
    let Some(place) = mounts.place_on_mount(object.mount, text) else {
        return match named_object(link) {
            Ok((path, stat)) => Ok(Resolved::object(path, stat)),
            Err(_) => Err(Unresolved::Unnamed(text.to_vec())),
        };
    };
    let stat = rustix::fs::stat(link).ok();
    if let Place::Overlay(layers) = place {
        // Its directories know the object by another identity. It may count the name that was removed.
        let links = stat.as_ref().map_or(0, |stat| stat.st_nlink);
        return match Resolved::on_overlay(layers) {
            found if found.stat.is_some() && links > 0 => Ok(found),
            _ if links > 1 => Err(Unresolved::Unnamed(text.to_vec())),
            _ => Err(Unresolved::Nameless),
        };
    }
    let path = named(place, text, stat)?;
    match fs::lstat(&path) {
        Ok(Some(stat)) if (stat.st_dev, stat.st_ino) == object.inode => Ok(Resolved::object(path, stat)),
        // It was removed, or its name is another file's by now.
        _ => Err(Unresolved::Nameless),
    }
}

/// What `rest` leads to from a directory that a magic link stands for, on an overlay: an answer where no symlink and no
/// other mount is on the way.
pub fn below_on_overlay(
    layers: &Layers,
    link: &[u8],
    rest: &[u8],
    follow: bool,
) -> Result<Resolved, Unresolved> {
    let components = || rest.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let mut below = layers.clone();
    let mut parent = layers.clone();
    for component in components() {
        parent.clone_from(&below);
        below.rest = [below.rest.as_slice(), b"/", component].concat();
    }
    let found = Resolved::on_overlay(below);
    let above = [link, &parent.rest[layers.rest.len()..]].concat();
    let is_plain = !components().any(|component| component == b"..")
        && parent.lstat().as_ref().is_none_or(is_directory)
        && !(follow && found.stat.as_ref().is_some_and(is_symlink))
        && ObjectId::of(&above).map(|above| above.mount) == ObjectId::of(link).map(|start| start.mount);
    if is_plain { Ok(found) } else { Err(Unresolved::Unnamed(found.path)) }
}

/// Whether `rest`, looked up from the directory that a magic link stands for, leads to what was found by names of ours: other
/// things may be mounted below it there. If nothing is there, both are absent from one directory. True if it leads through
/// procfs, where the same path is another one to each process.
pub fn is_reached(found: &Resolved, link: &[u8], rest: &[u8], follow: bool) -> bool {
    if found.crossed.iter().any(|symlink| is_on_procfs(&symlink.stat)) {
        return true;
    }
    let identity =
        |path: &[u8], flags| rustix::fs::statat(CWD, path, flags).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let reached = [link, b"/", rest].concat();
    let theirs = identity(&reached, flags);
    let ours = found.stat.as_ref().map(|stat| (stat.st_dev, stat.st_ino));
    if ours.is_some() || theirs.is_some() {
        return ours == theirs;
    }
    let directory = |path: &[u8]| identity(parent_of(path).unwrap_or(b"/"), AtFlags::empty());
    directory(trim_slashes(&reached)) == directory(&found.path)
}

/// A path without the slashes at its end.
fn trim_slashes(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1)]
}

fn or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}

/// What of `path` is below `root`, as an absolute path.
pub fn inside<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(root)? {
        b"" => Some(b"/"),
        inside => inside.starts_with(b"/").then_some(inside),
    }
}

fn push_components(todo: &mut Vec<Vec<u8>>, path: &[u8]) {
    let components = path.split(|byte| *byte == b'/').rev().filter(|component| !component.is_empty());
    todo.extend(components.map(<[u8]>::to_vec));
}

fn last_is_dots(path: &[u8]) -> bool {
    matches!(path.rsplit(|byte| *byte == b'/').next(), Some(b"." | b".."))
}

/// `/` as the empty prefix that components are added to.
pub fn trim_root(path: &[u8]) -> &[u8] {
    if path == b"/" { b"" } else { path }
}

/// The name of the object that a magic link stands for, if that is its name.
///
/// A deleted file's text ends in ` (deleted)`, a pipe's is no path; but a file may truly be named so,
/// hence the comparison (proc_pid_fd(5)).
pub fn named_object(link: &[u8]) -> Result<(Vec<u8>, FileStat), Unresolved> {
    let path = read_magic_link(link)?;
    if !path.starts_with(b"/") {
        return Err(Unresolved::Nameless);
    }
    let object = rustix::fs::statat(CWD, link, AtFlags::empty()).map_err(|_| Unresolved::Nameless)?;
    match fs::lstat(&path) {
        Ok(Some(named)) if (object.st_dev, object.st_ino) == (named.st_dev, named.st_ino) => {
            Ok((path, named))
        }
        _ => Err(Unresolved::Nameless),
    }
}

/// The name of the object that a magic link stands for.
pub fn name_of_object(link: &[u8]) -> Option<Vec<u8>> {
    named_object(link).ok().map(|(name, _)| name)
}

/// The text of a magic link.
pub fn read_magic_link(link: &[u8]) -> Result<Vec<u8>, Unresolved> {
    match rustix::fs::readlink(link, Vec::new()) {
        Ok(text) => Ok(text.into_bytes()),
        // A process that is not dumpable; a name that does not fit into a page (proc_pid_cwd(5)).
        Err(Errno::ACCESS | Errno::PERM | Errno::NAMETOOLONG) => Err(Unresolved::UnknownStart),
        // There is no such descriptor, or no such thread any more.
        Err(_) => Err(Unresolved::Nameless),
    }
}

/// Where a path leads from a directory that was removed, which a magic link stands for.
///
/// It has no name, but its `..` is where it was. `next` takes the components up to that, and `name` tells the name of the
/// object of a magic link.
pub fn above_unnamed(
    link: &[u8],
    mut next: impl FnMut() -> Option<Vec<u8>>,
    name: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut start = link.to_vec();
    loop {
        match next()?.as_slice() {
            b"" | b"." => {}
            b".." => {
                start.extend_from_slice(b"/..");
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::open(start.as_slice(), flags, Mode::empty()).ok()?;
                let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
                if let Some(name) = name(link.as_bytes()) {
                    return Some(name);
                }
            }
            _ => return None,
        }
    }
}

/// Whether `stat` is of a symlink.
pub fn is_symlink(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFLNK
}

/// Whether `stat` is of a directory.
pub fn is_directory(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

/// Whether a path led through what procfs says of a process, such as its descriptors.
pub fn is_by_magic_link(crossed: &[Crossed]) -> bool {
    crossed.iter().any(|symlink| is_on_procfs(&symlink.stat))
}

/// Whether `stat` is of something on the procfs that is mounted at /proc here.
pub fn is_on_procfs(stat: &FileStat) -> bool {
    static DEVICE: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
    let device = DEVICE.get_or_init(|| rustix::fs::stat("/proc").ok().map(|stat| stat.st_dev));
    *device == Some(stat.st_dev)
}

/// Whether what is at a path is in a procfs, wherever that is mounted.
pub fn is_in_procfs(path: &[u8]) -> bool {
    rustix::fs::statfs(path).is_ok_and(|filesystem| filesystem.f_type == libc::PROC_SUPER_MAGIC)
}

/// Whether `path` is `directory` or lies below it.
pub fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests;
