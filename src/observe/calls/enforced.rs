//! Calls that rules forbid: they are refused at their entry, before anything of them has happened.
//!
//! A call that the kernel refuses anyway is left to it, so that its error is the one that the command gets alone.
//! Neighbours: `changes.rs` and `read_only.rs` ask here once the places of a call are known, `enforce.rs` has the rules.

use rustix::fs::{Access as Permission, AtFlags, CWD, StatVfsMountFlags};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use smallvec::SmallVec;

use super::changes::{Located, Pending, name_of};
use super::effects::meaning;
use super::exec::PendingExec;
use super::part::Part;
use super::sockets::address_to_listen_at;
use super::ways::{Way, fails_anyway, ways, ways_in_the_dark};
use crate::fs::{self, FileStat, parent_of};
use crate::observe::enforce::{Forbidden, Use, has_names, is_process_memory};
use crate::observe::ledger::ids::ProcessId;
use crate::observe::mounts::makes_detached_mount;
use crate::observe::network::MOST;
use crate::observe::processes::{OwnProgram, Rights};
use crate::observe::recording::Recording;
use crate::observe::resolve::view::Unseen;
use crate::observe::resolve::{self, Resolved, Unresolved};
use crate::policy::PathUseKind;
use crate::snapshot::{
    NetworkAddress, NetworkOperation, NetworkUse, Operation, PROTECTED, RefusedSubject, WarningKind,
};
use crate::trace::observer::{Caller, Decision, Errno, SyscallEntry};
use crate::trace::sys;
use crate::trace::syscalls::{Access, Effect, FileRef, OpenFlags, SocketOperation, Special};

/// What was forbidden of a call: what it is about, and the rule.
pub(super) type Refusals = SmallVec<[(RefusedSubject, String); 2]>;

/// A rule that forbids an operation on a path.
pub(super) fn refusal(path: &[u8], operation: Operation, rule: String) -> (RefusedSubject, String) {
    (RefusedSubject::Path { path: path.to_vec(), through: None, operation }, rule)
}

