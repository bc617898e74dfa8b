//! What is at the paths of the targets now, and what would stand in the way of a change there.
//!
//! Neighbours: `plan.rs` decides by these looks and by nothing else; `loosen.rs` opens directories
//! that may not be searched.

use std::collections::{BTreeSet, HashMap};
use std::io;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::loosen::{Loosened, Loosener};
use super::make::Policy;
use super::parallel::{self, Tick};
use super::place::{Parent, Place, Spot, split};
use super::request::{Progress, Wish};
use super::targets::{Links, content_is_untouched, opposite, same_file};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{self, Entries, Fingerprint, state};
use crate::snapshot::{FileRecord, FileType, Present, live};

/// What was found at the path of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// What is there, with its extended attributes.
    pub live: Option<Present>,
    /// Whether it is at the state that is to be put back.
    pub at_goal: bool,
    /// Whether it is at the other recorded state.
    pub at_other: bool,
    /// Whether the content of a regular file is that which is to be put back.
    pub same_content: bool,
    /// Whether it is the user's own file or directory and permits not even them to read it.
    pub is_shut: bool,
    /// What is where the parent directory should be.
    pub parent: Above,
    /// Neither it nor its name can be changed (chattr(1)).
    pub immutable: bool,
    /// Something is mounted there.
    pub mount: bool,
    /// It belongs to the kernel.
    pub pseudo: bool,
    /// The names in a directory that is not to stay one.
    pub entries: Vec<Vec<u8>>,
}

/// What is where the parent directory of a path should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Above {
    /// Nothing: these directories are missing, the topmost first.
    Missing(Vec<Vec<u8>>),
    /// Something that is no directory.
    Blocked,
    /// The directory.
    Here {
        /// Whether names in it can be changed.
        access: Access,
        /// Whether only their owners may remove names from it: its own owner, where that is so.
        sticky: Option<u32>,
    },
}

/// Whether the names in a directory can be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// They can.
    Yes,
    /// They can when its inode flags are cleared.
    Locked,
    /// They can when its owner, who we are, permits it.
    Loosen,
    /// They can't.
    No(String),
}

/// How to look.
pub struct Looker<'a> {
    /// Where.
    pub place: &'a Place,
    /// The records of the snapshot.
    pub files: &'a [FileRecord],
    /// The names that are one file in the state that is to be put back, and in the other.
    pub links: [&'a Links; 2],
    /// The state that is to be put back.
    pub goal: Side,
    /// What of it is put back.
    pub policy: &'a Policy,
    /// Directories whose permission bits are not their own at the moment.
    pub loosened: &'a Loosened,
}

