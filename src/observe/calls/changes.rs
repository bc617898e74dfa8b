//! Calls that can change something: prepared at their entry, judged by their result.
//!
//! What a call may destroy is protected before the tracee is resumed; nothing is recorded before the call has
//! succeeded, or failed in a way that says something. A call that conflicts with one in flight is postponed.
//! Neighbours: `recorder.rs` calls in here, `rename.rs` knows what a moved directory takes along, the ledger
//! takes what has changed.

use std::time::Duration;

use smallvec::SmallVec;

use super::effects::{Meaning, meaning};
use super::exec::PendingExec;
use super::new_names::LinkedFile;
use super::part::Part;
use super::sockets::address_to_listen_at;
use super::ways::opening;
use crate::fs::{self, FileStat};
use crate::observe::ledger::apply::{Change, Kind};
use crate::observe::ledger::ids::ProcessId;
use crate::observe::ledger::in_flight::{CallId, Footprint};
use crate::observe::ledger::inodes::Content;
use crate::observe::ledger::now_us;
use crate::observe::ledger::protect::Filesystems;
use crate::observe::mounts::{PendingMountPoint, PrivateId, makes_detached_mount};
use crate::observe::network;
use crate::observe::processes::Rights;
use crate::observe::recording::Recording;
use crate::observe::resolve::view::Unseen;
use crate::observe::resolve::{self, Resolved, Unresolved};
use crate::snapshot::{BlobOmitted, NetworkAddress, WarningKind};
use crate::trace::observer::{Caller, Decision, Errno, SyscallEntry};
use crate::trace::proc_status::Activity;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{
    self, Access, DecodedSyscall, Effect, OpenFlags, SocketOperation, Special, SyscallRow,
};

/// What is kept of a call from its entry to its result.
#[derive(Debug, Default)]
pub struct Pending {
    pub parts: SmallVec<[Part; 2]>,
    /// The private mounts that it changes, and whether paths may lead elsewhere after that.
    private: SmallVec<[(PrivateId, bool); 2]>,
    exec: Option<Box<PendingExec>>,
    special: Option<Special>,
    /// The call's name, for messages.
    name: &'static str,
    /// An open for reading whose path another thread may have rewritten: the file may be another one.
    opens: bool,
    /// An open of what rules may forbid.
    enforced: Option<OpenFlags>,
    /// The file that it is to give a name by a descriptor, for which another thread may exchange another one.
    linked: Option<LinkedFile>,
    /// What a call of our own program does.
    own: Option<Box<OwnCall>>,
    /// Its place among the calls in flight, where others may have to wait for it.
    call: CallId,
    /// Where it mounts or unmounts.
    mount_point: Option<PendingMountPoint>,
    /// The address that it binds a socket to.
    bound: Option<NetworkAddress>,
}

/// What a call of our own program does to names, if it succeeds.
#[derive(Debug, Default)]
pub struct OwnCall {
    /// What loses its last name: its inode number may be another's from then on.
    pub gone: Vec<FileStat>,
    /// The names that come, go or stand for something else then.
    pub names: Vec<Vec<u8>>,
}

impl Pending {
    /// For a read-only call that was judged at its entry: `opens` if it opens something and another thread may rewrite
    /// its path, `enforced` if its paths must lead to what was judged, since rules are enforced.
    pub fn of_read_only_call(
        name: &'static str,
        call: CallId,
        opens: bool,
        enforced: Option<OpenFlags>,
    ) -> Pending {
        Pending { name, opens, enforced, call, ..Pending::default() }
    }

    /// Of a call of our own program, of whose paths nothing is recorded.
    pub fn of_own_call(name: &'static str, special: Option<Special>, call: CallId, own: OwnCall) -> Pending {
        Pending { special, name, own: Some(Box::new(own)), call, ..Pending::default() }
    }
}

/// An access of a call, and the place that it names.
pub type Located<'a> = (&'a Access, Result<Resolved, Unseen>);

