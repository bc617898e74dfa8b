//! In which ways a call is about to use its places, as far as rules may be about them, and whether it fails anyway.
//!
//! Changes nothing. Neighbours: `effects.rs` says what each effect means, `enforced.rs` asks here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use smallvec::SmallVec;

use super::changes::Located;
use super::effects::meaning;
use crate::fs::{self, FileStat, parent_of};
use crate::observe::resolve::{self, Resolved};
use crate::policy::PathUseKind;
use crate::snapshot::{Operation, Operations};
use crate::trace::syscalls::{DecodedSyscall, Effect, OpenFlags};

/// How a call opens something, if its result is a descriptor of that.
pub fn opening(decoded: &DecodedSyscall) -> Option<OpenFlags> {
    decoded.accesses.iter().find_map(|access| match access.effect {
        Effect::Open(open) if !open.path_only && !open.without_descriptor => Some(open),
        _ => None,
    })
}

/// One way in which a call is about to use a place.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub kind: PathUseKind,
    pub operation: Operation,
    /// Whether the file is used, by whatever name, and not the name.
    pub is_of_file: bool,
    pub denied_only: bool,
}

impl Way {
    pub fn new(kind: PathUseKind, operation: Operation) -> Way {
        Way { kind, operation, is_of_file: true, denied_only: false }
    }

    /// Of a name, at which something else may be afterwards.
    pub fn of_name(self) -> Way {
        Way { is_of_file: false, ..self }
    }
}

/// What a call with an effect does that rules may be about, where `stat` is.
pub fn ways(effect: Effect, stat: Option<&FileStat>) -> SmallVec<[Way; 2]> {
    let mut ways = SmallVec::new();
    if effect == Effect::HardLinkFrom {
        ways.push(Way { denied_only: true, ..Way::new(PathUseKind::Write, Operation::Metadata) });
        return ways;
    }
    let meaning = meaning(effect, stat);
    let changes = meaning.operations.intersection(Operations::CHANGES);
    let passes = |stat: &FileStat| {
        matches!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFIFO | libc::S_IFSOCK)
    };
    // An exchange leaves something at both names.
    let changes = match effect {
        Effect::RenameFrom { exchange: true } => Operation::Write.into(),
        _ => changes,
    };
    // What goes into a terminal, a pipe or /dev/null changes no file.
    let is_passed_through = matches!(effect, Effect::Open(_)) && stat.is_some_and(passes);
    if let Some(operation) = changes.iter().next()
        && !is_passed_through
    {
        let way = Way::new(PathUseKind::Write, operation);
        ways.push(if meaning.changes_name { way.of_name() } else { way });
    }
    if effect == Effect::Execute {
        ways.push(Way::new(PathUseKind::Read, Operation::Execute));
        ways.push(Way::new(PathUseKind::Execute, Operation::Execute));
    } else if meaning.operations.contains(Operation::Read) {
        ways.push(Way::new(PathUseKind::Read, Operation::Read));
    } else if meaning.operations.contains(Operation::Directory) {
        ways.push(Way::new(PathUseKind::Read, Operation::Directory));
    }
    ways
}

/// The same where it is not known what is there.
pub fn ways_in_the_dark(effect: Effect) -> SmallVec<[Way; 2]> {
    match effect {
        Effect::Open(open) => {
            let reads = open.read && !open.path_only;
            let read = reads.then(|| Way::new(PathUseKind::Read, Operation::Read));
            let writes = !open.is_read_only();
            let write = writes.then(|| Way::new(PathUseKind::Write, Operation::Write));
            read.into_iter().chain(write).collect()
        }
        // It may get a name by which it can be read.
        Effect::HardLinkFrom | Effect::RenameFrom { .. } => {
            let mut ways = ways(effect, None);
            ways.extend(ways.first().map(|way| Way { kind: PathUseKind::Read, ..*way }));
            ways
        }
        effect => ways(effect, None),
    }
}

