//! The fast lane: calls that only look wait for an answer here instead of stopping for the tracer.
//!
//! One thread receives them by seccomp user notification (seccomp_unotify(2)), has the observer judge
//! each at its entry, and lets it go on. It never ptraces; that is `tracer.rs`'s thread, which follows
//! the tree and tells which process a thread belongs to. Where the result of a look is wanted after all,
//! that thread is asked to interrupt the caller, which the kernel does when the call is over.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::call::{self, Meaning};
use super::observer::{Decision, Observer, SyscallEntry, failed, gap};
use super::shared::Shared;
use super::sys::{self, Interrupter, Notification, TraceeMemory};
use super::tracer::{JUDGED_AGAIN, POSTPONED_AT_MOST};

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
    threads: &Shared<O::Pending>,
    interrupter: &Interrupter,
    observer: &O,
) {
    Server { listener, threads, interrupter, observer, postponed: VecDeque::new(), judged: Instant::now() }
        .run();
}

struct Server<'a, O: Observer> {
    listener: &'a OwnedFd,
    threads: &'a Shared<O::Pending>,
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
            Meaning::Nothing => Decision::Continue,
            Meaning::Unreadable(name) => {
                self.observer.unreadable(caller, name);
                Decision::MayWait
            }
            Meaning::Call(name, decoded) => {
                let memory = TraceeMemory(tid);
                self.observer.before(caller, &SyscallEntry { decoded: &decoded, name, memory, overdue })
            }
        };
        if matches!(verdict, Decision::Postpone) && !overdue {
            let now = Instant::now();
            if self.postponed.is_empty() {
                self.judged = now;
            }
            self.postponed.push_back(Postponed { look, since: since.unwrap_or(now) });
            threads.postponed.store(true, Ordering::SeqCst);
            return;
        }
        threads.waits(tid, matches!(verdict, Decision::MayWait).then_some((number, arguments)));
        if let Decision::AwaitResult(pending) = verdict {
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
