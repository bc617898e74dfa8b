//! Where a thread's paths start, and what its names are called from here.
//!
//! Working directories and descriptors are read from /proc at the moment of the call, never
//! modelled: threads share and unshare them. Neighbours: `resolve.rs` walks from there.

use nix::sys::stat::FileStat;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::resolve::{self, Crossed, Names, Resolved, Resolver, Unresolved};
use crate::trace::syscalls::{Access, Dirfd, Place};
use crate::trace::tracer::Caller;

/// Why an access has no path of ours.
#[derive(Debug)]
pub enum Unseen {
    /// The walk found none.
    Unresolved(Unresolved),
    /// Its name means another file, or none, out here: another root or mount namespace.
    Elsewhere(Vec<u8>),
}

impl From<Unresolved> for Unseen {
    fn from(unresolved: Unresolved) -> Self {
        Unseen::Unresolved(unresolved)
    }
}

/// The text of a link under /proc/TID, such as `cwd`, `root` or `fd/3`.
fn proc_link(caller: Caller, what: &str) -> Option<Vec<u8>> {
    let path = rustix::fs::readlink(format!("/proc/{}/{what}", caller.tid), Vec::new()).ok()?;
    Some(path.into_bytes())
}

/// The name of an object that a link under /proc/TID stands for, if that is its name.
fn named_object(caller: Caller, what: &str) -> Option<(Vec<u8>, FileStat)> {
    resolve::named_object(format!("/proc/{}/{what}", caller.tid).as_bytes())
}

fn link_of(dirfd: Dirfd) -> String {
    match dirfd {
        Dirfd::Cwd => "cwd".to_owned(),
        Dirfd::Fd(fd) => format!("fd/{fd}"),
    }
}

/// The directory that relative paths of `dirfd` start at, by its name from our own root.
pub fn base_of(caller: Caller, dirfd: Dirfd) -> Result<Vec<u8>, Unresolved> {
    let what = link_of(dirfd);
    let base = proc_link(caller, &what).ok_or(Unresolved::Nameless)?;
    if !base.starts_with(b"/") {
        return Err(Unresolved::Nameless);
    }
    if base.ends_with(b" (deleted)") && named_object(caller, &what).is_none() {
        return Err(Unresolved::Nameless);
    }
    Ok(base)
}

