//! What of a snapshot is not for others: the contents of secret files, and secrets in command lines and in targets of
//! symlinks.
//!
//! A secret file is found by its name or its content, and under all of its names: those that it was renamed from and
//! to, its hard links, and copies that have its digest, blob or Git object.

use std::collections::HashSet;
use std::sync::Arc;

use super::content::{ContentSign, LIMIT, SecretFinder};
use super::{REDACTED, Secrets, mask, redact};
use crate::fs;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{LinkedFile, is_untouched, state};
use crate::snapshot::digest::digest_file;
use crate::snapshot::live;
use crate::snapshot::source::{ContentSource, Contents, locate};
use crate::snapshot::{
    BlobOmitted, Digest, Exec, FileRecord, FileType, Header, Operations, Present, Snapshot, State,
};

/// PATH_MAX of linux/limits.h.
const MAX_TARGET: usize = 4096;

/// Whether command lines are masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandLines {
    /// Secrets in them are masked.
    Masked,
    /// They are as they were recorded.
    Whole,
}

/// A snapshot as others may see it.
#[derive(Debug)]
pub struct Redacted {
    /// The snapshot, without what is withheld.
    pub snapshot: Snapshot,
    /// The paths of which something was withheld, sorted.
    pub withheld: Vec<Vec<u8>>,
    /// Whether words of command lines were masked, which the recording has.
    pub masked: bool,
}

impl Redacted {
    /// The snapshot with all that it has.
    pub fn whole(snapshot: Snapshot) -> Redacted {
        Redacted { snapshot, withheld: Vec::new(), masked: false }
    }
}

/// Takes out of a snapshot what is not for others. Its bundle stays as it is.
pub fn redacted(mut snapshot: Snapshot, secrets: &Secrets, command_lines: CommandLines) -> Redacted {
    let found = WithheldContents::of(&snapshot, secrets);
    let mut withheld = Vec::new();
    for record in snapshot.files.iter_mut().chain(&mut snapshot.inputs) {
        if found.redact(record) {
            withheld.push(record.path.clone());
        }
    }
    withheld.sort();
    let masked = command_lines == CommandLines::Masked && mask_header(&mut snapshot.header);
    Redacted { snapshot, withheld, masked }
}

/// Masks secrets in the command lines of a snapshot, and in targets of symlinks. Contents stay as they are.
pub fn masked(mut snapshot: Snapshot) -> Snapshot {
    for record in snapshot.files.iter_mut().chain(&mut snapshot.inputs) {
        for state in [&mut record.before, &mut record.after] {
            if let State::Present(present) = state {
                mask_target(present);
            }
        }
    }
    mask_header(&mut snapshot.header);
    snapshot
}

/// The blobs, digests, objects and files that have a withheld content, under whatever path.
#[derive(Debug, Default)]
struct WithheldContents {
    /// The paths that are secret by their name or content.
    paths: HashSet<Vec<u8>>,
    blobs: HashSet<String>,
    digests: HashSet<Digest>,
    oids: HashSet<String>,
    files: HashSet<LinkedFile>,
    /// The size of each content of which nothing else is known, and a process that read it: a file of this size that
    /// the process wrote may be a copy.
    read: HashSet<(u64, u32)>,
}

impl WithheldContents {
    fn of(snapshot: &Snapshot, secrets: &Secrets) -> WithheldContents {
        let (records, contents) = (snapshot.records(), Contents::new(snapshot));
        let mut withheld = WithheldContents::default();
        for record in records.iter().filter(|record| is_secret(record, secrets, &contents)) {
            withheld.paths.insert(record.path.clone());
            Side::BOTH.into_iter().for_each(|side| withheld.add(record, side));
            match unknown(record).map(|before| (before, live_digest(record, before))) {
                Some((_, Some(digest))) => drop(withheld.digests.insert(digest)),
                Some((before, None)) => {
                    withheld.read.extend(record.processes.iter().map(|process| (before.size, *process)));
                }
                None => {}
            }
        }
        // A hard link of a secret has its digest, by which copies are found.
        loop {
            let known = withheld.len();
            for record in &records {
                for side in Side::BOTH {
                    if withheld.has(record, side) {
                        withheld.add(record, side);
                    }
                }
            }
            if withheld.len() == known {
                return withheld;
            }
        }
    }

