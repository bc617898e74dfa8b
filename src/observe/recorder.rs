//! What a held call means for which path: the [`Observer`] of a recording.
//!
//! A call that only looks is judged while it is held; one that can change something is prepared
//! (`changes.rs`) and judged by its result. Paths come from `view.rs`, records go to `table.rs`,
//! bytes to `capture.rs`, and at the end `finish.rs` makes the manifest's records of it all.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Access as Rights, AtFlags, CWD};

use super::capture::Capture;
use super::changes::Pending;
use super::credentials::Credentials;
use super::effects::meaning;
use super::ignore::{Ignore, RuleId};
use super::ledger::Ledger;
use super::ledger::in_flight::Footprint;
use super::ledger::names::{Name, NameId, ProcessId};
use super::lookups::{Known, Lookups};
use super::mounts::Mounts;
use super::processes::ProcessTable;
use super::resolve::{self, Crossed, Resolved, Resolver, Unresolved};
use super::suppressed::Counts;
use super::view::{self, Unseen};
use super::warnings::Warnings;
use crate::fs::{self, FileStat};
use crate::git::Repositories;
use crate::snapshot::live::{self, Filesystem};
use crate::snapshot::{Operation, Operations, WarningKind};
use crate::trace::observer::{Caller, Decision, Observer, SyscallEntry, panic_text};
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, Effect, Special};
use crate::trace::wait_status::End;

/// What a recording may keep, and what it lets through.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of a file that was only read are stored up to this size.
    pub max_read_bytes: u64,
    /// Bytes that the tree destroyed or wrote are stored up to this size.
    pub max_blob_bytes: Option<u64>,
    /// Whether io_uring is let through, unseen.
    pub allow_io_uring: bool,
}

/// What happens to the tree, told while it happens.
pub trait Events: Send + Sync {
    /// A process has started.
    fn started(&self, process: Tid);
    /// A process has ended.
    fn ended(&self, process: Tid, end: End);
    /// A process was stopped by a signal.
    fn stopped(&self, process: Tid, signal: i32);
    /// A stopped process goes on.
    fn continued(&self, process: Tid);
}

/// The observer of a recording.
pub struct Recorder {
    /// None once the recording has ended.
    state: Mutex<Option<State>>,
    events: Box<dyn Events>,
}

/// Everything that a recording knows while the tree runs.
pub(super) struct State {
    pub options: Options,
    pub ignore: Ignore,
    /// The snapshot's own directory, which is never recorded.
    pub own_directory: Vec<u8>,
    pub uid: u32,
    /// Our own, which those of the tree are compared with.
    credentials: Option<Credentials>,
    pub resolver: Resolver,
    pub lookups: Lookups,
    pub repositories: Repositories,
    pub processes: ProcessTable,
    pub ledger: Ledger,
    pub capture: Capture,
    pub warnings: Warnings,
    pub suppressed: Counts,
    pub filesystems: Filesystems,
    /// How many times bytes were held.
    pub next_hold: u64,
    /// The file that each process may leave as its core dump.
    pub core_dumps: HashMap<Tid, super::core_dump::Expected, foldhash::fast::RandomState>,
    /// Whether names may have come to mean something else.
    pub mounts: Mounts,
    /// The first panic in here, told at the end: the command runs on without us.
    failure: Option<String>,
}

/// What the judgement of a read-only access has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It is recorded, or left out.
    Judged,
    /// The same, and the call may wait for something outside.
    MayWait,
    /// A call in flight changes names on its way.
    Conflicts,
}

/// What the rules say of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is recorded.
    Record(NameId),
    /// A rule leaves it out; the topmost path that the rule covers.
    Suppressed(RuleId, Vec<u8>),
    /// It is the snapshot's own.
    Own,
}