/// Where `path` starts, and what of it is left from there.
///
/// A directory that was removed has no name, but its `..` is where it was.
fn start_of(caller: Caller, dirfd: Dirfd, path: &[u8]) -> Result<(Vec<u8>, &[u8]), Unresolved> {
    let unnamed = match base_of(caller, dirfd) {
        Ok(base) => return Ok((base, path)),
        Err(unnamed) => unnamed,
    };
    let mut rest = path;
    let link = format!("/proc/{}/{}", caller.tid, link_of(dirfd));
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
pub fn path_of_descriptor(caller: Caller, fd: i32) -> Option<Resolved> {
    let (path, stat) = named_object(caller, &format!("fd/{fd}"))?;
    Some(Resolved { path, stat: Some(stat), crossed: Vec::new(), must_be_directory: false })
}

/// Resolves a path whose start is known, for a thread whose root and mounts are ours.
pub fn locate_from(
    resolver: &mut Resolver,
    caller: Caller,
    base: &[u8],
    path: &[u8],
    follow: bool,
) -> Result<Resolved, Unseen> {
    let names = Names { prefix: Vec::new(), process: caller.tgid.0, thread: caller.tid.0 };
    Ok(resolver.resolve(&names, base, path, follow)?)
}

/// Resolves what `access` names for a thread whose root and mounts are ours.
pub fn locate(resolver: &mut Resolver, caller: Caller, access: &Access) -> Result<Resolved, Unseen> {
    let (dirfd, path) = match &access.place {
        Place::Path { dirfd, path } => (*dirfd, path),
        Place::Descriptor(fd) => {
            return path_of_descriptor(caller, *fd).ok_or(Unresolved::Nameless.into());
        }
        Place::WorkingDirectory => {
            let (path, stat) = named_object(caller, "cwd").ok_or(Unresolved::Nameless)?;
            return Ok(Resolved { path, stat: Some(stat), crossed: Vec::new(), must_be_directory: true });
        }
    };
    let mut names = Names { prefix: Vec::new(), process: caller.tgid.0, thread: caller.tid.0 };
    if access.resolve.in_root {
        // The directory is the root of this one path: a walk among its names.
        names.prefix = base_of(caller, dirfd)?;
        return match resolver.resolve(&names, b"/", path, access.follow) {
            Ok(mut resolved) => {
                outside_name(&mut resolved.path, &names.prefix);
                outside_names(&mut resolved.crossed, &names.prefix);
                Ok(resolved)
            }
            Err(unresolved) => Err(outside_names_of(unresolved, &names.prefix).into()),
        };
    }
    let (base, path) = if path.starts_with(b"/") {
        (b"/".to_vec(), path.as_slice())
    } else {
        start_of(caller, dirfd, path)?
    };
    Ok(resolver.resolve(&names, &base, path, access.follow)?)
}

/// Resolves what `access` names for a thread whose root or mounts may not be ours.
///
/// The walk goes through /proc/TID/root; the result counts only if its parent is, out here, the
/// same directory by device and inode.
pub fn locate_elsewhere(
    resolver: &mut Resolver,
    caller: Caller,
    access: &Access,
) -> Result<Resolved, Unseen> {
    let (dirfd, path) = match &access.place {
        Place::Path { dirfd, path } => (*dirfd, path),
        Place::Descriptor(_) | Place::WorkingDirectory => {
            return match locate(resolver, caller, access) {
                Err(Unseen::Unresolved(Unresolved::Nameless)) => {
                    Err(Unseen::Elsewhere(b"a descriptor".to_vec()))
                }
                other => other,
            };
        }
    };
    let root = proc_link(caller, "root").ok_or(Unresolved::Nameless)?;
    let root = if root == b"/" { Vec::new() } else { root };
    let prefix = format!("/proc/{}/root", caller.tid).into_bytes();
    let names = Names { prefix, process: caller.tgid.0, thread: caller.tid.0 };
    let base = if path.starts_with(b"/") {
        b"/".to_vec()
    } else {
        let base = proc_link(caller, &link_of(dirfd)).ok_or(Unresolved::Nameless)?;
        match base.strip_prefix(root.as_slice()) {
            Some(b"") => b"/".to_vec(),
            Some(inside) if inside.starts_with(b"/") => inside.to_vec(),
            _ => return Err(Unseen::Elsewhere(base)),
        }
    };
    let mut resolved = match resolver.resolve(&names, &base, path, access.follow) {
        Ok(resolved) => resolved,
        Err(unresolved) => return Err(only_ours(outside_names_of(unresolved, &root), path)),
    };
    let same = same_place(&names.prefix, &root, &resolved.path);
    let outside = [root.as_slice(), &resolved.path].concat();
    if !same || !same_object(resolved.stat.as_ref(), &outside) {
        return Err(Unseen::Elsewhere(resolved.path));
    }
    outside_name(&mut resolved.path, &root);
    outside_names(&mut resolved.crossed, &root);
    let Resolved { path, crossed, .. } = &resolved;
    if crossed.iter().any(is_another) {
        return Err(Unseen::Elsewhere(path.clone()));
    }
    Ok(resolved)
}

/// Whether the name of a link means something else out here.
fn is_another(link: &Crossed) -> bool {
    !same_object(Some(&link.stat), &link.path)
}

/// What an unresolved path still told, if its names mean the same out here.
fn only_ours(unresolved: Unresolved, path: &[u8]) -> Unseen {
    match &unresolved {
        Unresolved::Loop(crossed) | Unresolved::Denied(_, crossed) if crossed.iter().any(is_another) => {
            Unseen::Elsewhere(path.to_vec())
        }
        _ => unresolved.into(),
    }
}

/// Whether the directory that a path of another root leads to is the one that our name for it shows.
///
/// Where directories are missing on the way, the last that exists counts, if they are missing out here,
/// too.
fn same_place(prefix: &[u8], root: &[u8], path: &[u8]) -> bool {
    let mut inside = resolve::parent_of(path).unwrap_or(b"/");
    loop {
        let theirs = rustix::fs::statat(CWD, [prefix, inside].concat(), AtFlags::empty());
        let ours = rustix::fs::statat(CWD, [root, inside].concat(), AtFlags::empty());
        match (theirs, ours, resolve::parent_of(inside)) {
            (Err(Errno::NOENT), Err(Errno::NOENT), Some(above)) => inside = above,
            (Ok(theirs), Ok(ours), _) => {
                return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino);
            }
            _ => return false,
        }
    }
}

/// A mount on the last component hides what our own name shows.
fn same_object(theirs: Option<&FileStat>, outside: &[u8]) -> bool {
    let ours = resolve::lstat(outside).ok().flatten();
    ours.map(|stat| (stat.st_dev, stat.st_ino)) == theirs.map(|stat| (stat.st_dev, stat.st_ino))
}

/// Gives a name below another root its name below ours.
fn outside_name(path: &mut Vec<u8>, root: &[u8]) {
    if path == b"/" && !root.is_empty() {
        path.clear();
    }
    path.splice(0..0, root.iter().copied());
}

fn outside_names(crossed: &mut [Crossed], root: &[u8]) {
    crossed.iter_mut().for_each(|crossed| outside_name(&mut crossed.path, root));
}

/// The same for what is left of a path that was not resolved.
fn outside_names_of(mut unresolved: Unresolved, root: &[u8]) -> Unresolved {
    match &mut unresolved {
        Unresolved::Loop(crossed) => outside_names(crossed, root),
        Unresolved::Denied(directory, crossed) => {
            outside_name(directory, root);
            outside_names(crossed, root);
        }
        Unresolved::NotADirectory | Unresolved::TooLong | Unresolved::Nameless => {}
    }
    unresolved
}
