//! What files of Git's state say, where their bytes are those of neither state: an index that was refreshed is as
//! recorded, and of packed refs only those count that the command changed.
//!
//! Neighbours: `inspect.rs` has compared the bytes; the plan is made of what this makes of its inspections.

mod objections;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use gix::ObjectId;

use super::{is_target, lock_of};
use crate::git::{
    GitFile, git_dir_of, in_objects_directory, merge_packed_refs, packed_references, reference_name,
    repository_of, same_index,
};
use crate::restore::inspect::Inspection;
use crate::restore::merge::{Merged, merged_mode};
use crate::restore::root::Root;
use crate::restore::targets::opposite;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::Contents;
use crate::snapshot::{Digest, FileRecord, FileType, GitRepository, Present, State, printable};

/// The most bytes of a file that are read into memory; Git's own files are smaller.
const MOST: u64 = 1 << 30;

/// The most bytes of a ref that are read.
const MOST_OF_REF: u64 = 4096;

/// What follows from what Git's files say, beside the corrected inspections.
#[derive(Debug, Default)]
pub struct Refinement {
    /// The contents that files get instead of the recorded ones, by the index of the record.
    pub replaced: BTreeMap<usize, Vec<u8>>,
    /// The paths that are not changed, even by force, since another process has locked them or Git would be misled,
    /// and what to say of it.
    pub hard_conflicts: BTreeMap<Vec<u8>, String>,
}

impl Refinement {
    /// Adds the contents of files that were merged with what was edited since.
    pub fn add(&mut self, merged: &BTreeMap<usize, Merged>) {
        self.replaced.extend(merged.iter().map(|(index, one)| (*index, one.content.clone())));
    }
}

/// Compares Git's files with their states.
pub struct Comparison<'a> {
    /// The records.
    pub files: &'a [FileRecord],
    /// The targets, in order.
    pub targets: &'a [usize],
    /// The wanted state.
    pub wanted: Side,
    /// Whether what has changed since is overwritten.
    pub force: bool,
    /// The repositories as they were recorded.
    pub repositories: &'a [GitRepository],
    /// The contents of the records.
    pub contents: &'a Contents<'a>,
    /// The live filesystem.
    pub root: &'a Root,
    /// Whether a lock is ours.
    pub is_own_lock: &'a dyn Fn(&[u8]) -> bool,
}

