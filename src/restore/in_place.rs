//! Files that are written in place: what an interruption leaves of them, and how that is undone.
//!
//! A file is written block after block, so an interruption leaves a mixture of old and new blocks. That
//! it is the same inode proves nothing, since the user may have edited it; its bytes do. Neighbours:
//! `apply.rs` writes such files, `settle.rs` takes them back.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::snapshot::digest::read_at;
use crate::snapshot::sparse::Extents;

/// An interrupted write ends at a page boundary.
const PAGE: u64 = 4096;
/// How many bytes are written at once.
const STEP: usize = 1 << 20;

/// Overwrites `file` with `content` and its holes unless `is_expected` returns false: it is called once,
/// when the first bytes are in memory, and the next system call is the first to change the file.
pub fn overwrite(file: &File, content: &File, is_expected: impl FnOnce() -> bool) -> io::Result<bool> {
    let (length, old_length) = (content.metadata()?.len(), file.metadata()?.len());
    let data = Extents::new(content, length)?.collect::<io::Result<Vec<_>>>()?;
    let data_end = data.last().map_or(0, |range| range.end);
    let mut buffer = vec![0; STEP.min(usize::try_from(length).unwrap_or(STEP))];
    let mut filled = match data.first() {
        Some(first) => fill(content, &mut buffer, first)?,
        None => 0,
    };
    if !is_expected() {
        return Ok(false);
    }
    let mut at = 0;
    for range in data.into_iter().chain(std::iter::once(length..length)) {
        make_hole(file, at..range.start.min(old_length))?;
        if at > 0 {
            filled = fill(content, &mut buffer, &range)?;
        }
        at = range.start;
        while filled > 0 {
            file.write_all_at(&buffer[..filled], at)?;
            at += filled as u64;
            filled = fill(content, &mut buffer, &(at..range.end))?;
        }
    }
    if old_length > length || old_length.max(data_end) < length {
        file.set_len(length)?;
    }
    Ok(true)
}

/// Reads as much of the start of `range` as fits into the buffer.
fn fill(content: &File, buffer: &mut [u8], range: &Range<u64>) -> io::Result<usize> {
    let most = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    let size = buffer.len().min(most);
    read_at(content, &mut buffer[..size], range.start)
}

/// Makes `range` read as zeros, as a hole if the filesystem supports it.
fn make_hole(file: &File, range: Range<u64>) -> io::Result<()> {
    let Some(length) = range.end.checked_sub(range.start).filter(|length| *length > 0) else {
        return Ok(());
    };
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, range.start, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; STEP];
            (range.start..range.end).step_by(STEP).try_for_each(|at| {
                let size = usize::try_from(range.end - at).unwrap_or(STEP).min(STEP);
                file.write_all_at(&zeros[..size], at)
            })
        }
        other => Ok(other?),
    }
}