impl Recording {
    /// Refuses a call, if the rules that are enforced forbid any of it; all that they forbid is noted.
    pub fn enforce(
        &mut self,
        caller: Caller,
        call: &SyscallEntry<'_>,
        located: &[Located<'_>],
    ) -> Option<Errno> {
        self.enforcer.as_ref()?;
        // Another thread may be about to change the permissions: the call is not left to the kernel.
        let is_denied = |(access, place): &Located<'_>| {
            matches!(place, Err(Unseen::Unresolved(Unresolved::Denied(..))))
                && !ways_in_the_dark(access.effect).is_empty()
        };
        if located.iter().any(is_denied) {
            return Some(Errno(libc::EACCES));
        }
        if let Some(errno) = located.iter().find_map(|(access, place)| self.leads_nowhere(access, place)) {
            return Some(errno);
        }
        let mut refusals = Refusals::new();
        // What is there now says nothing of where such a link will lead.
        let is_exchangeable = |(access, place): &Located<'_>| {
            place.as_ref().is_ok_and(|place| self.exchangeable_link(caller, access, place).is_some())
        };
        if !fails_anyway(located) || located.iter().any(is_exchangeable) {
            for (access, place) in located {
                self.judge_place(caller, access, place, &mut refusals);
            }
            self.judge_new_names(located, &mut refusals);
        }
        if !refusals.is_empty()
            && let Some(errno) =
                self.denied_by_mount(caller, located).or_else(|| self.denied_by_permissions(caller, located))
        {
            return Some(errno);
        }
        let mut places = located.iter();
        for used in &call.decoded.sockets {
            let Some(mut address) = self.address_of(caller, used) else { continue };
            let mut stat = None;
            // The paths of a call are those of its addresses, in the same order.
            if let NetworkAddress::Unix(name) = &mut address
                && !name.starts_with(b"\0")
                && let Some((_, place)) = places.next()
            {
                // Nobody listens there, as the kernel will say: many programs ask a daemon that is not there.
                let is_absent = place.as_ref().is_ok_and(|place| place.stat.is_none());
                if is_absent && used.operation != SocketOperation::Bind {
                    continue;
                }
                stat = place.as_ref().ok().and_then(|place| place.stat.as_ref());
                *name = name_of(place).unwrap_or_else(|| std::mem::take(name));
            }
            self.judge_address(caller, used.operation, address, stat, &mut refusals);
        }
        if let Some(Special::Listen { fd }) = call.decoded.special
            && let Some(address) = address_to_listen_at(caller, fd)
        {
            self.judge_address(caller, SocketOperation::Bind, address, None, &mut refusals);
        }
        self.refuse_all(caller, refusals)
    }

    /// Refuses an execve, if rules forbid an interpreter that the kernel runs the program by.
    pub fn enforce_interpreters(&mut self, caller: Caller, exec: &PendingExec) -> Option<Errno> {
        self.enforcer.as_ref()?;
        let mut refusals = Refusals::new();
        let of_scripts = exec.of_scripts().len();
        for (at, interpreter) in exec.interpreters.iter().enumerate() {
            for way in ways(Effect::Execute, None) {
                // A recording takes the loader of a program for none.
                if way.kind == PathUseKind::Read || at < of_scripts {
                    let stat = interpreter.stat.as_ref();
                    self.judge_path(caller, way, &interpreter.path, stat, false, &mut refusals);
                }
            }
        }
        self.refuse_all(caller, refusals)
    }

    /// Refuses a rename, if rules forbid what it does to the paths beneath a directory; learns the names of what moves.
    pub fn enforce_beneath(&mut self, caller: Caller, parts: &[Part]) -> Option<Errno> {
        self.enforcer.as_ref()?;
        let mut refusals = Refusals::new();
        for (part, other) in parts.iter().zip(parts.iter().rev()) {
            for moved in &part.moved {
                let old = [part.path.as_slice(), &moved.relative].concat();
                let new = [other.path.as_slice(), &moved.relative].concat();
                if has_names(&moved.stat) {
                    self.learn_name(&old, &moved.stat);
                }
                for (path, operation) in [(old, Operation::Delete), (new, Operation::Write)] {
                    let way = Way::new(PathUseKind::Write, operation).of_name();
                    self.judge_path(caller, way, &path, Some(&moved.stat), false, &mut refusals);
                }
            }
        }
        self.refuse_all(caller, refusals)
    }

    /// Notes what is refused; the error of the call, if anything is.
    fn refuse_all(&mut self, caller: Caller, refusals: Refusals) -> Option<Errno> {
        if refusals.is_empty() {
            return None;
        }
        let process = self.processes.id(caller.tgid);
        for (subject, rule) in refusals {
            if self.enforcer.as_mut().is_some_and(|enforcer| enforcer.note(process, subject, rule).is_err()) {
                self.warnings.note(WarningKind::UnmodelledSyscall, Some(process), || {
                    format!("after {MOST} different refusals, others are not listed")
                });
            }
        }
        Some(Errno(libc::EACCES))
    }

    /// Refuses to use a place that no name tells, where there are rules about such uses.
    fn refuse_unnamed(&self, path: &[u8], ways: impl IntoIterator<Item = Way>, refusals: &mut Refusals) {
        for Way { kind, operation, .. } in ways {
            let rule = self.enforcer.as_ref().and_then(|rules| rules.forbids_unnamed(kind));
            refusals.extend(rule.map(|rule| refusal(path, operation, rule)));
        }
    }

    /// Refuses a use of the memory of a process: any write, and where rules are about reads, any read of memory that may be
    /// that of a process outside of the tree.
    fn refuse_memory(&self, path: &[u8], way: Way, refusals: &mut Refusals) {
        if way.kind == PathUseKind::Write || self.judges_reads() {
            refusals.push(refusal(path, way.operation, PROTECTED.to_owned()));
        }
    }

    fn judge_place(
        &mut self,
        caller: Caller,
        access: &Access,
        place: &Result<Resolved, Unseen>,
        refusals: &mut Refusals,
    ) {
        match place {
            Ok(place) => {
                let stat = place.stat.as_ref();
                if self.is_inherited(access, place) {
                    return;
                }
                if let Some(link) = self.exchangeable_link(caller, access, place) {
                    self.refuse_unnamed(link, ways_in_the_dark(access.effect), refusals);
                }
                if let Some(stat) = stat.filter(|stat| has_names(stat) && stat.st_nlink > 1) {
                    self.learn_name(&place.path, stat);
                }
                let is_memory = is_process_memory(&place.path);
                for way in ways(access.effect, stat) {
                    let writes = way.kind == PathUseKind::Write;
                    if is_memory && way.kind == PathUseKind::Read && !self.is_procfs_of_the_tree(&place.path)
                    {
                        self.refuse_memory(&place.path, way, refusals);
                    }
                    if let (true, Some(layers)) = (writes, &place.overlay) {
                        let upper = layers.upper_path();
                        let stat = fs::lstat(&upper).ok().flatten();
                        self.judge_path(caller, way, &upper, stat.as_ref(), false, refusals);
                        self.judge_copy_up(caller, access.effect, place, refusals);
                    } else if !(writes && self.is_procfs_of_the_tree(&place.path)) || is_memory {
                        self.judge_path(caller, way, &place.path, stat, false, refusals);
                    }
                }
                let moves = matches!(access.effect, Effect::RenameFrom { .. } | Effect::RenameTo { .. });
                if moves && self.enforcer.as_ref().is_some_and(|rules| rules.protects_beneath(&place.path)) {
                    refusals.push(refusal(&place.path, Operation::Delete, PROTECTED.to_owned()));
                }
            }
            Err(unseen) => self.judge_unseen(caller, access, unseen, refusals),
        }
    }

    /// Judges what an overlay copies to its upper directory, where it is another file: that is read.
    fn judge_copy_up(&mut self, caller: Caller, effect: Effect, place: &Resolved, refusals: &mut Refusals) {
        let (Some(stat), true) = (&place.stat, effect != Effect::Remove) else { return };
        if resolve::is_directory(stat) {
            let rule = self.enforcer.as_ref().and_then(|rules| rules.forbids_reading_beneath(&place.path));
            if let (Some(rule), Effect::RenameFrom { .. }) = (rule, effect) {
                refusals.push(refusal(&place.path, Operation::Read, rule));
            }
            return;
        }
        let way = Way { denied_only: true, ..Way::new(PathUseKind::Read, Operation::Read) };
        self.judge_path(caller, way, &place.path, Some(stat), false, refusals);
    }

    fn judge_unseen(&mut self, caller: Caller, access: &Access, unseen: &Unseen, refusals: &mut Refusals) {
        let named = match unseen {
            // It shows the files of other places, by no name of ours.
            Unseen::Private(place) if self.mounts.is_private_of(place.mount, "overlay") => place.path.clone(),
            // It is gone with its namespace, but a program that runs is one.
            Unseen::Private(place) => {
                let is_memory =
                    place.path.ends_with(b"/mem") && self.mounts.is_private_of(place.mount, "proc");
                for way in ways(access.effect, place.stat.as_ref()) {
                    if way.kind == PathUseKind::Execute {
                        self.judge_path(caller, way, &place.path, place.stat.as_ref(), false, refusals);
                    } else if is_memory {
                        self.refuse_memory(&place.path, way, refusals);
                    }
                }
                return;
            }
            Unseen::Unresolved(Unresolved::Nameless) => {
                return self.judge_nameless(caller, access, refusals);
            }
            Unseen::InForeignMountNamespace(path) | Unseen::Unresolved(Unresolved::Served(path)) => {
                path.clone()
            }
            Unseen::Unresolved(Unresolved::UnknownStart | Unresolved::TooDeep) => named_path(access),
            Unseen::Unresolved(_) => return,
        };
        let is_overlay = matches!(unseen, Unseen::Private(_));
        let enforcer = self.enforcer.as_ref();
        let is_free = |kind| enforcer.and_then(|rules| rules.forbids_unnamed(kind)).is_none();
        let ways =
            ways_in_the_dark(access.effect).into_iter().map(|way| match is_overlay && is_free(way.kind) {
                // A file is copied before it is changed.
                true => Way::new(PathUseKind::Read, Operation::Read),
                false => way,
            });
        self.refuse_unnamed(&named, ways, refusals);
    }

    /// Judges what has lost its name, or never had one, by the names that it is known to have had.
    fn judge_nameless(&mut self, caller: Caller, access: &Access, refusals: &mut Refusals) {
        let link = self.magic_link(caller, access);
        let is_outside = link.as_ref().is_some_and(|link| !self.is_procfs_of_the_tree(link));
        let object = link.and_then(|link| {
            Some((resolve::read_magic_link(&link).ok()?, rustix::fs::stat(link.as_slice()).ok()?))
        });
        // A link on the way may lead to something that has a name, and was exchanged while it was followed.
        let is_changed_through = match access.effect {
            Effect::Open(open) => open.truncate || open.create,
            Effect::Execute => false,
            // Whether it was one without any name, its link tells afterwards.
            Effect::HardLinkFrom => object.as_ref().is_none_or(|(_, stat)| stat.st_nlink > 0),
            _ => matches!(access.file, FileRef::Path { .. }),
        };
        let is_file = |stat: &FileStat| resolve::is_regular(stat) || resolve::is_directory(stat);
        if is_changed_through
            && object.as_ref().is_none_or(|(_, stat)| is_file(stat))
            && self.processes.traits(caller.tgid).shares_paths()
        {
            self.refuse_unnamed(&named_path(access), ways_in_the_dark(access.effect), refusals);
        }
        let Some((text, stat)) = object.filter(|(_, stat)| resolve::is_regular(stat)) else { return };
        // It may be what the recorder keeps for an undo.
        if is_outside {
            return self.refuse_unnamed(&named_path(access), ways_in_the_dark(access.effect), refusals);
        }
        // As the kernel shows what was removed while it was open.
        let removed = text.strip_suffix(b" (deleted)").filter(|_| stat.st_nlink == 0);
        for way in ways(access.effect, Some(&stat)) {
            let is_gone = way.kind != PathUseKind::Execute;
            self.judge_path(caller, way, &text, Some(&stat), is_gone, refusals);
            if let Some(name) = removed {
                let way = Way { denied_only: true, ..way };
                self.judge_path(caller, way, name, Some(&stat), false, refusals);
            }
        }
    }

    fn judge_path(
        &mut self,
        caller: Caller,
        way: Way,
        path: &[u8],
        stat: Option<&FileStat>,
        is_gone: bool,
        refusals: &mut Refusals,
    ) {
        let Some(enforcer) = &mut self.enforcer else { return };
        let Way { kind, operation, is_of_file, denied_only } = way;
        let allowed_only = operation == Operation::Directory && kind == PathUseKind::Read;
        let is_ours = self.policy.is_own(path);
        // Our own program works with the library and the snapshot; for all else, the rules hold for it, too.
        let is_exempt = is_ours
            && !enforcer.is_keyless(path)
            && self.processes.traits(caller.tgid).own_program != OwnProgram::No;
        let reads_content = is_ours
            && kind == PathUseKind::Read
            && operation != Operation::Directory
            && (is_gone && !is_exempt || self.policy.may_hold_content(path));
        let content = if reads_content { enforcer.forbids_content(path) } else { None };
        let elsewhere = if is_gone { Vec::new() } else { self.mounts.names_elsewhere(path) };
        let elsewhere = elsewhere.as_slice();
        let used = Use { kind, path, elsewhere, stat, is_of_file, denied_only, allowed_only, is_gone };
        let forbidden = content.or_else(|| if is_exempt { None } else { enforcer.forbids(used) });
        let Some(Forbidden { path: name, rule }) = forbidden else { return };
        let through = (name != path).then(|| path.to_vec());
        let subject = RefusedSubject::Path { path: name, through, operation };
        if !refusals.iter().any(|(known, by)| (known, by) == (&subject, &rule)) {
            refusals.push((subject, rule));
        }
    }

    /// Judges the use of a socket address, with the socket in the filesystem if it has one.
    fn judge_address(
        &mut self,
        caller: Caller,
        operation: SocketOperation,
        address: NetworkAddress,
        stat: Option<&FileStat>,
        refusals: &mut Refusals,
    ) {
        let ProcessId(process) = self.processes.id(caller.tgid);
        let operation = NetworkOperation::from(operation);
        let used = NetworkUse { process, operation, address, count: 1, errno: None };
        let rule = self.enforcer.as_ref().and_then(|rules| rules.forbids_address(&used, stat));
        let NetworkUse { address, operation, .. } = used;
        refusals.extend(rule.map(|rule| (RefusedSubject::Address { address, operation }, rule)));
    }

    /// The error of a call whose path leads nowhere. It is not left to the kernel: a descriptor on the way may be exchanged,
    /// or opened, by another thread or process.
    fn leads_nowhere(&mut self, access: &Access, place: &Result<Resolved, Unseen>) -> Option<Errno> {
        if ways_in_the_dark(access.effect).is_empty() {
            return None;
        }
        let errno = match place {
            Err(Unseen::Unresolved(Unresolved::NotADirectory(_))) => libc::ENOTDIR,
            Err(Unseen::Unresolved(Unresolved::Loop(_))) => libc::ELOOP,
            Err(Unseen::Unresolved(Unresolved::TooLong)) => libc::ENAMETOOLONG,
            Ok(place) if place.stat.is_none() && self.would_be_in_procfs(&place.path) => libc::ENOENT,
            Err(Unseen::Private(place))
                if place.stat.is_none() && self.mounts.is_private_of(place.mount, "proc") =>
            {
                libc::ENOENT
            }
            _ => return None,
        };
        Some(Errno(errno))
    }

    /// Whether the directory of a path is in a procfs, or would be if it was there.
    fn would_be_in_procfs(&mut self, path: &[u8]) -> bool {
        let mut above = std::iter::successors(parent_of(path), |path| parent_of(path));
        // What was not there may be there by now.
        let device_now = |path| Some(fs::lstat(path).ok()?.filter(resolve::is_directory)?.st_dev);
        let device = |path| self.resolver.device_of(path).or_else(|| device_now(path));
        let nearest = above.find_map(|path| Some((path, device(path)?)));
        nearest.is_some_and(|(path, device)| {
            self.byte_store.filesystems.is_pseudo(device, path) && resolve::is_in_procfs(path)
        })
    }

    /// The link on the way to a place that another thread or process could make lead elsewhere before the call is made:
    /// a descriptor, mapping, working directory, root or program in /proc. What is only opened or linked is looked at again
    /// afterwards.
    fn exchangeable_link<'p>(
        &self,
        caller: Caller,
        access: &Access,
        place: &'p Resolved,
    ) -> Option<&'p [u8]> {
        let is_looked_at_again = match (access.effect, &place.stat) {
            (Effect::Open(open), Some(stat)) => !open.truncate || !resolve::is_regular(stat),
            (Effect::Execute | Effect::HardLinkFrom, _) => true,
            _ => false,
        };
        if is_looked_at_again {
            return None;
        }
        let own = [format!("/proc/{}/", caller.tgid), format!("/proc/{}/", caller.tid)];
        let shares = self.processes.traits(caller.tgid).shares_paths();
        let link = place.crossed.iter().find(|link| {
            let Some(process) = parent_of(&link.path) else { return false };
            let name = &link.path[process.len()..];
            let is_exchanged = [&b"/fd"[..], b"/map_files"].iter().any(|links| process.ends_with(links))
                || [&b"/cwd"[..], b"/root", b"/exe"].contains(&name);
            let is_own = own.iter().any(|own| link.path.starts_with(own.as_bytes()));
            is_exchanged && (shares || !is_own) && resolve::is_in_procfs(process)
        })?;
        Some(&link.path)
    }

    /// Keeps a signal from leaving a core dump where rules forbid it.
    pub fn enforce_core_dump(&mut self, caller: Caller, place: &Result<Resolved, Unseen>) -> bool {
        if self.enforcer.is_none() {
            return false;
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
        let effect = Effect::Open(OpenFlags::from_raw(flags.cast_unsigned()));
        let (file, resolve) = (FileRef::WorkingDirectory, Default::default());
        let mut refusals = Refusals::new();
        self.judge_place(caller, &Access { file, effect, follow: false, resolve }, place, &mut refusals);
        let is_forbidden = self.refuse_all(caller, refusals).is_some();
        if is_forbidden && let Some(process) = Pid::from_raw(caller.tgid.0) {
            let none = Rlimit { current: Some(0), maximum: None };
            let limits = prlimit(Some(process), Resource::Core, none);
            // A hard limit can't be raised.
            if limits.is_err() {
                let _ = prlimit(Some(process), Resource::Core, Rlimit { maximum: Some(0), ..none });
            }
        }
        is_forbidden
    }

    /// Whether a call goes to a file that was open before the command, which whoever started it has chosen.
    fn is_inherited(&self, access: &Access, place: &Resolved) -> bool {
        let by_descriptor =
            matches!(access.file, FileRef::Descriptor(_)) || resolve::is_by_magic_link(&place.crossed);
        // The name may be another file's meanwhile.
        let is_same = |name| {
            let stat = place.stat.as_ref();
            let before = self.ledger.before(name).map(|inode| inode.before.identity());
            before == stat.map(|stat| (stat.st_dev, stat.st_ino))
        };
        let name = || self.ledger.names.find(&place.path);
        by_descriptor && name().is_some_and(|name| self.ledger.names.get(name).inherited && is_same(name))
    }

    /// The error of a call that changes something on a read-only mount. It is not left to the kernel: another thread
    /// may be about to mount it anew.
    fn denied_by_mount(&mut self, caller: Caller, located: &[Located<'_>]) -> Option<Errno> {
        let view = self.view_of(caller);
        let is_read_only = |place: &Resolved| match (&view, &place.seen_at) {
            (Some(view), Some(inner)) => self.mounts.is_read_only(view, inner),
            _ => {
                let existing = place.stat.is_some().then_some(place.path.as_slice());
                let found = existing.or_else(|| parent_of(&place.path)).map(rustix::fs::statvfs);
                found.is_some_and(|found| {
                    found.is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
                })
            }
        };
        let is_denied = located.iter().any(|(access, place)| {
            place.as_ref().is_ok_and(|place| {
                let ways = ways(access.effect, place.stat.as_ref());
                ways.iter().any(|way| way.kind == PathUseKind::Write) && is_read_only(place)
            })
        });
        is_denied.then_some(Errno(libc::EROFS))
    }

    /// The error with which the permissions deny a call to a thread with our own rights.
    fn denied_by_permissions(&self, caller: Caller, located: &[Located<'_>]) -> Option<Errno> {
        if self.processes.traits(caller.tgid).rights != Rights::Ours {
            return None;
        }
        let denied = located.iter().find_map(|(access, place)| {
            let place = place.as_ref().ok()?;
            let is_used = !ways(access.effect, place.stat.as_ref()).is_empty();
            if is_used { self.lacks_permission(access.effect, place) } else { None }
        });
        denied.map(Errno)
    }

    fn lacks_permission(&self, effect: Effect, place: &Resolved) -> Option<i32> {
        let denied = |path: &[u8], wanted| {
            rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS).err().map(|error| error.raw_os_error())
        };
        let uid = self.policy.uid;
        let keeps_name = |stat: &&FileStat| !meaning(effect, Some(stat)).changes_name;
        let Some(stat) = place.stat.as_ref().filter(keeps_name) else {
            let parent = parent_of(&place.path)?;
            return denied(parent, Permission::WRITE_OK | Permission::EXEC_OK).or_else(|| {
                let stat = place.stat.as_ref()?;
                let parent = fs::lstat(parent).ok().flatten()?;
                let is_sticky = parent.st_mode & libc::S_ISVTX != 0;
                (is_sticky && ![0, parent.st_uid, stat.st_uid].contains(&uid)).then_some(libc::EPERM)
            });
        };
        match effect {
            Effect::Open(open) => {
                let mut wanted = Permission::empty();
                wanted.set(Permission::READ_OK, open.read);
                wanted.set(Permission::WRITE_OK, open.write || open.truncate);
                denied(&place.path, wanted)
            }
            Effect::Truncate => denied(&place.path, Permission::WRITE_OK),
            Effect::Execute => denied(&place.path, Permission::EXEC_OK),
            Effect::Metadata if ![0, stat.st_uid].contains(&uid) => denied(&place.path, Permission::WRITE_OK),
            _ => None,
        }
    }

    /// Notes the names of the files that a call is about to give another name, or take one from.
    pub fn learn_names(&mut self, located: &[Located<'_>]) {
        if self.enforcer.is_none() {
            return;
        }
        for (access, place) in located {
            let Ok(Resolved { path, stat: Some(stat), .. }) = place else { continue };
            let is_renamed = matches!(
                access.effect,
                Effect::RenameFrom { .. } | Effect::HardLinkFrom | Effect::RenameTo { exchange: true, .. }
            );
            let is_lost = matches!(access.effect, Effect::Remove | Effect::RenameTo { exchange: false, .. });
            if has_names(stat) && (is_renamed || is_lost && stat.st_nlink > 1) {
                self.learn_name(path, stat);
            }
        }
    }

    /// Whether a file had a name before the tree did anything, as far as is known.
    pub(super) fn is_name_from_before(&self, path: &[u8], stat: &FileStat) -> bool {
        let before = self.ledger.names.find(path).map(|name| self.ledger.before(name));
        before.is_none_or(|before| {
            before.is_some_and(|inode| inode.before.identity() == (stat.st_dev, stat.st_ino))
        })
    }

    fn learn_name(&mut self, path: &[u8], stat: &FileStat) {
        let is_from_before = self.is_name_from_before(path, stat);
        if let Some(enforcer) = &mut self.enforcer {
            enforcer.learn(stat, path, is_from_before);
        }
    }

    /// Notes what a call that was made has done to the names of files.
    pub fn learn_result(&mut self, part: &Part) {
        let Some(enforcer) = &mut self.enforcer else { return };
        let makes = part.stat.is_none()
            && matches!(
                part.effect,
                Effect::Open(_) | Effect::MakeDirectory | Effect::MakeNode | Effect::MakeSymlink
            );
        let binds = matches!(part.effect, Effect::HardLinkTo | Effect::RenameTo { .. });
        if !(makes || binds) {
            return;
        }
        let Some(stat) = part.now() else { return };
        // A file that had no name when it got one is new as well.
        let is_new = part.effect == Effect::HardLinkTo && stat.st_nlink == 1;
        if makes || is_new {
            enforcer.forget(stat);
        } else if has_names(stat) && stat.st_nlink > 1 {
            enforcer.learn(stat, &part.path, false);
        }
    }

    /// Ends a process that has opened a file which it may not use: somebody outside has moved it there meanwhile.
    pub fn enforce_opened(
        &mut self,
        caller: Caller,
        process: ProcessId,
        open: OpenFlags,
        part: Option<&Part>,
        fd: i32,
    ) {
        if self.enforcer.is_none() || part.is_some_and(|part| is_as_judged(part, caller, fd)) {
            return;
        }
        let Ok(place) = self.object_of_descriptor(caller, fd) else { return };
        let file = FileRef::Descriptor(fd);
        let access = Access { file, effect: Effect::Open(open), follow: true, resolve: Default::default() };
        let mut refusals = Refusals::new();
        self.judge_place(caller, &access, &Ok(place), &mut refusals);
        self.end_unless_allowed(caller, process, &refusals);
    }

    /// Ends a process that executes a program which it may not execute, since another one was there at the entry.
    pub fn enforce_executed(&mut self, caller: Caller, process: ProcessId, exec: &PendingExec) {
        if self.enforcer.is_none() {
            return;
        }
        let mut refusals = Refusals::new();
        for path in std::iter::once(exec.image.exe.clone()).chain(exec.of_scripts()) {
            let stat = fs::lstat(&path).ok().flatten();
            let way = Way::new(PathUseKind::Execute, Operation::Execute);
            self.judge_path(caller, way, &path, stat.as_ref(), false, &mut refusals);
        }
        self.end_unless_allowed(caller, process, &refusals);
    }

    fn end_unless_allowed(&mut self, caller: Caller, process: ProcessId, refusals: &Refusals) {
        let Some((RefusedSubject::Path { path, .. }, rule)) = refusals.first() else { return };
        self.end_process(caller, process, || {
            let path = String::from_utf8_lossy(path);
            format!("when it used {path}, which {rule} forbids, something else had been there")
        });
    }

    /// Ends the process of a call that has done something else than what was judged.
    pub(super) fn end_process(&mut self, caller: Caller, process: ProcessId, why: impl FnOnce() -> String) {
        let _ = sys::kill(caller.tgid, libc::SIGKILL);
        self.warnings.lost(WarningKind::PathChangedAfterCheck, Some(process), || {
            format!("process {} was ended: {}", caller.tgid, why())
        });
    }

    /// Refuses a call of which nobody can say what it will use.
    pub fn enforce_special(
        &mut self,
        caller: Caller,
        process: ProcessId,
        call: &SyscallEntry<'_>,
        special: Special,
    ) -> Option<Decision<Pending>> {
        self.enforcer.as_ref()?;
        let (errno, kind) = match special {
            Special::UnnamedOpen { .. } | Special::Ptrace { thread: Some(_) } | Special::Unjudgeable => {
                (libc::EPERM, WarningKind::UnmodelledSyscall)
            }
            Special::Unmodelled => (unmodelled_errno(call.name), WarningKind::UnmodelledSyscall),
            Special::Compat => (libc::ENOSYS, WarningKind::CompatSyscall),
            // Its holder could have calls made that are not seen.
            Special::Filter { listener: true, .. } => (libc::EBUSY, WarningKind::Listener),
            // What it shows has no name, and mount(8) can do without.
            Special::Namespace if makes_detached_mount(call.name) => {
                (libc::ENOSYS, WarningKind::UnmodelledSyscall)
            }
            Special::IoUring
            | Special::Ptrace { thread: None }
            | Special::Filter { listener: false, .. }
            | Special::FilterQuery
            | Special::Dispatch
            | Special::Namespace
            | Special::Untraced { .. }
            | Special::Credentials
            | Special::Landlock
            | Special::SecretMemory
            | Special::Received { .. }
            | Special::Listen { .. }
            | Special::Closes { .. } => return None,
        };
        self.warnings.note(kind, Some(process), || {
            format!("{} of process {} was refused, since rules are enforced", call.name, caller.tgid)
        });
        Some(Decision::Refuse(Errno(errno)))
    }
}

/// Whether what an open has come to is the file that was judged, or a new one at the path that was.
fn is_as_judged(part: &Part, caller: Caller, fd: i32) -> bool {
    // A new file has no other name by which it would be judged.
    let is_judged =
        || part.stat.is_some() || part.opened(caller, fd).is_some_and(|opened| opened.st_nlink == 1);
    part.has_opened_it(caller, fd) && is_judged()
}

/// What a call that is not decoded fails with: one that is newer than the table is one that the kernel does not have.
fn unmodelled_errno(name: &str) -> i32 {
    match name {
        "process_vm_readv" | "process_vm_writev" | "fanotify_init" | "ioctl" | "bpf" => libc::EPERM,
        _ => libc::ENOSYS,
    }
}

/// The path of an access, as the command has it.
fn named_path(access: &Access) -> Vec<u8> {
    match &access.file {
        FileRef::Path { path, .. } => path.clone(),
        FileRef::Descriptor(fd) => format!("/proc/self/fd/{fd}").into_bytes(),
        FileRef::WorkingDirectory => b".".to_vec(),
    }
}
