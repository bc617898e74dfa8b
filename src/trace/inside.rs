//! Processes that note their own read-only calls: code in the process writes them to a ring buffer that it shares with us, and
//! makes them without waiting for anybody (`--mechanism inside`).
//!
//! When a process has made enough of them, the tracer patches the call sites, which have to be
//! `mov $number, %eax; syscall`: each then jumps to code of ours in the same process ([`code`]), which notes
//! path, start directory and flags, and makes the call with a mark that the filter lets pass. Before the tracer decides about
//! a call that may change something, it reads all rings ([`Inside::read_all`]), so that each note is judged before anything
//! that could change what it saw.
//!
//! What it must never do: decide anything. A process can write what it likes to its ring, and make calls with the mark: what a
//! ring says is a claim, and only about read-only calls. So nothing that is changed, refused or recalled rests on it.
//!
//! Only processes with memory of their own note calls. Where one has several threads, they note only calls that open nothing, one
//! thread at a time. When in doubt, the code makes a call as if it were not there, and the call is judged as any other: when the
//! ring is full, or closed ([`Notebook::close`]), or if it is not known where the path starts. Neighbours: `notifications.rs`
//! counts the calls and learns the start directories, `tracer.rs` patches and closes.

pub mod layout;
mod notebook;
mod notes;
mod sites;

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use foldhash::fast::RandomState;
use notebook::Notebook;
use rustix::fs::readlink;
use sites::{CallSite, KnownSites, Mappings};

use super::observer::{Caller, LateCalls, Observer, gap};
use super::sys::arch::{Registers, inside as code};
use super::sys::{Stopped, Tid};
use super::syscalls::{Access, DecodedSyscall, Effect, Special};
use crate::sync::lock;

/// A process is patched when it has made so many calls: stopping it and mapping the memory takes as long as some twenty
/// notifications.
pub const CALLS_BEFORE_PATCH: u32 = 30;

/// The same, if it was worth it in an earlier process of the same program.
const CALLS_IF_WORTH: u32 = 10;

/// It was worth it for a process that has then made so many calls that did not wait.
const WORTH: u64 = 60;

/// For a program whose processes make few calls, the number of calls doubles each time, up to this.
const MOST_CALLS_BEFORE_PATCH: u32 = 1000;

/// Notes are read after so long at the latest, if no call makes us read them: the first after a pause, and others. Until
/// then, somebody outside of the tree may change what they saw.
const INTERVALS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(2)];

/// How often the notes thread yields to calls that are being judged, before it goes on all the same.
const YIELDS: u32 = 2_000;

/// Of so many call sites it is known whether they are patched; the block has room for a part of them.
const MOST_SITES: usize = 256;

/// Each notebook needs a mapping.
const MOST_NOTEBOOKS: usize = 256;

/// Whether calls of this name can be noted.
pub fn is_noted(name: &str) -> bool {
    code::calls().any(|noted| noted == name)
}

/// What the two loops know of processes that note calls.
#[derive(Debug)]
pub struct Inside {
    mark: u64,
    /// A process is patched after so many calls, unless more is known of its program.
    calls_before_patch: u32,
    processes: Mutex<HashMap<Tid, Process, RandomState>>,
    /// How many of them have a notebook.
    notebooks: AtomicUsize,
    /// Whether notes are to be read at once.
    is_to_read: Mutex<bool>,
    /// Told when they are, and when there is a first notebook.
    told: Condvar,
    /// How many calls are being judged for which their threads wait.
    judging: AtomicUsize,
    /// Threads that have been interrupted, with the return address of their last call, so that their process is patched.
    wanted: Mutex<HashMap<Tid, u64, RandomState>>,
    /// After how many calls processes of a program are patched, by its path.
    programs: Mutex<HashMap<CString, u32, RandomState>>,
    known_sites: Mutex<KnownSites>,
}

#[derive(Debug)]
struct Process {
    /// How many calls were judged that it made at call sites that may be patched, since it was patched last.
    calls: u32,
    /// After how many of them it is patched.
    calls_before_patch: u32,
    /// The number of the call that it made at each call site, by the return address; none where that is patched, or can't be.
    sites: HashMap<u64, Option<u32>, RandomState>,
    program: Option<CString>,
    notebook: Option<Arc<Notebook>>,
    /// Whether it notes nothing any more.
    is_ended: bool,
}

impl Process {
    fn new(calls_before_patch: u32) -> Process {
        let sites = HashMap::default();
        Process { calls: 0, calls_before_patch, sites, program: None, notebook: None, is_ended: false }
    }
}

