//! The [`Observer`] of a recording: passes each event of the tree to the `Recording`, under its lock.
//!
//! A read-only call is judged at its entry (`read_only.rs`); one that can change something is prepared
//! at its entry and judged by its result (`changes.rs`). Neighbours: `recording.rs` has the state,
//! `finish.rs` makes the manifest's records of it at the end.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use super::calls::changes::Pending;
use super::calls::inherited::InheritedFile;
use super::calls::own_program::{CallTargets, Yielded, own_programs};
use super::calls::read_only::StartDirectory;
use super::capture::Capture;
use super::enforce::{EnforcedRules, Enforcer};
use super::finish::LeftFiles;
use super::git_state::GitStateChanges;
use super::ledger::Ledger;
use super::ledger::ids::ProcessId;
use super::ledger::in_flight::PathChanges;
use super::ledger::protect::ByteStore;
use super::lookups::Lookups;
use super::mounts::{Mounts, ServedDevices};
use super::network::Network;
use super::policy::ignore::Ignore;
use super::policy::{OwnDirectories, Policy};
use super::processes::{ProcessTable, ProcessTraits, Rights};
use super::random::RandomBytes;
use super::recording::Recording;
use super::resolve::Resolver;
use super::resolve::credentials::Credentials;
use super::warnings::Warnings;
use crate::git::Repositories;
use crate::snapshot::secrets::Secrets;
use crate::snapshot::{Exec, Keep, Unrepeatable, WarningKind};
use crate::sync::lock;
use crate::trace::asks::Ask;
use crate::trace::observer::{Caller, Decision, Errno, LateCalls, Observer, SyscallEntry, panic_text};
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::Tid;
use crate::trace::syscalls::Special;
use crate::trace::wait_status::End;

/// What a recording may keep, and what it lets through.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which states and bytes are kept.
    pub keep: Keep,
    /// Bytes of a file that was only read are stored up to this size.
    pub max_read_bytes: u64,
    /// Bytes that the tree destroyed or wrote are stored up to this size.
    pub max_blob_bytes: Option<u64>,
    /// Whether io_uring is let through, unseen.
    pub allow_io_uring: bool,
    /// The files whose bytes are withheld if they are only read; none if secrets are recorded like all else, also
    /// those of command lines.
    pub secrets: Option<Secrets>,
    /// Whether the recording is to be recalled: all that the command sees is noted, with a digest of all that it
    /// reads.
    pub recall: bool,
    /// Descriptors from before the launch of which every use is noted, each with what it stands for.
    pub watched: Vec<(u32, Vec<u8>)>,
    /// The rules that are enforced, if there are any.
    pub enforced: Option<Arc<EnforcedRules>>,
    /// The filesystems that others served before the tree was started; none if it is started now.
    pub served: Option<ServedDevices>,
}

/// Receives what happens to the processes of the tree, while it happens.
pub trait Events: Send + Sync {
    /// A process has started.
    fn started(&self, _process: Tid) {}
    /// A process has ended, and its last call was seen: by `recorder`, or by that of its step in a session.
    fn ended(&self, _recorder: Option<&Recorder>, _process: Tid, _end: End) {}
    /// A process was stopped by a signal.
    fn stopped(&self, _process: Tid, _signal: i32) {}
    /// A stopped process goes on.
    fn continued(&self, _process: Tid) {}
    /// A call was refused because of a rule that ends the tree.
    fn forbidden(&self);
}

/// The observer of a recording.
pub struct Recorder {
    /// None once the recording has ended.
    state: Mutex<Option<RecorderState>>,
    /// Those of the ledger, to be read without the lock.
    path_changes: Arc<PathChanges>,
    /// Whether rules are enforced.
    enforces: bool,
    events: Box<dyn Events>,
}

/// The credentials of this process, which keeps them.
static OURS: LazyLock<Option<Credentials>> =
    LazyLock::new(|| Credentials::of(Tid(std::process::id().cast_signed())));

struct RecorderState {
    recording: Recording,
    /// The first panic of the recorder, reported at the end: the command runs on unrecorded.
    failure: Option<String>,
}

