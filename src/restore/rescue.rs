//! The rescue: a snapshot of what a restore overwrites, written before anything changes, so that the
//! restore can be undone, or completed if it is interrupted.
//!
//! It is beside the snapshot that is restored, and has a journal in it until the restore has ended. Its
//! before-states are the live files, with content; its after-states are what the restore puts back, whose
//! content stays in the other snapshot. Neighbours: `plan.rs` has the steps, `apply.rs` carries them out,
//! `rescue_directory.rs` names the directory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use super::access::TemporaryAccess;
use super::disk;
use super::error::{Error, failed, failed_at};
use super::journal::Journal;
use super::node::RestorePolicy;
use super::plan::{Action, PlanInput, Step, is_unchanged};
use super::rescue_directory;
use super::root::{Dentry, Root};
use crate::fs;
use crate::git::{below, repository_of};
use crate::snapshot::blobs::{BlobWriter, Compression, Side, StoreLimit, blob_key};
use crate::snapshot::compare::state;
use crate::snapshot::digest::digest_file;
use crate::snapshot::layout::{Commit, MANIFEST, SnapshotDir, TEMPORARY};
use crate::snapshot::request::{SKIPPING, TAKEN_BACK};
use crate::snapshot::wire::write_manifest;
use crate::snapshot::*;

/// The name of the rescues of the snapshot `id`; a later snapshot in the same directory has another.
pub fn name(id: &str) -> String {
    format!("rescue of {id}")
}

/// The command of the rescue of one snapshot: the request, in a canonical form.
pub fn command(snap: &Path, wanted: Side, paths: &[Vec<u8>]) -> io::Result<Vec<Vec<u8>>> {
    let mut command = vec![b"agent-snapshot".to_vec(), b"restore".to_vec()];
    command.push(snap.canonicalize()?.into_os_string().into_encoded_bytes());
    if wanted == Side::Before {
        command.push(b"--before".to_vec());
    }
    command.extend(paths.iter().cloned());
    Ok(command)
}

/// The command of the rescue of several recordings of the library, of their `undo` or `redo`.
pub fn command_of_several(verb: &str, ids: &[&str]) -> Vec<Vec<u8>> {
    let words = ["agent-snapshot", verb].into_iter().chain(ids.iter().copied());
    words.map(|word| word.as_bytes().to_vec()).collect()
}

/// The recordings that the command of a rescue undoes or redoes, by the names of their directories; none if it is the
/// restore of one snapshot.
pub fn recordings(command: &[Vec<u8>]) -> &[Vec<u8>] {
    match command {
        [_, verb, ids @ ..] if verb == b"undo" || verb == b"redo" => ids,
        _ => &[],
    }
}

/// The command line that does the request of the rescue in `directory` again.
pub fn repetition(command: &[Vec<u8>], directory: &Path) -> Vec<Vec<u8>> {
    match command {
        // The same request would begin anew: to end its taking back is what remains.
        [program, ..] if is_taken_back(command) => {
            let path = directory.as_os_str().as_bytes();
            [program.as_slice(), b"restore", path, b"--before"].map(<[u8]>::to_vec).into()
        }
        // One of the recordings names all that were undone with it.
        [program, verb, words @ ..] if verb == b"redo" => {
            let is_limit = |word: &&Vec<u8>| word.starts_with(b"--");
            let is_there = |id: &&Vec<u8>| directory.with_file_name(OsStr::from_bytes(id)).exists();
            let ids = || words.iter().filter(|word| !is_limit(word));
            let one = ids().find(is_there).or_else(|| ids().next());
            [program, verb].into_iter().chain(one).chain(words.iter().filter(is_limit)).cloned().collect()
        }
        [program, verb, snapshot, rest @ ..] if verb == b"restore" && snapshot != b"--at" => {
            let path = Path::new(OsStr::from_bytes(snapshot));
            let path = if path.exists() { path.to_owned() } else { rescue_directory::final_name(path) };
            let words = [program, verb, &path.into_os_string().into_encoded_bytes()].map(Clone::clone);
            words.into_iter().chain(rest.iter().cloned()).collect()
        }
        _ => command.to_vec(),
    }
}