impl Looker<'_> {
    /// Looks at the paths of the records `indices`, in parallel.
    pub fn look_at(&self, indices: &[usize], tick: Tick<'_>) -> HashMap<usize, io::Result<Look>> {
        let looks = parallel::map(indices, tick, |index| self.look(*index));
        indices.iter().copied().zip(looks).collect()
    }

    fn look(&self, index: usize) -> io::Result<Look> {
        let record = &self.files[index];
        let spot = match self.place.find(&record.path)? {
            Parent::Spot(spot) => spot,
            Parent::Missing => return Ok(self.nothing(record, Above::Missing(self.missing(&record.path)?))),
            Parent::Blocked => return Ok(self.nothing(record, Above::Blocked)),
        };
        let above = self.above(&spot)?;
        let Some(stat) = spot.stat()? else { return Ok(self.nothing(record, above)) };
        let proc_path = spot.proc_path();
        let mut present = live::present(&stat, &proc_path)?;
        let pseudo = live::is_pseudo_filesystem(&proc_path)?;
        let user = &self.policy.user;
        let is_shut = !user.is_root()
            && present.uid == user.uid
            && stat.st_mode & libc::S_IRUSR == 0
            && matches!(present.file_type, FileType::File | FileType::Directory);
        if !pseudo {
            present.xattrs = live::xattrs(&proc_path).unwrap_or_else(|some| some.readable);
            present.inode_flags = live::inode_flags(&proc_path).unwrap_or_default();
        }
        if let Some(mode) = self.loosened.get(&(present.dev, present.ino)) {
            present.mode = present.mode & libc::S_IFMT | mode & 0o7777;
        }
        let (immutable, mount) = obstacles(&spot);
        let (at_goal, same_content) = self.compare(index, self.goal, &present, &proc_path)?;
        let at_other = !at_goal && self.compare(index, opposite(self.goal), &present, &proc_path)?.0;
        let goal = state(record, self.goal).present();
        let entries = if present.file_type == FileType::Directory
            && goal.is_none_or(|goal| goal.file_type != FileType::Directory)
        {
            live::entries(&proc_path)?
        } else {
            Vec::new()
        };
        let live = Some(present);
        Ok(Look {
            live,
            is_shut,
            at_goal,
            at_other,
            same_content,
            parent: above,
            immutable,
            mount,
            pseudo,
            entries,
        })
    }

    fn nothing(&self, record: &FileRecord, parent: Above) -> Look {
        let is_absent = |side| state(record, side).present().is_none();
        Look {
            live: None,
            at_goal: is_absent(self.goal),
            at_other: is_absent(opposite(self.goal)),
            same_content: false,
            is_shut: false,
            parent,
            immutable: false,
            mount: false,
            pseudo: false,
            entries: Vec::new(),
        }
    }

    /// Whether `live` is at the state that `record` has on `side`, and has its content.
    fn compare(
        &self,
        index: usize,
        side: Side,
        live: &Present,
        proc_path: &[u8],
    ) -> io::Result<(bool, bool)> {
        let record = &self.files[index];
        let Some(recorded) = state(record, side).present() else { return Ok((false, false)) };
        if recorded.file_type != live.file_type {
            return Ok((false, false));
        }
        let like = self.like(index, side);
        let same_content = match (&like, live.file_type) {
            (Fingerprint::Present { content: None, .. }, FileType::File) => {
                // Content that nobody looked at counts as the same where the command left it alone;
                // else there is only the metadata to go by.
                let times = (recorded.mtime, recorded.mtime_nsec) == (live.mtime, live.mtime_nsec);
                let same = recorded.size == live.size && (times || side != self.goal);
                content_is_untouched(record) || same
            }
            (Fingerprint::Present { content: Some((size, _)), .. }, FileType::File) if *size != live.size => {
                false
            }
            (Fingerprint::Present { content, .. }, FileType::File) => {
                match compare::live(proc_path, &like) {
                    Ok(Fingerprint::Present { content: found, .. }) => found == *content,
                    Ok(Fingerprint::Absent) => false,
                    // What may not even be read is not known to be as recorded.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
                    Err(error) => return Err(error),
                }
            }
            _ => true,
        };
        let bits = live.mode & 0o7777;
        let wanted = self.policy.permissions(recorded);
        let same_bits = live.file_type == FileType::Symlink
            || bits == wanted
            || side != self.goal && bits == recorded.mode & 0o7777;
        let same = same_bits && recorded.target == live.target && recorded.rdev == live.rdev;
        Ok((same && same_content, same_content))
    }

    /// The recorded state; content that was looked at under another name of the file is its own, too.
    fn like(&self, index: usize, side: Side) -> Fingerprint {
        let links = self.links[usize::from(side != self.goal)];
        let mut like = compare::recorded(&self.files[index], side, Entries::Ignore);
        if let Fingerprint::Present { file_type: FileType::File, content: content @ None, .. } = &mut like {
            *content = same_file(self.files, links, index).find_map(|record| {
                match compare::recorded(record, side, Entries::Ignore) {
                    Fingerprint::Present { content, .. } => content,
                    Fingerprint::Absent => None,
                }
            });
        }
        like
    }

    /// The missing directories above `path`, the topmost first.
    fn missing(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut missing = Vec::new();
        let mut at = path;
        loop {
            at = &at[..at.len() - split(at).1.len() - 1];
            missing.push(at.to_vec());
            if let Parent::Spot(_) = self.place.find(at)? {
                missing.reverse();
                return Ok(missing);
            }
        }
    }

    fn above(&self, spot: &Spot) -> io::Result<Above> {
        let stat = rustix::fs::fstat(spot.parent())?;
        let is_owner = stat.st_uid == self.policy.user.uid;
        // Through the link of /proc, since this call takes no descriptor of O_PATH alone.
        let directory = spot.parent_path();
        let wanted = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        let flags = AtFlags::EACCESS;
        let access = match rustix::fs::accessat(rustix::fs::CWD, &directory, wanted, flags) {
            Ok(()) => Access::Yes,
            Err(Errno::ACCESS) if is_owner => Access::Loosen,
            Err(Errno::PERM) => Access::Locked,
            Err(Errno::ROFS) => Access::No("the file system is read-only".to_owned()),
            Err(error) => Access::No(format!("the directory can't be written: {error}")),
        };
        let access = if access == Access::Yes && is_append_only(spot) { Access::Locked } else { access };
        let sticky = (stat.st_mode & libc::S_ISVTX != 0).then_some(stat.st_uid);
        Ok(Above::Here { access, sticky })
    }
}

