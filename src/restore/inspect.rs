//! What is at the paths of the targets now, and what would prevent a change there.
//!
//! Neighbours: `plan.rs` decides by these inspections and by nothing else; `access.rs` gives access to
//! directories that may not be searched.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::access::{OriginalModes, TemporaryAccess};
use super::node::RestorePolicy;
use super::request::{RestoreProgress, RestoreRequest};
use super::root::{Dentry, ParentLookup, Root, split};
use super::targets::{HardLinks, opposite, same_file};
use crate::fs::ObjectId;
use crate::parallel::{self, Tick};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{
    self, Attribute, ContentId, Entries, Fingerprint, content_id, content_is_untouched, differing_attributes,
    has_two_states, state, take_over,
};
use crate::snapshot::{FileRecord, FileType, Present, State, live};

/// What was found at the path of a record.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// What is there, with its extended attributes.
    pub live: Option<Present>,
    /// Whether it is at the wanted state.
    pub at_wanted: bool,
    /// Whether it is at the other recorded state.
    pub at_other: bool,
    /// Whether a regular file has the content of the wanted state.
    pub same_content: bool,
    /// Whether it is a file or directory of the user's that they may not read.
    pub is_unreadable: bool,
    /// The state of its parent directory.
    pub parent: ParentState,
    /// Where it is; none if that can't be told.
    pub place: Option<Place>,
    /// Its inode flags forbid changes of it and of its name (chattr(1)).
    pub immutable: bool,
    /// Something is mounted there.
    pub mount: bool,
    /// It is on a filesystem that the kernel makes up, such as procfs.
    pub pseudo: bool,
    /// The entries of a directory that does not stay one.
    pub entries: Vec<Vec<u8>>,
    /// Nothing is to be done, although something else may be there than in the wanted state.
    pub is_accepted: bool,
    /// What has changed since, where more is known than the metadata.
    pub note: Option<String>,
}

impl Inspection {
    /// Decides that what is there is as good as the wanted state.
    pub fn accept(&mut self) {
        (self.at_wanted, self.is_accepted) = (true, true);
    }
}

/// A path below a directory that exists. A directory that is mounted twice has two paths (mount(8), `--bind`), and so has
/// each place below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory, and the mount that it was found in.
    pub directory: ObjectId,
    /// The path from there.
    pub below: Vec<u8>,
}

/// What is at the path of a parent directory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum ParentState {
    /// Nothing: these directories are missing, the topmost first.
    Missing(Vec<Vec<u8>>),
    /// Something that is no directory.
    #[default]
    Blocked,
    /// The directory.
    Exists {
        /// Whether its entries can be changed.
        access: NameAccess,
        /// The owner of the directory, if it has the sticky bit.
        sticky: Option<u32>,
    },
}

/// Whether the entries of a directory can be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameAccess {
    /// They can.
    Allowed,
    /// They can, once its inode flags are cleared.
    LockedByFlags,
    /// They can, once the user, who owns it, has write permission on it.
    OwnerMayAllow,
    /// They can't, for this reason.
    Denied(String),
}

/// Inspects the paths of records.
pub struct Inspector<'a> {
    /// The live filesystem.
    pub root: &'a Root,
    /// The records of the snapshot.
    pub files: &'a [FileRecord],
    /// The hard links of the wanted state, and those of the other one.
    pub hard_links: [&'a HardLinks; 2],
    /// The wanted state.
    pub wanted: Side,
    /// What of it is put back.
    pub policy: &'a RestorePolicy,
    /// The records that were asked for by name or by force.
    pub insisted_on: &'a HashSet<usize>,
    /// The original permission bits of what has others at the moment.
    pub original_modes: &'a OriginalModes,
}

