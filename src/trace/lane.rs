//! The fast lane: calls that only look wait for an answer here instead of stopping for the tracer.
//!
//! One thread receives them by seccomp user notification (seccomp_unotify(2)), has the observer judge
//! each at its entry, and lets it go on. It never ptraces; that is `tracer.rs`'s thread, which follows
//! the tree and tells which process a thread belongs to. Where the result of a look is wanted after all,
//! that thread is asked to interrupt the caller, which the kernel does when the call is over.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::call::{self, Meaning};
use super::sys::{self, Interrupter, Notification, Register, Tid, TraceeMemory};
use super::syscalls::{self, Args, Sysno};
use super::tracer::{Caller, HeldCall, JUDGED_AGAIN, Observer, POSTPONED_AT_MOST, Verdict, failed, gap};

/// The kernel's internal results of a call that a signal interrupted (linux/errno.h): it is made again
/// unless a handler without SA_RESTART runs, or in any case.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: u64 = (-513_i64).cast_unsigned();

/// What the two lanes tell each other of threads.
#[derive(Debug)]
pub struct Threads<P> {
    known: Mutex<Known<P>>,
    /// Whether postponed calls wait here for another to be over.
    postponed: AtomicBool,
    /// Readable once one is over.
    settled: EventFd,
}

#[derive(Debug)]
struct Known<P> {
    /// The process of each thread that is not its leader.
    process: HashMap<Tid, Tid, foldhash::fast::RandomState>,
    /// Threads whose last call is a look that may wait for something outside, and may be interrupted in
    /// it: its number and arguments.
    waits: HashMap<Tid, (u64, Args), foldhash::fast::RandomState>,
    /// What is kept of looks whose result is wanted, until their thread stops behind them.
    awaited: HashMap<Tid, P, foldhash::fast::RandomState>,
}

impl<P> Threads<P> {
    /// Nothing is known yet.
    pub fn new() -> io::Result<Self> {
        let known =
            Known { process: HashMap::default(), waits: HashMap::default(), awaited: HashMap::default() };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let settled = EventFd::from_flags(flags)?;
        Ok(Threads { known: Mutex::new(known), postponed: AtomicBool::new(false), settled })
    }

    fn lock(&self) -> MutexGuard<'_, Known<P>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a call is over, which postponed ones may wait for.
    pub fn settle(&self) {
        if self.postponed.load(Ordering::SeqCst) {
            // It can't fail but where it is readable already.
            let _ = self.settled.write(1);
        }
    }

    /// Notes that `tid` is a thread of `process`.
    pub fn add(&self, tid: Tid, process: Tid) {
        if tid != process {
            self.lock().process.insert(tid, process);
        }
    }

    /// Notes that `tid` is gone, or that it is its process's leader now; what was kept of its last look.
    pub fn remove(&self, tid: Tid) -> Option<P> {
        let mut known = self.lock();
        known.process.remove(&tid);
        known.waits.remove(&tid);
        known.awaited.remove(&tid)
    }

    /// What was kept of the look that `tid` has stopped behind, if its result is wanted.
    pub fn take_awaited(&self, tid: Tid) -> Option<P> {
        self.lock().awaited.remove(&tid)
    }

    fn caller(&self, tid: Tid) -> Caller {
        Caller { tid, tgid: self.lock().process.get(&tid).copied().unwrap_or(tid) }
    }

    /// Notes that `tid` makes a call that is no look: whatever it may have waited in is over.
    pub fn calls(&self, tid: Tid) {
        self.waits(tid, None);
    }

    fn waits(&self, tid: Tid, call: Option<(u64, Args)>) {
        let mut known = self.lock();
        match call {
            Some(call) => drop(known.waits.insert(tid, call)),
            None if known.waits.is_empty() => {}
            None => drop(known.waits.remove(&tid)),
        }
    }

    /// Sees to it that a look which a signal interrupted before it was received is made again.
    ///
    /// The kernel would answer EINTR for a handler without SA_RESTART, which alone it would not: the
    /// call has not begun. `tid` is in its signal-delivery-stop.
    pub fn mend_interrupted_look(&self, tid: Tid) {
        let Ok((number, arguments, ERESTARTSYS)) = sys::interrupted_call(tid) else { return };
        let row = Sysno::from_register(number).and_then(syscalls::row);
        let looks = row.is_some_and(|row| row.looks_only(&arguments));
        // One that had begun, and waits for the other end of a FIFO, is interrupted as it is alone.
        if looks && self.lock().waits.get(&tid) != Some(&(number, arguments)) {
            let _ = sys::set_register(tid, Register::Result, ERESTARTNOINTR);
        }
    }
}

/// A look that waits for its answer; it gets it when this is dropped, so exactly once.
struct HeldLook<'a> {
    listener: &'a OwnedFd,
    notification: Notification,
}

