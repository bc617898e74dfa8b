//! What a recording knows while the tree runs: which path an access names, and what the rules say of it.
//!
//! The files in `calls/` judge calls with it. Neighbours: `resolve.rs` and `view.rs` find paths, the ledger
//! keeps what is known of names and inodes.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::own_program::ProgramIdentity;
use super::enforce::Enforcer;
use super::finish::after::Interim;
use super::git_state::GitStateChanges;
use super::ledger::Ledger;
use super::ledger::apply::Change;
use super::ledger::ids::{InodeId, NameId, ProcessId};
use super::ledger::names::Name;
use super::ledger::protect::{ByteStore, Protected, Protector};
use super::lookups::{Known, LookupPlace, Lookups};
use super::mounts::{Displacement, Mounts, View};
use super::network::Network;
use super::policy::ignore::RuleId;
use super::policy::{Exclusion, Policy};
use super::processes::{ProcessTable, Rights};
use super::random::RandomBytes;
use super::resolve::credentials::Credentials;
use super::resolve::view::{self, Unseen};
use super::resolve::{self, Crossed, PrivatePlace, Resolved, Resolver, Unresolved};
use super::warnings::Warnings;
use crate::fs::{self, FileStat};
use crate::git::Repositories;
use crate::snapshot::live::Filesystem;
use crate::snapshot::{Operation, Operations, Unrepeatable, WarningKind};
use crate::trace::observer::Caller;
use crate::trace::proc_fd;
use crate::trace::proc_status;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, Effect, FileRef};

/// Everything that a recording knows while the tree runs.
pub struct Recording {
    /// Whether io_uring is let through, unseen.
    pub allow_io_uring: bool,
    /// Whether a process of the tree may have to permit opens (fanotify(7)). The recorder makes none for others then: that
    /// process may be waiting for the recorder.
    pub opens_ask_the_tree: bool,
    /// Whether secrets in command lines are masked.
    pub masks_arguments: bool,
    /// Our own programs.
    pub own_programs: Vec<ProgramIdentity>,
    pub policy: Policy,
    /// Our own, which those of the tree are compared with.
    pub credentials: Option<Credentials>,
    pub resolver: Resolver,
    pub lookups: Lookups,
    pub repositories: Repositories,
    pub processes: ProcessTable,
    pub ledger: Ledger,
    pub byte_store: ByteStore,
    /// What becomes of Git's state.
    pub git_state: GitStateChanges,
    pub warnings: Warnings,
    /// The socket addresses that were used.
    pub network: Network,
    /// The rules that are enforced, if there are any.
    pub enforcer: Option<Enforcer>,
    /// Who asked for random bytes, if the recording is to be recalled.
    pub random_bytes: RandomBytes,
    /// Descriptors from before the launch of which every use is noted, each with what it stands for.
    pub watched: Vec<(u32, Vec<u8>)>,
    /// What no record tells, if the recording is to be recalled.
    pub unrepeatable: Unrepeatable,
    /// The file that each process may leave as its core dump.
    pub core_dumps: HashMap<Tid, ExpectedCoreDump, foldhash::fast::RandomState>,
    /// Whether names may have come to mean something else.
    pub mounts: Mounts,
    /// What was found when states were last taken, if the recording went on.
    pub interim: Option<Interim>,
}

/// Where a process may leave its core dump, and what was there.
#[derive(Debug)]
pub struct ExpectedCoreDump {
    pub path: Vec<u8>,
    pub stat: Option<FileStat>,
    pub classification: Classification,
    pub protected: Option<Protected>,
}

/// What the rules say of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Classification {
    /// It is recorded.
    Recorded(NameId),
    /// A rule leaves it out; the topmost path that the rule covers.
    Suppressed(RuleId, Vec<u8>),
    /// It is the snapshot's own, or the library's.
    Own,
}

impl Classification {
    fn of(exclusion: Exclusion, path: Vec<u8>) -> Classification {
        match exclusion {
            Exclusion::Rule(rule, topmost) => Classification::Suppressed(rule, topmost),
            Exclusion::UnlessChanged(rule) => Classification::Suppressed(rule, path),
            Exclusion::Own => Classification::Own,
        }
    }
}