/// What others have to know of a call.
#[derive(Debug, Default)]
pub struct Announcement {
    /// The names that it walks and changes.
    pub footprint: Footprint,
    /// It may wait for something outside.
    pub waits: bool,
    /// A path may have led nowhere only because of a call in flight.
    pub doubtful: bool,
}

/// Bytes that a call may destroy and that can't be kept.
#[derive(Debug)]
pub struct Loss {
    /// The path of the file.
    pub path: Vec<u8>,
    /// Why they can't be kept.
    pub reason: BlobOmitted,
}

/// What the result of a call says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// It did what it does.
    Done,
    /// It failed, and told whether something exists.
    Refused,
    /// It told nothing: EFAULT, ENOTDIR, or it will be restarted.
    Nothing,
}

impl Recording {
    /// How a call with this footprint is postponed, if it has to wait for another one.
    pub fn postponed_behind_others(&mut self, footprint: &Footprint) -> Option<Decision<Pending>> {
        /// How long a thread may run after an open before it is made to stop.
        const PATIENCE: Duration = Duration::from_millis(2);
        let in_flight = &mut self.ledger.in_flight;
        if !in_flight.conflicts(footprint) {
            return None;
        }
        let mut running = None;
        for (thread, since) in in_flight.unseen_in_the_way(footprint) {
            match Activity::of(thread) {
                Activity::Waits(Some(number))
                    if syscalls::row_of(number).is_some_and(SyscallRow::is_open) => {}
                Activity::Waits(_) | Activity::Gone => in_flight.end_unseen(thread),
                Activity::Runs if since.elapsed() >= PATIENCE => running = Some(thread),
                Activity::Runs => {}
            }
        }
        let postponed = running.map_or(Decision::Postpone, Decision::PostponeBehind);
        in_flight.conflicts(footprint).then_some(postponed)
    }

