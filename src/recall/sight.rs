//! What is to be seen at a path: of a recorded state, or of what is there now.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Mode, OFlags, StatVfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fs::{COARSE_STEP, FileStat, Signature, open_directory, parent_of};
use crate::snapshot::digest::digest_file;
use crate::snapshot::manifest::InodeFlag;
use crate::snapshot::sparse::Extents;
use crate::snapshot::{Digest, FileType, Look, Present, Seen, live};

/// A file of the kernel's own has no size; more than this of one is not compared.
const KERNEL_FILE_LIMIT: u64 = 1 << 20;

/// The bytes of a file as they were at a time, by its metadata: as long as that is the same, so are they.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KnownWire", into = "KnownWire")]
pub struct KnownContent {
    /// The metadata.
    pub signature: Signature,
    /// The digest of the bytes.
    pub digest: Digest,
}

/// The same in a file: there may be one for each of many paths.
type KnownWire = (u64, u64, u64, (i64, i64), (i64, i64), Digest);

impl From<KnownWire> for KnownContent {
    fn from((dev, ino, size, mtime, ctime, digest): KnownWire) -> KnownContent {
        KnownContent { signature: Signature { dev, ino, size, mtime, ctime }, digest }
    }
}

impl From<KnownContent> for KnownWire {
    fn from(KnownContent { signature, digest }: KnownContent) -> KnownWire {
        let Signature { dev, ino, size, mtime, ctime } = signature;
        (dev, ino, size, mtime, ctime, digest)
    }
}

/// How the content of a path is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Compare {
    /// By its bytes.
    #[default]
    Bytes,
    /// By its bytes, which the kernel makes up: its metadata says nothing of them.
    KernelFile,
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// Nothing.
    Nothing,
    /// This.
    Something(Box<Something>),
    /// It can't be examined.
    Hidden,
}

/// Something at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Something {
    /// `st_mode`.
    pub mode: u32,
    /// The owner and the group.
    pub owner: (u32, u32),
    /// The device that a device node stands for.
    pub rdev: u64,
    /// `st_size`.
    pub size: u64,
    /// The modification time.
    pub modified: (i64, u32),
    /// Number of names.
    pub nlink: u64,
    /// The target of a symlink.
    pub target: Option<Vec<u8>>,
    /// The digest of the bytes.
    pub content: Option<String>,
    /// The digest of the names in a directory.
    pub entries: Option<Digest>,
    /// What else was looked at.
    pub facts: Facts,
}

/// What records tell of no path, or only of those that the command changed; none of it where it was not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The inode and its times.
    pub signature: Option<Signature>,
    /// `st_blocks`.
    pub blocks: u64,
    /// The extended attributes, and the inode flags that records tell.
    pub attributes: Option<String>,
    /// All inode flags that the filesystem tells.
    pub inode_flags: Option<String>,
    /// Where the data of a file is.
    pub extents: Option<String>,
    /// How its filesystem is mounted.
    pub mount: Option<String>,
}

impl Facts {
    /// What a recorded state tells.
    fn recorded(at: &Present) -> Facts {
        Facts { attributes: Some(attributes_text(&at.xattrs, &at.inode_flags)), ..Facts::default() }
    }

