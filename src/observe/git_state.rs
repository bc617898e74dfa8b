//! What a recording does with Git's state: which changes in git directories an undo does not miss.
//!
//! An object that was added harms nothing. One that was removed is needed only if the repository has no other copy: a
//! loose object is judged when it is removed, a pack at the end, when its successor is there. An index that was written
//! only to refresh its stat data is as before. Neighbours: `policy.rs` says what is in a git directory, `git` knows its
//! layout, `finish.rs` makes records of the rest.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd as _;

use gix::ObjectId;
use rustix::fs::MemfdFlags;

use super::capture::{Capture, Captured, SMALL, Source, Threat, Ticket};
use super::finish::after::After;
use super::finish::put;
use super::ledger::ids::{NameId, ProcessId};
use super::ledger::inodes::Stat;
use super::ledger::protect::RemovedPackFile;
use super::policy::ignore::RuleId;
use super::policy::suppressed::LeftOut;
use super::recording::Recording;
use crate::fs::{self, FileStat};
use crate::git::{self, GitFile, ObjectsDirectory, RemovedPack};
use crate::snapshot::blobs::{Side, blob_key};
use crate::snapshot::{FileRecord, FileType, Operation, Operations, PathUse, Present, State, WarningKind};

/// What is known of the changes in git directories.
#[derive(Default)]
pub struct GitStateChanges {
    directories: HashMap<Vec<u8>, ObjectsDirectory, foldhash::fast::RandomState>,
    /// The digest of the entries that each index had; none where it could not be read.
    indexes: HashMap<NameId, Option<[u8; 32]>, foldhash::fast::RandomState>,
    /// Objects that only a removed pack had, by their paths.
    pub extracted: BTreeMap<Vec<u8>, ExtractedObject>,
    /// The files of the packs that they were taken out of, as far as these were there before.
    taken_apart: HashSet<NameId, foldhash::fast::RandomState>,
    /// Loose objects whose bytes were not kept when they were removed, since a pack has them, by the objects
    /// directory.
    removed_loose: BTreeMap<Vec<u8>, BTreeSet<ObjectId>>,
    /// The files of packs that the command has made and removed again: only they may have the bytes of
    /// `removed_loose`.
    made_packs: Vec<MadePackFile>,
}

impl GitStateChanges {
    /// Whether loose objects were removed whose bytes were not kept.
    pub(super) fn has_removed_loose(&self) -> bool {
        !self.removed_loose.is_empty()
    }
}

/// An object of a removed pack, as the loose object that brings it back.
#[derive(Debug)]
pub struct ExtractedObject {
    path: Vec<u8>,
    ticket: Ticket,
    before: Present,
    uses: Vec<PathUse>,
}

impl ExtractedObject {
    /// The record of its path, which was there before as far as Git can tell.
    pub fn record(&self, capture: &Capture) -> FileRecord {
        let mut before = self.before.clone();
        let outcome = capture.outcome(self.ticket, before.size);
        put(&mut before, outcome);
        let (before, after) = (State::Present(Box::new(before)), State::Absent { tombstone: true });
        FileRecord {
            is_git_state: true,
            processes: self.uses.iter().map(|used| used.process).collect(),
            uses: self.uses.clone(),
            ..FileRecord::new(&self.path, before, after, Operation::Delete.into())
        }
    }
}

/// A file of a pack that the command has made and removed.
struct MadePackFile {
    path: Vec<u8>,
    stat: Stat,
    captured: Captured,
}

/// How many files of such packs are kept open.
const MADE_PACK_FILES: usize = 256;

/// The files of one pack.
type PackFiles = Vec<(NameId, RemovedPackFile)>;

/// What an undo needs of a removed pack.
enum Needed {
    /// Nothing: the repository has all of its objects.
    Nothing,
    /// All of it.
    Pack,
    /// Some objects.
    Objects(RemovedPack, Vec<ObjectId>),
}