impl Recording {
    /// The ledger together with all that reading and storing bytes takes.
    pub fn protector(&mut self) -> Protector<'_> {
        Protector {
            ledger: &mut self.ledger,
            byte_store: &mut self.byte_store,
            repositories: &mut self.repositories,
            warnings: &mut self.warnings,
        }
    }

    /// Applies a change to the ledger.
    pub fn apply(&mut self, change: Change<'_>) {
        if self.ledger.apply(change) {
            self.lookups.forget_left_out();
        }
    }

    /// Compares the credentials of a thread with ours, after a call that may have changed them.
    pub fn compare_credentials(&mut self, caller: Caller) {
        let ours = &self.credentials;
        self.processes.set_traits(caller.tgid, |traits| {
            let rights = match (ours, Credentials::of(caller.tid)) {
                (Some(ours), Some(theirs)) => ours.compare(&theirs),
                (None, _) | (_, None) => Rights::Others,
            };
            // It stays so: another thread may have others still.
            traits.rights = traits.rights.max(rights);
        });
    }

    /// Resolves what an access names, from the caller's own point of view.
    pub fn locate(&mut self, caller: Caller, access: &Access) -> Result<Resolved, Unseen> {
        let Some(view) = self.view_of(caller) else {
            let located = view::locate(&mut self.resolver, caller, access);
            return if self.note_other_mount(&located) { self.locate(caller, access) } else { located };
        };
        let resolved = view::locate_among(&mut self.resolver, &self.mounts, &view, caller, access)?;
        self.unless_hidden(resolved)
    }

    /// Resolves it at the entry of the call. A thread that was killed there does not make the call, and what it named can't be
    /// looked up any more.
    pub fn locate_at_entry(&mut self, caller: Caller, access: &Access) -> Result<Resolved, Unseen> {
        match self.locate(caller, access) {
            Err(Unseen::Unresolved(Unresolved::Nameless | Unresolved::UnknownStart))
                if proc_status::has_ended(caller.tid) =>
            {
                Err(Unresolved::CallerEnded.into())
            }
            located => located,
        }
    }

    /// Resolves a place whose start is known.
    pub fn locate_from(
        &mut self,
        caller: Caller,
        view: Option<&View>,
        place: &LookupPlace<'_>,
        follow: bool,
    ) -> Result<Resolved, Unseen> {
        let base = place.base.as_deref();
        let Some(view) = view else {
            let located =
                view::locate_from(&mut self.resolver, caller, base.unwrap_or(b"/"), place.path, follow);
            if !self.note_other_mount(&located) {
                return located;
            }
            let view = self.view_of(caller);
            return self.locate_from(caller, view.as_deref(), place, follow);
        };
        let names = (&self.mounts, view);
        let resolved =
            view::locate_from_in_view(&mut self.resolver, names, caller, base, place.path, follow)?;
        self.unless_hidden(resolved)
    }

    /// If a path led to another mount than the one at its name here, has each thread asked for its view from now on; whether it
    /// did.
    fn note_other_mount(&mut self, located: &Result<Resolved, Unseen>) -> bool {
        let is_on_other_mount = matches!(located, Err(Unseen::Unresolved(Unresolved::OnOtherMount(_))));
        if is_on_other_mount {
            self.mounts.note_moved();
        }
        is_on_other_mount
    }

    /// A place, unless it is on a private mount that hides what has a record of that name.
    fn unless_hidden(&self, resolved: Resolved) -> Result<Resolved, Unseen> {
        if let Some(mount) = self.mounts.new_private_at(&resolved.path)
            && let Some(name) = self.ledger.names.find(&resolved.path)
            && self.mounts.displacement(name, &resolved.path) == Displacement::Hidden
        {
            let Resolved { path, stat, .. } = resolved;
            return Err(Unseen::Private(Box::new(PrivatePlace { mount, path, stat })));
        }
        Ok(resolved)
    }

    /// From where a thread sees names; none if each path means to it what it means to us.
    pub fn view_of(&mut self, caller: Caller) -> Option<Arc<View>> {
        if !self.sees_other_names(caller) {
            return None;
        }
        let (tables_read, processes) = (self.mounts.tables_read(), &self.processes);
        let view = self.mounts.view_of(caller, &|| processes.living().collect());
        if self.mounts.tables_read() != tables_read {
            self.set_served();
        }
        if view.is_some() {
            self.ledger.in_flight.path_changes().set_starts_are_objects(!self.resolver.is_serving());
        }
        view
    }

    /// Learns which filesystems the tree serves now.
    pub fn set_served(&mut self) {
        self.resolver.set_served(self.mounts.served(), self.mounts.served_elsewhere());
        if self.resolver.is_serving() {
            self.ledger.in_flight.path_changes().set_starts_are_objects(false);
        }
    }

    /// What a descriptor of the caller stands for, by its name here.
    pub fn object_of_descriptor(&mut self, caller: Caller, fd: i32) -> Result<Resolved, Unseen> {
        self.object_of_link(caller, proc_fd::link(caller.tid, fd).as_bytes())
    }

    /// What a magic link of the caller stands for, by its name here.
    pub fn object_of_link(&mut self, caller: Caller, link: &[u8]) -> Result<Resolved, Unseen> {
        // A descriptor may come from a process that sees other names.
        if self.view_of(caller).is_some() || self.mounts.has_namespaces() {
            return view::object_among(&self.resolver, &self.mounts, link);
        }
        let (path, stat) = self.resolver.named_object(link)?;
        Ok(Resolved::object(path, stat))
    }

    /// Whether a name may mean something else to a process than it does in our root and mount namespace.
    pub fn sees_other_names(&self, caller: Caller) -> bool {
        self.mounts.moved() || self.processes.traits(caller.tgid).in_foreign_mount_namespace
    }

    /// Records what is known of a path that could not be resolved.
    pub fn unseen(&mut self, process: ProcessId, unseen: Unseen) {
        match unseen {
            Unseen::InForeignMountNamespace(path) | Unseen::Unresolved(Unresolved::OnOtherMount(path)) => {
                self.warnings.lost(WarningKind::MountNamespace, Some(process), || {
                    format!(
                        "{} is in another root or mount namespace and can't be named in the recorder's",
                        String::from_utf8_lossy(&path)
                    )
                });
            }
            Unseen::Private(place) => self.mounts.private_used(place.mount),
            Unseen::Unresolved(Unresolved::Loop(crossed)) => {
                self.cross(process, &crossed);
            }
            Unseen::Unresolved(Unresolved::Denied(directory, crossed)) => {
                self.cross(process, &crossed);
                let stat = fs::lstat(&directory).ok().flatten();
                if let Classification::Recorded(record) = self.classify(directory, stat.as_ref()) {
                    self.ledger.merge(record, Operation::Existence.into(), process);
                }
            }
            Unseen::Unresolved(Unresolved::Served(path)) => match self.policy.covering(&path) {
                Some(rule) => self.policy.suppressed.read(rule),
                None => self.warnings.lost(WarningKind::MountNamespace, Some(process), || {
                    format!(
                        "{} is on a filesystem that was mounted meanwhile and is served by a program: nothing \
                         there is recorded",
                        String::from_utf8_lossy(&path)
                    )
                }),
            },
            Unseen::Unresolved(Unresolved::UnknownStart) => {
                self.warnings.lost(WarningKind::UnreadableTracee, Some(process), || {
                    "the kernel does not tell where a path starts: its process is not dumpable, or the name \
                     of its directory is too long"
                        .to_owned()
                });
            }
            Unseen::Unresolved(Unresolved::TooDeep) => {
                self.warnings.lost(WarningKind::UnreadableTracee, Some(process), || {
                    "a path lies so deep that its whole name is longer than the kernel takes".to_owned()
                });
            }
            // The call fails with ENOTDIR for as long as this is no directory.
            Unseen::Unresolved(Unresolved::NotADirectory(path)) if self.ledger.for_recall => {
                let stat = fs::lstat(&path).ok().flatten();
                if let Classification::Recorded(record) = self.classify(path, stat.as_ref()) {
                    self.ledger.merge(record, Operation::Existence.into(), process);
                }
            }
            Unseen::Unresolved(
                Unresolved::NotADirectory(_)
                | Unresolved::TooLong
                | Unresolved::Nameless
                | Unresolved::CallerEnded
                | Unresolved::Unnamed(_)
                | Unresolved::Private(..),
            ) => {}
        }
    }

    /// Records the symlinks that a path led through, and says what was recorded.
    pub fn cross(&mut self, process: ProcessId, crossed: &[Crossed]) -> Vec<Known> {
        let mut known = Vec::new();
        for link in crossed {
            match self.classify(link.path.clone(), Some(&link.stat)) {
                Classification::Recorded(record) => {
                    self.ledger.merge(record, Operation::Existence.into(), process);
                    known.push(Known::Recorded(record, Operation::Existence.into()));
                }
                Classification::Suppressed(rule, _) => {
                    self.policy.suppressed.read(rule);
                    known.push(Known::Suppressed(rule));
                }
                Classification::Own => {}
            }
        }
        known
    }

    /// What the rules say of a path; its record, made at first sight.
    pub fn classify(&mut self, path: Vec<u8>, stat: Option<&FileStat>) -> Classification {
        if let Some(name) = self.known_name(&path) {
            self.see_again(name, &path, stat);
            return match self.left_out_by(name) {
                Some(rule) => Classification::Suppressed(rule, path),
                None => Classification::Recorded(name),
            };
        }
        self.follow_git_file(&path, stat);
        match self.policy.exclusion(&path, stat) {
            Some(Exclusion::UnlessChanged(RuleId::GIT)) if self.ledger.for_recall => {
                let name = self.add_name(path, stat, Some(RuleId::GIT));
                self.ledger.names.get_mut(name).left_out = false;
                Classification::Recorded(name)
            }
            Some(exclusion) => self.leave_out(exclusion, path),
            None => Classification::Recorded(self.add_name(path, stat, None)),
        }
    }

    /// The record of a path, unless the path is our own by now: the command may have moved the snapshot's directory there.
    fn known_name(&self, path: &[u8]) -> Option<NameId> {
        self.ledger.names.find(path).filter(|_| !self.policy.is_own(path))
    }

    /// What the rules say of a path that has no record.
    fn leave_out(&mut self, exclusion: Exclusion, path: Vec<u8>) -> Classification {
        let is_git_state = matches!(exclusion, Exclusion::Rule(RuleId::GIT, _));
        if self.ledger.for_recall && !is_git_state {
            self.unrepeatable.note_unrecorded(self.own_procfs_name(&path));
        }
        Classification::of(exclusion, path)
    }

    /// Notes that a directory was listed that is not recorded.
    pub fn note_listing(&mut self, operations: Operations, path: &[u8]) {
        if self.ledger.for_recall && operations.contains(Operation::Directory) {
            let path = self.own_procfs_name(path);
            self.unrepeatable.note_listed(path);
        }
    }

    /// Notes the use of a descriptor from before the launch, unless its number is another file's by now.
    pub fn note_descriptor(&mut self, caller: Caller, descriptor: u32) {
        let target = rustix::fs::readlink(proc_fd::link(caller.tid, descriptor), Vec::new());
        let target = target.map(std::ffi::CString::into_bytes).unwrap_or_default();
        if self.watched.contains(&(descriptor, target)) {
            self.unrepeatable.used_descriptor.get_or_insert(descriptor);
        }
    }

    /// Whether a path is in the directory of a process of the tree in procfs.
    pub fn is_procfs_of_the_tree(&self, path: &[u8]) -> bool {
        path.starts_with(b"/proc/") && self.own_procfs_name(path).starts_with(b"/proc/self/")
    }

    /// The path that a process of the tree itself would name by `/proc/self`.
    fn own_procfs_name(&self, path: &[u8]) -> Vec<u8> {
        let number = path.strip_prefix(b"/proc/").map(|rest| rest.split(|byte| *byte == b'/'));
        let number = number.and_then(|mut parts| std::str::from_utf8(parts.next()?).ok());
        match number.and_then(|number| number.parse().ok()) {
            Some(process) if self.processes.living_id(Tid(process)).is_some() => {
                let digits = number.map_or(0, str::len);
                [b"/proc/self", &path["/proc/".len() + digits..]].concat()
            }
            _ => path.to_vec(),
        }
    }

    /// Leaves out the git directory that a `.git` names which is no directory itself.
    fn follow_git_file(&mut self, path: &[u8], stat: Option<&FileStat>) {
        if path.ends_with(b"/.git") && stat.is_some_and(|stat| !resolve::is_directory(stat)) {
            self.repositories.observe(path);
            self.leave_out_git_dirs();
        }
    }

    /// Leaves out what is not changed in the git directories that were found.
    fn leave_out_git_dirs(&mut self) {
        for directory in self.repositories.take_git_dirs() {
            self.policy.add_git_dir(&directory);
        }
    }

    /// The record of a path that the stopped call may change. One that is left out unless it is changed gets a
    /// record, too, which counts once the call has changed it.
    pub fn classify_for_write(&mut self, path: Vec<u8>, stat: Option<&FileStat>) -> Classification {
        self.classify_change(path, stat).unwrap_or_else(|(exclusion, path)| self.leave_out(exclusion, path))
    }

    /// The same where the call changes nothing and learns nothing that matters: it is not noted.
    pub fn classify_unnoted(&mut self, path: Vec<u8>, stat: Option<&FileStat>) -> Classification {
        let classified = self.classify_change(path, stat);
        classified.unwrap_or_else(|(exclusion, path)| Classification::of(exclusion, path))
    }

    fn classify_change(
        &mut self,
        path: Vec<u8>,
        stat: Option<&FileStat>,
    ) -> Result<Classification, (Exclusion, Vec<u8>)> {
        if let Some(name) = self.known_name(&path) {
            self.see_again(name, &path, stat);
            return Ok(Classification::Recorded(name));
        }
        self.follow_git_file(&path, stat);
        match self.policy.exclusion(&path, stat) {
            Some(Exclusion::UnlessChanged(rule)) => {
                Ok(Classification::Recorded(self.add_name(path, stat, Some(rule))))
            }
            Some(exclusion) => Err((exclusion, path)),
            None => Ok(Classification::Recorded(self.add_name(path, stat, None))),
        }
    }

    /// The record of a path that has none. If `unless_changed` is given, that rule leaves it out until it is changed.
    pub fn add_name(
        &mut self,
        path: Vec<u8>,
        stat: Option<&FileStat>,
        unless_changed: Option<RuleId>,
    ) -> NameId {
        let (left_out, is_git_state) = (unless_changed.is_some(), unless_changed == Some(RuleId::GIT));
        let (sight, target) = self.sight(&path, stat);
        let name = Name { left_out, is_git_state, ..sight };
        let before = name.before;
        let name = self.ledger.names.add(path, name);
        self.name_inode(before, name, target);
        if let (Some(enforcer), Some(stat)) = (&mut self.enforcer, stat)
            && resolve::is_regular(stat)
            && stat.st_nlink > 1
        {
            enforcer.learn(stat, self.ledger.names.path(name), true);
        }
        name
    }

    /// Takes what is at a path now for what was there at first sight, if it was only looked up then, and a call that
    /// another recording observes has changed it since.
    fn see_again(&mut self, name: NameId, path: &[u8], stat: Option<&FileStat>) {
        let is_looked_up = self.ledger.names.get(name).operations.is_within(Operation::Existence.into());
        if !is_looked_up || self.ledger.changes(name) > 0 || !self.ledger.changed_by_others.remove(&name) {
            return;
        }
        let (Name { before, git, git_epoch, .. }, target) = self.sight(path, stat);
        let known = self.ledger.names.get_mut(name);
        (known.before, known.git, known.git_epoch) = (before, git, git_epoch);
        self.name_inode(before, name, target);
    }

    /// What is at a path now, and how Git knows it; also the target of a symlink.
    fn sight(&mut self, path: &[u8], stat: Option<&FileStat>) -> (Name, Option<Vec<u8>>) {
        let git = if self.byte_store.keep.has_inputs() {
            self.repositories.classify(path, stat, false)
        } else {
            self.repositories.observe(path);
            None
        };
        self.leave_out_git_dirs();
        let (stat, target) = with_target(path, stat);
        let before = stat.as_ref().map(|stat| self.ledger.inodes.meet(stat));
        (Name { before, git, git_epoch: self.repositories.epoch(), ..Name::default() }, target)
    }

    fn name_inode(&mut self, inode: Option<InodeId>, name: NameId, target: Option<Vec<u8>>) {
        if let Some(inode) = inode.map(|inode| self.ledger.inodes.get_mut(inode))
            && inode.name.is_none()
        {
            inode.name = Some(name);
            if target.is_some() {
                inode.extra_mut().target = target;
            }
        }
    }

    /// Asks Git about a path that the stopped call may change, where the level of the recording skipped that
    /// when the path was first seen.
    pub fn ask_git(&mut self, name: NameId, path: &[u8], stat: Option<&FileStat>) {
        let known = self.ledger.names.get(name);
        if self.byte_store.keep.has_inputs() || known.git.is_some() || known.changes > 0 {
            return;
        }
        let git = self.repositories.classify(path, stat, false);
        let git_epoch = self.repositories.epoch();
        let known = self.ledger.names.get_mut(name);
        (known.git, known.git_epoch) = (git, git_epoch);
    }

    /// The rule that leaves a name out, as long as nobody has changed it.
    pub fn left_out_by(&self, id: NameId) -> Option<RuleId> {
        let name = self.ledger.names.get(id);
        let is_left_out = name.left_out && name.changes == 0;
        is_left_out.then(|| self.policy.covering(self.ledger.names.path(id)).unwrap_or(RuleId::FOREIGN_OWNER))
    }

    /// Whether what was classified is in a git directory.
    pub fn is_git_state(&self, classification: &Classification) -> bool {
        match classification {
            Classification::Recorded(name) => self.ledger.names.get(*name).is_git_state,
            Classification::Suppressed(rule, _) => *rule == RuleId::GIT,
            Classification::Own => false,
        }
    }

    /// Forgets what is known of names: a symlink, a directory or a mount has moved.
    pub fn forget_names(&mut self) {
        self.resolver.forget();
        self.lookups.forget();
    }

    /// The magic link by which an access reaches an object without resolving a name of it.
    pub fn magic_link(&mut self, caller: Caller, access: &Access) -> Option<Vec<u8>> {
        match &access.file {
            FileRef::Descriptor(fd) => Some(proc_fd::link(caller.tid, *fd).into_bytes()),
            FileRef::Path { .. } => {
                let named = self.locate(caller, &Access { follow: false, ..access.clone() }).ok()?;
                named.stat.as_ref().is_some_and(resolve::is_on_procfs).then_some(named.path)
            }
            FileRef::WorkingDirectory => None,
        }
    }

    /// Whether a place may have no name only because a call in flight was changing names on the way to it.
    pub fn is_doubtful(&self, caller: Caller, access: &Access, unseen: &Unseen) -> bool {
        if !self.ledger.in_flight.changes_paths() {
            return false;
        }
        match (unseen, &access.file) {
            (
                Unseen::Unresolved(
                    Unresolved::NotADirectory(_) | Unresolved::Loop(_) | Unresolved::Denied(..),
                ),
                _,
            ) => true,
            // It may be losing or getting a name; what the tree itself has made never had one that matters.
            (Unseen::Unresolved(Unresolved::Nameless), FileRef::Descriptor(fd)) => {
                let file = rustix::fs::stat(proc_fd::link(caller.tid, *fd));
                file.is_ok_and(|file| self.ledger.inodes.of(&file).is_some())
            }
            // A call may be mounting there, and what it mounts need not be served.
            (Unseen::Unresolved(Unresolved::Served(_)), _) => self.mounts.is_mounting(),
            (Unseen::Unresolved(_) | Unseen::InForeignMountNamespace(_) | Unseen::Private(..), _) => false,
        }
    }

    /// Whether a call may wait at what is there: an open for the other end of a FIFO or for a device, a
    /// connect for room, any call for whoever serves the filesystem.
    pub fn may_wait(&mut self, effect: Effect, path: &[u8], stat: Option<&FileStat>) -> bool {
        /// Null, zero, random and the like (mem(4), null(4)).
        const MEMORY_DEVICES: u32 = 1;
        let Some(stat) = stat else { return false };
        let waits = match (effect, stat.st_mode & libc::S_IFMT) {
            (Effect::Open(open), _) if open.path_only => false,
            (Effect::Open(_), libc::S_IFCHR) => libc::major(stat.st_rdev) != MEMORY_DEVICES,
            // With both ends open it waits for nobody, either (fifo(7)).
            (Effect::Open(open), libc::S_IFIFO) => !(open.nonblocking || open.read && open.write),
            (Effect::Open(_), libc::S_IFBLK) => true,
            (Effect::Query, libc::S_IFSOCK) => true,
            _ => false,
        };
        waits || self.byte_store.filesystems.of(stat.st_dev, path) == Filesystem::Served
    }
}

