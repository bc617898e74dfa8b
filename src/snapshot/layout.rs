//! The directory of a bundle: made, locked, and changed in one step at the commit.
//!
//! Until the commit an older snapshot stays whole. blobs.parquet has a temporary name and the manifest none;
//! what a killed recording leaves is recovered from its journal (`recover.rs`). A command that removes the
//! directory does not lose its own recording.
//! Neighbours: `blobs.rs` and `wire.rs` fill the files, `reader.rs` opens what was committed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::{Error, printable};
use super::manifest::FORMAT_VERSION;

/// The end of the name of a rescue whose restore has not ended.
pub const UNFINISHED: &str = ".unfinished";
/// The name of the manifest; it exists exactly if the snapshot is committed.
pub const MANIFEST: &str = "manifest.json";
/// The name of the stored content.
pub const BLOBS: &str = "blobs.parquet";
/// The name of the journal of a restore, in the directory of its rescue.
pub const RESTORE_JOURNAL: &str = ".agent-snapshot-restore";
/// The name of the journal of a recording that has not ended, or was killed.
pub const JOURNAL: &str = ".agent-snapshot-journal";
/// The start of the names of directories with damaged journals and their temporary files; a number follows.
const DAMAGED: &str = ".agent-snapshot-damaged-";

/// How often, and after how long, a lock is tried again.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// The name of the file that hides an unfinished recording from Git, and its content.
const GITIGNORE: (&str, &[u8]) = (".gitignore", b"*\n");

/// Prefix and suffix of temporary names: the unfinished blobs.parquet, copies of large files, and both files
/// during a commit.
pub const TEMPORARY: (&str, &str) = (".agent-snapshot-", ".tmp");

/// The filesystem counts as nearly full with less than this left ...
const RESERVE_BYTES: u64 = 256 << 20;
/// ... or less than one part in this many, whichever is less.
const RESERVE_PART: u64 = 50;

/// Whether a path is that of a file of a bundle that has contents: the blobs, a recording's journal, a temporary file, or
/// one in a directory of damaged ones.
pub fn has_contents(path: &[u8]) -> bool {
    let has_contents = |name: &[u8]| {
        [BLOBS, JOURNAL].map(str::as_bytes).contains(&name)
            || is_temporary(name)
            || name.starts_with(DAMAGED.as_bytes())
    };
    path.split(|byte| *byte == b'/').any(has_contents)
}

/// How many bytes may be taken of the filesystem of an open directory before it counts as nearly full.
pub fn room_in(directory: impl AsFd) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(directory)?;
    let (free, total) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
    Ok(free.saturating_sub(RESERVE_BYTES.min(total / RESERVE_PART)))
}

/// The first bytes of a manifest, whose keys distinguish it from the JSON of other programs.
const HEAD: u64 = 4096;

/// The directory of a new snapshot, locked while this value lives.
///
/// Everything is written relative to descriptors that were opened before the command ran, and no symlink is
/// followed from there, whatever the command puts in the place of the directory.
#[derive(Debug)]
pub struct SnapshotDir {
    dir: OwnedFd,
    /// Where the directory was, and its name there.
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
    made: Made,
}

/// Which snapshot of a recording is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// The only one.
    Only,
    /// The only one, made of a journal: the caller removes that, or keeps it.
    Recovered,
    /// The first one: the recording goes on, and its journal stays.
    First,
    /// The one that replaces the first.
    Last,
}

/// The directories that were made for a snapshot, the innermost first.
#[derive(Debug, Clone, Default)]
pub struct Made(Vec<Arc<MadeDirectory>>);

#[derive(Debug)]
struct MadeDirectory {
    parent: OwnedFd,
    name: OsString,
    identity: (u64, u64),
}

impl Made {
    /// Removes them, where they are still in place and nothing has come into them: there is no snapshot.
    pub fn remove(self) {
        for made in self.0 {
            let MadeDirectory { parent, name, identity } = &*made;
            if named_identity(parent, name) != Some(*identity)
                || rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).is_err()
            {
                break;
            }
        }
    }
}

impl SnapshotDir {
    /// Makes `path` with its parents, or takes it over if it is empty or has a snapshot, and locks it.
    ///
    /// Nothing in it is changed before [`SnapshotDir::commit`].
    pub fn create(path: &Path) -> Result<SnapshotDir, Error> {
        let directory = open_locked(path)?;
        directory.take_over()?;
        Ok(directory)
    }

