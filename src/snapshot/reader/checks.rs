//! The rules of a manifest that JSON alone does not state.
//!
//! A restore writes to the paths of a snapshot: these checks reject paths that could lead elsewhere.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::super::error::{Error, printable};
use super::super::manifest::{
    FileRecord, FileType, GitStatus, Header, Keep, Manifest, Operations, Present, State,
};

/// The kernel takes a path of 4 KiB, relative to a directory whose own path can be as long.
const MAX_PATH: usize = 32 << 10;
/// PATH_MAX, XATTR_NAME_MAX and XATTR_SIZE_MAX of linux/limits.h: what no file can have had.
const MAX_TARGET: usize = 4096;
const MAX_XATTR_NAME: usize = 255;
const MAX_XATTR: usize = 64 << 10;

/// What records say of a blob that they name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its length.
    pub size: u64,
    /// Whether its rows leave out holes.
    pub sparse: bool,
}

/// Checks all records, and returns the blobs that they name.
pub fn check(manifest: &Manifest) -> Result<HashMap<Box<str>, Wanted>, Error> {
    let mut wanted = HashMap::new();
    check_absolute(&manifest.header.start_cwd, "start_cwd")?;
    let Header { working_tree, git_directory, home, temporary_directory, suppressed, .. } = &manifest.header;
    let places = [
        (working_tree, "working_tree"),
        (git_directory, "git_directory"),
        (home, "home"),
        (temporary_directory, "temporary_directory"),
    ];
    for (place, key) in places {
        place.as_deref().map_or(Ok(()), |place| check_absolute(place, key))?;
    }
    for change in suppressed.iter().flat_map(|rule| &rule.changes).flatten() {
        check_absolute(&change.path, "a path that was left out")?;
    }
    for path in &manifest.header.unseen {
        check_absolute(path, "a path that was not seen")?;
    }
    for repository in &manifest.header.git_repositories {
        check_absolute(&repository.root, "the root of a repository")?;
    }
    let mut last: Option<&[u8]> = None;
    for record in &manifest.files {
        check_absolute(&record.path, "path")?;
        if last.is_some_and(|last| last >= record.path.as_slice()) {
            return Err(unsafe_path("path", &record.path, "is out of order or there twice"));
        }
        last = Some(&record.path);
        for renamed in [&record.renamed_from, &record.renamed_to].into_iter().flatten() {
            check_absolute(renamed, "a renamed path")?;
        }
        for linked in &record.linked_from {
            check_absolute(linked, "the path of a hard link")?;
        }
        for git in [&record.git, &record.git_after].into_iter().flatten() {
            check_git(git)?;
        }
        if record.is_without_states() {
            check_without_states(manifest.header.keep, record)?;
        }
        for state in [&record.before, &record.after] {
            if let State::Present(present) = state {
                check_present(&record.path, present, &mut wanted)?;
            }
        }
    }
    check_parents(&manifest.files, |record| &record.before)?;
    check_parents(&manifest.files, |record| &record.after)?;
    Ok(wanted)
}

/// Only of what was not changed a recording may keep no states, and only one that says so.
fn check_without_states(keep: Keep, record: &FileRecord) -> Result<(), Error> {
    let corrupt = |why: &str| Err(Error::Corrupt(format!("{} {why}", printable(&record.path))));
    if keep.has_inputs() {
        return corrupt("has no states, though the recording keeps those of all paths");
    }
    if record.operations.intersects(Operations::CHANGES) {
        return corrupt("was changed and has no states");
    }
    Ok(())
}

fn unsafe_path(what: &str, path: &[u8], why: &str) -> Error {
    Error::Unsafe(format!("{what} {} {why}", printable(path)))
}

fn check_absolute(path: &[u8], what: &str) -> Result<(), Error> {
    match path {
        b"/" => Ok(()),
        [b'/', rest @ ..] => check_components(rest, path, what),
        _ => Err(unsafe_path(what, path, "is not absolute")),
    }
}

