//! A cache of read-only accesses, by base directory, path bytes and kind of access: one that was judged
//! before and can't have changed costs one lookup.
//!
//! The whole cache is invalidated by a traced call that moves, makes or removes a symlink or moves a
//! directory, since any path may lead through it; and by one that removes a directory, if a path with `..` is
//! cached. An entry is invalidated by a traced change of its name (the name's `changes` differ) and, if
//! the path was absent when it was opened, by its presence now; one that a rule left out, by the first change of any
//! path that rules leave out only until it changes. Threads with other rights never use the cache, and those
//! with another root or other mounts have entries of their own.

use std::collections::HashMap;

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::ledger::Ledger;
use super::ledger::ids::NameId;
use super::ledger::in_flight::Footprint;
use super::mounts::ViewNumber;
use super::policy::ignore::RuleId;
use crate::fs::{self, Signature};
use crate::snapshot::{Operation, Operations};
use crate::trace::syscalls::{Access, Dirfd, Effect, FileRef, Resolve};

/// How many accesses are remembered at most.
const LIMIT: usize = 200_000;

/// What a read-only access came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// These operations on this name.
    Recorded(NameId, Operations),
    /// Left out by this rule.
    Suppressed(RuleId),
}

#[derive(Debug)]
struct KnownPath {
    /// The symlinks on the way, and last what the path led to.
    known: Box<[Known]>,
    changes: u32,
    /// [`Lookups::left_out_changes`] at that time.
    left_out_changes: u32,
    /// Nothing was there, and an open would have read it.
    absent_open: bool,
    /// Whether rules were asked, and allow it.
    allowed: Option<Box<Allowed>>,
}

/// An open for reading that rules allow as long as the same is there.
#[derive(Debug)]
pub struct Allowed {
    /// What the path led to, if anything.
    pub signature: Option<Signature>,
    /// [`Enforcer::names_version`](super::enforce::Enforcer::names_version) when they were asked.
    pub names_version: u64,
    /// What the open walks.
    pub footprint: Footprint,
}

/// Where an access starts and of which kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Start {
    /// The root and mounts that the path is looked up from; zero for ours.
    view: ViewNumber,
    base: u32,
    kind: u8,
}

/// A read-only access that may be known.
#[derive(Debug)]
pub struct LookupPlace<'a> {
    start: Start,
    /// The path as named.
    pub path: &'a [u8],
    opens: bool,
    /// The directory that a relative path starts at.
    pub base: Option<Vec<u8>>,
}

type KnownPaths = HashMap<Box<[u8]>, KnownPath, foldhash::fast::RandomState>;

/// The read-only accesses that were judged.
#[derive(Debug, Default)]
pub struct Lookups {
    bases: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    paths: HashMap<Start, KnownPaths, foldhash::fast::RandomState>,
    count: usize,
    /// How many paths that rules left out have changed, and are recorded from then on.
    left_out_changes: u32,
    /// Whether a path is among them that turns back from a directory (`..`).
    turns: bool,
}

