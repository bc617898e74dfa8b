//! The notification threads: they answer the seccomp notifications of read-only syscalls (seccomp_unotify(2)),
//! which thus do without a ptrace-stop.
//!
//! They ask the observer about each syscall at its entry and let the kernel execute it. They never call ptrace
//! or waitpid: that is for the thread of `tracer.rs` alone, which follows the tree and tells these,
//! through `shared.rs`, which process a thread belongs to. Where the result of a syscall is awaited all the
//! same, the tracing thread is made to interrupt the caller, which then stops when the syscall has ended.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inside::{self, Inside};
use super::observer::{Caller, Decision, Errno, Observer, SyscallEntry, Waiting, failed, gap};
use super::postponed::{self, PostponedQueue};
use super::question;
use super::shared::Shared;
use super::steady::steady_memory;
use super::sys::{self, AddressSpace, Interrupter, Notification, TraceeMemory};
use super::syscalls::{self, Args, DecodedSyscall, Interpretation, Refusable};
use crate::sync::lock;

/// What becomes of a syscall whose notification is answered.
enum Answer {
    /// The kernel executes it.
    Continue,
    /// It fails.
    Fail(Errno),
    /// It returns a descriptor of this file.
    Opened { file: OwnedFd, close_on_exec: bool },
}

/// A notification that is not answered yet: dropping it gives the answer, so that happens exactly once.
struct Unanswered<'a> {
    listener: &'a OwnedFd,
    notification: Notification,
    answer: Answer,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let (listener, id) = (self.listener.as_fd(), self.notification.id);
        let opened = match std::mem::replace(&mut self.answer, Answer::Continue) {
            Answer::Continue => return sys::continue_notification(listener, id),
            Answer::Fail(Errno(errno)) => return sys::fail_notification(listener, id, errno),
            Answer::Opened { file, close_on_exec } => {
                sys::return_descriptor(listener, id, file, close_on_exec)
            }
        };
        // ENOENT: it was killed.
        if let Err(error) = opened {
            sys::fail_notification(listener, id, error.raw_os_error().unwrap_or(libc::EIO));
        }
    }
}

/// How many threads answer on this machine: one for each four CPUs, at most four.
///
/// With two CPUs, a second one makes nothing faster (docs/performance.md).
pub fn default_threads() -> usize {
    let threads = |cpus: usize| (cpus / 4).clamp(1, 4);
    // A quota of the control group can only make them fewer, and finding it takes some thirty calls.
    let allowed = rustix::thread::sched_getaffinity(None).map_or(usize::MAX, |cpus| cpus.count() as usize);
    match threads(allowed) {
        1 => 1,
        _ => threads(std::thread::available_parallelism().map_or(1, NonZeroUsize::get)),
    }
}

/// Answers notifications, as several threads may at once, until no process has the filter any more.
pub fn serve<O: Observer>(
    listener: &OwnedFd,
    shared: &Shared<O::Pending>,
    interrupter: &Mutex<Interrupter>,
    observer: &O,
    refusable: Option<Refusable>,
) {
    let postponed = PostponedQueue::new();
    Server { listener, shared, interrupter, observer, refusable, postponed, is_postponing: false }.run();
}

struct Server<'a, O: Observer> {
    listener: &'a OwnedFd,
    shared: &'a Shared<O::Pending>,
    interrupter: &'a Mutex<Interrupter>,
    observer: &'a O,
    /// Which calls may be refused by rules, if any.
    refusable: Option<Refusable>,
    postponed: PostponedQueue<Unanswered<'a>>,
    /// Whether the others know that there are any.
    is_postponing: bool,
}

impl<'a, O: Observer> Server<'a, O> {
    fn run(mut self) {
        let listener = self.listener;
        loop {
            let Some(turn) = self.await_turn() else { continue };
            let received = sys::receive_notification(listener.as_fd());
            drop(turn);
            match received {
                Ok(notification) => {
                    let Notification { arch, number, arguments, .. } = notification;
                    match question::answer(arch, number, &arguments) {
                        Some(errno) => sys::fail_notification(listener.as_fd(), notification.id, errno.0),
                        None => {
                            let answer = Answer::Continue;
                            self.guarded(Unanswered { listener, notification, answer }, None);
                        }
                    }
                }
                // The syscall was interrupted before its notification was received, or the last process is
                // gone.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    if sys::has_no_tracee(listener.as_fd()) {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nobody else would answer.
                Err(error) => {
                    gap(self.observer, &format!("receive the notification of a syscall: {error}"));
                    std::thread::sleep(postponed::INTERVAL);
                }
            }
        }
    }

