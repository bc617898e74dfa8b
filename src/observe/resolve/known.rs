//! The directories that walks have found to be real ones, so that they need no second lstat(2), and
//! whether they still are the same at the end.
//!
//! What a traced call does to a directory is reported to this module. What a program outside of the tree does
//! is not: paths that led through such a directory meanwhile may have been recorded under a wrong name.
//! So each directory is remembered with its device and inode, also once it is not trusted any more, and
//! followed through the traced renames, so that nothing has to be checked when one happens. A directory
//! that is replaced and put back before it is met again is not noticed.
//!
//! Neighbour: `resolve.rs`, whose walks learn and ask.

use std::collections::HashMap;

use crate::fs::{FileStat, lstat, parent_of};
use crate::parallel;
use crate::snapshot::live::{self, Filesystem};

/// How many directories are remembered at most; what is beyond is walked each time.
const LIMIT: usize = 100_000;

/// The directories, by their real names in our mount namespace.
#[derive(Debug, Default)]
pub(super) struct KnownDirectories {
    known: HashMap<Box<[u8]>, Directory, foldhash::fast::RandomState>,
    /// What traced calls made of the directories of a name: when, and where they went.
    moves: HashMap<Box<[u8]>, Vec<Move>, foldhash::fast::RandomState>,
    /// Counts the moves, and the times that all was distrusted.
    clock: u32,
    /// Directories that were last seen before are not trusted.
    trusted_since: u32,
    /// Those that turned out to be others when they were seen again.
    replaced: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Directory {
    identity: (u64, u64),
    /// When it had the name that it is kept by.
    named: u32,
    /// When it was last seen to be a directory.
    seen: u32,
}

#[derive(Debug)]
struct Move {
    when: u32,
    /// None where it was removed, or hidden by a mount.
    to: Option<Box<[u8]>>,
}

impl KnownDirectories {
    /// Whether `path` is a directory that can be trusted to be one.
    pub(super) fn contains(&self, path: &[u8]) -> bool {
        self.device_of(path).is_some()
    }

    /// The device of a directory that can be trusted to be one.
    pub(super) fn device_of(&self, path: &[u8]) -> Option<u64> {
        let directory = self.known.get(path).filter(|directory| directory.seen >= self.trusted_since)?;
        Some(directory.identity.0)
    }

    /// Remembers the directory at `path`.
    pub(super) fn learn(&mut self, path: &[u8], stat: &FileStat) {
        let identity = (stat.st_dev, stat.st_ino);
        let now = self.clock;
        let Some(known) = self.known.get_mut(path) else {
            if self.known.len() < LIMIT {
                self.known.insert(path.into(), Directory { identity, named: now, seen: now });
            }
            return;
        };
        if known.identity == identity {
            (known.named, known.seen) = (now, now);
            return;
        }
        let former = std::mem::replace(known, Directory { identity, named: now, seen: now });
        match self.follow(path, former.named) {
            Some(at) if at == path => self.note_replaced(path),
            Some(at) if self.known.len() < LIMIT => {
                let moved = Directory { named: now, ..former };
                self.known.entry(at.into()).or_insert(moved);
            }
            _ => {}
        }
    }

    /// Trusts none of them until it is seen again: symlinks or mounts have changed.
    pub(super) fn distrust(&mut self) {
        self.clock += 1;
        self.trusted_since = self.clock;
    }

    /// Notes those that are others now, which is not found any more once they are forgotten.
    pub(super) fn note_all_replaced(&mut self) {
        self.replaced = self.replaced();
    }

    /// Forgets all of them, so that none is told to be replaced that was changed meanwhile.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.moves.clear();
    }

    /// Notes that a traced call removed the directory at `path`.
    pub(super) fn removed(&mut self, path: &[u8]) {
        self.known.remove(path);
        // One that came there by a rename is kept by its former name.
        if !self.moves.is_empty() {
            self.hidden(path);
        }
    }

    /// Notes that a traced call has mounted something over `path`, or unmounted it: what is there and below
    /// is not what was there before.
    pub(super) fn hidden(&mut self, path: &[u8]) {
        self.clock += 1;
        self.moved(path, None);
    }

    /// Notes that a traced call renamed what is at `from`.
    pub(super) fn renamed(&mut self, from: &[u8], to: &[u8], exchange: bool) {
        self.distrust();
        self.moved(from, Some(to));
        self.moved(to, exchange.then_some(from));
    }

    fn moved(&mut self, from: &[u8], to: Option<&[u8]>) {
        let step = Move { when: self.clock, to: to.map(Into::into) };
        self.moves.entry(from.into()).or_default().push(step);
    }

    /// Where a directory is now that was at `path`; none where it is gone.
    fn follow(&self, path: &[u8], named: u32) -> Option<Vec<u8>> {
        let mut path = path.to_vec();
        let mut since = named;
        loop {
            let above = std::iter::successors(Some(path.as_slice()), |path| parent_of(path));
            let next = above.filter_map(|at| {
                let step = self.moves.get(at)?.iter().find(|step| step.when > since)?;
                Some((step, at.len()))
            });
            let Some((step, length)) = next.min_by_key(|(step, _)| step.when) else { return Some(path) };
            since = step.when;
            path = [step.to.as_deref()?, &path[length..]].concat();
        }
    }

    /// The directories that are others now than they were, though no traced call changed that: the
    /// topmost ones.
    pub(super) fn replaced(&self) -> Vec<Vec<u8>> {
        let known: Vec<_> = self.known.iter().collect();
        let others = parallel::map_calls(&known, |(path, directory)| {
            let path = self.follow(path, directory.named)?;
            let now = lstat(&path).ok()?;
            let is_same = now.is_some_and(|now| (now.st_dev, now.st_ino) == directory.identity);
            (!is_same && keeps_identities(&path)).then_some(path)
        });
        let mut found = self.replaced.clone();
        found.extend(others.into_iter().flatten());
        found.sort_unstable();
        found.dedup_by(|path, above| {
            path.strip_prefix(above.as_slice()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        });
        found
    }

    fn note_replaced(&mut self, path: &[u8]) {
        if keeps_identities(path) {
            self.replaced.push(path.to_vec());
        }
    }
}

/// Whether directories keep their inode numbers where `path` is, or was, and only programs change them.
fn keeps_identities(path: &[u8]) -> bool {
    // An overlay whose layers are on several filesystems makes numbers up.
    live::filesystem(path).is_ok_and(|found| found == Filesystem::Local)
}