impl Drop for HeldLook<'_> {
    fn drop(&mut self) {
        sys::let_go_on(self.listener.as_fd(), self.notification.id);
    }
}

/// A look whose answer is postponed, and since when.
struct Postponed<'a> {
    look: HeldLook<'a>,
    since: Instant,
}

/// Answers looks until no process has the filter any more.
pub fn serve<O: Observer>(
    listener: &OwnedFd,
    threads: &Threads<O::Pending>,
    interrupter: &Interrupter,
    observer: &O,
) {
    Server { listener, threads, interrupter, observer, postponed: VecDeque::new(), judged: Instant::now() }
        .run();
}

struct Server<'a, O: Observer> {
    listener: &'a OwnedFd,
    threads: &'a Threads<O::Pending>,
    interrupter: &'a Interrupter,
    observer: &'a O,
    /// In the order in which they came.
    postponed: VecDeque<Postponed<'a>>,
    /// When the postponed ones were last judged.
    judged: Instant,
}

impl<'a, O: Observer> Server<'a, O> {
    fn run(mut self) {
        let listener = self.listener;
        loop {
            if !self.postponed.is_empty() && !self.judge_postponed() {
                continue;
            }
            match sys::receive_notification(listener.as_fd()) {
                Ok(notification) => self.guarded(HeldLook { listener, notification }, None),
                // One was interrupted before we had it, or the last process is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    if hung_up(listener) {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nobody else would answer.
                Err(error) => {
                    gap(self.observer, &format!("receive a call that waits for its answer: {error}"));
                    std::thread::sleep(JUDGED_AGAIN);
                }
            }
        }
    }

    /// Waits for a notification, for the end of a call or for a moment, and judges the postponed ones
    /// again where that is due; whether there is a notification.
    fn judge_postponed(&mut self) -> bool {
        let left = JUDGED_AGAIN.saturating_sub(self.judged.elapsed());
        let timeout = if left.is_zero() { PollTimeout::ZERO } else { PollTimeout::from(1_u8) };
        let mut fds = [
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.threads.settled.as_fd(), PollFlags::POLLIN),
        ];
        let _ = poll(&mut fds, timeout);
        let [notified, settled] =
            fds.each_ref().map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        if settled {
            let _ = self.threads.settled.read();
        }
        if settled || self.judged.elapsed() >= JUDGED_AGAIN {
            self.judged = Instant::now();
            for Postponed { look, since } in std::mem::take(&mut self.postponed) {
                self.guarded(look, Some(since));
            }
            self.threads.postponed.store(!self.postponed.is_empty(), Ordering::SeqCst);
        }
        notified
    }

    /// Answers a look, whatever happens: after a panic it goes on.
    fn guarded(&mut self, look: HeldLook<'a>, since: Option<Instant>) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.answer(look, since))) {
            failed(self.observer, &*panic);
        }
    }

    /// Judges a look, which was first postponed at `since`, and answers or postpones it.
    fn answer(&mut self, look: HeldLook<'a>, since: Option<Instant>) {
        let Notification { id, tid, arch, number, arguments } = look.notification;
        let threads = self.threads;
        let caller = threads.caller(tid);
        let meaning = call::read(arch, number, &arguments, TraceeMemory(tid));
        // The memory that was read is the caller's only if it still waits.
        if !sys::notification_waits(look.listener.as_fd(), id) {
            return;
        }
        let overdue = since.is_some_and(|since| since.elapsed() >= POSTPONED_AT_MOST);
        let verdict = match meaning {
            Meaning::Nothing => Verdict::Continue,
            Meaning::Unreadable(name) => {
                self.observer.unreadable(caller, name);
                Verdict::MayWait
            }
            Meaning::Call(name, decoded) => {
                let memory = TraceeMemory(tid);
                self.observer.before(caller, &HeldCall { decoded: &decoded, name, memory, overdue })
            }
        };
        if matches!(verdict, Verdict::Postpone) && !overdue {
            let now = Instant::now();
            if self.postponed.is_empty() {
                self.judged = now;
            }
            self.postponed.push_back(Postponed { look, since: since.unwrap_or(now) });
            threads.postponed.store(true, Ordering::SeqCst);
            return;
        }
        threads.waits(tid, matches!(verdict, Verdict::MayWait).then_some((number, arguments)));
        if let Verdict::AwaitResult(pending) = verdict {
            let former = threads.lock().awaited.insert(tid, pending);
            self.interrupter.interrupt(tid);
            // A thread that died meanwhile tells of no end any more.
            let waits = sys::notification_waits(look.listener.as_fd(), id);
            let lost = if waits { None } else { threads.take_awaited(tid) };
            for pending in former.into_iter().chain(lost) {
                self.observer.after(caller, pending, None);
                threads.settle();
            }
        }
    }
}

fn hung_up(listener: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
        && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}
