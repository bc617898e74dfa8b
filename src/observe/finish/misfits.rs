//! Records that can't all be true: what somebody outside of the tree did while it was examined.
//!
//! A path was a file at its own first sight, and a directory when something beneath it was first seen.
//! A restore that believed both would write through a file. So the record that was made later is left out of
//! the manifest, with a warning. Neighbours: `examine.rs` finds what is there; `snapshot/reader/checks.rs`
//! refuses such a manifest. Changes that no record shows are warned of here, too.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

use hashbrown::HashTable;

use super::after::After;
use crate::observe::ledger::Ledger;
use crate::observe::ledger::ids::NameId;
use crate::observe::ledger::inodes::Stat;
use crate::observe::ledger::names::Names;
use crate::observe::warnings::Warnings;
use crate::snapshot::{Operations, WarningKind};

/// A file that was changed by a name, and has another that no hard link connects with it.
///
/// `is_found_now` tells what was found at the same time: at different times, two files may have had the same number.
pub(super) fn warn_files_named_twice(
    ledger: &Ledger,
    warnings: &mut Warnings,
    afters: &[(NameId, After)],
    is_found_now: impl Fn(NameId) -> bool,
) {
    let file = |(name, after): &(NameId, After)| {
        let stat = after.stat(*name, ledger).filter(|stat| stat.is_regular() && stat.nlink == 1)?;
        is_found_now(*name).then(|| (stat.identity(), *name))
    };
    let is_changed = |name: NameId| ledger.names.get(name).operations.intersects(Operations::CHANGES);
    for (first, second) in named_twice(afters, file, is_changed) {
        warnings.lost(WarningKind::MountNamespace, None, || {
            let [first, second] =
                [first, second].map(|name| String::from_utf8_lossy(ledger.names.path(name)));
            format!(
                "{first} and {second} are one file, perhaps by a bind mount: the content before may be \
                 recorded for one of them only"
            )
        });
    }
}

/// Warns of files that were changed and that no recorded name leads to any more, while a hard link that the tree never used
/// still does.
pub(super) fn warn_changes_without_a_name(
    ledger: &Ledger,
    warnings: &mut Warnings,
    afters: &[(NameId, After)],
) {
    // By device and inode: the first name that each had before, and how many of its names are not known.
    let mut changed: HashMap<(u64, u64), (NameId, u32), foldhash::fast::RandomState> = HashMap::default();
    for (name, _) in afters {
        let Some(id) = ledger.names.get(*name).before else { continue };
        let inode = ledger.inodes.get(id);
        let before = inode.before;
        // With its last name the inode itself has gone, and its number was forgotten.
        if ledger.inodes.find(before.identity()) != Some(id) {
            continue;
        }
        // What an overlay has copied has no other names: those keep the file that was copied.
        let has_more_names = before.is_regular() && before.nlink > 1 && !inode.is_copied();
        if has_more_names && (inode.written || inode.is_touched()) {
            let (_, unknown) = changed.entry(before.identity()).or_insert((*name, before.nlink));
            *unknown = unknown.saturating_sub(1);
        }
    }
    changed.retain(|_, (_, unknown)| *unknown > 0);
    if changed.is_empty() {
        return;
    }
    for (name, after) in afters {
        let found = match after {
            After::NotKept => ledger.before(*name).map(|inode| inode.before),
            after => after.stat(*name, ledger),
        };
        found.map(|found| changed.remove(&found.identity()));
    }
    let mut paths: Vec<&[u8]> = changed.values().map(|(name, _)| ledger.names.path(*name)).collect();
    paths.sort_unstable();
    for path in paths {
        warnings.lost(WarningKind::ContentOmitted, None, || {
            format!(
                "the file that was at {} was changed, and then lost that name: its state at another hard link, which the \
                 command never used, is not recorded",
                String::from_utf8_lossy(path)
            )
        });
    }
}

/// Finds regular files that have two names here though only one name of each is known to the kernel, by a bind
/// mount, or on a filesystem that takes several spellings for one name; as far as one of the names was changed.
/// `file` tells the device and inode of an entry that is a file.
fn named_twice<T>(
    entries: &[T],
    file: impl Fn(&T) -> Option<((u64, u64), NameId)>,
    is_changed: impl Fn(NameId) -> bool,
) -> Vec<(NameId, NameId)> {
    let hasher = foldhash::fast::RandomState::default();
    let is_changed_file = |entry: &T| file(entry).is_some_and(|(_, name)| is_changed(name));
    // By their places, and no larger than needed: there may be a million.
    let mut changed = HashTable::with_capacity(entries.iter().filter(|entry| is_changed_file(entry)).count());
    let hash = |at: &u32| hasher.hash_one(file(&entries[*at as usize]).map(|(identity, _)| identity));
    for at in (0..).take(entries.len()).filter(|at: &u32| is_changed_file(&entries[*at as usize])) {
        changed.insert_unique(hash(&at), at, hash);
    }
    let mut found = Vec::new();
    for (identity, name) in entries.iter().filter_map(&file) {
        let others = changed.iter_hash(hasher.hash_one(Some(identity)));
        let others = others.filter_map(|at| file(&entries[*at as usize]));
        let others = others.filter(|(other, _)| *other == identity).map(|(_, other)| other);
        // Of two that were both changed each is the other of one.
        let others = others.filter(|other| name > *other || name < *other && !is_changed(name));
        found.extend(others.map(|other| (other.min(name), other.max(name))));
    }
    found.sort_unstable();
    found
}

