//! What a restore that was killed has left of a file that it was changing in place.
//!
//! That it is the same file proves nothing, since the user may have edited it meanwhile; its bytes do:
//! a file is written from its start, so that it begins as what was put back and ends as it was.
//! Neighbours: `apply.rs` writes such files, `plan.rs` and `rescue.rs` must know them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, Write};

use super::look::Look;
use super::place::Place;
use super::plan::is_unchanged;
use super::targets::{Links, same_file};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentError, Contents, locate};
use crate::snapshot::{FileRecord, FileType, Operation, Operations, Present, Snapshot, live};

/// A write that is cut short ends at a page of the file.
const PAGE: u64 = 4096;

/// What is known of a restore that was killed.
#[derive(Debug, Clone, Copy)]
pub struct Remains<'a> {
    /// Its rescue, which has the bytes that it was to overwrite.
    pub rescue: &'a Snapshot,
    /// The snapshot that it was putting back, where that is still there.
    pub origin: Option<&'a Snapshot>,
}

/// The records, by their indices in `files`, whose files a killed restore was changing in place and has
/// not finished; with all their names.
pub fn half_done(
    files: &[FileRecord],
    looks: &HashMap<usize, io::Result<Look>>,
    remains: &[Remains],
    place: &Place,
) -> HashSet<usize> {
    let looked = || {
        looks.iter().filter_map(|(index, look)| {
            let look = look.as_ref().ok()?;
            let live = look.live.as_ref().filter(|live| live.file_type == FileType::File)?;
            Some((*index, look, live))
        })
    };
    let mut found = HashSet::new();
    for one in remains {
        let links =
            one.origin.map(|origin| [Side::Before, Side::After].map(|side| Links::of(origin.files(), side)));
        for (index, look, live) in looked() {
            let path = &files[index].path;
            let Some(kept) = one.rescue.find(path).filter(|kept| is_changed(kept)) else { continue };
            let Some(before) = kept.before.present() else { continue };
            let is_one = (before.dev, before.ino) == (live.dev, live.ino) && !is_unchanged(before, live);
            let in_place = before.nlink > 1 || look.mount;
            let is_torn = || -> Option<bool> {
                let origin = one.origin?;
                let at = origin.files().binary_search_by(|record| record.path.cmp(path)).ok()?;
                let spot = place.spot(path).ok()??;
                [Side::Before, Side::After].into_iter().zip(links.as_ref()?).find_map(|(side, links)| {
                    let new = same_file(origin.files(), links, at).find(|new| locate(new, side).is_ok())?;
                    let file = live::open_regular(&spot.proc_path()).ok()?;
                    let (old_content, new_content) = (Contents::new(one.rescue), Contents::new(origin));
                    let old = |sink: &mut dyn Write| copy(&old_content, kept, Side::Before, sink);
                    let new = |sink: &mut dyn Write| copy(&new_content, new, side, sink);
                    is_torn(file, &old, &new).ok()?.then_some(true)
                })
            };
            if is_one && (is_given_half(kept, before, live) || in_place && is_torn().unwrap_or_default()) {
                found.insert((live.dev, live.ino));
            }
        }
    }
    looked().filter(|(.., live)| found.contains(&(live.dev, live.ino))).map(|(index, ..)| index).collect()
}

fn is_changed(kept: &FileRecord) -> bool {
    kept.operations.intersects(Operations::CHANGES)
}

/// Whether `live` is the file that was `before`, with its content, and on the way to other attributes:
/// its time is the last that it gets.
fn is_given_half(kept: &FileRecord, before: &Present, live: &Present) -> bool {
    let Some(after) = kept.after.present() else { return false };
    let content = |at: &Present| (at.size, at.mtime, at.mtime_nsec);
    if content(before) != content(live) || !kept.operations.contains(Operation::Metadata) {
        return false;
    }
    let list = |at: &Present| at.xattrs.get(b"system.posix_acl_access".as_slice()).cloned();
    let mut ours = 0;
    if (before.uid, before.gid) != (after.uid, after.gid) {
        // chown(2) clears them.
        ours |= libc::S_ISUID | libc::S_ISGID;
    }
    if list(before) != list(after) {
        // The rights of the group are those of the list's mask (acl(5)).
        ours |= libc::S_IRWXG;
    }
    (before.mode ^ live.mode) & !ours == 0
}