    /// Protects everything that a call may destroy, or postpones the call if it has to wait for another one.
    pub fn prepare(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        // Such a call matters to what was only appended to, and names nothing else.
        let rewrites = |access: &Access| access.effect == Effect::Rewrite;
        if !self.ledger.appends && call.decoded.accesses.iter().any(rewrites) {
            return Decision::Continue;
        }
        let located = self.locate_all(caller, call);
        if located.iter().any(confines_itself) {
            self.processes.set_traits(caller.tgid, |traits| traits.rights = Rights::Others);
        }
        if let Some(path) = self.changed_in_library(&located) {
            return self.refuse_library(caller, call.name, &path);
        }
        let Announcement { footprint, waits, doubtful } = self.announcement(caller, &located);
        let process = self.processes.id(caller.tgid);
        let postponed = self.postponed_behind_others(&footprint);
        if doubtful || postponed.is_some() {
            if !call.overdue {
                return postponed.unwrap_or(Decision::Postpone);
            }
            if !footprint.walked.is_empty() {
                self.warn_overtaken(process, &footprint);
            }
            // Where it leads is not known.
            if self.enforcer.is_some() {
                return Decision::Refuse(Errno(libc::EACCES));
            }
        }
        if let Some(errno) = self.enforce(caller, call, &located) {
            return Decision::Refuse(errno);
        }
        self.learn_names(&located);
        let linked = self.link_by_descriptor(caller, &located);
        if let Some(Special::Closes { mode }) = call.decoded.special {
            self.look_before_it_closes(&located, mode);
        }
        if unmounts(call.decoded) {
            self.byte_store.capture.release_files();
        }
        let on_loss = self.byte_store.capture.on_loss();
        let mut parts = SmallVec::<[Part; 2]>::new();
        let (mut unnamed, mut loss) = (None, None);
        let mut private = SmallVec::new();
        // Of the places that such a call names the last is where it mounts.
        let is_mount = |(access, _): &&(&Access, _)| access.effect == Effect::MountPoint;
        let mount_point = match call.decoded.special {
            Some(Special::Namespace) => {
                located.iter().rfind(is_mount).and_then(|(_, place)| mount_point_at(place))
            }
            _ => None,
        };
        let mut bound = call.decoded.sockets.first().and_then(network::address_of);
        if let Some(NetworkAddress::Unix(name)) = &mut bound
            && let Some(found) = located.first().and_then(|(_, place)| name_of(place))
        {
            *name = found;
        }
        for (access, resolved) in located {
            match resolved {
                Ok(resolved) => {
                    let strict = access.resolve.strict;
                    if let Some(layers) = self.changed_layers(process, access.effect, &resolved) {
                        self.prepare_copy_up(&mut parts, access.effect, resolved, &layers, on_loss);
                        continue;
                    }
                    let part = self.prepare_part(access.effect, resolved, on_loss);
                    parts.push(Part { strict, ..part });
                }
                // What it only reads is counted where read-only calls are judged.
                Err(Unseen::Private(..)) if call.decoded.is_read_only() => {}
                Err(unseen) => {
                    if let Unseen::Private(place) = &unseen
                        && changes_private(access.effect, place.stat.as_ref())
                    {
                        private.push((place.mount, meaning(access.effect, place.stat.as_ref()).moves));
                    }
                    loss = loss.or(self.threaten_nameless(caller, process, access, &unseen).err());
                    unnamed = self.unseen_program(caller, access, &unseen);
                    self.unseen(process, unseen);
                }
            }
        }
        self.prepare_moves(&mut parts);
        if let Some(errno) = self.enforce_beneath(caller, &parts) {
            self.release_parts(parts);
            return Decision::Refuse(errno);
        }
        let loss = loss.or_else(|| {
            parts.iter().find_map(|part| Some(Loss { path: part.path.clone(), reason: part.loss? }))
        });
        if let Some(loss) = loss {
            return self.refuse(process, call, parts, &loss);
        }
        let exec = match parts.first() {
            Some(part) if part.effect == Effect::Execute => {
                Some((part.path.clone(), fs::open_regular(&part.path).ok()))
            }
            _ => unnamed,
        };
        let exec = exec
            .map(|(exe, file)| Box::new(self.prepare_exec(caller, call.decoded, &call.memory, exe, file)));
        if let Some(errno) = exec.as_ref().and_then(|exec| self.enforce_interpreters(caller, exec)) {
            self.release_parts(parts);
            return Decision::Refuse(errno);
        }
        self.journal_call(process, &parts);
        let special = call.decoded.special;
        if let Some(Special::Listen { fd }) = special {
            bound = address_to_listen_at(caller, fd);
        }
        // Even one whose place has no name of ours.
        let moves = special == Some(Special::Namespace)
            || call.decoded.accesses.iter().any(|access| meaning(access.effect, None).moves)
            || parts.iter().any(|part| part.meaning().moves);
        let wanted = moves
            || !parts.is_empty()
            || !private.is_empty()
            || !footprint.walked.is_empty()
            || exec.is_some()
            || bound.is_some()
            || special.is_some_and(is_known_by_result);
        if !wanted {
            return Decision::Continue;
        }
        let mount_point = mount_point.map(|(point, name)| {
            let view = self.view_of(caller);
            let point = self.mounts.begins(&point, name, view.as_deref());
            self.set_served();
            point
        });
        let opening = opening(call.decoded);
        let reads = opening.is_some_and(|open| open.is_read_only() && open.read);
        let opens = reads && self.processes.traits(caller.tgid).shares_paths();
        let enforced = opening.filter(|_| self.enforcer.is_some());
        // Nobody waits for a call that may wait for something outside.
        let footprint = if waits { Footprint::default() } else { footprint };
        let id = self.ledger.in_flight.begin(footprint, moves);
        self.resolver.pause(self.ledger.in_flight.moves());
        Decision::AwaitResult(Pending {
            parts,
            private,
            exec,
            special,
            name: call.name,
            opens,
            enforced,
            linked,
            own: None,
            call: id,
            mount_point,
            bound,
        })
    }