/// Leaves out the records that can't be true beside others, and says so.
pub(super) fn leave_out_misfits(ledger: &Ledger, warnings: &mut Warnings, afters: &mut Vec<(NameId, After)>) {
    let before = |name: NameId, after: &After| {
        ledger.before(name).filter(|_| !matches!(after, After::NotKept)).map(|inode| inode.before)
    };
    let mut misfits: Vec<NameId> = Vec::new();
    afters.retain(|(name, after)| {
        // A symlink whose target nobody can read any more is none that could be made again.
        let unread = before(*name, after).is_some_and(|before| before.is_symlink())
            && ledger.before(*name).is_some_and(|inode| inode.target().is_none());
        if unread || after.is_unread(ledger) {
            misfits.push(*name);
        }
        !(unread || after.is_unread(ledger))
    });
    let found = beneath_no_directory(&ledger.names, afters, |(name, after)| (*name, before(*name, after)));
    afters.retain(|(name, _)| !found.contains(name));
    misfits.extend(found);
    let found =
        beneath_no_directory(&ledger.names, afters, |(name, after)| (*name, after.stat(*name, ledger)));
    afters.retain(|(name, _)| !found.contains(name));
    misfits.extend(found);
    for name in misfits {
        let path = ledger.names.path(name);
        warnings.lost(WarningKind::ExternalChange, None, || {
            format!(
                "{} was changed from outside while it was examined, and is left out",
                String::from_utf8_lossy(path)
            )
        });
    }
}

/// Finds the misfits among entries that are sorted by their records' paths.
///
/// `show` says whose entry it is, and what it tells of one state.
fn beneath_no_directory<T>(
    names: &Names,
    entries: &[T],
    show: impl Fn(&T) -> (NameId, Option<Stat>),
) -> HashSet<NameId, foldhash::fast::RandomState> {
    let mut misfits = HashSet::default();
    let at = |path: &[u8]| {
        let found = entries.binary_search_by(|entry| names.path(show(entry).0).cmp(path)).ok()?;
        let (record, stat) = show(&entries[found]);
        Some((record, stat?))
    };
    // Everything in a directory whose ancestors are directories has directories as its ancestors.
    let mut checked: &[u8] = b"/";
    for (record, stat) in entries.iter().map(&show) {
        let directory = crate::fs::parent_of(names.path(record)).unwrap_or(b"/");
        if stat.is_none() || directory == checked {
            continue;
        }
        let mut wrong = None;
        let mut above = directory;
        while let Some(parent) = crate::fs::parent_of(above) {
            if above == checked {
                break;
            }
            if let Some((ancestor, stat)) = at(above)
                && !stat.is_directory()
                && !misfits.contains(&ancestor)
            {
                wrong = Some(ancestor);
                break;
            }
            above = parent;
        }
        match wrong {
            None => checked = directory,
            Some(ancestor) => {
                misfits.insert(ancestor.max(record));
            }
        }
    }
    misfits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ledger::names::Name;

    #[test]
    fn a_changed_file_with_two_names_is_found_once() {
        let mut names = Names::default();
        let [a, b, c, d, e] =
            ["/a", "/b", "/c", "/d", "/e"].map(|path| names.add(path.into(), Name::default()));
        let files = [((1, 1), a), ((1, 2), b), ((1, 1), c), ((1, 3), d), ((1, 3), e)];
        let found = |is_changed: &dyn Fn(NameId) -> bool| named_twice(&files, |file| Some(*file), is_changed);
        assert_eq!(found(&|name| name == a), [(a, c)]);
        assert_eq!(found(&|name| name == c), [(a, c)]);
        assert_eq!(found(&|_| true), [(a, c), (d, e)]);
        assert_eq!(found(&|_| false), []);
    }

    /// The paths that are left of those that were met in this order, files but for those that end in
    /// a slash.
    fn left(met: &[&str]) -> Vec<String> {
        let mut names = Names::default();
        let mut records = Vec::new();
        for path in met {
            let mode = if path.ends_with('/') { libc::S_IFDIR } else { libc::S_IFREG };
            let path = path.trim_end_matches('/').as_bytes().to_vec();
            records.push((names.add(path, Name::default()), Some(Stat { mode, ..Stat::default() })));
        }
        records.sort_by_key(|(name, _)| names.path(*name));
        let misfits = beneath_no_directory(&names, &records, |entry| *entry);
        records.retain(|(name, _)| !misfits.contains(name));
        records.iter().map(|(name, _)| String::from_utf8(names.path(*name).to_vec()).unwrap()).collect()
    }

    #[test]
    fn what_was_met_later_yields() {
        assert_eq!(left(&["/d/", "/d/f", "/d/g"]), ["/d", "/d/f", "/d/g"]);
        assert_eq!(left(&["/d", "/d/f", "/d.x", "/d/e/g"]), ["/d", "/d.x"]);
        assert_eq!(left(&["/d/f", "/d/g", "/d", "/d/h"]), ["/d/f", "/d/g", "/d/h"]);
        assert_eq!(left(&["/d/e/f/g", "/d/e", "/d/e/h", "/d"]), ["/d/e/f/g", "/d/e/h"]);
        assert_eq!(left(&["/a", "/d/e/f", "/d/e", "/a/b/c"]), ["/a", "/d/e/f"]);
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_left_beneath_what_is_no_directory(
            met in proptest::collection::vec("(/[ab]){1,4}/?", 0..20),
        ) {
            let mut met: Vec<&str> = met.iter().map(String::as_str).collect();
            met.sort_by_key(|path| path.trim_end_matches('/'));
            met.dedup_by_key(|path| path.trim_end_matches('/'));
            let left = left(&met);
            let directory = |path: &str| met.iter().any(|met| met.strip_suffix('/') == Some(path));
            for path in &left {
                let beneath = |other: &&String| path.starts_with(&format!("{other}/"));
                assert!(left.iter().filter(beneath).all(|above| directory(above)), "{path} of {left:?}");
            }
        }
    }
}