/// One path of a rescue.
#[derive(Debug)]
pub struct KeptPath {
    /// Its record, still without the content of its before-state.
    pub record: FileRecord,
    /// Whether that content has to be kept.
    pub content: bool,
    /// The content of its after-state, where a redo has to know what it says.
    pub promised: Option<Vec<u8>>,
}

/// What is to be kept of everything that the steps change, by path.
///
/// `directories` are those in which entries change or whose modes are widened, with their current
/// metadata.
pub fn kept(
    input: &PlanInput,
    steps: &[Step],
    parents: impl Iterator<Item = Vec<u8>>,
    directories: &BTreeMap<Vec<u8>, Present>,
) -> BTreeMap<Vec<u8>, KeptPath> {
    let mut kept: BTreeMap<Vec<u8>, KeptPath> = BTreeMap::new();
    let of_git = steps.iter().map(|step| &input.files[step.record]).filter(|record| record.is_git_state);
    let repositories: HashSet<&[u8]> = of_git.map(|record| repository_of(&record.path)).collect();
    let is_git_state = |path: &[u8]| repositories.iter().any(|repository| below(path, repository).is_some());
    for (path, present) in directories {
        let at = State::Present(Box::new(present.clone()));
        let record = FileRecord {
            is_git_state: is_git_state(path),
            ..FileRecord::new(path, at.clone(), at, Operation::Directory.into())
        };
        kept.insert(path.clone(), KeptPath { record, content: false, promised: None });
    }
    for path in parents {
        let absent = State::Absent { tombstone: false };
        let made = State::Present(Box::new(new_directory()));
        let operations = Operations::from(Operation::Directory).with(Operation::Write);
        let record = FileRecord {
            is_git_state: is_git_state(&path),
            ..FileRecord::new(&path, absent, made, operations)
        };
        kept.insert(path, KeptPath { record, content: false, promised: None });
    }
    for step in steps {
        if let Some(one) = kept_of(input, step) {
            kept.insert(one.record.path.clone(), one);
        }
    }
    keep_other_names(input, steps, &mut kept);
    kept
}

/// Adds the other names of files that lose or get a hard link, so that it can be undone, and of those that change in place,
/// which are changed by these names, too.
fn keep_other_names(input: &PlanInput, steps: &[Step], kept: &mut BTreeMap<Vec<u8>, KeptPath>) {
    let inode = |at: &Present| at.linkable_identity().filter(|_| at.nlink > 1);
    let lost: HashSet<_> =
        kept.values().filter_map(|one| one.record.before.present().and_then(inode)).collect();
    let stays =
        |step: &&Step| matches!(step.action, Action::Attributes(_) | Action::File { in_place: true, .. });
    let changed: HashMap<_, _> = steps
        .iter()
        .filter(stays)
        .filter_map(|step| {
            let FileRecord { before, after, operations, .. } =
                &kept.get(&input.files[step.record].path)?.record;
            Some((before.present().and_then(inode)?, (after.clone(), *operations)))
        })
        .collect();
    for (index, inspection) in input.inspections {
        let path = &input.files[*index].path;
        let Some(live) = inspection.as_ref().ok().and_then(|inspection| inspection.live.as_ref()) else {
            continue;
        };
        if let Some(inode) = inode(live).filter(|inode| lost.contains(inode))
            && !kept.contains_key(path)
        {
            let at = State::Present(Box::new(live.clone()));
            let as_it_is = || (at.clone(), Operation::Existence.into());
            let (after, operations) = changed.get(&inode).cloned().unwrap_or_else(as_it_is);
            let record = FileRecord::new(path, at, after, operations);
            kept.insert(path.clone(), KeptPath { record, content: false, promised: None });
        }
    }
    for step in steps {
        let Action::HardLink { to } = step.action else { continue };
        let leader = &input.files[to];
        let live = input.inspections.get(&to).and_then(|inspection| inspection.as_ref().ok()?.live.as_ref());
        let wanted = state(leader, input.wanted).present();
        if let (Some(live), Some(wanted), false) = (live, wanted, kept.contains_key(&leader.path)) {
            let after = State::Present(Box::new(promised(wanted, input.policy)));
            let before = State::Present(Box::new(live.clone()));
            let record = FileRecord::new(&leader.path, before, after, Operation::Existence.into());
            kept.insert(leader.path.clone(), KeptPath { record, content: false, promised: None });
        }
        // Afterwards both are one file, whichever that is.
        let leader = kept.get_mut(&leader.path).and_then(|one| match &mut one.record.after {
            State::Present(after) => Some(after),
            _ => None,
        });
        let Some(leader) = leader else { continue };
        leader.nlink = leader.nlink.max(2);
        let (dev, ino, nlink) = (leader.dev, leader.ino, leader.nlink);
        let follower = kept.get_mut(&input.files[step.record].path);
        if let Some(State::Present(after)) = follower.map(|one| &mut one.record.after) {
            (after.dev, after.ino, after.nlink) = (dev, ino, nlink);
        }
    }
}

