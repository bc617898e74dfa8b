//! What the tracer asks and tells of a tree of threads: the [`Observer`] decides what becomes of a syscall.
//!
//! Neighbours: `tracer.rs` and `notifications.rs` call it, each from its own thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::sys::{Tid, TraceeMemory};
use super::syscalls::DecodedSyscall;
use super::wait_status::End;

/// The thread that makes a call, and its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The thread.
    pub tid: Tid,
    /// Its process.
    pub tgid: Tid,
}

/// A call that is held at its entry: nothing of it has happened.
#[derive(Debug)]
pub struct SyscallEntry<'a> {
    /// What its row and its arguments mean.
    pub decoded: &'a DecodedSyscall,
    /// The call's name, for messages.
    pub name: &'static str,
    /// The caller's memory.
    pub memory: TraceeMemory,
    /// Whether the call has been postponed for so long that it may not be postponed again.
    pub overdue: bool,
}

/// What becomes of a held call.
#[derive(Debug)]
pub enum Decision<P> {
    /// It goes on, and its result does not matter.
    Continue,
    /// The same, of a look that may wait for something outside, such as the other end of a FIFO, so that
    /// a signal may interrupt it.
    MayWait,
    /// It goes on, and its result is wanted, together with this.
    AwaitResult(P),
    /// It is not made; the program gets ENOSYS.
    Refuse,
    /// It stays at its entry until another call is over, and is then decoded and judged again from the
    /// start. Of a call that is overdue this means [`Decision::Continue`].
    Postpone,
}

/// What is told of a tree of threads, and asked about its calls.
///
/// Every method takes `&self`: two lanes may call.
pub trait Observer {
    /// What is kept from a call's entry to its result.
    type Pending;

    /// A call is held at its entry. One that only looks is never refused.
    fn before(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Self::Pending>;
    /// A call that was awaited has its result: -errno where it failed, none where its thread died in it.
    fn after(&self, caller: Caller, pending: Self::Pending, result: Option<i64>);
    /// A call's arguments can't be read, though the kernel may read them.
    fn unreadable(&self, caller: Caller, name: &'static str);
    /// A signal is about to be delivered to a thread that ends its process with a core dump, where it may
    /// have one.
    fn signal(&self, caller: Caller, signal: i32);
    /// A process executed a program; `pending` is what its execve left.
    fn executed(&self, caller: Caller, pending: Option<Self::Pending>);
    /// A process has started; told again when its parent turns out to be another.
    fn started(&self, process: Tid, parent: Tid);
    /// A process has more than one thread now, or its memory is another process's too; or it has one thread
    /// alone again. Another thread can write its memory while a call is held.
    fn shares_memory(&self, process: Tid, shares: bool);
    /// Two processes have one working directory from now on (CLONE_FS).
    fn share_working_directory(&self, process: Tid, other: Tid);
    /// A process has ended.
    fn ended(&self, process: Tid, end: End);
    /// A process was stopped by a signal, with all its threads.
    fn stopped(&self, process: Tid, signal: i32);
    /// A stopped process goes on.
    fn continued(&self, process: Tid);
    /// Something was lost sight of: the kernel answered as it should not. The tree runs on.
    fn gap(&self, what: &str);
    /// A bug of ours has shown (a panic), here or in the observer. The tree runs on.
    fn failed(&self, bug: &str);
}

/// Tells the observer of a panic, which may be its own doing.
pub(super) fn failed(observer: &impl Observer, panic: &(dyn Any + Send)) {
    let bug = panic_text(panic);
    let _ = catch_unwind(AssertUnwindSafe(|| observer.failed(bug)));
}

/// Tells the observer of something unexpected.
pub(super) fn gap(observer: &impl Observer, what: &str) {
    let _ = catch_unwind(AssertUnwindSafe(|| observer.gap(what)));
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}
