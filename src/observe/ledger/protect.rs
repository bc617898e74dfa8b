//! Protects the bytes and attributes of an inode before a call may change them.
//!
//! Bytes belong to the inode, not to a name: whichever name a call uses, they are captured once. They are
//! kept until it is known whether the call succeeds, and calls in flight share them. Neighbours: `effects.rs`
//! says which call threatens what, `capture.rs` stores the bytes.

use std::collections::HashMap;

use super::Ledger;
use super::ids::{InodeId, NameId};
use super::inodes::{Attributes, Content};
use crate::fs::{self, FileStat};
use crate::git::{self, GitFacts, Repositories};
use crate::observe::capture::{
    Admission, Capture, Captured, OnLoss, Origin, Reserved, SMALL, Source, Threat, Ticket,
};
use crate::observe::journal::ChangeJournal;
use crate::observe::resolve;
use crate::observe::warnings::Warnings;
use crate::snapshot::blobs::{Side, blob_key};
use crate::snapshot::live::Filesystem;
use crate::snapshot::secrets::{ContentSign, LIMIT, Secrets, has_sign};
use crate::snapshot::{BlobOmitted, Keep, WarningKind, live};

/// `--keep undo` stores bytes that the tree left up to this size.
const MAX_AFTER_OF_UNDO: u64 = 1 << 20;

/// What a manifest without records is expected to take ...
const MANIFEST_BYTES: u64 = 64 << 10;
/// ... and each record.
const RECORD_BYTES: u64 = 1536;

/// Bytes of an inode that are safe from calls in flight.
#[derive(Debug)]
struct ProtectedBytes {
    serial: u64,
    captured: Captured,
    /// The space that they were promised, if the call would have been refused without.
    reserved: Option<Reserved>,
    /// Whether they are safe from a change in place, too.
    copied: bool,
    /// How many calls in flight may destroy them.
    calls: usize,
    /// Whether they are needed whatever comes of those calls.
    needed: bool,
}

/// The claim of a call in flight on bytes that it may destroy: to be kept when it has succeeded, else
/// released.
#[derive(Debug)]
#[must_use = "bytes are kept or released when the call is over"]
pub struct Protected {
    inode: InodeId,
    serial: u64,
}

/// The filesystems that were asked about, by device.
#[derive(Default)]
pub struct Filesystems(HashMap<u64, Filesystem, foldhash::fast::RandomState>);

impl Filesystems {
    /// The one of device `dev`, on which `path` is.
    pub fn of(&mut self, dev: u64, path: &[u8]) -> Filesystem {
        *self.0.entry(dev).or_insert_with(|| live::filesystem(path).unwrap_or(Filesystem::Local))
    }

    /// Whether the filesystem of a path has no files with bytes of their own.
    pub fn is_pseudo(&mut self, dev: u64, path: &[u8]) -> bool {
        self.of(dev, path) == Filesystem::Pseudo
    }

    /// Whether the filesystem of a path is one of several layers.
    pub fn is_overlay(&mut self, dev: u64, path: &[u8]) -> bool {
        self.of(dev, path) == Filesystem::Overlay
    }
}

/// What reading and storing bytes takes.
pub struct ByteStore {
    /// The way into the bundle.
    pub capture: Capture,
    /// Which filesystems have files with bytes of their own.
    pub filesystems: Filesystems,
    /// Which states and bytes are kept.
    pub keep: Keep,
    /// Bytes of a file that was only read are stored up to this size.
    max_read_bytes: u64,
    /// Bytes that the tree destroyed or wrote are stored up to this size.
    max_blob_bytes: Option<u64>,
    /// The files whose bytes are withheld if they are only read.
    secrets: Option<Secrets>,
    /// The bytes that calls in flight may destroy.
    protected: HashMap<InodeId, ProtectedBytes, foldhash::fast::RandomState>,
    /// How many times bytes were protected.
    next_serial: u64,
    /// What is put on file before a call continues.
    pub journal: Option<ChangeJournal>,
    /// Files of Git's packs that were removed: whether their bytes are needed is known at the end.
    pub removed_packs: Vec<RemovedPackFile>,
}