fn kept_of(input: &PlanInput, step: &Step) -> Option<KeptPath> {
    // A parent directory that is made for something else was not inspected: it is missing.
    let inspected = |index| input.inspections.get(&index)?.as_ref().ok()?.live.as_ref();
    if input.inspections.get(&step.record).is_some_and(Result::is_err) {
        return None;
    }
    let source = &input.files[step.record];
    let now = inspected(step.record);
    let before = match now {
        Some(live) => State::Present(Box::new(live.clone())),
        None => State::Absent { tombstone: false },
    };
    let (after, operations) = match &step.action {
        Action::Remove => (State::Absent { tombstone: true }, Operation::Delete.into()),
        Action::Attributes(attributes) => {
            let mut after = now.cloned()?;
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
        Action::File { .. } | Action::HardLink { .. } | Action::Return { .. } | Action::Node => {
            let wanted = state(source, input.wanted).present()?;
            let mut after = promised(wanted, input.policy);
            // The file keeps what somebody else has changed of it since.
            if let Action::Return { from } = step.action
                && let Some(live) = inspected(from)
            {
                (after.uid, after.gid) = (live.uid, live.gid);
                after.xattrs.clone_from(&live.xattrs);
            }
            (State::Present(Box::new(after)), Operation::Write.into())
        }
    };
    let content = !matches!(step.action, Action::Attributes(_))
        && now.is_some_and(|live| live.file_type == FileType::File);
    let mut record = FileRecord {
        is_git_state: source.is_git_state,
        ..FileRecord::new(&source.path, before, after, operations)
    };
    record.git_after = match input.wanted {
        Side::Before => source.git.clone(),
        Side::After => source.git_after.clone().or_else(|| source.git.clone()),
    }
    .filter(|git| git.oid.is_some() && record.after.present().is_some_and(|after| after.digest.is_none()));
    Some(KeptPath { record, content, promised: None })
}

/// The state that a restore puts back, without its content, which is in another snapshot.
fn promised(wanted: &Present, policy: &RestorePolicy) -> Present {
    let mut after = wanted.clone();
    if wanted.file_type != FileType::Symlink {
        after.mode = wanted.mode & libc::S_IFMT | policy.permissions(wanted);
    }
    after.entries_digest = None;
    // Its content is in the other snapshot, which is no gap of the rescue.
    (after.blob, after.blob_omitted) = (None, None);
    after
}

fn new_directory() -> Present {
    Present {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Present::new(FileType::Directory, libc::S_IFDIR | 0o755)
    }
}

/// Whether what `step` overwrites is already in the rescue of an interrupted run, which has the `records`
/// of the path.
///
/// Content counts as kept only if its digest is the kept one, whatever the metadata says.
pub fn is_kept(
    records: &[&FileRecord],
    step: &Step,
    live: Option<&Present>,
    root: &Root,
    access: &mut TemporaryAccess,
) -> bool {
    let mut has_content = |before: &Present, live: &Present| {
        live.file_type != FileType::File
            || matches!(step.action, Action::Attributes(_))
            || (before.blob.is_some() || before.size == 0)
                && has_digest(before, &records[0].path, root, access)
    };
    records.iter().any(|record| match (record.before.present(), live) {
        (_, None) => true,
        (Some(before), Some(live)) => {
            let is_one = before.identity() == live.identity();
            let is_file = live.file_type == FileType::File;
            (is_unchanged(before, live) || is_one && !is_file) && has_content(before, live)
        }
        (None, Some(live)) => live.file_type == FileType::Directory,
    })
}

/// Whether nobody but the interrupted run has changed the file at `path` since it was kept there: the file has the content that
/// the run wrote by another of its names. `records` are its records of the path, `others` those of other paths.
pub fn is_written_by_us<'a>(
    path: &[u8],
    records: &[&FileRecord],
    mut others: impl Iterator<Item = &'a FileRecord>,
    live: &Present,
    root: &Root,
    access: &mut TemporaryAccess,
) -> bool {
    let Some(file) = live.linkable_identity().filter(|_| live.file_type == FileType::File) else {
        return false;
    };
    let is_it = |record: &FileRecord| record.before.present().is_some_and(|before| before.identity() == file);
    records.iter().any(|record| is_it(record))
        && others.any(|other| {
            is_it(other) && other.after.present().is_some_and(|after| has_digest(after, path, root, access))
        })
}

