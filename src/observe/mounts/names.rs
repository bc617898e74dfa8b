//! What the mounts of a namespace are called in the recorder's: by filesystem and subtree, from the two tables.
//!
//! Pure. Neighbours: `table.rs` reads the tables, `mounts.rs` keeps them up to date.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::private::{PrivateId, PrivateMounts};
use super::table::{Device, Mount, MountId, MountTable};
use crate::observe::resolve::trim_root;

/// What a path of a namespace is for the recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This path.
    Named(Vec<u8>),
    /// On a mount whose content is gone when its last namespace is.
    Private(PrivateId),
    /// On a mount that shows several directories at once, and writes to one of them.
    Overlay(Layers),
    /// On a filesystem that a program or another machine serves, which the tree has mounted.
    Served,
    /// On a mount that may last, and that has no name here.
    Unnamed,
}

/// The directories of an overlay, by the recorder's names, and a path below each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// Where changes go.
    pub upper: Vec<u8>,
    /// What is shown where the one above has nothing, the topmost first.
    pub lower: Vec<Vec<u8>>,
    /// The path below each of these, empty or with a slash in front.
    pub rest: Vec<u8>,
}

/// The recorder's own mounts.
#[derive(Debug, Default)]
pub(super) struct OwnMounts {
    /// As they are now.
    pub table: Arc<MountTable>,
    /// Those that were there before the launch.
    pub at_launch: HashSet<MountId>,
}

/// The mounts of one namespace, and their names as far as they were asked for.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    pub table: MountTable,
    /// The devices of the overlays that were not in the table when it was read before.
    pub new_overlays: Vec<Device>,
    names: Vec<OnceCell<MountName>>,
}

/// The name of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MountName {
    /// What it shows is at this path; if another mount may hide a part of that, each path is compared.
    Ours {
        mount: MountId,
        at: Vec<u8>,
        compare: bool,
    },
    /// Our own mounts show only parts of what it shows.
    Parts,
    Private(PrivateId),
    Overlay(Layers),
    Served,
    Unnamed,
}

/// What mounts are named by.
#[derive(Debug, Default)]
pub(super) struct Naming {
    pub ours: OwnMounts,
    /// Served filesystems that were mounted before the launch.
    pub outside: Vec<Device>,
    /// The overlays that the tree has mounted, by the devices that they got, which are used again.
    pub overlays: HashMap<Device, OverlayDirectories>,
    pub private: RefCell<PrivateMounts>,
}

/// The directories that an overlay was mounted from, by the recorder's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayDirectories {
    /// None where what is written does not last.
    pub upper: Option<Vec<u8>>,
    pub lower: Vec<Vec<u8>>,
}

impl OverlayDirectories {
    /// All of them.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        self.upper.iter_mut().chain(&mut self.lower)
    }
}

impl Naming {
    fn name(&self, mount: &Mount) -> MountName {
        let overlay = self.overlays.get(&mount.device).filter(|_| mount.kind == b"overlay");
        let is_deleted = mount.root.ends_with(b"//deleted");
        if let (Some(OverlayDirectories { upper: Some(upper), lower }), false) = (overlay, is_deleted) {
            let (upper, lower, rest) = (upper.clone(), lower.clone(), Vec::new());
            return MountName::Overlay(Layers { upper, lower, rest });
        }
        // What it shows may be read by no name of the mount's own, also in our namespace.
        let is_private = overlay.is_some_and(|overlay| overlay.upper.is_none());
        if overlay.is_none() && !is_deleted {
            if let Some(name) = self.ours.name_of_mount(mount) {
                return name;
            }
            if self.ours.shows_part_of(mount) {
                return MountName::Parts;
            }
        }
        if mount.is_served() && !self.outside.contains(&mount.device) {
            return MountName::Served;
        }
        if is_private || mount.is_without_storage() {
            MountName::Private(self.private.borrow_mut().id_of(mount))
        } else {
            MountName::Unnamed
        }
    }
}

impl Namespace {
    /// The namespace with these mounts, which had those of `former` before.
    pub fn new(table: MountTable, former: Option<&Namespace>) -> Namespace {
        let names = table.mounts().iter().map(|_| OnceCell::new()).collect();
        let overlays = |table: &MountTable| -> HashSet<Device> {
            let overlays = table.mounts().iter().filter(|mount| mount.kind == b"overlay");
            overlays.map(|mount| mount.device).collect()
        };
        let known = former.map(|former| overlays(&former.table)).unwrap_or_default();
        let new_overlays = overlays(&table).difference(&known).copied().collect();
        Namespace { table, new_overlays, names }
    }