impl Inspector<'_> {
    /// Inspects the paths of the records `indices`, in parallel.
    pub fn inspect_all(&self, indices: &[usize], tick: Tick<'_>) -> HashMap<usize, io::Result<Inspection>> {
        let inspections = parallel::map(indices, tick, |index| self.inspect(*index));
        indices.iter().copied().zip(inspections).collect()
    }

    fn inspect(&self, index: usize) -> io::Result<Inspection> {
        let record = &self.files[index];
        let dentry = match self.root.find(&record.path)? {
            ParentLookup::Found(dentry) => dentry,
            ParentLookup::Missing => {
                let (missing, place) = self.missing(&record.path)?;
                return Ok(self.nothing(record, ParentState::Missing(missing), place));
            }
            ParentLookup::Blocked => return Ok(self.nothing(record, ParentState::Blocked, None)),
        };
        let (above, place) = (self.parent_state(&dentry)?, place(&dentry, split(&record.path).1));
        let Some(mut present) = dentry.present()? else { return Ok(self.nothing(record, above, place)) };
        let proc_path = dentry.proc_path();
        let pseudo = live::is_pseudo_filesystem(&proc_path)?;
        let user = &self.policy.user;
        let is_unreadable = !user.is_root()
            && present.uid == user.uid
            && present.mode & libc::S_IRUSR == 0
            && matches!(present.file_type, FileType::File | FileType::Directory);
        if !pseudo {
            present.xattrs = live::xattrs(&proc_path).unwrap_or_else(|some| some.readable);
            present.inode_flags = live::inode_flags(&proc_path).unwrap_or_default();
        }
        if let Some(mode) = self.original_modes.get(&present.identity()) {
            present.mode = present.mode & libc::S_IFMT | mode & 0o7777;
        }
        let (immutable, mount) = obstacles(&dentry);
        let content = LiveContent { proc_path: &proc_path, found: OnceCell::new() };
        let (at_wanted, same_content) = self.compare(index, self.wanted, &present, &content)?;
        let at_other = !at_wanted && self.compare(index, opposite(self.wanted), &present, &content)?.0;
        let wanted = state(record, self.wanted).present();
        let entries = if present.file_type == FileType::Directory
            && wanted.is_none_or(|wanted| wanted.file_type != FileType::Directory)
        {
            live::entries(&proc_path)?
        } else {
            Vec::new()
        };
        let live = Some(present);
        Ok(Inspection {
            live,
            is_unreadable,
            at_wanted,
            at_other,
            same_content,
            parent: above,
            place,
            immutable,
            mount,
            pseudo,
            entries,
            ..Inspection::default()
        })
    }

    fn nothing(&self, record: &FileRecord, parent: ParentState, place: Option<Place>) -> Inspection {
        let is_absent = |side| state(record, side).present().is_none();
        Inspection {
            at_wanted: is_absent(self.wanted),
            at_other: is_absent(opposite(self.wanted)),
            parent,
            place,
            ..Inspection::default()
        }
    }

    /// Whether `live` is in the state of `record` on `side`, and whether it has its content.
    fn compare(
        &self,
        index: usize,
        side: Side,
        live: &Present,
        content_there: &LiveContent,
    ) -> io::Result<(bool, bool)> {
        let record = &self.files[index];
        let Some(recorded) = state(record, side).present() else { return Ok((false, false)) };
        if recorded.file_type != live.file_type {
            return Ok((false, false));
        }
        let like = self.like(index, side);
        let same_content = match (&like, live.file_type) {
            (_, FileType::File) if self.is_for_others(index) => true,
            (Fingerprint::Present { content: None, .. }, FileType::File) => {
                // Content that was never read counts as the same if the command left it alone; otherwise
                // there is only the metadata to compare.
                let times = (recorded.mtime, recorded.mtime_nsec) == (live.mtime, live.mtime_nsec);
                let same = recorded.size == live.size && (times || side != self.wanted);
                content_is_untouched(record) || same
            }
            (Fingerprint::Present { content: Some((size, _)), .. }, FileType::File) if *size != live.size => {
                false
            }
            (Fingerprint::Present { content, .. }, FileType::File) => {
                match content_there.like(&like) {
                    Ok(found) => found == *content,
                    // What may not be read is not known to be as recorded.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
                    Err(error) => return Err(error),
                }
            }
            _ => true,
        };
        let bits = live.mode & 0o7777;
        let permissions = self.policy.permissions(recorded);
        let same_bits = live.file_type == FileType::Symlink
            || bits == permissions
            || side != self.wanted && bits == recorded.mode & 0o7777;
        let same = same_bits && recorded.target == live.target && recorded.rdev == live.rdev;
        Ok((same && same_content, same_content))
    }

    /// Whether a file is for others to change, since the command has left it as it was but for its times; unless it is asked
    /// for all the same.
    fn is_for_others(&self, index: usize) -> bool {
        let record = &self.files[index];
        let (State::Present(before), State::Present(after)) = (&record.before, &record.after) else {
            return false;
        };
        before.identity() == after.identity()
            && !record.is_git_state
            && !self.insisted_on.contains(&index)
            && self.hard_links.iter().all(|hard_links| hard_links.names(index).is_empty())
            && !has_two_states(record)
            // States of unknown content don't differ either.
            && content_id(record, Side::Before).is_some()
    }

    /// The recorded state, with the content of another hard link if only that was recorded.
    fn like(&self, index: usize, side: Side) -> Fingerprint {
        let hard_links = self.hard_links[usize::from(side != self.wanted)];
        let mut like = compare::recorded(&self.files[index], side, Entries::Ignore);
        if let Fingerprint::Present { file_type: FileType::File, content: content @ None, .. } = &mut like {
            *content = same_file(self.files, hard_links, index).find_map(|record| {
                match compare::recorded(record, side, Entries::Ignore) {
                    Fingerprint::Present { content, .. } => content,
                    Fingerprint::Absent => None,
                }
            });
        }
        like
    }

    /// The missing directories above `path`, the topmost first, and the place of the path.
    fn missing(&self, path: &[u8]) -> io::Result<(Vec<Vec<u8>>, Option<Place>)> {
        let mut missing = Vec::new();
        let mut at = path;
        loop {
            at = &at[..at.len() - split(at).1.len() - 1];
            missing.push(at.to_vec());
            if let ParentLookup::Found(dentry) = self.root.find(at)? {
                missing.reverse();
                return Ok((missing, place(&dentry, &path[at.len() - split(at).1.len()..])));
            }
        }
    }

    fn parent_state(&self, dentry: &Dentry) -> io::Result<ParentState> {
        let stat = rustix::fs::fstat(dentry.parent())?;
        let is_owner = stat.st_uid == self.policy.user.uid;
        // By its path in /proc, since faccessat(2) takes no O_PATH descriptor.
        let directory = dentry.parent_path();
        let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        let flags = AtFlags::EACCESS;
        let access = match rustix::fs::accessat(rustix::fs::CWD, &directory, rights, flags) {
            Ok(()) => NameAccess::Allowed,
            Err(Errno::ACCESS) if is_owner => NameAccess::OwnerMayAllow,
            Err(Errno::PERM) => NameAccess::LockedByFlags,
            Err(Errno::ROFS) => NameAccess::Denied("the filesystem is read-only".to_owned()),
            Err(error) => NameAccess::Denied(format!("the directory can't be written: {error}")),
        };
        let access = if access == NameAccess::Allowed && is_append_only(dentry) {
            NameAccess::LockedByFlags
        } else {
            access
        };
        let sticky = (stat.st_mode & libc::S_ISVTX != 0).then_some(stat.st_uid);
        Ok(ParentState::Exists { access, sticky })
    }
}

