//! What a held call means for which path: the [`Observer`] of a recording.
//!
//! A call that only looks is judged while it is held; one that can change something is prepared
//! (`changes.rs`) and judged by its result. Paths come from `view.rs`, records go to `table.rs`,
//! bytes to `capture.rs`, and at the end `finish.rs` makes the manifest's records of it all.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::stat::FileStat;
use rustix::fs::{Access as Rights, AtFlags, CWD};

use super::capture::Capture;
use super::changes::Pending;
use super::content::{Holdings, Keepers};
use super::credentials::Credentials;
use super::git::Repositories;
use super::ignore::{Ignore, RuleId};
use super::lookups::{Known, Lookups};
use super::mounts::Mounts;
use super::processes::ProcessTable;
use super::resolve::{self, Crossed, Resolved, Resolver, Unresolved};
use super::suppressed::Counts;
use super::table::{Extra, PathObservation, ProcessId, RecordId, Stat, Table};
use super::view::{self, Unseen};
use super::warnings::Warnings;
use super::working::WorkingDirectories;
use crate::snapshot::live::{self, Filesystem};
use crate::snapshot::{Operation, Operations, WarningKind};
use crate::trace::stop::End;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, Effect, Special};
use crate::trace::tracer::{Caller, HeldCall, Observer, Verdict};

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
    pub working: WorkingDirectories,
    pub repositories: Repositories,
    pub processes: ProcessTable,
    pub table: Table,
    pub capture: Capture,
    pub warnings: Warnings,
    pub suppressed: Counts,
    pub filesystems: Filesystems,
    /// Who keeps the before-states of files with several names.
    pub keepers: Keepers,
    /// Names that are gone from directories which were not listed yet.
    gone: HashMap<Vec<u8>, Vec<Vec<u8>>, foldhash::fast::RandomState>,
    /// The before-states that calls under way hold.
    pub holdings: Holdings,
    /// The file that each process may leave as its core dump.
    pub core_dumps: HashMap<Tid, super::core_dump::Expected, foldhash::fast::RandomState>,
    /// Whether names may have come to mean something else.
    pub mounts: Mounts,
    /// The first panic in here, told at the end: the command runs on without us.
    failure: Option<String>,
}

/// What the rules say of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is recorded.
    Record(RecordId),
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
            working: WorkingDirectories::default(),
            repositories: Repositories::new(),
            processes: ProcessTable::default(),
            table: Table::default(),
            capture,
            warnings: Warnings::default(),
            suppressed: Counts::default(),
            filesystems: Filesystems::default(),
            keepers: Keepers::default(),
            gone: HashMap::default(),
            holdings: Holdings::default(),
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
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                state.failure = Some(text.unwrap_or_default());
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

    fn before(&self, caller: Caller, call: &HeldCall<'_>) -> Verdict<Pending> {
        self.guarded(Verdict::Continue, |state| state.before(caller, call))
    }

    fn after(&self, caller: Caller, pending: Pending, result: Option<i64>) {
        self.guarded((), |state| state.apply(caller, pending, result));
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
}

impl State {
    fn before(&mut self, caller: Caller, call: &HeldCall<'_>) -> Verdict<Pending> {
        if call.decoded.looks_only() {
            // One that was killed while its look waited in the other lane has made no call.
            return match self.processes.living_id(caller.tgid) {
                Some(process) => self.judge_looks(caller, process, call),
                None => Verdict::Continue,
            };
        }
        let process = self.processes.id(caller.tgid);
        if let Some(special) = call.decoded.special
            && let Some(verdict) = self.special(caller, process, call, special)
        {
            return verdict;
        }
        match self.prepare(caller, call) {
            Some(pending) => Verdict::AwaitResult(pending),
            None => Verdict::Continue,
        }
    }

    /// Judges a call that only looks.
    ///
    /// Its result is wanted where our look at its entry may not be the kernel's: what a thread with other
    /// rights than ours may open, the kernel says, and another thread may rewrite the path of an open. An
    /// open that may wait is judged at its entry all the same.
    fn judge_looks(&mut self, caller: Caller, process: ProcessId, call: &HeldCall<'_>) -> Verdict<Pending> {
        let standing = self.processes.standing(caller.tgid);
        let reads = |access: &Access| matches!(access.effect, Effect::Open(open) if open.read);
        let reads = call.decoded.accesses.iter().any(reads);
        if reads
            && standing.other_rights
            && let Some(pending) = self.prepare(caller, call)
            && !pending.parts.iter().any(|part| self.may_wait(part.effect, &part.path, part.stat.as_ref()))
        {
            return Verdict::AwaitResult(pending);
        }
        let mut may_wait = false;
        for access in &call.decoded.accesses {
            may_wait |= self.look(caller, process, access);
        }
        if may_wait {
            Verdict::MayWait
        } else if reads && standing.shares_memory {
            Verdict::AwaitResult(Pending::of_look(call.name))
        } else {
            Verdict::Continue
        }
    }

