//! New names of files: what may not be read gets none by which a later command could read it.
//!
//! Rules mean a file by its names, and a later command does not know those that it had before. Neighbours: `enforced.rs` refuses
//! the call; `check` finds the same in a recording (`policy/judge.rs`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::changes::Located;
use super::enforced::{Refusals, refusal};
use crate::fs::{self, FileStat};
use crate::observe::ledger::ids::ProcessId;
use crate::observe::recording::Recording;
use crate::observe::resolve::view::Unseen;
use crate::observe::resolve::{self, Resolved, Unresolved};
use crate::policy::{Decision, PathUseKind};
use crate::snapshot::{Operation, RefusedSubject};
use crate::trace::observer::Caller;
use crate::trace::syscalls::{Effect, FileRef};

/// What a call is about to link that is named by a descriptor, for which another thread may exchange another one.
#[derive(Debug)]
pub struct LinkedFile {
    /// Its new name.
    path: Vec<u8>,
    /// Its device and inode number; none if it has no other name.
    identity: Option<(u64, u64)>,
}

impl Recording {
    /// Judges the names that a rename or a hard link gives to files, also to those beneath a directory.
    pub fn judge_new_names(&mut self, located: &[Located<'_>], refusals: &mut Refusals) {
        let [(access, Ok(from)), (_, Ok(to))] = located else { return };
        let operation = match access.effect {
            Effect::HardLinkFrom => Operation::Metadata,
            Effect::RenameFrom { exchange: true } => Operation::Write,
            Effect::RenameFrom { exchange: false } => Operation::Delete,
            _ => return,
        };
        self.judge_moved(from, to, operation, refusals);
        if operation == Operation::Write {
            self.judge_moved(to, from, operation, refusals);
        }
    }

    /// What a call that is allowed gives a name by a descriptor.
    pub fn link_by_descriptor(&mut self, caller: Caller, located: &[Located<'_>]) -> Option<LinkedFile> {
        let [(access, from), (_, Ok(to))] = located else { return None };
        let links = self.enforcer.is_some() && access.effect == Effect::HardLinkFrom && to.stat.is_none();
        let identity = match from {
            Ok(from)
                if resolve::is_by_magic_link(&from.crossed)
                    || matches!(access.file, FileRef::Descriptor(_)) =>
            {
                from.stat.map(|stat| (stat.st_dev, stat.st_ino))
            }
            Err(Unseen::Unresolved(Unresolved::Nameless)) => None,
            Ok(_) | Err(_) => return None,
        };
        // An overlay copies up what it links, which is another file then.
        let is_exchanged = links && to.overlay.is_none() && self.processes.traits(caller.tgid).shares_paths();
        is_exchanged.then(|| LinkedFile { path: to.path.clone(), identity })
    }

    /// Takes back a link to another file than the one that was judged, and ends its process.
    pub fn enforce_linked(
        &mut self,
        caller: Caller,
        process: ProcessId,
        linked: &LinkedFile,
        result: Option<i64>,
    ) {
        let LinkedFile { path, identity } = linked;
        // If its thread has died in the call, the link may be there.
        let Some(now) = fs::lstat(path).ok().flatten().filter(|_| matches!(result, Some(0) | None)) else {
            return;
        };
        let is_as_judged = match identity {
            Some(identity) => *identity == (now.st_dev, now.st_ino),
            None => now.st_nlink == 1,
        };
        if !is_as_judged {
            let _ = rustix::fs::unlink(path.as_slice());
            self.end_process(caller, process, || {
                format!(
                    "when it gave a file the name {}, another one had been judged",
                    String::from_utf8_lossy(path)
                )
            });
        }
    }

    fn judge_moved(&mut self, from: &Resolved, to: &Resolved, operation: Operation, refusals: &mut Refusals) {
        let Some(stat) = &from.stat else { return };
        let [old, new] = [from, to].map(|place| match &place.overlay {
            Some(layers) => layers.upper_path(),
            None => place.path.clone(),
        });
        if resolve::is_regular(stat) {
            self.judge_new_name(&old, Some(stat), &new, operation, refusals);
        } else if resolve::is_directory(stat) && self.judges_reads() {
            self.judge_new_names_beneath(&old, &new, operation, refusals);
        }
    }

    fn judge_new_names_beneath(
        &mut self,
        old: &[u8],
        new: &[u8],
        operation: Operation,
        refusals: &mut Refusals,
    ) {
        let start = Path::new(OsStr::from_bytes(old));
        let mut walk = walkdir::WalkDir::new(start).min_depth(1).follow_links(false).into_iter();
        while let Some(entry) = walk.next() {
            let unseen = match &entry {
                Ok(entry) if self.resolver.is_served(entry.path().as_os_str().as_bytes()) => {
                    walk.skip_current_dir();
                    Some(entry.path())
                }
                Ok(entry) if entry.file_type().is_file() => {
                    let path = entry.path().as_os_str().as_bytes();
                    let new = [new, &path[old.len()..]].concat();
                    self.judge_new_name(path, None, &new, operation, refusals);
                    None
                }
                Ok(_) => None,
                Err(error)
                    if error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) =>
                {
                    None
                }
                Err(error) => Some(error.path().unwrap_or(start)),
            };
            // Nobody knows what is in there.
            if let Some(path) = unseen.map(|path| path.as_os_str().as_bytes()) {
                let rule = self.enforcer.as_ref().and_then(|rules| rules.forbids_reading_beneath(path));
                refusals.extend(rule.map(|rule| refusal(path, operation, rule)));
            }
        }
    }

    fn judge_new_name(
        &mut self,
        old: &[u8],
        stat: Option<&FileStat>,
        new: &[u8],
        operation: Operation,
        refusals: &mut Refusals,
    ) {
        for kind in PathUseKind::by_new_name(operation == Operation::Metadata) {
            let rule = self.forbids_new_name(kind, old, stat, new);
            refusals.extend(rule.map(|(path, rule)| {
                let through = (path != old).then(|| old.to_vec());
                (RefusedSubject::Path { path, through, operation }, rule)
            }));
        }
    }

    /// The path by which a file may not be used, unlike by its new name, and the rule.
    fn forbids_new_name(
        &mut self,
        kind: PathUseKind,
        old: &[u8],
        stat: Option<&FileStat>,
        new: &[u8],
    ) -> Option<(Vec<u8>, String)> {
        let enforcer = self.enforcer.as_ref()?;
        let mut from = [vec![old.to_vec()], self.mounts.names_elsewhere(old)].concat();
        from.retain(|path| enforcer.decide_by_name(kind, path).forbidden().is_some());
        if from.is_empty() {
            return None;
        }
        // Whoever uses it later is judged by all of its paths.
        let is_denied = |path: &Vec<u8>| matches!(enforcer.decide_by_name(kind, path), Decision::Denied(..));
        if self.mounts.names_elsewhere(new).iter().any(is_denied) {
            return None;
        }
        let stat = stat.copied().or_else(|| fs::lstat(old).ok().flatten())?;
        let is_from_before = self.is_name_from_before(old, &stat);
        let enforcer = self.enforcer.as_mut()?;
        from.into_iter().find_map(|from| {
            // What is allowed at its own path need not be so at the others.
            let is_from_before = is_from_before && from == old;
            let rule = enforcer.forbids_name(kind, &from, &stat, is_from_before, new)?;
            Some((from, rule))
        })
    }
}
