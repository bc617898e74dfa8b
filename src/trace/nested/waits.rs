//! wait4(2) and waitid(2) of a tracer: what it is told of its tracees, whom the kernel does not know as such.
//!
//! At the entry of a wait, an event that it asks for is its result. Otherwise the kernel waits, and an event that comes later
//! interrupts it: at the exit, before the kernel restarts the call, the event becomes the result. Where the kernel knows
//! nobody to wait for and there is a tracee, the call is made into a ppoll that only a signal or an interruption ends, and
//! is itself again at the exit of that.

use super::permission::process_of_pidfd;
use super::requests::{low, put};
use super::{Event, Nested};
use crate::trace::observer::Caller;
use crate::trace::sys::{self, Stopped, Tid, arch};
use crate::trace::syscalls::Args;
use crate::trace::tracees::Tracees;

const WAIT4: u64 = libc::SYS_wait4.cast_unsigned();
const WAITID: u64 = libc::SYS_waitid.cast_unsigned();
const PPOLL: u64 = libc::SYS_ppoll.cast_unsigned();

/// What the kernel returns inside of an interrupted call that it may restart (linux/errno.h).
const ERESTARTSYS: i64 = -512;
/// Others of this kind; ppoll has one.
const INTERRUPTED: std::ops::RangeInclusive<i64> = -516..=ERESTARTSYS;

/// sizeof(struct rusage), and of what waitid writes of a siginfo_t.
const RUSAGE: usize = 144;
const SIGINFO: usize = 28;

/// A call that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    number: u64,
    arguments: Args,
    pub process: Tid,
    /// Whether the thread sleeps instead.
    pub sleeps: bool,
}

/// For whom a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    Any,
    Process(i32),
    Group(i32),
}

impl Wait {
    fn new(process: Tid, number: u64, arguments: Args) -> Option<Wait> {
        let waits = number == WAIT4 || number == WAITID && arguments[2] != 0;
        waits.then_some(Wait { number, arguments, process, sleeps: false })
    }

    fn options(&self) -> i32 {
        low(self.arguments[if self.number == WAIT4 { 2 } else { 3 }])
    }

    fn has(&self, option: i32) -> bool {
        self.options() & option != 0
    }

    fn whom(&self) -> Option<Whom> {
        let [first, second, ..] = self.arguments;
        if self.number == WAIT4 {
            return Some(match low(first) {
                -1 => Whom::Any,
                0 => Whom::Group(group(self.process)?),
                process @ 1.. => Whom::Process(process),
                other => Whom::Group(other.checked_neg()?),
            });
        }
        Some(match (low(first).cast_unsigned(), low(second)) {
            (libc::P_ALL, _) => Whom::Any,
            (libc::P_PID, process) => Whom::Process(process),
            (libc::P_PGID, 0) => Whom::Group(group(self.process)?),
            (libc::P_PGID, number) => Whom::Group(number),
            (libc::P_PIDFD, _) => Whom::Process(process_of_pidfd(self.process, second)?.0),
            _ => return None,
        })
    }

    /// Whether `tid` waits for this tracee of `tracer`.
    fn is_for(&self, whom: Whom, tid: Tid, tracee: Tid, tracer: Tid, thread: Option<Tid>) -> bool {
        tracer == self.process
            && !(self.has(libc::__WNOTHREAD) && thread.is_some_and(|thread| thread != tid))
            && match whom {
                Whom::Any => true,
                Whom::Process(process) => tracee.0 == process,
                Whom::Group(number) => group(tracee) == Some(number),
            }
    }

    /// Whether the kernel knows a child that the call waits for.
    fn has_child(&self) -> bool {
        let Some(whom) = self.whom() else { return true };
        children(self.process).into_iter().any(|child| match whom {
            Whom::Any => true,
            Whom::Process(process) => child.0 == process,
            Whom::Group(number) => group(child) == Some(number),
        })
    }

    /// Writes what the call tells, and returns its result.
    fn answer(&self, tid: Tid, event: &Event) -> i64 {
        let [_, status, info, _, rusage, _] = self.arguments;
        let answered = if self.number == WAIT4 {
            let rusage = self.arguments[3];
            put_unless_null(tid, status, &event.status.to_ne_bytes())
                .and_then(|()| put_unless_null(tid, rusage, &[0; RUSAGE]))
                .map(|()| i64::from(event.tracee.0))
        } else {
            let (code, status) = match event.status {
                stop if !event.has_ended => (libc::CLD_TRAPPED, stop >> 8),
                exit if libc::WIFEXITED(exit) => (libc::CLD_EXITED, libc::WEXITSTATUS(exit)),
                kill if libc::WCOREDUMP(kill) => (libc::CLD_DUMPED, libc::WTERMSIG(kill)),
                kill => (libc::CLD_KILLED, libc::WTERMSIG(kill)),
            };
            let fields = [libc::SIGCHLD, 0, code, 0, event.tracee.0, event.user.cast_signed(), status];
            put_unless_null(tid, info, fields.map(i32::to_ne_bytes).as_flattened())
                .and_then(|()| put_unless_null(tid, rusage, &[0; RUSAGE]))
                .map(|()| 0)
        };
        answered.unwrap_or_else(|errno| -i64::from(errno))
    }
}