/// A file of a removed pack, whose bytes are kept until it is known which objects the repository no longer has.
#[derive(Debug)]
pub struct RemovedPackFile {
    /// Its inode.
    pub inode: InodeId,
    /// Its bytes.
    pub captured: Captured,
    reserved: Option<Reserved>,
}

/// How many files of removed packs are kept open.
const REMOVED_PACK_FILES: usize = 64;

impl ByteStore {
    /// What stores bytes through `capture` up to these sizes a file.
    pub fn new(
        capture: Capture,
        keep: Keep,
        max_read_bytes: u64,
        max_blob_bytes: Option<u64>,
        secrets: Option<Secrets>,
    ) -> ByteStore {
        let filesystems = Filesystems::default();
        let journal = capture.journal().map(|(journal, directory)| ChangeJournal::new(journal, directory));
        ByteStore {
            capture,
            filesystems,
            keep,
            max_read_bytes,
            max_blob_bytes,
            secrets,
            protected: HashMap::default(),
            next_serial: 0,
            journal,
            removed_packs: Vec::new(),
        }
    }

    /// Tells the journal of bytes that a call may destroy, of the file that is `now`.
    fn journal_captured(&mut self, id: InodeId, captured: &Captured, now: &FileStat) {
        // Only bytes in memory go into the journal itself.
        let stores = !matches!(captured, Captured::Bytes(_)) || self.is_within_limit(captured);
        if let Some(journal) = &mut self.journal {
            journal.protect(id, captured, (now.st_dev, now.st_ino), stores);
        }
    }

    /// Whether the level of the recording asks for bytes of an after-state, and not for their digest alone.
    pub fn keeps_after(&self, captured: &Captured, git: Option<&GitFacts>) -> bool {
        let is_ignored = git.is_some_and(GitFacts::ignored);
        self.keep != Keep::Undo || !is_ignored && captured.data_size() <= MAX_AFTER_OF_UNDO
    }

    /// Decides whether bytes that the tree destroyed or wrote are stored under `key`.
    pub fn admit(&mut self, key: &str, captured: &Captured) -> Result<Reserved, BlobOmitted> {
        if !self.is_within_limit(captured) {
            return Err(BlobOmitted::TooLarge);
        }
        self.capture.reserve(key, captured)
    }

    /// Whether the bytes of the file at `path` are a secret by their name, which is not recorded for having been read.
    pub fn withholds(&self, path: &[u8]) -> bool {
        self.is_secret(path, |sign| sign != ContentSign::Key)
    }

    /// The same for a file of any name, by its bytes.
    fn withholds_key(&self, path: &[u8], now: &FileStat) -> bool {
        let is_short = u64::try_from(now.st_size).is_ok_and(|size| size <= LIMIT);
        is_short && self.is_secret(path, |sign| sign == ContentSign::Key)
    }

    fn is_secret(&self, path: &[u8], looks_for: impl Fn(ContentSign) -> bool) -> bool {
        // What can't be read is told of as any other file.
        let has = |sign| fs::open_regular(path).and_then(|file| has_sign(file, sign)).unwrap_or(false);
        let secrets = self.secrets.as_ref();
        secrets.is_some_and(|secrets| secrets.is_secret(path, |sign| looks_for(sign) && has(sign)))
    }

    fn is_within_limit(&self, captured: &Captured) -> bool {
        self.max_blob_bytes.is_none_or(|limit| captured.data_size() <= limit)
    }
}

/// The ledger, with all that protecting bytes takes.
pub struct Protector<'a> {
    /// Names and inodes.
    pub ledger: &'a mut Ledger,
    /// Where bytes go.
    pub byte_store: &'a mut ByteStore,
    /// What Git has.
    pub repositories: &'a mut Repositories,
    /// Where gaps are reported.
    pub warnings: &'a mut Warnings,
}

