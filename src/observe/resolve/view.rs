//! Where a thread's paths start, and what they are called in our own root and mount namespace.
//!
//! Working directories and descriptors are read from /proc at the moment of the call, never
//! modelled: threads share and unshare them. Neighbour: `resolve.rs` walks from there.

use rustix::fs::{AtFlags, CWD};

use crate::fs::{self, FileStat};
use crate::observe::resolve::{self, Crossed, Resolved, Resolver, Unresolved, Viewpoint};
use crate::trace::observer::Caller;
use crate::trace::syscalls::{Access, Dirfd, FileRef};

/// Why an access has no path of ours.
#[derive(Debug)]
pub enum Unseen {
    /// The walk found none.
    Unresolved(Unresolved),
    /// The thread has another root or mount namespace, and in ours the name means another file, or none.
    InForeignMountNamespace(Vec<u8>),
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
        Unseen::Unresolved(unresolved)
    }
}

/// The magic link of a descriptor of the caller.
pub fn descriptor_link(caller: Caller, fd: i32) -> String {
    format!("/proc/{}/fd/{fd}", caller.tid)
}

/// The flags of a descriptor, by the text of its file in /proc/PID/fdinfo (proc_pid_fdinfo(5)).
pub fn descriptor_flags(info: &str) -> Option<i32> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

/// The text of a symlink under /proc/TID, such as `cwd`, `root` or `fd/3`.
fn proc_link(caller: Caller, what: &str) -> Result<Vec<u8>, Unresolved> {
    resolve::read_magic_link(format!("/proc/{}/{what}", caller.tid).as_bytes())
}

/// The name of an object that a symlink under /proc/TID stands for, if that is its name.
fn named_object(resolver: &Resolver, caller: Caller, what: &str) -> Result<(Vec<u8>, FileStat), Unresolved> {
    resolver.named_object(format!("/proc/{}/{what}", caller.tid).as_bytes())
}

fn link_of(dirfd: Dirfd) -> String {
    match dirfd {
        Dirfd::Cwd => "cwd".to_owned(),
        Dirfd::Fd(fd) => format!("fd/{fd}"),
    }
}

/// The directory that relative paths of `dirfd` start at, by its name from our own root.
fn base_of(resolver: &Resolver, caller: Caller, dirfd: Dirfd) -> Result<Vec<u8>, Unresolved> {
    let what = link_of(dirfd);
    let base = proc_link(caller, &what)?;
    if !base.starts_with(b"/") {
        return Err(Unresolved::Nameless);
    }
    if base.ends_with(b" (deleted)") && named_object(resolver, caller, &what).is_err() {
        return Err(Unresolved::Nameless);
    }
    Ok(base)
}

/// The same, without a look at any filesystem but procfs; none if that does not tell it.
pub fn plain_base_of(caller: Caller, dirfd: Dirfd) -> Option<Vec<u8>> {
    let base = proc_link(caller, &link_of(dirfd)).ok()?;
    (base.starts_with(b"/") && !base.ends_with(b" (deleted)")).then_some(base)
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
    let mut rest = path;
    let link = format!("/proc/{}/{}", caller.tid, link_of(dirfd));
    let text = resolve::read_magic_link(link.as_bytes())?;
    if resolver.is_served(&text) {
        return Err(Unresolved::Served(text));
    }
    let base = resolve::above_unnamed(link.as_bytes(), || {
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (name, left) = rest.split_at(end);
        rest = left.strip_prefix(b"/").unwrap_or(left);
        (end > 0 || !left.is_empty()).then(|| name.to_vec())
    });
    let base = base.ok_or(unnamed)?;
    Ok((base, if rest.is_empty() { b"." } else { rest }))
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

fn names_of(caller: Caller) -> Viewpoint {
    Viewpoint { prefix: Vec::new(), root: Vec::new(), process: caller.tgid.0, thread: caller.tid.0 }
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
        let resolved = resolver.resolve(&names, b"/", path, access.follow);
        return match resolved {
            Ok(mut resolved) => {
                name(&mut resolved.path, &names.root);
                name_all(&mut resolved.crossed, &names.root);
                Ok(resolved)
            }
            Err(Unresolved::Loop(mut crossed)) => {
                name_all(&mut crossed, &names.root);
                Err(Unresolved::Loop(crossed).into())
            }
            Err(Unresolved::Denied(mut directory, mut crossed)) => {
                name(&mut directory, &names.root);
                name_all(&mut crossed, &names.root);
                Err(Unresolved::Denied(directory, crossed).into())
            }
            Err(Unresolved::Outside(_)) => Err(Unresolved::Nameless.into()),
            Err(other) => Err(other.into()),
        };
    }
    let (base, path) = if path.starts_with(b"/") {
        (b"/".to_vec(), path.as_slice())
    } else {
        start_of(resolver, caller, dirfd, path)?
    };
    Ok(resolver.resolve(&names, &base, path, access.follow)?)
}

