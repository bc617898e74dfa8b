//! Tracers inside of the tree: processes of it that trace others of it, as strace and gdb do.
//!
//! A thread has one tracer, us. So this stands in for the kernel: a *tracer* is a process of the tree, its *tracees* are
//! threads of ours of which it is to be told. A tracee whose stop its tracer is to see stays stopped, and is *held* here
//! until that resumes it. ptrace(2) of the tracer is carried out at its entry, by `requests`; its wait4 and waitid are
//! answered by `waits`. Whether it may trace is asked of the kernel, by `permission`.
//!
//! It knows threads, stops and signals; what a call means, and what is recorded of it, it must never know: the recorder
//! decides about a call after the tracer has seen its entry, and has concluded it before the tracer sees its exit.
//! Neighbours: `tracer.rs` asks it about each stop while it is not empty, and resumes what it has released;
//! `refused_tracers.rs` is for those that may not trace.

mod permission;
mod requests;
mod waits;

use std::collections::{HashMap, HashSet, VecDeque};

use foldhash::fast::RandomState;

use super::observer::Caller;
use super::proc_status::{ProcStatus, process_and_parent};
use super::sys::{self, Resume, Stopped, Tid};
use super::tracees::Tracees;
use super::wait_status::{Creation, End, Stop};
use permission::Asking;
use waits::Wait;

/// The bit of the signal in a syscall-stop that PTRACE_O_TRACESYSGOOD asks for.
const SYSGOOD: i32 = 0x80;
/// The options that need a stop which no tracee of ours has otherwise.
const MORE_STOPS: i32 = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACEVFORKDONE;

/// A thread that a process of the tree traces.
#[derive(Debug)]
struct Tracee {
    process: Tid,
    tracer: Tid,
    /// The thread that traces; none if that is not known yet (PTRACE_TRACEME).
    thread: Option<Tid>,
    /// Whether the kernel knows it as a child of the tracer, to whom it reports its end.
    is_child: bool,
    is_seized: bool,
    options: i32,
    /// Those of [`MORE_STOPS`] that the kernel has been told.
    told: i32,
    /// How its tracer has resumed it.
    how: Resume,
    /// Whether its next trap is one that its tracer has asked for.
    is_trap_due: bool,
    /// Whether it makes a call again whose entry its tracer has seen.
    repeats: bool,
    held: Option<Held>,
}

impl Tracee {
    /// Takes what is held, unless it was killed meanwhile: its stop is over, and another thread may have its tid by execve,
    /// whose stop is to be reported yet.
    fn take_held(&mut self, tid: Tid) -> Option<Held> {
        self.held.take().filter(|_| !sys::has_news(tid))
    }

    fn has(&self, option: i32) -> bool {
        self.options & option != 0
    }
}

/// A tracee in a stop that its tracer sees.
#[derive(Debug)]
struct Held {
    tracee: Stopped,
    stop: Stop,
    /// Signal and code, where the kernel's own stop has others.
    siginfo: Option<(i32, i32)>,
}

/// Something that a tracer is to be told by wait4 or waitid.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    tracee: Tid,
    tracer: Tid,
    thread: Option<Tid>,
    /// The raw wait status.
    status: i32,
    has_ended: bool,
    user: u32,
}

/// A tracee that its tracer has resumed.
#[derive(Debug)]
pub(super) struct Released {
    pub tracee: Stopped,
    /// The stop in which it is.
    pub stop: Stop,
    /// The signal that it gets, or 0.
    pub signal: i32,
    /// Whether it stays in its group-stop.
    pub listens: bool,
}

/// What became of a request to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attached {
    /// The call is skipped, or is made into another one whose exit tells.
    Done,
    /// It is left to the kernel, which refuses it unless it concerns a process outside of the tree.
    Left,
}

/// The tracers inside of the tree and their tracees.
#[derive(Debug, Default)]
pub(super) struct Nested {
    tracees: HashMap<Tid, Tracee, RandomState>,
    tracers: HashSet<Tid, RandomState>,
    /// What tracers have not been told yet, at most one of each tracee, and its end.
    events: VecDeque<Event>,
    /// The wait4 or waitid of each thread that is in one.
    waits: HashMap<Tid, Wait, RandomState>,
    /// The threads whose right to trace is being asked.
    asking: HashMap<Tid, Asking, RandomState>,
    released: Vec<Released>,
}