    /// Looks at what `seen` names, of what is at `name` in `directory`, which is also at `path`.
    fn look(directory: BorrowedFd<'_>, name: &[u8], stat: &FileStat, path: &[u8], seen: Seen) -> Facts {
        let unreadable = || "unreadable".to_owned();
        let wanted = |look| seen.contains(look);
        let attributes = || {
            let xattrs = live::xattrs(path).ok()?;
            Some(attributes_text(&xattrs, &live::inode_flags(path).ok()?))
        };
        let open = |flags| {
            let name = if name.is_empty() { b".".as_slice() } else { name };
            let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::openat(directory, name, flags, Mode::empty())
        };
        // An open of anything else might wait, or do something.
        let is_openable = matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR);
        let inode_flags = || {
            let file = is_openable.then(|| open(OFlags::RDONLY).ok()).flatten()?;
            Some(
                rustix::fs::ioctl_getflags(file)
                    .map_or_else(|why| why.to_string(), |flags| format!("{flags:?}")),
            )
        };
        let extents = || {
            let file = File::from(is_openable.then(|| open(OFlags::RDONLY).ok()).flatten()?);
            let extents = Extents::new(&file, crate::fs::size(stat)).ok()?;
            let extents: Vec<_> = extents.collect::<Result<_, _>>().ok()?;
            Some(Digest::of(format!("{extents:?}").as_bytes()).to_string())
        };
        let mount = || rustix::fs::fstatvfs(open(OFlags::PATH).ok()?).ok().map(|found| mount_text(&found));
        Facts {
            signature: Some(Signature::from(stat)),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            attributes: (wanted(Look::Xattrs) || wanted(Look::Place))
                .then(|| attributes().unwrap_or_else(unreadable)),
            inode_flags: wanted(Look::InodeFlags).then(|| inode_flags().unwrap_or_else(unreadable)),
            extents: wanted(Look::Holes).then(|| extents().unwrap_or_else(unreadable)),
            mount: wanted(Look::Place).then(|| mount().unwrap_or_else(unreadable)),
        }
    }

    /// Says in words what of this was seen.
    fn text(&self, seen: Seen) -> String {
        let parts = [
            ("attributes", &self.attributes, seen.contains(Look::Xattrs) || seen.contains(Look::Place)),
            ("flags", &self.inode_flags, seen.contains(Look::InodeFlags)),
            ("extents", &self.extents, seen.contains(Look::Holes)),
            ("mount", &self.mount, seen.contains(Look::Place)),
        ];
        let seen = parts.into_iter().filter_map(|(name, found, is_seen)| {
            Some(format!(" {name} {}", found.as_ref().filter(|_| is_seen)?))
        });
        seen.collect()
    }
}

fn mount_text(found: &StatVfs) -> String {
    format!("{:?}", found.f_flag)
}

/// How the filesystem of what was at `path` is mounted, by the nearest directory above that is there.
pub fn mount_above(path: &[u8]) -> Option<String> {
    let above = std::iter::successors(parent_of(path), |path| parent_of(path));
    above.map(rustix::fs::statvfs).find_map(Result::ok).map(|found| mount_text(&found))
}

/// Stands for extended attributes and inode flags.
fn attributes_text(xattrs: &live::Xattrs, flags: &BTreeSet<InodeFlag>) -> String {
    if xattrs.is_empty() && flags.is_empty() {
        return "none".to_owned();
    }
    Digest::of(format!("{xattrs:?} {flags:?}").as_bytes()).to_string()
}

impl Sight {
    /// What a recorded state shows.
    pub fn recorded(state: Option<&Present>) -> Sight {
        let Some(at) = state else { return Sight::Nothing };
        Sight::Something(Box::new(Something {
            mode: at.mode,
            owner: (at.uid, at.gid),
            rdev: at.rdev.unwrap_or(0),
            size: at.size,
            modified: (at.mtime, at.mtime_nsec),
            nlink: at.nlink,
            target: at.target.clone(),
            content: at.digest.as_ref().map(ToString::to_string),
            entries: at.entry_types_digest,
            facts: Facts::recorded(at),
        }))
    }

    /// The content of a file that the kernel makes up, and nothing else: a symlink leads to it where `/proc/self` is on the
    /// way, and its metadata says nothing.
    fn of_kernel(path: &[u8]) -> Sight {
        let Some(content) = kernel_content(path) else { return Sight::Nothing };
        let file = Present { digest: Some(content), ..Present::new(FileType::File, libc::S_IFREG) };
        Sight::recorded(Some(&file))
    }

    /// What is there, if anything is.
    pub fn something(&self) -> Option<&Something> {
        match self {
            Sight::Something(there) => Some(there),
            Sight::Nothing | Sight::Hidden => None,
        }
    }
}

/// A path that is to be looked at.
#[derive(Debug, Clone)]
pub struct LookAt<'a> {
    /// The path.
    pub path: &'a [u8],
    /// What of it is wanted.
    pub seen: Seen,
    /// How its content is compared.
    pub compare: Compare,
    /// What is known of its content.
    pub known: Option<&'a KnownContent>,
}