/// Writes a content into a sink.
type Content<'a> = &'a dyn Fn(&mut dyn Write) -> Result<(), ContentError>;

fn copy(
    contents: &Contents,
    record: &FileRecord,
    side: Side,
    sink: &mut dyn Write,
) -> Result<(), ContentError> {
    if state(record, side).present().is_some_and(|present| present.size > 0) {
        contents.copy(record, side, sink)?;
    }
    Ok(())
}

/// Whether `live` is `old` over which `new` was written up to the end of a page, or to its end.
fn is_torn(mut live: File, old: Content, new: Content) -> Result<bool, ContentError> {
    let length = live.metadata().map_err(ContentError::Sink)?.len();
    let mut against = |content: Content| {
        live.rewind().map_err(ContentError::Sink)?;
        let mut compared = Compared::new(&live);
        content(&mut compared)?;
        Ok::<_, ContentError>((compared.length, compared.first, compared.end))
    };
    let (new_length, first, _) = against(new)?;
    let (old_length, _, end) = against(old)?;
    // Up to here it is the new content, from there on the old one.
    let new_end = first.unwrap_or(length).min(length).min(new_length);
    let old_start = if length > old_length { length } else { end };
    let is_written_to = |at: u64| old_start <= at && at <= new_end && length == at.max(old_length);
    let is_whole = new_end == new_length && length == new_length;
    Ok(is_whole || is_written_to(new_length) || is_written_to(new_end / PAGE * PAGE))
}

/// A sink that holds what it gets against a file.
struct Compared<'a> {
    live: BufReader<&'a File>,
    buffer: Vec<u8>,
    /// How much it got.
    length: u64,
    /// Where the file first is another.
    first: Option<u64>,
    /// Behind the last byte of the file that is another.
    end: u64,
}

impl Compared<'_> {
    fn new(live: &File) -> Compared<'_> {
        Compared { live: BufReader::new(live), buffer: Vec::new(), length: 0, first: None, end: 0 }
    }
}

impl Write for Compared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.clear();
        (&mut self.live).take(bytes.len() as u64).read_to_end(&mut self.buffer)?;
        let differs = |(at, (one, other)): (u64, (&u8, &u8))| (one != other).then_some(at);
        let mut differences = (self.length..).zip(self.buffer.iter().zip(bytes)).filter_map(differs);
        if let Some(first) = differences.next() {
            self.first.get_or_insert(first);
            self.end = differences.last().unwrap_or(first) + 1;
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn torn(live: &[u8], old: &[u8], new: &[u8]) -> bool {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(live).unwrap();
        let content = |bytes: &[u8], sink: &mut dyn Write| sink.write_all(bytes).map_err(ContentError::Sink);
        is_torn(file, &|sink| content(old, sink), &|sink| content(new, sink)).unwrap()
    }

    #[test]
    fn what_a_write_leaves_at_any_page_is_known() {
        for (old, new) in [(20_000, 20_000), (9_000, 20_000), (20_000, 9_000), (0, 9_000), (9_000, 0)] {
            let (old, new) = (vec![b'o'; old], vec![b'n'; new]);
            for at in (0..new.len()).step_by(4096).chain([new.len()]) {
                let mut live = new[..at].to_vec();
                live.extend(old.iter().skip(at));
                assert!(torn(&live, &old, &new), "{} {} {at}", old.len(), new.len());
            }
            assert!(torn(&new, &old, &new));
        }
    }

    #[test]
    fn what_a_user_writes_is_not_taken_for_it() {
        let (old, new) = (vec![b'o'; 20_000], vec![b'n'; 18_000]);
        let mixed = |at: usize| [&new[..at], &old[at..]].concat();
        let mut edited = mixed(8192);
        edited[100] = b'x';
        let lines: [&[u8]; 8] = [
            &[&old[..], b"more"].concat(),
            &old[..10_000],
            &mixed(5),
            &mixed(5000),
            &mixed(8192)[..19_000],
            &edited,
            &[&old[..8192], &new[8192..]].concat(),
            b"",
        ];
        for (number, live) in lines.into_iter().enumerate() {
            assert!(!torn(live, &old, &new), "{number}");
        }
    }
}