impl Recorder {
    /// A recorder that has seen nothing yet.
    pub fn new(
        options: Options,
        ignore: Ignore,
        own: OwnDirectories,
        capture: Capture,
        events: Box<dyn Events>,
    ) -> Recorder {
        let Options {
            keep,
            max_read_bytes,
            max_blob_bytes,
            allow_io_uring,
            secrets,
            recall,
            watched,
            enforced,
            served,
        } = options;
        let enforces = enforced.is_some();
        let mut recording = Recording {
            allow_io_uring,
            opens_ask_the_tree: false,
            masks_arguments: secrets.is_some(),
            own_programs: own_programs(),
            policy: Policy::new(ignore, own),
            credentials: OURS.clone(),
            resolver: Resolver::default(),
            lookups: Lookups::default(),
            repositories: Repositories::new(),
            processes: ProcessTable::default(),
            ledger: Ledger::new(recall),
            byte_store: ByteStore::new(capture, keep, max_read_bytes, max_blob_bytes, secrets),
            git_state: GitStateChanges::default(),
            warnings: Warnings::default(),
            network: Network::default(),
            enforcer: enforced.map(Enforcer::new),
            random_bytes: RandomBytes::default(),
            unrepeatable: Unrepeatable::new(watched.iter().map(|(number, _)| *number).collect()),
            watched,
            core_dumps: HashMap::default(),
            mounts: Mounts::watch(served),
            interim: None,
        };
        // Another recording of the session may have seen it mounted.
        recording.set_served();
        let path_changes = Arc::clone(recording.ledger.in_flight.path_changes());
        let state = Mutex::new(Some(RecorderState { recording, failure: None }));
        Recorder { path_changes, state, enforces, events }
    }

