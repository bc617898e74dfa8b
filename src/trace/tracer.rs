//! The tracing thread: follows a tree of threads to its end, in one loop over waitpid(2).
//!
//! What a syscall means is for the [`Observer`] to say. A tracee that dies between two steps is ordinary
//! (ESRCH); the loop ends at ECHILD only. Neighbours: `tracees.rs` remembers what is known of each thread;
//! read-only syscalls mostly do without this thread, see `notifications.rs`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::asks;
use super::descriptors;
use super::filter::{self, Interception};
use super::foreign_filter::{self, ChangedProgram};
use super::inside::Leaving;
use super::memory::{Memory as _, RemoteAddr};
use super::nested::{Attached, Nested, Released};
use super::observer::{Caller, Decision, Errno, Observer, SyscallEntry, Waiting, failed, gap};
use super::pins::{self, NotMapped, PinnedArguments, Pins, Slot, Unpinned};
use super::postponed::{self, PostponedQueue};
use super::proc_status::process_and_parent;
use super::question;
use super::refused_tracers::RefusedTracers;
use super::shared::Shared;
use super::signal_delivery::{self, DyingInit, SignalEffect};
use super::steady::steady_memory;
use super::sys::{self, Resume, Stopped, SyscallStop, Tid, TraceeMemory, Waited, arch};
use super::syscalls::{self, Args, DecodedSyscall, Interpretation, Refusable, Special};
use super::tracees::Tracees;
use super::wait_status::{Creation, End, Stop};

/// For this long after a stop the next one is likely.
const SPIN: Duration = Duration::from_micros(50);

const PTRACE: u64 = libc::SYS_ptrace.cast_unsigned();
const CLONE3: u64 = libc::SYS_clone3.cast_unsigned();
const READ_MEMORY: u64 = libc::SYS_process_vm_readv.cast_unsigned();
const WRITE_MEMORY: u64 = libc::SYS_process_vm_writev.cast_unsigned();

/// What becomes of a syscall that was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Yes,
    /// It was skipped, or none of its arguments is ever copied.
    No,
    /// Its thread makes it again, from the start.
    Again,
}

/// What becomes of a tracee after its stop.
enum Next {
    /// It is resumed so that its next stop is the one that matters, with a signal delivered (0: none).
    Resume(i32),
    /// It stays in its group-stop.
    Listen,
    /// It stays at the entry of its syscall until that is decided again.
    Postpone,
    /// It stays in its stop, which a tracer inside of the tree sees.
    Hold(Stop),
    /// It is detached, to die of this signal.
    LeaveToDie(i32),
}

/// Argument registers that we have changed, with what was in them.
#[derive(Default)]
struct ChangedArguments {
    original: SmallVec<[(u8, u64); 2]>,
    /// What they point to meanwhile, kept for as long.
    _slot: Option<Slot>,
}

/// A thread at its first stop, which its creator's event has not announced yet.
struct Parked {
    tracee: Stopped,
    stop: Stop,
    since: Instant,
}

/// Follows a tree of threads.
pub struct Tracer<'a, O: Observer> {
    observer: &'a O,
    command: Tid,
    interception: Interception,
    shared: &'a Shared<O::Pending>,
    tracees: Tracees<O::Pending>,
    /// The arguments of each thread in which we have changed some; they are restored at the thread's next stop.
    changed: HashMap<Tid, ChangedArguments, RandomState>,
    /// The threads whose open has the mark by which the filter stops it, with what was in that register. The mark stays
    /// until the open ends, since the kernel runs the filter again after the stop (seccomp(2), SECCOMP_RET_TRACE).
    marked: HashMap<Tid, u64, RandomState>,
    /// The seccomp program of each thread in which we have changed it; it is restored at the same stop.
    changed_programs: HashMap<Tid, ChangedProgram, RandomState>,
    /// The threads whose first stop came before their creator's event: they wait for it.
    parked: HashMap<Tid, Parked, RandomState>,
    /// The tracees whose syscall is postponed.
    postponed: PostponedQueue<Stopped>,
    /// Whether an awaited syscall has ended since those were last decided.
    call_ended: bool,
    /// Processes that are no longer traced, so that they can die.
    dying: Vec<DyingInit>,
    nested: Nested,
    refused_tracers: RefusedTracers,
    /// The descriptors of which every use is reported; none if neither that is reported nor what is asked for.
    watched: Option<&'a [u32]>,
    /// The memory to which arguments are copied; none if no call is refused by rules.
    pins: Option<Pins>,
    /// Whether memory of processes outside of the tree may not be read.
    guards_memory_outside: bool,
}

impl<'a, O: Observer> Tracer<'a, O> {
    /// A tracer of `command`, which is seized and has made no syscall yet.
    pub fn new(
        command: Tid,
        interception: Interception,
        shared: &'a Shared<O::Pending>,
        observer: &'a O,
    ) -> Self {
        Tracer {
            observer,
            command,
            interception,
            shared,
            tracees: Tracees::new(command),
            changed: HashMap::default(),
            marked: HashMap::default(),
            changed_programs: HashMap::default(),
            parked: HashMap::default(),
            postponed: PostponedQueue::new(),
            call_ended: false,
            dying: Vec::new(),
            nested: Nested::default(),
            refused_tracers: RefusedTracers::default(),
            watched: None,
            pins: None,
            guards_memory_outside: false,
        }
    }

    /// Has the observer decide about reads of the memory of processes outside of the tree, if it may refuse any reads.
    pub fn refuse(self, refusable: Option<Refusable>) -> Self {
        Tracer { guards_memory_outside: refusable.is_some_and(|refusable| refusable.reads), ..self }
    }

    /// Copies the arguments of calls that rules may refuse, so that what these name does not change once it is decided.
    pub fn pin(self, refusable: Option<Refusable>) -> Self {
        Tracer { pins: refusable.map(|refusable| Pins::new(refusable, self.command)), ..self }
    }