/// Whether entries may be added to the directory, but none removed.
fn is_append_only(spot: &Spot) -> bool {
    let statx = rustix::fs::statx(spot.parent(), c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    statx.is_ok_and(|statx| statx.stx_attributes.contains(rustix::fs::StatxAttributes::APPEND))
}

/// Whether what is there is immutable or append-only, and whether something is mounted on it.
fn obstacles(spot: &Spot) -> (bool, bool) {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    // A kernel or file system that does not tell lets the change itself answer.
    let Ok(statx) = rustix::fs::statx(spot.parent(), spot.name(), flags, StatxFlags::TYPE) else {
        return (false, false);
    };
    let has = |bit| statx.stx_attributes_mask.intersects(bit) && statx.stx_attributes.intersects(bit);
    use rustix::fs::StatxAttributes as Bit;
    (has(Bit::IMMUTABLE | Bit::APPEND), has(Bit::MOUNT_ROOT))
}

/// Looks at the paths of the records `indices`; those of the user that are shut are opened to be read.
pub fn look(
    wish: &Wish,
    files: &[FileRecord],
    links: [&Links; 2],
    indices: &[usize],
    place: &Place,
    loosener: &mut Loosener<'_>,
    progress: &dyn Progress,
) -> HashMap<usize, io::Result<Look>> {
    progress.start("look", indices.len());
    let look_at = |indices: &[usize], loosener: &Loosener| {
        let loosened = loosener.original();
        let looker =
            Looker { place, files, links, goal: wish.goal, policy: wish.policy, loosened: &loosened };
        looker.look_at(indices, &|| progress.tick())
    };
    let mut looks = look_at(indices, loosener);
    // Twice: what is in a directory that was opened may be shut as well.
    for _ in 0..2 {
        let is_hidden = |look: &io::Result<Look>| match look {
            Ok(look) => look.is_shut,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        let mut hidden: Vec<usize> =
            looks.iter().filter(|(_, look)| is_hidden(look)).map(|(index, _)| *index).collect();
        hidden.sort_unstable();
        if wish.dry_run || hidden.is_empty() {
            break;
        }
        let mut opened = false;
        let mut readable = BTreeSet::new();
        for index in hidden {
            let path = files[index].path.as_slice();
            let made = loosener.make_searchable(path, wish.policy.user.uid);
            opened |= made.unwrap_or_default();
            if looks.get(&index).is_some_and(Result::is_ok) && loosener.make_readable(path).is_ok() {
                opened = true;
                readable.insert(path);
            }
        }
        if opened {
            // The opened directories themselves are seen with other bits now, too.
            looks = look_at(indices, loosener);
        }
        // Directories stay open, as a way to what is in them; what can't be closed now is closed then.
        let _ = loosener.close_files();
        for (index, look) in &mut looks {
            if let (Ok(look), true) = (look, readable.contains(files[*index].path.as_slice())) {
                look.is_shut = false;
            }
        }
    }
    progress.end();
    looks
}
