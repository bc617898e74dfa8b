//! Regular files, read without blocking, with a limit, and with changes during the read detected.
//!
//! What is in a repository may have been put there by the traced command: a FIFO in the place of `.git/HEAD`
//! must not block the recorder, nor a sparse index of gigabytes fill its memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;

use super::error::Error;
use crate::fs::{FileStat, Signature, open_regular};

/// Whether reading `path` can't block and takes no more memory than `limit`: a regular file that is no
/// larger, a directory, or nothing at all is there.
pub(super) fn harmless(path: &Path, limit: u64) -> bool {
    match path.metadata() {
        Ok(found) => found.is_dir() || found.is_file() && found.len() <= limit,
        Err(error) => absent(&error),
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads the regular file at `path`; none where there is no such file, or it can't be read.
///
/// # Errors
/// It is larger than `limit`, so what it says is unknown.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let Ok(file) = open_regular(path.as_os_str().as_bytes()) else { return Ok(None) };
    read_open(file, limit)
}

fn read_open(file: File, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    // A file that is too large is not read at all.
    if file.metadata().is_ok_and(|found| found.len() > limit) {
        return Err(Error::TooLarge);
    }
    let mut content = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut content);
    if content.len() as u64 > limit {
        return Err(Error::TooLarge);
    }
    Ok(read.is_ok().then_some(content))
}

/// Like [`read`], following symlinks.
pub(super) fn read_followed(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    path.canonicalize().map_or(Ok(None), |real| read(&real, limit))
}

/// Like [`read_followed`], of a file that begins with `magic` and has no holes: the size of a sparse file
/// says nothing of how much was written to it.
pub(super) fn read_written(path: &Path, limit: u64, magic: &[u8]) -> Option<Vec<u8>> {
    read_open_written(open_regular(path.canonicalize().ok()?.as_os_str().as_bytes()).ok()?, limit, magic)
}

/// The same of an open file, whose offset is moved.
pub(super) fn read_open_written(file: File, limit: u64, magic: &[u8]) -> Option<Vec<u8>> {
    let mut beginning = vec![0; magic.len()];
    file.read_exact_at(&mut beginning, 0).ok()?;
    let end = file.metadata().ok()?.len();
    // On a filesystem without SEEK_HOLE the end of the file counts as the first hole.
    let first_hole = rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap_or(end);
    if beginning != magic || first_hole < end {
        return None;
    }
    rustix::fs::seek(&file, SeekFrom::Start(0)).ok()?;
    read_open(file, limit).ok()?
}

/// Passes the bytes of the regular file at `path` to `take`, in order.
///
/// Returns none unless it is the file that `stat` describes, before and after, and was read whole.
pub(super) fn stream(path: &Path, stat: &FileStat, take: &mut dyn FnMut(&[u8])) -> Option<()> {
    let mut file = open_regular(path.as_os_str().as_bytes()).ok()?;
    let expected = Signature::from(stat);
    let unchanged = |file: &std::fs::File| Some(Signature::from(&file.metadata().ok()?) == expected);
    if !unchanged(&file)? {
        return None;
    }
    let mut buffer = vec![0; usize::try_from(expected.size + 1).map_or(1 << 17, |size| size.min(1 << 17))];
    let mut total = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                take(&buffer[..count]);
                total += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    (total == expected.size && unchanged(&file)?).then_some(())
}
