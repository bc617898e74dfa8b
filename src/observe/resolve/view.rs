//! Where a thread's paths start, and what they are called in our own root and mount namespace.
//!
//! Working directories and descriptors are read from /proc at the moment of the call, never
//! modelled: threads share and unshare them. Neighbour: `resolve.rs` walks from there.

use std::borrow::Cow;
use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::fs::{FileStat, ObjectId};
use crate::observe::mounts::{Mounts, View};
use crate::observe::resolve::{self, PrivatePlace, Resolved, Resolver, Unresolved, Viewpoint};
use crate::trace::observer::Caller;
use crate::trace::proc_fd;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, Dirfd, FileRef};

/// Why an access has no path of ours.
#[derive(Debug)]
pub enum Unseen {
    /// The walk found none.
    Unresolved(Unresolved),
    /// The thread has another root or mount namespace, and in ours what it names has no name.
    InForeignMountNamespace(Vec<u8>),
    /// It is on a private mount.
    Private(Box<PrivatePlace>),
}

impl Unseen {
    /// Whether the kernel refuses the path, too.
    pub fn is_refused(&self) -> bool {
        matches!(
            self,
            Unseen::Unresolved(Unresolved::NotADirectory(_) | Unresolved::Loop(_) | Unresolved::TooLong)
        )
    }
}

impl From<Unresolved> for Unseen {
    fn from(unresolved: Unresolved) -> Self {
        match unresolved {
            Unresolved::Unnamed(path) => Unseen::InForeignMountNamespace(path),
            Unresolved::Private(place) => Unseen::Private(place),
            unresolved => Unseen::Unresolved(unresolved),
        }
    }
}

/// A symlink under /proc/TID, such as `cwd`, `root` or `fd/3`.
fn proc_link(caller: Caller, what: &str) -> Vec<u8> {
    format!("/proc/{}/{what}", caller.tid).into_bytes()
}

/// The name of an object that a symlink under /proc/TID stands for, if that is its name.
fn named_object(resolver: &Resolver, caller: Caller, what: &str) -> Result<(Vec<u8>, FileStat), Unresolved> {
    resolver.named_object(&proc_link(caller, what))
}

fn link_of(dirfd: Dirfd) -> Cow<'static, str> {
    match dirfd {
        Dirfd::Cwd => "cwd".into(),
        Dirfd::Fd(fd) => format!("fd/{fd}").into(),
    }
}

/// A path of a thread whose root and mounts are ours, as we can open it.
pub fn path_from_here(caller: Caller, dirfd: Dirfd, path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path.to_vec();
    }
    let mut absolute = proc_link(caller, &link_of(dirfd));
    absolute.push(b'/');
    absolute.extend(path);
    absolute
}

/// What is kept open of a thread's directory in /proc.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// `/proc/TID` itself.
    Directory,
    /// The link `cwd`.
    Cwd,
    /// The directory `fd`.
    Descriptors,
}

/// The thread that was asked about last, and its file, once that is open.
type KeptFile = Option<(Tid, Option<OwnedFd>)>;

thread_local! {
    /// What is kept, of each thread at its TID modulo 8: from there a readlink(2) takes 1.9 µs and a statx(2) 2.1 µs, by
    /// its whole path 2.5 µs. A file is opened when a thread is asked about again, since opening takes 2.5 µs.
    static KEPT: RefCell<[[KeptFile; 3]; 8]> = const { RefCell::new([const { [const { None }; 3] }; 8]) };
}

