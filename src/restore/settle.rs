//! What a restore that was killed had begun: completed or taken back by what its journal says, before
//! anything else is done.
//!
//! Afterwards every path is as it was before that restore or as it was to be; what somebody else has
//! changed meanwhile is left alone, and the plan meets it as a conflict. To be killed on the way is no
//! harm: each act does nothing the second time. Neighbours: `journal.rs` has the records, `rescue.rs` the
//! states that they speak of.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{IFlags, Mode, OFlags, RenameFlags};

use super::disk::{remove_temporary, rename, stage_name, temporary, unnamed_file};
use super::error::{Error, failed_at};
use super::flags;
use super::in_place;
use super::journal::{Entry, Killed};
use super::make::{Attributes, Policy};
use super::place::{Handle, Place, Spot};
use super::plan::is_unchanged;
use crate::snapshot::blobs::Side;
use crate::snapshot::source::Contents;
use crate::snapshot::{self, FileRecord, FileType, Present, Snapshot, live};

/// What is needed to settle.
pub struct Settler<'a> {
    /// Where.
    pub place: &'a Place,
    /// The rescues of all restores that came to no end, the latest first.
    pub rescues: Vec<&'a Snapshot>,
    /// What of a state is put back.
    pub policy: &'a Policy,
    /// Whether nothing is to be changed.
    pub dry_run: bool,
}

/// The kind of what is pending at a path: at most one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Rights,
    Flags,
    Name,
    File,
}

/// What of `entries` is not known to be done, the latest first.
fn pending(entries: &[Entry]) -> Vec<&Entry> {
    let mut latest: HashMap<(Kind, &[u8]), usize> = HashMap::new();
    for (number, entry) in entries.iter().enumerate() {
        match entry {
            Entry::Opened { path, .. } => drop(latest.insert((Kind::Rights, path), number)),
            Entry::Closed { path } => drop(latest.remove(&(Kind::Rights, path.as_slice()))),
            Entry::Unlocked { path, .. } => drop(latest.insert((Kind::Flags, path), number)),
            Entry::Locked { path } => drop(latest.remove(&(Kind::Flags, path.as_slice()))),
            Entry::Temporary { path } | Entry::Placing { path, .. } | Entry::Removing { path } => {
                latest.insert((Kind::Name, path), number);
            }
            Entry::Writing { path, .. } | Entry::Attributes { path, .. } | Entry::Directory { path } => {
                latest.insert((Kind::File, path), number);
            }
            Entry::Done { path } => drop(latest.remove(&(Kind::File, path.as_slice()))),
            Entry::Placed => latest.retain(|(kind, _), _| *kind != Kind::Name),
            Entry::Settled => latest.clear(),
        }
    }
    let mut numbers: Vec<_> = latest.into_values().collect();
    numbers.sort_unstable_by(|one, other| other.cmp(one));
    numbers.into_iter().map(|number| &entries[number]).collect()
}

fn inode(at: &Present) -> (u64, u64) {
    (at.dev, at.ino)
}

