//! Processes that note their own read-only calls: code in the process writes them to a ring buffer that it shares with us, and
//! makes them without waiting for anybody (`--mechanism inside`).
//!
//! When a process has made the same call often enough from one call site, the tracer patches that, which has to be
//! `mov $number, %eax; syscall`: it then jumps to code of ours in the same process ([`code`]), which notes
//! path, start directory and flags, and makes the call with a mark that the filter lets pass. Before the tracer decides about
//! a call that may change something, it reads all rings ([`Inside::read_all`]), so that each note is judged before anything
//! that could change what it saw.
//!
//! What it must never do: decide anything. A process can write what it likes to its ring, and make calls with the mark: what a
//! ring says is a claim, and only about read-only calls. So nothing that is changed, refused or recalled rests on it.
//!
//! Only processes with one thread and memory of their own note calls. When in doubt, the code makes a call as if it were not
//! there, and the call is judged as any other: when the ring is full, or closed ([`Notebook::close`]), or if it is not known
//! where the path starts. Neighbours: `notifications.rs` counts the calls and learns the start directories, `tracer.rs`
//! patches and closes.

pub mod layout;
mod notebook;
mod notes;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use notebook::Notebook;

use super::memory::{Memory as _, RemoteAddr};
use super::observer::{Caller, Observer, gap};
use super::sys::arch::inside as code;
use super::sys::{Stopped, Tid, TraceeMemory, mapped_ranges};
use super::syscalls::{self, DecodedSyscall, Effect, Special};

/// A call site is patched when the process has made so many calls there: stopping it and mapping the memory takes as long as
/// some twenty notifications.
pub const CALLS_BEFORE_PATCH: u32 = 30;

/// Notes are read after so long at the latest, if no call makes us read them: the first after a pause, and others. Until
/// then, somebody outside of the tree may change what they saw.
const INTERVALS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(2)];

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
    /// A call site is patched after so many calls.
    calls_before_patch: u32,
    processes: Mutex<HashMap<Tid, Process, RandomState>>,
    /// How many of them have a notebook.
    notebooks: AtomicUsize,
    /// Told when there is the first one.
    has_notebook: Condvar,
    /// Threads that have been interrupted, with the return address at the call site that is to be patched.
    wanted: Mutex<HashMap<Tid, u64, RandomState>>,
}

#[derive(Debug, Default)]
struct Process {
    /// How many calls were judged that it made at each call site, by the return address; none where that is patched, or can't be.
    calls: HashMap<u64, Option<u32>, RandomState>,
    notebook: Option<Arc<Notebook>>,
    /// Whether it notes nothing any more.
    is_ended: bool,
}

impl Inside {
    /// Nothing is patched yet; the filter lets calls pass that have `mark`. A call site is patched when a process has made so
    /// many calls there.
    pub fn new(mark: u64, calls_before_patch: u32) -> Inside {
        Inside {
            mark,
            calls_before_patch,
            processes: Mutex::default(),
            notebooks: AtomicUsize::new(0),
            has_notebook: Condvar::new(),
            wanted: Mutex::default(),
        }
    }

