//! Other names of the files that are put back, which the snapshot does not have and other recordings do.
//!
//! A name counts only if the recorded file is there now: the same inode with the recorded size, mode and time, which is
//! no younger than the recording, since inode numbers are used again. Its content is compared when it is inspected, as
//! that of every other name is. Neighbours: `targets.rs` makes groups of names; `plan/hard_links.rs` joins them.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::Timestamp;

use super::request::RestoreRequest;
use super::root::Root;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::{LinkedFile, content_id, state};
use crate::snapshot::{FileRecord, Operation, Present, State};

/// `files` with a record of each known name at which a file is that is to be put back. The states of `files` were seen
/// not later than `finished_at` (RFC 3339).
pub fn with_known_names<'a>(
    files: Cow<'a, [FileRecord]>,
    request: &RestoreRequest,
    root: &Root,
    finished_at: &str,
) -> Cow<'a, [FileRecord]> {
    let names = &request.known_links.names;
    if names.is_empty() {
        return files;
    }
    let wanted = |record: &FileRecord| {
        let at = state(record, request.wanted).present().filter(|at| at.nlink > 1)?;
        // A file whose content is not identified can't be told from another one that got its inode number.
        let is_identified = content_id(record, request.wanted).is_some() || at.size == 0;
        Some((LinkedFile::of(at).filter(|_| is_identified)?, at.nlink))
    };
    let files_by_state: HashMap<LinkedFile, u64> = files.iter().filter_map(wanted).collect();
    let finished: Option<Timestamp> = finished_at.parse().ok();
    let live = |path: &[u8]| -> Option<Present> {
        let dentry = root.dentry(path).ok()??;
        let is_younger = dentry.birth().is_some_and(|born| finished.is_none_or(|finished| born > finished));
        dentry.present().ok()?.filter(|_| !is_younger)
    };
    let mut added = Vec::new();
    for path in names.iter().filter(|path| FileRecord::find(&files, path).is_none()) {
        let Some(live) = live(path) else { continue };
        let found = LinkedFile::of_any(&live).and_then(|file| files_by_state.get(&file));
        let Some(nlink) = found else { continue };
        let linked = State::Present(Box::new(Present { nlink: *nlink, ..live.clone() }));
        let live = State::Present(Box::new(live));
        let [before, after] = match request.wanted {
            Side::Before => [linked, live],
            Side::After => [live, linked],
        };
        added.push(FileRecord::new(path, before, after, Operation::Existence.into()));
    }
    if added.is_empty() {
        return files;
    }
    let mut all = [files.as_ref(), &added].concat();
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Cow::Owned(all)
}