impl Settler<'_> {
    /// Settles the restore of `killed`, whose journal is in `directory`; of a dry run, says which paths are
    /// neither as they were nor as they are to be, and would be settled.
    pub fn settle(&self, killed: &Killed, directory: &Path) -> Result<BTreeSet<Vec<u8>>, Error> {
        let mut found = BTreeSet::new();
        let pending = pending(&killed.entries);
        for entry in &pending {
            let (path, settled) = match entry {
                Entry::Opened { path, inode, from, to } => (path, self.opened(path, *inode, *from, *to)),
                Entry::Unlocked { path, inode, flags } => (path, self.unlocked(path, *inode, *flags)),
                Entry::Temporary { path } => (path, self.name(path, &killed.id, None, false)),
                Entry::Placing { path, inode, cleared } => {
                    (path, self.name(path, &killed.id, Some(*inode), *cleared))
                }
                Entry::Removing { path } => (path, self.removed(path, &killed.id)),
                Entry::Writing { path, inode } => (path, self.written(path, *inode, directory, &killed.id)),
                Entry::Attributes { path, inode } => (path, self.attributes(path, *inode)),
                Entry::Directory { path } => (path, self.directory(path)),
                Entry::Closed { .. }
                | Entry::Locked { .. }
                | Entry::Done { .. }
                | Entry::Placed
                | Entry::Settled => continue,
            };
            let is_begun =
                settled.map_err(failed_at("settle what an interrupted restore had begun at", path))?;
            let is_name =
                matches!(entry, Entry::Temporary { .. } | Entry::Placing { .. } | Entry::Removing { .. });
            if self.dry_run && is_begun && !is_name {
                found.insert(path.clone());
            }
        }
        if !self.dry_run && !pending.is_empty() {
            let name = directory.as_os_str().as_encoded_bytes();
            killed.settled().map_err(failed_at("write the journal in", name))?;
        }
        Ok(found)
    }

    /// The name of `path` in its directory; none where there is no way to it.
    fn spot(&self, path: &[u8]) -> io::Result<Option<Spot>> {
        match self.place.spot(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
            other => other,
        }
    }

    /// What is at `path`, if it is the file `inode`.
    fn held(&self, path: &[u8], inode: (u64, u64)) -> io::Result<Option<(Handle, Present)>> {
        let Some(held) = self.spot(path)?.map(|spot| spot.hold()).transpose()?.flatten() else {
            return Ok(None);
        };
        let present = held.present()?;
        Ok(((present.dev, present.ino) == inode).then_some((held, present)))
    }

    /// The record of `path` in a rescue, if it was of the file `inode`.
    fn kept(&self, path: &[u8], file: (u64, u64)) -> Option<(&Snapshot, &FileRecord, &Present)> {
        self.rescues.iter().find_map(|rescue| {
            let record = rescue.find(path)?;
            let before = record.before.present().filter(|before| inode(before) == file)?;
            Some((*rescue, record, before))
        })
    }

    fn opened(&self, path: &[u8], inode: (u64, u64), from: u32, to: u32) -> io::Result<bool> {
        let Some((held, _)) = self.held(path, inode)? else { return Ok(false) };
        let is_open = held.stat().st_mode & 0o7777 == to && from != to;
        if is_open && !self.dry_run {
            rustix::fs::chmod(held.proc_path(), Mode::from_raw_mode(from))?;
        }
        Ok(is_open)
    }

    fn unlocked(&self, path: &[u8], inode: (u64, u64), before: u32) -> io::Result<bool> {
        let Some((held, _)) = self.held(path, inode)? else { return Ok(false) };
        let (file, now) = flags::open(&held)?;
        let locks = IFlags::from_bits_retain(before) & flags::LOCKS;
        let is_unlocked = !now.intersects(flags::LOCKS);
        if is_unlocked && !self.dry_run {
            rustix::fs::ioctl_setflags(&file, now | locks)?;
        }
        Ok(is_unlocked)
    }

    /// Something was made under the temporary name, to take the place of what is at `path`.
    fn name(&self, path: &[u8], id: &str, new: Option<(u64, u64)>, cleared: bool) -> io::Result<bool> {
        let Some((spot, temporary, there)) = self.temporary(path, id)? else { return Ok(false) };
        if new.is_some_and(|new| new != inode(&there)) {
            return self.put_back(path, &spot, &temporary, &there, new);
        }
        if !self.dry_run {
            if cleared && spot.stat()?.is_none() {
                rename(&temporary, &spot, RenameFlags::NOREPLACE)?;
            } else {
                remove_temporary(&temporary)?;
            }
        }
        Ok(true)
    }

    /// What is at `path` was renamed to the temporary name.
    fn removed(&self, path: &[u8], id: &str) -> io::Result<bool> {
        match self.temporary(path, id)? {
            Some((spot, temporary, there)) => self.put_back(path, &spot, &temporary, &there, None),
            None => Ok(false),
        }
    }

    fn temporary(&self, path: &[u8], id: &str) -> io::Result<Option<(Spot, Spot, Present)>> {
        let Some(spot) = self.spot(path)? else { return Ok(None) };
        let temporary = spot.sibling(&temporary(id, spot.name()));
        let Some(stat) = temporary.stat()? else { return Ok(None) };
        let there = live::present(&stat, &temporary.proc_path())?;
        Ok(Some((spot, temporary, there)))
    }

    /// Removes what came from `path` and is `there` under the temporary name; what no rescue has goes back.
    fn put_back(
        &self,
        path: &[u8],
        spot: &Spot,
        temporary: &Spot,
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
        let now = spot.stat()?.map(|stat| (stat.st_dev, stat.st_ino));
        if now != new {
            let name = crate::snapshot::printable(temporary.name()).into_owned();
            return Err(io::Error::other(format!(
                "something else is there now; what was there is beside it as {name}: move one of them away"
            )));
        }
        let flags = if new.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        rename(temporary, spot, flags)?;
        remove_temporary(temporary)?;
        Ok(true)
    }

    /// Bytes were being written into the file from the staged content.
    fn written(&self, path: &[u8], inode: (u64, u64), directory: &Path, id: &str) -> io::Result<bool> {
        let stage = directory.join(stage_name(id, path));
        let found = self.held(path, inode)?.zip(self.kept(path, inode));
        let (Some(((held, _), (rescue, record, before))), Ok(new)) = (found, File::open(&stage)) else {
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
            if self.dry_run { File::from(held.open(OFlags::RDONLY)?) } else { open_for_writing(&held)? };
        if !in_place::is_mixture(&live, &old, &new)? {
            return Ok(false);
        }
        if !self.dry_run {
            take_back(&live, &old, &held, before, record.after.present())?;
            live.sync_all()?;
            std::fs::remove_file(&stage)?;
        }
        Ok(true)
    }

    /// The attributes of the file were being changed.
    fn attributes(&self, path: &[u8], inode: (u64, u64)) -> io::Result<bool> {
        let Some(((held, now), (_, record, before))) = self.held(path, inode)?.zip(self.kept(path, inode))
        else {
            return Ok(false);
        };
        let Some(after) = record.after.present() else { return Ok(false) };
        let is_ours = is_on_its_way(before, after, &now);
        if is_ours && !self.dry_run {
            attributes_back(&held, before, Some(after))?;
        }
        Ok(is_ours)
    }

    /// A directory was made, whose attributes come last.
    fn directory(&self, path: &[u8]) -> io::Result<bool> {
        let is_directory = |at: &&Present| at.file_type == FileType::Directory;
        let found = self.rescues.iter().find_map(|rescue| {
            let record = rescue.find(path)?;
            let is_new = record.before.present().as_ref().is_none_or(|at| !is_directory(at));
            record.after.present().filter(is_directory).filter(|_| is_new)
        });
        let held = self.spot(path)?.map(|spot| spot.hold()).transpose()?.flatten();
        let Some((after, held)) = found.zip(held) else { return Ok(false) };
        // Whoever has changed its rights since means it.
        let is_ours =
            held.stat().st_mode == libc::S_IFDIR | 0o700 && held.stat().st_uid == self.policy.user.uid;
        if is_ours && !self.dry_run {
            Attributes::all(after, self.policy).give(&held)?;
        }
        Ok(is_ours)
    }
}