impl Comparison<'_> {
    /// Corrects the inspections of Git's files by what the files say.
    pub fn refine(&self, inspections: &mut HashMap<usize, io::Result<Inspection>>) -> Refinement {
        let mut refinement = Refinement::default();
        for &index in self.targets {
            let record = &self.files[index];
            let Some(Ok(inspection)) = inspections.get_mut(&index).filter(|_| record.is_git_state) else {
                continue;
            };
            let is_file = inspection.live.as_ref().is_none_or(|live| live.file_type == FileType::File);
            if self.stays_with_its_objects(index) {
                inspection.accept();
            } else if is_file {
                self.refine_one(index, inspection, &mut refinement);
            }
            if !inspection.at_wanted
                && let Some(lock) = self.foreign_lock(&record.path)
            {
                refinement.hard_conflicts.insert(record.path.clone(), held(&lock));
            }
        }
        self.add_objections(inspections, &mut refinement);
        refinement
    }

    fn refine_one(&self, index: usize, inspection: &mut Inspection, refinement: &mut Refinement) {
        let path = &self.files[index].path;
        let file = GitFile::of(path);
        match file {
            GitFile::Ref => return self.compare_ref(index, inspection),
            GitFile::LooseObject | GitFile::Pack => return self.compare_object(index, inspection),
            _ => {}
        }
        if inspection.at_wanted || inspection.at_other {
            return;
        }
        let goes = || git_dir_of(path).is_some_and(|directory| self.goes(directory));
        match file {
            GitFile::Index => self.compare_index(index, inspection),
            GitFile::PackedRefs => self.merge(index, inspection, refinement),
            GitFile::Head | GitFile::PseudoRef => inspection.note = self.now_at(path),
            GitFile::Reflog if self.force && !goes() => self.extend(index, inspection, refinement),
            // It tells only of the last command of its kind, so it may stay as it is.
            GitFile::Other if is_message(path) => match goes() {
                true => inspection.at_other = true,
                false => inspection.accept(),
            },
            _ => {}
        }
    }

    /// Objects never change, but they may have been packed since, or another time; whatever else is there is damaged.
    fn compare_object(&self, index: usize, inspection: &mut Inspection) {
        let record = &self.files[index];
        let sides = [self.wanted, opposite(self.wanted)].map(|side| state(record, side).present());
        let is_there = match (sides, &inspection.live) {
            ([Some(wanted), _], Some(live)) => {
                live.size == wanted.size && (wanted.digest.is_none() || inspection.same_content)
            }
            ([Some(wanted), Some(other)], None) => {
                (wanted.size, &wanted.digest) == (other.size, &other.digest)
            }
            _ => false,
        };
        if is_there {
            inspection.accept();
        } else {
            inspection.at_other = !inspection.at_wanted;
        }
    }

    /// Whether the record is of an object, a file of a pack or a directory of these that is to be absent, while the
    /// directory of all objects stays: newer commits may need them, and Git's next `gc` removes them if none does.
    fn stays_with_its_objects(&self, index: usize) -> bool {
        let record = &self.files[index];
        let is_of_objects = || {
            let is_directory = [self.wanted, opposite(self.wanted)]
                .into_iter()
                .find_map(|side| state(record, side).present())
                .is_some_and(|at| at.file_type == FileType::Directory);
            is_directory || matches!(GitFile::of(&record.path), GitFile::LooseObject | GitFile::Pack)
        };
        state(record, self.wanted).present().is_none()
            && in_objects_directory(&record.path)
                .is_some_and(|(directory, below)| !below.is_empty() && !self.goes(directory))
            && is_of_objects()
    }

    /// Whether the directory at `path` is to be removed.
    fn goes(&self, path: &[u8]) -> bool {
        self.is_target(path)
            && FileRecord::find(self.files, path)
                .is_some_and(|index| state(&self.files[index], self.wanted).present().is_none())
    }

    fn compare_index(&self, index: usize, inspection: &mut Inspection) {
        let record = &self.files[index];
        let Some(live) = self.root.read(&record.path, MOST) else { return };
        let mode = |at: &Present| at.mode & 0o7777;
        let live_mode = inspection.live.as_ref().map(mode);
        let is_same = |side| {
            state(record, side).present().map(mode) == live_mode
                && self.recorded(record, side).is_some_and(|bytes| same_index(&live, &bytes))
        };
        if is_same(self.wanted) {
            inspection.accept();
        } else {
            inspection.at_other = is_same(opposite(self.wanted));
        }
    }

    fn merge(&self, index: usize, inspection: &mut Inspection, refinement: &mut Refinement) {
        let record = &self.files[index];
        let now =
            if inspection.live.is_some() { self.root.read(&record.path, MOST) } else { Some(Vec::new()) };
        let sides = [opposite(self.wanted), self.wanted].map(|side| match state(record, side) {
            State::Absent { .. } => Some(Vec::new()),
            _ => self.recorded(record, side),
        });
        let (Some(now), [Some(from), Some(to)]) = (now, sides) else { return };
        match merge_packed_refs(&now, &from, &to, self.force) {
            Ok(merged) if merged == now => inspection.accept(),
            Ok(merged) => {
                inspection.at_other = true;
                refinement.replaced.insert(index, merged);
            }
            Err(names) => {
                let names: Vec<_> = names.iter().map(|name| printable(name)).collect();
                inspection.note = Some(format!("{} moved since", names.join(", ")));
            }
        }
    }

    /// A loose ref may have been packed since.
    fn compare_ref(&self, index: usize, inspection: &mut Inspection) {
        let record = &self.files[index];
        let path = &record.path;
        if inspection.live.is_some() {
            if !inspection.at_wanted && !inspection.at_other {
                inspection.note = self.now_at(path);
            }
            return;
        }
        let (Some(directory), Some(name)) = (git_dir_of(path), reference_name(path)) else { return };
        let packed_refs = [directory, b"/packed-refs"].concat();
        let packed = || packed_references(&self.root.read(&packed_refs, MOST)?).get(name).copied();
        let value = |side| ObjectId::from_hex(self.recorded(record, side)?.trim_ascii()).ok();
        let is_file = |side| state(record, side).present().is_some_and(|at| at.file_type == FileType::File);
        if inspection.at_wanted {
            // It would stay there.
            if is_file(opposite(self.wanted)) && packed().is_some() && !self.is_target(&packed_refs) {
                inspection.at_wanted = false;
                inspection.note = Some("it is in packed-refs now".to_owned());
            }
        } else if is_file(self.wanted) && !inspection.at_other {
            let packed = packed();
            inspection.at_other =
                packed.is_some() && (packed == value(opposite(self.wanted)) || packed == value(self.wanted));
        }
    }

    /// Keeps the entries of a reflog that were added since, and adds one of what is done now.
    fn extend(&self, index: usize, inspection: &mut Inspection, refinement: &mut Refinement) {
        let record = &self.files[index];
        let Some(live) = self.root.read(&record.path, MOST) else { return };
        let wanted = self.recorded(record, self.wanted).unwrap_or_default();
        let Some(last) = ReflogEntry::last_of(&live) else { return };
        let zeros = vec![b'0'; last.new.len()];
        let new = ReflogEntry::last_of(&wanted).map_or(zeros.as_slice(), |entry| entry.new);
        if last.new == new {
            inspection.accept();
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let message = format!(" {now} +0000\tagent-snapshot: restored\n");
        let entry = [last.new, b" ", new, b" ", last.identity, message.as_bytes()].concat();
        refinement.replaced.insert(index, [live.as_slice(), &entry].concat());
    }

    /// The lock of the file at `path`, if it is there, not ours, and not to be put back or removed itself.
    fn foreign_lock(&self, path: &[u8]) -> Option<Vec<u8>> {
        let lock = lock_of(path)?;
        if self.is_target(&lock) || (self.is_own_lock)(&lock) {
            return None;
        }
        self.root.dentry(&lock).ok()??.stat().ok()??;
        Some(lock)
    }

    fn is_target(&self, path: &[u8]) -> bool {
        is_target(self.files, self.targets, path)
    }

    fn recorded(&self, record: &FileRecord, side: Side) -> Option<Vec<u8>> {
        recorded(self.contents, record, side)
    }

    /// Where a ref or HEAD is now, in words.
    fn now_at(&self, path: &[u8]) -> Option<String> {
        let bytes = self.root.read(path, MOST_OF_REF)?;
        let text = std::str::from_utf8(bytes.trim_ascii()).ok()?;
        let is_oid = text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text.strip_prefix("ref: ") {
            Some(name) => Some(format!("it is {} now", printable(name.as_bytes()))),
            None => is_oid.then(|| format!("it is at {} now", &text[..7])),
        }
    }
}