    /// The path in the library that a call would change, or that of a directory above it that it would move.
    fn changed_in_library(&self, located: &[Located<'_>]) -> Option<Vec<u8>> {
        located.iter().find_map(|(access, place)| {
            let place = place.as_ref().ok()?;
            let meaning = meaning(access.effect, place.stat.as_ref());
            let renames = matches!(access.effect, Effect::RenameFrom { .. } | Effect::RenameTo { .. });
            let links = access.effect == Effect::HardLinkFrom;
            let changes = meaning.changes || meaning.changes_name || links;
            (changes && self.policy.is_of_library(&place.path, renames)).then(|| place.path.clone())
        })
    }

    /// Before a chmod(2) that hides from us what the tree has changed, a file or what is in a directory, takes the states of
    /// that.
    fn look_before_it_closes(&mut self, located: &[Located<'_>], mode: u32) {
        let names = &self.ledger.names;
        let is_changed = |name| self.ledger.changes(name) > 0;
        let hides_changes = |(_, place): &Located<'_>| {
            let Ok(Resolved { path, stat: Some(stat), .. }) = place else { return false };
            if resolve::is_directory(stat) {
                mode & libc::S_IXUSR == 0 && names.below(path).any(is_changed)
            } else {
                mode & libc::S_IRUSR == 0 && names.find(path).is_some_and(is_changed)
            }
        };
        if !rustix::process::geteuid().is_root() && located.iter().any(hides_changes) {
            self.take_interim_states();
        }
    }

    /// Refuses a call that would change the library: `rm -rf ~` must not take the recordings with it.
    fn refuse_library(&mut self, caller: Caller, name: &str, path: &[u8]) -> Decision<Pending> {
        let process = self.processes.id(caller.tgid);
        self.warnings.note(WarningKind::Library, Some(process), || {
            format!("{name} of {} was refused (EPERM): it is the library's", String::from_utf8_lossy(path))
        });
        Decision::Refuse(Errno(libc::EPERM))
    }

    /// Resolves what each access of a call names, at its entry.
    pub fn locate_all<'a>(&mut self, caller: Caller, call: &SyscallEntry<'a>) -> SmallVec<[Located<'a>; 2]> {
        call.decoded.accesses.iter().map(|access| (access, self.locate_at_entry(caller, access))).collect()
    }

    /// Refuses a call, before anything of it has happened, since it may destroy bytes that can't be kept.
    fn refuse(
        &mut self,
        process: ProcessId,
        call: &SyscallEntry<'_>,
        parts: SmallVec<[Part; 2]>,
        Loss { path, reason }: &Loss,
    ) -> Decision<Pending> {
        let errno = match reason {
            // The file may just have been replaced: the call is decided again.
            BlobOmitted::ChangedWhileReading if !call.overdue => {
                self.release_parts(parts);
                return Decision::Postpone;
            }
            BlobOmitted::ChangedWhileReading => libc::EBUSY,
            BlobOmitted::Unreadable | BlobOmitted::Withheld => libc::EACCES,
            BlobOmitted::NoSpace => libc::ENOSPC,
            BlobOmitted::TooLarge => libc::EFBIG,
        };
        self.byte_store.capture.losses().refused(call.name, path, *reason);
        self.warnings.note(WarningKind::ContentOmitted, Some(process), || {
            let path = String::from_utf8_lossy(path);
            format!("{} of {path} was refused, since its bytes can't be kept ({})", call.name, reason.name())
        });
        for part in &parts {
            self.cross(process, &part.crossed);
            self.refused(process, part);
        }
        self.release_parts(parts);
        Decision::Refuse(Errno(errno))
    }

    /// What others have to know of a call that is about to be made.
    pub fn announcement(&mut self, caller: Caller, located: &[Located<'_>]) -> Announcement {
        let traits = self.processes.traits(caller.tgid);
        let mut announcement = Announcement::default();
        for (access, resolved) in located {
            match resolved {
                Ok(resolved) => {
                    announcement.waits |= matches!(access.effect, Effect::Open(_))
                        && self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref());
                    announcement.footprint.add(access.effect, resolved);
                    announcement.footprint.add_working_directory(caller, traits, access);
                }
                Err(unseen) => {
                    announcement.doubtful |= self.is_doubtful(caller, access, unseen);
                    let names = match unseen {
                        Unseen::Unresolved(unresolved) => unresolved.names(),
                        Unseen::InForeignMountNamespace(_) | Unseen::Private(..) => Vec::new(),
                    };
                    // It fails for as long as nobody changes these.
                    if !names.is_empty() {
                        announcement.footprint.walked.extend(names);
                        announcement.footprint.add_working_directory(caller, traits, access);
                    }
                }
            }
        }
        announcement
    }