/// Asks a file below /proc/TID that is kept; none if it has no answer, or is not kept.
///
/// The files of a thread that has ended stay empty, also if its TID is used again.
fn ask_kept<T>(thread: Tid, kept: Kept, ask: impl Fn(BorrowedFd<'_>) -> Option<T>) -> Option<T> {
    let (name, flags) = match kept {
        Kept::Directory => ("", OFlags::DIRECTORY),
        Kept::Cwd => ("/cwd", OFlags::NOFOLLOW),
        Kept::Descriptors => ("/fd", OFlags::DIRECTORY),
    };
    KEPT.with_borrow_mut(|places| {
        let place = places.get_mut(usize::try_from(thread.0).ok()? % 8)?.get_mut(kept as usize)?;
        let Some((_, file)) = place.as_mut().filter(|(of, _)| *of == thread) else {
            *place = Some((thread, None));
            return None;
        };
        if let Some(answer) = file.as_ref().and_then(|file| ask(file.as_fd())) {
            return Some(answer);
        }
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        *file = rustix::fs::open(format!("/proc/{thread}{name}"), flags, Mode::empty()).ok();
        ask(file.as_ref()?.as_fd())
    })
}

/// The text of the link that stands for the directory where relative paths of `dirfd` start.
fn start_text(caller: Caller, dirfd: Dirfd) -> Result<Vec<u8>, Unresolved> {
    let read = |link: BorrowedFd<'_>, name: &str| rustix::fs::readlinkat(link, name, Vec::new()).ok();
    let kept = match dirfd {
        Dirfd::Cwd => ask_kept(caller.tid, Kept::Cwd, |link| read(link, "")),
        Dirfd::Fd(fd) => {
            let name = fd.to_string();
            ask_kept(caller.tid, Kept::Descriptors, |directory| read(directory, &name))
        }
    };
    match kept {
        Some(text) => Ok(text.into_bytes()),
        None => resolve::read_magic_link(&proc_link(caller, &link_of(dirfd))),
    }
}

/// The directory that relative paths of `dirfd` start at, by its name from our own root.
fn base_of(resolver: &Resolver, caller: Caller, dirfd: Dirfd) -> Result<Vec<u8>, Unresolved> {
    let base = start_text(caller, dirfd)?;
    if !base.starts_with(b"/") {
        return Err(Unresolved::Nameless);
    }
    if base.ends_with(b" (deleted)") && named_object(resolver, caller, &link_of(dirfd)).is_err() {
        return Err(Unresolved::Nameless);
    }
    Ok(base)
}

/// The same, without a look at any filesystem but procfs; none if that does not tell it.
pub fn plain_base_of(caller: Caller, dirfd: Dirfd) -> Option<Vec<u8>> {
    let base = start_text(caller, dirfd).ok()?;
    (base.starts_with(b"/") && !base.ends_with(b" (deleted)")).then_some(base)
}

/// The directory that relative paths of `dirfd` start at.
pub fn start_object_of(caller: Caller, dirfd: Dirfd) -> Option<ObjectId> {
    let link = link_of(dirfd);
    let kept = ask_kept(caller.tid, Kept::Directory, |directory| ObjectId::at(directory, link.as_bytes()));
    kept.or_else(|| ObjectId::of(&proc_link(caller, &link)))
}

/// The path of the directory that relative paths of `dirfd` start at, in the namespace of the view; none if that leads
/// to something else there, or is outside of the root. `start` is the directory, if that was asked for.
pub fn base_in_view(
    resolver: &mut Resolver,
    mounts: &Mounts,
    view: &View,
    caller: Caller,
    dirfd: Dirfd,
    start: Option<ObjectId>,
) -> Option<Vec<u8>> {
    let text = if resolver.is_serving() {
        Some(plain_base_of(caller, dirfd).filter(|text| !resolver.may_be_served(text))?)
    } else {
        None
    };
    let start = start.or_else(|| start_object_of(caller, dirfd))?;
    let known = text.or_else(|| resolver.text_of(start).map(<[u8]>::to_vec));
    let base = known.or_else(|| {
        let base = plain_base_of(caller, dirfd)?;
        resolver.note_text(mounts, start, &base);
        Some(base)
    })?;
    (mounts.is_on(view, &base, start.mount) && view.inside(&base).is_some()).then_some(base)
}

/// Where `path` starts, and what of it is left from there.
///
/// A directory that was removed has no name, but its `..` is where it was.
fn start_of<'p>(
    resolver: &Resolver,
    caller: Caller,
    dirfd: Dirfd,
    path: &'p [u8],
) -> Result<(Vec<u8>, &'p [u8]), Unresolved> {
    let unnamed = match base_of(resolver, caller, dirfd) {
        Ok(base) => return Ok((base, path)),
        Err(Unresolved::Nameless) => Unresolved::Nameless,
        Err(other) => return Err(other),
    };
    let link = proc_link(caller, &link_of(dirfd));
    let text = resolve::read_magic_link(&link)?;
    if resolver.may_be_served(&text) {
        return Err(Unresolved::Served(text));
    }
    above_unnamed(&link, path, resolve::name_of_object).ok_or(unnamed)
}