/// Whether what is at `path` has the content of a state, as far as its digest is known. What can't be read has not.
fn has_digest(at: &Present, path: &[u8], root: &Root, access: &mut TemporaryAccess) -> bool {
    at.digest.is_some_and(|digest| {
        let dentry = root.dentry(path).ok().flatten();
        let file = dentry.and_then(|dentry| open_for_reading(path, &dentry, access).ok());
        file.and_then(|file| digest_file(&file).ok()).is_some_and(|(found, _)| found == digest)
    })
}

/// Writes a rescue of `kept` into the directory of the journal and flushes it to the disk.
pub fn write(
    journal: &Journal,
    header: &Header,
    kept: BTreeMap<Vec<u8>, KeptPath>,
    root: &Root,
    access: &mut TemporaryAccess,
) -> Result<(), Error> {
    let path = journal.directory().map_err(failed("make a directory for the rescue beside the snapshot"))?;
    let target = SnapshotDir::create(path)?;
    let name = path.as_os_str().as_bytes();
    let refused = || failed_at("write the rescue", name);
    let blobs = target.unnamed_file().map_err(refused())?;
    let mut writer = BlobWriter::new(blobs, Compression::Snappy).map_err(refused())?;
    let mut records = Vec::with_capacity(kept.len());
    for KeptPath { mut record, content, promised } in kept.into_values() {
        if let (true, State::Present(before)) = (content, &mut record.before) {
            let is_kept = store(&mut writer, &record.path, before, root, access).map_err(|source| {
                failed(format!("keep {} in {}", printable(&record.path), printable(name)))(source)
            })?;
            if !is_kept {
                return Err(Error::Overtaken(printable(&record.path).into_owned()));
            }
        }
        if let (Some(promised), State::Present(after)) = (promised, &mut record.after) {
            let key = blob_key(Side::After, &record.path);
            let mut staged = disk::unnamed_file(path, journal.id()).map_err(refused())?;
            staged.write_all(&promised).map_err(refused())?;
            let stored = writer.store_file(&key, &staged, StoreLimit::NONE)?;
            after.digest = Some(stored.digest);
            after.blob = stored.blob.map(|key| key.to_string());
        }
        records.push(record);
    }
    let blobs = writer.finish().map_err(refused())?;
    let manifest = target.unnamed_file().map_err(refused())?;
    write_manifest(&manifest, header, &records).map_err(refused())?;
    target.commit(blobs, manifest, Commit::Only, true)?.unlock();
    Ok(())
}