    /// Makes the bytes of a file safe that a call may change in place and that has no recorded name: it was
    /// removed, or has been replaced, while a descriptor stood for it.
    pub fn threaten_nameless(
        &mut self,
        caller: Caller,
        process: ProcessId,
        access: &Access,
        unseen: &Unseen,
    ) -> Result<(), Loss> {
        if !matches!(unseen, Unseen::Unresolved(Unresolved::Nameless)) || access.effect == Effect::Rewrite {
            return Ok(());
        }
        let Some(link) = self.magic_link(caller, access) else { return Ok(()) };
        let Ok(stat) = rustix::fs::stat(link.as_slice()) else { return Ok(()) };
        let meaning = meaning(access.effect, Some(&stat));
        if !matches!(meaning.kind, Kind::Written | Kind::Attributes) || !resolve::is_regular(&stat) {
            return Ok(());
        }
        let on_loss = self.byte_store.capture.on_loss();
        let threatened = self.protector().try_threaten(&stat, on_loss);
        // What the tree has made is nobody's before-state.
        let Some(id) = self.ledger.inodes.of(&stat) else { return Ok(()) };
        threatened.map_err(|reason| Loss { path: self.protector().path_of(id).to_vec(), reason })?;
        let inode = self.ledger.inodes.get(id);
        let kept = inode.written || matches!(inode.content, Content::Kept(_) | Content::Read(_));
        let Meaning { kind, operations, .. } = meaning;
        let stat = Some(&stat);
        let (by, began_us) = (process, now_us());
        self.apply(Change { name: None, stat, kind, operations, by, by_name: false, began_us });
        if !kept && kind == Kind::Written {
            self.warnings.lost(WarningKind::LateBeforeState, Some(process), || {
                "a file was changed through a descriptor after its name had gone".to_owned()
            });
        }
        Ok(())
    }

    /// Warns that a call continues although another one, which takes too long, may change what it names.
    pub fn warn_overtaken(&mut self, process: ProcessId, footprint: &Footprint) {
        self.warnings.lost(WarningKind::PathChangedAfterCheck, Some(process), || {
            let path = footprint.walked.first().map_or(&b""[..], Vec::as_slice);
            let path = String::from_utf8_lossy(path);
            format!(
                "{path} was used while a call that did not end was renaming or removing a name on the way to it"
            )
        });
    }