    /// Waits until it is this thread's turn to receive a notification. If it has postponed syscalls, only for one that is
    /// there: nobody would serve those while it waits for another, and that one may never come.
    fn await_turn(&mut self) -> Option<MutexGuard<'a, ()>> {
        let shared = self.shared;
        if self.postponed.is_empty() {
            return Some(lock(shared.receiving()));
        }
        if !self.serve_postponed() {
            return None;
        }
        // Another thread receives it, or may just have done so.
        let turn = shared.receiving().try_lock().ok()?;
        let mut fds = [PollFd::new(self.listener, PollFlags::IN)];
        let is_there = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
        is_there.then_some(turn)
    }

    /// Waits for a notification, until postponed syscalls are due, and serves those; whether there is a
    /// notification.
    fn serve_postponed(&mut self) -> bool {
        let due = self.postponed.deadline().unwrap_or_else(Instant::now);
        let left = due.saturating_duration_since(Instant::now());
        let mut fds = [
            PollFd::new(self.listener, PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.call_ended(), PollFlags::IN),
        ];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        let _ = poll(&mut fds, Some(&timeout));
        let [notified, call_ended] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if call_ended {
            self.shared.take_call_ended();
        }
        let due = self.postponed.take_due(call_ended);
        if !due.is_empty() {
            for (unanswered, since) in due {
                self.guarded(unanswered, Some(since));
            }
            self.note_postponing();
        }
        notified
    }

    /// Tells the others whether there are postponed syscalls, if that has changed.
    fn note_postponing(&mut self) {
        let has = !self.postponed.is_empty();
        if std::mem::replace(&mut self.is_postponing, has) != has {
            self.shared.note_postponing(has);
        }
    }

    /// The memory of a caller if nobody can change what the arguments of its call point to; none where no rule may refuse
    /// that.
    fn steady_memory(
        &self,
        caller: Caller,
        Notification { id, number, arguments, .. }: &Notification,
    ) -> Option<Option<Arc<AddressSpace>>> {
        let (row, refusable) = syscalls::row_of(*number).zip(self.refusable)?;
        row.may_be_refused(refusable).then(|| {
            let pointers = refusable.unseen_ends.then(|| row.pinned(arguments, refusable))?;
            let is_alive = || sys::is_notification_valid(self.listener.as_fd(), *id);
            steady_memory(self.shared, caller, arguments, &pointers, is_alive)
        })
    }

    /// Serves a notification. If that panics, the syscall continues all the same, unless rules may refuse it.
    fn guarded(&mut self, unanswered: Unanswered<'a>, since: Option<Instant>) {
        let _judging = self.shared.inside().map(Inside::judging);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.serve(unanswered, since))) {
            failed(self.observer, &*panic);
        }
    }

    /// Continues or postpones a syscall, which was first postponed at `since`.
    fn serve(&mut self, mut unanswered: Unanswered<'a>, since: Option<Instant>) {
        let Notification { id, tid, arch, number, arguments, .. } = unanswered.notification;
        let memory = TraceeMemory(tid);
        let caller = self.shared.caller(tid);
        let open = plain_open(number, &arguments);
        // First, since this may decide which content of a file a page has.
        let steady_memory = self.steady_memory(caller, &unanswered.notification);
        let steady = steady_memory.as_ref().map(Option::is_some);
        let interpretation = match &steady_memory {
            Some(Some(memory)) => syscalls::interpret(arch, number, &arguments, &**memory),
            _ => {
                let interpretation = syscalls::interpret(arch, number, &arguments, &memory);
                // The memory that was read is the caller's only if it is still blocked.
                if !sys::is_notification_valid(self.listener.as_fd(), id) {
                    return;
                }
                interpretation
            }
        };
        let overdue = postponed::is_overdue(since);
        // What was not decided, because of a bug of ours, is not made.
        if steady.is_some() {
            unanswered.answer = Answer::Fail(Errno(libc::EACCES));
        }
        let decision = match &interpretation {
            // What fails as it is now may be made to succeed.
            Interpretation::Irrelevant | Interpretation::Unreadable(_) if steady == Some(false) => {
                Decision::Stop
            }
            Interpretation::Irrelevant => Decision::Continue,
            Interpretation::Unreadable(name) => {
                self.observer.unreadable(caller, name);
                // What can't be judged is not made.
                if steady.is_some() {
                    return;
                }
                Decision::MayWait
            }
            Interpretation::Relevant(name, decoded) => {
                let waiting = Waiting::Notified { steady: steady == Some(true), openable: open.is_some() };
                let entry = SyscallEntry { decoded, name, memory, overdue, waiting };
                self.observer.on_entry(caller, &entry)
            }
        };
        unanswered.answer = Answer::Continue;
        match decision {
            Decision::Postpone | Decision::PostponeBehind(_) if !overdue => {
                self.postponed.push(unanswered, since);
                self.note_postponing();
                return;
            }
            Decision::Refuse(errno) => {
                unanswered.answer = Answer::Fail(errno);
                return;
            }
            Decision::Opened(file) => {
                self.shared.set_interruptible(tid, None);
                let close_on_exec = open.is_some_and(|flags| flags & libc::O_CLOEXEC != 0);
                unanswered.answer = Answer::Opened { file, close_on_exec };
                return;
            }
            Decision::Stop => {
                // The command does not see the error: the thread stops first, and repeats the call.
                self.shared.set_interruptible(tid, None);
                self.shared.repeat(tid);
                lock(self.interrupter).interrupt(tid);
                unanswered.answer = Answer::Fail(Errno(libc::ENOSYS));
                return;
            }
            _ => {}
        }
        let is_to_patch = matches!(decision, Decision::Continue | Decision::Counted)
            && self.note_judged(caller, unanswered.notification, interpretation.decoded());
        let may_wait =
            matches!(decision, Decision::MayWait) || syscalls::may_wait_for_peer(number, &arguments);
        self.shared.set_interruptible(tid, may_wait.then_some((number, arguments)));
        if let Decision::AwaitResult(pending) = decision {
            let former = self.shared.await_result(tid, pending);
            lock(self.interrupter).interrupt(tid);
            // A thread that was killed meanwhile may have been reported already.
            let blocked = sys::is_notification_valid(self.listener.as_fd(), id);
            let lost = if blocked { None } else { self.shared.take_awaited(tid) };
            for pending in former.into_iter().chain(lost) {
                self.observer.on_result(caller, pending, None);
                self.shared.wake_postponed();
            }
        } else if let Some(inside) = self.shared.inside() {
            if is_to_patch {
                lock(self.interrupter).interrupt(tid);
            }
            // It need not wait until the notes are read.
            drop(unanswered);
            inside.read_soon(caller.tgid);
        }
    }

    /// Whether the process of a call that was judged is to be patched, so that it notes such calls.
    fn note_judged(
        &self,
        caller: Caller,
        Notification { number, instruction_pointer, .. }: Notification,
        decoded: Option<&DecodedSyscall>,
    ) -> bool {
        let Some(inside) = self.shared.inside() else { return false };
        let is_noted = syscalls::row_of(number).is_some_and(|row| inside::is_noted(row.name));
        let Some(number) = u32::try_from(number).ok().filter(|_| is_noted) else { return false };
        let site = (instruction_pointer, number);
        inside.judged(caller, site, decoded, self.observer, || self.observer.late_calls(caller.tgid))
    }
}

/// The flags of a call, if it is an open whose flags say nothing but what [`OpenFlags`](syscalls::OpenFlags) keeps and
/// whether the descriptor is closed at an exec.
fn plain_open(number: u64, arguments: &Args) -> Option<i32> {
    let flags = syscalls::row_of(number)?.open_flags(arguments)?.cast_signed();
    (flags & !syscalls::PLAIN_OPEN == 0).then_some(flags)
}
