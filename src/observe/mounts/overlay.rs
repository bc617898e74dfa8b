//! What an overlay shows at a path: the object of the topmost of its directories that has one
//! (the kernel's Documentation/filesystems/overlayfs.rst).
//!
//! Neighbour: `names.rs` tells the directories.

use super::names::Layers;
use crate::fs::{self, FileStat, child_of};
use crate::observe::resolve::is_directory;

/// What one directory of an overlay says of a path.
enum Shown {
    /// This is there.
    Object(FileStat),
    /// The directories below decide.
    Nothing,
    /// Nothing is there, whatever the directories below have.
    Hidden,
}

impl Layers {
    /// What is there: its attributes, and its path below the directory that has it.
    fn find(&self) -> Option<(Vec<u8>, FileStat)> {
        for layer in std::iter::once(&self.upper).chain(&self.lower) {
            match self.shown_by(layer) {
                Shown::Object(stat) => return Some((self.path_in(layer), stat)),
                Shown::Nothing => {}
                Shown::Hidden => return None,
            }
        }
        None
    }

    /// The path of what is there; where nothing is, the one that it would get.
    pub fn path(&self) -> Vec<u8> {
        self.find().map_or_else(|| self.upper_path(), |(path, _)| path)
    }

    /// What lstat(2) says of the object that is there, as the overlay's directory has it.
    pub fn lstat(&self) -> Option<FileStat> {
        self.find().map(|(_, stat)| stat)
    }

    /// Where a change of the path goes.
    pub fn upper_path(&self) -> Vec<u8> {
        self.path_in(&self.upper)
    }

    fn path_in(&self, layer: &[u8]) -> Vec<u8> {
        match self.rest.strip_prefix(b"/") {
            Some(rest) => child_of(layer, rest),
            None => layer.to_vec(),
        }
    }

    fn shown_by(&self, layer: &[u8]) -> Shown {
        let Ok(Some(mut found)) = fs::lstat(layer) else { return Shown::Nothing };
        let mut path = layer.to_vec();
        let mut is_opaque = false;
        for name in self.rest.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if !is_directory(&found) {
                return Shown::Hidden;
            }
            path = child_of(&path, name);
            match fs::lstat(&path) {
                Ok(Some(stat)) if is_whiteout(&stat) => return Shown::Hidden,
                Ok(Some(stat)) => found = stat,
                Ok(None) | Err(_) if is_opaque => return Shown::Hidden,
                Ok(None) | Err(_) => return Shown::Nothing,
            }
            is_opaque |= is_directory(&found) && has_opaque_mark(&path);
        }
        Shown::Object(found)
    }
}

/// The directories of the option `lowerdir`: separated by colons, which a backslash makes a part of the name.
pub(super) fn lower_directories(option: &[u8]) -> Vec<Vec<u8>> {
    let mut directories = vec![Vec::new()];
    let mut bytes = option.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b':' => directories.push(Vec::new()),
            b'\\' => directories.last_mut().into_iter().for_each(|last| last.extend(bytes.next())),
            byte => directories.last_mut().into_iter().for_each(|last| last.push(byte)),
        }
    }
    // Two colons come before directories that only give data.
    directories.retain(|directory| !directory.is_empty());
    directories
}

/// Whether it stands for the removal of what the directories below have.
fn is_whiteout(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == 0
}

/// Whether a directory hides those of its name in the directories below.
fn has_opaque_mark(directory: &[u8]) -> bool {
    ["trusted.overlay.opaque", "user.overlay.opaque"].iter().any(|name| {
        let mut value = [0_u8; 1];
        rustix::fs::lgetxattr(directory, *name, &mut value[..]).is_ok_and(|length| value[..length] == *b"y")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_directories_are_separated_by_colons() {
        assert_eq!(lower_directories(b"/a:b\\:c::/data"), [&b"/a"[..], b"b:c", b"/data"]);
        assert_eq!(lower_directories(b""), [b""; 0]);
    }

    #[test]
    fn topmost_directory_that_has_the_path_is_shown() {
        let place = tempfile::tempdir().unwrap();
        let at = |path: &str| place.path().join(path);
        for directory in ["up/d", "low/d", "low/e", "lowest/d/x"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        for file in ["up/d/f", "low/d/f", "low/d/g", "lowest/d/x/h", "low/d/x"] {
            std::fs::write(at(file), file).unwrap();
        }
        let bytes = |path: &str| at(path).into_os_string().into_encoded_bytes();
        let shown = |rest: &str| {
            let lower = vec![bytes("low"), bytes("lowest")];
            Layers { upper: bytes("up"), lower, rest: rest.into() }.path()
        };
        assert_eq!(shown(""), bytes("up"));
        assert_eq!(shown("/d/f"), bytes("up/d/f"));
        assert_eq!(shown("/d/g"), bytes("low/d/g"));
        assert_eq!(shown("/e"), bytes("low/e"));
        assert_eq!(shown("/d/x/h"), bytes("up/d/x/h"), "a file hides the directory below it");
        assert_eq!(shown("/no"), bytes("up/no"));
    }
}
