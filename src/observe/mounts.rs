//! The mounts that names lead through: what a path of a thread is called in the recorder's own root and mount
//! namespace, which mounts the tree has made, and which filesystems it serves itself.
//!
//! Each call that mounts is traced. Once anything was mounted, moved or unmounted here, or where a process has, or
//! may have, a root or mount namespace of its own, what its paths are called is computed from two mount tables,
//! that of its namespace and ours (`names.rs`). A namespace's table is read when it is first asked for, and again
//! after each call that may have changed it.
//!
//! What is served by a program of the tree (FUSE, 9P, NFS) must not be touched at all while a call of the tree is
//! stopped: the answer would come from a program whose next call waits for us. While a call that mounts is under
//! way its mount point counts as served.
//!
//! Neighbours: `view.rs` says where a thread's paths start, `resolve.rs` walks them.

mod names;
mod overlay;
mod private;
mod table;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags};

pub use self::names::{Layers, OverlayDirectories, Place};
use self::names::{Namespace, Naming, OwnMounts};
pub use self::private::PrivateId;
use self::table::{Device, Mount, MountId, MountTable};
use super::ledger::ids::NameId;
use super::resolve::{self, inside};
use crate::snapshot::PrivateMount;
use crate::sync::lock;
use crate::trace::observer::Caller;
use crate::trace::sys::Tid;

/// A table of mounts is read up to this size; the kernel allows 100,000 mounts (fs.mount-max).
const LIMIT: u64 = 64 << 20;

/// How many namespaces are remembered that no process is in any more: something in them may still be open.
const NAMESPACE_LIMIT: usize = 100;

/// How many mounts are remembered that are gone.
const DETACHED_LIMIT: usize = 10_000;

/// The number of a mount namespace.
type NamespaceId = u64;

/// What is known of the mounts that names lead through.
#[derive(Debug, Default)]
pub struct Mounts {
    /// It is ready once the mounts of this namespace have changed (proc_pid_mounts(5)).
    changes: Option<File>,
    moved: bool,
    /// Our own mounts, when the table was read last, and what else mounts are named by.
    naming: Naming,
    own_namespace: Option<NamespaceId>,
    /// The namespaces that the tree sees names from, as far as their tables were needed; ours may be among them.
    namespaces: HashMap<NamespaceId, Namespace, foldhash::fast::RandomState>,
    /// Mounts that were in a table of the tree's and are in none now: something on them may still be open.
    detached: HashMap<MountId, Mount>,
    /// Those whose tables must be read again before they are used.
    stale: Vec<NamespaceId>,
    /// The views that there have been, each once.
    known_views: HashSet<Arc<View>, foldhash::fast::RandomState>,
    /// From where each thread sees names, by process.
    views: HashMap<Tid, Vec<(Tid, Arc<View>)>, foldhash::fast::RandomState>,
    /// Counts the tables that were read.
    tables_read: u64,
    /// What was found to have changed in our own namespace, and was not told yet.
    unnoted: Changed,
    /// What the tree mounted and unmounted in our own namespace, in order.
    events: Vec<Event>,
    /// The mount points of calls under way.
    pending: Vec<PendingMountPoint>,
}

/// A mount point of a call under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingMountPoint {
    /// Its path in the namespace.
    point: Vec<u8>,
    namespace: Option<NamespaceId>,
    /// What comes to be hidden, by its name here; none if something is mounted there already.
    pub covered: Option<Vec<u8>>,
}

/// The root and the mount namespace of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    pub namespace: NamespaceId,
    /// The path of its root in that, empty for the namespace's own.
    pub root: Vec<u8>,
}

/// The number of a view, by which what was looked up from it is found again; 0 is no view.
pub type ViewNumber = usize;

/// An overlay, with the directories that its mount options name, as whoever mounted it has written them.
#[derive(Debug)]
pub struct NewOverlay {
    device: Device,
    /// None if it can't be changed.
    pub upper: Option<Vec<u8>>,
    pub lower: Vec<Vec<u8>>,
}

