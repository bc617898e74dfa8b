//! Restores that were interrupted: found by the directories that they left, and settled before anything
//! else.
//!
//! Neighbours: `rescue_directory.rs` names the directories, `journal.rs` has what was begun, `settle.rs`
//! completes it or takes it back.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use super::error::{Error, failed};
use super::journal::{self, InterruptedJournal, JournalState};
use super::node::{RestorePolicy, User};
use super::request::RestoreRequest;
use super::rescue;
use super::rescue_directory::{
    end, family, is_abandoned, is_own_directory, lock_all, renumber, unfinished_base,
};
use super::root::Root;
use super::settle::Settler;
use super::targets::GitStateChoice;
use crate::fs::parent_of;
use crate::git::repository_of;
use crate::snapshot::change::PathEffect;
use crate::snapshot::request::is_same_request;
use crate::snapshot::{FileRecord, Snapshot, identity};

/// The directory of an unfinished restore: its journal, and its rescue if that was written.
#[derive(Debug)]
pub struct UnfinishedRescue {
    /// The directory.
    pub path: PathBuf,
    /// The rescue.
    pub snapshot: Option<Snapshot>,
}

/// The directories of the unfinished restores of the bundles `bundles` and of their rescues, in the order of
/// their numbers; some may still be running.
pub fn unfinished(bundles: &[Snapshot]) -> io::Result<Vec<UnfinishedRescue>> {
    let mut families: BTreeMap<PathBuf, HashSet<Vec<u8>>> = BTreeMap::new();
    for bundle in bundles {
        let (directory, base) = family(bundle.path())?;
        families.entry(directory).or_default().insert(base);
    }
    let mut found = Vec::new();
    for (directory, bases) in families {
        found.append(&mut find_unfinished(&directory, |base, rescue| {
            let is_of_several = |rescue: &Snapshot| {
                rescue::recordings(&rescue.header().command).iter().any(|id| bases.contains(id))
            };
            bases.contains(base) || rescue.is_some_and(is_of_several)
        })?);
    }
    Ok(found)
}

/// The rescues of `snapshot` whose restores were interrupted.
pub fn interrupted(snapshot: &Snapshot) -> Vec<UnfinishedRescue> {
    // What can't be read here is an error of the next restore.
    unfinished(snapshot.parts()).unwrap_or_default().into_iter().filter(is_interrupted).collect()
}

/// The rescues in `directory` whose restores were interrupted, whatever they are of.
pub fn interrupted_in(directory: &Path) -> io::Result<Vec<UnfinishedRescue>> {
    let mut found = find_unfinished(directory, |_, _| true)?;
    found.retain(is_interrupted);
    Ok(found)
}

/// The directories in `directory` of restores that were killed before they had changed any file, with what is known of
/// each: modes of directories may be widened, and locks of Git made.
pub fn abandoned_in(directory: &Path) -> io::Result<Vec<(PathBuf, Result<JournalState, Error>)>> {
    let found = find_unfinished(directory, |_, _| true)?.into_iter().filter(|one| one.snapshot.is_none());
    let states = found.map(|one| {
        let state = journal::find(&one.path);
        (one.path, state)
    });
    Ok(states.filter(|(_, state)| !matches!(state, Ok(JournalState::InUse))).collect())
}

/// Takes back what the abandoned restores in `directory` had begun, and gives each interrupted one a number of its own.
pub fn settle_abandoned(directory: &Path) -> Result<(), Error> {
    let _alone = lock_all(directory)?;
    let searched = || failed("search for unfinished rescues");
    let root = Root::live().map_err(failed("open /"))?;
    let policy = RestorePolicy::all(User::effective());
    for (path, state) in abandoned_in(directory).map_err(searched())? {
        match state {
            Ok(JournalState::Interrupted(journal)) => {
                let settler = Settler { root: &root, rescues: Vec::new(), policy: &policy, dry_run: false };
                settler.settle(&journal, &path)?;
            }
            Ok(JournalState::Missing) => {}
            // What it had begun is not known.
            Ok(JournalState::InUse) | Err(_) => continue,
        }
        // A directory with files of someone else stays.
        let _ = end(&path);
    }
    for one in interrupted_in(directory).map_err(searched())? {
        renumber(&one.path).map_err(failed("rename an unfinished rescue"))?;
    }
    Ok(())
}

