//! State that the tracing thread and the notification thread share.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::observer::Caller;
use super::sys::{self, Register, Tid};
use super::syscalls::{self, Args, Sysno};

/// The kernel's internal results of a call that a signal interrupted (linux/errno.h): it is made again
/// unless a handler without SA_RESTART runs, or in any case.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: u64 = (-513_i64).cast_unsigned();

/// What the two lanes tell each other of threads.
#[derive(Debug)]
pub struct Shared<P> {
    known: Mutex<Known<P>>,
    /// Whether postponed calls wait here for another to be over.
    pub(super) postponed: AtomicBool,
    /// Readable once one is over.
    pub(super) settled: EventFd,
}

#[derive(Debug)]
pub(super) struct Known<P> {
    /// The process of each thread that is not its leader.
    process: HashMap<Tid, Tid, foldhash::fast::RandomState>,
    /// Shared whose last call is a look that may wait for something outside, and may be interrupted in
    /// it: its number and arguments.
    waits: HashMap<Tid, (u64, Args), foldhash::fast::RandomState>,
    /// What is kept of looks whose result is wanted, until their thread stops behind them.
    pub(super) awaited: HashMap<Tid, P, foldhash::fast::RandomState>,
}

impl<P> Shared<P> {
    /// Nothing is known yet.
    pub fn new() -> io::Result<Self> {
        let known =
            Known { process: HashMap::default(), waits: HashMap::default(), awaited: HashMap::default() };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let settled = EventFd::from_flags(flags)?;
        Ok(Shared { known: Mutex::new(known), postponed: AtomicBool::new(false), settled })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Known<P>> {
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

    pub(super) fn caller(&self, tid: Tid) -> Caller {
        Caller { tid, tgid: self.lock().process.get(&tid).copied().unwrap_or(tid) }
    }

    /// Notes that `tid` makes a call that is no look: whatever it may have waited in is over.
    pub fn calls(&self, tid: Tid) {
        self.waits(tid, None);
    }

    pub(super) fn waits(&self, tid: Tid, call: Option<(u64, Args)>) {
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
        let looks = row.is_some_and(|row| row.is_read_only(&arguments));
        // One that had begun, and waits for the other end of a FIFO, is interrupted as it is alone.
        if looks && self.lock().waits.get(&tid) != Some(&(number, arguments)) {
            let _ = sys::set_register(tid, Register::Result, ERESTARTNOINTR);
        }
    }
}
