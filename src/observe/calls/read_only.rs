//! Read-only system calls: judged at their entry, without their result where it can't differ.
//!
//! Neighbours: `lookups.rs` remembers what a path came to, `changes.rs` judges by the result where it is
//! wanted.

use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use smallvec::SmallVec;

use super::changes::{Announcement, Located, Pending};
use super::effects::meaning;
use super::ways::opening;
use crate::fs::{FileStat, ObjectId, Signature, parent_of};
use crate::observe::ledger::ids::{NameId, ProcessId};
use crate::observe::ledger::in_flight::{Footprint, PathChanges};
use crate::observe::lookups::{Allowed, Known, LookupPlace};
use crate::observe::mounts::View;
use crate::observe::processes::Rights;
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve::view::{self, Unseen};
use crate::observe::resolve::{self, Crossed, Resolved, Unresolved};
use crate::policy::PathUseKind;
use crate::snapshot::{Look, Operation, Operations};
use crate::trace::observer::{Caller, Decision, Errno, SyscallEntry, Waiting};
use crate::trace::syscalls::{Access, Effect, FileRef, Special};

/// What the judgement of a read-only access has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It is recorded, or left out.
    Judged,
    /// The same, and it matters how often it is made.
    Counted,
    /// The same, and the call may wait for something outside.
    MayWait,
    /// A call in flight changes names on its way.
    Conflicts,
}

/// Why a call is not made, by the rules that are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unmade {
    /// A call in flight changes names on its way.
    Postponed,
    /// It is forbidden, or too late to wait.
    Refused(Errno),
    /// It is to be judged where it stops.
    ToStop,
}

/// What is known of where an access leads before it is judged.
struct Lead<'a> {
    /// Where its path starts.
    start: Option<StartDirectory>,
    /// Its place in the cache of lookups, if that was asked for already.
    lookup: Option<Option<LookupPlace<'a>>>,
    /// Where it leads.
    place: Option<Result<Resolved, Unseen>>,
    /// Whether it is an open that is made here: only where it leads now counts, since that is opened.
    is_opened_here: bool,
}

