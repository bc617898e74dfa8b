//! The mounts of the tree's namespaces whose content does not outlast them, with counts of what happened there.
//!
//! Neighbour: `names.rs` finds them.

use std::collections::HashMap;

use super::table::{Device, Mount};
use crate::snapshot::PrivateMount;

/// A private mount of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrivateId(u32);

#[derive(Debug)]
struct Entry {
    mount: PrivateMount,
    /// Whether its mount point is that of the whole filesystem.
    is_whole: bool,
}

/// The private mounts, one for each filesystem.
#[derive(Debug, Default)]
pub(super) struct PrivateMounts {
    entries: Vec<Entry>,
    /// Where each filesystem is among these. A device number is used again by the next one that has none of its own.
    by_device: HashMap<Device, usize, foldhash::fast::RandomState>,
}

impl PrivateMounts {
    /// The number of what `mount` shows; its mount point is the one where the whole filesystem was seen last.
    pub fn id_of(&mut self, mount: &Mount) -> PrivateId {
        let is_whole = mount.root == b"/";
        let known = self.by_device.get(&mount.device).copied();
        let at = known.filter(|at| self.entries[*at].mount.fstype.as_bytes() == mount.kind);
        let at = at.unwrap_or_else(|| {
            let fstype = String::from_utf8_lossy(&mount.kind).into_owned();
            let new = PrivateMount { fstype, mount_point: mount.point.clone(), uses: 0, changes: 0 };
            self.by_device.insert(mount.device, self.entries.len());
            self.entries.push(Entry { mount: new, is_whole });
            self.entries.len() - 1
        });
        let entry = &mut self.entries[at];
        if is_whole || !entry.is_whole {
            entry.mount.mount_point.clone_from(&mount.point);
            entry.is_whole = is_whole;
        }
        PrivateId(u32::try_from(at).expect("fewer private mounts than the kernel allows mounts"))
    }

    /// Notes where those that are known are mounted now.
    pub fn find_again(&mut self, mounts: &[Mount]) {
        for mount in mounts {
            if self.by_device.contains_key(&mount.device) {
                self.id_of(mount);
            }
        }
    }

    /// The type of its filesystem.
    pub fn kind_of(&self, PrivateId(id): PrivateId) -> &str {
        let entry = usize::try_from(id).ok().and_then(|at| self.entries.get(at));
        entry.map_or("", |entry| &entry.mount.fstype)
    }

    /// Counts a use.
    pub fn used(&mut self, id: PrivateId) {
        self.entries[id.0 as usize].mount.uses += 1;
    }

    /// Counts a change.
    pub fn changed(&mut self, id: PrivateId) {
        self.entries[id.0 as usize].mount.changes += 1;
    }

    /// Those that were used, the same at the same place counted together.
    pub fn list(&self) -> Vec<PrivateMount> {
        let mut list: Vec<PrivateMount> = Vec::new();
        for PrivateMount { fstype, mount_point, uses, changes } in
            self.entries.iter().map(|entry| &entry.mount)
        {
            if *uses == 0 && *changes == 0 {
                continue;
            }
            match list.iter_mut().find(|known| known.fstype == *fstype && known.mount_point == *mount_point) {
                Some(known) => {
                    known.uses += uses;
                    known.changes += changes;
                }
                None => list.push(PrivateMount {
                    fstype: fstype.clone(),
                    mount_point: mount_point.clone(),
                    uses: *uses,
                    changes: *changes,
                }),
            }
        }
        list.sort_by(|one, other| (&one.mount_point, &one.fstype).cmp(&(&other.mount_point, &other.fstype)));
        list
    }
}
