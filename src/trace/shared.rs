//! What the tracing thread and the notification threads share.
//!
//! Its lock is held for single operations on the tables, and never while anything else is called.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use super::inside::Inside;
use super::observer::Caller;
use super::sys::{AddressSpace, Tid};
use super::syscalls::Args;
use crate::sync::lock;

/// What the tracing thread and the notification threads share; `P` is what the observer keeps of a syscall.
#[derive(Debug)]
pub struct Shared<P> {
    tables: Mutex<Tables<P>>,
    /// How many notification threads have postponed syscalls.
    postponing: AtomicU32,
    /// An eventfd, a semaphore: once an awaited syscall has ended, each thread that has postponed some can read it
    /// once.
    call_ended: OwnedFd,
    /// Held by the notification thread that receives: what it has seen to be there, no other takes.
    receiving: Mutex<()>,
    /// The processes that note their own calls, if any may.
    inside: Option<Inside>,
}

#[derive(Debug)]
struct Tables<P> {
    /// The process of each thread that is not its leader.
    process: HashMap<Tid, Tid, foldhash::fast::RandomState>,
    /// Number and arguments of the last syscall of each thread, if that is read-only and may block on
    /// something outside the tree, so that a signal may interrupt it.
    interruptible: HashMap<Tid, (u64, Args), foldhash::fast::RandomState>,
    /// What the observer keeps of read-only syscalls whose result it awaits, until their thread stops after
    /// them.
    awaited: HashMap<Tid, P, foldhash::fast::RandomState>,
    /// Threads that have been interrupted to repeat their read-only syscall so that it stops.
    to_repeat: HashSet<Tid, foldhash::fast::RandomState>,
    /// The processes whose memory several threads can write.
    with_several_writers: HashSet<Tid, foldhash::fast::RandomState>,
    /// The memory of processes, as far as that was asked for.
    address_spaces: HashMap<Tid, Arc<AddressSpace>, foldhash::fast::RandomState>,
}