    /// Records what a call did, now that its result is known; none where its thread died in it.
    pub fn conclude(&mut self, caller: Caller, pending: Pending, result: Option<i64>) {
        let process = self.processes.id(caller.tgid);
        let Pending {
            mut parts,
            private,
            exec,
            special,
            name,
            opens,
            enforced,
            linked,
            own,
            call,
            mount_point,
            bound,
        } = pending;
        if let (Some(open), Some(fd)) = (enforced, result.and_then(|result| i32::try_from(result).ok()))
            && fd >= 0
        {
            self.enforce_opened(caller, process, open, parts.first(), fd);
        }
        if let Some(linked) = linked {
            self.enforce_linked(caller, process, &linked, result);
        }
        if let Some(address) = bound {
            let error = result.filter(|result| *result < 0).and_then(|result| i32::try_from(-result).ok());
            self.note_socket_use(process, SocketOperation::Bind, address, error);
        }
        if let Some(own) = own {
            self.conclude_own_call(&own, result.is_some_and(|result| result >= 0));
        }
        if special == Some(Special::Namespace) {
            self.mounts_changed(caller, name, mount_point.as_ref());
            if makes_detached_mount(name) && result.is_some_and(|fd| fd >= 0) {
                self.mounts.note_moved();
            }
        }
        self.not_decoded(caller, process, special, name, result);
        if matches!(special, Some(Special::Credentials | Special::Namespace)) && result.is_some() {
            self.compare_credentials(caller);
        }
        self.descriptor_came(caller, process, special, result);
        match judge(&parts, !private.is_empty(), result) {
            Judgement::Nothing => {}
            Judgement::Refused => {
                for part in &parts {
                    self.cross(process, &part.crossed);
                    if !stopped_on_the_way(part, result) {
                        self.refused(process, part);
                    }
                }
                // The program is there: an interpreter is not.
                if let (Some(exec), Some(ENOENT)) = (exec, result) {
                    self.missed_interpreters(process, exec.interpreters);
                }
            }
            Judgement::Done => {
                for part in &parts {
                    self.cross(process, &part.crossed);
                    self.learn_result(part);
                }
                for (mount, moves) in private {
                    self.mounts.private_changed(mount);
                    if moves {
                        self.lookups.forget();
                    }
                }
                match parts.as_mut_slice() {
                    [from, to] if matches!(from.effect, Effect::RenameFrom { .. }) => {
                        self.renamed(process, from, to);
                    }
                    parts => {
                        for part in &mut *parts {
                            self.apply_part(caller, process, part, result);
                        }
                        let from = parts.iter().find(|part| part.effect == Effect::HardLinkFrom);
                        if let (Some(from), Some(to)) = (from, parts.last()) {
                            self.connect_link(&from.classification, &to.classification);
                        }
                    }
                }
                if opens && let Some(fd) = result.and_then(|fd| i32::try_from(fd).ok()) {
                    self.check_opened_for_reading(caller, process, fd);
                }
                if special == Some(Special::Namespace) {
                    if let Some(PendingMountPoint { covered: Some(name), .. }) = &mount_point {
                        self.ledger.mounted_on(name, process);
                    }
                    self.root_changed();
                    self.forget_names();
                }
            }
        }
        self.end_call(parts, call);
    }

    /// Notes that a call is over: others need not wait for it, and what it did not destroy need not be kept.
    pub fn end_call(&mut self, parts: SmallVec<[Part; 2]>, call: CallId) {
        self.release_parts(parts);
        self.ledger.in_flight.end(call);
        self.resolver.pause(self.ledger.in_flight.moves());
    }

    /// Gives back what a call has claimed and does not need any more.
    fn release_parts(&mut self, parts: SmallVec<[Part; 2]>) {
        for id in parts.iter().filter_map(|part| part.sets_times) {
            self.ledger.inodes.get_mut(id).times_in_flight -= 1;
        }
        self.protector().release(parts.into_iter().filter_map(|part| part.protected));
    }

    /// A call that is not decoded may have done anything, unless the kernel does not have it
    /// (ENOSYS; for an ioctl ENOTTY): programs try those.
    pub fn not_decoded(
        &mut self,
        caller: Caller,
        process: ProcessId,
        special: Option<Special>,
        name: &str,
        result: Option<i64>,
    ) {
        const ENOSYS: i64 = -(libc::ENOSYS as i64);
        const ENOTTY: i64 = -(libc::ENOTTY as i64);
        const EBUSY: i64 = -(libc::EBUSY as i64);
        let refused = special == Some(Special::Unmodelled) && matches!(result, Some(..0));
        if refused || matches!(result, Some(ENOSYS | ENOTTY)) {
            return;
        }
        let who = caller.tgid;
        match special {
            Some(Special::Unmodelled) => {
                self.warnings.lost(WarningKind::UnmodelledSyscall, Some(process), || {
                    format!("process {who} made {name}, which is not modelled")
                });
            }
            Some(Special::Ptrace { thread: Some(thread) }) if result == Some(0) => {
                self.warnings.lost(WarningKind::UnmodelledSyscall, Some(process), || {
                    format!("process {who} traces process {thread}, which is not recorded")
                });
            }
            Some(Special::Compat) => self.warnings.lost(WarningKind::CompatSyscall, Some(process), || {
                format!("process {who} made 32-bit or x32 calls, which are not decoded")
            }),
            Some(Special::Filter { listener: true, .. }) => match result {
                // A chain of filters has one listener, and ours answers read-only calls.
                Some(EBUSY) => self.warnings.note(WarningKind::Listener, Some(process), || {
                    format!(
                        "process {who} asked for a listener and was refused (--mechanism stops allows it)"
                    )
                }),
                Some(..0) => {}
                _ => self.warnings.lost(WarningKind::Listener, Some(process), || {
                    format!("process {who} installed a filter with a listener, whose holder may act for it")
                }),
            },
            _ => {}
        }
    }