    /// Whether the recorder has this name for what a mount shows, or for what it is mounted on: if the name goes, the table
    /// changes.
    pub fn has_end(&self, naming: &Naming, name: &[u8]) -> bool {
        // There may be thousands of mounts; few end in the same component.
        let last = &name[name.iter().rposition(|byte| *byte == b'/').unwrap_or(0)..];
        let is_named =
            |at, point: &[u8]| matches!(self.place_on(naming, at, point), Place::Named(of) if of == name);
        self.table.mounts().iter().enumerate().any(|(at, mount)| {
            let covers = |parent| is_named(parent, &mount.point);
            mount.root.ends_with(last) && is_named(at, &mount.point)
                || mount.point.ends_with(last) && self.table.index_of(mount.parent).is_some_and(covers)
        })
    }

    /// What `path`, which is no symlink and leads through none, is for the recorder.
    pub fn place(&self, naming: &Naming, path: &[u8]) -> Place {
        match self.table.index_at(path) {
            Some(at) => self.place_on(naming, at, path),
            None => Place::Unnamed,
        }
    }

    /// The same for a path on the mount of this number, which another mount may hide; none if the table does not
    /// have it.
    pub fn place_on_mount(&self, naming: &Naming, id: MountId, path: &[u8]) -> Option<Place> {
        Some(self.place_on(naming, self.table.index_of(id)?, path))
    }

    fn place_on(&self, naming: &Naming, at: usize, path: &[u8]) -> Place {
        let mount = &self.table.mounts()[at];
        naming.place_on(mount, self.names[at].get_or_init(|| naming.name(mount)), path)
    }
}

impl Naming {
    /// What a path on a mount that is in no namespace any more is for the recorder.
    pub fn place_on_detached(&self, mount: &Mount, path: &[u8]) -> Place {
        self.place_on(mount, &self.name(mount), path)
    }

    fn place_on(&self, mount: &Mount, name: &MountName, path: &[u8]) -> Place {
        // Once a mount is gone, the name of what is open there starts at what it showed.
        let detached = || mount.path_within(&[trim_root(&mount.point), path].concat());
        let Some(part) = mount.path_within(path).or_else(detached) else { return Place::Unnamed };
        match name {
            MountName::Ours { mount: id, at, compare } => {
                let rest = &part[trim_root(&mount.root).len()..];
                let name = match (at.as_slice(), rest) {
                    (at, b"" | b"/") => at.to_vec(),
                    (b"/", rest) => rest.to_vec(),
                    (at, rest) => [at, rest].concat(),
                };
                let ours = &self.ours;
                let is_hidden = *compare && ours.table.at(&name).is_none_or(|found| found.id != *id);
                if is_hidden { Place::Unnamed } else { Place::Named(name) }
            }
            MountName::Parts => {
                let name = self.ours.name_of(mount.device, &part, path);
                name.map_or(Place::Unnamed, Place::Named)
            }
            MountName::Private(id) => Place::Private(*id),
            // The directories stand for the whole filesystem, whatever part of it the mount shows.
            MountName::Overlay(layers) => {
                Place::Overlay(Layers { rest: trim_root(&part).to_vec(), ..layers.clone() })
            }
            MountName::Served => Place::Served,
            MountName::Unnamed => Place::Unnamed,
        }
    }
}

impl OwnMounts {
    /// The name of what a mount of some namespace shows.
    fn name_of_mount(&self, mount: &Mount) -> Option<MountName> {
        let (id, at) = self.find(mount.device, &mount.root, &mount.point, Some(mount.id))?;
        let compare = self.table.has_points_below(&at);
        Some(MountName::Ours { mount: id, at, compare })
    }

    /// The name of a part of a filesystem, which they call `path`.
    fn name_of(&self, device: Device, part: &[u8], path: &[u8]) -> Option<Vec<u8>> {
        self.find(device, part, path, None).map(|(_, at)| at)
    }

    /// Our own mount that shows a part of a filesystem, and where: the one that has the path which they see it at,
    /// then one from before the launch, then the one that shows the least else.
    fn find(
        &self,
        device: Device,
        part: &[u8],
        path: &[u8],
        id: Option<MountId>,
    ) -> Option<(MountId, Vec<u8>)> {
        let candidates = self.table.mounts().iter().filter(|ours| ours.device == device);
        let candidates = candidates.filter_map(|ours| Some((ours, ours.path_of(part)?)));
        let visible =
            candidates.filter(|(ours, at)| self.table.at(at).is_some_and(|found| found.id == ours.id));
        let best = visible.max_by_key(|(ours, at)| {
            let before = self.at_launch.contains(&ours.id);
            let same = before && Some(ours.id) == id;
            (same, before && at == path, before, at == path, ours.root.len(), std::cmp::Reverse(ours.id))
        });
        best.map(|(ours, at)| (ours.id, at))
    }

