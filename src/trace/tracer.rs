//! Follows a tree of threads to its end: one loop over `waitpid`, one record a thread.
//!
//! Knows calls and registers, no files: what a held call means is the [`Observer`]'s. Whatever
//! dies between two steps of ours is ordinary; the loop ends at ECHILD only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::call::{self, Meaning};
use super::fatal::{self, DyingInit, Effect};
use super::filter::{self, Interception};
use super::observer::{Caller, Decision, Observer, SyscallEntry, failed, gap};
use super::shared::Shared;
use super::sys::{self, Register, Resume, SyscallStop, Tid, TraceeMemory};
use super::syscalls::{DecodedSyscall, Special};
use super::wait_status::{End, Stop, Stopped, WaitStatus};

/// So long after a report the next one is likely.
const AWAKE: Duration = Duration::from_micros(50);
/// After so many reports each thread that waits is served once.
const UNFAIR_TURNS: u32 = 16;
/// Postponed calls are judged again after each result, and at least this often.
pub(super) const JUDGED_AGAIN: Duration = Duration::from_millis(1);
/// A call that has been postponed for this long must be judged: longer than a busy disk takes for another
/// call, and not so long that a command which waits for itself (a lease, fcntl(2)) seems to hang.
pub(super) const POSTPONED_AT_MOST: Duration = Duration::from_secs(5);

const WRITE_MEMORY: u64 = libc::SYS_process_vm_writev.cast_unsigned();

struct Thread<P> {
    tgid: Tid,
    /// Whether its creator's event has told of it.
    announced: bool,
    pending: Option<P>,
    /// Whether the next call-stop is the exit of a call that was seen entering.
    in_call: bool,
    in_group_stop: bool,
}

impl<P> Thread<P> {
    fn new(tgid: Tid) -> Self {
        Thread { tgid, announced: true, pending: None, in_call: false, in_group_stop: false }
    }
}

/// A thread that stays at the entry of a postponed call.
#[derive(Debug, Clone, Copy)]
struct Postponed {
    tid: Tid,
    since: Instant,
}

/// The threads that are followed.
pub struct Tracer<'a, O: Observer> {
    observer: &'a O,
    interception: Interception,
    shared: &'a Shared<O::Pending>,
    threads: HashMap<Tid, Thread<O::Pending>, foldhash::fast::RandomState>,
    /// How many threads beside the leader each process has that has any.
    beside_leader: HashMap<Tid, usize, foldhash::fast::RandomState>,
    /// Processes whose memory may be another one's, too, until they execute or end.
    one_memory: HashSet<Tid, foldhash::fast::RandomState>,
    /// Shared that ended before their creator's event told of them.
    ended_early: HashSet<Tid, foldhash::fast::RandomState>,
    /// The first argument of each thread that we have changed: it is put back at the thread's next stop.
    changed: HashMap<Tid, u64, foldhash::fast::RandomState>,
    /// The first stop of threads whose creator may be one of those: they wait for its event.
    parked: HashMap<Tid, i32, foldhash::fast::RandomState>,
    /// The threads whose call is postponed, in the order in which they came.
    postponed: VecDeque<Postponed>,
    /// When the postponed calls were last judged.
    judged: Instant,
    /// Whether a call has come to an end since then.
    settled: bool,
    /// The processes that are no longer traced, so that they can die.
    dying: Vec<DyingInit>,
}

impl<'a, O: Observer> Tracer<'a, O> {
    /// A tracer of `command`, which is seized and has made no call yet.
    pub fn new(
        command: Tid,
        interception: Interception,
        shared: &'a Shared<O::Pending>,
        observer: &'a O,
    ) -> Self {
        let mut threads = HashMap::default();
        threads.insert(command, Thread::new(command));
        Tracer {
            observer,
            interception,
            shared,
            threads,
            beside_leader: HashMap::default(),
            one_memory: HashSet::default(),
            ended_early: HashSet::default(),
            changed: HashMap::default(),
            parked: HashMap::default(),
            postponed: VecDeque::new(),
            judged: Instant::now(),
            settled: false,
            dying: Vec::new(),
        }
    }