/// What was found at a path.
#[derive(Debug, Clone)]
pub struct Looked {
    /// What is there.
    pub sight: Sight,
    /// What is known of its content now; none unless the digest was computed just now and will hold.
    pub learnt: Option<KnownContent>,
}

/// Looks at paths that are in one directory, of which none leads through a symlink.
pub fn look_in(directory: &[u8], paths: &[LookAt<'_>]) -> Vec<Looked> {
    let opened = open_directory(directory);
    let look = |wanted: &LookAt<'_>| {
        if wanted.compare == Compare::KernelFile {
            return Looked { sight: Sight::of_kernel(wanted.path), learnt: None };
        }
        let directory_fd = match &opened {
            Ok(directory) => directory,
            Err(Errno::ACCESS) => return Looked { sight: Sight::Hidden, learnt: None },
            Err(_) => return Looked { sight: Sight::Nothing, learnt: None },
        };
        let name = wanted.path.get(directory.len()..).unwrap_or_default();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        match rustix::fs::statat(directory_fd, name, flags) {
            Ok(stat) => look_at(directory_fd, name, &stat, wanted),
            Err(Errno::NOENT | Errno::NOTDIR) => Looked { sight: Sight::Nothing, learnt: None },
            Err(_) => Looked { sight: Sight::Hidden, learnt: None },
        }
    };
    paths.iter().map(look).collect()
}

fn look_at(directory: &impl std::os::fd::AsFd, name: &[u8], stat: &FileStat, wanted: &LookAt<'_>) -> Looked {
    let Ok(at) = live::present(stat, wanted.path) else {
        return Looked { sight: Sight::Hidden, learnt: None };
    };
    let is_regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    let is_directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let mut learnt = None;
    let content = match wanted.known.filter(|known| known.signature == Signature::from(stat)) {
        _ if !is_regular || !wanted.seen.contains(Look::Content) => None,
        Some(known) => Some(known.digest.to_string()),
        None => {
            let read = digest_of(directory, name);
            let digest = read.as_ref().map(|(known, _)| known.digest.to_string());
            learnt = read.and_then(|(known, lasts)| lasts.then_some(known));
            Some(digest.unwrap_or_else(|| "unreadable".to_owned()))
        }
    };
    let entries = (is_directory && wanted.seen.contains(Look::Entries))
        .then(|| live::entry_types_digest(wanted.path).ok())
        .flatten();
    let Sight::Something(mut there) = Sight::recorded(Some(&at)) else {
        return Looked { sight: Sight::Hidden, learnt };
    };
    (there.content, there.entries) = (content, entries);
    there.facts = Facts::look(directory.as_fd(), name, stat, wanted.path, wanted.seen);
    Looked { sight: Sight::Something(there), learnt }
}

/// The digest of a file, and whether its metadata will tell of the next change.
fn digest_of(directory: &impl std::os::fd::AsFd, name: &[u8]) -> Option<(KnownContent, bool)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(directory, name, flags, Mode::empty());
    let file = File::from(open(flags | OFlags::NOATIME).or_else(|_| open(flags)).ok()?);
    let signature = Signature::from(&file.metadata().ok()?);
    let (digest, _) = digest_file(&file).ok()?;
    let is_same = Signature::from(&file.metadata().ok()?) == signature;
    is_same.then(|| {
        let lasts = tells_changes(&signature, jiff::Timestamp::now()) && writes_back(&file);
        (KnownContent { signature, digest }, lasts)
    })
}

/// Whether any change of a file after `at` moves its times, as far as they tell themselves.
///
/// A page that was changed through a shared mapping may be changed again, and no time tells, until the kernel has written
/// it out.
pub fn tells_changes(signature: &Signature, at: jiff::Timestamp) -> bool {
    static WRITTEN_AFTER: OnceLock<Option<i128>> = OnceLock::new();
    let written_after = *WRITTEN_AFTER.get_or_init(|| {
        let centiseconds = |name| {
            let text = std::fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?;
            text.trim().parse::<i128>().ok()
        };
        let interval = centiseconds("dirty_writeback_centisecs").filter(|interval| *interval > 0)?;
        Some((centiseconds("dirty_expire_centisecs")? + interval) * 10_000_000)
    });
    // Twice, for a disk that is busy.
    let age = at.as_nanosecond() - signature.changed_at();
    written_after.is_some_and(|after| age > (2 * after).max(i128::from(COARSE_STEP)))
}