/// The recorded content of a regular file, if it is available.
pub fn recorded(contents: &Contents, record: &FileRecord, side: Side) -> Option<Vec<u8>> {
    let size = state(record, side).present().filter(|at| at.file_type == FileType::File)?.size;
    let mut bytes = Vec::new();
    if size > 0 && size <= MOST {
        contents.copy(record, side, &mut bytes).ok()?;
    }
    (size <= MOST).then_some(bytes)
}

/// The records, with the wanted states of those that get other contents.
pub fn refined<'a>(
    files: &'a [FileRecord],
    wanted: Side,
    inspections: &HashMap<usize, io::Result<Inspection>>,
    refinement: &Refinement,
) -> Cow<'a, [FileRecord]> {
    let mut files = Cow::Borrowed(files);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for (index, content) in &refinement.replaced {
        let live = inspections.get(index).and_then(|inspection| inspection.as_ref().ok()?.live.clone());
        let record = &mut files.to_mut()[*index];
        let sides = [wanted, opposite(wanted)].map(|side| state(record, side).present().map(|at| at.mode));
        let recorded = || record.before.present().or(record.after.present()).cloned();
        let Some(like) = live.or_else(recorded) else { continue };
        let new = Present {
            size: content.len() as u64,
            digest: Some(Digest::of(content)),
            blob: None,
            blob_omitted: None,
            mtime: i64::try_from(now.as_secs()).unwrap_or_default(),
            mtime_nsec: now.subsec_nanos(),
            mode: match sides {
                // A file that was merged with what was edited since.
                [Some(wanted), Some(other)] if !record.is_git_state => {
                    merged_mode([wanted, other, like.mode]).unwrap_or(like.mode)
                }
                _ => like.mode,
            },
            ..like
        };
        let new = match content.as_slice() {
            [] if record.is_git_state => State::Absent { tombstone: false },
            _ => State::Present(Box::new(new)),
        };
        match wanted {
            Side::Before => record.before = new,
            Side::After => record.after = new,
        }
    }
    files
}

/// Says that another process holds a lock.
pub fn held(lock: &[u8]) -> String {
    let below = lock.strip_prefix(repository_of(lock)).unwrap_or(lock);
    let name = printable(below.strip_prefix(b"/").unwrap_or(below));
    format!("another Git process holds {name}, or has left it there")
}

/// Whether a file tells only of the last command of its kind.
fn is_message(path: &[u8]) -> bool {
    let below = path.strip_prefix(git_dir_of(path).unwrap_or_default()).unwrap_or_default();
    matches!(below, b"/COMMIT_EDITMSG" | b"/TAG_EDITMSG" | b"/FETCH_HEAD" | b"/gc.log")
}

/// An entry of a reflog.
struct ReflogEntry<'a> {
    /// The object id that the ref got.
    new: &'a [u8],
    /// Who did it: `name <address>`.
    identity: &'a [u8],
}

impl ReflogEntry<'_> {
    /// The last entry of a reflog.
    fn last_of(reflog: &[u8]) -> Option<ReflogEntry<'_>> {
        let line = reflog.trim_ascii_end().rsplit(|byte| *byte == b'\n').next()?;
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (_, new, rest) = (words.next()?, words.next()?, words.next()?);
        let end = rest.iter().position(|byte| *byte == b'>')?;
        let is_oid = new.len() >= 40 && new.iter().all(u8::is_ascii_hexdigit);
        is_oid.then(|| ReflogEntry { new, identity: &rest[..=end] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_entry_of_a_reflog_has_its_object_id_and_who_made_it() {
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let line = format!("{one} {one} A <a@b> 1 +0000\tx\n{one} {two} B C <b c@d> 2 +0100\ty > z\n");
        let entry = ReflogEntry::last_of(line.as_bytes()).unwrap();
        assert_eq!((entry.new, entry.identity), (two.as_bytes(), b"B C <b c@d>".as_slice()));
        assert!(ReflogEntry::last_of(b"").is_none() && ReflogEntry::last_of(b"a b\n").is_none());
    }
}