impl Nested {
    /// Whether nobody traces.
    pub fn is_empty(&self) -> bool {
        self.tracees.is_empty() && self.tracers.is_empty() && self.waits.is_empty() && self.asking.is_empty()
    }

    /// How a thread is to be resumed that is a tracee, or a tracer's; none for any other.
    pub fn how(&self, tid: Tid, process: impl FnOnce() -> Option<Tid>) -> Option<Resume> {
        match self.tracees.get(&tid) {
            Some(tracee) => Some(tracee.how),
            None => process().filter(|process| self.tracers.contains(process)).map(|_| Resume::Syscall),
        }
    }

    /// Whether a thread is traced.
    pub fn is_tracee(&self, tid: Tid) -> bool {
        self.tracees.contains_key(&tid)
    }

    /// Whether a process traces.
    pub fn is_tracer(&self, process: Tid) -> bool {
        self.tracers.contains(&process)
    }

    /// Carries out TRACEME, ATTACH or SEIZE at the entry of the call.
    pub fn attach<P>(
        &mut self,
        stopped: &Stopped,
        caller: Caller,
        request: [u64; 4],
        tracees: &Tracees<P>,
    ) -> Attached {
        let [request, thread, _, options] = request.map(requests::low);
        let is_traceme = request.cast_unsigned() == libc::PTRACE_TRACEME;
        let target = if is_traceme { caller.tid } else { Tid(thread) };
        let tracer = match is_traceme {
            true => process_and_parent(caller.tid).map(|(_, parent)| parent),
            false => Some(caller.tgid),
        };
        let (Some(tracer), Some(process)) = (tracer, tracees.process_of(target)) else {
            return Attached::Left;
        };
        let is_seize = request.cast_unsigned() == libc::PTRACE_SEIZE;
        let options = if is_seize { options } else { 0 };
        // A chain of tracers is not emulated, nor one that names threads by other numbers, nor one of seccomp stops.
        let is_traced = |process: Tid| self.tracees.values().any(|tracee| tracee.process == process);
        if tracees.process_of(tracer) != Some(tracer)
            || self.tracers.contains(&process)
            || is_traced(tracer)
            || permission::is_in_other_pid_namespace(tracer)
            || options & requests::UNKNOWN_OPTIONS != 0
        {
            // But one that has another tracer already can't be had alone, either.
            if is_traceme || !self.tracees.contains_key(&target) {
                return Attached::Left;
            }
        }
        if self.tracees.contains_key(&target) || process == tracer {
            let _ = stopped.skip(-i64::from(libc::EPERM));
            return Attached::Done;
        }
        if !is_traceme {
            match Asking::new(stopped, target, is_seize, options) {
                Ok(asking) => drop(self.asking.insert(caller.tid, asking)),
                Err(_) => drop(stopped.skip(-i64::from(libc::EPERM))),
            }
        } else if permission::is_within(tracer, target) {
            self.adopt(target, process, (tracer, None), false, 0, tracees);
            let _ = stopped.skip(0);
        } else {
            let _ = stopped.skip(-i64::from(libc::EPERM));
        }
        Attached::Done
    }

    /// Makes a thread the tracee of a process.
    fn adopt<P>(
        &mut self,
        target: Tid,
        process: Tid,
        (tracer, thread): (Tid, Option<Tid>),
        is_seized: bool,
        options: i32,
        tracees: &Tracees<P>,
    ) {
        let is_child = target == process && is_child(process, tracer);
        let is_stopped = tracees.is_in_group_stop(target);
        let tracee = Tracee {
            process,
            tracer,
            thread,
            is_child,
            is_seized,
            options,
            told: 0,
            how: Resume::Continue,
            is_trap_due: is_stopped,
            repeats: false,
            held: None,
        };
        self.tracees.insert(target, tracee);
        if self.tracers.insert(tracer) {
            // The others are to be seen waiting.
            for other in tracees.threads_of(tracer).filter(|other| Some(*other) != thread) {
                let _ = sys::interrupt(other);
            }
        }
        if is_stopped || options & MORE_STOPS != 0 {
            let _ = sys::interrupt(target);
        }
        if thread.is_some() && !is_seized && !is_stopped {
            let _ = sys::kill_thread(process, target, libc::SIGSTOP);
        }
    }

