//! Files that were looked through and have no private key, by their state: a table that recordings share.
//!
//! A set-associative cache in one sparse file. Entries have a checksum: one that two recordings wrote at the same time, or
//! that a crash has torn, does not count. Files that were made together mostly have inode numbers that follow each other, and
//! are read together: the sets of such numbers are neighbours, a group, which is read once and kept. What other recordings add
//! to it later is not seen, which only costs time. Neighbour: `enforce.rs`, which asks before a file is read.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::fs::Signature;

/// Groups of the table.
const GROUPS: u64 = 1 << 10;
/// Sets of a group.
const SETS: usize = 1 << 4;
/// Entries of a set.
const WAYS: usize = 4;
/// Bytes of an entry: device, inode number, size, and ctime in seconds, of 8 bytes each, its nanoseconds, and the CRC-32
/// of all these, little endian.
const ENTRY: usize = 40;
const SET: usize = WAYS * ENTRY;
/// Inode numbers that follow each other and have one group: half of its entries, so that it has room for those of others.
const NEIGHBOURS: u64 = (SETS * WAYS / 2) as u64;

type Group = [u8; SETS * SET];

/// The table, which is opened when it is first used. Without one, no file is known.
#[derive(Debug)]
pub struct KeylessFiles {
    path: Option<PathBuf>,
    file: OnceCell<Option<File>>,
    /// The groups that were read, at most the whole table.
    groups: RefCell<HashMap<u64, Box<Group>, foldhash::fast::RandomState>>,
}

impl KeylessFiles {
    /// The table at a path, which is made if it is not there.
    pub fn at(path: Option<PathBuf>) -> KeylessFiles {
        KeylessFiles { path, file: OnceCell::new(), groups: RefCell::default() }
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
        let Some(file) = self.file() else { return false };
        let (group, set) = place_of(state);
        let mut groups = self.groups.borrow_mut();
        let known = groups.entry(group).or_insert_with(|| read(file, group));
        known[set..set + SET].chunks_exact(ENTRY).any(|known| known == entry)
    }

    /// Adds a file that has no private key in this state, in place of another one if there is no room.
    pub fn add(&self, state: &Signature) {
        let Some(file) = self.file() else { return };
        let (entry, (group, set)) = (entry_of(state), place_of(state));
        // Another recording may have used the room.
        let mut known = read(file, group);
        let is_free = |known: &[u8]| known.iter().all(|byte| *byte == 0);
        let free = known[set..set + SET].chunks_exact(ENTRY).position(is_free);
        let way = free.unwrap_or(usize::from(entry[ENTRY - 1]) % WAYS);
        let at = set + way * ENTRY;
        known[at..at + ENTRY].copy_from_slice(&entry);
        self.groups.borrow_mut().insert(group, known);
        // An entry that is lost only costs time.
        let _ = file.write_all_at(&entry, group * size_of::<Group>() as u64 + at as u64);
    }
}

/// A group; zeros where nothing was written.
fn read(file: &File, group: u64) -> Box<Group> {
    let mut bytes = Box::new([0; size_of::<Group>()]);
    if file.read_at(&mut bytes[..], group * size_of::<Group>() as u64).is_err() {
        bytes.fill(0);
    }
    bytes
}

/// The group and in it the offset of the set in which a file in this state is, if it is in the table.
fn place_of(state: &Signature) -> (u64, usize) {
    /// 2^64 divided by the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let group = (state.ino / NEIGHBOURS).wrapping_add(state.dev.wrapping_mul(SPREAD) >> 32) % GROUPS;
    let set = usize::try_from(state.ino % SETS as u64).unwrap_or_default();
    (group, set * SET)
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
    fn files_that_were_made_together_are_read_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let table = KeylessFiles::at(Some(path.clone()));
        (1000..2000).for_each(|ino| table.add(&state(ino, 1)));
        let table = KeylessFiles::at(Some(path));
        assert!((1000..2000).all(|ino| table.contains(&state(ino, 1))));
        assert!(table.groups.borrow().len() <= 33);
        // What was read is not read again.
        table.file().unwrap().set_len(0).unwrap();
        assert!(table.contains(&state(1000, 1)));
    }

    #[test]
    fn recordings_at_the_same_time_keep_each_others_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let tables = [(); 2].map(|()| KeylessFiles::at(Some(path.clone())));
        for ino in 0..16 {
            assert!(!tables.iter().any(|table| table.contains(&state(ino, 1))));
            tables[usize::try_from(ino % 2).unwrap()].add(&state(ino, 1));
        }
        let table = KeylessFiles::at(Some(path));
        assert!((0..16).all(|ino| table.contains(&state(ino, 1))));
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
        let table = KeylessFiles::at(Some(path.clone()));
        assert_eq!(same_set.iter().filter(|state| table.contains(state)).count(), WAYS);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).unwrap();
        let table = KeylessFiles::at(Some(path.clone()));
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
