//! The entries of directories as they were before the tree changed any.

use super::Ledger;
use super::ids::NameId;
use crate::snapshot::{FileType, live};

impl Ledger {
    /// Takes the digest of the entries that a directory had before the tree changed any, once.
    pub fn list_entries(&mut self, name: NameId) {
        let known = self.names.get(name);
        if known.entries().is_some() || !self.before(name).is_some_and(|inode| inode.before.is_directory()) {
            return;
        }
        let path = self.names.path(name).to_vec();
        let Ok(mut entries) = live::typed_entries(&path) else { return };
        let start = path.strip_suffix(b"/").unwrap_or(&path);
        let gone = self.gone.remove(&path).unwrap_or_default();
        entries.extend(gone.into_iter().map(|name| (name, None)));
        entries.retain_mut(|(entry, file_type)| {
            let Some(known) = self.names.find(&[start, entry].join(&b'/')) else { return true };
            // What it was, if the tree has put something else there.
            if let Some(before) = self.before(known) {
                *file_type = FileType::from_mode(before.before.mode);
            }
            let known = self.names.get(known);
            known.before.is_some() || known.changes == 0
        });
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|(one, _), (other, _)| one == other);
        let types = self.for_recall.then(|| live::digest_of_typed_entries(&entries));
        let names: Vec<Vec<u8>> = entries.into_iter().map(|(name, _)| name).collect();
        let facts = self.names.get_mut(name).extra_mut();
        (facts.entries, facts.entry_types) = (Some(live::digest_of_entries(&names)), types);
    }

    /// Remembers that a name is gone which was there before, for when its directory is listed.
    pub fn note_gone(&mut self, name: NameId) {
        let path = self.names.path(name);
        let Some(parent) = crate::fs::parent_of(path) else { return };
        let listed = self.names.find(parent).map(|parent| self.names.get(parent));
        if self.names.get(name).before.is_some() && listed.is_none_or(|parent| parent.entries().is_none()) {
            let name = &path[parent.len()..];
            let name = name.strip_prefix(b"/").unwrap_or(name).to_vec();
            self.gone.entry(parent.to_vec()).or_default().push(name);
        }
    }
}
