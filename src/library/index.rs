//! `paths.idx`: the paths that each recording and each rescue has changed, as hashes, so that the history of a path
//! takes no look into each bundle.
//!
//! Appended under a lock on the file itself. What is damaged or cut, of another version, or missing costs speed only:
//! those bundles are opened instead, and added. An entry is
//!
//! ```text
//! "PIX3"  crc32 of the rest  length of the key  number of hashes  key  hashes, sorted
//!  4      u32                u16                u32               ...  u64 each
//! ```
//!
//! with little-endian numbers. The key is the identifier of a recording, or the name of a rescue with the modification
//! time of its manifest, since a name may be used again. Of a key that is there twice the last entry counts. A hash is
//! the first 8 bytes of the SHA-256 of a changed path, of the path of a directory above one with a slash behind it, or
//! of a byte and the device and inode numbers (u64 each) of a file: 1 for a file that was there before or has other
//! hard links, and 2 for one that has other hard links.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};

use super::error::{Error, failed};
use crate::fs::parent_of;
use crate::git::below;
use crate::snapshot::change::PathEffect;
use crate::snapshot::timeline::has_other_link_count;
use crate::snapshot::{FileRecord, Snapshot};

/// The index's name in the library.
pub const INDEX: &str = "paths.idx";

/// What an entry begins with; the last character is the version.
const MARK: &[u8; 4] = b"PIX3";

/// The length of an entry without its key and hashes.
const FIXED: usize = 14;

/// The hash of a path.
fn hash(path: &[u8]) -> u64 {
    let digest = Sha256::digest(path);
    digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

/// The hash of a directory with something changed beneath it.
fn hash_above(path: &[u8]) -> u64 {
    hash(&[path, b"/"].concat())
}

/// The hash of a file by its device and inode numbers; no path begins with `kind`.
fn hash_of_file(kind: u8, (dev, ino): (u64, u64)) -> u64 {
    hash(&[&[kind][..], &dev.to_le_bytes(), &ino.to_le_bytes()].concat())
}

const FILE: u8 = 1;
const LINKED_FILE: u8 = 2;

/// The hashes of the paths that one bundle has changed, as its records are seen one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathHashes {
    hashes: Vec<u64>,
    /// The path added last: directories that it shares with the next one are hashed once.
    last: Vec<u8>,
}

impl PathHashes {
    /// Adds a record whose path had this effect.
    ///
    /// All that a command wrote counts, also what is as before and what the shell had redirected: those records tell of
    /// the path, too.
    pub fn add(&mut self, record: &FileRecord, effect: PathEffect) {
        if effect == PathEffect::None && !has_other_link_count(record) {
            return;
        }
        self.hashes.push(hash(&record.path));
        self.add_files(record);
        let mut path = record.path.as_slice();
        while let Some(above) = parent_of(path) {
            if !self.last.is_empty() && self.last != above && below(&self.last, above).is_some() {
                break;
            }
            self.hashes.push(hash_above(above));
            path = above;
        }
        self.last.clone_from(&record.path);
    }

    fn add_files(&mut self, record: &FileRecord) {
        for (state, was_there) in [(&record.before, true), (&record.after, false)] {
            let Some((at, file)) = state.present().and_then(|at| Some((at, at.linkable_identity()?))) else {
                continue;
            };
            let has_other_names = at.nlink > 1;
            self.hashes.extend((was_there || has_other_names).then(|| hash_of_file(FILE, file)));
            self.hashes.extend(has_other_names.then(|| hash_of_file(LINKED_FILE, file)));
        }
    }

    /// Those of a bundle.
    pub fn of(snapshot: &Snapshot) -> PathHashes {
        let mut hashes = PathHashes::default();
        snapshot.files().iter().for_each(|record| hashes.add(record, PathEffect::of(record)));
        hashes
    }

    fn entry(&self, key: &str) -> Vec<u8> {
        let mut hashes = self.hashes.clone();
        hashes.sort_unstable();
        hashes.dedup();
        let lengths = (u16::try_from(key.len()), u32::try_from(hashes.len()));
        let (Ok(length), Ok(count)) = lengths else { return Vec::new() };
        let mut rest = Vec::with_capacity(FIXED + key.len() + hashes.len() * 8);
        rest.extend(length.to_le_bytes());
        rest.extend(count.to_le_bytes());
        rest.extend(key.as_bytes());
        rest.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
        [MARK.as_slice(), &crc32fast::hash(&rest).to_le_bytes(), &rest].concat()
    }
}

/// What the index says.
#[derive(Debug, Default)]
pub struct PathIndex {
    bytes: Vec<u8>,
    /// Where the hashes of each key are.
    entries: HashMap<String, Range<usize>>,
    /// How many bytes are of no entry.
    damaged: usize,
}