    fn add(&mut self, record: &FileRecord, side: Side) {
        let Some(present) = file(record, side) else { return };
        self.blobs.extend(present.blob.clone());
        self.digests.extend(present.digest);
        self.oids.extend(oid(record, side).cloned());
        self.files.extend(LinkedFile::of(present));
    }

    fn has(&self, record: &FileRecord, side: Side) -> bool {
        let Some(present) = file(record, side) else { return false };
        let may_be_copy = || {
            let is_written = side == Side::After && record.operations.intersects(Operations::CHANGES);
            is_written && record.processes.iter().any(|process| self.read.contains(&(present.size, *process)))
        };
        present.blob.as_ref().is_some_and(|blob| self.blobs.contains(blob))
            || present.digest.is_some_and(|digest| self.digests.contains(&digest))
            || oid(record, side).is_some_and(|oid| self.oids.contains(oid))
            || LinkedFile::of(present).is_some_and(|file| self.files.contains(&file))
            || !self.read.is_empty() && may_be_copy()
    }

    fn len(&self) -> usize {
        self.blobs.len() + self.digests.len() + self.oids.len() + self.files.len()
    }

    /// Takes what is withheld out of a record; whether that is anything.
    fn redact(&self, record: &mut FileRecord) -> bool {
        let is_secret = self.paths.contains(&record.path);
        let [before, after] = Side::BOTH.map(|side| is_secret || self.has(record, side));
        let pinned = Side::BOTH.map(|side| oid(record, side).is_some());
        let states = [(&mut record.before, before, pinned[0]), (&mut record.after, after, pinned[1])];
        let mut is_other = false;
        for (state, is_withheld, is_pinned) in states {
            let State::Present(present) = state else { continue };
            is_other |= is_withheld && withhold(present, is_pinned);
            if mask_target(present) {
                // It can't be restored.
                present.blob_omitted = Some(BlobOmitted::Withheld);
                is_other = true;
            }
        }
        // A pin of one state is the identity of the other where nothing has changed.
        if before || after {
            for git in [&mut record.git, &mut record.git_after].into_iter().flatten() {
                is_other |= git.oid.take().is_some();
            }
        }
        is_other
    }
}

fn is_secret(record: &FileRecord, secrets: &Secrets, contents: &Contents) -> bool {
    let renamed = [&record.renamed_from, &record.renamed_to].into_iter().flatten();
    let mut names = std::iter::once(&record.path).chain(renamed).chain(&record.linked_from);
    // What is named like one and can't be read may be one.
    let has = |sign| recorded_sign(record, contents, sign).unwrap_or(sign != ContentSign::Key);
    let has_content = Side::BOTH.into_iter().any(|side| file(record, side).is_some());
    names.any(|path| secrets.is_secret(path, |sign| has_content && has(sign)))
}

/// Whether the recorded content of a file, before or after, has such a sign; none if that is unknown.
///
/// What only Git has is not read for a key: nothing that is shown has its bytes.
pub fn recorded_sign(record: &FileRecord, contents: &Contents, sign: ContentSign) -> Option<bool> {
    let found: Vec<bool> =
        Side::BOTH.iter().filter_map(|side| sign_on(record, *side, contents, sign)).collect();
    (!found.is_empty()).then(|| found.contains(&true))
}

/// Whether content of a file that is among the blobs has such a sign.
pub fn blobs_have_sign(record: &FileRecord, contents: &Contents, sign: ContentSign) -> bool {
    let blobs = Side::BOTH.iter().filter(|side| is_blob(record, **side));
    blobs
        .map(|side| sign_on(record, *side, contents, sign))
        .any(|has| has.unwrap_or(sign != ContentSign::Key))
}