/// Removes all other paths than these from an unfinished rescue: they are as they were before its restore.
pub fn keep_only(rescue: &Snapshot, paths: &BTreeSet<Vec<u8>>) -> io::Result<()> {
    rewrite(rescue, SKIPPING, |record| paths.contains(&record.path))
}

/// Marks an unfinished rescue all paths of which are as they were before its restore: from now on, that can't be completed.
pub fn mark_as_taken_back(rescue: &Snapshot) -> io::Result<()> {
    rewrite(rescue, TAKEN_BACK, |_| true)
}

/// Whether a rescue with this command is marked so.
pub fn is_taken_back(command: &[Vec<u8>]) -> bool {
    command.iter().any(|word| word == TAKEN_BACK)
}

/// Writes the manifest of an unfinished rescue anew, with this word in the command and only some of the paths.
fn rewrite(rescue: &Snapshot, word: &[u8], is_kept: impl Fn(&FileRecord) -> bool) -> io::Result<()> {
    let mut header = rescue.header().clone();
    header.command.retain(|other| other != word && other != TAKEN_BACK);
    header.command.push(word.to_vec());
    let kept = rescue.files().iter().filter(|record| is_kept(record));
    let path = rescue.path().join(MANIFEST);
    let mut manifest = tempfile::Builder::new();
    let manifest = manifest.prefix(TEMPORARY.0).suffix(TEMPORARY.1).tempfile_in(rescue.path())?;
    write_manifest(manifest.as_file(), &header, kept)?;
    // It tells when its restore began to change files.
    manifest.as_file().set_modified(std::fs::metadata(&path)?.modified()?)?;
    manifest.as_file().sync_all()?;
    manifest.persist(path).map(drop).map_err(|error| error.error)
}

/// Stores the bytes of a file; false if it is no longer there, or not as it was when it was looked at.
fn store(
    writer: &mut BlobWriter,
    path: &[u8],
    before: &mut Present,
    root: &Root,
    access: &mut TemporaryAccess,
) -> io::Result<bool> {
    let Some(dentry) = root.dentry(path)? else { return Ok(false) };
    let file = match open_for_reading(path, &dentry, access) {
        // Nothing, or no regular file.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
                || error.raw_os_error() == Some(libc::ELOOP) =>
        {
            return Ok(false);
        }
        opened => opened?,
    };
    let stored = match writer.store_file(&blob_key(Side::Before, path), &file, StoreLimit::NONE) {
        Err(crate::snapshot::Error::Changed) => return Ok(false),
        stored => stored?,
    };
    before.digest = Some(stored.digest);
    before.blob = stored.blob.map(|key| key.to_string());
    Ok(stored.size == before.size)
}

/// Opens a regular file; an unreadable one of the user's is made readable for the open.
fn open_for_reading(path: &[u8], dentry: &Dentry, access: &mut TemporaryAccess) -> io::Result<File> {
    match fs::open_regular(&dentry.proc_path()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let handle = dentry.handle()?.ok_or(io::ErrorKind::NotFound)?;
            if handle.stat().st_mode & libc::S_IFMT != libc::S_IFREG {
                return Err(error);
            }
            let opened = access.with_access(path, handle, 0o400, |handle| handle.open(OFlags::RDONLY));
            Ok(File::from(opened?))
        }
        other => other,
    }
}

/// The header of a rescue.
pub fn header(of: &Header, id: &str, command: Vec<Vec<u8>>) -> Header {
    let cwd = std::env::current_dir()
        .map_or_else(|_| b"/".to_vec(), |cwd| cwd.into_os_string().into_encoded_bytes());
    Header {
        name: Some(name(&of.id)),
        session: of.session.clone(),
        ..Header::new(id.to_owned(), SnapshotKind::Rescue, command, cwd)
    }
}
