//! Copies of the tree that are taken between the commands of a day, and what the tree has to be after an undo.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use agent_snapshot::snapshot::{Digest, FileType, printable};

use crate::support::{Place, Tree, scan_without};

/// What is at one path. The times of directories are left out, since making an entry changes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Type, permissions and the target of a symlink.
    pub state: String,
    /// Owner, extended attributes and inode flags.
    pub attributes: String,
    /// The size and the digest of a regular file.
    pub content: Option<(u64, Digest)>,
    /// The modification time of a file or a symlink.
    pub time: Option<(i64, u32)>,
    /// All names of a file that has several.
    pub names: Vec<Vec<u8>>,
}

impl Fact {
    /// Whether two differ in more than times and other names.
    pub fn differs(one: Option<&Fact>, other: Option<&Fact>) -> bool {
        let all = |fact: &Fact| (fact.state.clone(), fact.content, fact.attributes.clone());
        one.map(all) != other.map(all)
    }

    /// Whether two are not the same state to a restore: attributes but permissions don't count.
    pub fn conflicts(one: Option<&Fact>, other: Option<&Fact>) -> bool {
        let state = |fact: &Fact| (fact.state.clone(), fact.content);
        one.map(state) != other.map(state)
    }

    fn line(&self) -> String {
        let mut line = format!("{} {}", self.state, self.attributes);
        if let Some((size, digest)) = &self.content {
            line += &format!(" {size} {}", &digest.to_string()[..20]);
        }
        if let Some((seconds, nanoseconds)) = self.time {
            line += &format!(" {seconds}.{nanoseconds:09}");
        }
        if !self.names.is_empty() {
            let names: Vec<_> = self.names.iter().map(|name| printable(name)).collect();
            line += &format!(" = {}", names.join(" = "));
        }
        line
    }
}

/// What is at each path.
pub type TreeCopy = BTreeMap<Vec<u8>, Fact>;

/// How two copies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// All of it.
    Everything,
    /// Not which names are one file: paths of several moments are compared.
    NotNames,
    /// Nor times.
    States,
}

/// Copies the tree and the home directory, without Git's objects and caches that are not recorded.
pub fn copy(place: &Place) -> TreeCopy {
    let git = place.work.join(".git");
    let [cache, objects] = [place.home.join(".cache"), git.join("objects")];
    let is_left_out = |path: &Path| path == objects || path == cache;
    let mut tree = scan_without(&place.work, is_left_out);
    tree.extend(scan_without(&place.home, is_left_out));
    let mut facts = facts(&tree);
    // Of Git's state times don't count, and of the index nothing but its entries.
    let in_git = |path: &Vec<u8>| path.starts_with(git.as_os_str().as_encoded_bytes());
    facts.iter_mut().filter(|(path, _)| in_git(path)).for_each(|(_, fact)| fact.time = None);
    if let Some(index) = facts.get_mut(git.join("index").as_os_str().as_encoded_bytes()) {
        let entries = place.program("git").args(["ls-files", "--stage", "--debug"]).output().unwrap().stdout;
        let is_stat = |line: &&[u8]| !line.starts_with(b"  ");
        let entries: Vec<&[u8]> = entries.split(|byte| *byte == b'\n').filter(is_stat).collect();
        index.content = Some((0, Digest::of(&entries.concat())));
    }
    facts
}

fn facts(tree: &Tree) -> TreeCopy {
    let mut names: BTreeMap<(u64, u64), Vec<Vec<u8>>> = BTreeMap::new();
    for (path, entry) in tree.iter().filter(|(_, entry)| entry.content.is_some() && entry.present.nlink > 1) {
        names.entry(entry.inode()).or_default().push(path.clone());
    }
    let fact = |(path, entry): (&Vec<u8>, &crate::support::Entry)| {
        let at = &entry.present;
        let mut state = format!("{:o}", at.mode);
        let mut attributes = format!("{}:{}", at.uid, at.gid);
        if let Some(target) = &at.target {
            state += &format!(" -> {}", printable(target));
        }
        if !at.xattrs.is_empty() || !at.inode_flags.is_empty() {
            attributes += &format!(" {:?} {:?}", at.xattrs, at.inode_flags);
        }
        let is_timed = matches!(at.file_type, FileType::File | FileType::Symlink);
        let fact = Fact {
            state,
            attributes,
            content: at.digest.map(|digest| (at.size, digest)),
            time: is_timed.then_some((at.mtime, at.mtime_nsec)),
            names: names.get(&entry.inode()).filter(|names| names.len() > 1).cloned().unwrap_or_default(),
        };
        (path.clone(), fact)
    };
    tree.iter().map(fact).collect()
}

/// The paths that differ.
pub fn changed(before: &TreeCopy, after: &TreeCopy) -> BTreeSet<Vec<u8>> {
    let paths = before.keys().chain(after.keys());
    paths.filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

/// In what a tree differs from the wanted one: the paths, and both states of each.
pub fn differences<'t>(
    now: &'t TreeCopy,
    wanted: &'t TreeCopy,
    how: Compare,
    untimed: &BTreeSet<Vec<u8>>,
) -> Vec<(&'t Vec<u8>, String)> {
    let seen = |path: &Vec<u8>, fact: Option<&Fact>| {
        let mut fact = fact?.clone();
        if how != Compare::Everything {
            fact.names.clear();
        }
        if how == Compare::States || untimed.contains(path) {
            fact.time = None;
        }
        Some(fact)
    };
    let line = |fact: Option<Fact>| fact.map_or("nothing".to_owned(), |fact| fact.line());
    let paths: BTreeSet<&Vec<u8>> = now.keys().chain(wanted.keys()).collect();
    let differing = paths.into_iter().filter_map(|path| {
        let (is, should) = (seen(path, now.get(path)), seen(path, wanted.get(path)));
        (is != should).then(|| (path, format!("is        {}\n      should be {}", line(is), line(should))))
    });
    differing.collect()
}

/// Whether two sets have a path in common, or one has a path below one of the other.
pub fn touch_each_other(one: &BTreeSet<Vec<u8>>, other: &BTreeSet<Vec<u8>>) -> bool {
    let has_above = |paths: &BTreeSet<Vec<u8>>, path: &[u8]| {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| paths.contains(&path[..end]))
    };
    one.iter().any(|path| has_above(other, path)) || other.iter().any(|path| has_above(one, path))
}

/// Adds to `tree` what is missing in it above its paths, as it is in `other`; what it was.
pub fn add_directories_above(tree: &mut TreeCopy, other: &TreeCopy) -> BTreeSet<Vec<u8>> {
    let mut added = BTreeSet::new();
    for path in tree.keys() {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let above = ends.map(|end| path[..end].to_vec());
        added.extend(above.filter(|above| !tree.contains_key(above) && other.contains_key(above)));
    }
    for path in &added {
        tree.insert(path.clone(), other[path].clone());
    }
    added
}