/// Resolves what `access` names for a thread whose root or mounts may not be ours.
///
/// The walk goes through /proc/TID/root; a name that it finds counts only if it means, out here, the
/// same object by device and inode: that of the result, and those of the symlinks on the way.
pub fn locate_in_foreign_mount_namespace(
    resolver: &mut Resolver,
    caller: Caller,
    access: &Access,
) -> Result<Resolved, Unseen> {
    let (dirfd, path) = match &access.file {
        FileRef::Path { dirfd, path } => (*dirfd, path),
        FileRef::Descriptor(_) | FileRef::WorkingDirectory => {
            return match locate(resolver, caller, access) {
                Err(Unseen::Unresolved(Unresolved::Nameless)) => {
                    Err(Unseen::InForeignMountNamespace(b"a descriptor".to_vec()))
                }
                other => other,
            };
        }
    };
    let root = proc_link(caller, "root")?;
    let mut names = names_of(caller);
    names.prefix = format!("/proc/{}/root", caller.tid).into_bytes();
    names.root = if root == b"/" { Vec::new() } else { root };
    let (base, path) = if path.starts_with(b"/") && !access.resolve.in_root {
        (b"/".to_vec(), path.as_slice())
    } else {
        let (base, rest) = start_of(resolver, caller, dirfd, path)?;
        if resolver.is_served(&base) {
            return Err(Unresolved::Served(base).into());
        }
        let Some(inside) = resolve::inside(&base, &names.root) else {
            return Err(Unseen::InForeignMountNamespace(base));
        };
        // Something may have been mounted over the directory since it was opened.
        let link = link_of(dirfd);
        let named = proc_link(caller, &link).is_ok_and(|text| text == base);
        let link = format!("/proc/{}/{link}", caller.tid).into_bytes();
        let reached = [names.prefix.as_slice(), inside].concat();
        if named && identity(&link) != identity(&reached) || identity(&reached).is_none() {
            return Err(Unseen::InForeignMountNamespace(base));
        }
        (inside.to_vec(), rest)
    };
    let base = if access.resolve.in_root {
        let inside = if base == b"/" { b"".as_slice() } else { &base };
        names.prefix.extend_from_slice(inside);
        names.root.extend_from_slice(inside);
        b"/".to_vec()
    } else {
        base
    };
    match resolver.resolve(&names, &base, path, access.follow) {
        Ok(mut resolved) => {
            if !names.is_ours(&resolved.path, resolved.stat.as_ref()) {
                return Err(Unseen::InForeignMountNamespace(resolved.path));
            }
            check_symlinks(&names, &mut resolved.crossed)?;
            name(&mut resolved.path, &names.root);
            Ok(resolved)
        }
        Err(Unresolved::Loop(mut crossed)) => {
            check_symlinks(&names, &mut crossed)?;
            Err(Unresolved::Loop(crossed).into())
        }
        Err(Unresolved::Denied(mut directory, mut crossed)) => {
            check_symlinks(&names, &mut crossed)?;
            let outside = [names.prefix.as_slice(), &directory].concat();
            if !names.is_ours(&directory, fs::lstat(&outside).ok().flatten().as_ref()) {
                return Err(Unseen::InForeignMountNamespace(directory));
            }
            name(&mut directory, &names.root);
            Err(Unresolved::Denied(directory, crossed).into())
        }
        Err(Unresolved::Outside(path)) => Err(Unseen::InForeignMountNamespace(path)),
        Err(other) => Err(other.into()),
    }
}

impl Viewpoint {
    /// Whether `path`, where they see `stat` or nothing, means the same in our mount namespace.
    fn is_ours(&self, path: &[u8], stat: Option<&FileStat>) -> bool {
        let ours = fs::lstat(&[self.root.as_slice(), path].concat()).ok().flatten();
        if ours.map(|ours| (ours.st_dev, ours.st_ino)) != stat.map(|stat| (stat.st_dev, stat.st_ino)) {
            return false;
        }
        // The directory that it is in, or that it would be made in, is the same one, too.
        let mut directory = fs::parent_of(path).unwrap_or(b"/");
        loop {
            let theirs = identity(&[self.prefix.as_slice(), directory].concat());
            let ours = identity(&[self.root.as_slice(), directory].concat());
            match (theirs, ours, fs::parent_of(directory)) {
                (None, None, Some(parent)) => directory = parent,
                (theirs, ours, _) => return theirs.is_some() && theirs == ours,
            }
        }
    }
}

/// Device and inode of what a path, or a magic link, leads to.
fn identity(path: &[u8]) -> Option<(u64, u64)> {
    let found = rustix::fs::statat(CWD, path, AtFlags::empty()).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// Gives the symlinks on a way their names below our root; all must have one.
fn check_symlinks(names: &Viewpoint, crossed: &mut [Crossed]) -> Result<(), Unseen> {
    if let Some(hidden) = crossed.iter().find(|link| !names.is_ours(&link.path, Some(&link.stat))) {
        return Err(Unseen::InForeignMountNamespace(hidden.path.clone()));
    }
    name_all(crossed, &names.root);
    Ok(())
}

fn name_all(crossed: &mut [Crossed], root: &[u8]) {
    crossed.iter_mut().for_each(|link| name(&mut link.path, root));
}

/// Gives a name below another root its name below ours.
fn name(path: &mut Vec<u8>, root: &[u8]) {
    if path == b"/" && !root.is_empty() {
        path.clear();
    }
    path.splice(0..0, root.iter().copied());
}
