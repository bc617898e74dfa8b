//! Settles an interrupted restore: completes or takes back what its journal says had begun, before
//! anything else is done.
//!
//! Afterwards every path is as before that restore or in the state that it wanted; what somebody else has
//! changed meanwhile is left alone and becomes a conflict of the plan. It may be interrupted itself: each
//! step does nothing the second time. Neighbours: `journal.rs` has the entries, `rescue.rs` the states
//! that they refer to.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{IFlags, Mode, OFlags, RenameFlags};

use super::disk::{remove_temporary, rename, stage_name, temporary, unnamed_file};
use super::error::{Error, failed_at};
use super::flags;
use super::git::locks;
use super::in_place;
use super::journal::{InterruptedJournal, JournalEntry};
use super::node::{AttributeChanges, RestorePolicy, attributes_of_new};
use super::plan::is_unchanged;
use super::root::{Dentry, Handle, Root};
use crate::snapshot::blobs::Side;
use crate::snapshot::source::Contents;
use crate::snapshot::{self, FileRecord, FileType, Present, Snapshot};

/// The extended attribute of an access control list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Settles interrupted restores.
pub struct Settler<'a> {
    /// The live filesystem.
    pub root: &'a Root,
    /// The rescues of all interrupted restores, the latest first.
    pub rescues: Vec<&'a Snapshot>,
    /// What of a state is put back.
    pub policy: &'a RestorePolicy,
    /// Whether nothing is to be changed.
    pub dry_run: bool,
}

/// The kinds of pending steps: a path has at most one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PendingKind {
    Mode,
    Flags,
    Name,
    File,
    Lock,
}

/// The entries whose steps are not known to be done, the latest first.
fn pending(entries: &[JournalEntry]) -> Vec<&JournalEntry> {
    let mut latest: HashMap<(PendingKind, &[u8]), usize> = HashMap::new();
    for (number, entry) in entries.iter().enumerate() {
        match entry {
            JournalEntry::ModeWidened { path, .. } => {
                latest.insert((PendingKind::Mode, &**path), number);
            }
            JournalEntry::ModeRestored { path } => {
                latest.remove(&(PendingKind::Mode, &**path));
            }
            JournalEntry::FlagsCleared { path, .. } => {
                latest.insert((PendingKind::Flags, &**path), number);
            }
            JournalEntry::FlagsRestored { path } => {
                latest.remove(&(PendingKind::Flags, &**path));
            }
            JournalEntry::Temporary { path }
            | JournalEntry::Placing { path, .. }
            | JournalEntry::Removing { path } => {
                latest.insert((PendingKind::Name, &**path), number);
            }
            JournalEntry::Writing { path, .. }
            | JournalEntry::Attributes { path, .. }
            | JournalEntry::Directory { path } => {
                latest.insert((PendingKind::File, &**path), number);
            }
            JournalEntry::Locking { path } => {
                latest.insert((PendingKind::Lock, &**path), number);
            }
            JournalEntry::Done { path } => {
                latest.remove(&(PendingKind::File, &**path));
            }
            // They wait for whoever completes the restore: what is still to be done may need the file without them.
            JournalEntry::FlagsDue { .. } => {}
            JournalEntry::Placed => latest.retain(|(kind, _), _| *kind != PendingKind::Name),
            JournalEntry::Settled => latest.clear(),
        }
    }
    let mut numbers: Vec<_> = latest.into_values().collect();
    numbers.sort_unstable_by(|one, other| other.cmp(one));
    numbers.into_iter().map(|number| &entries[number]).collect()
}