impl Nested {
    /// Handles the entry of a wait of a tracer's thread: the result, if there is one already.
    pub fn wait_begins(&mut self, Caller { tid, tgid }: Caller, number: u64, arguments: Args) -> Option<i64> {
        let mut wait = Wait::new(tgid, number, arguments)?;
        if let Some(result) = self.take_event(tid, &wait) {
            return Some(result);
        }
        if !wait.has(libc::WNOHANG) && self.has_tracee(tid, &wait) && !wait.has_child() {
            wait.sleeps = arch::replace_call(tid, PPOLL, [arguments[0], 0, 0, 0, 0, 0]).is_ok();
        }
        self.waits.insert(tid, wait);
        None
    }

    /// Handles the exit of a call of a tracer's thread, as far as it was a wait, or was asked whether it may trace.
    pub fn call_ends<P>(&mut self, stopped: &Stopped, caller: Caller, result: i64, tracees: &Tracees<P>) {
        let Caller { tid, tgid } = caller;
        if let Some(asking) = self.asking.remove(&tid) {
            let process = tracees.process_of(asking.target);
            let answer = match (asking.answer(stopped, result), process) {
                (Ok(()), Some(process)) if !self.is_tracee(asking.target) => {
                    let tracer = (tgid, Some(tid));
                    self.adopt(asking.target, process, tracer, asking.is_seize, asking.options, tracees);
                    0
                }
                (Ok(()), Some(_)) => -libc::EPERM,
                (Ok(()), None) => -libc::ESRCH,
                (Err(errno), _) => -errno,
            };
            let _ = stopped.set_result(answer.into());
        }
        if let Some(wait) = self.waits.remove(&tid) {
            self.wait_ends(stopped, tid, wait, result);
        }
    }

    fn wait_ends(&mut self, stopped: &Stopped, tid: Tid, wait: Wait, mut result: i64) {
        let (number, arguments) = (wait.number, wait.arguments);
        if wait.sleeps {
            let _ = arch::replace_call(tid, number, arguments);
            result = if INTERRUPTED.contains(&result) { ERESTARTSYS } else { -i64::from(libc::EINTR) };
            let _ = stopped.set_result(result);
        }
        let is_interrupted = result == ERESTARTSYS || result == -i64::from(libc::EINTR);
        let is_without_child = result == -i64::from(libc::ECHILD);
        if (is_interrupted || is_without_child)
            && let Some(result) = self.take_event(tid, &wait)
        {
            let _ = stopped.set_result(result);
            return;
        }
        let Ok(registers) = stopped.registers() else { return };
        if is_without_child && self.has_tracee(tid, &wait) {
            if wait.has(libc::WNOHANG) {
                let nobody = [0; SIGINFO];
                if number == WAITID {
                    let _ = put_unless_null(tid, arguments[2], &nobody);
                }
                let _ = stopped.set_result(0);
            } else {
                let _ = registers.making(number, arguments).set(tid);
            }
        } else if number == WAIT4
            && i32::try_from(result).is_ok_and(|child| {
                self.tracees.get(&Tid(child)).is_some_and(|tracee| tracee.tracer == wait.process)
            })
        {
            // The kernel tells a parent of a group-stop, which is for its tracer here.
            let _ = registers.making(number, arguments).set(tid);
        }
    }

    /// Takes an event that a call asks for; the result of the call.
    fn take_event(&mut self, tid: Tid, wait: &Wait) -> Option<i64> {
        if !self.events.iter().any(|event| event.tracer == wait.process) {
            return None;
        }
        let whom = wait.whom()?;
        let with_ends = wait.number == WAIT4 || wait.has(libc::WEXITED);
        let at = self.events.iter().position(|event| {
            (!event.has_ended || with_ends)
                && wait.is_for(whom, tid, event.tracee, event.tracer, event.thread)
        })?;
        let event = self.events[at];
        if !event.has_ended && sys::has_news(event.tracee) {
            self.stop_is_over(event.tracee);
            return self.take_event(tid, wait);
        }
        if !wait.has(libc::WNOWAIT) {
            self.events.remove(at);
            self.prune(event.tracer);
        }
        Some(wait.answer(tid, &event))
    }

    /// Whether there is a tracee that a call waits for.
    fn has_tracee(&self, tid: Tid, wait: &Wait) -> bool {
        wait.whom().is_some_and(|whom| {
            self.tracees
                .iter()
                .any(|(target, tracee)| wait.is_for(whom, tid, *target, tracee.tracer, tracee.thread))
        })
    }
}

fn put_unless_null(tid: Tid, address: u64, bytes: &[u8]) -> Result<(), i32> {
    if address == 0 { Ok(()) } else { put(tid, address, bytes) }
}

/// The children of a process, those included that have ended (/proc/PID/task/TID/children, proc_tid_children(5)).
fn children(process: Tid) -> Vec<Tid> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|child| child.parse().ok().map(Tid)).collect::<Vec<_>>()
        })
        .collect()
}

/// The process group of a process.
fn group(process: Tid) -> Option<i32> {
    let pid = nix::unistd::Pid::from_raw(process.0);
    nix::unistd::getpgid(Some(pid)).ok().map(nix::unistd::Pid::as_raw)
}