    /// The other paths at which mounts from before the launch show what is at a path.
    pub fn names_elsewhere(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let Some(mount) = self.table.at(path) else { return Vec::new() };
        let shows_more = |other: &&Mount| {
            other.device == mount.device && other.id != mount.id && self.at_launch.contains(&other.id)
        };
        let mut others = self.table.mounts().iter().filter(shows_more).peekable();
        let part = others.peek().and_then(|_| mount.path_within(path));
        let named = others.filter_map(|other| Some((other.id, other.path_of(part.as_deref()?)?)));
        let visible = named.filter(|(id, name)| self.table.at(name).is_some_and(|found| found.id == *id));
        visible.map(|(_, name)| name).collect()
    }

    /// Whether a mount of ours shows a part of what this one shows.
    fn shows_part_of(&self, mount: &Mount) -> bool {
        let shown = |ours: &&Mount| ours.device == mount.device && mount.path_of(&ours.root).is_some();
        self.table.mounts().iter().any(|ours| shown(&ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "\
        1 0 8:1 / / rw - ext4 a rw\n\
        2 1 0:5 / /dev rw - devtmpfs d rw\n\
        3 1 8:2 / /home rw - ext4 b rw\n\
        4 1 8:1 /srv/data /data rw - ext4 a rw\n\
        5 1 8:3 /vol /vol rw - ext4 c rw\n";

    /// What each path of a namespace is, where `table` is that of the namespace.
    fn places(table: &str, paths: &[&str]) -> Vec<String> {
        let own = MountTable::parse(OWN.as_bytes());
        let at_launch = own.mounts().iter().map(|mount| mount.id).collect();
        let naming = Naming { ours: OwnMounts { table: own.into(), at_launch }, ..Naming::default() };
        let namespace = Namespace::new(MountTable::parse(table.as_bytes()), None);
        let shown = |path: &&str| match namespace.place(&naming, path.as_bytes()) {
            Place::Named(name) => String::from_utf8(name).unwrap(),
            Place::Private(_) => "private".to_owned(),
            Place::Overlay(_) => "overlay".to_owned(),
            Place::Served => "served".to_owned(),
            Place::Unnamed => "unnamed".to_owned(),
        };
        paths.iter().map(shown).collect()
    }

    #[test]
    fn path_below_another_name_has_the_name_of_its_directory_here() {
        let sandbox = "\
            20 19 0:40 / / rw - tmpfs t rw\n\
            21 20 8:1 /usr /usr ro - ext4 a rw\n\
            22 20 8:2 /u/project /work rw - ext4 b rw\n\
            23 22 8:2 /u/other /work/nested rw - ext4 b rw\n\
            24 20 0:5 /null /dev/null rw - devtmpfs d rw\n\
            25 20 0:41 / /proc rw - proc p rw\n\
            26 22 8:1 /etc/hosts /work/hosts rw - ext4 a rw\n";
        let paths = [
            "/usr/bin/ls",
            "/work",
            "/work/f",
            "/work/nested/d/f",
            "/dev/null",
            "/work/hosts",
            "/etc",
            "/proc/1",
        ];
        let expected = [
            "/usr/bin/ls",
            "/home/u/project",
            "/home/u/project/f",
            "/home/u/other/d/f",
            "/dev/null",
            "/etc/hosts",
            "private",
            "private",
        ];
        assert_eq!(places(sandbox, &paths), expected);
    }

    #[test]
    fn path_has_the_name_that_they_call_it_by_if_it_has_that_here() {
        let copy = OWN.replace("\n4 1 ", "\n14 11 ").replace("\n3 1", "\n13 11").replace("1 0 ", "11 10 ");
        assert_eq!(
            places(&copy, &["/data/f", "/srv/data/f", "/home/f"]),
            ["/data/f", "/srv/data/f", "/home/f"]
        );
    }

    #[test]
    fn what_is_hidden_here_has_no_name() {
        // Without the mounts that are below it here.
        let bind = "20 19 8:1 / / rw - ext4 a rw\n";
        assert_eq!(
            places(bind, &["/etc/f", "/home", "/home/u/f", "/srv/data/f"]),
            ["/etc/f", "unnamed", "unnamed", "/srv/data/f"]
        );
    }

    #[test]
    fn of_a_filesystem_that_is_mounted_here_in_part_that_part_has_a_name() {
        let whole = "20 19 8:3 / / rw - ext4 c rw\n21 20 8:9 / /image rw - ext4 i rw\n22 20 0:60 / /f rw - fuse.x f rw\n";
        assert_eq!(
            places(whole, &["/vol", "/vol/f", "/other", "/image/f", "/f/x"]),
            ["/vol", "/vol/f", "unnamed", "unnamed", "served"]
        );
    }
}
