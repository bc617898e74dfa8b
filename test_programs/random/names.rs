//! Names, and paths made of them: bytes, relative to the tree's root, which is the empty path.

use crate::rng::Rng;

/// Few, so that programs meet their own names again.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    b"two words",
    b"new\nline",
    b"\xff\xfe",
    b"x (deleted)",
    "\u{e9}".as_bytes(),
    b"...",
];

pub fn name(rng: &mut Rng) -> &'static [u8] {
    rng.pick(NAMES)
}

pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

pub fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

pub fn depth(path: &[u8]) -> usize {
    components(path).count()
}

/// What is left of `path` below `directory`, if it lies there or is it.
pub fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    if directory.is_empty() {
        return Some(path);
    }
    match path.strip_prefix(directory)? {
        b"" => Some(b""),
        rest => rest.strip_prefix(b"/"),
    }
}

/// Without `.` and `..`, by the text alone.
pub fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in components(path) {
        match name {
            b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// The way from one path to the other.
pub fn relative(from: &[u8], to: &[u8]) -> Vec<u8> {
    let (from, to): (Vec<_>, Vec<_>) = (components(from).collect(), components(to).collect());
    let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
    let mut names = vec![&b".."[..]; from.len() - common];
    names.extend_from_slice(&to[common..]);
    if names.is_empty() { b".".to_vec() } else { names.join(&b'/') }
}