impl LookupPlace<'_> {
    /// What the path leads to now, by its name here, if anything.
    pub fn signature(&self, follow: bool) -> Result<Option<Signature>, Errno> {
        let whole = self.base.as_ref().map(|base| [base.as_slice(), b"/", self.path].concat());
        let path = whole.as_deref().unwrap_or(self.path);
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match rustix::fs::statat(CWD, path, flags) {
            Ok(stat) => Ok(Some(Signature::from(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Lookups {
    /// The place of an access from the view of this number, if it is one that can be known; `base` is the directory
    /// that a relative path starts at.
    pub fn place<'a>(
        &mut self,
        access: &'a Access,
        view: ViewNumber,
        base: impl FnOnce(Dirfd) -> Option<Vec<u8>>,
    ) -> Option<LookupPlace<'a>> {
        let FileRef::Path { dirfd, path } = &access.file else { return None };
        // In another view, procfs may be mounted anywhere; what leads there is not learnt.
        if access.resolve != Resolve::default() || is_of_the_caller(path) {
            return None;
        }
        let (kind, opens) = match access.effect {
            Effect::Query => (0, false),
            Effect::Stat | Effect::Ask(_) => (16, false),
            Effect::Open(open) if open.is_read_only() => {
                (1 + 4 * u8::from(open.directory) + 8 * u8::from(open.path_only), !open.path_only)
            }
            _ => return None,
        };
        let kind = kind + 2 * u8::from(access.follow);
        let (number, base) = if path.starts_with(b"/") { (0, None) } else { self.base(base(*dirfd)?)? };
        Some(LookupPlace { start: Start { view, base: number, kind }, path, opens, base })
    }

    /// The number of a base directory, and its name.
    fn base(&mut self, base: Vec<u8>) -> Option<(u32, Option<Vec<u8>>)> {
        if is_of_the_caller(&base) {
            return None;
        }
        if let Some(known) = self.bases.get(base.as_slice()) {
            return Some((*known, Some(base)));
        }
        let next = u32::try_from(self.bases.len() + 1).ok()?;
        self.bases.insert(base.as_slice().into(), next);
        Some((next, Some(base)))
    }

    /// What an access to `place` came to, if that can't have changed: the symlinks on the way and the end.
    pub fn find(&self, place: &LookupPlace<'_>, ledger: &Ledger) -> Option<&[Known]> {
        Some(&self.entry(place, ledger)?.known)
    }

    /// Whether rules allow an open of `place`, if they were asked and no call has changed what that leads to.
    pub fn allowed(&self, place: &LookupPlace<'_>, ledger: &Ledger) -> Option<&Allowed> {
        self.entry(place, ledger)?.allowed.as_deref()
    }

    /// Notes that rules allow an open of `place`, if that is known.
    pub fn allow(&mut self, place: &LookupPlace<'_>, allowed: Allowed) {
        let paths = self.paths.get_mut(&place.start);
        if let Some(entry) = paths.and_then(|paths| paths.get_mut(place.path)) {
            entry.allowed = Some(Box::new(allowed));
        }
    }

    fn entry(&self, place: &LookupPlace<'_>, ledger: &Ledger) -> Option<&KnownPath> {
        let entry = self.paths.get(&place.start)?.get(place.path)?;
        let is_left_out = entry.known.iter().any(|known| matches!(known, Known::Suppressed(_)));
        if is_left_out && entry.left_out_changes != self.left_out_changes {
            return None;
        }
        if let Some(Known::Recorded(name, _)) = entry.known.last() {
            if ledger.changes(*name) != entry.changes {
                return None;
            }
            // An untraced program may have made it; then this open reads it.
            if entry.absent_open && !matches!(fs::lstat(ledger.names.path(*name)), Ok(None)) {
                return None;
            }
        }
        Some(entry)
    }

    /// Remembers what an access to `place` came to.
    pub fn learn(&mut self, place: LookupPlace<'_>, ledger: &Ledger, known: Box<[Known]>, absent: bool) {
        if self.count >= LIMIT {
            self.forget();
        }
        let (changes, opened_nothing) = match known.last() {
            Some(Known::Recorded(name, operations)) => {
                (ledger.changes(*name), *operations == Operation::Existence.into())
            }
            _ => (0, false),
        };
        self.turns |= place.path.windows(2).any(|two| two == b"..");
        let absent_open = place.opens && absent && opened_nothing;
        let left_out_changes = self.left_out_changes;
        let entry = KnownPath { known, changes, left_out_changes, absent_open, allowed: None };
        self.paths.entry(place.start).or_default().insert(place.path.into(), entry);
        self.count += 1;
    }

    /// Forgets what rules left out: one of these paths has changed, and is recorded from now on.
    pub fn forget_left_out(&mut self) {
        self.left_out_changes = self.left_out_changes.wrapping_add(1);
    }

    /// Forgets everything: a name on the way of any path may have changed.
    pub fn forget(&mut self) {
        self.bases.clear();
        self.paths.clear();
        self.count = 0;
        self.turns = false;
    }

    /// Forgets what a directory that is gone may have led to: nothing beneath it is there any more, but a
    /// path that turned back from it led elsewhere.
    pub fn forget_turns(&mut self) {
        if self.turns {
            self.forget();
        }
    }
}

/// Whether a path means something else to each caller.
///
/// What leads there through a symlink is seen by that symlink, which is procfs's own.
fn is_of_the_caller(path: &[u8]) -> bool {
    path.starts_with(b"/proc/")
}
