//! The end of a recording: the states after, and the manifest's records of it all.
//!
//! - `examine.rs`: takes the state of each path, as one of `after.rs`.
//! - `misfits.rs`: leaves out what contradicts other records.
//! - `records.rs`: the records, made one by one.
//!
//! Neighbours: the ledger has what is known, `capture.rs` what became of the bytes.

mod after;
mod examine;
mod misfits;
mod records;

use std::fs::File;
use std::io;

use self::after::{After, AfterContent};
use self::examine::{Examined, Examiner};
pub use self::records::Files;
pub(super) use self::records::{git_state, present, put_attributes};
use super::ledger::ids::NameId;
use super::ledger::inodes::Content;
use super::recorder::Recorder;
use super::recording::Recording;
use crate::git::ObservedRepository;
use crate::snapshot::{BlobOmitted, GitRepository, Keep, ProcessRecord, Suppressed, Warning, WarningKind};

/// What a recording has come to.
pub struct Recorded {
    /// Which states and bytes are kept.
    pub keep: Keep,
    /// How many paths were only asked for and have no record; none if all such paths have one.
    pub existence_only: Option<u64>,
    /// The gaps and notes.
    pub warnings: Vec<Warning>,
    /// What the rules left out.
    pub suppressed: Vec<Suppressed>,
    /// The repositories that were observed.
    pub repositories: Vec<GitRepository>,
    /// The processes of the tree.
    pub processes: Vec<ProcessRecord>,
    /// The finished blobs.parquet, if it has a row; or why it could not be written.
    pub blobs: io::Result<Option<File>>,
    /// The records.
    pub files: Files,
}

impl Recorder {
    /// Takes the states after the end of the tree.
    ///
    /// # Errors
    /// A sentence, where a fault of ours has ended the recording early.
    pub fn finish(&self) -> Result<Recorded, String> {
        let mut known = self.take_state()?;
        let names = known.ledger.names.sorted();
        let Examined { mut afters, existence_only } = Examiner::new(&mut known).examine_all(names);
        known.omit_what_is_gone(&afters);
        for directory in known.resolver.changed_outside() {
            known.warnings.lost(WarningKind::ExternalChange, None, || {
                format!(
                    "{} was replaced from outside: paths below it may be recorded under a wrong name",
                    String::from_utf8_lossy(&directory)
                )
            });
        }
        misfits::warn_files_named_twice(&known.ledger, &mut known.warnings, &afters);
        misfits::leave_out_misfits(&known.ledger, &mut known.warnings, &mut afters);
        let Recording { policy, ledger, mut repositories, processes, byte_store, mut warnings, .. } = known;
        let mut finished = byte_store.capture.finish();
        for (name, after) in afters.iter().filter(|(_, after)| !matches!(after, After::NotKept)) {
            let content_before = ledger.before(*name).map_or(Content::Unneeded, |inode| inode.content);
            let size_before = ledger.before(*name).map_or(0, |inode| inode.before.size);
            let size_after = after.stat(*name, &ledger).map_or(0, |stat| stat.size);
            let taken = [
                match content_before {
                    Content::Read(ticket) | Content::Digested(ticket) => Some((ticket, size_before, false)),
                    Content::Kept(ticket) => Some((ticket, size_before, true)),
                    _ => None,
                },
                match after.content() {
                    AfterContent::Taken(ticket) => Some((ticket, size_after, true)),
                    // With the digest it has all that the level of the recording asks for.
                    AfterContent::Digested(ticket) => {
                        let has_digest = finished.outcome(ticket, size_after).digest.is_some();
                        (!has_digest).then_some((ticket, size_after, true))
                    }
                    _ => None,
                },
            ];
            for (ticket, size, needed) in taken.into_iter().flatten() {
                let Some(reason) = finished.outcome(ticket, size).omitted else { continue };
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
        let blobs = std::mem::replace(&mut finished.blobs, Ok(None));
        Ok(Recorded {
            keep: byte_store.keep,
            existence_only,
            warnings: warnings.into_vec(),
            suppressed: policy.into_suppressed(),
            repositories: repositories.observed().into_iter().map(git_repository).collect(),
            processes: processes.into_records(),
            blobs,
            files: Files { ledger, repositories, finished, afters },
        })
    }
}

impl Recording {
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
    let ObservedRepository { root, head, dirty, head_after } = observed;
    GitRepository {
        root,
        head: head.map(|id| id.to_string()),
        dirty,
        head_after: head_after.map(|id| id.to_string()),
    }
}