    /// Judges a call that matters beyond its paths; none where its result is wanted all the same.
    fn special(
        &mut self,
        caller: Caller,
        process: ProcessId,
        call: &HeldCall<'_>,
        special: Special,
    ) -> Option<Verdict<Pending>> {
        let who = caller.tgid;
        match special {
            Special::IoUring if !self.options.allow_io_uring => {
                self.warnings.note(WarningKind::IoUring, Some(process), || {
                    format!("process {who} asked for io_uring and was refused (ENOSYS)")
                });
                return Some(Verdict::Refuse);
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
                    return Some(Verdict::Continue);
                }
            }
            // The tracer has mended it: the child is followed.
            Special::Untraced { .. } => return Some(Verdict::Continue),
            Special::Landlock => {
                if let Some(standing) = self.processes.standing_mut(caller.tgid) {
                    standing.other_rights = true;
                }
                return Some(Verdict::Continue);
            }
            // What they have become is known by the result.
            Special::Credentials => {}
            Special::UnnamedOpen { .. } | Special::Received { .. } => {}
            // Whether the kernel has the call at all, or refuses it, its result tells.
            Special::Unmodelled | Special::Compat | Special::Listener => {}
        }
        None
    }

    /// Compares the credentials of a thread with ours, after a call that may have changed them.
    pub(super) fn compare_credentials(&mut self, caller: Caller) {
        let Some(standing) = self.processes.standing_mut(caller.tgid) else { return };
        let ours = &self.credentials;
        standing.other_rights |= ours.is_none() || Credentials::of(caller.tid) != *ours;
    }

    /// Judges an access that only looks, at its entry; whether it may wait for something outside.
    fn look(&mut self, caller: Caller, process: ProcessId, access: &Access) -> bool {
        let standing = self.processes.standing(caller.tgid);
        let plain = !self.is_elsewhere(caller) && !standing.other_rights;
        let place = (plain && !self.working.moves())
            .then(|| self.lookups.place(&mut self.working, &self.resolver, caller, access))
            .flatten();
        if let Some(place) = &place
            && let Some(known) = self.lookups.find(place, &self.table)
        {
            for known in known {
                match known {
                    Known::Record(record, operations) => {
                        self.table.get_mut(*record).merge(*operations, process)
                    }
                    Known::Suppressed(rule) => self.suppressed.read(*rule),
                }
            }
            return false;
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
            Err(unseen) => {
                let may_wait = !unseen.is_refused();
                self.unseen(process, unseen);
                return may_wait;
            }
        };
        let may_wait = self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref());
        let mut known = self.cross(process, &resolved.crossed);
        let Some(operations) = self.judge_look(access.effect, &resolved) else { return may_wait };
        match self.sight(resolved.path, resolved.stat.as_ref()) {
            Sight::Record(record) => {
                self.look_content(record, access.effect, operations, resolved.stat.as_ref());
                self.table.get_mut(record).merge(operations, process);
                known.push(Known::Record(record, operations));
            }
            Sight::Suppressed(rule, _) => {
                self.suppressed.read(rule);
                known.push(Known::Suppressed(rule));
            }
            Sight::Own => return may_wait,
        }
        if let Some(place) = place
            && !may_wait
            && !resolved.crossed.iter().any(|link| resolve::is_on_procfs(&link.stat))
        {
            self.lookups.learn(place, &self.table, known.into(), resolved.stat.is_none());
        }
        may_wait
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
            _ => existence,
        }
    }

    /// Whether a thread with our own rights may read what is there.
    fn may_read(&self, path: &[u8], stat: &FileStat) -> bool {
        // Root may; an owner's own bit decides for an owner; all else is the kernel's to say.
        (stat.st_uid == self.uid && stat.st_mode & 0o400 != 0)
            || rustix::fs::accessat(CWD, path, Rights::READ_OK, AtFlags::EACCESS).is_ok()
    }

    /// Takes the content or the entries that a look needs.
    fn look_content(
        &mut self,
        record: RecordId,
        effect: Effect,
        operations: Operations,
        stat: Option<&FileStat>,
    ) {
        match effect {
            Effect::Open(_) if operations.contains(Operation::Read) => self.read_content(record, stat),
            Effect::List => self.list_entries(record),
            _ => {}
        }
    }

    /// Takes the digest of the entries that a directory had before the tree changed any, once.
    pub fn list_entries(&mut self, record: RecordId) {
        let observation = self.table.get(record);
        if observation.extra.as_ref().is_some_and(|extra| extra.entries.is_some())
            || !observation.before.is_some_and(|before| before.is_directory())
        {
            return;
        }
        let path = self.table.path(record).to_vec();
        let Ok(mut names) = live::entries(&path) else { return };
        let start = path.strip_suffix(b"/").unwrap_or(&path);
        names.retain(|name| {
            let known = self.table.find(&[start, name].join(&b'/')).map(|record| self.table.get(record));
            known.is_none_or(|known| known.before.is_some() || known.changes == 0)
        });
        names.extend(self.gone.remove(&path).unwrap_or_default());
        names.sort_unstable();
        names.dedup();
        self.table.get_mut(record).extra_mut().entries = Some(live::digest_of_entries(&names));
    }

    /// Remembers that a name is gone which was there before, for when its directory is listed.
    pub(super) fn note_gone(&mut self, record: RecordId) {
        let path = self.table.path(record);
        let Some(parent) = resolve::parent_of(path) else { return };
        let listed = self.table.find(parent).and_then(|parent| self.table.get(parent).extra.as_ref());
        if self.table.get(record).before.is_some() && listed.is_none_or(|extra| extra.entries.is_none()) {
            let name = &path[parent.len()..];
            let name = name.strip_prefix(b"/").unwrap_or(name).to_vec();
            self.gone.entry(parent.to_vec()).or_default().push(name);
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
                let stat = resolve::lstat(&directory).ok().flatten();
                if let Sight::Record(record) = self.sight(directory, stat.as_ref()) {
                    self.table.get_mut(record).merge(Operation::Existence.into(), process);
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
                    self.table.get_mut(record).merge(Operation::Existence.into(), process);
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
        if let Some(record) = self.table.find(&path) {
            if !self.table.get(record).foreign || self.table.get(record).changes > 0 {
                return Sight::Record(record);
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
        if let Some(record) = self.table.find(&path) {
            return Sight::Record(record);
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

    fn add_record(&mut self, path: Vec<u8>, stat: Option<&FileStat>, foreign: bool) -> RecordId {
        let git = self.repositories.classify(&path, stat, false);
        for directory in self.repositories.take_git_dirs() {
            self.ignore.add_git_dir(&directory);
        }
        let (stat, target) = with_target(&path, stat);
        let stat = stat.as_ref();
        let before = stat.map(Stat::from);
        let extra = target.map(|target| Box::new(Extra { target: Some(target), ..Extra::default() }));
        let git_epoch = self.repositories.epoch();
        let mut observation =
            PathObservation { before, git, git_epoch, foreign, extra, ..PathObservation::default() };
        self.meet_names(&mut observation, stat);
        let record = self.table.add(path, observation);
        self.keep_names(record);
        record
    }

    /// Whether the file system of a record has no files with bytes of their own.
    pub fn is_pseudo(&mut self, dev: u64, record: RecordId) -> bool {
        self.filesystems.of(dev, self.table.path(record)) == Filesystem::Pseudo
    }

    /// Whether the file system of a path is one of several layers.
    pub fn is_overlay(&mut self, dev: u64, path: &[u8]) -> bool {
        self.filesystems.of(dev, path) == Filesystem::Overlay
    }

    /// Whether a look at what is there may wait: an open for the other end of a FIFO or for a device, a
    /// connect for room, any look for who serves the file system.
    fn may_wait(&mut self, effect: Effect, path: &[u8], stat: Option<&FileStat>) -> bool {
        /// Null, zero, random and the like (mem(4), null(4)).
        const MEMORY_DEVICES: u32 = 1;
        let Some(stat) = stat else { return false };
        let waits = match (effect, stat.st_mode & libc::S_IFMT) {
            (Effect::Open(open), _) if open.path_only => false,
            (Effect::Open(_), libc::S_IFCHR) => libc::major(stat.st_rdev) != MEMORY_DEVICES,
            (Effect::Open(_), libc::S_IFIFO | libc::S_IFBLK) => true,
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
        stat = resolve::lstat(path).ok().flatten();
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
        let link = resolve::lstat(bytes).unwrap();
        assert_eq!(with_target(bytes, link.as_ref()).1.unwrap(), b"target");
        std::fs::remove_file(&path).unwrap();
        assert!(with_target(bytes, link.as_ref()).0.is_none());
        std::fs::write(&path, "").unwrap();
        let (stat, target) = with_target(bytes, link.as_ref());
        assert!(resolve::is_regular(&stat.unwrap()) && target.is_none());
    }
}