impl Recording {
    /// Lets go of a loose object that is about to be removed, if a pack of its repository has it, too.
    pub fn lets_go(&mut self, path: &[u8]) -> bool {
        let Some((directory, id)) = git::loose_object(path) else { return false };
        if self.policy.covering(path) != Some(RuleId::GIT) || self.ledger.names.find(path).is_some() {
            return false;
        }
        let directories = &mut self.git_state.directories;
        let objects =
            directories.entry(directory.to_vec()).or_insert_with(|| ObjectsDirectory::open(directory));
        let is_packed = objects.has_packed(&id);
        if is_packed {
            self.git_state.removed_loose.entry(directory.to_vec()).or_default().insert(id);
        }
        is_packed
    }

    /// Protects the bytes of a pack that the command has made and is about to remove, if it may be the last to
    /// have a removed loose object.
    pub fn hold_made_pack(&mut self, path: &[u8], stat: &FileStat) {
        let made = |name: NameId| self.ledger.names.get(name).before.is_none();
        // It may have been renamed since.
        if !self.git_state.removed_loose.is_empty()
            && git::pack_file(path).is_some()
            && self.ledger.names.find(path).is_some_and(made)
            && self.git_state.made_packs.len() < MADE_PACK_FILES
        {
            let source = Source { path, identity: (stat.st_dev, stat.st_ino), length: None };
            let captured = self.byte_store.capture.protect(source, Some(Threat::Unlink));
            let (path, stat) = (path.to_vec(), Stat::from(stat));
            self.git_state.made_packs.push(MadePackFile { path, stat, captured });
        }
    }

    /// Notes the entries of an index that a call may replace, once.
    pub fn note_index(&mut self, name: NameId, path: &[u8]) {
        let known = self.ledger.names.get(name);
        if known.is_git_state && known.before.is_some() && GitFile::of(path) == GitFile::Index {
            self.git_state.indexes.entry(name).or_insert_with(|| git::index_digest_at(path));
        }
    }

    /// Whether an undo does not miss what became of a path in a git directory.
    pub(super) fn is_left_alone(&self, id: NameId) -> bool {
        let names = &self.ledger.names;
        let existed = |path: &[u8]| names.find(path).is_none_or(|name| names.get(name).before.is_some());
        // A renamed file is needed at its old name.
        names.get(id).is_git_state
            && names.renamed_from(id).is_none()
            && git::is_left_alone(names.path(id), existed)
    }

    /// Lists which of `names` were changed in git directories, since not all of them get a record.
    pub(super) fn list_git_changes(&mut self, names: &[NameId]) {
        for &name in names {
            let known = self.ledger.names.get(name);
            if !known.is_git_state || !known.operations.intersects(Operations::CHANGES) {
                continue;
            }
            let uses = self.processes.recorded_uses(&known.uses);
            let by = uses.iter().find(|used| used.operations.intersects(Operations::CHANGES));
            let path = self.ledger.names.path(name);
            let change = LeftOut {
                topmost: path,
                path,
                operations: known.operations,
                by: ProcessId(by.map_or(1, |used| used.process)),
            };
            self.policy.suppressed.list(RuleId::GIT, change);
        }
    }