    /// Reads notes that nothing else makes us read, as long as this process runs.
    pub fn keep_reading(&self, observer: &impl Observer) -> ! {
        let [long, short] = INTERVALS;
        let mut interval = long;
        loop {
            let mut processes = lock(&self.processes);
            while self.notebooks.load(Ordering::Acquire) == 0 {
                processes = self.has_notebook.wait(processes).unwrap_or_else(PoisonError::into_inner);
            }
            drop(processes);
            std::thread::sleep(interval);
            interval = long;
            for (process, notebook) in self.all() {
                if notebook.read(process, observer) {
                    interval = short;
                }
            }
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
    /// process, if that has one and `may_note`, and learns where its path starts; returns whether the thread is to be
    /// interrupted, so that the call site is patched.
    pub fn judged(
        &self,
        caller: Caller,
        return_address: u64,
        decoded: Option<&DecodedSyscall>,
        observer: &impl Observer,
        may_note: impl FnOnce() -> bool,
    ) -> bool {
        let mut processes = lock(&self.processes);
        let process = processes.entry(caller.tgid).or_default();
        if process.is_ended {
            return false;
        }
        let count = process.calls.entry(return_address).or_insert(Some(0));
        let is_due = count.as_mut().is_some_and(|count| {
            *count += 1;
            *count == self.calls_before_patch
        });
        let notebook = process.notebook.clone();
        drop(processes);
        if notebook.is_none() && !is_due {
            return false;
        }
        if !may_note() {
            if is_due {
                self.never(caller.tgid, return_address);
            }
            return false;
        }
        if let Some(notebook) = notebook {
            notebook.learn(caller, decoded, observer);
        }
        if is_due {
            lock(&self.wanted).insert(caller.tid, return_address);
        }
        is_due
    }

    /// Reads the notes of a process.
    pub fn read(&self, process: Tid, observer: &impl Observer) {
        if let Some(notebook) = self.notebook(process) {
            notebook.read(process, observer);
        }
    }

    /// Reads all notes: a call is about to be decided about that may change something.
    pub fn read_all(&self, observer: &impl Observer) {
        for (process, notebook) in self.all() {
            notebook.read(process, observer);
            notebook.begin_generation();
        }
    }

    /// Closes the notebooks of those whose paths may start elsewhere after a call, or at a directory of another name.
    pub fn close_for(&self, caller: Caller, decoded: &DecodedSyscall) {
        let moves = |effect| matches!(effect, Effect::ChangeDirectory | Effect::ChangeRoot);
        let moves_others = |effect| {
            matches!(effect, Effect::RenameFrom { .. } | Effect::RenameTo { .. } | Effect::RemoveDirectory)
        };
        if decoded.special == Some(Special::Namespace)
            || decoded.accesses.iter().any(|access| moves_others(access.effect))
        {
            self.all().iter().for_each(|(_, notebook)| notebook.close());
        } else if let Some(Special::Filter { .. } | Special::Dispatch) = decoded.special {
            // A filter may object to the mark, or the kernel to where the code is.
            self.end(caller.tgid);
        } else if decoded.special.is_some() || decoded.accesses.iter().any(|access| moves(access.effect)) {
            self.close(caller.tgid);
        }
    }

    /// Has a process note nothing until one of its calls has been judged.
    pub fn close(&self, process: Tid) {
        if let Some(notebook) = self.notebook(process) {
            notebook.close();
        }
    }

    /// Has a process note nothing any more until it executes a program.
    pub fn end(&self, process: Tid) {
        lock(&self.wanted).remove(&process);
        let mut processes = lock(&self.processes);
        let process = processes.entry(process).or_default();
        process.is_ended = true;
        if let Some(notebook) = &process.notebook {
            notebook.close_for_good();
        }
    }

    /// A process has ended, or has executed a program: reads its last notes.
    pub fn forget(&self, process: Tid, observer: &impl Observer) {
        self.read(process, observer);
        lock(&self.wanted).remove(&process);
        let forgotten = lock(&self.processes).remove(&process);
        if forgotten.is_some_and(|process| process.notebook.is_some()) {
            self.notebooks.fetch_sub(1, Ordering::Release);
        }
    }

    /// The return address at the call site to be patched, for which a thread was interrupted; once.
    pub fn take_wanted(&self, thread: Tid) -> Option<u64> {
        lock(&self.wanted).remove(&thread)
    }

    fn never(&self, process: Tid, return_address: u64) {
        lock(&self.processes).entry(process).or_default().calls.insert(return_address, None);
    }

    /// Patches the call site from which the only thread of a process has made its last call, if it is one that can be patched, and
    /// gives the process a notebook if it has none.
    pub fn patch(&self, tracee: &Stopped, process: Tid, return_address: u64, observer: &impl Observer) {
        self.never(process, return_address);
        match self.try_patch(tracee, process, return_address) {
            Ok(()) => {}
            // It was killed.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // Then its calls are judged one by one.
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {}
            Err(error) => gap(observer, &format!("patch process {process}: {error}")),
        }
    }

    fn try_patch(&self, tracee: &Stopped, process: Tid, return_address: u64) -> io::Result<()> {
        let unfit = || io::Error::from(io::ErrorKind::Unsupported);
        let memory = TraceeMemory(tracee.tid());
        let number = tracee.registers()?.number();
        let row = syscalls::row_of(number).filter(|row| is_noted(row.name)).ok_or_else(unfit)?;
        let number = u32::try_from(number).map_err(|_| unfit())?;
        let mut bytes = [0; code::SITE];
        let start = return_address.checked_sub(code::SITE as u64).ok_or_else(unfit)?;
        memory.read_exact(RemoteAddr(start), &mut bytes).map_err(|_| unfit())?;
        // Before anything is mapped.
        code::jump(bytes, number, return_address, return_address).ok_or_else(unfit)?;
        // What is written to shared memory, others execute, too, and a file may keep.
        let is_private = |permissions: &[u8]| permissions.get(3) == Some(&b'p');
        let is_there = |range: &Range<u64>| range.start <= start && return_address <= range.end;
        let ranges = mapped_ranges(process)?;
        if !ranges.iter().any(|(range, rest)| is_there(range) && is_private(rest)) {
            return Err(unfit());
        }
        let notebook = match self.notebook(process) {
            Some(notebook) => notebook,
            None if self.notebooks.load(Ordering::Acquire) >= MOST_NOTEBOOKS => return Err(unfit()),
            None => {
                let notebook = Arc::new(Notebook::map_in(tracee, return_address, self.mark)?);
                let mut processes = lock(&self.processes);
                processes.entry(process).or_default().notebook = Some(Arc::clone(&notebook));
                self.notebooks.fetch_add(1, Ordering::Release);
                drop(processes);
                self.has_notebook.notify_one();
                notebook
            }
        };
        notebook.patch(tracee, return_address, bytes, row.name, number)
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

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_ends_before_the_thunks() {
        assert!(code::code().len() as u64 <= layout::THUNKS);
    }
}