impl PathIndex {
    /// Reads the index of the library at `root`.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(root: &Path) -> Result<PathIndex, Error> {
        let path = root.join(INDEX);
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            // Waits for a write to end. Without locks, an entry that is cut costs only speed.
            let _ = flock(&file, FlockOperation::LockShared);
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(PathIndex::parse(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PathIndex::default()),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    fn parse(bytes: Vec<u8>) -> PathIndex {
        let (mut entries, mut damaged, mut at) = (HashMap::new(), 0, 0);
        while at < bytes.len() {
            match entry_at(&bytes, at) {
                Some((key, hashes)) => {
                    at = hashes.end;
                    entries.insert(key, hashes);
                }
                None => (damaged, at) = (damaged + 1, at + 1),
            }
        }
        PathIndex { bytes, entries, damaged }
    }

    /// Whether it has an entry of the bundle.
    pub fn knows(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the bundle may have changed what is looked for, which its records confirm; none if the index does not
    /// have the bundle.
    pub fn may_have_changed(&self, key: &str, path: IndexedPath) -> Option<bool> {
        let hashes = self.bytes.get(self.entries.get(key)?.clone())?;
        let (hashes, _) = hashes.as_chunks::<8>();
        let has = |one: &u64| hashes.binary_search_by_key(one, |hash| u64::from_le_bytes(*hash)).is_ok();
        Some(path.0.iter().flatten().any(has))
    }

    /// Whether the bundle may have changed one of these files; none if the index does not have the bundle.
    pub fn may_have_changed_one(&self, key: &str, files: &IndexedFiles) -> Option<bool> {
        let hashes = self.bytes.get(self.entries.get(key)?.clone())?;
        let (hashes, _) = hashes.as_chunks::<8>();
        let hashes = || hashes.iter().map(|hash| u64::from_le_bytes(*hash));
        Some(!files.0.is_empty() && hashes().any(|hash| files.0.contains(&hash)))
    }

    /// Adds what it did not know; if it is damaged, it is written anew.
    ///
    /// # Errors
    /// It can't be written.
    pub fn complete(&self, root: &Path, new: &[(String, PathHashes)]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        if self.damaged > 0 {
            for (key, hashes) in &self.entries {
                bytes.extend_from_slice(&self.bytes[hashes.start - key.len() - FIXED..hashes.end]);
            }
        }
        bytes.extend(new.iter().flat_map(|(key, hashes)| hashes.entry(key)));
        let replaced = (self.damaged > 0).then_some(self.bytes.len());
        if bytes.is_empty() && replaced.is_none() { Ok(()) } else { write(root, &bytes, replaced) }
    }
}

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub struct IndexedPath([Option<u64>; 2]);

impl IndexedPath {
    /// Changes of the path itself.
    pub fn itself(path: &[u8]) -> IndexedPath {
        IndexedPath([Some(hash(path)), None])
    }

    /// Changes of the path, or of something below it.
    pub fn with_all_below(path: &[u8]) -> IndexedPath {
        IndexedPath([Some(hash(path)), Some(hash_above(path))])
    }

    /// Whether it is among those of a bundle that was opened.
    pub fn is_in(self, hashes: &PathHashes) -> bool {
        self.0.iter().flatten().any(|hash| hashes.hashes.contains(hash))
    }
}

/// Files that are looked for by their device and inode numbers.
#[derive(Debug, Clone, Default)]
pub struct IndexedFiles(HashSet<u64>);

impl IndexedFiles {
    /// Changes of these files under any name.
    pub fn of<'f>(files: impl IntoIterator<Item = &'f (u64, u64)>) -> IndexedFiles {
        IndexedFiles(files.into_iter().map(|file| hash_of_file(FILE, *file)).collect())
    }

    /// Whether one of them is among those of a bundle that was opened.
    pub fn are_in(&self, hashes: &PathHashes) -> bool {
        hashes.hashes.iter().any(|hash| self.0.contains(hash))
    }

    /// Changes of these files while they had several hard links.
    pub fn linked<'f>(files: impl IntoIterator<Item = &'f (u64, u64)>) -> IndexedFiles {
        IndexedFiles(files.into_iter().map(|file| hash_of_file(LINKED_FILE, *file)).collect())
    }
}

/// The key of the entry at an offset, and where its hashes are; none if there is no whole one.
fn entry_at(bytes: &[u8], at: usize) -> Option<(String, Range<usize>)> {
    let rest = bytes.get(at..)?.strip_prefix(MARK)?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (length, counted) = rest.split_first_chunk::<2>()?;
    let (count, _) = counted.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let hashes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(8)?;
    let whole = rest.get(..(FIXED - 8 + length).checked_add(hashes)?)?;
    if crc32fast::hash(whole) != u32::from_le_bytes(*crc) {
        return None;
    }
    let key = std::str::from_utf8(whole.get(FIXED - 8..FIXED - 8 + length)?).ok()?;
    let start = at + FIXED + length;
    Some((key.to_owned(), start..start + hashes))
}

/// Appends the entry of a bundle.
///
/// # Errors
/// It can't be written.
pub fn append(root: &Path, key: &str, hashes: &PathHashes) -> Result<(), Error> {
    write(root, &hashes.entry(key), None)
}