impl Inside {
    /// Nothing is patched yet; the filter lets calls pass that have `mark`. A process is patched when it has made so many
    /// calls.
    pub fn new(mark: u64, calls_before_patch: u32) -> Inside {
        Inside {
            mark,
            calls_before_patch,
            processes: Mutex::default(),
            notebooks: AtomicUsize::new(0),
            is_to_read: Mutex::default(),
            told: Condvar::new(),
            judging: AtomicUsize::new(0),
            wanted: Mutex::default(),
            programs: Mutex::default(),
            known_sites: Mutex::default(),
        }
    }

    /// Reads notes that nothing else makes us read, as long as this process runs.
    pub fn keep_reading(&self, observer: &impl Observer) -> ! {
        let [long, short] = INTERVALS;
        let mut interval = long;
        loop {
            let mut is_to_read = lock(&self.is_to_read);
            while !*is_to_read {
                if self.notebooks.load(Ordering::Acquire) == 0 {
                    is_to_read = self.told.wait(is_to_read).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                let waited = self.told.wait_timeout(is_to_read, interval);
                let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                is_to_read = woken;
                if waited.timed_out() {
                    break;
                }
            }
            *is_to_read = false;
            drop(is_to_read);
            interval = long;
            let yields = Cell::new(YIELDS);
            for (process, notebook) in self.all() {
                if notebook.try_read(process, observer, || self.yield_to_judging(&yields)) {
                    interval = short;
                }
            }
        }
    }

    /// Yields while calls are being judged for which their threads wait, up to `yields` times: nobody waits for the notes, but
    /// the older they are, the less they tell.
    fn yield_to_judging(&self, yields: &Cell<u32>) {
        while yields.get() > 0 && self.judging.load(Ordering::Relaxed) > 0 {
            yields.set(yields.get() - 1);
            // Whoever judges it may need this processor.
            std::thread::yield_now();
        }
    }

    /// A call is being judged, until this is dropped, for which its thread waits.
    pub fn judging(&self) -> impl Drop {
        self.judging.fetch_add(1, Ordering::Relaxed);
        Judging(&self.judging)
    }

    /// Has notes of a process be read if there are many.
    pub fn read_soon(&self, process: Tid) {
        if self.notebook(process).is_some_and(|notebook| notebook.is_filling()) {
            *lock(&self.is_to_read) = true;
            self.told.notify_one();
        }
    }

    fn notebook(&self, process: Tid) -> Option<Arc<Notebook>> {
        if self.notebooks.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.processes).get(&process)?.notebook.clone()
    }

    fn all(&self) -> Vec<(Tid, Arc<Notebook>)> {
        if self.notebooks.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let processes = lock(&self.processes);
        let notebook = |(tgid, process): (&Tid, &Process)| Some((*tgid, process.notebook.clone()?));
        processes.iter().filter_map(notebook).collect()
    }

    /// A call that can be noted was judged, and waits to be made; it need not have named anything. Opens the notebook of its
    /// process, if that has one and `late_calls` permits it, and learns where its path starts; returns whether the thread is to be
    /// interrupted, so that the process is patched.
    pub fn judged(
        &self,
        caller: Caller,
        (return_address, number): CallSite,
        decoded: Option<&DecodedSyscall>,
        observer: &impl Observer,
        late_calls: impl FnOnce() -> LateCalls,
    ) -> bool {
        let mut processes = lock(&self.processes);
        let process = self.process(&mut processes, caller.tgid);
        if process.is_ended {
            return false;
        }
        let is_full = process.sites.len() >= MOST_SITES;
        let is_patchable = match process.sites.entry(return_address) {
            Entry::Occupied(site) => site.get().is_some(),
            Entry::Vacant(_) if is_full => false,
            Entry::Vacant(site) => site.insert(Some(number)).is_some(),
        };
        let is_due = is_patchable && self.is_due(caller.tgid, process);
        let notebook = process.notebook.clone();
        drop(processes);
        if notebook.is_none() && !is_due {
            return false;
        }
        // If it is closed after this, it stays closed.
        let notebook = notebook.map(|notebook| (notebook.times_closed(), notebook));
        let late_calls = late_calls();
        if let Some((times_closed, notebook)) = notebook {
            notebook.learn(caller, decoded, observer, late_calls, times_closed);
        }
        let is_due = is_due && late_calls == LateCalls::All;
        if is_due {
            lock(&self.wanted).insert(caller.tid, return_address);
        }
        is_due
    }

