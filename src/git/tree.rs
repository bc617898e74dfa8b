//! Paths looked up in Git's tree objects, which are kept once read.

use std::collections::HashMap;
use std::sync::Arc;

use gix::ObjectId;
use gix::index::entry::Mode;
use gix::objs::TreeRefIter;

use super::error::Error;
use super::objects;

/// The tree objects that were needed so far, by their ids.
#[derive(Default)]
pub(super) struct TreeCache {
    read: HashMap<ObjectId, Option<Arc<GitTree>>>,
}

/// The entries of one tree object, sorted by name; Git's own order depends on what an entry is.
struct GitTree {
    names: Vec<u8>,
    entries: Vec<TreeEntry>,
}

struct TreeEntry {
    start: usize,
    end: usize,
    mode: Mode,
    oid: ObjectId,
}

impl TreeCache {
    /// What is at `path` below the tree object `root`. An error where one on the way can't be read.
    pub(super) fn lookup(
        &mut self,
        repository: &gix::Repository,
        root: ObjectId,
        path: &[u8],
    ) -> Result<Option<(Mode, ObjectId)>, Error> {
        let mut found = (Mode::DIR, root);
        for component in path.split(|byte| *byte == b'/') {
            if found.0 != Mode::DIR {
                return Ok(None);
            }
            match self.tree(repository, found.1)?.get(component) {
                Some(next) => found = next,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    fn tree(&mut self, repository: &gix::Repository, id: ObjectId) -> Result<Arc<GitTree>, Error> {
        let read = || {
            let object = objects::read(repository, id)?;
            (object.kind == gix::objs::Kind::Tree).then(|| GitTree::parse(&object.data, id.kind()))?
        };
        self.read.entry(id).or_insert_with(|| read().map(Arc::new)).clone().ok_or(Error::Missing)
    }

    /// Forgets the tree objects that could not be read: their objects may have come.
    pub(super) fn retry(&mut self) {
        self.read.retain(|_, tree| tree.is_some());
    }
}

impl GitTree {
    fn parse(data: &[u8], hash: gix::hash::Kind) -> Option<GitTree> {
        let mut tree = GitTree { names: Vec::new(), entries: Vec::new() };
        for entry in TreeRefIter::from_bytes(data, hash) {
            let entry = entry.ok()?;
            let start = tree.names.len();
            tree.names.extend_from_slice(entry.filename);
            let end = tree.names.len();
            tree.entries.push(TreeEntry {
                start,
                end,
                mode: Mode::from(entry.mode),
                oid: entry.oid.to_owned(),
            });
        }
        let GitTree { names, entries } = &mut tree;
        entries.sort_by(|a, b| names[a.start..a.end].cmp(&names[b.start..b.end]));
        Some(tree)
    }

    fn get(&self, name: &[u8]) -> Option<(Mode, ObjectId)> {
        let at = self.entries.binary_search_by(|entry| self.names[entry.start..entry.end].cmp(name)).ok()?;
        let entry = &self.entries[at];
        Some((entry.mode, entry.oid))
    }
}