    /// Learns what a call has mounted or unmounted.
    pub fn mounts_changed(&mut self, caller: Caller, name: &str, point: Option<&PendingMountPoint>) {
        let changed = self.mounts.update();
        self.mounts.note(&changed, self.ledger.names.next());
        if let Some(point) = point {
            self.mounts.ended(point);
        }
        if matches!(name, "mount" | "move_mount") {
            self.note_overlays(caller);
        }
        self.set_served();
        for point in changed.came.iter().chain(&changed.went) {
            self.resolver.mounts_changed(&point.point);
            // A device number is used again by the next filesystem that has none of its own.
            self.byte_store.filesystems = Filesystems::default();
        }
    }

    /// A call may have changed the root of other processes, too: of those that share it (CLONE_FS).
    pub fn root_changed(&mut self) {
        let living: Vec<Tid> = self.processes.living().collect();
        for process in living {
            let root = rustix::fs::readlink(format!("/proc/{process}/root"), Vec::new());
            if root.is_ok_and(|root| root.as_bytes() != b"/") {
                self.processes.set_traits(process, |traits| traits.in_foreign_mount_namespace = true);
            }
        }
    }

    /// A process has executed a program: the call that did it has succeeded.
    pub fn executed(&mut self, caller: Caller, pending: Option<Pending>) {
        let process = self.processes.id(caller.tgid);
        self.note_own_program(caller);
        let Some(Pending { parts, mut exec, special, name, call, .. }) = pending else {
            return self.compare_credentials(caller);
        };
        // A 32-bit execve is not decoded, and does not return to be concluded.
        self.not_decoded(caller, process, special, name, Some(0));
        if let Some(exec) = &mut exec {
            self.find_what_runs(caller, exec);
            self.enforce_executed(caller, process, exec);
        }
        if !exec.as_ref().is_some_and(|exec| self.keeps_credentials(caller, &parts, exec)) {
            self.compare_credentials(caller);
        }
        if let Some(mut exec) = exec {
            exec.image.interpreters = exec.of_scripts();
            for part in &parts {
                self.cross(process, &part.crossed);
                if let Some(stat) = &part.stat {
                    self.note_set_id(caller, &part.path, stat);
                }
                self.executed_file(process, &part.classification, &part.path, part.stat.as_ref());
            }
            for interpreter in exec.interpreters {
                self.cross(process, &interpreter.crossed);
                let classification = self.classify(interpreter.path.clone(), interpreter.stat.as_ref());
                self.executed_file(process, &classification, &interpreter.path, interpreter.stat.as_ref());
            }
            self.random_bytes.executed(caller.tgid);
            self.processes.execute(caller.tgid, exec.image);
            self.ledger.note_program(process);
            self.journal_process(process);
        }
        self.end_call(parts, call);
    }
}

/// Whether an access opens for writing the label that a security module gives a process.
fn confines_itself((access, place): &Located<'_>) -> bool {
    matches!(access.effect, Effect::Open(open) if open.write)
        && place.as_ref().is_ok_and(|place| is_security_label(&place.path))
}

/// Whether a file is the label that a security module gives a process (proc_pid_attr(5)).
fn is_security_label(path: &[u8]) -> bool {
    let mut components = path.split(|byte| *byte == b'/').skip(1);
    components.next() == Some(b"proc") && components.any(|component| component == b"attr")
}

/// Whether a call changes what is on a private mount, by what it does to a place.
fn changes_private(effect: Effect, stat: Option<&FileStat>) -> bool {
    let meaning = meaning(effect, stat);
    meaning.changes || meaning.changes_name && effect != Effect::MountPoint
}

