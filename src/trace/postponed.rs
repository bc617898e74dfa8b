//! The syscalls that stay at their entry until another one has ended, in the order in which they came.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Postponed syscalls are decided again whenever an awaited one ends, and at least this often.
pub(super) const INTERVAL: Duration = Duration::from_millis(1);

/// A syscall that has been postponed for this long must be decided: longer than a busy disk takes for another
/// syscall, but not so long that a command which waits for itself (a lease, fcntl(2)) seems to hang.
const LIMIT: Duration = Duration::from_secs(5);

/// Whether a syscall that was first postponed at `since` must not be postponed again.
pub(super) fn is_overdue(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() >= LIMIT)
}

/// Postponed syscalls, and since when each of them waits.
pub(super) struct PostponedQueue<T> {
    waiting: VecDeque<(T, Instant)>,
    /// When they were last decided.
    decided: Instant,
}

impl<T> PostponedQueue<T> {
    pub fn new() -> PostponedQueue<T> {
        PostponedQueue { waiting: VecDeque::new(), decided: Instant::now() }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a syscall, which was first postponed at `since`, or just now.
    pub fn push(&mut self, syscall: T, since: Option<Instant>) {
        let now = Instant::now();
        if self.waiting.is_empty() {
            self.decided = now;
        }
        self.waiting.push_back((syscall, since.unwrap_or(now)));
    }

    /// When they are to be decided again, if there are any.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.decided + INTERVAL)
    }

    /// Takes them all if they are due: because another syscall has ended, or by the time.
    pub fn take_due(&mut self, call_ended: bool) -> VecDeque<(T, Instant)> {
        if self.waiting.is_empty() || !call_ended && self.decided.elapsed() < INTERVAL {
            return VecDeque::new();
        }
        self.decided = Instant::now();
        std::mem::take(&mut self.waiting)
    }

    /// Forgets those that do not satisfy `keep`.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.waiting.retain(|(syscall, _)| keep(syscall));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postponed_syscalls_are_due_in_order_when_another_has_ended_or_after_the_interval() {
        let mut queue = PostponedQueue::new();
        assert!(queue.deadline().is_none() && queue.take_due(true).is_empty());
        let long_ago = Instant::now().checked_sub(LIMIT).unwrap();
        queue.push("first", Some(long_ago));
        queue.push("second", None);
        queue.push("third", None);
        queue.retain(|syscall| *syscall != "second");
        let due = queue.take_due(true);
        assert_eq!(due.iter().map(|(syscall, _)| *syscall).collect::<Vec<_>>(), ["first", "third"]);
        assert_eq!(due.iter().map(|(_, since)| is_overdue(Some(*since))).collect::<Vec<_>>(), [true, false]);
        queue.push("third", None);
        let deadline = queue.deadline().unwrap();
        while Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(queue.take_due(false).len(), 1);
    }
}