/// Whether each block of `live` is one of `old` or of `new`, so that nobody else has written to it.
pub fn is_mixture(live: &File, old: &File, new: &File) -> io::Result<bool> {
    let [length, old_length, new_length] =
        [live.metadata()?.len(), old.metadata()?.len(), new.metadata()?.len()];
    let ends = [old_length, new_length];
    let is_between = length >= old_length.min(new_length) && length <= old_length.max(new_length);
    if !is_between || !(ends.contains(&length) || length % PAGE == 0) {
        return Ok(false);
    }
    let mut buffers = [[0; 4096]; 3];
    let mut at = 0;
    while at < length {
        // Where one of the two ends, the other's bytes can follow.
        let end =
            ends.into_iter().filter(|end| *end > at).fold(length.min(at / PAGE * PAGE + PAGE), u64::min);
        let size = usize::try_from(end - at).unwrap_or_default();
        let [live_bytes, old_bytes, new_bytes] = &mut buffers;
        let mut is_of = |file: &File, file_length: u64, bytes: &mut [u8; 4096]| -> io::Result<bool> {
            let read = read_at(live, &mut live_bytes[..size], at)?;
            let is_whole =
                end <= file_length && read_at(file, &mut bytes[..size], at)? == size && read == size;
            Ok(is_whole && live_bytes[..size] == bytes[..size])
        };
        if !is_of(old, old_length, old_bytes)? && !is_of(new, new_length, new_bytes)? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn mixture(live: &[u8], old: &[u8], new: &[u8]) -> bool {
        is_mixture(&file(live), &file(old), &file(new)).unwrap()
    }

    #[test]
    fn what_a_write_and_its_way_back_leave_at_any_page_is_known() {
        for (old, new) in [(20_000, 20_000), (9_000, 20_000), (20_000, 9_000), (0, 9_000), (9_000, 0)] {
            let (old, new) = (vec![b'o'; old], vec![b'n'; new]);
            for at in (0..new.len()).step_by(4096).chain([new.len()]) {
                let mut live = new[..at].to_vec();
                live.extend(old.iter().skip(at));
                assert!(mixture(&live, &old, &new), "{} {} {at}", old.len(), new.len());
                for back in (0..old.len()).step_by(4096).chain([old.len()]) {
                    let mut live = live.clone();
                    live.resize(live.len().max(back), 0);
                    live[..back].copy_from_slice(&old[..back]);
                    assert!(mixture(&live, &old, &new), "{} {} {at} {back}", old.len(), new.len());
                }
            }
            assert!(mixture(&new, &old, &new));
        }
    }

    #[test]
    fn what_a_user_writes_is_not_taken_for_it() {
        let (old, new) = (vec![b'o'; 20_000], vec![b'n'; 18_000]);
        let mixed = |at: usize| [&new[..at], &old[at..]].concat();
        let mut edited = mixed(8192);
        edited[100] = b'x';
        let lines: [&[u8]; 7] = [
            &[&old[..], b"more"].concat(),
            &old[..10_000],
            &mixed(5),
            &mixed(5000),
            &mixed(8192)[..19_000],
            &edited,
            b"",
        ];
        for (number, live) in lines.into_iter().enumerate() {
            assert!(!mixture(live, &old, &new), "{number}");
        }
    }

    #[test]
    fn holes_are_holes_in_the_file_that_is_overwritten() {
        let data_size = |file: &File| crate::snapshot::live::data_size(file).unwrap();
        let content = tempfile::tempfile().unwrap();
        content.set_len(8 << 20).unwrap();
        content.write_all_at(b"middle", 3 << 20).unwrap();
        for old in [0, 1 << 20, 10 << 20] {
            let live = file(&vec![b'o'; old]);
            assert!(overwrite(&live, &content, || true).unwrap());
            let mut bytes = vec![1; (8 << 20) + 1];
            assert_eq!(read_at(&live, &mut bytes, 0).unwrap(), 8 << 20);
            assert_eq!(&bytes[3 << 20..(3 << 20) + 6], b"middle");
            assert_eq!(bytes[..8 << 20].iter().filter(|byte| **byte != 0).count(), 6);
            // If the filesystem has no holes, `content` has none either.
            assert!(data_size(&live) <= 1 << 20 || data_size(&content) > 1 << 20);
        }
    }

    #[test]
    fn a_file_is_overwritten_whole_or_not_at_all() {
        for (old, new) in [(3 << 20, 5), (5, 3 << 20), (0, 7), (7, 0)] {
            let (live, content) = (file(&vec![b'o'; old]), file(&vec![b'n'; new]));
            assert!(!overwrite(&live, &content, || false).unwrap());
            assert_eq!(live.metadata().unwrap().len(), old as u64);
            assert!(overwrite(&live, &content, || true).unwrap());
            assert!(mixture(&vec![b'n'; new], b"", &vec![b'n'; new]));
            let mut bytes = vec![0; new + 1];
            assert_eq!(read_at(&live, &mut bytes, 0).unwrap(), new);
            assert!(bytes[..new].iter().all(|byte| *byte == b'n'));
        }
    }
}