impl Settler<'_> {
    /// Settles the restore whose `journal` is in `directory`; in a dry run, returns the paths that are
    /// half done and would be settled.
    pub fn settle(&self, journal: &InterruptedJournal, directory: &Path) -> Result<BTreeSet<Vec<u8>>, Error> {
        let mut found = BTreeSet::new();
        let pending = pending(&journal.entries);
        for entry in &pending {
            let (path, settled) = match entry {
                JournalEntry::ModeWidened { path, inode, from, to } => {
                    (path, self.opened(path, *inode, *from, *to))
                }
                JournalEntry::FlagsCleared { path, inode, flags } => {
                    (path, self.unlocked(path, *inode, *flags))
                }
                JournalEntry::Temporary { path } => (path, self.name(path, &journal.id, None, false)),
                JournalEntry::Placing { path, inode, cleared } => {
                    (path, self.name(path, &journal.id, Some(*inode), *cleared))
                }
                JournalEntry::Locking { path } => (path, self.locked(path, &journal.id)),
                JournalEntry::Removing { path } => (path, self.removed(path, &journal.id)),
                JournalEntry::Writing { path, inode } => {
                    (path, self.written(path, *inode, directory, &journal.id))
                }
                JournalEntry::Attributes { path, inode } => (path, self.attributes(path, *inode)),
                JournalEntry::Directory { path } => (path, self.directory(path)),
                JournalEntry::ModeRestored { .. }
                | JournalEntry::FlagsRestored { .. }
                | JournalEntry::FlagsDue { .. }
                | JournalEntry::Done { .. }
                | JournalEntry::Placed
                | JournalEntry::Settled => continue,
            };
            let is_begun =
                settled.map_err(failed_at("settle what an interrupted restore had begun at", path))?;
            let is_name = matches!(
                entry,
                JournalEntry::Temporary { .. } | JournalEntry::Placing { .. } | JournalEntry::Removing { .. }
            );
            if self.dry_run && is_begun && !is_name {
                found.insert(path.to_vec());
            }
        }
        if !self.dry_run && !pending.is_empty() {
            let name = directory.as_os_str().as_encoded_bytes();
            journal.settled().map_err(failed_at("write the journal in", name))?;
        }
        Ok(found)
    }

    /// The dentry of `path`; none if it can't be reached.
    fn dentry(&self, path: &[u8]) -> io::Result<Option<Dentry>> {
        match self.root.dentry(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
            other => other,
        }
    }

    /// The file at `path`, if it is the one with `inode`.
    fn handle(&self, path: &[u8], inode: (u64, u64)) -> io::Result<Option<(Handle, Present)>> {
        let Some(handle) = self.dentry(path)?.map(|dentry| dentry.handle()).transpose()?.flatten() else {
            return Ok(None);
        };
        let present = handle.present()?;
        Ok((present.identity() == inode).then_some((handle, present)))
    }

    /// The record of `path` in a rescue, if it is of the file with this inode.
    fn kept(&self, path: &[u8], file: (u64, u64)) -> Option<(&Snapshot, &FileRecord, &Present)> {
        self.rescues.iter().find_map(|rescue| {
            let record = rescue.find(path)?;
            let before = record.before.present().filter(|before| before.identity() == file)?;
            Some((*rescue, record, before))
        })
    }

    fn opened(&self, path: &[u8], inode: (u64, u64), from: u32, to: u32) -> io::Result<bool> {
        let Some((handle, _)) = self.handle(path, inode)? else { return Ok(false) };
        let is_open = handle.stat().st_mode & 0o7777 == to && from != to;
        if is_open && !self.dry_run {
            rustix::fs::chmod(handle.proc_path(), Mode::from_raw_mode(from))?;
        }
        Ok(is_open)
    }

    fn unlocked(&self, path: &[u8], inode: (u64, u64), before: u32) -> io::Result<bool> {
        let Some((handle, _)) = self.handle(path, inode)? else { return Ok(false) };
        let (file, now) = flags::open(&handle)?;
        let locks = IFlags::from_bits_retain(before) & flags::LOCKS;
        let is_unlocked = !now.intersects(flags::LOCKS);
        if is_unlocked && !self.dry_run {
            rustix::fs::ioctl_setflags(&file, now | locks)?;
        }
        Ok(is_unlocked)
    }

    /// A lock of Git was made; another process may have removed it and made its own.
    fn locked(&self, path: &[u8], id: &str) -> io::Result<bool> {
        let Some(dentry) = self.dentry(path)? else { return Ok(false) };
        let content = locks::content(id);
        if self.dry_run { locks::is_own(&dentry, &content) } else { locks::remove_own(&dentry, &content) }
    }

    /// A node was made under the temporary name, to take the place of what is at `path`.
    fn name(&self, path: &[u8], id: &str, new: Option<(u64, u64)>, cleared: bool) -> io::Result<bool> {
        let Some((dentry, temporary, there)) = self.temporary(path, id)? else { return Ok(false) };
        if new.is_some_and(|new| new != there.identity()) {
            return self.put_back(path, &dentry, &temporary, &there, new);
        }
        if !self.dry_run {
            if cleared && dentry.stat()?.is_none() {
                rename(&temporary, &dentry, RenameFlags::NOREPLACE)?;
            } else {
                remove_temporary(&temporary)?;
            }
        }
        Ok(true)
    }

    /// What is at `path` was renamed to the temporary name.
    fn removed(&self, path: &[u8], id: &str) -> io::Result<bool> {
        match self.temporary(path, id)? {
            Some((dentry, temporary, there)) => self.put_back(path, &dentry, &temporary, &there, None),
            None => Ok(false),
        }
    }

    fn temporary(&self, path: &[u8], id: &str) -> io::Result<Option<(Dentry, Dentry, Present)>> {
        let Some(dentry) = self.dentry(path)? else { return Ok(None) };
        let temporary = dentry.sibling(&temporary(id, dentry.name()));
        let Some(there) = temporary.present()? else { return Ok(None) };
        Ok(Some((dentry, temporary, there)))
    }

    /// Removes what came from `path` and is now under the temporary name, or puts it back if no rescue
    /// has it.
    fn put_back(
        &self,
        path: &[u8],
        dentry: &Dentry,
        temporary: &Dentry,
        there: &Present,
        new: Option<(u64, u64)>,
    ) -> io::Result<bool> {
        if self.dry_run {
            return Ok(true);
        }
        let is_directory = |at: &Present| at.file_type == FileType::Directory;
        let is_kept = self.rescues.iter().any(|rescue| {
            let before = rescue.find(path).and_then(|record| record.before.present());
            before.is_some_and(|before| {
                is_unchanged(before, there) || is_directory(before) && is_directory(there)
            })
        });
        if is_kept {
            match remove_temporary(temporary) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                other => return other.map(|()| true),
            }
        }
        let now = dentry.stat()?.map(|stat| (stat.st_dev, stat.st_ino));
        if now != new {
            let name = crate::snapshot::printable(temporary.name()).into_owned();
            return Err(io::Error::other(format!(
                "something else is there now; what was there is beside it as {name}: move one of them away"
            )));
        }
        let flags = if new.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        rename(temporary, dentry, flags)?;
        remove_temporary(temporary)?;
        Ok(true)
    }

    /// The staged content was being written into the file.
    fn written(&self, path: &[u8], inode: (u64, u64), directory: &Path, id: &str) -> io::Result<bool> {
        let stage = directory.join(stage_name(id, path));
        let found = self.handle(path, inode)?.zip(self.kept(path, inode));
        let (Some(((handle, _), (rescue, record, before))), Ok(new)) = (found, File::open(&stage)) else {
            return Ok(false);
        };
        let old = unnamed_file(directory, id)?;
        if before.size > 0 {
            Contents::new(rescue).copy_to_file(record, Side::Before, &old).map_err(|error| match error {
                snapshot::Error::Sink(error) => error,
                error => io::Error::other(error),
            })?;
        }
        let live =
            if self.dry_run { File::from(handle.open(OFlags::RDONLY)?) } else { open_for_writing(&handle)? };
        if !in_place::is_mixture(&live, &old, &new)? {
            return Ok(false);
        }
        if !self.dry_run {
            take_back(&live, &old, &handle, before, record.after.present())?;
            live.sync_all()?;
            std::fs::remove_file(&stage)?;
        }
        Ok(true)
    }

    /// The attributes of the file were being changed.
    fn attributes(&self, path: &[u8], inode: (u64, u64)) -> io::Result<bool> {
        let Some(((handle, now), (_, record, before))) =
            self.handle(path, inode)?.zip(self.kept(path, inode))
        else {
            return Ok(false);
        };
        let Some(after) = record.after.present() else { return Ok(false) };
        let is_ours = is_on_its_way(before, after, &now);
        if is_ours && !self.dry_run {
            attributes_back(&handle, before, Some(after))?;
        }
        Ok(is_ours)
    }

    /// A directory was made, and its attributes come last.
    fn directory(&self, path: &[u8]) -> io::Result<bool> {
        let is_directory = |at: &&Present| at.file_type == FileType::Directory;
        let found = self.rescues.iter().find_map(|rescue| {
            let record = rescue.find(path)?;
            let is_new = record.before.present().as_ref().is_none_or(|at| !is_directory(at));
            record.after.present().filter(is_directory).filter(|_| is_new)
        });
        let Some(dentry) = self.dentry(path)? else { return Ok(false) };
        let Some((after, handle)) = found.zip(dentry.handle()?) else { return Ok(false) };
        let (mode, uid) = (handle.stat().st_mode, handle.stat().st_uid);
        let is_ours = [self.policy.user.uid, after.uid].contains(&uid)
            && may_be_made(mode, self.policy.permissions(after), has_list(after));
        if is_ours && !self.dry_run {
            attributes_of_new(after, self.policy, &dentry)?.give(&handle)?;
        }
        Ok(is_ours)
    }
}

