//! The edits of a session that have not ended, and which calls of its program are of one.
//!
//! Neighbour: `session.rs` says when an edit begins and is cut.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Step;
use crate::observe::calls::changes::Pending;
use crate::observe::calls::inherited::InheritedFile;
use crate::observe::finish::LeftFiles;
use crate::observe::processes::ProcessTraits;
use crate::snapshot::Exec;
use crate::trace::observer::{Caller, Decision, Observer as _, SyscallEntry};
use crate::trace::proc_status::ProcStatus;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{DecodedSyscall, Effect, FileRef, Special};

/// How long after its last change an edit is over.
const QUIET: Duration = Duration::from_secs(2);

/// Devices that keep nothing of what is written to them.
const DEVICES: [&[u8]; 7] =
    [b"/dev/full", b"/dev/null", b"/dev/ptmx", b"/dev/random", b"/dev/tty", b"/dev/urandom", b"/dev/zero"];

/// What the program of a session changes itself, from one command to the next.
pub(super) struct Edit {
    /// Its recording.
    pub step: Arc<dyn Step>,
    /// The processes that its recorder knows.
    known: HashSet<Tid, foldhash::fast::RandomState>,
    /// How many of their calls will report a result.
    in_flight: usize,
    /// When a call came that may change something.
    changed: Option<Instant>,
}

impl Edit {
    pub fn new(step: Arc<dyn Step>) -> Edit {
        Edit { step, known: HashSet::default(), in_flight: 0, changed: None }
    }

    /// Has the recorder know a process, with the files that it has open.
    pub fn adopt(&mut self, process: Tid, image: Exec, traits: ProcessTraits, files: &[InheritedFile]) {
        self.known.insert(process);
        self.step.recorder().adopt(process, image, traits, files);
    }

    pub fn knows(&self, process: Tid) -> bool {
        self.known.contains(&process)
    }

    /// How long it goes on if nothing more is changed; none if nothing was.
    pub fn quiet_in(&self) -> Option<Duration> {
        self.changed.map(|changed| QUIET.saturating_sub(changed.elapsed()))
    }

    /// How it leaves the files that its processes have open.
    pub fn leave(&self) -> Left {
        let step = Arc::clone(&self.step);
        Left { files: step.recorder().leave_open_files(), step }
    }

    /// Decides about a call of a process that the recorder knows.
    pub fn on_entry(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        self.changed = Some(Instant::now());
        let decision = self.step.recorder().on_entry(caller, call);
        self.in_flight += usize::from(matches!(decision, Decision::AwaitResult(_)));
        decision
    }

    /// Decides about a call that is not recorded, by the rules that are enforced.
    pub fn enforce(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        self.changed.get_or_insert_with(Instant::now);
        let decision = self.step.recorder().enforce(caller, call);
        self.in_flight += usize::from(matches!(decision, Decision::AwaitResult(_)));
        decision
    }
}

/// The files that a step leaves to the next edit.
pub(super) struct Left {
    pub step: Arc<dyn Step>,
    pub files: LeftFiles,
}

/// The edits that have not ended.
#[derive(Default)]
pub(super) struct Edits {
    /// The one of the next call.
    pub current: Option<Edit>,
    /// Those that were cut while calls of theirs were in flight.
    pub ending: Vec<Edit>,
    /// The files that the program has open and a running command is changing: until that ends, all changes of them are the
    /// command's.
    pub yielded: Vec<InheritedFile>,
}

impl Edits {
    pub fn all(&self) -> impl Iterator<Item = &Edit> {
        self.current.iter().chain(&self.ending)
    }

    /// Takes all of them, the first one first.
    pub fn take_all(&mut self) -> Vec<Edit> {
        self.ending.drain(..).chain(self.current.take()).collect()
    }

    /// Ends an edit, once none of its calls is in flight.
    pub fn end(&mut self, edit: Edit) {
        match edit.in_flight {
            0 => edit.step.end(None),
            _ => self.ending.push(edit),
        }
    }

    /// Notes that a call of an edit has ended; the edits that were cut meanwhile, and can end now.
    pub fn call_ended(&mut self, step: &Arc<dyn Step>) -> Vec<Edit> {
        let mut all = self.current.iter_mut().chain(&mut self.ending);
        if let Some(edit) = all.find(|edit| Arc::ptr_eq(&edit.step, step)) {
            edit.in_flight = edit.in_flight.saturating_sub(1);
        }
        self.ending.extract_if(.., |edit| edit.in_flight == 0).collect()
    }

    /// Forgets a process, whose number may be another's.
    pub fn process_ended(&mut self, process: Tid) {
        for edit in self.current.iter_mut().chain(&mut self.ending) {
            edit.known.remove(&process);
        }
    }
}

/// Whether a call may change something, so that an edit begins with it; what the mounts are says what later calls
/// change.
pub(super) fn may_change(decoded: &DecodedSyscall, in_foreign_mount_namespace: bool) -> bool {
    let is_device = |file: &FileRef| {
        !in_foreign_mount_namespace && matches!(file, FileRef::Path { path, .. } if is_device(path))
    };
    let changes = decoded.accesses.iter().any(|access| match access.effect {
        Effect::Execute | Effect::ChangeDirectory => false,
        Effect::ChangeRoot | Effect::MountPoint => true,
        _ => !access.is_read_only() && !is_device(&access.file),
    });
    let brings_files = matches!(
        decoded.special,
        Some(
            Special::IoUring
                | Special::UnnamedOpen { .. }
                | Special::Received { .. }
                | Special::Namespace
                | Special::Untraced { namespace: true, .. }
                | Special::Unmodelled
                | Special::Compat
        )
    );
    changes || brings_files
}

/// Whether a call changes a working directory that others share, from which one of their calls in flight may start. A child
/// of vfork(2) shares memory, but not the working directory.
pub(super) fn changes_shared_directory(
    decoded: &DecodedSyscall,
    process: Tid,
    traits: ProcessTraits,
) -> bool {
    let has_threads = || {
        ProcStatus::of(process)
            .is_some_and(|status| status.line("Threads:").is_some_and(|count| count != "1"))
    };
    decoded.accesses.iter().any(|access| access.effect == Effect::ChangeDirectory)
        && (traits.shares_working_directory || traits.shares_memory && has_threads())
}

fn is_device(path: &[u8]) -> bool {
    let is_terminal = |number: &[u8]| number.iter().all(u8::is_ascii_digit);
    DEVICES.contains(&path) || path.strip_prefix(b"/dev/pts/").is_some_and(is_terminal)
}
