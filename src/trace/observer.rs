//! The [`Observer`]: it decides what becomes of a syscall at its entry, and is told what happens to the tree.
//!
//! Neighbours: `tracer.rs` and `notifications.rs` call it, each from its own thread.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::asks::Ask;
use super::sys::{Tid, TraceeMemory};
use super::syscalls::DecodedSyscall;
use super::wait_status::End;

/// The thread that makes a syscall, and its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The thread.
    pub tid: Tid,
    /// Its process.
    pub tgid: Tid,
}

/// A syscall that is stopped or blocked at its entry: nothing of it has happened.
#[derive(Debug)]
pub struct SyscallEntry<'a> {
    /// What it names and does.
    pub decoded: &'a DecodedSyscall,
    /// Its name, for messages.
    pub name: &'static str,
    /// The caller's memory.
    pub memory: TraceeMemory,
    /// Whether it has been postponed for so long that it must not be postponed again.
    pub overdue: bool,
    /// How it waits for the decision.
    pub waiting: Waiting,
}

/// How a syscall waits for the decision about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// In a ptrace-stop. What its arguments point to stays as it is, if rules may refuse it.
    Stopped,
    /// For the answer to a notification.
    Notified {
        /// Whether nobody can change what its arguments point to, which is asked only if rules may refuse it.
        steady: bool,
        /// Whether it is an open for reading that may be answered with [`Decision::Opened`].
        openable: bool,
    },
}

impl Waiting {
    /// Whether it waits for the answer to a notification.
    pub fn is_notified(self) -> bool {
        matches!(self, Waiting::Notified { .. })
    }
}

/// The number of an error (errno(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What becomes of a syscall at its entry.
#[derive(Debug)]
pub enum Decision<P> {
    /// It continues, and its result does not matter.
    Continue,
    /// The same, but how often such a call is made matters.
    Counted,
    /// The same, but it may block on something outside the tree, such as the other end of a FIFO, so that a
    /// signal may interrupt it.
    MayWait,
    /// It continues, and [`Observer::on_result`] is told its result together with this.
    AwaitResult(P),
    /// It is skipped and fails with this error.
    Refuse(Errno),
    /// It is not made, and returns a descriptor of this file, which was opened as it asks for.
    Opened(OwnedFd),
    /// One that waits for the answer to a notification is made to stop, and decided there.
    Stop,
    /// It stays at its entry until another one has ended, and is then decoded and decided again from the
    /// start. For one that is overdue this means [`Decision::Continue`].
    Postpone,
    /// The same, until the read-only call of this thread is over. The thread runs, and nobody knows whether still in that
    /// call: it is made to stop once, and then [`Observer::read_only_call_is_over`] is told.
    PostponeBehind(Tid),
}

/// Read-only calls about which nobody has to decide before they are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateCalls {
    /// There are none.
    None,
    /// Those that open nothing.
    Queries,
    /// All.
    All,
}

/// Decides about the syscalls of a tree of threads, and is told what happens to it.
///
/// Every method takes `&self`: the tracing thread and the notification threads call them.
pub trait Observer {
    /// What is kept from a syscall's entry to its result.
    type Pending;

    /// Decides about a syscall at its entry.
    fn on_entry(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Self::Pending>;
    /// A syscall whose result was awaited has ended: its result, -errno if it failed, none if its thread died
    /// in it.
    fn on_result(&self, caller: Caller, pending: Self::Pending, result: Option<i64>);
    /// Of which read-only calls of a process [`Observer::on_entry`] may be told only after they were made.
    fn late_calls(&self, process: Tid) -> LateCalls {
        let _ = process;
        LateCalls::None
    }
    /// The last read-only syscall of a thread is over: told of those that others are postponed behind.
    fn read_only_call_is_over(&self, caller: Caller) {
        let _ = caller;
    }
    /// The arguments of a syscall can't be read, though the kernel may read them.
    fn unreadable(&self, caller: Caller, name: &'static str);
    /// A syscall is about to use a descriptor of which every use matters.
    fn descriptor_used(&self, caller: Caller, descriptor: u32) {
        let _ = (caller, descriptor);
    }
    /// A syscall is about to ask for what no path tells.
    fn asked(&self, caller: Caller, ask: Ask) {
        let _ = (caller, ask);
    }
    /// A signal is about to be delivered that ends the process, with a core dump if those are enabled.
    fn signal(&self, caller: Caller, signal: i32);
    /// A process executed a program; `pending` is what was kept of its execve.
    fn executed(&self, caller: Caller, pending: Option<Self::Pending>);
    /// A process has started; told again if its parent turns out to be another.
    fn started(&self, process: Tid, parent: Tid);
    /// Whether another thread can write the memory of a process while its syscall is at its entry: because it
    /// has several threads, or shares its memory with another process.
    fn shares_memory(&self, process: Tid, shares: bool);
    /// Two processes have one working directory from now on (CLONE_FS).
    fn share_working_directory(&self, process: Tid, other: Tid);
    /// A process has ended.
    fn ended(&self, process: Tid, end: End);
    /// A process is ended that has outlived the command and its parent, which could not trace it.
    fn abandoned(&self, process: Tid) {
        let _ = process;
    }
    /// A process was stopped by a signal, with all its threads.
    fn stopped(&self, process: Tid, signal: i32);
    /// A stopped process continues.
    fn continued(&self, process: Tid);
    /// The kernel answered unexpectedly, so something may be missed. The tree runs on.
    fn gap(&self, what: &str);
    /// A bug of ours showed (a panic), here or in the observer. The tree runs on.
    fn failed(&self, bug: &str);
}

/// Tells the observer of a panic, which may have come from it.
pub(super) fn failed(observer: &impl Observer, panic: &(dyn Any + Send)) {
    let bug = panic_text(panic);
    let _ = catch_unwind(AssertUnwindSafe(|| observer.failed(bug)));
}

/// Tells the observer of something unexpected.
pub(super) fn gap(observer: &impl Observer, what: &str) {
    let _ = catch_unwind(AssertUnwindSafe(|| observer.gap(what)));
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}
