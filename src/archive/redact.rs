//! What of a snapshot is not for others: the contents of secret files, and secrets in command lines.
//!
//! The table of both is `snapshot::secrets`. Here a secret file is found under all of its names: those that it was
//! renamed from and to, its hard links, and copies that have its digest, blob or Git object.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::fs;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{LinkedFile, is_untouched, state};
use crate::snapshot::digest::digest_file;
use crate::snapshot::live;
use crate::snapshot::secrets::{PrivateKeyFinder, REDACTED, Secrets, mask, redact};
use crate::snapshot::source::Contents;
use crate::snapshot::{BlobOmitted, Digest, Exec, FileRecord, FileType, Header, Present, State};

/// PATH_MAX of linux/limits.h.
const MAX_TARGET: usize = 4096;

/// What is withheld of a snapshot.
pub struct Redaction {
    /// Whether anything is.
    redacts: bool,
    /// By the number of the record: whether it is of a secret file.
    secret: Vec<bool>,
    withheld: WithheldContents,
}

/// The blobs, digests, objects and files that have a withheld content, under whatever path.
#[derive(Default)]
struct WithheldContents {
    blobs: HashSet<String>,
    digests: HashSet<Digest>,
    oids: HashSet<String>,
    files: HashSet<LinkedFile>,
}

impl Redaction {
    /// What is withheld of `records`; nothing without `secrets`.
    pub fn new(records: &[&FileRecord], secrets: Option<&Secrets>, contents: &Contents) -> Redaction {
        let mut withheld = WithheldContents::default();
        let Some(secrets) = secrets else {
            return Redaction { redacts: false, secret: Vec::new(), withheld };
        };
        let secret: Vec<bool> = records.iter().map(|record| is_secret(record, secrets, contents)).collect();
        for (record, _) in records.iter().zip(&secret).filter(|(_, is_secret)| **is_secret) {
            [Side::Before, Side::After].into_iter().for_each(|side| withheld.add(record, side));
            withheld.digests.extend(live_digest(record));
        }
        // A hard link of a secret has its digest, by which copies are found.
        loop {
            let known = withheld.len();
            for record in records {
                for side in [Side::Before, Side::After] {
                    if withheld.has(record, side) {
                        withheld.add(record, side);
                    }
                }
            }
            if withheld.len() == known {
                break;
            }
        }
        Redaction { redacts: true, secret, withheld }
    }

    /// The record of this number without what is withheld.
    pub fn record<'r>(&self, number: usize, record: &'r FileRecord) -> Cow<'r, FileRecord> {
        if !self.redacts {
            return Cow::Borrowed(record);
        }
        let is_secret = self.secret.get(number).is_some_and(|is_secret| *is_secret);
        let [before, after] =
            [Side::Before, Side::After].map(|side| is_secret || self.withheld.has(record, side));
        let has_target = |state: &State| state.present().is_some_and(|present| present.target.is_some());
        if !before && !after && !has_target(&record.before) && !has_target(&record.after) {
            return Cow::Borrowed(record);
        }
        let pinned = [Side::Before, Side::After].map(|side| oid(record, side).is_some());
        let mut record = record.clone();
        let states = [(&mut record.before, before, pinned[0]), (&mut record.after, after, pinned[1])];
        for (state, is_withheld, is_pinned) in states {
            let State::Present(present) = state else { continue };
            if is_withheld {
                withhold(present, is_pinned);
            }
            mask_target(present);
        }
        // A pin of one state is the identity of the other where nothing has changed.
        if before || after {
            for git in [&mut record.git, &mut record.git_after].into_iter().flatten() {
                git.oid = None;
            }
        }
        Cow::Owned(record)
    }

    /// The header with masked command lines.
    pub fn header(&self, header: &Header) -> Header {
        // Where it was imported concerns nobody else.
        let mut header = Header { imported: false, ..header.clone() };
        if self.redacts {
            header.redacted |= redact(&mut header.command);
            if let Some(title) = &mut header.title {
                // As the shell was given it.
                let mut words = vec![b"-c".to_vec(), std::mem::take(title)];
                header.redacted |= redact(&mut words);
                *title = words.pop().unwrap_or_default();
            }
            for process in &mut header.processes {
                mask_exec(Arc::make_mut(&mut process.image));
                process.execs.iter_mut().for_each(mask_exec);
            }
        }
        header
    }
}