    /// Counts a call, and says whether the process is to be patched now.
    fn is_due(&self, tgid: Tid, process: &mut Process) -> bool {
        process.calls += 1;
        if process.program.is_none() && process.calls == CALLS_IF_WORTH {
            // Its path alone: for more, the kernel may have to ask a filesystem that the tree serves.
            process.program = readlink(format!("/proc/{tgid}/exe"), Vec::new()).ok();
            let known =
                process.program.as_ref().and_then(|program| lock(&self.programs).get(program).copied());
            process.calls_before_patch = known.unwrap_or(process.calls_before_patch);
        }
        let is_due = process.calls >= process.calls_before_patch;
        if is_due {
            // In case that it can't be done now.
            process.calls_before_patch = process.calls_before_patch.saturating_mul(2);
        }
        is_due
    }

    /// Reads all notes: a call is about to be decided about that may change something.
    pub fn read_all(&self, observer: &impl Observer) {
        for (process, notebook) in self.all() {
            notebook.read(process, observer);
            notebook.begin_generation();
        }
    }

    /// Closes the notebooks of those whose paths may start elsewhere after a call, or at a directory of another name; whether
    /// these are all. If the process `has_threads`, the call may change that of one thread alone: it notes nothing any more.
    pub fn close_for(&self, caller: Caller, decoded: &DecodedSyscall, has_threads: bool) -> bool {
        let moves = |access: &Access| matches!(access.effect, Effect::ChangeDirectory | Effect::ChangeRoot);
        let moves_others = |access: &Access| {
            matches!(
                access.effect,
                Effect::RenameFrom { .. } | Effect::RenameTo { .. } | Effect::RemoveDirectory
            )
        };
        let is_namespace = decoded.special == Some(Special::Namespace);
        let closes_all = is_namespace || decoded.accesses.iter().any(moves_others);
        if closes_all {
            self.close_all();
        }
        let moves = decoded.accesses.iter().any(moves);
        let ends = match decoded.special {
            // A filter may object to the mark, or the kernel to where the code is.
            Some(Special::Filter { .. } | Special::Dispatch) => true,
            Some(Special::Credentials | Special::Landlock) => has_threads,
            _ => has_threads && (moves || is_namespace),
        };
        if ends {
            self.end(caller.tgid);
        } else if decoded.special.is_some() || moves {
            self.close(caller.tgid);
        }
        closes_all
    }

    /// Closes all notebooks.
    pub fn close_all(&self) {
        self.all().iter().for_each(|(_, notebook)| notebook.close());
    }

    /// Whether a thread of a process is in the code.
    pub fn is_busy(&self, process: Tid) -> bool {
        self.notebook(process).is_some_and(|notebook| notebook.is_busy())
    }

    /// Has a process note nothing until one of its calls has been judged.
    pub fn close(&self, process: Tid) {
        if let Some(notebook) = self.notebook(process) {
            notebook.close();
        }
    }

    /// Has a process note nothing that opens anything.
    pub fn allow_queries(&self, process: Tid) {
        if let Some(notebook) = self.notebook(process) {
            notebook.allow_queries();
        }
    }

    /// Has a process note nothing any more until it executes a program.
    pub fn end(&self, process: Tid) {
        lock(&self.wanted).remove(&process);
        let mut processes = lock(&self.processes);
        let process = self.process(&mut processes, process);
        process.is_ended = true;
        let notebook = process.notebook.clone();
        drop(processes);
        if let Some(notebook) = notebook {
            notebook.close_for_good();
        }
    }

    /// A process has ended, or has executed a program: reads its last notes.
    pub fn forget(&self, process: Tid, observer: &impl Observer) {
        lock(&self.wanted).remove(&process);
        let Some(Process { notebook, program, .. }) = lock(&self.processes).remove(&process) else { return };
        let Some(notebook) = notebook else { return };
        self.notebooks.fetch_sub(1, Ordering::Release);
        notebook.read(process, observer);
        if let Some(program) = program {
            let mut programs = lock(&self.programs);
            let calls = programs.entry(program).or_insert(self.calls_before_patch);
            *calls = match notebook.calls() >= WORTH {
                true => CALLS_IF_WORTH.min(self.calls_before_patch),
                false => calls.saturating_mul(2).min(MOST_CALLS_BEFORE_PATCH),
            };
        }
    }

    /// The return address of the last call of a thread that was interrupted so that its process is patched; once.
    pub fn take_wanted(&self, thread: Tid) -> Option<u64> {
        lock(&self.wanted).remove(&thread)
    }