/// Makes the index of these bundles anew: their keys and paths.
///
/// # Errors
/// It can't be written.
pub fn rewrite(root: &Path, bundles: &[(String, PathHashes)], seen: u64) -> Result<(), Error> {
    let bytes: Vec<u8> = bundles.iter().flat_map(|(key, hashes)| hashes.entry(key)).collect();
    write(root, &bytes, Some(usize::try_from(seen).unwrap_or(usize::MAX)))
}

/// The length of the index now: `rewrite` keeps what is appended after it.
pub fn length(root: &Path) -> u64 {
    std::fs::metadata(root.join(INDEX)).map_or(0, |stat| stat.len())
}

/// Writes entries at the end, or in place of the first `replaced` bytes.
fn write(root: &Path, bytes: &[u8], replaced: Option<usize>) -> Result<(), Error> {
    let path = root.join(INDEX);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let Some(replaced) = replaced else { return file.write_all(bytes) };
        let since = file.metadata()?.len().saturating_sub(replaced as u64);
        let mut appended = vec![0; usize::try_from(since).unwrap_or_default()];
        file.read_exact_at(&mut appended, replaced as u64)?;
        file.set_len(0)?;
        file.write_all(&[bytes, &appended].concat())
    };
    write().map_err(failed("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::State;
    use crate::snapshot::samples::{created, present};

    fn hashes(paths: &[&str]) -> PathHashes {
        let mut hashes = PathHashes::default();
        for path in paths {
            let record = created(path.as_bytes(), State::Present(Box::new(present(1))));
            hashes.add(&record, PathEffect::of(&record));
        }
        hashes
    }

    fn knows(index: &PathIndex, key: &str, path: &str) -> Option<bool> {
        index.may_have_changed(key, IndexedPath::with_all_below(path.as_bytes()))
    }

    #[test]
    fn hash_of_a_path_is_the_same_for_ever() {
        assert_eq!(hash(b"/home/me/f"), 0xf207_588e_f1d8_6594);
    }

    #[test]
    fn paths_and_the_directories_above_them_are_found() {
        let library = tempfile::tempdir().unwrap();
        let read = || PathIndex::read(library.path()).unwrap();
        assert_eq!(knows(&read(), "aaaaaaaa", "/"), None);
        append(library.path(), "aaaaaaaa", &hashes(&["/a/b", "/a/b/c", "/a/b-c/d", "/x"])).unwrap();
        append(library.path(), "bbbbbbbb", &hashes(&[])).unwrap();
        let index = read();
        for path in ["/", "/a", "/a/b", "/a/b/c", "/a/b-c", "/a/b-c/d", "/x"] {
            assert_eq!(knows(&index, "aaaaaaaa", path), Some(true), "{path}");
            assert_eq!(knows(&index, "bbbbbbbb", path), Some(false), "{path}");
        }
        assert_eq!(knows(&index, "aaaaaaaa", "/a/c"), Some(false));
        let itself = |path: &[u8]| index.may_have_changed("aaaaaaaa", IndexedPath::itself(path));
        assert_eq!(
            [itself(b"/a/b"), itself(b"/a/b-c"), itself(b"/a")],
            [Some(true), Some(false), Some(false)]
        );
        // The last snapshot of a recording replaces the first one.
        append(library.path(), "aaaaaaaa", &hashes(&["/y"])).unwrap();
        assert_eq!(knows(&read(), "aaaaaaaa", "/x"), Some(false));
    }

    #[test]
    fn whatever_is_damaged_is_not_known_and_made_again() {
        let library = tempfile::tempdir().unwrap();
        let keys = ["aaaaaaaa", "bbbbbbbb", "cccccccc"];
        keys.iter().for_each(|key| append(library.path(), key, &hashes(&["/a/b"])).unwrap());
        let file = library.path().join(INDEX);
        let whole = std::fs::read(&file).unwrap();
        let length = whole.len() / 3;
        let known = || {
            let index = PathIndex::read(library.path()).unwrap();
            let known = keys.map(|key| knows(&index, key, "/a/b"));
            assert!(known.iter().all(|known| *known != Some(false)), "{known:?}");
            (known.map(|known| known.is_some()), index)
        };
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            assert_eq!(known().0, [at / length != 0, at / length != 1, at / length != 2], "{at}");
            std::fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(known().0, [at / length > 0, at / length > 1, false], "{at}");
        }
        // The last one was cut, one byte short: what follows is read all the same, and completing it mends it.
        append(library.path(), "dddddddd", &hashes(&["/d"])).unwrap();
        let (found, index) = known();
        assert_eq!((found, knows(&index, "dddddddd", "/d")), ([true, true, false], Some(true)));
        append(library.path(), "eeeeeeee", &hashes(&["/e"])).unwrap();
        index.complete(library.path(), &[("cccccccc".to_owned(), hashes(&["/a/b"]))]).unwrap();
        let (found, index) = known();
        assert_eq!((found, index.damaged), ([true; 3], 0));
        assert_eq!(knows(&index, "eeeeeeee", "/e"), Some(true));
    }
}