fn is_secret(record: &FileRecord, secrets: &Secrets, contents: &Contents) -> bool {
    let names = [Some(&record.path), record.renamed_from.as_ref(), record.renamed_to.as_ref()];
    let has_private_key = || {
        [Side::Before, Side::After].into_iter().any(|side| {
            let mut finder = PrivateKeyFinder::default();
            let has_content = file(record, side).is_some_and(|present| present.size > 0);
            // What can't be read may be one.
            has_content && (contents.copy(record, side, &mut finder).is_err() || finder.has_found())
        })
    };
    names.into_iter().flatten().any(|path| secrets.is_secret(path, has_private_key))
}

/// The digest of a secret that has none in the recording, if it is still there as it was: by it copies are found.
fn live_digest(record: &FileRecord) -> Option<Digest> {
    let withheld = file(record, Side::Before).filter(|present| present.digest.is_none())?;
    let stat = fs::lstat(&record.path).ok()??;
    let live = live::present(&stat, &record.path).ok()?;
    let opened = is_untouched(withheld, &live).then(|| fs::open_regular(&record.path).ok())??;
    digest_file(&opened).ok().map(|(digest, _)| digest)
}

/// The regular file that a record has on a side; that nothing is in a file is no secret.
fn file(record: &FileRecord, side: Side) -> Option<&Present> {
    let present = state(record, side).present()?;
    (present.file_type == FileType::File && present.size > 0).then_some(present)
}

fn oid(record: &FileRecord, side: Side) -> Option<&String> {
    let git = if side == Side::Before { &record.git } else { &record.git_after };
    git.as_ref()?.oid.as_ref()
}

impl WithheldContents {
    fn add(&mut self, record: &FileRecord, side: Side) {
        let Some(present) = file(record, side) else { return };
        self.blobs.extend(present.blob.clone());
        self.digests.extend(present.digest);
        self.oids.extend(oid(record, side).cloned());
        self.files.extend(LinkedFile::of(present));
    }

    fn has(&self, record: &FileRecord, side: Side) -> bool {
        let Some(present) = file(record, side) else { return false };
        present.blob.as_ref().is_some_and(|blob| self.blobs.contains(blob))
            || present.digest.is_some_and(|digest| self.digests.contains(&digest))
            || oid(record, side).is_some_and(|oid| self.oids.contains(oid))
            || LinkedFile::of(present).is_some_and(|file| self.files.contains(&file))
    }

    fn len(&self) -> usize {
        self.blobs.len() + self.digests.len() + self.oids.len() + self.files.len()
    }
}

/// Takes the content out of a state, and whatever identifies it.
fn withhold(present: &mut Present, is_pinned: bool) {
    if present.file_type == FileType::File && present.size > 0 {
        let (digest, blob) = (present.digest.take(), present.blob.take());
        if digest.is_some() || blob.is_some() || is_pinned {
            present.blob_omitted = Some(BlobOmitted::Withheld);
        }
    }
}

/// Masks the target of a symlink, which then can't be restored.
fn mask_target(present: &mut Present) {
    let masked = present.target.as_ref().and_then(|target| mask(std::slice::from_ref(target)));
    if let Some(target) = masked.and_then(|mut words| words.pop()) {
        // Masked, it may be longer than any target.
        present.target = Some(if target.len() > MAX_TARGET { REDACTED.to_vec() } else { target });
        present.blob_omitted = Some(BlobOmitted::Withheld);
    }
}

fn mask_exec(exec: &mut Exec) {
    exec.redacted |= redact(&mut exec.argv);
}
