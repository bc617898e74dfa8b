//! The directory of a rescue: its name beside the snapshot, and how it ends.
//!
//! It is called `SNAP-rescue-N.unfinished` until its restore has ended. Neighbours: until then
//! `journal.rs` has its journal there, `rescue.rs` writes the rescue into it, `interrupted.rs` finds
//! those that were left.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::disk::lock_exclusively;
use super::error::{Error, failed};
use crate::snapshot::layout::{self, UNFINISHED};
use crate::snapshot::printable;

/// What follows the name of the snapshot in that of a rescue.
const RESCUE: &str = "-rescue-";
/// How often a locked directory is tried: another restore may take long.
const LOCK_TRIES: u32 = 3000;

/// The directory that the snapshot `snap` is in, and the start of the names of its rescues; a rescue of a
/// rescue is named after the first snapshot.
pub fn family(snap: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    let real = snap.canonicalize()?;
    let name = real.file_name().unwrap_or(OsStr::new("root")).as_bytes();
    let name = name.strip_suffix(UNFINISHED.as_bytes()).unwrap_or(name);
    let name = base(name).unwrap_or(name).to_vec();
    Ok((real.parent().unwrap_or(Path::new("/")).to_owned(), name))
}

/// The path of the rescue with a number, with this end of its name.
fn numbered((directory, base): &(PathBuf, Vec<u8>), number: u32, end: &str) -> PathBuf {
    let mut name = base.clone();
    name.extend_from_slice(format!("{RESCUE}{number}{end}").as_bytes());
    directory.join(OsStr::from_bytes(&name))
}

/// The numbers that no finished rescue has.
fn numbers(family: &(PathBuf, Vec<u8>)) -> impl Iterator<Item = u32> {
    (1..=u32::MAX).filter(|number| !is_there(&numbered(family, *number, "")))
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Waits for the other restores in `directory`, and locks it against them. Where others may open it, as outside of a
/// library, they could keep us waiting: there it is not locked.
pub fn lock_all(directory: &Path) -> Result<Option<File>, Error> {
    let is_ours_alone = std::fs::symlink_metadata(directory)
        .is_ok_and(|metadata| is_private(&metadata) && metadata.mode() & 0o077 == 0);
    if !is_ours_alone {
        return Ok(None);
    }
    let file = File::open(directory).map_err(failed("open what the snapshot is in"))?;
    if lock_exclusively(&file, LOCK_TRIES) {
        return Ok(Some(file));
    }
    Err(Error::Busy(printable(directory.as_os_str().as_bytes()).into_owned()))
}

/// Ends the restore whose journal is in `directory`: a rescue gets its final name; a directory without
/// one is removed.
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

/// The name of the rescue in `directory` once its restore has ended.
pub fn final_name(directory: &Path) -> PathBuf {
    let name = directory.as_os_str().as_bytes();
    PathBuf::from(OsStr::from_bytes(name.strip_suffix(UNFINISHED.as_bytes()).unwrap_or(name)))
}

/// The name of the snapshot that an unfinished rescue called `name` is of; none if it is not the name of one.
pub fn unfinished_base(name: &OsStr) -> Option<&[u8]> {
    base(name.as_bytes().strip_suffix(UNFINISHED.as_bytes())?)
}

/// The name of the snapshot that a rescue called `name` is of; none if it is not the name of one.
pub fn base(name: &[u8]) -> Option<&[u8]> {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    name[..name.len() - digits].strip_suffix(RESCUE.as_bytes()).filter(|_| digits > 0)
}

/// Whether `path` is a directory of this user that nobody else may write to.
pub fn is_own_directory(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir() && is_private(&metadata))
}

/// Whether only this user may change what has the metadata.
pub fn is_private(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Creates a directory beside `snap` with the next free number, and `journal` in it; one without a
/// journal, which an early interruption has left, is used again.
pub fn create_beside(
    snap: &Path,
    journal: impl Fn(&Path) -> io::Result<Option<File>>,
) -> io::Result<(PathBuf, File)> {
    let family = family(snap)?;
    for number in numbers(&family) {
        let candidate = numbered(&family, number, UNFINISHED);
        match rustix::fs::mkdir(&candidate, Mode::RWXU) {
            Err(Errno::EXIST) if !is_own_directory(&candidate) || !is_abandoned(&candidate) => {}
            Ok(()) | Err(Errno::EXIST) => {
                let Some(file) = journal(&candidate)? else { continue };
                // Another restore may have ended since, and given its rescue this number.
                if !is_there(&numbered(&family, number, "")) {
                    return Ok((candidate, file));
                }
                end(&candidate)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Gives an unfinished rescue another number if a finished one has its number, under [`lock_all`].
pub fn renumber(path: &Path) -> io::Result<()> {
    if !is_there(&final_name(path)) {
        return Ok(());
    }
    let family = family(path)?;
    let mut candidates = numbers(&family).map(|number| numbered(&family, number, UNFINISHED));
    let free = candidates.find(|candidate| !is_there(candidate));
    free.map_or(Err(io::ErrorKind::AlreadyExists.into()), |free| std::fs::rename(path, free))
}

/// Whether there is no rescue in the directory: its restore was interrupted before it changed any file.
pub fn is_abandoned(path: &Path) -> bool {
    let none = std::fs::symlink_metadata(path.join(layout::MANIFEST));
    none.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescue_that_gets_its_number_meanwhile_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let snap = dir.path().join("snap");
        std::fs::create_dir(&snap).unwrap();
        let first = dir.path().join("snap-rescue-1");
        let journal = |candidate: &Path| {
            if candidate.ends_with("snap-rescue-1.unfinished") {
                std::fs::create_dir(&first)?;
            }
            File::create(candidate.join(layout::RESTORE_JOURNAL)).map(Some)
        };
        let (made, _file) = create_beside(&snap, journal).unwrap();
        assert_eq!(made, dir.path().canonicalize().unwrap().join("snap-rescue-2.unfinished"));
        assert!(first.exists() && !dir.path().join("snap-rescue-1.unfinished").exists());
    }
}
