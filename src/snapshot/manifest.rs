//! What `manifest.json` says: the types of every record, in bytes and numbers.
//!
//! Paths, arguments and symlink targets are bytes here, and text only on the wire (`wire.rs`). Nothing here
//! touches a file; `layout.rs`, `blobs.rs` and `reader.rs` do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::enforcement::{Enforcement, RefusedUse};
use super::network::NetworkUse;

/// The newest version of the bundle format. This build reads it and all before it, from 1 on, and writes
/// the oldest that has what the bundle needs: 2 for a sparse file, a record without states, or Git's state.
pub const FORMAT_VERSION: u64 = 2;

/// Everything that `manifest.json` says but its `files`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// A random identifier of this snapshot.
    pub id: String,
    /// Whether a command was recorded or a restore kept what it overwrote.
    pub kind: SnapshotKind,
    /// The `--name` that the user gave.
    pub name: Option<String>,
    /// The session that the recording belongs to.
    pub session: Option<String>,
    /// Which step of `agent-snapshot session` it is, from 1.
    pub step: Option<u32>,
    /// The program that wrote the snapshot.
    pub tool: Tool,
    /// The machine that it was written on.
    pub host: Host,
    /// The command and its arguments.
    pub command: Vec<Vec<u8>>,
    /// The command line of a shell of ours inside the command, if the command does nothing but start that, in a sandbox
    /// for example: what the recording is called.
    pub title: Option<Vec<u8>>,
    /// Whether values in `command` were replaced by [`REDACTED`](super::secrets::REDACTED).
    pub redacted: bool,
    /// The command's exit status, 128+N where signal N ended it.
    pub exit_status: i32,
    /// The name of the signal that ended the command, such as `SIGTERM`.
    pub exit_signal: Option<String>,
    /// Whether `--timeout` ended the command.
    pub timed_out: bool,
    /// The directory that the command was started in.
    pub start_cwd: Vec<u8>,
    /// The root of the Git working tree that this directory was in.
    pub working_tree: Option<Vec<u8>>,
    /// Git's directory for it, where that lies outside: in a linked working tree, in a submodule.
    pub git_directory: Option<Vec<u8>>,
    /// The home directory of the user.
    pub home: Option<Vec<u8>>,
    /// The directory for temporary files, `$TMPDIR`, if it was set.
    pub temporary_directory: Option<Vec<u8>>,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// When the command was started, RFC 3339.
    pub started_at: String,
    /// When the last process of its process tree ended, RFC 3339.
    pub finished_at: String,
    /// Which bytes and states were to be kept.
    pub keep: Keep,
    /// How many paths were only looked up and have no record; none if all such paths have one.
    pub existence_only: Option<u64>,
    /// Whether the process that the user waited for was killed, and the recording went on to its end.
    pub killed: bool,
    /// Whether processes of the command lived on: a later snapshot replaces this one.
    pub running: bool,
    /// Whether the recorder was killed, and the snapshot made from its journal.
    pub recovered: bool,
    /// Whether it came from an archive, which anybody may have written.
    pub imported: bool,
    /// False if a warning says that something was not recorded.
    pub complete: bool,
    /// What the user should know of the recording.
    pub warnings: Vec<Warning>,
    /// What the rules left out.
    pub suppressed: Vec<Suppressed>,
    /// Where mounts of the command's own hid what happened, and nothing of it lasts; sorted by mount point.
    pub private_mounts: Vec<PrivateMount>,
    /// Paths that the command made in directories that could not be searched at the end: nothing is known of what is there,
    /// and they have no record; sorted.
    pub unseen: Vec<Vec<u8>>,
    /// The repositories that were observed.
    pub git_repositories: Vec<GitRepository>,
    /// Which socket addresses the processes used, sorted by process, operation and address.
    pub network: Vec<NetworkUse>,
    /// The rules that were enforced; none if none were.
    pub enforcement: Option<Enforcement>,
    /// What was refused by them, sorted by process.
    pub refused: Vec<RefusedUse>,
    /// The command and the processes that it started, in order of their start.
    pub processes: Vec<RecordedProcess>,
    /// Whether the command may be recalled; none unless that was asked for.
    pub recall: Option<Recallable>,
}

/// Whether the outputs of a recorded command may stand for another run of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recallable {
    /// Why they may not, as sentences; empty if they may.
    pub refused: Vec<String>,
    /// Files of the kernel's own (procfs, sysfs) that it used, and whose content lasts.
    pub kernel_files: Vec<Vec<u8>>,
    /// Files on which it asked for a lock, while nobody else had one.
    pub locked_files: Vec<Vec<u8>>,
}

