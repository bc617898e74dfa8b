//! The directories above paths that were classified: which working tree has their entries, and which patterns
//! apply.
//!
//! A trie of path components, so that a directory that is renamed or removed is forgotten with everything
//! below it.

use std::collections::HashMap;

use super::paths::components;
use super::patterns::Patterns;

/// Identifies a directory until it is forgotten.
pub(super) type DirectoryId = usize;

/// The working tree that has the entries of a directory: its index in the list of repositories.
pub(super) type Holder = Option<u32>;

/// The trie of directories.
#[derive(Default)]
pub(super) struct Directories {
    nodes: Vec<DirectoryNode>,
    free: Vec<DirectoryId>,
    /// The result of the last lookup: consecutive paths often share their directory.
    last: Option<(Vec<u8>, DirectoryId)>,
}

#[derive(Default)]
struct DirectoryNode {
    children: HashMap<Box<[u8]>, DirectoryId, foldhash::fast::RandomState>,
    holder: Holder,
    /// With the generation of the repository when they were read.
    patterns: Option<(u32, Patterns)>,
}

impl Directories {
    /// The directory at the absolute path `at`. `discover` is called for the holder of each new directory,
    /// with its path and the holder of its parent.
    pub(super) fn node(
        &mut self,
        at: &[u8],
        discover: &mut dyn FnMut(&[u8], Holder) -> Holder,
    ) -> DirectoryId {
        if let Some((path, node)) = &self.last
            && path == at
        {
            return *node;
        }
        if self.nodes.is_empty() {
            let holder = discover(b"/", None);
            self.nodes.push(DirectoryNode { holder, ..DirectoryNode::default() });
        }
        let mut node = 0;
        for (component, path) in components(at) {
            node = match self.nodes[node].children.get(component) {
                Some(child) => *child,
                None => {
                    let holder = discover(path, self.nodes[node].holder);
                    self.add(node, component, holder)
                }
            };
        }
        self.last = Some((at.to_vec(), node));
        node
    }

    /// The directory at `at` if it is known.
    pub(super) fn existing(&self, at: &[u8]) -> Option<DirectoryId> {
        let mut node = 0;
        self.nodes.first()?;
        for (component, _) in components(at) {
            node = *self.nodes[node].children.get(component)?;
        }
        Some(node)
    }

    /// The directory at `at`, or the nearest one above it that is known.
    pub(super) fn nearest(&self, at: &[u8]) -> Option<DirectoryId> {
        let mut node = 0;
        self.nodes.first()?;
        for (component, _) in components(at) {
            let Some(child) = self.nodes[node].children.get(component) else { break };
            node = *child;
        }
        Some(node)
    }

    /// The working tree that holds the entries of the directory.
    pub(super) fn holder(&self, node: DirectoryId) -> Holder {
        self.nodes[node].holder
    }

    /// The patterns of the directory, if they are of this generation.
    pub(super) fn patterns(&self, node: DirectoryId, generation: u32) -> Option<&Patterns> {
        self.nodes[node].patterns.as_ref().filter(|(of, _)| *of == generation).map(|(_, patterns)| patterns)
    }

    /// Keeps the patterns of the directory.
    pub(super) fn set_patterns(&mut self, node: DirectoryId, generation: u32, patterns: Patterns) {
        self.nodes[node].patterns = Some((generation, patterns));
    }

    /// Forgets the directory at `at` and all below it, and returns whether it was known.
    pub(super) fn forget(&mut self, at: &[u8]) -> bool {
        let Some(slash) = at.iter().rposition(|byte| *byte == b'/') else { return false };
        let (parent, name) = (&at[..slash], &at[slash + 1..]);
        if name.is_empty() && parent.is_empty() {
            *self = Directories::default();
            return true;
        }
        let Some(parent) = self.existing(parent) else { return false };
        let Some(gone) = self.nodes[parent].children.remove(name) else { return false };
        self.last = None;
        let mut pending = vec![gone];
        while let Some(node) = pending.pop() {
            let node_was = std::mem::take(&mut self.nodes[node]);
            pending.extend(node_was.children.into_values());
            self.free.push(node);
        }
        true
    }

    fn add(&mut self, parent: DirectoryId, name: &[u8], holder: Holder) -> DirectoryId {
        let node = DirectoryNode { holder, ..DirectoryNode::default() };
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.insert(name.into(), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_directory_is_discovered_anew_with_all_below_it() {
        let mut directories = Directories::default();
        let mut asked = Vec::new();
        let mut discover = |path: &[u8], outer: Holder| {
            asked.push(String::from_utf8(path.to_vec()).unwrap());
            if path == b"/a" { Some(7) } else { outer }
        };
        let deep = directories.node(b"/a/b/c", &mut discover);
        assert_eq!(directories.holder(deep), Some(7));
        let other = directories.node(b"/x", &mut discover);
        assert_eq!(directories.holder(other), None);
        directories.forget(b"/a/b");
        assert!(directories.existing(b"/a/b/c").is_none() && directories.existing(b"/a").is_some());
        directories.node(b"/a/b/c", &mut discover);
        directories.forget(b"/nowhere/at/all");
        directories.node(b"/a/b/c", &mut discover);
        assert_eq!(asked, ["/", "/a", "/a/b", "/a/b/c", "/x", "/a/b", "/a/b/c"]);
    }
}
