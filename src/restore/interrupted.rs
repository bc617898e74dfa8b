//! Restores that came to no end: found by the directories that they left, and settled before anything else.
//!
//! Neighbours: `rescue_directory.rs` names the directories, `journal.rs` has what was begun, `settle.rs`
//! completes or takes it back.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{Error, failed};
use super::journal::{self, Found};
use super::place::Place;
use super::request::Wish;
use super::rescue;
use super::rescue_directory::{end, family, is_abandoned, is_own_directory, is_unfinished_name};
use super::settle::Settler;
use crate::snapshot::{Snapshot, SnapshotKind, live};

/// The directory of a restore that came to no end: its journal, and its rescue if it came so far.
#[derive(Debug)]
pub struct Unfinished {
    /// The directory.
    pub path: PathBuf,
    /// The rescue.
    pub snapshot: Option<Snapshot>,
}

/// The directories of the restores of the snapshot `snap`, or of its rescues, that came to no end, or
/// have not yet; in the order of their numbers.
pub fn unfinished(snap: &Path) -> io::Result<Vec<Unfinished>> {
    let (directory, base) = family(snap)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if !is_unfinished_name(&base, &entry.file_name()) || !is_own_directory(&path) {
            continue;
        }
        let snapshot = Snapshot::open(&path).ok().filter(is_ours);
        // Another's rescue, with a manifest of its own, could say that files of ours were half done.
        if snapshot.is_some() || is_abandoned(&path) {
            found.push(Unfinished { path, snapshot });
        }
    }
    found.sort_by_key(|one| (one.path.as_os_str().len(), one.path.clone()));
    Ok(found)
}

/// The rescues of the snapshot `snap` whose restores were interrupted.
pub fn interrupted(snap: &Path) -> Vec<PathBuf> {
    let is_dead = |one: &Unfinished| !matches!(journal::find(&one.path), Ok(journal::Found::Alive));
    // What can't be looked at is told by a restore.
    let found = unfinished(snap).unwrap_or_default().into_iter();
    found.filter(|one| one.snapshot.is_some() && is_dead(one)).map(|one| one.path).collect()
}

/// Whether we wrote the rescue: another's could say that files of ours are half done.
fn is_ours(snapshot: &Snapshot) -> bool {
    let header = snapshot.header();
    let user = nix::unistd::geteuid().as_raw();
    header.kind == SnapshotKind::Rescue
        && header.uid == user
        && snapshot.owner() == Some(user)
        && header.host.machine == live::machine_id_hash().to_string()
}

/// Restores of the same snapshot and of its rescues that were killed.
pub struct Killed {
    /// Those of the same command, which is completed, in the order of their paths.
    pub own: Vec<Unfinished>,
    /// Those of others.
    pub others: Vec<Unfinished>,
    /// Whether the snapshot is itself the rescue of a restore that was killed.
    pub itself: bool,
    /// What each had begun, and where its journal is.
    pub journals: Vec<(PathBuf, journal::Killed)>,
}

impl Killed {
    /// Finds those of `snapshot` and of its rescues.
    pub fn find(snapshot: &Snapshot, wish: &Wish) -> Result<Killed, Error> {
        let path = snapshot.path().canonicalize().map_err(failed("resolve the snapshot"))?;
        let looked = failed("look for unfinished rescues");
        let command = rescue::command(snapshot.path(), wish.goal, wish.paths);
        let (found, command) = unfinished(&path).and_then(|found| Ok((found, command?))).map_err(looked)?;
        let mut killed = Killed { own: Vec::new(), others: Vec::new(), itself: false, journals: Vec::new() };
        let name = Some(rescue::name(&snapshot.header().id));
        for one in found {
            match journal::find(&one.path)? {
                Found::Alive => continue,
                Found::Killed(journal) => killed.journals.push((one.path.clone(), journal)),
                Found::Nothing => {}
            }
            let header = one.snapshot.as_ref().map(Snapshot::header);
            if one.path == path {
                killed.itself = true;
            } else if header.is_some_and(|header| header.name == name && header.command == command) {
                killed.own.push(one);
            } else {
                killed.others.push(one);
            }
        }
        Ok(killed)
    }

    /// The rescues that tell what was half done, those of the same command last.
    pub fn sources<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Snapshot> {
        let itself = self.itself.then_some(snapshot);
        let name = rescue::name(&snapshot.header().id);
        let others = self.others.iter().filter_map(|one| one.snapshot.as_ref());
        let others = others.filter(move |one| one.header().name.as_ref() == Some(&name));
        itself.into_iter().chain(others).chain(self.own.iter().filter_map(|one| one.snapshot.as_ref()))
    }

    /// Completes or takes back what each of them had begun; of a dry run, the paths where it would be done.
    pub fn settle(
        &self,
        snapshot: &Snapshot,
        place: &Place,
        wish: &Wish,
    ) -> Result<BTreeSet<Vec<u8>>, Error> {
        let all = self.own.iter().chain(&self.others).filter_map(|one| one.snapshot.as_ref());
        let mut rescues: Vec<&Snapshot> = all.chain(self.itself.then_some(snapshot)).collect();
        rescues.sort_by_key(|one| std::cmp::Reverse((one.path().as_os_str().len(), one.path().to_owned())));
        let settler = Settler { place, rescues, policy: wish.policy, dry_run: wish.dry_run };
        let mut begun = BTreeSet::new();
        for (path, journal) in self.journals.iter().rev() {
            begun.append(&mut settler.settle(journal, path)?);
        }
        if !wish.dry_run {
            for one in self.others.iter().filter(|one| one.snapshot.is_none()) {
                // One with what is no business of ours stays.
                let _ = end(&one.path);
            }
        }
        Ok(begun)
    }
}