/// A mount that the command made in a mount namespace of its own, and whose content is gone with that namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateMount {
    /// The type of the filesystem.
    pub fstype: String,
    /// Where it was mounted, by a path of its namespace.
    pub mount_point: Vec<u8>,
    /// How often a path on it was used.
    pub uses: u64,
    /// How many of these uses changed something.
    pub changes: u64,
}

/// A whole manifest in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Everything but the files.
    pub header: Header,
    /// The records, sorted by path bytes, one a path.
    pub files: Vec<FileRecord>,
}

/// Which bytes and states a recording keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// Those of every path that was used, inputs included.
    #[default]
    All,
    /// Those of every path that was changed, before and after.
    Changes,
    /// What undoing takes: those of every path that was changed, without the bytes after of large files and
    /// of files that Git ignores.
    Undo,
}

impl Keep {
    /// Whether states and bytes of what was not changed are kept.
    pub fn has_inputs(self) -> bool {
        self == Keep::All
    }
}

/// What a snapshot was made by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SnapshotKind {
    /// A recorded command.
    #[default]
    Recording,
    /// A command that the program of a session has started.
    Command,
    /// What the program of a session has changed itself.
    Edit,
    /// What a restore was about to overwrite.
    Rescue,
}

impl SnapshotKind {
    /// Whether it was made by recording, not by a restore.
    pub fn is_recording(self) -> bool {
        self != SnapshotKind::Rescue
    }
}

/// The program that wrote the snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The machine of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The machine's architecture, `x86_64`.
    pub arch: String,
    /// The kernel's release.
    pub kernel: String,
    /// A hash of the machine id.
    pub machine: String,
}

/// The kinds of [`Warning`], each with its fixed name on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "docs/format.md explains the keys")]
pub enum WarningKind {
    IoUring,
    CompatSyscall,
    UnmodelledSyscall,
    UnreadableTracee,
    ExternalChange,
    LateBeforeState,
    ContentOmitted,
    PathChangedAfterCheck,
    MountNamespace,
    Network,
    Chroot,
    Library,
    Listener,
    NestedTracer,
    Setuid,
    CoreDump,
    InheritedDescriptor,
    Timeout,
    Survivors,
}

/// Something that the reader of a manifest should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// What happened.
    pub kind: WarningKind,
    /// Whether something is missing that the format promises.
    pub lost: bool,
    /// How often.
    pub count: u64,
    /// A sentence with the first example.
    pub detail: String,
    /// The first processes concerned (ids of `processes`).
    pub processes: Vec<u32>,
}

/// What one rule left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppressed {
    /// The rule: `.git`, `foreign owner`, or an ignored path as written.
    pub rule: String,
    /// How many observations read only.
    pub reads: u64,
    /// How many changed something.
    pub writes: u64,
    /// The topmost paths that were changed though not recorded, at most 100.
    pub changed: Vec<Vec<u8>>,
    /// The paths that were changed, sorted; none in a snapshot of an earlier version.
    pub changes: Option<Vec<LeftOutUse>>,
    /// Whether there were more than `changes` has.
    pub changes_cut: bool,
    /// The paths that were read, listed or executed, sorted, if they are files of another owner; none of another rule, in a
    /// snapshot of an earlier version, and if there were more than 1,000.
    pub read: Option<Vec<LeftOutUse>>,
}

/// A path, or a directory with paths beneath it, that was changed, or read, though not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutUse {
    /// The path.
    pub path: Vec<u8>,
    /// Whether this is not about the path but about what is beneath it, of which there was too much.
    pub beneath: bool,
    /// How it was used.
    pub operations: Operations,
    /// The process that did it first (an id of `processes`).
    pub process: u32,
}

/// A repository that was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRepository {
    /// The root of its working tree.
    pub root: Vec<u8>,
    /// The commit at the first observation, none when unborn.
    pub head: Option<String>,
    /// The short name of the branch at the first observation, none when detached or unknown.
    pub branch: Option<String>,
    /// Whether some observed tracked path was dirty when first observed; of those that were not observed,
    /// nothing is said.
    pub dirty: bool,
    /// The commit at the end, where it moved.
    pub head_after: Option<String>,
    /// The short name of the branch at the end, where it is another one; empty when detached.
    pub branch_after: Option<String>,
}

/// A program that a process executed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// The program's path.
    pub exe: Vec<u8>,
    /// Its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Whether `argv` was cut at 64 KiB.
    pub argv_truncated: bool,
    /// Whether values in `argv` were replaced by [`REDACTED`](super::secrets::REDACTED).
    pub redacted: bool,
    /// The programs that the kernel runs it by, outermost first, if it is a script; no loader of an ELF file.
    pub interpreters: Vec<Vec<u8>>,
}