/// A call that no rule forbids.
#[derive(Default)]
struct Enforced<'a> {
    /// What it walks, if nobody may change that until the call has been made.
    walked: Option<Footprint>,
    /// Where each of its accesses leads.
    located: SmallVec<[Located<'a>; 1]>,
    /// The place of each in the cache of lookups.
    lookups: SmallVec<[Option<LookupPlace<'a>>; 1]>,
}

impl From<Unmade> for Decision<Pending> {
    fn from(unmade: Unmade) -> Self {
        match unmade {
            Unmade::Postponed => Decision::Postpone,
            Unmade::Refused(errno) => Decision::Refuse(errno),
            Unmade::ToStop => Decision::Stop,
        }
    }
}

/// The directory where the first path of a call starts, read before the recording is locked: for a path that is
/// known, reading it takes most of the time.
#[derive(Debug, Clone)]
pub struct StartDirectory {
    start: Start,
    /// What [`PathChanges::at_rest`] said before: the start is valid as long as it says the same.
    changes: u64,
}

#[derive(Debug, Clone)]
enum Start {
    /// Its path.
    Path(Vec<u8>),
    /// Itself, where paths do not mean the same to all threads.
    Object(ObjectId),
}

impl StartDirectory {
    /// The one of a call, if that is read-only, its first path is relative, and no name is changing.
    pub fn of(caller: Caller, call: &SyscallEntry<'_>, path_changes: &PathChanges) -> Option<StartDirectory> {
        let FileRef::Path { dirfd, path } = &call.decoded.accesses.first()?.file else { return None };
        if path.starts_with(b"/") || !call.decoded.is_read_only() {
            return None;
        }
        let changes = path_changes.at_rest()?;
        let start = if path_changes.starts_are_objects() {
            Start::Object(view::start_object_of(caller, *dirfd)?)
        } else {
            Start::Path(view::plain_base_of(caller, *dirfd)?)
        };
        Some(StartDirectory { start, changes })
    }
}

impl Recording {
    /// Judges a read-only call.
    ///
    /// The result is awaited if the kernel may find something other than what we find at the entry: if the
    /// thread has other rights than ours, only the kernel knows what it may open, and another thread may
    /// rewrite the path of an open. An open that may block is judged at its entry all the same.
    pub fn judge_read_only(
        &mut self,
        caller: Caller,
        process: ProcessId,
        call: &SyscallEntry<'_>,
        mut start: Option<StartDirectory>,
    ) -> Decision<Pending> {
        let opens_here = self.may_open_here(caller, call);
        if !opens_here && self.has_to_stop(caller, call) {
            return Decision::Stop;
        }
        let traits = self.processes.traits(caller.tgid);
        let reads = |access: &Access| matches!(access.effect, Effect::Open(open) if open.read);
        let reads = call.decoded.accesses.iter().any(reads);
        let is_known_by_result = match traits.rights {
            Rights::Ours => false,
            Rights::MoreThanOurs => reads && self.may_be_denied(caller, call, start.clone()),
            Rights::Others => reads,
        };
        if is_known_by_result && !self.reads_may_wait(caller, call) {
            match self.prepare(caller, call) {
                Decision::Continue => {}
                decision => return decision,
            }
        }
        let enforced = match self.enforce_read_only(caller, call, &mut start) {
            Ok(enforced) => enforced,
            Err(unmade) => return unmade.into(),
        };
        let is_enforced = enforced.is_some();
        let Enforced { walked, mut located, lookups } = enforced.unwrap_or_default();
        let mut expected = None;
        if opens_here {
            if !is_enforced {
                let locate = |access| (access, self.locate_at_entry(caller, access));
                located = call.decoded.accesses.iter().map(locate).collect();
            }
            expected = self.expected_of(&located);
            if expected.is_none() && is_enforced {
                return Decision::Stop;
            }
        }
        let (mut located, mut lookups) = (located.into_iter(), lookups.into_iter());
        let (mut may_wait, mut is_counted) = (false, false);
        let mut footprint = Footprint::default();
        for access in &call.decoded.accesses {
            let (lookup, place) = (lookups.next(), located.next().map(|(_, place)| place));
            let lead = Lead { start: start.take(), lookup, place, is_opened_here: opens_here };
            match self.use_read_only(caller, process, access, lead, call.overdue, &mut footprint) {
                Use::Judged => {}
                Use::Counted => is_counted = true,
                Use::MayWait => may_wait = true,
                Use::Conflicts => return Decision::Postpone,
            }
        }
        if !call.decoded.sockets.is_empty() {
            self.use_sockets(caller, process, call.decoded);
        }
        if opens_here {
            match expected.and_then(|expected| open_here(caller, call, expected)) {
                Some(opened) => return opened,
                None if is_enforced => return Decision::Stop,
                None => {}
            }
        }
        if let Some(mut walked) = walked {
            if call.waiting.is_notified() {
                self.ledger.in_flight.begin_unseen(caller.tid, walked);
                return Decision::Continue;
            }
            // Nobody waits for an open that may wait for something outside.
            if may_wait && reads {
                walked = Footprint::default();
            }
            let id = self.ledger.in_flight.begin(walked, false);
            let opens = reads && traits.shares_paths();
            let open = opening(call.decoded);
            Decision::AwaitResult(Pending::of_read_only_call(call.name, id, opens, open))
        } else if may_wait {
            Decision::MayWait
        } else if reads && traits.shares_paths() {
            let id = self.ledger.in_flight.begin(footprint, false);
            Decision::AwaitResult(Pending::of_read_only_call(call.name, id, true, None))
        } else if is_counted {
            Decision::Counted
        } else {
            Decision::Continue
        }
    }

    /// Refuses a read-only call, if rules forbid it, or postpones it; otherwise, what it walks if it uses anything that
    /// rules are about, so that nobody changes that before the call is made. Takes where its first path starts.
    fn enforce_read_only<'a>(
        &mut self,
        caller: Caller,
        call: &SyscallEntry<'a>,
        start: &mut Option<StartDirectory>,
    ) -> Result<Option<Enforced<'a>>, Unmade> {
        let Some(enforcer) = &self.enforcer else { return Ok(None) };
        let executes = call.decoded.accesses.iter().any(|access| access.effect == Effect::Execute);
        let opens = opening(call.decoded).is_some();
        let reads = opens || executes;
        let reads =
            reads && enforcer.judges(PathUseKind::Read) || executes && enforcer.judges(PathUseKind::Execute);
        let listens = matches!(call.decoded.special, Some(Special::Listen { .. }));
        let contacts = listens || !call.decoded.sockets.is_empty();
        if !(reads || contacts && enforcer.judges_addresses()) {
            return Ok(None);
        }
        let view = self.view_of(caller);
        let mut lookups = SmallVec::<[_; 1]>::new();
        for access in &call.decoded.accesses {
            lookups.push(self.lookup_place(caller, view.as_ref(), access, start.take()));
        }
        let is_steady_open = opens && view.is_none() && self.is_steady(caller, call);
        if is_steady_open
            && let ([access], [Some(lookup)]) = (&call.decoded.accesses[..], &lookups[..])
            && let Some(walked) = self.still_allowed(lookup, access)
        {
            return Ok(Some(Enforced { walked: Some(walked), lookups, ..Enforced::default() }));
        }
        let mut located = SmallVec::<[Located<'a>; 1]>::new();
        for (access, lookup) in call.decoded.accesses.iter().zip(&lookups) {
            located.push((access, self.locate_read_only(caller, view.as_deref(), access, lookup.as_ref())));
        }
        if call.waiting.is_notified() && !located.iter().all(|(access, place)| self.is_plain(access, place)) {
            return Err(Unmade::ToStop);
        }
        let Announcement { footprint, doubtful, .. } = self.announcement(caller, &located);
        if doubtful || self.ledger.in_flight.conflicts(&footprint) {
            return Err(match call.overdue {
                true => Unmade::Refused(Errno(libc::EACCES)),
                false => Unmade::Postponed,
            });
        }
        match self.enforce(caller, call, &located) {
            Some(errno) => Err(Unmade::Refused(errno)),
            None => {
                if is_steady_open && let ([(_, Ok(place))], [Some(lookup)]) = (&located[..], &lookups[..]) {
                    self.note_allowed(lookup, place, &footprint);
                }
                let walked = (opens || !footprint.walked.is_empty()).then_some(footprint);
                Ok(Some(Enforced { walked, located, lookups }))
            }
        }
    }

    /// Whether a call that waits for the answer to a notification is made as it is now: its thread has our rights, and nobody
    /// else can change what its arguments point to, or where its paths start.
    fn is_steady(&self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        let traits = self.processes.traits(caller.tgid);
        matches!(call.waiting, Waiting::Notified { steady: true, .. })
            && traits.rights == Rights::Ours
            && !traits.shares_paths()
    }

    /// What an open for reading walks, if rules have allowed it before, the same is there, and nobody is about to change that.
    fn still_allowed(&self, lookup: &LookupPlace<'_>, access: &Access) -> Option<Footprint> {
        let allowed = self.lookups.allowed(lookup, &self.ledger)?;
        let is_same = allowed.names_version == self.enforcer.as_ref()?.names_version()
            && !self.resolver.is_serving()
            && lookup.signature(access.follow) == Ok(allowed.signature)
            && !self.ledger.in_flight.conflicts(&allowed.footprint);
        is_same.then(|| allowed.footprint.clone())
    }

    /// Notes that rules allow an open for reading of what is at a place.
    fn note_allowed(&mut self, lookup: &LookupPlace<'_>, place: &Resolved, footprint: &Footprint) {
        let Some(enforcer) = &self.enforcer else { return };
        let is_plain = |stat| resolve::is_regular(stat) || resolve::is_directory(stat);
        let signature = place.stat.as_ref().map(Signature::from);
        if place.stat.as_ref().is_none_or(is_plain) && !signature.is_some_and(|file| file.is_recent()) {
            let (names_version, footprint) = (enforcer.names_version(), footprint.clone());
            self.lookups.allow(lookup, Allowed { signature, names_version, footprint });
        }
    }

    /// Whether an open that rules may refuse waits for the answer to a notification and has to stop instead: somebody may
    /// change what its arguments point to, or only the kernel knows what it may open.
    fn has_to_stop(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        call.waiting.is_notified()
            && self.judges_reads()
            && opening(call.decoded).is_some()
            && (!self.is_steady(caller, call) || self.view_of(caller).is_some())
    }

    /// Whether rules about reads are enforced.
    pub fn judges_reads(&self) -> bool {
        self.enforcer.as_ref().is_some_and(|enforcer| enforcer.judges(PathUseKind::Read))
    }

    /// Whether an open for reading is made here, for its caller: somebody else may change the path before the kernel reads
    /// it, and the caller's rights, root and mounts are ours.
    fn may_open_here(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        let Waiting::Notified { steady, openable: true } = call.waiting else { return false };
        let traits = self.processes.traits(caller.tgid);
        let opens = matches!(opening(call.decoded), Some(open) if open.read && open.is_read_only());
        opens
            && (traits.shares_paths() || !steady && self.judges_reads())
            && traits.rights == Rights::Ours
            && !self.opens_ask_the_tree
            && self.view_of(caller).is_none()
    }

    /// The device and inode number of the file that an open must come to if it is made here; none if the kernel has to make
    /// it.
    ///
    /// What procfs shows depends on who opens it. If nothing is there, the kernel may still have another error: it first
    /// looks for a free descriptor.
    fn expected_of(&mut self, located: &[Located<'_>]) -> Option<(u64, u64)> {
        let [(access, place)] = located else { return None };
        let place = place.as_ref().ok().filter(|_| self.is_plain(access, place))?;
        let stat = place.stat.filter(|stat| resolve::is_regular(stat) || resolve::is_directory(stat))?;
        let is_pseudo = self.byte_store.filesystems.is_pseudo(stat.st_dev, &place.path);
        (!is_pseudo).then_some((stat.st_dev, stat.st_ino))
    }

    /// Whether a place of an open is what it is until somebody in the tree changes a name: nothing on the way is a link
    /// of a procfs or a part of an overlay, and the open waits for nothing.
    fn is_plain(&mut self, access: &Access, place: &Result<Resolved, Unseen>) -> bool {
        match place {
            Ok(place) => {
                place.overlay.is_none()
                    && !place.crossed.iter().any(|link| self.is_of_kernel(link))
                    && !self.may_wait(access.effect, &place.path, place.stat.as_ref())
            }
            Err(Unseen::Unresolved(Unresolved::NotADirectory(_) | Unresolved::TooLong)) => true,
            Err(_) => false,
        }
    }

    /// Whether a symlink is on a procfs, wherever that is mounted, or on another filesystem that the kernel makes up.
    fn is_of_kernel(&mut self, link: &Crossed) -> bool {
        let directory = parent_of(&link.path).unwrap_or(b"/");
        self.byte_store.filesystems.is_pseudo(link.stat.st_dev, directory)
    }

    /// Decides about a call of which nothing is recorded.
    pub fn enforce_unrecorded(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        let process = self.processes.id(caller.tgid);
        let special = call.decoded.special;
        if let Some(refused) =
            special.and_then(|special| self.enforce_special(caller, process, call, special))
        {
            return refused;
        }
        let opens_here = self.may_open_here(caller, call);
        let enforced = match self.enforce_read_only(caller, call, &mut None) {
            Ok(enforced) => enforced,
            Err(unmade) => return unmade.into(),
        };
        let Some(Enforced { walked: Some(walked), located, .. }) = enforced else {
            return Decision::Continue;
        };
        let executes = call.decoded.accesses.first().is_some_and(|access| access.effect == Effect::Execute);
        if let (true, Some((_, Ok(program)))) = (executes, located.first()) {
            let file = crate::fs::open_regular(&program.path).ok();
            let exec = self.prepare_exec(caller, call.decoded, &call.memory, program.path.clone(), file);
            if let Some(errno) = self.enforce_interpreters(caller, &exec) {
                return Decision::Refuse(errno);
            }
        }
        if call.waiting.is_notified() {
            let expected = if opens_here { self.expected_of(&located) } else { None };
            let opened = expected.and_then(|expected| open_here(caller, call, expected));
            return opened.unwrap_or(Decision::Stop);
        }
        let id = self.ledger.in_flight.begin(walked, false);
        Decision::AwaitResult(Pending::of_read_only_call(call.name, id, false, opening(call.decoded)))
    }

    /// Whether a thread with our own rights may be denied what an open for reading asks for.
    fn may_be_denied(
        &mut self,
        caller: Caller,
        call: &SyscallEntry<'_>,
        mut start: Option<StartDirectory>,
    ) -> bool {
        let view = self.view_of(caller);
        call.decoded.accesses.iter().any(|access| {
            let place = self.lookup_place(caller, view.as_ref(), access, start.take());
            let known = place.and_then(|place| self.lookups.find(&place, &self.ledger)?.last());
            // What was only there was denied to somebody, or absent.
            let existence = Operations::from(Operation::Existence);
            match known {
                Some(Known::Recorded(_, operations)) if *operations == existence => {}
                Some(Known::Recorded(..) | Known::Suppressed(_)) => return false,
                None => {}
            }
            match self.locate(caller, access) {
                Ok(Resolved { path, stat: Some(stat), .. }) => !self.may_read(&path, &stat),
                Ok(_) => false,
                Err(Unseen::Unresolved(Unresolved::Denied(..))) => true,
                Err(_) => false,
            }
        })
    }

    /// The place of an access in the cache of lookups; none if what is there need not be what it was.
    fn lookup_place<'a>(
        &mut self,
        caller: Caller,
        view: Option<&Arc<View>>,
        access: &'a Access,
        start: Option<StartDirectory>,
    ) -> Option<LookupPlace<'a>> {
        // While a name is changing, the cache is not used.
        let changes = self.ledger.in_flight.path_changes().at_rest()?;
        let start = start.filter(|start| start.changes == changes).map(|known| known.start);
        let number = view.map_or(0, View::number);
        let (resolver, mounts) = (&mut self.resolver, &self.mounts);
        self.lookups.place(access, number, |dirfd| match (view, start) {
            (None, Some(Start::Path(path))) => Some(path),
            (None, _) => view::plain_base_of(caller, dirfd),
            (Some(view), Some(Start::Object(object))) => {
                view::base_in_view(resolver, mounts, view, caller, dirfd, Some(object))
            }
            (Some(view), _) => view::base_in_view(resolver, mounts, view, caller, dirfd, None),
        })
    }

    /// Where a read-only access leads; its place in the cache of lookups knows where its path starts.
    fn locate_read_only(
        &mut self,
        caller: Caller,
        view: Option<&View>,
        access: &Access,
        place: Option<&LookupPlace<'_>>,
    ) -> Result<Resolved, Unseen> {
        match place {
            Some(place) => self.locate_from(caller, view, place, access.follow),
            None => self.locate_at_entry(caller, access),
        }
    }

    /// Whether a read-only call may wait for something outside, as far as its paths tell.
    fn reads_may_wait(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        call.decoded.accesses.iter().any(|access| match self.locate(caller, access) {
            Ok(resolved) => self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref()),
            Err(_) => false,
        })
    }

    /// Judges a read-only access at its entry.
    ///
    /// What it walks is added to `footprint` where another thread may rewrite its path.
    fn use_read_only(
        &mut self,
        caller: Caller,
        process: ProcessId,
        access: &Access,
        Lead { start, lookup, place: located, is_opened_here }: Lead<'_>,
        overdue: bool,
        footprint: &mut Footprint,
    ) -> Use {
        // Its open was the access, and a recording that is not to be recalled notes no more.
        let is_descriptor = matches!(access.file, FileRef::Descriptor(_));
        if is_descriptor && matches!(access.effect, Effect::Ask(_)) && !self.ledger.for_recall {
            return Use::Judged;
        }
        let traits = self.processes.traits(caller.tgid);
        let view = self.view_of(caller);
        let place = match traits.rights {
            Rights::Ours | Rights::MoreThanOurs if !is_opened_here => {
                lookup.unwrap_or_else(|| self.lookup_place(caller, view.as_ref(), access, start))
            }
            _ => None,
        };
        if let Some(place) = &place
            && let Some(known) = self.lookups.find(place, &self.ledger)
        {
            let mut outcome = Use::Judged;
            for known in known {
                match known {
                    Known::Recorded(name, operations) => {
                        self.ledger.merge(*name, *operations, process);
                        if traits.shares_paths() {
                            footprint.walked.push(self.ledger.names.path(*name).to_vec());
                        }
                    }
                    Known::Suppressed(rule) => {
                        self.policy.suppressed.read(*rule);
                        outcome = Use::Counted;
                    }
                }
            }
            if let Some(Known::Recorded(name, _)) = known.last() {
                self.see_what_is_asked(*name, access.effect);
            }
            return outcome;
        }
        let located =
            located.unwrap_or_else(|| self.locate_read_only(caller, view.as_deref(), access, place.as_ref()));
        let resolved = match located {
            Ok(resolved) => resolved,
            Err(unseen) if !overdue && self.is_doubtful(caller, access, &unseen) => return Use::Conflicts,
            Err(unseen) => {
                let never_waits = unseen.is_refused() || is_ordinary_and_private(&unseen);
                self.unseen(process, unseen);
                return if never_waits { Use::Counted } else { Use::MayWait };
            }
        };
        if traits.shares_paths() || self.ledger.in_flight.changes() {
            footprint.add(access.effect, &resolved);
            footprint.add_working_directory(caller, traits, access);
            if !overdue && self.ledger.in_flight.conflicts(footprint) {
                return Use::Conflicts;
            }
        }
        let may_wait = self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref());
        let outcome = if may_wait { Use::MayWait } else { Use::Judged };
        let mut known = self.cross(process, &resolved.crossed);
        let Some(operations) = self.read_only_operations(access.effect, &resolved) else { return outcome };
        let stat = resolved.stat.as_ref();
        match self.classify(resolved.path.clone(), stat) {
            Classification::Recorded(name) => {
                if let Some(stat) = stat {
                    self.capture_what_is_read(name, access.effect, operations, &resolved.path, stat);
                }
                self.ledger.merge(name, operations, process);
                self.see_what_is_asked(name, access.effect);
                known.push(Known::Recorded(name, operations));
            }
            Classification::Suppressed(rule, _) => {
                self.note_listing(operations, &resolved.path);
                self.policy.suppressed.used(rule, &resolved.path, operations, process);
                known.push(Known::Suppressed(rule));
            }
            Classification::Own => return outcome,
        }
        let is_counted = known.iter().any(|known| matches!(known, Known::Suppressed(_)));
        if let Some(place) = place
            && !may_wait
            && resolved.overlay.is_none()
            && !resolved.crossed.iter().any(|symlink| resolve::is_on_procfs(&symlink.stat))
        {
            self.lookups.learn(place, &self.ledger, known.into(), resolved.stat.is_none());
        }
        if outcome == Use::Judged && is_counted { Use::Counted } else { outcome }
    }

    /// Notes what an access asks for; that it reads the content, the operations tell.
    fn see_what_is_asked(&mut self, name: NameId, effect: Effect) {
        if self.ledger.for_recall {
            self.ledger.see(name, meaning(effect, None).seen);
        }
    }

    /// The operations that a read-only access to a resolved path counts as; none where the kernel answers
    /// ENOTDIR.
    fn read_only_operations(&self, effect: Effect, resolved: &Resolved) -> Option<Operations> {
        let existence = Some(Operation::Existence.into());
        let Some(stat) = &resolved.stat else { return existence };
        let directory = resolve::is_directory(stat);
        if resolved.must_be_directory && !directory {
            return None;
        }
        match effect {
            Effect::Open(open) if open.directory && !directory => None,
            // O_PATH, and access mode 3, for ioctl alone.
            Effect::Open(open) if !open.read => existence,
            Effect::Open(_) if resolve::is_symlink(stat) || stat.st_mode & libc::S_IFMT == libc::S_IFSOCK => {
                existence
            }
            Effect::Open(_) if !self.may_read(&resolved.path, stat) => existence,
            Effect::Open(_) if directory => Some(Operation::Directory.into()),
            Effect::Open(_) => Some(Operation::Read.into()),
            effect => Some(meaning(effect, Some(stat)).operations),
        }
    }

    /// Whether a thread with our own rights may read what is there.
    fn may_read(&self, path: &[u8], stat: &FileStat) -> bool {
        // Root may; an owner's own bit decides for an owner; all else is the kernel's to say.
        (stat.st_uid == self.policy.uid && stat.st_mode & 0o400 != 0)
            || rustix::fs::accessat(CWD, path, rustix::fs::Access::READ_OK, AtFlags::EACCESS).is_ok()
    }

    /// Takes the entries of a directory that was opened for listing, if the level of the recording asks for them.
    pub fn list_entries(&mut self, name: NameId) {
        if self.byte_store.keep.has_inputs() {
            self.ledger.see(name, Look::Entries.into());
            self.ledger.list_entries(name);
        }
    }

    /// Takes the content or the entries that a read-only call needs.
    fn capture_what_is_read(
        &mut self,
        name: NameId,
        effect: Effect,
        operations: Operations,
        path: &[u8],
        stat: &FileStat,
    ) {
        match effect {
            Effect::Open(_) if operations.contains(Operation::Read) => {
                self.protector().read_content(name, path, stat)
            }
            Effect::Open(_) if operations.contains(Operation::Directory) => self.list_entries(name),
            _ => {}
        }
    }
}