/// Opens a regular file of the user's; an unwritable one is made writable for the open.
fn open_for_writing(handle: &Handle) -> io::Result<File> {
    match handle.open(OFlags::RDWR) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mode = handle.stat().st_mode & 0o7777;
            rustix::fs::chmod(handle.proc_path(), Mode::from_raw_mode(mode | 0o600))?;
            let opened = handle.open(OFlags::RDWR);
            rustix::fs::chmod(handle.proc_path(), Mode::from_raw_mode(mode))?;
            Ok(File::from(opened?))
        }
        other => Ok(File::from(other?)),
    }
}

/// Writes `old` over a half-written file, and gives it its original attributes.
pub fn take_back(
    live: &File,
    old: &File,
    handle: &Handle,
    before: &Present,
    after: Option<&Present>,
) -> io::Result<()> {
    in_place::overwrite(live, old, || true)?;
    attributes_back(handle, before, after)
}

/// Gives a file its original attributes; some of those of `after` may have been given to it.
fn attributes_back(handle: &Handle, before: &Present, after: Option<&Present>) -> io::Result<()> {
    let given = after.into_iter().flat_map(|after| &after.xattrs);
    let given = given.filter(|(name, _)| !before.xattrs.contains_key(*name));
    let kept = before.xattrs.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
    let attributes = AttributeChanges {
        owner: Some((before.uid, before.gid)),
        xattrs: given.map(|(name, _)| (name.clone(), None)).chain(kept).collect(),
        permissions: (before.file_type != FileType::Symlink).then_some(before.mode & 0o7777),
        mtime: Some((before.mtime, before.mtime_nsec)),
        ..AttributeChanges::default()
    };
    attributes.give(handle).map(drop)
}