impl<P> Shared<P> {
    /// Nothing is known yet. With `inside`, processes may note their own calls.
    pub fn new(inside: Option<Inside>) -> io::Result<Self> {
        let tables = Tables {
            process: HashMap::default(),
            interruptible: HashMap::default(),
            awaited: HashMap::default(),
            to_repeat: HashSet::default(),
            with_several_writers: HashSet::default(),
            address_spaces: HashMap::default(),
        };
        let call_ended =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)?;
        Ok(Shared {
            tables: Mutex::new(tables),
            postponing: AtomicU32::new(0),
            call_ended,
            receiving: Mutex::default(),
            inside,
        })
    }

    /// Notes that `tid` is a thread of `process`.
    pub(super) fn add(&self, tid: Tid, process: Tid) {
        if tid != process {
            lock(&self.tables).process.insert(tid, process);
        }
    }

    /// Notes that `tid` is gone, or is the leader of its process now; returns what was kept of its awaited
    /// syscall.
    pub(super) fn remove(&self, tid: Tid) -> Option<P> {
        let mut tables = lock(&self.tables);
        tables.process.remove(&tid);
        tables.interruptible.remove(&tid);
        tables.to_repeat.remove(&tid);
        tables.awaited.remove(&tid)
    }

    /// The thread and its process.
    pub(super) fn caller(&self, tid: Tid) -> Caller {
        Caller { tid, tgid: lock(&self.tables).process.get(&tid).copied().unwrap_or(tid) }
    }

    /// Notes that the result of the current read-only syscall of `tid` is awaited; returns what was kept of a
    /// former one whose end was not seen.
    pub(super) fn await_result(&self, tid: Tid, pending: P) -> Option<P> {
        lock(&self.tables).awaited.insert(tid, pending)
    }

    /// What was kept of the last read-only syscall of `tid`, if its result is awaited.
    pub(super) fn take_awaited(&self, tid: Tid) -> Option<P> {
        lock(&self.tables).awaited.remove(&tid)
    }

    /// Notes that `tid` is to repeat its current read-only syscall.
    pub(super) fn repeat(&self, tid: Tid) {
        lock(&self.tables).to_repeat.insert(tid);
    }

    /// Whether `tid` is to repeat its read-only syscall; true once.
    pub(super) fn take_repeat(&self, tid: Tid) -> bool {
        lock(&self.tables).to_repeat.remove(&tid)
    }

    /// Notes what syscall of `tid` a signal may interrupt; none ends that.
    pub(super) fn set_interruptible(&self, tid: Tid, syscall: Option<(u64, Args)>) {
        let mut tables = lock(&self.tables);
        match syscall {
            Some(syscall) => drop(tables.interruptible.insert(tid, syscall)),
            None if tables.interruptible.is_empty() => {}
            None => drop(tables.interruptible.remove(&tid)),
        }
    }

    /// Whether a signal may interrupt this syscall of `tid`.
    pub(super) fn is_interruptible(&self, tid: Tid, syscall: &(u64, Args)) -> bool {
        lock(&self.tables).interruptible.get(&tid) == Some(syscall)
    }

    /// Notes whether several threads can write the memory of a process.
    pub(super) fn set_several_writers(&self, process: Tid, are_several: bool) {
        let mut tables = lock(&self.tables);
        if are_several {
            tables.with_several_writers.insert(process);
        } else {
            tables.with_several_writers.remove(&process);
        }
    }

    /// Notes that a process has the memory of its creator, which waits until it executes or ends.
    pub(super) fn lend_memory(&self, creator: Tid, process: Tid) {
        let mut tables = lock(&self.tables);
        if let Some(space) = tables.address_spaces.get(&creator).cloned() {
            tables.address_spaces.insert(process, space);
        }
    }

    /// The memory of a process, if only one thread can write it. `is_alive` says whether the process has lived until now: what
    /// is opened after its end may be of another one with its number.
    pub(super) fn memory_of_one_writer(
        &self,
        process: Tid,
        is_alive: impl FnOnce() -> bool,
    ) -> Option<Arc<AddressSpace>> {
        /// Each has two descriptors.
        const MOST: usize = 128;
        let tables = lock(&self.tables);
        if tables.with_several_writers.contains(&process) {
            return None;
        }
        if let Some(known) = tables.address_spaces.get(&process) {
            return Some(Arc::clone(known));
        }
        drop(tables);
        let space = Arc::new(AddressSpace::of(process).ok()?);
        let mut tables = lock(&self.tables);
        if tables.address_spaces.len() >= MOST {
            tables.address_spaces.clear();
        }
        tables.address_spaces.insert(process, Arc::clone(&space));
        drop(tables);
        // From now on, its end is noted after this.
        if is_alive() {
            return Some(space);
        }
        lock(&self.tables).address_spaces.remove(&process);
        None
    }

    /// Notes that a process has ended, or has executed a program, and has memory of its own.
    pub(super) fn forget_memory(&self, process: Tid) {
        let mut tables = lock(&self.tables);
        tables.with_several_writers.remove(&process);
        tables.address_spaces.remove(&process);
    }

    /// Has the notification threads decide again about what they have postponed: an awaited syscall has ended.
    pub(super) fn wake_postponed(&self) {
        let postponing = self.postponing.load(Ordering::SeqCst);
        if postponing > 0 {
            // It fails only where the eventfd is readable already.
            let _ = rustix::io::write(&self.call_ended, &u64::from(postponing).to_ne_bytes());
        }
    }

    /// Notes that a notification thread has postponed syscalls, or has none any more.
    pub(super) fn note_postponing(&self, has: bool) {
        if has {
            self.postponing.fetch_add(1, Ordering::SeqCst);
        } else {
            self.postponing.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// What becomes readable when an awaited syscall has ended.
    pub(super) fn call_ended(&self) -> BorrowedFd<'_> {
        self.call_ended.as_fd()
    }

    /// The processes that note their own calls, if any may.
    pub fn inside(&self) -> Option<&Inside> {
        self.inside.as_ref()
    }

    /// Whose turn it is to receive a notification.
    pub(super) fn receiving(&self) -> &Mutex<()> {
        &self.receiving
    }

    /// Reads it once, on behalf of this thread.
    pub(super) fn take_call_ended(&self) {
        let _ = rustix::io::read(&self.call_ended, &mut [0; 8]);
    }
}
