//! Other names of the files that are put back, which the snapshot does not have and other recordings do.
//!
//! A name counts only if the recorded file is there now: the same inode with the recorded size, mode and time, which is
//! no younger than the recording, since inode numbers are used again; or the one that a restore has made in its place, with
//! that size, mode and time. Its content is compared when it is inspected, as that of every other name is. Neighbours: `targets.rs` makes groups of names; `plan/hard_links.rs` joins them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::request::RestoreRequest;
use super::root::Root;
use super::targets::opposite;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{KnownLinks, LinkedFile, content_id, state};
use crate::snapshot::{FileRecord, FileType, Operation, Present, State};

/// `files` with a record of each known name at which a file is that is to be put back, or that is to be written to. The
/// states of `files` were seen not later than `finished_at` (RFC 3339).
///
/// A file that a restore has made again has another inode number than the records say: they get that number.
pub fn with_known_names<'a>(
    files: Cow<'a, [FileRecord]>,
    request: &RestoreRequest,
    root: &Root,
    finished_at: &str,
) -> Cow<'a, [FileRecord]> {
    let known = request.known_links;
    let finished: Option<Timestamp> = finished_at.parse().ok();
    let mut found: Vec<Name> =
        known.names.iter().filter_map(|path| name(path, known, root, finished)).collect();
    if found.is_empty() {
        return files;
    }
    let mut inodes: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    for Name { live, original, .. } in &found {
        let inode = inodes.entry(original.inode()).or_insert(live.identity());
        if live.identity() == original.inode() {
            *inode = original.inode();
        }
    }
    let now = |file: LinkedFile| {
        let original = known.original(file);
        inodes.get(&original.inode()).map_or(file, |inode| file.with_inode(*inode))
    };
    let mut all = files.into_owned();
    for at in all.iter_mut().flat_map(|record| [&mut record.before, &mut record.after]) {
        if let State::Present(at) = at
            && let Some(file) = LinkedFile::of_any(at)
        {
            (at.dev, at.ino) = now(file).inode();
        }
    }
    found.retain(|name| FileRecord::find(&all, name.path).is_none());
    let left: HashSet<LinkedFile> = known.left.iter().map(|file| now(*file)).collect();
    let mut by_state: HashMap<LinkedFile, &FileRecord> = HashMap::new();
    let mut by_inode: HashMap<(u64, u64), &FileRecord> = HashMap::new();
    for record in &all {
        // A file whose content is not identified can't be told from another one that got its inode number.
        let wanted = state(record, request.wanted).present();
        let is_identified = |at: &Present| {
            at.file_type != FileType::File || content_id(record, request.wanted).is_some() || at.size == 0
        };
        if let Some(file) = wanted.filter(|at| is_identified(at)).and_then(LinkedFile::of) {
            by_state.entry(file).or_insert(record);
            by_inode.entry(file.inode()).or_insert(record);
        }
    }
    let mut added = Vec::new();
    for Name { path, live, original } in found {
        let file = now(original);
        let is_left = request.wanted == Side::Before && left.contains(&file);
        let record = by_state.get(&file).or_else(|| by_inode.get(&file.inode()).filter(|_| is_left));
        let Some((record, wanted)) =
            record.and_then(|one| Some((one, state(one, request.wanted).present()?)))
        else {
            continue;
        };
        let (dev, ino) = file.inode();
        let is_wanted = LinkedFile::of_any(wanted) == Some(file);
        // What the snapshot has left of the same file: any other attribute is somebody else's.
        let left = state(record, opposite(request.wanted)).present();
        let left = left.filter(|left| left.identity() == wanted.identity()).unwrap_or(wanted);
        let live = Present { dev, ino, ..with_attributes(live, left) };
        let (wanted, operation) = match is_wanted {
            true => (
                Present { nlink: wanted.nlink, ..with_attributes(live.clone(), wanted) },
                Operation::Existence,
            ),
            // What was written by a name that has gone since.
            false => (wanted.clone(), Operation::Write),
        };
        let [wanted, live] = [wanted, live].map(|at| State::Present(Box::new(at)));
        let [before, after] = match request.wanted {
            Side::Before => [wanted, live],
            Side::After => [live, wanted],
        };
        let git = record.git.clone().filter(|_| !is_wanted);
        added.push(FileRecord { git, ..FileRecord::new(path, before, after, operation.into()) });
    }
    all.extend(added);
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Cow::Owned(all)
}

/// `at` with the attributes of `of` that are no part of what is compared.
fn with_attributes(at: Present, of: &Present) -> Present {
    let (xattrs, inode_flags) = (of.xattrs.clone(), of.inode_flags.clone());
    Present { uid: of.uid, gid: of.gid, xattrs, inode_flags, ..at }
}

/// A known name at which a file is.
struct Name<'a> {
    path: &'a [u8],
    live: Present,
    /// The file by the numbers of the one that it stands for.
    original: LinkedFile,
}

fn name<'a>(
    path: &'a [u8],
    known: &KnownLinks,
    root: &Root,
    finished: Option<Timestamp>,
) -> Option<Name<'a>> {
    let dentry = root.dentry(path).ok()??;
    let live = dentry.present().ok()??;
    let file = LinkedFile::of_any(&live)?;
    let put_back = known.put_back.get(path).filter(|put_back| put_back.with_inode(file.inode()) == file);
    let original = known.original(put_back.copied().unwrap_or(file));
    let is_made_again = put_back.is_some() || known.made_again.contains_key(&file);
    let is_younger = || dentry.birth().is_some_and(|born| finished.is_none_or(|finished| born > finished));
    (is_made_again || !is_younger()).then_some(Name { path, live, original })
}