/// The mount points of our namespace that are others than before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Where something was mounted.
    pub came: Vec<MountPoint>,
    /// Where something was unmounted.
    pub went: Vec<MountPoint>,
}

/// Where something was mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// The path.
    pub point: Vec<u8>,
    /// The private mount that it becomes once it is unmounted, if it stores nothing.
    private: Option<PrivateId>,
}

/// The tree has mounted (1) or unmounted (-1) something.
#[derive(Debug)]
struct Event {
    mount: MountPoint,
    /// The first name after it.
    next: NameId,
    step: i32,
}

/// What has become of what was first seen at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Displacement {
    /// It can be seen there, or its name tells what has become of it.
    None,
    /// A mount that came later hides it.
    Hidden,
    /// It was on a mount that is gone.
    Gone,
    /// It was on a mount that is gone, and stored nothing.
    Private(PrivateId),
}

/// Filesystems that programs serve: to ask one of the recorded tree is to wait for that.
#[derive(Debug, Clone, Default)]
pub struct ServedDevices(Vec<Device>);

impl ServedDevices {
    fn of(table: &MountTable) -> ServedDevices {
        let served = table.mounts().iter().filter(|mount| mount.is_served());
        ServedDevices(served.map(|mount| mount.device).collect())
    }

    /// Those that are not among `others`.
    pub fn without(&self, others: &ServedDevices) -> ServedDevices {
        ServedDevices(self.0.iter().filter(|device| !others.0.contains(device)).copied().collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the file behind a magic link of procfs is on one of them. Nobody is asked.
    pub fn have(&self, link: &str) -> bool {
        let file = || rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok();
        !self.0.is_empty()
            && file().is_none_or(|file| self.0.contains(&(file.stx_dev_major, file.stx_dev_minor)))
    }
}

/// The filesystems that programs serve, asked for often.
#[derive(Debug)]
pub struct ServedWatch {
    changes: Option<File>,
    now: ServedDevices,
}

impl ServedWatch {
    /// Begins to watch.
    pub fn begin() -> ServedWatch {
        let mut changes = File::open("/proc/self/mountinfo").ok();
        let now = changes.as_mut().map(|table| ServedDevices::of(&read_table(table))).unwrap_or_default();
        ServedWatch { changes, now }
    }

    /// Those that are mounted now.
    pub fn now(&mut self) -> &ServedDevices {
        if let Some(changes) = self.changes.as_mut().filter(|changes| is_outdated(changes)) {
            self.now = ServedDevices::of(&read_table(changes));
        }
        &self.now
    }
}

impl Mounts {
    /// Begins to watch; `served` is what others served before the tree was started, none if that is now.
    pub fn watch(served: Option<ServedDevices>) -> Mounts {
        let mut changes = File::open("/proc/self/mountinfo").ok();
        let table = changes.as_mut().map(last_table).unwrap_or_default();
        let ServedDevices(outside) = served.unwrap_or_else(|| ServedDevices::of(&table));
        let at_launch = table.mounts().iter().map(|mount| mount.id).collect();
        let naming = Naming { ours: OwnMounts { table, at_launch }, outside, ..Naming::default() };
        Mounts { changes, naming, own_namespace: namespace("self"), ..Mounts::default() }
    }

    /// Whether a name may mean something else than the directory it was read from.
    pub fn moved(&self) -> bool {
        self.moved || self.pending.iter().any(|pending| pending.namespace == self.own_namespace)
    }

    /// Notes that the tree uses a mount that is not at its path here: from now on, each thread has a view.
    pub fn note_moved(&mut self) {
        self.moved = true;
    }

    /// Notes that a call begins which mounts something at `point`, or unmounts it, in our own namespace unless
    /// its thread has another view; `name` is that of the point here.
    pub fn begins(&mut self, point: &[u8], name: Option<Vec<u8>>, view: Option<&View>) -> PendingMountPoint {
        let namespace = view.map_or(self.own_namespace, |view| Some(view.namespace));
        let covered = name.filter(|_| !view.is_some_and(|view| self.is_mounted_over(view, point)));
        let point = PendingMountPoint { point: point.to_vec(), namespace, covered };
        self.pending.push(point.clone());
        point
    }

    /// Whether a call mounts something at, or unmounts it from, a path of the namespace of `view`.
    pub fn is_changing(&self, view: &View, path: &[u8]) -> bool {
        let here = self.pending.iter().filter(|pending| pending.namespace == Some(view.namespace));
        here.into_iter().any(|pending| inside(path, &pending.point).is_some())
    }

    /// Notes that such a call is over. [`update`](Mounts::update) comes first.
    pub fn ended(&mut self, point: &PendingMountPoint) {
        if let Some(at) = self.pending.iter().position(|pending| pending == point) {
            self.pending.swap_remove(at);
        }
    }

    /// Notes that a call may have changed the mounts, root or namespace of any thread, and finds out what it has
    /// changed in our own namespace.
    pub fn update(&mut self) -> Changed {
        self.distrust();
        self.read_own_table()
    }

    /// Notes that what the tables say may have changed: a mount, or the name of a directory that one shows.
    pub fn distrust(&mut self) {
        self.views.clear();
        self.stale = self.namespaces.keys().copied().collect();
    }

    /// Whether a name that goes, or comes to be another's, is that of what a mount of the tree's shows or is mounted on.
    pub fn depend_on(&self, name: &[u8]) -> bool {
        self.namespaces.values().any(|namespace| namespace.has_end(&self.naming, name))
    }

    /// Notes that what is at `from` is at `to` now, so that what mounts were made of has another name.
    pub fn renamed(&mut self, from: &[u8], to: &[u8], exchange: bool) {
        let Naming { ours, overlays, .. } = &mut self.naming;
        for directory in overlays.values_mut().flat_map(OverlayDirectories::all) {
            if let Some(now) = name_after_rename(directory, from, to, exchange) {
                *directory = now;
            }
        }
        // The table does not have these any more.
        let Some(moved) = ours.table.at(from) else { return };
        let (Some(from), Some(to)) = (moved.path_within(from), moved.path_within(to)) else { return };
        for mount in self.detached.values_mut().filter(|mount| mount.device == moved.device) {
            if let Some(now) = name_after_rename(&mount.root, &from, &to, exchange) {
                mount.root = now;
            }
        }
    }

    /// Notes that names have gone or have come to be others', on which mounts [depend](Mounts::depend_on).
    pub fn names_changed(&mut self) {
        self.distrust();
        // The kernel does not tell that by the table itself.
        if self.has_namespaces() {
            let changed = self.read_changed_table();
            self.unnoted.came.extend(changed.came);
            self.unnoted.went.extend(changed.went);
        }
    }

    /// Whether the tree has any namespace of its own, or has changed the mounts of ours.
    pub fn has_namespaces(&self) -> bool {
        !self.namespaces.is_empty()
    }

    /// Forgets a process that has ended.
    pub fn process_ended(&mut self, process: Tid) {
        self.views.remove(&process);
    }

    fn read_own_table(&mut self) -> Changed {
        let mut changed = std::mem::take(&mut self.unnoted);
        if self.changes.as_ref().is_some_and(is_outdated) {
            self.moved = true;
            let newly = self.read_changed_table();
            changed.came.extend(newly.came);
            changed.went.extend(newly.went);
        }
        changed
    }

    fn read_changed_table(&mut self) -> Changed {
        let Some(changes) = &mut self.changes else { return Changed::default() };
        let Naming { ours, outside, private, .. } = &mut self.naming;
        let before = std::mem::replace(&mut ours.table, read_table(changes).into());
        let now = &ours.table;
        // Device numbers and mount ids are used again.
        outside.retain(|device| now.mounts().iter().any(|mount| mount.device == *device));
        ours.at_launch.retain(|id| now.get(*id).is_some());
        let differs = |one: &Mount, table: &MountTable| {
            !table.get(one.id).is_some_and(|other| one.is_same_mount(other))
        };
        let came = now.mounts().iter().filter(|mount| differs(mount, &before));
        let went = before.mounts().iter().filter(|mount| differs(mount, now));
        let points = |mounts: Vec<&Mount>| {
            let point = |mount: &Mount| MountPoint {
                point: mount.point.clone(),
                private: mount.is_without_storage().then(|| private.borrow_mut().id_of(mount)),
            };
            mounts.into_iter().map(point).collect::<Vec<_>>()
        };
        Changed { came: points(came.collect()), went: points(went.collect()) }
    }

    /// From where a thread sees names; none if that is where we see them from, nothing has been mounted, and no
    /// descriptor can come from elsewhere.
    pub fn view_of(&mut self, caller: Caller, living: &dyn Fn() -> Vec<Tid>) -> Option<Arc<View>> {
        let known = self.views.get(&caller.tgid).and_then(|threads| {
            threads.iter().find(|(thread, _)| *thread == caller.tid).map(|(_, view)| Arc::clone(view))
        });
        let view = match known {
            Some(view) => view,
            None => {
                let found = View::of(caller.tid, self.own_namespace);
                let known = self.known_views.get(&found).map(Arc::clone);
                let view = known.unwrap_or_else(|| Arc::new(found));
                self.known_views.insert(Arc::clone(&view));
                self.views.entry(caller.tgid).or_default().push((caller.tid, Arc::clone(&view)));
                view
            }
        };
        let is_ours = Some(view.namespace) == self.own_namespace;
        if is_ours && view.root.is_empty() && !self.moved() && !self.has_namespaces() {
            return None;
        }
        if !self.namespaces.contains_key(&view.namespace) || self.stale.contains(&view.namespace) {
            self.read_namespace(caller.tid, &view, is_ours, living);
        }
        Some(view)
    }

    fn read_namespace(&mut self, caller: Tid, view: &View, is_ours: bool, living: &dyn Fn() -> Vec<Tid>) {
        let read = |process: Tid| {
            let mut table = File::open(format!("/proc/{process}/mountinfo")).ok()?;
            Some(read_text(&mut table))
        };
        let table = if is_ours {
            MountTable::of(self.naming.ours.table.mounts().to_vec())
        } else if view.root.is_empty() {
            read(caller).map(|text| MountTable::parse(&text)).unwrap_or_default()
        } else {
            // The kernel tells only of the mounts below a process's root, by their names from there.
            let whole = View { root: Vec::new(), ..view.clone() };
            let other = living().into_iter().find(|other| View::of(*other, None) == whole);
            match other.and_then(read) {
                Some(text) => MountTable::parse(&text),
                None => {
                    let below = read(caller).map(|text| MountTable::parse(&text)).unwrap_or_default();
                    let known = self.namespaces.get(&view.namespace).map(|known| &known.table);
                    below.below_root(&view.root, known)
                }
            }
        };
        self.naming.private.borrow_mut().find_again(table.mounts());
        let former = self.namespaces.remove(&view.namespace);
        self.detached.retain(|id, _| table.get(*id).is_none());
        let gone = former.iter().flat_map(|namespace| namespace.table.mounts());
        for mount in gone.filter(|mount| !is_ours && table.get(mount.id).is_none()) {
            if self.detached.len() < DETACHED_LIMIT {
                self.detached.insert(mount.id, mount.clone());
            }
        }
        if self.namespaces.len() >= NAMESPACE_LIMIT {
            let in_use =
                |id: &NamespaceId| self.views.values().flatten().any(|(_, view)| view.namespace == *id);
            self.namespaces.retain(|id, _| in_use(id));
        }
        self.namespaces.insert(view.namespace, Namespace::new(table, former.as_ref()));
        self.stale.retain(|stale| *stale != view.namespace);
        self.tables_read += 1;
    }

    /// How often a table of the tree's namespaces was read: what is served may have changed since.
    pub fn tables_read(&self) -> u64 {
        self.tables_read
    }

    /// What a path of a namespace, which is no symlink and leads through none, is for us.
    pub fn place(&self, view: &View, path: &[u8]) -> Place {
        match self.namespaces.get(&view.namespace) {
            Some(namespace) => namespace.place(&self.naming, path),
            None => Place::Unnamed,
        }
    }

    /// What an object that is open is for us: `path` is the text of its magic link, and `mount` the mount that it
    /// was opened on, which may be of any namespace and may be hidden by now. None if nobody knows that mount.
    pub fn place_on_mount(&self, mount: MountId, path: &[u8]) -> Option<Place> {
        let mut namespaces = self.namespaces.values();
        let of_theirs = namespaces.find_map(|namespace| namespace.place_on_mount(&self.naming, mount, path));
        let ours = &self.naming.ours.table;
        let of_ours = || {
            ours.get(mount)?;
            let is_visible = ours.at(path).is_some_and(|found| found.id == mount);
            Some(if is_visible { Place::Named(path.to_vec()) } else { Place::Unnamed })
        };
        let of_detached = || Some(self.naming.place_on_detached(self.detached.get(&mount)?, path));
        of_theirs.or_else(of_ours).or_else(of_detached)
    }

    /// The other paths at which mounts of ours from before the launch show what is at a path.
    pub fn names_elsewhere(&self, path: &[u8]) -> Vec<Vec<u8>> {
        self.naming.ours.names_elsewhere(path)
    }

    /// Whether something is mounted at `path` of this namespace itself.
    pub fn is_mounted_over(&self, view: &View, path: &[u8]) -> bool {
        self.namespaces.get(&view.namespace).is_some_and(|namespace| namespace.table.is_point(path))
    }

    /// Whether `path` of this namespace is on the mount of this number.
    pub fn is_on(&self, view: &View, path: &[u8], mount: MountId) -> bool {
        let namespace = self.namespaces.get(&view.namespace);
        namespace.and_then(|namespace| namespace.table.at(path)).is_some_and(|found| found.id == mount)
    }

    /// Whether nothing on the mount that `path` of this namespace leads to can be changed.
    pub fn is_read_only(&self, view: &View, path: &[u8]) -> bool {
        let namespace = self.namespaces.get(&view.namespace);
        namespace.and_then(|namespace| namespace.table.at(path)).is_some_and(|found| found.is_read_only)
    }

    /// The overlays that a call in this namespace has just mounted, or whose directories are not known yet: the device
    /// of each, with the options that name its directory for changes and the others.
    pub fn new_overlays(&mut self, view: &View) -> Vec<NewOverlay> {
        let Some(namespace) = self.namespaces.get_mut(&view.namespace) else { return Vec::new() };
        let Naming { ours, overlays, .. } = &mut self.naming;
        // The device number was that of another one.
        for device in std::mem::take(&mut namespace.new_overlays) {
            overlays.remove(&device);
        }
        let is_new = |mount: &&Mount| {
            let is_of_launch =
                |ours_too: &Mount| ours_too.device == mount.device && ours.at_launch.contains(&ours_too.id);
            mount.kind == b"overlay"
                && !overlays.contains_key(&mount.device)
                && !ours.table.mounts().iter().any(is_of_launch)
        };
        let new = namespace.table.mounts().iter().filter(is_new).map(|mount| NewOverlay {
            device: mount.device,
            upper: mount.option("upperdir"),
            lower: mount.option("lowerdir").map(|list| overlay::lower_directories(&list)).unwrap_or_default(),
        });
        new.collect()
    }

    /// Notes what an overlay was mounted from.
    pub fn note_overlay(&mut self, overlay: &NewOverlay, directories: OverlayDirectories) {
        self.naming.overlays.insert(overlay.device, directories);
        self.distrust();
    }

    /// Whether the filesystem of a private mount is of a type.
    pub fn is_private_of(&self, mount: PrivateId, kind: &str) -> bool {
        self.naming.private.borrow().kind_of(mount) == kind
    }

    /// Whether a call that mounts is under way.
    pub fn is_mounting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The mount that a path of our own namespace is on, if the tree has mounted it and it stores nothing.
    pub fn new_private_at(&self, path: &[u8]) -> Option<PrivateId> {
        let Naming { ours, private, .. } = &self.naming;
        let is_new = |mount: &&Mount| !ours.at_launch.contains(&mount.id) && mount.is_without_storage();
        ours.table.at(path).filter(is_new).map(|mount| private.borrow_mut().id_of(mount))
    }

    /// A process outside of the tree that is in one of the tree's namespaces, where private mounts were changed.
    pub fn outside_holder(&self, is_of_tree: impl Fn(Tid) -> bool) -> Option<Tid> {
        if self.private().iter().all(|mount| mount.changes == 0) {
            return None;
        }
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_inside = |process: &Tid| {
            let namespace = namespace(&process.to_string()).filter(|id| Some(*id) != self.own_namespace);
            namespace.is_some_and(|id| self.namespaces.contains_key(&id))
        };
        numbers.map(Tid).filter(|process| !is_of_tree(*process)).find(is_inside)
    }

    /// Counts the use of a private mount.
    pub fn private_used(&mut self, id: PrivateId) {
        self.naming.private.borrow_mut().used(id);
    }

    /// Counts a change on a private mount.
    pub fn private_changed(&mut self, id: PrivateId) {
        self.naming.private.borrow_mut().changed(id);
    }

    /// The private mounts that were used.
    pub fn private(&self) -> Vec<PrivateMount> {
        self.naming.private.borrow().list()
    }

    /// Keeps what a call has changed, for [`displacement`](Mounts::displacement); `next` is the name that the table
    /// gets next.
    pub fn note(&mut self, changed: &Changed, next: NameId) {
        let events = |mounts: &[MountPoint], step| {
            mounts.iter().map(|mount| Event { mount: mount.clone(), next, step }).collect::<Vec<_>>()
        };
        self.events.extend(events(&changed.went, -1));
        self.events.extend(events(&changed.came, 1));
    }

    /// Whether what was first seen at `path`, which is that of `name`, is not what can be seen there now.
    pub fn displacement(&self, name: NameId, path: &[u8]) -> Displacement {
        let above = |point: &[u8]| resolve::inside(path, point.strip_suffix(b"/").unwrap_or(point)).is_some();
        let (later, earlier): (Vec<&Event>, Vec<&Event>) =
            self.events.iter().filter(|event| above(&event.mount.point)).partition(|event| name < event.next);
        let of = |point: &[u8]| {
            // How many mounts there are at the point, less those that there were at first sight.
            let mut depth = 0;
            let of_point = later.iter().filter(|event| event.mount.point == point);
            let uncovered = of_point.map(|event| {
                depth += event.step;
                depth
            });
            let lowest = uncovered.min().unwrap_or(0);
            if lowest < 0 {
                // The last one to come before the first sight was there then.
                let was_on = earlier.iter().rfind(|event| event.mount.point == point && event.step > 0);
                match was_on {
                    Some(Event { mount: MountPoint { private: Some(id), .. }, .. }) => {
                        Displacement::Private(*id)
                    }
                    _ => Displacement::Gone,
                }
            } else if depth != 0 {
                Displacement::Hidden
            } else {
                Displacement::None
            }
        };
        // What is on a mount that lies on a private one is private, too.
        later.iter().map(|event| of(&event.mount.point)).max().unwrap_or(Displacement::None)
    }

    /// The mount points of filesystems in our own namespace that the tree serves, and those of calls in flight:
    /// nothing at or below them may be accessed.
    pub fn served(&self) -> Vec<Vec<u8>> {
        let pending = self.pending.iter().filter(|pending| pending.namespace == self.own_namespace);
        let points = self.served_in(&self.naming.ours.table).chain(pending.map(|pending| &pending.point));
        // Nothing that is served takes the place of everything.
        points.filter(|point| *point != b"/").cloned().collect()
    }

    /// The mount points of what the tree serves in its own namespaces.
    pub fn served_elsewhere(&self) -> Vec<Vec<u8>> {
        let points = self.namespaces.values().flat_map(|namespace| self.served_in(&namespace.table));
        points.filter(|point| *point != b"/").cloned().collect()
    }

    fn served_in<'m>(&'m self, table: &'m MountTable) -> impl Iterator<Item = &'m Vec<u8>> {
        let outside = &self.naming.outside;
        let served = |mount: &&Mount| mount.is_served() && !outside.contains(&mount.device);
        table.mounts().iter().filter(served).map(|mount| &mount.point)
    }

    /// Finds out whether `process` starts from directories whose names lead somewhere else: in another
    /// mount namespace, or under a mount.
    pub fn watch_process(&mut self, process: Tid) {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let links = descriptors.map(|entry| entry.path()).chain([format!("/proc/{process}/cwd").into()]);
        self.moved |= links.into_iter().any(|link| is_hidden(link.as_os_str().as_encoded_bytes()));
    }
}

impl View {
    /// That of a thread; what can't be found out is taken to be as it is here.
    fn of(thread: Tid, ours: Option<NamespaceId>) -> View {
        let namespace = namespace(&thread.to_string()).or(ours).unwrap_or_default();
        let root = resolve::read_magic_link(format!("/proc/{thread}/root").as_bytes()).unwrap_or_default();
        View { namespace, root: resolve::trim_root(&root).to_vec() }
    }

    /// Its number.
    pub fn number(self: &Arc<View>) -> ViewNumber {
        // It is kept for as long as the recording goes on.
        Arc::as_ptr(self).addr()
    }

    /// The path that a thread with this root calls `path` of the namespace; none if it is outside of the root.
    pub fn inside<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        inside(path, &self.root)
    }
}

/// The number of a process's mount namespace.
fn namespace(process: &str) -> Option<NamespaceId> {
    Some(std::fs::metadata(format!("/proc/{process}/ns/mnt")).ok()?.ino())
}

/// Whether a call of this name makes a mount that only a descriptor names.
pub fn makes_detached_mount(name: &str) -> bool {
    matches!(name, "open_tree" | "open_tree_attr" | "fsmount")
}

/// The name that a rename has given to what was at `path`, if that is another one.
fn name_after_rename(path: &[u8], from: &[u8], to: &[u8], exchange: bool) -> Option<Vec<u8>> {
    let moved = |from: &[u8], to: &[u8]| Some([to, resolve::trim_root(inside(path, from)?)].concat());
    moved(from, to).or_else(|| moved(to, from).filter(|_| exchange))
}

fn read_text(table: &mut File) -> Vec<u8> {
    // The kernel gives no more than a page at once, whatever is asked for.
    let mut text = Vec::with_capacity(16 << 10);
    let _ = table.rewind();
    // Asking does not wait for anyone who serves a filesystem.
    let _ = table.take(LIMIT).read_to_end(&mut text);
    text
}

fn read_table(table: &mut File) -> MountTable {
    MountTable::parse(&read_text(table))
}

/// Whether the mounts have changed since it was last asked by this file, or since that was opened.
fn is_outdated(changes: &File) -> bool {
    let mut fds = [PollFd::new(changes, PollFlags::PRI)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// A table that was read.
struct LastTable {
    namespace: Option<NamespaceId>,
    table: Arc<MountTable>,
    /// Tells of changes since.
    changes: File,
}

/// Our table, which has just been opened: of the recordings of a session, the first one reads it.
fn last_table(opened: &mut File) -> Arc<MountTable> {
    static LAST: Mutex<Option<LastTable>> = Mutex::new(None);
    let mut last = lock(&LAST);
    let namespace = namespace("self");
    let known = last.as_ref().filter(|last| last.namespace == namespace && !is_outdated(&last.changes));
    if let Some(known) = known {
        return Arc::clone(&known.table);
    }
    let changes = File::open("/proc/self/mountinfo").ok();
    let table = Arc::new(read_table(opened));
    *last = changes.map(|changes| LastTable { namespace, table: Arc::clone(&table), changes });
    table
}

/// Whether a magic link stands for a directory whose name means another one in our mount namespace.
pub(super) fn is_hidden(link: &[u8]) -> bool {
    let hidden = |stat: &crate::fs::FileStat| stat.st_nlink > 0 && resolve::is_directory(stat);
    rustix::fs::stat(link).is_ok_and(|stat| hidden(&stat)) && resolve::named_object(link).is_err()
}

#[cfg(test)]
mod tests {
    use super::super::ledger::names::{Name, Names};
    use super::*;

    #[test]
    fn a_mount_point_is_served_while_a_call_is_under_way() {
        let mut mounts = Mounts::watch(None);
        assert!(!mounts.naming.ours.table.mounts().is_empty() && !mounts.moved());
        assert_eq!(mounts.served(), [b""; 0]);
        let elsewhere = View { namespace: 2, root: Vec::new() };
        let other = mounts.begins(b"/a", None, Some(&elsewhere));
        let [first, second] = [(); 2].map(|()| mounts.begins(b"/a", None, None));
        mounts.ended(&first);
        assert_eq!(mounts.served(), [b"/a"]);
        assert!(mounts.moved(), "names are doubtful meanwhile");
        mounts.ended(&second);
        assert!(mounts.is_changing(&elsewhere, b"/a"), "the same path of another namespace");
        mounts.ended(&other);
        assert!(!mounts.is_changing(&elsewhere, b"/a"));
        assert_eq!(mounts.served(), [b""; 0]);
        assert!(!mounts.moved(), "nothing was mounted");
        let view = View { namespace: 1, root: Vec::new() };
        mounts.begins(b"/a", None, Some(&view));
        assert_eq!(mounts.served(), [b""; 0]);
        assert!(!mounts.moved(), "another namespace is of no matter to names out here");
        assert!(mounts.is_changing(&view, b"/a/f") && !mounts.is_changing(&view, b"/ab"));
    }

    #[test]
    fn what_was_on_a_mount_that_is_gone_is_displaced_and_what_is_uncovered_is_not() {
        let mut names = Names::default();
        let mut add = |path: &str| names.add(path.into(), Name::default());
        let mut mounts = Mounts::default();
        let private = mounts.naming.private.borrow_mut().id_of(&Mount {
            id: 1,
            parent: 0,
            device: (0, 40),
            root: b"/".to_vec(),
            point: b"/d".to_vec(),
            kind: b"tmpfs".to_vec(),
            options: Vec::new(),
            is_read_only: false,
        });
        let change = |came: &[Option<PrivateId>], went: &[Option<PrivateId>]| {
            let points = |privates: &[Option<PrivateId>]| {
                let point =
                    |private: &Option<PrivateId>| MountPoint { point: b"/d".to_vec(), private: *private };
                privates.iter().map(point).collect()
            };
            Changed { came: points(came), went: points(went) }
        };
        use Displacement::{Gone, Hidden, None as Stays, Private};
        let before = add("/d/before");
        let first = add("/d/first");
        mounts.note(&change(&[None], &[]), first);
        assert_eq!(mounts.displacement(before, b"/d/before"), Hidden);
        assert_eq!(mounts.displacement(first, b"/d/first"), Stays);
        assert_eq!(mounts.displacement(before, b"/dx"), Stays);
        let later = add("/d/later");
        mounts.note(&change(&[], &[None]), later);
        assert_eq!(mounts.displacement(before, b"/d/before"), Stays, "uncovered again");
        assert_eq!(mounts.displacement(first, b"/d/first"), Gone);
        assert_eq!(mounts.displacement(first, b"/d"), Gone);
        assert_eq!(mounts.displacement(later, b"/d/later"), Stays);
        // Another mount in the place of the one before.
        let last = add("/d/last");
        mounts.note(&change(&[Some(private)], &[]), last);
        assert_eq!(mounts.displacement(first, b"/d/first"), Gone);
        assert_eq!(mounts.displacement(before, b"/d/before"), Hidden);
        assert_eq!(mounts.displacement(last, b"/d/last"), Stays);
        mounts.note(&change(&[], &[Some(private)]), add("/x"));
        assert_eq!(mounts.displacement(last, b"/d/last"), Private(private));
        assert_eq!(mounts.displacement(before, b"/d/before"), Stays);
        // One that was there before the launch.
        mounts.note(&change(&[], &[None]), add("/y"));
        assert_eq!(mounts.displacement(before, b"/d/before"), Gone);
    }
}