/// An interrupted restore of another request that has changed some of the paths of this one: as long as it is neither
/// completed nor taken back, what it has overwritten is in its rescue alone.
pub fn in_the_way(snapshot: &Snapshot, request: &RestoreRequest) -> io::Result<Option<UnfinishedRescue>> {
    let is_chosen = |record: &&FileRecord| {
        let path = record.path.as_slice();
        let is_wanted = || request.choice.git_state(path, repository_of(path)) != GitStateChoice::Unwanted;
        request.choice.contains(path) && (!record.is_git_state || is_wanted())
    };
    let changed = changed_paths(snapshot.files().iter().filter(is_chosen));
    for directory in directories_of(snapshot)? {
        for one in interrupted_in(&directory)? {
            let Some(rescue) = &one.snapshot else { continue };
            if !is_same_request(&rescue.header().command, request.command)
                && is_about_the_same(&changed, &changed_paths(rescue.files().iter()))
            {
                return Ok(Some(one));
            }
        }
    }
    Ok(None)
}

/// The directories that the bundles of a snapshot and their rescues are in.
pub fn directories_of(snapshot: &Snapshot) -> io::Result<BTreeSet<PathBuf>> {
    snapshot.parts().iter().map(|part| Ok(family(part.path())?.0)).collect()
}

fn changed_paths<'a>(records: impl Iterator<Item = &'a FileRecord>) -> HashSet<&'a [u8]> {
    let is_change = |record: &&FileRecord| PathEffect::of(record).lasts();
    records.filter(is_change).map(|record| record.path.as_slice()).collect()
}

/// Whether a path of the one is, or is above, one of the other.
fn is_about_the_same(one: &HashSet<&[u8]>, other: &HashSet<&[u8]>) -> bool {
    let is_at_or_below = |path: &[u8], places: &HashSet<&[u8]>| {
        std::iter::successors(Some(path), |path| parent_of(path)).any(|above| places.contains(above))
    };
    one.iter().any(|path| is_at_or_below(path, other)) || other.iter().any(|path| is_at_or_below(path, one))
}

fn is_interrupted(one: &UnfinishedRescue) -> bool {
    one.snapshot.is_some() && !is_running(&one.path)
}

/// Whether the restore goes on whose rescue is in `directory`.
pub fn is_running(directory: &Path) -> bool {
    matches!(journal::find(directory), Ok(JournalState::InUse))
}

/// The unfinished restores in `directory`, of those that may be by the name of their snapshot and their rescue.
fn find_unfinished(
    directory: &Path,
    may_be: impl Fn(&[u8], Option<&Snapshot>) -> bool,
) -> io::Result<Vec<UnfinishedRescue>> {
    let entries = match std::fs::read_dir(directory) {
        // Of a library that another process is still making.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(base) = unfinished_base(&name).filter(|_| is_own_directory(&path)) else { continue };
        let snapshot = Snapshot::open(&path).ok().filter(is_ours);
        // With a rescue of their own, another user could claim that our files are half written.
        if may_be(base, snapshot.as_ref()) && (snapshot.is_some() || is_abandoned(&path)) {
            found.push(UnfinishedRescue { path, snapshot });
        }
    }
    found.sort_by_key(|one| (one.path.as_os_str().len(), one.path.clone()));
    Ok(found)
}

/// Whether this user wrote the rescue on this machine: another's could claim that our files are half
/// written.
fn is_ours(snapshot: &Snapshot) -> bool {
    let header = snapshot.header();
    let user = rustix::process::geteuid().as_raw();
    !header.kind.is_recording()
        && header.uid == user
        && snapshot.owner() == Some(user)
        && header.host.machine == identity::machine_id_hash().to_string()
}