/// The place that is `below` the parent directory of a dentry.
fn place(dentry: &Dentry, below: &[u8]) -> Option<Place> {
    ObjectId::of(dentry.parent_path().as_bytes()).map(|directory| Place { directory, below: below.to_vec() })
}

/// The content of the file that is there, which both recorded states are compared with.
struct LiveContent<'a> {
    proc_path: &'a [u8],
    /// It, in the terms of the state that was compared first.
    found: OnceCell<(u64, Option<ContentId>)>,
}

impl LiveContent<'_> {
    /// Its length and identity in the terms of `like`; none if no file is there any more. It is read again only if
    /// the states are identified in different ways.
    fn like(&self, like: &Fingerprint) -> io::Result<Option<(u64, Option<ContentId>)>> {
        if let (Some(found @ (_, Some(id))), Fingerprint::Present { content: Some((_, Some(like))), .. }) =
            (self.found.get(), like)
            && id.is_comparable_with(like)
        {
            return Ok(Some(found.clone()));
        }
        let Fingerprint::Present { content, .. } = compare::live(self.proc_path, like)? else {
            return Ok(None);
        };
        if let Some(found) = &content {
            let _ = self.found.set(found.clone());
        }
        Ok(content)
    }
}

/// Whether entries can be added to the directory but not removed.
fn is_append_only(dentry: &Dentry) -> bool {
    let statx = rustix::fs::statx(dentry.parent(), c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    statx.is_ok_and(|statx| statx.stx_attributes.contains(rustix::fs::StatxAttributes::APPEND))
}

/// Whether what is there is immutable or append-only, and whether something is mounted on it.
fn obstacles(dentry: &Dentry) -> (bool, bool) {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    // If the kernel or the filesystem does not tell, the change itself will fail.
    let Ok(statx) = rustix::fs::statx(dentry.parent(), dentry.name(), flags, StatxFlags::TYPE) else {
        return (false, false);
    };
    let has = |bit| statx.stx_attributes_mask.intersects(bit) && statx.stx_attributes.intersects(bit);
    use rustix::fs::StatxAttributes as Bit;
    (has(Bit::IMMUTABLE | Bit::APPEND), has(Bit::MOUNT_ROOT))
}

/// The records, where a file that is to get other content keeps the owner and the extended attributes that somebody else has
/// changed since, if it is still the same inode.
pub fn with_attributes_of_others<'a>(
    mut files: Cow<'a, [FileRecord]>,
    wanted: Side,
    inspections: &HashMap<usize, io::Result<Inspection>>,
) -> Cow<'a, [FileRecord]> {
    for (index, inspection) in inspections {
        let Ok(Inspection { live: Some(live), at_other: true, same_content: false, .. }) = inspection else {
            continue;
        };
        let record = &files[*index];
        let states = [wanted, opposite(wanted)].map(|side| state(record, side).present());
        let [Some(to), Some(left)] = states else { continue };
        let is_same = [to, left].iter().all(|at| at.identity() == live.identity());
        // Of a state whose content is unknown the attributes may be, too.
        if !is_same || content_id(record, opposite(wanted)).is_none() {
            continue;
        }
        let mut changed = differing_attributes(left, live);
        let mut new = to.clone();
        changed.retain(|attribute| match attribute {
            // A set-ID program does not become another user's.
            Attribute::Owner | Attribute::Group => to.mode & (libc::S_ISUID | libc::S_ISGID) == 0,
            Attribute::Xattr(name) if name.starts_with(b"user.") => true,
            // A capability was given to the bytes that are there now. An access control list that the command changed
            // goes back whole.
            Attribute::Xattr(name) => {
                !name.starts_with(b"security.") && to.xattrs.get(*name) == left.xattrs.get(*name)
            }
            // Flags are set last: the restore that put them back may have been interrupted before that.
            Attribute::InodeFlags => false,
        });
        take_over(&mut new, live, changed);
        if new == *to {
            continue;
        }
        let record = &mut files.to_mut()[*index];
        match wanted {
            Side::Before => record.before = State::Present(Box::new(new)),
            Side::After => record.after = State::Present(Box::new(new)),
        }
    }
    files
}

