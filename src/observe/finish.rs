//! The end of a recording: the states after, and the manifest's records of it all.
//!
//! - `examine.rs`: takes the state of each path, as one of `after.rs`.
//! - `open_files.rs`: what the tree may go on to change after interim states were taken.
//! - `misfits.rs`: leaves out what contradicts other records.
//! - `pins.rs`: stores the bytes that Git has lost meanwhile.
//! - `records.rs`: the records, made one by one.
//!
//! Neighbours: the ledger has what is known, `capture.rs` what became of the bytes.

pub(super) mod after;
mod examine;
mod misfits;
mod open_files;
mod pins;
mod records;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;

use self::after::{After, AfterContent, Interim};
use self::examine::{Examined, Examiner};
use self::open_files::OpenFiles;
pub use self::records::Files;
pub(super) use self::records::{git_status, present_before, put};
use self::records::{mere_mount_points, relinked_names};
use super::calls::inherited::InheritedFile;
use super::ledger::ids::NameId;
use super::ledger::inodes::Content;
use super::ledger::{ChangesSinceInterim, Ledger};
use super::policy::Exclusion;
use super::policy::ignore::RuleId;
use super::recorder::Recorder;
use super::recording::Recording;
use super::resolve;
use crate::git::{HeadBranch, ObservedRepository};
use crate::snapshot::{
    BlobOmitted, GitRepository, NetworkUse, PrivateMount, RecordedProcess, RefusedUse, Stat, Suppressed,
    Told, Unrepeatable, Warning, WarningKind,
};

/// What a recording has come to.
pub struct Recorded<'a> {
    /// How many paths were only asked for and have no record; none if all such paths have one.
    pub existence_only: Option<u64>,
    /// The gaps and notes.
    pub warnings: Vec<Warning>,
    /// What the rules left out.
    pub suppressed: Vec<Suppressed>,
    /// The mounts of the tree's own namespaces whose content is gone with those.
    pub private_mounts: Vec<PrivateMount>,
    /// What the tree has made, and of which nothing is known.
    pub unseen: Vec<Vec<u8>>,
    /// The repositories that were observed.
    pub repositories: Vec<GitRepository>,
    /// The socket addresses that were used.
    pub network: Vec<NetworkUse>,
    /// What was refused because of rules.
    pub refused: Vec<RefusedUse>,
    /// What no record tells, if the recording is to be recalled.
    pub unrepeatable: Unrepeatable,
    /// The processes of the tree.
    pub processes: Vec<RecordedProcess>,
    /// The finished blobs.parquet, if it has a row; or why it could not be written.
    pub blobs: io::Result<Option<File>>,
    /// The records.
    pub files: Files<'a>,
}

/// Some files as a recording has left them, by path.
#[derive(Debug, Default)]
pub struct LeftFiles(HashMap<Vec<u8>, Stat>);

impl LeftFiles {
    /// Whether a file was found as it was left and is so still, if it is one of these.
    pub fn has(&self, file: &InheritedFile) -> bool {
        self.0
            .get(file.path())
            .is_none_or(|left| left.same_content(&file.stat()) && !is_written_since(file.path(), left))
    }

    /// The paths of those that have been written since.
    pub fn outdated(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(|(path, left)| is_written_since(path, left)).map(|(path, _)| path.as_slice())
    }
}

fn is_written_since(path: &[u8], left: &Stat) -> bool {
    let now = crate::fs::lstat(path).ok().flatten();
    now.is_some_and(|now| !left.same_content(&(&now).into()))
}

