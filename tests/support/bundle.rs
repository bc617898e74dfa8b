//! Bundles that are made, not recorded: of a tree before and after a change, what a perfect recorder would
//! have written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent_snapshot::snapshot::blobs::{BlobWriter, CHUNK, Compression, Side, StoreLimit, blob_key};
use agent_snapshot::snapshot::layout::{Commit, SnapshotDir};
use agent_snapshot::snapshot::wire::write_manifest;
use agent_snapshot::snapshot::{FileRecord, FileType, Header, Operation, Operations, SnapshotKind, State};

use super::{Entry, Place, Tree, assert_same, describe, scan};

/// A header as the recorder of this machine and user would write it.
pub fn header() -> Header {
    let id = format!("{:016x}", random_number());
    Header {
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        finished_at: "2026-01-02T03:04:06Z".to_owned(),
        ..Header::new(id, SnapshotKind::Recording, vec![b"true".to_vec()], b"/".to_vec())
    }
}

fn random_number() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(())
}

/// A record with two states; the blobs are not in it yet.
pub fn file_record(path: &[u8], before: State, after: State, operations: Operations) -> FileRecord {
    FileRecord { processes: vec![1], ..FileRecord::new(path, before, after, operations) }
}

/// Writes a bundle of `files`; their blobs are stored by `fill`.
pub fn commit(snap: &Path, header: &Header, fill: impl FnOnce(&mut BlobWriter) -> Vec<FileRecord>) {
    let target = SnapshotDir::create(snap).unwrap();
    let mut writer = BlobWriter::new(target.unnamed_file().unwrap(), Compression::Snappy).unwrap();
    let files = fill(&mut writer);
    let blobs = writer.finish().unwrap();
    let manifest = target.unnamed_file().unwrap();
    write_manifest(&manifest, header, &files).unwrap();
    target.commit(blobs, manifest, Commit::Only, false).unwrap();
}

/// The state of an entry, its content stored.
fn stored(writer: &mut BlobWriter, path: &[u8], side: Side, entry: Option<&Entry>, gone: bool) -> State {
    let Some(entry) = entry else { return State::Absent { tombstone: gone } };
    let mut present = entry.present.clone();
    if let Some(content) = &entry.content {
        let key = blob_key(side, path);
        let stored = if content.len() <= CHUNK {
            writer.store_bytes(&key, content).unwrap()
        } else {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, content).unwrap();
            writer.store_file(&key, &file, StoreLimit::NONE).unwrap()
        };
        present.blob = stored.blob.map(|blob| blob.to_string());
    }
    State::Present(Box::new(present))
}

/// What a perfect recorder would write of what happened to `before` when it became `after`: all paths
/// that differ, and as only read those that `read` picks.
pub fn records(
    writer: &mut BlobWriter,
    before: &Tree,
    after: &Tree,
    read: impl Fn(&[u8]) -> bool,
) -> Vec<FileRecord> {
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let mut files = Vec::new();
    for path in paths {
        let (one, other) = (before.get(path), after.get(path));
        let operations = if one != other {
            match (one, other) {
                (Some(one), Some(other))
                    if one.present.file_type == FileType::Directory
                        && other.present.file_type == FileType::Directory
                        && one.present.ino == other.present.ino
                        && one.present.entries_digest != other.present.entries_digest
                        && one.present.mode == other.present.mode
                        && one.present.xattrs == other.present.xattrs
                        && one.present.inode_flags == other.present.inode_flags =>
                {
                    Operation::Directory.into()
                }
                (Some(_), None) => Operation::Delete.into(),
                _ => Operations::from(Operation::Write).with(Operation::Metadata),
            }
        } else if read(path) {
            Operation::Read.into()
        } else {
            continue;
        };
        let is_git_state = path.split(|byte| *byte == b'/').any(|name| name == b".git");
        if is_git_state && is_added_object(path, before) {
            continue;
        }
        let one_state = stored(writer, path, Side::Before, one, false);
        let other_state = stored(writer, path, Side::After, other, one.is_some());
        files.push(FileRecord { is_git_state, ..file_record(path, one_state, other_state, operations) });
    }
    files
}

/// Whether an object was added to a repository that was there before, which is not recorded.
fn is_added_object(path: &[u8], before: &Tree) -> bool {
    let name = b"/objects/";
    let objects =
        path.windows(name.len()).position(|part| part == name).map(|at| &path[..at + name.len() - 1]);
    objects.is_some_and(|objects| before.contains_key(objects)) && !before.contains_key(path)
}

/// Makes `change` below `root` and the bundle of it in `snap`, in which the unchanged paths that `read` picks
/// were read.
pub fn make_bundle(root: &Path, snap: &Path, read: impl Fn(&[u8]) -> bool, change: impl FnOnce()) {
    let before = scan(root);
    change();
    let after = scan(root);
    commit(snap, &header(), |writer| records(writer, &before, &after, read));
}

impl Place {
    /// Makes `change` and the bundle of it.
    pub fn make_bundle(&self, change: impl FnOnce()) {
        make_bundle(&self.work, &self.out, |_| false, change);
    }

    /// The rescue of this number.
    pub fn rescue(&self, number: u32) -> PathBuf {
        self.base().join(format!("out-rescue-{number}"))
    }
}

/// Both states of a tree.
pub struct States {
    /// Before the change.
    pub before: Tree,
    /// After it.
    pub after: Tree,
}

impl States {
    /// Records `change` in the place.
    pub fn of(place: &Place, change: impl FnOnce()) -> States {
        States::with(place, |_| false, change)
    }

    /// Records `change` in the place, and as only read what `read` picks.
    pub fn with(place: &Place, read: impl Fn(&[u8]) -> bool, change: impl FnOnce()) -> States {
        let before = scan(&place.work);
        make_bundle(&place.work, &place.out, read, change);
        States { before, after: scan(&place.work) }
    }

    /// Asserts that the tree is at one of the states.
    #[track_caller]
    pub fn expect(&self, place: &Place, is_before: bool) {
        let wanted = if is_before { &self.before } else { &self.after };
        let recorded = |path: &[u8]| self.before.contains_key(path) && self.after.contains_key(path);
        assert_same(&describe(&scan(&place.work), recorded), &describe(wanted, recorded), "the tree");
    }

    /// Undoes and redoes, and undoes that by its rescue; each twice.
    #[track_caller]
    pub fn there_and_back(&self, place: &Place) {
        for is_before in [true, false, true] {
            let flags: &[&str] = if is_before { &["--before"] } else { &[] };
            let run = place.verb("restore", flags).expect(0);
            self.expect(place, is_before);
            let again = scan(&place.work);
            let second = place.verb("restore", flags).expect(0);
            assert!(second.stdout.starts_with("nothing to do"), "{run:#?}{second:#?}");
            assert!(!second.stdout.contains("rescue"), "{second:#?}");
            assert_eq!(scan(&place.work), again);
        }
        if !place.rescue(3).exists() {
            assert_eq!(describe(&self.before, |_| false), describe(&self.after, |_| false), "no rescue");
            return;
        }
        place.verb_on("restore", &place.rescue(3), &["--before"]).expect(0);
        self.expect(place, false);
        place.verb_on("restore", &place.rescue(4), &["--before"]).expect(0);
        self.expect(place, true);
    }
}