/// Inspects the paths of the records `indices`; what the user owns and may not read is made readable for
/// it.
pub fn inspect(
    request: &RestoreRequest,
    files: &[FileRecord],
    hard_links: [&HardLinks; 2],
    indices: &[usize],
    root: &Root,
    access: &mut TemporaryAccess<'_>,
    progress: &dyn RestoreProgress,
) -> HashMap<usize, io::Result<Inspection>> {
    progress.start("inspect", indices.len());
    let is_insisted_on = |index: &&usize| request.force || request.choice.names(&files[**index].path);
    let insisted_on: HashSet<usize> = indices.iter().filter(is_insisted_on).copied().collect();
    let inspect_all = |indices: &[usize], access: &TemporaryAccess| {
        let original_modes = access.original_modes();
        let inspector = Inspector {
            root,
            files,
            hard_links,
            wanted: request.wanted,
            policy: request.policy,
            insisted_on: &insisted_on,
            original_modes: &original_modes,
        };
        inspector.inspect_all(indices, &|| progress.tick())
    };
    let mut inspections = inspect_all(indices, access);
    // Twice: what is in a directory that has become searchable may be unreadable, too.
    for _ in 0..2 {
        let is_hidden = |inspection: &io::Result<Inspection>| match inspection {
            Ok(inspection) => inspection.is_unreadable,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        let mut hidden: Vec<usize> = inspections
            .iter()
            .filter(|(_, inspection)| is_hidden(inspection))
            .map(|(index, _)| *index)
            .collect();
        hidden.sort_unstable();
        if hidden.is_empty() {
            break;
        }
        if request.dry_run {
            for index in hidden {
                assume(request, &files[index], inspections.get_mut(&index), access);
            }
            break;
        }
        let mut opened = false;
        let mut readable = BTreeSet::new();
        for index in hidden {
            let path = files[index].path.as_slice();
            let made = access.make_searchable(path, request.policy.user.uid);
            opened |= made.unwrap_or_default();
            if inspections.get(&index).is_some_and(Result::is_ok) && access.make_readable(path).is_ok() {
                opened = true;
                readable.insert(path);
            }
        }
        if opened {
            // The directories have other modes themselves now.
            inspections = inspect_all(indices, access);
        }
        // Directories stay accessible, since they lead to what is in them; a mode that can't be restored
        // now is restored later.
        let _ = access.revoke_on_files();
        for (index, inspection) in &mut inspections {
            if let (Ok(inspection), true) = (inspection, readable.contains(files[*index].path.as_slice())) {
                inspection.is_unreadable = false;
            }
        }
    }
    progress.end();
    inspections
}

/// In a dry run, takes what the user may make accessible to be as it was recorded: the restore will look.
fn assume(
    request: &RestoreRequest,
    record: &FileRecord,
    inspection: Option<&mut io::Result<Inspection>>,
    access: &TemporaryAccess<'_>,
) {
    let recorded = state(record, opposite(request.wanted)).present();
    match inspection {
        Some(Ok(found)) => {
            let file = |at: &Present| (at.identity(), at.size, at.mtime, at.mtime_nsec, at.mode & 0o7777);
            let is_recorded = found.live.as_ref().map(file) == recorded.map(file);
            found.at_other |= is_recorded && !found.at_wanted;
        }
        Some(hidden) if access.can_make_searchable(&record.path, request.policy.user.uid) => {
            *hidden = Ok(Inspection {
                live: recorded.cloned(),
                at_other: true,
                parent: ParentState::Exists { access: NameAccess::Allowed, sticky: None },
                ..Inspection::default()
            });
        }
        _ => {}
    }
}