/// Opens a held regular file of our own; one that we may not write is made writable for that moment.
fn open_for_writing(held: &Handle) -> io::Result<File> {
    match held.open(OFlags::RDWR) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mode = held.stat().st_mode & 0o7777;
            rustix::fs::chmod(held.proc_path(), Mode::from_raw_mode(mode | 0o600))?;
            let opened = held.open(OFlags::RDWR);
            rustix::fs::chmod(held.proc_path(), Mode::from_raw_mode(mode))?;
            Ok(File::from(opened?))
        }
        other => Ok(File::from(other?)),
    }
}

/// Writes `old` over a file of which parts were overwritten, and gives it the attributes that it had.
pub fn take_back(
    live: &File,
    old: &File,
    held: &Handle,
    before: &Present,
    after: Option<&Present>,
) -> io::Result<()> {
    in_place::overwrite(live, old, || true)?;
    attributes_back(held, before, after)
}

/// Gives what is held the attributes that it had; `after` are those that it was given in part.
fn attributes_back(held: &Handle, before: &Present, after: Option<&Present>) -> io::Result<()> {
    let given = after.into_iter().flat_map(|after| &after.xattrs);
    let given = given.filter(|(name, _)| !before.xattrs.contains_key(*name));
    let kept = before.xattrs.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
    let attributes = Attributes {
        owner: Some((before.uid, before.gid)),
        xattrs: given.map(|(name, _)| (name.clone(), None)).chain(kept).collect(),
        permissions: (before.file_type != FileType::Symlink).then_some(before.mode & 0o7777),
        mtime: Some((before.mtime, before.mtime_nsec)),
        flags: None,
    };
    attributes.give(held).map(drop)
}

/// Whether `live` is the file that was `before`, with its content, and on the way to the attributes of
/// `after`.
fn is_on_its_way(before: &Present, after: &Present, live: &Present) -> bool {
    let content = |at: &Present| (at.size, at.mtime, at.mtime_nsec);
    let is_directory = live.file_type == FileType::Directory;
    let has_content = is_directory
        || content(live) == content(before)
        || content(live) == (before.size, after.mtime, after.mtime_nsec);
    let list = |at: &Present| at.xattrs.get(b"system.posix_acl_access".as_slice()).cloned();
    let mut ours = before.mode ^ after.mode;
    if (before.uid, before.gid) != (after.uid, after.gid) {
        // chown(2) clears them.
        ours |= libc::S_ISUID | libc::S_ISGID;
    }
    if list(before) != list(after) {
        // The rights of the group are those of the list's mask (acl(5)).
        ours |= libc::S_IRWXG;
    }
    if is_directory {
        // It may be open to its owner.
        ours |= libc::S_IRWXU;
    }
    has_content && before.target == live.target && (before.mode ^ live.mode) & !ours == 0
}
