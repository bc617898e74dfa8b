//! What directories take on the disk.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use walkdir::WalkDir;

/// The size of the blocks that stat(2) counts in.
const BLOCK: u64 = 512;

/// The files below some directories, each counted once.
#[derive(Debug, Default)]
pub struct DiskUse(HashMap<(u64, u64), FileUse>);

#[derive(Debug)]
struct FileUse {
    bytes: u64,
    links: u64,
    found: u64,
}

impl DiskUse {
    /// Counts the files below `directory`, and returns how many bytes they add. What can't be read counts nothing.
    pub fn add(&mut self, directory: &Path) -> u64 {
        let files = WalkDir::new(directory).into_iter().filter_map(|entry| entry.ok()?.metadata().ok());
        files.filter(|metadata| !metadata.is_dir()).map(|metadata| self.add_file(&metadata)).sum()
    }

    fn add_file(&mut self, metadata: &Metadata) -> u64 {
        let bytes = metadata.blocks() * BLOCK;
        let mut added = 0;
        let file = self.0.entry((metadata.dev(), metadata.ino())).or_insert_with(|| {
            added = bytes;
            FileUse { bytes, links: metadata.nlink(), found: 0 }
        });
        file.found += 1;
        added
    }

    /// The bytes that are free when all of it is removed: not those of files that have names elsewhere.
    pub fn freed(&self) -> u64 {
        self.0.values().filter(|file| file.found >= file.links).map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_with_several_names_counts_once_and_is_free_when_the_last_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        for directory in [&one, &other] {
            fs::create_dir_all(directory.join("deep")).unwrap();
        }
        fs::write(one.join("deep/f"), vec![1; 100_000]).unwrap();
        fs::hard_link(one.join("deep/f"), other.join("f")).unwrap();
        // Holes take nothing.
        fs::File::create(other.join("hole")).unwrap().set_len(1 << 30).unwrap();
        let size = fs::metadata(one.join("deep/f")).unwrap().blocks() * 512;
        assert!(size >= 100_000);
        let mut used = DiskUse::default();
        assert_eq!(used.add(&one), size);
        assert_eq!(used.freed(), 0);
        assert_eq!(used.add(&other), 0);
        assert_eq!(used.freed(), size);
        assert_eq!(used.add(&dir.path().join("none")), 0);
    }
}
