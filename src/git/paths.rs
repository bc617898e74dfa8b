//! Absolute paths as bytes, taken apart.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// The components of an absolute path, each with the path up to it.
pub(super) fn components(path: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut start = 0;
    std::iter::from_fn(move || {
        while path.get(start) == Some(&b'/') {
            start += 1;
        }
        let rest = path.get(start..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        start += length;
        Some((&rest[..length], &path[..start]))
    })
}

/// `path` relative to the directory `root`, empty for `root` itself; none for what is elsewhere.
pub fn below<'p>(path: &'p [u8], root: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// A directory without the slash that its entries' names come after; `/` itself keeps its own.
pub(super) fn without_slash(directory: &[u8]) -> &[u8] {
    directory.strip_suffix(b"/").filter(|directory| !directory.is_empty()).unwrap_or(b"/")
}

/// The length of the last component of `path`.
pub(super) fn name_length(path: &[u8]) -> usize {
    path.iter().rev().take_while(|byte| **byte != b'/').count()
}

/// The path of `bytes`.
pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_come_with_their_paths() {
        let all: Vec<_> = components(b"//a/bc/").collect();
        assert_eq!(all, [(b"a".as_slice(), b"//a".as_slice()), (b"bc", b"//a/bc")]);
        assert_eq!(components(b"/").count(), 0);
    }
}