    /// Reports every use of these descriptors, too, and what calls ask for that no path tells, if the filter stops
    /// them.
    pub fn watch(self, descriptors: &'a [u32]) -> Self {
        Tracer { watched: Some(descriptors), ..self }
    }

    /// Follows the tree until its last thread has ended.
    ///
    /// A panic while a stop is handled, here or in the observer, loses only what that stop would have told:
    /// the tracee is resumed all the same, since the tree dies with this loop.
    pub fn run(mut self) {
        let mut waited = VecDeque::new();
        loop {
            let polls = !self.dying.is_empty() || !self.parked.is_empty();
            let poll = polls.then(|| Instant::now() + postponed::INTERVAL);
            match sys::wait(SPIN, self.postponed.deadline().or(poll)) {
                Ok(reported) => waited.extend(reported),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    if self.dying.is_empty() {
                        return;
                    }
                    std::thread::sleep(postponed::INTERVAL);
                }
                Err(error) => {
                    gap(self.observer, &format!("wait for the command's processes: {error}"));
                    std::thread::sleep(postponed::INTERVAL);
                }
            }
            if self.tracees.len() > 1 {
                collect(&mut waited);
                for next in &waited {
                    if let Waited::Stopped { tracee, .. } = next {
                        self.nested.stop_is_over(tracee.tid());
                    }
                }
            }
            while let Some(next) = waited.pop_front() {
                self.handle(next);
                self.release_held();
                self.decide_postponed();
            }
            self.unpark();
            self.release_held();
            self.decide_postponed();
            self.report_dead_inits();
        }
    }

    fn handle(&mut self, waited: Waited) {
        match waited {
            Waited::Ended { tid, end } => {
                let is_leader = self.tracees.is_leader(tid);
                if self.guarded(|tracer| tracer.ended(tid, end)).is_none() && is_leader {
                    // Others wait for the end of a process.
                    let _ = catch_unwind(AssertUnwindSafe(|| self.observer.ended(tid, end)));
                }
            }
            Waited::Stopped { tracee, stop } if !self.tracees.contains(tracee.tid()) => {
                self.parked.insert(tracee.tid(), Parked { tracee, stop, since: Instant::now() });
            }
            Waited::Stopped { tracee, stop } => self.take_up(tracee, stop),
        }
    }

    fn take_up(&mut self, tracee: Stopped, stop: Stop) {
        let next = self.guarded(|tracer| tracer.stopped(&tracee, stop));
        let next = next.unwrap_or(match stop {
            Stop::Group(_) => Next::Listen,
            Stop::Signal(signal) => Next::Resume(signal),
            _ => Next::Resume(0),
        });
        if !self.nested.is_empty() && !matches!(next, Next::Hold(_)) {
            self.nested.interrupt_again(tracee.tid());
        }
        let tid = tracee.tid();
        self.proceed(tracee, next, None);
        if stop == Stop::Exec {
            self.open_memory(tid);
        }
    }

    /// Opens the memory of a process that has executed a program, if that will be needed, while the program already runs: its
    /// first open does not have to wait for that.
    fn open_memory(&self, process: Tid) {
        let is_needed = self.pins.as_ref().is_some_and(Pins::need_address_spaces);
        if is_needed && self.interception == Interception::Notifications {
            // Nobody else can collect a tracee that is killed meanwhile.
            let _ = self.shared.memory_of_one_writer(process, || true);
        }
    }

    /// Does `work`; tells the observer of a panic in it.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.map_err(|panic| failed(self.observer, &*panic)).ok()
    }

    /// Carries out what becomes of a tracee; its syscall was first postponed at `since`.
    fn proceed(&mut self, tracee: Stopped, next: Next, since: Option<Instant>) {
        match next {
            Next::Resume(signal) => self.resume(tracee, signal),
            Next::Listen => self.resume_by(tracee, Resume::Listen, 0),
            Next::Postpone => self.postponed.push(tracee, since),
            Next::Hold(stop) => {
                let tid = tracee.tid();
                let event = self.nested.hold(tracee, stop);
                let told = event.map(|event| self.guarded(|tracer| tracer.nested.tell(event)));
                if told == Some(None) {
                    self.nested.detach(tid, None);
                }
            }
            Next::LeaveToDie(signal) => self.leave_to_die(tracee, signal),
        }
    }

    /// Resumes a tracee so that its next stop is the one that matters.
    fn resume(&self, tracee: Stopped, signal: i32) {
        let how = match self.interception {
            Interception::EveryCall => Resume::Syscall,
            _ if self.tracees.is_in_syscall(tracee.tid()) => Resume::Syscall,
            Interception::Stops | Interception::Notifications => Resume::Continue,
        };
        let how = if self.nested.is_empty() { how } else { self.how_nested(&tracee, how) };
        self.resume_by(tracee, how, signal);
    }

    fn resume_by(&self, tracee: Stopped, how: Resume, signal: i32) {
        let tid = tracee.tid();
        if let Err((tracee, error)) = tracee.resume(how, signal) {
            gap(self.observer, &format!("resume thread {tid}: {error}"));
            // It must not stay stopped, whatever the kernel objects to.
            let _ = tracee.resume(Resume::Continue, 0);
        }
    }

    /// Takes up the first stops whose creator's event has come, or can't come any more: a creator that is killed, or
    /// whose process executes a program, tells nothing of what it has just created.
    fn unpark(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        let tracees = &self.tracees;
        let is_unannounced = |tid: Tid, since: Instant| {
            since.elapsed() >= postponed::INTERVAL
                && (postponed::is_overdue(Some(since))
                    || creating_process(tid).is_none_or(|creator| !tracees.contains(creator)))
        };
        let due = self
            .parked
            .extract_if(|tid, parked| tracees.contains(*tid) || is_unannounced(*tid, parked.since));
        for (tid, Parked { tracee, stop, .. }) in due.collect::<Vec<_>>() {
            if !self.tracees.contains(tid) {
                self.guarded(|tracer| tracer.meet(tid));
            }
            self.take_up(tracee, stop);
        }
    }

    /// Takes up a thread that no event has announced: it may share whatever can be shared.
    fn meet(&mut self, tid: Tid) {
        let (tgid, parent) = process_and_parent(tid).unwrap_or((tid, Tid(0)));
        self.add(tid, tgid, false);
        if tgid == tid {
            self.observer.started(tid, parent);
            self.pin_created(parent, tid);
            self.observer.share_working_directory(tid, tid);
            self.share_memory(tid);
        }
    }

    fn add(&mut self, tid: Tid, tgid: Tid, announced: bool) {
        if self.tracees.add(tid, tgid, announced) {
            self.shared.add(tid, tgid);
            self.note_several_writers(tgid, true);
            // Its leader may end, and then the creator runs on.
            if let Some(lender) = self.tracees.lender(tgid) {
                self.share_memory(lender);
            }
        }
    }

    /// Notes that a process, and those whose memory it has borrowed, share their memory with others that run at the
    /// same time.
    fn share_memory(&mut self, process: Tid) {
        for sharing in self.tracees.share_memory(process) {
            self.note_several_writers(sharing, true);
            if let Some(inside) = self.shared.inside() {
                inside.end(sharing);
            }
            if let Some(pins) = &mut self.pins {
                pins.share(process, sharing);
            }
        }
    }

    /// Tells the others whether several threads can write the memory of a process.
    fn note_several_writers(&self, process: Tid, has: bool) {
        self.observer.shares_memory(process, has);
        self.shared.set_several_writers(process, has);
    }

    /// Handles a stop.
    fn stopped(&mut self, tracee: &Stopped, stop: Stop) -> Next {
        let tid = tracee.tid();
        let notifications = self.interception == Interception::Notifications;
        let has_nested = !self.nested.is_empty();
        // A syscall-stop ends an interruption, too.
        let may_be_interrupted =
            matches!(stop, Stop::Trap | Stop::Group(_)) || has_nested && stop == Stop::Syscall;
        if notifications
            && may_be_interrupted
            && let Some(pending) = self.shared.take_awaited(tid)
        {
            // A read-only syscall has ended: its thread was interrupted for its result.
            let result = tracee.registers().ok().map(|registers| registers.result());
            let caller = self.tracees.caller(tid);
            self.conclude(caller, pending, result);
        }
        if std::mem::take(&mut self.tracees.get(tid).is_hurried) {
            self.observer.read_only_call_is_over(self.tracees.caller(tid));
            self.wake_postponed();
        }
        let changed = if self.changed.is_empty() { None } else { self.changed.remove(&tid) };
        // A program that was just executed has registers of its own.
        if let Some(changed) = &changed
            && stop != Stop::Exec
        {
            for &(index, value) in &changed.original {
                if index != 0 || arch::KEEPS_FIRST_ARGUMENT {
                    let _ = tracee.set_argument(index, value);
                }
            }
        }
        // And memory of its own.
        if let Some(program) = self.changed_programs.remove(&tid)
            && stop != Stop::Exec
            && let Err(error) = program.restore(tracee)
        {
            gap(self.observer, &format!("put back the seccomp program of thread {tid}: {error}"));
        }
        if notifications && may_be_interrupted && self.shared.take_repeat(tid) {
            self.repeat(tracee);
            if stop == Stop::Syscall {
                self.nested.repeats(tid);
                self.tracees.get(tid).in_syscall = false;
                return Next::Resume(0);
            }
        }
        if stop == Stop::Trap
            && let Some(inside) = self.shared.inside()
            && let Some(return_address) = inside.take_wanted(tid)
        {
            self.patch(tracee, return_address);
        }
        let was_in_group_stop = self.tracees.is_in_group_stop(tid);
        if has_nested {
            self.nested.update_options(tracee);
            // A program that was just executed has not noted anything.
            if stop != Stop::Exec && self.nested.is_tracee(tid) && self.end_noting(tracee, stop) {
                return Next::Resume(0);
            }
        }
        match stop {
            Stop::Syscall => {
                if has_nested && let Some(next) = self.nested_syscall_stop(tracee) {
                    return next;
                }
                if self.syscall_stop(tracee, None).is_break() {
                    return Next::Postpone;
                }
            }
            Stop::Clone(creation) => self.cloned(tracee, creation, changed),
            Stop::Exec => self.executed(tracee),
            Stop::Group(signal) => {
                let thread = self.tracees.get(tid);
                thread.in_group_stop = true;
                if thread.tgid == tid && !(has_nested && was_in_group_stop) {
                    self.observer.stopped(tid, signal);
                }
                self.end_abandoned();
                if !has_nested || !self.nested.sees(tid, stop, was_in_group_stop) {
                    return Next::Listen;
                }
            }
            Stop::Trap => {
                let thread = self.tracees.get(tid);
                let continues = std::mem::take(&mut thread.in_group_stop) && thread.tgid == tid;
                if continues {
                    self.observer.continued(tid);
                }
            }
            Stop::Signal(signal) => {
                // Its handler runs first.
                if let Some(original) = self.marked.remove(&tid) {
                    let _ = tracee.set_argument(filter::MARKED, original);
                }
                // Its tracer says which signal it gets.
                if !has_nested || !self.nested.is_tracee(tid) {
                    return self.deliver(tracee, signal);
                }
            }
            Stop::Other(_) => {}
        }
        match has_nested && self.nested.sees(tid, stop, was_in_group_stop) {
            true => Next::Hold(stop),
            false => Next::Resume(0),
        }
    }

    /// Handles a signal that is about to be delivered.
    fn deliver(&mut self, tracee: &Stopped, signal: i32) -> Next {
        let caller = self.tracees.caller(tracee.tid());
        let left = self.shared.inside().map(|inside| inside.leave(tracee, caller.tgid, signal));
        if left == Some(Leaving::Faulted) {
            return Next::Resume(0);
        }
        let effect = signal_delivery::effect(tracee, signal);
        if effect != SignalEffect::Other {
            self.observer.signal(caller, signal);
        }
        if self.interception == Interception::Notifications && left != Some(Leaving::Left) {
            signal_delivery::restart_interrupted(tracee, self.shared);
        }
        match effect {
            SignalEffect::Repeats => Next::LeaveToDie(signal),
            SignalEffect::DumpsCore | SignalEffect::Other => Next::Resume(signal),
        }
    }

    /// Handles a syscall-stop of a tracer inside of the tree, or of its tracee, as far as it concerns that. At an entry
    /// the tracer comes first, and may change the call; the recorder decides at the stop by the filter, which follows.
    fn nested_syscall_stop(&mut self, tracee: &Stopped) -> Option<Next> {
        let tid = tracee.tid();
        let caller = self.tracees.caller(tid);
        match tracee.syscall_stop().ok()? {
            SyscallStop::Entry { filter: Some(_), .. } | SyscallStop::None => None,
            SyscallStop::Entry { arch, number, arguments, filter: None } => {
                if self.nested.sees_entry(tid) {
                    return Some(Next::Hold(Stop::Syscall));
                }
                if arch == arch::AUDIT_ARCH && self.nested.is_tracer(caller.tgid) {
                    let result = match number {
                        PTRACE => {
                            let [request, thread, addr, data, ..] = arguments;
                            self.nested.request(caller, [request, thread, addr, data])
                        }
                        _ => self.nested.wait_begins(caller, number, arguments),
                    };
                    if let Some(result) = result {
                        let _ = tracee.skip(result);
                        return Some(Next::Resume(0));
                    }
                }
                (self.interception != Interception::EveryCall).then_some(Next::Resume(0))
            }
            SyscallStop::Exit { result } => {
                let _ = self.syscall_stop(tracee, None);
                self.nested.call_ends(tracee, caller, result, &self.tracees);
                Some(match self.nested.sees_exit(tid) {
                    true => Next::Hold(Stop::Syscall),
                    false => Next::Resume(0),
                })
            }
        }
    }

    /// How a thread is resumed where some are traced inside of the tree.
    fn how_nested(&self, tracee: &Stopped, how: Resume) -> Resume {
        let tid = tracee.tid();
        match self.nested.how(tid, || self.tracees.process_of(tid)) {
            // The exit of its call is seen, and is the end of the step.
            Some(Resume::Step) if how == Resume::Syscall => {
                let is_in_call = self.tracees.is_in_syscall(tid) || is_before_call(tracee);
                if is_in_call { how } else { Resume::Step }
            }
            Some(Resume::Listen) | None => how,
            Some(_) if how == Resume::Syscall => how,
            Some(wanted) => wanted,
        }
    }

    /// Resumes the tracees that tracers inside of the tree have resumed.
    fn release_held(&mut self) {
        while let Some(Released { tracee, stop, signal, listens }) = self.nested.take_released() {
            let next = match stop {
                _ if listens => Some(Next::Listen),
                Stop::Signal(_) if signal != 0 => self.guarded(|tracer| tracer.deliver(&tracee, signal)),
                Stop::Syscall if self.interception == Interception::EveryCall => self
                    .guarded(|tracer| tracer.syscall_stop(&tracee, None))
                    .map(|decided| if decided.is_break() { Next::Postpone } else { Next::Resume(signal) }),
                _ => None,
            };
            self.proceed(tracee, next.unwrap_or(Next::Resume(signal)), None);
        }
    }

    /// Has a thread repeat the open whose notification failed, so that it stops at its entry.
    fn repeat(&mut self, tracee: &Stopped) {
        // ESRCH: it was killed.
        let Ok(registers) = tracee.registers() else { return };
        let original = registers.arguments()[usize::from(filter::MARKED)];
        if registers.repeating().set(tracee.tid()).is_ok()
            && tracee.set_argument(filter::MARKED, filter::STOP_MARK).is_ok()
        {
            self.marked.insert(tracee.tid(), original);
        }
    }

    /// Detaches from a thread of an init whose fault would repeat while it is traced.
    fn leave_to_die(&mut self, tracee: Stopped, signal: i32) {
        let Caller { tid, tgid } = self.tracees.caller(tracee.tid());
        match DyingInit::detach(tracee, tgid, signal) {
            Ok(Some(dying)) => self.dying.push(dying),
            Ok(None) => {
                self.guarded(|tracer| tracer.ended(tid, End::Killed { signal, core_dumped: false }));
            }
            Err((tracee, error)) => {
                gap(self.observer, &format!("let process {tgid} die of signal {signal}: {error}"));
                self.resume(tracee, signal);
            }
        }
    }

    /// Reports the end of processes that were left to die.
    fn report_dead_inits(&mut self) {
        if self.dying.is_empty() {
            return;
        }
        let ended = self.dying.extract_if(.., |dying| dying.end().is_some());
        let ended: Vec<_> = ended.filter_map(|dying| Some((dying.tgid, dying.end()?))).collect();
        for (tgid, end) in ended {
            self.guarded(|tracer| tracer.ended(tgid, end));
        }
    }

    /// Decides about the postponed syscalls again, from the start and in order, if that is due.
    fn decide_postponed(&mut self) {
        let call_ended = std::mem::take(&mut self.call_ended);
        for (tracee, since) in self.postponed.take_due(call_ended) {
            let next = match self.guarded(|tracer| tracer.syscall_stop(&tracee, Some(since))) {
                Some(ControlFlow::Break(())) => Next::Postpone,
                Some(ControlFlow::Continue(())) | None => Next::Resume(0),
            };
            self.proceed(tracee, next, Some(since));
        }
    }

    /// Tells the observer that an awaited syscall has ended, which postponed ones wait for.
    fn conclude(&mut self, caller: Caller, pending: O::Pending, result: Option<i64>) {
        self.observer.on_result(caller, pending, result);
        self.wake_postponed();
    }

    /// Has all postponed syscalls decided again: an awaited one has ended.
    fn wake_postponed(&mut self) {
        self.call_ended = true;
        self.shared.wake_postponed();
    }

    /// Handles the entry or exit of a syscall, which was first postponed at `since`; breaks if it is
    /// postponed.
    fn syscall_stop(&mut self, tracee: &Stopped, since: Option<Instant>) -> ControlFlow<()> {
        let tid = tracee.tid();
        let stop = match tracee.syscall_stop() {
            Ok(stop) => stop,
            Err(error) => {
                // ESRCH: it was killed, as its end will tell.
                if error.raw_os_error() != Some(libc::ESRCH) {
                    gap(self.observer, &format!("ask for the system call of thread {tid}: {error}"));
                }
                return ControlFlow::Continue(());
            }
        };
        match stop {
            SyscallStop::Entry { arch, number, arguments, filter } => {
                if self.interception == Interception::Notifications {
                    self.shared.set_interruptible(tid, None);
                }
                // A filter of the command's own hands it to a tracer, but the command has none.
                let foreign = |data| data != filter::OURS || self.interception == Interception::EveryCall;
                if filter.is_some_and(foreign) {
                    skip(tracee, NO_SUCH_SYSCALL);
                    return ControlFlow::Continue(());
                }
                let made = self.entry(tracee, arch, number, &arguments, since)?;
                if made != Made::Again
                    && let Some(original) = self.marked.remove(&tid)
                {
                    self.changed.entry(tid).or_default().original.push((filter::MARKED, original));
                    self.tracees.get(tid).in_syscall = true;
                }
            }
            SyscallStop::Exit { result } => {
                let caller = self.tracees.caller(tid);
                let thread = self.tracees.get(tid);
                thread.in_syscall = false;
                if let Some(pending) = thread.pending.take() {
                    self.conclude(caller, pending, Some(result));
                }
            }
            SyscallStop::None => {}
        }
        ControlFlow::Continue(())
    }

    fn entry(
        &mut self,
        tracee: &Stopped,
        arch: u32,
        number: u64,
        arguments: &Args,
        since: Option<Instant>,
    ) -> ControlFlow<(), Made> {
        if let Some(errno) = question::answer(arch, number, arguments) {
            skip(tracee, errno);
            return ControlFlow::Continue(Made::No);
        }
        let caller = self.tracees.caller(tracee.tid());
        if let Some(watched) = self.watched {
            if let Some(descriptor) = descriptors::used(number, arguments, watched) {
                self.observer.descriptor_used(caller, descriptor);
            }
            if let Some(ask) = asks::asked(number, arguments, &TraceeMemory(caller.tid)) {
                self.observer.asked(caller, ask);
            }
        }
        // Its flags are in memory that another process may be able to change. Libraries fall back to clone(2).
        if self.pins.is_some() && (arch, number) == (arch::AUDIT_ARCH, CLONE3) {
            skip(tracee, Errno(libc::ENOSYS));
            return ControlFlow::Continue(Made::No);
        }
        let pinned = match self.pin_arguments(caller, arch, number, arguments) {
            Ok(pinned) => pinned,
            Err(Unpinned::Waits) if !postponed::is_overdue(since) => return ControlFlow::Break(()),
            Err(Unpinned::Unmapped) => {
                return ControlFlow::Continue(self.map_pins(tracee, caller.tgid));
            }
            Err(unpinned) => {
                skip(tracee, unpinned.errno());
                return ControlFlow::Continue(Made::No);
            }
        };
        if self.pins.is_some() && arch == arch::AUDIT_ARCH && pins::changes_memory(number) {
            self.share_memory(caller.tgid);
        }
        let judged = pinned.as_ref().map_or(arguments, |pinned| &pinned.arguments);
        let mut made = Made::Yes;
        match syscalls::interpret(arch, number, judged, &TraceeMemory(caller.tid)) {
            Interpretation::Irrelevant
                if (arch, number) == (arch::AUDIT_ARCH, READ_MEMORY)
                    && self.guards_memory_outside
                    && !self.is_tracee(arguments[0]) =>
            {
                let special = Some(Special::Unmodelled);
                let decoded = DecodedSyscall { special, ..DecodedSyscall::default() };
                made = self.decide(tracee, caller, "process_vm_readv", &decoded, arguments, since)?;
            }
            Interpretation::Irrelevant => self.redirect(tracee, arguments, pinned),
            Interpretation::Unreadable(name) => {
                self.observer.unreadable(caller, name);
                // Nobody can judge it.
                if self.pins.is_some() {
                    skip(tracee, Errno(libc::EACCES));
                    made = Made::No;
                }
            }
            // Whatever a process of the tree has mapped, its open was observed.
            Interpretation::Relevant(..)
                if number == WRITE_MEMORY && self.pins.is_none() && self.is_tracee(arguments[0]) => {}
            Interpretation::Relevant(name, decoded) => {
                made = self.decide(tracee, caller, name, &decoded, arguments, since)?;
                if made == Made::Yes {
                    self.redirect(tracee, arguments, pinned);
                }
            }
        }
        ControlFlow::Continue(made)
    }

    /// Gives a process the memory to which arguments are copied, instead of the call at whose entry its only thread is,
    /// which that makes again; where it can't be given any, the call fails.
    fn map_pins(&mut self, tracee: &Stopped, process: Tid) -> Made {
        let Some(pins) = &mut self.pins else { return Made::Yes };
        let (error, made) = match pins.map(tracee, process) {
            Ok(()) => return Made::Again,
            Err(NotMapped::AtEntry(error)) => {
                skip(tracee, Errno(libc::ENOMEM));
                (error, Made::No)
            }
            // The call fails when it is made again.
            Err(NotMapped::Later(error)) => (error, Made::Again),
        };
        // ESRCH: it was killed.
        if error.raw_os_error() != Some(libc::ESRCH) {
            let what = format!("calls of process {process} fail, since they can't be judged: {error}");
            gap(self.observer, &what);
        }
        made
    }

    /// Copies what the arguments of a call point to, if it may be refused.
    fn pin_arguments(
        &self,
        caller: Caller,
        abi: u32,
        number: u64,
        arguments: &Args,
    ) -> Result<Option<PinnedArguments>, Unpinned> {
        match &self.pins {
            Some(pins) if abi == arch::AUDIT_ARCH => {
                let shares = self.tracees.has_several_writers(caller.tgid);
                let is_steady = |pointers: &[_]| {
                    // Nobody else can collect a tracee that is killed meanwhile.
                    steady_memory(self.shared, caller, arguments, pointers, || true).is_some()
                };
                pins.pin(caller, number, arguments, shares, is_steady)
            }
            _ => Ok(None),
        }
    }

    /// Makes the kernel read the copies until the call ends.
    fn redirect(&mut self, tracee: &Stopped, arguments: &Args, pinned: Option<PinnedArguments>) {
        let Some(PinnedArguments { arguments: copies, slot }) = pinned else { return };
        let mut changed = ChangedArguments { _slot: Some(slot), ..ChangedArguments::default() };
        for ((index, original), copy) in (0..).zip(arguments).zip(copies) {
            if *original != copy {
                // ESRCH: it was killed.
                let _ = tracee.set_argument(index, copy);
                changed.original.push((index, *original));
            }
        }
        if !changed.original.is_empty() {
            self.changed.insert(tracee.tid(), changed);
            self.tracees.get(tracee.tid()).in_syscall = true;
        }
    }

    /// Whether a process or thread of this number is in the tree.
    fn is_tracee(&self, pid: u64) -> bool {
        i32::try_from(pid & 0xffff_ffff).is_ok_and(|pid| self.tracees.contains(Tid(pid)))
    }

    fn decide(
        &mut self,
        tracee: &Stopped,
        caller: Caller,
        name: &'static str,
        decoded: &DecodedSyscall,
        arguments: &Args,
        since: Option<Instant>,
    ) -> ControlFlow<(), Made> {
        let tid = caller.tid;
        // Its flags are in memory, which may be read-only. At ENOSYS, libc falls back to clone.
        if let Some(Special::Untraced { clone3: true, .. }) = decoded.special {
            skip(tracee, NO_SUCH_SYSCALL);
            return ControlFlow::Continue(Made::No);
        }
        match decoded.special {
            Some(Special::FilterQuery) => {
                if self.interception != Interception::EveryCall && foreign_filter::has_none_beside_ours(tid) {
                    let _ = tracee.skip(i64::from(libc::SECCOMP_MODE_DISABLED));
                }
                return ControlFlow::Continue(Made::No);
            }
            Some(Special::Ptrace { thread }) => {
                let [request, target, addr, data, ..] = *arguments;
                // What it writes, no rule would judge.
                if self.pins.is_none()
                    && self.nested.attach(tracee, caller, [request, target, addr, data], &self.tracees)
                        == Attached::Done
                {
                    self.tracees.get(tid).in_syscall = true;
                    return ControlFlow::Continue(Made::No);
                }
                self.refused_tracers.ask(caller, thread.map(Tid));
            }
            _ => {}
        }
        let overdue = postponed::is_overdue(since);
        let mut closed_all = false;
        if let Some(inside) = self.shared.inside() {
            inside.read_all(self.observer);
            closed_all = inside.close_for(caller, decoded, self.tracees.has_several_writers(caller.tgid));
            // A thread may be about to make a call from the code.
            let is_filter = matches!(decoded.special, Some(Special::Filter { .. } | Special::Dispatch));
            if is_filter && !overdue && inside.is_busy(caller.tgid) {
                return ControlFlow::Break(());
            }
        }
        let (memory, waiting) = (TraceeMemory(tid), Waiting::Stopped);
        let entry = SyscallEntry { decoded, name, memory, overdue, waiting };
        match self.observer.on_entry(caller, &entry) {
            Decision::Postpone if !overdue => return ControlFlow::Break(()),
            Decision::PostponeBehind(thread) => {
                self.hurry(thread);
                return ControlFlow::Break(());
            }
            Decision::Continue
            | Decision::Counted
            | Decision::MayWait
            | Decision::Postpone
            | Decision::Stop
            | Decision::Opened(_) => {}
            Decision::AwaitResult(pending) => {
                let thread = self.tracees.get(tid);
                thread.in_syscall = true;
                // A former one, whose exit was not seen, has ended all the same.
                if let Some(former) = thread.pending.replace(pending) {
                    self.conclude(caller, former, None);
                }
            }
            Decision::Refuse(errno) => {
                skip(tracee, errno);
                return ControlFlow::Continue(Made::No);
            }
        }
        // Until the observer knew of the call, one may have been opened again.
        if let Some(inside) = self.shared.inside().filter(|_| closed_all) {
            inside.close_all();
            inside.read_all(self.observer);
        }
        if let Some(Special::Filter { program, .. }) = decoded.special {
            self.replace_trace_action(tracee, program);
        }
        // The child would run untraced, with a filter that answers ENOSYS to every syscall of the table.
        if let Some(Special::Untraced { clone3: false, .. }) = decoded.special {
            let flags = arguments[0] & !u64::from(libc::CLONE_UNTRACED.unsigned_abs());
            if tracee.set_argument(0, flags).is_ok() {
                // The next stop is the clone event or the exit.
                let original = SmallVec::from_slice(&[(0, arguments[0])]);
                self.changed.insert(tid, ChangedArguments { original, _slot: None });
                self.tracees.get(tid).in_syscall = true;
            }
        }
        ControlFlow::Continue(Made::Yes)
    }

    /// Patches the process of a thread that has just made a call, if nobody else uses its memory or its registers.
    fn patch(&mut self, tracee: &Stopped, return_address: u64) {
        /// The kernel's results of calls that it makes again (linux/errno.h).
        const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;
        let Caller { tid, tgid } = self.tracees.caller(tracee.tid());
        let is_alone = self.nested.is_empty()
            && self.has_own_memory(tid, tgid)
            && !self.tracees.is_in_syscall(tid)
            && !self.marked.contains_key(&tid)
            && foreign_filter::has_none_of_its_own(tid)
            && tracee.registers().is_ok_and(|registers| !RESTARTS.contains(&registers.result()));
        if let Some(inside) = self.shared.inside().filter(|_| is_alone) {
            inside.patch(tracee, tgid, return_address, self.observer);
        }
    }

    /// Whether a thread is the only one of its process, and nobody else uses its memory.
    fn has_own_memory(&self, tid: Tid, tgid: Tid) -> bool {
        tid == tgid
            && self.tracees.threads_of(tgid).count() == 1
            && !self.tracees.has_several_writers(tgid)
            && self.tracees.lender(tgid).is_none()
    }

    /// Has a process note nothing any more, since a tracer inside of the tree would see how it does that; whether the code has
    /// caused this stop, by a signal that the tracer is not to see either.
    fn end_noting(&mut self, tracee: &Stopped, stop: Stop) -> bool {
        let Some(inside) = self.shared.inside() else { return false };
        let Caller { tid, tgid } = self.tracees.caller(tracee.tid());
        inside.end(tgid);
        let signal = if let Stop::Signal(signal) = stop { signal } else { 0 };
        let left = inside.leave(tracee, tgid, signal);
        if self.has_own_memory(tid, tgid) {
            inside.restore(tracee, tgid);
        }
        left == Leaving::Faulted
    }

    /// Makes a thread stop that runs, so that its last read-only call is known to be over.
    fn hurry(&mut self, thread: Tid) {
        if !self.tracees.contains(thread) {
            return;
        }
        let was_hurried = std::mem::replace(&mut self.tracees.get(thread).is_hurried, true);
        if !was_hurried {
            let _ = sys::interrupt(thread);
        }
    }

    /// Makes the filter that a thread is about to install return ENOSYS where it would return
    /// SECCOMP_RET_TRACE.
    fn replace_trace_action(&mut self, tracee: &Stopped, program: RemoteAddr) {
        let tid = tracee.tid();
        match foreign_filter::replace_trace_action(tracee, program) {
            Ok(None) => {}
            Ok(Some(program)) => {
                self.changed_programs.insert(tid, program);
                self.tracees.get(tid).in_syscall = true;
            }
            Err(error) => gap(self.observer, &format!("change the seccomp program of thread {tid}: {error}")),
        }
    }

    /// Handles the creation of a thread or process. `changed` has the arguments of the syscall that we have changed: the
    /// child has the changed ones, too.
    fn cloned(&mut self, tracee: &Stopped, creation: Creation, changed: Option<ChangedArguments>) {
        let waits = creation == Creation::Vfork;
        let Ok(child) = tracee.event_message() else { return };
        if self.tracees.take_ended_early(child) {
            return;
        }
        if let Some(changed) = changed {
            self.changed.insert(child, changed);
        }
        let creator = self.tracees.caller(tracee.tid()).tgid;
        let flags = tracee.registers().map_or(0, |registers| {
            let (number, arguments) = (registers.number(), registers.arguments());
            syscalls::creation_flags(number, &arguments, &TraceeMemory(tracee.tid()))
        });
        let has = |flag: libc::c_int| flags & u64::from(flag.unsigned_abs()) != 0;
        let is_thread = is_thread_of(creator, child);
        if let Some(inside) = self.shared.inside() {
            let may_have = |flag| flags == 0 || has(flag);
            let runs_on = !waits || self.tracees.has_several_writers(creator);
            if is_thread {
                inside.allow_queries(creator);
            // The child may change the directory of both, or note its own calls in the creator's ring.
            } else if may_have(libc::CLONE_FS) || may_have(libc::CLONE_VM) && runs_on {
                inside.end(creator);
            } else if may_have(libc::CLONE_VM) || may_have(libc::CLONE_FILES) {
                inside.close(creator);
            }
        }
        if is_thread {
            self.add(child, creator, true);
            self.nested.created(tracee.tid(), child, creator, creation);
            return;
        }
        self.add(child, child, true);
        self.nested.created(tracee.tid(), child, child, creation);
        self.observer.started(child, creator);
        self.pin_created(creator, child);
        if has(libc::CLONE_FS) {
            self.observer.share_working_directory(creator, child);
        }
        // A creator that waits (vfork) writes nothing, unless it has other threads. Who shares descriptors can exchange
        // them, as who shares memory can rewrite it.
        let shares = has(libc::CLONE_VM) || has(libc::CLONE_FILES);
        if waits && shares {
            self.tracees.lend_memory(creator, child);
            if has(libc::CLONE_VM) {
                self.shared.lend_memory(creator, child);
            }
        }
        if (!waits || self.tracees.has_several_writers(creator)) && shares {
            for process in [creator, child] {
                if process == child || !waits {
                    self.share_memory(process);
                }
            }
        }
    }

    /// Handles the execution of a program: the other threads of the process have vanished, and the tid of the
    /// one that executed it, which may have been another, is the tgid now.
    fn executed(&mut self, tracee: &Stopped) {
        let tid = tracee.tid();
        let former_tid = tracee.event_message().unwrap_or(tid);
        let caller = self.tracees.caller(tid);
        let mut execve = None;
        let mut lost = Vec::new();
        for (other, thread) in self.tracees.execute(tid) {
            if other == former_tid {
                execve = thread.pending;
            } else {
                lost.extend(thread.pending.map(|pending| (other, pending)));
            }
            let awaited = match other {
                _ if other != tid => self.shared.remove(other),
                // The leader's, which has vanished: its tid is this thread's now.
                _ if former_tid != tid => self.shared.take_awaited(tid),
                _ => None,
            };
            lost.extend(awaited.map(|pending| (other, pending)));
        }
        let tracees = &self.tracees;
        self.postponed.retain(|waiting| waiting.tid() != tid && tracees.contains(waiting.tid()));
        for (other, pending) in lost {
            self.conclude(Caller { tid: other, ..caller }, pending, None);
        }
        self.changed.remove(&former_tid);
        self.marked.remove(&former_tid);
        if let Some(pins) = &mut self.pins {
            pins.executed(tid);
        }
        self.shared.forget_memory(tid);
        if let Some(inside) = self.shared.inside() {
            inside.forget(tid, self.observer);
        }
        if !self.nested.is_empty() {
            self.nested.executed(tid, former_tid);
        }
        self.observer.executed(caller, execve);
        self.wake_postponed();
    }

    /// Notes that a new process has the memory to which the arguments of its creator are copied.
    fn pin_created(&mut self, creator: Tid, process: Tid) {
        if let Some(pins) = &mut self.pins
            && let Err(error) = pins.created(creator, process)
        {
            self.end_unpinned(process, &error);
        }
    }

    /// Ends a process whose calls can't be judged safely.
    fn end_unpinned(&self, process: Tid, error: &io::Error) {
        // It was killed.
        if error.raw_os_error() == Some(libc::ESRCH) {
            return;
        }
        gap(self.observer, &format!("process {process} was ended, as its calls can't be enforced: {error}"));
        let _ = sys::kill(process, libc::SIGKILL);
    }

    fn ended(&mut self, tid: Tid, end: End) {
        self.changed.remove(&tid);
        self.marked.remove(&tid);
        self.changed_programs.remove(&tid);
        self.parked.remove(&tid);
        self.postponed.retain(|waiting| waiting.tid() != tid);
        self.wake_postponed();
        let Some((thread, is_leader_alone)) = self.tracees.remove(tid) else { return };
        self.end_abandoned();
        let tgid = thread.tgid;
        if !self.nested.is_empty() {
            self.nested.ended(tid, tgid, end);
        }
        let awaited = self.shared.remove(tid);
        for pending in thread.pending.into_iter().chain(awaited) {
            self.conclude(Caller { tid, tgid }, pending, None);
        }
        if tgid == tid {
            if let Some(pins) = &mut self.pins {
                pins.ended(tid);
            }
            self.shared.forget_memory(tid);
            if let Some(inside) = self.shared.inside() {
                inside.forget(tid, self.observer);
            }
            self.observer.ended(tid, end);
        } else if is_leader_alone {
            self.note_several_writers(tgid, self.tracees.shares_memory(tgid));
        }
    }

    /// Ends what a process has left that could not trace it.
    fn end_abandoned(&mut self) {
        for process in self.refused_tracers.take_abandoned(self.command, &mut self.tracees) {
            self.observer.abandoned(process);
            let _ = sys::kill(process, libc::SIGKILL);
        }
    }
}