impl Recorder {
    /// Takes the states after the end of the tree, and passes all that the manifest says to `commit`.
    ///
    /// # Errors
    /// What `commit` returns, or a sentence that a fault of ours ended the recording early.
    pub fn finish<T>(&self, commit: impl FnOnce(Recorded<'_>) -> Result<T, String>) -> Result<T, String> {
        self.take_state()?.finish(None, commit)
    }

    /// Takes the states for a first snapshot, whose blobs.parquet is to be `blobs`, an empty file; the recording
    /// goes on.
    ///
    /// What was found is found again by [`Recorder::finish`] where no call of the tree changes it meanwhile.
    ///
    /// # Errors
    /// As in [`Recorder::finish`].
    pub fn finish_first<T>(
        &self,
        blobs: File,
        commit: impl FnOnce(Recorded<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let failed = Err("the recorder failed".to_owned());
        self.guarded(failed, |recording| recording.finish(Some(blobs), commit))
    }
}

impl Recording {
    fn finish<T>(
        &mut self,
        first_blobs: Option<File>,
        commit: impl FnOnce(Recorded<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        // What is closed after this is examined after its last change.
        let open = first_blobs.is_some().then(|| OpenFiles::of(self.processes.living()));
        let mut names = self.ledger.names.sorted();
        self.list_git_changes(&names);
        let may_lose_pins = self.may_have_lost_objects(&names);
        self.unrepeatable.git_object = self.added_git_object(&names);
        if self.random_bytes.were_asked_for() {
            self.unrepeatable.told.insert(Told::RandomBytes);
        }
        names.retain(|name| !self.is_left_alone(*name));
        let Examined { mut afters, existence_only, kept, unseen } =
            Examiner::new(self, first_blobs.is_some()).examine_all(names);
        if self.ledger.notes_change_times() {
            self.note_taken(&afters, &kept);
        }
        self.leave_out_unchanged_git_state(&mut afters);
        self.forget_what_came_and_went(&afters);
        self.warn_private_mounts_that_stay();
        // What a call in flight renames may seem to be at neither name: only the last snapshot says what is missing.
        let is_at_rest = first_blobs.is_none() || !self.ledger.in_flight.changes_paths();
        if is_at_rest {
            if may_lose_pins {
                self.store_lost_pins(&afters);
            }
            self.omit_what_is_gone(&afters);
        }
        let is_left_out = |path: &[u8]| {
            // Of a repository's own directory, the state is recorded all the same.
            matches!(self.policy.exclusion(path, None), Some(Exclusion::Rule(rule, _)) if rule != RuleId::GIT)
        };
        let changed = if is_at_rest { self.resolver.changed_outside() } else { Vec::new() };
        // A wrong name matters only to what has a record that says anything of it.
        let has_inputs = self.byte_store.keep.has_inputs();
        let has_records = |directory: &[u8]| {
            let is_told = |(name, after): &(NameId, After)| {
                let path = self.ledger.names.path(*name);
                let came_and_went = self.ledger.before(*name).is_none() && matches!(after, After::Absent(_));
                path != directory && resolve::is_below(path, directory) && !came_and_went
            };
            has_inputs || afters.iter().any(is_told)
        };
        let matters = |directory: &Vec<u8>| !is_left_out(directory) && has_records(directory);
        let changed: Vec<_> = changed.into_iter().filter(matters).collect();
        let unreadable = self.repositories.unreadable().map(<[u8]>::to_vec);
        let unreadable: Vec<_> = unreadable.filter(matters).collect();
        for directory in changed {
            self.warnings.lost(WarningKind::ExternalChange, None, || {
                format!(
                    "{} was replaced from outside: paths below it may be recorded under a wrong name",
                    String::from_utf8_lossy(&directory)
                )
            });
        }
        for directory in unreadable {
            self.warnings.lost(WarningKind::ContentOmitted, None, || {
                format!(
                    "what Git knows of the paths in {} is not recorded: the repository borrows objects that can't be \
                     followed (objects/info/alternates, a cycle perhaps)",
                    String::from_utf8_lossy(&directory)
                )
            });
        }
        let is_found_now = |name| !kept.contains(&name);
        if is_at_rest {
            misfits::warn_files_named_twice(&self.ledger, &mut self.warnings, &afters, is_found_now);
            misfits::warn_changes_without_a_name(&self.ledger, &mut self.warnings, &afters);
            misfits::leave_out_misfits(&self.ledger, &mut self.warnings, &mut afters);
        }
        let capture = &mut self.byte_store.capture;
        let blobs = match first_blobs {
            None => capture.finish(),
            Some(copy) => capture.copy_to(&copy).map(|has_rows| has_rows.then_some(copy)),
        };
        let (ledger, capture) = (&self.ledger, &self.byte_store.capture);
        // What a first snapshot does not have, the last one may.
        let mut warnings = self.warnings.clone();
        for (name, after) in afters.iter().filter(|(_, after)| !matches!(after, After::NotKept)) {
            let content_before = ledger.before(*name).map_or(Content::Unneeded, |inode| inode.content);
            let size_before = ledger.before(*name).map_or(0, |inode| inode.before.size);
            let size_after = after.stat(*name, ledger).map_or(0, |stat| stat.size);
            let taken = [
                match content_before {
                    Content::Read(ticket) | Content::Digested(ticket) => Some((ticket, size_before, false)),
                    Content::Kept(ticket) => Some((ticket, size_before, true)),
                    _ => None,
                },
                match after.content() {
                    AfterContent::Taken(ticket) => Some((ticket, size_after, true)),
                    _ => None,
                },
            ];
            let omitted = taken
                .into_iter()
                .flatten()
                .filter_map(|(ticket, size, needed)| Some((capture.outcome(ticket, size).omitted?, needed)));
            let omitted = omitted.chain(match after.content() {
                AfterContent::Omitted(reason) => Some((reason, true)),
                _ => None,
            });
            for (reason, needed) in omitted {
                let path = ledger.names.path(*name);
                let detail = || {
                    format!(
                        "the bytes of {} are not stored ({})",
                        String::from_utf8_lossy(path),
                        reason.name()
                    )
                };
                if needed || reason != BlobOmitted::TooLarge {
                    warnings.lost(WarningKind::ContentOmitted, None, detail);
                } else {
                    warnings.note(WarningKind::ContentOmitted, None, detail);
                }
            }
        }
        let repositories = self.repositories.observed().into_iter().map(git_repository).collect();
        let committed = commit(Recorded {
            existence_only,
            warnings: warnings.into_vec(),
            suppressed: self.policy.suppressed(),
            private_mounts: self.mounts.private(),
            unseen: unseen.into_iter().map(|name| ledger.names.path(name).to_vec()).collect(),
            repositories,
            network: self.network.uses(),
            refused: self.enforcer.as_ref().map(|enforcer| enforcer.refused().to_vec()).unwrap_or_default(),
            unrepeatable: self.unrepeatable.clone(),
            processes: self.processes.all_recorded(),
            blobs,
            files: Files {
                ledger,
                repositories: &self.repositories,
                capture,
                processes: &self.processes,
                afters: &afters,
                mount_points: mere_mount_points(ledger, &afters),
                relinked: relinked_names(ledger, &afters),
                extracted: &self.git_state.extracted,
            },
        });
        // Also if there is no first snapshot: what was taken over from earlier is in these.
        if let Some(open) = open {
            self.goes_on_from(Interim { afters, open, yielded: HashSet::new() });
        }
        committed
    }

    /// What is on a private mount lasts as long as somebody outside of the tree holds its namespace.
    fn warn_private_mounts_that_stay(&mut self) {
        let is_of_tree = |process| self.processes.living_id(process).is_some();
        if let Some(process) = self.mounts.outside_holder(is_of_tree) {
            self.warnings.note(WarningKind::MountNamespace, None, || {
                format!(
                    "process {process}, which is not of the command, is in its mount namespace: what was changed on \
                     private mounts there may last"
                )
            });
        }
    }

    /// A path that was absent at its first use and is absent now has not been there as far as an undo is concerned,
    /// nor has anything beneath it: somebody else has made it meanwhile, and the tree has removed it.
    fn forget_what_came_and_went(&mut self, afters: &[(NameId, After)]) {
        let mut gone: Option<Vec<u8>> = None;
        for (name, _) in afters.iter().filter(|(_, after)| matches!(after, After::Absent(_))) {
            let path = self.ledger.names.path(*name);
            let is_beneath = gone.as_ref().is_some_and(|gone| resolve::is_below(path, gone));
            let appeared = self.ledger.names.get(*name).appeared;
            if appeared && !is_beneath {
                gone = Some(path.to_vec());
            }
            if appeared || is_beneath {
                self.ledger.names.get_mut(*name).before = None;
            }
        }
    }

    /// An object that the tree has added to a repository, if what it sees is noted.
    fn added_git_object(&self, names: &[NameId]) -> Option<Vec<u8>> {
        let is_added = |name: &&NameId| {
            self.ledger.names.get(**name).before.is_none()
                && self.is_left_alone(**name)
                && crate::fs::lstat(self.ledger.names.path(**name)).is_ok_and(|stat| stat.is_some())
        };
        let added = names.iter().filter(|_| self.ledger.for_recall).find(is_added)?;
        Some(self.ledger.names.path(*added).to_vec())
    }

    /// Takes the states of what the tree has changed so far: what somebody else changes from now on is no change
    /// of the tree.
    pub fn take_interim_states(&mut self) {
        if !self.ledger.in_flight.changes_paths() {
            self.resolver.note_replaced();
        }
        let open = OpenFiles::of(self.processes.living());
        let yielded = self.interim.as_ref().map(|interim| interim.yielded.clone()).unwrap_or_default();
        let names = self.ledger.names.sorted();
        let Examined { afters, kept, .. } = Examiner::new(self, true).examine_all(names);
        self.note_taken(&afters, &kept);
        self.byte_store.capture.release_files();
        self.goes_on_from(Interim { afters, open, yielded });
    }

    /// Notes that these states have been taken now, but for those `kept` from earlier.
    fn note_taken(
        &mut self,
        afters: &[(NameId, After)],
        kept: &HashSet<NameId, foldhash::fast::RandomState>,
    ) {
        let names = afters.iter().map(|(name, _)| *name);
        self.ledger.note_taken(names.filter(|name| !kept.contains(name)));
    }

    /// Takes the states of all that the tree has changed, or has open: what is changed from now on without a call of the
    /// tree is not its own. Returns the states of what it has open.
    pub fn leave_open_files(&mut self) -> LeftFiles {
        let open = self.take_last_states();
        self.left_files(|path, stat| open.may_contain(path, stat.identity()))
    }

    /// As [`Recording::leave_open_files`], but the states of these files are taken in any case, changed or not, and
    /// returned, by all names that the recording has of them.
    pub fn leave_files(&mut self, files: &[InheritedFile]) -> LeftFiles {
        let identities: HashSet<(u64, u64)> = files.iter().map(|file| file.stat().identity()).collect();
        self.take_again(files.iter().map(|file| (file.path(), file.stat().identity())));
        self.left_files(|_, stat| identities.contains(&stat.identity()))
    }

    /// As [`Recording::leave_open_files`], but for files that were left before and may have been written to since:
    /// their states are taken once more, and returned.
    pub fn leave_again(&mut self, files: &LeftFiles) -> LeftFiles {
        self.take_again(files.0.iter().map(|(path, stat)| (path.as_slice(), stat.identity())));
        self.left_files(|path, _| files.0.contains_key(path))
    }

    /// Takes the last states, those of these files in any case.
    fn take_again<'f>(&mut self, files: impl Iterator<Item = (&'f [u8], (u64, u64))>) {
        let Ledger { names, inodes, changes_since_interim, .. } = &mut self.ledger;
        let changes = changes_since_interim.get_or_insert_default();
        for (path, identity) in files {
            changes.names.extend(names.find(path).map(|name| (name, false)));
            changes.inodes.extend(inodes.find(identity));
        }
        self.take_last_states();
    }

    /// Takes interim states that count as the last ones, whatever the tree has open: that is returned.
    fn take_last_states(&mut self) -> OpenFiles {
        self.take_interim_states();
        let open =
            self.interim.as_mut().map(|interim| std::mem::replace(&mut interim.open, OpenFiles::none()));
        open.unwrap_or_else(OpenFiles::none)
    }

    /// The files, of those in the interim states, that are wanted and not another recording's.
    fn left_files(&self, is_wanted: impl Fn(&[u8], &Stat) -> bool) -> LeftFiles {
        let afters = self
            .interim
            .iter()
            .flat_map(|interim| interim.afters.iter().filter(|(name, _)| !interim.yielded.contains(name)));
        let files = afters.filter_map(|(name, after)| {
            let (path, stat) = (self.ledger.names.path(*name), after.stat(*name, &self.ledger)?);
            is_wanted(path, &stat).then(|| (path.to_vec(), stat))
        });
        LeftFiles(files.collect())
    }

    /// Goes on from interim states: what is changed from now on is noted. What a call in flight may be changing is looked at
    /// again.
    fn goes_on_from(&mut self, mut interim: Interim) {
        let Ledger { names, in_flight, .. } = &self.ledger;
        interim.afters.retain(|(name, _)| !in_flight.may_change(names.path(*name)));
        self.ledger.changes_since_interim = Some(ChangesSinceInterim::default());
        self.interim = Some(interim);
    }

    /// Tells of inodes that were renamed, and whose bytes are at no recorded name any more.
    fn omit_what_is_gone(&mut self, afters: &[(NameId, After)]) {
        for (name, _) in afters {
            if let Some(id) = self.ledger.names.get(*name).before
                && self.ledger.inodes.get(id).content == Content::InPlace
            {
                self.protector().warn_omitted(id, BlobOmitted::Unreadable);
                self.ledger.inodes.get_mut(id).content = Content::Omitted(BlobOmitted::Unreadable);
            }
        }
    }
}

fn git_repository(observed: ObservedRepository) -> GitRepository {
    let ObservedRepository { root, head, dirty, head_after, branch, branch_after } = observed;
    let name = |branch| match branch {
        HeadBranch::Named(name) => Some(name),
        HeadBranch::Detached | HeadBranch::Unknown => None,
    };
    GitRepository {
        root,
        head: head.map(|id| id.to_string()),
        dirty,
        head_after: head_after.map(|id| id.to_string()),
        branch: name(branch),
        branch_after: branch_after.map(|branch| name(branch).unwrap_or_default()),
    }
}