/// Interrupted restores of a snapshot and of its rescues.
pub struct InterruptedRestores {
    /// Those of the same command, which is completed, in the order of their paths.
    pub own: Vec<UnfinishedRescue>,
    /// Those of other commands.
    pub others: Vec<UnfinishedRescue>,
    /// Whether the snapshot itself is the rescue of an interrupted restore.
    pub itself: bool,
    /// The directory and the journal of each.
    pub journals: Vec<(PathBuf, InterruptedJournal)>,
}

impl InterruptedRestores {
    /// Finds those of `snapshot` and of its rescues.
    pub fn find(snapshot: &Snapshot, request: &RestoreRequest) -> Result<InterruptedRestores, Error> {
        let path = snapshot.path().canonicalize().map_err(failed("resolve the snapshot"))?;
        let searched = failed("search for unfinished rescues");
        let found = unfinished(snapshot.parts()).map_err(searched)?;
        let mut interrupted =
            InterruptedRestores { own: Vec::new(), others: Vec::new(), itself: false, journals: Vec::new() };
        let name = Some(rescue::name(&snapshot.header().id));
        for one in found {
            match journal::find(&one.path)? {
                JournalState::InUse => continue,
                JournalState::Interrupted(journal) => interrupted.journals.push((one.path.clone(), journal)),
                JournalState::Missing => {}
            }
            let header = one.snapshot.as_ref().map(Snapshot::header);
            if one.path == path {
                interrupted.itself = true;
            } else if header.is_some_and(|header| {
                header.name == name && is_same_request(&header.command, request.command)
            }) {
                interrupted.own.push(one);
            } else {
                interrupted.others.push(one);
            }
        }
        Ok(interrupted)
    }

    /// The rescues that have the states of half-written files, those of the same command last.
    pub fn sources<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Snapshot> {
        let itself = self.itself.then_some(snapshot);
        let names: Vec<String> =
            snapshot.parts().iter().map(|part| rescue::name(&part.header().id)).collect();
        let others = self.others.iter().filter_map(|one| one.snapshot.as_ref());
        let others =
            others.filter(move |one| one.header().name.as_ref().is_some_and(|name| names.contains(name)));
        itself.into_iter().chain(others).chain(self.own.iter().filter_map(|one| one.snapshot.as_ref()))
    }

    /// The files to which they were to give inode flags at the end.
    pub fn flags_due(&self) -> Vec<(&[u8], (u64, u64))> {
        self.journals.iter().flat_map(|(_, journal)| journal.flags_due()).collect()
    }

    /// A journal that is there until the same command is completed, whatever else is interrupted.
    pub fn lasting_journal(&self) -> Option<&InterruptedJournal> {
        let is_own = |path: &PathBuf| self.own.iter().any(|one| one.path == *path);
        self.journals.iter().find(|(path, _)| is_own(path)).map(|(_, journal)| journal)
    }

    /// Completes or takes back what each of them had begun; in a dry run, returns the paths where that
    /// would be done.
    pub fn settle(
        &self,
        snapshot: &Snapshot,
        root: &Root,
        request: &RestoreRequest,
    ) -> Result<BTreeSet<Vec<u8>>, Error> {
        let all = self.own.iter().chain(&self.others).filter_map(|one| one.snapshot.as_ref());
        let mut rescues: Vec<&Snapshot> = all.chain(self.itself.then_some(snapshot)).collect();
        rescues.sort_by_key(|one| std::cmp::Reverse((one.path().as_os_str().len(), one.path().to_owned())));
        let settler = Settler { root, rescues, policy: request.policy, dry_run: request.dry_run };
        let mut begun = BTreeSet::new();
        for (path, journal) in self.journals.iter().rev() {
            begun.append(&mut settler.settle(journal, path)?);
        }
        if !request.dry_run {
            for one in self.others.iter().filter(|one| one.snapshot.is_none()) {
                // A directory with files of someone else stays.
                let _ = end(&one.path);
            }
        }
        Ok(begun)
    }
}