fn check_components(relative: &[u8], path: &[u8], what: &str) -> Result<(), Error> {
    if path.contains(&0) {
        return Err(unsafe_path(what, path, "contains a NUL byte"));
    }
    if path.len() > MAX_PATH {
        return Err(unsafe_path(what, &path[..64], "... is longer than any path"));
    }
    for component in relative.split(|byte| *byte == b'/') {
        match component {
            b"" => return Err(unsafe_path(what, path, "has an empty component")),
            b"." | b".." => return Err(unsafe_path(what, path, "has a `.` or `..` component")),
            _ => {}
        }
    }
    Ok(())
}

fn check_git(git: &GitStatus) -> Result<(), Error> {
    check_absolute(&git.root, "the root of a repository")?;
    let is_id =
        |oid: &String| matches!(oid.len(), 40 | 64) && oid.bytes().all(|digit| digit.is_ascii_hexdigit());
    if git.oid.as_ref().is_some_and(|oid| !is_id(oid)) {
        return Err(Error::Corrupt(format!("an oid of {} is invalid", printable(&git.root))));
    }
    // The root of a working tree is a path of its own repository.
    if git.relative_path.is_empty() {
        return Ok(());
    }
    check_components(&git.relative_path, &git.relative_path, "relative_path")
}

fn check_present(
    path: &[u8],
    present: &Present,
    wanted: &mut HashMap<Box<str>, Wanted>,
) -> Result<(), Error> {
    let corrupt = |why: &str| Err(Error::Corrupt(format!("the record of {} {why}", printable(path))));
    if FileType::from_mode(present.mode) != Some(present.file_type) || present.mode > 0o177_777 {
        return corrupt("has a mode that does not match its type");
    }
    if present.mtime_nsec >= 1_000_000_000 {
        return corrupt("has nanoseconds of a second or more");
    }
    if present.target.is_some() != (present.file_type == FileType::Symlink) {
        return corrupt("has a target and is not a symlink, or is one without a target");
    }
    if present.target.as_ref().is_some_and(|target| target.contains(&0)) {
        return Err(unsafe_path("the target of", path, "contains a NUL byte"));
    }
    if present.target.as_ref().is_some_and(|target| target.is_empty() || target.len() > MAX_TARGET) {
        return corrupt("has a target that no symlink can have");
    }
    let is_device = matches!(present.file_type, FileType::CharDevice | FileType::BlockDevice);
    if present.rdev.is_some() != is_device {
        return corrupt("has a device number and is not a device, or is one without a number");
    }
    if i64::try_from(present.size).is_err() {
        return corrupt("has more bytes than a file can have");
    }
    let is_attribute = |(name, value): (&Vec<u8>, &Vec<u8>)| {
        !name.is_empty() && !name.contains(&0) && name.len() <= MAX_XATTR_NAME && value.len() <= MAX_XATTR
    };
    if !present.xattrs.iter().all(is_attribute) {
        return corrupt("has an extended attribute that no file can have");
    }
    if present.is_sparse() && present.file_type != FileType::File {
        return corrupt("is sparse and not a regular file");
    }
    if let Some(blob) = &present.blob {
        if present.file_type != FileType::File {
            return corrupt("has a blob and is not a regular file");
        }
        let this = Wanted { size: present.size, sparse: present.is_sparse() };
        match wanted.entry(blob.as_str().into()) {
            Entry::Vacant(entry) => drop(entry.insert(this)),
            Entry::Occupied(entry) if *entry.get() == this => {}
            Entry::Occupied(_) => {
                return corrupt("names a blob that another record says is sparse or has another length");
            }
        }
    }
    Ok(())
}

/// No path is beneath one that is not a directory in the same state: a restore would write through it.
fn check_parents(files: &[FileRecord], state: fn(&FileRecord) -> &State) -> Result<(), Error> {
    let mut checked: &[u8] = b"";
    for record in files.iter().filter(|record| state(record).present().is_some()) {
        let mut path = record.path.as_slice();
        while let Some(slash) = path.iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0) {
            path = &path[..slash];
            if path == checked {
                break;
            }
            let parent = FileRecord::find(files, path).and_then(|index| state(&files[index]).present());
            if parent.is_some_and(|parent| parent.file_type != FileType::Directory) {
                return Err(unsafe_path("path", &record.path, "is beneath one that is not a directory"));
            }
        }
        if let Some(slash) = record.path.iter().rposition(|byte| *byte == b'/') {
            checked = &record.path[..slash];
        }
    }
    Ok(())
}