/// A process of the recorded process tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedProcess {
    /// Its number in this snapshot, from 1.
    pub id: u32,
    /// Its process id while it lived.
    pub pid: u32,
    /// The id of the process that started it; none for the command.
    pub parent: Option<u32>,
    /// The last program it executed.
    pub image: Arc<Exec>,
    /// Its working directory at its start.
    pub cwd: Vec<u8>,
    /// Its exit status, 128+N where signal N ended it.
    pub exit_status: Option<i32>,
    /// All programs in order, where it executed more than one; else empty.
    pub execs: Vec<Exec>,
    /// When it started, in microseconds after the command did.
    pub started_us: Option<u64>,
    /// When it ended, likewise.
    pub ended_us: Option<u64>,
}

/// Makes a type a set of the values of an enum, each of which is a bit.
macro_rules! set {
    ($set:ident of $type:ident as $bits:ident, $what:literal) => {
        impl $set {
            /// The set with `one` added.
            #[must_use]
            pub const fn with(self, one: $type) -> $set {
                $set(self.0 | one as $bits)
            }

            /// Whether `one` is in the set.
            pub const fn contains(self, one: $type) -> bool {
                self.0 & one as $bits != 0
            }

            /// The union of both sets.
            #[must_use]
            pub const fn union(self, other: $set) -> $set {
                $set(self.0 | other.0)
            }

            /// What is in the set, in the order of the format.
            pub fn iter(self) -> impl Iterator<Item = $type> {
                $type::ALL.into_iter().filter(move |one| self.contains(*one))
            }
        }

        impl From<$type> for $set {
            fn from(one: $type) -> Self {
                $set::default().with(one)
            }
        }

        impl Serialize for $set {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.iter().map($type::name))
            }
        }

        impl<'de> Deserialize<'de> for $set {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$set, D::Error> {
                Vec::<String>::deserialize(deserializer)?.iter().try_fold($set::default(), |set, word| {
                    let one = $type::ALL.into_iter().find(|one| one.name() == word);
                    let unknown = || D::Error::custom(format!(concat!("unknown ", $what, " `{}`"), word));
                    one.map(|one| set.with(one)).ok_or_else(unknown)
                })
            }
        }
    };
}

set!(Operations of Operation as u8, "operation");
set!(Seen of Look as u16, "look");

/// How a path was used; a set of [`Operation`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Operations(u8);

/// One way in which a path was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the words of the format")]
pub enum Operation {
    Read = 1,
    Write = 2,
    Existence = 4,
    Directory = 8,
    Delete = 16,
    Execute = 32,
    Metadata = 64,
}

impl Operations {
    /// The empty set.
    pub const NONE: Operations = Operations(0);
    /// The operations that change a path or what it names.
    pub const CHANGES: Operations =
        Operations(Operation::Write as u8 | Operation::Delete as u8 | Operation::Metadata as u8);

    /// The operations that read the content of a file.
    pub const CONTENT_READS: Operations = Operations(Operation::Read as u8 | Operation::Execute as u8);

    /// Whether the two sets share an operation.
    pub const fn intersects(self, other: Operations) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is no operation that is not in `other`.
    pub const fn is_within(self, other: Operations) -> bool {
        self.0 & !other.0 == 0
    }

    /// The operations that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Operations) -> Operations {
        Operations(self.0 & other.0)
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a command learnt of a path before it changed it; a set of [`Look`]s.
///
/// A path that it replaced without a look has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Seen(u16);

/// Something that a command can learn of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Look {
    /// Whether anything is there, its type, its mode and owners, and the target of a symlink.
    Existence = 1,
    /// Its size, its times, its link count and the space that it takes.
    Attributes = 2,
    /// The bytes of a file.
    Content = 4,
    /// The names in a directory.
    Entries = 8,
    /// Its extended attributes, access control lists among them.
    Xattrs = 16,
    /// Its inode flags.
    InodeFlags = 32,
    /// Where a file has holes.
    Holes = 64,
    /// What may be another though nobody has changed the file: its access time alone, or where on the disk its extents
    /// are.
    Transient = 128,
    /// What making or executing something there depends on: the extended attributes and the inode flags, and how its
    /// filesystem is mounted.
    Place = 256,
}

