//! Files that were looked through and have no private key, by their state: a table that recordings share.
//!
//! A set-associative cache in one sparse file. Entries have a checksum: one that two recordings wrote at the same time, or
//! that a crash has torn, does not count. Neighbour: `enforce.rs`, which asks before a file is read.

use std::cell::OnceCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::fs::Signature;

/// Sets of the table.
const SETS: u64 = 1 << 14;
/// Entries of a set.
const WAYS: usize = 4;
/// Bytes of an entry: device, inode number, size, and ctime in seconds, of 8 bytes each, its nanoseconds, and the CRC-32
/// of all these, little endian.
const ENTRY: usize = 40;

/// The table, which is opened when it is first used. Without one, no file is known.
#[derive(Debug)]
pub struct KeylessFiles {
    path: Option<PathBuf>,
    file: OnceCell<Option<File>>,
}

impl KeylessFiles {
    /// The table at a path, which is made if it is not there.
    pub fn at(path: Option<PathBuf>) -> KeylessFiles {
        KeylessFiles { path, file: OnceCell::new() }
    }

    fn file(&self) -> Option<&File> {
        self.file.get_or_init(|| KeylessFiles::open(self.path.as_ref()?).ok()).as_ref()
    }

    fn open(path: &Path) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(file)
    }

    /// Whether a file in this state is in it.
    pub fn contains(&self, state: &Signature) -> bool {
        let entry = entry_of(state);
        self.file()
            .is_some_and(|file| read(file, set_of(state)).chunks_exact(ENTRY).any(|known| known == entry))
    }

    /// Adds a file that has no private key in this state, in place of another one if there is no room.
    pub fn add(&self, state: &Signature) {
        let Some(file) = self.file() else { return };
        let (set, entry) = (set_of(state), entry_of(state));
        let known = read(file, set);
        let is_free = |known: &[u8]| known.iter().all(|byte| *byte == 0);
        let free = known.chunks_exact(ENTRY).position(is_free);
        let way = free.unwrap_or(usize::from(entry[ENTRY - 1]) % WAYS);
        // An entry that is lost only costs time.
        let _ = file.write_all_at(&entry, (set * WAYS as u64 + way as u64) * ENTRY as u64);
    }
}

/// A set; zeros where nothing was written.
fn read(file: &File, set: u64) -> [u8; WAYS * ENTRY] {
    let mut bytes = [0; WAYS * ENTRY];
    if file.read_at(&mut bytes, set * (WAYS * ENTRY) as u64).is_err() {
        bytes.fill(0);
    }
    bytes
}

/// The set in which a file in this state is, if it is in the table.
fn set_of(state: &Signature) -> u64 {
    // Files of a directory mostly have numbers that follow each other.
    (state.dev.rotate_left(32) ^ state.ino ^ (state.size << 5)) % SETS
}

fn entry_of(state: &Signature) -> [u8; ENTRY] {
    let Signature { dev, ino, size, ctime: (seconds, nanoseconds), .. } = *state;
    let words = [dev, ino, size, seconds.cast_unsigned()];
    let mut entry = [0; ENTRY];
    for (bytes, word) in entry.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let nanoseconds = u32::try_from(nanoseconds).unwrap_or(u32::MAX);
    entry[32..36].copy_from_slice(&nanoseconds.to_le_bytes());
    let checksum = crc32fast::hash(&entry[..36]);
    entry[36..].copy_from_slice(&checksum.to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(ino: u64, ctime: i64) -> Signature {
        Signature { dev: 7, ino, size: 100, mtime: (1, 2), ctime: (1000, ctime) }
    }

    #[test]
    fn a_file_is_known_in_the_state_in_which_it_was_looked_through() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let table = KeylessFiles::at(Some(path.clone()));
        assert!(!table.contains(&state(1, 1)));
        table.add(&state(1, 1));
        // Another recording.
        let table = KeylessFiles::at(Some(path.clone()));
        assert!(table.contains(&state(1, 1)));
        for other in [state(2, 1), state(1, 2), Signature { size: 101, ..state(1, 1) }] {
            assert!(!table.contains(&other), "{other:?}");
        }
    }

    #[test]
    fn a_full_set_forgets_and_a_damaged_entry_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let table = KeylessFiles::at(Some(path.clone()));
        let same_set: Vec<Signature> = (0..9).map(|ctime| state(1, ctime)).collect();
        for state in &same_set {
            table.add(state);
            assert!(table.contains(state));
        }
        assert_eq!(same_set.iter().filter(|state| table.contains(state)).count(), WAYS);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).unwrap();
        assert!(!same_set.iter().any(|state| table.contains(state)));
    }

    #[test]
    fn what_is_no_regular_file_is_no_table() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("link")).unwrap();
        assert!(KeylessFiles::open(&dir.path().join("link")).is_err());
        assert!(KeylessFiles::open(dir.path()).is_err());
    }
}