/// Where a path leads from a directory that was removed: the first name on its way, and what is left from there.
fn above_unnamed<'p>(
    link: &[u8],
    path: &'p [u8],
    name: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<(Vec<u8>, &'p [u8])> {
    let mut rest = path;
    let next = || {
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (name, left) = rest.split_at(end);
        // What is left is relative, however many slashes there are.
        let slashes = left.iter().take_while(|byte| **byte == b'/').count();
        rest = &left[slashes..];
        (end > 0 || !left.is_empty()).then(|| name.to_vec())
    };
    let base = resolve::above_unnamed(link, next, name)?;
    Some((base, if rest.is_empty() { b"." } else { rest }))
}

/// The path of a descriptor, if it has one.
pub fn path_of_descriptor(resolver: &Resolver, caller: Caller, fd: i32) -> Result<Resolved, Unresolved> {
    let (path, stat) = named_object(resolver, caller, &format!("fd/{fd}"))?;
    Ok(Resolved::object(path, stat))
}

/// Resolves a path whose start is known, for a thread whose root and mounts are ours.
pub fn locate_from(
    resolver: &mut Resolver,
    caller: Caller,
    base: &[u8],
    path: &[u8],
    follow: bool,
) -> Result<Resolved, Unseen> {
    Ok(resolver.resolve(&names_of(caller), base, path, follow)?)
}

/// The same for a thread with this view: it starts at a path of the view's namespace, or at its root.
pub fn locate_from_in_view(
    resolver: &mut Resolver,
    (mounts, view): (&Mounts, &View),
    caller: Caller,
    base: Option<&[u8]>,
    path: &[u8],
    follow: bool,
) -> Result<Resolved, Unseen> {
    let inside = match base {
        Some(base) => view.inside(base).ok_or_else(|| Unresolved::Unnamed(base.to_vec()))?,
        None => b"/",
    };
    Ok(resolver.resolve(&names_in_view(caller, mounts, view), inside, path, follow)?)
}

fn names_of<'m>(caller: Caller) -> Viewpoint<'m> {
    let (prefix, root) = (Vec::new(), Vec::new());
    Viewpoint { prefix, root, mounts: None, process: caller.tgid.0, thread: caller.tid.0 }
}

fn names_in_view<'m>(caller: Caller, mounts: &'m Mounts, view: &'m View) -> Viewpoint<'m> {
    let prefix = proc_link(caller, "root");
    Viewpoint { prefix, root: view.root.clone(), mounts: Some((mounts, view)), ..names_of(caller) }
}

/// Resolves what `access` names for a thread whose root and mounts are ours.
pub fn locate(resolver: &mut Resolver, caller: Caller, access: &Access) -> Result<Resolved, Unseen> {
    let (dirfd, path) = match &access.file {
        FileRef::Path { dirfd, path } => (*dirfd, path),
        FileRef::Descriptor(fd) => {
            return Ok(path_of_descriptor(resolver, caller, *fd)?);
        }
        FileRef::WorkingDirectory => {
            let (path, stat) = named_object(resolver, caller, "cwd")?;
            return Ok(Resolved { must_be_directory: true, ..Resolved::object(path, stat) });
        }
    };
    let mut names = names_of(caller);
    if access.resolve.in_root {
        // The directory is the root of this one path: a walk among its names.
        names.prefix = base_of(resolver, caller, dirfd)?;
        names.root.clone_from(&names.prefix);
        return match resolver.resolve(&names, b"/", path, access.follow) {
            Err(Unresolved::Unnamed(_)) => Err(Unresolved::Nameless.into()),
            other => Ok(other?),
        };
    }
    let (base, path) = if path.starts_with(b"/") {
        (b"/".to_vec(), path.as_slice())
    } else {
        start_of(resolver, caller, dirfd, path)?
    };
    Ok(resolver.resolve(&names, &base, path, access.follow)?)
}

