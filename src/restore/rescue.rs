//! The snapshot of what a restore overwrites: written before anything changes, so that the restore
//! can be undone, and completed where it was killed.
//!
//! It lies beside the snapshot that is restored, and is called `.unfinished`, with a journal in it, until
//! all is done. Its
//! before-states are those of the live files, with their content; its after-states those that the
//! restore puts back, whose content stays where it is. Neighbours: `plan.rs` has the steps,
//! `apply.rs` carries them out.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::journal::{self, Journal};
use super::loosen::Loosener;
use super::make::Policy;
use super::place::{Place, Spot};
use super::plan::{Action, Request, Step, is_unchanged};
use crate::snapshot::blobs::{BlobWriter, Compression, Side, StoreLimit, blob_key};
use crate::snapshot::compare::state;
use crate::snapshot::digest::digest_file;
use crate::snapshot::layout::{self, SnapshotDir};
use crate::snapshot::wire::write_manifest;
use crate::snapshot::{self, *};

/// What the name of a rescue has behind that of the snapshot.
const RESCUE: &str = "-rescue-";
/// What the name of a rescue ends in until its restore is done.
const UNFINISHED: &str = ".unfinished";

/// The directory of a restore that came to no end: its journal, and its rescue if it came so far.
#[derive(Debug)]
pub struct Unfinished {
    /// The directory.
    pub path: PathBuf,
    /// The rescue.
    pub snapshot: Option<Snapshot>,
}

/// The directory of the snapshots and the name that rescues of `snap` start with; a rescue of a rescue
/// is one more of the first snapshot.
fn family(snap: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    let real = snap.canonicalize()?;
    let name = real.file_name().unwrap_or(OsStr::new("root")).as_bytes();
    let name = name.strip_suffix(UNFINISHED.as_bytes()).unwrap_or(name);
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let base = name[..name.len() - digits].strip_suffix(RESCUE.as_bytes()).filter(|_| digits > 0);
    let name = base.unwrap_or(name).to_vec();
    Ok((real.parent().unwrap_or(Path::new("/")).to_owned(), name))
}

/// The directories of the restores of the snapshot `snap`, or of its rescues, that came to no end, or
/// have not yet; in the order of their numbers.
pub fn unfinished(snap: &Path) -> io::Result<Vec<Unfinished>> {
    let (directory, base) = family(snap)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if !is_unfinished_name(&base, &entry.file_name()) || !is_own_directory(&path) {
            continue;
        }
        let snapshot = Snapshot::open(&path).ok().filter(is_ours);
        // Another's rescue, with a manifest of its own, could say that files of ours were half done.
        if snapshot.is_some() || is_abandoned(&path) {
            found.push(Unfinished { path, snapshot });
        }
    }
    found.sort_by_key(|one| (one.path.as_os_str().len(), one.path.clone()));
    Ok(found)
}

/// The rescues of the snapshot `snap` whose restores were interrupted.
pub fn interrupted(snap: &Path) -> Vec<PathBuf> {
    let is_dead = |one: &Unfinished| !matches!(journal::find(&one.path), Ok(journal::Found::Alive));
    // What can't be looked at is told by a restore.
    let found = unfinished(snap).unwrap_or_default().into_iter();
    found.filter(|one| one.snapshot.is_some() && is_dead(one)).map(|one| one.path).collect()
}