fn is_blob(record: &FileRecord, side: Side) -> bool {
    matches!(locate(record, side), Ok(ContentSource::Blob { .. }))
}

fn sign_on(record: &FileRecord, side: Side, contents: &Contents, sign: ContentSign) -> Option<bool> {
    let present = file(record, side)?;
    let is_shown = is_blob(record, side) || matches!(locate(record, side), Ok(ContentSource::Live { .. }));
    if sign == ContentSign::Key && (present.size > LIMIT || !is_shown) {
        return None;
    }
    let mut finder = SecretFinder::new(sign);
    contents.copy(record, side, &mut finder).ok()?;
    Some(finder.has_found())
}

/// The state of a secret of whose content the recording says nothing.
fn unknown(record: &FileRecord) -> Option<&Present> {
    file(record, Side::Before)
        .filter(|present| present.digest.is_none() && oid(record, Side::Before).is_none())
}

/// The digest of a secret that has none in the recording, if it is still there as it was: by it copies are found.
fn live_digest(record: &FileRecord, before: &Present) -> Option<Digest> {
    let stat = fs::lstat(&record.path).ok()??;
    let live = live::present(&stat, &record.path).ok()?;
    let opened = is_untouched(before, &live).then(|| fs::open_regular(&record.path).ok())??;
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

/// Takes the content out of a state, and whatever identifies it; whether it had any.
fn withhold(present: &mut Present, is_pinned: bool) -> bool {
    if present.file_type != FileType::File || present.size == 0 {
        return false;
    }
    let (digest, blob) = (present.digest.take(), present.blob.take());
    let has_any = digest.is_some() || blob.is_some() || is_pinned;
    if has_any {
        present.blob_omitted = Some(BlobOmitted::Withheld);
    }
    has_any
}

/// Masks the target of a symlink; whether it has a secret.
fn mask_target(present: &mut Present) -> bool {
    let masked = present.target.as_ref().and_then(|target| mask(std::slice::from_ref(target)));
    let Some(target) = masked.and_then(|mut words| words.pop()) else { return false };
    // Masked, it may be longer than any target.
    present.target = Some(if target.len() > MAX_TARGET { REDACTED.to_vec() } else { target });
    true
}

/// Masks the command lines of a header; whether one has a secret.
fn mask_header(header: &mut Header) -> bool {
    let mut masked = redact(&mut header.command);
    if let Some(title) = &mut header.title {
        // As the shell was given it.
        let mut words = vec![b"-c".to_vec(), std::mem::take(title)];
        masked |= redact(&mut words);
        *title = words.pop().unwrap_or_default();
    }
    header.redacted |= masked;
    for process in &mut header.processes {
        masked |= mask_exec(Arc::make_mut(&mut process.image));
        process.execs.iter_mut().for_each(|exec| masked |= mask_exec(exec));
    }
    masked
}

fn mask_exec(exec: &mut Exec) -> bool {
    let masked = redact(&mut exec.argv);
    exec.redacted |= masked;
    masked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::samples::{commit, created, present, stored};
    use crate::snapshot::{GitStatus, Operation};

    fn symlink(target: &[u8]) -> State {
        let mode = libc::S_IFLNK | 0o777;
        let target = Some(target.to_vec());
        State::Present(Box::new(Present { target, ..Present::new(FileType::Symlink, mode) }))
    }

    #[test]
    fn title_is_masked_as_the_command_is() {
        let dir = tempfile::tempdir().unwrap();
        commit(dir.path(), |_| Vec::new());
        let mut snapshot = Snapshot::open(dir.path()).unwrap();
        snapshot.header.title = Some(b"deploy --token abc".to_vec());
        let header = snapshot.header().clone();
        let of =
            |command_lines| redacted(Snapshot::open(dir.path()).unwrap(), &Secrets::default(), command_lines);
        assert_eq!(of(CommandLines::Whole).snapshot.header().title, None);
        let Redacted { snapshot, masked, .. } = redacted(snapshot, &Secrets::default(), CommandLines::Masked);
        assert!(masked && snapshot.header().redacted && !header.redacted);
        assert_eq!(snapshot.header().title.as_deref(), Some(&b"deploy --token <REDACTED>"[..]));
    }

    #[test]
    fn a_secret_is_withheld_under_all_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let pinned = |digit: &str, record: FileRecord| {
            let git = GitStatus {
                root: b"/r".to_vec(),
                head: Some("0".repeat(40)),
                relative_path: b"x".to_vec(),
                oid: Some(digit.repeat(40)),
                tracked: true,
                dirty: false,
                ignored: false,
            };
            FileRecord { git: Some(git), ..record }
        };
        let linked = |ino: u64, state: State| match state {
            State::Present(present) => State::Present(Box::new(Present { nlink: 2, ino, ..*present })),
            absent => absent,
        };
        let unread = |size: u64| State::Present(Box::new(present(size)));
        let read =
            |path: &[u8], state: State| FileRecord::new(path, state.clone(), state, Operation::Read.into());
        commit(dir.path(), |writer| {
            let secret = writer.store_bytes("after:/.env", b"secret").unwrap();
            let harmless = writer.store_bytes("after:/plain", b"harmless").unwrap();
            let key = writer.store_bytes("after:/key.pem", b"-----BEGIN PRIVATE KEY-----").unwrap();
            let cert = writer.store_bytes("after:/cert.pem", b"-----BEGIN CERTIFICATE-----").unwrap();
            let empty = writer.store_bytes("after:/empty", b"").unwrap();
            let linked_secret = writer.store_bytes("after:/z-hard-link", b"withheld before").unwrap();
            vec![
                created(b"/.env", stored(&secret)),
                created(b"/.netrc", stored(&empty)),
                pinned("2", read(b"/an-older-name-of-the-copy", linked(2, unread(15)))),
                created(b"/cert.pem", stored(&cert)),
                created(b"/copy", stored(&secret)),
                created(b"/copy-of-hard-link", linked(2, stored(&linked_secret))),
                created(b"/empty", stored(&empty)),
                created(b"/key.pem", stored(&key)),
                created(b"/link", symlink(b".env")),
                created(b"/plain", stored(&harmless)),
                read(b"/r/.git-credentials", linked(1, unread(15))),
                pinned("1", read(b"/r/.npmrc", unread(7))),
                pinned("1", read(b"/r/same", unread(7))),
                FileRecord {
                    renamed_from: Some(b"/.env.old".to_vec()),
                    ..created(b"/renamed", stored(&harmless))
                },
                created(b"/url", symlink(b"https://me:hunter2@host/")),
                created(b"/z-hard-link", linked(1, stored(&linked_secret))),
            ]
        });
        let open = || Snapshot::open(dir.path()).unwrap();
        let Redacted { snapshot, withheld, .. } = redacted(open(), &Secrets::default(), CommandLines::Masked);
        let as_text = |path: &Vec<u8>| String::from_utf8(path.clone()).unwrap();
        let names: Vec<_> = withheld.iter().map(as_text).collect();
        let whole = open();
        let is_other = |(one, other): &(&&FileRecord, &FileRecord)| **one != *other;
        let others = whole.records();
        let others =
            others.iter().zip(snapshot.records()).filter(is_other).map(|(one, _)| as_text(&one.path));
        assert_eq!(others.collect::<Vec<_>>(), names);
        // What was renamed from a secret has its content, and so has whatever else has that.
        let expected = [
            "/.env",
            "/an-older-name-of-the-copy",
            "/copy",
            "/copy-of-hard-link",
            "/key.pem",
            "/plain",
            "/r/.npmrc",
            "/r/same",
            "/renamed",
            "/url",
            "/z-hard-link",
        ];
        assert_eq!(names, expected);
    }
}