impl Protector<'_> {
    /// Makes the bytes of the file at `path`, which lstat(2) says to be `now`, safe from what can't be
    /// refused any more; none where they are safe already, or are none of a before-state.
    pub fn protect(&mut self, path: &[u8], now: &FileStat, threat: Threat) -> Option<Protected> {
        // Nothing is an error then.
        self.try_protect(path, now, threat, OnLoss::Warn).ok().flatten()
    }

    /// The same, for a call that does not happen if the bytes can't be kept and `on_loss` is to refuse it.
    ///
    /// # Errors
    /// They can't be kept, for this reason. Nothing is protected then.
    pub fn try_protect(
        &mut self,
        path: &[u8],
        now: &FileStat,
        threat: Threat,
        on_loss: OnLoss,
    ) -> Result<Option<Protected>, BlobOmitted> {
        let Some(id) = self.ledger.inodes.of(now) else { return Ok(None) };
        if threat == Threat::Overwrite {
            self.try_threaten(now, on_loss)?;
        }
        let inode = self.ledger.inodes.get_mut(id);
        if !inode.before.is_regular() || inode.written && !inode.appended {
            return Ok(None);
        }
        match inode.content {
            Content::Kept(_) => return Ok(None),
            // Handed in already.
            Content::Read(ticket) if self.byte_store.capture.note_destroyed(ticket).is_none() => {
                inode.content = Content::Kept(ticket);
                self.journal_read(id, path, now, ticket);
                return Ok(None);
            }
            Content::Read(_)
            | Content::Digested(_)
            | Content::Unneeded
            | Content::InPlace
            | Content::Pinned
            | Content::Omitted(_) => {}
        }
        if let Some(bytes) = self.byte_store.protected.get_mut(&id) {
            if let (OnLoss::Refuse, Captured::Omitted(reason)) = (on_loss, &bytes.captured) {
                return Err(*reason);
            }
            bytes.calls += 1;
            return Ok(Some(Protected { inode: id, serial: bytes.serial }));
        }
        if threat == Threat::Overwrite && self.store_at_once(id, path, now) {
            return Ok(None);
        }
        let Some(captured) = self.protect_bytes(id, path, now, Some(threat)) else { return Ok(None) };
        let reserved = match (on_loss, &captured) {
            (OnLoss::Warn, _) => None,
            (OnLoss::Refuse, Captured::Omitted(reason)) => return Err(*reason),
            (OnLoss::Refuse, captured) => {
                let names = u64::try_from(self.ledger.names.count()).unwrap_or(u64::MAX);
                self.byte_store.capture.expect_manifest(MANIFEST_BYTES + names.saturating_mul(RECORD_BYTES));
                Some(self.byte_store.admit(&blob_key(Side::Before, self.path_of(id)), captured)?)
            }
        };
        self.byte_store.journal_captured(id, &captured, now);
        self.byte_store.next_serial += 1;
        let serial = self.byte_store.next_serial;
        let copied = self.ledger.inodes.get(id).threatened;
        let bytes = ProtectedBytes { serial, captured, reserved, copied, calls: 1, needed: false };
        self.byte_store.protected.insert(id, bytes);
        Ok(Some(Protected { inode: id, serial }))
    }

    /// Stores the bytes of a large file that is about to change in place, if its filesystem can't clone them: a
    /// copy would have to be stored as well. Returns whether they are stored.
    fn store_at_once(&mut self, id: InodeId, path: &[u8], now: &FileStat) -> bool {
        let source = self.source(id, path, now);
        if self.byte_store.filesystems.is_pseudo(now.st_dev, path) {
            return false;
        }
        let Some(captured) = self.byte_store.capture.only_in_place(source) else { return false };
        let key = blob_key(Side::Before, self.path_of(id));
        let Ok(reserved) = self.byte_store.admit(&key, &captured) else { return false };
        self.warn_late(id, path, now);
        let ticket = self.submit(id, key, captured, Ok(reserved), true, false);
        self.byte_store.capture.wait_for((now.st_dev, now.st_ino));
        let stored = self.byte_store.capture.note_destroyed(ticket).is_none();
        if stored {
            self.ledger.inodes.get_mut(id).content = Content::Kept(ticket);
        }
        stored
    }

    /// Puts bytes on file that were stored when they were only read, and may still be in memory.
    fn journal_read(&mut self, id: InodeId, path: &[u8], now: &FileStat, ticket: Ticket) {
        if self.byte_store.journal.is_none() {
            return;
        }
        if fs::size(now) > SMALL {
            return self.byte_store.capture.put_on_file(ticket);
        }
        let captured = self.byte_store.capture.protect(self.source(id, path, now), Some(Threat::Overwrite));
        self.byte_store.journal_captured(id, &captured, now);
    }

    /// Protects the bytes of the file at `path`, and warns if they are not those of the before-state; none where
    /// the filesystem has no files with bytes of their own.
    fn protect_bytes(
        &mut self,
        id: InodeId,
        path: &[u8],
        now: &FileStat,
        threat: Option<Threat>,
    ) -> Option<Captured> {
        if self.byte_store.filesystems.is_pseudo(now.st_dev, path) {
            return None;
        }
        self.warn_late(id, path, now);
        // A call in flight may change it while it is read.
        let threatened = self.ledger.inodes.get(id).threatened;
        let threat = if threatened { Some(Threat::Overwrite) } else { threat };
        Some(self.byte_store.capture.protect(self.source(id, path, now), threat))
    }

    /// Where the bytes of the before-state of an inode are to be read.
    fn source<'a>(&self, id: InodeId, path: &'a [u8], now: &FileStat) -> Source<'a> {
        let inode = self.ledger.inodes.get(id);
        let length = inode.appended.then_some(inode.before.size);
        Source { path, identity: (now.st_dev, now.st_ino), length }
    }

    /// Stores the bytes that a call may have destroyed, now that it has succeeded.
    pub fn keep(&mut self, Protected { inode, serial }: Protected) {
        if self.byte_store.protected.get(&inode).is_some_and(|bytes| bytes.serial == serial)
            && let Some(bytes) = self.byte_store.protected.remove(&inode)
        {
            if self.is_removed_pack(inode) {
                let ProtectedBytes { captured, reserved, .. } = bytes;
                self.byte_store.removed_packs.push(RemovedPackFile { inode, captured, reserved });
            } else {
                self.store(inode, bytes.captured, bytes.reserved, true);
            }
        }
    }

    /// Whether the bytes of an inode that has lost a name are those of a pack, which may be replaced by another.
    fn is_removed_pack(&self, inode: InodeId) -> bool {
        let Some(name) = self.ledger.inodes.get(inode).name else { return false };
        self.byte_store.removed_packs.len() < REMOVED_PACK_FILES
            && self.ledger.names.get(name).is_git_state
            && git::pack_file(self.ledger.names.path(name)).is_some()
    }

    /// Stores the bytes of a removed pack.
    pub fn store_removed_pack(&mut self, RemovedPackFile { inode, captured, reserved }: RemovedPackFile) {
        self.store(inode, captured, reserved, true);
    }

    /// Drops the bytes that a call was to destroy which has changed nothing, unless others rely on them.
    pub fn release(&mut self, protected: impl IntoIterator<Item = Protected>) {
        for Protected { inode, serial } in protected {
            let Some(bytes) =
                self.byte_store.protected.get_mut(&inode).filter(|bytes| bytes.serial == serial)
            else {
                continue;
            };
            bytes.calls -= 1;
            if bytes.calls == 0
                && let Some(bytes) = self.byte_store.protected.remove(&inode)
            {
                if bytes.needed {
                    self.store(inode, bytes.captured, bytes.reserved, false);
                    continue;
                }
                if let Some(reserved) = bytes.reserved {
                    self.byte_store.capture.release(reserved);
                }
                if let Some(journal) = &mut self.byte_store.journal {
                    journal.release(inode, &bytes.captured);
                }
            }
        }
    }

    /// Hands in the bytes of an inode, which a call may have destroyed.
    fn store(&mut self, id: InodeId, captured: Captured, reserved: Option<Reserved>, destroyed: bool) {
        let content = match captured {
            Captured::Omitted(reason) => {
                if destroyed {
                    self.byte_store.capture.losses().lost(self.path_of(id), reason);
                }
                match self.ledger.inodes.get(id).content {
                    // It has a digest at least, and is reported at the end.
                    Content::Read(ticket) => Content::Kept(ticket),
                    _ => {
                        self.warn_omitted(id, reason);
                        Content::Omitted(reason)
                    }
                }
            }
            captured => {
                let key = blob_key(Side::Before, self.path_of(id));
                let admission = match reserved {
                    Some(reserved) => Ok(reserved),
                    None => self.byte_store.admit(&key, &captured),
                };
                Content::Kept(self.submit(id, key, captured, admission, true, destroyed))
            }
        };
        self.ledger.inodes.get_mut(id).content = content;
    }

    fn submit(
        &mut self,
        id: InodeId,
        key: String,
        captured: Captured,
        admission: impl Into<Admission>,
        threatened: bool,
        destroyed: bool,
    ) -> Ticket {
        let identity = self.ledger.inodes.get(id).before.identity();
        let origin = Origin { identity, inode: id, threatened };
        self.byte_store.capture.submit(key, captured, Some(origin), admission, destroyed)
    }

    /// Sees to the bytes of the file at `path`, which is `now`, as it is read or executed by `name`.
    pub fn read_content(&mut self, name: NameId, path: &[u8], now: &FileStat) {
        if !self.byte_store.keep.has_inputs() {
            return;
        }
        let Some(id) = self.ledger.inodes.of(now) else { return };
        let inode = self.ledger.inodes.get(id);
        if !inode.content.is_unread() || !inode.before.is_regular() || inode.written {
            return;
        }
        // No blob of Git's is named either: its identifier tells of the bytes.
        if self.byte_store.withholds(path) {
            self.ledger.inodes.get_mut(id).content = Content::Omitted(BlobOmitted::Withheld);
            return;
        }
        // What is to be recalled needs a digest of all that was read.
        if !self.ledger.for_recall {
            self.pin(name, path, now);
        }
        if self.ledger.is_bound_to(name, id)
            && !self.ledger.for_recall
            && self.ledger.names.get(name).git.as_ref().is_some_and(|facts| facts.oid().is_some())
        {
            self.ledger.inodes.get_mut(id).content = Content::Pinned;
            return;
        }
        self.store_read(id, path, now);
    }

    /// Stores the bytes of the file at `path`, which is `now`, as those of a file that was only read.
    pub fn store_read(&mut self, id: InodeId, path: &[u8], now: &FileStat) {
        if self.byte_store.withholds_key(path, now) {
            self.ledger.inodes.get_mut(id).content = Content::Omitted(BlobOmitted::Withheld);
            return;
        }
        if let Some(bytes) = self.byte_store.protected.get_mut(&id) {
            bytes.needed = true;
            return;
        }
        let Some(captured) = self.protect_bytes(id, path, now, None) else { return };
        let key = blob_key(Side::Before, self.path_of(id));
        let content = match captured {
            Captured::Omitted(reason) => {
                self.warn_omitted(id, reason);
                Content::Omitted(reason)
            }
            captured if captured.data_size() <= self.byte_store.max_read_bytes => {
                let admission = self.byte_store.capture.reserve(&key, &captured);
                Content::Read(self.submit(id, key, captured, admission, false, false))
            }
            captured => {
                let admission = match self.ledger.for_recall {
                    true => Admission::Digested,
                    false => Admission::Refused(BlobOmitted::TooLarge),
                };
                Content::Digested(self.submit(id, key, captured, admission, false, false))
            }
        };
        self.ledger.inodes.get_mut(id).content = content;
    }

    /// Takes the bytes of a file that is found at `path` at the end, as it was before, where they are needed.
    pub fn read_in_place(&mut self, id: InodeId, path: &[u8], now: &FileStat) {
        if let Some(captured) = self.capture_in_place(id, path, now) {
            self.store(id, captured, None, false);
        }
    }

    /// The same for a file of which only attributes have changed. An undo of that needs no more than a digest: `--keep undo`
    /// stores the bytes up to the size of those after a change, whether Git ignores the file or not.
    pub fn read_unchanged(&mut self, id: InodeId, path: &[u8], now: &FileStat) {
        let Some(captured) = self.capture_in_place(id, path, now) else { return };
        if self.byte_store.keeps_after(&captured, None) {
            return self.store(id, captured, None, false);
        }
        let key = blob_key(Side::Before, self.path_of(id));
        let digested = self.submit(id, key, captured, Admission::Digested, false, false);
        self.ledger.inodes.get_mut(id).content = Content::Digested(digested);
    }

    fn capture_in_place(&mut self, id: InodeId, path: &[u8], now: &FileStat) -> Option<Captured> {
        let inode = self.ledger.inodes.get(id);
        let is_wanted = matches!(inode.content, Content::Unneeded | Content::InPlace | Content::Pinned)
            && inode.before.is_regular()
            && !self.byte_store.filesystems.is_pseudo(now.st_dev, path);
        is_wanted.then(|| self.byte_store.capture.protect(self.source(id, path, now), None))
    }

    /// Asks Git for the blob that has the bytes of a name, once, now that bytes matter.
    pub fn pin(&mut self, name: NameId, path: &[u8], now: &FileStat) {
        // Only bytes that were not changed are left to Git.
        if !self.byte_store.keep.has_inputs() {
            return;
        }
        let Some(id) = self.ledger.inodes.of(now).filter(|id| self.ledger.is_bound_to(name, *id)) else {
            return;
        };
        let inode = self.ledger.inodes.get(id);
        let same = !inode.written && !inode.is_touched() && inode.before == (now).into();
        let known = self.ledger.names.get_mut(name);
        if known.git.is_none() || !same || std::mem::replace(&mut known.pin_asked, true) {
            return;
        }
        let found = self.repositories.classify_again(path, Some(now), true);
        let first = self.ledger.names.get_mut(name);
        // All else stays as at first sight; what has become of it is asked at the end.
        if first.git.as_mut().is_some_and(|facts| facts.take_pin(found.as_ref())) {
            first.git_epoch = self.repositories.epoch();
        }
    }

    /// Makes bytes that are still in the file itself safe from what may change the inode in place: its bytes, or the
    /// times by which it is known to be unchanged while it is read. The call does not happen if the bytes can't be
    /// kept and `on_loss` is to refuse it.
    ///
    /// # Errors
    /// They can't be copied, for this reason, and stay protected as they were.
    pub fn try_threaten(&mut self, now: &FileStat, on_loss: OnLoss) -> Result<(), BlobOmitted> {
        // By its numbers: what has lost all names that are recorded may still wait to be read.
        self.byte_store.capture.wait_for((now.st_dev, now.st_ino));
        let Some(id) = self.ledger.inodes.of(now) else { return Ok(()) };
        let inode = self.ledger.inodes.get_mut(id);
        inode.threatened = true;
        self.byte_store.capture.wait_for(inode.before.identity());
        if let Some(bytes) = self.byte_store.protected.get_mut(&id)
            && !bytes.copied
        {
            match self.byte_store.capture.copy_captured(&bytes.captured) {
                Some(Captured::Omitted(reason)) if on_loss == OnLoss::Refuse => return Err(reason),
                Some(copy) => {
                    bytes.captured = copy;
                    if let (Some(journal), Captured::File(_)) =
                        (&mut self.byte_store.journal, &bytes.captured)
                    {
                        journal.protect(id, &bytes.captured, (now.st_dev, now.st_ino), true);
                    }
                }
                None => {}
            }
            bytes.copied = true;
        }
        Ok(())
    }

    /// Takes what is at the path of `name` for its before-state, and tells that it is none, where somebody
    /// outside of the tree has replaced what was there at first sight.
    pub fn meet_again(&mut self, name: NameId, now: &FileStat) {
        let known = self.ledger.names.get(name);
        let found = self.ledger.inodes.of(now);
        let before = known.before.map(|before| self.ledger.inodes.get(before));
        let is_superseded = before
            .is_some_and(|before| before.superseded && before.before.identity() == (now.st_dev, now.st_ino));
        if !known.rebound
            && let Some(id) = found.filter(|found| Some(*found) == known.before)
        {
            return self.meet_changed(id, now);
        }
        if known.rebound || is_superseded {
            return;
        }
        // What our own program has put there is in a snapshot, and what another recording's tree has, too: the state at
        // first sight stays the one before, if its bytes are safe.
        let is_kept = before.is_some_and(|before| {
            matches!(before.content, Content::Kept(_) | Content::Read(_) | Content::Pinned)
        });
        let has_bytes = before.is_some_and(|before| before.before.is_regular());
        let is_put_by_others = self.ledger.changed_by_others.contains(&name) && self.ledger.changes(name) > 0;
        if is_put_by_others && (is_kept || !has_bytes) || is_kept && self.ledger.put_by_us.contains(&name) {
            return;
        }
        // An overlay may copy a file up more than once, and give it other numbers each time.
        let path = self.ledger.names.path(name).to_vec();
        if self.byte_store.filesystems.is_overlay(now.st_dev, &path) {
            return;
        }
        let id = self.ledger.inodes.meet(now);
        self.ledger.inodes.get_mut(id).name.get_or_insert(name);
        let known = self.ledger.names.get_mut(name);
        known.appeared |= known.before.is_none();
        known.before = Some(id);
        let path = self.ledger.names.path(name);
        self.warnings.lost(WarningKind::LateBeforeState, None, || {
            format!("{} was replaced from outside after its first sight", String::from_utf8_lossy(path))
        });
    }

    /// Updates the before-state of an inode that this tree is about to change for the first time. Other steps run beside it,
    /// and may have written to the file since it was first seen: that is their change.
    fn meet_changed(&mut self, id: InodeId, now: &FileStat) {
        let notes_change_times = self.ledger.notes_change_times();
        let inode = self.ledger.inodes.get_mut(id);
        if notes_change_times
            && resolve::is_regular(now)
            && !inode.threatened
            && inode.changes == 0
            && matches!(inode.content, Content::Unneeded)
            && !inode.is_unmodified(&now.into())
        {
            (inode.before, inode.attributes_taken) = (now.into(), false);
        }
    }

    /// Takes the attributes of the inode at `path` that a call may change, once.
    pub fn take_attributes(&mut self, path: &[u8], now: &FileStat) {
        let Some(id) = self.ledger.inodes.of(now) else { return };
        if std::mem::replace(&mut self.ledger.inodes.get_mut(id).attributes_taken, true) {
            return;
        }
        let attributes = self.attributes(path);
        // Most files have none, and most inodes no rarer facts.
        if attributes != Attributes::default() {
            self.ledger.inodes.get_mut(id).extra_mut().attributes = attributes;
        }
    }

    /// The attributes of what is at `path`; those that can't be read are reported as a gap.
    pub fn attributes(&mut self, path: &[u8]) -> Attributes {
        let xattrs = live::xattrs(path).unwrap_or_else(|error| {
            if error.is_gone() {
                return error.readable;
            }
            self.warnings.lost(WarningKind::ContentOmitted, None, || {
                format!(
                    "the extended attributes of {} are not stored: {error}",
                    String::from_utf8_lossy(path)
                )
            });
            error.readable
        });
        // A path that is gone meanwhile has none; a kernel that tells none has no flags that we could set.
        Attributes { xattrs, flags: live::inode_flags(path).unwrap_or_default() }
    }

    /// A path of an inode, for keys and messages.
    pub fn path_of(&self, id: InodeId) -> &[u8] {
        self.ledger.inodes.get(id).name.map_or(b"", |name| self.ledger.names.path(name))
    }

    /// Warns that the bytes of an inode are unavailable.
    pub fn warn_omitted(&mut self, id: InodeId, reason: BlobOmitted) {
        let path = String::from_utf8_lossy(self.path_of(id)).into_owned();
        self.warnings.lost(WarningKind::ContentOmitted, None, || {
            format!("the bytes of {path} are not stored ({})", reason.name())
        });
    }

    fn warn_late(&mut self, id: InodeId, path: &[u8], now: &FileStat) {
        let inode = self.ledger.inodes.get(id);
        if inode.appended || inode.is_unmodified(&now.into()) || !resolve::is_regular(now) {
            return;
        }
        // `now` is of the entry of the call, and another one may have set the times since.
        let is_still_unmodified = |now: FileStat| inode.is_unmodified(&(&now).into());
        if fs::lstat(path).ok().flatten().is_some_and(is_still_unmodified) {
            return;
        }
        let path = String::from_utf8_lossy(self.path_of(id)).into_owned();
        self.warnings.lost(WarningKind::LateBeforeState, None, || {
            format!("{path} changed between its first observation and the first call that needed its content")
        });
    }
}