    /// Does `work`, or nothing after a panic of ours: the command continues undisturbed.
    pub(super) fn guarded<T>(&self, otherwise: T, work: impl FnOnce(&mut Recording) -> T) -> T {
        let mut state = lock(&self.state);
        let Some(state) = state.as_mut().filter(|state| state.failure.is_none()) else { return otherwise };
        let recording = &mut state.recording;
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(recording))) {
            Ok(done) => done,
            Err(panic) => {
                state.failure = Some(panic_text(&*panic).to_owned());
                otherwise
            }
        }
    }

    /// Notes the regular files on descriptors that the command inherits, before it runs.
    pub fn inherit(&self, command: Tid, files: &[InheritedFile]) {
        self.guarded((), |state| {
            state.mounts.watch_process(command);
            for file in files {
                state.inherit(command, file);
            }
        });
    }

    /// Begins with a process that has run before as a part of what `image` executes; these are the files that it has
    /// open.
    pub fn adopt(&self, process: Tid, image: Exec, traits: ProcessTraits, files: &[InheritedFile]) {
        self.guarded((), |state| {
            state.mounts.watch_process(process);
            let id = state.processes.adopt(process, state.masked(image), traits);
            let caller = Caller { tid: process, tgid: process };
            state.note_own_program(caller);
            if traits.rights == Rights::Ours {
                state.compare_credentials(caller);
            }
            state.journal_process(id);
            if traits.has_io_uring {
                state.warn_of_io_uring(caller);
            }
            for file in files {
                state.inherit(process, file);
            }
        });
    }

    /// Decides about a call that reads, executes or contacts something and is not recorded, by the rules that are enforced.
    pub fn enforce(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        self.judged(call, |state| state.enforce_unrecorded(caller, call))
    }

    /// The decision about a call; if rules are enforced, the tree is ended if they say so, and what can't be judged any
    /// more is not made.
    fn judged(
        &self,
        call: &SyscallEntry<'_>,
        judge: impl FnOnce(&mut Recording) -> Decision<Pending>,
    ) -> Decision<Pending> {
        let failed = match self.enforces && !call.decoded.asks_only() {
            true => Decision::Refuse(Errno(libc::EACCES)),
            false => Decision::Continue,
        };
        let (decision, ends_tree) = self.guarded((failed, false), |state| {
            let decision = judge(state);
            (decision, state.enforcer.as_ref().is_some_and(Enforcer::is_to_end_tree))
        });
        if ends_tree {
            self.events.forbidden();
        }
        decision
    }

    /// Notes that a process that was adopted executes a program whose execve was not passed to this recorder.
    pub fn changed_image(&self, process: Tid, image: Exec) {
        self.guarded((), |state| {
            state.processes.execute(process, state.masked(image));
            state.note_own_program(Caller { tid: process, tgid: process });
        });
    }

    /// The targets of a call; none if it may wait for something outside of the tree: then nobody waits for it.
    pub fn targets(&self, caller: Caller, call: &SyscallEntry<'_>) -> Option<CallTargets> {
        self.guarded(None, |state| state.targets(caller, call))
    }

    /// Takes the states of what its processes have changed, or have open, if a call that another recording observes may
    /// change that, and returns what that is.
    pub fn yield_to(&self, caller: Caller, call: &SyscallEntry<'_>) -> Yielded {
        self.guarded(Yielded::default(), |state| state.yield_to(caller, call))
    }

    /// Notes that a call of `other` to which it yielded has succeeded; `served` is what the tree serves. Without `other`, it
    /// ends, and what its processes have open is of the recording after it.
    pub fn has_yielded(&self, yielded: &Yielded, other: Option<&Recorder>, served: &ServedDevices) {
        let open = self.guarded(Vec::new(), |state| {
            if other.is_none() {
                state.keep_yielded_states(yielded);
            }
            state.has_yielded(yielded, served)
        });
        let Some(other) = other.filter(|_| !open.is_empty()) else { return };
        // What is written from now on is not the other one's.
        other.guarded((), Recording::take_interim_states);
        self.guarded((), |state| open.iter().for_each(|(process, file)| state.inherit(*process, file)));
    }

    /// Takes the states of all that its processes have changed, or have open: what is changed from now on without a call
    /// of theirs is not theirs. Returns the states of what they have open.
    pub fn leave_open_files(&self) -> LeftFiles {
        self.guarded(LeftFiles::default(), Recording::leave_open_files)
    }

    /// As [`Recorder::leave_open_files`], but the states of these files are taken in any case, changed or not, and
    /// returned, by all names that the recording has of them.
    pub fn leave_files(&self, files: &[InheritedFile]) -> LeftFiles {
        self.guarded(LeftFiles::default(), |state| state.leave_files(files))
    }

    /// As [`Recorder::leave_open_files`], but for files that were left before and may have been written to since: their
    /// states are taken once more, and returned.
    pub fn leave_again(&self, files: &LeftFiles) -> LeftFiles {
        self.guarded(LeftFiles::default(), |state| state.leave_again(files))
    }

    /// Whether its processes have changed a file, or may be changing it.
    pub fn has_changed(&self, file: &InheritedFile) -> bool {
        self.guarded(false, |state| {
            let ledger = &state.ledger;
            let inode = ledger.inodes.find(file.stat().identity());
            // What it has not met there is another step's.
            let is_its_own = |name| inode.is_some() || !ledger.changed_by_others.contains(&name);
            let by_name = ledger.names.find(file.path());
            by_name.is_some_and(|name| ledger.changes(name) > 0 && is_its_own(name))
                || inode.is_some_and(|inode| ledger.inodes.get(inode).changes > 0)
        })
    }

    /// From now on, notes when each path is changed: another recording may change it at the same time.
    pub fn note_change_times(&self) {
        self.guarded((), |state| {
            state.ledger.note_change_times();
        });
    }

    /// Notes that a call which another recording observes may have changed the mounts.
    pub fn mounts_changed(&self, caller: Caller) {
        self.guarded((), |state| state.mounts_changed(caller, "", None));
    }

    /// Ends the recording: the tree is gone.
    pub(super) fn take_state(&self) -> Result<Recording, String> {
        match lock(&self.state).take() {
            Some(RecorderState { failure: Some(failure), .. }) => Err(failure),
            Some(RecorderState { recording, .. }) => Ok(recording),
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

    fn on_entry(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        let start = StartDirectory::of(caller, call, &self.path_changes);
        self.judged(call, |state| state.on_entry(caller, call, start))
    }

    fn on_result(&self, caller: Caller, pending: Pending, result: Option<i64>) {
        self.guarded((), |state| state.conclude(caller, pending, result));
    }

    fn late_calls(&self, process: Tid) -> LateCalls {
        self.guarded(LateCalls::None, |state| {
            let caller = Caller { tid: process, tgid: process };
            let traits = state.processes.traits(process);
            let accepts_some = traits.rights == Rights::Ours
                && self.path_changes.at_rest().is_some()
                && !traits.shares_working_directory
                && state.view_of(caller).is_none()
                && !state.resolver.is_serving();
            match traits.shares_memory {
                _ if !accepts_some => LateCalls::None,
                // Another thread may rewrite the path of an open before the kernel reads it.
                true => LateCalls::Queries,
                false => LateCalls::All,
            }
        })
    }

    fn read_only_call_is_over(&self, caller: Caller) {
        self.guarded((), |state| state.ledger.in_flight.end_unseen(caller.tid));
    }

    fn unreadable(&self, caller: Caller, name: &'static str) {
        self.guarded((), |state| {
            let Some(process) = state.processes.living_id(caller.tgid) else { return };
            state.warnings.lost(WarningKind::UnreadableTracee, Some(process), || {
                format!("the arguments of {name} of process {} can't be read", caller.tgid)
            });
        });
    }

    fn descriptor_used(&self, caller: Caller, descriptor: u32) {
        self.guarded((), |recording| recording.note_descriptor(caller, descriptor));
    }

    fn asked(&self, caller: Caller, ask: Ask) {
        self.guarded((), |recording| recording.asked(caller, ask));
    }

    fn signal(&self, caller: Caller, signal: i32) {
        self.guarded((), |state| state.expect_core_dump(caller, signal));
    }

    fn executed(&self, caller: Caller, pending: Option<Pending>) {
        self.guarded((), |state| state.executed(caller, pending));
    }

    fn started(&self, process: Tid, parent: Tid) {
        self.guarded((), |state| {
            let id = state.processes.start(process, parent);
            state.random_bytes.started(process, parent);
            state.journal_process(id);
        });
        self.events.started(process);
    }

    fn shares_memory(&self, process: Tid, shares: bool) {
        self.guarded((), |state| {
            state.processes.set_traits(process, |traits| traits.shares_memory = shares);
        });
    }

    fn share_working_directory(&self, process: Tid, other: Tid) {
        self.guarded((), |state| {
            for process in [process, other] {
                state.processes.set_traits(process, |traits| traits.shares_working_directory = true);
            }
        });
    }

    fn ended(&self, process: Tid, end: End) {
        self.guarded((), |state| {
            state.ledger.in_flight.end_unseen(process);
            state.core_dump_is_over(process, end);
            let id = state.processes.living_id(process);
            state.processes.end(process, end);
            state.mounts.process_ended(process);
            if let (Some(id), Some(journal)) = (id, &mut state.byte_store.journal) {
                journal.ended(id, end.exit_status());
            }
        });
        self.events.ended(Some(self), process, end);
    }

    fn stopped(&self, process: Tid, signal: i32) {
        self.events.stopped(process, signal);
    }

    fn continued(&self, process: Tid) {
        self.events.continued(process);
    }

    fn abandoned(&self, process: Tid) {
        let detail = format!(
            "process {process} outlived the command and its parent, which could not trace it, and was ended"
        );
        self.note(WarningKind::Survivors, &detail);
    }

    fn gap(&self, what: &str) {
        self.lost(WarningKind::UnreadableTracee, what);
    }

    fn failed(&self, bug: &str) {
        if let Some(state) = lock(&self.state).as_mut() {
            state.failure.get_or_insert_with(|| bug.to_owned());
        }
    }
}

impl Recording {
    fn on_entry(
        &mut self,
        caller: Caller,
        call: &SyscallEntry<'_>,
        start: Option<StartDirectory>,
    ) -> Decision<Pending> {
        self.ledger.in_flight.end_unseen(caller.tid);
        let is_own = self.is_own_call(caller, call);
        self.judge_random_bytes(caller, call.decoded);
        if is_own && self.ledger.for_recall {
            self.unrepeatable.ran_ourselves = true;
        }
        if call.decoded.is_read_only() {
            if is_own {
                return self.enforce_unrecorded(caller, call);
            }
            // A process that was killed while its notification waited has made no call.
            return match self.processes.living_id(caller.tgid) {
                Some(process) => self.judge_read_only(caller, process, call, start),
                None => Decision::Continue,
            };
        }
        let process = self.processes.id(caller.tgid);
        if let Some(special) = call.decoded.special
            && let Some(decision) = self.special(caller, process, call, special)
        {
            return decision;
        }
        if is_own { self.prepare_own_call(caller, call) } else { self.prepare(caller, call) }
    }

    fn warn_of_io_uring(&mut self, caller: Caller) {
        let process = self.processes.id(caller.tgid);
        self.warnings.lost(WarningKind::IoUring, Some(process), || {
            format!("process {} uses io_uring, whose operations are not seen", caller.tgid)
        });
    }

    /// Judges a call that matters beyond its paths; none where its result is wanted all the same.
    pub fn special(
        &mut self,
        caller: Caller,
        process: ProcessId,
        call: &SyscallEntry<'_>,
        special: Special,
    ) -> Option<Decision<Pending>> {
        if let Some(refused) = self.enforce_special(caller, process, call, special) {
            return Some(refused);
        }
        let who = caller.tgid;
        match special {
            Special::IoUring if !self.allow_io_uring => {
                self.warnings.note(WarningKind::IoUring, Some(process), || {
                    format!("process {who} asked for io_uring and was refused (ENOSYS)")
                });
                return Some(Decision::Refuse(Errno(libc::ENOSYS)));
            }
            Special::IoUring => self.warn_of_io_uring(caller),
            // As where it is disabled.
            Special::SecretMemory => return Some(Decision::Refuse(Errno(libc::ENOSYS))),
            Special::Unjudgeable => return Some(Decision::Continue),
            Special::Ptrace { thread } if thread.map(Tid).is_none_or(has_this_tracer) => {
                let program = self.processes.program(process);
                self.warnings.note(WarningKind::NestedTracer, Some(process), || {
                    format!(
                        "{program} (process {who}) could not trace or debug: the recording refused ptrace with EPERM"
                    )
                });
            }
            // What happens to others is known by the result.
            Special::Ptrace { .. } | Special::FilterQuery | Special::Dispatch => {}
            Special::Namespace | Special::Untraced { namespace: true, .. } => {
                self.processes.set_traits(caller.tgid, |traits| traits.in_foreign_mount_namespace = true);
                // No result tells what rights a process has that is created in another namespace.
                if matches!(call.name, "clone" | "clone3") {
                    self.processes.set_traits(caller.tgid, |traits| traits.rights = Rights::Others);
                    return Some(Decision::Continue);
                }
            }
            // The tracer clears CLONE_UNTRACED, so the child is traced.
            Special::Untraced { .. } => return Some(Decision::Continue),
            Special::Landlock => {
                self.processes.set_traits(caller.tgid, |traits| traits.rights = Rights::Others);
                return Some(Decision::Continue);
            }
            // What they have become is known by the result.
            Special::Credentials => {}
            Special::UnnamedOpen { .. }
            | Special::Received { .. }
            | Special::Listen { .. }
            | Special::Closes { .. } => {}
            // The result tells whether the kernel has the call at all, or refuses it.
            Special::Unmodelled => self.opens_ask_the_tree |= call.name == "fanotify_init",
            Special::Compat | Special::Filter { .. } => {}
        }
        None
    }
}

/// Whether a thread is of the tree: its tracer is this process.
fn has_this_tracer(thread: Tid) -> bool {
    let tracer = ProcStatus::of(thread).and_then(|status| status.line("TracerPid:")?.parse().ok());
    tracer == Some(std::process::id())
}