/// Collects everything that waitpid has to report, and resumes nothing meanwhile.
///
/// The kernel reports the youngest tracee first: a few that stop again and again would starve all others.
fn collect(waited: &mut VecDeque<Waited>) {
    while let Ok(Some(next)) = sys::try_wait() {
        // Another thread took over this tid by execve: the stop of the one that had it is over.
        if matches!(next, Waited::Stopped { stop: Stop::Exec, .. }) {
            waited.retain(|former| former.tid() != next.tid());
        }
        waited.push_back(next);
    }
}

/// Whether the next instruction of a thread makes a system call.
fn is_before_call(tracee: &Stopped) -> bool {
    let mut text = [0; 4];
    let Ok(registers) = tracee.registers() else { return true };
    let at = RemoteAddr(registers.instruction_pointer());
    let read = TraceeMemory(tracee.tid()).read_exact(at, &mut text);
    read.is_ok() && arch::find_system_call(&text) == Some(0)
}

/// What the kernel answers to a syscall that it does not have.
const NO_SUCH_SYSCALL: Errno = Errno(libc::ENOSYS);

/// Skips the syscall at whose entry a tracee is: it fails with `errno`.
fn skip(tracee: &Stopped, Errno(errno): Errno) {
    let _ = tracee.skip(i64::from(-errno));
}

/// Whether `tid` is a thread of `process`, by the kernel's own list.
fn is_thread_of(process: Tid, tid: Tid) -> bool {
    std::fs::symlink_metadata(format!("/proc/{process}/task/{tid}")).is_ok()
}

/// The process that has created a thread or process, unless that asked for another parent (CLONE_PARENT, clone(2)).
fn creating_process(tid: Tid) -> Option<Tid> {
    let (process, parent) = process_and_parent(tid)?;
    Some(if process == tid { parent } else { process })
}