    /// Follows the tree until its last thread has ended.
    ///
    /// Whatever goes wrong at one stop, here or in the observer, costs what is known of it alone: its
    /// thread is resumed all the same, since the tree dies with this loop.
    pub fn run(mut self) {
        let mut reports = VecDeque::new();
        loop {
            for turn in 0..UNFAIR_TURNS {
                let deadline = if !self.postponed.is_empty() {
                    Some(self.judged + JUDGED_AGAIN)
                } else if !self.dying.is_empty() {
                    Some(Instant::now() + JUDGED_AGAIN)
                } else {
                    None
                };
                match sys::wait_any_awake(AWAKE, deadline) {
                    Ok(reported) => reports.extend(reported),
                    Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                        if self.dying.is_empty() {
                            return;
                        }
                        std::thread::sleep(JUDGED_AGAIN);
                    }
                    Err(error) => {
                        gap(self.observer, &format!("wait for the command's processes: {error}"));
                        std::thread::sleep(JUDGED_AGAIN);
                    }
                }
                if turn == UNFAIR_TURNS - 1 && self.threads.len() > 1 {
                    collect(&mut reports);
                }
                while let Some((tid, status)) = reports.pop_front() {
                    self.guarded(tid, status);
                    self.unpark(&mut reports);
                    self.judge_postponed();
                }
                self.judge_postponed();
                self.see_to_the_dying();
            }
        }
    }

    /// Acts on a report, and gets over a panic in that.
    fn guarded(&mut self, tid: Tid, status: i32) {
        let is_leader = self.threads.get(&tid).is_some_and(|thread| thread.tgid == tid);
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.reported(tid, status))) else { return };
        failed(self.observer, &*panic);
        match WaitStatus::from_raw(status) {
            // Others wait for the end of a process.
            WaitStatus::Ended(end) if is_leader => {
                let _ = catch_unwind(AssertUnwindSafe(|| self.observer.ended(tid, end)));
            }
            WaitStatus::Ended(_) => {}
            WaitStatus::Stopped(stop) => {
                let how = if matches!(stop, Stop::Group(_)) { Resume::Listen } else { self.way_on(tid) };
                let signal = if let Stop::Signal(signal) = stop { signal } else { 0 };
                self.resume(tid, how, signal);
            }
        }
    }

    /// Resumes a stopped thread.
    fn resume(&self, tid: Tid, how: Resume, signal: i32) {
        let Err(error) = Stopped::new(tid).resume(how, signal) else { return };
        gap(self.observer, &format!("resume thread {tid}: {error}"));
        // It may not stay where it is, whatever the kernel has against the way.
        let _ = Stopped::new(tid).resume(Resume::Continue, 0);
    }

    fn reported(&mut self, tid: Tid, status: i32) {
        match WaitStatus::from_raw(status) {
            WaitStatus::Ended(end) => self.ended(tid, end),
            WaitStatus::Stopped(_) if !self.changed.is_empty() && !self.threads.contains_key(&tid) => {
                self.parked.insert(tid, status);
            }
            WaitStatus::Stopped(stop) => {
                self.meet(tid);
                if let Some((how, signal)) = self.act(tid, stop) {
                    self.resume(tid, how, signal);
                }
            }
        }
    }

    /// Takes up the first stops that need not wait any more: their creator's event has come, or no creator
    /// is left that they could have a changed argument from.
    fn unpark(&mut self, reports: &mut VecDeque<(Tid, i32)>) {
        if !self.parked.is_empty() {
            let (changed, threads) = (&self.changed, &self.threads);
            let due = |tid: &Tid, _: &mut i32| changed.is_empty() || threads.contains_key(tid);
            reports.extend(self.parked.extract_if(due));
        }
    }

    /// Makes a record for a thread whose first stop came before its creator's event.
    fn meet(&mut self, tid: Tid) {
        if self.threads.contains_key(&tid) {
            return;
        }
        let (tgid, parent) = process_and_parent(tid).unwrap_or((tid, Tid(0)));
        self.add(tid, tgid).announced = false;
        // One of that name whose creator never told of it is long gone.
        self.ended_early.remove(&tid);
        if tgid == tid {
            self.observer.started(tid, parent);
        }
    }

    /// The record of a thread of `tgid`, made where there is none.
    fn add(&mut self, tid: Tid, tgid: Tid) -> &mut Thread<O::Pending> {
        if !self.threads.contains_key(&tid) && tid != tgid {
            self.shared.add(tid, tgid);
            *self.beside_leader.entry(tgid).or_default() += 1;
            self.observer.shares_memory(tgid, true);
        }
        self.threads.entry(tid).or_insert_with(|| Thread::new(tgid))
    }

    /// Does what a stop asks for; how the thread goes on, and with which signal, unless its call is
    /// postponed.
    fn act(&mut self, tid: Tid, stop: Stop) -> Option<(Resume, i32)> {
        let mut signal = 0;
        if self.interception == Interception::Notifications
            && matches!(stop, Stop::Trap | Stop::Group(_))
            && let Some(pending) = self.shared.take_awaited(tid)
        {
            self.looked(tid, pending);
        }
        let changed = if self.changed.is_empty() { None } else { self.changed.remove(&tid) };
        // A program that was just executed has registers of its own.
        if let Some(argument) = changed
            && stop != Stop::Exec
        {
            let _ = sys::set_register(tid, Register::FirstArgument, argument);
        }
        match stop {
            Stop::Syscall => {
                if self.call_stop(tid, None).is_break() {
                    return None;
                }
            }
            Stop::Clone { waits } => self.cloned(tid, waits, changed),
            Stop::Exec => self.executed(tid),
            Stop::Group(stopping) => {
                let thread = self.thread(tid);
                thread.in_group_stop = true;
                if thread.tgid == tid {
                    self.observer.stopped(tid, stopping);
                }
                return Some((Resume::Listen, 0));
            }
            Stop::Trap => {
                let thread = self.thread(tid);
                let continues = std::mem::take(&mut thread.in_group_stop) && thread.tgid == tid;
                if continues {
                    self.observer.continued(tid);
                }
            }
            Stop::Signal(delivered) => {
                signal = delivered;
                let effect = fatal::effect(tid, signal);
                if effect != Effect::Other {
                    let tgid = self.thread(tid).tgid;
                    self.observer.signal(Caller { tid, tgid }, signal);
                }
                if effect == Effect::Repeats && self.leave_to_die(tid, signal) {
                    return None;
                }
                if self.interception == Interception::Notifications {
                    self.shared.mend_interrupted_look(tid);
                }
            }
            Stop::Other => {}
        }
        Some((self.way_on(tid), signal))
    }

    /// Leaves a thread of an init alone with a fault that would repeat while it is traced.
    fn leave_to_die(&mut self, tid: Tid, signal: i32) -> bool {
        let tgid = self.thread(tid).tgid;
        match DyingInit::leave(tid, tgid, signal) {
            Ok(Some(dying)) => self.dying.push(dying),
            Ok(None) => self.ended(tid, End::Killed { signal, core_dumped: false }),
            Err(error) => {
                let what = format!("let process {tgid} die of signal {signal}: {error}");
                self.observer.gap(&what);
                return false;
            }
        }
        true
    }

    /// Tells of the processes that were left to die, once they have.
    fn see_to_the_dying(&mut self) {
        if self.dying.is_empty() {
            return;
        }
        let ended = self.dying.extract_if(.., |dying| dying.end().is_some());
        let ended: Vec<_> = ended.filter_map(|dying| Some((dying.tgid, dying.end()?))).collect();
        for (tgid, end) in ended {
            let told = catch_unwind(AssertUnwindSafe(|| self.ended(tgid, end)));
            told.unwrap_or_else(|panic| failed(self.observer, &*panic));
        }
    }

    /// How a thread goes on so that its next stop is the one that matters.
    fn way_on(&self, tid: Tid) -> Resume {
        let awaits_exit = self.threads.get(&tid).is_some_and(|thread| thread.in_call);
        match self.interception {
            Interception::EveryCall => Resume::Syscall,
            Interception::Stops | Interception::Notifications if awaits_exit => Resume::Syscall,
            Interception::Stops | Interception::Notifications => Resume::Continue,
        }
    }

    /// Judges the postponed calls again, from the start and in order, where that is due.
    fn judge_postponed(&mut self) {
        let settled = std::mem::take(&mut self.settled);
        if self.postponed.is_empty() || !settled && self.judged.elapsed() < JUDGED_AGAIN {
            return;
        }
        self.judged = Instant::now();
        for Postponed { tid, since } in std::mem::take(&mut self.postponed) {
            let judged = catch_unwind(AssertUnwindSafe(|| self.call_stop(tid, Some(since))));
            let next = judged.unwrap_or_else(|panic| {
                failed(self.observer, &*panic);
                ControlFlow::Continue(())
            });
            if next.is_continue() {
                self.resume(tid, self.way_on(tid), 0);
            }
        }
    }

    /// Tells the observer that an awaited call is over, which is what postponed ones wait for.
    fn over(&mut self, caller: Caller, pending: O::Pending, result: Option<i64>) {
        self.observer.after(caller, pending, result);
        self.settle();
    }

    fn settle(&mut self) {
        self.settled = true;
        self.shared.settle();
    }

    /// A look whose result is awaited is over: the thread was interrupted behind it.
    fn looked(&mut self, tid: Tid, pending: O::Pending) {
        let caller = Caller { tid, tgid: self.thread(tid).tgid };
        let result = sys::interrupted_call(tid).ok().map(|(_, _, result)| result);
        self.over(caller, pending, result);
    }

    fn thread(&mut self, tid: Tid) -> &mut Thread<O::Pending> {
        self.threads.entry(tid).or_insert_with(|| Thread::new(tid))
    }

    /// Acts on the entry or exit of a call; breaks where the call is postponed, and the thread stays there.
    ///
    /// `since` is when it was first postponed.
    fn call_stop(&mut self, tid: Tid, since: Option<Instant>) -> ControlFlow<()> {
        // ESRCH: it died while held, which its end tells.
        let Ok(stop) = sys::syscall_stop(tid) else { return ControlFlow::Continue(()) };
        match stop {
            SyscallStop::Entry { arch, number, arguments, filter } => {
                if self.interception == Interception::Notifications {
                    self.shared.calls(tid);
                }
                // A filter of the command's own hands it to a tracer, which the command has not.
                if filter
                    .is_some_and(|data| data != filter::OURS || self.interception == Interception::EveryCall)
                {
                    refuse(tid);
                    return ControlFlow::Continue(());
                }
                return self.entry(tid, arch, number, &arguments, since);
            }
            SyscallStop::Exit { result } => {
                let thread = self.thread(tid);
                thread.in_call = false;
                let caller = Caller { tid, tgid: thread.tgid };
                if let Some(pending) = thread.pending.take() {
                    self.over(caller, pending, Some(result));
                }
            }
            SyscallStop::None => {}
        }
        ControlFlow::Continue(())
    }

    fn entry(
        &mut self,
        tid: Tid,
        arch: u32,
        number: u64,
        arguments: &[u64; 6],
        since: Option<Instant>,
    ) -> ControlFlow<()> {
        let caller = Caller { tid, tgid: self.thread(tid).tgid };
        match call::read(arch, number, arguments, TraceeMemory(tid)) {
            Meaning::Nothing => {}
            Meaning::Unreadable(name) => self.observer.unreadable(caller, name),
            // What a process of the tree has mapped was opened before our eyes.
            Meaning::Call(..) if number == WRITE_MEMORY && self.is_followed(arguments[0]) => {}
            Meaning::Call(name, decoded) => return self.judge(caller, name, &decoded, arguments, since),
        }
        ControlFlow::Continue(())
    }

    /// Whether a process or thread of this number is in the tree.
    fn is_followed(&self, pid: u64) -> bool {
        i32::try_from(pid & 0xffff_ffff).is_ok_and(|pid| self.threads.contains_key(&Tid(pid)))
    }

    fn judge(
        &mut self,
        caller: Caller,
        name: &'static str,
        decoded: &DecodedSyscall,
        arguments: &[u64; 6],
        since: Option<Instant>,
    ) -> ControlFlow<()> {
        let tid = caller.tid;
        // Its flags are in memory, perhaps read-only: libc falls back to clone at ENOSYS.
        if let Some(Special::Untraced { clone3: true, .. }) = decoded.special {
            refuse(tid);
            return ControlFlow::Continue(());
        }
        let overdue = since.is_some_and(|since| since.elapsed() >= POSTPONED_AT_MOST);
        let call = SyscallEntry { decoded, name, memory: TraceeMemory(tid), overdue };
        match self.observer.before(caller, &call) {
            Decision::Postpone if !overdue => {
                let now = Instant::now();
                if self.postponed.is_empty() {
                    self.judged = now;
                }
                self.postponed.push_back(Postponed { tid, since: since.unwrap_or(now) });
                return ControlFlow::Break(());
            }
            Decision::Continue | Decision::MayWait | Decision::Postpone => {}
            Decision::AwaitResult(pending) => {
                let thread = self.thread(tid);
                thread.in_call = true;
                // One whose exit was not seen has come to an end all the same.
                if let Some(former) = thread.pending.replace(pending) {
                    self.over(caller, former, None);
                }
            }
            Decision::Refuse => refuse(tid),
        }
        // The child would run unseen, with a filter that answers ENOSYS to every path call.
        if let Some(Special::Untraced { clone3: false, .. }) = decoded.special {
            let flags = arguments[0] & !u64::from(libc::CLONE_UNTRACED.unsigned_abs());
            if sys::set_register(tid, Register::FirstArgument, flags).is_ok() {
                // The kernel keeps a call's arguments. Its event or its exit is the next stop.
                self.changed.insert(tid, arguments[0]);
                self.thread(tid).in_call = true;
            }
        }
        ControlFlow::Continue(())
    }

    /// A thread has made another; `changed` is the first argument of its call, where we changed that: the
    /// new thread has it, too.
    fn cloned(&mut self, tid: Tid, waits: bool, changed: Option<u64>) {
        let Some(child) = message_tid(tid) else { return };
        if self.ended_early.remove(&child) {
            return;
        }
        if let Some(argument) = changed {
            self.changed.insert(child, argument);
        }
        let creator = self.thread(tid).tgid;
        if is_thread_of(creator, child) {
            self.add(child, creator).announced = true;
        } else {
            self.add(child, child).announced = true;
            self.observer.started(child, creator);
            // A creator that waits writes nothing, but its other threads may.
            let others = self.beside_leader.contains_key(&creator) || self.one_memory.contains(&creator);
            let shared = sys::clone_flags(tid);
            if shared.working_directory {
                self.observer.share_working_directory(creator, child);
            }
            if (!waits || others) && shared.memory {
                for process in [creator, child] {
                    if process == child || !waits {
                        self.one_memory.insert(process);
                        self.observer.shares_memory(process, true);
                    }
                }
            }
        }
    }

    /// After an exec the process has one thread, whose tid is the tgid; the others vanished,
    /// and the one that executed had `former` as its tid.
    fn executed(&mut self, tid: Tid) {
        let former = message_tid(tid).unwrap_or(tid);
        let pending = self.threads.get_mut(&former).and_then(|thread| thread.pending.take());
        let tgid = self.thread(tid).tgid;
        // Only an exec from another thread, or in a process with several, leaves any behind.
        let mut lost = Vec::new();
        self.threads.retain(|other, thread| {
            let keep = *other == tid || thread.tgid != tgid;
            if !keep {
                let awaited = self.shared.remove(*other);
                let own = if *other == former { None } else { thread.pending.take() };
                lost.extend(own.into_iter().chain(awaited).map(|pending| (*other, pending)));
            }
            keep
        });
        if former != tid {
            // Those of the leader, which has vanished: its tid is this thread's now.
            let awaited = self.shared.take_awaited(tid);
            let own = self.thread(tid).pending.take();
            lost.extend(own.into_iter().chain(awaited).map(|pending| (tid, pending)));
        }
        self.postponed.retain(|postponed| postponed.tid != tid && self.threads.contains_key(&postponed.tid));
        for (other, pending) in lost {
            self.over(Caller { tid: other, tgid }, pending, None);
        }
        self.beside_leader.remove(&tgid);
        self.one_memory.remove(&tgid);
        let announced = self.thread(tid).announced;
        *self.thread(tid) = Thread { announced, ..Thread::new(tgid) };
        self.observer.executed(Caller { tid, tgid }, pending);
        self.settle();
    }

    fn ended(&mut self, tid: Tid, end: End) {
        self.changed.remove(&tid);
        self.parked.remove(&tid);
        self.postponed.retain(|postponed| postponed.tid != tid);
        self.settle();
        let Some(thread) = self.threads.remove(&tid) else {
            // Killed before its first stop.
            self.ended_early.insert(tid);
            return;
        };
        let awaited = self.shared.remove(tid);
        if !thread.announced {
            self.ended_early.insert(tid);
        }
        for pending in thread.pending.into_iter().chain(awaited) {
            self.over(Caller { tid, tgid: thread.tgid }, pending, None);
        }
        if thread.tgid == tid {
            self.beside_leader.remove(&tid);
            self.one_memory.remove(&tid);
            self.observer.ended(tid, end);
        } else if let Some(beside) = self.beside_leader.get_mut(&thread.tgid) {
            *beside -= 1;
            if *beside == 0 {
                self.beside_leader.remove(&thread.tgid);
                self.observer.shares_memory(thread.tgid, self.one_memory.contains(&thread.tgid));
            }
        }
    }
}