impl Seen {
    /// The empty set.
    pub const NOTHING: Seen = Seen(0);
    /// That something is there, or nothing.
    pub const EXISTENCE: Seen = Seen::NOTHING.with(Look::Existence);
    /// The same with its attributes.
    pub const ATTRIBUTES: Seen = Seen::EXISTENCE.with(Look::Attributes);
    /// The same with its bytes.
    pub const CONTENT: Seen = Seen::EXISTENCE.with(Look::Content);

    /// What is learnt by operations that change nothing, but for the entries of a directory and the attributes.
    pub fn by(operations: Operations) -> Seen {
        let reads = operations.contains(Operation::Read) || operations.contains(Operation::Execute);
        if reads { Seen::CONTENT } else { Seen::EXISTENCE }
    }

    /// The set without what only reading a file or a directory tells.
    #[must_use]
    pub const fn without_bytes(self) -> Seen {
        Seen(self.0 & !(Look::Content as u16 | Look::Entries as u16))
    }

    /// Whether nothing was learnt.
    pub const fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

/// What a process did with a path while it executed one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathUse {
    /// The id of the process.
    pub process: u32,
    /// How it used the path.
    pub operations: Operations,
    /// The program that it executed then, if that is not its last one.
    pub exe: Option<Vec<u8>>,
}

/// A record: one path and what became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileRecord {
    /// The absolute path.
    pub path: Vec<u8>,
    /// Whether it is Git's state: a path in a git directory, which the command changed.
    pub is_git_state: bool,
    /// How it was used.
    pub operations: Operations,
    /// The first 16 processes that used it.
    pub processes: Vec<u32>,
    /// What each of them did, by program in order of the first use.
    pub uses: Vec<PathUse>,
    /// What was learnt of it before it was changed; nothing, unless the recording is to be recalled.
    pub seen: Seen,
    /// How many used it, where they are more than `processes` holds.
    pub process_count: Option<u32>,
    /// Whether it was used through a descriptor from before the launch.
    pub inherited: bool,
    /// Whether an inherited file was changed by its name, too.
    pub changed_by_name: bool,
    /// Whether it is an empty file, or a directory in which nothing else was made, that a process has made only to
    /// mount something on it.
    pub mount_point: bool,
    /// When the call began that changed it first, and when its state after was taken, in microseconds since 1970, if
    /// another step of the session ran beside this one.
    pub changed_between_us: Option<(u64, u64)>,
    /// The path that was renamed to this one.
    pub renamed_from: Option<Vec<u8>>,
    /// The path that this one was renamed to.
    pub renamed_to: Option<Vec<u8>>,
    /// The paths from which hard links were made here.
    pub linked_from: Vec<Vec<u8>>,
    /// Whether it is a name of another file, with other hard links than before. Not in the manifest, whose records tell it
    /// together.
    pub relinked: bool,
    /// Its state before the first observation.
    pub before: State,
    /// Its state after the last process had ended.
    pub after: State,
    /// What Git knew of it when it was first observed.
    pub git: Option<GitStatus>,
    /// What Git knew of it at the end, where that differs.
    pub git_after: Option<GitStatus>,
}

impl FileRecord {
    /// From when until when it may have been changed, by a recording that ran from `started` to `finished`.
    pub fn changed_between(&self, started: Timestamp, finished: Timestamp) -> (Timestamp, Timestamp) {
        let at = |us: u64| i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
        let known = self.changed_between_us.and_then(|(first, last)| at(first).zip(at(last)));
        known.unwrap_or((started, finished))
    }

    /// A record of which no more is known: used by no process, never renamed, in no repository.
    pub fn new(path: &[u8], before: State, after: State, operations: Operations) -> FileRecord {
        FileRecord { path: path.to_vec(), operations, before, after, ..FileRecord::default() }
    }

    /// The index of the record of `path` among `records`, which are sorted by path bytes.
    pub fn find(records: &[FileRecord], path: &[u8]) -> Option<usize> {
        records.binary_search_by(|record| record.path.as_slice().cmp(path)).ok()
    }

    /// Whether it tells how a path was used and nothing of its states.
    pub fn is_without_states(&self) -> bool {
        self.before == State::NotKept && self.after == State::NotKept
    }

    /// Whether the file was used through a descriptor from before the launch and nothing was done to it by
    /// its name: where the output of the command went, say. That is not the command's doing.
    pub fn is_inherited_alone(&self) -> bool {
        self.inherited
            && !self.changed_by_name
            && !self.operations.contains(Operation::Delete)
            && self.renamed_from.is_none()
            && self.renamed_to.is_none()
    }
}

/// The state of a path at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing was there.
    Absent {
        /// Whether the command deleted it or renamed it away.
        tombstone: bool,
    },
    /// Something was there.
    Present(Box<Present>),
    /// Unknown: the path was not changed, and the recording keeps no states of such paths.
    #[default]
    NotKept,
}

