//! A directory tree, read without the code under test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use agent_snapshot::snapshot::{Digest, FileType, Present, live, printable};

/// What is at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its metadata, with extended attributes, and digests of what a file or directory holds.
    pub present: Present,
    /// The bytes of a regular file.
    pub content: Option<Vec<u8>>,
}

/// What is at each path, the root included.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// Reads everything below `root`, and `root`.
pub fn scan(root: &Path) -> Tree {
    scan_without(root, |_| false)
}

/// Reads everything below `root` but what is left out, with all that is below it.
pub fn scan_without(root: &Path, is_left_out: impl Fn(&Path) -> bool) -> Tree {
    let walk = walkdir::WalkDir::new(root).into_iter();
    walk.filter_entry(|entry| !is_left_out(entry.path()))
        .map(|entry| {
            let path = entry.unwrap().into_path();
            let entry = read(&path);
            (path.into_os_string().into_encoded_bytes(), entry)
        })
        .collect()
}

fn read(path: &Path) -> Entry {
    let stat = fs::symlink_metadata(path).unwrap();
    let file_type = FileType::from_mode(stat.mode()).unwrap();
    let content = (file_type == FileType::File).then(|| fs::read(path).unwrap());
    let is_directory = file_type == FileType::Directory;
    let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    let bytes = path.as_os_str().as_bytes();
    let present = Present {
        mtime: stat.mtime(),
        mtime_nsec: u32::try_from(stat.mtime_nsec()).unwrap(),
        size: stat.size(),
        uid: stat.uid(),
        gid: stat.gid(),
        dev: stat.dev(),
        ino: stat.ino(),
        nlink: stat.nlink(),
        target: (file_type == FileType::Symlink)
            .then(|| fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()),
        rdev: is_device.then(|| stat.rdev()),
        entries_digest: is_directory.then(|| live::entries_digest(bytes).unwrap()),
        xattrs: xattrs(path),
        inode_flags: live::inode_flags(bytes).unwrap(),
        digest: content.as_deref().map(Digest::of),
        ..Present::new(file_type, stat.mode())
    };
    Entry { present, content }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

impl Entry {
    /// The device and inode number.
    pub fn inode(&self) -> (u64, u64) {
        (self.present.dev, self.present.ino)
    }
}

/// One line for each path with all that a restore gives back; the times of directories only where
/// `has_time` says so, since a directory that is in no record keeps those of now.
pub fn describe(tree: &Tree, has_time: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let mut names: BTreeMap<(u64, u64), Vec<&[u8]>> = BTreeMap::new();
    for (path, entry) in tree.iter().filter(|(_, entry)| entry.content.is_some()) {
        names.entry(entry.inode()).or_default().push(path);
    }
    tree.iter()
        .map(|(path, entry)| {
            let at = &entry.present;
            let shown = printable(path).into_owned();
            let mut line = format!("{shown} {:o} {}:{}", at.mode, at.uid, at.gid);
            if at.file_type != FileType::Directory || has_time(path) {
                line += &format!(" {}.{:09}", at.mtime, at.mtime_nsec);
            }
            if let Some(target) = &at.target {
                line += &format!(" -> {}", printable(target));
            }
            if let Some(content) = &entry.content {
                line += &format!(" {} {}", content.len(), Digest::of(content));
            }
            if at.rdev.is_some() || !at.xattrs.is_empty() {
                line += &format!(" {:?} {:?}", at.rdev, at.xattrs);
            }
            if !at.inode_flags.is_empty() {
                line += &format!(" {:?}", at.inode_flags);
            }
            match names.get(&entry.inode()) {
                Some(names) if names.len() > 1 => line += &format!(" = {}", printable(names[0])),
                _ => {}
            }
            line
        })
        .collect()
}

/// The same without what no record has: the times of directories, since the command may never have used
/// them, and what other names a file has, since it may never have used those.
pub fn describe_recorded(tree: &Tree) -> Vec<String> {
    let lines = describe(tree, |_| false).into_iter();
    lines.map(|line| line.split(" = ").next().unwrap_or_default().to_owned()).collect()
}

/// Asserts that two descriptions are the same, and shows the lines in which they differ.
#[track_caller]
pub fn assert_same(now: &[String], wanted: &[String], what: &str) {
    let only = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    let (more, less) = (only(now, wanted), only(wanted, now));
    assert!(now == wanted, "{what}: is {more:#?}\nand should be {less:#?}");
}