/// Takes every report that is there, and resumes nothing meanwhile.
///
/// The kernel names the youngest tracee that has something to report: a few that stop again and again
/// would keep all others waiting forever.
fn collect(reports: &mut VecDeque<(Tid, i32)>) {
    while let Ok(Some((tid, status))) = sys::changed_by_now() {
        // Another thread took this tid with its exec: the stop of the one that had it is over.
        if matches!(WaitStatus::from_raw(status), WaitStatus::Stopped(Stop::Exec)) {
            reports.retain(|(other, _)| *other != tid);
        }
        reports.push_back((tid, status));
    }
}

/// Has a call that is held at its entry answer ENOSYS: it is not made.
fn refuse(tid: Tid) {
    let _ = sys::set_register(tid, Register::Number, u64::MAX);
}

fn message_tid(tid: Tid) -> Option<Tid> {
    sys::event_message(tid).ok().and_then(|message| i32::try_from(message).ok()).map(Tid)
}

/// Whether `tid` is a thread of `process`, by the kernel's own list.
fn is_thread_of(process: Tid, tid: Tid) -> bool {
    std::fs::symlink_metadata(format!("/proc/{process}/task/{tid}")).is_ok()
}

/// The Tgid and PPid lines of /proc/TID/status.
fn process_and_parent(tid: Tid) -> Option<(Tid, Tid)> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok().map(Tid)
    };
    Some((number("Tgid:")?, number("PPid:")?))
}
