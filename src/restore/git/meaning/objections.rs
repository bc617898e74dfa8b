//! What speaks against a change although the file itself is as recorded: what the repository has elsewhere by now.
//!
//! Neighbours: `meaning.rs` has compared the file with its states.

use std::collections::HashMap;
use std::io;

use gix::ObjectId;

use super::{Comparison, MOST, MOST_OF_REF, Refinement};
use crate::git::{GitFile, changed_packed_refs, git_dir_of};
use crate::restore::inspect::Inspection;
use crate::snapshot::printable;

impl Comparison<'_> {
    /// Adds the objections to what `inspections` and `refinement` have decided so far.
    pub(super) fn add_objections(
        &self,
        inspections: &mut HashMap<usize, io::Result<Inspection>>,
        refinement: &mut Refinement,
    ) {
        for &index in self.targets {
            let record = &self.files[index];
            let Some(Ok(inspection)) = inspections.get_mut(&index).filter(|_| record.is_git_state) else {
                continue;
            };
            if inspection.at_wanted {
                continue;
            }
            let why = match GitFile::of(&record.path) {
                GitFile::PackedRefs => self.shadowed(index, refinement),
                _ => None,
            };
            if let Some(why) = why {
                refinement.locked.entry(record.path.clone()).or_insert(why);
            }
        }
    }

    /// A ref that changes in packed-refs and has a loose file now, which Git would go by.
    fn shadowed(&self, index: usize, refinement: &Refinement) -> Option<String> {
        let directory = git_dir_of(&self.files[index].path)?;
        self.packed_changes(index, refinement).into_iter().find_map(|(name, wanted)| {
            let path = [directory, b"/", &name].concat();
            let loose = self.read(&path, MOST_OF_REF).filter(|_| !self.is_target(&path))?;
            let is_wanted = wanted.is_some() && ObjectId::from_hex(loose.trim_ascii()).ok() == wanted;
            (!is_wanted).then(|| format!("{} moved since, and is a loose ref now", printable(&name)))
        })
    }

    /// The refs that change in the `packed-refs` of record `index`, and the objects that they get.
    fn packed_changes(&self, index: usize, refinement: &Refinement) -> Vec<(Vec<u8>, Option<ObjectId>)> {
        let record = &self.files[index];
        let now = self.read(&record.path, MOST).unwrap_or_default();
        let new = refinement.replaced.get(&index).cloned();
        let new = new.or_else(|| self.recorded(record, self.wanted)).unwrap_or_default();
        changed_packed_refs(&now, &new)
    }
}