/// Whether the changed pages of a file are written out ever, so that [`tells_changes`] holds: not in memory.
pub fn writes_back(file: impl AsFd) -> bool {
    /// That of hugetlbfs (linux/magic.h).
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    /// That of ramfs.
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let magic = rustix::fs::fstatfs(file).map(|filesystem| filesystem.f_type);
    magic.is_ok_and(|magic| ![libc::TMPFS_MAGIC, HUGETLBFS_MAGIC, RAMFS_MAGIC].contains(&magic))
}

/// The digest of a file that the kernel makes up, or of the names in a directory.
fn kernel_content(path: &[u8]) -> Option<Digest> {
    if let Ok(names) = live::entries_digest(path) {
        return Some(names);
    }
    let file = crate::fs::open_regular(path).ok()?;
    let mut bytes = Vec::new();
    file.take(KERNEL_FILE_LIMIT).read_to_end(&mut bytes).ok()?;
    Some(Digest::of(&bytes))
}

impl Something {
    /// Says in a line what of this was seen.
    ///
    /// The times of what the command changes itself differ at each run: `order` says how that of a file compares with
    /// the others, and a directory has none.
    pub fn text(&self, seen: Seen, times: Times) -> String {
        let mut text = format!("mode {:o} owner {:?} rdev {}", self.mode, self.owner, self.rdev);
        if let Some(target) = &self.target {
            let _ = write!(text, " target {target:?}");
        }
        if seen.contains(Look::Attributes) {
            match times {
                Times::Exact | Times::Unchanged => {
                    let _ = write!(text, " size {} modified {:?}", self.size, self.modified);
                    if let Some(signature) = self.facts.signature.filter(|_| times == Times::Unchanged) {
                        let _ = write!(text, " changed {:?} blocks {}", signature.ctime, self.facts.blocks);
                    }
                }
                Times::Order(before, same) => {
                    let _ = write!(text, " size {} after {before} with {same}", self.size);
                }
                Times::Ignored => {}
            }
        }
        let is_directory = FileType::from_mode(self.mode) == Some(FileType::Directory);
        // That of an open file is told by fstat, which is not seen.
        let tells_links = match times {
            Times::Exact | Times::Unchanged if seen.contains(Look::Attributes) => true,
            Times::Exact | Times::Unchanged | Times::Order(..) => {
                seen.contains(Look::Content) && !is_directory
            }
            Times::Ignored => false,
        };
        if tells_links {
            let _ = write!(text, " links {}", self.nlink);
        }
        text.push_str(&self.facts.text(seen));
        for (name, found) in [
            ("content", self.content.clone().filter(|_| seen.contains(Look::Content))),
            (
                "entries",
                self.entries.as_ref().filter(|_| seen.contains(Look::Entries)).map(ToString::to_string),
            ),
        ] {
            if let Some(found) = found {
                let _ = write!(text, " {name} {found}");
            }
        }
        text
    }
}

/// How the times of a path count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// As they are, and with the time at which the inode was changed.
    Unchanged,
    /// As they are.
    Exact,
    /// By how many of the other files were modified before it, and how many at the same time.
    Order(usize, usize),
    /// Not at all.
    Ignored,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_the_kernel_makes_up_is_seen_through_a_symlink() {
        let path = b"/proc/self/cgroup";
        let at = LookAt { path, seen: Seen::CONTENT, compare: Compare::KernelFile, known: None };
        let looked = look_in(b"/proc/self", &[at]);
        let content = looked[0].sight.something().and_then(|there| there.content.clone());
        let expected = Digest::of(&std::fs::read("/proc/self/cgroup").unwrap());
        assert_eq!(content, Some(expected.to_string()));
    }
}
