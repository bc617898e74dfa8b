//! Nothing twice: a (base, path bytes, kind of look) that was seen and can't have changed costs
//! one lookup.
//!
//! What invalidates it: a traced call that moves, makes or removes a link or moves a directory
//! (all is forgotten, since any path may lead through it), one that removes a directory (where a
//! path with `..` is known), a traced change of the record itself
//! (its `changes` differ), and, for a path that was absent when it was opened, its presence now.
//! Threads with another root, other mounts or other rights are never answered from here.

use std::collections::HashMap;

use super::ignore::RuleId;
use super::ledger::Ledger;
use super::ledger::names::NameId;
use super::resolve::Resolver;
use super::{resolve, view};
use crate::snapshot::{Operation, Operations};
use crate::trace::observer::Caller;
use crate::trace::syscalls::{Access, Dirfd, Effect, FileRef, Resolve};

/// How many looks are remembered at most.
const LIMIT: usize = 200_000;

/// What a look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// These operations on this record.
    Record(NameId, Operations),
    /// Left out by this rule.
    Suppressed(RuleId),
}

#[derive(Debug)]
struct Entry {
    /// The links on the way, and last what the path led to.
    known: Box<[Known]>,
    changes: u32,
    /// Nothing was there, and an open would have read it.
    absent_open: bool,
}

/// Where a look starts and of which kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Start {
    base: u32,
    kind: u8,
}

/// A look that may be known.
#[derive(Debug)]
pub struct LookupPlace<'a> {
    start: Start,
    /// The path as named.
    pub path: &'a [u8],
    opens: bool,
    /// The directory that a relative path starts at.
    pub base: Option<Vec<u8>>,
}

type Looks = HashMap<Box<[u8]>, Entry, foldhash::fast::RandomState>;

/// The looks that were judged.
#[derive(Debug, Default)]
pub struct Lookups {
    bases: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    looks: HashMap<Start, Looks, foldhash::fast::RandomState>,
    count: usize,
    /// Whether a path is among them that turns back from a directory (`..`).
    turns: bool,
}

impl Lookups {
    /// The place of an access, if it is one that can be known.
    pub fn place<'a>(
        &mut self,
        resolver: &Resolver,
        caller: Caller,
        access: &'a Access,
    ) -> Option<LookupPlace<'a>> {
        let FileRef::Path { dirfd, path } = &access.file else { return None };
        if access.resolve != Resolve::default() || is_of_the_caller(path) {
            return None;
        }
        let (kind, opens) = match access.effect {
            Effect::Query => (0, false),
            Effect::Open(open) if open.is_read_only() => {
                (1 + 4 * u8::from(open.directory) + 8 * u8::from(open.path_only), !open.path_only)
            }
            _ => return None,
        };
        let kind = kind + 2 * u8::from(access.follow);
        let (number, base) =
            if path.starts_with(b"/") { (0, None) } else { self.base(resolver, caller, *dirfd)? };
        Some(LookupPlace { start: Start { base: number, kind }, path, opens, base })
    }

    /// The number of a base directory, and its name.
    fn base(&mut self, resolver: &Resolver, caller: Caller, dirfd: Dirfd) -> Option<(u32, Option<Vec<u8>>)> {
        let base = view::base_of(resolver, caller, dirfd).ok()?;
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

    /// What a look at `place` came to, if that can't have changed: the links on the way and the end.
    pub fn find(&self, place: &LookupPlace<'_>, ledger: &Ledger) -> Option<&[Known]> {
        let entry = self.looks.get(&place.start)?.get(place.path)?;
        if let Some(Known::Record(record, _)) = entry.known.last() {
            if ledger.changes(*record) != entry.changes {
                return None;
            }
            // An untraced program may have made it; then this open reads it.
            if entry.absent_open && !matches!(resolve::lstat(ledger.names.path(*record)), Ok(None)) {
                return None;
            }
        }
        Some(&entry.known)
    }

    /// Remembers what a look at `place` came to.
    pub fn learn(&mut self, place: LookupPlace<'_>, ledger: &Ledger, known: Box<[Known]>, absent: bool) {
        if self.count >= LIMIT {
            self.forget();
        }
        let (changes, opened_nothing) = match known.last() {
            Some(Known::Record(record, operations)) => {
                (ledger.changes(*record), *operations == Operation::Existence.into())
            }
            _ => (0, false),
        };
        self.turns |= place.path.windows(2).any(|two| two == b"..");
        let entry = Entry { known, changes, absent_open: place.opens && absent && opened_nothing };
        self.looks.entry(place.start).or_default().insert(place.path.into(), entry);
        self.count += 1;
    }

    /// Forgets everything: a name on the way of any path may have changed.
    pub fn forget(&mut self) {
        self.bases.clear();
        self.looks.clear();
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

/// Whether a path means another thing for each caller.
///
/// What leads there through a link is seen by that link, which is procfs's own.
fn is_of_the_caller(path: &[u8]) -> bool {
    path.starts_with(b"/proc/")
}