/// Whether a directory with this `mode` may be as the restore made it, or with some of its attributes only: when it has
/// all, it has these `permissions`, and an access control list if `has_list`.
///
/// Any other mode was set on purpose since.
fn may_be_made(mode: u32, permissions: u32, has_list: bool) -> bool {
    // It is inherited (mkdir(2)).
    let without_group_id = mode & !libc::S_ISGID;
    let is_as_made = without_group_id == libc::S_IFDIR | 0o700;
    // The list is given before the mode, and sets the permission bits (acl(5)).
    let has_got_list = has_list && without_group_id == libc::S_IFDIR | permissions & 0o777;
    is_as_made || has_got_list || mode == libc::S_IFDIR | permissions
}

fn has_list(at: &Present) -> bool {
    at.xattrs.contains_key(ACCESS_LIST)
}

/// Whether `live` is the file `before`, with its content, and with some of the attributes of `after`.
fn is_on_its_way(before: &Present, after: &Present, live: &Present) -> bool {
    let content = |at: &Present| (at.size, at.mtime, at.mtime_nsec);
    let is_directory = live.file_type == FileType::Directory;
    let has_content = is_directory
        || content(live) == content(before)
        || content(live) == (before.size, after.mtime, after.mtime_nsec);
    let list = |at: &Present| at.xattrs.get(ACCESS_LIST).cloned();
    let mut ours = before.mode ^ after.mode;
    if (before.uid, before.gid) != (after.uid, after.gid) {
        // chown(2) clears them.
        ours |= libc::S_ISUID | libc::S_ISGID;
    }
    if list(before) != list(after) {
        // The group permissions are those of the list's mask (acl(5)).
        ours |= libc::S_IRWXG;
    }
    if is_directory {
        // Its owner may have been given access.
        ours |= libc::S_IRWXU;
    }
    has_content && before.target == live.target && (before.mode ^ live.mode) & !ours == 0
}