    /// Tells the kernel at a stop of a tracee which more stops its tracer wants.
    pub fn update_options(&mut self, stopped: &Stopped) {
        if let Some(tracee) = self.tracees.get_mut(&stopped.tid()) {
            let wanted = tracee.options & MORE_STOPS;
            if wanted != tracee.told && stopped.set_options(wanted).is_ok() {
                tracee.told = wanted;
            }
        }
    }

    /// Whether its tracer is to see a tracee's stop, other than those at system calls.
    pub fn sees(&mut self, tid: Tid, stop: Stop, was_in_group_stop: bool) -> bool {
        let Some(tracee) = self.tracees.get(&tid) else { return false };
        match stop {
            Stop::Signal(_) => true,
            Stop::Clone(Creation::Fork) => tracee.has(libc::PTRACE_O_TRACEFORK),
            Stop::Clone(Creation::Vfork) => tracee.has(libc::PTRACE_O_TRACEVFORK),
            Stop::Clone(Creation::Clone) => tracee.has(libc::PTRACE_O_TRACECLONE),
            Stop::Exec => {
                let event = tracee.has(libc::PTRACE_O_TRACEEXEC);
                if !event && !tracee.is_seized {
                    let _ = sys::kill_thread(tracee.process, tid, libc::SIGTRAP);
                }
                event
            }
            Stop::Other(libc::PTRACE_EVENT_VFORK_DONE) => tracee.has(libc::PTRACE_O_TRACEVFORKDONE),
            Stop::Other(libc::PTRACE_EVENT_EXIT) => tracee.has(libc::PTRACE_O_TRACEEXIT),
            Stop::Other(_) | Stop::Syscall => false,
            Stop::Group(_) => tracee.how != Resume::Listen || tracee.is_trap_due,
            Stop::Trap => tracee.is_trap_due || tracee.is_seized && was_in_group_stop,
        }
    }