    /// Leaves out each index whose entries are as before, and each removed pack whose objects the repository still has.
    pub(super) fn leave_out_unchanged_git_state(&mut self, afters: &mut Vec<(NameId, After)>) {
        let names = &self.ledger.names;
        let indexes = &self.git_state.indexes;
        afters.retain(|(name, _)| {
            let before = indexes.get(name).copied().flatten();
            before.is_none() || git::index_digest_at(names.path(*name)) != before
        });
        let mut left_out: HashSet<NameId> = HashSet::new();
        // By the objects directory and the name of the pack.
        let mut packs: BTreeMap<(Vec<u8>, Vec<u8>), PackFiles> = BTreeMap::new();
        for file in std::mem::take(&mut self.byte_store.removed_packs) {
            let name = self.ledger.inodes.get(file.inode).name;
            match name.and_then(|name| Some((name, git::pack_file(self.ledger.names.path(name))?))) {
                Some((name, (directory, stem))) => {
                    packs.entry((directory.to_vec(), stem.to_vec())).or_default().push((name, file));
                }
                None => self.protector().store_removed_pack(file),
            }
        }
        let known: HashSet<NameId> = afters.iter().map(|(name, _)| *name).collect();
        let mut stored: Vec<RemovedPack> = Vec::new();
        for ((directory, _), files) in packs {
            let names = files.iter().map(|(name, _)| *name);
            match self.needed_of(&directory, &files) {
                Needed::Nothing => {
                    left_out.extend(names);
                    self.byte_store.removed_packs.extend(files.into_iter().map(|(_, file)| file));
                }
                Needed::Pack => {
                    stored.extend(self.open_removed(&files));
                    files.into_iter().for_each(|(_, file)| self.protector().store_removed_pack(file));
                }
                Needed::Objects(pack, ids) => {
                    let names: Vec<NameId> = names.collect();
                    let Some((first, file)) = files.first() else { continue };
                    let like = self.ledger.inodes.get(file.inode).before;
                    let mut by = self.processes.recorded_uses(&self.ledger.names.get(*first).uses);
                    by.retain(|used| used.operations.contains(Operation::Delete));
                    by.iter_mut().for_each(|used| used.operations = Operation::Delete.into());
                    by.dedup_by_key(|used| used.process);
                    let mut ids = ids.iter();
                    if ids.all(|id| self.extract(&directory, &pack, id, (&like, &by), &known).is_ok()) {
                        self.git_state.taken_apart.extend(names);
                    } else {
                        files.into_iter().for_each(|(_, file)| self.protector().store_removed_pack(file));
                    }
                }
            }
        }
        self.extract_removed_loose(&stored, &known);
        let taken_apart = &self.git_state.taken_apart;
        afters.retain(|(name, _)| !left_out.contains(name) && !taken_apart.contains(name));
    }

    /// Stores the removed loose objects that the repository no longer has, neither in one of `stored` nor in a new
    /// pack.
    fn extract_removed_loose(&mut self, stored: &[RemovedPack], known: &HashSet<NameId>) {
        let removed_loose = std::mem::take(&mut self.git_state.removed_loose);
        let mut packs: Option<Vec<(RemovedPack, Stat)>> = None;
        for (directory, ids) in &removed_loose {
            let missing: Vec<ObjectId> = ObjectsDirectory::open(directory).lacks(ids.iter().copied());
            for id in missing.iter().filter(|id| !stored.iter().any(|pack| pack.has(id))) {
                let packs = packs.get_or_insert_with(|| self.packs_of_the_tree());
                let holder = packs.iter().find(|(pack, _)| pack.has(id));
                let is_extracted = self.git_state.extracted.contains_key(&git::loose_path(directory, id))
                    || holder.is_some_and(|(pack, like)| {
                        self.extract(directory, pack, id, (like, &[]), known).is_ok()
                    });
                if !is_extracted {
                    self.warnings.lost(WarningKind::ContentOmitted, None, || {
                        format!(
                            "{} had the object {id}, which was packed, and the pack is gone",
                            String::from_utf8_lossy(directory)
                        )
                    });
                }
            }
        }
        self.git_state.removed_loose = removed_loose;
    }

