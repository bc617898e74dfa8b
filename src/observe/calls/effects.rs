//! What each effect of a call means for the ledger: one row per effect, and no wildcard.
//!
//! Pure. Neighbour: `changes.rs`, which asks at the entry of a call and when it has succeeded.

use crate::fs::FileStat;
use crate::observe::capture::Threat;
use crate::observe::ledger::apply::{CopyUp, Kind};
use crate::observe::resolve;
use crate::snapshot::{Look, Operation, Operations, Seen};
use crate::trace::syscalls::{Asked, Effect, OpenFlags};

/// What a call with an effect does to a place where something, or nothing, is.
#[derive(Debug, Clone, Copy)]
pub struct Meaning {
    /// How the place was used, where the call succeeds.
    pub operations: Operations,
    /// What has happened to it then.
    pub kind: Kind,
    /// What becomes of the bytes that are there.
    pub threat: Option<Threat>,
    /// Whether its attributes, bytes or existence may become others.
    pub changes: bool,
    /// Whether the name appears, disappears or stands for another inode.
    pub changes_name: bool,
    /// Whether the file's link count changes.
    pub changes_link_count: bool,
    /// Whether other paths may resolve differently afterwards.
    pub moves: bool,
    /// How an overlay copies the file up.
    pub copy_up: Option<CopyUp>,
    /// What the call learns of what was there; also what it leaves in part, or under another name.
    pub seen: Seen,
}

/// A use that changes nothing.
fn used(operations: Operations) -> Meaning {
    Meaning {
        operations,
        kind: Kind::Used,
        threat: None,
        changes: false,
        changes_name: false,
        changes_link_count: false,
        moves: false,
        copy_up: None,
        seen: Seen::by(operations),
    }
}

/// What changes the name itself, and fails if it does not find what it expects.
fn named(kind: Kind, operations: Operations) -> Meaning {
    Meaning { kind, changes: true, changes_name: true, seen: Seen::EXISTENCE, ..used(operations) }
}

/// What a call with `effect` means where lstat(2) says `stat`.
pub fn meaning(effect: Effect, stat: Option<&FileStat>) -> Meaning {
    let existence = Operations::from(Operation::Existence);
    let directory = Operations::from(Operation::Directory);
    let write = Operations::from(Operation::Write);
    let delete = Operations::from(Operation::Delete);
    let is_symlink = stat.is_some_and(resolve::is_symlink);
    let has_more_names = stat.is_some_and(|stat| stat.st_nlink > 1 && !resolve::is_directory(stat));
    match effect {
        Effect::Open(open) => opened(open, stat),
        Effect::Query => used(existence),
        Effect::Stat => Meaning { seen: Seen::ATTRIBUTES, ..used(existence) },
        Effect::Ask(asked) => {
            let look = match asked {
                Asked::Transient => Look::Transient,
                Asked::Xattrs => Look::Xattrs,
                Asked::InodeFlags => Look::InodeFlags,
                Asked::Holes => Look::Holes,
            };
            Meaning { seen: Seen::EXISTENCE.with(look), ..used(existence) }
        }
        Effect::MountPoint => Meaning { changes_name: true, ..used(existence) },
        Effect::ChangeDirectory | Effect::ChangeRoot => Meaning { moves: true, ..used(directory) },
        Effect::Execute => used(Operations::from(Operation::Read).with(Operation::Execute)),
        Effect::Truncate => Meaning {
            kind: Kind::Written,
            threat: Some(Threat::Overwrite),
            changes: true,
            copy_up: Some(CopyUp::Truncates),
            seen: Seen::CONTENT,
            ..used(write)
        },
        // How the descriptor was opened, or inherited, has told the operation.
        Effect::Rewrite => Meaning {
            kind: Kind::Written,
            threat: Some(Threat::Overwrite),
            changes: true,
            seen: Seen::CONTENT,
            ..used(Operations::NONE)
        },
        Effect::Remove => Meaning {
            threat: Some(Threat::Unlink),
            changes_link_count: has_more_names,
            moves: is_symlink,
            ..named(Kind::Removed, delete)
        },
        Effect::RemoveDirectory => Meaning { moves: true, ..named(Kind::Removed, directory.union(delete)) },
        Effect::MakeDirectory => named(Kind::Bound, directory.union(write)),
        Effect::MakeNode => named(Kind::Bound, write),
        Effect::MakeSymlink => Meaning { moves: true, ..named(Kind::Bound, write) },
        // What is renamed keeps its bytes.
        Effect::RenameFrom { .. } => {
            Meaning { moves: true, seen: Seen::CONTENT, ..named(Kind::Removed, delete) }
        }
        Effect::RenameTo { exchange, noreplace } => Meaning {
            // With RENAME_NOREPLACE it fails (EEXIST) where something is.
            threat: (!exchange && !noreplace).then_some(Threat::Unlink),
            changes_link_count: has_more_names,
            moves: true,
            seen: match (exchange, noreplace) {
                (true, _) => Seen::CONTENT,
                (_, true) => Seen::EXISTENCE,
                // It takes the place of whatever was there.
                (false, false) => Seen::NOTHING,
            },
            ..named(Kind::Bound, write)
        },
        Effect::HardLinkFrom => Meaning {
            changes_link_count: stat.is_some(),
            moves: is_symlink,
            copy_up: Some(CopyUp::Only),
            seen: Seen::CONTENT,
            ..used(existence)
        },
        Effect::HardLinkTo => named(Kind::Bound, write),
        Effect::Metadata => Meaning {
            kind: Kind::Attributes,
            changes: true,
            copy_up: Some(CopyUp::SetsTimes),
            seen: Seen::CONTENT,
            ..used(Operation::Metadata.into())
        },
    }
}

fn opened(open: OpenFlags, stat: Option<&FileStat>) -> Meaning {
    if open.path_only {
        // The descriptor tells the attributes, by calls that name no path.
        return Meaning { seen: Seen::ATTRIBUTES, ..used(Operation::Existence.into()) };
    }
    if open.temporary || stat.is_some_and(resolve::is_directory) {
        return used(Operation::Directory.into());
    }
    let writes = open.write || open.truncate;
    let mut operations = Operations::NONE;
    if open.read {
        operations = operations.with(Operation::Read);
    }
    if writes || stat.is_none() {
        operations = operations.with(Operation::Write);
    }
    if operations.is_empty() {
        operations = Operation::Existence.into();
    }
    // With O_TRUNC it makes the same of whatever was there.
    let seen = match stat {
        _ if open.truncate && !open.exclusive => Seen::NOTHING,
        Some(_) => Seen::CONTENT,
        None => Seen::EXISTENCE,
    };
    match stat {
        None => {
            Meaning { changes: writes, changes_name: open.create, seen, ..named(Kind::Bound, operations) }
        }
        // What goes into a pipe, a terminal or another device changes no file.
        Some(stat) if !resolve::is_regular(stat) || !writes => used(operations),
        Some(_) => Meaning {
            kind: Kind::Written,
            // With O_CREAT and O_EXCL it fails (EEXIST).
            threat: (!open.exclusive).then_some(Threat::Overwrite),
            changes: true,
            copy_up: Some(if open.truncate { CopyUp::Truncates } else { CopyUp::Only }),
            seen,
            ..used(operations)
        },
    }
}
