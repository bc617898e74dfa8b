//! The bytes of files that were only read and left to Git (the pins), where Git has them no longer.
//!
//! The command itself may have removed the object, the repository, or another one that this one borrows from. As a rule
//! the file is still as it was, and is read now. Neighbours: `ledger/protect.rs` pins files and reads them,
//! `snapshot/source.rs` asks Git for the blobs later.

use super::after::After;
use crate::fs;
use crate::git;
use crate::observe::ledger::ids::{InodeId, NameId};
use crate::observe::ledger::inodes::Content;
use crate::observe::recording::Recording;
use crate::snapshot::compare::{ContentId, identify};
use crate::snapshot::{BlobOmitted, Operation, Operations, Suppressed, WarningKind};

impl Recording {
    /// Whether the command may have removed an object that was there before, or the way to it.
    pub(super) fn may_have_lost_objects(&self, names: &[NameId]) -> bool {
        let is_lost = |name: &NameId| {
            let known = self.ledger.names.get(*name);
            let before = self.ledger.before(*name).map(|inode| inode.before);
            // A directory above a repository, or a symlink to one.
            known.rebound && before.is_some_and(|before| !before.is_regular())
                || known.operations.intersects(Operations::from(Operation::Write).with(Operation::Delete))
                    && git::leads_to_objects(self.ledger.names.path(*name), before.is_some())
        };
        let may_be_lost =
            |path: &Vec<u8>| git::is_in_git_directory(path) || git::leads_to_objects(path, true);
        let is_left_out = |rule: &Suppressed| rule.changed.iter().any(may_be_lost);
        self.git_state.has_removed_loose()
            || names.iter().any(is_lost)
            || self.policy.suppressed().iter().any(is_left_out)
    }

    /// Stores the bytes of each pinned file whose blob can't be read from Git any more.
    pub(super) fn store_lost_pins(&mut self, afters: &[(NameId, After)]) {
        let (names, ledger) = (&self.ledger.names, &self.ledger);
        let pinned =
            afters.iter().filter(|(_, after)| !matches!(after, After::NotKept)).filter_map(|(name, _)| {
                let known = names.get(*name);
                let (id, facts) = (known.before?, known.git.as_ref()?);
                let inode = ledger.inodes.get(id);
                let is_pinned = inode.content.is_unread() && inode.before.is_regular();
                let oid = *facts.oid().filter(|_| is_pinned)?;
                Some(((*name, id, oid), facts, inode.before.size))
            });
        for (name, id, oid) in self.repositories.lost_pins(pinned) {
            // Another name of the file may have been before.
            if self.ledger.inodes.get(id).content.is_unread() {
                self.store_lost_pin(name, id, &ContentId::Git(oid.to_string()));
            }
        }
    }

    fn store_lost_pin(&mut self, name: NameId, id: InodeId, pin: &ContentId) {
        let path = self.ledger.names.path(name).to_vec();
        let now = fs::lstat(&path).ok().flatten();
        let now = now.filter(|now| self.ledger.inodes.get(id).has_bytes_of_before(&now.into()));
        let has_bytes = |path| {
            let found = fs::open_regular(path).and_then(|file| identify(&file, pin));
            found.is_ok_and(|(found, _)| found == *pin)
        };
        match now.filter(|_| has_bytes(&path)) {
            // It may never have been read: a call that would have changed it has failed.
            Some(_) if self.byte_store.withholds(&path) => {
                self.ledger.inodes.get_mut(id).content = Content::Omitted(BlobOmitted::Withheld);
            }
            Some(now) => self.protector().store_read(id, &path, &now),
            None => {
                self.warnings.lost(WarningKind::ContentOmitted, None, || {
                    format!(
                        "the bytes of {} are not stored: the command has removed the {pin}, and the file has changed",
                        String::from_utf8_lossy(&path)
                    )
                });
                self.ledger.inodes.get_mut(id).content = Content::Omitted(BlobOmitted::Unreadable);
            }
        }
    }
}