    /// The packs that the command has made: those that it has removed, and those that it has renamed or left.
    fn packs_of_the_tree(&self) -> Vec<(RemovedPack, Stat)> {
        let removed = self.git_state.made_packs.iter().filter_map(|file| {
            let stem = file.path.strip_suffix(b".pack")?;
            let captured = |extension: &[u8]| {
                let is_it = |file: &&MadePackFile| file.path.strip_suffix(extension) == Some(stem);
                self.git_state.made_packs.iter().find(is_it).and_then(|file| to_file(&file.captured))
            };
            Some((open_pack(captured)?, file.stat))
        });
        let names = &self.ledger.names;
        let made = names.sorted().into_iter().filter(|name| names.get(*name).before.is_none());
        let paths = made.map(|name| names.path(name)).filter(|path| git::pack_file(path).is_some());
        let left = paths.filter_map(|path| {
            let stem = path.strip_suffix(b".pack")?;
            let stat = Stat::from(&fs::lstat(path).ok()??);
            let file = |extension: &[u8]| fs::open_regular(&[stem, extension].concat()).ok();
            Some((open_pack(file)?, stat))
        });
        removed.chain(left).collect()
    }

    fn open_removed(&self, files: &[(NameId, RemovedPackFile)]) -> Option<RemovedPack> {
        open_pack(|extension| {
            let is_it = |name: &NameId| self.ledger.names.path(*name).ends_with(extension);
            files.iter().find(|(name, _)| is_it(name)).and_then(|(_, file)| to_file(&file.captured))
        })
    }

    fn needed_of(&self, directory: &[u8], files: &[(NameId, RemovedPackFile)]) -> Needed {
        let Some(pack) = self.open_removed(files) else { return Needed::Pack };
        let mut objects = ObjectsDirectory::open(directory);
        let missing = pack.missing(&mut objects);
        if missing.is_empty() {
            Needed::Nothing
        } else if pack.size_of(&missing) * 2 >= pack.length() {
            // It is smaller than its objects one by one.
            Needed::Pack
        } else {
            Needed::Objects(pack, missing)
        }
    }

    /// Stores an object of a removed pack as a loose one, which is like the file `like`; `by` removed it.
    ///
    /// # Errors
    /// It can't be taken out of the pack.
    fn extract(
        &mut self,
        directory: &[u8],
        pack: &RemovedPack,
        id: &ObjectId,
        (like, by): (&Stat, &[PathUse]),
        known: &HashSet<NameId>,
    ) -> io::Result<()> {
        let path = git::loose_path(directory, id);
        let is_known = |name: NameId| known.contains(&name);
        if self.ledger.names.find(&path).is_some_and(is_known) || self.git_state.extracted.contains_key(&path)
        {
            return Ok(());
        }
        let captured = self.loose(pack, id)?;
        let mut before = Present::of(FileType::File, like);
        (before.ino, before.nlink, before.size) = (0, 1, captured.data_size());
        let uses = by.to_vec();
        let key = blob_key(Side::Before, &path);
        let admission = self.byte_store.admit(&key, &captured);
        let ticket = self.byte_store.capture.submit(key, captured, None, admission, true);
        self.git_state.extracted.insert(path.clone(), ExtractedObject { path, ticket, before, uses });
        Ok(())
    }

    /// The bytes of the loose object that has the same content as one of a pack.
    fn loose(&self, pack: &RemovedPack, id: &ObjectId) -> io::Result<Captured> {
        let mut file = self.byte_store.capture.unnamed_file()?;
        pack.write_loose(id, &file)?;
        if file.metadata()?.len() > SMALL {
            return Ok(Captured::File(file));
        }
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(Captured::Bytes(bytes))
    }
}

/// Opens a pack by its two files, which `file` finds by their extension.
fn open_pack(file: impl Fn(&[u8]) -> Option<File>) -> Option<RemovedPack> {
    RemovedPack::open(file(b".pack")?, file(b".idx")?).ok()
}

/// A file with these bytes that has no name.
fn to_file(captured: &Captured) -> Option<File> {
    match captured {
        Captured::File(file) => file.try_clone().ok(),
        Captured::Bytes(bytes) => {
            let memory = rustix::fs::memfd_create("pack", MemfdFlags::CLOEXEC).ok()?;
            rustix::io::write(memory.as_fd(), bytes).ok().filter(|written| *written == bytes.len())?;
            Some(memory.into())
        }
        Captured::Omitted(_) => None,
    }
}