/// The name of a place that may have no name of ours.
pub fn name_of(place: &Result<Resolved, Unseen>) -> Option<Vec<u8>> {
    match place {
        Ok(resolved) => Some(resolved.path.clone()),
        Err(Unseen::InForeignMountNamespace(path) | Unseen::Unresolved(Unresolved::Served(path))) => {
            Some(path.clone())
        }
        Err(Unseen::Private(place)) => Some(place.path.clone()),
        Err(Unseen::Unresolved(_)) => None,
    }
}

/// Where a call mounts at a place: the path in its thread's mount namespace, and the name here, if there is one.
fn mount_point_at(place: &Result<Resolved, Unseen>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    match place {
        Ok(Resolved { path, seen_at, .. }) => {
            Some((seen_at.as_ref().unwrap_or(path).clone(), Some(path.clone())))
        }
        Err(_) => Some((name_of(place)?, None)),
    }
}

/// Whether only its result tells what a call has done beyond the paths that it names.
fn is_known_by_result(special: Special) -> bool {
    match special {
        Special::UnnamedOpen { .. }
        | Special::Received { .. }
        | Special::Credentials
        | Special::Ptrace { .. }
        | Special::Unmodelled
        | Special::Compat
        | Special::Filter { listener: true, .. } => true,
        Special::IoUring
        | Special::FilterQuery
        | Special::Dispatch
        | Special::Filter { listener: false, .. }
        | Special::Namespace
        | Special::Untraced { .. }
        | Special::Listen { .. }
        | Special::Closes { .. }
        | Special::Landlock
        | Special::SecretMemory
        | Special::Unjudgeable => false,
    }
}

/// Whether a call may be refused where a file of a mount is open.
fn unmounts(decoded: &DecodedSyscall) -> bool {
    decoded.special == Some(Special::Namespace)
        && decoded.accesses.iter().any(|access| access.effect == Effect::MountPoint)
}

const ENOENT: i64 = -(libc::ENOENT as i64);

/// Whether openat2 says that it left the path before its end: at a mount or out of its directory
/// (EXDEV), at a symlink (ELOOP), where nothing was cached (EAGAIN).
fn stopped_on_the_way(part: &Part, result: Option<i64>) -> bool {
    const EXDEV: i64 = -(libc::EXDEV as i64);
    const ELOOP: i64 = -(libc::ELOOP as i64);
    const EAGAIN: i64 = -(libc::EAGAIN as i64);
    match result {
        Some(EXDEV | EAGAIN) => part.strict,
        // At its last component where that is a symlink that is not to be followed.
        Some(ELOOP) => part.strict && !part.stat.as_ref().is_some_and(resolve::is_symlink),
        _ => false,
    }
}

/// What the result of a call says that has these parts, and changes something on a private mount or does not.
fn judge(parts: &[Part], changes_private: bool, result: Option<i64>) -> Judgement {
    const EFAULT: i64 = -(libc::EFAULT as i64);
    const ENOTDIR: i64 = -(libc::ENOTDIR as i64);
    match result {
        Some(-4095..=-1) if parts.iter().any(|part| part.was_created_in_vain(result)) => Judgement::Done,
        // ERESTARTSYS and its variants: the kernel restarts the call.
        Some(EFAULT | ENOTDIR | -516..=-512) => Judgement::Nothing,
        Some(-4095..=-1) => Judgement::Refused,
        Some(_) => Judgement::Done,
        // Its thread died in it: of names the filesystem says whether it was in time.
        None if parts.iter().any(Part::may_be_done) || parts.is_empty() && changes_private => Judgement::Done,
        None => Judgement::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_security_modules_are_told_from_other_files() {
        let labels: [&[u8]; 2] = [b"/proc/1/attr/current", b"/proc/1/task/1/attr/apparmor/current"];
        let others: [&[u8]; 4] = [b"/home/proc/1/attr/current", b"/proc/1/attribute", b"/proc", b"/attr"];
        assert!(labels.iter().all(|path| is_security_label(path)));
        assert!(!others.iter().any(|path| is_security_label(path)));
    }
}