/// What is at `path`, with its target if it is a symlink: one that another thread removes or replaces while
/// we ask is what came after it.
fn with_target(path: &[u8], stat: Option<&FileStat>) -> (Option<FileStat>, Option<Vec<u8>>) {
    let mut stat = stat.copied();
    for _ in 0..8 {
        if !stat.as_ref().is_some_and(resolve::is_symlink) {
            return (stat, None);
        }
        if let Ok(target) = rustix::fs::readlink(path, Vec::new()) {
            return (stat, Some(target.into_bytes()));
        }
        stat = fs::lstat(path).ok().flatten();
    }
    (None, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlink_that_is_gone_or_replaced_meanwhile_is_what_came_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("l");
        let bytes = path.as_os_str().as_encoded_bytes();
        std::os::unix::fs::symlink("target", &path).unwrap();
        let link = fs::lstat(bytes).unwrap();
        assert_eq!(with_target(bytes, link.as_ref()).1.unwrap(), b"target");
        std::fs::remove_file(&path).unwrap();
        assert!(with_target(bytes, link.as_ref()).0.is_none());
        std::fs::write(&path, "").unwrap();
        let (stat, target) = with_target(bytes, link.as_ref());
        assert!(resolve::is_regular(&stat.unwrap()) && target.is_none());
    }
}