/// Ends the restore whose journal is in `directory`: a rescue gets its final name, and what is none is
/// removed.
pub fn end(directory: &Path) -> io::Result<()> {
    let names = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let has_rescue = names.iter().any(|name| name == layout::MANIFEST);
    for name in &names {
        if name == layout::RESTORE_JOURNAL
            || layout::is_temporary(name.as_bytes())
            || !has_rescue && name == layout::BLOBS
        {
            std::fs::remove_file(directory.join(name))?;
        }
    }
    if !has_rescue {
        return std::fs::remove_dir(directory);
    }
    let done = final_name(directory);
    std::fs::rename(directory, &done)?;
    done.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// The name of the rescue in `directory` when its restore has ended.
pub fn final_name(directory: &Path) -> PathBuf {
    let name = directory.as_os_str().as_bytes();
    PathBuf::from(OsStr::from_bytes(name.strip_suffix(UNFINISHED.as_bytes()).unwrap_or(name)))
}

/// Whether `name` is that of an unfinished rescue of the snapshots called `base`.
fn is_unfinished_name(base: &[u8], name: &OsStr) -> bool {
    let number = name
        .as_bytes()
        .strip_prefix(base)
        .and_then(|rest| rest.strip_prefix(RESCUE.as_bytes()))
        .and_then(|rest| rest.strip_suffix(UNFINISHED.as_bytes()));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Whether we wrote the rescue: another's could say that files of ours are half done.
fn is_ours(snapshot: &Snapshot) -> bool {
    let header = snapshot.header();
    let user = nix::unistd::geteuid().as_raw();
    header.kind == Kind::Rescue
        && header.uid == user
        && snapshot.owner() == Some(user)
        && header.host.machine == live::machine_id_hash().to_string()
}

/// Whether `path` is a directory of ours that nobody else writes to.
fn is_own_directory(path: &Path) -> bool {
    let Ok(stat) = std::fs::symlink_metadata(path) else { return false };
    stat.is_dir() && stat.uid() == nix::unistd::geteuid().as_raw() && stat.mode() & 0o022 == 0
}

/// The name of the rescues of the snapshot `id`, which tells it from a later one in its directory.
pub fn name(id: &str) -> String {
    format!("rescue of {id}")
}

/// The command of a rescue: what was asked for, in one form.
pub fn command(snap: &Path, goal: Side, paths: &[Vec<u8>]) -> io::Result<Vec<Vec<u8>>> {
    let mut command = vec![b"agent-snapshot".to_vec(), b"restore".to_vec()];
    command.push(snap.canonicalize()?.into_os_string().into_encoded_bytes());
    if goal == Side::Before {
        command.push(b"--before".to_vec());
    }
    command.extend(paths.iter().cloned());
    Ok(command)
}

/// One path of a rescue.
#[derive(Debug)]
pub struct Kept {
    /// Its record; the content of the before-state is not in it yet.
    pub record: FileRecord,
    /// Whether that content is to be kept.
    pub content: bool,
}

/// What is to be kept of all that the steps change, by path.
///
/// `directories` are those in which names change or whose permission bits are loosened, as they are
/// now, with the modification time that each will get.
pub fn kept(
    request: &Request,
    steps: &[Step],
    parents: impl Iterator<Item = Vec<u8>>,
    directories: &BTreeMap<Vec<u8>, Present>,
) -> BTreeMap<Vec<u8>, Kept> {
    let mut kept: BTreeMap<Vec<u8>, Kept> = BTreeMap::new();
    for (path, present) in directories {
        let at = State::Present(Box::new(present.clone()));
        let record = FileRecord::new(path, at.clone(), at, Operation::Directory.into());
        kept.insert(path.clone(), Kept { record, content: false });
    }
    for path in parents {
        let absent = State::Absent { tombstone: false };
        let made = State::Present(Box::new(new_directory()));
        let operations = Operations::from(Operation::Directory).with(Operation::Write);
        let record = FileRecord::new(&path, absent, made, operations);
        kept.insert(path, Kept { record, content: false });
    }
    for step in steps {
        if let Some(one) = kept_of(request, step) {
            kept.insert(one.record.path.clone(), one);
        }
    }
    keep_other_names(request, steps, &mut kept);
    kept
}

/// Notes the other names of files that lose or get one, so that it can be undone.
fn keep_other_names(request: &Request, steps: &[Step], kept: &mut BTreeMap<Vec<u8>, Kept>) {
    let inode = |at: &Present| (at.file_type == FileType::File && at.nlink > 1).then_some((at.dev, at.ino));
    let lost: HashSet<_> =
        kept.values().filter_map(|one| one.record.before.present().and_then(inode)).collect();
    for (index, look) in request.looks {
        let path = &request.files[*index].path;
        let Some(live) = look.as_ref().ok().and_then(|look| look.live.as_ref()) else { continue };
        if inode(live).is_some_and(|inode| lost.contains(&inode)) && !kept.contains_key(path) {
            let at = State::Present(Box::new(live.clone()));
            let record = FileRecord::new(path, at.clone(), at, Operation::Existence.into());
            kept.insert(path.clone(), Kept { record, content: false });
        }
    }
    for step in steps {
        let Action::Link { to } = step.action else { continue };
        let leader = &request.files[to];
        let live = request.looks.get(&to).and_then(|look| look.as_ref().ok()?.live.as_ref());
        let goal = state(leader, request.goal).present();
        if let (Some(live), Some(goal), false) = (live, goal, kept.contains_key(&leader.path)) {
            let after = State::Present(Box::new(promised(goal, request.policy)));
            let before = State::Present(Box::new(live.clone()));
            let record = FileRecord::new(&leader.path, before, after, Operation::Existence.into());
            kept.insert(leader.path.clone(), Kept { record, content: false });
        }
    }
}

fn kept_of(request: &Request, step: &Step) -> Option<Kept> {
    // A directory that is made because something in it is was not looked at: it is missing.
    let looked = match request.looks.get(&step.record) {
        Some(look) => look.as_ref().ok()?.live.as_ref(),
        None => None,
    };
    let source = &request.files[step.record];
    let before = match looked {
        Some(live) => State::Present(Box::new(live.clone())),
        None => State::Absent { tombstone: false },
    };
    let (after, operations) = match &step.action {
        Action::Remove => (State::Absent { tombstone: true }, Operation::Delete.into()),
        Action::Attributes(attributes) => {
            let mut after = looked.cloned()?;
            if let Some(permissions) = attributes.permissions {
                after.mode = after.mode & libc::S_IFMT | permissions;
            }
            if let Some((uid, gid)) = attributes.owner {
                (after.uid, after.gid) = (uid, gid);
            }
            if let Some((mtime, mtime_nsec)) = attributes.mtime {
                (after.mtime, after.mtime_nsec) = (mtime, mtime_nsec);
            }
            if let Some(flags) = &attributes.flags {
                after.inode_flags = flags.clone();
            }
            for (name, value) in &attributes.xattrs {
                match value {
                    Some(value) => after.xattrs.insert(name.clone(), value.clone()),
                    None => after.xattrs.remove(name),
                };
            }
            (State::Present(Box::new(after)), Operation::Metadata.into())
        }
        Action::File { .. } | Action::Link { .. } | Action::Node => {
            let goal = state(source, request.goal).present()?;
            (State::Present(Box::new(promised(goal, request.policy))), Operation::Write.into())
        }
    };
    let content = !matches!(step.action, Action::Attributes(_))
        && looked.is_some_and(|live| live.file_type == FileType::File);
    let mut record = FileRecord::new(&source.path, before, after, operations);
    record.git_after = match request.goal {
        Side::Before => source.git.clone(),
        Side::After => source.git_after.clone().or_else(|| source.git.clone()),
    }
    .filter(|git| git.oid.is_some() && record.after.present().is_some_and(|after| after.digest.is_none()));
    Some(Kept { record, content })
}

/// The state that a restore puts back, without its content, which is in another snapshot.
fn promised(goal: &Present, policy: &Policy) -> Present {
    let mut after = goal.clone();
    if goal.file_type != FileType::Symlink {
        after.mode = goal.mode & libc::S_IFMT | policy.permissions(goal);
    }
    after.entries_digest = None;
    // That its bytes are in the other snapshot is no gap of the rescue.
    (after.blob, after.blob_omitted) = (None, None);
    after
}

fn new_directory() -> Present {
    Present {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        ..Present::new(FileType::Directory, libc::S_IFDIR | 0o755)
    }
}

/// Whether what a step overwrites is kept already in the rescue of the run that was killed, of which
/// `records` are those of the path.
///
/// Bytes that are not the kept ones are never taken for them, whatever the metadata says.
pub fn is_kept(
    records: &[&FileRecord],
    step: &Step,
    live: Option<&Present>,
    place: &Place,
    loosener: &mut Loosener,
) -> bool {
    let mut has_content = |before: &Present, live: &Present| {
        live.file_type != FileType::File
            || matches!(step.action, Action::Attributes(_))
            || before.digest.is_some_and(|kept| {
                // What can't be read is no reason to stop: to keep it once more will be.
                (before.blob.is_some() || before.size == 0) && {
                    let spot = place.spot(&records[0].path).ok().flatten();
                    let file = spot.and_then(|spot| open_for_reading(&records[0].path, &spot, loosener).ok());
                    file.and_then(|file| digest_file(&file).ok()).is_some_and(|(found, _)| found == kept)
                }
            })
    };
    records.iter().any(|record| match (record.before.present(), live) {
        (_, None) => true,
        (Some(before), Some(live)) => {
            let is_one = (before.dev, before.ino) == (live.dev, live.ino);
            let is_file = live.file_type == FileType::File;
            (is_unchanged(before, live) || is_one && !is_file) && has_content(before, live)
        }
        (None, Some(live)) => live.file_type == FileType::Directory,
    })
}

/// Why a rescue was not written; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory can't be made.
    #[error("make a directory for the rescue beside the snapshot: {0}")]
    Directory(io::Error),
    /// The directory or a file in it can't be written.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// What is there can't be read, or not be written to the rescue.
    #[error("keep {} in {}: {source}", printable(path), printable(rescue.as_os_str().as_bytes()))]
    Keep {
        /// The path.
        path: Vec<u8>,
        /// The rescue.
        rescue: PathBuf,
        /// The refusal.
        source: io::Error,
    },
}

/// Writes a rescue of `kept` into the directory of the journal and flushes it to the disk.
pub fn write(
    journal: &Journal,
    header: &Header,
    kept: BTreeMap<Vec<u8>, Kept>,
    place: &Place,
    loosener: &mut Loosener,
) -> Result<(), Error> {
    let path = journal.directory().map_err(Error::Directory)?;
    let target = SnapshotDir::create(path)?;
    let failed = |what: &str| snapshot::Error::io(what, path);
    let blobs = target.unnamed_file().map_err(failed("write the rescue"))?;
    let mut writer = BlobWriter::new(blobs, Compression::Snappy).map_err(failed("write the rescue"))?;
    let mut records = Vec::with_capacity(kept.len());
    for Kept { mut record, content } in kept.into_values() {
        if let (true, State::Present(before)) = (content, &mut record.before) {
            let keep = store(&mut writer, &record.path, before, place, loosener);
            keep.map_err(|source| Error::Keep {
                path: record.path.clone(),
                rescue: path.to_owned(),
                source,
            })?;
        }
        records.push(record);
    }
    let blobs = writer.finish().map_err(failed("write the rescue"))?;
    let manifest = target.unnamed_file().map_err(failed("write the rescue"))?;
    write_manifest(&manifest, header, &records).map_err(failed("write the rescue"))?;
    target.commit(blobs, manifest, true)?;
    Ok(())
}

fn store(
    writer: &mut BlobWriter,
    path: &[u8],
    before: &mut Present,
    place: &Place,
    loosener: &mut Loosener,
) -> io::Result<()> {
    let spot = place.spot(path)?.ok_or(io::ErrorKind::NotFound)?;
    let file = open_for_reading(path, &spot, loosener)?;
    let stored = writer.store_file(&blob_key(Side::Before, path), &file, StoreLimit::NONE)?;
    if stored.size != before.size {
        return Err(io::Error::other("it changed while it was read"));
    }
    before.digest = Some(stored.digest);
    before.blob = stored.blob.map(|key| key.to_string());
    Ok(())
}

/// Opens a regular file; one of our own that we may not read is made readable for that moment.
fn open_for_reading(path: &[u8], spot: &Spot, loosener: &mut Loosener) -> io::Result<File> {
    match live::open_regular(&spot.proc_path()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let held = spot.hold()?.ok_or(io::ErrorKind::NotFound)?;
            if held.stat().st_mode & libc::S_IFMT != libc::S_IFREG {
                return Err(error);
            }
            let opened = loosener.for_a_moment(path, held, 0o400, |held| held.open(OFlags::RDONLY));
            Ok(File::from(opened?))
        }
        other => other,
    }
}