    /// Whether its tracer is to see that a tracee is at the entry of a system call.
    pub fn sees_entry(&mut self, tid: Tid) -> bool {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return false };
        !std::mem::take(&mut tracee.repeats) && tracee.how == Resume::Syscall
    }

    /// Whether its tracer is to see that a tracee is at the exit of one.
    pub fn sees_exit(&self, tid: Tid) -> bool {
        self.tracees.get(&tid).is_some_and(|tracee| matches!(tracee.how, Resume::Syscall | Resume::Step))
    }

    /// Interrupts a tracee again if the trap that its tracer has asked for is still due: to the kernel any stop was that trap.
    pub fn interrupt_again(&self, tid: Tid) {
        if self.tracees.get(&tid).is_some_and(|tracee| tracee.is_trap_due) {
            let _ = sys::interrupt(tid);
        }
    }

    /// Notes that a thread makes its system call again, since the recorder wants it.
    pub fn repeats(&mut self, tid: Tid) {
        if let Some(tracee) = self.tracees.get_mut(&tid) {
            tracee.repeats = true;
        }
    }

    /// Holds a tracee in a stop that its tracer sees; what that is to be told.
    pub fn hold(&mut self, stopped: Stopped, stop: Stop) -> Option<Event> {
        let tid = stopped.tid();
        let Some(tracee) = self.tracees.get_mut(&tid) else {
            self.released.push(Released { tracee: stopped, stop, signal: 0, listens: false });
            return None;
        };
        const TRACE: i32 = 2; // TRAP_TRACE
        let mut siginfo = None;
        let event = |event: i32| libc::SIGTRAP | event << 8;
        let code = match stop {
            Stop::Syscall if tracee.how == Resume::Step => {
                siginfo = Some((libc::SIGTRAP, TRACE));
                libc::SIGTRAP
            }
            Stop::Syscall if tracee.has(libc::PTRACE_O_TRACESYSGOOD) => libc::SIGTRAP | SYSGOOD,
            Stop::Syscall => libc::SIGTRAP,
            Stop::Signal(signal) => signal,
            Stop::Clone(Creation::Fork) => event(libc::PTRACE_EVENT_FORK),
            Stop::Clone(Creation::Vfork) => event(libc::PTRACE_EVENT_VFORK),
            Stop::Clone(Creation::Clone) => event(libc::PTRACE_EVENT_CLONE),
            Stop::Exec => event(libc::PTRACE_EVENT_EXEC),
            Stop::Other(number) => event(number),
            Stop::Group(signal) if tracee.is_seized => signal | libc::PTRACE_EVENT_STOP << 8,
            Stop::Group(signal) => signal,
            Stop::Trap if tracee.is_seized => event(libc::PTRACE_EVENT_STOP),
            Stop::Trap => {
                siginfo = Some((libc::SIGSTOP, libc::SI_USER));
                libc::SIGSTOP
            }
        };
        tracee.is_trap_due = false;
        tracee.held = Some(Held { tracee: stopped, stop, siginfo });
        let (tracer, thread) = (tracee.tracer, tracee.thread);
        let (status, user) = (code << 8 | 0x7f, user_of(tid));
        Some(Event { tracee: tid, tracer, thread, status, has_ended: false, user })
    }

    /// Adds an event and wakes its tracer.
    pub fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        for (tid, wait) in &self.waits {
            if wait.process == event.tracer {
                let _ = sys::interrupt(*tid);
            }
        }
        // Ignored, as it is by default, it would stop the tracer for nothing.
        let status = ProcStatus::of(event.thread.unwrap_or(event.tracer));
        let matters = status.is_none_or(|status| {
            ["SigCgt:", "SigBlk:"]
                .into_iter()
                .filter_map(|set| u64::from_str_radix(status.line(set)?, 16).ok())
                .any(|set| set >> (libc::SIGCHLD - 1) & 1 == 1)
        });
        if matters {
            let _ = sys::kill(event.tracer, libc::SIGCHLD);
        }
    }

    /// Forgets the stop of a tracee that is over.
    pub fn stop_is_over(&mut self, tid: Tid) {
        if let Some(tracee) = self.tracees.get_mut(&tid) {
            tracee.held = None;
            self.events.retain(|event| event.has_ended || event.tracee != tid);
        }
    }

    /// Adds the end of a thread, with the raw wait status, which the kernel does not tell its tracer.
    fn tell_end(&mut self, tracee: Tid, process: Tid, (tracer, thread): (Tid, Option<Tid>), status: i32) {
        self.tell(Event { tracee, tracer, thread, status, has_ended: true, user: user_of(process) });
    }

    /// Lets a tracee run on, as its tracer says.
    fn release(&mut self, tid: Tid, how: Resume, signal: i32) {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return };
        tracee.how = how;
        self.events.retain(|event| event.tracee != tid);
        if let Some(Held { tracee, stop, .. }) = tracee.take_held(tid) {
            self.released.push(Released { tracee, stop, signal, listens: how == Resume::Listen });
        }
    }

    /// Ends the tracing of a thread, which runs on with a signal, or stays in its group-stop. Without one, it gets the
    /// signal at which it is stopped, unless its tracer has waited for that stop.
    pub fn detach(&mut self, tid: Tid, signal: Option<i32>) {
        let Some(mut tracee) = self.tracees.remove(&tid) else { return };
        let is_told = !self.events.iter().any(|event| event.tracee == tid);
        self.events.retain(|event| event.tracee != tid);
        if let Some(Held { tracee: stopped, stop, .. }) = tracee.take_held(tid) {
            if tracee.told != 0 {
                let _ = stopped.set_options(0);
            }
            let pending = if let (Stop::Signal(pending), false) = (stop, is_told) { pending } else { 0 };
            let listens = matches!(stop, Stop::Group(_));
            let signal = signal.unwrap_or(pending);
            self.released.push(Released { tracee: stopped, stop, signal, listens });
        }
        self.prune(tracee.tracer);
    }

    /// Takes a tracee that is to be resumed.
    pub fn take_released(&mut self) -> Option<Released> {
        self.released.pop()
    }

    /// Forgets a tracer that has no tracees and is to be told nothing; what waits for tracees waits in vain.
    fn prune(&mut self, tracer: Tid) {
        if self.tracees.values().any(|tracee| tracee.tracer == tracer) {
            return;
        }
        if !self.events.iter().any(|event| event.tracer == tracer) {
            self.tracers.remove(&tracer);
        }
        self.wake_sleeping(Some(tracer));
    }

    /// Wakes threads that sleep instead of waiting, so that they wait again: of one tracer, or of all.
    fn wake_sleeping(&self, tracer: Option<Tid>) {
        for (tid, wait) in &self.waits {
            if wait.sleeps && tracer.is_none_or(|tracer| tracer == wait.process) {
                let _ = sys::interrupt(*tid);
            }
        }
    }

    /// Notes that a tracee has created a thread or process, which its tracer may have asked to trace, too.
    pub fn created(&mut self, creator: Tid, child: Tid, process: Tid, creation: Creation) {
        let Some(tracee) = self.tracees.get(&creator) else { return };
        if tracee.has(match creation {
            Creation::Fork => libc::PTRACE_O_TRACEFORK,
            Creation::Vfork => libc::PTRACE_O_TRACEVFORK,
            Creation::Clone => libc::PTRACE_O_TRACECLONE,
        }) {
            let child_of = Tracee {
                process,
                is_child: false,
                how: Resume::Continue,
                is_trap_due: true,
                repeats: false,
                held: None,
                ..*tracee
            };
            self.tracees.insert(child, child_of);
        }
    }

    /// Notes that a process has executed a program: `former` is what the thread was called, which is its leader now.
    pub fn executed(&mut self, process: Tid, former: Tid) {
        for thread in [process, former] {
            self.waits.remove(&thread);
            self.asking.remove(&thread);
        }
        for tracee in self.tracees.values_mut().filter(|tracee| tracee.thread == Some(former)) {
            tracee.thread = Some(process);
        }
        let survivor = self.tracees.remove(&former);
        let lost: Vec<_> = self.tracees.extract_if(|_, tracee| tracee.process == process).collect();
        let is_lost = |tid| tid == former || lost.iter().any(|(lost, _)| *lost == tid);
        self.events.retain(|event| event.has_ended || !is_lost(event.tracee));
        if let Some(tracee) = survivor {
            let tracer = tracee.tracer;
            let is_child = is_child(process, tracer);
            self.tracees.insert(process, Tracee { is_child, held: None, repeats: false, ..tracee });
            // A program with more rights than its tracer: the kernel gave it those since it knows us as its tracer.
            if !permission::is_within(tracer, process) {
                self.detach(process, None);
            }
        }
        // The other threads count as ended; but of the leader, whose number lives on, nothing is told.
        for (tid, Tracee { tracer, thread, .. }) in lost {
            if tid != process {
                self.tell_end(tid, process, (tracer, thread), 0);
            }
            self.prune(tracer);
        }
    }

    /// Notes that a thread has ended.
    pub fn ended(&mut self, tid: Tid, process: Tid, end: End) {
        self.waits.remove(&tid);
        self.asking.remove(&tid);
        if let Some(tracee) = self.tracees.remove(&tid) {
            self.events.retain(|event| event.tracee != tid);
            let (tracer, thread) = (tracee.tracer, tracee.thread);
            // The kernel tells a parent itself.
            if !tracee.is_child {
                self.tell_end(tid, process, (tracer, thread), end.raw());
            }
            self.prune(tracer);
        }
        let is_tracer = |tracee: &Tracee| tracee.thread == Some(tid) || tracee.tracer == tid;
        let left: Vec<_> =
            self.tracees.iter().filter(|(_, tracee)| is_tracer(tracee)).map(|(tid, _)| *tid).collect();
        for tracee in left {
            if self.tracees[&tracee].has(libc::PTRACE_O_EXITKILL) {
                let _ = sys::kill(self.tracees[&tracee].process, libc::SIGKILL);
            }
            self.detach(tracee, None);
        }
        if process == tid {
            self.events.retain(|event| event.tracer != tid);
            self.tracers.remove(&tid);
            // Its parent may sleep instead of waiting for it.
            self.wake_sleeping(None);
        }
    }
}

/// Whether a process is a child of another one.
fn is_child(process: Tid, parent: Tid) -> bool {
    process_and_parent(process).is_some_and(|(_, known)| known == parent)
}

/// The user of a process, as waitid(2) tells it.
fn user_of(tid: Tid) -> u32 {
    let user = |status: ProcStatus| status.line("Uid:")?.split_whitespace().next()?.parse().ok();
    ProcStatus::of(tid).and_then(user).unwrap_or_default()
}