impl State {
    /// What was there, if anything.
    pub fn present(&self) -> Option<&Present> {
        match self {
            State::Absent { .. } | State::NotKept => None,
            State::Present(present) => Some(present),
        }
    }
}

/// What was at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Its type.
    pub file_type: FileType,
    /// `st_mode`, type bits included.
    pub mode: u32,
    /// Modification time in whole seconds since 1970.
    pub mtime: i64,
    /// The nanoseconds of the modification time.
    pub mtime_nsec: u32,
    /// `st_size` in bytes.
    pub size: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device of the filesystem.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Number of names.
    pub nlink: u64,
    /// The target of a symlink.
    pub target: Option<Vec<u8>>,
    /// The device that a device node stands for.
    pub rdev: Option<u64>,
    /// The digest over the sorted names of a listed directory.
    pub entries_digest: Option<Digest>,
    /// The same, with the type of each entry, if the recording is to be recalled.
    pub entry_types_digest: Option<Digest>,
    /// Extended attributes, of a path that the command changes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Inode flags, of a path that the command changes.
    pub inode_flags: BTreeSet<InodeFlag>,
    /// The digest of the content, where it was read.
    pub digest: Option<Digest>,
    /// The key of the content in `blobs.parquet`, where it is stored.
    pub blob: Option<String>,
    /// Why content that was needed is not stored.
    pub blob_omitted: Option<BlobOmitted>,
}

impl Present {
    /// Something with one name, of which no more is known: all else is zero or none.
    pub fn new(file_type: FileType, mode: u32) -> Present {
        Present {
            file_type,
            mode,
            mtime: 0,
            mtime_nsec: 0,
            size: 0,
            uid: 0,
            gid: 0,
            dev: 0,
            ino: 0,
            nlink: 1,
            target: None,
            rdev: None,
            entries_digest: None,
            entry_types_digest: None,
            xattrs: BTreeMap::new(),
            inode_flags: BTreeSet::new(),
            digest: None,
            blob: None,
            blob_omitted: None,
        }
    }

    /// Device and inode number.
    pub fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Those of anything that can have several names: only a directory can't.
    pub fn linkable_identity(&self) -> Option<(u64, u64)> {
        (self.file_type != FileType::Directory).then(|| self.identity())
    }

    /// Those of a regular file.
    pub fn file_identity(&self) -> Option<(u64, u64)> {
        (self.file_type == FileType::File).then(|| self.identity())
    }

    /// Whether it is a sparse file, whose stored content leaves out its holes.
    pub fn is_sparse(&self) -> bool {
        matches!(self.digest, Some(Digest::Sparse(_)))
    }
}

/// The type of what is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of stat(2)")]
pub enum FileType {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileType {
    /// The type that the bits of `mode` (`st_mode`) say, if they are one.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileType::File,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFLNK => FileType::Symlink,
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            _ => return None,
        })
    }
}

/// An inode flag that chattr(1) sets and statx(2) reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the words of the format")]
pub enum InodeFlag {
    Append,
    Immutable,
    Nodump,
    Compressed,
}

/// Why content that was needed is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the format")]
pub enum BlobOmitted {
    TooLarge,
    Unreadable,
    ChangedWhileReading,
    NoSpace,
    Withheld,
}

/// A digest: its kind, a colon and 64 hexadecimal digits on the wire. Digests of two kinds say nothing of
/// whether two contents are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Digest {
    /// SHA-256 over all bytes: `sha256:`.
    Sha256([u8; 32]),
    /// SHA-256 over the size and the data of a sparse file: `sparse-sha256:` (`sparse.rs`).
    Sparse([u8; 32]),
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, bytes) = match self {
            Digest::Sha256(bytes) => ("sha256", bytes),
            Digest::Sparse(bytes) => ("sparse-sha256", bytes),
        };
        write!(f, "{kind}:{}", faster_hex::hex_string(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What Git knows of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitStatus {
    /// The root of the innermost working tree.
    pub root: Vec<u8>,
    /// The repository's commit at its first observation, none when unborn.
    pub head: Option<String>,
    /// The path below `root`.
    pub relative_path: Vec<u8>,
    /// The blob whose bytes were proved to be the file's.
    pub oid: Option<String>,
    /// Whether it is in the index.
    pub tracked: bool,
    /// Whether `git status` would list it as changed against `head`.
    pub dirty: bool,
    /// Whether it is untracked and matched by the exclude rules.
    pub ignored: bool,
}