/// Whether the kernel refuses a call whatever the rules say, as long as no name on its way changes.
pub fn fails_anyway(located: &[Located<'_>]) -> bool {
    if let [(from, Ok(source)), (to, Ok(target))] = located
        && matches!(from.effect, Effect::RenameFrom { .. } | Effect::HardLinkFrom)
        && let Some(stat) = &source.stat
    {
        let is_directory = resolve::is_directory(stat);
        let [one, other] = [&source.path, &target.path].map(|path| parent(path));
        let is_elsewhere = one.zip(other).is_some_and(|(one, other)| one.st_dev != other.st_dev);
        let is_another_type = |other: &FileStat| resolve::is_directory(other) != is_directory;
        let is_same = |other: &FileStat| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino);
        let fails = match to.effect {
            Effect::HardLinkTo => is_directory,
            Effect::RenameTo { exchange: false, .. } => {
                target.stat.as_ref().is_some_and(is_another_type)
                    || target.must_be_directory && !is_directory
                    || is_directory
                        && target.path != source.path
                        && resolve::is_below(&target.path, &source.path)
            }
            _ => false,
        };
        // Of two names of one file, rename(2) changes none.
        let is_void = to.effect != Effect::HardLinkTo && target.stat.as_ref().is_some_and(is_same);
        if is_elsewhere || fails || is_void {
            return true;
        }
    }
    located.iter().any(|(access, place)| {
        place.as_ref().is_ok_and(|place| {
            !ways(access.effect, place.stat.as_ref()).is_empty()
                && finds_the_wrong_thing(access.effect, place)
        })
    })
}

/// The directory of a path, if there is one.
fn parent(path: &[u8]) -> Option<FileStat> {
    fs::lstat(parent_of(path)?).ok().flatten()
}

/// Whether a call fails since what is there is not what it needs: ENOENT, EEXIST, ENOTDIR, EISDIR, ELOOP, ENOTEMPTY.
fn finds_the_wrong_thing(effect: Effect, place: &Resolved) -> bool {
    let is_empty = || {
        let entries = std::fs::read_dir(OsStr::from_bytes(&place.path));
        // One that we may not list may be.
        entries.map_or(true, |mut entries| entries.next().is_none())
    };
    let Some(stat) = &place.stat else {
        let makes = match effect {
            Effect::Open(open) => open.create && !place.must_be_directory,
            Effect::MakeNode | Effect::MakeSymlink | Effect::HardLinkTo => !place.must_be_directory,
            Effect::MakeDirectory => true,
            Effect::RenameTo { exchange, .. } => !exchange,
            _ => false,
        };
        let has_parent = || match parent_of(&place.path).map(fs::lstat) {
            Some(Ok(parent)) => parent.as_ref().is_some_and(resolve::is_directory),
            Some(Err(_)) | None => true,
        };
        return !makes || place.leads_nowhere || !has_parent();
    };
    let is_directory = resolve::is_directory(stat);
    if place.must_be_directory && !is_directory {
        return true;
    }
    match effect {
        Effect::Open(open) => {
            open.exclusive
                || open.directory && !is_directory
                || resolve::is_symlink(stat)
                || stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
                || is_directory && !open.is_read_only() && !open.temporary
        }
        Effect::MakeDirectory | Effect::MakeNode | Effect::MakeSymlink | Effect::HardLinkTo => true,
        Effect::RenameTo { noreplace: true, .. } => true,
        Effect::RenameTo { exchange: false, .. } => is_directory && !is_empty(),
        Effect::Remove => is_directory,
        Effect::RemoveDirectory => !is_directory || !is_empty(),
        Effect::Truncate => !resolve::is_regular(stat),
        Effect::ChangeDirectory | Effect::ChangeRoot => !is_directory,
        Effect::Execute => !resolve::is_regular(stat),
        _ => false,
    }
}