/// Makes a directory beside `snap` under the next name that no rescue has, and `journal` in it; one that
/// has no journal yet is what a run that was killed early has left.
pub fn new_directory_beside(
    snap: &Path,
    journal: impl Fn(&Path) -> io::Result<Option<File>>,
) -> io::Result<(PathBuf, File)> {
    let (directory, base) = family(snap)?;
    let name = |number: u32, end: &str| {
        let mut name = base.clone();
        name.extend_from_slice(format!("{RESCUE}{number}{end}").as_bytes());
        directory.join(OsStr::from_bytes(&name))
    };
    for number in 1..=u32::MAX {
        if std::fs::symlink_metadata(name(number, "")).is_ok() {
            continue;
        }
        let candidate = name(number, UNFINISHED);
        match rustix::fs::mkdir(&candidate, Mode::RWXU) {
            Err(Errno::EXIST) if !is_own_directory(&candidate) || !is_abandoned(&candidate) => {}
            Ok(()) | Err(Errno::EXIST) => {
                if let Some(file) = journal(&candidate)? {
                    return Ok((candidate, file));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Whether no rescue is in the directory: its restore never came so far that a file was changed.
fn is_abandoned(path: &Path) -> bool {
    let none = std::fs::symlink_metadata(path.join(layout::MANIFEST));
    none.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The header of a rescue.
pub fn header(of: &Header, id: &str, command: Vec<Vec<u8>>) -> Header {
    let now = jiff::Timestamp::now().to_string();
    let cwd = std::env::current_dir()
        .map_or_else(|_| b"/".to_vec(), |cwd| cwd.into_os_string().into_encoded_bytes());
    let kernel = nix::sys::utsname::uname();
    Header {
        id: id.to_owned(),
        kind: Kind::Rescue,
        name: Some(name(&of.id)),
        session: of.session.clone(),
        tool: Tool { name: env!("CARGO_PKG_NAME").to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        host: Host {
            arch: std::env::consts::ARCH.to_owned(),
            kernel: kernel.map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default(),
            machine: live::machine_id_hash().to_string(),
        },
        command,
        exit_status: 0,
        exit_signal: None,
        timed_out: false,
        start_cwd: cwd,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        started_at: now.clone(),
        finished_at: now,
        complete: true,
        warnings: Vec::new(),
        suppressed: Vec::new(),
        git_repositories: Vec::new(),
        processes: Vec::new(),
    }
}

/// A random identifier, 128 bits in hexadecimal.
pub fn random_id() -> String {
    let half = || {
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(())
    };
    format!("{:016x}{:016x}", half(), half())
}