/// Whether a place on a private mount is none that an open may wait at: no FIFO, device or the like.
fn is_ordinary_and_private(unseen: &Unseen) -> bool {
    let stat = match unseen {
        Unseen::Private(place) => place.stat.as_ref(),
        Unseen::Unresolved(_) | Unseen::InForeignMountNamespace(_) => return false,
    };
    stat.is_none_or(|stat| {
        resolve::is_regular(stat) || resolve::is_directory(stat) || resolve::is_symlink(stat)
    })
}

/// Makes an open for reading for its caller, to which paths mean what they mean to us; none if it fails, would have to
/// wait (a lease), or comes to another file than the expected one, given by its device and inode number.
fn open_here(
    caller: Caller,
    call: &SyscallEntry<'_>,
    (device, inode): (u64, u64),
) -> Option<Decision<Pending>> {
    let access = call.decoded.accesses.first()?;
    let (FileRef::Path { dirfd, path }, Effect::Open(open)) = (&access.file, access.effect) else {
        return None;
    };
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags.set(OFlags::DIRECTORY, open.directory);
    flags.set(OFlags::NOFOLLOW, !access.follow);
    let file = rustix::fs::open(view::path_from_here(caller, *dirfd, path), flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if !open.nonblocking {
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).ok()?;
    }
    ((stat.st_dev, stat.st_ino) == (device, inode)).then_some(Decision::Opened(file))
}