/// Resolves what `access` names for a thread whose root or mounts are not ours.
pub fn locate_among(
    resolver: &mut Resolver,
    mounts: &Mounts,
    view: &View,
    caller: Caller,
    access: &Access,
) -> Result<Resolved, Unseen> {
    let (dirfd, path) = match &access.file {
        FileRef::Path { dirfd, path } => (*dirfd, path.as_slice()),
        FileRef::Descriptor(fd) => {
            let link = proc_fd::link(caller.tid, *fd).into_bytes();
            return object_among(resolver, mounts, &link);
        }
        FileRef::WorkingDirectory => {
            let object = object_among(resolver, mounts, &proc_link(caller, "cwd"))?;
            return Ok(Resolved { must_be_directory: true, ..object });
        }
    };
    let mut names = names_in_view(caller, mounts, view);
    if path.starts_with(b"/") && !access.resolve.in_root {
        return Ok(resolver.resolve(&names, b"/", path, access.follow)?);
    }
    let link = proc_link(caller, &link_of(dirfd));
    let base = base_in_view(resolver, mounts, view, caller, dirfd, None);
    let text = base.clone().map_or_else(|| resolve::read_magic_link(&link), Ok)?;
    if resolver.may_be_served(&text) {
        return Err(Unresolved::Served(text).into());
    }
    let start = base.as_deref().and_then(|base| view.inside(base));
    // Its `..` leads to where its name was, also if something is mounted over it.
    let above = || {
        let rest = path.strip_prefix(b"../")?;
        let above = crate::fs::parent_of(&text).filter(|_| mounts.is_mounted_over(view, &text))?;
        view.inside(above).map(|above| (above, rest))
    };
    let start = start.map(|inside| (inside, path)).or_else(above);
    let Some((inside, path)) = start else {
        return locate_from_object(resolver, mounts, caller, &link, path, access);
    };
    if access.resolve.in_root {
        let inside = if inside == b"/" { b"".as_slice() } else { inside };
        names.prefix.extend_from_slice(inside);
        names.root.extend_from_slice(inside);
        return Ok(resolver.resolve(&names, b"/", path, access.follow)?);
    }
    Ok(resolver.resolve(&names, inside, path, access.follow)?)
}

/// What a magic link stands for, whatever mount it was opened on.
pub fn object_among(resolver: &Resolver, mounts: &Mounts, link: &[u8]) -> Result<Resolved, Unseen> {
    let text = resolve::read_magic_link(link)?;
    if resolver.may_be_served(&text) {
        return Err(Unresolved::Served(text).into());
    }
    Ok(resolve::object_behind(mounts, link, &text)?)
}

/// Resolves a path that starts at a directory which has no path of the thread's own: one that was opened in another
/// mount namespace or before something was mounted over it, or that was removed.
///
/// The walk goes from the directory's name here; what it finds counts only if it is what the thread reaches.
fn locate_from_object(
    resolver: &mut Resolver,
    mounts: &Mounts,
    caller: Caller,
    link: &[u8],
    path: &[u8],
    access: &Access,
) -> Result<Resolved, Unseen> {
    let (base, rest) = match object_among(resolver, mounts, link) {
        Ok(Resolved { overlay: Some(layers), .. }) => {
            return Ok(resolve::below_on_overlay(&layers, link, path, access.follow)?);
        }
        Ok(base) => (base.path, path),
        Err(Unseen::Unresolved(Unresolved::Nameless)) => {
            let name = |link: &[u8]| Some(object_among(resolver, mounts, link).ok()?.path);
            let Some((above, rest)) = above_unnamed(link, path, name) else {
                return Err(Unresolved::Nameless.into());
            };
            (above, rest)
        }
        Err(unseen) => return Err(unseen),
    };
    let resolved = resolver.resolve(&names_of(caller), &base, rest, access.follow)?;
    // Filesystems that the tree serves are not asked.
    let is_plain = resolved.crossed.is_empty() && resolved.left.is_empty();
    if is_plain && resolver.is_serving() || resolve::is_reached(&resolved, link, path, access.follow) {
        return Ok(resolved);
    }
    Err(Unseen::InForeignMountNamespace(resolved.path))
}