    /// Patches the call sites of a process with one thread, which has made its last call at one of them, as far as they can be,
    /// and gives it a notebook if it has none.
    pub fn patch(&self, tracee: &Stopped, process: Tid, return_address: u64, observer: &impl Observer) {
        match self.try_patch(tracee, process, return_address) {
            Ok(()) => {}
            // It was killed.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // Then its calls are judged one by one.
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {}
            Err(error) => gap(observer, &format!("patch process {process}: {error}")),
        }
    }

    fn try_patch(&self, tracee: &Stopped, process: Tid, last: u64) -> io::Result<()> {
        let unfit = || io::Error::from(io::ErrorKind::Unsupported);
        let mappings = Mappings::of(process)?;
        let mut known_sites = lock(&self.known_sites);
        let mut sites = self.take_sites(process, known_sites.in_process(&mappings));
        sites.retain(|site| mappings.has_call_at(tracee.tid(), *site));
        // The block is near this one.
        sites.sort_by_key(|(return_address, _)| *return_address != last);
        let &(first, _) = sites.first().ok_or_else(unfit)?;
        let notebook = match self.notebook(process) {
            Some(notebook) => notebook,
            None if self.notebooks.load(Ordering::Acquire) >= MOST_NOTEBOOKS => return Err(unfit()),
            None => {
                let notebook = Arc::new(Notebook::map_in(tracee, &mappings, first, self.mark)?);
                let mut processes = lock(&self.processes);
                self.process(&mut processes, process).notebook = Some(Arc::clone(&notebook));
                self.notebooks.fetch_add(1, Ordering::Release);
                drop(processes);
                let is_to_read = lock(&self.is_to_read);
                self.told.notify_one();
                drop(is_to_read);
                notebook
            }
        };
        for site in sites {
            match notebook.patch(tracee, site) {
                Ok(()) => known_sites.add(&mappings, site),
                // It is too far away, or there is no room.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The call sites at which a process has made calls, and then those of others that it does not have yet; each once. It
    /// counts its calls from the beginning.
    fn take_sites(&self, process: Tid, others: impl Iterator<Item = CallSite>) -> Vec<CallSite> {
        let mut processes = lock(&self.processes);
        let process = self.process(&mut processes, process);
        let mut sites: Vec<CallSite> =
            process.sites.iter().filter_map(|(at, number)| Some((*at, (*number)?))).collect();
        sites.extend(others.filter(|(at, _)| !process.sites.contains_key(at)));
        process.sites.extend(sites.iter().map(|(at, _)| (*at, None)));
        (process.calls, process.calls_before_patch) = (0, self.calls_before_patch);
        sites
    }

    /// What is known of a process.
    fn process<'p>(
        &self,
        processes: &'p mut HashMap<Tid, Process, RandomState>,
        process: Tid,
    ) -> &'p mut Process {
        processes.entry(process).or_insert_with(|| Process::new(self.calls_before_patch))
    }

    /// Has a thread leave the code for the call site from which it came, since a signal is about to be delivered; whether it
    /// was there, and `signal` is of its own making: it could not read the path.
    pub fn leave(&self, tracee: &Stopped, process: Tid, signal: i32) -> Leaving {
        let Some(notebook) = self.notebook(process) else { return Leaving::WasElsewhere };
        if notebook.leave(tracee).is_none() {
            return Leaving::WasElsewhere;
        }
        let faults =
            matches!(signal, libc::SIGSEGV | libc::SIGBUS) && tracee.signal_code().is_ok_and(|code| code > 0);
        if faults { Leaving::Faulted } else { Leaving::Left }
    }

    /// Puts back what was at the call sites of a process that has ended noting, and in whose code nobody is.
    pub fn restore(&self, tracee: &Stopped, process: Tid) {
        if let Some(notebook) = self.notebook(process) {
            notebook.restore(tracee);
        }
    }
}

struct Judging<'a>(&'a AtomicUsize);

impl Drop for Judging<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that leaves the code.
pub struct Left {
    /// Its registers: it is about to make its call at the call site, or behind it.
    pub registers: Registers,
    /// Whether it had the block.
    pub had_block: bool,
}

/// What a signal has to do with the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The thread was elsewhere.
    WasElsewhere,
    /// It has left the code.
    Left,
    /// The same, and the code has caused the signal.
    Faulted,
}

fn try_lock<T>(of: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match of.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_ends_before_the_thunks() {
        assert!(code::code().len() as u64 <= layout::THUNKS);
    }
}