    /// Checks what is in it, and makes it accessible to its owner only.
    fn take_over(&self) -> Result<(), Error> {
        check_contents(&self.dir, &self.path)?;
        make_private(&self.dir).map_err(Error::io("set the mode of", &self.path))
    }

    /// The directories that were made for it, which are removed if nothing is recorded.
    pub fn made(&self) -> &Made {
        &self.made
    }

    /// The directory's absolute path, free of symlinks.
    pub fn real_path(&self) -> &Path {
        &self.path
    }

    /// Another value for the same directory, which shares its lock.
    pub fn try_clone(&self) -> io::Result<SnapshotDir> {
        let (dir, parent) = (self.dir.try_clone()?, self.parent.try_clone()?);
        let (name, path, made) = (self.name.clone(), self.path.clone(), self.made.clone());
        Ok(SnapshotDir { dir, parent, name, path, made })
    }

    /// Device and inode of the directory.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        identity(&self.dir)
    }

    /// A new file without a name, on the directory's filesystem where possible, for `commit`.
    ///
    /// Works though the command has removed the directory, and does not make it again before the
    /// commit, which the command would notice.
    pub fn unnamed_file(&self) -> io::Result<File> {
        let refusal = match unnamed_in(&self.dir) {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let parent = rustix::fs::openat(&self.parent, c".", DIRECTORY, Mode::empty());
        let elsewhere = || rustix::fs::open(std::env::temp_dir(), DIRECTORY, Mode::empty());
        let made = parent.ok().and_then(|dir| unnamed_in(&dir).ok());
        made.or_else(|| elsewhere().ok().and_then(|dir| unnamed_in(&dir).ok())).ok_or(refusal)
    }

    /// A new file for `commit` with a temporary name in the directory, and that name: a kill of this process
    /// leaves it.
    pub fn temporary_file(&self) -> io::Result<(String, File)> {
        named(&self.dir)
    }

    /// Gives a temporary name in the directory to a file of [`SnapshotDir::unnamed_file`].
    pub fn name_temporarily(&self, file: &File) -> io::Result<String> {
        link(&self.dir, file)
    }

    /// Removes temporary names.
    pub fn remove_temporaries(&self, names: &[String]) {
        for name in names {
            // A name that stays is removed by the commit.
            let _ = remove(&self.dir, name);
        }
    }

    /// Waits until the names in it are on the disk.
    pub fn sync_names(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    /// Opens a temporary file by its name, to be read and completed.
    pub fn open_temporary(&self, name: &str) -> io::Result<File> {
        if !is_temporary(name.as_bytes()) || name.contains('/') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Ok(File::from(rustix::fs::openat(&self.dir, name, flags, Mode::empty())?))
    }

    /// Makes the journal of a recording, and hides the directory from Git until the commit.
    pub fn create_journal(&self) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut ignore = File::from(rustix::fs::openat(&self.dir, GITIGNORE.0, flags, PRIVATE).or_else(
            // It was left by a killed recording: what else is in the directory was checked.
            |_| rustix::fs::openat(&self.dir, GITIGNORE.0, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()),
        )?);
        io::Write::write_all(&mut ignore, GITIGNORE.1)?;
        Ok(File::from(rustix::fs::openat(&self.dir, JOURNAL, flags, PRIVATE)?))
    }

    /// Makes the directory again, if it was removed, with copies of what the recording had on file: of its journal,
    /// and under the name that this gives, of its blobs.
    pub fn put_back(self, journal: &File, blobs: (&str, &File)) -> Result<SnapshotDir, Error> {
        let directory = self.find_or_make_again()?;
        let copy = |mut to: File, from: &File| io::copy(&mut crate::fs::reopen(from)?, &mut to).map(drop);
        let put = || -> io::Result<()> {
            let (name, content) = blobs;
            if !is_temporary(name.as_bytes()) || name.contains('/') {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            copy(File::from(rustix::fs::openat(&directory.dir, name, flags, PRIVATE)?), content)?;
            copy(directory.create_journal()?, journal)
        };
        put().map_err(Error::io("put back what was recorded in", &directory.path))?;
        Ok(directory)
    }

    /// Opens the journal that a killed recording has left.
    pub fn open_journal(&self) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.dir, JOURNAL, flags, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it holds a committed snapshot.
    pub fn is_committed(&self) -> bool {
        named_identity(&self.dir, OsStr::new(MANIFEST)).is_some()
    }

    /// Removes what an unfinished recording has left, the journal last; a committed snapshot stays.
    pub fn discard_unfinished(&self) -> io::Result<()> {
        remove_unfinished(&self.dir)
    }

    /// Moves the journal of an unfinished recording, with the temporary files, into a new directory in this one, which is
    /// returned; it goes with the snapshot, or when the user has it removed.
    pub fn keep_damaged(&self) -> io::Result<PathBuf> {
        let mut number = 1;
        let name = loop {
            let name = format!("{DAMAGED}{number}");
            match rustix::fs::mkdirat(&self.dir, &name, Mode::RWXU) {
                Ok(()) => break name,
                Err(Errno::EXIST) => number += 1,
                Err(error) => return Err(error.into()),
            }
        };
        let aside = rustix::fs::openat(&self.dir, &name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        let mut names = entries(&self.dir)?;
        names.retain(|name| is_temporary(name));
        // The last: without it the others are of no use.
        names.push(JOURNAL.as_bytes().to_vec());
        for name in names {
            rustix::fs::renameat(&self.dir, name.as_slice(), &aside, name.as_slice())?;
        }
        self.discard_unfinished()?;
        Ok(self.path.join(name))
    }

    /// How many bytes may be taken before the command itself could run out of space.
    pub fn room(&self) -> io::Result<u64> {
        room_in(&self.dir)
    }

    /// Puts the files in place, the manifest last, and returns the directory where it is now. Where it was
    /// removed it is made again.
    ///
    /// A crash leaves the older snapshot, none, or the new one, never a manifest beside blobs that
    /// are not its own; of a first and a last snapshot always one. With `sync` that holds for a crash of the
    /// machine, too.
    pub fn commit(
        self,
        blobs: Option<File>,
        manifest: File,
        commit: Commit,
        sync: bool,
    ) -> Result<SnapshotDir, Error> {
        let home = self.find_or_make_again()?;
        let failed = |what: &str| Error::io(what, &home.path);

        let mut names = Temporaries { dir: &home.dir, names: Vec::new() };
        let blobs = blobs.map(|file| names.give(file, sync)).transpose().map_err(failed("write blobs in"))?;
        let manifest = names.give(manifest, sync).map_err(failed("write the manifest in"))?;
        let sync_dir = || if sync { rustix::fs::fsync(&home.dir).map_err(io::Error::from) } else { Ok(()) };

        sync_dir().map_err(failed("sync"))?;
        // The last snapshot has all rows of the first one under the same keys.
        if commit != Commit::Last {
            // From here to the last line a crash leaves no snapshot rather than a wrong one.
            remove(&home.dir, MANIFEST).map_err(failed("remove the old manifest in"))?;
            sync_dir().map_err(failed("sync"))?;
            // A rename over an old file would have ext4 write all of the new one to the disk at once
            // (auto_da_alloc, ext4(5)), which is only `sync`'s to ask for.
            remove(&home.dir, BLOBS).map_err(failed("remove the old blobs.parquet in"))?;
            sync_dir().map_err(failed("sync"))?;
        }
        if let Some(name) = blobs {
            names.put(&name, BLOBS).map_err(failed("put blobs.parquet into"))?;
        }
        sync_dir().map_err(failed("sync"))?;
        names.put(&manifest, MANIFEST).map_err(failed("put manifest.json into"))?;
        sync_dir().map_err(failed("sync"))?;
        if sync {
            // `parent` is an O_PATH descriptor, which can't be synced.
            let parent = rustix::fs::openat(&home.dir, c"..", DIRECTORY, Mode::empty());
            parent.and_then(rustix::fs::fsync).map_err(io::Error::from).map_err(failed("sync what holds"))?;
        }
        drop(names);
        if matches!(commit, Commit::Only | Commit::Last) {
            // The snapshot is complete without this, so that errors do not matter.
            let _ = remove_unfinished(&home.dir);
        }
        Ok(home)
    }

    /// Lets others have the directory, before all values for it are dropped.
    pub fn unlock(&self) {
        // A child that another thread is forking has the descriptor, and with it the lock, until its execve: the next
        // process that wants the directory need not wait for that.
        let _ = rustix::fs::flock(&self.dir, FlockOperation::Unlock);
    }

    /// The directory where it is now; made again in its place where it was removed.
    fn find_or_make_again(mut self) -> Result<SnapshotDir, Error> {
        if let Some(path) = path_of(&self.dir) {
            self.path = path;
            return Ok(self);
        }
        // A symlink or a foreign directory may be in its place.
        let failed = || Error::io("make the snapshot's directory again at", &self.path);
        let parent = match path_of(&self.parent) {
            Some(_) => self.parent,
            None => make_again(self.path.parent().unwrap_or(&self.path)).map_err(failed())?,
        };
        match rustix::fs::mkdirat(&parent, &self.name, Mode::RWXU) {
            // Perhaps the command has made it for itself.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed()(error.into())),
        }
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let dir = match rustix::fs::openat(&parent, &self.name, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(refused(&self.path, "was removed, and what is there now is not a directory"));
            }
            Err(error) => return Err(failed()(error.into())),
        };
        let again = SnapshotDir { dir, parent, name: self.name, path: self.path, made: self.made };
        again.lock()?;
        again.take_over()?;
        Ok(again)
    }

    /// Locks it. Fails if another recording has locked it, or another user owns it.
    fn lock(&self) -> Result<(), Error> {
        // The lock only excludes other recordings; on a filesystem without locks (some NFS) there is none.
        let lock = || rustix::fs::flock(&self.dir, FlockOperation::NonBlockingLockExclusive);
        // Whoever asks whether it is locked has it for a moment (`is_locked`).
        let mut tries = 0..LOCK_TRIES;
        while lock() == Err(Errno::WOULDBLOCK) {
            if tries.next().is_none() {
                let path = printable(self.path.as_os_str().as_bytes());
                return Err(Error::InUse(format!("{path} is being written by another recording")));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        let stat =
            rustix::fs::fstat(&self.dir).map_err(|error| Error::io("stat", &self.path)(error.into()))?;
        // Another owner could replace this snapshot, or read it.
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            let reason = format!("belongs to user {}: name a new directory or your own", stat.st_uid);
            return Err(refused(&self.path, &reason));
        }
        Ok(())
    }
}

/// Device and inode of what is open.
fn identity(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Device and inode of what has a name in a directory, be it a symlink.
fn named_identity(dir: &OwnedFd, name: &OsStr) -> Option<(u64, u64)> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// The path that an open directory has now; none where it was removed.
fn path_of(dir: &OwnedFd) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let path = PathBuf::from(OsString::from_vec(rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes()));
    let stat = rustix::fs::lstat(&path).ok()?;
    (identity(dir).ok()? == (stat.st_dev, stat.st_ino)).then_some(path)
}

/// Makes the directories of a path again that are missing, following no symlink: it had none.
fn make_again(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | DIRECTORY;
    let mut dir = rustix::fs::open(c"/", flags, Mode::empty())?;
    for name in path.iter().skip(1) {
        match rustix::fs::mkdirat(&dir, name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
            Ok(()) | Err(Errno::EXIST) => {}
            // Where nothing may be made (EACCES, EROFS), it may be there.
            Err(error) if named_identity(&dir, name).is_none() => return Err(error.into()),
            Err(_) => {}
        }
        dir = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
    }
    Ok(dir)
}

/// Makes the directory, opens and locks it, and sees that the locked one is still the named one.
fn open_locked(path: &Path) -> Result<SnapshotDir, Error> {
    loop {
        let made = make(path).map_err(Error::io("create", path))?;
        let dir = match rustix::fs::open(path, DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOTDIR) => return Err(refused(path, "is not a directory")),
            Err(error) => return Err(Error::io("open", path)(error.into())),
        };
        let real = path.canonicalize().map_err(Error::io("resolve", path))?;
        let (parent, name) = match (real.parent(), real.file_name()) {
            (Some(parent), Some(name)) => (parent, name.to_owned()),
            _ => (real.as_path(), ".".into()),
        };
        let parent = rustix::fs::open(parent, OFlags::PATH | DIRECTORY, Mode::empty())
            .map_err(|error| Error::io("open", parent)(error.into()))?;
        let directory = SnapshotDir { dir, parent, name, path: real, made };
        directory.lock()?;
        let identity = directory.identity().map_err(Error::io("stat", path))?;
        if named_identity(&directory.parent, &directory.name) == Some(identity) {
            return Ok(directory);
        }
    }
}

/// Makes the parents as `mkdir -p` does, and the directory itself with mode 0700.
fn make(path: &Path) -> io::Result<Made> {
    let absolute = std::path::absolute(path)?;
    let mut missing: Vec<_> = absolute.ancestors().take_while(|path| !path.exists()).collect();
    let mut made = Made::default();
    while let Some(path) = missing.pop() {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let parent = rustix::fs::open(parent, OFlags::PATH | DIRECTORY, Mode::empty())?;
        let all = Mode::RWXU | Mode::RWXG | Mode::RWXO;
        let mode = if missing.is_empty() { Mode::RWXU } else { all };
        rustix::fs::mkdirat(&parent, name, mode).map_err(io::Error::from).or_else(exists)?;
        if let Some(identity) = named_identity(&parent, name) {
            made.0.insert(0, Arc::new(MadeDirectory { parent, name: name.to_owned(), identity }));
        }
    }
    Ok(made)
}

fn exists(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

/// Sets mode 0700 on the directory; a shared one (sticky) is left alone.
fn make_private(dir: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(dir)?;
    let shared = stat.st_mode & libc::S_ISVTX != 0;
    if !shared && stat.st_mode & 0o7777 != 0o700 {
        rustix::fs::fchmod(dir, Mode::RWXU)?;
    }
    Ok(())
}

/// Whether a process has locked the directory at `path`.
pub fn is_locked(path: &Path) -> bool {
    let opened = rustix::fs::open(path, DIRECTORY, Mode::empty());
    opened.is_ok_and(|dir| {
        rustix::fs::flock(dir, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

/// Waits until no process has locked the directory at `path`.
pub fn wait_until_unlocked(path: &Path) -> io::Result<()> {
    let dir = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
    Ok(rustix::fs::flock(dir, FlockOperation::LockShared)?)
}

fn refused(path: &Path, reason: &str) -> Error {
    Error::Refused(format!("{} {reason}", printable(path.as_os_str().as_bytes())))
}

/// Accepts an empty directory and one with a snapshot of ours, finished or not.
fn check_contents(dir: &OwnedFd, path: &Path) -> Result<(), Error> {
    let (mut manifest, mut blobs, mut temporary) = (false, false, false);
    for name in entries(dir).map_err(Error::io("list", path))? {
        let stat = rustix::fs::statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        let is_a = |wanted| stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == wanted);
        let regular = is_a(FileType::RegularFile);
        match name.as_slice() {
            name if regular && name == MANIFEST.as_bytes() => manifest = true,
            name if regular && name == BLOBS.as_bytes() => blobs = true,
            name if regular && is_temporary(name) => temporary = true,
            name if regular && name == RESTORE_JOURNAL.as_bytes() => {}
            name if regular && name == JOURNAL.as_bytes() => temporary = true,
            name if regular && name == GITIGNORE.0.as_bytes() && is_own_gitignore(dir) => {}
            name if is_damaged_journal(name) && is_a(FileType::Directory) => {}
            other => {
                let reason = format!(
                    "holds {}, which is not a part of a snapshot: name a new or an empty directory",
                    printable(other)
                );
                return Err(refused(path, &reason));
            }
        }
    }
    if manifest && !head_is_ours(dir).map_err(Error::io("read the manifest in", path))? {
        return Err(refused(path, "holds a manifest.json that this version of agent-snapshot did not write"));
    }
    // A crash between the two renames of a commit leaves the manifest under a temporary name.
    if blobs && !manifest && !temporary {
        return Err(refused(path, "holds a blobs.parquet without a manifest.json"));
    }
    Ok(())
}

/// Whether `manifest.json` starts with the keys that ours start with, in a version we know.
fn head_is_ours(dir: &OwnedFd) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(dir, MANIFEST, flags, Mode::empty())?);
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head)?;
    head.retain(|byte| !byte.is_ascii_whitespace());
    let Some(rest) = head.strip_prefix(b"{\"format_version\":") else { return Ok(false) };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let version = std::str::from_utf8(&rest[..digits]).ok().and_then(|digits| digits.parse::<u64>().ok());
    Ok(version.is_some_and(|version| (1..=FORMAT_VERSION).contains(&version))
        && rest[digits..].starts_with(b",\"id\":\""))
}

fn entries(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Whether `name` is that of a temporary file.
pub fn is_temporary(name: &[u8]) -> bool {
    name.strip_prefix(TEMPORARY.0.as_bytes()).is_some_and(|rest| rest.ends_with(TEMPORARY.1.as_bytes()))
}

/// Whether `name` is that of the file that hides an unfinished recording from Git.
pub fn is_gitignore(name: &[u8]) -> bool {
    name == GITIGNORE.0.as_bytes()
}

/// Removes the temporary files of a killed commit or recording, and last its journal, which names them.
fn remove_unfinished(dir: &OwnedFd) -> io::Result<()> {
    for name in entries(dir)? {
        if is_temporary(&name) || name == GITIGNORE.0.as_bytes() && is_own_gitignore(dir) {
            rustix::fs::unlinkat(dir, name.as_slice(), AtFlags::empty())?;
        }
    }
    remove(dir, JOURNAL)
}

/// The directories in the one at `path` that have damaged journals.
pub fn damaged_journals(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_one = |entry: &std::fs::DirEntry| {
        is_damaged_journal(entry.file_name().as_bytes()) && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    entries.filter(is_one).map(|entry| entry.path()).collect()
}

/// Whether `name` is that of a directory with a damaged journal.
fn is_damaged_journal(name: &[u8]) -> bool {
    name.strip_prefix(DAMAGED.as_bytes())
        .is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
}

/// Whether the `.gitignore` of a directory is the one that we write.
fn is_own_gitignore(dir: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(dir, GITIGNORE.0, flags, Mode::empty()) else { return false };
    let mut text = Vec::new();
    let read = File::from(file).take(16).read_to_end(&mut text);
    // A kill may have cut it.
    read.is_ok() && GITIGNORE.1.starts_with(&text)
}

fn remove(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

fn unnamed(dir: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(dir, c".", flags, PRIVATE)?))
}

fn unnamed_in(dir: &OwnedFd) -> io::Result<File> {
    // EOPNOTSUPP or EISDIR say that the filesystem or the kernel has no O_TMPFILE (open(2)), ENOENT
    // that the directory was removed; whatever else it is, the named file meets it too.
    unnamed(dir).or_else(|_| unlinked(dir))
}

/// A file whose name is removed at once.
fn unlinked(dir: &OwnedFd) -> io::Result<File> {
    let (name, file) = named(dir)?;
    rustix::fs::unlinkat(dir, name.as_str(), AtFlags::empty())?;
    Ok(file)
}

fn named(dir: &OwnedFd) -> io::Result<(String, File)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    free_name(|name| Ok(File::from(rustix::fs::openat(dir, name, flags, PRIVATE)?)))
}

/// Calls `take` with random temporary names until one is free.
fn free_name<T>(mut take: impl FnMut(&str) -> io::Result<T>) -> io::Result<(String, T)> {
    loop {
        // RandomState draws its keys from the system: unpredictable enough for a name in a
        // directory of our own, and a name that is taken is not reused but refused.
        let name = format!("{}{:016x}{}", TEMPORARY.0, RandomState::new().hash_one(()), TEMPORARY.1);
        match take(&name) {
            Ok(value) => return Ok((name, value)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Gives a file a temporary name.
fn link(dir: &OwnedFd, file: &File) -> io::Result<String> {
    let proc = format!("/proc/self/fd/{}", file.as_raw_fd());
    // AT_EMPTY_PATH would need a capability (linkat(2)), the path through /proc does not.
    let linked =
        free_name(|name| Ok(rustix::fs::linkat(CWD, proc.as_str(), dir, name, AtFlags::SYMLINK_FOLLOW)?));
    Ok(linked?.0)
}

/// The temporary names of a commit, removed if it fails.
struct Temporaries<'a> {
    dir: &'a OwnedFd,
    names: Vec<String>,
}

impl Temporaries<'_> {
    /// Gives `file` a temporary name, by a hard link if possible and else by a copy.
    fn give(&mut self, file: File, sync: bool) -> io::Result<String> {
        let (name, file) = match link(self.dir, &file) {
            Ok(name) => (name, file),
            // EXDEV where the directory was made again elsewhere, ENOENT where the name is gone for
            // good; and if it is worse than that, the copy meets it too.
            Err(_) => self.copy(file)?,
        };
        self.names.push(name.clone());
        rustix::fs::fchmod(&file, PRIVATE)?;
        if sync {
            file.sync_all()?;
        }
        Ok(name)
    }

    fn copy(&mut self, mut from: File) -> io::Result<(String, File)> {
        let (name, mut to) = named(self.dir)?;
        self.names.push(name.clone());
        from.rewind()?;
        io::copy(&mut from, &mut to)?;
        Ok((name, to))
    }

    /// Makes a temporary name final.
    fn put(&mut self, temporary: &str, name: &str) -> io::Result<()> {
        rustix::fs::renameat(self.dir, temporary, self.dir, name)?;
        self.names.retain(|given| given != temporary);
        Ok(())
    }
}

impl Drop for Temporaries<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = remove(self.dir, name);
        }
    }
}

#[cfg(test)]
mod tests;