impl Recorder {
    /// A recorder that has seen nothing yet.
    pub fn new(
        options: Options,
        ignore: Ignore,
        own_directory: Vec<u8>,
        capture: Capture,
        events: Box<dyn Events>,
    ) -> Recorder {
        let state = State {
            options,
            ignore,
            own_directory,
            uid: nix::unistd::geteuid().as_raw(),
            credentials: Credentials::of(Tid(nix::unistd::getpid().as_raw())),
            resolver: Resolver::default(),
            lookups: Lookups::default(),
            repositories: Repositories::new(),
            processes: ProcessTable::default(),
            ledger: Ledger::default(),
            capture,
            warnings: Warnings::default(),
            suppressed: Counts::default(),
            filesystems: Filesystems::default(),
            next_hold: 0,
            core_dumps: HashMap::default(),
            mounts: Mounts::watch(),
            failure: None,
        };
        Recorder { state: Mutex::new(Some(state)), events }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`, or nothing once a bug of ours has shown: the command goes on undisturbed.
    fn guarded<T>(&self, otherwise: T, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let Some(state) = state.as_mut().filter(|state| state.failure.is_none()) else { return otherwise };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(state))) {
            Ok(done) => done,
            Err(panic) => {
                state.failure = Some(panic_text(&*panic).to_owned());
                otherwise
            }
        }
    }

    /// Notes the regular files on descriptors that the command inherits, before it runs.
    pub fn inherit(&self, command: Tid, files: &[super::inherited::InheritedFile]) {
        self.guarded((), |state| {
            state.mounts.look_at(command);
            for file in files {
                state.inherit(command, file);
            }
        });
    }

    /// Ends the recording: the tree is gone.
    pub(super) fn take_state(&self) -> Result<State, String> {
        match self.state().take() {
            Some(State { failure: Some(failure), .. }) => Err(failure),
            Some(state) => Ok(state),
            None => Err("it has ended already".to_owned()),
        }
    }

    /// Adds a gap that was seen outside.
    pub fn lost(&self, kind: WarningKind, detail: &str) {
        self.guarded((), |state| state.warnings.lost(kind, None, || detail.to_owned()));
    }

    /// Adds a note on something seen outside.
    pub fn note(&self, kind: WarningKind, detail: &str) {
        self.guarded((), |state| state.warnings.note(kind, None, || detail.to_owned()));
    }
}

impl Observer for Recorder {
    type Pending = Pending;

    fn before(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        self.guarded(Decision::Continue, |state| state.before(caller, call))
    }

    fn after(&self, caller: Caller, pending: Pending, result: Option<i64>) {
        self.guarded((), |state| state.conclude(caller, pending, result));
    }

    fn unreadable(&self, caller: Caller, name: &'static str) {
        self.guarded((), |state| {
            let Some(process) = state.processes.living_id(caller.tgid) else { return };
            state.warnings.lost(WarningKind::UnreadableTracee, Some(process), || {
                format!("process {} does not let its arguments be read ({name})", caller.tgid)
            });
        });
    }

    fn signal(&self, caller: Caller, signal: i32) {
        self.guarded((), |state| state.expect_core_dump(caller, signal));
    }

    fn executed(&self, caller: Caller, pending: Option<Pending>) {
        self.guarded((), |state| state.executed(caller, pending));
    }

    fn started(&self, process: Tid, parent: Tid) {
        self.guarded((), |state| {
            state.processes.start(process, parent);
        });
        self.events.started(process);
    }

    fn shares_memory(&self, process: Tid, shares: bool) {
        self.guarded((), |state| {
            if let Some(standing) = state.processes.standing_mut(process) {
                standing.shares_memory = shares;
            }
        });
    }

    fn share_working_directory(&self, process: Tid, other: Tid) {
        self.guarded((), |state| {
            for process in [process, other] {
                if let Some(standing) = state.processes.standing_mut(process) {
                    standing.shares_working_directory = true;
                }
            }
        });
    }

    fn ended(&self, process: Tid, end: End) {
        self.guarded((), |state| {
            state.core_dump_settled(process, end);
            state.processes.end(process, end);
        });
        self.events.ended(process, end);
    }

    fn stopped(&self, process: Tid, signal: i32) {
        self.events.stopped(process, signal);
    }

    fn continued(&self, process: Tid) {
        self.events.continued(process);
    }

    fn gap(&self, what: &str) {
        self.lost(WarningKind::UnreadableTracee, what);
    }

    fn failed(&self, bug: &str) {
        self.guarded((), |state| state.failure = Some(bug.to_owned()));
    }
}

impl State {
    fn before(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        if call.decoded.is_read_only() {
            // One that was killed while its look waited in the other lane has made no call.
            return match self.processes.living_id(caller.tgid) {
                Some(process) => self.judge_looks(caller, process, call),
                None => Decision::Continue,
            };
        }
        let process = self.processes.id(caller.tgid);
        if let Some(special) = call.decoded.special
            && let Some(verdict) = self.special(caller, process, call, special)
        {
            return verdict;
        }
        self.prepare(caller, call)
    }

    /// Judges a call that only looks.
    ///
    /// Its result is wanted where our look at its entry may not be the kernel's: what a thread with other
    /// rights than ours may open, the kernel says, and another thread may rewrite the path of an open. An
    /// open that may wait is judged at its entry all the same.
    fn judge_looks(
        &mut self,
        caller: Caller,
        process: ProcessId,
        call: &SyscallEntry<'_>,
    ) -> Decision<Pending> {
        let standing = self.processes.standing(caller.tgid);
        let reads = |access: &Access| matches!(access.effect, Effect::Open(open) if open.read);
        let reads = call.decoded.accesses.iter().any(reads);
        if reads && standing.other_rights && !self.reads_may_wait(caller, call) {
            match self.prepare(caller, call) {
                Decision::Continue => {}
                verdict => return verdict,
            }
        }
        let mut may_wait = false;
        let mut footprint = Footprint::default();
        for access in &call.decoded.accesses {
            match self.use_read_only(caller, process, access, call.overdue, &mut footprint) {
                Use::Judged => {}
                Use::MayWait => may_wait = true,
                Use::Conflicts => return Decision::Postpone,
            }
        }
        if may_wait {
            Decision::MayWait
        } else if reads && standing.shares_paths() {
            let id = self.ledger.in_flight.begin(footprint, false);
            Decision::AwaitResult(Pending::of_look(call.name, id))
        } else {
            Decision::Continue
        }
    }

    /// Whether a read-only call may wait for something outside, as far as its paths tell.
    fn reads_may_wait(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        call.decoded.accesses.iter().any(|access| match self.locate(caller, access) {
            Ok(resolved) => self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref()),
            Err(_) => false,
        })
    }

    /// Judges a call that matters beyond its paths; none where its result is wanted all the same.
    fn special(
        &mut self,
        caller: Caller,
        process: ProcessId,
        call: &SyscallEntry<'_>,
        special: Special,
    ) -> Option<Decision<Pending>> {
        let who = caller.tgid;
        match special {
            Special::IoUring if !self.options.allow_io_uring => {
                self.warnings.note(WarningKind::IoUring, Some(process), || {
                    format!("process {who} asked for io_uring and was refused (ENOSYS)")
                });
                return Some(Decision::Refuse);
            }
            Special::IoUring => self.warnings.lost(WarningKind::IoUring, Some(process), || {
                format!("process {who} uses io_uring, whose operations are not seen")
            }),
            Special::Ptrace => self.warnings.note(WarningKind::NestedTracer, Some(process), || {
                format!("process {who} asked to trace, which is refused to it while it is recorded")
            }),
            Special::Namespace | Special::Untraced { namespace: true, .. } => {
                if let Some(standing) = self.processes.standing_mut(caller.tgid) {
                    standing.elsewhere = true;
                }
                // What a process may do that is made in another namespace, no result tells.
                if matches!(call.name, "clone" | "clone3") {
                    if let Some(standing) = self.processes.standing_mut(caller.tgid) {
                        standing.other_rights = true;
                    }
                    return Some(Decision::Continue);
                }
            }
            // The tracer has mended it: the child is followed.
            Special::Untraced { .. } => return Some(Decision::Continue),
            Special::Landlock => {
                if let Some(standing) = self.processes.standing_mut(caller.tgid) {
                    standing.other_rights = true;
                }
                return Some(Decision::Continue);
            }
            // What they have become is known by the result.
            Special::Credentials => {}
            Special::UnnamedOpen { .. } | Special::Received { .. } => {}
            // Whether the kernel has the call at all, or refuses it, its result tells.
            Special::Unmodelled | Special::Compat | Special::Filter { .. } => {}
        }
        None
    }

    /// Compares the credentials of a thread with ours, after a call that may have changed them.
    pub(super) fn compare_credentials(&mut self, caller: Caller) {
        let Some(standing) = self.processes.standing_mut(caller.tgid) else { return };
        let ours = &self.credentials;
        // It stays so: another thread may have others still.
        standing.other_rights =
            standing.other_rights || ours.is_none() || Credentials::of(caller.tid) != *ours;
    }

    /// Judges an access that only looks, at its entry.
    ///
    /// What it walks is added to `footprint` where another thread may rewrite its path.
    fn use_read_only(
        &mut self,
        caller: Caller,
        process: ProcessId,
        access: &Access,
        overdue: bool,
        footprint: &mut Footprint,
    ) -> Use {
        let standing = self.processes.standing(caller.tgid);
        let plain = !self.is_elsewhere(caller) && !standing.other_rights;
        // While a name changes, nothing that is known of names counts.
        let place = (plain && !self.ledger.in_flight.changes() && !self.ledger.in_flight.moves())
            .then(|| self.lookups.place(&self.resolver, caller, access))
            .flatten();
        if let Some(place) = &place
            && let Some(known) = self.lookups.find(place, &self.ledger)
        {
            for known in known {
                match known {
                    Known::Record(name, operations) => {
                        self.ledger.names.get_mut(*name).merge(*operations, process);
                        if standing.shares_paths() {
                            footprint.walked.push(self.ledger.names.path(*name).to_vec());
                        }
                    }
                    Known::Suppressed(rule) => self.suppressed.read(*rule),
                }
            }
            return Use::Judged;
        }
        let located = match &place {
            Some(place) => {
                let base = place.base.as_deref().unwrap_or(b"/");
                view::locate_from(&mut self.resolver, caller, base, place.path, access.follow)
            }
            None => self.locate(caller, access),
        };
        let resolved = match located {
            Ok(resolved) => resolved,
            Err(unseen) if !overdue && self.is_doubtful(&unseen) => return Use::Conflicts,
            Err(unseen) => {
                let refused = unseen.is_refused();
                self.unseen(process, unseen);
                return if refused { Use::Judged } else { Use::MayWait };
            }
        };
        if standing.shares_paths() || self.ledger.in_flight.changes() {
            footprint.add(access.effect, &resolved);
            footprint.add_working_directory(caller, standing, access);
            if !overdue && self.ledger.in_flight.conflicts(footprint) {
                return Use::Conflicts;
            }
        }
        let may_wait = self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref());
        let outcome = if may_wait { Use::MayWait } else { Use::Judged };
        let mut known = self.cross(process, &resolved.crossed);
        let Some(operations) = self.judge_look(access.effect, &resolved) else { return outcome };
        let stat = resolved.stat.as_ref();
        match self.sight(resolved.path.clone(), stat) {
            Sight::Record(name) => {
                if let Some(stat) = stat {
                    self.look_content(name, access.effect, operations, &resolved.path, stat);
                }
                self.ledger.names.get_mut(name).merge(operations, process);
                known.push(Known::Record(name, operations));
            }
            Sight::Suppressed(rule, _) => {
                self.suppressed.read(rule);
                known.push(Known::Suppressed(rule));
            }
            Sight::Own => return outcome,
        }
        if let Some(place) = place
            && !may_wait
            && !resolved.crossed.iter().any(|link| resolve::is_on_procfs(&link.stat))
        {
            self.lookups.learn(place, &self.ledger, known.into(), resolved.stat.is_none());
        }
        outcome
    }

    /// What a look at a resolved path is; none where the kernel answers ENOTDIR.
    fn judge_look(&self, effect: Effect, resolved: &Resolved) -> Option<Operations> {
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
            Effect::Open(_) if resolve::is_link(stat) || stat.st_mode & libc::S_IFMT == libc::S_IFSOCK => {
                existence
            }
            Effect::Open(_) if !self.may_read(&resolved.path, stat) => existence,
            Effect::List if !directory => None,
            Effect::Open(_) | Effect::List if directory => Some(Operation::Directory.into()),
            Effect::Open(_) => Some(Operation::Read.into()),
            effect => Some(meaning(effect, Some(stat)).operations),
        }
    }

    /// Whether a thread with our own rights may read what is there.
    fn may_read(&self, path: &[u8], stat: &FileStat) -> bool {
        // Root may; an owner's own bit decides for an owner; all else is the kernel's to say.
        (stat.st_uid == self.uid && stat.st_mode & 0o400 != 0)
            || rustix::fs::accessat(CWD, path, Rights::READ_OK, AtFlags::EACCESS).is_ok()
    }

    /// Takes the content or the entries that a read-only call needs.
    fn look_content(
        &mut self,
        name: NameId,
        effect: Effect,
        operations: Operations,
        path: &[u8],
        stat: &FileStat,
    ) {
        match effect {
            Effect::Open(_) if operations.contains(Operation::Read) => self.read_content(name, path, stat),
            Effect::List => self.list_entries(name),
            _ => {}
        }
    }

    /// Takes the digest of the entries that a directory had before the tree changed any, once.
    pub fn list_entries(&mut self, name: NameId) {
        let known = self.ledger.names.get(name);
        if known.entries().is_some()
            || !self.ledger.before(name).is_some_and(|inode| inode.before.is_directory())
        {
            return;
        }
        let path = self.ledger.names.path(name).to_vec();
        let Ok(mut entries) = live::entries(&path) else { return };
        let start = path.strip_suffix(b"/").unwrap_or(&path);
        entries.retain(|entry| {
            let known = self.ledger.names.find(&[start, entry].join(&b'/'));
            let known = known.map(|known| self.ledger.names.get(known));
            known.is_none_or(|known| known.before.is_some() || known.changes == 0)
        });
        entries.extend(self.ledger.gone.remove(&path).unwrap_or_default());
        entries.sort_unstable();
        entries.dedup();
        self.ledger.names.get_mut(name).extra_mut().entries = Some(live::digest_of_entries(&entries));
    }

    /// Remembers that a name is gone which was there before, for when its directory is listed.
    pub(super) fn note_gone(&mut self, name: NameId) {
        let path = self.ledger.names.path(name);
        let Some(parent) = resolve::parent_of(path) else { return };
        let listed = self.ledger.names.find(parent).map(|parent| self.ledger.names.get(parent));
        if self.ledger.names.get(name).before.is_some()
            && listed.is_none_or(|parent| parent.entries().is_none())
        {
            let name = &path[parent.len()..];
            let name = name.strip_prefix(b"/").unwrap_or(name).to_vec();
            self.ledger.gone.entry(parent.to_vec()).or_default().push(name);
        }
    }

    /// Resolves what an access names, from the caller's own point of view.
    pub fn locate(&mut self, caller: Caller, access: &Access) -> Result<Resolved, Unseen> {
        if self.is_elsewhere(caller) {
            view::locate_elsewhere(&mut self.resolver, caller, access)
        } else {
            view::locate(&mut self.resolver, caller, access)
        }
    }

    /// Whether a name may mean something else to a process than it does out here.
    pub fn is_elsewhere(&self, caller: Caller) -> bool {
        self.mounts.moved() || self.processes.standing(caller.tgid).elsewhere
    }

    /// Records what an unresolved path still told.
    pub fn unseen(&mut self, process: ProcessId, unseen: Unseen) {
        match unseen {
            Unseen::Elsewhere(path) => {
                self.warnings.lost(WarningKind::MountNamespace, Some(process), || {
                    format!(
                        "{} in another root or mount namespace has no name out here",
                        String::from_utf8_lossy(&path)
                    )
                });
            }
            Unseen::Unresolved(Unresolved::Loop(crossed)) => {
                self.cross(process, &crossed);
            }
            Unseen::Unresolved(Unresolved::Denied(directory, crossed)) => {
                self.cross(process, &crossed);
                let stat = fs::lstat(&directory).ok().flatten();
                if let Sight::Record(record) = self.sight(directory, stat.as_ref()) {
                    self.ledger.names.get_mut(record).merge(Operation::Existence.into(), process);
                }
            }
            Unseen::Unresolved(Unresolved::Served(path)) => match self.ignore.covering(&path) {
                Some((rule, _)) => self.suppressed.read(rule),
                None => self.warnings.lost(WarningKind::MountNamespace, Some(process), || {
                    format!(
                        "{} is on a file system that was mounted meanwhile and is served by a program: nothing \
                         there is recorded",
                        String::from_utf8_lossy(&path)
                    )
                }),
            },
            Unseen::Unresolved(Unresolved::Untold) => {
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
            Unseen::Unresolved(
                Unresolved::NotADirectory
                | Unresolved::TooLong
                | Unresolved::Nameless
                | Unresolved::Outside(_),
            ) => {}
        }
    }

    /// Records the links that a path led through, and says what was recorded.
    pub fn cross(&mut self, process: ProcessId, crossed: &[Crossed]) -> Vec<Known> {
        let mut known = Vec::new();
        for link in crossed {
            match self.sight(link.path.clone(), Some(&link.stat)) {
                Sight::Record(record) => {
                    self.ledger.names.get_mut(record).merge(Operation::Existence.into(), process);
                    known.push(Known::Record(record, Operation::Existence.into()));
                }
                Sight::Suppressed(rule, _) => {
                    self.suppressed.read(rule);
                    known.push(Known::Suppressed(rule));
                }
                Sight::Own => {}
            }
        }
        known
    }

    /// What the rules say of a path; its record, made at first sight.
    pub fn sight(&mut self, path: Vec<u8>, stat: Option<&FileStat>) -> Sight {
        if let Some(name) = self.ledger.names.find(&path) {
            if !self.is_left_out(name) {
                return Sight::Record(name);
            }
            return Sight::Suppressed(RuleId::FOREIGN_OWNER, path);
        }
        match self.rule_of(&path, stat) {
            Some(sight) => sight,
            None => Sight::Record(self.add_record(path, stat, false)),
        }
    }

    /// The record of a path that the held call may change; what a rule of ownership would leave out
    /// is recorded after all where it does.
    pub fn sight_of_change(&mut self, path: Vec<u8>, stat: Option<&FileStat>) -> Sight {
        if let Some(name) = self.ledger.names.find(&path) {
            return Sight::Record(name);
        }
        match self.rule_of(&path, stat) {
            Some(Sight::Suppressed(RuleId::FOREIGN_OWNER, _)) => {
                Sight::Record(self.add_record(path, stat, true))
            }
            Some(sight) => sight,
            None => Sight::Record(self.add_record(path, stat, false)),
        }
    }

    pub fn rule_of(&self, path: &[u8], stat: Option<&FileStat>) -> Option<Sight> {
        if is_below(path, &self.own_directory) {
            return Some(Sight::Own);
        }
        if let Some((rule, topmost)) = self.ignore.covering(path) {
            return Some(Sight::Suppressed(rule, topmost.to_vec()));
        }
        let foreign = stat.is_some_and(|stat| stat.st_uid != self.uid && !may_write(path, stat));
        foreign.then(|| Sight::Suppressed(RuleId::FOREIGN_OWNER, path.to_vec()))
    }

    fn add_record(&mut self, path: Vec<u8>, stat: Option<&FileStat>, foreign: bool) -> NameId {
        let git = self.repositories.classify(&path, stat, false);
        for directory in self.repositories.take_git_dirs() {
            self.ignore.add_git_dir(&directory);
        }
        let (stat, target) = with_target(&path, stat);
        let before = stat.as_ref().map(|stat| self.ledger.inodes.meet(stat));
        let git_epoch = self.repositories.epoch();
        let name = self.ledger.names.add(path, Name { before, git, git_epoch, foreign, ..Name::default() });
        if let Some(inode) = before.map(|inode| self.ledger.inodes.get_mut(inode))
            && inode.name.is_none()
        {
            inode.name = Some(name);
            if target.is_some() {
                inode.extra_mut().target = target;
            }
        }
        name
    }

    /// Whether the file system of a path has no files with bytes of their own.
    pub fn is_pseudo(&mut self, dev: u64, path: &[u8]) -> bool {
        self.filesystems.of(dev, path) == Filesystem::Pseudo
    }

    /// Whether the file system of a path is one of several layers.
    pub fn is_overlay(&mut self, dev: u64, path: &[u8]) -> bool {
        self.filesystems.of(dev, path) == Filesystem::Overlay
    }

    /// Whether a look at what is there may wait: an open for the other end of a FIFO or for a device, a
    /// connect for room, any look for who serves the file system.
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
        waits || self.filesystems.of(stat.st_dev, path) == Filesystem::Served
    }
}

/// The file systems that were asked about, by device.
#[derive(Default)]
pub(super) struct Filesystems(HashMap<u64, Filesystem, foldhash::fast::RandomState>);

impl Filesystems {
    /// The one of device `dev`, on which `path` is.
    fn of(&mut self, dev: u64, path: &[u8]) -> Filesystem {
        *self.0.entry(dev).or_insert_with(|| live::filesystem(path).unwrap_or(Filesystem::Local))
    }
}

/// What is at `path`, with its target if it is a link: one that another thread removes or replaces while
/// we look is what came after it.
fn with_target(path: &[u8], stat: Option<&FileStat>) -> (Option<FileStat>, Option<Vec<u8>>) {
    let mut stat = stat.copied();
    for _ in 0..8 {
        if !stat.as_ref().is_some_and(resolve::is_link) {
            return (stat, None);
        }
        if let Ok(target) = rustix::fs::readlink(path, Vec::new()) {
            return (stat, Some(target.into_bytes()));
        }
        stat = fs::lstat(path).ok().flatten();
    }
    (None, None)
}

/// Whether `path` is `directory` or lies below it.
pub(super) fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Whether we may write what another user owns; a link is its owner's.
fn may_write(path: &[u8], stat: &FileStat) -> bool {
    !resolve::is_link(stat) && rustix::fs::accessat(CWD, path, Rights::WRITE_OK, AtFlags::EACCESS).is_ok()
        || resolve::is_link(stat) && nix::unistd::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_gone_or_replaced_meanwhile_is_what_came_after_it() {
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
